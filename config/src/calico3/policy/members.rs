//! Members that several kinds have: labels, and named ports of endpoints.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::ObjectKey;
use super::super::output::Output;
use crate::resource::{EndpointPort, Fields, ValueError, is_label_name};

/// Returns the labels that a selector can name. The others have no effect, and are a problem.
pub(super) fn checked_labels(
    mut labels: BTreeMap<String, String>,
    object: &ObjectKey,
    output: &mut Output,
) -> BTreeMap<String, String> {
    labels.retain(|name, _| {
        let is_good = is_label_name(name);
        if !is_good {
            let text = format!(
                "label `{name}`: no selector can name it, so that it has no effect; \
                 write a name of 1 to 512 characters from A-Z a-z 0-9 _ . / -"
            );
            output.problem(object, "invalid-value", text);
        }
        is_good
    });
    labels
}

/// Reads `ports`. Those without a name are for host ports of plugins only.
pub(super) fn ports(fields: &mut Fields) -> Result<Vec<EndpointPort>, ValueError> {
    let ports = fields.list("ports", port)?;
    Ok(ports.into_iter().flatten().collect())
}

/// Returns those elements of `ports` that have a name.
pub(super) fn named_ports(ports: Vec<Value>) -> Result<Vec<EndpointPort>, ValueError> {
    ports.into_iter().filter_map(|value| port(value).transpose()).collect()
}

fn port(value: Value) -> Result<Option<EndpointPort>, ValueError> {
    let named = value.get("name").is_some_and(|name| !name.is_null() && *name != "");
    if named || !value.is_object() { EndpointPort::parse(value).map(Some) } else { Ok(None) }
}
