//! Octets that waited in the sockets during a pause of the process (SIGSTOP, a suspended virtual machine) are
//! not taken for silence of the peer.

use std::net::SocketAddr;
use std::time::Duration;

use tortie_bgp::wire::write_keepalive;
use tortie_bgp::{ConnId, Dial, Event, Input, NextHopState, PeerId, State};

use crate::raw::{CONN, Hand, update};
use crate::support::{self, greeting, ip, peer};

const SECOND: ConnId = ConnId(2);

/// Two sessions that are up.
fn two_sessions() -> Hand {
    let mut hand = Hand::new().up();
    let mut config = peer(ip("192.0.2.10"), 65001);
    config.dial = Dial::Passive;
    hand.give(Input::Peer(PeerId(2), Box::new(config)));
    let (local, remote) = (SocketAddr::new(ip("192.0.2.1"), 179), SocketAddr::new(ip("192.0.2.10"), 40_000));
    hand.give(Input::Accepted { conn: SECOND, local, remote });
    hand.give(Input::Data(SECOND, &greeting(&support::open(65001, 10))));
    assert_eq!(states(&hand), [State::Established; 2]);
    hand
}

fn states(hand: &Hand) -> [State; 2] {
    [1, 2].map(|id| hand.speaker.peer(PeerId(id), hand.now).unwrap().state)
}

/// Data of the sockets counts before timers expire, whichever other input comes first.
#[test]
fn octets_that_came_during_a_pause_are_read_before_silence_is_judged() {
    let mut keepalive = Vec::new();
    write_keepalive(&mut keepalive);
    let firsts: [fn(&mut Hand); 4] = [
        |_| (),
        |hand| hand.give(Input::LocalReady),
        |hand| hand.give(Input::NextHop(ip("192.0.2.9").into(), NextHopState::Unreachable)),
        |hand| hand.give(Input::LinkUp(PeerId(2))),
    ];
    for first in firsts {
        for said in [keepalive.clone(), update(0..2)] {
            for order in [[CONN, SECOND], [SECOND, CONN]] {
                let mut hand = two_sessions();
                hand.now += Duration::from_secs(200);
                first(&mut hand);
                for conn in order {
                    hand.give(Input::Data(conn, &said));
                }
                hand.rest();
                assert_eq!(states(&hand), [State::Established; 2]);
                // And silence is silence.
                hand.now += Duration::from_secs(200);
                hand.give(Input::Data(CONN, &keepalive));
                hand.rest();
                assert_eq!(states(&hand), [State::Established, State::Active]);
                assert!(hand.events.contains(&Event::Close(SECOND)));
                let hold = hand.speaker.peer(PeerId(2), hand.now).unwrap().last_down.unwrap().0;
                assert_eq!(hold.notification, Some((4, 0)));
            }
        }
    }
}

/// The process pauses between two reads: one connection was read before the pause, the other one after it.
#[test]
fn a_pause_between_two_looks_at_the_sockets_is_no_silence() {
    let mut keepalive = Vec::new();
    write_keepalive(&mut keepalive);
    for (before, behind) in [(CONN, SECOND), (SECOND, CONN)] {
        let mut hand = two_sessions();
        hand.now += Duration::from_secs(60);
        let looked = hand.now;
        hand.give(Input::Data(before, &keepalive));
        hand.now += Duration::from_secs(200);
        hand.give(Input::Data(behind, &keepalive));
        hand.tick_at(looked);
        assert_eq!(states(&hand), [State::Established; 2]);
        // The next poll passes the octets that arrived during the pause.
        hand.give(Input::Data(before, &keepalive));
        hand.rest();
        assert_eq!(states(&hand), [State::Established; 2]);
        hand.now += Duration::from_secs(200);
        hand.rest();
        assert_eq!(states(&hand), [State::Active; 2], "silence is silence");
    }
}
