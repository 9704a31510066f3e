//! Explains the use of a prefix: its origin, the best path, the kernel's route and the peers that receive it.
//! Pure functions.

use std::collections::BTreeMap;

use tortie_bgp::ExportStep;
use tortie_config::counted;

use super::export::of_filter;
use super::names::joined;
use super::origin::{Origin, PrefixOrigin};
use crate::api::bgp::{BgpPath, BgpRoute, MessageError};
use crate::api::explain::{Certainty, Step, Verdict, Why};
use crate::api::status::KernelRouteRow;
use tortie_engine::routing::{KernelRoute, StepOutcome};
use tortie_kernel::{ForeignRoute, protocol_name};

/// Maximum number of sessions listed one per line; above it, sessions with the same result share a line.
const LISTED_MAX: usize = 12;

/// Evidence on a prefix.
#[derive(Debug, Clone)]
pub(super) struct RouteEvidence {
    /// The query: a prefix or an address.
    pub(super) queried: String,
    pub(super) prefix: String,
    pub(super) origin: PrefixOrigin,
    /// The prefix in the Loc-RIB, including rejected paths.
    pub(super) route: Option<BgpRoute>,
    /// Peers whose path was rejected, with the recorded steps of the live import function.
    pub(super) refused: Vec<(String, Vec<ExportStep>)>,
    /// The kernel's evidence; `None` if the kernel is off or was not queried.
    pub(super) kernel: Option<KernelEvidence>,
    /// Peers, and the result of the export to each.
    pub(super) recipients: Vec<Recipient>,
    /// Malformed UPDATEs that contain the prefix, by peer name.
    pub(super) malformed: Vec<(String, MessageError)>,
}

/// The kernel's evidence on a prefix.
#[derive(Debug, Clone)]
pub(super) struct KernelEvidence {
    pub(super) row: Option<KernelRouteRow>,
    /// Recorded steps of the live decision about a learned route.
    pub(super) decided: Option<(KernelRoute, Vec<tortie_engine::routing::Step>)>,
    pub(super) foreign: Vec<ForeignRoute>,
    pub(super) metric: u32,
    /// Route that the kernel would use without own routes; only for the query of an address.
    pub(super) lookup: Option<String>,
}

/// Result of the export of a prefix to a session.
#[derive(Debug, Clone)]
pub(super) struct Recipient {
    pub(super) name: String,
    pub(super) announced: bool,
    /// The step that decided.
    pub(super) step: String,
    pub(super) text: String,
}

/// Reason why a prefix is not used, with its code.
struct Obstacle {
    code: String,
    text: String,
    fix: Vec<String>,
}

/// Completes an answer, which so far has only its metadata, from the evidence.
pub(super) fn answer(mut why: Why, e: &RouteEvidence) -> Why {
    let best = e.route.as_ref().and_then(|route| route.paths.iter().find(|path| path.best));
    let obstacle = obstacle(e, best);
    why.good = obstacle.is_none();
    let called =
        if e.queried == e.prefix { e.prefix.clone() } else { format!("{} ({})", e.prefix, e.queried) };
    why.answer = match (&obstacle, best) {
        (None, _) if let Some((_, source)) = of_store(e) => {
            format!("{called} is used: {source}{}", installed(e))
        }
        (Some(_), _) if let Some((_, source)) = of_store(e) => {
            format!("{called} is NOT used: {source}, but the kernel does not have that route")
        }
        (None, Some(path)) if path.source == "local" => {
            format!("{called} is announced from here: {}", path.reason)
        }
        (None, Some(path)) => {
            format!("{called} is used: from {}, {}{}", path.from, path.reason, installed(e))
        }
        (_, None) if e.route.is_none() => format!("{called} is not in the BGP table"),
        (_, None) => format!("{called} is NOT used: no usable path"),
        (Some(_), Some(path)) if path.source == "local" => format!("{called} is NOT announced"),
        (Some(_), Some(path)) => {
            format!(
                "{called} is NOT used: best path from {}, but the kernel does not have that route",
                path.from
            )
        }
    };
    why.steps = steps(e);
    why.certainty = Certainty::Certain;
    if let Some(obstacle) = obstacle {
        why.code = obstacle.code;
        why.conclusion = Some(obstacle.text);
        why.fix = obstacle.fix;
    } else {
        "ok".clone_into(&mut why.code);
    }
    why.not_looked_at = vec!["how peers use the routes that are sent to them".to_owned()];
    if e.kernel.is_none() {
        why.not_looked_at.push("the kernel (--kernel off, or its thread is busy)".to_owned());
    } else {
        why.not_looked_at.push("routing rules and tables besides main; packets".to_owned());
    }
    if e.route.is_none() {
        why.not_looked_at.push("routes that peers do not announce to this host".to_owned());
    }
    why
}

/// Returns the kernel's row of a prefix whose route comes from the store, with that source.
fn of_store(e: &RouteEvidence) -> Option<(&KernelRouteRow, &'static str)> {
    let row = e.kernel.as_ref()?.row.as_ref()?;
    let source = match row.kind.as_str() {
        "vxlan" => "the store leads to its host by VXLAN",
        "ipip" => "the store leads to its host by IPIP",
        "gateway" => "the store leads to this peer by its gateway (reachable_by)",
        _ => return None,
    };
    Some((row, source))
}

fn installed(e: &RouteEvidence) -> String {
    let row = e.kernel.as_ref().and_then(|kernel| kernel.row.as_ref());
    row.filter(|row| row.state == "installed")
        .map_or_else(String::new, |row| format!("; in the kernel {}", joined(&row.via)))
}

/// Returns the reason why the prefix is not used, or why an own prefix is not announced.
fn obstacle(e: &RouteEvidence, best: Option<&BgpPath>) -> Option<Obstacle> {
    let obstacle = |code: &str, text: String| Obstacle { code: code.to_owned(), text, fix: Vec::new() };
    if let Some(step) = e.origin.step().filter(|step| step.verdict == Verdict::Stop) {
        let key = step.key.unwrap_or_default();
        return Some(Obstacle {
            fix: vec![format!("tortie store get {key}")],
            ..obstacle("not-originated", step.text)
        });
    }
    if let Some(step) = e.origin.blackhole().filter(|step| step.verdict == Verdict::Stop) {
        return Some(Obstacle {
            fix: vec!["tortie diff routes".to_owned()],
            ..obstacle("blackhole", step.text)
        });
    }
    if let Some((row, _)) = of_store(e) {
        return (row.state != "installed").then(|| Obstacle {
            fix: vec!["tortie status".to_owned()],
            ..obstacle(
                if row.state == "withheld" { &row.reason } else { &row.state },
                format!("in the kernel it is {}: {}", row.state, row.reason),
            )
        });
    }
    let Some(route) = &e.route else { return Some(absent(e)) };
    let Some(best) = best else { return Some(unusable(e, route)) };
    if best.source == "local" {
        return None;
    }
    let kernel = e.kernel.as_ref()?;
    let Some(row) = &kernel.row else {
        return Some(obstacle("pending", "the kernel thread has not processed it yet".to_owned()));
    };
    match row.state.as_str() {
        "installed" => {}
        "withheld" => {
            let reasons = kernel.decided.as_ref().and_then(|(_, steps)| {
                let no = steps.iter().filter(|step| step.outcome == StepOutcome::No);
                let texts: Vec<&str> = no.map(|step| step.text.as_str()).collect();
                (!texts.is_empty()).then(|| texts.join("; "))
            });
            let fix = match row.reason.as_str() {
                "unresolved" => best.next_hop.as_ref().map(|hop| format!("ip route get {hop}")),
                "no-network" => Some("set network_v4 of this host".to_owned()),
                "no-tunnel" => Some("modprobe ipip".to_owned()),
                _ => None,
            };
            let text = format!(
                "no route is desired in the kernel: {}",
                reasons.unwrap_or_else(|| row.reason.clone())
            );
            return Some(Obstacle { fix: fix.into_iter().collect(), ..obstacle(&row.reason, text) });
        }
        "failed" if row.reason.contains("our metric") => {
            let fix = vec![format!("ip route show exact {}", e.prefix)];
            return Some(Obstacle {
                fix,
                ..obstacle("foreign-route", format!("a foreign route is in the way: {}", row.reason))
            });
        }
        "failed" => {
            return Some(obstacle("kernel-refused", format!("the kernel refuses it: {}", row.reason)));
        }
        state => return Some(obstacle(state, format!("in the kernel it is {state}: {}", row.reason))),
    }
    let before =
        kernel.foreign.iter().filter(|foreign| foreign.metric < kernel.metric).min_by_key(|f| f.metric)?;
    let text = format!(
        "a route of protocol {} with metric {} is preferred to ours of metric {}",
        protocol_name(before.protocol),
        before.metric,
        kernel.metric
    );
    Some(Obstacle {
        fix: vec![format!("ip route show exact {}", e.prefix)],
        ..obstacle("foreign-route", text)
    })
}

fn absent(e: &RouteEvidence) -> Obstacle {
    let text = match (&e.origin.origin, e.origin.pool) {
        (Origin::Inside(block), _) => {
            format!("it is inside {block}, a block of this host, which covers it")
        }
        (_, Some(pool)) => format!(
            "no peer announces it, although it is in pool {pool}: no host owns its block, or that host is \
             down"
        ),
        (_, None) => "no peer announces it, and it is in no pool".to_owned(),
    };
    let pool = e.origin.pool.map(|_| format!("tortie ipam show {}", e.queried));
    let fix = pool.into_iter().chain(["tortie bgp peers".to_owned()]).collect();
    Obstacle { code: "not-in-table".to_owned(), text, fix }
}

/// Returns the reason why no path is usable: all are rejected, or their next hops are unusable.
fn unusable(e: &RouteEvidence, route: &BgpRoute) -> Obstacle {
    let refused =
        e.refused.iter().find_map(|(name, steps)| Some((name, steps.iter().find(|step| !step.pass)?)));
    let path = route.paths.iter().find(|path| !path.usable);
    match (refused, path) {
        (Some((name, step)), _) => Obstacle {
            // Each kind of loop has its own code.
            code: if step.step == "loop" { step.verdict.clone() } else { step.step.to_owned() },
            text: format!("import refuses what {name} sent: {}", words(step)),
            fix: match step.step {
                "filter" => {
                    let step = of_filter(Step::new(Verdict::Stop, "filter", step.verdict.clone()), &e.origin);
                    step.key.map(|key| format!("tortie store get {key}")).into_iter().collect()
                }
                "inside-pool" => vec!["change import_pools in the peer's value".to_owned()],
                _ => Vec::new(),
            },
        },
        (None, Some(path)) => Obstacle {
            code: "next-hop".to_owned(),
            text: format!("from {}: {}", path.from, path.reason),
            fix: path.next_hop.iter().map(|hop| format!("ip route get {hop}")).collect(),
        },
        (None, None) => {
            Obstacle { code: "no-path".to_owned(), text: "no path remains".to_owned(), fix: Vec::new() }
        }
    }
}

/// Describes a rejection; loops have stable names.
fn words(step: &ExportStep) -> String {
    match (step.step, step.verdict.as_str()) {
        ("loop", "as_loop") => "our own AS is in its AS_PATH (num_allow_local_as)".to_owned(),
        ("loop", "originator_loop") => "ORIGINATOR_ID is our router id (RFC 4456)".to_owned(),
        ("loop", "cluster_loop") => "our cluster id is in CLUSTER_LIST (RFC 4456)".to_owned(),
        ("loop", "next_hop_self") => "its next hop is an address of ours".to_owned(),
        ("loop", "route_leak") => "it is a route leak by its role (RFC 9234)".to_owned(),
        ("loop", "no_policy") => "no policy is given for this eBGP peer (RFC 8212)".to_owned(),
        (name, text) => format!("{name}: {text}"),
    }
}

fn steps(e: &RouteEvidence) -> Vec<Step> {
    let mut steps: Vec<Step> = e.origin.step().into_iter().chain(e.origin.blackhole()).collect();
    if let Some(pool) = e.origin.pool {
        steps.push(Step::new(Verdict::Note, "pool", format!("inside {pool}")));
    }
    match &e.route {
        None => steps.push(Step::new(Verdict::Stop, "Loc-RIB", "no path")),
        Some(route) => steps.extend(route.paths.iter().map(|path| path_step(path, e))),
    }
    for (name, error) in &e.malformed {
        let text = format!("{name} sent an UPDATE with errors at {}: {}", error.time, error.text);
        steps.push(Step::new(Verdict::Note, "malformed", text));
    }
    if let Some(kernel) = &e.kernel {
        kernel_steps(kernel, &mut steps);
    }
    steps.extend(recipient_steps(&e.recipients));
    steps.extend(e.origin.history());
    steps
}

fn path_step(path: &BgpPath, e: &RouteEvidence) -> Step {
    let from = match path.source.as_str() {
        "local" => "local".to_owned(),
        source => format!("from {} ({source})", path.from),
    };
    let hop = path.next_hop.as_ref().map_or_else(String::new, |hop| format!(", next hop {hop}"));
    let way = if path.as_path.is_empty() { String::new() } else { format!(", AS path {}", path.as_path) };
    let pref = path.local_pref.map_or_else(String::new, |pref| format!(", local preference {pref}"));
    let refused = e.refused.iter().find(|(name, _)| *name == path.from);
    let why = refused.and_then(|(_, steps)| steps.iter().find(|step| !step.pass)).map(words);
    let stale = if path.stale { ", stale" } else { "" };
    let text = format!("{from}{hop}{way}{pref}{stale}: {}", why.as_ref().unwrap_or(&path.reason));
    let (verdict, name) = match (path.best, path.usable) {
        (true, _) => (Verdict::Ok, "best"),
        (false, true) => (Verdict::Note, "candidate"),
        (false, false) if why.is_some() => (Verdict::Stop, "refused"),
        (false, false) => (Verdict::Stop, "unusable"),
    };
    match why {
        Some(_) => of_filter(Step::new(verdict, name, text), &e.origin),
        None => Step::new(verdict, name, text),
    }
}

/// Maps the outcome of a routing step to a verdict.
pub(super) fn verdict(outcome: StepOutcome) -> Verdict {
    match outcome {
        StepOutcome::No => Verdict::Stop,
        StepOutcome::NotReached => Verdict::Skipped,
        StepOutcome::Passed => Verdict::Note,
        StepOutcome::Yes => Verdict::Ok,
    }
}

fn kernel_steps(kernel: &KernelEvidence, steps: &mut Vec<Step>) {
    for step in kernel.decided.iter().flat_map(|(_, steps)| steps) {
        let verdict = verdict(step.outcome);
        // The pool is part of an earlier step.
        if step.name != "pool" || step.text.contains("IPIP") {
            steps.push(Step::new(
                verdict,
                if step.name == "pool" { "tunnel" } else { step.name },
                step.text.clone(),
            ));
        }
    }
    if let Some(row) = &kernel.row {
        let verdict = if row.state == "installed" { Verdict::Ok } else { Verdict::Stop };
        let what = if row.kind == "blackhole" { "blackhole".to_owned() } else { joined(&row.via) };
        let change = if row.change.is_empty() { String::new() } else { format!("   {}", row.change) };
        let text = format!("{}: {what} ({}){change}", row.state, row.reason);
        steps.push(Step::new(verdict, "kernel", text));
    }
    for foreign in &kernel.foreign {
        let kind = if foreign.unicast { "" } else { ", which drops packets" };
        let text = format!("protocol {}, metric {}{kind}", protocol_name(foreign.protocol), foreign.metric);
        let before = foreign.metric <= kernel.metric && kernel.row.is_some();
        steps.push(Step::new(if before { Verdict::Stop } else { Verdict::Note }, "foreign route", text));
    }
    if let Some(lookup) = &kernel.lookup {
        steps.push(Step::new(Verdict::Note, "main table", lookup.clone()));
    }
}

/// Returns one step per session; for many sessions, one per result.
fn recipient_steps(recipients: &[Recipient]) -> Vec<Step> {
    let line = |one: &Recipient, names: String| {
        let text = match (one.announced, one.text.as_str()) {
            (true, text) => format!("to {names}: yes ({text})"),
            (false, text) => format!("to {names}: no, {}: {text}", one.step),
        };
        Step::new(if one.announced { Verdict::Ok } else { Verdict::Skipped }, "advertised", text)
    };
    if recipients.len() <= LISTED_MAX {
        return recipients.iter().map(|one| line(one, one.name.clone())).collect();
    }
    let mut groups: BTreeMap<(bool, &str, &str), Vec<String>> = BTreeMap::new();
    for one in recipients {
        groups.entry((!one.announced, &one.step, &one.text)).or_default().push(one.name.clone());
    }
    let of = |((not, step, text), names): ((bool, &str, &str), Vec<String>)| {
        let one =
            Recipient { name: String::new(), announced: !not, step: step.to_owned(), text: text.to_owned() };
        line(&one, format!("{} ({})", counted(names.len(), "peer"), joined(&names)))
    };
    groups.into_iter().map(of).collect()
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
