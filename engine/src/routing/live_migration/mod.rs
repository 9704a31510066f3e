//! Live migrations: when this host routes and announces the addresses of a workload that moves to it.
//!
//! Two hosts have an endpoint of the workload while it moves. Until it runs here, this host does not route its
//! addresses to the interface ([`EndpointRouting::Withheld`]). Then the routes have an elevated priority, so
//! that they are preferred to those of the other host, which withdraws its own later. Some time after the end
//! of the migration they are normal routes.
//!
//! In addition to Calico:
//! - If the store names no role yet, a new endpoint of OpenStack whose port also has an older endpoint on
//!   another host is a target: the two objects may arrive in any order. It stays one as long as that endpoint
//!   exists and the workload was not seen here, whatever happens to the migration: when a migration fails, its
//!   object is deleted before the endpoint.
//! - A target whose port no other host has any more is routed: nobody else is.
//! - The elevated priority lasts as long as the older endpoint exists, and then for the time in which routes
//!   converge: else the former host, which learns of the end at the same time, could be preferred once more.
//! - After a restart of the agent, a route to the interface shows that the workload runs here, and its metric
//!   whether it has just arrived.

mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tortie_config::Dialect;
use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::{LiveMigration, MigrationTarget};

pub use state::{MigrationEvent, MigrationRole, MigrationState};

use crate::model::{AttachedRoute, LiveMigrationSettings, Model, ModelChanges, is_of_openstack};
use crate::policy::EndpointLabels;

/// How the addresses of an endpoint of this host are routed, if not as usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum EndpointRouting {
    /// They are neither routed to the interface nor announced.
    Withheld,
    /// Their routes have exactly this priority (metric).
    Priority {
        /// Priority of IPv4 routes.
        v4: u32,
        /// Priority of IPv6 routes.
        v6: u32,
    },
}

impl EndpointRouting {
    /// Returns the priority of routes of a family; `None` if there are none.
    #[must_use]
    pub fn priority(self, v4: bool) -> Option<u32> {
        match self {
            Self::Withheld => None,
            Self::Priority { v4: priority, .. } if v4 => Some(priority),
            Self::Priority { v6, .. } => Some(v6),
        }
    }
}

/// Routing of the endpoints of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointRoutings {
    /// Normal priorities of IPv4 and IPv6 routes in a store of Calico 3; `None` in a store of the v1 model.
    pub normal: Option<[u32; 2]>,
    /// Endpoints that are not routed as usual.
    pub moving: BTreeMap<EndpointKey, EndpointRouting>,
}

/// A change of the state of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Its new state.
    pub state: MigrationState,
}

/// An endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    /// Revision of the write that created it.
    created: u64,
    role: Option<MigrationRole>,
    state: MigrationState,
    /// True once its role was determined: from then on only a migration can make it a target.
    is_settled: bool,
    /// True once another host had an endpoint of the same port.
    had_twin: bool,
    /// True if another host had an older endpoint of the same port at the last update.
    had_older_twin: bool,
    /// Hosts with an endpoint of the same port, each with the revision of the write that created it.
    twins: BTreeMap<String, u64>,
}

impl Endpoint {
    /// `created`: revision of the write that created it.
    fn new(created: u64) -> Self {
        Self {
            created,
            role: None,
            state: MigrationState::Base,
            is_settled: false,
            had_twin: false,
            had_older_twin: false,
            twins: BTreeMap::new(),
        }
    }

    /// Returns true if the workload moves, as far as is known here.
    fn moves(&self) -> bool {
        self.role.is_some() || self.state != MigrationState::Base || !self.twins.is_empty()
    }

    fn has_older_twin(&self) -> bool {
        self.twins.values().any(|created| *created < self.created)
    }

    fn has_younger_twin(&self) -> bool {
        self.twins.values().any(|created| *created > self.created)
    }

    /// Returns true if the workload of a port can only run here: no other host has an endpoint of it, and this
    /// host routes it already, or waited until the other host ended it.
    fn cannot_wait(&self, key: &EndpointKey, was_settled: bool) -> bool {
        let waited = match self.state {
            MigrationState::Base => was_settled,
            MigrationState::Target => self.had_twin,
            MigrationState::Live | MigrationState::TimeWait { .. } => false,
        };
        waited && port(key).is_some() && !self.has_older_twin()
    }

    /// Returns the time at which `TimeWait` ends, unless the other host still announces the addresses.
    fn deadline(&self) -> Option<Instant> {
        match self.state {
            MigrationState::TimeWait { until } if !self.has_older_twin() => Some(until),
            _ => None,
        }
    }
}

/// States of endpoints, with times relative to the start of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MigrationCheckpoint(Vec<(EndpointKey, SavedState)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum SavedState {
    Base,
    Target,
    Live,
    TimeWait(Duration),
}

/// Workload and endpoint of a port of OpenStack.
type Port = (String, String);

/// State of the endpoints of this host in live migrations. Follows the model, and is empty for a v1 store.
#[derive(Debug, Clone, Default)]
pub struct LiveMigrations {
    endpoints: BTreeMap<EndpointKey, Endpoint>,
    /// Endpoint of each port on this host.
    ports: BTreeMap<Port, EndpointKey>,
    settings: LiveMigrationSettings,
    /// Normal priorities of IPv4 and IPv6 routes; `None` for a v1 store.
    normal: Option<[u32; 2]>,
    /// Routes to single addresses that were found at the start, for the first update; `None` if unknown.
    attached: Option<Vec<AttachedRoute>>,
    has_followed: bool,
    transitions: Vec<Transition>,
}

impl LiveMigrations {
    /// Sets the routes that were found when the agent started. Without effect after the first update.
    pub fn set_attached(&mut self, attached: Vec<AttachedRoute>) {
        if !self.has_followed {
            self.attached = Some(attached);
        }
    }

    /// Follows the model. `changes` must contain all changes since the last call.
    pub fn update(&mut self, model: &Model, changes: &ModelChanges, now: Instant) {
        if model.dialect() != Dialect::V3 {
            (self.endpoints, self.ports, self.normal) = Default::default();
            return;
        }
        let first = !std::mem::replace(&mut self.has_followed, true);
        if first || self.normal.is_none() || changes.settings || changes.originated {
            self.settings = model.live_migration_settings();
            let configuration = model.bgp_configuration();
            self.normal = Some([configuration.ipv4_normal_priority, configuration.ipv6_normal_priority]);
        }
        let everything = first || (changes.keys.is_empty() && changes.endpoints);
        let mut touched = BTreeSet::new();
        if everything {
            self.follow_own(model);
        } else if changes.endpoints {
            for key in changes.keys.iter().filter_map(|changed| changed.key.as_ref()) {
                if let Key::Endpoint(key) = key {
                    touched.extend(self.follow(model, key));
                }
            }
        }
        if everything || changes.endpoints || changes.migrations || changes.policy {
            let migrations: Vec<&LiveMigration> = model.live_migrations().collect();
            // Without a migration, the role of an endpoint depends on itself and its twins.
            let is_concerned =
                |key: &EndpointKey, endpoint: &Endpoint| endpoint.moves() || touched.contains(key);
            let all = everything || changes.migrations || !migrations.is_empty();
            let concerned = self.endpoints.iter().filter(|(key, e)| all || is_concerned(key, e));
            let concerned = concerned.map(|(key, _)| key.clone()).collect();
            self.assign_roles(model, &migrations, concerned, first, now);
        }
        self.attached = None;
        self.extend_waits(now);
        self.expire(now);
    }

    /// Records that the interface of an endpoint received a packet that its workload sent. Returns true if the
    /// state changed.
    pub fn see(&mut self, key: &EndpointKey, now: Instant) -> bool {
        let convergence = self.settings.convergence;
        let Some(endpoint) = self.endpoints.get_mut(key) else { return false };
        let state = endpoint.state.next(MigrationEvent::Seen, now, convergence);
        self.set_state(key, state)
    }

    /// Ends the waits that are over. Returns true if a state changed.
    pub fn expire(&mut self, now: Instant) -> bool {
        let over = |endpoint: &Endpoint| endpoint.deadline().is_some_and(|until| until <= now);
        let over: Vec<EndpointKey> =
            self.endpoints.iter().filter(|(_, e)| over(e)).map(|(key, _)| key.clone()).collect();
        for key in &over {
            self.set_state(key, MigrationState::Base);
        }
        !over.is_empty()
    }

    /// Returns the time at which [`LiveMigrations::expire`] must be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.endpoints.values().filter_map(Endpoint::deadline).min()
    }

    /// Returns the routing of the endpoints.
    #[must_use]
    pub fn routings(&self) -> EndpointRoutings {
        let routing = |endpoint: &Endpoint| match endpoint.state {
            MigrationState::Target => Some(EndpointRouting::Withheld),
            MigrationState::Live | MigrationState::TimeWait { .. } => Some(EndpointRouting::Priority {
                v4: self.settings.ipv4_elevated_priority,
                v6: self.settings.ipv6_elevated_priority,
            }),
            // The routes of the host that the workload moves to must be preferred, once it announces them.
            MigrationState::Base => {
                let moves = endpoint.role == Some(MigrationRole::Source) || endpoint.has_younger_twin();
                let [v4, v6] = self.normal.filter(|_| moves)?;
                Some(EndpointRouting::Priority { v4, v6 })
            }
        };
        let moving = self.endpoints.iter().filter_map(|(key, e)| Some((key.clone(), routing(e)?))).collect();
        EndpointRoutings { normal: self.normal, moving }
    }

    /// Returns the states of the endpoints that move.
    pub fn states(&self) -> impl Iterator<Item = (&EndpointKey, MigrationState)> {
        let moving = self.endpoints.iter().filter(|(_, e)| e.state != MigrationState::Base);
        moving.map(|(key, endpoint)| (key, endpoint.state))
    }

    /// Saves the states of all endpoints; `after` converts a time to a duration since the start of the agent.
    pub fn checkpoint(&self, after: impl Fn(&Instant) -> Duration) -> MigrationCheckpoint {
        let saved = |state| match state {
            MigrationState::Base => SavedState::Base,
            MigrationState::Target => SavedState::Target,
            MigrationState::Live => SavedState::Live,
            MigrationState::TimeWait { until } => SavedState::TimeWait(after(&until)),
        };
        MigrationCheckpoint(self.endpoints.iter().map(|(key, e)| (key.clone(), saved(e.state))).collect())
    }

    /// Restores the states; `at` converts a duration since the start of the agent to a time.
    #[must_use]
    pub fn restore(
        model: &Model,
        checkpoint: MigrationCheckpoint,
        now: Instant,
        at: impl Fn(Duration) -> Instant,
    ) -> Self {
        let mut migrations = Self::default();
        migrations.update(model, &ModelChanges::everything(), now);
        for (key, saved) in checkpoint.0 {
            if let Some(endpoint) = migrations.endpoints.get_mut(&key) {
                endpoint.state = match saved {
                    SavedState::Base => MigrationState::Base,
                    SavedState::Target => MigrationState::Target,
                    SavedState::Live => MigrationState::Live,
                    SavedState::TimeWait(until) => MigrationState::TimeWait { until: at(until) },
                };
            }
        }
        migrations.transitions.clear();
        migrations
    }

    /// Returns the changes of states since the last call, in their order.
    pub fn take_transitions(&mut self) -> Vec<Transition> {
        std::mem::take(&mut self.transitions)
    }

    /// Lets the routes of endpoints whose older twin has just ended converge.
    fn extend_waits(&mut self, now: Instant) {
        let convergence = self.settings.convergence;
        for endpoint in self.endpoints.values_mut() {
            let older = endpoint.has_older_twin();
            let ended = std::mem::replace(&mut endpoint.had_older_twin, older) && !older;
            if ended && let MigrationState::TimeWait { until } = &mut endpoint.state {
                *until = (*until).max(now + convergence);
            }
        }
    }

    fn set_state(&mut self, key: &EndpointKey, state: MigrationState) -> bool {
        let Some(endpoint) = self.endpoints.get_mut(key) else { return false };
        let changed = std::mem::replace(&mut endpoint.state, state) != state;
        if changed {
            self.transitions.push(Transition { endpoint: key.clone(), state });
        }
        changed
    }

    /// Adds and removes all endpoints of this host, and finds all twins.
    fn follow_own(&mut self, model: &Model) {
        let mut gone: BTreeSet<EndpointKey> = self.endpoints.keys().cloned().collect();
        for workload in model.workloads(model.node()) {
            gone.remove(workload.key);
            self.add(workload.key, workload.created);
        }
        for key in &gone {
            self.remove(key);
        }
        self.endpoints.values_mut().for_each(|endpoint| endpoint.twins.clear());
        let ports: Vec<Port> = self.ports.keys().cloned().collect();
        self.find_twins(model, &ports);
    }

    /// Follows an endpoint of any host. Returns the endpoint of this host that it concerns.
    fn follow(&mut self, model: &Model, key: &EndpointKey) -> Option<EndpointKey> {
        if key.host() != model.node() {
            return self.follow_twin(model, key);
        }
        match model.workload(key) {
            Some(workload) => {
                if self.add(key, workload.created) {
                    self.find_twins(model, port(key).as_slice());
                }
            }
            None => self.remove(key),
        }
        Some(key.clone())
    }

    /// Adds an endpoint of this host, or follows its recreation. Returns true if it is new.
    fn add(&mut self, key: &EndpointKey, created: u64) -> bool {
        if let Some(known) = self.endpoints.get_mut(key) {
            known.created = created;
            return false;
        }
        if let Some(port) = port(key) {
            self.ports.insert(port, key.clone());
        }
        self.endpoints.insert(key.clone(), Endpoint::new(created));
        true
    }

    fn remove(&mut self, key: &EndpointKey) {
        self.endpoints.remove(key);
        if let Some(port) = port(key) {
            self.ports.remove(&port);
        }
    }

    /// Finds the endpoints that other hosts have of these ports.
    fn find_twins(&mut self, model: &Model, ports: &[Port]) {
        if ports.is_empty() {
            return;
        }
        let ports: BTreeSet<_> =
            ports.iter().map(|(workload, endpoint)| (&**workload, &**endpoint)).collect();
        let is_of = |key: &&EndpointKey| port_of(key).is_some_and(|port| ports.contains(&port));
        let keys: Vec<&EndpointKey> = model.endpoint_resources().map(|(key, _)| key).filter(is_of).collect();
        for key in keys {
            self.follow_twin(model, key);
        }
    }

    /// Records or forgets an endpoint of another host. Returns the endpoint of this host with the same port.
    fn follow_twin(&mut self, model: &Model, key: &EndpointKey) -> Option<EndpointKey> {
        if self.ports.is_empty() || key.host() == model.node() {
            return None;
        }
        let own = self.ports.get(&port(key)?)?;
        let endpoint = self.endpoints.get_mut(own)?;
        match model.workload(key) {
            Some(twin) => drop(endpoint.twins.insert(key.host().to_owned(), twin.created)),
            None => drop(endpoint.twins.remove(key.host())),
        }
        Some(own.clone())
    }

    /// Determines the role of each of these endpoints, and follows it. `first`: the agent has just started, and
    /// a route to the interface shows that the workload runs here.
    fn assign_roles(
        &mut self,
        model: &Model,
        migrations: &[&LiveMigration],
        concerned: Vec<EndpointKey>,
        first: bool,
        now: Instant,
    ) {
        let selected = selected(model, migrations);
        let convergence = self.settings.convergence;
        for key in concerned {
            let Some(endpoint) = self.endpoints.get_mut(&key) else { continue };
            let found = self.attached.as_deref().filter(|_| first);
            if let Some(metric) = found.and_then(|attached| found_metric(model, &key, attached)) {
                let elevated = [self.settings.ipv4_elevated_priority, self.settings.ipv6_elevated_priority];
                endpoint.is_settled = true;
                endpoint.state = if role(&key, migrations, &selected) == Some(MigrationRole::Target) {
                    MigrationState::Live
                } else if elevated.contains(&metric) {
                    MigrationState::TimeWait { until: now + convergence }
                } else {
                    MigrationState::Base
                };
            }
            let was_settled = std::mem::replace(&mut endpoint.is_settled, true);
            let implied = match endpoint.state {
                MigrationState::Target => true,
                // Without a list of routes it is not known whether it is routed already.
                MigrationState::Base => !was_settled && (!first || found.is_some()),
                MigrationState::Live | MigrationState::TimeWait { .. } => false,
            };
            let implied = (implied && endpoint.has_older_twin()).then_some(MigrationRole::Target);
            let named = role(&key, migrations, &selected)
                .filter(|role| *role == MigrationRole::Source || !endpoint.cannot_wait(&key, was_settled));
            endpoint.role = named.or(implied);
            endpoint.had_twin |= !endpoint.twins.is_empty();
            let state = endpoint.state.next(MigrationEvent::Role(endpoint.role), now, convergence);
            self.set_state(&key, state);
        }
    }
}

/// Returns the port of an endpoint of OpenStack, which writes it on two hosts while it moves.
fn port(key: &EndpointKey) -> Option<Port> {
    port_of(key).map(|(workload, endpoint)| (workload.to_owned(), endpoint.to_owned()))
}

/// As [`port`], borrowed.
fn port_of(key: &EndpointKey) -> Option<(&str, &str)> {
    match key {
        EndpointKey::Workload { workload, endpoint, .. } if is_of_openstack(key) => {
            Some((workload, endpoint))
        }
        _ => None,
    }
}

/// Returns the endpoints of this host that a migration selects as its target by labels.
fn selected(model: &Model, migrations: &[&LiveMigration]) -> BTreeSet<EndpointKey> {
    let selectors: Vec<_> = migrations
        .iter()
        .filter_map(|migration| match &migration.target {
            Some(MigrationTarget::Selector(selector)) => Some(selector),
            _ => None,
        })
        .collect();
    if selectors.is_empty() {
        return BTreeSet::new();
    }
    let labels = EndpointLabels::of(model, |key| key.host() == model.node());
    let matches = selectors.iter().flat_map(|selector| labels.selected(selector));
    matches.map(|(key, _)| key.clone()).collect()
}

/// Returns the role that migrations give to an endpoint: target by labels, then target by name, then source.
fn role(
    key: &EndpointKey,
    migrations: &[&LiveMigration],
    selected: &BTreeSet<EndpointKey>,
) -> Option<MigrationRole> {
    let is_target = |migration: &&LiveMigration| match &migration.target {
        Some(MigrationTarget::Endpoint(target)) => target.is(key),
        _ => false,
    };
    if selected.contains(key) || migrations.iter().any(is_target) {
        return Some(MigrationRole::Target);
    }
    let is_source = |migration: &LiveMigration| migration.source.as_ref().is_some_and(|from| from.is(key));
    migrations.iter().any(|migration| is_source(migration)).then_some(MigrationRole::Source)
}

/// Returns the metric of the route to the interface of an endpoint that was found at the start.
fn found_metric(model: &Model, key: &EndpointKey, attached: &[AttachedRoute]) -> Option<u32> {
    let workload = model.workload(key)?.value;
    let is_own = |route: &&AttachedRoute| {
        route.interface == workload.name.as_str()
            && workload.nets().any(|net| net.is_host() && net.addr() == route.addr)
    };
    attached.iter().find(is_own).map(|route| route.metric)
}
