//! Snapshot of the kernel thread's state for `status` and metrics.

use std::time::Duration;

use tortie_kernel::{Counters, Counts, Drift, KernelView, Mode, RuleCounts};
use tortie_net::Cidr;

/// The kernel thread's state for `status` and metrics.
#[derive(Debug, Clone)]
pub(in crate::agent) struct KernelSnapshot {
    pub(in crate::agent) mode: Mode,
    pub(in crate::agent) objects: bool,
    pub(in crate::agent) counts: Counts,
    pub(in crate::agent) counters: Counters,
    pub(in crate::agent) drift: Drift,
    pub(in crate::agent) compared: Option<Duration>,
    pub(in crate::agent) tunnel: Option<String>,
    /// Counts of Tortie's nftables table; `None` if policy is off.
    pub(in crate::agent) rules: Option<RuleCounts>,
    /// Number of objects in the table that differ from the intent.
    pub(in crate::agent) rules_drift: usize,
    /// The first learned routes that are withheld.
    pub(in crate::agent) withheld: Vec<(Cidr, &'static str)>,
}

/// Copies the kernel thread's state.
pub(in crate::agent) fn kernel_snapshot(view: &KernelView<'_>) -> KernelSnapshot {
    let counts = view.counts();
    KernelSnapshot {
        mode: view.mode(),
        objects: view.nexthop_objects(),
        counts,
        withheld: if counts.withheld > 0 { view.withheld(3) } else { Vec::new() },
        counters: view.counters(),
        drift: view.drift(5),
        compared: view.last_compare().map(|(ago, _)| ago),
        tunnel: view.tunnel().map(str::to_owned),
        rules: view.rule_counts(),
        rules_drift: view.rules_drift().0,
    }
}
