//! Renders the rules of a policy or a profile as kernel rules (data model, "Rules").
//!
//! A rule without family-specific matches becomes one kernel rule; any other becomes one per family that it
//! can match ([`policy::Rule::is_for`]). Every list becomes a set, so neither ports nor networks multiply the
//! rules.

use tortie_config::key::IpFamily;
use tortie_config::resource::Action;
use tortie_net::Cidr;

use super::draft::{Draft, Frame, family};
use super::node::{Denied, Node, Usage};
use super::ranges::{merged, merged_ports};
use crate::nft::ir::{Field, Log, Match, Rule, Side, Statement};
use tortie_engine::policy::{self, ChainId, End, FailClosed, Source};

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
        for v4 in families {
            let Some(matches) = matches(rule, *v4, frame, &mut draft) else { continue };
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
                    // Pre-DNAT policy has no tiers: the packet continues to the later stages.
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
            end.sets.is_empty() && end.not_sets.is_empty() && end.nets.is_empty() && end.not_nets.is_empty()
        })
}

/// Returns the matches for packets of a family (`None`: of any); `None` if no packet can match.
fn matches(
    rule: &policy::Rule,
    v4: Option<bool>,
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
    for (side, end) in [(Side::Src, &rule.src), (Side::Dst, &rule.dst)] {
        for (not, ports) in [(false, &end.ports), (true, &end.not_ports)] {
            if ports.is_empty() {
                continue;
            }
            if !protocol_has(|protocol| protocol.has_ports()) {
                return None;
            }
            matches.push(Match::Port { side, not, ranges: merged_ports(ports) });
        }
    }
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
