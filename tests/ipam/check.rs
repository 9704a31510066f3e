//! Findings of `check`; after their repair there are none left.

use tortie_engine::ipam::check::{
    AddressInUse, Evidence, Finding, IpamState, Kind, RESERVED, RepairOutcome, findings,
};
use tortie_engine::ipam::{AllocationRequest, Keyspace};
use tortie_net::Cidr;

use crate::rig::*;

async fn look(rig: &Rig, evidence: &Evidence) -> Vec<Finding> {
    let ipam_state = IpamState::load(rig.store.as_ref(), &Keyspace::Global).await.unwrap();
    findings(&ipam_state, evidence)
}

fn on(host: &str) -> Evidence {
    Evidence { host: Some(host.to_owned()), ..Evidence::default() }
}

fn kinds(found: &[Finding]) -> Vec<(Kind, &str)> {
    found.iter().map(|finding| (finding.kind, finding.subject.as_str())).collect()
}

async fn known(rig: &Rig, hosts: &[&str]) {
    for host in hosts {
        rig.put(&format!("/calico/v1/host/{host}/metadata"), "{}").await;
    }
}

async fn endpoint(rig: &Rig, host: &str, workload: &str, addr: &str) {
    let value = format!(
        r#"{{"state": "active", "name": "cali1", "mac": null, "profile_ids": [], "ipv4_nets": ["{addr}/32"], "ipv6_nets": []}}"#
    );
    rig.put(&format!("/calico/v1/host/{host}/workload/cni/{workload}/endpoint/eth0"), &value).await;
}

fn by(host: &str, handle: &str, count: u32) -> AllocationRequest {
    AllocationRequest { attributes: attributes(&[("node", host)]), ..held(any(host, count), handle) }
}

/// Repairs all findings and returns the outcome of each; no repairable finding may remain.
async fn repair_all(rig: &Rig, evidence: &Evidence) -> Vec<RepairOutcome> {
    let found = look(rig, evidence).await;
    let repaired = rig.ipam.release_from_check(&found).await.unwrap();
    let again = look(rig, evidence).await;
    assert!(again.iter().all(|finding| finding.fix.is_none()), "{again:?}");
    repaired
}

#[tokio::test]
async fn leaked_addresses_are_distinguished_from_those_in_use() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    known(&rig, &["h1", "h2"]).await;
    let given = addrs(&rig.assign(&by("h1", "a", 3)).await);
    let theirs = addrs(&rig.assign(&by("h2", "b", 1)).await);
    endpoint(&rig, "h1", "w", &given[0]).await;
    let mut evidence = on("h1");
    evidence.seen.push(AddressInUse { addr: addr(&given[1]), place: "eth0 in /run/netns/x".to_owned() });
    let found = look(&rig, &evidence).await;
    assert_eq!(kinds(&found), [(Kind::Leaked, given[2].as_str()), (Kind::Unproven, theirs[0].as_str())]);
    assert!(found[0].evidence.contains("`a` on h1"), "{}", found[0].evidence);
    evidence.blind.push("/proc/7/ns/net".to_owned());
    assert_eq!(look(&rig, &evidence).await[0].kind, Kind::Unproven, "a blind spot proves nothing");
    evidence.blind.clear();
    assert_eq!(repair_all(&rig, &evidence).await, [RepairOutcome::Done, RepairOutcome::NeedsPerson]);
    assert!(rig.ipam.lookup(addr(&given[2])).await.unwrap().is_none());
    assert_eq!(rig.handle("a").await.unwrap().blocks.values().sum::<u32>(), 2);
}

/// An address reserved by an operator without an endpoint is not leaked as long as its host exists.
#[tokio::test]
async fn reserved_addresses_are_left() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    known(&rig, &["h1"]).await;
    for host in ["h1", "gone"] {
        let attributes = attributes(&[("node", host), ("type", RESERVED)]);
        rig.assign(&AllocationRequest { attributes, ..any(host, 1) }).await;
    }
    let found = look(&rig, &on("h1")).await;
    let leaked: Vec<_> = found.iter().filter(|finding| finding.kind == Kind::Leaked).collect();
    assert_eq!(leaked.len(), 1, "{found:?}");
    assert!(
        leaked[0].evidence.contains("on gone, which is no longer a host of the cluster"),
        "{}",
        leaked[0].evidence
    );
    assert!(found.iter().all(|finding| finding.kind != Kind::Unproven), "{found:?}");
}

#[tokio::test]
async fn what_was_given_out_lately_is_passed_over() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    for (n, given) in ["2026-01-02T03:04:05Z", "2026-01-02 03:04:07.5 +0000 UTC"].into_iter().enumerate() {
        let attributes = attributes(&[("node", "h1"), ("timestamp", given)]);
        rig.assign(&AllocationRequest { attributes, ..held(any("h1", 1), &n.to_string()) }).await;
    }
    for (since, leaked) in
        [("2026-01-02T03:04:05Z", 0), ("2026-01-02T03:04:06Z", 1), ("2026-01-02T03:04:08Z", 2)]
    {
        let evidence = Evidence { since: Some(since.parse().unwrap()), ..on("h1") };
        assert_eq!(look(&rig, &evidence).await.len(), leaked, "{since}");
    }
}

#[tokio::test]
async fn an_address_that_got_another_holder_is_not_released() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let given = rig.assign(&by("h1", "old", 1)).await;
    let found = look(&rig, &on("h1")).await;
    rig.ipam.release_handle("old").await.unwrap();
    rig.assign(&held(exact("h1", &given[0].addr.to_string()), "new")).await;
    assert_eq!(rig.ipam.release_from_check(&found).await.unwrap(), [RepairOutcome::Changed]);
    assert_eq!(rig.ipam.lookup(given[0].addr).await.unwrap().unwrap().handle.as_deref(), Some("new"));
}

#[tokio::test]
async fn a_host_that_is_gone_leaves_leaks_and_ownerless_blocks() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    known(&rig, &["h1"]).await;
    let given = rig.assign(&by("gone", "g", 1)).await;
    let (addr, block) = (given[0].addr.to_string(), given[0].block.to_string());
    let found = look(&rig, &Evidence::default()).await;
    assert_eq!(kinds(&found), [(Kind::Leaked, addr.as_str()), (Kind::Ownerless, block.as_str())]);
    assert_eq!(repair_all(&rig, &Evidence::default()).await, [RepairOutcome::Done, RepairOutcome::Done]);
    assert_eq!(rig.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn unaccounted_and_duplicate_addresses_need_a_person() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    endpoint(&rig, "h1", "one", "10.0.0.9").await;
    endpoint(&rig, "h2", "two", "10.0.0.9").await;
    endpoint(&rig, "h2", "three", "172.16.0.1").await;
    let mut evidence = on("h1");
    for place in ["eth0 in a", "eth0 in b"] {
        evidence.seen.push(AddressInUse { addr: addr("10.0.0.10"), place: place.to_owned() });
    }
    let found = look(&rig, &evidence).await;
    assert_eq!(
        kinds(&found),
        [
            (Kind::Unaccounted, "10.0.0.10"),
            (Kind::Unaccounted, "10.0.0.9"),
            (Kind::Duplicate, "10.0.0.10"),
            (Kind::Duplicate, "10.0.0.9"),
        ]
    );
    assert!(found.iter().all(|finding| finding.fix.is_none()));
}

#[tokio::test]
async fn handles_and_affinities_are_brought_into_agreement() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    let given = rig.assign(&held(any("h1", 2), "a")).await;
    for given in &given {
        endpoint(&rig, "h1", &given.addr.to_string(), &given.addr.to_string()).await;
    }
    let block = given[0].block;
    let free: Vec<Cidr> = ["10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26"]
        .iter()
        .map(|text| cidr(text))
        .filter(|other| *other != block)
        .collect();
    let key =
        |host: &str, block: &Cidr| format!("/calico/ipam/v2/host/{host}/ipv4/block/{}", block.to_key_text());
    rig.put("/calico/ipam/v2/handle/a", &format!(r#"{{"block": {{"{block}": 1}}}}"#)).await;
    rig.put("/calico/ipam/v2/handle/stale", &format!(r#"{{"block": {{"{}": 7}}}}"#, free[0])).await;
    rig.put(&key("h2", &block), "{}").await;
    rig.put(&key("h2", &free[0]), r#"{"state": "pending"}"#).await;
    rig.put(&key("h1", &block), r#"{"state": "pending"}"#).await;
    let found = look(&rig, &Evidence::default()).await;
    let [two, three, one] = [format!("h2 {block}"), format!("h2 {}", free[0]), format!("h1 {block}")];
    let mut want = vec![
        (Kind::Affinity, one.as_str()),
        (Kind::Affinity, two.as_str()),
        (Kind::Affinity, three.as_str()),
    ];
    want.sort();
    want.splice(0..0, [(Kind::Handle, "a"), (Kind::Handle, "stale")]);
    assert_eq!(kinds(&found), want);
    assert!(
        repair_all(&rig, &Evidence::default()).await.iter().all(|repaired| *repaired == RepairOutcome::Done)
    );
    assert_eq!(look(&rig, &Evidence::default()).await, []);
    assert_eq!(rig.handle("a").await.unwrap().blocks[&block], 2);
    assert_eq!(rig.affinity("h1", &block.to_string()).await.as_deref(), Some(r#"{"state":"confirmed"}"#));
    assert_eq!(rig.ipam.release_handle("a").await.unwrap().len(), 2);
}

#[tokio::test]
async fn findings_survive_a_file() {
    let rig = Rig::new(&["10.0.0.0/24"]).await;
    rig.assign(&by("h1", "a", 1)).await;
    rig.put("/calico/ipam/v2/config", "{").await;
    let found = look(&rig, &on("h1")).await;
    assert_eq!(found.len(), 2);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains(r#""kind":"leaked""#) && text.contains(r#""do":"release""#), "{text}");
    assert_eq!(serde_json::from_str::<Vec<Finding>>(&text).unwrap(), found);
}
