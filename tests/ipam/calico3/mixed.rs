//! Clusters in which Calico's clients allocate at the same time, in every order of their operations, and killed at
//! each of them. [`MemoryStore`] checks each write; at the end no address was given twice, and each is found by
//! its handle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand::Rng;
use serde_json::json;

use super::client::{BLOCKS, Calico};
use super::memory::{MemoryStore, held};
use super::schedule::{Running, advance};
use super::{affinity_key, block_key, cluster, handle_key, ipam, want};

/// What a client does.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Allocates an address for a host.
    Assign(&'static str),
    /// Releases the handle `old`.
    Release,
    /// Gives up the block of host h1 that has addresses of `old`.
    GiveUp,
    /// Gives up the empty block of host h1.
    GiveUpEmpty,
}

/// Addresses that clients got, by handle.
type Granted = Arc<Mutex<BTreeMap<String, String>>>;

/// A pool of four blocks. Host h1 has one with two addresses of `old`, and one or three empty ones.
fn setup(claimed: u32) -> Arc<MemoryStore> {
    let store = cluster(&["h1", "h2"], &[json!({"cidr": "10.0.0.0/28", "blockSize": 30})]);
    let own = |n: u32, allocations, free, attributes| {
        json!({"cidr": BLOCKS[n as usize], "affinity": "host:h1", "affinity_claim_time": "2020-01-01T00:00:00Z",
               "allocations": allocations, "unallocated": free, "attributes": attributes, "deleted": false,
               "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "later": {"n": n}})
    };
    let old = json!([{"handle_id": "old", "secondary": {"node": "h1"}, "later": [1]}]);
    store.put(&block_key(BLOCKS[0]), &own(0, json!([0, null, 0, null]), json!([3, 1]), old));
    for n in 1..claimed {
        let empty = own(n, json!([null, null, null, null]), json!([0, 1, 2, 3]), json!([]));
        store.put(&block_key(BLOCKS[n as usize]), &empty);
    }
    store.put(&handle_key("old"), &json!({"block": {BLOCKS[0]: 2}, "deleted": false, "later": 5}));
    for block in BLOCKS.iter().take(claimed as usize) {
        store.put(&affinity_key("h1", block), &json!({"state": "confirmed", "deleted": false, "later": "x"}));
    }
    store
}

fn ours(store: &Arc<MemoryStore>, work: Work, granted: &Granted) -> Running {
    let (ipam, granted) = (ipam(store), Arc::clone(granted));
    Some(Box::pin(async move {
        match work {
            Work::Assign(host) => {
                let given = ipam.assign(&want(host, "net.ours", 1)).await.unwrap();
                granted.lock().unwrap().insert("net.ours".to_owned(), given[0].addr.to_string());
            }
            Work::Release => drop(ipam.release_handle("old").await.unwrap()),
            Work::GiveUp => drop(ipam.unclaim("h1", BLOCKS[0].parse().unwrap()).await.unwrap()),
            Work::GiveUpEmpty => drop(ipam.unclaim("h1", BLOCKS[1].parse().unwrap()).await.unwrap()),
        }
    }))
}

fn theirs(store: &Arc<MemoryStore>, work: Work, granted: &Granted) -> Running {
    let (store, granted) = (Arc::clone(store), Arc::clone(granted));
    Some(Box::pin(async move {
        match work {
            Work::Assign(host) => {
                let addr = Calico::new(&store, host).assign("net.theirs").await.expect("there is room");
                granted.lock().unwrap().insert("net.theirs".to_owned(), addr);
            }
            Work::Release => Calico::new(&store, "h1").release("old").await,
            Work::GiveUp => Calico::new(&store, "h1").give_up(BLOCKS[0]).await,
            Work::GiveUpEmpty => Calico::new(&store, "h1").give_up(BLOCKS[1]).await,
        }
    }))
}

/// Returns the handles of all allocated addresses.
fn allocated(store: &MemoryStore) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for block in BLOCKS {
        let Some(value) = store.value(&block_key(block)) else { continue };
        let cidr: tortie_net::Cidr = block.parse().unwrap();
        for (ordinal, attribute) in held(&value) {
            let addr = cidr.nth(ordinal as u128).unwrap().to_string();
            all.insert(addr, attribute["handle_id"].as_str().unwrap().to_owned());
        }
    }
    all
}

/// Checks that granted addresses are allocated, and that all are released by their handles, by either client.
async fn verify(store: &Arc<MemoryStore>, granted: &Granted, by_us: bool, case: &str) {
    let all = allocated(store);
    for (handle, addr) in granted.lock().unwrap().iter() {
        assert_eq!(all.get(addr), Some(handle), "{case}: {all:?}");
    }
    for handle in ["old", "net.ours", "net.theirs"] {
        if by_us {
            ipam(store).release_handle(handle).await.unwrap();
        } else {
            Calico::new(store, "h1").release(handle).await;
        }
    }
    let left = allocated(store);
    assert!(left.is_empty(), "{case}: no handle leads to {left:?}");
    let again = ipam(store).assign(&want("h2", "net.again", 1)).await.unwrap();
    assert_eq!(allocated(store)[&again[0].addr.to_string()], "net.again", "{case}");
}

/// Every pair of works, with the first client stopped after each of its operations, where the second runs up to
/// one in four of its own; then one of them is killed, or both go on.
#[tokio::test]
async fn with_calico_no_order_of_steps_and_no_death_gives_an_address_twice_or_loses_one() {
    let runs = every_pair(4).await;
    assert!(runs > 200, "{runs} orders are few");
}

/// The same with each operation of the second client.
#[tokio::test]
#[ignore = "long: a minute for thousands of orders"]
async fn long_with_calico_every_order_of_steps_keeps_the_addresses() {
    let runs = every_pair(1).await;
    assert!(runs > 1_000, "{runs} orders are few");
}

async fn every_pair(stride: u64) -> u32 {
    let works = [Work::Assign("h1"), Work::Assign("h2"), Work::Release, Work::GiveUp, Work::GiveUpEmpty];
    let mut runs = 0;
    for our_work in works {
        for their_work in works {
            // With all blocks claimed, h2 takes over an empty one.
            for claimed in [2, 4] {
                runs += every_order(our_work, their_work, claimed, stride).await;
            }
        }
    }
    runs
}

async fn every_order(our_work: Work, their_work: Work, claimed: u32, stride: u64) -> u32 {
    let mut runs = 0;
    let (mut first, mut ours_more) = (0, true);
    while ours_more {
        let (mut second, mut theirs_more) = (first % stride, true);
        while theirs_more {
            let store = setup(claimed);
            let granted = Granted::default();
            let mut us = ours(&store, our_work, &granted);
            let mut them = theirs(&store, their_work, &granted);
            advance(&store, &mut us, first).await;
            ours_more = us.is_some();
            advance(&store, &mut them, second).await;
            theirs_more = them.is_some();
            match runs % 3 {
                0 => us = None,
                1 => them = None,
                _ => {}
            }
            advance(&store, &mut us, u64::MAX).await;
            advance(&store, &mut them, u64::MAX).await;
            let case = format!("{our_work:?} {first}, {their_work:?} {second}, {claimed}, {}", runs % 3);
            verify(&store, &granted, runs % 2 == 0, &case).await;
            second += stride;
            runs += 1;
        }
        first += 1;
    }
    runs
}

/// A claim of Calico's that was killed at each step is completed by us, for the same host and for another one.
#[tokio::test]
async fn what_a_killed_claim_left_is_used_or_removed() {
    for host in ["h1", "h2"] {
        for steps in 0..12 {
            let store = cluster(&["h1", "h2"], &[json!({"cidr": "10.0.0.0/28", "blockSize": 30})]);
            let granted = Granted::default();
            let mut them = theirs(&store, Work::Assign("h1"), &granted);
            advance(&store, &mut them, steps).await;
            drop(them.take());
            let given = ipam(&store).assign(&want(host, "net.ours", 16)).await;
            let lost = allocated(&store).values().filter(|handle| *handle == "net.theirs").count();
            match given {
                Ok(given) => assert_eq!((given.len(), lost), (16, 0), "{host} {steps}"),
                Err(error) => {
                    assert_eq!((error.code(), lost), ("full", 1), "{host} {steps}");
                    ipam(&store).assign(&want(host, "net.ours", 15)).await.unwrap();
                }
            }
            for block in BLOCKS {
                let owner = store.value(&block_key(block)).unwrap()["affinity"].clone();
                let owner = owner.as_str().unwrap().strip_prefix("host:").unwrap().to_owned();
                let state = store.value(&affinity_key(&owner, block)).map(|value| value["state"].clone());
                // Of another host's block only its owner completes the claim.
                let expected = if owner == host {
                    vec![json!("confirmed")]
                } else {
                    vec![json!("confirmed"), json!("pending")]
                };
                assert!(
                    state.as_ref().is_some_and(|state| expected.contains(state)),
                    "{host} {steps}: {state:?}"
                );
            }
        }
    }
}

/// Clients of both kinds on a pool that is too small for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "long: minutes of conflicts"]
async fn long_sixty_four_clients_of_both_kinds_share_a_pool() {
    both_kinds(64, 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_both_kinds_share_a_pool() {
    both_kinds(8, 12).await;
}

async fn both_kinds(clients: usize, rounds: usize) {
    let hosts = ["h1", "h2", "h3", "h4"];
    let store = cluster(&hosts, &[json!({"cidr": "10.0.0.0/28", "blockSize": 30})]);
    let granted: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
    let client = |n: usize| {
        let (store, granted) = (Arc::clone(&store), Arc::clone(&granted));
        async move {
            let host = hosts[n % hosts.len()];
            for round in 0..rounds {
                let handle = format!("net.{n}-{round}");
                let addr = if n.is_multiple_of(2) {
                    match ipam(&store).assign(&want(host, &handle, 1)).await {
                        Ok(given) => Some(given[0].addr.to_string()),
                        Err(error) => {
                            assert!(["full", "busy"].contains(&error.code()), "{error}");
                            None
                        }
                    }
                } else {
                    Calico::new(&store, host).assign(&handle).await
                };
                if let Some(addr) = &addr {
                    let before = granted.lock().unwrap().insert(addr.clone(), handle.clone());
                    assert_eq!(before, None, "{addr} was given twice");
                }
                tokio::task::yield_now().await;
                // It is free for others from the moment of its release on.
                if let Some(addr) = &addr {
                    granted.lock().unwrap().remove(addr);
                }
                let by_us = rand::rng().random_bool(0.5);
                if by_us {
                    ipam(&store).release_handle(&handle).await.unwrap();
                } else {
                    Calico::new(&store, host).release(&handle).await;
                }
                if round % 5 == 4 {
                    let block = BLOCKS[round % BLOCKS.len()];
                    if by_us {
                        ipam(&store).unclaim(host, block.parse().unwrap()).await.unwrap();
                    } else {
                        Calico::new(&store, host).give_up(block).await;
                    }
                }
            }
        }
    };
    let tasks: Vec<_> = (0..clients).map(|n| tokio::spawn(client(n))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(allocated(&store), BTreeMap::new());
}
