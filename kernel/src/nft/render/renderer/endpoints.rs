//! Adds interfaces to the maps of the table and removes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Renderer;
use crate::nft::ir::{SetKey, SetValue};
use crate::nft::maps::Map;
use crate::nft::render::node::{Denied, Fixed, Node, Usage};
use crate::nft::render::ranges::uncovered;
use tortie_config::Dialect;
use tortie_engine::policy::{
    ALL_INTERFACES, ChainId, Direction, EndpointPolicy, Globals, HostPolicy, WorkloadPolicy,
};

impl Renderer {
    /// Removes a workload interface from the table.
    pub(super) fn unplace_workload(&mut self, interface: &str) {
        let Some(policy) = self.endpoint_maps.placed.remove(interface) else { return };
        let EndpointPolicy::Workload(workload) = &*policy else { return };
        self.sources(interface, workload, false);
        self.desired.remove(&Map::Workloads.name(), &SetKey::Interface(interface.into()));
        for map in [
            Map::RawInterfaces,
            Map::FromWorkload,
            Map::ToWorkload,
            Map::FromProfiles,
            Map::ToProfiles,
            Map::Inactive,
        ] {
            self.set_element(map, interface, None);
        }
    }

    /// Updates a workload interface.
    pub(super) fn place_workload(&mut self, interface: &str, globals: &Globals) {
        let claim = self.endpoint_maps.claims.get(interface).and_then(BTreeSet::first);
        let policy = claim.and_then(|(_, key)| self.ruleset.endpoints.get(key)).cloned();
        let Some(policy) = policy else { return self.unplace_workload(interface) };
        let EndpointPolicy::Workload(workload) = &*policy else { return };
        if let Some(before) = self.endpoint_maps.placed.insert(interface.into(), Arc::clone(&policy))
            && let EndpointPolicy::Workload(before) = &*before
        {
            self.sources(interface, before, false);
        }
        self.sources(interface, workload, true);
        let source =
            if workload.active { Node::Fixed(Fixed::AntiSpoof) } else { Node::Denied(Denied::Inactive) };
        let source = self.acquire(source, globals);
        self.set_element(Map::RawInterfaces, interface, Some(SetValue::Goto(source)));
        let (set, key) = (Map::Workloads.name(), SetKey::Interface(interface.into()));
        if workload.active {
            self.desired.put(&set, key, SetValue::Member);
        } else {
            self.desired.remove(&set, &key);
        }
        let inactive =
            |renderer: &mut Self| SetValue::Goto(renderer.acquire(Node::Denied(Denied::Inactive), globals));
        let none = (!workload.active).then(|| inactive(self));
        self.set_element(Map::Inactive, interface, none);
        for (tiers, profiles, stages, direction) in [
            (Map::FromWorkload, Map::FromProfiles, &workload.outbound, Direction::Outbound),
            (Map::ToWorkload, Map::ToProfiles, &workload.inbound, Direction::Inbound),
        ] {
            let (first, then) = if workload.active {
                let first = self.acquire_tiers(&stages.tiers, direction, globals);
                let then = self.acquire_profiles(&stages.profiles, direction, globals);
                (SetValue::Jump(first), then.map(SetValue::Jump))
            } else {
                (inactive(self), None)
            };
            self.set_element(tiers, interface, Some(first));
            self.set_element(profiles, interface, then);
        }
    }

    /// Returns the host endpoint of all interfaces, to which the base chains lead.
    pub(super) fn all_interfaces<'a>(&'a self, globals: &Globals) -> Option<&'a HostPolicy> {
        let key = self.endpoint_maps.hosts.get(ALL_INTERFACES).filter(|_| globals.dialect == Dialect::V3)?;
        match &**self.ruleset.endpoints.get(key)? {
            EndpointPolicy::Host(host) => Some(host),
            EndpointPolicy::Workload(_) => None,
        }
    }

    /// Updates an interface that a host endpoint covers or covered.
    pub(super) fn place_host(&mut self, interface: &str, globals: &Globals) {
        let policy =
            self.endpoint_maps.hosts.get(interface).and_then(|key| self.ruleset.endpoints.get(key)).cloned();
        // The base chains lead to the host endpoint of all interfaces.
        let of_all = globals.dialect == Dialect::V3 && interface == ALL_INTERFACES;
        let host = match policy.as_deref() {
            Some(EndpointPolicy::Host(host)) if !of_all => Some(host),
            _ => None,
        };
        let early = |of: fn(&HostPolicy) -> &Vec<ChainId>, usage, direction| {
            let chains = host.map(of).filter(|chains| !chains.is_empty())?;
            Some(Node::Early { chains: chains.clone(), usage, direction })
        };
        let (inbound, outbound) = (Direction::Inbound, Direction::Outbound);
        for (map, node) in [
            (Map::RawHostIn, early(|host| &host.untracked_inbound, Usage::Untracked, inbound)),
            (Map::RawHostOut, early(|host| &host.untracked_outbound, Usage::Untracked, outbound)),
            (Map::PreDnatHost, early(|host| &host.pre_dnat, Usage::PreDnat, inbound)),
        ] {
            let to = node.map(|node| SetValue::Goto(self.acquire(node, globals)));
            self.set_element(map, interface, to);
        }
        for (map, direction, of) in [
            (Map::HostIn, inbound, host.map(|host| &host.inbound)),
            (Map::HostOut, outbound, host.map(|host| &host.outbound)),
        ] {
            let to =
                of.map(|of| SetValue::Goto(self.acquire(Node::Host { of: of.clone(), direction }, globals)));
            self.set_element(map, interface, to);
        }
        if globals.dialect == Dialect::V1 {
            return;
        }
        for (map, direction, of) in [
            (Map::HostForwardIn, inbound, host.map(|host| &host.forward_inbound)),
            (Map::HostForwardOut, outbound, host.map(|host| &host.forward_outbound)),
        ] {
            let to = of.map(|tiers| SetValue::Goto(self.acquire_tiers(tiers, direction, globals)));
            self.set_element(map, interface, to);
        }
    }

    /// Removes all elements of the maps for a Calico 3 store.
    pub(super) fn unplace_forward(&mut self) {
        for map in Map::FORWARD {
            let elements = self.desired.elements(&map.name());
            let keys: Vec<SetKey> = elements.into_iter().flat_map(|all| all.keys().cloned()).collect();
            for key in keys {
                if let SetKey::Interface(interface) = key {
                    self.set_element(map, &interface, None);
                }
            }
        }
    }

    /// Sets or removes the map entry of an interface, and releases the chain of its previous entry.
    fn set_element(&mut self, map: Map, interface: &str, to: Option<SetValue>) {
        let (set, key) = (map.name(), SetKey::Interface(interface.into()));
        let before = self.desired.element(&set, &key).cloned();
        match to {
            Some(to) if before.as_ref() == Some(&to) => {}
            Some(to) => self.desired.put(&set, key, to),
            None => self.desired.remove(&set, &key),
        }
        if let Some(SetValue::Goto(name) | SetValue::Jump(name)) = before {
            self.release(&name);
        }
    }

    /// Adds or removes the source addresses that an interface may use.
    fn sources(&mut self, interface: &str, workload: &WorkloadPolicy, come: bool) {
        if !workload.active {
            return;
        }
        for net in uncovered(workload.sources().copied()) {
            let v4 = net.is_v4();
            let map = if net.is_host() { Map::From { v4 } } else { Map::FromNets { v4 } };
            if !net.is_host() {
                let [of_v4, of_v6] = &mut self.endpoint_maps.wide;
                let wide = if v4 { of_v4 } else { of_v6 };
                *wide = if come { *wide + 1 } else { wide.saturating_sub(1) };
            }
            let key = SetKey::InterfaceAddr(interface.into(), net);
            if come {
                self.source_set(map, v4);
                self.desired.put(&map.name(), key, SetValue::Member);
            } else {
                self.desired.remove(&map.name(), &key);
            }
        }
    }

    /// Creates the set of networks when the first one is added.
    fn source_set(&mut self, map: Map, v4: bool) {
        if matches!(map, Map::FromNets { .. }) && self.has_family(v4) && !self.desired.has_set(map.text()) {
            self.desired.add_set(&map.name(), map.of(), map.comment(), BTreeMap::new());
        }
    }
}
