//! Metrics of the BGP tables: sizes, churn, and the time from a change to the kernel.

use std::collections::BTreeMap;

use super::scrape::{BgpScrape, Scrape};
use crate::agent::metrics::exposition::{Page, n};
use crate::api::codes;

const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

pub(super) fn write(page: &mut Page, scrape: &Scrape) {
    if let Some(bgp) = &scrape.bgp {
        routes(page, scrape, bgp);
        tables(page, bgp);
        churn(page, bgp);
        transport(page, bgp);
    }
    let mut family = page.histogram(
        "tortie_route_convergence_seconds",
        "Time from an UPDATE (bgp) or a change of the store (store) to the kernel's acknowledgement of the routes",
    );
    if let Some(bgp) = &scrape.bgp {
        family.observed(&[("source", "bgp")], &bgp.metrics.convergence);
    }
    if let Some(core) = &scrape.core {
        family.observed(&[("source", "store")], &core.counters.routes);
    }
}

fn routes(page: &mut Page, scrape: &Scrape, bgp: &BgpScrape) {
    let (mut received, mut advertised) = ([0_u64; 2], [0_u64; 2]);
    for family in bgp.peers.iter().flat_map(|peer| &peer.families) {
        let at = family.family.index();
        for (sums, value) in [(&mut received, family.received), (&mut advertised, family.advertised)] {
            if let Some(sum) = sums.get_mut(at) {
                *sum += u64::from(value);
            }
        }
    }
    let mut family = page.gauge(
        "tortie_rib_routes",
        "Prefixes; adj_in and adj_out are sums over all peers, loc counts each prefix once",
    );
    let originated = scrape.core.as_ref().map(|core| &core.originated);
    for (at, afi) in FAMILIES.into_iter().enumerate() {
        let of = |values: &[u64; 2]| n(values.get(at).copied().unwrap_or_default());
        let mut put = |rib: &str, source: &str, value: f64| {
            family.put(&[("rib", rib), ("afi", afi), ("safi", "unicast"), ("source", source)], value);
        };
        put("adj_in", "bgp", of(&received));
        put("loc", "bgp", of(&bgp.totals.prefixes) - of(&bgp.totals.local));
        for (source, values) in originated.into_iter().flatten() {
            put("loc", source, values.get(at).copied().map_or(0.0, |v| n(v as u64)));
        }
        put("adj_out", "all", of(&advertised));
    }
    let mut family = page.gauge(
        "tortie_rib_paths",
        "Paths, own ones included: a prefix has one from each peer that announces it",
    );
    for (at, afi) in FAMILIES.into_iter().enumerate() {
        let paths = bgp.totals.paths.get(at).copied().unwrap_or_default();
        family.put(&[("afi", afi), ("safi", "unicast")], n(paths));
    }
}

fn tables(page: &mut Page, bgp: &BgpScrape) {
    let mut family = page.gauge(
        "tortie_rib_memory_bytes",
        "Estimated memory size; loc: prefixes and paths, as received and as used; adj_out: update groups; attributes: shared path attributes",
    );
    for (rib, size) in bgp.totals.memory_of {
        family.put(&[("rib", rib)], n(size));
    }
    page.gauge("tortie_rib_attribute_sets", "Distinct sets of path attributes")
        .put(&[], n(bgp.totals.attribute_sets));
    page.gauge("tortie_rib_update_groups", "Update groups: peers that are sent the same routes")
        .put(&[], n(bgp.totals.update_groups));
    let mut gates: BTreeMap<_, _> = bgp.totals.withheld.iter().copied().collect();
    let mut family = page.gauge(
        "tortie_rib_export_withheld",
        "Best paths that export policy withholds now, by the gate that decides; summed over update groups",
    );
    for code in codes::EXPORT_REASONS {
        gates.entry(code.name).or_default();
    }
    for (gate, count) in gates {
        family.put(&[("gate", gate)], n(count));
    }
}

fn churn(page: &mut Page, bgp: &BgpScrape) {
    let mut family = page.counter("tortie_rib_route_changes_total", "Changes of routes that peers made");
    for (afi, learned) in FAMILIES.into_iter().zip(&bgp.totals.learned) {
        let actions = [
            ("announce", learned.announced),
            ("replace", learned.replaced),
            ("withdraw", learned.withdrawn),
            ("suppressed_same", learned.repeated),
        ];
        for (action, count) in actions {
            let labels = [("afi", afi), ("safi", "unicast"), ("action", action), ("source", "bgp")];
            family.put(&labels, n(count));
        }
    }
    let mut family = page.counter("tortie_rib_import_rejected_total", "Routes that import rejected");
    let mut reasons: BTreeMap<_, _> = bgp.totals.rejected.iter().copied().collect();
    for code in codes::IMPORT_REASONS {
        reasons.entry(code.name).or_default();
    }
    for (reason, count) in reasons {
        family.put(&[("reason", reason)], n(count));
    }
    let mut family =
        page.counter("tortie_bgp_update_errors_total", "UPDATE errors by their handling (RFC 7606)");
    for (action, count) in &bgp.totals.update_errors {
        family.put(&[("action", action)], n(*count));
    }
    page.histogram(
        "tortie_rib_bestpath_seconds",
        "Duration of one read from a peer (at most 64 KiB): parsing, import policy and selection of best paths",
    )
    .observed(&[], &bgp.metrics.reads);
    page.histogram(
        "tortie_rib_update_batch_routes",
        "Changed best paths sent to the kernel thread in one batch",
    )
    .observed(&[], &bgp.metrics.batches);
}

fn transport(page: &mut Page, bgp: &BgpScrape) {
    let counters = &bgp.counters;
    page.counter("tortie_bgp_received_bytes_total", "Octets read from peers").put(&[], n(counters.bytes_in));
    page.counter("tortie_bgp_sent_bytes_total", "Octets written to peers").put(&[], n(counters.bytes_out));
    let refused = [
        ("address", counters.refused_address),
        ("damped", counters.refused_damped),
        ("key", counters.refused_key),
        ("ttl", counters.refused_ttl),
    ];
    let mut family =
        page.counter("tortie_bgp_connections_refused_total", "Incoming connections closed at once");
    for (reason, count) in refused {
        family.put(&[("reason", reason)], n(count));
    }
}
