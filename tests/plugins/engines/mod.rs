//! The programs that people start containers with, on two hosts with agents: dockerd, podman, containerd (`ctr` and its
//! CRI service), libcni itself, and the reference CNI plugins before, behind, above and below ours.
//!
//! ```text
//!   site: two hosts, BGP between them ── life: what every engine is put through ── docker, podman, containerd, libcni
//! ```
//!
//! Each rig first runs with the engine's own network or the reference plugins, so that what fails later is ours. The
//! protocols themselves, word by word, are tested beside each door.

mod cni;
mod containerd;
mod docker;
mod image;
mod libcni;
mod life;
mod podman;
mod site;
