//! Graceful shutdown (RFC 8326) with other daemons: drained routes get the community, are withdrawn, and are
//! restored; routes received with it are least preferred.

use tortie::speaker::ToSpeaker;
use tortie_bgp::{Drain, RouteMatch, RouteQuery, RouteTable};

use crate::rig::node::{Node, cidr, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Returns our route as the daemon has it: `None` if absent, else true with the community.
fn shown(peer_daemon: &PeerDaemon) -> Option<bool> {
    let said = match peer_daemon.kind {
        Kind::Exabgp => {
            peer_daemon.updates().lines().rfind(|l| l.contains(V4)).unwrap_or_default().to_owned()
        }
        _ => peer_daemon.route(V4),
    };
    peer_daemon.shows_route(&said).then(|| match peer_daemon.kind {
        Kind::Bird => said.contains("(65535,0)"),
        // FRR lowers LOCAL_PREF too.
        Kind::Frr => said.contains("graceful-shutdown") && said.contains("localpref 0"),
        Kind::Gobgp => said.contains("4294901760"),
        Kind::Openbgpd => said.contains("GRACEFUL_SHUTDOWN"),
        Kind::Exabgp => said.contains("[ 65535, 0 ]") || said.contains("65535:0"),
    })
}

fn sent(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::IPV4) else { return };
    let a = Node::start(our_intent(kind, SessionSetup::IPV4));
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    assert_eq!(shown(&peer_daemon), Some(false));
    for (drain, want) in [(Drain::Announce, Some(true)), (Drain::Withdraw, None), (Drain::Off, Some(false))] {
        a.handle.send(ToSpeaker::Drain(None, drain)).unwrap();
        if drain != Drain::Off {
            wait("the peer to take it", || {
                a.ask(|view| view.has_taken_all("daemon")).then_some(()).ok_or_else(|| "not yet".to_owned())
            });
        }
        wait("the route", || match shown(&peer_daemon) {
            now if now == want => Ok(()),
            now => Err(format!("{drain:?}: {now:?}\n{}", peer_daemon.route(V4))),
        });
    }
}

fn received(kind: Kind, setup: SessionSetup, prefix: &str) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    if kind == Kind::Gobgp {
        peer_daemon.add(&format!("{prefix} nexthop 192.0.2.10 community 65535:0"));
    }
    let a = Node::start(our_intent(kind, setup));
    a.wait_for_route(prefix, &kind.at());
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    assert_eq!(found[0].paths[0].attributes.local_pref, Some(0), "{}", peer_daemon.log());
}

#[test]
fn graceful_shutdown_sent_to_bird() {
    sent(Kind::Bird);
}

#[test]
fn graceful_shutdown_sent_to_frr() {
    sent(Kind::Frr);
}

#[test]
fn graceful_shutdown_sent_to_gobgp() {
    sent(Kind::Gobgp);
}

#[test]
fn graceful_shutdown_sent_to_openbgpd() {
    sent(Kind::Openbgpd);
}

#[test]
fn graceful_shutdown_sent_to_exabgp() {
    sent(Kind::Exabgp);
}

#[test]
fn graceful_shutdown_received_from_bird() {
    let family =
        "export filter { if source != RTS_STATIC then reject; bgp_community.add((65535, 0)); accept; };";
    received(Kind::Bird, SessionSetup { family, ..SessionSetup::IPV4 }, "10.9.0.0/24");
}

#[test]
fn graceful_shutdown_received_from_frr() {
    received(
        Kind::Frr,
        SessionSetup { neighbour: "bgp graceful-shutdown", ..SessionSetup::IPV4 },
        "10.11.0.0/24",
    );
}

#[test]
fn graceful_shutdown_received_from_gobgp() {
    received(Kind::Gobgp, SessionSetup::IPV4, "10.10.2.0/24");
}

#[test]
fn graceful_shutdown_received_from_openbgpd() {
    let more = "match to any set community GRACEFUL_SHUTDOWN";
    received(Kind::Openbgpd, SessionSetup { more, ..SessionSetup::IPV4 }, "10.12.0.0/24");
}

#[test]
fn graceful_shutdown_received_from_exabgp() {
    let family = "route 10.13.2.0/24 next-hop 192.0.2.13 community [ 65535:0 ];";
    received(Kind::Exabgp, SessionSetup { family, ..SessionSetup::IPV4 }, "10.13.2.0/24");
}
