//! Graceful shutdown (RFC 8326).

use tortie_bgp::attr::community;
use tortie_bgp::{Drain, Input, PeerId, RouteTable};

use crate::net::Net;
use crate::support::{cidr, route};

/// Node 0 in AS 64512 with these neighbours, each a peer of node 0 only.
fn star(neighbours: &[u32]) -> Net {
    let mut net = Net::new(1);
    net.node(64512);
    for asn in neighbours {
        net.node(*asn);
    }
    net.ready_all();
    for (n, asn) in neighbours.iter().enumerate() {
        net.join(0, n + 1, |at, c| c.asn = if at == 0 { *asn } else { 64512 });
    }
    net
}

fn originate(net: &mut Net, node: usize, prefix: &str, communities: &[u32]) {
    let route = tortie_bgp::Origination { communities: communities.to_vec(), ..route() };
    net.give(node, Input::Local(&[(cidr(prefix), Some(route))]));
    net.secs(3);
}

#[test]
fn a_route_with_the_community_has_the_lowest_preference_when_it_comes_by_ebgp() {
    let mut net = star(&[65001, 65002, 64512]);
    // The first one has the lower address and would be best.
    originate(&mut net, 2, "10.1.0.0/24", &[]);
    originate(&mut net, 1, "10.1.0.0/24", &[]);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(1));
    originate(&mut net, 1, "10.1.0.0/24", &[community::GRACEFUL_SHUTDOWN]);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(2));
    let trace = net.nodes[0].speaker.explain_import(cidr("10.1.0.0/24"), PeerId(1)).unwrap();
    assert_eq!((trace.received.local_pref, trace.used.unwrap().local_pref), (None, Some(0)));
    assert!(trace.steps.iter().any(|s| s.step == "graceful-shutdown"), "{:?}", trace.steps);
    // Inside the AS, the sender has lowered LOCAL_PREF already, or uses the community in another way.
    originate(&mut net, 3, "10.2.0.0/24", &[community::GRACEFUL_SHUTDOWN]);
    let paths = net.table(0, RouteTable::Loc, tortie_bgp::Family::Ipv4Unicast);
    assert_eq!(paths[&cidr("10.2.0.0/24")][0].attributes.local_pref, Some(100));
}

/// Returns the routes that node `at` received from node 0.
fn received(net: &Net, at: usize) -> Vec<(String, Vec<u32>, Option<u32>)> {
    let of = |a: &tortie_bgp::attr::Attributes| (a.communities.to_vec(), a.local_pref);
    net.received(at, 0).into_iter().map(|(p, a)| (p.to_string(), of(&a).0, of(&a).1)).collect()
}

#[test]
fn a_drained_peer_receives_the_community_then_nothing_and_in_the_end_all_as_before() {
    for one in [None, Some(PeerId(1))] {
        let mut net = star(&[65001, 64512, 65003]);
        originate(&mut net, 3, "10.3.0.0/24", &[]);
        originate(&mut net, 0, "10.0.0.0/24", &[7]);
        // A route is not sent back to its sender.
        let usual: Vec<_> = (1..4).map(|n| received(&net, n)).collect();
        assert_eq!(usual.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        net.give(0, Input::Drain(one, Drain::Announce));
        net.secs(1);
        let shut = community::GRACEFUL_SHUTDOWN;
        for at in 1..4 {
            let drained = one.is_none() || at == 1;
            for ((prefix, communities, pref), before) in received(&net, at).iter().zip(&usual[at - 1]) {
                assert_eq!(communities.contains(&shut), drained, "{one:?} {at} {prefix}");
                assert_eq!(communities.contains(&7), prefix == "10.0.0.0/24", "others stay");
                let want = if drained { before.2.map(|_| 0) } else { before.2 };
                assert_eq!(*pref, want, "{one:?} {at} {prefix}");
            }
            let status = net.status(0, at);
            assert_eq!((status.drain == Drain::Announce, status.up_to_date), (drained, true));
        }
        net.give(0, Input::Drain(one, Drain::Withdraw));
        net.secs(1);
        assert_eq!(received(&net, 1), []);
        assert_eq!(received(&net, 3).is_empty(), one.is_none());
        assert!(net.is_up(0, 1), "the session stays");
        assert!(!net.nodes[0].best.is_empty(), "what we learned stays");
        net.give(0, Input::Drain(one, Drain::Off));
        net.secs(1);
        assert_eq!((1..4).map(|n| received(&net, n)).collect::<Vec<_>>(), usual);
    }
}

/// RFC 8326 4.2: outgoing traffic leaves the drained session too, at this node and at others of the AS.
#[test]
fn what_a_drained_ebgp_peer_announces_is_used_last() {
    let mut net = star(&[65001, 65002, 64512, 64512]);
    // The first one has the lower address and is best.
    let prefix = cidr("10.1.0.0/24");
    originate(&mut net, 1, "10.1.0.0/24", &[7]);
    originate(&mut net, 2, "10.1.0.0/24", &[]);
    originate(&mut net, 4, "10.4.0.0/24", &[]);
    let best = |net: &Net| net.nodes[0].best[&prefix].peer;
    let usual = received(&net, 3);
    assert_eq!((best(&net), usual.len()), (PeerId(1), 1));
    for drain in [Drain::Announce, Drain::Withdraw] {
        net.give(0, Input::Drain(Some(PeerId(1)), drain));
        net.secs(1);
        assert_eq!(best(&net), PeerId(2), "{drain:?}");
        assert_eq!(received(&net, 3), [("10.1.0.0/24".into(), vec![], Some(100))]);
    }
    let trace = net.nodes[0].speaker.explain_import(prefix, PeerId(1)).unwrap();
    assert_eq!((trace.received.communities.len(), trace.used.unwrap().local_pref), (1, Some(0)));
    assert!(trace.steps.iter().any(|s| s.step == "graceful-shutdown"), "{:?}", trace.steps);
    // Without an alternative, the whole AS learns that the path goes down soon, also for routes received
    // while drained.
    net.withdraw(2, &["10.1.0.0/24"]);
    net.secs(1);
    let shut = community::GRACEFUL_SHUTDOWN;
    assert_eq!(
        (best(&net), received(&net, 3)),
        (PeerId(1), vec![("10.1.0.0/24".into(), vec![7, shut], Some(0))])
    );
    originate(&mut net, 1, "10.1.0.0/24", &[8]);
    assert_eq!(received(&net, 3)[0].1, [8, shut]);
    originate(&mut net, 1, "10.1.0.0/24", &[7]);
    originate(&mut net, 2, "10.1.0.0/24", &[]);
    net.give(0, Input::Drain(Some(PeerId(1)), Drain::Off));
    net.secs(1);
    assert_eq!((best(&net), received(&net, 3)), (PeerId(1), usual));
    // Inside the AS, the other end announces the shutdown.
    net.give(0, Input::Drain(None, Drain::Announce));
    net.secs(1);
    let paths = net.table(0, RouteTable::Loc, tortie_bgp::Family::Ipv4Unicast);
    assert_eq!(paths[&cidr("10.4.0.0/24")][0].attributes.local_pref, Some(100));
}

#[test]
fn sessions_and_peers_to_come_are_drained_too() {
    let mut net = star(&[65001]);
    originate(&mut net, 0, "10.0.0.0/24", &[]);
    net.give(0, Input::Drain(None, Drain::Announce));
    net.give(0, Input::Reset(PeerId(1), tortie_bgp::Reset::Hard(String::new())));
    net.node(65002);
    net.give(2, Input::LocalReady);
    net.join(0, 2, |at, c| c.asn = if at == 0 { 65002 } else { 64512 });
    net.secs(20);
    for at in [1, 2] {
        assert_eq!(received(&net, at)[0].1, [community::GRACEFUL_SHUTDOWN], "{at}");
    }
}

#[test]
fn a_peer_that_reads_nothing_is_not_drained() {
    let mut net = star(&[65001]);
    originate(&mut net, 0, "10.0.0.0/24", &[]);
    assert!(net.status(0, 1).up_to_date);
    net.nodes[0].stuck = true;
    net.give(0, Input::Drain(None, Drain::Withdraw));
    net.secs(1);
    assert!(!net.status(0, 1).up_to_date);
    net.nodes[0].stuck = false;
    net.secs(1);
    assert!(net.status(0, 1).up_to_date);
}
