//! Determines the store of a command. Reads `/etc/tortie/tortie.env`, which configures this host's store for
//! commands in a shell as for the service, and Calico's variables.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;

use tortie_store::{CALICO_ENVIRONMENT, CalicoAddress};

use super::calico_file;
use super::context::Globals;
use super::failure::{Exit, Failure};

/// Path of the file, which the service's unit also reads.
pub(super) const FILE: &str = "/etc/tortie/tortie.env";

/// Determines the store: by flag, Tortie's variables, Calico's variables, this file, or the default. A URL
/// `calico:FILE` is replaced by the address in that file.
///
/// # Errors
/// If a source cannot be parsed, or is no etcd 3.
pub(super) fn settle(
    globals: &mut Globals,
    said: &ArgMatches,
    path: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), Failure> {
    if said.value_source("datastore") == Some(ValueSource::DefaultValue) {
        match CalicoAddress::read(&CALICO_ENVIRONMENT, variable).map_err(Failure::usage)? {
            Some(address) => adopt(globals, address),
            None => read(globals, said, path)?,
        }
    }
    if let Some(path) = globals.datastore.strip_prefix(calico_file::URL) {
        let address = calico_file::read(Path::new(path))?;
        adopt(globals, address);
    }
    Ok(())
}

/// Uses an address of Calico's. Flags and variables of certificates have precedence.
fn adopt(globals: &mut Globals, address: CalicoAddress) {
    let CalicoAddress { url, ca, cert, key } = address;
    globals.datastore = url;
    globals.etcd_ca = globals.etcd_ca.take().or(ca);
    if globals.etcd_cert.is_none() {
        (globals.etcd_cert, globals.etcd_key) = (cert, key);
    }
}

/// Uses the store of the file. Its settings for certificates, node name and agent socket are used only
/// together with its store.
fn read(globals: &mut Globals, said: &ArgMatches, path: &Path) -> Result<(), Failure> {
    let text = match tortie_store::read_file(path) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        // A user who may not read the file may not open the store either, but may still query the agent.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(());
        }
        Err(error) => {
            let text = format!("{} cannot be read: {error}", path.display());
            return Err(Failure::new(Exit::Usage, "invalid", text));
        }
    };
    let mut all = variables(&text).map_err(|(line, what)| {
        Failure::usage(format!(
            "{} line {line}: {what}; --datastore names a store without it",
            path.display()
        ))
    })?;
    let mut take = |name: &str| all.remove(name).filter(|value| !value.is_empty());
    let Globals { datastore, etcd_ca, etcd_cert, etcd_key, etcd_user, etcd_password_file, .. } = globals;
    if let Some(value) = take("TORTIE_DATASTORE") {
        *datastore = value;
    }
    for (slot, name) in [
        (etcd_ca, "TORTIE_ETCD_CA"),
        (etcd_cert, "TORTIE_ETCD_CERT"),
        (etcd_key, "TORTIE_ETCD_KEY"),
        (etcd_password_file, "TORTIE_ETCD_PASSWORD_FILE"),
    ] {
        *slot = slot.take().or_else(|| take(name).map(Into::into));
    }
    *etcd_user = etcd_user.take().or_else(|| take("TORTIE_ETCD_USER"));
    if said.value_source("data_model") == Some(ValueSource::DefaultValue)
        && let Some(value) = take("TORTIE_DATA_MODEL")
    {
        globals.data_model = value
            .parse()
            .map_err(|error| Failure::usage(format!("{}: TORTIE_DATA_MODEL: {error}", path.display())))?;
    }
    globals.node = globals.node.take().or_else(|| take("TORTIE_NODE"));
    if said.value_source("socket") == Some(ValueSource::DefaultValue)
        && let Some(value) = take("TORTIE_SOCKET")
    {
        globals.socket = value.into();
    }
    Ok(())
}

/// Parses a file of variables as systemd does (systemd.exec(5), `EnvironmentFile`), without continuation
/// lines.
fn variables(text: &str) -> Result<BTreeMap<String, String>, (usize, &'static str)> {
    let mut all = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or((at + 1, "write NAME=VALUE"))?;
        let value = value.trim();
        let quoted = ['"', '\''].iter().find(|quote| value.starts_with(**quote));
        let value = match quoted {
            Some(quote) => value
                .strip_prefix(*quote)
                .and_then(|rest| rest.strip_suffix(*quote))
                .ok_or((at + 1, "a quote is not closed"))?,
            None => value,
        };
        all.insert(name.trim().to_owned(), value.to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::super::Cli;
    use super::*;

    fn settled(words: &[&str], file: &str) -> Result<Globals, Failure> {
        settled_with(words, file, &[])
    }

    fn settled_with(words: &[&str], file: &str, variables: &[(&str, &str)]) -> Result<Globals, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tortie.env");
        std::fs::write(&path, file).unwrap();
        let said = Cli::command().try_get_matches_from(words).unwrap();
        let mut globals = Cli::from_arg_matches(&said).unwrap().globals;
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned());
        settle(&mut globals, &said, &path, variable).map(|()| globals)
    }

    /// Flags, then Tortie's variables (which clap reads as flags), then Calico's, then the file.
    #[test]
    fn variables_of_calico_are_between_flags_and_the_file() {
        let calico = [("ETCD_ENDPOINTS", "https://192.0.2.9:2379"), ("ETCD_CA_CERT_FILE", "/calico/ca.pem")];
        let globals = settled_with(&["tortie", "ipam", "pools"], FILE, &calico).unwrap();
        assert_eq!(globals.datastore, "etcds://192.0.2.9:2379");
        assert_eq!(globals.etcd_ca.as_deref(), Some(Path::new("/calico/ca.pem")));
        assert_eq!(globals.node, None, "the file's node belongs to its store");
        let words = ["tortie", "--datastore", "sqlite:/s", "ipam", "pools"];
        let globals = settled_with(&words, FILE, &calico).unwrap();
        assert_eq!((globals.datastore.as_str(), globals.etcd_ca), ("sqlite:/s", None));
        let words = ["tortie", "--etcd-ca", "/mine.pem", "ipam", "pools"];
        let globals = settled_with(&words, FILE, &calico).unwrap();
        assert_eq!(globals.etcd_ca.as_deref(), Some(Path::new("/mine.pem")));
        let kubernetes = [("DATASTORE_TYPE", "kubernetes")];
        let error = settled_with(&["tortie", "status"], FILE, &kubernetes).unwrap_err();
        assert!(error.exit == Exit::Usage && error.text.contains("DATASTORE_TYPE"), "{error}");
        let words = ["tortie", "--datastore", "sqlite:/s", "status"];
        assert!(settled_with(&words, FILE, &kubernetes).is_ok());
    }

    #[test]
    fn a_file_of_calico_names_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("felix.cfg");
        std::fs::write(&path, "[global]\nEtcdEndpoints = http://192.0.2.9:2379\n").unwrap();
        let url = format!("calico:{}", path.display());
        let globals = settled(&["tortie", "--datastore", &url, "ipam", "pools"], FILE).unwrap();
        assert_eq!(globals.datastore, "etcd://192.0.2.9:2379");
        let file = format!("TORTIE_DATASTORE={url}\n");
        assert_eq!(settled(&["tortie", "ipam", "pools"], &file).unwrap().datastore, "etcd://192.0.2.9:2379");
    }

    const FILE: &str = "# the store\n\nTORTIE_DATASTORE=etcds://192.0.2.1:2379\nTORTIE_ETCD_CA=\"/etc/tortie/ca.pem\"\n\
                        ; more\nTORTIE_NODE='rack1-n03'\nTORTIE_CONFIG=/etc/tortie/tortie.toml\nTORTIE_SOCKET=\n";

    #[test]
    fn the_data_model_of_the_service_counts_and_is_checked() {
        let file = "TORTIE_DATASTORE=etcd://192.0.2.1:2379\nTORTIE_DATA_MODEL=v1\n";
        let globals = settled(&["tortie", "ipam", "pools"], file).unwrap();
        assert_eq!(globals.data_model, tortie_store::DataModel::V1);
        let globals = settled(&["tortie", "--data-model", "v3", "ipam", "pools"], file).unwrap();
        assert_eq!(globals.data_model, tortie_store::DataModel::V3);
        let error = settled(&["tortie", "ipam", "pools"], &file.replace("=v1", "=v2")).unwrap_err();
        assert!(error.text.contains("TORTIE_DATA_MODEL") && error.text.contains("`v2`"), "{error}");
    }

    #[test]
    fn a_shell_on_the_host_means_the_store_of_its_service() {
        let globals = settled(&["tortie", "ipam", "pools"], FILE).unwrap();
        assert_eq!(globals.datastore, "etcds://192.0.2.1:2379");
        assert_eq!(globals.etcd_ca.as_deref(), Some(Path::new("/etc/tortie/ca.pem")));
        assert_eq!(globals.node.as_deref(), Some("rack1-n03"));
        assert_eq!(globals.socket, Path::new("/run/tortie/tortie.sock"), "an empty value says nothing");
    }

    #[test]
    fn who_names_a_store_gets_that_and_nothing_of_the_file() {
        for words in [
            ["tortie", "--datastore", "sqlite:/s", "ipam", "pools"],
            ["tortie", "ipam", "pools", "--datastore", "sqlite:/s"],
        ] {
            let globals = settled(&words, FILE).unwrap();
            assert_eq!(
                (globals.datastore.as_str(), globals.etcd_ca, globals.node),
                ("sqlite:/s", None, None)
            );
        }
        let globals = settled(&["tortie", "--node", "other", "ipam", "pools"], FILE).unwrap();
        assert_eq!(globals.node.as_deref(), Some("other"), "a flag wins over the file");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for (file, said) in [("TORTIE_NODE\n", "line 1: write NAME=VALUE"), ("\nA=\"b\n", "line 2: a quote")]
        {
            let error = settled(&["tortie", "status"], file).unwrap_err();
            assert!(error.exit == Exit::Usage && error.text.contains(said), "{error}");
        }
    }
}
