//! The renderer: a copy of the compiled policy, and the table that enforces it, updated change by change.

mod chains;
mod endpoints;
mod meaning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_config::Dialect;
use tortie_config::resource::Action;
use tortie_net::Cidr;

pub use self::meaning::{Meaning, RuleView};
use super::chains::Chains;
use super::draft::Options;
use super::endpoints::{ChangedEndpoints, EndpointMaps, address};
use super::node::{Base, Denied, Fixed, Node, Usage};
use super::{desired, names, nat, ranges, sets};
use crate::nft::ir::{Edit, Name, SetKey, SetValue, Table};
use crate::nft::maps::Map;
use tortie_engine::policy::{
    ALL_INTERFACES, ChainId, End, Globals, HostInterfaces, Ruleset, RulesetDelta, SetChange, SetId,
    VxlanRules,
};

/// Converts policy changes to changes of the table.
#[derive(Debug, Clone)]
pub(crate) struct Renderer {
    options: Options,
    /// Global settings; the table is empty without them.
    globals: Option<Arc<Globals>>,
    ruleset: Ruleset,
    /// Chains that contain a next-tier rule.
    passing: BTreeSet<ChainId>,
    sets: sets::Sets,
    chains: Chains,
    endpoint_maps: EndpointMaps,
    nat: nat::Nat,
    /// Names of the base chains.
    bases: Vec<Name>,
    desired: desired::DesiredTable,
}

impl Renderer {
    /// Creates a renderer; its table is empty until [`Globals`] arrive.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            globals: None,
            ruleset: Ruleset::default(),
            passing: BTreeSet::new(),
            sets: sets::Sets::default(),
            chains: Chains::default(),
            endpoint_maps: EndpointMaps::default(),
            nat: nat::Nat::default(),
            bases: Vec::new(),
            desired: desired::DesiredTable::default(),
        }
    }

    /// Applies a change and returns the edits of the table: [`Renderer::absorb`], then [`Renderer::edits`].
    #[cfg(test)]
    pub(crate) fn take(
        &mut self,
        delta: &RulesetDelta,
        globals: Option<&Globals>,
        hosts: Option<&HostInterfaces>,
    ) -> Vec<Edit> {
        self.absorb(delta, globals, hosts);
        self.edits()
    }

    /// Returns the net changes of the table since the last call. Their order is safe: they may be executed in
    /// one transaction, or the leading ones before the others.
    pub(crate) fn edits(&mut self) -> Vec<Edit> {
        let Self { desired, chains, .. } = self;
        desired.take_edits(|name| chains.callees(name))
    }

    /// Applies a change. `globals` and `hosts` are given if they changed.
    pub(crate) fn absorb(
        &mut self,
        delta: &RulesetDelta,
        globals: Option<&Globals>,
        hosts: Option<&HostInterfaces>,
    ) {
        let mut touched = ChangedEndpoints::default();
        let mut stale: BTreeSet<Name> = BTreeSet::new();
        for (id, change) in &delta.sets {
            stale.extend(self.sets.change(id, change, &mut self.ruleset, &mut self.desired));
        }
        self.accept_port_sets(delta, &mut stale);
        self.accept_chains(delta, &mut stale);
        for (key, endpoint) in &delta.endpoints {
            let before = match endpoint {
                Some(endpoint) => self.ruleset.endpoints.insert(key.clone(), Arc::clone(endpoint)),
                None => self.ruleset.endpoints.remove(key),
            };
            self.nat.count(before.as_deref(), false, &mut self.desired);
            self.nat.count(endpoint.as_deref(), true, &mut self.desired);
            self.endpoint_maps.endpoint(key, before.as_deref(), endpoint.as_deref(), &mut touched);
        }
        if let Some(hosts) = hosts {
            self.endpoint_maps.hosts(hosts, &mut touched);
        }
        if let Some(globals) = globals.filter(|globals| self.globals.as_deref() != Some(*globals)) {
            self.frame(globals, &mut touched, &mut stale);
        }
        let Some(globals) = self.globals.clone() else { return };
        let wide = self.endpoint_maps.wide();
        touched.workloads.iter().for_each(|interface| self.place_workload(interface, &globals));
        if globals.dialect == Dialect::V3 && touched.hosts.contains(ALL_INTERFACES) {
            stale.extend(self.bases.iter().cloned());
        }
        touched.hosts.iter().for_each(|interface| self.place_host(interface, &globals));
        if self.endpoint_maps.wide() != wide {
            stale.insert(names::chain(&Node::Fixed(Fixed::AntiSpoof)));
        }
        self.sweep_chains();
        stale.iter().for_each(|name| self.redraft(name, &globals));
        self.sweep_chains();
        self.sweep_sets();
        for (v4, wide) in [true, false].into_iter().zip(self.endpoint_maps.wide()) {
            if !(wide && self.has_family(v4)) {
                self.desired.drop_set(&Map::FromNets { v4 }.name());
            }
        }
    }

    /// Returns the desired table.
    pub(crate) fn table(&self) -> &Table {
        self.desired.table()
    }

    /// Returns the global settings of the table.
    #[cfg(test)]
    pub(crate) fn globals(&self) -> Option<&Globals> {
        self.globals.as_deref()
    }

    /// Returns the compiled policy that the table enforces.
    pub(crate) fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Returns the reason for a drop, by the log prefix; `None` for prefixes of other programs and of removed
    /// rules.
    pub(crate) fn explain(&self, prefix: &str) -> Option<&Denied> {
        self.chains.explain(prefix)
    }

    /// Returns the policy or profile whose rules a chain contains.
    pub(crate) fn rules_in(&self, chain: &str) -> Option<&ChainId> {
        match self.chains.node(chain) {
            Some((Node::Rules { id, .. }, _)) => Some(id),
            _ => None,
        }
    }

    /// Renders the same policy from nothing, with no edits pending; used after a name collision.
    pub(crate) fn rerender(&self, hosts: &HostInterfaces) -> Self {
        let mut anew = Self::new(self.options);
        let Ruleset { sets, port_sets, chains, endpoints } = &self.ruleset;
        let set = |(id, members): (&SetId, &BTreeSet<Cidr>)| {
            (id.clone(), SetChange::New(members.iter().copied().collect()))
        };
        let delta = RulesetDelta {
            sets: sets.iter().map(set).collect(),
            port_sets: port_sets
                .iter()
                .map(|(id, members)| (id.clone(), SetChange::New(members.clone())))
                .collect(),
            chains: chains.iter().map(|(id, chain)| (id.clone(), Some(Arc::clone(chain)))).collect(),
            endpoints: endpoints
                .iter()
                .map(|(key, policy)| (key.clone(), Some(Arc::clone(policy))))
                .collect(),
        };
        anew.absorb(&delta, self.globals.as_deref(), Some(hosts));
        anew.edits();
        anew
    }

    /// Describes two different objects with the same name, since names end in hashes. Reported until
    /// everything is rendered again.
    pub(crate) fn name_collision(&self) -> Option<&str> {
        self.chains.name_collision().or_else(|| self.sets.name_collision())
    }

    /// Returns the chain with the rules of a policy or a profile, if it is reachable.
    pub(crate) fn place_of(&self, id: &ChainId) -> Option<Name> {
        self.chains.of(id).map(|(name, _)| name)
    }

    /// Returns for each rule of [`place_of`](Self::place_of) the index of its source rule in the policy or
    /// profile, from 0.
    pub(crate) fn rules_of(&self, id: &ChainId) -> &[usize] {
        self.chains.of(id).map_or(&[], |(_, rules)| rules)
    }

    fn has_family(&self, v4: bool) -> bool {
        v4 || self.globals.as_ref().is_some_and(|globals| globals.ipv6)
    }

    /// Applies changed sets of named ports, and collects the chains in which they are written out.
    fn accept_port_sets(&mut self, delta: &RulesetDelta, stale: &mut BTreeSet<Name>) {
        if delta.port_sets.is_empty() {
            return;
        }
        let sets = RulesetDelta { port_sets: delta.port_sets.clone(), ..RulesetDelta::default() };
        sets.apply(&mut self.ruleset);
        let uses = |end: &End| {
            let sets = [&end.named_ports, &end.not_named_ports];
            sets.into_iter().flatten().any(|set| delta.port_sets.contains_key(set))
        };
        for (id, chain) in &self.ruleset.chains {
            if chain.rules.iter().any(|rule| uses(&rule.src) || uses(&rule.dst)) {
                stale.extend(Usage::ALL.map(|usage| names::rules(id, usage)));
            }
        }
    }

    /// Applies changed chains, and collects the chains of the table that depend on them.
    fn accept_chains(&mut self, delta: &RulesetDelta, stale: &mut BTreeSet<Name>) {
        for (id, chain) in &delta.chains {
            let passes = chain
                .as_ref()
                .is_some_and(|chain| chain.rules.iter().any(|rule| rule.action == Action::NextTier));
            match chain {
                Some(chain) => self.ruleset.chains.insert(id.clone(), Arc::clone(chain)),
                None => self.ruleset.chains.remove(id),
            };
            let other = if passes { self.passing.insert(id.clone()) } else { self.passing.remove(id) };
            for usage in Usage::ALL {
                let name = names::rules(id, usage);
                // Tiers check after each policy that may pass if it did.
                if other {
                    stale.extend(self.chains.callers(&name));
                }
                stale.insert(name);
            }
        }
    }

    /// Applies global settings. Only settings that every chain depends on cause a complete update.
    fn frame(&mut self, globals: &Globals, touched: &mut ChangedEndpoints, stale: &mut BTreeSet<Name>) {
        let before = self.globals.clone();
        let families = before.as_ref().map(|before| before.ipv6);
        if before.is_some() && families != Some(globals.ipv6) {
            // Maps of IPv6 are added or removed: endpoints are placed again.
            let all = self.endpoint_maps.all();
            all.workloads.iter().for_each(|interface| self.unplace_workload(interface));
        }
        let dialect = before.as_ref().map(|before| before.dialect);
        if dialect != Some(globals.dialect) {
            if dialect == Some(Dialect::V3) {
                self.unplace_forward();
            }
            touched.hosts.extend(self.endpoint_maps.all().hosts);
        }
        let now = Arc::new(globals.clone());
        self.globals = Some(Arc::clone(&now));
        self.fixed_sets(globals, before.as_deref());
        if families != Some(globals.ipv6) {
            let all = self.endpoint_maps.all();
            touched.workloads.extend(all.workloads);
            touched.hosts.extend(all.hosts);
        }
        let quiet = |globals: &Globals| Globals {
            pools: BTreeSet::new(),
            masquerade: BTreeSet::new(),
            ipip_hosts: globals.ipip_hosts.as_ref().map(|_| BTreeSet::new()),
            vxlan: globals.vxlan.clone().map(|vxlan| VxlanRules { hosts: BTreeSet::new(), ..vxlan }),
            set_size: 0,
            ..globals.clone()
        };
        if before.as_deref().map(quiet) == Some(quiet(globals)) {
            return;
        }
        stale.extend(self.chains.names());
        let hooks = |globals: &Globals| (globals.first, globals.dialect);
        if before.is_none_or(|before| hooks(&before) != hooks(globals)) {
            let late = !globals.first;
            let has = |base: &Base| {
                globals.dialect == Dialect::V3 || !matches!(base, Base::HostForwardFrom | Base::HostForwardTo)
            };
            let bases = BASES.into_iter().filter(|(base, _)| has(base));
            let bases = bases.map(|(base, moves)| Node::Base(base, late && moves));
            let bases = bases.map(|node| self.acquire(node, &now)).collect();
            for name in std::mem::replace(&mut self.bases, bases) {
                self.release(&name);
            }
        }
    }

    /// Updates the fixed sets.
    fn fixed_sets(&mut self, globals: &Globals, before: Option<&Globals>) {
        if before.is_none() {
            for map in Map::VERDICTS {
                self.fixed_set(map, Some(BTreeMap::new()));
            }
            self.fixed_set(Map::Workloads, Some(BTreeMap::new()));
        }
        for map in Map::FORWARD {
            let on = globals.dialect == Dialect::V3;
            if on != self.desired.has_set(map.text()) {
                self.fixed_set(map, on.then(BTreeMap::new));
            }
        }
        for v4 in [true, false] {
            let on = v4 || globals.ipv6;
            let [inward, outward] = if on { self.nat.all(v4) } else { Default::default() };
            let sets = [
                (Map::From { v4 }, BTreeMap::new()),
                (Map::Dnat { v4 }, inward),
                (Map::Hairpin { v4 }, outward),
            ];
            for (map, elements) in sets {
                if on != self.desired.has_set(map.text()) {
                    self.fixed_set(map, on.then_some(elements));
                }
            }
            let nets = |nets: &BTreeSet<Cidr>| {
                let nets = ranges::uncovered(nets.iter().copied().filter(|net| net.is_v4() == v4));
                nets.into_iter().map(address).collect()
            };
            self.fixed_set(Map::Pools { v4 }, on.then(|| nets(&globals.pools)));
            self.fixed_set(Map::Masquerade { v4 }, on.then(|| nets(&globals.masquerade)));
            let vxlan = globals.vxlan.as_ref().filter(|vxlan| on && vxlan.is_used(v4));
            self.fixed_set(Map::VxlanHosts { v4 }, vxlan.map(|vxlan| nets(&vxlan.hosts)));
        }
        let hosts = globals.ipip_hosts.as_ref();
        let hosts = hosts.map(|hosts| ranges::uncovered(hosts.iter().copied()).into_iter().map(address));
        self.fixed_set(Map::IpipHosts, hosts.map(Iterator::collect));
    }

    fn fixed_set(&mut self, map: Map, elements: Option<BTreeMap<SetKey, SetValue>>) {
        let name = map.name();
        match elements {
            None => self.desired.drop_set(&name),
            Some(elements) if self.desired.has_set(&name) => self.desired.replace(&name, elements),
            Some(elements) => self.desired.add_set(&name, map.of(), map.comment(), elements),
        }
    }
}

/// Base chains; `true` if `ChainInsertMode` places them before or after the rules of other programs.
const BASES: [(Base, bool); 13] = [
    (Base::RawPrerouting, false),
    (Base::RawOutput, false),
    (Base::PreDnat, false),
    (Base::NatPrerouting, false),
    (Base::NatOutput, false),
    (Base::NatPostrouting, false),
    (Base::InputFrom, true),
    (Base::InputToHost, true),
    (Base::HostForwardFrom, false),
    (Base::HostForwardTo, false),
    (Base::ForwardFrom, true),
    (Base::ForwardTo, true),
    (Base::Output, true),
];
