//! Store values that a plan has read, and the reads that it requests.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::IpamError;
use tortie_store::{KeyValue, Revision, Snapshot, Txn};

/// Result of one run of a plan.
#[derive(Debug)]
pub(super) enum PlanStep<A> {
    /// The plan needs these reads, then runs again.
    Need(ReadRequest),
    /// The plan is complete: commit the transaction (empty if nothing has to be written), then return the
    /// answer.
    Txn(Txn, A),
    /// The plan failed.
    Err(IpamError),
}

/// Keys and prefixes to read from the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) keys: BTreeSet<String>,
    pub(super) prefixes: BTreeSet<String>,
    /// Prefixes of which only the key names are needed, not the values.
    pub(super) names: BTreeSet<String>,
}

/// Reason for which a plan stops early.
#[derive(Debug)]
pub(super) enum PlanStop {
    Need(ReadRequest),
    Err(IpamError),
}

impl From<IpamError> for PlanStop {
    fn from(error: IpamError) -> Self {
        Self::Err(error)
    }
}

/// A value with the revision of its last write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadValue {
    pub(super) value: Vec<u8>,
    pub(super) revision: Revision,
}

/// Values read so far, possibly at different revisions. The transaction compares those that it depends on.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadState {
    /// Time of the first read.
    now: Timestamp,
    keys: BTreeMap<String, Option<ReadValue>>,
    listed: BTreeSet<String>,
    /// Prefixes whose key names have all been read.
    named: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl ReadState {
    /// Creates a state without values, at the time of its first read.
    pub(super) fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// Returns the time of the first read.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Records a single read: the value of a key, or its absence.
    pub(super) fn insert(&mut self, key: String, found: Option<KeyValue>) {
        let known = found.map(|kv| ReadValue { value: kv.value, revision: kv.mod_revision });
        self.keys.insert(key, known);
    }

    /// Records a listing of prefixes, which replaces all earlier values below them.
    pub(super) fn insert_list(&mut self, prefixes: &BTreeSet<String>, snapshot: Snapshot) {
        for prefix in prefixes {
            let below: Vec<String> = self.below(prefix).map(|(key, _)| key.to_owned()).collect();
            for key in below {
                self.keys.insert(key, None);
            }
            self.listed.insert(prefix.clone());
        }
        for kv in snapshot.entries {
            self.insert(kv.key.clone(), Some(kv));
        }
    }

    /// Records the key names below prefixes. Values that were read before stay.
    pub(super) fn insert_names(&mut self, prefixes: BTreeSet<String>, names: Vec<String>) {
        self.named.extend(prefixes);
        self.names.extend(names);
    }

    fn is_listed(&self, key: &str) -> bool {
        self.listed.iter().any(|prefix| key.starts_with(prefix.as_str()))
    }

    fn is_named(&self, key: &str) -> bool {
        self.named.iter().any(|prefix| key.starts_with(prefix.as_str()))
    }

    /// Returns the value of a key. `None` means that it has not been read, `Some(None)` that it does not
    /// exist.
    pub(super) fn get(&self, key: &str) -> Option<Option<&ReadValue>> {
        match self.keys.get(key) {
            Some(known) => Some(known.as_ref()),
            None if self.is_listed(key) => Some(None),
            None => (self.is_named(key) && !self.names.contains(key)).then_some(None),
        }
    }

    /// Returns the value of a key, or requests it if it has not been read.
    pub(super) fn read(&self, key: &str) -> Result<Option<&ReadValue>, PlanStop> {
        self.get(key).ok_or_else(|| {
            PlanStop::Need(ReadRequest { keys: [key.to_owned()].into(), ..ReadRequest::default() })
        })
    }

    /// Requests all keys and prefixes that have not been read, in one step.
    pub(super) fn request_key(
        &self,
        keys: impl IntoIterator<Item = String>,
        prefixes: impl IntoIterator<Item = String>,
    ) -> Result<(), PlanStop> {
        let needs = ReadRequest {
            keys: keys.into_iter().filter(|key| self.get(key).is_none()).collect(),
            prefixes: prefixes.into_iter().filter(|prefix| !self.is_listed(prefix)).collect(),
            ..ReadRequest::default()
        };
        if needs == ReadRequest::default() { Ok(()) } else { Err(PlanStop::Need(needs)) }
    }

    /// Requests the existence of keys; the values are not needed.
    pub(super) fn request_existence(
        &self,
        keys: impl IntoIterator<Item = String>,
        prefixes: impl IntoIterator<Item = String>,
    ) -> Result<(), PlanStop> {
        self.request_key(
            keys.into_iter().filter(|key| !self.is_named(key)),
            prefixes.into_iter().filter(|prefix| !self.is_named(prefix)),
        )
    }

    /// Requests the key names below a prefix, unless they have been read.
    pub(super) fn request_names(&self, prefix: &str) -> Result<(), PlanStop> {
        if self.is_listed(prefix) || self.is_named(prefix) {
            return Ok(());
        }
        Err(PlanStop::Need(ReadRequest { names: [prefix.to_owned()].into(), ..ReadRequest::default() }))
    }

    /// Returns the known key names below a prefix, unordered.
    pub(super) fn names(&self, prefix: &str) -> impl Iterator<Item = &str> {
        let start = prefix.to_owned();
        let named = self.names.range(start.clone()..).take_while(move |key| key.starts_with(&start));
        let unread = named.filter(|key| !self.keys.contains_key(*key) && !self.is_listed(key));
        self.existing(prefix).map(|(key, _)| key).chain(unread.map(String::as_str))
    }

    /// Returns the known keys below a prefix with their values, in key order.
    pub(super) fn existing(&self, prefix: &str) -> impl Iterator<Item = (&str, &ReadValue)> {
        self.below(prefix).filter_map(|(key, known)| Some((key, known?)))
    }

    fn below<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a str, Option<&'a ReadValue>)> + use<'a> {
        let prefix = prefix.to_owned();
        self.keys
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
            .map(|(key, known)| (key.as_str(), known.as_ref()))
    }
}
