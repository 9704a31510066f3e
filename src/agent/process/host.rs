//! Reads addresses and networks of this host, and converts settings for the process.

use std::net::{IpAddr, SocketAddr};

use tortie_config::resource::{BgpLogLevel, Severity as StoreSeverity};
use tortie_net::Cidr;

use crate::agent::config::{AddressChoice, Settings};
use crate::agent::controllers::register_node::{Detected, NodeAddress};
use crate::agent::logging::{BgpLevel, LogSettings, Severity};
use tortie_engine::model::Model;
use tortie_engine::routing::{AddressOption, NodeOptions};
use tortie_store::StoreUrl;

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

/// Detects the addresses that `auto` selects.
pub(in crate::agent) fn detect() -> Detected {
    match tortie_kernel::default_addresses() {
        Ok((v4, v6)) => {
            let node = |found: tortie_kernel::HostAddress| NodeAddress { addr: found.addr, len: found.len };
            Detected { v4: v4.map(node), v6: v6.map(node) }
        }
        Err(error) => {
            tracing::warn!(target: "tortie", "this host's addresses cannot be read: {error}");
            Detected::default()
        }
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
