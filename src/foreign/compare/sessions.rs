//! Comparison of BGP sessions: peers of the store with sessions of BIRD.

use std::collections::BTreeSet;

use super::comparison::{CompareResult, Comparison, Plane};
use crate::foreign::intent::HostIntent;
use crate::foreign::types::{BirdProtocol, ForeignState};
use tortie_engine::routing::PeerIntent;

pub(super) fn compare(wanted: &HostIntent, found: &ForeignState, out: &mut Comparison) {
    let all: Vec<&BirdProtocol> = found.birds.iter().flat_map(|bird| bird.sessions()).collect();
    let mut met: BTreeSet<&str> = BTreeSet::new();
    for (name, peer) in &wanted.intent.peers {
        let called = all.iter().find(|session| session.name == *name);
        let there = called.or_else(|| all.iter().find(|s| s.neighbor == Some(peer.remote.ip())));
        match there {
            Some(session) => {
                met.insert(&session.name);
                one(name, peer, wanted.intent.asn, session, out);
            }
            None if found.bird_has_routes_of(peer.remote.is_ipv4()) => {
                out.put(
                    Plane::Session,
                    CompareResult::Missing,
                    name,
                    format!("BIRD has no session with {}", peer.remote.ip()),
                );
            }
            None => {
                let why = "no BIRD of this family answered on its control socket";
                out.put(Plane::Session, CompareResult::NotCompared, name, why);
            }
        }
    }
    for name in wanted.intent.ranges.keys() {
        out.put(Plane::Session, CompareResult::NotCompared, name, "dynamic peers are not configured in BIRD");
    }
    for session in all.iter().filter(|session| !met.contains(session.name.as_str())) {
        let text = match session.neighbor {
            Some(neighbor) => format!("BIRD has a session with {neighbor} that the store does not configure"),
            None => "BIRD has a session that the store does not configure".to_owned(),
        };
        out.put(Plane::Session, CompareResult::Extra, &session.name, text);
    }
}

fn one(name: &str, peer: &PeerIntent, own: u32, session: &BirdProtocol, out: &mut Comparison) {
    let wanted_as = (peer.asn != 0).then_some(peer.asn);
    let local = peer.local_asn.unwrap_or(own);
    let mut wrong = Vec::new();
    if session.neighbor.is_some_and(|addr| addr != peer.remote.ip()) {
        wrong.push(format!("its neighbor should be {}", peer.remote.ip()));
    }
    if let (Some(wanted), Some(there)) = (wanted_as, session.neighbor_as)
        && wanted != there
    {
        wrong.push(format!("the peer's AS is {there} in BIRD and {wanted} in the store"));
    }
    if let Some(there) = session.local_as.filter(|there| *there != local) {
        wrong.push(format!("the own AS is {there} in BIRD and {local} in the store"));
    }
    let state = session.info.split_whitespace().next().unwrap_or(&session.state);
    if !wrong.is_empty() {
        out.put(Plane::Session, CompareResult::Different, name, wrong.join("; "));
    } else if peer.shutdown.is_some() {
        match session.is_established() {
            true => {
                out.put(Plane::Session, CompareResult::Different, name, "is up, and the store shuts it down")
            }
            false => out.equal(Plane::Session),
        }
    } else if session.is_established() {
        out.equal(Plane::Session);
    } else {
        let text = format!("BIRD's session is not up ({state}): its routes are unknown");
        out.put(Plane::Session, CompareResult::NotCompared, name, text);
    }
}
