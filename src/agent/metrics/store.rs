//! Metrics of the store: freshness, requests and changes.

use std::collections::BTreeMap;

use super::core::CoreScrape;
use crate::agent::metrics::exposition::{Page, flag, n};
use tortie_metrics::Histogram;

type Requests = BTreeMap<(&'static str, &'static str), Histogram>;

pub(super) fn write(page: &mut Page, core: &CoreScrape, requests: &Requests) {
    page.gauge("tortie_store_connected", "1 when the store answers").put(&[], flag(core.connected));
    page.gauge("tortie_store_revision", "Last revision read from the store").put(&[], n(core.revision));
    page.gauge(
        "tortie_store_watch_lag_seconds",
        "Time since the last proof of freshness: a change, or a message that there is none",
    )
    .put(&[], core.lag.as_secs_f64());
    page.gauge("tortie_store_snapshot_keys", "Keys in the last full list").count(&[], core.keys);
    page.gauge("tortie_store_running_from_cache", "1 when the last good state on disk is in force")
        .put(&[], flag(core.from_cache));
    page.gauge("tortie_store_frozen", "1 when the agent does not follow the store (freeze)")
        .put(&[], flag(core.frozen));
    let mut family = page.gauge("tortie_store_invalid_objects", "Values that cannot be parsed");
    for kind in ["config", "policy", "profile", "workload", "bgp"] {
        if !core.invalid.contains_key(kind) {
            family.put(&[("kind", kind)], 0.0);
        }
    }
    for (kind, count) in &core.invalid {
        family.count(&[("kind", kind)], *count);
    }
    let mut family = page.counter(
        "tortie_store_events_total",
        "Changes reported by the store; unchanged: written again with the value that it had before",
    );
    for ((of, kind), count) in &core.counters.events {
        family.put(&[("type", of), ("kind", kind)], n(*count));
    }
    let mut family = page.counter("tortie_store_watch_restarts_total", "Watches that were opened again");
    for reason in ["compacted", "disconnected"] {
        let count = core.counters.restarts.get(reason).copied().unwrap_or_default();
        family.put(&[("reason", reason)], n(count));
    }
    page.counter("tortie_store_snapshots_total", "Full lists read from the store")
        .put(&[], n(core.snapshots));
    page.histogram(
        "tortie_store_snapshot_seconds",
        "Time from a full list to the desired state computed from it",
    )
    .observed(&[], &core.counters.snapshot);
    let mut family = page.counter("tortie_store_requests_total", "Requests to the store, by answer");
    for ((op, result), times) in requests {
        family.put(&[("op", op), ("result", result)], n(times.count()));
    }
    let mut family = page.histogram("tortie_store_request_seconds", "Duration of requests to the store");
    for ((op, result), times) in requests {
        family.observed(&[("op", op), ("result", result)], times);
    }
}
