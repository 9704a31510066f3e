//! Predicts the treatment of packets by the desired rules, with the interpreter. Tests of the whole program
//! compare it with the policy engine and with the kernel. Not part of release builds.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::nft::ir::Name;
use crate::nft::render::Renderer;
use crate::nft::simulate::interpret::{self, Conn, Route};
use tortie_engine::policy::path::{Flow, Place, Routes, State};
use tortie_engine::policy::{ChainId, Packet};

/// Treatment of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Simulated {
    /// Chain and rule (from 0) that dropped it.
    pub dropped: Option<(String, usize)>,
    /// The packet at the end. A masqueraded one still has its source.
    pub packet: Packet,
    /// True if its source became an address of the host.
    pub masqueraded: bool,
    /// True if conntrack ignores it.
    pub untracked: bool,
    /// Matched rules of policies and profiles, in order.
    pub matched: Vec<(ChainId, usize)>,
}

/// Sends packets through the desired rules.
///
/// # Panics
/// If a packet has no route.
#[must_use]
pub(crate) fn simulate(renderer: &Renderer, flows: &[Flow], routes: &Routes) -> Vec<Simulated> {
    let ids = renderer.ruleset().chains.keys();
    let places: BTreeMap<Name, &ChainId> = ids.filter_map(|id| Some((renderer.place_of(id)?, id))).collect();
    let origin = |(chain, at): &(Name, usize)| {
        let id = *places.get(chain)?;
        Some((id.clone(), *renderer.rules_of(id).get(*at)?))
    };
    let route = |addr| match routes.place(addr) {
        Some(Place::Host) => Route::Local,
        Some(Place::Interface(name)) => Route::Out(name),
        None => panic!("{addr} has no route"),
    };
    let one = |flow: &Flow| {
        let Packet { src, dst, protocol, ports, icmp } = flow.packet;
        let input = match &flow.from {
            Place::Host => None,
            Place::Interface(name) => Some(name.clone()),
        };
        let state = match flow.state {
            _ if flow.is_never_tracked() => Conn::Untracked,
            State::New => Conn::New,
            State::Established { reply } => Conn::Established { reply },
            State::Invalid => Conn::Invalid,
        };
        let packet = interpret::Packet { src, dst, protocol, ports, icmp, input, state, mark: 0 };
        let outcome = interpret::send(renderer.table(), packet, &routes.local, route);
        let (src, masqueraded): (IpAddr, bool) = match outcome.source {
            Some(Ok(other)) => (other, false),
            Some(Err(_)) => (src, true),
            None => (src, false),
        };
        Simulated {
            dropped: outcome.dropped.as_ref().map(|(chain, at)| (chain.to_string(), *at)),
            packet: Packet { src, dst: outcome.packet.dst, protocol, ports: outcome.packet.ports, icmp },
            masqueraded,
            untracked: outcome.packet.state == Conn::Untracked,
            matched: outcome.counted.iter().filter_map(origin).collect(),
        }
    };
    flows.iter().map(one).collect()
}
