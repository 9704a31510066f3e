//! One interface of a container: the request for it, what came of it, and the request to remove it.

use std::net::IpAddr;
use std::path::PathBuf;

use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, Labels, MacAddr};
use tortie_net::Cidr;

use super::endpoint::ProfileChoice;
use tortie_kernel::container::{Bandwidth, PortMapping};
use tortie_store::Revision;

/// How a container gets its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkSpec {
    /// A new pair.
    Veth,
    /// One that an earlier plugin made: a veth pair, or a tap device of a virtual machine. The host's end is renamed to
    /// [`AttachRequest::host_ifname`] and leaves its bridge; [`detach`](super::detach) gives it its name back and leaves it to the plugin that
    /// made it.
    Existing {
        /// The host's end as it is called now.
        host: InterfaceName,
        /// The container's end as it is called now; `None`: a machine that configures itself (tap).
        inside: Option<InterfaceName>,
    },
}

/// What one interface of a container should be.
#[derive(Debug, Clone)]
pub struct AttachRequest {
    /// The endpoint; a workload's.
    pub key: EndpointKey,
    /// The container's network namespace.
    pub netns: PathBuf,
    /// The interface in it.
    pub ifname: InterfaceName,
    /// The interface on the host; see [`host_interface`](super::host_interface).
    pub host_ifname: InterfaceName,
    /// New or existing.
    pub link: LinkSpec,
    /// MAC address in the container; `None`: the kernel draws one, or the existing one stays.
    pub mac: Option<MacAddr>,
    /// In octets; `None`: the kernel's default.
    pub mtu: Option<u32>,
    /// Its addresses.
    pub addrs: Vec<IpAddr>,
    /// Where to by this interface; `None`: everywhere.
    pub routes: Option<Vec<Cidr>>,
    /// The profile that the endpoint has.
    pub profile: ProfileChoice,
    /// Labels of the endpoint.
    pub labels: Labels,
    /// Container id, which guards against late removals (`active_instance_id`).
    pub instance: Option<String>,
    /// Ports of the host that lead to it.
    pub ports: Vec<PortMapping>,
    /// The table that holds them; see [`tortie_kernel::container::ports_table`].
    pub ports_table: String,
    /// The name that earlier versions gave it.
    pub former_ports_table: String,
    /// How much may pass.
    pub bandwidth: Bandwidth,
}

/// What there is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The interface on the host.
    pub host_ifname: InterfaceName,
    /// Its MAC address.
    pub host_mac: MacAddr,
    /// The MAC address in the container; `None`: nobody but the machine behind a tap knows.
    pub mac: Option<MacAddr>,
    /// In octets.
    pub mtu: u32,
    /// What the container sends to instead of routers, one for each family that it has addresses of.
    pub gateways: Vec<IpAddr>,
    /// Store revision of the endpoint.
    pub revision: Revision,
    /// What to log: nothing is wrong, but somebody may wonder.
    pub notes: Vec<String>,
}

/// What goes.
#[derive(Debug, Clone)]
pub struct DetachRequest {
    /// The endpoint.
    pub key: EndpointKey,
    /// Only if it is this container's; `None`: whoever's it is.
    pub instance: Option<String>,
    /// The interface on the host.
    pub host_ifname: InterfaceName,
    /// `false`: an earlier plugin made it and will remove it.
    pub own_link: bool,
    /// The container's network namespace, if it is known; it may be gone, or have become somebody else's.
    pub netns: Option<PathBuf>,
    /// The interface in it.
    pub ifname: InterfaceName,
    /// The table of port mappings.
    pub ports_table: String,
    /// The name that earlier versions gave it.
    pub former_ports_table: String,
}
