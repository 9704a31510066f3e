//! Runs the host's tools that read and write packet filter rules and address sets: `iptables-save` and
//! `iptables-restore` of both backends, `ipset`, and `nft`. Observe mode and `tortie migrate` share it.
//!
//! It finds the tool of a backend by either of its names, runs it and returns its output, but does not parse
//! that. A tool that would make the kernel load its tables is not run to list them.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::foreign::types::Backend;

/// Maximum duration of a listing; ten thousand rules take a second.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of a listing in octets.
const LONGEST: u64 = 256 << 20;

/// Returns the names of the `iptables-legacy` tables that the kernel has loaded. Running the tool without
/// that check would load them.
#[must_use]
pub fn legacy_tables(v4: bool) -> Vec<String> {
    let names = if v4 { "/proc/net/ip_tables_names" } else { "/proc/net/ip6_tables_names" };
    fs::read_to_string(names).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Returns the rules of one backend and family as `iptables-save` prints them; `None` if the tool is not
/// installed.
///
/// # Errors
/// If the tool fails, with its error text.
pub fn saved_rules(backend: Backend, v4: bool) -> Result<Option<String>, String> {
    if backend == Backend::Legacy && legacy_tables(v4).is_empty() {
        return Ok(Some(String::new()));
    }
    of(backend, v4, "save", &[], None)
}

/// Returns family and name of the nftables tables that Felix owns (Calico 3.29 and later): one for each family
/// of IP, and one for ARP (3.32).
///
/// # Errors
/// If the kernel does not list its tables, with its reason.
pub fn felix_tables() -> Result<Vec<(&'static str, String)>, String> {
    let all = tortie_kernel::filter_tables().map_err(|error| error.to_string())?;
    let is_felix =
        |family: &str, name: &str| matches!((family, name), ("ip" | "ip6", "calico") | ("arp", "calico-arp"));
    let felix = all.into_iter().filter(|table| is_felix(table.family, &table.name));
    Ok(felix.map(|table| (table.family, table.name)).collect())
}

/// Returns a table of nftables as `nft list table` prints it, without the values of its counters; `None` if nft
/// is not installed.
///
/// # Errors
/// If the tool fails, with its error text.
pub fn listed_table(family: &str, name: &str) -> Result<Option<String>, String> {
    run("nft", &["-s", "list", "table", family, name], None)
}

/// Returns all sets as `ipset save` prints them; `None` if the tool is not installed.
///
/// # Errors
/// As [`saved_rules`].
pub fn saved_sets() -> Result<Option<String>, String> {
    if !std::path::Path::new("/sys/module/ip_set").exists() {
        return Ok(Some(String::new()));
    }
    run("ipset", &["save"], None)
}

/// Runs the tool `save` or `restore` of a backend and family; `None` if it is not installed.
///
/// # Errors
/// As [`saved_rules`].
pub fn of(
    backend: Backend,
    v4: bool,
    verb: &str,
    words: &[&str],
    input: Option<&str>,
) -> Result<Option<String>, String> {
    if let Some(output) = run(&format!("{}-{verb}", backend.tool(v4)), words, input)? {
        return Ok(Some(output));
    }
    // Hosts with only one backend often have the tool under the plain name.
    let plain = if v4 { "iptables" } else { "ip6tables" };
    let Some(version) = run(plain, &["--version"], None)? else { return Ok(None) };
    if version.contains("nf_tables") != (backend == Backend::Nft) {
        return Ok(None);
    }
    run(&format!("{plain}-{verb}"), words, input)
}

/// Runs a program to its end; `None` if it is not installed. A program that only prints is limited to 30
/// seconds. A program with input has no limit, because it might be killed after writing only half of it.
///
/// # Errors
/// If it cannot be run or fails, with its error text.
pub fn run(program: &str, words: &[&str], input: Option<&str>) -> Result<Option<String>, String> {
    let begin = Instant::now();
    let child = Command::new(program)
        .args(words)
        .env("LC_ALL", "C")
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{program} cannot be run: {error}")),
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (sender, output) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = out.map_or(Ok(0), |out| out.take(LONGEST).read_to_end(&mut text));
        let _ = sender.send(read.map(|_| text));
    });
    let text = match input {
        Some(input) => {
            // A write error is ignored: a program that exits early reports the reason on its standard error.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            output.recv().map_err(|_| format!("{program}: its output was lost"))
        }
        None => output
            .recv_timeout(LIMIT)
            .map_err(|_| format!("{program} did not end within {} s", LIMIT.as_secs())),
    };
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("{program}: {error}"))?;
    let text = text?.map_err(|error| format!("{program}: {error}"))?;
    if status.success() {
        return Ok(Some(String::from_utf8_lossy(&text).into_owned()));
    }
    let mut reason = String::new();
    let _ = err.map(|err| err.take(1_000).read_to_string(&mut reason));
    let first = reason.trim().lines().next().unwrap_or("no reason given");
    let what = [&[program], words].concat().join(" ");
    Err(format!("{what} failed after {:.1} s: {status}: {first}", begin.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_missing_or_fails_or_is_given_something_is_distinguished() {
        assert_eq!(run("no-such-tool-of-felix", &[], None), Ok(None));
        let said = run("ls", &["--no-such-option"], None).unwrap_err();
        assert!(said.starts_with("ls --no-such-option failed after") && said.contains("option"), "{said}");
        assert_eq!(run("echo", &["x"], None), Ok(Some("x\n".to_owned())));
        // Input and output are both larger than a pipe's buffer.
        let long = "a line of rules\n".repeat(20_000);
        assert_eq!(run("cat", &[], Some(&long)), Ok(Some(long)));
    }
}
