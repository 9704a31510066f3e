//! Routes that this host originates, and the view that decisions about single routes use.
//!
//! Originated are the own blocks (see [`Model::own_blocks`]), each with a blackhole unless it is a single
//! address, and those addresses of own active workloads that lie **outside** of the own blocks: addresses
//! borrowed from other hosts' blocks, and external addresses of 1:1 NAT. The latter must lie in a pool or in
//! `prefix_advertisements`, since no export gate would announce them otherwise.

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

/// Returns the originated routes; `view` must be the current one.
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

/// Returns the originated route of a workload's prefix. `None` if it is inside of an own block, or if no
/// export gate would announce it.
pub(super) fn of_workload(prefix: &Cidr, view: &RoutingView, own: &OwnAddresses) -> Option<Originated> {
    let announced = cover::in_set(&view.own_blocks, prefix).is_none()
        && (view.pool_of(prefix).is_some() || view.advertisements.iter().any(|a| a.cidr.covers(prefix)));
    if announced { own.originated(prefix) } else { None }
}

/// Returns the blackholes of the own blocks. They drop packets to unused addresses, which would otherwise
/// follow the default route and loop.
pub(super) fn blackholes(view: &RoutingView) -> BTreeSet<Cidr> {
    view.own_blocks.iter().filter(|block| !block.is_host()).copied().collect()
}

/// Returns the own blocks whose blackhole would drop packets of this host itself, with the reason: they
/// contain its address, its network, a BGP neighbour or the store.
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

/// Builds the view with these filters. A withheld block does not count as own, so the addresses in it are
/// announced one by one.
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

/// Returns the tunnel if an IPv4 pool has IPIP. A disabled pool counts too, since addresses in use keep using
/// the tunnel.
pub(super) fn tunnel(model: &Model, view: &RoutingView) -> Option<TunnelIntent> {
    view.pools.iter().any(|pool| pool.ipip.is_some()).then(|| {
        let settings = model.settings();
        TunnelIntent { addr: model.tunnel_address().unwrap_or_default(), mtu: settings.ip_in_ip_mtu }
    })
}
