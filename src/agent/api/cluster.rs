//! Pools, blocks and node status of the whole cluster, read from the store on request because the agent does
//! not watch other hosts' keys.
//!
//! Each read is cached for ten seconds and shared by all requests in that time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tortie_config::Resource;
use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;

use crate::agent::api::bgp;
use crate::agent::api::policy_query::policy_view;
use crate::agent::handle::{Handle, stopping};
use crate::agent::policy_view::addresses_of;
use crate::api::ipam::{self as dto, BlockRow, BlockView, Holder, PoolRow};
use crate::api::nodes::{self, ClusterNode};
use crate::api::problem::Problem;
use crate::api::status::{ApiError, List};
use crate::plugins::attach::{allocation_problem, rehearse_workload};
use tortie_engine::ipam::check::IpamState;
use tortie_engine::ipam::{Exclusions, Keyspace};
use tortie_engine::model::Model;
use tortie_engine::model::endpoint_name::{display_name, naming};
use tortie_store::{Snapshot, Store};

/// Lifetime of a cached read.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Lifetime of a cached answer to "can a workload be added?".
const REHEARSAL_TTL: Duration = Duration::from_secs(3);
/// Maximum wait for the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Value computed from one listing of the store, with its time.
struct CachedRead<T> {
    at: Instant,
    time: String,
    revision: u64,
    value: T,
}

/// Cache of the last read of one kind.
struct CacheSlot<T> {
    ttl: Duration,
    last: Arc<Mutex<Option<Arc<CachedRead<T>>>>>,
}

impl<T: Send + Sync + 'static> CacheSlot<T> {
    fn new() -> Self {
        Self { ttl: CACHE_TTL, last: Arc::default() }
    }

    /// Returns the cached value or reads the store. Concurrent callers wait for one read.
    async fn read(
        &self,
        store: &dyn Store,
        prefixes: &[String],
        make: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Result<Arc<CachedRead<T>>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some(read) = last.as_ref().filter(|read| read.at.elapsed() < self.ttl) {
            return Ok(Arc::clone(read));
        }
        let snapshot = match tokio::time::timeout(STORE_TIMEOUT, store.list(prefixes)).await {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => return Err(store_unreachable(&error.to_string())),
            Err(_) => return Err(store_unreachable("no answer within 5 s")),
        };
        let revision = snapshot.revision;
        let value = tokio::task::spawn_blocking(move || make(&snapshot));
        let value = value.await.map_err(|_| stopping())?;
        let read = Arc::new(CachedRead {
            at: Instant::now(),
            time: crate::agent::time::now_text(),
            revision,
            value,
        });
        *last = Some(Arc::clone(&read));
        let (last, old, ttl) = (Arc::clone(&self.last), Arc::downgrade(&read), self.ttl);
        tokio::spawn(async move {
            tokio::time::sleep(ttl).await;
            let mut last = last.lock().await;
            if last.as_ref().is_some_and(|last| std::ptr::eq(Arc::as_ptr(last), old.as_ptr())) {
                *last = None;
            }
        });
        Ok(read)
    }
}

/// Cached reads of cluster-wide state, with the store that they come from.
pub(in crate::agent) struct ClusterCache {
    node: String,
    store: Arc<dyn Store>,
    ipam: CacheSlot<IpamState>,
    nodes: CacheSlot<Vec<ClusterNode>>,
    rehearsed: Mutex<Option<(Instant, Option<Problem>)>>,
}

impl ClusterCache {
    pub(in crate::agent) fn new(node: &str, store: Arc<dyn Store>) -> Self {
        let (ipam, nodes) = (CacheSlot::new(), CacheSlot::new());
        Self { node: node.to_owned(), store, ipam, nodes, rehearsed: Mutex::default() }
    }

    /// Returns the problem that prevents adding a workload to this host; `None` if a rehearsed allocation
    /// succeeds.
    pub(in crate::agent) async fn allocation_problem(&self, excluded: Exclusions) -> Option<Problem> {
        let mut last = self.rehearsed.lock().await;
        if let Some((_, problem)) = last.as_ref().filter(|(at, _)| at.elapsed() < REHEARSAL_TTL) {
            return problem.clone();
        }
        let rehearsal = rehearse_workload(&self.store, &self.node, excluded);
        // A store that does not answer has a problem of its own.
        let found = tokio::time::timeout(STORE_TIMEOUT, rehearsal).await.ok();
        let problem = found.as_ref().and_then(allocation_problem);
        *last = Some((Instant::now(), problem.clone()));
        problem
    }

    async fn read_ipam(&self) -> Result<Arc<CachedRead<IpamState>>, ApiError> {
        // Endpoints are not needed here, and may be most of the store.
        let dialect = tokio::time::timeout(STORE_TIMEOUT, self.store.dialect()).await;
        let dialect = dialect.map_err(|_| store_unreachable("no answer within 5 s"))?;
        let space = Keyspace::of(dialect.map_err(|error| store_unreachable(&error.to_string()))?);
        let prefixes = [space.stored_pools(), prefix::BLOCKS.to_owned(), prefix::AFFINITIES.to_owned()];
        self.ipam.read(&*self.store, &prefixes, move |snapshot| IpamState::of(&space, snapshot)).await
    }

    async fn read_nodes(&self) -> Result<Arc<CachedRead<Vec<ClusterNode>>>, ApiError> {
        let make = |snapshot: &Snapshot| nodes::cluster(snapshot, jiff::Timestamp::now());
        self.nodes.read(&*self.store, &nodes::prefixes(), make).await
    }

    /// Returns the pools with their usage.
    pub(in crate::agent) async fn pools(&self) -> Result<List<PoolRow>, ApiError> {
        let read = self.read_ipam().await?;
        Ok(self.list("IPAMPoolList", &read, dto::pools(&read.value)))
    }

    /// Returns the blocks of one pool, or all blocks.
    pub(in crate::agent) async fn blocks(&self, pool: Option<Cidr>) -> Result<List<BlockRow>, ApiError> {
        let read = self.read_ipam().await?;
        if let Some(pool) = pool.filter(|pool| !read.value.pools.contains_key(pool)) {
            return Err(not_found(format!("there is no pool {pool}: `tortie ipam pools` lists them")));
        }
        Ok(self.list("IPAMBlockList", &read, dto::blocks(&read.value, pool, None)))
    }

    /// Returns one block with its allocated addresses and the endpoints that use them.
    pub(in crate::agent) async fn block(&self, handle: &Handle, block: Cidr) -> Result<BlockView, ApiError> {
        let read = self.read_ipam().await?;
        let Some(found) = read.value.blocks.get(&block) else {
            return Err(not_found(format!("there is no block {block}: `tortie ipam blocks` lists them")));
        };
        let ordinals = found.value.allocated();
        let addrs: BTreeSet<IpAddr> = ordinals.filter_map(|(ordinal, _)| block.nth(ordinal.into())).collect();
        let holders = policy_view(handle, move |view| Ok(holders(view.model, &addrs))).await;
        dto::block(&read.value, block, holders.unwrap_or_default())
            .ok_or_else(|| not_found(format!("there is no block {block}")))
    }

    /// Returns every node of the store with its status key.
    pub(in crate::agent) async fn nodes(&self) -> Result<List<ClusterNode>, ApiError> {
        let read = self.read_nodes().await?;
        Ok(self.list("NodeList", &read, read.value.clone()))
    }

    fn list<T>(&self, kind: &str, read: &CachedRead<impl Sized>, items: Vec<T>) -> List<T> {
        List { time: read.time.clone(), ..bgp::list(kind, &self.node, read.revision, items) }
    }
}

fn store_unreachable(why: &str) -> ApiError {
    ApiError {
        code: "store-away".to_owned(),
        text: format!("this is read from the store, which is unreachable: {why}"),
    }
}

fn not_found(text: String) -> ApiError {
    ApiError { code: "not-found".to_owned(), text }
}

/// Finds the workload endpoints of all hosts that have these addresses.
fn holders(model: &Model, addrs: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Vec<Holder>> {
    let mut found: BTreeMap<IpAddr, Vec<Holder>> = BTreeMap::new();
    for (key, value) in model.endpoint_resources() {
        if !matches!(**value, Resource::WorkloadEndpoint(_)) {
            continue;
        }
        for net in addresses_of(value).filter(|net| net.is_host() && addrs.contains(&net.addr())) {
            found.entry(net.addr()).or_default().push(Holder {
                name: display_name(key, naming(value).0),
                host: key.host().to_owned(),
                key: Key::Endpoint(key.clone()).to_string(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::sqlite::SqliteStore;
    use tortie_store::{Op, Txn};

    async fn write(store: &dyn Store, key: &str, value: &str) {
        let op = Op::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), lease: None };
        store.commit(Txn { ops: vec![op], ..Txn::default() }).await.unwrap();
    }

    #[tokio::test]
    async fn one_read_serves_all_who_ask_and_is_forgotten_soon() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let mut cache = ClusterCache::new("n1", Arc::clone(&store));
        cache.ipam.ttl = Duration::from_millis(300);
        let pools = async || dto::pools(&cache.read_ipam().await.unwrap().value).len();
        write(&*store, "/calico/v1/ipam/v4/pool/10.65.0.0-16", r#"{"cidr":"10.65.0.0/16"}"#).await;
        assert_eq!(pools().await, 1);
        write(&*store, "/calico/v1/ipam/v4/pool/10.66.0.0-16", r#"{"cidr":"10.66.0.0/16"}"#).await;
        assert_eq!(pools().await, 1, "the same read");
        while cache.ipam.last.lock().await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pools().await, 2, "another one");
    }
}
