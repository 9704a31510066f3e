//! Properties that hold for any input, one function per fuzz target. `cargo test` runs them on all kept
//! inputs and on seeded mutations of valid messages (`bgp/tests/wire/mutate.rs`).
//!
//! Apart from "no panic, no hang", the property is: whatever the decoder accepts, the encoder can write, and
//! decoding that gives an equal value. A route may outgrow the message length; it must never change.

use tortie_bgp::Family;
use tortie_bgp::attr::{AsPath, Attributes};
use tortie_bgp::wire::{
    Address, Families, Frame, MessageKind, Negotiated, Nlri, Notification, Open, RouteRefresh, Update,
    UpdateTemplate,
};
use tortie_config::resource::{Filter, PREPEND_MAX};

mod invariants;
mod peers;
mod received;
mod speaker;

pub use speaker::session;

/// A property of any input: panics if violated.
pub type Law = fn(&[u8]);

/// All targets by name, which is also the name of the folder in `seeds`.
pub const TARGETS: &[(&str, Law)] = &[
    ("framing", framing),
    ("open", open),
    ("capability", capability),
    ("notification", notification),
    ("route_refresh", route_refresh),
    ("update", update),
    ("attr_basic", attr_basic),
    ("attr_as_path", attr_as_path),
    ("attr_aggregator", attr_aggregator),
    ("attr_communities", attr_communities),
    ("attr_reflection", attr_reflection),
    ("attr_mp", attr_mp),
    ("attr_other", attr_other),
    ("session", session),
    ("bfd", bfd),
    ("mrt", mrt),
    ("bmp", bmp),
    ("filter", filter),
];

/// Derives negotiated parameters from the first octet.
fn negotiated(choice: u8) -> Negotiated {
    let bit = |n: u8| choice & (1 << n) != 0;
    let both = Families::ALL;
    let add_path = if bit(4) { both } else { Families::NONE };
    Negotiated {
        ebgp: bit(0),
        as4: bit(1),
        extended: bit(2),
        families: if bit(6) { Families::NONE.with(Family::Ipv6Unicast) } else { both },
        ext_nexthop: bit(3),
        add_path_receive: add_path,
        add_path_send: add_path,
        reject_as_sets: bit(5),
    }
}

/// A receive buffer: decodes every message in it, as the session does.
pub fn framing(data: &[u8]) {
    let Some((choice, mut buffer)) = data.split_first() else { return };
    let session = negotiated(*choice);
    while let Ok(Some(frame)) = Frame::next(buffer, session.extended) {
        assert_eq!(frame.len, frame.body.len() + 19);
        match frame.kind {
            MessageKind::Open => check_open(frame.body),
            MessageKind::Update => check_update(frame.body, &session),
            MessageKind::Notification => notification(frame.body),
            MessageKind::Keepalive => assert!(frame.body.is_empty()),
            MessageKind::RouteRefresh => route_refresh(frame.body),
        }
        buffer = &buffer[frame.len..];
    }
}

/// The body of an OPEN.
pub fn open(data: &[u8]) {
    check_open(data);
}

fn check_open(body: &[u8]) {
    let open = match Open::decode(body) {
        Ok(open) => open,
        Err(notification) => return check_notification(&notification, 2),
    };
    assert_ne!(open.asn, 0);
    assert_ne!(open.router_id.0, 0);
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    let frame = Frame::next(&bytes, false).unwrap().unwrap();
    let again = Open::decode(frame.body).unwrap();
    assert_eq!((again.asn, again.hold_time, again.router_id), (open.asn, open.hold_time, open.router_id));
    let _ = Negotiated::between(&open, &again);
}

/// A list of capabilities, in both forms of optional parameters (RFC 5492, RFC 9072).
pub fn capability(data: &[u8]) {
    let head = [4, 0xfb, 0xf0, 0, 90, 192, 0, 2, 1];
    let Ok(long) = u16::try_from(data.len()) else { return };
    let [high, low] = long.to_be_bytes();
    let Some([outer_high, outer_low]) = long.checked_add(3).map(u16::to_be_bytes) else { return };
    let extended = [&head[..], &[255, 255, outer_high, outer_low, 2, high, low], data].concat();
    let read = Open::decode(&extended);
    if let Ok(len @ 0..=253) = u8::try_from(data.len()) {
        let plain = [&head[..], &[len + 2, 2, len], data].concat();
        assert_eq!(Open::decode(&plain), read, "the two forms differ");
    }
    let Ok(read) = read else { return };
    check_open(&extended);
    // Supported capabilities survive encoding and decoding.
    let mut bytes = Vec::new();
    read.write(&mut bytes);
    let frame = Frame::next(&bytes, false).unwrap().unwrap();
    let mut again = Open::decode(frame.body).unwrap();
    let mut expected = read;
    let c = &mut expected.capabilities;
    c.unknown.clear();
    // Unsupported families are not encoded, and names are sanitised.
    c.multiprotocol &= !c.families.is_empty();
    c.fqdn.clone_from(&again.capabilities.fqdn);
    again.capabilities.unknown.clear();
    assert_eq!(again, expected);
}

/// The body of a NOTIFICATION.
pub fn notification(data: &[u8]) {
    let notification = Notification::decode(data);
    assert!(notification.shutdown_text().is_none_or(|t| !t.chars().any(char::is_control)));
    assert!(!notification.to_string().is_empty());
    let mut bytes = Vec::new();
    notification.clone().into_hard_reset().write(&mut bytes);
    notification.write(&mut bytes);
    let first = Frame::next(&bytes, false).unwrap().unwrap();
    let second = Frame::next(&bytes[first.len..], false).unwrap().unwrap();
    let again = Notification::decode(second.body);
    assert_eq!(again.code, notification.code);
    assert!(notification.data.starts_with(&again.data));
}

/// The body of a ROUTE-REFRESH.
pub fn route_refresh(data: &[u8]) {
    match RouteRefresh::decode(data, true) {
        Ok(Some(refresh)) => {
            let mut bytes = Vec::new();
            refresh.write(&mut bytes);
            assert_eq!(&bytes[19..], data);
        }
        Ok(None) => {}
        Err(notification) => check_notification(&notification, 7),
    }
}

/// The body of an UPDATE, after one octet that selects the negotiated parameters.
pub fn update(data: &[u8]) {
    if let Some((choice, body)) = data.split_first() {
        check_update(body, &negotiated(*choice));
    }
}

/// ORIGIN, MULTI_EXIT_DISC, LOCAL_PREF, ATOMIC_AGGREGATE, NEXT_HOP.
pub fn attr_basic(data: &[u8]) {
    attributes(data, &[1, 3, 4, 5, 6]);
}

/// AS_PATH and AS4_PATH.
pub fn attr_as_path(data: &[u8]) {
    attributes(data, &[2, 17]);
}

/// AGGREGATOR and AS4_AGGREGATOR.
pub fn attr_aggregator(data: &[u8]) {
    attributes(data, &[7, 18, 17]);
}

/// Communities of all types.
pub fn attr_communities(data: &[u8]) {
    attributes(data, &[8, 16, 25, 32]);
}

/// ORIGINATOR_ID and CLUSTER_LIST.
pub fn attr_reflection(data: &[u8]) {
    attributes(data, &[9, 10]);
}

/// MP_REACH_NLRI and MP_UNREACH_NLRI.
pub fn attr_mp(data: &[u8]) {
    attributes(data, &[14, 15]);
}

/// Attributes that are passed on unchanged, or discarded.
pub fn attr_other(data: &[u8]) {
    attributes(data, &[23, 26, 28, 35, 39, 40, 99, 128, 255]);
}

/// Decodes a valid UPDATE in which attributes of these types have values chosen by the fuzzer.
fn attributes(data: &[u8], codes: &[u8]) {
    let Some((choice, mut data)) = data.split_first() else { return };
    let mut list = Vec::new();
    let mut used = Vec::new();
    while let [pick, flags, len, rest @ ..] = data {
        let code = codes[usize::from(*pick) % codes.len()];
        let value = &rest[..rest.len().min(usize::from(*len))];
        data = &rest[value.len()..];
        used.push(code);
        // Half of the attributes have the specified flags, so that their values are decoded.
        let flags = if flags & 1 == 0 { usual_flags(code) } else { flags & !0x10 };
        list.extend_from_slice(&[flags, code, *len.min(&u8::try_from(value.len()).unwrap_or(u8::MAX))]);
        list.extend_from_slice(value);
    }
    let good: [(u8, &[u8]); 3] =
        [(1, &[0x40, 1, 1, 0]), (2, &[0x40, 2, 0]), (3, &[0x40, 3, 4, 192, 0, 2, 1])];
    for (code, attribute) in good {
        if !used.contains(&code) {
            list.extend_from_slice(attribute);
        }
    }
    let Ok(len) = u16::try_from(list.len()) else { return };
    let mut body = vec![0, 0];
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(&list);
    body.extend_from_slice(&[24, 198, 51, 100, 0, 32, 203, 0, 113, 1]);
    check_update(&body, &negotiated(*choice));
}

fn usual_flags(code: u8) -> u8 {
    match code {
        1..=3 | 5 | 6 => 0x40,
        4 | 9 | 10 | 14 | 15 | 26 => 0x80,
        _ => 0xc0,
    }
}

/// BFD: a list of operations, each with an octet that selects it and an argument. Packets are raw or patched
/// to reach a session; time passes; sessions are added, changed and removed.
pub fn bfd(mut data: &[u8]) {
    use std::time::{Duration, Instant};
    use tortie_bgp::bfd::{Bfd, Endpoint, Packet, Parameters, Path, Received, State};
    let start = Instant::now();
    let mut now = start;
    let mut bfd = Bfd::new(1);
    let end = |n: u8| Endpoint {
        remote: [192, 0, 2, 2 + (n & 1)].into(),
        local: (n & 2 == 0).then(|| [192, 0, 2, 1].into()),
        interface: 0,
        path: if n & 4 == 0 { Path::SingleHop } else { Path::Multihop },
    };
    let times = |n: u8| Parameters::new(Duration::from_millis(u64::from(n) * 7), n & 7);
    bfd.set(end(0), times(43), now);
    while let [what, much, rest @ ..] = data {
        data = rest;
        let endpoint = end(what >> 3);
        match what & 7 {
            0 => bfd.set(endpoint, times(*much), now),
            1 => bfd.remove(&endpoint, now),
            2 => now += Duration::from_millis(u64::from(*much) * 16),
            3 => now += Duration::from_micros(u64::from(*much)),
            choice => {
                let mut payload = rest[..rest.len().min(26)].to_vec();
                data = &rest[payload.len()..];
                let status = bfd.status(&endpoint, now);
                if choice >= 6 && payload.len() >= 24 {
                    payload[0] = payload[0] & 0x1f | 0x20;
                    payload[3] = 24;
                    let yours = status.as_ref().map_or(0, |s| s.discriminator);
                    payload[8..12].copy_from_slice(&yours.to_be_bytes());
                }
                if let Ok(packet) = Packet::decode(&payload) {
                    assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
                }
                let received = Received {
                    path: endpoint.path,
                    source: endpoint.remote,
                    destination: [192, 0, 2, 1].into(),
                    interface: 1,
                    ttl: Some(if choice == 4 { *much } else { 255 }),
                    payload: &payload,
                };
                let taken = bfd.receive(&received, now);
                assert!(taken.is_err() || endpoint.path == Path::Multihop || received.ttl == Some(255));
            }
        }
        bfd.handle_timeout(now);
        // After any input, each session sends a packet or two, and then waits.
        let sent = std::iter::from_fn(|| bfd.poll_transmit(now)).take(1000);
        let sent: Vec<Packet> = sent.map(|t| Packet::decode(&t.payload).unwrap()).collect();
        assert!(sent.len() <= 2 * 8, "{}", sent.len());
        for packet in sent {
            assert!(!(packet.poll && packet.r#final));
            assert!(!packet.independent && !packet.demand);
            assert!(packet.state == State::Up || packet.desired_min_tx >= 1_000_000);
        }
        assert!(bfd.poll_timeout().is_none_or(|at| at > now));
        while let Some(change) = bfd.poll_event() {
            assert_ne!(change.from, change.to);
        }
    }
    bfd.shutdown(now);
    for _ in 0..1000 {
        while bfd.poll_transmit(now).is_some() {}
        let Some(at) = bfd.poll_timeout() else { break };
        now = at;
        bfd.handle_timeout(now);
    }
    assert!(bfd.is_empty());
}

fn check_notification(notification: &Notification, code: u8) {
    assert_eq!(notification.code.0, code, "{notification}");
    let mut bytes = Vec::new();
    notification.write(&mut bytes);
    assert!(bytes.len() <= 4096);
}

fn check_update(body: &[u8], session: &Negotiated) {
    let update = match Update::decode(body, session) {
        Ok(update) => update,
        Err(notification) => return check_notification(&notification, 3),
    };
    if update.malformed.is_some() {
        assert!(update.reach.is_empty());
    }
    if update.end_of_rib.is_some() {
        assert!(update.reach.is_empty() && update.withdrawn.is_empty());
    }
    for nlri in &update.withdrawn {
        check_withdrawal(nlri, session);
    }
    for reach in &update.reach {
        check_attributes(&reach.attributes, session);
        check_reach(&reach.nlri, &reach.attributes, session);
    }
}

fn check_withdrawal(nlri: &Nlri<'_>, session: &Negotiated) {
    match nlri.family() {
        Family::Ipv4Unicast => check_withdrawal_of::<u32>(nlri, session),
        Family::Ipv6Unicast => check_withdrawal_of::<u128>(nlri, session),
    }
}

fn check_withdrawal_of<A: Address>(nlri: &Nlri<'_>, session: &Negotiated) {
    let entries: Vec<_> = nlri.of::<A>().collect();
    assert!(!entries.is_empty());
    let mut bytes = Vec::new();
    UpdateTemplate::withdrawal(A::FAMILY, session).write(&mut bytes, entries.iter().copied(), |_| ());
    let mut again = Vec::new();
    each_update(&bytes, session, |update| {
        assert!(update.reach.is_empty() && update.malformed.is_none());
        again.extend(update.withdrawn.iter().flat_map(|n| n.of::<A>()));
    });
    assert_eq!(entries, again);
}

fn check_attributes(attributes: &Attributes, session: &Negotiated) {
    let path = &attributes.as_path;
    assert!(!path.contains(0));
    assert!(!session.reject_as_sets || !path.has_set());
    let longer: AsPath = path.prepend(64500, 3);
    assert_eq!(longer.hops(), path.hops() + 3);
    assert_eq!(longer.first(), Some(64500));
    assert!(longer.segments().all(|s| (1..=255).contains(&s.len())));
    if session.ebgp {
        assert!(attributes.local_pref.is_none() && attributes.cluster_list().is_empty());
    }
}

fn check_reach(nlri: &Nlri<'_>, attributes: &Attributes, session: &Negotiated) {
    match nlri.family() {
        Family::Ipv4Unicast => check_reach_of::<u32>(nlri, attributes, session),
        Family::Ipv6Unicast => check_reach_of::<u128>(nlri, attributes, session),
    }
}

fn check_reach_of<A: Address>(nlri: &Nlri<'_>, attributes: &Attributes, session: &Negotiated) {
    // Two-octet sessions and an added LOCAL_PREF can need more room than the message had.
    let Ok(template) = UpdateTemplate::new(attributes, A::FAMILY, session) else { return };
    let entries: Vec<_> = nlri.of::<A>().collect();
    assert!(!entries.is_empty());
    let mut bytes = Vec::new();
    template.write(&mut bytes, entries.iter().copied(), |_| ());
    let mut expected = attributes.clone();
    if !session.ebgp {
        expected.local_pref = expected.local_pref.or(Some(100));
    }
    let mut again = Vec::new();
    each_update(&bytes, session, |update| {
        assert!(update.malformed.is_none() && update.discarded.is_empty(), "{update:?}");
        assert_eq!(update.reach.len(), 1);
        for reach in &update.reach {
            assert_eq!(reach.attributes, expected);
            again.extend(reach.nlri.of::<A>());
        }
    });
    assert_eq!(entries, again);
}

/// A filter value: encoding and decoding give an equal filter, and it gives a result for any path.
pub fn filter(data: &[u8]) {
    let Ok(filter) = Filter::parse(data) else { return };
    let again = Filter::parse(&filter.to_value()).expect("what was written reads");
    assert_eq!(again, filter);
    let path: Vec<u32> = data.iter().take(64).map(|octet| u32::from(octet % 8)).collect();
    for rule in filter.import.iter().chain(&filter.export).flatten() {
        for pattern in &rule.matches.path.matches {
            let _ = pattern.matches(&path);
        }
        for range in &rule.matches.prefixes {
            assert!(range.ge <= range.le && range.cidr.len() <= range.ge && range.le <= range.cidr.max_len());
            assert_eq!(range.matches(&range.cidr), range.ge == range.cidr.len());
        }
        let _ = rule.matches.communities.matches(&path);
        assert!(rule.set.prepend.is_none_or(|p| (1..=PREPEND_MAX).contains(&p.count)));
    }
}

fn each_update(mut bytes: &[u8], session: &Negotiated, mut each: impl FnMut(Update<'_>)) {
    while let Some(frame) = Frame::next(bytes, session.extended).unwrap() {
        assert!(frame.len <= session.max_len());
        assert_eq!(frame.kind, MessageKind::Update);
        each(Update::decode(frame.body, session).unwrap());
        bytes = &bytes[frame.len..];
    }
    assert!(bytes.is_empty());
}

/// An MRT file: records that decode are encoded and decoded again to an equal value.
pub fn mrt(data: &[u8]) {
    use tortie_bgp::mrt::{Body, Reader, encode_attributes};
    let mut records = 0;
    for record in Reader::new(data).flatten() {
        records += 1;
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        let mut again = Reader::new(&bytes);
        assert_eq!(again.next().unwrap().unwrap(), record);
        assert!(again.next().is_none());
        let paths: Vec<_> = match &record.body {
            Body::Rib(rib) => rib.entries.iter().map(|e| (rib.prefix, e.attributes)).collect(),
            Body::TableDump(dump) => vec![(dump.prefix, dump.attributes)],
            Body::Message(message) => {
                if let Ok(Some(frame)) = Frame::next(message.octets, true) {
                    let _ = Update::decode(frame.body, &message.session());
                }
                Vec::new()
            }
            _ => Vec::new(),
        };
        for (prefix, raw) in paths {
            if let Ok(attributes) = raw.decode(prefix) {
                assert!(encode_attributes(&attributes, &mut Vec::new()));
            }
        }
    }
    assert!(records * tortie_bgp::mrt::HEADER_LEN <= data.len());
}

/// BMP messages: those that decode are encoded and decoded again to an equal value.
pub fn bmp(mut data: &[u8]) {
    use tortie_bgp::bmp::Message;
    while let Ok(Some((message, len))) = Message::next(data) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        assert_eq!(Message::next(&bytes), Ok(Some((message, bytes.len()))));
        if let Message::Statistics { statistics, .. } = message {
            let _ = statistics.iter().count();
        }
        data = &data[len..];
    }
}
