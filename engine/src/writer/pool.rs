//! Pools of an operator: a key of the v1 model, or an IPPool of Calico 3.

use tortie_config::Dialect;
use tortie_config::calico3::write::{Birth, ip_pool, ip_pool_key, switch_ip_pool};
use tortie_config::calico3::{Kind, ObjectError, ObjectKey, Projection};
use tortie_config::key::{Key, Scope};
use tortie_config::resource::{Pool, ValueError};
use tortie_net::Cidr;
use tortie_store::{Compare, KeyValue, Op, Revision, Snapshot, Txn};

use crate::model::raw_entry;

use super::Writer;

/// A pool as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPool {
    /// The pool, as the v1 model has it.
    pub pool: Pool,
    /// Name for people: the key, or the object.
    pub name: String,
    /// Names of the other objects with the same prefix. They do not count while this one exists.
    pub others: Vec<String>,
    entry: KeyValue,
}

/// Reason why a pool is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The object cannot be edited.
    #[error("{0}: {1}; repair it with `tortie store put`")]
    Object(String, #[source] ObjectError),
    /// The value cannot be parsed.
    #[error("{0}: {1}")]
    Value(String, #[source] ValueError),
}

impl StoredPool {
    /// Returns the same pool after a transaction of this writer that changed it.
    #[must_use]
    pub fn written(mut self, txn: &Txn, revision: Revision) -> Self {
        if let Some(Op::Put { value, .. }) = txn.ops.iter().find(|op| op.key() == self.entry.key) {
            self.entry.value.clone_from(value);
            self.entry.mod_revision = revision;
        }
        self
    }

    fn unchanged(&self) -> Compare {
        Compare::ModRevision(self.entry.key.clone(), self.entry.mod_revision)
    }
}

impl Writer {
    /// Returns the name under which a new pool is stored, for people.
    #[must_use]
    pub fn name_of_new_pool(self, cidr: &Cidr) -> String {
        match self.dialect() {
            Dialect::V1 => Key::Pool(*cidr).to_string(),
            Dialect::V3 => ip_pool_key(cidr).title(),
        }
    }

    /// Returns the transaction that creates a pool. It fails if there is one of this name. In the v1 model
    /// `enable_ipip` switches IPIP on for all hosts, which otherwise accept no tunnelled packets; Calico 3's
    /// hosts see the pool's mode.
    ///
    /// # Errors
    /// [`PoolError::Object`], never for a pool that was parsed.
    pub fn create_pool(self, pool: &Pool, enable_ipip: bool, birth: &Birth) -> Result<Txn, PoolError> {
        let (key, value) = match self.dialect() {
            Dialect::V1 => (Key::Pool(pool.cidr).to_string(), pool.to_value()),
            Dialect::V3 => {
                let key = ip_pool_key(&pool.cidr);
                let value = ip_pool(pool, birth).map_err(|error| PoolError::Object(key.title(), error))?;
                (key.to_string(), value)
            }
        };
        let mut txn = Txn { compare: vec![Compare::Absent(key.clone())], ops: vec![put(key, value)] };
        if enable_ipip && self.dialect() == Dialect::V1 {
            txn.ops.push(put(ipip_enabled(), b"true".to_vec()));
        }
        Ok(txn)
    }

    /// Finds the pool with a prefix in a snapshot of [`crate::ipam::Keyspace::stored_pools`]: of several
    /// objects the one that counts.
    ///
    /// # Errors
    /// [`PoolError::Value`] if the value of its key cannot be parsed.
    pub fn find_pool(self, snapshot: &Snapshot, cidr: &Cidr) -> Result<Option<StoredPool>, PoolError> {
        let key = Key::Pool(*cidr).to_string();
        let (value, stored, others) = match self.dialect() {
            Dialect::V1 => {
                let Some(entry) = snapshot.entries.iter().find(|entry| entry.key == key) else {
                    return Ok(None);
                };
                (entry.value.clone(), entry, Vec::new())
            }
            Dialect::V3 => {
                let raw = snapshot.entries.iter().map(raw_entry);
                let mut projection = Projection::new("");
                let entries = projection.replace(raw);
                let Some(found) = entries.into_iter().find(|entry| entry.key == key) else { return Ok(None) };
                let keys = found.raw_keys();
                let Some(entry) = snapshot.entries.iter().find(|entry| keys.first() == Some(&entry.key))
                else {
                    return Ok(None);
                };
                (found.value.into_octets(), entry, others(snapshot, cidr, &entry.key))
            }
        };
        let name = ObjectKey::parse(&stored.key).map_or_else(|| stored.key.clone(), |key| key.title());
        match Pool::parse(*cidr, &value) {
            Ok(pool) => Ok(Some(StoredPool { pool, name, others, entry: stored.clone() })),
            Err(error) => Err(PoolError::Value(name, error)),
        }
    }

    /// Returns the transaction that enables or disables a pool, or `None` if it does not change.
    ///
    /// # Errors
    /// [`PoolError::Object`] if the stored value is no object.
    pub fn switch_pool(
        self,
        stored: &StoredPool,
        disabled: bool,
        birth: &Birth,
    ) -> Result<Option<Txn>, PoolError> {
        let value = match (self.dialect(), ObjectKey::parse(&stored.entry.key)) {
            (Dialect::V3, Some(key)) => switch_ip_pool(&key, &stored.entry.value, disabled, birth)
                .map_err(|error| PoolError::Object(stored.name.clone(), error))?,
            _ => {
                let changes = stored.pool.disabled != disabled;
                changes.then(|| Pool { disabled, ..stored.pool.clone() }.to_value())
            }
        };
        Ok(value.map(|value| Txn {
            compare: vec![stored.unchanged()],
            ops: vec![put(stored.entry.key.clone(), value)],
        }))
    }

    /// Returns the transaction that deletes a pool.
    #[must_use]
    pub fn delete_pool(self, stored: &StoredPool) -> Txn {
        let key = stored.entry.key.clone();
        Txn { compare: vec![stored.unchanged()], ops: vec![Op::Delete { key }] }
    }
}

/// Returns the key of the v1 model that switches IPIP on.
#[must_use]
pub fn ipip_enabled() -> String {
    Key::Setting(Scope::Global, "IpInIpEnabled".to_owned()).to_string()
}

/// Returns the names of other objects with this prefix.
fn others(snapshot: &Snapshot, cidr: &Cidr, winner: &str) -> Vec<String> {
    let others = snapshot.entries.iter().filter(|entry| entry.key != winner);
    let prefix = |value: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(value).ok()?;
        value.pointer("/spec/cidr")?.as_str()?.parse::<Cidr>().ok()
    };
    let same = others.filter(|entry| prefix(&entry.value) == Some(*cidr));
    let keys = same.filter_map(|entry| ObjectKey::parse(&entry.key));
    keys.filter(|key| key.kind == Kind::IPPool).map(|key| key.title()).collect()
}

fn put(key: String, value: Vec<u8>) -> Op {
    Op::Put { key, value, lease: None }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tortie_store::fixtures::snapshot;

    use super::*;

    fn birth() -> Birth {
        Birth { uid: "u".to_owned(), time: "2026-01-02T03:04:05Z".to_owned() }
    }

    fn written(txn: &Txn) -> Value {
        let [Op::Put { value, .. }] = txn.ops.as_slice() else { panic!("{txn:?}") };
        serde_json::from_slice(value).unwrap()
    }

    #[test]
    fn a_pool_is_a_key_or_an_object() {
        let cidr: Cidr = "10.99.0.0/16".parse().unwrap();
        let v1 = Writer::of(Dialect::V1).create_pool(&Pool::new(cidr), true, &birth()).unwrap();
        let keys: Vec<&str> = v1.ops.iter().map(Op::key).collect();
        assert_eq!(keys, ["/calico/v1/ipam/v4/pool/10.99.0.0-16", "/calico/v1/config/IpInIpEnabled"]);
        let v3 = Writer::of(Dialect::V3).create_pool(&Pool::new(cidr), true, &birth()).unwrap();
        let key = "/calico/resources/v3/projectcalico.org/ippools/10-99-0-0-16";
        assert_eq!(v3.ops.iter().map(Op::key).collect::<Vec<_>>(), [key]);
        assert_eq!(v3.compare, [Compare::Absent(key.to_owned())]);
        assert_eq!(written(&v3)["spec"]["cidr"], "10.99.0.0/16");
    }

    #[test]
    fn of_two_objects_with_one_prefix_the_one_that_counts_is_changed() {
        let root = "/calico/resources/v3/projectcalico.org/ippools";
        let (b, a) = (format!("{root}/b"), format!("{root}/a"));
        let object = json!({"spec": {"cidr": "10.99.0.0/16"}, "later": 1}).to_string();
        let stored = snapshot(9, &[(a.as_str(), object.as_str()), (b.as_str(), object.as_str())]);
        let writer = Writer::of(Dialect::V3);
        let cidr = "10.99.0.0/16".parse().unwrap();
        let found = writer.find_pool(&stored, &cidr).unwrap().unwrap();
        assert_eq!(
            (found.name.as_str(), found.others.as_slice()),
            ("IPPool a", &["IPPool b".to_owned()][..])
        );
        let off = writer.switch_pool(&found, true, &birth()).unwrap().unwrap();
        assert_eq!(off.compare, [Compare::ModRevision(a.clone(), found.entry.mod_revision)]);
        assert_eq!((&written(&off)["spec"]["disabled"], &written(&off)["later"]), (&json!(true), &json!(1)));
        let later = found.written(&off, 12);
        assert_eq!(writer.switch_pool(&later, true, &birth()).unwrap(), None);
        let gone = writer.delete_pool(&later);
        assert_eq!(gone.compare, [Compare::ModRevision(a.clone(), 12)]);
        assert_eq!(gone.ops, [Op::Delete { key: a }]);
        assert_eq!(writer.find_pool(&stored, &"10.0.0.0/8".parse().unwrap()).unwrap(), None);
    }
}
