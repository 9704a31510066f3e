//! Routes to other hosts that the store demands, in pools without VXLAN: the tunnel comes and goes, and a BGP
//! announcement of the same prefix counts only while the store has no route.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_engine::routing::{
    ChangeId, Encapsulation, LearnedChange, RoutingView, StoreRoute, TunnelIntent, VxlanIntent,
};
use tortie_net::Cidr;

use super::fake_kernel::{FakeKernel, MARKS, link};
use super::plan::{compare, fresh, settle};
use crate::fib::table::remote::RemoteLinks;
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

fn intend(state: &mut State, routes: &[(&str, StoreRoute)]) {
    let routes: BTreeMap<Cidr, StoreRoute> =
        routes.iter().map(|(prefix, route)| (prefix.parse().unwrap(), *route)).collect();
    state.accept_intent(Arc::new(KernelIntent {
        generation: 1,
        change: ChangeId(0),
        blackholes: BTreeMap::new(),
        tunnel: Some(TunnelIntent { addr: None, mtu: None, max_mtu: None }),
        vxlan: Arc::new(VxlanIntent { routes, ..VxlanIntent::default() }),
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
        ("10.65.0.0/26", StoreRoute::Ipip("198.51.100.7".parse().unwrap())),
        ("10.65.0.64/26", StoreRoute::Direct(near, Encapsulation::Ipip)),
    ];
    intend(&mut state, &routes);
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
    intend(&mut state, &[("10.65.0.0/26", StoreRoute::Ipip("198.51.100.8".parse().unwrap()))]);
    assert_eq!(installed(&mut state, &mut fake), ["10.65.0.0/26 via 198.51.100.8 dev 3 onlink"]);
    intend(&mut state, &[]);
    assert_eq!(installed(&mut state, &mut fake), ["10.65.0.0/26 via 192.0.2.9 dev 2"]);
}
