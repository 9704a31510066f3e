//! WorkloadEndpoint.
//!
//! As in Calico, an endpoint with an address that cannot be parsed has no entry at all. Its packets are then
//! dropped, because its interface belongs to no endpoint. Whether `allowSpoofedSourcePrefixes` is permitted
//! depends on the settings, and is left to the engine. Almost all have a form that [`plain`] reads in one pass;
//! this file reads the others, and reports.

mod plain;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use super::addresses::{Hardware, address, address_of_network, hardware, network};
use super::members::{checked_labels, ports};
use super::selectors::{NAMESPACE_PREFIX, SERVICE_ACCOUNT_LABEL, SERVICE_ACCOUNT_PREFIX};
use crate::Resource;
use crate::calico3::output::Output;
use crate::calico3::{Metadata, Object, ObjectKey};
use crate::key::Key;
use crate::resource::{Fields, InterfaceName, Nat, ValueError, WorkloadEndpoint};
pub(in crate::calico3) use plain::plain_endpoint;
use tortie_net::Cidr;

const NET: &str = "write an address, or ADDRESS/32 or ADDRESS/128";
const PREFIX: &str = "write an address or ADDRESS/LENGTH";
const ADDRESS: &str = "write an address of the family";
const MAC: &str = "write a MAC address, such as ee:ee:ee:ee:ee:ee";
const INTERFACE: &str = "write the name of the interface on the host";
const NAT: &str = "write two addresses of one family; it is skipped";

/// Member of the v1 model with the networks from which a workload may also send.
const SPOOFED: &str = "allow_spoofed_source_ips";

/// Projects a WorkloadEndpoint, with the v1 key that its name implies.
pub(in crate::calico3) fn workload_endpoint(object: Object, implied: Option<Key>) -> Output {
    let mut output = Output::default();
    let Some(key) = implied else {
        let text = "the name has not the four parts NODE-ORCHESTRATOR-WORKLOAD-ENDPOINT, with dashes inside of \
                    a part doubled, so that the object is not used; delete it";
        output.problem(&object.key, "invalid-value", text);
        return output;
    };
    let Object { key: object, metadata, spec, .. } = object;
    match endpoint(Fields::of_map(spec), metadata, &object, &mut output) {
        Ok(Some(endpoint)) => output.put(key, Resource::WorkloadEndpoint(Box::new(endpoint)), &object),
        // The addresses are not assigned yet.
        Ok(None) => {}
        Err(error) => {
            let text = format!("{}; until then the endpoint does not exist", error.within("spec"));
            output.problem(&object, "invalid-value", text);
        }
    }
    output
}

fn endpoint(
    mut fields: Fields,
    metadata: Metadata,
    object: &ObjectKey,
    output: &mut Output,
) -> Result<Option<WorkloadEndpoint>, ValueError> {
    let nets: Vec<Cidr> = fields.list("ipNetworks", |value| net(&value, NET))?;
    if nets.is_empty() {
        return Ok(None);
    }
    let name: Option<InterfaceName> = fields.parsed("interfaceName", INTERFACE)?;
    let name = name.ok_or_else(|| ValueError::new("interfaceName", "nothing", INTERFACE))?;
    let mut endpoint = WorkloadEndpoint::new(name);
    for net in nets {
        add_net(&mut endpoint, net);
    }
    nats(&mut fields, &mut endpoint, object, output)?;
    for name in ["ipv4Gateway", "ipv6Gateway"] {
        match (name, gateway(&mut fields, name)?) {
            ("ipv4Gateway", Some(IpAddr::V4(addr))) => endpoint.ipv4_gateway = Some(addr),
            ("ipv6Gateway", Some(IpAddr::V6(addr))) => endpoint.ipv6_gateway = Some(addr),
            (_, None) => {}
            (_, Some(addr)) => return Err(ValueError::new(name, format_args!("`{addr}`"), ADDRESS)),
        }
    }
    if let Some(text) = fields.text("mac")?.filter(|text| !text.is_empty()) {
        match hardware(&text) {
            Some(Hardware::Mac(mac)) => endpoint.mac = Some(mac),
            Some(Hardware::Other) => {
                let text =
                    format!("`spec.mac`: found `{text}`, which is no Ethernet address; it is not used");
                output.problem(object, "invalid-value", text);
            }
            None => return Err(ValueError::new("mac", format_args!("`{text}`"), MAC)),
        }
    }
    endpoint.profile_ids = fields.names("profiles")?;
    endpoint.ports = ports(&mut fields)?;
    let labels = checked_labels(metadata.labels, object, output);
    add_labels(&mut endpoint, labels, fields.text("serviceAccountName")?);
    let spoofed = fields.list("allowSpoofedSourcePrefixes", |value| net(&value, PREFIX))?;
    if !spoofed.is_empty() {
        let spoofed = spoofed.iter().map(ToString::to_string).collect::<Value>();
        endpoint.extra.0.insert(SPOOFED.to_owned(), spoofed);
    }
    if fields.take("qosControls").is_some() {
        let text =
            "`spec.qosControls`: bandwidth, packet rates, connections and DSCP are not limited or marked";
        output.problem(object, "setting-not-in-force", text);
    }
    Ok(Some(endpoint))
}

/// Adds an address.
fn add_net(endpoint: &mut WorkloadEndpoint, net: Cidr) {
    if net.is_v4() { endpoint.ipv4_nets.push(net) } else { endpoint.ipv6_nets.push(net) }
}

/// Adds the labels of an endpoint, and that of its service account.
fn add_labels(
    endpoint: &mut WorkloadEndpoint,
    mut labels: BTreeMap<String, String>,
    account: Option<String>,
) {
    // A workload must not claim the labels of another namespace or service account.
    labels.retain(|name, _| !name.starts_with(NAMESPACE_PREFIX) && !name.starts_with(SERVICE_ACCOUNT_PREFIX));
    if let Some(account) = account.filter(|name| !name.is_empty()) {
        labels.insert(SERVICE_ACCOUNT_LABEL.to_owned(), account);
    }
    endpoint.labels = labels;
}

fn net(value: &Value, expected: &str) -> Result<Cidr, ValueError> {
    value.as_str().and_then(network).ok_or_else(|| ValueError::json("", value, expected))
}

fn gateway(fields: &mut Fields, name: &str) -> Result<Option<IpAddr>, ValueError> {
    let Some(text) = fields.text(name)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let gateway = address_of_network(&text);
    gateway.map(Some).ok_or_else(|| ValueError::new(name, format_args!("`{text}`"), ADDRESS))
}

/// Reads `ipNATs`. Mappings with an address that cannot be parsed are skipped.
fn nats(
    fields: &mut Fields,
    endpoint: &mut WorkloadEndpoint,
    object: &ObjectKey,
    output: &mut Output,
) -> Result<(), ValueError> {
    let nats = fields.list("ipNATs", |value| {
        let mut nat = Fields::of(value)?;
        Ok((nat.text("internalIP")?.unwrap_or_default(), nat.text("externalIP")?.unwrap_or_default()))
    })?;
    for (index, (inside, outside)) in nats.iter().enumerate() {
        match (address(inside), address(outside)) {
            (Some(IpAddr::V4(int_ip)), Some(IpAddr::V4(ext_ip))) => {
                endpoint.ipv4_nat.push(Nat { int_ip, ext_ip });
            }
            (Some(IpAddr::V6(int_ip)), Some(IpAddr::V6(ext_ip))) => {
                endpoint.ipv6_nat.push(Nat { int_ip, ext_ip });
            }
            _ => {
                let found = format_args!("`{inside}` and `{outside}`");
                let error = ValueError::new(format!("spec.ipNATs[{index}]"), found, NAT);
                output.problem(object, "invalid-value", error.to_string());
            }
        }
    }
    Ok(())
}
