//! Questions about single routes, links and neighbours, for explanations. Nothing is written and nothing remembered.

use std::io;
use std::net::IpAddr;

use crate::netlink::neighbour;
use crate::netlink::socket::Socket;

/// `NUD_*` (linux/neighbour.h), lowest bit first.
const STATES: [&str; 8] =
    ["incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent"];

/// What the kernel knows of a neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeighbourEntry {
    /// Its MAC address, where one is known.
    pub mac: Option<[u8; 6]>,
    /// As ip-neighbour(8) names it: `reachable`, `stale`, `failed`, ...
    pub state: &'static str,
}

impl NeighbourEntry {
    /// It was asked for, and nobody answered.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.state, "failed" | "incomplete")
    }
}

/// What the kernel knows of one neighbour on an interface; `None`: nobody asked for it lately. Asks the kernel once.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn neighbour(ifindex: u32, addr: IpAddr) -> io::Result<Option<NeighbourEntry>> {
    let mut found = None;
    // A refusal says that there is none.
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

/// What protocol numbers of routes mean (rtnetlink(7), /etc/iproute2/rt_protos).
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
