//! Two of our speakers over loopback.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use tortie::speaker::{MonitorEvent, SpeakerFact, SpeakerOptions, ToSpeaker, monitor_queue};
use tortie_bgp::{DownCode, State};
use tortie_engine::routing::{OriginKind, Originated, Password, RoutingIntent};

use crate::rig::net;
use crate::rig::node::{Node, intent, peer, wait, wait_for};
use crate::sessions::ranges::refused;

const A: &str = "192.0.2.1:1790";
const B: &str = "192.0.2.2:1790";

/// Starts both ends of an iBGP session.
fn pair() -> (Node, Node) {
    let (a, b) = ends();
    (Node::start(a), Node::start(b))
}

/// Returns the intents of both ends.
fn ends() -> (RoutingIntent, RoutingIntent) {
    let mut a = intent(A, 64512, &["10.1.0.0/26", "fd00:1::/122"]);
    let mut b = intent(B, 64512, &["10.2.0.0/26", "fd00:2::/122"]);
    let mut to_b = peer(B, "192.0.2.1", 64512);
    to_b.local_v6 = Some("2001:db8::1".parse().unwrap());
    let mut to_a = peer(A, "192.0.2.2", 64512);
    to_a.local_v6 = Some("2001:db8::2".parse().unwrap());
    a.peers.insert("b".into(), to_b);
    b.peers.insert("a".into(), to_a);
    (a, b)
}

/// Writes a password file atomically.
fn secret(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&new, file).unwrap();
}

#[test]
fn both_dial_at_once_and_one_session_carries_both_families() {
    if !net::enter(&[]) {
        return;
    }
    let (a, b) = pair();
    a.wait_established("b");
    b.wait_established("a");
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    a.wait_for_route("10.2.0.0/26", "192.0.2.2");
    b.wait_for_route("fd00:1::/122", "2001:db8::1");
    a.wait_for_route("fd00:2::/122", "2001:db8::2");
    // The collision is resolved: one TCP connection, and it stays.
    wait("one connection", || match a.ask(|v| v.connections()) {
        1 => Ok(()),
        n => Err(format!("{n} connections")),
    });
    assert_eq!(a.peer("b").unwrap().flaps, 0);
    assert_eq!(b.peer("a").unwrap().flaps, 0);
}

#[test]
fn blocks_come_and_go_and_a_removed_peer_takes_its_routes_along() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, b) = pair();
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    let more = intent(A, 64512, &["10.1.0.0/26", "10.1.0.64/26"]);
    (a.intent.originated, a.intent.view) = (more.originated, more.view);
    a.apply();
    b.wait_for_route("10.1.0.64/26", "192.0.2.1");
    b.wait_for_no_route("fd00:1::/122");
    let less = intent(A, 64512, &["10.1.0.64/26"]);
    (a.intent.originated, a.intent.view) = (less.originated, less.view);
    a.apply();
    b.wait_for_no_route("10.1.0.0/26");
    assert!(b.route("10.1.0.64/26").is_some());
    a.intent.peers = Default::default();
    a.apply();
    b.wait_for_no_route("10.1.0.64/26");
    assert_eq!(a.peer("b"), None);
    assert_eq!(a.routes(), 0);
    assert_eq!(b.peer("a").unwrap().flaps, 1);
}

#[test]
fn a_listener_receives_nothing_from_before() {
    if !net::enter(&[]) {
        return;
    }
    let (a, mut b) = pair();
    a.wait_established("b");
    a.wait_for_route("10.2.0.0/26", "192.0.2.2");
    let mut blocks = vec!["10.2.0.0/26"];
    let mut announce = |block| {
        blocks.push(block);
        let more = intent(B, 64512, &blocks);
        (b.intent.originated, b.intent.view) = (more.originated, more.view);
        b.apply();
    };
    // A listener that ended: the first change finds the receiver closed.
    a.opens("b");
    for block in ["10.2.0.64/26", "10.2.0.128/26"] {
        announce(block);
        a.wait_for_route(block, "192.0.2.2");
    }
    let (tap, mut events) = monitor_queue(1 << 20);
    a.handle.send(ToSpeaker::Monitor(tap)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(matches!(runtime.block_on(events.next()), Some(MonitorEvent::Sessions(all)) if all.len() == 1));
    announce("10.2.0.192/26");
    let tapped = loop {
        match runtime.block_on(events.next()).unwrap() {
            MonitorEvent::Tapped(tapped) => break tapped,
            MonitorEvent::Best(..) => {}
            other => panic!("{other:?}"),
        }
    };
    let carries = |last| tapped.octets.windows(5).any(|nlri| nlri == [26, 10, 2, 0, last]);
    assert_eq!([192, 128, 64].map(carries), [true, false, false], "{tapped:?}");
}

#[test]
fn an_address_that_is_taken_is_reported_once_and_tried_again_and_changes_are_followed() {
    if !net::enter(&[]) {
        return;
    }
    let other = TcpListener::bind(A).unwrap();
    let mut a = Node::start(intent(A, 64512, &[]));
    let failed = |f: &SpeakerFact| matches!(f, SpeakerFact::ListenFailed { error, .. } if error.contains("another process"));
    a.fact("the failure", failed);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(a.facts().iter().filter(|f| failed(f)).count(), 1);
    drop(other);
    a.fact("listening", |f| *f == SpeakerFact::Listening(A.parse().unwrap()));
    a.intent.listen = vec![B.parse().unwrap()];
    a.apply();
    a.fact("moved", |f| *f == SpeakerFact::Listening(B.parse().unwrap()));
    a.fact("left", |f| *f == SpeakerFact::ListenEnded(A.parse().unwrap()));
    assert!(std::net::TcpStream::connect(A).is_err());
    assert!(std::net::TcpStream::connect(B).is_ok());
}

#[test]
fn the_listen_option_overrides_the_intent() {
    if !net::enter(&[]) {
        return;
    }
    let options =
        SpeakerOptions { listen: vec!["192.0.2.3:1799".parse().unwrap()], ..SpeakerOptions::default() };
    let a = Node::start_with(intent(A, 64512, &[]), options);
    a.fact("listening", |f| *f == SpeakerFact::Listening("192.0.2.3:1799".parse().unwrap()));
    assert!(std::net::TcpStream::connect(A).is_err());
}

#[test]
fn strangers_are_closed_and_counted() {
    if !net::enter(&[]) {
        return;
    }
    let a = Node::start(intent(A, 64512, &[]));
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    let mut stranger = std::net::TcpStream::connect(A).unwrap();
    let mut end = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stranger, &mut end);
    wait("the count", || match a.ask(|v| v.counters()) {
        c if c.refused_address == 1 => Ok(()),
        c => Err(format!("{c:?}")),
    });
    wait("no connection", || match a.ask(|v| v.connections()) {
        0 => Ok(()),
        n => Err(n.to_string()),
    });
}

#[test]
fn a_peer_that_only_dials_is_closed_and_counted() {
    if !net::enter(&[]) {
        return;
    }
    let mut intent = intent(A, 64512, &[]);
    let mut dials = peer(B, "192.0.2.1", 64512);
    dials.dial_after = None;
    intent.peers.insert("dials".into(), dials);
    let a = Node::start(intent);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    for _ in 0..100 {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"192.0.2.2:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.connect(&A.parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    }
    wait("the count", || match a.ask(|v| v.counters()) {
        // About ten may fail in a row (DampPeerOscillations).
        c if c.accepted == 100 && (80..95).contains(&c.refused_damped) && c.refused_address == 0 => Ok(()),
        c => Err(format!("{c:?}")),
    });
    wait("no connection", || match a.ask(|v| v.connections()) {
        0 => Ok(()),
        n => Err(n.to_string()),
    });
}

#[test]
fn connect_errors_are_reported_in_words() {
    if !net::enter(&[]) {
        return;
    }
    let mut a = intent(A, 64512, &[]);
    a.peers.insert("refused".into(), peer(B, "192.0.2.1", 64512));
    a.peers.insert("unreachable".into(), peer("203.0.113.1:179", "192.0.2.1", 64512));
    a.peers.insert("no-address".into(), peer(B, "198.51.100.1", 64512));
    let mut v6 = peer("[2001:db8::9]:179", "::1", 64512);
    v6.local = None;
    a.peers.insert("v6".into(), v6);
    let a = Node::start(a);
    for (peer, text) in [
        ("refused", "connection refused by 192.0.2.2:1790"),
        ("unreachable", "203.0.113.1:179"),
        ("no-address", "no interface has the local address 198.51.100.1"),
        ("v6", "[2001:db8::9]:179"),
    ] {
        a.fact(text, |f| match f {
            SpeakerFact::Peer { name, down: Some(down), .. } => {
                &**name == peer && down.code == DownCode::ConnectFailed && down.text.contains(text)
            }
            _ => false,
        });
    }
}

#[test]
fn an_address_that_an_endpoint_takes_is_not_learned_for_as_long_as_it_has_it() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, mut b) = pair();
    let (prefix, other) = ("10.3.9.9/32", "10.3.9.8/32");
    for borrowed in [prefix, other] {
        let route = Originated { kind: OriginKind::Borrowed, key: "w".into(), revision: 2, priority: None };
        b.intent.originated.insert(borrowed.parse().unwrap(), route);
    }
    b.apply();
    a.wait_for_route(prefix, "192.0.2.2");
    a.wait_for_route(other, "192.0.2.2");
    a.intent.addresses.insert("10.3.9.9".parse().unwrap(), ());
    a.apply();
    a.wait_for_no_route(prefix);
    a.wait_for_route(other, "192.0.2.2");
    a.intent.addresses = Default::default();
    a.apply();
    a.wait_for_route(prefix, "192.0.2.2");
    assert_eq!(a.peer("b").unwrap().flaps, 0);
}

#[test]
fn equal_md5_passwords_join_and_different_ones_do_not() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, mut b) = pair();
    let password = |node: &mut Node, text: &str| {
        let names: Vec<String> = node.intent.peers.keys().cloned().collect();
        for name in names {
            let peer = node.intent.peers.get_mut(&name).unwrap();
            peer.password = (!text.is_empty()).then(|| Password::Text(text.into()));
        }
        node.apply();
    };
    a.wait_established("b");
    // Both ends change: the new sessions are signed.
    password(&mut a, "first");
    password(&mut b, "first");
    wait("a signed session", || match (a.peer("b"), b.peer("a")) {
        (Some(a), Some(b))
            if a.state == State::Established && b.state == State::Established && a.flaps > 0 =>
        {
            Ok(())
        }
        (a, b) => Err(format!("{a:#?} {b:#?}")),
    });
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    // A key that both ends change within the hold time causes no session reset.
    let flaps = a.peer("b").unwrap().flaps;
    password(&mut a, "second");
    password(&mut b, "second");
    a.intent.originated = intent(A, 64512, &["10.1.0.128/26"]).originated;
    a.intent.view = intent(A, 64512, &["10.1.0.128/26"]).view;
    a.apply();
    b.wait_for_route("10.1.0.128/26", "192.0.2.1");
    assert_eq!(a.peer("b").unwrap().flaps, flaps);
    // One end without a key, one with: no segment is accepted.
    password(&mut a, "");
    wait("down", || match a.state("b") {
        Some(State::Established) => Err("still up".into()),
        _ => Ok(()),
    });
    let (before, _) = refused();
    wait("dropped segments", || if refused().0 > before { Ok(()) } else { Err(format!("{before}")) });
    assert_ne!(a.state("b"), Some(State::Established));
    password(&mut b, "");
    a.wait_established("b");
    b.wait_established("a");
}

/// As when a mesh host becomes a configured peer: one change removes one and adds the other.
#[test]
fn a_peer_under_another_name_and_with_a_key_takes_the_place_of_the_first() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, mut b) = pair();
    a.wait_established("b");
    b.wait_established("a");
    for node in [&mut a, &mut b] {
        let (name, mut peer) = node.intent.peers.iter().next().map(|(n, p)| (n.clone(), p.clone())).unwrap();
        peer.password = Some(Password::Text("new".into()));
        node.intent.peers.remove(&name);
        node.intent.peers.insert(format!("new-{name}"), peer);
    }
    a.apply();
    b.apply();
    a.wait_established("new-b");
    b.wait_established("new-a");
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    assert!(
        !a.facts()
            .iter()
            .any(|f| matches!(f, SpeakerFact::Problems { .. } | SpeakerFact::TransientProblem(_))),
        "{:#?}",
        a.facts()
    );
}

#[test]
fn a_peer_with_an_unusable_password_stays_out_and_says_why() {
    if !net::enter(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut a = intent(A, 64512, &[]);
    let mut b = peer(B, "192.0.2.1", 64512);
    b.password = Some(Password::File("bgp".into()));
    a.peers.insert("b".into(), b);
    let options = SpeakerOptions { secrets: dir.path().to_owned(), ..SpeakerOptions::default() };
    let a = Node::start_with(a, options);
    let mut b = intent(B, 64512, &[]);
    let mut to_a = peer(A, "192.0.2.2", 64512);
    to_a.password = Some(Password::Text("from a file".into()));
    b.peers.insert("a".into(), to_a);
    let b = Node::start(b);
    a.fact("the trouble", |f| {
        matches!(f, SpeakerFact::PeerProblem { name, problem: Some(text) } if &**name == "b" && text.contains("password file"))
    });
    assert_eq!(a.peer("b"), None);
    secret(&dir.path().join("bgp"), "from a file\n");
    a.apply();
    a.fact("the end of it", |f| matches!(f, SpeakerFact::PeerProblem { problem: None, .. }));
    a.wait_established("b");
    b.wait_established("a");
    assert!(!a.facts().iter().any(|f| format!("{f:?}").contains("from a file")));
}

/// Only the file changes: one end has changes to announce, the other none.
#[test]
fn another_key_in_the_files_is_taken_by_both_ends() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, mut b) = ends();
    let [of_a, of_b] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let node = |intent: &mut RoutingIntent, name: &str, dir: &Path| {
        secret(&dir.join("bgp"), "one");
        intent.peers.get_mut(name).unwrap().password = Some(Password::File("bgp".into()));
        let options = SpeakerOptions { secrets: dir.to_owned(), ..SpeakerOptions::default() };
        Node::start_with(intent.clone(), options)
    };
    let (mut a, b) = (node(&mut a, "b", of_a.path()), node(&mut b, "a", of_b.path()));
    a.wait_established("b");
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    for dir in [&of_a, &of_b] {
        secret(&dir.path().join("bgp"), "two");
    }
    let more = intent(A, 64512, &["10.1.0.0/26", "10.1.0.64/26"]);
    (a.intent.originated, a.intent.view) = (more.originated, more.view);
    a.apply();
    // TCP retransmits meanwhile, in the end with intervals of half a minute; the hold time is 90 s.
    wait_for(Duration::from_secs(85), "the new route", || match b.route("10.1.0.64/26") {
        Some(_) => Ok(()),
        None => Err(format!("{:?}", b.facts().last())),
    });
    assert_eq!((a.peer("b").unwrap().flaps, b.peer("a").unwrap().flaps), (0, 0));
}

#[test]
fn a_peer_whose_file_was_repaired_has_all_that_belongs_to_it() {
    if !net::enter(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut a = intent(A, 64512, &[]);
    let mut b = peer(B, "192.0.2.1", 64513);
    b.password = Some(Password::File("bgp".into()));
    a.peers.insert("b".into(), b);
    let options = SpeakerOptions { secrets: dir.path().to_owned(), ..SpeakerOptions::default() };
    let a = Node::start_with(a, options);
    let problem = |some: bool| move |f: &SpeakerFact| matches!(f, SpeakerFact::PeerProblem { problem, .. } if problem.is_some() == some);
    a.fact("the problem", problem(true));
    secret(&dir.path().join("bgp"), "one");
    wait("the end of it", || match a.facts().iter().any(problem(false)) {
        true => Ok(()),
        false => Err(format!("{:#?}", a.facts())),
    });
    // Its link is tracked too.
    a.fact("the watch", |f| *f == SpeakerFact::TrackNextHop("192.0.2.2".parse().unwrap()));
}

#[test]
fn a_graceful_stop_keeps_our_routes_and_another_takes_them_back() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, b) = pair();
    b.wait_for_route("10.1.0.0/26", "192.0.2.1");
    a.wait_for_route("10.2.0.0/26", "192.0.2.2");
    a.stop(true, "");
    b.fact(
        "helper",
        |f| matches!(f, SpeakerFact::Peer { to, down: Some(d), .. } if *to != State::Established && d.helper),
    );
    assert!(b.route("10.1.0.0/26").is_some());
    let options =
        SpeakerOptions { restarting: Some(tortie_bgp::Family::ALL.to_vec()), ..SpeakerOptions::default() };
    let mut again = Node::start_with(a.intent.clone(), options);
    again.wait_established("b");
    again.fact("the end of the restart", |f| *f == SpeakerFact::RestartDone);
    again.wait_for_route("10.2.0.0/26", "192.0.2.2");
    wait("nothing stale", || match b.peer("a") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.end_of_rib_received) => Ok(()),
        p => Err(format!("{p:#?}")),
    });
    assert!(b.route("10.1.0.0/26").is_some());
    again.stop(false, "for good");
    b.wait_for_no_route("10.1.0.0/26");
    b.fact(
        "the farewell",
        |f| matches!(f, SpeakerFact::Peer { down: Some(d), .. } if d.text.contains("for good")),
    );
}

/// A peer that sends KEEPALIVEs and reads nothing, over a real socket (RFC 9687).
#[test]
fn a_peer_that_never_reads_is_dropped_when_the_send_hold_time_is_over() {
    use std::io::Write;
    if !net::enter(&[]) {
        return;
    }
    let blocks: Vec<String> =
        (0..60_000u32).map(|n| format!("10.{}.{}.{}/32", 128 + n / 65536, n / 256 % 256, n % 256)).collect();
    let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
    let mut us = intent(A, 64512, &blocks);
    let mut peer_daemon = peer(B, "192.0.2.1", 64512);
    peer_daemon.dial_after = None;
    peer_daemon.ipv6 = false;
    // Its KEEPALIVEs come every 300 ms: only a machine that stands still makes the hold timer expire.
    peer_daemon.hold_time = Duration::from_secs(15);
    peer_daemon.send_hold_time = Some(Duration::from_secs(4));
    us.peers.insert("daemon".into(), peer_daemon);
    let a = Node::start(us);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(&socket2::SockAddr::from("192.0.2.2:0".parse::<std::net::SocketAddr>().unwrap())).unwrap();
    socket.connect(&socket2::SockAddr::from(A.parse::<std::net::SocketAddr>().unwrap())).unwrap();
    let open = tortie_bgp::wire::Open {
        asn: 64512,
        hold_time: 15,
        router_id: tortie_bgp::RouterId(9),
        capabilities: tortie_bgp::wire::Capabilities { as4: Some(64512), ..Default::default() },
    };
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    (&socket).write_all(&bytes).unwrap();
    let mut keepalive = Vec::new();
    tortie_bgp::wire::write_keepalive(&mut keepalive);
    // The peer's KEEPALIVEs continue, so the hold timer does not expire.
    wait("the end", || {
        let _ = (&socket).write_all(&keepalive);
        std::thread::sleep(Duration::from_millis(300));
        match a.peer("daemon").and_then(|p| p.last_down) {
            Some((down, _)) if down.code == DownCode::SendHoldTimer && down.notification == Some((8, 0)) => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn passwords_of_which_only_one_can_be_in_force_are_reported_until_they_are_equal() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, mut b) = pair();
    let mut other = a.intent.peers.get("b").unwrap().clone();
    other.password = Some(Password::Text("other".into()));
    a.intent.peers.insert("c".into(), other.clone());
    a.apply();
    let reported = |texts: usize| move |f: &SpeakerFact| matches!(f, SpeakerFact::Problems { texts: t, .. } if t.len() == texts);
    a.fact("two passwords", reported(1));
    a.intent.peers.get_mut("b").unwrap().password.clone_from(&other.password);
    b.intent.peers.get_mut("a").unwrap().password.clone_from(&other.password);
    a.apply();
    b.apply();
    a.fact("one password", reported(0));
}

#[test]
fn bfd_from_an_address_that_is_not_here_is_reported_until_nobody_wants_it() {
    if !net::enter(&[]) {
        return;
    }
    let (mut a, _) = ends();
    let to_b = a.peers.get_mut("b").unwrap();
    to_b.local = Some("198.51.100.1".parse().unwrap());
    to_b.bfd = crate::bfd::times(100, 3);
    let mut a = Node::start(a);
    let reported = |f: &SpeakerFact| match f {
        SpeakerFact::Problems { about, texts } if about == "BFD" => Some(texts.clone()),
        _ => None,
    };
    a.fact("no address", |f| {
        reported(f).is_some_and(|texts| {
            texts.iter().any(|t| t.contains("no interface has the local address 198.51.100.1"))
        })
    });
    a.intent.peers.get_mut("b").unwrap().bfd = None;
    a.apply();
    a.fact("the end of it", |f| reported(f).is_some_and(|texts| texts.is_empty()));
}
