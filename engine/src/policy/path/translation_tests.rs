//! Address translation along the path: 1:1 NAT, masquerading, the tunnel address, and packets inside the
//! tunnel.

use tortie_config::Dialect;

use super::tests::{ETH0, Host, OPEN, POOL, RETURN, W1, W2, addr, policy, says, tcp, with};
use super::*;
use crate::policy::{Packet, Verdict};

fn ipip(src: &str, dst: &str) -> Packet {
    Packet { src: addr(src), dst: addr(dst), protocol: 4, ports: None, icmp: None }
}

#[test]
fn connections_to_the_outside_address_arrive_inside() {
    let host = Host::new(&[W1, W2, OPEN, RETURN, POOL]);
    for (by, src) in [("eth0", "192.0.2.9"), ("cali2", "10.0.0.2"), ("", "192.0.2.1")] {
        let path = host.path(by, tcp(src, "203.0.113.1", 80), State::New);
        assert_eq!((path.verdict, path.packet.dst), (Verdict::Allow, addr("10.0.0.1")), "{by}");
    }
    let path = host.path("eth0", tcp("2001:db8::9", "2001:db8:1::1", 80), State::New);
    assert_eq!((path.verdict, path.packet.dst), (Verdict::Allow, addr("fd00::1")));
    // Inbound policy sees the internal address.
    let inside = policy("p", r#"{"selector":"role == 'web'","inbound_rules":[{"dst_net":"10.0.0.1/32"}]}"#);
    let host = with(&[W1, OPEN], &[inside]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "203.0.113.1", 80)), "allow ToWorkload w1: policy p 0");
}

#[test]
fn connections_from_inside_keep_their_source_but_to_their_own_outside_address() {
    let host = Host::new(&[W1, W2, OPEN]);
    let source = |dst| host.path("cali1", tcp("10.0.0.1", dst, 80), State::New).packet.src;
    assert_eq!(source("192.0.2.9"), addr("10.0.0.1"));
    assert_eq!(source("10.0.0.2"), addr("10.0.0.1"));
    assert_eq!(source("203.0.113.1"), addr("203.0.113.1"), "it calls itself");
    let six = |dst| host.path("cali1", tcp("fd00::1", dst, 80), State::New).packet.src;
    assert_eq!((six("2001:db8::9"), six("2001:db8:1::1")), (addr("fd00::1"), addr("2001:db8:1::1")));
}

#[test]
fn a_mapping_of_a_foreign_address_maps_nothing() {
    let stray = W1.1.replace(r#""int_ip":"10.0.0.1""#, r#""int_ip":"10.0.0.2""#);
    let host = Host::new(&[(W1.0, &stray), W2, OPEN]);
    let path = host.path("eth0", tcp("192.0.2.9", "203.0.113.1", 80), State::New);
    assert_eq!(path.packet.dst, addr("203.0.113.1"));
    // The endpoint itself stays in force.
    assert_eq!(
        host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", 80)),
        "allow ToWorkload w1: profile open 0"
    );
}

#[test]
fn pools_are_masqueraded_towards_addresses_of_no_pool() {
    let other = ("/calico/v1/ipam/v4/pool/172.16.0.0-16", r#"{"cidr":"172.16.0.0/16","disabled":true}"#);
    let host = Host::new(&[W1, W2, OPEN, POOL, other]);
    let masqueraded = |dst| {
        let path = host.path("cali1", tcp("10.0.0.1", dst, 80), State::New);
        assert_eq!(path.verdict, Verdict::Allow);
        path.steps.last().unwrap().reason == Reason::Masquerade
    };
    assert!(masqueraded("192.0.2.9"));
    assert!(!masqueraded("10.0.0.2") && !masqueraded("10.0.9.9"));
    assert!(!masqueraded("172.16.0.1"), "a disabled pool is one too");
    let plain = Host::new(&[W1, OPEN, (POOL.0, r#"{"cidr":"10.0.0.0/16"}"#)]);
    let path = plain.path("cali1", tcp("10.0.0.1", "192.0.2.9", 80), State::New);
    assert!(path.steps.iter().all(|step| step.stage != Stage::Snat), "absent means no");
}

#[test]
fn what_leaves_by_the_tunnel_has_its_address() {
    let tunnel = ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","ipip":"tunl0"}"#);
    let own = ("/calico/v1/host/h1/config/IpInIpTunnelAddr", "10.0.8.1");
    let host = Host::new(&[W1, OPEN, tunnel, own]);
    let snat = |by, src, dst| {
        let path = host.path(by, tcp(src, dst, 80), State::New);
        path.steps.iter().any(|step| step.reason == Reason::Masquerade)
    };
    assert!(snat("", "192.0.2.1", "10.0.9.1"));
    assert!(!snat("", "10.0.8.1", "10.0.9.1"), "it has it already");
    assert!(!snat("cali1", "10.0.0.1", "10.0.9.1"), "not the host's");
    assert!(!snat("", "192.0.2.1", "192.0.2.9"), "another way");
}

#[test]
fn ipip_is_taken_from_known_hosts_only() {
    let hosts = [
        ("/calico/v1/host/h2/bird_ip", "192.0.2.2"),
        ("/calico/bgp/v1/host/h3/ip_addr_v4", "192.0.2.3"),
        ("/calico/v1/config/IpInIpEnabled", "true"),
        ETH0,
    ];
    let host = Host::new(&hosts);
    for src in ["192.0.2.2", "192.0.2.3"] {
        assert_eq!(host.new_says("eth0", ipip(src, "192.0.2.1")), "allow Tunnel: KnownTunnel");
        assert_eq!(host.new_says("", ipip("192.0.2.1", src)), "allow Tunnel: KnownTunnel");
    }
    assert_eq!(host.new_says("eth0", ipip("192.0.2.9", "192.0.2.1")), "deny Tunnel: UnknownTunnel");
    assert_eq!(host.new_says("", ipip("192.0.2.1", "192.0.2.9")), "deny HostOutbound e0: EndOfProfiles");
    // With IPIP handling off, IPIP is a protocol like any other.
    let off = Host::new(&hosts[..2]);
    assert_eq!(off.new_says("eth0", ipip("192.0.2.9", "192.0.2.1")), "allow HostInbound: NoEndpoint");
}

#[test]
fn vxlan_is_taken_from_known_hosts_only_and_not_from_workloads() {
    let keys = [
        ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","vxlan_mode":"always"}"#),
        ("/calico/bgp/v1/host/h3/ip_addr_v4", "192.0.2.3"),
        W1,
        OPEN,
        ETH0,
    ];
    let vxlan = |src: &str, dst: &str| Packet { protocol: 17, ports: Some((50_000, 4789)), ..ipip(src, dst) };
    let host = Host::new(&keys);
    assert_eq!(host.new_says("eth0", vxlan("192.0.2.3", "192.0.2.1")), "allow Tunnel: KnownVxlan");
    assert_eq!(host.new_says("", vxlan("192.0.2.1", "192.0.2.3")), "allow Tunnel: KnownVxlan");
    assert_eq!(host.new_says("eth0", vxlan("192.0.2.9", "192.0.2.1")), "deny Tunnel: UnknownVxlan");
    assert_eq!(host.new_says("cali1", vxlan("10.0.0.1", "192.0.2.1")), "deny Tunnel: UnknownVxlan");
    assert_eq!(host.new_says("cali1", vxlan("10.0.0.1", "192.0.2.3")), "deny FromWorkload: VxlanOfWorkload");
    let mut of_v3 = Host::new(&keys);
    of_v3.globals.dialect = Dialect::V3;
    assert_eq!(of_v3.new_says("cali1", vxlan("10.0.0.1", "192.0.2.3")), "deny FromWorkload: VxlanOfWorkload");
    // A workload whose packets are allowed, and another port.
    let allowed = [&keys[..], &[("/calico/v1/config/AllowVXLANPacketsFromWorkloads", "true")]].concat();
    let says = Host::new(&allowed).new_says("cali1", vxlan("10.0.0.1", "192.0.2.3"));
    assert!(says.starts_with("allow "), "{says}");
    let other = Packet { ports: Some((50_000, 53)), ..vxlan("192.0.2.9", "192.0.2.1") };
    assert!(!host.new_says("eth0", other).contains("Tunnel"));
    // No pool of IPv6 uses VXLAN, so its port is like any other.
    let of_v6 = vxlan("2001:db8::9", "2001:db8::1");
    assert_eq!(host.new_says("eth0", of_v6), "deny HostInbound e0: EndOfProfiles");
    let pool = ("/calico/v1/ipam/v6/pool/fd00::-64", r#"{"cidr":"fd00::/64","vxlan_mode":"always"}"#);
    let both = Host::new(&[&keys[..], &[pool]].concat());
    assert_eq!(both.new_says("eth0", of_v6), "deny Tunnel: UnknownVxlan");
}

#[test]
fn vxlan_belongs_to_no_connection() {
    let untracked = r#"{"selector":"has(host)","untracked":true,"outbound_rules":[{"action":"next-tier"}]}"#;
    let host = with(
        &[("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","vxlan_mode":"always"}"#), ETH0],
        &[policy("raw", untracked)],
    );
    let vxlan = |dst: &str| Packet { protocol: 17, ports: Some((50_000, 4789)), ..ipip("192.0.2.1", dst) };
    for state in [State::New, State::Invalid, State::Established { reply: true }] {
        // To the host itself, and to one that is not of the cluster.
        let to_itself = host.path("eth0", vxlan("192.0.2.1"), state);
        assert_eq!((says(&to_itself), to_itself.untracked), ("deny Tunnel: UnknownVxlan".to_owned(), true));
        let out = host.path("", vxlan("192.0.2.9"), state);
        assert_eq!((says(&out), out.untracked), ("deny HostOutbound e0: EndOfProfiles".to_owned(), true));
    }
}
