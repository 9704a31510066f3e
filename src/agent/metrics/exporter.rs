//! Exporter of the metrics pages: queries the threads for a scrape, and keeps counts across scrapes.

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

/// Produces the metrics pages and counts API requests.
pub(in crate::agent) struct Exporter {
    pub(super) handle: Arc<Handle>,
    pub(super) observer: Option<Arc<Observer>>,
    pub(super) store_requests: Arc<Requests>,
    /// `sqlite` or `etcd`.
    pub(super) store_kind: &'static str,
    /// Selects the peers with series of their own.
    pub(super) per_peer: PeerSeries,
    /// Protocol number of own kernel routes.
    pub(super) protocol: u8,
    /// Request times by route and status.
    pub(super) api_requests: Table<(String, u16)>,
    pub(super) state: ScrapeState,
}

/// State that is kept across scrapes.
#[derive(Debug, Default)]
pub(super) struct ScrapeState {
    /// Unix time of the last answer of the speaker and of the kernel thread.
    pub(super) answered: [AtomicI64; 2],
    pub(super) denied: Mutex<Denied>,
}

/// Denied packets by rule. The counts of a removed rule are kept, although rules and their numbers change.
#[derive(Debug, Default)]
pub(super) struct Denied {
    /// Counter of each log prefix at the last scrape.
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

    /// Counts an answered API request by route and status.
    pub(in crate::agent) fn count_request(&self, route: String, status: u16, took: Duration) {
        self.api_requests.time((route, status), took);
    }

    /// Queries each thread once.
    pub(super) async fn scrape(&self) -> Scrape {
        let per_peer = self.per_peer;
        let scrape = move |core: &CoreView<'_>| core::scrape(core, per_peer, Instant::now());
        let core = self.handle.core().ask(scrape).await.ok();
        let prefixes = self.handle.drops().map(|drops| drops.logged().0).unwrap_or_default();
        let kernel = self.handle.kernel().ask(move |view| kernel_scrape(view, &prefixes)).await.ok();
        // Only sessions with series of their own need details; all others are part of the sums.
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
    /// Adds the packets logged since the last scrape. If the rule was removed before the scrape, its packets
    /// count as `gone`.
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

    /// Returns the Unix times of the last answers of speaker and kernel thread.
    pub(super) fn answered(&self) -> [i64; 2] {
        [0, 1].map(|at| self.answered.get(at).map_or(0, |last| last.load(Ordering::Relaxed)))
    }
}
