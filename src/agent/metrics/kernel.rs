//! Metrics of kernel routes, drift and resyncs.

use super::scrape::KernelScrape;
use crate::agent::metrics::exposition::{Family, Page, n, unix_before};
use crate::agent::observe::ComparisonReport;
use crate::foreign::{CompareResult, Plane};
use tortie_kernel::{DriftCounts, OPS, RESULTS};

pub(super) fn write(
    page: &mut Page,
    kernel: &KernelScrape,
    comparison: Option<&ComparisonReport>,
    protocol: u8,
) {
    let own = protocol.to_string();
    let c = &kernel.counts;
    let mut family = page.gauge(
        "tortie_kernel_routes",
        "Routes of the main table by state; withheld: learned and not installed for a reason; foreign: of other programs",
    );
    let states = [
        ("installed", c.installed),
        ("pending", c.pending),
        ("failed", c.failed),
        ("withheld", c.withheld),
        ("stale", c.stale),
    ];
    for (state, count) in states {
        family.count(&[("table", "main"), ("proto", &own), ("state", state)], count);
    }
    family.count(&[("table", "main"), ("proto", "other"), ("state", "foreign")], c.foreign);
    page.gauge("tortie_kernel_nexthops", "Own nexthop objects").count(&[], c.nexthops);
    page.gauge("tortie_kernel_mode", "Mode of the agent's kernel routes; always 1")
        .put(&[("mode", kernel.mode)], 1.0);
    let mut family = page.counter(
        "tortie_kernel_route_ops_total",
        "Requests for routes and nexthop objects by the kernel's answer",
    );
    for (op, results) in OPS.into_iter().zip(&kernel.counters.ops) {
        for (result, count) in RESULTS.into_iter().zip(results) {
            if *count > 0 || result == "ok" {
                family.put(&[("op", op), ("result", result)], n(*count));
            }
        }
    }
    page.histogram(
        "tortie_kernel_route_op_seconds",
        "Duration of one batch of requests (of learned routes at most 4,096), from the first request to the last answer",
    )
    .observed(&[("op", "route")], &kernel.metrics.route_batch)
    .observed(&[("op", "nexthop")], &kernel.metrics.nexthop_batch);
    page.counter(
        "tortie_kernel_netlink_overruns_total",
        "Times that kernel notifications were lost, after which everything is compared",
    )
    .put(&[], n(kernel.counters.overruns));
    page.counter(
        "tortie_kernel_route_external_changes_total",
        "Own routes, nexthops, neighbours and packet rules that another process changed or removed",
    )
    .put(&[], n(kernel.counters.external_changes));
    page.counter(
        "tortie_kernel_route_vanished_total",
        "Own routes that the kernel dropped with their device or address",
    )
    .put(&[], n(kernel.counters.vanished));
    drift(page, kernel, comparison);
    compared(page, kernel, comparison);
}

fn drift(page: &mut Page, kernel: &KernelScrape, comparison: Option<&ComparisonReport>) {
    let drift = &kernel.drift;
    let mut family = page.gauge(
        "tortie_drift_items",
        "Objects that differ from the desired state: routes, routes and neighbours of endpoints (interface), packet rules, sets; with --kernel observe those of BIRD and Felix, and sessions",
    );
    if let Some(comparison) = comparison {
        for plane in Plane::ALL {
            let counts = comparison.comparison.counts(plane);
            for verdict in [CompareResult::Missing, CompareResult::Extra, CompareResult::Different] {
                family.count(&[("plane", plane.as_str()), ("kind", verdict.as_str())], counts.of(verdict));
            }
        }
    } else {
        own_drift(drift, &mut family);
    }
    let mut family = page.gauge(
        "tortie_drift_unjudged_items",
        "Objects of BIRD and Felix that cannot be compared; 0 without --kernel observe",
    );
    for plane in Plane::ALL {
        let count = comparison.map_or(0, |comparison| comparison.comparison.counts(plane).not_compared);
        family.count(&[("plane", plane.as_str())], count);
    }
    page.counter("tortie_drift_repairs_total", "Own objects repaired after another process changed them")
        .put(&[("plane", "route")], n(kernel.counters.repairs))
        .put(&[("plane", "rule")], n(kernel.counters.rule_repairs));
}

fn own_drift(drift: &DriftCounts, family: &mut Family<'_>) {
    for (plane, counts) in [("route", drift.routes), ("rule", drift.rules.rules), ("set", drift.rules.sets)] {
        for (kind, count) in ["missing", "extra", "different"].into_iter().zip(counts) {
            family.count(&[("plane", plane), ("kind", kind)], count);
        }
    }
    family.count(&[("plane", "interface"), ("kind", "different")], drift.interfaces);
}

fn compared(page: &mut Page, kernel: &KernelScrape, comparison: Option<&ComparisonReport>) {
    let metrics = &kernel.metrics;
    let mut family = page.counter("tortie_resyncs_total", "Full comparisons with the kernel, by trigger");
    for (plane, compares) in [("route", &metrics.compares), ("rule", &metrics.rules.compares)] {
        for (reason, count) in compares {
            family.put(&[("plane", plane), ("reason", reason)], n(*count));
        }
    }
    page.histogram("tortie_resync_seconds", "Duration of full comparisons with the kernel")
        .observed(&[("plane", "route")], &metrics.compare)
        .observed(&[("plane", "rule")], &metrics.rules.compare);
    let mut family =
        page.gauge("tortie_last_full_compare_timestamp_seconds", "Unix time of the last full comparison");
    let ago = comparison.map(ComparisonReport::age);
    for (plane, ago) in [("route", ago.or(kernel.compared.routes)), ("rule", ago.or(kernel.compared.rules))] {
        if let Some(ago) = ago {
            family.put(&[("plane", plane)], unix_before(ago));
        }
    }
}
