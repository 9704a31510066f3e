//! What a chain means: its node, from which it has its name.

use std::sync::Arc;

use tortie_engine::policy::{ChainId, Direction, Stages, Tier};

/// Why a packet was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    /// By this rule of a policy or a profile, counted from 0.
    Rule(ChainId, usize),
    /// No policy of this tier let it go on.
    EndOfTier { tier: Arc<str>, direction: Direction },
    /// No profile decided.
    EndOfProfiles { direction: Direction },
    /// No endpoint has the workload interface.
    UnknownInterface,
    /// Its source is none of its endpoint's addresses.
    Spoofed,
    /// To a loopback address of the host, which no rule of the host led it to.
    Loopback,
    /// Its endpoint is not active.
    Inactive,
    /// IPIP from a source that is no host of the cluster.
    Ipip,
    /// From a workload to its host (`DefaultEndpointToHostAction`).
    ToHost,
    /// IPv6 of a workload, while `Ipv6Support` is off.
    NoIpv6,
}

/// Where rules act, which says what `allow` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// In tiers and as profiles.
    Filter,
    /// Before connection tracking.
    Untracked,
    /// Before DNAT.
    PreDnat,
}

impl Usage {
    pub(super) const ALL: [Self; 3] = [Self::Filter, Self::Untracked, Self::PreDnat];
}

/// Which failsafe ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ports {
    Inbound,
    Outbound,
    /// Without connection tracking replies have to be let through too, by their source port.
    RawInbound,
    RawOutbound,
}

/// Chains that are there once.
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

/// Chains with a hook.
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
    ForwardFrom,
    ForwardTo,
    Output,
}

/// A chain, by what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// The rules of a policy or a profile.
    Rules { id: ChainId, usage: Usage },
    /// The policies of a tier that select an endpoint.
    Tier { tier: Tier, direction: Direction },
    /// What a workload's packets pass in one direction before its profiles: returns when all tiers let the packet on.
    Tiers { tiers: Vec<Tier>, direction: Direction },
    /// Several profiles of a workload, in order.
    Profiles { profiles: Vec<ChainId>, direction: Direction },
    /// Everything that packets of a host's interface pass in one direction.
    Host { of: Stages, direction: Direction },
    /// Untracked or pre-DNAT policies of a host endpoint.
    Early { chains: Vec<ChainId>, usage: Usage, direction: Direction },
    /// Tells and drops.
    Denied(Denied),
    /// There once.
    Fixed(Fixed),
    /// With a hook; `true`: after the rules of others (`ChainInsertMode`).
    Base(Base, bool),
}
