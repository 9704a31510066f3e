//! IPAM garbage collector: releases leaked addresses of this host when `IpamLeakGracePeriodSecs` is set.
//!
//! Makes two passes per grace period over this host's blocks and kernel only, since 5,000 agents must not
//! read each other's blocks. Without a grace period it makes a pass every five minutes and only reports
//! candidates in `status`. An address is released by compare-and-set, if every pass of a whole grace period
//! found it leaked with the same handle and attributes, and only together with all other addresses of its
//! handle. Only addresses with this host's name in the attribute `node` are collected; others are left to
//! `tortie ipam check` and an operator.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;

use super::evidence::evidence;
use super::life_cycle::{Context, Controller, ControllerHandle, Report, Wake};
use crate::agent::core::input::Input;
use crate::agent::core::observed_state::GcPass;
use tortie_engine::ipam::check::{Finding, IpamState, Kind, Repair, RepairOutcome, findings};
use tortie_engine::ipam::{Ipam, IpamError, Keyspace};
use tortie_kernel::Namespaces;
use tortie_store::Store;

/// Minimum interval of passes.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
/// Interval of passes in report-only mode.
const INTERVAL_IDLE: Duration = Duration::from_secs(300);
/// Delay of the first pass after the start, and until a new candidate is checked again: a plugin writes the
/// endpoint within this time after its address.
const RECHECK_DELAY: Duration = Duration::from_secs(5);

/// Mode of the garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::agent) enum GcMode {
    /// Disabled, as long as the store's content is incomplete.
    #[default]
    Off,
    /// Report leaked addresses only.
    ReportOnly,
    /// Release addresses that were leaked for this time.
    Release(Duration),
}

/// Finds leaked addresses of this host and releases them after the grace period.
pub(in crate::agent) struct IpamGc {
    store: Arc<dyn Store>,
    node: String,
    namespaces: Namespaces,
    report: Report,
}

impl IpamGc {
    pub(super) fn new(store: Arc<dyn Store>, node: &str, namespaces: Namespaces, report: Report) -> Self {
        Self { store, node: node.to_owned(), namespaces, report }
    }
}

impl Controller for IpamGc {
    type Desired = GcMode;
    const WRITES: bool = true;

    fn desired(context: &Context<'_>) -> Option<GcMode> {
        let core = context.core;
        if !core.running() || core.frozen().is_some() || core.runs_from_cache() {
            return Some(GcMode::Off);
        }
        Some(match core.model().settings().ipam_leak_grace_period {
            Duration::ZERO => GcMode::ReportOnly,
            grace => GcMode::Release(grace),
        })
    }

    async fn run(self, mut handle: ControllerHandle<GcMode>) {
        let ipam = Ipam::new(Arc::clone(&self.store));
        let mut candidates = LeakCandidates::default();
        let mut reported = GcPass::default();
        let mut last: Option<Instant> = None;
        loop {
            // Spreads the passes of hosts that started at the same time.
            let about = |time: Duration| time.mul_f64(rand::random_range(0.8..1.0));
            let (grace, sleep) = match handle.desired() {
                GcMode::Release(grace) => (Some(grace), about(grace / 2).max(INTERVAL_MIN)),
                GcMode::ReportOnly if last.is_none() || candidates.has_new(RECHECK_DELAY) => {
                    (None, RECHECK_DELAY)
                }
                GcMode::ReportOnly => (None, about(INTERVAL_IDLE)),
                GcMode::Off => {
                    candidates = LeakCandidates::default();
                    (None, Duration::MAX)
                }
            };
            match handle.wait(pause(sleep)).await {
                Wake::Stopped => return,
                // A changed setting restarts the interval.
                Wake::Changed => continue,
                Wake::Due => {}
            }
            last = Some(Instant::now());
            let host = (&*self.node, &self.namespaces);
            let pass = match run_pass(&*self.store, &ipam, host, &mut candidates, grace).await {
                Ok(pass) => pass,
                Err(error) => {
                    let leak_candidates = candidates.0.keys().copied().collect();
                    GcPass { error: Some(error.to_string()), leak_candidates, ..GcPass::default() }
                }
            };
            if pass != reported || !pass.released.is_empty() {
                reported = pass.clone();
                (self.report)(Input::IpamGc(pass));
            }
        }
    }
}

async fn pause(time: Duration) {
    if time == Duration::MAX { std::future::pending().await } else { tokio::time::sleep(time).await }
}

async fn run_pass(
    store: &dyn Store,
    ipam: &Ipam,
    host: (&str, &Namespaces),
    candidates: &mut LeakCandidates,
    grace: Option<Duration>,
) -> Result<GcPass, IpamError> {
    let Leaks { leaked, whole, unread } = find_leaks(store, ipam, host).await?;
    let due = candidates.update(leaked, &whole, Instant::now(), grace.unwrap_or(Duration::MAX));
    let mut pass = GcPass { error: unread, ..GcPass::default() };
    if !due.is_empty() {
        let outcomes = ipam.release_from_check(&due).await?;
        for (finding, outcome) in due.iter().zip(outcomes) {
            let Some(Repair::Release { addr, handle, .. }) = &finding.fix else { continue };
            candidates.0.remove(addr);
            match outcome {
                RepairOutcome::Done => {
                    let handle = handle.as_deref().unwrap_or("none");
                    pass.released.push((*addr, format!("handle {handle}: {}", finding.evidence)));
                }
                // The address is in use again; a later pass decides anew.
                RepairOutcome::Changed | RepairOutcome::NeedsPerson => {}
                RepairOutcome::Failed(why) => pass.error = Some(why),
            }
        }
    }
    pass.leak_candidates = match grace {
        Some(_) => candidates.0.keys().copied().collect(),
        None => candidates.older_than(RECHECK_DELAY / 2),
    };
    Ok(pass)
}

/// Result of one pass.
struct Leaks {
    /// Leaked addresses of this host.
    leaked: Vec<Finding>,
    /// All addresses of each handle that has a leaked one.
    whole: BTreeMap<String, Vec<IpAddr>>,
    /// Reason why the kernel could not be read; then no address counts as leaked.
    unread: Option<String>,
}

async fn find_leaks(
    store: &dyn Store,
    ipam: &Ipam,
    (node, namespaces): (&str, &Namespaces),
) -> Result<Leaks, IpamError> {
    let (host, namespaces) = (node.to_owned(), namespaces.clone());
    let evidence = tokio::task::spawn_blocking(move || evidence(&host, &namespaces)).await;
    let evidence = evidence.unwrap_or_else(|error| tortie_engine::ipam::check::Evidence {
        blind: vec![error.to_string()],
        ..Default::default()
    });
    let space = Keyspace::of(store.dialect().await?);
    let affinities = store.list(&[prefix::affinities_of(node)]).await?;
    let keys = IpamState::prefixes_of(&space, node);
    let block = |kv: &tortie_store::KeyValue| match Key::parse(&kv.key) {
        Ok(Key::Affinity { block, .. }) => Some(block),
        _ => None,
    };
    let mut blocks: Vec<Cidr> = affinities.entries.iter().filter_map(block).collect();
    let mut whole = BTreeMap::new();
    loop {
        let own = |finding: &Finding| {
            finding.kind == Kind::Leaked
                && matches!(&finding.fix, Some(Repair::Release { attributes, .. })
                    if attributes.get("node").and_then(Value::as_str) == Some(node))
        };
        let mut all = keys.clone();
        all.extend(blocks.iter().map(|block| Key::Block(*block).to_string()));
        let state = IpamState::of(&space, &store.list(&all).await?);
        let mut leaked = findings(&state, &evidence);
        leaked.retain(own);
        // A handle may have addresses in other hosts' blocks: those are checked as well.
        let before = blocks.len();
        for finding in &leaked {
            let Some(Repair::Release { handle: Some(handle), .. }) = &finding.fix else { continue };
            if whole.contains_key(handle) {
                continue;
            }
            let held = ipam.allocated_to(handle).await?;
            for addr in held.iter().filter(|addr| state.block_of(**addr).is_none()) {
                if let Some(held) = ipam.lookup(*addr).await? {
                    blocks.push(held.block);
                }
            }
            whole.insert(handle.clone(), held);
        }
        blocks.sort_unstable();
        blocks.dedup();
        if blocks.len() == before {
            let unread = evidence.interfaces.is_none().then(|| evidence.blind.join("; "));
            return Ok(Leaks { leaked, whole, unread: unread.filter(|why| !why.is_empty()) });
        }
    }
}

/// Leak candidates with their repair and the time of the first pass that found them.
#[derive(Debug, Default)]
struct LeakCandidates(BTreeMap<IpAddr, (Repair, Instant)>);

impl LeakCandidates {
    /// True if a candidate is younger than `age`, so that a second pass should follow soon.
    fn has_new(&self, age: Duration) -> bool {
        self.0.values().any(|(_, since)| since.elapsed() < age)
    }

    /// Returns the candidates that are at least this old, found by more than one pass.
    fn older_than(&self, age: Duration) -> Vec<IpAddr> {
        self.0.iter().filter(|(_, (_, since))| since.elapsed() >= age).map(|(addr, _)| *addr).collect()
    }

    /// Merges the findings of one pass; returns the addresses found leaked by every pass of a grace period.
    /// `whole` has all addresses of each handle.
    fn update(
        &mut self,
        leaked: Vec<Finding>,
        whole: &BTreeMap<String, Vec<IpAddr>>,
        now: Instant,
        grace: Duration,
    ) -> Vec<Finding> {
        let mut seen: BTreeMap<IpAddr, Finding> = BTreeMap::new();
        for finding in leaked {
            if let Some(Repair::Release { addr, .. }) = &finding.fix {
                seen.insert(*addr, finding);
            }
        }
        self.0.retain(|addr, _| seen.contains_key(addr));
        for (addr, finding) in &seen {
            let Some(fix) = &finding.fix else { continue };
            let earlier = self.0.get(addr).filter(|(repair, _)| is_same_repair(repair, fix));
            let since = earlier.map_or(now, |(_, since)| *since);
            self.0.insert(*addr, (fix.clone(), since));
        }
        let ripe = |addr: &IpAddr| {
            self.0.get(addr).is_some_and(|(_, since)| now.saturating_duration_since(*since) >= grace)
        };
        let due = |finding: &Finding| match &finding.fix {
            Some(Repair::Release { handle: Some(handle), addr, .. }) => {
                ripe(addr) && whole.get(handle).is_some_and(|all| all.iter().all(ripe))
            }
            Some(Repair::Release { addr, .. }) => ripe(addr),
            _ => false,
        };
        seen.into_values().filter(due).collect()
    }
}

/// True if both repairs concern the same allocation, and not a later one of the same address.
fn is_same_repair(a: &Repair, b: &Repair) -> bool {
    match (a, b) {
        (
            Repair::Release { addr, handle, attributes, sequence, .. },
            Repair::Release {
                addr: addr_b, handle: handle_b, attributes: attributes_b, sequence: seq_b, ..
            },
        ) => addr == addr_b && handle == handle_b && attributes == attributes_b && sequence == seq_b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn leaked(addr: &str, handle: Option<&str>, stamp: &str) -> Finding {
        let attributes = serde_json::json!({ "node": "h1", "timestamp": stamp });
        Finding {
            kind: Kind::Leaked,
            subject: addr.to_owned(),
            evidence: String::new(),
            fix: Some(Repair::Release {
                addr: addr.parse().unwrap(),
                block: "10.0.0.0/26".parse().unwrap(),
                handle: handle.map(str::to_owned),
                attributes: attributes.as_object().unwrap().clone(),
                revision: 7,
                sequence: None,
            }),
        }
    }

    fn subjects(due: &[Finding]) -> Vec<&str> {
        due.iter().map(|finding| &*finding.subject).collect()
    }

    #[test]
    fn nothing_is_due_before_the_grace_time_and_a_second_look() {
        let (mut suspects, start) = (LeakCandidates::default(), Instant::now());
        let whole = BTreeMap::from([("c1".to_owned(), vec!["10.0.0.1".parse().unwrap()])]);
        let mut look = |after: u64, found: Vec<Finding>| {
            let due = suspects.update(found, &whole, start + Duration::from_secs(after), GRACE);
            subjects(&due).iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()
        };
        let found = || vec![leaked("10.0.0.1", Some("c1"), "a")];
        assert!(look(0, found()).is_empty());
        assert!(look(30, found()).is_empty());
        // In use during one pass: the grace period starts again.
        assert!(look(45, vec![]).is_empty());
        assert!(look(60, found()).is_empty());
        assert!(look(110, found()).is_empty());
        assert_eq!(look(120, found()), ["10.0.0.1"]);
        // Allocated again in the meantime: another allocation.
        assert!(look(121, vec![leaked("10.0.0.1", Some("c1"), "b")]).is_empty());
        assert!(look(180, vec![leaked("10.0.0.1", Some("c1"), "b")]).is_empty());
        assert_eq!(look(181, vec![leaked("10.0.0.1", Some("c1"), "b")]), ["10.0.0.1"]);
    }

    #[test]
    fn a_handle_goes_whole_or_not_at_all() {
        let (mut suspects, start) = (LeakCandidates::default(), Instant::now());
        let two: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let whole = BTreeMap::from([("c1".to_owned(), two)]);
        let one = leaked("10.0.0.1", Some("c1"), "a");
        let other = leaked("10.0.0.2", Some("c1"), "a");
        let bare = leaked("10.0.0.3", None, "a");
        suspects.update(vec![one.clone(), bare.clone()], &whole, start, GRACE);
        // The second address of the handle is in use.
        let due = suspects.update(vec![one.clone(), bare.clone()], &whole, start + GRACE, GRACE);
        assert_eq!(subjects(&due), ["10.0.0.3"]);
        // It leaked later: both wait for its grace period.
        let due = suspects.update(vec![one.clone(), other.clone()], &whole, start + GRACE, GRACE);
        assert!(due.is_empty());
        let due = suspects.update(vec![one, other], &whole, start + 2 * GRACE, GRACE);
        assert_eq!(subjects(&due), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn a_handle_of_which_nothing_is_known_stays() {
        let (mut suspects, start) = (LeakCandidates::default(), Instant::now());
        let found = || vec![leaked("10.0.0.1", Some("c1"), "a")];
        suspects.update(found(), &BTreeMap::new(), start, GRACE);
        assert!(suspects.update(found(), &BTreeMap::new(), start + GRACE, GRACE).is_empty());
    }
}
