//! Detection of the data model of a store, and the guard of a Calico 3 store.
//!
//! Calico 3 keeps objects below `/calico/resources/v3/` and shares the IPAM keys with the v1 model. Two checks
//! protect such a store:
//!
//! - [`Purpose::writes_calico_3`] is the table of the parts of this program that know Calico 3's rules. All
//!   others refuse before they write anything ([`Store::may_write`]): a program of the v1 model could free
//!   addresses of workloads that it cannot see.
//! - A transaction writes single keys that Calico 3 has, or Tortie's own keys. Keys of the v1 model and
//!   prefixes are refused for every writer.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tortie_config::Dialect;
use tortie_config::key::prefix;

use super::{Op, Store, StoreError, Txn};

/// Lifetime of a check, in milliseconds: a burst of writes checks once, and an agent still notices keys that
/// appear later.
const LOOK_INTERVAL_MILLIS: u64 = 1_000;

/// Text for people that says what the store is.
pub const CALICO_3: &str = "the store is Calico 3's (it has keys below /calico/resources/v3/)";
/// Next step where such a store is refused.
pub const CALICO_3_NEXT: &str =
    "name a v1 store with --datastore, or, if those keys are leftovers, delete them or give --data-model v1";

/// A part of this program that writes the data model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The agent: registration, tunnel addresses, status, collection of addresses.
    Agent,
    /// The CNI plugin: addresses, endpoints, profiles.
    Cni,
    /// The Docker drivers: addresses, endpoints, profiles.
    Docker,
    /// Kurma's executables: addresses, endpoints, profiles.
    Kurma,
    /// `tortie ipam`: addresses, blocks, configuration of IPAM.
    Ipam,
    /// `tortie ipam pool`: pools.
    Pools,
    /// `tortie node delete`: everything of a host.
    NodeDelete,
    /// `tortie purge`: everything of this host.
    Purge,
    /// `tortie migrate adopt`: what Calico's own programs on this host wrote.
    Adopt,
}

impl Purpose {
    /// All parts.
    pub const ALL: [Self; 9] = [
        Self::Agent,
        Self::Cni,
        Self::Docker,
        Self::Kurma,
        Self::Ipam,
        Self::Pools,
        Self::NodeDelete,
        Self::Purge,
        Self::Adopt,
    ];

    /// Returns true if this part writes Calico 3's data by its rules.
    #[must_use]
    pub const fn writes_calico_3(self) -> bool {
        match self {
            Self::Agent => true,
            Self::Cni => true,
            Self::Docker => true,
            Self::Kurma => true,
            Self::Ipam => true,
            Self::Pools => true,
            Self::NodeDelete => true,
            Self::Purge => true,
            Self::Adopt => true,
        }
    }

    /// Returns the name of the part for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "the agent",
            Self::Cni => "tortie-cni",
            Self::Docker => "tortie docker",
            Self::Kurma => "tortie kurma",
            Self::Ipam => "tortie ipam",
            Self::Pools => "tortie ipam pool",
            Self::NodeDelete => "tortie node delete",
            Self::Purge => "tortie purge",
            Self::Adopt => "tortie migrate adopt",
        }
    }

    /// Checks that this part may write a store of this dialect.
    ///
    /// # Errors
    /// [`StoreError::Guarded`] with the reason in one sentence and the next step.
    pub fn check(self, dialect: Dialect) -> Result<(), StoreError> {
        if dialect == Dialect::V1 || self.writes_calico_3() {
            return Ok(());
        }
        let text = format!("{CALICO_3}, which {} does not write: {CALICO_3_NEXT}", self.name());
        Err(StoreError::Guarded(text))
    }
}

/// The data model of a store: detected, or set by the operator (`--data-model`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataModel {
    /// Detected: any key below `/calico/resources/v3/` means Calico 3.
    #[default]
    Auto,
    /// Calico's v1 model, regardless of other keys.
    V1,
    /// Calico 3's model.
    V3,
}

impl DataModel {
    /// Returns the dialect of the store. A store with keys of both models is Calico 3's.
    ///
    /// # Errors
    /// The store cannot be read, or the user has no right to read these keys; the dialect is unknown then.
    pub async fn dialect(self, store: &dyn Store) -> Result<Dialect, StoreError> {
        match self {
            Self::V1 => Ok(Dialect::V1),
            Self::V3 => Ok(Dialect::V3),
            Self::Auto => match store.exists(prefix::CALICO_3).await {
                Ok(true) => Ok(Dialect::V3),
                Ok(false) => Ok(Dialect::V1),
                Err(StoreError::PermissionDenied(text)) => Err(StoreError::PermissionDenied(format!(
                    "{text}; the keys below {} show whether the store is Calico 3's: let this user read \
                     them, or give --data-model v1",
                    prefix::CALICO_3
                ))),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns the dialect of entries that were read earlier, when the store cannot be asked.
    #[must_use]
    pub fn dialect_of<'a>(self, mut keys: impl Iterator<Item = &'a str>) -> Dialect {
        match self {
            Self::V1 => Dialect::V1,
            Self::Auto if !keys.any(|key| key.starts_with(prefix::CALICO_3)) => Dialect::V1,
            Self::V3 | Self::Auto => Dialect::V3,
        }
    }

    /// Returns true if the store belongs to Calico 3.
    ///
    /// # Errors
    /// As [`DataModel::dialect`].
    pub async fn is_calico_3(self, store: &dyn Store) -> Result<bool, StoreError> {
        Ok(self.dialect(store).await? == Dialect::V3)
    }
}

impl FromStr for DataModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "v1" => Ok(Self::V1),
            "v3" => Ok(Self::V3),
            _ => Err(format!("`{text}` is none of auto, v1 and v3")),
        }
    }
}

impl fmt::Display for DataModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::V1 => "v1",
            Self::V3 => "v3",
        })
    }
}

/// Returns the first key or prefix of a transaction that is not written in a Calico 3 store.
pub(super) fn refused_key(txn: &Txn) -> Option<&str> {
    const SINGLE: [&str; 3] = [prefix::CALICO_3, prefix::IPAM, prefix::FELIX_2];
    let allowed = |op: &Op| match op {
        Op::DeletePrefix { prefix } => prefix.starts_with(prefix::TORTIE),
        Op::Put { key, .. } | Op::Delete { key } => {
            key.starts_with(prefix::TORTIE)
                || SINGLE.iter().any(|prefix| key.starts_with(prefix))
                || is_host_endpoint_status(key)
        }
    };
    txn.ops.iter().find(|op| !allowed(op)).map(Op::key)
}

/// Returns true for the status of a host endpoint, which Felix of Calico 3 still writes in the v1 form.
fn is_host_endpoint_status(key: &str) -> bool {
    key.strip_prefix(prefix::FELIX_HOSTS)
        .and_then(|rest| rest.split_once('/'))
        .is_some_and(|(_, item)| item.starts_with("endpoint/"))
}

/// Checks at most once per second if a store may be written.
pub(super) struct WriteGuard {
    choice: DataModel,
    started: Instant,
    /// Milliseconds after `started` until which the last check is valid.
    good_until: AtomicU64,
}

impl WriteGuard {
    /// Creates a guard that has not checked yet.
    pub(super) fn new(choice: DataModel) -> Self {
        Self { choice, started: Instant::now(), good_until: AtomicU64::new(0) }
    }

    /// Returns [`StoreError::Guarded`] if the store belongs to Calico 3 and the transaction writes a key that
    /// is not written there. Keys that are written in both dialects need no look into the store.
    pub(super) async fn may_commit(&self, txn: &Txn, store: &dyn Store) -> Result<(), StoreError> {
        let Some(key) = refused_key(txn) else { return Ok(()) };
        match self.dialect(store).await? {
            Dialect::V1 => Ok(()),
            Dialect::V3 => Err(StoreError::Guarded(format!(
                "{CALICO_3}, and {key} is of the v1 data model or more than one key: {CALICO_3_NEXT}"
            ))),
        }
    }

    /// Returns the dialect of the store. That it is the v1 model's is valid for a second.
    pub(super) async fn dialect(&self, store: &dyn Store) -> Result<Dialect, StoreError> {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now < self.good_until.load(Ordering::Relaxed) {
            return Ok(Dialect::V1);
        }
        let dialect = self.choice.dialect(store).await?;
        if dialect == Dialect::V1 {
            self.good_until.store(now.saturating_add(LOOK_INTERVAL_MILLIS), Ordering::Relaxed);
        }
        Ok(dialect)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, StoreOptions, open};
    use super::*;

    /// Every kind of write against every choice of the data model: a Calico 3 store takes single keys that
    /// Calico 3 has and all of Tortie's own, and nothing else.
    #[tokio::test]
    async fn what_may_be_written_into_which_store() {
        let put = |key: &str| Op::Put { key: key.to_owned(), value: "x".into(), lease: None };
        let delete = |key: &str| Op::Delete { key: key.to_owned() };
        let prefix = |prefix: &str| Op::DeletePrefix { prefix: prefix.to_owned() };
        const V3: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";
        const OWN: &str = "/calico/tortie/v1/status/h1";
        let cases = [
            (vec![put("/calico/v1/Ready")], false),
            (vec![put("/calico/bgp/v1/host/h1/ip_addr_v4")], false),
            (vec![delete("/calico/v1/ipam/v4/pool/10.0.0.0-26")], false),
            (vec![prefix("/calico/")], false),
            (vec![prefix("/calico/v1/host/h1/")], false),
            (vec![prefix("/calico/ipam/v2/host/h1/")], false),
            (vec![prefix("/calico/resources/v3/projectcalico.org/nodes/h2")], false),
            (vec![put(OWN), put("/calico/felix/v1/host/h1/status")], false),
            (vec![put("/calico/ipam/v2/handle/a"), put("/calico/v1/Ready")], false),
            (vec![delete("/calico/felix/v1/host/h1/endpoint/uplink")], true),
            (vec![put("/calico/ipam/v2/handle/a"), put("/calico/felix/v2/no-region/host/h1/status")], true),
            (vec![delete("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26")], true),
            (vec![prefix("/calico/tortie/v1/host/h1/")], true),
            (vec![put(OWN)], true),
            (vec![], true),
            // Last: it makes an empty store one of Calico 3.
            (vec![put("/calico/resources/v3/projectcalico.org/nodes/h2"), put(OWN)], true),
        ];
        for (choice, has_objects, guarded) in [
            (DataModel::Auto, true, true),
            (DataModel::Auto, false, false),
            (DataModel::V3, false, true),
            (DataModel::V1, true, false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", dir.path().join("store.db").display());
            let of = |data_model| StoreOptions { url: url.clone(), data_model, ..StoreOptions::default() };
            if has_objects {
                let txn = Txn { ops: vec![put(V3)], ..Txn::default() };
                open(&of(DataModel::V1)).await.unwrap().commit(txn).await.unwrap();
            }
            for (ops, allowed) in &cases {
                // A new process: no check is cached.
                let store = open(&of(choice)).await.unwrap();
                for purpose in Purpose::ALL {
                    let refused = matches!(store.may_write(purpose).await, Err(StoreError::Guarded(_)));
                    assert_eq!(refused, guarded && !purpose.writes_calico_3(), "{choice}: {purpose:?}");
                }
                let before = store.list(&["/calico/".to_owned()]).await.unwrap().entries;
                match store.commit(Txn { ops: ops.clone(), ..Txn::default() }).await {
                    Ok(Outcome::Committed(_)) => assert!(!guarded || *allowed, "{choice}: {ops:?}"),
                    Err(StoreError::Guarded(text)) => {
                        assert!(guarded && !*allowed && text.contains("Calico 3"), "{choice}: {ops:?}");
                        assert_eq!(store.list(&["/calico/".to_owned()]).await.unwrap().entries, before);
                    }
                    other => panic!("{choice}: {ops:?}: {other:?}"),
                }
                if has_objects && choice == DataModel::V1 {
                    let txn = Txn { ops: vec![put(V3)], ..Txn::default() };
                    store.commit(txn).await.unwrap();
                }
            }
        }
    }
}
