//! Renders the rules of a policy or a profile as kernel rules (data model, "Rules").
//!
//! A rule without family-specific matches becomes one kernel rule; any other becomes one per family that it
//! can match ([`policy::Rule::is_for`]). Every list becomes a set, so neither ports nor networks multiply the
//! rules.

use std::collections::BTreeMap;

use tortie_config::Dialect;
use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, PortRange};
use tortie_net::Cidr;

use super::draft::{Draft, Frame, family};
use super::node::{Denied, Node, Usage};
use super::ranges::{merged, merged_ports};
use crate::nft::ir::{Field, Log, Match, Rule, Side, Statement};
use tortie_engine::policy::{self, ChainId, End, FailClosed, PortSetId, Source};

/// Drafts the chain of a policy or profile. An unknown one has no rules and so passes everything on, as in
/// the policy engine.
pub(super) fn draft(id: &ChainId, usage: Usage, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    let Some(chain) = frame.ruleset.chains.get(id) else { return draft };
    for (at, rule) in chain.rules.iter().enumerate() {
        let families: &[Option<bool>] = if of_no_family(rule) {
            &[None]
        } else if frame.globals.ipv6 {
            &[Some(true), Some(false)]
        } else {
            &[Some(true)]
        };
        for (v4, ports) in families
            .iter()
            .flat_map(|v4| port_matches(rule, *v4, frame).into_iter().map(move |ports| (v4, ports)))
        {
            let Some(matches) = matches(rule, *v4, &ports, frame, &mut draft) else { continue };
            let statement = match rule.action {
                Action::Allow => match usage {
                    Usage::Filter => Statement::Accept,
                    Usage::Untracked => Statement::Untrack(frame.early()),
                    Usage::PreDnat => Statement::MarkAndAccept(frame.early()),
                },
                Action::Deny => Statement::Goto(draft.call(Node::Denied(Denied::Rule(id.clone(), at)))),
                Action::NextTier => match (usage, &id.source) {
                    (Usage::Filter, Source::Policy { .. }) => Statement::MarkAndReturn(frame.pass()),
                    (Usage::Filter, Source::Profile(_)) => Statement::Return,
                    _ if frame.globals.dialect == Dialect::V3 => Statement::MarkAndReturn(frame.pass()),
                    // Early policies of a v1 store have no tiers: the packet continues to the later stages.
                    _ => Statement::Accept,
                },
                Action::Log => Statement::Go,
            };
            let log = rule.log.as_ref().map(|prefix| Log {
                prefix: format!("{}: ", prefix.as_str()).into(),
                group: frame.options.log_group,
            });
            let comment = match chain.fail_closed {
                None => format!("{} rule {at}", id.source),
                Some(FailClosed::Missing) => format!("{} is missing: denied", id.source),
                Some(FailClosed::Unreadable) => format!("{} cannot be read: denied", id.source),
            };
            draft.push(Rule {
                matches,
                limit: None,
                counted: true,
                log,
                statement,
                comment: Some(comment.into()),
            });
            draft.origins.push(at);
        }
    }
    draft
}

/// Returns true if one kernel rule can match packets of both families.
fn of_no_family(rule: &policy::Rule) -> bool {
    let endpoint_maps = [&rule.src, &rule.dst];
    rule.family.is_none()
        && !rule.protocol.is_some_and(|protocol| protocol.is_icmp())
        && endpoint_maps.iter().all(|end| {
            end.sets.is_empty()
                && end.not_sets.is_empty()
                && end.nets.is_empty()
                && end.not_nets.is_empty()
                && end.named_ports.is_none()
                && end.not_named_ports.is_none()
        })
}

/// Returns the matches for packets of a family (`None`: of any); `None` if no packet can match.
fn matches(
    rule: &policy::Rule,
    v4: Option<bool>,
    ports: &[Match],
    frame: &Frame<'_>,
    draft: &mut Draft,
) -> Option<Vec<Match>> {
    let mut matches = Vec::new();
    if let Some(v4) = v4 {
        if !rule.is_for(if v4 { IpFamily::V4 } else { IpFamily::V6 }) {
            return None;
        }
        matches.push(family(v4));
    }
    let protocols = [(false, rule.protocol), (true, rule.not_protocol)];
    for (not, protocol) in protocols {
        matches.extend(protocol.map(|protocol| Match::Protocol { not, number: protocol.number() }));
    }
    // `Rule::check` requires a protocol with ports, or ICMP; without one no packet would match.
    let protocol_has =
        |has: fn(&tortie_config::resource::Protocol) -> bool| rule.protocol.as_ref().is_some_and(has);
    let has_numbers = |end: &End| !(end.ports.is_empty() && end.not_ports.is_empty());
    if (has_numbers(&rule.src) || has_numbers(&rule.dst)) && !protocol_has(|protocol| protocol.has_ports()) {
        return None;
    }
    matches.extend_from_slice(ports);
    for (not, icmp) in [(false, rule.icmp), (true, rule.not_icmp)] {
        let Some(icmp) = icmp else { continue };
        if !protocol_has(|protocol| protocol.is_icmp()) {
            return None;
        }
        matches.push(Match::Icmp { not, icmp });
    }
    if let Some(v4) = v4 {
        // No address is in an empty set, so the rule matches nothing, whatever its other sets.
        let mut sets = rule.src.sets.iter().chain(&rule.dst.sets);
        if let Some(nothing) = sets.find(|id| frame.sets.name(id, v4).is_none()) {
            draft.set(frame, nothing, v4);
            return None;
        }
        for (side, end) in [(Side::Src, &rule.src), (Side::Dst, &rule.dst)] {
            addresses(side, end, v4, frame, draft, &mut matches)?;
        }
    }
    Some(matches)
}

/// Appends matches on addresses: networks before sets, whose lookups cost more. `None` if no packet can
/// match.
fn addresses(
    side: Side,
    end: &End,
    v4: bool,
    frame: &Frame<'_>,
    draft: &mut Draft,
    matches: &mut Vec<Match>,
) -> Option<()> {
    for (not, nets) in [(false, &end.nets), (true, &end.not_nets)] {
        let nets: Vec<Cidr> = merged(nets.iter().copied().filter(|net| net.is_v4() == v4));
        match nets.as_slice() {
            [] => {}
            // The whole address space.
            [net] if net.len() == 0 && not => return None,
            [net] if net.len() == 0 => {}
            [net] => matches.push(Match::InNet { side, not, net: *net }),
            _ => matches.push(Match::InNets { side, not, nets }),
        }
    }
    for (not, sets) in [(false, &end.sets), (true, &end.not_sets)] {
        for id in sets {
            // Without a set, a negated match always holds.
            if let Some(set) = draft.set(frame, id, v4) {
                matches.push(Match::InSet { not, key: vec![Field::Addr(side)], set });
            }
        }
    }
    Some(())
}

/// Returns the matches on ports of a rule, for packets of a family: alternatives of which at most one matches
/// a packet. Named ports are written out, one alternative for each number.
fn port_matches(rule: &policy::Rule, v4: Option<bool>, frame: &Frame<'_>) -> Vec<Vec<Match>> {
    let ends = [(Side::Src, &rule.src), (Side::Dst, &rule.dst)];
    let named = |set: &Option<PortSetId>| addresses_by_port(set.as_ref(), v4, frame);
    let mut all = vec![Vec::new()];
    for (side, end) in ends {
        if !end.ports.is_empty() || end.named_ports.is_some() {
            all = product(&all, &wanted(side, &end.ports, &named(&end.named_ports)));
        }
        if !end.not_ports.is_empty() {
            let numbers = Match::Port { side, not: true, ranges: merged_ports(&end.not_ports) };
            all = product(&all, &[vec![numbers]]);
        }
        let excluded = named(&end.not_named_ports);
        if rule.protocol.is_some() && !excluded.is_empty() {
            all = product(&all, &not_excluded(side, &excluded));
        }
    }
    // Without a protocol there are no other ports than excluded named ones.
    let Some(set) = ends.iter().find_map(|(_, end)| end.not_named_ports.as_ref()) else { return all };
    if rule.protocol.is_some() {
        return all;
    }
    let number = set.protocol().number();
    let mut of_protocol = vec![vec![Match::Protocol { not: false, number }]];
    for (side, end) in ends {
        let excluded = named(&end.not_named_ports);
        if !excluded.is_empty() {
            of_protocol = product(&of_protocol, &not_excluded(side, &excluded));
        }
    }
    of_protocol.push(vec![Match::Protocol { not: true, number }]);
    of_protocol
}

/// Returns the addresses of one family in a set of named ports, by port number.
fn addresses_by_port(
    set: Option<&PortSetId>,
    v4: Option<bool>,
    frame: &Frame<'_>,
) -> BTreeMap<u16, Vec<Cidr>> {
    let members = set.and_then(|set| frame.ruleset.port_sets.get(set));
    let mut found: BTreeMap<u16, Vec<Cidr>> = BTreeMap::new();
    for member in members.into_iter().flatten().filter(|member| Some(member.addr.is_ipv4()) == v4) {
        found.entry(member.port).or_default().push(Cidr::host(member.addr));
    }
    found
}

/// Returns the alternatives for ports with these numbers or at these addresses.
fn wanted(side: Side, ranges: &[PortRange], named: &BTreeMap<u16, Vec<Cidr>>) -> Vec<Vec<Match>> {
    let numbered = |port: u16| ranges.iter().any(|range| range.contains(port));
    let mut all = Vec::new();
    if !ranges.is_empty() {
        all.push(vec![Match::Port { side, not: false, ranges: merged_ports(ranges) }]);
    }
    for (port, nets) in named.iter().filter(|(port, _)| !numbered(**port)) {
        if let Some(single) = PortRange::new(*port, *port) {
            all.push(vec![Match::Port { side, not: false, ranges: vec![single] }, among(side, false, nets)]);
        }
    }
    all
}

/// Returns the alternatives for all ports but those at these addresses.
fn not_excluded(side: Side, named: &BTreeMap<u16, Vec<Cidr>>) -> Vec<Vec<Match>> {
    let single = |port: &u16| PortRange::new(*port, *port);
    let numbers: Vec<PortRange> = named.keys().filter_map(single).collect();
    let mut all = vec![vec![Match::Port { side, not: true, ranges: merged_ports(&numbers) }]];
    for (port, nets) in named {
        if let Some(single) = single(port) {
            all.push(vec![Match::Port { side, not: false, ranges: vec![single] }, among(side, true, nets)]);
        }
    }
    all
}

fn among(side: Side, not: bool, nets: &[Cidr]) -> Match {
    match *merged(nets.iter().copied()).as_slice() {
        [net] => Match::InNet { side, not, net },
        ref nets => Match::InNets { side, not, nets: nets.to_vec() },
    }
}

/// Returns every combination of two lists of alternatives.
fn product(all: &[Vec<Match>], with: &[Vec<Match>]) -> Vec<Vec<Match>> {
    let join = |one: &Vec<Match>| {
        let one = one.clone();
        with.iter().map(move |other| one.iter().chain(other).cloned().collect())
    };
    all.iter().flat_map(join).collect()
}
