//! Routes that this host originates, and the view that decisions about single routes use.
//!
//! Originated are the own blocks (see [`Model::own_blocks`]), each with a blackhole unless it is a single
//! address, and those addresses of own active workloads that lie **outside** of the own blocks: addresses
//! borrowed from other hosts' blocks, and external addresses of 1:1 NAT. The latter must lie in a pool or in
//! `prefix_advertisements`, since no export gate would announce them otherwise.
//!
//! In a store of Calico 3, workload addresses inside of the own blocks are originated too if a filter of a peer
//! may accept them, and a block of a single address is originated only while the address is in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::Pool;
use tortie_net::{Cidr, cover};

use super::calico3::Calico3View;
use super::filter::Filters;
use super::local::{Local, NodeOptions};
use super::own::OwnAddresses;
use super::peers::named_at;
use super::types::{OriginKind, Originated, PeerIntent, PoolView, RoutingView, TunnelIntent};
use crate::model::Model;
use crate::routing::persistent_map::Persistent;

/// MTU of `tunl0` in the v1 model, unless it is configured or the link carries less.
const V1_IPIP_MTU: u32 = 1440;

/// Returns the originated routes; `view` must be the current one.
pub(super) fn originated(
    model: &Model,
    view: &RoutingView,
    own: &OwnAddresses,
) -> Persistent<Cidr, Originated> {
    let has_route = |block: &Cidr| {
        view.own_blocks.contains(block) && (!is_one_address(block, view) || is_tunnel(block, model, view))
    };
    let mut routes: Persistent<Cidr, Originated> = model
        .own_blocks()
        .filter(|(block, _)| has_route(block))
        .map(|(block, revision)| {
            let key = Key::Block(block).to_string().into();
            (block, Originated { kind: OriginKind::OwnBlock, key, revision, priority: None })
        })
        .collect();
    routes.extend(service_ranges(model, view));
    let workloads = own.prefixes().filter(|prefix| !routes.contains_key(prefix));
    let workloads: Vec<(Cidr, Originated)> =
        workloads.filter_map(|prefix| Some((prefix, of_workload(&prefix, view, own)?))).collect();
    routes.extend(workloads);
    routes
}

/// Returns true for a block of one address in a store of Calico 3. It has no blackhole, so BIRD announces it
/// only while the address is in use; without a route its packets would follow the default route and loop.
fn is_one_address(block: &Cidr, view: &RoutingView) -> bool {
    view.calico3.is_some() && block.is_host()
}

/// Returns true if the address of a block is that of a tunnel device of this host.
fn is_tunnel(block: &Cidr, model: &Model, view: &RoutingView) -> bool {
    let ipip = tunnel(model, view).and_then(|tunnel| tunnel.addr).map(IpAddr::V4);
    let host = model.host(model.node());
    let vxlan = [IpFamily::V4, IpFamily::V6].map(|family| host.and_then(|host| host.vxlan_addr(family)));
    vxlan.into_iter().chain([ipip]).flatten().any(|addr| addr == block.addr())
}

/// Returns the service ranges of a store of Calico 3. They have no blackhole: Calico's kernel filter refuses
/// them as well, and one would take the connections of this host itself to the services.
fn service_ranges(model: &Model, view: &RoutingView) -> impl Iterator<Item = (Cidr, Originated)> {
    let key: std::sync::Arc<str> = Key::BgpConfiguration.to_string().into();
    let revision = model.revision_of(&Key::BgpConfiguration).unwrap_or_default();
    let ranges = view.calico3.iter().flat_map(|store| &store.service_ranges);
    let ranges = ranges.filter(|range| !view.own_blocks.contains(range));
    ranges.map(move |range| {
        let key = std::sync::Arc::clone(&key);
        (*range, Originated { kind: OriginKind::ServiceRange, key, revision, priority: None })
    })
}

/// Returns true if a prefix is originated as a service range.
pub(super) fn is_service_range(prefix: &Cidr, view: &RoutingView) -> bool {
    view.calico3.as_ref().is_some_and(|store| store.service_ranges.contains(prefix))
}

/// Returns the originated route of a workload's prefix. `None` if an own block covers it or it equals a service
/// range, or if no export gate would announce it.
pub(super) fn of_workload(prefix: &Cidr, view: &RoutingView, own: &OwnAddresses) -> Option<Originated> {
    // In a store of Calico 3 a peer's filter may accept any route, and it is evaluated first.
    let is_v3 = view.calico3.is_some();
    let may_pass = match cover::in_set(&view.own_blocks, prefix) {
        Some(block) if block == prefix => is_one_address(block, view),
        Some(_) => is_v3 && view.filters.may_export(prefix),
        None => {
            is_v3
                || view.pool_of(prefix).is_some()
                || view.advertisements.iter().any(|a| a.cidr.covers(prefix))
        }
    };
    let announced = may_pass && !is_service_range(prefix, view);
    let mut route = own.originated(prefix).filter(|_| announced)?;
    // In the v1 model an own route is preferred to every learned one.
    route.priority =
        view.calico3.as_ref().map(|store| route.priority.unwrap_or_else(|| store.normal_priority(prefix)));
    Some(route)
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
        ipip_from_store: model.gives_ipip_routes(),
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
        calico3: Calico3View::of(model, local.cluster_id.is_some()),
    }
}

fn pool_view(pool: &Pool) -> PoolView {
    let ipip = pool.ipip.as_ref().filter(|_| pool.cidr.is_v4()).map(|ipip| ipip.mode);
    PoolView { cidr: pool.cidr, ipip, vxlan: pool.vxlan, disabled: pool.disabled }
}

/// Returns the tunnel if an IPv4 pool has IPIP. A disabled pool counts too, since addresses in use keep using
/// the tunnel.
pub(super) fn tunnel(model: &Model, view: &RoutingView) -> Option<TunnelIntent> {
    view.pools.iter().any(|pool| pool.ipip.is_some()).then(|| {
        let settings = model.settings();
        TunnelIntent {
            addr: model.tunnel_address().unwrap_or_default(),
            mtu: settings.ip_in_ip_mtu,
            max_mtu: (model.dialect() == Dialect::V1).then_some(V1_IPIP_MTU),
        }
    })
}
