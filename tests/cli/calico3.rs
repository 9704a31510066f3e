//! What the command line shows of a Calico 3 store: objects by their names.

use serde_json::{Value, json};

use crate::common::command::{Store, fails, stderr, stdout};

const ROOT: &str = "/calico/resources/v3/projectcalico.org";

fn store(objects: &[(&str, Value)]) -> Store {
    let store = Store::none();
    let map: serde_json::Map<String, Value> = objects
        .iter()
        .map(|(path, spec)| {
            let name = path.rsplit('/').next().unwrap();
            let mut metadata = json!({"name": name});
            if let Some(rest) = path.strip_prefix("workloadendpoints/") {
                // Calico's client adds these labels.
                let namespace = rest.split('/').next().unwrap();
                metadata["labels"] = json!({
                    "projectcalico.org/namespace": namespace,
                    "projectcalico.org/orchestrator": spec["orchestrator"],
                });
            }
            let value = json!({"metadata": metadata, "spec": spec});
            (format!("{ROOT}/{path}"), Value::String(value.to_string()))
        })
        .collect();
    let file = store.file("objects.json", &Value::Object(map).to_string());
    let done = store.run(&["store", "import", "--raw", file.to_str().unwrap()]);
    assert!(done.status.success(), "{done:?}");
    store
}

/// A host `h1` with a workload, on which one policy acts.
fn cluster() -> Vec<(&'static str, Value)> {
    vec![
        ("clusterinformations/default", json!({"datastoreReady": true})),
        ("nodes/h1", json!({"bgp": {"ipv4Address": "192.0.2.1/24"}})),
        ("profiles/open", json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]})),
        (
            "workloadendpoints/shop/h1-cni-web-eth0",
            json!({"orchestrator": "cni", "node": "h1", "containerID": "web", "endpoint": "eth0",
                   "interfaceName": "caliweb", "ipNetworks": ["10.65.0.1/32"], "profiles": ["open"]}),
        ),
        (
            "networkpolicies/shop/default.web",
            json!({"order": 10, "types": ["Ingress"], "ingress": [{"action": "Allow", "protocol": "TCP",
                   "destination": {"ports": [80]}}]}),
        ),
    ]
}

#[test]
fn objects_that_cannot_be_used_are_named_with_the_member() {
    let store = store(&cluster());
    let whole = store.run(&["--node", "h1", "store", "validate"]);
    assert!(whole.status.success(), "{whole:?}");
    assert!(stdout(&whole).contains("0 cannot be used"), "{whole:?}");
    for (path, value) in [
        ("bgppeers/rack1-tor", r#"{"spec":{"peerIP":"192.0.2.300"}}"#),
        ("ippools/p", "[]"),
        ("bgpconfigurations/node.h7", r#"{"spec":{"listenPort":"x"}}"#),
    ] {
        let put = store.run(&["store", "put", "--raw", &format!("{ROOT}/{path}"), value]);
        assert!(put.status.success(), "{put:?}");
    }
    let found = store.run(&["--node", "h1", "store", "validate"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    for word in [
        "BGPPeer rack1-tor",
        "peerIP",
        "IPPool p",
        "BGPConfiguration node.h7",
        "listenPort",
        "[invalid-value]",
    ] {
        assert!(stdout(&found).contains(word), "no {word}: {found:?}");
    }
    assert!(stderr(&found).contains("tortie store put"), "{found:?}");
    let found = store.run(&["--node", "h1", "store", "validate", "-o", "json"]);
    let list: Value = serde_json::from_slice(&found.stdout).unwrap();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["BGPConfiguration node.h7", "BGPPeer rack1-tor", "IPPool p"], "{list}");
    assert_eq!(list[1]["key"], format!("{ROOT}/bgppeers/rack1-tor"));
}

/// A staged policy shows what its enforcement would change, and is never enforced.
#[test]
fn a_staged_policy_is_previewed() {
    let store = store(&cluster());
    let key = format!("{ROOT}/stagednetworkpolicies/shop/web");
    let try_out = |spec: Value| {
        let value = json!({"metadata": {"name": "web"}, "spec": spec}).to_string();
        store.run(&["--node", "h1", "store", "put", &key, &value, "--dry-run", "store", "-o", "json"])
    };
    let answer = |spec: Value| -> Value {
        let output = try_out(spec);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let before = store.export();
    let rules = json!([{"action": "Deny", "protocol": "TCP", "destination": {"ports": [80]}}]);
    let set = answer(json!({"order": 10, "types": ["Ingress"], "ingress": rules}));
    // The enforced policy is stored under the name of earlier releases.
    assert_eq!(set["previewOf"], "NetworkPolicy shop/default.web");
    assert_eq!(set["endpoints"].as_array().unwrap().len(), 1, "{set}");
    assert!(
        set["chains"][0]["name"].as_str().unwrap().starts_with("NetworkPolicy shop/default.web"),
        "{set}"
    );
    let delete = answer(json!({"stagedAction": "Delete"}));
    assert_eq!((&delete["delete"], &delete["previewOf"]), (&true.into(), &set["previewOf"]));
    assert_eq!(delete["endpoints"].as_array().unwrap().len(), 1, "{delete}");
    let ignored = answer(json!({"stagedAction": "Ignore", "ingress": rules}));
    assert_eq!((ignored.get("previewOf"), ignored["endpoints"].as_array().unwrap().len()), (None, 0));
    let wrong = try_out(json!({"stagedAction": "Maybe"}));
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(stderr(&wrong).contains("spec.stagedAction"), "{wrong:?}");
    assert_eq!(store.export(), before, "nothing was written");
    let value = json!({"spec": {"order": 10, "types": ["Ingress"], "ingress": rules}}).to_string();
    let text = store.run(&["--node", "h1", "store", "put", &key, &value, "--dry-run", "store"]);
    assert!(stdout(&text).contains("as NetworkPolicy shop/default.web"), "{text:?}");
    // Once written it changes nothing.
    assert!(store.run(&["store", "put", &key, &value]).status.success());
    let words = [
        "policy",
        "trace",
        "--offline",
        "--from",
        "192.0.2.9",
        "--to",
        "10.65.0.1",
        "--proto",
        "tcp",
        "--dport",
        "80",
    ];
    let traced = store.run(&[&["--node", "h1"], &words[..]].concat());
    assert!(stdout(&traced).contains("by NetworkPolicy shop/default.web, rule 0"), "{traced:?}");
    assert!(traced.status.success(), "{traced:?}");
}

#[test]
fn a_policy_is_found_by_the_name_of_its_object() {
    let store = store(&cluster());
    let ask = |name: &str| store.run(&["--node", "h1", "policy", "show", "--offline", name]);
    for name in ["NetworkPolicy shop/default.web", "shop/default.web"] {
        let shown = ask(name);
        assert!(shown.status.success() && stdout(&shown).contains("allow tcp"), "{name}: {shown:?}");
    }
    fails(
        1,
        "not-found",
        &[
            "--datastore",
            &store.url,
            "--node",
            "h1",
            "policy",
            "show",
            "--offline",
            "GlobalNetworkPolicy web",
        ],
        &["GlobalNetworkPolicy web", "tortie policy list"],
    );
}

/// A dry run of an object says what is wrong with it.
#[test]
fn a_dry_run_refuses_an_object_that_cannot_be_used() {
    let store = store(&cluster());
    let key = format!("{ROOT}/networkpolicies/shop/default.web");
    let try_out =
        |value: &str| store.run(&["--node", "h1", "store", "put", &key, value, "--dry-run", "store"]);
    let wrong = try_out(r#"{"spec":{"selector":"a ==","ingress":[]}}"#);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    assert!(stderr(&wrong).contains("spec.selector"), "{wrong:?}");
    let known = try_out(r#"{"spec":{"types":["Ingress"]}}"#);
    assert!(stdout(&known).contains("would change (rev 1)"), "{known:?}");
}

#[test]
fn doctor_says_that_no_address_is_left_for_a_workload() {
    let mut objects = cluster();
    objects.push(("ippools/tiny", json!({"cidr": "10.66.0.0/30", "blockSize": 30})));
    let store = store(&objects);
    let finds = || stdout(&store.run(&["--node", "h1", "doctor"])).contains("[no-addresses]");
    assert!(!finds());
    let taken = store.run(&["--node", "h1", "ipam", "assign", "--handle", "all", "--num4", "4"]);
    assert!(taken.status.success(), "{taken:?}");
    assert!(finds());
    // A rehearsal writes nothing.
    let released = store.run(&["ipam", "release", "--handle", "all"]);
    assert!(released.status.success(), "{released:?}");
    assert!(!finds());
    assert!(!stdout(&store.run(&["store", "export"])).contains("rehearsal"));
}
