//! Questions about single routes, links and neighbours, for explanations. Nothing is written and nothing remembered.

use std::io;
use std::net::IpAddr;

use tortie_net::Cidr;

use crate::netlink::neighbour;
use crate::netlink::socket::Socket;
use crate::thread::view::KernelView;
use tortie_engine::routing::{KernelRoute, Step};

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

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkView {
    /// Its name.
    pub name: String,
    /// Set up by the administrator.
    pub up: bool,
    /// Up and with carrier.
    pub carries: bool,
    /// Its MTU.
    pub mtu: u32,
}

/// A route of somebody else in the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignRoute {
    /// Its `rtm_protocol`.
    pub protocol: u8,
    /// Its metric.
    pub metric: u32,
    /// It leads somewhere: no blackhole, and no other kind that refuses packets.
    pub unicast: bool,
}

impl KernelView<'_> {
    /// An interface.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<LinkView> {
        let link = self.state.picture.links.get(&ifindex)?;
        let (up, carries) = (link.is_up(), link.can_carry());
        Some(LinkView { name: link.name.clone(), up, carries, mtu: link.mtu })
    }

    /// Routes of others for exactly this prefix.
    #[must_use]
    pub fn foreign_at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        self.state.picture.foreign_at(prefix)
    }

    /// Why the kernel should have the route for a learned prefix that it should have: the live decision, recorded. `None`:
    /// nothing was learned for it.
    #[must_use]
    pub fn explain_route(&self, prefix: &Cidr) -> Option<(KernelRoute, Vec<Step>)> {
        self.state.explain(prefix)
    }

    /// The metric of own routes.
    #[must_use]
    pub fn metric(&self) -> u32 {
        self.state.table.marks.metric
    }

    /// Whether an address is one of this host's.
    #[must_use]
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.state.picture.is_local(addr)
    }
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
