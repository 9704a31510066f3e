//! The census of addresses: what all hosts use of each pool, read from the store by one host for all.
//!
//! An agent follows its own blocks only (5,000 of them must not read each other's), so somebody has to look at the whole.
//! That is the first host by name of those that are known to be alive: every host before it is a peer of the mesh whose
//! session is not up. Nothing is written for it; without a mesh it is the first host, and while it is away nobody looks.
//! Two that believe it, on both sides of a split, tell the same numbers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tortie_bgp::State;
use tortie_net::Cidr;

use crate::agent::controllers::Keeper;
use crate::agent::core::Core;
use tortie_engine::ipam::Space;
use tortie_engine::ipam::check::{Evidence, Kind, Picture, findings};
use tortie_engine::routing::PeerKind;
use tortie_store::{Store, StoreError};

/// Between two looks, at least.
const PAUSE: Duration = Duration::from_secs(60);
/// Before the first one, so that a host that only restarts does not look.
const FIRST: Duration = Duration::from_secs(5);
/// A look takes at most this part of the time.
const SHARE: u32 = 100;

/// What was found of one pool. Numbers of addresses are not exact beyond 2^53.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::agent) struct PoolCensus {
    /// Addresses of the pool.
    pub(in crate::agent) total: f64,
    /// Allocated.
    pub(in crate::agent) used: usize,
    /// Never given out unless asked for (`reservedCIDRs`).
    pub(in crate::agent) reserved: f64,
    /// Blocks of this host's and of others.
    pub(in crate::agent) owned: usize,
    /// Blocks that are there and nobody's.
    pub(in crate::agent) ownerless: usize,
    /// Blocks that are not there yet, and those that nobody owns.
    pub(in crate::agent) unclaimed: f64,
    /// What does not agree, by kind.
    pub(in crate::agent) suspects: BTreeMap<&'static str, usize>,
}

/// All pools, in the order of their prefixes.
pub(in crate::agent) type Census = BTreeMap<Cidr, PoolCensus>;

impl Core {
    /// Whether this host is the one that looks.
    pub(in crate::agent) fn takes_census(&self) -> bool {
        if !self.running() || self.frozen.is_some() || self.link.from_cache || !self.link.connected {
            return false;
        }
        let Some(intent) = &self.intent else { return false };
        let dead: std::collections::BTreeSet<&str> = intent
            .peers
            .iter()
            .filter(|(_, peer)| peer.kind == PeerKind::Mesh)
            .filter(|(name, _)| {
                self.peers.get(name.as_str()).and_then(|r| r.state) != Some(State::Established)
            })
            .map(|(_, peer)| peer.name.as_str())
            .collect();
        let node = self.model.node();
        self.model.hosts().map(|(name, _)| name).filter(|name| *name < node).all(|name| dead.contains(name))
    }
}

/// The task that looks.
#[derive(Debug)]
pub(in crate::agent) struct Taker(Keeper<bool>);

impl Taker {
    /// Starts the task; it only reads.
    pub(in crate::agent) fn start(
        io: &tokio::runtime::Handle,
        store: Arc<dyn Store>,
        tell: impl Fn(Option<Census>) + Send + 'static,
    ) -> Self {
        Self(Keeper::start(io, true, |seen, ended| run(store, seen, ended, tell)))
    }

    pub(in crate::agent) fn tell(&self, wanted: bool) {
        self.0.tell(wanted, |old, new| old != new);
    }

    /// Ends the task.
    pub(in crate::agent) async fn stop(&mut self) {
        self.0.stop().await;
    }
}

async fn run(
    store: Arc<dyn Store>,
    mut seen: watch::Receiver<bool>,
    mut ended: oneshot::Receiver<()>,
    tell: impl Fn(Option<Census>),
) {
    let mut pause = FIRST;
    loop {
        let wanted = *seen.borrow_and_update();
        if !wanted {
            tell(None);
            pause = FIRST;
        }
        tokio::select! {
            _ = &mut ended => return,
            changed = seen.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = tokio::time::sleep(pause), if wanted => {}
        }
        let begin = Instant::now();
        match look(&*store).await {
            Ok(census) => tell(Some(census)),
            Err(error) => {
                tracing::debug!(target: "tortie", "the census of addresses came to nothing: {error}");
                tell(None);
            }
        }
        pause = PAUSE.max(begin.elapsed() * SHARE);
    }
}

async fn look(store: &dyn Store) -> Result<Census, StoreError> {
    let snapshot = store.list(&Picture::prefixes(&Space::Global)).await?;
    // A large store is some tenths of a second of reading, and others are answered by this thread.
    let work = move || count(&Picture::of(&Space::Global, &snapshot));
    let counted = tokio::task::spawn_blocking(work).await;
    counted.map_err(|error| StoreError::Away(format!("a task ended early: {error}")))
}

/// Two to the power of the bits that are left between two lengths.
fn parts(from: u8, to: u8) -> f64 {
    2f64.powi(i32::from(to.saturating_sub(from)))
}

fn count(picture: &Picture) -> Census {
    let mut census: Census = picture
        .pools
        .iter()
        .map(|(cidr, pool)| {
            let reserved = picture.config.reserved.iter().filter(|part| cidr.covers(part));
            let of = PoolCensus {
                total: parts(cidr.len(), cidr.max_len()),
                reserved: reserved.map(|part| parts(part.len(), part.max_len())).sum(),
                unclaimed: parts(cidr.len(), pool.value.block_len()),
                suspects: [Kind::Leaked, Kind::Unaccounted, Kind::Duplicate, Kind::Ownerless]
                    .into_iter()
                    .map(|kind| (word(kind), 0))
                    .collect(),
                ..PoolCensus::default()
            };
            (*cidr, of)
        })
        .collect();
    for (cidr, block) in &picture.blocks {
        let Some(pool) = picture.pool_of(cidr.addr()).and_then(|pool| census.get_mut(&pool.cidr)) else {
            continue;
        };
        pool.used += block.value.size() - block.value.free().len();
        if block.value.host().is_some() {
            pool.owned += 1;
            pool.unclaimed -= 1.0;
        } else {
            pool.ownerless += 1;
        }
    }
    for finding in findings(picture, &Evidence::default()) {
        let subject = finding.subject.split('/').next().and_then(|addr| addr.parse::<IpAddr>().ok());
        let pool = subject.and_then(|addr| picture.pool_of(addr));
        if let Some(pool) = pool.and_then(|pool| census.get_mut(&pool.cidr)) {
            *pool.suspects.entry(word(finding.kind)).or_default() += 1;
        }
    }
    census
}

/// As metrics say it.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Ownerless => "no_owner",
        other => other.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_store::{Op, Txn, sqlite::SqliteStore};

    #[tokio::test]
    async fn pools_are_counted_with_what_does_not_agree() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap();
        let free: Vec<u32> = (2..64).collect();
        let mut allocations = vec![serde_json::Value::Null; 64];
        (allocations[0], allocations[1]) = (0.into(), 0.into());
        let attributes = [serde_json::json!({ "handle_id": "a", "secondary": { "node": "gone" } })];
        let block = serde_json::json!({ "cidr": "10.65.0.0/26", "affinity": "host:gone", "strictAffinity": false,
            "allocations": allocations, "attributes": attributes, "unallocated": free });
        let workload = |ip: &str| {
            format!(
                r#"{{"state":"active","name":"cali1","mac":null,"profile_ids":[],"ipv4_nets":["{ip}/32"],"ipv6_nets":[]}}"#
            )
        };
        let values = [
            ("/calico/v1/ipam/v4/pool/10.65.0.0-24", r#"{"cidr":"10.65.0.0/24"}"#.to_owned()),
            (
                "/calico/ipam/v2/config",
                r#"{"strict_affinity":false,"auto_allocate_blocks":true,"reservedCIDRs":["10.65.0.64/30"]}"#
                    .to_owned(),
            ),
            ("/calico/ipam/v2/assignment/ipv4/block/10.65.0.0-26", block.to_string()),
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1".to_owned()),
            ("/calico/v1/host/h1/workload/cni/x/endpoint/eth0", workload("10.65.0.200")),
            ("/calico/v1/host/h2/workload/cni/y/endpoint/eth0", workload("10.65.0.200")),
        ];
        let put =
            |(key, value): (&str, String)| Op::Put { key: key.to_owned(), value: value.into(), lease: None };
        store.commit(Txn { ops: values.map(put).into(), ..Txn::default() }).await.unwrap();
        let census = look(&store).await.unwrap();
        let pool = &census[&"10.65.0.0/24".parse::<Cidr>().unwrap()];
        assert_eq!((pool.used, pool.owned, pool.ownerless), (2, 1, 0));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(pool.total, 256.0);
        near(pool.reserved, 4.0);
        near(pool.unclaimed, 3.0);
        assert_eq!(pool.suspects["leaked"], 2, "their host is gone: {pool:?}");
        assert!(pool.suspects["duplicate"] > 0 && pool.suspects["unaccounted"] > 0, "{pool:?}");
    }
}
