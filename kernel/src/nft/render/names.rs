//! Names of chains and sets: readable, the same in every process, and distinct for distinct objects.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tortie_config::resource::EndAction;
use tortie_engine::policy::{ChainId, Direction, SetId, Source, Stages, Tier};

use super::node::{Base, Denied, Fixed, Node, Ports, Usage};
use crate::nft::ir::Name;

/// Octets of the hash in a name. Finding two policy names or selectors with one hash takes 2^80 attempts.
const OCTETS: usize = 20;

/// The first 160 bits of SHA-256. Names outlive a process, so that a restart recognizes its chains: the hash
/// must be the same in every version and build, which that of the standard library is not.
struct NameHash(Sha256);

impl NameHash {
    fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds one text, followed by an octet that occurs in no text, so that `ab`, `c` differs from `a`, `bc`.
    fn text(mut self, text: &str) -> Self {
        self.0.update(text);
        self.0.update([0xff]);
        self
    }

    fn texts<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> Self {
        texts.into_iter().fold(self, Self::text)
    }

    fn chain(self, id: &ChainId) -> Self {
        let hash = self.text(direction(id.direction));
        match &id.source {
            Source::Policy { tier, name, .. } => hash.texts(["policy", tier, name]),
            Source::Profile(name) => hash.texts(["profile", name]),
        }
    }

    fn tier(self, tier: &Tier) -> Self {
        let hash = tier.policies.iter().fold(self.texts(["tier", &tier.name]), Self::chain);
        match tier.end {
            EndAction::Deny => hash,
            EndAction::Pass => hash.text("pass"),
        }
    }

    fn hex(self) -> String {
        self.0.finalize().iter().take(OCTETS).fold(String::with_capacity(2 * OCTETS), |mut hex, octet| {
            let _ = write!(hex, "{octet:02x}");
            hex
        })
    }
}

pub(super) fn direction(of: Direction) -> &'static str {
    match of {
        Direction::Inbound => "in",
        Direction::Outbound => "out",
    }
}

/// Returns a name of `prefix`, the printable part of `text`, and a hash.
fn named(prefix: &str, text: &str, hash: NameHash) -> Name {
    let legible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let text: String = text.chars().map(|c| if legible(c) { c } else { '_' }).take(40).collect();
    format!("{prefix}-{text}-{}", hash.hex()).into()
}

/// Returns the name of a node's chain.
pub(super) fn chain(node: &Node) -> Name {
    match node {
        Node::Rules { id, usage } => rules(id, *usage),
        Node::Tier { tier, direction: at } => named(
            &format!("{}-tier", direction(*at)),
            &tier.name,
            NameHash::new().text(direction(*at)).tier(tier),
        ),
        Node::Tiers { tiers: of, direction: at } => tiers(of, *at),
        Node::Profiles { profiles, direction: at } => {
            let hash = profiles.iter().fold(NameHash::new().text(direction(*at)), NameHash::chain);
            format!("{}-profiles-{}", direction(*at), hash.hex()).into()
        }
        Node::Host { of, direction: at } => host(of, *at),
        Node::Early { chains, usage, direction: at } => {
            let hash = chains.iter().fold(NameHash::new(), NameHash::chain);
            match usage {
                Usage::PreDnat => format!("pre-dnat-{}", hash.hex()).into(),
                _ => format!("untracked-{}-{}", direction(*at), hash.hex()).into(),
            }
        }
        Node::EarlyTier { chains, usage, direction: at } => {
            let hash = chains.iter().fold(NameHash::new().text("tier"), NameHash::chain);
            match usage {
                Usage::PreDnat => format!("pre-dnat-tier-{}", hash.hex()).into(),
                _ => format!("untracked-tier-{}-{}", direction(*at), hash.hex()).into(),
            }
        }
        Node::Denied(denied) => denied_chain(denied),
        Node::Fixed(fixed) => match fixed {
            Fixed::RawWorkload => "raw-workload",
            Fixed::AntiSpoof => "anti-spoof",
            Fixed::WorkloadToHost => "workload-to-host",
            Fixed::ToHost => "to-host",
            Fixed::FromWorkload => "forward-from-workload",
            Fixed::ToWorkload => "forward-to-workload",
            Fixed::Failsafe(Ports::Inbound) => "failsafe-in",
            Fixed::Failsafe(Ports::Outbound) => "failsafe-out",
            Fixed::Failsafe(Ports::RawInbound) => "failsafe-raw-in",
            Fixed::Failsafe(Ports::RawOutbound) => "failsafe-raw-out",
        }
        .into(),
        Node::Base(base, late) => {
            let name = match base {
                Base::RawPrerouting => "raw-prerouting",
                Base::RawOutput => "raw-output",
                Base::PreDnat => "pre-dnat",
                Base::NatPrerouting => "nat-prerouting",
                Base::NatOutput => "nat-output",
                Base::NatPostrouting => "nat-postrouting",
                Base::InputFrom => "input-from",
                Base::InputToHost => "input-to-host",
                Base::HostForwardFrom => "host-forward-from",
                Base::HostForwardTo => "host-forward-to",
                Base::ForwardFrom => "forward-from",
                Base::ForwardTo => "forward-to",
                Base::Output => "output",
            };
            // A hook cannot be moved: at another priority it is another chain.
            if *late { format!("{name}-late").into() } else { name.into() }
        }
    }
}

/// Returns the name of the chain with the rules of a policy or a profile.
pub(super) fn rules(id: &ChainId, usage: Usage) -> Name {
    let kind = match (&id.source, usage) {
        (Source::Profile(_), _) => "profile",
        (_, Usage::Filter) => "policy",
        (_, Usage::Untracked) => "untracked",
        (_, Usage::PreDnat) => "pre-dnat",
    };
    let text = match &id.source {
        Source::Policy { tier, name, .. } => format!("{tier}.{name}"),
        Source::Profile(name) => name.to_string(),
    };
    named(&format!("{}-{kind}", direction(id.direction)), &text, NameHash::new().chain(id))
}

/// Returns the name of a chain of tiers, the same for all workloads with equal tiers.
pub(super) fn tiers(tiers: &[Tier], at: Direction) -> Name {
    let hash = tiers.iter().fold(NameHash::new().text(direction(at)), NameHash::tier);
    format!("{}-tiers-{}", direction(at), hash.hex()).into()
}

/// Returns the name of the chain of tiers and profiles of a host interface.
pub(super) fn host(stages: &Stages, at: Direction) -> Name {
    let hash = NameHash::new().texts(["host", direction(at)]);
    let hash = stages.tiers.iter().fold(hash, NameHash::tier).text("profiles");
    let hash = stages.profiles.iter().fold(hash, NameHash::chain);
    format!("st-{}", hash.hex()).into()
}

fn denied_chain(denied: &Denied) -> Name {
    let hash = match denied {
        Denied::Rule(id, at) => NameHash::new().chain(id).text(&at.to_string()),
        Denied::EndOfTier { tier, direction: at } => {
            NameHash::new().texts(["end of tier", tier, direction(*at)])
        }
        Denied::EndOfProfiles { direction: at } => NameHash::new().texts(["end of profiles", direction(*at)]),
        Denied::UnknownInterface => return "deny-unknown".into(),
        Denied::Spoofed => return "deny-spoofed".into(),
        Denied::Loopback => return "deny-loopback".into(),
        Denied::Inactive => return "inactive".into(),
        Denied::Ipip => return "deny-ipip".into(),
        Denied::Vxlan => return "deny-vxlan".into(),
        Denied::VxlanOfWorkload => return "deny-vxlan-of-workload".into(),
        Denied::ToHost => return "deny-to-host".into(),
        Denied::NoIpv6 => return "deny-ipv6".into(),
    };
    format!("deny-{}", hash.hex()).into()
}

/// Returns the log prefix of dropped packets: at most 120 octets of printable ASCII, distinct for distinct
/// reasons.
pub(super) fn prefix(denied: &Denied) -> Box<str> {
    let (at, what) = match denied {
        Denied::Rule(id, at) => (direction(id.direction), format!("{} rule {at}", id.source)),
        Denied::EndOfTier { tier, direction: at } => (direction(*at), format!("end of tier {tier}")),
        Denied::EndOfProfiles { direction: at } => (direction(*at), "end of profiles".to_owned()),
        Denied::UnknownInterface => ("-", "unknown interface".to_owned()),
        Denied::Spoofed => ("out", "spoofed source".to_owned()),
        Denied::Loopback => ("out", "to loopback".to_owned()),
        Denied::Inactive => ("-", "inactive endpoint".to_owned()),
        Denied::Ipip => ("in", "IPIP from no host".to_owned()),
        Denied::Vxlan => ("in", "VXLAN from no host".to_owned()),
        Denied::VxlanOfWorkload => ("out", "VXLAN of a workload".to_owned()),
        Denied::ToHost => ("out", "to host".to_owned()),
        Denied::NoIpv6 => ("-", "no IPv6".to_owned()),
    };
    let plain = |c: char| c == ' ' || (c.is_ascii_graphic() && c != '"' && c != '\\');
    let text = format!("tortie:{at} {what}");
    let hash = match denied {
        Denied::Rule(id, at) => NameHash::new().chain(id).text(&at.to_string()),
        _ => NameHash::new().text(&text),
    };
    // Policy `b` of tier `a` and policy `a/b` would have the same text.
    let doubtful = matches!(denied, Denied::Rule(ChainId { source: Source::Policy { tier, name, .. }, .. }, _)
        if tier.contains('/') || name.contains('/'));
    if text.len() <= 120 && text.chars().all(plain) && !doubtful {
        return text.into();
    }
    let legible: String = text.chars().map(|c| if plain(c) { c } else { '_' }).take(78).collect();
    format!("{legible} {}", hash.hex()).into()
}

/// Returns the name of the set with a selector's addresses of one family. The name includes the kind of the
/// set, since a set cannot change its type while rules use it.
pub(super) fn set(hash: &str, v4: bool, interval: bool) -> Name {
    let family = if v4 { "v4" } else { "v6" };
    let kind = if interval { "nets" } else { "addrs" };
    format!("{family}-{kind}-{hash}").into()
}

/// Returns the hash in the names of a selector's sets.
pub(super) fn set_hash(id: &SetId) -> String {
    NameHash::new().text(id.selector()).hex()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_config::{Dialect, Selector};

    #[test]
    fn names_are_for_ever() {
        // `printf 'has(a)\377' | sha256sum`
        let selector: Selector = "has(a)".parse().unwrap();
        assert_eq!(
            &*set(&set_hash(&SetId::of(&selector)), true, false),
            "v4-addrs-98880802bdd17c948ec2a0b79a4a33799b8dad44"
        );
    }

    #[test]
    fn long_and_strange_names_stay_apart_and_in_their_bounds() {
        let id = |name: &str| ChainId {
            source: Source::policy(Dialect::V1, "default", name),
            direction: Direction::Inbound,
        };
        let (a, b) = ("x".repeat(300) + "a", "x".repeat(300) + "b");
        let (first, second) = (Denied::Rule(id(&a), 0), Denied::Rule(id(&b), 0));
        assert_ne!(prefix(&first), prefix(&second));
        assert!(prefix(&first).len() <= 120);
        assert_ne!(prefix(&Denied::Rule(id("ä"), 0)), prefix(&Denied::Rule(id("ö"), 0)));
        assert_ne!(rules(&id(&a), Usage::Filter), rules(&id(&b), Usage::Filter));
        assert!(rules(&id(&a), Usage::Filter).len() < 128);
        assert_eq!(&*prefix(&Denied::Rule(id("web"), 3)), "tortie:in policy web rule 3");
        let other = Source::policy(Dialect::V1, "a", "b");
        let other = ChainId { source: other, direction: Direction::Inbound };
        assert_ne!(prefix(&Denied::Rule(other, 3)), prefix(&Denied::Rule(id("a/b"), 3)));
    }
}
