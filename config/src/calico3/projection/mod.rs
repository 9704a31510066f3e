//! Projection of Calico 3's objects to entries of the v1 model.
//!
//! Most kinds are projected one object at a time ([`project`]): the name of the object determines the v1
//! keys, so that no two objects give the same one. What depends on several objects (peers, pools, settings)
//! is a [`SECTIONS`] entry: a pure function of all objects of some kinds, computed anew when one of them
//! changes and compared with its former result. Both ways any order of writes ends as a fresh start does.
//!
//! ```text
//!  RawEntry, RawChange --> Object --+-- project(object) -----------> entries of this object
//!                                   +-- Objects --> section(all) --> entries, compared with the last ones
//! ```
//!
//! Keys outside of [`prefix::CALICO_3`] pass unchanged if both models have them (IPAM, Tortie's own), and are
//! dropped if they belong to the v1 model only.
//!
//! A value that is no object gives no entry; its problem names it. Where that would widen a policy, the file
//! of the kind emits a value that the v1 model reports as unreadable, so that the last good one stays in
//! force there.

mod entry;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::objects::Objects;
use super::output::{Output, Problem, Projected};
use super::{Kind, Object, ObjectKey, bgp, policy, settings};
use crate::Resource;
use crate::key::{Key, prefix};
use entry::Emitted;
pub use entry::{Entry, EntryChange, RawChange, RawEntry};

/// A result that depends on all objects of some kinds.
struct Section {
    /// Kinds of objects that the result depends on.
    reads: &'static [Kind],
    /// Returns true if the result depends on objects of a kind that it reads, given the other objects.
    needs: fn(&Objects, Kind) -> bool,
    compute: fn(&Objects, node: &str) -> Output,
}

/// The result depends on every kind that it reads.
fn always(_: &Objects, _: Kind) -> bool {
    true
}

/// All sections. No two may give the same key. One that reads nothing is constant.
const SECTIONS: &[Section] = &[
    Section { reads: &[], needs: always, compute: policy::built_in },
    Section { reads: bgp::PEERS_READ, needs: bgp::peers_need, compute: bgp::peers },
    Section { reads: bgp::CONFIGURATION_READ, needs: always, compute: bgp::configuration },
    Section { reads: bgp::POOLS_READ, needs: always, compute: bgp::pools },
    Section { reads: settings::READ, needs: always, compute: settings::settings },
];

/// Projects one object whose v1 keys its name determines. `implied` is the key that the name of a workload
/// endpoint implies.
fn project(object: Arc<Object>, implied: Option<Key>, node: &str) -> Output {
    // Only sections keep objects, so that almost all of them are not copied here.
    let owned = Arc::unwrap_or_clone;
    match object.key.kind {
        Kind::Node => bgp::node(&object),
        Kind::BGPFilter => bgp::filter(&object),
        Kind::IPReservation => bgp::reservation(&object),
        Kind::LiveMigration => bgp::live_migration(&object),
        Kind::WorkloadEndpoint => policy::workload_endpoint(owned(object), implied),
        Kind::HostEndpoint => policy::host_endpoint(owned(object)),
        Kind::Profile => policy::profile(owned(object)),
        Kind::GlobalNetworkSet | Kind::NetworkSet => policy::network_set(owned(object)),
        Kind::GlobalNetworkPolicy | Kind::NetworkPolicy => policy::policy(owned(object)),
        Kind::StagedGlobalNetworkPolicy | Kind::StagedNetworkPolicy | Kind::StagedKubernetesNetworkPolicy => {
            policy::staged(owned(object))
        }
        Kind::Tier => policy::tier(owned(object)),
        Kind::ClusterInformation => settings::cluster_information(&object, node),
        _ => Output::default(),
    }
}

/// Projects a value that is no object, where leaving it out would widen what is allowed.
fn project_unreadable(key: &ObjectKey, value: &[u8]) -> Output {
    policy::unreadable(key, value)
}

/// The v1 picture of a store of Calico 3, kept up to date. Pure: it neither reads nor writes a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    node: String,
    /// Objects that sections read.
    objects: Objects,
    /// Objects with the v1 keys that they gave, without those of workload endpoints that have no problem:
    /// their key says it.
    keys_of: BTreeMap<ObjectKey, Arc<[String]>>,
    problems_of: BTreeMap<ObjectKey, Vec<Problem>>,
    /// Policies of the tier `default` with a prefix in their key that users do not see.
    shortened: BTreeSet<ObjectKey>,
    /// Problems of those of them whose short name another policy has.
    doubles: BTreeMap<ObjectKey, Problem>,
    /// Last result of each section, by v1 key.
    sections: Vec<BTreeMap<String, Emitted>>,
    section_problems: Vec<Vec<Problem>>,
    /// Number of changes of the problems.
    problem_changes: u64,
    /// Number of keys of the v1 model that were dropped.
    v1_keys: usize,
}

impl Projection {
    /// Creates the projection for a host, without objects.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            objects: Objects::default(),
            keys_of: BTreeMap::new(),
            problems_of: BTreeMap::new(),
            shortened: BTreeSet::new(),
            doubles: BTreeMap::new(),
            sections: vec![BTreeMap::new(); SECTIONS.len()],
            section_problems: vec![Vec::new(); SECTIONS.len()],
            problem_changes: 0,
            v1_keys: 0,
        }
    }

    /// Replaces everything by a list of the store, and returns all entries, those of sections at the end.
    /// Entries of sections that did not change keep their revision.
    pub fn replace<'a>(&mut self, listed: impl IntoIterator<Item = RawEntry<'a>>) -> Vec<Entry> {
        self.objects.clear();
        self.keys_of.clear();
        self.shortened.clear();
        let problems = (std::mem::take(&mut self.problems_of), std::mem::take(&mut self.doubles));
        let problem_changes = self.problem_changes;
        self.v1_keys = 0;
        let listed = listed.into_iter();
        let mut changes = Vec::with_capacity(listed.size_hint().1.unwrap_or_default());
        for raw in listed {
            if is_v1(raw.key) {
                self.v1_keys += 1;
            } else {
                self.take(RawChange::Put(raw), &mut Dirty::default(), &mut changes);
            }
        }
        self.problem_changes =
            problem_changes + u64::from((&problems.0, &problems.1) != (&self.problems_of, &self.doubles));
        self.compute_sections(&Dirty::all(), None);
        let mut entries = entry::outcome(changes);
        for section in &self.sections {
            entries.extend(section.iter().map(|(key, emitted)| emitted.entry(key)));
        }
        entries
    }

    /// Applies one transaction of the store, and returns the changes of the entries.
    pub fn apply<'a>(
        &mut self,
        changes: impl IntoIterator<Item = RawChange<'a>>,
        revision: u64,
    ) -> Vec<EntryChange> {
        let mut dirty = Dirty::default();
        let mut out = Vec::new();
        for change in changes {
            self.take(change, &mut dirty, &mut out);
        }
        out.extend(self.compute_sections(&dirty, Some(revision)));
        out
    }

    /// Returns the problems of all objects, sorted by key.
    pub fn problems(&self) -> Vec<&Problem> {
        let of_objects = self.problems_of.values().flatten().chain(self.doubles.values());
        let mut all: Vec<&Problem> = of_objects.chain(self.section_problems.iter().flatten()).collect();
        all.sort();
        all
    }

    /// Returns a number that increases whenever [`Projection::problems`] returns another list.
    #[must_use]
    pub fn problem_changes(&self) -> u64 {
        self.problem_changes
    }

    /// Returns the number of keys below `/calico/v1/` and `/calico/bgp/v1/`, which a store of Calico 3 has
    /// not; they are not read.
    #[must_use]
    pub fn v1_keys(&self) -> usize {
        self.v1_keys
    }

    /// Returns an object, if a result that depends on several objects reads its kind and it can be parsed.
    #[must_use]
    pub fn object(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.get(kind, name)
    }

    /// Returns true if there is such an object, or a value in its place that is none.
    #[must_use]
    pub fn exists(&self, key: &ObjectKey) -> bool {
        self.keys_of.contains_key(key)
            || self.problems_of.contains_key(key)
            || self.objects.get(key.kind, &key.name).is_some()
    }

    /// Returns the objects that an entry of the v1 model came from, the decisive one first.
    #[must_use]
    pub fn origin(&self, key: &str) -> Vec<ObjectKey> {
        if let Some(emitted) = self.sections.iter().find_map(|section| section.get(key)) {
            return emitted.origin.clone();
        }
        let Ok(parsed) = Key::parse(key) else { return Vec::new() };
        if let Some(object) = policy::object_of(&parsed) {
            return vec![object];
        }
        let object = bgp::object_of(&parsed).or_else(|| settings::object_of(&parsed));
        let gave = |object: &ObjectKey| {
            self.keys_of.get(object).is_some_and(|keys| keys.iter().any(|given| given == key))
        };
        object.filter(gave).into_iter().collect()
    }

    /// Returns the keys of the entries of which an object is the decisive one.
    #[must_use]
    pub fn keys_of(&self, object: &ObjectKey) -> Vec<String> {
        let of_sections = self.sections.iter().flatten();
        let mut keys: Vec<String> = of_sections
            .filter(|(_, emitted)| emitted.origin.first() == Some(object))
            .map(|(key, _)| key.clone())
            .collect();
        keys.extend(self.keys_of.get(object).into_iter().flat_map(|keys| keys.iter()).cloned());
        keys.extend(policy::workload_key(object).map(|key| key.to_string()));
        keys
    }

    /// Returns the decisive object of each entry whose key does not imply it, by the key of the entry.
    #[must_use]
    pub fn origins(&self) -> BTreeMap<String, ObjectKey> {
        let of_sections = self.sections.iter().flatten();
        let of_sections =
            of_sections.filter_map(|(key, emitted)| Some((key.clone(), emitted.origin.first()?.clone())));
        let of_objects = self
            .keys_of
            .iter()
            .flat_map(|(object, keys)| keys.iter().map(|key| (key.clone(), object.clone())));
        of_objects.chain(of_sections).collect()
    }

    /// Takes one change of the store, and adds the changes of entries that do not depend on sections.
    fn take(&mut self, change: RawChange<'_>, dirty: &mut Dirty, out: &mut Vec<EntryChange>) {
        let text = match change {
            RawChange::Put(raw) => raw.key,
            RawChange::Delete(key) => key,
        };
        if !text.starts_with(prefix::CALICO_3) {
            out.extend(self.pass(change, text));
            return;
        }
        let Some(key) = ObjectKey::parse(text) else { return };
        let implied = policy::workload_key(&key);
        let is_implied = implied.is_some();
        let is_read = is_read_by_a_section(key.kind, implied.as_ref(), &self.node);
        if is_read {
            dirty.mark(key.kind);
        }
        let former = self.keys_of.remove(&key);
        let mut old: Vec<String> = former.iter().flat_map(|keys| keys.iter()).cloned().collect();
        old.extend(implied.as_ref().map(ToString::to_string));
        let problems = self.problems_of.remove(&key).unwrap_or_default();
        self.shortened.remove(&key);
        let first = out.len();
        if let RawChange::Put(raw) = change {
            let output = self.project(raw, &key, implied, is_read);
            for entry in output.entries {
                // A workload endpoint gives only the entry that its name implies, whose text is at hand.
                let text = old.pop_if(|_| is_implied).unwrap_or_else(|| entry.key.to_string());
                old.retain(|old| *old != text);
                out.push(EntryChange::Put(Entry {
                    key: text,
                    parsed: Some(entry.key),
                    value: entry.value,
                    created: raw.created,
                    revision: raw.revision,
                    origin: entry.origin,
                }));
            }
            if !is_implied && first < out.len() {
                let given = out.iter().skip(first).map(|change| change.key().to_owned());
                self.keys_of.insert(key.clone(), given.collect());
            }
            self.problem_changes += u64::from(problems != output.problems);
            if !output.problems.is_empty() {
                self.problems_of.insert(key.clone(), output.problems);
            }
        } else {
            self.problem_changes += u64::from(!problems.is_empty());
            self.objects.remove(&key);
        }
        self.update_doubles(&key);
        // Deletions come first: a policy that moves to another tier is never in two.
        out.splice(first..first, old.into_iter().map(|key| EntryChange::Delete { key }));
    }

    /// Projects a written object, and keeps it if sections read it.
    fn project(&mut self, raw: RawEntry<'_>, key: &ObjectKey, implied: Option<Key>, is_read: bool) -> Output {
        // Those that sections read are needed as objects.
        let implied = match implied {
            Some(entry) if !is_read && let Some(endpoint) = policy::plain_endpoint(raw.value) => {
                let mut output = Output::default();
                output.put(entry, Resource::WorkloadEndpoint(Box::new(endpoint)), key);
                return output;
            }
            other => other,
        };
        match Object::parse(key.clone(), raw.value, raw.created, raw.revision) {
            Ok(object) => {
                let object = Arc::new(object);
                if policy::is_shortened(&object) {
                    self.shortened.insert(key.clone());
                }
                if is_read {
                    self.objects.insert(Arc::clone(&object));
                }
                project(object, implied, &self.node)
            }
            Err(error) => {
                self.objects.remove(key);
                let mut output = project_unreadable(key, raw.value);
                output.problem(key, "invalid-value", error.to_string());
                output
            }
        }
    }

    /// Updates the problems of policies that users see under one name, after a change of one.
    fn update_doubles(&mut self, key: &ObjectKey) {
        for pair in policy::Double::pairs_of(key) {
            let in_default = |key: &ObjectKey| {
                let wanted = policy::key_in_default_tier(key);
                self.keys_of.get(key).is_some_and(|keys| keys.contains(&wanted))
            };
            let is_double =
                self.shortened.contains(&pair.long) && in_default(&pair.long) && in_default(&pair.short);
            let was_double = if is_double {
                self.doubles.insert(pair.long.clone(), pair.problem()).is_some()
            } else {
                self.doubles.remove(&pair.long).is_some()
            };
            self.problem_changes += u64::from(is_double != was_double);
        }
    }

    /// Passes a key that is no object.
    fn pass(&mut self, change: RawChange<'_>, text: &str) -> Option<EntryChange> {
        if is_v1(text) {
            match change {
                RawChange::Put(raw) if raw.created == raw.revision => self.v1_keys += 1,
                RawChange::Put(_) => {}
                RawChange::Delete(_) => self.v1_keys = self.v1_keys.saturating_sub(1),
            }
            return None;
        }
        Some(match change {
            RawChange::Put(raw) => EntryChange::Put(Entry {
                key: raw.key.to_owned(),
                parsed: None,
                value: raw.value.into(),
                created: raw.created,
                revision: raw.revision,
                origin: Vec::new(),
            }),
            RawChange::Delete(key) => EntryChange::Delete { key: key.to_owned() },
        })
    }

    /// Computes the sections that read a changed kind. The revision of a changed entry is that of the
    /// transaction; in a list, the newest revision of its origins.
    fn compute_sections(&mut self, dirty: &Dirty, revision: Option<u64>) -> Vec<EntryChange> {
        let mut out = Vec::new();
        for (index, section) in SECTIONS.iter().enumerate() {
            let differs = |kind: &Kind| dirty.kinds.contains(kind) && (section.needs)(&self.objects, *kind);
            if !dirty.everything && !section.reads.iter().any(differs) {
                continue;
            }
            let output = (section.compute)(&self.objects, &self.node);
            let Some(before) = self.sections.get_mut(index) else { continue };
            let mut after = BTreeMap::new();
            for entry in output.entries {
                let text = entry.key.to_string();
                let emitted = match before.remove(&text) {
                    Some(old) if old.value == entry.value && old.origin == entry.origin => old,
                    old => {
                        // A list without one of the former origins may have no newer revision.
                        let after = old.as_ref().map_or(0, |old| old.revision + 1);
                        let newest = || self.objects.newest(&entry.origin).max(after);
                        let revision = revision.unwrap_or_else(newest);
                        let created = old.map_or(revision, |old| old.created);
                        let Projected { key, value, origin } = entry;
                        let emitted = Emitted { key, value, origin, created, revision };
                        out.push(EntryChange::Put(emitted.entry(&text)));
                        emitted
                    }
                };
                after.insert(text, emitted);
            }
            let gone = std::mem::replace(before, after);
            let deletions = gone.into_keys().map(|key| EntryChange::Delete { key });
            out.splice(0..0, deletions);
            if let Some(problems) = self.section_problems.get_mut(index)
                && *problems != output.problems
            {
                *problems = output.problems;
                self.problem_changes += 1;
            }
        }
        out
    }
}

/// Returns true for a key of the v1 model that Calico 3 has not.
#[must_use]
pub fn is_v1(key: &str) -> bool {
    key.starts_with(prefix::V1) || key.starts_with(prefix::BGP)
}

/// Returns true if sections read an object of a kind. Of workload endpoints, whose names imply their host, only
/// those of this host: there may be 50,000 of others.
fn is_read_by_a_section(kind: Kind, implied: Option<&Key>, node: &str) -> bool {
    SECTIONS.iter().any(|section| section.reads.contains(&kind))
        && (kind != Kind::WorkloadEndpoint || implied.and_then(Key::host) == Some(node))
}

/// Kinds of which an object changed.
#[derive(Debug, Default)]
struct Dirty {
    everything: bool,
    kinds: Vec<Kind>,
}

impl Dirty {
    fn all() -> Self {
        Self { everything: true, kinds: Vec::new() }
    }

    fn mark(&mut self, kind: Kind) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }
}
