//! Rows of the table: attributes, their errors and the expected handling.

use super::Act::{self, Discard, Keep, Reset, Withdraw};
use super::{Case, From, SHAPES, Shape, as_path};
use crate::message::{GLOBAL, attr, mp_reach_value};

/// An invalid value: description, octets, and the subcode of section 5.2.
type Value = (&'static str, Vec<u8>, u8);

/// An attribute and the handling of its errors.
pub(super) struct Spec {
    section: &'static str,
    name: &'static str,
    code: u8,
    flags: u8,
    good: fn(From) -> Vec<u8>,
    lengths: &'static [usize],
    values: fn(From) -> Vec<Value>,
    /// Handling of a valid attribute, of wrong flags, and of an invalid value.
    acts: fn(From) -> [Act; 3],
}

const NONE: fn(From) -> Vec<Value> = |_| vec![];
/// Section 3 c; sections 7.1 and following.
const STRICT: fn(From) -> [Act; 3] = |_| [Keep, Withdraw(4), Withdraw(5)];
/// Sections 7.5, 7.9 and 7.10: not accepted from eBGP peers, whatever the value.
const INTERNAL: fn(From) -> [Act; 3] = |from| match from {
    From::Ibgp => [Keep, Withdraw(4), Withdraw(5)],
    _ => [Discard; 3],
};
/// RFC 6793 4.1 and 6: accepted from two-octet peers only, and discarded if malformed. That section does not
/// mention flags, so RFC 7606 3 c applies to them.
const TWO_OCTETS: fn(From) -> [Act; 3] = |from| match from {
    From::TwoOctets => [Keep, Withdraw(4), Discard],
    _ => [Discard; 3],
};

fn segments(from: From, list: &[(u8, &[u16])]) -> Vec<u8> {
    list.iter()
        .flat_map(|(kind, ases)| {
            let mut one = as_path(from, ases);
            one[0] = *kind;
            one
        })
        .collect()
}

fn bad_paths(from: From) -> Vec<Value> {
    let good = as_path(from, &[64_496]);
    let mut overrun = good.clone();
    overrun[1] = 2;
    let mut cut = good.clone();
    cut.pop();
    vec![
        ("unknown segment type", segments(from, &[(5, &[64_496])]), 11),
        ("segment type 0", segments(from, &[(0, &[64_496])]), 11),
        ("segment longer than the path", overrun, 11),
        ("last AS cut", cut, 11),
        ("one octet behind the last segment", [good.clone(), vec![2]].concat(), 11),
        ("empty segment", [good, vec![2, 0]].concat(), 11),
        ("AS 0 (RFC 7607)", segments(from, &[(2, &[0])]), 11),
        ("confederation sequence (RFC 5065 5)", segments(from, &[(3, &[64_496])]), 11),
        ("confederation set (RFC 5065 5)", segments(from, &[(4, &[64_496])]), 11),
    ]
}

fn aggregator(from: From) -> Vec<u8> {
    if from == From::TwoOctets {
        vec![0xfb, 0xf0, 192, 0, 2, 1]
    } else {
        vec![0, 0, 0xfb, 0xf0, 192, 0, 2, 1]
    }
}

pub(super) fn specs() -> Vec<Spec> {
    vec![
        Spec {
            section: "7.1",
            name: "ORIGIN",
            code: 1,
            flags: 0x40,
            good: |_| vec![0],
            lengths: &[0, 2],
            values: |_| vec![("3", vec![3], 6), ("255", vec![255], 6)],
            acts: STRICT,
        },
        Spec {
            section: "7.2",
            name: "AS_PATH",
            code: 2,
            flags: 0x40,
            good: |from| as_path(from, &[64_496]),
            lengths: &[],
            values: bad_paths,
            acts: STRICT,
        },
        Spec {
            section: "7.3",
            name: "NEXT_HOP",
            code: 3,
            flags: 0x40,
            good: |_| vec![192, 0, 2, 1],
            lengths: &[0, 3, 5, 16],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "7.4",
            name: "MULTI_EXIT_DISC",
            code: 4,
            flags: 0x80,
            good: |_| vec![0, 0, 0, 1],
            lengths: &[0, 3, 5, 8],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "7.5",
            name: "LOCAL_PREF",
            code: 5,
            flags: 0x40,
            good: |_| vec![0, 0, 0, 200],
            lengths: &[0, 3, 5, 8],
            values: NONE,
            acts: INTERNAL,
        },
        Spec {
            section: "7.6",
            name: "ATOMIC_AGGREGATE",
            code: 6,
            flags: 0x40,
            good: |_| vec![],
            lengths: &[1, 4],
            values: NONE,
            acts: |_| [Keep, Withdraw(4), Discard],
        },
        Spec {
            section: "7.7",
            name: "AGGREGATOR",
            code: 7,
            flags: 0xc0,
            good: aggregator,
            lengths: &[0, 5, 7, 9],
            values: |from| {
                let (mut zero, other) = (
                    aggregator(from),
                    aggregator(match from {
                        From::TwoOctets => From::Ebgp,
                        _ => From::TwoOctets,
                    }),
                );
                let octets = zero.len() - 4;
                zero[..octets].fill(0);
                vec![("AS 0 (RFC 7607)", zero, 9), ("the other AS width", other, 9)]
            },
            acts: |_| [Keep, Withdraw(4), Discard],
        },
        Spec {
            section: "7.8",
            name: "COMMUNITIES",
            code: 8,
            flags: 0xc0,
            good: |_| vec![0xfb, 0xf0, 0, 1],
            lengths: &[0, 1, 3, 5],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "7.9",
            name: "ORIGINATOR_ID",
            code: 9,
            flags: 0x80,
            good: |_| vec![192, 0, 2, 9],
            lengths: &[0, 3, 5, 8],
            values: NONE,
            acts: INTERNAL,
        },
        Spec {
            section: "7.10",
            name: "CLUSTER_LIST",
            code: 10,
            flags: 0x80,
            good: |_| vec![192, 0, 2, 9],
            lengths: &[0, 1, 3, 5],
            values: NONE,
            acts: INTERNAL,
        },
        Spec {
            section: "7.14",
            name: "extended communities",
            code: 16,
            flags: 0xc0,
            good: |_| vec![0, 2, 0xfb, 0xf0, 0, 0, 0, 1],
            lengths: &[0, 1, 7, 9],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "RFC 6793 6",
            name: "AS4_PATH",
            code: 17,
            flags: 0xc0,
            good: |_| vec![2, 1, 0, 0, 0xfb, 0xf0],
            lengths: &[],
            values: |_| {
                let four = From::Ebgp;
                let mut bad: Vec<_> = bad_paths(four);
                // Confederation segments are removed, which is not an error of the attribute.
                bad.retain(|(what, ..)| !what.starts_with("confederation"));
                bad
            },
            acts: TWO_OCTETS,
        },
        Spec {
            section: "RFC 6793 6",
            name: "AS4_AGGREGATOR",
            code: 18,
            flags: 0xc0,
            good: |_| vec![0, 1, 0, 0, 192, 0, 2, 1],
            lengths: &[0, 6, 7, 9],
            values: |_| vec![("AS 0 (RFC 7607)", vec![0, 0, 0, 0, 192, 0, 2, 1], 9)],
            acts: TWO_OCTETS,
        },
        Spec {
            section: "7.15",
            name: "IPv6 extended communities",
            code: 25,
            flags: 0xc0,
            good: |_| vec![1; 20],
            lengths: &[0, 1, 8, 19, 21],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "RFC 7311 3.3",
            name: "AIGP",
            code: 26,
            flags: 0x80,
            good: |_| vec![1, 0, 11, 0, 0, 0, 0, 0, 0, 0, 1],
            lengths: &[0, 1, 2],
            values: |_| vec![("TLV of two octets", vec![1, 0, 2], 9)],
            acts: |_| [Discard; 3],
        },
        Spec {
            section: "RFC 8092 6",
            name: "large communities",
            code: 32,
            flags: 0xc0,
            good: |_| vec![0, 0, 0xfb, 0xf0, 0, 0, 0, 1, 0, 0, 0, 2],
            lengths: &[0, 1, 11, 13],
            values: NONE,
            acts: STRICT,
        },
        Spec {
            section: "RFC 9234 5",
            name: "ONLY_TO_CUSTOMER",
            code: 35,
            flags: 0xc0,
            good: |_| vec![0, 0, 0xfb, 0xf0],
            lengths: &[0, 3, 5, 8],
            values: NONE,
            acts: STRICT,
        },
    ]
}

/// Returns the cases of one attribute from one type of peer.
pub(super) fn cases(spec: &Spec, from: From) -> Vec<Case> {
    let [good_act, flags_act, bad_act] = (spec.acts)(from);
    let good = (spec.good)(from);
    let case = |what: String, octets: Vec<u8>, data: Vec<u8>, act| Case {
        what: format!("{} {}: {what}", spec.section, spec.name),
        code: spec.code,
        octets,
        data,
        act,
        shapes: &SHAPES,
    };
    let one = |what: String, flags: u8, value: &[u8], act| {
        let octets = attr(flags, spec.code, value);
        case(what, octets.clone(), octets, act)
    };
    let coded = |subcode| match bad_act {
        Withdraw(_) => Withdraw(subcode),
        act => act,
    };
    let mut all = vec![
        one("good".into(), spec.flags, &good, good_act),
        one("good, with Partial and the unused bits".into(), spec.flags | 0x2f, &good, good_act),
        one("good, extended length".into(), spec.flags | 0x10, &good, good_act),
    ];
    // Section 3 c.
    for flags in [0x00, 0x40, 0x80, 0xc0].into_iter().filter(|f| *f != spec.flags) {
        all.push(one(format!("flags {flags:#04x}"), flags, &good, flags_act));
    }
    for len in spec.lengths {
        all.push(one(format!("{len} octets"), spec.flags, &vec![1; *len], coded(5)));
    }
    for (what, value, subcode) in (spec.values)(from) {
        all.push(one(what.into(), spec.flags, &value, coded(subcode)));
    }
    // Section 3 g: the first one applies.
    let twice = attr(spec.flags, spec.code, &good).repeat(2);
    all.push(case("twice".into(), twice, vec![], good_act));
    // Section 4: the list ends inside the attribute. Later octets would be part of it, so prefixes are in the
    // NLRI field only.
    let mut cut = attr(spec.flags | 0x10, spec.code, &good);
    cut[2] = 0x20;
    all.push(Case {
        shapes: &[Shape::Classic, Shape::Bare],
        ..case("longer than the list".into(), cut, vec![], Withdraw(1))
    });
    if spec.code <= 3 {
        // Section 3 d.
        let shapes: &[_] = if spec.code == 3 {
            &[Shape::Classic, Shape::Both]
        } else {
            &[Shape::Classic, Shape::Multiprotocol, Shape::Both]
        };
        all.push(Case { shapes, ..case("missing".into(), vec![], vec![spec.code], Withdraw(3)) });
    }
    if spec.code == 3 {
        // RFC 4271 6.3. With prefixes in MP_REACH_NLRI only, NEXT_HOP is ignored (RFC 4760 3).
        for bad in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255]] {
            let octets = attr(0x40, 3, &bad);
            let what = format!("{bad:?}");
            let shapes = &[Shape::Classic, Shape::Both];
            all.push(Case { shapes, ..case(what.clone(), octets.clone(), vec![], Withdraw(8)) });
            all.push(Case { shapes: &[Shape::Multiprotocol], ..case(what, octets, vec![], Keep) });
        }
    }
    if spec.code == 2 {
        // RFC 9774; only with announced prefixes.
        let set = attr(0x40, 2, &segments(from, &[(2, &[64_496]), (1, &[64_497])]));
        let shapes = &[Shape::Classic, Shape::Multiprotocol, Shape::Both];
        all.push(Case { shapes, ..case("AS_SET (RFC 9774)".into(), set, vec![], Withdraw(11)) });
    }
    all
}

/// MP_REACH_NLRI and MP_UNREACH_NLRI: most errors prevent the prefixes from being located (sections 5.3,
/// 7.11, 7.12). The code is Optional Attribute Error (RFC 4760 7), not Invalid Network Field as for the NLRI
/// field.
pub(super) fn multiprotocol() -> Vec<Case> {
    let case = |what: String, code, octets: Vec<u8>, data: Vec<u8>, act, shapes| Case {
        what: format!("7.{} {what}", code - 3),
        code,
        octets,
        data,
        act,
        shapes,
    };
    const CLASSIC: &[Shape] = &[Shape::Classic, Shape::Bare];
    let mut all = Vec::new();
    let one = |what: &str, code, value: &[u8], act| {
        let octets = attr(0x80, code, value);
        case(what.into(), code, octets.clone(), octets, act, CLASSIC)
    };
    for len in 0..4 {
        all.push(one("MP_REACH_NLRI too short", 14, &[0, 2, 1, 16][..len], Reset(9)));
    }
    for len in 0..3 {
        all.push(one("MP_UNREACH_NLRI too short", 15, &[0, 2, 1][..len], Reset(9)));
    }
    all.push(one("next hop longer than the attribute", 14, &[0, 2, 1, 16, 0x20, 1], Reset(9)));
    for len in [0, 4, 15, 17, 24, 31, 33, 48] {
        all.push(one(&format!("next hop of {len} octets"), 14, &mp_reach_value(&vec![0x20; len]), Reset(9)));
    }
    let long = [&mp_reach_value(&GLOBAL)[..], &[129, 1]].concat();
    all.push(one("prefix of 129 bits", 14, &long, Reset(9)));
    let cut = [&mp_reach_value(&GLOBAL)[..], &[64, 0x20, 1]].concat();
    all.push(one("prefix longer than the attribute", 14, &cut, Reset(9)));
    all.push(one("withdrawn prefix of 129 bits", 15, &[0, 2, 1, 129], Reset(9)));
    all.push(one("withdrawn prefix longer than the attribute", 15, &[0, 2, 1, 64, 0x20], Reset(9)));
    // A family that was not negotiated.
    all.push(Case { shapes: &[Shape::Classic], ..one("of a foreign family", 15, &[0, 1, 128, 0], Keep) });
    for (code, value) in [(14, mp_reach_value(&GLOBAL)), (15, vec![0, 2, 1])] {
        let octets = attr(0x80, code, &value);
        all.push(case("twice".into(), code, octets.repeat(2), octets.clone(), Reset(1), CLASSIC));
        let mut cut = attr(0x90, code, &value);
        cut[2] = 0x20;
        all.push(case("longer than the list".into(), code, cut, vec![], Reset(1), CLASSIC));
    }
    all
}
