//! Input and result of a path evaluation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_config::resource::HostAction;
use tortie_net::Cidr;

use crate::policy::nat::Floating;
use crate::policy::types::{EndpointPolicy, LogPrefix, Ruleset};
use crate::policy::verdict::{Decider, Decision, Packet, Verdict};

const ICMPV6: u8 = 58;

/// A packet, with its origin and connection state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The packet as it arrives, or as a process of the host sends it, before any translation. The
    /// destination of a reply is the one after connection tracking reversed the translation.
    pub packet: Packet,
    /// Input interface, or the host itself.
    pub from: Place,
    /// Connection tracking state, unless policy excludes the packet from tracking.
    pub state: State,
}

impl Flow {
    /// Returns true for multicast listener and neighbour discovery, which Linux excludes from connection
    /// tracking and therefore from address translation (`nf_conntrack_icmpv6_error`).
    #[must_use]
    pub fn is_never_tracked(&self) -> bool {
        let of_type = self.packet.icmp.is_some_and(|(kind, _)| matches!(kind, 130..=136 | 143));
        of_type && self.packet.src.is_ipv6() && self.packet.protocol == ICMPV6
    }
}

/// Origin or destination of a packet on this host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// This host itself.
    Host,
    /// An interface of this host.
    Interface(Box<str>),
}

/// Connection tracking state of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// First packet of a connection (NEW).
    New,
    /// Packet of an existing connection, or related to one (ESTABLISHED, RELATED).
    Established {
        /// True if the direction is opposite to that of the first packet.
        reply: bool,
    },
    /// Packet that fits no connection and cannot start one (INVALID).
    Invalid,
}

/// Routes as far as the evaluation needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routes {
    /// Local addresses of this host.
    pub local: BTreeSet<IpAddr>,
    /// Output interface by destination network; the longest match applies.
    pub via: BTreeMap<Cidr, Box<str>>,
}

impl Routes {
    /// Returns the routes to the workloads of a ruleset and to their floating addresses. Inactive workloads
    /// are included, so that packets to them can be explained.
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

    /// Returns the destination of packets to an address; `None` if there is no route.
    #[must_use]
    pub fn place(&self, addr: IpAddr) -> Option<Place> {
        if self.local.contains(&addr) {
            return Some(Place::Host);
        }
        // Most queries are for workload addresses, which are found without a scan.
        if let Some(name) = self.via.get(&Cidr::host(addr)) {
            return Some(Place::Interface(name.clone()));
        }
        let having = self.via.iter().filter(|(net, _)| net.contains(addr));
        having.max_by_key(|(net, _)| net.len()).map(|(_, name)| Place::Interface(name.clone()))
    }
}

/// A stage of a packet's path, in path order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Check at a workload interface: the endpoint must be known and active, and the source address its own.
    Source,
    /// Untracked policy of the host endpoint, in either direction.
    Untracked,
    /// Pre-DNAT policy of the host endpoint at the input interface.
    PreDnat,
    /// Translation of floating addresses to internal ones.
    Dnat,
    /// Routing decision.
    Route,
    /// IPIP or VXLAN to or from this host.
    Tunnel,
    /// Policy for forwarded packets of the host endpoint at the input interface; in a Calico 3 store only.
    ForwardInbound,
    /// Policy for forwarded packets of the host endpoint at the output interface; in a Calico 3 store only.
    ForwardOutbound,
    /// Outbound policy of the workload that sent the packet.
    FromWorkload,
    /// Packet from a workload to this host, after its policy (`DefaultEndpointToHostAction`).
    ToHost,
    /// Inbound policy of the host endpoint at the input interface.
    HostInbound,
    /// Inbound policy of the destination workload.
    ToWorkload,
    /// Outbound policy of the host endpoint at the output interface.
    HostOutbound,
    /// Translation of the source address.
    Snat,
}

/// Result of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Stage that was evaluated.
    pub stage: Stage,
    /// Endpoint whose rules were evaluated, if any.
    pub endpoint: Option<EndpointKey>,
    /// Verdict of the stage; `None` if the packet continues to the next stage.
    pub verdict: Option<Verdict>,
    /// Reason of the result.
    pub reason: Reason,
}

/// Reason for the result of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Policies and profiles decided.
    Policy(Decision),
    /// The port is a failsafe port.
    Failsafe,
    /// The connection was allowed by its first packet.
    Established,
    /// Connection tracking classifies the packet as INVALID.
    Invalid,
    /// The endpoint is not active.
    Inactive,
    /// The workload interface has no endpoint.
    UnknownInterface,
    /// The source is one of the endpoint's addresses.
    OwnSource,
    /// The source is not one of the endpoint's addresses.
    Spoofed,
    /// The packet from a workload goes to a loopback address of the host.
    Loopback,
    /// The packet is required for IPv6 to work: link-local sources, neighbour discovery.
    Neighbour,
    /// The packet is for a service of the host to its workloads: DHCP, DNS, metadata.
    HostService,
    /// The packet is IPv6 from a workload, while `Ipv6Support` is off.
    NoIpv6,
    /// Untracked or pre-DNAT policy accepted the packet, so later policy is skipped.
    AcceptedEarlier,
    /// IPIP between hosts of the cluster.
    KnownTunnel,
    /// IPIP from a source that is not a host of the cluster.
    UnknownTunnel,
    /// VXLAN between hosts of the cluster.
    KnownVxlan,
    /// VXLAN from a source that is not a host of the cluster.
    UnknownVxlan,
    /// VXLAN from a workload (`AllowVXLANPacketsFromWorkloads`).
    VxlanOfWorkload,
    /// Action configured by `DefaultEndpointToHostAction`.
    ToHost(HostAction),
    /// The host may always reach its own workloads.
    OwnWorkload,
    /// The interface has no endpoint, so no policy applies.
    NoEndpoint,
    /// The first address was translated to the second.
    Translated(IpAddr, IpAddr),
    /// The source becomes this host's address on the output interface.
    Masquerade,
    /// The packet is routed to this destination.
    Routed(Place),
    /// No route exists, so the packet is dropped.
    NoRoute,
}

/// Path of a packet through a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Results of the stages, in order.
    pub steps: Vec<Step>,
    /// Final verdict.
    pub verdict: Verdict,
    /// The packet after the last stage. The source of a masqueraded packet is still the original one.
    pub packet: Packet,
    /// True if connection tracking does not track the packet.
    pub untracked: bool,
}

impl Path {
    /// Returns the decisive step: the one that dropped the packet, else the last rule that allowed it, else
    /// the last stage that allowed it.
    #[must_use]
    pub fn decisive(&self) -> Option<&Step> {
        let mut of_verdict = self.steps.iter().rev().filter(|step| step.verdict == Some(self.verdict));
        let by_rule = of_verdict.clone().find(|step| matches!(step.reason, Reason::Policy(_)));
        by_rule.filter(|_| self.verdict == Verdict::Allow).or_else(|| of_verdict.next())
    }

    /// Returns the deciding rule, tier or profile, if policy decided.
    #[must_use]
    pub fn decider(&self) -> Option<&Decider> {
        match &self.decisive()?.reason {
            Reason::Policy(decision) => Some(&decision.by),
            _ => None,
        }
    }

    /// Returns the prefixes of all log rules that matched, in order.
    pub fn logs(&self) -> impl Iterator<Item = &LogPrefix> {
        self.steps.iter().flat_map(|step| match &step.reason {
            Reason::Policy(decision) => decision.logs.as_slice(),
            _ => &[],
        })
    }
}
