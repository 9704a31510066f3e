//! Address of etcd as Calico's programs have it: in environment variables, or as settings of their files.

use std::path::PathBuf;

/// Names of the settings of one program.
#[derive(Debug, Clone, Copy)]
pub struct CalicoNames {
    /// Type of the datastore; only etcd is read.
    pub kind: &'static str,
    /// List of URLs with commas between.
    pub endpoints: &'static str,
    /// `HOST:PORT`, if there is no list.
    pub authority: &'static str,
    /// `http` or `https`, of the authority.
    pub scheme: &'static str,
    /// File of certificate authorities.
    pub ca: &'static str,
    /// File of the client certificate.
    pub cert: &'static str,
    /// File of its private key.
    pub key: &'static str,
    /// User name; empty if the program has none.
    pub user: &'static str,
    /// Settings that contain a secret itself, which is refused.
    pub secrets: &'static [&'static str],
}

/// Environment variables of calicoctl and calico/node.
pub const CALICO_ENVIRONMENT: CalicoNames = CalicoNames {
    kind: "DATASTORE_TYPE",
    endpoints: "ETCD_ENDPOINTS",
    authority: "ETCD_AUTHORITY",
    scheme: "ETCD_SCHEME",
    ca: "ETCD_CA_CERT_FILE",
    cert: "ETCD_CERT_FILE",
    key: "ETCD_KEY_FILE",
    user: "ETCD_USERNAME",
    secrets: &["ETCD_PASSWORD", "ETCD_CA_CERT", "ETCD_CERT", "ETCD_KEY"],
};

/// Members of `spec` in calicoctl's file.
pub const CALICOCTL_FILE: CalicoNames = CalicoNames {
    kind: "datastoreType",
    endpoints: "etcdEndpoints",
    authority: "etcdAuthority",
    scheme: "etcdScheme",
    ca: "etcdCACertFile",
    cert: "etcdCertFile",
    key: "etcdKeyFile",
    user: "etcdUsername",
    secrets: &["etcdPassword", "etcdCACert", "etcdCert", "etcdKey"],
};

/// Settings of Felix's file.
pub const FELIX_FILE: CalicoNames = CalicoNames {
    kind: "DatastoreType",
    endpoints: "EtcdEndpoints",
    authority: "EtcdAddr",
    scheme: "EtcdScheme",
    ca: "EtcdCaFile",
    cert: "EtcdCertFile",
    key: "EtcdKeyFile",
    user: "",
    secrets: &[],
};

/// Address and credentials of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalicoAddress {
    /// URL: `etcd://` or `etcds://`.
    pub url: String,
    /// File of certificate authorities.
    pub ca: Option<PathBuf>,
    /// File of the client certificate.
    pub cert: Option<PathBuf>,
    /// File of its private key.
    pub key: Option<PathBuf>,
}

impl CalicoAddress {
    /// Reads the address; `None` if no endpoint is set. Empty settings are unset.
    ///
    /// # Errors
    /// A sentence: the datastore is not etcd 3, the endpoints are not a list, or a secret is given without a
    /// file.
    pub fn read(
        names: &CalicoNames,
        setting: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let text = |name: &str| {
            let text = setting(name).map(|text| text.trim().to_owned());
            text.filter(|text| !name.is_empty() && !text.is_empty())
        };
        if let Some(kind) = text(names.kind).filter(|kind| kind != "etcdv3") {
            return Err(format!(
                "{} is `{kind}`, and Tortie reads etcd only: write etcdv3, or name the store with --datastore",
                names.kind
            ));
        }
        let url = match (text(names.endpoints), text(names.authority)) {
            (Some(list), _) => etcd_url(&list)
                .ok_or_else(|| format!("{}: found `{}`; {EXPECTED}", names.endpoints, shown(&list)))?,
            (None, Some(authority)) => {
                let tls = text(names.scheme).is_some_and(|scheme| scheme == "https");
                format!("{}://{authority}", if tls { "etcds" } else { "etcd" })
            }
            (None, None) => return Ok(None),
        };
        if let Some(name) = names.secrets.iter().chain([&names.user]).find(|name| text(name).is_some()) {
            return Err(format!(
                "{name} is not read: write credentials to files, and name them with --etcd-ca, --etcd-cert, \
                 --etcd-key, or --etcd-user and --etcd-password-file, together with --datastore {url}"
            ));
        }
        // Calico's installers write the names of certificate files even with plain HTTP.
        let file = |name: &str| text(name).filter(|_| url.starts_with("etcds:")).map(PathBuf::from);
        let (ca, cert, key) = (file(names.ca), file(names.cert), file(names.key));
        if cert.is_some() != key.is_some() {
            return Err(format!("one of {} and {} is missing: write both", names.cert, names.key));
        }
        Ok(Some(Self { ca, cert, key, url }))
    }
}

const EXPECTED: &str = "write http://HOST:PORT[,...] or https://HOST:PORT[,...], all of one kind";

/// Hides an address that contains a password.
fn shown(list: &str) -> &str {
    if list.contains('@') { "(not shown, it holds an @)" } else { list }
}

/// Converts Calico's list `http://a:2379,http://b:2379` to a store URL; `None` for an empty list or one of
/// both kinds.
#[must_use]
pub fn etcd_url(list: &str) -> Option<String> {
    let items: Vec<&str> = list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    let tls = items.iter().filter(|item| item.starts_with("https://")).count();
    if items.is_empty() || (tls != 0 && tls != items.len()) {
        return None;
    }
    let host = |item: &str| {
        item.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/').to_owned()
    };
    let hosts: Vec<String> = items.into_iter().map(host).collect();
    Some(format!("{}://{}", if tls == 0 { "etcd" } else { "etcds" }, hosts.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(&str, &str)]) -> Result<Option<CalicoAddress>, String> {
        let of = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        CalicoAddress::read(&CALICO_ENVIRONMENT, of)
    }

    #[test]
    fn endpoints_and_files_of_calico_are_an_address() {
        let found = read(&[
            ("ETCD_ENDPOINTS", "https://192.0.2.1:2379, https://192.0.2.2:2379/"),
            ("ETCD_CA_CERT_FILE", "/a/ca.pem"),
            ("ETCD_CERT_FILE", "/a/cert.pem"),
            ("ETCD_KEY_FILE", "/a/key.pem"),
            ("DATASTORE_TYPE", "etcdv3"),
        ]);
        let found = found.unwrap().unwrap();
        assert_eq!(found.url, "etcds://192.0.2.1:2379,192.0.2.2:2379");
        let files = [found.ca, found.cert, found.key].map(Option::unwrap);
        assert_eq!(files, ["/a/ca.pem", "/a/cert.pem", "/a/key.pem"].map(PathBuf::from));
        let plain = read(&[("ETCD_ENDPOINTS", "http://a:1"), ("ETCD_KEY_FILE", "/a/key.pem")]);
        let plain = plain.unwrap().unwrap();
        assert_eq!((plain.url.as_str(), plain.key), ("etcd://a:1", None));
        let old = read(&[("ETCD_AUTHORITY", "a:1"), ("ETCD_SCHEME", "https")]).unwrap().unwrap();
        assert_eq!(old.url, "etcds://a:1");
        assert_eq!(read(&[("ETCD_ENDPOINTS", ""), ("ETCD_KEY_FILE", "/a")]), Ok(None));
    }

    #[test]
    fn what_is_no_etcd_3_is_refused_with_one_sentence() {
        for (settings, part) in [
            (&[("DATASTORE_TYPE", "kubernetes")][..], "DATASTORE_TYPE is `kubernetes`"),
            (&[("DATASTORE_TYPE", "etcdv2"), ("ETCD_ENDPOINTS", "http://a:1")], "etcdv2"),
            (&[("ETCD_ENDPOINTS", "http://a:1,https://b:1")], "all of one kind"),
            (&[("ETCD_ENDPOINTS", "https://a:1"), ("ETCD_CERT_FILE", "/c")], "ETCD_KEY_FILE"),
            (&[("ETCD_ENDPOINTS", "https://a:1"), ("ETCD_PASSWORD", "hunter2")], "ETCD_PASSWORD is not read"),
        ] {
            let error = read(settings).unwrap_err();
            assert!(error.contains(part) && !error.contains("hunter2") && !error.contains('\n'), "{error}");
        }
    }
}
