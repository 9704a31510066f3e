//! Random policy and random packets.

use std::net::IpAddr;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value, json};
use tortie_engine::policy::Packet;
use tortie_engine::policy::path::{Place, State};

/// Source and destination addresses of packets.
pub(crate) const ADDRESSES: [&str; 24] = [
    "10.65.0.1",
    "10.65.0.2",
    "10.65.0.22",
    "10.65.0.3",
    "10.65.3.5",
    "10.65.0.9",
    "192.0.2.1",
    "192.0.2.9",
    "198.51.100.7",
    "10.66.0.1",
    "fd00:65::1",
    "fd00:65::2",
    "fd00:65::3",
    "fd00:65:3::5",
    "fd00:65::9",
    "2001:db8::1",
    "2001:db8::9",
    "fd00:66::1",
    "203.0.113.1",
    "203.0.113.2",
    "203.0.113.3",
    "2001:db8:f::1",
    "2001:db8:f::2",
    LOOPBACK,
];
pub(crate) const LOOPBACK: &str = "127.0.0.1";

/// External addresses that workloads have at times; otherwise they are outside.
const FLOATING: [&[&str]; 2] =
    [&["203.0.113.1", "203.0.113.2", "203.0.113.3"], &["2001:db8:f::1", "2001:db8:f::2"]];

fn is_floating(addr: &str) -> bool {
    FLOATING.concat().contains(&addr)
}

/// Returns the owner of each address. Some have none, and packets are not sent from external addresses of
/// workloads.
fn owner(addr: &str) -> Option<Place> {
    let name = match addr {
        "10.65.0.1" | "fd00:65::1" => "cali1",
        "10.65.0.2" | "10.65.0.22" | "fd00:65::2" => "cali2",
        "10.65.0.3" | "10.65.3.5" | "fd00:65::3" | "fd00:65:3::5" => "cali3",
        "10.65.0.9" | "fd00:65::9" => "cali9",
        "192.0.2.1" | "2001:db8::1" | LOOPBACK => return Some(Place::Host),
        "192.0.2.9" | "198.51.100.7" | "2001:db8::9" => "eth0",
        _ if is_floating(addr) => "eth0",
        _ => return None,
    };
    Some(Place::Interface(name.into()))
}

const PORTS: [u16; 7] = [22, 53, 67, 68, 80, 4242, 8080];
const SELECTORS: [&str; 8] = [
    "all()",
    "role == 'web'",
    "role == 'db' && has(t1)",
    "role in {'web','db'}",
    "!has(role)",
    "env != 'x'",
    "has(t2) || env == 'y'",
    "role not in {'web'}",
];
const NETS: [&str; 12] = [
    "10.65.0.0/30",
    "10.65.0.1/32",
    "10.65.0.0/16",
    "10.65.3.0/28",
    "192.0.2.0/24",
    "198.51.100.0/24",
    "0.0.0.0/0",
    "fd00:65::/64",
    "fd00:65::2/128",
    "fd00:65:3::/112",
    "2001:db8::/64",
    "::/0",
];

fn pick<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    *of.choose(rng).unwrap()
}

fn maybe(rng: &mut StdRng, percent: u32) -> bool {
    rng.random_range(0..100) < percent
}

fn labels(rng: &mut StdRng) -> Value {
    let mut labels = Map::new();
    if maybe(rng, 70) {
        labels.insert("role".into(), pick(rng, &["web", "db"]).into());
    }
    if maybe(rng, 50) {
        labels.insert("env".into(), pick(rng, &["x", "y"]).into());
    }
    labels.into()
}

fn profiles(rng: &mut StdRng) -> Value {
    let count = rng.random_range(0..=3);
    // `p4` is missing or invalid.
    (0..count).map(|_| pick(rng, &["p1", "p2", "p3", "p1", "p2", "p4"])).collect::<Vec<_>>().into()
}

fn ports(rng: &mut StdRng) -> Value {
    let one = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => json!("50:70"),
        1 => json!("4000:9000"),
        _ => json!(pick(rng, &PORTS)),
    };
    let count = rng.random_range(1..=3);
    (0..count).map(|_| one(rng)).collect::<Vec<_>>().into()
}

fn rule(rng: &mut StdRng, open: bool) -> Value {
    let mut rule = Map::new();
    let action = match rng.random_range(0..100) {
        0..=49 => "allow",
        50..=74 => "deny",
        75..=89 => "next-tier",
        _ => "log",
    };
    rule.insert("action".into(), action.into());
    if open {
        return rule.into();
    }
    let protocol =
        pick(rng, &["tcp", "tcp", "udp", "udp", "icmp", "icmpv6", "sctp", "udplite", "47", "", "", ""]);
    if !protocol.is_empty() {
        let number = protocol.parse::<u8>();
        rule.insert("protocol".into(), number.map_or_else(|_| json!(protocol), |n| json!(n)));
    }
    for not in ["", "!"] {
        let often = if not.is_empty() { 25 } else { 12 };
        if protocol.is_empty() && !not.is_empty() && maybe(rng, often) {
            rule.insert("!protocol".into(), pick(rng, &["tcp", "udp", "icmp", "icmpv6"]).into());
        }
        for side in ["src", "dst"] {
            if maybe(rng, often) {
                rule.insert(format!("{not}{side}_net"), pick(rng, &NETS).into());
            } else if maybe(rng, often / 2) {
                let nets: Vec<&str> = (0..3).map(|_| pick(rng, &NETS)).collect();
                rule.insert(format!("{not}{side}_nets"), nets.into());
            }
            if maybe(rng, often) {
                rule.insert(format!("{not}{side}_selector"), pick(rng, &SELECTORS).into());
            }
            if maybe(rng, often / 2) {
                rule.insert(format!("{not}{side}_tag"), pick(rng, &["t1", "t2"]).into());
            }
            if matches!(protocol, "tcp" | "udp") && maybe(rng, often * 2) {
                rule.insert(format!("{not}{side}_ports"), ports(rng));
            }
        }
        if matches!(protocol, "icmp" | "icmpv6") && maybe(rng, 40) {
            let kind = if protocol == "icmp" { pick(rng, &[8, 13, 3]) } else { pick(rng, &[128, 139, 1]) };
            rule.insert(format!("{not}icmp_type"), json!(kind));
            if maybe(rng, 50) {
                rule.insert(format!("{not}icmp_code"), json!(pick(rng, &[0, 1])));
            }
        }
    }
    if maybe(rng, 5) {
        rule.insert("log_prefix".into(), "three ways".into());
    }
    rule.into()
}

fn rules(rng: &mut StdRng, most: usize) -> Value {
    let count = rng.random_range(0..=most);
    let mut rules: Vec<Value> = (0..count).map(|_| rule(rng, false)).collect();
    // So that some packets pass.
    if maybe(rng, 50) {
        rules.push(rule(rng, true));
    }
    rules.into()
}

fn workload(rng: &mut StdRng, index: usize) -> Value {
    let (name, nets) = super::net::NETS[index];
    let of = |v4: bool| -> Vec<&str> { nets.iter().copied().filter(|net| net.contains(':') != v4).collect() };
    json!({
        "state": if maybe(rng, 90) { "active" } else { "inactive" },
        "name": name,
        "mac": format!("02:00:00:00:01:0{}", index + 1),
        "ipv4_nets": of(true),
        "ipv6_nets": of(false),
        "profile_ids": profiles(rng),
        "labels": labels(rng),
        "ipv4_nat": nats(rng, nets, true),
        "ipv6_nat": nats(rng, nets, false),
    })
}

/// Returns floating addresses of a workload. One whose internal address does not belong to the workload is
/// ignored.
fn nats(rng: &mut StdRng, nets: &[&str], v4: bool) -> Value {
    let count = if maybe(rng, 50) { rng.random_range(1..=2) } else { 0 };
    let one = |rng: &mut StdRng| {
        let own = |addr: &&str| {
            let addr: IpAddr = addr.parse().unwrap();
            nets.iter().any(|net| net.parse::<tortie_net::Cidr>().unwrap().contains(addr))
        };
        let (own, others): (Vec<&str>, Vec<&str>) =
            ADDRESSES.iter().copied().filter(|addr| addr.contains(':') != v4).partition(own);
        let inside = if maybe(rng, 90) { pick(rng, &own) } else { pick(rng, &others) };
        json!({ "int_ip": inside, "ext_ip": pick(rng, FLOATING[usize::from(!v4)]) })
    };
    (0..count).map(|_| one(rng)).collect::<Vec<_>>().into()
}

fn pool(rng: &mut StdRng, cidr: &str) -> Value {
    json!({ "cidr": cidr, "masquerade": maybe(rng, 60), "disabled": maybe(rng, 20) })
}

/// Keys that policy reads, with a generator of values for each.
type Make = fn(&mut StdRng) -> Value;

const KEYS: &[(&str, Make)] = &[
    ("host/h1/workload/cni/w1/endpoint/eth0", |rng| workload(rng, 0)),
    ("host/h1/workload/cni/w2/endpoint/eth0", |rng| workload(rng, 1)),
    ("host/h1/workload/cni/w3/endpoint/eth0", |rng| workload(rng, 2)),
    ("host/h2/workload/cni/w4/endpoint/eth0", |rng| {
        json!({ "state": "active", "name": "cali4", "ipv4_nets": ["10.66.0.1/32"], "ipv6_nets": ["fd00:66::1/128"],
                "labels": labels(rng), "profile_ids": profiles(rng) })
    }),
    ("host/h1/endpoint/outside", |rng| {
        if maybe(rng, 50) {
            json!({ "name": "eth0", "labels": labels(rng), "profile_ids": profiles(rng) })
        } else {
            json!({ "expected_ipv4_addrs": ["192.0.2.1"], "expected_ipv6_addrs": ["2001:db8::9"],
                    "labels": labels(rng), "profile_ids": profiles(rng) })
        }
    }),
    (
        "policy/profile/p1/rules",
        |rng| json!({ "inbound_rules": rules(rng, 3), "outbound_rules": rules(rng, 3) }),
    ),
    (
        "policy/profile/p2/rules",
        |rng| json!({ "inbound_rules": rules(rng, 3), "outbound_rules": rules(rng, 3) }),
    ),
    (
        "policy/profile/p3/rules",
        |_| json!({ "inbound_rules": [{"action": "allow"}], "outbound_rules": [{"action": "allow"}] }),
    ),
    ("policy/profile/p4/rules", |_| json!({ "inbound_rules": 4 })),
    ("policy/profile/p1/tags", |rng| json!(if maybe(rng, 50) { vec!["t1"] } else { vec!["t1", "t2"] })),
    ("policy/profile/p2/tags", |_| json!(["t2"])),
    ("policy/profile/p1/labels", labels),
    ("policy/profile/p3/labels", labels),
    ("policy/tier/default/policy/a", policy),
    ("policy/tier/default/policy/b", policy),
    ("policy/tier/default/policy/c", policy),
    ("policy/tier/default/policy/d", policy),
    ("policy/tier/first/policy/e", policy),
    ("policy/tier/first/metadata", |rng| json!({ "order": rng.random_range(0..30) })),
    ("config/DefaultEndpointToHostAction", |rng| pick(rng, &["DROP", "ACCEPT", "RETURN"]).into()),
    ("config/IpInIpEnabled", |rng| pick(rng, &["true", "false"]).into()),
    ("config/DisableConntrackInvalidCheck", |rng| pick(rng, &["true", "false", "false"]).into()),
    ("config/FailsafeInboundHostPorts", |rng| pick(rng, &["tcp:22,udp:68", "none", "tcp:80"]).into()),
    ("config/FailsafeOutboundHostPorts", |rng| pick(rng, &["udp:53,udp:67", "none"]).into()),
    ("host/h2/bird_ip", |_| "198.51.100.7".into()),
    ("config/ChainInsertMode", |rng| pick(rng, &["insert", "append"]).into()),
    ("config/Ipv6Support", |rng| if maybe(rng, 70) { "true" } else { "false" }.into()),
    ("ipam/v4/pool/10.65.0.0-24", |rng| pool(rng, "10.65.0.0/24")),
    ("ipam/v4/pool/10.65.3.0-28", |rng| pool(rng, "10.65.3.0/28")),
    ("ipam/v4/pool/198.51.100.0-24", |rng| pool(rng, "198.51.100.0/24")),
    ("ipam/v6/pool/fd00:65::-64", |rng| pool(rng, "fd00:65::/64")),
    ("ipam/v6/pool/fd00:65:3::-112", |rng| pool(rng, "fd00:65:3::/112")),
];

fn policy(rng: &mut StdRng) -> Value {
    let mut policy = json!({
        "selector": pick(rng, &SELECTORS),
        "order": rng.random_range(0..20),
        "inbound_rules": rules(rng, 4),
        "outbound_rules": rules(rng, 4),
    });
    let fields = policy.as_object_mut().unwrap();
    match rng.random_range(0..10) {
        0 => drop(fields.insert("types".into(), json!(["ingress"]))),
        1 => drop(fields.insert("types".into(), json!(["egress"]))),
        2 => drop(fields.insert("untracked".into(), json!(true))),
        3 => drop(fields.insert("pre_dnat".into(), json!(true))),
        _ => {}
    }
    policy
}

/// Returns a random change of the store: keys with new values; `None`: deleted.
pub(crate) fn change(rng: &mut StdRng, all: bool) -> Vec<(String, Option<String>)> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let count = if all { KEYS.len() } else { rng.random_range(1..6) };
    let chosen: Vec<&(&str, Make)> =
        if all { KEYS.iter().collect() } else { (0..count).map(|_| KEYS.choose(rng).unwrap()).collect() };
    chosen
        .into_iter()
        .map(|(key, make)| {
            let value = if maybe(rng, 15) { None } else { Some(text(make(rng))) };
            (format!("/calico/v1/{key}"), value)
        })
        .collect()
}

/// Returns a random packet, its ingress, and its connection tracking state.
pub(crate) fn packet(rng: &mut StdRng) -> (Place, Packet, State) {
    let outside = Place::Interface("eth0".into());
    loop {
        let (src, dst) = (pick(rng, &ADDRESSES), pick(rng, &ADDRESSES));
        let v4 = !src.contains(':');
        let (Some(from), Some(to)) = (owner(src), owner(dst)) else { continue };
        // The kernel drops loopback addresses from outside before any forwarding rule.
        let loopback = src == LOOPBACK || (dst == LOOPBACK && from == outside);
        let apart = from != to || from == Place::Host || is_floating(dst);
        if loopback || is_floating(src) || !apart || v4 == dst.contains(':') {
            continue;
        }
        // At times a workload spoofs an address of another one.
        let spoofs = from != Place::Host && from != outside && maybe(rng, 5);
        let own = if spoofs { pick(rng, &ADDRESSES) } else { src };
        let hosts = owner(own) == Some(Place::Host) && from != Place::Host;
        if own.contains(':') == v4 || (own == dst && from != Place::Host) || hosts {
            continue;
        }
        let protocol = pick(
            rng,
            &[6, 6, 6, 17, 17, 17, if v4 { 1 } else { 58 }, if v4 { 1 } else { 58 }, 132, 136, 47, 89],
        );
        let ports = matches!(protocol, 6 | 17 | 132 | 136).then(|| (pick(rng, &PORTS), pick(rng, &PORTS)));
        let (icmp, state) = match protocol {
            1 => {
                let kind = pick(rng, &[8, 8, 13, 0]);
                (Some((kind, pick(rng, &[0, 1]))), if kind == 0 { State::Invalid } else { State::New })
            }
            58 => {
                // Includes neighbour and multicast listener discovery; unsolicited answers are invalid.
                let kind = pick(rng, &[128, 128, 139, 129, 135, 136, 133, 134, 131, 143, 137]);
                let invalid = matches!(kind, 129 | 137);
                (Some((kind, pick(rng, &[0, 1]))), if invalid { State::Invalid } else { State::New })
            }
            _ => (None, State::New),
        };
        let packet = Packet { src: own.parse().unwrap(), dst: dst.parse().unwrap(), protocol, ports, icmp };
        return (from, packet, state);
    }
}
