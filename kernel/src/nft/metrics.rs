//! Metrics of packet rules, owned by the kernel thread.

use std::collections::BTreeMap;

use tortie_metrics::Histogram;

/// Durations and counts of operations on packet rules.
#[derive(Debug, Clone, Default)]
pub struct RuleMetrics {
    /// Durations of executed transactions.
    pub applied: Histogram,
    /// Durations of refused transactions.
    pub refused: Histogram,
    /// Numbers of comparisons with the kernel's table, by reason.
    pub compares: BTreeMap<&'static str, u64>,
    /// Durations of comparisons.
    pub compare: Histogram,
}

/// Differences of packet rules, each as numbers of missing, extra and different objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleDrift {
    /// Chains and rules.
    pub rules: [usize; 3],
    /// Sets, maps and their elements.
    pub sets: [usize; 3],
}
