//! Answers of the agent's API. Each is a function over the [`Server`](server::Server) that queries the
//! threads through [`handle`](super::handle) and converts the result to the types of [`crate::api`]. The HTTP
//! routes are in [`http`](super::http).
//!
//! ```text
//!  cli --unix socket--> http/ --> status peers routes endpoints .. --Handle--> threads
//!                                 (and explain/, metrics/)
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
