//! Checks of the Linux capabilities of the agent, or of a process that starts one.

use crate::api::codes;
use crate::host_checks::host::{Command, Host};
use crate::host_checks::result::Results;

/// Number of `CAP_NET_BIND_SERVICE` in capabilities(7).
const CAP_NET_BIND_SERVICE: u8 = 10;
/// Number of `CAP_NET_ADMIN` in capabilities(7).
const CAP_NET_ADMIN: u8 = 12;

pub(in crate::host_checks) fn capabilities(host: &Host<'_>, results: &mut Results) {
    match host.command {
        Command::Status => of_the_agent(host, results),
        Command::Doctor | Command::MigrateCheck => of_a_started_agent(host, results),
    }
}

fn of_the_agent(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    let Some(effective) = now.capabilities else { return };
    let checked = [
        (role.programs, CAP_NET_ADMIN, "CAP_NET_ADMIN", "neither routes nor rules can be written"),
        (role.low_port, CAP_NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE", "the BGP port cannot be opened"),
    ];
    for (_, bit, name, effect) in checked.into_iter().filter(|(checked, ..)| *checked) {
        if (effective >> bit) & 1 == 0 {
            let text = format!(
                "the agent runs without it: {effect}; add it to the service (AmbientCapabilities={name} in \
                 the unit)"
            );
            results.problem(codes::MISSING_CAPABILITY.problem(name, name, text));
        }
    }
}

/// Capabilities that the agent needs: number in capability.h, name and use.
const NEEDED: [(u8, &str, &str); 5] = [
    (12, "CAP_NET_ADMIN", "routes, rules and TCP MD5"),
    (10, "CAP_NET_BIND_SERVICE", "TCP port 179"),
    (13, "CAP_NET_RAW", "unnumbered peers, arrival of workloads by live migration"),
    (21, "CAP_SYS_ADMIN", "the agent's helper, which enters network namespaces"),
    (19, "CAP_SYS_PTRACE", "the agent's helper, which finds the network namespaces of processes"),
];

fn of_a_started_agent(host: &Host<'_>, results: &mut Results) {
    let Some(held) = host.now.capabilities else {
        return results.not_tried(
            &codes::CHECK_CAPABILITIES,
            "the capabilities of this process cannot be read",
            None,
        );
    };
    let missing: Vec<_> = NEEDED.iter().filter(|(bit, ..)| held >> bit & 1 == 0).collect();
    if missing.is_empty() {
        return results.ok(
            &codes::CHECK_CAPABILITIES,
            "capabilities: an agent that is started from here has what it needs",
        );
    }
    // Usually an operator runs this command, and systemd starts the agent.
    for (_, name, use_for) in missing {
        let text = format!("{name} is missing here ({use_for}): an agent that is started from here lacks it");
        results.warn(
            &codes::MISSING_CAPABILITY,
            text,
            "sudo tortie doctor; systemd starts the agent with all it needs",
        );
    }
}
