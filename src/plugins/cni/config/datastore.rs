//! Address of the data model: from Tortie's URL, Calico's etcd fields, the environment (Tortie's variables,
//! then Calico's), or the default, in this order.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::plugins::cni::protocol::error::{CniError, code};
use crate::plugins::cni::protocol::json::Object;
use tortie_store::{CALICO_ENVIRONMENT, CalicoAddress, DEFAULT_URL, DataModel, StoreOptions, StoreUrl};

/// Store settings of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datastore {
    /// URL: `sqlite:`, `etcd://` or `etcds://`.
    pub url: String,
    /// CA certificate of etcd (PEM).
    pub ca: Option<PathBuf>,
    /// Client certificate (PEM).
    pub cert: Option<PathBuf>,
    /// Key of the client certificate (PEM).
    pub key: Option<PathBuf>,
    /// User name at etcd.
    pub user: Option<String>,
    /// File with the user's password.
    pub password_file: Option<PathBuf>,
    /// Version of the data model in the store.
    pub data_model: DataModel,
}

/// Fields that [`parse`] reads.
const FIELDS: [&str; 11] = [
    "datastore",
    "datastore_type",
    "etcd_authority",
    "etcd_endpoints",
    "etcd_scheme",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
    "etcd_user",
    "etcd_password_file",
    "data_model",
];

/// True if the field belongs to the store settings, in the configuration itself or in its `ipam`.
pub(in crate::plugins::cni) fn is_field(name: &str) -> bool {
    FIELDS.contains(&name)
}

/// Parses the store settings of a configuration.
pub(in crate::plugins::cni) fn parse(object: &Object<'_>) -> Result<Option<Datastore>, CniError> {
    match object.text("datastore_type")? {
        None | Some("etcd" | "etcdv2" | "etcdv3") => {}
        Some(other) => {
            let expected = "only etcd is read; write \"datastore\": \"etcd://HOST:PORT\" or \"sqlite:PATH\"";
            return Err(CniError::value("datastore_type", &other.into(), expected));
        }
    }
    let url =
        match (object.text("datastore")?, object.text("etcd_endpoints")?, object.text("etcd_authority")?) {
            (Some(url), ..) => url.to_owned(),
            (None, Some(list), _) => tortie_store::etcd_url(list).ok_or_else(|| {
                let expected = "write http://HOST:PORT[,...] or https://HOST:PORT[,...], all of one kind";
                CniError::value("etcd_endpoints", &list.into(), expected)
            })?,
            (None, None, Some(authority)) => {
                let tls = object.text("etcd_scheme")? == Some("https");
                format!("{}://{authority}", if tls { "etcds" } else { "etcd" })
            }
            (None, None, None) => return Ok(None),
        };
    let parsed: StoreUrl = url.parse().map_err(|error| CniError::new(code::CONFIG, format!("{error}")))?;
    let path = |name: &str| object.text(name).map(|text| text.map(PathBuf::from));
    let mut this = Datastore {
        url,
        ca: path("etcd_ca_cert_file")?,
        cert: path("etcd_cert_file")?,
        key: path("etcd_key_file")?,
        user: object.text("etcd_user")?.map(str::to_owned),
        password_file: path("etcd_password_file")?,
        data_model: match object.text("data_model")? {
            Some(text) => text
                .parse()
                .map_err(|_| CniError::value("data_model", &text.into(), "write auto, v1 or v3"))?,
            None => DataModel::default(),
        },
    };
    // Calico's installers write the names of certificate files even with plain HTTP.
    if matches!(parsed, StoreUrl::Etcd { tls: false, .. }) {
        (this.ca, this.cert, this.key) = (None, None, None);
    }
    Ok(Some(this))
}

/// Returns the options for opening the store. A plugin never creates a SQLite file, because a misspelt path
/// would then be an empty store.
///
/// # Errors
/// If only Calico's variables name a store, and it is not etcd 3.
pub fn options(
    configured: Option<&Datastore>,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<StoreOptions, CniError> {
    if let Some(given) = configured {
        return Ok(StoreOptions {
            url: given.url.clone(),
            etcd_ca: given.ca.clone(),
            etcd_cert: given.cert.clone(),
            etcd_key: given.key.clone(),
            etcd_user: given.user.clone(),
            etcd_password_file: given.password_file.clone(),
            create: false,
            checked: false,
            data_model: given.data_model,
        });
    }
    let text =
        |name: &str| env(name).and_then(|text| text.into_string().ok()).filter(|text| !text.is_empty());
    let path = |name: &str| text(name).map(PathBuf::from);
    let data_model = text("TORTIE_DATA_MODEL").and_then(|text| text.parse().ok()).unwrap_or_default();
    let url = match text("TORTIE_DATASTORE") {
        Some(url) => url,
        None => {
            let found = CalicoAddress::read(&CALICO_ENVIRONMENT, text);
            let found = found.map_err(|why| CniError::new(code::CONFIG, why))?;
            if let Some(CalicoAddress { url, ca, cert, key }) = found {
                let (etcd_ca, etcd_cert, etcd_key) = (ca, cert, key);
                let options = StoreOptions { url, etcd_ca, etcd_cert, etcd_key, ..StoreOptions::default() };
                return Ok(StoreOptions { create: false, data_model, ..options });
            }
            DEFAULT_URL.to_owned()
        }
    };
    if url.starts_with("sqlite:") {
        return Ok(StoreOptions { url, create: false, data_model, ..StoreOptions::default() });
    }
    Ok(StoreOptions {
        url,
        etcd_ca: path("TORTIE_ETCD_CA"),
        etcd_cert: path("TORTIE_ETCD_CERT"),
        etcd_key: path("TORTIE_ETCD_KEY"),
        etcd_user: text("TORTIE_ETCD_USER"),
        etcd_password_file: path("TORTIE_ETCD_PASSWORD_FILE"),
        create: false,
        checked: false,
        data_model,
    })
}
