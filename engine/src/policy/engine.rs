//! Computes the change of this host's ruleset for each change of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::EndpointPort;
use tortie_config::{Resource, Selector};
use tortie_net::Cidr;

use super::active::{self, Candidate};
use super::classes::{LabelClasses, Profile};
use super::order::TierOrder;
use super::ports::PortSets;
use super::rules::{self, UsedSets};
use super::select::Selectors;
use super::sets::AddressSets;
use super::types::{
    Chain, ChainId, Direction, EndpointPolicy, FailClosed, LogPrefix, PortSetId, RulesetDelta, SetId, Source,
};
use crate::model::{ChangedKey, Model, is_of_openstack};

/// An endpoint of any host or a network set, with its class and addresses.
#[derive(Debug, Clone)]
struct Member {
    class: usize,
    nets: Vec<Cidr>,
    ports: Vec<EndpointPort>,
}

/// Endpoints of this host in one class.
#[derive(Debug, Clone, Default)]
struct LocalSource {
    endpoints: BTreeSet<EndpointKey>,
    /// Policies that select the class, sorted; `None` if they must be computed.
    policies: Option<Vec<usize>>,
}

/// A policy whose value is valid.
#[derive(Debug, Clone)]
struct ActivePolicy {
    tier: Arc<str>,
    name: Arc<str>,
    resource: Arc<Resource>,
}

/// A chain in use, with the number of endpoints that use it.
#[derive(Debug, Clone)]
struct ChainUse {
    chain: Arc<Chain>,
    sets: Vec<SetId>,
    port_sets: BTreeSet<PortSetId>,
    users: usize,
}

/// Keeps the [`Ruleset`](super::Ruleset) of one host consistent with the model. The engine owns the indexes
/// only. It is deterministic: two engines with the same changes return equal deltas, and an engine that
/// applied changes one by one has the ruleset of one that started from the final state.
#[derive(Debug, Clone)]
pub struct Engine {
    node: String,
    classes: LabelClasses,
    members: Slab<Member>,
    by_key: BTreeMap<EndpointKey, usize>,
    network_sets: BTreeMap<Key, usize>,
    sets: AddressSets,
    port_sets: PortSets,
    policies: Slab<ActivePolicy>,
    by_name: BTreeMap<(Arc<str>, Arc<str>), usize>,
    selectors: Selectors<usize>,
    order: TierOrder,
    /// Classes with endpoints of this host.
    here: BTreeMap<usize, LocalSource>,
    chains: BTreeMap<ChainId, ChainUse>,
    endpoints: BTreeMap<EndpointKey, Arc<EndpointPolicy>>,
    default_prefix: LogPrefix,
    /// True if workloads may have the additional sources that they name.
    spoofed_sources: bool,
    /// True if floating addresses are in force, besides those of OpenStack.
    floating_addresses: bool,
    /// Work to do before the next delta.
    pending: PendingWork,
}

#[derive(Debug, Clone, Default)]
struct PendingWork {
    endpoints: BTreeSet<EndpointKey>,
    sources: BTreeSet<Source>,
    /// Classes whose policies must be computed again.
    classes: BTreeSet<usize>,
    /// True if all endpoints of this host must be computed again.
    all: bool,
}

impl Engine {
    /// Creates the engine of this host from a model. The delta contains the whole ruleset.
    #[must_use]
    pub fn new(model: &Model) -> (Self, RulesetDelta) {
        Self::of_host(model, model.node())
    }

    /// Creates the engine of any host: the ruleset that the store prescribes for it.
    #[must_use]
    pub fn of_host(model: &Model, host: &str) -> (Self, RulesetDelta) {
        let mut engine = Self {
            node: host.to_owned(),
            classes: LabelClasses::default(),
            members: Slab::new(),
            by_key: BTreeMap::new(),
            network_sets: BTreeMap::new(),
            sets: AddressSets::default(),
            port_sets: PortSets::default(),
            policies: Slab::new(),
            by_name: BTreeMap::new(),
            selectors: Selectors::default(),
            order: TierOrder::new(model.dialect()),
            here: BTreeMap::new(),
            chains: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            default_prefix: LogPrefix::new(&model.settings_of(host).log_prefix),
            spoofed_sources: model.allows_spoofed_sources(host),
            floating_addresses: model.maps_floating_addresses(host),
            pending: PendingWork::default(),
        };
        // Profiles are applied before endpoints and network sets, so that each class is assigned to sets once.
        let mut profiles = BTreeSet::new();
        let mut network_sets = Vec::new();
        for (key, resource) in model.policy_resources() {
            match key {
                Key::Profile { name, .. } => {
                    profiles.insert(name.as_str());
                }
                Key::NetworkSet { .. } => network_sets.push((key, resource)),
                _ => engine.apply_key(model, key, Some(resource)),
            }
        }
        profiles.into_iter().for_each(|name| engine.profile(model, name));
        network_sets.into_iter().for_each(|(key, resource)| engine.network_set(key, Some(resource)));
        model.endpoint_resources().for_each(|(key, resource)| engine.endpoint(key, Some(resource)));
        let delta = engine.recompute(model);
        (engine, delta)
    }

    /// Applies the keys that changed in the model since the last call, and returns the change of the ruleset.
    pub fn update(&mut self, model: &Model, changed: &[ChangedKey]) -> RulesetDelta {
        self.pending.all |= self.order.set_dialect(model.dialect());
        for key in changed.iter().filter_map(|changed| changed.key.as_ref()) {
            self.apply_key(model, key, model.resource(key));
        }
        self.recompute(model)
    }

    fn apply_key(&mut self, model: &Model, key: &Key, resource: Option<&Arc<Resource>>) {
        match key {
            Key::Endpoint(endpoint) => self.endpoint(endpoint, resource),
            Key::Profile { name, part: ProfilePart::Rules } => {
                self.pending.sources.insert(Source::Profile(name.as_str().into()));
            }
            Key::Profile { name, .. } => self.profile(model, name),
            Key::Policy { tier, name } => self.policy(tier, name, resource),
            Key::Tier { .. } | Key::TierMetadata { .. } => {
                self.pending.all |= self.order.set(key, resource.map(|resource| &**resource));
            }
            Key::NetworkSet { .. } => self.network_set(key, resource),
            Key::Setting(..) => {
                let spoofed_sources = model.allows_spoofed_sources(&self.node);
                self.pending.all |= spoofed_sources != self.spoofed_sources;
                self.spoofed_sources = spoofed_sources;
                let floating_addresses = model.maps_floating_addresses(&self.node);
                self.pending.all |= floating_addresses != self.floating_addresses;
                self.floating_addresses = floating_addresses;
                let prefix = LogPrefix::new(&model.settings_of(&self.node).log_prefix);
                if prefix != self.default_prefix {
                    self.default_prefix = prefix;
                    self.pending.sources.extend(self.chains.keys().map(|id| id.source.clone()));
                }
            }
            _ => {}
        }
    }

    fn endpoint(&mut self, key: &EndpointKey, resource: Option<&Arc<Resource>>) {
        if key.host() == self.node {
            self.pending.endpoints.insert(key.clone());
        }
        if let Some(at) = self.by_key.get(key).copied() {
            if resource.is_some_and(|resource| self.is_same(at, resource)) {
                return;
            }
            self.by_key.remove(key);
            let class = self.members.get(at).map(|member| member.class);
            if let Some(class) = class
                && let Some(here) = self.here.get_mut(&class)
                && here.endpoints.remove(key)
                && here.endpoints.is_empty()
            {
                self.here.remove(&class);
            }
            self.remove_member(at);
        }
        let Some((at, class)) = resource.and_then(|resource| self.add_member(resource)) else { return };
        if key.host() == self.node {
            self.here.entry(class).or_default().endpoints.insert(key.clone());
        }
        self.by_key.insert(key.clone(), at);
    }

    fn network_set(&mut self, key: &Key, resource: Option<&Arc<Resource>>) {
        if let Some(at) = self.network_sets.get(key).copied() {
            if resource.is_some_and(|resource| self.is_same(at, resource)) {
                return;
            }
            self.network_sets.remove(key);
            self.remove_member(at);
        }
        if let Some((at, _)) = resource.and_then(|resource| self.add_member(resource)) {
            self.network_sets.insert(key.clone(), at);
        }
    }

    /// Adds an endpoint or network set to its class and to the sets of the class. Returns its index and its
    /// class.
    fn add_member(&mut self, resource: &Arc<Resource>) -> Option<(usize, usize)> {
        let nets = nets(resource);
        let entry = self.members.vacant_entry();
        let at = entry.key();
        let (class, new) = self.classes.join(at, resource)?;
        if new {
            self.sets.sort_class(class, &self.classes, &nets);
        } else {
            self.sets.count(class, &nets, true);
        }
        let ports = ports(resource).to_vec();
        self.port_sets.count(&nets, &ports, true);
        entry.insert(Member { class, nets, ports });
        Some((at, class))
    }

    fn remove_member(&mut self, at: usize) {
        let Some(Member { class, nets, ports }) = self.members.try_remove(at) else { return };
        self.port_sets.count(&nets, &ports, false);
        self.sets.count(class, &nets, false);
        if self.classes.leave(at, class) {
            self.sets.forget_class(class);
            self.pending.classes.remove(&class);
        }
    }

    /// Returns true if neither selectors nor sets are affected by the change of an endpoint.
    fn is_same(&self, at: usize, resource: &Resource) -> bool {
        let Some(member) = self.members.get(at) else { return false };
        self.classes.is_like(member.class, resource)
            && member.nets == nets(resource)
            && member.ports == ports(resource)
    }

    fn profile(&mut self, model: &Model, name: &str) {
        for class in self.classes.set_profile(name, Profile::of(model, name)) {
            let members = self.classes.endpoints(class).filter_map(|at| self.members.get(at));
            let nets: Vec<Cidr> = members.flat_map(|member| member.nets.iter().copied()).collect();
            self.sets.sort_class(class, &self.classes, &nets);
            self.pending.classes.insert(class);
        }
    }

    fn policy(&mut self, tier: &str, name: &str, resource: Option<&Arc<Resource>>) {
        let policy = resource.filter(|resource| matches!(***resource, Resource::Policy(_)));
        let id: (Arc<str>, Arc<str>) = (tier.into(), name.into());
        self.pending.sources.insert(Source::Policy {
            dialect: self.order.dialect(),
            tier: id.0.clone(),
            name: id.1.clone(),
        });
        let known = self.by_name.get(&id).copied();
        let before =
            known.and_then(|at| self.policies.get(at)).and_then(|known| selector(&known.resource)).cloned();
        match (known, policy) {
            (None, None) => {}
            (Some(at), None) => {
                self.by_name.remove(&id);
                self.policies.remove(at);
                self.selectors.remove(at);
            }
            (known, Some(resource)) => {
                let at = known.unwrap_or_else(|| self.policies.vacant_key());
                let entry =
                    ActivePolicy { tier: id.0.clone(), name: id.1.clone(), resource: Arc::clone(resource) };
                if known.is_some() {
                    self.selectors.remove(at);
                    if let Some(slot) = self.policies.get_mut(at) {
                        *slot = entry;
                    }
                } else {
                    self.policies.insert(entry);
                    self.by_name.insert(id, at);
                }
                if let Some(selector) = selector(resource) {
                    self.selectors.insert(at, selector.clone());
                }
            }
        }
        // Order, types or stage may differ while the selector is unchanged, so the policies of the matching
        // classes are computed again.
        let after = policy.and_then(|resource| selector(resource));
        for class in self.here.keys() {
            if [before.as_ref(), after]
                .into_iter()
                .flatten()
                .any(|selector| self.classes.selects(selector, *class))
            {
                self.pending.classes.insert(*class);
            }
        }
    }

    /// Recomputes the affected endpoints, chains and sets, and returns the delta.
    fn recompute(&mut self, model: &Model) -> RulesetDelta {
        let pending = std::mem::take(&mut self.pending);
        let mut keys = pending.endpoints;
        if pending.all {
            keys.extend(self.endpoints.keys().cloned());
        }
        for class in pending.classes {
            if let Some(here) = self.here.get_mut(&class) {
                here.policies = None;
                keys.extend(here.endpoints.iter().cloned());
            }
        }
        let mut delta = RulesetDelta::default();
        let mut chains_before: BTreeMap<ChainId, Option<Arc<Chain>>> = BTreeMap::new();
        for key in keys {
            let now = self.endpoint_policy(model, &key);
            let before = self.endpoints.get(&key).cloned();
            if before.as_deref() == now.as_ref() {
                continue;
            }
            let now = now.map(Arc::new);
            for id in now.iter().flat_map(|policy| policy.chains()) {
                self.acquire(model, id, &mut chains_before);
            }
            for id in before.iter().flat_map(|policy| policy.chains()) {
                if let Some(used) = self.chains.get_mut(id) {
                    chains_before.entry(id.clone()).or_insert_with(|| Some(Arc::clone(&used.chain)));
                    used.users = used.users.saturating_sub(1);
                }
            }
            match &now {
                Some(policy) => self.endpoints.insert(key.clone(), Arc::clone(policy)),
                None => self.endpoints.remove(&key),
            };
            delta.endpoints.insert(key, now);
        }
        for source in pending.sources {
            for direction in [Direction::Inbound, Direction::Outbound] {
                self.recompile(model, ChainId { source: source.clone(), direction }, &mut chains_before);
            }
        }
        for (id, before) in chains_before {
            if self.chains.get(&id).is_some_and(|used| used.users == 0)
                && let Some(gone) = self.chains.remove(&id)
            {
                gone.sets.iter().for_each(|set| self.sets.release(set));
                gone.port_sets.iter().for_each(|set| self.port_sets.release(set));
            }
            let now = self.chains.get(&id).map(|used| Arc::clone(&used.chain));
            if now != before {
                delta.chains.insert(id, now);
            }
        }
        delta.sets = self.sets.take_changes(&self.classes);
        delta.port_sets = self.port_sets.take_changes();
        delta
    }

    fn endpoint_policy(&mut self, model: &Model, key: &EndpointKey) -> Option<EndpointPolicy> {
        let class = self.members.get(*self.by_key.get(key)?)?.class;
        let resource = model.resource(&Key::Endpoint(key.clone()))?;
        let policies = self.here.get_mut(&class)?.policies.get_or_insert_with(|| {
            let labels = self.classes.labels(class);
            self.selectors.matching(&labels, |name| self.classes.label(class, name))
        });
        let candidates = policies.iter().filter_map(|at| {
            let known = self.policies.get(*at)?;
            let Resource::Policy(policy) = &*known.resource else { return None };
            Some(Candidate { tier: &known.tier, name: &known.name, policy })
        });
        let maps_floating = self.floating_addresses || is_of_openstack(key);
        active::endpoint_policy(resource, candidates, &self.order, self.spoofed_sources, maps_floating)
    }

    /// Counts one more endpoint that uses a chain, and compiles the chain if it is new.
    fn acquire(&mut self, model: &Model, id: &ChainId, before: &mut BTreeMap<ChainId, Option<Arc<Chain>>>) {
        if let Some(used) = self.chains.get_mut(id) {
            used.users += 1;
            return;
        }
        before.entry(id.clone()).or_insert(None);
        let (chain, used) = self.compile(model, id);
        let (sets, port_sets) = self.acquire_sets(used);
        self.chains.insert(id.clone(), ChainUse { chain: Arc::new(chain), sets, port_sets, users: 1 });
    }

    /// Compiles a chain again after its rules changed.
    fn recompile(&mut self, model: &Model, id: ChainId, before: &mut BTreeMap<ChainId, Option<Arc<Chain>>>) {
        if !self.chains.contains_key(&id) {
            return;
        }
        let (chain, used) = self.compile(model, &id);
        let (sets, port_sets) = self.acquire_sets(used);
        let Some(used) = self.chains.get_mut(&id) else { return };
        before.entry(id).or_insert_with(|| Some(Arc::clone(&used.chain)));
        if *used.chain != chain {
            used.chain = Arc::new(chain);
        }
        for set in std::mem::replace(&mut used.sets, sets) {
            self.sets.release(&set);
        }
        for set in std::mem::replace(&mut used.port_sets, port_sets) {
            self.port_sets.release(&set);
        }
    }

    fn acquire_sets(&mut self, used: UsedSets) -> (Vec<SetId>, BTreeSet<PortSetId>) {
        for (id, selector) in &used.addresses {
            let members = |at: usize| self.members.get(at).map_or(&[][..], |member| member.nets.as_slice());
            self.sets.acquire(id, selector, &self.classes, members);
        }
        used.ports.iter().for_each(|id| self.port_sets.acquire(id));
        (used.addresses.into_iter().map(|(id, _)| id).collect(), used.ports)
    }

    fn compile(&self, model: &Model, id: &ChainId) -> (Chain, UsedSets) {
        let pick = |inbound, outbound| match id.direction {
            Direction::Inbound => inbound,
            Direction::Outbound => outbound,
        };
        match &id.source {
            Source::Policy { tier, name, .. } => {
                let at = self.by_name.get(&(Arc::clone(tier), Arc::clone(name)));
                match at.and_then(|at| self.policies.get(*at)).map(|known| &*known.resource) {
                    Some(Resource::Policy(policy)) => {
                        rules::chain(pick(&policy.inbound, &policy.outbound), &self.default_prefix)
                    }
                    // No endpoint uses this chain any more; the same delta removes it.
                    _ => (rules::fail_closed(FailClosed::Missing), UsedSets::default()),
                }
            }
            Source::Profile(name) => {
                let key = Key::Profile { name: (**name).to_owned(), part: ProfilePart::Rules };
                if model.is_unreadable(&key) {
                    return (rules::fail_closed(FailClosed::Unreadable), UsedSets::default());
                }
                match model.resource(&key).map(|resource| &**resource) {
                    Some(Resource::ProfileRules(rules)) => {
                        rules::chain(pick(&rules.inbound, &rules.outbound), &self.default_prefix)
                    }
                    _ => (rules::fail_closed(FailClosed::Missing), UsedSets::default()),
                }
            }
        }
    }
}

fn selector(resource: &Resource) -> Option<&Selector> {
    match resource {
        Resource::Policy(policy) => Some(&policy.selector),
        _ => None,
    }
}

/// Returns the addresses that are members of sets: the networks of a workload or network set, the expected
/// addresses of a host endpoint.
fn nets(resource: &Resource) -> Vec<Cidr> {
    match resource {
        Resource::WorkloadEndpoint(workload) => workload.nets().copied().collect(),
        Resource::HostEndpoint(host) => host.addrs().map(Cidr::host).collect(),
        Resource::NetworkSet(set) => set.nets.clone(),
        _ => Vec::new(),
    }
}

/// Returns the named ports of an endpoint.
fn ports(resource: &Resource) -> &[EndpointPort] {
    match resource {
        Resource::WorkloadEndpoint(workload) => &workload.ports,
        Resource::HostEndpoint(host) => &host.ports,
        _ => &[],
    }
}
