//! Tests of the explanation of an announcement, with fabricated evidence.

use super::super::origin::{Origin, tests::origin_evidence};
use super::*;
use crate::api::bgp::BgpPath;
use tortie_engine::routing::OriginKind;

fn rung(step: &'static str, pass: bool, verdict: &str) -> ExportStep {
    ExportStep { step, pass, verdict: verdict.to_owned() }
}

/// Returns the checks that precede policy, all passed.
fn passed() -> Vec<ExportStep> {
    vec![
        rung("session", true, "Established"),
        rung("family", true, "the session carries ipv4"),
        rung("best", true, "local"),
        rung("split-horizon", true, "from elsewhere"),
        rung("reflection", true, "a route of our own"),
        rung("next-hop", true, "next hop 192.0.2.13"),
    ]
}

fn evidence(trace: Vec<ExportStep>) -> ExportEvidence {
    let peer = serde_json::json!({
        "session": "Global_192_0_2_1", "address": "192.0.2.1", "port": 179, "name": "tor-a", "type": "global",
        "reason": "/calico/bgp/v1/global/peer_v4/192.0.2.1", "remoteAs": 64513, "state": "Established",
        "stateSince": "", "stateSeconds": 9, "flaps": 0, "lastError": null, "families": [], "holdSeconds": 90,
        "keepaliveSeconds": 30, "routerId": null, "messagesIn": 0, "messagesOut": 0, "capabilities": [],
        "gracefulRestart": "idle", "bfd": null
    });
    let path = BgpPath {
        best: true,
        multipath: true,
        usable: true,
        reason: "own block".to_owned(),
        from: "local".to_owned(),
        path_id: None,
        source: "local".to_owned(),
        next_hop: None,
        as_path: String::new(),
        local_pref: None,
        med: None,
        origin: "igp".to_owned(),
        communities: Vec::new(),
        large_communities: Vec::new(),
        stale: false,
    };
    let announced = trace.iter().all(|step| step.pass);
    ExportEvidence {
        prefix: "10.244.7.64/26".to_owned(),
        peer: serde_json::from_value(peer).unwrap(),
        origin: origin_evidence(Origin::Own {
            kind: OriginKind::OwnBlock,
            key: "/calico/ipam/v2/assignment/ipv4/block/10.244.7.64-26".to_owned(),
            revision: 917_700,
            state: "IPAM block, affinity host:rack1-n03 confirmed".to_owned(),
            withheld: None,
        }),
        route: Some(BgpRoute { prefix: "10.244.7.64/26".to_owned(), paths: vec![path] }),
        trace,
        announced,
        sent: announced.then(|| "next hop 192.0.2.13, empty AS path".to_owned()),
        other_next_hop: None,
        present: announced,
    }
}

fn ask(e: &ExportEvidence) -> Why {
    answer(Why::new("WhyRoute", "rack1-n03", 918_273, String::new(), "x"), e)
}

#[test]
fn a_filter_that_withholds_is_named_with_rule_key_and_revision() {
    let mut trace = passed();
    trace.extend([
        rung("own-block", true, "10.244.7.64/26 is no block of this host"),
        rung("inside-own-block", true, "not inside an own block"),
        rung("own-only", true, "the peer has no own_only"),
        rung("filter", false, "rule 2 of filter tor-export rejects it"),
    ]);
    let expected = "NOT advertised: 10.244.7.64/26 -> tor-a (192.0.2.1, ipv4/unicast)

  ok    origin         IPAM block, affinity host:rack1-n03 confirmed   /calico/ipam/v2/assignment/ipv4/block/10.244.7.64-26   rev 917700
  ok    blackhole      in the kernel
  ok    Loc-RIB        best path local, 1 candidate: own block
  ok    session        Established
  ok    family         the session carries ipv4
  ok    peer rules     from elsewhere; a route of our own
  ok    next-hop       next hop 192.0.2.13
  ok    own-block      10.244.7.64/26 is no block of this host
  ok    inside-own-block  not inside an own block
  ok    own-only       the peer has no own_only
  STOP  filter         rule 2 of filter tor-export rejects it   /calico/bgp/v1/global/filters/tor-export   rev 916020
  --    advertised     not reached
  --    pool           not reached
  --    Adj-RIB-Out    absent

Conclusion:  the gate `filter` withholds it: rule 2 of filter tor-export rejects it   [certain, filter]
Try:         change rule 2 of /calico/bgp/v1/global/filters/tor-export, or insert a rule that accepts 10.244.7.64/26 before it
Not looked at: what the peer does with it (its import policy, its best path)
";
    assert_eq!(ask(&evidence(trace)).to_string(), expected);
}

#[test]
fn every_step_that_can_refuse_gives_its_code_and_what_comes_after_it_was_not_reached() {
    for at in 0..6 {
        let mut trace = passed();
        trace.truncate(at + 1);
        trace[at].pass = false;
        let (code, why) = (trace[at].step, ask(&evidence(trace)));
        assert_eq!(why.code, code);
        assert!(!why.good);
        let stops: Vec<&str> =
            why.steps.iter().filter(|s| s.verdict == Verdict::Stop).map(|s| s.name.as_str()).collect();
        // A failed best-path selection is shown by the step of the Loc-RIB.
        assert!(stops == [code] || code == "best", "{code}: {stops:?}");
        let gates: Vec<&Step> =
            why.steps.iter().filter(|s| EXPORT_GATES.contains(&s.name.as_str())).collect();
        assert!(gates.len() == 6 && gates.iter().all(|s| s.verdict == Verdict::Skipped), "{code}: {gates:?}");
    }
}

#[test]
fn what_is_announced_is_so_when_the_peer_has_it() {
    let mut trace = passed();
    trace.extend([
        rung("own-block", true, "10.244.7.64/26 is a block of this host"),
        rung("filter", true, "filters apply for their changes only"),
        rung("size", true, "fits into a message"),
    ]);
    let mut e = evidence(trace);
    let why = ask(&e);
    assert!(why.good && why.code == "ok" && why.stop().is_none(), "{why}");
    assert!(why.answer.starts_with("ADVERTISED: "), "{why}");
    assert_eq!(why.certainty, Certainty::Certain);
    // Only the peer knows whether it can reach a next hop other than the session's address.
    e.other_next_hop = Some("2001:db8::13".to_owned());
    let why = ask(&e);
    assert_eq!((why.code.as_str(), why.certainty), ("ok", Certainty::Implied));
    assert!(why.not_looked_at.iter().any(|text| text.contains("2001:db8::13")), "{why}");
    e.present = false;
    let why = ask(&e);
    assert!(!why.good && why.code == "pending", "{why}");
}

#[test]
fn a_block_without_its_blackhole_is_not_announced_for_that() {
    let mut e = evidence(vec![
        rung("session", true, "Established"),
        rung("family", true, ""),
        rung("best", false, "no usable path"),
    ]);
    e.route = None;
    if let Origin::Own { withheld, .. } = &mut e.origin.origin {
        *withheld = Some("EEXIST".to_owned());
    }
    let why = ask(&e);
    assert_eq!((why.code.as_str(), why.good), ("blackhole", false));
    e.origin.origin =
        Origin::Affinity { state: "pending".to_owned(), key: "/calico/x".to_owned(), revision: 7 };
    let why = ask(&e);
    assert_eq!(why.code, "not-originated");
    assert!(why.conclusion.unwrap().contains("pending"));
}
