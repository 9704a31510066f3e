//! Reachability according to the kernel thread: addresses tracked for the speaker, neighbours whose link goes
//! down, local addresses of connections, and evidence that a peer does not forward.

mod fallover;
mod forwarding;
mod own_addresses;
mod tracker;

pub(crate) use fallover::Fallover;
pub(crate) use forwarding::{Dial, Evidence};
pub(crate) use own_addresses::{Here, OwnAddresses};
pub(crate) use tracker::{Purpose, Tracker};
