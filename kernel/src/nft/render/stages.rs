//! Stages of an endpoint's packets: conntrack, tiers, profiles, and the final drop; and the chains that drop.
//!
//! For workloads, tiers and profiles are two maps of interfaces. So a new endpoint with its own profile adds
//! only the rules of that profile: endpoints with the same tiers share all the rest. (With a single map to
//! tiers whose chain looks up the profiles, the cost would be quadratic: kernels that do not remember
//! validated chains traverse the second map once per element of the first, in every transaction.)

use super::draft::{Draft, Frame};
use super::node::{Denied, Fixed, Node, Ports, Usage};
use super::{base, names, ranges};
use crate::nft::ir::{Field, Log, Match, Rule, Side, Statement};
use crate::nft::maps::Map;
use tortie_config::resource::{Failsafe, PortRange};
use tortie_engine::policy::{ChainId, Direction, Stages, Tier};

/// Log lines per second for each chain that drops.
const LOGGED_CHAINS: u32 = 10;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Drafts the stages for packets of a host interface in one direction.
pub(super) fn host(of: &Stages, direction: Direction, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    resolved_profiles(&mut draft, frame);
    let ports = if direction == Direction::Inbound { Ports::Inbound } else { Ports::Outbound };
    failsafe_jump(&mut draft, ports, frame);
    for tier in &of.tiers {
        draft.jump(Vec::new(), Node::Tier { tier: tier.clone(), direction });
    }
    for profile in &of.profiles {
        draft.jump(Vec::new(), rules(profile, Usage::Filter));
    }
    draft.goto(Vec::new(), Node::Denied(Denied::EndOfProfiles { direction }));
    draft
}

/// Drafts the dispatch of workload packets by interface.
pub(super) fn workload(draft: &mut Draft, direction: Direction) {
    let (interface, tiers, profiles) = match direction {
        Direction::Inbound => (Field::OutInterface, Map::ToWorkload, Map::ToProfiles),
        Direction::Outbound => (Field::InInterface, Map::FromWorkload, Map::FromProfiles),
    };
    draft.look_up(interface, tiers);
    draft.look_up(interface, profiles);
    // Only packets that no profile decided reach this rule, so allowed packets do not pay for the
    // distinction.
    let active = Match::InSet { not: false, key: vec![interface], set: Map::Workloads.name() };
    draft.goto(vec![active], Node::Denied(Denied::EndOfProfiles { direction }));
    draft.goto(Vec::new(), Node::Denied(Denied::UnknownInterface));
}

/// Drafts the tiers of a workload; returns if all pass the packet on.
pub(super) fn tiers(tiers: &[Tier], direction: Direction, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    resolved_profiles(&mut draft, frame);
    for tier in tiers {
        draft.jump(Vec::new(), Node::Tier { tier: tier.clone(), direction });
    }
    draft
}

/// Drafts several profiles of a workload; returns if none decides.
pub(super) fn profiles(profiles: &[ChainId]) -> Draft {
    let mut draft = Draft::default();
    for profile in profiles {
        draft.jump(Vec::new(), rules(profile, Usage::Filter));
    }
    draft
}

/// Accepts packets of connections allowed at their beginning, and drops invalid ones if configured.
fn resolved_profiles(draft: &mut Draft, frame: &Frame<'_>) {
    draft.rule(vec![Match::Established], Statement::Accept);
    if frame.globals.drop_invalid {
        draft.push(Rule {
            matches: vec![Match::Invalid],
            counted: true,
            statement: Statement::Drop,
            comment: Some("invalid for connection tracking".into()),
            ..Rule::default()
        });
    }
}

/// Drafts the policies of a tier: returns if one of them passed, else drops.
pub(super) fn tier(tier: &Tier, direction: Direction, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    for policy in &tier.policies {
        draft.jump(Vec::new(), rules(policy, Usage::Filter));
        if frame.passing.contains(policy) {
            draft.rule(vec![Match::Marked(frame.pass())], Statement::UnmarkAndReturn(frame.pass()));
        }
    }
    draft.goto(Vec::new(), Node::Denied(Denied::EndOfTier { tier: tier.name.clone(), direction }));
    draft
}

/// Drafts untracked or pre-DNAT policies. Undecided packets continue.
pub(super) fn early(chains: &[ChainId], usage: Usage, direction: Direction, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    let ports = match (usage, direction) {
        (Usage::Untracked, Direction::Inbound) => Ports::RawInbound,
        (Usage::Untracked, Direction::Outbound) => Ports::RawOutbound,
        (_, Direction::Inbound) => Ports::Inbound,
        (_, Direction::Outbound) => Ports::Outbound,
    };
    base::discovery(&mut draft, frame);
    failsafe_jump(&mut draft, ports, frame);
    for chain in chains {
        draft.jump(Vec::new(), rules(chain, usage));
    }
    draft
}

fn rules(id: &ChainId, usage: Usage) -> Node {
    Node::Rules { id: id.clone(), usage }
}

fn failsafe_jump(draft: &mut Draft, ports: Ports, frame: &Frame<'_>) {
    if open(ports, frame).next().is_some() {
        draft.jump(Vec::new(), Node::Fixed(Fixed::Failsafe(ports)));
    }
}

/// Returns the failsafe ports, with the side of the packet on which they are matched.
fn open<'a>(ports: Ports, frame: &Frame<'a>) -> impl Iterator<Item = (Side, &'a [Failsafe])> {
    let (inbound, outbound) =
        (frame.globals.failsafe_inbound.as_slice(), frame.globals.failsafe_outbound.as_slice());
    let none: &[Failsafe] = &[];
    let (to, replies) = match ports {
        Ports::Inbound => (inbound, none),
        Ports::Outbound => (outbound, none),
        Ports::RawInbound => (inbound, outbound),
        Ports::RawOutbound => (outbound, inbound),
    };
    [(Side::Dst, to), (Side::Src, replies)].into_iter().filter(|(_, ports)| !ports.is_empty())
}

/// Drafts the chain of failsafe ports.
pub(super) fn failsafe(ports: Ports, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    for (side, list) in open(ports, frame) {
        for (udp, number) in [(false, TCP), (true, UDP)] {
            let of = list.iter().filter(|failsafe| failsafe.udp == udp);
            let of: Vec<PortRange> =
                of.filter_map(|failsafe| PortRange::new(failsafe.port, failsafe.port)).collect();
            if of.is_empty() {
                continue;
            }
            draft.push(Rule {
                matches: vec![
                    Match::Protocol { not: false, number },
                    Match::Port { side, not: false, ranges: ranges::merged_ports(&of) },
                ],
                counted: true,
                statement: Statement::Accept,
                comment: Some("failsafe".into()),
                ..Rule::default()
            });
        }
    }
    draft
}

/// Logs to the group for dropped packets, with a rate limit, and drops.
pub(super) fn denied(denied: &Denied, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    let prefix = names::prefix(denied);
    draft.push(Rule {
        limit: Some(LOGGED_CHAINS),
        log: Some(Log { prefix: prefix.clone(), group: Some(frame.options.deny_group) }),
        ..Rule::default()
    });
    draft.push(Rule { counted: true, statement: Statement::Drop, comment: Some(prefix), ..Rule::default() });
    draft
}
