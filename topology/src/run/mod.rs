//! Builds labs and controls running ones. Linux only; all kernel state is in namespaces that one process per
//! node keeps alive.
//!
//! A node is a process (number 1 in its process id namespace) with its own network, mount, process id, UTS
//! and IPC namespaces that does nothing. Commands of the node are started from a thread that has entered
//! these namespaces. Killing that process ends the node with all of its processes. The processes of a tied
//! lab end with the process that built it, for any reason.
//!
//! Commands are not supervised: a command that has ended is not restarted (see [`Running::start`]).

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

/// A valid lab file.
#[derive(Debug, Clone)]
pub struct Lab {
    /// Content of the file.
    pub topology: Topology,
}

/// Options for building a lab.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of this program, the substitute for images whose name begins with `tortie`.
    pub binary: PathBuf,
    /// Directory with programs of other daemons, searched before PATH (see `tests/tools/peers.sh`).
    pub peers_dir: Option<PathBuf>,
    /// Directory for state, logs and `__clabDir__` of the lab. It is created, and removed by
    /// [`Running::down`].
    pub state_dir: PathBuf,
    /// Only one user exists (in a user namespace), so images that need more users are rejected.
    pub rootless: bool,
    /// The lab ends with the process that builds it. Otherwise it persists, and has names in /run/netns.
    pub tied: bool,
    /// Network used for bridges, `host` link ends and `kind: host`.
    pub host: HostNetwork,
}

/// The network that acts as the host of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNetwork {
    /// A namespace of the lab, so that this machine's network does not change.
    Private,
    /// The network namespace of the process that builds the lab, as in containerlab. An existing bridge is
    /// used.
    Machine,
}

/// A step that is about to be executed.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Time since the start of the build.
    pub elapsed: Duration,
    /// Number of completed steps.
    pub step: usize,
    /// Total number of steps.
    pub steps: usize,
    /// Description of this step.
    pub text: &'a str,
}

impl Options {
    /// Returns options for a lab that ends with this process and changes nothing outside, for tests and the
    /// demo.
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

    /// Returns options for a lab that persists until it is taken down, for `tortie lab up`.
    #[must_use]
    pub fn lasting(binary: &Path, lab: &Lab) -> Self {
        let state_dir = lab.default_state_dir();
        Self { tied: false, host: HostNetwork::Machine, ..Self::tied(binary, &state_dir) }
    }

    /// Finds a program in the directory of peers, then in PATH, then in the system directories.
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

/// Returns the directory of unpacked peers: the variable `TORTIE_PEERS`, else `target/peers/bin` in the
/// current directory or one of its parents.
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

    /// Parses and checks the text of a lab file. `file` is its name in messages, and relative binds start at
    /// its directory.
    ///
    /// # Errors
    /// As [`Topology::parse`].
    pub fn from_text(text: &str, file: &Path) -> Result<Self, LabError> {
        Ok(Self { topology: Topology::parse(text, file)? })
    }

    /// Returns the state directory of a persistent lab with this name.
    #[must_use]
    pub fn default_state_dir(&self) -> PathBuf {
        Path::new("/run/tortie/labs").join(&self.topology.name)
    }

    /// Builds and starts the lab. `progress` is called before each step.
    ///
    /// # Errors
    /// Any [`LabError`]; the parts built so far are removed.
    pub fn up(&self, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Running, LabError> {
        build::up(&self.topology, options, Instant::now(), progress)
    }

    /// Attaches to a lab that another process has built.
    ///
    /// # Errors
    /// [`LabError::Absent`] if it is not running.
    pub fn attach(&self, options: &Options) -> Result<Running, LabError> {
        build::attach(&self.topology, options)
    }

    /// Takes down a lab that another process has built, even if the file has changed since.
    ///
    /// # Errors
    /// [`LabError::Absent`] if it is not running; otherwise the part that could not be removed.
    pub fn down(&self, options: &Options) -> Result<(), LabError> {
        build::down(&self.topology, &options.state_dir)
    }
}
