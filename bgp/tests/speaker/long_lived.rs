//! Long-lived graceful restart (RFC 9494).

use std::time::Duration;

use tortie_bgp::attr::{Attributes, Edit, community};
use tortie_bgp::wire::{GracefulRestart, LongLived, Open, write_end_of_rib};
use tortie_bgp::{
    Cidr, ConnId, Dial, Export, Family, Import, Input, PathInfo, PeerConfig, PeerId, PeerView, Policy,
    RestartPhase, RouteMatch, RouteQuery, RouteTable, RouteView, State, Step,
};

use crate::net::Net;
use crate::raw::{CONN, Hand, notification};
use crate::support::{announce, attributes, cidr, greeting, ip, open, peer, policy, session, yes};

const SECOND: ConnId = ConnId(2);
const GIVEN: [u32; 2] = [0x0a00_0000, 0x0a00_0100];

/// Returns an OPEN with restart time and long-lived stale time, F bit set in both capabilities.
fn says(restart: u16, long_lived: Option<u32>) -> Open {
    let mut open = open(65001, 9);
    open.capabilities.graceful_restart = Some(GracefulRestart {
        restarted: false,
        notification: true,
        time: restart,
        families: [(Family::Ipv4Unicast, true)].into_iter().collect(),
    });
    open.capabilities.long_lived = long_lived.map(|time| {
        [LongLived { family: Family::Ipv4Unicast, forwarding: true, time }].into_iter().collect()
    });
    open
}

fn given(communities: &[u32], prefixes: &[u32]) -> Vec<u8> {
    let mut attributes = attributes(ip("192.0.2.9"), &[65001]);
    attributes.add_communities(communities);
    let mut out = Vec::new();
    announce(&mut out, &session(true), &attributes, prefixes.iter().map(|p| (*p, 24)));
    out
}

/// A session with a peer that is configured with the limit `cap`. The first prefix is plain, the second has
/// NO_LLGR.
fn rig(cap: Option<u64>, open: &Open) -> Hand {
    let mut hand = Hand::new();
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.dial = Dial::Passive;
    config.long_lived_restart_time = cap.map(Duration::from_secs);
    hand.give(Input::Closed(CONN, "start over".into()));
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
    hand.accept(CONN);
    hand.give(Input::Data(CONN, &greeting(open)));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::Data(CONN, &given(&[], &GIVEN[..1])));
    hand.give(Input::Data(CONN, &given(&[community::NO_LLGR], &GIVEN[1..])));
    end_of_rib(&mut hand, CONN);
    hand
}

fn end_of_rib(hand: &mut Hand, conn: ConnId) {
    let mut end = Vec::new();
    write_end_of_rib(Family::Ipv4Unicast, &mut end);
    hand.give(Input::Data(conn, &end));
    hand.rest();
}

fn path(hand: &Hand, prefix: &str) -> Option<PathInfo> {
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    hand.speaker.routes(&query, None, 1).first()?.paths.first().cloned()
}

/// Returns the remaining routes: the plain one (true with LLGR_STALE), and the one with NO_LLGR.
fn left(hand: &Hand) -> (Option<bool>, bool) {
    let plain = path(hand, "10.0.0.0/24").map(|p| p.attributes.has_community(community::LLGR_STALE));
    (plain, path(hand, "10.0.1.0/24").is_some())
}

fn phase(hand: &Hand) -> RestartPhase {
    hand.speaker.peer(PeerId(1), hand.now).unwrap().restart
}

#[test]
fn our_open_offers_it_where_it_is_configured() {
    let mut hand = rig(Some(3600), &says(60, None));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.accept(SECOND);
    let open = Open::decode(&hand.sent(SECOND)[0].1).unwrap();
    let want = LongLived { family: Family::Ipv4Unicast, forwarding: true, time: 3600 };
    assert_eq!(open.capabilities.long_lived(Family::Ipv4Unicast), Some(want));
    let mut off = Hand::new();
    let open = Open::decode(&off.sent(CONN)[0].1).unwrap();
    assert_eq!(open.capabilities.long_lived, None);
}

/// RFC 9494 4.2: the long-lived stale time follows the restart time.
#[test]
fn routes_are_kept_for_the_sum_of_both_times_and_as_the_last_choice_in_the_second() {
    // Restart time, long-lived stale time, local limit, and resulting seconds of each.
    for (restart, long_lived, cap, first, second) in [
        (60, Some(100), Some(1000), 60, 100),
        (60, Some(100), Some(30), 60, 30),
        (0, Some(100), Some(100), 0, 100),
        (60, Some(0), Some(100), 60, 0),
        (60, None, Some(100), 60, 0),
        (60, Some(100), None, 60, 0),
        (0, Some(0), Some(100), 0, 0),
    ] {
        let name = format!("{restart} {long_lived:?} {cap:?}");
        let mut hand = rig(cap, &says(restart, long_lived));
        assert_eq!(left(&hand), (Some(false), true));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.rest();
        if first > 0 {
            hand.wait(Duration::from_secs(first - 1));
            assert_eq!(left(&hand), (Some(false), true), "{name}");
            assert!(matches!(phase(&hand), RestartPhase::Waiting(_)));
            hand.wait(Duration::from_secs(2));
        }
        if second > 0 {
            assert_eq!(left(&hand), (Some(true), false), "{name}");
            assert!(matches!(phase(&hand), RestartPhase::LongLived(_)));
            let family = &hand.speaker.peer(PeerId(1), hand.now).unwrap().families[0];
            assert_eq!((family.received, family.stale, family.best), (1, 1, 1));
            hand.wait(Duration::from_secs(second - 2));
            assert_eq!(left(&hand), (Some(true), false), "{name}");
            hand.wait(Duration::from_secs(3));
        }
        assert_eq!(left(&hand), (None, false), "{name}");
        assert_eq!((phase(&hand), hand.speaker.totals().paths), (RestartPhase::Idle, [0, 0]));
    }
}

#[test]
fn without_the_other_capability_it_is_nothing() {
    let mut open = says(60, Some(100));
    open.capabilities.graceful_restart = None;
    let mut hand = rig(Some(100), &open);
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.rest();
    assert_eq!(left(&hand), (None, false));
}

#[test]
fn a_peer_that_is_back_refreshes_its_routes_until_end_of_rib_or_the_end_of_the_time() {
    for ended in [true, false] {
        let mut hand = rig(Some(100), &says(10, Some(100)));
        hand.give(Input::Data(CONN, &given(&[], &GIVEN)));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.wait(Duration::from_secs(50));
        hand.accept(SECOND);
        hand.give(Input::Data(SECOND, &greeting(&says(10, Some(100)))));
        hand.give(Input::Data(SECOND, &given(&[], &GIVEN[..1])));
        hand.rest();
        // A route that is announced again is not stale any more.
        assert_eq!(left(&hand), (Some(false), true));
        assert!(path(&hand, "10.0.1.0/24").unwrap().attributes.has_community(community::LLGR_STALE));
        if ended {
            end_of_rib(&mut hand, SECOND);
        } else {
            hand.wait(Duration::from_secs(55));
            assert_eq!(left(&hand), (Some(false), true));
            hand.wait(Duration::from_secs(10));
        }
        assert_eq!((hand.state(), left(&hand)), (State::Established, (Some(false), false)), "{ended}");
        hand.wait(Duration::from_secs(20));
        assert_eq!(left(&hand), (Some(false), false));
    }
}

#[test]
fn a_peer_that_is_back_without_its_forwarding_state_is_flushed() {
    let mut lost = says(10, Some(100));
    for l in lost.capabilities.long_lived.iter_mut().flatten() {
        l.forwarding = false;
    }
    let mut unlisted = says(10, None);
    unlisted.capabilities.long_lived = Some([].into_iter().collect());
    for back in [lost, unlisted, says(10, None)] {
        let mut hand = rig(Some(100), &says(10, Some(100)));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.wait(Duration::from_secs(50));
        assert_eq!(left(&hand).0, Some(true));
        hand.accept(SECOND);
        hand.give(Input::Data(SECOND, &greeting(&back)));
        hand.rest();
        assert_eq!(left(&hand), (None, false));
    }
}

/// RFC 9494 4.2: the timer continues until End-of-RIB, however often the session is lost.
#[test]
fn a_peer_that_comes_and_goes_gains_no_time() {
    let mut hand = rig(Some(100), &says(10, Some(100)));
    hand.give(Input::Closed(CONN, "reset".into()));
    for n in 2..10 {
        hand.wait(Duration::from_secs(13));
        assert_eq!(left(&hand), (Some(true), false), "{n}");
        hand.accept(ConnId(n));
        hand.give(Input::Data(ConnId(n), &greeting(&says(10, Some(100)))));
        assert_eq!(hand.state(), State::Established);
        hand.give(Input::Closed(ConnId(n), "reset".into()));
        hand.rest();
    }
    // 104 s have passed of at most 110 s.
    hand.wait(Duration::from_secs(7));
    assert_eq!(left(&hand), (None, false));
}

/// RFC 9494 4.2: a session that ends before End-of-RIB, after the long-lived stale time has expired, leaves
/// no routes.
#[test]
fn a_time_that_ended_is_not_given_again() {
    for (late, synchronised) in [(true, false), (false, false), (true, true)] {
        let mut hand = rig(Some(100), &says(10, Some(100)));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.wait(Duration::from_secs(50));
        hand.accept(SECOND);
        hand.give(Input::Data(SECOND, &greeting(&says(200, Some(100)))));
        hand.give(Input::Data(SECOND, &given(&[], &GIVEN[..1])));
        if late {
            hand.wait(Duration::from_secs(62));
        }
        if synchronised {
            end_of_rib(&mut hand, SECOND);
        }
        assert_eq!(left(&hand).0, Some(false));
        hand.give(Input::Closed(SECOND, "reset".into()));
        hand.rest();
        assert_eq!(left(&hand).0, (!late || synchronised).then_some(false), "{late} {synchronised}");
    }
}

/// A hard end discards the remaining time of earlier routes.
#[test]
fn what_comes_after_a_hard_end_has_the_whole_time() {
    let mut hand = rig(Some(100), &says(10, Some(100)));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.wait(Duration::from_secs(50));
    hand.accept(SECOND);
    hand.give(Input::Data(SECOND, &greeting(&says(10, Some(100)))));
    hand.give(Input::Data(SECOND, &notification(&[6, 9, 6, 2])));
    hand.rest();
    assert_eq!(left(&hand), (None, false));
    hand.wait(Duration::from_secs(10));
    let third = ConnId(3);
    hand.accept(third);
    hand.give(Input::Data(third, &greeting(&says(10, Some(100)))));
    hand.give(Input::Data(third, &given(&[], &GIVEN[..1])));
    hand.rest();
    hand.give(Input::Closed(third, "reset".into()));
    // 10 s of restart time and 100 s of long-lived stale time, independent of the first session.
    hand.wait(Duration::from_secs(100));
    assert_eq!(left(&hand).0, Some(true));
    hand.wait(Duration::from_secs(15));
    assert_eq!(left(&hand).0, None);
}

/// RFC 9494 4.2: local policy may add NO_LLGR.
#[test]
fn policy_that_adds_no_llgr_is_heeded() {
    struct NoLlgr;
    impl Policy for NoLlgr {
        fn import(&self, _: &PeerView<'_>, prefix: Cidr, _: &Attributes) -> Import {
            if prefix != cidr("10.0.0.0/24") {
                return Import::Accept;
            }
            Import::AcceptWith([Edit::AddCommunities([community::NO_LLGR].into())].into_iter().collect())
        }

        fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
            yes("open")
        }
    }
    let mut hand = rig(Some(100), &says(10, Some(100)));
    hand.give(Input::Policy(policy(NoLlgr)));
    hand.rest();
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.wait(Duration::from_secs(8));
    assert_eq!(left(&hand), (Some(false), true));
    hand.wait(Duration::from_secs(4));
    assert_eq!(left(&hand), (None, false));
}

#[test]
fn policy_that_changes_meanwhile_leaves_the_mark() {
    let mut hand = rig(Some(100), &says(10, Some(100)));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.wait(Duration::from_secs(50));
    hand.give(Input::Policy(crate::support::policy(crate::support::TakeAll)));
    hand.rest();
    assert_eq!(left(&hand), (Some(true), false));
    let steps = hand.speaker.explain_import(cidr("10.0.0.0/24"), PeerId(1)).unwrap().steps;
    assert!(steps.iter().any(|s| s.step == "long-lived" && s.pass), "{steps:?}");
}

/// Node 0 receives the same prefix from 1 (shorter path, later lost) and 2, and announces it to 3 and 4
/// (eBGP, with and without the capability) and 5 (iBGP, without).
fn network(alternative: bool) -> Net {
    let mut net = Net::new(1);
    for asn in [64512, 65001, 65002, 65003, 65004, 64512] {
        net.node(asn);
    }
    net.ready_all();
    let mut links = vec![(0, 1), (0, 3), (0, 4), (0, 5)];
    if alternative {
        links.push((0, 2));
    }
    for (a, b) in links {
        net.join(a, b, |n, c: &mut PeerConfig| {
            c.asn = [64512, 65001, 65002, 65003, 65004, 64512][if n == a { b } else { a }];
            c.restart_time = Some(Duration::from_secs(10));
            c.long_lived_restart_time = (b != 4 && b != 5).then_some(Duration::from_secs(100));
        });
    }
    net.originate(1, &["10.1.0.0/24"]);
    if alternative {
        net.give(2, Input::Local(&[(cidr("10.1.0.0/24"), Some(origination(&[])))]));
    }
    net.secs(5);
    net
}

fn origination(communities: &[u32]) -> tortie_bgp::Origination {
    tortie_bgp::Origination { communities: communities.to_vec(), ..crate::support::route() }
}

fn received(net: &Net, at: usize) -> Option<Attributes> {
    net.received(at, 0).get(&cidr("10.1.0.0/24")).map(|a| (**a).clone())
}

#[test]
fn only_capable_peers_are_sent_stale_routes_and_others_of_the_as_with_no_export() {
    let mut net = network(false);
    for at in [3, 4, 5] {
        assert_eq!(received(&net, at).map(|a| a.communities.len()), Some(0), "{at}");
    }
    net.kill(1);
    net.secs(8);
    assert!(
        [3, 4, 5].iter().all(|at| received(&net, *at).is_some()),
        "within the restart time nothing changes"
    );
    net.secs(5);
    assert_eq!(received(&net, 3).map(|a| a.communities.to_vec()), Some(vec![community::LLGR_STALE]));
    assert_eq!(received(&net, 4), None);
    let inside = received(&net, 5).unwrap();
    assert_eq!(inside.communities.to_vec(), [community::LLGR_STALE, community::NO_EXPORT]);
    assert_eq!(inside.local_pref, Some(0));
    net.secs(100);
    assert!([3, 4, 5].iter().all(|at| received(&net, *at).is_none()));
}

#[test]
fn any_other_path_is_better_than_a_long_lived_stale_one() {
    let mut net = network(true);
    // The peer that will be lost is preferred in every other respect.
    let better = net.nodes[0].best[&cidr("10.1.0.0/24")].peer;
    assert_eq!(better, PeerId(1));
    net.kill(1);
    net.secs(8);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(2), "of two equal ones the fresh one");
    let paths = net.table(0, RouteTable::Loc, Family::Ipv4Unicast).remove(&cidr("10.1.0.0/24")).unwrap();
    assert_eq!(paths.last().unwrap().decided_by, Some(Step::Stale));
    net.secs(5);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(2));
    let paths = net.table(0, RouteTable::Loc, Family::Ipv4Unicast).remove(&cidr("10.1.0.0/24")).unwrap();
    assert_eq!(paths.last().unwrap().decided_by, Some(Step::LongLivedStale));
    assert_eq!(received(&net, 4).map(|a| a.as_path.to_string()), Some("64512 65002".into()));
}

#[test]
fn a_received_stale_route_is_the_last_choice_too() {
    let mut net = network(true);
    net.give(1, Input::Local(&[(cidr("10.1.0.0/24"), Some(origination(&[community::LLGR_STALE])))]));
    net.secs(2);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(2));
}
