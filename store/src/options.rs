//! Which store: the URL and what belongs to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Store, StoreError, sqlite};

/// Where the store is when nothing is said.
pub const DEFAULT_URL: &str = "sqlite:/var/lib/tortie/store.db";

/// How to reach the store: the values of `--datastore` and the `--etcd-*` flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// `sqlite:PATH`, `etcd://host:port[,host:port...]` or `etcds://...`.
    pub url: String,
    /// File with the certificate authorities that vouch for etcd (PEM); the system's when absent.
    pub etcd_ca: Option<PathBuf>,
    /// File with our certificate (PEM).
    pub etcd_cert: Option<PathBuf>,
    /// File with the key of our certificate (PEM).
    pub etcd_key: Option<PathBuf>,
    /// User name.
    pub etcd_user: Option<String>,
    /// File with the password; a line end after it is not part of it.
    pub etcd_password_file: Option<PathBuf>,
    /// Whether a SQLite store that does not exist is made. A command that only reads says no, so that a misspelt path
    /// is an error and not an empty store.
    pub create: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            url: DEFAULT_URL.into(),
            etcd_ca: None,
            etcd_cert: None,
            etcd_key: None,
            etcd_user: None,
            etcd_password_file: None,
            create: true,
        }
    }
}

/// A store URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`
    Sqlite(PathBuf),
    /// `etcd://` or `etcds://`
    Etcd {
        /// Each `host:port`, at least one.
        endpoints: Vec<String>,
        /// `etcds`.
        tls: bool,
    },
}

impl std::str::FromStr for StoreUrl {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let bad = |why: &str| {
            // A password in the URL must not reach the log with the message.
            let shown = if url.contains('@') { "(not shown, it holds an @)" } else { url };
            StoreError::Unusable(format!(
                "datastore URL {shown}: {why}; write sqlite:PATH, etcd://HOST:PORT[,HOST:PORT...] or etcds://..."
            ))
        };
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.ends_with('/') {
                return Err(bad("no file is named"));
            }
            return Ok(Self::Sqlite(Path::new(path).to_owned()));
        }
        let (list, tls) = if let Some(list) = url.strip_prefix("etcd://") {
            (list, false)
        } else if let Some(list) = url.strip_prefix("etcds://") {
            (list, true)
        } else {
            return Err(bad("neither sqlite: nor etcd:// nor etcds://"));
        };
        if list.contains('@') {
            return Err(bad(
                "a user or password does not belong here, use --etcd-user and --etcd-password-file",
            ));
        }
        let mut endpoints = Vec::new();
        for item in list.split(',').map(|item| item.trim().trim_end_matches('/')) {
            let item = item.strip_prefix("http://").or_else(|| item.strip_prefix("https://")).unwrap_or(item);
            let Some((host, port)) = item.rsplit_once(':') else {
                return Err(bad(&format!("endpoint \"{item}\" has no port")));
            };
            let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
            if bare_v6 {
                return Err(bad(&format!("endpoint \"{item}\": put the IPv6 address into [brackets]")));
            }
            if host.is_empty()
                || host.contains(['/', ' '])
                || !port.parse::<u16>().is_ok_and(|port| port != 0)
            {
                return Err(bad(&format!("endpoint \"{item}\" is not HOST:PORT")));
            }
            endpoints.push(item.to_owned());
        }
        Ok(Self::Etcd { endpoints, tls })
    }
}

/// Opens the store that the options name. SQLite is opened at once; etcd is called first when it is first needed, so that
/// an agent can start while it is away.
///
/// # Errors
/// [`StoreError::Unusable`] for a URL that says nothing, options that do not fit together, a file that cannot be read,
/// and for what [`sqlite::SqliteStore::open`] says. Writes to a store
/// that needs a later schema are refused with the same error.
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
            Ok(guarded(Arc::new(sqlite::SqliteStore::open(&path, options.create).await?)))
        }
        StoreUrl::Etcd { endpoints, tls } => open_etcd(options, endpoints, tls),
    }
}

fn guarded(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(super::schema::Guarded::new(store))
}

#[cfg(feature = "etcd")]
fn open_etcd(
    options: &StoreOptions,
    endpoints: Vec<String>,
    tls: bool,
) -> Result<Arc<dyn Store>, StoreError> {
    Ok(guarded(Arc::new(super::etcd::EtcdStore::new(options, endpoints, tls)?)))
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

    #[test]
    fn urls_that_mean_something() {
        let ok = |url: &str| url.parse::<StoreUrl>().unwrap();
        assert_eq!(ok("sqlite:/var/lib/x.db"), StoreUrl::Sqlite("/var/lib/x.db".into()));
        assert_eq!(ok("sqlite:///var/lib/x.db"), StoreUrl::Sqlite("/var/lib/x.db".into()));
        assert_eq!(ok("sqlite:x.db"), StoreUrl::Sqlite("x.db".into()));
        let etcd = |list: &[&str], tls| StoreUrl::Etcd {
            endpoints: list.iter().map(|s| (*s).to_owned()).collect(),
            tls,
        };
        assert_eq!(ok("etcd://a:2379"), etcd(&["a:2379"], false));
        assert_eq!(ok("etcds://a:2379,[2001:db8::1]:2380/"), etcd(&["a:2379", "[2001:db8::1]:2380"], true));
        assert_eq!(ok("etcd://a:1, http://b:2"), etcd(&["a:1", "b:2"], false));
    }

    #[test]
    fn urls_that_mean_nothing_say_why() {
        for (url, why) in [
            ("", "neither"),
            ("sqlite:", "no file"),
            ("sqlite:/tmp/", "no file"),
            ("etcd://a", "no port"),
            ("etcd://a:0", "HOST:PORT"),
            ("etcd://a:70000", "HOST:PORT"),
            ("etcd://a:1,", "no port"),
            ("etcd://2001:db8::1:2379", "[brackets]"),
            ("etcd://root:secret@a:1", "--etcd-password-file"),
            ("redis://a:1", "neither"),
        ] {
            let error = url.parse::<StoreUrl>().expect_err(url).to_string();
            assert!(error.contains(why), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

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
