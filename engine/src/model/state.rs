//! The model's indexes, and how snapshots and deltas change them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{BgpItem, EndpointKey, Key, Scope};
use tortie_config::{Dialect, Resource, Selector};
use tortie_net::Cidr;

use tortie_store::{Change, Delta, KeyValue, Revision, Snapshot};

use super::changes::{ChangedKey, ModelChanges};
use super::host::Host;
use super::host::HostItem;
use super::projection::ProjectedStore;
use super::scope::WatchPart;
use super::slot::{Slot, Spelling};
use super::value::Value;

/// All resources of the store that one host follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Name of the host that this model is for.
    pub(super) node: String,
    /// Objects of a Calico 3 store, from which the entries are computed; `None` for a v1 store.
    pub(super) projected: Option<Arc<ProjectedStore>>,
    pub(super) hosts: BTreeMap<Arc<str>, Host>,
    /// Hosts by address, sorted by name; almost always one host per address.
    pub(super) hosts_by_address: BTreeMap<IpAddr, Vec<Arc<str>>>,
    /// Hosts by network, sorted by name; the hosts of a rack share one network.
    pub(super) hosts_by_network: BTreeMap<Cidr, Vec<Arc<str>>>,
    /// All values that are not a [`HostItem`].
    pub(super) rest: BTreeMap<Key, Slot>,
    /// Addresses that more than one host has.
    pub(super) shared_addresses: BTreeSet<IpAddr>,
    /// Hosts without any address.
    pub(super) hosts_without_address: BTreeSet<Arc<str>>,
    /// Hosts with a peer at an address, sorted by name; the empty name stands for all hosts. A host is listed
    /// once for each key of this kind.
    pub(super) hosts_by_peer: BTreeMap<IpAddr, Vec<Arc<str>>>,
    pub(super) endpoints: usize,
    pub(super) invalid_keys: BTreeMap<String, InvalidKey>,
    /// Unknown names in the values in force. Endpoints and blocks are not checked, because there are many.
    pub(super) unread_names: BTreeMap<Key, Vec<String>>,
    pub(super) unknown: usize,
    pub(super) revision: Revision,
    pub(super) store_id: String,
    /// Identity of the store that the blocks came from, which are listed separately.
    pub(super) blocks_store_id: String,
}

/// A key that cannot be used as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey {
    /// Full key, as stored.
    pub key: String,
    /// The error, and the correct form to write.
    pub error: String,
    /// Revision of the last write.
    pub revision: Revision,
    /// True if an earlier value of this key is still in force.
    pub last_good: bool,
    /// Selector of a policy, if that part of the value can be parsed.
    pub selector: Option<Selector>,
}

impl InvalidKey {
    /// Returns the parsed key, with an older path translated to the current one; `None` if it is not a key of
    /// the data model.
    #[must_use]
    pub fn parsed(&self) -> Option<Key> {
        Key::parse(&self.key).ok().map(|key| key.canonical().clone())
    }
}

/// What of an entry is parsed already.
#[derive(Debug, Clone, Default)]
pub(super) struct Parsed {
    /// The parsed key, if the text of the key is its canonical one.
    pub(super) key: Option<Key>,
    /// The resource, instead of a value.
    pub(super) resource: Option<Arc<Resource>>,
}

/// A written entry, with its resource if that is known already.
#[derive(Debug, Clone, Copy)]
struct Put<'a> {
    kv: &'a KeyValue,
    parsed: Option<&'a Arc<Resource>>,
}

/// Returns the selector of a policy whose value cannot be parsed as a whole.
fn selector_of(dialect: Dialect, key: &Key, value: &[u8]) -> Option<Selector> {
    let Key::Policy { .. } = key else { return None };
    let value: serde_json::Value = serde_json::from_slice(value).ok()?;
    let text = value.get("selector")?.as_str()?;
    match dialect {
        Dialect::V1 => Selector::parse_v1(text).ok(),
        Dialect::V3 => text.parse().ok(),
    }
}

impl Model {
    /// Creates an empty model for a host.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            projected: None,
            hosts: BTreeMap::new(),
            hosts_by_address: BTreeMap::new(),
            hosts_by_network: BTreeMap::new(),
            shared_addresses: BTreeSet::new(),
            hosts_without_address: BTreeSet::new(),
            rest: BTreeMap::new(),
            hosts_by_peer: BTreeMap::new(),
            endpoints: 0,
            invalid_keys: BTreeMap::new(),
            unread_names: BTreeMap::new(),
            unknown: 0,
            revision: 0,
            store_id: String::new(),
            blocks_store_id: String::new(),
        }
    }

    /// Applies one transaction of entries. A change that is not newer than the known state of its key is
    /// ignored, because a watch may repeat changes.
    pub(crate) fn apply_entries(&mut self, delta: &Delta) -> ModelChanges {
        let mut changes = ModelChanges::default();
        for change in &delta.changes {
            let text = match change {
                Change::Put(kv) => &kv.key,
                Change::Delete { key } => key,
            };
            let put = match change {
                Change::Put(kv) => Some(kv),
                Change::Delete { .. } => None,
            };
            match self.classify(text) {
                KeyClass::Ignored => {}
                KeyClass::Unknown => match put {
                    Some(kv) if kv.create_revision == kv.mod_revision => self.unknown += 1,
                    Some(_) => {}
                    None => self.unknown = self.unknown.saturating_sub(1),
                },
                KeyClass::Malformed(error) => {
                    self.set_malformed(text, put, error, delta.revision, &mut changes)
                }
                KeyClass::Typed(key, spelling) => {
                    let known = self.slot(&key).and_then(|slot| slot.under(&spelling)).map(|e| e.revision);
                    let newer = match put {
                        Some(kv) => known.is_none_or(|revision| kv.mod_revision > revision),
                        None => known.is_some_and(|revision| delta.revision > revision),
                    };
                    if newer {
                        let put = put.map(|kv| Put { kv, parsed: None });
                        self.set(key, &spelling, text, put, delta.revision, &mut changes);
                    }
                }
            }
        }
        self.revision = self.revision.max(delta.revision);
        changes
    }

    /// Returns a copy with only the selected endpoints and without blocks and affinities, for queries that
    /// another thread answers.
    #[must_use]
    pub fn excerpt(&self, wanted: impl Fn(&EndpointKey, &Resource) -> bool) -> Self {
        let keeps = |key: &Key, slot: &Slot| match key {
            Key::Endpoint(endpoint) => {
                slot.value().and_then(Value::resource).is_some_and(|resource| wanted(endpoint, resource))
            }
            Key::Block(_) | Key::Affinity { .. } => false,
            _ => true,
        };
        let kept = self.rest.iter().filter(|(key, slot)| keeps(key, slot));
        Self {
            rest: kept.map(|(key, slot)| (key.clone(), slot.clone())).collect(),
            invalid_keys: self.invalid_keys.clone(),
            unread_names: self.unread_names.clone(),
            node: self.node.clone(),
            hosts: self.hosts.clone(),
            hosts_by_address: self.hosts_by_address.clone(),
            hosts_by_network: self.hosts_by_network.clone(),
            shared_addresses: self.shared_addresses.clone(),
            hosts_without_address: self.hosts_without_address.clone(),
            hosts_by_peer: BTreeMap::new(),
            store_id: self.store_id.clone(),
            blocks_store_id: self.blocks_store_id.clone(),
            projected: self.projected.clone(),
            ..*self
        }
    }

    /// Applies a snapshot that contains every entry of `part`, and returns the differences. Keys that are
    /// missing from it are removed, and keys with an unchanged revision are not parsed again. `parsed` says what is
    /// parsed of the entries already, in their order.
    pub(super) fn replace_entries(
        &mut self,
        part: WatchPart,
        snapshot: &Snapshot,
        parsed: Vec<Parsed>,
    ) -> ModelChanges {
        let mut changes = ModelChanges::default();
        let same_store = match part {
            WatchPart::Blocks => self.blocks_store_id == snapshot.store_id,
            WatchPart::All | WatchPart::Main => self.store_id == snapshot.store_id,
        };
        let mut seen: HashSet<&str> = HashSet::with_capacity(snapshot.entries.len());
        let mut unknown = 0;
        let parsed = parsed.into_iter().chain(std::iter::repeat_with(Parsed::default));
        for (kv, parsed) in snapshot.entries.iter().zip(parsed).filter(|(kv, _)| part.covers(&kv.key)) {
            let class = match parsed.key {
                Some(key) => self.classify_key(key, None),
                None => self.classify(&kv.key),
            };
            match class {
                KeyClass::Ignored => {}
                KeyClass::Unknown => unknown += 1,
                KeyClass::Malformed(error) => {
                    seen.insert(&kv.key);
                    self.set_malformed(&kv.key, Some(kv), error, snapshot.revision, &mut changes);
                }
                KeyClass::Typed(key, spelling) => {
                    seen.insert(&kv.key);
                    let stored = self.slot(&key).and_then(|slot| slot.under(&spelling)).map(|e| e.revision);
                    if !same_store || stored != Some(kv.mod_revision) {
                        let put = Put { kv, parsed: parsed.resource.as_ref() };
                        self.set(key, &spelling, &kv.key, Some(put), snapshot.revision, &mut changes);
                    }
                }
            }
        }
        for (text, classify) in self.texts() {
            if part.covers(&text) && !seen.contains(text.as_str()) {
                match classify {
                    Some((key, spelling)) => {
                        self.set(key, &spelling, &text, None, snapshot.revision, &mut changes);
                    }
                    None => self.set_malformed(&text, None, String::new(), snapshot.revision, &mut changes),
                }
            }
        }
        if part.covers_unknown() {
            self.unknown = unknown;
        }
        // A list may be older than changes that the watch of the other part delivered.
        self.revision = if same_store { self.revision.max(snapshot.revision) } else { snapshot.revision };
        if part != WatchPart::Blocks {
            self.store_id.clone_from(&snapshot.store_id);
        }
        if part != WatchPart::Main {
            self.blocks_store_id.clone_from(&snapshot.store_id);
        }
        changes
    }

    /// Writes or removes the value of one key.
    fn set(
        &mut self,
        key: Key,
        spelling: &Spelling,
        text: &str,
        put: Option<Put<'_>>,
        revision: Revision,
        changes: &mut ModelChanges,
    ) {
        let before = self.effective(&key);
        let hosts = self.hosts.len();
        let dialect = self.dialect();
        match put {
            Some(Put { kv, parsed }) => {
                let read = match parsed {
                    Some(resource) => Ok(Value::Resource(Arc::clone(resource))),
                    None => Value::read(dialect, &key, &kv.value),
                };
                let (read, error) = match read {
                    Ok(value) => (Some(value), None),
                    Err(error) => (None, Some(error)),
                };
                let slot = self.slot_mut(&key);
                slot.put(spelling.clone(), kv, read);
                let last_good = slot.under(spelling).is_some_and(|entry| entry.value.is_some());
                let revision = kv.mod_revision;
                let problem = error.map(|error| {
                    let selector = selector_of(dialect, &key, &kv.value);
                    InvalidKey { key: text.to_owned(), error, revision, last_good, selector }
                });
                self.set_invalid(text, problem, changes);
            }
            None => {
                self.slot_mut(&key).remove(spelling);
                self.drop_empty(&key);
                self.set_invalid(text, None, changes);
            }
        }
        // A value that cannot be parsed also makes its host known.
        changes.hosts |= self.hosts.len() != hosts;
        if let Some((host, item)) = HostItem::of(&key)
            && (self.hosts.len() != hosts || matches!(item, HostItem::Address(_)))
        {
            self.update_silent_hosts(host);
        }
        let after = self.effective(&key);
        if before != after {
            self.reindex(&key, before.as_ref(), after.as_ref());
            self.mark(&key, before.as_ref(), after.as_ref(), changes);
        }
        changes.keys.push(ChangedKey {
            key: Some(key),
            text: text.to_owned(),
            revision: put.map_or(revision, |put| put.kv.mod_revision),
            deleted: put.is_none(),
        });
    }

    fn set_malformed(
        &mut self,
        text: &str,
        put: Option<&KeyValue>,
        error: String,
        revision: Revision,
        changes: &mut ModelChanges,
    ) {
        let known = self.invalid_keys.get(text).map(|problem| problem.revision);
        let revision = put.map_or(revision, |kv| kv.mod_revision);
        if known == put.map(|kv| kv.mod_revision) {
            return;
        }
        changes.keys.push(ChangedKey { key: None, text: text.to_owned(), revision, deleted: put.is_none() });
        let key = text.to_owned();
        let problem = put.map(|_| InvalidKey { key, error, revision, last_good: false, selector: None });
        self.set_invalid(text, problem, changes);
    }

    fn set_invalid(&mut self, text: &str, problem: Option<InvalidKey>, changes: &mut ModelChanges) {
        match problem {
            Some(problem) => {
                changes.invalid_keys = true;
                self.invalid_keys.insert(text.to_owned(), problem);
            }
            None => changes.invalid_keys |= self.invalid_keys.remove(text).is_some(),
        }
    }

    /// Returns every stored key with its parsed form; malformed keys have none.
    fn texts(&self) -> Vec<(String, Option<(Key, Spelling)>)> {
        let mut texts = Vec::new();
        let mut add = |key: &Key, slot: &Slot| {
            for (spelling, _) in slot.spellings() {
                texts.push((spelling.text(key).into(), Some((key.clone(), spelling))));
            }
        };
        for (name, host) in &self.hosts {
            for (item, slot) in host.slots() {
                add(&item.key(name), slot);
            }
        }
        self.rest.iter().for_each(|(key, slot)| add(key, slot));
        let malformed =
            self.invalid_keys.keys().filter(|text| matches!(self.classify(text), KeyClass::Malformed(_)));
        texts.extend(malformed.map(|text| (text.clone(), None)));
        texts
    }

    pub(super) fn slot(&self, key: &Key) -> Option<&Slot> {
        match HostItem::of(key) {
            Some((host, item)) => self.hosts.get(host)?.slot(item),
            None => self.rest.get(key),
        }
    }

    fn slot_mut(&mut self, key: &Key) -> &mut Slot {
        match HostItem::of(key) {
            Some((host, item)) => self.hosts.entry(host.into()).or_default().slot_mut(item),
            None => self.rest.entry(key.clone()).or_default(),
        }
    }

    fn drop_empty(&mut self, key: &Key) {
        match HostItem::of(key) {
            Some((host, _)) => {
                if self.hosts.get_mut(host).is_some_and(Host::tidy) {
                    self.hosts.remove(host);
                }
            }
            None => {
                if self.rest.get(key).is_some_and(Slot::is_empty) {
                    self.rest.remove(key);
                }
            }
        }
    }

    /// Updates the set of hosts without addresses for one host.
    fn update_silent_hosts(&mut self, host: &str) {
        match self.hosts.get_key_value(host) {
            Some((name, host)) if host.addrs().next().is_none() => {
                self.hosts_without_address.insert(name.clone());
            }
            _ => {
                self.hosts_without_address.remove(host);
            }
        }
    }

    /// Returns the value in force under a key, and the revisions of its entry.
    fn effective(&self, key: &Key) -> Option<Effective> {
        let entry = self.slot(key)?.entry()?;
        Some(Effective { value: entry.value.clone(), revision: entry.revision, created: entry.created })
    }

    /// Updates the indexes for a change of one key.
    fn reindex(&mut self, key: &Key, before: Option<&Effective>, after: Option<&Effective>) {
        self.note_unread_names(key, after);
        let address = |effective: Option<&Effective>| match effective.and_then(|e| e.value.as_ref()) {
            Some(Value::Address(addr)) => *addr,
            _ => None,
        };
        match key {
            Key::Bgp(Scope::Host(host), BgpItem::Address(_)) => {
                let (old, new) = (address(before), address(after));
                index(&mut self.hosts_by_address, host, old, new);
                for addr in [old, new].into_iter().flatten() {
                    if self.hosts_by_address.get(&addr).is_some_and(|hosts| hosts.len() > 1) {
                        self.shared_addresses.insert(addr);
                    } else {
                        self.shared_addresses.remove(&addr);
                    }
                }
            }
            Key::Bgp(Scope::Host(host), BgpItem::Network(_)) => {
                let network = |effective: Option<&Effective>| match effective?.value.as_ref()? {
                    Value::Network(network) => *network,
                    _ => None,
                };
                index(&mut self.hosts_by_network, host, network(before), network(after));
            }
            Key::Bgp(scope, BgpItem::Peer { addr, .. }) => {
                let at = |effective: Option<&Effective>| effective?.value.as_ref().map(|_| *addr);
                index(&mut self.hosts_by_peer, scope.host().unwrap_or_default(), at(before), at(after));
            }
            Key::Endpoint(_) => {
                self.endpoints = (self.endpoints + usize::from(after.is_some()))
                    .saturating_sub(usize::from(before.is_some()));
            }
            _ => {}
        }
    }
}

impl Model {
    /// Updates the list of unknown setting and member names after a change of one key.
    fn note_unread_names(&mut self, key: &Key, after: Option<&Effective>) {
        if matches!(key, Key::Endpoint(_) | Key::Block(_) | Key::Affinity { .. }) {
            return;
        }
        let resource = after.and_then(|effective| effective.value.as_ref()?.resource());
        match resource.map(|resource| tortie_config::unread(key, resource)) {
            Some(names) if !names.is_empty() => drop(self.unread_names.insert(key.clone(), names)),
            _ => drop(self.unread_names.remove(key)),
        }
    }
}

/// Value in force of a key, with its revisions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Effective {
    pub(super) value: Option<Value>,
    pub(super) revision: Revision,
    pub(super) created: Revision,
}

/// Moves a host from one address or network to another in an index.
fn index<T: Ord + Copy>(map: &mut BTreeMap<T, Vec<Arc<str>>>, host: &str, old: Option<T>, new: Option<T>) {
    if old == new {
        return;
    }
    if let Some(addr) = old
        && let Some(hosts) = map.get_mut(&addr)
    {
        if let Some(at) = hosts.iter().position(|h| **h == *host) {
            hosts.remove(at);
        }
        if hosts.is_empty() {
            map.remove(&addr);
        }
    }
    if let Some(addr) = new {
        let hosts = map.entry(addr).or_default();
        let at = hosts.partition_point(|h| **h < *host);
        hosts.insert(at, host.into());
    }
}

/// Classification of a key's text.
enum KeyClass {
    /// A key of the data model, with its spelling.
    Typed(Key, Spelling),
    /// A key that the model skips: obsolete marks, status reports of agents, settings of other hosts.
    Ignored,
    /// A key of another system.
    Unknown,
    /// A key with a known path and a malformed element, with the error.
    Malformed(String),
}

impl Model {
    fn classify(&self, text: &str) -> KeyClass {
        match Key::parse(text) {
            Ok(key) => self.classify_key(key, Some(text)),
            Err(error) => KeyClass::Malformed(error.problem),
        }
    }

    /// Classifies a parsed key. `text` is its text as stored; `None` if that is the canonical one.
    fn classify_key(&self, key: Key, text: Option<&str>) -> KeyClass {
        match key {
            Key::Unknown(_) => KeyClass::Unknown,
            Key::Marker { .. } | Key::Felix { .. } | Key::TortieStatus { .. } | Key::Docker { .. } => {
                KeyClass::Ignored
            }
            // In a v1 store nobody writes these.
            Key::Tier { .. } | Key::NetworkSet { .. } | Key::LiveMigration { .. }
                if self.dialect() == Dialect::V1 =>
            {
                KeyClass::Unknown
            }
            // Only that host reads its own settings; there may be a dozen for each of thousands of hosts.
            Key::Setting(Scope::Host(ref host), _) if *host != self.node && HostItem::of(&key).is_none() => {
                KeyClass::Ignored
            }
            key @ Key::Legacy(_) => {
                let text = text.map_or_else(|| key.to_string(), str::to_owned);
                KeyClass::Typed(key.canonical().clone(), Spelling::Legacy(text.into()))
            }
            key => match text.filter(|text| key.to_string() != *text) {
                Some(text) => KeyClass::Typed(key, Spelling::Variant(text.into())),
                None => KeyClass::Typed(key, Spelling::Canonical),
            },
        }
    }
}
