//! Controller of the host's status key: leased and small, written at most every 10 s on change, else every 5
//! minutes.
//!
//! Absence of the key means that no agent runs on the host. The key also protects the host's name and
//! addresses: it names the machine, and an agent on another machine does not overwrite it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::key::Key;

use super::life_cycle::{Context, Controller, ControllerHandle, Report, Wake};
use crate::agent::core::input::Input;
use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::health::problems;
use crate::agent::time::now_text;
use crate::api::machine::Machine;
use crate::api::nodes::{NodeStatus, SCHEMA};
use crate::api::status::UpCount;
use tortie_engine::routing::RoutingIntent;
use tortie_store::{Compare, LeaseId, Op, Outcome, Revision, Store, StoreError, Txn};

/// Time to live of the lease after its last renewal.
const TTL: Duration = Duration::from_secs(60);
/// Interval of lease renewals.
const LEASE_RENEWAL: Duration = Duration::from_secs(20);
/// Minimum interval between writes on change.
const INTERVAL_ON_CHANGE: Duration = Duration::from_secs(10);
/// Interval of writes without a change.
const INTERVAL_IDLE: Duration = Duration::from_secs(300);
/// Delay of the next write after a failed one.
const RETRY: Duration = Duration::from_secs(5);

/// Builds the value of the status key from a snapshot of the core; kernel drift is not part of it.
pub(in crate::agent) fn build_node_status(
    facts: &CoreSnapshot,
    intent: Option<&RoutingIntent>,
    node: &str,
    ready: bool,
) -> NodeStatus {
    let problems = problems::problems(facts, None);
    let (verdict, _) = problems::verdict(facts, intent, ready, &problems);
    let mut codes: Vec<String> = problems.into_iter().map(|problem| problem.code).collect();
    codes.dedup();
    let of = |mesh: bool| {
        let peers = facts.peers.values().filter(|p| p.kind != "dynamic" && (p.kind == "mesh") == mesh);
        let mut sum = UpCount::default();
        for peer in peers {
            sum.of += 1;
            sum.up += usize::from(peer.up);
        }
        sum
    };
    let (mesh, peers) = (of(true), of(false));
    let mut status = NodeStatus {
        node: node.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema: SCHEMA,
        ready,
        verdict: verdict.to_owned(),
        sessions: UpCount { up: mesh.up + peers.up, of: mesh.of + peers.of },
        mesh,
        peers,
        blocks: intent.map_or(0, |intent| intent.view.own_blocks.len()),
        endpoints: facts.policy.endpoints,
        problems: codes,
        revision: facts.revision,
        ..NodeStatus::default()
    };
    status.set_down(facts.peers.values().filter(|p| p.is_missing()).map(|p| p.name.clone()));
    status
}

/// Writes the status key.
pub(in crate::agent) struct NodeStatusController {
    store: Arc<dyn Store>,
    key: String,
    machine: Machine,
    report: Report,
}

/// Lease and revision of the key as last written.
#[derive(Default)]
struct Written {
    lease: Option<LeaseId>,
    /// Revision of the last write; `None` if another writer may have written the key since.
    revision: Option<Revision>,
}

/// Reason why the key was not written.
enum NotWritten {
    Store(StoreError),
    /// Another machine holds the key; description of that machine.
    Twin(String),
}

impl From<StoreError> for NotWritten {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl NodeStatusController {
    pub(super) fn new(store: Arc<dyn Store>, node: &str, machine: &Machine, report: Report) -> Self {
        let key = Key::TortieStatus { host: node.to_owned() }.to_string();
        Self { store, key, machine: machine.clone(), report }
    }

    /// Writes the key, unless another machine has written it since.
    async fn write(&self, status: &NodeStatus, written: &mut Written) -> Result<(), NotWritten> {
        let id = match written.lease {
            Some(id) => id,
            None => self.store.grant(TTL).await?,
        };
        written.lease = Some(id);
        let value = serde_json::to_vec(status).map_err(|error| StoreError::Refused(error.to_string()))?;
        // The second attempt follows a concurrent write.
        for _ in 0..2 {
            let compare = match written.revision {
                Some(revision) => Compare::ModRevision(self.key.clone(), revision),
                None => match self.store.get(&self.key).await? {
                    None => Compare::Absent(self.key.clone()),
                    Some(found) => {
                        match NodeStatus::read(&found).and_then(|status| status.twin_of(&self.machine)) {
                            Some(twin) => return Err(NotWritten::Twin(twin)),
                            None => Compare::ModRevision(self.key.clone(), found.mod_revision),
                        }
                    }
                },
            };
            let op = Op::Put { key: self.key.clone(), value: value.clone(), lease: Some(id) };
            match self.store.commit(Txn { compare: vec![compare], ops: vec![op] }).await? {
                Outcome::Committed(revision) => {
                    *written = Written { lease: Some(id), revision: Some(revision) };
                    return Ok(());
                }
                Outcome::Conflict => written.revision = None,
            }
        }
        Err(StoreError::Unreachable("other processes write the same key all the time".to_owned()).into())
    }
}

impl Controller for NodeStatusController {
    type Desired = NodeStatus;
    const WRITES: bool = true;

    fn desired(context: &Context<'_>) -> Option<NodeStatus> {
        context.node_status.clone()
    }

    fn is_significant(old: &NodeStatus, new: &NodeStatus) -> bool {
        new.is_significant_change(old)
    }

    async fn run(self, mut handle: ControllerHandle<NodeStatus>) {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut own = Written::default();
        let mut has_twin = false;
        let mut written: Option<Instant> = None;
        let mut renew = tokio::time::interval(LEASE_RENEWAL);
        renew.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let status = handle.desired();
            let mut pause = INTERVAL_IDLE;
            // The key is first written when there are peers or the agent is ready.
            if status.sessions.of > 0 || status.ready || written.is_some() || has_twin {
                let (time, boot) = (now_text(), boot.trim().to_owned());
                let status = NodeStatus { time, boot, machine: Some(self.machine.clone()), ..status };
                match self.write(&status, &mut own).await {
                    Ok(()) => {
                        written = Some(Instant::now());
                        if std::mem::take(&mut has_twin) {
                            (self.report)(Input::Twin(None));
                        }
                    }
                    Err(NotWritten::Store(error)) => {
                        tracing::debug!(target: "tortie", "the status key is not written: {error}");
                        own = Written::default();
                        pause = RETRY;
                    }
                    Err(NotWritten::Twin(twin)) => {
                        pause = RETRY;
                        if !std::mem::replace(&mut has_twin, true) {
                            (self.report)(Input::Twin(Some(twin)));
                        }
                    }
                }
            }
            let next = tokio::time::sleep(pause);
            tokio::pin!(next);
            let mut changed = false;
            loop {
                let mut write_due = false;
                let due = async {
                    tokio::select! {
                        _ = renew.tick() => {}
                        () = &mut next => write_due = true,
                    }
                };
                match handle.wait(due).await {
                    Wake::Stopped => {
                        if let Some(lease) = own.lease {
                            let _ = self.store.revoke(lease).await;
                        }
                        return;
                    }
                    Wake::Changed if changed => {}
                    Wake::Changed => {
                        changed = true;
                        let since = written.map_or(INTERVAL_ON_CHANGE, |at| at.elapsed());
                        let wait = INTERVAL_ON_CHANGE.saturating_sub(since).max(Duration::from_millis(200));
                        next.as_mut().reset(tokio::time::Instant::now() + wait);
                    }
                    Wake::Due if write_due => break,
                    Wake::Due => {
                        if let Some(id) = own.lease
                            && !matches!(self.store.keep_alive(id).await, Ok(true))
                        {
                            own = Written::default();
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::controllers::life_cycle::RunningController;
    use tortie_store::sqlite::SqliteStore;

    fn running(store: &Arc<dyn Store>) -> RunningController<NodeStatusController> {
        let machine = Machine { id: "a1".to_owned(), name: "here".to_owned() };
        let controller = NodeStatusController::new(Arc::clone(store), "host1", &machine, Arc::new(drop));
        RunningController::start(&tokio::runtime::Handle::current(), true, controller)
    }

    #[tokio::test]
    async fn the_key_goes_with_the_agent_also_while_a_change_waits_to_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let mut controller = running(&store);
        let prefix = [Key::TortieStatus { host: "host1".to_owned() }.to_string()];
        let written = async || !store.list(&prefix).await.unwrap().entries.is_empty();
        controller.set_desired(NodeStatus { sessions: UpCount { up: 0, of: 1 }, ..NodeStatus::default() });
        while !written().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        controller.set_desired(NodeStatus { sessions: UpCount { up: 1, of: 1 }, ..NodeStatus::default() });
        // Time for the task to receive the new state.
        tokio::time::sleep(Duration::from_millis(100)).await;
        controller.stop().await;
        assert!(!written().await);
    }

    #[tokio::test]
    async fn a_key_that_the_store_did_not_take_is_written_soon() {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join("store.db"), dir.path().join("away"));
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, true).await.unwrap());
        std::fs::rename(&path, &away).unwrap();
        assert!(store.grant(TTL).await.is_err());
        let mut controller = running(&store);
        controller.set_desired(NodeStatus { sessions: UpCount { up: 0, of: 1 }, ..NodeStatus::default() });
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::fs::rename(&away, &path).unwrap();
        let prefix = [Key::TortieStatus { host: "host1".to_owned() }.to_string()];
        let until = Instant::now() + Duration::from_secs(60);
        while store.list(&prefix).await.unwrap().entries.is_empty() {
            assert!(Instant::now() < until, "not within a minute");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        controller.stop().await;
    }
}
