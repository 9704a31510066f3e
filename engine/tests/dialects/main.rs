//! The same network in both data models: a v1 store, and what Calico's own upgrade makes of it.
//!
//! A v1 network is generated, converted to objects, and given to two models. They agree on sessions,
//! announcements, kernel routes, tunnels and verdicts, but for the differences by design, which stand in one
//! table (`differences`) with the reason of each.
//!
//! ```text
//!  network --v1 entries--+------------------------> Model (v1) --+
//!                        +--convert--> objects ---> Model (v3) --+--> laws: sessions, routes, verdicts, names
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test says with a panic what is wrong, and measures time"
)]

mod decisions;
mod differences;
mod equalize;
mod laws;
mod names;
mod network;
mod pair;
mod probes;
mod rules;
mod scale;
