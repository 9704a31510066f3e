//! Renders the compiled policy as a table: desired chains and sets, and their changes.
//!
//! Keeps a copy of the [`Ruleset`] and the [`Table`] that enforces it, updates both change by change, and
//! returns the edits of one or several changes in an order in which nothing is referred to before it exists.
//! No I/O and no clock. It knows nothing of the kernel's state, and decides no verdict.
//!
//! ```text
//!  RulesetDelta --sets.rs--> address sets ----------------------------------+
//!       |  |                                                                |
//!       |  +--chains.rs--> set of existing chains  <--draft-- rules.rs      +--> desired.rs --> Vec<Edit>
//!       |                        ^                            stages.rs     |
//!       +--endpoints, nat--> elements of maps                  base.rs       |
//!  Globals, HostInterfaces ---> chains with a hook, sets of pools and hosts-+
//! ```
//!
//! Every chain has a [`node::Node`], which defines its meaning and its name. Endpoints with the same tiers
//! share chains, as do those with the same profiles. A chain exists as long as a hook, a map or another chain
//! refers to it. So the number of rules grows with the policies in use and their distinct combinations, not
//! with the number of endpoints.
//!
//! With `Ipv6Support` off, no policy applies to IPv6 of host interfaces, and workloads neither send nor
//! receive any. `MaxIpsetSize` has no effect here: kernel sets grow as needed.

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
