//! Gates and checks of a store of Calico 3. The export gates are evaluated in this order, and the first one
//! that decides is the answer:
//!
//! | gate | condition | answer |
//! | --- | --- | --- |
//! | `filter` | the peer's filters decide | as the filters say |
//! | `disable-bgp-export` | equal to or inside of a pool with `disableBGPExport` | withhold |
//! | `tunnel-device` | the peer is iBGP and the route is on a tunnel device | withhold |
//! | `own-block` | equal to an own block | announce |
//! | `inside-own-block` | inside of an own block | announce if better than normal, else withhold |
//! | `service-range` | equal to or inside of an announced service range | announce |
//! | `reflected-range` | this host is a reflector, and it is in an external or load balancer range | announce |
//! | `pool` | equal to or inside of a pool | announce |
//! | `none` | | withhold |
//!
//! The communities of prefix advertisements are added by the gates after `tunnel-device` only: a filter that
//! accepts a route ends the evaluation. A filter that does not exist is skipped.
//!
//! LOCAL_PREF and the metric of the kernel are tied: each is 2147483647 minus the other. A route of this host
//! has the normal priority unless it has one of its own; a learned route keeps the one that it was received
//! with.
//!
//! A learned route is checked by the filters first. Then a route to an address of an own endpoint is rejected,
//! unless its LOCAL_PREF is better than normal: then the workload has moved to the host that announces it.

use tortie_config::resource::{BgpFilterOperation, RouteSource};
use tortie_net::cover;

use super::super::calico3::{Calico3View, local_pref_of, metric_of};
use super::super::explain::{Recorder, StepOutcome};
use super::super::filter::{
    Direction, FilterChanges, FilterDecision, FilterInput, FilterVerdict, Interface, Session,
};
use super::super::types::{Addresses, GateDecision, PeerPolicy, RoutingView};
use super::{FILTER, OWN_ENDPOINT, accept, record_filters, with_communities, withhold};

/// Names of the export gates, in order.
pub(super) const GATES: [&str; 9] = [
    FILTER,
    "disable-bgp-export",
    "tunnel-device",
    "own-block",
    "inside-own-block",
    "service-range",
    "reflected-range",
    "pool",
    "none",
];
/// Names of the import checks, in order.
pub(super) const CHECKS: [&str; 2] = [FILTER, OWN_ENDPOINT];

pub(super) fn decide_export(
    view: &RoutingView,
    store: &Calico3View,
    policy: &PeerPolicy,
    ebgp: bool,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> GateDecision {
    let prefix = route.prefix();
    let local_pref = store.local_pref(&prefix, route.source(), route.local_pref());
    let own_pref = (route.source() == RouteSource::Local).then_some(local_pref);

    let session = Session { ebgp, local_pref };
    let answer = ask(view, policy, Direction::Export, session, route);
    let text = || view.filters.describe(&policy.filters, Direction::Export, &answer);
    record_filters(answer.verdict, text, rec);
    match answer.verdict {
        FilterVerdict::Accept => {
            return GateDecision { local_pref: own_pref, ..accept(FILTER, answer.changes) };
        }
        FilterVerdict::Reject => return withhold(FILTER),
        FilterVerdict::Continue => {}
    }

    if let Some(pool) = cover::in_set(&store.unexported_pools, &prefix) {
        rec.step("disable-bgp-export", StepOutcome::No, || format!("pool {pool} has disableBGPExport"));
        return withhold("disable-bgp-export");
    }
    rec.step("disable-bgp-export", StepOutcome::Passed, || "in no pool with disableBGPExport".to_owned());

    if let Some(device) = tunnel_device(store, ebgp, route.interface()) {
        rec.step("tunnel-device", StepOutcome::No, || {
            format!("iBGP peers have their own routes instead of those on {device}")
        });
        return withhold("tunnel-device");
    }
    rec.step("tunnel-device", StepOutcome::Passed, || "on no tunnel device".to_owned());

    let announce = |gate| {
        let answer = GateDecision { local_pref: own_pref, ..accept(gate, FilterChanges::new()) };
        with_communities(view, prefix, answer)
    };
    let block = cover::in_set(&view.own_blocks, &prefix);
    if block == Some(&prefix) {
        rec.step("own-block", StepOutcome::Yes, || format!("{prefix} is a block of this host"));
        return announce("own-block");
    }
    rec.step("own-block", StepOutcome::Passed, || format!("{prefix} is no block of this host"));

    if let Some(block) = block {
        let metric = metric_of(local_pref);
        if store.is_better_than_normal(&prefix, local_pref) {
            rec.step("inside-own-block", StepOutcome::Yes, || {
                format!("inside own block {block}, with the priority {metric} of a workload that moves")
            });
            return announce("inside-own-block");
        }
        rec.step("inside-own-block", StepOutcome::No, || {
            format!("inside own block {block}, which is announced")
        });
        return withhold("inside-own-block");
    }
    rec.step("inside-own-block", StepOutcome::Passed, || "not inside an own block".to_owned());

    if let Some(range) = cover::in_set(&store.service_ranges, &prefix) {
        rec.step("service-range", StepOutcome::Yes, || format!("inside the service range {range}"));
        return announce("service-range");
    }
    rec.step("service-range", StepOutcome::Passed, || "not inside an announced service range".to_owned());

    if let Some(range) = cover::in_set(&store.reflected_ranges, &prefix) {
        rec.step("reflected-range", StepOutcome::Yes, || {
            format!("this host is a route reflector, and {range} is an external range")
        });
        return announce("reflected-range");
    }
    rec.step("reflected-range", StepOutcome::Passed, || {
        "not inside a range that a reflector passes on".to_owned()
    });

    if let Some(pool) = view.pool_of(&prefix) {
        rec.step("pool", StepOutcome::Yes, || format!("inside pool {}", pool.cidr));
        return announce("pool");
    }
    rec.step("pool", StepOutcome::Passed, || "inside no pool".to_owned());
    rec.step("none", StepOutcome::No, || "no gate announces it".to_owned());
    withhold("none")
}

/// Returns the tunnel device that a route is on, if the peer must not get such routes. Routes on devices of
/// Calico's eBPF dataplane are withheld from every peer.
fn tunnel_device<'a>(store: &Calico3View, ebgp: bool, interface: Interface<'a>) -> Option<&'a str> {
    let Interface::Name(name) = interface else { return None };
    let internal = name.ends_with(".cali")
        || name.ends_with(".calico")
        || (name == "tunl0" && store.withholds_ipip_routes);
    let dataplane = name.starts_with("bpf") && name.ends_with(".cali");
    ((internal && !ebgp) || dataplane).then_some(name)
}

pub(super) fn decide_import(
    view: &RoutingView,
    store: &Calico3View,
    held: &Addresses,
    policy: &PeerPolicy,
    route: &impl FilterInput,
    rec: &mut impl Recorder,
) -> Result<FilterChanges, &'static str> {
    let prefix = route.prefix();
    let mut local_pref = store.local_pref(&prefix, route.source(), route.local_pref());
    let session = Session { ebgp: route.source() == RouteSource::Ebgp, local_pref };
    let answer = ask(view, policy, Direction::Import, session, route);
    let text = || view.filters.describe(&policy.filters, Direction::Import, &answer);
    record_filters(answer.verdict, text, rec);
    if answer.verdict == FilterVerdict::Reject {
        return Err(FILTER);
    }
    if !(prefix.is_host() && held.contains_key(&prefix.addr())) {
        rec.step(OWN_ENDPOINT, StepOutcome::Passed, || "no address of an endpoint of this host".to_owned());
        return Ok(answer.changes);
    }
    let changes = answer.changes.iter();
    for operation in changes.flat_map(|at| view.filters.operations(&policy.filters, Direction::Import, *at)) {
        if let BgpFilterOperation::SetPriority(priority) = operation {
            local_pref = local_pref_of(*priority);
        }
    }
    if store.is_better_than_normal(&prefix, local_pref) {
        rec.step(OWN_ENDPOINT, StepOutcome::Passed, || {
            format!("LOCAL_PREF {local_pref} is better than normal: the workload moves away from this host")
        });
        return Ok(answer.changes);
    }
    rec.step(OWN_ENDPOINT, StepOutcome::No, || format!("an endpoint of this host holds {}", prefix.addr()));
    Err(OWN_ENDPOINT)
}

/// Evaluates the peer's filters; most peers have none.
fn ask(
    view: &RoutingView,
    policy: &PeerPolicy,
    direction: Direction,
    session: Session,
    route: &impl FilterInput,
) -> FilterDecision {
    if policy.filters.is_empty() {
        return FilterDecision::NONE;
    }
    route.whole(|whole| view.filters.ask_calico3(&policy.filters, direction, session, whole))
}
