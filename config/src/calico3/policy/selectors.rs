//! Selectors of policies and rules, composed as Calico composes them for its v1 model.

use crate::Selector;
use crate::resource::{Fields, ValueError};

/// Label with the namespace of an endpoint or network set.
pub(super) const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
/// Label with the service account of an endpoint.
pub(super) const SERVICE_ACCOUNT_LABEL: &str = "projectcalico.org/serviceaccount";
/// Prefix of the labels that an endpoint inherits from its namespace.
pub(super) const NAMESPACE_PREFIX: &str = "pcns.";
/// Prefix of the labels that an endpoint inherits from its service account.
pub(super) const SERVICE_ACCOUNT_PREFIX: &str = "pcsa.";

/// Reads a selector as written; an empty one counts as absent.
pub(super) fn checked(fields: &mut Fields, name: &str) -> Result<Option<String>, ValueError> {
    let Some(text) = fields.text(name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    parse(name, &text).map(|_| Some(text))
}

/// Reads a selector of namespaces or service accounts, and prefixes its labels; an empty one counts as absent.
pub(super) fn prefixed(fields: &mut Fields, name: &str, prefix: &str) -> Result<Option<String>, ValueError> {
    let Some(text) = fields.text(name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    parse(name, &text).map(|selector| Some(selector.prefixed(prefix).to_string()))
}

fn parse(name: &str, text: &str) -> Result<Selector, ValueError> {
    text.parse().map_err(|error: crate::SelectorError| {
        ValueError::new(name, format_args!("`{text}`"), error.to_string())
    })
}

/// Returns the selector of a namespace.
pub(super) fn of_namespace(namespace: &str) -> String {
    format!("{NAMESPACE_LABEL} == '{namespace}'")
}

/// Replaces `all()` in a text by the condition that a label exists. It also replaces it where the user wrote
/// it for endpoints, as Calico does.
pub(super) fn all_with(text: &str, label: &str) -> String {
    text.replace("all()", &format!("has({label})"))
}
