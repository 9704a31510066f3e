//! Read-only view of the kernel thread for queries: counts and counters, endpoints, the network; routes and
//! rules are in `routes` and `rules`.

mod routes;
mod rules;

pub use self::routes::{Drift, RouteCondition, RouteState};
use crate::counters::Counters;
use crate::endpoints::EndpointView;
use crate::nft::Firewall;
use crate::options::Mode;
use crate::thread::metrics::{DriftCounts, KernelMetrics, LastResync};
use crate::thread::state::State;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use tortie_config::key::EndpointKey;
use tortie_engine::routing::{Hop, Resolved};
use tortie_net::ScopedAddr;

/// Numbers of routes by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tortie's routes that are as desired.
    pub installed: usize,
    /// Desired and not written yet.
    pub pending: usize,
    /// Refused by the kernel, or in conflict with a foreign route.
    pub failed: usize,
    /// Learned, with a reason for having no route.
    pub withheld: usize,
    /// Found at the start and not learned again since.
    pub stale: usize,
    /// Foreign routes in the main table.
    pub foreign: usize,
    /// Tortie's nexthop objects in the kernel.
    pub nexthops: usize,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Name of the interface.
    pub name: String,
    /// True if administratively up.
    pub up: bool,
    /// True if up and with carrier.
    pub carries: bool,
    /// MTU in bytes.
    pub mtu: u32,
}

/// Read access to the kernel thread's state, for one query.
pub struct KernelView<'a> {
    pub(crate) state: &'a State,
    /// `None` if packet rules are not read.
    pub(crate) rules: Option<&'a Firewall>,
}

impl std::fmt::Debug for KernelView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelView").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl KernelView<'_> {
    /// Returns the mode: the permitted changes of the kernel.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    /// Returns true if routes use nexthop objects.
    #[must_use]
    pub fn nexthop_objects(&self) -> bool {
        self.state.table.objects().enabled()
    }

    /// Returns the numbers of routes by state. They are counted at each change, so no route is visited.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sums = self.state.table.sums();
        // A prefix is listed as failed until it is as desired or removed.
        let failed = self.state.table.failures().min(sums.out_of_sync());
        Counts {
            installed: sums.in_sync,
            pending: sums.out_of_sync() - failed,
            failed,
            withheld: sums.withheld,
            stale: sums.stale,
            foreign: self.state.network.foreign_count().saturating_sub(self.state.endpoints.own_routes()),
            nexthops: self.state.table.objects().count(),
        }
    }

    /// Returns the numbers of differences from the desired state. Visits every endpoint, but no route.
    #[must_use]
    pub fn drift_counts(&self) -> DriftCounts {
        let sums = self.state.table.sums();
        DriftCounts {
            routes: [sums.missing, sums.extra, sums.different],
            interfaces: self.state.endpoints.differences().len(),
            rules: self.rules.map(Firewall::drift_counts).unwrap_or_default(),
        }
    }

    /// Returns the metrics.
    #[must_use]
    pub fn metrics(&self) -> KernelMetrics {
        let rules = self.rules.map(|rules| rules.metrics().clone()).unwrap_or_default();
        KernelMetrics { rules, ..self.state.metrics.clone() }
    }

    /// Returns the times since the last resync of routes and the last comparison of packet rules.
    #[must_use]
    pub fn compared(&self) -> LastResync {
        LastResync {
            routes: self.state.last_compare.map(|(at, _)| at.elapsed()),
            rules: self.rules.and_then(Firewall::last_compare).map(|at| at.elapsed()),
        }
    }

    /// Returns the number of prefixes that wait to be written.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.state.table.dirty().len()
    }

    /// Resolves an address over foreign routes only.
    #[must_use]
    pub fn resolve(&self, addr: impl Into<ScopedAddr>) -> Option<Resolved> {
        self.state.network.resolve(addr.into())
    }

    /// Returns the name of an interface.
    #[must_use]
    pub fn interface(&self, ifindex: u32) -> Option<&str> {
        self.state.network.link(ifindex).map(|l| l.name.as_str())
    }

    /// Returns all interfaces: name, MTU in bytes, and true if up.
    #[must_use]
    pub fn links(&self) -> Vec<(String, u32, bool)> {
        let links = self.state.network.links();
        links.map(|link| (link.name.clone(), link.mtu, link.is_up())).collect()
    }

    /// Returns all interfaces with their addresses.
    #[must_use]
    pub fn interfaces(&self) -> BTreeMap<String, Vec<IpAddr>> {
        let network = &self.state.network;
        let mut found: BTreeMap<String, Vec<IpAddr>> =
            network.links().map(|link| (link.name.clone(), Vec::new())).collect();
        for address in network.addresses() {
            let link = network.link(address.ifindex);
            if let Some(addrs) = link.and_then(|link| found.get_mut(link.name.as_str())) {
                addrs.push(address.addr);
            }
        }
        found
    }

    /// Returns the outgoing interface for packets to an address: by a Tortie route, else by a foreign one.
    #[must_use]
    pub fn device(&self, addr: impl Into<ScopedAddr>) -> Option<&str> {
        let addr = addr.into();
        let own = self.own_covering(addr.addr());
        let ifindex = match own.as_ref().and_then(|route| route.hops.first()) {
            Some(Hop::Tunnel { .. }) => return Some(crate::fib::ipip_tunnel::DEVICE),
            Some(Hop::Vxlan { remote }) => return Some(crate::vxlan::name(remote.is_ipv4())),
            Some(Hop::Plain { ifindex, .. }) => *ifindex,
            None => self.resolve(addr)?.ifindex,
        };
        self.interface(ifindex)
    }

    /// Returns one workload endpoint of this host; `None` if unknown.
    #[must_use]
    pub fn endpoint(&self, key: &EndpointKey) -> Option<EndpointView> {
        self.state.endpoints.view(key)
    }

    /// Returns all workload endpoints of this host, by key.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointView> + '_ {
        self.state.endpoints.views()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Returns the time since the last resync (the initial dump is the first), and its duration; `None`
    /// before the first.
    #[must_use]
    pub fn last_compare(&self) -> Option<(Duration, Duration)> {
        self.state.last_compare.map(|(at, took)| (at.elapsed(), took))
    }

    /// Returns the fault of the tunnel device, if any.
    #[must_use]
    pub fn tunnel(&self) -> Option<&str> {
        self.state.tunnel_problem.as_deref()
    }
}

impl KernelView<'_> {
    /// Returns an interface by its index.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<LinkView> {
        let link = self.state.network.link(ifindex)?;
        let (up, carries) = (link.is_up(), link.can_carry());
        Some(LinkView { name: link.name.clone(), up, carries, mtu: link.mtu })
    }

    /// Returns the metric of Tortie's routes.
    #[must_use]
    pub fn metric(&self) -> u32 {
        self.state.table.marks().metric
    }

    /// Returns true if an address belongs to this host.
    #[must_use]
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.state.network.is_local(addr)
    }
}
