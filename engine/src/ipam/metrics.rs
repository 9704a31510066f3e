//! Requests of this process, counted: one meter, because a request may come by any [`Ipam`](super::Ipam) of it, and plugins
//! that run as processes of their own tell the agent theirs when they end.

use std::time::Duration;

use super::IpamError;
use tortie_metrics::Table;

/// Counts of requests for addresses and blocks.
#[derive(Debug)]
pub struct IpamMetrics {
    /// Times by operation and result.
    pub requests: Table<(&'static str, &'static str)>,
    /// Transactions that others were faster than, by the kind of the object that they changed; only counts.
    pub conflicts: Table<&'static str>,
}

/// Operations that are counted.
pub const OPS: [&str; 4] = ["assign", "release", "claim_block", "release_block"];
/// How they end: `exhausted` where no pool that may be used has room, `conflict` where others were always faster.
pub const RESULTS: [&str; 4] = ["ok", "exhausted", "conflict", "error"];
/// What a transaction may meet others at.
pub const OBJECTS: [&str; 4] = ["block", "handle", "affinity", "other"];

static METRICS: IpamMetrics = IpamMetrics { requests: Table::new(), conflicts: Table::new() };

/// This process's meter.
#[must_use]
pub fn metrics() -> &'static IpamMetrics {
    &METRICS
}

pub(super) fn result<T>(answer: &Result<T, IpamError>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(IpamError::Full { .. } | IpamError::BlockLimit { .. }) => "exhausted",
        Err(IpamError::Busy { .. }) => "conflict",
        Err(_) => "error",
    }
}

/// A key that was another than expected.
pub(super) fn lost(key: &str) {
    let of = if key.starts_with("/calico/ipam/v2/handle/") {
        "handle"
    } else if key.starts_with("/calico/ipam/v2/assignment/") {
        "block"
    } else if key.starts_with("/calico/ipam/v2/host/") {
        "affinity"
    } else {
        "other"
    };
    METRICS.conflicts.time(of, Duration::ZERO);
}
