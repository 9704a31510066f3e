//! Dry run of a write: computes its effect on a copy of the model and the policy engine, with the code that
//! the core runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_config::Dialect;
use tortie_config::calico3::{ObjectKey, StagedEffect, staged_effect};
use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::Protocol;
use tortie_net::Cidr;

use super::trace;
use crate::agent::core::enforcement::Policy as Enforced;
use crate::api::codes::INVALID_VALUE;
use crate::api::policy::{
    BgpDryRun, ChainChange, Connections, DryRun, DryRunRequest, MemberChange, PeerDryRun, RouteDifference,
};
use crate::api::status::ApiError;
use crate::speaker::{BgpChanges, PeerRoutes, Rehearsal, RouteChanges};
use tortie_engine::model::Model;
use tortie_engine::policy::path::{Flow, Node, OUTSIDE, Path, Place, Routes, State};
use tortie_engine::policy::{
    Chain, ChainId, EndpointPolicy, Globals, HostInterfaces, Packet, Ruleset, RulesetDelta, SetChange, SetId,
    Verdict, host_interfaces,
};
use tortie_engine::routing::{IntentChange, NodeOptions, Planner, RoutingIntent};
use tortie_kernel::Connection;
use tortie_store::{Change, Delta, KeyValue};

/// Maximum number of set members that are listed; of larger changes only the count is shown.
const MEMBERS_MAX: usize = 20;

/// Rules before and after the write, and the answer without connections.
#[derive(Debug)]
pub(in crate::agent) struct DryRunOutcome {
    model: Model,
    /// Routing intents before and after the write, if they differ for BGP.
    routing: Option<(RoutingIntent, RoutingIntent)>,
    pub(in crate::agent) before: Enforced,
    pub(in crate::agent) after: Enforced,
    pub(in crate::agent) answer: DryRun,
}

impl DryRunOutcome {
    /// True if the write may affect BGP sessions or routes.
    pub(in crate::agent) fn concerns_bgp(&self) -> bool {
        self.routing.is_some()
    }

    /// Returns the current routing intent, if the write may change it.
    pub(in crate::agent) fn routing_before(&self) -> Option<&RoutingIntent> {
        self.routing.as_ref().map(|(before, _)| before)
    }
}

/// Computes the effect of a write, or of the deletion of a key.
///
/// # Errors
/// Returns an error for a key outside of the data model, and for a value that could not be used.
pub(in crate::agent) fn run(
    mut model: Model,
    before: Enforced,
    options: NodeOptions,
    request: &DryRunRequest,
) -> Result<DryRunOutcome, ApiError> {
    let Tried { key, value, stored_revision, preview_of } = Tried::of(&model, request)?;
    let revision = model.revision() + 1;
    let writes = value.is_some();
    let change = match value {
        Some(value) => Change::Put(KeyValue {
            key: key.clone(),
            value,
            mod_revision: revision,
            create_revision: if stored_revision.is_some() { revision - 1 } else { revision },
        }),
        None => Change::Delete { key: key.clone() },
    };
    let mut planner = Planner::new(&model, options);
    let routing = planner.intent().clone();
    let changes = model.apply(&Delta { revision, changes: vec![change] });
    if let Some(error) = error_of(&model, &key).filter(|_| writes) {
        return Err(invalid(format!("{}: {error}", request.key)));
    }
    let mut after = before.clone();
    let delta = after.engine.update(&model, &changes.keys);
    delta.apply(Arc::make_mut(&mut after.ruleset));
    if Globals::may_differ(&changes) {
        after.globals = Globals::of(&model).into();
    }
    let changed = planner.update(&model, &changes);
    let answer =
        DryRun {
            key: request.key.clone(),
            revision: stored_revision,
            preview_of,
            delete: !writes,
            endpoints: affected_endpoints(&model, &before.ruleset, &after.ruleset, &delta),
            chains: delta
                .chains
                .keys()
                .filter_map(|id| chain_change(&before.ruleset, &after.ruleset, id))
                .collect(),
            orders: orders(&model, &before.ruleset, &after.ruleset, &delta),
            sets: delta
                .sets
                .iter()
                .map(|(id, change)| members(&before.ruleset, id.selector(), change, id))
                .collect(),
            frame: after.globals != before.globals,
            connections: None,
            bgp: None,
            not_looked_at: std::iter::once("other hosts: each host checks its own endpoints only".to_owned())
                .chain((changed.tunnel || changed.vxlan || changed.store_routes || changed.blackholes).then(|| {
                    "routes of the kernel: tunnels, blackholes of own blocks or routes of the store would change".to_owned()
                }))
                .collect(),
        };
    let routing = concerns_bgp(&changed).then(|| (routing, planner.intent().clone()));
    Ok(DryRunOutcome { model, routing, before, after, answer })
}

fn invalid(text: String) -> ApiError {
    ApiError { code: "invalid".to_owned(), text }
}

/// The write that is tried.
struct Tried {
    key: String,
    /// New value; `None` deletes the key.
    value: Option<Vec<u8>>,
    /// Revision of the stored value of the requested key.
    stored_revision: Option<u64>,
    /// Policy that a staged one is tried as.
    preview_of: Option<String>,
}

impl Tried {
    /// Returns the requested write; of a staged policy, which is never enforced, that of the policy that it
    /// stands for.
    fn of(model: &Model, request: &DryRunRequest) -> Result<Self, ApiError> {
        let key: Key =
            request.key.parse().map_err(|error: tortie_config::key::KeyError| invalid(error.to_string()))?;
        let value = request.value.as_ref().map(|value| value.as_bytes().to_vec());
        let mut tried = Self { key: request.key.clone(), value, stored_revision: None, preview_of: None };
        let Some(object) = ObjectKey::parse(&request.key).filter(|_| model.dialect() == Dialect::V3) else {
            tried.stored_revision = model.revision_of(&key);
            return Ok(tried);
        };
        tried.stored_revision = model.revision_of_object(&object);
        let effect = tried.value.as_ref().and_then(|value| staged_effect(&object, value));
        let effect = effect.transpose().map_err(|error| invalid(format!("{}: {error}", request.key)))?;
        let enforced = match effect {
            None => return Ok(tried),
            Some(StagedEffect::Set { key, value }) => {
                tried.value = Some(value);
                key
            }
            Some(StagedEffect::Delete { key }) => {
                tried.value = None;
                key
            }
            // Such a policy would not be enforced, so that it changes nothing as it is.
            Some(StagedEffect::None(_)) => return Ok(tried),
        };
        let enforced = other_name(model, enforced);
        tried.key = enforced.to_string();
        tried.preview_of = Some(enforced.title());
        Ok(tried)
    }
}

/// Returns the key of a policy under which it is stored: releases before 3.32 wrote `default.` before the name.
fn other_name(model: &Model, key: ObjectKey) -> ObjectKey {
    const PREFIX: &str = "default.";
    if model.revision_of_object(&key).is_some() {
        return key;
    }
    let name = key.name.strip_prefix(PREFIX).map_or_else(|| format!("{PREFIX}{}", key.name), str::to_owned);
    let other = ObjectKey { name, ..key.clone() };
    if model.revision_of_object(&other).is_some() { other } else { key }
}

/// Returns the reason for which the value of a key cannot be used.
fn error_of(model: &Model, key: &str) -> Option<String> {
    if let Some(object) = ObjectKey::parse(key) {
        let mut problems = model.object_problems().into_iter();
        let found = problems.find(|problem| problem.key == object && problem.code == INVALID_VALUE.name);
        if let Some(problem) = found {
            return Some(problem.text.clone());
        }
    }
    model.invalid_keys().find(|problem| problem.key == key).map(|problem| problem.error.clone())
}

/// Computes the effect on BGP in a copy of the speaker: of the running one, or of one without learned routes.
pub(in crate::agent) fn judge_bgp(rehearsal: Rehearsal, trial: &mut DryRunOutcome) {
    let Some((before, after)) = trial.routing.take() else { return };
    let changes = rehearsal.compare(&before, &after);
    trial.answer.not_looked_at.extend(changes.not_judged.iter().map(|text| format!("BGP: {text}")));
    trial.answer.bgp = Some(bgp_answer(changes));
}

fn bgp_answer(changes: BgpChanges) -> BgpDryRun {
    let difference = |of: RouteChanges| {
        let few = |list: &[Cidr]| list.iter().take(MEMBERS_MAX).map(ToString::to_string).collect();
        RouteDifference {
            gained: of.gained.len(),
            lost: of.lost.len(),
            changed: of.changed.len(),
            gain: few(&of.gained),
            lose: few(&of.lost),
            change: few(&of.changed),
        }
    };
    let peer = |(session, routes): (String, PeerRoutes)| PeerDryRun {
        session,
        announced: difference(routes.announced),
        used: difference(routes.used),
    };
    BgpDryRun {
        come: changes.come.into_iter().collect(),
        end: changes.end.into_iter().collect(),
        reset: changes.reset.into_iter().collect(),
        peers: changes.routes.into_iter().map(peer).collect(),
    }
}

/// True if an intent change affects sessions or their routes.
fn concerns_bgp(change: &IntentChange) -> bool {
    !change.peers.is_empty() || change.node || change.originated || change.view || change.addresses
}

/// Finds the tracked connections that are allowed now and would be denied if they were opened after the
/// write. `interfaces` are this host's interfaces with their addresses; an address behind none of them is
/// assumed behind the interface that has the host's own address.
pub(in crate::agent) fn connections(
    trial: &DryRunOutcome,
    interfaces: &BTreeMap<String, Vec<IpAddr>>,
    tracked: &[Connection],
) -> Connections {
    let states =
        [&trial.before, &trial.after].map(|policy| PolicyState::of(&trial.model, policy, interfaces));
    let mut refused = Vec::new();
    for connection in tracked {
        let Connection { src, dst, protocol, ports, icmp } = *connection;
        let packet = Packet { src, dst, protocol, ports, icmp };
        let [before, after] = states.each_ref().map(|state| state.path(packet));
        if before.verdict == Verdict::Allow && after.verdict == Verdict::Deny {
            let proto = Protocol::new(protocol).map_or_else(|| protocol.to_string(), |p| p.to_string());
            let (from, to) = ports.unzip();
            let [from, to] =
                [from, to].map(|port: Option<u16>| port.map_or_else(String::new, |p| format!(" port {p}")));
            refused.push(format!("{proto} {src}{from} -> {dst}{to}: {}", trace::decided_by(&after)));
        }
    }
    let count = refused.len();
    refused.truncate(MEMBERS_MAX);
    Connections { tracked: tracked.len(), refused: count, first: refused }
}

/// This host with one set of rules.
struct PolicyState<'a> {
    policy: &'a Enforced,
    hosts: HostInterfaces,
    routes: Routes,
}

impl<'a> PolicyState<'a> {
    fn of(model: &Model, policy: &'a Enforced, interfaces: &BTreeMap<String, Vec<IpAddr>>) -> Self {
        let all = interfaces.iter().map(|(name, addrs)| (name.as_str(), addrs.iter().copied()));
        let mut routes = Routes::of_workloads(&policy.ruleset);
        routes.local.extend(interfaces.values().flatten());
        let own: Vec<IpAddr> =
            model.host(model.node()).map(|host| host.addrs().collect()).unwrap_or_default();
        let uplink = interfaces.iter().find(|(_, addrs)| addrs.iter().any(|addr| own.contains(addr)));
        let uplink = uplink.map_or(OUTSIDE, |(name, _)| name);
        for everything in [Cidr::v4(Ipv4Addr::UNSPECIFIED, 0), Cidr::v6(Ipv6Addr::UNSPECIFIED, 0)] {
            routes.via.insert(everything, uplink.into());
        }
        Self { policy, hosts: host_interfaces(&policy.ruleset, &policy.globals, all), routes }
    }

    fn path(&self, packet: Packet) -> Path {
        let from = self.routes.place(packet.src).unwrap_or(Place::Host);
        let node = Node {
            ruleset: &self.policy.ruleset,
            globals: &self.policy.globals,
            hosts: &self.hosts,
            routes: &self.routes,
        };
        node.path(&Flow { packet, from, state: State::New })
    }
}

/// Lists the endpoints whose list of chains changes, or that use a chain with changed rules.
fn affected_endpoints(model: &Model, before: &Ruleset, after: &Ruleset, delta: &RulesetDelta) -> Vec<String> {
    let changed: BTreeSet<&ChainId> = delta.chains.keys().collect();
    let uses = |policy: &EndpointPolicy| policy.chains().any(|id| changed.contains(id));
    let all: BTreeSet<&EndpointKey> = before.endpoints.keys().chain(after.endpoints.keys()).collect();
    let is_affected = |key: &&&EndpointKey| {
        delta.endpoints.contains_key(**key) || after.endpoints.get(**key).is_some_and(|policy| uses(policy))
    };
    all.iter().filter(is_affected).map(|key| model.name_of_endpoint(key)).collect()
}

fn texts(chain: Option<&Arc<Chain>>) -> Vec<String> {
    match chain {
        Some(chain) if chain.fail_closed.is_some() => {
            chain.fail_closed.iter().map(ToString::to_string).collect()
        }
        Some(chain) => chain.rules.iter().map(ToString::to_string).collect(),
        None => Vec::new(),
    }
}

fn chain_change(before: &Ruleset, after: &Ruleset, id: &ChainId) -> Option<ChainChange> {
    let (old, new) = (before.chains.get(id), after.chains.get(id));
    // The same rules with renamed sets.
    if old == new {
        return None;
    }
    let what = match (old, new) {
        (None, _) => "new",
        (_, None) => "gone",
        _ => "changed",
    };
    Some(ChainChange {
        name: id.to_string(),
        what: what.to_owned(),
        lines: difference(&texts(old), &texts(new)),
    })
}

/// Formats the difference of two lists as in a patch: common leading and trailing lines are context.
fn difference(old: &[String], new: &[String]) -> Vec<String> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let gone = old_rest.get(..old_rest.len() - tail).unwrap_or_default();
    let come = new_rest.get(..new_rest.len() - tail).unwrap_or_default();
    let stay = new_rest.get(new_rest.len() - tail..).unwrap_or_default();
    let lines = [(' ', old.get(..head).unwrap_or_default()), ('-', gone), ('+', come), (' ', stay)];
    lines.iter().flat_map(|(mark, lines)| lines.iter().map(move |line| format!("{mark} {line}"))).collect()
}

/// Lists changed lists of chains, with the number of endpoints per change.
fn orders(model: &Model, before: &Ruleset, after: &Ruleset, delta: &RulesetDelta) -> Vec<ChainChange> {
    let list = |policy: Option<&Arc<EndpointPolicy>>| -> Vec<String> {
        policy.map(|policy| policy.chains().map(ToString::to_string).collect()).unwrap_or_default()
    };
    let mut found: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for key in delta.endpoints.keys() {
        let (old, new) = (list(before.endpoints.get(key)), list(after.endpoints.get(key)));
        if old != new {
            found.entry(difference(&old, &new)).or_default().push(model.name_of_endpoint(key));
        }
    }
    let change = |(lines, names): (Vec<String>, Vec<String>)| ChainChange {
        name: names.join(", "),
        what: "changed".to_owned(),
        lines,
    };
    found.into_iter().map(change).collect()
}

fn members(before: &Ruleset, selector: &str, change: &SetChange, id: &SetId) -> MemberChange {
    let (what, add, remove) = match change {
        SetChange::New(members) => ("new", members.iter().collect(), Vec::new()),
        SetChange::Members { add, remove } => ("changed", add.iter().collect(), remove.iter().collect()),
        SetChange::Gone => {
            ("gone", Vec::new(), before.sets.get(id).into_iter().flatten().collect::<Vec<_>>())
        }
    };
    let few = |list: &[&Cidr]| list.iter().take(MEMBERS_MAX).map(ToString::to_string).collect();
    MemberChange {
        selector: selector.to_owned(),
        what: what.to_owned(),
        added: add.len(),
        removed: remove.len(),
        add: few(&add),
        remove: few(&remove),
    }
}

#[cfg(test)]
#[path = "dry_run_tests.rs"]
mod tests;
