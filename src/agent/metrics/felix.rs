//! Compatible metrics page with the names of Felix and of kube-controllers' IPAM metrics, for existing
//! dashboards and alerts. Metrics without a counterpart (eBPF, Go runtime, Typha) are omitted.

use std::collections::BTreeMap;

use super::scrape::Scrape;
use crate::agent::metrics::exposition::{Page, n};

/// States of Felix's resync metric: 1 waits for the datastore, 2 resyncs, 3 is in sync.
const IN_SYNC: f64 = 3.0;
const RESYNC: f64 = 2.0;
const WAIT: f64 = 1.0;

pub(super) fn write(page: &mut Page, node: &str, scrape: &Scrape) {
    calculation(page, scrape);
    dataplane(page, scrape);
    ipam(page, node, scrape);
}

fn calculation(page: &mut Page, scrape: &Scrape) {
    let Some(core) = &scrape.core else { return };
    let p = &core.policy;
    page.gauge("felix_active_local_endpoints", "Number of active endpoints on this host.")
        .count(&[], p.endpoints);
    page.gauge("felix_active_local_policies", "Number of active policies on this host.")
        .count(&[], p.policies);
    page.gauge("felix_active_local_selectors", "Number of active selectors on this host.").count(&[], p.sets);
    let objects = &core.objects;
    let sums = [
        ("felix_cluster_num_hosts", "Total number of calico hosts in the cluster.", objects.hosts),
        ("felix_cluster_num_policies", "Total number of policies in the cluster.", objects.policies),
        ("felix_cluster_num_profiles", "Total number of profiles in the cluster.", objects.profiles),
        ("felix_cluster_num_tiers", "Total number of Calico tiers in the cluster.", objects.tiers),
        (
            "felix_cluster_num_workload_endpoints",
            "Total number of workload endpoints cluster-wide.",
            objects.workloads,
        ),
        (
            "felix_cluster_num_host_endpoints",
            "Total number of host endpoints cluster-wide.",
            objects.host_endpoints,
        ),
    ];
    for (name, help, count) in sums {
        page.gauge(name, help).count(&[], count);
    }
    page.summary(
        "felix_calc_graph_update_time_seconds",
        "Seconds to update calculation graph for each datastore OnUpdate call.",
    )
    .observed(&[], &core.counters.calculated);
    let mut family = page.counter(
        "felix_calc_graph_updates_processed",
        "Number of datastore updates processed by the calculation graph.",
    );
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, kind), count) in core.counters.events.iter().filter(|((of, _), _)| *of != "unchanged") {
        *sums.entry(kind).or_default() += count;
    }
    for (kind, count) in sums {
        family.put(&[("type", kind)], n(count));
    }
    page.counter("felix_calc_graph_output_events", "Number of events emitted by the calculation graph.")
        .put(&[], n(core.counters.calculated.count()));
    page.counter("felix_resyncs_started", "Number of times Felix has started resyncing with the datastore.")
        .put(&[], n(core.snapshots));
    let state = match (core.connected, core.running) {
        (true, true) => IN_SYNC,
        (true, false) => RESYNC,
        (false, _) => WAIT,
    };
    page.gauge("felix_resync_state", "Current datastore state.").put(&[], state);
}

fn dataplane(page: &mut Page, scrape: &Scrape) {
    let Some(kernel) = &scrape.kernel else { return };
    if let Some(core) = &scrape.core {
        let mut family = page.counter("felix_int_dataplane_messages", "Number of messages by type.");
        for (kind, times) in &core.counters.policy {
            family.put(&[("type", kind)], n(times.count()));
        }
    }
    let metrics = &kernel.metrics;
    if let Some(rules) = &kernel.rules {
        page.summary(
            "felix_int_dataplane_apply_time_seconds",
            "Time in seconds that each incremental update to the dataplane took.",
        )
        .observed(&[], &metrics.rules.applied);
        page.counter(
            "felix_int_dataplane_failures",
            "Number of times dataplane updates failed and will be retried.",
        )
        .put(&[], n(rules.refused));
        let table = [("ip_version", "inet"), ("table", "tortie")];
        page.gauge("felix_nft_rules", "Number of active nftables rules.").count(&table, rules.rules);
        page.gauge("felix_nft_chains", "Number of active nftables chains.").count(&table, rules.chains);
        page.counter("felix_nft_calls", "Number of nftables transactions.")
            .put(&table, n(rules.transactions + rules.refused));
        page.counter("felix_nft_errors", "Number of nftables errors.").put(&table, n(rules.refused));
        page.gauge("felix_ipsets_calico", "Number of active Calico IP sets.")
            .count(&[("ip_version", "inet")], rules.sets - rules.maps);
        page.gauge("felix_ipsets_total", "Total number of active IP sets.")
            .count(&[], rules.sets - rules.maps);
    }
    page.gauge("felix_route_table_num_routes", "Number of routes in each managed routing table.")
        .count(&[("table", "main")], kernel.counts.installed);
    page.summary("felix_route_table_resync_seconds", "Time taken to compare all routes with the kernel.")
        .observed(&[], &metrics.compare);
}

/// Each node reports its own blocks; kube-controllers reports the blocks of all nodes.
fn ipam(page: &mut Page, node: &str, scrape: &Scrape) {
    let Some(core) = &scrape.core else { return };
    let mut family =
        page.gauge("ipam_allocations_in_use", "Addresses of this node's blocks that are in use.");
    for (pool, sum) in &core.blocks {
        family.count(
            &[("ippool", pool), ("node", node)],
            sum.used + sum.borrowed_in - sum.borrowed_out.min(sum.used),
        );
    }
    let mut family =
        page.gauge("ipam_allocations_borrowed", "Addresses in use here from blocks of other nodes.");
    for (pool, sum) in &core.blocks {
        family.count(&[("ippool", pool), ("node", node)], sum.borrowed_in);
    }
    let mut family = page.gauge("ipam_blocks", "Blocks of this node.");
    for (pool, sum) in &core.blocks {
        family.count(&[("ippool", pool), ("node", node)], sum.blocks);
    }
    page.gauge("ipam_allocations_gc_candidates", "Addresses of this node that seem to be leaked.")
        .count(&[("node", node)], core.gc.leak_candidates.len());
    page.counter("ipam_allocations_gc_reclamations", "Leaked addresses of this node that were released.")
        .put(&[("node", node)], n(core.gc.released));
}
