//! What the kernel thread measures for metrics: plain numbers of one owner, copied when somebody asks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fib::plan::Op;
use crate::netlink::{nexthop, route};
use tortie_metrics::Histogram;

/// Kinds of requests, as [`Counters::ops`](crate::Counters::ops) counts them.
pub const OPS: [&str; 5] = ["add", "replace", "delete", "nexthop_put", "nexthop_delete"];
/// Answers of the kernel, by class of error.
pub const RESULTS: [&str; 8] =
    ["ok", "exists", "absent", "unreachable", "busy", "denied", "no_answer", "error"];

/// The place of a request in [`OPS`].
pub(crate) fn kind(op: &Op) -> usize {
    match op {
        Op::PutRoute { put: route::Put::Add, .. } => 0,
        Op::PutRoute { put: route::Put::Replace, .. } => 1,
        Op::DeleteRoute { .. } => 2,
        Op::PutNexthop { put: nexthop::Put::Add | nexthop::Put::Replace, .. } => 3,
        Op::DeleteNexthop { .. } => 4,
    }
}

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

/// What took how long, and why.
#[derive(Debug, Clone, Default)]
pub struct Measures {
    /// One message with all that followed from it: how long anything else had to wait.
    pub turns: Histogram,
    /// One list of requests for routes (of learned ones at most 4,096), from the first octet sent to the last answer.
    pub route_batch: Histogram,
    /// One batch of requests for nexthop objects.
    pub nexthop_batch: Histogram,
    /// Full comparisons of routes, nexthop objects, links and neighbours, by what asked for them.
    pub compares: BTreeMap<&'static str, u64>,
    /// How long they took.
    pub compare: Histogram,
    /// The same of packet rules.
    pub rules: RuleMeasures,
}

/// What took how long of packet rules.
#[derive(Debug, Clone, Default)]
pub struct RuleMeasures {
    /// Transactions that the kernel carried out.
    pub applied: Histogram,
    /// Transactions that it refused.
    pub refused: Histogram,
    /// Comparisons with the kernel's table, by what asked for them.
    pub compares: BTreeMap<&'static str, u64>,
    /// How long they took.
    pub compare: Histogram,
}

/// Differences from what is wanted, each plane as missing, extra and different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriftCounts {
    /// Routes but those to own endpoints.
    pub routes: [usize; 3],
    /// Routes, neighbours and sysctls of own endpoints.
    pub interfaces: usize,
    /// Packet rules, as the last comparison found them and nothing repaired them.
    pub rules: RuleDrift,
}

/// Differences of packet rules, each as missing, extra and different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleDrift {
    /// Chains and rules.
    pub rules: [usize; 3],
    /// Sets, maps and their elements.
    pub sets: [usize; 3],
}

/// How long the last full comparisons are ago; `None`: there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Of routes.
    pub routes: Option<Duration>,
    /// Of packet rules.
    pub rules: Option<Duration>,
}
