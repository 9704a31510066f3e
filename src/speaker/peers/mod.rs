//! Peers and ranges of the intent: identifiers, keys and configurations.

pub(crate) mod ranges;
pub(crate) mod table;
