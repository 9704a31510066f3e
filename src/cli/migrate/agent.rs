//! Tortie's agent during a migration: starting it, waiting for it, stopping it.

use std::path::Path;
use std::time::{Duration, Instant};
use tortie_config::counted;

use super::daemons;
use crate::api::status::Status;
use crate::cli::client::Client;
use crate::cli::failure::{Exit, Failure};

/// Interval of queries for the agent's status.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the agent's status; `None` if it does not answer.
pub(super) async fn status(socket: &Path) -> Option<Status> {
    Client::new(socket).get("/v1/status").await.ok()
}

/// Returns the reason why the agent is not in force yet; `None` if it is.
pub(super) fn lacks(status: &Status) -> Option<String> {
    let say = |text: &str| Some(text.to_owned());
    if status.dataplane.mode != "program" {
        return Some(format!(
            "it runs with --kernel {}: --kernel program is required (TORTIE_KERNEL in \
             /etc/tortie/tortie.env)",
            status.dataplane.mode
        ));
    }
    if status.policy.mode != "program" {
        return Some(format!("it writes no packet rules (--policy {})", status.policy.mode));
    }
    if let Some(frozen) = &status.store.frozen {
        return Some(format!("it is frozen: {frozen}"));
    }
    if status.verdict == "starting" {
        return say("it starts");
    }
    if status.bgp.graceful_restart != "idle" {
        return say("BGP peers have not sent all their routes yet");
    }
    if status.routes.stale + status.routes.pending > 0 {
        return Some(format!(
            "{}, {} pending",
            counted(status.routes.stale, "stale route"),
            status.routes.pending
        ));
    }
    if status.routes.failed > 0 {
        return Some(format!("the kernel refuses {}", counted(status.routes.failed, "route")));
    }
    if status.policy.table.is_none() || !status.policy.in_sync {
        return say("not all of its packet rules are in force");
    }
    if status.policy.failed > 0 {
        return Some(format!("{} not in the desired state", counted(status.policy.failed, "endpoint")));
    }
    None
}

/// Waits until the agent has everything in force.
///
/// # Errors
/// If that takes too long; the text says what is missing.
pub(super) async fn settle(socket: &Path, wait: Duration) -> Result<Status, Failure> {
    let begin = Instant::now();
    loop {
        let missing = match status(socket).await {
            None => "it does not answer".to_owned(),
            Some(status) => match lacks(&status) {
                None => return Ok(status),
                Some(missing) => missing,
            },
        };
        if begin.elapsed() > wait {
            let text = format!(
                "our agent is not in force after {} s: {missing}. Traffic still uses the routes and rules \
                 that Calico left: see `tortie status`, then `tortie migrate adopt` again, or `tortie \
                 migrate rollback`",
                wait.as_secs()
            );
            return Err(Failure::new(Exit::TimedOut, "not-settled", text));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns the processes of Tortie's agents in this network namespace that may write to the kernel.
fn agents() -> Vec<i32> {
    let Ok(here) = std::fs::read_link("/proc/self/ns/net") else { return Vec::new() };
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let of = |file: &str| format!("/proc/{pid}/{file}");
        let words = std::fs::read(of("cmdline")).unwrap_or_default();
        let environment = std::fs::read(of("environ")).unwrap_or_default();
        let has = |text: &[u8], word: &[u8]| text.split(|b| *b == 0).any(|w| w == word);
        let is_agent = std::fs::read_to_string(of("comm")).is_ok_and(|name| name.trim_end() == "tortie")
            && has(&words, b"agent");
        let observes = has(&words, b"observe")
            || has(&words, b"--kernel=observe")
            || has(&environment, b"TORTIE_KERNEL=observe");
        is_agent && !observes && std::fs::read_link(of("ns/net")).is_ok_and(|there| there == here)
    })
    .collect()
}

/// True if an agent runs here that may write to the kernel.
pub(super) fn runs() -> bool {
    !agents().is_empty()
}

/// Stops the agent in a way that peers retain its routes, and waits until it has ended. Returns a
/// description.
///
/// # Errors
/// If it does not end.
pub(super) fn stop() -> Result<String, Failure> {
    /// The agent closes its sessions first.
    const ENDS: Duration = Duration::from_secs(20);
    let all = agents();
    if all.is_empty() {
        return Ok("it does not run".to_owned());
    }
    let begin = Instant::now();
    let mut units = Vec::new();
    for pid in &all {
        let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        match daemons::supervisor(&cgroup).1.filter(|unit| unit.starts_with("tortie")) {
            // The service manager would restart a killed process.
            Some(unit) => {
                daemons::systemctl(&["stop", &unit])?;
                units.push(unit);
            }
            None => {
                if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            }
        }
    }
    let runs = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
        })
    };
    while let Some(pid) = all.iter().find(|pid| runs(pid)) {
        if begin.elapsed() > ENDS {
            let text = format!("our agent (pid {pid}) does not end: kill it, then run rollback again");
            return Err(Failure::new(Exit::TimedOut, "agent-runs", text));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    match units.first() {
        Some(unit) => {
            Ok(format!("{unit} is stopped; `systemctl disable {unit}` keeps it so at the next boot"))
        }
        None => Ok("it has ended".to_owned()),
    }
}
