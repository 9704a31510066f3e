//! What policy asks for, as one table: desired chains and sets, and what changed in them.
//!
//! What it does: keeps its own [`Ruleset`] and the [`Table`] that enforces it, change by change, and gives the edits of
//! one or several changes in an order in which nothing is ever named before it is there. What it does not: no I/O, no clock; it
//! does not know what the kernel holds, and it decides no verdict.
//!
//! ```text
//!  RulesetDelta --sets.rs--> address sets ----------------------------------+
//!       |  |                                                                |
//!       |  +--chains.rs--> which chains there are  <--draft-- rules.rs      +--> desired.rs --> Vec<Edit>
//!       |                        ^                            stages.rs     |
//!       +--endpoints, nat--> elements of maps                  base.rs       |
//!  Globals, HostInterfaces ---> chains with a hook, sets of pools and hosts-+
//! ```
//!
//! Every chain has a [`node::Node`], which says what it means and gives its name; endpoints with the same tiers share
//! theirs, and so do those with the same profiles. A chain is there as long as a hook, a map or another chain leads to it. So the number of rules grows with the
//! policies that act here and with the different lists of them, not with endpoints.
//!
//! With `Ipv6Support` off, IPv6 of host interfaces is not policed, and workloads neither send nor get any.
//! `MaxIpsetSize` is no limit here: sets of the kernel grow as they must.

mod base;
mod chains;
mod desired;
mod draft;
mod endpoints;
mod names;
mod nat;
mod node;
mod ranges;
mod renderer;
mod rules;
mod sets;
mod stages;
#[cfg(test)]
mod tests;

pub(crate) use self::draft::Options;
pub(crate) use self::node::Denied;
pub(crate) use self::renderer::Renderer;
pub use self::renderer::{Meaning, RuleView};
