//! A SQLite store with pools, and helpers for common test steps.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{Block, Handle};
use tortie_engine::ipam::{AddressRequest, Allocation, AllocationRequest, Ipam, IpamError, Keyspace};
use tortie_net::Cidr;
use tortie_store::sqlite::SqliteStore;
use tortie_store::{KeyValue, Op, Store, Txn};

pub(crate) struct Rig {
    pub(crate) ipam: Ipam,
    pub(crate) store: Arc<dyn Store>,
    _dir: Option<tempfile::TempDir>,
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Requests `count` addresses of any pool.
pub(crate) fn any(host: &str, count: u32) -> AllocationRequest {
    from(host, count, &[])
}

pub(crate) fn from(host: &str, count: u32, pools: &[&str]) -> AllocationRequest {
    let family =
        if pools.first().is_some_and(|pool| pool.contains(':')) { IpFamily::V6 } else { IpFamily::V4 };
    let pools = pools.iter().map(|pool| cidr(pool)).collect();
    request(host, AddressRequest::Any { family, count, pools })
}

pub(crate) fn exact(host: &str, text: &str) -> AllocationRequest {
    request(host, AddressRequest::Exact(addr(text)))
}

pub(crate) fn request(host: &str, want: AddressRequest) -> AllocationRequest {
    AllocationRequest { host: host.to_owned(), addresses: vec![want], ..AllocationRequest::default() }
}

pub(crate) fn held(request: AllocationRequest, handle: &str) -> AllocationRequest {
    AllocationRequest { handle: Some(handle.to_owned()), ..request }
}

pub(crate) fn attributes(pairs: &[(&str, &str)]) -> serde_json::Map<String, serde_json::Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

pub(crate) fn addrs(given: &[Allocation]) -> Vec<String> {
    given.iter().map(|given| given.addr.to_string()).collect()
}

pub(crate) fn blocks(given: &[Allocation]) -> Vec<Cidr> {
    let mut blocks: Vec<Cidr> = given.iter().map(|given| given.block).collect();
    blocks.sort();
    blocks.dedup();
    blocks
}

impl Rig {
    /// Creates a store with these pools, given by prefix and optional fields of the value.
    pub(crate) async fn new(pools: &[&str]) -> Self {
        let memory = std::path::Path::new("/dev/shm");
        let dir = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()).unwrap();
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let rig = Self::on(store, Some(dir));
        for pool in pools {
            rig.pool(pool, "{}").await;
        }
        rig
    }

    pub(crate) fn on(store: Arc<dyn Store>, dir: Option<tempfile::TempDir>) -> Self {
        Self { ipam: Ipam::new(Arc::clone(&store)), store, _dir: dir }
    }

    pub(crate) async fn pool(&self, pool: &str, value: &str) {
        self.put(&Keyspace::Global.pool(&cidr(pool)), value).await;
    }

    pub(crate) async fn put(&self, key: &str, value: &str) {
        let op = Op::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), lease: None };
        self.store.commit(Txn { compare: vec![], ops: vec![op] }).await.unwrap();
    }

    pub(crate) async fn config(&self, value: &str) {
        self.put(&Key::IpamConfig.to_string(), value).await;
    }

    pub(crate) async fn assign(&self, request: &AllocationRequest) -> Vec<Allocation> {
        self.ipam.assign(request).await.unwrap()
    }

    /// Returns the error of a request that must fail and write nothing.
    pub(crate) async fn refused(&self, request: &AllocationRequest) -> IpamError {
        let before = self.store.list(&["/calico/".to_owned()]).await.unwrap();
        let error = self.ipam.assign(request).await.expect_err("must fail");
        let after = self.store.list(&["/calico/".to_owned()]).await.unwrap();
        assert_eq!(before.entries, after.entries, "an error writes nothing: {error}");
        error
    }

    pub(crate) async fn get(&self, key: &str) -> Option<KeyValue> {
        self.store.get(key).await.unwrap()
    }

    pub(crate) async fn block(&self, block: &str) -> Option<Block> {
        let found = self.get(&Key::Block(cidr(block)).to_string()).await?;
        Some(Block::parse(cidr(block), &found.value).unwrap())
    }

    pub(crate) async fn handle(&self, id: &str) -> Option<Handle> {
        let found = self.get(&Key::Handle(id.to_owned()).to_string()).await?;
        Some(Handle::parse(id, &found.value).unwrap())
    }

    /// Returns the text of a host's affinity to a block.
    pub(crate) async fn affinity(&self, host: &str, block: &str) -> Option<String> {
        let key = Key::Affinity { host: host.to_owned(), block: cidr(block) };
        Some(String::from_utf8(self.get(&key.to_string()).await?.value).unwrap())
    }

    pub(crate) async fn keys(&self) -> Vec<String> {
        let listed = self.store.list(&["/calico/ipam/".to_owned()]).await.unwrap();
        listed.entries.into_iter().map(|entry| entry.key).collect()
    }
}
