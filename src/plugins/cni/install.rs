//! Installs the plugins into a runtime's folders: executables and a configuration list, each replaced
//! atomically.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::plugins::cni::protocol::version::Version;

/// Names of the executable in the folder of plugins.
const NAMES: [&str; 2] = ["tortie-cni", "tortie-ipam"];
/// Calico's names of the same plugins.
const CALICO_NAMES: [&str; 2] = ["calico", "calico-ipam"];

/// Files to install, and their folders.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Path of the running executable.
    pub program: PathBuf,
    /// Folder in which runtimes find plugins.
    pub bin_dir: PathBuf,
    /// Folder in which runtimes find configuration lists.
    pub conf_dir: PathBuf,
    /// File name of the configuration list; `None` installs no list.
    pub conf_file: Option<String>,
    /// True for links to the executable instead of copies.
    pub link: bool,
    /// True to install the plugins under Calico's names, too.
    pub calico_names: bool,
    /// True to replace a list that another program wrote.
    pub force: bool,
}

/// Content of the configuration list.
#[derive(Debug, Clone)]
pub struct Network {
    /// Name of the network.
    pub name: String,
    /// CNI version of the list (`cniVersion`).
    pub version: Version,
    /// Store, as in `--datastore`.
    pub datastore: String,
    /// Further fields of the plugin (`etcd_ca_cert_file`, `node`, `socket`, `mtu`, ...).
    pub more: serde_json::Map<String, Value>,
    /// True to allocate IPv4 addresses.
    pub ipv4: bool,
    /// True to allocate IPv6 addresses.
    pub ipv6: bool,
}

impl Network {
    /// Returns the configuration list.
    #[must_use]
    pub fn conflist(&self) -> Value {
        let mut plugin = json!({ "type": "tortie-cni", "datastore": self.datastore });
        if let Some(plugin) = plugin.as_object_mut() {
            plugin.extend(self.more.clone());
            let ipam = json!({"type": "tortie-ipam", "assign_ipv4": self.ipv4, "assign_ipv6": self.ipv6});
            plugin.insert("ipam".into(), ipam);
            let areas = ["portMappings", "ipRanges", "bandwidth", "dns", "ips", "mac"];
            plugin.insert("capabilities".into(), areas.iter().map(|area| (*area, true)).collect());
        }
        json!({"cniVersion": self.version.as_str(), "name": self.name, "plugins": [plugin]})
    }
}

/// Result for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The file was written.
    Written,
    /// The file already had the right content.
    Unchanged,
    /// The file was removed.
    Removed,
    /// The file did not exist.
    Absent,
    /// The file was kept, because another program wrote it.
    Left,
}

impl Done {
    /// Returns the result as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Absent => "absent",
            Self::Left => "left",
        }
    }
}

/// An error while installing or removing a file.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The system call failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The list's file name is taken by a list of another program.
    #[error("{} is not ours: choose another --file, or --force to replace it", .0.display())]
    Foreign(PathBuf),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InstallError + '_ {
    move |error| InstallError::Io { path: path.to_owned(), error }
}

impl Installation {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let calico = self.calico_names.then_some(CALICO_NAMES);
        NAMES.into_iter().chain(calico.into_iter().flatten())
    }

    fn conf_path(&self) -> Option<PathBuf> {
        self.conf_file.as_ref().map(|file| self.conf_dir.join(file))
    }

    /// Writes files whose content differs: executables first, because a runtime uses a list as soon as it
    /// exists. Repeating the call changes nothing.
    ///
    /// # Errors
    /// If a file cannot be written, or the list's file name is taken.
    pub fn install(&self, network: &Network) -> Result<Vec<(PathBuf, Done)>, InstallError> {
        let conf = self.conf_path();
        if let Some(path) = conf.as_ref().filter(|path| !self.force && path.exists() && !is_ours(path)) {
            return Err(InstallError::Foreign(path.clone()));
        }
        fs::create_dir_all(&self.bin_dir).map_err(at(&self.bin_dir))?;
        let mut done = Vec::new();
        let first = self.bin_dir.join(NAMES[0]);
        for name in self.names() {
            let path = self.bin_dir.join(name);
            let wrote = if self.link {
                link(&path, &self.program)?
            } else if path == first {
                copy(&path, &self.program)?
            } else {
                same_file(&path, &first)?
            };
            done.push((path, wrote));
        }
        if let Some(path) = conf {
            fs::create_dir_all(&self.conf_dir).map_err(at(&self.conf_dir))?;
            let text = format!("{:#}\n", network.conflist());
            let same = fs::read(&path).is_ok_and(|found| found == text.as_bytes());
            if !same {
                replace(&path, 0o600, |file| file.write_all(text.as_bytes())).map_err(at(&path))?;
            }
            done.push((path, if same { Done::Unchanged } else { Done::Written }));
        }
        Ok(done)
    }

    /// Removes the files that [`Installation::install`] wrote, the list first. Files of other programs are
    /// kept.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn uninstall(&self) -> Result<Vec<(PathBuf, Done)>, InstallError> {
        let mut done = Vec::new();
        if let Some(path) = self.conf_path() {
            let ours = self.force || is_ours(&path);
            done.push((path.clone(), remove(&path, ours)?));
        }
        // Calico's own plugins have the same names; only Tortie's are the same file as tortie-cni.
        let first = self.bin_dir.join(NAMES[0]);
        for name in CALICO_NAMES.iter().chain(NAMES.iter().rev()) {
            let path = self.bin_dir.join(name);
            let ours = NAMES.contains(name) || is_same(&path, &first);
            done.push((path.clone(), remove(&path, ours)?));
        }
        Ok(done)
    }
}

fn remove(path: &Path, ours: bool) -> Result<Done, InstallError> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(Done::Absent);
    }
    if !ours {
        return Ok(Done::Left);
    }
    fs::remove_file(path).map_err(at(path)).map(|()| Done::Removed)
}

/// True if a configuration list contains Tortie's plugin.
fn is_ours(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else { return false };
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else { return false };
    let plugins = value.get("plugins").and_then(Value::as_array);
    plugins
        .is_some_and(|plugins| plugins.iter().any(|plugin| plugin.get("type") == Some(&json!("tortie-cni"))))
}

fn is_same(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn link(path: &Path, program: &Path) -> Result<Done, InstallError> {
    if fs::read_link(path).is_ok_and(|found| found == program) {
        return Ok(Done::Unchanged);
    }
    let new = temporary_path(path);
    let _ = fs::remove_file(&new);
    std::os::unix::fs::symlink(program, &new).and_then(|()| fs::rename(&new, path)).map_err(at(path))?;
    Ok(Done::Written)
}

fn same_file(path: &Path, first: &Path) -> Result<Done, InstallError> {
    let real = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if real && is_same(path, first) {
        return Ok(Done::Unchanged);
    }
    let new = temporary_path(path);
    let _ = fs::remove_file(&new);
    fs::hard_link(first, &new).and_then(|()| fs::rename(&new, path)).map_err(at(path))?;
    Ok(Done::Written)
}

fn copy(path: &Path, program: &Path) -> Result<Done, InstallError> {
    let real = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if real && same_bytes(path, program).unwrap_or(false) {
        return Ok(Done::Unchanged);
    }
    let mut from = File::open(program).map_err(at(program))?;
    // The file is replaced instead of overwritten, because a running plugin still uses the old one ("text
    // file busy").
    replace(path, 0o755, |file| io::copy(&mut from, file).map(drop)).map_err(at(path))?;
    Ok(Done::Written)
}

fn same_bytes(a: &Path, b: &Path) -> io::Result<bool> {
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = a.read(&mut left)?;
        if count == 0 {
            return Ok(true);
        }
        let (left, right) = (left.get(..count), right.get_mut(..count));
        let (Some(left), Some(right)) = (left, right) else { return Ok(false) };
        b.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}

/// Returns a name that no runtime takes for a plugin or a list.
fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn replace(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let new = temporary_path(path);
    let whole = (|| {
        let mut file = File::create(&new)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        write(&mut file)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, path)
    })();
    if whole.is_err() {
        let _ = fs::remove_file(&new);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(dir: &Path) -> Installation {
        let program = dir.join("tortie");
        fs::write(&program, b"#!/bin/sh\n").unwrap();
        Installation {
            program,
            bin_dir: dir.join("bin"),
            conf_dir: dir.join("net.d"),
            conf_file: Some("10-tortie.conflist".into()),
            link: false,
            calico_names: true,
            force: false,
        }
    }

    fn network() -> Network {
        Network {
            name: "tortie".into(),
            version: Version::V1_0_0,
            datastore: "sqlite:/x.db".into(),
            more: serde_json::Map::new(),
            ipv4: true,
            ipv6: false,
        }
    }

    fn words(done: &[(PathBuf, Done)]) -> Vec<&'static str> {
        done.iter().map(|(_, done)| done.as_str()).collect()
    }

    #[test]
    fn twice_is_once_and_what_is_removed_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mut this = installation(dir.path());
        assert_eq!(words(&this.install(&network()).unwrap()), ["written"; 5]);
        assert_eq!(words(&this.install(&network()).unwrap()), ["unchanged"; 5]);
        // A newer executable and another configuration.
        fs::write(&this.program, b"#!/bin/sh\n#new\n").unwrap();
        assert_eq!(words(&this.install(&Network { ipv6: true, ..network() }).unwrap()), ["written"; 5]);
        this.link = true;
        this.calico_names = false;
        assert_eq!(words(&this.install(&network()).unwrap()), ["written"; 3]);
        assert_eq!(words(&this.install(&network()).unwrap()), ["unchanged"; 3]);
        // The copy under Calico's name is no longer the same file, so it may belong to another program.
        assert_eq!(words(&this.uninstall().unwrap()), ["removed", "left", "left", "removed", "removed"]);
        assert_eq!(words(&this.uninstall().unwrap()), ["absent", "left", "left", "absent", "absent"]);
    }

    #[test]
    fn a_list_of_somebody_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut this = installation(dir.path());
        let path = this.conf_dir.join("10-tortie.conflist");
        fs::create_dir_all(&this.conf_dir).unwrap();
        fs::write(&path, br#"{"name": "x", "plugins": [{"type": "bridge"}]}"#).unwrap();
        assert!(matches!(this.install(&network()), Err(InstallError::Foreign(found)) if found == path));
        assert!(!this.bin_dir.exists(), "nothing is done by halves");
        assert_eq!(words(&this.uninstall().unwrap())[0], "left");
        this.force = true;
        assert!(this.install(&network()).is_ok());
    }

    #[test]
    fn the_list_is_one_that_our_plugin_reads() {
        let list = network().conflist();
        let mut plugin = list["plugins"][0].clone();
        plugin["name"] = list["name"].clone();
        plugin["cniVersion"] = list["cniVersion"].clone();
        let bytes = plugin.to_string();
        let config =
            super::super::Config::parse(bytes.as_bytes(), super::super::Strictness::Refuse, &[]).unwrap();
        assert!(config.notes.is_empty() && config.ipam.foreign.is_none());
        assert_eq!(config.datastore.unwrap().url, "sqlite:/x.db");
    }
}
