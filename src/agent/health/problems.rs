//! Problems of the agent and its host, most severe first, each with the command that explains it; and the
//! overall verdict.

use std::time::Duration;

use tortie_config::calico3::Problem as ObjectProblem;
use tortie_config::counted;
use tortie_config::key::{Key, Scope};
use tortie_config::resource::Setting;

use crate::agent::core::snapshot::{CoreSnapshot, PeerSnapshot, RouteExchange};
use crate::agent::health::kernel_snapshot::KernelSnapshot;
use crate::api::codes::{self, Code, Kind};
use crate::api::problem::{Problem, Subject};
use crate::api::span;
use crate::host_checks::pool_overlap_text;
use tortie_engine::routing::RoutingIntent;
use tortie_kernel::{Drift, vxlan_device};

/// If a code has more problems than this, they are combined into one.
const LISTED: usize = 20;
/// Maximum age of the store's revision; the watch confirms freshness every second.
const STALE: Duration = Duration::from_secs(20);

/// Builds a problem whose subject is its name.
fn named(code: &Code, name: impl Into<String>, text: impl Into<String>) -> Problem {
    let name = name.into();
    code.problem(&name.clone(), name, text)
}

/// Returns the problems of the agent, most severe first.
pub(in crate::agent) fn problems(facts: &CoreSnapshot, kernel: Option<&KernelSnapshot>) -> Vec<Problem> {
    let mut out = Vec::new();
    store(facts, &mut out);
    sessions(facts, &mut out);
    dataplane(facts, kernel, &mut out);
    addresses(facts, &mut out);
    agent(facts, &mut out);
    out.extend(facts.host_problems.iter().cloned());
    out.sort_by_key(|problem| codes::weight(&problem.code));
    out
}

fn store(facts: &CoreSnapshot, out: &mut Vec<Problem>) {
    if let Some(frozen) = &facts.frozen {
        let problem = freeze_code(frozen.code).problem("", "store", frozen.text.clone());
        out.push(Problem { next: frozen.next.clone(), ..problem });
    }
    if facts.has_v1_keys {
        let text = "the store has keys of the v1 data model and objects of Calico 3: the objects are used; \
                    one of the two is a leftover";
        out.push(codes::MIXED_MODELS.problem("", "store", text));
    }
    if let Some(away) = &facts.store_unreachable {
        let (code, text) = if facts.store_damaged {
            (&codes::STORE_DAMAGED, format!("{away}. The last good state stays in force until then"))
        } else {
            let next = "the last good state stays in force, and the agent retries";
            (&codes::STORE_AWAY, format!("{away}; {next}"))
        };
        out.push(named(code, "store", text));
    }
    if facts.from_cache && facts.store_unreachable.is_none() && facts.frozen.is_none() {
        let text = "running from the cache on disk: the store has not answered yet, and the agent retries";
        out.push(named(&codes::FROM_CACHE, "store", text));
    }
    if facts.connected && facts.store_unreachable.is_none() && facts.lag > STALE {
        let text = format!(
            "for {} the store has not confirmed that revision {} is the newest: the state in force may be \
             old",
            span(facts.lag.as_secs()),
            facts.revision
        );
        out.push(named(&codes::STALE_REVISION, "store", text));
    }
    for value in facts.invalid.iter().take(50) {
        let object = &value.object;
        let meant_for = match object.may_act_on.as_slice() {
            [] => String::new(),
            some => {
                let (shown, more) = some.split_at(some.len().min(5));
                let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                format!("; it may have been meant to apply to {}{more}", shown.join(", "))
            }
        };
        let text = format!("{}; {}{meant_for}", object.error, value.consequence);
        let problem = named(&codes::INVALID_VALUE, value.name.clone(), text);
        out.push(problem.about(Subject::Key(object.key.clone())));
    }
    let of_objects = facts.object_problems.iter().take(50);
    out.extend(of_objects.filter(|problem| object_code(problem.code).0 == Kind::Problem).map(object_problem));
}

/// Returns the code of an object's problem, and whether it is a problem or a note. A code of a newer
/// projection counts as a value that cannot be read.
fn object_code(name: &str) -> (Kind, &'static Code) {
    let known = |kind| codes::find(kind, name).map(|code| (kind, code));
    known(Kind::Problem).or_else(|| known(Kind::Note)).unwrap_or((Kind::Problem, &codes::INVALID_VALUE))
}

/// Returns the problem of an object of Calico 3.
fn object_problem(problem: &ObjectProblem) -> Problem {
    let key = problem.key.to_string();
    let next = format!("tortie store get {key}");
    let (_, code) = object_code(problem.code);
    let problem = named(code, problem.key.title(), problem.text.clone()).about(Subject::Key(key));
    Problem { next, ..problem }
}

/// Returns the notes about objects of Calico 3.
pub(in crate::agent) fn object_notes(facts: &CoreSnapshot) -> impl Iterator<Item = Problem> + '_ {
    let notes = facts.object_problems.iter().filter(|problem| object_code(problem.code).0 == Kind::Note);
    notes.take(50).map(object_problem)
}

/// Returns the problem code of a freeze.
fn freeze_code(reason: &str) -> &'static Code {
    let own = [
        &codes::CALICO_3,
        &codes::DUPLICATE_NODE,
        &codes::HOST_RENAMED,
        &codes::UNKNOWN_WORKLOADS,
        &codes::STORE_REWOUND,
    ];
    own.into_iter().find(|code| code.name == reason).unwrap_or(&codes::FROZEN)
}

fn sessions(facts: &CoreSnapshot, out: &mut Vec<Problem>) {
    for (addr, error) in &facts.listen_failed {
        out.push(named(&codes::LISTEN, addr.clone(), format!("cannot listen: {error}")));
    }
    for (name, text) in &facts.peer_problems {
        let mut problem =
            named(&codes::PEER_CONFIGURATION, name.clone(), text.clone()).about(Subject::Peer(name.clone()));
        if name.contains("_range_") {
            "tortie bgp ranges".clone_into(&mut problem.next);
            problem.about = Subject::Range(name.clone());
        }
        out.push(problem);
    }
    // A dynamic peer that is down is not a problem: the configuration does not require it to be up.
    let full = facts.ranges.iter().filter(|r| r.refused > 0 && r.sessions >= r.max_sessions);
    out.extend(full.map(|r| {
        let text = format!(
            "full with {}; {} refused: raise max_sessions in its value",
            counted(r.sessions, "session"),
            counted(r.refused, "connection")
        );
        codes::RANGE_FULL
            .problem(&r.name, format!("range {}", r.prefix), text)
            .about(Subject::Range(r.name.clone()))
    }));
    let down: Vec<_> = facts.peers.iter().filter(|(_, p)| p.is_missing()).collect();
    for (session, peer) in down.iter().take(LISTED) {
        let why = peer.error.clone().map_or_else(String::new, |e| format!(", {e}"));
        let seconds = peer.since.map_or(0, |since| since.as_secs());
        let text = format!("{} for {}{why}", peer.state, span(seconds));
        let subject = format!("peer {} ({}, {})", peer.name, peer.address, peer.kind);
        out.push(codes::PEER_DOWN.problem(session, subject, text).about(Subject::Peer((*session).clone())));
    }
    if down.len() > LISTED {
        let text = format!("{} more are down", down.len() - LISTED);
        out.push(Problem {
            next: "tortie bgp peers".to_owned(),
            ..codes::PEER_DOWN.problem("", "peers", text)
        });
    }
}

fn dataplane(facts: &CoreSnapshot, kernel: Option<&KernelSnapshot>, out: &mut Vec<Problem>) {
    for (pool, what) in &facts.pool_overlaps {
        let text = pool_overlap_text(pool, what);
        out.push(codes::POOL_OVER_NETWORK.problem(&pool.to_string(), format!("pool {pool}"), text));
    }
    for (block, why) in &facts.withheld_blocks {
        let text =
            format!("no blackhole and no announcement: {why}; its addresses in use are announced one by one");
        out.push(named(&codes::BLOCK_WITHHELD, block.to_string(), text).about(Subject::Prefix(*block)));
    }
    for (block, why) in &facts.refused {
        out.push(
            named(&codes::BLACKHOLE, block.to_string(), format!("not announced: {why}"))
                .about(Subject::Prefix(*block)),
        );
    }
    for (prefix, why) in facts.failed_routes.iter().take(10) {
        out.push(
            named(&codes::ROUTE_FAILED, prefix.to_string(), why.clone()).about(Subject::Prefix(*prefix)),
        );
    }
    for hop in facts.unreachable.iter().take(3) {
        let text = "the kernel has no route to it, so no route with this next hop is used";
        out.push(Problem {
            next: format!("tortie route get {hop}"),
            ..codes::ROUTE_WITHHELD.problem("", format!("next hop {hop}"), text)
        });
    }
    let failed = &facts.failed_endpoints;
    for (name, why) in failed.iter().take(LISTED) {
        out.push(
            codes::ENDPOINT_FAILED
                .problem(name, format!("endpoint {name}"), why.clone())
                .about(Subject::Endpoint(name.clone())),
        );
    }
    if failed.len() > LISTED {
        let text = format!("{} more are not in their desired state", failed.len() - LISTED);
        out.push(Problem {
            next: "tortie endpoint list".to_owned(),
            ..codes::ENDPOINT_FAILED.problem("", "endpoints", text)
        });
    }
    if let Some(text) = &facts.tunnel_problem {
        let vxlan = [true, false].map(vxlan_device).into_iter().find(|device| text.starts_with(device));
        let device = vxlan.unwrap_or("tunl0");
        out.push(named(&codes::TUNNEL, device, text.clone()).about(Subject::Interface(device.to_owned())));
    }
    if let Some(text) = &facts.tunnel_address_problem {
        out.push(named(&codes::TUNNEL_ADDRESS, "tunnel address", text.clone()));
    }
    if let Some(text) = &facts.rules_problem {
        let text = format!("{text}; give --policy off if that is intended");
        out.push(named(&codes::RULES, "packet rules", text));
    }
    let Some(kernel) = kernel else { return };
    for (prefix, reason) in &kernel.withheld {
        let why = codes::find(Kind::Kernel, reason).map_or("", |code| code.about);
        let more = match kernel.counts.withheld - kernel.withheld.len() {
            0 => String::new(),
            more => format!(" ({} withheld)", counted(more, "more route")),
        };
        let text = format!("not in the kernel, {reason}: {why}{more}");
        out.push(named(&codes::ROUTE_WITHHELD, prefix.to_string(), text).about(Subject::Prefix(*prefix)));
    }
    if kernel.drift.count > 0 && facts.settled {
        let text = format!("{} differ: {}", kernel.drift.count, kernel.drift.first.join("; "));
        out.push(codes::DRIFT.problem("routes", "kernel routes", text));
    }
    // With rules off, all objects differ, and another problem says so.
    if kernel.rules_drift > 0 && facts.policy.in_sync && facts.rules_problem.is_none() {
        let text = format!("{} not in the desired state", counted(kernel.rules_drift, "object"));
        out.push(codes::DRIFT.problem("rules", "packet rules", text));
    }
}

/// Returns the drift of BIRD's sessions in observe mode.
pub(in crate::agent) fn sessions_differ(drift: &Drift) -> Option<Problem> {
    (drift.count > 0).then(|| {
        let text = format!("{} differ: {}", drift.count, drift.first.join("; "));
        codes::DRIFT.problem("sessions", "BGP sessions", text)
    })
}

fn addresses(facts: &CoreSnapshot, out: &mut Vec<Problem>) {
    for (addr, holders) in facts.duplicates.iter().take(10) {
        let text = format!("several endpoints of this host have it: {}", holders.join(", "));
        out.push(named(&codes::DUPLICATE_ADDRESS, addr.to_string(), text).about(Subject::Address(*addr)));
    }
    let suspects = &facts.collected.leak_candidates;
    if let Some(first) = suspects.first() {
        let more =
            if suspects.len() > 1 { format!(" and {} more", suspects.len() - 1) } else { String::new() };
        let text = format!(
            "{first}{more} in blocks of this host: allocated, but no endpoint and no interface has it"
        );
        let subject = counted(suspects.len(), "suspect address");
        out.push(codes::LEAKED_ADDRESSES.problem("", subject, text));
    }
}

fn agent(facts: &CoreSnapshot, out: &mut Vec<Problem>) {
    let skewed: Vec<String> = facts
        .versions
        .iter()
        .filter(|other| other.node != facts.node)
        .filter_map(|other| {
            let form = other.other_form().map(|form| format!(" ({form})"));
            (form.is_some() || is_skewed(env!("CARGO_PKG_VERSION"), &other.version))
                .then(|| format!("{} {}{}", other.node, other.version, form.unwrap_or_default()))
        })
        .collect();
    if let Some(first) = skewed.first() {
        let more = if skewed.len() > 1 { format!(" and {} more", skewed.len() - 1) } else { String::new() };
        let text = format!(
            "this host runs {}, {first}{more}: versions of hosts should differ by at most one minor version",
            env!("CARGO_PKG_VERSION")
        );
        out.push(codes::VERSION_SKEW.problem("", "versions", text));
    }
    if let Some(text) = &facts.collected.error {
        out.push(named(&codes::COLLECTOR, "address collector", text.clone()));
    }
    if let Some(text) = &facts.log_problem {
        let text = format!("{text}: correct LogFilePath; the log on standard error continues");
        out.push(named(&codes::LOG_FILE, "log file", text));
    }
    if let Some(text) = &facts.cache_problem {
        let text =
            format!("{text}: an agent that starts while the store is unreachable would use an older state");
        out.push(named(&codes::CACHE_FILE, "cache", text));
    }
    if let Some(text) = &facts.mtu_file_problem {
        let text =
            format!("{text}: CNI plugins whose configuration has no MTU do not learn that of the tunnels");
        out.push(named(&codes::MTU_FILE, "MTU file", text));
    }
    for (about, texts) in &facts.thread_problems {
        if let Some((first, others)) = texts.split_first() {
            let more = if others.is_empty() { String::new() } else { format!("; and {} more", others.len()) };
            let text = format!("{first}{more}");
            out.push(if Setting::NAMES.contains(&about.as_str()) {
                let key = Key::Setting(Scope::Global, about.clone()).to_string();
                named(&codes::SETTING_REFUSED, about, text).about(Subject::Key(key))
            } else {
                named(&codes::UNCODED, about, text)
            });
        }
    }
    if let Some((ago, text)) = &facts.transient {
        out.push(named(&codes::UNCODED, "agent", format!("{text} ({} ago)", span(ago.as_secs()))));
    }
}

/// True if two agent versions differ by more than one minor version.
#[must_use]
pub fn is_skewed(own: &str, other: &str) -> bool {
    let parts = |version: &str| {
        let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u64>().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    match (parts(own), parts(other)) {
        (Some((major, minor)), Some((other_major, other_minor))) => {
            major != other_major || minor.abs_diff(other_minor) > 1
        }
        // A version that cannot be parsed never counts as skewed.
        _ => false,
    }
}

/// Returns problems and notes about routes that are withheld from peers or rejected from peers.
pub(in crate::agent) fn route_exchange(
    route_exchange: &RouteExchange,
    intent: Option<&RoutingIntent>,
) -> Vec<Problem> {
    let mut notes = Vec::new();
    for (session, refused, received, reasons) in &route_exchange.refusing {
        let looked: usize = reasons.values().sum();
        let name = intent.and_then(|i| i.peers.get(session)).map_or(session.as_str(), |p| p.name.as_str());
        let reasons: Vec<String> = reasons.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        // Reasons of a sample represent all routes; their numbers do not.
        let part = match usize::try_from(*refused) {
            Ok(refused) if looked < refused => format!(" (of the first {looked})"),
            _ => String::new(),
        };
        let text = format!(
            "{refused} of its {received} routes are rejected on import: {}{part}",
            reasons.join(", ")
        );
        let code = if refused == received { codes::ALL_ROUTES_REFUSED } else { codes::ROUTES_REFUSED };
        notes.push(code.problem(session, format!("peer {name}"), text).about(Subject::Peer(session.clone())));
    }
    for (session, wrong, ago) in &route_exchange.malformed {
        let name = intent.and_then(|i| i.peers.get(session)).map_or(session.as_str(), |p| p.name.as_str());
        let text = format!("{} ago it sent an UPDATE with errors (RFC 7606): {wrong}", span(ago.as_secs()));
        notes.push(
            codes::MALFORMED_UPDATE
                .problem(session, format!("peer {name}"), text)
                .about(Subject::Peer(session.clone())),
        );
    }
    // Routes that no gate selects, or that an announced block covers, are withheld on purpose.
    let meant = ["none", "inside-own-block"];
    let held: Vec<String> = route_exchange
        .withheld
        .iter()
        .filter(|(gate, n)| **n > 0 && !meant.contains(&gate.as_str()))
        .map(|(gate, n)| format!("{gate} {n}"))
        .collect();
    if !held.is_empty() {
        let text = format!(
            "export policy withholds routes from peers: {}; peers that are sent the same routes count once",
            held.join(", ")
        );
        notes.push(codes::ROUTES_HELD_BACK.problem("", "routes", text));
    }
    notes
}

impl PeerSnapshot {
    /// True if the session should be up and is not. Dynamic peers and sessions that are shut down never
    /// count.
    pub(in crate::agent) fn is_missing(&self) -> bool {
        !self.up && !self.shut && self.kind != "dynamic"
    }
}

/// Returns the verdict as a word and as a sentence.
pub(in crate::agent) fn verdict(
    facts: &CoreSnapshot,
    intent: Option<&RoutingIntent>,
    ready: bool,
    problems: &[Problem],
) -> (&'static str, String) {
    if let Some(frozen) = &facts.frozen {
        let text = match frozen.code {
            "calico-3" => "the store has another data model now: everything stays as it is",
            "duplicate-node" => "another machine runs under this host's name: nothing is changed",
            "host-renamed" => "this host had another name until now: nothing is changed",
            "unknown-workloads" => "workloads are attached that the store does not know: nothing is changed",
            "store-rewound" => "the store was restored to an earlier state: everything stays as it is",
            _ => "the store changed in a way that the agent does not follow; forwarding continues",
        };
        return ("frozen", text.to_owned());
    }
    if intent.is_none() {
        return ("starting", "waiting for the store".to_owned());
    }
    if !facts.running {
        return ("starting", "waiting for the kernel's first answer".to_owned());
    }
    let down = facts.peers.values().filter(|p| p.is_missing()).count();
    let all = facts.peers.values().filter(|p| p.up).count() + down;
    let up = all - down;
    if !ready && (facts.store_unreachable.is_some() || facts.from_cache) {
        let how = if facts.store_damaged { "damaged" } else { "away" };
        let text =
            format!("the store is {how}, the last good state stays in force; {up} of {all} BGP sessions up");
        return ("not-ready", text);
    }
    if !ready {
        return ("not-ready", format!("{up} of {all} BGP sessions are up"));
    }
    let others = problems.iter().filter(|p| p.code != codes::PEER_DOWN.name);
    let sessions = match (down, all) {
        (0, 0) => "no BGP sessions configured".to_owned(),
        (0, _) => format!("{up} of {all} BGP sessions up"),
        _ => format!("{down} of {all} BGP sessions down"),
    };
    match (problems.is_empty(), others.count(), down) {
        (true, ..) => ("ready", format!("{sessions}, nothing to do")),
        (_, 0, _) => ("degraded", sessions),
        (_, 1, 0) => {
            let what = problems.first().map_or("", |p| p.subject.as_str());
            ("degraded", format!("{sessions}, 1 problem: {what}"))
        }
        (_, n, 0) => ("degraded", format!("{sessions}, {}", counted(n, "problem"))),
        (_, n, _) => ("degraded", format!("{sessions}, {}", counted(n, "other problem"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes_of(facts: &CoreSnapshot) -> Vec<String> {
        problems(facts, None).into_iter().map(|problem| problem.code).collect()
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let text = || Some("/var/lib/calico/mtu: Permission denied (os error 13)".to_owned());
        let facts = CoreSnapshot { mtu_file_problem: text(), ..CoreSnapshot::default() };
        assert_eq!(codes_of(&facts), ["mtu-file"]);
        assert_eq!(codes_of(&CoreSnapshot::default()), Vec::<String>::new());
    }

    /// A setting that the kernel thread rejects has a code of its own; other problems of threads have none.
    #[test]
    fn a_setting_that_is_refused_is_named_by_its_key() {
        let said = |about: &str| (about.to_owned(), vec!["fits eth0".to_owned()]);
        for setting in Setting::NAMES {
            let facts = CoreSnapshot {
                thread_problems: vec![said(setting), said("UDP port")],
                ..CoreSnapshot::default()
            };
            let found = problems(&facts, None);
            let of = |code: &Code| found.iter().find(|problem| problem.code == code.name).unwrap();
            let key = format!("/calico/v1/config/{setting}");
            assert_eq!(of(&codes::SETTING_REFUSED).about, Subject::Key(key));
            assert_eq!((of(&codes::SETTING_REFUSED).subject.as_str(), found.len()), (*setting, 2));
            assert_eq!(of(&codes::UNCODED).subject, "UDP port");
        }
    }

    /// Watches of both stores confirm every second that nothing newer exists; a watch that hangs without
    /// ending does not.
    #[test]
    fn a_revision_that_nothing_confirms_is_a_problem_and_a_store_that_is_away_says_it_itself() {
        let stale = codes::STALE_REVISION.name.to_owned();
        let fresh = CoreSnapshot { connected: true, revision: 7, ..CoreSnapshot::default() };
        let late = CoreSnapshot { lag: STALE + Duration::from_secs(1), ..fresh.clone() };
        assert!(!codes_of(&fresh).contains(&stale));
        assert!(codes_of(&late).contains(&stale));
        let problem = problems(&late, None).into_iter().find(|p| p.code == stale).map(|p| (p.text, p.next));
        let (text, next) = problem.unwrap_or_default();
        assert!(text.contains("for 21s") && text.contains("revision 7"), "{text}");
        assert!(next.starts_with("tortie "), "{next}");
        let away = CoreSnapshot { store_unreachable: Some("no answer".to_owned()), ..late };
        assert!(!codes_of(&away).contains(&stale));
    }
}
