//! Calico 3's rules of automatic assignment and release.

use serde_json::{Value, json};
use tortie_config::key::IpFamily;
use tortie_engine::ipam::{AddressRequest, AddressUse, AllocationRequest, IpamError, ReleaseRequest};

use super::memory::{MemoryStore, held};
use super::{affinity_key, block_key, cluster, handle_key, ipam, object, want};
use std::sync::Arc;

const CONFIG: &str = "/calico/ipam/v2/config";
const POOL: &str = "10.0.0.0/28";

fn pool(cidr: &str, more: Value) -> Value {
    let mut spec = json!({"cidr": cidr, "blockSize": 30});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn named(request: AllocationRequest, pool: &str) -> AllocationRequest {
    let any = AddressRequest::Any { family: IpFamily::V4, count: 1, pools: vec![pool.parse().unwrap()] };
    AllocationRequest { addresses: vec![any], ..request }
}

fn exact(host: &str, addr: &str) -> AllocationRequest {
    AllocationRequest {
        addresses: vec![AddressRequest::Exact(addr.parse().unwrap())],
        ..want(host, "net.exact", 1)
    }
}

async fn refused(store: &Arc<MemoryStore>, request: &AllocationRequest) -> &'static str {
    let before = store.below("/calico/");
    let error = ipam(store).assign(request).await.expect_err("must fail");
    assert_eq!(store.below("/calico/"), before, "an error writes nothing: {error}");
    error.code()
}

async fn given(store: &Arc<MemoryStore>, request: &AllocationRequest) -> Vec<String> {
    let given = ipam(store).assign(request).await.unwrap_or_else(|error| panic!("{error}"));
    given.iter().map(|given| given.addr.to_string()).collect()
}

/// Returns a block of four addresses whose owner claimed it long ago.
fn empty_block(cidr: &str, affinity: Value) -> Value {
    json!({"cidr": cidr, "affinity": affinity, "affinity_claim_time": "2020-01-01T00:00:00Z",
           "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [],
           "deleted": false, "sequenceNumber": 7, "sequenceNumberForAllocation": {}})
}

#[tokio::test]
async fn a_new_block_is_written_as_calico_does() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    let begun = jiff::Timestamp::now().as_nanosecond();
    assert_eq!(given(&store, &want("h1", "net.a", 2)).await, ["10.0.0.0", "10.0.0.1"]);
    let mut block = store.value(&block_key("10.0.0.0/30")).unwrap();
    let number = block["sequenceNumber"].as_u64().unwrap() - 1;
    assert!(i128::from(number) >= begun, "the nanoseconds since 1970");
    let claimed: jiff::Timestamp = block["affinity_claim_time"].as_str().unwrap().parse().unwrap();
    assert!((claimed.as_second() - jiff::Timestamp::now().as_second()).abs() < 60);
    block
        .as_object_mut()
        .unwrap()
        .retain(|name, _| name != "sequenceNumber" && name != "affinity_claim_time");
    assert_eq!(
        block,
        json!({"cidr": "10.0.0.0/30", "affinity": "host:h1", "allocations": [0, 0, null, null],
               "unallocated": [2, 3], "attributes": [{"handle_id": "net.a", "secondary": {"node": "h1"}}],
               "deleted": false, "sequenceNumberForAllocation": {"0": number, "1": number}})
    );
    assert_eq!(store.value(&affinity_key("h1", "10.0.0.0/30")), Some(json!({"state": "confirmed"})));
    assert_eq!(store.value(&handle_key("net.a")), Some(json!({"block": {"10.0.0.0/30": 2}})));
    assert_eq!(ipam(&store).release_handle("net.a").await.unwrap().len(), 2);
    let block = store.value(&block_key("10.0.0.0/30")).unwrap();
    assert_eq!((&block["sequenceNumber"], &block["attributes"]), (&json!(number + 2), &json!([])));
    assert_eq!(store.value(&handle_key("net.a")), None);
}

#[tokio::test]
async fn the_cluster_must_be_ready_and_the_host_must_have_a_node() {
    let store = cluster(&["h1"], &[pool(POOL, json!({}))]);
    assert_eq!(refused(&store, &want("h2", "net.a", 1)).await, "no-node");
    for ready in [Some(json!({"datastoreReady": false})), Some(json!({})), None] {
        let (key, value) =
            object("clusterinformations", "default", json!({}), ready.clone().unwrap_or_default());
        if ready.is_some() {
            store.put(&key, &value)
        } else {
            store.delete(&key)
        }
        let error = ipam(&store).assign(&want("h1", "net.a", 1)).await.unwrap_err();
        assert_eq!((error.code(), error.is_temporary()), ("cluster-not-ready", true), "{ready:?}");
    }
}

#[tokio::test]
async fn pools_serve_hosts_and_uses_that_they_name() {
    let only_h2 = pool("10.0.0.0/28", json!({"nodeSelector": "host == 'h2'"}));
    let tunnels = pool("10.1.0.0/28", json!({"allowedUses": ["Tunnel"]}));
    let manual = pool("10.2.0.0/28", json!({"assignmentMode": "Manual"}));
    let disabled = pool("10.3.0.0/28", json!({"disabled": true}));
    let store = cluster(&["h1", "h2"], &[only_h2, tunnels, manual, disabled]);
    let first = |given: Vec<String>| given[0].split('.').nth(1).unwrap().to_owned();
    assert_eq!(refused(&store, &want("h1", "net.a", 1)).await, "no-fitting-pool");
    assert_eq!(first(given(&store, &want("h2", "net.b", 1)).await), "0");
    let tunnel =
        AllocationRequest { address_use: AddressUse::Tunnel, ..want("h1", "ipip-tunnel-addr-h1", 1) };
    assert_eq!(first(given(&store, &tunnel).await), "1");
    // A pool that is named needs no selector and no mode, but must be enabled, and for this use.
    assert_eq!(first(given(&store, &named(want("h1", "net.c", 1), "10.0.0.0/28")).await), "0");
    assert_eq!(first(given(&store, &named(want("h1", "net.d", 1), "10.2.0.0/28")).await), "2");
    assert_eq!(refused(&store, &named(want("h1", "net.e", 1), "10.1.0.0/28")).await, "pool-use");
    assert_eq!(refused(&store, &named(want("h1", "net.e", 1), "10.3.0.0/28")).await, "pool-disabled");
    assert_eq!(given(&store, &exact("h1", "10.2.0.9")).await, ["10.2.0.9"]);
    assert_eq!(refused(&store, &exact("h1", "10.1.0.9")).await, "pool-use");
    assert_eq!(refused(&store, &exact("h1", "10.3.0.9")).await, "pool-disabled");
}

#[tokio::test]
async fn reserved_addresses_are_given_on_request_only() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/29", json!({}))]);
    let (key, value) =
        object("ipreservations", "r", json!({}), json!({"reservedCIDRs": ["10.0.0.0/30", "10.0.0.5/32"]}));
    store.put(&key, &value);
    let mut all = given(&store, &want("h1", "net.a", 3)).await;
    all.sort();
    assert_eq!(all, ["10.0.0.4", "10.0.0.6", "10.0.0.7"]);
    assert_eq!(refused(&store, &want("h1", "net.b", 1)).await, "full");
    assert_eq!(given(&store, &exact("h1", "10.0.0.1")).await, ["10.0.0.1"]);
}

#[tokio::test]
async fn a_host_has_at_most_twenty_blocks_or_the_configured_number_and_borrows_none() {
    let store = cluster(&["h1", "h2"], &[pool("10.0.0.0/24", json!({}))]);
    assert_eq!(given(&store, &want("h2", "net.other", 1)).await.len(), 1);
    assert_eq!(given(&store, &want("h1", "net.a", 80)).await.len(), 80);
    assert_eq!(refused(&store, &want("h1", "net.b", 1)).await, "block-limit");
    store.put(CONFIG, &json!({"auto_allocate_blocks": true, "maxBlocksPerHost": 21}));
    given(&store, &want("h1", "net.b", 4)).await;
    assert_eq!(refused(&store, &want("h1", "net.c", 1)).await, "block-limit");
}

#[tokio::test]
async fn an_empty_block_of_another_host_is_taken_over_unless_it_is_new() {
    for (time, taken) in [
        (Some("2020-01-01T00:00:00Z".to_owned()), true),
        (None, true),
        (Some(jiff::Timestamp::now().to_string()), false),
    ] {
        let store = cluster(&["h1", "h2"], &[pool("10.0.0.0/30", json!({}))]);
        store.put(CONFIG, &json!({"strict_affinity": true, "auto_allocate_blocks": true}));
        let mut block = empty_block("10.0.0.0/30", json!("host:h2"));
        block["affinity_claim_time"] = json!(time);
        block["later"] = json!([1]);
        store.put(&block_key("10.0.0.0/30"), &block);
        store.put(&affinity_key("h2", "10.0.0.0/30"), &json!({"state": "confirmed"}));
        if !taken {
            assert_eq!(refused(&store, &want("h1", "net.a", 1)).await, "full");
            continue;
        }
        given(&store, &want("h1", "net.a", 1)).await;
        let block = store.value(&block_key("10.0.0.0/30")).unwrap();
        assert_eq!((&block["affinity"], &block["sequenceNumber"]), (&json!("host:h1"), &json!(8)));
        assert_ne!(block["affinity_claim_time"], json!(time), "claimed now");
        assert_eq!(store.value(&affinity_key("h2", "10.0.0.0/30")), None);
        assert_eq!(store.value(&affinity_key("h1", "10.0.0.0/30")), Some(json!({"state": "confirmed"})));
    }
}

#[tokio::test]
async fn own_empty_blocks_of_a_pool_that_no_longer_serves_the_host_go() {
    let old = pool("10.0.0.0/28", json!({"nodeSelector": "host == 'h2'"}));
    let store = cluster(&["h1"], &[old, pool("10.1.0.0/28", json!({}))]);
    for block in ["10.0.0.0/30", "10.0.0.4/30"] {
        store.put(&block_key(block), &empty_block(block, json!("host:h1")));
        store.put(&affinity_key("h1", block), &json!({"state": "confirmed"}));
    }
    given(&store, &exact("h1", "10.0.0.5")).await;
    given(&store, &want("h1", "net.a", 1)).await;
    assert!(
        store.value(&block_key("10.0.0.0/30")).is_none()
            && store.value(&affinity_key("h1", "10.0.0.0/30")).is_none()
    );
    assert!(store.value(&block_key("10.0.0.4/30")).is_some(), "it has an address");
}

#[tokio::test]
async fn a_released_address_cools_down_for_the_configured_time() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    store.put(CONFIG, &json!({"auto_allocate_blocks": true, "ipCooldownSeconds": 3600}));
    let addr = "10.0.0.0".parse().unwrap();
    given(&store, &want("h1", "net.a", 1)).await;
    assert_eq!(ipam(&store).release(&[addr], None).await.unwrap().released, [addr]);
    assert_eq!(store.value(&handle_key("net.a")), None, "the count goes at once");
    let key = block_key("10.0.0.0/30");
    let block = store.value(&key).unwrap();
    let entry = &block["attributes"][0];
    assert!(entry["handle_id"].is_null() && entry["secondary"].is_null() && entry["releasedAt"].is_string());
    assert_eq!((&block["allocations"][0], &block["unallocated"]), (&json!(0), &json!([1, 2, 3])));
    assert_eq!(ipam(&store).release(&[addr], None).await.unwrap().absent, [addr]);
    assert_eq!(ipam(&store).lookup(addr).await.unwrap(), None);
    assert_eq!(given(&store, &want("h1", "net.b", 3)).await, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(refused(&store, &want("h1", "net.c", 1)).await, "full");
    // The time is over: the next request finds the address free, although the block seems full.
    let mut block = store.value(&key).unwrap();
    let cooling =
        block["attributes"].as_array_mut().unwrap().iter_mut().find(|e| e["releasedAt"].is_string());
    cooling.unwrap()["releasedAt"] =
        json!((jiff::Timestamp::now() - jiff::Span::new().seconds(3700)).to_string());
    let number = block["sequenceNumber"].as_u64().unwrap();
    block["sequenceNumber"] = json!(number + 1);
    store.put(&key, &block);
    assert_eq!(given(&store, &want("h1", "net.c", 1)).await, ["10.0.0.0"]);
    assert!(!store.value(&key).unwrap().to_string().contains("releasedAt"));
    // Without a time nothing cools down.
    store.put(CONFIG, &json!({"auto_allocate_blocks": true}));
    ipam(&store).release_handle("net.b").await.unwrap();
    assert_eq!(store.value(&key).unwrap()["unallocated"], json!([1, 2, 3]));
}

#[tokio::test]
async fn a_release_that_names_another_allocation_releases_nothing() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    given(&store, &want("h1", "net.a", 2)).await;
    let ask = |addr: &str, handle: Option<&str>, sequence| ReleaseRequest {
        addr: addr.parse().unwrap(),
        handle: handle.map(str::to_owned),
        sequence,
    };
    let ipam = ipam(&store);
    let number = ipam.lookup("10.0.0.0".parse().unwrap()).await.unwrap().unwrap().sequence;
    assert!(number.is_some());
    let good = ask("10.0.0.0", Some("net.a"), number);
    for bad in [
        ask("10.0.0.1", Some("net.b"), None),
        ask("10.0.0.1", None, number.map(|number| number + 1)),
        ask("10.0.0.2", None, number),
    ] {
        let before = store.below("/calico/");
        let error = ipam.release_same(&[good.clone(), bad]).await.unwrap_err();
        assert!(matches!(error, IpamError::StaleRelease { .. }), "{error}");
        assert_eq!(store.below("/calico/"), before);
    }
    let done =
        ipam.release_same(&[good, ask("10.0.0.1", None, None), ask("10.0.0.3", None, None)]).await.unwrap();
    assert_eq!((done.released.len(), done.absent.len()), (2, 1));
}

#[tokio::test]
async fn what_is_marked_as_deleted_does_not_exist() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    let mut block = empty_block("10.0.0.0/30", json!("host:h2"));
    block["deleted"] = json!(true);
    block["allocations"][0] = json!(0);
    block["unallocated"] = json!([1, 2, 3]);
    block["attributes"] = json!([{"handle_id": "gone", "secondary": null}]);
    assert_eq!(held(&block).len(), 1);
    store.put(&block_key("10.0.0.0/30"), &block);
    store.put(&affinity_key("h1", "10.0.0.0/30"), &json!({"state": "confirmed", "deleted": true}));
    store.put(&handle_key("net.a"), &json!({"block": {"10.0.0.0/30": 9}, "deleted": true}));
    given(&store, &want("h1", "net.a", 1)).await;
    assert_eq!(store.value(&handle_key("net.a")).unwrap()["block"], json!({"10.0.0.0/30": 1}));
    assert_eq!(store.value(&affinity_key("h1", "10.0.0.0/30")).unwrap()["state"], json!("confirmed"));
    store.put(&handle_key("net.z"), &json!({"block": {"10.0.0.0/30": 1}, "deleted": true}));
    assert_eq!(ipam(&store).release_handle("net.z").await.unwrap().len(), 0);
}

#[tokio::test]
async fn blocks_of_load_balancers_are_read_only() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    let mut block = empty_block("10.0.0.0/30", json!("virtual:load-balancer"));
    block["allocations"][0] = json!(0);
    block["unallocated"] = json!([1, 2, 3]);
    block["attributes"] = json!([{"handle_id": "lb", "secondary": null}]);
    store.put(&block_key("10.0.0.0/30"), &block);
    assert_eq!(refused(&store, &want("h1", "net.a", 1)).await, "full");
    assert_eq!(refused(&store, &exact("h1", "10.0.0.1")).await, "strict-owner");
    let error = ipam(&store).release(&["10.0.0.0".parse().unwrap()], None).await.unwrap_err();
    assert_eq!(error.code(), "refused");
    assert_eq!(store.value(&block_key("10.0.0.0/30")), Some(block));
}

#[tokio::test]
async fn an_empty_block_without_an_owner_is_deleted() {
    let store = cluster(&["h1"], &[pool("10.0.0.0/30", json!({}))]);
    given(&store, &want("h1", "net.a", 1)).await;
    let given_up = ipam(&store).unclaim("h1", "10.0.0.0/30".parse().unwrap()).await.unwrap();
    assert_eq!(given_up.kept.len(), 1);
    let block = store.value(&block_key("10.0.0.0/30")).unwrap();
    assert!(block["affinity"].is_null() && block["affinity_claim_time"].is_null());
    ipam(&store).release_handle("net.a").await.unwrap();
    assert_eq!(store.below("/calico/ipam/v2/"), []);
}
