//! Network policy without I/O: computes the rules of this host's endpoints, and evaluates packets against
//! them.
//!
//! From the model it computes, change by change, which policies and profiles apply to the endpoints of this
//! host and in which order, the chains of their rules, and the address sets that the rules refer to
//! ([`Ruleset`]). It also evaluates a packet and explains the verdict ([`Ruleset::decide`]). It does no I/O,
//! uses no clock and no netlink, and does not know how the kernel represents a rule.
//!
//! ```text
//!  Model, changed keys --engine.rs--> RulesetDelta --> kernel thread (rules), evaluator
//!          |
//!          +-- classes.rs: endpoints by labels and profiles   sets.rs: addresses by selector, counted
//!          +-- select.rs: index of selectors by label         active.rs: policies of an endpoint, in order
//!          +-- rules.rs: rules as chains                      verdict.rs: verdict and its reason
//!          +-- ports.rs: named ports
//!          +-- order.rs: order of tiers and policies          object.rs: a policy as an object of Calico 3
//!          |
//!          +-- globals.rs: settings, pools, hosts             hosts.rs: host endpoint of each interface
//!          +-- nat.rs: floating addresses                     path/: path of a packet through the host
//!          +-- host_services.rs: DHCP, DNS and metadata of OpenStack
//! ```
//!
//! The cost of a change depends on what it affects: a selector is evaluated once per class of endpoints with
//! equal labels, and only if the class has the label that the selector requires.
//!
//! Policy fails closed: a profile that is missing or cannot be parsed denies all traffic of the endpoints
//! that reference it. A policy that cannot be parsed keeps its last good value (in `Model`); a policy that
//! never had one applies to no endpoint and is listed with the model's problems.

mod active;
mod classes;
mod display;
mod engine;
mod globals;
mod host_services;
mod hosts;
mod nat;
mod order;
pub mod path;
mod ports;
mod rules;
mod select;
mod sets;
#[cfg(test)]
mod tests;
mod types;
mod verdict;

pub use classes::{EffectiveLabel, EndpointLabels, LabelOrigin};
pub use engine::Engine;
pub use globals::{Globals, VxlanRules};
pub use host_services::HostServices;
pub use hosts::host_endpoints;
pub use hosts::{ALL_INTERFACES, HostInterfaces, host_interfaces};
pub use nat::Floating;
pub use order::{PolicyObject, PolicyPlace, TierOrder};
pub use types::*;
pub use verdict::{Decider, Decision, Packet, Verdict, early_tiers};
