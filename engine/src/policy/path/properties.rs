//! Properties that hold for every packet under every policy.

use proptest::prelude::*;

use super::tests::{Host, OPEN, addr};
use super::*;
use crate::policy::{Packet, Verdict};

const SELECTORS: [&str; 5] = ["all()", "role == 'web'", "role == 'db'", "has(host)", "!has(host)"];
const RULES: [&str; 12] = [
    "{}",
    r#"{"action":"deny"}"#,
    r#"{"action":"next-tier","src_net":"10.0.0.0/8"}"#,
    r#"{"action":"log","log_prefix":"seen"}"#,
    r#"{"src_selector":"role == 'web'"}"#,
    r#"{"action":"deny","!src_selector":"role == 'db'"}"#,
    r#"{"protocol":"tcp","dst_ports":[80,"440:450"]}"#,
    r#"{"action":"deny","protocol":"udp","!dst_ports":[53]}"#,
    r#"{"protocol":"icmp","icmp_type":8}"#,
    r#"{"action":"deny","dst_net":"192.0.2.0/24","!protocol":"tcp"}"#,
    r#"{"action":"deny","ip_version":6}"#,
    r#"{"!dst_net":"10.0.0.2/32","action":"next-tier"}"#,
];
const SETTINGS: [(&str, &str); 5] = [
    ("/calico/v1/config/DefaultEndpointToHostAction", "RETURN"),
    ("/calico/v1/config/DisableConntrackInvalidCheck", "true"),
    ("/calico/v1/config/FailsafeInboundHostPorts", "none"),
    ("/calico/v1/config/IpInIpEnabled", "true"),
    ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","masquerade":true}"#),
];
const WORKLOADS: [&str; 3] = ["web", "db", ""];

/// Keys and values of a store.
type Store = Vec<(String, String)>;

fn workload(at: usize, role: &str, state: &str, profiles: &str) -> (String, String) {
    let n = at + 1;
    (
        format!("/calico/v1/host/h1/workload/cni/w{n}/endpoint/eth0"),
        format!(
            r#"{{"state":"{state}","name":"cali{n}","ipv4_nets":["10.0.0.{n}/32"],"ipv6_nets":["fd00::{n}/128"],"profile_ids":[{profiles}],
                "labels":{{"role":"{role}"}},"ipv4_nat":[{{"int_ip":"10.0.0.{n}","ext_ip":"203.0.113.{n}"}}]}}"#
        ),
    )
}

fn host_endpoint(at: usize, profiles: &str) -> (String, String) {
    let value = format!(r#"{{"name":"eth{at}","profile_ids":[{profiles}],"labels":{{"host":"yes"}}}}"#);
    (format!("/calico/v1/host/h1/endpoint/e{at}"), value)
}

/// Generates three active workloads, up to two host endpoints, and settings.
fn endpoints() -> impl Strategy<Value = Store> {
    let profiles = || prop_oneof![Just(r#""open""#), Just(r#""some""#), Just("")];
    let hosts = proptest::collection::vec(proptest::option::of(profiles()), 2);
    let workloads = proptest::collection::vec(profiles(), WORKLOADS.len());
    let settings = proptest::sample::subsequence(SETTINGS.to_vec(), 0..=SETTINGS.len());
    (workloads, hosts, settings, rules(), rules()).prop_map(
        |(workloads, hosts, settings, inbound, outbound)| {
            let mut store: Store = vec![(OPEN.0.to_owned(), OPEN.1.to_owned())];
            let value = format!(r#"{{"inbound_rules":[{inbound}],"outbound_rules":[{outbound}]}}"#);
            store.push(("/calico/v1/policy/profile/some/rules".to_owned(), value));
            let of = workloads.iter().enumerate();
            store.extend(of.map(|(at, profiles)| workload(at, WORKLOADS[at], "active", profiles)));
            let of = hosts.iter().enumerate();
            store.extend(of.filter_map(|(at, profiles)| Some(host_endpoint(at, (*profiles)?))));
            store.extend(settings.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
            store
        },
    )
}

fn rules() -> impl Strategy<Value = String> {
    proptest::sample::subsequence(RULES.to_vec(), 0..4).prop_shuffle().prop_map(|rules| rules.join(","))
}

/// Generates policies in two tiers, some of them untracked or pre-DNAT.
fn policies() -> impl Strategy<Value = Store> {
    let policy = (0..SELECTORS.len(), 0..10_u8, rules(), rules(), 0..6_u8).prop_map(
        |(selector, order, inbound, outbound, kind)| {
            let (outbound, kind) = match kind {
                0 => (outbound, r#","untracked":true"#),
                1 => (String::new(), r#","pre_dnat":true"#),
                2 => (outbound, r#","types":["ingress"]"#),
                _ => (outbound, ""),
            };
            let selector = SELECTORS[selector];
            let value = format!(
                r#"{{"selector":"{selector}","order":{order},"inbound_rules":[{inbound}],"outbound_rules":[{outbound}]{kind}}}"#
            );
            (order % 2 == 0, value)
        },
    );
    proptest::collection::vec(policy, 0..5).prop_map(|policies| {
        let of = policies.into_iter().enumerate();
        of.map(|(at, (default, value))| {
            let tier = if default { "default" } else { "other" };
            (format!("/calico/v1/policy/tier/{tier}/policy/p{at}"), value)
        })
        .collect()
    })
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        3 => Just(State::New),
        1 => Just(State::Established { reply: false }),
        1 => Just(State::Established { reply: true }),
        1 => Just(State::Invalid),
    ]
}

const V4: [&str; 10] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "192.0.2.1",
    "192.0.2.9",
    "198.51.100.9",
    "203.0.113.1",
    "10.0.9.1",
    "10.0.8.1",
    "10.0.0.77",
];
const V6: [&str; 5] = ["fd00::1", "fd00::2", "2001:db8::1", "2001:db8::9", "fe80::1"];

fn packet() -> impl Strategy<Value = Packet> {
    let ends = prop_oneof![
        3 => (0..V4.len(), 0..V4.len()).prop_map(|(src, dst)| (addr(V4[src]), addr(V4[dst]))),
        1 => (0..V6.len(), 0..V6.len()).prop_map(|(src, dst)| (addr(V6[src]), addr(V6[dst]))),
    ];
    let port = || prop_oneof![Just(22_u16), Just(53), Just(80), Just(445), Just(2379), 1000_u16..2000];
    (ends, 0..4_u8, port(), port()).prop_map(|((src, dst), kind, from, to)| {
        let (protocol, ports, icmp) = match kind {
            0 => (6, Some((from, to)), None),
            1 => (17, Some((from, to)), None),
            2 if src.is_ipv4() => (1, None, Some((8, 0))),
            2 => (58, None, Some((128, 0))),
            _ => (4, None, None),
        };
        Packet { src, dst, protocol, ports, icmp }
    })
}

fn flow() -> impl Strategy<Value = Flow> {
    let by = prop_oneof![
        4 => (1..=4_u8).prop_map(|n| Place::Interface(format!("cali{n}").into())),
        3 => (0..2_u8).prop_map(|n| Place::Interface(format!("eth{n}").into())),
        1 => Just(Place::Interface("tunl0".into())),
        1 => Just(Place::Host),
    ];
    (packet(), by, state()).prop_map(|(packet, from, state)| Flow { packet, from, state })
}

fn host(stores: &[&Store]) -> Host {
    let entries: Vec<(&str, &str)> = stores
        .iter()
        .flat_map(|store| store.iter())
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    Host::new(&entries)
}

fn is_workload(place: Option<&Place>) -> bool {
    matches!(place, Some(Place::Interface(name)) if name.starts_with("cali"))
}

/// Returns the last routing result, if the path contains one.
fn went(path: &Path) -> Option<&Place> {
    path.steps.iter().rev().find_map(|step| match &step.reason {
        Reason::Routed(place) => Some(place),
        _ => None,
    })
}

/// Sets the source of a workload's packet to the workload's own address.
fn own_source(mut flow: Flow) -> Flow {
    if let Place::Interface(name) = &flow.from
        && let Some(n) = name.strip_prefix("cali")
    {
        flow.packet.src = if flow.packet.src.is_ipv4() {
            addr(&format!("10.0.0.{n}"))
        } else {
            addr(&format!("fd00::{n}"))
        };
    }
    flow
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn one_look_at_the_endpoints_does_for_many_packets(
        e in endpoints(),
        p in policies(),
        flows in proptest::collection::vec(flow(), 1..8),
    ) {
        let host = host(&[&e, &p]);
        let prepared = host.node().prepared();
        for flow in flows {
            prop_assert_eq!(prepared.path(&flow), host.node().path(&flow));
        }
    }

    #[test]
    fn the_way_ends_where_the_packet_is_dropped(e in endpoints(), p in policies(), flow in flow()) {
        let host = host(&[&e, &p]);
        let path = host.node().path(&flow);
        let denies = path.steps.iter().filter(|step| step.verdict == Some(Verdict::Deny)).count();
        let last = path.steps.last().and_then(|step| step.verdict);
        prop_assert_eq!(path.verdict == Verdict::Deny, last == Some(Verdict::Deny));
        prop_assert_eq!(denies, usize::from(path.verdict == Verdict::Deny));
        prop_assert_eq!(path.decisive().and_then(|step| step.verdict), Some(path.verdict));
        // Every policy decision belongs to an endpoint.
        prop_assert!(path.steps.iter().all(|step| step.endpoint.is_some() || !matches!(step.reason, Reason::Policy(_))));
    }

    #[test]
    fn an_inactive_endpoint_passes_nothing(e in endpoints(), p in policies(), flow in flow()) {
        let dead: Store = (0..WORKLOADS.len()).map(|at| workload(at, WORKLOADS[at], "inactive", r#""open""#)).collect();
        let host = host(&[&e, &p, &dead]);
        let path = host.node().path(&flow);
        if is_workload(Some(&flow.from)) || is_workload(went(&path)) {
            prop_assert_eq!(path.verdict, Verdict::Deny);
        }
    }

    #[test]
    fn established_packets_of_an_active_workload_pass(e in endpoints(), p in policies(), flow in flow(), reply: bool) {
        let flow = own_source(Flow { state: State::Established { reply }, ..flow });
        // IPIP is excluded, because packets to the host pass only between hosts; `cali4` has no endpoint.
        let from = Place::Interface("cali4".into());
        if is_workload(Some(&flow.from)) && flow.from != from && flow.packet.protocol != 4 {
            let host = host(&[&e, &p]);
            prop_assert_eq!(host.node().path(&flow).verdict, Verdict::Allow);
        }
    }

    #[test]
    fn without_policy_and_with_open_profiles_everything_passes(flow in flow(), invalid: bool) {
        let mut store: Store = (0..WORKLOADS.len()).map(|at| workload(at, "", "active", r#""open""#)).collect();
        store.extend((0..2).map(|at| host_endpoint(at, r#""open""#)));
        store.push((OPEN.0.to_owned(), OPEN.1.to_owned()));
        store.extend(SETTINGS[..2].iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let host = host(&[&store]);
        let state = if invalid { State::Invalid } else { State::New };
        let flow = own_source(Flow { state, ..flow });
        if flow.from != Place::Interface("cali4".into()) {
            prop_assert_eq!(host.node().path(&flow).verdict, Verdict::Allow);
        }
    }

    #[test]
    fn a_first_tier_that_denies_leaves_workloads_nothing_new(e in endpoints(), p in policies(), flow in flow()) {
        let deny: Store = vec![
            ("/calico/v1/policy/tier/a/metadata".to_owned(), r#"{"order":-1}"#.to_owned()),
            ("/calico/v1/policy/tier/a/policy/deny".to_owned(), r#"{"selector":"!has(host)"}"#.to_owned()),
        ];
        let host = host(&[&e, &p, &deny]);
        let flow = Flow { state: State::New, ..flow };
        let path = host.node().path(&flow);
        let tunnelled = flow.packet.protocol == 4 && went(&path) == Some(&Place::Host);
        if (is_workload(Some(&flow.from)) && !tunnelled) || (is_workload(went(&path)) && flow.from != Place::Host) {
            prop_assert_eq!(path.verdict, Verdict::Deny);
        }
    }

    #[test]
    fn a_policy_that_selects_nobody_changes_nothing(e in endpoints(), p in policies(), flow in flow(), order in -5..15) {
        let nobody = |kind: &str| -> Store {
            let value = format!(r#"{{"selector":"has(nobody)","order":{order},"inbound_rules":[{{"action":"deny"}}]{kind}}}"#);
            vec![("/calico/v1/policy/tier/default/policy/nobody".to_owned(), value)]
        };
        let expected = host(&[&e, &p]).node().path(&flow);
        for kind in ["", r#","untracked":true"#, r#","pre_dnat":true"#] {
            prop_assert_eq!(&host(&[&e, &p, &nobody(kind)]).node().path(&flow), &expected);
        }
    }

    #[test]
    fn packets_that_no_rule_distinguishes_fare_alike(e in endpoints(), p in policies(), flow in flow(), port in 3000_u16..3700) {
        // No rule and no failsafe entry contains these ports or distinguishes these two addresses.
        let host = host(&[&e, &p]);
        let mut one = flow;
        one.packet.ports = one.packet.ports.map(|_| (2500, 2501));
        let mut other = one.clone();
        other.packet.ports = other.packet.ports.map(|_| (port, port));
        if one.packet.src == addr("192.0.2.9") {
            other.packet.src = addr("192.0.2.10");
        }
        let (one, other) = (host.node().path(&one), host.node().path(&other));
        prop_assert_eq!(one.steps, other.steps);
    }
}
