//! Health of this host: host checks, the periodic probe, and the list of problems with its verdict.

pub(super) mod host_checks;
pub(super) mod kernel_snapshot;
pub(super) mod notes;
pub(super) mod probe;
pub(super) mod problems;
