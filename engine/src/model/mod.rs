//! The one in-memory picture of the store.
//!
//! What it does: takes snapshots and deltas of the store in, keeps every noun as a typed value under its typed key, in
//! the order of the keys (so that everything of one kind, or of one host and kind, is one range), says what a change
//! touched, and when routing must hold still ([`Guard`]). What it does not: no I/O, no clock; it computes nothing from
//! the values (routing and policy do) and writes nothing.
//!
//! ```text
//!  store::Snapshot --replace--+                         host.rs: the small values of each host
//!                             +--> Model --> Dirty      slot.rs: today's key, older paths, the last good value
//!  store::Delta -----apply----+      |
//!                                    +--read.rs--> routing, policy, status
//! ```
//!
//! One key's trouble stays with that key: a value that cannot be read leaves the last good one in force and is listed
//! in [`Model::invalid_keys`]; a malformed key is listed there too; keys of other systems are counted, and other hosts'
//! settings are left to them. Both forms of a thing, under today's key and under an older path, are kept, and today's
//! wins.
//!
//! A model that saw deltas and one that saw a snapshot of the same revision are equal, but for last good values that a
//! snapshot cannot know.

mod attached;
mod changes;
mod effect;
pub mod endpoint_name;
mod guard;
mod host;
mod read;
mod scope;
#[cfg(test)]
mod settings_tests;
mod slot;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod value;

pub use attached::{AttachedRoute, host_of_affinities, unexplained};
pub use changes::{ChangedKey, ChangedPeers, ModelChanges};
pub use guard::{Freeze, Guard, ObjectCounts, Unexplained};
pub use host::Host;
pub use read::{FilterValue, StoredValue};
pub use scope::{WatchPart, watch_scope};
pub use state::{InvalidKey, Model};
pub use value::Ready;
