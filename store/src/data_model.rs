//! Detection of the data model of a store, and the guard against writing into a Calico 3 store.
//!
//! Calico 3 keeps objects below `/calico/resources/v3/` and shares the IPAM keys with the v1 model. A program
//! of the v1 model that writes there could free addresses of workloads that it cannot see. Such a store is
//! guarded: it is read, and no key of the v1 model is written.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tortie_config::key::prefix;

use super::{Store, StoreError, Txn};

/// Lifetime of a check, in milliseconds: a burst of writes checks once, and an agent still notices keys that
/// appear later.
const LOOK_INTERVAL_MILLIS: u64 = 1_000;

/// Problem text for a store of Calico 3.
pub const CALICO_3: &str = "the store is Calico 3's (it has keys below /calico/resources/v3/), and this tortie works on Calico's v1 \
     data model";
/// Next step for such a store.
pub const CALICO_3_NEXT: &str =
    "name a v1 store with --datastore, or, if those keys are leftovers, delete them or give --data-model v1";

/// Returns the reason for refusing a write, in one sentence with the next step.
#[must_use]
pub fn calico_3_refusal() -> String {
    format!("{CALICO_3}, so it writes nothing there: {CALICO_3_NEXT}")
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
    /// Returns true if the store belongs to Calico 3.
    ///
    /// # Errors
    /// The store cannot be read, or the user has no right to read these keys; the data model is unknown then.
    pub async fn is_calico_3(self, store: &dyn Store) -> Result<bool, StoreError> {
        match self {
            Self::V1 => Ok(false),
            Self::V3 => Ok(true),
            Self::Auto => store.exists(prefix::CALICO_3).await.map_err(|error| match error {
                StoreError::PermissionDenied(text) => StoreError::PermissionDenied(format!(
                    "{text}; the keys below {} show whether the store is Calico 3's: let this user read \
                     them, or give --data-model v1",
                    prefix::CALICO_3
                )),
                error => error,
            }),
        }
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

/// Returns true if a transaction writes no keys of the v1 model: only Tortie's own keys, and objects of
/// Calico 3 that the caller names one by one.
pub(super) fn is_exempt(txn: &Txn) -> bool {
    let exempt = [prefix::TORTIE, prefix::CALICO_3];
    txn.ops.iter().all(|op| exempt.iter().any(|prefix| op.key().starts_with(prefix)))
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

    /// Returns [`StoreError::Guarded`] if the store belongs to Calico 3.
    pub(super) async fn may_write(&self, store: &dyn Store) -> Result<(), StoreError> {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now < self.good_until.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.choice.is_calico_3(store).await? {
            return Err(StoreError::Guarded(calico_3_refusal()));
        }
        self.good_until.store(now.saturating_add(LOOK_INTERVAL_MILLIS), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Op, Outcome, StoreOptions, open};
    use super::*;

    /// Every kind of write against every choice of the data model: a guarded store takes no writes of the v1
    /// model or of IPAM, but all writes of Tortie's own keys and of Calico 3's objects.
    #[tokio::test]
    async fn what_may_be_written_into_which_store() {
        let put = |key: &str| Op::Put { key: key.to_owned(), value: "x".into(), lease: None };
        let delete = |key: &str| Op::Delete { key: key.to_owned() };
        let prefix = |prefix: &str| Op::DeletePrefix { prefix: prefix.to_owned() };
        const V3: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";
        const OWN: &str = "/calico/tortie/v1/status/h1";
        let cases = [
            (vec![put("/calico/v1/Ready")], false),
            (vec![put("/calico/ipam/v2/handle/a")], false),
            (vec![delete("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26")], false),
            (vec![prefix("/calico/")], false),
            (vec![prefix("/calico/v1/host/h1/")], false),
            (vec![put(OWN), put("/calico/felix/v1/host/h1/status")], false),
            (vec![put(OWN)], true),
            (vec![put("/calico/resources/v3/projectcalico.org/nodes/h2"), put(OWN)], true),
            (vec![], true),
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
                if guarded {
                    assert!(matches!(store.may_write().await, Err(StoreError::Guarded(_))), "{choice}");
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
