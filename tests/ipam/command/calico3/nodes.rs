//! Hosts: listed from their objects, and removed as Calico's own client does, and what it forgets.

use std::collections::BTreeMap;
use std::process::Output;

use serde_json::json;

use super::super::{assign, done, fails, json as answer};
use super::{ROOT, cluster, import, object, store};
use crate::common::command::{Store, tortie};
use crate::common::etcd::{Cluster, Security};

/// What a host `h1` leaves in the objects of a cluster, besides addresses.
fn objects_of_h1(addr: &str, far: &str) -> Vec<(String, String)> {
    let endpoint = |node: &str, container: &str, addr: &str| {
        let spec = json!({"orchestrator": "cni", "node": node, "containerID": container, "endpoint": "eth0",
                          "interfaceName": format!("cali{container}"), "ipNetworks": [format!("{addr}/32")]});
        object(&format!("workloadendpoints/default/{node}-cni-{container}-eth0"), &spec)
    };
    let status = |key: &str| (key.to_owned(), r#"{"status":"up"}"#.to_owned());
    vec![
        endpoint("h1", "c1", addr),
        object("hostendpoints/h1-uplink", &json!({"node": "h1", "interfaceName": "eth0"})),
        object("bgppeers/h1-tor", &json!({"node": "h1", "peerIP": "192.0.2.254", "asNumber": 64700})),
        object("felixconfigurations/node.h1", &json!({"defaultEndpointToHostAction": "Return"})),
        object("bgpconfigurations/node.h1", &json!({"logSeverityScreen": "Info"})),
        status("/calico/felix/v2/no-region/host/h1/workload/cni/default%2fc1/endpoint/eth0"),
        status("/calico/felix/v2/no-region/host/h1/last_reported_status"),
        status("/calico/felix/v1/host/h1/endpoint/h1-uplink"),
        // Of others.
        endpoint("h2", "c2", far),
        object("hostendpoints/h2-uplink", &json!({"node": "h2", "interfaceName": "eth0"})),
        object("bgppeers/to-h1", &json!({"peerIP": "192.0.2.1", "asNumber": 64700})),
        object("felixconfigurations/default", &json!({})),
        object("felixconfigurations/node.h11", &json!({})),
        status("/calico/felix/v2/no-region/host/h2/last_reported_status"),
    ]
}

/// Where the commands of a test go.
struct Place {
    url: String,
    store: Store,
}

impl Place {
    fn run(&self, words: &[&str]) -> Output {
        tortie(&[&["--datastore", &self.url], words].concat())
    }

    fn export(&self) -> BTreeMap<String, String> {
        serde_json::from_str(&done(&self.run(&["store", "export"]))).unwrap()
    }

    fn import(&self, entries: &[(String, String)]) {
        let map: BTreeMap<&String, &String> = entries.iter().map(|(key, value)| (key, value)).collect();
        let file = self.store.file("entries.json", &serde_json::to_string(&map).unwrap());
        done(&self.run(&["store", "import", "--raw", file.to_str().unwrap()]));
    }

    fn assign(&self, words: &[&str]) -> Vec<String> {
        let text = done(&self.run(&[&["ipam", "assign"], words].concat()));
        text.lines().map(|line| line.split('/').next().unwrap().to_owned()).collect()
    }
}

fn a_host_goes_whole(place: &Place) {
    place.import(&cluster(&["h1", "h2"]));
    done(&place.run(&["ipam", "pool", "create", "10.65.0.0/25"]));
    done(&place.run(&["ipam", "pool", "create", "fd65::/116"]));
    // h2 has a block of its own, and borrows from h1's.
    let own = place.assign(&["--node", "h1", "--num4", "50", "--handle", "k8s-pod-network.c1"]);
    let far = place.assign(&["--node", "h2", "--num4", "66", "--handle", "k8s-pod-network.c2"]);
    let quiet = place.export();
    let tunnels = ["ipip", "vxlan", "vxlan-v6", "wireguard", "wireguard-v6"].map(|tunnel| {
        let handle = format!("{tunnel}-tunnel-addr-h1");
        let count = if tunnel.ends_with("-v6") { ["--num6", "1"] } else { ["--num4", "1"] };
        let words = [&["--node", "h1", "--handle", &handle][..], &count].concat();
        let output = place.run(&[&["ipam", "assign"], &words[..]].concat());
        String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
    });
    assert!(tunnels.iter().all(Option::is_some), "{tunnels:?}");
    place.import(&objects_of_h1(&own[0], &far[0]));
    let before = place.export();

    // Not while it lives, by either sign.
    for (key, who) in [
        ("/calico/tortie/v1/status/h1", "an agent"),
        ("/calico/felix/v2/no-region/host/h1/status", "Felix"),
        ("/calico/felix/v2/region-a/host/h1/status", "Felix"),
    ] {
        done(&place.run(&["store", "put", "--raw", key, "{}"]));
        let refused = place.run(&["node", "delete", "h1"]);
        assert_eq!(refused.status.code(), Some(7), "{refused:?}");
        let said = crate::common::command::stderr(&refused);
        assert!(said.contains(who) && said.contains(key) && said.contains("--force"), "{said}");
        done(&place.run(&["store", "rm", key]));
    }
    assert_eq!(place.export(), before, "refused is untouched");

    let report = answer(&place.run(&["node", "delete", "h1", "-o", "json"]));
    let list = |name: &str| -> Vec<String> {
        report[name].as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    for addr in &own {
        assert!(list("addresses").contains(addr), "{addr}: {report}");
    }
    assert!(far.iter().all(|addr| !list("addresses").contains(addr)), "{report}");
    for addr in tunnels.iter().flatten() {
        let addr = addr.split('/').next().unwrap().to_owned();
        assert!(list("addresses").contains(&addr), "{addr}: {report}");
    }
    assert_eq!(list("endpoints"), ["cni/default/c1/eth0"]);
    assert_eq!(
        list("objects"),
        [
            "BGPPeer h1-tor",
            "FelixConfiguration node.h1",
            "BGPConfiguration node.h1",
            "HostEndpoint h1-uplink",
            "Node h1"
        ]
    );
    assert_eq!((list("stillNamed"), &report["keys"]), (vec!["BGPPeer to-h1".to_owned()], &json!(9)));

    // Of h1 nothing is left, and everything else is as it was, but for the block that lost its owner.
    let after = place.export();
    for (key, value) in &after {
        assert!(!key.contains("/h1/") && !key.contains("/h1-") && !key.ends_with("/h1"), "{key} is left");
        assert!(!value.contains("host:h1") && !value.contains("tunnel-addr-h1"), "{key}: {value}");
    }
    for (key, value) in before.iter().filter(|(key, _)| !key.starts_with("/calico/ipam/")) {
        let of_h1 = key.contains("h1") && !key.contains("h11") && !key.ends_with("to-h1");
        assert_eq!(after.get(key), (!of_h1).then_some(value), "{key}");
    }
    for addr in &far {
        assert!(done(&place.run(&["ipam", "show", addr])).contains("k8s-pod-network.c2"));
    }
    assert!(quiet.keys().filter(|key| key.contains("/host/h2/")).all(|key| after.contains_key(key)));

    // A second deletion finds nothing.
    let again = place.run(&["node", "delete", "h1"]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert_eq!(place.export(), after);
}

#[test]
fn a_host_goes_whole_and_nothing_of_others_with_it() {
    let store = Store::none();
    a_host_goes_whole(&Place { url: store.url.clone(), store });
}

#[test]
fn a_host_goes_whole_on_etcd() {
    let Some(etcd) = Cluster::start(1, Security::Plain) else { return };
    a_host_goes_whole(&Place { url: etcd.url(), store: Store::none() });
}

#[test]
fn a_removal_that_was_interrupted_is_completed() {
    let store = store(&["h1", "h2"]);
    done(&store.run(&["ipam", "pool", "create", "10.65.0.0/24"]));
    let [addr, far] = &assign(&store, &["--node", "h1", "--num4", "2", "--handle", "c1"])[..] else {
        panic!()
    };
    import(&store, &objects_of_h1(addr, far));
    let whole = store.export();
    let done_whole = || {
        let report = done(&store.run(&["node", "delete", "h1"]));
        assert!(report.lines().all(|line| line.chars().count() <= 80), "{report}");
        assert!(report.contains("h1 is removed: "), "{report}");
        store.export()
    };
    let expected = done_whole();
    assert!(expected.keys().all(|key| whole.contains_key(key)));
    // Whatever single object is gone already, also the Node itself, the rest goes as well.
    // The handle of an address names a block, so that without its block nothing says whose it is.
    let is_block = |key: &str| key.contains("/assignment/");
    let of_h1: Vec<&String> =
        whole.keys().filter(|key| !expected.contains_key(*key) && !is_block(key)).collect();
    assert!(of_h1.len() > 8, "{of_h1:?}");
    for gone in of_h1 {
        done(&store.run(&["store", "rm", "--prefix", "--force", "/calico/"]));
        let left: Vec<(String, String)> = whole
            .iter()
            .filter(|(key, _)| *key != gone)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        import(&store, &left);
        assert_eq!(
            done_whole().keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>(),
            "without {gone}"
        );
    }
}

#[test]
fn hosts_are_listed_and_shown_from_their_objects() {
    let store = store(&["h1", "h2"]);
    done(&store.run(&["ipam", "pool", "create", "10.65.0.0/24"]));
    let addr = assign(&store, &["--node", "h1", "--handle", "c1"]).remove(0);
    import(&store, &objects_of_h1(&addr, "10.65.0.200"));
    let node = object(
        "nodes/h1",
        &json!({"bgp": {"ipv4Address": "192.0.2.1/24", "asNumber": 64513, "ipv4IPIPTunnelAddr": "10.65.0.63"},
                "ipv4VXLANTunnelAddr": "10.65.0.62", "ipv6VXLANTunnelAddr": "fd65::3e"}),
    );
    import(&store, &[node, ("/calico/felix/v2/region-a/host/h2/status".to_owned(), "{}".to_owned())]);
    let list = answer(&store.run(&["node", "list", "--node", "here", "-o", "json"]));
    let [h1, h2] = &list["items"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(
        (&h1["ip4"], &h1["network4"], &h1["as"]),
        (&"192.0.2.1".into(), &"192.0.2.0/24".into(), &"64513".into())
    );
    assert_eq!(
        (&h1["tunnelAddr"], &h1["vxlanAddr4"], &h1["vxlanAddr6"]),
        (&"10.65.0.63".into(), &"10.65.0.62".into(), &"fd65::3e".into())
    );
    let endpoints = h1["endpoints"].as_array().unwrap();
    assert!(endpoints.contains(&"cni/default/c1/eth0".into()) && h1["peers"] == 1, "{h1}");
    assert_eq!((&h1["agent"], &h2["agent"], &h2["as"]), (&"none".into(), &"felix".into(), &"64512".into()));
    let text = done(&store.run(&["node", "show", "h1"]));
    for word in ["192.0.2.1 in 192.0.2.0/24", "10.65.0.62", "fd65::3e", "cni/default/c1/eth0", "own peers  1"]
    {
        assert!(text.contains(word), "no {word:?}: {text}");
    }
    fails(&store, &["node", "show", "h9"], 1, &["h9", "tortie node list"]);
    assert!(store.export().contains_key(&format!("{ROOT}/nodes/h1")));
}
