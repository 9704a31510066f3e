//! A store in memory that checks each change of a value: no client may give an allocated address to another holder,
//! or drop a member that it does not know.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::Value;
use tortie_config::Dialect;
use tortie_store::{
    Compare, History, KeyValue, LeaseId, Op, Outcome, Revision, Snapshot, Store, StoreError, Txn, Watch,
};

#[derive(Default)]
pub(super) struct MemoryStore {
    state: Mutex<(Revision, BTreeMap<String, KeyValue>)>,
    /// Number of operations so far.
    pub(super) steps: AtomicU64,
}

/// Lets the scheduler run another client before an operation.
struct YieldOnce(bool);

impl Future for YieldOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl MemoryStore {
    /// Lets the other clients run, and counts the operation.
    pub(super) async fn operation(&self) {
        YieldOnce(false).await;
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn put(&self, key: &str, value: &Value) {
        self.write(
            vec![],
            vec![Op::Put { key: key.to_owned(), value: value.to_string().into(), lease: None }],
        );
    }

    pub(super) fn delete(&self, key: &str) {
        self.write(vec![], vec![Op::Delete { key: key.to_owned() }]);
    }

    pub(super) fn value(&self, key: &str) -> Option<Value> {
        self.entry(key).map(|kv| serde_json::from_slice(&kv.value).unwrap())
    }

    pub(super) fn entry(&self, key: &str) -> Option<KeyValue> {
        self.state.lock().unwrap().1.get(key).cloned()
    }

    pub(super) fn below(&self, prefix: &str) -> Vec<KeyValue> {
        let state = self.state.lock().unwrap();
        state
            .1
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|e| e.1.clone())
            .collect()
    }

    /// Writes without a turn. Returns false if a condition does not hold.
    pub(super) fn write(&self, compare: Vec<Compare>, ops: Vec<Op>) -> bool {
        let mut state = self.state.lock().unwrap();
        let holds = |compare: &Compare| {
            let known = state.1.get(compare.key());
            match compare {
                Compare::Absent(_) => known.is_none(),
                Compare::Present(_) => known.is_some(),
                Compare::ModRevision(_, revision) => known.is_some_and(|kv| kv.mod_revision == *revision),
                Compare::Value(_, value) => known.is_some_and(|kv| kv.value == *value),
            }
        };
        if !compare.iter().all(holds) {
            return false;
        }
        state.0 += 1;
        let revision = state.0;
        for op in ops {
            let before = state.1.get(op.key()).cloned();
            match op {
                Op::Put { key, value, .. } => {
                    check(&key, before.as_ref().map(|kv| &*kv.value), Some(&value));
                    let create_revision = before.map_or(revision, |kv| kv.create_revision);
                    let kv = KeyValue { key: key.clone(), value, mod_revision: revision, create_revision };
                    state.1.insert(key, kv);
                }
                Op::Delete { key } => {
                    check(&key, before.as_ref().map(|kv| &*kv.value), None);
                    state.1.remove(&key);
                }
                Op::DeletePrefix { prefix } => panic!("nothing of IPAM deletes a prefix: {prefix}"),
            }
        }
        true
    }
}

/// Returns the holder of each allocated ordinal of a block.
pub(super) fn held(block: &Value) -> BTreeMap<usize, Value> {
    let entry = |(ordinal, index): (usize, &Value)| {
        let attribute = block["attributes"][usize::try_from(index.as_u64()?).ok()?].clone();
        attribute["releasedAt"].is_null().then_some((ordinal, attribute))
    };
    block["allocations"].as_array().unwrap().iter().enumerate().filter_map(entry).collect()
}

/// Panics if a change of a block takes an address from its holder, drops a member that nobody knows, or does not
/// increment the sequence number.
pub(super) fn check(key: &str, before: Option<&[u8]>, after: Option<&[u8]>) {
    if !key.starts_with("/calico/ipam/v2/") {
        return;
    }
    let parse = |value: &[u8]| serde_json::from_slice::<Value>(value).unwrap();
    let (Some(before), after) = (before.map(parse), after.map(parse)) else { return };
    if let Some(after) = &after {
        assert_eq!(before["later"], after["later"], "{key}: a member was lost");
    }
    if !key.contains("/assignment/") || before["deleted"] == true {
        return;
    }
    let Some(after) = after else { return };
    let now = held(&after);
    for (ordinal, holder) in held(&before) {
        let still = now.get(&ordinal);
        assert!(still.is_none_or(|still| *still == holder), "{key}: {ordinal} of {holder} is {still:?}'s");
    }
    let number = |block: &Value| block["sequenceNumber"].as_u64().unwrap_or(0);
    assert_eq!(number(&after), number(&before) + 1, "{key}");
}

#[async_trait::async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.operation().await;
        Ok(self.entry(key))
    }

    async fn dialect(&self) -> Result<Dialect, StoreError> {
        Ok(Dialect::V3)
    }

    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        self.operation().await;
        let entries =
            tortie_store::disjoint_prefixes(prefixes).iter().flat_map(|prefix| self.below(prefix)).collect();
        let revision = self.state.lock().unwrap().0;
        Ok(Snapshot { revision, store_id: "memory".to_owned(), entries, ..Snapshot::default() })
    }

    async fn watch(
        &self,
        _: &[String],
        _: Revision,
        _: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        unreachable!("IPAM does not watch")
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.operation().await;
        let committed = self.write(txn.compare, txn.ops);
        let revision = self.state.lock().unwrap().0;
        Ok(if committed { Outcome::Committed(revision) } else { Outcome::Conflict })
    }

    async fn grant(&self, _: Duration) -> Result<LeaseId, StoreError> {
        unreachable!("IPAM has no leases")
    }

    async fn keep_alive(&self, _: LeaseId) -> Result<bool, StoreError> {
        unreachable!("IPAM has no leases")
    }

    async fn revoke(&self, _: LeaseId) -> Result<(), StoreError> {
        unreachable!("IPAM has no leases")
    }

    async fn compact(&self, _: Revision) -> Result<(), StoreError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}
