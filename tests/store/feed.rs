//! Data that an agent reads stays complete while the store fails and returns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cases::{PATIENCE, Shared, delete, put, text, write};
use tokio::runtime::Handle;
use tortie_store::sqlite::SqliteStore;
use tortie_store::{Change, Feed, FeedEvent, FeedOptions, Snapshot, WatchEvent};

const PREFIX: &str = "/calico/v1/";

fn start(store: &Shared, prefixes: &[&str], cache: Option<PathBuf>) -> Feed {
    let prefixes = prefixes.iter().map(|p| (*p).to_owned()).collect();
    Feed::start(
        &Handle::current(),
        Arc::clone(store),
        FeedOptions { prefixes, cache, ..FeedOptions::default() },
    )
}

/// Returns the next event other than progress.
async fn next(feed: &mut Feed) -> FeedEvent {
    let next = async {
        loop {
            match feed.next().await.expect("the feed has ended") {
                FeedEvent::Progress(_) => {}
                event => return event,
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("no event came")
}

async fn snapshot(feed: &mut Feed) -> (Snapshot, u64) {
    match next(feed).await {
        FeedEvent::Snapshot { snapshot, generation } => (Arc::unwrap_or_clone(snapshot), generation),
        other => panic!("{other:?}"),
    }
}

async fn changes(feed: &mut Feed) -> Vec<String> {
    match next(feed).await {
        FeedEvent::Delta(delta) => text(&delta),
        other => panic!("{other:?}"),
    }
}

fn keys(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|kv| kv.key.as_str()).collect()
}

async fn open(path: &Path) -> Shared {
    Arc::new(SqliteStore::open(path, true).await.unwrap())
}

/// Renames the folder of a store at once: a reader that is about to open it would create files in a folder
/// that is being removed.
fn lose(store: &Path, name: &str) {
    let folder = store.parent().unwrap();
    std::fs::rename(folder, folder.with_file_name(name)).unwrap();
}

#[tokio::test]
async fn a_snapshot_and_then_each_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let (store, other) = (open(&dir.path().join("store.db")).await, open(&dir.path().join("store.db")).await);
    write(&store, vec![put("/calico/v1/a", "1"), put("/calico/other", "1")]).await;
    let mut feed = start(&store, &[PREFIX], None);
    let (first, generation) = snapshot(&mut feed).await;
    assert_eq!((keys(&first), generation), (vec!["/calico/v1/a"], 1));
    for i in 0..5 {
        write(&other, vec![put("/calico/v1/a", &i.to_string()), put("/calico/v1/b", &i.to_string())]).await;
    }
    write(&other, vec![delete("/calico/v1/a")]).await;
    for i in 0..5 {
        assert_eq!(changes(&mut feed).await, [format!("+/calico/v1/a={i}"), format!("+/calico/v1/b={i}")]);
    }
    assert_eq!(changes(&mut feed).await, ["-/calico/v1/a"]);
    // Silence is reported as freshness.
    let fresh = tokio::time::timeout(PATIENCE, feed.next()).await.unwrap().unwrap();
    assert!(matches!(fresh, FeedEvent::Progress(_)), "{fresh:?}");
}

#[tokio::test]
async fn a_replaced_store_is_listed_anew_and_has_another_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = open(&path).await;
    write(&store, vec![put("/calico/v1/a", "1")]).await;
    let mut feed = start(&store, &[PREFIX], None);
    let (first, _) = snapshot(&mut feed).await;

    // All files except the lock, as an operator who starts again would delete.
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.wake"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let event = next(&mut feed).await;
    assert!(
        matches!(&event, FeedEvent::Unreachable { reason, .. } if reason.to_string().contains("is gone")),
        "{event:?}"
    );
    let fresh = open(&path).await;
    // More transactions than the old store had: the revision alone does not distinguish them.
    for i in 0..10 {
        write(&fresh, vec![put("/calico/v1/b", &i.to_string())]).await;
    }
    assert_eq!(next(&mut feed).await, FeedEvent::Reconnected);
    let (second, generation) = snapshot(&mut feed).await;
    assert_ne!(first.store_id, second.store_id);
    assert_eq!(generation, 2);
    let last = if second.revision < 10 { changes(&mut feed).await } else { vec![] };
    drop(last);
    // Writers with an old connection follow as well.
    write(&store, vec![put("/calico/v1/c", "1")]).await;
    let mut seen = changes(&mut feed).await;
    while seen != ["+/calico/v1/c=1"] {
        seen = changes(&mut feed).await;
    }
}

#[tokio::test]
async fn who_lists_a_replaced_store_hides_it_from_no_watcher() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = open(&path).await;
    write(&store, vec![put("/calico/v1/a", "1")]).await;
    let prefixes = [PREFIX.to_owned()];
    let listed = store.list(&prefixes).await.unwrap();
    for name in ["store.db", "store.db-wal", "store.db-shm", "store.wake"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let fresh = open(&path).await;
    for i in 0..10 {
        write(&fresh, vec![put("/calico/v1/b", &i.to_string())]).await;
    }
    // As other parts of the same agent do, such as the garbage collector.
    let other = store.list(&prefixes).await.unwrap();
    assert!(other.store_id != listed.store_id && other.revision > listed.revision);
    let mut watch = store.watch(&prefixes, listed.revision, Some(&listed.history())).await.unwrap();
    let event = watch.next().await.unwrap();
    assert!(matches!(event, WatchEvent::Compacted { .. }), "{event:?}");
}

#[tokio::test]
async fn added_prefixes_come_once_and_removed_ones_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store.db")).await;
    write(&store, vec![put("/calico/v1/a", "1"), put("/calico/block/1", "1"), put("/calico/block/2", "1")])
        .await;
    let mut feed = start(&store, &[PREFIX], None);
    assert_eq!(keys(&snapshot(&mut feed).await.0), ["/calico/v1/a"]);
    write(&store, vec![put("/calico/block/1", "2")]).await;
    feed.set_prefixes(&[PREFIX.to_owned(), "/calico/block/1".to_owned()]);
    match next(&mut feed).await {
        FeedEvent::Added { prefixes, snapshot } => {
            assert_eq!(prefixes, ["/calico/block/1"]);
            assert_eq!(snapshot.entries.first().unwrap().value, b"2");
        }
        other => panic!("{other:?}"),
    }
    write(&store, vec![put("/calico/block/2", "2")]).await;
    write(&store, vec![put("/calico/block/1", "3"), put("/calico/v1/a", "2")]).await;
    assert_eq!(changes(&mut feed).await, ["+/calico/block/1=3", "+/calico/v1/a=2"]);
    feed.set_prefixes(&[PREFIX.to_owned()]);
    // The feed reports nothing when it has taken the new set: until then, changes of the removed prefix come.
    let until = Instant::now() + PATIENCE;
    for n in 4.. {
        write(&store, vec![put("/calico/block/1", &n.to_string())]).await;
        write(&store, vec![put("/calico/v1/a", &n.to_string())]).await;
        let seen = changes(&mut feed).await;
        if seen == [format!("+/calico/v1/a={n}")] {
            break;
        }
        assert_eq!(seen, [format!("+/calico/block/1={n}")]);
        assert_eq!(changes(&mut feed).await, [format!("+/calico/v1/a={n}")]);
        assert!(Instant::now() < until, "changes of a removed prefix still come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_cache_holds_what_was_trusted_and_serves_a_start_without_store() {
    let dir = tempfile::tempdir().unwrap();
    let (path, cache) = (dir.path().join("sub/store.db"), dir.path().join("cache"));
    let store = open(&path).await;
    write(&store, vec![put("/calico/v1/a", "1")]).await;
    let mut feed = start(&store, &[PREFIX], Some(cache.clone()));
    let (listed, generation) = snapshot(&mut feed).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!cache.exists(), "nobody trusts it yet");
    feed.confirm(generation, listed.revision);
    let until = Instant::now() + PATIENCE;
    while !cache.exists() {
        assert!(Instant::now() < until, "no cache was written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(feed);

    // A lost store comes back empty: the cache is reported first and kept, since the new state is not
    // confirmed.
    lose(&path, "first");
    let empty = open(&path).await;
    let mut feed = start(&empty, &[PREFIX], Some(cache.clone()));
    let FeedEvent::Cached(cached) = next(&mut feed).await else { panic!("no cache") };
    assert_eq!(keys(&cached.snapshot), ["/calico/v1/a"]);
    let (now, _) = snapshot(&mut feed).await;
    assert_ne!(now.store_id, cached.snapshot.store_id);
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(feed);

    // Unreachable: the agent runs from the cache.
    lose(&path, "second");
    let mut feed = start(&empty, &[PREFIX], Some(cache.clone()));
    let FeedEvent::Cached(again) = next(&mut feed).await else { panic!("no cache") };
    assert_eq!(again, cached);
    assert!(matches!(next(&mut feed).await, FeedEvent::Unreachable { .. }));

    // A damaged cache is ignored.
    std::fs::write(&cache, "{}").unwrap();
    let mut feed = start(&empty, &[PREFIX], Some(cache.clone()));
    assert!(matches!(next(&mut feed).await, FeedEvent::Unreachable { .. }));
}

/// A consumer like an agent: keeps the entries and counts snapshots.
#[derive(Default)]
struct Mirror {
    entries: BTreeMap<String, Vec<u8>>,
    snapshots: u64,
    away: u64,
    last: u64,
}

impl Mirror {
    fn apply(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::Snapshot { snapshot, generation } => {
                self.snapshots = generation;
                self.last = snapshot.revision;
                self.entries = snapshot.entries.iter().map(|kv| (kv.key.clone(), kv.value.clone())).collect();
            }
            FeedEvent::Delta(delta) => {
                assert!(delta.revision > self.last, "{} after {}", delta.revision, self.last);
                self.last = delta.revision;
                for change in delta.changes {
                    match change {
                        Change::Put(kv) => drop(self.entries.insert(kv.key, kv.value)),
                        Change::Delete { key } => drop(self.entries.remove(&key)),
                    }
                }
                // Both keys are always written in one transaction.
                assert_eq!(self.entries.get("/calico/v1/n"), self.entries.get("/calico/bgp/v1/n"));
            }
            FeedEvent::Unreachable { .. } => self.away += 1,
            _ => {}
        }
    }

    async fn until(&mut self, feed: &mut Feed, n: u64) {
        let wanted = n.to_string().into_bytes();
        let all = async {
            while self.entries.get("/calico/v1/n") != Some(&wanted) {
                self.apply(feed.next().await.unwrap());
            }
        };
        tokio::time::timeout(PATIENCE * 2, all).await.unwrap_or_else(|_| panic!("{n} never came"));
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use super::*;
    use crate::common::etcd::{Cluster, Security, Tls};
    use tortie_store::{Compare, Op, Outcome, StoreError, StoreOptions, Txn};

    const BOTH: [&str; 2] = ["/calico/v1/", "/calico/bgp/v1/"];

    fn pair(n: u64) -> Vec<Op> {
        vec![put("/calico/v1/n", &n.to_string()), put("/calico/bgp/v1/n", &n.to_string())]
    }

    /// Repeats a write until it certainly succeeded.
    async fn insist(store: &Shared, n: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            match store.commit(Txn { compare: vec![], ops: pair(n) }).await {
                Ok(_) => return,
                Err(StoreError::Unreachable(_)) if Instant::now() < until => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    #[tokio::test]
    async fn a_restart_under_a_watch_loses_nothing_and_lists_nothing() {
        let Some(mut cluster) = Cluster::start(1, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        insist(&store, 0).await;
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        mirror.until(&mut feed, 0).await;
        insist(&store, 1).await;
        mirror.until(&mut feed, 1).await;
        cluster.members[0].kill();
        while mirror.away == 0 {
            mirror.apply(feed.next().await.unwrap());
        }
        cluster.restart();
        // Written while the feed may still be waiting.
        for n in 2..20 {
            insist(&store, n).await;
        }
        mirror.until(&mut feed, 19).await;
        assert_eq!(mirror.snapshots, 1);
    }

    #[tokio::test]
    async fn who_lists_a_cluster_that_was_set_up_anew_hides_it_from_no_watcher() {
        let Some(mut cluster) = Cluster::start(1, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        // One more election than the new cluster will have had.
        cluster.members[0].kill();
        cluster.restart();
        insist(&store, 0).await;
        let prefixes = BOTH.map(str::to_owned);
        let listed = store.list(&prefixes).await.unwrap();
        cluster.members[0].kill();
        std::fs::remove_dir_all(cluster.dir.path().join("m0")).unwrap();
        cluster.restart();
        for n in 0..20 {
            insist(&store, n).await;
        }
        // As another part of the same agent does.
        let other = store.list(&prefixes).await.unwrap();
        assert_eq!(other.store_id, listed.store_id, "the same names make the same id");
        assert!(
            other.revision > listed.revision && other.term < listed.term,
            "{} {}",
            other.term,
            listed.term
        );
        let mut watch = store.watch(&prefixes, listed.revision, Some(&listed.history())).await.unwrap();
        let event = watch.next().await.unwrap();
        assert!(matches!(event, WatchEvent::Compacted { .. }), "{event:?}");
    }

    #[tokio::test]
    async fn compaction_while_away_is_a_new_snapshot() {
        let Some(mut cluster) = Cluster::start(1, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        insist(&store, 0).await;
        write(&store, vec![put("/calico/v1/gone", "1")]).await;
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        mirror.until(&mut feed, 0).await;
        assert!(mirror.entries.contains_key("/calico/v1/gone"));
        cluster.members[0].kill();
        while mirror.away == 0 {
            mirror.apply(feed.next().await.unwrap());
        }
        // The feed must not reconnect before the compaction, so the cluster has another address for that
        // time.
        let mut hidden = cluster.options();
        hidden.url = cluster.rehome();
        let other = tortie_store::open(&hidden).await.unwrap();
        insist(&other, 1).await;
        let last = write(&other, vec![delete("/calico/v1/gone")]).await;
        other.compact(last).await.unwrap();
        cluster.come_home();
        mirror.until(&mut feed, 1).await;
        assert_eq!(mirror.snapshots, 2);
        assert!(!mirror.entries.contains_key("/calico/v1/gone"));
    }

    #[tokio::test]
    async fn the_leader_of_three_is_killed() {
        let Some(mut cluster) = Cluster::start(3, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        insist(&store, 0).await;
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        mirror.until(&mut feed, 0).await;
        for round in 0..3_u64 {
            let leader = cluster.leader();
            cluster.members[leader].kill();
            let killed = Instant::now();
            for n in 1..10 {
                insist(&store, round * 10 + n).await;
                if n == 1 {
                    println!("first write {} ms after the kill", killed.elapsed().as_millis());
                }
            }
            mirror.until(&mut feed, round * 10 + 9).await;
            cluster.restart();
            cluster.wait_healthy();
        }
        assert_eq!(mirror.snapshots, 1, "nothing was compacted, nothing to list");
        // A lagging or dead member never causes an outdated answer.
        assert_eq!(crate::cases::value(&store, "/calico/v1/n").await.as_deref(), Some("29"));
    }

    #[tokio::test]
    async fn no_call_hangs_on_a_stopped_member() {
        let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        insist(&store, 0).await;
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        mirror.until(&mut feed, 0).await;
        cluster.members[0].signal("STOP");
        let prefixes = [PREFIX.to_owned()];
        let began = Instant::now();
        let results = tokio::join!(
            store.get("/calico/v1/n"),
            store.list(&prefixes),
            store.commit(Txn { compare: vec![], ops: pair(1) }),
            store.grant(Duration::from_secs(5)),
        );
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
        assert!(matches!(results.0, Err(StoreError::Unreachable(_))), "{:?}", results.0);
        assert!(matches!(results.1, Err(StoreError::Unreachable(_))), "{:?}", results.1);
        assert!(
            matches!(&results.2, Err(StoreError::Unreachable(t)) if t.contains("may have been")),
            "{:?}",
            results.2
        );
        assert!(matches!(results.3, Err(StoreError::Unreachable(_))), "{:?}", results.3);
        let away = async {
            while mirror.away == 0 {
                mirror.apply(feed.next().await.unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, away).await.expect("the feed does not notice");
        cluster.members[0].signal("CONT");
        insist(&store, 2).await;
        mirror.until(&mut feed, 2).await;
    }

    /// Open connections of an agent survive a change of its password: calls, the lease and the watch, at once
    /// and also when the connection is lost later.
    #[tokio::test]
    async fn a_renewed_password_is_read_again_by_calls_leases_and_watches() {
        let Some(mut cluster) = Cluster::start(1, Security::Plain) else { return };
        let file = cluster.dir.path().join("password");
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let root = |cluster: &Cluster, args: &str| {
            let args = [words("--user root:rootpw"), words(args)].concat();
            cluster.etcdctl(&args.iter().map(String::as_str).collect::<Vec<_>>());
        };
        let give = |cluster: &Cluster, password: &str| {
            root(cluster, &format!("user add tortie:{password}"));
            root(cluster, "user grant-role tortie tortie");
        };
        for args in [
            "user add root:rootpw",
            "user grant-role root root",
            "role add tortie",
            "role grant-permission tortie --prefix=true readwrite /calico/",
            "auth enable",
        ] {
            let args = words(args);
            cluster.etcdctl(&args.iter().map(String::as_str).collect::<Vec<_>>());
        }
        give(&cluster, "first");
        std::fs::write(&file, "first\n").unwrap();
        let options = StoreOptions {
            etcd_user: Some("tortie".into()),
            etcd_password_file: Some(file.clone()),
            ..cluster.options()
        };
        let store = tortie_store::open(&options).await.unwrap();
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        let mut n = 0;
        for (password, restarts) in [("second", false), ("third", true), ("fourth", false)] {
            insist(&store, n).await;
            mirror.until(&mut feed, n).await;
            root(&cluster, "user delete tortie");
            give(&cluster, password);
            std::fs::write(&file, format!("{password}\n")).unwrap();
            if restarts {
                cluster.members[0].kill();
                cluster.restart();
            }
            // No call fails.
            let until = Instant::now() + PATIENCE;
            loop {
                match store.get("/calico/v1/n").await {
                    Err(StoreError::Unreachable(_)) if restarts && Instant::now() < until => {}
                    other => break assert!(other.unwrap().is_some(), "{password}"),
                }
            }
            assert!(store.keep_alive(lease).await.unwrap(), "{password}");
            n += 1;
        }
        insist(&store, n).await;
        mirror.until(&mut feed, n).await;
    }

    /// The same for a client certificate and for the certificate authority of both ends. A renewed
    /// certificate is used at once, since the server no longer accepts the former one. A new authority takes
    /// effect with the restart of the server, whichever end has it first.
    #[tokio::test]
    async fn a_renewed_certificate_and_authority_are_read_again_by_calls_leases_and_watches() {
        let Some(mut cluster) = Cluster::start(1, Security::Mutual) else { return };
        let dir = cluster.dir.path().to_owned();
        let etcdctl = |cluster: &Cluster, args: &str| {
            cluster.etcdctl(&args.split(' ').collect::<Vec<_>>());
        };
        let root = |cluster: &Cluster, args: &str| etcdctl(cluster, &format!("--user root:rootpw {args}"));
        for args in [
            "user add root:rootpw",
            "user grant-role root root",
            "role add tortie",
            "role grant-permission tortie --prefix=true readwrite /calico/",
            "auth enable",
        ] {
            etcdctl(&cluster, args);
        }
        // The name in the certificate identifies the client.
        let know = |cluster: &Cluster, name: &str| {
            root(cluster, &format!("user add {name}:unused"));
            root(cluster, &format!("user grant-role {name} tortie"));
        };
        let [ca, cert, key] = ["own-ca.pem", "own-cert.pem", "own-key.pem"].map(|name| dir.join(name));
        let renew = |cluster: &Cluster, name: &str| {
            let tls = cluster.tls.as_ref().unwrap();
            tls.certify(name, [&cert, &key]);
            std::fs::copy(&tls.ca, &ca).unwrap();
        };
        let restart = |cluster: &mut Cluster| {
            cluster.members[0].kill();
            cluster.restart();
            cluster.wait_healthy();
        };
        know(&cluster, "n0");
        renew(&cluster, "n0");
        let options = StoreOptions {
            etcd_ca: Some(ca.clone()),
            etcd_cert: Some(cert.clone()),
            etcd_key: Some(key.clone()),
            ..cluster.options()
        };
        let store = tortie_store::open(&options).await.unwrap();
        let lease = store.grant(Duration::from_secs(60)).await.unwrap();
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        for (n, authority) in (0..4).zip([None, Some("client first"), Some("server first"), None]) {
            insist(&store, n).await;
            mirror.until(&mut feed, n).await;
            let (former, name) = (format!("n{n}"), format!("n{}", n + 1));
            know(&cluster, &name);
            match authority {
                None => renew(&cluster, &name),
                Some(order) => {
                    // The server's certificate, too.
                    Tls::make(&dir);
                    if order == "client first" {
                        renew(&cluster, &name);
                        restart(&mut cluster);
                    } else {
                        restart(&mut cluster);
                        let refused = store.get("/calico/v1/n").await;
                        assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
                        renew(&cluster, &name);
                    }
                }
            }
            root(&cluster, &format!("user delete {former}"));
            let until = Instant::now() + PATIENCE;
            loop {
                match store.get("/calico/v1/n").await {
                    Err(StoreError::Unreachable(_)) if authority.is_some() && Instant::now() < until => {}
                    other => break assert!(other.unwrap().is_some(), "{name}"),
                }
            }
            assert!(store.keep_alive(lease).await.unwrap(), "{name}");
        }
        insist(&store, 4).await;
        mirror.until(&mut feed, 4).await;
    }

    /// Starts a proxy to a server with this delay in each direction.
    async fn slow_link(to: u16, each_way: Duration) -> u16 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    // The handshake takes a round trip, too.
                    tokio::time::sleep(each_way * 2).await;
                    let far = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    for (mut from, mut to) in [(near_in, far_out), (far_in, near_out)] {
                        let (arrives, mut arrived) =
                            tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
                        tokio::spawn(async move {
                            let mut octets = vec![0; 1 << 16];
                            while let Ok(read @ 1..) = from.read(&mut octets).await {
                                let _ = arrives
                                    .send((tokio::time::Instant::now() + each_way, octets[..read].to_vec()));
                            }
                        });
                        tokio::spawn(async move {
                            while let Some((at, octets)) = arrived.recv().await {
                                tokio::time::sleep_until(at).await;
                                if to.write_all(&octets).await.is_err() {
                                    return;
                                }
                            }
                        });
                    }
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn a_link_of_six_hundred_milliseconds_and_a_silent_member_are_no_outage() {
        let Some(cluster) = Cluster::start(1, Security::Tls) else { return };
        let slow = slow_link(cluster.members[0].client, Duration::from_millis(300)).await;
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().map(|address| (address.port(), silent)).unwrap();
        // Whichever member is tried first.
        for url in
            [format!("etcds://127.0.0.1:{slow}"), format!("etcds://127.0.0.1:{},127.0.0.1:{slow}", silent.0)]
        {
            let store = tortie_store::open(&StoreOptions { url, ..cluster.options() }).await.unwrap();
            store.get("/calico/v1/n").await.unwrap();
            let mut feed = start(&store, &BOTH, None);
            insist(&store, 0).await;
            Mirror::default().until(&mut feed, 0).await;
        }
    }

    #[tokio::test]
    async fn tls_with_user_and_password() {
        let Some(cluster) = Cluster::start(1, Security::Tls) else { return };
        let dir = cluster.dir.path();
        for args in [
            "user add root:rootpw",
            "user grant-role root root",
            "role add tortie",
            "role grant-permission tortie --prefix=true readwrite /calico/",
            "user add tortie:right",
            "user grant-role tortie tortie",
            "auth enable",
        ] {
            cluster.etcdctl(&args.split(' ').collect::<Vec<_>>());
        }
        let password = |text: &str| {
            let file = dir.join("password");
            std::fs::write(&file, text).unwrap();
            Some(file)
        };
        let with_user = StoreOptions {
            etcd_user: Some("tortie".into()),
            etcd_password_file: password("right\n"),
            ..cluster.options()
        };
        let store = tortie_store::open(&with_user).await.unwrap();
        insist(&store, 0).await;
        let mut feed = start(&store, &BOTH, None);
        let mut mirror = Mirror::default();
        mirror.until(&mut feed, 0).await;
        insist(&store, 1).await;
        mirror.until(&mut feed, 1).await;
        // Outside of the granted prefix.
        let denied = store.get("/other").await.unwrap_err();
        assert!(matches!(&denied, StoreError::PermissionDenied(t) if t.contains("role")), "{denied}");
        assert!(matches!(
            store.watch(&["/other/".into()], 0, None).await,
            Err(StoreError::PermissionDenied(_))
        ));

        // The file is read at each connection; a wrong password is reported and does not count as an
        // unreachable store.
        password("wrong");
        let wrong = tortie_store::open(&with_user).await.unwrap().get("/calico/v1/n").await.unwrap_err();
        assert!(
            matches!(&wrong, StoreError::PermissionDenied(t) if t.contains("--etcd-password-file")),
            "{wrong}"
        );
        assert!(!wrong.to_string().contains("wrong\""), "{wrong}");
        let nobody =
            tortie_store::open(&cluster.options()).await.unwrap().get("/calico/v1/n").await.unwrap_err();
        assert!(matches!(&nobody, StoreError::PermissionDenied(t) if t.contains("--etcd-user")), "{nobody}");

        // An authority that did not sign the certificate: the text names the cause.
        let foreign = dir.join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        let foreign = crate::common::etcd::Tls::make(&foreign);
        let options = StoreOptions { etcd_ca: Some(foreign.ca), ..with_user.clone() };
        let error =
            tortie_store::open(&options).await.unwrap().get("/calico/v1/n").await.unwrap_err().to_string();
        assert!(error.contains("certificate"), "{error}");
        // Plain text to a TLS port fails and does not hang.
        let plain =
            StoreOptions { etcd_ca: None, url: cluster.url().replace("etcds", "etcd"), ..cluster.options() };
        assert!(tortie_store::open(&plain).await.unwrap().get("/calico/v1/n").await.is_err());
        // Invalid options are reported at the start.
        let missing = StoreOptions { etcd_ca: Some("/nonexistent/ca.pem".into()), ..cluster.options() };
        assert!(
            tortie_store::open(&missing).await.err().unwrap().to_string().contains("/nonexistent/ca.pem")
        );
        let half = StoreOptions { etcd_user: Some("u".into()), ..cluster.options() };
        assert!(tortie_store::open(&half).await.err().unwrap().to_string().contains("belong together"));

        // A restarted member forgets the tokens: the store authenticates again by itself.
        password("right");
        let mut cluster = cluster;
        cluster.members[0].kill();
        cluster.restart();
        insist(&store, 2).await;
        mirror.until(&mut feed, 2).await;
        let condition = vec![Compare::Value("/calico/v1/n".into(), b"2".to_vec())];
        let outcome = store.commit(Txn { compare: condition, ops: pair(3) }).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed(_)));
        mirror.until(&mut feed, 3).await;
    }

    #[tokio::test]
    async fn certificates_on_both_sides() {
        let Some(cluster) = Cluster::start(1, Security::Mutual) else { return };
        let tls = cluster.tls.as_ref().unwrap();
        let options = StoreOptions {
            etcd_cert: Some(tls.cert.clone()),
            etcd_key: Some(tls.key.clone()),
            ..cluster.options()
        };
        let store = tortie_store::open(&options).await.unwrap();
        insist(&store, 0).await;
        let without =
            tortie_store::open(&cluster.options()).await.unwrap().get("/calico/v1/n").await.unwrap_err();
        assert!(without.to_string().contains("--etcd-cert"), "{without}");
    }

    /// etcd closes connections that are pinged too often; an idle watch must stay within its limits.
    #[tokio::test]
    #[ignore = "long: half a minute of silence"]
    async fn long_an_idle_watch_stays_open() {
        let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
        let store = tortie_store::open(&cluster.options()).await.unwrap();
        insist(&store, 0).await;
        let mut watch = store.watch(&BOTH.map(str::to_owned), 1, None).await.unwrap();
        let until = Instant::now() + Duration::from_secs(45);
        while Instant::now() < until {
            watch.next().await.unwrap();
        }
    }
}

/// A watch may report the deletion of everything: the cache must not contain it before the consumer has
/// confirmed it.
#[tokio::test]
async fn the_cache_never_has_a_change_that_nobody_trusts_yet() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let store = open(&dir.path().join("store.db")).await;
    write(&store, vec![put("/calico/v1/a", "1")]).await;
    let mut feed = start(&store, &[PREFIX], Some(cache.clone()));
    let (listed, generation) = snapshot(&mut feed).await;
    // Two changes at once: whichever is written first, the cache would contain the deletion.
    write(&store, vec![tortie_store::Op::Delete { key: "/calico/v1/a".to_owned() }]).await;
    assert_eq!(changes(&mut feed).await, ["-/calico/v1/a"]);
    feed.confirm(generation, listed.revision);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!cache.exists(), "the deletion is not trusted");
    feed.confirm(generation, listed.revision + 1);
    let until = Instant::now() + PATIENCE;
    while !cache.exists() {
        assert!(Instant::now() < until, "no cache was written");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
