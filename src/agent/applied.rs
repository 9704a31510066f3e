//! The `Applied` call: when a key is in force.
//!
//! What others do never delays an answer: it waits for the kernel to acknowledge the intent that the key's revision was
//! in, not for those that followed. What else fails does not fail it.

use tortie_config::key::Key;

use super::core::Core;
use crate::serve::api::AppliedRequest;

/// An answer: the result in the API's word, and the reason.
pub(super) type Verdict = (&'static str, Option<String>);

impl Core {
    /// The answer to a request, as soon as there is one. `needed` stays with the request: the intent that has to be
    /// acknowledged, once the revision is in one.
    pub(super) fn verdict(&self, request: &AppliedRequest, needed: &mut Option<u64>) -> Option<Verdict> {
        let failed = |reason: String| Some(("failed", Some(reason)));
        let key = match request.key.parse::<Key>() {
            Ok(key) => key,
            Err(error) => return failed(error.to_string()),
        };
        if let Key::Endpoint(endpoint) = &key
            && endpoint.host() != self.model.node()
        {
            let (host, node) = (endpoint.host(), self.model.node());
            return failed(format!(
                "this is an endpoint of {host}, and the agent here is {node}'s: ask there"
            ));
        }
        if let Some(reason) = &self.frozen {
            return Some(("frozen", Some(reason.clone())));
        }
        if !self.running() || self.in_force < request.revision {
            return None;
        }
        let needed = *needed.get_or_insert(self.generation);
        if self.acknowledged < needed {
            return None;
        }
        if let Some(problem) = self.model_problem(&request.key) {
            return failed(problem);
        }
        if let Key::Block(block) | Key::Affinity { block, .. } = &key
            && let Some(why) = self.refused.get(block)
        {
            return failed(format!("the kernel refuses the blackhole of {block}: {why}"));
        }
        Some(("applied", None))
    }
}
