//! Pure policy: model -> label index, address sets, ordered rules per endpoint; the verdict on a packet.
//!
//! What it does: keeps, change by change, which policies and profiles act on the endpoints of this host and in which order,
//! the chains of their rules, and the address sets that those rules name ([`Ruleset`]); says what becomes of a packet and
//! why ([`Ruleset::decide`]). What it does not: no I/O, no clock, no netlink; it does not know how the kernel writes a rule.
//!
//! ```text
//!  Model, touched keys --engine.rs--> RulesetDelta --> kernel thread (rules), evaluator
//!          |
//!          +-- classes.rs: endpoints by labels and profiles   sets.rs: addresses by selector, counted
//!          +-- select.rs: selectors by what they need         active.rs: policies of an endpoint, in order
//!          +-- rules.rs: rules as chains                      verdict.rs: packet in, verdict and reason out
//!          |
//!          +-- globals.rs: settings, pools, hosts             hosts.rs: which host endpoint governs which interface
//!          +-- nat.rs: floating addresses                     path/: the whole way of a packet, all of these together
//! ```
//!
//! One change costs what it touches: selectors are asked once for a class of endpoints that they cannot tell apart, and
//! only those whose first demand the class meets.
//!
//! It fails closed: a profile that is missing or cannot be read denies where it is referenced; a policy that cannot be read
//! keeps its last good form (`Model` does), and one that never had any acts on nobody and is listed with the model's problems.

mod active;
mod classes;
mod display;
mod engine;
mod globals;
mod hosts;
mod nat;
pub mod path;
#[cfg(test)]
mod rule_tests;
mod rules;
mod select;
mod sets;
#[cfg(test)]
mod tests;
mod types;
mod verdict;

pub use classes::{EffectiveLabel, EndpointLabels, LabelOrigin};
pub use engine::Engine;
pub use globals::Globals;
pub use hosts::host_endpoints;
pub use hosts::{HostInterfaces, host_interfaces};
pub use nat::Floating;
pub use types::*;
pub use verdict::{Decider, Decision, Packet, Verdict};
