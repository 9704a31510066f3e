//! Generated v1 networks: hosts, settings, pools, blocks, endpoints, profiles, policies and BGP.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::rules::{SELECTORS, rules};

/// Keys with their values.
pub(crate) type Store = BTreeMap<String, String>;

/// Host whose models are compared.
pub(crate) const HOST: &str = "h1";

/// Hosts with the last part of their addresses. The name of the last one changes by the conversion.
pub(crate) const HOSTS: [(&str, u8); 4] = [(HOST, 1), ("h2", 2), ("h3", 3), ("Rack_4", 4)];

/// Returns the IPv4 address of a host; the last two are in another network than the first two.
pub(crate) fn v4(n: u8) -> String {
    if n < 3 { format!("192.0.2.{n}") } else { format!("198.51.100.{n}") }
}

fn network_of(n: u8) -> &'static str {
    if n < 3 { "192.0.2.0/24" } else { "198.51.100.0/24" }
}

fn v6(n: u8) -> String {
    format!("2001:db8::{n}")
}

type Entry = (String, String);

fn one(key: impl Into<String>, value: impl Into<String>) -> Entry {
    (key.into(), value.into())
}

fn host() -> impl Strategy<Value = (&'static str, u8)> {
    prop::sample::select(HOSTS.to_vec())
}

/// Values of a host.
fn of_host() -> impl Strategy<Value = Vec<Entry>> {
    (host(), 0..13_u8).prop_map(|((host, n), item)| {
        let bgp = |item: &str| format!("bgp/v1/host/{host}/{item}");
        let v1 = |item: &str| format!("v1/host/{host}/{item}");
        vec![match item {
            0 => one(bgp("ip_addr_v4"), ""),
            1 => one(bgp("ip_addr_v6"), v6(n)),
            2 => one(bgp("as_num"), "64513"),
            3 => one(bgp("rr_cluster_id"), "244.0.0.1"),
            4 => one(bgp("rr_cluster_id"), "244.0.0.2"),
            5 => one(bgp("listen_port"), "1790"),
            6 => one(bgp("network_v4"), network_of(n)),
            7 => one(bgp("loglevel"), "debug"),
            8 => one(v1("bird_ip"), format!("203.0.113.{n}")),
            9 => one(v1("metadata"), "{}"),
            10 => one(v1("config/IpInIpTunnelAddr"), format!("10.1.9.{n}")),
            11 => one(v1("config/IPv4VXLANTunnelAddr"), format!("10.2.9.{n}")),
            _ => one(v1("config/VXLANTunnelMACAddr"), format!("66:00:00:00:00:0{n}")),
        }]
    })
}

/// Values of BGP for all hosts, and advertisements of one.
fn of_bgp() -> impl Strategy<Value = Vec<Entry>> {
    prop::sample::select(vec![
        ("bgp/v1/global/as_num", "64512"),
        ("bgp/v1/global/as_num", "64520"),
        ("bgp/v1/global/listen_port", "1790"),
        ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
        ("bgp/v1/global/node_mesh", r#"{"enabled":true}"#),
        ("bgp/v1/global/node_mesh", r#"{"enabled":true,"password":"mesh"}"#),
        ("bgp/v1/global/node_mesh", r#"{"enabled":true,"own_only":true}"#),
        ("bgp/v1/global/loglevel", "info"),
        (
            "bgp/v1/global/prefix_advertisements/ip_v4",
            r#"[{"cidr":"10.1.0.0/16","communities":["65000:2","65000:1"]},{"cidr":"203.0.113.0/24","communities":["65000:1:2"]}]"#,
        ),
        ("bgp/v1/global/prefix_advertisements/ip_v6", r#"[{"cidr":"fd00::/64","communities":["65000:6"]}]"#),
        ("bgp/v1/host/h1/prefix_advertisements/ip_v4", r#"[{"cidr":"10.2.0.0/16","communities":["65000:9"]}]"#),
    ])
    .prop_map(|(key, value)| vec![one(key, value)])
}

/// Peers: routers and hosts, for all hosts or one.
fn peer() -> impl Strategy<Value = Vec<Entry>> {
    let scope = prop::sample::select(vec!["global", "host/h1", "host/h2", "host/h3", "host/Rack_4"]);
    let addr = prop::sample::select(vec![
        v4(1),
        v4(1),
        v4(2),
        v4(3),
        v4(4),
        v6(1),
        v6(2),
        "192.0.2.254".to_owned(),
        "2001:db8::fe".to_owned(),
    ]);
    let asn = prop::sample::select(vec!["64512", "64512", "64513", "64520", "65001"]);
    let port = prop::sample::select(vec![None, None, None, Some(1790_u16), Some(1791)]);
    let more = prop::sample::select(vec![
        "",
        "",
        r#","password":"secret""#,
        r#","password_file":"/etc/tortie/secrets/tor/key""#,
        r#","rr_cluster_id":"244.0.0.2""#,
        r#","restart_time":"60s","own_only":true,"next_hop_mode":"Keep""#,
    ]);
    (scope, addr, asn, port, more).prop_map(|(scope, addr, asn, port, more)| {
        let family = if addr.contains(':') { "peer_v6" } else { "peer_v4" };
        let suffix = port.map_or_else(String::new, |port| format!("-{port}"));
        let in_value = port.map_or_else(String::new, |port| format!(r#","port":{port}"#));
        let value = format!(r#"{{"ip":"{addr}","as_num":"{asn}"{in_value}{more}}}"#);
        vec![one(format!("bgp/v1/{scope}/{family}/{addr}{suffix}"), value)]
    })
}

/// Settings of all hosts and of this one, except those that make a host of Calico 3 one of OpenStack (interfaces
/// `tap*`, an address of the metadata service): in the v1 model it has no services for its workloads.
fn setting() -> impl Strategy<Value = Vec<Entry>> {
    let scope =
        prop::sample::select(vec!["v1/config", "v1/config", "v1/host/h1/config", "v1/host/h2/config"]);
    let setting = prop::sample::select(vec![
        ("LogPrefix", "mine"),
        ("InterfacePrefix", "cali,veth"),
        ("FailsafeInboundHostPorts", "tcp:22,udp:68"),
        ("FailsafeInboundHostPorts", "none"),
        ("FailsafeOutboundHostPorts", "53"),
        ("IptablesMarkMask", "0xff00"),
        ("DefaultEndpointToHostAction", "RETURN"),
        ("DefaultEndpointToHostAction", "ACCEPT"),
        ("IpInIpEnabled", "true"),
        ("IpInIpMtu", "1400"),
        ("ProgramClusterRoutes", "Enabled"),
        ("ProgramClusterRoutes", "EnabledIPIPOnly"),
        ("ChainInsertMode", "append"),
        ("DisableConntrackInvalidCheck", "true"),
        ("Ipv6Support", "false"),
        ("VXLANEnabled", "true"),
        ("VXLANPort", "8472"),
        ("VXLANVNI", "99"),
        ("AllowVXLANPacketsFromWorkloads", "true"),
        ("ExternalNodesCIDRList", "203.0.113.0/24"),
        ("ReportingIntervalSecs", "0.5"),
        ("EndpointReportingEnabled", "true"),
        ("IpamLeakGracePeriodSecs", "600"),
        ("MaxIpsetSize", "4096"),
        ("LogSeverityScreen", "DEBUG"),
        ("MetadataAddr", "127.0.0.1"),
        ("ClusterGUID", "0a"),
    ]);
    (scope, setting).prop_map(|(scope, (name, value))| {
        let scope = if name == "ClusterGUID" { "v1/config" } else { scope };
        vec![one(format!("{scope}/{name}"), value)]
    })
}

/// Pools with any tunnel.
fn pool() -> impl Strategy<Value = Vec<Entry>> {
    let cidr = prop::sample::select(vec!["10.1.0.0/16", "10.2.0.0/16", "10.2.0.0/16", "fd00::/64"]);
    let tunnel = prop::sample::select(vec![
        json!({}),
        json!({"ipip": "tunl0", "ipip_mode": "always"}),
        json!({"ipip": "tunl0", "ipip_mode": "cross-subnet"}),
        json!({"ipip": "tunl0"}),
        json!({"vxlan_mode": "always"}),
        json!({"vxlan_mode": "cross-subnet"}),
    ]);
    let rest = prop::sample::select(vec![
        json!({}),
        json!({"masquerade": true}),
        json!({"masquerade": true, "ipam": false}),
        json!({"disabled": true}),
        json!({"blockSize": 27, "own": "unknown"}),
    ]);
    (cidr, tunnel, rest).prop_map(|(cidr, tunnel, mut rest)| {
        let is_v6 = cidr.contains(':');
        let members = rest.as_object_mut().unwrap();
        members.insert("cidr".to_owned(), cidr.into());
        members.extend(
            tunnel
                .as_object()
                .unwrap()
                .clone()
                .into_iter()
                .filter(|(name, _)| !is_v6 || name == "vxlan_mode"),
        );
        if is_v6 {
            members.remove("blockSize");
        }
        let family = if is_v6 { "v6" } else { "v4" };
        vec![one(format!("v1/ipam/{family}/pool/{}", cidr.replace('/', "-")), rest.to_string())]
    })
}

/// Blocks with their affinities, and one without value.
fn block() -> impl Strategy<Value = Vec<Entry>> {
    let block = prop::sample::select(vec![
        ("10.1.1.0", "h1", "confirmed"),
        ("10.1.3.0", "h1", "pending"),
        ("10.1.2.0", "h2", "confirmed"),
        ("10.2.1.0", "h1", "confirmed"),
        ("10.2.2.0", "h2", "confirmed"),
        ("10.2.3.0", "h3", "confirmed"),
        ("10.2.4.0", "Rack_4", "confirmed"),
    ]);
    (block, any::<bool>()).prop_map(|((addr, host, state), borrowed)| {
        let name = format!("{addr}-30");
        let attributes = if borrowed {
            r#"[{"handle_id":"x","secondary":{"node":"h3"}}]"#
        } else {
            "[]"
        };
        let (first, free) = if borrowed { ("0", "[1,2,3]") } else { ("null", "[0,1,2,3]") };
        let value = format!(
            r#"{{"cidr":"{addr}/30","affinity":"host:{host}","strictAffinity":false,"allocations":[{first},null,null,null],"unallocated":{free},"attributes":{attributes}}}"#
        );
        vec![
            one(format!("ipam/v2/host/{host}/ipv4/block/{name}"), format!(r#"{{"state":"{state}"}}"#)),
            one(format!("ipam/v2/assignment/ipv4/block/{name}"), value),
        ]
    })
}

/// Names of profiles, of which one changes, and one belongs to a controller.
const PROFILES: [&str; 4] = ["web", "db", "Open_1", "k8s_ns.prod"];

fn labels() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({}),
        json!({"role": "front"}),
        json!({"role": "back", "x": "y"}),
        json!({"x": "z", "t": "own"}),
        json!({"host": "yes"}),
    ])
}

/// Workloads of all orchestrators.
fn workload() -> impl Strategy<Value = Vec<Entry>> {
    let name = prop::sample::select(vec![
        ("cni/0a", 1),
        ("cni/0B-c", 2),
        ("k8s/prod.web-0", 3),
        ("kurma/W_1", 4),
        ("libnetwork/libnetwork", 5),
        ("openstack/vm", 6),
    ]);
    let endpoint = prop::sample::select(vec!["eth0", "eth0", "P-1"]);
    let state = prop::sample::select(vec!["active", "active", "active", "inactive"]);
    let profiles = prop::sample::subsequence(PROFILES.to_vec(), 0..3);
    let more = prop::sample::subsequence(
        vec![
            r#","ipv4_nat":[{"int_ip":"IN4","ext_ip":"203.0.113.9"}]"#,
            r#","ipv6_nets":["fd00::NN/128"],"ipv6_gateway":"fe80::1""#,
            r#","ipv4_gateway":"169.254.1.1","active_instance_id":"0a""#,
        ],
        0..3,
    );
    ((host(), name, endpoint), state, profiles, labels(), more).prop_map(
        |(((host, at), (name, n), endpoint), state, profiles, labels, more)| {
            // In and outside of the blocks of the host; no two of a host have one address or interface.
            let n = if endpoint == "eth0" { n } else { n + 6 };
            let inside = format!("10.1.{at}.{n}");
            let mut labels = labels;
            if let (Some(namespace), Some(labels)) = (name.strip_prefix("k8s/"), labels.as_object_mut()) {
                let namespace = namespace.split('.').next().unwrap();
                labels.insert("calico/k8s_ns".to_owned(), namespace.into());
            }
            let more = more.concat().replace("IN4", &inside).replace("NN", &n.to_string());
            let value = format!(
                r#"{{"state":"{state}","name":"cali{n}","mac":"02:00:00:00:00:{n:02x}","profile_ids":{},"ipv4_nets":["{inside}/32"],"labels":{labels}{more}}}"#,
                json!(profiles),
            );
            vec![one(format!("v1/host/{host}/workload/{name}/endpoint/{endpoint}"), value)]
        },
    )
}

/// Host endpoints by name and by address.
fn host_endpoint() -> impl Strategy<Value = Vec<Entry>> {
    let profiles = prop::sample::subsequence(PROFILES.to_vec(), 0..3);
    (host(), any::<bool>(), profiles, labels()).prop_map(|((host, n), by_name, profiles, labels)| {
        let (id, place) = if by_name {
            ("e0", r#""name":"eth0""#.to_owned())
        } else {
            (
                "E1",
                format!(
                    r#""expected_ipv4_addrs":["{}"]"#,
                    if n == 1 { "198.51.100.99".to_owned() } else { v4(n) }
                ),
            )
        };
        let value = format!(r#"{{{place},"profile_ids":{},"labels":{labels}}}"#, json!(profiles));
        vec![one(format!("v1/host/{host}/endpoint/{id}"), value)]
    })
}

/// Parts of profiles.
fn profile() -> impl Strategy<Value = Vec<Entry>> {
    let name = prop::sample::select(PROFILES.to_vec());
    let rules = (rules(), rules()).prop_map(|(inbound, outbound)| {
        ("rules", json!({"inbound_rules": inbound, "outbound_rules": outbound}))
    });
    let part = prop_oneof![
        4 => rules,
        1 => Just(("tags", json!(["t", "u"]))),
        1 => Just(("labels", json!({"role": "front"}))),
        1 => Just(("labels", json!({"x": "y"}))),
    ];
    (name, part).prop_map(|(name, (part, value))| {
        vec![one(format!("v1/policy/profile/{name}/{part}"), value.to_string())]
    })
}

/// Policies of the default tier and of one before it, of all kinds.
fn policy() -> impl Strategy<Value = Vec<Entry>> {
    let name = prop::sample::select(vec!["web", "a.b", "a-a", "Zoo", "knp.default.x"]);
    let selector = prop::sample::select(SELECTORS.to_vec());
    let order = prop::sample::select(vec![json!(null), json!(1), json!(1), json!(2.5), json!("default")]);
    let kind = prop::sample::select(vec![
        json!({}),
        json!({}),
        json!({}),
        json!({"types": ["ingress"]}),
        json!({"types": ["egress"]}),
        json!({"apply_on_forward": true}),
        json!({"untracked": true}),
        json!({"pre_dnat": true}),
    ]);
    ((name, selector, order, kind), rules(), rules(), 0..5_u8).prop_map(
        |((name, selector, order, mut kind), inbound, outbound, tier)| {
            let is_early = kind.get("untracked").is_some() || kind.get("pre_dnat").is_some();
            let outbound = if kind.get("pre_dnat").is_some() { Vec::new() } else { outbound };
            let members = kind.as_object_mut().unwrap();
            members.insert("selector".to_owned(), selector.into());
            members.insert("order".to_owned(), order);
            members.insert("inbound_rules".to_owned(), inbound.into());
            members.insert("outbound_rules".to_owned(), outbound.into());
            members.insert("annotations".to_owned(), json!({"a": "b"}));
            let mut entries = Vec::new();
            let tier = if tier == 0 && !is_early {
                entries.push(one("v1/policy/tier/Sec/metadata", r#"{"order":5}"#));
                "Sec"
            } else {
                "default"
            };
            entries.push(one(format!("v1/policy/tier/{tier}/policy/{name}"), kind.to_string()));
            entries
        },
    )
}

/// Generates a network. All hosts have an IPv4 address with its network, unless a value says something else.
pub(crate) fn network() -> impl Strategy<Value = Store> {
    let entries = prop_oneof![
        4 => of_host(),
        2 => of_bgp(),
        3 => peer(),
        2 => setting(),
        2 => pool(),
        2 => block(),
        4 => workload(),
        2 => host_endpoint(),
        3 => profile(),
        3 => policy(),
    ];
    let bare = prop::collection::vec(prop::bool::weighted(0.1), HOSTS.len());
    (prop::collection::vec(entries, 0..28), bare).prop_map(|(entries, bare)| {
        let mut store = Store::new();
        for ((host, n), bare) in HOSTS.into_iter().zip(bare) {
            store.insert(full(&format!("bgp/v1/host/{host}/ip_addr_v4")), v4(n));
            if !bare {
                store.insert(full(&format!("bgp/v1/host/{host}/network_v4")), network_of(n).to_owned());
            }
        }
        store.extend(entries.into_iter().flatten().map(|(key, value)| (full(&key), value)));
        store.insert(full("v1/Ready"), "true".to_owned());
        store
    })
}

/// Returns the full key.
pub(crate) fn full(key: &str) -> String {
    format!("/calico/{key}")
}
