//! Layers of settings: all hosts, the hosts that a selector matches, this host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::objects::Objects;
use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use super::assignment::{Assignment, Layer};
use super::member::{Answer, Member, is_in_force};
use crate::key::{Key, Scope};
use crate::resource::{Setting, Settings};
use crate::selector::Selector;

/// Object that is read for all hosts.
const DEFAULT: &str = "default";
/// Prefix of the names of objects that are read for one host.
const NODE: &str = "node.";
/// Settings of which the second is in force here, and the first replaces it if it is set.
const REPLACED: (&str, &str) = ("NftablesMarkMask", "IptablesMarkMask");

/// A setting of a layer, with the objects that it came from.
#[derive(Debug, Clone)]
struct Sourced {
    assignment: Assignment,
    origin: Vec<ObjectKey>,
}

/// Settings of a layer by name.
type Named = BTreeMap<&'static str, Sourced>;

/// Computes the settings of a host.
pub(super) fn settings(objects: &Objects, node: &str) -> Output {
    let mut output = Output::default();
    let mut unknown = BTreeSet::new();
    let own = objects.get(Kind::FelixConfiguration, &format!("{NODE}{node}"));
    let selected = selected(objects, node, &mut output);
    let mut read = |object: Option<&Object>, output: &mut Output| -> Named {
        let Some(object) = object else { return Named::new() };
        let layer = Layer::of(object);
        report(object, &layer, &mut unknown, output);
        let sourced = |assignment| Sourced { assignment, origin: vec![object.key.clone()] };
        layer.assignments.into_iter().map(|(name, assignment)| (name, sourced(assignment))).collect()
    };
    let mut host = read(own, &mut output);
    for (name, mut sourced) in read(selected, &mut output) {
        // The labels of the Node are a reason, too.
        sourced.origin.push(ObjectKey::global(Kind::Node, node));
        host.entry(name).or_insert(sourced);
    }
    let mut global = read(objects.get(Kind::FelixConfiguration, DEFAULT), &mut output);
    in_force(&global, &host, &mut output);
    replace(&mut global, &mut host);
    emit(&global, &host, node, &mut output);
    output
}

/// Returns the object whose selector matches the labels of the host's Node: the oldest, then the one with the
/// lowest name. Times are compared as Calico writes them, in UTC. Without a Node none matches.
fn selected<'a>(objects: &'a Objects, node: &str, output: &mut Output) -> Option<&'a Object> {
    let labels = objects.get(Kind::Node, node).map(|node| &node.metadata.labels);
    let mut matching = Vec::new();
    let of_all = objects.of_kind(Kind::FelixConfiguration);
    for object in of_all.filter(|object| object.key.name != DEFAULT && !object.key.name.starts_with(NODE)) {
        let text = match object.spec.get("nodeSelector") {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text.trim(),
            Some(_) => {
                let text = "`spec.nodeSelector`: this is no text, and matches no host: write it in quotes";
                output.problem(&object.key, "invalid-value", text);
                continue;
            }
        };
        if text.is_empty() {
            let text = "`spec.nodeSelector` is empty, and matches no host: write a selector, such as `all()`";
            output.problem(&object.key, "setting-noted", text);
            continue;
        }
        match text.parse::<Selector>() {
            Ok(selector) => matching.extend(labels.is_some_and(|l| selector.matches(l)).then_some(object)),
            Err(error) => {
                let text = format!("`spec.nodeSelector`: {error}; it matches no host");
                output.problem(&object.key, "invalid-value", text);
            }
        }
    }
    let age = |object: &'a Object| (&object.metadata.creation_timestamp, &object.key.name);
    matching.sort_by(|a, b| age(a).cmp(&age(b)));
    let winner = matching.first().copied()?;
    for object in matching.iter().skip(1) {
        let text = format!(
            "this object selects this host, and FelixConfiguration {}, which is older, alone counts: \
             let their selectors differ",
            winner.key.name
        );
        output.problem(&object.key, "setting-noted", text);
    }
    Some(winner)
}

/// Reports what cannot be used of an object. An unknown name is reported once, at the strongest object.
fn report(object: &Object, layer: &Layer, unknown: &mut BTreeSet<String>, output: &mut Output) {
    for text in &layer.invalid {
        output.problem(&object.key, "invalid-value", format!("{text}; until then the default counts"));
    }
    for (name, place) in &layer.unknown {
        if unknown.insert(name.clone()) {
            let text = format!(
                "`{place}` is no setting that this version has: see whether a newer version of Tortie has it"
            );
            output.problem(&object.key, "setting-noted", text);
        }
    }
    for text in &layer.noted {
        output.problem(&object.key, "setting-noted", text.clone());
    }
}

/// Reports the values that count on this host and do not have the effect that they ask for.
fn in_force(global: &Named, host: &Named, output: &mut Output) {
    let names: BTreeSet<&str> = global.keys().chain(host.keys()).copied().collect();
    for name in names {
        let Some(sourced) = host.get(name).or_else(|| global.get(name)) else { continue };
        let Assignment { member: Some(member), text: Some(text), place } = &sourced.assignment else {
            continue;
        };
        if let Some((code, why)) = shortfall(member, name, text)
            && let Some(object) = sourced.origin.first()
        {
            output.problem(object, code, format!("`{place}` is `{text}`: {why}"));
        }
    }
}

/// Returns the problem of a value that has not the effect that it asks for.
fn shortfall(member: &Member, name: &str, text: &str) -> Option<(&'static str, String)> {
    if member.is_default(text) {
        return None;
    }
    match member.answer {
        Answer::Honored if is_in_force(name) || name == REPLACED.0 => None,
        Answer::Honored => {
            let why = "this agent reads it, and does not act on it: remove it where its effect is not needed";
            Some(("setting-not-in-force", why.to_owned()))
        }
        Answer::Refused(why) => {
            Some(("unsupported-setting", format!("{why}: remove it, or run another agent on this host")))
        }
        Answer::Noted(why) => Some(("setting-noted", why.to_owned())),
        Answer::Ignored => None,
    }
}

/// Lets a setting that replaces another one have its name and place.
fn replace(global: &mut Named, host: &mut Named) {
    let (by, name) = REPLACED;
    if let Some(sourced) = host.get(by) {
        host.insert(name, sourced.clone());
    } else if let Some(sourced) = global.get(by) {
        global.insert(name, sourced.clone());
        host.remove(name);
    }
}

/// Emits the entries. Where the value of the host is not valid and there is one for all hosts, the default
/// is written for the host.
fn emit(global: &Named, host: &Named, node: &str, output: &mut Output) {
    let mut put = |scope: Scope, name: &str, text: &str, origin: &[ObjectKey]| {
        output.put_of(Key::Setting(scope, name.to_owned()), text.as_bytes(), origin.to_vec());
    };
    for (name, sourced) in global {
        if let Some(text) = &sourced.assignment.text {
            put(Scope::Global, name, text, &sourced.origin);
        }
    }
    for (name, sourced) in host {
        let is_global = || global.get(name).is_some_and(|sourced| sourced.assignment.text.is_some());
        match &sourced.assignment.text {
            Some(text) => put(Scope::Host(node.to_owned()), name, text, &sourced.origin),
            None if is_global() => {
                put(Scope::Host(node.to_owned()), name, &default(name, &sourced.assignment), &sourced.origin);
            }
            None => {}
        }
    }
}

/// Returns the default of a setting as text.
fn default(name: &str, assignment: &Assignment) -> String {
    let settings = Settings::calico3().all();
    let known = settings.iter().find(|setting| setting.name() == name).map(Setting::to_text);
    known.unwrap_or_else(|| {
        assignment.member.map_or_else(String::new, |member| member.default_text().to_owned())
    })
}
