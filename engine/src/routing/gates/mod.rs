//! Export gates and import checks: the rules that decide which routes are announced to a peer and accepted
//! from it.
//!
//! The two data models have different orders, each in a file of its own: `v1`, and `calico3` for stores of
//! Calico 3. The first gate that decides is the answer.

mod calico3;
mod v1;

use tortie_config::resource::Community;
use tortie_net::{Cidr, cover};

use super::explain::{Recorder, Step, StepOutcome, fill_not_reached};
use super::filter::{FilterChanges, FilterInput, FilterVerdict};
use super::types::{Addresses, GateDecision, PeerPolicy, PoolView, RoutingView};

/// Names of the export gates, in the order of the v1 model. [`FILTER`] comes first in a store of Calico 3.
pub const EXPORT_GATES: [&str; 7] = v1::GATES;
/// Names of the export gates of a store of Calico 3, in order.
pub const EXPORT_GATES_CALICO_3: [&str; 9] = calico3::GATES;

/// Reason of [`import`] for rejecting a route to an address of one of this host's endpoints.
pub const OWN_ENDPOINT: &str = "own-endpoint";
/// Reason of [`import`] for rejecting a route inside a pool from a peer with `import_pools` false.
pub const INSIDE_POOL: &str = "inside-pool";
/// Reason of [`import`] for rejecting a route by the peer's filters, and name of the export gate.
pub const FILTER: &str = "filter";

impl RoutingView {
    /// Returns the longest pool prefix that equals or covers the prefix.
    #[must_use]
    pub fn pool_of(&self, prefix: &Cidr) -> Option<&PoolView> {
        cover::in_list(&self.pools, |p| &p.cidr, prefix)
    }
}

/// Decides if the best path of a prefix is announced to a peer. Returns the deciding gate and the communities
/// to add.
///
/// `ebgp` is true if the peer is in another AS.
#[must_use]
pub fn export_gate(
    view: &RoutingView,
    policy: &PeerPolicy,
    ebgp: bool,
    route: &impl FilterInput,
) -> GateDecision {
    decide_export(view, policy, ebgp, route, &mut ())
}

/// Runs [`export_gate`] and returns all of its steps, including those not reached.
#[must_use]
pub fn explain_export(
    view: &RoutingView,
    policy: &PeerPolicy,
    ebgp: bool,
    route: &impl FilterInput,
) -> (GateDecision, Vec<Step>) {
    let mut steps = Vec::new();
    let answer = decide_export(view, policy, ebgp, route, &mut steps);
    let order = if view.calico3.is_some() { &calico3::GATES[..] } else { &v1::GATES[..] };
    // `none` has no condition, and is only shown if it decided.
    fill_not_reached(&mut steps, order.split_last().map_or(order, |(_, conditions)| conditions));
    (answer, steps)
}

fn decide_export(
    view: &RoutingView,
    policy: &PeerPolicy,
    ebgp: bool,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> GateDecision {
    match &view.calico3 {
        None => v1::decide_export(view, policy, ebgp, route, rec),
        Some(store) => calico3::decide_export(view, store, policy, ebgp, route, rec),
    }
}

/// Adds the communities of the prefix advertisements that cover the prefix.
fn with_communities(view: &RoutingView, prefix: Cidr, mut answer: GateDecision) -> GateDecision {
    let covering = view.advertisements.iter().filter(|a| a.cidr.covers(&prefix));
    for community in covering.flat_map(|ad| &ad.communities) {
        match community {
            Community::Standard(value) => answer.communities.push(*value),
            Community::Large(value) => answer.large_communities.push(*value),
        }
    }
    answer.communities.sort_unstable();
    answer.communities.dedup();
    answer.large_communities.sort_unstable();
    answer.large_communities.dedup();
    answer
}

/// Records what a peer's filters decided.
fn record_filters(verdict: FilterVerdict, text: impl FnOnce() -> String, rec: &mut impl Recorder) {
    let outcome = match verdict {
        FilterVerdict::Accept => StepOutcome::Yes,
        FilterVerdict::Reject => StepOutcome::No,
        FilterVerdict::Continue => StepOutcome::Passed,
    };
    rec.step(FILTER, outcome, text);
}

fn accept(gate: &'static str, changes: FilterChanges) -> GateDecision {
    GateDecision { accept: true, changes, ..withhold(gate) }
}

fn withhold(gate: &'static str) -> GateDecision {
    GateDecision {
        accept: false,
        gate,
        communities: Vec::new(),
        large_communities: Vec::new(),
        changes: FilterChanges::new(),
        local_pref: None,
    }
}

/// Checks a received route, and returns the filter rules whose changes apply to it. `held` has the addresses
/// of this host's endpoints.
///
/// # Errors
/// A stable reason: [`OWN_ENDPOINT`], [`INSIDE_POOL`] or [`FILTER`].
pub fn import(
    view: &RoutingView,
    held: &Addresses,
    policy: &PeerPolicy,
    route: &impl FilterInput,
) -> Result<FilterChanges, &'static str> {
    decide_import(view, held, policy, route, &mut ())
}

/// Returns true if [`import`] accepts every route of such a peer unchanged, except routes to single
/// addresses. Most peers have no conditions on prefixes.
#[must_use]
pub fn imports_all_networks(policy: &PeerPolicy) -> bool {
    policy.import_pools && policy.filters.is_empty()
}

/// Runs [`import`] and returns its steps.
pub fn explain_import(
    view: &RoutingView,
    held: &Addresses,
    policy: &PeerPolicy,
    route: &impl FilterInput,
) -> (Result<FilterChanges, &'static str>, Vec<Step>) {
    let mut steps = Vec::new();
    let answer = decide_import(view, held, policy, route, &mut steps);
    let order = if view.calico3.is_some() { &calico3::CHECKS[..] } else { &v1::CHECKS[..] };
    fill_not_reached(&mut steps, order);
    (answer, steps)
}

fn decide_import(
    view: &RoutingView,
    held: &Addresses,
    policy: &PeerPolicy,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> Result<FilterChanges, &'static str> {
    match &view.calico3 {
        None => v1::decide_import(view, held, policy, route, rec),
        Some(store) => calico3::decide_import(view, store, held, policy, route, rec),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use tortie_config::resource::RouteSource;

    use super::super::explain::StepOutcome;
    use super::super::filter::FilterRoute;
    use super::*;
    use crate::routing::types::PrefixAdvertisement;
    use tortie_net::test_strategies::prefix;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    /// Returns a route of this host if `local`, otherwise a route learned by eBGP.
    fn route(prefix: &str, local: bool) -> FilterRoute<'static> {
        let source = if local { RouteSource::Local } else { RouteSource::Ebgp };
        FilterRoute { source, ..FilterRoute::local(cidr(prefix)) }
    }

    fn view() -> RoutingView {
        let pool = |text: &str, disabled| PoolView { cidr: cidr(text), ipip: None, vxlan: None, disabled };
        let ad = |text: &str, standard: &[u32], large: &[[u32; 3]]| PrefixAdvertisement {
            cidr: cidr(text),
            communities: standard
                .iter()
                .map(|c| Community::Standard(*c))
                .chain(large.iter().map(|c| Community::Large(*c)))
                .collect(),
            extra: Default::default(),
        };
        RoutingView {
            pools: vec![pool("10.0.0.0/16", false), pool("10.9.0.0/16", true), pool("fd00::/48", false)],
            own_blocks: [cidr("10.0.1.0/26"), cidr("10.0.2.64/26"), cidr("fd00::/122")].into(),
            advertisements: vec![
                ad("10.0.1.0/24", &[7, 3], &[[1, 2, 3]]),
                ad("10.0.0.0/16", &[3], &[]),
                ad("203.0.113.0/24", &[9], &[]),
            ],
            ..RoutingView::default()
        }
    }

    #[test]
    fn export_gates_answer_in_their_order() {
        let (learned, borrowed, block) = (false, true, true);
        // Prefix, source, deciding gate, announced: one line for each statement of Calico's filter.
        let table = [
            ("10.0.1.0/26", block, "own-block", true),
            ("10.0.1.7/32", learned, "inside-own-block", false),
            ("10.0.1.0/27", learned, "inside-own-block", false),
            ("10.0.1.7/32", borrowed, "inside-own-block", false),
            ("10.0.7.7/32", borrowed, "advertised", true),
            ("10.9.7.7/32", borrowed, "pool", true),
            ("10.9.0.64/26", learned, "pool", true),
            // The condition is "equal or more specific", not "overlapping".
            ("10.9.0.0/16", learned, "pool", true),
            ("10.8.0.0/15", learned, "none", false),
            ("0.0.0.0/0", learned, "none", false),
            ("::/0", learned, "none", false),
            ("192.168.1.0/24", learned, "none", false),
            ("203.0.113.0/25", learned, "advertised", true),
            ("203.0.112.0/23", learned, "none", false),
            ("fd00::/122", block, "own-block", true),
            ("fd00::40/122", learned, "pool", true),
        ];
        let (view, policy) = (view(), PeerPolicy::default());
        for (prefix, local, gate, accept) in table {
            for ebgp in [false, true] {
                let answer = export_gate(&view, &policy, ebgp, &route(prefix, local));
                assert_eq!((answer.gate, answer.accept), (gate, accept), "{prefix} ebgp {ebgp}");
            }
        }
    }

    #[test]
    fn own_only_holds_learned_routes_back_from_ebgp_peers() {
        let policy = PeerPolicy { own_only: true, ..PeerPolicy::default() };
        let gate =
            |ebgp, prefix: &str, local| export_gate(&view(), &policy, ebgp, &route(prefix, local)).gate;
        assert_eq!(gate(true, "10.9.0.64/26", false), "own-only");
        assert_eq!(gate(false, "10.9.0.64/26", false), "pool");
        assert_eq!(gate(true, "10.9.0.70/32", true), "pool");
        assert_eq!(gate(true, "10.0.1.0/26", true), "own-block");
    }

    #[test]
    fn communities_of_all_covering_advertisements_are_added_after_a_yes_only() {
        let answer = |prefix: &str| export_gate(&view(), &PeerPolicy::default(), true, &route(prefix, false));
        let block = answer("10.0.1.0/26");
        assert_eq!((block.communities, block.large_communities), (vec![3, 7], vec![[1, 2, 3]]));
        assert_eq!(answer("10.0.9.0/26").communities, [3]);
        assert_eq!(answer("10.9.0.0/26").communities, [0_u32; 0]);
        let inside = answer("10.0.1.7/32");
        assert!(inside.communities.is_empty() && inside.large_communities.is_empty());
    }

    #[test]
    fn import_takes_everything_but_own_addresses_and_refused_pools() {
        let open = PeerPolicy::default();
        let closed = PeerPolicy { import_pools: false, ..PeerPolicy::default() };
        let held = [("10.0.1.5".parse().unwrap(), ())].into_iter().collect();
        let table = [
            ("10.0.1.5/32", Err(OWN_ENDPOINT), Err(OWN_ENDPOINT)),
            ("10.0.1.6/32", Ok(()), Err(INSIDE_POOL)),
            ("10.0.1.0/26", Ok(()), Err(INSIDE_POOL)),
            ("10.9.0.0/16", Ok(()), Err(INSIDE_POOL)),
            ("10.8.0.0/15", Ok(()), Ok(())),
            ("0.0.0.0/0", Ok(()), Ok(())),
            ("fd00:1::/64", Ok(()), Ok(())),
        ];
        for (prefix, from_open, from_closed) in table {
            let import = |policy| {
                import(&view(), &held, policy, &route(prefix, false))
                    .map(|changes| assert!(changes.is_empty()))
            };
            assert_eq!(import(&open), from_open, "{prefix}");
            assert_eq!(import(&closed), from_closed, "{prefix}");
        }
    }

    #[test]
    fn an_explanation_shows_every_gate_once_and_the_one_that_decided() {
        let (answer, steps) =
            explain_export(&view(), &PeerPolicy::default(), true, &route("10.0.1.7/32", false));
        assert_eq!(answer.gate, "inside-own-block");
        let seen: Vec<_> = steps.iter().map(|s| (s.name, s.outcome.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("own-block", "passed"),
                ("inside-own-block", "no"),
                ("own-only", "not-reached"),
                ("filter", "not-reached"),
                ("advertised", "not-reached"),
                ("pool", "not-reached"),
            ]
        );
        assert!(steps.iter().any(|s| s.text.contains("10.0.1.0/26")));
    }

    proptest! {
        #[test]
        fn explanations_never_drift_from_the_decision(
            blocks in prop::collection::btree_set(prefix(), 0..4),
            pools in prop::collection::btree_set(prefix(), 0..4),
            ads in prop::collection::vec(prefix(), 0..3),
            held in prop::collection::vec(prefix(), 0..3),
            own_only in any::<bool>(), ebgp in any::<bool>(), import_pools in any::<bool>(), local in any::<bool>(),
            asked in prefix(),
        ) {
            let view = RoutingView {
                own_blocks: blocks,
                pools: pools.into_iter().map(|cidr| PoolView { cidr, ipip: None, vxlan: None, disabled: false }).collect(),
                advertisements: ads
                    .into_iter()
                    .map(|cidr| PrefixAdvertisement {
                        cidr,
                        communities: vec![Community::Standard(1)],
                        extra: Default::default(),
                    })
                    .collect(),
                ..RoutingView::default()
            };
            let policy = PeerPolicy { own_only, import_pools, ..PeerPolicy::default() };
            let route = route(&asked.to_string(), local);
            let (answer, steps) = explain_export(&view, &policy, ebgp, &route);
            prop_assert_eq!(&answer, &export_gate(&view, &policy, ebgp, &route));
            let decided: Vec<_> =
                steps.iter().filter(|s| matches!(s.outcome, StepOutcome::Yes | StepOutcome::No)).collect();
            prop_assert_eq!(decided.len(), 1);
            prop_assert_eq!(decided[0].name, answer.gate);
            prop_assert_eq!(decided[0].outcome == StepOutcome::Yes, answer.accept);
            let held = held.into_iter().map(|prefix| (prefix.addr(), ())).collect();
            let answer = import(&view, &held, &policy, &route);
            prop_assert_eq!(explain_import(&view, &held, &policy, &route).0, answer);
        }
    }
}
