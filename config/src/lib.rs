//! Calico's etcd data models as Rust types, without I/O, runtime or clock: v1's keys and values, and Calico
//! 3's objects with their projection to v1.
//!
//! [`Key`] is a key of the data model, [`Resource`] the value of a key, and [`Selector`] the expression with
//! which policy selects endpoints.

#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]
#![warn(missing_docs)]

pub mod calico3;
mod check;
mod dialect;
pub mod key;
mod nearest;
mod plural;
mod readable;
pub mod resource;
pub mod secrets;
pub mod selector;
mod unknown;

pub use check::{CheckError, check, unsupported};
pub use dialect::Dialect;
pub use key::Key;
pub use plural::counted;
pub use readable::is_readable;
pub use resource::{Resource, ValueError};
pub use selector::{Selector, SelectorError};
pub use unknown::{is_known_key, unknown, unread};
