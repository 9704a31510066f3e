//! A process of another BGP implementation, with its files in a temporary folder.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal};

use crate::rig::net;

/// A daemon with its files in a temporary folder.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    child: Child,
    gently: bool,
}

impl Daemon {
    /// Starts a daemon. `arguments` receives the folder; `config` is written to `conf` in it, with `DIR`
    /// replaced by the folder.
    pub(crate) fn start(program: &Path, config: &str, arguments: impl Fn(&Path) -> Vec<String>) -> Self {
        Self::start_in(None, program, config, arguments)
    }

    /// The same in another namespace.
    pub(crate) fn start_in(
        namespace: Option<&str>,
        program: &Path,
        config: &str,
        arguments: impl Fn(&Path) -> Vec<String>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("conf"), config.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let child = net::command(namespace, program)
            .args(arguments(dir.path()))
            .current_dir(dir.path())
            .envs([("exabgp.daemon.drop", "false"), ("exabgp.cli.pipe", "")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { dir, child, gently: false }
    }

    /// Marks a daemon with child processes, which it ends on SIGTERM.
    pub(crate) fn gently(mut self) -> Self {
        self.gently = true;
        self
    }

    /// Sends SIGSTOP to the daemon and its child processes.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    fn signal(&self, signal: Signal) {
        let mut all = vec![self.child.id()];
        let mut at = 0;
        while let Some(id) = all.get(at) {
            let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
            all.extend(
                children.unwrap_or_default().split_whitespace().filter_map(|id| id.parse::<u32>().ok()),
            );
            at += 1;
        }
        for id in all {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw).unwrap();
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills the process (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.gently
            && matches!(self.child.try_wait(), Ok(None))
            && let Ok(id) = i32::try_from(self.child.id())
            && let Some(pid) = Pid::from_raw(id)
        {
            self.signal(Signal::CONT);
            let _ = rustix::process::kill_process(pid, Signal::TERM);
            for _ in 0..200 {
                if matches!(self.child.try_wait(), Ok(Some(_))) {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
