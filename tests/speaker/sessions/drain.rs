//! Graceful shutdown (RFC 8326) with other daemons: what we drain is marked, then withdrawn, then back; what they mark is
//! used last.

use tortie::speaker::ToSpeaker;
use tortie_bgp::{Drain, RouteMatch, RouteQuery, RouteTable};

use crate::rig::node::{Node, cidr, wait};
use crate::rig::{Kind, Them, V4, Wish, us};

/// Our route as it has it: `None` when it is gone, else whether it is marked.
fn shown(them: &Them) -> Option<bool> {
    let said = match them.kind {
        Kind::Exabgp => them.updates().lines().rfind(|l| l.contains(V4)).unwrap_or_default().to_owned(),
        _ => them.route(V4),
    };
    them.is_there(&said).then(|| match them.kind {
        Kind::Bird => said.contains("(65535,0)"),
        // FRR takes it at its word.
        Kind::Frr => said.contains("graceful-shutdown") && said.contains("localpref 0"),
        Kind::Gobgp => said.contains("4294901760"),
        Kind::Openbgpd => said.contains("GRACEFUL_SHUTDOWN"),
        Kind::Exabgp => said.contains("[ 65535, 0 ]") || said.contains("65535:0"),
    })
}

fn sent(kind: Kind) {
    let Some(them) = Them::start(kind, Wish::IPV4) else { return };
    let a = Node::start(us(kind, Wish::IPV4));
    them.has(V4, &["192.0.2.1"]);
    assert_eq!(shown(&them), Some(false));
    for (drain, want) in [(Drain::Announce, Some(true)), (Drain::Withdraw, None), (Drain::Off, Some(false))] {
        a.handle.send(ToSpeaker::Drain(None, drain)).unwrap();
        if drain != Drain::Off {
            wait("the peer to take it", || {
                a.ask(|view| view.has_taken_all("them")).then_some(()).ok_or_else(|| "not yet".to_owned())
            });
        }
        wait("the route", || match shown(&them) {
            now if now == want => Ok(()),
            now => Err(format!("{drain:?}: {now:?}\n{}", them.route(V4))),
        });
    }
}

fn received(kind: Kind, wish: Wish, prefix: &str) {
    let Some(them) = Them::start(kind, wish) else { return };
    if kind == Kind::Gobgp {
        them.add(&format!("{prefix} nexthop 192.0.2.10 community 65535:0"));
    }
    let a = Node::start(us(kind, wish));
    a.has(prefix, &kind.at());
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    assert_eq!(found[0].paths[0].attributes.local_pref, Some(0), "{}", them.log());
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
    received(Kind::Bird, Wish { family, ..Wish::IPV4 }, "10.9.0.0/24");
}

#[test]
fn graceful_shutdown_received_from_frr() {
    received(Kind::Frr, Wish { neighbour: "bgp graceful-shutdown", ..Wish::IPV4 }, "10.11.0.0/24");
}

#[test]
fn graceful_shutdown_received_from_gobgp() {
    received(Kind::Gobgp, Wish::IPV4, "10.10.2.0/24");
}

#[test]
fn graceful_shutdown_received_from_openbgpd() {
    let more = "match to any set community GRACEFUL_SHUTDOWN";
    received(Kind::Openbgpd, Wish { more, ..Wish::IPV4 }, "10.12.0.0/24");
}

#[test]
fn graceful_shutdown_received_from_exabgp() {
    let family = "route 10.13.2.0/24 next-hop 192.0.2.13 community [ 65535:0 ];";
    received(Kind::Exabgp, Wish { family, ..Wish::IPV4 }, "10.13.2.0/24");
}
