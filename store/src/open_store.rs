//! Opens the store named by the URL in the options, SQLite or etcd, with the guard of schema and data model.

use std::sync::Arc;

use super::{Store, StoreError, StoreOptions, StoreUrl, schema, sqlite};

/// Opens the store named in the options. SQLite is opened at once; etcd is contacted at the first call, so
/// that an agent can start while etcd is unreachable.
///
/// # Errors
/// [`StoreError::Unusable`] for an invalid URL, for options that contradict each other, for a file that
/// cannot be read, and in the cases of [`sqlite::SqliteStore::open`]. Writes to a store that needs a later
/// schema fail with the same error, and those of the v1 data model to a store of Calico 3 with
/// [`StoreError::Guarded`].
pub async fn open(options: &StoreOptions) -> Result<Arc<dyn Store>, StoreError> {
    match options.url.parse()? {
        StoreUrl::Sqlite(path) => {
            let given = [
                ("--etcd-ca", options.etcd_ca.is_some()),
                ("--etcd-cert", options.etcd_cert.is_some()),
                ("--etcd-key", options.etcd_key.is_some()),
                ("--etcd-user", options.etcd_user.is_some()),
                ("--etcd-password-file", options.etcd_password_file.is_some()),
            ];
            if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
                return Err(StoreError::Unusable(format!(
                    "{flag} is given, but the datastore is {}; drop one of them",
                    options.url
                )));
            }
            let store = Arc::new(match options.checked {
                true => sqlite::SqliteStore::open_checked(&path, options.create).await?,
                false => sqlite::SqliteStore::open(&path, options.create).await?,
            });
            Ok(guarded(store, options))
        }
        StoreUrl::Etcd { endpoints, tls } => open_etcd(options, endpoints, tls),
    }
}

fn guarded(store: Arc<dyn Store>, options: &StoreOptions) -> Arc<dyn Store> {
    Arc::new(schema::Guarded::new(store, options.data_model))
}

#[cfg(feature = "etcd")]
fn open_etcd(
    options: &StoreOptions,
    endpoints: Vec<String>,
    tls: bool,
) -> Result<Arc<dyn Store>, StoreError> {
    Ok(guarded(Arc::new(crate::etcd::EtcdStore::new(options, endpoints, tls)?), options))
}

#[cfg(not(feature = "etcd"))]
fn open_etcd(_: &StoreOptions, _: Vec<String>, _: bool) -> Result<Arc<dyn Store>, StoreError> {
    Err(StoreError::Unusable(
        "this tortie was built without etcd; use a sqlite: datastore or build with the feature \"etcd\""
            .into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn etcd_flags_with_sqlite_are_an_error() {
        let options = StoreOptions {
            url: "sqlite:/nonexistent/x.db".into(),
            etcd_user: Some("u".into()),
            ..StoreOptions::default()
        };
        assert!(open(&options).await.err().unwrap().to_string().contains("--etcd-user"));
    }
}
