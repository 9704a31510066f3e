//! The verdict on a packet, by the rules that the kernel enforces, with what decided it.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, Icmp, PortRange};
use tortie_net::Cidr;

use super::types::{ChainId, End, LogPrefix, Rule, Ruleset, SetId, Stages};

/// A packet as rules see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Where it comes from.
    pub src: IpAddr,
    /// Where it goes.
    pub dst: IpAddr,
    /// The IP protocol's number.
    pub protocol: u8,
    /// Ports of protocols that have them: source, destination.
    pub ports: Option<(u16, u16)>,
    /// Type and code of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on.
    Allow,
    /// It is dropped.
    Deny,
}

/// Who decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decider {
    /// A rule of a policy or a profile, counted from 0.
    Rule(ChainId, usize),
    /// No policy of this tier let the packet go on.
    EndOfTier(Box<str>),
    /// No profile decided.
    EndOfProfiles,
    /// None of the chains had a word to say (untracked and pre-DNAT policies only).
    Nobody,
}

/// The verdict and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of the packet; `None`: the chains leave it to what comes later.
    pub verdict: Option<Verdict>,
    /// Who said so.
    pub by: Decider,
    /// Every rule that matched, in order, the last one included.
    pub matched: Vec<(ChainId, usize)>,
    /// What was logged.
    pub logs: Vec<LogPrefix>,
}

/// Sets of so few members are looked through.
const FEW: usize = 24;

/// How a chain ended.
enum Outcome {
    Decided(Verdict, usize),
    Passed,
    Through,
}

impl Ruleset {
    /// Whether an address is in a set; a set that nobody uses is empty.
    #[must_use]
    pub fn is_member(&self, set: &SetId, addr: IpAddr) -> bool {
        let Some(members) = self.sets.get(set) else { return false };
        if members.len() <= FEW {
            return members.iter().any(|net| net.contains(addr));
        }
        // A set may hold the whole cluster: each length is looked up, no member is looked at.
        members.contains(&Cidr::host(addr))
            || (0..Cidr::host(addr).len())
                .any(|len| Cidr::new(addr, len).is_ok_and(|net| members.contains(&net)))
    }

    /// The verdict of tiers and profiles on a packet of an endpoint.
    #[must_use]
    pub fn decide(&self, stages: &Stages, packet: &Packet) -> Decision {
        let mut trail = MatchTrail::default();
        for tier in &stages.tiers {
            match self.evaluate_rules(&tier.policies, packet, &mut trail) {
                (Outcome::Decided(verdict, rule), Some(chain)) => return trail.decided(verdict, chain, rule),
                (Outcome::Passed, _) => {}
                _ => return trail.ended(Some(Verdict::Deny), Decider::EndOfTier((*tier.name).into())),
            }
        }
        for profile in &stages.profiles {
            // Passing ends a profile and nothing else.
            if let (Outcome::Decided(verdict, rule), Some(chain)) =
                self.evaluate_rules(std::slice::from_ref(profile), packet, &mut trail)
            {
                return trail.decided(verdict, chain, rule);
            }
        }
        trail.ended(Some(Verdict::Deny), Decider::EndOfProfiles)
    }

    /// The verdict of untracked or pre-DNAT policies, which leave alone what they do not match.
    #[must_use]
    pub fn decide_early(&self, chains: &[ChainId], packet: &Packet) -> Decision {
        let mut trail = MatchTrail::default();
        match self.evaluate_rules(chains, packet, &mut trail) {
            (Outcome::Decided(verdict, rule), Some(chain)) => trail.decided(verdict, chain, rule),
            _ => trail.ended(None, Decider::Nobody),
        }
    }

    fn evaluate_rules<'a>(
        &self,
        chains: &'a [ChainId],
        packet: &Packet,
        trail: &mut MatchTrail,
    ) -> (Outcome, Option<&'a ChainId>) {
        for id in chains {
            let Some(chain) = self.chains.get(id) else { continue };
            for (at, rule) in chain.rules.iter().enumerate() {
                if !self.matches(rule, packet) {
                    continue;
                }
                trail.matched.push((id.clone(), at));
                trail.logs.extend(rule.log.clone());
                match rule.action {
                    Action::Allow => return (Outcome::Decided(Verdict::Allow, at), Some(id)),
                    Action::Deny => return (Outcome::Decided(Verdict::Deny, at), Some(id)),
                    Action::NextTier => return (Outcome::Passed, Some(id)),
                    Action::Log => {}
                }
            }
        }
        (Outcome::Through, None)
    }

    /// Whether every match of a rule holds for a packet.
    #[must_use]
    pub fn matches(&self, rule: &Rule, packet: &Packet) -> bool {
        rule.is_for(IpFamily::of(packet.src))
            && rule.protocol.is_none_or(|protocol| protocol.number() == packet.protocol)
            && rule.not_protocol.is_none_or(|protocol| protocol.number() != packet.protocol)
            && rule.icmp.is_none_or(|icmp| is_icmp(icmp, packet))
            && rule.not_icmp.is_none_or(|icmp| !is_icmp(icmp, packet))
            && fits(&rule.src, packet.src, packet.ports.map(|ports| ports.0))
            && fits(&rule.dst, packet.dst, packet.ports.map(|ports| ports.1))
            && self.selects(&rule.src, packet.src)
            && self.selects(&rule.dst, packet.dst)
    }

    fn selects(&self, end: &End, addr: IpAddr) -> bool {
        end.sets.iter().all(|set| self.is_member(set, addr))
            && !end.not_sets.iter().any(|set| self.is_member(set, addr))
    }
}

/// Networks and ports of an end.
fn fits(end: &End, addr: IpAddr, port: Option<u16>) -> bool {
    let inside = |nets: &[Cidr]| nets.iter().any(|net| net.contains(addr));
    // A packet without ports matches neither a list of them nor its negation.
    let among = |ports: &[PortRange], yes: bool| {
        ports.is_empty() || port.is_some_and(|port| ports.iter().any(|range| range.contains(port)) == yes)
    };
    (end.nets.is_empty() || inside(&end.nets))
        && !inside(&end.not_nets)
        && among(&end.ports, true)
        && among(&end.not_ports, false)
}

fn is_icmp(icmp: Icmp, packet: &Packet) -> bool {
    packet
        .icmp
        .is_some_and(|(of, code)| of == icmp.icmp_type() && icmp.code().is_none_or(|wanted| wanted == code))
}

#[derive(Default)]
struct MatchTrail {
    matched: Vec<(ChainId, usize)>,
    logs: Vec<LogPrefix>,
}

impl MatchTrail {
    fn decided(self, verdict: Verdict, chain: &ChainId, rule: usize) -> Decision {
        self.ended(Some(verdict), Decider::Rule(chain.clone(), rule))
    }

    fn ended(self, verdict: Option<Verdict>, by: Decider) -> Decision {
        Decision { verdict, by, matched: self.matched, logs: self.logs }
    }
}
