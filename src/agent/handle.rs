//! The agent's answers to the API: what each thread knows, asked for and put together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::{mpsc, oneshot};
use tortie_bgp::{Drain, Reset, RouteQuery as Question, RouteTable};
use tortie_net::Cidr;

use super::metrics;
use crate::agent::api::bgp::{self, Cursor};
use crate::agent::api::cluster::Books;
use crate::agent::api::endpoints::CoreQuestion;
use crate::agent::api::mrt;
use crate::agent::api::status::{self, CoreFacts};
use crate::agent::config::PerPeer;
use crate::agent::core::recorder::Filter;
use crate::agent::core::recorder::NewEntry;
use crate::agent::health::notes;
use crate::api::bgp::{BgpRoute, Peer, PeerRange};
use crate::api::explain::Why;
use crate::api::ipam::{BlockRow, BlockView, PoolRow};
use crate::api::nodes::ClusterNode;
use crate::api::policy::{
    Diff, DiffRequest, DropRow, DryRun, DryRunRequest, Endpoint, EndpointDetail, LiveTrace, LiveTraceRequest,
    Policy, PolicyDetail, Trace, TraceQuery,
};
use crate::api::status::{
    ApiError, Applied, AppliedRequest, Done, DrainRequest, Event, KernelRouteRow, List, LogLevelRequest,
    Problem, ResetRequest, RouteGet, Status, Subject, Told,
};
use crate::api::{Backend, EventQuery, EventStream, MetricsPage, OctetStream, RouteQuery, codes};
use crate::speaker::{SpeakerHandle, SpeakerView, ToSpeaker};
use tortie_engine::routing::{LearnedPath, PeerIntent, RoutingIntent};
use tortie_kernel::{DropLog, KernelView, ToKernel};
use tortie_metrics::Table;
use tortie_store::{Requests, Store};

/// Longest wait for a thread's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The loop of the core must have turned within this time for the process to count as alive.
const ALIVE: i64 = 30;

/// Places of a table that one question for routes looks at: a few milliseconds of its thread, while few match.
pub(super) const PLACES: u32 = 65_536;

/// Which table a listing is of: the speaker's own where neither is named.
#[derive(Debug, Clone)]
struct Asked {
    from: Option<String>,
    to: Option<String>,
}

impl Asked {
    fn find(&self, view: &SpeakerView<'_>) -> Option<RouteTable> {
        Some(match self {
            Self { from: Some(name), .. } => RouteTable::AdjIn(view.peer_id(name)?),
            Self { to: Some(name), .. } => RouteTable::AdjOut(view.peer_id(name)?),
            _ => RouteTable::Loc,
        })
    }
}

/// A question to the core.
#[derive(Debug)]
pub(super) enum Ask {
    /// What the core knows for `status` and metrics.
    Facts(oneshot::Sender<CoreFacts>),
    /// Hints at routers that announce what no host announced, by session: what was learned from them inside pools.
    Hints { learned: Vec<(String, Vec<LearnedPath>)>, answer: oneshot::Sender<BTreeMap<String, Problem>> },
    /// The flight recorder.
    Events { filter: Filter, after: u64, max: usize, answer: oneshot::Sender<Vec<Arc<Event>>> },
    /// Until an endpoint is in force.
    Applied { request: AppliedRequest, answer: oneshot::Sender<Applied> },
    /// Anything that the core's own state answers.
    Core(CoreQuestion),
    /// Another level of the logs, for a while.
    Log { request: LogLevelRequest, answer: oneshot::Sender<Result<String, String>> },
    /// End a freeze.
    Accept(oneshot::Sender<bool>),
}

/// What the threads share with the API: handles and two flags.
pub(super) struct Live {
    /// New entries of the recorder, for those who follow it.
    pub(super) events: tokio::sync::broadcast::Sender<NewEntry>,
    pub(super) node: String,
    pub(super) protocol: u8,
    pub(super) started: Instant,
    pub(super) ask: mpsc::Sender<Ask>,
    /// IPAM of all hosts.
    pub(super) books: Books,
    pub(super) intent: ArcSwapOption<RoutingIntent>,
    pub(super) speaker: ArcSwapOption<SpeakerHandle>,
    pub(super) kernel: ArcSwapOption<std::sync::mpsc::SyncSender<ToKernel>>,
    pub(super) drops: ArcSwapOption<DropLog>,
    /// Of an agent that observes.
    pub(super) beside: Option<crate::agent::observe::Beside>,
    /// For what is only read on demand.
    pub(super) store: Arc<dyn Store>,
    /// Places for those who follow the flight recorder.
    pub(super) followers: Arc<tokio::sync::Semaphore>,
    /// Held while packets are traced.
    pub(super) tracing: Arc<tokio::sync::Mutex<()>>,
    /// Requests to the store.
    pub(super) requests: Arc<Requests>,
    /// `sqlite` or `etcd`.
    pub(super) store_kind: &'static str,
    /// Which peers have series of their own.
    pub(super) per_peer: PerPeer,
    /// Requests to the API.
    pub(super) served: Table<(String, u16)>,
    /// What of metrics outlives a scrape.
    pub(super) kept: metrics::Kept,
    pub(super) ready: AtomicBool,
    /// Seconds since `started` at which the core's loop last turned.
    pub(super) turned: AtomicI64,
}

impl Live {
    pub(super) async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Ask,
    ) -> Result<T, ApiError> {
        let (answer, wait) = oneshot::channel();
        self.ask.send(question(answer)).await.map_err(|_| busy("the agent is stopping"))?;
        patient(wait).await
    }

    pub(super) async fn facts(&self) -> Result<CoreFacts, ApiError> {
        self.ask(Ask::Facts).await
    }

    pub(super) async fn speaker<T: Send + 'static>(
        &self,
        question: impl FnOnce(&SpeakerView<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        ask_speaker(&*self.handle()?, question).await
    }

    fn handle(&self) -> Result<Arc<SpeakerHandle>, ApiError> {
        if self.beside.is_some() {
            return Err(ApiError {
                code: "observes".to_owned(),
                text: "this agent observes and has no BGP sessions: `tortie diff sessions` compares those of BIRD"
                    .to_owned(),
            });
        }
        self.speaker.load_full().ok_or_else(|| busy("the speaker has not started yet"))
    }

    pub(super) async fn kernel<T: Send + 'static>(
        &self,
        question: impl FnOnce(&KernelView<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let handle = self.kernel.load_full().ok_or_else(|| busy("the kernel thread has not started yet"))?;
        let (answer, wait) = oneshot::channel();
        handle
            .try_send(ToKernel::Query(Box::new(move |view| {
                let _ = answer.send(question(view));
            })))
            .map_err(|_| busy("the kernel thread is busy; try again"))?;
        patient(wait).await
    }

    fn intent(&self) -> Result<Arc<RoutingIntent>, ApiError> {
        self.intent.load_full().ok_or_else(|| busy("the store has not been read yet"))
    }

    /// The intent with the dynamic peers that there are.
    pub(super) async fn sessions(&self) -> Result<Arc<RoutingIntent>, ApiError> {
        let intent = self.intent()?;
        if intent.ranges.is_empty() {
            return Ok(intent);
        }
        let dynamic = self.speaker(|view| view.dynamic()).await?;
        Ok(Arc::new(intent.with_dynamic(&dynamic)))
    }

    /// The ranges; none where the speaker does not answer.
    async fn ranges(&self) -> Vec<PeerRange> {
        let Some(intent) = self.intent.load_full().filter(|intent| !intent.ranges.is_empty()) else {
            return Vec::new();
        };
        let known = self.speaker(|view| view.ranges()).await.unwrap_or_default();
        bgp::ranges(&intent, &known)
    }

    /// Hints at what routers announce, by session. The core is asked only when one announces something inside a pool.
    async fn hints(&self) -> BTreeMap<String, Problem> {
        let Ok(intent) = self.sessions().await else { return BTreeMap::new() };
        if !intent.peers.values().any(PeerIntent::is_router) {
            return BTreeMap::new();
        }
        let learned = self.speaker(move |view| bgp::inside_pools(view, &intent)).await.unwrap_or_default();
        if learned.is_empty() {
            return BTreeMap::new();
        }
        self.ask(|answer| Ask::Hints { learned, answer }).await.unwrap_or_default()
    }

    /// A note that differences are left for study.
    async fn held(&self) -> Option<Problem> {
        let left = self.kernel(|view| view.drift_hold_remaining()).await.ok().flatten()?;
        let code = &codes::DIFF_HELD;
        Some(Problem {
            code: code.name.to_owned(),
            subject: "kernel".to_owned(),
            text: format!(
                "what others change in own routes and rules is left for study for {} more",
                crate::api::span(left.as_secs())
            ),
            next: code.next("kernel"),
            about: Subject::Host,
        })
    }

    pub(super) async fn list<T>(&self, kind: &str, items: Vec<T>) -> List<T> {
        let revision = self.facts().await.map_or(0, |f| f.revision);
        bgp::list(kind, &self.node, revision, items)
    }
}

/// Asks the speaker's thread.
pub(super) async fn ask_speaker<T: Send + 'static>(
    handle: &SpeakerHandle,
    question: impl FnOnce(&SpeakerView<'_>) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let (answer, wait) = oneshot::channel();
    handle
        .send(ToSpeaker::Query(Box::new(move |view| {
            let _ = answer.send(question(view));
        })))
        .map_err(|e| busy(&e.to_string()))?;
    patient(wait).await
}

pub(super) async fn patient<T>(wait: oneshot::Receiver<T>) -> Result<T, ApiError> {
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(busy("the agent is stopping")),
        Err(_) => Err(busy("a thread of the agent did not answer within 10 s")),
    }
}

pub(super) fn busy(text: &str) -> ApiError {
    ApiError { code: "busy".to_owned(), text: text.to_owned() }
}

/// A page of what `ask` finds in one run after the other, and where the next page begins; `ask` takes a run, a place in the
/// table and how many are wanted. A page costs its size; where little of a table is wanted, its thread is asked for a part
/// at a time.
async fn page<R: Copy, T, F>(
    query: &RouteQuery,
    runs: &[R],
    ask: impl Fn(R, u32, usize) -> F,
) -> Result<(Vec<T>, Option<Cursor>), ApiError>
where
    F: Future<Output = Result<(Vec<T>, Option<u32>), ApiError>>,
{
    let mut at: Cursor = query.after.as_deref().map_or(Ok(Cursor::default()), str::parse)?;
    let max = query.max.unwrap_or(1_000).clamp(1, 10_000);
    let mut found = Vec::new();
    while let Some(run) = runs.get(at.run).copied() {
        if found.len() >= max {
            return Ok((found, Some(at)));
        }
        let (part, next) = ask(run, at.place, max - found.len()).await?;
        found.extend(part);
        at = next.map_or(Cursor { run: at.run + 1, place: 0 }, |place| Cursor { place, ..at });
    }
    Ok((found, None))
}

#[async_trait::async_trait]
impl Backend for Live {
    async fn status(&self) -> Arc<Status> {
        let mut facts = self.facts().await.ok();
        if let Some(facts) = &mut facts {
            facts.ranges = Self::ranges(self).await;
            facts.traded = self.speaker(notes::traded).await.unwrap_or_default();
        }
        let mut kernel = self.kernel(status::kernel_facts).await.ok();
        let judged = self.beside.as_ref().and_then(crate::agent::observe::Beside::last);
        if let Some(judged) = &judged {
            facts.iter_mut().for_each(|facts| judged.replace_sessions(facts));
            kernel.iter_mut().for_each(|kernel| judged.replace_kernel(kernel));
        }
        let hints = self.hints().await;
        let intent = self.intent.load_full();
        let hints = hints.into_values().chain(self.drained().await);
        let notes = hints.chain(self.denied()).chain(self.held().await);
        Arc::new(status::build(self, facts, kernel, intent.as_deref(), judged.as_deref(), notes))
    }

    async fn ranges(&self) -> Result<List<PeerRange>, ApiError> {
        self.intent()?;
        let items = Self::ranges(self).await;
        Ok(self.list("BGPRangeList", items).await)
    }

    async fn peers(&self) -> Result<List<Peer>, ApiError> {
        let intent = self.sessions().await?;
        let (statuses, watched, taken) = self
            .speaker(|view| {
                let statuses = view.peers();
                let drained =
                    statuses.iter().filter(|s| s.drain != Drain::Off && view.has_taken_all(&s.name));
                let taken: BTreeSet<Arc<str>> = drained.map(|s| Arc::clone(&s.name)).collect();
                (statuses, view.bfd_sessions(), taken)
            })
            .await?;
        let mut hints = self.hints().await;
        let items = intent
            .peers
            .keys()
            .filter_map(|session| {
                let at = statuses.binary_search_by(|s| (*s.name).cmp(session.as_str())).ok();
                let status = at.and_then(|i| statuses.get(i));
                let mut peer = bgp::peer(session, &intent, status, watched.get(session.as_str()))?;
                peer.notes.extend(hints.remove(session));
                peer.drain_taken = taken.contains(session.as_str());
                Some(peer)
            })
            .collect();
        Ok(self.list("BGPPeerList", items).await)
    }

    async fn bgp_routes(&self, query: RouteQuery) -> Result<List<BgpRoute>, ApiError> {
        let intent = self.sessions().await?;
        let runs = bgp::runs(&query)?;
        let named = |name: &Option<String>| {
            name.as_deref().map(|n| bgp::session_named(&intent, n).cloned()).transpose()
        };
        let table = Asked { from: named(&query.from)?, to: named(&query.to)? };
        let ask = |matching, place, left| {
            let table = table.clone();
            let part = move |view: &SpeakerView<'_>| {
                let question = Question { table: table.find(view)?, matching };
                Some(view.walk(question, place, PLACES, left))
            };
            async move {
                self.speaker(part).await?.ok_or_else(|| ApiError {
                    code: "not-found".into(),
                    text: "the speaker does not know this peer yet".into(),
                })
            }
        };
        let (mut found, next) = page(&query, &runs, ask).await?;
        found.sort_unstable_by_key(|info| info.prefix);
        let items = found.iter().map(|info| bgp::route(info, &intent)).collect();
        let mut list = self.list("BGPRouteList", items).await;
        list.more = next.is_some();
        list.next = next.map(|at| at.to_string());
        Ok(list)
    }

    async fn mrt_table(&self) -> Result<(u64, OctetStream), ApiError> {
        mrt::table(self.handle()?, self.intent()?, &self.node).await
    }

    async fn mrt_updates(&self, peer: Option<String>) -> Result<OctetStream, ApiError> {
        let intent = self.sessions().await?;
        let only = peer.map(|name| bgp::session_named(&intent, &name).cloned()).transpose()?;
        mrt::updates(&*self.handle()?, only)
    }

    async fn kernel_routes(&self, query: RouteQuery) -> Result<List<KernelRouteRow>, ApiError> {
        let matching = status::KernelMatch::read(&query)?;
        let ask = |matching, place, left| {
            self.kernel(move |view: &KernelView<'_>| {
                status::kernel_rows(view, &matching, place, PLACES, left)
            })
        };
        let (mut found, next) = page(&query, &[matching], ask).await?;
        found.sort_unstable_by_key(|(prefix, _)| *prefix);
        let items = found.into_iter().map(|(_, row)| row).collect();
        let mut list = self.list("KernelRouteList", items).await;
        list.more = next.is_some();
        list.next = next.map(|at| at.to_string());
        Ok(list)
    }

    async fn route_get(&self, address: std::net::IpAddr) -> Result<RouteGet, ApiError> {
        Ok(self.way_to(address).await?.0)
    }

    async fn endpoints(&self, all: bool) -> Result<List<Endpoint>, ApiError> {
        self.list_endpoints(all).await
    }

    async fn endpoint(&self, name: String) -> Result<EndpointDetail, ApiError> {
        self.show_endpoint(name).await
    }

    async fn policies(&self, all: bool) -> Result<List<Policy>, ApiError> {
        self.list_policies(all).await
    }

    async fn live_trace(&self, request: LiveTraceRequest) -> Result<LiveTrace, ApiError> {
        self.trace_packets(request).await
    }

    async fn dry_run(&self, request: DryRunRequest) -> Result<DryRun, ApiError> {
        self.try_write(request).await
    }

    async fn drops(&self, within: Duration) -> Result<List<DropRow>, ApiError> {
        self.dropped(within).await
    }

    async fn diff(&self, max: usize) -> Result<Diff, ApiError> {
        self.differences(max).await
    }

    async fn why_peer(&self, name: String) -> Result<Why, ApiError> {
        Self::why_peer(self, name).await
    }

    async fn why_route(&self, prefix: String, to: Option<String>) -> Result<Why, ApiError> {
        Self::why_route(self, prefix, to).await
    }

    async fn why_ip(&self, address: std::net::IpAddr) -> Result<Why, ApiError> {
        Self::why_ip(self, address).await
    }

    async fn study(&self, request: DiffRequest) -> Result<Done, ApiError> {
        Self::study(self, request).await
    }

    async fn trace(&self, query: TraceQuery, kernel: bool) -> Result<Trace, ApiError> {
        self.explain(query, kernel).await
    }

    async fn policy(&self, name: String) -> Result<PolicyDetail, ApiError> {
        self.show_policy(name).await
    }

    async fn history(&self, query: EventQuery) -> Result<List<Event>, ApiError> {
        Self::history(self, query).await
    }

    async fn follow(&self, query: EventQuery, last: Option<u64>) -> Result<EventStream, ApiError> {
        self.follow_events(query, last).await
    }

    async fn nodes(&self) -> Result<List<ClusterNode>, ApiError> {
        self.nodes_of_store().await
    }

    async fn ipam_pools(&self) -> Result<List<PoolRow>, ApiError> {
        self.pools_of_store().await
    }

    async fn ipam_blocks(&self, pool: Option<Cidr>) -> Result<List<BlockRow>, ApiError> {
        self.blocks_of_store(pool).await
    }

    async fn ipam_block(&self, block: Cidr) -> Result<BlockView, ApiError> {
        self.block_of_store(block).await
    }

    async fn applied(&self, request: AppliedRequest) -> Applied {
        let wait = Duration::from_millis(request.wait_millis.min(600_000));
        let (answer, result) = oneshot::channel();
        let timeout = |revision| Applied { result: "timeout".to_owned(), reason: None, revision };
        if self.ask.send(Ask::Applied { request, answer }).await.is_err() {
            return timeout(0);
        }
        // The core answers at once when it is so; the grace makes a wait of 0 a question.
        match tokio::time::timeout(wait + Duration::from_millis(250), result).await {
            Ok(Ok(applied)) => applied,
            _ => timeout(self.facts().await.map_or(0, |f| f.revision)),
        }
    }

    async fn reset(&self, request: ResetRequest) -> Result<Done, ApiError> {
        let intent = self.sessions().await?;
        let invalid = |text: String| Err(ApiError { code: "invalid".to_owned(), text });
        let session = match (&request.peer, request.all) {
            (Some(name), false) => Some(bgp::session_named(&intent, name)?.clone()),
            (None, true) => None,
            _ => return invalid("name one peer, or say `all`".to_owned()),
        };
        match &request.text {
            Some(_) if request.kind != "hard" => {
                return invalid("only a hard reset sends a text to the peer".to_owned());
            }
            Some(text) if text.len() > 255 => {
                let text = format!("the text has {} octets; RFC 9003 has room for 255", text.len());
                return invalid(text);
            }
            _ => {}
        }
        let ranged = |name| intent.peers.get(name).is_some_and(|p| p.range.is_some());
        let (reset, one, all) = match request.kind.as_str() {
            "hard" => (
                Reset::Hard(request.text.unwrap_or_default()),
                if session.as_ref().is_some_and(ranged) {
                    "is reset; it may come again"
                } else {
                    "is reset; it dials again by itself"
                },
                "are reset; they come again by themselves",
            ),
            "soft-in" => (Reset::SoftIn, "is asked for its routes again", "are asked for their routes again"),
            "soft-out" => (Reset::SoftOut, "gets all routes again", "get all routes again"),
            other => {
                let text = format!("`{other}` is no kind of reset: hard, soft-in or soft-out");
                return invalid(text);
            }
        };
        let text = match &session {
            Some(session) => format!("{session} {one}"),
            None => format!("{} sessions {all}", intent.peers.len()),
        };
        self.handle()?.send(ToSpeaker::Reset(session, reset)).map_err(|e| busy(&e.to_string()))?;
        Ok(Done { text })
    }

    async fn drain(&self, request: DrainRequest) -> Result<Done, ApiError> {
        let intent = self.sessions().await?;
        let (drain, what) = match request.drain.as_str() {
            "announce" => (Drain::Announce, "announced with GRACEFUL_SHUTDOWN"),
            "withdraw" => (Drain::Withdraw, "withdrawn"),
            "off" => (Drain::Off, "announced as usual"),
            other => {
                let text = format!("`{other}` is no kind of drain: announce, withdraw or off");
                return Err(ApiError { code: "invalid".to_owned(), text });
            }
        };
        // All names are looked up before any order is given.
        let mut sessions = Vec::new();
        for name in &request.peers {
            sessions.push(bgp::session_named(&intent, name)?.clone());
        }
        let handle = self.speaker.load_full().ok_or_else(|| busy("the speaker has not started yet"))?;
        let give = |peer| handle.send(ToSpeaker::Drain(peer, drain)).map_err(|e| busy(&e.to_string()));
        if sessions.is_empty() {
            give(None)?;
            return Ok(Done { text: format!("to all peers, routes are {what}") });
        }
        let named = sessions.join(", ");
        for session in sessions {
            give(Some(session))?;
        }
        Ok(Done { text: format!("to {named}, routes are {what}") })
    }

    async fn accept_store(&self) -> Result<Done, ApiError> {
        let text = if self.ask(Ask::Accept).await? {
            "the store is taken as it is; all goes on"
        } else {
            "nothing was frozen by a loss, or /calico/v1/Ready is not `true`, or the store needs a later version: see `tortie status`"
        };
        Ok(Done { text: text.to_owned() })
    }

    async fn log_level(&self, request: LogLevelRequest) -> Result<Done, ApiError> {
        let told = self.ask(|answer| Ask::Log { request, answer }).await?;
        told.map(|text| Done { text }).map_err(|text| ApiError { code: "invalid".to_owned(), text })
    }

    async fn metrics(&self, page: MetricsPage) -> String {
        self.metrics_page(page).await
    }

    fn told(&self, told: Told) {
        crate::plugins::metrics::receive(&told);
    }

    fn served(&self, route: &str, status: u16, took: Duration) {
        self.served.time((route.to_owned(), status), took);
    }

    fn live(&self) -> bool {
        let now = i64::try_from(self.started.elapsed().as_secs()).unwrap_or(i64::MAX);
        now - self.turned.load(Ordering::Relaxed) < ALIVE
    }

    fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}
