//! `tortie store name|key`: names of Calico 3's objects from their parts, and whether a key is known. No store is
//! opened.

use std::fmt::Write as _;

use clap::Subcommand;
use serde::Serialize;
use tortie_config::calico3::WorkloadEndpointName;
use tortie_config::is_known_key;

use super::context::Globals;
use super::failure::Failure;
use super::output;

/// Kinds whose names are composed of parts.
#[derive(Debug, Subcommand)]
pub(super) enum NameCommand {
    /// Of a WorkloadEndpoint on the node of --node: NODE-ORCHESTRATOR-WORKLOAD-ENDPOINT, with dashes inside of a
    /// part doubled
    WorkloadEndpoint {
        /// Orchestrator: k8s, cni, libnetwork, openstack or another
        #[arg(long)]
        orchestrator: String,
        /// Pod, of k8s
        #[arg(long)]
        pod: Option<String>,
        /// Container id, of cni
        #[arg(long)]
        container_id: Option<String>,
        /// Workload, of other orchestrators
        #[arg(long)]
        workload: Option<String>,
        /// Endpoint
        #[arg(long)]
        endpoint: String,
    },
}

/// JSON answer: the name, none if a part is missing, or begins or ends with a dash.
#[derive(Debug, PartialEq, Serialize)]
struct ObjectName {
    name: Option<String>,
}

/// JSON answer: whether a key is one of the data models.
#[derive(Debug, PartialEq, Serialize)]
struct KnownKey {
    known: bool,
}

pub(super) fn name(globals: &Globals, command: &NameCommand) -> Result<(), Failure> {
    let NameCommand::WorkloadEndpoint { orchestrator, pod, container_id, workload, endpoint } = command;
    let part = match orchestrator.as_str() {
        "k8s" => pod.as_ref(),
        "cni" => container_id.as_ref(),
        "libnetwork" => Some(orchestrator),
        _ => workload.as_ref(),
    };
    let parts = WorkloadEndpointName {
        node: globals.node_name()?,
        orchestrator: orchestrator.clone(),
        workload: part.cloned().unwrap_or_default(),
        endpoint: endpoint.clone(),
    };
    let name = ObjectName { name: parts.to_name() };
    output::print(globals.output, &name, |out, _| {
        let none = "none: each part needs a text that neither begins nor ends with a dash";
        let _ = writeln!(out, "{}", name.name.as_deref().unwrap_or(none));
    })
}

pub(super) fn key(globals: &Globals, key: &str) -> Result<(), Failure> {
    let known = KnownKey { known: is_known_key(key) };
    output::print(globals.output, &known, |out, _| {
        let _ = writeln!(out, "{}", if known.known { "known" } else { "not known" });
    })
}
