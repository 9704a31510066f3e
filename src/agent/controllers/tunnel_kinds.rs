//! Kinds of tunnels: name, IPAM handle and attribute of their address, the pools that they serve.

use std::net::IpAddr;

use tortie_config::resource::Pool;
use tortie_engine::model::Model;
use tortie_engine::writer::TunnelKind;

/// A kind of tunnel with an address of its own.
pub(in crate::agent) trait Tunnel: Send + Sync + 'static {
    /// Name in reports.
    const NAME: &'static str;
    /// Prefix of the IPAM handle.
    const HANDLE: &'static str;
    /// Value of the attribute `type`.
    const TYPE: &'static str;
    /// Kind of tunnel, which names the place of the address in the store.
    const KIND: TunnelKind;

    /// Returns true if addresses of the pool are reached through this tunnel.
    fn is_of(pool: &Pool) -> bool;

    /// Returns the stored address of this host.
    fn stored(model: &Model) -> Option<IpAddr>;
}

/// IPIP.
pub(in crate::agent) struct Ipip;

impl Tunnel for Ipip {
    const NAME: &'static str = "IPIP";
    const HANDLE: &'static str = "ipip-tunnel-addr";
    const TYPE: &'static str = "ipipTunnelAddress";
    const KIND: TunnelKind = TunnelKind::Ipip;

    fn is_of(pool: &Pool) -> bool {
        pool.ipip.is_some()
    }

    fn stored(model: &Model) -> Option<IpAddr> {
        model.settings().ip_in_ip_tunnel_addr.map(IpAddr::V4)
    }
}

/// VXLAN between IPv4 addresses of hosts.
pub(in crate::agent) struct Vxlan;

impl Tunnel for Vxlan {
    const NAME: &'static str = "VXLAN";
    const HANDLE: &'static str = "vxlan-tunnel-addr";
    const TYPE: &'static str = "vxlanTunnelAddress";
    const KIND: TunnelKind = TunnelKind::Vxlan;

    fn is_of(pool: &Pool) -> bool {
        pool.vxlan.is_some()
    }

    fn stored(model: &Model) -> Option<IpAddr> {
        model.host(model.node())?.vxlan_addr(Self::KIND.family())
    }
}

/// VXLAN between IPv6 addresses of hosts.
pub(in crate::agent) struct VxlanV6;

impl Tunnel for VxlanV6 {
    const NAME: &'static str = "IPv6 VXLAN";
    const HANDLE: &'static str = "vxlan-v6-tunnel-addr";
    const TYPE: &'static str = "vxlanV6TunnelAddress";
    const KIND: TunnelKind = TunnelKind::VxlanV6;

    fn is_of(pool: &Pool) -> bool {
        pool.vxlan.is_some()
    }

    fn stored(model: &Model) -> Option<IpAddr> {
        model.host(model.node())?.vxlan_addr(Self::KIND.family())
    }
}
