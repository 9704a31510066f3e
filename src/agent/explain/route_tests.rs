//! Tests of the explanation of a prefix, with fabricated evidence.

use super::super::origin::tests::origin_evidence;
use super::*;

fn path(from: &str, best: bool, usable: bool, reason: &str) -> BgpPath {
    BgpPath {
        best,
        multipath: best,
        usable,
        reason: reason.to_owned(),
        from: from.to_owned(),
        path_id: None,
        source: if from == "tor-a" { "eBGP" } else { "iBGP" }.to_owned(),
        next_hop: Some(if from == "tor-a" { "192.0.2.1" } else { "192.0.2.14" }.to_owned()),
        as_path: if from == "tor-a" { "64513 64512" } else { "" }.to_owned(),
        local_pref: Some(100),
        med: None,
        origin: "igp".to_owned(),
        communities: Vec::new(),
        large_communities: Vec::new(),
        stale: false,
    }
}

fn row(state: &str, reason: &str) -> KernelRouteRow {
    KernelRouteRow {
        prefix: "10.244.4.0/26".to_owned(),
        kind: "learned".to_owned(),
        state: state.to_owned(),
        via: vec!["via 192.0.2.14 dev eth0".to_owned()],
        reason: reason.to_owned(),
        change: "c-7f31".to_owned(),
    }
}

fn evidence(paths: Vec<BgpPath>, row: Option<KernelRouteRow>) -> RouteEvidence {
    RouteEvidence {
        queried: "10.244.4.0/26".to_owned(),
        prefix: "10.244.4.0/26".to_owned(),
        origin: PrefixOrigin { pool: "10.244.0.0/16".parse().ok(), ..origin_evidence(Origin::No) },
        route: (!paths.is_empty()).then(|| BgpRoute { prefix: "10.244.4.0/26".to_owned(), paths }),
        refused: Vec::new(),
        kernel: Some(KernelEvidence { row, decided: None, foreign: Vec::new(), metric: 1790, lookup: None }),
        recipients: Vec::new(),
        malformed: Vec::new(),
    }
}

fn ask(e: &RouteEvidence) -> Why {
    answer(Why::new("WhyRoute", "rack1-n03", 918_273, String::new(), "x"), e)
}

fn rung(step: &'static str, pass: bool, verdict: &str) -> ExportStep {
    ExportStep { step, pass, verdict: verdict.to_owned() }
}

#[test]
fn a_used_route_shows_the_refused_path_and_its_recipients() {
    let paths = vec![
        path("rack1-n04", true, true, "only usable path"),
        path("tor-a", false, false, "refused: as_loop"),
    ];
    let mut e = evidence(paths, Some(row("installed", "plain")));
    e.refused = vec![("tor-a".to_owned(), vec![rung("loop", false, "as_loop")])];
    e.recipients = vec![
        Recipient {
            name: "tor-a".into(),
            announced: true,
            step: "pool".into(),
            text: "inside pool 10.244.0.0/16".into(),
        },
        Recipient {
            name: "rack1-n05".into(),
            announced: false,
            step: "reflection".into(),
            text: "from an iBGP peer".into(),
        },
    ];
    let expected = "10.244.4.0/26 is used: from rack1-n04, only usable path; in the kernel via 192.0.2.14 dev eth0

        pool           inside 10.244.0.0/16
  ok    best           from rack1-n04 (iBGP), next hop 192.0.2.14, local preference 100: only usable path
  STOP  refused        from tor-a (eBGP), next hop 192.0.2.1, AS path 64513 64512, local preference 100: our own AS is in its AS_PATH (num_allow_local_as)
  ok    kernel         installed: via 192.0.2.14 dev eth0 (plain)   c-7f31
  ok    advertised     to tor-a: yes (inside pool 10.244.0.0/16)
  --    advertised     to rack1-n05: no, reflection: from an iBGP peer

Conclusion:  ok   [certain]
Not looked at: how peers use the routes that are sent to them; routing rules and tables besides main; packets
";
    let why = ask(&e);
    assert_eq!(why.to_string(), expected);
    assert!(why.good);
}

#[test]
fn what_is_in_the_way_has_the_code_of_who_said_so() {
    let used = || vec![path("rack1-n04", true, true, "only usable path")];
    let refused = |step, verdict: &str| {
        let mut e = evidence(vec![path("tor-a", false, false, "refused")], None);
        e.refused =
            vec![("tor-a".to_owned(), vec![rung("loop", true, "no loop"), rung(step, false, verdict)])];
        e
    };
    let behind = |metric| {
        let mut e = evidence(used(), Some(row("installed", "plain")));
        e.kernel.as_mut().unwrap().foreign = vec![ForeignRoute { protocol: 4, metric, unicast: true }];
        e
    };
    let table = [
        ("not-in-table", evidence(Vec::new(), None)),
        ("as_loop", refused("loop", "as_loop")),
        ("own-endpoint", refused("own-endpoint", "an endpoint of this host holds 10.0.0.1")),
        ("inside-pool", refused("inside-pool", "inside pool 10.244.0.0/16")),
        ("filter", refused("filter", "rule 1 of filter tor-export rejects it")),
        ("next-hop", evidence(vec![path("tor-a", false, false, "next hop 192.0.2.1 is unreachable")], None)),
        ("unresolved", evidence(used(), Some(row("withheld", "unresolved")))),
        ("no-tunnel", evidence(used(), Some(row("withheld", "no-tunnel")))),
        ("no-network", evidence(used(), Some(row("withheld", "no-network")))),
        (
            "foreign-route",
            evidence(
                used(),
                Some(row("failed", "a route of protocol 4 has this prefix and our metric 1790")),
            ),
        ),
        ("foreign-route", behind(100)),
        ("kernel-refused", evidence(used(), Some(row("failed", "EINVAL")))),
        ("pending", evidence(used(), Some(row("pending", "not written yet")))),
        ("ok", behind(4_000)),
    ];
    for (code, evidence) in table {
        let why = ask(&evidence);
        assert_eq!(why.code, code, "{why}");
        assert_eq!(why.good, code == "ok", "{why}");
        assert_eq!(why.conclusion.is_none(), code == "ok", "{why}");
        assert!(!why.not_looked_at.is_empty());
    }
}

/// A route of the store is used without an announcement, and what keeps it from the kernel is named.
#[test]
fn a_route_of_the_store_needs_no_announcement() {
    for (kind, says) in [
        ("vxlan", "the store leads to its host by VXLAN"),
        ("ipip", "the store leads to its host by IPIP"),
        ("gateway", "the store leads to this peer by its gateway (reachable_by)"),
    ] {
        let of = |state, reason| KernelRouteRow { kind: kind.to_owned(), ..row(state, reason) };
        let used = ask(&evidence(Vec::new(), Some(of("installed", kind))));
        assert!(used.good && used.code == "ok" && used.answer.contains(says), "{used:?}");
        let not = ask(&evidence(Vec::new(), Some(of("withheld", "unresolved"))));
        assert!(!not.good && not.code == "unresolved" && not.answer.contains(says), "{not:?}");
        assert!(not.answer.contains("NOT used"), "{}", not.answer);
    }
}

#[test]
fn a_thousand_sessions_are_a_few_lines() {
    let mut e =
        evidence(vec![path("rack1-n04", true, true, "only usable path")], Some(row("installed", "plain")));
    e.recipients = (0..1_000)
        .map(|n| Recipient {
            name: format!("n{n}"),
            announced: n == 0,
            step: if n == 0 { "pool" } else { "reflection" }.to_owned(),
            text: "why".to_owned(),
        })
        .collect();
    let why = ask(&e);
    let lines: Vec<&str> =
        why.steps.iter().filter(|step| step.name == "advertised").map(|step| step.text.as_str()).collect();
    assert_eq!(
        lines,
        ["to 1 peer (n0): yes (why)", "to 999 peers (n1, n2, n3, n4, n5 and 994 more): no, reflection: why"]
    );
}
