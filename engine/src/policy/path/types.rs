//! What goes into the way of a packet, and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_config::resource::HostAction;
use tortie_net::Cidr;

use crate::policy::nat::Floating;
use crate::policy::types::{EndpointPolicy, LogPrefix, Ruleset};
use crate::policy::verdict::{Decider, Decision, Packet, Verdict};

const ICMPV6: u8 = 58;

/// A packet with what the host knows of it when it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The packet as it arrives, or as a process of the host sends it: before any translation. Of a reply, the destination
    /// is the one that connection tracking translates back to.
    pub packet: Packet,
    /// The interface that it comes by, or the host itself.
    pub from: Place,
    /// What connection tracking says, unless policy keeps the packet from it.
    pub state: State,
}

impl Flow {
    /// Linux keeps multicast listener and neighbour discovery from connection tracking, so that no address of them is
    /// translated either (`nf_conntrack_icmpv6_error`).
    #[must_use]
    pub fn is_never_tracked(&self) -> bool {
        let of_type = self.packet.icmp.is_some_and(|(kind, _)| matches!(kind, 130..=136 | 143));
        of_type && self.packet.src.is_ipv6() && self.packet.protocol == ICMPV6
    }
}

/// Where a packet comes from or goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// This host itself.
    Host,
    /// An interface of this host.
    Interface(Box<str>),
}

/// What connection tracking says of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// The first of a connection.
    New,
    /// Of a connection that is there, or related to one.
    Established {
        /// Against the direction of the first packet.
        reply: bool,
    },
    /// It fits no connection and begins none.
    Invalid,
}

/// Where packets go: what the evaluation knows of the kernel's routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routes {
    /// The addresses of this host.
    pub local: BTreeSet<IpAddr>,
    /// The interface behind which each network is; the longest that has an address counts.
    pub via: BTreeMap<Cidr, Box<str>>,
}

impl Routes {
    /// The routes to the workloads of a ruleset and to their floating addresses, inactive workloads too: what is sent to
    /// them is to be explained.
    #[must_use]
    pub fn of_workloads(ruleset: &Ruleset) -> Self {
        let mut routes = Self::default();
        for endpoint in ruleset.endpoints.values() {
            if let EndpointPolicy::Workload(workload) = &**endpoint {
                routes.via.extend(workload.nets.iter().map(|net| (*net, workload.interface.as_str().into())));
            }
        }
        for (outside, inside) in Floating::of(ruleset).inward {
            if let Some(Place::Interface(name)) = routes.place(inside) {
                routes.via.insert(Cidr::host(outside), name);
            }
        }
        routes
    }

    /// Where packets to an address go; `None`: nowhere.
    #[must_use]
    pub fn place(&self, addr: IpAddr) -> Option<Place> {
        if self.local.contains(&addr) {
            return Some(Place::Host);
        }
        // Most of what is asked about is a workload.
        if let Some(name) = self.via.get(&Cidr::host(addr)) {
            return Some(Place::Interface(name.clone()));
        }
        let having = self.via.iter().filter(|(net, _)| net.contains(addr));
        having.max_by_key(|(net, _)| net.len()).map(|(_, name)| Place::Interface(name.clone()))
    }
}

/// A place on a packet's way, in the order of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// By a workload interface: is it known and active, and is the source one of its own.
    Source,
    /// Untracked policy of the host endpoint, in either direction.
    Untracked,
    /// Pre-DNAT policy of the host endpoint that the packet comes by.
    PreDnat,
    /// Floating addresses become inside ones.
    Dnat,
    /// Where the packet goes.
    Route,
    /// IPIP to or from this host.
    Tunnel,
    /// From a workload: its outbound policy.
    FromWorkload,
    /// From a workload to this host, after its policy (`DefaultEndpointToHostAction`).
    ToHost,
    /// Inbound policy of the host endpoint that the packet comes by.
    HostInbound,
    /// To a workload: its inbound policy.
    ToWorkload,
    /// Outbound policy of the host endpoint that the packet leaves by.
    HostOutbound,
    /// Its source becomes another.
    Snat,
}

/// What happened at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where.
    pub stage: Stage,
    /// Whose rules they are.
    pub endpoint: Option<EndpointKey>,
    /// `None`: this place left the packet to the next.
    pub verdict: Option<Verdict>,
    /// Why.
    pub reason: Reason,
}

/// Why a place did what it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Policies and profiles.
    Policy(Decision),
    /// The port is always open.
    Failsafe,
    /// The connection was allowed when it began.
    Established,
    /// Connection tracking calls the packet invalid.
    Invalid,
    /// The endpoint is not active.
    Inactive,
    /// No endpoint has this workload interface.
    UnknownInterface,
    /// The source is one of the endpoint's addresses.
    OwnSource,
    /// The source is none of the endpoint's addresses.
    Spoofed,
    /// To a loopback address of the host, which no rule of the host led the packet to.
    Loopback,
    /// IPv6 needs it to work at all: link-local sources, neighbour discovery.
    Neighbour,
    /// IPv6 of a workload, while `Ipv6Support` is off.
    NoIpv6,
    /// Untracked or pre-DNAT policy has accepted the packet: later policy is not asked.
    AcceptedEarlier,
    /// IPIP between hosts of the cluster.
    KnownTunnel,
    /// IPIP from a source that is no host of the cluster.
    UnknownTunnel,
    /// `DefaultEndpointToHostAction`.
    ToHost(HostAction),
    /// The host may always reach its own workloads.
    OwnWorkload,
    /// The interface has no endpoint, so nothing is enforced.
    NoEndpoint,
    /// This address became that one.
    Translated(IpAddr, IpAddr),
    /// The source becomes this host's address on the interface.
    Masquerade,
    /// It goes there.
    Routed(Place),
    /// It goes nowhere: no route is known.
    NoRoute,
}

/// The way of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// What happened, in order.
    pub steps: Vec<Step>,
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// The packet as it stands at the end. A masqueraded one still has its source.
    pub packet: Packet,
    /// Connection tracking leaves it alone.
    pub untracked: bool,
}

impl Path {
    /// The step that decided: what dropped the packet, or the last rule that let it pass, else the last place that did.
    #[must_use]
    pub fn decisive(&self) -> Option<&Step> {
        let mut of_verdict = self.steps.iter().rev().filter(|step| step.verdict == Some(self.verdict));
        let by_rule = of_verdict.clone().find(|step| matches!(step.reason, Reason::Policy(_)));
        by_rule.filter(|_| self.verdict == Verdict::Allow).or_else(|| of_verdict.next())
    }

    /// Who decided, when it was policy.
    #[must_use]
    pub fn decider(&self) -> Option<&Decider> {
        match &self.decisive()?.reason {
            Reason::Policy(decision) => Some(&decision.by),
            _ => None,
        }
    }

    /// What was logged on the way, in order.
    pub fn logs(&self) -> impl Iterator<Item = &LogPrefix> {
        self.steps.iter().flat_map(|step| match &step.reason {
            Reason::Policy(decision) => decision.logs.as_slice(),
            _ => &[],
        })
    }
}
