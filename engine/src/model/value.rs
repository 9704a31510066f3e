//! Compact representation of values: each of thousands of hosts has six small ones.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_config::key::{Key, Scope};
use tortie_config::resource::{Asn, BgpLogLevel, MacAddr, Setting, StoreSchema};
use tortie_config::{Dialect, Resource};
use tortie_net::Cidr;

/// Value of the key `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ready {
    /// The key does not exist.
    Absent,
    /// The value is exactly `true`.
    True,
    /// Any other value, truncated to 40 characters.
    Other(String),
}

/// A value that could be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Ready(Ready),
    /// `None` for a form that only later versions define.
    Schema(Option<u32>),
    Address(Option<IpAddr>),
    Network(Option<Cidr>),
    Asn(Asn),
    Port(u16),
    ClusterId(Option<Ipv4Addr>),
    LogLevel(BgpLogLevel),
    Mac(Option<MacAddr>),
    /// Metadata of a host; only its existence matters.
    Present,
    /// Any larger value.
    Resource(Arc<Resource>),
}

impl Value {
    /// Parses the value of a key in a store of this data model. The error names the field and the next step, and never contains a secret.
    pub(super) fn read(dialect: Dialect, key: &Key, bytes: &[u8]) -> Result<Self, String> {
        if matches!(key, Key::Ready) {
            // Any value other than `true` is valid and means "not ready".
            return Ok(Self::Ready(match bytes {
                b"true" => Ready::True,
                other => Ready::Other(String::from_utf8_lossy(other).chars().take(40).collect()),
            }));
        }
        if matches!(key, Key::Schema) {
            let found = StoreSchema::parse(bytes);
            return Ok(Self::Schema(found.ok().map(|found| found.schema)));
        }
        Ok(match Resource::parse_in(dialect, key, bytes).map_err(|error| error.to_string())? {
            Resource::Address(addr) => Self::Address(addr),
            Resource::BirdIp(addr) => Self::Address(addr.map(IpAddr::V4)),
            Resource::Network(network) => Self::Network(network),
            Resource::AsNum(asn) => Self::Asn(asn),
            Resource::ListenPort(port) => Self::Port(port),
            Resource::RrClusterId(id) => Self::ClusterId(id),
            Resource::LogLevel(level) => Self::LogLevel(level),
            Resource::HostMetadata(_) => Self::Present,
            Resource::Setting(setting) if let Some(value) = Self::of_every_host(key, &setting) => value,
            other => Self::Resource(Arc::new(other)),
        })
    }

    /// Returns the compact form of a host's setting that the model keeps of all hosts.
    fn of_every_host(key: &Key, setting: &Setting) -> Option<Self> {
        let Key::Setting(Scope::Host(_), name) = key else { return None };
        match (setting, name.as_str()) {
            (Setting::IPv4VXLANTunnelAddr(addr), _) => Some(Self::Address(addr.map(IpAddr::V4))),
            (Setting::IPv6VXLANTunnelAddr(addr), _) => Some(Self::Address(addr.map(IpAddr::V6))),
            (Setting::VXLANTunnelMACAddr(mac) | Setting::VXLANTunnelMACAddrV6(mac), _) => {
                Some(Self::Mac(*mac))
            }
            (Setting::Unset(_), "IPv4VXLANTunnelAddr" | "IPv6VXLANTunnelAddr") => Some(Self::Address(None)),
            (Setting::Unset(_), "VXLANTunnelMACAddr" | "VXLANTunnelMACAddrV6") => Some(Self::Mac(None)),
            _ => None,
        }
    }

    pub(super) fn resource(&self) -> Option<&Arc<Resource>> {
        match self {
            Self::Resource(resource) => Some(resource),
            _ => None,
        }
    }
}
