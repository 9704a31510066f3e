//! Snapshots of the core's state for queries.

pub(super) mod blocks;
pub(super) mod exclusions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::State;
use tortie_config::calico3::Problem as ObjectProblem;
use tortie_config::counted;
use tortie_config::key::IpFamily;
use tortie_net::{Cidr, ScopedAddr};

use crate::agent::core::Core;
use crate::agent::core::observed_state::GcTotals;
use crate::agent::core::peer_record::PeerRecord;
use crate::agent::core::recorder::unreadable::{self, UnreadableValue};
use crate::api::bgp::PeerRange;
use crate::api::codes::{self, Kind, Severity};
use crate::api::nodes::NodeStatus;
use crate::api::policy::PolicyStatus;
use crate::api::problem::{Problem, Subject};
use crate::api::span;
use crate::api::status::PoolStatus;
use tortie_engine::ipam::{HostNetwork, pool_overlap};
use tortie_engine::model::{Freeze, Model};
use tortie_engine::policy::{EndpointPolicy, Source};
use tortie_engine::routing::{self, AddressOption, LearnedPath, Note, PeerIntent, PeerKind, RoutingIntent};
use tortie_kernel::Mode;

/// Time that other agents of a SQLite store may take to start.
const STARTUP_GRACE: Duration = Duration::from_secs(90);
/// Maximum number of listed values with unknown names.
const UNREAD_MAX: usize = 20;
/// Time for which a change by another process is shown.
const SHOWN_FOR: Duration = Duration::from_secs(600);

/// The core's state for `status`, metrics and the status key.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct CoreSnapshot {
    pub(in crate::agent) revision: u64,
    pub(in crate::agent) store: String,
    pub(in crate::agent) connected: bool,
    pub(in crate::agent) store_unreachable: Option<String>,
    /// True if the store is unreachable because its file is damaged.
    pub(in crate::agent) store_damaged: bool,
    pub(in crate::agent) from_cache: bool,
    pub(in crate::agent) frozen: Option<Freeze>,
    /// The store contains objects of Calico 3.
    pub(in crate::agent) calico_3: bool,
    /// The store has objects of Calico 3 and keys of the v1 data model.
    pub(in crate::agent) has_v1_keys: bool,
    pub(in crate::agent) lag: Duration,
    pub(in crate::agent) keys: usize,
    pub(in crate::agent) invalid: Vec<UnreadableValue>,
    /// Problems of objects of Calico 3 that are not in `invalid`.
    pub(in crate::agent) object_problems: Vec<ObjectProblem>,
    pub(in crate::agent) running: bool,
    pub(in crate::agent) settled: bool,
    pub(in crate::agent) stopping: bool,
    pub(in crate::agent) restart_done: bool,
    pub(in crate::agent) listen: Vec<String>,
    pub(in crate::agent) listen_failed: Vec<(String, String)>,
    /// State of each session by its name.
    pub(in crate::agent) peers: BTreeMap<String, PeerSnapshot>,
    pub(in crate::agent) peer_problems: BTreeMap<String, String>,
    /// Ranges with their sessions, from the speaker's thread.
    pub(in crate::agent) ranges: Vec<PeerRange>,
    pub(in crate::agent) announced: Vec<Cidr>,
    pub(in crate::agent) refused: BTreeMap<Cidr, String>,
    pub(in crate::agent) failed_routes: Vec<(Cidr, String)>,
    pub(in crate::agent) tunnel_problem: Option<String>,
    pub(in crate::agent) tunnel_address_problem: Option<String>,
    pub(in crate::agent) collected: GcTotals,
    pub(in crate::agent) pools: Vec<PoolStatus>,
    pub(in crate::agent) duplicates: Vec<(IpAddr, Vec<String>)>,
    /// Next hops that the kernel cannot reach.
    pub(in crate::agent) unreachable: Vec<ScopedAddr>,
    /// Problems that the health probe found.
    pub(in crate::agent) host_problems: Vec<Problem>,
    /// Hosts with the versions of their agents.
    pub(in crate::agent) versions: Vec<NodeStatus>,
    /// Node name of this host.
    pub(in crate::agent) node: String,
    /// Routes that are not announced or not used, from the speaker's thread.
    pub(in crate::agent) route_exchange: RouteExchange,
    pub(in crate::agent) rules_problem: Option<String>,
    pub(in crate::agent) log_problem: Option<String>,
    pub(in crate::agent) cache_problem: Option<String>,
    pub(in crate::agent) mtu_file_problem: Option<String>,
    /// Problems of threads without a code of their own, by subject.
    pub(in crate::agent) thread_problems: Vec<(String, Vec<String>)>,
    /// Age and text of the last transient problem.
    pub(in crate::agent) transient: Option<(Duration, String)>,
    pub(in crate::agent) notes: Vec<Problem>,
    pub(in crate::agent) policy: PolicyStatus,
    /// Pools that overlap an address or a network of a host, with a description.
    pub(in crate::agent) pool_overlaps: Vec<(Cidr, String)>,
    /// Own blocks whose blackhole would cut this host off, with the reason.
    pub(in crate::agent) withheld_blocks: Vec<(Cidr, String)>,
    /// Endpoints that could not be applied, by name.
    pub(in crate::agent) failed_endpoints: Vec<(String, String)>,
}

/// Routes that are not announced or not used.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct RouteExchange {
    /// Routes that are withheld now, by export gate.
    pub(in crate::agent) withheld: BTreeMap<String, u64>,
    /// Routes rejected since the start, by reason.
    pub(in crate::agent) refused: BTreeMap<String, u64>,
    /// Peers whose routes import policy rejects: session, number of rejected routes, of all routes, and of
    /// each reason.
    pub(in crate::agent) refusing: Vec<(String, u32, u32, BTreeMap<&'static str, usize>)>,
    /// Peers that recently sent malformed UPDATEs: session, error, age.
    pub(in crate::agent) malformed: Vec<(String, String, Duration)>,
}

/// State of one session.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct PeerSnapshot {
    pub(in crate::agent) kind: &'static str,
    pub(in crate::agent) name: String,
    pub(in crate::agent) address: String,
    pub(in crate::agent) state: &'static str,
    pub(in crate::agent) up: bool,
    /// True if the configuration shuts the session down.
    pub(in crate::agent) shut: bool,
    /// Time since the last state change.
    pub(in crate::agent) since: Option<Duration>,
    pub(in crate::agent) error: Option<String>,
}

impl PeerSnapshot {
    /// Builds the snapshot of an intended session from its record; Idle if there is no record yet.
    pub(in crate::agent) fn of(intent: &PeerIntent, record: Option<&PeerRecord>, now: Instant) -> Self {
        let state = record.and_then(|r| r.state).unwrap_or(State::Idle);
        Self {
            kind: intent.kind.as_str(),
            name: intent.name.clone(),
            address: intent.remote.ip().to_string(),
            state: state.as_str(),
            up: state == State::Established,
            shut: intent.shutdown.is_some(),
            since: record.and_then(|r| r.since).map(|at| now.saturating_duration_since(at)),
            error: record.and_then(|r| r.error.clone()),
        }
    }
}

/// Returns the name of a mode.
pub(in crate::agent) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Program => "program",
        Mode::Observe => "observe",
        Mode::Off => "off",
    }
}

impl Core {
    /// Returns the other hosts in the store that have an address of this host, with the address.
    pub(in crate::agent) fn address_conflicts(&self) -> Vec<(IpAddr, String)> {
        let own = |family, option| match option {
            AddressOption::Given(addr, _) => Some(addr),
            AddressOption::Off => None,
            AddressOption::Stored => self.model.node_addr(family),
        };
        let own = [own(IpFamily::V4, self.node.ip4), own(IpFamily::V6, self.node.ip6)];
        let mut address_conflicts = Vec::new();
        for addr in own.into_iter().flatten() {
            let others = self.model.hosts_by_address(addr).filter(|(host, _)| *host != self.model.node());
            address_conflicts.extend(others.map(|(host, _)| (addr, host.to_owned())));
        }
        address_conflicts
    }

    /// Returns the reason why the current value of this key is not used.
    pub(in crate::agent) fn model_problem(&self, key: &str) -> Option<String> {
        self.model.invalid_keys().find(|p| p.key == key).map(|p| p.error.clone())
    }

    /// Copies the core's state for `status` and metrics.
    pub(super) fn status_snapshot(&self, now: Instant) -> CoreSnapshot {
        let intent = self.intent.as_deref();
        let peers = intent.map(|i| self.peer_snapshots(i, now)).unwrap_or_default();
        let held = |prefix: &Cidr| {
            self.kernel_writes
                && intent.is_some_and(|i| i.blackholes.contains(prefix))
                && !self.blackholes.contains(prefix)
        };
        let announced = intent
            .filter(|_| self.running())
            .map(|i| i.originated.keys().filter(|p| !held(p)).copied().collect())
            .unwrap_or_default();
        let invalid = unreadable::unreadable_values(&self.model);
        CoreSnapshot {
            revision: self.link.revision,
            store: String::new(),
            connected: self.link.connected,
            store_unreachable: self.link.unreachable_reason.clone(),
            store_damaged: self.observed.store_damaged,
            from_cache: self.link.from_cache,
            frozen: self.frozen.clone(),
            calico_3: self.observed.calico_3,
            has_v1_keys: self.model.dropped_v1_keys() > 0,
            lag: now.saturating_duration_since(self.link.fresh),
            keys: self.link.keys,
            object_problems: unreadable::object_problems(&self.model, &invalid),
            invalid,
            running: self.running(),
            settled: self.settled(),
            stopping: false,
            restart_done: self.observed.restart_done,
            listen: self.observed.listening.iter().map(ToString::to_string).collect(),
            listen_failed: self
                .observed
                .listen_failed
                .iter()
                .map(|(a, e)| (a.to_string(), e.clone()))
                .collect(),
            peers,
            peer_problems: self.observed.peer_problems.clone(),
            ranges: Vec::new(),
            announced,
            refused: self.refused_blackholes.clone(),
            failed_routes: self.observed.failed_routes.iter().map(|(p, e)| (*p, e.clone())).collect(),
            tunnel_problem: self.observed.tunnel_problem.clone(),
            tunnel_address_problem: (self.model.tunnel_address().err())
                .or_else(|| self.model.vxlan_address(IpFamily::V4).err())
                .or_else(|| self.model.vxlan_address(IpFamily::V6).err())
                .or_else(|| self.observed.tunnel_address_problems.values().next().cloned()),
            collected: self.observed.gc.clone(),
            pools: blocks::pools(self),
            duplicates: blocks::duplicate_addresses(self),
            unreachable: self.observed.unreachable.iter().copied().collect(),
            host_problems: self.observed.host_problems.clone(),
            versions: self.observed.versions.clone(),
            node: self.model.node().to_owned(),
            route_exchange: RouteExchange::default(),
            rules_problem: self.enforcement.rules_problem.clone(),
            log_problem: None,
            cache_problem: self.observed.cache_problem.clone(),
            mtu_file_problem: self.observed.mtu_file_problem.clone(),
            thread_problems: self
                .observed
                .thread_problems
                .iter()
                .map(|(about, texts)| (about.clone().into_owned(), texts.clone()))
                .collect(),
            transient: self.recent_transient(now).map(|(ago, text)| (ago, text.clone())),
            notes: self.notes(now),
            policy: policy_status(self),
            pool_overlaps: pool_overlaps(&self.model),
            withheld_blocks: intent
                .map(|i| i.withheld_blocks.iter().map(|(block, why)| (*block, why.clone())).collect())
                .unwrap_or_default(),
            failed_endpoints: self
                .enforcement
                .failed()
                .iter()
                .map(|(key, why)| (self.model.name_of_endpoint(key), why.clone()))
                .collect(),
        }
    }

    /// Returns hints about routers by session; `learned` has the paths inside pools that they announce.
    pub(super) fn route_hints(&self, learned: &[(String, Vec<LearnedPath>)]) -> BTreeMap<String, Problem> {
        let Some(intent) = &self.intent else { return BTreeMap::new() };
        let hints = routing::import_pools_hints(&self.model, intent, learned);
        hints.iter().map(|(session, n)| ((*session).to_owned(), note(n))).collect()
    }

    fn notes(&self, now: Instant) -> Vec<Problem> {
        let mut notes: Vec<Problem> = self.intent.iter().flat_map(|i| i.notes.iter()).map(note).collect();
        if self.loaded() && self.model.pools().next().is_none() {
            let text = "no pool, so no workload can get an address: tortie ipam pool create CIDR creates one";
            notes.push(codes::NO_POOL.problem("", "addresses", text));
        }
        notes.extend(self.model.unread_names().take(UNREAD_MAX).map(|(key, names)| {
            let name = self.model.name_of(key);
            let text = format!("Tortie does not read {}: it may be misspelt", names.join(", "));
            codes::UNREAD.problem(&name, name.clone(), text).about(Subject::Key(key.to_string()))
        }));
        if self.model.unknown_keys() > 0 {
            let text = format!(
                "not in the data model: {}; `tortie store validate` lists them",
                counted(self.model.unknown_keys(), "key")
            );
            notes.push(codes::UNREAD.problem("", "keys", text));
        }
        if let Some((at, objects, first)) = &self.last_repair
            && now.saturating_duration_since(*at) < SHOWN_FOR
        {
            let ago = now.saturating_duration_since(*at).as_secs();
            let text = format!(
                "{objects} changed by another process {} ago and repaired, first: {first}",
                span(ago)
            );
            notes.push(codes::FOREIGN_CHANGES.problem("", "kernel", text));
        }
        let absent = self.absent_hosts();
        // Other agents of the lab may still be starting.
        if !absent.is_empty() && now.saturating_duration_since(self.started) > STARTUP_GRACE {
            let (shown, more) = absent.split_at(absent.len().min(5));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let text = format!(
                "no agent of this machine runs as {}{more}, and a SQLite store serves one machine only: use \
                 etcd for several (--datastore etcd://HOST:PORT)",
                shown.join(", ")
            );
            notes.push(codes::SQLITE_SERVES_ONE_MACHINE.problem("", "store", text));
        }
        notes
    }

    /// Returns mesh peers that have no agent on this SQLite store.
    fn absent_hosts(&self) -> Vec<String> {
        let Some(present) = &self.observed.present_hosts else { return Vec::new() };
        let wanted = self.intent.iter().flat_map(|i| i.peers.values());
        let mesh = wanted.filter(|p| p.kind == PeerKind::Mesh && !present.contains(&p.name));
        let mut absent: Vec<String> = mesh.map(|p| p.name.clone()).collect();
        absent.sort();
        absent.dedup();
        absent
    }

    fn peer_snapshots(&self, intent: &RoutingIntent, now: Instant) -> BTreeMap<String, PeerSnapshot> {
        let one = |session: &str, wanted: &PeerIntent| {
            (session.to_owned(), PeerSnapshot::of(wanted, self.peers.get(session), now))
        };
        let dynamic = self.observed.dynamic.values().filter_map(|peer| Some((peer, intent.dynamic(peer)?)));
        let dynamic = dynamic.map(|(peer, wanted)| one(&peer.name, &wanted));
        intent.peers.iter().map(|(session, wanted)| one(session, wanted)).chain(dynamic).collect()
    }
}

/// Returns the pools that overlap an address or a network of a host.
fn pool_overlaps(model: &Model) -> Vec<(Cidr, String)> {
    let pools: Vec<Cidr> = model.pools().map(|pool| *pool.key).collect();
    let hosts = HostNetwork::within(model, &pools);
    pools.into_iter().filter_map(|pool| Some((pool, pool_overlap(&pool, &hosts)?))).collect()
}

/// Returns rules and endpoints for `status`. Iterates over every endpoint of this host and every chain.
pub(super) fn policy_status(core: &Core) -> PolicyStatus {
    let enforcement = &core.enforcement;
    let mode = mode_name(enforcement.mode()).to_owned();
    let Some(policy) = enforcement.policy() else {
        return PolicyStatus { mode, in_sync: true, ..PolicyStatus::default() };
    };
    let ruleset = &policy.ruleset;
    let inactive =
        |policy: &&Arc<EndpointPolicy>| matches!(&***policy, EndpointPolicy::Workload(w) if !w.active);
    let sources: BTreeSet<&Source> = ruleset.chains.keys().map(|id| &id.source).collect();
    let profiles = sources.iter().filter(|source| matches!(source, Source::Profile(_))).count();
    PolicyStatus {
        mode,
        endpoints: ruleset.endpoints.len(),
        inactive: ruleset.endpoints.values().filter(inactive).count(),
        failed: enforcement.failed().len(),
        policies: sources.len() - profiles,
        profiles,
        rules: ruleset.chains.values().map(|chain| chain.rules.len()).sum(),
        sets: ruleset.sets.len(),
        in_sync: enforcement.acknowledged() >= enforcement.serial(),
        apply_micros: enforcement.micros(),
        table: None,
    }
}

/// Converts a note. Its next step comes from the list of codes; a test checks that the list has all notes.
fn note(note: &Note) -> Problem {
    Problem {
        code: note.code.to_owned(),
        subject: note.subject.clone(),
        text: note.text.clone(),
        next: codes::find(Kind::Note, note.code).map_or_else(String::new, |code| code.next(&note.subject)),
        about: Subject::Host,
        severity: Severity::Note,
    }
}
