//! Explains the state of a session: turns the evidence into an answer. Pure functions.

use std::net::IpAddr;
use std::time::Duration;

use tortie_config::counted;
use tortie_net::Cidr;

use super::cause::{Cause, cause};
use super::names::joined;
use crate::agent::core::peer_record::EndedSession;
use crate::api::bgp::{MessageError, Peer};
use crate::api::explain::{Step, Verdict, Why};
use crate::api::span;
use crate::host_checks::TcpDropped;
use crate::speaker::connect_failure;
use tortie_kernel::NeighbourEntry;

/// Maximum number of octets of a message that are shown.
const MESSAGE_OCTETS_MAX: usize = 64;

/// Evidence on a session.
#[derive(Debug, Clone)]
pub(super) struct PeerEvidence {
    pub(super) peer: Peer,
    /// Key of the store that configures the session, if there is one; its revision.
    pub(super) key: Option<String>,
    pub(super) revision: Option<u64>,
    pub(super) attempts: Attempts,
    /// Code and subcode of the NOTIFICATION that ended the last session or attempt.
    pub(super) notification: Option<(u8, u8)>,
    /// The last established session.
    pub(super) last_session: Option<EndedSession>,
    /// Seconds since its end.
    pub(super) down: Option<u64>,
    pub(super) protection: TcpProtection,
    /// Local AS number towards the peer.
    pub(super) local_as: u32,
    pub(super) max_prefixes: Option<u32>,
    /// Problem with the configuration on this host.
    pub(super) problem: Option<String>,
    pub(super) path: Path,
    pub(super) remote: RemoteStatus,
    /// Blocks of the remote host, and true for those that another path leads to; `None` if the peer is no
    /// host of the cluster or its blocks were not read.
    pub(super) blocks: Option<Vec<(Cidr, bool)>>,
    /// Code and text of the peer's problems in `status`.
    pub(super) status: Vec<(String, String)>,
    /// Segments of all connections that TCP of this host dropped because of keys and TTLs.
    pub(super) dropped: TcpDropped,
}

/// Connection attempts since the session was last up.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempts {
    pub(super) failed: u32,
    pub(super) next: Option<Duration>,
    /// True if this host opens connections.
    pub(super) connects: bool,
    /// Local address of the attempts.
    pub(super) from: Option<IpAddr>,
    /// Remaining time in which the peer's connections are rejected after too many failures.
    pub(super) refused: Option<Duration>,
}

/// Protection of the TCP connection.
#[derive(Debug, Clone, Default)]
pub(super) struct TcpProtection {
    /// `TCP MD5 (RFC 2385)` or `TCP-AO (RFC 5925)`.
    pub(super) key: Option<&'static str>,
    /// GTSM: maximum distance in hops.
    pub(super) hops: Option<u8>,
}

/// Path to the peer according to this host's kernel.
#[derive(Debug, Clone)]
pub(super) enum Path {
    /// The path was not checked, for this reason.
    NotChecked(&'static str),
    /// The peer's address belongs to this host.
    Own,
    /// No route leads to the peer.
    None,
    /// A route leads to the peer.
    Via {
        interface: String,
        up: bool,
        mtu: u32,
        gateway: Option<IpAddr>,
        /// Covering route with the protocol that installed it.
        route: String,
        /// Neighbour entry of the next hop; `None` if no packet was sent recently.
        neighbour: Option<NeighbourEntry>,
    },
}

/// Status key of the remote host.
#[derive(Debug, Clone)]
pub(super) enum RemoteStatus {
    /// The peer is no host of the cluster.
    Router,
    /// The store was not read, or did not answer.
    ReadFailed(String),
    /// The host has no status key: no agent runs there, or it cannot reach the store.
    Absent,
    /// The content of the status key.
    Key { written: String, seconds: Option<u64>, ready: bool, up: usize, of: usize, version: String },
}

/// Completes an answer, which so far has only its metadata, from the evidence.
pub(super) fn answer(mut why: Why, e: &PeerEvidence) -> Why {
    let p = &e.peer;
    let cause = cause(e);
    let up = p.state == "Established";
    why.good = up && cause.code == "ok";
    let called = if p.name == p.address { String::new() } else { format!("{}, ", p.name) };
    let kind = match p.kind.as_str() {
        "mesh" => "node-to-node mesh",
        "global" => "peer of all hosts",
        "node" => "peer of this host",
        _ => "from a range",
    };
    why.answer = format!(
        "peer {} ({called}{kind}, AS {}) is {}, {} for {}",
        p.address,
        p.remote_as,
        p.state,
        if up { "up" } else { "down" },
        // Attempts change the state constantly, so the time since the session's end is shown.
        span(e.down.filter(|_| !up).unwrap_or(p.state_seconds))
    );
    why.steps = steps(e, &cause);
    why.code = cause.code.to_owned();
    why.certainty = cause.certainty;
    why.conclusion = Some(cause.text);
    why.effect = (!why.good).then(|| effect(e));
    why.fix = cause.fix;
    why.not_looked_at = not_looked_at(e);
    why
}

fn steps(e: &PeerEvidence, cause: &Cause) -> Vec<Step> {
    let p = &e.peer;
    let up = p.state == "Established";
    let mut steps = Vec::new();
    let mut add = |verdict, name: &str, text: String| steps.push(Step::new(verdict, name, text));
    let verdict_for =
        |codes: &[&str]| if codes.contains(&cause.code) { Verdict::Stop } else { Verdict::Note };

    add(Verdict::Ok, "configured by", format!("{}, AS {}", p.reason, p.remote_as));
    if let Some(text) = &p.shutdown {
        let text = if text.is_empty() { "without a reason" } else { text };
        add(Verdict::Stop, "shutdown", format!("by its value here: {text}"));
    }
    if let Some(text) = &e.problem {
        add(Verdict::Stop, "configuration", text.clone());
    }
    for (code, text) in &e.status {
        add(verdict_for(&[code.as_str()]), "status", format!("{text} ({code})"));
    }
    match (&e.last_session, up) {
        (_, true) => {
            let families: Vec<String> = p
                .families
                .iter()
                .map(|f| format!("{} {}/{} accepted, {} sent", f.afi, f.accepted, f.received, f.advertised))
                .collect();
            add(
                Verdict::Ok,
                "session",
                format!(
                    "up {}, hold {}s, keepalive {}s; {}",
                    span(p.state_seconds),
                    p.hold_seconds,
                    p.keepalive_seconds,
                    families.join("; ")
                ),
            );
        }
        (Some(last), false) => add(
            Verdict::Note,
            "last session",
            format!("up {}, ended {}: {}", span(last.lasted.as_secs()), last.time, last.text),
        ),
        (None, false) if p.flaps == 0 => {
            add(Verdict::Note, "last session", "none since the agent started".to_owned());
        }
        (None, false) => {
            add(Verdict::Note, "last session", format!("none is up; sessions lost before: {}", p.flaps))
        }
    }
    if p.flaps > 0 {
        add(Verdict::Note, "flaps", format!("{} since the agent started", p.flaps));
    }
    if let Some(error) = &p.last_message_error {
        let verdict = if up { Verdict::Note } else { verdict_for(&["message-error"]) };
        add(verdict, "message error", message(error));
    }
    if !up {
        let verdict = if e.attempts.connects { Verdict::Stop } else { Verdict::Note };
        let verdict = if e.problem.is_some() || p.shutdown.is_some() { Verdict::Skipped } else { verdict };
        add(verdict, "attempts", attempts(e));
    }
    if let Some(left) = e.attempts.refused {
        let text =
            format!("too many failed in a row: connections are refused for {} more", span(left.as_secs()));
        add(verdict_for(&["damped"]), "peer attempts", text);
    }
    let blocked = verdict_for(&["own-address", "no-route", "link-down", "no-neighbour", "host-unreachable"]);
    let verdict = if blocked == Verdict::Stop || up { blocked } else { Verdict::Ok };
    match &e.path {
        Path::NotChecked(_) => {}
        Path::Own => add(Verdict::Stop, "path", format!("{} is an address of this host", p.address)),
        Path::None => {
            let verdict = if verdict == Verdict::Ok { Verdict::Note } else { verdict };
            add(verdict, "path", format!("no route of the main table leads to {}", p.address));
        }
        Path::Via { .. } => add(verdict, "path", path(&e.path)),
    }
    let key =
        e.protection.key.map_or_else(|| "no TCP key here".to_owned(), |key| format!("{key} is set here"));
    let hops = match e.protection.hops {
        Some(hops) => {
            format!(
                "ttl_security: at most {} away (TTL {} or more)",
                counted(hops, "hop"),
                255 - u16::from(hops) + 1
            )
        }
        None => "no ttl_security here".to_owned(),
    };
    let TcpDropped { key: keys, ttl } = e.dropped;
    let dropped = match (keys, ttl) {
        (0, 0) => String::new(),
        _ => format!(
            "; TCP of this host dropped {} for their key and {ttl} for their TTL, of all peers",
            counted(keys, "segment")
        ),
    };
    add(verdict_for(&["tcp-key", "ttl-security"]), "guard", format!("{key}; {hops}{dropped}"));
    if let Some(bfd) = &p.bfd {
        let why = bfd.last_down.as_ref().map_or_else(String::new, |d| format!(", last down: {}", d.text));
        let verdict = if bfd.state == "Up" { Verdict::Ok } else { verdict_for(&["bfd"]) };
        add(verdict, "bfd", format!("{}{why}", bfd.state));
    }
    if p.graceful_restart != "idle" {
        add(Verdict::Note, "restart", p.graceful_restart.clone());
    }
    if let Some(max) = e.max_prefixes {
        let most = p.families.iter().map(|f| f.received).max().unwrap_or_default();
        add(verdict_for(&["max-prefixes"]), "prefix limit", format!("{most} of {max} in the fullest family"));
    }
    let remote = match &e.remote {
        RemoteStatus::Router => None,
        RemoteStatus::ReadFailed(_) => None,
        RemoteStatus::Absent => {
            Some("no status key: no agent runs there, or it cannot reach the store".to_owned())
        }
        RemoteStatus::Key { written, seconds, ready, up, of, version } => Some(format!(
            "status key of {}, written {}: {}, {up} of {of} sessions up, version {version}",
            p.name,
            seconds.map_or_else(|| written.clone(), |s| format!("{} ago", span(s))),
            if *ready { "ready" } else { "not ready" }
        )),
    };
    if let Some(text) = remote {
        add(Verdict::Note, "peer's view", text);
    }
    if let Some(first) = steps.first_mut() {
        first.key.clone_from(&e.key);
        first.revision = e.revision;
    }
    steps
}

fn message(error: &MessageError) -> String {
    let what = match error.code.as_str() {
        "notification_sent" => "we sent NOTIFICATION",
        "notification_received" => "they sent NOTIFICATION",
        "treat_as_withdraw" => "malformed-update: an UPDATE was treated as withdrawal (RFC 7606)",
        "attribute_discard" => "malformed-update: an attribute was left out (RFC 7606)",
        other => other,
    };
    let code = error.notification.map_or_else(String::new, |[code, sub]| format!(" {code}/{sub}"));
    let mut text = format!("{what}{code}: {} ({})", error.text, error.time);
    for (name, octets) in [("data", &error.data), ("offending message", &error.message)] {
        if !octets.is_empty() {
            let shown: String = octets.chars().take(MESSAGE_OCTETS_MAX * 2).collect();
            let more = if shown.len() < octets.len() { "..." } else { "" };
            text.push_str(&format!("; {name} {shown}{more}"));
        }
    }
    text
}

fn attempts(e: &PeerEvidence) -> String {
    let a = &e.attempts;
    if !a.connects {
        return "this end does not connect (passive_mode, or the peer has to): it waits for a connection"
            .to_owned();
    }
    let from = a.from.map_or_else(String::new, |addr| format!(" from {addr}"));
    let mut text = match &e.peer.last_error {
        None => format!("no attempt has ended yet{from}"),
        Some(error) => {
            let (_, errno) = connect_failure(&error.text);
            let errno = match (error.code.as_str(), errno) {
                ("connect_failed", errno) if !errno.is_empty() => format!("connect() = {errno}{from}: "),
                _ => String::new(),
            };
            format!("{} failed, the last at {}: {errno}{}", a.failed, error.time, error.text)
        }
    };
    if let Some(next) = a.next {
        text.push_str(&format!("; next in {}", span(next.as_secs())));
    }
    text
}

fn path(path: &Path) -> String {
    let Path::Via { interface, up, mtu, gateway, route, neighbour } = path else { return String::new() };
    let via = gateway.map_or_else(|| "on-link".to_owned(), |gateway| format!("via {gateway}"));
    let state = if *up { "up" } else { "DOWN" };
    let near = match neighbour {
        None => "no neighbour entry".to_owned(),
        Some(NeighbourEntry { mac: Some([a, b, c, d, x, y]), state }) => {
            format!("neighbour {a:02x}:{b:02x}:{c:02x}:{d:02x}:{x:02x}:{y:02x} {state}")
        }
        Some(NeighbourEntry { mac: None, state }) => {
            format!("neighbour {state}: no host answers for its address")
        }
    };
    format!("{route}, {via} on {interface} ({state}, MTU {mtu}), {near}")
}

/// Describes the effect on traffic.
fn effect(e: &PeerEvidence) -> String {
    let p = &e.peer;
    if p.state == "Established" {
        return "it still uses the routes that it received before: changes since then, including \
                withdrawals, have not reached it"
            .to_owned();
    }
    let stale: u64 = p.families.iter().map(|f| f.stale).sum();
    if stale > 0 {
        return format!("{stale} of its routes are kept as stale and still used ({})", p.graceful_restart);
    }
    match &e.blocks {
        Some(blocks) if blocks.is_empty() => {
            format!("{} has no blocks: nothing is missing from here", p.name)
        }
        Some(blocks) => {
            let lost: Vec<String> =
                blocks.iter().filter(|(_, there)| !there).map(|(block, _)| block.to_string()).collect();
            match (lost.len(), blocks.len()) {
                (0, all) => format!("other paths still reach {} of {}", counted(all, "block"), p.name),
                (1, _) => format!("1 block ({}) is unreachable from here", joined(&lost)),
                (n, _) => format!("{n} blocks ({}) are unreachable from here", joined(&lost)),
            }
        }
        None => "routes that only this peer announced are gone; nothing is announced to it".to_owned(),
    }
}

fn not_looked_at(e: &PeerEvidence) -> Vec<String> {
    let mut list = vec!["the configuration and the log of the peer".to_owned()];
    if let Path::NotChecked(why) = e.path {
        list.push(format!("the path ({why})"));
    }
    if let RemoteStatus::ReadFailed(why) = &e.remote {
        list.push(format!("its status key ({why})"));
    }
    list.push("firewalls outside of table inet tortie; no packet was sent for this answer".to_owned());
    list
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
