//! Metrics of the kernel thread: plain numbers of one owner, copied when a query asks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::nft::metrics::{RuleDrift, RuleMetrics};
use tortie_metrics::Histogram;

/// What took how long, and why.
#[derive(Debug, Clone, Default)]
pub struct KernelMetrics {
    /// One message with all that followed from it: how long anything else had to wait.
    pub iterations: Histogram,
    /// One list of requests for routes (of learned ones at most 4,096), from the first octet sent to the last answer.
    pub route_batch: Histogram,
    /// One batch of requests for nexthop objects.
    pub nexthop_batch: Histogram,
    /// Full comparisons of routes, nexthop objects, links and neighbours, by what asked for them.
    pub compares: BTreeMap<&'static str, u64>,
    /// How long they took.
    pub compare: Histogram,
    /// The same of packet rules.
    pub rules: RuleMetrics,
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

/// How long the last full comparisons are ago; `None`: there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastResync {
    /// Of routes.
    pub routes: Option<Duration>,
    /// Of packet rules.
    pub rules: Option<Duration>,
}
