//! What the kernel needs for each workload endpoint of this host besides packet rules: routes to its addresses, static
//! neighbours, the sysctls of its interface, and no connections left over from the former holders of its addresses.
//!
//! What it does not: packet rules (`nft/`), routes to elsewhere (`fib`); it makes no interface and gives no address.
//!
//! ```text
//!   Policy (endpoints, frame) --> Endpoints: claims, links, --plan.rs--> removals | connections | sysctls | additions
//!   notifications, dumps -------> routes, neighbours   <--settled---------- apply.rs (requests, answers)
//!                                      |
//!                                      +--> condition of each endpoint, drift, view
//! ```
//!
//! **Routes.** `<address> dev <interface> scope link` at the metric that plugins and people get when they give none (0, IPv6
//! 1024). A route that a plugin put there first has the same prefix and metric: where it leads to the right interface it
//! is kept as it is, whatever its protocol, so that `ip route` shows one route for each address and a restart writes
//! nothing. Routes that are learned and blackholes have a greater metric (1790): the kernel itself prefers the endpoint, and
//! none of the two tables ever looks at the other.
//!
//! On interfaces of workloads (`InterfacePrefix`) every on-link route of the main table is ours to judge: one that no
//! endpoint of that interface asks for is deleted; at once if it was ours or once an endpoint's, else when its
//! interface has been there for the grace time. Left alone: `fe80::/64`, routes of the kernel, routes over a gateway.
//!
//! **One holder.** An address that several endpoints ask for goes to one: of an interface that is up before one of which
//! is not, its own address before a floating one, the smaller inside address, the smaller key.
//!
//! **Neighbours and sysctls** are read at each full comparison, each minute, and not listened to: every change of state
//! of every neighbour would be notified, while nothing but a person changes a permanent one. When an interface goes down the
//! kernel drops both routes and neighbours of it, in part without a word, so both count as gone then.
//!
//! **The gateway.** Workloads send to 169.254.1.1, which nobody has. The host answers for it (proxy ARP) only if it has
//! a route to it over another interface. Where none is, `169.254.1.1 dev lo` is one; the packets themselves
//! never go there. Its metric is greater than any of ours, so that nobody who writes a route to the gateway finds it taken.

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
use crate::endpoints::actual::ActualState;
pub(crate) use crate::endpoints::apply::{Applier, Context, neighbours};
pub(crate) use crate::endpoints::events::DumpData;
use crate::facts::EndpointCondition;
pub(crate) use crate::netlink::neighbour::{
    Neighbour, encode_delete as delete_neighbour, encode_put as put_neighbour,
};
use tortie_engine::policy::{EndpointPolicy, Globals, WorkloadPolicy};

/// What workloads send to instead of a router's address.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// Sets the sysctls of a workload's interface before it carries anything, those for IPv6 addresses if it has any; the
/// agent finds them right later.
pub(crate) fn ready_interface(name: &str, ipv6: bool) -> Result<(), String> {
    sysctl::apply(name, ipv6)
}

/// How many sysctls of a workload's interface are not as they should be.
pub(crate) fn wrong_sysctls(name: &str, ipv6: bool) -> usize {
    sysctl::wrong_sysctls(name, ipv6)
}

/// The name of an interface.
type Name = Arc<str>;

/// One request, or what stands for several of one kind.
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
    /// Sets what differs.
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

/// What an endpoint asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EndpointIntent {
    interface: Name,
    active: bool,
    nets: Vec<Cidr>,
    /// Outside and inside address.
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

    /// Every prefix that leads to it.
    fn prefixes(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.nets.iter().copied().chain(self.floating_ips.iter().map(|(ext, _)| Cidr::host(*ext)))
    }
}

/// An interface by name, there or not.
#[derive(Debug, Default)]
struct InterfaceState {
    endpoints: BTreeSet<EndpointKey>,
    /// What its endpoints held when it was last looked at, and on which device.
    held_prefixes: BTreeSet<Cidr>,
    held_ifindex: u32,
    /// Routes are left alone until then.
    not_before: Option<Instant>,
}

/// The desired and the actual state of all workload endpoints of this host.
#[derive(Debug)]
pub(crate) struct Endpoints {
    protocol: u8,
    metric: u32,
    grace: Duration,
    /// Policy has spoken; nothing is touched before.
    policy_received: bool,
    prefixes: Vec<String>,
    ipv6: bool,
    ignore_loose: bool,
    intents: BTreeMap<EndpointKey, EndpointIntent>,
    claims: PrefixClaims,
    actual: ActualState,
    interfaces: BTreeMap<Name, InterfaceState>,
    dirty: BTreeSet<Name>,
    /// Prefixes whose connections are to be deleted.
    vacated: BTreeSet<Cidr>,
    /// A request was refused because of something that the actual state lacks.
    needs_resync: bool,
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    /// Those of them that are not right, with the reason.
    failed: BTreeMap<EndpointKey, String>,
    changed: BTreeMap<EndpointKey, Option<EndpointCondition>>,
    /// By interface, what was refused when it was last looked at.
    refused: BTreeMap<Name, BTreeMap<EndpointRequest, String>>,
    gateway_problem: Option<String>,
    /// The first of the places' waits, or an earlier one.
    next_wait: Option<Instant>,
}

impl Endpoints {
    /// Nothing desired, nothing there. Own routes have this protocol; at this metric they belong to the table.
    pub(crate) fn new(protocol: u8, metric: u32, grace: Duration) -> Self {
        Self {
            protocol,
            metric,
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

    /// Policy has spoken.
    pub(crate) fn follows_policy(&self) -> bool {
        self.policy_received
    }

    /// The frame: which interfaces are workloads', and whether there is IPv6.
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

    /// What became of an endpoint. Host endpoints are no concern of this room.
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

    /// Whether an active endpoint has an IPv6 address.
    pub(crate) fn has_v6(&self) -> bool {
        self.claims.any(false)
    }

    /// What failed is tried again.
    pub(crate) fn retry(&mut self) {
        self.gateway_problem = None;
        self.dirty.extend(self.refused.keys().map(Arc::clone));
    }

    /// Whether something was refused, so that trying again may help.
    pub(crate) fn has_refusals(&self) -> bool {
        self.gateway_problem.is_some() || !self.refused.is_empty()
    }

    /// Everything is looked at again: what is silent may have changed.
    pub(crate) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.interfaces.keys().map(Arc::clone));
        self.dirty.extend(self.actual.links().map(|(_, link)| Arc::clone(&link.name)));
    }

    /// The endpoints that are not right, with the reason. One without interface is not among them: the kernel has all
    /// that it can have, and gets the rest with the interface.
    pub(crate) fn failed(&self) -> &BTreeMap<EndpointKey, String> {
        &self.failed
    }

    /// Notes how an endpoint is; `None`: it is gone.
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

    /// The interfaces of active endpoints among these that are not known to be up.
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

    /// Whether an interface is known to be up.
    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.actual.link_named(name).is_some_and(|(_, device)| device.up)
    }

    /// The conditions that changed since the last time.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<EndpointKey, Option<EndpointCondition>> {
        std::mem::take(&mut self.changed)
    }

    fn mark(&mut self, name: &Name) {
        self.dirty.insert(Arc::clone(name));
    }

    /// Whether an interface belongs to a workload, by its name.
    fn is_workload(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    fn claim(&mut self, key: &EndpointKey, intent: &EndpointIntent) {
        if !intent.active || !self.is_workload(&intent.interface) {
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

    /// The interfaces of all who ask for a prefix are looked at again.
    fn mark_claimants(&mut self, prefix: &Cidr) {
        for key in self.claims.of(prefix) {
            if let Some(intent) = self.intents.get(key) {
                self.dirty.insert(Arc::clone(&intent.interface));
            }
        }
    }

    /// Who holds a prefix: see the head of this file.
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
