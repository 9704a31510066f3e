//! Pools, blocks and status of all hosts, for whoever asks: read from the store when asked, since the agent does not watch what is
//! others'; one reading serves all who ask within ten seconds, and is forgotten after.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tortie_config::Resource;
use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;

use crate::agent::api::bgp;
use crate::agent::handle::{Live, busy};
use crate::agent::policy_view::{addresses_of, endpoint_name};
use crate::api::ipam::{self as words, BlockRow, BlockView, Holder, PoolRow};
use crate::api::nodes::{self, ClusterNode};
use crate::api::status::{ApiError, List};
use tortie_engine::ipam::Keyspace;
use tortie_engine::ipam::check::IpamState;
use tortie_engine::model::Model;
use tortie_store::{Snapshot, Store};

/// For how long a reading is given out.
const FRESH: Duration = Duration::from_secs(10);
/// Longest wait for the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was made of one listing.
struct Reading<T> {
    at: Instant,
    time: String,
    revision: u64,
    made: T,
}

/// The last reading of one kind.
struct Shelf<T> {
    fresh: Duration,
    last: Arc<Mutex<Option<Arc<Reading<T>>>>>,
}

impl<T: Send + Sync + 'static> Shelf<T> {
    fn new() -> Self {
        Self { fresh: FRESH, last: Arc::default() }
    }

    /// Who asks while the store is read waits for that reading.
    async fn read(
        &self,
        store: &dyn Store,
        prefixes: &[String],
        make: impl FnOnce(&Snapshot) -> T + Send + 'static,
    ) -> Result<Arc<Reading<T>>, ApiError> {
        let mut last = self.last.lock().await;
        if let Some(reading) = last.as_ref().filter(|reading| reading.at.elapsed() < self.fresh) {
            return Ok(Arc::clone(reading));
        }
        let snapshot = match tokio::time::timeout(PATIENCE, store.list(prefixes)).await {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(error)) => return Err(away(&error.to_string())),
            Err(_) => return Err(away("no answer within 5 s")),
        };
        let revision = snapshot.revision;
        let made = tokio::task::spawn_blocking(move || make(&snapshot));
        let made = made.await.map_err(|_| busy("the agent is stopping"))?;
        let reading =
            Arc::new(Reading { at: Instant::now(), time: crate::agent::time::now_text(), revision, made });
        *last = Some(Arc::clone(&reading));
        let (last, old, fresh) = (Arc::clone(&self.last), Arc::downgrade(&reading), self.fresh);
        tokio::spawn(async move {
            tokio::time::sleep(fresh).await;
            let mut last = last.lock().await;
            if last.as_ref().is_some_and(|last| std::ptr::eq(Arc::as_ptr(last), old.as_ptr())) {
                *last = None;
            }
        });
        Ok(reading)
    }
}

/// What was read last, and where the next comes from.
pub(in crate::agent) struct Books {
    store: Arc<dyn Store>,
    ipam: Shelf<IpamState>,
    nodes: Shelf<Vec<ClusterNode>>,
}

impl Books {
    pub(in crate::agent) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, ipam: Shelf::new(), nodes: Shelf::new() }
    }

    async fn ipam(&self) -> Result<Arc<Reading<IpamState>>, ApiError> {
        // Endpoints are not needed here, and may be most of the store.
        let prefixes = [prefix::POOLS, prefix::BLOCKS, prefix::AFFINITIES].map(str::to_owned);
        self.ipam.read(&*self.store, &prefixes, |snapshot| IpamState::of(&Keyspace::Global, snapshot)).await
    }

    async fn nodes(&self) -> Result<Arc<Reading<Vec<ClusterNode>>>, ApiError> {
        let make = |snapshot: &Snapshot| nodes::cluster(snapshot, jiff::Timestamp::now());
        self.nodes.read(&*self.store, &nodes::prefixes(), make).await
    }
}

fn away(why: &str) -> ApiError {
    ApiError {
        code: "store-away".to_owned(),
        text: format!("this is read from the store, and it is away: {why}"),
    }
}

impl Live {
    pub(in crate::agent) async fn pools_of_store(&self) -> Result<List<PoolRow>, ApiError> {
        let reading = self.books.ipam().await?;
        Ok(self.frame("IPAMPoolList", &reading, words::pools(&reading.made)))
    }

    pub(in crate::agent) async fn blocks_of_store(
        &self,
        pool: Option<Cidr>,
    ) -> Result<List<BlockRow>, ApiError> {
        let reading = self.books.ipam().await?;
        if let Some(pool) = pool.filter(|pool| !reading.made.pools.contains_key(pool)) {
            return Err(not_found(format!("there is no pool {pool}: `tortie ipam pools` lists them")));
        }
        Ok(self.frame("IPAMBlockList", &reading, words::blocks(&reading.made, pool, None)))
    }

    pub(in crate::agent) async fn block_of_store(&self, block: Cidr) -> Result<BlockView, ApiError> {
        let reading = self.books.ipam().await?;
        let Some(found) = reading.made.blocks.get(&block) else {
            return Err(not_found(format!("there is no block {block}: `tortie ipam blocks` lists them")));
        };
        let ordinals = found.value.allocated();
        let addrs: BTreeSet<IpAddr> = ordinals.filter_map(|(ordinal, _)| block.nth(ordinal.into())).collect();
        let holders =
            self.picture(move |picture| Ok(holders(picture.model, &addrs))).await.unwrap_or_default();
        words::block(&reading.made, block, holders)
            .ok_or_else(|| not_found(format!("there is no block {block}")))
    }

    /// Every host that is known to the store, with what it told of itself.
    pub(in crate::agent) async fn nodes_of_store(&self) -> Result<List<ClusterNode>, ApiError> {
        let reading = self.books.nodes().await?;
        Ok(self.frame("NodeList", &reading, reading.made.clone()))
    }

    fn frame<T>(&self, kind: &str, reading: &Reading<impl Sized>, items: Vec<T>) -> List<T> {
        List { time: reading.time.clone(), ..bgp::list(kind, &self.node, reading.revision, items) }
    }
}

fn not_found(text: String) -> ApiError {
    ApiError { code: "not-found".to_owned(), text }
}

/// The workload endpoints of all hosts that have these addresses.
fn holders(model: &Model, addrs: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, Vec<Holder>> {
    let mut found: BTreeMap<IpAddr, Vec<Holder>> = BTreeMap::new();
    for (key, value) in model.endpoint_resources() {
        if !matches!(**value, Resource::WorkloadEndpoint(_)) {
            continue;
        }
        for net in addresses_of(value).filter(|net| net.is_host() && addrs.contains(&net.addr())) {
            found.entry(net.addr()).or_default().push(Holder {
                name: endpoint_name(key),
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
    async fn one_reading_serves_all_who_ask_and_is_forgotten_soon() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let mut books = Books::new(Arc::clone(&store));
        books.ipam.fresh = Duration::from_millis(300);
        let pools = async || words::pools(&books.ipam().await.unwrap().made).len();
        write(&*store, "/calico/v1/ipam/v4/pool/10.65.0.0-16", r#"{"cidr":"10.65.0.0/16"}"#).await;
        assert_eq!(pools().await, 1);
        write(&*store, "/calico/v1/ipam/v4/pool/10.66.0.0-16", r#"{"cidr":"10.66.0.0/16"}"#).await;
        assert_eq!(pools().await, 1, "the same reading");
        while books.ipam.last.lock().await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pools().await, 2, "another one");
    }
}
