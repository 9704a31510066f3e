//! What policy asks for: address sets, chains of rules, and which chains an endpoint's packets pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::Selector;
use tortie_config::key::{EndpointKey, IpFamily};
use tortie_config::resource::{Action, Icmp, InterfaceName, MacAddr, PortRange, Protocol};
use tortie_net::Cidr;

/// The set of addresses of all endpoints that a selector selects, anywhere in the cluster. A tag is the selector
/// `has(tag)`. Equal ids have equal canonical texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(Arc<str>);

impl SetId {
    /// The set of a selector.
    #[must_use]
    pub fn of(selector: &Selector) -> Self {
        Self(selector.to_string().into())
    }

    /// The selector's canonical text.
    #[must_use]
    pub fn selector(&self) -> &str {
        &self.0
    }
}

/// Traffic to the endpoint, or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the endpoint (`inbound_rules`, ingress).
    Inbound,
    /// From the endpoint (`outbound_rules`, egress).
    Outbound,
}

/// What rules stand in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `policy/tier/<t>/policy/<n>`.
    Policy {
        /// The tier.
        tier: Arc<str>,
        /// The policy.
        name: Arc<str>,
    },
    /// `policy/profile/<p>/rules`.
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

/// The rules of one policy or profile in one direction; all endpoints share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainId {
    /// Where the rules stand.
    pub source: Source,
    /// For which traffic.
    pub direction: Direction,
}

/// Rules in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The rules.
    pub rules: Vec<Rule>,
    /// The rules could not be had: everything is denied.
    pub fail_closed: Option<FailClosed>,
}

/// Why a chain denies everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailClosed {
    /// There is no such profile, or it has no rules.
    Missing,
    /// Its value cannot be read.
    Unreadable,
}

/// One rule, with its tags and selectors as sets. Every match that is there must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// What becomes of a packet that matches.
    pub action: Action,
    /// Log what matches, with this prefix, before the action.
    pub log: Option<LogPrefix>,
    /// Only packets of this family.
    pub family: Option<IpFamily>,
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Not this protocol.
    pub not_protocol: Option<Protocol>,
    /// Where packets come from.
    pub src: End,
    /// Where they go.
    pub dst: End,
    /// Only this ICMP type and code.
    pub icmp: Option<Icmp>,
    /// Not this ICMP type and code, as one match.
    pub not_icmp: Option<Icmp>,
}

/// Matches on one end of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct End {
    /// In every one of these.
    pub sets: Vec<SetId>,
    /// In none of these.
    pub not_sets: Vec<SetId>,
    /// In any of these (empty: anywhere).
    pub nets: Vec<Cidr>,
    /// In none of these.
    pub not_nets: Vec<Cidr>,
    /// Any of these ports (empty: any).
    pub ports: Vec<PortRange>,
    /// None of these ports.
    pub not_ports: Vec<PortRange>,
}

/// The prefix of a log line: at most 27 characters of `A-Z a-z 0-9 _ . / -` and blank (data model, "Rules").
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogPrefix(Box<str>);

impl LogPrefix {
    /// The longest prefix, in characters.
    pub const MAX: usize = 27;

    /// Cuts a text to its length and replaces what it must not hold by `_`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || " _./-".contains(c) { c } else { '_' };
        Self(text.chars().take(Self::MAX).map(allowed).collect())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What stands between an endpoint and its traffic of one direction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stages {
    /// Tiers that have a policy for the endpoint, in order. One that no policy lets on drops.
    pub tiers: Vec<Tier>,
    /// Profiles, in the endpoint's order. After the last: drop.
    pub profiles: Vec<ChainId>,
}

impl Stages {
    /// Every chain, in the order in which packets meet them.
    pub fn chains(&self) -> impl Iterator<Item = &ChainId> {
        self.tiers.iter().flat_map(|tier| &tier.policies).chain(&self.profiles)
    }
}

/// The policies of one tier that select an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Its name.
    pub name: Arc<str>,
    /// Their chains, in order.
    pub policies: Vec<ChainId>,
}

/// What a workload endpoint of this host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadPolicy {
    /// Its interface on the host.
    pub interface: InterfaceName,
    /// Whether it may send and receive at all.
    pub active: bool,
    /// The addresses that it may send from.
    pub nets: Vec<Cidr>,
    /// Its MAC address, for the static neighbour.
    pub mac: Option<MacAddr>,
    /// Floating addresses: inside, outside.
    pub nats: Vec<(IpAddr, IpAddr)>,
    /// To it.
    pub inbound: Stages,
    /// From it.
    pub outbound: Stages,
}

/// What an interface of this host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPolicy {
    /// The interface; `None`: whichever has one of the addresses.
    pub interface: Option<InterfaceName>,
    /// Its expected addresses.
    pub addrs: Vec<IpAddr>,
    /// To it.
    pub inbound: Stages,
    /// From it.
    pub outbound: Stages,
    /// Before connection tracking: to it.
    pub untracked_inbound: Vec<ChainId>,
    /// Before connection tracking: from it.
    pub untracked_outbound: Vec<ChainId>,
    /// Before DNAT: to it.
    pub pre_dnat: Vec<ChainId>,
}

/// What an endpoint of this host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointPolicy {
    /// The interface of a workload.
    Workload(WorkloadPolicy),
    /// An interface of the host.
    Host(HostPolicy),
}

impl EndpointPolicy {
    /// Every chain that packets of the endpoint may meet.
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

/// Everything that this host enforces by label and rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ruleset {
    /// Sets that a chain uses. Addresses of both families; members wider than one address are networks.
    pub sets: BTreeMap<SetId, BTreeSet<Cidr>>,
    /// Chains that an endpoint uses.
    pub chains: BTreeMap<ChainId, Arc<Chain>>,
    /// The endpoints of this host.
    pub endpoints: BTreeMap<EndpointKey, Arc<EndpointPolicy>>,
}

/// What changed. Applied in the order of the fields nothing is ever used before it is there: sets, chains, endpoints;
/// what goes leaves the other way round ([`RulesetDelta::apply`]).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RulesetDelta {
    /// Sets, each once.
    pub sets: BTreeMap<SetId, SetChange>,
    /// Chains with their new rules; `None`: gone.
    pub chains: BTreeMap<ChainId, Option<Arc<Chain>>>,
    /// Endpoints with what they are allowed now; `None`: gone.
    pub endpoints: BTreeMap<EndpointKey, Option<Arc<EndpointPolicy>>>,
}

/// What became of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetChange {
    /// It is new, with these members.
    New(BTreeSet<Cidr>),
    /// Members came and went.
    Members {
        /// New ones.
        add: BTreeSet<Cidr>,
        /// Gone.
        remove: BTreeSet<Cidr>,
    },
    /// Nobody uses it any more.
    Gone,
}

impl RulesetDelta {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.chains.is_empty() && self.endpoints.is_empty()
    }

    /// Brings a ruleset up to date.
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
