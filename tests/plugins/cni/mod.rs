//! `tortie-cni` and `tortie-ipam`, called like a container runtime does: environment, stdin, stdout, exit
//! code, in namespaces, with a real agent.
//!
//! ```text
//!   rig: a host namespace with store and agent; container namespaces ── life, names, wrong, chain, ipam, calico3
//! ```

mod calico3;
mod chain;
mod ipam;
mod life;
mod names;
mod rig;
mod wrong;
