//! TCP connections of sessions.

pub(crate) mod table;
