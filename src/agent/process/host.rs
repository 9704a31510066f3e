//! Reads addresses and networks of this host, and converts settings for the process.

use std::net::{IpAddr, SocketAddr};

use tortie_config::resource::{BgpLogLevel, Severity as StoreSeverity};
use tortie_net::Cidr;

use crate::agent::config::{AddressChoice, Settings};
use crate::agent::logging::{BgpLevel, LogSettings, Severity};
use tortie_engine::model::Model;
use tortie_engine::routing::{AddressOption, NodeOptions, RouterId};
use tortie_engine::writer::{AddressFlag, AddressSource, NodeAddress, Registration};
use tortie_store::StoreUrl;

/// Returns the choice of the BGP identifier, from Calico's environment variable.
///
/// # Errors
/// If the value is neither empty, an address, nor `hash`.
pub fn router_id() -> Result<RouterId, String> {
    let value = std::env::var("CALICO_ROUTER_ID").unwrap_or_default();
    value.parse().map_err(|error| format!("CALICO_ROUTER_ID: {error}"))
}

/// Returns this host's BGP options from the flags.
pub(in crate::agent) fn node_options(settings: &Settings) -> NodeOptions {
    let option = |choice: Option<AddressChoice>| match choice {
        None | Some(AddressChoice::Auto) => AddressOption::Stored,
        Some(AddressChoice::Nothing) => AddressOption::Off,
        Some(AddressChoice::Given(addr, len)) => AddressOption::Given(addr, Cidr::new(addr, len).ok()),
    };
    NodeOptions {
        ip4: option(settings.ip4),
        ip6: option(settings.ip6),
        asn: settings.asn,
        listen: settings.bgp_listen.clone(),
        router_id: router_id().unwrap_or_else(|error| {
            tracing::warn!(target: "tortie", "{error}; the IPv4 address of the node counts");
            RouterId::Address
        }),
        ..NodeOptions::default()
    }
}

/// Returns the connected networks of this host if blackholes are written, else none.
pub(in crate::agent) fn connected(writes: bool) -> Vec<Cidr> {
    let networks = if writes { tortie_kernel::connected_networks() } else { Ok(Vec::new()) };
    match networks {
        Ok(networks) => networks.into_iter().map(|(_, network)| network).collect(),
        Err(error) => {
            tracing::warn!(target: "tortie", "the networks of this host cannot be read: {error}");
            Vec::new()
        }
    }
}

/// Returns the addresses of store endpoints that the store's URL names by IP address.
pub(in crate::agent) fn store_addresses(url: &str) -> Vec<IpAddr> {
    let Ok(StoreUrl::Etcd { endpoints, .. }) = url.parse() else { return Vec::new() };
    let addr = |endpoint: &String| Some(endpoint.parse::<SocketAddr>().ok()?.ip());
    endpoints.iter().filter_map(addr).collect()
}

/// Returns what this host registers: flags, and the addresses that `auto` selects. Reads the kernel.
pub(in crate::agent) fn registration(node: &str, settings: &Settings) -> Registration {
    let (v4, v6) = tortie_kernel::default_addresses().unwrap_or_else(|error| {
        tracing::warn!(target: "tortie", "this host's addresses cannot be read: {error}");
        (None, None)
    });
    let source = |choice: Option<AddressChoice>, found: Option<tortie_kernel::HostAddress>| AddressSource {
        flag: match choice {
            None => AddressFlag::Unset,
            Some(AddressChoice::Auto) => AddressFlag::Auto,
            Some(AddressChoice::Nothing) => AddressFlag::Nothing,
            Some(AddressChoice::Given(addr, len)) => AddressFlag::Given(NodeAddress { addr, len }),
        },
        detected: found.map(|found| NodeAddress { addr: found.addr, len: found.len }),
    };
    Registration {
        node: node.to_owned(),
        ipv4: source(settings.ip4, v4),
        ipv6: source(settings.ip6, v6),
        asn: settings.asn,
    }
}

/// Returns the log settings from the store; the host's override the global ones.
pub(in crate::agent) fn log_settings(model: &Model) -> LogSettings {
    let settings = model.settings();
    LogSettings {
        screen: severity(settings.log_severity_screen),
        file: settings.log_file_path.as_ref().and_then(|_| severity(settings.log_severity_file)),
        path: settings.log_file_path.clone(),
        bgp: match model.bgp_log_level() {
            BgpLogLevel::None => BgpLevel::Nothing,
            BgpLogLevel::Debug => BgpLevel::Everything,
            BgpLogLevel::Info => BgpLevel::Changes,
        },
    }
}

fn severity(wanted: StoreSeverity) -> Option<Severity> {
    match wanted {
        StoreSeverity::Off => None,
        StoreSeverity::Debug => Some(Severity::Debug),
        StoreSeverity::Info => Some(Severity::Info),
        StoreSeverity::Warning => Some(Severity::Warning),
        StoreSeverity::Error | StoreSeverity::Critical => Some(Severity::Error),
    }
}
