//! A speaker thread with simulated surroundings of the agent: a kernel that accepts batches and resolves next
//! hops.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tortie::speaker::{
    MonitorEvent, SpeakerFact, SpeakerHandle, SpeakerOptions, SpeakerView, ToSpeaker, monitor_queue, spawn,
};
use tortie_bgp::{PathInfo, PeerStatus, RouteMatch, RouteQuery, RouteTable, State};
use tortie_engine::routing::{
    Addresses, ChangeId, LearnedBatch, Multipath, OriginKind, Originated, PeerIntent, PeerKind, PeerSource,
    Persistent, PoolView, Resolved, RoutingIntent, RoutingView,
};
use tortie_net::{Cidr, ScopedAddr};

/// Time limit for what takes a second on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    pub(crate) handle: SpeakerHandle,
    pub(crate) intent: RoutingIntent,
    thread: Option<JoinHandle<()>>,
    facts: Arc<Mutex<Vec<(Instant, SpeakerFact)>>>,
    kernel: Arc<Mutex<BTreeMap<Cidr, Vec<ScopedAddr>>>>,
    /// Prefixes that the kernel was told to remove, including those installed again at once.
    withdrawn: Arc<Mutex<Vec<Cidr>>>,
}

pub(crate) fn cidr(text: &str) -> Cidr {
    Cidr::parse_strict(text).unwrap()
}

pub(crate) fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the intent of a node at this address, as the model would produce it: it listens there and
/// announces its blocks and pools.
pub(crate) fn intent(at: &str, asn: u32, blocks: &[&str]) -> RoutingIntent {
    let listen: SocketAddr = at.parse().unwrap();
    let own: Vec<Cidr> = blocks.iter().map(|b| cidr(b)).collect();
    let pool = |c| PoolView { cidr: cidr(c), ipip: None, vxlan: None, disabled: false };
    RoutingIntent {
        asn,
        router_id: match listen.ip() {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => u32::from(v6.segments()[7]) + 1,
        },
        multipath: Multipath::default(),
        listen: vec![listen],
        peers: Persistent::default(),
        ranges: Persistent::default(),
        originated: own
            .iter()
            .map(|c| {
                (
                    *c,
                    Originated {
                        kind: OriginKind::OwnBlock,
                        key: c.to_string().into(),
                        revision: 1,
                        priority: None,
                    },
                )
            })
            .collect(),
        blackholes: Arc::new(own.iter().copied().collect()),
        withheld_blocks: Default::default(),
        tunnel: None,
        vxlan: Arc::default(),
        store_routes: Default::default(),
        view: Arc::new(RoutingView {
            node: at.into(),
            pools: vec![pool("10.0.0.0/8"), pool("fd00::/8")],
            own_blocks: own.into_iter().collect(),
            ..RoutingView::default()
        }),
        addresses: Addresses::default(),
        endpoint_routings: Default::default(),
        notes: Arc::default(),
    }
}

/// Returns a peer with both families that is dialled at once.
pub(crate) fn peer(at: &str, local: &str, asn: u32) -> PeerIntent {
    let source = PeerSource::Mesh(String::new());
    PeerIntent {
        local: Some(addr(local)),
        extended_messages: false,
        ..PeerIntent::new(PeerKind::Node, at.into(), source, at.parse().unwrap(), asn)
    }
}

impl Node {
    /// Starts a node with this intent, with all local routes passed in.
    pub(crate) fn start(intent: RoutingIntent) -> Self {
        Self::start_with(intent, SpeakerOptions::default())
    }

    pub(crate) fn start_with(intent: RoutingIntent, options: SpeakerOptions) -> Self {
        let facts = Arc::new(Mutex::new(Vec::new()));
        let kernel = Arc::new(Mutex::new(BTreeMap::new()));
        let withdrawn = Arc::new(Mutex::new(Vec::new()));
        let (fact_out, fact_in) = channel();
        let (batch_out, batch_in) = channel();
        let (handle, thread) = spawn(
            options,
            Box::new(move |fact| drop(fact_out.send((Instant::now(), fact)))),
            Box::new(move |batch| batch_out.send(batch).map_err(|e| e.0)),
        )
        .unwrap();
        play_kernel_and_agent(&handle, fact_in, batch_in, &facts, &kernel, &withdrawn);
        let node = Self { handle, intent, thread: Some(thread), facts, kernel, withdrawn };
        node.apply();
        node.handle.send(ToSpeaker::LocalReady).unwrap();
        node
    }

    /// Sends the current intent.
    pub(crate) fn apply(&self) {
        self.handle.send(ToSpeaker::Intent(Arc::new(self.intent.clone()), ChangeId(7))).unwrap();
    }

    pub(crate) fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&SpeakerView<'_>) -> T + Send + 'static,
    ) -> T {
        let (out, answer) = channel();
        self.handle.send(ToSpeaker::Query(Box::new(move |view| drop(out.send(ask(view)))))).unwrap();
        answer.recv_timeout(SOON).unwrap()
    }

    pub(crate) fn peer(&self, name: &str) -> Option<PeerStatus> {
        let name = name.to_owned();
        self.ask(move |view| view.peer(&name))
    }

    /// Returns the route of the peer with this name for a prefix, as received, with its import result.
    pub(crate) fn received(&self, name: &str, prefix: &str) -> Option<PathInfo> {
        let (name, matching) = (name.to_owned(), RouteMatch::Exact(cidr(prefix)));
        let routes = self.ask(move |view| {
            let table = RouteTable::AdjIn(view.peer_id(&name)?);
            Some(view.routes(RouteQuery { table, matching }, None, 1))
        })?;
        routes.into_iter().next()?.paths.into_iter().next()
    }

    /// Returns our OPEN and the peer's of an established session, whole.
    pub(crate) fn opens(&self, name: &str) -> (Vec<u8>, Vec<u8>) {
        let (tap, mut events) = monitor_queue(1 << 20);
        self.handle.send(ToSpeaker::Monitor(tap)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let Some(MonitorEvent::Sessions(all)) = runtime.block_on(events.next()) else {
            panic!("no sessions")
        };
        let session = all.iter().find(|s| &*s.name == name).unwrap();
        (session.sent_open.clone(), session.received_open.clone())
    }

    pub(crate) fn state(&self, name: &str) -> Option<State> {
        self.peer(name).map(|p| p.state)
    }

    pub(crate) fn facts(&self) -> Vec<SpeakerFact> {
        self.facts.lock().unwrap().iter().map(|(_, fact)| fact.clone()).collect()
    }

    /// Returns the facts, each with the time of its report.
    pub(crate) fn timed_facts(&self) -> Vec<(Instant, SpeakerFact)> {
        self.facts.lock().unwrap().clone()
    }

    /// Returns the kernel's next hops of a prefix.
    pub(crate) fn route(&self, prefix: &str) -> Option<Vec<ScopedAddr>> {
        self.kernel.lock().unwrap().get(&cidr(prefix)).cloned()
    }

    /// Returns how many times the kernel removed this prefix.
    pub(crate) fn withdrawn(&self, prefix: &str) -> usize {
        self.withdrawn.lock().unwrap().iter().filter(|gone| **gone == cidr(prefix)).count()
    }

    pub(crate) fn routes(&self) -> usize {
        self.kernel.lock().unwrap().len()
    }

    pub(crate) fn wait_established(&self, name: &str) {
        wait(&format!("{name} to come up"), || match self.state(name) {
            Some(State::Established) => Ok(()),
            other => Err(format!("{other:?}; {:#?}", self.facts().last())),
        });
    }

    pub(crate) fn wait_for_route(&self, prefix: &str, via: &str) {
        wait(&format!("{prefix} via {via}"), || match self.route(prefix) {
            Some(hops) if hops == [addr(via)] => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    pub(crate) fn wait_for_no_route(&self, prefix: &str) {
        wait(&format!("no {prefix}"), || self.route(prefix).map_or(Ok(()), |r| Err(format!("{r:?}"))));
    }

    pub(crate) fn fact(&self, what: &str, is: impl Fn(&SpeakerFact) -> bool) {
        wait(
            what,
            || if self.facts().iter().any(&is) { Ok(()) } else { Err(format!("{:#?}", self.facts())) },
        );
    }

    /// Stops the node and waits for its thread.
    pub(crate) fn stop(&mut self, graceful: bool, text: &str) {
        let Some(thread) = self.thread.take() else { return };
        self.handle.send(ToSpeaker::Shutdown { graceful, text: text.into() }).unwrap();
        thread.join().unwrap();
        self.fact("the last fact", |f| *f == SpeakerFact::Stopped);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop(false, "");
        }
    }
}

/// Plays the kernel thread and the agent towards the speaker.
fn play_kernel_and_agent(
    handle: &SpeakerHandle,
    facts: Receiver<(Instant, SpeakerFact)>,
    batches: Receiver<LearnedBatch>,
    seen: &Arc<Mutex<Vec<(Instant, SpeakerFact)>>>,
    kernel: &Arc<Mutex<BTreeMap<Cidr, Vec<ScopedAddr>>>>,
    withdrawn: &Arc<Mutex<Vec<Cidr>>>,
) {
    let (agent, seen) = (handle.clone(), seen.clone());
    std::thread::spawn(move || {
        for (at, fact) in facts {
            if let SpeakerFact::TrackNextHop(hop) = fact {
                let on_link = Resolved { ifindex: 1, gateway: None, metric: 0 };
                let _ = agent.send(ToSpeaker::NextHop(hop, Some(on_link)));
            }
            seen.lock().unwrap().push((at, fact));
        }
    });
    let (kernel, withdrawn) = (kernel.clone(), withdrawn.clone());
    std::thread::spawn(move || {
        for batch in batches {
            assert!(batch.len() <= 4096);
            let mut kernel = kernel.lock().unwrap();
            for change in batch.iter() {
                if change.next_hops.is_empty() {
                    kernel.remove(&change.prefix);
                    withdrawn.lock().unwrap().push(change.prefix);
                } else {
                    kernel.insert(change.prefix, change.next_hops.to_vec());
                }
            }
            drop(kernel);
            // Returns its credit.
            drop(batch);
        }
    });
}

/// Polls until `check` succeeds; panics with the last error.
pub(crate) fn wait(what: &str, check: impl FnMut() -> Result<(), String>) {
    wait_for(SOON, what, check);
}

pub(crate) fn wait_for(time: Duration, what: &str, mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + time;
    loop {
        match check() {
            Ok(()) => return,
            Err(last) if Instant::now() > end => panic!("waited {time:?} for {what}: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
