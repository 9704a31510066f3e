//! Read access to what only the VXLAN and routes of the store use: blocks of all hosts, and the ends of hosts.

use std::net::{IpAddr, Ipv4Addr};

use tortie_config::Resource;
use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{Block, ProgramClusterRoutes, Settings};
use tortie_net::Cidr;

use super::{StoredValue, stored};
use crate::model::state::Model;

impl Model {
    /// Returns all blocks that this model watches, sorted by prefix.
    pub fn blocks(&self) -> impl Iterator<Item = StoredValue<'_, Cidr, Block>> {
        let first = Key::Block(Cidr::v4(Ipv4Addr::UNSPECIFIED, 0));
        self.rest
            .range(first..)
            .map_while(|(key, slot)| if let Key::Block(cidr) = key { Some((cidr, slot)) } else { None })
            .filter_map(|(cidr, slot)| {
                stored(cidr, slot, |resource| match resource {
                    Resource::Block(block) => Some(&**block),
                    _ => None,
                })
            })
    }

    /// Returns true if the routes of a pool come from the store, so that the blocks of all hosts are followed.
    #[must_use]
    pub fn follows_all_blocks(&self) -> bool {
        // The settings are read only where an IPIP pool asks for them.
        self.pools().any(|pool| pool.value.vxlan.is_some())
            || (self.pools().any(|pool| pool.value.ipip.is_some()) && self.gives_ipip_routes())
    }

    /// Returns true if the routes of IPIP pools come from the store and not from BGP, because
    /// `ProgramClusterRoutes` asks for it.
    #[must_use]
    pub fn gives_ipip_routes(&self) -> bool {
        let asked = self.settings().program_cluster_routes;
        matches!(asked, Some(ProgramClusterRoutes::All | ProgramClusterRoutes::Ipip))
    }

    /// Returns true if VXLAN is used in a family: as a setting says, else if a pool of the family uses it.
    #[must_use]
    pub fn uses_vxlan(&self, settings: &Settings, family: IpFamily) -> bool {
        let is_of = |pool: &Cidr| pool.is_v4() == (family == IpFamily::V4);
        let has_pool = || self.pools().any(|pool| is_of(pool.key) && pool.value.vxlan.is_some());
        settings.vxlan_enabled.unwrap_or_else(has_pool)
    }

    /// Returns the configured VXLAN address of this host in a family, if any; refused as
    /// [`Model::tunnel_address`].
    ///
    /// # Errors
    /// The current holder of the address.
    pub fn vxlan_address(&self, family: IpFamily) -> Result<Option<IpAddr>, String> {
        let Some(addr) = self.host(&self.node).and_then(|host| host.vxlan_addr(family)) else {
            return Ok(None);
        };
        let setting = match family {
            IpFamily::V4 => "IPv4VXLANTunnelAddr",
            IpFamily::V6 => "IPv6VXLANTunnelAddr",
        };
        self.unless_held(addr, setting).map(|()| Some(addr))
    }

    /// Applies those settings of a host that the model keeps of every host.
    pub(super) fn apply_vxlan_settings(&self, host: &str, settings: &mut Settings) {
        let Some(host) = self.host(host) else { return };
        let mac = |family| host.vxlan_mac(family).ok().flatten();
        if let Some(IpAddr::V4(addr)) = host.vxlan_addr(IpFamily::V4) {
            settings.ipv4_vxlan_tunnel_addr = Some(addr);
        }
        if let Some(IpAddr::V6(addr)) = host.vxlan_addr(IpFamily::V6) {
            settings.ipv6_vxlan_tunnel_addr = Some(addr);
        }
        settings.vxlan_tunnel_mac_addr = mac(IpFamily::V4).or(settings.vxlan_tunnel_mac_addr);
        settings.vxlan_tunnel_mac_addr_v6 = mac(IpFamily::V6).or(settings.vxlan_tunnel_mac_addr_v6);
    }
}
