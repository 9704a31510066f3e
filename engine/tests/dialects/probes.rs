//! Routes and packets that both models decide about.

use std::net::IpAddr;

use proptest::prelude::*;
use tortie_config::resource::RouteSource;
use tortie_engine::policy::Packet;
use tortie_engine::policy::path::{Flow, Place, State};
use tortie_net::Cidr;

/// A route, without attributes of a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeRoute {
    pub(crate) prefix: Cidr,
    pub(crate) source: RouteSource,
    /// The route is on `tunl0`.
    pub(crate) is_on_tunnel: bool,
    /// Its LOCAL_PREF is that of a workload that moves.
    pub(crate) is_better: bool,
}

/// Prefixes in and outside of blocks, pools and advertisements.
pub(crate) const PREFIXES: [&str; 14] = [
    "10.1.1.0/30",
    "10.1.1.1/32",
    "10.1.1.9/32",
    "10.1.2.0/30",
    "10.1.3.0/30",
    "10.1.0.0/16",
    "10.2.1.0/30",
    "10.2.2.1/32",
    "10.2.4.0/30",
    "203.0.113.9/32",
    "198.51.100.0/24",
    "0.0.0.0/0",
    "fd00::1/128",
    "2001:db8:9::/64",
];

/// Next hops: hosts in and outside of this host's network, and routers.
pub(crate) const NEXT_HOPS: [&str; 4] = ["192.0.2.2", "198.51.100.3", "192.0.2.254", "2001:db8::2"];

/// Returns all combinations of routes.
pub(crate) fn routes() -> Vec<ProbeRoute> {
    let mut routes = Vec::new();
    for prefix in PREFIXES {
        for source in [RouteSource::Local, RouteSource::Ebgp, RouteSource::Ibgp] {
            for (is_on_tunnel, is_better) in [(false, false), (true, false), (false, true)] {
                routes.push(ProbeRoute { prefix: prefix.parse().unwrap(), source, is_on_tunnel, is_better });
            }
        }
    }
    routes
}

const V4: [&str; 15] = [
    "10.1.1.1",
    "10.1.1.2",
    "10.1.1.3",
    "10.1.1.4",
    "10.1.1.7",
    "10.1.2.1",
    "10.1.4.3",
    "10.2.1.1",
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.77",
    "198.51.100.99",
    "203.0.113.9",
    "203.0.113.200",
    "127.0.0.1",
];
const V6: [&str; 5] = ["fd00::1", "fd00::2", "2001:db8::1", "2001:db8::9", "fe80::1"];

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn packet() -> impl Strategy<Value = Packet> {
    let of = |all: &'static [&'static str]| prop::sample::select(all.to_vec()).prop_map(addr);
    let ends = prop_oneof![3 => (of(&V4), of(&V4)), 1 => (of(&V6), of(&V6))];
    let port = || prop::sample::select(vec![22_u16, 53, 80, 179, 445, 2379, 4789, 6443, 8472, 20_000]);
    (ends, 0..8_u8, port(), port(), 0..2_u8).prop_map(|((src, dst), kind, from, to, code)| {
        let v4 = src.is_ipv4();
        let (protocol, ports, icmp) = match kind {
            0..3 => (6, Some((from, to)), None),
            3 => (17, Some((from, to)), None),
            4 => (if from < 100 { 132 } else { 136 }, Some((from, to)), None),
            5 => (if v4 { 1 } else { 58 }, None, Some((if v4 { 8 } else { 128 }, code))),
            6 => (if v4 { 1 } else { 58 }, None, Some((if v4 { 0 } else { 135 }, code))),
            _ => (4, None, None),
        };
        Packet { src, dst, protocol, ports, icmp }
    })
}

/// Generates a packet that arrives or leaves. Most of those of a workload have its address.
pub(crate) fn flow() -> impl Strategy<Value = Flow> {
    let from = prop_oneof![
        5 => (1..13_u8).prop_map(|n| Place::Interface(format!("cali{n}").into())),
        2 => Just(Place::Interface("eth0".into())),
        1 => Just(Place::Interface("eth1".into())),
        1 => Just(Place::Interface("tunl0".into())),
        2 => Just(Place::Host),
    ];
    let state = prop_oneof![
        4 => Just(State::New),
        1 => any::<bool>().prop_map(|reply| State::Established { reply }),
        1 => Just(State::Invalid),
    ];
    (packet(), from, state, prop::bool::weighted(0.8)).prop_map(|(mut packet, from, state, own)| {
        if let Place::Interface(name) = &from
            && let Some(n) = name.strip_prefix("cali").filter(|_| own)
        {
            packet.src =
                addr(&if packet.src.is_ipv4() { format!("10.1.1.{n}") } else { format!("fd00::{n}") });
        }
        Flow { packet, from, state }
    })
}
