//! Counters of requests to the kernel and of events, owned by the kernel thread and copied for each query.

/// Kinds of requests, in the order of [`Counters::ops`].
pub const OPS: [&str; 5] = ["add", "replace", "delete", "nexthop_put", "nexthop_delete"];
/// Results of requests, by class of error.
pub const RESULTS: [&str; 8] =
    ["ok", "exists", "absent", "unreachable", "busy", "denied", "no_answer", "error"];

/// Returns the index in [`RESULTS`] of an answer; `None` means success.
pub(crate) fn class(errno: Option<i32>) -> usize {
    match errno {
        None => 0,
        Some(libc::EEXIST) => 1,
        Some(libc::ENOENT | libc::ESRCH) => 2,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::ENODEV) => 3,
        Some(libc::EBUSY | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => 4,
        Some(libc::EPERM | libc::EACCES) => 5,
        // The answer was lost.
        Some(0) => 6,
        Some(_) => 7,
    }
}

/// Counts of the kernel thread since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Requests by kind ([`OPS`]) and answer ([`RESULTS`]).
    pub ops: [[u64; RESULTS.len()]; OPS.len()],
    /// Number of times that notifications were lost.
    pub overruns: u64,
    /// Number of resyncs, full comparisons with the kernel.
    pub compares: u64,
    /// Number of Tortie's objects that another process changed or removed.
    pub external_changes: u64,
    /// Number of Tortie's routes, and of other state of endpoints, restored after that.
    pub repairs: u64,
    /// Number of Tortie's packet rules, sets and chains restored.
    pub rule_repairs: u64,
    /// Number of Tortie's routes that the kernel itself removed with their device or address.
    pub vanished: u64,
}
