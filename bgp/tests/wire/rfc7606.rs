//! Tests of RFC 7606 section by section, and of later documents that refer to it.

use std::net::IpAddr;

use tortie_bgp::Family;
use tortie_bgp::wire::{Families, Negotiated, Update};

use crate::message::*;

fn withdrawn() -> Outcome {
    Outcome::Withdraw(vec!["198.51.100.0/24".to_owned()])
}

fn discard(code: u8) -> Outcome {
    Outcome::Discard(vec![code])
}

#[track_caller]
fn check(what: &str, extra: &[u8], session: &Negotiated, expected: &Outcome) {
    assert_eq!(&update_outcome(&with(extra), session), expected, "{what}");
}

/// Returns the mandatory attributes with one of them replaced.
fn replaced(code: u8, attribute: &[u8]) -> Vec<u8> {
    let all = [(1, origin()), (2, as_path()), (3, next_hop())];
    let list: Vec<u8> =
        all.into_iter().flat_map(|(c, a)| if c == code { attribute.to_vec() } else { a }).collect();
    body(&[], &list, &NLRI)
}

#[test]
fn section_3_flags() {
    for (code, value) in [(1, &[0][..]), (2, &[2, 1, 0, 0, 0xfb, 0xf0]), (3, &[192, 0, 2, 1])] {
        for flags in [0x00, 0x80, 0xc0] {
            let outcome = update_outcome(&replaced(code, &attr(flags, code, value)), &ebgp());
            assert_eq!(outcome, withdrawn(), "{code} with flags {flags:#x}");
        }
        // Partial and unused flags are ignored (RFC 7606 3 c names Optional and Transitive only).
        let outcome = update_outcome(&replaced(code, &attr(0x6f, code, value)), &ebgp());
        assert_eq!(outcome, Outcome::Valid, "{code} with flags 0x6f");
    }
    check("MED transitive", &attr(0xc0, 4, &[0, 0, 0, 1]), &ebgp(), &withdrawn());
    check("ATOMIC_AGGREGATE optional", &attr(0xc0, 6, &[]), &ebgp(), &withdrawn());
    check("AGGREGATOR well-known", &attr(0x40, 7, &[0, 0, 0xfb, 0xf0, 192, 0, 2, 1]), &ebgp(), &withdrawn());
    check("COMMUNITIES non-transitive", &attr(0x80, 8, &[0, 1, 0, 2]), &ebgp(), &withdrawn());
    check("large communities well-known", &attr(0x40, 32, &[0; 12]), &ebgp(), &withdrawn());
    check("OTC non-transitive", &attr(0x80, 35, &[0, 0, 0xfb, 0xf0]), &ebgp(), &withdrawn());
}

#[test]
fn section_3_flags_of_mp_reach_withdraw_what_it_names() {
    let list = [attr(0xc0, 14, &mp_reach_value(&GLOBAL)), origin(), as_path()].concat();
    let outcome = update_outcome(&body(&[], &list, &[]), &ebgp());
    assert_eq!(outcome, Outcome::Withdraw(vec!["2001:db8:1::/48".to_owned()]));
}

#[test]
fn section_3_duplicates() {
    let twice = [attr(0x80, 4, &[0, 0, 0, 1]), attr(0x80, 4, &[0, 0, 0, 2])].concat();
    let bytes = with(&twice);
    let update = Update::decode(&bytes, &ebgp()).unwrap();
    assert_eq!(update.reach[0].attributes.med, Some(1), "the first one counts");
    assert_eq!(update.discarded.len(), 1);
    let reach = [mandatory(), mp_reach(), mp_reach()].concat();
    assert_eq!(update_outcome(&body(&[], &reach, &[]), &ebgp()), Outcome::Reset(3, 1));
    let unreach = attr(0x80, 15, &[0, 2, 1]).repeat(2);
    assert_eq!(update_outcome(&body(&[], &unreach, &[]), &ebgp()), Outcome::Reset(3, 1));
}

#[test]
fn section_3_strongest_action_and_reading_on() {
    // An error precedes MP_REACH_NLRI: its prefixes are withdrawn too.
    let list = [attr(0x40, 1, &[9]), as_path(), next_hop(), mp_reach()].concat();
    let expected = Outcome::Withdraw(vec!["198.51.100.0/24".into(), "2001:db8:1::/48".into()]);
    assert_eq!(update_outcome(&body(&[], &list, &NLRI), &ebgp()), expected);
    // Discard, withdraw and reset errors: the reset wins.
    let list = [mandatory(), attr(0x40, 6, &[1]), attr(0xc0, 8, &[1]), attr(0x80, 15, &[0])].concat();
    assert_eq!(update_outcome(&body(&[], &list, &NLRI), &ebgp()), Outcome::Reset(3, 9));
    // Prefixes that the peer withdraws are withdrawn in any case.
    let list = [origin(), as_path(), attr(0x40, 3, &[1])].concat();
    let expected = Outcome::Withdraw(vec!["10.0.0.0/8".into(), "198.51.100.0/24".into()]);
    assert_eq!(update_outcome(&body(&[8, 10], &list, &NLRI), &ebgp()), expected);
}

#[test]
fn section_4_lengths() {
    // The attribute list ends inside an attribute header, or the length of an attribute exceeds the list.
    for tail in [&[0xc0][..], &[0xc0, 8], &[0xd0, 8, 0], &[0xc0, 8, 5, 1, 2, 3, 4]] {
        check(&format!("{tail:02x?}"), tail, &ebgp(), &withdrawn());
    }
    // The length of withdrawn routes or attributes exceeds the message.
    assert_eq!(update_outcome(&[0, 9, 0, 0], &ebgp()), Outcome::Reset(3, 1));
    assert_eq!(update_outcome(&[0, 0, 0, 9, 1, 2], &ebgp()), Outcome::Reset(3, 1));
    assert_eq!(update_outcome(&[0], &ebgp()), Outcome::Reset(3, 1));
    // A truncated MP_REACH_NLRI: its prefixes cannot be located.
    let list = [mandatory(), vec![0x80, 14, 40, 0, 2, 1]].concat();
    assert_eq!(update_outcome(&body(&[], &list, &NLRI), &ebgp()), Outcome::Reset(3, 1));
}

#[test]
fn section_5_2_errors_without_reachable_prefixes_reset() {
    let list = [origin(), as_path(), attr(0x40, 3, &[1])].concat();
    assert_eq!(update_outcome(&body(&[], &list, &[]), &ebgp()), Outcome::Reset(3, 5));
    assert_eq!(update_outcome(&body(&[8, 10], &list, &[]), &ebgp()), Outcome::Reset(3, 5));
    // Attribute discard is not affected.
    let list = [mandatory(), attr(0x40, 6, &[1])].concat();
    assert_eq!(update_outcome(&body(&[], &list, &[]), &ebgp()), discard(6));
    // Valid attributes without prefixes are legal, and not an End-of-RIB marker.
    let bytes = body(&[], &mandatory(), &[]);
    assert_eq!(Update::decode(&bytes, &ebgp()).unwrap(), Update::default());
}

#[test]
fn section_5_3_prefixes() {
    for nlri in [&[33, 1, 2, 3, 4, 5][..], &[24, 1, 2], &[32, 1, 2, 3], &[8, 10, 16, 172]] {
        assert_eq!(
            update_outcome(&body(&[], &mandatory(), nlri), &ebgp()),
            Outcome::Reset(3, 10),
            "{nlri:?}"
        );
        assert_eq!(update_outcome(&body(nlri, &[], &[]), &ebgp()), Outcome::Reset(3, 10), "{nlri:?}");
    }
    let mut value = mp_reach_value(&GLOBAL);
    value.extend([129, 1]);
    let list = [attr(0x80, 14, &value), origin(), as_path()].concat();
    assert_eq!(update_outcome(&body(&[], &list, &[]), &ebgp()), Outcome::Reset(3, 9), "RFC 4760 7");
    // Host bits are cleared, not rejected (RFC 4271 4.3).
    let bytes = body(&[], &mandatory(), &[20, 10, 1, 0xff, 0]);
    let update = Update::decode(&bytes, &ebgp()).unwrap();
    let prefixes: Vec<_> = update.reach[0].nlri.cidrs().map(|c| c.to_string()).collect();
    assert_eq!(prefixes, ["10.1.240.0/20", "0.0.0.0/0"]);
}

#[test]
fn section_7_1_to_7_3_well_known() {
    for value in [&[][..], &[3], &[255], &[0, 0]] {
        assert_eq!(
            update_outcome(&replaced(1, &attr(0x40, 1, value)), &ebgp()),
            withdrawn(),
            "ORIGIN {value:?}"
        );
    }
    let sequence = [0, 0, 0xfb, 0xf0];
    let paths: [(&str, Vec<u8>); 7] = [
        ("unknown segment type", [&[5, 1][..], &sequence].concat()),
        ("segment type 0", [&[0, 1][..], &sequence].concat()),
        ("overrun", [&[2, 2][..], &sequence].concat()),
        ("underrun", [&[2, 1][..], &sequence, &[2]].concat()),
        ("no AS in a segment", [&[2, 0, 2, 1][..], &sequence].concat()),
        ("AS 0 (RFC 7607)", vec![2, 1, 0, 0, 0, 0]),
        ("confederation (RFC 5065)", [&[3, 1][..], &sequence].concat()),
    ];
    for (what, value) in paths {
        assert_eq!(update_outcome(&replaced(2, &attr(0x40, 2, &value)), &ebgp()), withdrawn(), "{what}");
        assert_eq!(update_outcome(&replaced(2, &attr(0x40, 2, &value)), &ibgp()), withdrawn(), "{what}");
    }
    for value in [&[][..], &[192, 0, 2], &[192, 0, 2, 1, 0], &[0, 0, 0, 0], &[224, 0, 0, 1], &[127, 0, 0, 1]]
    {
        assert_eq!(
            update_outcome(&replaced(3, &attr(0x40, 3, value)), &ebgp()),
            withdrawn(),
            "NEXT_HOP {value:?}"
        );
    }
}

#[test]
fn rfc_9774_as_sets() {
    let set = replaced(2, &attr(0x40, 2, &[2, 1, 0, 0, 0xfb, 0xf0, 1, 1, 0, 0, 0xfb, 0xf1]));
    assert_eq!(update_outcome(&set, &ebgp()), withdrawn());
    let lenient = Negotiated { reject_as_sets: false, ..ebgp() };
    assert_eq!(update_outcome(&set, &lenient), Outcome::Valid);
}

/// RFC 9774 3 applies to AS_PATH and AS4_PATH as received: the merge of RFC 6793 may discard one of them.
#[test]
fn rfc_9774_as_sets_that_the_merge_hides() {
    let update = |short: &[u8], long: &[u8]| {
        let list = [origin(), attr(0x40, 2, short), next_hop(), attr(0xc0, 17, long)].concat();
        body(&[], &list, &NLRI)
    };
    const SEQUENCE: [u8; 4] = [2, 1, 0x5b, 0xa0];
    const SET: [u8; 4] = [1, 1, 0xfb, 0xf0];
    let in_path = update(&SET, &[2, 1, 0, 1, 0, 0]);
    // Longer than AS_PATH and therefore ignored.
    let in_as4 = update(&SEQUENCE, &[2, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1]);
    let lenient = Negotiated { reject_as_sets: false, ..two_octets() };
    for bytes in [in_path, in_as4] {
        assert_eq!(update_outcome(&bytes, &two_octets()), withdrawn());
        let read = Update::decode(&bytes, &lenient).unwrap();
        assert!(!read.reach[0].attributes.as_path.has_set(), "the merge hides it");
    }
    // RFC 6793 6: confederation segments of AS4_PATH are removed, and the rest is used.
    let confed = update(&SEQUENCE, &[4, 1, 0, 1, 0, 9, 2, 1, 0, 1, 0, 0]);
    assert_eq!(update_outcome(&confed, &two_octets()), Outcome::Valid);
    let without = update(&SEQUENCE, &[2, 1, 0, 1, 0, 0]);
    assert_eq!(update_outcome(&without, &two_octets()), Outcome::Valid);
}

#[test]
fn section_7_4_to_7_10() {
    for value in [&[][..], &[0, 0, 1], &[0, 0, 0, 0, 1]] {
        check("MED", &attr(0x80, 4, value), &ebgp(), &withdrawn());
        check("LOCAL_PREF iBGP", &attr(0x40, 5, value), &ibgp(), &withdrawn());
        check("LOCAL_PREF eBGP", &attr(0x40, 5, value), &ebgp(), &discard(5));
        check("ORIGINATOR_ID iBGP", &attr(0x80, 9, value), &ibgp(), &withdrawn());
        check("ORIGINATOR_ID eBGP", &attr(0x80, 9, value), &ebgp(), &discard(9));
        check("CLUSTER_LIST iBGP", &attr(0x80, 10, value), &ibgp(), &withdrawn());
        check("CLUSTER_LIST eBGP", &attr(0x80, 10, value), &ebgp(), &discard(10));
        check("COMMUNITIES", &attr(0xc0, 8, value), &ebgp(), &withdrawn());
    }
    let good = [0, 0, 0, 200];
    check("LOCAL_PREF eBGP, well-formed", &attr(0x40, 5, &good), &ebgp(), &discard(5));
    check("LOCAL_PREF iBGP, well-formed", &attr(0x40, 5, &good), &ibgp(), &Outcome::Valid);
    check("ORIGINATOR_ID eBGP, well-formed", &attr(0x80, 9, &good), &ebgp(), &discard(9));
    check("CLUSTER_LIST eBGP, well-formed", &attr(0x80, 10, &good), &ebgp(), &discard(10));
    check("ATOMIC_AGGREGATE", &attr(0x40, 6, &[0]), &ebgp(), &discard(6));
    check(
        "AGGREGATOR, six octets from four-octet peer",
        &attr(0xc0, 7, &[0xfb, 0xf0, 1, 2, 3, 4]),
        &ebgp(),
        &discard(7),
    );
    check("AGGREGATOR, empty", &attr(0xc0, 7, &[]), &ebgp(), &discard(7));
    check("AGGREGATOR, AS 0 (RFC 7607)", &attr(0xc0, 7, &[0, 0, 0, 0, 1, 2, 3, 4]), &ebgp(), &discard(7));
}

#[test]
fn section_7_11_next_hops_of_mp_reach() {
    let list = |value: &[u8]| body(&[], &[attr(0x80, 14, value), origin(), as_path()].concat(), &[]);
    for len in [0, 4, 8, 15, 17, 24, 31, 33, 48] {
        let outcome = update_outcome(&list(&mp_reach_value(&vec![0x20; len])), &ebgp());
        assert_eq!(outcome, Outcome::Reset(3, 9), "next hop of {len} octets");
    }
    for bad in [[0; 16], std::array::from_fn(|i| u8::from(i == 15)), [0xff; 16]] {
        let outcome = update_outcome(&list(&mp_reach_value(&bad)), &ebgp());
        assert_eq!(outcome, Outcome::Withdraw(vec!["2001:db8:1::/48".into()]), "{bad:?}");
    }
    let zero = [0; 16];
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
    let forms: [(&str, Vec<u8>, &str, Option<&str>); 7] = [
        ("global", GLOBAL.to_vec(), "2001:db8::1", None),
        ("global and link-local", [GLOBAL, LINK_LOCAL].concat(), "2001:db8::1", Some("fe80::1")),
        ("link-local alone", LINK_LOCAL.to_vec(), "fe80::1", Some("fe80::1")),
        ("link-local twice", [LINK_LOCAL, LINK_LOCAL].concat(), "fe80::1", Some("fe80::1")),
        ("unspecified and link-local", [zero, LINK_LOCAL].concat(), "fe80::1", Some("fe80::1")),
        ("global and unspecified", [GLOBAL, zero].concat(), "2001:db8::1", None),
        ("IPv4-mapped", mapped.to_vec(), "::ffff:192.0.2.1", None),
    ];
    for (what, octets, next_hop, link_local) in forms {
        let bytes = list(&mp_reach_value(&octets));
        let update = Update::decode(&bytes, &ebgp()).unwrap();
        let attributes = &update.reach[0].attributes;
        assert_eq!(attributes.next_hop, next_hop.parse::<IpAddr>().unwrap(), "{what}");
        assert_eq!(attributes.link_local, link_local.map(|l| l.parse().unwrap()), "{what}");
    }
}

#[test]
fn rfc_8950_ipv4_over_ipv6_next_hop() {
    let value = |next_hop: &[u8]| {
        let mut value = vec![0, 1, 1, u8::try_from(next_hop.len()).unwrap()];
        value.extend(next_hop);
        value.extend([0, 24, 198, 51, 100]);
        body(&[], &[attr(0x80, 14, &value), origin(), as_path()].concat(), &[])
    };
    assert_eq!(
        update_outcome(&value(&[192, 0, 2, 1]), &ebgp()),
        Outcome::Valid,
        "RFC 4760 has IPv4 in MP_REACH_NLRI"
    );
    assert_eq!(update_outcome(&value(&LINK_LOCAL), &ebgp()), Outcome::Reset(3, 9), "not negotiated");
    let session = Negotiated { ext_nexthop: true, ..ebgp() };
    for octets in [LINK_LOCAL.to_vec(), [LINK_LOCAL, LINK_LOCAL].concat(), [GLOBAL, LINK_LOCAL].concat()] {
        let bytes = value(&octets);
        let update = Update::decode(&bytes, &session).unwrap();
        assert_eq!(update.reach[0].nlri.family(), Family::Ipv4Unicast);
        assert!(update.reach[0].attributes.next_hop.addr().is_ipv6());
        assert_eq!(update.reach[0].nlri.cidrs().next().unwrap().to_string(), "198.51.100.0/24");
    }
}

#[test]
fn section_7_12_to_7_15() {
    for value in [&[][..], &[0], &[0, 2]] {
        let list = attr(0x80, 15, value);
        assert_eq!(
            update_outcome(&body(&[], &list, &[]), &ebgp()),
            Outcome::Reset(3, 9),
            "MP_UNREACH {value:?}"
        );
        let list = [attr(0x80, 14, value), mandatory()].concat();
        assert_eq!(
            update_outcome(&body(&[], &list, &[]), &ebgp()),
            Outcome::Reset(3, 9),
            "MP_REACH {value:?}"
        );
    }
    for (code, unit) in [(16, 8), (25, 20), (32, 12)] {
        for len in [0, 1, unit - 1, unit + 1] {
            check(&format!("{code} of {len}"), &attr(0xc0, code, &vec![1; len]), &ebgp(), &withdrawn());
        }
        check(&format!("{code} of {unit}"), &attr(0xc0, code, &vec![1; unit]), &ebgp(), &Outcome::Valid);
    }
    check("OTC (RFC 9234 5)", &attr(0xc0, 35, &[0; 3]), &ebgp(), &withdrawn());
}

#[test]
fn rfc_6793_four_octet_attributes() {
    let four = [attr(0xc0, 17, &[2, 1, 0, 1, 0, 0]), attr(0xc0, 18, &[0, 1, 0, 0, 1, 2, 3, 4])].concat();
    check("from a four-octet peer", &four, &ebgp(), &Outcome::Discard(vec![17, 18]));

    // AS_PATH with two-octet AS numbers, AS4_PATH, and the merged path.
    let merged = |short: &[u8], long: &[u8], extra: &[u8]| {
        let list =
            [origin(), attr(0x40, 2, short), next_hop(), attr(0xc0, 17, long), extra.to_vec()].concat();
        let bytes = body(&[], &list, &NLRI);
        let session = Negotiated { reject_as_sets: false, ..two_octets() };
        Update::decode(&bytes, &session).unwrap().reach[0].attributes.clone()
    };
    const TRANS: [u8; 2] = [0x5b, 0xa0];
    let short = [&[2, 3, 0xfb, 0xf0][..], &TRANS, &TRANS].concat();
    let two = [2, 2, 0, 1, 0, 0, 0, 1, 0, 1];
    assert_eq!(merged(&short, &two, &[]).as_path.to_string(), "64496 65536 65537");
    let longer = [2, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0, 2, 0, 1, 0, 3];
    assert_eq!(merged(&short, &longer, &[]).as_path.to_string(), "64496 23456 23456", "longer is ignored");
    let confed = [3, 1, 0, 1, 0, 9, 2, 2, 0, 1, 0, 0, 0, 1, 0, 1];
    assert_eq!(
        merged(&short, &confed, &[]).as_path.to_string(),
        "64496 65536 65537",
        "confederations are left out"
    );
    let with_set = [&[2, 2, 0xfb, 0xf0][..], &TRANS, &[1, 2], &TRANS, &TRANS].concat();
    let set = [2, 1, 0, 1, 0, 0, 1, 2, 0, 1, 0, 1, 0, 1, 0, 2];
    assert_eq!(
        merged(&with_set, &set, &[]).as_path.to_string(),
        "64496 65536 {65537,65538}",
        "a set counts as one"
    );

    let trans = attr(0xc0, 7, &[0x5b, 0xa0, 192, 0, 2, 1]);
    let real = attr(0xc0, 18, &[0, 1, 0, 5, 192, 0, 2, 2]);
    let a = merged(&short, &two, &[trans, real.clone()].concat());
    assert_eq!(a.aggregator().unwrap().asn, 65541);
    // Aggregated again by a two-octet speaker: both AS4 attributes are outdated.
    let again = attr(0xc0, 7, &[0xfb, 0xf0, 192, 0, 2, 1]);
    let a = merged(&short, &two, &[again, real].concat());
    assert_eq!(a.aggregator().unwrap().asn, 64496);
    assert_eq!(a.as_path.to_string(), "64496 23456 23456");
}

#[test]
fn end_of_rib() {
    let eor = |bytes: &[u8]| Update::decode(bytes, &ebgp()).unwrap().end_of_rib;
    assert_eq!(eor(&[0, 0, 0, 0]), Some(Family::Ipv4Unicast));
    assert_eq!(eor(&body(&[], &attr(0x80, 15, &[0, 2, 1]), &[])), Some(Family::Ipv6Unicast));
    assert_eq!(eor(&body(&[], &attr(0x80, 15, &[0, 1, 1]), &[])), Some(Family::Ipv4Unicast));
    assert_eq!(eor(&body(&[], &attr(0x90, 15, &[0, 2, 1]), &[])), Some(Family::Ipv6Unicast));
    assert_eq!(eor(&body(&[], &attr(0x80, 15, &[0, 1, 128]), &[])), None, "a family of others");
    assert_eq!(eor(&body(&[8, 10], &attr(0x80, 15, &[0, 2, 1]), &[])), None);
    assert_eq!(eor(&body(&[], &mandatory(), &[])), None);
}

#[test]
fn next_hop_next_to_mp_reach_alone_is_ignored() {
    let list = [mp_reach(), origin(), as_path(), attr(0x40, 3, &[0, 0, 0, 0])].concat();
    assert_eq!(update_outcome(&body(&[], &list, &[]), &ebgp()), Outcome::Valid);
}

#[test]
fn both_families_in_one_update() {
    let bytes = body(&[8, 10], &[mandatory(), mp_reach()].concat(), &NLRI);
    let update = Update::decode(&bytes, &ebgp()).unwrap();
    assert_eq!(update.withdrawn.len(), 1);
    let reach: Vec<_> = update.reach.iter().map(|r| (r.nlri.family(), r.attributes.next_hop)).collect();
    assert_eq!(
        reach,
        [
            (Family::Ipv4Unicast, "192.0.2.1".parse().unwrap()),
            (Family::Ipv6Unicast, "2001:db8::1".parse().unwrap())
        ]
    );
}

#[test]
fn families_that_were_not_negotiated_have_no_effect() {
    let v6 = Negotiated { families: Families::NONE.with(Family::Ipv6Unicast), ..ebgp() };
    assert_eq!(update_outcome(&with(&[]), &v6), Outcome::Ignored);
    assert_eq!(update_outcome(&[0, 0, 0, 0], &v6), Outcome::Ignored);
    let v4 = Negotiated { families: Families::NONE.with(Family::Ipv4Unicast), ..ebgp() };
    assert_eq!(update_outcome(&body(&[], &[mp_reach(), mandatory()].concat(), &[]), &v4), Outcome::Ignored);
}

#[test]
fn add_path_identifiers() {
    let session = Negotiated { add_path_receive: Families::NONE.with(Family::Ipv4Unicast), ..ebgp() };
    let bytes = body(&[], &mandatory(), &[0, 0, 0, 7, 24, 198, 51, 100, 0, 0, 0, 8, 0]);
    let update = Update::decode(&bytes, &session).unwrap();
    let entries: Vec<_> = update.reach[0].nlri.v4().map(|e| (e.path_id, e.prefix)).collect();
    assert_eq!(entries, [(7, (0xc633_6400, 24)), (8, (0, 0))]);
    let cut = body(&[], &mandatory(), &[0, 0, 0, 7, 24, 198, 51, 100, 0, 0, 0]);
    assert_eq!(update_outcome(&cut, &session), Outcome::Reset(3, 10));
}
