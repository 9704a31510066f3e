//! What this host announces from itself, and what decisions about single routes read.
//!
//! Own blocks (see [`Model::own_blocks`]), each with a blackhole but for single addresses; and addresses of own active
//! workloads **outside** of them: borrowed ones from other hosts' blocks, and the outside addresses of 1:1 NAT. Those
//! have to lie in a pool or in `prefix_advertisements`, else no gate would let them out.

use std::collections::{BTreeMap, BTreeSet};

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::Pool;
use tortie_net::{Cidr, cover};

use super::filter::Filters;
use super::local::{Local, NodeOptions};
use super::own::OwnAddresses;
use super::peers::named_at;
use super::types::{OriginKind, Originated, PeerIntent, PoolView, RoutingView, TunnelIntent};
use crate::model::Model;
use crate::routing::persistent_map::Persistent;

/// The originated routes; `view` is the one of this moment.
pub(super) fn originated(
    model: &Model,
    view: &RoutingView,
    own: &OwnAddresses,
) -> Persistent<Cidr, Originated> {
    let mut routes: Persistent<Cidr, Originated> = model
        .own_blocks()
        .filter(|(block, _)| view.own_blocks.contains(block))
        .map(|(block, revision)| {
            let key = Key::Block(block).to_string().into();
            (block, Originated { kind: OriginKind::OwnBlock, key, revision })
        })
        .collect();
    routes.extend(own.prefixes().filter_map(|prefix| Some((prefix, of_workload(&prefix, view, own)?))));
    routes
}

/// The route to a workload's prefix, if it has to be announced: not inside of an own block, and where a gate lets it out.
pub(super) fn of_workload(prefix: &Cidr, view: &RoutingView, own: &OwnAddresses) -> Option<Originated> {
    let announced = cover::in_set(&view.own_blocks, prefix).is_none()
        && (view.pool_of(prefix).is_some() || view.advertisements.iter().any(|a| a.cidr.covers(prefix)));
    if announced { own.originated(prefix) } else { None }
}

/// The blackholes of the own blocks: packets to their unused addresses end here and do not loop over a default route.
pub(super) fn blackholes(view: &RoutingView) -> BTreeSet<Cidr> {
    view.own_blocks.iter().filter(|block| !block.is_host()).copied().collect()
}

/// Own blocks whose blackhole would take packets of this host's own: to itself, its network, its BGP neighbours, the store.
pub(super) fn withheld_blocks(
    model: &Model,
    local: &Local,
    options: &NodeOptions,
    peers: &Persistent<String, PeerIntent>,
) -> BTreeMap<Cidr, String> {
    let reason = |block: &Cidr| {
        let own = [local.v4, local.v6].into_iter().flatten().find(|addr| block.contains(*addr));
        if let Some(addr) = own {
            return Some(format!("it covers {addr}, the address of this host"));
        }
        let network =
            [local.network_v4, local.network_v6].into_iter().flatten().find(|net| net.overlaps(block));
        if let Some(network) = network {
            return Some(format!("it overlaps {network}, the network of this host"));
        }
        if let Some(network) = options.connected.iter().find(|network| network.overlaps(block)) {
            return Some(format!("it overlaps {network}, a network that this host is connected to"));
        }
        if let Some(addr) = options.store.iter().find(|addr| block.contains(**addr)) {
            return Some(format!("it covers {addr}, an address of the store"));
        }
        let neighbours = model.neighbour_addresses_within(block).flat_map(|addr| named_at(peers, addr));
        let (name, peer) = neighbours.min_by_key(|(name, _)| *name)?;
        Some(format!("it covers {}, the BGP neighbour {name}", peer.remote.ip()))
    };
    let blocks = model.own_blocks().map(|(block, _)| block).filter(|block| !block.is_host());
    blocks.filter_map(|block| Some((block, reason(&block)?))).collect()
}

/// What decisions about single routes read, with these filters. A block that is withheld is as if it were not own: the
/// addresses in it are announced for themselves.
pub(super) fn view(
    model: &Model,
    local: &Local,
    filters: &Filters,
    withheld: &BTreeMap<Cidr, String>,
) -> RoutingView {
    RoutingView {
        node: model.node().to_owned(),
        node_v4: local.v4,
        node_v6: local.v6,
        network_v4: local.network_v4,
        pools: model.pools().map(|pool| pool_view(pool.value)).collect(),
        own_blocks: {
            let blocks = model.own_blocks().map(|(block, _)| block);
            blocks.filter(|block| !withheld.contains_key(block)).collect()
        },
        advertisements: [IpFamily::V4, IpFamily::V6]
            .into_iter()
            .flat_map(|family| model.advertisements(family))
            .cloned()
            .collect(),
        filters: filters.clone(),
    }
}

fn pool_view(pool: &Pool) -> PoolView {
    let ipip = pool.ipip.as_ref().filter(|_| pool.cidr.is_v4()).map(|ipip| ipip.mode);
    PoolView { cidr: pool.cidr, ipip, disabled: pool.disabled }
}

/// The tunnel, when an IPv4 pool has IPIP. A disabled one gives out no addresses; those in use go on through it.
pub(super) fn tunnel(model: &Model, view: &RoutingView) -> Option<TunnelIntent> {
    view.pools.iter().any(|pool| pool.ipip.is_some()).then(|| {
        let settings = model.settings();
        TunnelIntent { addr: model.tunnel_address().unwrap_or_default(), mtu: settings.ip_in_ip_mtu }
    })
}
