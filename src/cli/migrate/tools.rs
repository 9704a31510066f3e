//! Runs the tools for Felix's rules and sets on this host: `iptables-save`, `iptables-restore`, `ipset` and
//! `nft`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::rules::{Listing, SavedTable};
use crate::cli::failure::{Exit, Failure};
use crate::foreign::{Backend, tools};

/// Seconds to wait for the lock of iptables-legacy.
const LOCK: &str = "5";

/// Packet filter rules of one backend and family, as printed by the tool.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Saved {
    pub(super) backend: Backend,
    pub(super) v4: bool,
    pub(super) text: String,
}

impl Saved {
    pub(super) fn listing(&self) -> Listing {
        Listing::read(&self.text)
    }

    /// Returns the name of the tool that writes these rules.
    pub(super) fn tool(&self) -> String {
        self.backend.tool(self.v4).to_owned()
    }
}

/// Returns the rules of both backends and families.
///
/// # Errors
/// If rules exist that no installed tool can print, because they may be Felix's.
pub(super) fn saved_rules() -> Result<Vec<Saved>, Failure> {
    let mut all = Vec::new();
    for backend in Backend::IPTABLES {
        for v4 in [true, false] {
            match tools::saved_rules(backend, v4).map_err(wrong)? {
                Some(text) if text.is_empty() => {}
                Some(text) => all.push(Saved { backend, v4, text }),
                None if backend == Backend::Legacy => {
                    let tool = backend.tool(v4);
                    let text = format!(
                        "the kernel has tables of {tool} ({}), and there is no {tool}-save to read them: install iptables",
                        tools::legacy_tables(v4).join(", ")
                    );
                    return Err(Failure::new(Exit::Partial, "rules-unread", text));
                }
                None => {}
            }
        }
    }
    Ok(all)
}

/// Adds rules to the existing ones, each table in one transaction.
///
/// # Errors
/// If the tool is missing or fails; a failed table is unchanged.
pub(super) fn restore(backend: Backend, v4: bool, text: &str) -> Result<(), Failure> {
    match tools::of(backend, v4, "restore", &["--noflush", "-w", LOCK], Some(text)).map_err(wrong)? {
        Some(_) => Ok(()),
        None => {
            let text = format!("there is no {}-restore: install iptables", backend.tool(v4));
            Err(Failure::new(Exit::Partial, "no-tool", text))
        }
    }
}

/// Returns all sets as `ipset save` prints them; empty if the kernel has none.
///
/// # Errors
/// If the tool fails.
pub(super) fn saved_sets() -> Result<String, Failure> {
    Ok(tools::saved_sets().map_err(wrong)?.unwrap_or_default())
}

/// Runs lines of `ipset restore`; existing entries are kept.
///
/// # Errors
/// If the tool is missing or fails.
pub(super) fn restore_sets(text: &str) -> Result<(), Failure> {
    match tools::run("ipset", &["-exist", "restore"], Some(text)).map_err(wrong)? {
        Some(_) => Ok(()),
        None => Err(Failure::new(Exit::Partial, "no-tool", "there is no ipset: install it")),
    }
}

/// Removes sets; a missing set is no error.
///
/// # Errors
/// If a set is in use.
pub(super) fn remove_sets(names: &[String]) -> Result<(), Failure> {
    for name in names {
        match tools::run("ipset", &["destroy", name], None) {
            Err(said) if said.contains("does not exist") => {}
            other => drop(other.map_err(wrong)?),
        }
    }
    Ok(())
}

/// Returns Felix's own tables of nftables.
///
/// # Errors
/// If there are some and nft cannot print them.
pub(super) fn saved_tables() -> Result<Vec<SavedTable>, Failure> {
    let mut all = Vec::new();
    for (family, name) in tools::felix_tables().map_err(wrong)? {
        let Some(text) = tools::listed_table(family, &name).map_err(wrong)? else {
            let text = format!(
                "the kernel has Felix's table {family} {name}, and there is no nft to read it: install nftables"
            );
            return Err(Failure::new(Exit::Partial, "rules-unread", text));
        };
        all.push(SavedTable { family: family.to_owned(), name, text });
    }
    Ok(all)
}

/// Puts a table in the place of any of its name, in one transaction.
///
/// # Errors
/// If nft is missing or fails; nothing is changed then.
pub(super) fn restore_table(saved: &SavedTable) -> Result<(), Failure> {
    let links = tortie_kernel::links_named("").map_err(|error| wrong(error.to_string()))?;
    let devices: BTreeSet<String> = links.into_iter().collect();
    nft(&saved.restoration(&devices))
}

/// Removes a table: first all of its rules in one transaction, then what is left of it.
///
/// # Errors
/// If nft is missing or fails.
pub(super) fn remove_table(saved: &SavedTable) -> Result<(), Failure> {
    /// Upper bound of the time that a packet's evaluation takes, even if the kernel is preempted meanwhile: a
    /// packet must not look addresses up in a set that is being deleted.
    const UNDER_WAY: Duration = Duration::from_millis(20);
    let SavedTable { family, name, .. } = saved;
    nft(&format!("flush table {family} {name}\n"))?;
    std::thread::sleep(UNDER_WAY);
    nft(&format!("delete table {family} {name}\n"))
}

fn nft(text: &str) -> Result<(), Failure> {
    match tools::run("nft", &["-f", "-"], Some(text)).map_err(wrong)? {
        Some(_) => Ok(()),
        None => Err(Failure::new(Exit::Partial, "no-tool", "there is no nft: install nftables")),
    }
}

fn wrong(text: String) -> Failure {
    Failure::new(Exit::Partial, "tool", text)
}
