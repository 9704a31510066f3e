//! Services that the host of an OpenStack cloud has for its workloads: addresses by DHCP, names by DNS, and
//! the metadata of OpenStack.
//!
//! As in Calico, workloads reach them whatever policy says, since they cannot start without them.

use std::net::{IpAddr, Ipv4Addr};

use tortie_config::Dialect;
use tortie_config::resource::Settings;

use super::verdict::Packet;
use crate::model::Model;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Name of OpenStack in the type of a cluster.
const OPENSTACK: &str = "openstack";
/// Prefix of the names of OpenStack's workload interfaces.
const TAP: &str = "tap";

/// Services of a host to its workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostServices {
    /// Address and port of the metadata service (`MetadataAddr`, `MetadataPort`); `None` if there is none.
    pub metadata: Option<(Ipv4Addr, u16)>,
}

impl HostServices {
    /// Address and port at which workloads expect the metadata service.
    pub const METADATA: (Ipv4Addr, u16) = (Ipv4Addr::new(169, 254, 169, 254), 80);
    /// Port of DNS.
    pub const DNS: u16 = 53;
    /// Ports of DHCP and DHCPv6: of clients and of servers.
    pub const DHCP: [(u16, u16); 2] = [(68, 67), (546, 547)];

    /// Returns the services of this host; `None` if it is no host of OpenStack.
    pub(super) fn of(model: &Model, settings: &Settings) -> Option<Self> {
        let default = Settings::default();
        let is_openstack = model.cluster_types().any(|of| of == OPENSTACK)
            || settings.metadata_addr != default.metadata_addr
            || settings.metadata_port != default.metadata_port
            || settings.interface_prefix.iter().any(|prefix| prefix == TAP);
        (model.dialect() == Dialect::V3 && is_openstack)
            .then(|| Self { metadata: settings.metadata_addr.map(|addr| (addr, settings.metadata_port)) })
    }

    /// Returns true if a packet of a workload to its host is for one of the services.
    #[must_use]
    pub fn has(&self, packet: &Packet) -> bool {
        let Some((from, to)) = packet.ports else { return false };
        let [v4, v6] = Self::DHCP;
        let dhcp = if packet.dst.is_ipv4() { v4 } else { v6 };
        match packet.protocol {
            UDP => (from, to) == dhcp || to == Self::DNS,
            TCP => self.metadata.is_some_and(|(addr, port)| packet.dst == IpAddr::V4(addr) && to == port),
            _ => false,
        }
    }

    /// Returns true for a request by DHCP of a workload that has no address yet.
    #[must_use]
    pub fn is_first_request(packet: &Packet) -> bool {
        let [v4, _] = Self::DHCP;
        packet.src == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && packet.protocol == UDP && packet.ports == Some(v4)
    }

    /// Returns the address and port of the metadata service, if a packet asks for it.
    #[must_use]
    pub fn metadata_of(&self, packet: &Packet) -> Option<(Ipv4Addr, u16)> {
        let (addr, port) = Self::METADATA;
        let asks = packet.dst == IpAddr::V4(addr)
            && packet.protocol == TCP
            && packet.ports.is_some_and(|(_, to)| to == port);
        self.metadata.filter(|_| asks)
    }
}
