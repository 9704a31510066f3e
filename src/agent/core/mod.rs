//! The core: sole owner of the model. [`Core::handle`] takes an input with its time and returns effects; it
//! reads no clock, writes no log and sends no messages.
//!
//! The core decides when an action may start. Nothing is sent to the speaker or the kernel before the first
//! complete snapshot. A block is announced only once its blackhole route is in the kernel. A freeze stops
//! everything but reading.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use tortie_config::Dialect;
use tortie_config::key::Key;
use tortie_net::Cidr;

use crate::agent::core::counters::CoreCounters;
use crate::agent::core::effect::Effect;
use crate::agent::core::enforcement::Enforcement;
use crate::agent::core::input::{Input, Now, Timing};
use crate::agent::core::observed_state::ObservedState;
use crate::agent::core::options::CoreOptions;
use crate::agent::core::peer_record::PeerRecord;
use crate::agent::core::recorder::{Plane, Recorder};
use crate::agent::core::store_link::StoreLink;
use crate::agent::core::store_link::change_revisions::ChangeRevisions;
use crate::agent::core::store_link::watch_scope::WatchScope;
use tortie_engine::model::{
    Freeze, Guard, Model, ModelChanges, ObjectCounts, Unexplained, WatchPart, host_of_affinities,
};
use tortie_engine::routing::{
    ChangeId, ChangeIds, LiveMigrations, NodeOptions, Planner, RoutingIntent, Transition,
};
use tortie_kernel::{KernelIntent, Mode};
use tortie_store::{Cached, Change, DataModel, Delta, FeedEvent, Snapshot, StoreError};

/// Phase of the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No snapshot has been read.
    Loading,
    /// The snapshot was read, the kernel has not been dumped.
    Loaded,
    /// The kernel has answered its first intent; routes are exchanged.
    Running,
}

pub(super) struct Core {
    node: NodeOptions,
    /// Shared with readers on other threads; a change copies it while one of them holds it.
    model: Arc<Model>,
    started: Instant,
    phase: Phase,
    planner: Option<Planner>,
    intent: Option<Arc<RoutingIntent>>,
    /// Generation of the last intent that was sent to the kernel thread.
    generation: u64,
    acknowledged: u64,
    /// Intended blackholes, each with the change that added it.
    block_changes: BTreeMap<Cidr, ChangeId>,
    revisions: ChangeRevisions,
    /// Store revision from which the newest intent was computed.
    in_force: u64,
    blackholes: BTreeSet<Cidr>,
    refused_blackholes: BTreeMap<Cidr, String>,
    observes: bool,
    data_model: DataModel,
    kernel_writes: bool,
    enforcement: Enforcement,
    migrations: LiveMigrations,
    /// Number of the policy change with routes that must be in the kernel before they are announced.
    routes_sent: Option<u64>,
    frozen: Option<Freeze>,
    guard: Guard,
    /// Changes that were read but not acted on yet.
    pending: ModelChanges,
    scope: WatchScope,
    cached: Option<Arc<Model>>,
    link: StoreLink,
    counters: CoreCounters,
    /// Object counts for metrics, and the revision at which they were counted.
    object_counts: std::cell::Cell<(u64, object_counts::ObjectCounts)>,
    /// Time of the current input.
    now: Now,
    /// Receive time of the first pending change.
    pending_since: Option<Instant>,
    changes: ChangeIds,
    recorder: Recorder,
    peers: HashMap<Arc<str>, PeerRecord>,
    observed: ObservedState,
    /// Last transient problem.
    transient: Option<(Instant, String)>,
    /// Last repair after another process changed Tortie's objects: number of objects, description of the
    /// first.
    last_repair: Option<(Instant, usize, String)>,
    effects: Vec<Effect>,
}

impl Core {
    pub(super) fn new(options: &CoreOptions, now: Now) -> Self {
        let CoreOptions { name, node, observes, data_model, kernel_writes, policy } = options.clone();
        let model = Arc::new(Model::new(&name));
        Self {
            node,
            model,
            started: now.mono,
            phase: Phase::Loading,
            planner: None,
            intent: None,
            generation: 0,
            acknowledged: 0,
            block_changes: BTreeMap::new(),
            revisions: ChangeRevisions::default(),
            in_force: 0,
            blackholes: BTreeSet::new(),
            refused_blackholes: BTreeMap::new(),
            observes,
            data_model,
            kernel_writes,
            enforcement: Enforcement::new(policy),
            migrations: LiveMigrations::default(),
            routes_sent: None,
            frozen: None,
            guard: Guard::new(observes),
            pending: ModelChanges::everything(),
            scope: WatchScope::default(),
            cached: None,
            link: StoreLink::new(now.mono),
            counters: CoreCounters::default(),
            object_counts: Default::default(),
            now,
            pending_since: None,
            changes: ChangeIds::of_core(),
            // In microseconds since 1970, more than an earlier run can have counted up to.
            recorder: Recorder::counting_from(u64::try_from(now.wall.as_microsecond()).unwrap_or_default()),
            peers: HashMap::new(),
            observed: ObservedState::default(),
            transient: None,
            last_repair: None,
            effects: Vec::new(),
        }
    }

    pub(super) fn loaded(&self) -> bool {
        self.phase != Phase::Loading
    }

    pub(super) fn running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// True if the kernel has acknowledged the whole intent.
    pub(super) fn settled(&self) -> bool {
        self.running() && self.acknowledged == self.generation
    }

    /// Processes one input; the caller carries out the returned effects in order.
    pub(super) fn handle(&mut self, input: Input, now: Now) -> Vec<Effect> {
        self.now = now;
        match input {
            Input::Feed(event) => self.on_feed_event(event),
            Input::FeedIdle => self.act_on_pending(),
            Input::StoreTimeout => self.use_cache(),
            Input::Attached(routes) => {
                self.migrations.set_attached(routes.clone());
                self.observed.attached = routes;
            }
            Input::MigrationsDue => {
                if self.migrations.expire(now.mono) {
                    self.follow_migrations();
                }
            }
            Input::Twin(machine) => {
                self.guard.set_twin(machine);
                self.act_on_pending();
            }
            Input::Accept => self.accept_store(),
            Input::Kernel(fact) => self.on_kernel_fact(fact),
            Input::Speaker(fact) => self.on_speaker_fact(fact),
            Input::NoSessions => self.observed.restart_done = true,
            Input::TunnelAddress(outcome) => self.on_tunnel_address(outcome),
            Input::IpamGc(outcome) => self.record_gc_pass(outcome),
            Input::PoolUsage(usage) => self.observed.pool_usage = usage,
            Input::MtuFile(problem) => self.observed.mtu_file_problem = problem,
            Input::HostChecks(problems) => self.observed.host_problems = problems,
            Input::Hosts { hosts, one_machine } => {
                if one_machine {
                    self.observed.present_hosts =
                        Some(hosts.iter().map(|status| status.node.clone()).collect());
                }
                self.observed.versions = hosts;
            }
        }
        self.effects.extend(self.recorder.take_new().map(Effect::Recorded));
        std::mem::take(&mut self.effects)
    }

    /// Records a measured duration.
    pub(super) fn time(&mut self, timing: Timing) {
        self.counters.time(timing);
    }

    /// Keeps the cached snapshot from disk, for a store that is unreachable or has lost data.
    fn on_cache(&mut self, cached: &Cached) {
        let snapshot = &cached.snapshot;
        // The store may be unreachable, so the entries themselves decide.
        let dialect = self.data_model.dialect_of(snapshot.entries.iter().map(|kv| &*kv.key));
        let model = Arc::make_mut(&mut self.model);
        model.set_dialect(dialect);
        model.restore(cached);
        self.guard.after_replace(self.model.object_counts(), &self.model, &snapshot.store_id);
        self.cached = Some(Arc::clone(&self.model));
        self.observed.cache_of = host_of_affinities(snapshot.entries.iter().map(|kv| &*kv.key));
        self.link.revision = snapshot.revision;
    }

    /// Continues with the cached snapshot, if there is one, since the store did not answer in time.
    fn use_cache(&mut self) {
        if self.loaded() || self.frozen.as_ref().is_some_and(|freeze| !freeze.cache_counts) {
            return;
        }
        let Some(cached) = self.cached.take() else { return };
        if let Some(renamed @ Unexplained::Renamed { .. }) = self.unexplained_in(&cached) {
            // The cache on disk belongs to another host.
            self.guard.set_attached(Some(renamed));
            self.cached = Some(cached);
            self.freeze(self.guard.frozen(&self.model));
            return;
        }
        self.log_and_record(
            ChangeId::default(),
            Plane::Store,
            '!',
            "store",
            "unreachable: running from the cache on disk",
        );
        self.link.from_cache = true;
        let followed = std::mem::replace(&mut self.model, cached);
        self.apply_changes(&ModelChanges::everything());
        self.model = followed;
    }

    /// Processes a feed event; [`Core::act_on_pending`] acts on it after a run of events.
    fn on_feed_event(&mut self, event: FeedEvent) {
        let now = self.now.mono;
        self.pending_since.get_or_insert(now);
        match event {
            FeedEvent::Cached(cached) => self.on_cache(&cached),
            FeedEvent::Calico3(found) => {
                self.observed.calico_3 = found;
                self.guard.set_dialect(if found { Dialect::V3 } else { Dialect::V1 });
            }
            FeedEvent::PutBack(proof) => {
                Arc::make_mut(&mut self.model).forget_revisions();
                self.guard.set_put_back(proof);
            }
            FeedEvent::Snapshot { snapshot, generation } => {
                self.link.confirm_revision(snapshot.revision, now);
                self.on_snapshot(&snapshot, generation);
            }
            FeedEvent::Added { prefixes, snapshot } => {
                self.link.confirm_revision(snapshot.revision, now);
                self.on_added_prefixes(&prefixes, snapshot);
            }
            FeedEvent::Delta(delta) => {
                self.link.confirm_revision(delta.revision, now);
                self.on_delta(&delta);
            }
            FeedEvent::Progress(revision) => self.link.confirm_revision(revision, now),
            FeedEvent::Unreachable { reason, .. } => {
                let damaged = matches!(reason, StoreError::Damaged(_));
                let found = damaged && !std::mem::replace(&mut self.observed.store_damaged, damaged);
                if found || self.link.unreachable_reason.is_none() {
                    self.log_and_record(ChangeId::default(), Plane::Store, '!', "store", &reason.to_string());
                }
                if self.link.on_unreachable(reason.to_string()) {
                    *self.counters.restarts.entry("disconnected").or_default() += 1;
                }
            }
            FeedEvent::CacheProblem(problem) => self.observed.cache_problem = problem,
            FeedEvent::Reconnected => {
                self.observed.store_damaged = false;
                if self.link.unreachable_reason.take().is_some() {
                    self.log_and_record(ChangeId::default(), Plane::Store, '~', "store", "answers again");
                }
                self.link.connected = true;
            }
        }
    }

    fn on_snapshot(&mut self, snapshot: &Snapshot, generation: u64) {
        // A list without a lost connection: the history that the watch needs was compacted.
        if self.link.snapshots > 0 && self.link.unreachable_reason.is_none() {
            *self.counters.restarts.entry("compacted").or_default() += 1;
        }
        let mut before = self.model.object_counts();
        let dialect = if self.observed.calico_3 { Dialect::V3 } else { Dialect::V1 };
        if self.model.dialect() != dialect {
            // The entries of the other data model are no reference for a loss.
            before = ObjectCounts::default();
            Arc::make_mut(&mut self.model).set_dialect(dialect);
            // Routes are decided by other rules, even if no entry differs.
            self.pending.merge(ModelChanges { originated: true, filters: true, ..ModelChanges::default() });
        }
        let mut changes = Arc::make_mut(&mut self.model).replace(WatchPart::Main, snapshot);
        // The first list after a start precedes the own affinities, so it has no blocks.
        if self.scope.are_blocks_read() {
            changes.merge(Arc::make_mut(&mut self.model).replace(WatchPart::Blocks, snapshot));
        }
        self.guard.after_replace(before, &self.model, &snapshot.store_id);
        self.link.on_snapshot(snapshot, generation);
        self.pending.merge(changes);
        self.scope.on_snapshot();
        self.update_watch_scope();
    }

    /// Applies the content of newly watched keys, including the absence of some of them.
    fn on_added_prefixes(&mut self, prefixes: &[String], snapshot: Snapshot) {
        let mut changes: Vec<Change> = prefixes
            .iter()
            .filter(|key| !key.ends_with('/') && snapshot.entries.iter().all(|kv| kv.key != **key))
            .map(|key| Change::Delete { key: key.clone() })
            .collect();
        changes.extend(snapshot.entries.into_iter().map(Change::Put));
        self.scope.on_added_prefixes(prefixes);
        self.on_delta(&Delta { revision: snapshot.revision, changes });
    }

    /// Extends the watch to the blocks that the own affinities name, or to all for a pool whose routes come
    /// from the store.
    fn update_watch_scope(&mut self) {
        if !self.scope.is_main_read() {
            return;
        }
        if let Some(keys) = self.scope.extend(self.model.block_scope().into_iter().collect()) {
            self.effects.push(Effect::Scope(keys));
        }
    }

    fn on_delta(&mut self, delta: &Delta) {
        let changes = Arc::make_mut(&mut self.model).apply(delta);
        for change in &delta.changes {
            let of = match change {
                _ if changes.is_clean() => "unchanged",
                Change::Put(_) => "put",
                Change::Delete { .. } => "delete",
            };
            *self.counters.events.entry((of, counters::kind(change.key()))).or_default() += 1;
        }
        if changes.settings {
            let broken = self.model.invalid_keys().any(|problem| counters::kind(&problem.key) == "config");
            let [taken, refused] = &mut self.counters.reloads;
            *if broken { refused } else { taken } += 1;
        }
        self.guard.after_delta(&self.model);
        let scope = changes.affinities || changes.pools || changes.settings;
        self.pending.merge(changes);
        if scope {
            self.update_watch_scope();
        }
    }

    /// Acts on the pending changes unless the guard freezes the core. Called once after a run of deltas.
    fn act_on_pending(&mut self) {
        if !self.scope.is_read() {
            return;
        }
        let pending_since = self.pending_since.take();
        self.explain_attached();
        let frozen = self.guard.frozen(&self.model);
        if self.pending.is_clean() && self.frozen.is_none() && frozen.is_none() && self.loaded() {
            self.pending.keys.clear();
            self.pending.objects.clear();
            self.trust_snapshot();
            return;
        }
        match frozen {
            Some(freeze) => {
                self.create_cluster(&freeze);
                self.freeze(Some(freeze));
                if !self.loaded() {
                    self.use_cache();
                }
            }
            None => {
                if self.frozen.take().is_some() {
                    self.log_and_record(
                        ChangeId::default(),
                        Plane::Agent,
                        '~',
                        "frozen",
                        "ended: the agent follows the store again",
                    );
                }
                let changes = std::mem::take(&mut self.pending);
                self.cached = None;
                self.link.from_cache = false;
                self.pending_since = pending_since;
                self.apply_changes(&changes);
                self.pending_since = None;
                self.trust_snapshot();
            }
        }
    }

    /// Lets the agent create what says that the store is ready, if it starts on a Calico 3 store without it.
    /// If the cache had it, it was lost.
    fn create_cluster(&mut self, freeze: &Freeze) {
        let is_lacking = freeze.code == "not-ready" && self.model.lacks_cluster();
        let was_there = self.cached.as_ref().is_some_and(|cached| !cached.lacks_cluster());
        if is_lacking && !was_there && self.kernel_writes && !self.loaded() {
            self.effects.push(Effect::CreateCluster);
        }
    }

    /// Marks everything that was read as applied, and confirms the snapshot.
    fn trust_snapshot(&mut self) {
        self.in_force = self.link.revision;
        if let Some((generation, revision)) = self.link.trust() {
            self.effects.push(Effect::Trust(generation, revision));
        }
    }

    fn apply_changes(&mut self, changes: &ModelChanges) {
        let revision = self.link.revision;
        let first = self.phase == Phase::Loading;
        if first {
            self.phase = Phase::Loaded;
            self.effects.push(Effect::Loaded);
        }
        self.report_unreadable(changes, first);
        self.migrations.update(&self.model, changes, self.now.mono);
        self.record_migrations();
        let routed = self.recompute(changes, revision);
        self.update_policy(changes, routed, revision);
        self.in_force = revision;
        self.effects.push(Effect::Logs);
    }

    /// Assigns a new change id to the change that these keys caused.
    pub(super) fn begin_change(&mut self, changes: &ModelChanges, revision: u64) -> ChangeId {
        let change = self.changes.next_id();
        self.record_keys(changes, change);
        self.revisions.push(change, revision);
        change
    }

    /// Recomputes the routing intent; `None` if it does not change.
    fn recompute(&mut self, changes: &ModelChanges, revision: u64) -> Option<ChangeId> {
        let routings = self.migrations.routings();
        let (planner, for_kernel) = match &mut self.planner {
            Some(planner) => {
                let appears = planner.reroute(routings);
                // A workload that has just arrived is not announced before packets reach it.
                if appears && self.phase == Phase::Running && self.enforcement.mode() != Mode::Off {
                    self.routes_sent = Some(self.enforcement.serial() + 1);
                }
                let changed = planner.update(&self.model, changes);
                if changed.is_empty() {
                    return None;
                }
                (
                    planner,
                    changed.blackholes
                        || changed.tunnel
                        || changed.vxlan
                        || changed.store_routes
                        || changed.view,
                )
            }
            none => {
                let node = self.observed.node_options(&self.node, self.kernel_writes);
                let planner = none.insert(Planner::new(&self.model, node));
                planner.reroute(routings);
                planner.update(&self.model, &ModelChanges::default());
                (planner, true)
            }
        };
        let intent = Arc::new(planner.intent().clone());
        let change = self.begin_change(changes, revision);
        self.record_intent(&intent, change, revision);
        self.effects.push(Effect::Routing(Arc::clone(&intent)));
        // Endpoints change by the hundred and peers by the thousand; the kernel thread's intent contains
        // neither.
        if for_kernel {
            self.send_kernel_intent(&intent, change);
        }
        self.intent = Some(intent);
        self.send_speaker_intent(change);
        Some(change)
    }

    fn send_kernel_intent(&mut self, intent: &RoutingIntent, change: ChangeId) {
        // A block keeps the id of the change that added it.
        let before = std::mem::take(&mut self.block_changes);
        let change_of = |block: &Cidr| before.get(block).copied().unwrap_or(change);
        self.block_changes = intent.blackholes.iter().map(|b| (*b, change_of(b))).collect();
        self.generation += 1;
        self.counters.intent_sent(self.generation, self.pending_since.unwrap_or(self.now.mono));
        self.effects.push(Effect::Kernel(Arc::new(KernelIntent {
            generation: self.generation,
            change,
            blackholes: self.block_changes.clone(),
            tunnel: intent.tunnel.clone(),
            vxlan: Arc::clone(&intent.vxlan),
            store_routes: Arc::clone(&intent.store_routes),
            view: Arc::clone(&intent.view),
        })));
    }

    /// Sends the intent to the speaker, without blocks whose blackhole the kernel has not acknowledged. Waits for
    /// the acknowledgement of routes to workloads that have just arrived.
    pub(super) fn send_speaker_intent(&mut self, change: ChangeId) {
        let Some(intent) = &self.intent else { return };
        if self.phase != Phase::Running || self.routes_sent.is_some() {
            return;
        }
        let held: Vec<Cidr> = if self.kernel_writes {
            intent.blackholes.difference(&self.blackholes).copied().collect()
        } else {
            Vec::new()
        };
        let mut intent = Arc::clone(intent);
        if !held.is_empty() {
            let partial = Arc::make_mut(&mut intent);
            for block in held {
                partial.originated.remove(&block);
            }
        }
        self.effects.push(Effect::Speaker(intent, change));
    }

    /// Acts on changed states of live migrations.
    pub(super) fn follow_migrations(&mut self) {
        self.pending.migrations = true;
        self.act_on_pending();
    }

    /// Returns the time at which [`Input::MigrationsDue`] is due.
    pub(super) fn migrations_due(&self) -> Option<Instant> {
        self.migrations.deadline()
    }

    fn record_migrations(&mut self) {
        for Transition { endpoint, state } in self.migrations.take_transitions() {
            let subject = Key::Endpoint(endpoint).to_string();
            self.log_and_record(ChangeId::default(), Plane::Policy, '~', &subject, state.as_str());
        }
    }

    /// Returns the id of the last change that resulted from store events.
    pub(super) fn last_change(&self) -> Option<ChangeId> {
        self.revisions.last()
    }
}

pub(super) mod applied;
pub(super) mod checkpoint;
pub(super) mod counters;
pub(super) mod effect;
pub(super) mod enforcement;
pub(super) mod facts;
pub(super) mod input;
pub(super) mod object_counts;
pub(super) mod observed_state;
pub(super) mod options;
pub(super) mod peer_record;
pub(super) mod recorder;
pub(super) mod snapshot;
mod store_link;
#[cfg(test)]
mod tests;
pub(super) mod view;
