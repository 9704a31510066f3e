//! Resolves BGP next hops recursively, through learned routes too (RFC 4271, section 9.1.2.1). Pure
//! functions.
//!
//! A next hop is reached by the longest route that covers it, as in the kernel. If that is a route of another
//! process, the result is its gateway or the on-link neighbour; for a multipath route, all of its legs. If it
//! is a learned route, the result is the legs of its own next hops, all of them (ECMP), and so on.
//!
//! As that section requires, two kinds of routes do not count: a route that depends on the route to be
//! resolved directly (a router announces the network that contains its own address), and one that depends on
//! it through other routes. The search skips them and continues with the next shorter prefix that covers the
//! address. So no route can keep itself reachable, whatever was learned, and the result depends on the set of
//! routes alone, not on the order of their arrival.
//!
//! A resolution is for a prefix: a route to `10.2.0.0/16` via `10.2.0.1` must not depend on other routes for
//! `10.2.0.0/16`, while routes to all other prefixes may. [`resolve`] therefore takes a prefix to exclude,
//! and returns the learned prefixes that the result depends on.

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use crate::routing::types::Resolved;

/// Legs to a next hop, sorted; more than one if a learned route has several next hops. Empty if the next hop
/// is unreachable.
pub type Legs = SmallVec<[Resolved; 1]>;

/// Maximum number of routes that one resolution visits. Real ones visit a few; routes of a hostile peer must
/// not cost more.
const STEPS_MAX: u32 = 128;

/// A route that covers an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoveringRoute<'a> {
    /// Route of another process with its legs over links that are up; more than one for a multipath route.
    /// Empty if the route rejects packets, or if the address belongs to this host.
    Foreign(Legs),
    /// Learned route with its BGP next hops.
    Learned(&'a [ScopedAddr]),
}

/// Routes that the kernel should have.
pub trait RoutingTable {
    /// Passes the routes that cover an address to `take`, the longest prefix first and within a prefix in
    /// kernel order, until it returns `false`.
    fn covering(&self, addr: ScopedAddr, take: &mut dyn FnMut(Cidr, CoveringRoute<'_>) -> bool);

    /// Returns the legs of the route for a learned prefix, given a function that resolves its next hops.
    /// Empty if the route is withheld.
    fn legs(&self, prefix: Cidr, hops: &[ScopedAddr], resolve: &mut dyn FnMut(ScopedAddr) -> Legs) -> Legs;
}

/// Result of resolving a next hop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Legs to the next hop.
    pub legs: Legs,
    /// Learned prefixes that the legs depend on, first the one that covers the next hop.
    pub through: SmallVec<[Cidr; 2]>,
    /// A learned prefix that was skipped because it depends on itself.
    pub looped: Option<Cidr>,
    /// Addresses that were looked up. A route that covers none of them does not affect the result.
    pub visited: SmallVec<[ScopedAddr; 2]>,
}

/// Resolves `addr` for routes to any prefix other than `without`.
pub fn resolve(table: &impl RoutingTable, addr: ScopedAddr, without: Option<Cidr>) -> Resolution {
    let mut search = Search {
        table,
        path: without.into_iter().collect(),
        steps: STEPS_MAX,
        skips: 0,
        found: SmallVec::new(),
        answer: Resolution::default(),
    };
    let legs = search.walk(addr);
    let mut through = SmallVec::new();
    for prefix in search.answer.through {
        if !through.contains(&prefix) {
            through.push(prefix);
        }
    }
    Resolution { legs, through, ..search.answer }
}

/// An address with its legs, and the learned prefixes that they depend on.
type Found = (ScopedAddr, Legs, SmallVec<[Cidr; 2]>);

struct Search<'t, T> {
    table: &'t T,
    /// Learned prefixes that are being resolved, which must be skipped.
    path: SmallVec<[Cidr; 4]>,
    steps: u32,
    /// Number of times that a prefix was skipped because it is in `path`, or that the step limit was reached.
    /// Results found in between are not valid in general.
    skips: u32,
    /// Addresses with legs that are valid in general, and the prefixes that they depend on.
    found: SmallVec<[Found; 2]>,
    answer: Resolution,
}

impl<T: RoutingTable> Search<'_, T> {
    fn walk(&mut self, addr: ScopedAddr) -> Legs {
        if !self.answer.visited.contains(&addr) {
            self.answer.visited.push(addr);
        }
        if let Some((_, legs, through)) = self.found.iter().find(|(found, ..)| *found == addr) {
            self.answer.through.extend(through.iter().copied());
            return legs.clone();
        }
        let (skips, rests_on) = (self.skips, self.answer.through.len());
        let table = self.table;
        let mut legs = Legs::new();
        table.covering(addr, &mut |prefix, route| {
            let Some(steps) = self.steps.checked_sub(1) else {
                self.skips += 1;
                return false;
            };
            self.steps = steps;
            match route {
                CoveringRoute::Foreign(ways) => {
                    legs = ways;
                    false
                }
                CoveringRoute::Learned(_) if self.path.contains(&prefix) => {
                    self.answer.looped.get_or_insert(prefix);
                    self.skips += 1;
                    true
                }
                CoveringRoute::Learned(hops) => {
                    let before = self.answer.through.len();
                    self.answer.through.push(prefix);
                    self.path.push(prefix);
                    legs = table.legs(prefix, hops, &mut |hop| self.walk(hop));
                    self.path.pop();
                    if legs.is_empty() {
                        // The route is withheld, so the kernel uses the next shorter prefix.
                        self.answer.through.truncate(before);
                    }
                    legs.is_empty()
                }
            }
        });
        legs.sort_unstable();
        legs.dedup();
        if self.skips == skips {
            let through = self.answer.through.get(rests_on..).unwrap_or_default();
            self.found.push((addr, legs.clone(), through.into()));
        }
        legs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    /// Foreign and learned routes by prefix; a foreign route takes precedence.
    #[derive(Debug, Clone, Default)]
    struct Routes {
        foreign: BTreeMap<Cidr, Legs>,
        learned: BTreeMap<Cidr, Vec<ScopedAddr>>,
    }

    impl RoutingTable for Routes {
        fn covering(&self, addr: ScopedAddr, take: &mut dyn FnMut(Cidr, CoveringRoute<'_>) -> bool) {
            for len in (0..=32).rev() {
                let prefix = Cidr::new(addr.addr(), len).unwrap();
                let foreign = self.foreign.get(&prefix).map(|ways| CoveringRoute::Foreign(ways.clone()));
                let learned = self.learned.get(&prefix).map(|hops| CoveringRoute::Learned(hops));
                for route in foreign.into_iter().chain(learned) {
                    if !take(prefix, route) {
                        return;
                    }
                }
            }
        }

        fn legs(&self, _: Cidr, hops: &[ScopedAddr], resolve: &mut dyn FnMut(ScopedAddr) -> Legs) -> Legs {
            let leg = |hop: ScopedAddr, way: Resolved| Resolved {
                gateway: Some(way.gateway.unwrap_or(hop.addr())),
                ..way
            };
            let mut legs = Legs::new();
            for hop in hops {
                legs.extend(resolve(*hop).into_iter().map(|way| leg(*hop, way)));
            }
            legs
        }
    }

    fn on(ifindex: u32) -> Legs {
        Legs::from_elem(Resolved { ifindex, gateway: None, metric: 0 }, 1)
    }

    /// Returns a multipath route via routers on both links, as a routing daemon installs it.
    fn multipath() -> Legs {
        let leg =
            |(ifindex, gateway): (u32, &str)| Resolved { ifindex, gateway: gateway.parse().ok(), metric: 20 };
        [(1, "10.0.1.254"), (2, "10.0.2.254")].map(leg).into_iter().collect()
    }

    /// Returns a table with `10.0.1.0/24` on-link on interface 1, `10.0.2.0/24` on-link on interface 2, and
    /// the given learned routes.
    fn routes(learned: &[(&str, &[&str])]) -> Routes {
        let hops = |hops: &[&str]| hops.iter().map(|hop| hop.parse().unwrap()).collect();
        Routes {
            foreign: [("10.0.1.0/24", on(1)), ("10.0.2.0/24", on(2))]
                .map(|(p, w)| (p.parse().unwrap(), w))
                .into(),
            learned: learned.iter().map(|(p, h)| (p.parse().unwrap(), hops(h))).collect(),
        }
    }

    /// Formats the legs, and the prefixes that they depend on.
    fn answer(routes: &Routes, addr: &str, without: Option<&str>) -> (String, String) {
        let found = resolve(routes, addr.parse().unwrap(), without.map(|p| p.parse().unwrap()));
        let leg = |leg: &Resolved| match leg.gateway {
            Some(gateway) => format!("{gateway}%{}", leg.ifindex),
            None => format!("on-link%{}", leg.ifindex),
        };
        let texts = |texts: Vec<String>| texts.join(" ");
        let through = found.through.iter().map(Cidr::to_string).collect();
        (texts(found.legs.iter().map(leg).collect()), texts(through))
    }

    #[test]
    fn a_next_hop_is_reached_as_the_kernel_reaches_its_address() {
        type Row =
            (&'static [(&'static str, &'static [&'static str])], &'static str, &'static str, &'static str);
        let table: [Row; 15] = [
            (&[], "10.0.1.9", "on-link%1", ""),
            (&[], "10.9.9.9", "", ""),
            // A default route, or the network of another rack, learned from a router on the link.
            (&[("0.0.0.0/0", &["10.0.1.254"])], "10.9.9.9", "10.0.1.254%1", "0.0.0.0/0"),
            (&[("10.9.9.0/24", &["10.0.2.254"])], "10.9.9.9", "10.0.2.254%2", "10.9.9.0/24"),
            // The longest prefix is used.
            (
                &[("0.0.0.0/0", &["10.0.1.254"]), ("10.9.9.0/24", &["10.0.2.254"])],
                "10.9.9.9",
                "10.0.2.254%2",
                "10.9.9.0/24",
            ),
            // Loopback addresses via two uplinks, with one more level of recursion.
            (
                &[("10.9.0.1/32", &["10.0.1.254", "10.0.2.254"])],
                "10.9.0.1",
                "10.0.1.254%1 10.0.2.254%2",
                "10.9.0.1/32",
            ),
            (
                &[("10.9.0.1/32", &["10.0.1.254", "10.0.2.254"]), ("10.8.0.0/16", &["10.9.0.1"])],
                "10.8.0.5",
                "10.0.1.254%1 10.0.2.254%2",
                "10.8.0.0/16 10.9.0.1/32",
            ),
            (
                &[
                    ("10.7.0.0/16", &["10.8.0.5"]),
                    ("10.8.0.0/16", &["10.9.0.1"]),
                    ("0.0.0.0/0", &["10.0.1.254"]),
                ],
                "10.7.0.1",
                "10.0.1.254%1",
                "10.7.0.0/16 10.8.0.0/16 0.0.0.0/0",
            ),
            // A router announces the network that contains its own address: that route does not lead to the
            // router, but a shorter prefix may.
            (&[("10.9.0.0/16", &["10.9.0.1"])], "10.9.0.1", "", ""),
            (
                &[("10.9.0.0/16", &["10.9.0.1"]), ("0.0.0.0/0", &["10.0.1.254"])],
                "10.9.0.1",
                "10.0.1.254%1",
                "10.9.0.0/16 0.0.0.0/0",
            ),
            (&[("0.0.0.0/0", &["10.9.9.9"])], "10.9.9.9", "", ""),
            // Two routes that depend on each other.
            (&[("10.8.0.0/16", &["10.9.0.1"]), ("10.9.0.0/16", &["10.8.0.1"])], "10.8.0.1", "", ""),
            (
                &[("10.8.0.0/16", &["10.9.0.1"]), ("10.9.0.0/16", &["10.8.0.1", "10.0.2.9"])],
                "10.8.0.1",
                "10.0.2.9%2",
                "10.8.0.0/16 10.9.0.0/16",
            ),
            // One of the next hops is unreachable, and the others are used.
            (&[("10.9.0.0/16", &["10.0.1.9", "10.6.0.1"])], "10.9.0.1", "10.0.1.9%1", "10.9.0.0/16"),
            // A withheld route is not in the kernel, so the next shorter prefix is used.
            (
                &[("10.9.0.0/16", &["10.6.0.1"]), ("10.0.0.0/8", &["10.0.2.254"])],
                "10.9.0.1",
                "10.0.2.254%2",
                "10.9.0.0/16 10.0.0.0/8",
            ),
        ];
        for (learned, addr, legs, through) in table {
            let expected = (legs.to_owned(), through.to_owned());
            assert_eq!(answer(&routes(learned), addr, None), expected, "{addr} by {learned:?}");
        }
    }

    #[test]
    fn a_route_does_not_rest_on_what_else_is_known_of_its_own_prefix() {
        let rack = &[("10.9.0.0/16", &["10.0.1.254"][..])];
        assert_eq!(answer(&routes(rack), "10.9.0.1", None).0, "10.0.1.254%1");
        assert_eq!(answer(&routes(rack), "10.9.0.1", Some("10.9.0.0/16")).0, "");
        let mut with_refusal = routes(rack);
        with_refusal.foreign.insert("10.9.0.1/32".parse().unwrap(), Legs::new());
        assert_eq!(answer(&with_refusal, "10.9.0.1", None).0, "", "a blackhole answers");
    }

    #[test]
    fn all_legs_of_a_multipath_route_of_another_process_are_inherited() {
        let mut uplinks =
            routes(&[("10.9.0.0/16", &["10.6.0.1"]), ("10.8.0.0/16", &["10.9.0.1", "10.0.2.9"])]);
        uplinks.foreign.insert("0.0.0.0/0".parse().unwrap(), multipath());
        let both = "10.0.1.254%1 10.0.2.254%2";
        assert_eq!(answer(&uplinks, "10.7.7.7", None), (both.to_owned(), String::new()));
        assert_eq!(answer(&uplinks, "10.9.0.1", None), (both.to_owned(), "10.9.0.0/16".to_owned()));
        // Combined with the legs of the other next hops, each once.
        assert_eq!(answer(&uplinks, "10.8.0.1", None).0, "10.0.1.254%1 10.0.2.9%2 10.0.2.254%2");
    }

    /// Prefixes and addresses of a small network, so that they often cover each other.
    fn prefix() -> impl Strategy<Value = Cidr> {
        (0u32..16, 28u8..=32).prop_map(|(n, len)| {
            let len = if len == 28 { 0 } else { len };
            Cidr::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)), len).unwrap()
        })
    }

    fn address() -> impl Strategy<Value = ScopedAddr> {
        (0u32..16).prop_map(|n| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)).into())
    }

    fn any_routes() -> impl Strategy<Value = Routes> {
        let foreign =
            prop::collection::btree_map(prefix(), prop::sample::subsequence(vec![1u32, 2], 0..=2), 0..4);
        let learned = prop::collection::btree_map(prefix(), prop::collection::vec(address(), 1..4), 0..10);
        (foreign, learned).prop_map(|(foreign, learned)| Routes {
            foreign: foreign
                .into_iter()
                .map(|(p, way)| (p, way.into_iter().flat_map(on).collect()))
                .collect(),
            learned,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// For any learned routes: every leg is one of a foreign route, no result depends on the excluded
        /// prefix, and a result that excludes a prefix without effect equals the one without exclusion.
        #[test]
        fn no_route_holds_itself_up(routes in any_routes(), addr in address(), without in prop::option::of(prefix())) {
            let found = resolve(&routes, addr, without);
            let links: BTreeSet<u32> = routes.foreign.values().flatten().map(|way| way.ifindex).collect();
            for leg in &found.legs {
                prop_assert!(links.contains(&leg.ifindex));
            }
            prop_assert!(without.is_none_or(|without| !found.through.contains(&without)));
            prop_assert_eq!(found.legs.is_empty() && !found.through.is_empty(), false, "{:?}", found);
            // Without learned routes the result is that of the kernel routes.
            let alone = resolve(&Routes { learned: BTreeMap::new(), ..routes.clone() }, addr, None);
            if found.through.is_empty() && found.looped.is_none() {
                prop_assert_eq!(&found.legs, &alone.legs);
            }
        }

        /// A learned route that covers none of the visited addresses does not change the result. Followers
        /// rely on this to decide what to resolve again.
        #[test]
        fn what_was_not_looked_at_does_not_matter(
            routes in any_routes(),
            addr in address(),
            other in prefix(),
            hops in prop::option::of(prop::collection::vec(address(), 1..3)),
        ) {
            let before = resolve(&routes, addr, None);
            if before.visited.iter().any(|seen| other.contains(seen.addr())) {
                return Ok(());
            }
            let mut changed = routes;
            match hops {
                Some(hops) => drop(changed.learned.insert(other, hops)),
                None => drop(changed.learned.remove(&other)),
            }
            prop_assert_eq!(resolve(&changed, addr, None), before);
        }
    }

    /// Model of a speaker with several paths per prefix that uses the first reachable one, and of the kernel
    /// that resolves next hops.
    #[derive(Debug, Clone)]
    struct Speaker {
        candidates: BTreeMap<Cidr, Vec<ScopedAddr>>,
        routes: Routes,
    }

    impl Speaker {
        /// Selects the path of a prefix. Returns true if the selection changed.
        fn decide(&mut self, prefix: Cidr) -> bool {
            let is_reached = |hop: &&ScopedAddr| !resolve(&self.routes, **hop, Some(prefix)).legs.is_empty();
            let best = self.candidates.get(&prefix).and_then(|hops| hops.iter().find(is_reached)).copied();
            let before = match best {
                Some(hop) => self.routes.learned.insert(prefix, vec![hop]),
                None => self.routes.learned.remove(&prefix),
            };
            before != best.map(|hop| vec![hop])
        }

        /// Selects paths for one prefix after the other until nothing changes, and returns the number of
        /// rounds.
        fn settle(&mut self, order: &[Cidr]) -> Option<usize> {
            (0..50).find(|_| {
                order.iter().fold(0, |changed, prefix| changed + usize::from(self.decide(*prefix))) == 0
            })
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Reachability decides the selected paths, and the selected paths decide reachability: this
        /// converges from any state.
        #[test]
        fn paths_and_next_hops_come_to_rest(
            routes in any_routes(),
            candidates in prop::collection::btree_map(prefix(), prop::collection::vec(address(), 1..4), 1..6),
        ) {
            let order: Vec<Cidr> = candidates.keys().copied().collect();
            let mut speaker = Speaker { candidates, routes: routes.clone() };
            speaker.routes.learned.retain(|prefix, _| speaker.candidates.contains_key(prefix));
            prop_assert!(speaker.settle(&order).is_some(), "{:?}", speaker);
        }
    }

    /// Nested prefixes, each with several next hops that other prefixes cover.
    #[test]
    fn what_a_hostile_peer_announces_costs_a_bounded_number_of_steps() {
        let hops: Vec<ScopedAddr> =
            (0..8).map(|n| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)).into()).collect();
        let learned =
            (1..=28).map(|len| (Cidr::new("10.0.0.0".parse().unwrap(), len).unwrap(), hops.clone()));
        let routes = Routes { foreign: BTreeMap::new(), learned: learned.collect() };
        let found = resolve(&routes, hops[0], None);
        assert!(found.legs.is_empty());
    }
}
