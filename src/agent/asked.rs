//! CoreQuestions about endpoints and policies: the core answers them from what it has, as long as policy is on; else they are
//! answered from a copy of the model, beside the core.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::backend::{Ask, Live, busy};
use super::core::Core;
use super::packet::{self, Asked};
use super::picture::{Offline, Picture};
use super::status::mode_name;
use crate::model::Model;
use crate::policy::path::Half;
use crate::policy::{EndpointPolicy, Source};
use crate::serve::api::{ApiError, List};
use crate::serve::policy::{Endpoint, EndpointDetail, Policy, PolicyDetail, PolicyStatus, Trace, TraceQuery};

/// Something to be asked on the core's thread.
pub(super) struct CoreQuestion(pub(super) Box<dyn FnOnce(&Core) + Send>);

impl std::fmt::Debug for CoreQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CoreQuestion")
    }
}

impl Core {
    /// For questions; `None`: nothing was read yet, or policy is off.
    pub(super) fn picture(&self) -> Option<Picture<'_>> {
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
    pub(super) fn policy_status(&self) -> PolicyStatus {
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
    async fn picture<T, Q>(&self, question: Q) -> Result<T, ApiError>
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

    /// What becomes of a packet: as the store has it, and with `kernel` this host's part of it as the kernel thread has it.
    pub(super) async fn explain(&self, query: TraceQuery, kernel: bool) -> Result<Trace, ApiError> {
        let (asked, model, globals) = self
            .picture(move |picture| {
                let asked = Asked::read(picture, &query)?;
                Ok((asked, picture.model.clone(), Arc::new(picture.globals.clone())))
            })
            .await?;
        // Rules of other hosts are made from the whole cluster: not on the core's thread.
        let work = move || asked.follow(&model).map(|found| (asked, found));
        let (asked, found) =
            tokio::task::spawn_blocking(work).await.map_err(|_| busy("the agent is stopping"))??;
        if !kernel {
            let walked = found.halves.iter().map(|half| packet::stored(&self.node, half)).collect();
            return Ok(asked.answer(&found, walked, false));
        }
        let node = self.node.clone();
        self.kernel(move |view| {
            let walk = |half: &Half| match half.host == node && !half.outer {
                true => packet::live(view, &node, &globals, half),
                false => packet::stored(&node, half),
            };
            let walked = found.halves.iter().map(walk).collect();
            asked.answer(&found, walked, true)
        })
        .await
    }

    pub(super) async fn list_endpoints(&self, all: bool) -> Result<List<Endpoint>, ApiError> {
        let items = self.picture(move |picture| Ok(picture.endpoints(all))).await?;
        Ok(self.list("EndpointList", items).await)
    }

    pub(super) async fn show_endpoint(&self, name: String) -> Result<EndpointDetail, ApiError> {
        self.picture(move |picture| picture.endpoint(&name)).await
    }

    pub(super) async fn list_policies(&self, all: bool) -> Result<List<Policy>, ApiError> {
        let items = self.picture(move |picture| Ok(picture.policies(all))).await?;
        Ok(self.list("PolicyList", items).await)
    }

    pub(super) async fn show_policy(&self, name: String) -> Result<PolicyDetail, ApiError> {
        self.picture(move |picture| picture.policy(&name)).await
    }
}
