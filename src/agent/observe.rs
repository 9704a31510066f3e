//! Observe mode: reads the state that BIRD and Felix have in the kernel and compares it with the intent,
//! every 30 s and on request. Writes nothing.
//!
//! ```text
//!   store --affinities of all hosts, rarely-+
//!                                           v
//!   core --model, intent, rules------> HostIntent --+
//!                                                   +-> compare -> ComparisonReport -> status, diff, metrics
//!   BIRD, kernel, iptables, ipset -> ForeignState --+
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
use tortie_config::counted;
use tortie_engine::policy::{Globals, Ruleset};
use tortie_kernel::Drift;
use tortie_store::Store;

/// Minimum pause between two comparisons.
const INTERVAL: Duration = Duration::from_secs(30);
/// Upper bound of the time spent on comparisons: one part in this many.
const MAX_TIME_SHARE: u32 = 20;
/// Retry interval until the store and the kernel were read for the first time.
const STARTUP_RETRY: Duration = Duration::from_millis(200);
/// Maximum age of a comparison that answers a request.
const CACHE_TTL: Duration = Duration::from_secs(2);
/// Maximum age of the affinities of other hosts. They are not watched: 5,000 agents must not read each
/// other's all the time.
const AFFINITIES_TTL: Duration = Duration::from_secs(600);
/// Maximum age of the affinities while routes differ, since a claimed or released block may explain the
/// difference.
const AFFINITIES_TTL_ON_DIFFERENCE: Duration = Duration::from_secs(60);
/// Error text before the first comparison.
const NOT_YET: &str = "the store and the kernel have not been read yet";
/// Number of differences that `status` shows.
const DIFFERENCES_LISTED: usize = 5;

/// Compares the kernel state of other daemons with the intent, and caches the last result.
pub(super) struct Observer {
    handle: Arc<Handle>,
    store: Arc<dyn Store>,
    sockets: Vec<PathBuf>,
    /// Route protocol numbers that count as managed: BIRD's and Tortie's.
    own_protocols: [u8; 2],
    last: ArcSwapOption<ComparisonReport>,
    /// Locked during a comparison, so that only one runs at a time.
    affinity_cache: tokio::sync::Mutex<AffinityCache>,
}

/// Cached affinities of all hosts, as read from the store.
#[derive(Default)]
struct AffinityCache {
    affinities: Option<Arc<Affinities>>,
    at: Option<Instant>,
    problem: Option<String>,
}

/// A comparison with the state that it was computed from.
#[derive(Debug)]
pub(super) struct ComparisonReport {
    pub(super) comparison: Comparison,
    at: Instant,
    duration: Duration,
    unreadable: Vec<Unreadable>,
    /// BIRD's BGP sessions by name: established or not, and the name of the state.
    sessions: BTreeMap<String, (bool, &'static str)>,
    bird_states: Vec<String>,
    felix_states: Vec<String>,
}

impl Observer {
    /// Creates an observer. `sockets` are BIRD's control sockets; empty: the paths that Calico and Debian
    /// use.
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

    /// Returns the last comparison; `None` before the first one.
    pub(super) fn last(&self) -> Option<Arc<ComparisonReport>> {
        self.last.load_full()
    }

    /// Returns the last comparison if it is at most this old, else makes a new one.
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

    /// Answers `diff`, with a comparison of at most 2 s of age.
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

/// Starts the periodic comparison on the I/O runtime; the task ends with the runtime.
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
            // Affinities read earlier may be outdated, and an old claim would be reported as a missing route.
            Err(error) => (self.affinities, self.problem) = (None, Some(error.to_string())),
        }
    }
}

/// Collects the part of this host's intent that is compared; `None` before the store was read.
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

/// Maps a state name of BIRD to the name in RFC 4271.
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
            "BIRD {} at {}: {up} of {all} sessions up, {}",
            bird.version,
            bird.socket,
            counted(bird.routes.len(), "route")
        )
    };
    found.birds.iter().map(one).collect()
}

fn felix(found: &ForeignState) -> Vec<String> {
    let one = |table: &foreign::FelixTable| {
        let family = if table.v4 { "IPv4" } else { "IPv6" };
        let rules: usize = table.chains.values().map(Vec::len).sum();
        let chains = table.chains.len();
        format!(
            "{} {} {family}: {}, {}",
            table.backend.tool(true),
            table.name,
            counted(chains, "chain"),
            counted(rules, "rule")
        )
    };
    let mut all: Vec<String> = found.felix.tables.iter().map(one).collect();
    if !found.felix.sets.is_empty() {
        all.push(format!("ipset: {}", counted(found.felix.sets.len(), "set")));
    }
    all
}

impl ComparisonReport {
    /// Returns the section of `status` about observe mode.
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

    /// Returns the age of the comparison.
    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Counts the differences in these planes and describes the first five.
    fn drift(&self, planes: &[Plane]) -> Drift {
        let count = planes.iter().map(|plane| self.comparison.counts(*plane).differing()).sum();
        let of = |item: &&foreign::ComparedItem| {
            planes.contains(&item.plane) && item.verdict != CompareResult::NotCompared
        };
        let first = self.comparison.items.iter().filter(of).take(DIFFERENCES_LISTED);
        Drift { count, first: first.map(|item| format!("{}: {}", item.subject, item.text)).collect() }
    }

    /// Replaces the kernel counts of `status`: in observe mode Tortie's own table is empty, other daemons
    /// program the kernel.
    pub(super) fn replace_kernel(&self, kernel: &mut KernelSnapshot) {
        let routes = [Plane::Route, Plane::Interface];
        kernel.drift = self.drift(&routes);
        kernel.rules_drift = self.drift(&[Plane::Rule, Plane::Set]).count;
        kernel.counts.installed = routes.iter().map(|plane| self.comparison.counts(*plane).equal).sum();
        (kernel.counts.pending, kernel.counts.failed, kernel.counts.withheld) = (0, 0, 0);
        kernel.withheld.clear();
        kernel.compared = Some(self.age());
        kernel.tunnel = None;
        // The rules of Tortie's own table, which is not in the kernel.
        kernel.rules = None;
    }

    /// Replaces the session states of `status` by those of BIRD, and removes the sessions that BIRD does not
    /// have.
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

    /// Returns the overall verdict as a word and as a sentence.
    pub(super) fn verdict(&self) -> (&'static str, String) {
        let total = self.comparison.total();
        let unknown = match total.not_compared {
            0 => String::new(),
            n => format!(", {n} not judged"),
        };
        match total.differing() {
            0 => {
                ("ready", format!("observes: {} equal, none differs{unknown}", counted(total.equal, "item")))
            }
            n => (
                "degraded",
                format!("observes: {}, {} equal{unknown}", counted(n, "different item"), total.equal),
            ),
        }
    }

    /// Counts the sessions that differ and describes the first five.
    pub(super) fn session_drift(&self) -> Drift {
        self.drift(&[Plane::Session])
    }
}
