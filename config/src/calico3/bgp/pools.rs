//! Pools. Of several with one prefix the one with the lowest name counts.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_net::Cidr;

use super::super::objects::Objects;
use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use super::members::{Members, Selected, cidr};
use crate::key::Key;

/// Kinds that [`pools`] reads.
pub(in crate::calico3) const POOLS_READ: &[Kind] = &[Kind::IPPool];

/// Computes the pools.
pub(in crate::calico3) fn pools(objects: &Objects, _node: &str) -> Output {
    let mut out = Output::default();
    let mut winners: BTreeMap<Cidr, ObjectKey> = BTreeMap::new();
    for object in objects.of_kind(Kind::IPPool) {
        let Some((prefix, value)) = pool(object, &mut out) else { continue };
        if let Some(winner) = winners.get(&prefix) {
            let text = format!(
                "spec.cidr: {prefix} is also the prefix of IPPool {}, which counts, because its name comes first: \
                 delete one of the two",
                winner.name
            );
            out.problem(&object.key, "setting-not-in-force", text);
            continue;
        }
        winners.insert(prefix, object.key.clone());
        out.put(Key::Pool(prefix), value.to_string(), &object.key);
    }
    out
}

/// Returns prefix and v1 value of a pool; `None` if it has no valid prefix.
fn pool(object: &Object, out: &mut Output) -> Option<(Cidr, Value)> {
    let mut spec = Members::of(object, out);
    let expected = "write ADDRESS/LENGTH; this pool does not count";
    let Some(text) = spec.text("cidr") else {
        if !spec.failed() {
            spec.invalid("cidr", "nothing", expected);
        }
        return None;
    };
    let Some(prefix) = cidr(text) else {
        spec.invalid("cidr", format_args!("`{text}`"), expected);
        return None;
    };
    let mut ipip = mode(&mut spec, "ipipMode");
    let mut vxlan = mode(&mut spec, "vxlanMode");
    // The form of Calico 1 and 2, which later releases still read.
    let old = spec.object("ipip").map(|map| {
        let mut old = spec.inside(map, ".ipip");
        let enabled = old.flag("enabled");
        let mode = old.word("mode", &["always", "cross-subnet", ""]).unwrap_or("always");
        if enabled { mode } else { "" }
    });
    if spec.get("ipipMode").is_none() {
        ipip = old.unwrap_or(ipip);
    }
    if !ipip.is_empty() && !prefix.is_v4() {
        spec.invalid("ipipMode", "it in an IPv6 pool", "leave it out: there is no IPIP for IPv6");
        ipip = "";
    }
    if !ipip.is_empty() && !vxlan.is_empty() {
        spec.invalid("vxlanMode", "it together with ipipMode", "write one of them; none counts until then");
        (ipip, vxlan) = ("", "");
    }
    let masquerade = spec.bool("natOutgoing").or_else(|| spec.bool("nat-outgoing")).unwrap_or(false);
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    let disabled = spec.flag("disabled") || is_deleted;
    let (shortest, longest) = if prefix.is_v4() { (20, 32) } else { (116, 128) };
    let block_size =
        spec.number("blockSize", shortest, longest).unwrap_or(if prefix.is_v4() { 26 } else { 122 });
    let uses = uses(&mut spec);
    let assignment = spec.word("assignmentMode", &["Automatic", "Manual"]);
    // An unknown mode is never more permissive than the one meant.
    let assignment =
        assignment.unwrap_or(if spec.get("assignmentMode").is_some() { "Manual" } else { "Automatic" });
    let mut value = json!({
        "cidr": prefix.to_string(),
        "ipip": if ipip.is_empty() { "" } else { "tunl0" },
        "ipip_mode": ipip,
        "vxlan_mode": vxlan,
        "masquerade": masquerade,
        "ipam": !disabled,
        "disabled": disabled,
        "disableBGPExport": spec.flag("disableBGPExport"),
        "assignment_mode": assignment,
        "allowed_uses": uses,
        "blockSize": block_size,
    });
    for (member, name) in [("nodeSelector", "node_selector"), ("namespaceSelector", "namespace_selector")] {
        let text = match spec.selector(member) {
            Selected::Absent => continue,
            Selected::Invalid => "!all()".to_owned(),
            Selected::By(selector) => selector.to_string(),
        };
        if let Some(map) = value.as_object_mut() {
            map.insert(name.to_owned(), text.into());
        }
    }
    Some((prefix, value))
}

/// Reads a mode of encapsulation in its v1 spelling; empty for never.
fn mode(spec: &mut Members<'_, '_>, member: &str) -> &'static str {
    match spec.word(member, &["Never", "Always", "CrossSubnet"]) {
        Some("Always") => "always",
        Some("CrossSubnet") => "cross-subnet",
        _ => "",
    }
}

/// Reads the uses. A list without a known one allows none that a host has.
fn uses(spec: &mut Members<'_, '_>) -> Vec<&'static str> {
    let known = ["Workload", "Tunnel", "LoadBalancer"];
    let default = match spec.get("allowedUses") {
        None => true,
        Some(value) => value.as_array().is_some_and(Vec::is_empty),
    };
    if default {
        return vec!["Workload", "Tunnel"];
    }
    let uses = spec.parsed_list("allowedUses", "write Workload, Tunnel or LoadBalancer", |text| {
        known.into_iter().find(|known| *known == text)
    });
    if uses.is_empty() { vec!["LoadBalancer"] } else { uses }
}
