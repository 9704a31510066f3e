//! Reachability of addresses, as the kernel thread reports it: which ones it follows for this thread, and neighbours
//! whose link goes down.

mod fallover;
mod tracker;

pub(crate) use fallover::Fallover;
pub(crate) use tracker::{Purpose, Tracker};
