//! Access to the records in the store: read, list, and change by compare-and-set.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tortie_config::key::{DockerItem, Key, escape, prefix};

use super::error::Refusal;
use tortie_store::{Compare, KeyValue, Op, Outcome, Revision, Store, Txn};

/// Maximum number of attempts if concurrent writes make a transaction fail.
const TRIES: usize = 30;

/// The records of this host.
#[derive(Clone)]
pub(super) struct State {
    pub(super) store: Arc<dyn Store>,
    pub(super) host: String,
}

/// Kind of records to list.
#[derive(Debug, Clone, Copy)]
pub(super) enum RecordKind<'a> {
    /// Pools of a driver.
    Pools(&'a str),
    /// Addresses of all address spaces.
    Addresses,
    Networks,
    Endpoints,
}

impl State {
    pub(super) fn key(&self, item: &DockerItem) -> String {
        Key::Docker { host: self.host.clone(), item: item.clone() }.to_string()
    }

    /// Returns a record and its revision.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        item: &DockerItem,
    ) -> Result<Option<(T, Revision)>, Refusal> {
        let key = self.key(item);
        let Some(found) = self.store.get(&key).await? else { return Ok(None) };
        Ok(Some((read(&found)?, found.mod_revision)))
    }

    /// Replaces a record by the result of `change`; `None` deletes it. Returns the new record.
    pub(super) async fn change<T>(
        &self,
        item: &DockerItem,
        mut change: impl FnMut(Option<T>) -> Result<Option<T>, Refusal>,
    ) -> Result<Option<T>, Refusal>
    where
        T: Serialize + DeserializeOwned,
    {
        let key = self.key(item);
        for _ in 0..TRIES {
            let old = self.store.get(&key).await?;
            let compare = old.as_ref().map_or_else(
                || Compare::Absent(key.clone()),
                |old| Compare::ModRevision(key.clone(), old.mod_revision),
            );
            let new = change(old.as_ref().map(read).transpose()?)?;
            let op = match &new {
                Some(record) => Op::Put { key: key.clone(), value: text(record)?, lease: None },
                None if old.is_none() => return Ok(None),
                None => Op::Delete { key: key.clone() },
            };
            let txn = Txn { compare: vec![compare], ops: vec![op] };
            if let Outcome::Committed(_) = self.store.commit(txn).await? {
                return Ok(new);
            }
        }
        Err(Refusal::new(format!("another process keeps changing {key}: try again later")))
    }

    /// Writes a record unconditionally.
    pub(super) async fn put<T: Serialize>(&self, item: &DockerItem, record: &T) -> Result<(), Refusal> {
        let op = Op::Put { key: self.key(item), value: text(record)?, lease: None };
        self.store.commit(Txn { compare: Vec::new(), ops: vec![op] }).await?;
        Ok(())
    }

    /// Deletes a record if it has not changed since this revision; `false` if it has.
    pub(super) async fn remove(&self, item: &DockerItem, revision: Revision) -> Result<bool, Refusal> {
        let key = self.key(item);
        let txn =
            Txn { compare: vec![Compare::ModRevision(key.clone(), revision)], ops: vec![Op::Delete { key }] };
        Ok(matches!(self.store.commit(txn).await?, Outcome::Committed(_)))
    }

    /// Returns all records of a kind. A record that cannot be parsed is logged and omitted.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        kind: RecordKind<'_>,
    ) -> Result<Vec<(DockerItem, T, Revision)>, Refusal> {
        let mut below = prefix::docker(&self.host);
        match kind {
            RecordKind::Pools(driver) => below.push_str(&format!("driver/{}/pool/", escape(driver))),
            RecordKind::Addresses => below.push_str("address/"),
            RecordKind::Networks => below.push_str("network/"),
            RecordKind::Endpoints => below.push_str("endpoint/"),
        }
        let mut all = Vec::new();
        for entry in self.store.list(&[below]).await?.entries {
            let Ok(Key::Docker { item, .. }) = Key::parse(&entry.key) else { continue };
            match read(&entry) {
                Ok(record) => all.push((item, record, entry.mod_revision)),
                Err(error) => tracing::warn!(target: "tortie::docker", "left out: {error}"),
            }
        }
        Ok(all)
    }
}

fn read<T: DeserializeOwned>(entry: &KeyValue) -> Result<T, Refusal> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| Refusal::new(format!("{}: {error}; see `tortie store validate`", entry.key)))
}

fn text<T: Serialize>(record: &T) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(record).map_err(|error| Refusal::new(error.to_string()))
}
