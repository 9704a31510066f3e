//! Requests of dockerd. It omits fields, sends `null` for empty maps, and newer versions add fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::error::Refusal;

/// Deserializes `null` as the default value.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Parses a request body; an empty body counts as an empty object.
pub(super) fn read<T: for<'de> Deserialize<'de>>(method: &str, body: &[u8]) -> Result<T, Refusal> {
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(format!(
            "{method}: the body is not what libnetwork documents: {}",
            super::poolid::shorten(&error.to_string())
        ))
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct RequestPool {
    #[serde(deserialize_with = "nullable")]
    pub(super) address_space: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) sub_pool: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) options: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub(super) v6: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReleasePool {
    #[serde(rename = "PoolID", deserialize_with = "nullable")]
    pub(super) pool_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct RequestAddress {
    #[serde(rename = "PoolID", deserialize_with = "nullable")]
    pub(super) pool_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) address: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) options: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ReleaseAddress {
    #[serde(rename = "PoolID", deserialize_with = "nullable")]
    pub(super) pool_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct CreateNetwork {
    #[serde(rename = "NetworkID", deserialize_with = "nullable")]
    pub(super) network_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) options: BTreeMap<String, Value>,
    #[serde(rename = "IPv4Data", deserialize_with = "nullable")]
    pub(super) ipv4_data: Vec<IpamData>,
    #[serde(rename = "IPv6Data", deserialize_with = "nullable")]
    pub(super) ipv6_data: Vec<IpamData>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct IpamData {
    #[serde(deserialize_with = "nullable")]
    pub(super) address_space: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) pool: String,
}

/// Arguments of calls that name a network, an endpoint, or both.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Named {
    #[serde(rename = "NetworkID", deserialize_with = "nullable")]
    pub(super) network_id: String,
    #[serde(rename = "EndpointID", deserialize_with = "nullable")]
    pub(super) endpoint_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) sandbox_key: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) interface: Interface,
    #[serde(deserialize_with = "nullable")]
    pub(super) options: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Interface {
    #[serde(deserialize_with = "nullable")]
    pub(super) address: String,
    #[serde(rename = "AddressIPv6", deserialize_with = "nullable")]
    pub(super) address_ipv6: String,
    #[serde(deserialize_with = "nullable")]
    pub(super) mac_address: String,
}

/// One published port of a container (`-p`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PortBinding {
    #[serde(rename = "Proto", deserialize_with = "nullable")]
    pub(super) proto: u8,
    #[serde(rename = "Port", deserialize_with = "nullable")]
    pub(super) port: u16,
    #[serde(rename = "HostIP", deserialize_with = "nullable")]
    pub(super) host_ip: String,
    #[serde(rename = "HostPort", deserialize_with = "nullable")]
    pub(super) host_port: u16,
    #[serde(rename = "HostPortEnd", deserialize_with = "nullable")]
    pub(super) host_port_end: u16,
}
