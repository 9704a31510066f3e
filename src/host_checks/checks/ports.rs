//! Checks of the TCP ports of BGP and HTTP.

use crate::api::codes;
use crate::host_checks::host::{Command, Host};
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::{CalicoDaemon, PORTS};

pub(in crate::host_checks) fn ports(host: &Host<'_>, results: &mut Results) {
    match host.command {
        Command::MigrateCheck => of_calico(host, results),
        Command::Doctor | Command::Status => of_the_agent(host, results),
    }
}

fn of_the_agent(host: &Host<'_>, results: &mut Results) {
    let runs = matches!(&host.now.agent, Some(Ok(_)));
    for port in PORTS {
        let what = if port == 179 { "BGP" } else { "health, metrics and the API" };
        let flag = if port == 179 { "--bgp-listen ADDR:PORT" } else { "--http ADDR:PORT" };
        match host.now.ports.get(&port).map(Vec::as_slice).unwrap_or_default() {
            [] => results.ok(&codes::CHECK_PORT, format!("tcp/{port} is free ({what})")),
            owners if runs && owners.iter().all(|o| o.name == "tortie" || o.pid == 0) => {
                results.ok(&codes::CHECK_PORT, format!("tcp/{port} is the agent's ({what})"));
            }
            owners => {
                let names: Vec<String> = owners
                    .iter()
                    .map(|o| if o.pid == 0 { o.name.clone() } else { format!("{} (pid {})", o.name, o.pid) })
                    .collect();
                let text = format!("tcp/{port} ({what}) is used by {}", names.join(", "));
                let fix = match owners.first() {
                    Some(o) if o.pid != 0 => format!("stop it (systemctl stop {}), or give {flag}", o.name),
                    _ => format!("stop it, or give {flag}"),
                };
                results.fail(&codes::CHECK_PORT_TAKEN, text, fix);
            }
        }
    }
}

/// Checks the ports before a migration: a Calico daemon releases its port when it ends, another process does
/// not.
fn of_calico(host: &Host<'_>, results: &mut Results) {
    let running = &host.now.migration.daemons;
    for (port, what) in PORTS.into_iter().zip(["BGP", "health and metrics"]) {
        let there = host.now.ports.get(&port).map(Vec::as_slice).unwrap_or_default();
        let strangers: Vec<String> = there
            .iter()
            .filter(|owner| running.iter().all(|daemon| daemon.pid != owner.pid) && owner.name != "tortie")
            .map(|owner| format!("{} (pid {})", owner.name, owner.pid))
            .collect();
        let mut held = running.iter().filter(|d| there.iter().any(|owner| owner.pid == d.pid));
        if !strangers.is_empty() {
            let fix = if port == 179 { "stop it, or give --bgp-listen" } else { "stop it, or give --http" };
            let text = format!(
                "tcp/{port} ({what}) is used by {}, which is not a daemon of Calico",
                strangers.join(", ")
            );
            results.fail(&codes::CHECK_PORT_TAKEN, text, fix);
        } else if let Some(CalicoDaemon { role, pid, .. }) = held.next() {
            let text = format!(
                "tcp/{port} ({what}) is used by {role} (pid {pid}), and free for Tortie when that ends"
            );
            results.ok(&codes::CHECK_PORT, text);
        } else {
            results.ok(&codes::CHECK_PORT, format!("tcp/{port} ({what}) is free, or used by Tortie"));
        }
    }
}
