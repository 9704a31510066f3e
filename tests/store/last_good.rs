//! An unreadable value leaves the last good one in use, and a restart of the agent does not change that.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cases::{PATIENCE, Shared, delete, put, write};
use tokio::runtime::Handle;
use tortie_config::{Key, Resource};
use tortie_engine::model::{Model, WatchPart};
use tortie_engine::policy::{Engine, Ruleset};
use tortie_store::sqlite::SqliteStore;
use tortie_store::{Cache, Feed, FeedEvent, FeedOptions};

/// One key of every kind that an agent follows, each with different values.
const KINDS: &[(&str, [&str; 2])] = &[
    ("v1/config/InterfacePrefix", ["cali", "tap"]),
    ("v1/config/DefaultEndpointToHostAction", ["RETURN", "DROP"]),
    ("v1/config/IpInIpMtu", ["1440", "1400"]),
    ("v1/host/h1/config/LogSeverityFile", ["none", "info"]),
    ("v1/host/h1/config/IpInIpTunnelAddr", ["10.0.9.1", "10.0.9.2"]),
    ("v1/host/h2/bird_ip", ["192.0.2.2", "192.0.2.3"]),
    (
        "v1/host/h1/workload/cni/w1/endpoint/eth0",
        [
            r#"{"state":"active","name":"cali1","profile_ids":["p"],"labels":{"role":"web"},"ipv4_nets":["10.0.1.1/32"]}"#,
            r#"{"state":"active","name":"cali1","profile_ids":["q"],"labels":{},"ipv4_nets":["10.0.1.2/32"]}"#,
        ],
    ),
    (
        "v1/host/h1/endpoint/eth1",
        [
            r#"{"name":"eth1","expected_ipv4_addrs":["192.0.2.1"],"profile_ids":["p"],"labels":{"role":"web"}}"#,
            r#"{"name":"eth2","expected_ipv4_addrs":["192.0.2.1"],"profile_ids":[],"labels":{}}"#,
        ],
    ),
    (
        "v1/policy/profile/p/rules",
        [
            r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
            r#"{"inbound_rules":[],"outbound_rules":[{"action":"allow"}]}"#,
        ],
    ),
    ("v1/policy/profile/p/tags", [r#"["web"]"#, r#"["db"]"#]),
    ("v1/policy/profile/p/labels", [r#"{"zone":"a"}"#, r#"{"zone":"b"}"#]),
    ("v1/policy/tier/default/metadata", [r#"{"order":100}"#, r#"{"order":1}"#]),
    (
        "v1/policy/tier/default/policy/deny",
        [
            r#"{"selector":"has(web)","order":10,"inbound_rules":[{"action":"deny"}],"outbound_rules":[]}"#,
            r#"{"selector":"all()","order":20,"inbound_rules":[{"action":"deny","src_tag":"db"}],"outbound_rules":[]}"#,
        ],
    ),
    (
        "v1/ipam/v4/pool/10.0.0.0-16",
        [r#"{"cidr":"10.0.0.0/16"}"#, r#"{"cidr":"10.0.0.0/16","masquerade":true}"#],
    ),
    ("v1/ipam/v6/pool/fd00::-48", [r#"{"cidr":"fd00::/48"}"#, r#"{"cidr":"fd00::/48","disabled":true}"#]),
    (
        "ipam/v2/config",
        [r#"{"strict_affinity":false,"auto_allocate_blocks":true}"#, r#"{"strict_affinity":true}"#],
    ),
    ("ipam/v2/host/h1/ipv4/block/10.0.1.0-32", [r#"{"state":"confirmed"}"#, r#"{"state":"pending"}"#]),
    (
        "ipam/v2/assignment/ipv4/block/10.0.1.0-32",
        [
            r#"{"cidr":"10.0.1.0/32","affinity":"host:h1","strictAffinity":false,"allocations":[null],"unallocated":[0],"attributes":[]}"#,
            r#"{"cidr":"10.0.1.0/32","affinity":"host:h2","strictAffinity":false,"allocations":[null],"unallocated":[0],"attributes":[]}"#,
        ],
    ),
    ("bgp/v1/global/as_num", ["64512", "64513"]),
    ("bgp/v1/global/node_mesh", [r#"{"enabled":true}"#, r#"{"enabled":false}"#]),
    ("bgp/v1/global/loglevel", ["info", "debug"]),
    ("bgp/v1/global/listen_port", ["179", "1790"]),
    (
        "bgp/v1/global/peer_v4/192.0.2.99",
        [r#"{"ip":"192.0.2.99","as_num":"65099"}"#, r#"{"ip":"192.0.2.99","as_num":"65098"}"#],
    ),
    ("bgp/v1/global/peer_range/198.51.100.0-24", [r#"{"as_num":"65001"}"#, r#"{"as_num":"65002"}"#]),
    ("bgp/v1/global/filters/f", [r#"{"export":[{"then":"accept"}]}"#, r#"{"import":[{"then":"reject"}]}"#]),
    ("bgp/v1/global/prefix_advertisements/ip_v4", [r#"[{"cidr":"203.0.113.0/24"}]"#, "[]"]),
    ("bgp/v1/host/h1/ip_addr_v4", ["192.0.2.1", "192.0.2.11"]),
    ("bgp/v1/host/h1/network_v4", ["192.0.2.0/24", "192.0.2.0/25"]),
    ("bgp/v1/host/h1/as_num", ["64512", "64514"]),
    ("bgp/v1/host/h1/rr_cluster_id", ["192.0.2.1", "192.0.2.7"]),
    ("bgp/v1/host/h2/ip_addr_v4", ["192.0.2.2", "192.0.2.22"]),
];

const GARBAGE: [&str; 5] = ["{not what it should be", "\u{1}\u{fffd}", "[[[[", "\u{0}", r#"{"order":{}}"#];

fn full(key: &str) -> String {
    format!("/calico/{key}")
}

/// Returns an unreadable value for this key.
fn garbage(key: &str, salt: usize) -> &'static str {
    find_garbage(key, salt).unwrap()
}

fn find_garbage(key: &str, salt: usize) -> Option<&'static str> {
    let parsed = Key::parse(&full(key)).unwrap();
    let unreadable = |value: &&&str| Resource::parse(&parsed, value.as_bytes()).is_err();
    GARBAGE.iter().cycle().skip(salt).take(GARBAGE.len()).find(unreadable).copied()
}

/// Returns the kinds for which unreadable values exist; for some kinds every text is valid.
fn kinds() -> Vec<(&'static str, [&'static str; 2])> {
    let kinds: Vec<_> = KINDS.iter().filter(|(key, _)| find_garbage(key, 0).is_some()).copied().collect();
    assert!(KINDS.len() - kinds.len() <= 3, "of {} kinds {} have garbage", KINDS.len(), kinds.len());
    kinds
}

/// The part of an agent that follows the store: the feed with its cache, and the model.
struct Follower {
    feed: Feed,
    model: Model,
    generation: u64,
}

impl Follower {
    /// Starts like an agent: the cache first, then the store.
    async fn start(store: &Shared, cache: &Path) -> Self {
        let options = FeedOptions {
            prefixes: vec!["/calico/".to_owned()],
            cache: Some(cache.to_owned()),
            ..FeedOptions::default()
        };
        let feed = Feed::start(&Handle::current(), Arc::clone(store), options);
        let mut follower = Self { feed, model: Model::new("h1"), generation: 0 };
        while follower.generation == 0 {
            follower.step().await;
        }
        follower
    }

    async fn step(&mut self) {
        let next = tokio::time::timeout(PATIENCE, self.feed.next());
        match next.await.expect("no event came").expect("the feed has ended") {
            FeedEvent::Cached(cached) => self.model.restore(&cached),
            FeedEvent::Snapshot { snapshot, generation } => {
                self.generation = generation;
                self.model.replace(WatchPart::All, &snapshot);
            }
            FeedEvent::Delta(delta) => _ = self.model.apply(&delta),
            _ => {}
        }
        self.feed.confirm(self.generation, self.model.revision());
    }

    async fn until(&mut self, revision: u64) {
        while self.model.revision() < revision {
            self.step().await;
        }
    }

    /// Returns the model when the agent is killed, once the cache is complete.
    async fn kill(self, cache: &Path) -> Model {
        // Missing good values are written to the file within a second, everything else within ten.
        let until = Instant::now() + PATIENCE;
        loop {
            let cached = Cache::new(cache).load().ok().flatten();
            if cached.is_some_and(|cached| cached.snapshot.revision >= self.model.revision()) {
                return self.model;
            }
            assert!(Instant::now() < until, "the last good values are not on disk");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Returns the enforced rules, and all readable content of the store.
fn verdicts(model: &Model) -> (Ruleset, Vec<String>) {
    let mut ruleset = Ruleset::default();
    Engine::new(model).1.apply(&mut ruleset);
    let mut listed: Vec<String> =
        model.invalid_keys().map(|p| format!("{} {}", p.key, p.last_good)).collect();
    listed.sort();
    (ruleset, listed)
}

/// Writes good values, then unreadable ones over all of them: while the agent runs (at once, so that only the
/// agent has seen the good ones), or while it is stopped. Then the agent is started twice, with other
/// unreadable values in between.
#[tokio::test]
async fn a_restart_changes_no_verdict_whatever_cannot_be_read() {
    let mut kept = 0;
    for (running, round) in [(true, 0), (true, 1), (false, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let store: Shared = Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
        let all = |value: &dyn Fn(&str, &[&'static str; 2]) -> &'static str| {
            kinds().iter().map(|(key, values)| put(&full(key), value(key, values))).collect::<Vec<_>>()
        };
        write(&store, vec![put("/calico/v1/Ready", "true")]).await;
        // The first state is in the file before further changes, which wait for their turn.
        let mut agent = Follower::start(&store, &cache).await;
        let revision = write(&store, all(&|_, values| values[0])).await;
        agent.until(revision).await;
        let revision = write(&store, all(&|_, values| values[round % 2])).await;
        agent.until(revision).await;
        let good = agent.model.clone();
        if running {
            let revision = write(&store, all(&|key, _| garbage(key, round))).await;
            agent.until(revision).await;
        }
        let before = agent.kill(&cache).await;
        if !running {
            write(&store, all(&|key, _| garbage(key, round))).await;
        }
        for restart in 1..=2 {
            let agent = Follower::start(&store, &cache).await;
            if running && restart == 1 {
                assert_eq!(agent.model, before, "round {round}, restart {restart}");
            }
            let (ruleset, listed) = verdicts(&agent.model);
            // A profile with unreadable rules denies.
            let mut expected = verdicts(&good).0;
            let denies = |id: &&tortie_engine::policy::ChainId| id.source.to_string() == "profile p";
            let closed: Vec<_> = expected.chains.keys().filter(denies).cloned().collect();
            for id in closed {
                let chain = ruleset.chains.get(&id).unwrap();
                assert!(chain.fail_closed.is_some(), "{id}");
                expected.chains.insert(id, Arc::clone(chain));
            }
            assert_eq!(ruleset.chains, expected.chains, "round {round}, restart {restart}");
            assert_eq!(ruleset.endpoints, expected.endpoints, "round {round}, restart {restart}");
            let all: Vec<String> = {
                let mut all: Vec<_> = kinds().iter().map(|(key, _)| format!("{} true", full(key))).collect();
                all.sort();
                all
            };
            assert_eq!(listed, all, "round {round}, restart {restart}");
            kept += listed.len();
            agent.kill(&cache).await;
            write(&store, all_garbage(round + restart)).await;
        }
    }
    println!("{kept} last good values of {} kinds were in force after a restart", kinds().len());
}

fn all_garbage(salt: usize) -> Vec<tortie_store::Op> {
    kinds().iter().map(|(key, _)| put(&full(key), garbage(key, salt))).collect()
}

/// A deleted value does not return under an unreadable one, nor does an older value after a readable one.
#[tokio::test]
async fn a_deleted_value_is_no_last_good_one() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let store: Shared = Arc::new(SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap());
    let key = full("v1/policy/tier/default/policy/deny");
    let good = KINDS.iter().find(|(kind, _)| full(kind) == key).unwrap().1[0];
    let mut agent = Follower::start(&store, &cache).await;
    for op in [put(&key, good), delete(&key), put(&key, "{")] {
        let revision = write(&store, vec![op]).await;
        agent.until(revision).await;
    }
    let before = agent.kill(&cache).await;
    assert!(before.invalid_keys().all(|problem| !problem.last_good));
    let agent = Follower::start(&store, &cache).await;
    assert_eq!(agent.model, before);
}
