//! Pools of the data model, for plugins that check or name them before they ask IPAM.

use std::collections::BTreeMap;

use tortie_config::Dialect;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::Key;
use tortie_config::resource::{Pool, Resource};
use tortie_engine::ipam::Keyspace;
use tortie_engine::model::projected;
use tortie_net::Cidr;
use tortie_store::{Store, StoreError};

/// Returns the pools that can be parsed, disabled ones included.
///
/// # Errors
/// If the store cannot be read.
pub(crate) async fn pools(store: &dyn Store) -> Result<Vec<Pool>, StoreError> {
    let dialect = store.dialect().await?;
    let stored = store.list(&[Keyspace::of(dialect).stored_pools()]).await?;
    let entries = match dialect {
        Dialect::V1 => stored,
        Dialect::V3 => projected("", &stored),
    };
    let pool = |(key, value): (&str, &[u8])| match Key::parse(key).map(|key| Resource::parse(&key, value)) {
        Ok(Ok(Resource::Pool(pool))) => Some(pool),
        _ => None,
    };
    let entries = entries.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_slice()));
    Ok(entries.filter_map(pool).collect())
}

/// Names of pools, which only a Calico 3 store has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolNames(Option<BTreeMap<String, Cidr>>);

impl PoolNames {
    /// Reads the names.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        if store.dialect().await? == Dialect::V1 {
            return Ok(Self::default());
        }
        let stored = store.list(&[ObjectKey::prefix_of(Kind::IPPool)]).await?;
        let named = stored.entries.iter().filter_map(|entry| {
            let key = ObjectKey::parse(&entry.key)?;
            let object: serde_json::Value = serde_json::from_slice(&entry.value).ok()?;
            let cidr = object.pointer("/spec/cidr")?.as_str()?.parse().ok()?;
            Some((key.name, cidr))
        });
        Ok(Self(Some(named.collect())))
    }

    /// Returns the prefix of a pool.
    ///
    /// # Errors
    /// What to write instead, if there is no such pool.
    pub fn prefix(&self, name: &str) -> Result<Cidr, String> {
        let Some(names) = &self.0 else {
            return Err(
                "pools of this store have no names: write the prefix, such as 10.65.0.0/16".to_owned()
            );
        };
        names.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = names.keys().map(String::as_str).collect();
            if known.is_empty() {
                "there is no IPPool: create one".to_owned()
            } else {
                format!("there is no such IPPool; there are {}", known.join(", "))
            }
        })
    }
}
