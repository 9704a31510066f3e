//! HostEndpoint.
//!
//! One that cannot be read gives an entry that the v1 model reports as unreadable: an interface without a
//! host endpoint is not protected, so that leaving it out would open it.

use std::net::IpAddr;

use super::super::output::Output;
use super::super::{Metadata, Object, ObjectKey};
use super::addresses::address;
use super::members::{checked_labels, ports};

use super::unreadable;
use crate::key::{EndpointKey, Key};
use crate::resource::{Extra, Fields, HostEndpoint, ValueError};

const ADDRESS: &str = "write an address; it is skipped";
const INTERFACE: &str = "write the name of an interface, or `*` for all of the host";

/// Annotation with the DSCP value of packets that the host sends.
const DSCP: &str = "qos.projectcalico.org/dscp";

/// Projects a HostEndpoint.
pub(in crate::calico3) fn host_endpoint(object: Object) -> Output {
    let mut output = Output::default();
    let Object { key: object, metadata, spec, .. } = object;
    let mut fields = Fields::of_map(spec);
    let host = match fields.text("node") {
        Ok(Some(host)) if !host.is_empty() => host,
        node => {
            let missing = || ValueError::new("node", "nothing", "write the name of the host");
            let error = node.err().unwrap_or_else(missing).within("spec");
            output.problem(&object, "invalid-value", format!("{error}; until then it has no effect"));
            return output;
        }
    };
    let key = Key::Endpoint(EndpointKey::Host { host, endpoint: object.name.clone() });
    match endpoint(&mut fields, metadata, &object, &mut output) {
        Ok(endpoint) => unreadable::put_checked(&mut output, key, endpoint.to_value(), &object),
        Err(error) => {
            let text = error.within("spec").to_string();
            output.put(key, unreadable::value(&text), &object);
            output.problem(&object, "invalid-value", text);
        }
    }
    output
}

fn endpoint(
    fields: &mut Fields,
    metadata: Metadata,
    object: &ObjectKey,
    output: &mut Output,
) -> Result<HostEndpoint, ValueError> {
    let (mut expected_ipv4_addrs, mut expected_ipv6_addrs) = (Vec::new(), Vec::new());
    let expected = fields.list("expectedIPs", |value| match value {
        serde_json::Value::String(text) => Ok(text),
        other => Err(ValueError::json("", &other, ADDRESS)),
    })?;
    for (index, text) in expected.iter().enumerate() {
        match address(text) {
            Some(IpAddr::V4(addr)) => expected_ipv4_addrs.push(addr),
            Some(IpAddr::V6(addr)) => expected_ipv6_addrs.push(addr),
            None => {
                let path = format!("spec.expectedIPs[{index}]");
                let error = ValueError::new(path, format_args!("`{text}`"), ADDRESS);
                output.problem(object, "invalid-value", error.to_string());
            }
        }
    }
    if metadata.annotations.contains_key(DSCP) {
        let text = format!("annotation `{DSCP}`: DSCP is not set in packets");
        output.problem(object, "setting-not-in-force", text);
    }
    Ok(HostEndpoint {
        name: fields.parsed("interfaceName", INTERFACE)?,
        expected_ipv4_addrs,
        expected_ipv6_addrs,
        profile_ids: fields.names("profiles")?,
        labels: checked_labels(metadata.labels, object, output),
        ports: ports(fields)?,
        extra: Extra::default(),
    })
}
