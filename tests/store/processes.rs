//! Several processes on one SQLite store, some of them killed during a write.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::cases::{PATIENCE, Shared, put, text, value, write};
use tortie_store::sqlite::SqliteStore;

const A: &str = "/calico/test/a";
const B: &str = "/calico/test/b";
const COUNTER: &str = "/calico/test/counter";

async fn open(path: &Path) -> Shared {
    Arc::new(SqliteStore::open(path, true).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_open_a_new_store_at_once() {
    for _ in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let all: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                tokio::spawn(async move { SqliteStore::open(&path, true).await.map(drop) })
            })
            .collect();
        for one in all {
            one.await.unwrap().unwrap();
        }
    }
}

/// Starts this test binary again as a process that runs one of the children below.
fn child(name: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("processes::{name}"), "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("TORTIE_TEST_STORE", path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn child_store() -> Option<Shared> {
    let path = std::env::var_os("TORTIE_TEST_STORE")?;
    Some(open(Path::new(&path)).await)
}

#[tokio::test]
#[ignore = "a child of kill_in_mid_write"]
async fn child_pairs() {
    let Some(store) = child_store().await else { return };
    let start: u64 = value(&store, A).await.map_or(0, |v| v.parse().unwrap());
    for n in start + 1.. {
        // Large values, so that a commit takes several pages of the log.
        let text = format!("{n}{}", " ".repeat(20_000));
        write(&store, vec![put(A, &text), put(B, &text)]).await;
        println!("done {n}");
    }
}

#[tokio::test]
#[ignore = "a child of eight_processes_lose_no_update"]
async fn child_counter() {
    let Some(store) = child_store().await else { return };
    for _ in 0..25 {
        crate::cases::add_one(&store, COUNTER).await;
    }
}

#[tokio::test]
async fn kill_in_mid_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = open(&path).await;
    let start = write(&store, vec![put(A, "0"), put(B, "0")]).await;
    let mut watch = store.watch(&["/calico/test/".to_owned()], start, None).await.unwrap();
    let mut committed = 0_u64;
    for round in 0..20 {
        let mut running = child("child_pairs", &path);
        let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
        let said = |line: std::io::Result<String>| -> Option<u64> {
            line.unwrap().rsplit_once("done ")?.1.parse().ok()
        };
        // Some rounds end in the first transaction, others later, at a random moment.
        let wait = round % 5;
        let mut last = 0;
        while wait > 0 && last < committed + wait {
            last = lines.by_ref().find_map(said).expect("the child writes");
        }
        std::thread::sleep(Duration::from_micros(rand::random_range(0..4_000)));
        running.kill().unwrap();
        running.wait().unwrap();
        last = lines.filter_map(said).last().unwrap_or(last);

        let (a, b) = (value(&store, A).await.unwrap(), value(&store, B).await.unwrap());
        assert_eq!(a, b, "half of a transaction");
        let now: u64 = a.trim_end().parse().unwrap();
        assert!(now >= last, "{last} was answered and is lost, the store has {now}");
        assert!(now >= committed);
        committed = now;
        // The lock ended with its holder.
        committed += 1;
        write(&store, vec![put(A, &committed.to_string()), put(B, &committed.to_string())]).await;
    }
    assert!(committed > 20, "the children wrote nothing");
    // A watcher saw each transaction once, completely and in order.
    for n in 1..=committed {
        let delta = crate::cases::delta(&mut watch).await;
        let got: Vec<String> = text(&delta).iter().map(|t| t.trim_end().to_owned()).collect();
        assert_eq!(got, [format!("+{A}={n}"), format!("+{B}={n}")]);
    }
    let database = rusqlite::Connection::open(&path).unwrap();
    let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn eight_processes_lose_no_update() {
    let dir = crate::common::tools::folder_in_memory();
    let path = dir.path().join("store.db");
    // All of them open a store that does not exist yet at the same time.
    let first = tokio::join!(open(&path), open(&path), open(&path)).0;
    write(&first, vec![put(COUNTER, "0")]).await;
    let children: Vec<Child> = (0..8).map(|_| child("child_counter", &path)).collect();
    for child in children {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }
    assert_eq!(value(&first, COUNTER).await.as_deref(), Some("200"));
}

#[tokio::test]
async fn housekeeping_bounds_log_and_history_while_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let (store, reader) = (open(&path).await, open(&path).await);
    let big = "x".repeat(500_000);
    for i in 0..20 {
        write(&store, vec![put(&format!("/calico/test/{}", i % 2), &big)]).await;
    }
    let wal = || std::fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
    assert!(wal() > 8 << 20, "only maintenance writes the log back");
    store.maintain().await.unwrap();
    assert!(wal() < 1 << 20, "{}", wal());
    assert_eq!(reader.list(&["/calico/test/".into()]).await.unwrap().entries.len(), 2);
    // The log stays when the last process closes the store, and its content is not lost.
    write(&store, vec![put("/calico/test/last", "1")]).await;
    drop((store, reader));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(wal() > 0);
    assert_eq!(value(&open(&path).await, "/calico/test/last").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn what_is_no_store_of_ours_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let refused = |path: std::path::PathBuf, create| async move {
        SqliteStore::open(&path, create).await.err().expect("must be refused").to_string()
    };
    assert!(refused(path.clone(), false).await.contains("there is no store at"));
    assert!(!path.exists());

    std::fs::write(&path, "no database at all, but long enough to be read as a header".repeat(20)).unwrap();
    assert!(refused(path.clone(), true).await.contains("damaged"));
    std::fs::remove_file(&path).unwrap();

    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE theirs(x)").unwrap();
    drop(foreign);
    assert!(refused(path.clone(), true).await.contains("another program"));
    std::fs::remove_file(&path).unwrap();

    drop(open(&path).await);
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 2).unwrap();
    drop(newer);
    assert!(refused(path.clone(), true).await.contains("schema 2"));
}

#[tokio::test]
async fn all_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("new/store.db")).await;
    write(&store, vec![put(A, "secret")]).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.path().join("new")), 0o700);
    let mut names = Vec::new();
    for file in std::fs::read_dir(dir.path().join("new")).unwrap() {
        let file = file.unwrap();
        assert_eq!(mode(&file.path()), 0o600, "{}", file.path().display());
        names.push(file.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["store.db", "store.db-shm", "store.db-wal", "store.lock", "store.wake"]);
}

/// A process that is stopped while it holds the lock delays writers, but not forever, and readers not at all.
#[tokio::test]
async fn a_stopped_holder_of_the_lock_hangs_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = open(&path).await;
    write(&store, vec![put(A, "1")]).await;
    let held = std::fs::File::open(dir.path().join("store.lock")).unwrap();
    held.lock().unwrap();
    let began = std::time::Instant::now();
    let late = async {
        let late = store.commit(tortie_store::Txn { compare: vec![], ops: vec![put(A, "2")] }).await;
        (late, began.elapsed())
    };
    let read = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (value(&store, A).await, began.elapsed())
    };
    let (late, read) = tokio::join!(late, read);
    assert_eq!(read.0.as_deref(), Some("1"));
    assert!(read.1 < late.1, "{:?}, {:?}", read.1, late.1);
    assert!(late.1 < PATIENCE, "{:?}", late.1);
    let late = late.0.unwrap_err().to_string();
    assert!(late.contains("lslocks"), "{late}");
    held.unlock().unwrap();
    // A write that its caller gave up is not executed later.
    write(&store, vec![put(B, "1")]).await;
    assert_eq!(value(&store, A).await.as_deref(), Some("1"));
}
