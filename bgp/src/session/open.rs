//! OPEN messages: contents of ours, and checks of the peer's (RFC 4271 6.2, RFC 6286, RFC 4724).

use std::net::IpAddr;
use std::time::Duration;

use super::capability_fallback::CapabilityFallback;
use crate::api::{ANY_EXTERNAL, GlobalConfig, PeerConfig};
use crate::role;
use crate::types::Family;
use crate::wire::{
    AddPath, Capabilities, ErrorCode, Families, GracefulRestart, LongLived, Negotiated, Notification, Open,
};

/// Returns the local AS number towards a peer.
pub(crate) fn local_asn(global: &GlobalConfig, peer: &PeerConfig) -> u32 {
    peer.local_asn.unwrap_or(global.asn)
}

/// Flags of the graceful restart capability in our OPEN (RFC 4724 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RestartBits {
    /// R bit: first session with the peer after our restart.
    pub(crate) restarted: bool,
    /// The peer may still have routes from before our start.
    pub(crate) starting: bool,
    /// The peer had a session since our start, so forwarding has not been interrupted.
    pub(crate) was_up: bool,
}

/// Builds the OPEN of a connection.
pub(crate) fn ours(
    global: &GlobalConfig,
    peer: &PeerConfig,
    bits: RestartBits,
    fallback: &CapabilityFallback,
) -> Open {
    let asn = local_asn(global, peer);
    let families: Families = peer.families.iter().copied().collect();
    let kept = global.restarting.as_deref().unwrap_or_default();
    // The F bit is set only if forwarding state exists: preserved over our restart, or never lost (RFC 4724
    // 3).
    let forwarding = |f: Family| {
        bits.was_up
            || (bits.restarted && kept.contains(&f))
            || (bits.starting && global.forwarding.contains(&f))
    };
    let seconds = |d: Duration| u16::try_from(d.as_secs()).unwrap_or(u16::MAX);
    let long_lived = |time: Duration| {
        let time = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        families.iter().map(|f| LongLived { family: f, forwarding: forwarding(f), time }).collect()
    };
    let restart_time = peer.restart_time.unwrap_or(global.restart_time);
    let add_path = AddPath { receive: peer.add_path_receive, send: peer.add_path_send > 0 };
    let mut capabilities = Capabilities {
        multiprotocol: true,
        families,
        as4: Some(asn),
        route_refresh: true,
        enhanced_refresh: true,
        extended_messages: peer.extended_messages,
        ext_nexthop: families.contains(Family::Ipv4Unicast),
        role: peer.role.filter(|_| asn != peer.asn),
        graceful_restart: Some(GracefulRestart {
            restarted: bits.restarted,
            notification: true,
            time: seconds(restart_time).min(4095),
            families: families.iter().map(|f| (f, forwarding(f))).collect(),
        }),
        add_paths: Family::ALL.map(|f| if families.contains(f) { add_path } else { AddPath::default() }),
        long_lived: peer.long_lived_restart_time.map(long_lived),
        ..Capabilities::default()
    };
    fallback.apply(&mut capabilities, peer.role_strict);
    Open { asn, hold_time: seconds(peer.hold_time), router_id: global.router_id, capabilities }
}

/// Parameters of a session, derived from both OPENs and the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Agreed {
    pub(crate) negotiated: Negotiated,
    pub(crate) hold: Duration,
    pub(crate) keepalive: Duration,
}

/// Checks the OPEN of the peer and returns the parameters of the session.
///
/// # Errors
/// The NOTIFICATION to send.
pub(crate) fn negotiate(ours: &Open, theirs: &Open, peer: &PeerConfig) -> Result<Agreed, Notification> {
    let fits = match peer.asn {
        ANY_EXTERNAL => theirs.asn != ours.asn,
        asn => theirs.asn == asn,
    };
    if !fits {
        let short = u16::try_from(theirs.asn).unwrap_or(23456);
        return Err(Notification::with_data(ErrorCode::BAD_PEER_AS, &short.to_be_bytes()));
    }
    // RFC 6286 2.1: BGP identifiers are unique within an AS.
    if theirs.router_id == ours.router_id && theirs.asn == ours.asn {
        return Err(Notification::with_data(ErrorCode::BAD_IDENTIFIER, &theirs.router_id.0.to_be_bytes()));
    }
    // The configured role counts, even if the capability fallback omitted it from our OPEN.
    let role = peer.role.filter(|_| theirs.asn != ours.asn);
    role::check(role, theirs.capabilities.role, peer.role_strict)?;
    let negotiated = Negotiated::between(ours, theirs);
    if negotiated.families.is_empty() {
        // RFC 5492 5: the data lists the missing capabilities in their OPEN encoding.
        let missing: Vec<u8> = ours
            .capabilities
            .carried_families()
            .iter()
            .flat_map(|f| {
                let [high, low] = f.afi().to_be_bytes();
                [1, 4, high, low, 0, f.safi()]
            })
            .collect();
        return Err(Notification::with_data(ErrorCode::UNSUPPORTED_CAPABILITY, &missing));
    }
    let hold = Duration::from_secs(u64::from(ours.hold_time.min(theirs.hold_time)));
    let keepalive = match peer.keepalive {
        _ if hold.is_zero() => Duration::ZERO,
        // An interval too long to keep the session up is reduced to a third of the hold time.
        Some(wanted) if !wanted.is_zero() => wanted.min(hold / 3),
        _ => hold / 3,
    };
    Ok(Agreed { negotiated, hold, keepalive })
}

/// Returns our next hop for routes of `family` on a session with local address `local` (RFC 4271 5.1.3, RFC
/// 2545 3, RFC 8950 3). Order: the local address, if of that family, because the peer reaches it; the
/// configured address; for IPv4, with RFC 8950 negotiated, the IPv6 local address. A link-local address is
/// used last, because no router but the peer can reach it.
pub(crate) fn own_next_hop(
    peer: &PeerConfig,
    local: IpAddr,
    family: Family,
    ext_nexthop: bool,
) -> Option<IpAddr> {
    let local = local.to_canonical();
    let is_of_family = |address: &IpAddr| Family::of(*address) == family;
    let of_link = matches!(local, IpAddr::V6(local) if local.is_unicast_link_local());
    let of_session = Some(local).filter(is_of_family);
    let configured = match family {
        Family::Ipv4Unicast => peer.local_v4,
        Family::Ipv6Unicast => peer.local_v6,
    };
    of_session
        .filter(|_| !of_link)
        .or(configured.filter(is_of_family))
        .or(of_session)
        .or_else(|| Some(local).filter(|_| ext_nexthop && family == Family::Ipv4Unicast))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Local address, family, RFC 8950 negotiated, `local_v4`, `local_v6`, expected next hop.
    type Row = (&'static str, Family, bool, Option<&'static str>, Option<&'static str>, Option<&'static str>);

    #[test]
    fn the_own_next_hop_is_an_address_that_the_peer_reaches() {
        use Family::{Ipv4Unicast as V4, Ipv6Unicast as V6};
        let (v4, v6) = (Some("192.0.2.1"), Some("2001:db8::1"));
        let table: [Row; 16] = [
            // The local address of the session differs from the node's: second uplink, loopback, range.
            ("10.1.0.1", V4, false, v4, v6, Some("10.1.0.1")),
            ("fd00::1", V6, true, v4, v6, Some("fd00::1")),
            ("::ffff:10.1.0.1", V4, false, v4, v6, Some("10.1.0.1")),
            ("192.0.2.1", V4, false, v4, v6, Some("192.0.2.1")),
            ("10.1.0.1", V4, false, None, None, Some("10.1.0.1")),
            // Family other than that of the session: the configured address, if any.
            ("10.1.0.1", V6, false, v4, v6, Some("2001:db8::1")),
            ("10.1.0.1", V6, false, v4, None, None),
            ("fd00::1", V4, true, v4, v6, Some("192.0.2.1")),
            ("fd00::1", V4, false, v4, v6, Some("192.0.2.1")),
            ("fd00::1", V4, true, None, v6, Some("fd00::1")),
            ("fd00::1", V4, false, None, v6, None),
            // Unnumbered: without configured addresses, the link-local address is the next hop of both
            // families.
            ("fe80::1", V4, true, None, None, Some("fe80::1")),
            ("fe80::1", V4, false, None, None, None),
            ("fe80::1", V6, true, None, None, Some("fe80::1")),
            ("fe80::1", V6, true, v4, v6, Some("2001:db8::1")),
            // A configured address of the wrong family is ignored.
            ("fd00::1", V4, false, v6, v6, None),
        ];
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (local, family, ext, local_v4, local_v6, want) in table {
            let mut peer = PeerConfig::new("192.0.2.9:179".parse().unwrap(), 64512);
            (peer.local_v4, peer.local_v6) = (local_v4.map(ip), local_v6.map(ip));
            // The configured source address of dialling has no effect on an incoming connection.
            for dialled_from in [None, local_v4.filter(|_| local.contains('.')).map(ip)] {
                peer.local = dialled_from;
                let own = own_next_hop(&peer, ip(local), family, ext);
                assert_eq!(own, want.map(ip), "{local} {family:?} {ext} {local_v4:?} {local_v6:?}");
            }
        }
    }
}
