//! The tools that read and write what Felix wrote: `iptables-save`, `iptables-restore` and `ipset`, as they are on this host.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::rules::Listing;
use crate::beside::{Backend, felix};
use crate::cli::failure::{Exit, Failure};

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

fn family(v4: bool) -> &'static str {
    if v4 { "iptables" } else { "ip6tables" }
}

/// All that has rules, of both backends and families.
///
/// # Errors
/// When rules are there that no tool can print: they could be Felix's.
pub(super) fn saved_rules() -> Result<Vec<Saved>, Failure> {
    let mut all = Vec::new();
    for backend in Backend::ALL {
        for v4 in [true, false] {
            // Asking would load the modules of the old tables.
            let tables = felix::legacy_tables(v4);
            let legacy = backend == Backend::Legacy;
            if legacy && tables.is_empty() {
                continue;
            }
            match run(backend, v4, "save", &[], None) {
                Ok(Some(text)) => all.push(Saved { backend, v4, text }),
                Ok(None) if legacy => {
                    let tool = backend.tool(v4);
                    let text = format!(
                        "the kernel has tables of {tool} ({}), and there is no {tool}-save to read them: install iptables",
                        tables.join(", ")
                    );
                    return Err(Failure::new(Exit::Partial, "rules-unread", text));
                }
                Ok(None) => {}
                Err(failure) => return Err(failure),
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
    match run(backend, v4, "restore", &["--noflush", "-w", LOCK], Some(text))? {
        Some(_) => Ok(()),
        None => {
            let text = format!("there is no {}-restore: install iptables", backend.tool(v4));
            Err(Failure::new(Exit::Partial, "no-tool", text))
        }
    }
}

/// Runs the tool of this backend; `None`: there is none.
fn run(
    backend: Backend,
    v4: bool,
    verb: &str,
    words: &[&str],
    input: Option<&str>,
) -> Result<Option<String>, Failure> {
    let by_name = format!("{}-{verb}", backend.tool(v4));
    if let Some(output) = call(&by_name, words, input)? {
        return Ok(Some(output));
    }
    // Hosts with one generation only have no other name for it.
    let plain = format!("{}-{verb}", family(v4));
    let Some(version) = call(family(v4), &["--version"], None)? else { return Ok(None) };
    let is_nft = version.contains("nf_tables");
    if is_nft != (backend == Backend::Nft) {
        return Ok(None);
    }
    call(&plain, words, input)
}

/// Felix's sets and those of others, as `ipset save` prints them; nothing where the kernel has none or nobody made any.
///
/// # Errors
/// When the tool refuses.
pub(super) fn saved_sets() -> Result<String, Failure> {
    Ok(call("ipset", &["save"], None)?.unwrap_or_default())
}

/// Runs lines of `ipset restore`; what is there already is left as it is.
///
/// # Errors
/// When the tool is not there or refuses.
pub(super) fn restore_sets(text: &str) -> Result<(), Failure> {
    match call("ipset", &["-exist", "restore"], Some(text))? {
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
        match call("ipset", &["destroy", name], None) {
            Err(failure) if failure.text.contains("does not exist") => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Runs a program to its end; `None`: it is not there.
fn call(program: &str, words: &[&str], input: Option<&str>) -> Result<Option<String>, Failure> {
    let wrong = |text: String| Failure::new(Exit::Partial, "tool", text);
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(format!("{program} cannot be run: {error}"))),
    };
    // The tools read all of their input before they print anything of length.
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| wrong(format!("{program}: {e}")))?;
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().next().unwrap_or("it says nothing");
    Err(wrong(format!("{program} {}: {}: {said}", words.join(" "), output.status)))
}
