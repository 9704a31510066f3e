//! Graceful shutdown (RFC 8326).

use tortie_bgp::attr::community;
use tortie_bgp::{Input, PeerId, RouteTable};

use crate::net::Net;
use crate::support::{cidr, route};

/// Node 0 in AS 64512 with these neighbours, each a peer of 0 alone.
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
    // The first one has the lower address and would win.
    originate(&mut net, 2, "10.1.0.0/24", &[]);
    originate(&mut net, 1, "10.1.0.0/24", &[]);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(1));
    originate(&mut net, 1, "10.1.0.0/24", &[community::GRACEFUL_SHUTDOWN]);
    assert_eq!(net.nodes[0].best[&cidr("10.1.0.0/24")].peer, PeerId(2));
    let trace = net.nodes[0].speaker.explain_import(cidr("10.1.0.0/24"), PeerId(1)).unwrap();
    assert_eq!((trace.received.local_pref, trace.used.unwrap().local_pref), (None, Some(0)));
    assert!(trace.steps.iter().any(|s| s.step == "graceful-shutdown"), "{:?}", trace.steps);
    // Inside the AS the sender has lowered it already, or means something else by it.
    originate(&mut net, 3, "10.2.0.0/24", &[community::GRACEFUL_SHUTDOWN]);
    let paths = net.table(0, RouteTable::Loc, tortie_bgp::Family::Ipv4Unicast);
    assert_eq!(paths[&cidr("10.2.0.0/24")][0].attributes.local_pref, Some(100));
}
