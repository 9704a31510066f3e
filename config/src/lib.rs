//! Calico's etcd v1 data model as Rust types, without I/O, runtime or clock.
//!
//! [`Key`] is a key of the data model, [`Resource`] the value of a key, and [`Selector`] the expression with
//! which policy selects endpoints.

#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]
#![warn(missing_docs)]

mod check;
pub mod key;
mod nearest;
mod plural;
pub mod resource;
pub mod secrets;
pub mod selector;
mod unknown;

pub use check::{CheckError, check, unsupported};
pub use key::Key;
pub use plural::counted;
pub use resource::{Resource, ValueError};
pub use selector::{Selector, SelectorError};
pub use unknown::{unknown, unread};
