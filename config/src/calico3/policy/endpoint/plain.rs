//! WorkloadEndpoints in the form that almost all have, read in one pass over their JSON.
//!
//! There may be 50,000 of them, so that reading each member by member, as [`super`] does, would take most
//! of the time of a start. What has another form, or an error, is left to it, and it alone reports: an endpoint
//! that is read here is the same as there, without a problem.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::super::addresses::{Hardware, hardware, network};
use super::super::members::named_ports;
use super::{add_labels, add_net};
use crate::resource::{WorkloadEndpoint, is_label_name};

/// A text, borrowed unless it contains an escape.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Members that were read.
#[derive(Default)]
struct Plain<'a> {
    labels: BTreeMap<String, String>,
    spec: Spec<'a>,
}

#[derive(Default)]
struct Spec<'a> {
    name: Option<Text<'a>>,
    mac: Option<Text<'a>>,
    networks: Option<Vec<Text<'a>>>,
    profiles: Option<Vec<String>>,
    account: Option<String>,
    ports: Option<Vec<Value>>,
}

/// Reads an endpoint from the value of its object; `None` if it has not the plain form.
pub(in crate::calico3) fn plain_endpoint(value: &[u8]) -> Option<WorkloadEndpoint> {
    let mut plain = Plain::default();
    let mut json = serde_json::Deserializer::from_slice(value);
    Reader { part: Part::Object, plain: &mut plain }.deserialize(&mut json).ok()?;
    json.end().ok()?;
    plain.endpoint()
}

impl Plain<'_> {
    fn endpoint(self) -> Option<WorkloadEndpoint> {
        let Self { labels, spec } = self;
        let mut endpoint = WorkloadEndpoint::new(spec.name?.0.parse().ok()?);
        let networks = spec.networks.unwrap_or_default();
        for text in &networks {
            add_net(&mut endpoint, network(&text.0)?);
        }
        endpoint.nets().next()?;
        if let Some(mac) = spec.mac.filter(|text| !text.0.is_empty()) {
            let Hardware::Mac(mac) = hardware(&mac.0)? else { return None };
            endpoint.mac = Some(mac);
        }
        endpoint.profile_ids = spec.profiles.unwrap_or_default();
        endpoint.ports = named_ports(spec.ports.unwrap_or_default()).ok()?;
        let is_good = !endpoint.profile_ids.iter().any(String::is_empty)
            && labels.keys().all(|name| is_label_name(name));
        add_labels(&mut endpoint, labels, spec.account);
        // They are kept tens of thousands of times.
        endpoint.ipv4_nets.shrink_to_fit();
        endpoint.ipv6_nets.shrink_to_fit();
        endpoint.profile_ids.shrink_to_fit();
        is_good.then_some(endpoint)
    }
}

/// Part of an object.
#[derive(Clone, Copy)]
enum Part {
    Object,
    Metadata,
    Spec,
}

struct Reader<'p, 'a> {
    part: Part,
    plain: &'p mut Plain<'a>,
}

impl<'a> DeserializeSeed<'a> for Reader<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Reader<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { part, plain } = self;
        // Of members with one name the last one counts.
        while let Some(Text(name)) = members.next_key()? {
            match (part, &*name) {
                (Part::Object, "metadata") => {
                    plain.labels.clear();
                    members.next_value_seed(Reader { part: Part::Metadata, plain: &mut *plain })?;
                }
                (Part::Object, "spec") => {
                    plain.spec = Spec::default();
                    members.next_value_seed(Reader { part: Part::Spec, plain: &mut *plain })?;
                }
                (Part::Metadata, "labels") => plain.labels = members.next_value()?,
                (Part::Metadata, "annotations") => {
                    drop(members.next_value::<BTreeMap<Text<'a>, Text<'a>>>()?)
                }
                (Part::Metadata, "creationTimestamp" | "deletionTimestamp") => {
                    let _: Option<Text<'a>> = members.next_value()?;
                }
                (Part::Spec, "interfaceName") => plain.spec.name = members.next_value()?,
                (Part::Spec, "mac") => plain.spec.mac = members.next_value()?,
                (Part::Spec, "ipNetworks") => plain.spec.networks = members.next_value()?,
                (Part::Spec, "profiles") => plain.spec.profiles = members.next_value()?,
                (Part::Spec, "serviceAccountName") => plain.spec.account = members.next_value()?,
                (Part::Spec, "ports") => plain.spec.ports = members.next_value()?,
                // What identifies the endpoint is in its name as well.
                (Part::Spec, "node" | "orchestrator" | "workload" | "pod" | "containerID" | "endpoint")
                | (Part::Object | Part::Metadata, _) => drop(members.next_value::<IgnoredAny>()?),
                (Part::Spec, _) => return Err(A::Error::custom("not plain")),
            }
        }
        Ok(())
    }
}
