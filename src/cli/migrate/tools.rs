//! Runs the tools for Felix's rules and sets on this host: `iptables-save`, `iptables-restore` and `ipset`.

use super::rules::Listing;
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
    for backend in Backend::ALL {
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

fn wrong(text: String) -> Failure {
    Failure::new(Exit::Partial, "tool", text)
}
