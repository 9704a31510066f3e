//! Roles (RFC 9234) and default eBGP policy (RFC 8212) between speakers.

use tortie_bgp::wire::Role;
use tortie_bgp::{DownCode, Input, PeerConfig, PeerId, RouteTable, State, Unusable};

use crate::net::Net;
use crate::support::{cidr, peer};

/// Speakers in a row, in an AS each (64512, 64513, ...). A link is a pair of roles, of its left and right
/// end.
fn row(seed: u64, links: &[(Option<Role>, Option<Role>)]) -> Net {
    let mut net = Net::new(seed);
    for n in 0..=links.len() as u32 {
        net.node(64512 + n);
    }
    net.ready_all();
    for (left, roles) in links.iter().enumerate() {
        net.join(left, left + 1, |n, c| {
            c.asn = 64512 + if n == left { left + 1 } else { left } as u32;
            c.role = if n == left { roles.0 } else { roles.1 };
        });
    }
    net
}

fn otc(net: &Net, at: usize, from: usize, prefix: &str) -> Option<Option<u32>> {
    net.received(at, from).get(&cidr(prefix)).map(|a| a.otc())
}

const DOWN: (Option<Role>, Option<Role>) = (Some(Role::Provider), Some(Role::Customer));
const UP: (Option<Role>, Option<Role>) = (Some(Role::Customer), Some(Role::Provider));
const ASIDE: (Option<Role>, Option<Role>) = (Some(Role::Peer), Some(Role::Peer));

#[test]
fn a_route_from_a_provider_goes_down_and_never_up_or_aside_again() {
    // Node 1 is a customer of node 0. Node 2 is its customer, peer, provider, or without roles.
    for (link, passes) in [(DOWN, true), (ASIDE, false), (UP, false), ((None, None), true)] {
        let mut net = row(1, &[DOWN, link]);
        net.originate(0, &["10.1.0.0/24"]);
        net.originate(1, &["10.2.0.0/24"]);
        net.secs(5);
        assert!(net.is_up(0, 1) && net.is_up(1, 2));
        // Marked by the provider itself.
        assert_eq!(otc(&net, 1, 0, "10.1.0.0/24"), Some(Some(64512)));
        let seen = otc(&net, 2, 1, "10.1.0.0/24");
        assert_eq!(seen, passes.then_some(Some(64512)), "{link:?}");
        // Own routes of the customer are announced to all, without the attribute to providers.
        let own = otc(&net, 2, 1, "10.2.0.0/24").expect("own route");
        let marked = matches!(link.0, Some(Role::Provider | Role::Peer));
        assert_eq!(own, marked.then_some(64513), "{link:?}");
        assert_eq!(otc(&net, 0, 1, "10.2.0.0/24"), Some(None));
    }
}

#[test]
fn route_servers_and_their_clients() {
    let mut net = row(2, &[(Some(Role::RouteServerClient), Some(Role::RouteServer)), UP]);
    net.originate(0, &["10.1.0.0/24"]);
    net.originate(1, &["10.3.0.0/24"]);
    net.originate(2, &["10.2.0.0/24"]);
    net.secs(5);
    assert!(net.is_up(0, 1) && net.is_up(1, 2));
    assert_eq!(otc(&net, 1, 0, "10.1.0.0/24"), Some(None));
    assert_eq!(otc(&net, 0, 1, "10.3.0.0/24"), Some(Some(64513)));
    // From the provider of node 1 to its client.
    assert_eq!(otc(&net, 0, 1, "10.2.0.0/24"), Some(Some(64514)));
}

/// A neighbour without roles leaks: the receiver rejects the route and reports why.
#[test]
fn a_leak_is_refused_by_the_receiver() {
    // Node 0 is the provider of 1; 1 has no role towards 2, which is its provider or peer.
    for theirs in [Role::Provider, Role::Peer] {
        let mut net = row(3, &[DOWN, (None, Some(theirs))]);
        net.originate(0, &["10.1.0.0/24"]);
        net.originate(1, &["10.2.0.0/24"]);
        net.secs(5);
        assert!(net.is_up(1, 2));
        let paths = net.table(2, RouteTable::AdjIn(PeerId(1)), tortie_bgp::Family::Ipv4Unicast);
        assert_eq!(paths[&cidr("10.1.0.0/24")][0].unusable, Some(Unusable::Filtered("route_leak")));
        assert_eq!(paths[&cidr("10.2.0.0/24")][0].unusable, None);
        assert_eq!(net.best_prefixes(2), ["10.2.0.0/24"]);
    }
}

/// The attribute is added on receipt if the provider does not add it.
#[test]
fn a_provider_without_a_role_is_marked_for_it() {
    let mut net = row(4, &[(None, Some(Role::Customer)), UP]);
    net.originate(0, &["10.1.0.0/24"]);
    net.secs(5);
    assert_eq!(otc(&net, 1, 0, "10.1.0.0/24"), Some(Some(64512)));
    assert_eq!(net.best_prefixes(1), ["10.1.0.0/24"]);
    assert!(net.best_prefixes(2).is_empty());
    let trace = net.nodes[1].speaker.explain_export(cidr("10.1.0.0/24"), PeerId(2));
    assert_eq!(trace.steps.last().map(|s| (s.step, s.pass)), Some(("role", false)));
}

#[test]
fn roles_that_do_not_fit_are_refused_with_2_11() {
    for (a, b) in
        [(Role::Provider, Role::Provider), (Role::Customer, Role::Peer), (Role::Peer, Role::RouteServer)]
    {
        let mut net = row(5, &[(Some(a), Some(b))]);
        net.secs(10);
        assert_ne!(net.state(0, 1), State::Established);
        for end in [net.status(0, 1), net.status(1, 0)] {
            let down = end.last_down.unwrap().0;
            assert_eq!(down.notification, Some((2, 11)), "{down:?}");
        }
    }
}

#[test]
fn strict_mode_refuses_a_peer_without_a_role_and_takes_one_with() {
    let strict = |strict: bool, theirs: Option<Role>| {
        let mut net = Net::new(6);
        let (a, b) = (net.node(64512), net.node(64513));
        net.ready_all();
        net.join(a, b, |n, c| {
            c.asn = if n == a { 64513 } else { 64512 };
            c.role = if n == a { Some(Role::Customer) } else { theirs };
            c.role_strict = n == a && strict;
        });
        net.secs(5);
        net
    };
    assert!(strict(false, None).is_up(0, 1));
    assert!(strict(true, Some(Role::Provider)).is_up(0, 1));
    let net = strict(true, None);
    assert!(!net.is_up(0, 1));
    let down = net.status(1, 0).last_down.unwrap().0;
    assert_eq!((down.code, down.notification), (DownCode::NotificationReceived, Some((2, 11))));
}

#[test]
fn roles_do_nothing_inside_an_as() {
    let mut net = Net::new(7);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |_, c| {
        c.role = Some(Role::Provider);
        c.role_strict = true;
    });
    net.originate(a, &["10.1.0.0/24"]);
    net.secs(5);
    assert!(net.is_up(a, b));
    assert_eq!(otc(&net, b, a, "10.1.0.0/24"), Some(None));
}

#[test]
fn a_new_role_resets_the_session() {
    let mut net = row(8, &[(None, Some(Role::Customer))]);
    net.secs(5);
    let mut config = peer(net.address(1), 64513);
    config.role = Some(Role::Provider);
    net.give(0, Input::Peer(PeerId(1), Box::new(config)));
    net.secs(10);
    assert!(net.is_up(0, 1));
    assert_eq!(net.ended_with(1), [(6, 6)]);
}

/// RFC 8212: without policy no routes are accepted or announced, but End-of-RIB is sent.
#[test]
fn an_ebgp_peer_without_policy_is_closed_until_one_is_given() {
    let mut net = Net::new(9);
    let (a, b) = (net.node(64512), net.node(64513));
    net.ready_all();
    net.join(a, b, |n, c| {
        c.asn = if n == a { 64513 } else { 64512 };
        c.ebgp_policy = n == b;
    });
    net.originate(a, &["10.1.0.0/24"]);
    net.originate(b, &["10.2.0.0/24"]);
    net.secs(5);
    assert!(net.is_up(a, b));
    assert!(net.best_prefixes(a).is_empty() && net.received(b, a).is_empty());
    let (ours, theirs) = (net.status(a, b).families[0], net.status(b, a).families[0]);
    assert_eq!((ours.received, ours.accepted, ours.advertised), (1, 0, 0));
    assert!(ours.end_of_rib_sent && theirs.end_of_rib_received);
    let totals = net.nodes[a].speaker.totals();
    assert_eq!(totals.rejected, [("no_policy", 1)]);
    // With a policy, both directions open without a reset.
    let mut config = peer(net.address(b), 64513);
    config.ebgp_policy = true;
    net.give(a, Input::Peer(PeerId(b as u32), Box::new(config)));
    net.secs(5);
    assert_eq!(net.best_prefixes(a), ["10.2.0.0/24"]);
    assert_eq!(net.best_prefixes(b), ["10.1.0.0/24"]);
    assert_eq!(net.status(a, b).flaps, 0);
    // And close again.
    net.give(a, Input::Peer(PeerId(b as u32), Box::new(closed(&net, b))));
    net.secs(5);
    assert!(net.best_prefixes(a).is_empty() && net.best_prefixes(b).is_empty());
    assert_eq!(net.status(a, b).flaps, 0);
}

fn closed(net: &Net, at: usize) -> PeerConfig {
    let mut config = peer(net.address(at), 64513);
    config.ebgp_policy = false;
    config
}

#[test]
fn ibgp_needs_no_policy() {
    let mut net = Net::new(10);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |_, c| c.ebgp_policy = false);
    net.originate(a, &["10.1.0.0/24"]);
    net.secs(5);
    assert_eq!(net.best_prefixes(b), ["10.1.0.0/24"]);
}
