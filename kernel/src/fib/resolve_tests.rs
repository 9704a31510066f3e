//! What the picture says of next hops while foreign routes come and go.

use super::*;

const STATIC: u8 = 4;
const BOOT: u8 = 3;

/// Two links that carry, the only ones.
fn picture() -> Picture {
    let mut picture = Picture::default();
    for index in [1, 2] {
        picture.set_link(Link { index, name: format!("eth{index}"), flags: 0x1_0001, mtu: 1500 });
    }
    picture
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

fn over(picture: &Picture, addr: &str) -> Option<String> {
    let resolved = picture.resolve(addr.parse().unwrap())?;
    Some(resolved.gateway.map_or_else(|| "on-link".to_owned(), |gateway| gateway.to_string()))
}

#[test]
fn legs_of_ipv6_come_and_go_one_by_one() {
    let (a, b, c) = ((1, "fe80::a"), (2, "fe80::b"), (2, "fe80::c"));
    let mut picture = picture();
    let leads = |picture: &Picture| over(picture, "2001:db8:9::1");
    picture.add_route(route("::/0", BOOT, 1024, &[a, b]), false);
    picture.add_route(route("::/0", BOOT, 2048, &[c]), false);
    assert_eq!((leads(&picture).as_deref(), picture.foreign_count()), (Some("fe80::a"), 2));
    assert!(picture.remove_route(route("::/0", BOOT, 1024, &[a])));
    assert_eq!((leads(&picture).as_deref(), picture.foreign_count()), (Some("fe80::b"), 2));
    // One is appended: the message names the whole set, under the protocol of the new one.
    picture.add_route(route("::/0", STATIC, 1024, &[a, b]), false);
    assert_eq!((leads(&picture).as_deref(), picture.foreign_count()), (Some("fe80::a"), 2));
    // Each goes under its own protocol.
    assert!(picture.remove_route(route("::/0", STATIC, 1024, &[a])));
    assert_eq!(leads(&picture).as_deref(), Some("fe80::b"));
    assert!(!picture.remove_route(route("::/0", STATIC, 1024, &[a])), "twice");
    assert_eq!(leads(&picture).as_deref(), Some("fe80::b"));
    assert!(picture.remove_route(route("::/0", BOOT, 1024, &[b])));
    assert_eq!((leads(&picture).as_deref(), picture.foreign_count()), (Some("fe80::c"), 1));
    // A set goes at once.
    picture.add_route(route("::/0", BOOT, 1024, &[a, b]), false);
    assert!(picture.remove_route(route("::/0", BOOT, 1024, &[a, b])));
    assert!(picture.remove_route(route("::/0", BOOT, 2048, &[c])));
    assert_eq!((leads(&picture), picture.foreign_count()), (None, 0));
}

#[test]
fn an_ipv4_address_in_the_form_of_ipv6_is_not_reached_over_ipv6() {
    let mut picture = picture();
    picture.add_route(route("::/0", BOOT, 1024, &[(1, "fe80::a")]), false);
    picture.add_route(route("0.0.0.0/0", BOOT, 0, &[(1, "192.0.2.7")]), false);
    assert_eq!(over(&picture, "::ffff:192.0.2.9"), None);
    assert_eq!(over(&picture, "192.0.2.9").as_deref(), Some("192.0.2.7"));
    assert_eq!(over(&picture, "2001:db8::9").as_deref(), Some("fe80::a"));
}

#[test]
fn a_route_of_ipv4_and_one_over_an_object_go_whole() {
    let legs = [(1, "192.0.2.7"), (2, "192.0.2.8")];
    let mut picture = picture();
    picture.add_route(route("0.0.0.0/0", STATIC, 0, &legs), false);
    assert!(!picture.remove_route(route("0.0.0.0/0", STATIC, 0, &legs[..1])), "it was another");
    assert_eq!((over(&picture, "203.0.113.5"), picture.foreign_count()), (None, 0));
    let object = |legs| Route { nexthop: 5, ..route("::/0", STATIC, 1024, legs) };
    picture.add_route(object(&[(1, "fe80::a"), (2, "fe80::b")]), false);
    assert!(!picture.remove_route(object(&[(1, "fe80::a")])));
    assert_eq!((over(&picture, "2001:db8:9::1"), picture.foreign_count()), (None, 0));
}
