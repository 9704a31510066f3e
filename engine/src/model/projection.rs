//! Projection of a Calico 3 store's objects, in front of the model's entries.
//!
//! The model's entries are those of the v1 model. A v1 store has them as they are; the objects of a Calico 3
//! store are projected to them first, so that the rest of the model, and all that reads it, is the same for
//! both. Names for people are those of the objects then. Nothing is decided here about the objects: that is
//! [`Projection`]'s.
//!
//! ```text
//!  Snapshot --RawEntry---> Projection --Entry-------> Snapshot --> entries
//!  Delta -----RawChange--> Projection --EntryChange-> Delta -----> entries
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::calico3::write::cluster_information_key;
use tortie_config::calico3::{Entry, EntryChange, Kind, ObjectKey, Problem, Projection, RawChange, RawEntry};
use tortie_config::key::{Key, prefix};
use tortie_config::resource::{AllowedUse, Pool};
use tortie_config::{Dialect, Selector};
use tortie_store::{Cached, Change, Delta, KeyValue, Revision, Snapshot};

use super::changes::{ChangedKey, ChangedObject, ModelChanges};
use super::scope::WatchPart;
use super::state::{Model, Parsed};

/// Maximum number of changed entries whose objects a relist determines.
const LISTED_OBJECTS_MAX: usize = 64;

impl Model {
    /// Sets the data model of the store, before its first entry is applied. If it differs from the current
    /// one, the next snapshot replaces everything.
    pub fn set_dialect(&mut self, dialect: Dialect) {
        if dialect == self.dialect() {
            return;
        }
        self.projected = match dialect {
            Dialect::V1 => None,
            Dialect::V3 => Some(Arc::new(ProjectedStore::new(&self.node))),
        };
        self.forget_revisions();
    }

    /// Returns the data model of the store.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        if self.projected.is_some() { Dialect::V3 } else { Dialect::V1 }
    }

    /// Applies a snapshot of the store that contains every key of `part`, and returns the differences. Keys
    /// that are missing from it are removed, and keys with an unchanged revision are not parsed again.
    pub fn replace(&mut self, part: WatchPart, snapshot: &Snapshot) -> ModelChanges {
        match &mut self.projected {
            Some(projected) if part != WatchPart::Blocks => {
                let projected = Arc::make_mut(projected);
                let before_problems = projected.problem_changes();
                let before = projected.projection.origins();
                let (entries, parsed) = projected.snapshot(snapshot, |key| part.covers(key));
                let differ = projected.problem_changes() != before_problems;
                let mut changes = self.replace_entries(part, &entries, parsed);
                changes.invalid_keys |= differ;
                changes.objects = self.objects_of(&changes.keys, &before, snapshot);
                changes
            }
            _ => self.replace_entries(part, snapshot, Vec::new()),
        }
    }

    /// Applies one transaction of the store. A change that is not newer than the known state of its key is
    /// ignored, because a watch may repeat changes.
    pub fn apply(&mut self, delta: &Delta) -> ModelChanges {
        self.project(delta, ProjectedStore::delta)
    }

    fn project(&mut self, delta: &Delta, by: fn(&mut ProjectedStore, &Delta) -> Delta) -> ModelChanges {
        let Some(projected) = &mut self.projected else { return self.apply_entries(delta) };
        let projected = Arc::make_mut(projected);
        let before = projected.problem_changes();
        let entries = by(projected, delta);
        let differ = projected.problem_changes() != before;
        let mut changes = self.apply_entries(&entries);
        changes.invalid_keys |= differ;
        changes.objects = delta.changes.iter().filter_map(|change| changed_object(change, delta)).collect();
        changes
    }

    /// Returns the objects from which changed entries of a list came or, if they are gone, had come; none if
    /// there are many. `before` has the objects of the entries before the list.
    fn objects_of(
        &self,
        keys: &[ChangedKey],
        before: &BTreeMap<String, ObjectKey>,
        snapshot: &Snapshot,
    ) -> Vec<ChangedObject> {
        let Some(projected) = self.projected.as_ref().filter(|_| keys.len() <= LISTED_OBJECTS_MAX) else {
            return Vec::new();
        };
        let is_listed = |key: &ObjectKey| {
            let key = key.to_string();
            snapshot.entries.binary_search_by(|entry| entry.key.cmp(&key)).is_ok()
        };
        let mut objects: Vec<ChangedObject> = Vec::new();
        for changed in keys.iter().filter(|changed| is_projected(&changed.text)) {
            let former = before.get(&changed.text).filter(|_| changed.deleted).cloned();
            let Some(key) = former.or_else(|| projected.object_of(&changed.text)) else { continue };
            if objects.iter().all(|object| object.key != key) {
                let deleted = !is_listed(&key);
                objects.push(ChangedObject { key, revision: changed.revision, deleted });
            }
        }
        objects
    }

    /// Loads the agent's cache from disk: first the last good values, then the unreadable values that leave
    /// them in force.
    pub fn restore(&mut self, cached: &Cached) {
        let snapshot = &cached.snapshot;
        self.replace(WatchPart::All, snapshot);
        let changes = cached.unreadable.iter().cloned().map(Change::Put).collect();
        self.apply_unreadable(&Delta { revision: snapshot.revision, changes });
    }

    /// Applies current values that cannot be read, after the last good values of their keys.
    pub fn apply_unreadable(&mut self, delta: &Delta) {
        self.project(delta, ProjectedStore::changes);
    }

    /// Marks all revisions as those of another history, so that the next snapshot is parsed completely.
    pub fn forget_revisions(&mut self) {
        self.store_id.clear();
        self.blocks_store_id.clear();
    }

    /// Returns the problems of the objects of a Calico 3 store, sorted by key. An object whose entry cannot
    /// be parsed is in [`Model::invalid_keys`] instead.
    #[must_use]
    pub fn object_problems(&self) -> Vec<&Problem> {
        self.projected.as_ref().map(|projected| projected.problems()).unwrap_or_default()
    }

    /// Returns the number of keys of the v1 model in a Calico 3 store, which are not read.
    #[must_use]
    pub fn dropped_v1_keys(&self) -> usize {
        self.projected.as_ref().map_or(0, |projected| projected.v1_keys())
    }

    /// Returns true if nothing says whether this Calico 3 store is ready: it has no ClusterInformation, which
    /// the first host creates.
    #[must_use]
    pub fn lacks_cluster(&self) -> bool {
        let key = cluster_information_key();
        self.projected.as_ref().is_some_and(|projected| !projected.projection.exists(&key))
    }

    /// Returns true if the tunnel addresses of this host may come from a pool: its uses allow it, and its
    /// selector matches the labels of the host's Node.
    #[must_use]
    pub fn serves_tunnels(&self, pool: &Pool) -> bool {
        let object = |projected: &ProjectedStore| {
            projected.projection.object(Kind::Node, &self.node).map(|node| node.metadata.labels.clone())
        };
        let selected = |selector: &Selector| {
            let labels = self.projected.as_ref().and_then(|projected| object(projected));
            selector.matches(&labels.unwrap_or_default())
        };
        pool.allows(AllowedUse::Tunnel) && pool.node_selector.as_ref().is_none_or(selected)
    }

    /// Returns the name of a key for people: in a Calico 3 store the object that the entry came from, such as
    /// `BGPPeer rack1-tor`, otherwise the key itself.
    #[must_use]
    pub fn name_of(&self, key: &Key) -> String {
        self.name_of_text(&key.to_string())
    }

    /// Returns the name of a key for people, from its text; see [`Model::name_of`].
    #[must_use]
    pub fn name_of_text(&self, key: &str) -> String {
        self.object_of(key).map_or_else(|| key.to_owned(), |object| object.title())
    }

    /// Returns the key that was written: in a Calico 3 store that of the object from which the entry came,
    /// otherwise the key itself.
    #[must_use]
    pub fn written_key(&self, key: &Key) -> String {
        let text = key.to_string();
        self.object_of(&text).map_or(text, |object| object.to_string())
    }

    /// Returns the revision of an object that gives entries; `None` if it gives none.
    #[must_use]
    pub fn revision_of_object(&self, object: &ObjectKey) -> Option<Revision> {
        let keys = self.projected.as_ref()?.projection.keys_of(object);
        keys.iter().filter_map(|key| self.revision_of(&Key::parse(key).ok()?)).max()
    }

    /// Returns the objects from which the entry of this key came, the decisive one first; none in a v1 store.
    #[must_use]
    pub fn origin_of(&self, key: &str) -> Vec<ObjectKey> {
        self.projected.as_ref().map(|projected| projected.projection.origin(key)).unwrap_or_default()
    }

    /// Returns the decisive object from which the entry of this key came; `None` in a v1 store, and for keys
    /// that a Calico 3 store has itself.
    #[must_use]
    pub fn object_of(&self, key: &str) -> Option<ObjectKey> {
        self.projected.as_ref()?.object_of(key)
    }
}

/// Projection of the objects that the model was given, with the revision that they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProjectedStore {
    projection: Projection,
    /// Revision of the last list or transaction with an object.
    revision: Revision,
}

impl ProjectedStore {
    /// Creates the projection for a host, without objects.
    pub(super) fn new(node: &str) -> Self {
        Self { projection: Projection::new(node), revision: 0 }
    }

    /// Projects all entries that `covers` selects of a snapshot, and returns in the same order what is parsed of
    /// them. Entries whose resource is known have no octets.
    fn snapshot(&mut self, snapshot: &Snapshot, covers: impl Fn(&str) -> bool) -> (Snapshot, Vec<Parsed>) {
        let split = self.list(snapshot, covers).into_iter().map(|mut entry| {
            let parsed = Parsed { key: entry.parsed.take(), resource: entry.value.resource().cloned() };
            if parsed.resource.is_some() {
                entry.value = Vec::new().into();
            }
            (key_value(entry), parsed)
        });
        let (entries, parsed) = split.unzip();
        (Snapshot { entries, ..without_entries(snapshot) }, parsed)
    }

    fn list(&mut self, snapshot: &Snapshot, covers: impl Fn(&str) -> bool) -> Vec<Entry> {
        self.revision = snapshot.revision;
        let listed = snapshot.entries.iter().filter(|kv| covers(&kv.key)).map(raw_entry);
        let mut entries = self.projection.replace(listed);
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        entries
    }

    /// Projects a transaction. Objects of one that is not newer than the known ones are skipped, because a
    /// watch may repeat transactions.
    pub(super) fn delta(&mut self, delta: &Delta) -> Delta {
        let repeated = delta.revision <= self.revision;
        let changes = delta.changes.iter().filter(|change| !(repeated && is_object(change)));
        self.project(delta.revision, changes)
    }

    /// Projects changes that are newer than the known ones, whatever the revision says: the current values of
    /// objects whose last good value was given before.
    pub(super) fn changes(&mut self, delta: &Delta) -> Delta {
        self.project(delta.revision, delta.changes.iter())
    }

    fn project<'a>(&mut self, revision: Revision, changes: impl Iterator<Item = &'a Change>) -> Delta {
        let changes: Vec<&Change> = changes.collect();
        if changes.iter().any(|change| is_object(change)) {
            self.revision = self.revision.max(revision);
        }
        let raw_changes = changes.into_iter().map(|change| match change {
            Change::Put(kv) => RawChange::Put(raw_entry(kv)),
            Change::Delete { key } => RawChange::Delete(key),
        });
        let changes = self.projection.apply(raw_changes, revision);
        let changes = changes.into_iter().map(|change| match change {
            EntryChange::Put(entry) => Change::Put(key_value(entry)),
            EntryChange::Delete { key } => Change::Delete { key },
        });
        Delta { revision, changes: changes.collect() }
    }

    /// Returns the decisive object of an entry of the v1 model.
    fn object_of(&self, key: &str) -> Option<ObjectKey> {
        self.projection.origin(key).into_iter().next()
    }

    /// Returns the problems of all objects, sorted by key.
    pub(super) fn problems(&self) -> Vec<&Problem> {
        self.projection.problems()
    }

    /// Returns a number that increases whenever the problems of the objects change.
    fn problem_changes(&self) -> u64 {
        self.projection.problem_changes()
    }

    /// Returns the number of keys of the v1 model in the store, which are not read.
    pub(super) fn v1_keys(&self) -> usize {
        self.projection.v1_keys()
    }
}

/// Projects a snapshot of a Calico 3 store to entries of the v1 model as the given host reads them, in the
/// order of their keys.
#[must_use]
pub fn projected(node: &str, snapshot: &Snapshot) -> Snapshot {
    let entries = ProjectedStore::new(node).list(snapshot, |_| true).into_iter().map(key_value).collect();
    Snapshot { entries, ..without_entries(snapshot) }
}

/// Returns the entry of the store for a projection.
#[must_use]
pub fn raw_entry(kv: &KeyValue) -> RawEntry<'_> {
    RawEntry { key: &kv.key, value: &kv.value, created: kv.create_revision, revision: kv.mod_revision }
}

/// Returns true for a key of an entry that a Calico 3 store has only as the result of a projection; other
/// keys are the store's own.
#[must_use]
pub fn is_projected(key: &str) -> bool {
    let is_tortie =
        key.starts_with(prefix::TORTIE) && key != prefix::SCHEMA && !key.starts_with(prefix::TORTIE_HOSTS);
    key.starts_with(prefix::V1) || key.starts_with(prefix::BGP) || is_tortie
}

fn changed_object(change: &Change, delta: &Delta) -> Option<ChangedObject> {
    let key = ObjectKey::parse(change.key())?;
    let deleted = matches!(change, Change::Delete { .. });
    Some(ChangedObject { key, revision: delta.revision, deleted })
}

/// Returns a projected entry in the form of the store's.
#[must_use]
pub fn key_value(entry: Entry) -> KeyValue {
    KeyValue {
        key: entry.key,
        value: entry.value.into_octets(),
        mod_revision: entry.revision,
        create_revision: entry.created,
    }
}

fn without_entries(snapshot: &Snapshot) -> Snapshot {
    Snapshot {
        revision: snapshot.revision,
        store_id: snapshot.store_id.clone(),
        term: snapshot.term,
        entries: Vec::new(),
    }
}

fn is_object(change: &Change) -> bool {
    change.key().starts_with(prefix::CALICO_3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tortie_config::key::Key;

    use super::super::value::Value;
    use super::*;

    const ROOT: &str = "/calico/resources/v3/projectcalico.org";

    /// Objects of a small cluster in two versions each.
    fn object(n: usize, second: bool) -> (String, String) {
        let pick = |a: &str, b: &str| if second { b } else { a }.to_owned();
        let (path, spec) = match n {
            0 => ("nodes/h1", pick(r#"{"bgp":{"ipv4Address":"192.0.2.1/24"}}"#, "{}")),
            1 => {
                let spec = pick(
                    r#"{"bgp":{"ipv4Address":"192.0.2.2/24","asNumber":64600}}"#,
                    r#"{"bgp":{"ipv4Address":"192.0.2.3/24"}}"#,
                );
                ("nodes/h2", spec)
            }
            2 => (
                "ippools/p",
                pick(r#"{"cidr":"10.65.0.0/16"}"#, r#"{"cidr":"10.66.0.0/16","ipipMode":"Always"}"#),
            ),
            3 => {
                let spec = pick(
                    r#"{"peerIP":"192.0.2.254","asNumber":64700}"#,
                    r#"{"peerIP":"192.0.2.254","asNumber":64701,"node":"h1"}"#,
                );
                ("bgppeers/a", spec)
            }
            4 => (
                "bgppeers/b",
                pick(
                    r#"{"peerIP":"192.0.2.254","asNumber":64702}"#,
                    r#"{"nodeSelector":"all()","peerSelector":"x == 'y'"}"#,
                ),
            ),
            5 => (
                "bgpconfigurations/default",
                pick(r#"{"asNumber":64512}"#, r#"{"nodeToNodeMeshEnabled":false}"#),
            ),
            6 => (
                "profiles/web",
                pick(r#"{"ingress":[{"action":"Allow"}]}"#, r#"{"labelsToApply":{"a":"b"}}"#),
            ),
            7 => {
                let spec = pick(
                    r#"{"selector":"all()","ingress":[{"action":"Deny"}]}"#,
                    r#"{"tier":"t","order":5,"selector":"has(x)","types":["Egress"],"egress":[{"action":"Allow"}]}"#,
                );
                ("globalnetworkpolicies/default.deny", spec)
            }
            8 => ("tiers/t", pick(r#"{"order":10}"#, r#"{"order":20,"defaultAction":"Pass"}"#)),
            9 => {
                let spec = pick(
                    r#"{"orchestrator":"cni","node":"h1","containerID":"c1","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.65.0.1/32"],"profiles":["web"]}"#,
                    r#"{"orchestrator":"cni","node":"h1","containerID":"c1","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.65.0.2/32"]}"#,
                );
                ("workloadendpoints/default/h1-cni-c1-eth0", spec)
            }
            10 => {
                ("felixconfigurations/default", pick(r#"{"ipipMTU":1400}"#, r#"{"interfacePrefix":"tap"}"#))
            }
            _ => (
                "clusterinformations/default",
                pick(r#"{"datastoreReady":true}"#, r#"{"datastoreReady":false}"#),
            ),
        };
        let value = format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec}}}"#);
        (format!("{ROOT}/{path}"), value)
    }

    fn snapshot(revision: Revision, entries: &BTreeMap<String, KeyValue>) -> Snapshot {
        Snapshot { revision, store_id: "a".to_owned(), entries: entries.values().cloned().collect(), term: 0 }
    }

    fn model(dialect: Dialect) -> Model {
        let mut model = Model::new("h1");
        model.set_dialect(dialect);
        model
    }

    type Content = (BTreeMap<Key, Option<Value>>, Vec<(String, String)>);

    /// Returns the values in force and the invalid keys, without the revisions of entries: that of an entry
    /// of several objects depends on what was known before.
    fn content(model: &Model) -> Content {
        let mut values: BTreeMap<Key, Option<Value>> =
            model.rest.iter().map(|(key, slot)| (key.clone(), slot.value().cloned())).collect();
        for (name, host) in &model.hosts {
            values.extend(host.slots().map(|(item, slot)| (item.key(name), slot.value().cloned())));
        }
        let invalid = model.invalid_keys().map(|invalid| (invalid.key.clone(), invalid.error.clone()));
        (values, invalid.collect())
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(usize, bool),
        Delete(usize),
        /// The last transaction arrives again.
        Repeat,
        Relist,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..12_usize, any::<bool>()).prop_map(|(n, second)| Step::Put(n, second)),
            3 => (0..12_usize).prop_map(Step::Delete),
            1 => Just(Step::Repeat),
            1 => Just(Step::Relist),
        ]
    }

    proptest! {
        /// Whatever happens to the objects, a model that followed has the same values as one that starts
        /// now, and as one that is given the entries.
        #[test]
        fn a_model_that_followed_objects_equals_one_of_their_entries(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut stored = BTreeMap::new();
            let mut followed = model(Dialect::V3);
            let mut last = Delta { revision: 1, changes: Vec::new() };
            followed.replace(WatchPart::Main, &snapshot(1, &stored));
            for (at, step) in steps.into_iter().enumerate() {
                let revision = u64::try_from(at).unwrap() + 2;
                let change = match step {
                    Step::Put(n, second) => {
                        let (key, value) = object(n, second);
                        let created = stored.get(&key).map_or(revision, |kv: &KeyValue| kv.create_revision);
                        let kv = KeyValue {
                            key: key.clone(),
                            value: value.into_bytes(),
                            mod_revision: revision,
                            create_revision: created,
                        };
                        stored.insert(key, kv.clone());
                        Change::Put(kv)
                    }
                    Step::Delete(n) => {
                        let (key, _) = object(n, false);
                        stored.remove(&key);
                        Change::Delete { key }
                    }
                    Step::Repeat => {
                        followed.apply(&last);
                        continue;
                    }
                    Step::Relist => {
                        followed.replace(WatchPart::Main, &snapshot(revision, &stored));
                        continue;
                    }
                };
                last = Delta { revision, changes: vec![change] };
                followed.apply(&last);
            }
            let whole = snapshot(100, &stored);
            let mut fresh = model(Dialect::V3);
            fresh.replace(WatchPart::Main, &whole);
            prop_assert_eq!(content(&followed), content(&fresh));
            prop_assert_eq!(followed.object_problems(), fresh.object_problems());
            let mut of_entries = model(Dialect::V3);
            of_entries.replace_entries(WatchPart::Main, &projected("h1", &whole), Vec::new());
            prop_assert_eq!(content(&fresh), content(&of_entries));
        }
    }

    fn entry(key: &str, value: &str, revision: Revision) -> KeyValue {
        let (key, value) = (key.to_owned(), value.into());
        KeyValue { key, value, mod_revision: revision, create_revision: revision }
    }

    #[test]
    fn a_store_that_changes_its_data_model_is_read_anew() {
        let v1: BTreeMap<String, KeyValue> = [
            entry("/calico/bgp/v1/host/h2/ip_addr_v4", "192.0.2.2", 3),
            entry("/calico/ipam/v2/host/h1/ipv4/block/10.65.0.0-26", "{}", 4),
        ]
        .map(|kv| (kv.key.clone(), kv))
        .into();
        let mut model = model(Dialect::V1);
        model.replace(WatchPart::All, &snapshot(4, &v1));
        assert_eq!((model.hosts().len(), model.dropped_v1_keys()), (1, 0));
        model.set_dialect(Dialect::V3);
        model.replace(WatchPart::All, &snapshot(4, &v1));
        assert_eq!((model.hosts().len(), model.dropped_v1_keys()), (0, 1));
        assert_eq!(model.affinities("h1").count(), 1, "both have the keys of IPAM");
        model.set_dialect(Dialect::V1);
        model.replace(WatchPart::All, &snapshot(4, &v1));
        assert_eq!(model.hosts().len(), 1);
    }

    #[test]
    fn what_is_no_object_is_a_problem_with_its_name() {
        let mut model = model(Dialect::V3);
        let key = format!("{ROOT}/bgppeers/rack1-tor");
        let changes = vec![Change::Put(entry(&key, "[]", 2))];
        let changes = model.apply(&Delta { revision: 2, changes });
        assert!(changes.invalid_keys);
        assert_eq!(changes.objects.iter().map(|o| o.key.title()).collect::<Vec<_>>(), ["BGPPeer rack1-tor"]);
        let problems: Vec<_> = model.object_problems().iter().map(|p| (p.key.title(), p.code)).collect();
        assert_eq!(problems, [("BGPPeer rack1-tor".to_owned(), "invalid-value")]);
        let changes = model.apply(&Delta { revision: 3, changes: vec![Change::Delete { key }] });
        assert!(changes.invalid_keys && model.object_problems().is_empty());
    }

    /// A list, as after a gap of the watch, names the objects that are gone, whether or not their keys imply
    /// the entries, and does not call an object deleted of which only an entry is gone.
    #[test]
    fn a_list_names_the_objects_that_changed() {
        let mut stored: BTreeMap<String, KeyValue> = [0, 1, 2, 6, 9]
            .map(|n| {
                let (key, value) = object(n, false);
                (key.clone(), entry(&key, &value, 2))
            })
            .into();
        let mut model = model(Dialect::V3);
        model.replace(WatchPart::All, &snapshot(2, &stored));
        for n in [1, 2, 6, 9] {
            stored.remove(&object(n, false).0);
        }
        let (key, value) = object(0, true);
        stored.insert(key.clone(), entry(&key, &value, 5));
        let changes = model.replace(WatchPart::All, &snapshot(5, &stored));
        let mut found: Vec<(String, bool)> =
            changes.objects.iter().map(|object| (object.key.title(), object.deleted)).collect();
        found.sort();
        let expected = [
            ("IPPool p", true),
            ("Node h1", false),
            ("Node h2", true),
            ("Profile web", true),
            ("WorkloadEndpoint default/h1-cni-c1-eth0", true),
        ];
        assert_eq!(found, expected.map(|(name, deleted)| (name.to_owned(), deleted)));
    }

    /// Keys of the store itself keep their names, and so do all in a v1 store.
    #[test]
    fn names_are_those_of_what_was_written() {
        assert_eq!(model(Dialect::V1).name_of(&Key::Ready), "/calico/v1/Ready");
        assert_eq!(model(Dialect::V3).name_of(&Key::IpamConfig), "/calico/ipam/v2/config");
        for (key, expected) in [
            ("/calico/v1/Ready", true),
            ("/calico/bgp/v1/global/as_num", true),
            ("/calico/tortie/v1/tier/t", true),
            ("/calico/tortie/v1/schema", false),
            ("/calico/tortie/v1/host/h1/docker/network/x", false),
            ("/calico/ipam/v2/config", false),
        ] {
            assert_eq!(is_projected(key), expected, "{key}");
        }
    }
}
