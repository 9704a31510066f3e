//! Addresses and networks of hosts according to the store, compared with pools.

use std::collections::{BTreeMap, BTreeSet};

use tortie_config::Resource;
use tortie_config::counted;
use tortie_config::key::{BgpItem, Key, Scope};
use tortie_net::Cidr;

use crate::ipam::holders::excluded::ExcludedPrefix;
use crate::model::Model;

/// Last path elements of the relevant keys, among thousands of per-host BGP keys.
const ITEMS: [&str; 4] = ["/ip_addr_v4", "/ip_addr_v6", "/network_v4", "/network_v6"];

/// An address of a host, as a /32 or /128 prefix, or a network that the host is connected to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostNetwork {
    /// Address or network.
    pub cidr: Cidr,
    /// Name of the host.
    pub host: String,
}

impl HostNetwork {
    /// Parses a key and its value. Returns `None` for other keys and for invalid values.
    #[must_use]
    pub fn of_entry(text: &str, value: &[u8]) -> Option<Self> {
        if !ITEMS.iter().any(|item| text.ends_with(item)) {
            return None;
        }
        let key = Key::parse(text).ok()?;
        let Key::Bgp(Scope::Host(host), BgpItem::Address(_) | BgpItem::Network(_)) = &key else {
            return None;
        };
        let cidr = match Resource::parse(&key, value).ok()? {
            Resource::Address(addr) => Cidr::host(addr?),
            Resource::Network(network) => network?,
            _ => return None,
        };
        Some(Self { cidr, host: host.clone() })
    }

    /// Returns the addresses and networks in a model that overlap one of the pools. In most clusters there
    /// are none, even with thousands of hosts.
    #[must_use]
    pub fn within(model: &Model, pools: &[Cidr]) -> Vec<Self> {
        let in_pool = |pool: &Cidr| model.hosts_within(pool).map(|(cidr, host)| (cidr, host.to_owned()));
        // Pools may be nested, so a prefix may be found twice.
        let found: BTreeSet<(Cidr, String)> = pools.iter().flat_map(in_pool).collect();
        found.into_iter().map(|(cidr, host)| Self { cidr, host }).collect()
    }

    /// Returns the owner, described for people: `the address of host h1`.
    fn holder(&self) -> String {
        let kind = if self.cidr.is_host() { "address" } else { "network" };
        format!("the {kind} of host {}", self.host)
    }

    /// Returns address and owner, described for people: `192.0.2.7, the address of host h1`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { cidr, .. } = self;
        if cidr.is_host() {
            format!("{}, {}", cidr.addr(), self.holder())
        } else {
            format!("{cidr}, {}", self.holder())
        }
    }
}

impl From<HostNetwork> for ExcludedPrefix {
    fn from(network: HostNetwork) -> Self {
        Self { holder: network.holder(), cidr: network.cidr }
    }
}

/// Describes the host addresses and networks that a pool overlaps, networks first. Returns `None` if there
/// are none.
#[must_use]
pub fn pool_overlap(pool: &Cidr, hosts: &[HostNetwork]) -> Option<String> {
    let mut found: BTreeMap<(bool, Cidr), Vec<&HostNetwork>> = BTreeMap::new();
    for network in hosts.iter().filter(|network| network.cidr.overlaps(pool)) {
        found.entry((network.cidr.is_host(), network.cidr)).or_default().push(network);
    }
    let ((_, cidr), first) = found.first_key_value()?;
    let also = match first.len() - 1 {
        0 => String::new(),
        1 => " and of 1 host more".to_owned(),
        more => format!(" and of {}", counted(more, "more host")),
    };
    let covered = found.keys().filter(|(_, other)| cidr.covers(other)).count();
    let others = match found.len() - covered {
        0 => String::new(),
        more => format!(", and {more} others"),
    };
    Some(format!("{}{also}{others}", first.first()?.describe()))
}
