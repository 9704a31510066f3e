//! Describes the behaviour of the agent for values that cannot be read.

use tortie_config::key::{Key, ProfilePart};

use crate::api::status::InvalidObject;
use tortie_engine::model::{InvalidKey, Model};
use tortie_engine::policy::EndpointLabels;

/// Returns the behaviour that applies in place of an unreadable value.
pub(in crate::agent) fn consequence(key: Option<&Key>, last_good: bool) -> &'static str {
    match (key, last_good) {
        (Some(Key::Profile { part: ProfilePart::Rules, .. }), _) => {
            "it denies everything that no policy before it decides"
        }
        (_, true) => "its last good value stays in force",
        (Some(Key::Policy { .. }), false) => {
            "it never had a valid value, so it has no effect: traffic that it should deny is not denied by \
             it"
        }
        (_, false) => "it never had a valid value, so it counts as absent",
    }
}

/// Returns the unreadable values for `status`.
pub(in crate::agent::core) fn invalid_objects(model: &Model) -> Vec<InvalidObject> {
    let object = |problem: &InvalidKey| InvalidObject {
        key: problem.key.clone(),
        error: problem.error.clone(),
        revision: problem.revision,
        last_good: problem.last_good,
        may_act_on: match problem.parsed() {
            Some(Key::Policy { .. }) if !problem.last_good => may_act_on(model, problem),
            _ => Vec::new(),
        },
    };
    model.invalid_keys().map(object).collect()
}

/// Returns the endpoints of this host to which an unreadable policy may apply; all of them if its selector is
/// unreadable, too.
fn may_act_on(model: &Model, policy: &InvalidKey) -> Vec<String> {
    let labels = EndpointLabels::of(model, |key| key.host() == model.node());
    match &policy.selector {
        Some(selector) => labels.selected(selector).map(|(key, _)| model.name_of_endpoint(key)).collect(),
        None => labels.keys().map(|key| model.name_of_endpoint(key)).collect(),
    }
}
