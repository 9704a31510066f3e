//! The kernel thread (the only writer) and the watch thread: they receive messages and notifications, send
//! requests to Linux and report facts.
//!
//! ```text
//!  handle --starts--> event_loop (Thread) <--inbox-- messages of the agent
//!                        |  ^ ^--------------monitor-- notifications
//!      burst, policy, route_pipeline, resync: handling of each
//!                        |
//!                     state (table, network, endpoints) <--view-- queries
//! ```

mod burst;
mod event_loop;
pub(super) mod handle;
mod inbox;
pub(super) mod messages;
pub(super) mod metrics;
mod monitor;
mod next_hop_damping;
mod off;
mod policy_progress;
mod resync_pass;
mod resync_timer;
mod state;
#[cfg(test)]
mod tests;
pub(super) mod view;
mod workload_prefixes;
