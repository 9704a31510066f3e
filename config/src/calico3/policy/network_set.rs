//! NetworkSet and GlobalNetworkSet.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::Object;
use super::super::output::Output;
use super::addresses::network;
use super::members::checked_labels;
use super::selectors::NAMESPACE_LABEL;
use super::unreadable;
use crate::key::Key;
use crate::resource::{Fields, ValueError};

/// Prefix of the name of the profile with the labels of a namespace.
const NAMESPACE_PROFILE: &str = "kns.";

/// Projects a set. Networks that cannot be parsed are skipped.
pub(in crate::calico3) fn network_set(object: Object) -> Output {
    let mut output = Output::default();
    let Object { key: object, metadata, spec, .. } = object;
    let namespace = object.namespace.as_deref();
    let key = Key::NetworkSet { namespace: object.namespace.clone(), name: object.name.clone() };
    let nets = match Fields::of_map(spec).take("nets") {
        None => Vec::new(),
        Some(Value::Array(nets)) => nets,
        Some(other) => {
            let text = ValueError::json("spec.nets", &other, "write a list of networks").to_string();
            output.put(key, unreadable::value(&text), &object);
            output.problem(&object, "invalid-value", text);
            return output;
        }
    };
    let mut good = Vec::new();
    for (index, net) in nets.iter().enumerate() {
        match net.as_str().and_then(network) {
            Some(net) => good.push(net.to_string()),
            None => {
                let expected = "write an address or ADDRESS/LENGTH; it is skipped";
                let error = ValueError::json(format!("spec.nets[{index}]"), net, expected);
                output.problem(&object, "invalid-value", error.to_string());
            }
        }
    }
    let mut labels: BTreeMap<String, String> = checked_labels(metadata.labels, &object, &mut output);
    if let Some(namespace) = namespace {
        labels.insert(NAMESPACE_LABEL.to_owned(), namespace.to_owned());
    }
    let profiles: Vec<String> = namespace.iter().map(|name| format!("{NAMESPACE_PROFILE}{name}")).collect();
    let value = json!({"nets": good, "labels": labels, "profile_ids": profiles});
    output.put(key, value.to_string(), &object);
    output
}
