//! Checks for other routing and policy daemons, their rules, and NetworkManager.

use crate::api::codes;
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;
use tortie_config::counted;

pub(in crate::host_checks) fn running(host: &Host<'_>, results: &mut Results) {
    for rival in &host.now.other_daemons {
        let text = format!(
            "{} runs (pid {}): two daemons would write the same routes and rules",
            rival.name, rival.pid
        );
        let fix = match rival.name.as_str() {
            "bgpd" => "stop it before the agent starts: systemctl disable --now bgpd",
            _ => {
                "tortie migrate check, then tortie migrate adopt, which takes over without an interruption \
                 of traffic"
            }
        };
        results.fail(&codes::CHECK_OTHER_DAEMON, text, fix);
    }
}

pub(in crate::host_checks) fn felix_rules(host: &Host<'_>, results: &mut Results) {
    let fix = "tortie migrate adopt removes them when ours are in force, without an interruption of traffic";
    for table in &host.now.felix_tables {
        let text = format!("nftables has Felix's table {table}, active in addition to ours");
        results.fail(&codes::CHECK_FELIX_RULES, text, fix);
    }
    for (rules, tool) in host.now.felix_rules.iter().zip(["iptables-legacy", "iptables-nft"]) {
        match rules {
            Some(0) => {}
            Some(n) => {
                let text = format!(
                    "{tool} has {} of Felix (cali-*), active in addition to ours",
                    counted(n, "rule")
                );
                results.fail(&codes::CHECK_FELIX_RULES, text, fix);
            }
            None => results.not_tried(
                &codes::CHECK_FELIX_RULES,
                format!("the rules of {tool} cannot be listed: try it as root"),
                None,
            ),
        }
    }
}

pub(in crate::host_checks) fn network_manager(host: &Host<'_>, results: &mut Results) {
    match host.now.network_manager {
        None => {}
        Some(true) => results.ok(&codes::CHECK_NETWORK_MANAGER, "NetworkManager runs and leaves cali* alone"),
        Some(false) => results.warn(
            &codes::CHECK_NETWORK_MANAGER,
            "NetworkManager runs and may take over workload interfaces (cali*) and tunl0",
            "unmanaged-devices=interface-name:cali*;interface-name:tunl* below [keyfile] in \
             /etc/NetworkManager/conf.d/tortie.conf, then systemctl reload NetworkManager",
        ),
    }
}
