//! Requests to attach and detach one interface of a container, and the result.

use std::net::IpAddr;
use std::path::PathBuf;

use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, Labels, MacAddr};
use tortie_net::Cidr;

use tortie_engine::writer::ProfileChoice;
use tortie_kernel::container::{Bandwidth, PortMapping};
use tortie_store::Revision;

/// Origin of a container's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSpec {
    /// A new veth pair.
    Veth,
    /// An interface that an earlier plugin created: a veth pair, or the tap device of a virtual machine. The
    /// host's end is renamed to [`AttachRequest::host_ifname`] and removed from its bridge;
    /// [`detach`](super::detach) restores its name and leaves it to the plugin that created it.
    Existing {
        /// Current name of the host's end.
        host: InterfaceName,
        /// Current name of the container's end; `None` for a virtual machine that configures itself (tap).
        inside: Option<InterfaceName>,
    },
}

/// Desired state of one interface of a container.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    /// Key of the workload endpoint.
    pub key: EndpointKey,
    /// Path of the container's network namespace.
    pub netns: PathBuf,
    /// Name of the interface in the container.
    pub ifname: InterfaceName,
    /// Name of the interface on the host; see [`host_interface`](super::host_interface).
    pub host_ifname: InterfaceName,
    /// New or existing interface.
    pub link: LinkSpec,
    /// MAC address in the container; `None` keeps the existing one, or lets the kernel choose.
    pub mac: Option<MacAddr>,
    /// MTU in octets; `None` uses the kernel's default.
    pub mtu: Option<u32>,
    /// Addresses of the interface.
    pub addrs: Vec<IpAddr>,
    /// Destinations that are routed by this interface; `None` routes all.
    pub routes: Option<Vec<Cidr>>,
    /// Profile of the endpoint.
    pub profile: ProfileChoice,
    /// Labels of the endpoint.
    pub labels: Labels,
    /// Container id, which protects the endpoint from a late removal for an earlier container
    /// (`active_instance_id`).
    pub instance: Option<String>,
    /// Port mappings from the host to the container.
    pub ports: Vec<PortMapping>,
    /// Name of the table for port mappings; see [`tortie_kernel::container::ports_table`].
    pub ports_table: String,
    /// Name of that table in earlier versions.
    pub former_ports_table: String,
    /// Bandwidth limits of the interface.
    pub bandwidth: Bandwidth,
}

/// An attached interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the interface on the host.
    pub host_ifname: InterfaceName,
    /// MAC address of the interface on the host.
    pub host_mac: MacAddr,
    /// MAC address in the container; `None` behind a tap device, where only the virtual machine knows it.
    pub mac: Option<MacAddr>,
    /// MTU in octets.
    pub mtu: u32,
    /// Default gateways of the container, one per address family, which the host proxies.
    pub gateways: Vec<IpAddr>,
    /// Store revision of the endpoint.
    pub revision: Revision,
    /// Notes for the log: unexpected, but no errors.
    pub notes: Vec<String>,
}

/// Interface and endpoint to remove.
#[derive(Debug, Clone)]
pub struct DetachRequest {
    /// Key of the endpoint.
    pub key: EndpointKey,
    /// Container id that must own the endpoint; `None` removes it whoever owns it.
    pub instance: Option<String>,
    /// Name of the interface on the host.
    pub host_ifname: InterfaceName,
    /// `false` if an earlier plugin created the interface and will remove it.
    pub own_link: bool,
    /// Path of the container's network namespace, if known; it may be gone, or belong to another container
    /// now.
    pub netns: Option<PathBuf>,
    /// Name of the interface in the container.
    pub ifname: InterfaceName,
    /// Name of the table for port mappings.
    pub ports_table: String,
    /// Name of that table in earlier versions.
    pub former_ports_table: String,
}
