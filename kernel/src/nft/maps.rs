//! The fixed sets and maps of the table: dispatch by interface, addresses of pools and hosts, NAT.

use super::ir::{KeyType, Name, SetType, ValueType};

/// A fixed set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::nft) enum Map {
    /// Workload interface -> check of source addresses, or inactive.
    RawInterfaces,
    /// Interface -> untracked policy of its host endpoint.
    RawHostIn,
    RawHostOut,
    /// Interface -> pre-DNAT policy of its host endpoint.
    PreDnatHost,
    /// Workload interface -> tiers for its packets, which return if all tiers pass the packet on.
    FromWorkload,
    ToWorkload,
    /// Workload interface -> its profiles, evaluated after the tiers.
    FromProfiles,
    ToProfiles,
    /// Workload interfaces with an active endpoint.
    Workloads,
    /// Workload interfaces with an inactive endpoint.
    Inactive,
    /// Interface -> policy of its host endpoint.
    HostIn,
    HostOut,
    /// Interface -> tiers of its host endpoint for forwarded packets; for a Calico 3 store only.
    HostForwardIn,
    HostForwardOut,
    /// Pairs of interface and source address that the workload may use.
    From {
        v4: bool,
    },
    /// Pairs of interface and source network; exists only while an endpoint has one.
    FromNets {
        v4: bool,
    },
    /// Floating address -> inside address.
    Dnat {
        v4: bool,
    },
    /// Pair of an inside address with itself -> its floating address.
    Hairpin {
        v4: bool,
    },
    /// Pools whose packets are masqueraded.
    Masquerade {
        v4: bool,
    },
    /// All pools.
    Pools {
        v4: bool,
    },
    /// Hosts and networks that may send IPIP.
    IpipHosts,
    /// Hosts and networks that may send VXLAN.
    VxlanHosts {
        v4: bool,
    },
}

impl Map {
    /// Maps of verdicts that every table has.
    pub(in crate::nft) const VERDICTS: [Self; 11] = [
        Self::RawInterfaces,
        Self::RawHostIn,
        Self::RawHostOut,
        Self::PreDnatHost,
        Self::FromWorkload,
        Self::ToWorkload,
        Self::FromProfiles,
        Self::ToProfiles,
        Self::Inactive,
        Self::HostIn,
        Self::HostOut,
    ];

    /// Maps of verdicts for a Calico 3 store.
    pub(in crate::nft) const FORWARD: [Self; 2] = [Self::HostForwardIn, Self::HostForwardOut];

    /// Returns true for the maps that are looked up last: a packet without an entry in them, or whose chain
    /// is empty, is dropped.
    pub(in crate::nft) fn is_last(name: &str) -> bool {
        [Self::FromProfiles, Self::ToProfiles].iter().any(|map| map.text() == name)
    }

    pub(in crate::nft) fn name(self) -> Name {
        self.text().into()
    }

    pub(in crate::nft) fn text(self) -> &'static str {
        match self {
            Self::RawInterfaces => "raw-interfaces",
            Self::RawHostIn => "raw-host-in",
            Self::RawHostOut => "raw-host-out",
            Self::PreDnatHost => "pre-dnat-host",
            Self::FromWorkload => "from-workload",
            Self::ToWorkload => "to-workload",
            Self::FromProfiles => "from-profiles",
            Self::ToProfiles => "to-profiles",
            Self::Workloads => "workload-interfaces",
            Self::Inactive => "inactive-interfaces",
            Self::HostIn => "host-in",
            Self::HostOut => "host-out",
            Self::HostForwardIn => "host-forward-in",
            Self::HostForwardOut => "host-forward-out",
            Self::From { v4: true } => "from-v4",
            Self::From { v4: false } => "from-v6",
            Self::FromNets { v4: true } => "from-nets-v4",
            Self::FromNets { v4: false } => "from-nets-v6",
            Self::Dnat { v4: true } => "dnat-v4",
            Self::Dnat { v4: false } => "dnat-v6",
            Self::Hairpin { v4: true } => "hairpin-v4",
            Self::Hairpin { v4: false } => "hairpin-v6",
            Self::Masquerade { v4: true } => "masquerade-v4",
            Self::Masquerade { v4: false } => "masquerade-v6",
            Self::Pools { v4: true } => "pools-v4",
            Self::Pools { v4: false } => "pools-v6",
            Self::IpipHosts => "ipip-hosts-v4",
            Self::VxlanHosts { v4: true } => "vxlan-hosts-v4",
            Self::VxlanHosts { v4: false } => "vxlan-hosts-v6",
        }
    }

    pub(in crate::nft) fn of(self) -> SetType {
        let (key, value, interval) = match self {
            Self::From { v4 } => (KeyType::InterfaceAddr { v4 }, ValueType::Member, false),
            Self::FromNets { v4 } => (KeyType::InterfaceAddr { v4 }, ValueType::Member, true),
            Self::Dnat { v4 } => (KeyType::Addr { v4 }, ValueType::Addr { v4 }, false),
            Self::Hairpin { v4 } => (KeyType::AddrPair { v4 }, ValueType::Addr { v4 }, false),
            Self::Masquerade { v4 } | Self::Pools { v4 } | Self::VxlanHosts { v4 } => {
                (KeyType::Addr { v4 }, ValueType::Member, true)
            }
            Self::IpipHosts => (KeyType::Addr { v4: true }, ValueType::Member, true),
            Self::Workloads => (KeyType::Interface, ValueType::Member, false),
            _ => (KeyType::Interface, ValueType::Verdict, false),
        };
        SetType { key, value, interval }
    }

    pub(in crate::nft) fn comment(self) -> &'static str {
        match self {
            Self::RawInterfaces => "workload interfaces: is the source theirs",
            Self::RawHostIn | Self::RawHostOut => "interfaces with untracked policy",
            Self::PreDnatHost => "interfaces with policy before DNAT",
            Self::FromWorkload => "workload interfaces: the tiers that their packets pass",
            Self::ToWorkload => "workload interfaces: the tiers that packets to them pass",
            Self::FromProfiles => "workload interfaces: the profiles that their packets pass",
            Self::ToProfiles => "workload interfaces: the profiles that packets to them pass",
            Self::Workloads => "workload interfaces of active endpoints",
            Self::Inactive => "workload interfaces that get nothing, of the host neither",
            Self::HostIn | Self::HostOut => "interfaces of host endpoints",
            Self::HostForwardIn | Self::HostForwardOut => "interfaces of host endpoints: forwarded packets",
            Self::From { .. } | Self::FromNets { .. } => "sources of workload interfaces",
            Self::Dnat { .. } => "floating addresses, to inside",
            Self::Hairpin { .. } => "inside addresses that call themselves by their floating one",
            Self::Masquerade { .. } => "pools with masquerade",
            Self::Pools { .. } => "all pools",
            Self::IpipHosts => "hosts that may send IPIP",
            Self::VxlanHosts { .. } => "hosts that may send VXLAN",
        }
    }
}
