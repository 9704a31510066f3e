//! `status`: combines the snapshots of the threads into one verdict.

use std::time::Instant;

use crate::agent::api::peers;
use crate::agent::api::server::Server;
use crate::agent::core::snapshot::{CoreSnapshot, mode_name};
use crate::agent::core::view::CoreView;
use crate::agent::health::kernel_snapshot::{KernelSnapshot, kernel_snapshot};
use crate::agent::health::{notes, problems};
use crate::agent::observe::{ComparisonReport, Observer};
use crate::agent::time::now_text;
use crate::api::codes;
use crate::api::policy::{PolicyStatus, TableStatus};
use crate::api::problem::Problem;
use crate::api::status::{
    API_VERSION, AgentIdentity, ApiError, BgpStatus, BlockStatus, DataplaneStatus, RouteStatus, Status,
    StoreStatus, UpCount,
};
use tortie_engine::routing::{OriginKind, PeerIntent, RoutingIntent};
use tortie_kernel::Mode;

/// Returns the overall status of the agent.
pub(in crate::agent) async fn status(server: &Server) -> Status {
    let handle = server.handle();
    let mut core = server.snapshot().await.ok();
    if let Some(core) = &mut core {
        core.ranges = peers::ranges(handle).await;
        core.route_exchange = handle.speaker().ask(notes::route_exchange).await.unwrap_or_default();
    }
    let mut kernel = handle.kernel().ask(kernel_snapshot).await.ok();
    let comparison = server.observer().and_then(Observer::last);
    if let Some(comparison) = &comparison {
        core.iter_mut().for_each(|core| comparison.replace_sessions(core));
        kernel.iter_mut().for_each(|kernel| comparison.replace_kernel(kernel));
    }
    let hints = peers::route_hints(handle).await;
    let intent = handle.newest_intent();
    let notes = hints.into_values().chain(notes::drained(handle).await).chain(notes::denied(handle));
    let notes = notes.chain(notes::drift_hold(handle).await);
    let adds = kernel.as_ref().is_some_and(|kernel| kernel.mode == Mode::Program)
        && core.as_ref().is_some_and(|core| core.connected && core.frozen.is_none());
    let allocation = if adds {
        let excluded = handle.core().ask(|core| core.exclusions(Instant::now())).await.unwrap_or_default();
        server.cluster().allocation_problem(excluded).await
    } else {
        None
    };
    build(server, core, kernel, intent.as_deref(), comparison.as_deref(), allocation, notes)
}

/// Returns the identity of this agent: node name, machine, freeze and exclusions.
pub(in crate::agent) async fn identity(server: &Server) -> Result<AgentIdentity, ApiError> {
    let handle = server.handle();
    let question = |core: &CoreView<'_>| {
        let frozen = core.frozen().map(|freeze| freeze.text.clone());
        (frozen, core.exclusions(Instant::now()))
    };
    let (frozen, excluded) = handle.core().ask(question).await?;
    Ok(AgentIdentity { node: server.node().to_owned(), machine: handle.machine().clone(), frozen, excluded })
}

/// Combines the snapshots into the status.
fn build(
    server: &Server,
    facts: Option<CoreSnapshot>,
    kernel: Option<KernelSnapshot>,
    intent: Option<&RoutingIntent>,
    judged: Option<&ComparisonReport>,
    allocation: Option<Problem>,
    hints: impl Iterator<Item = Problem>,
) -> Status {
    let ready = server.handle().is_ready();
    let facts = facts.unwrap_or_default();
    let mut problems = problems::problems(&facts, kernel.as_ref());
    problems.extend(allocation);
    let notes = facts.notes.iter().cloned().chain(hints);
    let notes = notes.chain(problems::route_exchange(&facts.route_exchange, intent));
    let notes = notes.chain(problems::object_notes(&facts));
    let (grave, mut notes): (Vec<Problem>, Vec<Problem>) =
        notes.partition(|note| codes::find(codes::Kind::Problem, &note.code).is_some());
    problems.extend(grave);
    problems.sort_by_key(|problem| codes::weight(&problem.code));
    let (mut verdict, mut summary) = problems::verdict(&facts, intent, ready, &problems);
    if let Some(judged) = judged {
        problems.extend(problems::sessions_differ(&judged.session_drift()));
        problems.sort_by_key(|problem| codes::weight(&problem.code));
        if facts.running && facts.frozen.is_none() && facts.store_unreachable.is_none() && !facts.from_cache {
            (verdict, summary) = judged.verdict();
        }
        if verdict == "ready" && !problems.is_empty() {
            verdict = "degraded";
        }
        if facts.calico_3 {
            summary = format!("the store is Calico 3's; {summary}");
        }
    }
    notes.sort_by_key(|note| codes::weight(&note.code));
    let of = |is: fn(&str) -> bool| {
        let mut sum = UpCount::default();
        for peer in facts.peers.values().filter(|p| is(p.kind)) {
            sum.of += 1;
            sum.up += usize::from(peer.up);
        }
        sum
    };
    Status {
        api_version: API_VERSION.to_owned(),
        kind: "Status".to_owned(),
        node: server.node().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: now_text(),
        uptime_seconds: server.handle().started().elapsed().as_secs(),
        ready,
        verdict: verdict.to_owned(),
        summary,
        bgp: BgpStatus {
            asn: intent.map_or(0, |i| i.asn),
            router_id: intent.map_or_else(String::new, |i| std::net::Ipv4Addr::from(i.router_id).to_string()),
            listen: facts.listen.clone(),
            mesh: of(|kind| kind == "mesh"),
            peers: of(|kind| kind != "mesh" && kind != "dynamic"),
            dynamic: of(|kind| kind == "dynamic"),
            ranges: facts.ranges.clone(),
            graceful_restart: match (facts.stopping, facts.restart_done) {
                (true, _) => "stopping",
                (_, true) => "idle",
                _ => "restarting",
            }
            .to_owned(),
            withheld: facts.route_exchange.withheld.clone(),
            refused: facts.route_exchange.refused.clone(),
            without_prefix_limit: intent.map(without_prefix_limit).unwrap_or_default(),
        },
        routes: kernel.as_ref().map(route_status).unwrap_or_default(),
        blocks: intent.map(|i| blocks(i, &facts)).unwrap_or_default(),
        pools: facts.pools.clone(),
        policy: policy_status(&facts, kernel.as_ref()),
        store: StoreStatus {
            store: facts.store.clone(),
            connected: facts.connected,
            revision: facts.revision,
            lag_seconds: facts.lag.as_secs_f64(),
            away: facts.store_unreachable.clone(),
            from_cache: facts.from_cache,
            frozen: facts.frozen.as_ref().map(|freeze| freeze.text.clone()),
            invalid: facts.invalid.iter().map(|value| value.object.clone()).collect(),
            keys: facts.keys,
        },
        dataplane: DataplaneStatus { protocol: server.protocol(), ..dataplane(kernel.as_ref(), intent) },
        observed: judged.map(ComparisonReport::status),
        protections: server.handle().protections(),
        problems,
        notes,
    }
}

/// Lists external peers without a prefix limit, then ranges without one.
fn without_prefix_limit(intent: &RoutingIntent) -> Vec<String> {
    let unlimited = |peer: &PeerIntent| peer.max_prefixes.is_none() && peer.is_external(intent.asn);
    let peers = intent.peers.values().filter(|peer| unlimited(peer)).map(|peer| peer.name.clone());
    let ranges =
        intent.ranges.values().filter(|range| unlimited(&range.peer)).map(|range| range.prefix.to_string());
    peers.chain(ranges).collect()
}

/// Combines rules and endpoints with the kernel thread's counts of its table.
fn policy_status(facts: &CoreSnapshot, kernel: Option<&KernelSnapshot>) -> PolicyStatus {
    let kernel_rules = kernel.and_then(|kernel| kernel.rules.map(|rules| (rules, kernel.rules_drift)));
    let table = kernel_rules.map(|(rules, drifted)| TableStatus {
        chains: rules.chains,
        rules: rules.rules,
        sets: rules.sets,
        elements: rules.elements,
        drifted,
        external_changes: rules.external_changes,
    });
    PolicyStatus { table, ..facts.policy.clone() }
}

fn route_status(kernel: &KernelSnapshot) -> RouteStatus {
    RouteStatus {
        installed: kernel.counts.installed,
        pending: kernel.counts.pending,
        failed: kernel.counts.failed,
        withheld: kernel.counts.withheld,
        stale: kernel.counts.stale,
        drifted: kernel.drift.count,
        foreign: kernel.counts.foreign,
        external_changes: kernel.counters.external_changes,
        overruns: kernel.counters.overruns,
    }
}

fn dataplane(kernel: Option<&KernelSnapshot>, intent: Option<&RoutingIntent>) -> DataplaneStatus {
    let Some(kernel) = kernel else { return DataplaneStatus::default() };
    DataplaneStatus {
        mode: mode_name(kernel.mode).to_owned(),
        protocol: 0,
        nexthops: if kernel.objects { "nexthop-objects" } else { "plain-gateways" }.to_owned(),
        tunnel: match &kernel.tunnel {
            Some(problem) => problem.clone(),
            None if intent.is_some_and(|i| i.tunnel.is_some() || i.vxlan.is_on()) => "up".to_owned(),
            None => "none".to_owned(),
        },
        compared_seconds: kernel.compared.map(|ago| ago.as_secs()),
    }
}

fn blocks(intent: &RoutingIntent, facts: &CoreSnapshot) -> Vec<BlockStatus> {
    intent
        .originated
        .iter()
        .map(|(cidr, route)| BlockStatus {
            cidr: cidr.to_string(),
            kind: match route.kind {
                OriginKind::OwnBlock => "own-block",
                OriginKind::Borrowed => "borrowed",
                OriginKind::Floating => "floating",
                OriginKind::ServiceRange => "service-range",
            }
            .to_owned(),
            announced: facts.announced.binary_search(cidr).is_ok(),
            key: route.key.to_string(),
        })
        .collect()
}
