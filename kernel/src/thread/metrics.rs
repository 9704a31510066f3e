//! Metrics of the kernel thread, owned by it and copied for each query.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::nft::metrics::{RuleDrift, RuleMetrics};
use tortie_metrics::Histogram;

/// Durations of the thread's operations, and their reasons.
#[derive(Debug, Clone, Default)]
pub struct KernelMetrics {
    /// One message with all of its consequences: the time that other messages had to wait.
    pub iterations: Histogram,
    /// One batch of route requests (learned ones: at most 4,096), from the first octet sent to the last
    /// answer.
    pub route_batch: Histogram,
    /// One batch of requests for nexthop objects.
    pub nexthop_batch: Histogram,
    /// Numbers of resyncs of routes, nexthop objects, links and neighbours, by reason.
    pub compares: BTreeMap<&'static str, u64>,
    /// Durations of these resyncs.
    pub compare: Histogram,
    /// Metrics of packet rules.
    pub rules: RuleMetrics,
}

/// Differences from the desired state; arrays are missing, extra and different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DriftCounts {
    /// Routes, except those to local endpoints.
    pub routes: [usize; 3],
    /// Routes, neighbours and sysctls of local endpoints.
    pub interfaces: usize,
    /// Packet rules that differed at the last comparison and are not repaired.
    pub rules: RuleDrift,
}

/// Times since the last resyncs; `None` if there was none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastResync {
    /// Time since the last resync of routes.
    pub routes: Option<Duration>,
    /// Time since the last comparison of packet rules.
    pub rules: Option<Duration>,
}
