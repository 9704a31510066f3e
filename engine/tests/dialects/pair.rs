//! A v1 store and its conversion, each in the model of a host, and the names that lead from one to the other.

use std::collections::BTreeMap;

use tortie_config::Dialect;
use tortie_config::calico3::convert::{Converted, convert};
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_engine::model::{Model, WatchPart, projected};
use tortie_store::fixtures::snapshot;
use tortie_store::{KeyValue, Snapshot};

use crate::differences::{Difference, Equalize};
use crate::network::{HOST, Store};

/// A network in both data models.
pub(crate) struct Pair {
    pub(crate) v1: Model,
    pub(crate) v3: Model,
    pub(crate) names: Names,
    /// Entries that the objects are projected to.
    pub(crate) projected: Vec<KeyValue>,
}

/// Names of the objects, and those of the v1 entries that they came from.
pub(crate) struct Names {
    pub(crate) converted: Converted,
    profiles: BTreeMap<String, String>,
    /// Hosts whose name differs, by v1 name.
    hosts: BTreeMap<String, String>,
}

impl Pair {
    /// Converts a store. `differences` are made in the v1 store before its model reads it.
    pub(crate) fn of(store: &Store, differences: &[&Difference]) -> Self {
        let converted = convert(store.iter().map(|(key, value)| (key.as_str(), value.as_bytes())));
        assert!(converted.is_complete(), "{:?}", converted.findings);
        let names = Names::of(store, converted);
        let mut equal = store.clone();
        for difference in differences {
            if let Equalize::Store(change) = difference.equalize {
                change(&mut equal, &names);
            }
        }
        let v1 = model(Dialect::V1, &equal);
        let stamp = Some(("6b1d1a4e-0a0b-4c0d-8e0f-000000000001", "2026-01-01T00:00:00Z"));
        let objects = names.converted.objects.values();
        let mut objects: Store =
            objects.map(|object| (object.key.to_string(), object.value(stamp).to_string())).collect();
        let kept = names.converted.kept.iter();
        objects.extend(kept.map(|(key, value)| (key.clone(), String::from_utf8(value.clone()).unwrap())));
        let v3 = model(Dialect::V3, &objects);
        let projected = projected(HOST, &listed(&objects)).entries;
        Self { v1, v3, names, projected }
    }
}

fn listed(store: &Store) -> Snapshot {
    let entries: Vec<(&str, &str)> =
        store.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    snapshot(10, &entries)
}

fn model(dialect: Dialect, store: &Store) -> Model {
    let mut model = Model::new(HOST);
    model.set_dialect(dialect);
    model.replace(WatchPart::All, &listed(store));
    let invalid: Vec<_> = model.invalid_keys().map(|invalid| (&invalid.key, &invalid.error)).collect();
    assert!(invalid.is_empty(), "{dialect:?}: {invalid:?}");
    model
}

impl Names {
    fn of(store: &Store, converted: Converted) -> Self {
        let mut profiles = BTreeMap::new();
        for object in converted.objects.values() {
            let new = object.spec.get("profiles").and_then(|list| list.as_array());
            let value = object.from.first().and_then(|key| store.get(key)).map_or("null", String::as_str);
            let old: serde_json::Value = serde_json::from_str(value).unwrap_or_default();
            let old = old.get("profile_ids").and_then(|list| list.as_array());
            for (new, old) in new.into_iter().flatten().zip(old.into_iter().flatten()) {
                profiles.insert(new.as_str().unwrap().to_owned(), old.as_str().unwrap().to_owned());
            }
        }
        let renamed = converted.names.iter().filter(|renamed| renamed.kind == "Node");
        let hosts = renamed.map(|renamed| (renamed.from.clone(), renamed.to.clone())).collect();
        Self { converted, profiles, hosts }
    }

    /// Returns the first v1 key of the object that gave an entry.
    fn written(&self, model: &Model, key: &Key) -> Option<Key> {
        let object = model.object_of(&key.to_string())?;
        let from = self.converted.objects.get(&object)?.from.first()?;
        Some(Key::parse(from).unwrap())
    }

    /// Returns the v1 key of an endpoint of the v3 model, with the new name of its host.
    pub(crate) fn endpoint(&self, v3: &Model, key: &EndpointKey) -> String {
        let found = self.written(v3, &Key::Endpoint(key.clone()));
        let found = found.unwrap_or_else(|| panic!("no object gave {key}"));
        self.with_new_hosts(&found.to_string())
    }

    /// Returns a key with the new name of its host.
    pub(crate) fn with_new_hosts(&self, key: &str) -> String {
        let renamed = |key: String, (old, new): (&String, &String)| {
            key.replace(&format!("/host/{old}/"), &format!("/host/{new}/"))
        };
        self.hosts.iter().fold(key.to_owned(), renamed)
    }

    /// Returns the hosts whose name differs, with the new one.
    pub(crate) fn renamed_hosts(&self) -> impl Iterator<Item = (&String, &String)> {
        self.hosts.iter()
    }

    /// Returns tier and name of a policy in the v1 store.
    pub(crate) fn policy(&self, v3: &Model, tier: &str, name: &str) -> (String, String) {
        let key = Key::Policy { tier: tier.to_owned(), name: name.to_owned() };
        match self.written(v3, &key) {
            Some(Key::Policy { tier, name }) => (tier, name),
            other => panic!("{key} came from {other:?}"),
        }
    }

    /// Returns the tier in the v1 store.
    pub(crate) fn tier(&self, name: &str) -> String {
        let renamed =
            self.converted.names.iter().find(|renamed| renamed.kind == "Tier" && renamed.to == name);
        renamed.map_or(name, |renamed| &renamed.from).to_owned()
    }

    /// Returns the name of a profile in the v1 store.
    pub(crate) fn profile(&self, v3: &Model, name: &str) -> String {
        let key = Key::Profile { name: name.to_owned(), part: ProfilePart::Rules };
        match self.written(v3, &key) {
            Some(Key::Profile { name, .. }) => name,
            // A profile that endpoints name, and that does not exist.
            _ => self.profiles.get(name).unwrap_or_else(|| panic!("no object gave profile {name}")).clone(),
        }
    }

    /// Returns the name of the BGPPeer that came from a v1 key.
    pub(crate) fn peer(&self, key: &str) -> Option<&str> {
        let came = |from: &Vec<String>| from.iter().any(|from| from == key);
        let object = self.converted.objects.values().find(|object| came(&object.from))?;
        Some(object.key.name.as_str())
    }
}
