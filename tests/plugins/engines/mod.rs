//! Container engines on two hosts with agents: dockerd, podman, containerd (`ctr` and its CRI service),
//! libcni, and the reference CNI plugins before, after and around Tortie's.
//!
//! ```text
//!   site: two hosts with a BGP session ── life: common test sequence ── docker, podman, containerd, libcni
//! ```
//!
//! Each setup first runs with the engine's own network or the reference plugins, so that later failures are
//! Tortie's. The protocols themselves are tested with each plugin.

mod cni;
mod containerd;
mod docker;
mod image;
mod libcni;
mod life;
mod podman;
mod site;
