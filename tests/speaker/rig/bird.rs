//! A BIRD 2 process for one test.

use std::path::PathBuf;
use std::process::Command;

use crate::rig::configs::start_bird;
use crate::rig::daemon::Daemon;
use crate::rig::net;
use crate::rig::node::wait;

pub(crate) struct Bird {
    daemon: Daemon,
    bird: PathBuf,
    birdc: PathBuf,
    namespace: Option<String>,
}

/// Common configuration: two static routes to announce, short timers.
const BASE: &str = "log stderr all; router id 192.0.2.9; protocol device { scan time 3600; }
protocol static s4 { ipv4; route 10.9.0.0/24 blackhole; route 10.9.1.0/24 blackhole; }
protocol static s6 { ipv6; route fd00:9::/64 blackhole; }
template bgp quick { connect delay time 1; connect retry time 1; error wait time 1, 1; multihop; strict bind yes; }
";

impl Bird {
    /// Starts BIRD with these protocols. `None` without BIRD.
    pub(crate) fn start(protocols: &str) -> Option<Self> {
        Self::start_in(None, protocols)
    }

    /// The same in another namespace.
    pub(crate) fn start_in(namespace: Option<&str>, protocols: &str) -> Option<Self> {
        let (bird, birdc) = (net::tool("bird")?, net::tool("birdc")?);
        let daemon = start_bird(namespace, &bird, &format!("{BASE}{protocols}"), &[]);
        let this = Self { daemon, bird, birdc, namespace: namespace.map(str::to_owned) };
        this.ready();
        Some(this)
    }

    /// Kills the process (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Restarts it after [`Self::kill`].
    pub(crate) fn start_again(&mut self, protocols: &str, flags: &[&str]) {
        let config = format!("{BASE}{protocols}");
        self.daemon = start_bird(self.namespace.as_deref(), &self.bird, &config, flags);
        self.ready();
    }

    /// Replaces the configuration of the running process.
    pub(crate) fn configure(&self, protocols: &str) {
        std::fs::write(self.daemon.file("conf"), format!("{BASE}{protocols}")).unwrap();
        self.wait_for_output("configure", "Reconfigured");
    }

    pub(crate) fn ask(&self, command: &str) -> String {
        let out = Command::new(&self.birdc)
            .arg("-s")
            .arg(self.daemon.file("ctl"))
            .args(command.split(' '))
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns its log so far.
    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    pub(crate) fn wait_for_output(&self, command: &str, text: &str) {
        wait(&format!("BIRD to say {text:?} to {command:?}"), || {
            let answer = self.ask(command);
            if answer.contains(text) { Ok(()) } else { Err(format!("{answer}\n{}", self.log())) }
        });
    }

    fn ready(&self) {
        self.wait_for_output("show status", "Daemon is up and running");
    }
}
