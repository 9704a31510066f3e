//! What is measured of packet rules: plain numbers of one owner.

use std::collections::BTreeMap;

use tortie_metrics::Histogram;

/// What took how long of packet rules.
#[derive(Debug, Clone, Default)]
pub struct RuleMetrics {
    /// Transactions that the kernel carried out.
    pub applied: Histogram,
    /// Transactions that it refused.
    pub refused: Histogram,
    /// Comparisons with the kernel's table, by what asked for them.
    pub compares: BTreeMap<&'static str, u64>,
    /// How long they took.
    pub compare: Histogram,
}

/// Differences of packet rules, each as missing, extra and different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleDrift {
    /// Chains and rules.
    pub rules: [usize; 3],
    /// Sets, maps and their elements.
    pub sets: [usize; 3],
}
