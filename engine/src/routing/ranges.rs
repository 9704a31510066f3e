//! Peer ranges: prefixes from which BGP connections are accepted without a configured peer (dynamic
//! neighbours).
//!
//! A host's own range takes precedence over a global range with the same prefix. All other decisions are made
//! when a connection arrives: configured peers first, then the range with the longest prefix.

use std::net::SocketAddr;
use std::sync::Arc;

use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_net::Cidr;

use super::local::Local;
use super::peers::{explicit_of_range, name};
use super::types::{PeerIntent, PeerKind, RoutingIntent};
use crate::model::Model;
use crate::routing::persistent_map::Persistent;

/// Default for the maximum number of concurrent sessions of a range.
pub const MAX_SESSIONS: u32 = 100;

/// Prefix of the names of dynamic peers; the peer's address follows.
pub const DYNAMIC: &str = "Dynamic_";

/// A peer range of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeIntent {
    /// Addresses that may connect.
    pub prefix: Cidr,
    /// Maximum number of concurrent sessions.
    pub max_sessions: u32,
    /// Settings of the range's peers; each peer has its own name and remote address.
    pub peer: PeerIntent,
}

/// A peer that connected from a range.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DynamicPeer {
    /// Name of its session.
    pub name: Arc<str>,
    /// Name of its range.
    pub range: Arc<str>,
    /// Remote address and port.
    pub remote: SocketAddr,
}

/// Returns the ranges of this host, by name.
pub(super) fn ranges(model: &Model, local: &Local) -> Persistent<String, RangeIntent> {
    let mut ranges: Persistent<String, RangeIntent> = Persistent::default();
    for (kind, of) in [(PeerKind::Node, Some(model.node())), (PeerKind::Global, None)] {
        let scope = of.map_or(Scope::Global, |host| Scope::Host(host.to_owned()));
        for stored in model.ranges(&scope) {
            let (prefix, value) = (*stored.key, stored.value);
            let taken = ranges.values().any(|other| other.prefix == prefix);
            let Some(own) = local.addr(IpFamily::of_cidr(&prefix)).filter(|_| !taken) else { continue };
            let key = Key::Bgp(scope.clone(), BgpItem::PeerRange(prefix));
            let peer = explicit_of_range(model, local, own, prefix, value, key);
            if peer.ipv4 || peer.ipv6 {
                let max_sessions = value.max_sessions.unwrap_or(MAX_SESSIONS);
                let name = name(kind, &format!("range_{}", prefix.to_key_text()), None);
                ranges.insert(name, RangeIntent { prefix, max_sessions, peer });
            }
        }
    }
    ranges
}

impl RoutingIntent {
    /// Returns this intent with the given dynamic peers added.
    #[must_use]
    pub fn with_dynamic<'a>(&self, dynamic: impl IntoIterator<Item = &'a DynamicPeer>) -> Self {
        let mut all = self.clone();
        for found in dynamic {
            if let Some(peer) = self.dynamic(found) {
                all.peers.insert(found.name.to_string(), peer);
            }
        }
        all
    }

    /// Returns the settings of a dynamic peer; `None` if its range no longer exists.
    #[must_use]
    pub fn dynamic(&self, found: &DynamicPeer) -> Option<PeerIntent> {
        let mut peer = self.ranges.get(&*found.range)?.peer.clone();
        peer.remote = found.remote;
        peer.name = found.remote.ip().to_string();
        Some(peer)
    }
}
