//! What an endpoint's packets pass: established, tiers, profiles, and the end; and the chains that drop.

use super::super::ir::{Log, Match, Rule, Side, Statement};
use super::node::{Denied, Draft, Fixed, Frame, Node, Ports, Usage};
use super::{base, names, ranges};
use crate::policy::{ChainId, Direction, Stages, Tier};
use tortie_config::resource::{Failsafe, PortRange};

/// Lines a second that one place may tell of what it drops.
const TELLS: u32 = 10;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Everything that an endpoint's packets pass in one direction.
pub(super) fn stages(of: &Stages, direction: Direction, host: bool, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
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
    if host {
        failsafe_jump(
            &mut draft,
            if direction == Direction::Inbound { Ports::Inbound } else { Ports::Outbound },
            frame,
        );
    }
    for tier in &of.tiers {
        draft.jump(Vec::new(), Node::Tier { tier: tier.clone(), direction });
    }
    for profile in &of.profiles {
        draft.jump(Vec::new(), rules(profile, Usage::Filter));
    }
    draft.goto(Vec::new(), Node::Denied(Denied::EndOfProfiles { direction }));
    draft
}

/// The policies of a tier: it returns when one of them passed, else it drops.
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

/// Untracked or pre-DNAT policies. What they do not decide goes on.
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

/// The ports that stay open: by which end of the packet, and which.
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

/// The chain of failsafe ports.
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

/// Tells the group that listens, as long as it is not too much, and drops.
pub(super) fn denied(denied: &Denied, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    let prefix = names::prefix(denied);
    draft.push(Rule {
        limit: Some(TELLS),
        log: Some(Log { prefix: prefix.clone(), group: Some(frame.options.deny_group) }),
        ..Rule::default()
    });
    draft.push(Rule { counted: true, statement: Statement::Drop, comment: Some(prefix), ..Rule::default() });
    draft
}
