//! The answers of the agent's API: each is a function over the [`Server`](server::Server), which asks the threads through
//! [`handle`](super::handle) and translates to the DTOs of [`crate::api`]. The routes are in [`http`](super::http).
//!
//! ```text
//!  cli --unix socket--> http/ --> status peers routes endpoints events .. (and explain/, metrics/) --Handle--> threads
//!  browser, Prometheus, probes --127.0.0.1:9099--> http/guard.rs --> http/
//! ```

pub(super) mod bgp;
pub(super) mod cluster;
pub(super) mod control;
pub(super) mod endpoints;
pub(super) mod events;
pub(super) mod kernel_routes;
pub(super) mod live_trace;
pub(super) mod mrt;
pub(super) mod peers;
pub(super) mod policy_query;
pub(super) mod routes;
pub(super) mod server;
pub(super) mod status;
