//! `status` and the kernel's rows: what the threads know, put into the words of the API.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tortie_net::Cidr;

use crate::agent::core::reports::GcTotals;
use crate::agent::handle::Live;
use crate::agent::health::problems;
use crate::agent::observe::Judged;
use crate::agent::time::now_text;
use crate::api::bgp::PeerRange;
use crate::api::nodes::NodeStatus;
use crate::api::policy::{PolicyStatus, TableStatus};
use crate::api::status::{
    API_VERSION, ApiError, BgpStatus, BlockStatus, DataplaneStatus, InvalidObject, KernelRouteRow,
    PoolStatus, Problem, RouteStatus, Status, StoreStatus, UpOf,
};
use crate::api::{Backend, RouteQuery, codes};
use tortie_engine::model::Freeze;
use tortie_engine::routing::{ChangeId, Hop, OriginKind, RoutingIntent};
use tortie_kernel::{Counters, Counts, Drift, KernelView, Mode, RouteCondition, RouteState, RuleCounts};

/// What the core knows; a copy for the asker.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct CoreFacts {
    pub(in crate::agent) revision: u64,
    pub(in crate::agent) store: String,
    pub(in crate::agent) connected: bool,
    pub(in crate::agent) away: Option<String>,
    pub(in crate::agent) from_cache: bool,
    pub(in crate::agent) frozen: Option<Freeze>,
    pub(in crate::agent) lag: Duration,
    pub(in crate::agent) keys: usize,
    pub(in crate::agent) invalid: Vec<InvalidObject>,
    pub(in crate::agent) running: bool,
    pub(in crate::agent) settled: bool,
    pub(in crate::agent) stopping: bool,
    pub(in crate::agent) restart_done: bool,
    pub(in crate::agent) listen: Vec<String>,
    pub(in crate::agent) listen_failed: Vec<(String, String)>,
    /// By session name: state, since when, last error in words.
    pub(in crate::agent) peers: BTreeMap<String, PeerFacts>,
    pub(in crate::agent) peer_trouble: BTreeMap<String, String>,
    /// What the speaker's thread knows of the ranges.
    pub(in crate::agent) ranges: Vec<PeerRange>,
    pub(in crate::agent) announced: Vec<Cidr>,
    pub(in crate::agent) refused: BTreeMap<Cidr, String>,
    pub(in crate::agent) failed_routes: Vec<(Cidr, String)>,
    pub(in crate::agent) tunnel_trouble: Option<String>,
    pub(in crate::agent) tunnel_addr_trouble: Option<String>,
    pub(in crate::agent) collected: GcTotals,
    pub(in crate::agent) pools: Vec<PoolStatus>,
    pub(in crate::agent) duplicates: Vec<(IpAddr, Vec<String>)>,
    /// Next hops that the kernel does not reach.
    pub(in crate::agent) unreachable: Vec<IpAddr>,
    /// What the look around found.
    pub(in crate::agent) surroundings: Vec<Problem>,
    /// Hosts with the versions of their agents.
    pub(in crate::agent) versions: Vec<NodeStatus>,
    /// This host.
    pub(in crate::agent) node: String,
    /// What the speaker's thread knows of routes that are not announced or not used.
    pub(in crate::agent) traded: Traded,
    pub(in crate::agent) rules_trouble: Option<String>,
    pub(in crate::agent) log_trouble: Option<String>,
    /// What is wrong and has no code of its own, by what it is about.
    pub(in crate::agent) troubles: Vec<(String, Vec<String>)>,
    /// What went wrong lately and was over at once: how long ago, and what.
    pub(in crate::agent) mishap: Option<(Duration, String)>,
    pub(in crate::agent) notes: Vec<Problem>,
    pub(in crate::agent) policy: PolicyStatus,
    /// Endpoints that are not as they should be, by name.
    pub(in crate::agent) failed_endpoints: Vec<(String, String)>,
}

/// Routes that are not announced or not used.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct Traded {
    /// By gate, now.
    pub(in crate::agent) withheld: BTreeMap<String, u64>,
    /// By reason, since the start.
    pub(in crate::agent) refused: BTreeMap<String, u64>,
    /// Of peers whose routes import refuses: session, how many of how many, and how many of each reason.
    pub(in crate::agent) refusing: Vec<(String, u32, u32, BTreeMap<&'static str, usize>)>,
    /// Of peers that lately sent UPDATEs that could not be used as they were: session, what was wrong, how long ago.
    pub(in crate::agent) malformed: Vec<(String, String, Duration)>,
}

/// What the core knows of one session.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct PeerFacts {
    pub(in crate::agent) kind: &'static str,
    pub(in crate::agent) name: String,
    pub(in crate::agent) address: String,
    pub(in crate::agent) state: &'static str,
    pub(in crate::agent) up: bool,
    /// It is not to be up.
    pub(in crate::agent) shut: bool,
    pub(in crate::agent) seconds: u64,
    pub(in crate::agent) error: Option<String>,
}

/// What the kernel thread knows; a copy for the asker.
#[derive(Debug, Clone)]
pub(in crate::agent) struct KernelFacts {
    pub(in crate::agent) mode: Mode,
    pub(in crate::agent) objects: bool,
    pub(in crate::agent) counts: Counts,
    pub(in crate::agent) counters: Counters,
    pub(in crate::agent) drift: Drift,
    pub(in crate::agent) compared: Option<Duration>,
    pub(in crate::agent) tunnel: Option<String>,
    /// What stands in the kernel's table; `None`: rules are off.
    pub(in crate::agent) rules: Option<RuleCounts>,
    /// How many of those objects differ from what is wanted.
    pub(in crate::agent) rules_drift: usize,
    /// The first learned routes that are withheld.
    pub(in crate::agent) withheld: Vec<(Cidr, &'static str)>,
}

/// Reads the kernel thread's state for `status` and metrics.
pub(in crate::agent) fn kernel_facts(view: &KernelView<'_>) -> KernelFacts {
    let counts = view.counts();
    KernelFacts {
        mode: view.mode(),
        objects: view.nexthop_objects(),
        counts,
        withheld: if counts.withheld > 0 { view.withheld(3) } else { Vec::new() },
        counters: view.counters(),
        drift: view.drift(5),
        compared: view.last_compare().map(|(ago, _)| ago),
        tunnel: view.tunnel().map(str::to_owned),
        rules: view.rule_counts(),
        rules_drift: view.rules_drift().0,
    }
}

/// Puts the verdict together.
pub(in crate::agent) fn build(
    live: &Live,
    facts: Option<CoreFacts>,
    kernel: Option<KernelFacts>,
    intent: Option<&RoutingIntent>,
    judged: Option<&Judged>,
    hints: impl Iterator<Item = Problem>,
) -> Status {
    let ready = live.ready();
    let facts = facts.unwrap_or_default();
    let mut problems = problems::problems(&facts, kernel.as_ref());
    let (mut verdict, mut summary) = problems::verdict(&facts, intent, ready, &problems);
    if let Some(judged) = judged {
        problems.extend(problems::sessions_differ(&judged.session_drift()));
        problems.sort_by_key(|problem| codes::weight(&problem.code));
        if facts.running && facts.frozen.is_none() && facts.away.is_none() && !facts.from_cache {
            (verdict, summary) = judged.verdict();
        }
        if verdict == "ready" && !problems.is_empty() {
            verdict = "degraded";
        }
    }
    let mut notes: Vec<Problem> = facts.notes.iter().cloned().chain(hints).collect();
    notes.extend(problems::traded(&facts.traded, intent));
    notes.sort_by_key(|note| codes::weight(&note.code));
    let of = |is: fn(&str) -> bool| {
        let mut sum = UpOf::default();
        for peer in facts.peers.values().filter(|p| is(p.kind)) {
            sum.of += 1;
            sum.up += usize::from(peer.up);
        }
        sum
    };
    Status {
        api_version: API_VERSION.to_owned(),
        kind: "Status".to_owned(),
        node: live.node.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        time: now_text(),
        uptime_seconds: live.started.elapsed().as_secs(),
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
            withheld: facts.traded.withheld.clone(),
            refused: facts.traded.refused.clone(),
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
            away: facts.away.clone(),
            from_cache: facts.from_cache,
            frozen: facts.frozen.as_ref().map(|freeze| freeze.text.clone()),
            invalid: facts.invalid.clone(),
            keys: facts.keys,
        },
        dataplane: DataplaneStatus { protocol: live.protocol, ..dataplane(kernel.as_ref(), intent) },
        beside: judged.map(Judged::status),
        problems,
        notes,
    }
}

/// Rules and endpoints, with what the kernel thread counts of its table.
fn policy_status(facts: &CoreFacts, kernel: Option<&KernelFacts>) -> PolicyStatus {
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

fn route_status(kernel: &KernelFacts) -> RouteStatus {
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

fn dataplane(kernel: Option<&KernelFacts>, intent: Option<&RoutingIntent>) -> DataplaneStatus {
    let Some(kernel) = kernel else { return DataplaneStatus::default() };
    DataplaneStatus {
        mode: mode_name(kernel.mode).to_owned(),
        protocol: 0,
        nexthops: if kernel.objects { "nexthop-objects" } else { "plain-gateways" }.to_owned(),
        tunnel: match (&kernel.tunnel, intent.and_then(|i| i.tunnel.as_ref())) {
            (Some(trouble), _) => trouble.clone(),
            (None, Some(_)) => "up".to_owned(),
            (None, None) => "none".to_owned(),
        },
        compared_seconds: kernel.compared.map(|ago| ago.as_secs()),
    }
}

/// The name of a mode.
pub(in crate::agent) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Program => "program",
        Mode::Observe => "observe",
        Mode::Off => "off",
    }
}

fn blocks(intent: &RoutingIntent, facts: &CoreFacts) -> Vec<BlockStatus> {
    intent
        .originated
        .iter()
        .map(|(cidr, route)| BlockStatus {
            cidr: cidr.to_string(),
            kind: match route.kind {
                OriginKind::OwnBlock => "own-block",
                OriginKind::Borrowed => "borrowed",
                OriginKind::Floating => "floating",
            }
            .to_owned(),
            announced: facts.announced.binary_search(cidr).is_ok(),
            key: route.key.to_string(),
        })
        .collect()
}

/// Which kernel rows are asked for.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) enum KernelMatch {
    All,
    Exact(Cidr),
    Covering(IpAddr),
    Within(Cidr),
}

impl KernelMatch {
    pub(in crate::agent) fn read(query: &RouteQuery) -> Result<Self, ApiError> {
        let cidr = |text: &str| {
            text.parse::<Cidr>().map_err(|e| ApiError { code: "invalid".to_owned(), text: e.to_string() })
        };
        Ok(match (&query.prefix, &query.within) {
            (Some(text), _) => match text.parse::<IpAddr>() {
                Ok(addr) => Self::Covering(addr),
                Err(_) => Self::Exact(cidr(text)?),
            },
            (None, Some(text)) => Self::Within(cidr(text)?),
            (None, None) => Self::All,
        })
    }
}

/// Own routes from a place in the table on, as [`KernelView::walk`].
pub(in crate::agent) fn kernel_rows(
    view: &KernelView<'_>,
    matching: &KernelMatch,
    from: u32,
    places: u32,
    max: usize,
) -> (Vec<(Cidr, KernelRouteRow)>, Option<u32>) {
    let (states, next) = match matching {
        KernelMatch::Exact(cidr) => (view.route(cidr).into_iter().collect(), None),
        KernelMatch::Covering(addr) => (view.own_covering(*addr).into_iter().collect(), None),
        KernelMatch::Within(cidr) => view.walk(Some(*cidr), from, places, max),
        KernelMatch::All => view.walk(None, from, places, max),
    };
    (states.iter().map(|state| (state.prefix, row(view, state))).collect(), next)
}

/// One address: our row and the foreign route that covers it.
pub(in crate::agent) fn kernel_get(view: &KernelView<'_>, addr: IpAddr) -> (Option<KernelRouteRow>, String) {
    let own = view.own_covering(addr).map(|state| row(view, &state));
    let says = match view.resolve(addr) {
        Some(resolved) => {
            let dev = view.interface(resolved.ifindex).unwrap_or("?").to_owned();
            match resolved.gateway {
                Some(gateway) => {
                    format!("without our routes: via {gateway} dev {dev} metric {}", resolved.metric)
                }
                None => format!("without our routes: on-link dev {dev}"),
            }
        }
        None => "without our routes: unreachable (unresolved)".to_owned(),
    };
    (own, says)
}

/// One own prefix.
pub(in crate::agent) fn row(view: &KernelView<'_>, state: &RouteState) -> KernelRouteRow {
    let via = state
        .hops
        .iter()
        .map(|hop| match hop {
            Hop::Plain { gateway, ifindex } => {
                format!("via {gateway} dev {}", view.interface(*ifindex).unwrap_or("?"))
            }
            Hop::Tunnel { remote } => format!("via {remote} dev tunl0 onlink"),
        })
        .collect();
    let (condition, reason) = match &state.condition {
        RouteCondition::Installed => ("installed", state.why.unwrap_or_default().to_owned()),
        RouteCondition::Pending => ("pending", "not written yet".to_owned()),
        RouteCondition::Failed(why) => ("failed", why.clone()),
        RouteCondition::Withheld(why) => ("withheld", (*why).to_owned()),
        RouteCondition::Stale => ("stale", "kept from before the restart".to_owned()),
        RouteCondition::Removing => ("leaving", "no longer wanted".to_owned()),
    };
    KernelRouteRow {
        prefix: state.prefix.to_string(),
        kind: if state.blackhole { "blackhole" } else { "learned" }.to_owned(),
        state: condition.to_owned(),
        via,
        reason,
        change: if state.change == ChangeId::default() { String::new() } else { state.change.to_string() },
    }
}
