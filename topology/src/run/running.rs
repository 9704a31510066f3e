//! A running lab, and the operations on it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::netlink::Netlink;
use super::state::{Process, State};
use super::{HostNetwork, Options, is_program, ns, root};
use crate::clab::{HOST, Kind, Topology};
use crate::error::LabError;
use crate::plan::Plan;

/// Maximum waiting time for the end of the lab's processes.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A running lab. Dropping a tied lab takes it down.
#[derive(Debug)]
pub struct Running {
    pub(super) topology: Topology,
    pub(super) plan: Plan,
    pub(super) options: Options,
    pub(super) state: State,
    /// Child processes that keep namespaces alive; for a tied lab each contains this process's end of its
    /// pipe.
    pub(super) holders: Vec<Child>,
    /// Commands of nodes that this process started.
    commands: HashMap<usize, Child>,
    /// Exit status of commands that have been waited for.
    ended: HashMap<usize, ExitStatus>,
}

/// Target of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The node's command alone, without its child processes.
    Command,
    /// One process, by its number outside of the lab.
    Pid(i32),
    /// All processes of the node; namespaces, links and addresses stay.
    Everything,
}

impl Running {
    pub(super) fn new(topology: Topology, plan: Plan, options: Options, state: State) -> Self {
        Self {
            topology,
            plan,
            options,
            state,
            holders: Vec::new(),
            commands: HashMap::new(),
            ended: HashMap::new(),
        }
    }

    /// Returns the topology that the lab was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the lab's own directory, `__clabDir__` in the file.
    #[must_use]
    pub fn lab_dir(&self) -> PathBuf {
        self.options.state_dir.join("lab")
    }

    /// Runs a command in a node and waits for it. Standard input is empty.
    ///
    /// # Errors
    /// If the node does not exist, or the command cannot be started. A failing command is not an error.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, node: &str, command: &[S]) -> Result<Output, LabError> {
        let piped = |c: &mut Command| {
            c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        };
        let child = self.spawn(node, command, piped)?;
        child.wait_with_output().map_err(LabError::node(node, "waiting for a command"))
    }

    /// Starts a command in a node. `setup` may change its input, output and environment. Paths that `setup`
    /// opens are those of this process, while the command uses those of the node.
    ///
    /// # Errors
    /// If the node does not exist, or the command cannot be started.
    pub fn spawn<S: AsRef<OsStr> + Sync>(
        &self,
        node: &str,
        command: &[S],
        setup: impl FnOnce(&mut Command) + Send,
    ) -> Result<Child, LabError> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(LabError::Absent(format!("{node}: no command was given")));
        };
        let what = format!("starting `{}`", program.as_ref().to_string_lossy());
        let env = self.environment(node);
        let start = || {
            let mut command = Command::new(find(program.as_ref(), &env)?);
            command.arg0(program.as_ref()).args(arguments).current_dir("/").env_clear().envs(env);
            setup(&mut command);
            command.spawn()
        };
        let result = match self.holder(node)? {
            Some(holder) => ns::inside(holder.pid, true, start),
            None => start(),
        };
        result.map_err(LabError::node(node, &what))
    }

    /// Starts a node's command, for the first time or again; its output is appended to [`Running::log_of`]. A
    /// command that is still running is not stopped and runs twice, so kill it first.
    ///
    /// # Errors
    /// If the node does not exist or has no command, or the command cannot be started.
    pub fn start(&mut self, node: &str) -> Result<(), LabError> {
        let i = self.number(node)?;
        let command = self.plan.spaces[i].as_ref().map(|s| s.command.clone()).unwrap_or_default();
        let path = self.log(i);
        let log = fs::OpenOptions::new().create(true).append(true).open(&path);
        let log = log.and_then(|l| Ok((l.try_clone()?, l))).map_err(LabError::file(&path))?;
        let child = self.spawn(node, &command, |c| {
            c.stdin(Stdio::null()).stdout(log.0).stderr(log.1).process_group(0);
        })?;
        self.state.nodes[i].command = i32::try_from(child.id()).ok().and_then(|pid| Process::of(pid).ok());
        if let Some(mut old) = self.commands.insert(i, child) {
            let _ = old.try_wait();
        }
        self.ended.remove(&i);
        self.state.write(&self.options.state_dir)
    }

    /// Returns the process number of a node's command outside of the lab, while it is running.
    #[must_use]
    pub fn pid(&self, node: &str) -> Option<i32> {
        let i = self.topology.node(node)?;
        self.state.nodes[i].command.filter(|p| p.alive()).map(|p| p.pid)
    }

    /// Returns the path of the log of a node's command.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn log_of(&self, node: &str) -> Result<PathBuf, LabError> {
        Ok(self.log(self.number(node)?))
    }

    pub(super) fn log(&self, i: usize) -> PathBuf {
        self.options.state_dir.join(format!("{}.log", self.topology.nodes[i].name))
    }

    /// Returns the path of a node's network namespace, for `nsenter --net=PATH`.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn netns(&self, node: &str) -> Result<PathBuf, LabError> {
        let holder = self.holder(node)?;
        Ok(holder.map_or_else(|| "/proc/self/ns/net".into(), |h| format!("/proc/{}/ns/net", h.pid).into()))
    }

    /// Sets an interface of a node up or down. Setting one end of a veth pair down removes the carrier of the
    /// other end.
    ///
    /// # Errors
    /// If the node or the interface does not exist.
    pub fn set_link(&self, node: &str, interface: &str, up: bool) -> Result<(), LabError> {
        self.number(node)?;
        let name = format!("{node}:{interface}");
        let what = if up { "setting it up" } else { "setting it down" };
        self.netlink(node).and_then(|mut n| n.set_up(interface, up)).map_err(LabError::node(&name, what))
    }

    /// Sends a signal. Returns true if there was a process to send it to.
    ///
    /// # Errors
    /// If the node does not exist, or the system call fails.
    pub fn signal(&mut self, node: &str, victim: Victim, signal: Signal) -> Result<bool, LabError> {
        let i = self.number(node)?;
        let targets: Vec<Process> = match victim {
            Victim::Command => self.state.nodes[i].command.into_iter().collect(),
            Victim::Pid(pid) => Process::of(pid).ok().into_iter().collect(),
            Victim::Everything => self.processes(node)?,
        };
        let mut any = false;
        for process in targets {
            any |= process.signal(signal).map_err(LabError::node(node, "sending a signal"))?;
        }
        Ok(any)
    }

    /// Sends SIGKILL, and waits until the process is gone. Returns true if a process was killed.
    ///
    /// # Errors
    /// As [`Running::signal`].
    pub fn kill(&mut self, node: &str, victim: Victim) -> Result<bool, LabError> {
        let i = self.number(node)?;
        let any = self.signal(node, victim, Signal::KILL)?;
        if any && victim == Victim::Command {
            let begin = Instant::now();
            // The end of the first thread is not sufficient: sockets stay open until the last thread has
            // ended, and only then can the process be waited for.
            while (self.commands.contains_key(&i) || self.state.nodes[i].command.is_some_and(Process::alive))
                && begin.elapsed() < PATIENCE
            {
                self.ended(i);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.ended(i);
        Ok(any)
    }

    /// Returns the processes of a node, without the one that keeps its namespaces alive.
    fn processes(&self, node: &str) -> Result<Vec<Process>, LabError> {
        let Some(holder) = self.holder(node)? else { return Ok(Vec::new()) };
        let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = space(holder.pid);
        let entries = fs::read_dir("/proc").map_err(LabError::file(Path::new("/proc")))?;
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let inside = pids.filter(|pid| *pid != holder.pid && own.is_some() && space(*pid) == own);
        Ok(inside.filter_map(|pid| Process::of(pid).ok()).collect())
    }

    /// Returns the exit status of a node's command, if this process started it and it has ended.
    pub(super) fn ended(&mut self, i: usize) -> Option<ExitStatus> {
        if let Some(child) = self.commands.get_mut(&i)
            && let Ok(Some(status)) = child.try_wait()
        {
            self.commands.remove(&i);
            self.ended.insert(i, status);
        }
        self.ended.get(&i).copied()
    }

    /// Returns the exit status of a node's command, if this process started it and it has ended.
    #[must_use]
    pub fn exit_status(&mut self, node: &str) -> Option<ExitStatus> {
        let i = self.topology.node(node)?;
        self.ended(i)
    }

    /// Takes the lab down: processes, namespaces, links, names, state.
    ///
    /// # Errors
    /// If a part could not be removed; all other parts are removed anyway.
    pub fn down(mut self) -> Result<(), LabError> {
        self.remove()
    }

    fn remove(&mut self) -> Result<(), LabError> {
        let mut first_error = None;
        for process in self.state.holders() {
            if let Err(e) = process.signal(Signal::KILL) {
                first_error = first_error.or(Some(LabError::node("lab", "ending a node")(e)));
            }
        }
        // The first process of a process id namespace ends after all others in it have been waited for, so
        // the commands are waited for first.
        for mut child in self.commands.drain().map(|(_, c)| c) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A child that the caller spawned and did not wait for only keeps the dead namespace holder in the
        // process table, hence the limit.
        let begin = Instant::now();
        while self.holders.iter_mut().any(|c| matches!(c.try_wait(), Ok(None))) && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        while self.state.alive() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let swept = Self::sweep(&self.state, &self.options.state_dir);
        self.state = State::default();
        first_error.map_or(swept, Err)
    }

    /// Removes what remains of a lab after its processes have ended.
    pub(super) fn sweep(state: &State, dir: &Path) -> Result<(), LabError> {
        for name in &state.names {
            // Only dangling links are removed, because the name may belong to another lab by now.
            if name.symlink_metadata().is_ok_and(|m| m.is_symlink()) && !name.exists() {
                fs::remove_file(name).map_err(LabError::file(name))?;
            }
        }
        if !state.bridges.is_empty() {
            let mut netlink = Netlink::here().map_err(LabError::node("bridge", "opening netlink"))?;
            for bridge in &state.bridges {
                // The bridge may already be gone.
                let _ = netlink.remove_link(bridge);
            }
        }
        match fs::remove_dir_all(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(LabError::file(dir)(e)),
            _ => Ok(()),
        }
    }

    fn number(&self, node: &str) -> Result<usize, LabError> {
        self.topology.node(node).ok_or_else(|| {
            let names: Vec<&str> = self.topology.nodes.iter().map(|n| n.name.as_str()).collect();
            LabError::Absent(format!(
                "lab {} has no node {node}: it has {}",
                self.topology.name,
                names.join(", ")
            ))
        })
    }

    /// Returns the process that keeps a node's namespaces alive; `None` for this machine's own network.
    fn holder(&self, node: &str) -> Result<Option<Process>, LabError> {
        let is_host = |i: usize| self.topology.nodes[i].kind != Kind::Linux;
        let holder = match self.topology.node(node) {
            Some(i) if !is_host(i) => self.state.nodes[i].first,
            None if node != HOST => return self.number(node).map(|_| None),
            _ if self.options.host == HostNetwork::Machine && self.state.host.is_none() => return Ok(None),
            _ => self.state.host,
        };
        match holder.filter(|p| p.alive()) {
            Some(holder) => Ok(Some(holder)),
            None => Err(LabError::Absent(format!("{node} does not run: take the lab down and up again"))),
        }
    }

    /// Returns the path of the network namespace with a node's interfaces.
    pub(super) fn network(&self, node: &str) -> io::Result<PathBuf> {
        match self.holder(node).map_err(io::Error::other)? {
            Some(holder) => Ok(format!("/proc/{}/ns/net", holder.pid).into()),
            None => Ok("/proc/thread-self/ns/net".into()),
        }
    }

    pub(super) fn netlink(&self, node: &str) -> io::Result<Netlink> {
        match self.holder(node).map_err(io::Error::other)? {
            Some(holder) => Netlink::of(holder.pid),
            None => Netlink::here(),
        }
    }

    pub(super) fn host_netlink(&self) -> io::Result<Netlink> {
        self.netlink(HOST)
    }

    /// Returns the environment as in a container: few variables from outside, those of image and file, and
    /// the substitute programs first in PATH.
    fn environment(&self, node: &str) -> Vec<(OsString, OsString)> {
        let mut path = OsString::from(root::PROGRAMS);
        if let Some(dir) = &self.options.peers_dir {
            path.push(":");
            path.push(dir);
        }
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let mut env: Vec<(OsString, OsString)> =
            vec![("PATH".into(), path), ("HOME".into(), "/root".into()), ("LANG".into(), "C.UTF-8".into())];
        for key in ["TERM", "NO_COLOR", "RUST_BACKTRACE", "RUST_LOG"] {
            env.extend(std::env::var_os(key).map(|value| (key.into(), value)));
        }
        let space = self.topology.node(node).and_then(|i| self.plan.spaces[i].as_ref());
        if let Some(space) = space {
            env.push(("HOSTNAME".into(), space.hostname.clone().into()));
            env.extend(space.env.iter().map(|(k, v)| (k.into(), v.into())));
        }
        env
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.options.tied {
            let _ = self.remove();
        }
    }
}

/// Finds a program in the node. An absolute path that exists only in the image is searched by its file name.
fn find(program: &OsStr, env: &[(OsString, OsString)]) -> io::Result<PathBuf> {
    let path = Path::new(program);
    let name = match path.is_absolute() {
        true if is_program(path) => return Ok(path.to_owned()),
        true => path.file_name().unwrap_or(program),
        false => program,
    };
    let dirs = env.iter().rev().find_map(|(k, v)| (k == "PATH").then_some(v));
    let found = dirs.and_then(|d| std::env::split_paths(d).map(|dir| dir.join(name)).find(|p| is_program(p)));
    found.ok_or_else(|| {
        let text =
            format!("there is no program {} in the node or on this machine", program.to_string_lossy());
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}
