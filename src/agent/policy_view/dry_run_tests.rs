//! Tests of dry runs on a small host.

use super::*;
use tortie_engine::model::WatchPart;
use tortie_store::Snapshot;

const POLICY: &str = "/calico/v1/policy/tier/default/policy/db-in";

fn model() -> Model {
    let workload = |name: &str, addr: &str, role: &str| {
        format!(
            r#"{{"state":"active","name":"{name}","mac":null,"profile_ids":["open"],"ipv4_nets":["{addr}/32"],
                "ipv6_nets":[],"labels":{{"role":"{role}"}}}}"#
        )
    };
    let entries = [
        ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1".to_owned()),
        ("/calico/v1/host/h1/workload/cni/db/endpoint/eth0", workload("cali1", "10.65.0.1", "db")),
        ("/calico/v1/host/h1/workload/cni/web/endpoint/eth0", workload("cali2", "10.65.0.2", "web")),
        ("/calico/v1/host/h2/workload/cni/api/endpoint/eth0", workload("cali1", "10.65.1.1", "api")),
        (
            "/calico/v1/policy/profile/open/rules",
            r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#.to_owned(),
        ),
        (
            POLICY,
            r#"{"selector":"role == 'db'","types":["ingress"],"outbound_rules":[],"inbound_rules":[
                {"action":"allow","src_selector":"role in {'web','api'}"}]}"#
                .to_owned(),
        ),
    ];
    let mut model = Model::new("h1");
    let kv = |(key, value): (&str, String)| KeyValue {
        key: key.to_owned(),
        value: value.into_bytes(),
        mod_revision: 7,
        create_revision: 7,
    };
    let entries = entries.into_iter().map(kv).collect();
    model.replace(
        WatchPart::Main,
        &Snapshot { revision: 7, store_id: "a".to_owned(), entries, ..Snapshot::default() },
    );
    model
}

fn dry(key: &str, value: Option<&str>) -> Result<DryRunOutcome, ApiError> {
    let model = model();
    let before = Enforced::of(&model);
    run(
        model,
        before,
        NodeOptions::default(),
        &DryRunRequest { key: key.to_owned(), value: value.map(str::to_owned) },
    )
}

/// Returns the effect of a write on sessions and own routes, computed from the store alone.
fn offline(key: &str, value: Option<&str>) -> DryRun {
    let mut trial = dry(key, value).unwrap();
    if let Some(before) = trial.routing_before() {
        let rehearsal = Rehearsal::of_intent(before);
        judge_bgp(rehearsal, &mut trial);
    }
    trial.answer
}

/// Without an agent there are no learned routes; sessions and own routes are still evaluated.
#[test]
fn sessions_and_own_routes_are_judged_from_the_store_alone() {
    let peer = "/calico/bgp/v1/global/peer_v4/192.0.2.9";
    let value = r#"{"ip": "192.0.2.9", "as_num": "64513"}"#;
    let bgp = offline(peer, Some(value)).bgp.unwrap();
    assert_eq!((bgp.come.as_slice(), bgp.end.len()), (&["Global_192_0_2_9".to_owned()][..], 0));
    let answer = offline("/calico/bgp/v1/global/as_num", Some("64999"));
    assert!(answer.not_looked_at.iter().any(|text| text.starts_with("BGP: with another AS")), "{answer:#?}");
    assert_eq!(offline(POLICY, None).bgp, None, "a policy does not concern it");
    let pool = offline("/calico/v1/ipam/v4/pool/10.65.0.0-16", Some(r#"{"cidr": "10.65.0.0/16"}"#));
    assert_eq!(pool.bgp, Some(BgpDryRun::default()), "no session and no route differs");
}

#[test]
fn rules_sets_and_connections_that_a_policy_would_touch_are_named() {
    let narrower = r#"{"selector":"role == 'db'","types":["ingress"],"outbound_rules":[],"inbound_rules":[
        {"action":"allow","protocol":"tcp","src_selector":"role == 'api'"}]}"#;
    let trial = dry(POLICY, Some(narrower)).unwrap();
    let answer = &trial.answer;
    assert_eq!((answer.revision, answer.delete, answer.frame), (Some(7), false, false));
    assert_eq!(answer.endpoints, ["cni/db/eth0"]);
    let [chain] = answer.chains.as_slice() else { panic!("{answer:#?}") };
    assert_eq!(chain.name, "policy db-in inbound");
    assert!(
        matches!(chain.lines.as_slice(), [a, b] if a.starts_with("- allow from (") && b == "+ allow tcp from (role == \"api\")"),
        "{chain:#?}"
    );
    assert!(answer.orders.is_empty());
    let sets: Vec<(&str, usize, usize)> =
        answer.sets.iter().map(|set| (set.what.as_str(), set.added, set.removed)).collect();
    assert_eq!(sets.len(), 2, "{sets:?}");
    assert!(sets.contains(&("new", 1, 0)) && sets.contains(&("gone", 0, 2)), "{sets:?}");

    let interfaces = BTreeMap::from([
        ("eth0".to_owned(), vec!["192.0.2.1".parse().unwrap()]),
        ("cali1".to_owned(), Vec::new()),
        ("cali2".to_owned(), Vec::new()),
    ]);
    let tcp = |src: &str, dst: &str| Connection {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: 6,
        ports: Some((40_000, 5432)),
        icmp: None,
    };
    let tracked = [
        tcp("10.65.0.2", "10.65.0.1"),
        tcp("10.65.1.1", "10.65.0.1"),
        // Denied already.
        tcp("198.51.100.9", "10.65.0.1"),
        tcp("10.65.0.1", "198.51.100.9"),
    ];
    let connections = connections(&trial, &interfaces, &tracked);
    assert_eq!((connections.tracked, connections.refused), (4, 1), "{connections:#?}");
    assert_eq!(
        connections.first,
        ["tcp 10.65.0.2 port 40000 -> 10.65.0.1 port 5432: end of tier default (to-workload cni/db/eth0)"]
    );
}

#[test]
fn a_policy_that_comes_or_goes_changes_the_way_of_its_endpoints() {
    let answer = dry(POLICY, None).unwrap().answer;
    assert!(answer.delete);
    let [order] = answer.orders.as_slice() else { panic!("{answer:#?}") };
    assert_eq!(order.name, "cni/db/eth0");
    assert_eq!(order.lines, ["- policy db-in inbound", "  profile open inbound", "  profile open outbound"]);
    let all = "/calico/v1/policy/tier/default/policy/all";
    let answer =
        dry(all, Some(r#"{"selector":"all()","inbound_rules":[],"outbound_rules":[]}"#)).unwrap().answer;
    assert_eq!((answer.revision, answer.endpoints.len()), (None, 2));
    // A policy whose selector matches no endpoint of this host affects nothing.
    let other = dry(all, Some(r#"{"selector":"role == 'x'","inbound_rules":[],"outbound_rules":[]}"#))
        .unwrap()
        .answer;
    assert!(other.endpoints.is_empty() && other.chains.is_empty() && other.sets.is_empty());
}

#[test]
fn what_could_not_be_in_force_is_refused() {
    for (key, value) in [(POLICY, r#"{"selector":"role =="}"#), ("/elsewhere", "{}"), (POLICY, "[")] {
        let error = dry(key, Some(value)).unwrap_err();
        assert_eq!(error.code, "invalid", "{key} {value}: {error:?}");
    }
}
