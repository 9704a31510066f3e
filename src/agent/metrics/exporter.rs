//! Reads the threads for a scrape, and keeps what outlives one: when each answered, and packets that rules denied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::core;
use super::scrape::{KernelScrape, Scrape, bgp_scrape, kernel_scrape};
use crate::agent::config::PeerSeries;
use crate::agent::core::view::CoreView;
use crate::agent::handle::Handle;
use crate::agent::observe::Observer;
use tortie_kernel::Denial;
use tortie_metrics::Table;
use tortie_store::Requests;

/// Makes the pages, and counts requests to the API.
pub(in crate::agent) struct Exporter {
    pub(super) handle: Arc<Handle>,
    pub(super) observer: Option<Arc<Observer>>,
    pub(super) store_requests: Arc<Requests>,
    /// `sqlite` or `etcd`.
    pub(super) store_kind: &'static str,
    /// Which peers have series of their own.
    pub(super) per_peer: PeerSeries,
    /// Route protocol of own routes.
    pub(super) protocol: u8,
    /// By route and status.
    pub(super) api_requests: Table<(String, u16)>,
    pub(super) state: ScrapeState,
}

/// State that outlives a scrape.
#[derive(Debug, Default)]
pub(super) struct ScrapeState {
    /// Unix time at which a thread answered last: speaker, kernel.
    pub(super) answered: [AtomicI64; 2],
    pub(super) denied: Mutex<Denied>,
}

/// Denied packets by who denied them. Rules come and go, and their numbers with them: what was counted stays counted.
#[derive(Debug, Default)]
pub(super) struct Denied {
    /// Denials of each log prefix that were counted.
    pub(super) read_at: BTreeMap<String, u64>,
    pub(super) sums: BTreeMap<Denial, u64>,
}

impl Exporter {
    pub(in crate::agent) fn new(
        handle: Arc<Handle>,
        observer: Option<Arc<Observer>>,
        store_requests: Arc<Requests>,
        store_kind: &'static str,
        per_peer: PeerSeries,
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
    pub(in crate::agent) fn count_request(&self, route: String, status: u16, took: Duration) {
        self.api_requests.time((route, status), took);
    }

    /// Asks each thread once.
    pub(super) async fn scrape(&self) -> Scrape {
        let per_peer = self.per_peer;
        let scrape = move |core: &CoreView<'_>| core::scrape(core, per_peer, Instant::now());
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

impl ScrapeState {
    /// Adds what was logged since the last scrape. A rule that is gone before the next scrape is counted under `gone`.
    fn count(&self, kernel: &KernelScrape, logged: &[(String, u64)]) {
        let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
        let Denied { read_at, sums } = &mut *denied;
        for (prefix, count) in logged {
            let denial = kernel.denials.iter().find(|(of, _)| of == prefix).map(|(_, denial)| denial.clone());
            let denial = denial.unwrap_or_else(|| Denial {
                direction: "unknown",
                tier: String::new(),
                reason: "gone",
            });
            let before = read_at.entry(prefix.clone()).or_default();
            *sums.entry(denial).or_default() += count.saturating_sub(*before);
            *before = (*count).max(*before);
        }
    }

    pub(super) fn denied(&self) -> BTreeMap<Denial, u64> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner).sums.clone()
    }

    /// Unix time at which the speaker, then the kernel thread answered last.
    pub(super) fn answered(&self) -> [i64; 2] {
        [0, 1].map(|at| self.answered.get(at).map_or(0, |last| last.load(Ordering::Relaxed)))
    }
}
