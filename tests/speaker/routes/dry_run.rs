//! The BGP part of a dry run predicts the effect of a change: sessions reset, added and removed, and routes
//! to and from each peer that are gained, lost and changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie::speaker::{BgpChanges, RouteChanges};
use tortie_bgp::attr::Attributes;
use tortie_bgp::{Cidr, Family, PeerId, RouteMatch, RouteQuery, RouteTable, State, Unusable};
use tortie_config::resource::Filter;
use tortie_engine::routing::{
    Filters, NextHopMode, OriginKind, Originated, PoolView, RangeIntent, RoutingIntent,
};

use crate::rig::net;
use crate::rig::node::{Node, addr, cidr, intent, peer, wait};

const US: &str = "192.0.2.1";
/// Peers with their AS and their routes.
const PEERS: [(&str, &str, u32, &[&str]); 4] = [
    ("b", "192.0.2.2:1790", 64512, &["10.2.0.0/26", "10.2.1.0/26"]),
    ("c", "192.0.2.3:1790", 65003, &["10.3.0.0/26", "10.9.9.0/24"]),
    ("d", "192.0.2.4:1790", 65004, &["10.4.0.0/26", "10.9.9.0/24"]),
    ("e", "192.0.2.5:1790", 65005, &["10.5.0.0/26"]),
];

type Change = fn(&mut RoutingIntent);

/// Changes, each on top of the previous ones.
const CHANGES: &[(&str, Change)] = &[
    ("nothing", |_| ()),
    ("a block comes", |us| own(us, "10.1.5.0/26", true)),
    ("a filter withholds a route from one peer", |us| {
        filter(
            us,
            "f",
            &json!({"export": [{"match": {"prefixes": [{"cidr": "10.3.0.0/26"}]}, "then": "reject"}]}),
        );
        us.peers.get_mut("d").unwrap().policy.filters = vec!["f".into()];
    }),
    ("the filter tags what is announced", |us| {
        filter(
            us,
            "f",
            &json!({"export": [{"match": {}, "then": "next", "set": {"communities": {"add": ["64512:7"]}}}]}),
        );
    }),
    ("an import filter refuses a prefix, so that another path is best", |us| {
        filter(
            us,
            "g",
            &json!({"import": [{"match": {"prefixes": [{"cidr": "10.9.9.0/24"}]}, "then": "reject"}]}),
        );
        us.peers.get_mut("c").unwrap().policy.filters = vec!["g".into()];
    }),
    ("an import filter prefers a path", |us| {
        filter(us, "g", &json!({"import": [{"match": {}, "then": "accept", "set": {"local_pref": 300}}]}));
    }),
    ("routes inside pools are not taken from one peer", |us| {
        us.peers.get_mut("d").unwrap().policy.import_pools = false;
    }),
    ("one peer gets own routes only", |us| us.peers.get_mut("c").unwrap().policy.own_only = true),
    ("the pools are others", |us| pools(us, &["10.2.0.0/16", "10.9.0.0/16", "fd00::/8"])),
    ("another hold time", |us| us.peers.get_mut("b").unwrap().hold_time = Duration::from_secs(60)),
    ("a session without IPv6", |us| us.peers.get_mut("c").unwrap().ipv6 = false),
    ("the next hop of others is kept", |us| us.peers.get_mut("d").unwrap().next_hop = NextHopMode::Keep),
    ("a peer comes", |us| {
        let (name, at, asn, _) = PEERS[3];
        us.peers.insert(name.into(), peer(at, US, asn));
    }),
    ("a client of a reflector, another time, and a block goes", |us| {
        us.peers.get_mut("b").unwrap().reflector_client = Some(7);
        us.peers.get_mut("d").unwrap().hold_time = Duration::from_secs(33);
        own(us, "10.1.5.0/26", false);
    }),
    ("an endpoint takes an address", |us| {
        us.addresses.insert(addr("10.3.0.1"), ());
    }),
    ("a session is shut down", |us| us.peers.get_mut("c").unwrap().shutdown = Some("maintenance".into())),
    ("it is opened again", |us| us.peers.get_mut("c").unwrap().shutdown = None),
    ("a peer goes", |us| {
        us.peers.remove("e");
    }),
    ("it comes from a range", |us| {
        let (_, _, asn, _) = PEERS[3];
        let mut of_range = peer("192.0.2.0:1790", US, asn);
        of_range.dial_after = None;
        us.ranges.insert(
            "r".into(),
            RangeIntent { prefix: cidr("192.0.2.5/32"), max_sessions: 4, peer: of_range },
        );
    }),
    ("the range has another hold time", |us| {
        us.ranges.get_mut("r").unwrap().peer.hold_time = Duration::from_secs(45);
    }),
    ("the range goes", |us| {
        us.ranges.remove("r");
    }),
];

fn own(us: &mut RoutingIntent, block: &str, there: bool) {
    let view = Arc::make_mut(&mut us.view);
    let block = cidr(block);
    if there {
        let value = Originated {
            kind: OriginKind::OwnBlock,
            key: block.to_string().into(),
            revision: 1,
            priority: None,
        };
        us.originated.insert(block, value);
        view.own_blocks.insert(block);
    } else {
        us.originated.remove(&block);
        view.own_blocks.remove(&block);
    }
}

fn pools(us: &mut RoutingIntent, pools: &[&str]) {
    let pool = |text: &&str| PoolView { cidr: cidr(text), ipip: None, vxlan: None, disabled: false };
    Arc::make_mut(&mut us.view).pools = pools.iter().map(pool).collect();
}

/// Replaces one filter; the other one stays.
fn filter(us: &mut RoutingIntent, name: &str, value: &Value) {
    let keep = |name: &str| match name {
        "f" => {
            json!({"export": [{"match": {}, "then": "next", "set": {"communities": {"add": ["64512:7"]}}}]})
        }
        _ => json!({}),
    };
    let parse = |value: &Value| Filter::parse(value.to_string().as_bytes()).unwrap();
    let values = ["f", "g"].map(|each| {
        let value = if each == name { value.clone() } else { keep(each) };
        (each.to_owned(), Some(parse(&value)))
    });
    Arc::make_mut(&mut us.view).filters = Filters::from_values(values);
}

/// An established session: its connection, and the routes to and from it.
#[derive(Debug, Clone)]
struct Session {
    flaps: u32,
    id: PeerId,
    announced: Routes,
    used: Routes,
}

type Routes = BTreeMap<Cidr, Vec<Arc<Attributes>>>;

fn sessions(node: &Node) -> BTreeMap<String, Session> {
    node.ask(|view| {
        // Established, and the first table has gone both ways.
        let up = view.peers().into_iter().filter(|peer| {
            peer.state == State::Established
                && peer.families.iter().all(|family| family.end_of_rib_sent && family.end_of_rib_received)
        });
        let routes = |table: RouteTable| -> Routes {
            let all = Family::ALL.map(|family| {
                view.routes(RouteQuery { table, matching: RouteMatch::All(family) }, None, 1000)
            });
            let taken = all.into_iter().flatten().map(|route| {
                let paths = route.paths.into_iter();
                let paths = paths.filter(|path| !matches!(path.unusable, Some(Unusable::Filtered(_))));
                (route.prefix, paths.map(|path| path.attributes).collect::<Vec<_>>())
            });
            taken.filter(|(_, paths)| !paths.is_empty()).collect()
        };
        let session = |peer: tortie_bgp::PeerStatus| {
            let (announced, used) =
                (routes(RouteTable::AdjOut(peer.id)), routes(RouteTable::AdjInPost(peer.id)));
            (peer.name.to_string(), Session { flaps: peer.flaps, id: peer.id, announced, used })
        };
        up.map(session).collect()
    })
}

fn between(before: &Routes, after: &Routes) -> RouteChanges {
    let only = |of: &Routes, not: &Routes| of.keys().filter(|p| !not.contains_key(p)).copied().collect();
    RouteChanges {
        gained: only(after, before),
        lost: only(before, after),
        changed: after
            .iter()
            .filter(|(p, new)| before.get(p).is_some_and(|old| old != *new))
            .map(|(p, _)| *p)
            .collect(),
    }
}

/// Returns the actual changes in the form of the prediction.
fn happened(before: &BTreeMap<String, Session>, after: &BTreeMap<String, Session>) -> BgpChanges {
    let mut changes = BgpChanges::default();
    let none = Routes::new();
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (old, new) = (before.get(name), after.get(name));
        match (old, new) {
            (None, _) => changes.come.insert(name.clone()),
            (_, None) => changes.end.insert(name.clone()),
            (Some(old), Some(new)) if (old.id, old.flaps) != (new.id, new.flaps) => {
                changes.reset.insert(name.clone())
            }
            _ => false,
        };
        let of = |session: Option<&Session>, get: fn(&Session) -> &Routes| {
            session.map_or_else(|| none.clone(), |session| get(session).clone())
        };
        let routes = tortie::speaker::PeerRoutes {
            announced: between(&of(old, |s| &s.announced), &of(new, |s| &s.announced)),
            used: between(&of(old, |s| &s.used), &of(new, |s| &s.used)),
        };
        if !(routes.announced.is_empty() && routes.used.is_empty()) {
            changes.routes.insert(name.clone(), routes);
        }
    }
    changes
}

/// Waits until these sessions are up and all routes are stable.
fn settled(node: &Node, expected: &BTreeSet<String>) -> BTreeMap<String, Session> {
    let mut last = None;
    let mut since = Instant::now();
    wait("all to come to rest", || {
        let now = sessions(node);
        let snapshot = format!("{now:?}");
        let same = last.as_ref() == Some(&snapshot);
        if !same {
            since = Instant::now();
        }
        last = Some(snapshot);
        let names: BTreeSet<String> = now.keys().cloned().collect();
        if names == *expected && since.elapsed() > Duration::from_millis(700) {
            Ok(())
        } else {
            Err(format!("{names:?} for {:?}", since.elapsed()))
        }
    });
    sessions(node)
}

#[test]
fn what_a_dry_run_says_of_bgp_is_what_happens() {
    if !net::enter(&["2001:db8::1/128"]) {
        return;
    }
    let with_v6 = |mut peer: tortie_engine::routing::PeerIntent| {
        peer.local_v6 = Some(addr("2001:db8::1"));
        peer
    };
    let _others = PEERS.map(|(_, at, asn, blocks)| {
        let mut them = intent(at, asn, blocks);
        // It announces its own blocks, and has no pools of ours.
        pools(&mut them, &[]);
        let mut to_us = peer("192.0.2.1:1790", at.split(':').next().unwrap(), 64512);
        to_us.dial_after = Some(Duration::ZERO);
        them.peers.insert("us".into(), with_v6(to_us));
        Node::start(them)
    });
    let mut us = intent("192.0.2.1:1790", 64512, &["10.1.0.0/26", "fd00:1::/122"]);
    for (name, at, asn, _) in &PEERS[..3] {
        us.peers.insert((*name).into(), with_v6(peer(at, US, *asn)));
    }
    let mut node = Node::start(us);
    let mut expected: BTreeSet<String> = PEERS[..3].iter().map(|(name, ..)| (*name).to_owned()).collect();
    let mut before = settled(&node, &expected);
    let mut moved = (0, 0);
    for (what, change) in CHANGES {
        let old = node.intent.clone();
        change(&mut node.intent);
        let new = node.intent.clone();
        let said = node.ask(|view| view.rehearsal().unwrap()).compare(&old, &new);
        assert_eq!(said.not_judged, Vec::<String>::new(), "{what}");
        expected = expected
            .into_iter()
            .filter(|name| !said.end.contains(name))
            .chain(said.come.iter().cloned())
            .collect();
        let comes_itself = *what == "it comes from a range";
        let opened = *what == "it is opened again";
        if comes_itself {
            expected.insert("Dynamic_192.0.2.5".to_owned());
        }
        if opened {
            expected.insert("c".to_owned());
        }
        node.apply();
        let after = settled(&node, &expected);
        let mut happened = happened(&before, &after);
        if comes_itself || opened {
            // Dynamic peers, and routes of a session that was shut down, cannot be predicted.
            happened.come.clear();
            happened.routes.clear();
        }
        // Announcements of a new peer cannot be predicted.
        let mut said_of = said.clone();
        for name in &said.come {
            for of in [&mut happened, &mut said_of] {
                of.routes.entry(name.clone()).or_default().used = RouteChanges::default();
            }
            // They are sent to the others.
            for of in [&mut happened, &mut said_of] {
                for (other, routes) in &mut of.routes {
                    if other != name {
                        routes.announced.gained.retain(|prefix| !cidr("10.5.0.0/16").covers(prefix));
                    }
                }
                of.routes.retain(|_, routes| !(routes.announced.is_empty() && routes.used.is_empty()));
            }
        }
        if comes_itself || opened {
            said_of.routes.clear();
        }
        assert_eq!(said_of, happened, "{what}: said, and happened");
        moved.0 += said.routes.len();
        moved.1 += said.reset.len();
        before = after;
    }
    assert!(moved.0 > 12 && moved.1 >= 4, "{moved:?}");
    println!(
        "{} changes: {} differences of peers' routes and {} resets were as said",
        CHANGES.len(),
        moved.0,
        moved.1
    );
}
