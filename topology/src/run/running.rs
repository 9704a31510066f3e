//! A lab that runs, and what can be done with it.

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

/// How long the end of a lab's processes is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A running lab. Dropping a tied one takes it down.
#[derive(Debug)]
pub struct Running {
    pub(super) topology: Topology,
    pub(super) plan: Plan,
    pub(super) options: Options,
    pub(super) state: State,
    /// Children that hold namespaces; of a tied lab each has our end of its pipe.
    pub(super) holders: Vec<Child>,
    /// Commands of nodes that this process started.
    commands: HashMap<usize, Child>,
    /// How the commands ended that were waited for.
    ended: HashMap<usize, ExitStatus>,
}

/// What a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The node's command alone, not what it has started.
    Command,
    /// One process, by its number as seen from outside.
    Pid(i32),
    /// Everything that runs in the node; its namespaces, links and addresses stay.
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

    /// What the lab was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The lab's own folder: `__clabDir__` of the file.
    #[must_use]
    pub fn lab_dir(&self) -> PathBuf {
        self.options.state_dir.join("lab")
    }

    /// Runs a command in a node and waits for it. Standard input is empty.
    ///
    /// # Errors
    /// When the node is not there or the command cannot be started; a command that fails is no error.
    pub fn exec<S: AsRef<OsStr> + Sync>(&self, node: &str, command: &[S]) -> Result<Output, LabError> {
        let piped = |c: &mut Command| {
            c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        };
        let child = self.spawn(node, command, piped)?;
        child.wait_with_output().map_err(LabError::node(node, "waiting for a command"))
    }

    /// Starts a command in a node. `setup` may change its input, output and environment; paths that it opens are this
    /// process's, the command itself sees the node's.
    ///
    /// # Errors
    /// When the node is not there or the command cannot be started.
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

    /// Starts a node's command again (or for the first time); its output is added to [`Running::log_of`]. One that
    /// still runs is left alone and runs twice: kill it first.
    ///
    /// # Errors
    /// When the node is not there, has no command, or the command cannot be started.
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

    /// The number of a node's command, as seen from outside, while it runs.
    #[must_use]
    pub fn pid(&self, node: &str) -> Option<i32> {
        let i = self.topology.node(node)?;
        self.state.nodes[i].command.filter(|p| p.alive()).map(|p| p.pid)
    }

    /// The file that has what a node's command wrote.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn log_of(&self, node: &str) -> Result<PathBuf, LabError> {
        Ok(self.log(self.number(node)?))
    }

    pub(super) fn log(&self, i: usize) -> PathBuf {
        self.options.state_dir.join(format!("{}.log", self.topology.nodes[i].name))
    }

    /// The path of a node's network namespace, as `nsenter --net=PATH` takes it.
    ///
    /// # Errors
    /// When the node is not there.
    pub fn netns(&self, node: &str) -> Result<PathBuf, LabError> {
        let holder = self.holder(node)?;
        Ok(holder.map_or_else(|| "/proc/self/ns/net".into(), |h| format!("/proc/{}/ns/net", h.pid).into()))
    }

    /// Sets an interface of a node up or down. Setting one end of a cable down takes the carrier from the other.
    ///
    /// # Errors
    /// When the node or the interface is not there.
    pub fn set_link(&self, node: &str, interface: &str, up: bool) -> Result<(), LabError> {
        self.number(node)?;
        let name = format!("{node}:{interface}");
        let what = if up { "setting it up" } else { "setting it down" };
        self.netlink(node).and_then(|mut n| n.set_up(interface, up)).map_err(LabError::node(&name, what))
    }

    /// Sends a signal. True when there was something to send it to.
    ///
    /// # Errors
    /// When the node is not there or the system refuses.
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

    /// Kills without a chance to clean up, and waits until it is gone. True when something was killed.
    ///
    /// # Errors
    /// As [`Running::signal`].
    pub fn kill(&mut self, node: &str, victim: Victim) -> Result<bool, LabError> {
        let i = self.number(node)?;
        let any = self.signal(node, victim, Signal::KILL)?;
        if any && victim == Victim::Command {
            let begin = Instant::now();
            // A dead first thread is not the end: sockets stay open until the last one is gone, and only then the
            // process can be waited for.
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

    /// What runs in a node, without the process that holds it.
    fn processes(&self, node: &str) -> Result<Vec<Process>, LabError> {
        let Some(holder) = self.holder(node)? else { return Ok(Vec::new()) };
        let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = space(holder.pid);
        let entries = fs::read_dir("/proc").map_err(LabError::file(Path::new("/proc")))?;
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let inside = pids.filter(|pid| *pid != holder.pid && own.is_some() && space(*pid) == own);
        Ok(inside.filter_map(|pid| Process::of(pid).ok()).collect())
    }

    /// How a node's command ended, when this process started it and it has.
    pub(super) fn ended(&mut self, i: usize) -> Option<ExitStatus> {
        if let Some(child) = self.commands.get_mut(&i)
            && let Ok(Some(status)) = child.try_wait()
        {
            self.commands.remove(&i);
            self.ended.insert(i, status);
        }
        self.ended.get(&i).copied()
    }

    /// How a node's command ended, when this process started it and it has.
    #[must_use]
    pub fn exit_status(&mut self, node: &str) -> Option<ExitStatus> {
        let i = self.topology.node(node)?;
        self.ended(i)
    }

    /// Takes the lab down: processes, namespaces, links, names, state.
    ///
    /// # Errors
    /// When something of it could not be removed; the rest is removed all the same.
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
        // The first process of a process id namespace ends after all others in it are waited for: commands first.
        for mut child in self.commands.drain().map(|(_, c)| c) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A child that the caller has spawned and not waited for keeps a dead holder in the table, and only that: hence
        // the limit.
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

    /// Removes what a lab leaves when its processes are gone.
    pub(super) fn sweep(state: &State, dir: &Path) -> Result<(), LabError> {
        for name in &state.names {
            // Only links that lead nowhere any more: the name may belong to another lab by now.
            if name.symlink_metadata().is_ok_and(|m| m.is_symlink()) && !name.exists() {
                fs::remove_file(name).map_err(LabError::file(name))?;
            }
        }
        if !state.bridges.is_empty() {
            let mut netlink = Netlink::here().map_err(LabError::node("bridge", "opening netlink"))?;
            for bridge in &state.bridges {
                // Gone already is as good.
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

    /// The process that holds a node's namespaces; `None` for this machine's own network.
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

    /// The path of the network namespace that has a node's interfaces.
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

    /// As in a container: little from outside, what image and file set, and our programs first.
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

/// Finds a program in the node. An absolute path that only an image has is looked for by its last part.
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
