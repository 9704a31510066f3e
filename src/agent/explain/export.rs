//! Explains the announcement of a prefix to a peer step by step, from the store to the Adj-RIB-Out. Pure
//! functions.

use tortie_bgp::ExportStep;
use tortie_config::counted;

use super::origin::{Filter, PrefixOrigin};
use crate::api::bgp::{BgpRoute, Peer};
use crate::api::explain::{Certainty, Step, Verdict, Why};
use tortie_engine::routing::{EXPORT_GATES, EXPORT_GATES_CALICO_3};

/// Steps that decide by properties of the peer, before any policy is evaluated.
const PEER_RULES: [&str; 7] =
    ["split-horizon", "deferral", "ebgp-policy", "role", "well-known", "long-lived", "reflection"];

/// Evidence on a prefix and a peer.
#[derive(Debug, Clone)]
pub(super) struct ExportEvidence {
    pub(super) prefix: String,
    pub(super) peer: Peer,
    pub(super) origin: PrefixOrigin,
    /// The prefix in the Loc-RIB.
    pub(super) route: Option<BgpRoute>,
    /// Recorded steps of the live export function, up to the step that rejected the route.
    pub(super) trace: Vec<ExportStep>,
    pub(super) announced: bool,
    /// Description of the attributes that are sent.
    pub(super) sent: Option<String>,
    /// The announced next hop if it differs from the local address of the session: the peer may have no route
    /// to it.
    pub(super) other_next_hop: Option<String>,
    /// True if the Adj-RIB-Out contains the prefix.
    pub(super) present: bool,
}

/// Completes an answer, which so far has only its metadata, from the evidence.
pub(super) fn answer(mut why: Why, e: &ExportEvidence) -> Why {
    let held = e.origin.blackhole().filter(|step| step.verdict == Verdict::Stop);
    let stop = e.trace.iter().find(|step| !step.pass);
    why.good = e.announced && e.present;
    let word = match (e.announced, e.present) {
        (true, true) => "ADVERTISED",
        (true, false) => "NOT YET advertised",
        (false, true) => "about to be withdrawn",
        (false, false) => "NOT advertised",
    };
    let family = if e.prefix.contains(':') { "ipv6" } else { "ipv4" };
    why.answer = format!("{word}: {} -> {} ({}, {family}/unicast)", e.prefix, e.peer.name, e.peer.address);
    why.steps = steps(e, stop);
    let (code, conclusion) = match (&held, stop) {
        (Some(step), _) => ("blackhole", Some(step.text.clone())),
        (None, Some(stop))
            if stop.step == "best" && e.origin.step().is_some_and(|s| s.verdict == Verdict::Stop) =>
        {
            ("not-originated", e.origin.step().map(|s| s.text))
        }
        (None, Some(stop)) => (stop.step, Some(conclusion(stop, e))),
        (None, None) if e.present => ("ok", None),
        (None, None) => {
            ("pending", Some("the announcement is queued: the peer has not read all updates yet".to_owned()))
        }
    };
    why.code = code.to_owned();
    why.conclusion = conclusion;
    why.certainty = match (code, &e.other_next_hop) {
        ("ok", Some(_)) => Certainty::Implied,
        _ => Certainty::Certain,
    };
    why.fix = fix(e, code, stop.map(|s| s.verdict.as_str()).unwrap_or_default());
    why.not_looked_at = vec!["what the peer does with it (its import policy, its best path)".to_owned()];
    if let Some(hop) = &e.other_next_hop {
        why.not_looked_at.push(format!(
            "if the peer has a route to the next hop {hop}, which is not the address that it has its session with"
        ));
    }
    why
}

fn conclusion(stop: &ExportStep, e: &ExportEvidence) -> String {
    match stop.step {
        "session" => format!("the session with {} is {}", e.peer.name, stop.verdict),
        "family" => format!("{} with {}", stop.verdict, e.peer.name),
        "best" => format!("{} has no usable path here", e.prefix),
        "split-horizon" => format!("{} sent us this route; it is not sent back", e.peer.name),
        gate if is_gate(gate) => format!("the gate `{gate}` withholds it: {}", stop.verdict),
        step => format!("`{step}` withholds it: {}", stop.verdict),
    }
}

fn is_gate(name: &str) -> bool {
    EXPORT_GATES.contains(&name) || EXPORT_GATES_CALICO_3.contains(&name)
}

/// Returns the names of the gates in their order, which differs between the two data models: with Calico 3 the
/// filters are evaluated first.
fn gates(e: &ExportEvidence) -> &'static [&'static str] {
    match e.trace.iter().map(|step| step.step).find(|name| is_gate(name)) {
        Some("filter") => &EXPORT_GATES_CALICO_3,
        _ => &EXPORT_GATES,
    }
}

fn steps(e: &ExportEvidence, stop: Option<&ExportStep>) -> Vec<Step> {
    let mut steps: Vec<Step> = e.origin.step().into_iter().chain(e.origin.blackhole()).collect();
    let find = |name: &str| e.trace.iter().find(|step| step.step == name);
    let rung = |step: &ExportStep| {
        let verdict = if step.pass { Verdict::Ok } else { Verdict::Stop };
        let plain = Step::new(verdict, step.step, step.verdict.clone());
        match step.step {
            "filter" => of_filter(plain, &e.origin),
            _ => plain,
        }
    };
    let skipped = |name: &str| Step::new(Verdict::Skipped, name, "not reached");

    steps.push(loc_rib(e));
    for name in ["session", "family"] {
        steps.push(find(name).map_or_else(|| skipped(name), rung));
    }
    let rules: Vec<&ExportStep> = PEER_RULES.iter().filter_map(|name| find(name)).collect();
    match rules.iter().find(|rule| !rule.pass) {
        Some(rule) => steps.push(rung(rule)),
        None if rules.is_empty() => steps.push(skipped("peer rules")),
        None => {
            let texts: Vec<&str> = rules.iter().map(|rule| rule.verdict.as_str()).collect();
            steps.push(Step::new(Verdict::Ok, "peer rules", texts.join("; ")));
        }
    }
    // Other steps of the core keep their position in the evaluation.
    let has_own_step =
        |name: &str| ["session", "family", "best"].contains(&name) || PEER_RULES.contains(&name);
    let rest = e.trace.iter().filter(|step| !has_own_step(step.step) && !is_gate(step.step));
    let (after, before): (Vec<_>, Vec<_>) = rest.partition(|step| step.step == "size");
    steps.extend(before.into_iter().map(rung));
    for &name in gates(e) {
        match find(name) {
            Some(step) => steps.push(rung(step)),
            // `none` is shown only if it was the deciding gate.
            None if name == "none" => {}
            None => steps.push(skipped(name)),
        }
    }
    steps.extend(after.into_iter().map(rung));
    let out = match (e.present, &e.sent) {
        (true, Some(sent)) => Step::new(Verdict::Ok, "Adj-RIB-Out", format!("present: {sent}")),
        (true, None) => Step::new(Verdict::Note, "Adj-RIB-Out", "still present: the withdrawal is queued"),
        (false, _) if stop.is_none() => {
            Step::new(Verdict::Note, "Adj-RIB-Out", "absent: the announcement is queued")
        }
        (false, _) => Step::new(Verdict::Skipped, "Adj-RIB-Out", "absent"),
    };
    steps.push(out);
    steps.extend(e.origin.history());
    steps
}

fn loc_rib(e: &ExportEvidence) -> Step {
    let Some(route) = &e.route else {
        return Step::new(Verdict::Stop, "Loc-RIB", "no path at all");
    };
    let usable = route.paths.iter().filter(|path| path.usable).count();
    match route.paths.iter().find(|path| path.best) {
        Some(best) => {
            let others = counted(usable, "candidate");
            let from = match best.source.as_str() {
                "local" => "local".to_owned(),
                source => format!("from {} ({source})", best.from),
            };
            Step::new(Verdict::Ok, "Loc-RIB", format!("best path {from}, {others}: {}", best.reason))
        }
        None => {
            let why: Vec<String> =
                route.paths.iter().map(|path| format!("from {}: {}", path.from, path.reason)).collect();
            Step::new(Verdict::Stop, "Loc-RIB", format!("no usable path: {}", why.join("; ")))
        }
    }
}

/// Adds the key of the filter that decided, if the text names one.
pub(super) fn of_filter(step: Step, origin: &PrefixOrigin) -> Step {
    let named = |filter: &&Filter| step.text.contains(&format!("filter {}", filter.name));
    // Matches the longest name, since `tor` is also part of `tor-out`.
    let filter = origin.filters.iter().filter(named).max_by_key(|filter| filter.name.len());
    match filter.cloned() {
        Some(filter) => step.of(filter.key, Some(filter.revision)),
        None => step,
    }
}

fn fix(e: &ExportEvidence, code: &str, text: &str) -> Vec<String> {
    let (prefix, peer) = (&e.prefix, &e.peer.session);
    match code {
        "ok" | "pending" | "split-horizon" => Vec::new(),
        "session" => vec![format!("tortie why peer {peer}")],
        "family" => {
            vec![format!("change `families` in the peer's value, or at the peer; tortie bgp peer {peer}")]
        }
        "best" => vec![format!("tortie why route {prefix}")],
        "blackhole" => vec![format!("tortie why route {prefix}"), "tortie diff routes".to_owned()],
        "filter" => {
            let step = of_filter(Step::new(Verdict::Stop, "filter", text), &e.origin);
            let rule = text.split(" of filter").next().filter(|rule| rule.starts_with("rule "));
            match (step.key, rule) {
                (Some(key), Some(rule)) => {
                    vec![format!("change {rule} of {key}, or insert a rule that accepts {prefix} before it")]
                }
                (Some(key), None) => vec![format!("add a rule that accepts {prefix} to {key}")],
                (None, _) => vec!["create that filter, or remove it from the peer's `filters`".to_owned()],
            }
        }
        "own-only" => vec![
            "remove own_only from the peer's value, or let the host that owns the prefix announce it"
                .to_owned(),
        ],
        "inside-own-block" => vec!["nothing: its block is announced and covers it".to_owned()],
        "none" => vec![format!(
            "add a prefix that covers {prefix} to prefix_advertisements or as a pool, or accept it in a \
             filter of the peer"
        )],
        "reflection" => vec![
            "routes learned by iBGP are not announced to iBGP peers (RFC 4271 9.2.1): the mesh peer that \
             owns it announces it, or make this host a route reflector (rr_cluster_id)"
                .to_owned(),
        ],
        "role" => vec!["`role` in the peer's value (RFC 9234)".to_owned()],
        "drain" => vec!["tortie bgp drain --undo".to_owned()],
        _ => Vec::new(),
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
