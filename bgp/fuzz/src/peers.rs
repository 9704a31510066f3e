//! Configuration of the `session` target: peers, ranges, OPENs, UPDATEs and policy, all derived from a few
//! octets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tortie_bgp::attr::{AsPath, Attributes, Edit};
use tortie_bgp::wire::{
    AddPath, Capabilities, Entry, Families, GracefulRestart, LongLived, Negotiated, Open, Role,
    UpdateTemplate, write_keepalive,
};
use tortie_bgp::{
    ANY_EXTERNAL, Cidr, Dial, Export, Family, GlobalConfig, Import, Multipath, PeerConfig, PeerView, Policy,
    PolicyHandle, RangeConfig, RouteView, RouterId,
};

const OURS: u32 = 64_512;

/// Policy that rejects, edits or withholds routes by prefix and number.
#[derive(Clone, Default)]
pub struct ByPrefix {
    pub rest: u8,
    /// Prefixes with a different number.
    pub some: BTreeMap<Cidr, u8>,
}

impl ByPrefix {
    fn number(&self, prefix: Cidr) -> u8 {
        let octet = match prefix.addr() {
            IpAddr::V4(a) => a.octets()[2],
            IpAddr::V6(a) => a.octets()[5],
        };
        octet ^ self.some.get(&prefix).unwrap_or(&self.rest)
    }

    pub fn handle(&self) -> PolicyHandle {
        PolicyHandle(Arc::new(self.clone()))
    }
}

impl Policy for ByPrefix {
    fn import(&self, _: &PeerView<'_>, prefix: Cidr, _: &Attributes) -> Import {
        match self.number(prefix) {
            n if n.is_multiple_of(7) => Import::Reject("seven"),
            n if n.is_multiple_of(5) => {
                Import::AcceptWith([Edit::LocalPref(u32::from(n))].into_iter().collect())
            }
            _ => Import::Accept,
        }
    }

    fn export(&self, _: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        match self.number(route.prefix) {
            n if n.is_multiple_of(3) => Export::withhold("three"),
            n if n.is_multiple_of(11) => {
                Export::announce("eleven").with_edits([Edit::MedAdd(u32::from(n))].into_iter().collect())
            }
            _ => Export::announce("open").with_communities([7], []),
        }
    }
}

pub fn address(peer: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + peer))
}

fn asn(peer: u8) -> u32 {
    if peer.is_multiple_of(2) { 64_496 + u32::from(peer) } else { OURS }
}

pub fn config(peer: u8, choice: u8) -> PeerConfig {
    let bit = |n: u8| choice & (1 << n) != 0;
    let mut c = PeerConfig::new(SocketAddr::new(address(peer), 179), asn(peer));
    c.families = if bit(0) { vec![Family::Ipv4Unicast] } else { Family::ALL.to_vec() };
    c.dial =
        [Dial::Now, Dial::Passive, Dial::After(Duration::from_secs(3)), Dial::Now][usize::from(peer % 4)];
    c.hold_time = Duration::from_secs(if bit(1) { 3 } else { 90 });
    c.local_v6 = Some(IpAddr::V6(0x2001_0db8_u128.rotate_right(32).into()));
    c.reflector_client = (bit(2) && peer == 1).then_some(9);
    c.allow_own_as = u8::from(bit(3));
    c.extended_messages = bit(4);
    c.add_path_receive = bit(5);
    c.add_path_send = if bit(5) { 3 } else { 0 };
    c.max_prefixes = bit(6).then(|| tortie_bgp::PrefixLimit::new(40));
    c.ebgp_policy = !bit(7);
    c.role = (peer == 2).then_some(Role::Customer);
    c.policy_class = u64::from(choice & 1);
    c.long_lived_restart_time = (peer % 2 == 1).then_some(Duration::from_secs(100));
    c
}

/// Returns a range that contains the addresses of unconfigured peers.
pub fn range(choice: u8) -> RangeConfig {
    let mut range = RangeConfig::new(Cidr::v4(Ipv4Addr::new(192, 0, 2, 0), 29), ANY_EXTERNAL);
    range.peer = config(0, choice);
    range.peer.asn = if choice & 1 == 0 { ANY_EXTERNAL } else { OURS };
    range.max_peers = u32::from(choice % 4);
    range
}

pub fn greeting(peer: u8, choice: u8) -> Vec<u8> {
    let bit = |n: u8| choice & (1 << n) != 0;
    let both = AddPath { receive: bit(5), send: bit(5) };
    let open = Open {
        asn: asn(peer),
        hold_time: if bit(1) { 3 } else { 180 },
        router_id: RouterId(0xc000_0201 + u32::from(peer)),
        capabilities: Capabilities {
            multiprotocol: !bit(0),
            families: Families::ALL,
            as4: (!bit(2)).then_some(asn(peer)),
            route_refresh: true,
            enhanced_refresh: bit(3),
            extended_messages: bit(4),
            ext_nexthop: bit(3),
            graceful_restart: bit(6).then(|| GracefulRestart {
                restarted: bit(7),
                notification: bit(4),
                time: 30,
                families: Family::ALL.into_iter().map(|f| (f, bit(7))).collect(),
            }),
            long_lived: (bit(3) && bit(6)).then(|| {
                let family = |family| LongLived { family, forwarding: bit(7), time: 50 };
                Family::ALL.into_iter().map(family).collect()
            }),
            add_paths: [both; 2],
            role: (peer == 2).then_some(Role::Provider),
            ..Capabilities::default()
        },
    };
    let mut out = Vec::new();
    open.write(&mut out);
    write_keepalive(&mut out);
    out
}

pub fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend_from_slice(&u16::try_from(19 + body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

pub fn global(choice: u8) -> GlobalConfig {
    let restarting = (choice & 1 != 0).then(|| Family::ALL.to_vec());
    let multipath = Multipath { max: (choice & 2 != 0).then_some(1), relax: choice & 4 == 0 };
    GlobalConfig { restarting, multipath, ..GlobalConfig::new(OURS, RouterId(1)) }
}

pub fn prefix(octet: u8) -> Cidr {
    let text = if octet & 1 == 0 { format!("10.0.{octet}.0/24") } else { format!("2001:db8:{octet:x}::/48") };
    text.parse().expect("a prefix")
}

/// Encodes UPDATEs of a peer for these prefixes: withdrawals, or announcements with attributes that affect
/// the decision.
pub fn said(session: &Negotiated, asn: u32, prefixes: &[u8], what: u8) -> Vec<u8> {
    let mut attributes = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, what & 7)));
    let path = [asn, 65_001, if what & 8 == 0 { 65_002 } else { OURS }];
    let len = 2 + usize::from(what >> 5 & 1);
    let path = if session.ebgp { &path[..len] } else { &path[1..len] };
    attributes.as_path = AsPath::from_sequence(path);
    attributes.med = (what & 16 != 0).then_some(u32::from(what));
    attributes.local_pref = (!session.ebgp).then_some(100 + u32::from(what & 1));
    // No community, NO_EXPORT, NO_ADVERTISE, GRACEFUL_SHUTDOWN, LLGR_STALE, NO_LLGR.
    let known = [0, 0xffff_ff01, 0xffff_ff02, 0xffff_0000, 0xffff_0006, 0xffff_0007];
    attributes.communities =
        known.get(usize::from(what >> 3 & 7)).filter(|c| **c > 0).copied().into_iter().collect();
    let mut out = Vec::new();
    for withdraw in [false, true] {
        for family in session.families.iter() {
            let template = if withdraw {
                UpdateTemplate::withdrawal(family, session)
            } else {
                if family == Family::Ipv6Unicast {
                    attributes.next_hop =
                        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, (what & 7).into()).into();
                }
                UpdateTemplate::new(&attributes, family, session).expect("few attributes")
            };
            // The top bit of a prefix octet selects withdrawal, the next bit is the path identifier.
            let these = prefixes.iter().filter(|p| (**p & 128 != 0) == withdraw);
            let these = these.map(|p| (prefix(p & 63), u32::from(p >> 6 & 1)));
            let these = these.filter(|(p, _)| Family::of(p.addr()) == family);
            match family {
                Family::Ipv4Unicast => template.write(&mut out, these.map(|(p, id)| v4(p, id)), |_| ()),
                Family::Ipv6Unicast => template.write(&mut out, these.map(|(p, id)| v6(p, id)), |_| ()),
            }
        }
    }
    out
}

fn v4(prefix: Cidr, path_id: u32) -> Entry<u32> {
    let IpAddr::V4(a) = prefix.addr() else { unreachable!("an IPv4 prefix") };
    Entry { prefix: (a.into(), prefix.len()), path_id }
}

fn v6(prefix: Cidr, path_id: u32) -> Entry<u128> {
    let IpAddr::V6(a) = prefix.addr() else { unreachable!("an IPv6 prefix") };
    Entry { prefix: (a.into(), prefix.len()), path_id }
}
