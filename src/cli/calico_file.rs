//! Reads the address of etcd from a file of Calico's programs: calicoctl's (YAML), Felix's or Neutron's (both
//! with sections and `name = value`).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tortie_store::{CALICOCTL_FILE, CalicoAddress, CalicoNames, FELIX_FILE};

use super::failure::Failure;

/// Prefix of a store URL that names such a file.
pub(super) const URL: &str = "calico:";

/// Settings of the section `[calico]` of Neutron's file. [`neutron`] computes the authority and scheme.
const NEUTRON: CalicoNames = CalicoNames {
    kind: "",
    endpoints: "",
    authority: "etcd_host",
    scheme: "scheme",
    ca: "etcd_ca_cert_file",
    cert: "etcd_cert_file",
    key: "etcd_key_file",
    user: "etcd_username",
    secrets: &["etcd_password"],
};

/// Reads a file.
///
/// # Errors
/// If it cannot be read, has another form, or names no etcd 3.
pub(super) fn read(path: &Path) -> Result<CalicoAddress, Failure> {
    let bad = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = tortie_store::read_file(path).map_err(|error| bad(format!("it cannot be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| bad("it is no text: name a file of Calico".to_owned()))?;
    parse(&text)
        .and_then(|found| found.ok_or_else(|| "it names no etcd: write its endpoints".to_owned()))
        .map_err(bad)
}

/// Parses the text of a file.
fn parse(text: &str) -> Result<Option<CalicoAddress>, String> {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    if !lines.next().is_some_and(|line| line.starts_with('[')) {
        return calicoctl(text);
    }
    let sections = sections(text)?;
    if let Some(calico) = sections.get("calico") {
        return neutron(calico);
    }
    let Some(global) = sections.get("global") else {
        return Err("there is neither a section [global], as in Felix's file, nor [calico], as in Neutron's"
            .to_owned());
    };
    // Felix reads names in any case.
    CalicoAddress::read(&FELIX_FILE, |name| global.get(&name.to_ascii_lowercase()).cloned())
}

/// Reads calicoctl's file, an object of the kind `CalicoAPIConfig`.
fn calicoctl(text: &str) -> Result<Option<CalicoAddress>, String> {
    let file: Value = serde_yaml_ng::from_str(text).map_err(|error| format!("this is no YAML: {error}"))?;
    let kind = file.get("kind").and_then(Value::as_str).unwrap_or_default();
    if !kind.eq_ignore_ascii_case("CalicoAPIConfig") {
        return Err(format!("its kind is `{kind}`: name a file with kind: CalicoAPIConfig"));
    }
    let spec = file.get("spec");
    CalicoAddress::read(&CALICOCTL_FILE, |name| spec?.get(name)?.as_str().map(str::to_owned))
}

/// Reads the section `[calico]` of Neutron's file.
fn neutron(section: &BTreeMap<String, String>) -> Result<Option<CalicoAddress>, String> {
    CalicoAddress::read(&NEUTRON, |name| match name {
        "etcd_host" => {
            let host = section.get("etcd_host").map_or("127.0.0.1", String::as_str);
            let port = section.get("etcd_port").map_or("2379", String::as_str);
            Some(format!("{host}:{port}"))
        }
        // Neutron uses TLS if it has the three files.
        "scheme" => section.contains_key("etcd_key_file").then(|| "https".to_owned()),
        name => section.get(name).cloned(),
    })
}

/// Parses sections; names are lower case.
fn sections(text: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>, String> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut section = String::new();
    for (at, line) in text.lines().enumerate() {
        // A line that begins with a blank continues a value that no setting of the address has.
        if line.trim().is_empty() || line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
            continue;
        }
        let (name, value) =
            line.split_once(['=', ':']).ok_or_else(|| format!("line {}: write NAME = VALUE", at + 1))?;
        let value = value.trim().to_owned();
        all.entry(section.clone()).or_default().insert(name.trim().to_ascii_lowercase(), value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALICOCTL: &str = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n  \
                             datastoreType: etcdv3\n  etcdEndpoints: https://192.0.2.1:2379,https://192.0.2.2:2379\n  \
                             etcdKeyFile: /a/key.pem\n  etcdCertFile: /a/cert.pem\n  etcdCACertFile: /a/ca.pem\n";

    #[test]
    fn files_of_all_three_programs_name_the_store() {
        let found = parse(CALICOCTL).unwrap().unwrap();
        assert_eq!(found.url, "etcds://192.0.2.1:2379,192.0.2.2:2379");
        let files = [found.ca, found.cert, found.key].map(Option::unwrap);
        assert_eq!(files, ["/a/ca.pem", "/a/cert.pem", "/a/key.pem"].map(std::path::PathBuf::from));
        let felix =
            "# Felix\n[global]\nMetadataAddr = none\nEtcdEndpoints = http://192.0.2.1:2379\n[log]\nx = 1\n";
        assert_eq!(parse(felix).unwrap().unwrap().url, "etcd://192.0.2.1:2379");
        let old = "[global]\netcdaddr = 192.0.2.1:2379\nEtcdScheme = https\n";
        assert_eq!(parse(old).unwrap().unwrap().url, "etcds://192.0.2.1:2379");
        let neutron = "[DEFAULT]\ncore_plugin = calico\n[calico]\netcd_host = 192.0.2.3\n";
        assert_eq!(parse(neutron).unwrap().unwrap().url, "etcd://192.0.2.3:2379");
        let both = "etcd_key_file = /a/k\netcd_cert_file = /a/c\netcd_ca_cert_file = /a/ca\netcd_port = 4\n";
        let found = parse(&format!("[calico]\n{both}")).unwrap().unwrap();
        assert_eq!((found.url.as_str(), found.key), ("etcds://127.0.0.1:4", Some("/a/k".into())));
    }

    #[test]
    fn what_is_no_such_file_is_named() {
        for (text, part) in [
            ("kind: Pod\n", "`Pod`"),
            ("a: [", "no YAML"),
            (&CALICOCTL.replace("etcdv3", "kubernetes"), "datastoreType is `kubernetes`"),
            ("[global]\nEtcdEndpoints\n", "line 2"),
            ("[other]\nx = 1\n", "[global]"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(parse("[global]\nMetadataAddr = none\n"), Ok(None));
        let absent = read(Path::new("/nonexistent/calicoctl.cfg")).unwrap_err();
        assert!(absent.text.contains("/nonexistent/calicoctl.cfg"), "{absent}");
    }
}
