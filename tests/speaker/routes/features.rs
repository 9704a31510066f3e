//! Capabilities on sessions with other daemons: enhanced refresh, two-octet peers, extended messages,
//! extended optional parameters; and capabilities that they do not offer.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;

use socket2::{Domain, SockAddr, Socket, Type};
use tortie::speaker::ToSpeaker;
use tortie_bgp::wire::{Capabilities, Families, Open};
use tortie_bgp::{Family, Reset, RouteMatch, RouteQuery, RouteTable, RouterId, State};
use tortie_config::resource::Filter;
use tortie_engine::routing::Filters;

use crate::rig::node::{Node, SOON, cidr, intent, peer, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Returns the number of ROUTE-REFRESHes received and sent.
fn refreshes(a: &Node) -> (u64, u64) {
    a.peer("daemon").map_or((0, 0), |p| (p.received.route_refresh, p.sent.route_refresh))
}

fn refreshed(a: &Node, peer_daemon: &PeerDaemon, counts: (u64, u64)) {
    wait("a refresh, from beginning to end", || match refreshes(a) {
        now if now == counts => Ok(()),
        now => Err(format!("{now:?}\n{}", peer_daemon.log())),
    });
    let peer = a.peer("daemon").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0));
    assert!(a.route(&peer_daemon.kind.v4()).is_some());
}

/// Starts a session with enhanced refresh, on which all routes have been exchanged.
fn enhanced(kind: Kind, neighbour: &'static str) -> Option<(PeerDaemon, Node)> {
    let setup = SessionSetup { neighbour, ..SessionSetup::IPV4 };
    let peer_daemon = PeerDaemon::start(kind, setup)?;
    let a = Node::start(our_intent(kind, setup));
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.wait_for_route(V4, &[V4]);
    wait("the session with enhanced refresh", || match a.peer("daemon") {
        Some(p)
            if p.session.as_ref().is_some_and(|s| s.enhanced_refresh)
                && p.families.iter().any(|f| f.end_of_rib_received && f.end_of_rib_sent) =>
        {
            Ok(())
        }
        p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
    });
    Some((peer_daemon, a))
}

/// We request a refresh, then the daemon does; the route stays in place.
fn refresh_both_ways(kind: Kind, ask: &str) {
    let Some((peer_daemon, a)) = enhanced(kind, "") else { return };
    a.handle.send(ToSpeaker::Reset(Some("daemon".into()), Reset::SoftIn)).unwrap();
    refreshed(&a, &peer_daemon, (2, 1));
    let v4 = a.peer("daemon").unwrap().families.into_iter().find(|f| f.family == Family::Ipv4Unicast);
    assert_eq!(v4.map(|f| f.stale), Some(0));
    peer_daemon.ask(ask);
    refreshed(&a, &peer_daemon, (3, 3));
    peer_daemon.wait_for_route(V4, &[V4]);
}

/// The daemon requests a refresh: we send BoRR and EoRR.
fn refresh_asked(kind: Kind, neighbour: &'static str, ask: &str) {
    let Some((peer_daemon, a)) = enhanced(kind, neighbour) else { return };
    peer_daemon.ask(ask);
    refreshed(&a, &peer_daemon, (1, 2));
    peer_daemon.wait_for_route(V4, &[V4]);
}

#[test]
fn enhanced_refresh_both_ways_with_bird() {
    refresh_both_ways(Kind::Bird, "reload in tortie0");
}

#[test]
fn enhanced_refresh_both_ways_with_frr() {
    refresh_both_ways(Kind::Frr, "clear bgp ipv4 unicast 192.0.2.1 soft in");
}

#[test]
fn enhanced_refresh_received_from_openbgpd() {
    refresh_asked(Kind::Openbgpd, "announce enhanced refresh yes\n", "neighbor 192.0.2.1 refresh");
}

/// OpenBGPD 7.7 does not answer a request: it reports a family in use as not negotiated.
#[test]
fn enhanced_refresh_is_not_answered_by_openbgpd() {
    let Some((peer_daemon, a)) = enhanced(Kind::Openbgpd, "announce enhanced refresh yes\n") else { return };
    a.handle.send(ToSpeaker::Reset(Some("daemon".into()), Reset::SoftIn)).unwrap();
    wait("what it says to that", || match peer_daemon.log() {
        log if log.contains("not negotiated") => Ok(()),
        log => Err(log),
    });
    assert_eq!(refreshes(&a), (0, 1));
    assert!(a.route(&Kind::Openbgpd.v4()).is_some());
}

#[test]
fn enhanced_refresh_received_from_exabgp() {
    refresh_asked(Kind::Exabgp, "", "neighbor 192.0.2.1 announce route-refresh ipv4 unicast");
}

/// Returns the AS_PATH of a usable route of the peer.
fn path(a: &Node, prefix: &str) -> Option<String> {
    let path = a.received("daemon", prefix)?;
    path.unusable.is_none().then(|| path.attributes.as_path.to_string())
}

/// Starts a node in a four-octet AS with a block, as a peer of the router at this address.
fn origin(last: u32, asn: u32, block: &str, router: &str, router_as: u32) -> Node {
    let mut us = intent(&format!("192.0.2.{last}:1790"), asn, &[block]);
    let mut peer_daemon = peer(router, &format!("192.0.2.{last}"), router_as);
    peer_daemon.ipv6 = false;
    us.peers.insert("router".into(), peer_daemon);
    Node::start(us)
}

/// The daemon is a two-octet speaker: larger AS numbers are sent in AS4_PATH.
fn two_octet(kind: Kind, setup: SessionSetup, sent: &str) {
    // The others have a route of their own with a long AS_PATH.
    let passes_on = matches!(kind, Kind::Bird | Kind::Openbgpd);
    let setup = SessionSetup { others: if passes_on { &[(3, 4_200_000_003)] } else { &[] }, ..setup };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    let mut second = peer("192.0.2.2:1790", "192.0.2.1", 4_200_000_002);
    second.ipv6 = false;
    us.peers.insert("origin".into(), second);
    let a = Node::start(us);
    let _b = origin(2, 4_200_000_002, "10.2.0.0/26", "192.0.2.1:1790", 64512);
    let asn = 65000 + kind.last();
    let _c = passes_on.then(|| origin(3, 4_200_000_003, "10.3.0.0/26", &format!("{}:1790", kind.at()), asn));
    wait("the path with the long AS", || match path(&a, "10.3.0.0/26") {
        Some(path) if path == format!("{asn} 4200000003") => Ok(()),
        other => Err(format!("{other:?}\n{}", peer_daemon.log())),
    });
    assert!(!a.peer("daemon").unwrap().session.unwrap().as4);
    peer_daemon.wait_for_route("10.2.0.0/26", &[sent]);
}

#[test]
fn two_octet_as_both_ways_with_bird() {
    let setup = SessionSetup { neighbour: "enable as4 off;", ..SessionSetup::IPV4 };
    two_octet(Kind::Bird, setup, "BGP.as_path: 64512 4200000002");
}

/// FRR 8.4.4 ignores AS4_PATH of a peer that offered four-octet AS numbers, even if it did not offer them
/// itself; and it sends the same UPDATE to such a peer and to a four-octet one.
#[test]
fn two_octet_as_received_from_frr() {
    let setup = SessionSetup {
        neighbour: "neighbor 192.0.2.1 dont-capability-negotiate",
        family: "network 10.3.0.0/26\nneighbor 192.0.2.1 route-map FAR out",
        more: "route-map FAR permit 10\nset as-path prepend 4200000003\n",
        ..SessionSetup::IPV4
    };
    two_octet(Kind::Frr, setup, "64512 23456");
}

#[test]
fn two_octet_as_both_ways_with_openbgpd() {
    let setup = SessionSetup { neighbour: "announce as-4byte no\n", ..SessionSetup::IPV4 };
    two_octet(Kind::Openbgpd, setup, "64512 4200000002");
}

#[test]
fn two_octet_as_both_ways_with_exabgp() {
    let setup = SessionSetup {
        neighbour: "asn4 disable;",
        family: "route 10.3.0.0/26 next-hop 192.0.2.13 as-path [ 65013 4200000003 ];",
        ..SessionSetup::IPV4
    };
    two_octet(Kind::Exabgp, setup, "[ 64512, 4200000002 ]");
}

/// Number of large communities that exceed 4,096 octets.
const MANY: u32 = 400;

/// A route with this many communities is sent in each direction, which requires an extended message. `ours`
/// has the last community in the daemon's notation.
fn long_messages(kind: Kind, setup: SessionSetup, prefix: &str, ours: &str) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    let peer = us.peers.get_mut("daemon").unwrap();
    (peer.extended_messages, peer.policy.filters) = (true, vec!["f".into()]);
    let all: Vec<String> = (1..=MANY).map(|n| format!("64512:1:{n}")).collect();
    let filter =
        serde_json::json!({"export": [{"then": "next", "set": {"large_communities": {"add": all}}}]});
    let filter = Filter::parse(filter.to_string().as_bytes()).unwrap();
    std::sync::Arc::make_mut(&mut us.view).filters = Filters::from_values([("f".to_owned(), Some(filter))]);
    let a = Node::start(us);
    peer_daemon.wait_established(&a);
    assert!(a.peer("daemon").unwrap().session.unwrap().extended_messages);
    peer_daemon.wait_for_route(V4, &[ours]);
    a.wait_for_route(prefix, &kind.at());
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    assert_eq!(found[0].paths[0].attributes.large_communities.len(), MANY as usize);
}

/// Communities of the daemon, in groups.
fn communities(group: std::ops::RangeInclusive<u32>, separators: [&str; 2]) -> String {
    let [inner, outer] = separators;
    group.map(|n| format!("65000{inner}1{inner}{n}")).collect::<Vec<_>>().join(outer)
}

#[test]
fn extended_messages_both_ways_with_bird() {
    let adds: String = (1..=MANY).map(|n| format!("bgp_large_community.add((65000, 1, {n}));\n")).collect();
    let filter = format!("filter lengthy {{ if source != RTS_STATIC then reject;\n{adds} accept; }}");
    let setup = SessionSetup {
        neighbour: "enable extended messages on;",
        family: "export filter lengthy;",
        more: filter.leak(),
        ..SessionSetup::IPV4
    };
    long_messages(Kind::Bird, setup, "10.9.0.0/24", "(64512, 1, 400)");
}

#[test]
fn extended_messages_both_ways_with_frr() {
    let mut map = String::new();
    for group in 0..4 {
        let all = communities(group * 100 + 1..=(group + 1) * 100, [":", " "]);
        let next = if group < 3 { " on-match next\n" } else { "" };
        map += &format!("route-map LONG permit {}\n set large-community {all} additive\n{next}", group + 1);
    }
    let setup = SessionSetup {
        family: "neighbor 192.0.2.1 route-map LONG out",
        more: map.leak(),
        ..SessionSetup::IPV4
    };
    long_messages(Kind::Frr, setup, "10.11.0.0/24", "64512:1:400");
}

#[test]
fn extended_messages_both_ways_with_exabgp() {
    let all = communities(1..=MANY, [":", " "]);
    let route = format!("route 10.13.2.0/24 next-hop 192.0.2.13 large-community [ {all} ];");
    let setup =
        SessionSetup { neighbour: "extended-message enable;", family: route.leak(), ..SessionSetup::IPV4 };
    long_messages(Kind::Exabgp, setup, "10.13.2.0/24", "[ 64512, 1 , 400 ]");
}

/// Octets of an OPEN before its optional parameters: header, version, AS, hold time, identifier.
const FIXED: usize = 19 + 1 + 2 + 2 + 4;

/// Returns the capabilities of an OPEN by code (RFC 5492), in either form of optional parameters (RFC 9072).
fn capabilities(open: &[u8]) -> BTreeMap<u8, Vec<u8>> {
    let (mut rest, long) = match open[FIXED..] {
        [255, 255, _, _, ref rest @ ..] => (rest, true),
        [_, ref rest @ ..] => (rest, false),
        [] => panic!("no OPEN"),
    };
    let mut found = BTreeMap::new();
    while let [2, parameter @ ..] = rest {
        let (len, body) = match (long, parameter) {
            (true, [high, low, body @ ..]) => (usize::from(*high) << 8 | usize::from(*low), body),
            (false, [len, body @ ..]) => (usize::from(*len), body),
            _ => panic!("{open:?}"),
        };
        let (mut list, after) = body.split_at(len);
        while let [code, len, value @ ..] = list {
            let (value, more) = value.split_at(usize::from(*len));
            found.entry(*code).or_insert_with(Vec::new).extend(value);
            list = more;
        }
        rest = after;
    }
    found
}

/// The daemon's OPEN has the form of RFC 9072, and all of its capabilities are decoded.
fn long_open(kind: Kind, setup: SessionSetup) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let a = Node::start(our_intent(kind, setup));
    peer_daemon.wait_established(&a);
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.wait_for_route(V4, &[V4]);
    let (ours, theirs) = a.opens("daemon");
    assert_eq!(theirs[FIXED..][..2], [255, 255], "{theirs:?}");
    let session = a.peer("daemon").unwrap().session.unwrap();
    assert!(session.as4 && session.enhanced_refresh, "{session:?}");
    assert!(capabilities(&theirs).contains_key(&65));
    // Our capabilities fit into the short form.
    assert!(ours[FIXED] < 255 && ours.len() == FIXED + 1 + usize::from(ours[FIXED]));
}

#[test]
fn extended_optional_parameters_received_from_frr() {
    // Enough families to exceed 255 octets of capabilities. With its option extended-optional-parameters,
    // 8.4.4 misreads an OPEN in the short form, and the length of the role capability has one octet there.
    let families =
        ["ipv4 multicast", "ipv4 vpn", "ipv4 flowspec", "ipv6 unicast", "ipv6 multicast", "ipv6 vpn"];
    let families = families.iter().chain(&["ipv6 flowspec", "l2vpn evpn"]);
    let activate =
        |family| format!("address-family {family}\nneighbor 192.0.2.1 activate\nexit-address-family\n");
    let more = format!("router bgp 65011\n{}exit\n", families.map(activate).collect::<String>());
    let neighbour = "bgp graceful-restart\nbgp long-lived-graceful-restart stale-time 10\nneighbor 192.0.2.1 capability dynamic";
    long_open(Kind::Frr, SessionSetup { neighbour, more: more.leak(), ..SessionSetup::IPV4 });
}

#[test]
fn extended_optional_parameters_received_from_bird() {
    // Enough families to exceed 255 octets of capabilities.
    let neighbour = "graceful restart on; long lived graceful restart on;
        ipv4 multicast { table m4; import all; export none; add paths on; extended next hop on; };
        ipv6 multicast { table m6; import all; export none; add paths on; };
        ipv6 { import all; export none; add paths on; };
        flow4 { table f4; import all; export none; add paths on; };
        flow6 { table f6; import all; export none; add paths on; };
        vpn4 mpls { table v4; import all; export none; add paths on; extended next hop on; };
        vpn6 mpls { table v6; import all; export none; add paths on; };
        vpn4 multicast { table v4; import all; export none; add paths on; extended next hop on; };
        vpn6 multicast { table v6; import all; export none; add paths on; };";
    let more = "ipv4 table m4; ipv6 table m6; flow4 table f4; flow6 table f6; vpn4 table v4; vpn6 table v6;";
    let family = "add paths on; extended next hop on;";
    long_open(Kind::Bird, SessionSetup { neighbour, more, family, ..SessionSetup::IPV4 });
}

/// An OPEN in the form of RFC 9072, which is valid for any OPEN, is answered with OPEN and KEEPALIVE.
fn long_open_read(kind: Kind) {
    let setup = SessionSetup { passive: true, ..SessionSetup::IPV4 };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let capabilities = Capabilities {
        multiprotocol: true,
        families: Families::NONE.with(Family::Ipv4Unicast),
        as4: Some(64512),
        ..Capabilities::default()
    };
    let mut open = Vec::new();
    Open { asn: 64512, hold_time: 90, router_id: RouterId(9), capabilities }.write(&mut open);
    // Ours are short: both lengths are extended, after the marker.
    let (parameters, list) = (open[FIXED], open[FIXED + 2]);
    open.splice(FIXED..FIXED + 3, [255, 255, 0, parameters + 1, 2, 0, list]);
    open[17] += 4;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::from("192.0.2.1:0".parse::<SocketAddr>().unwrap())).unwrap();
    let at: SocketAddr = format!("{}:1790", kind.at()).parse().unwrap();
    socket.connect(&SockAddr::from(at)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    (&socket).write_all(&open).unwrap();
    let mut types = Vec::new();
    for _ in 0..2 {
        let mut header = [0; 19];
        (&socket).read_exact(&mut header).unwrap_or_else(|e| panic!("{types:?} {e}\n{}", peer_daemon.log()));
        let mut rest = vec![0; usize::from(header[16]) << 8 | usize::from(header[17])];
        rest.truncate(rest.len() - 19);
        (&socket).read_exact(&mut rest).unwrap();
        types.push((header[18], rest));
    }
    assert_eq!(
        types.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(),
        [1, 4],
        "{types:?}\n{}",
        peer_daemon.log()
    );
}

#[test]
fn extended_optional_parameters_read_by_bird() {
    long_open_read(Kind::Bird);
}

#[test]
fn extended_optional_parameters_read_by_frr() {
    long_open_read(Kind::Frr);
}

#[test]
fn extended_optional_parameters_read_by_openbgpd() {
    long_open_read(Kind::Openbgpd);
}

/// Capability codes (IANA): extended messages, roles, enhanced refresh, long-lived graceful restart,
/// four-octet AS numbers.
const LONG_MESSAGES: u8 = 6;
const EXTENDED_NEXT_HOP: u8 = 5;
const ROLE: u8 = 9;
const RESTART: u8 = 64;
const FOUR_OCTETS: u8 = 65;
const ENHANCED: u8 = 70;
const LONG_LIVED: u8 = 71;

/// With all options enabled, the daemon offers none of these capabilities. `notification`: its graceful
/// restart capability has the N bit.
fn lacks(kind: Kind, setup: SessionSetup, codes: &[u8], notification: bool) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    us.peers.get_mut("daemon").unwrap().extended_messages = true;
    let a = Node::start(us);
    peer_daemon.wait_established(&a);
    let (ours, theirs) = a.opens("daemon");
    if kind == Kind::Openbgpd {
        assert!(theirs[FIXED] < 200, "{theirs:?}");
    }
    let (ours, theirs) = (capabilities(&ours), capabilities(&theirs));
    for code in codes {
        assert!(!theirs.contains_key(code), "{kind:?} offers {code}: {theirs:?}");
    }
    assert!(ours.contains_key(&LONG_MESSAGES) && ours[&RESTART][0] & 0x40 > 0, "{ours:?}");
    let graceful = theirs.get(&RESTART).and_then(|v| v.first()).is_some_and(|first| first & 0x40 > 0);
    assert_eq!(graceful, notification, "{theirs:?}");
    assert!(theirs.contains_key(&FOUR_OCTETS));
}

#[test]
fn what_bird_does_not_offer() {
    let neighbour = "graceful restart on; long lived graceful restart on; enable extended messages on;";
    lacks(Kind::Bird, SessionSetup { neighbour, ..SessionSetup::IPV4 }, &[], false);
}

#[test]
fn what_gobgp_does_not_offer() {
    let neighbour = "[neighbors.graceful-restart.config]\nenabled = true\nnotification-enabled = true
restart-time = 20\nlong-lived-enabled = true";
    let family = "[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true";
    lacks(
        Kind::Gobgp,
        SessionSetup { neighbour, family, ..SessionSetup::IPV4 },
        &[LONG_MESSAGES, ROLE, ENHANCED],
        true,
    );
}

#[test]
fn what_openbgpd_does_not_offer() {
    // All of its capabilities fit into the short form of an OPEN.
    let neighbour =
        "announce enhanced refresh yes\nannounce restart yes\nannounce IPv4 vpn\nannounce IPv6 unicast
        announce IPv6 vpn\nannounce add-path recv yes\nannounce add-path send all\nannounce policy customer\n";
    let codes = [LONG_MESSAGES, EXTENDED_NEXT_HOP, LONG_LIVED];
    lacks(Kind::Openbgpd, SessionSetup { neighbour, ..SessionSetup::IPV4 }, &codes, false);
}

#[test]
fn what_exabgp_does_not_offer() {
    let neighbour = "graceful-restart 20; extended-message enable; nexthop enable;";
    lacks(Kind::Exabgp, SessionSetup { neighbour, ..SessionSetup::IPV4 }, &[ROLE, LONG_LIVED], false);
}
