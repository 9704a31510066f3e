//! What is written down of a running lab, so that another process can enter it and take it down.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::LabError;

const FILE: &str = "lab.json";

/// A running lab on disk.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct State {
    /// The lab's name.
    pub(crate) lab: String,
    /// The first process of the private host namespace, where the lab has one.
    pub(crate) host: Option<Process>,
    /// One for each node of the file, same order.
    pub(crate) nodes: Vec<Member>,
    /// Bridges made in the machine's own network.
    pub(crate) bridges: Vec<String>,
    /// Names put into /run/netns.
    pub(crate) names: Vec<PathBuf>,
}

/// A node's processes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its name in the file.
    pub(crate) name: String,
    /// The process that holds its namespaces.
    pub(crate) first: Option<Process>,
    /// Its command.
    pub(crate) command: Option<Process>,
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number as seen from where the lab was started.
    pub(crate) pid: i32,
    /// When it was started, in clock ticks since boot.
    started: u64,
}

impl Process {
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: stat(pid)?.1 })
    }

    /// True while it runs; one that has ended and was not waited for does not.
    pub(crate) fn alive(self) -> bool {
        stat(self.pid).is_ok_and(|(state, started)| started == self.started && state != "Z" && state != "X")
    }

    /// Sends a signal; false when the process is gone already.
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

/// State letter and start time of a process.
fn stat(pid: i32) -> io::Result<(String, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut fields = fields.split(' ');
    let state = fields.next().unwrap_or_default().to_owned();
    // proc(5): state is the third field, starttime the twenty-second.
    let started = fields.nth(18).and_then(|f| f.parse().ok());
    started.map(|s| (state, s)).ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is unreadable")))
}

impl State {
    /// Reads a lab's state; `None` when there is none.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, LabError> {
        let path = dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(LabError::file(&path)(e)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| LabError::file(&path)(e.into()))
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let (path, new) = (dir.join(FILE), dir.join("lab.json.new"));
        let text = serde_json::to_vec_pretty(self).map_err(|e| LabError::file(&path)(e.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(LabError::file(&path))
    }

    /// The processes that hold namespaces.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Process> {
        self.nodes.iter().filter_map(|n| n.first).chain(self.host)
    }

    /// True while any part of the lab is there.
    pub(crate) fn alive(&self) -> bool {
        self.holders().any(Process::alive)
    }
}
