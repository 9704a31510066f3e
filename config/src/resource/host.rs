//! Small values of a host.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, elements, value};

/// One element of `orchestrator_refs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrchestratorRef {
    /// `k8s`, ...
    pub orchestrator: String,
    /// The orchestrator's name of the host.
    pub node_name: String,
    /// Fields that are not named here.
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
