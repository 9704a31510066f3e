//! Properties: written values parse to equal values, no input causes a panic, and unknown fields are kept.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::key::Key;
use crate::resource::{Attribute, Block, BlockAffinity, Resource, Setting};

static SAMPLES: LazyLock<Vec<(&'static str, Value)>> = LazyLock::new(samples);

/// Complete values of all kinds of keys, which the tests modify.
fn samples() -> Vec<(&'static str, Value)> {
    let rule = json!({
        "action": "deny", "ip_version": 4, "protocol": "tcp", "src_tag": "a", "src_selector": "a == \"b\"",
        "src_net": "10.0.0.0/8", "src_nets": ["11.0.0.0/8"], "src_ports": [1, "2:3"], "!dst_ports": [4],
        "!dst_nets": ["1.0.0.0/8", "2.0.0.0/8"], "log_prefix": "x", "!dst_selector": "has(c)", "!src_tag": "t"
    });
    let ping = json!({"protocol": "icmp", "icmp_type": 8, "icmp_code": 0, "!icmp_type": 3, "!protocol": 7});
    vec![
        (
            "/calico/bgp/v1/global/peer_v4/192.0.2.1",
            json!({
                "ip": "192.0.2.1", "as_num": "64513", "port": 1790, "password": "s", "source_addr": "None",
                "rr_cluster_id": "244.0.0.1", "restart_time": "120s", "long_lived_restart_time": "3600s", "keepalive_time": "10s", "hold_time": "90s",
                "next_hop_mode": "Keep", "keep_next_hop": true, "ttl_security": 1, "num_allow_local_as": 2,
                "local_as_num": "65001", "passive_mode": true, "filters": ["tor"], "max_prefixes": {"limit": 1000, "warn": 80, "restart": "90s", "out": 10}, "send_hold_time": "500s",
                "bfd": {"interval": "50ms", "multiplier": 4}, "role": "customer", "add_path": {"receive": true, "send": 4},
                "families": ["ipv6", "ipv4"], "extended_messages": true, "own_only": true, "import_pools": false
            }),
        ),
        (
            "/calico/bgp/v1/host/h1/filters/tor",
            json!({
                "import": [
                    {"name": "a", "then": "accept", "match": {
                        "family": "ipv4", "prefixes": ["10.0.0.0/8", {"cidr": "11.0.0.0/8", "ge": 9, "le": 24}],
                        "communities": ["1:2", "1:*"], "large_communities": {"all": ["1:2:3"], "none": ["4:*:*"]},
                        "ext_communities": {"any": ["rt:1:2", "0x4300*"]},
                        "as_path": {"origin": [1, "2-3"], "neighbour": [4], "contains": [5],
                                    "length": {"ge": 1, "le": 9}, "matches": ["1 * ? 2-3"]},
                        "next_hop": ["192.0.2.0/24"], "source": ["ebgp"], "peer": ["Node_1"], "role": ["customer"]
                    }},
                    {"then": "next", "set": {
                        "local_pref": 200, "med": "+5", "prepend": {"as": 7, "count": 2}, "next_hop": "192.0.2.1",
                        "communities": {"replace": ["1:1"]}, "large_communities": {"remove": ["1:*:*"], "add": ["1:2:3"]},
                        "ext_communities": {"add": ["soo:1:1"]}
                    }}
                ],
                "export": [{"then": "reject"}], "default": "accept"
            }),
        ),
        (
            "/calico/bgp/v1/global/node_mesh",
            json!({"enabled": false, "password_file": "/etc/tortie/secrets/mesh", "bfd": true, "own_only": true, "per_family": true}),
        ),
        (
            "/calico/bgp/v1/host/h1/prefix_advertisements/ip_v6",
            json!([{"cidr": "fd00::/8", "communities": ["1:2", "1:2:3"]}]),
        ),
        (
            "/calico/bgp/v1/host/h1/bmp_stations",
            json!(["192.0.2.50:11019", {"address": "[2001:db8::50]:11019", "policy": "both", "site": "b"}]),
        ),
        ("/calico/bgp/v1/host/h1/multipath", json!({"max": 16, "relax": false, "site": "b"})),
        (
            "/calico/v1/ipam/v4/pool/10.0.0.0-16",
            json!({"cidr": "10.0.0.0/16", "ipip": "tunl0", "ipip_mode": "cross-subnet", "masquerade": true,
                   "ipam": false, "disabled": true}),
        ),
        (
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30",
            json!({"cidr": "10.0.0.0/30", "affinity": "host:h1", "hostAffinity": "h2", "strict_affinity": true,
                   "allocations": [0, null, 1, 0], "unallocated": [1],
                   "attributes": [{"handle_id": "a", "secondary": {"pod": "p"}}, {"primary": "b"}]}),
        ),
        (
            "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30",
            json!({"cidr": "10.0.1.0/30", "affinity": "host:h1", "affinity_claim_time": "2026-11-29T16:00:00Z",
                   "allocations": [0, null, 1, 0], "unallocated": [1], "sequenceNumber": 7, "deleted": false,
                   "sequenceNumberForAllocation": {"0": 3, "3": 6},
                   "attributes": [{"handle_id": "a", "secondary": {"pod": "p"}, "alternateOwnerAttrs": {"pod": "q"}},
                                  {"handle_id": null, "releasedAt": "2026-11-29T16:00:00Z"}]}),
        ),
        ("/calico/ipam/v2/handle/h1", json!({"id": "h1", "block": {"10.0.0.0/26": 3}, "deleted": false})),
        (
            "/calico/ipam/v2/config",
            json!({"strict_affinity": true, "auto_allocate_blocks": true, "maxBlocksPerHost": 3,
                   "ipCooldownSeconds": 60, "kubeVirtVMAddressPersistence": "Enabled"}),
        ),
        ("/calico/ipam/v2/host/h1/ipv4/block/10.0.0.0-26", json!({"state": "pending", "deleted": true})),
        (
            "/calico/v1/host/h1/workload/k8s/w/endpoint/e",
            json!({"state": "active", "name": "cali1", "mac": "ee:ee:ee:ee:ee:ee", "profile_ids": ["p"],
                   "profile_id": "q", "ipv4_nets": ["10.0.0.1/32"], "ipv6_nets": ["fd00::1/128"],
                   "ipv4_nat": [{"int_ip": "10.0.0.1", "ext_ip": "1.2.3.4"}], "ipv4_gateway": "10.0.0.254",
                   "labels": {"a": "b"}, "active_instance_id": "c"}),
        ),
        (
            "/calico/v1/host/h1/endpoint/e",
            json!({"name": "eth0", "expected_ipv4_addrs": ["10.0.0.1"], "profile_ids": [], "labels": {"a": ""}}),
        ),
        ("/calico/v1/policy/profile/p/rules", json!({"inbound_rules": [rule, ping], "outbound_rules": [{}]})),
        ("/calico/v1/policy/profile/p/tags", json!(["a", "b"])),
        ("/calico/v1/policy/profile/p/labels", json!({"a": "b"})),
        (
            "/calico/v1/policy/tier/default/policy/p",
            json!({"selector": "a in {\"b\"}", "order": 10.5, "inbound_rules": [rule, ping], "outbound_rules": [],
                   "untracked": true, "types": ["ingress"]}),
        ),
        ("/calico/v1/policy/tier/t/metadata", json!({"order": 5})),
        ("/calico/v1/host/h1/orchestrator_refs", json!([{"orchestrator": "k8s", "nodeName": "n"}])),
        ("/calico/felix/v1/host/h1/status", json!({"time": "t", "uptime": 1.5, "first_update": true})),
        ("/calico/felix/v1/host/h1/endpoint/e", json!({"status": "down"})),
        ("/calico/tortie/v1/status/h1", json!({"a": [1]})),
        ("/calico/tortie/v1/schema", json!({"schema": 1})),
    ]
}

fn parse(key: &str, value: &Value) -> Result<Resource, crate::ValueError> {
    Resource::parse(&Key::parse(key).unwrap(), value.to_string().as_bytes())
}

#[test]
fn every_sample_reads_back_and_keeps_an_unnamed_field_at_its_top() {
    for (key, sample) in SAMPLES.iter() {
        let resource = parse(key, sample).unwrap_or_else(|error| panic!("{key}: {error}"));
        let again = Resource::parse(&Key::parse(key).unwrap(), &resource.to_value());
        assert_eq!(again, Ok(resource), "{key}");

        let mut with_extra = sample.clone();
        let target = match &mut with_extra {
            Value::Object(map) => map,
            Value::Array(list) if list[0].is_object() => list[0].as_object_mut().unwrap(),
            _ => continue,
        };
        if key.ends_with("/labels") {
            continue;
        }
        target.insert("x-later".to_owned(), json!({"deep": [1, null]}));
        let written: Value = serde_json::from_slice(&parse(key, &with_extra).unwrap().to_value()).unwrap();
        let kept = written.get("x-later").or_else(|| written[0].get("x-later"));
        assert_eq!(kept, Some(&json!({"deep": [1, null]})), "{key}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9:./ -]{0,20}".prop_map(Value::from),
        prop_oneof![
            Just(""),
            Just("10.0.0.0/8"),
            Just("10.0.0.1"),
            Just("fd00::1/128"),
            Just("0"),
            Just("1.10"),
            Just("host:x"),
            Just("1s"),
            Just("always"),
            Just("all()"),
            Just("tcp"),
            Just("allow"),
            Just("None"),
            Just("80:90")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_]{1,6}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Replaces the `at`-th value of a tree in depth-first order.
fn replace(tree: &mut Value, at: &mut usize, with: &Value) -> bool {
    if *at == 0 {
        *tree = with.clone();
        return true;
    }
    *at -= 1;
    match tree {
        Value::Array(list) => list.iter_mut().any(|value| replace(value, at, with)),
        Value::Object(map) => map.values_mut().any(|value| replace(value, at, with)),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_damaged_value_is_refused_with_a_place_or_reads_back(
        which in any::<prop::sample::Index>(), at in 1usize..60, with in any_json(),
    ) {
        let (key, mut sample) = which.get(&SAMPLES).clone();
        replace(&mut sample, &mut at.clone(), &with);
        match parse(key, &sample) {
            Ok(resource) => {
                let again = Resource::parse(&Key::parse(key).unwrap(), &resource.to_value());
                prop_assert_eq!(again, Ok(resource), "{}", sample);
            }
            Err(error) => prop_assert!(!error.expected.is_empty() && !error.path.is_empty(), "{}: {}", sample, error),
        }
    }

    #[test]
    fn a_number_that_nobody_named_keeps_its_last_digit(which in any::<prop::sample::Index>(), number in any::<f64>()) {
        let (key, mut sample) = which.get(&SAMPLES).clone();
        let Value::Object(map) = &mut sample else { return Ok(()) };
        prop_assume!(!key.ends_with("/labels"));
        map.insert("x-later".to_owned(), json!({ "deep": number }));
        let written: Value = serde_json::from_slice(&parse(key, &sample).unwrap().to_value()).unwrap();
        prop_assert_eq!(written.get("x-later"), sample.get("x-later"), "{}", key);
    }

    #[test]
    fn no_bytes_panic(which in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let (key, _) = which.get(&SAMPLES);
        let _ = Resource::parse(&Key::parse(key).unwrap(), &bytes);
    }

    #[test]
    fn settings_read_back(name in prop::sample::select(Setting::NAMES), text in "[a-zA-Z0-9:.,/ ]{0,12}|[0-9]{1,5}(\\.5)?|none|true|DROP") {
        if let Ok(setting) = Setting::parse(name, text.as_bytes()) {
            prop_assert_eq!(setting.name(), name);
            prop_assert_eq!(Setting::parse(name, setting.to_text().as_bytes()), Ok(setting));
        }
    }

    #[test]
    fn a_block_stays_whole(
        numbered in any::<bool>(), steps in proptest::collection::vec((0u8..7, 0u32..18, 0u8..4), 0..80),
    ) {
        let cidr = "10.0.0.0/28".parse().unwrap();
        let owner = BlockAffinity::Host("h".to_owned());
        let mut block = if numbered {
            Block::numbered(cidr, owner, 5).unwrap()
        } else {
            Block::new(cidr, owner, false).unwrap()
        };
        let mut held = std::collections::BTreeMap::new();
        let mut cooling = std::collections::BTreeMap::new();
        for (step, ordinal, handle) in steps {
            let attribute = Attribute { handle: Some(handle.to_string()), ..Attribute::default() };
            match step {
                0..=2 => {
                    let free = !held.contains_key(&ordinal) && !cooling.contains_key(&ordinal);
                    let done = block.allocate(ordinal, &attribute);
                    prop_assert_eq!(done, ordinal < 16 && free);
                    if done {
                        held.insert(ordinal, attribute);
                    }
                }
                3..=4 => prop_assert_eq!(block.release(ordinal), held.remove(&ordinal)),
                5 => {
                    let released = held.remove(&ordinal);
                    if released.is_some() {
                        cooling.insert(ordinal, handle.to_string());
                    }
                    prop_assert_eq!(block.cool_down(ordinal, &handle.to_string()), released);
                }
                _ => {
                    block.sweep(|time| time == handle.to_string());
                    cooling.retain(|_, time| *time != handle.to_string());
                }
            }
            let known: Vec<_> = block.cooling().map(|(n, time)| (n, time.to_owned())).collect();
            prop_assert_eq!(known, cooling.clone().into_iter().collect::<Vec<_>>());
            let now: Vec<_> = block.allocated().map(|(n, a)| (n, a.clone())).collect();
            prop_assert_eq!(now, held.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(block.free().len() + held.len() + cooling.len(), 16);
            prop_assert_eq!(Block::parse(cidr, &block.to_value()), Ok(block.clone()));
            prop_assert_eq!(Block::is_full_of("h", cidr, &block.to_value()), block.free().is_empty());
            prop_assert!(!Block::is_full_of("other", cidr, &block.to_value()));
        }
    }
}
