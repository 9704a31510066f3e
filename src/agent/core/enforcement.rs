//! Enforcement of endpoints and policy rules: sends changes to the kernel thread and processes its
//! acknowledgements.
//!
//! Every change of the store passes through the policy engine. A resulting change gets a serial number and is
//! sent to the kernel thread. Nothing is sent before the first complete snapshot or while the core is frozen.
//! The cost of a change depends on its size, not on that of the model.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tortie_config::counted;
use tortie_config::key::{EndpointKey, Key};

use super::recorder::{Entry, Plane, SINGLE_ENTRIES_MAX};
use crate::agent::core::Core;
use crate::agent::core::counters;
use crate::agent::core::effect::{Effect, LogLine, Severity, Subsystem};
use tortie_engine::model::{Model, ModelChanges};
use tortie_engine::policy::{Chain, Engine, Globals, Ruleset, RulesetDelta, SetChange, Source};
use tortie_engine::routing::{ChangeId, EndpointRoutings, LiveMigrations};
use tortie_kernel::{EndpointCondition, Mode, PolicyChange};

/// Maximum number of unacknowledged changes that get a flight recorder entry of their own.
const IN_FLIGHT_MAX: usize = 1_024;

/// A change that the kernel has not acknowledged.
#[derive(Debug)]
struct InFlight {
    serial: u64,
    change: ChangeId,
    subject: String,
    /// Kind of the change, for metrics.
    trigger: &'static str,
    /// Receive time of the store event.
    received: Instant,
}

/// An unacknowledged change in a checkpoint, without the fields that only metrics read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct InFlightCheckpoint {
    serial: u64,
    change: ChangeId,
    subject: String,
    received: Duration,
}

/// Checkpoint of [`Enforcement`]; rules and endpoints follow from the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::agent) struct EnforcementCheckpoint {
    serial: u64,
    acknowledged: u64,
    in_flight: Vec<InFlightCheckpoint>,
    failed: BTreeMap<EndpointKey, String>,
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    micros: u64,
    problem: Option<String>,
}

/// The enforced policy and the kernel's acknowledgements.
#[derive(Debug)]
pub(in crate::agent) struct Enforcement {
    mode: Mode,
    policy: Option<Policy>,
    /// Routing of endpoints in the last change that contained one.
    routings: Arc<EndpointRoutings>,
    serial: u64,
    acknowledged: u64,
    /// Unacknowledged changes, oldest first.
    in_flight: VecDeque<InFlight>,
    failed: BTreeMap<EndpointKey, String>,
    /// State of the endpoints' interfaces, routes and neighbours, reported by the kernel thread.
    conditions: BTreeMap<EndpointKey, EndpointCondition>,
    /// Time that the kernel took for the last change, in microseconds.
    micros: u64,
    /// Reason why packet rules are not enforced.
    pub(in crate::agent) rules_problem: Option<String>,
}

/// The policy engine with its complete ruleset.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Policy {
    pub(in crate::agent) engine: Engine,
    /// Shared with readers; a change copies it while a reader holds it.
    pub(in crate::agent) ruleset: Arc<Ruleset>,
    pub(in crate::agent) globals: Arc<Globals>,
}

impl Policy {
    /// Compiles the complete policy of a model.
    pub(in crate::agent) fn of(model: &Model) -> Self {
        let (engine, delta) = Engine::new(model);
        let mut ruleset = Ruleset::default();
        delta.apply(&mut ruleset);
        Self { engine, ruleset: Arc::new(ruleset), globals: Arc::new(Globals::of(model)) }
    }
}

impl Enforcement {
    pub(in crate::agent) fn new(mode: Mode) -> Self {
        Self {
            mode,
            policy: None,
            routings: Arc::default(),
            serial: 0,
            acknowledged: 0,
            in_flight: VecDeque::new(),
            failed: BTreeMap::new(),
            conditions: BTreeMap::new(),
            micros: 0,
            rules_problem: None,
        }
    }

    /// Saves the state; `after` converts a time to a duration since the start of the agent.
    pub(super) fn checkpoint(&self, after: impl Fn(&Instant) -> Duration) -> EnforcementCheckpoint {
        let in_flight = |one: &InFlight| InFlightCheckpoint {
            serial: one.serial,
            change: one.change,
            subject: one.subject.clone(),
            received: after(&one.received),
        };
        EnforcementCheckpoint {
            serial: self.serial,
            acknowledged: self.acknowledged,
            in_flight: self.in_flight.iter().map(in_flight).collect(),
            failed: self.failed.clone(),
            conditions: self.conditions.clone(),
            micros: self.micros,
            problem: self.rules_problem.clone(),
        }
    }

    /// Restores the state; `at` converts a duration since the start of the agent to a time.
    pub(super) fn restore(
        &mut self,
        from: EnforcementCheckpoint,
        model: &Model,
        migrations: &LiveMigrations,
        at: impl Fn(Duration) -> Instant,
    ) {
        self.routings = Arc::new(migrations.routings());
        self.policy = (self.mode != Mode::Off).then(|| Policy::of(model));
        self.serial = from.serial;
        self.acknowledged = from.acknowledged;
        let in_flight = |one: InFlightCheckpoint| InFlight {
            serial: one.serial,
            change: one.change,
            subject: one.subject,
            trigger: "endpoint",
            received: at(one.received),
        };
        self.in_flight = from.in_flight.into_iter().map(in_flight).collect();
        self.failed = from.failed;
        self.conditions = from.conditions;
        self.micros = from.micros;
        self.rules_problem = from.problem;
    }

    /// Returns the policy mode: rules and endpoints are programmed, observed or off.
    pub(in crate::agent) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the enforced policy; `None` before the store was read, or if policy is off.
    pub(in crate::agent) fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// Returns the serial number of the last change sent to the kernel thread.
    pub(in crate::agent) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the serial number of the last acknowledged change.
    pub(in crate::agent) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the time that the kernel took for the last change, in microseconds.
    pub(in crate::agent) fn micros(&self) -> u64 {
        self.micros
    }

    /// Returns the endpoints that could not be applied, with the reason.
    pub(in crate::agent) fn failed(&self) -> &BTreeMap<EndpointKey, String> {
        &self.failed
    }

    /// Returns the state of the endpoints' interfaces, routes and neighbours, reported by the kernel thread.
    pub(in crate::agent) fn conditions(&self) -> &BTreeMap<EndpointKey, EndpointCondition> {
        &self.conditions
    }

    /// Returns the reason why an endpoint could not be applied.
    pub(in crate::agent) fn failure(&self, endpoint: &EndpointKey) -> Option<&str> {
        self.failed.get(endpoint).map(String::as_str)
    }

    /// Returns an endpoint that could not be applied and whose chains include these rules.
    pub(in crate::agent) fn failure_of(&self, source: &Source) -> Option<(&EndpointKey, &str)> {
        let ruleset = &self.policy.as_ref()?.ruleset;
        self.failed.iter().find_map(|(key, why)| {
            let acts = ruleset.endpoints.get(key)?.chains().any(|id| id.source == *source);
            acts.then_some((key, why.as_str()))
        })
    }

    /// Compiles a change of the model: returns the ruleset's delta, which the caller must still apply to the
    /// copy of the ruleset, and the new globals if they changed.
    fn update(
        &mut self,
        model: &Model,
        changes: &ModelChanges,
    ) -> Option<(RulesetDelta, Option<Arc<Globals>>)> {
        let Some(policy) = &mut self.policy else {
            let (engine, delta) = Engine::new(model);
            let globals = Arc::new(Globals::of(model));
            let ruleset = Arc::new(Ruleset::default());
            self.policy = Some(Policy { engine, ruleset, globals: Arc::clone(&globals) });
            return Some((delta, Some(globals)));
        };
        let delta = policy.engine.update(model, &changes.keys);
        let is_other_model = policy.globals.dialect != model.dialect();
        let globals = (is_other_model || Globals::may_differ(changes))
            .then(|| Globals::of(model))
            .filter(|globals| *globals != *policy.globals)
            .map(Arc::new);
        if let Some(globals) = &globals {
            policy.globals = Arc::clone(globals);
        }
        (!delta.is_empty() || globals.is_some()).then_some((delta, globals))
    }
}

impl Core {
    /// Updates policy after a change of the model; `routed` is the id that routing assigned to the change.
    pub(in crate::agent) fn update_policy(
        &mut self,
        changes: &ModelChanges,
        routed: Option<ChangeId>,
        revision: u64,
    ) {
        if self.enforcement.mode == Mode::Off {
            return;
        }
        let first = self.enforcement.policy.is_none();
        let routings = self.migrations.routings();
        let routings = (routings != *self.enforcement.routings).then(|| Arc::new(routings));
        let update = self.enforcement.update(&self.model, changes);
        let (delta, globals) = match update {
            Some(update) => update,
            None if routings.is_some() => Default::default(),
            None => return,
        };
        if let Some(routings) = &routings {
            self.enforcement.routings = Arc::clone(routings);
        }
        let change = routed.unwrap_or_else(|| self.begin_change(changes, revision));
        self.record_policy(&delta, globals.is_some() && !first, change, revision);
        let enforcement = &mut self.enforcement;
        if let Some(policy) = &mut enforcement.policy {
            delta.apply(Arc::make_mut(&mut policy.ruleset));
        }
        enforcement.serial += 1;
        if enforcement.in_flight.len() == IN_FLIGHT_MAX {
            enforcement.in_flight.pop_front();
        }
        let (trigger, subject) = (counters::trigger(&delta), subject(&delta));
        let received = self.pending_since.unwrap_or(self.now.mono);
        let serial = enforcement.serial;
        enforcement.in_flight.push_back(InFlight { serial, change, subject, trigger, received });
        self.effects.push(Effect::Enforce(Arc::new(PolicyChange {
            serial,
            change,
            delta,
            globals,
            routings,
        })));
    }

    /// Processes the kernel thread's acknowledgement.
    pub(in crate::agent) fn on_enforced(
        &mut self,
        serial: u64,
        change: ChangeId,
        failed: BTreeMap<EndpointKey, String>,
        micros: u64,
    ) {
        let enforcement = &mut self.enforcement;
        enforcement.acknowledged = enforcement.acknowledged.max(serial);
        if self.routes_sent.is_some_and(|sent| sent <= serial) {
            self.routes_sent = None;
            self.send_speaker_intent(change);
        }
        let enforcement = &mut self.enforcement;
        let done = enforcement.in_flight.partition_point(|sent| sent.serial <= serial);
        let done: Vec<_> = enforcement.in_flight.drain(..done).collect();
        if micros > 0 {
            enforcement.micros = micros;
        }
        let before = std::mem::replace(&mut enforcement.failed, failed);
        let time = self.now.text();
        let wrong = self.enforcement.failed.len();
        let (mark, text) = match (&self.enforcement.rules_problem, wrong) {
            (None, 0) => {
                ('+', format!("rules and endpoints are in the kernel, acknowledged after {micros} us"))
            }
            (None, _) => (
                '+',
                format!(
                    "in the kernel after {micros} us, except {} not in the desired state",
                    counted(wrong, "endpoint")
                ),
            ),
            (Some(why), _) => ('!', format!("its rules are not in the kernel: {why}")),
        };
        for InFlight { change, subject, trigger, received, .. } in done {
            self.counters
                .policy
                .entry(trigger)
                .or_default()
                .time(self.now.mono.saturating_duration_since(received));
            let text = text.clone();
            let revision = self.revisions.of(change);
            let entry = Entry { change, plane: Plane::Kernel, mark, subject, text, revision };
            self.recorder.record(time.clone(), entry);
        }
        let now = &self.enforcement.failed;
        let news: Vec<(char, EndpointKey, String)> = now
            .iter()
            .filter(|(key, why)| before.get(*key) != Some(*why))
            .map(|(key, why)| ('!', key.clone(), format!("not enforced: {why}")))
            .chain(
                before
                    .keys()
                    .filter(|key| !now.contains_key(*key))
                    .map(|key| ('~', key.clone(), "no longer fails".to_owned())),
            )
            .collect();
        if news.len() > SINGLE_ENTRIES_MAX {
            let text =
                format!("{} not in the desired state", counted(self.enforcement.failed.len(), "endpoint"));
            self.log_and_record(change, Plane::Kernel, '!', "endpoints", &text);
            return;
        }
        for (mark, key, text) in news {
            self.log_and_record(change, Plane::Kernel, mark, &Key::Endpoint(key).to_string(), &text);
        }
    }

    /// Stores and records changed states of endpoints: interfaces, routes and neighbours.
    pub(in crate::agent) fn record_conditions(
        &mut self,
        changed: BTreeMap<EndpointKey, Option<EndpointCondition>>,
    ) {
        let bulk = changed.len() > SINGLE_ENTRIES_MAX;
        for (key, condition) in changed {
            let Some(condition) = condition else {
                self.enforcement.conditions.remove(&key);
                continue;
            };
            if !bulk {
                let (mark, text) = match &condition {
                    EndpointCondition::Up => ('+', "up".to_owned()),
                    EndpointCondition::Down(why) => ('~', format!("down: {why}")),
                    EndpointCondition::Failed(why) => ('!', format!("failed: {why}")),
                };
                self.log_and_record(
                    ChangeId::default(),
                    Plane::Kernel,
                    mark,
                    &Key::Endpoint(key.clone()).to_string(),
                    &text,
                );
            }
            self.enforcement.conditions.insert(key, condition);
        }
    }

    /// Records a ruleset delta; must be called before the delta is applied to the core's copy.
    fn record_policy(&mut self, delta: &RulesetDelta, frame: bool, change: ChangeId, revision: u64) {
        let mut entries: Vec<(char, String, String)> = Vec::new();
        let ruleset = self.enforcement.policy().map(|policy| &policy.ruleset);
        let kinds = [
            (delta.sets.len(), "address set"),
            (delta.chains.len(), "chain"),
            (delta.endpoints.len(), "endpoint"),
        ];
        let [sets, chains, endpoints] = kinds.map(|(count, what)| {
            if count > SINGLE_ENTRIES_MAX {
                entries.push(('~', counted(count, what), "changed".to_owned()));
            }
            count <= SINGLE_ENTRIES_MAX
        });
        if sets {
            entries.extend(delta.sets.iter().map(|(id, change)| {
                let (mark, text) = match change {
                    SetChange::New(members) => {
                        ('+', format!("new address set, {}", counted(members.len(), "member")))
                    }
                    SetChange::Members { add, remove } => {
                        ('~', format!("address set, members +{} -{}", add.len(), remove.len()))
                    }
                    SetChange::Gone => ('-', "address set is no longer used".to_owned()),
                };
                (mark, id.selector().to_owned(), text)
            }));
        }
        if chains {
            entries.extend(delta.chains.iter().map(|(id, chain)| match chain {
                Some(chain) => ('+', id.to_string(), rules(chain)),
                None => ('-', id.to_string(), "no longer applies to an endpoint of this host".to_owned()),
            }));
        }
        if endpoints {
            entries.extend(delta.endpoints.iter().map(|(key, now)| {
                let existed = ruleset.is_some_and(|ruleset| ruleset.endpoints.contains_key(key));
                let (mark, text) = match now {
                    Some(now) => (
                        if existed { '~' } else { '+' },
                        format!("passes {}", counted(now.chains().count(), "chain")),
                    ),
                    None => ('-', "gone".to_owned()),
                };
                (mark, Key::Endpoint(key.clone()).to_string(), text)
            }));
        }
        if frame {
            let text = "settings, pools or hosts that rules depend on changed";
            entries.push(('~', "frame of the rules".to_owned(), text.to_owned()));
        }
        let time = self.now.text();
        for (mark, subject, text) in entries {
            self.effects.push(Effect::Log(LogLine {
                change: Some(change),
                revision: Some(revision),
                ..LogLine::new(Severity::Debug, Subsystem::Agent, format!("{mark} {subject}: {text}"))
            }));
            let entry = Entry { change, plane: Plane::Policy, mark, subject, text, revision };
            self.recorder.record(time.clone(), entry);
        }
    }
}

/// Returns the subject of a change: its only endpoint, chain or set, else the counts.
fn subject(delta: &RulesetDelta) -> String {
    if let (1, Some((key, _))) = (delta.endpoints.len(), delta.endpoints.first_key_value()) {
        return Key::Endpoint(key.clone()).to_string();
    }
    if let (0, 1, Some((id, _))) = (delta.endpoints.len(), delta.chains.len(), delta.chains.first_key_value())
    {
        return id.to_string();
    }
    if let (0, 0, 1, Some((id, _))) =
        (delta.endpoints.len(), delta.chains.len(), delta.sets.len(), delta.sets.first_key_value())
    {
        return id.selector().to_owned();
    }
    if delta.is_empty() {
        return "frame of the rules".to_owned();
    }
    format!(
        "{}, {}, {}",
        counted(delta.endpoints.len(), "endpoint"),
        counted(delta.chains.len(), "chain"),
        counted(delta.sets.len(), "address set")
    )
}

fn rules(chain: &Chain) -> String {
    match chain.fail_closed {
        Some(closed) => closed.to_string(),
        None => counted(chain.rules.len(), "rule"),
    }
}
