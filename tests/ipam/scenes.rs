//! Requests of several hosts in sequence: origin of the addresses, and rejected requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{Attribute, Block, BlockAffinity};
use tortie_engine::ipam::{AddressRange, AddressRequest, AllocationRequest, Ipam, IpamError, Keyspace};
use tortie_net::Cidr;
use tortie_store::{Op, Store, Txn, split};

use crate::faults::Faulty;
use crate::rig::*;

#[tokio::test]
async fn a_host_claims_a_block_and_stays_in_it() {
    let rig = Rig::new(&["10.0.0.0/16"]).await;
    let request = AllocationRequest {
        attributes: attributes(&[("node", "h1"), ("pod", "p")]),
        ..held(any("h1", 2), "net.c1")
    };
    let first = rig.assign(&request).await;
    let block = first[0].block;
    assert_eq!(block.len(), 26);
    assert_eq!(first[0].pool, cidr("10.0.0.0/16"));
    assert_eq!(
        [first[0].addr, first[1].addr].map(Some),
        [block.nth(0), block.nth(1)],
        "the free list is a queue"
    );
    assert_eq!(rig.affinity("h1", &block.to_string()).await.unwrap(), r#"{"state":"confirmed"}"#);
    let stored = rig.block(&block.to_string()).await.unwrap();
    assert_eq!(stored.host(), Some("h1"));
    assert_eq!(stored.allocation(0), stored.allocation(1), "equal attributes are stored once");
    assert_eq!(stored.allocation(0).unwrap().get("pod"), Some("p"));
    assert_eq!(rig.handle("net.c1").await.unwrap().blocks[&block], 2);
    let more = rig.assign(&any("h1", 62)).await;
    assert_eq!(blocks(&more), [block], "64 addresses, .0 and .63 too");
    assert_ne!(rig.assign(&any("h1", 1)).await[0].block, block, "a full block is followed by another");
}

/// In a network where all 2,048 blocks belong to hosts, few blocks are read.
#[tokio::test]
async fn in_a_full_pool_few_blocks_are_read() {
    let rig = Rig::new(&["10.0.0.0/15"]).await;
    let pool = cidr("10.0.0.0/15");
    let all: Vec<_> = (0..2_048u128).map(|n| Cidr::new(pool.nth(n * 64).unwrap(), 26).unwrap()).collect();
    let mut full = Block::new(all[0], BlockAffinity::Host("other".to_owned()), false).unwrap();
    for ordinal in 0..64 {
        let handle = Some(format!("net.{ordinal}"));
        full.allocate(ordinal, &Attribute { handle, ..Attribute::default() });
    }
    let full = String::from_utf8(full.to_value()).unwrap();
    let write = |(n, block): (usize, &Cidr)| {
        let value = match n % 100 {
            50 => Block::new(*block, BlockAffinity::Host(format!("h{n}")), false).unwrap().to_value(),
            _ => full.replace(&all[0].to_string(), &block.to_string()).into_bytes(),
        };
        Op::Put { key: Key::Block(*block).to_string(), value, lease: None }
    };
    for txn in split(all.iter().enumerate().map(write).collect::<Vec<_>>()).unwrap() {
        rig.store.commit(txn).await.unwrap();
    }
    let counted = Arc::new(Faulty::new(Arc::clone(&rig.store), u32::MAX));
    let ipam = Ipam::new(Arc::clone(&counted) as Arc<dyn Store>);
    for _ in 0..3 {
        let before = counted.values.load(Ordering::Relaxed);
        let given = ipam.assign(&held(any("h1", 1), "h")).await.unwrap();
        assert!(rig.affinity("h1", &given[0].block.to_string()).await.is_none(), "borrowed");
        let read = counted.values.load(Ordering::Relaxed) - before;
        assert!(read < 1_000, "{read} values were read for one address");
    }
    // A block without an owner is found nevertheless.
    rig.store
        .commit(Txn { compare: vec![], ops: vec![Op::Delete { key: Key::Block(all[777]).to_string() }] })
        .await
        .unwrap();
    assert_eq!(ipam.assign(&any("h1", 1)).await.unwrap()[0].block, all[777]);
}

#[tokio::test]
async fn an_address_rests_as_long_as_possible() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let first = rig.assign(&any("h1", 1)).await[0].addr;
    let released = rig.ipam.release(&[first], None).await.unwrap();
    assert_eq!(released.released, [first]);
    for _ in 0..63 {
        assert_ne!(rig.assign(&any("h1", 1)).await[0].addr, first);
    }
    assert_eq!(rig.assign(&any("h1", 1)).await[0].addr, first);
}

#[tokio::test]
async fn hosts_borrow_when_all_blocks_are_taken_unless_affinity_is_strict() {
    for strict in [false, true] {
        let rig = Rig::new(&["10.0.0.0/25"]).await;
        if strict {
            rig.config(r#"{"strict_affinity": true, "auto_allocate_blocks": true}"#).await;
        }
        let one = rig.assign(&any("h1", 1)).await[0].block;
        let two = rig.assign(&any("h2", 1)).await[0].block;
        assert_ne!(one, two);
        if strict {
            let error = rig.refused(&any("h3", 1)).await;
            assert!(matches!(error, IpamError::Full { requested: 1, free: 0, .. }), "{error}");
            let text = rig.refused(&exact("h3", &one.nth(9).unwrap().to_string())).await.to_string();
            assert!(text.contains("of host h1") && text.contains("strict"), "{text}");
        } else {
            let borrowed = rig.assign(&held(any("h3", 126), "h")).await;
            assert_eq!(blocks(&borrowed), [one.min(two), one.max(two)]);
            assert!(rig.affinity("h3", &one.to_string()).await.is_none(), "borrowing makes no owner");
            assert!(matches!(rig.refused(&any("h3", 1)).await, IpamError::Full { .. }));
            let partial = AllocationRequest { partial: true, ..any("h3", 3) };
            assert_eq!(rig.assign(&partial).await, []);
        }
    }
}

#[tokio::test]
async fn disabled_pools_serve_what_a_host_has_left_in_them_and_no_more() {
    let rig = Rig::new(&["10.0.0.0/24", "10.1.0.0/24"]).await;
    let old = rig.assign(&from("h1", 1, &["10.0.0.0/24"])).await[0].block;
    rig.pool("10.0.0.0/24", r#"{"disabled": true}"#).await;
    assert_eq!(rig.assign(&any("h1", 63)).await.iter().filter(|given| given.block == old).count(), 63);
    assert_eq!(rig.assign(&any("h1", 1)).await[0].pool, cidr("10.1.0.0/24"));
    assert_eq!(rig.assign(&any("h2", 1)).await[0].pool, cidr("10.1.0.0/24"));
    assert_eq!(rig.refused(&from("h1", 1, &["10.0.0.0/24"])).await, IpamError::Disabled(cidr("10.0.0.0/24")));
    assert_eq!(rig.refused(&exact("h1", "10.0.0.9")).await.code(), "pool-disabled");
    rig.pool("10.1.0.0/24", r#"{"disabled": true}"#).await;
    assert_eq!(rig.refused(&any("h3", 1)).await, IpamError::NoPools(IpFamily::V4));
    assert_eq!(rig.assign(&any("h1", 1)).await.len(), 1, "what is left is served without any enabled pool");
}

#[tokio::test]
async fn pools_are_chosen_in_the_order_of_keys_or_by_name() {
    let rig = Rig::new(&["10.5.0.0/26", "10.4.0.0/26", "fd00:1::/64", "192.168.0.0/16"]).await;
    rig.pool("10.3.0.0/26", r#"{"ipam": false}"#).await;
    let pool = |given: &[tortie_engine::ipam::Allocation]| given[0].pool.to_string();
    assert_eq!(pool(&rig.assign(&any("h1", 1)).await), "10.4.0.0/26");
    assert_eq!(pool(&rig.assign(&from("h1", 1, &["192.168.0.0/16"])).await), "192.168.0.0/16");
    assert_eq!(pool(&rig.assign(&from("h1", 1, &["fd00:1::/64"])).await), "fd00:1::/64");
    let text = rig.refused(&from("h1", 1, &["10.9.0.0/16"])).await.to_string();
    assert_eq!(text, "there is no pool 10.9.0.0/16; the pools are 10.4.0.0/26, 10.5.0.0/26, 192.168.0.0/16");
    assert_eq!(rig.refused(&from("h1", 1, &["10.3.0.0/26"])).await.code(), "unknown-pool");
    let text = rig.refused(&exact("h1", "172.16.0.1")).await.to_string();
    assert!(text.starts_with("172.16.0.1 is in no pool; the pools are"), "{text}");
    let mixed = request(
        "h1",
        AddressRequest::Any { family: IpFamily::V6, count: 1, pools: vec![cidr("10.4.0.0/26")] },
    );
    assert_eq!(rig.refused(&mixed).await.code(), "bad-request");
    let none = Rig::new(&[]).await;
    let text = none.refused(&any("h1", 1)).await.to_string();
    assert!(text.contains("no enabled IPv4 pool") && text.contains("tortie ipam pool create"), "{text}");
}

#[tokio::test]
async fn several_wants_are_all_or_nothing() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let want = |family| AddressRequest::Any { family, count: 1, pools: vec![] };
    let both = AllocationRequest {
        addresses: vec![want(IpFamily::V4), want(IpFamily::V6)],
        ..held(any("h1", 1), "h")
    };
    assert_eq!(rig.refused(&both).await, IpamError::NoPools(IpFamily::V6));
    rig.pool("fd00::/64", "{}").await;
    let given = rig.assign(&both).await;
    assert_eq!(given.iter().map(|given| given.addr.is_ipv4()).collect::<Vec<_>>(), [true, false]);
    assert_eq!(given[1].block.len(), 122);
    assert_eq!(rig.handle("h").await.unwrap().blocks.len(), 2);
    let twice =
        AllocationRequest { addresses: vec![AddressRequest::Exact(addr("10.0.0.9")); 2], ..any("h1", 1) };
    assert_eq!(rig.refused(&twice).await.code(), "taken");
}

#[tokio::test]
async fn a_named_address_claims_its_block_or_is_taken() {
    let rig = Rig::new(&["10.0.0.0/16"]).await;
    let given = rig.assign(&held(exact("h1", "10.0.7.77"), "first")).await;
    assert_eq!(given[0].block, cidr("10.0.7.64/26"));
    assert_eq!(rig.affinity("h1", "10.0.7.64/26").await.unwrap(), r#"{"state":"confirmed"}"#);
    let error = rig.refused(&exact("h1", "10.0.7.77")).await;
    assert_eq!(error, IpamError::AddressInUse { addr: addr("10.0.7.77"), holder: Some("first".to_owned()) });
    let other = rig.assign(&held(exact("h2", "10.0.7.78"), "second")).await;
    assert_eq!(other[0].block, cidr("10.0.7.64/26"), "borrowed");
    assert!(rig.affinity("h2", "10.0.7.64/26").await.is_none());
    let found = rig.ipam.lookup(addr("10.0.7.78")).await.unwrap().unwrap();
    assert_eq!((found.handle.as_deref(), found.owner.as_deref()), (Some("second"), Some("h1")));
    assert_eq!(rig.ipam.lookup(addr("10.0.7.79")).await.unwrap(), None);
    assert_eq!(rig.ipam.lookup(addr("10.9.7.79")).await.unwrap(), None);
}

#[tokio::test]
async fn ranges_give_one_address_each_from_the_first_that_has_room() {
    let rig = Rig::new(&["10.0.0.0/24", "fd00::/112"]).await;
    let range = |subnet: &str, first: &str, last: &str, except: &[&str]| AddressRange {
        first: Some(addr(first)),
        last: Some(addr(last)),
        except: except.iter().map(|text| addr(text)).collect(),
        ..AddressRange::of(cidr(subnet))
    };
    let small = range("10.0.0.128/29", "10.0.0.129", "10.0.0.131", &["10.0.0.130"]);
    let next = AddressRange::of(cidr("10.0.0.192/30"));
    let outside = AddressRange::of(cidr("172.16.0.0/24"));
    let one_of = |ranges: &[&AddressRange]| {
        request("h1", AddressRequest::OneOf(ranges.iter().map(|range| (*range).clone()).collect()))
    };
    let mut got = Vec::new();
    for _ in 0..6 {
        got.extend(addrs(&rig.assign(&one_of(&[&outside, &small, &next])).await));
    }
    assert_eq!(got, ["10.0.0.129", "10.0.0.131", "10.0.0.192", "10.0.0.193", "10.0.0.194", "10.0.0.195"]);
    let text = rig.refused(&one_of(&[&small, &next])).await.to_string();
    assert!(text.contains("range 10.0.0.129-10.0.0.131 of 10.0.0.128/29, range 10.0.0.192/30"), "{text}");
    let text = rig.refused(&one_of(&[&outside])).await.to_string();
    assert!(text.contains("range 172.16.0.0/24 is in no pool"), "{text}");
    assert_eq!(
        rig.refused(&one_of(&[&range("10.0.0.0/29", "10.0.0.9", "10.0.0.2", &[])])).await.code(),
        "bad-request"
    );
    let six = rig.assign(&one_of(&[&range("fd00::/112", "fd00::ff", "fd00::ffff", &[])])).await;
    assert!(six[0].addr >= addr("fd00::ff"));
    // Another host requests the same range and borrows from the first one's block.
    let theirs =
        AllocationRequest { host: "h2".to_owned(), ..one_of(&[&AddressRange::of(cidr("10.0.0.132/31"))]) };
    assert_eq!(addrs(&rig.assign(&theirs).await), ["10.0.0.132"]);
}

#[tokio::test]
async fn reserved_addresses_are_only_given_by_name() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    rig.config(r#"{"auto_allocate_blocks": true, "reservedCIDRs": ["10.0.0.0/27", "10.0.0.63"]}"#).await;
    let given = rig.assign(&any("h1", 31)).await;
    assert!(given.iter().all(|given| (addr("10.0.0.32")..=addr("10.0.0.62")).contains(&given.addr)));
    assert_eq!(rig.refused(&any("h1", 1)).await.code(), "full");
    assert_eq!(addrs(&rig.assign(&exact("h1", "10.0.0.1")).await), ["10.0.0.1"]);
}

#[tokio::test]
async fn blocks_of_any_size_stand_side_by_side() {
    let rig = Rig::new(&[]).await;
    rig.pool("10.0.0.0/20", r#"{"blockSize": 32}"#).await;
    let given = rig.assign(&held(any("h1", 3), "h")).await;
    assert!(given.iter().all(|given| given.block.len() == 32));
    assert_eq!(blocks(&given).len(), 3);
    rig.pool("10.0.0.0/20", r#"{"blockSize": 22}"#).await;
    let all = rig.assign(&any("h2", 3072)).await;
    assert!(
        all.iter().all(|new| !new.block.contains(given[0].addr)),
        "the larger ones keep clear of the small ones"
    );
    assert_eq!(all[0].block.len(), 22);
}

#[tokio::test]
async fn small_pools_inside_of_large_ones_keep_their_blocks() {
    let rig = Rig::new(&["10.0.0.0/24", "10.0.0.128/25", "fd00::/120", "fd00::80/121"]).await;
    for (outer, inner) in [("10.0.0.0/24", "10.0.0.128/25"), ("fd00::/120", "fd00::80/121")] {
        let given = rig.assign(&from("h1", 128, &[outer])).await;
        assert!(given.iter().all(|given| !cidr(inner).contains(given.addr)));
        assert_eq!(rig.refused(&from("h1", 1, &[outer])).await.code(), "full");
        assert_eq!(rig.assign(&from("h1", 128, &[inner])).await.len(), 128);
    }
}

#[tokio::test]
async fn a_host_has_as_many_blocks_as_it_may() {
    let rig = Rig::new(&["10.0.0.0/16", "fd00::/64"]).await;
    rig.config(r#"{"auto_allocate_blocks": true, "maxBlocksPerHost": 2}"#).await;
    rig.assign(&any("h1", 128)).await;
    let error = rig.refused(&any("h1", 1)).await;
    assert_eq!(error, IpamError::BlockLimit { host: "h1".to_owned(), limit: 2 });
    assert_eq!(rig.refused(&exact("h1", "10.0.200.200")).await.code(), "block-limit");
    rig.assign(&from("h1", 1, &["fd00::/64"])).await;
    rig.config(r#"{"strict_affinity": true}"#).await;
    assert_eq!(rig.refused(&any("h1", 1)).await.code(), "full", "no automatic blocks");
    assert_eq!(rig.refused(&any("h4", 1)).await.code(), "full");
}

#[tokio::test]
async fn a_frozen_store_gives_nothing_and_takes_back() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let given = rig.assign(&held(any("h1", 1), "h")).await;
    for frozen in ["false", "", "TRUE"] {
        rig.put("/calico/v1/Ready", frozen).await;
        assert_eq!(rig.refused(&any("h1", 1)).await, IpamError::NotReady);
    }
    assert_eq!(rig.ipam.release_handle("h").await.unwrap(), [given[0].addr]);
    rig.put("/calico/v1/Ready", "true").await;
    rig.assign(&any("h1", 1)).await;
}

#[tokio::test]
async fn releases_by_address_and_by_handle() {
    let rig = Rig::new(&["10.0.0.0/16", "fd00::/64"]).await;
    let two = rig.assign(&held(any("h1", 2), "a")).await;
    let six = rig.assign(&held(from("h1", 1, &["fd00::/64"]), "a")).await;
    let other = rig.assign(&held(any("h1", 1), "b")).await[0].addr;
    let kept = rig
        .ipam
        .release(&[two[0].addr, other, addr("10.9.9.9"), addr("172.16.0.1")], Some("a"))
        .await
        .unwrap();
    assert_eq!(kept.released, [two[0].addr]);
    assert_eq!(kept.kept, [(other, Some("b".to_owned()))]);
    assert_eq!(kept.absent, [addr("10.9.9.9"), addr("172.16.0.1")]);
    assert_eq!(rig.handle("a").await.unwrap().blocks[&two[0].block], 1);
    let mut allocated_to = rig.ipam.allocated_to("a").await.unwrap();
    allocated_to.sort();
    assert_eq!(allocated_to, [two[1].addr, six[0].addr]);
    assert_eq!(rig.ipam.release_handle("a").await.unwrap(), [two[1].addr, six[0].addr]);
    assert!(rig.ipam.release_handle("a").await.unwrap().is_empty());
    assert!(rig.handle("a").await.is_none(), "a handle without addresses is deleted");
    rig.ipam.release(&[other], None).await.unwrap();
    assert!(rig.handle("b").await.is_none());
    let block = rig.block(&two[0].block.to_string()).await.unwrap();
    assert!(block.is_empty() && block.host() == Some("h1"), "an owned block stays when it is empty");
}

#[tokio::test]
async fn handles_of_their_own_for_each_address() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let request = AllocationRequest { handle_per_address: true, ..held(any("h1", 2), "libnetwork.") };
    let given = rig.assign(&request).await;
    for given in given {
        let handle = format!("libnetwork.{}", given.addr);
        assert_eq!(rig.ipam.release_handle(&handle).await.unwrap(), [given.addr]);
    }
}

#[tokio::test]
async fn claimed_and_given_up() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    let claims = rig.ipam.claim("h1", cidr("10.0.0.64/26")).await.unwrap();
    assert_eq!(claims.claimed, [cidr("10.0.0.64/26")]);
    assert_eq!(rig.assign(&any("h1", 1)).await[0].block, cidr("10.0.0.64/26"));
    let all = rig.ipam.claim("h2", cidr("10.0.0.0/24")).await.unwrap();
    assert_eq!(all.claimed.len(), 3);
    assert_eq!(all.refused, [(cidr("10.0.0.64/26"), "h1".to_owned())]);
    for (bad, says) in [("10.0.0.0/28", "less than a block"), ("10.0.0.0/16", "larger than pool")] {
        let text = rig.ipam.claim("h1", cidr(bad)).await.unwrap_err().to_string();
        assert!(text.contains(says), "{text}");
    }
    assert_eq!(rig.ipam.claim("h1", cidr("10.7.0.0/26")).await.unwrap_err().code(), "outside-pools");
    let gone = rig.ipam.unclaim("h1", cidr("0.0.0.0/0")).await.unwrap();
    assert_eq!((gone.deleted.len(), gone.kept), (0, vec![cidr("10.0.0.64/26")]));
    assert!(rig.affinity("h1", "10.0.0.64/26").await.is_none());
    assert_eq!(*rig.block("10.0.0.64/26").await.unwrap().affinity(), BlockAffinity::None);
    rig.ipam.release(&[addr("10.0.0.64")], None).await.unwrap();
    assert!(rig.block("10.0.0.64/26").await.is_none(), "nobody's, and empty: deleted");
    let gone = rig.ipam.unclaim("h2", cidr("10.0.0.0/25")).await.unwrap();
    assert_eq!(gone.deleted, [cidr("10.0.0.0/26")]);
}

#[tokio::test]
async fn a_removed_host_leaves_nothing_of_its_own() {
    let rig = Rig::new(&["10.0.0.0/25"]).await;
    let of = |host: &str| attributes(&[("node", host)]);
    rig.assign(&AllocationRequest { attributes: of("h1"), ..held(any("h1", 60), "h1.a") }).await;
    rig.assign(&AllocationRequest { attributes: of("h2"), ..held(any("h2", 64), "h2.a") }).await;
    let borrowed =
        rig.assign(&AllocationRequest { attributes: of("h2"), ..held(any("h2", 1), "h2.b") }).await;
    let nameless = rig.assign(&held(any("h1", 2), "old")).await;
    let theirs = rig.assign(&held(any("h1", 1), "old2")).await;
    let endpoint = format!(
        r#"{{"state": "active", "name": "cali1", "mac": null, "profile_ids": [], "ipv4_nets": ["{}/32"], "ipv6_nets": []}}"#,
        theirs[0].addr
    );
    rig.put("/calico/v1/host/h2/workload/cni/c/endpoint/eth0", &endpoint).await;
    let removed = rig.ipam.remove_host("h1").await.unwrap();
    assert_eq!(removed.released.len(), 62);
    assert!(nameless.iter().all(|given| removed.released.contains(&given.addr)));
    assert_eq!(removed.blocks.kept, [borrowed[0].block], "what others borrowed keeps the block");
    assert!(rig.keys().await.iter().all(|key| !key.contains("/host/h1/")));
    assert!(rig.ipam.lookup(theirs[0].addr).await.unwrap().is_some());
    rig.ipam.release(&[theirs[0].addr, borrowed[0].addr], None).await.unwrap();
    let removed = rig.ipam.remove_host("h2").await.unwrap();
    assert_eq!(removed.released.len(), 64);
    assert_eq!(rig.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn local_spaces_keep_to_themselves() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let space = |name: &str| Keyspace::Local { host: "h1".to_owned(), name: name.to_owned() };
    let (one, two) = (space("a/b"), space("c"));
    for space in [&one, &two] {
        rig.put(&space.pool(&cidr("172.18.0.0/24")), "{}").await;
    }
    let request = held(any("h1", 1), "x");
    let mut seen = BTreeSet::new();
    for space in [&one, &two] {
        let ipam = Ipam::in_keyspace(rig.store.clone(), space.clone());
        let given = ipam.assign(&request).await.unwrap();
        seen.insert(given[0].addr);
        assert_eq!(ipam.allocated_to("x").await.unwrap(), [given[0].addr]);
        assert!(rig.ipam.allocated_to("x").await.unwrap().is_empty());
    }
    assert_eq!(seen.len(), 1, "each space has the same addresses");
    assert_eq!(rig.keys().await, Vec::<String>::new());
    let local = Ipam::in_keyspace(rig.store.clone(), one.clone());
    assert_eq!(local.release_handle("x").await.unwrap().len(), 1);
    local.remove_host("h1").await.unwrap();
    let left = rig.store.list(&["/calico/tortie/".to_owned()]).await.unwrap();
    assert_eq!(
        left.entries.iter().filter(|entry| entry.key.starts_with(&one.root().unwrap())).count(),
        1,
        "its pool"
    );
}

#[tokio::test]
async fn requests_that_make_no_sense() {
    let rig = Rig::new(&["10.0.0.0/8"]).await;
    for bad in [any("", 1), held(any("h1", 1), ""), any("h1", 4097)] {
        assert_eq!(rig.refused(&bad).await.code(), "bad-request");
    }
    assert_eq!(rig.assign(&any("h1", 0)).await, []);
    assert_eq!(rig.assign(&any("h1", 2048)).await.len(), 2048);
    rig.put("/calico/ipam/v2/config", "{").await;
    let text = rig.refused(&any("h1", 1)).await.to_string();
    assert!(text.starts_with("/calico/ipam/v2/config: "), "{text}");
}

#[tokio::test]
async fn configuration_changes_only_without_blocks() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let mut config = rig.ipam.config().await.unwrap();
    assert!(config.auto_allocate_blocks && !config.strict_affinity);
    config.strict_affinity = true;
    rig.ipam.set_config(&config).await.unwrap();
    rig.assign(&any("h1", 1)).await;
    config.max_blocks_per_host = Some(3);
    rig.ipam.set_config(&config).await.unwrap();
    assert_eq!(rig.ipam.config().await.unwrap().max_blocks_per_host, Some(3));
    config.strict_affinity = false;
    let text = rig.ipam.set_config(&config).await.unwrap_err().to_string();
    assert!(text.contains("while there are blocks, such as 10.0.0.0/26"), "{text}");
    config.auto_allocate_blocks = false;
    assert!(
        rig.ipam.set_config(&config).await.unwrap_err().to_string().contains("no address could be allocated")
    );
}
