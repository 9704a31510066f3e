//! Queries to the agent's threads: a query is a closure that a thread runs with a view of its state.
//!
//! Carries queries and answers, with one deadline and one error (`busy`) for a thread that is overloaded or
//! absent. Holds the few values that all threads share. The content of queries and answers is defined by the
//! callers.
//!
//! ```text
//!  API, observe, BMP, --Asker::ask(|view| ..)--> core (CoreView), speaker (SpeakerView), kernel (KernelView)
//!  health, metrics    <------- answer, 10 s ----
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};

use crate::agent::core::recorder::NewEntry;
use crate::agent::core::view::CoreView;
use crate::api::machine::Machine;
use crate::api::status::{ApiError, Applied, AppliedRequest, LogLevelRequest, ProtectionStatus};
use crate::speaker::{SpeakerHandle, SpeakerView, ToSpeaker};
use tortie_engine::routing::{PeerIntent, RoutingIntent};
use tortie_kernel::{DropLog, KernelView, Namespaces, ToKernel};

/// Maximum wait for a thread's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Liveness limit in seconds: the core's event loop must have completed an iteration within this time.
const LIVENESS_LIMIT: i64 = 30;

/// Number of flight recorder entries that a follower may lag behind before it loses some.
const FOLLOWER_BACKLOG: usize = 1_024;

/// Maximum number of concurrent long queries. Each iterates over all resources of the core and competes with
/// the core for processors.
pub(super) const LONG_QUERIES: u32 = 2;

/// Table slots that one query for routes examines: a few milliseconds of its thread, as long as few routes
/// match.
pub(super) const SLOTS_PER_QUERY: u32 = 65_536;

/// A thread that answers queries.
pub(super) trait Thread: Send + Sync {
    /// View of the thread's state that a query receives.
    type View<'a>;

    /// Puts a query into the thread's inbox.
    ///
    /// # Errors
    /// Returns `busy` when the inbox is full or the thread has ended.
    fn post(&self, query: Query<Self>) -> impl Future<Output = Result<(), ApiError>> + Send;
}

/// A query: a closure that a thread runs with a view of its state.
pub(super) type Query<T> = Box<dyn FnOnce(&<T as Thread>::View<'_>) + Send>;

/// A request to the core's event loop.
pub(super) enum CoreRequest {
    /// Runs a query on the core's state.
    Query(Query<mpsc::Sender<Self>>),
    /// Waits until the dataplane has applied an endpoint.
    Applied { request: AppliedRequest, answer: oneshot::Sender<Applied> },
    /// Overrides a log level for a limited time.
    LogLevel { request: LogLevelRequest, answer: oneshot::Sender<Result<String, String>> },
    /// Accepts the current store and ends a freeze.
    AcceptStore(oneshot::Sender<bool>),
}

impl Thread for mpsc::Sender<CoreRequest> {
    type View<'a> = CoreView<'a>;

    async fn post(&self, query: Query<Self>) -> Result<(), ApiError> {
        self.send(CoreRequest::Query(query)).await.map_err(|_| stopping())
    }
}

impl Thread for SpeakerHandle {
    type View<'a> = SpeakerView<'a>;

    async fn post(&self, query: Query<Self>) -> Result<(), ApiError> {
        self.send(ToSpeaker::Query(query)).map_err(|e| busy(&e.to_string()))
    }
}

impl Thread for SyncSender<ToKernel> {
    type View<'a> = KernelView<'a>;

    async fn post(&self, query: Query<Self>) -> Result<(), ApiError> {
        self.try_send(ToKernel::Query(query)).map_err(|_| kernel_busy())
    }
}

/// Sends a query to a thread and waits for its answer.
///
/// # Errors
/// Returns `busy` when the thread accepts no query, ends, or does not answer within 10 s.
pub(super) async fn ask<T: Thread, R: Send + 'static>(
    thread: &T,
    query: impl FnOnce(&T::View<'_>) -> R + Send + 'static,
) -> Result<R, ApiError> {
    let (answer, wait) = oneshot::channel();
    let posted = thread.post(Box::new(move |view: &T::View<'_>| {
        let _ = answer.send(query(view));
    }));
    posted.await?;
    within_timeout(wait).await
}

/// Waits for a thread's answer.
///
/// # Errors
/// Returns `busy` when no answer arrives within 10 s.
pub(super) async fn within_timeout<T>(wait: oneshot::Receiver<T>) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, wait).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(stopping()),
        Err(_) => Err(busy("a thread of the agent did not answer within 10 s")),
    }
}

/// Builds a `busy` error: the query cannot be answered now.
pub(super) fn busy(text: &str) -> ApiError {
    ApiError { code: "busy".to_owned(), text: text.to_owned() }
}

/// Builds the error of an agent that is shutting down.
pub(super) fn stopping() -> ApiError {
    busy("the agent is stopping")
}

/// Builds the error of a kernel thread whose inbox is full.
pub(super) fn kernel_busy() -> ApiError {
    busy("the kernel thread is busy; try again")
}

fn speaker_absent() -> ApiError {
    busy("the speaker has not started yet")
}

fn kernel_absent() -> ApiError {
    busy("the kernel thread has not started yet")
}

fn observes() -> ApiError {
    ApiError {
        code: "observes".to_owned(),
        text: "this agent observes and has no BGP sessions: `tortie diff sessions` compares those of BIRD"
            .to_owned(),
    }
}

/// Query interface of a thread that may not have started yet.
pub(super) struct Asker<T> {
    thread: ArcSwapOption<T>,
    absent: fn() -> ApiError,
}

impl<T: Thread> Asker<T> {
    fn new(absent: fn() -> ApiError) -> Self {
        Self { thread: ArcSwapOption::empty(), absent }
    }

    /// Registers the thread once it has started.
    pub(super) fn started(&self, thread: T) {
        self.thread.store(Some(Arc::new(thread)));
    }

    /// Returns the thread; `None` before it has started.
    pub(super) fn get(&self) -> Option<Arc<T>> {
        self.thread.load_full()
    }

    /// Returns the thread.
    ///
    /// # Errors
    /// Returns `busy` when the thread has not started, or never starts in this mode.
    pub(super) fn thread(&self) -> Result<Arc<T>, ApiError> {
        self.get().ok_or_else(self.absent)
    }

    /// Sends a query to the thread and waits for its answer.
    ///
    /// # Errors
    /// As [`ask`], and `busy` when the thread has not started.
    pub(super) async fn ask<R: Send + 'static>(
        &self,
        query: impl FnOnce(&T::View<'_>) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        ask(&*self.thread()?, query).await
    }
}

/// Shared access to the agent's threads, and values that all of them read.
pub(super) struct Handle {
    node: String,
    machine: Machine,
    protections: ProtectionStatus,
    namespaces: Namespaces,
    started: Instant,
    core: Asker<mpsc::Sender<CoreRequest>>,
    speaker: Asker<SpeakerHandle>,
    kernel: Asker<SyncSender<ToKernel>>,
    intent: ArcSwapOption<RoutingIntent>,
    drops: ArcSwapOption<DropLog>,
    /// Broadcast of new flight recorder entries.
    events: broadcast::Sender<NewEntry>,
    ready: AtomicBool,
    /// Time of the last iteration of the core's event loop, in seconds since `started`.
    last_iteration: AtomicI64,
    long_queries: Arc<Semaphore>,
}

impl Handle {
    /// Creates the handle. `observe`: in observe mode the agent has no speaker and compares other daemons'
    /// state only.
    pub(super) fn new(
        node: &str,
        machine: Machine,
        (protections, namespaces): (ProtectionStatus, Namespaces),
        started: Instant,
        requests: mpsc::Sender<CoreRequest>,
        observe: bool,
    ) -> Self {
        let core = Asker::new(stopping);
        core.started(requests);
        Self {
            node: node.to_owned(),
            machine,
            protections,
            namespaces,
            started,
            core,
            speaker: Asker::new(if observe { observes } else { speaker_absent }),
            kernel: Asker::new(kernel_absent),
            intent: ArcSwapOption::empty(),
            drops: ArcSwapOption::empty(),
            events: broadcast::channel(FOLLOWER_BACKLOG).0,
            ready: AtomicBool::new(false),
            last_iteration: AtomicI64::new(0),
            long_queries: Arc::new(Semaphore::new(LONG_QUERIES as usize)),
        }
    }

    /// Waits for the permit of a long query, one that iterates over all resources of the core. `alone`
    /// requests all permits, for a query that takes much memory: no other long query runs at the same time.
    ///
    /// # Errors
    /// Returns `busy` when no permit is free within 10 s.
    pub(super) async fn long_query_permit(&self, alone: bool) -> Result<OwnedSemaphorePermit, ApiError> {
        let permits = if alone { LONG_QUERIES } else { 1 };
        let permit = Arc::clone(&self.long_queries).acquire_many_owned(permits);
        let permit = tokio::time::timeout(ANSWER_TIMEOUT, permit);
        match permit.await {
            Ok(permit) => permit.map_err(|_| stopping()),
            Err(_) => Err(busy("too many long requests are pending: try again later")),
        }
    }

    /// Returns the privileges that this process has dropped.
    pub(super) fn protections(&self) -> ProtectionStatus {
        ProtectionStatus { helper: self.namespaces.has_helper(), ..self.protections.clone() }
    }

    /// Returns the identity of the machine that this process runs on.
    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns this host's node name.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Returns the start time of the agent.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Returns the query interface of the core.
    pub(super) fn core(&self) -> &Asker<mpsc::Sender<CoreRequest>> {
        &self.core
    }

    /// Returns the query interface of the speaker.
    pub(super) fn speaker(&self) -> &Asker<SpeakerHandle> {
        &self.speaker
    }

    /// Returns the query interface of the kernel thread.
    pub(super) fn kernel(&self) -> &Asker<SyncSender<ToKernel>> {
        &self.kernel
    }

    /// Registers the log in which the kernel thread counts dropped packets.
    pub(super) fn set_drops(&self, drops: Arc<DropLog>) {
        self.drops.store(Some(drops));
    }

    /// Returns the log of dropped packets; `None` before the kernel thread has started.
    pub(super) fn drops(&self) -> Option<Arc<DropLog>> {
        self.drops.load_full()
    }

    /// Returns the broadcast of new flight recorder entries, to which followers subscribe.
    pub(super) fn events(&self) -> &broadcast::Sender<NewEntry> {
        &self.events
    }

    /// Publishes an intent as the newest one for readers.
    pub(super) fn publish_intent(&self, intent: Arc<RoutingIntent>) {
        self.intent.store(Some(intent));
    }

    /// Returns the newest intent; `None` before the store was read.
    pub(super) fn newest_intent(&self) -> Option<Arc<RoutingIntent>> {
        self.intent.load_full()
    }

    /// Returns the newest intent.
    ///
    /// # Errors
    /// Returns `busy` before the store was read.
    pub(super) fn intent(&self) -> Result<Arc<RoutingIntent>, ApiError> {
        self.newest_intent().ok_or_else(|| busy("the store has not been read yet"))
    }

    /// Returns the newest intent, completed with the current dynamic peers and the addresses of unnumbered
    /// peers.
    ///
    /// # Errors
    /// Returns `busy` before the store was read. With ranges or unnumbered peers, also the errors of
    /// [`Asker::ask`].
    pub(super) async fn sessions(&self) -> Result<Arc<RoutingIntent>, ApiError> {
        let mut intent = self.intent()?;
        let unnumbered = intent.peers.iter().filter(|(_, peer)| peer.interface.is_some());
        let unnumbered: Vec<String> = unnumbered.map(|(session, _)| session.clone()).collect();
        if !unnumbered.is_empty() {
            let remotes = move |view: &SpeakerView<'_>| {
                let remote = |session: String| Some((view.peer(&session)?.remote, session));
                unnumbered.into_iter().filter_map(remote).collect::<Vec<_>>()
            };
            // Only the speaker knows the addresses of unnumbered peers.
            let known = self.speaker.ask(remotes).await?;
            let whole = Arc::make_mut(&mut intent);
            for (remote, session) in known {
                if let Some(peer) = whole.peers.get(&session) {
                    whole.peers.insert(session, PeerIntent { remote, ..peer.clone() });
                }
            }
        }
        if intent.ranges.is_empty() {
            return Ok(intent);
        }
        let dynamic = self.speaker.ask(|view| view.dynamic()).await?;
        Ok(Arc::new(intent.with_dynamic(&dynamic)))
    }

    /// Sets the readiness state and returns the former one.
    pub(super) fn set_ready(&self, ready: bool) -> bool {
        self.ready.swap(ready, Ordering::Relaxed)
    }

    /// True if the agent is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Records an iteration of the core's event loop.
    pub(super) fn record_iteration(&self, now: Instant) {
        let at = i64::try_from(now.duration_since(self.started).as_secs()).unwrap_or(i64::MAX);
        self.last_iteration.store(at, Ordering::Relaxed);
    }

    /// True if the core's event loop completed an iteration within the last 30 s.
    pub(super) fn is_alive(&self) -> bool {
        let now = i64::try_from(self.started.elapsed().as_secs()).unwrap_or(i64::MAX);
        now - self.last_iteration.load(Ordering::Relaxed) < LIVENESS_LIMIT
    }
}
