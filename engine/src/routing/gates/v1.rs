//! Gates and checks of the v1 model. The export gates are evaluated in this order, and the first one that
//! decides is the answer:
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

use tortie_config::resource::RouteSource;
use tortie_net::{Cidr, cover};

use super::super::explain::{Recorder, StepOutcome};
use super::super::filter::{Direction, FilterChanges, FilterDecision, FilterInput, FilterVerdict};
use super::super::types::{Addresses, GateDecision, PeerPolicy, RoutingView};
use super::{FILTER, INSIDE_POOL, OWN_ENDPOINT, accept, record_filters, with_communities, withhold};

/// Names of the export gates, in order.
pub(super) const GATES: [&str; 7] =
    ["own-block", "inside-own-block", "own-only", FILTER, "advertised", "pool", "none"];
/// Names of the import checks, in order.
pub(super) const CHECKS: [&str; 3] = [OWN_ENDPOINT, INSIDE_POOL, FILTER];

pub(super) fn decide_export(
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
    record_filters(answer.verdict, text, rec);
    match answer.verdict {
        FilterVerdict::Accept => return announce(view, FILTER, prefix, answer.changes),
        FilterVerdict::Reject => return withhold(FILTER),
        FilterVerdict::Continue => {}
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
    with_communities(view, prefix, accept(gate, changes))
}

pub(super) fn decide_import(
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
    record_filters(answer.verdict, text, rec);
    if answer.verdict == FilterVerdict::Reject {
        return Err(FILTER);
    }
    Ok(answer.changes)
}
