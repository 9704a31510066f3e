//! The sections `ipam` and `log` of a configuration.

use std::net::IpAddr;

use serde_json::Value;
use tortie_net::Cidr;

use crate::plugins::cni::config::datastore;
use crate::plugins::cni::config::runtime::{IpRange, range_set};
use crate::plugins::cni::protocol::error::CniError;
use crate::plugins::cni::protocol::json::Object;
use crate::plugins::cni::protocol::result::Route;
use crate::plugins::pools::PoolNames;

/// A pool as a configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolRef {
    /// By its prefix.
    Prefix(Cidr),
    /// By the name of its object in a Calico 3 store.
    Name {
        /// Field of the configuration.
        at: String,
        /// Name of the IPPool.
        name: String,
    },
}

impl PoolRef {
    /// Returns the prefix of the pool.
    ///
    /// # Errors
    /// Code 7 if no pool has the name.
    pub(in crate::plugins::cni) fn prefix(&self, names: &PoolNames) -> Result<Cidr, CniError> {
        match self {
            Self::Prefix(cidr) => Ok(*cidr),
            Self::Name { at, name } => {
                names.prefix(name).map_err(|expected| CniError::value(at, &name.as_str().into(), &expected))
            }
        }
    }
}

/// Settings for address allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamSettings {
    /// Name of another IPAM plugin that allocates the addresses; `None` for Tortie's IPAM.
    pub foreign: Option<String>,
    /// True to allocate an IPv4 address (default true).
    pub ipv4: bool,
    /// True to allocate an IPv6 address (default false).
    pub ipv6: bool,
    /// IPv4 pools to allocate from; empty for all pools.
    pub ipv4_pools: Vec<PoolRef>,
    /// IPv6 pools to allocate from; empty for all pools.
    pub ipv6_pools: Vec<PoolRef>,
    /// `subnet`: part of a pool to allocate from.
    pub subnet: Option<Cidr>,
    /// `ranges`, as in host-local: one address from each element.
    pub ranges: Vec<Vec<IpRange>>,
    /// For bridges: common properties of a network's addresses.
    pub frame: Frame,
}

/// Network properties that `tortie-ipam` returns to a plugin that needs a network and a gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame {
    /// Prefix length of the IPv4 network; `None` for the block's length.
    pub len4: Option<u8>,
    /// Prefix length of the IPv6 network; `None` for the block's length.
    pub len6: Option<u8>,
    /// Gateways, at most one per family; the default is the first address of the network.
    pub gateways: Vec<IpAddr>,
    /// Routes, which are returned unchanged.
    pub routes: Vec<Route>,
}

impl Default for IpamSettings {
    fn default() -> Self {
        Self {
            foreign: None,
            ipv4: true,
            ipv6: false,
            ipv4_pools: Vec::new(),
            ipv6_pools: Vec::new(),
            subnet: None,
            ranges: Vec::new(),
            frame: Frame::default(),
        }
    }
}

const FIELDS: [&str; 14] = [
    "type",
    "subnet",
    "ranges",
    "assign_ipv4",
    "assign_ipv6",
    "ipv4_pools",
    "ipv6_pools",
    "prefix_length",
    "prefix_length6",
    "gateway",
    "routes",
    // Fields of the whole configuration, for calls by another main plugin.
    "node",
    "log",
    "log_level",
];

impl IpamSettings {
    /// Parses `ipam`. The fields of another IPAM plugin are not checked.
    pub(in crate::plugins::cni) fn parse(
        object: &Object<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Self, CniError> {
        let kind = object.text("type")?.unwrap_or_default();
        if !matches!(kind, "" | "tortie-ipam" | "calico-ipam") {
            if kind.contains('/') {
                return Err(CniError::value(
                    "ipam.type",
                    &kind.into(),
                    "write the name of a plugin, without a path",
                ));
            }
            return Ok(Self { foreign: Some(kind.to_owned()), ..Self::default() });
        }
        for (key, value) in object.others(&FIELDS).filter(|(key, _)| !datastore::is_field(key)) {
            if kind == "calico-ipam" {
                notes.push(format!("field `ipam.{key}` is not used"));
                continue;
            }
            return Err(CniError::value(&object.at(key), value, "such a field is unknown; correct its name"));
        }
        let subnet = match object.text("subnet")? {
            Some("usePodCidr") => {
                let expected = "pools come from the data model; name them in ipv4_pools or leave it out";
                return Err(CniError::value("ipam.subnet", &"usePodCidr".into(), expected));
            }
            Some(text) => Some(Cidr::parse_strict(text).map_err(|_| {
                CniError::value("ipam.subnet", &text.into(), "write ADDRESS/LENGTH without host bits")
            })?),
            None => None,
        };
        let len = |name: &str, max: u64| {
            object.number(name, max).map(|len| len.and_then(|len| u8::try_from(len).ok()))
        };
        let mut this = Self {
            foreign: None,
            ipv4: object.switch("assign_ipv4")?.unwrap_or(true),
            ipv6: object.switch("assign_ipv6")?.unwrap_or(false),
            ipv4_pools: pools(object, "ipv4_pools", true)?,
            ipv6_pools: pools(object, "ipv6_pools", false)?,
            subnet,
            ranges: Vec::new(),
            frame: Frame {
                len4: len("prefix_length", 32)?,
                len6: len("prefix_length6", 128)?,
                gateways: gateways(object)?,
                routes: Vec::new(),
            },
        };
        for (at, value) in object.list("ranges")? {
            this.ranges.push(range_set(&at, value)?);
        }
        for (at, value) in object.list("routes")? {
            this.frame.routes.push(Route::parse(&at, value)?);
        }
        Ok(this)
    }
}

/// Parses a list of pools, which are named by their prefixes, or in a Calico 3 store by their names.
fn pools(ipam: &Object<'_>, name: &str, v4: bool) -> Result<Vec<PoolRef>, CniError> {
    let read = |(at, value): (String, &Value)| {
        let text = value.as_str().unwrap_or_default();
        if text.contains('/') || text.contains(':') || text.is_empty() || text.parse::<IpAddr>().is_ok() {
            let cidr = Cidr::parse_strict(text).ok().filter(|cidr| cidr.is_v4() == v4);
            return cidr.map(PoolRef::Prefix).ok_or_else(|| {
                let family = if v4 {
                    "an IPv4 pool, such as 10.65.0.0/16"
                } else {
                    "an IPv6 pool, such as fd00:65::/48"
                };
                CniError::value(&at, value, &format!("write the prefix of {family}"))
            });
        }
        Ok(PoolRef::Name { at, name: text.to_owned() })
    };
    ipam.list(name)?.into_iter().map(read).collect()
}

/// Parses one address, or a list with at most one address per family.
fn gateways(object: &Object<'_>) -> Result<Vec<IpAddr>, CniError> {
    let at = object.at("gateway");
    let list = match object.get("gateway") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().collect(),
        Some(one) => vec![one],
    };
    let mut found: Vec<IpAddr> = Vec::new();
    for value in list {
        let text = value.as_str().unwrap_or_default();
        let addr: IpAddr = text.parse().map_err(|_| CniError::value(&at, value, "write an address"))?;
        if found.iter().any(|other| other.is_ipv4() == addr.is_ipv4()) {
            return Err(CniError::value(&at, value, "write at most one address of each family"));
        }
        found.push(addr);
    }
    Ok(found)
}

/// Destination and level of logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Destination of log lines.
    pub target: LogTarget,
    /// Lowest level that is logged.
    pub level: tracing::Level,
}

/// Destination of logs. It is never stdout, which is for the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// The system log, `/dev/log`.
    Syslog,
    /// A file; at 10 MiB it is renamed to `FILE.1`.
    File(std::path::PathBuf),
    /// Standard error, only on request, because some runtimes take its content for an error.
    Stderr,
    /// No logs.
    Nowhere,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { target: LogTarget::Syslog, level: tracing::Level::INFO }
    }
}

impl LogSettings {
    /// Parses `log` (`syslog`, `stderr`, `none` or a path) or Calico's `log_file_path`, and `log_level`;
    /// `None` if none of them is set.
    pub(in crate::plugins::cni) fn parse(object: &Object<'_>) -> Result<Option<Self>, CniError> {
        let said = object.text("log")?.or(object.text("log_file_path")?);
        if said.is_none() && object.text("log_level")?.is_none() {
            return Ok(None);
        }
        let target = match said {
            None | Some("syslog") => LogTarget::Syslog,
            Some("stderr") => LogTarget::Stderr,
            Some("none") => LogTarget::Nowhere,
            Some(path) if path.starts_with('/') => LogTarget::File(path.into()),
            Some(other) => {
                let expected = "write syslog, stderr, none, or the whole path of a file";
                return Err(CniError::value("log", &other.into(), expected));
            }
        };
        let level = match object.text("log_level")?.map(str::to_ascii_lowercase).as_deref() {
            Some("debug") => tracing::Level::DEBUG,
            None | Some("info") => tracing::Level::INFO,
            Some("warn" | "warning") => tracing::Level::WARN,
            Some("error" | "fatal" | "panic" | "critical" | "none") => tracing::Level::ERROR,
            Some(other) => {
                let expected = "write debug, info, warning or error";
                return Err(CniError::value("log_level", &other.into(), expected));
            }
        };
        Ok(Some(Self { target, level }))
    }
}
