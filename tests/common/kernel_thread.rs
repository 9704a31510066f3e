//! A kernel thread under test: sends messages, waits for facts, runs queries.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test helper; not every test uses all of it"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tortie_engine::routing::{
    ChangeId, RemoteRoute, Resolved, RoutingView, StoreRoutes, VxlanDevice, VxlanIntent,
};
use tortie_kernel::{
    BlackholeOutcome, KernelFact, KernelHandle, KernelIntent, KernelView, LearnedChange, Mode, Options,
    ToKernel, spawn,
};
use tortie_net::{Cidr, ScopedAddr};

use super::concurrency::{self, Membership};

/// Time limit for a fact to arrive, and for what takes a fraction of a second on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Number of tries to see that something is fast: a loaded machine may delay one of them.
const TRIES: usize = 5;

pub(crate) fn options(mode: Mode) -> Options {
    Options::new(mode)
}

pub(crate) struct Rig {
    handle: Option<KernelHandle>,
    facts: Receiver<KernelFact>,
    generation: u64,
    pub(crate) started: (usize, usize),
    _group: Membership,
}

/// A VXLAN with the routes of its pools.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    pub(crate) vxlan: VxlanIntent,
    pub(crate) routes: BTreeMap<Cidr, RemoteRoute>,
}

impl Rig {
    pub(crate) fn start(options: &Options) -> Self {
        let group = concurrency::KERNEL_THREADS.join();
        let (sink, facts) = channel();
        let sink = Box::new(move |fact| {
            let _ = sink.send(fact);
        });
        let handle = spawn(options, sink).expect("netlink opens");
        let mut rig = Self { handle: Some(handle), facts, generation: 0, started: (0, 0), _group: group };
        rig.started = rig.wait("Started", |fact| match fact {
            KernelFact::Started { routes_v4, routes_v6, .. } => Some((*routes_v4, *routes_v6)),
            _ => None,
        });
        rig
    }

    pub(crate) fn program() -> Self {
        Self::start(&options(Mode::Program))
    }

    pub(crate) fn stop(mut self) {
        self.handle.take().expect("running").stop().expect("no thread panicked");
    }

    pub(crate) fn send(&self, message: ToKernel) {
        self.handle.as_ref().expect("running").sender().send(message).expect("kernel thread runs");
    }

    /// Returns the first fact that `pick` accepts; earlier ones are discarded.
    pub(crate) fn wait<T>(&self, what: &str, mut pick: impl FnMut(&KernelFact) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(fact) = self.facts.recv_timeout(left) else {
                panic!("no fact {what} within {PATIENCE:?}")
            };
            if let Some(found) = pick(&fact) {
                return found;
            }
        }
    }

    /// Returns the facts received so far.
    pub(crate) fn drain(&self) -> Vec<KernelFact> {
        self.facts.try_iter().collect()
    }

    /// Sends an intent with these blackholes, each with its change id.
    pub(crate) fn intend(&mut self, blackholes: &[(&str, u64)]) {
        self.generation += 1;
        self.send(ToKernel::Intent(Arc::new(KernelIntent {
            generation: self.generation,
            change: ChangeId(self.generation),
            blackholes: blackholes.iter().map(|(p, c)| (cidr(p), ChangeId(*c))).collect(),
            tunnel: None,
            vxlan: Arc::default(),
            store_routes: Arc::default(),
            view: Arc::default(),
        })));
    }

    /// Sends an intent with this VXLAN and its routes, and waits until it is applied.
    pub(crate) fn overlay(&mut self, overlay: &Overlay) {
        let Overlay { vxlan, routes } = overlay.clone();
        self.generation += 1;
        let generation = self.generation;
        let local = |device: &Option<VxlanDevice>| device.as_ref().map(|device| device.local);
        let view =
            RoutingView { node_v4: local(&vxlan.v4), node_v6: local(&vxlan.v6), ..RoutingView::default() };
        self.send(ToKernel::Intent(Arc::new(KernelIntent {
            generation,
            change: ChangeId(generation),
            blackholes: Default::default(),
            tunnel: None,
            vxlan: Arc::new(vxlan),
            store_routes: Arc::new(StoreRoutes { remote: routes, ..StoreRoutes::default() }),
            view: Arc::new(view),
        })));
        self.wait("Applied", |fact| {
            matches!(fact, KernelFact::Applied { generation: g, .. } if *g == generation).then_some(())
        });
    }

    /// Sends an intent with these blackholes. Returns those that failed.
    pub(crate) fn blackholes(&mut self, prefixes: &[&str]) -> Vec<(Cidr, String)> {
        self.generation += 1;
        let generation = self.generation;
        let blackholes = prefixes.iter().map(|p| (cidr(p), ChangeId(generation))).collect();
        self.send(ToKernel::Intent(Arc::new(KernelIntent {
            generation,
            change: ChangeId(generation),
            blackholes,
            tunnel: None,
            vxlan: Arc::default(),
            store_routes: Arc::default(),
            view: Arc::default(),
        })));
        self.wait("Applied", |fact| match fact {
            KernelFact::Applied { generation: g, failed, .. } if *g == generation => Some(failed.clone()),
            _ => None,
        })
    }

    /// Returns the next acknowledgements of blackholes.
    pub(crate) fn acknowledged(&self) -> Vec<(String, u64, BlackholeOutcome)> {
        self.wait("Applied", |fact| match fact {
            KernelFact::Applied { acknowledged, .. } if !acknowledged.is_empty() => {
                Some(acknowledged.iter().map(|a| (a.prefix.to_string(), a.change.0, a.outcome)).collect())
            }
            _ => None,
        })
    }

    /// Learns prefixes with these next hops, 1,024 at a time. Returns the number of routes written and
    /// deleted.
    pub(crate) fn learn_all(
        &self,
        prefixes: impl IntoIterator<Item = Cidr>,
        hops: &[&str],
    ) -> (usize, usize) {
        let next_hops: SmallVec<[ScopedAddr; 2]> = hops.iter().map(|h| h.parse().expect("address")).collect();
        let changes: Vec<LearnedChange> = prefixes
            .into_iter()
            .map(|prefix| LearnedChange {
                prefix,
                next_hops: next_hops.clone(),
                local_pref: None,
                change: ChangeId(1),
            })
            .collect();
        let mut sum = (0, 0);
        for batch in changes.chunks(1024) {
            self.send(ToKernel::Learned(batch.to_vec().into()));
            let done = self.wait("Learned", |fact| match fact {
                KernelFact::Learned { written, deleted, .. } => Some((*written, *deleted)),
                _ => None,
            });
            sum = (sum.0 + done.0, sum.1 + done.1);
        }
        sum
    }

    pub(crate) fn learn(&self, prefix: &str, hops: &[&str]) -> (usize, usize) {
        self.learn_all([cidr(prefix)], hops)
    }

    pub(crate) fn sweep(&self) -> usize {
        self.send(ToKernel::SweepStale);
        self.wait("Swept", |fact| match fact {
            KernelFact::Swept(count) => Some(*count),
            _ => None,
        })
    }

    pub(crate) fn track(&self, addr: &str) -> Option<Resolved> {
        let addr: IpAddr = addr.parse().expect("address");
        self.send(ToKernel::Track(addr.into()));
        self.next_hop(addr)
    }

    /// Returns the next fact about a tracked next hop.
    pub(crate) fn next_hop(&self, addr: IpAddr) -> Option<Resolved> {
        self.wait("NextHop", |fact| match fact {
            KernelFact::NextHop(a, answer) if *a == addr => Some(*answer),
            _ => None,
        })
    }

    /// Runs a query on the kernel thread.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&KernelView<'_>) -> T + Send + 'static,
    ) -> T {
        let (answer, answers) = channel();
        self.send(ToKernel::Query(Box::new(move |view| {
            let _ = answer.send(question(view));
        })));
        answers.recv_timeout(PATIENCE).expect("the kernel thread answers")
    }

    /// Returns the number of requests sent, including rejected ones.
    pub(crate) fn writes(&self) -> u64 {
        self.ask(|v| v.counters().ops.iter().flatten().sum())
    }
}

pub(crate) fn cidr(text: &str) -> Cidr {
    text.parse().expect("prefix")
}

/// Returns `count` consecutive /26 blocks from 10.128.0.0.
pub(crate) fn blocks(count: u32) -> impl Iterator<Item = Cidr> {
    (0..count).map(|i| Cidr::v4((0x0a80_0000 + i * 64).into(), 26))
}

/// Returns `count` consecutive /122 blocks.
pub(crate) fn blocks_v6(count: u128) -> impl Iterator<Item = Cidr> {
    (0..count).map(|i| Cidr::v6(((0x2001_0db8_u128 << 96) + (1 << 80) + i * 64).into(), 122))
}

/// Repeats a measurement until it is below the limit, at most five times. Returns the shortest time.
pub(crate) fn fast(what: &str, limit: Duration, mut measure: impl FnMut() -> Duration) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        best = best.min(measure());
        if best < limit {
            return best;
        }
    }
    panic!("{what}: {best:?} at best, of {limit:?}")
}

/// Polls until `check` returns true. Returns the time that took.
pub(crate) fn eventually(what: &str, limit: Duration, mut check: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !check() {
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begin.elapsed()
}
