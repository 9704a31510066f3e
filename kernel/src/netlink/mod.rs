//! Netlink: one blocking socket, the messages of routes, nexthop objects, links, neighbours, connections and traffic control,
//! and dumps. It decides nothing: what goes out and what an answer means is for the rooms above.

pub(super) mod codec;
pub(super) mod conntrack;
pub(super) mod dump;
pub(super) mod event;
pub(super) mod link;
pub(super) mod message;
pub(super) mod neighbour;
pub(super) mod nexthop;
pub(super) mod route;
pub(super) mod socket;
pub(super) mod tc;
