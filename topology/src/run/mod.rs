//! Builds labs and lets one act on them. Linux only; all kernel state lives in namespaces held by one process a node.
//!
//! A node is a process (its number 1) in network, mount, process id, host name and IPC namespaces of its own, doing
//! nothing; what runs in the node is started from a thread that has entered them. Ending that process ends the node
//! with all that runs in it. A tied lab's processes end when the process that built it does, however it ends.
//!
//! It does not watch over what it has started: a command that ends stays ended (see [`Running::start`]).

mod build;
mod netlink;
mod ns;
mod root;
mod running;
mod sandbox;
mod state;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clab::Topology;
use crate::error::LabError;

pub use running::{Running, Victim};
pub use rustix::process::Signal;
pub use sandbox::{Sandbox, loopback_up};

/// A lab file that was read and found good.
#[derive(Debug, Clone)]
pub struct Lab {
    /// What it describes.
    pub topology: Topology,
}

/// How a lab is built.
#[derive(Debug, Clone)]
pub struct Options {
    /// Our own program: it stands for images whose name begins with `tortie`.
    pub binary: PathBuf,
    /// A folder with programs of other daemons, looked at before PATH (see `tests/tools/peers.sh`).
    pub peers_dir: Option<PathBuf>,
    /// Where the lab keeps its state, logs and `__clabDir__`; made, and removed by [`Running::down`].
    pub state_dir: PathBuf,
    /// Only one user exists (inside a user namespace): images that need more are refused by name.
    pub rootless: bool,
    /// The lab ends with the process that builds it. Otherwise it stays, with names in /run/netns.
    pub tied: bool,
    /// What bridges, `host` ends and `kind: host` mean.
    pub host: HostNetwork,
}

/// The network that stands for the machine in a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNetwork {
    /// A namespace of the lab: nothing of this machine's network changes.
    Private,
    /// This machine's own network (of the process that builds the lab), as in containerlab. A bridge that exists is used.
    Machine,
}

/// What is being done.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Time since the beginning.
    pub elapsed: Duration,
    /// Steps done before this one.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// What this step does.
    pub text: &'a str,
}

impl Options {
    /// A lab that ends with this process and touches nothing outside: what tests and the demo want.
    #[must_use]
    pub fn tied(binary: &Path, state_dir: &Path) -> Self {
        Self {
            binary: binary.to_owned(),
            peers_dir: peers_dir(),
            state_dir: state_dir.to_owned(),
            rootless: false,
            tied: true,
            host: HostNetwork::Private,
        }
    }

    /// A lab that stays until it is taken down: what `tortie lab up` wants.
    #[must_use]
    pub fn lasting(binary: &Path, lab: &Lab) -> Self {
        let state_dir = lab.default_state_dir();
        Self { tied: false, host: HostNetwork::Machine, ..Self::tied(binary, &state_dir) }
    }

    /// Where a program is: the folder of peers, then PATH, then the folders of administration.
    #[must_use]
    pub fn find(&self, program: &str) -> Option<PathBuf> {
        if program.starts_with('/') {
            return Some(PathBuf::from(program)).filter(|p| is_program(p));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = self.peers_dir.iter().cloned().chain(std::env::split_paths(&path));
        let dirs =
            dirs.chain(["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
        dirs.map(|dir| dir.join(program)).find(|p| is_program(p))
    }
}

/// The folder of unpacked peers: the variable `TORTIE_PEERS`, else `target/peers/bin` below this folder or one above it.
#[must_use]
pub fn peers_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("TORTIE_PEERS") {
        return Some(dir.into());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|dir| dir.join("target/peers/bin")).find(|dir| dir.is_dir())
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

impl Lab {
    /// Reads and checks a lab file.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn from_file(path: &Path) -> Result<Self, LabError> {
        Ok(Self { topology: Topology::read(path)? })
    }

    /// The same for a text; `file` names it in messages, and relative binds are taken from its folder.
    ///
    /// # Errors
    /// As [`Topology::parse`].
    pub fn from_text(text: &str, file: &Path) -> Result<Self, LabError> {
        Ok(Self { topology: Topology::parse(text, file)? })
    }

    /// Where a lasting lab of this name keeps its state.
    #[must_use]
    pub fn default_state_dir(&self) -> PathBuf {
        Path::new("/run/tortie/labs").join(&self.topology.name)
    }

    /// Builds the lab and starts what it describes. `progress` hears of each step before it is done.
    ///
    /// # Errors
    /// Any [`LabError`]; what was built until then is removed again.
    pub fn up(&self, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Running, LabError> {
        build::up(&self.topology, options, Instant::now(), progress)
    }

    /// Enters a lab that another process has built.
    ///
    /// # Errors
    /// [`LabError::Absent`] when it does not run.
    pub fn attach(&self, options: &Options) -> Result<Running, LabError> {
        build::attach(&self.topology, options)
    }

    /// Takes down a lab that another process has built. Works also when the file has changed since.
    ///
    /// # Errors
    /// [`LabError::Absent`] when there is none; otherwise what could not be removed.
    pub fn down(&self, options: &Options) -> Result<(), LabError> {
        build::down(&self.topology, &options.state_dir)
    }
}
