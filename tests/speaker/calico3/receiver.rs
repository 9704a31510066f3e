//! The peers of a node: one BIRD with a table for each session. It announces some routes on each, and keeps what
//! it receives.

use std::collections::{BTreeMap, BTreeSet};

use super::cluster::Dice;
use super::objects::Objects;
use super::render::bird::PASSWORD;
use super::render::node::Cluster;
use super::render::peers::Session;

/// Attributes of a route, by name as BIRD writes them.
pub(super) type Route = BTreeMap<String, String>;
/// Routes by prefix.
pub(super) type Routes = BTreeMap<String, Route>;

const PROTOCOL: &str = "node";
const TABLE: &str = "received";
/// Asks a peer for what it received.
pub(super) const RECEIVED: &str = "show route table received protocol node all";

/// Prefixes that peers announce.
const V4: [&str; 12] = [
    "10.65.77.0/26",
    "10.65.1.0/26",
    "10.65.2.0/26",
    "10.65.200.1/32",
    "10.66.5.0/26",
    "10.67.5.0/26",
    "172.16.5.0/24",
    "203.0.113.5/32",
    "10.200.0.7/32",
    "192.0.2.0/24",
    "10.96.3.0/24",
    "10.65.1.40/32",
];
const V6: [&str; 7] = [
    "fd00:65:0:77::/122",
    "fd00:65:0:1::/122",
    "fd00:65:0:2::/122",
    "fd00:66:0:5::/122",
    "2001:db8:99::/48",
    "fd00:200::7/128",
    "fd00:96::30/124",
];

/// Returns the configurations of the peers of a node, one for each session: a BIRD has only one session with an
/// address and port.
pub(super) fn configurations(
    objects: &Objects,
    node: &str,
    sessions: &[Session],
    dice: &mut Dice,
) -> Vec<String> {
    let one = |(at, session)| configuration(objects, node, at, session, dice);
    sessions.iter().enumerate().map(one).collect()
}

fn configuration(objects: &Objects, node: &str, at: usize, session: &Session, dice: &mut Dice) -> String {
    let cluster = Cluster::of(objects);
    let own = cluster.node(node);
    let own_as = cluster.as_of(own);
    let v6 = session.is_v6();
    let channel = if v6 { "ipv6" } else { "ipv4" };
    let mut routes = feed(dice, v6, session.is_internal(own_as), own_as);
    let endpoints = objects.of("workloadendpoints");
    let own_workloads: Vec<&str> = endpoints
        .iter()
        .filter(|endpoint| endpoint.text("node") == node)
        .flat_map(|endpoint| endpoint.texts("ipNetworks"))
        .filter(|network| network.contains(':') == v6)
        .collect();
    // A workload of the node that moves to another one, or that another one has as well.
    if !own_workloads.is_empty() && session.is_internal(own_as) && dice.percent(30) {
        let pref = dice.pick(&[2_147_483_135_u64, 2_147_483_135, 2_147_482_623]);
        let network = *dice.pick(&own_workloads);
        let taken = routes.contains(&format!(" {network} "));
        if !taken {
            routes += &format!("  route {network} blackhole {{ bgp_local_pref = {pref}; }};\n");
        }
    }
    // A third party's next hop, on the same link.
    let third = if v6 { "2001:db8:51::99" } else { "198.51.100.99" };
    let next_hop = if dice.percent(25) { format!("bgp_next_hop = {third};") } else { String::new() };
    let address = own.address(v6).unwrap();
    let secret = if session.password { format!("password \"{PASSWORD}\";") } else { String::new() };
    let distance = session
        .ttl_security
        .map_or_else(|| "multihop;".to_owned(), |hops| format!("ttl security on; multihop {hops};"));
    format!(
        "log stderr all;\nrouter id 10.255.0.{};\nprotocol device {{ scan time 3600; }}\n\
         protocol direct {{ ipv4; ipv6; }}\n{channel} table {TABLE};\n\
         protocol static {{ {channel} {{ table {TABLE}; }};\n{routes}}}\n\
         protocol bgp {PROTOCOL} {{ local {} port {} as {}; neighbor {address} port {} as {};
           strict bind on; {distance} {secret} connect delay time 1; connect retry time 1; error wait time 1, 2;
           error forget time 2; allow local as 10; allow bgp_local_pref on; enforce first as off;
           {channel} {{ table {TABLE}; igp table master{}; import all;
             export filter {{ if (source = RTS_BGP) then reject; {next_hop} accept; }}; }}; }}\n",
        at + 1,
        session.address,
        session.port.unwrap_or(179),
        session.asn,
        cluster.port_of(own).unwrap_or(179),
        session.local_as.unwrap_or(own_as),
        if v6 { 6 } else { 4 },
    )
}

/// Returns some routes of a peer.
fn feed(dice: &mut Dice, v6: bool, internal: bool, own_as: u32) -> String {
    let prefixes: &[&str] = if v6 { &V6 } else { &V4 };
    let count = 1 + dice.below(4);
    let chosen: BTreeSet<&str> = (0..count).map(|_| *dice.pick(prefixes)).collect();
    let mut text = String::new();
    for prefix in chosen {
        let mut attributes = String::new();
        for (percent, statement) in [
            (30, "bgp_community.add((64512, 100)); ".to_owned()),
            (20, "bgp_community.add((65200, 5)); ".to_owned()),
            (20, "bgp_large_community.add((64512, 1, 2)); ".to_owned()),
            (20, "bgp_med = 5; ".to_owned()),
            (25, "bgp_path.prepend(65300); ".to_owned()),
            (8, format!("bgp_path.prepend({own_as}); ")),
            (8, "bgp_origin = ORIGIN_INCOMPLETE; ".to_owned()),
        ] {
            if dice.percent(percent) {
                attributes += &statement;
            }
        }
        if internal && dice.percent(75) {
            let pref = dice.pick(&[2_147_482_623_u64, 2_147_483_135, 50, 2_147_480_647]);
            attributes += &format!("bgp_local_pref = {pref}; ");
        }
        text += &format!("  route {prefix} blackhole {{ {attributes}}};\n");
    }
    text
}

/// Reads the answer of `show route ... all`.
pub(super) fn parse(text: &str) -> Routes {
    let mut routes = Routes::new();
    let mut prefix = String::new();
    for line in text.lines() {
        if let Some((name, value)) =
            line.trim_start().strip_prefix("BGP.").and_then(|rest| rest.split_once(": "))
        {
            let route = routes.entry(prefix.clone()).or_default();
            let mut value = value.trim().to_owned();
            if name == "next_hop" {
                // A link-local address may follow the global one.
                value = value.split(' ').next().unwrap_or_default().to_owned();
            }
            if name.contains("community") {
                value = sorted_groups(&value);
            }
            route.insert(name.to_owned(), value);
        } else if !line.starts_with(['\t', ' ']) && line.contains('[') {
            prefix = line.split_whitespace().next().unwrap_or_default().to_owned();
            routes.insert(prefix.clone(), Route::new());
        }
    }
    routes
}

/// Sorts values in brackets: a set of communities has no order.
fn sorted_groups(text: &str) -> String {
    let mut all: Vec<String> = text
        .split(')')
        .map(str::trim)
        .filter(|group| !group.is_empty())
        .map(|group| format!("{group})"))
        .collect();
    all.sort_unstable();
    all.join(" ")
}
