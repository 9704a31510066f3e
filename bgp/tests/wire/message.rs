//! Raw messages, written by hand so that no encoder of this crate determines the expected result.

use tortie_bgp::wire::{Families, Frame, MessageKind, Negotiated, Notification, Open, RouteRefresh, Update};

/// Returns parameters of an eBGP session with four-octet AS numbers and both families.
pub(crate) fn ebgp() -> Negotiated {
    Negotiated {
        ebgp: true,
        as4: true,
        extended: false,
        families: Families::ALL,
        ext_nexthop: false,
        add_path_receive: Families::NONE,
        add_path_send: Families::NONE,
        reject_as_sets: true,
    }
}

/// As [`ebgp`], for an iBGP session.
pub(crate) fn ibgp() -> Negotiated {
    Negotiated { ebgp: false, ..ebgp() }
}

/// As [`ebgp`], with a two-octet peer.
pub(crate) fn two_octets() -> Negotiated {
    Negotiated { as4: false, ..ebgp() }
}

pub(crate) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend(u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    message.push(kind);
    message.extend(body);
    message
}

/// Encodes one attribute, with a two-octet length if the flags have Extended Length.
pub(crate) fn attr(flags: u8, code: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![flags, code];
    if flags & 0x10 != 0 {
        out.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
    } else {
        out.push(u8::try_from(value.len()).unwrap());
    }
    out.extend(value);
    out
}

pub(crate) fn origin() -> Vec<u8> {
    attr(0x40, 1, &[0])
}

/// Encodes an AS_PATH with one AS_SEQUENCE: 64496.
pub(crate) fn as_path() -> Vec<u8> {
    attr(0x40, 2, &[2, 1, 0, 0, 0xfb, 0xf0])
}

pub(crate) fn next_hop() -> Vec<u8> {
    attr(0x40, 3, &[192, 0, 2, 1])
}

/// Encodes the three mandatory attributes.
pub(crate) fn mandatory() -> Vec<u8> {
    [origin(), as_path(), next_hop()].concat()
}

/// NLRI field with 198.51.100.0/24.
pub(crate) const NLRI: [u8; 4] = [24, 198, 51, 100];

/// Next hop 2001:db8::1.
pub(crate) const GLOBAL: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Next hop fe80::1.
pub(crate) const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Returns the value of MP_REACH_NLRI for IPv6 unicast with 2001:db8:1::/48.
pub(crate) fn mp_reach_value(next_hop: &[u8]) -> Vec<u8> {
    let mut value = vec![0, 2, 1, u8::try_from(next_hop.len()).unwrap()];
    value.extend(next_hop);
    value.extend([0, 48, 0x20, 1, 0xd, 0xb8, 0, 1]);
    value
}

pub(crate) fn mp_reach() -> Vec<u8> {
    attr(0x80, 14, &mp_reach_value(&GLOBAL))
}

pub(crate) fn body(withdrawn: &[u8], attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(u16::try_from(withdrawn.len()).unwrap().to_be_bytes());
    body.extend(withdrawn);
    body.extend(u16::try_from(attributes.len()).unwrap().to_be_bytes());
    body.extend(attributes);
    body.extend(nlri);
    body
}

/// Returns an UPDATE with the mandatory attributes, `extra` and 198.51.100.0/24.
pub(crate) fn with(extra: &[u8]) -> Vec<u8> {
    body(&[], &[mandatory(), extra.to_vec()].concat(), &NLRI)
}

/// Outcome of a received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Reset(u8, u8),
    /// Treat-as-withdraw (RFC 7606), with the withdrawn prefixes.
    Withdraw(Vec<String>),
    /// Attribute discard, with the type codes; the routes are kept.
    Discard(Vec<u8>),
    /// No error.
    Valid,
    /// Well-formed and without effect.
    Ignored,
    /// A NOTIFICATION: the session is closed.
    Closed(Notification),
}

/// Returns the outcome of a whole message, through framing and the decoder of its type.
pub(crate) fn outcome(message: &[u8], session: &Negotiated) -> Outcome {
    let frame = match Frame::next(message, session.extended) {
        Ok(frame) => frame.unwrap(),
        Err(n) => return Outcome::Reset(n.code.0, n.code.1),
    };
    let reset = |n: Notification| Outcome::Reset(n.code.0, n.code.1);
    match frame.kind {
        MessageKind::Open => Open::decode(frame.body).map_or_else(reset, |_| Outcome::Valid),
        MessageKind::Update => update_outcome(frame.body, session),
        MessageKind::Notification => Outcome::Closed(Notification::decode(frame.body)),
        MessageKind::Keepalive => Outcome::Valid,
        MessageKind::RouteRefresh => RouteRefresh::decode(frame.body, true)
            .map_or_else(reset, |r| if r.is_some() { Outcome::Valid } else { Outcome::Ignored }),
    }
}

/// Returns the outcome of the body of an UPDATE.
pub(crate) fn update_outcome(body: &[u8], session: &Negotiated) -> Outcome {
    match Update::decode(body, session) {
        Err(n) => Outcome::Reset(n.code.0, n.code.1),
        Ok(u) if u.malformed.is_some() => {
            assert!(u.reach.is_empty(), "announced in spite of {:?}", u.malformed);
            let all = u.withdrawn.iter().flat_map(|n| n.cidrs()).map(|c| c.to_string());
            Outcome::Withdraw(all.collect())
        }
        Ok(u) if !u.discarded.is_empty() => {
            Outcome::Discard(u.discarded.iter().map(|p| p.attribute).collect())
        }
        Ok(u) if u.reach.is_empty() && u.withdrawn.is_empty() && u.end_of_rib.is_none() => Outcome::Ignored,
        Ok(_) => Outcome::Valid,
    }
}
