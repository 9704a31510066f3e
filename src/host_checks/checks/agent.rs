//! Checks of the agent, its socket, and the problems that it reports.

use crate::api::codes;
use crate::api::status::Landlock;
use crate::host_checks::fix;
use crate::host_checks::host::{Command, Host};
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::Unreadable;

pub(in crate::host_checks) fn group(host: &Host<'_>, results: &mut Results) {
    if host.now.group {
        results.ok(&codes::CHECK_GROUP, "group tortie exists: its members may use the agent's socket");
    } else {
        results.warn(
            &codes::CHECK_GROUP,
            "group tortie does not exist: only root may use the agent's socket",
            "groupadd --system tortie",
        );
    }
}

pub(in crate::host_checks) fn verdict(host: &Host<'_>, results: &mut Results) {
    match &host.now.agent {
        Some(Ok(status)) => {
            let text = format!("agent {} runs: {}: {}", status.version, status.verdict, status.summary);
            if status.verdict == "ready" {
                results.ok(&codes::CHECK_AGENT, text);
            } else {
                results.warn(&codes::CHECK_AGENT, text, "tortie status");
            }
        }
        Some(Err(Unreadable { denied: true, text, .. })) => {
            results.warn(&codes::CHECK_AGENT, text.clone(), "usermod -aG tortie USER, then log in again");
        }
        _ => results.ok(&codes::CHECK_AGENT, "no agent runs yet"),
    }
}

pub(in crate::host_checks) fn socket(host: &Host<'_>, results: &mut Results) {
    match host.now.socket {
        Some(socket) if !socket.is_socket => {
            results.fail(
                &codes::CHECK_SOCKET,
                "another kind of file is at the path of the agent's socket",
                "remove it, or give another --socket",
            );
        }
        Some(socket) if socket.mode & 0o007 != 0 => {
            let text = format!("every user may use the agent's socket: it has mode {:o}", socket.mode);
            results.warn(&codes::CHECK_SOCKET, text, "chmod 0660 on it, or restart the agent");
        }
        Some(socket) if host.now.group && !socket.of_group && matches!(&host.now.agent, Some(Ok(_))) => {
            results.warn(
                &codes::CHECK_SOCKET,
                "the agent's socket does not belong to group tortie",
                "systemctl restart tortie",
            );
        }
        _ => {}
    }
}

/// Checks the privileges that the agent's process has dropped. An agent of an earlier version drops fewer and
/// does not report them.
pub(in crate::host_checks) fn protections(host: &Host<'_>, results: &mut Results) {
    let Some(Ok(status)) = &host.now.agent else { return };
    let protections = &status.protections;
    let text = format!("process of the agent: {}", protections.text());
    let fix = match protections.landlock {
        Landlock::Enforced | Landlock::Partial => return results.ok(&codes::CHECK_PROTECTIONS, text),
        Landlock::Unsupported => {
            "a kernel from 5.13 on with Landlock (CONFIG_SECURITY_LANDLOCK, and landlock in lsm=)"
        }
        Landlock::Failed => "journalctl -u tortie has the reason",
        Landlock::Off => "start it without --no-sandbox",
    };
    results.warn(&codes::CHECK_PROTECTIONS, text, fix);
}

/// Repeats the problems that the agent leaves to `doctor`, with their fix: only the agent knows its uplinks
/// and its own capabilities.
pub(in crate::host_checks) fn problems(host: &Host<'_>, results: &mut Results) {
    for problem in host.reported() {
        // The check of the store reports these problems.
        let store = host.now.store.as_ref().and_then(|store| store.as_ref().ok());
        let read_only = store.and_then(|store| store.no_workload.as_ref());
        let by_store = (host.command == Command::MigrateCheck && problem.code == codes::STORE_AWAY.name)
            || read_only.is_some_and(|(code, _)| *code == problem.code);
        if !by_store {
            results.problem(fix::with_fix(problem.clone()));
        }
    }
}
