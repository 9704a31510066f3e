//! Answers about endpoints, policies and packets. They come from the core while policy is enforced, else from
//! a copy of the model that is compiled on another thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::agent::api::policy_query::policy_view;
use crate::agent::api::server::Server;
use crate::agent::core::enforcement::Policy as Enforced;
use crate::agent::core::snapshot::mode_name;
use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy, kernel_busy, stopping, within_timeout};
use crate::agent::policy_view::dry_run as trial;
use crate::agent::policy_view::packet::{self, PacketQuery};
use crate::api::codes;
use crate::api::policy::{
    Counted, Diff, DiffLine, DiffRequest, DiffSection, DropRow, DryRun, DryRunRequest, Endpoint,
    EndpointDetail, Policy, PolicyCounted, PolicyDetail, SelectorMatch, Trace, TraceQuery,
};
use crate::api::status::{ActionResult, ApiError, List};
use tortie_engine::policy::path::{self, HostPath};
use tortie_engine::policy::{Globals, Source};
use tortie_kernel::{DropKind, Dropped, Mode, RuleHits, ToKernel};

/// Evaluates the path of a packet against the policies in the store.
pub(in crate::agent) async fn trace_packet(
    handle: &Handle,
    query: TraceQuery,
) -> Result<(PacketQuery, path::Trace, Arc<Globals>), ApiError> {
    let (packet_query, excerpt, globals) = policy_view(handle, move |view| {
        let packet_query = PacketQuery::read(view, &query)?;
        let excerpt = packet_query.excerpt(view.model)?;
        Ok((packet_query, excerpt, Arc::new(view.globals.clone())))
    })
    .await?;
    // Rules of other hosts are compiled from all policies: too long for the core's thread.
    let work = move || packet_query.follow(&excerpt).map(|found| (packet_query, found, globals));
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
}

/// Traces a packet through the policies in the store. With `kernel`, this host's part uses the rules of the
/// kernel thread.
pub(in crate::agent) async fn trace(
    server: &Server,
    query: TraceQuery,
    kernel: bool,
) -> Result<Trace, ApiError> {
    let (packet_query, found, globals) = trace_packet(server.handle(), query).await?;
    if !kernel {
        let results = found.host_paths.iter().map(|half| packet::stored(server.node(), half)).collect();
        return Ok(packet_query.answer(&found, results, false));
    }
    let node = server.node().to_owned();
    let prefixes = globals.interface_prefixes.clone();
    let drops = tokio::task::spawn_blocking(move || tortie_kernel::forward_drops(&prefixes));
    let drops = drops.await.map_err(|_| stopping())?.unwrap_or_default();
    server
        .handle()
        .kernel()
        .ask(move |view| {
            // With the kernel off there are no interfaces to report.
            let has_conditions = view.mode() != Mode::Off;
            let trace_half = |half: &HostPath| match has_conditions && half.host == node && !half.outer {
                true => packet::live(view, &node, &globals, half),
                false => packet::stored(&node, half),
            };
            let results = found.host_paths.iter().map(trace_half).collect();
            let answer = packet_query.answer(&found, results, has_conditions);
            let forwarded = |half: &&HostPath| {
                has_conditions && half.host == node && !half.outer && packet::is_forwarded(view, half)
            };
            let other = found.host_paths.iter().find(forwarded).and_then(|half| {
                let family = if half.path.packet.dst.is_ipv4() { "ip" } else { "ip6" };
                drops
                    .iter()
                    .find(|drop| !drop.names_workloads && (drop.family == family || drop.family == "inet"))
            });
            match other {
                Some(drop) if answer.verdict == "allow" => packet::dropped_by_other(answer, &node, drop),
                _ => answer,
            }
        })
        .await
}

/// Computes the effect of a value that would be written, with the affected connections if conntrack can be
/// read.
pub(in crate::agent) async fn dry_run(server: &Server, request: DryRunRequest) -> Result<DryRun, ApiError> {
    // The permit comes first: a query that waits while it holds the model forces the core to copy it on the
    // next change. The query copies the model and compiles the policy twice, so no other long query runs at
    // the same time.
    let permit = server.handle().long_query_permit(true).await?;
    let interfaces =
        server.handle().kernel().ask(|view| (view.mode() != Mode::Off).then(|| view.interfaces())).await;
    let share =
        |core: &CoreView<'_>| core.loaded().then(|| (core.shared_model(), core.node_options().clone()));
    let shared = server.handle().core().ask(share).await?;
    let (model, options) = shared.ok_or_else(|| busy("the store has not been read yet"))?;
    let work = move || {
        // Copies the model at once: as long as this thread shares it, the core copies it on its next change.
        let model = Arc::unwrap_or_clone(model);
        let before = Enforced::of(&model);
        let mut trial = trial::run(model, before, options, &request)?;
        let tracked = match &interfaces {
            Ok(Some(interfaces)) => tortie_kernel::connections().map(|tracked| (interfaces, tracked)),
            _ => Err(std::io::Error::other("the kernel is not used (--kernel off)")),
        };
        match tracked {
            Ok((interfaces, tracked)) => {
                trial.answer.connections = Some(trial::connections(&trial, interfaces, &tracked));
            }
            Err(error) => trial.answer.not_looked_at.push(format!("connections: {error}")),
        }
        Ok::<_, ApiError>(trial)
    };
    let mut trial = tokio::task::spawn_blocking(work).await.map_err(|_| stopping())??;
    if !trial.concerns_bgp() {
        return Ok(trial.answer);
    }
    let rehearsal = server.handle().speaker().ask(|view| view.rehearsal()).await;
    let why = match rehearsal {
        Ok(Some(rehearsal)) => {
            let work = move || {
                trial::judge_bgp(rehearsal, &mut trial);
                drop(permit);
                trial.answer
            };
            return tokio::task::spawn_blocking(work).await.map_err(|_| stopping());
        }
        Ok(None) => "it has too many routes to copy without delaying its sessions".to_owned(),
        Err(error) => error.text,
    };
    trial.answer.not_looked_at.push(format!("BGP, sessions and routes by peer: {why}"));
    Ok(trial.answer)
}

/// Returns the kinds of packets that rules dropped within this time, the most frequent first.
pub(in crate::agent) async fn drops(server: &Server, within: Duration) -> Result<List<DropRow>, ApiError> {
    let drops = server.handle().drops().ok_or_else(|| busy("the kernel thread has not started yet"))?;
    if let Some(problem) = drops.problem() {
        return Err(ApiError {
            code: "no-drops".to_owned(),
            text: format!("drops are not logged here: {problem}"),
        });
    }
    let mut kinds = drops.within(within);
    kinds.sort_unstable_by(|(a_kind, a), (b_kind, b)| b.count.cmp(&a.count).then_with(|| a_kind.cmp(b_kind)));
    let prefixes: BTreeSet<String> = kinds.iter().map(|(kind, _)| kind.prefix.clone()).collect();
    let rules: BTreeMap<String, String> = server
        .handle()
        .kernel()
        .ask(move |view| {
            prefixes.into_iter().filter_map(|prefix| Some((prefix.clone(), view.explain(&prefix)?))).collect()
        })
        .await?;
    let addrs: BTreeSet<IpAddr> = kinds.iter().flat_map(|(kind, _)| [kind.src, kind.dst]).collect();
    let names = policy_view(server.handle(), move |view| Ok(view.names_of(&addrs))).await?;
    let row = |(kind, dropped): (DropKind, Dropped)| DropRow {
        count: dropped.count,
        first_seconds: dropped.first.elapsed().as_secs(),
        last_seconds: dropped.last.elapsed().as_secs(),
        from: kind.src.to_string(),
        from_endpoint: names.get(&kind.src).cloned(),
        to: kind.dst.to_string(),
        to_endpoint: names.get(&kind.dst).cloned(),
        what: packet::what(kind.protocol, kind.port),
        rule: rules
            .get(&kind.prefix)
            .cloned()
            .unwrap_or_else(|| format!("a rule that no longer exists ({})", kind.prefix)),
    };
    let items = kinds.into_iter().map(row).collect();
    Ok(server.list("DropList", items).await)
}

/// Returns the differences between kernel and intent.
pub(in crate::agent) async fn diff(server: &Server, max: usize) -> Result<Diff, ApiError> {
    if let Some(observer) = server.observer() {
        return observer.differences(max).await;
    }
    let notes = server.snapshot().await.map(|facts| facts.notes).unwrap_or_default();
    let lately = notes.into_iter().find(|note| note.code == codes::FOREIGN_CHANGES.name);
    server
        .handle()
        .kernel()
        .ask(move |view| {
            let section =
                |what: &str, mode: Mode, count: usize, lines: Vec<DiffLine>, problem: Option<&str>| {
                    DiffSection {
                        what: what.to_owned(),
                        mode: mode_name(mode).to_owned(),
                        count,
                        lines,
                        problem: problem.unwrap_or_default().to_owned(),
                        equal: None,
                        not_judged: None,
                    }
                };
            let (routes, first) = view.differences(max);
            let first = first.into_iter().map(|one| DiffLine {
                mark: one.mark.to_string(),
                text: one.text,
                since_seconds: one.since.map(|span| span.as_secs()),
                hint: one.hint,
                held: one.held,
            });
            let (since, held) =
                (view.rules_drift_age().map(|span| span.as_secs()), view.drift_hold_remaining());
            // Rule differences are texts, and the kernel does not name the process that changed a rule.
            let line = |text: &String| DiffLine {
                mark: if text.ends_with("missing") { "-" } else { "~" }.to_owned(),
                text: text.clone(),
                since_seconds: since,
                hint: None,
                held: held.is_some(),
            };
            let (count, words) = view.rules_drift();
            let is_set = |line: &&String| line.starts_with("set ");
            let sets: Vec<DiffLine> = words.iter().filter(is_set).take(max).map(line).collect();
            let rules: Vec<DiffLine> =
                words.iter().filter(|line| !is_set(line)).take(max).map(line).collect();
            // The count covers objects and elements, the texts describe only the first ones.
            let in_sets = if rules.is_empty() { count } else { sets.len() };
            let problem = view.rules_problem();
            let mode = view.rules_mode();
            Diff {
                sections: vec![
                    section("routes", view.mode(), routes, first.collect(), None),
                    section("sets", mode, in_sets, sets, problem),
                    section("rules", mode, count - in_sets, rules, problem),
                ],
                compared_seconds: view.last_compare().map(|(ago, _)| ago.as_secs()),
                held_seconds: held.map(|left| left.as_secs()),
                unseen: Vec::new(),
                lately,
            }
        })
        .await
}

/// Starts a drift hold, or ends it and repairs the differences; the kernel thread does both.
pub(in crate::agent) async fn hold_drift(
    server: &Server,
    request: DiffRequest,
) -> Result<ActionResult, ApiError> {
    let longest = tortie_kernel::HOLD_MAX.as_secs();
    let span = match request.hold_seconds {
        Some(seconds) if seconds == 0 || seconds > longest => {
            let text = format!("a hold lasts from 1 s to {longest} s");
            return Err(ApiError { code: "invalid".to_owned(), text });
        }
        other => other.map(Duration::from_secs),
    };
    let mode = server.handle().kernel().ask(|view| view.mode()).await?;
    if mode != Mode::Program {
        let text =
            format!("this agent writes no routes (--kernel {}): there is nothing to repair", mode_name(mode));
        return Err(ApiError { code: "invalid".to_owned(), text });
    }
    let kernel = server.handle().kernel().thread()?;
    let (answer, wait) = oneshot::channel();
    let done = Box::new(move || _ = answer.send(()));
    kernel.try_send(ToKernel::HoldDrift(span, done)).map_err(|_| kernel_busy())?;
    within_timeout(wait).await?;
    let text = match span {
        Some(span) => format!(
            "changes that other processes make to own routes and rules are not repaired for {}; `tortie \
             diff --repair` ends the hold",
            crate::api::span(span.as_secs())
        ),
        None => "everything was compared, and all differences were repaired".to_owned(),
    };
    Ok(ActionResult { text })
}

pub(in crate::agent) async fn list(server: &Server, all: bool) -> Result<List<Endpoint>, ApiError> {
    let items = policy_view(server.handle(), move |view| Ok(view.endpoints(all))).await?;
    Ok(server.list("EndpointList", items).await)
}

pub(in crate::agent) async fn show(server: &Server, name: String) -> Result<EndpointDetail, ApiError> {
    let mut detail = policy_view(server.handle(), move |view| view.endpoint(&name)).await?;
    let mapped = tokio::task::spawn_blocking(tortie_kernel::container::mapped_ports).await;
    let addresses: BTreeSet<IpAddr> =
        detail.endpoint.addresses.iter().filter_map(|text| text.split('/').next()?.parse().ok()).collect();
    for mapped in mapped.map(Result::unwrap_or_default).unwrap_or_default() {
        if mapped.addrs.iter().any(|addr| addresses.contains(addr)) {
            detail.ports.extend(mapped.mappings.iter().map(ToString::to_string));
        }
    }
    Ok(detail)
}

pub(in crate::agent) async fn selected(server: &Server, selector: String) -> Result<SelectorMatch, ApiError> {
    policy_view(server.handle(), move |view| view.selected(&selector)).await
}

pub(in crate::agent) async fn list_policies(server: &Server, all: bool) -> Result<List<Policy>, ApiError> {
    let items = policy_view(server.handle(), move |view| Ok(view.policies(all))).await?;
    Ok(server.list("PolicyList", items).await)
}

pub(in crate::agent) async fn show_policy(server: &Server, name: String) -> Result<PolicyDetail, ApiError> {
    let (mut detail, dialect) =
        policy_view(server.handle(), move |view| Ok((view.policy(&name)?, view.model.dialect()))).await?;
    let name = detail.policy.name.as_str();
    let source = match &detail.policy.tier {
        Some(tier) => Source::policy(dialect, tier, name),
        None => Source::Profile(name.into()),
    };
    let hits = server.handle().kernel().ask(move |view| view.rule_hits(&source).ok()).await.ok().flatten();
    detail.counted = hits.filter(|both| both.iter().any(|hits| !hits.is_empty())).map(|both| {
        let words = |hits: Vec<RuleHits>| {
            hits.into_iter().map(|hits| Counted { packets: hits.packets, bytes: hits.bytes }).collect()
        };
        let [inbound, outbound] = both.map(words);
        PolicyCounted { inbound, outbound }
    });
    Ok(detail)
}
