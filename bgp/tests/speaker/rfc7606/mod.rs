//! RFC 7606 as a table: every attribute with every error, from eBGP, iBGP and two-octet peers, each over the
//! life of a session. Checks: session up or reset, remaining prefixes, remaining attributes, and each octet
//! of the NOTIFICATION where one is required. Expectations are those of RFC 7606 3 to 7 and, for attributes
//! not named there, of the defining documents.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_bgp::attr::Attributes;
use tortie_bgp::wire::{Families, write_keepalive};
use tortie_bgp::{
    ConnId, Dial, Event, Family, Input, NextHopState, PeerId, RouteMatch, RouteQuery, RouteTable, Speaker,
    State, Transmit,
};
use tortie_net::Cidr;

use crate::message::{GLOBAL, NLRI, attr, body, framed, mp_reach_value};
use crate::support::{TakeAll, cidr, global, greeting, ip, open, peer, policy};

mod table;

use table::{cases, multiprotocol, specs};

const CONN: ConnId = ConnId(1);
const OURS: u32 = 64_512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Ebgp,
    Ibgp,
    /// eBGP with a two-octet peer (RFC 6793).
    TwoOctets,
}

const FROM: [From; 3] = [From::Ebgp, From::Ibgp, From::TwoOctets];

/// Handling of an error (RFC 7606 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// No error.
    Keep,
    /// Attribute discard.
    Discard,
    /// Treat-as-withdraw. The UPDATE Message Error subcode applies to an UPDATE without prefixes (section
    /// 5.2).
    Withdraw(u8),
    /// Session reset with this subcode.
    Reset(u8),
}

use Act::{Discard, Keep, Reset, Withdraw};

/// Position of the prefixes in the malformed UPDATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Classic,
    /// In MP_REACH_NLRI after all other attributes.
    Multiprotocol,
    Both,
    /// Attributes without prefixes.
    Bare,
}

const SHAPES: [Shape; 4] = [Shape::Classic, Shape::Multiprotocol, Shape::Both, Shape::Bare];
const V4: &str = "198.51.100.0/24";
const V6: &str = "2001:db8:1::/48";
/// Prefixes that no malformed UPDATE contains.
const OTHERS: [&str; 2] = ["203.0.113.0/24", "2001:db8:9::/48"];

/// A speaker with an established session on which the named prefixes and others were announced.
struct Probe {
    speaker: Speaker,
    now: Instant,
    from: From,
    events: Vec<Event>,
}

fn as_path(from: From, ases: &[u16]) -> Vec<u8> {
    let octets = ases.iter().flat_map(|a| match from {
        From::TwoOctets => a.to_be_bytes().to_vec(),
        _ => u32::from(*a).to_be_bytes().to_vec(),
    });
    let mut value = vec![2, u8::try_from(ases.len()).unwrap()];
    value.extend(octets);
    value
}

impl Probe {
    fn new(from: From) -> Self {
        let now = Instant::now();
        let mut probe =
            Self { speaker: Speaker::new(global(OURS, 1), policy(TakeAll), now), now, from, events: vec![] };
        let asn = if from == From::Ibgp { OURS } else { 64_496 };
        let mut config = peer(ip("192.0.2.1"), asn);
        config.dial = Dial::Passive;
        config.families = Family::ALL.to_vec();
        probe.give(Input::LocalReady);
        probe.give(Input::Peer(PeerId(1), Box::new(config)));
        let (local, remote) =
            (SocketAddr::new(ip("192.0.2.77"), 179), SocketAddr::new(ip("192.0.2.1"), 40_000));
        probe.give(Input::Accepted { conn: CONN, local, remote });
        let mut theirs = open(asn, 0xc000_0201);
        theirs.capabilities.families = Families::ALL;
        if from == From::TwoOctets {
            theirs.capabilities.as4 = None;
        }
        probe.give(Input::Data(CONN, &greeting(&theirs)));
        assert_eq!(probe.state(), State::Established);
        let before = [
            attr(0x40, 1, &[0]),
            attr(0x40, 2, &as_path(from, &[64_496, 64_999])),
            attr(0x40, 3, &[192, 0, 2, 1]),
        ]
        .concat();
        let v6 = |low| {
            let mut value = mp_reach_value(&GLOBAL);
            *value.last_mut().unwrap() = low;
            attr(0x80, 14, &value)
        };
        let classic = [&NLRI[..], &[24, 203, 0, 113]].concat();
        for update in [
            body(&[], &before, &classic),
            body(&[], &[before.clone(), v6(1)].concat(), &[]),
            body(&[], &[before.clone(), v6(9)].concat(), &[]),
        ] {
            probe.give(Input::Data(CONN, &framed(2, &update)));
        }
        assert_eq!(probe.table().len(), 4);
        probe.sent();
        probe.events.clear();
        probe
    }

    fn give(&mut self, input: Input<'_>) {
        self.speaker.handle(input, self.now);
        while let Some(event) = self.speaker.poll_event() {
            if let Event::TrackNextHop(a) = event {
                let state = NextHopState::Reachable { metric: 0, on_link: true };
                self.speaker.handle(Input::NextHop(a, state), self.now);
            }
            self.events.push(event);
        }
        while self.speaker.poll_timeout().is_some_and(|t| t <= self.now) {
            self.speaker.handle(Input::Tick, self.now);
        }
    }

    fn state(&self) -> State {
        self.speaker.peer(PeerId(1), self.now).unwrap().state
    }

    fn sent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.speaker.poll_transmit(CONN, &mut bytes, 4096, self.now) == Transmit::More {}
        bytes
    }

    fn table(&self) -> BTreeMap<Cidr, Arc<Attributes>> {
        let all = Family::ALL.into_iter().flat_map(|family| {
            let query = RouteQuery { table: RouteTable::AdjIn(PeerId(1)), matching: RouteMatch::All(family) };
            self.speaker.routes(&query, None, 100)
        });
        all.map(|r| (r.prefix, r.paths[0].attributes.clone())).collect()
    }
}

/// One case of the table.
struct Case {
    /// Section, attribute and error.
    what: String,
    /// Type code of the mandatory attribute to replace; other attributes are added.
    code: u8,
    /// Encoded attribute or attributes; empty: missing.
    octets: Vec<u8>,
    /// Expected data of the NOTIFICATION.
    data: Vec<u8>,
    act: Act,
    shapes: &'static [Shape],
}

/// Encodes an UPDATE with this attribute in this shape.
fn update(from: From, shape: Shape, code: u8, octets: &[u8]) -> Vec<u8> {
    let classic = matches!(shape, Shape::Classic | Shape::Both | Shape::Bare);
    let mut list = Vec::new();
    let base = [
        (1, attr(0x40, 1, &[0]), true),
        (2, attr(0x40, 2, &as_path(from, &[64_496])), true),
        (3, attr(0x40, 3, &[192, 0, 2, 1]), classic),
    ];
    for (own, good, wanted) in base {
        if own != code && wanted {
            list.extend(good);
        }
    }
    list.extend(octets);
    if matches!(shape, Shape::Multiprotocol | Shape::Both) && code != 14 {
        list.extend(attr(0x80, 14, &mp_reach_value(&GLOBAL)));
    }
    body(&[], &list, if matches!(shape, Shape::Classic | Shape::Both) { &NLRI } else { &[] })
}

fn named(shape: Shape) -> Vec<Cidr> {
    match shape {
        Shape::Classic => vec![cidr(V4)],
        Shape::Multiprotocol => vec![cidr(V6)],
        Shape::Both => vec![cidr(V4), cidr(V6)],
        Shape::Bare => vec![],
    }
}

/// Returns true if a route has the attribute with this code. `None`: unknown, or mandatory.
fn has(a: &Attributes, code: u8) -> Option<bool> {
    Some(match code {
        4 => a.med.is_some(),
        5 => a.local_pref.is_some(),
        6 => a.atomic_aggregate,
        7 => a.aggregator().is_some(),
        8 => !a.communities.is_empty(),
        9 => a.originator_id().is_some(),
        10 => !a.cluster_list().is_empty(),
        16 => !a.ext_communities().is_empty(),
        32 => !a.large_communities.is_empty(),
        35 => a.otc().is_some(),
        25 | 26 | 40 | 99 | 200 => a.opaque().iter().any(|o| o.code == code),
        _ => return None,
    })
}

fn notification(subcode: u8, data: &[u8]) -> Vec<u8> {
    framed(3, &[&[3, subcode], data].concat())
}

/// Checks that the routes of other prefixes are unchanged. `None`: they are.
fn untouched(probe: &Probe, shape: Shape) -> Option<String> {
    let table = probe.table();
    let before = [V4, V6, OTHERS[0], OTHERS[1]].map(cidr);
    before.into_iter().filter(|p| !named(shape).contains(p)).find_map(|prefix| {
        let route = table.get(&prefix);
        let same = route.is_some_and(|a| a.as_path.to_string() == "64496 64999");
        (!same).then(|| format!("{prefix} was not named, and is {route:?} now"))
    })
}

/// Runs a case in one shape. `Some`: description of the failure.
fn run(from: From, shape: Shape, case: &Case) -> Option<String> {
    let mut probe = Probe::new(from);
    let message = framed(2, &update(from, shape, case.code, &case.octets));
    probe.give(Input::Data(CONN, &message));
    let act = match case.act {
        Withdraw(subcode) if shape == Shape::Bare => Reset(subcode),
        act => act,
    };
    if let Reset(subcode) = act {
        let expected = notification(subcode, &case.data);
        let sent = probe.sent();
        if sent != expected {
            return Some(format!("sent {sent:02x?} instead of {expected:02x?}"));
        }
        if probe.state() == State::Established || !probe.events.contains(&Event::Close(CONN)) {
            return Some("the session was not closed".into());
        }
        return (!probe.table().is_empty()).then(|| "routes outlive the reset".into());
    }
    if probe.state() != State::Established {
        return Some(format!("the session is down: {:02x?}", probe.sent()));
    }
    if let Some(wrong) = untouched(&probe, shape) {
        return Some(wrong);
    }
    for prefix in named(shape) {
        let route = probe.table().remove(&prefix);
        match (act, &route) {
            (Withdraw(_), None) => {}
            (Keep | Discard, Some(a)) if a.as_path.first() == Some(64_496) && a.as_path.hops() < 2 => {
                if has(a, case.code).is_some_and(|has| has != (act == Keep)) {
                    return Some(format!("{act:?}, and {prefix} has {a:?}"));
                }
            }
            _ => return Some(format!("{act:?}, and {prefix} is {route:?}")),
        }
    }
    // The session still works: withdrawn prefixes can be announced again.
    let good = update(from, shape, 0, &[]);
    let mut more = framed(2, &good);
    write_keepalive(&mut more);
    probe.give(Input::Data(CONN, &more));
    let all = named(shape).iter().all(|p| probe.table().contains_key(p));
    (!all || probe.state() != State::Established).then(|| "the session does not work afterwards".into())
}

fn check(failures: &mut Vec<String>, from: From, case: &Case) -> usize {
    for shape in case.shapes {
        if let Some(wrong) = run(from, *shape, case) {
            failures.push(format!("{}, from {from:?}, {shape:?}: {wrong}", case.what));
        }
    }
    case.shapes.len()
}

#[test]
fn every_attribute_with_every_error_from_every_peer() {
    let (mut failures, mut count) = (Vec::new(), 0);
    for from in FROM {
        for spec in specs() {
            for case in cases(&spec, from) {
                count += check(&mut failures, from, &case);
            }
        }
        for case in multiprotocol() {
            count += check(&mut failures, from, &case);
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {count}:\n{}",
        failures.len(),
        failures[..failures.len().min(30)].join("\n")
    );
    assert!(count > 1500, "only {count} cases");
}

/// RFC 7606 3 c for MP_REACH_NLRI and MP_UNREACH_NLRI: their prefixes can be located, so they are withdrawn.
#[test]
fn wrong_flags_of_multiprotocol_attributes() {
    for from in FROM {
        for flags in [0x00, 0x40, 0xc0] {
            let withdraws = |body: &[u8]| {
                let mut probe = Probe::new(from);
                probe.give(Input::Data(CONN, &framed(2, body)));
                assert_eq!(
                    probe.table().into_keys().collect::<Vec<_>>(),
                    OTHERS.map(cidr),
                    "{from:?} {flags:#x}"
                );
                assert_eq!(probe.state(), State::Established);
            };
            let reach = attr(flags, 14, &mp_reach_value(&GLOBAL));
            withdraws(&update(from, Shape::Classic, 14, &reach));
            let unreach = attr(flags, 15, &mp_reach_value(&[])[..3]);
            let unreach = [&unreach[..], &[]].concat();
            withdraws(&update(from, Shape::Both, 15, &unreach));
            // Section 5.2 requires a reset only if other attributes are present: here no prefix can be
            // missing.
            let unreach = attr(flags, 15, &[0, 2, 1, 48, 0x20, 1, 0xd, 0xb8, 0, 1]);
            withdraws(&body(&NLRI, &unreach, &[]));
            let mut probe = Probe::new(from);
            probe.give(Input::Data(CONN, &framed(2, &update(from, Shape::Bare, 15, &unreach))));
            assert_eq!(probe.sent(), notification(4, &unreach), "{from:?} {flags:#x}");
        }
    }
}

/// RFC 4271 5 and 6.3, RFC 7606 3 f: unrecognised attributes.
#[test]
fn unrecognised_attributes() {
    for from in FROM {
        let case = |flags, act, what: &str| {
            let octets = attr(flags, 200, &[1, 2, 3]);
            Case { what: what.into(), code: 200, octets: octets.clone(), data: octets, act, shapes: &SHAPES }
        };
        let mut failures = Vec::new();
        check(&mut failures, from, &case(0xc0, Keep, "optional transitive"));
        check(&mut failures, from, &case(0x80, Discard, "optional non-transitive"));
        check(&mut failures, from, &case(0x40, Reset(2), "well-known"));
        check(&mut failures, from, &case(0x00, Reset(2), "well-known, not even transitive"));
        assert!(failures.is_empty(), "{failures:?}");
    }
}

/// RFC 7606 4 and 5.3: if the length fields of the message contradict each other, its parts cannot be
/// located.
#[test]
fn framing_of_an_update() {
    let long_nlri =
        |nlri: &[u8]| update(From::Ebgp, Shape::Bare, 0, &[]).into_iter().chain(nlri.to_vec()).collect();
    let rows: [(&str, Vec<u8>, u8); 9] = [
        ("empty", vec![], 1),
        ("one octet", vec![0], 1),
        ("withdrawn routes longer than the message", vec![0, 9, 0, 0], 1),
        ("no attribute length", vec![0, 0, 0], 1),
        ("attributes longer than the message", vec![0, 0, 0, 9, 0x40, 1], 1),
        ("prefix of 33 bits", long_nlri(&[33, 1, 2, 3, 4, 5]), 10),
        ("prefix cut", long_nlri(&[24, 1, 2]), 10),
        ("withdrawn prefix of 33 bits", body(&[33, 1, 2, 3, 4, 5], &[], &[]), 10),
        ("withdrawn prefix cut", body(&[24, 1, 2], &[], &[]), 10),
    ];
    for (what, body, subcode) in rows {
        let mut probe = Probe::new(From::Ebgp);
        let message = framed(2, &body);
        probe.give(Input::Data(CONN, &message));
        let expected = match body.len() {
            // RFC 4271 6.1: shorter than the minimum UPDATE, with the length as data.
            0..4 => framed(3, &[1, 2, 0, 19 + u8::try_from(body.len()).unwrap()]),
            _ => notification(subcode, &[]),
        };
        assert_eq!(probe.sent(), expected, "{what}");
        assert_ne!(probe.state(), State::Established, "{what}");
        assert!(probe.table().is_empty(), "{what}");
    }
}
