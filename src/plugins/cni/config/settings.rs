//! The parts `ipam` and `log` of a configuration.

use std::net::IpAddr;

use serde_json::Value;
use tortie_net::Cidr;

use crate::plugins::cni::config::datastore;
use crate::plugins::cni::config::pools;
use crate::plugins::cni::config::runtime::{IpRange, range_set};
use crate::plugins::cni::protocol::error::CniError;
use crate::plugins::cni::protocol::json::Object;
use crate::plugins::cni::protocol::result::Route;

/// Whose addresses, and which.
#[derive(Debug, Clone, PartialEq)]
pub struct IpamSettings {
    /// Another plugin gives the addresses: its name. `None`: we do.
    pub foreign: Option<String>,
    /// An IPv4 address (default yes).
    pub ipv4: bool,
    /// An IPv6 address (default no).
    pub ipv6: bool,
    /// IPv4 pools that the address may come from; empty: all.
    pub ipv4_pools: Vec<Cidr>,
    /// IPv6 pools that the address may come from; empty: all.
    pub ipv6_pools: Vec<Cidr>,
    /// `subnet`: the address comes from this part of a pool.
    pub subnet: Option<Cidr>,
    /// `ranges`, as host-local has them: one address from each.
    pub ranges: Vec<Vec<IpRange>>,
    /// For bridges: what the addresses of a network have in common.
    pub frame: Frame,
}

/// What `tortie-ipam` tells a plugin that needs a network and a gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frame {
    /// Length of the IPv4 network; `None`: the block's.
    pub len4: Option<u8>,
    /// Length of the IPv6 network; `None`: the block's.
    pub len6: Option<u8>,
    /// Gateways, at most one of each family; without one the first address of the network.
    pub gateways: Vec<IpAddr>,
    /// Returned as they are.
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
    // Of the whole configuration, when another main plugin calls us.
    "node",
    "log",
    "log_level",
];

impl IpamSettings {
    /// Reads `ipam`. The fields of a foreign plugin are its own business.
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

/// One address, or a list of them.
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

/// Where logs go, and how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Where to.
    pub target: LogTarget,
    /// From which level on.
    pub level: tracing::Level,
}

/// Where logs go. Never to stdout, which is the answer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// The system's log, `/dev/log`.
    Syslog,
    /// A file; at 10 MiB it becomes `FILE.1`.
    File(std::path::PathBuf),
    /// Only when asked for: some runtimes take what stands there for an error.
    Stderr,
    /// Nowhere.
    Nowhere,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { target: LogTarget::Syslog, level: tracing::Level::INFO }
    }
}

impl LogSettings {
    /// `log` (`syslog`, `stderr`, `none` or a path), else Calico's `log_file_path`; `log_level`. `None`: nothing is said.
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
