//! Stop of the agent. If the whole host shuts down, all sessions are drained first, so that neighbours select
//! other paths (RFC 8326).
//!
//! Kernel state is the same after each kind of stop; it is not decided here.
//!
//! ```text
//!   SIGTERM -> does the host shut down? --no--> sessions close for a graceful restart, neighbours keep
//! routes
//!                  | yes
//!                  v
//!              announce with GRACEFUL_SHUTDOWN -> all sent, or 5 s -> 1 s -> NOTIFICATION: neighbours
//! withdraw at once
//! ```

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::{Drain, State};
use tortie_config::counted;

use super::Agent;
use crate::agent::handle::ask;
use crate::speaker::{SpeakerHandle, SpeakerView, ToSpeaker};

/// Status text of a stop without a host shutdown.
const GRACEFUL_STOP: &str = "sessions close for a graceful restart, routes stay";
/// Command line tool of the service manager, found in PATH.
const MANAGER: &str = "systemctl";
/// Maximum wait for the tool's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait until neighbours have received the announcements.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before the sessions end: networks beyond the neighbours converge while this host still forwards.
const CONVERGENCE_DELAY: Duration = Duration::from_secs(1);
/// Interval at which the neighbours' state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Agent {
    /// Handles SIGTERM: closes sessions so that graceful-restart helpers keep this host's routes, or drains
    /// them if the host shuts down. Kernel state stays.
    pub(super) async fn stop(&mut self) {
        self.stopping = true;
        self.notify.stopping("stopping");
        self.handle.set_ready(false);
        let host_stops = is_host_shutting_down(MANAGER).await;
        let what =
            if host_stops { "the host shuts down: sessions are drained, then closed" } else { GRACEFUL_STOP };
        tracing::info!(target: "tortie", "stopping: {what}");
        self.notify.stopping(&format!("stopping: {what}"));
        if let Some(speaker) = self.handle.speaker().get().filter(|_| host_stops) {
            drain(&speaker).await;
        }
        if let Some(docker) = self.docker.take() {
            docker.stop();
        }
        self.controllers.stop().await;
        self.stations.stop().await;
        // The kernel thread stops first: closing sessions remove their routes from the speaker, and those
        // routes must stay in the kernel.
        self.kernel.stop().await;
        self.speaker.stop(!host_stops, if host_stops { "host shuts down" } else { "agent stopping" }).await;
        let _ = std::fs::remove_file(&self.options.socket);
        tracing::info!(target: "tortie", "stopped");
        self.logs.finish();
    }
}

/// True if the service manager reports that the host shuts down or restarts; false in a container, where
/// there is no service manager.
async fn is_host_shutting_down(manager: &str) -> bool {
    let command = tokio::process::Command::new(manager)
        .arg("is-system-running")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    // The exit status is 1 for all states but `running`.
    match tokio::time::timeout(ANSWER_TIMEOUT, command).await {
        Ok(Ok(output)) => output.stdout.trim_ascii() == b"stopping",
        Ok(Err(_)) => false,
        Err(_) => {
            tracing::warn!(target: "tortie", "{manager} does not report whether the host shuts down: \
                                              assuming that it does not");
            false
        }
    }
}

/// Announces all routes with GRACEFUL_SHUTDOWN and waits until neighbours have received them. Sessions that
/// an operator has drained are not changed.
async fn drain(speaker: &Arc<SpeakerHandle>) {
    let begin = Instant::now();
    let as_usual = |view: &SpeakerView<'_>| {
        let peers = view.peers();
        let names = peers.iter().filter(|p| p.drain == Drain::Off).map(|p| p.name.to_string());
        (names.collect::<Vec<_>>(), peers.iter().any(|p| p.drain != Drain::Off))
    };
    let Ok((names, some_drained)) = ask(&**speaker, as_usual).await else { return };
    let orders = if some_drained { names.into_iter().map(Some).collect() } else { vec![None] };
    for name in orders {
        // If the speaker's inbox is full, these sessions end without a drain.
        let _ = speaker.send(ToSpeaker::Drain(name, Drain::Announce));
    }
    loop {
        let sessions_pending = |view: &SpeakerView<'_>| {
            let up = view.peers().into_iter().filter(|p| p.state == State::Established);
            let (taken, waiting): (Vec<_>, Vec<_>) = up.partition(|p| view.has_taken_all(&p.name));
            (taken.len(), waiting.len())
        };
        let Ok((taken, waiting)) = ask(&**speaker, sessions_pending).await else { return };
        if waiting == 0 || begin.elapsed() >= DRAIN_TIMEOUT {
            let took = begin.elapsed();
            tracing::info!(target: "tortie", "drained: all routes were sent to {} after {took:.1?}, \
                                              {waiting} still wait", counted(taken, "session"));
            if taken + waiting > 0 {
                tokio::time::sleep(CONVERGENCE_DELAY).await;
            }
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn only_a_manager_that_says_so_ends_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let mut answers = Vec::new();
        for (name, script) in [
            ("stops", "[ \"$*\" = is-system-running ] && echo stopping; exit 1"),
            ("runs", "echo running"),
            ("degraded", "echo degraded; exit 1"),
            ("lies", "echo not stopping; exit 1"),
            ("fails", "echo stopping >&2; exit 1"),
            ("hangs", "echo stopping; exec sleep 60"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            let begin = Instant::now();
            answers.push((name, is_host_shutting_down(path.to_str().unwrap()).await));
            assert!(begin.elapsed() < ANSWER_TIMEOUT * 3, "{name}");
        }
        answers.push(("absent", is_host_shutting_down("/nowhere/systemctl").await));
        let yes: Vec<&str> = answers.into_iter().filter(|(_, yes)| *yes).map(|(name, _)| name).collect();
        assert_eq!(yes, ["stops"]);
    }
}
