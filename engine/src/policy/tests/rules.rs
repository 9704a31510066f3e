//! Effects of rules, policies, tags and labels on single packets, following the sentences of the data model.

use std::net::IpAddr;

use super::super::*;
use super::{ruleset, tcp};

/// The evaluated endpoint, with profiles `p` and `q` in this order.
const W1: (&str, &str) = (
    "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
    r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"ipv6_nets":["fd00::1/128"],"profile_ids":["p","q"],
        "labels":{"role":"db","own":"mine"}}"#,
);
/// Other endpoints: 10.0.0.2 and 10.0.0.3 have the tag `front` from different profiles, 10.0.0.4 has no tag.
const OTHERS: &[(&str, &str)] = &[
    (
        "/calico/v1/host/h2/workload/cni/w2/endpoint/eth0",
        r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"ipv6_nets":["fd00::2/128"],"profile_ids":["web"],
            "labels":{"role":"web"}}"#,
    ),
    (
        "/calico/v1/host/h2/workload/cni/w3/endpoint/eth0",
        r#"{"state":"active","name":"cali3","ipv4_nets":["10.0.0.3/32"],"profile_ids":["proxy"]}"#,
    ),
    (
        "/calico/v1/host/h2/workload/cni/w4/endpoint/eth0",
        r#"{"state":"active","name":"cali4","ipv4_nets":["10.0.0.4/32"]}"#,
    ),
    ("/calico/v1/policy/profile/web/tags", r#"["front","A"]"#),
    ("/calico/v1/policy/profile/proxy/tags", r#"["front","B"]"#),
    ("/calico/v1/policy/profile/proxy/labels", r#"{"role":"proxy"}"#),
    ("/calico/v1/host/h2/endpoint/named", r#"{"name":"eth0","labels":{"role":"edge"}}"#),
    (
        "/calico/v1/host/h2/endpoint/known",
        r#"{"name":"eth1","expected_ipv4_addrs":["192.0.2.2"],"expected_ipv6_addrs":["2001:db8::2"],"labels":{"role":"edge"}}"#,
    ),
];

/// Evaluates a packet at `w1` in one direction, with additional keys.
fn decide(more: &[(&str, &str)], outbound: bool, packet: &Packet) -> Decision {
    let entries: Vec<(&str, &str)> = [&[W1], OTHERS, more].concat();
    let ruleset = ruleset(&entries);
    match &**ruleset.endpoints.values().next().unwrap() {
        EndpointPolicy::Workload(w) => {
            ruleset.decide(if outbound { &w.outbound } else { &w.inbound }, packet)
        }
        EndpointPolicy::Host(host) => panic!("{host:?}"),
    }
}

/// Returns true if a rule of profile `p` matches, since only that rule allows.
fn matches(rule: &str, packet: &Packet) -> bool {
    let value = format!(r#"{{"inbound_rules":[{rule}]}}"#);
    decide(&[("/calico/v1/policy/profile/p/rules", &value)], false, packet).verdict == Some(Verdict::Allow)
}

fn from(src: &str) -> Packet {
    tcp(src, if src.contains(':') { "fd00::1" } else { "10.0.0.1" }, 80)
}

fn to(dst: &str) -> Packet {
    tcp(if dst.contains(':') { "fd00::1" } else { "10.0.0.1" }, dst, 80)
}

fn protocol(number: u8) -> Packet {
    let ports = matches!(number, 6 | 17 | 132 | 136).then_some((40_000, 80));
    Packet { protocol: number, ports, ..from("192.0.2.9") }
}

fn ports(src: u16, dst: u16) -> Packet {
    Packet { ports: Some((src, dst)), ..from("192.0.2.9") }
}

fn icmp(kind: u8, code: u8) -> Packet {
    Packet { protocol: 1, ports: None, icmp: Some((kind, code)), ..from("192.0.2.9") }
}

/// Formats the deciding rule briefly.
fn by(decision: &Decision) -> String {
    match &decision.by {
        Decider::Rule(chain, at) => format!("{:?} {} {at}", decision.verdict.unwrap(), chain.source),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_protocol_by_name_or_number_and_any_other_by_its_negation() {
    for (text, number) in [
        (r#""tcp""#, 6),
        (r#""udp""#, 17),
        (r#""icmp""#, 1),
        (r#""sctp""#, 132),
        (r#""udplite""#, 136),
        ("47", 47),
    ] {
        for other in [1, 6, 17, 47, 132, 136] {
            let packet = protocol(other);
            assert_eq!(
                matches(&format!(r#"{{"protocol":{text}}}"#), &packet),
                other == number,
                "{text} {other}"
            );
            assert_eq!(
                matches(&format!(r#"{{"!protocol":{text}}}"#), &packet),
                other != number,
                "!{text} {other}"
            );
        }
    }
    // ICMP is IPv4 only, and ICMPv6 is IPv6 only.
    let six = Packet { protocol: 58, ports: None, icmp: Some((128, 0)), ..from("fd00::2") };
    assert!(matches(r#"{"protocol":"icmpv6"}"#, &six) && !matches(r#"{"protocol":"icmp"}"#, &six));
    assert!(!matches(r#"{"protocol":"icmpv6"}"#, &Packet { protocol: 58, ..from("192.0.2.9") }));
}

#[test]
fn ports_of_either_end_by_value_and_range_and_their_negation() {
    let rule = |name: &str| format!(r#"{{"protocol":"tcp","{name}":[80,"2048:4000"]}}"#);
    for (port, expected) in
        [(79, false), (80, true), (81, false), (2047, false), (2048, true), (4000, true), (4001, false)]
    {
        let other = 7;
        assert_eq!(matches(&rule("src_ports"), &ports(port, other)), expected, "src {port}");
        assert_eq!(matches(&rule("dst_ports"), &ports(other, port)), expected, "dst {port}");
        assert_eq!(matches(&rule("!src_ports"), &ports(port, other)), !expected, "!src {port}");
        assert_eq!(matches(&rule("!dst_ports"), &ports(other, port)), !expected, "!dst {port}");
    }
    // The protocol is part of the match, also for a negated port list.
    assert!(!matches(&rule("dst_ports"), &Packet { protocol: 17, ..ports(1, 80) }));
    assert!(!matches(&rule("!dst_ports"), &Packet { protocol: 17, ..ports(1, 81) }));
}

#[test]
fn networks_of_either_end_and_their_negation() {
    for (name, packet) in [("src", from as fn(&str) -> Packet), ("dst", to)] {
        let yes = format!(r#"{{"{name}_net":"10.0.0.0/30"}}"#);
        let no = format!(r#"{{"!{name}_net":"10.0.0.0/30"}}"#);
        for (addr, inside) in [("10.0.0.3", true), ("10.0.0.4", false)] {
            assert_eq!(
                (matches(&yes, &packet(addr)), matches(&no, &packet(addr))),
                (inside, !inside),
                "{name} {addr}"
            );
        }
        // A rule with networks of one family does not match the other family.
        assert!(!matches(&yes, &packet("fd00::2")) && !matches(&no, &packet("fd00::2")));
    }
}

#[test]
fn tags_of_either_end_mean_endpoints_with_a_profile_that_has_them() {
    for (name, packet) in [("src", from as fn(&str) -> Packet), ("dst", to)] {
        for (tag, having) in
            [("front", &["10.0.0.2", "10.0.0.3", "fd00::2"][..]), ("A", &["10.0.0.2", "fd00::2"]), ("C", &[])]
        {
            for addr in ["10.0.0.2", "10.0.0.3", "10.0.0.4", "192.0.2.9", "fd00::2"] {
                let (yes, no) =
                    (format!(r#"{{"{name}_tag":"{tag}"}}"#), format!(r#"{{"!{name}_tag":"{tag}"}}"#));
                let has = having.contains(&addr);
                assert_eq!(matches(&yes, &packet(addr)), has, "{name} {tag} {addr}");
                assert_eq!(matches(&no, &packet(addr)), !has, "!{name} {tag} {addr}");
            }
        }
    }
}

#[test]
fn selectors_of_either_end_mean_endpoints_and_negate_in_two_ways() {
    for (name, packet) in [("src", from as fn(&str) -> Packet), ("dst", to)] {
        let of = |rule: &str, addr: &str| matches(&rule.replace('@', name), &packet(addr));
        let all = |rule: &str| ["10.0.0.2", "10.0.0.4", "192.0.2.9"].map(|addr| of(rule, addr));
        assert_eq!(all(r#"{"@_selector":"role == 'web'"}"#), [true, false, false]);
        // The first matches endpoints without the label, the second all addresses except those of endpoints
        // with it.
        assert_eq!(all(r#"{"@_selector":"!has(role)"}"#), [false, true, false]);
        assert_eq!(all(r#"{"!@_selector":"has(role)"}"#), [false, true, true]);
        assert_eq!(all(r#"{"@_selector":"all()"}"#), [true, true, false]);
    }
}

#[test]
fn host_endpoints_are_in_sets_by_their_expected_addresses_only() {
    let edge = r#"{"src_selector":"role == 'edge'"}"#;
    assert!(matches(edge, &from("192.0.2.2")) && matches(edge, &from("2001:db8::2")));
    let ruleset = ruleset(
        &[
            &[W1],
            OTHERS,
            &[("/calico/v1/policy/profile/p/rules", &format!(r#"{{"inbound_rules":[{edge}]}}"#))],
        ]
        .concat(),
    );
    let members: Vec<usize> = ruleset.sets.values().map(|members| members.len()).collect();
    assert_eq!(members, [2], "the one with a name alone brings none");
}

#[test]
fn a_match_and_its_negation_both_hold() {
    let but = r#"{"src_net":"10.0.0.0/29","!src_net":"10.0.0.4/30","src_selector":"all()","!src_selector":"role == 'web'"}"#;
    let of =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.6"].map(|addr| matches(but, &from(addr)));
    assert_eq!(of, [true, false, true, false, false]);
    let ports_but = r#"{"protocol":"tcp","dst_ports":["80:90"],"!dst_ports":[85]}"#;
    assert_eq!([80, 85, 90, 91].map(|port| matches(ports_but, &ports(1, port))), [true, false, true, false]);
    let tags = r#"{"src_tag":"front","!src_tag":"A"}"#;
    assert_eq!(
        ["10.0.0.2", "10.0.0.3", "10.0.0.4"].map(|addr| matches(tags, &from(addr))),
        [false, true, false]
    );
}

#[test]
fn every_match_of_a_rule_has_to_hold() {
    let full = r#"{"protocol":"tcp","src_tag":"front","src_selector":"role == 'web'","src_net":"10.0.0.0/8","src_ports":["1000:65535"],
        "dst_selector":"role == 'db'","dst_net":"10.0.0.1/32","dst_ports":[80]}"#;
    let good = tcp("10.0.0.2", "10.0.0.1", 80);
    assert!(matches(full, &good));
    let change = |packet: Packet| assert!(!matches(full, &packet), "{packet:?}");
    change(Packet { protocol: 17, ..good });
    change(Packet { ports: Some((999, 80)), ..good });
    change(Packet { ports: Some((40_000, 81)), ..good });
    change(tcp("10.0.0.3", "10.0.0.1", 80));
    change(tcp("10.0.0.2", "10.0.0.9", 80));
    // An empty rule matches all packets.
    assert!(matches("{}", &good) && matches("{}", &icmp(8, 0)) && matches("{}", &from("fd00::2")));
}

#[test]
fn icmp_types_with_and_without_code() {
    assert!(matches(r#"{"protocol":"icmp","icmp_type":8}"#, &icmp(8, 3)));
    assert!(!matches(r#"{"protocol":"icmp","icmp_type":8}"#, &icmp(0, 0)));
    let pair = r#"{"protocol":"icmp","icmp_type":3,"icmp_code":4}"#;
    assert!(matches(pair, &icmp(3, 4)) && !matches(pair, &icmp(3, 3)) && !matches(pair, &icmp(4, 4)));
}

#[test]
fn a_negated_icmp_type_and_code_are_one_match() {
    let but = r#"{"protocol":"icmp","!icmp_type":3,"!icmp_code":4}"#;
    assert!(!matches(but, &icmp(3, 4)));
    assert!(matches(but, &icmp(3, 3)) && matches(but, &icmp(4, 4)) && matches(but, &icmp(8, 0)));
    assert!(!matches(but, &from("192.0.2.9")), "it is ICMP all the same");
    let whole = r#"{"protocol":"icmp","!icmp_type":3}"#;
    assert!(!matches(whole, &icmp(3, 0)) && matches(whole, &icmp(8, 0)));
}

#[test]
fn the_first_rule_that_matches_and_decides_counts() {
    let rules = r#"{"inbound_rules":[{"action":"log"},{"protocol":"udp"},{"action":"deny","src_net":"10.0.0.2/32","log_prefix":"no"},{}]}"#;
    let of = |src| decide(&[("/calico/v1/policy/profile/p/rules", rules)], false, &from(src));
    let (web, other) = (of("10.0.0.2"), of("10.0.0.3"));
    assert_eq!(by(&web), "Deny profile p 2");
    assert_eq!(by(&other), "Allow profile p 3");
    // Action `log` logs and continues; a log prefix logs before the rule's action.
    let logs = |decision: &Decision| decision.logs.iter().map(|p| p.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!(logs(&web), ["calico-packet", "no"]);
    assert_eq!(logs(&other), ["calico-packet"]);
}

#[test]
fn a_log_prefix_is_cut_to_27_characters_of_the_allowed_set() {
    let cut = LogPrefix::new("a[b]: caf\u{e9} 0123456789 abcdefghijk");
    assert_eq!(cut.as_str(), "a_b__ caf_ 0123456789 abcde");
    assert_eq!(cut.as_str().chars().count(), LogPrefix::MAX);
}

#[test]
fn each_direction_has_its_list() {
    let rules =
        r#"{"inbound_rules":[{"src_net":"10.0.0.2/32"}],"outbound_rules":[{"dst_net":"10.0.0.3/32"}]}"#;
    let of = |outbound, packet: Packet| {
        decide(&[("/calico/v1/policy/profile/p/rules", rules)], outbound, &packet).verdict
            == Some(Verdict::Allow)
    };
    assert!(of(false, from("10.0.0.2")) && !of(false, from("10.0.0.3")));
    assert!(of(true, to("10.0.0.3")) && !of(true, to("10.0.0.2")));
}

#[test]
fn profiles_are_asked_in_the_order_of_the_endpoint() {
    let rules = |p: &str, q: &str| {
        let value = |rules: &str| format!(r#"{{"inbound_rules":[{rules}]}}"#);
        let (p, q) = (value(p), value(q));
        let entries = [
            ("/calico/v1/policy/profile/p/rules", p.as_str()),
            ("/calico/v1/policy/profile/q/rules", q.as_str()),
        ];
        by(&decide(&entries, false, &from("10.0.0.2")))
    };
    assert_eq!(rules(r#"{"action":"deny"}"#, "{}"), "Deny profile p 0");
    assert_eq!(rules("{}", r#"{"action":"deny"}"#), "Allow profile p 0");
    assert_eq!(rules(r#"{"protocol":"udp"}"#, "{}"), "Allow profile q 0");
    assert_eq!(rules(r#"{"action":"next-tier"}"#, "{}"), "Allow profile q 0");
    assert_eq!(rules(r#"{"protocol":"udp"}"#, ""), "EndOfProfiles");
}

#[test]
fn the_first_policy_that_decides_ends_it_and_profiles_are_not_asked() {
    let of = |first: &str, second: &str| {
        let value = |order: u8, rule: &str| {
            format!(r#"{{"selector":"all()","order":{order},"inbound_rules":[{rule}]}}"#)
        };
        let (first, second) = (value(1, first), value(2, second));
        let entries = [
            ("/calico/v1/policy/tier/default/policy/a", first.as_str()),
            ("/calico/v1/policy/tier/default/policy/b", second.as_str()),
            ("/calico/v1/policy/profile/p/rules", r#"{"inbound_rules":[{}]}"#),
        ];
        let decision = decide(&entries, false, &from("10.0.0.2"));
        (by(&decision), decision.matched.len())
    };
    let deny = r#"{"action":"deny"}"#;
    assert_eq!(of("{}", deny), ("Allow policy a 0".into(), 1));
    assert_eq!(of(deny, "{}"), ("Deny policy a 0".into(), 1));
    // If no rule of a policy matches, the next policy is evaluated. After the last policy the packet is
    // dropped, whatever the profiles contain.
    assert_eq!(of(r#"{"protocol":"udp"}"#, "{}"), ("Allow policy b 0".into(), 1));
    assert_eq!(of(r#"{"protocol":"udp"}"#, ""), (r#"EndOfTier("default")"#.into(), 0));
}

#[test]
fn labels_of_profiles_are_inherited_and_own_ones_win() {
    let labels = [
        ("/calico/v1/policy/profile/p/labels", r#"{"own":"theirs","zone":"a"}"#),
        ("/calico/v1/policy/profile/q/labels", r#"{"zone":"b","late":"yes"}"#),
        ("/calico/v1/policy/profile/q/tags", r#"["late","tag"]"#),
    ];
    let selected = |selector: &str| {
        let policy = format!(r#"{{"selector":"{selector}","inbound_rules":[{{"action":"deny"}}]}}"#);
        let entries = [&labels[..], &[("/calico/v1/policy/tier/default/policy/a", &policy)]].concat();
        by(&decide(&entries, false, &from("10.0.0.2"))) == "Deny policy a 0"
    };
    for (selector, expected) in [
        ("own == 'mine'", true),
        ("own == 'theirs'", false),
        // The first profile takes precedence over the second, and labels over tags.
        ("zone == 'a'", true),
        ("zone == 'b'", false),
        ("late == 'yes'", true),
        ("has(tag) && tag == ''", true),
        ("has(front)", false),
    ] {
        assert_eq!(selected(selector), expected, "{selector}");
    }
}

#[test]
fn one_policy_governs_all_endpoints_with_a_label_on_workloads_and_hosts() {
    let entries = [
        &[W1][..],
        &[
            (
                "/calico/v1/host/h1/workload/cni/w9/endpoint/eth0",
                r#"{"state":"active","name":"cali9","labels":{"role":"db"}}"#,
            ),
            ("/calico/v1/host/h1/endpoint/e0", r#"{"name":"eth0","labels":{"role":"db"}}"#),
            ("/calico/v1/host/h1/endpoint/e1", r#"{"name":"eth1"}"#),
            (
                "/calico/v1/policy/tier/default/policy/a",
                r#"{"selector":"role == 'db'","inbound_rules":[{}]}"#,
            ),
        ],
    ]
    .concat();
    let ruleset = ruleset(&entries);
    let packet = from("192.0.2.9");
    let open = |endpoint: &EndpointPolicy| match endpoint {
        EndpointPolicy::Workload(workload) => {
            ruleset.decide(&workload.inbound, &packet).verdict == Some(Verdict::Allow)
        }
        EndpointPolicy::Host(host) => ruleset.decide(&host.inbound, &packet).verdict == Some(Verdict::Allow),
    };
    assert_eq!(
        ruleset.endpoints.values().map(|endpoint| open(endpoint)).collect::<Vec<_>>(),
        [true, true, true, false]
    );
}

#[test]
fn policies_that_select_nobody_here_have_no_chain() {
    let keys: Vec<String> = (0..50).map(|n| format!("/calico/v1/policy/tier/default/policy/p{n}")).collect();
    let value = r#"{"selector":"role == 'web'","inbound_rules":[{"src_selector":"role == 'proxy'"}]}"#;
    let all: Vec<(&str, &str)> = [&[W1], OTHERS].concat();
    let many = [all.clone(), keys.iter().map(|key| (key.as_str(), value)).collect()].concat();
    // The policies select endpoints, but only on another host.
    assert_eq!(ruleset(&many), ruleset(&all));
}

#[test]
fn families_are_distinguished() {
    let six: IpAddr = "fd00::2".parse().unwrap();
    assert!(matches(r#"{"ip_version":6}"#, &from(&six.to_string())));
    assert!(!matches(r#"{"ip_version":4}"#, &from(&six.to_string())));
    assert!(matches(r#"{"ip_version":4}"#, &from("10.0.0.2")));
}
