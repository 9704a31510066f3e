//! Hand-written snapshots and deltas for tests.

use crate::{Change, Delta, KeyValue, Revision, Snapshot};

/// An entry written once, at `revision`.
#[must_use]
pub fn kv(key: &str, value: &str, revision: Revision) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        mod_revision: revision,
        create_revision: revision,
    }
}

/// A snapshot of the store `s1`, its entries sorted by key.
#[must_use]
pub fn snapshot(revision: Revision, entries: &[(&str, &str)]) -> Snapshot {
    let mut entries: Vec<_> = entries.iter().map(|(key, value)| kv(key, value, revision)).collect();
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    Snapshot { revision, store_id: "s1".to_owned(), entries, ..Snapshot::default() }
}

/// A delta with one put.
#[must_use]
pub fn put(revision: Revision, key: &str, value: &str) -> Delta {
    Delta { revision, changes: vec![Change::Put(kv(key, value, revision))] }
}

/// A delta with one deletion.
#[must_use]
pub fn delete(revision: Revision, key: &str) -> Delta {
    Delta { revision, changes: vec![Change::Delete { key: key.to_owned() }] }
}
