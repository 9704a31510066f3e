//! The answers of the API: each handler asks the threads through [`handle`](super::handle) and translates to the DTOs of
//! [`crate::api`].

pub(super) mod bgp;
pub(super) mod blocks;
pub(super) mod cluster;
pub(super) mod endpoints;
pub(super) mod events;
pub(super) mod live_trace;
pub(super) mod mrt;
pub(super) mod status;
