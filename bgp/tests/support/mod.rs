//! Helpers of tests and benches: configurations, a policy, and hand-written messages of peers. Included by
//! path, by the unit tests too; nothing here drives a speaker.

#![allow(dead_code, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::wire::{Capabilities, Entry, Families, Negotiated, Open, UpdateTemplate, write_keepalive};
use tortie_bgp::{
    Export, Family, GlobalConfig, Import, Origination, PeerConfig, PeerView, Policy, PolicyHandle, RouteView,
    RouterId,
};
use tortie_net::Cidr;

/// Policy that accepts and announces everything.
pub(crate) struct TakeAll;

impl Policy for TakeAll {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn imports_alike(&self, _: &PeerView<'_>, _: &Attributes) -> bool {
        true
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        yes("open")
    }
}

pub(crate) fn yes(gate: &'static str) -> Export {
    Export::announce(gate)
}

pub(crate) fn no(gate: &'static str) -> Export {
    Export::withhold(gate)
}

pub(crate) fn policy(policy: impl Policy + 'static) -> PolicyHandle {
    PolicyHandle(Arc::new(policy))
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Returns a global configuration with the default restart time, for a first start.
pub(crate) fn global(asn: u32, id: u32) -> GlobalConfig {
    GlobalConfig::new(asn, RouterId(id))
}

/// Returns a peer of one family that is dialled at once.
pub(crate) fn peer(remote: IpAddr, asn: u32) -> PeerConfig {
    let mut config = PeerConfig::new(SocketAddr::new(remote, 179), asn);
    config.ebgp_policy = true;
    config.name = format!("peer-{remote}").into();
    config
}

/// Returns a local route.
pub(crate) fn route() -> Origination {
    Origination { kind: 1, ..Origination::default() }
}

/// Returns negotiated parameters with IPv4, four-octet AS numbers and nothing else.
pub(crate) fn session(ebgp: bool) -> Negotiated {
    Negotiated {
        ebgp,
        as4: true,
        extended: false,
        families: Families::NONE.with(Family::Ipv4Unicast),
        ext_nexthop: false,
        add_path_receive: Families::NONE,
        add_path_send: Families::NONE,
        reject_as_sets: false,
    }
}

/// Returns the OPEN of a peer that leads to [`session`].
pub(crate) fn open(asn: u32, id: u32) -> Open {
    Open {
        asn,
        hold_time: 90,
        router_id: RouterId(id),
        capabilities: Capabilities {
            multiprotocol: true,
            families: Families::NONE.with(Family::Ipv4Unicast),
            as4: Some(asn),
            ..Capabilities::default()
        },
    }
}

/// Returns all messages of such a peer until the session is up.
pub(crate) fn greeting(open: &Open) -> Vec<u8> {
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    write_keepalive(&mut bytes);
    bytes
}

/// Returns the mandatory attributes of a route.
pub(crate) fn attributes(next_hop: IpAddr, path: &[u32]) -> Attributes {
    let mut a = Attributes::new(next_hop);
    a.as_path = AsPath::from_sequence(path);
    a
}

/// Appends announcements of these IPv4 prefixes.
pub(crate) fn announce(
    out: &mut Vec<u8>,
    session: &Negotiated,
    attributes: &Attributes,
    prefixes: impl IntoIterator<Item = (u32, u8)>,
) {
    let template = UpdateTemplate::new(attributes, Family::Ipv4Unicast, session).unwrap();
    write(out, &template, prefixes);
}

/// Appends withdrawals of these IPv4 prefixes.
pub(crate) fn withdraw(
    out: &mut Vec<u8>,
    session: &Negotiated,
    prefixes: impl IntoIterator<Item = (u32, u8)>,
) {
    write(out, &UpdateTemplate::withdrawal(Family::Ipv4Unicast, session), prefixes);
}

fn write(out: &mut Vec<u8>, template: &UpdateTemplate, prefixes: impl IntoIterator<Item = (u32, u8)>) {
    template.write(out, prefixes.into_iter().map(|prefix| Entry { prefix, path_id: 0 }), |_| ());
}

/// SplitMix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `n` - 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }

    /// Returns a number from 0 to `n` - 1.
    pub(crate) fn micros(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
