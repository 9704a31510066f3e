//! Stages of an endpoint's packets: conntrack, tiers, profiles, and the final drop; and the chains that drop.
//!
//! For workloads, tiers and profiles are two maps of interfaces. So a new endpoint with its own profile adds
//! only the rules of that profile: endpoints with the same tiers share all the rest. (With a single map to
//! tiers whose chain looks up the profiles, the cost would be quadratic: kernels that do not remember
//! validated chains traverse the second map once per element of the first, in every transaction.)

use std::collections::BTreeSet;

use super::draft::{Draft, Frame};
use super::node::{Denied, Fixed, Node, Ports, Usage};
use super::{base, names, ranges};
use crate::nft::ir::{Field, Log, Match, Rule, Side, Statement};
use crate::nft::maps::Map;
use tortie_config::Dialect;
use tortie_config::resource::{EndAction, Failsafe, PortRange};
use tortie_engine::policy::{ChainId, Direction, Stages, Tier, early_tiers};
use tortie_net::Cidr;

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

/// Drafts the policies of a tier: returns if one of them passed, else applies the end action, of which a pass
/// returns too.
pub(super) fn tier(tier: &Tier, direction: Direction, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    policies(&mut draft, &tier.policies, Usage::Filter, frame);
    if tier.end == EndAction::Deny {
        draft.goto(Vec::new(), Node::Denied(Denied::EndOfTier { tier: tier.name.clone(), direction }));
    }
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
    for tier in early_tiers(frame.globals.dialect, chains) {
        if frame.globals.dialect == Dialect::V3 {
            draft.jump(Vec::new(), Node::EarlyTier { chains: tier.to_vec(), usage, direction });
        } else {
            tier.iter().for_each(|chain| draft.jump(Vec::new(), rules(chain, usage)));
        }
    }
    draft
}

/// Drafts the untracked or pre-DNAT policies of a tier: returns if none decides, or one passed.
pub(super) fn early_tier(chains: &[ChainId], usage: Usage, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    policies(&mut draft, chains, usage, frame);
    draft
}

fn policies(draft: &mut Draft, chains: &[ChainId], usage: Usage, frame: &Frame<'_>) {
    for policy in chains {
        draft.jump(Vec::new(), rules(policy, usage));
        if frame.passing.contains(policy) {
            draft.rule(vec![Match::Marked(frame.pass())], Statement::UnmarkAndReturn(frame.pass()));
        }
    }
}

fn rules(id: &ChainId, usage: Usage) -> Node {
    Node::Rules { id: id.clone(), usage }
}

fn failsafe_jump(draft: &mut Draft, ports: Ports, frame: &Frame<'_>) {
    if open(ports, frame).next().is_some() {
        draft.jump(Vec::new(), Node::Fixed(Fixed::Failsafe(ports)));
    }
}

/// Returns the failsafe ports, with the side of the packet on which they are matched, and that of the other
/// end.
fn open<'a>(ports: Ports, frame: &Frame<'a>) -> impl Iterator<Item = (Side, Side, &'a [Failsafe])> {
    let (inbound, outbound) =
        (frame.globals.failsafe_inbound.as_slice(), frame.globals.failsafe_outbound.as_slice());
    let none: &[Failsafe] = &[];
    let (to, replies, other_end) = match ports {
        Ports::Inbound => (inbound, none, Side::Src),
        Ports::Outbound => (outbound, none, Side::Dst),
        Ports::RawInbound => (inbound, outbound, Side::Src),
        Ports::RawOutbound => (outbound, inbound, Side::Dst),
    };
    let all = [(Side::Dst, other_end, to), (Side::Src, other_end, replies)];
    all.into_iter().filter(|(_, _, ports)| !ports.is_empty())
}

/// Drafts the chain of failsafe ports.
pub(super) fn failsafe(ports: Ports, frame: &Frame<'_>) -> Draft {
    let mut draft = Draft::default();
    for (side, other_end, list) in open(ports, frame) {
        let nets: BTreeSet<Option<Cidr>> = list.iter().map(|failsafe| failsafe.net).collect();
        let both = |net| [(net, false, TCP), (net, true, UDP)];
        for (net, udp, number) in nets.into_iter().flat_map(both) {
            let of = list.iter().filter(|failsafe| failsafe.udp == udp && failsafe.net == net);
            let of: Vec<PortRange> =
                of.filter_map(|failsafe| PortRange::new(failsafe.port, failsafe.port)).collect();
            if of.is_empty() {
                continue;
            }
            let mut matches: Vec<Match> =
                net.map(|net| Match::Family { v4: net.is_v4() }).into_iter().collect();
            matches.push(Match::Protocol { not: false, number });
            matches.push(Match::Port { side, not: false, ranges: ranges::merged_ports(&of) });
            // A network without length contains all addresses of its family.
            let net = net.filter(|net| net.len() > 0);
            matches.extend(net.map(|net| Match::InNet { side: other_end, not: false, net }));
            draft.push(Rule {
                matches,
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
