//! Policies, tiers and profiles.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::output::{Converted, ConvertedObject, Entry, Weight, report_unused};
use super::{names, rule};
use crate::Resource;
use crate::calico3::{Kind, ObjectKey};
use crate::key::{Key, ProfilePart};
use crate::resource::{Order, Policy, PolicyTypes, TierMetadata};

/// Tier that exists without an object.
const DEFAULT: &str = "default";
/// Prefixes of profiles that controllers write again.
const OF_CONTROLLERS: [&str; 2] = ["k8s_ns.", "openstack-sg-"];
/// Prefix of policies that a controller writes again.
const OF_KUBERNETES: &str = "knp.default.";

/// Formats an order; whole numbers without fraction.
fn order(order: Order) -> Value {
    let text = order.get().to_string();
    text.parse::<i64>().map_or_else(|_| json!(order.get()), Value::from)
}

/// Converts a policy.
pub(super) fn policy(entry: &Entry<'_>, tier: &str, name: &str, policy: &Policy, out: &mut Converted) {
    if name.starts_with(OF_KUBERNETES) {
        out.finding(Weight::Note, entry.text, "left out: kube-controllers writes it again");
        return;
    }
    let tier = names::norm(tier).replace('.', "-");
    let new = format!("{tier}.{}", names::policy(name));
    let key = ObjectKey::global(Kind::GlobalNetworkPolicy, &new);
    let mut object = ConvertedObject::new(key, entry.text);
    if tier != DEFAULT {
        object.set("tier", tier.as_str());
        // Without an object, a tier comes after all others.
        let key = ObjectKey::global(Kind::Tier, &tier);
        if !out.objects.contains_key(&key) {
            out.add(new_tier(key, entry.text));
        }
    }
    object.set_some("order", policy.order.map(order));
    object.set("selector", rule::selector(&policy.selector));
    let types: &[&str] = match policy.types {
        _ if policy.pre_dnat => &["Ingress"],
        PolicyTypes::Both => &["Ingress", "Egress"],
        PolicyTypes::Ingress => &["Ingress"],
        PolicyTypes::Egress => &["Egress"],
    };
    object.set_list("types", types.iter().copied());
    for (member, list) in [("ingress", &policy.inbound), ("egress", &policy.outbound)] {
        if !list.is_empty() {
            object.set(member, rule::rules(list, entry.text, out));
        }
    }
    for (member, is_set) in [("doNotTrack", policy.untracked), ("preDNAT", policy.pre_dnat)] {
        object.set_some(member, is_set.then_some(true));
    }
    let on_forward = policy.extra.get("apply_on_forward").and_then(Value::as_bool).unwrap_or_default();
    object.set_some("applyOnForward", (on_forward || policy.untracked || policy.pre_dnat).then_some(true));
    if let Some(Value::Object(annotations)) = policy.extra.get("annotations") {
        let texts =
            annotations.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
        object.annotations = texts.collect();
    }
    report_unused(entry, &POLICY, out);
    out.renamed(Kind::GlobalNetworkPolicy, name, &new);
    out.add(object);
}

/// Members of a policy that are converted.
const POLICY: [&str; 9] = [
    "selector",
    "order",
    "inbound_rules",
    "outbound_rules",
    "untracked",
    "pre_dnat",
    "types",
    "apply_on_forward",
    "annotations",
];

fn new_tier(key: ObjectKey, from: &str) -> ConvertedObject {
    let mut object = ConvertedObject::new(key, from);
    object.set("defaultAction", "Deny");
    object
}

/// Converts a tier other than `default`.
pub(super) fn tier(entry: &Entry<'_>, name: &str, metadata: &TierMetadata, out: &mut Converted) {
    let new = names::norm(name).replace('.', "-");
    if new == DEFAULT {
        out.finding(
            Weight::Note,
            entry.text,
            "the tier `default` comes after those with an order below 1000000",
        );
        return;
    }
    let mut object = new_tier(ObjectKey::global(Kind::Tier, &new), entry.text);
    object.set_some("order", metadata.order.map(order));
    out.renamed(Kind::Tier, name, &new);
    out.add(object);
}

/// Converts a part of a profile: rules, tags or labels.
pub(super) fn profile(
    entry: &Entry<'_>,
    name: &str,
    part: ProfilePart,
    value: &Resource,
    out: &mut Converted,
) {
    if OF_CONTROLLERS.iter().any(|prefix| name.starts_with(prefix)) {
        if part == ProfilePart::Rules {
            out.finding(Weight::Note, entry.text, "left out: its controller writes it again");
        }
        return;
    }
    let new = names::profile(name);
    let key = ObjectKey::global(Kind::Profile, &new);
    // The first part that is met claims the name; another profile must not have it.
    let other = out.objects.get(&key).and_then(|object| object.from.first()).cloned();
    let own = entry.text.rsplit_once('/').map(|(own, _)| format!("{own}/"));
    if let (Some(other), Some(own)) = (other, own)
        && !other.starts_with(&own)
    {
        let text = format!("Profile {new} also comes from {other}: rename one of them in the v1 store");
        out.finding(Weight::Error, entry.text, text);
        return;
    }
    out.renamed(Kind::Profile, name, &new);
    match value {
        Resource::ProfileRules(rules) => {
            let ingress = rule::rules(&rules.inbound, entry.text, out);
            let egress = rule::rules(&rules.outbound, entry.text, out);
            let object = out.shared(key, entry.text);
            object.set("ingress", ingress);
            object.set("egress", egress);
            report_unused(entry, &["inbound_rules", "outbound_rules"], out);
        }
        Resource::ProfileLabels(labels) => {
            apply(labels.iter().map(|(name, text)| (name.as_str(), text.as_str())), key, entry, out);
        }
        Resource::ProfileTags(tags) => apply(tags.iter().map(|tag| (tag.as_str(), "")), key, entry, out),
        _ => {}
    }
}

/// Adds labels; a tag is one with an empty value. One name for both is an error.
fn apply<'a>(
    labels: impl Iterator<Item = (&'a str, &'a str)>,
    key: ObjectKey,
    entry: &Entry<'_>,
    out: &mut Converted,
) {
    let object = out.shared(key, entry.text);
    let mut all: BTreeMap<String, Value> = match object.spec.remove("labelsToApply") {
        Some(Value::Object(map)) => map.into_iter().collect(),
        _ => BTreeMap::new(),
    };
    let mut clash = Vec::new();
    for (name, text) in labels {
        if all.insert(name.to_owned(), text.into()).is_some_and(|old| old != text) {
            clash.push(name.to_owned());
        }
    }
    if !all.is_empty() {
        object.set("labelsToApply", Value::Object(all.into_iter().collect()));
    }
    for name in clash {
        let text =
            format!("`{name}` is a tag and a label of this profile: rename one of them in the v1 store");
        out.finding(Weight::Error, entry.text, text);
    }
}

/// Reports profiles without rules, which deny in a v1 store.
pub(super) fn finish(entries: &[Entry<'_>], out: &mut Converted) {
    let part_of = |entry: &Entry<'_>| match &entry.key {
        Key::Profile { name, part } => Some((name.clone(), *part)),
        _ => None,
    };
    let with_rules: BTreeSet<String> = entries
        .iter()
        .filter_map(part_of)
        .filter_map(|(name, part)| (part == ProfilePart::Rules).then_some(name))
        .collect();
    for entry in entries {
        let Some((name, _)) = part_of(entry).filter(|(name, _)| !with_rules.contains(name)) else { continue };
        if !OF_CONTROLLERS.iter().any(|prefix| name.starts_with(prefix)) {
            let text = "this profile has no rules and so denies; in Calico 3 the next profile of an endpoint decides";
            out.finding(Weight::Note, entry.text, text);
        }
    }
}
