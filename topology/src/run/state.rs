//! State file of a running lab, with which another process can enter it and take it down.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LabError;

const FILE: &str = "lab.json";

/// Saved state of a running lab.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    /// Name of the lab.
    pub(crate) lab: String,
    /// First process of the private host namespace, if the lab has one.
    pub(crate) host: Option<Process>,
    /// Processes of each node, in file order.
    pub(crate) nodes: Vec<Member>,
    /// Bridges created in the machine's own network.
    pub(crate) bridges: Vec<String>,
    /// Paths created in /run/netns.
    pub(crate) names: Vec<PathBuf>,
}

/// Processes of a node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Name of the node in the lab file.
    pub(crate) name: String,
    /// Process that keeps the node's namespaces alive.
    pub(crate) first: Option<Process>,
    /// Process of the node's command.
    pub(crate) command: Option<Process>,
}

/// A process, identified even if its number is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Process number where the lab was started.
    pub(crate) pid: i32,
    /// Start time in clock ticks since boot.
    started: u64,
}

impl Process {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: stat(pid)?.1 })
    }

    /// Returns true while the process is running; false for a zombie.
    pub(crate) fn alive(self) -> bool {
        stat(self.pid).is_ok_and(|(state, started)| started == self.started && state != "Z" && state != "X")
    }

    /// Sends a signal. Returns false if the process has already ended.
    pub(crate) fn signal(self, signal: rustix::process::Signal) -> io::Result<bool> {
        if !self.alive() {
            return Ok(false);
        }
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else { return Ok(false) };
        match rustix::process::kill_process(pid, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns state letter and start time of a process.
fn stat(pid: i32) -> io::Result<(String, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut fields = fields.split(' ');
    let state = fields.next().unwrap_or_default().to_owned();
    // proc(5): state is field 3, starttime is field 22.
    let started = fields.nth(18).and_then(|f| f.parse().ok());
    started.map(|s| (state, s)).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is unreadable")))
}

impl State {
    /// Reads the state of a lab; `None` if there is none.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LabError> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(LabError::file(&path)(e)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| LabError::file(&path)(e.into()))
    }

    /// Writes the state atomically.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let (path, new) = (dir.join(FILE), dir.join("lab.json.new"));
        let text = serde_json::to_vec_pretty(self).map_err(|e| LabError::file(&path)(e.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(LabError::file(&path))
    }

    /// Returns the processes that keep namespaces alive.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Process> {
        self.nodes.iter().filter_map(|n| n.first).chain(self.host)
    }

    /// Returns true while any part of the lab exists.
    pub(crate) fn alive(&self) -> bool {
        self.holders().any(Process::alive)
    }
}
