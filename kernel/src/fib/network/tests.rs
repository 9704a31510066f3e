//! Tests of next hop resolution in the network state while foreign routes change.

use smallvec::SmallVec;
use std::collections::BTreeSet;

use super::*;

const STATIC: u8 = 4;
const BOOT: u8 = 3;

/// Two links with carrier, and nothing else.
fn network() -> NetworkState {
    let mut network = NetworkState::default();
    for index in [1, 2] {
        let name = format!("eth{index}");
        network.set_link(Link { index, name, flags: 0x1_0001, mtu: 1500, is_bridge: false });
    }
    network
}

fn route(prefix: &str, protocol: u8, metric: u32, legs: &[(u32, &str)]) -> Route {
    let mut legs: SmallVec<[Leg; 1]> = legs
        .iter()
        .map(|(ifindex, gateway)| Leg { ifindex: *ifindex, gateway: gateway.parse().ok(), onlink: false })
        .collect();
    legs.sort_unstable();
    let prefix = prefix.parse().unwrap();
    Route { prefix, tos: 0, protocol, kind: RTN_UNICAST, metric, nexthop: 0, legs }
}

fn over(network: &NetworkState, addr: &str) -> Option<String> {
    let resolved = network.resolve(addr.parse().unwrap())?;
    Some(resolved.gateway.map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string()))
}

#[test]
fn legs_of_ipv6_come_and_go_one_by_one() {
    let (a, b, c) = ((1, "fe80::a"), (2, "fe80::b"), (2, "fe80::c"));
    let mut network = network();
    let leads = |network: &NetworkState| over(network, "2001:db8:9::1");
    network.add_route(route("::/0", BOOT, 1024, &[a, b]), false);
    network.add_route(route("::/0", BOOT, 2048, &[c]), false);
    assert_eq!((leads(&network).as_deref(), network.foreign_count()), (Some("fe80::a"), 2));
    assert!(network.remove_route(route("::/0", BOOT, 1024, &[a])));
    assert_eq!((leads(&network).as_deref(), network.foreign_count()), (Some("fe80::b"), 2));
    // One leg is appended: the notification has the whole set, under the protocol of the new leg.
    network.add_route(route("::/0", STATIC, 1024, &[a, b]), false);
    assert_eq!((leads(&network).as_deref(), network.foreign_count()), (Some("fe80::a"), 2));
    // Each leg is removed under its own protocol.
    assert!(network.remove_route(route("::/0", STATIC, 1024, &[a])));
    assert_eq!(leads(&network).as_deref(), Some("fe80::b"));
    assert!(!network.remove_route(route("::/0", STATIC, 1024, &[a])), "twice");
    assert_eq!(leads(&network).as_deref(), Some("fe80::b"));
    assert!(network.remove_route(route("::/0", BOOT, 1024, &[b])));
    assert_eq!((leads(&network).as_deref(), network.foreign_count()), (Some("fe80::c"), 1));
    // A set is removed at once.
    network.add_route(route("::/0", BOOT, 1024, &[a, b]), false);
    assert!(network.remove_route(route("::/0", BOOT, 1024, &[a, b])));
    assert!(network.remove_route(route("::/0", BOOT, 2048, &[c])));
    assert_eq!((leads(&network), network.foreign_count()), (None, 0));
}

/// A multipath route of another daemon: all of its legs with carrier are used, in both families.
#[test]
fn all_legs_of_a_foreign_multipath_route_that_carry_are_ways() {
    let all = |network: &NetworkState, addr: &str| {
        let covering = network.covering(addr.parse().unwrap()).next();
        let ways = covering.map(|covering| covering.legs).unwrap_or_default();
        ways.iter().map(|way| format!("{}%{}", way.gateway.unwrap(), way.ifindex)).collect::<Vec<_>>()
    };
    let mut network = network();
    network.add_route(route("0.0.0.0/0", STATIC, 20, &[(1, "192.0.2.7"), (2, "192.0.3.7")]), false);
    network.add_route(route("0.0.0.0/0", BOOT, 30, &[(2, "192.0.3.9")]), false);
    network.add_route(route("::/0", BOOT, 1024, &[(1, "fe80::a"), (2, "fe80::b")]), false);
    // A leg of the same metric belongs to the same set, although it was added alone.
    network.add_route(route("::/0", STATIC, 1024, &[(2, "fe80::c")]), false);
    network.add_route(route("::/0", STATIC, 2048, &[(2, "fe80::d")]), false);
    let (v4, v6) = ("203.0.113.5", "2001:db8:9::1");
    assert_eq!(all(&network, v4), ["192.0.2.7%1", "192.0.3.7%2"]);
    assert_eq!(all(&network, v6), ["fe80::a%1", "fe80::b%2", "fe80::c%2"]);
    network.set_link(Link { index: 1, name: "eth1".to_owned(), flags: 1, mtu: 1500, is_bridge: false });
    assert_eq!(all(&network, v4), ["192.0.3.7%2"]);
    assert_eq!(all(&network, v6), ["fe80::b%2", "fe80::c%2"]);
    network.set_link(Link { index: 2, name: "eth2".to_owned(), flags: 1, mtu: 1500, is_bridge: false });
    assert!(all(&network, v4).is_empty() && all(&network, v6).is_empty());
}

#[test]
fn an_ipv4_address_in_the_form_of_ipv6_is_not_reached_over_ipv6() {
    let mut network = network();
    network.add_route(route("::/0", BOOT, 1024, &[(1, "fe80::a")]), false);
    network.add_route(route("0.0.0.0/0", BOOT, 0, &[(1, "192.0.2.7")]), false);
    assert_eq!(over(&network, "::ffff:192.0.2.9"), None);
    assert_eq!(over(&network, "192.0.2.9").as_deref(), Some("192.0.2.7"));
    assert_eq!(over(&network, "2001:db8::9").as_deref(), Some("fe80::a"));
}

#[test]
fn a_route_of_ipv4_and_one_over_an_object_go_whole() {
    let legs = [(1, "192.0.2.7"), (2, "192.0.2.8")];
    let mut network = network();
    network.add_route(route("0.0.0.0/0", STATIC, 0, &legs), false);
    assert!(!network.remove_route(route("0.0.0.0/0", STATIC, 0, &legs[..1])), "it was another");
    assert_eq!((over(&network, "203.0.113.5"), network.foreign_count()), (None, 0));
    let object = |legs| Route { nexthop: 5, ..route("::/0", STATIC, 1024, legs) };
    network.add_route(object(&[(1, "fe80::a"), (2, "fe80::b")]), false);
    assert!(!network.remove_route(object(&[(1, "fe80::a")])));
    assert_eq!((over(&network, "2001:db8:9::1"), network.foreign_count()), (None, 0));
}

#[test]
fn a_link_local_next_hop_is_on_its_link_unless_it_is_ours_there() {
    let mut network = network();
    let addr: IpAddr = "fe80::a".parse().unwrap();
    let hop = |interface| ScopedAddr::new(addr, interface);
    let on = |ifindex| Some(Resolved { ifindex, gateway: None, metric: 0 });
    for hop in [hop(1), hop(2), addr.into()] {
        network.track(hop, true);
    }
    let answers = [hop(1), hop(2), addr.into()].map(|hop| network.answer(hop).unwrap().first());
    assert_eq!(answers, [on(1), on(2), None]);
    network.take_dirty();
    let own = Address { ifindex: 1, addr, len: 64 };
    network.add_address(own);
    assert_eq!((network.take_dirty(), network.resolve(hop(1))), (vec![hop(1)], None));
    assert!(network.set_answer(hop(1), NextHopAnswer::default()));
    network.remove_address(&own);
    assert_eq!((network.take_dirty(), network.resolve(hop(1))), (vec![hop(1)], on(1)));
    let answer = || NextHopAnswer { legs: on(1).into_iter().collect(), ..NextHopAnswer::default() };
    assert!(network.set_answer(hop(1), answer()) && !network.set_answer(hop(1), answer()));
    network.untrack(hop(2));
    network.forget_unused(&BTreeSet::new());
    network.remove_link(2);
    assert!(!network.take_dirty().contains(&hop(2)), "nobody follows it");
}

/// Addresses inside a changed prefix are resolved again, with those that resolve over them.
#[test]
fn a_next_hop_is_looked_at_again_with_those_that_it_is_reached_over() {
    let mut network = network();
    let [a, b, c] = ["10.1.0.1", "10.2.0.1", "10.3.0.1"].map(|addr| addr.parse::<ScopedAddr>().unwrap());
    for addr in [a, b, c] {
        network.track(addr, false);
    }
    network.take_dirty();
    let over = |over: &[ScopedAddr]| NextHopAnswer { over: over.into(), ..NextHopAnswer::default() };
    assert!(!network.set_answer(a, over(&[b])), "reached as before");
    let mut dirty = |prefix: &str| {
        network.mark_dirty_inside(&prefix.parse().unwrap());
        let mut dirty = network.take_dirty();
        dirty.sort_unstable();
        dirty
    };
    assert_eq!(dirty("10.2.0.0/16"), [a, b]);
    assert_eq!(dirty("10.1.0.0/16"), [a]);
    assert_eq!(dirty("10.0.0.0/14"), [a, b, c]);
    assert!(dirty("10.4.0.0/16").is_empty());
    network.set_answer(a, over(&[]));
    network.mark_dirty_inside(&"10.2.0.0/16".parse().unwrap());
    assert_eq!(network.take_dirty(), [b]);
}
