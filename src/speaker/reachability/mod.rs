//! Reachability of addresses, as the kernel thread reports it: which ones it follows for this thread, and neighbours
//! whose link goes down; own addresses that connections have; and evidence that a peer does not forward.

mod fallover;
mod forwarding;
mod own_addresses;
mod tracker;

pub(crate) use fallover::Fallover;
pub(crate) use forwarding::{Dial, Evidence};
pub(crate) use own_addresses::{Here, OwnAddresses};
pub(crate) use tracker::{Purpose, Tracker};
