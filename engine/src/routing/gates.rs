//! Export gates and import checks: the rules that decide which routes are announced to a peer and accepted
//! from it.
//!
//! The export gates are evaluated in this order, and the first one that decides is the answer:
//!
//! | gate | condition | answer |
//! | --- | --- | --- |
//! | `own-block` | equal to an own block | announce |
//! | `inside-own-block` | inside of an own block | withhold: the block covers it |
//! | `own-only` | `own_only` is set, the peer is eBGP, and the route was learned | withhold |
//! | `filter` | the peer's filters decide | as the filters say |
//! | `advertised` | equal to or inside of a `prefix_advertisements` prefix | announce |
//! | `pool` | equal to or inside of a pool, including disabled ones | announce |
//! | `none` | | withhold |
//!
//! These are the steps of Calico's generated BIRD filter (aggregation, filters, static prefixes, pools,
//! reject) with `own-only` added. It precedes `filter` so that no filter can override it. It applies to eBGP
//! peers only: towards iBGP peers RFC 4271, section 9.2.1 already withholds routes learned by iBGP, and a
//! route reflector must continue to reflect.
//!
//! No filter can withhold an own block, but filter changes apply to every announced route, including own
//! blocks: this is how a host is drained, or its blocks are tagged. Import filters are evaluated last, if no
//! other check rejected the route.

use tortie_config::resource::{Community, RouteSource};
use tortie_net::{Cidr, cover};

use super::explain::{Recorder, Step, StepOutcome, fill_not_reached};
use super::filter::{Direction, FilterChanges, FilterDecision, FilterInput, FilterVerdict};
use super::types::{Addresses, GateDecision, PeerPolicy, PoolView, RoutingView};

/// Names of the export gates, in order.
pub const EXPORT_GATES: [&str; 7] =
    ["own-block", "inside-own-block", "own-only", "filter", "advertised", "pool", "none"];

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
/// `ebgp` is true if the peer is in another AS; only `own-only` uses it.
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
    // `none` has no condition, and is only shown if it decided.
    fill_not_reached(&mut steps, EXPORT_GATES.get(..6).unwrap_or_default());
    (answer, steps)
}

fn decide_export(
    view: &RoutingView,
    policy: &PeerPolicy,
    ebgp: bool,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> GateDecision {
    let prefix = route.prefix();
    let block = cover::in_set(&view.own_blocks, &prefix);
    if block == Some(&prefix) {
        rec.step("own-block", StepOutcome::Yes, || format!("{prefix} is a block of this host"));
        let answer = ask(view, policy, Direction::Export, route);
        rec.step(FILTER, StepOutcome::Passed, || {
            let text = view.filters.describe(&policy.filters, Direction::Export, &answer);
            format!(
                "filters apply for their changes only, because a block of this host is always announced: \
                 {text}"
            )
        });
        return announce(view, "own-block", prefix, answer.changes);
    }
    rec.step("own-block", StepOutcome::Passed, || format!("{prefix} is no block of this host"));

    if let Some(block) = block {
        rec.step("inside-own-block", StepOutcome::No, || {
            format!("inside own block {block}, which is announced")
        });
        return withhold("inside-own-block");
    }
    rec.step("inside-own-block", StepOutcome::Passed, || "not inside an own block".to_owned());

    if policy.own_only && ebgp && route.source() != RouteSource::Local {
        rec.step("own-only", StepOutcome::No, || {
            "the peer has own_only and this route was learned".to_owned()
        });
        return withhold("own-only");
    }
    rec.step("own-only", StepOutcome::Passed, || match (policy.own_only, ebgp) {
        (false, _) => "the peer has no own_only".to_owned(),
        (true, false) => "own_only acts towards eBGP peers only".to_owned(),
        (true, true) => "the route is our own".to_owned(),
    });

    let answer = ask(view, policy, Direction::Export, route);
    let text = || view.filters.describe(&policy.filters, Direction::Export, &answer);
    match answer.verdict {
        FilterVerdict::Accept => {
            rec.step(FILTER, StepOutcome::Yes, text);
            return announce(view, FILTER, prefix, answer.changes);
        }
        FilterVerdict::Reject => {
            rec.step(FILTER, StepOutcome::No, text);
            return withhold(FILTER);
        }
        FilterVerdict::Continue => rec.step(FILTER, StepOutcome::Passed, text),
    }

    if let Some(ad) = view.advertisements.iter().find(|a| a.cidr.covers(&prefix)) {
        rec.step("advertised", StepOutcome::Yes, || format!("inside {} of prefix_advertisements", ad.cidr));
        return announce(view, "advertised", prefix, answer.changes);
    }
    rec.step("advertised", StepOutcome::Passed, || "not inside prefix_advertisements".to_owned());

    if let Some(pool) = view.pool_of(&prefix) {
        rec.step("pool", StepOutcome::Yes, || format!("inside pool {}", pool.cidr));
        return announce(view, "pool", prefix, answer.changes);
    }
    rec.step("pool", StepOutcome::Passed, || "inside no pool".to_owned());
    rec.step("none", StepOutcome::No, || "no gate announces it".to_owned());
    withhold("none")
}

/// Evaluates the peer's filters; most peers have none.
fn ask(
    view: &RoutingView,
    policy: &PeerPolicy,
    direction: Direction,
    route: &impl FilterInput,
) -> FilterDecision {
    if policy.filters.is_empty() {
        return FilterDecision::NONE;
    }
    route.whole(|whole| view.filters.ask(&policy.filters, direction, whole))
}

fn announce(view: &RoutingView, gate: &'static str, prefix: Cidr, changes: FilterChanges) -> GateDecision {
    let mut answer =
        GateDecision { accept: true, gate, communities: Vec::new(), large_communities: Vec::new(), changes };
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

fn withhold(gate: &'static str) -> GateDecision {
    GateDecision {
        accept: false,
        gate,
        communities: Vec::new(),
        large_communities: Vec::new(),
        changes: FilterChanges::new(),
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
    fill_not_reached(&mut steps, &[OWN_ENDPOINT, INSIDE_POOL, FILTER]);
    (answer, steps)
}

fn decide_import(
    view: &RoutingView,
    held: &Addresses,
    policy: &PeerPolicy,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> Result<FilterChanges, &'static str> {
    let prefix = route.prefix();
    if prefix.is_host() && held.contains_key(&prefix.addr()) {
        rec.step(OWN_ENDPOINT, StepOutcome::No, || {
            format!("an endpoint of this host holds {}", prefix.addr())
        });
        return Err(OWN_ENDPOINT);
    }
    rec.step(OWN_ENDPOINT, StepOutcome::Passed, || "no address of an endpoint of this host".to_owned());
    match (!policy.import_pools).then(|| view.pool_of(&prefix)).flatten() {
        Some(pool) => {
            rec.step(INSIDE_POOL, StepOutcome::No, || {
                format!("inside pool {} and the peer has import_pools false", pool.cidr)
            });
            return Err(INSIDE_POOL);
        }
        None => rec.step(INSIDE_POOL, StepOutcome::Passed, || {
            if policy.import_pools { "the peer may announce routes inside pools" } else { "inside no pool" }
                .to_owned()
        }),
    }
    let answer = ask(view, policy, Direction::Import, route);
    let text = || view.filters.describe(&policy.filters, Direction::Import, &answer);
    match answer.verdict {
        FilterVerdict::Reject => {
            rec.step(FILTER, StepOutcome::No, text);
            return Err(FILTER);
        }
        FilterVerdict::Accept => rec.step(FILTER, StepOutcome::Yes, text),
        FilterVerdict::Continue => rec.step(FILTER, StepOutcome::Passed, text),
    }
    Ok(answer.changes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        let pool = |text: &str, disabled| PoolView { cidr: cidr(text), ipip: None, disabled };
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
                pools: pools.into_iter().map(|cidr| PoolView { cidr, ipip: None, disabled: false }).collect(),
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
