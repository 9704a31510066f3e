//! Netlink: a blocking socket, messages for routes, nexthop objects, links, neighbours, conntrack and traffic
//! control, and dumps.
//!
//! It makes no decisions: callers choose the requests and interpret the answers.

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
pub(super) mod vxlan;
