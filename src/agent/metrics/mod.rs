//! What Prometheus reads, from live state at every scrape: a page of native names, and pages with the names of others.
//!
//! A scrape asks each thread once for a copy of what it counted ([`Scrape`]), then writes the page on the thread that
//! serves it. No thread looks at all routes for it. Explicit peers have series of their own; the mesh is summed, so that
//! series do not grow with the square of the hosts. A mesh peer that is down is still found by name in `tortie_bgp_peer_up`.
//!
//! ```text
//!  core, speaker, kernel --copies--> Scrape --> native pages (health, store, sessions, rib, kernel, policy, ipam, bfd)
//!                                          \-> felix.rs, bird.rs: the names of Felix, kube-controllers and bird_exporter
//! ```

mod bfd;
mod bird;
mod core;
mod exposition;
mod felix;
mod health;
mod ipam;
mod kernel;
mod policy;
mod rib;
mod sessions;
mod store;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tortie_bgp::bfd::{Endpoint, Status};
use tortie_bgp::{PeerStatus, Totals};

use self::core::CoreScrape;
use crate::agent::config::PerPeer;
use crate::agent::core::snapshot::mode_name;
use crate::agent::core::view::CoreView;
use crate::agent::handle::Handle;
use crate::agent::metrics::exposition::Page;
use crate::agent::observe::{ComparisonReport, Observer};
use crate::api::MetricsPage;
use crate::speaker::{self, BfdView, SpeakerView};
use tortie_engine::routing::OriginKind;
use tortie_kernel::{
    self as kernel_room, Counters, Counts, Denial, DriftCounts, KernelView, LastResync, RuleCounts,
};
use tortie_metrics::Table;
use tortie_store::Requests;

/// The kernel thread's part of a scrape.
struct KernelScrape {
    mode: &'static str,
    counts: Counts,
    counters: Counters,
    drift: DriftCounts,
    compared: LastResync,
    measures: kernel_room::KernelMetrics,
    rules: Option<RuleCounts>,
    dirty: usize,
    /// Which denial packets are logged with.
    denials: Vec<(String, Denial)>,
}

/// The speaker's part of a scrape.
struct BgpScrape {
    peers: Vec<PeerStatus>,
    totals: Totals,
    counters: speaker::Counters,
    measures: speaker::Measures,
    waiting: usize,
    /// BFD sessions by peer.
    watched: BTreeMap<Arc<str>, (Endpoint, Status)>,
    bfd: Option<Arc<BfdView>>,
    /// Of peers with series of their own: failed attempts by reason, round-trip time.
    more: BTreeMap<String, More>,
}

#[derive(Debug, Default)]
struct More {
    failures: Vec<(&'static str, u64)>,
    round_trip: Option<f64>,
}

/// The answers of all threads, of about the same time; `None`: a thread did not answer.
struct Scrape {
    /// Of an agent that observes.
    comparison: Option<Arc<ComparisonReport>>,
    core: Option<CoreScrape>,
    kernel: Option<KernelScrape>,
    bgp: Option<BgpScrape>,
}

/// Makes the pages, and counts requests to the API.
pub(super) struct Exporter {
    handle: Arc<Handle>,
    observer: Option<Arc<Observer>>,
    store_requests: Arc<Requests>,
    /// `sqlite` or `etcd`.
    store_kind: &'static str,
    /// Which peers have series of their own.
    per_peer: PerPeer,
    /// Route protocol of own routes.
    protocol: u8,
    /// By route and status.
    api_requests: Table<(String, u16)>,
    state: ScrapeState,
}

/// What outlives a scrape.
#[derive(Debug, Default)]
struct ScrapeState {
    /// Unix time at which a thread answered last: speaker, kernel.
    answered: [AtomicI64; 2],
    denied: Mutex<Denied>,
}

/// Denied packets by who denied them. Rules come and go, and their numbers with them: what was counted stays counted.
#[derive(Debug, Default)]
struct Denied {
    /// What of each log prefix has been counted.
    read_at: BTreeMap<String, u64>,
    sums: BTreeMap<Denial, u64>,
}

impl Exporter {
    pub(super) fn new(
        handle: Arc<Handle>,
        observer: Option<Arc<Observer>>,
        store_requests: Arc<Requests>,
        store_kind: &'static str,
        per_peer: PerPeer,
        protocol: u8,
    ) -> Self {
        Self {
            handle,
            observer,
            store_requests,
            store_kind,
            per_peer,
            protocol,
            api_requests: Table::default(),
            state: ScrapeState::default(),
        }
    }

    /// Counts a request to the API that was answered: its route and status.
    pub(super) fn count_request(&self, route: String, status: u16, took: Duration) {
        self.api_requests.time((route, status), took);
    }

    /// A page.
    pub(super) async fn page(&self, what: MetricsPage) -> String {
        let scrape = self.scrape().await;
        let mut page = Page::new(what == MetricsPage::OpenMetrics);
        match what {
            MetricsPage::Prometheus | MetricsPage::OpenMetrics => {
                health::write(&mut page, self, &scrape);
                if let Some(core) = &scrape.core {
                    store::write(&mut page, core, &self.store_requests.read());
                    sessions::write(&mut page, core, scrape.bgp.as_ref());
                    ipam::write(&mut page, core);
                    policy::write(&mut page, self, core, &scrape);
                }
                rib::write(&mut page, &scrape);
                if let Some(kernel) = &scrape.kernel {
                    kernel::write(&mut page, kernel, scrape.comparison.as_deref(), self.protocol);
                }
                if let (Some(bgp), Some(core)) = (&scrape.bgp, &scrape.core) {
                    bfd::write(&mut page, bgp, core);
                }
                health::apis(&mut page, self);
            }
            MetricsPage::Felix => felix::write(&mut page, self.handle.node(), &scrape),
            MetricsPage::Bird => bird::write(&mut page, &scrape),
        }
        page.text()
    }

    async fn scrape(&self) -> Scrape {
        let per_peer = self.per_peer;
        let scrape = move |core: &CoreView<'_>| self::core::scrape(core, per_peer, Instant::now());
        let core = self.handle.core().ask(scrape).await.ok();
        let prefixes = self.handle.drops().map(|drops| drops.logged().0).unwrap_or_default();
        let kernel = self.handle.kernel().ask(move |view| kernel_scrape(view, &prefixes)).await.ok();
        // Sessions with series of their own: the others cost a line each in the sums.
        let named: Vec<String> = core
            .iter()
            .flat_map(|core| core.peers.iter().filter(|(_, peer)| peer.whole).map(|(name, _)| name.clone()))
            .collect();
        let bgp = self.handle.speaker().ask(move |view| bgp_scrape(view, &named)).await.ok();
        let now = jiff::Timestamp::now().as_second();
        for (at, answered) in [bgp.is_some(), kernel.is_some()].into_iter().enumerate() {
            if let Some(last) = self.state.answered.get(at).filter(|_| answered) {
                last.store(now, Ordering::Relaxed);
            }
        }
        if let Some(kernel) = &kernel {
            self.state.count(kernel, &self.handle.drops().map(|drops| drops.logged().0).unwrap_or_default());
        }
        let comparison = self.observer.as_deref().and_then(Observer::last);
        Scrape { comparison, core, kernel, bgp }
    }
}

fn kernel_scrape(view: &KernelView<'_>, prefixes: &[(String, u64)]) -> KernelScrape {
    KernelScrape {
        mode: mode_name(view.mode()),
        counts: view.counts(),
        counters: view.counters(),
        drift: view.drift_counts(),
        compared: view.compared(),
        measures: view.measures(),
        rules: view.rule_counts(),
        dirty: view.dirty(),
        denials: prefixes
            .iter()
            .filter_map(|(prefix, _)| Some((prefix.clone(), view.denial(prefix)?)))
            .collect(),
    }
}

fn bgp_scrape(view: &SpeakerView<'_>, named: &[String]) -> BgpScrape {
    let peers = view.peers();
    let more = named.iter().map(|name| {
        let conn = peers.binary_search_by(|peer| (*peer.name).cmp(name.as_str())).ok();
        let conn = conn.and_then(|at| peers.get(at)).and_then(|peer| peer.conn);
        let failures = view.dial_failures(name).map(Vec::from).unwrap_or_default();
        let round_trip = conn.and_then(|conn| view.round_trip(conn)).map(|time| time.as_secs_f64());
        (name.clone(), More { failures, round_trip })
    });
    let more = more.collect();
    BgpScrape {
        peers,
        totals: view.totals(),
        counters: view.counters(),
        measures: view.measures(),
        waiting: view.waiting(),
        watched: view.bfd_sessions(),
        bfd: view.bfd(),
        more,
    }
}

impl ScrapeState {
    /// Adds what was logged since the last scrape. A rule that is gone before the next scrape is counted under `gone`.
    fn count(&self, kernel: &KernelScrape, logged: &[(String, u64)]) {
        let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        let Denied { read_at, sums } = &mut *denied;
        for (prefix, count) in logged {
            let known = kernel.denials.iter().find(|(of, _)| of == prefix).map(|(_, denial)| denial.clone());
            let denial =
                known.unwrap_or_else(|| Denial { direction: "unknown", tier: String::new(), reason: "gone" });
            let before = read_at.entry(prefix.clone()).or_default();
            *sums.entry(denial).or_default() += count.saturating_sub(*before);
            *before = (*count).max(*before);
        }
    }

    fn denied(&self) -> BTreeMap<Denial, u64> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).sums.clone()
    }

    /// Unix time at which the speaker, then the kernel thread answered last.
    fn answered(&self) -> [i64; 2] {
        [0, 1].map(|at| self.answered.get(at).map_or(0, |last| last.load(Ordering::Relaxed)))
    }
}

/// The `source` of own routes.
fn origin(kind: OriginKind) -> &'static str {
    match kind {
        OriginKind::OwnBlock => "ipam_block",
        OriginKind::Borrowed => "borrowed",
        OriginKind::Floating => "floating",
    }
}
