//! Small per-host values.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, elements, value};

/// An element of `orchestrator_refs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrchestratorRef {
    /// Orchestrator, such as `k8s`.
    pub orchestrator: String,
    /// Name of the host in the orchestrator.
    pub node_name: String,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl OrchestratorRef {
    pub(super) fn parse_list(bytes: &[u8]) -> Result<Vec<Self>, ValueError> {
        elements(value(bytes)?, |element| {
            let mut fields = Fields::of(element)?;
            Ok(Self {
                orchestrator: fields.text("orchestrator")?.unwrap_or_default(),
                node_name: fields.text("nodeName")?.unwrap_or_default(),
                extra: fields.rest(),
            })
        })
    }

    pub(super) fn list_to_value(list: &[Self]) -> Vec<u8> {
        let list = list.iter().map(|element| {
            let mut writer = Writer::default();
            writer.put("orchestrator", element.orchestrator.clone());
            writer.put("nodeName", element.node_name.clone());
            writer.object(&element.extra)
        });
        Value::Array(list.collect()).to_string().into_bytes()
    }
}
