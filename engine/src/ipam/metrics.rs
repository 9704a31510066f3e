//! Counts IPAM requests of this process in one static, because requests may come through any
//! [`Ipam`](super::Ipam). Plugins that run as separate processes report their counts to the agent when they
//! exit.

use std::time::Duration;

use super::IpamError;
use tortie_metrics::Table;

/// Counters and timings of address and block requests.
#[derive(Debug)]
pub struct IpamMetrics {
    /// Durations by operation and result.
    pub requests: Table<(&'static str, &'static str)>,
    /// Number of transaction conflicts, by the kind of key that another writer changed; no durations are
    /// recorded.
    pub conflicts: Table<&'static str>,
}

/// Operations that are counted.
pub const OPS: [&str; 4] = ["assign", "release", "claim_block", "release_block"];
/// Results of an operation: `exhausted` if no usable pool has room, `conflict` if every attempt conflicted
/// with another writer.
pub const RESULTS: [&str; 4] = ["ok", "exhausted", "conflict", "error"];
/// Kinds of keys on which transactions conflict.
pub const OBJECTS: [&str; 4] = ["block", "handle", "affinity", "other"];

static METRICS: IpamMetrics = IpamMetrics { requests: Table::new(), conflicts: Table::new() };

/// Returns the counters of this process.
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

/// Counts a conflict on a key.
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
