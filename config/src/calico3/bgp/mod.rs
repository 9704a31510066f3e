//! Nodes, pools, reservations, peers, filters, BGP configurations and live migrations.
//!
//! ```text
//!  Node, BGPFilter, IPReservation, LiveMigration --node, filter, reservation, live_migration--> entries of each
//!  IPPools --pools--> one pool for each prefix
//!  BGPConfigurations --configuration--> AS, mesh, port, advertisements
//!  BGPPeers (peer.rs), Nodes, ports, own workloads --peers--> global peers, peers of this host
//! ```

mod configuration;
mod filter;
mod live_migration;
mod members;
mod node;
mod peer;
mod peers;
mod pools;
mod reservation;
mod secret;
#[cfg(test)]
mod tests;

use super::{Kind, ObjectKey};
use crate::key::{BgpItem, Key, Scope};

pub(super) use configuration::{CONFIGURATION_READ, configuration};
pub(super) use filter::filter;
pub(super) use live_migration::live_migration;
pub(super) use node::{NodeBgp, SETTINGS as NODE_SETTINGS, node};
pub(super) use peers::{PEERS_READ, peers, peers_need};
pub(super) use pools::{POOLS_READ, pools};
pub(super) use reservation::reservation;

/// Returns the Node, BGPFilter or IPReservation that gives a v1 key, if such an object gives it at all.
pub(super) fn object_of(key: &Key) -> Option<ObjectKey> {
    let (kind, name) = match key {
        Key::Bgp(
            Scope::Host(host),
            BgpItem::Address(_) | BgpItem::Network(_) | BgpItem::AsNum | BgpItem::RrClusterId,
        ) => (Kind::Node, host),
        Key::Setting(Scope::Host(host), name) if NODE_SETTINGS.contains(&name.as_str()) => (Kind::Node, host),
        Key::BgpFilter(name) => (Kind::BGPFilter, name),
        Key::IpReservation(name) => (Kind::IPReservation, name),
        _ => return None,
    };
    Some(ObjectKey::global(kind, name))
}
