//! Suggests small changes of labels and rules that would let a packet pass which policy denies.
//!
//! Each suggestion is verified: the same evaluator computes the packet's path again with the changed rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, Icmp};
use tortie_net::Cidr;

use super::eval::Node;
use super::types::{Flow, Path, Reason, Stage};
use crate::policy::types::{ChainId, End, EndpointPolicy, NamedPort, Rule, Ruleset, SetId, Stages, Tier};
use crate::policy::verdict::{Decider, Packet, Verdict};

/// Maximum number of suggestions returned.
const SUGGESTIONS_MAX: usize = 3;
/// Maximum number of candidates verified, because each costs one path evaluation.
const CANDIDATES_MAX: usize = 24;

/// Source or destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The source of the packet.
    Source,
    /// The destination of the packet.
    Destination,
}

/// Change of a rule, chain or label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// Make the rule's selector or tag match the endpoint on this side.
    Select(Side, SetId),
    /// Stop a negated selector or tag of the rule from matching the endpoint on this side.
    Deselect(Side, SetId),
    /// Extend this field of the rule, named as in the data model, to include the packet.
    Widen(&'static str),
    /// Remove the rule, which denies.
    Remove,
    /// Write the profile, which is missing or cannot be parsed.
    Write,
    /// Add a rule that allows the packet, because no rule of the chain does.
    Add,
}

/// A change that would let the packet pass this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Policy or profile, and the direction of its rules.
    pub chain: ChainId,
    /// Index of the rule, from 0; `None` for the whole chain or a new rule.
    pub rule: Option<usize>,
    /// Change to make.
    pub fix: Fix,
}

/// Returns at most three changes that would let a denied packet pass, nearest first: rules that fail in a
/// single match, then the denying rule, then an additional rule. Empty if the packet passes, or if it was not
/// dropped by a rule.
#[must_use]
pub fn closest(node: &Node<'_>, flow: &Flow, path: &Path) -> Vec<Change> {
    if path.verdict == Verdict::Allow {
        return Vec::new();
    }
    let Some(step) = path.decisive() else { return Vec::new() };
    let Reason::Policy(decision) = &step.reason else { return Vec::new() };
    let Some(policy) = step.endpoint.as_ref().and_then(|key| node.ruleset.endpoints.get(key)) else {
        return Vec::new();
    };
    // The packet was denied at this step, so `path.packet` is the packet that the rules saw.
    let packet = &path.packet;
    let asked = asked(step.stage, policy, &decision.by);
    let mut found: Vec<Change> = Vec::new();
    for chain in &asked {
        let Some(rules) = node.ruleset.chains.get(*chain) else { continue };
        let before = match &decision.by {
            Decider::Rule(id, at) if id == *chain => *at,
            _ => rules.rules.len(),
        };
        for (at, rule) in rules.rules.iter().enumerate().take(before) {
            if matches!(rule.action, Action::Allow | Action::NextTier)
                && let [fix] = missing_matches(node.ruleset, rule, packet).as_slice()
            {
                found.push(Change { chain: (*chain).clone(), rule: Some(at), fix: fix.clone() });
            }
        }
    }
    // Chains evaluated last are the nearest to the decision.
    found.reverse();
    found.truncate(CANDIDATES_MAX);
    found.extend(last(node.ruleset, &decision.by, &asked));
    let prune = prune(node.ruleset, flow, path);
    found.retain(|change| passes(node, &prune, flow, change));
    found.truncate(SUGGESTIONS_MAX);
    found
}

/// Returns the chains that were evaluated, in order, up to the deciding one.
fn asked<'a>(stage: Stage, policy: &'a EndpointPolicy, by: &Decider) -> Vec<&'a ChainId> {
    let in_tiers = |tiers: &'a [Tier]| match by {
        Decider::EndOfTier(name) => {
            let end = tiers.iter().position(|tier| *tier.name == **name).map_or(0, |at| at + 1);
            tiers.iter().take(end).flat_map(|tier| &tier.policies).collect()
        }
        _ => until(tiers.iter().flat_map(|tier| &tier.policies), by),
    };
    let stages: &Stages = match (stage, policy) {
        (Stage::ForwardInbound, EndpointPolicy::Host(host)) => return in_tiers(&host.forward_inbound),
        (Stage::ForwardOutbound, EndpointPolicy::Host(host)) => return in_tiers(&host.forward_outbound),
        (Stage::FromWorkload, EndpointPolicy::Workload(workload)) => &workload.outbound,
        (Stage::ToWorkload, EndpointPolicy::Workload(workload)) => &workload.inbound,
        (Stage::HostInbound, EndpointPolicy::Host(host)) => &host.inbound,
        (Stage::HostOutbound, EndpointPolicy::Host(host)) => &host.outbound,
        (Stage::PreDnat, EndpointPolicy::Host(host)) => return until(host.pre_dnat.iter(), by),
        (Stage::Untracked, EndpointPolicy::Host(host)) => {
            return until(host.untracked_inbound.iter().chain(&host.untracked_outbound), by);
        }
        _ => return Vec::new(),
    };
    match by {
        Decider::EndOfTier(_) => in_tiers(&stages.tiers),
        _ => until(stages.chains(), by),
    }
}

fn until<'a>(chains: impl Iterator<Item = &'a ChainId>, by: &Decider) -> Vec<&'a ChainId> {
    let mut out = Vec::new();
    for chain in chains {
        out.push(chain);
        if matches!(by, Decider::Rule(id, _) if id == chain) {
            break;
        }
    }
    out
}

/// Returns the change for the deciding rule or chain itself.
fn last(ruleset: &Ruleset, by: &Decider, asked: &[&ChainId]) -> Option<Change> {
    match by {
        Decider::Rule(chain, at) => {
            let fail_closed = ruleset.chains.get(chain).is_some_and(|chain| chain.fail_closed.is_some());
            let (rule, fix) = if fail_closed { (None, Fix::Write) } else { (Some(*at), Fix::Remove) };
            Some(Change { chain: chain.clone(), rule, fix })
        }
        Decider::EndOfTier(_) | Decider::EndOfProfiles => {
            Some(Change { chain: (*asked.last()?).clone(), rule: None, fix: Fix::Add })
        }
        Decider::Nobody => None,
    }
}

/// Returns a fix for each match of a rule that fails for the packet. A rule for the other address family gets
/// none or two, so that it is never suggested.
fn missing_matches(ruleset: &Ruleset, rule: &Rule, packet: &Packet) -> Vec<Fix> {
    if !rule.is_for(IpFamily::of(packet.src)) {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut needs = |holds: bool, field: &'static str| {
        if !holds {
            out.push(Fix::Widen(field));
        }
    };
    needs(rule.protocol.is_none_or(|protocol| protocol.number() == packet.protocol), "protocol");
    needs(rule.not_protocol.is_none_or(|protocol| protocol.number() != packet.protocol), "!protocol");
    let is = |icmp: Icmp| {
        packet.icmp.is_some_and(|(kind, code)| {
            kind == icmp.icmp_type() && icmp.code().is_none_or(|wanted| wanted == code)
        })
    };
    needs(rule.icmp.is_none_or(is), "icmp_type");
    needs(!rule.not_icmp.is_some_and(is), "!icmp_type");
    let ports = packet.ports.map_or([None, None], |(src, dst)| [Some(src), Some(dst)]);
    let [src, dst] = ports;
    let names = ["src_net", "!src_net", "src_ports", "!src_ports"];
    end(ruleset, Side::Source, &rule.src, (packet, packet.src, src), names, &mut out);
    let names = ["dst_net", "!dst_net", "dst_ports", "!dst_ports"];
    end(ruleset, Side::Destination, &rule.dst, (packet, packet.dst, dst), names, &mut out);
    out
}

fn end(
    ruleset: &Ruleset,
    which: Side,
    end: &End,
    (packet, addr, port): (&Packet, std::net::IpAddr, Option<u16>),
    [nets, not_nets, ports, not_ports]: [&'static str; 4],
    out: &mut Vec<Fix>,
) {
    let absent = end.sets.iter().filter(|set| !ruleset.is_member(set, addr));
    out.extend(absent.map(|set| Fix::Select(which, set.clone())));
    let present = end.not_sets.iter().filter(|set| ruleset.is_member(set, addr));
    out.extend(present.map(|set| Fix::Deselect(which, set.clone())));
    let inside = |nets: &[Cidr]| nets.iter().any(|net| net.contains(addr));
    for (holds, field) in [
        (end.nets.is_empty() || inside(&end.nets), nets),
        (!inside(&end.not_nets), not_nets),
        (ruleset.is_wanted_port(end, addr, packet, port), ports),
        (!ruleset.is_excluded_port(end, addr, packet, port), not_ports),
    ] {
        if !holds {
            out.push(Fix::Widen(field));
        }
    }
}

/// Returns the ruleset with its sets reduced to the addresses of the packet, which is sufficient to evaluate
/// the path again.
fn prune(ruleset: &Ruleset, flow: &Flow, path: &Path) -> Ruleset {
    let addrs = [flow.packet.src, flow.packet.dst, path.packet.src, path.packet.dst];
    let of = |set: &SetId| {
        let mut members = BTreeSet::new();
        members
            .extend(addrs.iter().filter(|addr| ruleset.is_member(set, **addr)).map(|addr| Cidr::host(*addr)));
        members
    };
    let named = |members: &BTreeSet<NamedPort>| {
        members.iter().filter(|member| addrs.contains(&member.addr)).copied().collect()
    };
    Ruleset {
        sets: ruleset.sets.keys().map(|set| (set.clone(), of(set))).collect(),
        port_sets: ruleset.port_sets.iter().map(|(id, members)| (id.clone(), named(members))).collect(),
        chains: ruleset.chains.clone(),
        endpoints: ruleset.endpoints.clone(),
    }
}

/// Returns true if the packet passes with this change.
fn passes(node: &Node<'_>, prune: &Ruleset, flow: &Flow, change: &Change) -> bool {
    let Some(chain) = prune.chains.get(&change.chain) else { return false };
    let mut chain = (**chain).clone();
    match (&change.fix, change.rule.and_then(|at| chain.rules.get_mut(at))) {
        (Fix::Remove, Some(_)) => {
            if let Some(at) = change.rule {
                chain.rules.remove(at);
            }
        }
        (Fix::Write | Fix::Add, _) => {
            chain.fail_closed = None;
            chain.rules.retain(|_| change.fix == Fix::Add);
            chain.rules.push(Rule::default());
        }
        (fix, Some(rule)) => apply_change(rule, fix),
        (_, None) => return false,
    }
    let mut ruleset = prune.clone();
    ruleset.chains.insert(change.chain.clone(), Arc::new(chain));
    Node { ruleset: &ruleset, ..*node }.path(flow).verdict == Verdict::Allow
}

/// Removes the failing match, which has the same effect on this packet as a match that succeeds.
fn apply_change(rule: &mut Rule, fix: &Fix) {
    fn of(rule: &mut Rule, which: Side) -> &mut End {
        match which {
            Side::Source => &mut rule.src,
            Side::Destination => &mut rule.dst,
        }
    }
    match fix {
        Fix::Select(which, set) => of(rule, *which).sets.retain(|other| other != set),
        Fix::Deselect(which, set) => of(rule, *which).not_sets.retain(|other| other != set),
        Fix::Widen("protocol") => rule.protocol = None,
        Fix::Widen("!protocol") => rule.not_protocol = None,
        Fix::Widen("icmp_type") => rule.icmp = None,
        Fix::Widen("!icmp_type") => rule.not_icmp = None,
        Fix::Widen(field) => {
            let which = if field.contains("src") { Side::Source } else { Side::Destination };
            let end = of(rule, which);
            match (field.starts_with('!'), field.ends_with("net")) {
                (false, true) => end.nets.clear(),
                (true, true) => end.not_nets.clear(),
                (false, false) => (end.ports, end.named_ports) = (Vec::new(), None),
                (true, false) => (end.not_ports, end.not_named_ports) = (Vec::new(), None),
            }
        }
        Fix::Remove | Fix::Write | Fix::Add => {}
    }
}
