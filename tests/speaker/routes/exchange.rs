//! Messages other than routes with each daemon: route refresh and shutdown communication in both directions;
//! also route reflection by either end, and IPv4 routes with IPv6 next hops.

use tortie::speaker::ToSpeaker;
use tortie_bgp::{Family, Reset, State};

use crate::rig::node::{Node, intent, peer, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Returns the number of ROUTE-REFRESHes and UPDATEs, received and sent.
fn counts(a: &Node) -> [u64; 4] {
    let p = a.peer("daemon").unwrap();
    [p.received.route_refresh, p.sent.route_refresh, p.received.update, p.sent.update]
}

/// Starts a session and waits until all routes and End-of-RIBs have been exchanged.
fn settled(kind: Kind) -> Option<(PeerDaemon, Node)> {
    let peer_daemon = PeerDaemon::start(kind, SessionSetup::default())?;
    let a = Node::start(our_intent(kind, SessionSetup::default()));
    peer_daemon.wait_established(&a);
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    wait("End-of-RIB", || match a.peer("daemon") {
        Some(p) if p.families.iter().all(|f| f.end_of_rib_sent && f.received > 0) => Ok(()),
        p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
    });
    assert!(a.peer("daemon").unwrap().session.unwrap().route_refresh);
    Some((peer_daemon, a))
}

fn stayed(kind: Kind, a: &Node) {
    let peer = a.peer("daemon").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0), "{:?}", peer.last_down);
    assert!(a.route(&kind.v4()).is_some());
}

/// We request a refresh, and its routes are sent again. Not with ExaBGP 4.2: it offers enhanced refresh (RFC
/// 7313) with this one, fails to send BoRR and drops the connection. BoRR and EoRR count as ROUTE-REFRESH, so
/// the counts are minimum values.
fn refresh_sent(kind: Kind) {
    let Some((peer_daemon, a)) = settled(kind) else { return };
    let before = counts(&a);
    a.handle.send(ToSpeaker::Reset(Some("daemon".into()), Reset::SoftIn)).unwrap();
    wait("our request and its routes", || match counts(&a) {
        now if now[1] > before[1] && now[2] > before[2] => Ok(()),
        now => Err(format!("{before:?} {now:?}\n{}", peer_daemon.log())),
    });
    stayed(kind, &a);
}

/// The daemon requests a refresh, and our routes are sent again.
fn refresh_received(kind: Kind) {
    let Some((peer_daemon, a)) = settled(kind) else { return };
    let before = counts(&a);
    peer_daemon.ask(match kind {
        Kind::Bird => "reload in tortie0",
        Kind::Frr => "clear bgp ipv4 unicast 192.0.2.1 soft in",
        Kind::Openbgpd => "neighbor 192.0.2.1 refresh",
        Kind::Exabgp => "neighbor 192.0.2.1 announce route-refresh ipv4 unicast",
        Kind::Gobgp => unreachable!("its softresetin asks nobody"),
    });
    wait("its request and our routes", || match counts(&a) {
        now if now[0] > before[0] && now[3] > before[3] => Ok(()),
        now => Err(format!("{before:?} {now:?}\n{}", peer_daemon.log())),
    });
    stayed(kind, &a);
}

/// The daemon receives our shutdown communication. ExaBGP 4.2 fails on any text (its `Notification` formats
/// `str` into `bytes`) and answers Message Header Error.
fn last_words_sent(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::default()) else { return };
    let mut a = Node::start(our_intent(kind, SessionSetup::default()));
    peer_daemon.wait_established(&a);
    a.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    a.stop(false, "maintenance at noon");
    wait("it to have read them", || {
        let mut said = peer_daemon.log();
        if kind == Kind::Frr {
            said += &peer_daemon.ask("show bgp neighbors 192.0.2.1");
        }
        if said.contains("maintenance at noon") { Ok(()) } else { Err(said) }
    });
    if kind == Kind::Bird {
        assert!(peer_daemon.log().contains("Administrative shutdown"), "{}", peer_daemon.log());
    }
}

/// We receive the daemon's shutdown communication.
fn last_words_received(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::default()) else { return };
    let a = Node::start(our_intent(kind, SessionSetup::default()));
    peer_daemon.wait_established(&a);
    a.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    match kind {
        Kind::Bird => drop(peer_daemon.ask("disable tortie0 \"noon\"")),
        Kind::Frr => {
            let set = "neighbor 192.0.2.1 shutdown message noon";
            peer_daemon.ask(&format!("configure terminal\nrouter bgp 65011\n{set}"));
        }
        Kind::Gobgp => drop(peer_daemon.ask("neighbor 192.0.2.1 shutdown --reason noon")),
        Kind::Openbgpd => drop(peer_daemon.ask("neighbor 192.0.2.1 down noon")),
        Kind::Exabgp => {
            // Unread input makes its close a TCP reset, which overtakes the NOTIFICATION.
            wait("it to have read all", || match peer_daemon.updates() {
                said if said.matches("\"eor\"").count() == 2 => Ok(()),
                said => Err(format!("{said}\n{}", peer_daemon.log())),
            });
            peer_daemon.ask("neighbor 192.0.2.1 teardown 2");
        }
    }
    // ExaBGP accepts a code and sends its name.
    let words = if kind == Kind::Exabgp { "Administrative Shutdown" } else { "noon" };
    wait("its last words", || match a.peer("daemon").and_then(|p| p.last_error) {
        Some(error) if format!("{error:?}").contains(words) => Ok(()),
        other => {
            Err(format!("{other:?} {:?}\n{}", a.peer("daemon").and_then(|p| p.last_down), peer_daemon.log()))
        }
    });
    if kind == Kind::Exabgp {
        // It reconnects at once, so the route may be back before the check.
        wait("the shutdown to end what it announced", || match a.withdrawn(&kind.v4()) {
            0 => Err(format!("{:#?}", a.facts())),
            _ => Ok(()),
        });
        return;
    }
    wait("the shutdown to end what it announced", || match a.route(&kind.v4()) {
        None => Ok(()),
        Some(hops) => Err(format!("{hops:?}")),
    });
}

/// Starts a third node with a block in our AS, as a peer of the reflector at this address.
fn third(reflector: &str) -> Node {
    let mut us = intent("192.0.2.2:1790", 64512, &["10.2.0.0/26"]);
    let mut peer_daemon = peer(reflector, "192.0.2.2", 64512);
    peer_daemon.local_v6 = Some("2001:db8::2".parse().unwrap());
    us.peers.insert("daemon".into(), peer_daemon);
    Node::start(us)
}

/// Returns the attributes of a route of the peer as text.
fn attributes(a: &Node, prefix: &str) -> String {
    format!("{:?}", a.received("daemon", prefix).map(|path| path.attributes))
}

/// The daemon reflects between us and a third node.
fn reflector(kind: Kind) {
    let setup = SessionSetup { ibgp: true, reflector: true, ..SessionSetup::default() };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    if kind == Kind::Openbgpd {
        // Its route process accepts UPDATEs before it has the configuration, and does not evaluate them
        // again: early routes are reflected without ORIGINATOR_ID and CLUSTER_LIST. Its own routes arrive
        // with the configuration.
        wait("OpenBGPD to have its configuration", || match peer_daemon.route(&kind.v4()) {
            answer if answer.contains(&kind.v4()) => Ok(()),
            answer => Err(format!("{answer}\n{}", peer_daemon.log())),
        });
    }
    let a = Node::start(our_intent(kind, setup));
    let b = third(&format!("192.0.2.{}:1790", kind.last()));
    peer_daemon.wait_established(&a);
    peer_daemon.wait_established(&b);
    a.wait_for_route("10.2.0.0/26", "192.0.2.2");
    b.wait_for_route(V4, "192.0.2.1");
    let text = attributes(&a, "10.2.0.0/26");
    // 192.0.2.2 is the originator, and the cluster is that of the reflector.
    let (originator, cluster) = (0xc000_0202_u32, 0xc000_0200 + kind.last());
    assert!(text.contains(&originator.to_string()) && text.contains(&cluster.to_string()), "{text}");
}

/// We reflect between the daemon and a third node, and the daemon accepts the reflected routes.
fn client(kind: Kind) {
    let setup = SessionSetup { ibgp: true, ..SessionSetup::default() };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    us.peers.get_mut("daemon").unwrap().reflector_client = Some(0xc000_0201);
    let mut third_peer = peer("192.0.2.2:1790", "192.0.2.1", 64512);
    third_peer.local_v6 = Some("2001:db8::1".parse().unwrap());
    us.peers.insert("third".into(), third_peer);
    let a = Node::start(us);
    let b = third("192.0.2.1:1790");
    peer_daemon.wait_established(&a);
    b.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    let text = attributes(&b, &kind.v4());
    let originator = 0xc000_0200 + kind.last();
    assert!(text.contains(&originator.to_string()) && text.contains(&0xc000_0201_u32.to_string()), "{text}");
    peer_daemon.wait_for_route("10.2.0.0/26", &["192.0.2.2", "192.0.2.1"]);
}

/// IPv4 routes over an IPv6 session with IPv6 next hops, in both directions.
fn extended_next_hop(kind: Kind) {
    let setup = SessionSetup { over_ipv6: true, extended_next_hop: true, ..SessionSetup::default() };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let a = Node::start(our_intent(kind, setup));
    peer_daemon.wait_established(&a);
    assert!(a.peer("daemon").unwrap().session.unwrap().extended_next_hop);
    a.wait_for_route(&kind.v4(), &format!("2001:db8::{}", kind.last()));
    peer_daemon.wait_for_route(V4, &["2001:db8::1"]);
    let families = a.peer("daemon").unwrap().families;
    assert!(families.iter().any(|f| f.family == Family::Ipv4Unicast && f.advertised > 0));
}

/// Equal BGP identifiers are valid between ASes (RFC 6286 2.1), whichever end dials.
fn same_router_id(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::IPV4) else { return };
    let mut us = our_intent(kind, SessionSetup::IPV4);
    us.router_id = 0xc000_0200 + kind.last();
    let a = Node::start(us);
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.wait_for_route(V4, &[V4]);
    let p = a.peer("daemon").unwrap();
    assert_eq!(p.session.unwrap().router_id.0, a.intent.router_id);
    assert_eq!((p.state, p.flaps), (State::Established, 0));
}

#[test]
fn same_router_id_as_bird() {
    same_router_id(Kind::Bird);
}

#[test]
fn same_router_id_as_frr() {
    same_router_id(Kind::Frr);
}

#[test]
fn same_router_id_as_gobgp() {
    same_router_id(Kind::Gobgp);
}

#[test]
fn same_router_id_as_openbgpd() {
    same_router_id(Kind::Openbgpd);
}

#[test]
fn same_router_id_as_exabgp() {
    same_router_id(Kind::Exabgp);
}

/// A peer that is shut down receives the reason, is neither dialled nor accepted, and returns later; the
/// other peer is not affected.
fn shutdown_of_one(kinds: [Kind; 2]) {
    if !PeerDaemon::enter_for(&kinds) {
        return;
    }
    let [Some(first), Some(second)] = kinds.map(|kind| PeerDaemon::start_here(kind, SessionSetup::IPV4))
    else {
        return;
    };
    let mut a = our_intent(kinds[0], SessionSetup::IPV4);
    let other = our_intent(kinds[1], SessionSetup::IPV4).peers.remove("daemon").unwrap();
    a.peers.insert("other".into(), other);
    let mut a = Node::start(a);
    for (peer_daemon, name, other) in [(&first, "daemon", "other"), (&second, "other", "daemon")] {
        for name in [name, other] {
            a.wait_established(name);
        }
        let before = a.peer(other).unwrap();
        a.intent.peers.get_mut(name).unwrap().shutdown = Some("until noon".into());
        a.apply();
        wait("it to have read why", || {
            let mut said = peer_daemon.log();
            if peer_daemon.kind == Kind::Frr {
                said += &peer_daemon.ask("show bgp neighbors 192.0.2.1");
            }
            if said.contains("until noon") { Ok(()) } else { Err(said) }
        });
        a.wait_for_no_route(&peer_daemon.kind.v4());
        let p = a.peer(name).unwrap();
        assert_eq!((p.state, p.next_attempt), (State::Idle, None));
        a.intent.peers.get_mut(name).unwrap().shutdown = None;
        a.apply();
        if peer_daemon.kind == Kind::Openbgpd {
            // By default it waits for half a minute.
            peer_daemon.ask("neighbor 192.0.2.1 clear");
        }
        wait("it to come back", || match a.route(&peer_daemon.kind.v4()) {
            Some(_) => Ok(()),
            None => Err(format!("{:#?}\n{}", a.peer(name), peer_daemon.log())),
        });
        let after = a.peer(other).unwrap();
        assert_eq!((after.state, after.flaps), (State::Established, before.flaps));
        assert!(after.uptime > before.uptime);
    }
}

#[test]
fn shutdown_of_a_peer_is_sent_to_bird_and_frr_and_to_nobody_else() {
    shutdown_of_one([Kind::Bird, Kind::Frr]);
}

#[test]
fn shutdown_of_a_peer_is_sent_to_gobgp_and_openbgpd_and_to_nobody_else() {
    shutdown_of_one([Kind::Gobgp, Kind::Openbgpd]);
}

#[test]
fn route_refresh_sent_to_bird() {
    refresh_sent(Kind::Bird);
}

#[test]
fn route_refresh_sent_to_frr() {
    refresh_sent(Kind::Frr);
}

#[test]
fn route_refresh_sent_to_gobgp() {
    refresh_sent(Kind::Gobgp);
}

#[test]
fn route_refresh_received_from_bird() {
    refresh_received(Kind::Bird);
}

#[test]
fn route_refresh_received_from_frr() {
    refresh_received(Kind::Frr);
}

#[test]
fn route_refresh_received_from_openbgpd() {
    refresh_received(Kind::Openbgpd);
}

#[test]
fn route_refresh_received_from_exabgp() {
    refresh_received(Kind::Exabgp);
}

#[test]
fn last_words_sent_to_bird() {
    last_words_sent(Kind::Bird);
}

#[test]
fn last_words_sent_to_frr() {
    last_words_sent(Kind::Frr);
}

#[test]
fn last_words_sent_to_gobgp() {
    last_words_sent(Kind::Gobgp);
}

#[test]
fn last_words_sent_to_openbgpd() {
    last_words_sent(Kind::Openbgpd);
}

#[test]
fn last_words_received_from_bird() {
    last_words_received(Kind::Bird);
}

#[test]
fn last_words_received_from_frr() {
    last_words_received(Kind::Frr);
}

#[test]
fn last_words_received_from_gobgp() {
    last_words_received(Kind::Gobgp);
}

#[test]
fn last_words_received_from_openbgpd() {
    last_words_received(Kind::Openbgpd);
}

#[test]
fn last_words_received_from_exabgp() {
    last_words_received(Kind::Exabgp);
}

#[test]
fn reflection_by_bird() {
    reflector(Kind::Bird);
}

#[test]
fn reflection_by_frr() {
    reflector(Kind::Frr);
}

#[test]
fn reflection_by_gobgp() {
    reflector(Kind::Gobgp);
}

#[test]
fn reflection_by_openbgpd() {
    reflector(Kind::Openbgpd);
}

#[test]
fn reflection_to_bird() {
    client(Kind::Bird);
}

#[test]
fn reflection_to_frr() {
    client(Kind::Frr);
}

#[test]
fn reflection_to_gobgp() {
    client(Kind::Gobgp);
}

#[test]
fn reflection_to_openbgpd() {
    client(Kind::Openbgpd);
}

#[test]
fn reflection_to_exabgp() {
    client(Kind::Exabgp);
}

#[test]
fn extended_next_hop_both_ways_with_bird() {
    extended_next_hop(Kind::Bird);
}

#[test]
fn extended_next_hop_both_ways_with_frr() {
    extended_next_hop(Kind::Frr);
}

#[test]
fn extended_next_hop_both_ways_with_gobgp() {
    extended_next_hop(Kind::Gobgp);
}

#[test]
fn extended_next_hop_both_ways_with_exabgp() {
    extended_next_hop(Kind::Exabgp);
}
