//! The tools that read and write what Felix wrote: `iptables-save`, `iptables-restore` and `ipset`, as they are on this host.

use super::rules::Listing;
use crate::cli::failure::{Exit, Failure};
use crate::foreign::{Backend, tools};

/// Seconds to wait for the lock of the old tables.
const LOCK: &str = "5";

/// Packet rules of one backend and family, as they were printed.
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

    /// As people call the tool that writes them.
    pub(super) fn tool(&self) -> String {
        self.backend.tool(self.v4).to_owned()
    }
}

/// All that has rules, of both backends and families.
///
/// # Errors
/// When rules are there that no tool can print: they could be Felix's.
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

/// Writes rules beside those that are there, each table in one transaction.
///
/// # Errors
/// When the tool is not there or refuses; what was refused changed nothing in that table.
pub(super) fn restore(backend: Backend, v4: bool, text: &str) -> Result<(), Failure> {
    match tools::of(backend, v4, "restore", &["--noflush", "-w", LOCK], Some(text)).map_err(wrong)? {
        Some(_) => Ok(()),
        None => {
            let text = format!("there is no {}-restore: install iptables", backend.tool(v4));
            Err(Failure::new(Exit::Partial, "no-tool", text))
        }
    }
}

/// Felix's sets and those of others, as `ipset save` prints them; nothing where the kernel has none or nobody made any.
///
/// # Errors
/// When the tool refuses.
pub(super) fn saved_sets() -> Result<String, Failure> {
    Ok(tools::saved_sets().map_err(wrong)?.unwrap_or_default())
}

/// Runs lines of `ipset restore`; what is there already is left as it is.
///
/// # Errors
/// When the tool is not there or refuses.
pub(super) fn restore_sets(text: &str) -> Result<(), Failure> {
    match tools::run("ipset", &["-exist", "restore"], Some(text)).map_err(wrong)? {
        Some(_) => Ok(()),
        None => Err(Failure::new(Exit::Partial, "no-tool", "there is no ipset: install it")),
    }
}

/// Removes sets; one that is gone is gone.
///
/// # Errors
/// When one is in use.
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
