//! Follows all changes of a store's IPAM data, in the order of its revisions, and checks each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tortie_store::{Change, Op, Store, StoreError, Txn, WatchEvent};

use super::memory::{check, held};

const IPAM: &str = "/calico/ipam/v2/";
/// The key whose creation ends the history.
const END: &str = "/calico/ipam/v2/handle/end.of-the-history";

/// Makes a call until etcd answers: it may be late while the machine is busy with processes.
pub(super) async fn answered<T, F>(call: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match call().await {
            Err(StoreError::Unreachable(_)) if Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other => return other.unwrap(),
        }
    }
}

/// Numbers of changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) all: usize,
    /// Of blocks with a member that nobody knows.
    pub(super) of_unknown: usize,
}

pub(super) struct History {
    store: Arc<dyn Store>,
    task: JoinHandle<Changes>,
}

impl History {
    /// Begins with the present state.
    pub(super) async fn follow(store: Arc<dyn Store>) -> Self {
        let prefixes = [IPAM.to_owned()];
        let begin = store.list(&prefixes).await.unwrap();
        let mut known: BTreeMap<String, Vec<u8>> =
            begin.entries.into_iter().map(|kv| (kv.key, kv.value)).collect();
        let mut last = begin.revision;
        let mut watch = store.watch(&prefixes, last, None).await.unwrap();
        let source = Arc::clone(&store);
        let task = tokio::spawn(async move {
            let mut changes = Changes::default();
            loop {
                let delta = match watch.next().await {
                    Ok(WatchEvent::Delta(delta)) => delta,
                    Ok(WatchEvent::Progress(_)) => continue,
                    Ok(WatchEvent::Compacted { oldest }) => panic!("compacted at {oldest}"),
                    Err(_) => {
                        watch = answered(|| source.watch(&prefixes, last, None)).await;
                        continue;
                    }
                };
                last = delta.revision;
                for change in delta.changes {
                    let (key, after) = match change {
                        Change::Put(kv) => (kv.key, Some(kv.value)),
                        Change::Delete { key } => (key, None),
                    };
                    if key == END {
                        return changes;
                    }
                    let before = match &after {
                        Some(value) => known.insert(key.clone(), value.clone()),
                        None => known.remove(&key),
                    };
                    verify(&key, before.as_deref(), after.as_deref());
                    changes.all += 1;
                    let is_unknown =
                        |value: Vec<u8>| String::from_utf8(value).unwrap().contains(r#""later":{"#);
                    changes.of_unknown += usize::from(before.is_some_and(is_unknown));
                }
            }
        });
        Self { store, task }
    }

    /// Waits until all changes are checked, and returns their number.
    pub(super) async fn end(self) -> Changes {
        let put = Op::Put { key: END.to_owned(), value: br#"{"block":{}}"#.to_vec(), lease: None };
        let delete = Op::Delete { key: END.to_owned() };
        for op in [put, delete] {
            let txn = Txn { compare: vec![], ops: vec![op] };
            answered(|| self.store.commit(txn.clone())).await;
        }
        self.task.await.unwrap()
    }
}

/// Panics if a change gives an allocated address to another holder, loses a member that nobody knows, or
/// leaves a block in which an address is allocated and free, or neither; or if it deletes a block that more
/// than the last holder was in.
fn verify(key: &str, before: Option<&[u8]>, after: Option<&[u8]>) {
    check(key, before, after);
    if !key.contains("/assignment/") {
        return;
    }
    let parse = |value: &[u8]| serde_json::from_slice::<Value>(value).unwrap();
    if let Some(after) = after.map(parse) {
        let size = after["allocations"].as_array().unwrap().len();
        let mut ordinals: Vec<Value> = after["unallocated"].as_array().unwrap().clone();
        ordinals.extend(held(&after).into_keys().map(|ordinal| json!(ordinal)));
        ordinals.sort_by_key(Value::as_u64);
        let all: Vec<Value> = (0..size).map(|ordinal| json!(ordinal)).collect();
        assert_eq!(ordinals, all, "{key}: {after}");
    } else if let Some(before) = before.map(parse) {
        let holders: BTreeSet<String> = held(&before).values().map(ToString::to_string).collect();
        assert!(holders.len() < 2, "{key} is deleted with addresses of {holders:?}");
    }
}
