//! Checks of the store: reachability, data model, damage, pools and free addresses.

use tortie_config::counted;
use tortie_net::Cidr;

use crate::api::codes::{self, Code};
use crate::api::problem::Problem;
use crate::host_checks::host::{Command, Host};
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::{StoreState, Unreadable};
use tortie_store::{CALICO_3, CALICO_3_NEXT, Purpose};

pub(in crate::host_checks) fn answers(host: &Host<'_>, results: &mut Results) {
    if host.command == Command::MigrateCheck {
        of_calico(host, results);
    }
    if let Some(text) = damage(host) {
        let fix = "save what can be read and import it into a new file: \"A damaged SQLite store\" in docs/how-to/restore.md";
        results.fail(&codes::STORE_DAMAGED, text, fix);
        return;
    }
    match &host.now.store {
        Some(Ok(StoreState { no_workload: Some((code, text)), .. }))
            if *code == codes::STORE_READ_ONLY.name =>
        {
            let fix = "fix the store; agents keep their last good state";
            results.fail(&codes::STORE_READ_ONLY, text.clone(), fix);
        }
        Some(Ok(store)) if host.command == Command::Doctor => {
            let text = format!("store {} answers, revision {}", store.describe, store.revision);
            results.ok(&codes::CHECK_STORE, text);
        }
        Some(Err(error)) if is_absent(error) => {}
        Some(Err(Unreadable { denied: true, text, .. })) => {
            results.not_tried(&codes::CHECK_STORE, text.clone(), None);
        }
        Some(Err(Unreadable { text, .. })) if host.command == Command::Doctor => {
            let fix = "name the right one with --datastore (env TORTIE_DATASTORE)";
            results.fail(&codes::STORE_AWAY, text.clone(), fix);
        }
        _ => {}
    }
}

/// Returns the damage of the store's file, as found by this process or the agent.
fn damage(host: &Host<'_>) -> Option<String> {
    let code = codes::STORE_DAMAGED.name;
    match host.now.store.as_ref()? {
        Err(Unreadable { damaged: true, text, .. }) => Some(text.clone()),
        Ok(StoreState { no_workload: Some((found, text)), .. }) if found == code => Some(text.clone()),
        _ => {
            let agent = host.now.agent.as_ref()?.as_ref().ok()?;
            agent.problems.iter().find(|problem| problem.code == code).map(|problem| problem.text.clone())
        }
    }
}

/// Checks the store's data model; reported first, since nothing else matters if it is wrong.
pub(in crate::host_checks) fn data_model(host: &Host<'_>, results: &mut Results) {
    if host.command == Command::MigrateCheck && !Purpose::Adopt.writes_calico_3() {
        if state(host).is_some_and(|store| store.calico_3) {
            let text = format!("{CALICO_3}, which {} does not take over", Purpose::Adopt.name());
            results.fail(&codes::CALICO_3, text, CALICO_3_NEXT);
        }
        return;
    }
    if let Some(problem) = agent_problem(host, &codes::CALICO_3) {
        results.fail(&codes::CALICO_3, problem.text.clone(), problem.next.clone());
    }
}

/// Returns a problem of the running agent.
fn agent_problem<'a>(host: &Host<'a>, code: &Code) -> Option<&'a Problem> {
    let Some(Ok(agent)) = &host.now.agent else { return None };
    agent.problems.iter().find(|problem| problem.code == code.name)
}

/// Reports a freeze of the agent because of workloads or the host name that do not match the store.
pub(in crate::host_checks) fn frozen(host: &Host<'_>, results: &mut Results) {
    for code in
        [&codes::UNKNOWN_WORKLOADS, &codes::HOST_RENAMED, &codes::DUPLICATE_NODE, &codes::STORE_REWOUND]
    {
        if let Some(problem) = agent_problem(host, code) {
            results.fail(code, problem.text.clone(), problem.next.clone());
        }
    }
}

/// Checks Calico's store with all its keys.
fn of_calico(host: &Host<'_>, results: &mut Results) {
    match &host.now.migration.store {
        None => {}
        Some(Ok(store)) => {
            let (keys, revision) = (store.keys, store.revision);
            let text =
                format!("store {} answers, {} at revision {revision}", store.describe, counted(keys, "key"));
            results.ok(&codes::CHECK_STORE, text);
        }
        Some(Err(text)) => {
            let fix = "name Calico's etcd with --datastore (env TORTIE_DATASTORE), e.g. etcd://10.0.0.1:2379";
            results.fail(&codes::STORE_AWAY, text.clone(), fix);
        }
    }
}

/// Reports a SQLite store that does not exist yet.
pub(in crate::host_checks) fn file(host: &Host<'_>, results: &mut Results) {
    if let Some(Err(error)) = &host.now.store
        && is_absent(error)
    {
        let fix = "the agent creates it when it starts; or name another one with --datastore";
        results.warn(&codes::CHECK_STORE_ABSENT, error.text.clone(), fix);
    }
}

fn is_absent(error: &Unreadable) -> bool {
    error.text.starts_with("there is no store at")
}

pub(in crate::host_checks) fn pools(host: &Host<'_>, results: &mut Results) {
    if state(host).is_some_and(|store| store.pools == 0) {
        let fix = "tortie ipam configure, or tortie store put a pool: see `tortie ipam pools --help`";
        results.warn(&codes::NO_POOL, "the store has no pool: no workload can get an address", fix);
    }
}

/// Checks for pools that overlap the addresses or connected networks of hosts: IPAM does not allocate these
/// addresses, and a block that would cut a host off is not announced.
pub(in crate::host_checks) fn pool_networks(host: &Host<'_>, results: &mut Results) {
    let Host { now, role, .. } = *host;
    let mut report = |pool: &Cidr, what: String| {
        let text = pool_overlap_text(pool, &what);
        host.report(
            codes::POOL_OVER_NETWORK.problem(&pool.to_string(), format!("pool {pool}"), text),
            results,
        );
    };
    let store = state(host);
    let overlaps = store.map_or(&[][..], |store| &store.overlaps);
    for (pool, what) in overlaps {
        report(pool, what.clone());
    }
    let pools = role.pools.iter().chain(store.into_iter().flat_map(|store| &store.prefixes));
    for pool in pools.filter(|pool| overlaps.iter().all(|(other, _)| other != *pool)) {
        let on = now.networks.iter().find(|(interface, network)| {
            // Networks of hosts are in the store and already checked.
            network.overlaps(pool) && !role.uplinks.contains(interface)
        });
        if let Some((interface, network)) = on {
            report(pool, format!("{network}, which this host is connected to by {interface}"));
        }
    }
}

/// Describes the consequences of a pool's overlap.
#[must_use]
pub fn pool_overlap_text(pool: &Cidr, what: &str) -> String {
    format!(
        "{pool} overlaps {what}: machines outside of the data model may have its addresses, so no address \
         of that part is allocated, and a block there is announced only if that cuts no host off; create a \
         pool that overlaps no network"
    )
}

/// Checks whether IPAM can still allocate an address.
pub(in crate::host_checks) fn addresses(host: &Host<'_>, results: &mut Results) {
    let no_workload = state(host).and_then(|store| store.no_workload.as_ref());
    if let Some((_, text)) = no_workload.filter(|(code, _)| *code == codes::NO_ADDRESSES.name) {
        results.fail(
            &codes::NO_ADDRESSES,
            text.clone(),
            "tortie ipam pool create ADDRESS/LENGTH, or tortie ipam check",
        );
    }
}

pub(in crate::host_checks) fn ready(host: &Host<'_>, results: &mut Results) {
    let ready = state(host).and_then(|store| store.ready.as_deref());
    if let Some(ready) = ready.filter(|ready| *ready != "true") {
        let text =
            format!("/calico/v1/Ready is `{ready}`: agents keep the state in force and follow no changes");
        results.fail(
            &codes::FROZEN,
            text,
            "tortie store put /calico/v1/Ready true, when the store is complete",
        );
    }
}

fn state<'a>(host: &Host<'a>) -> Option<&'a StoreState> {
    host.now.store.as_ref()?.as_ref().ok()
}
