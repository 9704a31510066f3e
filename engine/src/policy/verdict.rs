//! Evaluates the rules for a packet in the same way as the kernel, and returns the verdict with the deciding
//! rule.

use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::key::IpFamily;
use tortie_config::resource::{Action, EndAction, Icmp};
use tortie_net::Cidr;

use super::ports;
use super::types::{ChainId, End, LogPrefix, PortSetId, Rule, Ruleset, SetId, Source, Stages, Tier};

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
    /// No chain decided; only for untracked and pre-DNAT policies, and for forwarded packets.
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
        if let Some((verdict, by)) = self.evaluate_tiers(&stages.tiers, packet, &mut trail) {
            return trail.ended(Some(verdict), by);
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

    /// Evaluates the tiers for a packet that a host forwards. Packets that all tiers pass on get no verdict.
    #[must_use]
    pub fn decide_forward(&self, tiers: &[Tier], packet: &Packet) -> Decision {
        let mut trail = MatchTrail::default();
        match self.evaluate_tiers(tiers, packet, &mut trail) {
            Some((verdict, by)) => trail.ended(Some(verdict), by),
            None => trail.ended(None, Decider::Nobody),
        }
    }

    /// Returns the verdict of the first tier that decides; `None` if all pass the packet on.
    fn evaluate_tiers(
        &self,
        tiers: &[Tier],
        packet: &Packet,
        trail: &mut MatchTrail,
    ) -> Option<(Verdict, Decider)> {
        tiers.iter().find_map(|tier| match self.evaluate_rules(&tier.policies, packet, trail) {
            (Outcome::Decided(verdict, rule), Some(chain)) => {
                Some((verdict, Decider::Rule(chain.clone(), rule)))
            }
            (Outcome::Passed, _) => None,
            _ if tier.end == EndAction::Pass => None,
            _ => Some((Verdict::Deny, Decider::EndOfTier((*tier.name).into()))),
        })
    }

    /// Evaluates untracked or pre-DNAT policies. Packets that no rule matches get no verdict. In a Calico 3
    /// store, a rule that passes a packet on skips the policies of its tier; in a v1 store, all that follow.
    #[must_use]
    pub fn decide_early(&self, dialect: Dialect, chains: &[ChainId], packet: &Packet) -> Decision {
        let mut trail = MatchTrail::default();
        for tier in early_tiers(dialect, chains) {
            if let (Outcome::Decided(verdict, rule), Some(chain)) =
                self.evaluate_rules(tier, packet, &mut trail)
            {
                return trail.decided(verdict, chain, rule);
            }
        }
        trail.ended(None, Decider::Nobody)
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
            && fits(&rule.src, packet.src)
            && fits(&rule.dst, packet.dst)
            && self.has_port(&rule.src, packet.src, packet, packet.ports.map(|ports| ports.0))
            && self.has_port(&rule.dst, packet.dst, packet, packet.ports.map(|ports| ports.1))
            && self.selects(&rule.src, packet.src)
            && self.selects(&rule.dst, packet.dst)
    }

    /// Returns true if numbers and names of ports of one side match.
    fn has_port(&self, end: &End, addr: IpAddr, packet: &Packet, port: Option<u16>) -> bool {
        self.is_wanted_port(end, addr, packet, port) && !self.is_excluded_port(end, addr, packet, port)
    }

    pub(super) fn is_wanted_port(&self, end: &End, addr: IpAddr, packet: &Packet, port: Option<u16>) -> bool {
        let is_any = end.ports.is_empty() && end.named_ports.is_none();
        let is_numbered = port.is_some_and(|port| end.ports.iter().any(|range| range.contains(port)));
        is_any || is_numbered || self.is_named(end.named_ports.as_ref(), addr, packet, port)
    }

    /// A packet without ports matches neither a list of numbers nor its negation.
    pub(super) fn is_excluded_port(
        &self,
        end: &End,
        addr: IpAddr,
        packet: &Packet,
        port: Option<u16>,
    ) -> bool {
        let is_numbered = port.is_none_or(|port| end.not_ports.iter().any(|range| range.contains(port)));
        (!end.not_ports.is_empty() && is_numbered)
            || self.is_named(end.not_named_ports.as_ref(), addr, packet, port)
    }

    fn is_named(&self, set: Option<&PortSetId>, addr: IpAddr, packet: &Packet, port: Option<u16>) -> bool {
        let Some((set, port)) = set.zip(port) else { return false };
        packet.protocol == set.protocol().number()
            && self.port_sets.get(set).is_some_and(|members| ports::contains(members, addr, port))
    }

    fn selects(&self, end: &End, addr: IpAddr) -> bool {
        end.sets.iter().all(|set| self.is_member(set, addr))
            && !end.not_sets.iter().any(|set| self.is_member(set, addr))
    }
}

/// Groups untracked or pre-DNAT policies by the tiers in which they act: in a v1 store they have none.
pub fn early_tiers(dialect: Dialect, chains: &[ChainId]) -> impl Iterator<Item = &[ChainId]> {
    let of_one_tier = move |a: &ChainId, b: &ChainId| match (&a.source, &b.source) {
        (Source::Policy { tier: a, .. }, Source::Policy { tier: b, .. }) => dialect == Dialect::V1 || a == b,
        _ => true,
    };
    chains.chunk_by(of_one_tier)
}

/// Returns true if the networks of one side match.
fn fits(end: &End, addr: IpAddr) -> bool {
    let inside = |nets: &[Cidr]| nets.iter().any(|net| net.contains(addr));
    (end.nets.is_empty() || inside(&end.nets)) && !inside(&end.not_nets)
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
