//! Random events in a network, then a quiet period, and the properties checked afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_bgp::attr::Attributes;
use tortie_bgp::{
    Family, Input, PathInfo, PathSource, PeerId, Reset, RouteMatch, RouteQuery, RouteTable, Speaker, State,
};
use tortie_net::Cidr;

use crate::net::Net;
use crate::reference::solve;
use crate::support::{Rng, cidr, route};
use crate::topology::Topology;

const SECOND: u64 = 1_000_000;
/// Longer than hold time, maximum dial interval, restart and stale timers together.
const PEACE: u64 = 400 * SECOND;

fn prefixes(rng: &mut Rng) -> Vec<Cidr> {
    let count = 2 + rng.below(30);
    (0..count)
        .map(|n| match n % 3 {
            2 => cidr(&format!("2001:db8:{n:x}::/48")),
            _ => cidr(&format!("10.{n}.0.0/16")),
        })
        .collect()
}

fn originate(net: &mut Net, rng: &mut Rng, all: &[Cidr]) {
    let node = rng.below(net.nodes.len());
    let announce = rng.below(3) > 0;
    let some: Vec<Cidr> = (0..=rng.below(4)).map(|_| all[rng.below(all.len())]).collect();
    for prefix in &some {
        if announce {
            net.nodes[node].origins.insert(*prefix);
        } else {
            net.nodes[node].origins.remove(prefix);
        }
    }
    let changes: Vec<_> = some.iter().map(|p| (*p, announce.then(route))).collect();
    net.give(node, Input::Local(&changes));
}

/// Causes or repairs one random failure.
fn disturb(net: &mut Net, rng: &mut Rng) {
    let node = rng.below(net.nodes.len());
    let link = rng.below(net.links.len());
    match rng.below(12) {
        0..=2 => net.cut(link),
        3 => {
            net.links[link].refuses ^= true;
            net.cut(link);
        }
        4 => {
            net.links[link].held ^= true;
            net.wake_all();
        }
        5 | 6 => {
            if net.nodes[node].up {
                if rng.below(2) == 0 {
                    net.give(node, Input::Shutdown { graceful: rng.below(2) == 0, text: "bye".into() });
                    net.run(rng.micros(100_000));
                }
                net.kill(node);
            } else {
                let kept = (rng.below(2) == 0).then(|| Family::ALL.to_vec());
                net.start(node, kept);
            }
        }
        7 => {
            net.nodes[node].stuck ^= true;
            net.wake_all();
        }
        8 => {
            let peers = &net.topology.adjacent[node];
            if peers.is_empty() {
                return;
            }
            let peer = PeerId(peers[rng.below(peers.len())].0 as u32);
            let reset = [Reset::SoftIn, Reset::SoftOut, Reset::Hard(String::new())][rng.below(3)].clone();
            net.give(node, Input::Reset(peer, reset));
        }
        9 | 10 => {
            let address = net.topology.address(rng.below(net.nodes.len()));
            let unreachable = &mut net.nodes[node].unreachable;
            if !unreachable.remove(&address) {
                unreachable.insert(address);
            }
            net.report_next_hop(node, address);
        }
        _ => {
            // The peer is removed from the configuration and added again.
            let peers = net.topology.peers(node);
            let Some((peer, config)) = peers.into_iter().next() else { return };
            net.give(node, Input::RemovePeer(PeerId(peer as u32)));
            net.run(rng.micros(SECOND));
            net.give(node, Input::Peer(PeerId(peer as u32), Box::new(config)));
        }
    }
}

/// Runs a random network through random events and a quiet period.
pub(crate) fn live(seed: u64, most: usize) -> Net {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9) ^ 0x51_AB);
    let size = 2 + rng.below(most.max(3) - 1);
    let topology = Topology::random(&mut rng, size);
    let mut net = Net::new(topology, rng.next());
    let all = prefixes(&mut rng);
    for _ in 0..all.len() {
        originate(&mut net, &mut rng, &all);
    }
    let steps = 20 + rng.below(30) + size;
    for _ in 0..steps {
        if rng.below(2) == 0 {
            originate(&mut net, &mut rng, &all);
        } else {
            disturb(&mut net, &mut rng);
        }
        let most = [1000, 200_000, 5 * SECOND, 60 * SECOND][rng.below(4).min(rng.clone().below(4))];
        net.run(rng.micros(most));
    }
    for link in &mut net.links {
        link.refuses = false;
        link.held = false;
    }
    for node in 0..net.nodes.len() {
        net.nodes[node].stuck = false;
        if !net.nodes[node].up {
            net.start(node, None);
        }
        for address in std::mem::take(&mut net.nodes[node].unreachable) {
            net.report_next_hop(node, address);
        }
    }
    net.wake_all();
    net.run(PEACE);
    net
}

fn table(speaker: &Speaker, table: RouteTable) -> BTreeMap<Cidr, Vec<PathInfo>> {
    let mut all = BTreeMap::new();
    for family in Family::ALL {
        let query = RouteQuery { table, matching: RouteMatch::All(family) };
        let mut after = None;
        loop {
            let page = speaker.routes(&query, after, 500);
            let Some(last) = page.last() else { break };
            after = Some(last.prefix);
            all.extend(page.into_iter().map(|r| (r.prefix, r.paths)));
        }
    }
    all
}

fn sent(speaker: &Speaker, which: RouteTable) -> BTreeMap<Cidr, Arc<Attributes>> {
    table(speaker, which).into_iter().map(|(prefix, paths)| (prefix, paths[0].attributes.clone())).collect()
}

/// Checks the properties. `Err` describes the violation.
pub(crate) fn check(net: &Net) -> Result<(), String> {
    let t = &net.topology;
    let now = std::time::Instant::now();
    for (a, b, _) in &t.links {
        for (near, far) in [(*a, *b), (*b, *a)] {
            let status = net.nodes[near].speaker.peer(PeerId(far as u32), now).ok_or("no such peer")?;
            if status.state != State::Established {
                return Err(format!("session {near}-{far} is {:?}: {:?}", status.state, status.last_down));
            }
            if let Some(f) = status.families.iter().find(|f| f.stale > 0 || !f.end_of_rib_received) {
                return Err(format!("session {near}-{far}: {f:?}"));
            }
            // The Adj-RIB-Out of one end equals the Adj-RIB-In of the other.
            let out = sent(&net.nodes[near].speaker, RouteTable::AdjOut(PeerId(far as u32)));
            let inn = sent(&net.nodes[far].speaker, RouteTable::AdjIn(PeerId(near as u32)));
            if out != inn {
                let wrong = out.keys().chain(inn.keys()).find(|p| out.get(p) != inn.get(p));
                let wrong = wrong.map(|p| (p, out.get(p), inn.get(p)));
                return Err(format!("{near} sends {far} what it does not have: {wrong:?}"));
            }
        }
    }
    let origins: Vec<Vec<Cidr>> = net.nodes.iter().map(|n| n.origins.iter().copied().collect()).collect();
    let expected = solve(t, &origins);
    for (n, node) in net.nodes.iter().enumerate() {
        let mut best = BTreeMap::new();
        for (prefix, paths) in table(&node.speaker, RouteTable::Loc) {
            let Some(path) = paths.first().filter(|p| p.best) else { continue };
            let from = match &path.source {
                PathSource::Local { .. } => None,
                PathSource::Peer { id, .. } => Some(id.0 as usize),
            };
            best.insert(prefix, (from, path.attributes.as_path.to_string()));
        }
        let want: BTreeMap<_, _> = expected[n]
            .iter()
            .map(|(p, r)| {
                let path: Vec<String> = r.path.iter().map(ToString::to_string).collect();
                (*p, (r.from, path.join(" ")))
            })
            .collect();
        if best != want {
            let wrong = best.keys().chain(want.keys()).find(|p| best.get(p) != want.get(p));
            let wrong = wrong.map(|p| (p, best.get(p), want.get(p)));
            return Err(format!("best path at {n}: (prefix, speaker, reference) {wrong:?}"));
        }
        // The reported changes add up to the table.
        let learned: Vec<_> =
            best.iter().filter(|(_, (from, _))| from.is_some()).map(|(p, (f, _))| (*p, *f)).collect();
        let reported: Vec<_> = node.best.iter().map(|(p, b)| (*p, Some(b.peer.0 as usize))).collect();
        if learned != reported {
            return Err(format!("take_best at {n} reported {reported:?}, the table has {learned:?}"));
        }
    }
    Ok(())
}
