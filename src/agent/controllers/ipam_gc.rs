//! The collector: releases addresses of this host that nobody has any more, when `IpamLeakGracePeriodSecs` is set.
//!
//! It looks twice in each grace time, at the own blocks and at this host's kernel only: 5,000 agents must not read each
//! other's blocks. Without a grace time it only looks, each five minutes, and `status` names what it suspects. An address is released when every look of a whole grace time called it leaked, with the same handle and
//! attributes, all addresses of its handle with it or none, and by compare-and-set. Only what carries this host's name
//! (`node`) is collected; the rest is for `tortie ipam check` and a person.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tortie_config::key::{Key, prefix};
use tortie_net::Cidr;

use super::evidence::evidence;
use crate::agent::controllers::Keeper;
use crate::agent::core::Core;
use crate::agent::core::recorder::Plane;
use tortie_engine::ipam::check::{Finding, Fix, Kind, Mended, Picture, findings};
use tortie_engine::ipam::{Ipam, IpamError, Space};
use tortie_engine::routing::ChangeId;
use tortie_store::Store;

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(500);
/// Between two looks where nothing is to be collected.
const AT_REST: Duration = Duration::from_secs(300);
/// After the start, and before a first suspicion is looked at again: a plugin writes the endpoint within that after its
/// address.
const AGAIN: Duration = Duration::from_secs(5);

/// What the collector is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::agent) enum Collects {
    /// Nothing, as long as the store's picture is not whole.
    #[default]
    Nothing,
    /// Tell what it suspects.
    Suspects,
    /// Release what was leaked for this long.
    Leaked(Duration),
}

/// What a turn brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::agent) struct Looked {
    /// Addresses that are leaked as far as is known, and not released yet.
    pub(in crate::agent) suspects: Vec<IpAddr>,
    /// Released in this turn, with what is to be said of each.
    pub(in crate::agent) released: Vec<(IpAddr, String)>,
    /// Why the turn came to nothing.
    pub(in crate::agent) error: Option<String>,
}

/// What the collector has done since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::agent) struct Collected {
    /// Leaked now, and not released yet.
    pub(in crate::agent) suspects: Vec<IpAddr>,
    /// Released in all.
    pub(in crate::agent) released: u64,
    /// Why the last look came to nothing.
    pub(in crate::agent) error: Option<String>,
}

impl Core {
    /// Keeps and records what a look brought.
    pub(in crate::agent) fn collected(&mut self, looked: Looked) {
        for (addr, why) in &looked.released {
            let text = format!("released, nobody had it for the grace time: {why}");
            self.say(ChangeId::default(), Plane::Agent, '-', &addr.to_string(), &text);
        }
        if let Some(error) =
            looked.error.as_ref().filter(|error| self.collected.error.as_ref() != Some(*error))
        {
            self.say(ChangeId::default(), Plane::Agent, '!', "address collector", error);
        }
        self.collected.suspects = looked.suspects;
        self.collected.released += u64::try_from(looked.released.len()).unwrap_or(u64::MAX);
        self.collected.error = looked.error;
    }

    /// What is to be collected now.
    pub(in crate::agent) fn collects(&self) -> Collects {
        if !self.running() || self.frozen.is_some() || self.link.from_cache {
            return Collects::Nothing;
        }
        match self.model.settings().ipam_leak_grace_period {
            Duration::ZERO => Collects::Suspects,
            grace => Collects::Leaked(grace),
        }
    }
}

/// The task that collects.
#[derive(Debug)]
pub(in crate::agent) struct Collector(Keeper<Collects>);

impl Collector {
    /// Starts the task; an agent that only observes releases nothing.
    pub(in crate::agent) fn start(
        io: &tokio::runtime::Handle,
        store: Arc<dyn Store>,
        node: &str,
        writes: bool,
        tell: impl Fn(Looked) + Send + 'static,
    ) -> Self {
        let node = node.to_owned();
        Self(Keeper::start(io, writes, |seen, ended| collect(store, node, seen, ended, tell)))
    }

    pub(in crate::agent) fn tell(&self, collects: Collects) {
        self.0.tell(collects, |old, new| old != new);
    }

    /// Ends the task.
    pub(in crate::agent) async fn stop(&mut self) {
        self.0.stop().await;
    }
}

async fn collect(
    store: Arc<dyn Store>,
    node: String,
    mut seen: watch::Receiver<Collects>,
    mut ended: oneshot::Receiver<()>,
    tell: impl Fn(Looked),
) {
    let ipam = Ipam::new(Arc::clone(&store));
    let mut suspects = Suspects::default();
    let mut told = Looked::default();
    let mut last: Option<Instant> = None;
    loop {
        let collects = *seen.borrow_and_update();
        // Hosts that started together do not look together.
        let about = |time: Duration| time.mul_f64(rand::random_range(0.8..1.0));
        let (grace, sleep) = match collects {
            Collects::Leaked(grace) => (Some(grace), about(grace / 2).max(SHORTEST)),
            Collects::Suspects if last.is_none() || suspects.has_new(AGAIN) => (None, AGAIN),
            Collects::Suspects => (None, about(AT_REST)),
            Collects::Nothing => {
                suspects = Suspects::default();
                (None, Duration::MAX)
            }
        };
        tokio::select! {
            _ = &mut ended => return,
            () = pause(sleep) => {}
            // A setting that changed starts its time anew.
            changed = seen.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
        }
        last = Some(Instant::now());
        let looked = match turn(&*store, &ipam, &node, &mut suspects, grace).await {
            Ok(looked) => looked,
            Err(error) => {
                let suspects = suspects.0.keys().copied().collect();
                Looked { error: Some(error.to_string()), suspects, ..Looked::default() }
            }
        };
        if looked != told || !looked.released.is_empty() {
            told = looked.clone();
            tell(looked);
        }
    }
}

async fn pause(time: Duration) {
    if time == Duration::MAX { std::future::pending().await } else { tokio::time::sleep(time).await }
}

async fn turn(
    store: &dyn Store,
    ipam: &Ipam,
    node: &str,
    suspects: &mut Suspects,
    grace: Option<Duration>,
) -> Result<Looked, IpamError> {
    let (leaked, whole) = look(store, ipam, node).await?;
    let due = suspects.look(leaked, &whole, Instant::now(), grace.unwrap_or(Duration::MAX));
    let mut looked = Looked::default();
    if !due.is_empty() {
        let mended = ipam.release_from_check(&due).await?;
        for (finding, mended) in due.iter().zip(mended) {
            let Some(Fix::Release { addr, handle, .. }) = &finding.fix else { continue };
            suspects.0.remove(addr);
            match mended {
                Mended::Done => {
                    let handle = handle.as_deref().unwrap_or("none");
                    looked.released.push((*addr, format!("handle {handle}: {}", finding.evidence)));
                }
                // Somebody has it again: it is looked at anew.
                Mended::Changed | Mended::ByHand => {}
                Mended::Failed(why) => looked.error = Some(why),
            }
        }
    }
    looked.suspects = match grace {
        Some(_) => suspects.0.keys().copied().collect(),
        None => suspects.older_than(AGAIN / 2),
    };
    Ok(looked)
}

/// Leaked addresses of this host, and for each handle among them every address that it has.
async fn look(
    store: &dyn Store,
    ipam: &Ipam,
    node: &str,
) -> Result<(Vec<Finding>, BTreeMap<String, Vec<IpAddr>>), IpamError> {
    let host = node.to_owned();
    let evidence = tokio::task::spawn_blocking(move || evidence(&host)).await.unwrap_or_else(|error| {
        tortie_engine::ipam::check::Evidence { blind: vec![error.to_string()], ..Default::default() }
    });
    let affinities = store.list(&[prefix::affinities_of(node)]).await?;
    let keys = Picture::prefixes_of(node);
    let block = |kv: &tortie_store::KeyValue| match Key::parse(&kv.key) {
        Ok(Key::Affinity { block, .. }) => Some(block),
        _ => None,
    };
    let mut blocks: Vec<Cidr> = affinities.entries.iter().filter_map(block).collect();
    let mut whole = BTreeMap::new();
    loop {
        let own = |finding: &Finding| {
            finding.kind == Kind::Leaked
                && matches!(&finding.fix, Some(Fix::Release { attributes, .. })
                    if attributes.get("node").and_then(Value::as_str) == Some(node))
        };
        let mut all = keys.clone();
        all.extend(blocks.iter().map(|block| Key::Block(*block).to_string()));
        let picture = Picture::of(&Space::Global, &store.list(&all).await?);
        let mut leaked = findings(&picture, &evidence);
        leaked.retain(own);
        // What a handle has in others' blocks counts, too: once more, with those.
        let before = blocks.len();
        for finding in &leaked {
            let Some(Fix::Release { handle: Some(handle), .. }) = &finding.fix else { continue };
            if whole.contains_key(handle) {
                continue;
            }
            let held = ipam.held_by(handle).await?;
            for addr in held.iter().filter(|addr| picture.block_of(**addr).is_none()) {
                if let Some(held) = ipam.lookup(*addr).await? {
                    blocks.push(held.block);
                }
            }
            whole.insert(handle.clone(), held);
        }
        blocks.sort_unstable();
        blocks.dedup();
        if blocks.len() == before {
            return Ok((leaked, whole));
        }
    }
}

/// What was called leaked, and since when.
#[derive(Debug, Default)]
struct Suspects(BTreeMap<IpAddr, (Fix, Instant)>);

impl Suspects {
    /// Some were not looked at again for this long.
    fn has_new(&self, age: Duration) -> bool {
        self.0.values().any(|(_, since)| since.elapsed() < age)
    }

    /// Those that more than one look showed.
    fn older_than(&self, age: Duration) -> Vec<IpAddr> {
        self.0.iter().filter(|(_, (_, since))| since.elapsed() >= age).map(|(addr, _)| *addr).collect()
    }

    /// Takes one look in; gives what was leaked in each look of a whole grace time. `whole`: all addresses of a handle.
    fn look(
        &mut self,
        leaked: Vec<Finding>,
        whole: &BTreeMap<String, Vec<IpAddr>>,
        now: Instant,
        grace: Duration,
    ) -> Vec<Finding> {
        let mut seen: BTreeMap<IpAddr, Finding> = BTreeMap::new();
        for finding in leaked {
            if let Some(Fix::Release { addr, .. }) = &finding.fix {
                seen.insert(*addr, finding);
            }
        }
        self.0.retain(|addr, _| seen.contains_key(addr));
        for (addr, finding) in &seen {
            let Some(fix) = &finding.fix else { continue };
            let known = self.0.get(addr).filter(|(known, _)| same(known, fix));
            let since = known.map_or(now, |(_, since)| *since);
            self.0.insert(*addr, (fix.clone(), since));
        }
        let ripe = |addr: &IpAddr| {
            self.0.get(addr).is_some_and(|(_, since)| now.saturating_duration_since(*since) >= grace)
        };
        let due = |finding: &Finding| match &finding.fix {
            Some(Fix::Release { handle: Some(handle), addr, .. }) => {
                ripe(addr) && whole.get(handle).is_some_and(|all| all.iter().all(ripe))
            }
            Some(Fix::Release { addr, .. }) => ripe(addr),
            _ => false,
        };
        seen.into_values().filter(due).collect()
    }
}

/// The same allocation: not one that came after it.
fn same(a: &Fix, b: &Fix) -> bool {
    match (a, b) {
        (
            Fix::Release { addr, handle, attributes, .. },
            Fix::Release { addr: addr_b, handle: handle_b, attributes: attributes_b, .. },
        ) => addr == addr_b && handle == handle_b && attributes == attributes_b,
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
            fix: Some(Fix::Release {
                addr: addr.parse().unwrap(),
                block: "10.0.0.0/26".parse().unwrap(),
                handle: handle.map(str::to_owned),
                attributes: attributes.as_object().unwrap().clone(),
                revision: 7,
            }),
        }
    }

    fn subjects(due: &[Finding]) -> Vec<&str> {
        due.iter().map(|finding| &*finding.subject).collect()
    }

    #[test]
    fn nothing_is_due_before_the_grace_time_and_a_second_look() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let whole = BTreeMap::from([("c1".to_owned(), vec!["10.0.0.1".parse().unwrap()])]);
        let mut look = |after: u64, found: Vec<Finding>| {
            let due = suspects.look(found, &whole, start + Duration::from_secs(after), GRACE);
            subjects(&due).iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()
        };
        let found = || vec![leaked("10.0.0.1", Some("c1"), "a")];
        assert!(look(0, found()).is_empty());
        assert!(look(30, found()).is_empty());
        // In use for one look: its time begins anew.
        assert!(look(45, vec![]).is_empty());
        assert!(look(60, found()).is_empty());
        assert!(look(110, found()).is_empty());
        assert_eq!(look(120, found()), ["10.0.0.1"]);
        // Given out again in the meantime: another allocation.
        assert!(look(121, vec![leaked("10.0.0.1", Some("c1"), "b")]).is_empty());
        assert!(look(180, vec![leaked("10.0.0.1", Some("c1"), "b")]).is_empty());
        assert_eq!(look(181, vec![leaked("10.0.0.1", Some("c1"), "b")]), ["10.0.0.1"]);
    }

    #[test]
    fn a_handle_goes_whole_or_not_at_all() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let two: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let whole = BTreeMap::from([("c1".to_owned(), two)]);
        let one = leaked("10.0.0.1", Some("c1"), "a");
        let other = leaked("10.0.0.2", Some("c1"), "a");
        let bare = leaked("10.0.0.3", None, "a");
        suspects.look(vec![one.clone(), bare.clone()], &whole, start, GRACE);
        // The second address of the handle is in use.
        let due = suspects.look(vec![one.clone(), bare.clone()], &whole, start + GRACE, GRACE);
        assert_eq!(subjects(&due), ["10.0.0.3"]);
        // It leaked later: both wait for its time.
        let due = suspects.look(vec![one.clone(), other.clone()], &whole, start + GRACE, GRACE);
        assert!(due.is_empty());
        let due = suspects.look(vec![one, other], &whole, start + 2 * GRACE, GRACE);
        assert_eq!(subjects(&due), ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn a_handle_of_which_nothing_is_known_stays() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        let found = || vec![leaked("10.0.0.1", Some("c1"), "a")];
        suspects.look(found(), &BTreeMap::new(), start, GRACE);
        assert!(suspects.look(found(), &BTreeMap::new(), start + GRACE, GRACE).is_empty());
    }
}
