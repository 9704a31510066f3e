//! Announced routes and their attributes, by type of peer.

use std::time::Duration;

use tortie_bgp::attr::{Attributes, community};
use tortie_bgp::{
    Export, Family, Import, Input, NextHopMode, NextHopState, PathSource, PeerId, PeerView, Policy, Reset,
    RouteMatch, RouteQuery, RouteTable, RouteView, Step, Tag, Unusable,
};
use tortie_net::Cidr;

use crate::net::Net;
use crate::support::{TakeAll, cidr, global, ip, no, policy, route, yes};

/// A chain of eBGP speakers in ASes 64512, 64513, ...
fn chain(seed: u64, nodes: usize) -> Net {
    let mut net = Net::new(seed);
    for n in 0..nodes {
        net.node(64512 + n as u32);
    }
    net.ready_all();
    for n in 1..nodes {
        net.join(n - 1, n, |at, c| c.asn = if at == n { 64512 + n as u32 - 1 } else { 64512 + n as u32 });
    }
    net
}

/// Speakers of one AS, with the first one in the centre of a star.
fn star(seed: u64, nodes: usize, edit: impl Fn(usize, usize, &mut tortie_bgp::PeerConfig)) -> Net {
    let mut net = Net::new(seed);
    for _ in 0..nodes {
        net.node(64512);
    }
    net.ready_all();
    for n in 1..nodes {
        net.join(0, n, |at, c| edit(at, n, c));
    }
    net
}

#[test]
fn ebgp_prepends_the_own_as_sets_itself_as_next_hop_and_keeps_local_things_inside() {
    let mut net = chain(1, 3);
    net.originate(0, &["10.1.0.0/26"]);
    net.secs(3);
    let at1 = &net.received(1, 0)[&cidr("10.1.0.0/26")];
    assert_eq!(at1.as_path.ases().collect::<Vec<_>>(), [64512]);
    assert_eq!((at1.next_hop, at1.med, at1.local_pref), (ip("10.255.0.1").into(), None, None));
    let at2 = &net.received(2, 1)[&cidr("10.1.0.0/26")];
    assert_eq!(at2.as_path.ases().collect::<Vec<_>>(), [64513, 64512]);
    assert_eq!(at2.next_hop, ip("10.255.0.2"));
    assert!(net.nodes[2].best[&cidr("10.1.0.0/26")].ebgp);
}

#[test]
fn ibgp_peers_get_local_and_ebgp_routes_but_not_those_of_other_ibgp_peers() {
    // Node 0 is in the centre; 1 and 2 are iBGP, 3 is eBGP.
    let mut net = Net::new(2);
    for asn in [64512, 64512, 64512, 65001] {
        net.node(asn);
    }
    net.ready_all();
    for n in 1..4 {
        net.join(0, n, |at, c| c.asn = if at == 0 && n == 3 { 65001 } else { 64512 });
    }
    for (n, p) in ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"].into_iter().enumerate() {
        net.originate(n, &[p]);
    }
    net.secs(3);
    assert_eq!(net.best_prefixes(0), ["10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"]);
    assert_eq!(net.best_prefixes(1), ["10.0.0.0/24", "10.0.3.0/24"]);
    assert_eq!(net.best_prefixes(2), ["10.0.0.0/24", "10.0.3.0/24"]);
    assert_eq!(net.best_prefixes(3), ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]);
    let inside = &net.received(1, 0)[&cidr("10.0.3.0/24")];
    assert_eq!((inside.local_pref, inside.next_hop), (Some(100), ip("10.255.0.1").into()));
    let trace = net.nodes[0].speaker.explain_export(cidr("10.0.1.0/24"), PeerId(2));
    let last = trace.steps.last().unwrap();
    assert_eq!((last.step, last.pass), ("reflection", false));
}

#[test]
fn a_reflector_passes_on_with_originator_and_cluster_and_keeps_the_next_hop() {
    // Nodes 1 and 2 are clients, 3 is not.
    let mut net = star(3, 4, |at, n, c| c.reflector_client = (at == 0 && n < 3).then_some(0x0102_0304));
    for n in 0..4 {
        net.originate(n, &[["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"][n]]);
    }
    net.secs(3);
    assert_eq!(net.best_prefixes(1), ["10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/24"]);
    assert_eq!(net.best_prefixes(3), ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]);
    let got = &net.received(2, 0)[&cidr("10.0.1.0/24")];
    assert_eq!(got.originator_id(), Some(0x0aff_0002));
    assert_eq!(got.cluster_list(), [0x0102_0304]);
    assert_eq!(got.next_hop, ip("10.255.0.2"));
    let own = &net.received(2, 0)[&cidr("10.0.0.0/24")];
    assert_eq!((own.originator_id(), own.cluster_list().len()), (None, 0));
    // No peer is sent its own route, not even as a withdrawal.
    assert!(!net.received(1, 0).contains_key(&cidr("10.0.1.0/24")));
    net.withdraw(1, &["10.0.1.0/24"]);
    net.secs(1);
    assert_eq!(net.best_prefixes(2), ["10.0.0.0/24", "10.0.3.0/24"]);
    let learned = net.nodes[1].events.iter().filter_map(|e| match e {
        tortie_bgp::Event::Learned { withdrawn, .. } => Some(*withdrawn),
        _ => None,
    });
    assert_eq!(learned.sum::<u32>(), 0);
}

#[test]
fn a_route_whose_best_path_moves_to_a_client_is_withdrawn_from_that_client() {
    let mut net = star(4, 3, |at, _, c| c.reflector_client = (at == 0).then_some(1));
    net.originate(2, &["10.9.0.0/24"]);
    net.secs(2);
    assert!(net.received(1, 0).contains_key(&cidr("10.9.0.0/24")));
    // The lower router id wins.
    net.originate(1, &["10.9.0.0/24"]);
    net.secs(2);
    assert!(!net.received(1, 0).contains_key(&cidr("10.9.0.0/24")));
    assert!(net.received(2, 0).contains_key(&cidr("10.9.0.0/24")));
    net.withdraw(1, &["10.9.0.0/24"]);
    net.secs(2);
    assert!(net.received(1, 0).contains_key(&cidr("10.9.0.0/24")));
    assert!(!net.received(2, 0).contains_key(&cidr("10.9.0.0/24")));
}

#[test]
fn next_hop_modes() {
    for (mode, want) in [
        (NextHopMode::Auto, "10.255.0.2"),
        (NextHopMode::Own, "10.255.0.1"),
        (NextHopMode::Keep, "10.255.0.2"),
    ] {
        let mut net = star(5, 3, |at, _, c| {
            if at == 0 {
                c.reflector_client = Some(1);
                c.next_hop = mode;
            }
        });
        net.originate(1, &["10.1.0.0/24"]);
        net.secs(2);
        assert_eq!(net.received(2, 0)[&cidr("10.1.0.0/24")].next_hop, ip(want), "{mode:?}");
    }
    // On eBGP, `Keep` preserves the next hop of another AS.
    let mut net = chain(6, 3);
    let mut config = crate::support::peer(net.address(2), 64514);
    config.next_hop = NextHopMode::Keep;
    net.give(1, Input::Peer(PeerId(2), Box::new(config)));
    net.originate(0, &["10.1.0.0/24"]);
    net.secs(2);
    assert_eq!(net.received(2, 1)[&cidr("10.1.0.0/24")].next_hop, ip("10.255.0.1"));
}

#[test]
fn ipv6_routes_over_an_ipv4_session_need_an_own_address() {
    for own in [None, Some(ip("fd00::1"))] {
        let mut net = Net::new(7);
        let (a, b) = (net.node(64512), net.node(64512));
        net.ready_all();
        net.join(a, b, |n, c| {
            c.families = Family::ALL.to_vec();
            c.local_v6 = if n == 0 { own } else { None };
        });
        net.originate(a, &["fd00:1::/64", "10.1.0.0/24"]);
        net.secs(2);
        let want: &[&str] = if own.is_some() { &["10.1.0.0/24", "fd00:1::/64"] } else { &["10.1.0.0/24"] };
        assert_eq!(net.best_prefixes(b), want);
        let v6 = net.status(b, a).families[1];
        assert!(v6.end_of_rib_received, "End-of-RIB comes for a family without routes, too");
        if own.is_none() {
            let trace = net.nodes[a].speaker.explain_export(cidr("fd00:1::/64"), PeerId(1));
            assert_eq!(trace.steps.last().map(|s| s.step), Some("next-hop"));
        }
    }
}

#[test]
fn ipv4_routes_over_an_ipv6_session_take_an_ipv6_next_hop() {
    let mut net = Net::new(8);
    let a = net.node_at(ip("fd00::1"), global(64512, 1), policy(TakeAll));
    let b = net.node_at(ip("fd00::2"), global(64513, 2), policy(TakeAll));
    net.ready_all();
    net.join(a, b, |n, c| {
        c.asn = if n == 0 { 64513 } else { 64512 };
        c.families = Family::ALL.to_vec();
    });
    net.originate(a, &["10.1.0.0/24", "fd00:1::/64"]);
    net.secs(2);
    assert_eq!(net.received(b, a)[&cidr("10.1.0.0/24")].next_hop, ip("fd00::1"));
    assert_eq!(net.best_prefixes(b), ["10.1.0.0/24", "fd00:1::/64"]);
    net.withdraw(a, &["10.1.0.0/24"]);
    net.secs(1);
    assert_eq!(net.best_prefixes(b), ["fd00:1::/64"]);
}

/// RFC 4271 9.1.2.1: a next hop that resolves through a learned route is unusable for another route to that
/// prefix.
#[test]
fn a_next_hop_may_be_unreachable_for_routes_to_some_prefixes_alone() {
    let mut net = star(9, 3, |_, _, _| ());
    net.originate(1, &["10.1.0.0/24", "10.5.0.0/24"]);
    net.originate(2, &["10.5.0.0/24"]);
    net.secs(2);
    let hop: tortie_net::ScopedAddr = ip("10.255.0.2").into();
    let best = |net: &Net, prefix: &str| {
        net.nodes[0]
            .best
            .get(&cidr(prefix))
            .map(|best| best.next_hops.iter().map(|hop| hop.addr()).collect::<Vec<_>>())
    };
    let both = Some(vec![ip("10.255.0.2"), ip("10.255.0.3")]);
    assert_eq!(best(&net, "10.5.0.0/24"), both);
    let far = NextHopState::Reachable { metric: 9, on_link: false };
    for (state, used) in [(NextHopState::Unreachable, vec![ip("10.255.0.3")]), (far, vec![ip("10.255.0.3")])]
    {
        net.give(0, Input::NextHopWithin(hop, vec![(cidr("10.5.0.0/24"), state)]));
        net.secs(1);
        assert_eq!(best(&net, "10.5.0.0/24"), Some(used));
        assert_eq!(best(&net, "10.1.0.0/24"), Some(vec![ip("10.255.0.2")]), "others use it");
    }
    net.give(0, Input::NextHopWithin(hop, vec![(cidr("10.1.0.0/24"), NextHopState::Unreachable)]));
    net.secs(1);
    assert_eq!((best(&net, "10.5.0.0/24"), best(&net, "10.1.0.0/24")), (both, None));
    net.give(0, Input::NextHopWithin(hop, Vec::new()));
    net.secs(1);
    assert_eq!(best(&net, "10.1.0.0/24"), Some(vec![ip("10.255.0.2")]));
}

#[test]
fn unreachable_next_hops_make_paths_unusable_until_they_are_reachable() {
    let mut net = star(9, 3, |_, _, _| ());
    net.nodes[0].unreachable.insert(ip("10.255.0.2"));
    net.originate(1, &["10.1.0.0/24", "10.5.0.0/24"]);
    net.originate(2, &["10.5.0.0/24"]);
    net.secs(2);
    assert_eq!(net.best_prefixes(0), ["10.5.0.0/24"]);
    assert_eq!(net.nodes[0].best[&cidr("10.5.0.0/24")].peer, PeerId(2));
    let paths = net.table(0, RouteTable::Loc, Family::Ipv4Unicast).remove(&cidr("10.1.0.0/24")).unwrap();
    assert_eq!((paths[0].unusable, paths[0].best), (Some(Unusable::NextHop), false));
    net.nodes[0].unreachable.clear();
    net.next_hop_changed(0, ip("10.255.0.2"));
    net.secs(1);
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24", "10.5.0.0/24"]);
    let best = &net.nodes[0].best[&cidr("10.5.0.0/24")];
    assert_eq!(best.next_hops[..], [ip("10.255.0.2"), ip("10.255.0.3")], "equal paths share the load");
    net.nodes[0].metrics.insert(ip("10.255.0.2"), 10);
    net.next_hop_changed(0, ip("10.255.0.2"));
    net.secs(1);
    assert_eq!(net.nodes[0].best[&cidr("10.5.0.0/24")].next_hops[..], [ip("10.255.0.3")]);
    let paths = net.table(0, RouteTable::Loc, Family::Ipv4Unicast).remove(&cidr("10.5.0.0/24")).unwrap();
    assert_eq!((paths[0].best, paths[0].decided_by), (true, Some(Step::IgpMetric)));
    // Next hops are tracked while a route uses them.
    assert_eq!(net.nodes[0].tracked.len(), 2);
    net.withdraw(2, &["10.5.0.0/24"]);
    net.secs(1);
    assert_eq!(net.nodes[0].tracked.len(), 1);
}

#[test]
fn local_routes_win_and_their_changes_carry_the_tag() {
    let mut net = star(10, 2, |_, _, _| ());
    net.originate(1, &["10.1.0.0/24"]);
    net.secs(2);
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24"]);
    let own = tortie_bgp::Origination { tag: Tag(77), ..route() };
    net.give(0, Input::Local(&[(cidr("10.1.0.0/24"), Some(own))]));
    net.secs(1);
    assert!(net.best_prefixes(0).is_empty());
    assert_eq!(net.nodes[0].tags[&cidr("10.1.0.0/24")], Tag(77));
    let paths = net.table(0, RouteTable::Loc, Family::Ipv4Unicast).remove(&cidr("10.1.0.0/24")).unwrap();
    assert_eq!(paths[0].source, PathSource::Local { kind: 1 });
    assert_eq!(paths[1].decided_by, Some(Step::Local));
    net.withdraw(0, &["10.1.0.0/24"]);
    net.secs(1);
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24"]);
}

/// Policy that adds communities by the third octet of the prefix.
struct Marks;

impl Policy for Marks {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn export(&self, _: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        match route.prefix.to_string().split('.').nth(2) {
            Some("1") => yes("marked").with_communities([community::NO_EXPORT], []),
            Some("2") => yes("marked").with_communities([community::NO_ADVERTISE], []),
            Some("3") => no("three"),
            _ => yes("plain"),
        }
    }
}

#[test]
fn well_known_communities_bind_those_who_receive_them() {
    let mut net = Net::new(11);
    net.node_at(ip("10.255.0.1"), global(64512, 1), policy(Marks));
    for asn in [64513, 64513, 64514] {
        net.node(asn);
    }
    net.ready_all();
    // 0 - 1 eBGP, 1 - 2 iBGP, 1 - 3 eBGP.
    net.join(0, 1, |at, c| c.asn = if at == 0 { 64513 } else { 64512 });
    net.join(1, 2, |_, c| c.asn = 64513);
    net.join(1, 3, |at, c| c.asn = if at == 1 { 64514 } else { 64513 });
    net.originate(0, &["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"]);
    net.secs(3);
    assert_eq!(net.best_prefixes(1), ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]);
    assert_eq!(net.best_prefixes(2), ["10.0.0.0/24", "10.0.1.0/24"]);
    assert_eq!(net.best_prefixes(3), ["10.0.0.0/24"]);
    assert_eq!(
        net.nodes[0].speaker.totals().withheld,
        [("marked", 0), ("plain", 0), ("three", 1)]
            .map(|w| w)
            .into_iter()
            .filter(|w| w.1 > 0)
            .collect::<Vec<_>>()
    );
    let trace = net.nodes[0].speaker.explain_export(cidr("10.0.3.0/24"), PeerId(1));
    let last = trace.steps.last().unwrap();
    assert_eq!((last.step, last.pass, last.verdict.as_str()), ("policy", false, "three"));
    let trace = net.nodes[0].speaker.explain_export(cidr("10.0.1.0/24"), PeerId(1));
    assert_eq!(trace.announced.unwrap().communities[..], [community::NO_EXPORT]);
}

/// Policy that rejects all routes on import or export.
struct Shut {
    import: bool,
    export: bool,
}

impl Policy for Shut {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        if self.import { Import::Reject("shut") } else { Import::Accept }
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        if self.export { no("shut") } else { yes("open") }
    }
}

#[test]
fn a_new_policy_changes_what_is_taken_and_announced_without_a_reset() {
    let mut net = star(12, 2, |_, _, _| ());
    net.originate(0, &["10.0.0.0/24"]);
    net.originate(1, &["10.0.1.0/24"]);
    net.secs(2);
    net.give(0, Input::Policy(policy(Shut { import: true, export: true })));
    net.secs(1);
    assert!(net.best_prefixes(0).is_empty() && net.best_prefixes(1).is_empty());
    let status = net.status(0, 1).families[0];
    assert_eq!((status.received, status.accepted, status.filtered, status.advertised), (1, 0, 1, 0));
    let paths = net.table(0, RouteTable::AdjIn(PeerId(1)), Family::Ipv4Unicast);
    assert_eq!(paths[&cidr("10.0.1.0/24")][0].unusable, Some(Unusable::Filtered("shut")));
    let updates = net.status(0, 1).sent.update;
    net.give(0, Input::Policy(policy(Shut { import: true, export: true })));
    net.secs(1);
    assert_eq!(net.status(0, 1).sent.update, updates, "an equal policy announces nothing anew");
    net.give(0, Input::Policy(policy(TakeAll)));
    net.secs(1);
    assert_eq!((net.best_prefixes(0).len(), net.best_prefixes(1).len()), (1, 1));
    assert_eq!(net.status(0, 1).flaps, 0);
}

#[test]
fn what_was_refused_is_counted_and_stays_counted() {
    let mut net = star(12, 2, |_, _, _| ());
    net.give(0, Input::Policy(policy(Shut { import: true, export: true })));
    net.originate(1, &["10.0.1.0/24", "10.0.2.0/24"]);
    net.secs(2);
    let counts = |net: &Net| (net.status(0, 1).rejected, net.status(0, 1).families[0].filtered);
    assert_eq!(counts(&net), (2, 2));
    net.withdraw(1, &["10.0.1.0/24"]);
    net.secs(1);
    assert_eq!(counts(&net), (2, 1));
    net.originate(1, &["10.0.1.0/24"]);
    net.secs(1);
    assert_eq!(counts(&net), (3, 2));
}

#[test]
fn a_policy_about_some_prefixes_asks_about_no_others() {
    let mut net = star(12, 2, |_, _, _| ());
    net.originate(0, &["10.0.0.0/24", "10.0.2.0/24"]);
    net.originate(1, &["10.0.1.0/24", "10.0.3.0/24"]);
    net.secs(2);
    let shut = || policy(Shut { import: true, export: true });
    // Including a prefix that is not in the table.
    let about = ["10.0.0.0/24", "10.0.1.0/24", "10.0.9.0/24", "fd00::/64"].map(cidr);
    net.give(0, Input::PolicyAbout(shut(), &about));
    net.secs(1);
    assert_eq!(net.best_prefixes(0), ["10.0.3.0/24"]);
    assert_eq!(net.best_prefixes(1), ["10.0.2.0/24"]);
    let status = net.status(0, 1).families[0];
    assert_eq!((status.received, status.accepted, status.filtered, status.advertised), (2, 1, 1, 1));
    net.give(0, Input::Policy(shut()));
    net.secs(1);
    assert!(net.best_prefixes(0).is_empty() && net.best_prefixes(1).is_empty());
    net.give(0, Input::PolicyAbout(policy(TakeAll), &about));
    net.secs(1);
    assert_eq!(net.best_prefixes(0), ["10.0.1.0/24"]);
    assert_eq!(net.best_prefixes(1), ["10.0.0.0/24"]);
    assert_eq!(net.status(0, 1).flaps, 0);
}

/// Policy that announces local routes to class 1 only.
struct ByClass;

impl Policy for ByClass {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let odd = route.prefix.to_string().starts_with("10.1.");
        if to.class == 1 && odd { no("class") } else { yes("class") }
    }
}

#[test]
fn a_peer_that_moves_to_another_update_group_is_sent_the_difference() {
    let mut net = Net::new(13);
    net.node_at(ip("10.255.0.1"), global(64512, 1), policy(ByClass));
    net.node(64512);
    net.node(64512);
    net.ready_all();
    net.join(0, 1, |_, _| ());
    net.join(0, 2, |_, _| ());
    net.originate(0, &["10.0.0.0/24", "10.1.0.0/24"]);
    net.secs(2);
    assert_eq!(net.nodes[0].speaker.totals().update_groups, 1);
    let mut config = crate::support::peer(net.address(1), 64512);
    config.policy_class = 1;
    net.give(0, Input::Peer(PeerId(1), Box::new(config.clone())));
    net.secs(1);
    assert_eq!(net.nodes[0].speaker.totals().update_groups, 2);
    assert_eq!(net.best_prefixes(1), ["10.0.0.0/24"]);
    assert_eq!(net.best_prefixes(2).len(), 2);
    config.policy_class = 0;
    net.give(0, Input::Peer(PeerId(1), Box::new(config)));
    net.secs(1);
    assert_eq!(net.best_prefixes(1).len(), 2);
    assert_eq!(net.status(0, 1).flaps, 0);
}

#[test]
fn loops_are_filtered_with_their_reason() {
    // Both ends of the chain are in the same AS, which the middle accepts.
    let mut net = Net::new(14);
    for asn in [64512, 64513, 64512] {
        net.node(asn);
    }
    net.ready_all();
    for (a, b) in [(0, 1), (1, 2)] {
        net.join(a, b, |at, c| c.asn = if at == 1 { 64512 } else { 64513 });
    }
    net.originate(0, &["10.0.0.0/24"]);
    net.secs(3);
    let got = net.table(2, RouteTable::AdjIn(PeerId(1)), Family::Ipv4Unicast);
    assert_eq!(got[&cidr("10.0.0.0/24")][0].unusable, Some(Unusable::Filtered("as_loop")));
    assert!(net.nodes[2].best.is_empty());
    assert_eq!(net.nodes[2].speaker.totals().rejected, [("as_loop", 1)]);
    // Racks that share an AS allow it (`allowas-in`).
    let mut config = crate::support::peer(net.address(1), 64513);
    config.allow_own_as = 1;
    net.give(2, Input::Peer(PeerId(1), Box::new(config)));
    net.secs(1);
    assert_eq!(net.nodes[2].best.len(), 1);
    assert_eq!(net.status(2, 1).flaps, 0);
}

#[test]
fn soft_resets_send_everything_again_and_change_nothing() {
    let mut net = star(15, 2, |_, _, _| ());
    net.originate(0, &["10.0.0.0/24"]);
    net.originate(1, &["10.0.1.0/24"]);
    net.secs(2);
    let before = (net.status(0, 1).sent, net.status(0, 1).received);
    net.give(0, Input::Reset(PeerId(1), Reset::SoftOut));
    net.give(0, Input::Reset(PeerId(1), Reset::SoftIn));
    net.secs(1);
    let after = (net.status(0, 1).sent, net.status(0, 1).received);
    assert_eq!(after.0.update, before.0.update + 1);
    assert_eq!(after.1.update, before.1.update + 1);
    // The request, and BoRR and EoRR of the answer.
    assert_eq!((after.0.route_refresh, after.1.route_refresh), (3, 2));
    assert_eq!(net.status(0, 1).flaps, 0);
    assert_eq!((net.best_prefixes(0).len(), net.best_prefixes(1).len()), (1, 1));
}

#[test]
fn questions_for_routes() {
    let mut net = star(16, 2, |_, _, _| ());
    net.originate(0, &["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "192.0.2.0/24"]);
    net.secs(2);
    let ask = |table, matching, after, max| {
        let all = net.nodes[1].speaker.routes(&RouteQuery { table, matching }, after, max);
        all.into_iter().map(|r| r.prefix.to_string()).collect::<Vec<_>>()
    };
    let loc = RouteTable::Loc;
    assert_eq!(ask(loc, RouteMatch::Longest(ip("10.1.2.3")), None, 9), ["10.1.2.0/24"]);
    assert_eq!(ask(loc, RouteMatch::Longest(ip("10.1.3.3")), None, 9), ["10.1.0.0/16"]);
    assert!(ask(loc, RouteMatch::Longest(ip("11.1.3.3")), None, 9).is_empty());
    assert_eq!(ask(loc, RouteMatch::Exact(cidr("10.1.0.0/16")), None, 9), ["10.1.0.0/16"]);
    assert_eq!(ask(loc, RouteMatch::Within(cidr("10.1.0.0/16")), None, 9), ["10.1.0.0/16", "10.1.2.0/24"]);
    let all = RouteMatch::All(Family::Ipv4Unicast);
    assert_eq!(ask(loc, all, None, 2), ["10.0.0.0/8", "10.1.0.0/16"]);
    assert_eq!(ask(loc, all, Some(cidr("10.1.0.0/16")), 2), ["10.1.2.0/24", "192.0.2.0/24"]);
    assert_eq!(ask(RouteTable::AdjIn(PeerId(0)), all, None, 9).len(), 4);
    assert!(ask(RouteTable::AdjOut(PeerId(0)), all, None, 9).is_empty());
    let out = RouteQuery { table: RouteTable::AdjOut(PeerId(1)), matching: all };
    assert_eq!(net.nodes[0].speaker.routes(&out, None, 9).len(), 4);
}

#[test]
fn a_mesh_of_five_converges_whatever_the_order() {
    for seed in 0..40 {
        let mut net = Net::new(seed);
        for _ in 0..5 {
            net.node(64512);
        }
        for a in 0..5 {
            for b in a + 1..5 {
                net.join(a, b, |_, _| ());
            }
        }
        for n in 0..5 {
            net.originate(n, &[&format!("10.{n}.0.0/26"), &format!("10.{n}.0.64/26")]);
        }
        net.ready_all();
        net.run(Duration::from_secs(10));
        for n in 0..5 {
            assert_eq!(net.nodes[n].best.len(), 8, "seed {seed}, node {n}");
        }
        net.kill(3);
        net.run(Duration::from_secs(200));
        for n in [0, 1, 2, 4] {
            assert_eq!(net.nodes[n].best.len(), 6, "seed {seed}, node {n}");
        }
    }
}

/// RFC 4271 6.3: only the invalid destination prefix is ignored. Node 1 announces, 0 is tested, 2 receives
/// the routes that 0 uses.
#[test]
fn a_prefix_that_is_no_destination_is_refused_alone_and_said_so() {
    let mut net = Net::new(5);
    for asn in [64512, 64513, 64514] {
        net.node(asn);
    }
    net.ready_all();
    for n in 1..3 {
        net.join(0, n, |at, c| {
            c.asn = if at == 0 { 64512 + n as u32 } else { 64512 };
            c.families = Family::ALL.to_vec();
            c.local_v6 = Some(format!("fd00::{}", at + 1).parse().unwrap());
        });
    }
    let wrong = [
        "224.0.0.0/4",
        "224.0.0.5/32",
        "239.255.0.0/16",
        "127.0.0.0/8",
        "127.0.0.1/32",
        "ff00::/8",
        "ff02::1/128",
        "fe80::/10",
        "fe80::/64",
        "febf::1/128",
        "::1/128",
    ];
    // A default route and other networks wider than such a range, and networks next to one.
    let right = [
        "0.0.0.0/0",
        "126.0.0.0/7",
        "192.0.0.0/2",
        "224.0.0.0/3",
        "240.0.0.0/8",
        "10.1.0.0/24",
        "10.1.0.1/32",
        "::/0",
        "::/127",
        "fe00::/8",
        "fe80::/9",
        "fec0::/10",
        "2001:db8::/32",
    ];
    let mut expected: Vec<_> = right.iter().map(|p| cidr(p)).collect();
    expected.sort();
    net.originate(1, &[&wrong[..], &right].concat());
    net.secs(3);
    let used = |net: &Net, at: usize| net.nodes[at].best.keys().copied().collect::<Vec<_>>();
    assert_eq!(used(&net, 0), expected);
    assert_eq!(used(&net, 2), expected);
    for prefix in wrong.map(cidr) {
        let family = if prefix.is_v4() { Family::Ipv4Unicast } else { Family::Ipv6Unicast };
        let kept = net.table(0, RouteTable::AdjInPost(PeerId(1)), family);
        assert_eq!(kept[&prefix][0].unusable, Some(Unusable::Filtered("martian")), "{prefix}");
        let trace = net.nodes[0].speaker.explain_import(prefix, PeerId(1)).unwrap();
        let last = trace.steps.last().unwrap();
        assert_eq!((last.step, last.pass, trace.used), ("prefix", false, None), "{prefix}");
    }
    let rejected = net.nodes[0].speaker.totals().rejected;
    assert_eq!(rejected, [("martian", wrong.len() as u64)]);
    // Another policy does not accept them, and they can be withdrawn.
    net.give(0, Input::Policy(policy(TakeAll)));
    net.secs(1);
    assert_eq!(used(&net, 0), expected);
    net.withdraw(1, &wrong);
    net.secs(1);
    assert_eq!(net.received(0, 1).len(), right.len());
    assert_eq!(net.status(0, 1).flaps, 0);
}
