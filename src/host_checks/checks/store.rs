//! The store.

use crate::api::codes;
use crate::host_checks::host::{Command, Host};
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::{StoreState, Unreadable};

pub(in crate::host_checks) fn answers(host: &Host<'_>, results: &mut Results) {
    if host.command == Command::MigrateCheck {
        of_calico(host, results);
    }
    match &host.now.store {
        Some(Ok(store)) if host.command == Command::Doctor => {
            let text = format!("store {} answers, revision {}", store.describe, store.revision);
            results.ok(&codes::CHECK_STORE, text);
        }
        Some(Err(error)) if is_absent(error) => {}
        Some(Err(Unreadable { denied: true, text })) => {
            results.not_tried(&codes::CHECK_STORE, text.clone(), None);
        }
        Some(Err(Unreadable { text, .. })) if host.command == Command::Doctor => {
            let fix = "name the right one with --datastore (env TORTIE_DATASTORE)";
            results.fail(&codes::STORE_AWAY, text.clone(), fix);
        }
        _ => {}
    }
}

/// Calico's store, with all of its keys.
fn of_calico(host: &Host<'_>, results: &mut Results) {
    match &host.now.migration.store {
        None => {}
        Some(Ok(store)) => {
            let (keys, revision) = (store.entries.len(), store.revision);
            let text = format!("store {} answers, {keys} keys at revision {revision}", store.describe);
            results.ok(&codes::CHECK_STORE, text);
        }
        Some(Err(text)) => {
            let fix = "name Calico's etcd with --datastore (env TORTIE_DATASTORE), e.g. etcd://10.0.0.1:2379";
            results.fail(&codes::STORE_AWAY, text.clone(), fix);
        }
    }
}

/// A SQLite store that the first start makes.
pub(in crate::host_checks) fn file(host: &Host<'_>, results: &mut Results) {
    if let Some(Err(error)) = &host.now.store
        && is_absent(error)
    {
        let fix = "the agent makes it when it starts; or name one with --datastore";
        results.warn(&codes::CHECK_STORE_ABSENT, error.text.clone(), fix);
    }
}

fn is_absent(error: &Unreadable) -> bool {
    error.text.starts_with("there is no store at")
}

pub(in crate::host_checks) fn pools(host: &Host<'_>, results: &mut Results) {
    if state(host).is_some_and(|store| store.pools == 0) {
        let fix = "tortie ipam configure, or tortie store put a pool: see `tortie ipam pools --help`";
        results.warn(&codes::NO_POOL, "the store has no pool: no workload gets an address", fix);
    }
}

pub(in crate::host_checks) fn ready(host: &Host<'_>, results: &mut Results) {
    let ready = state(host).and_then(|store| store.ready.as_deref());
    if let Some(ready) = ready.filter(|ready| *ready != "true") {
        let text = format!("/calico/v1/Ready is `{ready}`: agents keep what is in force and follow nothing");
        results.fail(&codes::FROZEN, text, "tortie store put /calico/v1/Ready true, when the store is whole");
    }
}

fn state<'a>(host: &Host<'a>) -> Option<&'a StoreState> {
    host.now.store.as_ref()?.as_ref().ok()
}
