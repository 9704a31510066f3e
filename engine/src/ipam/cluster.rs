//! What allocation needs from a store of Calico 3 besides the IPAM keys: pools with their rules, reservations,
//! readiness and hosts, as the projection of the objects that a plan has read.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tortie_config::calico3::{Entry, Kind, Object, ObjectKey, Projection, RawEntry};
use tortie_config::key::Key;
use tortie_config::resource::Pool;
use tortie_net::Cidr;
use tortie_store::{KeyValue, Snapshot};

use crate::ipam::reads::{PlanStop, ReadState};
use crate::model::{key_value, raw_entry};

/// Kinds of objects that every request depends on. Hosts are read one by one, because there may be thousands.
const KINDS: [Kind; 3] = [Kind::IPPool, Kind::IPReservation, Kind::ClusterInformation];

/// Returns the prefixes of the objects that every request depends on.
pub(super) fn prefixes() -> Vec<String> {
    KINDS.iter().map(|kind| ObjectKey::prefix_of(*kind)).collect()
}

/// Returns the prefix of the objects of all hosts.
pub(super) fn hosts() -> String {
    ObjectKey::prefix_of(Kind::Node)
}

/// Returns the key of the object of a host.
pub(super) fn host(name: &str) -> String {
    ObjectKey::global(Kind::Node, name).to_string()
}

/// Returns the prefixes of the objects that show pools, hosts and holders of addresses.
pub(super) fn prefixes_of_holders() -> Vec<String> {
    let kinds = [Kind::IPPool, Kind::Node, Kind::WorkloadEndpoint, Kind::HostEndpoint];
    kinds.into_iter().map(ObjectKey::prefix_of).collect()
}

/// Entries of the v1 model that a snapshot of a Calico 3 store gives, in key order.
pub(super) struct ProjectedEntries {
    /// The entries; keys that are no objects pass unchanged.
    pub(super) entries: Vec<KeyValue>,
    /// Names of all hosts that have an object.
    pub(super) hosts: Vec<String>,
    /// Keys of objects that cannot be used as they are, with the reason.
    pub(super) unreadable: Vec<(String, String)>,
}

/// Projects a snapshot.
pub(super) fn project(snapshot: &Snapshot) -> ProjectedEntries {
    let raw = snapshot.entries.iter().map(raw_entry);
    let mut projection = Projection::new("");
    let mut entries: Vec<KeyValue> = projection.replace(raw).into_iter().map(key_value).collect();
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    let node = |key: ObjectKey| (key.kind == Kind::Node).then_some(key.name);
    let keys = snapshot.entries.iter().filter_map(|entry| ObjectKey::parse(&entry.key));
    let hosts = keys.filter_map(node).collect();
    // Without a valid endpoint its addresses would seem to have no holder.
    let holders = [Kind::WorkloadEndpoint, Kind::Node, Kind::IPPool];
    let problems = projection.problems().into_iter();
    let unreadable = problems
        .filter(|problem| problem.code == "invalid-value" && holders.contains(&problem.key.kind))
        .map(|problem| (problem.key.to_string(), problem.text.clone()))
        .collect();
    ProjectedEntries { entries, hosts, unreadable }
}

/// Labels of a host.
pub(super) type HostLabels = BTreeMap<String, String>;

/// Reads the labels of a host; `None` if it has no object. As for Calico, an object that cannot be parsed does
/// not exist.
pub(super) fn host_labels(state: &ReadState, name: &str) -> Result<Option<HostLabels>, PlanStop> {
    let key = ObjectKey::global(Kind::Node, name);
    let Some(known) = state.read(&key.to_string())? else { return Ok(None) };
    let object = Object::parse(key, &known.value, known.revision, known.revision);
    Ok(object.ok().map(|object| object.metadata.labels))
}

/// Entries of the v1 model, projected from the objects.
pub(super) struct Cluster(BTreeMap<String, Entry>);

impl Cluster {
    /// Projects the objects that have been read.
    pub(super) fn of(state: &ReadState) -> Self {
        let read: Vec<String> = prefixes().into_iter().chain([hosts()]).collect();
        let known = read.iter().flat_map(|prefix| state.existing(prefix));
        let raw = known.map(|(key, known)| RawEntry {
            key,
            value: &known.value,
            created: known.revision,
            revision: known.revision,
        });
        let entries = Projection::new("").replace(raw);
        Self(entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect())
    }

    /// Returns true if the cluster is ready. One that does not say so is not.
    pub(super) fn is_ready(&self) -> bool {
        self.value(&Key::Ready.to_string()) == Some(b"true")
    }

    /// Returns the value of an entry.
    pub(super) fn value(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(|entry| entry.value.as_slice())
    }

    /// Returns all entries with their values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(key, entry)| (key.as_str(), entry.value.as_slice()))
    }

    /// Returns the pools that can be parsed, in key order.
    pub(super) fn pools(&self) -> impl Iterator<Item = Pool> {
        self.entries().filter_map(|(key, value)| {
            let Ok(Key::Pool(cidr)) = Key::parse(key) else { return None };
            Pool::parse(cidr, value).ok()
        })
    }

    /// Returns the keys of the objects that an entry came from.
    pub(super) fn origin(&self, key: &str) -> Vec<String> {
        self.0.get(key).map(Entry::raw_keys).unwrap_or_default()
    }

    /// Returns the prefixes of which automatic assignment skips all addresses.
    pub(super) fn reserved(&self) -> Vec<Cidr> {
        let parse = |value: &[u8]| serde_json::from_slice::<Map<String, Value>>(value).ok();
        let reservations =
            self.entries().filter(|(key, _)| matches!(Key::parse(key), Ok(Key::IpReservation(_))));
        let lists = reservations.filter_map(|(_, value)| parse(value)?.remove("cidrs"));
        let texts = lists.flat_map(|list| match list {
            Value::Array(list) => list,
            _ => Vec::new(),
        });
        texts.filter_map(|text| text.as_str()?.parse().ok()).collect()
    }
}
