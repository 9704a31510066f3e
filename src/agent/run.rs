//! The agent from start to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use tokio::sync::mpsc;
use tortie_bgp::Family;

use super::backend::{Ask, Live};
use super::core::{Core, Effect};
use super::options::{Extent, Settings};
use super::status::CoreFacts;
use super::{host, logging, presence, register};
use crate::kernel::{self, KernelFact, KernelHandle, KernelIntent, Marks, Mode, ToKernel};
use crate::model::watch_scope;
use crate::serve::api::{Applied, AppliedRequest};
use crate::serve::{self, Backend};
use crate::speaker::{self, ChangeIds, SpeakerFact, SpeakerHandle, SpeakerOptions, ToSpeaker};
use crate::store::{self, Feed, FeedEvent, FeedOptions, Outcome, Store, StoreOptions};

/// How long a start waits for the store before it goes on with what the disk has.
const STORE_PATIENCE: Duration = Duration::from_secs(3);
/// Between two calls of [`Store::maintain`].
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);
/// Restart time that peers are told (RFC 4724).
const RESTART_TIME: Duration = Duration::from_secs(120);

/// What the agent is asked to be.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// This host's name in the data model.
    pub node: String,
    /// Flags, environment and file, merged.
    pub settings: Settings,
    /// The store.
    pub store: StoreOptions,
    /// The unix socket of the API.
    pub socket: PathBuf,
}

/// Why the agent does not start or ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Settings that cannot be.
    #[error("{0}")]
    Settings(String),
    /// The store refuses for good.
    #[error("{0}")]
    Store(#[from] store::StoreError),
    /// The API cannot be served.
    #[error("{0}")]
    Serve(#[from] serve::ServeError),
    /// Another live host has our address.
    #[error("{0}")]
    Taken(String),
    /// The system refuses a thread, a socket or a signal handler.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}

enum Fact {
    Kernel(KernelFact),
    Speaker(SpeakerFact),
    /// The store was asked whether this host may start, and told that it does.
    Checked(Result<(), String>),
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start. After the start it only ends when told to.
pub fn run(options: AgentOptions) -> Result<(), AgentError> {
    options.settings.check().map_err(AgentError::Settings)?;
    let logs = logging::start();
    let io = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("io")
        .enable_all()
        .build()
        .map_err(|e| AgentError::System("start the io threads", e))?;
    let main = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| AgentError::System("start the core", e))?;
    end_with_any_panic();
    let result = main.block_on(async {
        let mut agent = Agent::start(options, logs, io.handle().clone()).await?;
        agent.turn().await;
        agent.stop().await;
        agent.refused.take().map_or(Ok(()), |text| Err(AgentError::Taken(text)))
    });
    io.shutdown_timeout(Duration::from_secs(2));
    result
}

/// A thread that is gone would leave the others with half of the truth.
fn end_with_any_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        tracing::error!(target: "tortie", "a thread panicked, the process ends: {info}");
        std::process::exit(70);
    }));
}

struct Agent {
    options: AgentOptions,
    core: Core,
    live: Arc<Live>,
    store: Arc<dyn Store>,
    io: tokio::runtime::Handle,
    logs: logging::Logs,
    log_trouble: Option<String>,
    changes: ChangeIds,
    kernel: Option<KernelHandle>,
    speaker: Option<(SpeakerHandle, std::thread::JoinHandle<()>)>,
    held: Vec<Effect>,
    feed: Feed,
    facts: mpsc::UnboundedReceiver<Fact>,
    facts_in: mpsc::UnboundedSender<Fact>,
    asks: mpsc::Receiver<Ask>,
    waiting: Vec<Waiting>,
    presence: presence::Presence,
    registered: bool,
    refused: Option<String>,
    kernel_intent: Option<Arc<KernelIntent>>,
    announced_ready: bool,
    stopping: bool,
    maintained: Option<Instant>,
}

struct Waiting {
    request: AppliedRequest,
    answer: tokio::sync::oneshot::Sender<Applied>,
    until: Instant,
}

fn mode(extent: Extent) -> Mode {
    match extent {
        Extent::Program => Mode::Program,
        Extent::Observe => Mode::Observe,
        Extent::Off => Mode::Off,
    }
}

impl Agent {
    async fn start(
        options: AgentOptions,
        logs: logging::Logs,
        io: tokio::runtime::Handle,
    ) -> Result<Self, AgentError> {
        let now = Instant::now();
        let url = options.store.clone();
        let store = io.spawn(async move { store::open(&url).await }).await.map_err(joined)??;
        let (ask, asks) = mpsc::channel(1_024);
        let live = Arc::new(Live {
            node: options.node.clone(),
            protocol: options
                .settings
                .route_protocol
                .unwrap_or(kernel::Options::new(Mode::Off).marks.protocol),
            started: now,
            ask,
            intent: ArcSwapOption::empty(),
            speaker: ArcSwapOption::empty(),
            kernel: ArcSwapOption::empty(),
            ready: AtomicBool::new(false),
            turned: AtomicI64::new(0),
        });
        serve_api(&options, &live, &io).await?;
        let changes = ChangeIds::default();
        let writes = options.settings.kernel() == Extent::Program;
        let core =
            Core::new(&options.node, host::node_options(&options.settings), writes, changes.clone(), now);
        tracing::info!(target: "tortie", "tortie {} starts as {} on {}", env!("CARGO_PKG_VERSION"), options.node, store.describe());
        let what = FeedOptions { prefixes: watch_scope(&options.node), cache: Some(cache_path(&options)) };
        let feed = Feed::start(&io, Arc::clone(&store), what);
        let (facts_in, facts) = mpsc::unbounded_channel();
        let presence = presence::Presence::start(&io, Arc::clone(&store), &options.node, writes);
        Ok(Self {
            options,
            core,
            live,
            store,
            io,
            logs,
            log_trouble: None,
            changes,
            kernel: None,
            speaker: None,
            held: Vec::new(),
            feed,
            facts,
            facts_in,
            asks,
            waiting: Vec::new(),
            presence,
            registered: false,
            refused: None,
            kernel_intent: None,
            announced_ready: false,
            stopping: false,
            maintained: None,
        })
    }

    /// Folds the store's log and forgets old history: nobody else of this host lives long enough to do it.
    fn maintain(&mut self, now: Instant) {
        if self.maintained.is_some_and(|at| now.duration_since(at) < MAINTAIN_EVERY) {
            return;
        }
        self.maintained = Some(now);
        let store = Arc::clone(&self.store);
        self.io.spawn(async move {
            if let Err(error) = store.maintain().await {
                tracing::debug!(target: "tortie", "the store is not maintained: {error}");
            }
        });
    }

    /// Turns until a signal says stop.
    async fn turn(&mut self) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).ok();
        let mut interrupt = signal(SignalKind::interrupt()).ok();
        let patience = tokio::time::sleep(STORE_PATIENCE);
        tokio::pin!(patience);
        let mut waited = false;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                () = signalled(&mut terminate) => return,
                () = signalled(&mut interrupt) => return,
                event = self.feed.next() => match event {
                    Some(event) => self.fed(event),
                    None => return,
                },
                fact = self.facts.recv() => if let Some(fact) = fact { self.fact(fact) },
                ask = self.asks.recv() => if let Some(ask) = ask { self.ask(ask) },
                _ = tick.tick() => self.tick(),
                () = &mut patience, if !waited => {
                    waited = true;
                    if !self.core.loaded() && !self.core.use_cache() {
                        tracing::warn!(target: "tortie", "the store does not answer and there is no cache: waiting");
                    }
                }
            }
            self.carry_out();
            self.answer_waiting();
            if self.refused.is_some() {
                return;
            }
        }
    }

    /// Takes one event and all that are there already, then acts once.
    fn fed(&mut self, first: FeedEvent) {
        let now = Instant::now();
        self.core.feed(first, now);
        for _ in 0..4_096 {
            let Some(Some(event)) = self.feed.next().now_or_never() else { break };
            self.core.feed(event, now);
        }
        self.core.go_on();
    }

    fn fact(&mut self, first: Fact) {
        let mut next = Some(first);
        // A bounded run, so that questions are answered between the facts of a full feed.
        for _ in 0..256 {
            match next {
                Some(Fact::Kernel(KernelFact::Started { routes_v4, routes_v6 })) => {
                    self.core.kernel(KernelFact::Started { routes_v4, routes_v6 });
                    self.start_speaker(routes_v4, routes_v6);
                }
                Some(Fact::Kernel(fact)) => self.core.kernel(fact),
                Some(Fact::Speaker(fact)) => self.core.speaker(fact, Instant::now()),
                Some(Fact::Checked(Ok(()))) => self.start_kernel(),
                Some(Fact::Checked(Err(text))) => self.refused = Some(text),
                None => break,
            }
            next = self.facts.try_recv().ok();
        }
    }

    fn carry_out(&mut self) {
        for effect in self.core.effects() {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Loaded => self.loaded(),
            Effect::Kernel(intent) => {
                self.live.intent.store(self.core.intent.clone());
                self.kernel_intent = Some(Arc::clone(&intent));
                self.to_kernel(ToKernel::Intent(intent));
            }
            Effect::Speaker(..) | Effect::LocalReady | Effect::NextHop(..) | Effect::KernelTook
                if self.speaker.is_none() =>
            {
                self.held.push(effect);
            }
            Effect::Speaker(intent, change) => self.to_speaker(ToSpeaker::Intent(intent, change)),
            Effect::LocalReady => self.to_speaker(ToSpeaker::LocalReady),
            Effect::NextHop(addr, state) => self.to_speaker(ToSpeaker::NextHop(addr, state)),
            Effect::KernelTook => self.to_speaker(ToSpeaker::KernelTook),
            Effect::Sweep => self.to_kernel(ToKernel::SweepStale),
            Effect::Track(addr, true) => self.to_kernel(ToKernel::Track(addr)),
            Effect::Track(addr, false) => self.to_kernel(ToKernel::Untrack(addr)),
            Effect::Scope(blocks) => {
                let mut keys = watch_scope(&self.options.node);
                keys.extend(blocks);
                self.feed.set_prefixes(&keys);
            }
            Effect::Trust(generation) => self.feed.trust(generation),
            Effect::Logs => {
                let wanted = host::log_settings(&self.core.model);
                self.log_trouble = self.logs.apply(&wanted).or(self.log_trouble.take());
            }
        }
    }

    fn to_kernel(&self, message: ToKernel) {
        if let Some(kernel) = &self.kernel {
            // The thread only ends with the process, which ends when it is gone.
            let _ = kernel.sender().send(message);
        }
    }

    fn to_speaker(&self, message: ToSpeaker) {
        if let Some((speaker, _)) = &self.speaker
            && let Err(error) = speaker.send(message)
        {
            tracing::error!(target: "tortie", "the speaker did not take an order: {error}");
        }
    }

    /// The first whole picture is there: see that the address is ours, make the host known; then the kernel thread
    /// starts.
    fn loaded(&mut self) {
        if self.core.link.from_cache || !self.writes() {
            self.start_kernel();
            return;
        }
        self.register();
    }

    fn writes(&self) -> bool {
        self.options.settings.kernel() == Extent::Program
    }

    fn start_kernel(&mut self) {
        if self.kernel.is_some() {
            return;
        }
        let settings = &self.options.settings;
        let mut options = kernel::Options::new(mode(settings.kernel()));
        let marks = options.marks;
        options.marks = Marks {
            protocol: settings.route_protocol.unwrap_or(marks.protocol),
            metric: settings.route_metric.unwrap_or(marks.metric),
            ..marks
        };
        let facts = self.facts_in.clone();
        let sink = Box::new(move |fact| {
            let _ = facts.send(Fact::Kernel(fact));
        });
        match kernel::spawn(&options, sink) {
            Ok(handle) => {
                self.live.kernel.store(Some(Arc::new(handle.sender())));
                self.kernel = Some(handle);
                if let Some(intent) = self.kernel_intent.clone() {
                    self.to_kernel(ToKernel::Intent(intent));
                }
            }
            Err(error) => {
                tracing::error!(target: "tortie", "the kernel thread cannot start: {error}");
                std::process::exit(71);
            }
        }
    }

    fn start_speaker(&mut self, routes_v4: usize, routes_v6: usize) {
        let found = [(routes_v4, Family::Ipv4Unicast), (routes_v6, Family::Ipv6Unicast)];
        let families: Vec<Family> = found.iter().filter(|(n, _)| *n > 0).map(|(_, f)| *f).collect();
        let options = SpeakerOptions {
            listen: self.options.settings.bgp_listen.clone(),
            kernel: self.options.settings.kernel() != Extent::Off,
            restarting: Some(families),
            restart_time: RESTART_TIME,
            changes: self.changes.clone(),
            ..SpeakerOptions::default()
        };
        let facts = self.facts_in.clone();
        let sink = Box::new(move |fact| {
            let _ = facts.send(Fact::Speaker(fact));
        });
        let Some(kernel) = self.kernel.as_ref().map(KernelHandle::sender) else { return };
        let learned = Box::new(move |batch| match kernel.try_send(ToKernel::Learned(batch)) {
            Err(
                TrySendError::Full(ToKernel::Learned(batch))
                | TrySendError::Disconnected(ToKernel::Learned(batch)),
            ) => Err(batch),
            _ => Ok(()),
        });
        match speaker::spawn(options, sink, learned) {
            Ok((handle, thread)) => {
                self.live.speaker.store(Some(Arc::new(handle.clone())));
                self.speaker = Some((handle, thread));
                for effect in std::mem::take(&mut self.held) {
                    self.effect(effect);
                }
            }
            Err(error) => {
                tracing::error!(target: "tortie", "the speaker thread cannot start: {error}");
                std::process::exit(71);
            }
        }
    }

    /// Makes the host known where the store does not say it yet, unless another live host has its address.
    fn register(&mut self) {
        if self.registered || self.core.link.from_cache || !self.writes() {
            return;
        }
        self.registered = true;
        let (node, settings) = (self.options.node.clone(), self.options.settings.clone());
        let rivals = self.core.rivals();
        let (store, facts) = (Arc::clone(&self.store), self.facts_in.clone());
        self.io.spawn(async move {
            let checked = match register::rival_alive(&*store, &rivals).await {
                Some(text) => Err(text),
                None => {
                    match make_known(&*store, &node, &settings).await {
                        Ok(0) => {}
                        Ok(keys) => {
                            tracing::info!(target: "tortie", "this host is made known: {keys} keys written");
                        }
                        Err(error) => {
                            tracing::warn!(target: "tortie", "this host cannot be made known: {error}")
                        }
                    }
                    Ok(())
                }
            };
            let _ = facts.send(Fact::Checked(checked));
        });
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let turned = i64::try_from(now.duration_since(self.live.started).as_secs()).unwrap_or(i64::MAX);
        self.live.turned.store(turned, Ordering::Relaxed);
        self.maintain(now);
        if !self.core.link.from_cache && self.core.loaded() {
            self.register();
        }
        let ready = self.is_ready();
        let before = self.live.ready.swap(ready, Ordering::Relaxed);
        if before != ready {
            tracing::info!(target: "tortie", "{}", if ready { "ready" } else { "not ready" });
        }
        if self.core.running() && !self.announced_ready {
            self.announced_ready = true;
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        let peers = self.core.intent.as_ref().map_or(0, |i| i.peers.len());
        self.presence.tell(presence::Brief {
            ready,
            sessions: peers,
            up: self.up(),
            revision: self.core.link.revision,
        });
    }

    fn up(&self) -> usize {
        let Some(intent) = &self.core.intent else { return 0 };
        let established = |name: &String| {
            self.core
                .peers
                .get(name.as_str())
                .is_some_and(|p| p.state == Some(tortie_bgp::State::Established))
        };
        intent.peers.keys().filter(|name| established(name)).count()
    }

    /// Serving: the kernel answered, sessions are accepted, and at least one session is up where any is wanted.
    fn is_ready(&self) -> bool {
        let wanted = self.core.intent.as_ref().is_some_and(|i| !i.peers.is_empty());
        self.core.running() && !self.stopping && (!wanted || self.up() > 0)
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Facts(answer) => {
                let _ = answer.send(self.facts_now());
            }
            Ask::Events { after, subject, max, answer } => {
                let _ = answer.send(self.core.recorder.after(after, subject.as_deref(), max));
            }
            Ask::Applied { request, answer } => {
                let until = Instant::now() + Duration::from_millis(request.wait_millis.min(600_000));
                self.waiting.push(Waiting { request, answer, until });
            }
            Ask::Accept(answer) => {
                let _ = answer.send(self.core.accept());
            }
        }
    }

    fn answer_waiting(&mut self) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let revision = self.core.link.revision;
            let result = if let Some(reason) = &self.core.frozen {
                Some(("frozen", Some(reason.clone())))
            } else if revision >= waiting.request.revision && self.core.settled() {
                match self.core.model_problem(&waiting.request.key) {
                    Some(problem) => Some(("failed", Some(problem))),
                    None => Some(("applied", None)),
                }
            } else if now >= waiting.until {
                Some(("timeout", None))
            } else {
                None
            };
            match result {
                Some((word, reason)) => {
                    let _ = waiting.answer.send(Applied { result: word.to_owned(), reason, revision });
                }
                None if waiting.answer.is_closed() => {}
                None => self.waiting.push(waiting),
            }
        }
    }

    fn facts_now(&self) -> CoreFacts {
        let mut facts = self.core.facts(Instant::now());
        facts.store = self.store.describe();
        facts.log_trouble.clone_from(&self.log_trouble);
        facts.stopping = self.stopping;
        facts
    }

    /// SIGTERM: close sessions so that graceful-restart helpers keep our routes; kernel state stays.
    async fn stop(&mut self) {
        self.stopping = true;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        tracing::info!(target: "tortie", "stopping: sessions close for a graceful restart, routes stay");
        self.live.ready.store(false, Ordering::Relaxed);
        self.presence.stop().await;
        if let Some((speaker, thread)) = self.speaker.take() {
            let text = "agent stopping".to_owned();
            if speaker.send(ToSpeaker::Shutdown { graceful: true, text }).is_ok() {
                let ended = tokio::task::spawn_blocking(move || thread.join());
                let _ = tokio::time::timeout(Duration::from_secs(5), ended).await;
            }
        }
        if let Some(kernel) = self.kernel.take() {
            let _ = tokio::time::timeout(
                Duration::from_secs(5),
                tokio::task::spawn_blocking(move || kernel.stop()),
            )
            .await;
        }
        let _ = std::fs::remove_file(&self.options.socket);
        tracing::info!(target: "tortie", "stopped");
    }
}

async fn serve_api(
    options: &AgentOptions,
    live: &Arc<Live>,
    io: &tokio::runtime::Handle,
) -> Result<(), AgentError> {
    let backend: Arc<dyn Backend> = live.clone();
    let unix = io.spawn(serve::serve_unix(options.socket.clone(), Arc::clone(&backend)));
    let tcp = options.settings.http().map(|addr: SocketAddr| io.spawn(serve::serve_tcp(addr, backend)));
    // Whoever cannot listen says so at once; after that the tasks live as long as the process.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for task in [Some(unix), tcp].into_iter().flatten() {
        if task.is_finished() {
            task.await.map_err(joined)??;
        } else {
            io.spawn(async move {
                if let Ok(Err(error)) = task.await {
                    tracing::error!(target: "tortie", "the API is no longer served: {error}");
                }
            });
        }
    }
    Ok(())
}

fn joined(error: tokio::task::JoinError) -> AgentError {
    AgentError::System("run a task", std::io::Error::other(error))
}

fn cache_path(options: &AgentOptions) -> PathBuf {
    options.settings.cache.clone().unwrap_or_else(|| PathBuf::from("/var/lib/tortie/cache.json"))
}

/// Registers the host: reads what stands, writes what is missing; again when somebody else wrote in between.
async fn make_known(store: &dyn Store, node: &str, settings: &Settings) -> Result<usize, store::StoreError> {
    let detected = tokio::task::spawn_blocking(host::detect).await.unwrap_or_default();
    let all = register::prefixes(node);
    for _ in 0..5 {
        let snapshot = store.list(&all).await?;
        let stored = |key: &tortie_config::key::Key| {
            let text = key.to_string();
            snapshot.entries.iter().find(|kv| kv.key == text).map(|kv| kv.value.clone())
        };
        let Some(txn) = register::plan(node, settings, detected, &stored) else { return Ok(0) };
        let keys = txn.ops.len();
        if let Outcome::Committed(_) = store.commit(txn).await? {
            return Ok(keys);
        }
    }
    Err(store::StoreError::Away("others write the same keys all the time".to_owned()))
}

async fn signalled(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
