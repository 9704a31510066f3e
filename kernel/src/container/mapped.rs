//! The port mappings that are in force, written down: whatever flushes all packet rules takes their tables along, and only the
//! call that made them knew what was in them.
//!
//! One file a table, in a folder that goes with the machine's uptime as the tables do. Hosts of one machine (network namespaces) may
//! share the folder: the name of a file begins with the number of the namespace. Linux gives such a number again, so a record
//! also names the interface that led to the container: where that is another one, the record belongs to a namespace, or to a
//! container, that is gone. A table is removed, or made anew, by who holds the lock of the folder, so that nobody makes anew
//! what another process takes away.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::link::{Device, Net};
use super::{ContainerNetError, PortMapping, ports};

/// Where they are written down.
pub const FOLDER: &str = "/run/tortie/ports";
/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A table of port mappings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedPorts {
    /// Its name.
    pub table: String,
    /// The addresses of the container.
    pub addrs: Vec<IpAddr>,
    /// What leads to it.
    pub mappings: Vec<PortMapping>,
    /// The interface behind which the container was when its ports were mapped; none: no route led to one.
    pub(super) interface: Option<Interface>,
}

/// What distinguishes an interface from all that came before it and will come after it under the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    index: u32,
    name: String,
    /// Tortie writes the endpoint's key there.
    alias: String,
}

impl From<Device> for Interface {
    fn from(Device { index, name, alias, .. }: Device) -> Self {
        Self { index, name, alias }
    }
}

impl Interface {
    /// The interface behind which the first of these addresses is that a route leads to.
    pub(super) fn towards(net: &mut Net, addrs: &[IpAddr]) -> Result<Option<Self>, ContainerNetError> {
        for addr in addrs {
            if let Some(index) = net.way_to(*addr)? {
                return Ok(net.devices()?.into_iter().find(|device| device.index == index).map(Self::from));
            }
        }
        Ok(None)
    }
}

fn failed(error: io::Error) -> ContainerNetError {
    ContainerNetError::io(format!("{FOLDER} cannot be used"), error)
}

/// The lock of the folder, until it is dropped.
pub(super) struct FolderLock(#[allow(dead_code, reason = "the lock goes with the file")] File);

/// Makes the folder where it is not there, and waits for its lock.
pub(super) fn lock() -> Result<FolderLock, ContainerNetError> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(FOLDER).map_err(failed)?;
    let folder = File::open(FOLDER).map_err(failed)?;
    flock(&folder, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    Ok(FolderLock(folder))
}

fn prefix() -> io::Result<String> {
    Ok(format!("{}-", fs::metadata(OWN)?.ino()))
}

fn path(table: &str) -> io::Result<PathBuf> {
    Ok(Path::new(FOLDER).join(format!("{}{table}", prefix()?)))
}

/// Writes a table down.
pub(super) fn remember(_lock: &FolderLock, mapped: &MappedPorts) -> Result<(), ContainerNetError> {
    let write = || {
        let path = path(&mapped.table)?;
        let whole = serde_json::to_vec(mapped).map_err(io::Error::other)?;
        // A reader never meets half of it.
        let new = path.with_extension("new");
        fs::write(&new, whole)?;
        fs::rename(&new, &path)
    };
    write().map_err(failed)
}

/// Forgets a table. What is not there is no error.
pub(super) fn forget(_lock: &FolderLock, table: &str) -> Result<(), ContainerNetError> {
    match path(table).and_then(fs::remove_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// The records of this namespace, and of earlier ones of the same number.
fn records() -> Vec<MappedPorts> {
    let Ok(prefix) = prefix() else { return Vec::new() };
    let files = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let own = files.filter(|file| {
        let name = file.file_name();
        name.to_str().is_some_and(|name| name.starts_with(&prefix) && !name.ends_with(".new"))
    });
    let read = |file: fs::DirEntry| serde_json::from_slice(&fs::read(file.path()).ok()?).ok();
    let mut all: Vec<MappedPorts> = own.filter_map(read).collect();
    all.sort_by(|a, b| a.table.cmp(&b.table));
    all
}

/// Port mappings by whether the interface of their container is there. Its route does not matter: what flushed the rules may
/// have flushed the routes as well.
fn by_presence(all: Vec<MappedPorts>) -> Result<(Vec<MappedPorts>, Vec<MappedPorts>), ContainerNetError> {
    let there: Vec<Interface> = Net::open()?.devices()?.into_iter().map(Interface::from).collect();
    let is_there = |mapped: &MappedPorts| mapped.interface.as_ref().is_some_and(|of| there.contains(of));
    Ok(all.into_iter().partition(is_there))
}

/// The mappings of this host that are written down, of containers that are there.
///
/// # Errors
/// What the kernel says.
pub fn mapped_ports() -> Result<Vec<MappedPorts>, ContainerNetError> {
    let all = records();
    if all.is_empty() { Ok(all) } else { Ok(by_presence(all)?.0) }
}

/// Makes the tables anew that another process took away, and gives their names. A container that is gone gets none.
///
/// # Errors
/// What the kernel says.
pub fn restore_ports() -> Result<Vec<String>, ContainerNetError> {
    if records().is_empty() {
        return Ok(Vec::new());
    }
    let lock = lock()?;
    let there = ports::mapped_tables("")?;
    let missing = records().into_iter().filter(|mapped| !there.contains(&mapped.table)).collect();
    let (present, gone) = by_presence(missing)?;
    for mapped in gone {
        forget(&lock, &mapped.table)?;
    }
    let mut restored = Vec::new();
    for mapped in present {
        ports::write_table(&mapped.table, &mapped.addrs, &mapped.mappings)?;
        restored.push(mapped.table);
    }
    Ok(restored)
}
