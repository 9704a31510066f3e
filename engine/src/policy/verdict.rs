//! Evaluates the rules for a packet in the same way as the kernel, and returns the verdict with the deciding
//! rule.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, Icmp, PortRange};
use tortie_net::Cidr;

use super::types::{ChainId, End, LogPrefix, Rule, Ruleset, SetId, Stages};

/// Header fields of a packet that rules can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, for protocols with ports.
    pub ports: Option<(u16, u16)>,
    /// Type and code of ICMP or ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

/// Result for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The packet continues.
    Allow,
    /// The packet is dropped.
    Deny,
}

/// Rule, tier or profile list that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decider {
    /// A rule of a policy or profile, with its index from 0.
    Rule(ChainId, usize),
    /// End of this tier: none of its policies allowed the packet.
    EndOfTier(Box<str>),
    /// End of the profiles: none of them decided.
    EndOfProfiles,
    /// No chain decided; only for untracked and pre-DNAT policies.
    Nobody,
}

/// A verdict with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Verdict on the packet; `None` if the chains leave it to later stages.
    pub verdict: Option<Verdict>,
    /// Rule, tier or profile list that decided.
    pub by: Decider,
    /// All rules that matched, in order, including the last one.
    pub matched: Vec<(ChainId, usize)>,
    /// Prefixes of the log rules that matched.
    pub logs: Vec<LogPrefix>,
}

/// Maximum size of a set that is searched linearly.
const FEW: usize = 24;

/// Result of evaluating a chain.
enum Outcome {
    Decided(Verdict, usize),
    Passed,
    Through,
}

impl Ruleset {
    /// Returns true if an address is in a set. A set that no chain uses is empty.
    #[must_use]
    pub fn is_member(&self, set: &SetId, addr: IpAddr) -> bool {
        let Some(members) = self.sets.get(set) else { return false };
        if members.len() <= FEW {
            return members.iter().any(|net| net.contains(addr));
        }
        // A set may contain the whole cluster, so each prefix length is looked up instead of scanning the
        // members.
        members.contains(&Cidr::host(addr))
            || (0..Cidr::host(addr).len())
                .any(|len| Cidr::new(addr, len).is_ok_and(|net| members.contains(&net)))
    }

    /// Evaluates tiers and profiles of an endpoint for a packet.
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
            // In a profile, `next-tier` only ends that profile.
            if let (Outcome::Decided(verdict, rule), Some(chain)) =
                self.evaluate_rules(std::slice::from_ref(profile), packet, &mut trail)
            {
                return trail.decided(verdict, chain, rule);
            }
        }
        trail.ended(Some(Verdict::Deny), Decider::EndOfProfiles)
    }

    /// Evaluates untracked or pre-DNAT policies. Packets that no rule matches get no verdict.
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

    /// Returns true if all matches of a rule hold for a packet.
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

/// Returns true if the networks and ports of one side match.
fn fits(end: &End, addr: IpAddr, port: Option<u16>) -> bool {
    let inside = |nets: &[Cidr]| nets.iter().any(|net| net.contains(addr));
    // A packet without ports matches neither a port list nor its negation.
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
