//! The core's part of a scrape: sums, and details of the peers with series of their own.
//!
//! It runs on the core's thread and iterates over this host's peers, endpoints and blocks, not over routes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_bgp::State;
use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use crate::agent::config::PeerSeries;
use crate::agent::core::counters::{self, CoreCounters};
use crate::agent::core::object_counts::ObjectCounts;
use crate::agent::core::observed_state::GcTotals;
use crate::agent::core::observed_state::PoolUsages;
use crate::agent::core::snapshot::PeerSnapshot;
use crate::agent::core::view::CoreView;
use crate::api::policy::PolicyStatus;
use tortie_engine::routing::{OriginKind, PeerIntent, PeerKind};
use tortie_kernel::EndpointCondition;

/// Time for which a mesh peer keeps its series after it was down.
const SERIES_KEPT_FOR: Duration = Duration::from_secs(15 * 60);

/// State of the core at the time of a scrape.
#[derive(Debug, Clone)]
pub(super) struct CoreScrape {
    pub(super) running: bool,
    pub(super) connected: bool,
    pub(super) from_cache: bool,
    pub(super) frozen: bool,
    pub(super) revision: u64,
    /// Time since the last confirmation that the model is up to date.
    pub(super) lag: Duration,
    pub(super) keys: usize,
    pub(super) snapshots: u64,
    /// Unreadable values by kind of key.
    pub(super) invalid: BTreeMap<&'static str, usize>,
    pub(super) counters: CoreCounters,
    /// Sessions by type and state.
    pub(super) sessions: BTreeMap<(&'static str, State), usize>,
    /// Sessions that should be up, by type.
    pub(super) expected: BTreeMap<&'static str, usize>,
    /// Peers with series of their own, by session.
    pub(super) peers: BTreeMap<String, PeerScrape>,
    /// True until the graceful restart of this agent is over (RFC 4724).
    pub(super) restarting: bool,
    pub(super) policy: PolicyStatus,
    /// Endpoints of this host by kind and state.
    pub(super) endpoints: BTreeMap<(&'static str, &'static str), usize>,
    /// Policies and profiles in the whole store.
    pub(super) objects: ObjectCounts,
    pub(super) gc: GcTotals,
    /// Leak candidates of the garbage collector, by pool.
    pub(super) leaked: BTreeMap<String, usize>,
    /// Usage of all pools; set only on the host that reads it.
    pub(super) pool_usage: Option<PoolUsages>,
    /// Own blocks by pool.
    pub(super) blocks: BTreeMap<String, BlockScrape>,
    /// Numbers of rule changes and of intents that the kernel has not acknowledged.
    pub(super) waiting: (u64, u64),
    /// Own routes by kind, for each address family.
    pub(super) originated: BTreeMap<&'static str, [usize; 2]>,
}

/// A peer with series of its own.
#[derive(Debug, Clone)]
pub(super) struct PeerScrape {
    /// State of the session as in `status`.
    pub(super) peer: PeerSnapshot,
    pub(super) asn: String,
    /// True for all series; false for the session state only.
    pub(super) whole: bool,
    pub(super) state: State,
    /// Time since the last state change, or since the start of the agent.
    pub(super) since: Duration,
    pub(super) flaps: BTreeMap<&'static str, u64>,
    pub(super) open_errors: u64,
    pub(super) notifications: BTreeMap<(&'static str, u8, u8), u64>,
    /// Prefix limit of the peer.
    pub(super) limit: Option<u32>,
    pub(super) families: [bool; 2],
}

impl PeerScrape {
    /// Returns the common labels of the peer's series, followed by `more`.
    pub(super) fn with<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let common = [
            ("peer", &*self.peer.address),
            ("peer_name", &*self.peer.name),
            ("peer_as", &*self.asn),
            ("type", self.peer.kind),
        ];
        common.into_iter().chain(more.iter().copied()).collect()
    }
}

/// Own blocks of one pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockScrape {
    pub(super) blocks: usize,
    pub(super) used: usize,
    pub(super) free: usize,
    /// Number of own endpoints' addresses in other hosts' blocks.
    pub(super) borrowed_in: usize,
    /// Number of addresses of own blocks that other hosts use.
    pub(super) borrowed_out: usize,
}

/// Collects the state for one scrape.
pub(super) fn scrape(core: &CoreView<'_>, per_peer: PeerSeries, now: Instant) -> CoreScrape {
    let mut invalid = BTreeMap::new();
    for problem in core.model().invalid_keys() {
        *invalid.entry(counters::kind(&problem.key)).or_default() += 1;
    }
    let mut scrape = CoreScrape {
        running: core.running(),
        connected: core.is_connected(),
        from_cache: core.runs_from_cache(),
        frozen: core.frozen().is_some(),
        revision: core.revision(),
        lag: core.lag(now),
        keys: core.keys(),
        snapshots: core.snapshots(),
        invalid,
        counters: core.counters().clone(),
        sessions: BTreeMap::new(),
        expected: BTreeMap::new(),
        peers: BTreeMap::new(),
        restarting: !core.restart_done(),
        policy: core.policy_status(),
        endpoints: endpoint_states(core),
        objects: core.object_counts(),
        gc: core.gc_totals().clone(),
        leaked: BTreeMap::new(),
        pool_usage: core.pool_usage().cloned(),
        blocks: block_sums(core),
        waiting: core.unacknowledged(),
        originated: BTreeMap::new(),
    };
    for addr in &core.gc_totals().leak_candidates {
        let pools = core.model().pools().map(|pool| *pool.key).filter(|pool| pool.contains(*addr));
        let pool = pools.max_by_key(Cidr::len).map(|pool| pool.to_string()).unwrap_or_default();
        *scrape.leaked.entry(pool).or_default() += 1;
    }
    let Some(intent) = core.intent() else { return scrape };
    for (session, wanted) in &intent.peers {
        scrape_peer(core, session, wanted, per_peer, now, &mut scrape);
    }
    for peer in core.dynamic_peers() {
        if let Some(wanted) = intent.dynamic(peer) {
            scrape_peer(core, &peer.name, &wanted, per_peer, now, &mut scrape);
        }
    }
    for (prefix, route) in &intent.originated {
        let [v4, v6] = scrape.originated.entry(origin(route.kind)).or_default();
        *if prefix.is_v4() { v4 } else { v6 } += 1;
    }
    scrape
}

fn scrape_peer(
    core: &CoreView<'_>,
    session: &str,
    wanted: &PeerIntent,
    per_peer: PeerSeries,
    now: Instant,
    scrape: &mut CoreScrape,
) {
    let record = core.peer(session);
    let state = record.and_then(|r| r.state).unwrap_or(State::Idle);
    let (kind, up) = (wanted.kind.as_str(), state == State::Established);
    *scrape.sessions.entry((kind, state)).or_default() += 1;
    *scrape.expected.entry(kind).or_default() += usize::from(wanted.shutdown.is_none());
    let since = record.and_then(|r| r.since).unwrap_or(core.started());
    let since = now.saturating_duration_since(since);
    let whole = match per_peer {
        PeerSeries::All => true,
        PeerSeries::Explicit => wanted.kind != PeerKind::Mesh,
        PeerSeries::None => false,
    };
    // A mesh peer that is down has a series with its name, also for a while after it is up again.
    let missed = record.is_some_and(|r| r.missed) && since < SERIES_KEPT_FOR;
    if !whole && up && !missed {
        return;
    }
    let peer = PeerScrape {
        peer: PeerSnapshot::of(wanted, record, now),
        asn: wanted.asn.to_string(),
        whole,
        state,
        since,
        flaps: record.filter(|_| whole).map(|r| r.flaps.clone()).unwrap_or_default(),
        open_errors: record.map_or(0, |r| r.open_errors),
        notifications: record.filter(|_| whole).map(|r| r.notifications.clone()).unwrap_or_default(),
        limit: wanted.max_prefixes.as_ref().and_then(|max| max.limit),
        families: [wanted.ipv4, wanted.ipv6],
    };
    scrape.peers.insert(session.to_owned(), peer);
}

/// Counts the endpoints of this host: `up`; `pending` while the interface is absent or the endpoint inactive;
/// `error`.
fn endpoint_states(core: &CoreView<'_>) -> BTreeMap<(&'static str, &'static str), usize> {
    let kinds = ["workload", "host"];
    let states = ["up", "pending", "error"];
    let mut sums: BTreeMap<_, usize> =
        kinds.into_iter().flat_map(|kind| states.map(|state| ((kind, state), 0))).collect();
    let Some(policy) = core.enforcement().policy() else { return sums };
    for key in policy.ruleset.endpoints.keys() {
        let kind = if matches!(key, EndpointKey::Host { .. }) { "host" } else { "workload" };
        let state = match core.enforcement().conditions().get(key) {
            _ if core.enforcement().failure(key).is_some() => "error",
            Some(EndpointCondition::Failed(_)) => "error",
            Some(EndpointCondition::Up) => "up",
            Some(EndpointCondition::Down(_)) | None => "pending",
        };
        *sums.entry((kind, state)).or_default() += 1;
    }
    sums
}

fn block_sums(core: &CoreView<'_>) -> BTreeMap<String, BlockScrape> {
    let pools: Vec<Cidr> = core.model().pools().map(|pool| *pool.key).collect();
    let pool_of = |cidr: &Cidr| {
        pools.iter().filter(|pool| pool.covers(cidr)).max_by_key(|pool| pool.len()).map(ToString::to_string)
    };
    let node = core.model().node();
    let mut sums: BTreeMap<String, BlockScrape> =
        pools.iter().map(|pool| (pool.to_string(), BlockScrape::default())).collect();
    let mut own = Vec::new();
    for (cidr, _) in core.model().own_blocks() {
        own.push(cidr);
        let (Some(block), Some(pool)) = (core.model().block(cidr), pool_of(&cidr)) else { continue };
        let sum = sums.entry(pool).or_default();
        sum.blocks += 1;
        sum.free += block.value.free().len();
        sum.used += block.value.size() - block.value.free().len();
        let others = block.value.allocated().filter(|(_, of)| of.get("node").is_some_and(|n| n != node));
        sum.borrowed_out += others.count();
    }
    for workload in core.model().workloads(node) {
        for net in workload.value.ipv4_nets.iter().chain(&workload.value.ipv6_nets) {
            if own.iter().any(|block| block.covers(net)) {
                continue;
            }
            if let Some(pool) = pool_of(net) {
                sums.entry(pool).or_default().borrowed_in += 1;
            }
        }
    }
    sums
}

/// Returns the label `source` of own routes.
fn origin(kind: OriginKind) -> &'static str {
    match kind {
        OriginKind::OwnBlock => "ipam_block",
        OriginKind::Borrowed => "borrowed",
        OriginKind::Floating => "floating",
        OriginKind::ServiceRange => "service_range",
    }
}
