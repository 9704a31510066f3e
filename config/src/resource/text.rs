//! Values that are plain text instead of JSON: addresses, networks, ports, cluster ids, log levels.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::ValueError;
use crate::key::IpFamily;
use tortie_net::Cidr;

/// Decodes the value as text and removes surrounding blanks.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, ValueError> {
    std::str::from_utf8(bytes)
        .map(str::trim)
        .map_err(|_| ValueError::new("", "bytes that are no UTF-8", "write plain text"))
}

fn read<T: FromStr>(bytes: &[u8], expected: &str) -> Result<T, ValueError> {
    let text = text(bytes)?;
    text.parse().map_err(|_| ValueError::new("", format_args!("`{text}`"), expected))
}

/// Parses an address of one family. Empty means none: Calico's start-up writes an empty value for a family
/// that the node does not have.
pub(crate) fn address(bytes: &[u8], family: IpFamily) -> Result<Option<IpAddr>, ValueError> {
    if text(bytes)?.is_empty() {
        return Ok(None);
    }
    let expected = match family {
        IpFamily::V4 => "write an IPv4 address without quotes, such as 192.0.2.10, or nothing",
        IpFamily::V6 => "write an IPv6 address without quotes, such as 2001:db8::10, or nothing",
    };
    let addr: IpAddr = read(bytes, expected)?;
    if IpFamily::of(addr) == family {
        Ok(Some(addr))
    } else {
        Err(ValueError::new("", format_args!("`{addr}`"), expected))
    }
}

/// Parses an IPv4 address, or an empty value as `None`.
pub(crate) fn ipv4(bytes: &[u8]) -> Result<Option<Ipv4Addr>, ValueError> {
    Ok(match address(bytes, IpFamily::V4)? {
        Some(IpAddr::V4(addr)) => Some(addr),
        _ => None,
    })
}

/// Parses the network of an interface and clears host bits; an empty value is `None`.
pub(crate) fn network(bytes: &[u8], family: IpFamily) -> Result<Option<Cidr>, ValueError> {
    let found = text(bytes)?;
    if found.is_empty() {
        return Ok(None);
    }
    let expected = match family {
        IpFamily::V4 => "write ADDRESS/LENGTH without quotes, such as 192.0.2.0/24",
        IpFamily::V6 => "write ADDRESS/LENGTH without quotes, such as 2001:db8::/64",
    };
    let cidr: Cidr = read(bytes, expected)?;
    if IpFamily::of_cidr(&cidr) == family && found.contains('/') {
        Ok(Some(cidr))
    } else {
        Err(ValueError::new("", format_args!("`{found}`"), expected))
    }
}

/// Parses a port other than 0.
pub(crate) fn port(bytes: &[u8]) -> Result<u16, ValueError> {
    let expected = "write a port from 1 to 65535";
    match read(bytes, expected)? {
        0 => Err(ValueError::new("", "`0`", expected)),
        port => Ok(port),
    }
}

/// Parses the cluster id of a route reflector (RFC 4456), a dotted quad; an empty value is `None`.
pub(crate) fn cluster_id(bytes: &[u8]) -> Result<Option<Ipv4Addr>, ValueError> {
    if text(bytes)?.is_empty() {
        return Ok(None);
    }
    read(bytes, CLUSTER_ID).map(Some)
}

/// Expected format, for errors.
pub(crate) const CLUSTER_ID: &str = "write a cluster id as a dotted quad, such as 244.0.0.1";

/// Log level of BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BgpLogLevel {
    /// No messages: `none`, and the agent levels `warning`, `error` and `critical`.
    None,
    /// State changes: `info` and any other text.
    #[default]
    Info,
    /// All messages.
    Debug,
}

impl BgpLogLevel {
    /// Parses a level; never fails, as in Calico.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match text.trim().to_ascii_lowercase().as_str() {
            "debug" => Self::Debug,
            "none" | "warning" | "error" | "critical" => Self::None,
            _ => Self::Info,
        }
    }

    /// Returns `none`, `info` or `debug`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}
