//! The agent from start to stop.

mod periodic;
mod shutdown;
mod startup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tortie_config::resource::BmpPolicy;

use crate::agent::config::Settings;
use crate::agent::controllers::Controllers;
use crate::agent::core::Core;
use crate::agent::core::applied::AckTarget;
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Timing};
use crate::agent::core::view::CoreView;
use crate::agent::handle::{CoreRequest, Handle};
use crate::agent::http::ServeError;
use crate::agent::journal::Journal;
use crate::agent::observe::Observer;
use crate::agent::process::{capabilities, host, systemd};
use crate::agent::{log, logging, time};
use crate::api::status::{Applied, AppliedRequest};
use crate::plugins::docker;
use crate::speaker::{SpeakerHandle, ToSpeaker};
use tortie_engine::model::watch_scope;
use tortie_kernel::{KernelFact, KernelHandle, KernelIntent, ToKernel};
use tortie_store::{Feed, FeedEvent, Store, StoreOptions};

/// How long a start waits for the store before it goes on with what the disk has.
const STORE_PATIENCE: Duration = Duration::from_secs(3);
/// From the last End-of-RIB to the sweep of stale routes: FRR 8.4 sends its `default-originate` 0.6 s after it.
const SWEEP_DELAY: Duration = Duration::from_secs(2);

/// Options of an agent.
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
    Store(#[from] tortie_store::StoreError),
    /// The API cannot be served.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The Docker drivers cannot be served.
    #[error("{0}")]
    Docker(#[from] docker::DockerError),
    /// Another live host has our address.
    #[error("{0}")]
    Taken(String),
    /// The system refuses a thread, a socket or a signal handler.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}

/// Reports of other threads and tasks.
enum Fact {
    /// To the core.
    Core(Input),
    /// Whether this host may start: no other running host has its address. It is registered by then.
    StartAllowed(Result<(), String>),
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start. After the start it only ends when told to.
pub fn run(options: AgentOptions) -> Result<(), AgentError> {
    crate::agent::process::allocator::prepare();
    options.settings.check().map_err(AgentError::Settings)?;
    let logs = logging::start(options.settings.log_format.unwrap_or_default());
    // Before there is a second thread: capabilities belong to threads.
    capabilities::drop_unneeded();
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
    exit_on_panic();
    let result = main.block_on(async {
        let mut agent = Agent::start(options, logs, io.handle().clone()).await?;
        agent.run_loop().await;
        agent.stop().await;
        agent.start_refused.take().map_or(Ok(()), |text| Err(AgentError::Taken(text)))
    });
    io.shutdown_timeout(Duration::from_secs(2));
    result
}

/// A thread that is gone would leave the others with half of the truth.
fn exit_on_panic() {
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
    journal: Journal,
    handle: Arc<Handle>,
    /// Of an agent that observes.
    observer: Option<Arc<Observer>>,
    store: Arc<dyn Store>,
    io: tokio::runtime::Handle,
    logs: logging::Logs,
    log_problem: Option<String>,
    kernel: Option<KernelHandle>,
    /// The number of the snapshot after which memory was released.
    memory_released_at: u64,
    speaker: Option<(SpeakerHandle, std::thread::JoinHandle<()>)>,
    held_effects: Vec<Effect>,
    /// For the kernel thread, which has not started yet.
    held_policy: Vec<ToKernel>,
    feed: Feed,
    facts: mpsc::UnboundedReceiver<Fact>,
    facts_sender: mpsc::UnboundedSender<Fact>,
    requests: mpsc::Receiver<CoreRequest>,
    waiting: Vec<Waiting>,
    controllers: Controllers,
    registered: bool,
    start_refused: Option<String>,
    kernel_intent: Option<Arc<KernelIntent>>,
    is_ready_announced: bool,
    notify: systemd::Notify,
    stopping: bool,
    maintained_at: Option<Instant>,
    /// When the status keys of others were read.
    hosts_read_at: Option<Instant>,
    /// When the status key was built, and with which readiness and count of sessions.
    node_status_built: Option<(Instant, (bool, usize))>,
    stations: crate::agent::bmp::BmpStations,
    docker: Option<docker::Running>,
}

struct Waiting {
    request: AppliedRequest,
    answer: tokio::sync::oneshot::Sender<Applied>,
    until: Instant,
    /// When the plugin got the request for the endpoint.
    since: Option<Instant>,
    /// The acknowledgements to wait for, once the revision was sent to the kernel.
    target: Option<AckTarget>,
}

impl Agent {
    /// Handles events until a signal says stop.
    async fn run_loop(&mut self) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).ok();
        let mut interrupt = signal(SignalKind::interrupt()).ok();
        // Its default would end the agent, and scripts that turn logs over send it to daemons unasked.
        let mut hangup = signal(SignalKind::hangup()).ok();
        let patience = tokio::time::sleep(STORE_PATIENCE);
        tokio::pin!(patience);
        let mut waited = false;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            let began;
            tokio::select! {
                biased;
                () = received(&mut terminate) => return,
                () = received(&mut interrupt) => return,
                () = received(&mut hangup) => {
                    began = Instant::now();
                    tracing::info!(
                        target: "tortie",
                        "SIGHUP: nothing to reload; the store is followed as it is, flags and the settings file are read at \
                         the start (systemctl restart tortie, which interrupts nothing)"
                    );
                }
                event = self.feed.next() => {
                    began = Instant::now();
                    match event {
                        Some(event) => self.on_feed_event(event),
                        None => return,
                    }
                }
                fact = self.facts.recv() => {
                    began = Instant::now();
                    if let Some(fact) = fact { self.on_facts(fact) }
                }
                request = self.requests.recv() => {
                    began = Instant::now();
                    if let Some(request) = request { self.on_request(request) }
                }
                _ = tick.tick() => {
                    began = Instant::now();
                    self.tick();
                }
                () = &mut patience, if !waited => {
                    began = Instant::now();
                    waited = true;
                    self.input(Input::StoreTimeout);
                    if !self.core.loaded() {
                        tracing::warn!(target: "tortie", "the store does not answer and there is no cache: waiting");
                    }
                }
            }
            self.answer_waiting();
            self.core.time(Timing::Iteration(began.elapsed()));
            if self.start_refused.is_some() {
                return;
            }
        }
    }

    /// Gives one input to the core and carries out what comes of it.
    fn input(&mut self, input: Input) {
        let now = time::now();
        let recorded = input.clone();
        let effects = self.core.handle(input, now);
        self.journal.input(now, recorded, &effects);
        self.carry_out(effects);
    }

    /// Takes one event and all that are there already, then acts once.
    fn on_feed_event(&mut self, first: FeedEvent) {
        let began = Instant::now();
        let whole = matches!(first, FeedEvent::Snapshot { .. });
        let last = self.core.last_change();
        self.input(Input::Feed(first));
        for _ in 0..4_096 {
            let Some(Some(event)) = self.feed.next().now_or_never() else { break };
            self.input(Input::Feed(event));
        }
        self.input(Input::FeedIdle);
        let took = began.elapsed();
        if whole {
            self.core.time(Timing::Snapshot(took));
        }
        if last != self.core.last_change() {
            self.core.time(Timing::Calculated(took));
        }
    }

    fn on_facts(&mut self, first: Fact) {
        let mut next = Some(first);
        // A bounded run, so that questions are answered between the facts of a full feed.
        for taken in 1.. {
            match next {
                Some(Fact::Core(input)) => {
                    let started = match &input {
                        Input::Kernel(KernelFact::Started { routes_v4, routes_v6, blackholes: [v4, v6] }) => {
                            Some((routes_v4 + v4, routes_v6 + v6))
                        }
                        _ => None,
                    };
                    self.input(input);
                    if let Some((v4, v6)) = started {
                        self.start_speaker(v4, v6);
                    }
                }
                Some(Fact::StartAllowed(Ok(()))) => self.start_kernel(),
                Some(Fact::StartAllowed(Err(text))) => self.start_refused = Some(text),
                None => break,
            }
            if taken == 256 {
                break;
            }
            next = self.facts.try_recv().ok();
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.carry_out_one(effect);
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Loaded => self.on_loaded(),
            Effect::Routing(intent) => self.handle.publish_intent(intent),
            Effect::Kernel(intent) => {
                self.kernel_intent = Some(Arc::clone(&intent));
                self.to_kernel(ToKernel::Intent(intent));
            }
            // Every one of them counts, and the thread starts when the host is known.
            Effect::Enforce(change) if self.kernel.is_none() => {
                self.held_policy.push(ToKernel::Policy(change))
            }
            Effect::Enforce(change) => self.to_kernel(ToKernel::Policy(change)),
            Effect::Speaker(..) | Effect::LocalReady | Effect::NextHop(..) if self.speaker.is_none() => {
                if !self.observes() {
                    self.held_effects.push(effect);
                }
            }
            Effect::Speaker(intent, change) => {
                self.to_speaker(ToSpeaker::Intent(intent, change));
                self.update_bmp_stations();
            }
            Effect::LocalReady => self.to_speaker(ToSpeaker::LocalReady),
            Effect::NextHop(addr, state) => self.to_speaker(ToSpeaker::NextHop(addr, state)),
            Effect::Sweep => {
                if let Some(kernel) = &self.kernel {
                    let sender = kernel.sender();
                    tokio::spawn(async move {
                        tokio::time::sleep(SWEEP_DELAY).await;
                        let _ = sender.send(ToKernel::SweepStale);
                    });
                }
            }
            Effect::Track(addr, true) => self.to_kernel(ToKernel::Track(addr)),
            Effect::Track(addr, false) => self.to_kernel(ToKernel::Untrack(addr)),
            Effect::Scope(blocks) => {
                let mut keys = watch_scope(&self.options.node);
                keys.extend(blocks);
                self.feed.set_prefixes(&keys);
            }
            Effect::Trust(generation, upto) => self.feed.confirm(generation, upto),
            Effect::Log(line) => log::write(&line),
            // Nobody may follow.
            Effect::Recorded(entry) => drop(self.handle.events().send(entry)),
            Effect::Logs => {
                let mut wanted = host::log_settings(CoreView::of(&self.core).model());
                if self.observes() {
                    // The file of the store's setting is Felix's.
                    wanted.file = None;
                }
                self.log_problem = self.logs.apply(&wanted);
                self.update_bmp_stations();
            }
        }
    }

    /// BMP stations: those of the flag, else those of the store.
    fn update_bmp_stations(&mut self) {
        if self.speaker.is_none() {
            return;
        }
        let given = &self.options.settings.bmp_station;
        let stored = CoreView::of(&self.core)
            .model()
            .bmp_stations()
            .iter()
            .map(|station| (station.address, station.policy));
        let wanted: Vec<_> = match given.as_slice() {
            [] => stored.collect(),
            given => given.iter().map(|address| (*address, BmpPolicy::Pre)).collect(),
        };
        self.stations.follow(&wanted, &self.handle, &self.io);
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
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
