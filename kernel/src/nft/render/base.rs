//! Base chains (with a hook) and the fixed chains.
//!
//! `accept` ends a base chain and the packet continues at the next one. So packets from an endpoint and
//! packets to one have separate base chains at one hook, and chains of policy simply accept. With
//! `Ipv6Support` off, policy applies to no IPv6 packets except those of workloads, which are dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_config::Dialect;
use tortie_config::resource::{HostAction, PortRange};
use tortie_net::Cidr;

use super::draft::{Draft, Frame, family, in_set};
use super::node::{Base, Denied, Fixed, Node, Usage};
use super::stages;
use crate::nft::ir::{At, Field, Hook, Kind, Match, Side, Statement};
use crate::nft::maps::Map;
use tortie_engine::policy::{Direction, HostServices};

const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Linux's `NF_IP_PRI_*`: before conntrack, before DNAT, DNAT, SNAT.
const RAW: i32 = -300;
const MANGLE: i32 = -150;
const DSTNAT: i32 = -100;
const SRCNAT: i32 = 100;

/// Before the filter chains of workloads.
const HOST_FORWARD: i32 = -4;

const TUNNEL: &str = "tunl0";

pub(super) fn base(base: Base, late: bool, frame: &Frame<'_>) -> Draft {
    // Next to the filter chains of other programs, which have priority 0.
    let (first, second) = if late { (1, 2) } else { (-2, -1) };
    let of_v3 = frame.globals.dialect == Dialect::V3;
    let (kind, at, priority) = match base {
        Base::RawPrerouting => (Kind::Filter, At::Prerouting, RAW),
        Base::RawOutput => (Kind::Filter, At::Output, RAW),
        Base::PreDnat => (Kind::Filter, At::Prerouting, MANGLE),
        Base::NatPrerouting => (Kind::Nat, At::Prerouting, DSTNAT),
        Base::NatOutput => (Kind::Nat, At::Output, DSTNAT),
        Base::NatPostrouting => (Kind::Nat, At::Postrouting, SRCNAT),
        Base::InputFrom => (Kind::Filter, At::Input, first),
        Base::InputToHost => (Kind::Filter, At::Input, second),
        Base::HostForwardFrom => (Kind::Filter, At::Forward, HOST_FORWARD),
        Base::HostForwardTo => (Kind::Filter, At::Forward, HOST_FORWARD + 1),
        Base::ForwardFrom => (Kind::Filter, At::Forward, first),
        Base::ForwardTo => (Kind::Filter, At::Forward, second),
        Base::Output => (Kind::Filter, At::Output, first),
    };
    let mut draft = Draft::hooked(Hook { kind, at, priority });
    match base {
        Base::RawPrerouting => {
            draft.rule(Vec::new(), Statement::Unmark(frame.pass() | frame.early()));
            goto_of_workloads(&mut draft, true, Fixed::RawWorkload, frame);
            skip_ipv6(&mut draft, frame);
            do_not_track_vxlan(&mut draft, Side::Dst, frame);
            draft.look_up(Field::InInterface, Map::RawHostIn);
        }
        Base::RawOutput => {
            draft.rule(Vec::new(), Statement::Unmark(frame.pass() | frame.early()));
            skip_ipv6(&mut draft, frame);
            do_not_track_vxlan(&mut draft, Side::Src, frame);
            draft.look_up(Field::OutInterface, Map::RawHostOut);
        }
        Base::PreDnat => {
            draft.rule(vec![Match::Established], Statement::Accept);
            draft.rule(vec![Match::Marked(frame.early())], Statement::Accept);
            accept_workloads(&mut draft, true, frame);
            skip_ipv6(&mut draft, frame);
            draft.look_up(Field::InInterface, Map::PreDnatHost);
            if let Some(host) = frame.all_interfaces.filter(|host| !host.pre_dnat.is_empty()) {
                let (chains, direction) = (host.pre_dnat.clone(), Direction::Inbound);
                draft.goto(Vec::new(), Node::Early { chains, usage: Usage::PreDnat, direction });
            }
        }
        Base::NatPrerouting | Base::NatOutput => {
            for v4 in frame.families() {
                let key = vec![Field::Addr(Side::Dst)];
                let statement = Statement::DestinationNat { v4: *v4, key, map: Map::Dnat { v4: *v4 }.name() };
                draft.rule(vec![family(*v4)], statement);
            }
            if matches!(base, Base::NatPrerouting) {
                metadata(&mut draft, frame);
            }
        }
        Base::NatPostrouting => postrouting(&mut draft, frame),
        Base::InputFrom => {
            draft.rule(vec![Match::Marked(frame.early())], Statement::Accept);
            if frame.globals.ipip_hosts.is_some() {
                let ipip = || vec![family(true), Match::Protocol { not: false, number: IPIP }];
                let mut resolved_profiles = ipip();
                resolved_profiles
                    .extend([in_set(Side::Src, false, Map::IpipHosts), Match::Local { side: Side::Dst }]);
                draft.rule(resolved_profiles, Statement::Accept);
                draft.goto(ipip(), Node::Denied(Denied::Ipip));
            }
            for (v4, packets) in vxlan(frame) {
                let mut known = packets.clone();
                known.extend([
                    in_set(Side::Src, false, Map::VxlanHosts { v4 }),
                    Match::Local { side: Side::Dst },
                ]);
                draft.rule(known, Statement::Accept);
                draft.goto(packets, Node::Denied(Denied::Vxlan));
            }
            goto_of_workloads(&mut draft, true, Fixed::WorkloadToHost, frame);
            skip_ipv6(&mut draft, frame);
            discovery(&mut draft, frame);
            draft.look_up(Field::InInterface, Map::HostIn);
            host_of_all(&mut draft, Direction::Inbound, frame);
        }
        Base::InputToHost => {
            if frame.globals.to_host == HostAction::Drop {
                goto_of_workloads(&mut draft, true, Fixed::ToHost, frame);
            }
        }
        Base::HostForwardFrom => {
            draft.rule(vec![Match::Marked(frame.early())], Statement::Accept);
            skip_ipv6(&mut draft, frame);
            draft.look_up(Field::InInterface, Map::HostForwardIn);
            forward_of_all(&mut draft, Direction::Inbound, frame);
        }
        Base::HostForwardTo => {
            skip_ipv6(&mut draft, frame);
            draft.look_up(Field::OutInterface, Map::HostForwardOut);
            forward_of_all(&mut draft, Direction::Outbound, frame);
        }
        Base::ForwardFrom if of_v3 => {
            goto_of_workloads(&mut draft, true, Fixed::FromWorkload, frame);
        }
        Base::ForwardTo if of_v3 => goto_of_workloads(&mut draft, false, Fixed::ToWorkload, frame),
        Base::ForwardFrom => {
            goto_of_workloads(&mut draft, true, Fixed::FromWorkload, frame);
            accept_workloads(&mut draft, false, frame);
            draft.rule(vec![Match::Marked(frame.early())], Statement::Accept);
            skip_ipv6(&mut draft, frame);
            draft.look_up(Field::InInterface, Map::HostIn);
        }
        Base::ForwardTo => {
            goto_of_workloads(&mut draft, false, Fixed::ToWorkload, frame);
            accept_workloads(&mut draft, true, frame);
            skip_ipv6(&mut draft, frame);
            draft.look_up(Field::OutInterface, Map::HostOut);
        }
        Base::Output => {
            draft.look_up(Field::OutInterface, Map::Inactive);
            accept_workloads(&mut draft, false, frame);
            if frame.globals.ipip_hosts.is_some() {
                let resolved_profiles = vec![
                    family(true),
                    Match::Protocol { not: false, number: IPIP },
                    in_set(Side::Dst, false, Map::IpipHosts),
                    Match::Local { side: Side::Src },
                ];
                draft.rule(resolved_profiles, Statement::Accept);
            }
            for (v4, mut packets) in vxlan(frame) {
                packets.extend([
                    in_set(Side::Dst, false, Map::VxlanHosts { v4 }),
                    Match::Local { side: Side::Src },
                ]);
                draft.rule(packets, Statement::Accept);
            }
            draft.rule(vec![Match::Marked(frame.early())], Statement::Accept);
            skip_ipv6(&mut draft, frame);
            discovery(&mut draft, frame);
            draft.look_up(Field::OutInterface, Map::HostOut);
            host_of_all(&mut draft, Direction::Outbound, frame);
        }
    }
    draft
}

/// Continues with the host endpoint of all interfaces, if there is one.
fn host_of_all(draft: &mut Draft, direction: Direction, frame: &Frame<'_>) {
    let Some(host) = frame.all_interfaces else { return };
    let of = if direction == Direction::Inbound { &host.inbound } else { &host.outbound };
    draft.goto(Vec::new(), Node::Host { of: of.clone(), direction });
}

/// Continues with the tiers for forwarded packets of the host endpoint of all interfaces, if there is one.
fn forward_of_all(draft: &mut Draft, direction: Direction, frame: &Frame<'_>) {
    let Some(host) = frame.all_interfaces else { return };
    let tiers = if direction == Direction::Inbound { &host.forward_inbound } else { &host.forward_outbound };
    draft.goto(Vec::new(), Node::Tiers { tiers: tiers.clone(), direction });
}

pub(super) fn fixed(fixed: Fixed, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    match fixed {
        Fixed::RawWorkload => {
            drop_ipv6(&mut draft, frame);
            // Workload interfaces have `route_localnet` for rules of the host that redirect to loopback;
            // those rules come later.
            let net = Cidr::v4(Ipv4Addr::LOCALHOST, 8);
            let loopback = vec![family(true), Match::InNet { side: Side::Dst, not: false, net }];
            draft.goto(loopback, Node::Denied(Denied::Loopback));
            draft.look_up(Field::InInterface, Map::RawInterfaces);
            draft.goto(Vec::new(), Node::Denied(Denied::UnknownInterface));
        }
        Fixed::AntiSpoof => anti_spoof(&mut draft, frame),
        Fixed::WorkloadToHost => {
            neighbours(&mut draft, frame);
            services(&mut draft, frame);
            stages::workload(&mut draft, Direction::Outbound);
        }
        Fixed::ToHost => {
            draft.rule(vec![Match::Established], Statement::Accept);
            neighbours(&mut draft, frame);
            services(&mut draft, frame);
            draft.goto(Vec::new(), Node::Denied(Denied::ToHost));
        }
        Fixed::FromWorkload => {
            if frame.globals.vxlan.as_ref().is_some_and(|vxlan| !vxlan.from_workloads) {
                for (_, packets) in vxlan(frame) {
                    draft.goto(packets, Node::Denied(Denied::VxlanOfWorkload));
                }
            }
            stages::workload(&mut draft, Direction::Outbound);
        }
        Fixed::ToWorkload => {
            drop_ipv6(&mut draft, frame);
            stages::workload(&mut draft, Direction::Inbound);
        }
        Fixed::Failsafe(ports) => return stages::failsafe(ports, frame),
    }
    draft
}

/// Drops packets whose source address is not the workload's own. Neighbour discovery and duplicate address
/// detection need addresses that were not allocated (RFC 4861, RFC 4862).
fn anti_spoof(draft: &mut Draft, frame: &Frame<'_>) {
    for v4 in frame.families() {
        let own = |map: Map| Match::InSet {
            not: false,
            key: vec![Field::InInterface, Field::Addr(Side::Src)],
            set: map.name(),
        };
        let wide = if *v4 { frame.wide[0] } else { frame.wide[1] };
        draft.rule(vec![family(*v4), own(Map::From { v4: *v4 })], Statement::Accept);
        if wide {
            draft.rule(vec![family(*v4), own(Map::FromNets { v4: *v4 })], Statement::Accept);
        }
        if !v4 {
            for net in [
                Cidr::v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
                Cidr::host(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            ] {
                let from = Match::InNet { side: Side::Src, not: false, net };
                draft.rule(vec![family(false), from], Statement::Accept);
            }
        }
    }
    if frame.globals.services.is_some() {
        // A workload without an address asks for one.
        let nobody = Cidr::host(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let mut request = ports(true, UDP, HostServices::DHCP[0]);
        request.push(Match::InNet { side: Side::Src, not: false, net: nobody });
        draft.rule(request, Statement::Accept);
    }
    draft.goto(Vec::new(), Node::Denied(Denied::Spoofed));
}

/// Returns the matches of packets of a protocol from one port to another.
fn ports(v4: bool, protocol: u8, (from, to): (u16, u16)) -> Vec<Match> {
    let mut matches = to_port(v4, protocol, to);
    let ranges = PortRange::new(from, from).into_iter().collect();
    matches.push(Match::Port { side: Side::Src, not: false, ranges });
    matches
}

/// Returns the matches of packets of a protocol to a port.
fn to_port(v4: bool, protocol: u8, to: u16) -> Vec<Match> {
    let ranges = PortRange::new(to, to).into_iter().collect();
    vec![
        family(v4),
        Match::Protocol { not: false, number: protocol },
        Match::Port { side: Side::Dst, not: false, ranges },
    ]
}

/// Accepts packets of workloads to the services of the host.
fn services(draft: &mut Draft, frame: &Frame<'_>) {
    let Some(services) = &frame.globals.services else { return };
    for v4 in frame.families() {
        let [dhcp_v4, dhcp_v6] = HostServices::DHCP;
        draft.rule(ports(*v4, UDP, if *v4 { dhcp_v4 } else { dhcp_v6 }), Statement::Accept);
        draft.rule(to_port(*v4, UDP, HostServices::DNS), Statement::Accept);
    }
    if let Some((addr, port)) = services.metadata {
        let mut packets = to_port(true, TCP, port);
        packets.push(Match::InNet { side: Side::Dst, not: false, net: Cidr::host(addr.into()) });
        draft.rule(packets, Statement::Accept);
    }
}

/// Translates the address at which workloads expect OpenStack's metadata.
fn metadata(draft: &mut Draft, frame: &Frame<'_>) {
    let metadata = frame.globals.services.as_ref().and_then(|services| services.metadata);
    let Some((addr, port)) = metadata else { return };
    let (expected, at) = HostServices::METADATA;
    let mut packets = to_port(true, TCP, at);
    packets.push(Match::InNet { side: Side::Dst, not: false, net: Cidr::host(expected.into()) });
    draft.rule(packets, Statement::DestinationNatTo { addr: addr.into(), port });
}

fn postrouting(draft: &mut Draft, frame: &Frame<'_>) {
    for v4 in frame.families() {
        let key = vec![Field::Addr(Side::Src), Field::Addr(Side::Dst)];
        let statement = Statement::SourceNat { v4: *v4, key, map: Map::Hairpin { v4: *v4 }.name() };
        draft.rule(vec![family(*v4)], statement);
    }
    for v4 in frame.families() {
        let leaves = vec![
            family(*v4),
            in_set(Side::Src, false, Map::Masquerade { v4: *v4 }),
            in_set(Side::Dst, true, Map::Pools { v4: *v4 }),
        ];
        draft.rule(leaves, Statement::Masquerade);
    }
    if let Some(own) = frame.globals.tunnel_addr {
        masquerade_others(draft, TUNNEL, own.into());
    }
    for v4 in frame.families() {
        if let Some(own) = frame.globals.vxlan.as_ref().and_then(|vxlan| vxlan.addr(*v4)) {
            masquerade_others(draft, crate::vxlan::name(*v4), own);
        }
    }
}

/// Masquerades packets out of a tunnel device from local addresses other than its own, which no other host
/// would answer through the tunnel.
fn masquerade_others(draft: &mut Draft, device: &str, own: IpAddr) {
    let other = vec![
        family(own.is_ipv4()),
        Match::Interface { inbound: false, not: false, name: device.into() },
        Match::InNet { side: Side::Src, not: true, net: Cidr::host(own) },
        Match::Local { side: Side::Src },
    ];
    draft.rule(other, Statement::Masquerade);
}

/// Returns the matches of VXLAN packets for each family, `true` for IPv4, in which this host uses VXLAN.
fn vxlan(frame: &Frame<'_>) -> Vec<(bool, Vec<Match>)> {
    let Some(vxlan) = &frame.globals.vxlan else { return Vec::new() };
    let families = frame.families().iter().filter(|v4| vxlan.is_used(**v4));
    families.map(|v4| (*v4, to_port(*v4, UDP, vxlan.port))).collect()
}

/// Exempts VXLAN of the host from connection tracking, before untracked policy, which may accept: the source
/// port of each direction is another, so that replies belong to no connection.
fn do_not_track_vxlan(draft: &mut Draft, side: Side, frame: &Frame<'_>) {
    for (_, mut packets) in vxlan(frame) {
        packets.push(Match::Local { side });
        draft.rule(packets, Statement::NoTrack);
    }
}

/// Accepts multicast listener and neighbour discovery of workloads, without redirects and router
/// advertisements.
fn neighbours(draft: &mut Draft, frame: &Frame<'_>) {
    accept_types(draft, &[(130, 133), (135, 136)], frame);
}

/// Accepts multicast listener, router and neighbour discovery of the host itself, without which it is
/// unreachable (RFC 4890 4.4.1).
pub(super) fn discovery(draft: &mut Draft, frame: &Frame<'_>) {
    accept_types(draft, &[(130, 136), (143, 143)], frame);
}

fn accept_types(draft: &mut Draft, types: &[(u8, u8)], frame: &Frame<'_>) {
    for (first, last) in types.iter().copied().filter(|_| frame.globals.ipv6) {
        let types = vec![
            family(false),
            Match::Protocol { not: false, number: ICMPV6 },
            Match::IcmpTypes { first, last },
        ];
        draft.rule(types, Statement::Accept);
    }
}

/// Returns the matches of packets from or to workloads, one per interface prefix. Interface names have at
/// most 15 octets, so longer prefixes match none.
fn workloads<'a>(inbound: bool, frame: &Frame<'a>) -> impl Iterator<Item = Match> + use<'a> {
    let prefixes = frame.globals.interface_prefixes.iter().filter(|prefix| (1..=15).contains(&prefix.len()));
    prefixes.map(move |prefix| Match::InterfacePrefix { inbound, not: false, prefix: prefix.as_str().into() })
}

fn goto_of_workloads(draft: &mut Draft, inbound: bool, to: Fixed, frame: &Frame<'_>) {
    for interface in workloads(inbound, frame) {
        draft.goto(vec![interface], Node::Fixed(to));
    }
}

fn accept_workloads(draft: &mut Draft, inbound: bool, frame: &Frame<'_>) {
    for interface in workloads(inbound, frame) {
        draft.rule(vec![interface], Statement::Accept);
    }
}

fn skip_ipv6(draft: &mut Draft, frame: &Frame<'_>) {
    if !frame.globals.ipv6 {
        draft.rule(vec![family(false)], Statement::Accept);
    }
}

fn drop_ipv6(draft: &mut Draft, frame: &Frame<'_>) {
    if !frame.globals.ipv6 {
        draft.goto(vec![family(false)], Node::Denied(Denied::NoIpv6));
    }
}
