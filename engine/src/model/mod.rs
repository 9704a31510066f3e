//! In-memory model of the store, as one host follows it.
//!
//! The model takes snapshots and deltas of the store. It keeps every resource as a typed value under its
//! typed key, in key order, so that all resources of one kind, or of one host and kind, form one range. It
//! reports the aspects that a change affects, and when routing must freeze ([`Guard`]). It does no I/O, uses
//! no clock, and writes nothing. Routing and policy compute from its values; the model does not.
//!
//! ```text
//!  store::Snapshot --replace--+                         host.rs: small values of each host
//!                             +--> Model --> Changes    slot.rs: current key, older paths, last good value
//!  store::Delta -----apply----+      |                  projection.rs: Calico 3's objects become entries
//!                                    +--read.rs--> routing, policy, status
//! ```
//!
//! An error in one key affects only that key: if a value cannot be parsed, the last good one stays in force,
//! and the key is listed in [`Model::invalid_keys`]. Malformed keys are listed there too. Keys of other
//! systems are counted, and settings of other hosts are ignored, except those of their ends of the VXLAN. A value may exist under its current key and
//! under an older path: both are kept, and the current key takes precedence.
//!
//! A model that followed deltas equals one that was loaded from a snapshot of the same revision, except for
//! last good values, which a snapshot does not contain.

mod attached;
mod calico3;
mod changes;
mod effect;
pub mod endpoint_name;
mod guard;
mod host;
mod projection;
mod read;
mod scope;
#[cfg(test)]
mod settings_tests;
mod slot;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod value;

pub use attached::{AttachedRoute, host_of_affinities, unexplained, workload_routes};
pub use calico3::LiveMigrationSettings;
pub(crate) use calico3::is_of_openstack;
pub use changes::{ChangedKey, ChangedObject, ChangedPeers, ModelChanges};
pub use guard::{Freeze, Guard, ObjectCounts, Unexplained};
pub use host::{Host, UnreadableMac};
pub use projection::{is_projected, key_value, projected, raw_entry};
pub use read::{FilterValue, StoredValue};
pub use scope::{WatchPart, watch_scope};
pub use state::{InvalidKey, Model};
pub use value::Ready;
