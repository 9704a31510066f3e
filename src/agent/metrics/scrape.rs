//! Data of one scrape: copies of each thread's counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_bgp::bfd::{Endpoint, Status};
use tortie_bgp::{PeerStatus, Totals};

use super::core::CoreScrape;
use crate::agent::core::snapshot::mode_name;
use crate::agent::observe::ComparisonReport;
use crate::speaker::{self, BfdView, SpeakerView};
use tortie_kernel::{
    Counters, Counts, Denial, DriftCounts, KernelMetrics, KernelView, LastResync, RuleCounts,
};

/// The kernel thread's part of a scrape.
pub(super) struct KernelScrape {
    pub(super) mode: &'static str,
    pub(super) counts: Counts,
    pub(super) counters: Counters,
    pub(super) drift: DriftCounts,
    pub(super) compared: LastResync,
    pub(super) metrics: KernelMetrics,
    pub(super) rules: Option<RuleCounts>,
    pub(super) dirty: usize,
    /// Log prefixes of denied packets, with the rules that they stand for.
    pub(super) denials: Vec<(String, Denial)>,
}

/// The speaker's part of a scrape.
pub(super) struct BgpScrape {
    pub(super) peers: Vec<PeerStatus>,
    pub(super) totals: Totals,
    pub(super) counters: speaker::Counters,
    pub(super) metrics: speaker::SpeakerMetrics,
    pub(super) waiting: usize,
    /// BFD sessions by peer.
    pub(super) watched: BTreeMap<Arc<str>, (Endpoint, Status)>,
    pub(super) bfd: Option<Arc<BfdView>>,
    /// Details of peers with series of their own.
    pub(super) more: BTreeMap<String, PeerDetails>,
}

/// Failed attempts by reason and round-trip time of a peer.
#[derive(Debug, Default)]
pub(super) struct PeerDetails {
    pub(super) failures: Vec<(&'static str, u64)>,
    pub(super) round_trip: Option<f64>,
}

/// Answers of all threads at about the same time; `None` if a thread did not answer.
pub(super) struct Scrape {
    /// Comparison with other daemons; set in observe mode.
    pub(super) comparison: Option<Arc<ComparisonReport>>,
    pub(super) core: Option<CoreScrape>,
    pub(super) kernel: Option<KernelScrape>,
    pub(super) bgp: Option<BgpScrape>,
}

pub(super) fn kernel_scrape(view: &KernelView<'_>, prefixes: &[(String, u64)]) -> KernelScrape {
    KernelScrape {
        mode: mode_name(view.mode()),
        counts: view.counts(),
        counters: view.counters(),
        drift: view.drift_counts(),
        compared: view.compared(),
        metrics: view.metrics(),
        rules: view.rule_counts(),
        dirty: view.dirty(),
        denials: prefixes
            .iter()
            .filter_map(|(prefix, _)| Some((prefix.clone(), view.denial(prefix)?)))
            .collect(),
    }
}

pub(super) fn bgp_scrape(view: &SpeakerView<'_>, named: &[String]) -> BgpScrape {
    let peers = view.peers();
    let more = named.iter().map(|name| {
        let conn = peers.binary_search_by(|peer| (*peer.name).cmp(name.as_str())).ok();
        let conn = conn.and_then(|at| peers.get(at)).and_then(|peer| peer.conn);
        let failures = view.dial_failures(name).map(Vec::from).unwrap_or_default();
        let round_trip = conn.and_then(|conn| view.round_trip(conn)).map(|time| time.as_secs_f64());
        (name.clone(), PeerDetails { failures, round_trip })
    });
    let more = more.collect();
    BgpScrape {
        peers,
        totals: view.totals(),
        counters: view.counters(),
        metrics: view.metrics(),
        waiting: view.waiting(),
        watched: view.bfd_sessions(),
        bfd: view.bfd(),
        more,
    }
}
