//! Metrics of policy, endpoints, packet rules, denied packets and connection tracking.

use super::core::CoreScrape;
use super::exporter::Exporter;
use super::scrape::{KernelScrape, Scrape};
use crate::agent::metrics::exposition::{Page, flag, n};
use tortie_kernel::Denial;

pub(super) fn write(page: &mut Page, exporter: &Exporter, core: &CoreScrape, scrape: &Scrape) {
    let kernel = scrape.kernel.as_ref();
    let best_paths = scrape.bgp.as_ref().map_or(0, |bgp| bgp.waiting);
    let p = &core.policy;
    page.gauge("tortie_policy_mode", "Mode of the agent's packet rules and endpoints; always 1")
        .put(&[("mode", &p.mode)], 1.0);
    let mut family = page.gauge(
        "tortie_endpoints",
        "Endpoints of this host; pending: its interface is absent or down, or it is not active",
    );
    for ((kind, state), count) in &core.endpoints {
        family.count(&[("kind", kind), ("state", state)], *count);
    }
    page.gauge(
        "tortie_policies",
        "Policies and profiles: in the store, and those that apply to an endpoint of this host",
    )
    .count(&[("kind", "policy"), ("scope", "active_here")], p.policies)
    .count(&[("kind", "policy"), ("scope", "known")], core.objects.policies)
    .count(&[("kind", "profile"), ("scope", "active_here")], p.profiles)
    .count(&[("kind", "profile"), ("scope", "known")], core.objects.profiles);
    page.gauge("tortie_policy_selectors", "Selectors whose addresses are used by rules of this host")
        .count(&[], p.sets);
    page.gauge("tortie_policy_rules", "Rules of the policies and profiles that apply on this host")
        .count(&[], p.rules);
    page.gauge("tortie_policy_in_sync", "1 when the kernel has acknowledged every change")
        .put(&[], flag(p.in_sync));
    page.histogram("tortie_policy_calc_seconds", "Time from a change of the store to the new desired state")
        .observed(&[], &core.counters.calculated);
    let mut family = page.histogram(
        "tortie_policy_convergence_seconds",
        "Time from a change of the store to the kernel's acknowledgement of rules and endpoints, by what changed",
    );
    for (trigger, times) in &core.counters.policy {
        family.observed(&[("trigger", trigger)], times);
    }
    page.histogram(
        "tortie_endpoint_ready_seconds",
        "Time from a request of CNI, Docker or Kurma to the rules and routes of its endpoint in the kernel",
    )
    .observed(&[], &core.counters.endpoint_ready);
    if let Some(kernel) = kernel {
        table(page, kernel);
        let (rules, intents) = core.waiting;
        page.gauge(
            "tortie_dataplane_pending",
            "Work queued for the kernel: changes of rules, of own routes, and prefixes to write",
        )
        .put(&[("kind", "rules")], n(rules))
        .put(&[("kind", "intents")], n(intents))
        .count(&[("kind", "prefixes")], kernel.dirty + best_paths);
    }
    denied(page, exporter);
    conntrack(page);
}

fn table(page: &mut Page, kernel: &KernelScrape) {
    let Some(rules) = &kernel.rules else { return };
    let backend = ("backend", "nftables");
    page.gauge("tortie_dataplane_objects", "Desired contents of the table inet tortie")
        .count(&[backend, ("kind", "chains")], rules.chains)
        .count(&[backend, ("kind", "rules")], rules.rules)
        .count(&[backend, ("kind", "sets")], rules.sets - rules.maps)
        .count(&[backend, ("kind", "maps")], rules.maps)
        .count(&[backend, ("kind", "set_members")], rules.elements);
    let metrics = &kernel.metrics.rules;
    page.histogram("tortie_dataplane_apply_seconds", "Duration of one transaction of packet rules")
        .observed(&[backend, ("result", "ok")], &metrics.applied)
        .observed(&[backend, ("result", "refused")], &metrics.refused);
    page.counter("tortie_dataplane_applies_total", "Transactions of packet rules")
        .put(&[backend, ("result", "ok")], n(rules.transactions))
        .put(&[backend, ("result", "refused")], n(rules.refused));
}

fn denied(page: &mut Page, exporter: &Exporter) {
    let Some(drops) = exporter.handle.drops().filter(|drops| drops.problem().is_none()) else { return };
    let mut family = page.counter(
        "tortie_policy_denied_packets_total",
        "Dropped packets that the kernel logs: at most ten per second and rule, so a flood is only sampled",
    );
    let mut denied = exporter.state.denied();
    // Present from the start with 0, so that the first denied packet is an increase.
    for (direction, tier, reason) in
        [("ingress", "profiles", "profile"), ("egress", "", "unknown_endpoint"), ("egress", "", "anti_spoof")]
    {
        denied.entry(Denial { direction, tier: tier.to_owned(), reason }).or_default();
    }
    for (denial, count) in denied {
        let labels = [("direction", denial.direction), ("tier", &*denial.tier), ("reason", denial.reason)];
        family.put(&labels, n(count));
    }
    page.counter(
        "tortie_denied_flow_events_dropped_total",
        "Times that drops were logged faster than they were read",
    )
    .put(&[], n(drops.logged().1));
}

fn conntrack(page: &mut Page) {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    if let (Some(count), Some(max)) = (read("count"), read("max")) {
        page.gauge("tortie_conntrack_entries", "Connections that the kernel tracks").put(&[], n(count));
        page.gauge("tortie_conntrack_limit", "Maximum number of connections that the kernel tracks")
            .put(&[], n(max));
    }
}
