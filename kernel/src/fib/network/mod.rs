//! The state of links, addresses and foreign routes of the main table, and the next hops that are followed, with the last answer about
//! each. Pure.
//!
//! How a next hop is reached, [`super::next_hops`] says, which looks at learned routes too. Followed next hops stand in a trie,
//! so that a changed route touches exactly those it covers, once a batch, however many changes there were.

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

/// `RTPROT_KERNEL`, whose route `fe80::/64` each interface has.
const RTPROT_KERNEL: u8 = 2;

/// A followed next hop.
#[derive(Debug, Default)]
struct TrackedNextHop {
    answer: NextHopAnswer,
    /// Somebody tracks it.
    tracked: bool,
}

/// How a next hop is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NextHopAnswer {
    /// For routes to any other prefix than those of `within`.
    pub(crate) legs: Legs,
    /// For routes to these prefixes, learned ones that `legs` rest on: a route does not rest on itself.
    pub(crate) within: Vec<(Cidr, Legs)>,
    /// Other addresses that were looked at: when one of them is reached otherwise, so may this one be.
    pub(crate) over: SmallVec<[ScopedAddr; 2]>,
}

impl NextHopAnswer {
    /// The answer for routes to this prefix.
    pub(crate) fn within(&self, prefix: &Cidr) -> &Legs {
        self.within.iter().find(|(within, _)| within == prefix).map_or(&self.legs, |(_, legs)| legs)
    }

    /// The first way.
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
    /// Of the route, also where that leads on-link.
    pub(crate) metric: u32,
    pub(crate) protocol: u8,
    /// Its ways that carry, sorted: several of a multipath route. None: it refuses packets.
    pub(crate) legs: Legs,
}

/// Where an address leads, in words and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Covering {
    /// The covering route.
    pub prefix: Cidr,
    /// Its `rtm_protocol`; our own: a learned route.
    pub protocol: u8,
    /// How it is reached.
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
    /// Those whose answer looked at other addresses.
    recursive: BTreeSet<ScopedAddr>,
    /// Those that routes lead to: all but the link-local ones.
    index: Tries<()>,
    dirty_addresses: BTreeSet<ScopedAddr>,
    all_dirty: bool,
}

impl NetworkState {
    // Links and addresses.

    /// Takes a link as it is now; gives the one before.
    pub(crate) fn set_link(&mut self, link: Link) -> Option<Link> {
        let old = self.links.get(&link.index).cloned();
        // Counters and names change all the time; reachability only with these.
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

    /// Replaces all links and addresses by what a dump showed; true when that changes what can be reached.
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

    /// An interface by number.
    pub(crate) fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// Every interface.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// The addresses of every interface.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.iter()
    }

    /// Whether an interface has exactly this address.
    pub(crate) fn has_address(&self, address: &Address) -> bool {
        self.addresses.contains(address)
    }

    pub(crate) fn link_named(&self, name: &str) -> Option<&Link> {
        self.links.values().find(|l| l.name == name)
    }

    /// The link that holds an address.
    pub(crate) fn link_with(&self, addr: IpAddr) -> Option<&Link> {
        self.addresses.iter().find(|a| a.addr == addr).and_then(|a| self.links.get(&a.ifindex))
    }

    /// The names of all interfaces with their addresses.
    pub(crate) fn interfaces(&self) -> Vec<(&str, Vec<IpAddr>)> {
        let mut by_index: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        for address in &self.addresses {
            by_index.entry(address.ifindex).or_default().push(address.addr);
        }
        let links = self.links.values();
        links.map(|link| (link.name.as_str(), by_index.remove(&link.index).unwrap_or_default())).collect()
    }

    /// The links with a connected network, a default route or a next hop that is on them.
    pub(crate) fn links_of_networks(&self) -> BTreeSet<u32> {
        let connected = self.addresses.iter().filter(|a| a.network().is_some()).map(|a| a.ifindex);
        let hops = self.tracked_hops.keys().map(|addr| addr.interface()).filter(|index| *index != 0);
        connected.chain(self.foreign.default_links()).chain(hops).collect()
    }

    /// Whether an interface of this host has the address.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        self.local.contains_key(&addr)
    }

    // Foreign routes.

    /// A foreign route appeared; `replaces`: in place of the first one of its metric.
    pub(crate) fn add_route(&mut self, route: Route, replaces: bool) {
        self.mark_dirty_inside(&route.prefix);
        self.foreign.add(route, replaces);
    }

    /// A foreign route went; `false`: what was known of it was something else.
    pub(crate) fn remove_route(&mut self, route: Route) -> bool {
        self.mark_dirty_inside(&route.prefix);
        self.foreign.remove(route)
    }

    /// Replaces all foreign routes by these.
    pub(crate) fn replace_routes(&mut self, routes: Vec<Route>) {
        self.foreign = ForeignRoutes::default();
        for route in routes {
            self.foreign.add(route, false);
        }
        self.all_dirty = true;
    }

    /// The foreign routes for exactly this prefix.
    pub(crate) fn foreign_at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        self.foreign.at(prefix)
    }

    /// How many foreign routes the main table holds.
    pub(crate) fn foreign_count(&self) -> usize {
        self.foreign.count()
    }

    /// Whether foreign routes lead over this nexthop object. Linux changes them, and those of IPv4 go with it, without a word.
    pub(crate) fn uses_object(&self, id: u32) -> bool {
        self.foreign.uses_object(id)
    }

    // Next hops.

    /// Starts to follow an address; with `tracked` its changes are given by [`NetworkState::take_dirty`]. Until it is looked at with learned
    /// routes, foreign ones alone say how it is reached.
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

    /// Tells no more about an address.
    pub(crate) fn untrack(&mut self, addr: ScopedAddr) {
        if let Some(f) = self.tracked_hops.get_mut(&addr) {
            f.tracked = false;
        }
    }

    /// Forgets addresses that nobody tracks and no learned route uses.
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

    /// The last answer about a followed address.
    pub(crate) fn answer(&self, addr: ScopedAddr) -> Option<&NextHopAnswer> {
        self.tracked_hops.get(&addr).map(|f| &f.answer)
    }

    /// Somebody wants to be told of it.
    pub(crate) fn is_tracked(&self, addr: ScopedAddr) -> bool {
        self.tracked_hops.get(&addr).is_some_and(|f| f.tracked)
    }

    /// The followed addresses that may be reached otherwise now.
    pub(crate) fn take_dirty(&mut self) -> Vec<ScopedAddr> {
        if std::mem::take(&mut self.all_dirty) {
            self.dirty_addresses.clear();
            // Sorted, as the others: the map has no order.
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

    /// All have to be looked at again.
    pub(crate) fn mark_all_dirty(&mut self) {
        self.all_dirty = true;
    }

    /// Takes the answer about a followed address; `true`: it is another than before.
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

    /// How the kernel reaches an address without our routes, by the first way of several; `None`: not at all, or it is an address of
    /// this host.
    pub(crate) fn resolve(&self, addr: ScopedAddr) -> Option<Resolved> {
        self.legs(addr).first().copied()
    }

    /// All ways by which the kernel reaches an address without our routes.
    fn legs(&self, addr: ScopedAddr) -> Legs {
        self.covering(addr).next().map(|covering| covering.legs).unwrap_or_default()
    }

    /// The foreign routes that cover an address, the longest prefix first, without those whose links are down: the kernel goes on to the
    /// next shorter prefix. None where the address is no neighbour.
    pub(crate) fn covering(&self, addr: ScopedAddr) -> impl Iterator<Item = ForeignCovering> {
        let is_foreign = !addr.is_link_local() && self.is_destination(addr.addr());
        let on_link = if addr.is_link_local() { self.onlink_covering(addr) } else { None };
        let routes = is_foreign.then(|| self.foreign.covering(addr.addr())).into_iter().flatten();
        on_link.into_iter().chain(routes.filter_map(|(prefix, routes)| self.first(prefix, routes)))
    }

    /// Packets to it are routed: it is no address of this host, and no IPv4 address in the form of IPv6, as GoBGP gives IPv6 routes over
    /// sessions of IPv4: that names an IPv4 node (RFC 4291 2.5.5.2), to which no IPv6 route leads. The default router would get its packets.
    pub(crate) fn is_destination(&self, addr: IpAddr) -> bool {
        !matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) && !self.local.contains_key(&addr)
    }

    /// The first of some routes of one prefix that counts.
    fn first(&self, prefix: Cidr, routes: &[ForeignEntry]) -> Option<ForeignCovering> {
        let carries = |leg: &&Leg| self.links.get(&leg.ifindex).is_some_and(Link::can_carry);
        let alive = |f: &ForeignEntry| f.legs.iter().filter(carries).copied().collect::<SmallVec<[Leg; 1]>>();
        // One that refuses packets answers, but leads nowhere.
        let usable = |f: &&ForeignEntry| f.kind != RTN_UNICAST || f.legs.iter().any(|leg| carries(&leg));
        let order = |f: &&ForeignEntry| match f.kind {
            RTN_UNICAST => (f.metric, alive(f).into_iter().min()),
            _ => (f.metric, None),
        };
        let first = routes.iter().filter(|f| f.tos == 0).filter(usable).min_by_key(order)?;
        let mut legs = Legs::new();
        if first.kind == RTN_UNICAST {
            // The kernel makes one set of the legs of IPv6 that have one metric.
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

    /// Link-local addresses exist on each link: without an interface they name no neighbour.
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

    /// A route to this prefix came, went or changed.
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
    /// The gateways of cloud networks are often covered by no connected network of their interface.
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
