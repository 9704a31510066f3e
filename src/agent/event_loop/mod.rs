//! The agent's event loop: start, processing of inputs and effects, stop.

mod applied_requests;
mod error;
mod kernel_thread;
mod next_event;
mod options;
mod periodic;
mod requests;
mod shutdown;
mod speaker_thread;
mod startup;
mod timers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tortie_config::resource::BmpPolicy;

use self::applied_requests::AppliedRequests;
use self::kernel_thread::KernelThread;
use self::next_event::{NextEvent, next_event};
use self::speaker_thread::SpeakerThread;
use self::timers::Timers;
use crate::agent::controllers::Controllers;
use crate::agent::core::Core;
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Timing};
use crate::agent::core::view::CoreView;
use crate::agent::handle::{CoreRequest, Handle};
use crate::agent::journal::Journal;
use crate::agent::observe::Observer;
use crate::agent::process::{host, sandbox, systemd};
use crate::agent::{log, logging, time};
use crate::plugins::docker;
use crate::speaker::ToSpeaker;
use tortie_engine::model::{AttachedRoute, watch_scope};
use tortie_kernel::{KernelFact, ToKernel};
use tortie_store::{Feed, FeedEvent, Store};

pub use self::error::AgentError;
pub use self::options::AgentOptions;

/// Maximum wait of the start for the store; then the agent starts from its cache.
const STORE_PATIENCE: Duration = Duration::from_secs(3);

/// Events with priority over all others: they are rare, and supervisors judge the process by them.
enum Signal {
    Stop,
    Hangup,
    Tick,
    /// The wait for the store is over.
    Patience,
}

/// Reports of other threads and tasks.
enum Fact {
    /// An input for the core.
    Core(Input),
    /// Result of the registration: an error if another running host has this host's name or address. On
    /// success the host is registered.
    StartAllowed(Result<(), AgentError>),
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error when the agent cannot start. Once started, it ends only on a signal.
pub fn run(options: AgentOptions) -> Result<(), AgentError> {
    crate::agent::process::allocator::prepare();
    options.settings.check().map_err(AgentError::Settings)?;
    let logs = logging::start(options.settings.log_format.unwrap_or_default());
    // The sandbox restricts single threads, so it must precede the start of the second one.
    let (namespaces, protections) = sandbox::enter(&sandbox::AgentFiles {
        settings: &options.settings,
        store: &options.store,
        socket: &options.socket,
        writes: options.writes(),
        observes: options.observes(),
    });
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
        let mut agent = Agent::start(options, logs, io.handle().clone(), (namespaces, protections)).await?;
        agent.run_loop().await;
        agent.stop().await;
        agent.start_refused.take().map_or(Ok(()), Err)
    });
    io.shutdown_timeout(Duration::from_secs(2));
    result
}

/// Ends the process on a panic of any thread: the remaining threads would work on incomplete state.
fn exit_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        tracing::error!(target: "tortie", "a thread panicked, the process ends: {info}");
        std::process::exit(70);
    }));
}

/// State of the event loop. Parts with rules of their own have their own types: threads, pending requests,
/// timers.
struct Agent {
    options: AgentOptions,
    core: Core,
    journal: Journal,
    handle: Arc<Handle>,
    /// Set in observe mode.
    observer: Option<Arc<Observer>>,
    store: Arc<dyn Store>,
    io: tokio::runtime::Handle,
    logs: logging::Logs,
    kernel: KernelThread,
    speaker: SpeakerThread,
    feed: Feed,
    facts: mpsc::UnboundedReceiver<Fact>,
    facts_sender: mpsc::UnboundedSender<Fact>,
    requests: mpsc::Receiver<CoreRequest>,
    applied_requests: AppliedRequests,
    controllers: Controllers,
    registered: bool,
    /// True after the core asked for what says that the store is ready.
    cluster_requested: bool,
    /// Routes to single addresses that the kernel had when the agent started, until the speaker starts.
    attached: Vec<AttachedRoute>,
    start_refused: Option<AgentError>,
    notify: systemd::Notify,
    stopping: bool,
    timers: Timers,
    stations: crate::agent::bmp::BmpStations,
    docker: Option<docker::Running>,
}

impl Agent {
    /// Handles events until a signal requests the stop.
    async fn run_loop(&mut self) {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).ok();
        let mut interrupt = signal(SignalKind::interrupt()).ok();
        // By default SIGHUP would end the agent, and log rotation scripts send it to daemons.
        let mut hangup = signal(SignalKind::hangup()).ok();
        let patience = tokio::time::sleep(STORE_PATIENCE);
        tokio::pin!(patience);
        let mut waited = false;
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            let next = next_event(
                async {
                    tokio::select! {
                        biased;
                        () = received(&mut terminate) => Signal::Stop,
                        () = received(&mut interrupt) => Signal::Stop,
                        () = received(&mut hangup) => Signal::Hangup,
                        _ = tick.tick() => Signal::Tick,
                        () = &mut patience, if !waited => Signal::Patience,
                    }
                },
                self.feed.next(),
                self.facts.recv(),
                self.requests.recv(),
            );
            let next = next.await;
            let began = Instant::now();
            match next {
                NextEvent::First(Signal::Stop) | NextEvent::Feed(None) => return,
                NextEvent::First(Signal::Hangup) => tracing::info!(
                    target: "tortie",
                    "SIGHUP: nothing to reload; changes in the store apply by themselves, flags and the \
                     settings file are read at the start (systemctl restart tortie interrupts no traffic)"
                ),
                NextEvent::First(Signal::Tick) => self.tick(),
                NextEvent::First(Signal::Patience) => {
                    waited = true;
                    self.input(Input::StoreTimeout);
                    if !self.core.loaded() && CoreView::of(&self.core).frozen().is_none() {
                        tracing::warn!(target: "tortie", "the store does not answer and there is no cache: \
                                                          waiting for the store");
                    }
                }
                NextEvent::Feed(Some(event)) => {
                    self.on_feed_event(event);
                    // A store that changes constantly must not delay facts and requests.
                    if let Ok(fact) = self.facts.try_recv() {
                        self.on_facts(fact);
                    }
                    self.on_waiting_request();
                }
                NextEvent::Fact(fact) => {
                    self.on_facts(fact);
                    self.on_waiting_request();
                }
                NextEvent::Request(request) => self.on_request(request),
            }
            self.applied_requests.answer(&mut self.core, Instant::now());
            self.core.time(Timing::Iteration(began.elapsed()));
            if self.start_refused.is_some() {
                return;
            }
        }
    }

    /// Passes one input to the core and carries out the effects.
    fn input(&mut self, input: Input) {
        let now = time::now();
        let recorded = input.clone();
        let effects = self.core.handle(input, now);
        self.journal.input(now, recorded, &effects);
        self.carry_out(effects);
    }

    /// Applies one store event and all others that are ready, then acts once.
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
        // Limits the number of facts per run, so that queries are answered between the facts of a full feed.
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
                Some(Fact::StartAllowed(Err(error))) => self.start_refused = Some(error),
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
            Effect::CreateCluster => self.create_cluster(),
            Effect::Loaded => self.on_loaded(),
            Effect::Routing(intent) => self.handle.publish_intent(intent),
            Effect::Kernel(intent) => self.kernel.send_intent(intent),
            Effect::Enforce(change) => self.kernel.send_policy(change),
            Effect::Speaker(..) | Effect::LocalReady | Effect::NextHop(..) | Effect::NextHopWithin(..)
                if !self.speaker.is_started() =>
            {
                if !self.options.observes() {
                    self.speaker.hold(effect);
                }
            }
            Effect::Speaker(intent, change) => {
                self.speaker.send(ToSpeaker::Intent(intent, change));
                self.update_bmp_stations();
            }
            Effect::LocalReady => self.speaker.send(ToSpeaker::LocalReady),
            Effect::NextHop(addr, state) => self.speaker.send(ToSpeaker::NextHop(addr, state)),
            Effect::NextHopWithin(addr, within) => {
                self.speaker.send(ToSpeaker::NextHopWithin(addr, within));
            }
            Effect::Sweep => self.kernel.sweep_later(),
            Effect::Track(addr, true) => self.kernel.send(ToKernel::Track(addr)),
            Effect::Track(addr, false) => self.kernel.send(ToKernel::Untrack(addr)),
            Effect::Scope(blocks) => {
                let mut keys = watch_scope(&self.options.node, self.options.store.data_model);
                keys.extend(blocks);
                self.feed.set_prefixes(&keys);
            }
            Effect::Trust(generation, upto) => self.feed.confirm(generation, upto),
            Effect::Log(line) => log::write(&line),
            // There may be no follower.
            Effect::Recorded(entry) => drop(self.handle.events().send(entry)),
            Effect::Logs => {
                let mut wanted = host::log_settings(CoreView::of(&self.core).model());
                if self.options.observes() {
                    // In observe mode the log file in the store's settings belongs to Felix.
                    wanted.file = None;
                }
                self.logs.apply(&wanted);
                self.update_bmp_stations();
            }
        }
    }

    /// Applies the configured BMP stations: those of the flag, else those in the store.
    fn update_bmp_stations(&mut self) {
        if !self.speaker.is_started() {
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
}

async fn received(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
