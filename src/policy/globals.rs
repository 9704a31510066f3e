//! What the rules of this host depend on besides policies and endpoints: settings, pools, hosts.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use tortie_config::Cidr;
use tortie_config::resource::{Failsafe, HostAction};

/// The frame that policies stand in (facts of the store, not of the kernel).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Globals {
    /// What workload interfaces begin with: any of these (`InterfacePrefix`).
    pub interface_prefixes: Vec<String>,
    /// What becomes of packets from a workload to its host, after policy (`DefaultEndpointToHostAction`).
    pub to_host: HostAction,
    /// Packet mark bits that are ours (`IptablesMarkMask`): two of them are used, the lowest ones.
    pub mark_mask: u32,
    /// Ports on the host that are always reachable (`FailsafeInboundHostPorts`).
    pub failsafe_inbound: Vec<Failsafe>,
    /// Ports that the host can always reach (`FailsafeOutboundHostPorts`).
    pub failsafe_outbound: Vec<Failsafe>,
    /// Addresses of all hosts, between which IPIP packets are accepted; `None`: IPIP is not looked at (`IpInIpEnabled`).
    pub ipip_hosts: Option<BTreeSet<Ipv4Addr>>,
    /// The own address in the tunnel, which other local addresses are masqueraded to.
    pub tunnel_addr: Option<Ipv4Addr>,
    /// Every pool, disabled ones too.
    pub pools: BTreeSet<Cidr>,
    /// Those whose packets to addresses outside of all pools are masqueraded.
    pub masquerade: BTreeSet<Cidr>,
    /// Packets that connection tracking calls invalid are dropped (not `DisableConntrackInvalidCheck`).
    pub drop_invalid: bool,
    /// Rules for IPv6 too (`Ipv6Support`).
    pub ipv6: bool,
    /// Own rules come before those of others at the same hook (`ChainInsertMode`).
    pub first: bool,
    /// Most members of an address set (`MaxIpsetSize`).
    pub set_size: u32,
}
