//! What a key says, in as few bytes as it takes: there are six small values for each of thousands of hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_config::Resource;
use tortie_config::key::Key;
use tortie_config::resource::{Asn, BgpLogLevel, StoreSchema};
use tortie_net::Cidr;

/// The value of `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// The key does not exist.
    Absent,
    /// Exactly `true`.
    True,
    /// Anything else; the first 40 characters.
    Other(String),
}

/// A value that could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Ready(Ready),
    /// `None`: in a form that only later versions know.
    Schema(Option<u32>),
    Address(Option<IpAddr>),
    Network(Option<Cidr>),
    Asn(Asn),
    Port(u16),
    ClusterId(Option<Ipv4Addr>),
    LogLevel(BgpLogLevel),
    /// A host's metadata: that it is there is all that matters.
    Present,
    /// Anything larger.
    Resource(Arc<Resource>),
}

impl Value {
    /// Reads the value of a key; the error names the field and the next step, never a secret.
    pub(super) fn read(key: &Key, bytes: &[u8]) -> Result<Self, String> {
        if matches!(key, Key::Ready) {
            // Anything that is not exactly `true` is an answer, not an error.
            return Ok(Self::Ready(match bytes {
                b"true" => Ready::True,
                other => Ready::Other(String::from_utf8_lossy(other).chars().take(40).collect()),
            }));
        }
        if matches!(key, Key::Schema) {
            let found = StoreSchema::parse(bytes);
            return Ok(Self::Schema(found.ok().map(|found| found.schema)));
        }
        Ok(match Resource::parse(key, bytes).map_err(|error| error.to_string())? {
            Resource::Address(addr) => Self::Address(addr),
            Resource::BirdIp(addr) => Self::Address(addr.map(IpAddr::V4)),
            Resource::Network(network) => Self::Network(network),
            Resource::AsNum(asn) => Self::Asn(asn),
            Resource::ListenPort(port) => Self::Port(port),
            Resource::RrClusterId(id) => Self::ClusterId(id),
            Resource::LogLevel(level) => Self::LogLevel(level),
            Resource::HostMetadata(_) => Self::Present,
            other => Self::Resource(Arc::new(other)),
        })
    }

    pub(super) fn resource(&self) -> Option<&Arc<Resource>> {
        match self {
            Self::Resource(resource) => Some(resource),
            _ => None,
        }
    }
}
