//! Settings of the store: its URL, credentials and data model.

use std::path::{Path, PathBuf};

use super::StoreError;
use crate::data_model::DataModel;

/// URL of the store if none is given.
pub const DEFAULT_URL: &str = "sqlite:/var/lib/tortie/store.db";

/// Access to the store: the values of `--datastore` and the `--etcd-*` flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// Store URL: `sqlite:PATH`, `etcd://host:port[,host:port...]` or `etcds://...`.
    pub url: String,
    /// File with the certificate authorities that etcd's certificate is verified against (PEM); the system's
    /// if absent.
    pub etcd_ca: Option<PathBuf>,
    /// File with the client certificate (PEM).
    pub etcd_cert: Option<PathBuf>,
    /// File with the private key of the client certificate (PEM).
    pub etcd_key: Option<PathBuf>,
    /// etcd user name.
    pub etcd_user: Option<String>,
    /// File with the password of the user; a newline at its end is ignored.
    pub etcd_password_file: Option<PathBuf>,
    /// Creates a SQLite store that does not exist. Commands that only read set this to false, so that a
    /// misspelt path is an error and not an empty store.
    pub create: bool,
    /// For agents: a SQLite file is read whole before the first answer. Damage is then no error of opening
    /// the store, but the result of each call until another file takes its place.
    pub checked: bool,
    /// The data model of the store (`--data-model`).
    pub data_model: DataModel,
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
            checked: false,
            data_model: DataModel::default(),
        }
    }
}

/// Bundles of the certificate authorities that the system trusts (Debian, Red Hat).
pub(crate) const SYSTEM_CA: [&str; 2] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Files of this host that an open store uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreFiles {
    /// Folders in which SQLite creates, changes and removes files: that of the path, and that of the database
    /// if the path is a symbolic link.
    pub folders: Vec<PathBuf>,
    /// Files that are read, and read again after a renewal.
    pub read: Vec<PathBuf>,
    /// True if an endpoint is a host name, which the resolver looks up.
    pub resolves_names: bool,
}

impl StoreOptions {
    /// Returns the files that a store with these options uses; none if the URL is invalid.
    #[must_use]
    pub fn files(&self) -> StoreFiles {
        match self.url.parse() {
            Ok(StoreUrl::Sqlite(path)) => {
                let path = std::path::absolute(&path).unwrap_or(path);
                let real = path.canonicalize().ok();
                let folders = [path.parent(), real.as_deref().and_then(Path::parent)];
                let mut folders: Vec<PathBuf> = folders.into_iter().flatten().map(Path::to_owned).collect();
                folders.dedup();
                StoreFiles { folders, ..StoreFiles::default() }
            }
            Ok(StoreUrl::Etcd { endpoints, tls }) => {
                let given = [&self.etcd_ca, &self.etcd_cert, &self.etcd_key, &self.etcd_password_file];
                let mut read: Vec<PathBuf> = given.into_iter().flatten().cloned().collect();
                if tls && self.etcd_ca.is_none() {
                    read.extend(SYSTEM_CA.map(PathBuf::from));
                }
                let is_name = |endpoint: &String| endpoint.parse::<std::net::SocketAddr>().is_err();
                StoreFiles { folders: Vec::new(), read, resolves_names: endpoints.iter().any(is_name) }
            }
            Err(_) => StoreFiles::default(),
        }
    }
}

/// A parsed store URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`: path of the database.
    Sqlite(PathBuf),
    /// `etcd://` or `etcds://`: an etcd cluster.
    Etcd {
        /// Endpoints as `host:port`, at least one.
        endpoints: Vec<String>,
        /// True for `etcds`, which uses TLS.
        tls: bool,
    },
}

impl std::str::FromStr for StoreUrl {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let bad = |why: &str| {
            // A password in the URL must not reach the log through the error message.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_store_are_those_that_it_reads_and_writes() {
        let of = |url: &str| StoreOptions { url: url.into(), ..StoreOptions::default() };
        let sqlite = of("sqlite:/var/lib/x/store.db").files();
        assert_eq!(sqlite, StoreFiles { folders: vec!["/var/lib/x".into()], ..StoreFiles::default() });
        assert_eq!(of("etcd://192.0.2.1:2379,[2001:db8::1]:2379").files(), StoreFiles::default());
        assert!(of("etcd://192.0.2.1:2379,etcd.example:2379").files().resolves_names);
        assert_eq!(of("etcds://192.0.2.1:2379").files().read, SYSTEM_CA.map(PathBuf::from));
        let mut given = of("etcds://192.0.2.1:2379");
        given.etcd_ca = Some("/a/ca.pem".into());
        given.etcd_password_file = Some("/b/password".into());
        assert_eq!(given.files().read, [PathBuf::from("/a/ca.pem"), "/b/password".into()]);
        assert_eq!(of("redis://a:1").files(), StoreFiles::default());
    }

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
}
