//! Required behaviour of every store. Each case uses a prefix of its own.

use std::sync::Arc;
use std::time::Duration;

use tortie_store::{
    Change, Compare, Delta, Op, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent, WriterLock,
};

pub(crate) type Shared = Arc<dyn Store>;

/// Timeout for any operation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.into(), value: value.into(), lease: None }
}

pub(crate) fn delete(key: &str) -> Op {
    Op::Delete { key: key.into() }
}

pub(crate) async fn write(store: &Shared, ops: Vec<Op>) -> Revision {
    match store.commit(Txn { compare: vec![], ops }).await.unwrap() {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict => panic!("a transaction without a condition conflicts"),
    }
}

pub(crate) async fn value(store: &Shared, key: &str) -> Option<String> {
    store.get(key).await.unwrap().map(|kv| String::from_utf8(kv.value).unwrap())
}

/// Returns the next transaction; progress events are skipped.
pub(crate) async fn delta(watch: &mut Box<dyn Watch>) -> Delta {
    let next = async {
        loop {
            match watch.next().await.unwrap() {
                WatchEvent::Delta(delta) => return delta,
                WatchEvent::Progress(_) => {}
                WatchEvent::Compacted { oldest } => panic!("compacted, oldest {oldest}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("no change came")
}

/// Formats changes as `+key=value` and `-key`.
pub(crate) fn text(delta: &Delta) -> Vec<String> {
    let one = |change: &Change| match change {
        Change::Put(kv) => format!("+{}={}", kv.key, String::from_utf8_lossy(&kv.value)),
        Change::Delete { key } => format!("-{key}"),
    };
    delta.changes.iter().map(one).collect()
}

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.iter().map(|t| (*t).to_owned()).collect()
}

pub(crate) async fn reads(store: &Shared, p: &str) {
    let (a, b) = (format!("{p}x/a"), format!("{p}x/b"));
    let revision = write(store, vec![put(&a, "1"), put(&b, "2"), put(&format!("{p}y/a"), "3")]).await;
    let keys = [b.clone(), format!("{p}absent"), a.clone()];
    let (values, listed) = store.read(&keys, &strings([&format!("{p}y/"), &format!("{p}x/")])).await.unwrap();
    let found: Vec<_> =
        values.iter().map(|kv| kv.as_ref().map(|kv| (kv.key.as_str(), &kv.value[..]))).collect();
    assert_eq!(found, [Some((b.as_str(), &b"2"[..])), None, Some((a.as_str(), &b"1"[..]))]);
    assert_eq!(listed, store.list(&strings([&format!("{p}x/"), &format!("{p}y/")])).await.unwrap());
    assert_eq!(listed.revision, revision);
    assert_eq!(store.read(&keys[..1], &[]).await.unwrap().0, [store.get(&b).await.unwrap()]);
    assert_eq!(store.read(&[], &strings([p])).await.unwrap().1.entries.len(), 3);
    // More keys than one call of etcd may contain.
    let many: Vec<String> =
        (0..200).map(|n| if n == 150 { a.clone() } else { format!("{p}none/{n}") }).collect();
    let (values, listed) = store.read(&many, &strings([p])).await.unwrap();
    assert_eq!(values.iter().position(Option::is_some), Some(150));
    assert_eq!((values.len(), listed.entries.len()), (200, 3));
}

/// Takes the writer lock. That of etcd is one for the whole machine, where other tests have it at times for
/// longer than a writer waits.
async fn take_lock(store: &Shared) -> Option<WriterLock> {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let taken = store.writer_lock().await;
        if taken.is_some() {
            return taken;
        }
        assert!(tokio::time::Instant::now() < until, "nobody releases the lock");
    }
}

/// A writer lock is kept over a conflict and released by a commit, after which others can read it.
pub(crate) async fn writer_locks(store: &Shared, p: &str) {
    let key = format!("{p}a");
    let mut writer_lock = take_lock(store).await;
    let conflict = Txn { compare: vec![Compare::Present(key.clone())], ops: vec![put(&key, "1")] };
    assert_eq!(store.commit_locked(conflict, &mut writer_lock).await, Ok(Outcome::Conflict));
    assert!(writer_lock.is_some(), "lost with a conflict");
    let next = {
        let (store, key) = (Arc::clone(store), key.clone());
        tokio::spawn(async move {
            let _writer_lock = take_lock(&store).await;
            value(&store, &key).await
        })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!next.is_finished(), "two have a turn");
    let txn = Txn { compare: vec![], ops: vec![put(&key, "2")] };
    assert!(matches!(store.commit_locked(txn, &mut writer_lock).await, Ok(Outcome::Committed(_))));
    drop(writer_lock);
    let next = tokio::time::timeout(PATIENCE, next).await.unwrap().unwrap();
    assert_eq!(next.as_deref(), Some("2"));
}

pub(crate) async fn compares(store: &Shared, p: &str) {
    let (a, b) = (format!("{p}a"), format!("{p}b"));
    let first = write(store, vec![put(&a, "1")]).await;
    let second = write(store, vec![put(&a, "2")]).await;
    let holds: Vec<(Compare, bool)> = vec![
        (Compare::Absent(b.clone()), true),
        (Compare::Absent(a.clone()), false),
        (Compare::Present(a.clone()), true),
        (Compare::Present(b.clone()), false),
        (Compare::ModRevision(a.clone(), second), true),
        (Compare::ModRevision(a.clone(), first), false),
        (Compare::ModRevision(b.clone(), second), false),
        (Compare::Value(a.clone(), b"2".to_vec()), true),
        (Compare::Value(a.clone(), b"1".to_vec()), false),
        (Compare::Value(a.clone(), b"".to_vec()), false),
        (Compare::Value(b.clone(), b"".to_vec()), false),
    ];
    for (n, (compare, expected)) in holds.into_iter().enumerate() {
        let mark = format!("{p}mark/{n}");
        let txn = Txn { compare: vec![compare.clone()], ops: vec![put(&mark, "x")] };
        let outcome = store.commit(txn).await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Committed(_)), expected, "{compare:?}");
        assert_eq!(value(store, &mark).await.is_some(), expected, "{compare:?}");
    }
    // One false condition among true ones prevents all writes.
    let txn = Txn {
        compare: vec![Compare::Present(a.clone()), Compare::Absent(a.clone())],
        ops: vec![put(&a, "3"), put(&b, "3")],
    };
    assert_eq!(store.commit(txn).await.unwrap(), Outcome::Conflict);
    assert_eq!(value(store, &a).await.as_deref(), Some("2"));
    assert_eq!(value(store, &b).await, None);
    // A key that is created, deleted and created again has another creation revision.
    let txn = Txn { compare: vec![Compare::ModRevision(a.clone(), second)], ops: vec![delete(&a)] };
    assert!(matches!(store.commit(txn).await.unwrap(), Outcome::Committed(_)));
    let again = write(store, vec![put(&a, "2")]).await;
    let kv = store.get(&a).await.unwrap().unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (again, again));
}

pub(crate) async fn ops(store: &Shared, p: &str) {
    let key = |name: &str| format!("{p}{name}");
    let first = write(store, vec![put(&key("x/1"), "1"), put(&key("x/2"), "2"), put(&key("y"), "3")]).await;
    let list = store.list(&[p.to_owned()]).await.unwrap();
    let keys: Vec<_> = list.entries.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(keys, [key("x/1"), key("x/2"), key("y")]);
    assert!(list.entries.iter().all(|kv| kv.mod_revision == first && kv.create_revision == first));
    assert_eq!(list.revision, first);
    assert!(!list.store_id.is_empty());

    let second = write(store, vec![put(&key("y"), "4")]).await;
    assert!(second > first);
    let kv = store.get(&key("y")).await.unwrap().unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (first, second));

    // Deleting an absent key is no error and no change.
    assert_eq!(write(store, vec![delete(&key("none"))]).await, second);
    assert_eq!(write(store, vec![Op::DeletePrefix { prefix: key("none/") }]).await, second);

    let third = write(store, vec![Op::DeletePrefix { prefix: key("x/") }, put(&key("z"), "5")]).await;
    let list = store.list(&[key("y"), key("x/"), key("z"), key("y")]).await.unwrap();
    let keys: Vec<_> = list.entries.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!((list.revision, keys), (third, vec![key("y"), key("z")]));

    // Values are arbitrary octets.
    let bytes: Vec<u8> = (0..=255).collect();
    let op = Op::Put { key: key("bytes"), value: bytes.clone(), lease: None };
    write(store, vec![op, put(&key("empty"), "")]).await;
    assert_eq!(store.get(&key("bytes")).await.unwrap().unwrap().value, bytes);
    assert_eq!(value(store, &key("empty")).await.as_deref(), Some(""));
    assert_eq!(store.get(&key("none")).await.unwrap(), None);
}

pub(crate) async fn limits(store: &Shared, p: &str) {
    let many = |n: usize| (0..n).map(|i| put(&format!("{p}{i}"), "x")).collect::<Vec<_>>();
    write(store, many(128)).await;
    let refused = |error: StoreError| match error {
        StoreError::Refused(text) => text,
        other => panic!("{other}"),
    };
    let too_many = store.commit(Txn { compare: vec![], ops: many(129) }).await.unwrap_err();
    assert!(refused(too_many).contains("129 writes"));
    let twice = Txn { compare: vec![], ops: vec![put(p, "1"), put(p, "2")] };
    assert!(refused(store.commit(twice).await.unwrap_err()).contains("twice"));
    // The largest permitted transaction succeeds.
    let largest = "v".repeat(1_399_000 - p.len());
    write(store, vec![put(p, &largest)]).await;
    assert_eq!(value(store, p).await.map(|v| v.len()), Some(largest.len()));
    let too_large = Txn { compare: vec![], ops: vec![put(p, &"v".repeat(1_500_000))] };
    refused(store.commit(too_large).await.unwrap_err());
    let future = store.list(&[p.to_owned()]).await.unwrap().revision + 1000;
    refused(store.compact(future).await.unwrap_err());
}

pub(crate) async fn watch(store: &Shared, p: &str) {
    let (a, b, other) = (format!("{p}a/"), format!("{p}b/"), format!("{p}other/"));
    let start = write(store, vec![put(&format!("{a}0"), "before")]).await;
    // History first, then new changes.
    write(store, vec![put(&format!("{a}1"), "1"), put(&format!("{other}1"), "no")]).await;
    write(store, vec![put(&format!("{other}2"), "no")]).await;
    let mut watch = store.watch(&[a.clone(), b.clone()], start, None).await.unwrap();
    let live =
        write(store, vec![put(&format!("{b}1"), "1"), delete(&format!("{a}0")), delete(&format!("{a}none"))])
            .await;

    let first = delta(&mut watch).await;
    assert_eq!(text(&first), [format!("+{a}1=1")]);
    // Both prefixes in one delta: a transaction is never split.
    let second = delta(&mut watch).await;
    assert!(second.revision > first.revision);
    assert_eq!(second.revision, live);
    let mut got = text(&second);
    got.sort();
    assert_eq!(got, [format!("+{b}1=1"), format!("-{a}0")]);

    // Each change of a key, not only the last one, and in order.
    for i in 0..50 {
        write(store, vec![put(&format!("{a}n"), &i.to_string()), put(&format!("{b}n"), &i.to_string())])
            .await;
    }
    write(store, vec![Op::DeletePrefix { prefix: p.to_owned() }]).await;
    let mut last = second.revision;
    for i in 0..50 {
        let delta = delta(&mut watch).await;
        assert!(delta.revision > last);
        last = delta.revision;
        let mut got = text(&delta);
        got.sort();
        assert_eq!(got, [format!("+{a}n={i}"), format!("+{b}n={i}")]);
    }
    let mut got = text(&delta(&mut watch).await);
    got.sort();
    assert_eq!(got, [format!("-{a}1"), format!("-{a}n"), format!("-{b}1"), format!("-{b}n")]);
}

pub(crate) async fn watch_under_load(store: &Shared, p: &str) {
    const WRITERS: usize = 4;
    const EACH: usize = 150;
    let prefixes = ["a/", "b/", "c/"].map(|name| format!("{p}{name}"));
    let start = write(store, vec![put(&format!("{p}start"), "")]).await;
    let mut watch = store.watch(&prefixes, start, None).await.unwrap();
    for writer in 0..WRITERS {
        let (store, prefixes) = (Arc::clone(store), prefixes.clone());
        tokio::spawn(async move {
            for i in 0..EACH {
                let op = |prefix: &String| put(&format!("{prefix}{writer}"), &i.to_string());
                write(&store, prefixes.iter().map(op).collect()).await;
            }
        });
    }
    let mut last = start;
    let mut next = [0; WRITERS];
    for _ in 0..WRITERS * EACH {
        let delta = delta(&mut watch).await;
        assert!(delta.revision > last, "{} after {last}", delta.revision);
        last = delta.revision;
        let mut got = text(&delta);
        got.sort();
        let writer: usize = got[0][p.len() + 3..].split('=').next().unwrap().parse().unwrap();
        let want: Vec<_> =
            prefixes.iter().map(|prefix| format!("+{prefix}{writer}={}", next[writer])).collect();
        assert_eq!(got, want, "a transaction in halves");
        next[writer] += 1;
    }
}

pub(crate) async fn watch_is_cancel_safe(store: &Shared, p: &str) {
    let start = write(store, vec![put(&format!("{p}k"), "start")]).await;
    let mut watch = store.watch(&[format!("{p}k")], start, None).await.unwrap();
    let writer = Arc::clone(store);
    let key = format!("{p}k");
    let writing = tokio::spawn(async move {
        for i in 0..100 {
            write(&writer, vec![put(&key, &i.to_string())]).await;
        }
    });
    let mut got = Vec::new();
    let all = async {
        while got.len() < 100 {
            // The future is dropped repeatedly while it waits.
            let next = tokio::time::timeout(Duration::from_micros(300), watch.next()).await;
            if let Ok(Ok(WatchEvent::Delta(delta))) = next {
                got.extend(text(&delta));
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("changes were lost");
    writing.await.unwrap();
    let expected: Vec<String> = (0..100).map(|i| format!("+{p}k={i}")).collect();
    assert_eq!(got, expected);
}

pub(crate) async fn progress(store: &Shared, p: &str) {
    let start = write(store, vec![put(&format!("{p}k"), "1")]).await;
    let mut watch = store.watch(&[p.to_owned()], start, None).await.unwrap();
    let alive = tokio::time::timeout(PATIENCE, watch.next()).await.expect("no sign of life").unwrap();
    assert!(matches!(alive, WatchEvent::Progress(revision) if revision >= start), "{alive:?}");
}

pub(crate) async fn compaction(store: &Shared, p: &str) {
    let key = format!("{p}k");
    let first = write(store, vec![put(&key, "1")]).await;
    let second = write(store, vec![put(&key, "2")]).await;
    let third = write(store, vec![put(&key, "3")]).await;
    store.compact(third).await.unwrap();
    // Repetition is no error.
    store.compact(second).await.unwrap();
    for after in [0, first] {
        let event = async {
            let mut watch = store.watch(&[p.to_owned()], after, None).await.unwrap();
            loop {
                match watch.next().await.unwrap() {
                    WatchEvent::Progress(_) => {}
                    event => return event,
                }
            }
        };
        let event = tokio::time::timeout(PATIENCE, event).await.expect("nothing said");
        assert_eq!(event, WatchEvent::Compacted { oldest: third }, "after {after}");
    }
    let mut watch = store.watch(&[p.to_owned()], second, None).await.unwrap();
    assert_eq!(text(&delta(&mut watch).await), [format!("+{key}=3")]);
    assert_eq!(value(store, &key).await.as_deref(), Some("3"));
}

pub(crate) async fn leases(store: &Shared, p: &str) {
    const KEPT: Duration = Duration::from_secs(9);
    let key = |name: &str| format!("{p}{name}");
    let put_leased = |name: &str, lease| Op::Put { key: key(name), value: b"x".to_vec(), lease: Some(lease) };
    let revoked = store.grant(Duration::from_secs(60)).await.unwrap();
    let start = write(store, vec![put_leased("revoked", revoked)]).await;
    let mut watch = store.watch(&[p.to_owned()], start, None).await.unwrap();
    store.revoke(revoked).await.unwrap();
    assert_eq!(text(&delta(&mut watch).await), [format!("-{}", key("revoked"))]);
    assert_eq!(value(store, &key("revoked")).await, None);
    store.revoke(revoked).await.unwrap();
    assert!(!store.keep_alive(revoked).await.unwrap());
    let gone = store.commit(Txn { compare: vec![], ops: vec![put_leased("late", revoked)] }).await;
    assert!(matches!(gone, Err(StoreError::LeaseEnded(lease)) if lease == revoked), "{gone:?}");

    // The short lease suffices for the two writes below; the kept one tolerates a store that stalls between
    // renewals.
    let kept = store.grant(KEPT).await.unwrap();
    let kept_ends = tokio::time::Instant::now() + KEPT;
    let short = store.grant(Duration::from_secs(5)).await.unwrap();
    let leased = vec![
        put_leased("short/1", short),
        put_leased("short/2", short),
        put_leased("freed", short),
        put_leased("kept", kept),
    ];
    write(store, leased).await;
    assert_eq!(delta(&mut watch).await.changes.len(), 4);

    // A write without the lease detaches its key.
    write(store, vec![put(&key("freed"), "free")]).await;
    assert_eq!(text(&delta(&mut watch).await), [format!("+{}=free", key("freed"))]);

    // One lease lives while it is renewed; the other expires, which watchers see as one change.
    let renewing = async |until: Option<tokio::time::Instant>| {
        while until.is_none_or(|end| tokio::time::Instant::now() < end) {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(store.keep_alive(kept).await.unwrap());
        }
    };
    let ended = tokio::select! {
        ended = delta(&mut watch) => ended,
        () = renewing(None) => unreachable!(),
    };
    let mut got = text(&ended);
    got.sort();
    assert_eq!(got, [format!("-{}", key("short/1")), format!("-{}", key("short/2"))]);
    assert!(!store.keep_alive(short).await.unwrap());
    // Past its original end, and past the time that a store takes to notice.
    renewing(Some(kept_ends + Duration::from_secs(1))).await;
    let list = store.list(&[p.to_owned()]).await.unwrap();
    let keys: Vec<_> = list.entries.into_iter().map(|kv| kv.key).collect();
    assert_eq!(keys, [key("freed"), key("kept")]);
    let absent =
        Txn { compare: vec![Compare::Absent(key("short/1"))], ops: vec![put(&key("short/1"), "new")] };
    assert!(matches!(store.commit(absent).await.unwrap(), Outcome::Committed(_)));
}

pub(crate) async fn counters(stores: Vec<Shared>, p: &str) {
    const EACH: u64 = 25;
    let key = format!("{p}counter");
    write(&stores[0], vec![put(&key, "0")]).await;
    let writers = u64::try_from(stores.len()).unwrap();
    let tasks: Vec<_> = stores
        .iter()
        .cloned()
        .map(|store| {
            let key = key.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    add_one(&store, &key).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(value(&stores[0], &key).await, Some((writers * EACH).to_string()));
}

/// Adds one by compare-and-set.
pub(crate) async fn add_one(store: &Shared, key: &str) {
    loop {
        let now = store.get(key).await.unwrap().unwrap();
        let next = String::from_utf8(now.value).unwrap().parse::<u64>().unwrap() + 1;
        let txn = Txn {
            compare: vec![Compare::ModRevision(key.to_owned(), now.mod_revision)],
            ops: vec![put(key, &next.to_string())],
        };
        if let Outcome::Committed(_) = store.commit(txn).await.unwrap() {
            return;
        }
    }
}

pub(crate) async fn large_list(store: &Shared, p: &str) {
    let value = "v".repeat(3_000);
    let ops: Vec<Op> = (0..3_500).map(|i| put(&format!("{p}{i:05}"), &value)).collect();
    let expected: Vec<String> = ops.iter().map(|op| op.key().to_owned()).collect();
    for txn in tortie_store::split(ops).unwrap() {
        store.commit(txn).await.unwrap();
    }
    let list = store.list(&strings([p])).await.unwrap();
    assert!(list.entries.iter().map(|kv| kv.value.len()).sum::<usize>() > 10_000_000);
    assert_eq!(list.entries.into_iter().map(|kv| kv.key).collect::<Vec<_>>(), expected);
    let (values, read) = store.read(&strings([&expected[7]]), &strings([p])).await.unwrap();
    assert_eq!(values[0].as_ref().map(|kv| &kv.key), Some(&expected[7]));
    assert_eq!(read.entries.into_iter().map(|kv| kv.key).collect::<Vec<_>>(), expected);
    // The same through a watch.
    let first = store.get(&expected[0]).await.unwrap().unwrap().mod_revision;
    let mut watch = store.watch(&strings([p]), first - 1, None).await.unwrap();
    let mut keys = Vec::new();
    while keys.len() < expected.len() {
        for change in delta(&mut watch).await.changes {
            let Change::Put(kv) = change else { panic!("a deletion") };
            assert_eq!(kv.value.len(), value.len());
            keys.push(kv.key);
        }
    }
    assert_eq!(keys, expected);
    write(store, vec![Op::DeletePrefix { prefix: p.to_owned() }]).await;
    assert!(store.list(&strings([p])).await.unwrap().entries.is_empty());
}
