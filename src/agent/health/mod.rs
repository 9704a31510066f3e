//! Health of this host: the periodic probe with the host checks, and the list of problems with its verdict.

pub(super) mod kernel_snapshot;
pub(super) mod notes;
pub(super) mod probe;
pub(super) mod problems;
