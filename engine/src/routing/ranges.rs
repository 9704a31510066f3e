//! Ranges: addresses from which sessions are taken although no peer is configured there (dynamic neighbours).
//!
//! A host's own range counts before the one for all hosts with the same prefix. Everything else is decided where a
//! connection comes in: configured peers first, then the range with the longest prefix.

use std::net::SocketAddr;
use std::sync::Arc;

use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_net::Cidr;

use super::local::Local;
use super::peers::{explicit_of_range, name};
use super::types::{PeerIntent, PeerKind, RoutingIntent};
use crate::model::Model;
use crate::routing::persistent_map::Persistent;

/// Sessions of a range at one time where its value says nothing.
pub const MAX_SESSIONS: u32 = 100;

/// What the names of dynamic peers begin with; their address follows.
pub const DYNAMIC: &str = "Dynamic_";

/// A wanted range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeIntent {
    /// The addresses.
    pub prefix: Cidr,
    /// Most sessions at one time.
    pub max_sessions: u32,
    /// What its peers have in common; name and remote address are theirs.
    pub peer: PeerIntent,
}

/// A peer that came from a range.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DynamicPeer {
    /// The name of its session.
    pub name: Arc<str>,
    /// The name of its range.
    pub range: Arc<str>,
    /// Its address.
    pub remote: SocketAddr,
}

/// The ranges of this host, by name.
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
    /// This intent with the dynamic peers that there are now.
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

    /// What is wanted of a dynamic peer; `None`: its range is gone.
    #[must_use]
    pub fn dynamic(&self, found: &DynamicPeer) -> Option<PeerIntent> {
        let mut peer = self.ranges.get(&*found.range)?.peer.clone();
        peer.remote = found.remote;
        peer.name = found.remote.ip().to_string();
        Some(peer)
    }
}
