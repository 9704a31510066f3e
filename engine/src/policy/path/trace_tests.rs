use super::tests::addr;
use super::trace::follow;
use super::*;
use crate::model::Model;
use crate::policy::tests::model;
use crate::policy::{Decider, Verdict};

const STORE: &[(&str, &str)] = &[
    ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
    ("/calico/bgp/v1/host/h2/ip_addr_v4", "192.0.2.2"),
    (
        "/calico/v1/host/h1/workload/k8s/default.web/endpoint/eth0",
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"ipv6_nets":["fd00::1/128"],"profile_ids":["open"],
            "labels":{"role":"web"}}"#,
    ),
    (
        "/calico/v1/host/h2/workload/k8s/default.db/endpoint/eth0",
        r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.1.1/32"],"profile_ids":["open"],"labels":{"role":"db"},
            "ipv4_nat":[{"int_ip":"10.0.1.1","ext_ip":"203.0.113.1"}]}"#,
    ),
    ("/calico/v1/policy/profile/open/rules", r#"{"inbound_rules":[{}],"outbound_rules":[{}]}"#),
];
const POLICY: &str = "/calico/v1/policy/tier/default/policy/p";
const POOL: &str = "/calico/v1/ipam/v4/pool/10.0.0.0-16";
const UPLINK: (&str, &str) = (
    "/calico/v1/host/h2/endpoint/up",
    r#"{"name":"eth0","expected_ipv4_addrs":["192.0.2.2"],"labels":{"host":"yes"}}"#,
);

fn store<'a>(more: &[(&'a str, &'a str)]) -> Model {
    let mut entries: Vec<(&str, &str)> = STORE.to_vec();
    entries.extend(more);
    model(&entries)
}

fn party(model: &Model, name: &str) -> Party {
    Party::find(model, name).unwrap()
}

fn web_to(model: &Model, to: &str, port: u16) -> Trace {
    let probe = ProbePacket { protocol: 6, ports: Some((40_000, port)), icmp: None };
    let (from, to) = (party(model, "default.web"), party(model, to));
    let found = trace(model, &from, &to, probe).unwrap();
    // The full model gives the same result as the excerpt.
    let whole = follow(model, &from, &to, probe, State::New).unwrap();
    assert_eq!(
        (found.packet, found.verdict, &found.not_evaluated),
        (whole.packet, whole.verdict, &whole.not_evaluated)
    );
    let ways = |trace: &Trace| -> Vec<_> {
        trace
            .host_paths
            .iter()
            .map(|half| (half.host.clone(), half.path.clone(), half.closest.clone()))
            .collect()
    };
    assert_eq!(ways(&found), ways(&whole));
    found
}

/// Returns verdict and deciding rule of each host.
fn observed(trace: &Trace) -> Vec<String> {
    let half = |half: &HostPath| {
        let by = match half.path.decider() {
            Some(Decider::Rule(chain, at)) => format!("{} {at}", chain.source),
            Some(other) => format!("{other:?}"),
            None => format!("{:?}", half.path.decisive().unwrap().reason),
        };
        format!("{}{} {:?}: {by}", half.host, if half.outer { " outer" } else { "" }, half.path.verdict)
    };
    trace.host_paths.iter().map(half).collect()
}

#[test]
fn the_sender_s_host_asks_its_outbound_rules_and_the_receiver_s_its_inbound_ones() {
    let open = store(&[]);
    let trace = web_to(&open, "default.db", 5432);
    assert_eq!(trace.verdict, Verdict::Allow);
    assert_eq!(observed(&trace), ["h1 Allow: profile open 0", "h2 Allow: profile open 0"]);
    assert_eq!(trace.not_evaluated, [NotEvaluated::Kernel, NotEvaluated::Settings("h2".into())]);
    assert_eq!((trace.packet.src, trace.packet.dst), (addr("10.0.0.1"), addr("10.0.1.1")), "what both have");

    let ingress = store(&[(
        POLICY,
        r#"{"selector":"role == 'db'","inbound_rules":[{"src_selector":"role == 'db'"}]}"#,
    )]);
    let trace = web_to(&ingress, "default.db", 5432);
    assert_eq!(trace.verdict, Verdict::Deny);
    assert_eq!(observed(&trace), ["h1 Allow: profile open 0", r#"h2 Deny: EndOfTier("default")"#]);

    let egress = store(&[(
        POLICY,
        r#"{"selector":"role == 'web'","outbound_rules":[{"protocol":"tcp","dst_ports":[80]}]}"#,
    )]);
    assert_eq!(observed(&web_to(&egress, "default.db", 81))[0], r#"h1 Deny: EndOfTier("default")"#);
    assert_eq!(web_to(&egress, "default.db", 80).verdict, Verdict::Allow);
}

#[test]
fn the_store_of_any_host_gives_the_same_answer() {
    let entries: Vec<(&str, &str)> =
        [STORE, &[(POLICY, r#"{"selector":"role == 'db'","inbound_rules":[{"action":"deny"}]}"#)]].concat();
    let mut other = Model::new("h9");
    for (at, (key, value)) in entries.iter().enumerate() {
        other.apply(&tortie_store::fixtures::put(at as u64 + 1, key, value));
    }
    let (here, there) = (web_to(&model(&entries), "default.db", 80), web_to(&other, "default.db", 80));
    assert_eq!(here.host_paths, there.host_paths);
    assert!(there.not_evaluated.contains(&NotEvaluated::Settings("h1".into())));
}

#[test]
fn a_floating_address_leads_to_its_endpoint_and_the_world_is_not_looked_at() {
    let open = store(&[(POOL, r#"{"cidr":"10.0.0.0/16","masquerade":true}"#)]);
    let trace = web_to(&open, "203.0.113.1", 80);
    assert_eq!((trace.host_paths.len(), trace.host_paths[1].path.packet.dst), (2, addr("10.0.1.1")));
    // The address is in no pool, so the sender's host masqueraded the packet.
    assert_eq!(trace.host_paths[1].path.packet.src, addr("192.0.2.1"));
    let trace = web_to(&open, "198.51.100.7", 80);
    assert_eq!(observed(&trace), ["h1 Allow: profile open 0"]);
    assert!(trace.not_evaluated.contains(&NotEvaluated::Outside(addr("198.51.100.7"))));
    assert_eq!(trace.host_paths[0].path.steps.last().unwrap().reason, Reason::Masquerade);
}

#[test]
fn a_host_endpoint_counts_where_the_store_says_that_the_packet_passes_it() {
    let raw = (POLICY, r#"{"selector":"has(host)","untracked":true,"inbound_rules":[{"action":"deny"}]}"#);
    let known = store(&[UPLINK, raw]);
    assert_eq!(observed(&web_to(&known, "default.db", 80))[1], "h2 Deny: policy p 0");
    let named = (UPLINK.0, r#"{"name":"eth0","labels":{"host":"yes"}}"#);
    let unknown = web_to(&store(&[named, raw]), "default.db", 80);
    assert_eq!(unknown.verdict, Verdict::Allow);
    assert!(
        unknown
            .not_evaluated
            .iter()
            .any(|what| matches!(what, NotEvaluated::HostEndpoint(key) if key.host() == "h2"))
    );
    // For the host itself its own policy applies.
    let host = store(&[UPLINK, ("/calico/v1/policy/profile/p/rules", "{}")]);
    assert_eq!(observed(&web_to(&host, "h2", 80))[1], "h2 Deny: EndOfProfiles");
    assert_eq!(web_to(&host, "h2", 22).verdict, Verdict::Allow);
}

#[test]
fn a_pool_with_a_tunnel_is_followed_outside_and_inside() {
    let pool = (POOL, r#"{"cidr":"10.0.0.0/16","ipip":"tunl0","ipip_mode":"always"}"#);
    let fail_closed = web_to(&store(&[pool, UPLINK]), "default.db", 80);
    let expected = [
        "h1 Allow: profile open 0",
        "h1 outer Allow: NoEndpoint",
        "h2 outer Deny: EndOfProfiles",
        "h2 Allow: profile open 0",
    ];
    assert_eq!(observed(&fail_closed), expected, "a host endpoint keeps the tunnel out");
    let open = web_to(&store(&[pool, UPLINK, ("/calico/v1/config/IpInIpEnabled", "true")]), "default.db", 80);
    assert_eq!(open.verdict, Verdict::Allow);
    let cross = (POOL, r#"{"cidr":"10.0.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet"}"#);
    let cross = web_to(&store(&[cross]), "default.db", 80);
    assert_eq!(cross.host_paths.len(), 2);
    assert!(cross.not_evaluated.contains(&NotEvaluated::Tunnel("10.0.0.0/16".parse().unwrap())));
}

/// Returns the suggested changes of all hosts as `fix chain rule`.
fn closest_of(trace: &Trace) -> Vec<String> {
    let changes = trace.host_paths.iter().flat_map(|half| &half.closest);
    changes.map(|change| format!("{:?} {} {:?}", change.fix, change.chain, change.rule)).collect()
}

#[test]
fn what_is_closest_to_a_yes_lets_the_packet_pass_and_nothing_else_is_named() {
    let ingress = |rules: &str| {
        let value = format!(r#"{{"selector":"role == 'db'","inbound_rules":[{rules}]}}"#);
        web_to(&store(&[(POLICY, &value)]), "default.db", 5432)
    };
    let own = r#"{"protocol":"tcp","src_selector":"role == 'api'","dst_ports":[5432]}"#;
    let far = r#"{"protocol":"udp","src_selector":"role == 'api'"}"#;
    let denied = ingress(&format!("{far},{own}"));
    assert_eq!(
        closest_of(&denied),
        [r#"Select(Source, SetId("role == \"api\"")) policy p inbound Some(1)"#, "Add policy p inbound None",],
        "a rule with two matches in the way is far"
    );
    // A label would not help, because an earlier rule denies; removing that rule is verified to help.
    let denied = ingress(&format!(r#"{{"action":"deny","protocol":"tcp"}},{own},{{}}"#));
    assert_eq!(closest_of(&denied), ["Remove policy p inbound Some(0)"]);
    for (rules, fix) in [
        (r#"{"protocol":"tcp","dst_ports":[80]}"#, r#"Widen("dst_ports")"#),
        (r#"{"protocol":"udp"}"#, r#"Widen("protocol")"#),
        (r#"{"src_net":"192.0.2.0/24"}"#, r#"Widen("src_net")"#),
        (r#"{"protocol":"tcp","!dst_ports":[5432]}"#, r#"Widen("!dst_ports")"#),
        (r#"{"!src_selector":"role == 'web'"}"#, r#"Deselect(Source, SetId("role == \"web\""))"#),
    ] {
        assert_eq!(
            closest_of(&ingress(rules)).first(),
            Some(&format!("{fix} policy p inbound Some(0)")),
            "{rules}"
        );
    }
    assert_eq!(closest_of(&ingress(r#"{"ip_version":6}"#)), ["Add policy p inbound None"]);
    assert_eq!(closest_of(&ingress("{}")), [""; 0], "nothing is in the way");
    // A missing profile, and an inactive endpoint, for which no change of rules helps.
    let lost = (
        STORE[3].0,
        r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.1.1/32"],"profile_ids":["none"]}"#,
    );
    assert_eq!(closest_of(&web_to(&store(&[lost]), "default.db", 80)), ["Write profile none inbound None"]);
    let asleep = (
        STORE[3].0,
        r#"{"state":"inactive","name":"cali2","ipv4_nets":["10.0.1.1/32"],"profile_ids":["open"]}"#,
    );
    assert_eq!(closest_of(&web_to(&store(&[asleep]), "default.db", 80)), [""; 0]);
}

/// Adds unrelated endpoints to the cluster, some in the same sets and one on the same interface.
#[test]
fn who_else_is_there_makes_no_difference_unless_the_packet_meets_him() {
    let crowd: Vec<(String, String)> = (0..40)
        .map(|n| {
            let key = format!("/calico/v1/host/h{}/workload/cni/w{n}/endpoint/eth0", 1 + n % 3);
            let role = ["web", "db", "api"][n % 3];
            let interface = if n == 7 { "cali2".to_owned() } else { format!("calix{n}") };
            let value = format!(
                r#"{{"state":"active","name":"{interface}","ipv4_nets":["10.0.{}.{n}/32"],"profile_ids":["open"],"labels":{{"role":"{role}"}}}}"#,
                2 + n % 3
            );
            (key, value)
        })
        .collect();
    let rules = r#"{"selector":"role == 'db'","inbound_rules":[{"protocol":"tcp","src_selector":"role == 'web'","dst_ports":[80]}]}"#;
    let mut entries: Vec<(&str, &str)> =
        vec![(POLICY, rules), (POOL, r#"{"cidr":"10.0.0.0/16","masquerade":true}"#)];
    entries.extend(crowd.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let model = store(&entries);
    assert_eq!(web_to(&model, "default.db", 80).verdict, Verdict::Allow);
    let denied = web_to(&model, "default.db", 81);
    assert_eq!(
        closest_of(&denied),
        [r#"Widen("dst_ports") policy p inbound Some(0)"#, "Add policy p inbound None"]
    );
    for (to, port) in [("203.0.113.1", 80), ("10.0.3.4", 80), ("h2", 22), ("198.51.100.7", 80), ("w7", 80)] {
        web_to(&model, to, port);
    }
    let (from, to) = (party(&model, "default.web"), party(&model, "default.db"));
    let left = Excerpt::of(&model, &from, &to).unwrap();
    let left = left.model().endpoint_resources().count();
    assert_eq!(left, 3, "the two, and who claims the same interface");
}

#[test]
fn both_on_one_host_are_one_way() {
    let near = (
        "/calico/v1/host/h1/workload/k8s/default.near/endpoint/eth0",
        r#"{"state":"inactive","name":"cali7","ipv4_nets":["10.0.0.7/32"],"profile_ids":["open"]}"#,
    );
    let trace = web_to(&store(&[near]), "10.0.0.7", 80);
    assert_eq!(observed(&trace), ["h1 Deny: Inactive"]);
    assert_eq!(trace.not_evaluated, [NotEvaluated::Kernel]);
}

#[test]
fn names_that_fit_nobody_or_several_are_refused() {
    let model = store(&[]);
    for (name, host) in
        [("cali2", "h2"), ("default.db", "h2"), ("h1/workload/k8s/default.web/endpoint/eth0", "h1")]
    {
        assert!(matches!(party(&model, name), Party::Endpoint(key) if key.host() == host), "{name}");
    }
    assert!(matches!(party(&model, STORE[2].0), Party::Endpoint(key) if key.host() == "h1"));
    assert_eq!(party(&model, "h2"), Party::Host("h2".into()));
    assert!(Party::find(&model, "eth0").unwrap_err().contains("2 endpoints have the name eth0"));
    assert!(Party::find(&model, "nobody").unwrap_err().contains("no endpoint"));
    let probe = ProbePacket { protocol: 1, ports: None, icmp: Some((8, 0)) };
    let ends =
        |from: &str, to: &str| trace(&model, &party(&model, from), &party(&model, to), probe).unwrap_err();
    assert!(ends("198.51.100.1", "198.51.100.2").contains("neither"));
    assert!(ends("default.db", "fd00::1").contains("no address of one family"));
}
