//! Checks before a migration from Calico: an earlier migration, Calico's daemons, BGP restarts in progress,
//! its kernel objects, its settings.

use std::collections::BTreeMap;

use tortie_config::Dialect;
use tortie_config::resource::Setting;

use super::data_model::few;
use crate::api::codes;
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::{FELIX_FILE, MigrationPhase};

/// Checks for a migration that was started, and its phase.
pub(in crate::host_checks) fn state(host: &Host<'_>, results: &mut Results) {
    let code = &codes::CHECK_MIGRATION_STATE;
    match &host.now.migration.state {
        None => {}
        Some(Ok(phase)) => {
            let text = format!("this host was migrated before: {}", phase.as_str());
            match phase {
                MigrationPhase::RolledBack | MigrationPhase::Adopted => results.ok(code, text),
                MigrationPhase::Adopting => {
                    let fix = "tortie migrate adopt continues it, tortie migrate rollback undoes it";
                    results.warn(code, text, fix);
                }
                MigrationPhase::RollingBack => results.fail(code, text, "tortie migrate rollback"),
            }
        }
        Some(Err(text)) => results.not_tried(code, text.clone(), None),
    }
}

pub(in crate::host_checks) fn daemons(host: &Host<'_>, results: &mut Results) {
    let running = &host.now.migration.daemons;
    if running.is_empty() {
        let text = "no daemon of Calico runs in this network namespace";
        results.ok(&codes::CHECK_DAEMONS, text);
        return;
    }
    let kept: Vec<String> = running
        .iter()
        .map(|daemon| match (&daemon.container, &daemon.unit) {
            (Some(container), _) => format!("{} (pid {}, container {container})", daemon.role, daemon.pid),
            (None, Some(unit)) => format!("{} (pid {}, {unit})", daemon.role, daemon.pid),
            (None, None) => format!("{} (pid {})", daemon.role, daemon.pid),
        })
        .collect();
    let (run, them) = if running.len() == 1 { ("runs", "it") } else { ("run", "them") };
    let text =
        format!("{} {run}; adopt ends {them} with: {}", kept.join(", "), host.now.migration.suggested_stop);
    results.ok(&codes::CHECK_DAEMONS, text);
}

/// Checks whether peers keep this host's routes when BIRD ends.
pub(in crate::host_checks) fn restarts(host: &Host<'_>, results: &mut Results) {
    let found = &host.now.migration.restarts;
    if !found.under_way.is_empty() {
        let text = format!(
            "{}: peers drop the routes of this host if BIRD is ended now",
            found.under_way.join("; ")
        );
        let fix = "adopt waits for it; see `birdc show status` and `birdc show protocols all`";
        results.warn(&codes::CHECK_RESTARTING, text, fix);
    }
    if !found.forgetful.is_empty() {
        let names: Vec<&str> = found.forgetful.iter().map(String::as_str).collect();
        let text = format!(
            "{} do not support graceful restart: they drop the routes of this host between the end of BIRD \
             and the connection of Tortie",
            few(&names)
        );
        let fix = "configure graceful restart (as a helper) there, or migrate this host when an \
                   interruption is acceptable";
        results.warn(&codes::CHECK_NO_GRACEFUL_RESTART, text, fix);
    }
    if let Some(why) = &found.unseen {
        let fix = "name BIRD's socket with --bird-socket (env TORTIE_BIRD_SOCKET)";
        results.not_tried(
            &codes::CHECK_RESTARTING,
            format!("whether BIRD or a peer restarts: {why}"),
            Some(fix),
        );
    }
}

/// Checks the routes, rules and sets of Calico in the kernel.
pub(in crate::host_checks) fn kernel(host: &Host<'_>, results: &mut Results) {
    let there = match &host.now.migration.kernel {
        None => return,
        Some(Ok(there)) => there,
        Some(Err(text)) => {
            let fix =
                "run it as root, with iptables and ipset installed, and nftables for Felix's own tables";
            return results.fail(&codes::CHECK_KERNEL_UNREAD, text.clone(), fix);
        }
    };
    results.ok(&codes::CHECK_KERNEL_OBJECTS, format!("the kernel has {}", there.objects));
    for (tool, why) in &there.drops {
        let text = format!("{tool}: {why}; only Felix's rules let packets of workloads pass it");
        let fix = format!(
            "{tool} -A FORWARD -i cali+ -j ACCEPT; {tool} -A FORWARD -o cali+ -j ACCEPT (as your firewall keeps rules)"
        );
        results.fail(&codes::CHECK_FORWARD_DROP, text, fix);
    }
    if let Some(tool) = &there.hidden {
        let text = format!("{tool} cannot list all tables: rules of Felix may be among them");
        results.warn(&codes::CHECK_RULES_HIDDEN, text, "nft list ruleset");
    }
}

/// Checks for data planes of Calico other than routes and packet rules, and for tunnel devices that another
/// configuration made.
pub(in crate::host_checks) fn data_planes(host: &Host<'_>, results: &mut Results) {
    let Some(Ok(there)) = &host.now.migration.kernel else { return };
    for (text, fix) in &there.others {
        results.fail(&codes::CHECK_OTHER_DATAPLANE, text.clone(), fix.clone());
    }
    for text in &there.misfits {
        let fix = "compare FelixConfiguration and the Node with `ip -d link show type vxlan`; Calico makes the device \
                   again when its settings change";
        results.fail(&codes::CHECK_TUNNEL_DEVICE, text.clone(), fix);
    }
}

/// Checks Felix's environment variables and file, which override the store; Tortie reads neither.
pub(in crate::host_checks) fn felix_settings(host: &Host<'_>, results: &mut Results) {
    let found: &BTreeMap<String, String> = &host.now.migration.felix_environment;
    // Variables that only locate the store, or that change nothing in Tortie.
    let quiet =
        ["ETCD", "DATASTORE", "HOSTNAME", "FELIXHOSTNAME", "LOG", "HEALTH", "PROMETHEUS", "USAGE", "TYPHA"];
    let matter = |name: &str| !quiet.iter().any(|part| name.trim_start_matches("FELIX_").starts_with(part));
    let by_name: Vec<(String, &str)> = found
        .iter()
        .filter(|(name, _)| matter(name))
        .map(|(name, value)| {
            let plain = name.trim_start_matches("FELIX_");
            let known = Setting::NAMES.iter().find(|setting| setting.eq_ignore_ascii_case(plain));
            (known.map_or_else(|| plain.to_owned(), |setting| (*setting).to_owned()), value.as_str())
        })
        .collect();
    if !by_name.is_empty() {
        let pairs: Vec<String> = by_name.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = format!(
            "Felix has settings from its environment, which override the store: {}",
            pairs.join(", ")
        );
        let puts: Vec<String> = by_name
            .iter()
            .filter(|(name, _)| Setting::NAMES.contains(&name.as_str()))
            .map(|(name, value)| format!("tortie store put /calico/v1/host/NODE/config/{name} {value}"))
            .collect();
        let fix = if is_calico_3(host) {
            "write those that are needed to the FelixConfiguration node.NODE (calicoctl apply)".to_owned()
        } else if puts.is_empty() {
            "none of them is Tortie's: see docs/how-to/migrate.md".to_owned()
        } else {
            puts.join("; ")
        };
        results.warn(&codes::CHECK_FELIX_ENVIRONMENT, text, fix);
    }
    if host.now.migration.felix_file {
        let text = format!("{FELIX_FILE} has settings, which Tortie does not read");
        let fix = match is_calico_3(host) {
            true => "write those that are needed to the FelixConfiguration node.NODE",
            false => "write those that are needed to the store: /calico/v1/host/NODE/config/NAME",
        };
        results.warn(&codes::CHECK_FELIX_FILE, text, fix);
    }
}

fn is_calico_3(host: &Host<'_>) -> bool {
    matches!(&host.now.migration.store, Some(Ok(store)) if store.dialect == Dialect::V3)
}
