//! Tests of MRT (RFC 6396, RFC 8050).

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;
use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::mrt::{
    Body, EntryList, Message, PeerEntry, PeerIndex, Raw, Reader, Record, Rib, Stamp, StateChange,
    encode_attributes,
};
use tortie_bgp::wire::{Frame, MessageKind, Update};
use tortie_bgp::{Family, State};
use tortie_net::Cidr;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn read(octets: &[u8]) -> Vec<Record<'_>> {
    Reader::new(octets).collect::<Result<_, _>>().unwrap()
}

/// RFC 6396 4.3.1: peer index with a two-octet AS peer and an IPv6 peer.
const PEER_INDEX: &str = "
    4c2c4aff 000d 0001 00000030  c0000201 0004 76696577 0002
    00 c1000002 c0000202 fde8
    03 c1000003 20010db8000000000000000000000003 00030d40";

/// RFC 6396 4.3.2: 198.51.100.0/22 of peer 0, and 2001:db8::/32 of peer 1 with a reduced MP_REACH_NLRI
/// (4.3.4).
const RIB_V4: &str = "
    4c2c4aff 000d 0002 0000002a  00000007 16 c63364 0001
    0000 4c2c0000 0018  400101 00  40020a 0202 0000fde8 00030d40  400304 c0000202";
const RIB_V6: &str = "
    4c2c4aff 000d 0004 00000034  00000008 20 20010db8 0001
    0001 4c2c0000 0021  400101 02  400206 0201 00030d40
    800e11 10 20010db8000000000000000000000003";

/// RFC 6396 4.2: a path of TABLE_DUMP with two-octet AS numbers.
const TABLE_DUMP: &str = "
    3b9aca00 000c 0001 00000028  0000 0009 0a000000 08 01 3b9a0000 c0000202 fde8
    0012  400101 00 400204 0201 fde8 400304 c0000202";

/// RFC 6396 4.4: a KEEPALIVE of a four-octet session with microseconds, and a session that comes up.
const MESSAGE: &str = "
    562994ee 0011 0004 0000002b  0007c629
    00030d40 0000fde8 0001 0001 c0000202 c0000201  ffffffffffffffffffffffffffffffff 0013 04";
const STATE: &str = "
    562994ee 0010 0000 00000014  fde9 fde8 0000 0001 c0000202 c0000201 0005 0006";

#[test]
fn records_of_the_documents() {
    let octets: Vec<u8> =
        [PEER_INDEX, RIB_V4, RIB_V6, TABLE_DUMP, MESSAGE, STATE].into_iter().flat_map(hex).collect();
    let records = read(&octets);
    let [index, v4, v6, old, message, state] = records.as_slice() else { panic!("{records:?}") };

    let Body::PeerIndex(index) = &index.body else { panic!("{index:?}") };
    assert_eq!((index.collector, index.view), (Ipv4Addr::new(192, 0, 2, 1), &b"view"[..]));
    assert_eq!(
        index.peers,
        [
            PeerEntry { router_id: Ipv4Addr::new(193, 0, 0, 2), address: ip("192.0.2.2"), asn: 65000 },
            PeerEntry { router_id: Ipv4Addr::new(193, 0, 0, 3), address: ip("2001:db8::3"), asn: 200_000 },
        ]
    );

    let Body::Rib(rib) = &v4.body else { panic!("{v4:?}") };
    assert_eq!((rib.sequence, rib.prefix, rib.family()), (7, cidr("198.51.100.0/22"), Family::Ipv4Unicast));
    let entry = rib.entries.iter().next().unwrap();
    assert_eq!((entry.peer, entry.originated), (0, 0x4c2c_0000));
    let attributes = entry.attributes.decode(rib.prefix).unwrap();
    assert_eq!(attributes.as_path, AsPath::from_sequence(&[65000, 200_000]));
    assert_eq!(attributes.next_hop, ip("192.0.2.2"));

    let Body::Rib(rib) = &v6.body else { panic!("{v6:?}") };
    let attributes = rib.entries.iter().next().unwrap().attributes.decode(rib.prefix).unwrap();
    assert_eq!((rib.prefix, attributes.next_hop), (cidr("2001:db8::/32"), ip("2001:db8::3").into()));

    let Body::TableDump(dump) = &old.body else { panic!("{old:?}") };
    assert_eq!((dump.prefix, dump.peer, dump.peer_as), (cidr("10.0.0.0/8"), ip("192.0.2.2"), 65000));
    assert_eq!(dump.attributes.decode(dump.prefix).unwrap().as_path, AsPath::from_sequence(&[65000]));

    assert_eq!(message.stamp, Stamp { seconds: 0x5629_94ee, micros: Some(0x7c629) });
    let Body::Message(message) = &message.body else { panic!("{message:?}") };
    assert_eq!((message.peer_as, message.local_as, message.interface), (200_000, 65000, 1));
    assert!(message.as4 && !message.sent && !message.add_path);
    assert_eq!(Frame::next(message.octets, false).unwrap().unwrap().kind, MessageKind::Keepalive);

    let Body::StateChange(change) = &state.body else { panic!("{state:?}") };
    assert_eq!(StateChange::state(change.from), Some(State::OpenConfirm));
    assert_eq!(StateChange::state(change.to), Some(State::Established));

    // Decoded records are encoded to equal octets, except the peer index, which is always written with
    // four-octet AS numbers.
    let mut again = Vec::new();
    records.iter().skip(1).for_each(|r| r.write(&mut again));
    assert_eq!(again, octets[hex(PEER_INDEX).len()..]);
}

#[test]
fn the_full_form_of_mp_reach_is_read_in_tables_too() {
    let full = "4c2c4aff 000d 0004 0000003d  00000008 20 20010db8 0001
        0001 4c2c0000 002a  400101 02  400206 0201 00030d40
        800e1a 0002 01 10 20010db8000000000000000000000003 00 20 20010db8";
    let octets = hex(full);
    let Body::Rib(rib) = read(&octets).remove(0).body else { panic!() };
    let attributes = rib.entries.iter().next().unwrap().attributes.decode(rib.prefix).unwrap();
    assert_eq!(attributes.next_hop, ip("2001:db8::3"));
}

/// Routes of the collector itself: other tools write and read them in the same form (`bgpdump` prints
/// `0.0.0.0`).
#[test]
fn what_the_collector_originates_has_no_next_hop() {
    for (prefix, none) in [("10.244.1.0/26", "0.0.0.0"), ("2001:db8::/64", "::")] {
        let own = Attributes::new(ip(none));
        let mut octets = Vec::new();
        assert!(encode_attributes(&own, &mut octets));
        let mut list = EntryList::new(false);
        assert!(list.push(0, 1, 0, &octets));
        let read = list.entries().iter().next().unwrap().attributes.decode(cidr(prefix)).unwrap();
        assert_eq!(read, own);
    }
    // Routes of a neighbour are validated as before: 127.0.0.1 is not a valid next hop.
    let mut octets = Vec::new();
    assert!(encode_attributes(&Attributes::new(ip("127.0.0.1")), &mut octets));
    let mut list = EntryList::new(false);
    assert!(list.push(0, 1, 0, &octets));
    assert!(list.entries().iter().next().unwrap().attributes.decode(cidr("10.0.0.0/8")).is_err());
}

/// Collectors write NEXT_HOP 0.0.0.0 next to MP_REACH_NLRI if a peer sends both: the next hop of
/// MP_REACH_NLRI applies (RFC 4760 3).
#[test]
fn next_hop_next_to_mp_reach_is_ignored() {
    let octets =
        hex("400101 00  400206 0201 0000fde8  400304 00000000  800e11 10 20010db8000000000000000000000001");
    let mut list = EntryList::new(false);
    assert!(list.push(0, 1, 0, &octets));
    for prefix in ["198.51.100.0/24", "2001:db8:1::/48"] {
        let read = list.entries().iter().next().unwrap().attributes.decode(cidr(prefix)).unwrap();
        assert_eq!(read.next_hop, ip("2001:db8::1"), "{prefix}");
    }
}

/// Each path identifier follows the originated time of its path (RFC 8050 4).
#[test]
fn paths_with_identifiers() {
    let octets = hex("4c2c4aff 000d 0008 0000002a  00000007 18 c63364 0001
        0000 4c2c0000 0000002a 0014  400101 00  40020a 0202 0000fde8 00030d40  4003 00");
    let Body::Rib(rib) = read(&octets).remove(0).body else { panic!() };
    assert!(rib.entries.add_path());
    assert_eq!(rib.entries.iter().map(|e| e.path_id).collect::<Vec<_>>(), [42]);
    assert!(rib.entries.iter().next().unwrap().attributes.decode(rib.prefix).is_err());
}

#[test]
fn a_bad_record_is_named_and_the_next_one_is_read() {
    // The length of the path's attribute list exceeds the record.
    let bad = hex("4c2c4aff 000d 0002 00000010  00000007 08 0a 0001  0000 4c2c0000 0018");
    let bad_len = bad.len();
    let octets = [bad, hex(STATE)].concat();
    let mut reader = Reader::new(&octets);
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "a path that its record has no room for at octet 20");
    assert!(matches!(reader.next(), Some(Ok(Record { body: Body::StateChange(_), .. }))));
    assert!(reader.next().is_none());

    let cut = [&octets[bad_len..], &octets[bad_len..bad_len + 20]].concat();
    let items: Vec<_> = Reader::new(&cut).collect();
    assert!(items[0].is_ok());
    assert_eq!(
        items[1].as_ref().unwrap_err().to_string(),
        "the input ends in the middle of a record at octet 52"
    );
    assert_eq!(items.len(), 2);
}

#[test]
fn what_is_no_mrt_is_said_at_once() {
    let error = Raw::next(b"bgp_table_version is 5").unwrap_err();
    assert_eq!(error.to_string(), "a record of more than 16 MiB, which no MRT file has at octet 8");
    // A peer index with a count of 65,535 and no peers allocates no memory for them.
    let octets = hex("4c2c4aff 000d 0001 00000008  c0000201 0000 ffff");
    assert_eq!(Reader::new(&octets).next().unwrap().unwrap_err().what, "fewer peers than were promised");
}

fn attributes(v6: bool) -> impl Strategy<Value = Attributes> {
    let lists = (vec(any::<u32>(), 0..30), vec(any::<[u32; 3]>(), 0..9), vec(1u32.., 0..300));
    (lists, any::<Option<u32>>(), any::<Option<u32>>(), any::<bool>()).prop_map(
        move |((communities, large, path), med, local_pref, link_local)| {
            let hop = if v6 { "2001:db8::1" } else { "192.0.2.1" };
            let mut a = Attributes::new(ip(hop));
            a.as_path = AsPath::from_sequence(&path);
            a.communities = communities.into();
            a.add_large_communities(&large);
            (a.med, a.local_pref) = (med, local_pref);
            a.link_local = (v6 && link_local).then(|| "fe80::1".parse().unwrap());
            a
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Includes IPv4 routes with IPv6 next hops (RFC 8950).
    #[test]
    fn tables_come_back_as_they_were_written(
        a in prop_oneof![attributes(false), attributes(true)],
        v6_prefix: bool, bits: u128, len: u8, path_id: u32, add_path: bool, originated: u32,
    ) {
        let prefix = if v6_prefix && a.next_hop.addr().is_ipv6() {
            Cidr::new(bits.to_be_bytes().into(), len % 129).unwrap()
        } else {
            let [a, b, c, d, ..] = bits.to_be_bytes();
            Cidr::new([a, b, c, d].into(), len % 33).unwrap()
        };
        let mut octets = Vec::new();
        prop_assert!(encode_attributes(&a, &mut octets));
        let mut list = EntryList::new(add_path);
        prop_assert!(list.push(3, originated, path_id, &octets));
        prop_assert!(list.push(4, originated, path_id, &octets));
        let stamp = Stamp { seconds: 1, micros: None };
        let rib = Record { stamp, body: Body::Rib(Rib { sequence: 9, prefix, entries: list.entries() }) };
        let mut out = Vec::new();
        rib.write(&mut out);
        prop_assert_eq!(read(&out), vec![rib]);
        for entry in list.entries().iter() {
            prop_assert_eq!(entry.path_id, if add_path { path_id } else { 0 });
            prop_assert_eq!(&entry.attributes.decode(prefix).unwrap(), &a);
        }
    }

    #[test]
    fn messages_and_states_come_back_as_they_were_written(
        asns: [u32; 2], flags: [bool; 4], octets in vec(any::<u8>(), 0..100), micros: Option<u32>, states: [u16; 2],
        interface: u16,
    ) {
        let [as4, sent, add_path, v6] = flags;
        let [peer_as, local_as] = if as4 { asns } else { asns.map(|a| a & 0xffff) };
        let (peer, local) = if v6 { (ip("2001:db8::1"), ip("::1")) } else { (ip("192.0.2.1"), ip("192.0.2.2")) };
        let message = Message { peer_as, local_as, interface, peer, local, as4, sent, add_path, octets: &octets };
        let [from, to] = states;
        let change = StateChange { peer_as, local_as, interface, peer, local, as4, from, to };
        let stamp = Stamp { seconds: 7, micros };
        let records = [Body::Message(message), Body::StateChange(change)].map(|body| Record { stamp, body });
        let mut out = Vec::new();
        records.iter().for_each(|r| r.write(&mut out));
        prop_assert_eq!(read(&out), records);
    }

    #[test]
    fn peers_come_back_as_they_were_written(view: Vec<u8>, peers: Vec<(u32, bool, u128, u32)>) {
        let peers = peers
            .iter()
            .map(|(router_id, v6, bits, asn)| {
                let [a, b, c, d, ..] = bits.to_be_bytes();
                let address = if *v6 { bits.to_be_bytes().into() } else { [a, b, c, d].into() };
                PeerEntry { router_id: (*router_id).into(), address, asn: *asn }
            })
            .collect();
        let index = PeerIndex { collector: Ipv4Addr::LOCALHOST, view: &view, peers };
        let record = Record { stamp: Stamp::default(), body: Body::PeerIndex(index) };
        let mut out = Vec::new();
        record.write(&mut out);
        prop_assert_eq!(read(&out), vec![record]);
    }
}

/// Every truncation and every flipped octet of a valid file gives a result or an error, and does not affect
/// earlier records.
#[test]
fn cuts_and_flips_end_in_answers() {
    let good: Vec<u8> =
        [PEER_INDEX, RIB_V4, RIB_V6, TABLE_DUMP, MESSAGE, STATE].into_iter().flat_map(hex).collect();
    let whole = read(&good);
    for cut in 0..good.len() {
        let items: Vec<_> = Reader::new(&good[..cut]).collect();
        let read: Vec<_> = items.iter().map_while(|i| i.as_ref().ok()).collect();
        assert!(whole.iter().zip(&read).all(|(a, b)| a == *b));
        assert!(items.iter().filter(|i| i.is_err()).count() <= 1);
    }
    for at in 0..good.len() {
        for flip in 1..=255_u8 {
            let mut bad = good.clone();
            bad[at] ^= flip;
            for record in Reader::new(&bad).flatten() {
                if let Body::Rib(rib) = record.body {
                    rib.entries.iter().for_each(|e| drop(e.attributes.decode(rib.prefix)));
                }
            }
        }
    }
}

/// Recorded files named in `TORTIE_MRT` (colon-separated, `.gz` by gzip): every record is decoded.
#[test]
fn whole_files() {
    let Some(paths) = std::env::var_os("TORTIE_MRT") else {
        eprintln!("skipped: TORTIE_MRT names no MRT files");
        return;
    };
    for path in std::env::split_paths(&paths) {
        let out = Command::new("gzip").arg("-dcf").arg(&path).output().expect("gzip runs");
        assert!(out.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&out.stderr));
        let start = std::time::Instant::now();
        let (mut prefixes, mut paths, mut messages, mut updates, mut states, mut bad) = (0, 0, 0, 0, 0, 0);
        for record in Reader::new(&out.stdout) {
            match record.unwrap().body {
                Body::Rib(rib) => {
                    prefixes += 1;
                    for entry in rib.entries.iter() {
                        paths += 1;
                        bad += usize::from(entry.attributes.decode(rib.prefix).is_err());
                    }
                }
                Body::Message(message) => {
                    messages += 1;
                    let frame = Frame::next(message.octets, true).unwrap().unwrap();
                    assert_eq!(frame.len, message.octets.len());
                    if frame.kind == MessageKind::Update {
                        updates += 1;
                        bad += usize::from(
                            Update::decode(frame.body, &message.session()).unwrap().malformed.is_some(),
                        );
                    }
                }
                Body::StateChange(_) => states += 1,
                Body::PeerIndex(index) => assert!(!index.peers.is_empty()),
                other => panic!("{other:?}"),
            }
        }
        eprintln!(
            "{}: {prefixes} prefixes, {paths} paths, {messages} messages, {updates} updates, {states} states, {bad} bad in {:?}",
            path.display(),
            start.elapsed()
        );
        // Real feeds contain invalid routes, for example AS 0 in a path.
        assert!(bad * 1000 <= paths + updates);
    }
}
