//! What Calico 3 leaves: routes of Felix, names of chains with kinds, groups and tiers, tables of nftables.

use super::*;
use crate::foreign::nftables::Listing;

/// A VXLAN pool with a block of the other host.
const VXLAN: &[(&str, &str)] = &[
    ("/calico/v1/ipam/v4/pool/10.66.0.0-16", r#"{"cidr":"10.66.0.0/16","vxlan_mode":"always"}"#),
    ("/calico/v1/host/h2/config/IPv4VXLANTunnelAddr", "10.66.2.1"),
    (
        "/calico/ipam/v2/assignment/ipv4/block/10.66.2.0-26",
        r#"{"cidr":"10.66.2.0/26","affinity":"host:h2","strictAffinity":false,"allocations":[],"attributes":[],"unallocated":[]}"#,
    ),
    ("/calico/ipam/v2/host/h2/ipv4/block/10.66.2.0-26", r#"{"state":"confirmed"}"#),
];
const DEVICE: u32 = 9;

/// Returns differences of routes as `mark subject`.
fn routes_that_differ(all: &[MainRoute]) -> Vec<String> {
    let links = [(2, "eth0"), (7, "cali1"), (DEVICE, "vxlan.calico")];
    let addresses = [(ip("192.0.2.1"), 24, 2)];
    let look = NetworkSnapshot::of_parts(&links, &addresses, all, &[12, 80, 179]);
    let comparison = compare(&wanted_with(VXLAN), &ForeignState { look, ..found(all) });
    let differs = comparison
        .items
        .iter()
        .filter(|item| item.plane == Plane::Route && item.verdict != CompareResult::NotCompared);
    differs.map(|item| format!("{} {}", item.verdict.mark(), item.subject)).collect()
}

#[test]
fn routes_of_felix_are_compared_with_the_store() {
    let with = |more: &[MainRoute]| routes_that_differ(&[&routes(), more].concat());
    let tunnel = route("10.66.2.0/26", 3, Some("10.66.2.1"), DEVICE);
    assert_eq!(with(std::slice::from_ref(&tunnel)), Vec::<String>::new());
    assert_eq!(with(&[]), ["- 10.66.2.0/26"]);
    let elsewhere = route("10.66.2.0/26", 80, Some("192.0.2.2"), 2);
    assert_eq!(with(&[elsewhere]), ["~ 10.66.2.0/26"]);
    for stray in [
        route("10.66.9.0/26", 3, Some("10.66.9.1"), DEVICE),
        route("10.66.9.0/26", 80, Some("192.0.2.3"), 2),
        route("10.66.9.0/26", 80, None, 0),
    ] {
        assert_eq!(with(&[tunnel.clone(), stray]), ["+ 10.66.9.0/26"]);
    }
}

const POLICY: (&str, &str) = (
    "/calico/v1/policy/tier/default/policy/default.web",
    r#"{"selector":"role == 'web'","inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
);

/// Returns the differences on a host with the policy, whose chains have these names.
fn with_policy(inbound: &str, outbound: &str, group: bool) -> Vec<String> {
    let allow = "-j MARK --set-xmark 0x1000000/0x1000000";
    let mut listing = FILTER.to_owned();
    for (end, name, profile) in [("tw", inbound, "pri"), ("fw", outbound, "pro")] {
        let way = if end == "tw" { "gi" } else { "go" };
        let (target, more) = match group {
            false => (name.to_owned(), String::new()),
            true => (format!("cali-{way}-x"), format!(":cali-{way}-x - [0:0]\n-A cali-{way}-x -j {name}\n")),
        };
        let jump = format!("-A cali-{end}-cali1 -j cali-{profile}-net\n");
        let begin = format!("-A cali-{end}-cali1 -m comment --comment \"Start of tier default\"\n");
        listing = listing.replacen(
            &jump,
            &format!(
                "{begin}-A cali-{end}-cali1 -j {target}\n{jump}:{name} - [0:0]\n-A {name} {allow}\n{more}"
            ),
            1,
        );
    }
    let found = ForeignState { felix: felix(&listing), ..found(&routes()) };
    lines(&compare(&wanted_with(&[POLICY]), &found))
        .into_iter()
        .filter(|line| !line.starts_with('?'))
        .collect()
}

#[test]
fn a_policy_is_known_by_all_names_that_releases_give_it() {
    for name in ["default.web", "gnp/default.web", "gnp/web"] {
        let (inbound, outbound) = (format!("cali-pi-{name}"), format!("cali-po-{name}"));
        for group in [false, true] {
            assert_eq!(with_policy(&inbound, &outbound, group), Vec::<String>::new(), "{name} {group}");
        }
    }
    let other = with_policy("cali-pi-gnp/other", "cali-po-gnp/web", false);
    assert!(other.iter().any(|line| line.starts_with("~ cali-tw-cali1")), "{other:#?}");
    assert!(other.iter().any(|line| line.starts_with("+ cali-pi-gnp/other")), "{other:#?}");
}

/// A table as Felix 3.30 writes it, for the endpoint and the profile of the store.
fn table() -> String {
    let dispatch = |way: &str, end: &str| {
        format!(
            "map filter-cali-{way}-wl-dispatch {{\ntype ifname : verdict\nelements = {{ \"cali1\" : goto filter-cali-{end}-cali1 \
             }}\n}}\n"
        )
    };
    let set = |name: &str, element: &str| {
        format!("set {name} {{\ntype ipv4_addr\nflags interval\nelements = {{ {element} }}\n}}\n")
    };
    let chain = |name: &str, rules: &str| format!("chain {name} {{\n{rules}\n}}\n");
    let selector = format!("cali40{}", felix::set_id("role == \"db\"").replace(':', "-"));
    [
        "table ip calico {\n".to_owned(),
        set(&selector, "10.65.2.9"),
        set("cali40all-ipam-pools", "10.65.0.0/16"),
        set("cali40masq-ipam-pools", "10.65.0.0/16"),
        dispatch("from", "fw"),
        dispatch("to", "tw"),
        chain("filter-INPUT", "counter jump filter-cali-INPUT"),
        chain("filter-FORWARD", "counter jump filter-cali-FORWARD"),
        chain("filter-OUTPUT", "counter jump filter-cali-OUTPUT"),
        chain("filter-cali-INPUT", ""),
        chain("filter-cali-FORWARD", "iifname \"cali*\" counter jump filter-cali-from-wl-dispatch"),
        chain("filter-cali-OUTPUT", ""),
        chain("filter-cali-from-wl-dispatch", "iifname vmap @filter-cali-from-wl-dispatch\ncounter drop"),
        chain("filter-cali-to-wl-dispatch", "oifname vmap @filter-cali-to-wl-dispatch\ncounter drop"),
        chain("filter-cali-fw-cali1", "counter jump filter-cali-pro-net\ncounter drop"),
        chain("filter-cali-tw-cali1", "counter jump filter-cali-pri-net\ncounter drop"),
        chain("filter-cali-pri-net", &format!("ip saddr @{selector} counter meta mark set mark or 0x10000")),
        chain("filter-cali-pro-net", ""),
        chain("nat-POSTROUTING", "counter jump nat-cali-POSTROUTING"),
        chain("nat-cali-POSTROUTING", "counter jump nat-cali-nat-outgoing"),
        chain("nat-cali-nat-outgoing", "ip saddr @cali40masq-ipam-pools counter masquerade fully-random"),
        "}\n".to_owned(),
    ]
    .concat()
}

#[test]
fn tables_of_nftables_are_compared_as_those_of_iptables() {
    let of = |text: &str| {
        let listing = Listing::read(text);
        let felix = Felix {
            tables: listing.tables(true),
            sets: listing.sets(true).into_iter().collect(),
            ..felix("")
        };
        drift(&ForeignState { felix, ..found(&routes()) })
    };
    let whole = table();
    assert_eq!(of(&whole), BTreeSet::new());
    let without = |what: &str| of(&whole.replace(what, "")).into_iter().collect::<Vec<_>>();
    assert_eq!(without("10.65.2.9"), ["~ role == \"db\""]);
    assert_eq!(without("counter jump filter-cali-FORWARD"), ["- FORWARD"]);
    assert_eq!(without("counter jump filter-cali-pri-net"), ["~ cali-tw-cali1"]);
    assert_eq!(without("counter masquerade fully-random"), ["- cali-nat-outgoing"]);
}
