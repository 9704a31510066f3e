//! Evaluates filters of Calico 3 (`BGPFilter`) over one route: the first rule of the route's family and
//! direction that matches decides, and without one the next filter is evaluated. Only rules that accept change
//! a route, so no later rule sees a changed one.
//!
//! A filter that does not exist is skipped, as Calico does; notes report it. One whose value could never be
//! parsed rejects. A route whose interface is not known exactly is treated so that no rule lets more pass than
//! it was written for: a rule that accepts matches it only if its pattern matches every name, and a rule that
//! rejects matches unless the pattern cannot match.

use std::sync::Arc;

use tortie_config::key::IpFamily;
use tortie_config::resource::{
    BgpFilter, BgpFilterAction, BgpFilterOperation, BgpFilterRule, BgpPeerType, Community, InterfacePattern,
    RouteSource,
};
use tortie_net::Cidr;

use super::{
    Decider, Direction, FilterChanges, FilterDecision, FilterRoute, FilterVerdict, Filters, RuleRef, State,
    reject,
};
use crate::routing::calico3::metric_of;

/// Session that a route is received on or announced to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// True if the peer is in another AS.
    pub ebgp: bool,
    /// LOCAL_PREF of the route in decisions.
    pub local_pref: u32,
}

/// Interface of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface<'a> {
    /// The route has none, such as a blackhole.
    None,
    /// Name of the interface.
    Name(&'a str),
    /// An interface of a workload.
    Workload,
    /// A link to a next hop, which is no tunnel and no interface of a workload.
    Link,
}

impl Filters {
    /// Collects filters of Calico 3 by name.
    #[must_use]
    pub fn from_calico3(values: impl IntoIterator<Item = (String, BgpFilter)>) -> Self {
        let state = |filter| State::Calico3(Arc::new(filter));
        Self(values.into_iter().map(|(name, filter)| (name, state(filter))).collect())
    }

    /// Evaluates the named filters of Calico 3 on a route, in this order.
    #[must_use]
    pub fn ask_calico3(
        &self,
        names: &[String],
        direction: Direction,
        session: Session,
        route: &FilterRoute<'_>,
    ) -> FilterDecision {
        for (filter, name) in names.iter().enumerate() {
            let rules = match self.0.get(name) {
                Some(State::Calico3(found)) => match direction {
                    Direction::Import => &found.import,
                    Direction::Export => &found.export,
                },
                Some(State::Unreadable | State::Ready(_)) => return reject(Decider::Unreadable(filter)),
                None => continue,
            };
            let Some(rule) = rules.iter().position(|rule| matches(rule, session, route)) else { continue };
            let at = RuleRef { filter, rule };
            let Some(found) = rules.get(rule) else { continue };
            let decider = Decider::Rule(at);
            if found.action == BgpFilterAction::Reject {
                return reject(decider);
            }
            let mut changes = FilterChanges::new();
            if !found.operations.is_empty() {
                changes.push(at);
            }
            return FilterDecision { verdict: FilterVerdict::Accept, decider, changes };
        }
        FilterDecision {
            verdict: FilterVerdict::Continue,
            decider: Decider::End,
            changes: FilterChanges::new(),
        }
    }

    /// Returns the operations of a rule of Calico 3.
    #[must_use]
    pub fn operations(&self, names: &[String], direction: Direction, at: RuleRef) -> &[BgpFilterOperation] {
        let name = names.get(at.filter).map_or("", String::as_str);
        self.calico3_rule(name, direction, at).map_or(&[], |rule| &rule.operations)
    }

    /// Returns all valid filters of Calico 3, with their rules of one direction.
    pub fn calico3_rules(&self, direction: Direction) -> impl Iterator<Item = (&str, &[BgpFilterRule])> {
        self.0.iter().filter_map(move |(name, state)| match (state, direction) {
            (State::Calico3(filter), Direction::Import) => Some((name.as_str(), filter.import.as_slice())),
            (State::Calico3(filter), Direction::Export) => Some((name.as_str(), filter.export.as_slice())),
            _ => None,
        })
    }

    /// Returns true if a filter of Calico 3 may accept the export of an own route to this prefix.
    pub(in crate::routing) fn may_export(&self, prefix: &Cidr) -> bool {
        let mut rules = self.calico3_rules(Direction::Export).flat_map(|(_, rules)| rules);
        rules.any(|rule| {
            rule.action == BgpFilterAction::Accept
                && !rule.learned
                && rule.as_path_prefix.is_empty()
                && IpFamily::of_cidr(prefix) == rule.family
                && rule.prefix.as_ref().is_none_or(|condition| condition.matches(prefix))
        })
    }

    /// Returns a rule of Calico 3.
    pub(super) fn calico3_rule(
        &self,
        name: &str,
        direction: Direction,
        at: RuleRef,
    ) -> Option<&BgpFilterRule> {
        match (self.0.get(name)?, direction) {
            (State::Calico3(filter), Direction::Import) => filter.import.get(at.rule),
            (State::Calico3(filter), Direction::Export) => filter.export.get(at.rule),
            _ => None,
        }
    }
}

fn matches(rule: &BgpFilterRule, session: Session, route: &FilterRoute<'_>) -> bool {
    IpFamily::of_cidr(&route.prefix) == rule.family
        && rule.prefix.as_ref().is_none_or(|condition| condition.matches(&route.prefix))
        && (!rule.learned || route.source != RouteSource::Local)
        && rule.interface.as_ref().is_none_or(|pattern| of_interface(pattern, route.interface, rule.action))
        && rule.peer_type.is_none_or(|kind| (kind == BgpPeerType::Ebgp) == session.ebgp)
        && rule.community.is_none_or(|community| match community {
            Community::Standard(value) => route.communities.contains(&value),
            Community::Large(value) => route.large.contains(&value),
        })
        && rule.as_path_prefix.len() <= route.path.len()
        && rule.as_path_prefix.iter().zip(route.path.iter()).all(|(wanted, asn)| wanted.get() == *asn)
        && rule.priority.is_none_or(|priority| metric_of(session.local_pref) == priority)
}

/// Returns true if a rule with this pattern applies to a route on the interface.
fn of_interface(pattern: &InterfacePattern, interface: Interface<'_>, action: BgpFilterAction) -> bool {
    let text = pattern.as_str();
    let always = text.bytes().all(|byte| byte == b'*');
    let of_tunnel = text.ends_with(".cali") || text.ends_with(".calico") || text.starts_with("tunl");
    match interface {
        // BIRD compares with the empty name.
        Interface::None => always,
        Interface::Name(name) => pattern.matches(name),
        Interface::Workload | Interface::Link if action == BgpFilterAction::Accept => always,
        Interface::Workload => !of_tunnel,
        Interface::Link => !of_tunnel && !text.starts_with("cali") && !text.starts_with("tap"),
    }
}
