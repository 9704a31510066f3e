//! Settings: FelixConfiguration and ClusterInformation.

use super::super::settings::{member_value, write_annotation};
use super::hosts;
use super::names::norm;
use super::output::{Converted, ConvertedObject, Entry, Weight};
use crate::calico3::{Kind, ObjectKey};
use crate::key::{Key, Scope};
use crate::resource::Setting;

/// Names of the settings of a ClusterInformation, with its members.
const CLUSTER: [(&str, &str); 3] =
    [("ClusterGUID", "clusterGUID"), ("ClusterType", "clusterType"), ("CalicoVersion", "calicoVersion")];

fn cluster() -> ObjectKey {
    ObjectKey::global(Kind::ClusterInformation, "default")
}

/// Converts a setting.
pub(super) fn setting(entry: &Entry<'_>, scope: &Scope, setting: &Setting, out: &mut Converted) {
    let Key::Setting(_, name) = &entry.key else { return };
    if matches!(setting, Setting::Unset(_)) {
        return;
    }
    if hosts::is_of_node(name) {
        if *scope == Scope::Global {
            out.finding(Weight::Lost, entry.text, "only a host has this setting: write it for each host");
        }
        return;
    }
    if let Some((_, member)) = CLUSTER.iter().find(|(known, _)| known == name) {
        if *scope == Scope::Global {
            out.shared(cluster(), entry.text).set(member, setting.to_text());
        }
        return;
    }
    let object = scope.host().map_or_else(|| "default".to_owned(), |host| format!("node.{}", norm(host)));
    let key = ObjectKey::global(Kind::FelixConfiguration, &object);
    let text = String::from_utf8_lossy(entry.value);
    match member_value(name, text.trim()) {
        Some(Ok((member, value))) => out.shared(key, entry.text).set(member, value),
        Some(Err(error)) => out.finding(Weight::Error, entry.text, error.to_string()),
        // A setting of this program, which no member has.
        None if Setting::NAMES.contains(&name.as_str()) => {
            let (annotation, text) = write_annotation(name, &setting.to_text());
            out.shared(key, entry.text).annotations.insert(annotation, text);
        }
        None => out.finding(Weight::Lost, entry.text, "there is no such setting in Calico 3"),
    }
}

/// Converts the readiness of the store.
pub(super) fn ready(entry: &Entry<'_>, ready: bool, out: &mut Converted) {
    if !ready {
        out.finding(Weight::Note, entry.text, "the store is not ready: the new one is not, either");
    }
    out.shared(cluster(), entry.text).set("datastoreReady", ready);
}

/// Adds what every store of Calico 3 has: a ClusterInformation that says whether it is ready.
pub(super) fn finish(out: &mut Converted) {
    let object = out.objects.entry(cluster()).or_insert_with(|| {
        let mut object = ConvertedObject::new(cluster(), "");
        object.from.clear();
        object
    });
    // Calico's plugin for CNI does not run without this member.
    object.spec.entry("datastoreReady").or_insert_with(|| true.into());
}
