//! Tests of the comparison: a host on which BIRD and Felix are in sync, and single deviations from it.

mod calico3;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::*;
use crate::foreign::felix;
use crate::foreign::types::{
    Backend, Bird, BirdProtocol, BirdRoute, Felix, FelixSet, MainHop, MainRoute, NetworkSnapshot, RouteKind,
};
use tortie_config::Dialect;
use tortie_engine::routing::NodeOptions;
use tortie_store::{KeyValue, Snapshot};

/// Two hosts with one block each and a third without one; one workload on this host and one borrowed address.
const STORE: &[(&str, &str)] = &[
    ("/calico/v1/Ready", "true"),
    ("/calico/bgp/v1/global/as_num", "64512"),
    ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
    ("/calico/bgp/v1/host/h2/ip_addr_v4", "192.0.2.2"),
    ("/calico/bgp/v1/host/h3/ip_addr_v4", "192.0.2.3"),
    ("/calico/bgp/v1/global/peer_v4/192.0.2.254", r#"{"ip":"192.0.2.254","as_num":"64600"}"#),
    ("/calico/v1/ipam/v4/pool/10.65.0.0-16", r#"{"cidr":"10.65.0.0/16","masquerade":true}"#),
    ("/calico/ipam/v2/host/h1/ipv4/block/10.65.1.0-26", r#"{"state":"confirmed"}"#),
    (
        "/calico/ipam/v2/assignment/ipv4/block/10.65.1.0-26",
        r#"{"cidr":"10.65.1.0/26","affinity":"host:h1","strictAffinity":false,"allocations":[],"attributes":[],"unallocated":[]}"#,
    ),
    ("/calico/ipam/v2/host/h2/ipv4/block/10.65.2.0-26", "{}"),
    ("/calico/ipam/v2/host/h3/ipv4/block/10.65.3.0-26", r#"{"state":"pending"}"#),
    (
        "/calico/v1/host/h1/workload/cni/a/endpoint/eth0",
        r#"{"state":"active","name":"cali1","mac":null,"profile_ids":["net"],"ipv4_nets":["10.65.1.5/32"],"ipv6_nets":[],"labels":{"role":"web"}}"#,
    ),
    (
        "/calico/v1/host/h3/workload/cni/b/endpoint/eth0",
        r#"{"state":"active","name":"cali2","mac":null,"profile_ids":["net"],"ipv4_nets":["10.65.2.9/32"],"ipv6_nets":[],"labels":{"role":"db"}}"#,
    ),
    (
        "/calico/v1/policy/profile/net/rules",
        r#"{"inbound_rules":[{"action":"allow","src_selector":"role == 'db'"}],"outbound_rules":[]}"#,
    ),
    ("/calico/v1/policy/profile/net/tags", "[]"),
    ("/calico/v1/config/Ipv6Support", "false"),
];

fn wanted() -> HostIntent {
    wanted_with(&[])
}

/// Returns the intent with further keys in the store.
fn wanted_with(more: &[(&str, &str)]) -> HostIntent {
    let entries = STORE
        .iter()
        .chain(more)
        .map(|(key, value)| KeyValue {
            key: (*key).to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        })
        .map(|mut entry| {
            // A block value needs 64 entries.
            if entry.key.contains("assignment") {
                let nulls = vec!["null"; 64].join(",");
                let free: Vec<String> = (0..64).map(|n| n.to_string()).collect();
                entry.value = String::from_utf8(entry.value)
                    .unwrap()
                    .replace("\"allocations\":[]", &format!("\"allocations\":[{nulls}]"))
                    .replace("\"unallocated\":[]", &format!("\"unallocated\":[{}]", free.join(",")))
                    .into_bytes();
            }
            entry
        })
        .collect();
    let snapshot = Snapshot { revision: 1, entries, ..Snapshot::default() };
    HostIntent::offline("h1", Dialect::V1, &snapshot, &NodeOptions::default())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(prefix: &str, protocol: u8, via: Option<&str>, ifindex: u32) -> MainRoute {
    MainRoute {
        prefix: prefix.parse().unwrap(),
        protocol,
        metric: 0,
        kind: if ifindex == 0 { RouteKind::Blackhole } else { RouteKind::Unicast },
        hops: if ifindex == 0 { Vec::new() } else { vec![MainHop { gateway: via.map(ip), ifindex }] },
    }
}

/// Routes of a host on which BIRD and Felix are in sync.
fn routes() -> Vec<MainRoute> {
    vec![
        route("192.0.2.0/24", 2, None, 2),
        // BIRD's copy of the connected route.
        route("192.0.2.0/24", 12, None, 2),
        route("10.65.1.0/26", 12, None, 0),
        route("10.65.1.5/32", 3, None, 7),
        route("10.65.2.0/26", 12, Some("192.0.2.2"), 2),
        route("10.65.2.9/32", 12, Some("192.0.2.3"), 2),
        route("0.0.0.0/0", 12, Some("192.0.2.254"), 2),
    ]
}

fn look(routes: &[MainRoute]) -> NetworkSnapshot {
    NetworkSnapshot::of_parts(&[(2, "eth0"), (7, "cali1")], &[(ip("192.0.2.1"), 24, 2)], routes, &[12, 179])
}

fn bird() -> Bird {
    let session = |name: &str, asn| BirdProtocol {
        name: name.to_owned(),
        proto: "BGP".to_owned(),
        state: "up".to_owned(),
        info: "Established".to_owned(),
        neighbor: name.split_once('_').map(|(_, addr)| ip(&addr.replace('_', "."))),
        neighbor_as: Some(asn),
        local_as: Some(64_512),
        channels: vec!["ipv4".to_owned()],
        ..BirdProtocol::default()
    };
    let kernel = BirdProtocol {
        name: "kernel1".to_owned(),
        proto: "Kernel".to_owned(),
        channels: vec!["ipv4".to_owned()],
        ..BirdProtocol::default()
    };
    let text_of = |prefix: &str, from: &str, next: &str| BirdRoute {
        prefix: prefix.parse().unwrap(),
        from: from.to_owned(),
        best: true,
        next_hop: Some(ip(next)),
        unreachable: false,
    };
    Bird {
        socket: "/run/bird.ctl".to_owned(),
        protocols: vec![
            kernel,
            session("Mesh_192_0_2_2", 64_512),
            session("Mesh_192_0_2_3", 64_512),
            session("Global_192_0_2_254", 64_600),
        ],
        routes: vec![
            text_of("10.65.2.0/26", "Mesh_192_0_2_2", "192.0.2.2"),
            text_of("10.65.2.9/32", "Mesh_192_0_2_3", "192.0.2.3"),
            text_of("0.0.0.0/0", "Global_192_0_2_254", "192.0.2.254"),
        ],
        ..Bird::default()
    }
}

const FILTER: &str = "*filter\n:cali-INPUT - [0:0]\n:cali-FORWARD - [0:0]\n:cali-OUTPUT - [0:0]\n:cali-from-wl-dispatch - [0:0]\n:cali-to-wl-dispatch - [0:0]\n:cali-fw-cali1 - [0:0]\n:cali-tw-cali1 - [0:0]\n:cali-pri-net - [0:0]\n:cali-pro-net - [0:0]\n-A INPUT -j cali-INPUT\n-A FORWARD -j cali-FORWARD\n-A OUTPUT -j cali-OUTPUT\n-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch\n-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch\n-A cali-from-wl-dispatch -i cali1 -g cali-fw-cali1\n-A cali-from-wl-dispatch -j DROP\n-A cali-to-wl-dispatch -o cali1 -g cali-tw-cali1\n-A cali-to-wl-dispatch -j DROP\n-A cali-fw-cali1 -m conntrack --ctstate INVALID -j DROP\n-A cali-fw-cali1 -j MARK --set-xmark 0x0/0x1000000\n-A cali-fw-cali1 -j cali-pro-net\n-A cali-fw-cali1 -m mark --mark 0x1000000/0x1000000 -j RETURN\n-A cali-fw-cali1 -j DROP\n-A cali-tw-cali1 -j cali-pri-net\n-A cali-tw-cali1 -j DROP\n-A cali-pri-net -m set --match-set cali40s:x src -j MARK --set-xmark 0x1000000/0x1000000\nCOMMIT\n*nat\n:cali-POSTROUTING - [0:0]\n:cali-nat-outgoing - [0:0]\n-A POSTROUTING -j cali-POSTROUTING\n-A cali-POSTROUTING -j cali-nat-outgoing\n-A cali-nat-outgoing -m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE\nCOMMIT\n";

fn set(members: &[&str]) -> FelixSet {
    FelixSet {
        kind: "hash:net".to_owned(),
        v4: true,
        members: members.iter().map(|m| m.parse().unwrap()).collect(),
        others: 0,
    }
}

fn felix(listing: &str) -> Felix {
    let listing = &listing.replace("cali40s:x", &format!("cali40{}", felix::set_id("role == \"db\"")));
    let name = format!("cali40{}", felix::set_id("role == \"db\""));
    Felix {
        tables: felix::tables(Backend::Legacy, true, listing),
        sets: BTreeMap::from([
            (name, set(&["10.65.2.9/32"])),
            ("cali40all-ipam-pools".to_owned(), set(&["10.65.0.0/16"])),
            ("cali40masq-ipam-pools".to_owned(), set(&["10.65.0.0/16"])),
        ]),
        read: Backend::ALL.into_iter().flat_map(|b| [(b, true), (b, false)]).collect(),
        sets_read: true,
    }
}

fn found(routes: &[MainRoute]) -> ForeignState {
    ForeignState { look: look(routes), felix: felix(FILTER), birds: vec![bird()], unreadable: Vec::new() }
}

/// Formats every item that is not equal as a line.
fn lines(comparison: &Comparison) -> Vec<String> {
    comparison
        .items
        .iter()
        .map(|item| format!("{} {}: {}", item.verdict.mark(), item.subject, item.text))
        .collect()
}

/// Returns the differences as `mark subject`, without items that cannot be compared.
fn drift(found: &ForeignState) -> BTreeSet<String> {
    let comparison = compare(&wanted(), found);
    let differs = comparison.items.iter().filter(|item| item.verdict != CompareResult::NotCompared);
    differs.map(|item| format!("{} {}", item.verdict.mark(), item.subject)).collect()
}

fn only(found: &ForeignState, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(drift(found), expected, "{:#?}", lines(&compare(&wanted(), found)));
}

#[test]
fn a_host_as_bird_and_felix_leave_it_differs_in_nothing() {
    let comparison = compare(&wanted(), &found(&routes()));
    assert_eq!(comparison.total().differing(), 0, "{:#?}", lines(&comparison));
    assert_eq!(comparison.counts(Plane::Route).equal, 4);
    let interfaces = comparison.counts(Plane::Interface);
    assert_eq!((interfaces.equal, interfaces.not_compared), (1, 1));
    assert_eq!(comparison.counts(Plane::Session).equal, 3);
    assert_eq!(comparison.counts(Plane::Set).equal, 3);
    // Failsafe ports and the like are not compared, and never count as equal.
    let rules = comparison.counts(Plane::Rule);
    assert_eq!((rules.equal, rules.not_compared), (8, 1), "{:#?}", lines(&comparison));
}

#[test]
fn the_route_to_a_peer_by_its_gateway_is_compared() {
    let compared = |gateway: &str, there: Option<&str>| {
        let value = format!(r#"{{"as_num":"64600","reachable_by":"{gateway}"}}"#);
        let wanted = wanted_with(&[("/calico/bgp/v1/host/h1/peer_v4/192.0.2.254", &value)]);
        let mut all = routes();
        all.extend(there.map(|via| route("192.0.2.254/32", 12, Some(via), 2)));
        let comparison = compare(&wanted, &found(&all));
        let about = lines(&comparison).into_iter().filter(|line| line.contains("192.0.2.254/32"));
        (comparison.counts(Plane::Route).equal, about.collect::<Vec<_>>())
    };
    assert_eq!(compared("192.0.2.3", Some("192.0.2.3")), (5, Vec::new()));
    assert_eq!(compared("198.51.100.1", None).1, [""; 0], "no program leads by a gateway out of reach");
    let (equal, lines) = compared("192.0.2.3", Some("192.0.2.2"));
    assert_eq!((equal, lines.len()), (4, 1));
    assert!(lines[0].starts_with("~ ") && lines[0].contains("via 192.0.2.3 (reachable_by)"), "{lines:?}");
    let (equal, lines) = compared("192.0.2.3", None);
    assert!(equal == 4 && lines.len() == 1 && lines[0].starts_with("- "), "{lines:?}");
}

#[test]
fn every_route_that_is_not_as_it_should_be_is_found() {
    type Change<'a> = &'a dyn Fn(&mut Vec<MainRoute>);
    let cases: &[(Change<'_>, &[&str])] = &[
        (&|r| r.retain(|r| r.prefix.to_string() != "10.65.2.0/26"), &["- 10.65.2.0/26"]),
        (&|r| r.retain(|r| r.prefix.to_string() != "10.65.1.0/26"), &["- 10.65.1.0/26"]),
        (&|r| r.retain(|r| r.prefix.to_string() != "10.65.1.5/32"), &["- 10.65.1.5/32"]),
        (&|r| r.retain(|r| r.prefix.to_string() != "0.0.0.0/0"), &["- 0.0.0.0/0"]),
        (&|r| r[4] = route("10.65.2.0/26", 12, Some("192.0.2.3"), 2), &["~ 10.65.2.0/26"]),
        (&|r| r[2] = route("10.65.1.0/26", 4, Some("192.0.2.3"), 2), &["~ 10.65.1.0/26"]),
        (&|r| r[3] = route("10.65.1.5/32", 3, None, 2), &["~ 10.65.1.5/32"]),
        (&|r| r.push(route("10.65.9.0/26", 12, Some("192.0.2.2"), 2)), &["+ 10.65.9.0/26"]),
        (&|r| r.push(route("10.65.9.0/26", 12, None, 0)), &["+ 10.65.9.0/26"]),
        (&|r| r.push(route("10.65.1.6/32", 3, None, 7)), &["+ 10.65.1.6/32"]),
        // Routes of other programs are out of scope.
        (&|r| r.push(route("198.51.100.0/24", 4, Some("192.0.2.2"), 2)), &[]),
    ];
    for (change, expected) in cases {
        let mut all = routes();
        change(&mut all);
        only(&found(&all), expected);
    }
}

#[test]
fn without_bird_nothing_that_only_it_knows_is_equal() {
    let mut all = routes();
    let found = ForeignState { birds: Vec::new(), ..found(&all) };
    let comparison = compare(&wanted(), &found);
    assert_eq!(comparison.total().differing(), 0, "{:#?}", lines(&comparison));
    assert_eq!(comparison.counts(Plane::Session), PlaneCounts { not_compared: 3, ..PlaneCounts::default() });
    // The store lists the blocks of the mesh, but not the default route.
    assert_eq!(
        comparison.counts(Plane::Route),
        PlaneCounts { equal: 3, not_compared: 1, ..PlaneCounts::default() }
    );
    all.push(route("10.65.9.0/26", 12, Some("192.0.2.2"), 2));
    let comparison = compare(&wanted(), &ForeignState { look: look(&all), ..found });
    assert_eq!(comparison.counts(Plane::Route).not_compared, 2, "{:#?}", lines(&comparison));
    // Without the affinities of other hosts, their blocks are unknown, too.
    let blind = HostIntent { remote: None, ..wanted() };
    let comparison = compare(&blind, &self::found(&routes()));
    let first = comparison.items.iter().find(|item| item.subject == "blocks of other hosts").unwrap();
    assert_eq!(first.verdict, CompareResult::NotCompared);
}

#[test]
fn next_hops_that_only_bird_s_own_routes_reach_are_found() {
    // h2 is in a subnet that BIRD learned: without BIRD no route leads to it.
    let mut wanted = wanted();
    let prefix = "10.65.2.0/26".parse().unwrap();
    let remote = wanted.remote.as_mut().unwrap();
    remote.get_mut(&prefix).unwrap().next_hop = Some(ip("198.51.100.2"));
    let mut all = routes();
    all[4] = route("10.65.2.0/26", 12, Some("192.0.2.254"), 2);
    let mut found = found(&all);
    found.birds[0].routes[0].next_hop = Some(ip("198.51.100.2"));
    let comparison = compare(&wanted, &found);
    let item = comparison.items.iter().find(|item| item.subject == "10.65.2.0/26").unwrap();
    assert_eq!(item.verdict, CompareResult::Different);
    assert!(item.text.contains("hold it back: unresolved"), "{}", item.text);
}

#[test]
fn sessions_are_compared_by_name_and_numbers() {
    let mut found = found(&routes());
    found.birds[0].protocols[1].neighbor_as = Some(64_999);
    found.birds[0].protocols[2].info = "Active        Socket: Connection refused".to_owned();
    found.birds[0].protocols[3].name = "Node_192_0_2_9".to_owned();
    found.birds[0].protocols[3].neighbor = Some(ip("192.0.2.9"));
    let comparison = compare(&wanted(), &found);
    let sessions: Vec<String> = comparison
        .items
        .iter()
        .filter(|item| item.plane == Plane::Session)
        .map(|item| format!("{} {}", item.verdict.mark(), item.subject))
        .collect();
    let expected = ["- Global_192_0_2_254", "? Mesh_192_0_2_3", "~ Mesh_192_0_2_2", "+ Node_192_0_2_9"];
    assert_eq!(sessions.into_iter().collect::<BTreeSet<_>>(), expected.map(str::to_owned).into());
}

#[test]
fn every_chain_that_is_not_as_it_should_be_is_found() {
    let with = |from: &str, to: &str| {
        let listing = FILTER.replace(from, to);
        assert_ne!(listing, FILTER);
        ForeignState { felix: felix(&listing), ..found(&routes()) }
    };
    only(&with("-A FORWARD -j cali-FORWARD\n", ""), &["- FORWARD"]);
    only(&with("-A cali-to-wl-dispatch -o cali1 -g cali-tw-cali1\n", ""), &["~ cali-tw-cali1"]);
    only(&with("-A cali-tw-cali1 -j cali-pri-net\n", ""), &["~ cali-tw-cali1"]);
    only(&with(":cali-pro-net - [0:0]\n", ""), &["- cali-pro-net"]);
    only(&with(":cali-pro-net", ":cali-po-old - [0:0]\n:cali-pro-net"), &["+ cali-po-old"]);
    only(&with(":cali-pro-net", ":cali-tw-cali9 - [0:0]\n:cali-pro-net"), &["+ cali-tw-cali9"]);
    let gone = FILTER.lines().filter(|line| !line.contains("cali-tw-cali1")).collect::<Vec<_>>().join("\n");
    only(&ForeignState { felix: felix(&gone), ..found(&routes()) }, &["- cali-tw-cali1"]);
    only(&with("-A cali-nat-outgoing", "#"), &["- cali-nat-outgoing"]);
    only(&with("-A cali-pri-net -m set", "-A cali-pri-net -p tcp -m set"), &["~ cali-pri-net"]);
    // An unknown match: the chain is not compared.
    only(&with("-A cali-pri-net -m set", "-A cali-pri-net -m limit --limit 1/sec -m set"), &[]);
    // Without Felix its chains and sets are missing; if they could not be read, they are not compared.
    let mut bare = found(&routes());
    bare.felix = Felix { sets_read: true, read: bare.felix.read, ..Felix::default() };
    let all = drift(&bare);
    assert!(all.contains("- cali1") && all.contains("- role == \"db\""), "{all:?}");
    bare.felix = Felix::default();
    only(&bare, &[]);
    let comparison = compare(&wanted(), &bare);
    assert!(comparison.counts(Plane::Rule).equal == 0 && comparison.counts(Plane::Set).equal == 0);
}

#[test]
fn rules_and_sets_of_calico_1_are_not_judged_and_never_missing() {
    let mut old = found(&routes());
    old.felix = felix(&FILTER.replace("cali-", "felix-"));
    old.felix.sets = BTreeMap::from([
        ("felix-v4-db".to_owned(), set(&["10.65.2.9/32"])),
        ("felix-all-ipam-pools".to_owned(), set(&["10.65.0.0/16", "10.66.0.0/16"])),
    ]);
    // A set with the members of a selector counts as that selector's set; the set of pools has a fixed name.
    only(&old, &["~ all pools"]);
    let comparison = compare(&wanted(), &old);
    let unknown: Vec<&str> = comparison
        .items
        .iter()
        .filter(|item| item.verdict == CompareResult::NotCompared && item.text.contains("Calico 1"))
        .map(|item| item.subject.as_str())
        .collect();
    assert_eq!(unknown, ["cali-nat-outgoing", "cali1", "pools that masquerade"], "{:#?}", lines(&comparison));
    assert_eq!((comparison.counts(Plane::Set).equal, comparison.counts(Plane::Rule).equal), (1, 0));
    // Rules that an upgrade left in the other backend filter packets, too.
    let both = format!("{FILTER}{}", FILTER.replace("cali-", "felix-"));
    only(&ForeignState { felix: felix(&both), ..found(&routes()) }, &["+ iptables-legacy"]);
}

#[test]
fn members_of_sets_are_compared() {
    let mut found = found(&routes());
    let name = format!("cali40{}", felix::set_id("role == \"db\""));
    found.felix.sets.insert(name, set(&["10.65.2.8/32"]));
    found.felix.sets.insert("cali40s:stranger".to_owned(), set(&["10.1.1.1/32"]));
    found.felix.sets.remove("cali40masq-ipam-pools");
    only(&found, &["~ role == \"db\"", "+ cali40s:stranger"]);
    let comparison = compare(&wanted(), &found);
    let item = comparison.items.iter().find(|item| item.verdict == CompareResult::Different).unwrap();
    assert!(item.text.ends_with("lacks 10.65.2.9 and has 10.65.2.8 too much"), "{}", item.text);
}
