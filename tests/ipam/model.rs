//! Hosts with random actions on a store that fails at random, checked against a model of all allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{Affinity, AffinityState, Block, BlockAffinity};
use tortie_engine::ipam::check::{Evidence, Finding, IpamState, Kind, RepairOutcome, findings};
use tortie_engine::ipam::{AddressRange, AddressRequest, AllocationRequest, Ipam, IpamError, Keyspace};
use tortie_store::{Compare, Op, Store, Txn};

use crate::common::etcd::{Cluster, Security};
use crate::faults::Faulty;
use crate::rig::*;

const HOSTS: usize = 5;
const TASKS: usize = 2;
const POOL: &str = "10.0.0.0/24";
const SMALL: &str = "10.9.0.0/27";
const SIX: &str = "fd00::/120";
/// Three operations, two ends, two kinds of failure; fewer hits of one of them would prove little.
const PLACES: usize = 12;
const HITS: u32 = 20;

/// Allocations as the callers know them.
#[derive(Default)]
struct Truth {
    /// Allocated and not released: no other caller may get them.
    held: BTreeMap<IpAddr, String>,
    /// Handles of calls with an unknown result; their addresses are found and released later.
    limbo: BTreeSet<String>,
}

struct Client {
    ipam: Ipam,
    store: Arc<dyn Store>,
    truth: Arc<Mutex<Truth>>,
    host: String,
    rng: StdRng,
    /// This client's handles with their addresses.
    mine: BTreeMap<String, Vec<IpAddr>>,
    counter: u32,
    name: String,
}

/// True if the result of a call is known: it failed and wrote nothing.
fn is_known(error: &IpamError) -> bool {
    match error {
        IpamError::Store(_) => false,
        IpamError::Unreadable { .. } | IpamError::Busy { .. } => panic!("{error}"),
        _ => true,
    }
}

impl Client {
    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..50 => self.assign().await,
            50..70 => self.release_some().await,
            70..88 => self.release_handle().await,
            88..92 => self.try_again().await,
            92..94 => {
                let _ = self.ipam.unclaim(&self.host, cidr(POOL)).await;
            }
            94..97 => {
                let block = cidr(POOL).nth(self.rng.random_range(0..16) * 16).unwrap();
                let block = tortie_net::Cidr::new(block, 28).unwrap();
                let _ = self.ipam.claim(&self.host, block).await;
            }
            _ => self.stop_half_way().await,
        }
    }

    fn want(&mut self) -> AddressRequest {
        match self.rng.random_range(0..10) {
            0..5 => AddressRequest::Any {
                family: IpFamily::V4,
                count: self.rng.random_range(1..5),
                pools: vec![],
            },
            5..6 => AddressRequest::Any { family: IpFamily::V4, count: 1, pools: vec![cidr(SMALL)] },
            6..7 => AddressRequest::Any {
                family: IpFamily::V6,
                count: self.rng.random_range(1..20),
                pools: vec![],
            },
            7..9 => AddressRequest::Exact(cidr(POOL).nth(self.rng.random_range(0..256)).unwrap()),
            _ => AddressRequest::OneOf(vec![
                AddressRange::of(cidr("172.16.0.0/24")),
                AddressRange::of(cidr("10.9.0.8/29")),
                AddressRange {
                    first: Some(addr("10.0.0.100")),
                    last: Some(addr("10.0.0.140")),
                    ..AddressRange::of(cidr(POOL))
                },
            ]),
        }
    }

    async fn assign(&mut self) {
        self.counter += 1;
        let handle = format!("{}.{}", self.name, self.counter);
        let addresses = (0..self.rng.random_range(1..3)).map(|_| self.want()).collect();
        let request = AllocationRequest {
            host: self.host.clone(),
            addresses,
            handle: Some(handle.clone()),
            attributes: attributes(&[("node", &self.host)]),
            partial: self.rng.random_bool(0.2),
            ..AllocationRequest::default()
        };
        match self.ipam.assign(&request).await {
            Ok(given) => {
                let mut truth = self.truth.lock().unwrap();
                for given in &given {
                    let other = truth.held.insert(given.addr, handle.clone());
                    assert_eq!(other, None, "{} was given to {handle} although it is held", given.addr);
                }
                self.mine.insert(handle, given.into_iter().map(|given| given.addr).collect());
            }
            Err(error) if is_known(&error) => {}
            Err(_) => drop(self.truth.lock().unwrap().limbo.insert(handle)),
        }
    }

    fn pick(&mut self) -> Option<(String, Vec<IpAddr>)> {
        let handle = self.mine.keys().cloned().collect::<Vec<_>>().choose(&mut self.rng)?.clone();
        self.mine.remove_entry(&handle)
    }

    /// Marks addresses as released, so that other callers may get them.
    fn mark_released(&self, addrs: &[IpAddr]) {
        let mut truth = self.truth.lock().unwrap();
        for addr in addrs {
            assert!(truth.held.remove(addr).is_some());
        }
    }

    async fn release_some(&mut self) {
        let Some((handle, mut addrs)) = self.pick() else { return };
        let keep = addrs.split_off(self.rng.random_range(0..=addrs.len()));
        self.mark_released(&addrs);
        match self.ipam.release(&addrs, Some(&handle)).await {
            Ok(mut released) => {
                released.released.sort();
                addrs.sort();
                assert_eq!(released.released, addrs, "of {handle}");
                if !keep.is_empty() {
                    self.mine.insert(handle, keep);
                }
            }
            Err(error) => {
                assert!(!is_known(&error), "{error}");
                self.mark_released(&keep);
                self.truth.lock().unwrap().limbo.insert(handle);
            }
        }
    }

    async fn release_handle(&mut self) {
        let Some((handle, mut addrs)) = self.pick() else { return };
        self.mark_released(&addrs);
        match self.ipam.release_handle(&handle).await {
            Ok(mut released) => {
                released.sort();
                addrs.sort();
                assert_eq!(released, addrs, "of {handle}");
            }
            Err(error) => {
                assert!(!is_known(&error), "{error}");
                self.truth.lock().unwrap().limbo.insert(handle);
            }
        }
    }

    /// Repeats calls, as the callers of plugins do: releases addresses that may be left.
    async fn try_again(&mut self) {
        let unsure = format!("{}.", self.name);
        let mine: Vec<String> =
            self.truth.lock().unwrap().limbo.iter().filter(|id| id.starts_with(&unsure)).cloned().collect();
        for handle in mine {
            if self.ipam.release_handle(&handle).await.is_ok() {
                self.truth.lock().unwrap().limbo.remove(&handle);
            }
        }
    }

    /// Simulates a writer of Calico that claims a block in steps and dies between two of them.
    async fn stop_half_way(&mut self) {
        let start = cidr(POOL).nth(self.rng.random_range(0..16) * 16).unwrap();
        let block = tortie_net::Cidr::new(start, 28).unwrap();
        let write = |key: String, value: Vec<u8>| Txn {
            compare: vec![Compare::Absent(key.clone())],
            ops: vec![Op::Put { key, value, lease: None }],
        };
        let key = Key::Affinity { host: self.host.clone(), block }.to_string();
        let affinity = Affinity::new(AffinityState::Pending).to_value();
        let _ = self.store.commit(write(key, affinity)).await;
        if self.rng.random_bool(0.5) {
            let owner = BlockAffinity::Host(self.host.clone());
            let value = Block::new(block, owner, false).unwrap().to_value();
            let _ = self.store.commit(write(Key::Block(block).to_string(), value)).await;
        }
    }
}

async fn ipam_state(store: &dyn Store) -> IpamState {
    IpamState::load(store, &Keyspace::Global).await.unwrap()
}

fn allocated(ipam_state: &IpamState) -> BTreeMap<IpAddr, String> {
    let blocks = ipam_state.blocks.iter();
    blocks
        .flat_map(|(cidr, stored)| {
            stored.value.allocated().map(|(ordinal, attribute)| {
                (cidr.nth(ordinal.into()).unwrap(), attribute.handle.clone().unwrap())
            })
        })
        .collect()
}

/// Returns all findings from the view of every host.
fn wrong(ipam_state: &IpamState) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for n in 0..HOSTS {
        let evidence = Evidence { host: Some(format!("h{n}")), ..Evidence::default() };
        let found = findings(ipam_state, &evidence);
        all.extend(found.into_iter().filter(|finding| finding.kind != Kind::Unproven));
    }
    all.sort_by(|a, b| (a.kind, &a.subject).cmp(&(b.kind, &b.subject)));
    all.dedup();
    all
}

async fn run(inner: Arc<dyn Store>, steps: u32, rate: u32, seed: u64) {
    let rig = Rig::on(Arc::clone(&inner), None);
    rig.pool(POOL, r#"{"blockSize": 28}"#).await;
    rig.pool(SMALL, r#"{"blockSize": 29}"#).await;
    rig.pool(SIX, r#"{"blockSize": 124}"#).await;
    let faulty = Arc::new(Faulty::new(Arc::clone(&inner), rate));
    let truth = Arc::new(Mutex::new(Truth::default()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..HOSTS * TASKS {
        let store: Arc<dyn Store> = Arc::clone(&faulty) as _;
        let mut client = Client {
            ipam: Ipam::new(Arc::clone(&store)),
            store,
            truth: Arc::clone(&truth),
            host: format!("h{}", n % HOSTS),
            rng: StdRng::seed_from_u64(seed.wrapping_add(n as u64)),
            mine: BTreeMap::new(),
            counter: 0,
            name: format!("c{n}"),
        };
        let hits = Arc::clone(&faulty.hits);
        tasks.spawn(async move {
            // The store fails at random: a client continues after its steps until each place has failed often
            // enough.
            let mut done = 0;
            while done < steps || (done < steps * 20 && !hits.each(PLACES, HITS)) {
                client.step().await;
                done += 1;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    faulty.armed.store(false, Ordering::Relaxed);
    let hits = faulty.hits.all();
    println!("{hits:#?}");
    assert!(faulty.hits.each(PLACES, HITS), "a place hardly ever fails: {hits:#?}");
    let truth = Arc::into_inner(truth).unwrap().into_inner().unwrap();
    settle(&rig, &truth).await;
}

/// Checks the final state of the store and the findings, and that nothing is left after all releases.
async fn settle(rig: &Rig, truth: &Truth) {
    let mut hosts = BTreeMap::new();
    for (n, (addr, handle)) in truth.held.iter().enumerate() {
        let client: usize = handle.trim_start_matches('c').split('.').next().unwrap().parse().unwrap();
        let (host, net) = (format!("h{}", client % HOSTS), tortie_net::Cidr::host(*addr));
        let (four, six) = if addr.is_ipv4() { (vec![net], vec![]) } else { (vec![], vec![net]) };
        let value = serde_json::json!({"state": "active", "name": format!("cali{n}"), "mac": null, "profile_ids": [],
                                       "ipv4_nets": four, "ipv6_nets": six});
        rig.put(&format!("/calico/v1/host/{host}/workload/cni/{n}/endpoint/eth0"), &value.to_string()).await;
        hosts.insert(*addr, host);
    }
    let before = ipam_state(rig.store.as_ref()).await;
    let stored = allocated(&before);
    for (addr, handle) in &truth.held {
        assert_eq!(stored.get(addr), Some(handle), "{addr} was lost");
    }
    let leaked: BTreeSet<String> = stored
        .iter()
        .filter(|(addr, _)| !truth.held.contains_key(addr))
        .map(|(addr, handle)| {
            assert!(truth.limbo.contains(handle), "{addr} is held by {handle}, which gave it back");
            addr.to_string()
        })
        .collect();
    let found = wrong(&before);
    let named: BTreeSet<String> = found
        .iter()
        .filter(|finding| finding.kind == Kind::Leaked)
        .map(|finding| finding.subject.clone())
        .collect();
    assert_eq!(named, leaked, "check names what leaked and nothing else");
    println!("{} held, {} leaked, {} findings", truth.held.len(), leaked.len(), found.len());
    // Tortie's own writes are never half done: inconsistencies come from the interrupted writer, or are
    // leaks.
    let kinds: BTreeSet<Kind> = found.iter().map(|finding| finding.kind).collect();
    assert!(kinds.is_subset(&[Kind::Leaked, Kind::Affinity].into()), "{found:#?}");
    let repaired = rig.ipam.release_from_check(&found).await.unwrap();
    assert!(repaired.iter().all(|repaired| *repaired == RepairOutcome::Done), "{repaired:?}");
    let after = ipam_state(rig.store.as_ref()).await;
    assert_eq!(wrong(&after), []);
    assert_eq!(allocated(&after), truth.held, "read back, the store equals the model");
    for n in 0..HOSTS {
        let removed = rig.ipam.remove_host(&format!("h{n}")).await.unwrap();
        let his = hosts.values().filter(|host| **host == format!("h{n}")).count();
        assert_eq!(removed.released.len(), his);
    }
    assert_eq!(rig.keys().await, Vec::<String>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let rig = Rig::new(&[]).await;
    run(Arc::clone(&rig.store), 150, 12, rand::random()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    run(tortie_store::open(&cluster.options()).await.unwrap(), 150, 12, rand::random()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn long_both() {
    for round in 0..10 {
        let rig = Rig::new(&[]).await;
        run(Arc::clone(&rig.store), 2_000, 15, round).await;
        let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
        run(tortie_store::open(&cluster.options()).await.unwrap(), 2_000, 15, round).await;
    }
}
