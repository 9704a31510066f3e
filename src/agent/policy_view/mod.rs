//! Read view of endpoints and policies: the stored resources together with the enforced rules. The live agent
//! and `--offline` commands compute the same answers from it.

pub(super) mod dry_run;
pub(super) mod packet;
pub(super) mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::{self, EndAction, PolicyTypes};
use tortie_config::{Dialect, Resource, Selector};

use crate::agent::core::enforcement::Policy as Enforced;
use crate::agent::core::view::CoreView;
use crate::agent::policy_view::packet::PacketQuery;
use crate::api::policy::{
    self as api, ChainRules, DryRun, DryRunRequest, Endpoint, EndpointDetail, Policy, PolicyDetail,
    SelectorMatch, Stage, Trace, TraceQuery,
};
use crate::api::status::ApiError;
use crate::speaker::Rehearsal;
use tortie_engine::model::endpoint_name::{display_name, endpoint_name, is_called, is_short_id, naming};
use tortie_engine::model::{InvalidKey, Model, WatchPart, watch_scope};
use tortie_engine::policy::{
    Chain, ChainId, Direction, EffectiveLabel, EndpointLabels, EndpointPolicy, Globals, LabelOrigin,
    PolicyObject, Ruleset, SetId, Source, Stages, TierOrder,
};
use tortie_engine::routing::{MigrationState, NodeOptions};
use tortie_kernel::EndpointCondition;
use tortie_store::{DataModel, Snapshot, Store, StoreError};

/// Maximum number of listed candidates for an ambiguous name.
const CANDIDATES_MAX: usize = 10;

/// Data from which answers about endpoints and policy are computed.
#[derive(Debug, Clone, Copy)]
pub struct PolicyView<'a> {
    /// Model of the store's content.
    pub model: &'a Model,
    /// Policy that is enforced on this host.
    pub ruleset: &'a Ruleset,
    /// Global settings of the enforced policy.
    pub globals: &'a Globals,
    /// Endpoint states from the kernel thread; `None` if it was not queried.
    pub conditions: Option<&'a BTreeMap<EndpointKey, EndpointCondition>>,
    /// Endpoints that could not be applied, with the reason.
    pub failed: Option<&'a BTreeMap<EndpointKey, String>>,
    /// States of endpoints in live migrations; `None` if they are not known.
    pub migrations: Option<&'a BTreeMap<EndpointKey, MigrationState>>,
}

/// Snapshot of the agent's endpoints and policy for a reader on another thread, so that the core does not
/// wait for it.
#[derive(Debug)]
pub(super) struct PolicySnapshot {
    model: Arc<Model>,
    /// Enforced policy; `None` if policy is off.
    in_force: Option<(Arc<Ruleset>, Arc<Globals>)>,
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    failed: BTreeMap<EndpointKey, String>,
    migrations: BTreeMap<EndpointKey, MigrationState>,
}

impl PolicySnapshot {
    /// Takes a snapshot; `None` before the store was read.
    pub(super) fn of(core: &CoreView<'_>) -> Option<Self> {
        let enforcement = core.enforcement();
        let in_force =
            enforcement.policy().map(|policy| (Arc::clone(&policy.ruleset), Arc::clone(&policy.globals)));
        (in_force.is_some() || core.loaded()).then(|| Self {
            model: core.shared_model(),
            in_force,
            conditions: enforcement.conditions().clone(),
            failed: enforcement.failed().clone(),
            migrations: core.migrations().map(|(key, state)| (key.clone(), state)).collect(),
        })
    }

    /// Runs a query on a view of the snapshot.
    pub(super) fn answer<T>(&self, query: impl FnOnce(&PolicyView<'_>) -> T) -> T {
        match &self.in_force {
            Some((ruleset, globals)) => query(&PolicyView {
                model: &self.model,
                ruleset,
                globals,
                conditions: Some(&self.conditions),
                failed: Some(&self.failed),
                migrations: Some(&self.migrations),
            }),
            None => {
                let Enforced { ruleset, globals, .. } = Enforced::of(&self.model);
                query(&PolicyView {
                    model: &self.model,
                    ruleset: &ruleset,
                    globals: &globals,
                    conditions: None,
                    failed: None,
                    migrations: None,
                })
            }
        }
    }
}

/// Policy view of a store without an agent, with the rules that this host would enforce.
#[derive(Debug)]
pub struct OfflinePolicyView {
    model: Model,
    ruleset: Arc<Ruleset>,
    globals: Arc<Globals>,
}

impl OfflinePolicyView {
    /// Reads endpoints and policies from a store of either data model.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn load(node: &str, choice: DataModel, store: &dyn Store) -> Result<Self, StoreError> {
        let dialect = choice.dialect(store).await?;
        Ok(Self::of(node, dialect, &store.list(&watch_scope(node, choice)).await?))
    }

    /// Builds the view from the keys that [`watch_scope`] returns.
    #[must_use]
    pub fn of(node: &str, dialect: Dialect, snapshot: &Snapshot) -> Self {
        let mut model = Model::new(node);
        model.set_dialect(dialect);
        model.replace(WatchPart::Main, snapshot);
        Self::from_model(model)
    }

    fn from_model(model: Model) -> Self {
        let Enforced { ruleset, globals, .. } = Enforced::of(&model);
        Self { model, ruleset, globals }
    }

    /// Traces a packet with the rules of every host on its path.
    ///
    /// # Errors
    /// Returns an error when an end is unknown or the packet is impossible.
    pub fn trace(&self, query: &TraceQuery) -> Result<Trace, ApiError> {
        let packet_query = PacketQuery::read(&self.view(), query)?;
        let found = packet_query.follow(&packet_query.excerpt(&self.model)?)?;
        let results = found.host_paths.iter().map(|half| packet::stored(self.model.node(), half)).collect();
        Ok(packet_query.answer(&found, results, false))
    }

    /// Computes the effect of a value that would be written.
    ///
    /// # Errors
    /// Returns an error for a key outside of the data model, and for a value that could not be used.
    pub fn try_write(&self, request: &DryRunRequest) -> Result<DryRun, ApiError> {
        let before = Enforced::of(&self.model);
        let mut trial = dry_run::run(self.model.clone(), before, NodeOptions::default(), request)?;
        if let Some(before) = trial.routing_before() {
            let rehearsal = Rehearsal::of_intent(before);
            dry_run::judge_bgp(rehearsal, &mut trial);
            let text = "BGP: routes that peers announce, and which sessions are up: only the agent has them \
                        (--dry-run=dataplane)";
            trial.answer.not_looked_at.push(text.to_owned());
        }
        let mut answer = trial.answer;
        answer.not_looked_at.push("connections: only the agent has them (--dry-run=dataplane)".to_owned());
        Ok(answer)
    }

    /// Returns the view for queries.
    #[must_use]
    pub fn view(&self) -> PolicyView<'_> {
        PolicyView {
            model: &self.model,
            ruleset: &self.ruleset,
            globals: &self.globals,
            conditions: None,
            failed: None,
            migrations: None,
        }
    }
}

impl<'a> PolicyView<'a> {
    /// Lists the endpoints of this host, or of all hosts, by key. Endpoints without any readable value are
    /// last.
    #[must_use]
    pub fn endpoints(&self, all: bool) -> Vec<Endpoint> {
        let mut rows: Vec<Endpoint> = if all {
            self.model.endpoint_resources().map(|(key, value)| self.endpoint_row(key, value)).collect()
        } else {
            let own = self.ruleset.endpoints.keys();
            own.filter_map(|key| {
                Some(self.endpoint_row(key, self.model.resource(&Key::Endpoint(key.clone()))?))
            })
            .collect()
        };
        let unreadable = self.unreadable_endpoints();
        let shown = unreadable.iter().filter(|(key, _)| all || key.host() == self.model.node());
        rows.extend(shown.map(|(key, problem)| unreadable_endpoint(key, problem)));
        rows
    }

    /// Returns the endpoints that never had a readable value.
    fn unreadable_endpoints(&self) -> Vec<(EndpointKey, &InvalidKey)> {
        let endpoint = |problem: &'a InvalidKey| match problem.parsed() {
            Some(Key::Endpoint(key)) if !problem.last_good => Some((key, problem)),
            _ => None,
        };
        self.model.invalid_keys().filter_map(endpoint).collect()
    }

    /// Returns the policies that never had a readable value.
    fn unreadable_policies(&self) -> Vec<(Key, &InvalidKey)> {
        let policy = |problem: &'a InvalidKey| match problem.parsed() {
            Some(key @ Key::Policy { .. }) if !problem.last_good => Some((key, problem)),
            _ => None,
        };
        self.model.invalid_keys().filter_map(policy).collect()
    }

    /// Returns one endpoint with all policy stages that its packets pass.
    ///
    /// # Errors
    /// Returns an error when no endpoint has this name, or several have it.
    pub fn endpoint(&self, name: &str) -> Result<EndpointDetail, ApiError> {
        let key = match self.find_endpoint(name) {
            Ok(key) => key,
            Err(error) => {
                // An unreadable endpoint is only matched by the names in its key.
                let unreadable = self.unreadable_endpoints();
                let called = |key: &EndpointKey| {
                    Key::Endpoint(key.clone()).to_string() == name
                        || is_exact_match(key, name)
                        || is_partial_match(key, name)
                };
                let found = unreadable.iter().find(|(key, _)| called(key)).ok_or(error)?;
                return Ok(EndpointDetail {
                    endpoint: unreadable_endpoint(&found.0, found.1),
                    nats: Vec::new(),
                    stages: Vec::new(),
                    ports: Vec::new(),
                    unreadable_policies: Vec::new(),
                    effective_labels: Vec::new(),
                });
            }
        };
        let value = self.model.resource(&Key::Endpoint(key.clone())).ok_or_else(|| no_endpoint(name))?;
        let nats = match &**value {
            Resource::WorkloadEndpoint(workload) => {
                let nats = self.model.nats(&key, workload);
                nats.map(|(inside, outside)| (inside.to_string(), outside.to_string())).collect()
            }
            _ => Vec::new(),
        };
        let stages = self.ruleset.endpoints.get(&key).map(|policy| self.stages(policy)).unwrap_or_default();
        let labels = EndpointLabels::of(self.model, |other| *other == key);
        let unreadable_policies = self.unreadable_policies();
        let may_act = |problem: &InvalidKey| {
            problem.selector.as_ref().is_none_or(|selector| labels.selected(selector).next().is_some())
        };
        let unreadable_policies = unreadable_policies.iter().filter(|(_, problem)| may_act(problem));
        let unreadable_policies = unreadable_policies.map(|(key, _)| self.model.name_of(key)).collect();
        let effective_labels = labels.labels(&key).into_iter().map(effective_label).collect();
        let endpoint = self.endpoint_row(&key, value);
        Ok(EndpointDetail {
            endpoint,
            nats,
            stages,
            ports: Vec::new(),
            unreadable_policies,
            effective_labels,
        })
    }

    /// Returns the endpoints that a selector selects, and the members of its address set on this host.
    ///
    /// # Errors
    /// Returns an error for an invalid selector.
    pub fn selected(&self, selector: &str) -> Result<SelectorMatch, ApiError> {
        let selector: Selector = selector.parse().map_err(|error: tortie_config::SelectorError| {
            ApiError { code: "invalid".to_owned(), text: error.to_string() }
        })?;
        let labels = EndpointLabels::of(self.model, |_| true);
        let endpoints =
            labels.selected(&selector).map(|(key, value)| self.endpoint_row(key, value)).collect();
        let set = self.ruleset.sets.get(&SetId::of(&selector)).map(|members| {
            let mut members: Vec<_> = members.iter().copied().collect();
            members.sort_unstable();
            members.iter().map(format_address).collect()
        });
        Ok(SelectorMatch { selector: selector.to_string(), endpoints, set })
    }

    /// Finds an endpoint by its full key, name, last path element, container or pod name, leading part of an
    /// id, interface on this host, or address.
    ///
    /// # Errors
    /// Returns an error when no endpoint matches, or several do.
    pub fn find_endpoint(&self, name: &str) -> Result<EndpointKey, ApiError> {
        if let Ok(Key::Endpoint(key)) = name.parse::<Key>() {
            let there = self.model.resource(&Key::Endpoint(key.clone())).is_some();
            return if there { Ok(key) } else { Err(no_endpoint(name)) };
        }
        // The most specific kind of match decides.
        let mut found: [Vec<&EndpointKey>; 6] = Default::default();
        let [whole, parts, names, ids, interfaces, addresses] = &mut found;
        let addr = name.parse().ok();
        for (key, value) in self.model.endpoint_resources() {
            let own = key.host() == self.model.node();
            let (labels, instance) = naming(value);
            if is_exact_match(key, name) || display_name(key, labels) == name || endpoint_name(key) == name {
                whole.push(key);
            }
            if is_partial_match(key, name) {
                parts.push(key);
            }
            if is_called(key, labels, name) {
                names.push(key);
            }
            if is_short_id(key, instance, name) {
                ids.push(key);
            }
            if own && interface(value) == Some(name) {
                interfaces.push(key);
            }
            if addr.is_some_and(|addr| addresses_of(value).any(|net| net.contains(addr))) {
                addresses.push(key);
            }
        }
        let own = |list: &[&EndpointKey]| -> Vec<EndpointKey> {
            list.iter().filter(|key| key.host() == self.model.node()).map(|key| (*key).clone()).collect()
        };
        let Some(fits) = found.iter().find(|list| !list.is_empty()) else { return Err(no_endpoint(name)) };
        match (fits.as_slice(), own(fits).as_slice()) {
            ([one], _) => Ok((*one).clone()),
            // Interface names and ids are unique per host only.
            (_, [one]) => Ok(one.clone()),
            _ => Err(ambiguous(name, self.distinct_names(fits).into_iter())),
        }
    }

    /// Returns texts that distinguish these endpoints: their keys, or their names if container ids make the
    /// keys long and the names are unique.
    fn distinct_names(&self, keys: &[&EndpointKey]) -> Vec<String> {
        let names: Vec<String> = keys.iter().map(|key| self.model.name_of_endpoint(key)).collect();
        let is_long = keys.iter().any(|key| !is_exact_match(key, &endpoint_name(key)));
        if is_long && names.iter().collect::<BTreeSet<_>>().len() == names.len() {
            return names;
        }
        keys.iter().map(|key| Key::Endpoint((*key).clone()).to_string()).collect()
    }

    /// Returns the endpoints and hosts that have these addresses.
    pub(super) fn names_of(&self, addrs: &BTreeSet<IpAddr>) -> BTreeMap<IpAddr, String> {
        let mut names: BTreeMap<IpAddr, String> = BTreeMap::new();
        for addr in addrs {
            names.extend(
                self.model.hosts_by_address(*addr).next().map(|(host, _)| (*addr, format!("host {host}"))),
            );
        }
        for (key, value) in self.model.endpoint_resources() {
            for net in addresses_of(value) {
                // A network covers many of the addresses, a single address one.
                let range = addrs.range(net.addr()..=net.last());
                names.extend(range.map(|addr| (*addr, display_name(key, naming(value).0))));
            }
        }
        names
    }

    /// Lists policies in their order of evaluation, then profiles by name: those that apply to an endpoint of
    /// this host, or all. Policies without any readable value are first, since their endpoints are unknown.
    #[must_use]
    pub fn policies(&self, all: bool) -> Vec<Policy> {
        let users = self.users();
        let order = TierOrder::of(self.model);
        let mut policies: Vec<(&Key, &resource::Policy)> = Vec::new();
        let mut profiles: BTreeSet<&str> = BTreeSet::new();
        for (key, value) in self.model.policy_resources() {
            match (key, &**value) {
                (Key::Policy { .. }, Resource::Policy(policy)) => policies.push((key, policy)),
                (Key::Profile { name, .. }, _) => {
                    profiles.insert(name);
                }
                _ => {}
            }
        }
        // A profile that endpoints refer to and that does not exist denies.
        profiles.extend(users.keys().filter_map(|source| match source {
            Source::Profile(name) => Some(&**name),
            Source::Policy { .. } => None,
        }));
        let place = |key: &Key, policy: &resource::Policy| match key {
            Key::Policy { tier, name } => Some(order.place(tier, name, policy.order)),
            _ => None,
        };
        policies.sort_by_cached_key(|(key, policy)| place(key, policy));
        let unreadable = self.unreadable_policies().into_iter();
        let unreadable = unreadable.filter_map(|(key, _)| self.policy_row(&key, &users));
        let policies = policies.into_iter().filter_map(|(key, _)| self.policy_row(key, &users));
        let profiles = profiles.into_iter().map(|name| self.profile_row(name, &users));
        unreadable.chain(policies.chain(profiles).filter(|row| all || row.endpoints > 0)).collect()
    }

    /// Returns one policy or profile with its rules.
    ///
    /// # Errors
    /// Returns an error when no policy has this name, or several have it.
    pub fn policy(&self, name: &str) -> Result<PolicyDetail, ApiError> {
        let source = self.find_policy(name)?;
        let users = self.users();
        let prefix = self.model.settings().log_prefix;
        let rule_texts = |rules: &[resource::Rule]| -> Vec<String> {
            Chain::of(rules, &prefix).rules.iter().map(ToString::to_string).collect()
        };
        let acts_on =
            users.get(&source).into_iter().flatten().map(|key| self.model.name_of_endpoint(key)).collect();
        let (mut labels, mut tags, mut rules) =
            (resource::Labels::new(), Vec::new(), (Vec::new(), Vec::new()));
        let policy = match &source {
            Source::Policy { tier, name, .. } => {
                let key = Key::Policy { tier: (**tier).to_owned(), name: (**name).to_owned() };
                if let Some(Resource::Policy(policy)) = self.model.resource(&key).map(|value| &**value) {
                    rules = (rule_texts(&policy.inbound), rule_texts(&policy.outbound));
                }
                self.policy_row(&key, &users).ok_or_else(|| no_policy(&source.to_string()))?
            }
            Source::Profile(name) => {
                for part in [ProfilePart::Rules, ProfilePart::Labels, ProfilePart::Tags] {
                    let key = Key::Profile { name: (**name).to_owned(), part };
                    match self.model.resource(&key).map(|value| &**value) {
                        Some(Resource::ProfileRules(found)) => {
                            rules = (rule_texts(&found.inbound), rule_texts(&found.outbound));
                        }
                        Some(Resource::ProfileLabels(found)) => labels.clone_from(found),
                        Some(Resource::ProfileTags(found)) => tags.clone_from(found),
                        _ => {}
                    }
                }
                self.profile_row(name, &users)
            }
        };
        let (inbound_rules, outbound_rules) = rules;
        Ok(PolicyDetail { policy, inbound_rules, outbound_rules, acts_on, labels, tags, counted: None })
    }

    /// Finds a policy or profile by its full key, `TIER/NAME`, name, or `profile NAME`.
    fn find_policy(&self, name: &str) -> Result<Source, ApiError> {
        match name.parse::<Key>() {
            Ok(Key::Policy { tier, name: policy }) => {
                return Ok(Source::policy(self.model.dialect(), &tier, &policy));
            }
            Ok(Key::Profile { name: profile, .. }) => return Ok(Source::Profile(profile.into())),
            _ => {}
        }
        let mut found: BTreeSet<Source> = BTreeSet::new();
        let unreadable = self.unreadable_policies();
        let all = self.model.policy_resources().map(|(key, _)| key);
        for key in all.chain(unreadable.iter().map(|(key, _)| key)) {
            let source = match key {
                Key::Policy { tier, name } => Source::policy(self.model.dialect(), tier, name),
                Key::Profile { name, .. } => Source::Profile(name.as_str().into()),
                _ => continue,
            };
            let bare = match &source {
                Source::Policy { tier, name: policy, .. } => {
                    **policy == *name
                        || name.strip_prefix(&**tier).and_then(|rest| rest.strip_prefix('/')) == Some(policy)
                }
                Source::Profile(profile) => **profile == *name,
            };
            if bare || source.to_string() == name {
                found.insert(source);
            }
        }
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (None, _) => Err(no_policy(name)),
            (Some(one), None) => Ok(one),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(found);
                Err(ambiguous(name, all.map(|source| source.to_string())))
            }
        }
    }

    /// Returns the endpoints of this host by policy and profile.
    fn users(&self) -> BTreeMap<Source, BTreeSet<&EndpointKey>> {
        let mut users: BTreeMap<Source, BTreeSet<&EndpointKey>> = BTreeMap::new();
        for (key, policy) in &self.ruleset.endpoints {
            for id in policy.chains() {
                users.entry(id.source.clone()).or_default().insert(key);
            }
        }
        users
    }

    fn policy_row(&self, key: &Key, users: &BTreeMap<Source, BTreeSet<&EndpointKey>>) -> Option<Policy> {
        let Key::Policy { tier, name } = key else { return None };
        let Some(Resource::Policy(policy)) = self.model.resource(key).map(|value| &**value) else {
            let problem = self.problem(key);
            return (!problem.is_empty()).then(|| Policy {
                key: self.model.written_key(key),
                kind: self.kind_of_policy(name),
                name: name.clone(),
                tier: Some(tier.clone()),
                order: None,
                selector: None,
                types: Vec::new(),
                inbound: 0,
                outbound: 0,
                endpoints: 0,
                problem: format!("it cannot be parsed and has no effect: {problem}"),
                revision: self.model.revision_of(key).unwrap_or_default(),
            });
        };
        let source = Source::policy(self.model.dialect(), tier, name);
        let governs = match policy.types {
            PolicyTypes::Both => &["ingress", "egress"][..],
            PolicyTypes::Ingress => &["ingress"],
            PolicyTypes::Egress => &["egress"],
        };
        let early = [(policy.untracked, "untracked"), (policy.pre_dnat, "pre-dnat")];
        let early = early.iter().filter(|(is, _)| *is).map(|(_, word)| *word);
        Some(Policy {
            key: self.model.written_key(key),
            kind: self.kind_of_policy(name),
            name: name.clone(),
            tier: Some(tier.clone()),
            order: policy.order.map(resource::Order::get),
            selector: Some(policy.selector.to_string()),
            types: governs.iter().copied().chain(early).map(str::to_owned).collect(),
            inbound: policy.inbound.len(),
            outbound: policy.outbound.len(),
            endpoints: users.get(&source).map_or(0, BTreeSet::len),
            problem: self.problem(key),
            revision: self.model.revision_of(key).unwrap_or_default(),
        })
    }

    /// Returns the kind of a policy: in a Calico 3 store, that of its object.
    fn kind_of_policy(&self, name: &str) -> String {
        match self.model.dialect() {
            Dialect::V1 => "policy",
            Dialect::V3 => PolicyObject::of(name).kind(),
        }
        .to_owned()
    }

    fn profile_row(&self, name: &str, users: &BTreeMap<Source, BTreeSet<&EndpointKey>>) -> Policy {
        let key = Key::Profile { name: name.to_owned(), part: ProfilePart::Rules };
        let rules = match self.model.resource(&key).map(|value| &**value) {
            Some(Resource::ProfileRules(rules)) => Some((rules.inbound.len(), rules.outbound.len())),
            _ => None,
        };
        let mut problem = self.problem(&key);
        if problem.is_empty() && rules.is_none() {
            "it has no rules: everything that no policy decides is denied".clone_into(&mut problem);
        }
        let (inbound, outbound) = rules.unwrap_or_default();
        Policy {
            key: self.model.written_key(&key),
            kind: "profile".to_owned(),
            name: name.to_owned(),
            tier: None,
            order: None,
            selector: None,
            types: vec!["ingress".to_owned(), "egress".to_owned()],
            inbound,
            outbound,
            endpoints: users.get(&Source::Profile(name.into())).map_or(0, BTreeSet::len),
            problem,
            revision: self.model.revision_of(&key).unwrap_or_default(),
        }
    }

    fn problem(&self, key: &Key) -> String {
        if !self.model.is_unreadable(key) {
            return String::new();
        }
        let key = key.to_string();
        let found = self.model.invalid_keys().find(|problem| problem.key == key);
        found.map_or_else(|| "its value cannot be parsed".to_owned(), |problem| problem.error.clone())
    }

    fn endpoint_row(&self, key: &EndpointKey, value: &Resource) -> Endpoint {
        let policy = self.ruleset.endpoints.get(key);
        let (kind, active, profiles, labels, mac) = match value {
            Resource::WorkloadEndpoint(w) => ("workload", w.active, &w.profile_ids, &w.labels, w.mac),
            Resource::HostEndpoint(h) => ("host", true, &h.profile_ids, &h.labels, None),
            _ => ("unknown", false, const { &Vec::new() }, const { &resource::Labels::new() }, None),
        };
        let condition = self.conditions.and_then(|conditions| conditions.get(key));
        let failure = self.failed.and_then(|failed| failed.get(key));
        let (state, reason) = match (failure, condition) {
            (Some(why), _) | (None, Some(EndpointCondition::Failed(why))) => ("failed", why.as_str()),
            (None, Some(EndpointCondition::Up)) => {
                let state = self.migrations.and_then(|migrations| migrations.get(key));
                ("up", state.map_or("", |state| state.as_str()))
            }
            (None, Some(EndpointCondition::Down(why))) => ("down", why.as_str()),
            (None, None) if active => ("active", ""),
            (None, None) => ("inactive", ""),
        };
        let policies = policy.map(|policy| {
            let sources = policy.chains().map(|id| &id.source);
            let policies: BTreeSet<_> =
                sources.filter(|source| matches!(source, Source::Policy { .. })).collect();
            policies.len()
        });
        let key_text = Key::Endpoint(key.clone());
        Endpoint {
            name: display_name(key, labels),
            kind: kind.to_owned(),
            host: key.host().to_owned(),
            interface: interface(value).map(str::to_owned),
            state: state.to_owned(),
            reason: reason.to_owned(),
            addresses: addresses_of(value).map(|net| format_address(&net)).collect(),
            mac: mac.map(|mac| mac.to_string()),
            profiles: profiles.clone(),
            labels: labels.clone(),
            policies,
            revision: self.model.revision_of(&key_text).unwrap_or_default(),
            key: self.model.written_key(&key_text),
        }
    }

    fn stages(&self, policy: &EndpointPolicy) -> Vec<Stage> {
        let mut out = Vec::new();
        let mut early = |kind: &str, direction: Direction, ids: &[ChainId]| {
            if !ids.is_empty() {
                out.push(Stage {
                    kind: kind.to_owned(),
                    direction: direction.as_str().to_owned(),
                    tier: None,
                    chains: ids.iter().map(|id| self.chain(id)).collect(),
                    end: "continues".to_owned(),
                });
            }
        };
        let (inbound, outbound) = match policy {
            EndpointPolicy::Workload(workload) => (&workload.inbound, &workload.outbound),
            EndpointPolicy::Host(host) => {
                early("untracked", Direction::Inbound, &host.untracked_inbound);
                early("untracked", Direction::Outbound, &host.untracked_outbound);
                early("pre-dnat", Direction::Inbound, &host.pre_dnat);
                (&host.inbound, &host.outbound)
            }
        };
        for (direction, stages) in [(Direction::Inbound, inbound), (Direction::Outbound, outbound)] {
            out.extend(self.tier_stages(direction, stages));
        }
        if let EndpointPolicy::Host(host) = policy {
            let forward =
                [(Direction::Inbound, &host.forward_inbound), (Direction::Outbound, &host.forward_outbound)];
            for (direction, tiers) in forward {
                out.extend(tiers.iter().map(|tier| {
                    self.stage("forward", direction, Some(&tier.name), &tier.policies, tier.end)
                }));
            }
        }
        out
    }

    fn tier_stages(&self, direction: Direction, stages: &Stages) -> Vec<Stage> {
        let tiers = stages
            .tiers
            .iter()
            .map(|tier| self.stage("tier", direction, Some(&tier.name), &tier.policies, tier.end));
        tiers.chain([self.stage("profiles", direction, None, &stages.profiles, EndAction::Deny)]).collect()
    }

    fn stage(
        &self,
        kind: &str,
        direction: Direction,
        tier: Option<&str>,
        ids: &[ChainId],
        end: EndAction,
    ) -> Stage {
        Stage {
            kind: kind.to_owned(),
            direction: direction.as_str().to_owned(),
            tier: tier.map(str::to_owned),
            chains: ids.iter().map(|id| self.chain(id)).collect(),
            end: end.as_str().to_owned(),
        }
    }

    fn chain(&self, id: &ChainId) -> ChainRules {
        let chain = self.ruleset.chains.get(id);
        ChainRules {
            name: id.source.to_string(),
            rules: chain.map(|c| c.rules.iter().map(ToString::to_string).collect()).unwrap_or_default(),
            closed: chain.and_then(|chain| chain.fail_closed).map(|why| why.to_string()),
        }
    }
}

fn is_exact_match(key: &EndpointKey, name: &str) -> bool {
    match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            let rest = name.strip_prefix(orchestrator.as_str()).and_then(|rest| rest.strip_prefix('/'));
            let rest = rest.and_then(|rest| rest.strip_prefix(workload.as_str()));
            rest.and_then(|rest| rest.strip_prefix('/')) == Some(endpoint)
        }
        EndpointKey::Host { endpoint, .. } => endpoint == name,
    }
}

/// True if the word is a name in the endpoint's key: its workload or its id.
fn is_partial_match(key: &EndpointKey, name: &str) -> bool {
    match key {
        EndpointKey::Workload { workload, endpoint, .. } => workload == name || endpoint == name,
        EndpointKey::Host { endpoint, .. } => endpoint == name,
    }
}

fn effective_label(label: EffectiveLabel<'_>) -> api::EffectiveLabel {
    api::EffectiveLabel {
        name: label.name.to_owned(),
        value: label.value.to_owned(),
        from: match label.origin {
            LabelOrigin::Endpoint => "endpoint".to_owned(),
            LabelOrigin::Profile(name) => format!("profile {name}"),
            LabelOrigin::Tag(name) => format!("tag of profile {name}"),
        },
    }
}

/// Builds the row of an endpoint of which only the key is known.
fn unreadable_endpoint(key: &EndpointKey, problem: &InvalidKey) -> Endpoint {
    Endpoint {
        key: problem.key.clone(),
        name: endpoint_name(key),
        kind: if matches!(key, EndpointKey::Host { .. }) { "host" } else { "workload" }.to_owned(),
        host: key.host().to_owned(),
        interface: None,
        state: "unreadable".to_owned(),
        reason: problem.error.clone(),
        addresses: Vec::new(),
        mac: None,
        profiles: Vec::new(),
        labels: BTreeMap::new(),
        policies: None,
        revision: problem.revision,
    }
}

fn interface(value: &Resource) -> Option<&str> {
    match value {
        Resource::WorkloadEndpoint(workload) => Some(workload.name.as_str()),
        Resource::HostEndpoint(host) => host.name.as_ref().map(|name| name.as_str()),
        _ => None,
    }
}

pub(super) fn addresses_of(value: &Resource) -> impl Iterator<Item = tortie_net::Cidr> {
    let (nets, addrs) = match value {
        Resource::WorkloadEndpoint(workload) => (Some(workload.nets().copied()), None),
        Resource::HostEndpoint(host) => (None, Some(host.addrs().map(tortie_net::Cidr::host))),
        _ => (None, None),
    };
    nets.into_iter().flatten().chain(addrs.into_iter().flatten())
}

/// Formats a single address without its length, a network with it.
fn format_address(net: &tortie_net::Cidr) -> String {
    if net.is_host() { net.addr().to_string() } else { net.to_string() }
}

fn no_endpoint(name: &str) -> ApiError {
    ApiError {
        code: "not-found".to_owned(),
        text: format!("there is no endpoint `{name}`: `tortie endpoint list --all` lists them"),
    }
}

fn no_policy(name: &str) -> ApiError {
    ApiError {
        code: "not-found".to_owned(),
        text: format!("there is no policy or profile `{name}`: `tortie policy list --all` lists them"),
    }
}

fn ambiguous(name: &str, candidates: impl Iterator<Item = String>) -> ApiError {
    let mut all: Vec<String> = candidates.collect();
    let more = all.len().saturating_sub(CANDIDATES_MAX);
    all.truncate(CANDIDATES_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let text = format!("`{name}` matches {}{more}: name one of them", all.join(", "));
    ApiError { code: "invalid".to_owned(), text }
}
