//! `tortie replay --why`: the core's part of the explanation of a route, a session or an address.
//!
//! Calls the same decision functions as the live answers. The state of speaker and kernel is not recorded,
//! and each answer says so.

use std::net::IpAddr;

use tortie_bgp::State;
use tortie_config::key::{IpFamily, Key};
use tortie_net::Cidr;

use super::origin::PrefixOrigin;
use super::route::verdict;
use crate::agent::api::bgp::session_named;
use crate::agent::core::input::Now;
use crate::agent::core::view::CoreView;
use crate::api::explain::{Step, Verdict, Why};
use crate::api::status::ApiError;
use tortie_engine::routing::{self, FilterRoute, PeerIntent};

/// Limits of the evidence, part of each answer.
const NOT_LOOKED_AT: &str = "the BGP table and the kernel: a journal has the inputs of the core alone";

/// Question about the final state of a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// A prefix, and its announcement to a peer if one is given.
    Route(Cidr, Option<String>),
    /// A session, by session name, host name or address.
    Peer(String),
    /// An address.
    Address(IpAddr),
}

/// Answers a question about the core's state.
///
/// # Errors
/// Returns an error for an unknown peer and for an ambiguous name.
pub(in crate::agent) fn answer(core: CoreView<'_>, now: Now, question: &Question) -> Result<Why, ApiError> {
    let empty = |kind: &str, subject: String| {
        let mut why = Why::new(kind, core.model().node(), core.revision(), now.text(), subject);
        why.not_looked_at = vec![NOT_LOOKED_AT.to_owned()];
        why
    };
    match question {
        Question::Route(prefix, to) => {
            route(core, *prefix, to.as_deref(), empty("WhyRoute", prefix.to_string()))
        }
        Question::Peer(name) => peer(core, name, empty("WhyPeer", name.clone())),
        Question::Address(addr) => Ok(address(core, *addr, empty("WhyIp", addr.to_string()))),
    }
}

fn route(core: CoreView<'_>, prefix: Cidr, to: Option<&str>, mut why: Why) -> Result<Why, ApiError> {
    let origin = PrefixOrigin::of(&core, prefix);
    why.steps.extend(origin.step());
    why.steps.extend(origin.blackhole());
    let Some(intent) = core.intent() else {
        "nothing is decided yet: the store has not been read".clone_into(&mut why.answer);
        "not-loaded".clone_into(&mut why.code);
        return Ok(why);
    };
    let own = intent.originated.get(&prefix).is_some();
    let route = FilterRoute::local(prefix);
    let peers: Vec<(&String, &PeerIntent)> = match to {
        Some(name) => {
            let session = session_named(intent, name)?;
            intent.peers.get(session).map(|peer| (session, peer)).into_iter().collect()
        }
        None => intent.peers.iter().collect(),
    };
    let mut withheld = 0;
    for (session, peer) in &peers {
        let (decided, steps) =
            routing::explain_export(&intent.view, &peer.policy, peer.is_external(intent.asn), &route);
        withheld += usize::from(!decided.accept);
        if to.is_some() {
            why.steps.extend(
                steps.iter().map(|step| Step::new(verdict(step.outcome), step.name, step.text.clone())),
            );
        } else if !decided.accept {
            let text = format!("withheld from {session} by the gate {}", decided.gate);
            why.steps.push(Step::new(Verdict::Note, decided.gate, text));
        }
    }
    why.steps.extend(origin.history());
    let stop = why.stop().map(|step| step.name.clone());
    why.good = own && withheld == 0 && stop.is_none();
    let whom =
        to.map_or_else(|| format!("{} of {} peers", peers.len() - withheld, peers.len()), str::to_owned);
    why.answer = match (own, &stop) {
        (false, _) => format!("{prefix} is not originated by this host"),
        (true, Some(stop)) => format!("{prefix} is held back: {stop}"),
        (true, None) if to.is_some() && withheld > 0 => format!("{prefix} is withheld from {whom}"),
        (true, None) => format!("{prefix} is announced to {whom}"),
    };
    why.code = match (own, stop) {
        (false, _) => "not-originated".to_owned(),
        (true, Some(stop)) => stop,
        (true, None) if withheld > 0 => "withheld".to_owned(),
        (true, None) => "ok".to_owned(),
    };
    Ok(why)
}

fn peer(core: CoreView<'_>, name: &str, mut why: Why) -> Result<Why, ApiError> {
    let intent = core.intent();
    let found = intent.map(|intent| session_named(intent, name));
    let (session, wanted) = match (intent, found) {
        (Some(intent), Some(Ok(session))) => match intent.peers.get(session) {
            Some(wanted) => (session, wanted),
            None => return Err(unknown(name)),
        },
        (_, Some(Err(error))) if error.code != "not-found" => return Err(error),
        _ => {
            let model = core.model();
            let addr = name.parse().ok().or_else(|| model.host(name)?.addrs().next());
            let Some(addr) = addr else { return Err(unknown(name)) };
            let (_, steps) = routing::explain_peer(model, core.node_options(), addr);
            why.steps =
                steps.iter().map(|step| Step::new(Verdict::Stop, step.name, step.text.clone())).collect();
            why.answer = format!("no session with {name} is configured");
            "not-wanted".clone_into(&mut why.code);
            return Ok(why);
        }
    };
    let key = wanted.source.key(IpFamily::of(wanted.remote.ip()));
    let text = format!("{}, AS {}", wanted.source, wanted.asn);
    why.steps.push(
        Step::new(Verdict::Ok, "configured by", text)
            .of(core.model().name_of(&key), core.model().revision_of(&key)),
    );
    let record = core.peer(session);
    let state = record.and_then(|record| record.state).unwrap_or(State::Idle);
    why.good = state == State::Established;
    let verdict = if why.good { Verdict::Ok } else { Verdict::Stop };
    why.steps.push(Step::new(verdict, "state", state.as_str()));
    if let Some(error) = record.and_then(|record| record.error.as_ref()) {
        why.steps.push(Step::new(Verdict::Note, "last error", error.clone()));
    }
    if let Some(ended) = record.and_then(|record| record.ended.as_ref()) {
        let text = format!("{} ended after {} s: {}", ended.time, ended.lasted.as_secs(), ended.text);
        why.steps.push(Step::new(Verdict::Note, "last session", text));
    }
    if let Some(problem) = core.peer_problem(session) {
        why.steps.push(Step::new(Verdict::Stop, "problem", problem));
    }
    why.answer = format!("{session} is {}", state.as_str());
    why.code = if why.good { "ok".to_owned() } else { "not-established".to_owned() };
    Ok(why)
}

fn address(core: CoreView<'_>, addr: IpAddr, mut why: Why) -> Why {
    let model = core.model();
    let host = Cidr::host(addr);
    if let Some(pool) = core.intent().and_then(|intent| intent.view.pool_of(&host)) {
        why.steps.push(Step::new(Verdict::Note, "pool", pool.cidr.to_string()));
    }
    let block = model.own_blocks().map(|(block, _)| block).find(|block| block.covers(&host));
    if let Some(block) = block {
        why.steps.push(
            Step::new(Verdict::Ok, "block", format!("inside {block}, a block of this host"))
                .of(Key::Block(block).to_string(), None),
        );
    }
    let holders: Vec<String> = model
        .workloads(model.node())
        .filter(|workload| {
            workload.value.ipv4_nets.iter().chain(&workload.value.ipv6_nets).any(|net| net.covers(&host))
        })
        .map(|workload| Key::Endpoint(workload.key.clone()).to_string())
        .collect();
    for key in &holders {
        why.steps.push(Step::new(Verdict::Ok, "endpoint", "has this address").of(key.clone(), None));
    }
    let hosts: Vec<&str> = model.hosts_by_address(addr).map(|(host, _)| host).collect();
    for name in &hosts {
        why.steps.push(Step::new(Verdict::Ok, "host", format!("{name} has this address")));
    }
    why.good = !holders.is_empty() || !hosts.is_empty();
    why.code = if why.good { "ok".to_owned() } else { "not-held".to_owned() };
    why.answer = match (holders.len(), hosts.len(), block) {
        (0, 0, Some(block)) => {
            format!("no endpoint of this host has {addr}, which is inside its block {block}")
        }
        (0, 0, None) => format!("neither an endpoint of this host nor a host has {addr}"),
        (0, ..) => format!("{addr} is an address of {}", hosts.join(" and ")),
        _ => format!("{addr} is an address of {}", holders.join(" and ")),
    };
    why
}

fn unknown(name: &str) -> ApiError {
    ApiError { code: "not-found".to_owned(), text: format!("no peer or host `{name}` is known at that time") }
}
