//! Message shapes of published vulnerabilities and incidents, with the behaviour of a conforming speaker.

use std::net::SocketAddr;
use std::time::Instant;

use tortie_bgp::wire::{ErrorCode, Frame, Negotiated, Open, Update, UpdateTemplate};
use tortie_bgp::{ConnId, Dial, Event, Family, Input, PeerId, Speaker};

use crate::message::*;
use crate::support;

/// Permitted outcomes of a message shape.
enum Expect {
    /// A session reset with this code and one of these subcodes.
    Reset(u8, &'static [u8]),
    /// Treat-as-withdraw of 198.51.100.0/24.
    Withdraw,
    /// These attributes are discarded, the routes are kept.
    Discard(&'static [u8]),
    /// No error.
    Valid,
    /// An attribute of this code is passed on with the Partial bit.
    Partial(u8),
    /// One of several outcomes; what matters is no panic, no hang and no read beyond the end.
    AnyOf(&'static [Self]),
    /// No effect.
    Ignored,
}

use Expect::*;

fn matches(expect: &Expect, message: &[u8], session: &Negotiated) -> bool {
    match (expect, outcome(message, session)) {
        (Reset(code, subs), Outcome::Reset(c, s)) => c == *code && subs.contains(&s),
        (Withdraw, Outcome::Withdraw(prefixes)) => {
            prefixes.is_empty() || prefixes.contains(&"198.51.100.0/24".to_owned())
        }
        (Discard(codes), Outcome::Discard(left_out)) => left_out == *codes,
        (Valid, Outcome::Valid) | (Ignored, Outcome::Ignored) => true,
        (Partial(code), Outcome::Valid) => {
            let frame = Frame::next(message, session.extended).unwrap().unwrap();
            let update = Update::decode(frame.body, session).unwrap();
            let kept = update.reach[0].attributes.opaque();
            let template =
                UpdateTemplate::new(&update.reach[0].attributes, Family::Ipv4Unicast, session).unwrap();
            let mut out = Vec::new();
            let mut writer = template.begin(&mut out);
            assert!(writer.push((0xc633_6400u32, 24), 0));
            writer.finish();
            let again = Frame::next(&out, session.extended).unwrap().unwrap();
            let again = Update::decode(again.body, session).unwrap();
            kept == again.reach[0].attributes.opaque()
                && kept.iter().any(|o| o.code == *code && o.flags == 0xe0)
        }
        (AnyOf(all), _) => all.iter().any(|e| matches(e, message, session)),
        _ => false,
    }
}

#[track_caller]
fn shape(id: &str, message: &[u8], session: &Negotiated, expect: &Expect) {
    let outcome = outcome(message, session);
    assert!(matches(expect, message, session), "{id}: {outcome:?}");
    let ends = matches!(outcome, Outcome::Reset(..) | Outcome::Closed(_));
    assert_eq!(survives(message, session), !ends, "{id}: the session does not follow {outcome:?}");
}

/// Returns true if a speaker keeps the connection on which this message arrives. Panics if it does not become
/// idle.
fn survives(message: &[u8], session: &Negotiated) -> bool {
    let now = Instant::now();
    let mut speaker = Speaker::new(support::global(64512, 1), support::policy(support::TakeAll), now);
    let asn = if session.ebgp { 64496 } else { 64512 };
    let mut config = support::peer(support::ip("192.0.2.1"), asn);
    config.dial = Dial::Passive;
    config.families = Family::ALL.to_vec();
    config.extended_messages = true;
    let (local, remote) =
        (SocketAddr::from(([192, 0, 2, 77], 179)), SocketAddr::from(([192, 0, 2, 1], 40_000)));
    let mut theirs = support::open(asn, 0xc000_0201);
    theirs.capabilities.families = session.families;
    theirs.capabilities.extended_messages = session.extended;
    theirs.capabilities.as4 = session.as4.then_some(asn);
    speaker.handle(Input::Peer(PeerId(1), Box::new(config)), now);
    speaker.handle(Input::LocalReady, now);
    speaker.handle(Input::Accepted { conn: ConnId(1), local, remote }, now);
    // OPEN is the first message of a session.
    if message[18] != 1 {
        speaker.handle(Input::Data(ConnId(1), &support::greeting(&theirs)), now);
    }
    speaker.handle(Input::Data(ConnId(1), message), now);
    for _ in 0..1000 {
        if speaker.poll_timeout().is_none_or(|at| at > now) {
            let closed = std::iter::from_fn(|| speaker.poll_event()).any(|e| e == Event::Close(ConnId(1)));
            return !closed;
        }
        speaker.handle(Input::Tick, now);
    }
    panic!("the speaker does not come to rest");
}

/// Returns an OPEN of AS 64496 with these octets from the optional parameter length on.
fn open(parameters: &[u8]) -> Vec<u8> {
    let mut body = vec![4, 0xfb, 0xf0, 0, 90, 192, 0, 2, 1];
    body.extend(parameters);
    framed(1, &body)
}

/// Returns an OPEN with one Capabilities parameter.
fn capability(value: &[u8]) -> Vec<u8> {
    let len = u8::try_from(value.len()).unwrap();
    open(&[&[len + 2, 2, len], value].concat())
}

const MALFORMED_OPEN: Expect = Reset(2, &[0, 4, 7]);
const MP_RESET: Expect = Reset(3, &[1, 5, 9, 10]);

#[test]
fn open_shapes() {
    let s = ebgp();
    let ignored_or_reset = AnyOf(&[Valid, Reset(2, &[0, 4, 7])]);
    shape("CVE-2022-40302", &open(&[255, 255, 1, 0, 2, 0, 2, 2, 0]), &s, &MALFORMED_OPEN);
    shape("CVE-2022-40318", &open(&[255, 255, 0, 2, 2, 0]), &s, &MALFORMED_OPEN);
    shape("CVE-2022-43681", &open(&[255]), &s, &MALFORMED_OPEN);
    shape("CVE-2022-43681 b", &open(&[1, 2]), &s, &MALFORMED_OPEN);
    shape("CVE-2022-36440", &capability(&[65, 4, 0, 0]), &s, &MALFORMED_OPEN);
    shape("CVE-2022-37032", &framed(6, &[1]), &s, &Reset(1, &[3]));
    shape("CVE-2024-31949", &framed(6, &[0x80, 0, 0, 0, 1, 1, 4, 0x7f, 0xff, 0, 99]), &s, &Reset(1, &[3]));
    shape("CVE-2023-31489", &capability(&[71, 6, 0, 1, 1, 0x80, 0, 1]), &s, &ignored_or_reset);
    shape("CVE-2023-41361", &capability(&[75, 4, 64, b'F', b'R', b'R']), &s, &ignored_or_reset);
    let mut long = vec![75, 200, 199];
    long.extend([b'x'; 199]);
    shape("CVE-2023-41361 b", &capability(&long), &s, &ignored_or_reset);
    shape("CVE-2025-43971", &capability(&[75, 1, 0]), &s, &ignored_or_reset);
    shape("CVE-2018-5381", &capability(&[64, 6, 0, 120, 0x40, 4, 0x55, 0x80]), &s, &Valid);
}

#[test]
fn graceful_restart_with_unknown_families_keeps_the_known() {
    let message = capability(&[64, 10, 0xc0, 120, 0x40, 4, 0x55, 0x80, 0, 2, 1, 0x80]);
    let frame = Frame::next(&message, false).unwrap().unwrap();
    let restart = Open::decode(frame.body).unwrap().capabilities.graceful_restart.unwrap();
    assert_eq!(restart.families.as_slice(), &[(Family::Ipv6Unicast, true)]);
    assert!(restart.restarted && restart.notification);
    assert_eq!(restart.time, 120);
}

fn update(id: &str, attributes: &[u8], expect: &Expect) {
    shape(id, &framed(2, &with(attributes)), &ebgp(), expect);
}

#[test]
fn passed_on_attribute_shapes() {
    let any = AnyOf(&[Discard(&[40]), Withdraw, Valid]);
    let srv6 = [5, 0, 10, 0, 1, 0, 30, 0x20, 1, 0xd, 0xb8, 0, 0];
    update("CVE-2023-31490", &attr(0xc0, 40, &srv6), &any);
    let corrupt = [attr(0xc0, 40, &[1, 0, 200, 0]), attr(0xc0, 8, &[0xfb, 0xf0, 0, 1])].concat();
    update("CVE-2024-31948", &corrupt, &any);
    update("incident-2025-05-20", &attr(0xc0, 40, &[0; 16]), &AnyOf(&[Discard(&[40]), Valid]));
    update("CVE-2023-38802", &attr(0xc0, 23, &[0, 8, 0, 200, 1, 2, 3]), &any);
    update("CVE-2024-44070", &attr(0xc0, 23, &[0, 1, 0xff, 0xff, 6, 4, 192, 0, 2, 1]), &any);
    update("CVE-2026-37459", &attr(0xc0, 39, &[0, 1, 1, 4, 192, 0, 2, 1, 0, 1, 0, 3, 1, 2]), &any);
    update("CVE-2023-41359", &attr(0x80, 26, &[1]), &Discard(&[26]));
    update("CVE-2023-41359 b", &attr(0x80, 26, &[1, 0, 2]), &Discard(&[26]));
    update("CVE-2019-5892", &attr(0xc0, 255, &[1, 2, 3, 4]), &Partial(255));
    update("CVE-2010-3035", &attr(0xd0, 99, &[0xab; 3000]), &Partial(99));
    update("CVE-2023-4481 shape a", &attr(0xc0, 28, &[0xde, 0xad]), &Partial(28));
    update("CVE-2026-48685", &attr(0xd0, 99, &[7; 0x100]), &Partial(99));
}

#[test]
fn attribute_value_shapes() {
    update("CVE-2026-37461", &attr(0xc0, 25, &[0; 8]), &Withdraw);
    update("CVE-2023-38283", &attr(0xc0, 8, &[]), &Withdraw);
    update("CVE-2025-43972", &attr(0xc0, 16, &[0x80, 0x0b, 0, 0, 0, 0, 0, 0]), &Valid);
    update("CVE-2026-41642", &attr(0x40, 200, &[1]), &Reset(3, &[2]));
    // The same list and the same unknown attribute twice: the second ones are discarded. CLUSTER_LIST is not
    // valid on eBGP, so the session is iBGP.
    let cluster = attr(0x80, 10, &[192, 0, 2, 9]);
    let unknown = attr(0xc0, 200, &[1]);
    let twice = [cluster.clone(), unknown.clone(), cluster, unknown].concat();
    shape("CVE-2018-5379", &framed(2, &with(&twice)), &ibgp(), &Discard(&[10, 200]));
    // A length of 1024 octets, with fewer left.
    update("incident-otc-2025", &[0xf0, 35, 4, 0, 0, 0, 0xfb, 0xf0], &Withdraw);
    // The same length, with that many octets present.
    update("incident-otc-2025 b", &attr(0xf0, 35, &[0; 1024]), &Withdraw);
    let next_hop = [origin(), as_path(), attr(0x40, 3, &[192, 0])].concat();
    shape("CVE-2026-30405", &framed(2, &body(&[], &next_hop, &NLRI)), &ebgp(), &Withdraw);
}

#[test]
fn mandatory_attributes_missing() {
    let s = ebgp();
    shape("CVE-2023-41358", &framed(2, &body(&[], &[], &NLRI)), &s, &Withdraw);
    let unknown = attr(0xc0, 99, &[1, 2]);
    shape("CVE-2023-46753", &framed(2, &body(&[], &unknown, &NLRI)), &s, &AnyOf(&[Withdraw, Reset(3, &[3])]));
    let unreach = attr(0x80, 15, &[0, 2, 1, 48, 0x20, 1, 0xd, 0xb8, 0, 9]);
    shape("CVE-2023-47234", &framed(2, &body(&[], &unreach, &NLRI)), &s, &Withdraw);
    let bad = attr(0xc0, 8, &[1]);
    shape("CVE-2023-47235", &framed(2, &body(&[], &bad, &NLRI)), &s, &Withdraw);
    for without in 0..3 {
        let mut all = vec![origin(), as_path(), next_hop()];
        all.remove(without);
        shape("CVE-2018-5378", &framed(2, &body(&[], &all.concat(), &NLRI)), &s, &Withdraw);
    }
}

#[test]
fn multiprotocol_shapes() {
    let s = ebgp();
    let reset_or_ignored = AnyOf(&[Ignored, Withdraw, Reset(3, &[1, 5, 9, 10])]);
    let base = [origin(), as_path()].concat();
    let mp = |value: &[u8]| framed(2, &body(&[], &[attr(0x80, 14, value), base.clone()].concat(), &[]));
    shape("CVE-2023-46752", &mp(&[0, 2, 1, 16, 0x20]), &s, &MP_RESET);
    shape("CVE-2023-46752 b", &mp(&[]), &s, &MP_RESET);
    shape("CVE-2023-38406", &mp(&[0, 1, 133, 0, 0, 0]), &s, &reset_or_ignored);
    shape("CVE-2023-38407", &mp(&[0, 1, 4, 4, 192, 0, 2, 1, 0, 8, 1]), &s, &reset_or_ignored);
    shape("CVE-2026-bird-flowspec", &mp(&[0, 2, 133, 0, 0, 0]), &s, &reset_or_ignored);
    shape(
        "CVE-2016-2342",
        &mp(&[0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1, 0, 255, 1]),
        &s,
        &reset_or_ignored,
    );
    let alone = framed(2, &body(&[], &attr(0x80, 14, &[0, 1, 133, 0, 0, 3, 1, 8, 10]), &[]));
    shape("CVE-2023-41909", &alone, &s, &reset_or_ignored);
    let mut operators = vec![0, 1, 133, 0, 0, 0xf5, 0x00, 3];
    operators.extend([1, 6].repeat(600));
    let long = framed(2, &body(&[], &[attr(0x90, 14, &operators), base.clone()].concat(), &[]));
    shape("CVE-2026-37457", &long, &s, &reset_or_ignored);
    shape("CVE-2026-37462", &framed(2, &[0, 2, 32, 10, 0, 0]), &s, &Reset(3, &[1, 10]));
    shape("CVE-2026-48686", &framed(2, &body(&[], &mandatory(), &[255, 1, 2, 3, 4])), &s, &Reset(3, &[10]));
    let orf = framed(5, &[0, 1, 0, 1, 1]);
    shape("CVE-2023-41360", &orf, &s, &AnyOf(&[Ignored, Reset(7, &[1])]));
}

#[test]
fn as_path_shapes() {
    let path =
        |flags, value: &[u8]| body(&[], &[origin(), attr(flags, 2, value), next_hop()].concat(), &NLRI);
    // 2,295 ASes: nine full segments.
    let mut segments = Vec::new();
    for _ in 0..9 {
        segments.extend([2, 255]);
        segments.extend([0, 0, 0xfb, 0xf0].repeat(255));
    }
    let extended = Negotiated { extended: true, ..ebgp() };
    shape("CVE-2026-49943", &framed(2, &path(0x50, &segments)), &extended, &AnyOf(&[Valid, Withdraw]));

    let mut confed = vec![3, 255];
    confed.extend([0, 0, 0xfb, 0xf0].repeat(255));
    shape("CVE-2025-20115", &framed(2, &path(0x50, &confed)), &ebgp(), &Withdraw);
    shape("CVE-2026-48691", &framed(2, &path(0x40, &[2, 255, 0, 0, 0xfb, 0xf0])), &ebgp(), &Withdraw);

    // Full segments with two-octet AS numbers: the four-octet form is twice as long and exceeds the same
    // message length.
    let mut short = Vec::new();
    for _ in 0..5 {
        short.extend([2, 255]);
        short.extend([0xfb, 0xf0].repeat(255));
    }
    let message = framed(2, &path(0x50, &short));
    shape("CVE-2017-16227", &message, &two_octets(), &Valid);
    let frame = Frame::next(&message, false).unwrap().unwrap();
    let update = Update::decode(frame.body, &two_octets()).unwrap();
    let attributes = &update.reach[0].attributes;
    assert_eq!(attributes.as_path.hops(), 5 * 255);
    assert!(
        UpdateTemplate::new(attributes, Family::Ipv4Unicast, &ebgp()).is_err(),
        "too long for 4,096 octets"
    );
    assert!(UpdateTemplate::new(attributes, Family::Ipv4Unicast, &extended).is_ok());

    // 251 hops, and eight more by prepending.
    let mut hops = vec![2, 251];
    hops.extend([0, 0, 0xfb, 0xf0].repeat(251));
    let message = framed(2, &path(0x50, &hops));
    shape("CVE-2009-1154", &message, &ebgp(), &Valid);
    let frame = Frame::next(&message, false).unwrap().unwrap();
    let update = Update::decode(frame.body, &ebgp()).unwrap();
    let longer = update.reach[0].attributes.as_path.prepend(64500, 8);
    assert_eq!(longer.hops(), 259);
    let lens: Vec<_> = longer.segments().map(tortie_bgp::attr::Segment::len).collect();
    assert_eq!(lens, [4, 255]);

    // A malformed AS4_PATH before AS_PATH, from a two-octet peer: discarded, and the route is kept.
    let as4 = attr(0xc0, 17, &[2, 9, 0, 0]);
    let two = attr(0x40, 2, &[2, 1, 0xfb, 0xf0]);
    let message = framed(2, &body(&[], &[origin(), as4, two, next_hop()].concat(), &NLRI));
    shape("CVE-2026-41643", &message, &two_octets(), &Discard(&[17]));
}

#[test]
fn notification_shapes() {
    // CVE-2019-16159: the length of the shutdown communication exceeds the data.
    let Outcome::Closed(n) = outcome(&framed(3, &[6, 2, 200, b'h', b'i']), &ebgp()) else { panic!() };
    assert_eq!(n.code, ErrorCode::ADMIN_SHUTDOWN);
    assert_eq!(n.shutdown_text().as_deref(), Some("hi"));
    // CVE-2019-16159 b: the maximum length of RFC 9003.
    let mut longest = vec![6, 2, 255];
    longest.extend([b'x'; 255]);
    let Outcome::Closed(n) = outcome(&framed(3, &longest), &ebgp()) else { panic!() };
    assert_eq!(n.shutdown_text().map(|t| t.len()), Some(255));
}
