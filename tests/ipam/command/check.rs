//! `tortie ipam check` and `tortie ipam release --from-check`: inconsistencies are found with their evidence,
//! and repaired only if they are unchanged.

use std::collections::BTreeMap;
use std::process::Output;

use super::{assign, done, endpoint, fails, json, put, store};
use crate::common::command::Store;
use crate::common::netns::{in_netns, ip};

const POOL: &str = "10.65.0.0/24";

fn host(store: &Store, name: &str, n: u8) {
    put(store, &(format!("/calico/v1/host/{name}/metadata"), "{}".to_owned()));
    put(store, &(format!("/calico/bgp/v1/host/{name}/ip_addr_v4"), format!("192.0.2.{n}")));
}

fn check(store: &Store) -> Output {
    store.run(&["ipam", "check", "--node", "h1", "-o", "json"])
}

/// Returns the kind of each finding by subject.
fn found(output: &Output) -> BTreeMap<String, String> {
    let word = |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let all = json(output);
    let all = all["findings"].as_array().unwrap().iter();
    all.map(|finding| (word(finding, "subject"), word(finding, "kind"))).collect()
}

fn evidence(output: &Output, subject: &str) -> String {
    let all = json(output);
    let all = all["findings"].as_array().unwrap();
    all.iter().find(|finding| finding["subject"] == subject).unwrap()["evidence"].as_str().unwrap().to_owned()
}

#[test]
fn each_kind_is_found_and_what_can_be_is_repaired() {
    in_netns(|| {
        let store = store(&[POOL]);
        host(&store, "h1", 1);
        host(&store, "h2", 2);
        // Consistent: an endpoint, a tunnel, and an interface without an endpoint (Docker's bridge has none).
        let used = assign(&store, &["--node", "h1", "--num4", "3", "--handle", "used"]);
        put(&store, &endpoint("h1", "web", &used[0]));
        put(&store, &("/calico/v1/host/h1/config/IpInIpTunnelAddr".to_owned(), used[1].clone()));
        let tunnel = ["--node", "h2", "--handle", "ipip-tunnel-addr-h2", "--attr", "type=ipipTunnelAddress"];
        let tunnel = assign(&store, &tunnel).remove(0);
        put(&store, &("/calico/v1/host/h2/config/IpInIpTunnelAddr".to_owned(), tunnel.clone()));
        ip(&format!("address add {}/32 dev lo", used[2]));
        ip("link add caliweb type veth peer name calicopy");
        ip("link add caliapi type veth peer name caliagain");
        let clean = check(&store);
        assert!(clean.status.success(), "{clean:?}");
        assert_eq!(json(&clean)["findings"].as_array().unwrap().len(), 0);
        assert!(done(&store.run(&["ipam", "check", "--node", "h1"])).contains("no problem found"));

        // One inconsistency of each kind.
        let leaked = assign(&store, &["--node", "h1", "--num4", "2", "--handle", "gone"]);
        let far = assign(&store, &["--node", "h2", "--handle", "far"]);
        let lone = free(&store, &used);
        put(&store, &endpoint("h1", "api", &lone));
        put(&store, &endpoint("h1", "copy", &used[0]));
        put(&store, &endpoint("h2", "thief", &tunnel));
        let output = check(&store);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let kinds = found(&output);
        assert_eq!(kinds.get(&leaked[0]).map(String::as_str), Some("leaked"), "{kinds:?}");
        assert_eq!(kinds.get(&leaked[1]).map(String::as_str), Some("leaked"));
        assert_eq!(kinds.get(&lone).map(String::as_str), Some("unaccounted"));
        assert_eq!(kinds.get(&used[0]).map(String::as_str), Some("duplicate"));
        assert_eq!(kinds.get(&far[0]).map(String::as_str), Some("unproven"), "only h2 itself can tell");
        assert_eq!(kinds.get(&tunnel).map(String::as_str), Some("duplicate"), "a tunnel and a workload");
        assert_eq!(kinds.len(), 6, "{kinds:?}");
        assert!(evidence(&output, &used[0]).contains("copy"), "{output:?}");
        let text = store.run(&["ipam", "check", "--node", "h1"]);
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains("2 leaked") && text.contains("release --from-check"), "{text}");

        // A leaked address is allocated again before the report is used.
        let report = store.file("report.json", &String::from_utf8_lossy(&output.stdout));
        done(&store.run(&["ipam", "release", "--ip", &leaked[0]]));
        assign(&store, &["--node", "h1", "--ip", &leaked[0], "--handle", "again"]);
        put(&store, &endpoint("h1", "again", &leaked[0]));
        let words = ["ipam", "release", "-o", "json", "--from-check", report.to_str().unwrap()];
        let repaired = store.run(&words);
        assert_eq!(repaired.status.code(), Some(1), "some are left for a person: {repaired:?}");
        let results: BTreeMap<String, String> = json(&repaired)
            .as_array()
            .unwrap()
            .iter()
            .map(|o| (o["subject"].as_str().unwrap().to_owned(), o["result"].as_str().unwrap().to_owned()))
            .collect();
        assert_eq!(results[&leaked[0]], "changed", "{results:?}");
        assert_eq!(results[&leaked[1]], "done");
        assert!(done(&store.run(&["ipam", "show", &leaked[0]])).contains("again"));
        fails(&store, &["ipam", "show", &leaked[1]], 1, &[]);

        // Inconsistencies that an operator must decide.
        done(&store.run(&["store", "rm", "/calico/v1/host/h1/workload/cni/copy/endpoint/eth0"]));
        done(&store.run(&["store", "rm", "/calico/v1/host/h2/workload/cni/thief/endpoint/eth0"]));
        done(&store.run(&["store", "rm", "/calico/v1/host/h1/workload/cni/api/endpoint/eth0"]));
        done(&store.run(&["ipam", "release", "--handle", "far"]));
        store.run(&["ipam", "release", "--from-check", "--node", "h1"]);
        let last = check(&store);
        assert!(last.status.success(), "{last:?}");
        // A second run finds and does nothing.
        assert!(
            done(&store.run(&["ipam", "release", "--from-check", "--node", "h1"]))
                .contains("no problems were found")
        );
    });
}

/// Returns an unallocated address of the same block.
fn free(store: &Store, used: &[String]) -> String {
    let head = used[0].rsplit_once('.').unwrap().0;
    let block =
        json(&store.run(&["ipam", "show", &used[0], "-o", "json"]))["block"].as_str().unwrap().to_owned();
    let first: u8 = block.split('/').next().unwrap().rsplit('.').next().unwrap().parse().unwrap();
    format!("{head}.{}", first + 63)
}

#[test]
fn an_endpoint_without_its_interface_is_found_on_its_host() {
    in_netns(|| {
        let store = store(&[POOL]);
        host(&store, "h1", 1);
        host(&store, "h2", 2);
        let [stands, lost] = &assign(&store, &["--node", "h1", "--num4", "2", "--handle", "c"])[..] else {
            panic!()
        };
        let far = assign(&store, &["--node", "h2", "--handle", "far"]);
        ip("link add caliweb type veth peer name tmp1");
        put(&store, &endpoint("h1", "web", stands));
        let ghost = endpoint("h1", "ghost", lost);
        put(&store, &ghost);
        put(&store, &endpoint("h2", "away", &far[0]));
        let output = check(&store);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(
            found(&output),
            [(ghost.0.clone(), "no-interface".to_owned())].into(),
            "h2 alone can tell of its own"
        );
        assert!(evidence(&output, &ghost.0).contains("no interface calighost on h1"), "{output:?}");
        // After the operator's decision, the rest is repaired automatically.
        fails(&store, &["ipam", "release", "--from-check", "--node", "h1"], 1, &[]);
        done(&store.run(&["store", "rm", &ghost.0]));
        assert_eq!(found(&check(&store)), [(lost.clone(), "leaked".to_owned())].into());
        let only = store.run(&["ipam", "check", "--store-only"]);
        assert!(!String::from_utf8_lossy(&only.stdout).contains("no-interface"), "{only:?}");
    });
}

#[test]
fn an_interface_in_a_namespace_is_evidence() {
    in_netns(|| {
        let store = store(&[POOL]);
        host(&store, "h1", 1);
        let name = format!("tipam-check-{}", std::process::id());
        ip(&format!("netns add {name}"));
        let [held, dead] = &assign(&store, &["--node", "h1", "--num4", "2", "--handle", "c"])[..] else {
            panic!()
        };
        ip("link add cali1 type veth peer name tmp1");
        ip(&format!("link set tmp1 netns {name}"));
        ip(&format!("-n {name} address add {held}/32 dev tmp1"));
        let kinds = found(&check(&store));
        ip(&format!("netns del {name}"));
        assert_eq!(kinds.get(dead).map(String::as_str), Some("leaked"), "{kinds:?}");
        assert!(!kinds.contains_key(held), "{kinds:?}");
        let kinds = found(&check(&store));
        assert_eq!(kinds.get(held).map(String::as_str), Some("leaked"), "{kinds:?}");
    });
}

#[test]
fn reports_that_are_none() {
    let store = store(&[POOL]);
    assign(&store, &["--node", "h1", "--handle", "c"]);
    let before = store.export();
    let bad = |text: &str, named: &[&str]| {
        let file = store.file("bad.json", text);
        fails(
            &store,
            &["ipam", "release", "--from-check", file.to_str().unwrap()],
            2,
            &[&["bad.json"], named].concat(),
        );
    };
    bad("{", &["tortie ipam check -o json"]);
    bad("[]", &["findings"]);
    bad("{}", &["findings"]);
    bad(r#"{"findings":[{"kind":"wet","subject":"x","evidence":""}]}"#, &["wet"]);
    bad(
        r#"{"findings":[{"kind":"leaked","subject":"10.65.0.1","evidence":"","fix":{"do":"release"}}]}"#,
        &["missing field"],
    );
    fails(&store, &["ipam", "release", "--from-check", "/no/such/report.json"], 2, &["/no/such/report.json"]);
    assert_eq!(store.export(), before);
}
