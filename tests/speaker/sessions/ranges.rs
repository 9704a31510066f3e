//! Dynamic neighbours: daemons that dial into our range, and we into theirs.

use std::time::Duration;

use tortie::speaker::{SpeakerFact, SpeakerOptions};
use tortie_bgp::{DownCode, State};
use tortie_engine::routing::{Password, PeerKind, RangeIntent, RoutingIntent};

use crate::rig::net;
use crate::rig::node::{Node, cidr, intent, peer, wait};
use crate::rig::{Kind, PASSWORD, PeerDaemon, SessionSetup, V4, V6, our_intent};

/// Returns the number of segments dropped because of their MD5 signature: wrong or missing, and unexpected.
pub(crate) fn refused() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|l| l.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
    let of = |wanted: &str| {
        names
            .clone()
            .zip(values.clone())
            .find(|(name, _)| *name == wanted)
            .map_or(0, |(_, v)| v.parse().unwrap())
    };
    (of("TCPMD5Failure") + of("TCPMD5NotFound"), of("TCPMD5Unexpected"))
}

/// Returns the intent of the node, with a range instead of the peer.
fn ours(kind: Kind, setup: SessionSetup, range: &str, password: Option<&str>) -> RoutingIntent {
    let mut intent = our_intent(kind, setup);
    let mut peer = intent.peers.remove("daemon").unwrap();
    peer.ipv4 = !setup.over_ipv6;
    (peer.kind, peer.local, peer.dial_after) = (PeerKind::Dynamic, None, None);
    peer.password = password.map(|p| Password::Text(p.into()));
    let range = RangeIntent { prefix: cidr(range), max_sessions: 1, peer };
    intent.ranges.insert("lan".into(), range);
    intent
}

fn name(kind: Kind, setup: SessionSetup) -> String {
    format!("Dynamic_{}", setup.daemon_address(kind))
}

fn up(a: &Node, peer_daemon: &PeerDaemon, setup: SessionSetup) {
    let name = name(peer_daemon.kind, setup);
    wait(&format!("{:?} to come from the range", peer_daemon.kind), || match a.peer(&name) {
        Some(p) if p.state == State::Established => Ok(()),
        p => Err(format!("{p:#?}\n{:?}\n{}", a.ask(|v| v.ranges()), peer_daemon.log())),
    });
}

/// The daemon dials into a range with MD5: refused with the wrong key, accepted once the right one is set.
/// The session ends when the range is removed, and connections from outside a range are refused. The first
/// and the last are tested only with daemons that retry soon.
fn they_dial(kind: Kind, over_ipv6: bool) {
    let setup = SessionSetup { md5: true, over_ipv6, ..SessionSetup::default() };
    let range = if over_ipv6 { "2001:db8::/123" } else { "192.0.2.8/29" };
    let (route, theirs, own, hop) = match over_ipv6 {
        true => (kind.v6(), setup.daemon_address(kind), V6, "2001:db8::1"),
        false => (kind.v4(), setup.daemon_address(kind), V4, "192.0.2.1"),
    };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let first = if kind == Kind::Gobgp { PASSWORD } else { "wrong" };
    let mut a = Node::start(ours(kind, setup, range, Some(first)));
    if first != PASSWORD {
        wait("a wrong signature", || match refused() {
            (0, _) => Err(peer_daemon.log()),
            _ => Ok(()),
        });
        assert_eq!(a.ask(|v| v.dynamic()), []);
        a.intent.ranges.get_mut("lan").unwrap().peer.password = Some(Password::Text(PASSWORD.into()));
        a.apply();
    }
    up(&a, &peer_daemon, setup);
    let name = name(kind, setup);
    let peer = a.peer(&name).unwrap();
    assert_ne!(peer.session.unwrap().remote.port(), 1790, "it dialled");
    assert!(peer.id.is_dynamic() && peer.range.is_some());
    a.wait_for_route(&route, &theirs);
    peer_daemon.wait_for_route(own, &[hop]);
    let status = a.ask(|v| v.ranges()).remove(0);
    assert_eq!((&*status.name, status.status.peers, status.status.max_peers), ("lan", 1, 1));

    let (_, unexpected) = refused();
    let moved = ours(kind, setup, "192.0.2.128/25", None);
    a.intent.ranges = moved.ranges;
    a.apply();
    a.fact("the end", |f| match f {
        SpeakerFact::Peer { from: State::Established, down: Some(down), .. } => {
            (down.code, down.notification) == (DownCode::Config, Some((6, 3)))
        }
        _ => false,
    });
    wait("nothing left of it", || match (a.ask(|v| v.dynamic()), a.route(&route)) {
        (peers, None) if peers.is_empty() => Ok(()),
        other => Err(format!("{other:?}")),
    });
    a.fact("the end of it", |f| matches!(f, SpeakerFact::DynamicPeerGone(n) if **n == *name));
    assert!(a.peer(&name).is_none());
    if matches!(kind, Kind::Bird | Kind::Gobgp | Kind::Openbgpd) {
        return;
    }
    wait("an attempt from outside", || match refused().1 > unexpected {
        true => Ok(()),
        false => Err(peer_daemon.log()),
    });
    assert_eq!(a.ask(|v| v.dynamic()), []);
}

/// A full range accepts the daemon when there is room again.
#[test]
fn range_that_is_full_waits_for_room_bird() {
    let setup = SessionSetup::default();
    let Some(peer_daemon) = PeerDaemon::start(Kind::Bird, setup) else { return };
    let mut taken = intent("192.0.2.14:1790", 65009, &[]);
    let mut to_us = peer("192.0.2.1:1790", "192.0.2.14", 64512);
    to_us.ipv6 = false;
    taken.peers.insert("us".into(), to_us);
    let mut a = Node::start(ours(Kind::Bird, setup, "192.0.2.14/32", None));
    let mut first = Node::start(taken);
    first.wait_established("us");
    // The other peer is inside the wider range too, and stays; BIRD comes too late.
    a.intent.ranges.get_mut("lan").unwrap().prefix = cidr("192.0.2.8/29");
    a.apply();
    wait("BIRD to be told", || match peer_daemon.ask("show protocols all tortie0") {
        said if said.contains("Connection rejected") => Ok(()),
        said => Err(said),
    });
    assert_eq!(first.peer("us").unwrap().flaps, 0);
    let status = a.ask(|v| v.ranges()).remove(0).status;
    assert!(status.peers == 1 && status.refused > 0, "{status:?}");
    first.stop(false, "");
    up(&a, &peer_daemon, setup);
    a.wait_for_route(&Kind::Bird.v4(), "192.0.2.9");
}

/// We dial, and are a dynamic neighbour of the daemon.
fn we_dial(kind: Kind, md5: bool) {
    let setup = SessionSetup { md5, range: true, ..SessionSetup::default() };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    us.peers.get_mut("daemon").unwrap().ipv6 = false;
    let a = Node::start(us);
    peer_daemon.wait_established(&a);
    assert_eq!(a.peer("daemon").unwrap().session.unwrap().remote.port(), 1790, "we dialled");
    a.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
}

/// A peer that requires a key is not accepted by a wider range without one, and neither is an address of a
/// narrower range.
#[test]
fn who_lacks_the_key_of_a_peer_or_range_is_not_taken_by_a_wider_range() {
    if !net::enter(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut us = intent("192.0.2.1:1790", 64512, &[V4]);
    let missing = Some(Password::File("missing".into()));
    let mut known = peer("192.0.2.14:1790", "192.0.2.1", 65009);
    (known.ipv6, known.dial_after, known.password) = (false, None, missing.clone());
    us.peers.insert("known".into(), known.clone());
    for (name, prefix, password) in [("lan", "192.0.2.0/24", None), ("rack", "192.0.2.128/25", missing)] {
        let mut peer = known.clone();
        (peer.kind, peer.local, peer.password) = (PeerKind::Dynamic, None, password);
        us.ranges.insert(name.into(), RangeIntent { prefix: cidr(prefix), max_sessions: 9, peer });
    }
    let options = SpeakerOptions { secrets: dir.path().to_owned(), ..SpeakerOptions::default() };
    let a = Node::start_with(us, options);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    let comes = |from: &str| {
        let mut peer_daemon = intent(&format!("{from}:1790"), 65009, &[]);
        let mut to_us = peer("192.0.2.1:1790", from, 64512);
        to_us.ipv6 = false;
        peer_daemon.peers.insert("us".into(), to_us);
        Node::start(peer_daemon)
    };
    let _others = ["192.0.2.14", "192.0.2.200"].map(comes);
    wait("both to be refused", || match a.ask(|v| v.counters()) {
        c if c.refused_key > 1 && c.accepted == c.refused_key => Ok(()),
        c => Err(format!("{c:?}")),
    });
    let stranger = comes("192.0.2.15");
    stranger.wait_established("us");
    let names: Vec<String> = a.ask(|v| v.dynamic()).iter().map(|peer| peer.name.to_string()).collect();
    assert_eq!(names, ["Dynamic_192.0.2.15"]);
}

/// Both ends change the key of the range within the hold time: the session stays up.
#[test]
fn another_key_of_a_range_costs_no_session() {
    if !net::enter(&[]) {
        return;
    }
    let mut peer_daemon = intent("192.0.2.14:1790", 65009, &[]);
    let mut to_us = peer("192.0.2.1:1790", "192.0.2.14", 64512);
    (to_us.ipv6, to_us.password) = (false, Some(Password::Text("one".into())));
    peer_daemon.peers.insert("us".into(), to_us);
    let mut us = intent("192.0.2.1:1790", 64512, &[V4]);
    let mut of_range = peer("192.0.2.8:1790", "192.0.2.1", 65009);
    (of_range.kind, of_range.local, of_range.dial_after) = (PeerKind::Dynamic, None, None);
    (of_range.ipv6, of_range.password) = (false, Some(Password::Text("one".into())));
    us.ranges
        .insert("lan".into(), RangeIntent { prefix: cidr("192.0.2.8/29"), max_sessions: 1, peer: of_range });
    let (mut a, mut b) = (Node::start(us), Node::start(peer_daemon));
    b.wait_for_route(V4, "192.0.2.1");
    a.intent.ranges.get_mut("lan").unwrap().peer.password = Some(Password::Text("two".into()));
    b.intent.peers.get_mut("us").unwrap().password = Some(Password::Text("two".into()));
    a.apply();
    b.apply();
    let more = intent("192.0.2.1:1790", 64512, &[V4, "10.1.0.64/26"]);
    (a.intent.originated, a.intent.view) = (more.originated, more.view);
    a.apply();
    b.wait_for_route("10.1.0.64/26", "192.0.2.1");
    assert_eq!(b.peer("us").unwrap().flaps, 0);
    // Removal of the key ends the session, with a NOTIFICATION that is still signed.
    a.intent.ranges.get_mut("lan").unwrap().peer.password = None;
    a.apply();
    b.fact(
        "its end",
        |f| matches!(f, SpeakerFact::Peer { down: Some(d), .. } if d.notification == Some((6, 3))),
    );
}

/// A key that this kernel cannot use is reported, and no segment is sent without it (RFC 5925).
#[test]
fn tcp_ao_on_a_kernel_without_it_is_reported_and_nothing_is_sent() {
    if !net::enter(&[]) {
        return;
    }
    let ao = tortie_engine::routing::TcpAo {
        send_id: 1,
        receive_id: 1,
        algorithm: tortie_engine::routing::AoAlgorithm::HmacSha1,
        password: Password::Text(PASSWORD.into()),
        extra: tortie_config::resource::Extra::default(),
    };
    let mut us = intent("192.0.2.1:1790", 64512, &[]);
    let mut peer_daemon = peer("192.0.2.2:1790", "192.0.2.1", 64512);
    peer_daemon.tcp_ao = Some(ao.clone());
    us.peers.insert("daemon".into(), peer_daemon);
    let listener = std::net::TcpListener::bind("192.0.2.2:1790").unwrap();
    let a = Node::start(us);
    let said = |f: &SpeakerFact| match f {
        SpeakerFact::Peer { name, down: Some(down), .. } if &**name == "daemon" => down.text.clone(),
        _ => String::new(),
    };
    a.fact("an attempt", |f| {
        !said(f).is_empty() || matches!(f, SpeakerFact::Peer { to: State::OpenSent, .. })
    });
    let Some(text) = a.facts().iter().map(said).find(|text| !text.is_empty()) else {
        eprintln!("this kernel has TCP-AO: nothing to test here");
        return;
    };
    assert!(text.contains("no TCP-AO") && text.contains("CONFIG_TCP_AO"), "{text}");
    let (down, _) = a.peer("daemon").unwrap().last_down.unwrap();
    assert_eq!((down.code, &down.text), (DownCode::ConnectFailed, &text));
    listener.set_nonblocking(true).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(listener.accept().is_err(), "a connection without TCP-AO");
    // Connections from there are not accepted either.
    a.fact("the listener", |f| matches!(f, SpeakerFact::Problems { texts, .. } if texts.iter().any(|t| t.contains("TCP-AO key of 192.0.2.2"))));
    let local = socket2::SockAddr::from("192.0.2.2:0".parse::<std::net::SocketAddr>().unwrap());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&local).unwrap();
    socket
        .connect(&socket2::SockAddr::from("192.0.2.1:1790".parse::<std::net::SocketAddr>().unwrap()))
        .unwrap();
    wait("a refusal", || match a.ask(|v| v.counters()).refused_key {
        0 => Err("none".into()),
        _ => Ok(()),
    });
    assert!(!format!("{:?}", a.facts()).contains(PASSWORD));
}

#[test]
fn range_dialled_by_bird() {
    they_dial(Kind::Bird, false);
}

#[test]
fn range_dialled_by_frr() {
    they_dial(Kind::Frr, false);
}

#[test]
fn range_dialled_over_ipv6_by_gobgp() {
    they_dial(Kind::Gobgp, true);
}

#[test]
fn range_dialled_by_openbgpd() {
    they_dial(Kind::Openbgpd, false);
}

#[test]
fn range_dialled_by_exabgp() {
    they_dial(Kind::Exabgp, false);
}

#[test]
fn range_of_bird_is_dialled() {
    we_dial(Kind::Bird, true);
}

#[test]
fn range_of_frr_is_dialled() {
    we_dial(Kind::Frr, true);
}

#[test]
fn range_of_gobgp_is_dialled() {
    we_dial(Kind::Gobgp, false);
}

#[test]
fn range_of_openbgpd_is_dialled() {
    we_dial(Kind::Openbgpd, false);
}

#[test]
fn range_of_exabgp_is_dialled() {
    we_dial(Kind::Exabgp, false);
}
