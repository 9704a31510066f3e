//! Requests for routes and nexthop objects, before they are encoded.

use std::net::IpAddr;

use tortie_net::Cidr;

use super::entries::Slot;
use crate::netlink::codec::Put;
use crate::netlink::nexthop::Content;
use crate::netlink::socket::Refusal;

/// Index of a target.
pub(crate) type TargetId = u32;

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
        content: RouteContent,
        put: Put,
    },
    /// Without a slot where it is a stray, of which the table says no more.
    DeleteRoute {
        slot: Option<Slot>,
        prefix: Cidr,
        metric: u32,
    },
}

/// What a route is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteContent {
    Blackhole,
    Nexthop(u32),
    Plain(TargetId),
}

/// What planning asks of the network state.
pub(crate) trait NetworkView {
    /// Whether a gateway needs the onlink flag on this interface.
    fn needs_onlink(&self, gateway: IpAddr, ifindex: u32) -> bool;
    /// A foreign route that has this prefix and metric, in words.
    fn conflicting_route(&self, prefix: &Cidr, metric: u32) -> Option<String>;
}

/// The kernel's answer to one request.
pub(crate) type Outcome = Result<(), Refusal>;

/// The place of a request in [`OPS`](crate::OPS).
pub(crate) fn kind(request: &Request) -> usize {
    match request {
        Request::PutRoute { put: Put::Add, .. } => 0,
        Request::PutRoute { put: Put::Replace, .. } => 1,
        Request::DeleteRoute { .. } => 2,
        Request::PutNexthop { put: Put::Add | Put::Replace, .. } => 3,
        Request::DeleteNexthop { .. } => 4,
    }
}
