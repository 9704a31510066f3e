//! Records of the port mappings in force, from which the agent restores their tables after another process
//! flushed all packet rules: only the call that created a table knows its content.
//!
//! There is one file per table, in a folder that, like the tables, does not survive a reboot. Several hosts
//! on one machine (network namespaces) may share the folder, so file names begin with the inode number of the
//! namespace. Linux reuses such numbers, so a record also names the interface that leads to the container. If
//! that interface has changed, the record belongs to a namespace or a container that no longer exists. A
//! process creates or removes a table only while it holds the lock of the folder, so no process restores a
//! table that another one is removing.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::link::{Device, Net};
use super::{ContainerNetError, PortMapping, ports};

/// Folder of the records.
pub const FOLDER: &str = "/run/tortie/ports";
/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// A table of port mappings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedPorts {
    /// Name of the table.
    pub table: String,
    /// Addresses of the container.
    pub addrs: Vec<IpAddr>,
    /// Mappings to these addresses.
    pub mappings: Vec<PortMapping>,
    /// Interface that leads to the container, at the time of mapping; `None` if no route led to one.
    pub(super) interface: Option<Interface>,
}

/// Identity of an interface; it differs from earlier and later interfaces of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    index: u32,
    name: String,
    /// The alias, to which Tortie writes the endpoint's key.
    alias: String,
}

impl From<Device> for Interface {
    fn from(Device { index, name, alias, .. }: Device) -> Self {
        Self { index, name, alias }
    }
}

impl Interface {
    /// Returns the outgoing interface of the first of these addresses that has a route.
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

/// The lock of the folder, held until dropped.
pub(super) struct FolderLock(#[allow(dead_code, reason = "the lock goes with the file")] File);

/// Creates the folder if it does not exist, and waits for its lock.
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

/// Writes the record of a table.
pub(super) fn remember(_lock: &FolderLock, mapped: &MappedPorts) -> Result<(), ContainerNetError> {
    let write = || {
        let path = path(&mapped.table)?;
        let whole = serde_json::to_vec(mapped).map_err(io::Error::other)?;
        // Renamed into place, so that a reader never finds half a record.
        let new = path.with_extension("new");
        fs::write(&new, whole)?;
        fs::rename(&new, &path)
    };
    write().map_err(failed)
}

/// Deletes the record of a table; a missing one is no error.
pub(super) fn forget(_lock: &FolderLock, table: &str) -> Result<(), ContainerNetError> {
    match path(table).and_then(fs::remove_file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Reads the records of this namespace, including those of earlier namespaces with the same number.
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

/// Splits port mappings by the existence of their container's interface. Routes do not matter: the process
/// that flushed the rules may have flushed the routes as well.
fn by_presence(all: Vec<MappedPorts>) -> Result<(Vec<MappedPorts>, Vec<MappedPorts>), ContainerNetError> {
    let there: Vec<Interface> = Net::open()?.devices()?.into_iter().map(Interface::from).collect();
    let is_there = |mapped: &MappedPorts| mapped.interface.as_ref().is_some_and(|of| there.contains(of));
    Ok(all.into_iter().partition(is_there))
}

/// Returns the recorded mappings of this host whose containers exist.
///
/// # Errors
/// The kernel refuses a request.
pub fn mapped_ports() -> Result<Vec<MappedPorts>, ContainerNetError> {
    let all = records();
    if all.is_empty() { Ok(all) } else { Ok(by_presence(all)?.0) }
}

/// Restores the tables that another process removed, and returns their names. Tables of containers that no
/// longer exist are not restored.
///
/// # Errors
/// The kernel refuses a request.
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
