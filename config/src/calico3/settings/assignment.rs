//! What one FelixConfiguration sets: members of `spec`, and annotations, which have precedence.

use std::collections::BTreeMap;

use super::super::Object;
use super::member::{Answer, Member, setting};
use super::{CLUSTER, members, value};
use crate::resource::Setting;

/// Prefix of annotations that set a parameter.
pub(super) const ANNOTATION: &str = "config.projectcalico.org/";

/// Settings that no annotation sets: those that the Node or the ClusterInformation gives, and those that
/// Calico reads from the environment only.
const ELSEWHERE: &[&str] = &[
    "IpInIpTunnelAddr",
    "IPv4VXLANTunnelAddr",
    "IPv6VXLANTunnelAddr",
    "VXLANTunnelMACAddr",
    "VXLANTunnelMACAddrV6",
    "DatastoreType",
    "FelixHostname",
    "EtcdAddr",
    "EtcdScheme",
    "EtcdKeyFile",
    "EtcdCertFile",
    "EtcdCaFile",
    "EtcdEndpoints",
];

/// A setting that an object gives.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    /// Member; `None` for a setting that no FelixConfiguration has.
    pub(super) member: Option<&'static Member>,
    /// Valid text of the v1 form; `None` for a value that is not valid.
    pub(super) text: Option<String>,
    /// Path of the member, or the annotation.
    pub(super) place: String,
}

/// What one object sets, and what cannot be used.
#[derive(Debug, Default)]
pub(super) struct Layer {
    /// Settings by name, with the spelling of [`Setting::NAMES`] if they are in it.
    pub(super) assignments: BTreeMap<&'static str, Assignment>,
    /// Sentences about values that are not valid.
    pub(super) invalid: Vec<String>,
    /// Names that no table has, with their path.
    pub(super) unknown: Vec<(String, String)>,
    /// Annotations that set nothing, with the reason.
    pub(super) noted: Vec<String>,
}

impl Layer {
    /// Reads an object.
    pub(super) fn of(object: &Object) -> Self {
        let mut layer = Self::default();
        let annotations = object.metadata.annotations.iter();
        for (name, text) in annotations.filter_map(|(key, text)| Some((key.strip_prefix(ANNOTATION)?, text)))
        {
            layer.annotation(name, text);
        }
        // An empty annotation sets nothing, and its member does not count either.
        let overridden: Vec<&str> = layer.assignments.keys().copied().collect();
        layer.assignments.retain(|_, assignment| assignment.text.as_deref() != Some(""));
        for (name, json) in object.spec.iter().filter(|(name, _)| *name != "nodeSelector") {
            let Some(member) = members::named(name) else {
                layer.unknown.push((name.clone(), format!("spec.{name}")));
                continue;
            };
            if overridden.contains(&member.setting()) {
                continue;
            }
            let text = match value::text(member, json) {
                Ok(None) => continue,
                Ok(Some(text)) => Some(text),
                Err(_) if member.answer == Answer::Ignored => continue,
                Err(error) => {
                    layer.invalid.push(error.to_string());
                    None
                }
            };
            let place = format!("spec.{name}");
            layer.assignments.insert(member.setting(), Assignment { member: Some(member), text, place });
        }
        layer
    }

    fn annotation(&mut self, name: &str, text: &str) {
        let text = text.trim();
        let place = format!("metadata.annotations.{ANNOTATION}{name}");
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        if ELSEWHERE.iter().any(is) || CLUSTER.iter().any(|(_, known)| is(known)) {
            self.noted.push(format!("`{place}` sets nothing: this is no setting of a FelixConfiguration"));
            return;
        }
        let member = members::with_v1_name(name);
        let Some(known) = member.map(Member::setting).or_else(|| setting(name)) else {
            self.unknown.push((name.to_owned(), place));
            return;
        };
        let checked = match member {
            _ if text.is_empty() => Ok(()),
            Some(member) => value::check(member, text),
            None => Setting::parse(known, text.as_bytes()).map(drop),
        };
        if let Err(error) = &checked {
            self.invalid.push(format!("`{place}`: found {}; {}", error.found, error.expected));
        }
        let text = checked.is_ok().then(|| text.to_owned());
        self.assignments.insert(known, Assignment { member, text, place });
    }
}
