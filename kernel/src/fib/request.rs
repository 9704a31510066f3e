//! Requests for routes and nexthop objects, before encoding.

use std::net::IpAddr;

use tortie_engine::routing::Hop;
use tortie_net::Cidr;

use super::entries::Slot;
use crate::netlink::codec::Put;
use crate::netlink::nexthop::Content;
use crate::netlink::socket::Refusal;

/// Index of a target, a set of hops.
pub(crate) type TargetId = u32;

/// Indexes of the tunnel interfaces; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TunnelLinks {
    /// `tunl0`.
    pub(crate) ipip: u32,
    /// `vxlan.calico` and `vxlan-v6.calico`.
    pub(crate) vxlan: [u32; 2],
}

impl TunnelLinks {
    /// Returns the VXLAN interface of a family.
    pub(crate) fn vxlan(&self, v4: bool) -> u32 {
        self.vxlan[usize::from(!v4)]
    }

    /// Returns the interface of a hop; `None` if it does not exist, or the hop is no tunnel.
    pub(crate) fn of(&self, hop: &Hop) -> Option<u32> {
        let ifindex = match hop {
            Hop::Plain { .. } => 0,
            Hop::Tunnel { .. } => self.ipip,
            Hop::Vxlan { remote } => self.vxlan(remote.is_ipv4()),
        };
        (ifindex != 0).then_some(ifindex)
    }
}

/// One request to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    PutNexthop {
        id: u32,
        content: Content,
        put: Put,
    },
    DeleteNexthop {
        id: u32,
    },
    PutRoute {
        slot: Slot,
        prefix: Cidr,
        metric: u32,
        content: RouteContent,
        put: Put,
    },
    /// `slot` is `None` for a stray route, which has no entry in the table.
    DeleteRoute {
        slot: Option<Slot>,
        prefix: Cidr,
        metric: u32,
    },
}

/// Content of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteContent {
    Blackhole,
    Nexthop(u32),
    Plain(TargetId),
}

/// Properties of the network state that planning needs.
pub(crate) trait NetworkView {
    /// Returns true if a gateway needs the onlink flag on this interface.
    fn needs_onlink(&self, gateway: IpAddr, ifindex: u32) -> bool;
    /// Describes a foreign route that has this prefix and metric.
    fn conflicting_route(&self, prefix: &Cidr, metric: u32) -> Option<String>;
}

/// The kernel's answer to one request.
pub(crate) type Outcome = Result<(), Refusal>;

/// Returns the index of a request in [`OPS`](crate::OPS).
pub(crate) fn kind(request: &Request) -> usize {
    match request {
        Request::PutRoute { put: Put::Add, .. } => 0,
        Request::PutRoute { put: Put::Replace, .. } => 1,
        Request::DeleteRoute { .. } => 2,
        Request::PutNexthop { put: Put::Add | Put::Replace, .. } => 3,
        Request::DeleteNexthop { .. } => 4,
    }
}
