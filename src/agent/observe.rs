//! An agent that observes: the look at what BIRD and Felix have in the kernel, and its comparison with the intent, each half
//! minute and on request. It writes nothing, anywhere.
//!
//! ```text
//!   store --affinities of all hosts, rarely--+
//!   core --model, intent, rules--> HostIntent <--+
//!   BIRD's socket, kernel, iptables, ipset --> ForeignState      compare --> ComparisonReport --> status, diff, metrics
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy, stopping};
use crate::agent::health::kernel_snapshot::KernelSnapshot;
use crate::api::observe::{ObserveStatus, ObservedPlane};
use crate::api::policy::{Diff, DiffLine, DiffSection};
use crate::api::status::ApiError;
use crate::foreign::{
    self, Affinities, BIRD, CompareResult, Comparison, ForeignState, HostIntent, Plane, PlaneCounts,
    Unreadable, bird,
};
use tortie_engine::policy::{Globals, Ruleset};
use tortie_kernel::Drift;
use tortie_store::Store;

/// Between two comparisons, at least.
const INTERVAL: Duration = Duration::from_secs(30);
/// Comparing takes at most this part of the time.
const MAX_TIME_SHARE: u32 = 20;
/// Until the store and the kernel were read for the first time.
const STARTUP_RETRY: Duration = Duration::from_millis(200);
/// A request gets a comparison of at most this age.
const CACHE_TTL: Duration = Duration::from_secs(2);
/// How old the affinities of other hosts may be: nobody watches them, 5,000 agents must not read each other's all the time.
const AFFINITIES_TTL: Duration = Duration::from_secs(600);
/// And when routes differ, which a block that came or went explains.
const AFFINITIES_TTL_ON_DIFFERENCE: Duration = Duration::from_secs(60);
/// Said until then.
const NOT_YET: &str = "the store and the kernel have not been read yet";
/// Differences that `status` names.
const DIFFERENCES_LISTED: usize = 5;

/// The observer.
pub(super) struct Observer {
    handle: Arc<Handle>,
    store: Arc<dyn Store>,
    sockets: Vec<PathBuf>,
    /// Route protocols that would be ours: BIRD's, and our own.
    own_protocols: [u8; 2],
    last: ArcSwapOption<ComparisonReport>,
    /// Held while a comparison is made: one at a time.
    affinity_cache: tokio::sync::Mutex<AffinityCache>,
}

/// Affinities of all hosts, as read from the store.
#[derive(Default)]
struct AffinityCache {
    affinities: Option<Arc<Affinities>>,
    at: Option<Instant>,
    problem: Option<String>,
}

/// A comparison and what it was made from.
#[derive(Debug)]
pub(super) struct ComparisonReport {
    pub(super) comparison: Comparison,
    at: Instant,
    duration: Duration,
    unreadable: Vec<Unreadable>,
    /// BIRD's BGP sessions by name: whether they are up, and the state's name.
    sessions: BTreeMap<String, (bool, &'static str)>,
    bird_states: Vec<String>,
    felix_states: Vec<String>,
}

impl Observer {
    /// `sockets`: BIRD's; none: where Calico and Debian have them.
    pub(super) fn new(handle: Arc<Handle>, store: Arc<dyn Store>, sockets: &[PathBuf], protocol: u8) -> Self {
        Self {
            handle,
            store,
            sockets: bird::sockets(sockets),
            own_protocols: [BIRD, protocol],
            last: ArcSwapOption::empty(),
            affinity_cache: tokio::sync::Mutex::default(),
        }
    }

    /// The last comparison; `None`: nothing was compared yet.
    pub(super) fn last(&self) -> Option<Arc<ComparisonReport>> {
        self.last.load_full()
    }

    /// A comparison of at most this age.
    pub(super) async fn comparison(&self, age: Duration) -> Result<Arc<ComparisonReport>, ApiError> {
        let mut read = self.affinity_cache.lock().await;
        if let Some(last) = self.last().filter(|last| last.at.elapsed() <= age) {
            return Ok(last);
        }
        let begin = Instant::now();
        read.refresh(&*self.store, AFFINITIES_TTL).await;
        let mut wanted = self.intent(read.affinities.clone()).await?;
        let (sockets, ours) = (self.sockets.clone(), self.own_protocols);
        let found = tokio::task::spawn_blocking(move || foreign::look(&sockets, &ours)).await;
        let found = found.map_err(|_| stopping())?;
        let found = Arc::new(found.map_err(|error| busy(&format!("the kernel cannot be read: {error}")))?);
        let mut comparison = compare(wanted, &found).await?;
        if comparison.counts(Plane::Route).differing() > 0 {
            let before = read.at;
            read.refresh(&*self.store, AFFINITIES_TTL_ON_DIFFERENCE).await;
            if read.at != before {
                wanted = self.intent(read.affinities.clone()).await?;
                comparison = compare(wanted, &found).await?;
            }
        }
        let mut unreadable = found.unreadable.clone();
        unreadable.extend(
            read.problem.clone().map(|why| Unreadable { what: "affinities of other hosts".to_owned(), why }),
        );
        let report = Arc::new(ComparisonReport {
            comparison,
            at: Instant::now(),
            duration: begin.elapsed(),
            unreadable,
            sessions: sessions(&found),
            bird_states: birds(&found),
            felix_states: felix(&found),
        });
        self.last.store(Some(Arc::clone(&report)));
        Ok(report)
    }

    async fn intent(&self, affinities: Option<Arc<Affinities>>) -> Result<HostIntent, ApiError> {
        let of_core = move |core: &CoreView<'_>| comparison_intent(core, affinities.as_deref());
        self.handle.core().ask(of_core).await?.ok_or_else(|| busy(NOT_YET))
    }

    /// The answer to `diff`, made now.
    pub(super) async fn differences(&self, max: usize) -> Result<Diff, ApiError> {
        let report = self.comparison(CACHE_TTL).await?;
        let section = |what: &str, planes: &[Plane]| {
            let sum = |of: fn(&PlaneCounts) -> usize| -> usize {
                planes.iter().map(|plane| of(&report.comparison.counts(*plane))).sum()
            };
            let of = |unknown: bool| {
                report.comparison.items.iter().filter(move |item| {
                    planes.contains(&item.plane) && (item.verdict == CompareResult::NotCompared) == unknown
                })
            };
            let line = |item: &foreign::ComparedItem| DiffLine {
                mark: item.verdict.mark().to_string(),
                text: format!("{}: {}", item.subject, item.text),
                since_seconds: None,
                hint: None,
                held: false,
            };
            DiffSection {
                what: what.to_owned(),
                mode: "observe".to_owned(),
                count: sum(PlaneCounts::differing),
                lines: of(false).take(max).chain(of(true).take(max)).map(line).collect(),
                problem: String::new(),
                equal: Some(sum(|counts| counts.equal)),
                not_judged: Some(sum(|counts| counts.not_compared)),
            }
        };
        Ok(Diff {
            sections: vec![
                section("routes", &[Plane::Route, Plane::Interface]),
                section("sessions", &[Plane::Session]),
                section("sets", &[Plane::Set]),
                section("rules", &[Plane::Rule]),
            ],
            compared_seconds: Some(report.at.elapsed().as_secs()),
            held_seconds: None,
            lately: None,
            unseen: report.unreadable.iter().map(describe).collect(),
        })
    }
}

/// Starts the task; it ends with the runtime.
pub(super) fn start(io: &tokio::runtime::Handle, observer: Arc<Observer>) {
    io.spawn(async move {
        let mut problem = String::new();
        loop {
            let pause = match observer.comparison(Duration::ZERO).await {
                Ok(report) => {
                    problem.clear();
                    INTERVAL.max(report.duration * MAX_TIME_SHARE)
                }
                Err(error) if error.text != NOT_YET => {
                    if problem != error.text {
                        tracing::warn!(target: "tortie", "nothing is compared: {}", error.text);
                        problem = error.text;
                    }
                    INTERVAL
                }
                Err(_) => STARTUP_RETRY,
            };
            tokio::time::sleep(pause).await;
        }
    });
}

impl AffinityCache {
    async fn refresh(&mut self, store: &dyn Store, age: Duration) {
        if self.at.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        self.at = Some(Instant::now());
        match Affinities::read(store).await {
            Ok(all) => (self.affinities, self.problem) = (Some(Arc::new(all)), None),
            // What was read before may be old, and an old claim would be called a missing route.
            Err(error) => (self.affinities, self.problem) = (None, Some(error.to_string())),
        }
    }
}

/// The intent of this host that is compared; `None`: nothing was read yet.
fn comparison_intent(core: &CoreView<'_>, affinities: Option<&Affinities>) -> Option<HostIntent> {
    if !core.running() {
        return None;
    }
    let intent = Arc::clone(core.intent()?);
    let (ruleset, globals, rules) = match core.enforcement().policy() {
        Some(policy) => (Ruleset::clone(&policy.ruleset), Arc::clone(&policy.globals), true),
        None => (Ruleset::default(), Arc::new(Globals::of(core.model())), false),
    };
    Some(HostIntent { rules, ..HostIntent::of(core.model(), intent, ruleset, globals, affinities) })
}

async fn compare(wanted: HostIntent, found: &Arc<ForeignState>) -> Result<Comparison, ApiError> {
    let found = Arc::clone(found);
    let work = move || foreign::compare(&wanted, &found);
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())
}

fn describe(unseen: &Unreadable) -> String {
    format!("{}: {}", unseen.what, unseen.why)
}

/// The names of RFC 4271 for what BIRD calls its states.
fn state(info: &str) -> &'static str {
    match info.split_whitespace().next().unwrap_or_default() {
        "Established" => "Established",
        "OpenSent" => "OpenSent",
        "OpenConfirm" => "OpenConfirm",
        "Connect" => "Connect",
        "Active" | "Passive" => "Active",
        _ => "Idle",
    }
}

fn sessions(found: &ForeignState) -> BTreeMap<String, (bool, &'static str)> {
    let all = found.birds.iter().flat_map(foreign::Bird::sessions);
    all.map(|session| (session.name.clone(), (session.is_established(), state(&session.info)))).collect()
}

fn birds(found: &ForeignState) -> Vec<String> {
    let one = |bird: &foreign::Bird| {
        let (up, all) =
            bird.sessions().fold((0, 0), |(up, all), s| (up + usize::from(s.is_established()), all + 1));
        format!(
            "BIRD {} at {}: {up} of {all} sessions up, {} routes",
            bird.version,
            bird.socket,
            bird.routes.len()
        )
    };
    found.birds.iter().map(one).collect()
}

fn felix(found: &ForeignState) -> Vec<String> {
    let one = |table: &foreign::FelixTable| {
        let family = if table.v4 { "IPv4" } else { "IPv6" };
        let rules: usize = table.chains.values().map(Vec::len).sum();
        let chains = table.chains.len();
        format!("{} {} {family}: {chains} chains, {rules} rules", table.backend.tool(true), table.name)
    };
    let mut all: Vec<String> = found.felix.tables.iter().map(one).collect();
    if !found.felix.sets.is_empty() {
        all.push(format!("ipset: {} sets", found.felix.sets.len()));
    }
    all
}

impl ComparisonReport {
    /// For `status`.
    pub(super) fn status(&self) -> ObserveStatus {
        let plane = |plane: Plane| {
            let counts = self.comparison.counts(plane);
            ObservedPlane {
                plane: plane.as_str().to_owned(),
                equal: counts.equal,
                different: counts.different,
                missing: counts.missing,
                extra: counts.extra,
                not_judged: counts.not_compared,
            }
        };
        ObserveStatus {
            bird: self.bird_states.clone(),
            felix: self.felix_states.clone(),
            planes: Plane::ALL.into_iter().map(plane).collect(),
            unseen: self.unreadable.iter().map(describe).collect(),
            compared_seconds: self.at.elapsed().as_secs(),
        }
    }

    /// How long ago it was made.
    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// How many items of these kinds differ, with the first in words.
    fn drift(&self, planes: &[Plane]) -> Drift {
        let count = planes.iter().map(|plane| self.comparison.counts(*plane).differing()).sum();
        let of = |item: &&foreign::ComparedItem| {
            planes.contains(&item.plane) && item.verdict != CompareResult::NotCompared
        };
        let first = self.comparison.items.iter().filter(of).take(DIFFERENCES_LISTED);
        Drift { count, first: first.map(|item| format!("{}: {}", item.subject, item.text)).collect() }
    }

    /// The kernel as others keep it, in the place of our own table, which is empty.
    pub(super) fn replace_kernel(&self, kernel: &mut KernelSnapshot) {
        let routes = [Plane::Route, Plane::Interface];
        kernel.drift = self.drift(&routes);
        kernel.rules_drift = self.drift(&[Plane::Rule, Plane::Set]).count;
        kernel.counts.installed = routes.iter().map(|plane| self.comparison.counts(*plane).equal).sum();
        (kernel.counts.pending, kernel.counts.failed, kernel.counts.withheld) = (0, 0, 0);
        kernel.withheld.clear();
        kernel.compared = Some(self.age());
        kernel.tunnel = None;
        // Our own table, which is not in the kernel.
        kernel.rules = None;
    }

    /// The sessions that BIRD has, in the place of our own; those that BIRD does not have are left out.
    pub(super) fn replace_sessions(&self, facts: &mut CoreSnapshot) {
        facts.peers.retain(|name, peer| {
            let Some((up, state)) = self.sessions.get(name) else { return false };
            (peer.up, peer.state) = (*up, state);
            peer.error = (!up).then(|| "as BIRD says".to_owned());
            true
        });
        facts.tunnel_problem = None;
        facts.failed_endpoints.clear();
        facts.unreachable.clear();
    }

    /// The verdict in a word and in a sentence.
    pub(super) fn verdict(&self) -> (&'static str, String) {
        let total = self.comparison.total();
        let unknown = match total.not_compared {
            0 => String::new(),
            n => format!(", {n} not judged"),
        };
        match total.differing() {
            0 => ("ready", format!("observes: {} items equal, none differs{unknown}", total.equal)),
            n => ("degraded", format!("observes: {n} items differ, {} equal{unknown}", total.equal)),
        }
    }

    /// How many sessions differ, with the first in words.
    pub(super) fn session_drift(&self) -> Drift {
        self.drift(&[Plane::Session])
    }
}
