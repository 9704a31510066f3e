//! `tortie-cni` and `tortie-ipam` driven as a runtime drives them: environment, stdin, stdout, exit code, in namespaces, with a
//! real agent.
//!
//! ```text
//!   rig: a host (a namespace) with store and agent; containers (namespaces) ── life, names, wrong, chain, ipam
//! ```

mod chain;
mod ipam;
mod life;
mod names;
mod rig;
mod wrong;
