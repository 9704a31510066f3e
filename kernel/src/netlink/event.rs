//! Kernel notifications about links, addresses, routes, nexthop objects and permanent neighbours.

use super::link::{self, Address, Link};
use super::nexthop::{self, Nexthop};
use super::route::{self, Route};
use super::vxlan;
use crate::netlink::codec::{
    Message, NLM_F_REPLACE, RTM_DELADDR, RTM_DELLINK, RTM_DELNEIGH, RTM_DELNEXTHOP, RTM_DELROUTE,
    RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWNEXTHOP, RTM_NEWROUTE,
};

/// One notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Link(Link),
    LinkGone(Link),
    Address(Address),
    AddressGone(Address),
    Route {
        route: Route,
        replaces: bool,
        by: u32,
    },
    RouteGone {
        route: Route,
        by: u32,
    },
    Nexthop {
        nexthop: Nexthop,
        by: u32,
    },
    NexthopGone {
        nexthop: Nexthop,
        by: u32,
    },
    /// A permanent neighbour or forwarding entry of this interface changed, or any is gone.
    Neighbour {
        ifindex: u32,
    },
}

/// Decodes a notification; `None` for other types of messages and for malformed ones.
pub(crate) fn decode(m: &Message<'_>) -> Option<Event> {
    let by = m.pid;
    Some(match m.kind {
        RTM_NEWLINK => Event::Link(link::decode_link(m)?),
        RTM_DELLINK => Event::LinkGone(link::decode_link(m)?),
        RTM_NEWADDR => Event::Address(link::decode_address(m)?),
        RTM_DELADDR => Event::AddressGone(link::decode_address(m)?),
        RTM_NEWROUTE => Event::Route { route: route::decode(m)?, replaces: m.flags & NLM_F_REPLACE != 0, by },
        RTM_DELROUTE => Event::RouteGone { route: route::decode(m)?, by },
        RTM_NEWNEXTHOP => Event::Nexthop { nexthop: nexthop::decode(m)?, by },
        RTM_DELNEXTHOP => Event::NexthopGone { nexthop: nexthop::decode(m)?, by },
        RTM_NEWNEIGH | RTM_DELNEIGH => Event::Neighbour { ifindex: vxlan::decode_changed_entry(m)? },
        _ => return None,
    })
}
