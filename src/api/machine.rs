//! Identity of this machine, which detects two machines that run under one host name.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// File with the identity of a machine (machine-id(5)).
const FILE: &str = "/etc/machine-id";
/// Maximum number of octets read from an identity file.
const LENGTH_MAX: u64 = 128;

/// Identity of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// Hash of the machine-id, which is itself confidential (machine-id(5)); random on a machine without one.
    pub id: String,
    /// Host name, for people.
    pub name: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.name)
    }
}

impl Machine {
    /// Returns this machine, identified by its machine-id, or `None` if the machine has none.
    #[must_use]
    pub fn by_machine_id() -> Option<Self> {
        let text = read(Path::new(FILE))?;
        let digest = Sha256::new().chain_update("tortie ").chain_update(text).finalize();
        let id: String = digest.iter().take(8).map(|octet| format!("{octet:02x}")).collect();
        Some(Self { id, name: name() })
    }

    /// Returns this machine; without a machine-id, its identity is a random number in a file next to the
    /// agent's cache.
    #[must_use]
    pub fn of_agent(cache: &Path) -> Self {
        Self::by_machine_id().unwrap_or_else(|| Self { id: kept(cache), name: name() })
    }
}

fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Reads an identity from a file; `None` if it is missing, uninitialized or shorter than 16 octets.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    // Without O_NONBLOCK, opening a FIFO at this path would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.take(LENGTH_MAX).read_to_string(&mut text).ok()?;
    let text = text.trim();
    (text.len() >= 16 && text != "uninitialized").then(|| text.to_owned())
}

/// Returns the path of the identity file next to this cache.
#[must_use]
pub fn kept_at(cache: &Path) -> PathBuf {
    let mut name = cache.as_os_str().to_owned();
    name.push(".machine");
    name.into()
}

/// Reads the identity next to the cache, or creates one. If the file cannot be written, each start of the
/// agent has another identity.
fn kept(cache: &Path) -> String {
    let path = kept_at(cache);
    if let Some(id) = read(&path) {
        return id;
    }
    let id = format!("{:016x}", rand::random::<u64>());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{id}")) {
        tracing::warn!(target: "tortie", "the identity of this machine cannot be saved in {}: {error}", path.display());
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_machine_id_the_identity_stays_next_to_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one.json"), dir.path().join("other.json"));
        let first = kept(&one);
        assert_eq!(kept(&one), first);
        assert_ne!(kept(&other), first);
        std::fs::write(dir.path().join("one.json.machine"), "short\n").unwrap();
        assert_ne!(kept(&one), first, "a file that says nothing is none");
    }
}
