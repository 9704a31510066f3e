//! Prometheus text, read from live state at every scrape.
//!
//! Explicit peers have series of their own; the mesh is summed, so that series do not grow with the square of the
//! hosts. A mesh peer that is down is still found by name in `tortie_bgp_peer_up`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tortie_bgp::bfd::{Endpoint, Status};
use tortie_bgp::{PeerStatus, State, Totals};

use super::backend::Live;
use super::status::{CoreFacts, KernelFacts, PeerFacts, mode_name};
use crate::speaker::{BfdView, Counters};

type Labels = Vec<(&'static str, String)>;

/// One family of series.
#[derive(Debug)]
struct Series {
    name: &'static str,
    help: &'static str,
    counter: bool,
    values: Vec<(Labels, f64)>,
}

/// A scrape, made whole before it is written.
#[derive(Debug, Default)]
struct Scrape(Vec<Series>);

impl Scrape {
    fn gauge(&mut self, name: &'static str, help: &'static str, values: Vec<(Labels, f64)>) {
        self.0.push(Series { name, help, counter: false, values });
    }

    fn counter(&mut self, name: &'static str, help: &'static str, values: Vec<(Labels, f64)>) {
        self.0.push(Series { name, help, counter: true, values });
    }
}

/// Hands a finished scrape to the library's encoder once.
#[derive(Debug)]
struct Once(Scrape, AtomicBool);

impl Collector for Once {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.1.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for series in &self.0.0 {
            let first = ConstCounter::new(0.0);
            let kind = if series.counter { first.metric_type() } else { ConstGauge::new(0.0).metric_type() };
            let mut family = encoder.encode_descriptor(series.name, series.help, None, kind)?;
            for (labels, value) in &series.values {
                // Empty braces are right, but nobody writes them.
                if labels.is_empty() {
                    match series.counter {
                        true => ConstCounter::new(*value).encode(family)?,
                        false => ConstGauge::new(*value).encode(family)?,
                    }
                    break;
                }
                if series.counter {
                    ConstCounter::new(*value).encode(family.encode_family(labels)?)?;
                } else {
                    ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn n(value: u64) -> f64 {
    value as f64
}

fn count(value: usize) -> f64 {
    n(value as u64)
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn one(value: f64) -> Vec<(Labels, f64)> {
    vec![(Vec::new(), value)]
}

/// What the speaker answered.
pub(super) struct Bgp {
    pub(super) peers: Vec<PeerStatus>,
    pub(super) totals: Totals,
    pub(super) counters: Counters,
    /// BFD sessions by peer.
    pub(super) watched: BTreeMap<Arc<str>, (Endpoint, Status)>,
    pub(super) bfd: Option<Arc<BfdView>>,
}

/// All metrics as OpenMetrics text.
pub(super) fn text(
    live: &Live,
    facts: Option<&CoreFacts>,
    kernel: Option<&KernelFacts>,
    bgp: Option<&Bgp>,
) -> String {
    let mut scrape = Scrape::default();
    let build = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    scrape.gauge("tortie_build_info", "The running build", vec![(build, 1.0)]);
    scrape.gauge("tortie_ready", "1 when the agent serves", one(flag(crate::serve::Backend::ready(live))));
    scrape.gauge("tortie_live", "1 when the loops turn", one(flag(crate::serve::Backend::live(live))));
    let uptime = live.started.elapsed().as_secs_f64();
    let since = jiff::Timestamp::now().as_duration().as_secs_f64() - uptime;
    scrape.gauge("tortie_start_time_seconds", "Unix time of the start", one(since));
    if let Some(facts) = facts {
        store(&mut scrape, facts);
        sessions(&mut scrape, facts);
        collector(&mut scrape, facts);
        policy(&mut scrape, facts);
    }
    if let Some(kernel) = kernel {
        routes(&mut scrape, kernel);
        table(&mut scrape, kernel);
    }
    if let Some(bgp) = bgp {
        explicit(&mut scrape, &bgp.peers, facts);
        rib(&mut scrape, &bgp.totals, &bgp.counters);
        if let (Some(view), Some(facts)) = (&bgp.bfd, facts) {
            forwarding(&mut scrape, view, &bgp.watched, facts);
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Once(scrape, AtomicBool::new(false))));
    let mut out = String::new();
    if encode(&mut out, &registry).is_err() {
        out.clear();
    }
    out
}

fn store(scrape: &mut Scrape, facts: &CoreFacts) {
    scrape.gauge("tortie_store_connected", "1 when the store answers", one(flag(facts.connected)));
    scrape.gauge("tortie_store_revision", "Last revision applied", one(n(facts.revision)));
    scrape.gauge(
        "tortie_store_watch_lag_seconds",
        "Time since the newest proof of freshness",
        one(facts.lag.as_secs_f64()),
    );
    scrape.gauge("tortie_store_snapshot_keys", "Keys known", one(count(facts.keys)));
    scrape.gauge(
        "tortie_store_running_from_cache",
        "1 when the last good state on disk is in force",
        one(flag(facts.from_cache)),
    );
    scrape.gauge(
        "tortie_store_frozen",
        "1 when the store is not followed",
        one(flag(facts.frozen.is_some())),
    );
    scrape.gauge(
        "tortie_store_invalid_objects",
        "Values that cannot be read",
        one(count(facts.invalid.len())),
    );
    let typed = |kind: &str| vec![("type", kind.to_owned())];
    scrape.counter(
        "tortie_store_events",
        "Changes read from the store",
        vec![(typed("put"), n(facts.puts)), (typed("delete"), n(facts.deletes))],
    );
    scrape.counter(
        "tortie_store_watch_restarts",
        "Watches that had to be opened again",
        one(n(facts.watch_restarts)),
    );
    scrape.counter("tortie_store_snapshots", "Whole lists read", one(n(facts.snapshots)));
}

fn labels(peer: &PeerFacts) -> Labels {
    vec![
        ("peer", peer.address.clone()),
        ("peer_name", peer.name.clone()),
        ("peer_as", peer.asn.to_string()),
        ("type", peer.kind.to_owned()),
    ]
}

fn sessions(scrape: &mut Scrape, facts: &CoreFacts) {
    let mut sums: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut expected: BTreeMap<&str, f64> = BTreeMap::new();
    for kind in ["mesh", "node", "global"] {
        expected.insert(kind, 0.0);
        sums.insert((kind, "Established"), 0.0);
    }
    for peer in facts.peers.values() {
        *expected.entry(peer.kind).or_default() += 1.0;
        *sums.entry((peer.kind, peer.state)).or_default() += 1.0;
    }
    let typed = |kind: &str| ("type", kind.to_owned());
    scrape.gauge(
        "tortie_bgp_peers_expected",
        "Sessions that the store wants",
        expected.into_iter().map(|(kind, v)| (vec![typed(kind)], v)).collect(),
    );
    let state = |s: &str| ("state", s.to_lowercase());
    scrape.gauge(
        "tortie_bgp_peers",
        "Sessions by state",
        sums.into_iter().map(|((kind, s), v)| (vec![typed(kind), state(s)], v)).collect(),
    );
    let named: Vec<&PeerFacts> = facts.peers.values().filter(|p| p.kind != "mesh" || !p.up).collect();
    scrape.gauge(
        "tortie_bgp_peer_up",
        "1 when Established; explicit peers, and mesh peers that are down",
        named.iter().map(|p| (labels(p), flag(p.up))).collect(),
    );
    let flaps = facts.peers.values().filter(|p| p.kind != "mesh").flat_map(|p| {
        p.flaps.iter().map(move |(reason, times)| {
            let mut labels = labels(p);
            labels.push(("reason", (*reason).to_owned()));
            (labels, n(*times))
        })
    });
    scrape.counter("tortie_bgp_peer_flaps", "Sessions lost, explicit peers", flaps.collect());
    let failures =
        facts.peers.values().filter(|p| p.kind != "mesh").map(|p| (labels(p), n(p.connect_failures)));
    scrape.counter(
        "tortie_bgp_peer_connect_failures",
        "Connects that failed, explicit peers",
        failures.collect(),
    );
}

fn collector(scrape: &mut Scrape, facts: &CoreFacts) {
    let kind = vec![("kind", "leaked".to_owned())];
    scrape.gauge(
        "tortie_ipam_suspect_addresses",
        "Addresses of this host that nobody has, as far as the collector looks (IpamLeakGracePeriodSecs)",
        vec![(kind, count(facts.collected.suspects.len()))],
    );
    scrape.counter(
        "tortie_ipam_collected_addresses",
        "Addresses that the collector released",
        one(n(facts.collected.released)),
    );
}

fn policy(scrape: &mut Scrape, facts: &CoreFacts) {
    let p = &facts.policy;
    let mode = vec![(vec![("mode", p.mode.clone())], 1.0)];
    scrape.gauge("tortie_policy_mode", "What the agent does to packet rules and endpoints", mode);
    let state = |name: &str| vec![("state", name.to_owned())];
    scrape.gauge(
        "tortie_endpoints",
        "Endpoints of this host by state; failed ones count as active or inactive, too",
        vec![
            (state("active"), count(p.endpoints - p.inactive)),
            (state("inactive"), count(p.inactive)),
            (state("failed"), count(p.failed)),
        ],
    );
    let kind = |name: &str| vec![("kind", name.to_owned())];
    scrape.gauge(
        "tortie_policies",
        "Policies and profiles that act on an endpoint of this host",
        vec![(kind("policy"), count(p.policies)), (kind("profile"), count(p.profiles))],
    );
    scrape.gauge("tortie_policy_rules", "Rules of those policies and profiles", one(count(p.rules)));
    scrape.gauge("tortie_policy_sets", "Address sets that those rules use", one(count(p.sets)));
    scrape.gauge(
        "tortie_policy_in_sync",
        "1 when the kernel has acknowledged every change",
        one(flag(p.in_sync)),
    );
    scrape.gauge(
        "tortie_policy_apply_seconds",
        "How long the kernel took for the last change",
        one(std::time::Duration::from_micros(p.apply_micros).as_secs_f64()),
    );
}

fn table(scrape: &mut Scrape, kernel: &KernelFacts) {
    let Some(rules) = &kernel.rules else { return };
    let kind = |name: &str| vec![("kind", name.to_owned())];
    scrape.gauge(
        "tortie_nftables_objects",
        "What the table inet tortie should hold",
        vec![
            (kind("chain"), count(rules.chains)),
            (kind("rule"), count(rules.rules)),
            (kind("set"), count(rules.sets)),
            (kind("element"), count(rules.elements)),
        ],
    );
    scrape.gauge(
        "tortie_nftables_drifted",
        "Objects that differ and are not repaired",
        one(count(kernel.rules_drift)),
    );
    let outcome = |name: &str| vec![("outcome", name.to_owned())];
    scrape.counter(
        "tortie_nftables_transactions",
        "Batches of packet rules",
        vec![(outcome("done"), n(rules.transactions)), (outcome("refused"), n(rules.refused))],
    );
    scrape.counter(
        "tortie_nftables_external_changes",
        "Own objects that somebody else changed or removed",
        one(n(rules.external_changes)),
    );
}

fn routes(scrape: &mut Scrape, kernel: &KernelFacts) {
    let c = &kernel.counts;
    let state = |name: &str| vec![("state", name.to_owned())];
    scrape.gauge(
        "tortie_kernel_routes",
        "Routes by state; foreign are those of others in the main table",
        vec![
            (state("installed"), count(c.installed)),
            (state("pending"), count(c.pending)),
            (state("failed"), count(c.failed)),
            (state("withheld"), count(c.withheld)),
            (state("stale"), count(c.stale)),
            (state("foreign"), count(c.foreign)),
        ],
    );
    scrape.gauge("tortie_kernel_nexthops", "Own nexthop objects", one(count(c.nexthops)));
    scrape.gauge(
        "tortie_kernel_mode",
        "What the agent does to the kernel",
        vec![(vec![("mode", mode_name(kernel.mode).to_owned())], 1.0)],
    );
    let k = &kernel.counters;
    let result = |name: &str| vec![("result", name.to_owned())];
    scrape.counter(
        "tortie_kernel_route_ops",
        "Requests to the kernel",
        vec![(result("ok"), n(k.ops_ok)), (result("error"), n(k.ops_failed))],
    );
    scrape.counter("tortie_kernel_route_op_seconds", "Time spent in requests", one(k.op_seconds));
    scrape.counter(
        "tortie_kernel_netlink_overruns",
        "Times that notifications were lost",
        one(n(k.overruns)),
    );
    scrape.counter(
        "tortie_kernel_route_external_changes",
        "Own objects that others changed",
        one(n(k.external_changes)),
    );
    scrape.counter(
        "tortie_kernel_route_vanished",
        "Own routes that the kernel dropped with their device",
        one(n(k.vanished)),
    );
    let plane = || vec![("plane", "route".to_owned())];
    scrape.counter("tortie_drift_repairs", "Own objects put back", vec![(plane(), n(k.repairs))]);
    scrape.gauge(
        "tortie_drift_items",
        "Differences from what is wanted",
        vec![(plane(), count(kernel.drift.count))],
    );
    scrape.counter("tortie_resyncs", "Full comparisons", vec![(plane(), n(k.compares))]);
    if let Some(ago) = kernel.compared {
        let at = jiff::Timestamp::now().as_duration().as_secs_f64() - ago.as_secs_f64();
        scrape.gauge(
            "tortie_last_full_compare_timestamp_seconds",
            "Unix time of the last full comparison",
            vec![(plane(), at)],
        );
    }
}

fn explicit(scrape: &mut Scrape, peers: &[PeerStatus], facts: Option<&CoreFacts>) {
    let Some(facts) = facts else { return };
    let mut prefixes = Vec::new();
    let mut messages = Vec::new();
    let mut states = Vec::new();
    for status in peers {
        let Some(peer) = facts.peers.get(&*status.name).filter(|p| p.kind != "mesh") else { continue };
        let number = match status.state {
            State::Idle => 1.0,
            State::Connect => 2.0,
            State::Active => 3.0,
            State::OpenSent => 4.0,
            State::OpenConfirm => 5.0,
            State::Established => 6.0,
        };
        states.push((labels(peer), number));
        for family in &status.families {
            let stages = [
                ("received", family.received),
                ("accepted", family.accepted),
                ("filtered", family.filtered),
                ("best", family.best),
                ("advertised", family.advertised),
                ("stale", family.stale),
            ];
            for (stage, value) in stages {
                let mut l = labels(peer);
                l.push(("afi", family.family.as_str().to_owned()));
                l.push(("safi", "unicast".to_owned()));
                l.push(("stage", stage.to_owned()));
                prefixes.push((l, f64::from(value)));
            }
        }
        for (direction, counts) in [("received", status.received), ("sent", status.sent)] {
            let kinds = [
                ("open", counts.open),
                ("update", counts.update),
                ("notification", counts.notification),
                ("keepalive", counts.keepalive),
                ("route_refresh", counts.route_refresh),
            ];
            for (kind, value) in kinds {
                let mut l = labels(peer);
                l.push(("direction", direction.to_owned()));
                l.push(("msg", kind.to_owned()));
                messages.push((l, n(value)));
            }
        }
    }
    scrape.gauge("tortie_bgp_peer_fsm_state", "1 Idle to 6 Established, explicit peers", states);
    scrape.gauge("tortie_bgp_peer_prefixes", "Prefixes by stage, explicit peers", prefixes);
    scrape.counter("tortie_bgp_peer_messages", "Messages, explicit peers", messages);
}

/// BFD (RFC 5880): sums over all sessions, series of their own for explicit peers, and for mesh peers that are down.
fn forwarding(
    scrape: &mut Scrape,
    view: &BfdView,
    watched: &BTreeMap<Arc<str>, (Endpoint, Status)>,
    facts: &CoreFacts,
) {
    let mut sums: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let (mut received, mut sent) = (0, 0);
    for (endpoint, status) in &view.sessions {
        *sums.entry((endpoint.path.as_str(), status.state.as_str())).or_default() += 1.0;
        received += status.received;
        sent += status.sent;
    }
    let sum = |((path, state), v): ((&str, &str), f64)| {
        (vec![("path", path.to_owned()), ("state", state.to_lowercase())], v)
    };
    scrape.gauge("tortie_bfd_sessions", "BFD sessions by state", sums.into_iter().map(sum).collect());
    let direction = |name: &str| vec![("direction", name.to_owned())];
    scrape.counter(
        "tortie_bfd_packets",
        "Control packets of the sessions that there are now",
        vec![(direction("received"), n(received)), (direction("sent"), n(sent))],
    );
    scrape.counter(
        "tortie_bfd_packets_refused",
        "Control packets discarded (RFC 5880 6.8.6)",
        view.refused.iter().map(|(why, v)| (vec![("reason", why.as_str().to_owned())], n(*v))).collect(),
    );
    scrape.counter(
        "tortie_bfd_packets_unsent",
        "Control packets that the kernel refused",
        one(n(view.unsent)),
    );
    scrape.counter(
        "tortie_bfd_late",
        "Times that the thread of BFD was kept from looking for so long that silence was no sign of a loss",
        one(n(view.late)),
    );
    let priority = vec![("priority", view.priority.as_str().to_owned())];
    scrape.gauge("tortie_bfd_thread", "How the thread of BFD is scheduled", vec![(priority, 1.0)]);
    let (mut up, mut detection, mut ups) = (Vec::new(), Vec::new(), Vec::new());
    for (name, (_, status)) in watched {
        let is_up = status.state == tortie_bgp::bfd::State::Up;
        let Some(peer) = facts.peers.get(&**name).filter(|p| p.kind != "mesh" || !is_up) else { continue };
        up.push((labels(peer), flag(is_up)));
        if peer.kind != "mesh" {
            detection.extend(status.detection_time.map(|time| (labels(peer), time.as_secs_f64())));
            ups.push((labels(peer), n(status.ups)));
        }
    }
    scrape.gauge("tortie_bfd_peer_up", "1 when BFD is Up; explicit peers, and mesh peers that are down", up);
    scrape.gauge("tortie_bfd_peer_detection_seconds", "Silence that takes the session down", detection);
    scrape.counter("tortie_bfd_peer_ups", "Times that the session came up, explicit peers", ups);
}

fn rib(scrape: &mut Scrape, totals: &Totals, counters: &Counters) {
    let mut rows = Vec::new();
    for (at, afi) in ["ipv4", "ipv6"].into_iter().enumerate() {
        for (what, values) in [("loc", &totals.prefixes), ("paths", &totals.paths), ("local", &totals.local)]
        {
            let labels =
                vec![("rib", what.to_owned()), ("afi", afi.to_owned()), ("safi", "unicast".to_owned())];
            rows.push((labels, n(values.get(at).copied().unwrap_or(0))));
        }
    }
    scrape.gauge("tortie_rib_routes", "Prefixes and paths", rows);
    scrape.gauge(
        "tortie_rib_memory_bytes",
        "Estimated size of tables, attributes and update groups",
        one(n(totals.memory)),
    );
    scrape.gauge("tortie_rib_attribute_sets", "Distinct attribute sets", one(n(totals.attribute_sets)));
    scrape.gauge("tortie_rib_update_groups", "Update groups", one(n(totals.update_groups)));
    let l = &totals.learned;
    let action = |name: &str| vec![("action", name.to_owned())];
    scrape.counter(
        "tortie_rib_route_changes",
        "What peers did with their routes",
        vec![
            (action("announce"), n(l.announced)),
            (action("replace"), n(l.replaced)),
            (action("withdraw"), n(l.withdrawn)),
            (action("suppressed_same"), n(l.repeated)),
        ],
    );
    let listed = |key: &'static str, list: &[(&'static str, u64)]| {
        list.iter().map(|(name, v)| (vec![(key, (*name).to_owned())], n(*v))).collect::<Vec<_>>()
    };
    scrape.counter(
        "tortie_rib_import_rejected",
        "Routes refused on import",
        listed("reason", &totals.rejected),
    );
    scrape.gauge(
        "tortie_rib_export_withheld",
        "Best paths withheld by export gates",
        listed("gate", &totals.withheld),
    );
    scrape.counter(
        "tortie_bgp_update_errors",
        "UPDATE errors by what was done (RFC 7606)",
        listed("action", &totals.update_errors),
    );
    scrape.counter("tortie_bgp_received_bytes", "Bytes read from peers", one(n(counters.bytes_in)));
    scrape.counter("tortie_bgp_sent_bytes", "Bytes written to peers", one(n(counters.bytes_out)));
    let refused = vec![
        (vec![("reason", "address".to_owned())], n(counters.refused_address)),
        (vec![("reason", "damped".to_owned())], n(counters.refused_damped)),
        (vec![("reason", "key".to_owned())], n(counters.refused_key)),
        (vec![("reason", "ttl".to_owned())], n(counters.refused_ttl)),
    ];
    scrape.counter("tortie_bgp_connections_refused", "Incoming connections closed at once", refused);
}
