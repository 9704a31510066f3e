//! What a node announces to its peers and takes from them: Tortie's speaker, and BIRD with the configuration that
//! Calico's templates would make, each with the same peers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie::speaker::SpeakerOptions;
use tortie_bgp::attr::Attributes;
use tortie_bgp::{Family, RouteMatch, RouteQuery, RouteTable, State, Unusable};
use tortie_config::Dialect;
use tortie_engine::model::{Model, WatchPart};
use tortie_engine::routing::{self, NodeOptions, Password, RouterId};

use super::by_design::{self, Difference};
use super::cluster::{Dice, cluster};
use super::objects::Objects;
use super::receiver::{self, RECEIVED, Route, Routes};
use super::render::node::{Cluster, normal_priority};
use super::render::peers::{Session, sessions};
use super::render::{bird, frr};
use super::world::{Bird, Namespace, batch, connect, start_frr};
use crate::rig::net;
use crate::rig::node::Node;

/// Time limit for both sides to agree.
const PATIENCE: Duration = Duration::from_secs(120);
/// A difference that stays for this long, without any change, is one.
const REST: Duration = Duration::from_secs(20);

/// The program that takes the node's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Referee {
    Bird,
    Frr,
}

/// Number of compared sessions and prefixes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Compared {
    pub(super) clusters: usize,
    pub(super) sessions: usize,
    pub(super) announced: usize,
    pub(super) accepted: usize,
}

/// Returns the sessions of a node that can be established side by side; `None` if two have the same address.
pub(super) fn comparable(objects: &Objects, node: &str) -> Option<Vec<Session>> {
    let cluster = Cluster::of(objects);
    let all: Vec<Session> =
        sessions(&cluster, objects, node).into_iter().filter(|session| session.asn != 0).collect();
    let addresses: BTreeSet<_> = all.iter().map(|session| session.address).collect();
    (!all.is_empty() && addresses.len() == all.len()).then_some(all)
}

/// Returns the node of a cluster with the most sessions.
pub(super) fn node_of(objects: &Objects) -> Option<(String, Vec<Session>)> {
    let nodes = Cluster::of(objects).nodes;
    let all = nodes.iter().filter_map(|node| Some((node.name.clone(), comparable(objects, &node.name)?)));
    all.max_by_key(|(_, sessions)| sessions.len())
}

/// Returns Tortie's speaker for a node, in the namespace of the thread.
fn speaker(objects: &Objects, node: &str) -> Node {
    let mut model = Model::new(node);
    model.set_dialect(Dialect::V3);
    model.replace(WatchPart::All, &objects.snapshot());
    let v4 = Cluster::of(objects).node(node).v4;
    let router_id = if v4.is_some() { RouterId::Address } else { RouterId::Hash };
    let mut intent = routing::intent(&model, &NodeOptions { router_id, ..NodeOptions::default() });
    let names: Vec<String> = intent.peers.keys().cloned().collect();
    for name in names {
        let peer = intent.peers.get_mut(&name).unwrap();
        if peer.password.is_some() {
            // The operator's file with the secret.
            peer.password = Some(Password::Text(bird::PASSWORD.into()));
        }
    }
    Node::start_with(intent, SpeakerOptions::default())
}

/// Adds the routes to a node's workloads, as Felix does.
fn workload_routes(objects: &Objects, node: &str, namespace: &str) {
    let mut lines = Vec::new();
    for endpoint in objects.of("workloadendpoints").iter().filter(|endpoint| endpoint.text("node") == node) {
        let interface = endpoint.text("interfaceName");
        lines.push(format!("link add {interface} type veth peer name w{interface}"));
        lines.push(format!("link set w{interface} up"));
        lines.push(format!("link set {interface} up"));
        for network in endpoint.texts("ipNetworks") {
            let metric = normal_priority(objects, network.contains(':'));
            lines.push(format!("route add {network} dev {interface} metric {metric} proto 80"));
        }
    }
    batch(Some(namespace), &lines);
}

/// Returns the attributes of a path in BIRD's form.
fn in_birds_form(attributes: &Attributes) -> Route {
    let mut route = Route::new();
    let mut set = |name: &str, value: String| drop(route.insert(name.to_owned(), value));
    set("as_path", attributes.as_path.to_string());
    set("local_pref", attributes.local_pref.unwrap_or(100).to_string());
    let mut communities: Vec<String> =
        attributes.communities.iter().map(|c| format!("({},{})", c >> 16, c & 0xffff)).collect();
    communities.sort_unstable();
    if !communities.is_empty() {
        set("community", communities.join(" "));
    }
    let mut large: Vec<String> =
        attributes.large_communities.iter().map(|[a, b, c]| format!("({a}, {b}, {c})")).collect();
    large.sort_unstable();
    if !large.is_empty() {
        set("large_community", large.join(" "));
    }
    if let Some(med) = attributes.med {
        set("med", med.to_string());
    }
    route
}

/// Returns the routes that the speaker accepts from a peer, by prefix.
fn accepted_by_tortie(node: &Node, session: &Session) -> Routes {
    let (address, v6) = (session.address, session.is_v6());
    node.ask(move |view| {
        let peers = view.peers();
        let Some(peer) = peers.iter().find(|peer| peer.remote.ip() == address) else { return Routes::new() };
        let family = if v6 { Family::Ipv6Unicast } else { Family::Ipv4Unicast };
        let Some(id) = view.peer_id(&peer.name) else { return Routes::new() };
        let query = RouteQuery { table: RouteTable::AdjInPost(id), matching: RouteMatch::All(family) };
        let routes = view.routes(query, None, 1000);
        let accepted = routes.into_iter().filter_map(|route| {
            let path = route.paths.first()?;
            let refused = matches!(path.unusable, Some(Unusable::Filtered(_)));
            (!refused).then(|| (route.prefix.to_string(), in_birds_form(&path.attributes)))
        });
        accepted.collect()
    })
}

/// Keeps the attributes that an import may change.
fn imported(routes: Routes) -> Routes {
    let names = ["as_path", "local_pref", "community", "large_community", "med"];
    let keep = |mut route: Route| {
        route.retain(|name, _| names.contains(&name.as_str()));
        route
    };
    routes.into_iter().map(|(prefix, route)| (prefix, keep(route))).collect()
}

/// Removes the MED of 0 that FRR gives to its own routes.
fn without_zero_med(mut routes: Routes) -> Routes {
    for route in routes.values_mut() {
        route.retain(|name, value| name != "med" || value != "0");
    }
    routes
}

/// Returns the differences between two tables of a session, and counts those by design.
fn differences(
    (objects, node, session, frr): (&Objects, &str, &Session, bool),
    offered: &BTreeMap<String, u64>,
    received: bool,
    [tortie, other]: [&Routes; 2],
    excused: &mut BTreeMap<&'static str, usize>,
) -> Vec<String> {
    let prefixes: BTreeSet<&String> = tortie.keys().chain(other.keys()).collect();
    let mut all = Vec::new();
    for prefix in prefixes.into_iter().filter(|prefix| tortie.get(*prefix) != other.get(*prefix)) {
        let (tortie, other) = (tortie.get(prefix), other.get(prefix));
        let offered = offered.get(prefix).copied();
        let difference = Difference { objects, node, session, received, prefix, tortie, other, frr, offered };
        match by_design::reason(&difference) {
            Some(reason) => *excused.entry(reason).or_default() += 1,
            None => all.push(format!(
                "{} {} {prefix}:\n    Tortie {tortie:?}\n    other  {other:?}",
                if received { "from" } else { "to" },
                session.name,
            )),
        }
    }
    all
}

/// Compares one node of the cluster of a seed; `None` if it cannot run here.
pub(super) fn compare(
    seed: u64,
    referee: Referee,
    compared: &mut Compared,
    excused: &mut BTreeMap<&'static str, usize>,
) -> Option<Vec<String>> {
    let objects = cluster(seed);
    let Some((name, sessions)) = node_of(&objects) else { return Some(Vec::new()) };
    if referee == Referee::Frr && !frr::can_say(&objects, &name, &sessions) {
        return Some(Vec::new());
    }
    if !net::enter(&[]) {
        return None;
    }
    let values = Cluster::of(&objects);
    let own = values.node(&name);
    let text = |addr: &std::net::IpAddr| addr.to_string();
    let own_addresses: Vec<String> = [own.v4, own.v6].iter().flatten().map(text).collect();
    let others: Vec<String> = sessions.iter().map(|session| text(&session.address)).collect();

    let [peers_1, peers_2, node_2] =
        ["p1", "p2", "n2"].map(|kind| Namespace::new(&format!("{referee:?}{seed}{kind}")));
    connect(None, &peers_1, &own_addresses, &others);
    connect(Some(&node_2.0), &peers_2, &own_addresses, &others);
    let configs = receiver::configurations(&objects, &name, &sessions, &mut Dice::new(seed ^ 0xfeed));
    let start = |namespace: &Namespace| -> Option<Vec<Bird>> {
        configs.iter().map(|config| Bird::start(&namespace.0, config)).collect()
    };
    let (receivers_1, receivers_2) = (start(&peers_1)?, start(&peers_2)?);
    let (rendered, bird, _frr) = match referee {
        Referee::Bird => {
            workload_routes(&objects, &name, &node_2.0);
            let rendered = bird::configuration(&objects, &name);
            let bird = Bird::start(&node_2.0, &rendered)?;
            (rendered, Some(bird), None)
        }
        Referee::Frr => {
            let rendered = frr::configuration(&objects, &name);
            let port = values.port_of(own).unwrap_or(179);
            let frr = start_frr(&node_2.0, &rendered, port, &own_addresses)?;
            (rendered, None, Some(frr))
        }
    };
    let tortie = speaker(&objects, &name);

    let end = Instant::now() + PATIENCE;
    let (mut calm, mut changed) = (0, Instant::now());
    let mut last = Vec::new();
    let mut before: Vec<[Routes; 4]> = Vec::new();
    loop {
        std::thread::sleep(Duration::from_millis(400));
        let all = receivers_1.iter().chain(&receivers_2).chain(&bird);
        let down: Vec<String> = all.clone().flat_map(Bird::down).collect();
        if !down.is_empty() {
            if Instant::now() > end {
                let states: Vec<_> = tortie.ask(|view| {
                    view.peers()
                        .into_iter()
                        .filter(|p| p.state != State::Established)
                        .map(|p| format!("{p:#?}"))
                        .collect()
                });
                let logs: Vec<String> = all.map(Bird::log).collect();
                last.push(format!("not established: {down:#?}\n{}\n{}", states.join("\n"), logs.join("\n")));
                last.extend(configs.iter().cloned());
                break;
            }
            continue;
        }
        let tables: Vec<[Routes; 4]> = sessions
            .iter()
            .enumerate()
            .map(|(at, session)| {
                let (to_1, to_2) = (receivers_1[at].routes(RECEIVED), receivers_2[at].routes(RECEIVED));
                let Some(bird) = &bird else {
                    return [without_zero_med(to_1), without_zero_med(to_2), Routes::new(), Routes::new()];
                };
                let taken = bird.routes(&format!("show route protocol '{}' all", session.name));
                [to_1, to_2, imported(accepted_by_tortie(&tortie, session)), imported(taken)]
            })
            .collect();
        if tables == before {
            calm += 1;
        } else {
            (calm, changed) = (0, Instant::now());
        }
        before = tables;
        last.clear();
        let mut reasons = BTreeMap::new();
        let mut offered: BTreeMap<String, u64> = BTreeMap::new();
        for (prefix, route) in before.iter().flat_map(|[_, _, _, taken]| taken) {
            let pref = route.get("local_pref").and_then(|pref| pref.parse().ok()).unwrap_or(100);
            let greatest = offered.entry(prefix.clone()).or_default();
            *greatest = pref.max(*greatest);
        }
        for (session, [to_1, to_2, from_1, from_2]) in sessions.iter().zip(&before) {
            let place = (&objects, name.as_str(), session, referee == Referee::Frr);
            last.extend(differences(place, &offered, false, [to_1, to_2], &mut reasons));
            last.extend(differences(place, &offered, true, [from_1, from_2], &mut reasons));
        }
        if (calm >= 2 && last.is_empty()) || changed.elapsed() > REST || Instant::now() > end {
            compared.clusters += 1;
            compared.sessions += sessions.len();
            for [to, _, from, _] in &before {
                compared.announced += to.len();
                compared.accepted += from.len();
            }
            for (reason, count) in reasons {
                *excused.entry(reason).or_default() += count;
            }
            break;
        }
    }
    if !last.is_empty() {
        last.extend(before.iter().zip(&sessions).flat_map(|([to_1, to_2, ..], session)| {
            let differ =
                to_1.keys().chain(to_2.keys()).filter(|prefix| to_1.get(*prefix) != to_2.get(*prefix));
            differ.map(|prefix| explained(&tortie, session, prefix)).collect::<Vec<_>>()
        }));
        let all: Vec<String> =
            objects.0.iter().filter(|(key, _)| relevant(key)).map(|(key, value)| shown(key, value)).collect();
        last.push(format!("{}\n{rendered}", all.join("\n")));
    }
    Some(last.into_iter().map(|line| format!("cluster {seed}, {name}: {line}")).collect())
}

/// Returns the decision of Tortie about an own route.
fn explained(tortie: &Node, session: &Session, prefix: &str) -> String {
    let prefix = prefix.parse().unwrap();
    let peer = tortie.intent.peers.values().find(|peer| peer.remote.ip() == session.address).unwrap();
    let answer = routing::suppose_export(&tortie.intent, peer, &routing::FilterRoute::local(prefix));
    let originated = tortie.intent.originated.get(&prefix);
    format!("    {prefix} to {}: originated as {originated:?}, {answer:?}", session.name)
}

fn relevant(key: &str) -> bool {
    ["nodes/", "bgp", "ippools", "/block/"].iter().any(|part| key.contains(part))
        && !key.contains("assignment")
}

fn shown(key: &str, value: &Value) -> String {
    let value = if value["spec"].is_null() { value } else { &value["spec"] };
    format!("{} {value}", key.trim_start_matches("/calico/resources/v3/projectcalico.org/"))
}

/// Compares the clusters of these seeds, several at a time.
pub(super) fn run(seeds: Vec<u64>, referee: Referee, at_once: usize) {
    let queue = std::sync::Mutex::new(seeds.into_iter());
    let totals = std::sync::Mutex::new((Compared::default(), BTreeMap::new(), Vec::new()));
    let work = || {
        while let Some(seed) = { queue.lock().unwrap().next() } {
            // Each in a thread of its own: a thread enters its namespace for good.
            let (mut compared, mut excused) = (Compared::default(), BTreeMap::new());
            let found = std::thread::scope(|scope| {
                scope.spawn(|| compare(seed, referee, &mut compared, &mut excused)).join().unwrap()
            });
            let Some(found) = found else { return };
            let mut totals = totals.lock().unwrap();
            totals.0.clusters += compared.clusters;
            totals.0.sessions += compared.sessions;
            totals.0.announced += compared.announced;
            totals.0.accepted += compared.accepted;
            for (reason, count) in excused {
                *totals.1.entry(reason).or_insert(0_usize) += count;
            }
            totals.2.extend(found);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    let (compared, excused, found) = totals.into_inner().unwrap();
    println!("{compared:?}; by design different: {excused:#?}");
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    assert!(compared.announced > 2 * compared.clusters, "{compared:?}");
    assert!(referee == Referee::Frr || compared.accepted > compared.clusters, "{compared:?}");
}

#[test]
fn bird_in_its_place_announces_and_accepts_the_same() {
    run((0..12).collect(), Referee::Bird, 4);
}

#[test]
#[ignore = "a minute: the same for a hundred clusters"]
fn long_bird_in_its_place_announces_and_accepts_the_same_in_a_hundred_clusters() {
    run((0..100).collect(), Referee::Bird, 4);
}

#[test]
fn frr_in_its_place_announces_the_same() {
    run((0..30).collect(), Referee::Frr, 4);
}

#[test]
#[ignore = "a minute: the same for a hundred clusters"]
fn long_frr_in_its_place_announces_the_same_in_a_hundred_clusters() {
    run((0..100).collect(), Referee::Frr, 4);
}
