//! The nouns of Calico's etcd v1 data model: no I/O, no runtime, no clock.
//!
//! [`Key`] is a key of the data model, [`Resource`] the value of one, [`Selector`] the language that policy chooses endpoints with.

#![warn(missing_docs)]

mod check;
pub mod key;
mod nearest;
pub mod resource;
pub mod secrets;
pub mod selector;
mod unknown;

pub use check::{CheckError, check, unsupported};
pub use key::Key;
pub use resource::{Resource, ValueError};
pub use selector::{Selector, SelectorError};
pub use unknown::{unknown, unread};
