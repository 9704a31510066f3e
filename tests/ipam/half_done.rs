//! State that Calico's writers leave when they stop between two writes, and the formats that they write.

use serde_json::{Value, json};
use tortie_engine::ipam::IpamError;

use crate::rig::*;

/// Returns a block as Calico 2.x writes it: owner and allocations (ordinal, handle).
fn go_block(cidr: &str, owner: Option<&str>, allocations: &[(usize, &str)]) -> String {
    let mut list = vec![Value::Null; 64];
    let mut attributes = Vec::new();
    for (index, (ordinal, handle)) in allocations.iter().enumerate() {
        list[*ordinal] = json!(index);
        attributes.push(json!({"handle_id": handle, "secondary": null}));
    }
    let free: Vec<usize> = (0..64).filter(|ordinal| list[*ordinal].is_null()).collect();
    json!({"cidr": cidr, "affinity": owner.map(|owner| format!("host:{owner}")), "strictAffinity": false,
           "allocations": list, "unallocated": free, "attributes": attributes})
    .to_string()
}

const BLOCK: &str = "10.0.0.64/26";
const BLOCK_KEY: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26";
const AFFINITY_KEY: &str = "/calico/ipam/v2/host/h1/ipv4/block/10.0.0.64-26";
const CONFIRMED: &str = r#"{"state":"confirmed"}"#;

/// Creates one pool, an affinity of h1 to a block with this value, and the block with this owner.
async fn left(affinity: Option<&str>, owner: Option<Option<&str>>) -> Rig {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    if let Some(affinity) = affinity {
        rig.put(AFFINITY_KEY, affinity).await;
    }
    if let Some(owner) = owner {
        rig.put(BLOCK_KEY, &go_block(BLOCK, owner, &[(3, "old")])).await;
    }
    rig
}

#[tokio::test]
async fn own_blocks_of_every_generation_are_used() {
    // Python and early Go versions wrote no state; an interrupted claim or release is completed as a claim.
    for state in ["", "{}", CONFIRMED, r#"{"state": "pending"}"#, r#"{"state": "pendingDeletion"}"#] {
        let rig = left(Some(state), Some(Some("h1"))).await;
        let given = rig.assign(&held(any("h1", 1), "new")).await;
        assert_eq!(addrs(&given), ["10.0.0.64"], "{state}");
        let stored = rig.affinity("h1", BLOCK).await.unwrap();
        let untouched = matches!(state, "" | "{}" | CONFIRMED);
        assert_eq!(stored, if untouched { state } else { CONFIRMED });
        let block = rig.block(BLOCK).await.unwrap();
        assert_eq!(block.allocation(3).unwrap().handle.as_deref(), Some("old"));
    }
}

#[tokio::test]
async fn a_claim_without_a_block_is_completed() {
    for state in ["", CONFIRMED, r#"{"state": "pending"}"#] {
        let rig = left(Some(state), None).await;
        let given = rig.assign(&any("h1", 1)).await;
        assert_eq!(addrs(&given), ["10.0.0.64"], "{state}");
        assert_eq!(rig.block(BLOCK).await.unwrap().host(), Some("h1"));
    }
}

#[tokio::test]
async fn false_affinities_go() {
    for (state, owner) in [
        (CONFIRMED, Some(Some("h2"))),
        ("", Some(Some("h2"))),
        (r#"{"state": "pending"}"#, Some(Some("h2"))),
        (CONFIRMED, Some(None)),
        (r#"{"state": "pendingDeletion"}"#, None),
    ] {
        let rig = left(Some(state), owner).await;
        let given = rig.assign(&any("h1", 1)).await;
        let own = rig.affinity("h1", &given[0].block.to_string()).await;
        assert_eq!(own.as_deref(), Some(CONFIRMED));
        if given[0].block != cidr(BLOCK) {
            assert_eq!(rig.affinity("h1", BLOCK).await, None, "{state} {owner:?}");
        }
    }
}

#[tokio::test]
async fn a_block_whose_owner_has_no_affinity_is_found_again() {
    let rig = left(None, Some(Some("h1"))).await;
    rig.assign(&exact("h1", "10.0.0.70")).await;
    assert_eq!(rig.affinity("h1", BLOCK).await.as_deref(), Some(CONFIRMED));
    // Also during block selection: the other three blocks are full.
    let rig = left(None, Some(Some("h1"))).await;
    rig.assign(&any("h1", 192 + 63)).await;
    assert_eq!(rig.affinity("h1", BLOCK).await.as_deref(), Some(CONFIRMED));
    assert_eq!(rig.refused(&any("h1", 1)).await.code(), "full");
}

#[tokio::test]
async fn handles_of_others_over_count_and_stand_elsewhere() {
    let rig = left(Some(CONFIRMED), Some(Some("h1"))).await;
    // Counts of Calico 2.x are those of the request, and name blocks that no longer exist.
    let old = r#"{"block": {"10.0.0.64/26": 5, "10.0.0.192/26": 2}}"#;
    rig.put("/calico/ipam/v2/handle/old", old).await;
    assert_eq!(rig.ipam.allocated_to("old").await.unwrap(), [addr("10.0.0.67")]);
    let given = rig.assign(&held(any("h1", 1), "old")).await;
    rig.ipam.release(&[given[0].addr], None).await.unwrap();
    assert_eq!(
        rig.handle("old").await.unwrap().blocks[&cidr(BLOCK)],
        5,
        "others may be about to use what they count"
    );
    assert_eq!(rig.ipam.release_handle("old").await.unwrap(), [addr("10.0.0.67")]);
    assert!(rig.handle("old").await.is_none());

    let rig = left(Some(CONFIRMED), Some(Some("h1"))).await;
    let key = "/calico/ipam/v2/assignment/handle/old";
    rig.put(key, r#"{"id": "old", "block": {"10.0.0.64/26": 1}}"#).await;
    rig.assign(&held(any("h1", 1), "old")).await;
    assert!(rig.get(key).await.is_none(), "moved to where handles are now");
    assert_eq!(rig.handle("old").await.unwrap().blocks[&cidr(BLOCK)], 2);
    assert_eq!(rig.ipam.release_handle("old").await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_cannot_be_read_is_left_alone() {
    let rig = left(Some(CONFIRMED), None).await;
    rig.put(BLOCK_KEY, "{").await;
    let given = rig.assign(&any("h1", 1)).await;
    assert_ne!(given[0].block, cidr(BLOCK));
    let error = rig.refused(&exact("h1", "10.0.0.65")).await;
    assert!(matches!(error, IpamError::Unreadable { ref key, .. } if key == BLOCK_KEY), "{error}");
    rig.pool("10.1.0.0/16", "{").await;
    rig.assign(&any("h1", 1)).await;
}

#[tokio::test]
async fn another_kind_of_owner_keeps_its_blocks() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26";
    rig.put(
        key,
        &go_block("10.0.0.0/26", None, &[]).replace("\"affinity\":null", "\"affinity\":\"virtual:lb\""),
    )
    .await;
    assert_eq!(rig.refused(&any("h1", 1)).await.code(), "full");
    assert_eq!(rig.refused(&exact("h1", "10.0.0.1")).await.code(), "strict-owner");
}
