//! Requests to the kernel and events, counted: plain numbers of one owner, copied when a question asks.

/// Kinds of requests, as [`Counters::ops`] counts them.
pub const OPS: [&str; 5] = ["add", "replace", "delete", "nexthop_put", "nexthop_delete"];
/// Answers of the kernel, by class of error.
pub const RESULTS: [&str; 8] =
    ["ok", "exists", "absent", "unreachable", "busy", "denied", "no_answer", "error"];

/// The place of an answer in [`RESULTS`]; `None`: carried out.
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

/// What the kernel thread counted since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// Requests by kind ([`OPS`]) and answer ([`RESULTS`]).
    pub ops: [[u64; RESULTS.len()]; OPS.len()],
    /// Times that notifications were lost.
    pub overruns: u64,
    /// Full comparisons with the kernel.
    pub compares: u64,
    /// Own objects that another process changed or removed.
    pub external_changes: u64,
    /// Own routes and what else endpoints need that was put back after that.
    pub repairs: u64,
    /// Own packet rules, sets and chains that were put back.
    pub rule_repairs: u64,
    /// Own routes that the kernel itself dropped with their device or address.
    pub vanished: u64,
}
