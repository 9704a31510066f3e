//! Pools and addresses.

use serde_json::json;

use super::super::{assign, done, fails, json as answer};
use super::{ROOT, import, names, object, store, value};

#[test]
fn a_pool_is_an_object_from_its_creation_to_its_deletion() {
    let store = store(&["h1"]);
    let others = store.export();
    let text = done(&store.run(&[
        "ipam",
        "pool",
        "create",
        "10.65.0.0/16",
        "--vxlan",
        "cross-subnet",
        "--masquerade",
    ]));
    assert!(text.contains("IPPool 10-65-0-0-16"), "{text}");
    let made = value(&store, "ippools/10-65-0-0-16");
    let spec = json!({
        "cidr": "10.65.0.0/16", "ipipMode": "Never", "vxlanMode": "CrossSubnet", "natOutgoing": true,
        "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"],
    });
    assert_eq!(
        (&made["kind"], &made["apiVersion"], &made["spec"]),
        (&"IPPool".into(), &"projectcalico.org/v3".into(), &spec)
    );
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert!(made["metadata"]["creationTimestamp"].as_str().unwrap().ends_with('Z'));
    done(&store.run(&["ipam", "pool", "create", "fd65::/64", "--block-size", "120"]));
    assert_eq!(names(&store, "ippools"), ["10-65-0-0-16", "fd65---64"]);
    fails(&store, &["ipam", "pool", "create", "10.65.0.0/16"], 1, &["exists already"]);
    fails(&store, &["ipam", "pool", "create", "10.65.4.0/24"], 2, &["overlaps", "10.65.0.0/16"]);
    fails(
        &store,
        &["ipam", "pool", "create", "10.66.0.0/16", "--ipip", "always", "--vxlan", "always"],
        2,
        &["--vxlan"],
    );
    let pools = answer(&store.run(&["ipam", "pools", "-o", "json"]));
    assert_eq!(
        (&pools[0]["vxlan"], &pools[0]["ipip"], &pools[0]["state"]),
        (&"cross-subnet".into(), &json!(null), &"enabled".into())
    );
    let table = done(&store.run(&["ipam", "pools"]));
    assert!(table.lines().next().unwrap().contains("VXLAN") && table.contains("cross-subnet"), "{table}");

    let addr = assign(&store, &["--node", "h1", "--handle", "a"]).remove(0);
    fails(&store, &["ipam", "pool", "delete", "10.65.0.0/16"], 7, &["1 address of", "tortie ipam blocks"]);
    done(&store.run(&["ipam", "pool", "disable", "10.65.0.0/16"]));
    assert_eq!(value(&store, "ippools/10-65-0-0-16")["spec"]["disabled"], true);
    let pools = answer(&store.run(&["ipam", "pools", "-o", "json"]));
    assert_eq!(pools[0]["state"], "disabled");
    fails(&store, &["ipam", "assign", "--node", "h1", "--num4", "200"], 1, &["pool"]);
    assert!(done(&store.run(&["ipam", "show", &addr])).contains("allocated"));
    done(&store.run(&["ipam", "pool", "enable", "10.65.0.0/16"]));
    assert_eq!(value(&store, "ippools/10-65-0-0-16"), made);
    done(&store.run(&["ipam", "release", "--handle", "a"]));
    let gone = done(&store.run(&["ipam", "pool", "delete", "10.65.0.0/16"]));
    assert!(gone.contains("1 empty block"), "{gone}");
    done(&store.run(&["ipam", "pool", "delete", "fd65::/64"]));
    assert_eq!(store.export(), others, "nothing else changed, and nothing is left");
    fails(&store, &["ipam", "pool", "delete", "10.65.0.0/16"], 1, &["tortie ipam pools"]);
}

#[test]
fn a_pool_of_another_writer_keeps_its_name_and_members() {
    let store = store(&["h1"]);
    let stored = object(
        "ippools/rack-1",
        &json!({"cidr": "10.65.0.0/16", "nodeSelector": "all()", "later": {"a": 1}}),
    );
    let twin = object("ippools/rack-2", &json!({"cidr": "10.65.0.0/16"}));
    import(&store, &[stored.clone(), twin.clone()]);
    let before = store.export();
    fails(&store, &["ipam", "pool", "create", "10.65.0.0/16"], 1, &["exists already"]);
    // A prefix whose name another pool has.
    let named = object("ippools/10-66-0-0-16", &json!({"cidr": "10.67.0.0/16"}));
    import(&store, std::slice::from_ref(&named));
    fails(&store, &["ipam", "pool", "create", "10.66.0.0/16"], 1, &["IPPool 10-66-0-0-16", "exists already"]);
    done(&store.run(&["store", "rm", &named.0]));
    done(&store.run(&["ipam", "pool", "disable", "10.65.0.0/16"]));
    let mut expected = before.clone();
    let changed = stored.1.replace(r#""later":{"a":1}"#, r#""later":{"a":1},"disabled":true"#);
    assert_ne!(changed, stored.1);
    let found = store.export().remove(&stored.0).unwrap();
    // The kind, which the writer had left out, is the only other difference.
    assert_eq!(found.replace(r#","kind":"IPPool""#, ""), changed);
    expected.insert(stored.0.clone(), found);
    assert_eq!(store.export(), expected);
    let text = done(&store.run(&["ipam", "pool", "delete", "10.65.0.0/16"]));
    assert!(text.contains("IPPool rack-2 has the same prefix"), "{text}");
    assert_eq!(names(&store, "ippools"), ["rack-2"]);
    // An object that is none is named, and not written.
    let broken = (format!("{ROOT}/ippools/broken"), "[]".to_owned());
    import(&store, &[broken]);
    let table = done(&store.run(&["ipam", "pools"]));
    assert!(table.contains("IPPool broken cannot be used") && table.contains("[invalid-value]"), "{table}");
}

#[test]
fn addresses_blocks_and_settings_are_written_as_calico_3_has_them() {
    let store = store(&["h1", "h2"]);
    done(&store.run(&["ipam", "pool", "create", "10.65.0.0/24"]));
    let before = store.export();
    fails(&store, &["ipam", "assign", "--node", "stranger"], 1, &["stranger"]);
    assert_eq!(store.export(), before);
    done(&store.run(&["ipam", "claim", "10.65.0.192/26", "--node", "h2"]));
    let given = assign(&store, &["--node", "h1", "--num4", "3", "--handle", "c"]);
    let keys: Vec<String> = store.export().into_keys().filter(|key| !before.contains_key(key)).collect();
    assert!(keys.iter().all(|key| key.starts_with("/calico/ipam/v2/")), "{keys:?}");
    let block: serde_json::Value = store
        .export()
        .iter()
        .find(|(key, value)| key.contains("/assignment/") && value.contains("\"c\""))
        .map(|(_, value)| serde_json::from_str(value).unwrap())
        .unwrap();
    assert!(block["sequenceNumber"].is_number(), "{block}");
    fails(&store, &["ipam", "configure", "--max-blocks-per-host", "3"], 7, &["strict_affinity"]);
    // An endpoint holds its address, also against `store rm` of keys and objects.
    let endpoint = object(
        "workloadendpoints/default/h1-cni-c1-eth0",
        &json!({"orchestrator": "cni", "node": "h1", "containerID": "c1", "endpoint": "eth0",
                "interfaceName": "cali1", "ipNetworks": [format!("{}/32", given[0])]}),
    );
    import(&store, std::slice::from_ref(&endpoint));
    let block_key =
        store.export().into_keys().find(|key| key.contains("/assignment/") && !key.ends_with("192-26"));
    let in_use = store.export();
    for words in [
        &["ipam", "release", "--ip", &given[0]][..],
        &["ipam", "release", "--handle", "c"],
        &["ipam", "unclaim", "10.65.0.0/24", "--node", "h1"],
        &["store", "rm", block_key.as_deref().unwrap()],
        &["store", "rm", &format!("{ROOT}/ippools/10-65-0-0-24")],
    ] {
        fails(&store, words, 7, &[&given[0], "--force"]);
        assert_eq!(store.export(), in_use, "{words:?}");
    }
    assert!(done(&store.run(&["ipam", "show", &given[0]])).contains("cni/default/c1/eth0"));
    done(&store.run(&["store", "rm", &endpoint.0]));
    done(&store.run(&["ipam", "release", "--handle", "c"]));
    done(&store.run(&["ipam", "unclaim", "10.65.0.0/24", "--node", "h1"]));
    done(&store.run(&["ipam", "unclaim", "10.65.0.0/24", "--node", "h2"]));
    assert_eq!(store.export(), before, "nothing is left");
    done(&store.run(&["ipam", "configure", "--strict-affinity", "true", "--max-blocks-per-host", "3"]));
    let config: serde_json::Value = serde_json::from_str(&store.export()["/calico/ipam/v2/config"]).unwrap();
    assert_eq!((&config["strict_affinity"], &config["maxBlocksPerHost"]), (&true.into(), &3.into()));
}
