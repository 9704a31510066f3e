//! `tortie node list|show|delete`.

use super::{assign, done, endpoint, fails, json, put, store};

fn known(store: &crate::common::command::Store, host: &str, addr: &str) {
    for (key, value) in [
        (format!("/calico/v1/host/{host}/metadata"), "{}".to_owned()),
        (format!("/calico/v1/host/{host}/bird_ip"), addr.to_owned()),
        (format!("/calico/bgp/v1/host/{host}/ip_addr_v4"), addr.to_owned()),
        (format!("/calico/bgp/v1/host/{host}/network_v4"), "192.0.2.0/24".to_owned()),
    ] {
        put(store, &(key, value));
    }
}

fn status(host: &str) -> (String, String) {
    let value = serde_json::json!({
        "node": host, "version": "0.1.0", "time": "2026-01-01T00:00:00.000Z", "ready": true,
        "sessions": { "up": 1, "of": 2 }, "revision": 7,
    });
    (format!("/calico/tortie/v1/status/{host}"), value.to_string())
}

#[test]
fn hosts_are_listed_and_shown() {
    let store = store(&["10.65.0.0/24"]);
    known(&store, "h1", "192.0.2.1");
    known(&store, "h10", "192.0.2.10");
    put(&store, &status("h10"));
    put(&store, &("/calico/bgp/v1/host/h1/as_num".to_owned(), "64513".to_owned()));
    put(&store, &("/calico/v1/host/h1/config/IpInIpTunnelAddr".to_owned(), "10.65.0.63".to_owned()));
    let addr = assign(&store, &["--node", "h1", "--handle", "c1"]).remove(0);
    put(&store, &endpoint("h1", "web", &addr));
    let list = json(&store.run(&["node", "list", "--node", "here", "-o", "json"]));
    assert_eq!((&list["kind"], &list["node"]), (&"NodeList".into(), &"here".into()));
    let [h1, h10] = &list["items"].as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!((&h1["name"], &h1["agent"], &h1["as"]), (&"h1".into(), &"none".into(), &"64513".into()));
    assert_eq!((&h1["tunnelAddr"], &h1["ip4"]), (&"10.65.0.63".into(), &"192.0.2.1".into()));
    assert_eq!((h1["endpoints"].as_array().unwrap().len(), h1["blocks"].as_array().unwrap().len()), (1, 1));
    assert_eq!(
        (&h10["agent"], &h10["sessionsUp"], &h10["as"]),
        (&"ready".into(), &1.into(), &"64512".into())
    );
    let table = done(&store.run(&["node", "list"]));
    assert!(table.lines().nth(1).unwrap().starts_with("h1 ") && table.contains("1/2"), "{table}");
    // A name with the same beginning is another host.
    let text = done(&store.run(&["node", "show", "h1"]));
    for word in ["h1   no agent runs", "192.0.2.1 in 192.0.2.0/24", "64513", "10.65.0.63", "cni/web/eth0"] {
        assert!(text.contains(word), "no {word:?}: {text}");
    }
    assert!(done(&store.run(&["node", "show", "h10"])).contains("agent ready, 0.1.0"));
    fails(&store, &["node", "show", "h2"], 1, &["h2", "tortie node list"]);
}

#[test]
fn a_host_goes_whole_and_nothing_of_others_with_it() {
    let store = store(&["10.65.0.0/25"]);
    known(&store, "h1", "192.0.2.1");
    known(&store, "h2", "192.0.2.2");
    // Two blocks: each host owns one and borrows from the other.
    let own = assign(&store, &["--node", "h1", "--num4", "60", "--handle", "own1"]);
    assign(&store, &["--node", "h2", "--num4", "2", "--handle", "own2"]);
    let theirs =
        assign(&store, &["--node", "h2", "--ip", &own_block_free(&store, &own), "--handle", "borrow2"]);
    let lent = assign(&store, &["--node", "h1", "--num4", "10", "--handle", "borrow1"]);
    put(&store, &endpoint("h1", "web", &own[0]));
    put(&store, &endpoint("h2", "db", &theirs[0]));
    put(
        &store,
        &(
            "/calico/bgp/v1/host/h1/peer_v4/192.0.2.254".to_owned(),
            r#"{"ip":"192.0.2.254","as_num":"1"}"#.to_owned(),
        ),
    );
    put(
        &store,
        &(
            "/calico/bgp/v1/host/h2/peer_v4/192.0.2.1".to_owned(),
            r#"{"ip":"192.0.2.1","as_num":"1"}"#.to_owned(),
        ),
    );
    let before = store.export();
    put(&store, &status("h1"));
    let refused = fails(
        &store,
        &["node", "delete", "h1"],
        7,
        &["runs on h1", "/calico/tortie/v1/status/h1", "--force"],
    );
    assert!(refused.stdout.is_empty());
    done(&store.run(&["store", "rm", "/calico/tortie/v1/status/h1"]));
    assert_eq!(store.export(), before, "refused is untouched");
    let gone = json(&store.run(&["node", "delete", "h1", "-o", "json"]));
    let addresses = gone["addresses"].as_array().unwrap();
    for addr in own.iter().chain(&lent) {
        assert!(addresses.iter().any(|found| found == addr), "{addr} is not named: {gone}");
    }
    assert!(!addresses.iter().any(|found| *found == theirs[0]), "h2 has it: {gone}");
    assert_eq!(gone["endpoints"][0], "cni/web/eth0");
    assert_eq!(gone["stillNamed"][0], "/calico/bgp/v1/host/h2/peer_v4/192.0.2.1");
    let left = store.export();
    for (key, value) in &left {
        assert!(!key.contains("/h1/") && !key.ends_with("/h1"), "{key} is left");
        assert!(
            !value.contains("host:h1") && !value.contains("own1") && !value.contains("borrow1"),
            "{key}: {value}"
        );
    }
    assert!(left.contains_key("/calico/v1/host/h2/workload/cni/db/endpoint/eth0"));
    assert!(done(&store.run(&["ipam", "show", &theirs[0]])).contains("borrow2"));
    // A second deletion finds nothing, and the rest is consistent.
    fails(&store, &["node", "delete", "h1"], 1, &["h1", "tortie node list"]);
    assert_eq!(store.export(), left);
    let check = store.run(&["ipam", "check", "--store-only", "-o", "json"]);
    let kinds: Vec<String> = json(&check)["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["kind"].to_string())
        .filter(|kind| kind != "\"unproven\"")
        .collect();
    assert!(kinds.is_empty(), "{check:?}");
}

/// Returns an unallocated address of the block that contains these.
fn own_block_free(store: &crate::common::command::Store, own: &[String]) -> String {
    let shown = json(&store.run(&["ipam", "show", &own[0], "-o", "json"]));
    let block = shown["block"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let (head, first) = block.rsplit_once('.').unwrap();
    let first: u8 = first.parse().unwrap();
    let free = (first..first + 64).map(|last| format!("{head}.{last}"));
    let mut free = free.filter(|addr| store.run(&["ipam", "show", addr]).status.code() == Some(1));
    free.next().unwrap()
}

#[test]
fn force_removes_a_host_whose_status_is_still_there() {
    let store = store(&[]);
    known(&store, "h1", "192.0.2.1");
    put(&store, &status("h1"));
    put(&store, &status("h10"));
    let text = done(&store.run(&["node", "delete", "--force", "h1"]));
    assert!(text.contains("h1 is removed: 5 keys deleted"), "{text}");
    let left: Vec<String> = store.export().into_keys().collect();
    assert_eq!(left, ["/calico/tortie/v1/status/h10", "/calico/v1/Ready"]);
}
