//! Calico's daemons on this host: finds them with their supervisors, and stops them.
//!
//! It finds daemons in `/proc`, only in the network namespace of the caller, and stops only those that the
//! operator named: by process id, by a named unit, or by a given command.
//!
//! Daemons are killed instead of terminated: a BIRD that exits normally notifies its peers, which then drop
//! its routes; if it vanishes, peers retain the routes for a restart (RFC 4724). Kernel routes and packet
//! filter rules stay in both cases.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cli::failure::{Exit, Failure};
use crate::host_checks::CalicoDaemon;

/// Services that runit supervises in the image of calico-node.
const SERVICES: [&str; 10] = [
    "bird",
    "bird6",
    "confd",
    "felix",
    "monitor-addresses",
    "allocate-tunnel-addrs",
    "cni",
    "node-status-reporter",
    "monitor-token",
    "node-services",
];

/// Returns the role of a process in Calico by its name and command line, or `None`.
fn role(name: &str, words: &[&str]) -> Option<&'static str> {
    let has = |word: &str| words.iter().any(|w| w.trim_start_matches('-') == word);
    match name {
        "bird" => Some("bird"),
        "bird6" => Some("bird6"),
        "confd" => Some("confd"),
        "calico-felix" | "felix" => Some("felix"),
        "calico-node" if has("felix") => Some("felix"),
        "calico-node" if has("confd") => Some("confd"),
        "calico-node" => Some("node"),
        // Since 3.33 one executable, with the name of the daemon as an argument.
        "calico" if words.get(1) == Some(&"component") => match words.get(2).copied() {
            Some("felix") => Some("felix"),
            Some("confd") => Some("confd"),
            Some("node") => Some("node"),
            _ => None,
        },
        // The supervisors in the image of calico-node, which start the others again.
        "runsv" if words.get(1).is_some_and(|service| SERVICES.contains(service)) => Some("runsv"),
        "runsvdir" if words.contains(&"/etc/service/enabled") => Some("runsv"),
        // Calico 1.x before Go: a Python program with its name as an argument.
        _ if name.starts_with("python") && words.iter().any(|w| w.ends_with("calico-felix")) => Some("felix"),
        _ => None,
    }
}

/// Returns container and unit from the content of `/proc/PID/cgroup`.
pub(super) fn supervisor(cgroup: &str) -> (Option<String>, Option<String>) {
    let mut container = None;
    let mut unit = None;
    for path in cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        for part in path.split('/') {
            let name = part.trim_end_matches(".scope");
            let id = name.rsplit('-').next().unwrap_or(name);
            let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
            if is_id {
                container = id.get(..12).map(str::to_owned);
            }
            if part.ends_with(".service") {
                unit = Some(part.to_owned());
            }
        }
    }
    // A container in the engine's own unit is supervised by the engine.
    let unit = unit.filter(|_| container.is_none());
    (container, unit)
}

/// Returns Calico's daemons in the network namespace of this process.
pub(super) fn find() -> Vec<CalicoDaemon> {
    let Ok(here) = fs::read_link("/proc/self/ns/net") else { return Vec::new() };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<CalicoDaemon> = pids
        .filter_map(|pid| {
            let of = |file: &str| PathBuf::from(format!("/proc/{pid}/{file}"));
            let name = fs::read_to_string(of("comm")).ok()?;
            let command = fs::read(of("cmdline")).ok()?;
            let command: Vec<String> = command
                .split(|b| *b == 0)
                .filter(|word| !word.is_empty())
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let role = role(name.trim_end(), &words)?.to_owned();
            // A zombie process has no namespace any more.
            if fs::read_link(of("ns/net")).ok()? != here {
                return None;
            }
            let (container, unit) = supervisor(&fs::read_to_string(of("cgroup")).unwrap_or_default());
            Some(CalicoDaemon {
                pid,
                role,
                command: command.join(" "),
                container,
                unit,
                started: started(pid)?,
            })
        })
        .collect();
    found.sort_unstable_by_key(|daemon| daemon.pid);
    found
}

/// Returns the start time of a process (proc(5), field 22 of `stat`).
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Ways to stop Calico's daemons.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(rename_all = "camelCase")]
pub(super) struct StopWith {
    /// Command that ends Calico's daemons at once, without a NOTIFICATION to BGP peers; run by `sh -c`
    /// [example: docker kill calico-node]
    #[arg(long, value_name = "COMMAND")]
    pub(super) stop_with: Option<String>,
    /// Systemd unit that runs them; it is kept from restarting and its processes are killed. May be repeated
    #[arg(long, value_name = "UNIT")]
    pub(super) unit: Vec<String>,
    /// Process id of a daemon, to be killed. May be repeated
    #[arg(long, value_name = "PID")]
    pub(super) pid: Vec<u32>,
}

impl StopWith {
    /// True if no way to stop the daemons was given.
    pub(super) fn is_empty(&self) -> bool {
        self.stop_with.is_none() && self.unit.is_empty() && self.pid.is_empty()
    }

    /// Describes the way of stopping the daemons for people.
    pub(super) fn words(&self) -> String {
        let mut parts = Vec::new();
        for unit in &self.unit {
            parts.push(format!("unit {unit} is kept from restarting"));
        }
        parts.extend(self.stop_with.as_ref().map(|command| format!("run: {command}")));
        for pid in &self.pid {
            parts.push(format!("kill -9 {pid}"));
        }
        for unit in &self.unit {
            parts.push(format!("unit {unit} is killed and stopped"));
        }
        parts.join("; ")
    }

    /// Returns arguments that would stop these daemons, as a suggestion.
    pub(super) fn suggested(daemons: &[CalicoDaemon]) -> String {
        let mut words: Vec<String> = Vec::new();
        for daemon in daemons {
            let word = match (&daemon.container, &daemon.unit) {
                (Some(container), _) => format!("--stop-with 'docker kill {container}'"),
                (None, Some(unit)) => format!("--unit {unit}"),
                (None, None) => format!("--pid {}", daemon.pid),
            };
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.join(" ")
    }

    /// Checks that all named processes are daemons of Calico.
    ///
    /// # Errors
    /// If one is not.
    pub(super) fn check(&self, daemons: &[CalicoDaemon]) -> Result<(), Failure> {
        let stranger = self.pid.iter().find(|pid| daemons.iter().all(|daemon| daemon.pid != **pid));
        match stranger {
            None => Ok(()),
            Some(pid) => Err(Failure::usage(format!(
                "--pid {pid} is not a daemon of Calico in this network namespace: see `tortie migrate check`"
            ))),
        }
    }

    /// Stops the daemons and waits until none runs.
    ///
    /// # Errors
    /// If a command fails, or daemons still run or were restarted by a supervisor.
    pub(super) fn end(&self, daemons: &[CalicoDaemon]) -> Result<(), Failure> {
        for unit in &self.unit {
            keep_down(unit)?;
        }
        if let Some(command) = &self.stop_with {
            run_shell(command)?;
        }
        // The process id may have been reused, so the start time is compared.
        let named = daemons.iter().filter(|daemon| self.pid.contains(&daemon.pid));
        for daemon in named.filter(|daemon| started(daemon.pid) == Some(daemon.started)) {
            let pid = i32::try_from(daemon.pid).ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for unit in &self.unit {
            systemctl(&["stop", unit])?;
        }
        stay_away()
    }
}

/// Waits until no daemon runs, and checks that none is restarted.
fn stay_away() -> Result<(), Failure> {
    /// Maximum time for the processes to end.
    const GONE: Duration = Duration::from_secs(10);
    /// runsv, systemd and docker restart a process after a second at most.
    const BACK: Duration = Duration::from_millis(1_500);
    let begin = Instant::now();
    let mut since = None;
    loop {
        let found = find();
        if found.is_empty() {
            if since.get_or_insert_with(Instant::now).elapsed() >= BACK {
                return Ok(());
            }
        } else {
            let text = |what: &str| {
                let names: Vec<String> =
                    found.iter().map(|d| format!("{} (pid {})", d.role, d.pid)).collect();
                Failure::new(Exit::Refused, "still-running", format!("{} {what}", names.join(", ")))
            };
            if since.is_some() {
                return Err(text(
                    "came back: something restarts it. Stop that, too: --unit UNIT, or --stop-with 'docker kill NAME'",
                ));
            }
            if begin.elapsed() >= GONE {
                return Err(text("still runs: name it, too (--pid, --unit or --stop-with)"));
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the path of the drop-in that disables restarts of a unit and has it killed; it does not survive a
/// reboot.
fn drop_in(unit: &str) -> PathBuf {
    PathBuf::from(format!("/run/systemd/system/{unit}.d/99-tortie-migrate.conf"))
}

fn keep_down(unit: &str) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::new(Exit::Partial, "unit", format!("{unit}: {e}"));
    let path = drop_in(unit);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(wrong)?;
    }
    let text = "# Written by `tortie migrate adopt`; `tortie migrate rollback` removes it.\n\
        [Service]\nRestart=no\nKillSignal=SIGKILL\nExecStop=\n";
    fs::write(&path, text).map_err(wrong)?;
    systemctl(&["daemon-reload"])
}

/// Removes the drop-ins of the units.
///
/// # Errors
/// If the service manager does not answer.
pub(super) fn release(units: &[String]) -> Result<(), Failure> {
    let mut some = false;
    for unit in units {
        let path = drop_in(unit);
        some |= fs::remove_file(&path).is_ok();
        let _ = path.parent().map(fs::remove_dir);
    }
    if some { systemctl(&["daemon-reload"]) } else { Ok(()) }
}

/// Runs systemctl.
///
/// # Errors
/// If it fails.
pub(super) fn systemctl(words: &[&str]) -> Result<(), Failure> {
    let output = Command::new("systemctl").args(words).stdin(Stdio::null()).output();
    let said = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Failure::new(Exit::Partial, "systemctl", format!("systemctl {}: {said}", words.join(" "))))
}

/// Runs a command of the operator to its end.
///
/// # Errors
/// If it fails.
pub(super) fn run_shell(command: &str) -> Result<(), Failure> {
    // Its output goes to standard error, because standard output is for the answer.
    let status = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .map_err(|e| Failure::new(Exit::Partial, "command", format!("`{command}` cannot be run: {e}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(Exit::Partial, "command", format!("`{command}` failed: {status}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_known_by_what_they_do() {
        let of = |name: &str, line: &str| role(name, &line.split(' ').collect::<Vec<_>>());
        assert_eq!(of("bird6", "bird6 -R -s /var/run/calico/bird6.ctl -d -c bird6.cfg"), Some("bird6"));
        assert_eq!(of("calico-node", "calico-node -felix"), Some("felix"));
        assert_eq!(of("calico-node", "calico-node -confd"), Some("confd"));
        assert_eq!(of("calico-node", "calico-node -allocate-tunnel-addrs"), Some("node"));
        assert_eq!(of("calico", "calico component felix"), Some("felix"));
        assert_eq!(of("calico", "calico component node node-services"), Some("node"));
        assert_eq!(of("calico", "calico component typha"), None);
        assert_eq!(of("runsv", "runsv felix"), Some("runsv"));
        assert_eq!(of("runsv", "runsv sshd"), None);
        assert_eq!(of("runsvdir", "runsvdir -P /etc/service/enabled"), Some("runsv"));
        assert_eq!(of("python", "/usr/bin/python /usr/bin/calico-felix --config-file x"), Some("felix"));
        assert_eq!(of("birdc", "birdc"), None);
        assert_eq!(of("tortie", "tortie agent"), None);
    }

    #[test]
    fn who_keeps_a_process_is_read_from_its_cgroup() {
        let id = "4f5e".repeat(16);
        let of = |text: String| supervisor(&text);
        assert_eq!(
            of(format!("0::/system.slice/docker-{id}.scope\n")),
            (Some("4f5e4f5e4f5e".to_owned()), None)
        );
        assert_eq!(
            of(format!("12:pids:/docker/{id}\n0::/system.slice/docker.service\n")).0.unwrap(),
            "4f5e4f5e4f5e"
        );
        assert_eq!(of("0::/system.slice/bird.service\n".to_owned()), (None, Some("bird.service".to_owned())));
        assert_eq!(of("0::/user.slice/user-0.slice/session-3.scope\n".to_owned()), (None, None));
        let daemon = |pid, container: Option<&str>, unit: Option<&str>| CalicoDaemon {
            pid,
            role: "bird".to_owned(),
            command: String::new(),
            container: container.map(str::to_owned),
            unit: unit.map(str::to_owned),
            started: 0,
        };
        let all = [
            daemon(1, Some("abc"), None),
            daemon(2, Some("abc"), None),
            daemon(3, None, Some("bird.service")),
            daemon(4, None, None),
        ];
        assert_eq!(StopWith::suggested(&all), "--stop-with 'docker kill abc' --unit bird.service --pid 4");
        assert!(StopWith { pid: vec![4], ..StopWith::default() }.check(&all).is_ok());
        assert!(
            StopWith { pid: vec![5], ..StopWith::default() }
                .check(&all)
                .unwrap_err()
                .text
                .contains("--pid 5")
        );
    }
}
