//! The meaning of a chain, called its node, from which its name is derived.

use std::sync::Arc;

use tortie_engine::policy::{ChainId, Direction, Stages, Tier};

/// Reason for dropping a packet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    /// By this rule of a policy or a profile, counted from 0.
    Rule(ChainId, usize),
    /// By the end of a tier: no policy of the tier allowed it or passed it on.
    EndOfTier { tier: Arc<str>, direction: Direction },
    /// By the end of the profiles: none of them decided.
    EndOfProfiles { direction: Direction },
    /// No endpoint has the workload interface.
    UnknownInterface,
    /// The source address is not one of the endpoint's addresses.
    Spoofed,
    /// The destination is a loopback address of the host, and no rule of the host redirected it there.
    Loopback,
    /// The endpoint is not active.
    Inactive,
    /// IPIP from a source that is no host of the cluster.
    Ipip,
    /// VXLAN from a source that is no host of the cluster.
    Vxlan,
    /// VXLAN from a workload (`AllowVXLANPacketsFromWorkloads`).
    VxlanOfWorkload,
    /// From a workload to its host (`DefaultEndpointToHostAction`).
    ToHost,
    /// IPv6 of a workload while `Ipv6Support` is off.
    NoIpv6,
}

/// Stage at which a chain's rules are applied; it determines the effect of `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// In tiers and profiles.
    Filter,
    /// Before conntrack.
    Untracked,
    /// Before DNAT.
    PreDnat,
}

impl Usage {
    pub(super) const ALL: [Self; 3] = [Self::Filter, Self::Untracked, Self::PreDnat];
}

/// Set of failsafe ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ports {
    Inbound,
    Outbound,
    /// Without conntrack, replies must be accepted too, by their source port.
    RawInbound,
    RawOutbound,
}

/// Chains that exist once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fixed {
    RawWorkload,
    AntiSpoof,
    WorkloadToHost,
    ToHost,
    FromWorkload,
    ToWorkload,
    Failsafe(Ports),
}

/// Base chains, which have a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    RawPrerouting,
    RawOutput,
    PreDnat,
    NatPrerouting,
    NatOutput,
    NatPostrouting,
    InputFrom,
    InputToHost,
    /// Policies of host endpoints for forwarded packets; for a Calico 3 store only.
    HostForwardFrom,
    HostForwardTo,
    ForwardFrom,
    ForwardTo,
    Output,
}

/// The meaning of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// The rules of a policy or a profile.
    Rules { id: ChainId, usage: Usage },
    /// The policies of a tier that select an endpoint.
    Tier { tier: Tier, direction: Direction },
    /// The tiers of a workload in one direction, before its profiles; returns if all tiers pass the packet
    /// on.
    Tiers { tiers: Vec<Tier>, direction: Direction },
    /// Several profiles of a workload, in order.
    Profiles { profiles: Vec<ChainId>, direction: Direction },
    /// All stages for packets of a host interface in one direction.
    Host { of: Stages, direction: Direction },
    /// Untracked or pre-DNAT policies of a host endpoint.
    Early { chains: Vec<ChainId>, usage: Usage, direction: Direction },
    /// Those of one tier; returns if none decides.
    EarlyTier { chains: Vec<ChainId>, usage: Usage, direction: Direction },
    /// Logs and drops.
    Denied(Denied),
    /// A fixed chain.
    Fixed(Fixed),
    /// A base chain; `true` if it follows the rules of other programs (`ChainInsertMode`).
    Base(Base, bool),
}
