//! Types of a ruleset: address sets, chains of rules, and the chains that apply to each endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::Selector;
use tortie_config::key::{EndpointKey, IpFamily};
use tortie_config::resource::{Action, Icmp, InterfaceName, MacAddr, PortRange, Protocol};
use tortie_net::Cidr;

/// Identifies the set of addresses of all endpoints in the cluster that a selector matches. A tag is the
/// selector `has(tag)`. Equal ids have equal canonical texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(Arc<str>);

impl SetId {
    /// Returns the set id of a selector.
    #[must_use]
    pub fn of(selector: &Selector) -> Self {
        Self(selector.to_string().into())
    }

    /// Returns the canonical text of the selector.
    #[must_use]
    pub fn selector(&self) -> &str {
        &self.0
    }
}

/// Direction of traffic as seen from the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the endpoint (`inbound_rules`, ingress).
    Inbound,
    /// From the endpoint (`outbound_rules`, egress).
    Outbound,
}

/// Policy or profile that contains rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// A policy, `policy/tier/<t>/policy/<n>`.
    Policy {
        /// Tier name.
        tier: Arc<str>,
        /// Policy name.
        name: Arc<str>,
    },
    /// A profile, `policy/profile/<p>/rules`.
    Profile(Arc<str>),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy { tier, name } if &**tier == "default" => write!(f, "policy {name}"),
            Self::Policy { tier, name } => write!(f, "policy {tier}/{name}"),
            Self::Profile(name) => write!(f, "profile {name}"),
        }
    }
}

/// Identifies the rules of one policy or profile in one direction, which all endpoints share.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId {
    /// Policy or profile that contains the rules.
    pub source: Source,
    /// Direction of the traffic that the rules apply to.
    pub direction: Direction,
}

/// Rules of one policy or profile in one direction, in evaluation order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Rules in the order of evaluation.
    pub rules: Vec<Rule>,
    /// Reason why the chain denies all packets, if its rules are missing or cannot be parsed.
    pub fail_closed: Option<FailClosed>,
}

/// Reason why a chain denies all packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailClosed {
    /// The profile does not exist, or has no rules.
    Missing,
    /// The value cannot be parsed.
    Unreadable,
}

/// A compiled rule, with tags and selectors as sets. All of its matches must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Action for packets that match.
    pub action: Action,
    /// Prefix for logging matching packets before the action; `None` if they are not logged.
    pub log: Option<LogPrefix>,
    /// Address family to match; `None` for both.
    pub family: Option<IpFamily>,
    /// Protocol to match; `None` for all.
    pub protocol: Option<Protocol>,
    /// Protocol to exclude.
    pub not_protocol: Option<Protocol>,
    /// Matches on the source.
    pub src: End,
    /// Matches on the destination.
    pub dst: End,
    /// ICMP type and code to match.
    pub icmp: Option<Icmp>,
    /// ICMP type and code to exclude, as a single match.
    pub not_icmp: Option<Icmp>,
}

/// Matches on the source or the destination of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct End {
    /// Sets of which all must contain the address.
    pub sets: Vec<SetId>,
    /// Sets of which none may contain the address.
    pub not_sets: Vec<SetId>,
    /// Networks of which one must contain the address; empty for any address.
    pub nets: Vec<Cidr>,
    /// Networks of which none may contain the address.
    pub not_nets: Vec<Cidr>,
    /// Port ranges of which one must contain the port; empty for any port.
    pub ports: Vec<PortRange>,
    /// Port ranges of which none may contain the port.
    pub not_ports: Vec<PortRange>,
}

/// Prefix of log lines: at most 27 characters of `A-Z a-z 0-9 _ . / -` and blank (data model, "Rules").
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogPrefix(Box<str>);

impl LogPrefix {
    /// Maximum length in characters.
    pub const MAX: usize = 27;

    /// Truncates a text to the maximum length, and replaces forbidden characters by `_`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || " _./-".contains(c) { c } else { '_' };
        Self(text.chars().take(Self::MAX).map(allowed).collect())
    }

    /// Returns the prefix text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tiers and profiles that apply to the traffic of an endpoint in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stages {
    /// Tiers with a policy that selects the endpoint, in order. A tier drops packets that none of its
    /// policies decides.
    pub tiers: Vec<Tier>,
    /// Profiles, in the endpoint's order. Packets that no profile decides are dropped.
    pub profiles: Vec<ChainId>,
}

impl Stages {
    /// Returns all chains in evaluation order.
    pub fn chains(&self) -> impl Iterator<Item = &ChainId> {
        self.tiers.iter().flat_map(|tier| &tier.policies).chain(&self.profiles)
    }
}

/// Policies of one tier that select an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Tier name.
    pub name: Arc<str>,
    /// Chains of the policies, in evaluation order.
    pub policies: Vec<ChainId>,
}

/// Policy of a workload endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadPolicy {
    /// Name of the host-side interface.
    pub interface: InterfaceName,
    /// True if the endpoint may send and receive packets.
    pub active: bool,
    /// Source addresses that the endpoint may use.
    pub nets: Vec<Cidr>,
    /// MAC address for the static neighbour entry.
    pub mac: Option<MacAddr>,
    /// Floating addresses as (internal, external) pairs.
    pub nats: Vec<(IpAddr, IpAddr)>,
    /// Tiers and profiles for traffic to the endpoint.
    pub inbound: Stages,
    /// Tiers and profiles for traffic from the endpoint.
    pub outbound: Stages,
}

/// Policy of a host endpoint, an interface of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPolicy {
    /// Name of the interface; `None` if the interface is found by the addresses.
    pub interface: Option<InterfaceName>,
    /// Expected addresses of the interface.
    pub addrs: Vec<IpAddr>,
    /// Tiers and profiles for traffic to the interface.
    pub inbound: Stages,
    /// Tiers and profiles for traffic from the interface.
    pub outbound: Stages,
    /// Untracked policies for inbound traffic, before connection tracking.
    pub untracked_inbound: Vec<ChainId>,
    /// Untracked policies for outbound traffic, before connection tracking.
    pub untracked_outbound: Vec<ChainId>,
    /// Pre-DNAT policies for inbound traffic.
    pub pre_dnat: Vec<ChainId>,
}

/// Policy of an endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointPolicy {
    /// A workload endpoint.
    Workload(WorkloadPolicy),
    /// A host endpoint.
    Host(HostPolicy),
}

impl EndpointPolicy {
    /// Returns all chains that packets of the endpoint may meet.
    pub fn chains(&self) -> impl Iterator<Item = &ChainId> {
        let (inbound, outbound) = match self {
            Self::Workload(workload) => (&workload.inbound, &workload.outbound),
            Self::Host(host) => (&host.inbound, &host.outbound),
        };
        let early: [&[ChainId]; 3] = match self {
            Self::Workload(_) => [&[], &[], &[]],
            Self::Host(host) => [&host.untracked_inbound, &host.untracked_outbound, &host.pre_dnat],
        };
        inbound.chains().chain(outbound.chains()).chain(early.into_iter().flatten())
    }
}

/// Complete rules of this host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// Sets that chains use, with addresses of both families. A member that is wider than one address is a
    /// network.
    pub sets: BTreeMap<SetId, BTreeSet<Cidr>>,
    /// Chains that endpoints use.
    pub chains: BTreeMap<ChainId, Arc<Chain>>,
    /// Endpoints of this host.
    pub endpoints: BTreeMap<EndpointKey, Arc<EndpointPolicy>>,
}

/// Change of a ruleset. Applying the fields in order (sets, chains, endpoints) never creates a reference to a
/// missing object; removals are applied in the opposite order ([`RulesetDelta::apply`]).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RulesetDelta {
    /// Changed sets, each once.
    pub sets: BTreeMap<SetId, SetChange>,
    /// Changed chains with their new rules; `None` if removed.
    pub chains: BTreeMap<ChainId, Option<Arc<Chain>>>,
    /// Changed endpoints with their new policy; `None` if removed.
    pub endpoints: BTreeMap<EndpointKey, Option<Arc<EndpointPolicy>>>,
}

/// Change of one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange {
    /// The set is new and has these members.
    New(BTreeSet<Cidr>),
    /// Members were added or removed.
    Members {
        /// Added members.
        add: BTreeSet<Cidr>,
        /// Removed members.
        remove: BTreeSet<Cidr>,
    },
    /// The set was removed, because no chain uses it.
    Gone,
}

impl RulesetDelta {
    /// Returns true if the delta is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.endpoints.is_empty()
    }

    /// Applies the delta to a ruleset.
    pub fn apply(&self, to: &mut Ruleset) {
        for (id, change) in &self.sets {
            match change {
                SetChange::New(members) => {
                    to.sets.insert(id.clone(), members.iter().copied().collect());
                }
                SetChange::Members { add, remove } => {
                    let members = to.sets.entry(id.clone()).or_default();
                    remove.iter().for_each(|member| {
                        members.remove(member);
                    });
                    members.extend(add);
                }
                SetChange::Gone => {
                    to.sets.remove(id);
                }
            }
        }
        for (id, chain) in &self.chains {
            match chain {
                Some(chain) => to.chains.insert(id.clone(), Arc::clone(chain)),
                None => to.chains.remove(id),
            };
        }
        for (key, endpoint) in &self.endpoints {
            match endpoint {
                Some(endpoint) => to.endpoints.insert(key.clone(), Arc::clone(endpoint)),
                None => to.endpoints.remove(key),
            };
        }
    }
}
