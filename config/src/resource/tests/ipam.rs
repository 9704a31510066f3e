//! Pools, blocks, affinities and handles in the formats of all Calico versions.

use serde_json::{Value, json};

use super::{inside, read, refused, rewritten};
use crate::resource::*;

const POOL: &str = "/calico/v1/ipam/v4/pool/192.168.0.0-16";
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/192.168.0.0-26";

fn pool(value: &str) -> Pool {
    inside!(Pool, read(POOL, value))
}

fn block(value: &str) -> Block {
    *inside!(Block, read(BLOCK, value))
}

#[test]
fn a_pool_of_python_leaves_out_defaults_and_may_have_host_bits() {
    let pool = pool(r#"{"cidr": "192.168.3.4/16"}"#);
    assert_eq!(pool, Pool::new("192.168.0.0/16".parse().unwrap()));
    assert!(pool.ipam, "absent means yes");
}

#[test]
fn a_pool_of_go_and_its_tunnel() {
    let value = r#"{"cidr":"192.168.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet","masquerade":true,"ipam":true,
                    "disabled":true,"disableBGPExport":false}"#;
    let pool = pool(value);
    assert_eq!(pool.ipip, Some(Ipip { device: "tunl0".parse().unwrap(), mode: IpipMode::CrossSubnet }));
    assert!(pool.masquerade && pool.disabled && pool.ipam);
    assert_eq!(rewritten(POOL, value), serde_json::from_str::<Value>(value).unwrap());
}

#[test]
fn the_tunnel_follows_the_device_name() {
    let mode = |text: &str| pool(text).ipip.map(|ipip| ipip.mode);
    assert_eq!(mode(r#"{"ipip": "tunl0"}"#), Some(IpipMode::Always));
    assert_eq!(mode(r#"{"ipip": "tunl0", "ipip_mode": ""}"#), Some(IpipMode::Always));
    assert_eq!(mode(r#"{"ipip": "", "ipip_mode": "always"}"#), None);
    assert_eq!(mode(r#"{"ipip": null}"#), None);
    assert_eq!(
        rewritten(POOL, r#"{"cidr": "192.168.0.0/16"}"#),
        json!({"cidr": "192.168.0.0/16", "ipip": "", "ipip_mode": "", "masquerade": false, "ipam": true,
               "disabled": false})
    );
}

#[test]
fn a_pool_has_one_tunnel() {
    let mode = |text: &str| pool(text).vxlan;
    assert_eq!(mode(r#"{"vxlan_mode": "always"}"#), Some(IpipMode::Always));
    assert_eq!(
        mode(r#"{"vxlan_mode": "cross-subnet", "ipip": "", "ipip_mode": ""}"#),
        Some(IpipMode::CrossSubnet)
    );
    assert_eq!(mode(r#"{"vxlan_mode": ""}"#), None);
    let v6 = "/calico/v1/ipam/v6/pool/fd00::-64";
    assert_eq!(inside!(Pool, read(v6, r#"{"vxlan_mode": "always"}"#)).vxlan, Some(IpipMode::Always));
    let value = r#"{"cidr":"192.168.0.0/16","ipip":"","ipip_mode":"","vxlan_mode":"cross-subnet","masquerade":true,
                    "ipam":true,"disabled":false}"#;
    assert_eq!(rewritten(POOL, value), serde_json::from_str::<Value>(value).unwrap());
}

#[test]
fn impossible_pools() {
    for (key, value, says) in [
        (
            POOL,
            r#"{"cidr": "192.169.0.0/16"}"#,
            "`cidr`: found `192.169.0.0/16`; the key says 192.168.0.0/16",
        ),
        (POOL, r#"{"cidr": "hello"}"#, "`cidr`: found `hello`"),
        (POOL, r#"{"ipip": "tunl0", "ipip_mode": "never"}"#, "`ipip_mode`: found `never`"),
        (POOL, r#"{"vxlan_mode": "never"}"#, "`vxlan_mode`: found `never`"),
        (POOL, r#"{"ipip": "tunl0", "vxlan_mode": "always"}"#, "a pool has one tunnel"),
        (POOL, r#"{"ipip": "a name that is too long"}"#, "`ipip`"),
        (POOL, r#"{"masquerade": 1}"#, "`masquerade`: found `1`"),
        (POOL, "192.168.0.0/16", "no JSON"),
        (POOL, "", "an empty value"),
        ("/calico/v1/ipam/v4/pool/10.0.0.0-27", "{}", "choose /26 or shorter"),
        ("/calico/v1/ipam/v6/pool/fd00::-123", "{}", "choose /122 or shorter"),
        ("/calico/v1/ipam/v6/pool/fd00::-64", r#"{"ipip": "tunl0"}"#, "IPv6 pools have no IPIP"),
        ("/calico/v1/ipam/v4/pool/169.254.0.0-20", "{}", "outside of 169.254.0.0/16"),
        ("/calico/v1/ipam/v6/pool/fe80::-64", "{}", "outside of fe80::/10"),
    ] {
        let text = refused(key, value);
        assert!(text.contains(says), "{value}: {text}");
    }
    read("/calico/v1/ipam/v4/pool/10.0.0.0-30", r#"{"disabled": true}"#);
    read("/calico/v1/ipam/v4/pool/10.0.0.0-30", r#"{"ipam": false}"#);
}

/// Returns a block value with `count` entries in `allocations`, the first of which are given.
fn block_json(first: &[Value], fields: Value) -> String {
    let mut list = first.to_vec();
    list.resize(64, Value::Null);
    let mut value = json!({"cidr": "192.168.0.0/26", "allocations": list});
    let Value::Object(more) = fields else { panic!("an object") };
    value.as_object_mut().unwrap().extend(more);
    value.to_string()
}

#[test]
fn the_owner_of_a_block_in_every_spelling() {
    let owner = |fields: Value| block(&block_json(&[], fields)).affinity().clone();
    let host = BlockAffinity::Host("calico-host-01".to_owned());
    assert_eq!(owner(json!({"affinity": "host:calico-host-01"})), host);
    assert_eq!(owner(json!({"hostAffinity": "calico-host-01"})), host, "very old Go");
    assert_eq!(owner(json!({"affinity": "host:calico-host-01", "hostAffinity": null})), host);
    assert_eq!(owner(json!({"affinity": null})), BlockAffinity::None, "Go");
    assert_eq!(owner(json!({"affinity": ""})), BlockAffinity::None, "Python");
    assert_eq!(owner(json!({})), BlockAffinity::None);
    assert_eq!(owner(json!({"affinity": "host:a:b"})), BlockAffinity::Host("a:b".to_owned()));
    assert_eq!(
        owner(json!({"affinity": "virtual:load-balancer"})),
        BlockAffinity::Other("virtual:load-balancer".to_owned())
    );
    for bad in ["host:", "calico-host-01"] {
        let text = refused(BLOCK, &block_json(&[], json!({"affinity": bad})));
        assert!(text.contains("`affinity`"), "{text}");
    }
}

#[test]
fn a_full_block_is_seen_at_a_glance() {
    let cidr = "10.0.0.0/30".parse().unwrap();
    // As Python's json.dumps formats it, with unknown fields.
    let value = |affinity: &str, allocations: &str, free: &str| {
        format!(
            r#"{{"strict_affinity": false, "sequenceNumber": 7, "allocations": {allocations}, "cidr": "10.0.0.0/30",
                "attributes": [{{"handle_id": "h\u00e9\"]", "secondary": {{"pod": [null, "x"]}}}}],
                "affinity": {affinity}, "unallocated": {free}}}"#
        )
    };
    let full = |text: String| Block::is_full_of("a", cidr, text.as_bytes());
    assert!(full(value(r#""host:a""#, "[0, 0, 0, 0]", "[]")));
    assert!(!full(value(r#""host:a""#, "[0, 0, null, 0]", "[2]")));
    assert!(!full(value(r#""host:a""#, "[0, 0, null, 0]", "[]")), "a free list that lacks an address");
    assert!(!full(value(r#""host:a""#, "[0, 0, 0]", "[]")), "damaged: reading it says so");
    for other in [r#""host:b""#, "null", "\"\"", r#""virtual:a""#] {
        assert!(!full(value(other, "[0, 0, 0, 0]", "[]")), "{other}");
    }
    assert!(!full("{}".to_owned()));
}

#[test]
fn both_spellings_of_the_strict_flag() {
    assert!(block(&block_json(&[], json!({"strict_affinity": true}))).strict());
    assert!(block(&block_json(&[], json!({"strictAffinity": true}))).strict());
    assert!(!block(&block_json(&[], json!({}))).strict());
    let again = rewritten(BLOCK, &block_json(&[], json!({"strict_affinity": true, "sequenceNumber": 7})));
    assert_eq!(again["strictAffinity"], true);
    assert_eq!(again.get("strict_affinity"), None);
    assert_eq!(again["sequenceNumber"], 7, "a field that nobody named is kept");
}

#[test]
fn the_specification_s_block_with_primary_and_no_free_list() {
    let attributes = json!([
        {"primary": "0cd47986-24ad-4c00-b9d3-5db9e5c02028",
         "secondary": {"container-id": "ba11f1de-fc4d-46fd-9f15-424f4ef05a3a"}},
        {"primary": "3465987ac-8975-987qr8789725875-98275", "secondary": null},
        {"handle_id": "adf4589", "secondary": {"rack": "01"}}
    ]);
    let value = block_json(
        &[json!(0), json!(0), json!(0), json!(1), json!(2), json!(2)],
        json!({"affinity": "host:calico-host-01", "attributes": attributes}),
    );
    let block = block(&value);
    assert_eq!(block.host(), Some("calico-host-01"));
    assert_eq!(block.allocation(1).unwrap().handle.as_deref(), Some("0cd47986-24ad-4c00-b9d3-5db9e5c02028"));
    assert_eq!(block.allocation(5).unwrap().get("rack"), Some("01"));
    assert_eq!(block.allocation(6), None);
    assert_eq!(block.free().first(), Some(&6), "derived from the nulls, in ordinal order");
    assert_eq!(block.free().len(), 58);
    let again = rewritten(BLOCK, &value);
    assert_eq!(again["attributes"][0]["handle_id"], "0cd47986-24ad-4c00-b9d3-5db9e5c02028");
    assert_eq!(again["attributes"][1]["secondary"], Value::Null);
    assert_eq!(again["unallocated"].as_array().unwrap().len(), 58);
}

#[test]
fn a_block_that_would_give_an_address_out_twice_is_refused() {
    let attributes = json!([{"handle_id": "h", "secondary": null}]);
    for (fields, says) in [
        (json!({"attributes": attributes, "unallocated": [0, 1]}), "`unallocated[0]`: found `0`"),
        (json!({"attributes": attributes, "unallocated": [1, 1]}), "`unallocated[1]`: found `1`"),
        (json!({"attributes": attributes, "unallocated": [64]}), "`unallocated[0]`: found `64`"),
        (json!({"attributes": []}), "`allocations[0]`: found `0`"),
        (
            json!({"attributes": attributes, "allocations": [0, null]}),
            "found 2 entries; write one entry per address: 64",
        ),
        (json!({"attributes": attributes, "cidr": "192.168.0.64/26"}), "the key says 192.168.0.0/26"),
        (json!({"attributes": [{"handle_id": 5}]}), "`attributes[0].handle_id`"),
    ] {
        let text = refused(BLOCK, &block_json(&[json!(0)], fields));
        assert!(text.contains(says), "{text}");
    }
    let text = refused("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-8", "{}");
    assert!(text.contains("at most 4096 addresses"), "{text}");
}

#[test]
fn a_free_list_that_misses_some_is_completed_at_its_end() {
    let value = block_json(&[json!(0)], json!({"attributes": [{"handle_id": null}], "unallocated": [63, 5]}));
    assert_eq!(block(&value).free().get(..4), Some(&[63, 5, 1, 2][..]));
}

#[test]
fn attributes_that_nothing_points_to_are_dropped() {
    let attributes = json!([{"handle_id": "a"}, {"handle_id": "b"}, {"handle_id": "c"}]);
    let block = block(&block_json(&[json!(2), json!(0)], json!({"attributes": attributes})));
    let handles: Vec<_> = block.allocated().map(|(n, a)| (n, a.handle.as_deref().unwrap())).collect();
    assert_eq!(handles, [(0, "c"), (1, "a")]);
    assert_eq!(
        serde_json::from_slice::<Value>(&block.to_value()).unwrap()["attributes"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn freed_addresses_rest_at_the_end_and_indexes_shift() {
    let cidr = "192.168.0.0/26".parse().unwrap();
    let mut block = Block::new(cidr, BlockAffinity::Host("h1".to_owned()), false).unwrap();
    let of = |handle: &str| Attribute { handle: Some(handle.to_owned()), ..Attribute::default() };
    assert!(block.allocate(0, &of("a")) && block.allocate(1, &of("b")) && block.allocate(2, &of("b")));
    assert!(!block.allocate(1, &of("c")), "taken");
    assert!(!block.allocate(64, &of("c")), "outside");
    assert_eq!(block.release(0), Some(of("a")));
    assert_eq!(block.release(0), None);
    assert_eq!(block.free().last(), Some(&0));
    assert_eq!(block.allocation(2), Some(&of("b")), "the index moved with the list");
    assert_eq!(block.release(1), Some(of("b")));
    assert_eq!(block.release(2), Some(of("b")));
    assert!(block.is_empty());
    assert_eq!(block.free().len(), 64);
}

#[test]
fn sequence_numbers_of_calico_3_go_on() {
    let value = block_json(
        &[json!(0)],
        json!({"attributes": [{"handle_id": "a"}], "sequenceNumber": 7, "sequenceNumberForAllocation": {"0": 3}}),
    );
    let mut block = block(&value);
    assert_eq!(block.allocation_sequence(0), 3);
    let attribute = block.allocation(0).unwrap().clone();
    // An allocation has the number of the write that it is part of; the value has the number of the next.
    assert!(block.allocate(5, &attribute) && block.allocate(6, &attribute));
    assert!(block.release(0).is_some());
    block.count_write();
    let again: Value = serde_json::from_slice(&block.to_value()).unwrap();
    assert_eq!(again["sequenceNumber"], 8);
    assert_eq!(again["sequenceNumberForAllocation"], json!({"5": 7, "6": 7}));
}

#[test]
fn a_block_without_sequence_numbers_stays_without() {
    let mut block = block(&block_json(&[], json!({"affinity": "host:h1"})));
    assert!(block.allocate(5, &Attribute::default()));
    block.count_write();
    let again: Value = serde_json::from_slice(&block.to_value()).unwrap();
    let members: Vec<&str> = again.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["cidr", "affinity", "strictAffinity", "allocations", "unallocated", "attributes"]);
}

#[test]
fn a_new_block_of_calico_3_has_its_members_and_no_strict_flag() {
    let owner = BlockAffinity::Host("h1".to_owned());
    let mut block = Block::numbered("10.0.0.0/31".parse().unwrap(), owner.clone(), 42).unwrap();
    block.set_claim_time("2026-11-29T16:00:00Z".to_owned());
    assert!(block.allocate(1, &Attribute { handle: Some("a".to_owned()), ..Attribute::default() }));
    block.count_write();
    let value: Value = serde_json::from_slice(&block.to_value()).unwrap();
    let all = json!({
        "cidr": "10.0.0.0/31", "affinity": "host:h1", "affinity_claim_time": "2026-11-29T16:00:00Z",
        "allocations": [null, 0], "unallocated": [0], "attributes": [{"handle_id": "a", "secondary": null}],
        "deleted": false, "sequenceNumber": 43, "sequenceNumberForAllocation": {"1": 42}
    });
    assert_eq!(value, all);
    block.set_affinity(owner);
    assert_eq!(block.claim_time(), Some("2026-11-29T16:00:00Z"), "the same owner claimed it then");
    block.set_affinity(BlockAffinity::None);
    assert_eq!(block.claim_time(), None);
}

/// A block of Calico 3.33 with a virtual machine's address, one that cools down, and members of later versions.
#[test]
fn an_address_that_cools_down_is_neither_allocated_nor_free() {
    let attributes = json!([
        {"handle_id": "vm", "secondary": {"pod": "a"}, "alternateOwnerAttrs": {"pod": "b"}, "later": [1.5]},
        {"handle_id": null, "secondary": null, "releasedAt": "2026-11-29T16:00:00Z"}
    ]);
    let value = block_json(
        &[json!(0), json!(1), json!(1)],
        json!({"affinity": "host:h1", "attributes": attributes, "sequenceNumber": 9, "later": {"deep": [null]},
               "deleted": false, "unallocated": (3..64).collect::<Vec<u32>>(),
               "sequenceNumberForAllocation": {"0": 4}}),
    );
    let mut whole = block(&value);
    assert_eq!(rewritten(BLOCK, &value), serde_json::from_str::<Value>(&value).unwrap());
    assert_eq!(whole.allocated().map(|(ordinal, _)| ordinal).collect::<Vec<_>>(), [0]);
    assert_eq!(
        whole.cooling().collect::<Vec<_>>(),
        [(1, "2026-11-29T16:00:00Z"), (2, "2026-11-29T16:00:00Z")]
    );
    assert_eq!((whole.allocation(1), whole.free().len()), (None, 61));
    assert_eq!(whole.release(1), None, "it is not allocated");
    assert!(!whole.allocate(1, &Attribute::default()), "it is not free");
    let vm = whole.cool_down(0, "2026-11-29T17:00:00Z").unwrap();
    assert_eq!(vm.handle.as_deref(), Some("vm"));
    assert_eq!(whole.allocation_sequence(0), 0, "the allocation is gone, and its number");
    assert!(!whole.is_empty() && whole.allocated().count() == 0);
    whole.sweep(|time| time < "2026-11-29T16:30:00Z");
    assert_eq!(whole.free().last_chunk(), Some(&[1, 2]));
    assert_eq!(whole.cooling().count(), 1);
    whole.sweep(|_| true);
    assert!(whole.is_empty() && whole.free().len() == 64);
    assert!(block(&block_json(&[], json!({"deleted": true}))).is_deleted());
    for bad in [json!({"0": "x"}), json!({"a": 1}), json!([1]), json!({"0": -1})] {
        let text = refused(BLOCK, &block_json(&[], json!({"sequenceNumberForAllocation": bad})));
        assert!(text.contains("sequenceNumberForAllocation"), "{text}");
    }
}

#[test]
fn the_size_of_a_pool_s_blocks() {
    assert_eq!((pool("{}").block_len(), pool(r#"{"blockSize": 28}"#).block_len()), (26, 28));
    assert_eq!(pool(r#"{"block_size": 20}"#).block_len(), 20);
    assert_eq!(rewritten(POOL, r#"{"block_size": 20}"#)["blockSize"], 20);
    read("/calico/v1/ipam/v4/pool/10.0.0.0-29", r#"{"blockSize": 30}"#);
    read("/calico/v1/ipam/v6/pool/fd00::-126", r#"{"blockSize": 128}"#);
    for (key, value, says) in [
        (POOL, r#"{"blockSize": 19}"#, "a whole number from 20 to 32"),
        (POOL, r#"{"blockSize": 33}"#, "a whole number from 20 to 32"),
        ("/calico/v1/ipam/v6/pool/fd00::-64", r#"{"blockSize": 64}"#, "a whole number from 116 to 128"),
        ("/calico/v1/ipam/v4/pool/10.0.0.0-29", r#"{"blockSize": 28}"#, "choose /28 or shorter"),
    ] {
        let text = refused(key, value);
        assert!(text.contains(says), "{value}: {text}");
    }
}

#[test]
fn affinities_of_three_generations() {
    let key = "/calico/ipam/v2/host/h1/ipv4/block/192.168.0.0-26";
    let affinity = |value: &str| inside!(Affinity, read(key, value));
    for stateless in ["", "{}", "\"\"", "null", r#"{"state": ""}"#] {
        let affinity = affinity(stateless);
        assert!(affinity.state.is_none() && affinity.is_confirmed(), "{stateless}");
    }
    assert!(affinity(r#"{"state": "confirmed"}"#).is_confirmed());
    assert!(!affinity(r#"{"state": "pending"}"#).is_confirmed());
    assert!(!affinity(r#"{"state": "pendingDeletion"}"#).is_confirmed());
    assert!(refused(key, r#"{"state": "maybe"}"#).contains("found `maybe`"));
    let again = rewritten(key, r#"{"state": "pending", "deleted": false, "later": 1.50}"#);
    assert_eq!(again, json!({"state": "pending", "deleted": false, "later": 1.5}));
    assert!(affinity(r#"{"state": "confirmed", "deleted": true}"#).is_deleted());
}

#[test]
fn handles_of_python_and_go() {
    let key = "/calico/ipam/v2/handle/h.1";
    let value = r#"{"id": "h.1", "block": {"192.168.10.0/24": 4, "2001:abcd:def0::/120": 3}}"#;
    let handle = inside!(Handle, read(key, value));
    assert_eq!(handle.blocks.values().copied().collect::<Vec<_>>(), [4, 3]);
    assert_eq!(rewritten(key, value), serde_json::from_str::<Value>(value).unwrap());
    let go = inside!(Handle, read(key, r#"{"block": {"10.0.0.0/26": 1}}"#));
    assert_eq!(go.id, "h.1");
    let old =
        inside!(Handle, read("/calico/ipam/v2/assignment/handle/h.1", r#"{"block": {"10.0.0.0/26": 1}}"#));
    assert_eq!(old, go);
    let limited = r#"{"block":{"10.0.0.0/26":1},"deleted":false,"limit":2}"#;
    let handle = inside!(Handle, read(key, limited));
    assert_eq!(handle.to_calico_3(None), limited.as_bytes(), "no `id`, which Calico 3 does not write");
    let with_id: Value =
        serde_json::from_slice(&handle.to_calico_3(Some(br#"{"id": "h.1", "block": {}}"#))).unwrap();
    assert_eq!(with_id["id"], "h.1", "a member of the value that it replaces is kept");
    assert!(inside!(Handle, read(key, r#"{"block": {}, "deleted": true}"#)).is_deleted());
    assert!(refused(key, r#"{"id": "other"}"#).contains("the key says `h.1`"));
    assert!(refused(key, r#"{"block": {"10.0.0.0/26": -1}}"#).contains("`block.10.0.0.0/26`: found `-1`"));
    assert!(refused(key, r#"{"block": {"x": 1}}"#).contains("found `x`"));
}

#[test]
fn ipam_configuration_once_written_means_false_where_it_is_silent() {
    let key = "/calico/ipam/v2/config";
    let absent = IpamConfig::default();
    assert!(!absent.strict_affinity && absent.auto_allocate_blocks);
    let all = r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":20,"reservedCIDRs":["10.0.0.0/30"]}"#;
    let config = inside!(IpamConfig, read(key, all));
    assert_eq!((config.max_blocks_per_host, config.reserved.len()), (Some(20), 1));
    assert_eq!(rewritten(key, all), serde_json::from_str::<Value>(all).unwrap());
    assert_eq!(inside!(IpamConfig, read(key, r#"{"maxBlocksPerHost": 0}"#)).max_blocks_per_host, None);
    assert!(refused(key, r#"{"reservedCIDRs": ["x"]}"#).contains("`reservedCIDRs[0]`: found `x`"));
    let all = r#"{"strict_affinity":false,"auto_allocate_blocks":true,"maxBlocksPerHost":4,"ipCooldownSeconds":30,
                  "kubeVirtVMAddressPersistence":"Enabled","later":[1]}"#;
    assert_eq!(inside!(IpamConfig, read(key, all)).cooldown_seconds, Some(30));
    assert_eq!(rewritten(key, all), serde_json::from_str::<Value>(all).unwrap());
    let config = inside!(IpamConfig, read(key, r#"{"strict_affinity": true}"#));
    assert!(config.strict_affinity && !config.auto_allocate_blocks);
    assert_eq!(
        rewritten(key, r#"{"auto_allocate_blocks": true, "maxBlocksPerHost": 20}"#),
        json!({"strict_affinity": false, "auto_allocate_blocks": true, "maxBlocksPerHost": 20})
    );
}
