//! Tests of BMP (RFC 7854, RFC 9069).

use std::net::{IpAddr, Ipv4Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use tortie_bgp::bmp::{
    Message, PeerDown, PeerHeader, PeerUp, Statistic, Statistics, Tlvs, info, termination,
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn only(octets: &[u8]) -> Message<'_> {
    let (message, len) = Message::next(octets).unwrap().unwrap();
    assert_eq!(len, octets.len());
    message
}

/// RFC 7854 4.2: header of a post-policy message of 192.0.2.1, AS 65001.
const PEER: &str =
    "00 40 0000000000000000 000000000000000000000000 c0000201 0000fde9 0a000001 5f000000 000003e8";
/// An OPEN of AS 65001 without parameters.
const OPEN: &str = "ffffffffffffffffffffffffffffffff 001d 01 04 fde9 005a 0a000001 00";
const CEASE: &str = "ffffffffffffffffffffffffffffffff 0015 03 0604";

#[test]
fn messages_of_the_document() {
    let peer_up = format!(
        "03 00000084 03 {PEER} 000000000000000000000000 c0000202 00b3 c001 {OPEN} {OPEN} 0000 0002 6869"
    );
    let octets = hex(&peer_up);
    let Message::PeerUp { peer, up } = only(&octets) else { panic!() };
    assert_eq!(
        peer,
        PeerHeader {
            kind: 0,
            filtered: false,
            post_policy: true,
            as2: false,
            distinguisher: 0,
            address: IpAddr::from([192, 0, 2, 1]),
            asn: 65001,
            router_id: Ipv4Addr::new(10, 0, 0, 1),
            seconds: 0x5f00_0000,
            micros: 1000,
        }
    );
    assert_eq!((up.local, up.local_port, up.remote_port), (IpAddr::from([192, 0, 2, 2]), 179, 0xc001));
    assert_eq!((up.sent, up.received), (&hex(OPEN)[..], &hex(OPEN)[..]));
    assert_eq!(up.information.iter().map(|t| (t.kind, t.value)).collect::<Vec<_>>(), [(0, &b"hi"[..])]);

    let down = hex(&format!("03 00000046 02 {PEER} 03 {CEASE}"));
    let cease = hex(CEASE);
    assert!(matches!(
        only(&down),
        Message::PeerDown { reason: PeerDown::RemoteNotification(n), .. } if n == cease
    ));
    let down = hex(&format!("03 00000033 02 {PEER} 02 0018"));
    assert!(matches!(only(&down), Message::PeerDown { reason: PeerDown::LocalEvent(24), .. }));

    let monitoring =
        hex(&format!("03 00000047 00 {PEER} ffffffffffffffffffffffffffffffff 0017 02 0000 0000"));
    assert!(matches!(only(&monitoring), Message::RouteMonitoring { update, .. } if update.len() == 23));

    let counted =
        hex(&format!("03 0000004b 01 {PEER} 00000002 0000 0004 00000007 0009 000b 0001 01 0000000000000102"));
    let Message::Statistics { statistics, .. } = only(&counted) else { panic!() };
    assert_eq!(
        statistics.iter().collect::<Vec<_>>(),
        [Statistic::Rejected(7), Statistic::AdjInFamily(1, 1, 0x102)]
    );

    // RFC 9069 4: peer type 3, the F flag in place of V, no address, AS number and identifier of the router.
    let own = "03 80 0000000000000000 000000000000000000000000 00000000 0000fde9 0a000001 5f000000 000003e8";
    let open = hex(OPEN);
    let peer_up = format!(
        "03 00000088 03 {own} 000000000000000000000000 00000000 0000 0000 {OPEN} {OPEN} 0003 0006 676c6f62616c"
    );
    let octets = hex(&peer_up);
    let Message::PeerUp { peer, up } = only(&octets) else { panic!() };
    assert_eq!(
        (peer.kind, peer.filtered, peer.address),
        (PeerHeader::LOC_RIB, true, Ipv4Addr::UNSPECIFIED.into())
    );
    assert_eq!((peer.asn, up.sent, up.received), (65001, &open[..], &open[..]));
    assert_eq!(
        up.information.iter().map(|t| (t.kind, t.value)).collect::<Vec<_>>(),
        [(info::TABLE, &b"global"[..])]
    );
    let mut again = Vec::new();
    Message::PeerUp { peer, up }.write(&mut again);
    assert_eq!(again, octets);
    // RFC 9069 5.3: reason 6, with the table name.
    let down = hex(&format!("03 0000003b 02 {own} 06 0003 0006 676c6f62616c"));
    let Message::PeerDown { reason: PeerDown::LocRib(tlvs), .. } = only(&down) else { panic!() };
    assert_eq!(tlvs, up.information);

    let initiation = hex("03 00000014 04 0002 0002 7231 0001 0004 74657374");
    let Message::Initiation(tlvs) = only(&initiation) else { panic!() };
    assert_eq!(
        tlvs.iter().map(|t| (t.kind, t.value)).collect::<Vec<_>>(),
        [(info::SYS_NAME, &b"r1"[..]), (info::SYS_DESCR, b"test")]
    );
    let end = hex("03 0000000c 05 0001 0002 0000");
    assert!(matches!(only(&end), Message::Termination(t) if t.iter().eq([tortie_bgp::bmp::Tlv {
        kind: termination::REASON,
        value: &[0, 0],
    }])));

    for octets in [octets, down, monitoring, counted, initiation, end] {
        let mut again = Vec::new();
        only(&octets).write(&mut again);
        assert_eq!(again, octets);
    }
}

#[test]
fn what_is_no_bmp_is_said_at_once() {
    assert_eq!(
        Message::next(&[4]).unwrap_err().to_string(),
        "another version than 3 at octet 0 of a BMP message"
    );
    assert!(Message::next(&hex("03 00000005 04")).is_err());
    assert!(Message::next(&hex("03 7fffffff 00")).is_err());
    assert!(Message::next(&hex("03 000000ff 00")).unwrap().is_none());
    // An OPEN with a length that exceeds the message.
    let cut = hex(&format!(
        "03 00000061 03 {PEER} 000000000000000000000000 c0000202 00b3 c001 {}",
        OPEN.replace("001d", "00ff")
    ));
    let error = Message::next(&cut).unwrap_err();
    assert_eq!((error.offset, error.what), (68, "no OPEN that was sent"));
}

fn peer() -> impl Strategy<Value = PeerHeader> {
    (any::<[bool; 3]>(), any::<u128>(), any::<[u32; 4]>(), any::<u64>()).prop_map(|(flags, bits, n, rd)| {
        let [a, b, c, d, ..] = bits.to_be_bytes();
        let v6 = flags[2];
        PeerHeader {
            kind: 0,
            filtered: false,
            post_policy: flags[0],
            as2: flags[1],
            distinguisher: rd,
            address: if v6 { bits.to_be_bytes().into() } else { [a, b, c, d].into() },
            asn: n[0],
            router_id: n[1].into(),
            seconds: n[2],
            micros: n[3],
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn messages_come_back_as_they_were_written(
        peer in peer(), octets in vec(any::<u8>(), 0..200), kind: u8, event: u16, ports: [u16; 2], numbers: [u64; 4],
    ) {
        let open = hex(OPEN);
        let mut tlvs = Vec::new();
        Tlvs::push(&mut tlvs, event, &octets);
        let tlvs = Tlvs::new(&tlvs).unwrap();
        let local = if peer.address.is_ipv6() { "::1" } else { "192.0.2.9" }.parse().unwrap();
        let up = PeerUp {
            local, local_port: ports[0], remote_port: ports[1], sent: &open, received: &open, information: tlvs,
        };
        let mut counted = Vec::new();
        let [a, b, c, d] = numbers;
        let all = [
            Statistic::AdjIn(a), Statistic::Loc(b), Statistic::AdjInFamily(2, 1, c), Statistic::LocFamily(1, 1, d),
            Statistic::Counter(5, event.into()), Statistic::TreatAsWithdraw(event.into()), Statistic::Gauge(99, a),
        ];
        all.iter().for_each(|s| Statistics::push(&mut counted, *s));
        let statistics = Statistics::new(&counted).unwrap();
        prop_assert_eq!(statistics.iter().collect::<Vec<_>>(), all);
        let reasons = [
            PeerDown::LocalNotification(&octets), PeerDown::LocalEvent(event), PeerDown::RemoteNotification(&octets),
            PeerDown::RemoteClosed, PeerDown::NotMonitored, PeerDown::LocRib(tlvs), PeerDown::Other { reason: kind | 8, octets: &octets },
        ];
        let mut messages = vec![
            Message::RouteMonitoring { peer, update: &octets },
            Message::Statistics { peer, statistics },
            Message::PeerUp { peer, up },
            Message::Initiation(tlvs),
            Message::Termination(tlvs),
            Message::Mirroring { peer, tlvs },
            Message::Other { kind: kind | 8, octets: &octets },
        ];
        messages.extend(reasons.map(|reason| Message::PeerDown { peer, reason }));
        let mut out = Vec::new();
        messages.iter().for_each(|m| m.write(&mut out));
        let mut rest = &out[..];
        for expected in messages {
            let (message, len) = Message::next(rest).unwrap().unwrap();
            prop_assert_eq!(message, expected);
            rest = &rest[len..];
        }
        prop_assert!(rest.is_empty());
    }
}
