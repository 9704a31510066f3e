//! Paths of single packets, following the sentences of the data model; the table in `tests/sentences` refers
//! to these tests.

use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::key::Key;

use super::*;
use crate::policy::tests::{globals, ruleset};
use crate::policy::{Decider, Globals, HostInterfaces, Packet, Ruleset, Verdict, host_interfaces};

pub(super) const W1: (&str, &str) = (
    "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
    r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"ipv6_nets":["fd00::1/128"],"profile_ids":["open"],
        "labels":{"role":"web"},"ipv4_nat":[{"int_ip":"10.0.0.1","ext_ip":"203.0.113.1"}],
        "ipv6_nat":[{"int_ip":"fd00::1","ext_ip":"2001:db8:1::1"}]}"#,
);
pub(super) const W2: (&str, &str) = (
    "/calico/v1/host/h1/workload/cni/w2/endpoint/eth0",
    r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"ipv6_nets":["fd00::2/128"],"profile_ids":["open"],
        "labels":{"role":"db"}}"#,
);
pub(super) const OPEN: (&str, &str) =
    ("/calico/v1/policy/profile/open/rules", r#"{"inbound_rules":[{}],"outbound_rules":[{}]}"#);
pub(super) const ETH0: (&str, &str) =
    ("/calico/v1/host/h1/endpoint/e0", r#"{"name":"eth0","labels":{"host":"yes"}}"#);
pub(super) const POOL: (&str, &str) =
    ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","masquerade":true}"#);
pub(super) const RETURN: (&str, &str) = ("/calico/v1/config/DefaultEndpointToHostAction", "RETURN");

/// Host h1: `eth0` has the default route, `eth1` leads to 198.51.100.0/24, and `tunl0` to 10.0.9.0/24.
pub(super) struct Host {
    pub(super) ruleset: Ruleset,
    pub(super) globals: Globals,
    pub(super) hosts: HostInterfaces,
    pub(super) routes: Routes,
}

impl Host {
    pub(super) fn new(entries: &[(&str, &str)]) -> Self {
        let (ruleset, globals) = (ruleset(entries), globals(entries));
        let addrs = [
            ("eth0", vec!["192.0.2.1", "2001:db8::1"]),
            ("eth1", vec!["198.51.100.1"]),
            ("tunl0", vec!["10.0.8.1"]),
        ]
        .map(|(name, addrs)| (name, addrs.into_iter().map(addr).collect::<Vec<_>>()));
        let hosts = host_interfaces(&ruleset, &globals, addrs.clone());
        let mut routes = Routes::of_workloads(&ruleset);
        routes.local.extend(addrs.into_iter().flat_map(|(_, addrs)| addrs));
        for (net, out) in
            [("0.0.0.0/0", "eth0"), ("::/0", "eth0"), ("198.51.100.0/24", "eth1"), ("10.0.9.0/24", "tunl0")]
        {
            routes.via.insert(net.parse().unwrap(), out.into());
        }
        Self { ruleset, globals, hosts, routes }
    }

    pub(super) fn node(&self) -> Node<'_> {
        let Self { ruleset, globals, hosts, routes } = self;
        Node { ruleset, globals, hosts, routes }
    }

    /// Evaluates a packet. `by` is the input interface, or empty for a packet that the host sends.
    pub(super) fn path(&self, by: &str, packet: Packet, state: State) -> Path {
        let from = if by.is_empty() { Place::Host } else { Place::Interface(by.into()) };
        self.node().path(&Flow { packet, from, state })
    }

    /// Returns the decisive step for the first packet of a connection.
    pub(super) fn new_says(&self, by: &str, packet: Packet) -> String {
        says(&self.path(by, packet, State::New))
    }
}

pub(super) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn tcp(src: &str, dst: &str, port: u16) -> Packet {
    Packet { src: addr(src), dst: addr(dst), protocol: 6, ports: Some((40_000, port)), icmp: None }
}

fn icmp(src: &str, dst: &str, kind: u8) -> Packet {
    let src = addr(src);
    let protocol = if src.is_ipv4() { 1 } else { 58 };
    Packet { src, dst: addr(dst), protocol, ports: None, icmp: Some((kind, 0)) }
}

/// Formats a decision as `allow` or `deny`, stage, endpoint and reason.
pub(super) fn says(path: &Path) -> String {
    let Some(step) = path.decisive() else { return format!("{:?}", path.verdict) };
    let verdict = if path.verdict == Verdict::Allow { "allow" } else { "deny" };
    let endpoint = step.endpoint.as_ref().map(|key| match Key::Endpoint(key.clone()) {
        Key::Endpoint(tortie_config::key::EndpointKey::Workload { workload, .. }) => format!(" {workload}"),
        Key::Endpoint(tortie_config::key::EndpointKey::Host { endpoint, .. }) => format!(" {endpoint}"),
        other => other.to_string(),
    });
    let why = match &step.reason {
        Reason::Policy(decision) => match &decision.by {
            Decider::Rule(chain, at) => format!("{} {at}", chain.source),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    format!("{verdict} {:?}{}: {why}", step.stage, endpoint.unwrap_or_default())
}

pub(super) fn policy(name: &str, value: &str) -> (String, String) {
    (format!("/calico/v1/policy/tier/default/policy/{name}"), value.to_owned())
}

pub(super) fn with(base: &[(&str, &str)], more: &[(String, String)]) -> Host {
    let mut entries = base.to_vec();
    entries.extend(more.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    Host::new(&entries)
}

/// Returns the endpoint with state `inactive`.
fn inactive(endpoint: (&'static str, &'static str)) -> (&'static str, String) {
    (endpoint.0, endpoint.1.replace("\"active\"", "\"inactive\""))
}

#[test]
fn an_inactive_endpoint_neither_sends_nor_receives_even_mid_flow() {
    let (key, value) = inactive(W1);
    let host = Host::new(&[(key, &value), W2, OPEN]);
    for state in [State::New, State::Established { reply: false }, State::Established { reply: true }] {
        let from = host.path("cali1", tcp("10.0.0.1", "10.0.0.2", 80), state);
        assert_eq!(says(&from), "deny Source w1: Inactive");
        for by in ["cali2", "eth0"] {
            let src = if by == "eth0" { "192.0.2.9" } else { "10.0.0.2" };
            let to = host.path(by, tcp(src, "10.0.0.1", 80), state);
            assert_eq!(says(&to), "deny ToWorkload w1: Inactive");
        }
    }
}

#[test]
fn a_workload_sends_from_its_own_addresses_only() {
    let host = Host::new(&[W1, W2, OPEN]);
    let from =
        |src| host.new_says("cali1", tcp(src, if src.contains(':') { "fd00::2" } else { "10.0.0.2" }, 80));
    assert_eq!(from("10.0.0.1"), "allow ToWorkload w2: profile open 0");
    assert_eq!(from("fd00::1"), "allow ToWorkload w2: profile open 0");
    assert_eq!(from("10.0.0.2"), "deny Source w1: Spoofed", "another's address");
    assert_eq!(from("192.0.2.1"), "deny Source w1: Spoofed", "the host's");
    assert_eq!(from("fd00::2"), "deny Source w1: Spoofed");
    // The floating address is not an own source address.
    assert_eq!(from("203.0.113.1"), "deny Source w1: Spoofed");
    // The check also applies to established connections.
    let mid = host.path("cali1", tcp("10.0.0.7", "10.0.0.2", 80), State::Established { reply: false });
    assert_eq!(says(&mid), "deny Source w1: Spoofed");
    // All addresses of a wider network are own source addresses.
    let wide = W1.1.replace("10.0.0.1/32", "10.0.0.0/29");
    let host = Host::new(&[(W1.0, &wide), OPEN]);
    assert!(host.new_says("cali1", tcp("10.0.0.6", "192.0.2.9", 80)).starts_with("allow"));
    assert_eq!(host.new_says("cali1", tcp("10.0.0.8", "192.0.2.9", 80)), "deny Source w1: Spoofed");
    let wide = W1.1.replace("fd00::1/128", "fd00::/126");
    let host = Host::new(&[(W1.0, &wide), OPEN]);
    assert!(host.new_says("cali1", tcp("fd00::3", "2001:db8::9", 80)).starts_with("allow"));
    assert_eq!(host.new_says("cali1", tcp("fd00::4", "2001:db8::9", 80)), "deny Source w1: Spoofed");
}

#[test]
fn neighbour_discovery_passes_whatever_policy_says() {
    let host = Host::new(&[W1]);
    for (src, kind) in [("fe80::1", 135), ("::", 135), ("fd00::1", 136), ("::", 143), ("fe80::1", 133)] {
        let expected =
            if kind == 143 { "deny FromWorkload w1: profile open 0" } else { "allow ToHost: Neighbour" };
        assert_eq!(host.new_says("cali1", icmp(src, "2001:db8::1", kind)), expected, "{src} {kind}");
    }
    for kind in [134, 137, 128] {
        assert_eq!(
            host.new_says("cali1", icmp("fe80::1", "2001:db8::1", kind)),
            "deny FromWorkload w1: profile open 0"
        );
    }
}

#[test]
fn policy_on_what_the_host_sends_sees_the_interface_that_it_began_to_leave_by() {
    let mut host = Host::new(&[W1, OPEN, ETH0]);
    let to_floating = tcp("192.0.2.1", "203.0.113.1", 80);
    assert_eq!(host.new_says("", to_floating), "allow HostOutbound: OwnWorkload");
    // Without a route to it, the floating address is behind eth0, whose host endpoint allows nothing.
    host.routes.via.remove(&"203.0.113.1/32".parse().unwrap());
    assert_eq!(host.new_says("", to_floating), "deny HostOutbound e0: EndOfProfiles");
    assert_eq!(host.path("", to_floating, State::New).packet.dst, addr("10.0.0.1"));
}

#[test]
fn discovery_is_never_tracked_and_so_never_translated() {
    let host = Host::new(&[W1, OPEN]);
    let solicitation = host.path("eth0", icmp("2001:db8::9", "2001:db8:1::1", 135), State::New);
    assert_eq!((solicitation.packet.dst, solicitation.untracked), (addr("2001:db8:1::1"), true));
    let echo = host.path("eth0", icmp("2001:db8::9", "2001:db8:1::1", 128), State::New);
    assert_eq!((echo.packet.dst, echo.untracked), (addr("fd00::1"), false));
}

#[test]
fn discovery_passes_at_host_endpoints_whatever_policy_says() {
    let deny = r#"[{"action":"deny"}]"#;
    let untracked = format!(
        r#"{{"selector":"has(host)","untracked":true,"inbound_rules":{deny},"outbound_rules":{deny}}}"#
    );
    let pre_dnat = format!(r#"{{"selector":"has(host)","pre_dnat":true,"inbound_rules":{deny}}}"#);
    let none = ("/calico/v1/config/FailsafeInboundHostPorts", "none");
    for more in [Vec::new(), vec![policy("raw", &untracked)], vec![policy("pre", &pre_dnat)]] {
        let host = with(&[ETH0, W1, OPEN, none], &more);
        for kind in [130, 131, 133, 134, 135, 136, 143] {
            let (own, peer) = ("2001:db8::1", "2001:db8::9");
            assert_eq!(
                host.new_says("eth0", icmp(peer, own, kind)),
                "allow HostInbound e0: Neighbour",
                "{kind}"
            );
            assert_eq!(
                host.new_says("", icmp(own, peer, kind)),
                "allow HostOutbound e0: Neighbour",
                "{kind}"
            );
        }
        for kind in [128, 137, 144] {
            assert!(
                host.new_says("eth0", icmp("2001:db8::9", "2001:db8::1", kind)).starts_with("deny"),
                "{kind}"
            );
        }
        // Discovery messages are never forwarded by routers, so a forwarded one is subject to policy.
        let forwarded = host.new_says("eth0", icmp("2001:db8::9", "2001:db8::8", 135));
        assert!(forwarded.starts_with("deny HostInbound e0"), "{forwarded}");
    }
}

#[test]
fn policy_of_a_host_endpoint_does_not_cut_bgp() {
    let host = Host::new(&[ETH0]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 179)), "allow HostInbound e0: Failsafe");
    assert_eq!(host.new_says("", tcp("192.0.2.1", "192.0.2.9", 179)), "allow HostOutbound e0: Failsafe");
    let bfd = |src, dst| Packet { protocol: 17, ..tcp(src, dst, 3784) };
    assert_eq!(host.new_says("eth0", bfd("192.0.2.9", "192.0.2.1")), "allow HostInbound e0: Failsafe");
    assert_eq!(host.new_says("", bfd("192.0.2.1", "192.0.2.9")), "allow HostOutbound e0: Failsafe");
    let listed = ("/calico/v1/config/FailsafeInboundHostPorts", "tcp:22,udp:68");
    let host = Host::new(&[ETH0, listed]);
    assert!(host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 179)).starts_with("deny"), "as listed");
}

#[test]
fn a_failsafe_of_a_network_is_open_to_that_network_only() {
    let inbound = ("/calico/v1/config/FailsafeInboundHostPorts", "tcp:192.0.2.8/29:22");
    let outbound = ("/calico/v1/config/FailsafeOutboundHostPorts", "tcp:192.0.2.8/29:2379");
    let host = Host::new(&[ETH0, inbound, outbound]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 22)), "allow HostInbound e0: Failsafe");
    assert!(host.new_says("eth0", tcp("192.0.2.17", "192.0.2.1", 22)).starts_with("deny"));
    assert_eq!(host.new_says("", tcp("192.0.2.1", "192.0.2.9", 2379)), "allow HostOutbound e0: Failsafe");
    assert!(host.new_says("", tcp("192.0.2.1", "192.0.2.17", 2379)).starts_with("deny"));
}

#[test]
fn the_host_sends_nothing_to_an_inactive_endpoint() {
    let inactive = W1.1.replace(r#""active""#, r#""inactive""#);
    let host = Host::new(&[(W1.0, &inactive), OPEN]);
    for state in [State::New, State::Established { reply: true }] {
        let path = host.path("", tcp("192.0.2.1", "10.0.0.1", 80), state);
        assert_eq!(says(&path), "deny HostOutbound w1: Inactive");
    }
}

#[test]
fn workload_interfaces_are_blocked_by_default_and_known_by_their_prefix() {
    let tap = ("/calico/v1/config/InterfacePrefix", "cali,tap");
    let host = Host::new(&[W1, OPEN, tap]);
    for by in ["cali9", "tap80"] {
        assert_eq!(host.new_says(by, tcp("10.0.0.9", "192.0.2.9", 80)), "deny Source: UnknownInterface");
    }
    // Without a profile no packet passes in either direction.
    let bare = (W1.0, r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"]}"#);
    let host = Host::new(&[bare]);
    assert_eq!(
        host.new_says("cali1", tcp("10.0.0.1", "192.0.2.9", 80)),
        "deny FromWorkload w1: EndOfProfiles"
    );
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", 80)), "deny ToWorkload w1: EndOfProfiles");
}

#[test]
fn an_interface_without_a_host_endpoint_is_left_alone() {
    let host = Host::new(&[W1, OPEN]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 8080)), "allow HostInbound: NoEndpoint");
    assert_eq!(host.new_says("", tcp("192.0.2.1", "192.0.2.9", 8080)), "allow HostOutbound: NoEndpoint");
    let through = host.path("eth0", tcp("192.0.2.9", "198.51.100.9", 80), State::New);
    assert!(through.steps.iter().all(|step| step.endpoint.is_none()) && through.verdict == Verdict::Allow);
    // A host endpoint on eth0 does not affect eth1.
    let host = Host::new(&[ETH0]);
    assert_eq!(
        host.new_says("eth1", tcp("198.51.100.9", "198.51.100.1", 80)),
        "allow HostInbound: NoEndpoint"
    );
}

#[test]
fn both_ends_on_one_host_are_asked_sender_first() {
    let deny = policy(
        "p",
        r#"{"selector":"role == 'db'","inbound_rules":[{"action":"deny","src_selector":"role == 'web'"}]}"#,
    );
    let host = with(&[W1, W2, OPEN], &[deny]);
    assert_eq!(host.new_says("cali1", tcp("10.0.0.1", "10.0.0.2", 80)), "deny ToWorkload w2: policy p 0");
    let back = host.path("cali2", tcp("10.0.0.2", "10.0.0.1", 80), State::New);
    let stages: Vec<Stage> = back.steps.iter().map(|step| step.stage).collect();
    // The policy of the db endpoint has no outbound rule, so the path ends there.
    assert_eq!(stages, [Stage::Source, Stage::Route, Stage::FromWorkload]);
    assert_eq!(says(&back), r#"deny FromWorkload w2: EndOfTier("default")"#);
}

#[test]
fn established_connections_go_on_and_invalid_packets_do_not() {
    let host = with(&[W1, W2, OPEN], &[policy("none", r#"{"selector":"all()"}"#)]);
    let packet = tcp("10.0.0.1", "10.0.0.2", 80);
    for reply in [false, true] {
        let path = host.path("cali1", packet, State::Established { reply });
        assert_eq!(says(&path), "allow ToWorkload w2: Established");
    }
    assert_eq!(says(&host.path("cali1", packet, State::Invalid)), "deny FromWorkload w1: Invalid");
    let off = ("/calico/v1/config/DisableConntrackInvalidCheck", "true");
    let host = Host::new(&[W1, W2, OPEN, off]);
    assert_eq!(says(&host.path("cali1", packet, State::Invalid)), "allow ToWorkload w2: profile open 0");
}

#[test]
fn loopback_of_the_host_is_no_destination_of_workloads() {
    let host = Host::new(&[W1, OPEN, RETURN]);
    for dst in ["127.0.0.1", "127.255.255.254"] {
        assert_eq!(host.new_says("cali1", tcp("10.0.0.1", dst, 9099)), "deny Source: Loopback");
    }
}

#[test]
fn what_comes_from_a_workload_to_its_host_passes_policy_first_then_the_action() {
    let packet = tcp("10.0.0.1", "192.0.2.1", 53);
    let drop = Host::new(&[W1, OPEN]);
    assert_eq!(drop.new_says("cali1", packet), "deny ToHost: ToHost(Drop)");
    // A reply to the host's own connection is accepted.
    let reply = drop.path("cali1", packet, State::Established { reply: true });
    assert_eq!(says(&reply), "allow ToHost: Established");
    for action in ["RETURN", "ACCEPT"] {
        let key = RETURN.0;
        let open = Host::new(&[W1, OPEN, (key, action)]);
        assert_eq!(open.new_says("cali1", packet), "allow FromWorkload w1: profile open 0");
        let fail_closed = with(&[W1, OPEN, (key, action)], &[policy("none", r#"{"selector":"all()"}"#)]);
        assert_eq!(fail_closed.new_says("cali1", packet), r#"deny FromWorkload w1: EndOfTier("default")"#);
    }
    // Policy of a host endpoint is skipped, because the packet came by a workload interface.
    let host = Host::new(&[W1, OPEN, RETURN, ETH0]);
    assert!(host.new_says("cali1", packet).starts_with("allow"));
}

#[test]
fn the_host_reaches_its_own_workloads() {
    let host = with(&[W1, OPEN, ETH0], &[policy("none", r#"{"selector":"all()"}"#)]);
    assert_eq!(host.new_says("", tcp("192.0.2.1", "10.0.0.1", 80)), "allow HostOutbound: OwnWorkload");
}

#[test]
fn a_host_endpoint_without_policy_passes_failsafe_ports_only() {
    let host = Host::new(&[ETH0]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 22)), "allow HostInbound e0: Failsafe");
    assert_eq!(
        host.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 23)),
        "deny HostInbound e0: EndOfProfiles"
    );
    assert_eq!(host.new_says("", tcp("192.0.2.1", "192.0.2.9", 2379)), "allow HostOutbound e0: Failsafe");
    assert_eq!(host.new_says("", tcp("192.0.2.1", "192.0.2.9", 22)), "deny HostOutbound e0: EndOfProfiles");
    let udp = Packet { protocol: 17, ..tcp("192.0.2.9", "192.0.2.1", 22) };
    assert_eq!(host.new_says("eth0", udp), "deny HostInbound e0: EndOfProfiles", "TCP was said");
    let none = Host::new(&[ETH0, ("/calico/v1/host/h1/config/FailsafeInboundHostPorts", "none")]);
    assert_eq!(
        none.new_says("eth0", tcp("192.0.2.9", "192.0.2.1", 22)),
        "deny HostInbound e0: EndOfProfiles"
    );
    // Failsafe ports do not apply to workloads.
    let bare = (W1.0, r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"]}"#);
    let host = Host::new(&[bare]);
    assert_eq!(host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", 22)), "deny ToWorkload w1: EndOfProfiles");
}

#[test]
fn host_endpoints_act_on_forwarded_traffic_unless_either_side_is_a_workload() {
    let eth1 = ("/calico/v1/host/h1/endpoint/e1", r#"{"name":"eth1","labels":{"host":"yes"}}"#);
    let web = |name, kind| {
        policy(
            name,
            &format!(r#"{{"selector":"has(host)","{kind}":[{{"protocol":"tcp","dst_ports":[80]}}]}}"#),
        )
    };
    let host = with(&[W1, OPEN, ETH0, eth1], &[web("in", "inbound_rules"), web("out", "outbound_rules")]);
    let through = |port| host.new_says("eth0", tcp("192.0.2.9", "198.51.100.9", port));
    assert_eq!(through(80), "allow HostOutbound e1: policy out 0");
    assert_eq!(through(81), r#"deny HostInbound e0: EndOfTier("default")"#);
    // To and from a workload only the workload's own rules apply.
    assert_eq!(
        host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", 81)),
        "allow ToWorkload w1: profile open 0"
    );
    assert_eq!(
        host.new_says("cali1", tcp("10.0.0.1", "192.0.2.9", 81)),
        "allow FromWorkload w1: profile open 0"
    );
}

#[test]
fn untracked_policy_comes_before_connection_tracking_and_drops_nothing_by_itself() {
    let raw = policy(
        "raw",
        r#"{"selector":"has(host)","untracked":true,"inbound_rules":[{"protocol":"tcp","dst_ports":[80]},
            {"action":"deny","protocol":"tcp","dst_ports":[81]}],"outbound_rules":[{"protocol":"tcp","src_ports":[40000]}]}"#,
    );
    let host = with(&[ETH0, W1, OPEN], &[raw]);
    let to = |port| host.path("eth0", tcp("192.0.2.9", "192.0.2.1", port), State::New);
    let allowed = to(80);
    assert_eq!((says(&allowed), allowed.untracked), ("allow Untracked e0: policy raw 0".into(), true));
    assert_eq!(allowed.steps.last().unwrap().reason, Reason::AcceptedEarlier, "later policy is skipped");
    assert_eq!(says(&to(81)), "deny Untracked e0: policy raw 1");
    // This also applies to established connections.
    let known = host.path("eth0", tcp("192.0.2.9", "192.0.2.1", 81), State::Established { reply: false });
    assert_eq!(says(&known), "deny Untracked e0: policy raw 1");
    // A packet that no untracked rule matches continues to ordinary policy. Nothing allows it there, because
    // untracked policies do not count.
    assert_eq!(says(&to(82)), "deny HostInbound e0: EndOfProfiles");
    assert_eq!(says(&to(22)), "allow HostInbound e0: Failsafe");
    let out = host.path("", tcp("192.0.2.1", "192.0.2.9", 9999), State::New);
    assert_eq!((says(&out), out.untracked), ("allow Untracked e0: policy raw 0".into(), true));
    // Replies from failsafe ports stay tracked.
    let ssh = Packet { ports: Some((22, 40_000)), ..tcp("192.0.2.1", "192.0.2.9", 0) };
    let reply = host.path("", ssh, State::Established { reply: true });
    assert_eq!((says(&reply), reply.untracked), ("allow HostOutbound e0: Established".into(), false));
    // An untracked packet is not translated, because connection tracking performs the translation.
    let all = policy("raw", r#"{"selector":"has(host)","untracked":true,"inbound_rules":[{}]}"#);
    let host = with(&[ETH0, W1, OPEN], &[all]);
    let floating = host.path("eth0", tcp("192.0.2.9", "203.0.113.1", 80), State::New);
    assert_eq!(floating.packet.dst, addr("203.0.113.1"));
    // Untracked policy does not apply to workloads.
    let labelled = W1.1.replace(r#""role":"web""#, r#""host":"yes""#);
    let deny =
        policy("raw", r#"{"selector":"has(host)","untracked":true,"inbound_rules":[{"action":"deny"}]}"#);
    let host = with(&[(W1.0, &labelled), OPEN], &[deny]);
    assert_eq!(
        host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", 80)),
        "allow ToWorkload w1: profile open 0"
    );
}

#[test]
fn untracked_packets_are_known_to_no_connection() {
    let raw = policy("raw", r#"{"selector":"has(host)","untracked":true,"inbound_rules":[{}]}"#);
    let eth1 = ("/calico/v1/host/h1/endpoint/e1", r#"{"name":"eth1"}"#);
    let host = with(&[ETH0, eth1, W1], &[raw]);
    for state in [State::New, State::Established { reply: true }, State::Invalid] {
        // Outbound policy of the other host endpoint, and the profiles of a workload, still apply.
        let through = host.path("eth0", tcp("192.0.2.9", "198.51.100.9", 80), state);
        assert_eq!(says(&through), "deny HostOutbound e1: EndOfProfiles");
        let to = host.path("eth0", tcp("192.0.2.9", "10.0.0.1", 80), state);
        assert_eq!(says(&to), "deny ToWorkload w1: profile open 0");
    }
}

#[test]
fn pre_dnat_policy_sees_the_address_before_translation() {
    let pre = policy(
        "pre",
        r#"{"selector":"has(host)","pre_dnat":true,"inbound_rules":[{"action":"deny","dst_net":"203.0.113.1/32","protocol":"tcp",
            "dst_ports":[81]},{"dst_net":"192.0.2.1/32","protocol":"tcp","dst_ports":[82]}]}"#,
    );
    let host = with(&[ETH0, W1, OPEN], &[pre]);
    let to = |dst, port| host.path("eth0", tcp("192.0.2.9", dst, port), State::New);
    assert_eq!(says(&to("203.0.113.1", 81)), "deny PreDnat e0: policy pre 0");
    // The same internal address addressed directly, and packets that no rule matches, continue.
    assert_eq!(says(&to("10.0.0.1", 81)), "allow ToWorkload w1: profile open 0");
    assert_eq!(says(&to("203.0.113.1", 80)), "allow ToWorkload w1: profile open 0");
    assert_eq!(says(&to("192.0.2.1", 83)), "deny HostInbound e0: EndOfProfiles");
    // A packet that pre-DNAT policy accepts skips later policy of the host endpoint.
    let accepted = to("192.0.2.1", 82);
    assert_eq!(says(&accepted), "allow PreDnat e0: policy pre 1");
    assert_eq!(accepted.steps.last().unwrap().reason, Reason::AcceptedEarlier);
    // Pre-DNAT policy applies neither to established connections nor to packets from workloads or the host.
    let mid = host.path("eth0", tcp("192.0.2.9", "203.0.113.1", 81), State::Established { reply: false });
    assert_eq!(says(&mid), "allow ToWorkload w1: Established");
    assert_eq!(host.new_says("", tcp("192.0.2.1", "203.0.113.1", 81)), "allow HostOutbound: OwnWorkload");
}

/// As in Felix, whose pre-DNAT dispatch holds only the endpoints with such policies and ends in that of all
/// interfaces.
#[test]
fn pre_dnat_policy_of_all_interfaces_counts_where_the_interface_has_none_of_its_own() {
    let all = ("/calico/v1/host/h1/endpoint/all", r#"{"name":"*","labels":{"all":"yes"}}"#);
    let deny = |selector, port| {
        format!(
            r#"{{"selector":"{selector}","pre_dnat":true,"inbound_rules":[{{"action":"deny","protocol":"tcp","dst_ports":[{port}]}}]}}"#
        )
    };
    let says_of = |policies: &[(String, String)], port| {
        let mut host = with(&[ETH0, all, W1, OPEN], policies);
        host.globals.dialect = Dialect::V3;
        host.new_says("eth0", tcp("192.0.2.9", "10.0.0.1", port))
    };
    let of_all = policy("every", &deny("has(all)", 81));
    assert_eq!(says_of(std::slice::from_ref(&of_all), 81), "deny PreDnat all: policy every 0");
    let own = policy("own", &deny("has(host)", 82));
    assert_eq!(says_of(&[of_all.clone(), own.clone()], 82), "deny PreDnat e0: policy own 0");
    assert_eq!(says_of(&[of_all, own], 81), "allow ToWorkload w1: profile open 0");
}

#[test]
fn without_ipv6_support_workloads_have_none_and_hosts_are_left_alone() {
    let off = ("/calico/v1/config/Ipv6Support", "false");
    let host = Host::new(&[W1, W2, OPEN, ETH0, off]);
    assert_eq!(host.new_says("cali1", tcp("fd00::1", "fd00::2", 80)), "deny Source: NoIpv6");
    assert_eq!(host.new_says("eth0", tcp("2001:db8::9", "fd00::1", 80)), "deny ToWorkload: NoIpv6");
    assert_eq!(host.new_says("eth0", tcp("2001:db8::9", "2001:db8::1", 80)), "allow HostInbound: NoEndpoint");
    assert!(host.new_says("cali1", tcp("10.0.0.1", "10.0.0.2", 80)).starts_with("allow"));
}

#[test]
fn log_actions_are_reported_in_order() {
    let log = |name: &str, selector: &str| {
        policy(
            name,
            &format!(
                r#"{{"selector":"{selector}","inbound_rules":[{{"action":"log"}},{{"log_prefix":"{name} in"}}],
                    "outbound_rules":[{{"log_prefix":"{name} out"}}]}}"#
            ),
        )
    };
    let host = with(&[W1, W2, OPEN], &[log("web", "role == 'web'"), log("db", "role == 'db'")]);
    let path = host.path("cali1", tcp("10.0.0.1", "10.0.0.2", 80), State::New);
    let logs: Vec<&str> = path.logs().map(|prefix| prefix.as_str()).collect();
    assert_eq!(logs, ["web out", "calico-packet", "db in"]);
    assert_eq!(
        path.decider(),
        match &path.decisive().unwrap().reason {
            Reason::Policy(decision) => Some(&decision.by),
            other => panic!("{other:?}"),
        }
    );
}

#[test]
fn a_packet_to_nowhere_is_dropped() {
    let host = Host { routes: Routes::default(), ..Host::new(&[W1, OPEN]) };
    assert_eq!(host.new_says("cali1", tcp("10.0.0.1", "10.0.0.2", 80)), "deny Route: NoRoute");
}

#[test]
fn the_host_talks_to_itself_over_the_loopback() {
    let host = Host::new(&[W1, OPEN, ETH0]);
    let path = host.path("", tcp("192.0.2.1", "192.0.2.1", 8080), State::New);
    assert_eq!(says(&path), "allow HostInbound: NoEndpoint");
}
