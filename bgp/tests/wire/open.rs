//! Tests of framing, OPEN, NOTIFICATION and ROUTE-REFRESH: the codes of RFC 4271 section 6, and messages of
//! real peers.

use tortie_bgp::wire::{
    AddPath, Capabilities, ErrorCode, Families, Frame, GracefulRestart, MessageKind, Negotiated,
    Notification, Open, RefreshKind, Role, RouteRefresh, write_end_of_rib, write_keepalive,
};
use tortie_bgp::{Family, RouterId};

use crate::message::*;

fn code(message: &[u8], extended: bool) -> (u8, u8, Vec<u8>) {
    let n = Frame::next(message, extended).unwrap_err();
    (n.code.0, n.code.1, n.data.to_vec())
}

#[test]
fn header_errors() {
    let mut marker = framed(4, &[]);
    marker[7] = 0;
    assert_eq!(code(&marker, false), (1, 1, vec![]));
    assert_eq!(code(b"SSH-2.0", false), (1, 1, vec![]), "judged before a whole header is there");
    assert_eq!(code(&framed(6, &[]), false), (1, 3, vec![6]));
    assert_eq!(code(&framed(0, &[]), false), (1, 3, vec![0]));
    for (kind, body) in [(1, 9), (2, 3), (3, 1), (4, 1), (5, 3)] {
        let len = u16::try_from(19 + body).unwrap().to_be_bytes().to_vec();
        assert_eq!(code(&framed(kind, &vec![0; body]), false), (1, 2, len), "type {kind}");
    }
    let mut short = framed(4, &[]);
    short[17] = 18;
    assert_eq!(code(&short, false), (1, 2, vec![0, 18]));
}

#[test]
fn lengths_with_and_without_extended_messages() {
    let fits = framed(2, &[0; 4096 - 19]);
    let long = framed(2, &[0; 4097 - 19]);
    assert_eq!(Frame::next(&fits, false).unwrap().unwrap().len, 4096);
    assert_eq!(code(&long, false), (1, 2, vec![0x10, 1]));
    assert_eq!(Frame::next(&long, true).unwrap().unwrap().len, 4097);
    let longest = framed(2, &vec![0; 65535 - 19]);
    assert_eq!(Frame::next(&longest, true).unwrap().unwrap().len, 65535);
    // OPEN and KEEPALIVE keep their limits (RFC 8654 4).
    assert_eq!(code(&framed(1, &[0; 4097 - 19]), true), (1, 2, vec![0x10, 1]));
    assert_eq!(code(&framed(4, &[0]), true), (1, 2, vec![0, 20]));
}

#[test]
fn incomplete_messages_wait_and_bad_headers_do_not() {
    let message = framed(2, &[0, 0, 0, 0]);
    for n in 0..message.len() {
        assert_eq!(Frame::next(&message[..n], false), Ok(None), "{n} octets");
    }
    assert!(Frame::next(&framed(6, &[0; 9])[..19], false).is_err());
    let two = [message.clone(), framed(4, &[])].concat();
    let first = Frame::next(&two, false).unwrap().unwrap();
    assert_eq!(first.kind, MessageKind::Update);
    assert_eq!(Frame::next(&two[first.len..], false).unwrap().unwrap().kind, MessageKind::Keepalive);
}

/// Encodes version, AS, hold time, identifier and parameters.
fn open(version: u8, asn: u16, hold: u16, id: [u8; 4], parameters: &[u8]) -> Vec<u8> {
    let [a, b] = asn.to_be_bytes();
    let [c, d] = hold.to_be_bytes();
    [&[version, a, b, c, d][..], &id, parameters].concat()
}

const ID: [u8; 4] = [192, 0, 2, 1];

#[test]
fn open_errors() {
    let error = |body: &[u8]| {
        let n = Open::decode(body).unwrap_err();
        (n.code.0, n.code.1, n.data.to_vec())
    };
    assert_eq!(error(&open(3, 64496, 90, ID, &[0])), (2, 1, vec![0, 4]));
    assert_eq!(error(&open(4, 0, 90, ID, &[0])).1, 2, "AS 0 (RFC 7607)");
    assert_eq!(error(&open(4, 23456, 90, ID, &[8, 2, 6, 65, 4, 0, 0, 0, 0])).1, 2, "AS 0 in the capability");
    assert_eq!(error(&open(4, 64496, 90, ID, &[8, 2, 6, 65, 4, 0, 1, 0, 0])).1, 2, "two different ASes");
    assert_eq!(error(&open(4, 64496, 90, [0; 4], &[0])), (2, 3, vec![0; 4]));
    assert_eq!(error(&open(4, 64496, 1, ID, &[0])), (2, 6, vec![0, 1]));
    assert_eq!(error(&open(4, 64496, 2, ID, &[0])), (2, 6, vec![0, 2]));
    assert_eq!(error(&open(4, 64496, 90, ID, &[3, 1, 1, 0])).1, 4, "authentication parameter");
    assert_eq!(error(&open(4, 64496, 90, ID, &[0, 1])).1, 0, "octets behind the parameters");
    assert_eq!(
        error(&open(4, 64496, 90, ID, &[2, 2, 0, 2, 0])).1,
        0,
        "a good parameter behind the parameters"
    );
    assert_eq!(error(&open(4, 64496, 90, ID, &[6, 2, 4, 9, 1, 3, 0])).1, 0, "capability header cut");
    let roles = [8, 2, 6, 9, 1, 3, 9, 1, 4];
    assert_eq!(error(&open(4, 64496, 90, ID, &roles)).1, 11, "two roles (RFC 9234 4.2)");
    for hold in [0, 3, u16::MAX] {
        assert_eq!(Open::decode(&open(4, 64496, hold, ID, &[0])).unwrap().hold_time, hold);
    }
}

#[test]
fn open_without_capabilities_carries_ipv4() {
    let open = Open::decode(&open(4, 64496, 90, ID, &[0])).unwrap();
    assert_eq!(open.asn, 64496);
    assert_eq!(open.capabilities.carried_families(), Families::NONE.with(Family::Ipv4Unicast));
    assert_eq!(Negotiated::between(&open, &open).families, Families::NONE.with(Family::Ipv4Unicast));
    // A multiprotocol capability for another family excludes IPv4.
    let evpn = Open::decode(&self::open(4, 64496, 90, ID, &[8, 2, 6, 1, 4, 0, 25, 0, 70])).unwrap();
    assert!(evpn.capabilities.carried_families().is_empty());
}

/// OPEN of FRR with default configuration: several parameters with one capability each, codes 2 and 128,
/// add-path, FQDN, GR.
#[test]
fn open_of_frr() {
    let parameters: &[&[u8]] = &[
        &[2, 6, 1, 4, 0, 1, 0, 1],
        &[2, 2, 128, 0],
        &[2, 2, 2, 0],
        &[2, 2, 70, 0],
        &[2, 6, 65, 4, 0, 0, 0xfd, 0xe9],
        &[2, 2, 6, 0],
        &[2, 6, 69, 4, 0, 1, 1, 1],
        &[2, 8, 73, 6, 4, b'l', b'e', b'a', b'f', 0],
        &[2, 4, 64, 2, 0x40, 120],
        &[2, 4, 75, 2, 1, b'x'],
    ];
    let list = parameters.concat();
    let all = [&[u8::try_from(list.len()).unwrap()][..], &list].concat();
    let open = Open::decode(&open(4, 65001, 180, ID, &all)).unwrap();
    let c = &open.capabilities;
    assert_eq!((open.asn, c.as4, open.hold_time), (65001, Some(65001), 180));
    assert!(c.route_refresh && c.enhanced_refresh && c.extended_messages && !c.ext_nexthop);
    assert_eq!(c.add_path(Family::Ipv4Unicast), AddPath { receive: true, send: false });
    assert_eq!(c.fqdn.as_ref().unwrap().host, "leaf");
    let restart = c.graceful_restart.as_ref().unwrap();
    assert!(restart.notification && !restart.restarted && restart.families.is_empty());
    assert_eq!(c.unknown.as_slice(), &[75]);
}

#[test]
fn extended_parameters() {
    // RFC 9072: the length octet may be any value but 0, and parameters have two-octet lengths.
    let list = [2, 0, 6, 1, 4, 0, 2, 0, 1, 2, 0, 2, 2, 0];
    for length in [255, 1, 17] {
        let all = [&[length, 255, 0, 14][..], &list].concat();
        let open = Open::decode(&open(4, 64496, 90, ID, &all)).unwrap();
        assert_eq!(open.capabilities.families, Families::NONE.with(Family::Ipv6Unicast));
        assert!(open.capabilities.route_refresh);
    }
}

#[test]
fn our_open_reads_back_whole() {
    let capabilities = Capabilities {
        multiprotocol: true,
        families: Families::ALL,
        as4: Some(4_200_000_000),
        route_refresh: true,
        enhanced_refresh: true,
        extended_messages: true,
        ext_nexthop: true,
        graceful_restart: Some(GracefulRestart {
            restarted: true,
            notification: true,
            time: 120,
            families: [(Family::Ipv4Unicast, true), (Family::Ipv6Unicast, false)].into_iter().collect(),
        }),
        add_paths: [AddPath { receive: true, send: true }, AddPath { receive: false, send: true }],
        role: Some(Role::Customer),
        ..Capabilities::default()
    };
    let open = Open { asn: 4_200_000_000, hold_time: 90, router_id: RouterId(1), capabilities };
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    assert_eq!(&bytes[20..22], &[0x5b, 0xa0], "AS_TRANS in the fixed field");
    let frame = Frame::next(&bytes, false).unwrap().unwrap();
    assert_eq!(frame.len, bytes.len());
    assert_eq!(Open::decode(frame.body).unwrap(), open);
    let n = Negotiated::between(&open, &open);
    assert!(!n.ebgp && n.as4 && n.extended && n.ext_nexthop);
    assert!(n.add_path_send.contains(Family::Ipv4Unicast) && !n.add_path_send.contains(Family::Ipv6Unicast));
}

#[test]
fn roles_pair_as_in_rfc_9234() {
    let all = [Role::Provider, Role::RouteServer, Role::RouteServerClient, Role::Customer, Role::Peer];
    let pairs = all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))).filter(|(a, b)| a.pairs_with(*b));
    assert_eq!(pairs.count(), 5);
    assert!(Role::Provider.pairs_with(Role::Customer) && !Role::Customer.pairs_with(Role::Customer));
}

#[test]
fn notifications() {
    let mut bytes = Vec::new();
    Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, "maintenance").write(&mut bytes);
    assert_eq!(&bytes[16..], [&[0, 33, 3, 6, 2, 11][..], b"maintenance"].concat());
    let text = "é".repeat(200);
    let cut = Notification::with_text(ErrorCode::ADMIN_RESET, &text);
    assert_eq!((cut.data.len(), cut.data[0]), (255, 254), "whole characters up to 255 octets");
    assert_eq!(cut.shutdown_text().unwrap().chars().count(), 127);
    let hard = cut.clone().into_hard_reset();
    assert_eq!(hard.code, ErrorCode::HARD_RESET);
    assert_eq!(hard.unwrap_hard_reset().0, ErrorCode::ADMIN_RESET);
    assert_eq!(hard.shutdown_text(), cut.shutdown_text());
    let mut bytes = Vec::new();
    Notification::with_data(ErrorCode::OPTIONAL_ATTRIBUTE, &[7; 60_000]).write(&mut bytes);
    assert_eq!(bytes.len(), 4096, "data is cut to fit");
    assert_eq!(ErrorCode(6, 2).to_string(), "6/2 administrative shutdown");
    assert_eq!(ErrorCode(6, 99).text(), "cease");
    assert_eq!(ErrorCode(99, 0).text(), "unknown error");
}

#[test]
fn shutdown_text_is_safe_to_print() {
    let evil = b"\x1b[2Jok\r\n\"\\\xff\xe2\x80\xae";
    let data = [&[u8::try_from(evil.len()).unwrap()][..], evil].concat();
    let n = Notification::with_data(ErrorCode::ADMIN_SHUTDOWN, &data);
    assert_eq!(n.shutdown_text().unwrap(), "?[2Jok??\\\"\\\\\u{fffd}?");
    assert_eq!(Notification::with_data(ErrorCode::MAX_PREFIXES, &data).shutdown_text(), None);
    assert_eq!(Notification::decode(&[6, 2, 0]).shutdown_text(), None);
}

#[test]
fn route_refresh() {
    let decode = |body: &[u8]| RouteRefresh::decode(body, true);
    let request = RouteRefresh { family: Family::Ipv6Unicast, kind: RefreshKind::Request };
    assert_eq!(decode(&[0, 2, 0, 1]), Ok(Some(request)));
    assert_eq!(decode(&[0, 1, 1, 1]).unwrap().unwrap().kind, RefreshKind::Begin);
    assert_eq!(decode(&[0, 1, 2, 1]).unwrap().unwrap().kind, RefreshKind::End);
    assert_eq!(decode(&[0, 1, 3, 1]), Ok(None), "an unknown subtype is ignored (RFC 7313 5)");
    assert_eq!(decode(&[0, 1, 0, 128]), Ok(None), "another family");
    for octet in [0, 1, 2, 3, 255] {
        let plain = |body: &[u8]| RouteRefresh::decode(body, false);
        assert_eq!(plain(&[0, 2, octet, 1]), Ok(Some(request)), "the octet is ignored (RFC 2918 3)");
        assert_eq!(plain(&[0, 2, octet, 1, 9]), Ok(None));
    }
    let n = decode(&[0, 1, 1, 1, 9]).unwrap_err();
    assert_eq!(n.code, ErrorCode::REFRESH_LENGTH);
    assert_eq!(&*n.data, framed(5, &[0, 1, 1, 1, 9]), "the whole message (RFC 7313 5)");
}

#[test]
fn small_messages() {
    let mut out = Vec::new();
    write_keepalive(&mut out);
    assert_eq!(out, framed(4, &[]));
    out.clear();
    write_end_of_rib(Family::Ipv4Unicast, &mut out);
    assert_eq!(out, framed(2, &[0, 0, 0, 0]));
    out.clear();
    write_end_of_rib(Family::Ipv6Unicast, &mut out);
    assert_eq!(out, framed(2, &[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1]));
}
