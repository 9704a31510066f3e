//! Endpoints, profiles, network sets, policies and tiers.
//!
//! ```text
//!  Object --one file per kind--> v1 entry          names: keys that names imply
//!            |                                     unreadable: values that keep the last good one in force
//!            +-- rule, entity, losses: rules, and what they do without a match that they lose
//!            +-- addresses, members, selectors: shared parts
//! ```

mod addresses;
mod endpoint;
mod entity;
mod host_endpoint;
mod losses;
mod members;
mod names;
mod network_policy;
mod network_set;
mod profile;
mod rule;
mod selectors;
#[cfg(test)]
mod tests;
mod tier;
mod unreadable;

pub(super) use endpoint::{plain_endpoint, workload_endpoint};
pub(super) use host_endpoint::host_endpoint;
pub(super) use names::{Double, is_shortened, key_in_default_tier, object_of, workload_key};
pub use names::{WorkloadEndpointName, policy_name};
pub(super) use network_policy::{policy, staged};
pub(super) use network_set::network_set;
pub(super) use profile::{built_in, profile};
pub(super) use tier::tier;
pub(super) use unreadable::unreadable;
