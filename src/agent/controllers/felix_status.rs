//! Status keys in Felix's format, for other programs of Calico: below `felix/v1/host/<h>/`, in a Calico 3 store
//! below `felix/v2/<region>/host/<h>/`, where OpenStack's networking reads them.
//!
//! - `status` (with a lease) and `last_reported_status` (without), every `ReportingIntervalSecs`; 0 disables
//!   both.
//! - One key per endpoint of the host: up, down or error, if `EndpointReportingEnabled`; in a Calico 3 store
//!   only of workloads. At most one
//!   transaction per `EndpointReportingDelaySecs`, which also damps flaps. The own keys are read once an
//!   hour, which repairs changes by a former agent or another process.
//!
//! When endpoint reporting is disabled, its keys are deleted, so that no reader relies on outdated values.
//! When the agent ends, `status` expires with its lease, and all other keys keep their last value.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::Dialect;
use tortie_config::key::{EndpointKey, FelixItem, Key, prefix};
use tortie_config::resource::{AgentStatus, EndpointState, EndpointStatus, Extra};

use super::life_cycle::{Context, Controller, ControllerHandle, Wake};
use crate::agent::time::now_text;
use tortie_kernel::EndpointCondition;
use tortie_store::{LeaseId, MAX_TXN_OPS, Op, Store, StoreError, Txn};

/// Interval of reads of the own keys.
const READ_EVERY: Duration = Duration::from_secs(3600);
/// Minimum delay before a failed write is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Status to report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::agent) struct FelixStatusIntent {
    /// Element of the keys for the region; `None` in a v1 store.
    pub(in crate::agent) region: Option<String>,
    /// Interval of the agent's status reports; zero disables them.
    pub(in crate::agent) interval: Duration,
    /// Time to live of an agent status report.
    pub(in crate::agent) ttl: Duration,
    /// Minimum interval between writes of endpoint states.
    pub(in crate::agent) delay: Duration,
    /// Endpoint states; `None` disables endpoint reporting.
    pub(in crate::agent) endpoints: Option<BTreeMap<FelixItem, EndpointState>>,
}

fn item(key: &EndpointKey) -> FelixItem {
    match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => FelixItem::Workload {
            orchestrator: orchestrator.clone(),
            workload: workload.clone(),
            endpoint: endpoint.clone(),
        },
        EndpointKey::Host { endpoint, .. } => FelixItem::HostEndpoint { endpoint: endpoint.clone() },
    }
}

/// An interface that is absent or down is no error; a failure to write rules or routes is.
fn state(condition: &EndpointCondition, failed: bool) -> EndpointState {
    match condition {
        EndpointCondition::Up if failed => EndpointState::Error,
        EndpointCondition::Up => EndpointState::Up,
        EndpointCondition::Down(_) => EndpointState::Down,
        EndpointCondition::Failed(_) => EndpointState::Error,
    }
}

/// Writes the status keys that Felix would write.
pub(in crate::agent) struct FelixStatusController {
    store: Arc<dyn Store>,
    node: String,
    /// Element of the keys for the region, as written last.
    region: Option<String>,
    started: Instant,
    lease: Option<(LeaseId, Duration)>,
    /// Time of the last write of the agent's status.
    written: Option<Instant>,
    /// Endpoint states in the store; a value of `None` cannot be parsed.
    stored: BTreeMap<FelixItem, Option<EndpointState>>,
    /// Time of the last read of `stored`.
    read: Option<Instant>,
}

impl Controller for FelixStatusController {
    type Desired = FelixStatusIntent;
    const WRITES: bool = true;

    /// `None` before the kernel has answered.
    fn desired(context: &Context<'_>) -> Option<FelixStatusIntent> {
        let core = context.core;
        if !core.running() {
            return None;
        }
        let settings = core.model().settings();
        let is_calico_3 = core.model().dialect() == Dialect::V3;
        let is_reported = |key: &EndpointKey| !is_calico_3 || matches!(key, EndpointKey::Workload { .. });
        Some(FelixStatusIntent {
            region: is_calico_3.then(|| prefix::region(settings.openstack_region.name())),
            interval: settings.reporting_interval,
            ttl: settings.reporting_ttl,
            delay: settings.endpoint_reporting_delay,
            endpoints: settings.endpoint_reporting_enabled.then(|| {
                let conditions = core.enforcement().conditions().iter();
                conditions
                    .filter(|(key, _)| is_reported(key))
                    .map(|(key, condition)| {
                        let failed = core.enforcement().failure(key).is_some();
                        (item(key), state(condition, failed))
                    })
                    .collect()
            }),
        })
    }

    async fn run(mut self, mut handle: ControllerHandle<FelixStatusIntent>) {
        let mut retry: Option<Instant> = None;
        let mut written: Option<Instant> = None;
        loop {
            let intent = handle.desired();
            let now = Instant::now();
            if retry.is_none_or(|at| at <= now) {
                retry = None;
                let may_write = written.is_none_or(|at| at + intent.delay <= now);
                let outcome = match self.enter_and_report(&intent, now).await {
                    Ok(()) if may_write => self.endpoints(&intent, now).await,
                    other => other.map(|()| false),
                };
                match outcome {
                    Ok(true) => written = Some(Instant::now()),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(target: "tortie", "status reports are not written: {error}");
                        retry = Some(now + RETRY);
                    }
                }
            }
            let next = self.next(&intent, written, retry);
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            if handle.wait(due).await == Wake::Stopped {
                break;
            }
        }
        if let Some((lease, _)) = self.lease {
            let _ = self.store.revoke(lease).await;
        }
    }
}

impl FelixStatusController {
    pub(super) fn new(store: Arc<dyn Store>, node: &str) -> Self {
        Self {
            store,
            node: node.to_owned(),
            region: None,
            started: Instant::now(),
            lease: None,
            written: None,
            stored: BTreeMap::new(),
            read: None,
        }
    }

    /// Returns the time of the next action that no change triggers.
    fn next(
        &self,
        wanted: &FelixStatusIntent,
        written: Option<Instant>,
        retry: Option<Instant>,
    ) -> Option<Instant> {
        if retry.is_some() {
            return retry;
        }
        let report = self.written.filter(|_| wanted.interval > Duration::ZERO).map(|at| at + wanted.interval);
        let endpoints = (!self.changes(wanted).is_empty())
            .then(|| written.map_or_else(Instant::now, |at| at + wanted.delay));
        let read = self.read.filter(|_| wanted.endpoints.is_some()).map(|at| at + READ_EVERY);
        [report, endpoints, read].into_iter().flatten().min()
    }

    /// Deletes the keys of the last region, if the region is another one now.
    async fn enter(&mut self, region: &Option<String>) -> Result<(), StoreError> {
        if self.region == *region {
            return Ok(());
        }
        let items: Vec<FelixItem> = self.stored.keys().cloned().collect();
        for items in items.chunks(MAX_TXN_OPS) {
            let ops = items.iter().map(|item| Op::Delete { key: self.key(item.clone()) }).collect();
            self.store.commit(Txn { ops, ..Txn::default() }).await?;
        }
        if let Some((lease, _)) = self.lease.take() {
            self.store.revoke(lease).await?;
        }
        self.stored.clear();
        (self.written, self.read) = (None, None);
        self.region.clone_from(region);
        Ok(())
    }

    async fn enter_and_report(&mut self, wanted: &FelixStatusIntent, now: Instant) -> Result<(), StoreError> {
        self.enter(&wanted.region).await?;
        self.status(wanted, now).await
    }

    /// Writes the agent's status if it is due.
    async fn status(&mut self, wanted: &FelixStatusIntent, now: Instant) -> Result<(), StoreError> {
        if wanted.interval == Duration::ZERO {
            if let Some((lease, _)) = self.lease.take() {
                self.store.revoke(lease).await?;
            }
            return Ok(());
        }
        if self.written.is_some_and(|at| at + wanted.interval > now) {
            return Ok(());
        }
        let lease = self.lease(wanted.ttl).await?;
        let value = AgentStatus {
            time: now_text(),
            uptime: self.started.elapsed(),
            first_update: self.written.is_none(),
            extra: Extra::default(),
        }
        .to_value();
        let put = |item, lease| Op::Put { key: self.key(item), value: value.clone(), lease };
        let ops = vec![put(FelixItem::Status, Some(lease)), put(FelixItem::LastReportedStatus, None)];
        if let Err(error) = self.store.commit(Txn { ops, ..Txn::default() }).await {
            self.lease = None;
            return Err(error);
        }
        self.written = Some(now);
        Ok(())
    }

    /// Returns a lease with this time to live, freshly renewed.
    async fn lease(&mut self, ttl: Duration) -> Result<LeaseId, StoreError> {
        if let Some((lease, lives)) = self.lease.take() {
            if lives == ttl && self.store.keep_alive(lease).await? {
                self.lease = Some((lease, lives));
                return Ok(lease);
            }
            if lives != ttl {
                self.store.revoke(lease).await?;
            }
        }
        let lease = self.store.grant(ttl).await?;
        self.lease = Some((lease, ttl));
        Ok(lease)
    }

    /// Corrects endpoint keys that differ from the intent; returns true if it wrote.
    async fn endpoints(&mut self, wanted: &FelixStatusIntent, now: Instant) -> Result<bool, StoreError> {
        if wanted.endpoints.is_some() && self.read.is_none_or(|at| at + READ_EVERY <= now) {
            self.read(now).await?;
        }
        let changes: Vec<(FelixItem, Option<EndpointState>)> =
            self.changes(wanted).into_iter().take(MAX_TXN_OPS).collect();
        if changes.is_empty() {
            return Ok(false);
        }
        let ops = changes
            .iter()
            .map(|(item, state)| {
                let key = self.key(item.clone());
                match state {
                    Some(state) => {
                        Op::Put { key, value: EndpointStatus::new(*state).to_value(), lease: None }
                    }
                    None => Op::Delete { key },
                }
            })
            .collect();
        self.store.commit(Txn { ops, ..Txn::default() }).await?;
        for (item, state) in changes {
            match state {
                Some(state) => self.stored.insert(item, Some(state)),
                None => self.stored.remove(&item),
            };
        }
        Ok(true)
    }

    /// Returns the differences between intent and store: the new state, or `None` for keys to delete.
    fn changes(&self, wanted: &FelixStatusIntent) -> Vec<(FelixItem, Option<EndpointState>)> {
        let none = BTreeMap::new();
        let endpoints = wanted.endpoints.as_ref().unwrap_or(&none);
        let gone = self.stored.keys().filter(|item| !endpoints.contains_key(item));
        let other = endpoints.iter().filter(|(item, state)| self.stored.get(item) != Some(&Some(**state)));
        gone.map(|item| (item.clone(), None))
            .chain(other.map(|(item, state)| (item.clone(), Some(*state))))
            .collect()
    }

    /// Reads the states of this host's endpoints from the store.
    async fn read(&mut self, now: Instant) -> Result<(), StoreError> {
        let root = self.key(FelixItem::Status);
        let root = root.strip_suffix("status").unwrap_or(&root);
        let prefixes = ["workload/", "endpoint/"].map(|kind| format!("{root}{kind}"));
        let snapshot = self.store.list(&prefixes).await?;
        self.stored = snapshot
            .entries
            .into_iter()
            .filter_map(|entry| match Key::parse(&entry.key) {
                Ok(Key::Felix { item, .. }) => {
                    Some((item, EndpointStatus::parse(&entry.value).ok().map(|status| status.state)))
                }
                _ => None,
            })
            .collect();
        self.read = Some(now);
        Ok(())
    }

    fn key(&self, item: FelixItem) -> String {
        Key::Felix { region: self.region.clone(), host: self.node.clone(), item }.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::controllers::life_cycle::RunningController;
    use tortie_store::sqlite::SqliteStore;

    fn workload(name: &str) -> FelixItem {
        FelixItem::Workload {
            orchestrator: "cni".to_owned(),
            workload: name.to_owned(),
            endpoint: "eth0".to_owned(),
        }
    }

    fn wanted(endpoints: &[(&str, EndpointState)]) -> FelixStatusIntent {
        FelixStatusIntent {
            region: None,
            interval: Duration::ZERO,
            ttl: Duration::from_secs(90),
            delay: Duration::ZERO,
            endpoints: Some(endpoints.iter().map(|(name, state)| (workload(name), *state)).collect()),
        }
    }

    struct Rig {
        store: Arc<dyn Store>,
        controller: RunningController<FelixStatusController>,
        _dir: tempfile::TempDir,
    }

    impl Rig {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store: Arc<dyn Store> =
                Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
            let controller = FelixStatusController::new(Arc::clone(&store), "h1");
            let controller = RunningController::start(&tokio::runtime::Handle::current(), true, controller);
            Self { store, controller, _dir: dir }
        }

        async fn put(&self, key: &str, value: &str) {
            let op = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
            self.store.commit(Txn { ops: vec![op], ..Txn::default() }).await.unwrap();
        }

        async fn all(&self) -> Vec<(String, String)> {
            let snapshot = self.store.list(&["/calico/felix/".to_owned()]).await.unwrap();
            let text = |value: Vec<u8>| String::from_utf8(value).unwrap();
            snapshot.entries.into_iter().map(|e| (e.key, text(e.value))).collect()
        }

        /// Waits until the store has exactly these entries.
        async fn until(&self, expected: &[(&str, &str)]) {
            let expected: Vec<(String, String)> =
                expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            for _ in 0..1000 {
                if self.all().await == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(self.all().await, expected);
        }
    }

    #[tokio::test]
    async fn endpoints_are_reported_and_what_was_left_behind_is_put_right() {
        let rig = Rig::new().await;
        let key = |name: &str| format!("/calico/felix/v1/host/h1/workload/cni/{name}/endpoint/eth0");
        let other = "/calico/felix/v1/host/h2/workload/cni/a/endpoint/eth0";
        rig.put(&key("gone"), r#"{"status":"up"}"#).await;
        rig.put(&key("a"), "odd").await;
        rig.put(other, r#"{"status":"up"}"#).await;
        rig.controller.set_desired(wanted(&[("a", EndpointState::Up), ("b", EndpointState::Down)]));
        let (a, b) = (key("a"), key("b"));
        let (up, down, error) = (r#"{"status":"up"}"#, r#"{"status":"down"}"#, r#"{"status":"error"}"#);
        rig.until(&[(&a, up), (&b, down), (other, up)]).await;
        rig.controller.set_desired(wanted(&[("b", EndpointState::Error)]));
        rig.until(&[(&b, error), (other, up)]).await;
        rig.controller.set_desired(FelixStatusIntent { endpoints: None, ..wanted(&[]) });
        rig.until(&[(other, up)]).await;
    }

    #[tokio::test]
    async fn the_agent_reports_at_each_interval_and_its_status_goes_with_it() {
        let mut rig = Rig::new().await;
        let often = FelixStatusIntent { interval: Duration::from_millis(50), endpoints: None, ..wanted(&[]) };
        rig.controller.set_desired(often.clone());
        let root = "/calico/felix/v1/host/h1/";
        let mut later = false;
        for _ in 0..1000 {
            for (key, value) in rig.all().await {
                assert!([format!("{root}status"), format!("{root}last_reported_status")].contains(&key));
                let status = AgentStatus::parse(value.as_bytes()).unwrap();
                assert!(status.time.ends_with('Z'), "{value}");
                later |= !status.first_update;
            }
            if later {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(later, "reported again");
        rig.controller.stop().await;
        let left: Vec<String> = rig.all().await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, [format!("{root}last_reported_status")]);
    }

    #[tokio::test]
    async fn an_interval_of_zero_ends_reports_of_the_agent() {
        let rig = Rig::new().await;
        let often = FelixStatusIntent { interval: Duration::from_secs(30), endpoints: None, ..wanted(&[]) };
        rig.controller.set_desired(often.clone());
        let count = async || rig.all().await.len();
        while count().await < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for (_, value) in rig.all().await {
            assert!(AgentStatus::parse(value.as_bytes()).unwrap().first_update, "{value}");
        }
        rig.controller.set_desired(FelixStatusIntent { interval: Duration::ZERO, ..often });
        while count().await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// In a Calico 3 store the keys are those that OpenStack's driver reads; they follow the region.
    #[tokio::test]
    async fn in_a_calico_3_store_the_keys_have_the_region() {
        let rig = Rig::new().await;
        let up = r#"{"status":"up"}"#;
        let port = FelixItem::Workload {
            orchestrator: "openstack".to_owned(),
            workload: "openstack/vm-1".to_owned(),
            endpoint: "port-1".to_owned(),
        };
        let of = |region: &str| FelixStatusIntent {
            region: Some(region.to_owned()),
            endpoints: Some(BTreeMap::from([(port.clone(), EndpointState::Up)])),
            ..wanted(&[])
        };
        let key = |region: &str| {
            format!("/calico/felix/v2/{region}/host/h1/workload/openstack/openstack%2fvm-1/endpoint/port-1")
        };
        rig.controller.set_desired(of("no-region"));
        rig.until(&[(&key("no-region"), up)]).await;
        rig.controller.set_desired(of("region-r1"));
        rig.until(&[(&key("region-r1"), up)]).await;
        let status = FelixStatusIntent { interval: Duration::from_millis(10), ..of("region-r1") };
        rig.controller.set_desired(status);
        for _ in 0..1000 {
            let keys: Vec<String> = rig.all().await.into_iter().map(|(key, _)| key).collect();
            let has = |name: &str| keys.contains(&format!("/calico/felix/v2/region-r1/host/h1/{name}"));
            if has("status") && has("last_reported_status") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no status: {:?}", rig.all().await);
    }
}
