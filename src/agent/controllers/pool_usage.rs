//! Pool usage: counts the addresses that all hosts together have allocated from each pool. One host reads the
//! store for the whole cluster.
//!
//! An agent watches its own blocks only, since 5,000 agents must not read each other's. The reader is the
//! first host by name that counts as alive: every host before it is a mesh peer whose session is down. The
//! election writes nothing to the store. Without a mesh the first host reads, and nothing is read while it is
//! down. After a network split, a reader on each side reports the same numbers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::State;

use super::life_cycle::{Context, Controller, ControllerHandle, Report, Wake};
use crate::agent::core::input::Input;
use crate::agent::core::observed_state::{PoolUsage, PoolUsages};
use tortie_engine::ipam::Keyspace;
use tortie_engine::ipam::check::{Evidence, IpamState, Kind, findings};
use tortie_engine::routing::PeerKind;
use tortie_store::{Store, StoreError};

/// Minimum pause between two reads.
const INTERVAL_MIN: Duration = Duration::from_secs(60);
/// Delay before the first read, so that a host which only restarts does not read.
const START_DELAY: Duration = Duration::from_secs(5);
/// Upper bound of the time spent on reads: one part in this many.
const MAX_TIME_SHARE: u32 = 100;

/// Reads the pool usage while this host is the elected reader.
pub(in crate::agent) struct PoolUsageController {
    store: Arc<dyn Store>,
    report: Report,
}

impl PoolUsageController {
    pub(super) fn new(store: Arc<dyn Store>, report: Report) -> Self {
        Self { store, report }
    }
}

impl Controller for PoolUsageController {
    type Desired = bool;
    const WRITES: bool = false;

    /// True if this host is the reader.
    fn desired(context: &Context<'_>) -> Option<bool> {
        let core = context.core;
        if !core.running() || core.frozen().is_some() || core.runs_from_cache() || !core.is_connected() {
            return Some(false);
        }
        let Some(intent) = core.intent() else { return Some(false) };
        let dead: std::collections::BTreeSet<&str> = intent
            .peers
            .iter()
            .filter(|(_, peer)| peer.kind == PeerKind::Mesh)
            .filter(|(name, _)| core.peer(name).and_then(|r| r.state) != Some(State::Established))
            .map(|(_, peer)| peer.name.as_str())
            .collect();
        let node = core.model().node();
        let mut before = core.model().hosts().map(|(name, _)| name).filter(|name| *name < node);
        Some(before.all(|name| dead.contains(name)))
    }

    async fn run(self, mut handle: ControllerHandle<bool>) {
        let report = |usage| (self.report)(Input::PoolUsage(usage));
        let mut pause = START_DELAY;
        loop {
            let leads = handle.desired();
            if !leads {
                report(None);
                pause = START_DELAY;
            }
            let due =
                async { if leads { tokio::time::sleep(pause).await } else { std::future::pending().await } };
            match handle.wait(due).await {
                Wake::Stopped => return,
                Wake::Changed => continue,
                Wake::Due => {}
            }
            let begin = Instant::now();
            match read_usage(&*self.store).await {
                Ok(usage) => report(Some(usage)),
                Err(error) => {
                    tracing::debug!(target: "tortie", "pool usage could not be read: {error}");
                    report(None);
                }
            }
            pause = INTERVAL_MIN.max(begin.elapsed() * MAX_TIME_SHARE);
        }
    }
}

async fn read_usage(store: &dyn Store) -> Result<PoolUsages, StoreError> {
    let space = Keyspace::of(store.dialect().await?);
    let snapshot = store.list(&IpamState::prefixes(&space)).await?;
    // Parsing a large store takes some tenths of a second, and this thread answers requests.
    let work = move || count(&IpamState::of(&space, &snapshot));
    let counted = tokio::task::spawn_blocking(work).await;
    counted.map_err(|error| StoreError::Unreachable(format!("a task ended early: {error}")))
}

/// Returns the number of prefixes of length `to` in one of length `from`.
fn sub_prefixes(from: u8, to: u8) -> f64 {
    2f64.powi(i32::from(to.saturating_sub(from)))
}

fn count(state: &IpamState) -> PoolUsages {
    let mut usage: PoolUsages = state
        .pools
        .iter()
        .map(|(cidr, pool)| {
            let reserved = state.config.reserved.iter().filter(|part| cidr.covers(part));
            let of = PoolUsage {
                total: sub_prefixes(cidr.len(), cidr.max_len()),
                reserved: reserved.map(|part| sub_prefixes(part.len(), part.max_len())).sum(),
                unclaimed: sub_prefixes(cidr.len(), pool.value.block_len()),
                suspects: [Kind::Leaked, Kind::Unaccounted, Kind::Duplicate, Kind::Ownerless]
                    .into_iter()
                    .map(|kind| (kind_label(kind).into(), 0))
                    .collect(),
                ..PoolUsage::default()
            };
            (*cidr, of)
        })
        .collect();
    for (cidr, block) in &state.blocks {
        let Some(pool) = state.pool_of(cidr.addr()).and_then(|pool| usage.get_mut(&pool.cidr)) else {
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
    for finding in findings(state, &Evidence::default()) {
        let subject = finding.subject.split('/').next().and_then(|addr| addr.parse::<IpAddr>().ok());
        let pool = subject.and_then(|addr| state.pool_of(addr));
        if let Some(pool) = pool.and_then(|pool| usage.get_mut(&pool.cidr)) {
            *pool.suspects.entry(kind_label(finding.kind).into()).or_default() += 1;
        }
    }
    usage
}

/// Returns the metric label of an inconsistency.
fn kind_label(kind: Kind) -> &'static str {
    match kind {
        Kind::Ownerless => "no_owner",
        other => other.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use tortie_net::Cidr;

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
        let usage = read_usage(&store).await.unwrap();
        let pool = &usage[&"10.65.0.0/24".parse::<Cidr>().unwrap()];
        assert_eq!((pool.used, pool.owned, pool.ownerless), (2, 1, 0));
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(pool.total, 256.0);
        near(pool.reserved, 4.0);
        near(pool.unclaimed, 3.0);
        assert_eq!(pool.suspects["leaked"], 2, "their host is gone: {pool:?}");
        assert!(pool.suspects["duplicate"] > 0 && pool.suspects["unaccounted"] > 0, "{pool:?}");
    }
}
