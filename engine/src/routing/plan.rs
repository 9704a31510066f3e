//! Computes the whole routing intent, from scratch or incrementally.
//!
//! A [`Planner`] holds the current intent and follows the model's [`ModelChanges`]: a change of one host
//! costs the decisions for its addresses, whatever the number of hosts. [`intent`] creates a planner and
//! reads it once, so both share one implementation.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, Key};
use tortie_net::Cidr;

use super::filter::Filters;
use super::live_migration::{EndpointRouting, EndpointRoutings};
use super::local::{Local, NodeOptions, candidates};
use super::notes::notes;
use super::originate::{blackholes, of_workload, originated, tunnel, view, withheld_blocks};
use super::own::{AddressChanges, OwnAddresses};
use super::peers::{interface_peers, named_at, peers_at};
use super::ranges::ranges;
use super::store_routes::{self, store_routes};
use super::types::{OriginKind, Originated, RoutingIntent};
use crate::model::{Model, ModelChanges};
use crate::routing::persistent_map::Persistent;

/// Computes the routing intent of this host from a model.
#[must_use]
pub fn intent(model: &Model, options: &NodeOptions) -> RoutingIntent {
    Planner::new(model, options.clone()).intent
}

/// Parts of the intent that changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntentChange {
    /// Names of peers and ranges that were added, removed or changed.
    pub peers: BTreeSet<String>,
    /// AS, router id, listen addresses or multipath setting.
    pub node: bool,
    /// Originated routes.
    pub originated: bool,
    /// Blackhole routes of own blocks.
    pub blackholes: bool,
    /// The IPIP tunnel.
    pub tunnel: bool,
    /// The VXLAN.
    pub vxlan: bool,
    /// Routes that the store gives.
    pub store_routes: bool,
    /// The view, so that decisions about single routes may differ.
    pub view: bool,
    /// Addresses of endpoints, so that decisions about learned routes to them may differ.
    pub addresses: bool,
    /// Routing of endpoints whose workloads move.
    pub endpoint_routings: bool,
    /// Notes for `status`.
    pub notes: bool,
}

impl IntentChange {
    /// Returns true if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Computes the routing intent, and updates it incrementally.
#[derive(Debug, Clone)]
pub struct Planner {
    options: NodeOptions,
    local: Local,
    own: OwnAddresses,
    /// True if floating addresses were in force at the last update.
    maps_floating: bool,
    intent: RoutingIntent,
    /// Endpoints whose routing changed since the last update.
    rerouted: BTreeSet<EndpointKey>,
}

impl Planner {
    /// Computes the intent from scratch.
    #[must_use]
    pub fn new(model: &Model, options: NodeOptions) -> Self {
        let local = Local::of(model, &options);
        let intent = RoutingIntent {
            asn: local.asn,
            router_id: local.router_id(model.node(), &options),
            multipath: model.multipath(),
            listen: local.listen(&options),
            peers: Persistent::default(),
            ranges: Persistent::default(),
            originated: Persistent::default(),
            blackholes: Arc::default(),
            withheld_blocks: Arc::default(),
            tunnel: None,
            vxlan: Arc::default(),
            store_routes: Arc::default(),
            view: Arc::default(),
            addresses: Persistent::default(),
            endpoint_routings: Arc::default(),
            notes: Arc::default(),
        };
        let (own, rerouted) = (OwnAddresses::default(), BTreeSet::new());
        let maps_floating = model.maps_floating_addresses(model.node());
        let mut planner = Self { options, local, own, maps_floating, intent, rerouted };
        planner.update(model, &ModelChanges::everything());
        planner
    }

    /// Returns the current intent.
    #[must_use]
    pub fn intent(&self) -> &RoutingIntent {
        &self.intent
    }

    /// Sets the networks that the host is connected to. Returns true if they changed; [`Planner::update`]
    /// must then be called with [`ModelChanges::originated`].
    #[must_use]
    pub fn connect(&mut self, networks: Vec<Cidr>) -> bool {
        let mut changed = false;
        replace(&mut self.options.connected, networks, &mut changed);
        changed
    }

    /// Sets the routing of the endpoints. [`Planner::update`] must be called then. Returns true if an endpoint
    /// is routed that was withheld.
    pub fn reroute(&mut self, routings: EndpointRoutings) -> bool {
        let before = std::mem::replace(&mut self.intent.endpoint_routings, Arc::new(routings));
        let now = Arc::clone(&self.intent.endpoint_routings);
        let keys = before.moving.keys().chain(now.moving.keys());
        self.rerouted.extend(keys.filter(|key| before.moving.get(*key) != now.moving.get(*key)).cloned());
        let is_withheld = |routings: &EndpointRoutings, key: &EndpointKey| {
            routings.moving.get(key) == Some(&EndpointRouting::Withheld)
        };
        before.moving.keys().any(|key| is_withheld(&before, key) && !is_withheld(&now, key))
    }

    /// Updates the intent. `changes` must contain all changes of the model since the last call.
    pub fn update(&mut self, model: &Model, changes: &ModelChanges) -> IntentChange {
        let mut change = IntentChange::default();
        self.update_peers(model, changes, &mut change);
        self.update_filters(model, changes, &mut change);
        let translations = self.update_routes(model, changes, &mut change);
        let peers = changes.peers.any() || changes.peers.hints;
        let routes = changes.pools || changes.originated || translations;
        if changes.hosts || changes.node || changes.filters || routes || peers || change.store_routes {
            let notes = notes(model, &self.local, &self.intent);
            replace(&mut self.intent.notes, notes.into(), &mut change.notes);
        }
        change
    }

    fn update_peers(&mut self, model: &Model, changes: &ModelChanges, change: &mut IntentChange) {
        if !changes.peers.any() && !changes.node {
            return;
        }
        // A global peer at an own address makes all other hosts peers of this one.
        let touches_us = changes.peers.addrs.iter().any(|addr| self.local.is_own(*addr));
        let mut all = changes.peers.all;
        if all || changes.node || touches_us {
            let local = Local::of(model, &self.options);
            all |= local != self.local;
            self.local = local;
            let listen = self.local.listen(&self.options);
            replace(&mut self.intent.asn, self.local.asn, &mut change.node);
            replace(
                &mut self.intent.router_id,
                self.local.router_id(model.node(), &self.options),
                &mut change.node,
            );
            replace(&mut self.intent.listen, listen, &mut change.node);
        }
        if all {
            let peers: Persistent<String, _> = candidates(model)
                .into_iter()
                .flat_map(|addr| peers_at(model, &self.local, addr, &mut ()))
                .chain(interface_peers(model, &self.local))
                .collect();
            renew(&mut self.intent.peers, peers, &mut change.peers);
            renew(&mut self.intent.ranges, ranges(model, &self.local), &mut change.peers);
        } else {
            for addr in &changes.peers.addrs {
                self.update_address(model, *addr, change);
            }
        }
    }

    fn update_address(&mut self, model: &Model, addr: IpAddr, change: &mut IntentChange) {
        let before = named_at(&self.intent.peers, addr);
        let mut before: Vec<String> = before.map(|(name, _)| name.clone()).collect();
        for (name, peer) in peers_at(model, &self.local, addr, &mut ()) {
            before.retain(|other| *other != name);
            if self.intent.peers.get(&name) != Some(&peer) {
                self.intent.peers.insert(name.clone(), peer);
                change.peers.insert(name);
            }
        }
        for name in before {
            self.intent.peers.remove(&name);
            change.peers.insert(name);
        }
    }

    fn update_filters(&mut self, model: &Model, changes: &ModelChanges, change: &mut IntentChange) {
        // The set of filters depends on the peers that reference them.
        if !(changes.filters || changes.peers.any()) {
            return;
        }
        let filters = Filters::of(model, &self.intent.view.filters);
        if filters != self.intent.view.filters {
            Arc::make_mut(&mut self.intent.view).filters = filters;
            change.view = true;
        }
    }

    /// Updates routes and addresses. Returns true if notes on 1:1 NAT may have changed.
    fn update_routes(&mut self, model: &Model, changes: &ModelChanges, change: &mut IntentChange) -> bool {
        let maps_floating = model.maps_floating_addresses(model.node());
        let all = (changes.keys.is_empty() && changes.own_endpoints) || maps_floating != self.maps_floating;
        self.maps_floating = maps_floating;
        let mut moved = AddressChanges { translations: all, ..AddressChanges::default() };
        change.endpoint_routings |= !self.rerouted.is_empty();
        if all {
            self.rerouted.clear();
            self.own = OwnAddresses::of(model, &self.intent.endpoint_routings);
        } else {
            let mut keys = std::mem::take(&mut self.rerouted);
            let changed = changes.keys.iter().filter(|_| changes.own_endpoints);
            keys.extend(changed.filter_map(|changed| match &changed.key {
                Some(Key::Endpoint(key @ EndpointKey::Workload { host, .. })) if host == model.node() => {
                    Some(key.clone())
                }
                _ => None,
            }));
            for key in &keys {
                let now = model.workload(key).map(|workload| (workload.value, workload.revision));
                let routing = self.intent.endpoint_routings.moving.get(key).copied();
                self.own.set(model, key, now, routing, &mut moved);
            }
        }
        if self.update_withheld(model, changes)
            || all
            || changes.originated
            || changes.pools
            || changes.advertisements
            || changes.node
            || changes.settings
            || change.view
        {
            self.all_routes(model, change);
        } else {
            // The tunnel address must not be one of a host or peer.
            if changes.hosts || changes.peers.any() {
                replace(&mut self.intent.tunnel, tunnel(model, &self.intent.view), &mut change.tunnel);
            }
            match change.tunnel {
                // A block of the tunnel address alone comes and goes with it.
                true => self.all_routes(model, change),
                false => self.own_routes(&moved, change),
            }
        }
        let has_routes = self.intent.vxlan.is_on() || self.intent.view.ipip_from_store;
        let shadowed = has_routes && !moved.addresses.is_empty();
        if all || shadowed || store_routes::may_differ(changes) {
            let (vxlan, routes) = store_routes(model, &self.local, |addr| self.own.has(addr));
            replace(&mut self.intent.vxlan, Arc::new(vxlan), &mut change.vxlan);
            replace(&mut self.intent.store_routes, Arc::new(routes), &mut change.store_routes);
        }
        moved.translations
    }

    /// Updates the withheld blocks. Returns true if they changed.
    fn update_withheld(&mut self, model: &Model, changes: &ModelChanges) -> bool {
        if !(changes.peers.any() || changes.node || changes.originated || changes.hosts) {
            return false;
        }
        let withheld = withheld_blocks(model, &self.local, &self.options, &self.intent.peers);
        let mut changed = false;
        replace(&mut self.intent.withheld_blocks, Arc::new(withheld), &mut changed);
        changed
    }

    fn all_routes(&mut self, model: &Model, change: &mut IntentChange) {
        replace(&mut self.intent.multipath, model.multipath(), &mut change.node);
        let view = view(model, &self.local, &self.intent.view.filters, &self.intent.withheld_blocks);
        replace(&mut self.intent.tunnel, tunnel(model, &view), &mut change.tunnel);
        replace(&mut self.intent.originated, originated(model, &view, &self.own), &mut change.originated);
        replace(&mut self.intent.blackholes, Arc::new(blackholes(&view)), &mut change.blackholes);
        replace(&mut self.intent.addresses, self.own.addresses(), &mut change.addresses);
        if *self.intent.view != view {
            self.intent.view = Arc::new(view);
            change.view = true;
        }
    }

    /// Updates addresses of and routes to workloads only.
    fn own_routes(&mut self, moved: &AddressChanges, change: &mut IntentChange) {
        let (own, view, addresses) = (&self.own, &self.intent.view, &mut self.intent.addresses);
        for addr in &moved.addresses {
            match (own.has(addr), addresses.contains_key(addr)) {
                (true, false) => addresses.insert(*addr, ()),
                (false, true) => drop(addresses.remove(addr)),
                _ => continue,
            }
            change.addresses = true;
        }
        for prefix in &moved.prefixes {
            let now = of_workload(prefix, view, own);
            let before = self.intent.originated.get(prefix);
            // A workload's prefix that equals an own block or a service range is announced as such.
            let other =
                |route: &Originated| matches!(route.kind, OriginKind::OwnBlock | OriginKind::ServiceRange);
            if before == now.as_ref() || before.is_some_and(other) {
                continue;
            }
            change.originated = true;
            match now {
                Some(now) => self.intent.originated.insert(*prefix, now),
                None => drop(self.intent.originated.remove(prefix)),
            }
        }
    }
}

fn replace<T: PartialEq>(place: &mut T, value: T, changed: &mut bool) {
    if *place != value {
        *place = value;
        *changed = true;
    }
}

/// Replaces a map if it differs, and collects the names of the differences. Unchanged subtrees stay shared
/// with other copies.
fn renew<T: PartialEq>(
    place: &mut Persistent<String, T>,
    value: Persistent<String, T>,
    names: &mut BTreeSet<String>,
) {
    let differ: Vec<String> = value.differences(place).into_iter().map(|(name, ..)| name.clone()).collect();
    if !differ.is_empty() {
        names.extend(differ);
        *place = value;
    }
}
