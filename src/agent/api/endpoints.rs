//! CoreQuestions about endpoints and policies: the core answers them from what it has, as long as policy is on; else they are
//! answered from a copy of the model, beside the core.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::status::mode_name;
use crate::agent::core::Core;
use crate::agent::core::enforcement::Policy as Enforced;
use crate::agent::handle::{Ask, Live, busy, patient};
use crate::agent::policy_view::dry_run;
use crate::agent::policy_view::packet::{self, Asked};
use crate::agent::policy_view::{Offline, Picture};
use crate::api::codes;
use crate::api::policy::{
    Counted, Diff, DiffLine, DiffRequest, DiffSection, DropRow, DryRun, DryRunRequest, Endpoint,
    EndpointDetail, Policy, PolicyCounted, PolicyDetail, PolicyStatus, Trace, TraceQuery,
};
use crate::api::status::{ApiError, Done, List};
use tortie_engine::model::Model;
use tortie_engine::policy::path::{self, HostPath};
use tortie_engine::policy::{EndpointPolicy, Globals, Source};
use tortie_kernel::{DropKind, Dropped, Mode, RuleHits, ToKernel};

/// Something to be asked on the core's thread.
pub(in crate::agent) struct CoreQuestion(pub(in crate::agent) Box<dyn FnOnce(&Core) + Send>);

impl std::fmt::Debug for CoreQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CoreQuestion")
    }
}

impl Core {
    /// For questions; `None`: nothing was read yet, or policy is off.
    pub(in crate::agent) fn picture(&self) -> Option<Picture<'_>> {
        let policy = self.enforcement.policy()?;
        Some(Picture {
            model: &self.model,
            ruleset: &policy.ruleset,
            globals: &policy.globals,
            conditions: Some(self.enforcement.conditions()),
            failed: Some(self.enforcement.failed()),
        })
    }

    /// What `status` says of rules and endpoints. Looks at every endpoint of this host and every chain.
    pub(in crate::agent) fn policy_status(&self) -> PolicyStatus {
        let enforcement = &self.enforcement;
        let mode = mode_name(enforcement.mode()).to_owned();
        let Some(policy) = enforcement.policy() else {
            return PolicyStatus { mode, in_sync: true, ..PolicyStatus::default() };
        };
        let ruleset = &policy.ruleset;
        let inactive =
            |policy: &&Arc<EndpointPolicy>| matches!(&***policy, EndpointPolicy::Workload(w) if !w.active);
        let sources: BTreeSet<&Source> = ruleset.chains.keys().map(|id| &id.source).collect();
        let profiles = sources.iter().filter(|source| matches!(source, Source::Profile(_))).count();
        PolicyStatus {
            mode,
            endpoints: ruleset.endpoints.len(),
            inactive: ruleset.endpoints.values().filter(inactive).count(),
            failed: enforcement.failed().len(),
            policies: sources.len() - profiles,
            profiles,
            rules: ruleset.chains.values().map(|chain| chain.rules.len()).sum(),
            sets: ruleset.sets.len(),
            in_sync: enforcement.acknowledged() >= enforcement.serial(),
            apply_micros: enforcement.micros(),
            table: None,
        }
    }
}

/// How the core takes a question.
enum Taken<T, Q> {
    Answered(T),
    /// Policy is off.
    Copied(Q, Box<Model>),
    /// The store has not been read.
    Nothing,
}

impl Live {
    pub(in crate::agent) async fn picture<T, Q>(&self, question: Q) -> Result<T, ApiError>
    where
        T: Send + 'static,
        Q: FnOnce(&Picture<'_>) -> Result<T, ApiError> + Send + 'static,
    {
        let taken = self
            .ask(|answer| {
                Ask::Core(CoreQuestion(Box::new(move |core| {
                    let taken = match core.picture() {
                        Some(picture) => Taken::Answered(question(&picture)),
                        None if core.loaded() => Taken::Copied(question, Box::new(core.model.clone())),
                        None => Taken::Nothing,
                    };
                    let _ = answer.send(taken);
                })))
            })
            .await?;
        match taken {
            Taken::Answered(answer) => answer,
            Taken::Copied(question, model) => {
                let work = move || question(&Offline::from_model(*model).picture());
                tokio::task::spawn_blocking(work).await.map_err(|_| busy("the agent is stopping"))?
            }
            Taken::Nothing => Err(busy("the store has not been read yet")),
        }
    }

    /// The way of a packet as the store has it.
    pub(in crate::agent) async fn follow(
        &self,
        query: TraceQuery,
    ) -> Result<(Asked, path::Trace, Arc<Globals>), ApiError> {
        let (asked, excerpt, globals) = self
            .picture(move |picture| {
                let asked = Asked::read(picture, &query)?;
                let excerpt = asked.excerpt(picture.model)?;
                Ok((asked, excerpt, Arc::new(picture.globals.clone())))
            })
            .await?;
        // Rules of hosts are made from every policy: not on the core's thread.
        let work = move || asked.follow(&excerpt).map(|found| (asked, found, globals));
        tokio::task::spawn_blocking(work).await.map_err(|_| busy("the agent is stopping"))?
    }

    /// What becomes of a packet: as the store has it, and with `kernel` this host's part of it as the kernel thread has it.
    pub(in crate::agent) async fn explain(&self, query: TraceQuery, kernel: bool) -> Result<Trace, ApiError> {
        let (asked, found, globals) = self.follow(query).await?;
        if !kernel {
            let walked = found.host_paths.iter().map(|half| packet::stored(&self.node, half)).collect();
            return Ok(asked.answer(&found, walked, false));
        }
        let node = self.node.clone();
        self.kernel(move |view| {
            // A kernel that is left alone has no interfaces to tell of.
            let known = view.mode() != Mode::Off;
            let walk = |half: &HostPath| match known && half.host == node && !half.outer {
                true => packet::live(view, &node, &globals, half),
                false => packet::stored(&node, half),
            };
            let walked = found.host_paths.iter().map(walk).collect();
            asked.answer(&found, walked, known)
        })
        .await
    }

    /// What a value would change; with connections where the kernel can be asked for them.
    pub(in crate::agent) async fn try_write(&self, request: DryRunRequest) -> Result<DryRun, ApiError> {
        let copy = |answer: oneshot::Sender<Option<(Model, Option<Enforced>)>>| {
            Ask::Core(CoreQuestion(Box::new(move |core| {
                let policy = core.enforcement.policy().cloned();
                let _ = answer.send(core.loaded().then(|| (core.model.clone(), policy)));
            })))
        };
        let (model, policy) = self.ask(copy).await?.ok_or_else(|| busy("the store has not been read yet"))?;
        let interfaces = self.kernel(|view| (view.mode() != Mode::Off).then(|| view.interfaces())).await;
        let work = move || {
            let before = policy.unwrap_or_else(|| Enforced::of(&model));
            let mut trial = dry_run::run(model, before, &request)?;
            let tracked = match &interfaces {
                Ok(Some(interfaces)) => tortie_kernel::connections().map(|tracked| (interfaces, tracked)),
                _ => Err(std::io::Error::other("the kernel is left alone (--kernel off)")),
            };
            match tracked {
                Ok((interfaces, tracked)) => {
                    trial.answer.connections = Some(dry_run::connections(&trial, interfaces, &tracked));
                }
                Err(error) => trial.answer.not_looked_at.push(format!("connections: {error}")),
            }
            Ok(trial.answer)
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| busy("the agent is stopping"))?
    }

    /// What packet rules dropped within this time, the most frequent first.
    pub(in crate::agent) async fn dropped(&self, within: Duration) -> Result<List<DropRow>, ApiError> {
        let drops = self.drops.load_full().ok_or_else(|| busy("the kernel thread has not started yet"))?;
        if let Some(trouble) = drops.problem() {
            return Err(ApiError {
                code: "no-drops".to_owned(),
                text: format!("drops are not seen here: {trouble}"),
            });
        }
        let mut kinds = drops.within(within);
        kinds.sort_unstable_by(|(a_kind, a), (b_kind, b)| {
            b.count.cmp(&a.count).then_with(|| a_kind.cmp(b_kind))
        });
        let prefixes: BTreeSet<String> = kinds.iter().map(|(kind, _)| kind.prefix.clone()).collect();
        let rules: BTreeMap<String, String> = self
            .kernel(move |view| {
                prefixes
                    .into_iter()
                    .filter_map(|prefix| Some((prefix.clone(), view.explain(&prefix)?)))
                    .collect()
            })
            .await?;
        let addrs: BTreeSet<IpAddr> = kinds.iter().flat_map(|(kind, _)| [kind.src, kind.dst]).collect();
        let names = self.picture(move |picture| Ok(picture.names_of(&addrs))).await?;
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
                .unwrap_or_else(|| format!("a rule that is gone ({})", kind.prefix)),
        };
        let items = kinds.into_iter().map(row).collect();
        Ok(self.list("DropList", items).await)
    }

    /// How the kernel differs from what is wanted.
    pub(in crate::agent) async fn differences(&self, max: usize) -> Result<Diff, ApiError> {
        if self.beside.is_some() {
            return self.observed_differences(max).await;
        }
        let notes = self.facts().await.map(|facts| facts.notes).unwrap_or_default();
        let lately = notes.into_iter().find(|note| note.code == codes::FOREIGN_CHANGES.name);
        self.kernel(move |view| {
            let section =
                |what: &str, mode: Mode, count: usize, lines: Vec<DiffLine>, trouble: Option<&str>| {
                    DiffSection {
                        what: what.to_owned(),
                        mode: mode_name(mode).to_owned(),
                        count,
                        lines,
                        trouble: trouble.unwrap_or_default().to_owned(),
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
            // Rules are told in words; the kernel does not say who changed them.
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
            // The count is of objects and elements; words are of the first ones.
            let in_sets = if rules.is_empty() { count } else { sets.len() };
            let trouble = view.rules_problem();
            let mode = view.rules_mode();
            Diff {
                sections: vec![
                    section("routes", view.mode(), routes, first.collect(), None),
                    section("sets", mode, in_sets, sets, trouble),
                    section("rules", mode, count - in_sets, rules, trouble),
                ],
                compared_seconds: view.last_compare().map(|(ago, _)| ago.as_secs()),
                held_seconds: held.map(|left| left.as_secs()),
                unseen: Vec::new(),
                lately,
            }
        })
        .await
    }

    /// Leaves differences for study, or repairs them now. The kernel thread does both.
    pub(in crate::agent) async fn study(&self, request: DiffRequest) -> Result<Done, ApiError> {
        let longest = tortie_kernel::HOLD_MAX.as_secs();
        let span = match request.hold_seconds {
            Some(seconds) if seconds == 0 || seconds > longest => {
                let text = format!("a hold lasts from 1 s to {longest} s");
                return Err(ApiError { code: "invalid".to_owned(), text });
            }
            other => other.map(Duration::from_secs),
        };
        let mode = self.kernel(|view| view.mode()).await?;
        if mode != Mode::Program {
            let text = format!(
                "this agent writes no routes (--kernel {}): there is nothing to repair",
                mode_name(mode)
            );
            return Err(ApiError { code: "invalid".to_owned(), text });
        }
        let handle = self.kernel.load_full().ok_or_else(|| busy("the kernel thread has not started yet"))?;
        let (answer, wait) = oneshot::channel();
        let done = Box::new(move || _ = answer.send(()));
        handle
            .try_send(ToKernel::HoldDrift(span, done))
            .map_err(|_| busy("the kernel thread is busy; try again"))?;
        patient(wait).await?;
        let text = match span {
            Some(span) => format!(
                "what others change in own routes and rules is left as it is for {}; `tortie diff --repair` ends that",
                crate::api::span(span.as_secs())
            ),
            None => "everything was compared, and what differed was written".to_owned(),
        };
        Ok(Done { text })
    }

    pub(in crate::agent) async fn list_endpoints(&self, all: bool) -> Result<List<Endpoint>, ApiError> {
        let items = self.picture(move |picture| Ok(picture.endpoints(all))).await?;
        Ok(self.list("EndpointList", items).await)
    }

    pub(in crate::agent) async fn show_endpoint(&self, name: String) -> Result<EndpointDetail, ApiError> {
        self.picture(move |picture| picture.endpoint(&name)).await
    }

    pub(in crate::agent) async fn list_policies(&self, all: bool) -> Result<List<Policy>, ApiError> {
        let items = self.picture(move |picture| Ok(picture.policies(all))).await?;
        Ok(self.list("PolicyList", items).await)
    }

    pub(in crate::agent) async fn show_policy(&self, name: String) -> Result<PolicyDetail, ApiError> {
        let mut detail = self.picture(move |picture| picture.policy(&name)).await?;
        let name = detail.policy.name.as_str().into();
        let source = match &detail.policy.tier {
            Some(tier) => Source::Policy { tier: tier.as_str().into(), name },
            None => Source::Profile(name),
        };
        let hits = self.kernel(move |view| view.rule_hits(&source).ok()).await.ok().flatten();
        detail.counted = hits.filter(|both| both.iter().any(|hits| !hits.is_empty())).map(|both| {
            let words = |hits: Vec<RuleHits>| {
                hits.into_iter().map(|hits| Counted { packets: hits.packets, bytes: hits.bytes }).collect()
            };
            let [inbound, outbound] = both.map(words);
            PolicyCounted { inbound, outbound }
        });
        Ok(detail)
    }
}
