//! Peers and ranges of the intent: identifiers, keys and configurations.
//!
//! Order of use, lowest first: `config`, `keys` <- `table` <- `ranges`.

mod config;
mod keys;
mod ranges;
mod table;

pub use ranges::RangeView;

pub(crate) use ranges::{RangeChange, Ranges};
pub(crate) use table::{Change, PeerTable};
