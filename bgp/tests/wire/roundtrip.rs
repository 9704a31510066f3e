//! Properties of encoding: output decodes to equal values, fills messages and never exceeds their length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use tortie_bgp::Family;
use tortie_bgp::attr::{Aggregator, AsPath, Attributes, Opaque, Origin, Partial, SegmentKind};
use tortie_bgp::wire::{Address, DoesNotFit, Entry, Families, Frame, Negotiated, Update, UpdateTemplate};

use crate::message::{
    GLOBAL, NLRI, attr, body, ebgp, ibgp, mandatory, mp_reach_value, next_hop, origin, two_octets,
};

fn session() -> impl Strategy<Value = Negotiated> {
    (any::<[bool; 5]>()).prop_map(|[ebgp_, as4, extended, ext_nexthop, add_path]| {
        let families = Families::ALL;
        let add_path = if add_path { families } else { Families::NONE };
        Negotiated {
            ebgp: ebgp_,
            as4,
            extended,
            ext_nexthop,
            add_path_receive: add_path,
            add_path_send: add_path,
            reject_as_sets: false,
            ..ebgp()
        }
    })
}

fn asn() -> impl Strategy<Value = u32> {
    prop_oneof![1u32..65536, 65536..=u32::MAX]
}

fn path() -> impl Strategy<Value = AsPath> {
    let kind = prop_oneof![4 => Just(SegmentKind::Sequence), 1 => Just(SegmentKind::Set)];
    vec((kind, vec(asn(), 0..300)), 0..4)
        .prop_map(|s| AsPath::from_segments(s.iter().map(|(k, a)| (*k, a.as_slice()))))
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let numbers = (any::<Option<u32>>(), any::<Option<u32>>(), any::<bool>(), 0u8..3, any::<Option<u32>>());
    let lists = (vec(any::<u32>(), 0..80), vec(any::<[u32; 3]>(), 0..30), vec(any::<[u8; 8]>(), 0..20));
    let reflection =
        (any::<Option<u32>>(), vec(any::<u32>(), 0..4), proptest::option::of((asn(), any::<u32>())));
    let opaque = vec((200u8..=255, vec(any::<u8>(), 0..400)), 0..3);
    let all = (path(), numbers, lists, reflection, opaque, any::<[bool; 7]>());
    all.prop_map(|(path, numbers, lists, reflection, opaque, bits)| {
        let mut a = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        a.as_path = path;
        (a.med, a.local_pref, a.atomic_aggregate) = (numbers.0, numbers.1, numbers.2);
        a.origin = Origin::from_code(numbers.3).unwrap();
        a.communities = lists.0.into();
        a.add_large_communities(&lists.1);
        a.edit_extra(|e| {
            e.otc = numbers.4;
            e.ext_communities = lists.2.into();
            e.originator_id = reflection.0;
            e.cluster_list = reflection.1.into();
            e.aggregator = reflection.2.map(|(asn, id)| Aggregator { asn, router_id: id.into() });
            let mut seen = std::collections::BTreeSet::new();
            e.opaque = opaque
                .into_iter()
                .filter(|(code, _)| seen.insert(*code))
                .map(|(code, value)| Opaque { flags: 0xe0, code, value: value.into() })
                .collect();
        });
        a.partial = partial(&a, bits);
        a
    })
}

/// Returns these bits for the attributes present; AS4_PATH and AS4_AGGREGATOR only if four octets are needed.
fn partial(a: &Attributes, bits: [bool; 7]) -> Partial {
    let long = |asn: u32| asn > 65535;
    let there = [
        (Partial::AGGREGATOR, a.aggregator().is_some()),
        (Partial::COMMUNITIES, !a.communities.is_empty()),
        (Partial::EXT_COMMUNITIES, !a.ext_communities().is_empty()),
        (Partial::LARGE_COMMUNITIES, !a.large_communities.is_empty()),
        (Partial::OTC, a.otc().is_some()),
        (Partial::AS4_PATH, a.as_path.ases().any(long)),
        (Partial::AS4_AGGREGATOR, a.aggregator().is_some_and(|a| long(a.asn))),
    ];
    let set = there.into_iter().zip(bits).filter(|((_, there), bit)| *there && *bit);
    set.fold(Partial::NONE, |all, ((bit, _), _)| all.with(bit))
}

fn entries<A: Address>(raw: &[(u128, u8, u32)], to: fn(u128) -> A) -> Vec<Entry<A>> {
    let mask = |bits: u128, len: u8| if len == 0 { 0 } else { bits & u128::MAX << (128 - u32::from(len)) };
    raw.iter()
        .map(|(bits, len, path_id)| {
            let len = len % (A::WIDTH + 1);
            Entry { prefix: (to(mask(*bits, len)), len), path_id: *path_id }
        })
        .collect()
}

/// Returns the attributes that the receiver gets: no LOCAL_PREF and no reflection attributes on eBGP, always
/// a LOCAL_PREF on iBGP, no AS4_PATH on four-octet sessions.
fn expected(attributes: &Attributes, session: &Negotiated) -> Attributes {
    let mut a = attributes.clone();
    if session.ebgp {
        a.local_pref = None;
        a.edit_extra(|e| {
            e.originator_id = None;
            e.cluster_list = Box::default();
        });
    } else {
        a.local_pref = a.local_pref.or(Some(100));
    }
    if session.as4 {
        a.partial = a.partial.without(Partial::AS4_PATH.with(Partial::AS4_AGGREGATOR));
    }
    a
}

fn messages(mut bytes: &[u8], session: &Negotiated) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(frame) = Frame::next(bytes, session.extended).unwrap() {
        assert!(frame.len <= session.max_len());
        all.push(frame.body.to_vec());
        bytes = &bytes[frame.len..];
    }
    assert!(bytes.is_empty());
    all
}

fn there_and_back<A: Address>(attributes: &Attributes, entries: &[Entry<A>], session: &Negotiated) {
    let Ok(template) = UpdateTemplate::new(attributes, A::FAMILY, session) else {
        let room = session.max_len() - 19 - 4;
        let roughly = 4 * attributes.as_path.ases().count() + 1500;
        assert!(roughly * 2 > room / 2, "refused although small");
        return;
    };
    let mut bytes = Vec::new();
    template.write(&mut bytes, entries.iter().copied(), |_| ());
    let mut again = Vec::new();
    for body in messages(&bytes, session) {
        let update = Update::decode(&body, session).unwrap();
        assert!(update.malformed.is_none() && update.discarded.is_empty(), "{update:?}");
        assert_eq!(update.reach[0].attributes, expected(attributes, session));
        again.extend(update.reach[0].nlri.of::<A>());
    }
    assert_eq!(again, without_ids(entries, session));

    let mut bytes = Vec::new();
    UpdateTemplate::withdrawal(A::FAMILY, session).write(&mut bytes, entries.iter().copied(), |_| ());
    let mut again = Vec::new();
    for body in messages(&bytes, session) {
        let update = Update::decode(&body, session).unwrap();
        assert!(update.reach.is_empty());
        again.extend(update.withdrawn[0].of::<A>());
    }
    assert_eq!(again, without_ids(entries, session));
}

fn without_ids<A: Address>(entries: &[Entry<A>], session: &Negotiated) -> Vec<Entry<A>> {
    let keep = session.add_path_send.contains(A::FAMILY);
    entries.iter().map(|e| Entry { path_id: if keep { e.path_id } else { 0 }, ..*e }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn ipv4_there_and_back(a in attributes(), s in session(), raw in vec(any::<(u128, u8, u32)>(), 1..1500)) {
        there_and_back(&a, &entries::<u32>(&raw, |b| u32::try_from(b >> 96).unwrap()), &s);
    }

    #[test]
    fn ipv6_there_and_back(
        a in attributes(), s in session(), raw in vec(any::<(u128, u8, u32)>(), 1..600), link_local: bool,
    ) {
        let mut a = a;
        a.next_hop = "2001:db8::1".parse().unwrap();
        a.link_local = link_local.then(|| "fe80::1".parse().unwrap());
        there_and_back(&a, &entries::<u128>(&raw, |b| b), &s);
        if s.ext_nexthop {
            there_and_back(&a, &entries::<u32>(&raw, |b| u32::try_from(b >> 96).unwrap()), &s);
        }
    }

    #[test]
    fn prepending_adds_hops_in_front(path in path(), asn in asn(), times in 0usize..600) {
        let longer = path.prepend(asn, times);
        prop_assert_eq!(longer.hops(), path.hops() + times);
        let ases: Vec<u32> = longer.ases().collect();
        prop_assert!(ases[..times].iter().all(|a| *a == asn));
        prop_assert!(ases[times..].iter().copied().eq(path.ases()));
        prop_assert!(longer.segments().all(|s| (1..=255).contains(&s.len())));
    }
}

#[test]
fn messages_are_filled_to_the_last_octet() {
    let a = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    let template = UpdateTemplate::new(&a, Family::Ipv4Unicast, &ebgp()).unwrap();
    let mut bytes = Vec::new();
    let mut writer = template.begin(&mut bytes);
    let n = (0..2000u32).take_while(|i| writer.push((i << 8, 24), 0)).count();
    writer.finish();
    // Header 19, lengths 4, ORIGIN 4, AS_PATH 3, NEXT_HOP 7: 4,059 octets are left for prefixes of four
    // octets.
    assert_eq!(n, 4059 / 4);
    assert_eq!(bytes.len(), 37 + n * 4);
}

#[test]
fn an_unfinished_or_empty_message_leaves_nothing() {
    let a = Attributes::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)));
    let template = UpdateTemplate::new(&a, Family::Ipv6Unicast, &ebgp()).unwrap();
    let mut bytes = vec![1, 2, 3];
    template.begin(&mut bytes).finish();
    UpdateTemplate::withdrawal(Family::Ipv6Unicast, &ebgp()).begin(&mut bytes).finish();
    let mut dropped = template.begin(&mut bytes);
    assert!(dropped.push((1u128 << 80, 48), 0));
    drop(dropped);
    assert_eq!(bytes, [1, 2, 3]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut a = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    a.as_path = AsPath::from_sequence(&[64496; 1100]);
    let session = ebgp();
    let error = UpdateTemplate::new(&a, Family::Ipv4Unicast, &session).unwrap_err();
    assert_eq!(error, DoesNotFit::Size { limit: 4096 });
    let extended = Negotiated { extended: true, ..session };
    assert!(UpdateTemplate::new(&a, Family::Ipv4Unicast, &extended).is_ok());
    a.as_path = AsPath::from_sequence(&[64496; 20_000]);
    assert!(UpdateTemplate::new(&a, Family::Ipv4Unicast, &extended).is_err());
    // IPv4 with an IPv6 next hop requires RFC 8950, and IPv6 cannot have an IPv4 next hop.
    let mut b = Attributes::new("fe80::1".parse::<Ipv6Addr>().unwrap());
    let error = UpdateTemplate::new(&b, Family::Ipv4Unicast, &session).unwrap_err();
    assert!(matches!(error, DoesNotFit::NextHop { family: Family::Ipv4Unicast, .. }));
    b.next_hop = "192.0.2.1".parse().unwrap();
    assert!(UpdateTemplate::new(&b, Family::Ipv6Unicast, &session).is_err());
}

#[test]
fn link_local_alone_takes_sixteen_octets() {
    let mut a = Attributes::new("fe80::1".parse::<Ipv6Addr>().unwrap());
    a.link_local = Some("fe80::1".parse().unwrap());
    let template = UpdateTemplate::new(&a, Family::Ipv6Unicast, &ibgp()).unwrap();
    let mut bytes = Vec::new();
    let mut writer = template.begin(&mut bytes);
    assert!(writer.push((0x2001_0db8_u128 << 96, 32), 0));
    writer.finish();
    // MP_REACH_NLRI first (RFC 7606 5.1), with a one-octet length: 2 + 1 + 1 + 16 + 1 + 5 octets.
    assert_eq!(&bytes[23..31], &[0x80, 14, 26, 0, 2, 1, 16, 0xfe]);
}

/// Bits 32 to 63 of a link-local address, in which the program stores the interface index, are zero on the
/// wire (RFC 4291 2.5.6). A peer that sets them does not select an interface, and the address is sent again
/// with zero bits.
#[test]
fn a_neighbour_cannot_name_our_link() {
    for with_global in [false, true] {
        let said = [0xfe, 0x80, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1];
        let value = if with_global { [GLOBAL, said].concat() } else { said.to_vec() };
        let read = body(&[], &[mandatory(), attr(0x80, 14, &mp_reach_value(&value))].concat(), &[]);
        let update = Update::decode(&read, &ibgp()).unwrap();
        let attributes = &update.reach[0].attributes;
        assert_eq!(attributes.link_local, Some("fe80::1".parse().unwrap()));
        let hop = if with_global { IpAddr::from(GLOBAL) } else { "fe80::1".parse().unwrap() };
        assert_eq!(attributes.next_hop, hop);
        let mut written = Vec::new();
        let template = UpdateTemplate::new(attributes, Family::Ipv6Unicast, &ibgp()).unwrap();
        template.write(&mut written, update.reach[0].nlri.of::<u128>(), |_| ());
        let again = Update::decode(&written[19..], &ibgp()).unwrap();
        assert_eq!(again.reach[0].attributes.next_hop, hop);
        assert_eq!(again.reach[0].attributes.link_local, attributes.link_local);
    }
}

#[test]
fn what_belongs_inside_an_as_stays_there() {
    let mut a = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    a.local_pref = Some(200);
    a.edit_extra(|e| {
        e.originator_id = Some(1);
        e.cluster_list = [2].into();
        let prefix_sid = Opaque { flags: 0xe0, code: 40, value: [1, 0, 0].into() };
        e.opaque = [prefix_sid].into();
    });
    let sent = |session: &Negotiated| {
        let mut bytes = Vec::new();
        let template = UpdateTemplate::new(&a, Family::Ipv4Unicast, session).unwrap();
        let mut writer = template.begin(&mut bytes);
        assert!(writer.push((0xc633_6400_u32, 24), 0));
        writer.finish();
        // Decoded as by an iBGP peer, so that rules of the receiver hide nothing.
        Update::decode(&bytes[19..], &ibgp()).unwrap().reach[0].attributes.clone()
    };
    assert_eq!(sent(&ibgp()), a);
    assert_eq!(sent(&ebgp()), Attributes::new(a.next_hop));
}

/// RFC 4271 5: a Partial bit received with a recognised optional transitive attribute is passed on, and is
/// set on no other.
#[test]
fn the_partial_bit_stays_on_what_came_with_it() {
    const FOUR: &[u8] = &[0, 1, 0, 9];
    let four: [(u8, &[u8]); 6] = [
        (7, &[0, 0, 0xfb, 0xf0, 192, 0, 2, 1]),
        (8, FOUR),
        (16, &[0, 2, 0xfb, 0xf0, 0, 0, 0, 1]),
        (25, &[0; 20]),
        (32, &[0, 0, 0xfb, 0xf0, 0, 0, 0, 1, 0, 0, 0, 2]),
        (35, FOUR),
    ];
    let mandatory_of_two = || [origin(), attr(0x40, 2, &[2, 1, 0x5b, 0xa0]), next_hop()].concat();
    // AS4_PATH and AS4_AGGREGATOR, with the attributes that they extend.
    let trans = attr(0xc0, 7, &[0x5b, 0xa0, 192, 0, 2, 1]);
    let two: [(u8, &[u8]); 3] =
        [(17, &[2, 1, 0, 1, 0, 9]), (18, &[0, 1, 0, 9, 192, 0, 2, 1]), (7, &[0x5b, 0xa0, 192, 0, 2, 1])];
    let mut cases = Vec::new();
    for session in [ebgp(), ibgp()] {
        cases.extend(four.map(|(code, value)| (session, mandatory(), vec![(code, value)])));
        cases.push((session, mandatory(), four.to_vec()));
    }
    for session in [two_octets(), Negotiated { ebgp: false, ..two_octets() }] {
        cases.push((session, mandatory_of_two(), vec![two[0]]));
        cases.push((session, [mandatory_of_two(), trans.clone()].concat(), vec![two[1]]));
        cases.push((session, mandatory_of_two(), vec![two[2]]));
    }
    for (session, before, list) in cases {
        for flags in [0xe0, 0xc0] {
            let list: Vec<Vec<u8>> = list.iter().map(|(code, value)| attr(flags, *code, value)).collect();
            let read = body(&[], &[before.clone(), list.concat()].concat(), &NLRI);
            let update = Update::decode(&read, &session).unwrap();
            assert!(update.malformed.is_none() && update.discarded.is_empty(), "{update:?}");
            let template =
                UpdateTemplate::new(&update.reach[0].attributes, Family::Ipv4Unicast, &session).unwrap();
            let mut bytes = Vec::new();
            template.write(&mut bytes, update.reach[0].nlri.of::<u32>(), |_| ());
            for attribute in list {
                let there = bytes.windows(attribute.len()).any(|part| part == attribute);
                assert!(there, "{attribute:?} is not in {bytes:?}");
            }
            let again = Update::decode(&bytes[19..], &session).unwrap();
            assert_eq!(again.reach[0].attributes, expected(&update.reach[0].attributes, &session));
        }
    }
}

/// A Partial bit without its attribute is dropped: of AS4_PATH and AS4_AGGREGATOR only what the merge used is
/// passed on, and a discarded attribute leaves no bit.
#[test]
fn no_partial_bit_without_its_attribute() {
    let sets = [0xe0, 0xc0].map(|flags| {
        let path = attr(0x40, 2, &[2, 1, 0xfb, 0xf0]);
        let list = [
            origin(),
            path,
            next_hop(),
            attr(flags, 7, &[1]),
            attr(flags, 17, &[2, 1, 0, 0, 0xfb, 0xf0]),
            attr(flags, 18, &[0, 1, 0, 9, 192, 0, 2, 1]),
        ];
        Update::decode(&body(&[], &list.concat(), &NLRI), &two_octets()).unwrap().reach[0].attributes.clone()
    });
    assert_eq!(sets[0], sets[1]);
}
