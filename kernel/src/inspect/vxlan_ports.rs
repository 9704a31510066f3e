//! Reads the VXLAN devices of this host, of whichever program.

use std::io;

use crate::netlink::socket::Socket;
use crate::netlink::vxlan::{self, VxlanPort};

/// Lists the VXLAN devices, each with the UDP port on which it receives.
///
/// # Errors
/// The kernel cannot be read.
pub fn vxlan_ports() -> io::Result<Vec<VxlanPort>> {
    vxlan::ports(&mut Socket::open()?)
}
