//! Routes that the store gives. The tunnel of those to other hosts comes and goes, and a BGP
//! announcement of the same prefix counts only while the store has no route.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_engine::routing::{
    ChangeId, Encapsulation, LearnedChange, RemoteRoute, RoutingView, StoreRoutes, TunnelIntent,
};

use super::fake_kernel::{FakeKernel, MARKS, link};
use super::plan::{compare, fresh, settle};
use crate::fib::table::store_routes::RemoteLinks;
use crate::intent::KernelIntent;
use crate::netlink::event::Event;
use crate::netlink::link::Link;
use crate::netlink::nexthop::Content;
use crate::thread::state::{Pending, State};

const TUNL0: u32 = 3;

fn tunl0(up: bool) -> Link {
    let link = link(TUNL0, up);
    Link { name: "tunl0".to_owned(), flags: if up { link.flags } else { 0 }, ..link }
}

/// Reports that the tunnel went up or down, after which the thread compares with the kernel.
fn tunnel_event(state: &mut State, fake: &mut FakeKernel, up: bool) {
    let mut due = Pending::default();
    match up {
        true => fake.down.clear(),
        false => fake.device_down(TUNL0),
    }
    state.event(Event::Link(tunl0(up)), &mut due);
    assert!(due.tunnel && due.compare);
    state.check_tunnel();
    compare(state, fake);
    if due.retry {
        state.table.retry();
    }
}

fn intend(state: &mut State, remote: &[(&str, RemoteRoute)], gateways: &[(&str, &str)]) {
    let remote = remote.iter().map(|(prefix, route)| (prefix.parse().unwrap(), *route)).collect();
    let gateways = gateways.iter().map(|(peer, by)| (peer.parse().unwrap(), by.parse().unwrap())).collect();
    state.accept_intent(Arc::new(KernelIntent {
        generation: 1,
        change: ChangeId(0),
        blackholes: BTreeMap::new(),
        tunnel: Some(TunnelIntent { addr: None, mtu: None, max_mtu: None }),
        vxlan: Arc::default(),
        store_routes: Arc::new(StoreRoutes { remote, gateways, ..StoreRoutes::default() }),
        view: Arc::new(RoutingView { ipip_from_store: true, ..RoutingView::default() }),
    }));
}

/// Returns prefix, gateways and output devices of the installed routes.
fn installed(state: &mut State, fake: &mut FakeKernel) -> Vec<String> {
    settle(state, fake, &mut std::iter::empty());
    let nexthop = |gateway: &IpAddr| {
        let of = fake.nexthops.values().find_map(|content| match content {
            Content::Single { gateway: at, ifindex, onlink } if at == gateway => Some((*ifindex, *onlink)),
            _ => None,
        });
        let (ifindex, onlink) = of.unwrap();
        format!("{gateway} dev {ifindex}{}", if onlink { " onlink" } else { "" })
    };
    let routes = fake.meaning().into_iter().map(|((prefix, metric), gateways)| {
        assert_eq!(metric, MARKS.metric);
        let gateways: Vec<String> = gateways.unwrap().iter().map(nexthop).collect();
        format!("{prefix} via {}", gateways.join(", "))
    });
    routes.collect()
}

#[test]
fn routes_of_ipip_pools_from_the_store_follow_the_tunnel() {
    let (mut state, mut fake) = (fresh(true), FakeKernel::default());
    let near = "192.0.1.8".parse().unwrap();
    let routes = [
        ("10.65.0.0/26", RemoteRoute::Ipip("198.51.100.7".parse().unwrap())),
        ("10.65.0.64/26", RemoteRoute::Direct(near, Encapsulation::Ipip)),
    ];
    intend(&mut state, &routes, &[]);
    assert_eq!(installed(&mut state, &mut fake), [""; 0], "neither the tunnel nor the interface is known");

    state.set_vxlan([0; 2], RemoteLinks { is_up: [false; 2], parents: [1, 0] });
    let direct = "10.65.0.64/26 via 192.0.1.8 dev 1";
    assert_eq!(installed(&mut state, &mut fake), [direct]);

    tunnel_event(&mut state, &mut fake, true);
    let tunnelled = "10.65.0.0/26 via 198.51.100.7 dev 3 onlink";
    assert_eq!(installed(&mut state, &mut fake), [tunnelled, direct]);

    // What a peer announces for the same block has no effect.
    let learned = |next_hop: &str| LearnedChange {
        prefix: "10.65.0.0/26".parse().unwrap(),
        next_hops: SmallVec::from_iter([next_hop.parse().unwrap()]),
        local_pref: None,
        change: ChangeId(0),
    };
    state.learn(&[learned("192.0.2.9")]);
    assert_eq!(installed(&mut state, &mut fake), [tunnelled, direct]);

    tunnel_event(&mut state, &mut fake, false);
    assert_eq!(installed(&mut state, &mut fake), [direct], "no route without its tunnel");
    tunnel_event(&mut state, &mut fake, true);
    assert_eq!(installed(&mut state, &mut fake), [tunnelled, direct]);

    // Another host owns the block now, then none: the announcement counts.
    intend(&mut state, &[("10.65.0.0/26", RemoteRoute::Ipip("198.51.100.8".parse().unwrap()))], &[]);
    assert_eq!(installed(&mut state, &mut fake), ["10.65.0.0/26 via 198.51.100.8 dev 3 onlink"]);
    intend(&mut state, &[], &[]);
    assert_eq!(installed(&mut state, &mut fake), ["10.65.0.0/26 via 192.0.2.9 dev 2"]);
}

/// The route to a peer by its gateway is there while the network has the gateway; it counts more than an
/// announcement of the peer's address, and BGP next hops at that address follow it.
#[test]
fn a_route_to_a_peer_follows_the_network_of_its_gateway() {
    const PEER: &str = "203.0.113.1/32";
    let (mut state, mut fake) = (fresh(true), FakeKernel::default());
    let learned = |prefix: &str, next_hop: &str| LearnedChange {
        prefix: prefix.parse().unwrap(),
        next_hops: SmallVec::from_iter([next_hop.parse().unwrap()]),
        local_pref: None,
        change: ChangeId(0),
    };
    intend(&mut state, &[], &[(PEER, "192.0.1.8")]);
    let by_one = "203.0.113.1/32 via 192.0.1.8 dev 1";
    assert_eq!(installed(&mut state, &mut fake), [by_one]);

    state.learn(&[learned("198.51.100.0/24", "203.0.113.1"), learned(PEER, "192.0.2.9")]);
    let behind = |gateway: &str| format!("198.51.100.0/24 via {gateway}");
    assert_eq!(installed(&mut state, &mut fake), [behind("192.0.1.8 dev 1"), by_one.to_owned()]);

    intend(&mut state, &[], &[(PEER, "192.0.2.8")]);
    state.follow_next_hops();
    let by_two = "203.0.113.1/32 via 192.0.2.8 dev 2".to_owned();
    assert_eq!(installed(&mut state, &mut fake), [behind("192.0.2.8 dev 2"), by_two.clone()]);

    // Without the link neither is there; it comes back with it.
    let link_event = |state: &mut State, fake: &mut FakeKernel, up: bool| {
        let mut due = Pending::default();
        match up {
            true => fake.down.clear(),
            false => fake.device_down(2),
        }
        state.event(Event::Link(link(2, up)), &mut due);
        state.follow_next_hops();
        compare(state, fake);
    };
    link_event(&mut state, &mut fake, false);
    assert_eq!(installed(&mut state, &mut fake), [""; 0]);
    link_event(&mut state, &mut fake, true);
    assert_eq!(installed(&mut state, &mut fake), [behind("192.0.2.8 dev 2"), by_two]);

    // A gateway that no route leads to gives no route, and an announcement does not take its place.
    intend(&mut state, &[], &[(PEER, "172.16.0.1")]);
    state.follow_next_hops();
    assert_eq!(installed(&mut state, &mut fake), [""; 0]);
    intend(&mut state, &[], &[]);
    state.follow_next_hops();
    assert_eq!(
        installed(&mut state, &mut fake),
        [behind("192.0.2.9 dev 2"), "203.0.113.1/32 via 192.0.2.9 dev 2".to_owned()]
    );
}
