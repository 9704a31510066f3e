//! Describes the behaviour of the agent for values that cannot be read.

use tortie_config::calico3::{ObjectKey, Problem as ObjectProblem};
use tortie_config::key::{Key, ProfilePart};

use crate::api::codes::INVALID_VALUE;
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

/// A value that cannot be read, and what applies in its place.
#[derive(Debug, Clone)]
pub(in crate::agent) struct UnreadableValue {
    /// The value, under the key that a person wrote.
    pub(in crate::agent) object: InvalidObject,
    /// Name for people: the object in a Calico 3 store, otherwise the key.
    pub(in crate::agent) name: String,
    pub(in crate::agent) consequence: &'static str,
}

/// Returns the unreadable values for `status`. In a Calico 3 store each has the key of its object and the
/// error in it.
pub(in crate::agent::core) fn unreadable_values(model: &Model) -> Vec<UnreadableValue> {
    let problems = model.object_problems();
    let value = |problem: &InvalidKey| {
        let key = problem.parsed();
        let object = model.object_of(&problem.key);
        let wrong = |of: &&&ObjectProblem| Some(&of.key) == object.as_ref() && of.code == INVALID_VALUE.name;
        let may_act_on = match key {
            Some(Key::Policy { .. }) if !problem.last_good => may_act_on(model, problem),
            _ => Vec::new(),
        };
        UnreadableValue {
            name: object.as_ref().map_or_else(|| problem.key.clone(), ObjectKey::title),
            consequence: consequence(key.as_ref(), problem.last_good),
            object: InvalidObject {
                error: problems.iter().find(wrong).map_or(&problem.error, |of| &of.text).clone(),
                key: object.as_ref().map_or_else(|| problem.key.clone(), ToString::to_string),
                revision: problem.revision,
                last_good: problem.last_good,
                may_act_on,
            },
        }
    };
    model.invalid_keys().map(value).collect()
}

/// Returns the problems of objects of a Calico 3 store, without those that [`unreadable_values`] names.
pub(in crate::agent::core) fn object_problems(
    model: &Model,
    named: &[UnreadableValue],
) -> Vec<ObjectProblem> {
    let is_named = |problem: &ObjectProblem| {
        let key = problem.key.to_string();
        problem.code == INVALID_VALUE.name && named.iter().any(|value| value.object.key == key)
    };
    model.object_problems().into_iter().filter(|problem| !is_named(problem)).cloned().collect()
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
