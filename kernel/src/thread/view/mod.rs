//! What a query may read of the kernel thread: counts and counters, endpoints, the network; `routes` and `rules` have the rest.

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

/// How many routes are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Own routes that are as wanted.
    pub installed: usize,
    /// Wanted and not written yet.
    pub pending: usize,
    /// Refused by the kernel, or in a foreign route's way.
    pub failed: usize,
    /// Learned, but with a reason for no route.
    pub withheld: usize,
    /// Found at start, not spoken of since.
    pub stale: usize,
    /// Routes of others in the main table.
    pub foreign: usize,
    /// Own nexthop objects in the kernel.
    pub nexthops: usize,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Its name.
    pub name: String,
    /// Set up by the administrator.
    pub up: bool,
    /// Up and with carrier.
    pub carries: bool,
    /// Its MTU.
    pub mtu: u32,
}

/// Read access to the kernel thread's state, for one question.
pub struct KernelView<'a> {
    pub(crate) state: &'a State,
    /// `None`: no rules are looked at.
    pub(crate) rules: Option<&'a Firewall>,
}

impl std::fmt::Debug for KernelView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelView").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl KernelView<'_> {
    /// What the agent may do to the kernel.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    /// Whether routes use nexthop objects.
    #[must_use]
    pub fn nexthop_objects(&self) -> bool {
        self.state.table.objects().enabled()
    }

    /// Routes by state, as they were counted while they changed: no route is looked at.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let sums = self.state.table.sums();
        // A prefix is listed as failed until it is right or gone.
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

    /// How many own objects differ from what is wanted, by plane. Looks at every endpoint, and at no route.
    #[must_use]
    pub fn drift_counts(&self) -> DriftCounts {
        let sums = self.state.table.sums();
        DriftCounts {
            routes: [sums.missing, sums.extra, sums.different],
            interfaces: self.state.endpoints.differences().len(),
            rules: self.rules.map(Firewall::drift_counts).unwrap_or_default(),
        }
    }

    /// What was measured.
    #[must_use]
    pub fn metrics(&self) -> KernelMetrics {
        let rules = self.rules.map(|rules| rules.metrics().clone()).unwrap_or_default();
        KernelMetrics { rules, ..self.state.metrics.clone() }
    }

    /// The last comparisons of packet rules and of routes, each with how long it is ago.
    #[must_use]
    pub fn compared(&self) -> LastResync {
        LastResync {
            routes: self.state.last_compare.map(|(at, _)| at.elapsed()),
            rules: self.rules.and_then(Firewall::last_compare).map(|at| at.elapsed()),
        }
    }

    /// Prefixes that wait to be written.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.state.table.dirty().len()
    }

    /// How the kernel reaches an address without our routes.
    #[must_use]
    pub fn resolve(&self, addr: impl Into<ScopedAddr>) -> Option<Resolved> {
        self.state.network.resolve(addr.into())
    }

    /// The name of an interface.
    #[must_use]
    pub fn interface(&self, ifindex: u32) -> Option<&str> {
        self.state.network.link(ifindex).map(|l| l.name.as_str())
    }

    /// Every interface: its name, the largest packet that it takes in bytes, and whether it is set up.
    #[must_use]
    pub fn links(&self) -> Vec<(String, u32, bool)> {
        let links = self.state.network.links();
        links.map(|link| (link.name.clone(), link.mtu, link.is_up())).collect()
    }

    /// Every interface with its addresses.
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

    /// The interface that packets to an address leave by: by a route of ours, else of others.
    #[must_use]
    pub fn device(&self, addr: impl Into<ScopedAddr>) -> Option<&str> {
        let addr = addr.into();
        let own = self.own_covering(addr.addr());
        let ifindex = match own.as_ref().and_then(|route| route.hops.first()) {
            Some(Hop::Tunnel { .. }) => return Some(crate::fib::ipip_tunnel::DEVICE),
            Some(Hop::Plain { ifindex, .. }) => *ifindex,
            None => self.resolve(addr)?.ifindex,
        };
        self.interface(ifindex)
    }

    /// One workload endpoint of this host; `None`: there is no such.
    #[must_use]
    pub fn endpoint(&self, key: &EndpointKey) -> Option<EndpointView> {
        self.state.endpoints.view(key)
    }

    /// All workload endpoints of this host, by key.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointView> + '_ {
        self.state.endpoints.views()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// How long the last full comparison with the kernel is ago (the dump at start is the first), and how long it took;
    /// `None`: none yet.
    #[must_use]
    pub fn last_compare(&self) -> Option<(Duration, Duration)> {
        self.state.last_compare.map(|(at, took)| (at.elapsed(), took))
    }

    /// What is wrong with the tunnel device.
    #[must_use]
    pub fn tunnel(&self) -> Option<&str> {
        self.state.tunnel_problem.as_deref()
    }
}

impl KernelView<'_> {
    /// An interface.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<LinkView> {
        let link = self.state.network.link(ifindex)?;
        let (up, carries) = (link.is_up(), link.can_carry());
        Some(LinkView { name: link.name.clone(), up, carries, mtu: link.mtu })
    }

    /// The metric of own routes.
    #[must_use]
    pub fn metric(&self) -> u32 {
        self.state.table.marks().metric
    }

    /// Whether an address is one of this host's.
    #[must_use]
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.state.network.is_local(addr)
    }
}
