//! Kernel state of the workload endpoints of this host, besides packet rules: routes to their addresses,
//! static neighbours, the sysctls of their interfaces, and deletion of connections of the former holders of
//! their addresses.
//!
//! Packet rules are in `nft/`, routes to other destinations in `fib`. This module creates no interface and
//! allocates no address.
//!
//! ```text
//!   policy (endpoints, globals) --> Endpoints: claims,  --plan.rs--> removals, conntrack, sysctls, additions
//!   notifications, dumps --------->   links, routes,    <--settled-- apply.rs (requests, answers)
//!                                     neighbours
//!                                      |
//!                                      +--> condition of each endpoint, drift, view
//! ```
//!
//! **Routes.** `<address> dev <interface> scope link`, with the metric that the kernel uses if none is given
//! (0, IPv6 1024). A route that a plugin added first has the same prefix and metric. If it uses the right
//! interface it is kept unchanged, whatever its protocol, so that `ip route` shows one route per address and
//! a restart writes nothing. Learned routes and blackholes have a greater metric (1790), so the kernel
//! prefers the endpoint's route, and neither table needs to consult the other.
//!
//! In a store of Calico 3 the metric is the priority of the route (normally 1024), as that of learned routes
//! is. A route with the kernel's metric is kept, unless the workload moves between hosts: then the priority
//! alone decides between the route to its interface and the one to the other host. While it still runs on
//! the other host, the endpoint has everything but routes and neighbours.
//!
//! On workload interfaces (`InterfacePrefix`) this module manages every on-link route of the main table. A
//! route that no endpoint of the interface claims is deleted: at once if it was Tortie's or once an
//! endpoint's, otherwise after its interface has existed for the grace period. Exceptions: `fe80::/64`,
//! routes of the kernel, routes via a gateway.
//!
//! **One holder.** An address that several endpoints claim is held by one: first by an endpoint whose
//! interface is up, then by one with the address as its own rather than a floating one, then by the smaller
//! inside address, then by the smaller key.
//!
//! **Neighbours and sysctls** are read at each resync and each minute, without notifications: the kernel
//! would notify every change of state of every neighbour, while only an operator changes a permanent one.
//! When an interface goes down, the kernel removes its routes and neighbours, some of them without
//! notification, so all of them are treated as removed.
//!
//! **The gateway.** Workloads use 169.254.1.1 as their gateway, an address that no host has. The host answers
//! for it (proxy ARP) only if it has a route to it over another interface. If it has none, Tortie adds
//! `169.254.1.1 dev lo`, which no packet ever uses. Its metric is greater than that of all other routes of
//! Tortie, so that no program that adds a route to the gateway conflicts with it.

mod actual;
mod apply;
mod claims;
pub(super) mod conntrack;
mod events;
mod plan;
mod sysctl;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::key::EndpointKey;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use self::claims::PrefixClaims;
pub use self::view::EndpointView;
use crate::arrival::{Awaited, AwaitedWorkloads};
use crate::endpoints::actual::ActualState;
pub(crate) use crate::endpoints::apply::{Applier, Context, neighbours};
pub(crate) use crate::endpoints::events::DumpData;
use crate::facts::EndpointCondition;
pub(crate) use crate::netlink::neighbour::{
    Neighbour, encode_delete as delete_neighbour, encode_put as put_neighbour,
};
use tortie_engine::policy::{EndpointPolicy, Globals, WorkloadPolicy};
use tortie_engine::routing::{EndpointRouting, EndpointRoutings};

/// Default IPv4 gateway of workloads, proxied by the host; no host has this address.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Sets the sysctls of a workload's interface before it carries traffic, including those for IPv6 if it has
/// IPv6 addresses. The agent later finds them correct.
pub(crate) fn ready_interface(name: &str, ipv6: bool) -> Result<(), String> {
    sysctl::apply(name, ipv6)
}

/// Returns the number of sysctls of a workload's interface with wrong values.
pub(crate) fn wrong_sysctls(name: &str, ipv6: bool) -> usize {
    sysctl::wrong_sysctls(name, ipv6)
}

/// The name of an interface.
type Name = Arc<str>;

/// One request for an interface; `Sysctls` stands for all sysctls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum EndpointRequest {
    DeleteRoute {
        ifindex: u32,
        prefix: Cidr,
        metric: u32,
        protocol: u8,
    },
    DeleteNeighbour {
        ifindex: u32,
        addr: IpAddr,
    },
    /// Sets the sysctls that differ.
    Sysctls {
        name: Name,
        ipv6: bool,
    },
    PutNeighbour {
        ifindex: u32,
        addr: IpAddr,
        mac: [u8; 6],
    },
    PutRoute {
        ifindex: u32,
        prefix: Cidr,
        metric: u32,
    },
}

/// Desired state of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EndpointIntent {
    interface: Name,
    active: bool,
    nets: Vec<Cidr>,
    /// Pairs of floating (external) address and inside address.
    floating_ips: Vec<(IpAddr, IpAddr)>,
    mac: Option<MacAddr>,
}

impl EndpointIntent {
    fn of(policy: &WorkloadPolicy) -> Self {
        let inside = |addr: &IpAddr| policy.nets.iter().any(|net| net.contains(*addr));
        Self {
            interface: policy.interface.as_str().into(),
            active: policy.active,
            nets: policy.nets.clone(),
            floating_ips: policy.nats.iter().filter(|(int, _)| inside(int)).map(|(i, e)| (*e, *i)).collect(),
            mac: policy.mac,
        }
    }

    /// Returns every prefix that is routed to the endpoint.
    fn prefixes(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.nets.iter().copied().chain(self.floating_ips.iter().map(|(ext, _)| Cidr::host(*ext)))
    }
}

/// State of an interface, by name, whether it exists or not.
#[derive(Debug, Default)]
struct InterfaceState {
    endpoints: BTreeSet<EndpointKey>,
    /// Prefixes that its endpoints held at the last check, and the index of the device then.
    held_prefixes: BTreeSet<Cidr>,
    held_ifindex: u32,
    /// End of the grace period, before which foreign routes are kept.
    not_before: Option<Instant>,
}

/// The desired and the actual state of all workload endpoints of this host.
#[derive(Debug)]
pub(crate) struct Endpoints {
    protocol: u8,
    metric: u32,
    /// Routing of the endpoints whose workloads move between hosts.
    routings: Arc<EndpointRoutings>,
    grace: Duration,
    /// True once policy was received; nothing is changed before.
    policy_received: bool,
    prefixes: Vec<String>,
    ipv6: bool,
    ignore_loose: bool,
    intents: BTreeMap<EndpointKey, EndpointIntent>,
    claims: PrefixClaims,
    actual: ActualState,
    interfaces: BTreeMap<Name, InterfaceState>,
    dirty: BTreeSet<Name>,
    /// Prefixes whose conntrack entries must be deleted.
    vacated: BTreeSet<Cidr>,
    /// True if a request was refused because of an object that the actual state lacks.
    needs_resync: bool,
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    /// The endpoints among these that are failed, with the reason.
    failed: BTreeMap<EndpointKey, String>,
    changed: BTreeMap<EndpointKey, Option<EndpointCondition>>,
    /// Requests refused at the last check, by interface.
    refused: BTreeMap<Name, BTreeMap<EndpointRequest, String>>,
    gateway_problem: Option<String>,
    /// The earliest `not_before` of the interfaces, or an earlier time.
    next_wait: Option<Instant>,
}

impl Endpoints {
    /// Creates an empty state. Tortie's routes have this protocol; those with this metric belong to the
    /// forwarding table.
    pub(crate) fn new(protocol: u8, metric: u32, grace: Duration) -> Self {
        Self {
            protocol,
            metric,
            routings: Arc::default(),
            grace,
            policy_received: false,
            prefixes: Vec::new(),
            ipv6: true,
            ignore_loose: false,
            intents: BTreeMap::new(),
            claims: PrefixClaims::default(),
            actual: ActualState::default(),
            interfaces: BTreeMap::new(),
            dirty: BTreeSet::new(),
            vacated: BTreeSet::new(),
            needs_resync: false,
            conditions: BTreeMap::new(),
            failed: BTreeMap::new(),
            changed: BTreeMap::new(),
            refused: BTreeMap::new(),
            gateway_problem: None,
            next_wait: None,
        }
    }

    /// Returns true once policy was received.
    pub(crate) fn follows_policy(&self) -> bool {
        self.policy_received
    }

    /// Sets the prefixes of workload interface names and the use of IPv6.
    pub(crate) fn set_globals(&mut self, globals: &Globals) {
        let first = !std::mem::replace(&mut self.policy_received, true);
        self.ignore_loose = globals.ignore_loose_rpf;
        if !first && self.prefixes == globals.interface_prefixes && self.ipv6 == globals.ipv6 {
            return;
        }
        self.prefixes.clone_from(&globals.interface_prefixes);
        self.ipv6 = globals.ipv6;
        let intents: Vec<(EndpointKey, EndpointIntent)> =
            self.intents.iter().map(|(key, intent)| (key.clone(), intent.clone())).collect();
        for (key, intent) in intents {
            self.unclaim(&key, &intent);
            self.claim(&key, &intent);
        }
        self.mark_all_dirty();
    }

    /// Sets the routing of the endpoints whose workloads move between hosts.
    pub(crate) fn set_routings(&mut self, routings: &Arc<EndpointRoutings>) {
        let before = std::mem::replace(&mut self.routings, Arc::clone(routings));
        if before.normal != routings.normal {
            self.mark_all_dirty();
        }
        let keys = before.moving.keys().chain(routings.moving.keys());
        for key in keys.filter(|key| before.moving.get(*key) != routings.moving.get(*key)) {
            if let Some(intent) = self.intents.get(key).cloned() {
                self.unclaim(key, &intent);
                self.claim(key, &intent);
                self.mark(&intent.interface);
            }
        }
    }

    /// Returns true if the workload of an endpoint still runs on another host.
    fn is_withheld(&self, key: &EndpointKey) -> bool {
        self.routings.moving.get(key) == Some(&EndpointRouting::Withheld)
    }

    /// Returns the workloads that still run on another host, and whose interface exists.
    pub(crate) fn awaited(&self) -> AwaitedWorkloads {
        let awaited = |key: &EndpointKey| {
            let intent = self.intents.get(key).filter(|intent| intent.active)?;
            let (ifindex, _) = self.actual.link_named(&intent.interface)?;
            let addresses = intent.nets.iter().filter(|net| net.is_host()).map(Cidr::addr).collect();
            Some(Awaited { ifindex, mac: intent.mac.map(|mac| mac.0), addresses })
        };
        let withheld = self.routings.moving.keys().filter(|key| self.is_withheld(key));
        withheld.filter_map(|key| Some((key.clone(), awaited(key)?))).collect()
    }

    /// Changes, adds or removes an endpoint. Host endpoints are ignored.
    pub(crate) fn set_endpoint(&mut self, key: &EndpointKey, policy: Option<&EndpointPolicy>) {
        let intent = match policy {
            Some(EndpointPolicy::Workload(workload)) => Some(EndpointIntent::of(workload)),
            Some(EndpointPolicy::Host(_)) | None => None,
        };
        if self.intents.get(key) == intent.as_ref() {
            return;
        }
        if let Some(old) = self.intents.remove(key) {
            self.unclaim(key, &old);
            self.mark(&old.interface);
            if let Some(place) = self.interfaces.get_mut(&old.interface) {
                place.endpoints.remove(key);
            }
        }
        match intent {
            Some(intent) => {
                self.claim(key, &intent);
                self.mark(&intent.interface);
                self.interfaces
                    .entry(Arc::clone(&intent.interface))
                    .or_default()
                    .endpoints
                    .insert(key.clone());
                self.intents.insert(key.clone(), intent);
            }
            None => self.set_condition(key, None),
        }
    }

    /// Returns true if an active endpoint has an IPv6 address.
    pub(crate) fn has_v6(&self) -> bool {
        self.claims.any(false)
    }

    /// Marks failed interfaces for a retry.
    pub(crate) fn retry(&mut self) {
        self.gateway_problem = None;
        self.dirty.extend(self.refused.keys().map(Arc::clone));
    }

    /// Returns true if a request was refused, so that a retry may succeed.
    pub(crate) fn has_refusals(&self) -> bool {
        self.gateway_problem.is_some() || !self.refused.is_empty()
    }

    /// Marks all interfaces for a check, since some changes are not notified.
    pub(crate) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.interfaces.keys().map(Arc::clone));
        self.dirty.extend(self.actual.links().map(|(_, link)| Arc::clone(&link.name)));
    }

    /// Returns the failed endpoints, with the reason. An endpoint without an interface is not among them: the
    /// kernel has all state that is possible without it.
    pub(crate) fn failed(&self) -> &BTreeMap<EndpointKey, String> {
        &self.failed
    }

    /// Records the condition of an endpoint; `None` if it was removed.
    fn set_condition(&mut self, key: &EndpointKey, condition: Option<EndpointCondition>) {
        if self.conditions.get(key) == condition.as_ref() {
            return;
        }
        match &condition {
            Some(EndpointCondition::Failed(why)) => drop(self.failed.insert(key.clone(), why.clone())),
            _ => drop(self.failed.remove(key)),
        }
        match condition.clone() {
            Some(condition) => drop(self.conditions.insert(key.clone(), condition)),
            None => drop(self.conditions.remove(key)),
        }
        self.changed.insert(key.clone(), condition);
    }

    /// Returns the interfaces of the active endpoints among `keys` that are not known to be up.
    pub(crate) fn missing_interfaces<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a EndpointKey>,
    ) -> BTreeSet<Name> {
        let intents = keys.into_iter().filter_map(|key| self.intents.get(key)).filter(|intent| intent.active);
        intents
            .filter(|intent| !self.is_up(&intent.interface))
            .map(|intent| Arc::clone(&intent.interface))
            .collect()
    }

    /// Returns true if an interface is known to be up.
    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.actual.link_named(name).is_some_and(|(_, device)| device.up)
    }

    /// Returns the conditions that changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<EndpointKey, Option<EndpointCondition>> {
        std::mem::take(&mut self.changed)
    }

    fn mark(&mut self, name: &Name) {
        self.dirty.insert(Arc::clone(name));
    }

    /// Returns true if the name of an interface is that of a workload interface.
    fn is_workload(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    fn claim(&mut self, key: &EndpointKey, intent: &EndpointIntent) {
        if !intent.active || !self.is_workload(&intent.interface) || self.is_withheld(key) {
            return;
        }
        let ipv6 = self.ipv6;
        for prefix in intent.prefixes().filter(|p| p.is_v4() || ipv6) {
            self.mark_claimants(&prefix);
            self.claims.add(prefix, key);
        }
    }

    fn unclaim(&mut self, key: &EndpointKey, intent: &EndpointIntent) {
        for prefix in intent.prefixes() {
            self.claims.remove(&prefix, key);
            self.mark_claimants(&prefix);
        }
    }

    /// Marks the interfaces of all endpoints that claim a prefix.
    fn mark_claimants(&mut self, prefix: &Cidr) {
        for key in self.claims.of(prefix) {
            if let Some(intent) = self.intents.get(key) {
                self.dirty.insert(Arc::clone(&intent.interface));
            }
        }
    }

    /// Returns the endpoint that holds a prefix, by the rules in the module documentation.
    fn holder(&self, prefix: &Cidr) -> Option<&EndpointKey> {
        let rank = |key: &&EndpointKey| {
            let intent = self.intents.get(*key);
            let up = intent.is_some_and(|w| self.is_up(&w.interface));
            let own = intent.is_some_and(|w| w.nets.contains(prefix));
            let inside = intent
                .filter(|_| !own)
                .and_then(|w| w.floating_ips.iter().filter(|(ext, _)| Cidr::host(*ext) == *prefix).min())
                .map(|(_, int)| int.to_string());
            (!up, !own, inside, (*key).clone())
        };
        match self.claims.of(prefix) {
            [] => None,
            [only] => Some(only),
            several => several.iter().min_by_key(rank),
        }
    }
}
