//! Processes of both kinds on one etcd: the program as users run it, and Calico's order of single writes.
//! Each is killed at a random moment or at one of its requests, and the caller starts it again. At the end no
//! address was given twice, each allocated one has its holder or is collected, and no unknown member is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tortie_store::{Op, Store, StoreOptions, Txn};

use super::client::Calico;
use super::history::{History, answered};
use super::memory::held;
use super::relay::{Cut, Relay};
use super::{affinity_key, block_key, handle_key, object};
use crate::common::calico3;
use crate::common::command::{command, stdout};
use crate::common::etcd::{Cluster, Security};

const CHILD: &str = "TORTIE_TEST_CALICO_CHILD";
const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// Host of the endpoints that hold addresses at the end: none of the checks reads its kernel.
const ELSEWHERE: &str = "h0";

/// Returns the first blocks of a pool that no other test has on an interface.
fn blocks(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("10.211.77.{}/30", n * 4)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ours,
    Theirs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Assign,
    Release,
    GiveUp,
}

const KINDS: [Kind; 2] = [Kind::Ours, Kind::Theirs];
const WORKS: [Work; 3] = [Work::Assign, Work::Release, Work::GiveUp];

/// One work of Calico's kind. Does nothing unless [`Test::process`] started it: `URL HOST BLOCKS WORK
/// SUBJECT`.
#[tokio::test]
async fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [url, host, count, work, subject] = task.split(' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let store =
        tortie_store::open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await.unwrap();
    let calico = Calico::on(store, host, blocks(count.parse().unwrap()));
    match work {
        "assign" => match calico.assign(subject).await {
            Some(addr) => println!("got {addr}/32"),
            None => println!("full"),
        },
        "release" => calico.release(subject).await,
        _ => calico.give_up(subject).await,
    }
}

/// How a process ended.
enum Ended {
    Killed,
    /// By itself, with its output.
    Itself(bool, String),
}

/// What happened to the processes.
#[derive(Default)]
struct Counts {
    /// Number of requests of each process that succeeded without a cut.
    lengths: BTreeMap<(Kind, Work), Vec<u32>>,
    /// Cuts at which processes were killed.
    cuts: BTreeMap<(Kind, Work), BTreeSet<Cut>>,
    at_random: u32,
    at_a_step: u32,
    ended: u32,
    /// Processes that failed, by the end of their output.
    failed: BTreeMap<String, u32>,
}

impl Counts {
    /// Returns the cuts that are left: before and after each request that one in four processes makes.
    fn left(&self, kind: Kind, work: Work) -> Option<Vec<Cut>> {
        let mut lengths = self.lengths.get(&(kind, work)).filter(|lengths| lengths.len() >= 3)?.clone();
        lengths.sort_unstable();
        let most = lengths[lengths.len() * 3 / 4];
        let done = self.cuts.get(&(kind, work));
        let all = (1..=most).flat_map(|n| [Cut::Before(n), Cut::After(n)]);
        Some(all.filter(|cut| done.is_none_or(|done| !done.contains(cut))).collect())
    }

    /// Each request of each work of both kinds was the last one of a process.
    fn is_complete(&self) -> bool {
        let pairs = KINDS.into_iter().flat_map(|kind| WORKS.map(|work| (kind, work)));
        pairs.into_iter().all(|(kind, work)| self.left(kind, work).is_some_and(|left| left.is_empty()))
    }

    /// Both kinds allocated and released, and processes were killed at several places.
    fn is_varied(&self) -> bool {
        let places: usize = self.cuts.values().map(BTreeSet::len).sum();
        let pairs = KINDS.into_iter().flat_map(|kind| [(kind, Work::Assign), (kind, Work::Release)]);
        places >= 20 && self.at_random >= 5 && pairs.into_iter().all(|pair| self.lengths.contains_key(&pair))
    }
}

/// Allocations as the callers know them.
#[derive(Default)]
struct Truth {
    /// Addresses with their handles, from the answer of the allocation until the first attempt to release.
    held: BTreeMap<String, String>,
    /// Handles of allocations that were killed or failed without an answer.
    unknown: BTreeSet<String>,
}

struct Test {
    etcd: u16,
    store: Arc<dyn Store>,
    blocks: Vec<String>,
    truth: Mutex<Truth>,
    counts: Mutex<Counts>,
    /// Returns true if the test has seen enough.
    is_enough: fn(&Counts) -> bool,
}

impl Test {
    /// Returns the place of the next cut, and the time after which the process is killed wherever it is.
    fn plan(&self, kind: Kind, work: Work) -> (Cut, Option<Duration>) {
        let mut random = rand::rng();
        let counts = self.counts.lock().unwrap();
        let Some(left) = counts.left(kind, work) else { return (Cut::Nowhere, None) };
        match random.random_range(0..10) {
            0..4 => (Cut::Nowhere, None),
            4..6 => (Cut::Nowhere, Some(Duration::from_millis(random.random_range(0..300)))),
            _ => match left.choose(&mut random) {
                Some(cut) => (*cut, None),
                None => {
                    let n = random.random_range(1..12);
                    (if random.random_bool(0.5) { Cut::Before(n) } else { Cut::After(n) }, None)
                }
            },
        }
    }

    fn command(&self, url: &str, kind: Kind, work: Work, host: &str, subject: &str) -> Command {
        if kind == Kind::Ours {
            let words: &[&str] = match work {
                Work::Assign => &["assign", "--handle", subject],
                Work::Release => &["release", "--handle", subject],
                Work::GiveUp => &["unclaim", subject],
            };
            return command(&[&["--datastore", url, "--node", host, "ipam"], words].concat());
        }
        let work = match work {
            Work::Assign => "assign",
            Work::Release => "release",
            Work::GiveUp => "give-up",
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "calico3::processes::child", "--nocapture", "--test-threads", "1"]);
        command.env(CHILD, format!("{url} {host} {} {work} {subject}", self.blocks.len()));
        command
    }

    /// Runs a process to its end or to its death.
    async fn process(
        &self,
        (kind, work): (Kind, Work),
        host: &str,
        subject: &str,
        plan: (Cut, Option<Duration>),
    ) -> Ended {
        let (cut, fuse) = plan;
        let relay = Relay::start(self.etcd, cut).await;
        let mut command =
            tokio::process::Command::from(self.command(&relay.url(), kind, work, host, subject));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let by_itself = tokio::select! {
            status = child.wait() => Some(status.unwrap()),
            () = relay.reached() => None,
            () = tokio::time::sleep(fuse.unwrap_or(Duration::MAX)) => None,
        };
        let Some(status) = by_itself else {
            child.kill().await.unwrap();
            let mut counts = self.counts.lock().unwrap();
            if fuse.is_some() {
                counts.at_random += 1;
            } else {
                counts.at_a_step += 1;
                counts.cuts.entry((kind, work)).or_default().insert(cut);
            }
            return Ended::Killed;
        };
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        child.stderr.take().unwrap().read_to_string(&mut text).await.unwrap();
        let mut counts = self.counts.lock().unwrap();
        counts.ended += 1;
        if status.success() && cut == Cut::Nowhere {
            counts.lengths.entry((kind, work)).or_default().push(relay.requests());
        }
        Ended::Itself(status.success(), text)
    }

    fn note_failure(&self, text: &str) {
        let end = text.trim().lines().last().unwrap_or_default().to_owned();
        *self.counts.lock().unwrap().failed.entry(end).or_default() += 1;
    }

    /// Lets a process allocate an address. `None` if there is no answer, or no address.
    async fn assign(
        &self,
        kind: Kind,
        host: &str,
        handle: &str,
        plan: (Cut, Option<Duration>),
    ) -> Option<String> {
        let ended = self.process((kind, Work::Assign), host, handle, plan).await;
        let Ended::Itself(success, text) = ended else {
            self.truth.lock().unwrap().unknown.insert(handle.to_owned());
            return None;
        };
        let given = text.lines().find_map(|line| line.trim_end().strip_suffix("/32"));
        if let Some(addr) = given.and_then(|line| line.split_whitespace().last()).filter(|_| success) {
            let other = self.truth.lock().unwrap().held.insert(addr.to_owned(), handle.to_owned());
            assert_eq!(other, None, "{addr} was given to {handle} too");
            return Some(addr.to_owned());
        }
        // Full, or more conflicts than a client accepts: nothing was written. Another failure proves nothing.
        let is_full = text.contains("free in") || (success && text.contains("full"));
        if !is_full {
            self.note_failure(&text);
            self.truth.lock().unwrap().unknown.insert(handle.to_owned());
        }
        None
    }

    /// Lets processes release a handle, one after the other until one has not been killed.
    async fn release(&self, kind: Kind, host: &str, handle: &str) {
        for attempt in 0..20 {
            let plan = if attempt < 10 { self.plan(kind, Work::Release) } else { (Cut::Nowhere, None) };
            match self.process((kind, Work::Release), host, handle, plan).await {
                Ended::Itself(true, _) => return,
                Ended::Itself(false, text) if text.contains("nothing is allocated to the handle") => return,
                Ended::Itself(false, text) => self.note_failure(&text),
                Ended::Killed => {}
            }
        }
        panic!("{handle} could not be released in 20 attempts");
    }

    /// Returns all allocated addresses with their handles.
    async fn allocated(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let prefixes = ["/calico/ipam/v2/assignment/".to_owned()];
        let listed = answered(|| self.store.list(&prefixes)).await;
        for entry in listed.entries {
            let block: Value = serde_json::from_slice(&entry.value).unwrap();
            let cidr: tortie_net::Cidr = block["cidr"].as_str().unwrap().parse().unwrap();
            for (ordinal, attribute) in held(&block) {
                let addr = cidr.nth(ordinal as u128).unwrap().to_string();
                all.insert(addr, attribute["handle_id"].as_str().unwrap().to_owned());
            }
        }
        all
    }

    /// Returns a block to which a host has an affinity.
    async fn block_of(&self, host: &str) -> Option<String> {
        let prefixes = [format!("/calico/ipam/v2/host/{host}/")];
        let keys = answered(|| self.store.names(&prefixes)).await;
        let own = self.blocks.iter().filter(|block| keys.contains(&affinity_key(host, block)));
        own.collect::<Vec<_>>().choose(&mut rand::rng()).map(|block| (*block).clone())
    }

    /// One caller: it allocates and releases, and now and then gives up a block.
    async fn caller(self: Arc<Self>, number: usize, end: Instant, last: Instant) {
        let host = HOSTS[number % HOSTS.len()];
        let kind = KINDS[(number / HOSTS.len()) % 2];
        for round in 0.. {
            let is_over = Instant::now() >= end && (self.is_enough)(&self.counts.lock().unwrap());
            if is_over || Instant::now() >= last {
                break;
            }
            let handle = format!("mixed.{number}-{round}");
            let given = self.assign(kind, host, &handle, self.plan(kind, Work::Assign)).await;
            if let Some(addr) = &given {
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..20))).await;
                assert_eq!(self.allocated().await.get(addr), Some(&handle), "{addr} was lost");
                self.truth.lock().unwrap().held.remove(addr);
            }
            // One in four callers whose allocation was killed does not come back.
            if given.is_some() || rand::random_bool(0.75) {
                let releases = KINDS[rand::random_range(0..2)];
                self.release(releases, host, &handle).await;
            }
            if round % 2 == 1
                && let Some(block) = self.block_of(host).await
            {
                let plan = self.plan(kind, Work::GiveUp);
                self.process((kind, Work::GiveUp), host, &block, plan).await;
            }
        }
        // Most callers have an address at the end.
        let handle = format!("mixed.{number}-last");
        self.assign(kind, host, &handle, (Cut::Nowhere, None)).await;
    }

    async fn put(&self, key: &str, value: &str) {
        let op = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
        self.store.commit(Txn { compare: vec![], ops: vec![op] }).await.unwrap();
    }

    /// Writes a cluster with one pool. The first two blocks have an address that is in use and members that
    /// nobody knows; the third one is empty.
    async fn seed(&self) {
        let (key, value) =
            object("clusterinformations", "default", json!({}), json!({"datastoreReady": true}));
        self.put(&key, &value.to_string()).await;
        for host in HOSTS.iter().chain([&ELSEWHERE]) {
            let (key, value) = object("nodes", host, json!({}), json!({}));
            self.put(&key, &value.to_string()).await;
        }
        let length = 30 - self.blocks.len().ilog2();
        let spec = json!({"cidr": format!("10.211.77.0/{length}"), "blockSize": 30});
        let (key, value) = object("ippools", "mixed", json!({}), spec);
        self.put(&key, &value.to_string()).await;
        for (n, block) in self.blocks.iter().take(3).enumerate() {
            let (host, handle, is_used) = (HOSTS[n], format!("old.{n}"), n < 2);
            let attribute = json!({"handle_id": handle, "secondary": {"node": host}, "later": [n]});
            let value = json!({
                "cidr": block, "affinity": format!("host:{host}"), "affinity_claim_time": "2020-01-01T00:00:00Z",
                "allocations": if is_used { json!([null, 0, null, null]) } else { json!([null, null, null, null]) },
                "unallocated": if is_used { json!([0, 2, 3]) } else { json!([0, 1, 2, 3]) },
                "attributes": if is_used { json!([attribute]) } else { json!([]) },
                "deleted": false, "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "later": {"n": n},
            });
            self.put(&block_key(block), &value.to_string()).await;
            let affinity = json!({"state": "confirmed", "deleted": false, "later": "x"});
            self.put(&affinity_key(host, block), &affinity.to_string()).await;
            if is_used {
                let counts = json!({"block": {block: 1}, "deleted": false, "later": 5});
                self.put(&handle_key(&handle), &counts.to_string()).await;
                let cidr: tortie_net::Cidr = block.parse().unwrap();
                let addr = cidr.nth(1).unwrap().to_string();
                self.truth.lock().unwrap().held.insert(addr, handle);
            }
        }
    }

    fn run(&self, words: &[&str]) -> std::process::Output {
        let url = format!("etcd://127.0.0.1:{}", self.etcd);
        command(&[&["--datastore", &url], words].concat()).output().unwrap()
    }

    /// Returns kind and subject of the findings of `tortie ipam check` on a host.
    fn check(&self, host: &str) -> BTreeSet<(String, String)> {
        let output = self.run(&["--node", host, "ipam", "check", "-o", "json"]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(report["blind"], json!([]), "{report:#}");
        let word = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
        let findings = report["findings"].as_array().unwrap();
        findings.iter().map(|finding| (word(finding, "kind"), word(finding, "subject"))).collect()
    }

    /// Checks the store after the last process, lets the program collect what is left behind, and releases
    /// all.
    async fn settle(&self) {
        let truth = std::mem::take(&mut *self.truth.lock().unwrap());
        let all = self.allocated().await;
        for (addr, handle) in &truth.held {
            assert_eq!(all.get(addr), Some(handle), "{addr} was lost");
        }
        let left: BTreeSet<String> = all
            .iter()
            .filter(|(addr, _)| !truth.held.contains_key(*addr))
            .map(|(addr, handle)| {
                assert!(truth.unknown.contains(handle), "{addr} of {handle} was released");
                addr.clone()
            })
            .collect();
        let mut endpoints = Vec::new();
        for (n, addr) in truth.held.keys().enumerate() {
            let spec = json!({"orchestrator": "cni", "node": ELSEWHERE, "containerID": format!("c{n}"),
                              "endpoint": "eth0", "interfaceName": format!("calimix{n}"), "ipNetworks": [format!("{addr}/32")]});
            let name = format!("default/{ELSEWHERE}-cni-c{n}-eth0");
            let value = calico3::object("WorkloadEndpoint", &name, &spec);
            let key = calico3::key("WorkloadEndpoint", &name);
            self.put(&key, &value).await;
            endpoints.push(key);
        }

        let mut found = BTreeSet::new();
        for host in HOSTS {
            let findings = self.check(host);
            println!("{host}: {findings:?}");
            let repaired = self.run(&["--node", host, "ipam", "release", "--from-check"]);
            assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", stdout(&repaired));
            found.extend(findings);
        }
        let subjects = |wanted: &str| -> BTreeSet<String> {
            found.iter().filter(|(kind, _)| kind == wanted).map(|(_, subject)| subject.clone()).collect()
        };
        assert_eq!(subjects("leaked"), left, "the check names what was left behind, and nothing else");
        let known = ["leaked", "unproven", "ownerless", "handle", "affinity"];
        assert!(found.iter().all(|(kind, _)| known.contains(&kind.as_str())), "{found:?}");
        for host in HOSTS {
            assert_eq!(self.check(host), BTreeSet::new(), "{host}, after the repair");
        }
        assert_eq!(self.allocated().await, truth.held, "what is in use stays, the rest is collected");
        for (n, block) in self.blocks.iter().take(2).enumerate() {
            let value: Value =
                serde_json::from_slice(&self.store.get(&block_key(block)).await.unwrap().unwrap().value)
                    .unwrap();
            assert_eq!(value["later"], json!({"n": n}), "{value}");
            assert_eq!(held(&value)[&1]["later"], json!([n]), "{value}");
        }

        let delete = endpoints.into_iter().map(|key| Op::Delete { key }).collect();
        self.store.commit(Txn { compare: vec![], ops: delete }).await.unwrap();
        for (n, handle) in truth.held.values().enumerate() {
            let kind = if n % 2 == 0 { Kind::Ours } else { Kind::Theirs };
            let ended = self.process((kind, Work::Release), HOSTS[0], handle, (Cut::Nowhere, None)).await;
            assert!(matches!(ended, Ended::Itself(true, _)), "{handle}");
        }
        assert_eq!(self.allocated().await, BTreeMap::new());
        let handles = self.store.list(&["/calico/ipam/v2/handle/".to_owned()]).await.unwrap();
        assert_eq!(handles.entries, []);
    }
}

/// Runs callers until `least` is over and the test has seen enough.
async fn both_kinds(callers: usize, count: usize, least: Duration, is_enough: fn(&Counts) -> bool) {
    const MOST: Duration = Duration::from_secs(600);
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let store = tortie_store::open(&cluster.options()).await.unwrap();
    let test = Arc::new(Test {
        etcd: cluster.members[0].client,
        store: Arc::clone(&store),
        blocks: blocks(count),
        truth: Mutex::default(),
        counts: Mutex::default(),
        is_enough,
    });
    test.seed().await;
    let history = History::follow(store).await;
    let begin = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..callers {
        running.spawn(Arc::clone(&test).caller(number, begin + least, begin + MOST));
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    let took = begin.elapsed();
    let changes = history.end().await;
    {
        let counts = test.counts.lock().unwrap();
        let truth = test.truth.lock().unwrap();
        println!(
            "{callers} callers, {took:.0?}: {} processes ended, {} were killed at a request, {} at a random time; \
             {} changes of IPAM keys, {} of blocks with unknown members; {} addresses in use, {} allocations without an answer",
            counts.ended,
            counts.at_a_step,
            counts.at_random,
            changes.all,
            changes.of_unknown,
            truth.held.len(),
            truth.unknown.len()
        );
        for ((kind, work), lengths) in &counts.lengths {
            let (mut lengths, cuts) = (lengths.clone(), counts.cuts.get(&(*kind, *work)));
            lengths.sort_unstable();
            println!(
                "{kind:?} {work:?}: {} succeeded, in {} to {} requests; killed at {} places, {} are left",
                lengths.len(),
                lengths[0],
                lengths[lengths.len() * 3 / 4],
                cuts.map_or(0, BTreeSet::len),
                counts.left(*kind, *work).map_or(0, |left| left.len())
            );
        }
        println!("failed: {:?}", counts.failed);
        assert!(is_enough(&counts) && changes.of_unknown >= 5);
    }
    test.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_both_kinds_that_are_killed_share_a_pool() {
    both_kinds(8, 4, Duration::from_secs(6), Counts::is_varied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "long: minutes of 64 processes"]
async fn long_sixty_four_processes_of_both_kinds_that_are_killed_at_each_step_share_a_pool() {
    both_kinds(64, 16, Duration::from_secs(120), Counts::is_complete).await;
}
