//! Types of a ruleset: address sets, chains of rules, and the chains that apply to each endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, IpFamily};
use tortie_config::resource::{
    Action, EndAction, Icmp, InterfaceName, MacAddr, PortName, PortRange, Protocol,
};
use tortie_config::{Dialect, Selector};
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

/// Identifies the set of all ports that endpoints of the cluster give one of these names. Calico 3 only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSetId {
    protocol: Protocol,
    names: Arc<[PortName]>,
}

impl PortSetId {
    /// Creates the id of a set; `None` without a name.
    #[must_use]
    pub fn new(protocol: Protocol, names: &[PortName]) -> Option<Self> {
        let names: BTreeSet<PortName> = names.iter().cloned().collect();
        (!names.is_empty()).then(|| Self { protocol, names: names.into_iter().collect() })
    }

    /// Returns the protocol of the ports.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the names, sorted.
    #[must_use]
    pub fn names(&self) -> &[PortName] {
        &self.names
    }

    /// Returns protocol and name of the ports in the set.
    pub(super) fn keys(&self) -> impl Iterator<Item = (Protocol, PortName)> + '_ {
        self.names.iter().map(|name| (self.protocol, name.clone()))
    }
}

/// A port at an address of the endpoint that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedPort {
    /// Address of the endpoint.
    pub addr: IpAddr,
    /// Number of the port.
    pub port: u16,
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
        /// Data model that has the policy.
        dialect: Dialect,
        /// Tier name.
        tier: Arc<str>,
        /// Policy name.
        name: Arc<str>,
    },
    /// A profile, `policy/profile/<p>/rules`.
    Profile(Arc<str>),
}

impl Source {
    /// Creates the source of a policy.
    #[must_use]
    pub fn policy(dialect: Dialect, tier: &str, name: &str) -> Self {
        Self::Policy { dialect, tier: tier.into(), name: name.into() }
    }
}

impl fmt::Display for Source {
    /// Formats the name for people: of Calico 3 the object.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The namespace is part of the name, and names have no slash.
            Self::Policy { dialect: Dialect::V3, name, .. } if name.contains('/') => {
                write!(f, "NetworkPolicy {name}")
            }
            Self::Policy { dialect: Dialect::V3, name, .. } => write!(f, "GlobalNetworkPolicy {name}"),
            Self::Policy { tier, name, .. } if &**tier == "default" => write!(f, "policy {name}"),
            Self::Policy { tier, name, .. } => write!(f, "policy {tier}/{name}"),
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
    /// Port ranges of which one must contain the port; empty, without `named_ports`, for any port.
    pub ports: Vec<PortRange>,
    /// Set of named ports that may contain the port, as an alternative of `ports`. The rule has its protocol.
    pub named_ports: Option<PortSetId>,
    /// Port ranges of which none may contain the port.
    pub not_ports: Vec<PortRange>,
    /// Set of named ports that must not contain the port. Packets of another protocol are not in it.
    pub not_named_ports: Option<PortSetId>,
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
    /// Tiers with a policy that selects the endpoint and applies to the direction, in order.
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
    /// Action for packets that none of the policies decides.
    pub end: EndAction,
}

/// Policy of a workload endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadPolicy {
    /// Name of the host-side interface.
    pub interface: InterfaceName,
    /// True if the endpoint may send and receive packets.
    pub active: bool,
    /// Addresses of the endpoint.
    pub nets: Vec<Cidr>,
    /// Networks from which the endpoint may send in addition to its addresses; in a Calico 3 store only.
    pub spoofed_sources: Vec<Cidr>,
    /// MAC address for the static neighbour entry.
    pub mac: Option<MacAddr>,
    /// Floating addresses as (internal, external) pairs.
    pub nats: Vec<(IpAddr, IpAddr)>,
    /// Tiers and profiles for traffic to the endpoint.
    pub inbound: Stages,
    /// Tiers and profiles for traffic from the endpoint.
    pub outbound: Stages,
}

impl WorkloadPolicy {
    /// Returns the networks from which the endpoint may send.
    pub fn sources(&self) -> impl Iterator<Item = &Cidr> {
        self.nets.iter().chain(&self.spoofed_sources)
    }
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
    /// Tiers for packets that arrive by the interface and are forwarded; in a Calico 3 store only.
    pub forward_inbound: Vec<Tier>,
    /// Tiers for packets that are forwarded and leave by the interface; in a Calico 3 store only.
    pub forward_outbound: Vec<Tier>,
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
        let (forward, early): ([&[Tier]; 2], [&[ChainId]; 3]) = match self {
            Self::Workload(_) => ([&[], &[]], [&[], &[], &[]]),
            Self::Host(host) => (
                [&host.forward_inbound, &host.forward_outbound],
                [&host.untracked_inbound, &host.untracked_outbound, &host.pre_dnat],
            ),
        };
        let forward = forward.into_iter().flatten().flat_map(|tier| &tier.policies);
        inbound.chains().chain(outbound.chains()).chain(forward).chain(early.into_iter().flatten())
    }
}

/// Complete rules of this host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// Sets that chains use, with addresses of both families. A member that is wider than one address is a
    /// network.
    pub sets: BTreeMap<SetId, BTreeSet<Cidr>>,
    /// Sets of named ports that chains use.
    pub port_sets: BTreeMap<PortSetId, BTreeSet<NamedPort>>,
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
    /// Changed sets of named ports, each once.
    pub port_sets: BTreeMap<PortSetId, SetChange<NamedPort>>,
    /// Changed chains with their new rules; `None` if removed.
    pub chains: BTreeMap<ChainId, Option<Arc<Chain>>>,
    /// Changed endpoints with their new policy; `None` if removed.
    pub endpoints: BTreeMap<EndpointKey, Option<Arc<EndpointPolicy>>>,
}

/// Change of one set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange<M = Cidr> {
    /// The set is new and has these members.
    New(BTreeSet<M>),
    /// Members were added or removed.
    Members {
        /// Added members.
        add: BTreeSet<M>,
        /// Removed members.
        remove: BTreeSet<M>,
    },
    /// The set was removed, because no chain uses it.
    Gone,
}

impl RulesetDelta {
    /// Returns true if the delta is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
            && self.port_sets.is_empty()
            && self.chains.is_empty()
            && self.endpoints.is_empty()
    }

    /// Applies the delta to a ruleset.
    pub fn apply(&self, to: &mut Ruleset) {
        apply_sets(&self.sets, &mut to.sets);
        apply_sets(&self.port_sets, &mut to.port_sets);
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

fn apply_sets<I: Ord + Clone, M: Ord + Copy>(
    changes: &BTreeMap<I, SetChange<M>>,
    to: &mut BTreeMap<I, BTreeSet<M>>,
) {
    for (id, change) in changes {
        match change {
            SetChange::New(members) => {
                to.insert(id.clone(), members.clone());
            }
            SetChange::Members { add, remove } => {
                let members = to.entry(id.clone()).or_default();
                for member in remove {
                    members.remove(member);
                }
                members.extend(add);
            }
            SetChange::Gone => {
                to.remove(id);
            }
        }
    }
}
