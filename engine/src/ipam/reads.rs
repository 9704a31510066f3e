//! What a plan knows of the store, and what it asks for.

use std::collections::{BTreeMap, BTreeSet};

use super::IpamError;
use tortie_store::{KeyValue, Revision, Snapshot, Txn};

/// What a plan comes to.
#[derive(Debug)]
pub(super) enum PlanStep<A> {
    /// Read these, then plan again.
    Need(ReadRequest),
    /// Commit this (nothing, when it has no writes), then give this answer.
    Txn(Txn, A),
    /// It cannot be done.
    Err(IpamError),
}

/// What has to be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) keys: BTreeSet<String>,
    pub(super) prefixes: BTreeSet<String>,
    /// Prefixes of which only it matters which keys there are.
    pub(super) names: BTreeSet<String>,
}

/// Why a step of a plan cannot go on.
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

/// A value and the revision of its last write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReadValue {
    pub(super) value: Vec<u8>,
    pub(super) revision: Revision,
}

/// What was read, possibly at several revisions: a transaction compares what it rests on.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadState {
    keys: BTreeMap<String, Option<ReadValue>>,
    listed: BTreeSet<String>,
    /// Prefixes of which the names of all keys are known.
    named: BTreeSet<String>,
    names: BTreeSet<String>,
}

impl ReadState {
    /// Takes what single reads brought: the key, and its value or that it does not exist.
    pub(super) fn insert(&mut self, key: String, found: Option<KeyValue>) {
        let known = found.map(|kv| ReadValue { value: kv.value, revision: kv.mod_revision });
        self.keys.insert(key, known);
    }

    /// Takes a listing of prefixes, which replaces all that was known below them.
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

    /// Takes the names of the keys below prefixes. What is known of a key already stays.
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

    /// `None`: not known. `Some(None)`: known not to exist.
    pub(super) fn get(&self, key: &str) -> Option<Option<&ReadValue>> {
        match self.keys.get(key) {
            Some(known) => Some(known.as_ref()),
            None if self.is_listed(key) => Some(None),
            None => (self.is_named(key) && !self.names.contains(key)).then_some(None),
        }
    }

    /// The same, asking for it when it is not known.
    pub(super) fn read(&self, key: &str) -> Result<Option<&ReadValue>, PlanStop> {
        self.get(key).ok_or_else(|| {
            PlanStop::Need(ReadRequest { keys: [key.to_owned()].into(), ..ReadRequest::default() })
        })
    }

    /// Asks for whatever of these is not known, at once.
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

    /// The same where it is enough to know which keys exist.
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

    /// Asks for the names of the keys below a prefix, unless they are known.
    pub(super) fn request_names(&self, prefix: &str) -> Result<(), PlanStop> {
        if self.is_listed(prefix) || self.is_named(prefix) {
            return Ok(());
        }
        Err(PlanStop::Need(ReadRequest { names: [prefix.to_owned()].into(), ..ReadRequest::default() }))
    }

    /// The names of the keys below a prefix that exist, as far as they are known; in no particular order.
    pub(super) fn names(&self, prefix: &str) -> impl Iterator<Item = &str> {
        let start = prefix.to_owned();
        let named = self.names.range(start.clone()..).take_while(move |key| key.starts_with(&start));
        let unread = named.filter(|key| !self.keys.contains_key(*key) && !self.is_listed(key));
        self.existing(prefix).map(|(key, _)| key).chain(unread.map(String::as_str))
    }

    /// The keys below a prefix that exist, as far as they are known; in order.
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
