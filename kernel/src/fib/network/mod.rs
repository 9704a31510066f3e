//! State of links, addresses and foreign routes of the main table, and of tracked next hops with their last
//! resolution. Pure.
//!
//! [`super::next_hops`] resolves next hops, including over learned routes. Tracked next hops are kept in a
//! trie, so that a changed route only affects the next hops it covers, once per batch, however many changes a
//! batch has.

mod foreign_routes;
mod tries;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use self::foreign_routes::{ForeignEntry, ForeignRoutes};
use self::tries::Tries;
use super::request::NetworkView;
use crate::netlink::link::{Address, Link};
use crate::netlink::route::{Leg, RTN_UNICAST, Route};
use tortie_engine::routing::{Legs, Resolved};

pub use self::foreign_routes::ForeignRoute;

/// `RTPROT_KERNEL`, the protocol of the route `fe80::/64` of each interface.
const RTPROT_KERNEL: u8 = 2;

/// A tracked next hop.
#[derive(Debug, Default)]
struct TrackedNextHop {
    answer: NextHopAnswer,
    /// True if its changes are reported; otherwise only learned routes use it.
    tracked: bool,
}

/// Resolution of a next hop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NextHopAnswer {
    /// Legs for routes to prefixes that are not in `within`.
    pub(crate) legs: Legs,
    /// Legs for routes to the learned prefixes over which `legs` resolve: a route must not resolve its next
    /// hop through itself.
    pub(crate) within: Vec<(Cidr, Legs)>,
    /// Other addresses used in the resolution; if one of them changes, this resolution may change.
    pub(crate) over: SmallVec<[ScopedAddr; 2]>,
}

impl NextHopAnswer {
    /// Returns the legs for routes to this prefix.
    pub(crate) fn within(&self, prefix: &Cidr) -> &Legs {
        self.within.iter().find(|(within, _)| within == prefix).map_or(&self.legs, |(_, legs)| legs)
    }

    /// Returns the first leg.
    pub(crate) fn first(&self) -> Option<Resolved> {
        self.legs.first().copied()
    }
}

impl From<Legs> for NextHopAnswer {
    fn from(legs: Legs) -> Self {
        Self { legs, ..Self::default() }
    }
}

/// A foreign route that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignCovering {
    pub(crate) prefix: Cidr,
    /// Metric of the route, also for an on-link route.
    pub(crate) metric: u32,
    pub(crate) protocol: u8,
    /// Usable legs, sorted; several for a multipath route, none if the route drops packets.
    pub(crate) legs: Legs,
}

/// The route that covers an address, with its resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covering {
    /// Prefix of the covering route.
    pub prefix: Cidr,
    /// Protocol of the route (`rtm_protocol`); Tortie's own for a learned route.
    pub protocol: u8,
    /// The first leg.
    pub resolved: Resolved,
}

/// Links, addresses, foreign routes and the next hops that depend on them.
#[derive(Debug, Default)]
pub(crate) struct NetworkState {
    links: BTreeMap<u32, Link>,
    addresses: BTreeSet<Address>,
    local: HashMap<IpAddr, u32>,
    foreign: ForeignRoutes,
    tracked_hops: HashMap<ScopedAddr, TrackedNextHop>,
    /// Next hops whose resolution uses other addresses.
    recursive: BTreeSet<ScopedAddr>,
    /// All tracked next hops except link-local ones, which no route covers.
    index: Tries<()>,
    dirty_addresses: BTreeSet<ScopedAddr>,
    all_dirty: bool,
}

impl NetworkState {
    // Links and addresses.

    /// Updates a link and returns its former state.
    pub(crate) fn set_link(&mut self, link: Link) -> Option<Link> {
        let old = self.links.get(&link.index).cloned();
        // Counters and names change often; only these properties affect reachability.
        if old.as_ref().is_none_or(|o| o.can_carry() != link.can_carry() || o.is_up() != link.is_up()) {
            self.all_dirty = true;
        }
        self.links.insert(link.index, link);
        old
    }

    pub(crate) fn remove_link(&mut self, index: u32) {
        self.all_dirty |= self.links.remove(&index).is_some();
        self.addresses.retain(|a| a.ifindex != index);
        self.count_local();
    }

    pub(crate) fn add_address(&mut self, address: Address) {
        if self.addresses.insert(address) {
            *self.local.entry(address.addr).or_default() += 1;
            self.mark_dirty_at(ScopedAddr::new(address.addr, address.ifindex));
        }
    }

    pub(crate) fn remove_address(&mut self, address: &Address) {
        if self.addresses.remove(address) {
            if let Some(n) = self.local.get_mut(&address.addr) {
                *n -= 1;
                if *n == 0 {
                    self.local.remove(&address.addr);
                }
            }
            self.mark_dirty_at(ScopedAddr::new(address.addr, address.ifindex));
        }
    }

    /// Replaces all links and addresses by a dump; returns true if that may change reachability.
    pub(crate) fn replace_devices(&mut self, links: Vec<Link>, addresses: Vec<Address>) -> bool {
        let carries =
            |links: &BTreeMap<u32, Link>, l: &Link| links.get(&l.index).is_some_and(Link::can_carry);
        let new: BTreeMap<u32, Link> = links.into_iter().map(|l| (l.index, l)).collect();
        let old = std::mem::replace(&mut self.links, new);
        let held: BTreeSet<Address> = addresses.into_iter().collect();
        let moved = held != self.addresses
            || old.values().any(|l| l.can_carry() != carries(&self.links, l))
            || self.links.values().any(|l| l.can_carry() != carries(&old, l));
        self.addresses = held;
        self.count_local();
        self.all_dirty |= moved;
        moved
    }

    fn count_local(&mut self) {
        self.local.clear();
        for address in &self.addresses {
            *self.local.entry(address.addr).or_default() += 1;
        }
    }

    /// Returns an interface by its index.
    pub(crate) fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// Returns all interfaces.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// Returns the addresses of all interfaces.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
    }

    /// Returns true if an interface has exactly this address.
    pub(crate) fn has_address(&self, address: &Address) -> bool {
        self.addresses.contains(address)
    }

    pub(crate) fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|l| l.name == name)
    }

    /// Returns the link that has an address.
    pub(crate) fn link_with(&self, addr: IpAddr) -> Option<&Link> {
        self.addresses.iter().find(|a| a.addr == addr).and_then(|a| self.links.get(&a.ifindex))
    }

    /// Returns the names of all interfaces with their addresses.
    pub(crate) fn interfaces(&self) -> Vec<(&str, Vec<IpAddr>)> {
        let mut by_index: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        for address in &self.addresses {
            by_index.entry(address.ifindex).or_default().push(address.addr);
        }
        let links = self.links.values();
        links.map(|link| (link.name.as_str(), by_index.remove(&link.index).unwrap_or_default())).collect()
    }

    /// Returns the links with a connected network, a default route or a tracked next hop.
    pub(crate) fn links_of_networks(&self) -> BTreeSet<u32> {
        let connected = self.addresses.iter().filter(|a| a.network().is_some()).map(|a| a.ifindex);
        let hops = self.tracked_hops.keys().map(|addr| addr.interface()).filter(|index| *index != 0);
        connected.chain(self.foreign.default_links()).chain(hops).collect()
    }

    /// Returns true if an interface of this host has the address.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        self.local.contains_key(&addr)
    }

    // Foreign routes.

    /// Adds a foreign route; with `replaces`, it replaces the first one with its metric.
    pub(crate) fn add_route(&mut self, route: Route, replaces: bool) {
        self.mark_dirty_inside(&route.prefix);
        self.foreign.add(route, replaces);
    }

    /// Removes a foreign route; `false` if the known route was different.
    pub(crate) fn remove_route(&mut self, route: Route) -> bool {
        self.mark_dirty_inside(&route.prefix);
        self.foreign.remove(route)
    }

    /// Replaces all foreign routes.
    pub(crate) fn replace_routes(&mut self, routes: Vec<Route>) {
        self.foreign = ForeignRoutes::default();
        for route in routes {
            self.foreign.add(route, false);
        }
        self.all_dirty = true;
    }

    /// Returns the foreign routes for exactly this prefix.
    pub(crate) fn foreign_at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        self.foreign.at(prefix)
    }

    /// Returns the number of foreign routes in the main table.
    pub(crate) fn foreign_count(&self) -> usize {
        self.foreign.count()
    }

    /// Returns true if foreign routes use this nexthop object. When the object changes Linux changes them,
    /// and when it is removed those of IPv4 are removed, without notification.
    pub(crate) fn uses_object(&self, id: u32) -> bool {
        self.foreign.uses_object(id)
    }

    // Next hops.

    /// Starts to track an address; with `tracked`, [`NetworkState::take_dirty`] reports its changes. Until it
    /// is resolved with learned routes, its resolution uses foreign routes only.
    pub(crate) fn track(&mut self, addr: ScopedAddr, tracked: bool) {
        if let Some(f) = self.tracked_hops.get_mut(&addr) {
            f.tracked |= tracked;
            return;
        }
        let answer = self.legs(addr).into();
        self.tracked_hops.insert(addr, TrackedNextHop { answer, tracked });
        if !addr.is_link_local() {
            self.index.insert(&Cidr::host(addr.addr()), ());
            self.dirty_addresses.insert(addr);
        }
    }

    /// Stops reporting an address.
    pub(crate) fn untrack(&mut self, addr: ScopedAddr) {
        if let Some(f) = self.tracked_hops.get_mut(&addr) {
            f.tracked = false;
        }
    }

    /// Forgets addresses that are not reported and that no learned route uses.
    pub(crate) fn forget_unused(&mut self, used: &BTreeSet<ScopedAddr>) {
        let unused: Vec<ScopedAddr> = self
            .tracked_hops
            .iter()
            .filter(|(a, f)| !f.tracked && !used.contains(a))
            .map(|(a, _)| *a)
            .collect();
        for addr in unused {
            self.tracked_hops.remove(&addr);
            self.recursive.remove(&addr);
            self.index.remove(&Cidr::host(addr.addr()));
        }
    }

    /// Returns the last resolution of a tracked address.
    pub(crate) fn answer(&self, addr: ScopedAddr) -> Option<&NextHopAnswer> {
        self.tracked_hops.get(&addr).map(|f| &f.answer)
    }

    /// Returns true if changes of the address are reported.
    pub(crate) fn is_tracked(&self, addr: ScopedAddr) -> bool {
        self.tracked_hops.get(&addr).is_some_and(|f| f.tracked)
    }

    /// Returns the tracked addresses whose resolution may have changed.
    pub(crate) fn take_dirty(&mut self) -> Vec<ScopedAddr> {
        if std::mem::take(&mut self.all_dirty) {
            self.dirty_addresses.clear();
            // Sorted, as in the other case, since the map has no order.
            let all: BTreeSet<ScopedAddr> = self.tracked_hops.keys().copied().collect();
            return all.into_iter().collect();
        }
        if self.dirty_addresses.is_empty() {
            return Vec::new();
        }
        let is_dirty = |addr: &ScopedAddr| self.dirty_addresses.contains(addr);
        let over = |addr: &ScopedAddr| {
            self.tracked_hops.get(addr).is_some_and(|f| f.answer.over.iter().any(is_dirty))
        };
        let dependent: Vec<ScopedAddr> = self.recursive.iter().filter(|addr| over(addr)).copied().collect();
        self.dirty_addresses.extend(dependent);
        std::mem::take(&mut self.dirty_addresses).into_iter().collect()
    }

    /// Marks all tracked addresses for resolution.
    pub(crate) fn mark_all_dirty(&mut self) {
        self.all_dirty = true;
    }

    /// Sets the resolution of a tracked address; `true` if it changed.
    pub(crate) fn set_answer(&mut self, addr: ScopedAddr, answer: NextHopAnswer) -> bool {
        let Some(f) = self.tracked_hops.get_mut(&addr) else { return false };
        if answer.over.is_empty() {
            self.recursive.remove(&addr);
        } else {
            self.recursive.insert(addr);
        }
        let changed = (&f.answer.legs, &f.answer.within) != (&answer.legs, &answer.within);
        f.answer = answer;
        changed
    }

    /// Resolves an address over foreign routes only, and returns the first leg; `None` if it is unreachable
    /// or an address of this host.
    pub(crate) fn resolve(&self, addr: ScopedAddr) -> Option<Resolved> {
        self.legs(addr).first().copied()
    }

    /// Returns all legs over which the kernel reaches an address with foreign routes only.
    fn legs(&self, addr: ScopedAddr) -> Legs {
        self.covering(addr).next().map(|covering| covering.legs).unwrap_or_default()
    }

    /// Returns the foreign routes that cover an address, longest prefix first. Routes whose links are down
    /// are skipped, as the kernel does; none if the address cannot be a neighbour.
    pub(crate) fn covering(&self, addr: ScopedAddr) -> impl Iterator<Item = ForeignCovering> {
        let is_foreign = !addr.is_link_local() && self.is_destination(addr.addr());
        let on_link = if addr.is_link_local() { self.onlink_covering(addr) } else { None };
        let routes = is_foreign.then(|| self.foreign.covering(addr.addr())).into_iter().flatten();
        on_link.into_iter().chain(routes.filter_map(|(prefix, routes)| self.first(prefix, routes)))
    }

    /// Returns true if packets to the address are routed: it is no address of this host and no IPv4-mapped
    /// IPv6 address, which GoBGP uses as next hop of IPv6 routes over IPv4 sessions. The latter names an IPv4
    /// node (RFC 4291 2.5.5.2) that no IPv6 route reaches; the default router would get its packets.
    pub(crate) fn is_destination(&self, addr: IpAddr) -> bool {
        !matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) && !self.local.contains_key(&addr)
    }

    /// Returns the preferred one of several routes to one prefix.
    fn first(&self, prefix: Cidr, routes: &[ForeignEntry]) -> Option<ForeignCovering> {
        let carries = |leg: &&Leg| self.links.get(&leg.ifindex).is_some_and(Link::can_carry);
        let alive = |f: &ForeignEntry| f.legs.iter().filter(carries).copied().collect::<SmallVec<[Leg; 1]>>();
        // A route that drops packets is usable, but has no legs.
        let usable = |f: &&ForeignEntry| f.kind != RTN_UNICAST || f.legs.iter().any(|leg| carries(&leg));
        let order = |f: &&ForeignEntry| match f.kind {
            RTN_UNICAST => (f.metric, alive(f).into_iter().min()),
            _ => (f.metric, None),
        };
        let first = routes.iter().filter(|f| f.tos == 0).filter(usable).min_by_key(order)?;
        let mut legs = Legs::new();
        if first.kind == RTN_UNICAST {
            // The kernel forms one set of the IPv6 legs with one metric.
            let siblings = routes.iter().filter(|f| !prefix.is_v4() && first.is_sibling(f));
            let all = std::iter::once(first).chain(siblings.filter(|f| f.kind == RTN_UNICAST));
            legs.extend(all.flat_map(alive).map(|leg| {
                let metric = if leg.gateway.is_some() { first.metric } else { 0 };
                Resolved { ifindex: leg.ifindex, gateway: leg.gateway, metric }
            }));
            legs.sort_unstable();
            legs.dedup();
        }
        Some(ForeignCovering { prefix, metric: first.metric, protocol: first.protocol, legs })
    }

    /// Link-local addresses exist on each link: without an interface they identify no neighbour.
    fn onlink_covering(&self, addr: ScopedAddr) -> Option<ForeignCovering> {
        let ifindex = addr.interface();
        let own = || self.addresses.iter().any(|a| a.ifindex == ifindex && a.addr == addr.addr());
        if !self.links.get(&ifindex).is_some_and(Link::can_carry) || own() {
            return None;
        }
        let prefix = Cidr::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 64);
        let legs = Legs::from_elem(Resolved { ifindex, gateway: None, metric: 0 }, 1);
        Some(ForeignCovering { prefix, metric: 0, protocol: RTPROT_KERNEL, legs })
    }

    fn mark_dirty_at(&mut self, addr: ScopedAddr) {
        if self.tracked_hops.contains_key(&addr) {
            self.dirty_addresses.insert(addr);
        }
    }

    /// Marks tracked addresses inside a prefix whose route was added, removed or changed.
    pub(crate) fn mark_dirty_inside(&mut self, prefix: &Cidr) {
        if self.all_dirty {
            return;
        }
        let dirty_addresses = &mut self.dirty_addresses;
        self.index.inside(prefix, |addr| {
            dirty_addresses.insert(addr.into());
        });
    }
}

impl NetworkView for NetworkState {
    /// In cloud networks the gateway is often in no connected network of its interface.
    fn needs_onlink(&self, gateway: IpAddr, ifindex: u32) -> bool {
        let gateway = ScopedAddr::from(gateway);
        if gateway.is_link_local() {
            return false;
        }
        !self.legs(gateway).iter().any(|leg| leg.gateway.is_none() && leg.ifindex == ifindex)
    }

    fn conflicting_route(&self, prefix: &Cidr, metric: u32) -> Option<String> {
        let route = self.foreign.get(prefix).iter().find(|f| f.metric == metric && f.tos == 0)?;
        Some(format!("a route of protocol {} has this prefix and our metric {metric}", route.protocol))
    }
}

#[cfg(test)]
mod tests;
