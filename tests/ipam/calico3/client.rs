//! A client with Calico's order of steps, each a read or a compare-and-set of a single key. It knows one pool
//! with blocks of four addresses, and keeps the members that it does not know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tortie_store::{Compare, KeyValue, Op, Outcome, Store, Txn};

use super::memory::MemoryStore;
use super::{affinity_key, block_key, handle_key};

/// Blocks of the pool of most tests.
pub(super) const BLOCKS: [&str; 4] = ["10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"];
/// Number of attempts after conflicts.
const TRIES: usize = 100;

/// Distinguishes the first sequence numbers of blocks that one process creates in the same moment.
static CREATED: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(super) struct Calico {
    store: Arc<dyn Store>,
    host: String,
    /// Blocks of the pool.
    blocks: Vec<String>,
}

fn parse(kv: &KeyValue) -> Value {
    serde_json::from_slice(&kv.value).unwrap()
}

impl Calico {
    /// Returns a client that knows [`BLOCKS`].
    pub(super) fn new(store: &Arc<MemoryStore>, host: &str) -> Self {
        let blocks = BLOCKS.map(str::to_owned).to_vec();
        Self::on(Arc::clone(store) as Arc<dyn Store>, host, blocks)
    }

    pub(super) fn on(store: Arc<dyn Store>, host: &str, blocks: Vec<String>) -> Self {
        Self { store, host: host.to_owned(), blocks }
    }

    async fn get(&self, key: &str) -> Option<KeyValue> {
        self.store.get(key).await.unwrap()
    }

    /// Creates a key, or changes the one that was read.
    async fn cas(&self, key: &str, read: Option<&KeyValue>, value: &Value) -> bool {
        let compare = read.map_or_else(
            || Compare::Absent(key.to_owned()),
            |kv| Compare::ModRevision(key.to_owned(), kv.mod_revision),
        );
        let op = Op::Put { key: key.to_owned(), value: value.to_string().into(), lease: None };
        self.commit(compare, op).await
    }

    async fn remove(&self, read: &KeyValue) -> bool {
        let compare = Compare::ModRevision(read.key.clone(), read.mod_revision);
        self.commit(compare, Op::Delete { key: read.key.clone() }).await
    }

    async fn commit(&self, compare: Compare, op: Op) -> bool {
        let txn = Txn { compare: vec![compare], ops: vec![op] };
        matches!(self.store.commit(txn).await.unwrap(), Outcome::Committed(_))
    }

    fn owner(&self) -> String {
        format!("host:{}", self.host)
    }

    /// Allocates one address: from own blocks, from a new one, from others'.
    pub(super) async fn assign(&self, handle: &str) -> Option<String> {
        for _ in 0..TRIES {
            let own = format!("/calico/ipam/v2/host/{}/", self.host);
            for affinity in self.store.list(&[own]).await.unwrap().entries {
                let block =
                    self.blocks.iter().find(|block| affinity_key(&self.host, block) == affinity.key)?;
                if let Some(addr) = self.assign_from_affine(block, handle).await {
                    return Some(addr);
                }
            }
            for block in &self.blocks {
                if self.get(&block_key(block)).await.is_none()
                    && let Some(addr) = self.assign_from_affine(block, handle).await
                {
                    return Some(addr);
                }
            }
            for block in &self.blocks {
                if let Some(addr) = self.assign_from_block(block, handle, false).await {
                    return Some(addr);
                }
            }
        }
        None
    }

    /// Makes the host the owner of a block, and allocates from it.
    async fn assign_from_affine(&self, block: &str, handle: &str) -> Option<String> {
        let key = affinity_key(&self.host, block);
        let known = self.get(&key).await;
        let state = known.as_ref().map(|kv| parse(kv)["state"].clone());
        if state != Some(json!("confirmed")) {
            if state != Some(json!("pending")) {
                let mut value = known.as_ref().map_or_else(|| json!({}), parse);
                value["state"] = json!("pending");
                value["deleted"] = json!(false);
                if !self.cas(&key, known.as_ref(), &value).await {
                    return None;
                }
            }
            let pending = self.get(&key).await?;
            if !self.claim(block).await {
                self.remove(&pending).await;
                return None;
            }
            let mut value = parse(&pending);
            value["state"] = json!("confirmed");
            if !self.cas(&key, Some(&pending), &value).await {
                return None;
            }
        } else if self.get(&block_key(block)).await.is_none() && !self.claim(block).await {
            return None;
        }
        self.assign_from_block(block, handle, true).await
    }

    /// Creates a block, or writes it again under the pending affinity. Returns false if it is another's.
    async fn claim(&self, block: &str) -> bool {
        let key = block_key(block);
        let new = json!({
            "cidr": block, "affinity": self.owner(), "affinity_claim_time": "2020-01-01T00:00:00Z",
            "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [],
            "deleted": false, "sequenceNumber": first_sequence_number(),
            "sequenceNumberForAllocation": {}
        });
        if self.cas(&key, None, &new).await {
            return true;
        }
        let Some(kv) = self.get(&key).await else { return false };
        let mut value = parse(&kv);
        if value["affinity"] != json!(self.owner()) {
            return false;
        }
        count(&mut value);
        self.cas(&key, Some(&kv), &value).await
    }

    /// Counts the handle, then writes the block; takes the count back if that fails.
    async fn assign_from_block(&self, block: &str, handle: &str, affine: bool) -> Option<String> {
        for _ in 0..TRIES {
            let kv = self.get(&block_key(block)).await?;
            let mut value = parse(&kv);
            let is_own = value["affinity"] == json!(self.owner());
            if (affine && !is_own) || value["unallocated"].as_array()?.is_empty() {
                return None;
            }
            self.count_handle(handle, block, 1).await;
            let ordinal = value["unallocated"].as_array_mut()?.remove(0);
            let attribute = json!({"handle_id": handle, "secondary": {"node": self.host}});
            let list = value["attributes"].as_array_mut()?;
            let index = list.iter().position(|known| *known == attribute).unwrap_or(list.len());
            if index == list.len() {
                list.push(attribute);
            }
            value["allocations"][usize::try_from(ordinal.as_u64()?).ok()?] = json!(index);
            value["sequenceNumberForAllocation"][ordinal.to_string()] = value["sequenceNumber"].clone();
            count(&mut value);
            if self.cas(&block_key(block), Some(&kv), &value).await {
                let cidr: tortie_net::Cidr = block.parse().unwrap();
                return Some(cidr.nth(ordinal.as_u64()?.into())?.to_string());
            }
            self.count_handle(handle, block, -1).await;
        }
        None
    }

    async fn count_handle(&self, handle: &str, block: &str, by: i64) {
        let key = handle_key(handle);
        for _ in 0..TRIES {
            let known = self.get(&key).await;
            let mut value = known.as_ref().map_or_else(|| json!({"block": {}, "deleted": false}), parse);
            let left = value["block"][block].as_i64().unwrap_or(0) + by;
            let blocks = value["block"].as_object_mut().unwrap();
            if left > 0 {
                blocks.insert(block.to_owned(), left.into());
            } else {
                blocks.remove(block);
            }
            let done = match (&known, blocks.is_empty()) {
                (Some(kv), true) => self.remove(kv).await,
                (None, true) => true,
                (_, false) => self.cas(&key, known.as_ref(), &value).await,
            };
            if done {
                return;
            }
        }
    }

    /// Releases the addresses of a handle, block by block.
    pub(super) async fn release(&self, handle: &str) {
        let Some(known) = self.get(&handle_key(handle)).await else { return };
        let blocks: Vec<String> = parse(&known)["block"].as_object().unwrap().keys().cloned().collect();
        for block in blocks {
            for _ in 0..TRIES {
                let Some(kv) = self.get(&block_key(&block)).await else { break };
                let mut value = parse(&kv);
                let ordinals: Vec<usize> = super::memory::held(&value)
                    .into_iter()
                    .filter(|(_, attribute)| attribute["handle_id"] == json!(handle))
                    .map(|(ordinal, _)| ordinal)
                    .collect();
                if ordinals.is_empty() {
                    break;
                }
                for ordinal in &ordinals {
                    value["allocations"][*ordinal] = Value::Null;
                    value["unallocated"].as_array_mut().unwrap().push(json!(ordinal));
                    if let Some(numbers) = value["sequenceNumberForAllocation"].as_object_mut() {
                        numbers.remove(&ordinal.to_string());
                    }
                }
                count(&mut value);
                let is_empty = value["allocations"].as_array().unwrap().iter().all(Value::is_null);
                let done = if is_empty && value["affinity"].is_null() {
                    self.remove(&kv).await
                } else {
                    self.cas(&block_key(&block), Some(&kv), &value).await
                };
                if done {
                    self.count_handle(handle, &block, -i64::try_from(ordinals.len()).unwrap()).await;
                    break;
                }
            }
        }
    }

    /// Gives up a block: mark, delete the empty block or remove its owner, delete the affinity.
    pub(super) async fn give_up(&self, block: &str) {
        for _ in 0..TRIES {
            let key = affinity_key(&self.host, block);
            let Some(known) = self.get(&key).await else { return };
            let kv = self.get(&block_key(block)).await;
            let mut value = parse(&known);
            value["state"] = json!("pendingDeletion");
            if !self.cas(&key, Some(&known), &value).await {
                continue;
            }
            let Some(marked) = self.get(&key).await else { return };
            if let Some(kv) = kv {
                let mut value = parse(&kv);
                if value["affinity"] == json!(self.owner()) {
                    let done = if super::memory::held(&value).is_empty() {
                        self.remove(&kv).await
                    } else {
                        value["affinity"] = Value::Null;
                        count(&mut value);
                        self.cas(&kv.key, Some(&kv), &value).await
                    };
                    if !done {
                        continue;
                    }
                }
            }
            if self.remove(&marked).await {
                return;
            }
        }
    }
}

/// Returns nanoseconds since 1970.
fn first_sequence_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    u64::try_from(now).unwrap() + CREATED.fetch_add(1, Ordering::Relaxed)
}

fn count(block: &mut Value) {
    let next = block["sequenceNumber"].as_u64().unwrap_or(0) + 1;
    block["sequenceNumber"] = json!(next);
}
