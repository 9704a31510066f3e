//! Queries of single routes and neighbours, for explanations. Nothing is written or kept.

use std::io;
use std::net::IpAddr;

use crate::netlink::neighbour;
use crate::netlink::socket::Socket;

/// Names of the `NUD_*` states (linux/neighbour.h), lowest bit first.
const STATES: [&str; 8] =
    ["incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent"];

/// An entry of the kernel's neighbour table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeighbourEntry {
    /// MAC address, if known.
    pub mac: Option<[u8; 6]>,
    /// State as in ip-neighbour(8): `reachable`, `stale`, `failed`, ...
    pub state: &'static str,
}

impl NeighbourEntry {
    /// Returns true if the neighbour did not answer solicitations.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.state, "failed" | "incomplete")
    }
}

/// Queries the neighbour table for an address on an interface; `None` if it has no entry, because the
/// neighbour was not used lately.
///
/// # Errors
/// The kernel cannot be queried.
pub fn neighbour(ifindex: u32, addr: IpAddr) -> io::Result<Option<NeighbourEntry>> {
    let mut found = None;
    // A refusal means that there is no entry.
    let _ = Socket::open()?.dump(
        |buf, seq| neighbour::encode_get(buf, seq, ifindex, addr),
        |message| {
            if let Some((state, mac)) = neighbour::decode_state(message) {
                let bit = usize::try_from(u16::from(state).trailing_zeros()).ok();
                let state = bit.and_then(|bit| STATES.get(bit)).copied().unwrap_or("none");
                found = Some(NeighbourEntry { mac, state });
            }
        },
    )?;
    Ok(found)
}

/// Returns the name of a route protocol number (rtnetlink(7), /etc/iproute2/rt_protos).
#[must_use]
pub fn protocol_name(protocol: u8) -> String {
    let name = match protocol {
        0 => "unspec",
        1 => "redirect",
        2 => "kernel",
        3 => "boot",
        4 => "static",
        9 => "ra",
        11 => "zebra",
        12 => "bird",
        16 => "dhcp",
        80 => "80 (Felix)",
        186 => "bgp",
        187 => "isis",
        188 => "ospf",
        other => return other.to_string(),
    };
    name.to_owned()
}
