//! Typical damage by a disk: it is detected, no process writes into the file, and a replacement is accepted.

use std::path::{Path, PathBuf};

use super::super::{SqliteStore, until_closed};
use crate::{Op, Outcome, Store, StoreError, Txn};

const PREFIX: &str = "/calico/test/";

fn put(key: &str) -> Txn {
    let op = Op::Put { key: format!("{PREFIX}{key}"), value: vec![b'x'; 1_000], lease: None };
    Txn { ops: vec![op], ..Txn::default() }
}

async fn count(store: &SqliteStore) -> Result<usize, StoreError> {
    Ok(store.list(&[PREFIX.to_owned()]).await?.entries.len())
}

fn side(database: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", database.display()))
}

/// Damage that a disk may do to a file of this length.
fn damages(whole: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let page = 4_096;
    let over = |from: usize, with: &dyn Fn(usize) -> u8| {
        let mut bad = whole.to_vec();
        for (at, octet) in bad.iter_mut().enumerate().skip(from).take(page) {
            *octet = with(at);
        }
        bad
    };
    // The first page has the schema; each of the others holds keys, values or an index.
    let middle = whole.len() / page / 2 * page;
    vec![
        ("cut in the middle", whole.iter().copied().take(middle + 100).collect()),
        ("cut after the first page", whole.iter().copied().take(page).collect()),
        ("the header is gone", over(0, &|_| 0)),
        ("the header is noise", over(0, &|at| u8::try_from(at * 7 % 251).unwrap_or_default())),
        ("a page is zero", over(middle, &|_| 0)),
        ("a page is noise", over(middle, &|at| u8::try_from(at * 31 % 253).unwrap_or_default())),
        ("a page is another's", over(middle, &|at| whole.get(at % page + page).copied().unwrap_or_default())),
    ]
}

/// Creates a store and checkpoints its log, so that all data is in one file.
async fn made(path: &Path) -> Vec<u8> {
    let store = SqliteStore::open(path, true).await.unwrap();
    for n in 0..200 {
        store.commit(put(&n.to_string())).await.unwrap();
    }
    store.maintain().await.unwrap();
    drop(store);
    until_closed(path.parent().unwrap()).await;
    std::fs::read(path).unwrap()
}

/// Reads the database and its log; any reader creates an empty log.
fn files(database: &Path) -> Vec<Vec<u8>> {
    ["", "-wal"].iter().map(|ending| std::fs::read(side(database, ending)).unwrap_or_default()).collect()
}

#[tokio::test]
async fn a_damaged_file_is_found_before_it_is_read_and_nobody_writes_into_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let whole = made(&path).await;
    for (name, bad) in damages(&whole) {
        for in_place in [false, true] {
            std::fs::write(&path, &bad).unwrap();
            let before = files(&path);
            let agent = SqliteStore::open_checked(&path, true).await.expect(name);
            let said = count(&agent).await.expect_err(name);
            assert!(matches!(said, StoreError::Damaged(_)), "{name}: {said}");
            for word in [path.to_str().unwrap(), "store export", "store accept"] {
                assert!(said.to_string().contains(word), "{name}: {said}");
            }
            let refused = |result: Result<Outcome, StoreError>| {
                assert!(matches!(result, Err(StoreError::Damaged(_))), "{name}: {result:?}");
            };
            refused(agent.commit(put("new")).await);
            assert!(matches!(
                agent.grant(std::time::Duration::from_secs(1)).await,
                Err(StoreError::Damaged(_))
            ));
            assert!(agent.maintain().await.is_err(), "{name}");
            // Another process: a plugin or a command.
            match SqliteStore::open(&path, true).await {
                Ok(other) => refused(other.commit(put("new")).await),
                Err(error) => assert!(matches!(error, StoreError::Damaged(_)), "{name}: {error}"),
            }
            let lengths = |all: &[Vec<u8>]| all.iter().map(Vec::len).collect::<Vec<_>>();
            let after = files(&path);
            assert!(after == before, "{name}: written into: {:?}, {:?}", lengths(&before), lengths(&after));
            // Another file takes its place: the same agent continues.
            if in_place {
                std::fs::write(&path, &whole).unwrap();
            } else {
                std::fs::rename(&path, dir.path().join("away")).unwrap();
                assert!(count(&agent).await.is_err(), "{name}: no new one is made by itself");
                std::fs::write(&path, &whole).unwrap();
            }
            for ending in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(side(&path, ending));
            }
            assert_eq!(count(&agent).await, Ok(200), "{name}, in place: {in_place}");
            assert!(!dir.path().join("store.damaged").exists(), "{name}: the mark goes with the damage");
            let written = SqliteStore::open(&path, false).await.unwrap().commit(put("0")).await;
            assert!(matches!(written, Ok(Outcome::Committed(_))), "{name}: {written:?}");
            drop(agent);
            for ending in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(side(&path, ending));
            }
        }
    }
}

/// Damage while an agent runs that read the file long ago and has its pages in memory.
#[tokio::test]
async fn damage_under_a_running_agent_ends_its_writes_and_those_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let whole = made(&path).await;
    let agent = SqliteStore::open_checked(&path, true).await.unwrap();
    let other = SqliteStore::open(&path, false).await.unwrap();
    agent.commit(put("0")).await.unwrap();
    other.commit(put("0")).await.unwrap();
    assert_eq!((agent.verify().await, count(&agent).await), (Ok(()), Ok(200)));
    agent.maintain().await.unwrap();
    let (_, bad) = damages(&whole).into_iter().find(|(name, _)| *name == "a page is noise").unwrap();
    std::fs::write(&path, &bad).unwrap();
    let found = agent.verify().await;
    assert!(matches!(found, Err(StoreError::Damaged(_))), "{found:?}");
    let before = files(&path);
    assert_eq!(count(&agent).await.err(), found.clone().err());
    for store in [&agent, &other] {
        assert_eq!(store.commit(put("1")).await.err(), found.clone().err());
    }
    assert!(files(&path) == before);
    // A command may still read entries to save them.
    assert!(!matches!(other.get("/calico/test/0").await, Err(StoreError::Unusable(_))));
}

/// A process with an open database would continue with a removed log that no other process can read.
#[tokio::test]
async fn a_log_that_is_removed_under_a_running_agent_is_followed_as_it_is_now() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    made(&path).await;
    for ending in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(side(&path, ending));
    }
    let agent = SqliteStore::open_checked(&path, true).await.unwrap();
    agent.commit(put("later")).await.unwrap();
    assert_eq!(count(&agent).await, Ok(201));
    for ending in ["-wal", "-shm"] {
        std::fs::remove_file(side(&path, ending)).unwrap();
    }
    let said = count(&agent).await.unwrap_err();
    assert!(matches!(&said, StoreError::Unreachable(text) if text.contains("store.db-wal")), "{said}");
    // Reader and writer close their connections, each at its next call.
    assert!(agent.commit(put("lost")).await.is_ok());
    assert_eq!(count(&agent).await, Ok(201), "without `later`, with `lost`");
    assert_eq!(agent.get("/calico/test/later").await, Ok(None));
    assert_eq!(agent.verify().await, Ok(()));
}
