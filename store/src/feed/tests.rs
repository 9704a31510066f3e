//! Reports of a feed about the store as a whole: its data model, and that it was restored to an earlier
//! state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::*;
use crate::sqlite::SqliteStore;
use crate::{Op, Txn};

const PREFIX: &str = "/calico/v1/";

async fn open(path: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(path, true).await.unwrap())
}

async fn put(store: &dyn Store, key: &str, value: &str) {
    let op = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
    store.commit(Txn { ops: vec![op], ..Txn::default() }).await.unwrap();
}

/// Copies a store that no process has open.
fn copy(from: &Path, to: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let file = |path: &Path| PathBuf::from(format!("{}{ending}", path.display()));
        let _ = std::fs::remove_file(file(to));
        if file(from).exists() {
            std::fs::copy(file(from), file(to)).unwrap();
        }
    }
}

fn feed(store: &Arc<dyn Store>, cache: Option<PathBuf>, data_model: DataModel) -> Feed {
    let options = FeedOptions { prefixes: vec![PREFIX.to_owned()], cache, data_model };
    Feed::start(&Handle::current(), Arc::clone(store), options)
}

/// Collects the kinds of the events up to the first snapshot, with their details.
async fn until_snapshot(feed: &mut Feed) -> (Vec<String>, u64, Revision) {
    let mut said = Vec::new();
    loop {
        let event = tokio::time::timeout(Duration::from_secs(60), feed.next()).await.unwrap().unwrap();
        match event {
            FeedEvent::Snapshot { snapshot, generation } => return (said, generation, snapshot.revision),
            FeedEvent::Calico3(found) => said.push(format!("calico 3: {found}")),
            FeedEvent::PutBack(proof) => said.push(format!("put back: {proof}")),
            FeedEvent::Cached(_) => said.push("cached".to_owned()),
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_data_model_is_said_before_the_first_snapshot() {
    const V3: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";
    for (key, choice, expected) in [
        ("/calico/v1/Ready", DataModel::Auto, None),
        (V3, DataModel::Auto, Some(())),
        (V3, DataModel::V1, None),
        ("/calico/v1/Ready", DataModel::V3, Some(())),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("store.db")).await;
        put(&*store, key, "x").await;
        let (said, ..) = until_snapshot(&mut feed(&store, None, choice)).await;
        let expected: Vec<String> = expected.map(|()| "calico 3: true".to_owned()).into_iter().collect();
        assert_eq!(said, expected, "{key}, {choice}");
    }
}

/// Objects that appear under a running feed, and that are gone later: a list follows each time, at the latest
/// after the interval of checks.
#[tokio::test]
async fn a_store_that_changes_its_data_model_is_listed_anew() {
    const V3: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store.db")).await;
    put(&*store, "/calico/v1/Ready", "true").await;
    let mut follower = feed(&store, None, DataModel::Auto);
    assert_eq!(until_snapshot(&mut follower).await.0, Vec::<String>::new());
    put(&*store, V3, "{}").await;
    assert_eq!(until_snapshot(&mut follower).await.0, ["calico 3: true"]);
    let op = Op::Delete { key: V3.to_owned() };
    store.commit(Txn { ops: vec![op], ..Txn::default() }).await.unwrap();
    assert_eq!(until_snapshot(&mut follower).await.0, ["calico 3: false"]);
}

/// An older copy takes the place of a store: under a running feed, at a start from the cache, and with as
/// many revisions.
#[tokio::test]
async fn a_store_that_was_put_back_is_said_with_its_proof() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    {
        let store = open(&path("store.db")).await;
        put(&*store, "/calico/v1/a", "1").await;
    }
    crate::sqlite::until_closed(dir.path()).await;
    copy(&path("store.db"), &path("copy.db"));
    let store = open(&path("store.db")).await;
    let mut follower = feed(&store, Some(path("cache")), DataModel::Auto);
    let (said, ..) = until_snapshot(&mut follower).await;
    assert_eq!(said, Vec::<String>::new());
    for n in 0..5 {
        put(&*store, "/calico/v1/a", &n.to_string()).await;
    }
    let mut last = 0;
    while last < 6 {
        if let FeedEvent::Delta(delta) = follower.next().await.unwrap() {
            last = delta.revision;
            follower.confirm(1, last);
        }
    }
    let cached = || {
        Cache::new(&path("cache")).load().ok().flatten().is_some_and(|cached| cached.snapshot.revision == 6)
    };
    while !cached() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(store);
    copy(&path("copy.db"), &path("store.db"));
    let (said, _, revision) = until_snapshot(&mut follower).await;
    assert_eq!((said, revision), (vec!["put back: its revision is 1 and was 6".to_owned()], 1));
    drop(follower);
    let store = open(&path("store.db")).await;
    let (said, ..) = until_snapshot(&mut feed(&store, Some(path("cache")), DataModel::Auto)).await;
    assert_eq!(said, ["cached", "put back: its revision is 1 and was 6"]);
    for n in 0..8 {
        put(&*store, "/calico/v1/b", &n.to_string()).await;
    }
    let (said, ..) = until_snapshot(&mut feed(&store, Some(path("cache")), DataModel::Auto)).await;
    assert_eq!(said, ["cached", "put back: /calico/v1/a was written last at revision 1, and was at 6"]);
}

/// Follows a store until its cache has this revision.
async fn keep(store: &Arc<dyn Store>, cache: &Path, revision: Revision) {
    let mut follower = feed(store, Some(cache.to_owned()), DataModel::Auto);
    let (_, generation, _) = until_snapshot(&mut follower).await;
    let is_kept =
        || Cache::new(cache).load().ok().flatten().is_some_and(|cached| cached.snapshot.revision >= revision);
    while !is_kept() {
        follower.confirm(generation, revision);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Without its write-ahead log, or with a part of it, a store is in the state of its last checkpoint.
#[tokio::test]
async fn a_log_of_the_store_that_was_lost_is_said_with_its_proof() {
    type Loss = fn(&Path, &[u8]);
    let losses: &[(&str, Loss)] = &[
        ("removed", |wal, _| std::fs::remove_file(wal).unwrap()),
        ("empty", |wal, _| std::fs::write(wal, "").unwrap()),
        ("cut", |wal, whole| std::fs::write(wal, &whole[..whole.len() / 3]).unwrap()),
        ("its beginning is noise", |wal, whole| {
            let noise = |(at, octet): (usize, &u8)| if at < 64 { 0x55 } else { *octet };
            std::fs::write(wal, whole.iter().enumerate().map(noise).collect::<Vec<u8>>()).unwrap();
        }),
    ];
    for (name, lose) in losses {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let store = open(&path("store.db")).await;
        put(&*store, "/calico/v1/a", "1").await;
        put(&*store, "/calico/v1/b", "1").await;
        store.maintain().await.unwrap();
        for n in 0..6 {
            put(&*store, "/calico/v1/a", &n.to_string()).await;
        }
        keep(&store, &path("cache"), 8).await;
        drop(store);
        let wal = path("store.db-wal");
        crate::sqlite::until_closed(dir.path()).await;
        let whole = std::fs::read(&wal).unwrap();
        lose(&wal, &whole);
        let _ = std::fs::remove_file(path("store.db-shm"));
        let store: Arc<dyn Store> =
            Arc::new(SqliteStore::open_checked(&path("store.db"), false).await.unwrap());
        let (said, _, revision) =
            until_snapshot(&mut feed(&store, Some(path("cache")), DataModel::Auto)).await;
        assert!((2..8).contains(&revision), "{name}: {revision}");
        assert_eq!(
            said,
            ["cached".to_owned(), format!("put back: its revision is {revision} and was 8")],
            "{name}"
        );
    }
}
