//! Roles, enhanced refresh, prefix limits and two-octet peers on sessions with BIRD, FRR, OpenBGPD and ExaBGP.

use tortie::routing::{MaxPrefixes, PeerIntent, Role, RoutingIntent};
use tortie::speaker::ToSpeaker;
use tortie_bgp::{Family, Reset, RouteMatch, RouteQuery, RouteTable, State, Unusable};

use crate::bird::Bird;
use crate::frr::Frr;
use crate::net;
use crate::node::{Node, cidr, intent, peer, wait};
use crate::openbgpd::OpenBgpd;
use crate::others::Daemon;

const US: &str = "192.0.2.1:1790";
const BLOCK: &str = "10.1.0.0/26";

/// BIRD in AS 65009 at 192.0.2.9 with options of the channel and of the protocol.
fn bird(channel: &str, options: &str) -> Option<Bird> {
    Bird::start(&format!(
        "protocol bgp tortie from quick {{ local 192.0.2.9 port 1790 as 65009; neighbor 192.0.2.1 port 1790 as 64512;
           ipv4 {{ import all; export where source = RTS_STATIC; {channel} }}; {options} }}"
    ))
}

/// FRR in AS 65011 at 192.0.2.11 with options of the address family and of the neighbour.
fn frr(family: &str, options: &str) -> Option<Frr> {
    Frr::start(
        65011,
        "192.0.2.11",
        &format!("network 10.11.0.0/24\n {family}\n exit-address-family\n {options}\n"),
    )
}

fn wants(last: u32, edit: impl FnOnce(&mut PeerIntent)) -> RoutingIntent {
    let mut us = intent(US, 64512, &[BLOCK]);
    let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 65000 + last);
    them.ipv6 = false;
    edit(&mut them);
    us.peers.insert("them".into(), them);
    us
}

/// A node with the daemon at 192.0.2.`last` as its eBGP peer.
fn node(last: u32, edit: impl FnOnce(&mut PeerIntent)) -> Node {
    Node::start(wants(last, edit))
}

fn has_role(ours: Role) -> impl FnOnce(&mut PeerIntent) {
    move |p| p.role = Some(ours)
}

/// ONLY_TO_CUSTOMER of a route of the peer, and why it is not used.
fn received(a: &Node, prefix: &str) -> Option<(Option<u32>, Option<Unusable>, String)> {
    let matching = RouteMatch::Exact(cidr(prefix));
    let all = a.ask(move |view| {
        let id = view.peer_id("them")?;
        Some(view.routes(RouteQuery { table: RouteTable::AdjIn(id), matching }, None, 1))
    })?;
    let path = all.first()?.paths.first()?;
    Some((path.attributes.otc(), path.unusable, path.attributes.as_path.to_string()))
}

fn receives(a: &Node, prefix: &str, log: &dyn Fn() -> String) -> (Option<u32>, Option<Unusable>, String) {
    let mut got = None;
    wait(&format!("a route {prefix}"), || {
        got = received(a, prefix);
        if got.is_some() { Ok(()) } else { Err(format!("{:#?}\n{}", a.facts().last(), log())) }
    });
    got.unwrap()
}

/// The session ended with this NOTIFICATION, sent or received.
fn ends_with(a: &Node, code: (u8, u8), log: &dyn Fn() -> String) {
    wait(&format!("the end with {code:?}"), || match a.peer("them").and_then(|p| p.last_down) {
        Some((down, _)) if down.notification == Some(code) => Ok(()),
        other => Err(format!("{other:?}\n{}", log())),
    });
}

#[test]
fn role_customer_towards_bird_is_sent_its_mark() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("", "local role provider; require roles on;") else { return };
    let a = node(9, has_role(Role::Customer));
    let (otc, unusable, _) = receives(&a, "10.9.0.0/24", &|| bird.log());
    assert_eq!((otc, unusable), (Some(65009), None));
    bird.says("show route for 10.1.0.0/26 all", "BGP.as_path: 64512");
    assert!(!bird.ask("show route for 10.1.0.0/26 all").contains("otc"));
}

#[test]
fn role_provider_towards_bird_marks_what_it_sends() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("", "local role customer; require roles on;") else { return };
    let mut us = wants(9, has_role(Role::Provider));
    us.peers.get_mut("them").unwrap().role_strict = true;
    let a = Node::start(us);
    assert_eq!(receives(&a, "10.9.0.0/24", &|| bird.log()).0, None);
    bird.says("show route for 10.1.0.0/26 all", "otc: 64512");
}

#[test]
fn role_mismatch_with_bird_is_refused() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("", "local role provider;") else { return };
    let a = node(9, has_role(Role::Provider));
    ends_with(&a, (2, 11), &|| bird.log());
    assert_ne!(a.state("them"), Some(State::Established));
}

#[test]
fn role_strict_refuses_bird_without_one_and_bird_refuses_us() {
    if !net::enter(&[]) {
        return;
    }
    let Some(silent) = bird("", "") else { return };
    let a = node(9, |p| (p.role, p.role_strict) = (Some(Role::Customer), true));
    ends_with(&a, (2, 11), &|| silent.log());
    drop((a, silent));
    let Some(strict) = bird("", "local role provider; require roles on;") else { return };
    let a = node(9, |_| ());
    ends_with(&a, (2, 11), &|| strict.log());
}

/// BIRD without a role leaks what it should not.
#[test]
fn role_leak_from_bird_is_not_used() {
    if !net::enter(&[]) {
        return;
    }
    let leak = "export filter { if source != RTS_STATIC then reject; bgp_otc = 65001; accept; };";
    let Some(bird) = bird(leak, "") else { return };
    let a = node(9, has_role(Role::Provider));
    let (otc, unusable, _) = receives(&a, "10.9.0.0/24", &|| bird.log());
    assert_eq!((otc, unusable), (Some(65001), Some(Unusable::Filtered("route_leak"))));
    assert_eq!(a.route("10.9.0.0/24"), None);
}

#[test]
fn role_both_ways_with_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr("", "neighbor 192.0.2.1 local-role provider strict-mode") else { return };
    let mut a = node(11, has_role(Role::Customer));
    let (otc, unusable, _) = receives(&a, "10.11.0.0/24", &|| frr.log());
    assert_eq!((otc, unusable), (Some(65011), None));
    // A role that does not fit.
    a.intent.peers.get_mut("them").unwrap().role = Some(Role::Peer);
    a.apply();
    ends_with(&a, (2, 11), &|| frr.log());
}

#[test]
fn role_provider_towards_frr_marks_what_it_sends() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr("", "neighbor 192.0.2.1 local-role customer") else { return };
    let a = node(11, has_role(Role::Provider));
    assert_eq!(receives(&a, "10.11.0.0/24", &|| frr.log()).0, None);
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "otc 64512");
}

#[test]
fn role_both_ways_with_openbgpd() {
    if !net::enter(&[]) {
        return;
    }
    let Some(them) = OpenBgpd::start("announce policy provider enforce") else { return };
    let mut a = node(12, |p| (p.role, p.role_strict) = (Some(Role::Customer), true));
    let (otc, unusable, _) = receives(&a, "10.12.0.0/24", &|| them.log());
    assert_eq!((otc, unusable), (Some(65012), None));
    them.says(&["show", "rib"], BLOCK);
    a.intent.peers.get_mut("them").unwrap().role = Some(Role::Provider);
    a.apply();
    ends_with(&a, (2, 11), &|| them.log());
}

/// Counts of ROUTE-REFRESH received and sent.
fn refreshes(a: &Node) -> (u64, u64) {
    a.peer("them").map_or((0, 0), |p| (p.received.route_refresh, p.sent.route_refresh))
}

/// Both directions: we ask, then they do; the route stays all the while.
fn refreshed(a: &Node, prefix: &str, log: &dyn Fn() -> String, ask: impl FnOnce()) {
    wait("the session with enhanced refresh", || match a.peer("them") {
        Some(p)
            if p.session.as_ref().is_some_and(|s| s.enhanced_refresh)
                && p.families.iter().any(|f| f.end_of_rib_received && f.end_of_rib_sent) =>
        {
            Ok(())
        }
        p => Err(format!("{p:#?}\n{}", log())),
    });
    a.handle.send(ToSpeaker::Reset("them".into(), Reset::SoftIn)).unwrap();
    wait("their refresh, from beginning to end", || match refreshes(a) {
        (2, 1) => Ok(()),
        other => Err(format!("{other:?}\n{}", log())),
    });
    let v4 =
        |a: &Node| a.peer("them").unwrap().families.into_iter().find(|f| f.family == Family::Ipv4Unicast);
    assert_eq!(v4(a).map(|f| f.stale), Some(0));
    assert!(a.route(prefix).is_some());
    ask();
    wait("our refresh, from beginning to end", || match refreshes(a) {
        (3, 3) => Ok(()),
        other => Err(format!("{other:?}\n{}", log())),
    });
    let peer = a.peer("them").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0));
}

#[test]
fn enhanced_refresh_both_ways_with_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("", "") else { return };
    let a = node(9, |_| ());
    a.has("10.9.0.0/24", "192.0.2.9");
    refreshed(&a, "10.9.0.0/24", &|| bird.log(), || drop(bird.ask("reload in tortie")));
    bird.says("show route for 10.1.0.0/26", BLOCK);
}

#[test]
fn enhanced_refresh_both_ways_with_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr("", "") else { return };
    let a = node(11, |_| ());
    a.has("10.11.0.0/24", "192.0.2.11");
    refreshed(&a, "10.11.0.0/24", &|| frr.log(), || {
        drop(frr.ask("clear bgp ipv4 unicast 192.0.2.1 soft in"))
    });
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "64512");
}

/// OpenBGPD 7.7 does not answer a request: it says "AID IPv4 unicast not negotiated" of a family that carries routes.
#[test]
fn enhanced_refresh_sent_to_openbgpd() {
    if !net::enter(&[]) {
        return;
    }
    let Some(them) = OpenBgpd::start("announce enhanced refresh yes") else { return };
    let a = node(12, |_| ());
    a.has("10.12.0.0/24", "192.0.2.12");
    them.says(&["show", "rib"], BLOCK);
    them.tell(&["neighbor", "192.0.2.1", "refresh"]);
    wait("our refresh, from beginning to end", || match refreshes(&a) {
        (1, 2) => Ok(()),
        other => Err(format!("{other:?}\n{}", them.log())),
    });
    them.says(&["show", "rib"], BLOCK);
    let peer = a.peer("them").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0));
}

/// More blocks than they take.
fn flooding(last: u32) -> Node {
    let mut us = wants(last, |_| ());
    let more = intent(US, 64512, &[BLOCK, "10.1.0.64/26", "10.1.0.128/26"]);
    (us.originated, us.view) = (more.originated, more.view);
    Node::start(us)
}

/// They ended it because of the prefixes, and we do not dial for a while.
fn rests(a: &Node, log: &dyn Fn() -> String) {
    ends_with(a, (6, 1), log);
    wait("the wait", || match a.peer("them") {
        Some(p) if p.next_attempt.is_some_and(|t| t.as_secs() > 30) => Ok(()),
        // It may dial itself, be let in, and end it again.
        p => Err(format!("{p:#?}\n{}", log())),
    });
}

#[test]
fn prefix_limit_of_bird_is_heard() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("import limit 1 action disable;", "") else { return };
    rests(&flooding(9), &|| bird.log());
}

#[test]
fn prefix_limit_of_frr_is_heard() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr("neighbor 192.0.2.1 maximum-prefix 1", "") else { return };
    rests(&flooding(11), &|| frr.log());
}

#[test]
fn prefix_limit_of_openbgpd_is_heard() {
    if !net::enter(&[]) {
        return;
    }
    let Some(them) = OpenBgpd::start("max-prefix 1") else { return };
    rests(&flooding(12), &|| them.log());
}

#[test]
fn prefix_limit_towards_bird_ends_the_session() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird("", "") else { return };
    let one = MaxPrefixes { limit: Some(1), ..MaxPrefixes::default() };
    let a = node(9, |p| p.max_prefixes = Some(one));
    ends_with(&a, (6, 1), &|| bird.log());
    wait("BIRD to have read why", || {
        let log = bird.log();
        if log.contains("Maximum number of prefixes reached") { Ok(()) } else { Err(log) }
    });
}

#[test]
fn prefix_limit_towards_frr_ends_the_session() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr("network 10.11.1.0/24", "") else { return };
    let one = MaxPrefixes { limit: Some(1), ..MaxPrefixes::default() };
    let a = node(11, |p| p.max_prefixes = Some(one));
    ends_with(&a, (6, 1), &|| frr.log());
    frr.says("show bgp neighbors 192.0.2.1", "Cease/");
}

/// ExaBGP with a path of long ASes.
fn exabgp(capability: &str) -> Option<Daemon> {
    let program = net::tool("exabgp")?;
    let config = format!(
        "neighbor 192.0.2.1 {{
        router-id 192.0.2.13; local-address 192.0.2.13; local-as 65013; peer-as 64512; connect 1790;
        capability {{ {capability} }}
        family {{ ipv4 unicast; }}
        static {{ route 10.13.0.0/24 next-hop 192.0.2.13 as-path [ 65013 4200000009 ]; }}
      }}"
    );
    Some(Daemon::start(&program, &config, |_| vec!["conf".into()]))
}

#[test]
fn two_octet_as_received_from_exabgp() {
    if !net::enter(&[]) {
        return;
    }
    let Some(daemon) = exabgp("asn4 disable;") else { return };
    let a = node(13, |_| ());
    let (_, unusable, path) = receives(&a, "10.13.0.0/24", &|| daemon.log());
    assert_eq!((unusable, &*path), (None, "65013 4200000009"));
    assert!(!a.peer("them").unwrap().session.unwrap().as4);
}

/// What ExaBGP sends with long ASes goes on to a BIRD that has none, with AS4_PATH beside; and BIRD's comes back so.
#[test]
fn two_octet_as_both_ways_with_bird() {
    if !net::enter(&[]) {
        return;
    }
    let config = "protocol bgp tortie from quick { local 192.0.2.9 port 1790 as 65009;
           neighbor 192.0.2.1 port 1790 as 64512; enable as4 off;
           ipv4 { import all;
             export filter { if source != RTS_STATIC then reject; bgp_path.prepend(4200000009); accept; }; }; }";
    let (Some(bird), Some(daemon)) = (Bird::start(config), exabgp("asn4 enable;")) else { return };
    let mut us = wants(9, |_| ());
    let mut exabgp = peer("192.0.2.13:1790", "192.0.2.1", 65013);
    exabgp.ipv6 = false;
    us.peers.insert("exabgp".into(), exabgp);
    let a = Node::start(us);
    let (_, unusable, path) = receives(&a, "10.9.0.0/24", &|| bird.log());
    assert_eq!((unusable, &*path), (None, "65009 4200000009"));
    assert!(!a.peer("them").unwrap().session.unwrap().as4);
    wait("the route of ExaBGP", || a.route("10.13.0.0/24").map_or_else(|| Err(daemon.log()), |_| Ok(())));
    bird.says("show route for 10.13.0.0/24 all", "BGP.as_path: 64512 65013 4200000009");
}
