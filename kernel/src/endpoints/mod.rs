//! What the kernel needs for each workload endpoint of this host besides packet rules: routes to its addresses, static
//! neighbours, the sysctls of its interface, and no connections left over from whoever had its addresses before.
//!
//! What it does not: packet rules (`nft/`), routes to elsewhere (`table.rs`); it makes no interface and gives no address.
//!
//! ```text
//!   Policy (endpoints, frame) --> Ends: claims, links, --plan.rs--> removals | connections | sysctls | additions
//!   notifications, dumps -------> routes, neighbours   <--settled---------- driver.rs (requests, answers)
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
//! endpoint of that interface asks for is deleted; at once if it was ours or known to be an endpoint's, else when its
//! interface has been there for the grace time. Left alone: `fe80::/64`, routes of the kernel, routes over a gateway.
//!
//! **One holder.** An address that several endpoints ask for goes to one: of an interface that is up before one of which
//! is not, its own address before a floating one, the smaller inside address, the smaller key.
//!
//! **Neighbours and sysctls** are read at each full comparison, each minute, and not listened to: every change of state
//! of every neighbour would be told, while nothing but a person changes a permanent one. When an interface goes down the
//! kernel drops both routes and neighbours of it, in part without a word, so that is what is taken as known then.
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

use rustc_hash::FxHashMap;
use tortie_config::key::EndpointKey;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use self::claims::Claims;
pub use self::view::EndpointView;
use crate::endpoints::actual::Known;
pub(crate) use crate::endpoints::apply::{Context, Driver, neighbours};
pub(crate) use crate::endpoints::events::Reading;
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
    sysctl::wrong(name, ipv6)
}

/// The name of an interface.
type Name = Arc<str>;

/// One request, or what stands for several of one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
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
struct Wish {
    interface: Name,
    active: bool,
    nets: Vec<Cidr>,
    /// Outside and inside address.
    floating: Vec<(IpAddr, IpAddr)>,
    mac: Option<MacAddr>,
}

impl Wish {
    fn of(policy: &WorkloadPolicy) -> Self {
        let inside = |addr: &IpAddr| policy.nets.iter().any(|net| net.contains(*addr));
        Self {
            interface: policy.interface.as_str().into(),
            active: policy.active,
            nets: policy.nets.clone(),
            floating: policy.nats.iter().filter(|(int, _)| inside(int)).map(|(i, e)| (*e, *i)).collect(),
            mac: policy.mac,
        }
    }

    /// Every prefix that leads to it.
    fn prefixes(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.nets.iter().copied().chain(self.floating.iter().map(|(ext, _)| Cidr::host(*ext)))
    }
}

/// An interface by name, there or not.
#[derive(Debug, Default)]
struct Place {
    endpoints: BTreeSet<EndpointKey>,
    /// What its endpoints held when it was last looked at, and on which device.
    held: BTreeSet<Cidr>,
    held_on: u32,
    /// Routes are left alone until then.
    waits: Option<Instant>,
}

/// Wanted and known of all workload endpoints of this host.
#[derive(Debug)]
pub(crate) struct Ends {
    protocol: u8,
    metric: u32,
    grace: Duration,
    /// Policy has spoken; nothing is touched before.
    told: bool,
    prefixes: Vec<String>,
    ipv6: bool,
    ignore_loose: bool,
    wishes: BTreeMap<EndpointKey, Wish>,
    claims: Claims,
    known: Known,
    places: FxHashMap<Name, Place>,
    dirty: BTreeSet<Name>,
    /// Prefixes whose connections are to be deleted.
    left: BTreeSet<Cidr>,
    /// A request was refused because of something that was not known.
    doubtful: bool,
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    /// Those of them that are not right, with the reason.
    failed: BTreeMap<EndpointKey, String>,
    changed: BTreeMap<EndpointKey, Option<EndpointCondition>>,
    /// By interface, what was refused when it was last looked at.
    refused: BTreeMap<Name, BTreeMap<Work, String>>,
    gateway_refused: Option<String>,
    /// The first of the places' waits, or an earlier one.
    first_wait: Option<Instant>,
}

impl Ends {
    /// Nothing wanted, nothing known. Own routes have this protocol; at this metric they belong to the table.
    pub(crate) fn new(protocol: u8, metric: u32, grace: Duration) -> Self {
        Self {
            protocol,
            metric,
            grace,
            told: false,
            prefixes: Vec::new(),
            ipv6: true,
            ignore_loose: false,
            wishes: BTreeMap::new(),
            claims: Claims::default(),
            known: Known::default(),
            places: FxHashMap::default(),
            dirty: BTreeSet::new(),
            left: BTreeSet::new(),
            doubtful: false,
            conditions: BTreeMap::new(),
            failed: BTreeMap::new(),
            changed: BTreeMap::new(),
            refused: BTreeMap::new(),
            gateway_refused: None,
            first_wait: None,
        }
    }

    /// The frame: which interfaces are workloads', and whether there is IPv6.
    pub(crate) fn set_globals(&mut self, globals: &Globals) {
        let first = !std::mem::replace(&mut self.told, true);
        self.ignore_loose = globals.ignore_loose_rpf;
        if !first && self.prefixes == globals.interface_prefixes && self.ipv6 == globals.ipv6 {
            return;
        }
        self.prefixes.clone_from(&globals.interface_prefixes);
        self.ipv6 = globals.ipv6;
        let wishes: Vec<(EndpointKey, Wish)> =
            self.wishes.iter().map(|(key, wish)| (key.clone(), wish.clone())).collect();
        for (key, wish) in wishes {
            self.unclaim(&key, &wish);
            self.claim(&key, &wish);
        }
        self.all_dirty();
    }

    /// What became of an endpoint. Host endpoints are no concern of this room.
    pub(crate) fn set_endpoint(&mut self, key: &EndpointKey, policy: Option<&EndpointPolicy>) {
        let wish = match policy {
            Some(EndpointPolicy::Workload(workload)) => Some(Wish::of(workload)),
            Some(EndpointPolicy::Host(_)) | None => None,
        };
        if self.wishes.get(key) == wish.as_ref() {
            return;
        }
        if let Some(old) = self.wishes.remove(key) {
            self.unclaim(key, &old);
            self.mark(&old.interface);
            if let Some(place) = self.places.get_mut(&old.interface) {
                place.endpoints.remove(key);
            }
        }
        match wish {
            Some(wish) => {
                self.claim(key, &wish);
                self.mark(&wish.interface);
                self.places.entry(Arc::clone(&wish.interface)).or_default().endpoints.insert(key.clone());
                self.wishes.insert(key.clone(), wish);
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
        self.gateway_refused = None;
        self.dirty.extend(self.refused.keys().map(Arc::clone));
    }

    /// Whether something was refused, so that trying again may help.
    pub(crate) fn has_refused(&self) -> bool {
        self.gateway_refused.is_some() || !self.refused.is_empty()
    }

    /// Everything is looked at again: what is silent may have changed.
    pub(crate) fn all_dirty(&mut self) {
        self.dirty.extend(self.places.keys().map(Arc::clone));
        self.dirty.extend(self.known.links().map(|(_, link)| Arc::clone(&link.name)));
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
        let wishes = keys.into_iter().filter_map(|key| self.wishes.get(key)).filter(|wish| wish.active);
        wishes.filter(|wish| !self.is_up(&wish.interface)).map(|wish| Arc::clone(&wish.interface)).collect()
    }

    /// Whether an interface is known to be up.
    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.known.link_named(name).is_some_and(|(_, device)| device.up)
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

    fn claim(&mut self, key: &EndpointKey, wish: &Wish) {
        if !wish.active || !self.is_workload(&wish.interface) {
            return;
        }
        let ipv6 = self.ipv6;
        for prefix in wish.prefixes().filter(|p| p.is_v4() || ipv6) {
            self.mark_claimants(&prefix);
            self.claims.add(prefix, key);
        }
    }

    fn unclaim(&mut self, key: &EndpointKey, wish: &Wish) {
        for prefix in wish.prefixes() {
            self.claims.remove(&prefix, key);
            self.mark_claimants(&prefix);
        }
    }

    /// The interfaces of all who ask for a prefix are looked at again.
    fn mark_claimants(&mut self, prefix: &Cidr) {
        for key in self.claims.of(prefix) {
            if let Some(wish) = self.wishes.get(key) {
                self.dirty.insert(Arc::clone(&wish.interface));
            }
        }
    }

    /// Who holds a prefix: see the head of this file.
    fn holder(&self, prefix: &Cidr) -> Option<&EndpointKey> {
        let rank = |key: &&EndpointKey| {
            let wish = self.wishes.get(*key);
            let up = wish.is_some_and(|w| self.is_up(&w.interface));
            let own = wish.is_some_and(|w| w.nets.contains(prefix));
            let inside = wish
                .filter(|_| !own)
                .and_then(|w| w.floating.iter().filter(|(ext, _)| Cidr::host(*ext) == *prefix).min())
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
