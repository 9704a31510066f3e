//! Checkpoint: the state of a core at rest as a value, from which a journal of its inputs may begin.
//!
//! Saves all state that does not follow from the store's entries, and restores a core from it together with
//! the entries. Model, routing and policy are computed again: an incremental result equals one from scratch.
//! Metrics counters and timings, and the texts of the flight recorder, are not included, since no decision
//! depends on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tortie_bgp::State;
use tortie_config::Dialect;
use tortie_net::Cidr;

use super::enforcement::EnforcementCheckpoint;
use super::input::Now;
use super::observed_state::ObservedState;
use super::options::CoreOptions;
use super::peer_record::{EndedSession, PeerRecord};
use super::recorder::Recorder;
use super::store_link::StoreLink;
use super::store_link::change_revisions::ChangeRevisions;
use super::store_link::watch_scope::WatchScope;
use super::{Core, Phase};
use tortie_engine::model::{Guard, Model, ModelChanges, WatchPart};
use tortie_engine::routing::{ChangeId, ChangeIds, LiveMigrations, MigrationCheckpoint, Planner};
use tortie_store::{Change, Delta, KeyValue, Snapshot};

/// The store's entries at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Entries {
    /// One entry per key: the last readable value if there is one, else the current value.
    pub(in crate::agent) good: Vec<KeyValue>,
    /// Current values that cannot be read, for keys whose earlier value is still in use.
    pub(in crate::agent) unreadable: Vec<KeyValue>,
}

/// State of a core at rest without the store's entries. Times are relative to the start of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Checkpoint {
    running: bool,
    generation: u64,
    acknowledged: u64,
    block_changes: BTreeMap<Cidr, ChangeId>,
    revisions: ChangeRevisions,
    in_force: u64,
    blackholes: BTreeSet<Cidr>,
    refused: BTreeMap<Cidr, String>,
    enforcement: EnforcementCheckpoint,
    #[serde(default)]
    migrations: MigrationCheckpoint,
    guard: Guard,
    scope: BTreeSet<String>,
    listed: u64,
    trusted: (u64, u64),
    keys: usize,
    store_id: String,
    /// Store from which the blocks were listed; `None` in a checkpoint of an older version.
    #[serde(default)]
    blocks_store_id: Option<String>,
    #[serde(default)]
    dialect: Dialect,
    link: LinkCheckpoint,
    next_change: ChangeIds,
    next_entry: u64,
    peers: BTreeMap<Arc<str>, PeerCheckpoint>,
    observed: ObservedState,
    transient: Option<(Duration, String)>,
    repaired: Option<(Duration, usize, String)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LinkCheckpoint {
    connected: bool,
    away: Option<String>,
    fresh: Duration,
    revision: u64,
    restarts: u64,
    snapshots: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PeerCheckpoint {
    state: Option<State>,
    since: Option<Duration>,
    error: Option<String>,
    ended: Option<EndedSession>,
    down_since: Option<Duration>,
    missed: bool,
}

/// Saves the core's state; `None` if it is not at rest. A core is at rest when everything read has been
/// applied.
pub(in crate::agent) fn take(core: &Core) -> Option<Checkpoint> {
    // Names every field, so that a new one cannot be forgotten.
    let Core {
        node: _,
        model,
        started,
        phase,
        planner: _,
        intent: _,
        generation,
        acknowledged,
        block_changes,
        revisions,
        in_force,
        blackholes,
        refused_blackholes,
        observes: _,
        data_model: _,
        kernel_writes: _,
        enforcement,
        migrations,
        routes_sent,
        frozen,
        guard,
        pending,
        scope,
        cached,
        link,
        counters: _,
        object_counts: _,
        now: _,
        pending_since,
        changes,
        recorder,
        peers,
        observed,
        transient,
        last_repair,
        effects,
    } = core;
    let StoreLink {
        connected,
        unreachable_reason,
        from_cache,
        fresh,
        revision,
        restarts,
        snapshots,
        generation: listed,
        keys,
        trusted,
    } = link;
    let rests = *phase != Phase::Loading
        && frozen.is_none()
        && *pending == ModelChanges::default()
        && scope.is_read()
        && scope.are_blocks_read()
        && cached.is_none()
        && pending_since.is_none()
        && !from_cache
        && routes_sent.is_none()
        && effects.is_empty();
    if !rests {
        return None;
    }
    let after = |at: &Instant| at.saturating_duration_since(*started);
    let peer = |record: &PeerRecord| PeerCheckpoint {
        state: record.state,
        since: record.since.as_ref().map(after),
        error: record.error.clone(),
        ended: record.ended.clone(),
        down_since: record.down_since.as_ref().map(after),
        missed: record.missed,
    };
    Some(Checkpoint {
        running: *phase == Phase::Running,
        generation: *generation,
        acknowledged: *acknowledged,
        block_changes: block_changes.clone(),
        revisions: revisions.clone(),
        in_force: *in_force,
        blackholes: blackholes.clone(),
        refused: refused_blackholes.clone(),
        enforcement: enforcement.checkpoint(after),
        migrations: migrations.checkpoint(after),
        guard: guard.clone(),
        scope: scope.watched().clone(),
        listed: *listed,
        trusted: *trusted,
        keys: *keys,
        store_id: model.store_id().to_owned(),
        blocks_store_id: Some(model.blocks_store_id().to_owned()),
        dialect: model.dialect(),
        link: LinkCheckpoint {
            connected: *connected,
            away: unreachable_reason.clone(),
            fresh: after(fresh),
            revision: *revision,
            restarts: *restarts,
            snapshots: *snapshots,
        },
        next_change: changes.clone(),
        next_entry: recorder.next_number(),
        peers: peers.iter().map(|(name, record)| (Arc::clone(name), peer(record))).collect(),
        observed: observed.clone(),
        transient: transient.as_ref().map(|(at, text)| (after(at), text.clone())),
        repaired: last_repair.as_ref().map(|(at, objects, first)| (after(at), *objects, first.clone())),
    })
}

/// Restores the core that [`take`] saved. `started` is the start of the agent by the caller's clock.
pub(in crate::agent) fn restore(
    options: &CoreOptions,
    started: Instant,
    now: Now,
    checkpoint: Checkpoint,
    entries: Entries,
) -> Core {
    let mut core = Core::new(options, now);
    let at = |after: Duration| started + after;
    let model = model(&options.name, &checkpoint, entries);
    let node = checkpoint.observed.node_options(&options.node, options.kernel_writes);
    let migrations = LiveMigrations::restore(&model, checkpoint.migrations, now.mono, at);
    let mut planner = Planner::new(&model, node);
    planner.reroute(migrations.routings());
    planner.update(&model, &ModelChanges::default());
    core.intent = Some(Arc::new(planner.intent().clone()));
    core.planner = Some(planner);
    core.enforcement.restore(checkpoint.enforcement, &model, &migrations, at);
    core.migrations = migrations;
    core.model = Arc::new(model);
    core.started = started;
    core.phase = if checkpoint.running { Phase::Running } else { Phase::Loaded };
    core.generation = checkpoint.generation;
    core.acknowledged = checkpoint.acknowledged;
    core.block_changes = checkpoint.block_changes;
    core.revisions = checkpoint.revisions;
    core.in_force = checkpoint.in_force;
    core.blackholes = checkpoint.blackholes;
    core.refused_blackholes = checkpoint.refused;
    core.guard = checkpoint.guard;
    core.pending = ModelChanges::default();
    core.scope = WatchScope::read(checkpoint.scope);
    core.link = StoreLink {
        connected: checkpoint.link.connected,
        unreachable_reason: checkpoint.link.away,
        from_cache: false,
        fresh: at(checkpoint.link.fresh),
        revision: checkpoint.link.revision,
        restarts: checkpoint.link.restarts,
        snapshots: checkpoint.link.snapshots,
        generation: checkpoint.listed,
        keys: checkpoint.keys,
        trusted: checkpoint.trusted,
    };
    core.changes = checkpoint.next_change;
    core.recorder = Recorder::counting_from(checkpoint.next_entry);
    core.peers = checkpoint
        .peers
        .into_iter()
        .map(|(name, peer)| {
            let record = PeerRecord {
                state: peer.state,
                since: peer.since.map(at),
                error: peer.error,
                ended: peer.ended,
                down_since: peer.down_since.map(at),
                missed: peer.missed,
                ..PeerRecord::default()
            };
            (name, record)
        })
        .collect();
    core.observed = checkpoint.observed;
    core.transient = checkpoint.transient.map(|(after, text)| (at(after), text));
    core.last_repair = checkpoint.repaired.map(|(after, objects, first)| (at(after), objects, first));
    core
}

/// Builds the model from these entries. Unreadable values are applied after the readable values that they
/// leave in use.
fn model(name: &str, checkpoint: &Checkpoint, entries: Entries) -> Model {
    let mut model = Model::new(name);
    model.set_dialect(checkpoint.dialect);
    let revision = checkpoint.link.revision;
    let whole = Snapshot {
        revision,
        store_id: checkpoint.store_id.clone(),
        entries: entries.good,
        ..Snapshot::default()
    };
    match &checkpoint.blocks_store_id {
        // Restores the origin of the blocks, by which a later list decides about reading them again.
        Some(blocks) => {
            model.replace(WatchPart::Main, &whole);
            model.replace(WatchPart::Blocks, &Snapshot { store_id: blocks.clone(), ..whole });
        }
        None => drop(model.replace(WatchPart::All, &whole)),
    }
    let changes = entries.unreadable.into_iter().map(Change::Put).collect();
    model.apply_unreadable(&Delta { revision, changes });
    model
}
