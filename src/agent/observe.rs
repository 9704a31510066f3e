//! An agent that observes: the look at what BIRD and Felix have in the kernel, and its judgement, each half minute and when
//! somebody asks. It writes nothing, anywhere.
//!
//! ```text
//!   store --affinities of all hosts, rarely--+
//!   core --model, intent, rules--> Wanted <--+
//!   BIRD's socket, kernel, iptables, ipset --> Found      judge --> Judged --> status, diff, metrics
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use super::core::Core;
use crate::agent::api::endpoints::CoreQuestion;
use crate::agent::api::status::{CoreFacts, KernelFacts};
use crate::agent::handle::{Ask, Live, busy};
use crate::api::observe::{BesidePlane, BesideStatus};
use crate::api::policy::{Diff, DiffLine, DiffSection};
use crate::api::status::ApiError;
use crate::foreign::{
    self, Affinities, BIRD, CompareResult, Comparison, ForeignState, HostIntent, Plane, PlaneCounts,
    Unreadable, bird,
};
use tortie_engine::policy::{Globals, Ruleset};
use tortie_kernel::Drift;
use tortie_store::Store;

/// Between two looks, at least.
const EVERY: Duration = Duration::from_secs(30);
/// Looking takes at most this part of the time.
const SHARE: u32 = 20;
/// Until the store and the kernel were read for the first time.
const SOON: Duration = Duration::from_millis(200);
/// Who asks gets a judgement of at most this age.
const FRESH: Duration = Duration::from_secs(2);
/// How old the affinities of other hosts may be: nobody watches them, 5,000 agents must not read each other's all the time.
const AFFINITIES: Duration = Duration::from_secs(600);
/// And when routes differ, which a block that came or went explains.
const AFFINITIES_DOUBTED: Duration = Duration::from_secs(60);
/// Said until then.
const NOT_YET: &str = "the store and the kernel have not been read yet";
/// Differences that `status` names.
const NAMED: usize = 5;

/// The observer.
pub(super) struct Beside {
    sockets: Vec<PathBuf>,
    /// Route protocols that would be ours: BIRD's, and our own.
    ours: [u8; 2],
    last: ArcSwapOption<Judged>,
    /// One look at a time.
    turn: tokio::sync::Mutex<Read>,
}

/// What was read of the store.
#[derive(Default)]
struct Read {
    affinities: Option<Arc<Affinities>>,
    at: Option<Instant>,
    trouble: Option<String>,
}

/// A judgement and what it was made from.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) judgement: Comparison,
    at: Instant,
    took: Duration,
    unseen: Vec<Unreadable>,
    /// BIRD's BGP sessions by name: whether they are up, and the state's name.
    sessions: BTreeMap<String, (bool, &'static str)>,
    birds: Vec<String>,
    felix: Vec<String>,
}

impl Beside {
    /// `sockets`: BIRD's; none: where Calico and Debian have them.
    pub(super) fn new(sockets: &[PathBuf], protocol: u8) -> Self {
        Self {
            sockets: bird::sockets(sockets),
            ours: [BIRD, protocol],
            last: ArcSwapOption::empty(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The last judgement; `None`: nothing was judged yet.
    pub(super) fn last(&self) -> Option<Arc<Judged>> {
        self.last.load_full()
    }
}

/// Starts the task; it ends with the runtime.
pub(super) fn start(io: &tokio::runtime::Handle, live: Arc<Live>) {
    io.spawn(async move {
        let mut trouble = String::new();
        loop {
            let pause = match live.judged(Duration::ZERO).await {
                Ok(judged) => {
                    trouble.clear();
                    EVERY.max(judged.took * SHARE)
                }
                Err(error) if error.text != NOT_YET => {
                    if trouble != error.text {
                        tracing::warn!(target: "tortie", "nothing is compared: {}", error.text);
                        trouble = error.text;
                    }
                    EVERY
                }
                Err(_) => SOON,
            };
            tokio::time::sleep(pause).await;
        }
    });
}

impl Read {
    async fn refresh(&mut self, store: &dyn Store, age: Duration) {
        if self.at.is_some_and(|at| at.elapsed() < age) {
            return;
        }
        self.at = Some(Instant::now());
        match Affinities::read(store).await {
            Ok(all) => (self.affinities, self.trouble) = (Some(Arc::new(all)), None),
            // What was read before may be old, and an old claim would be called a missing route.
            Err(error) => (self.affinities, self.trouble) = (None, Some(error.to_string())),
        }
    }
}

impl Core {
    /// What this host should have; `None`: nothing was read yet.
    fn wanted(&self, affinities: Option<&Affinities>) -> Option<HostIntent> {
        if !self.running() {
            return None;
        }
        let intent = Arc::clone(self.intent.as_ref()?);
        let (ruleset, globals, rules) = match self.enforcement.policy() {
            Some(policy) => (policy.ruleset.clone(), Arc::clone(&policy.globals), true),
            None => (Ruleset::default(), Arc::new(Globals::of(&self.model)), false),
        };
        Some(HostIntent { rules, ..HostIntent::of(&self.model, intent, ruleset, globals, affinities) })
    }
}

impl Live {
    /// A judgement of at most this age.
    pub(super) async fn judged(&self, age: Duration) -> Result<Arc<Judged>, ApiError> {
        let Some(beside) = &self.beside else { return Err(busy("this agent does not observe")) };
        let mut read = beside.turn.lock().await;
        if let Some(last) = beside.last().filter(|last| last.at.elapsed() <= age) {
            return Ok(last);
        }
        let begin = Instant::now();
        read.refresh(&*self.store, AFFINITIES).await;
        let mut wanted = self.wanted(read.affinities.clone()).await?;
        let (sockets, ours) = (beside.sockets.clone(), beside.ours);
        let found = tokio::task::spawn_blocking(move || foreign::look(&sockets, &ours)).await;
        let found = found.map_err(|_| busy("the agent is stopping"))?;
        let found = Arc::new(found.map_err(|error| busy(&format!("the kernel cannot be read: {error}")))?);
        let mut judgement = judge(wanted, &found).await?;
        if judgement.counts(Plane::Route).differing() > 0 {
            let before = read.at;
            read.refresh(&*self.store, AFFINITIES_DOUBTED).await;
            if read.at != before {
                wanted = self.wanted(read.affinities.clone()).await?;
                judgement = judge(wanted, &found).await?;
            }
        }
        let mut unseen = found.unreadable.clone();
        unseen.extend(
            read.trouble.clone().map(|why| Unreadable { what: "affinities of other hosts".to_owned(), why }),
        );
        let judged = Arc::new(Judged {
            judgement,
            at: Instant::now(),
            took: begin.elapsed(),
            unseen,
            sessions: sessions(&found),
            birds: birds(&found),
            felix: felix(&found),
        });
        beside.last.store(Some(Arc::clone(&judged)));
        Ok(judged)
    }

    async fn wanted(&self, affinities: Option<Arc<Affinities>>) -> Result<HostIntent, ApiError> {
        let wanted = self
            .ask(move |answer| {
                Ask::Core(CoreQuestion(Box::new(move |core| {
                    let _ = answer.send(core.wanted(affinities.as_deref()));
                })))
            })
            .await?;
        wanted.ok_or_else(|| busy(NOT_YET))
    }

    /// The answer to `diff`, made now.
    pub(super) async fn observed_differences(&self, max: usize) -> Result<Diff, ApiError> {
        let judged = self.judged(FRESH).await?;
        let section = |what: &str, planes: &[Plane]| {
            let sum = |of: fn(&PlaneCounts) -> usize| -> usize {
                planes.iter().map(|plane| of(&judged.judgement.counts(*plane))).sum()
            };
            let of = |unknown: bool| {
                judged.judgement.items.iter().filter(move |item| {
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
                trouble: String::new(),
                equal: Some(sum(|tally| tally.equal)),
                not_judged: Some(sum(|tally| tally.not_compared)),
            }
        };
        Ok(Diff {
            sections: vec![
                section("routes", &[Plane::Route, Plane::Interface]),
                section("sessions", &[Plane::Session]),
                section("sets", &[Plane::Set]),
                section("rules", &[Plane::Rule]),
            ],
            compared_seconds: Some(judged.at.elapsed().as_secs()),
            held_seconds: None,
            lately: None,
            unseen: judged.unseen.iter().map(words).collect(),
        })
    }
}

async fn judge(wanted: HostIntent, found: &Arc<ForeignState>) -> Result<Comparison, ApiError> {
    let found = Arc::clone(found);
    let work = move || foreign::compare(&wanted, &found);
    tokio::task::spawn_blocking(work).await.map_err(|_| busy("the agent is stopping"))
}

fn words(unseen: &Unreadable) -> String {
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

impl Judged {
    /// For `status`.
    pub(super) fn status(&self) -> BesideStatus {
        let plane = |plane: Plane| {
            let tally = self.judgement.counts(plane);
            BesidePlane {
                plane: plane.as_str().to_owned(),
                equal: tally.equal,
                different: tally.different,
                missing: tally.missing,
                extra: tally.extra,
                not_judged: tally.not_compared,
            }
        };
        BesideStatus {
            bird: self.birds.clone(),
            felix: self.felix.clone(),
            planes: Plane::ALL.into_iter().map(plane).collect(),
            unseen: self.unseen.iter().map(words).collect(),
            compared_seconds: self.at.elapsed().as_secs(),
        }
    }

    /// How long ago it was made.
    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// How many items of these kinds differ, with the first in words.
    fn drift(&self, planes: &[Plane]) -> Drift {
        let count = planes.iter().map(|plane| self.judgement.counts(*plane).differing()).sum();
        let of = |item: &&foreign::ComparedItem| {
            planes.contains(&item.plane) && item.verdict != CompareResult::NotCompared
        };
        let first = self.judgement.items.iter().filter(of).take(NAMED);
        Drift { count, first: first.map(|item| format!("{}: {}", item.subject, item.text)).collect() }
    }

    /// The kernel as others keep it, in the place of our own table, which is empty.
    pub(super) fn replace_kernel(&self, kernel: &mut KernelFacts) {
        let routes = [Plane::Route, Plane::Interface];
        kernel.drift = self.drift(&routes);
        kernel.rules_drift = self.drift(&[Plane::Rule, Plane::Set]).count;
        kernel.counts.installed = routes.iter().map(|plane| self.judgement.counts(*plane).equal).sum();
        (kernel.counts.pending, kernel.counts.failed, kernel.counts.withheld) = (0, 0, 0);
        kernel.withheld.clear();
        kernel.compared = Some(self.age());
        kernel.tunnel = None;
        // Our own table, which is not in the kernel.
        kernel.rules = None;
    }

    /// The sessions that BIRD has, in the place of our own; what nobody tells of is left out.
    pub(super) fn replace_sessions(&self, facts: &mut CoreFacts) {
        facts.peers.retain(|name, peer| {
            let Some((up, state)) = self.sessions.get(name) else { return false };
            (peer.up, peer.state) = (*up, state);
            peer.error = (!up).then(|| "as BIRD says".to_owned());
            true
        });
        facts.tunnel_trouble = None;
        facts.failed_endpoints.clear();
        facts.unreachable.clear();
    }

    /// The verdict in a word and in a sentence.
    pub(super) fn verdict(&self) -> (&'static str, String) {
        let total = self.judgement.total();
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
