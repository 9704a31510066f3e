//! Queries of kernels, routers and agents.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interop::rig::{Commit, Net, within};

/// BGP implementation of the top-of-rack router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Router {
    Bird,
    Frr,
    Gobgp,
    Openbgpd,
}

impl Router {
    /// Returns the lab file with this router.
    pub(crate) fn lab(self) -> &'static str {
        match self {
            Self::Bird => "tor-bird",
            Self::Frr => "tor-frr",
            Self::Gobgp => "tor-gobgp",
            Self::Openbgpd => "tor-openbgpd",
        }
    }

    /// Returns the router's BGP table as text.
    pub(crate) fn table(self, net: &Net, node: &str) -> Result<String, String> {
        let command: &[&str] = match self {
            Self::Bird => &["birdc", "show", "route"],
            Self::Frr => &["vtysh", "-c", "show ip bgp"],
            Self::Gobgp => &["gobgp", "global", "rib"],
            Self::Openbgpd => &["bgpctl", "show", "rib"],
        };
        net.run(node, command)
    }

    /// Starts to monitor changes of the router's best routes: in its kernel, or by its own monitor if it does
    /// not program one.
    pub(crate) fn watch(self, net: &Net, node: &str) -> Monitor {
        match self {
            Self::Gobgp => {
                let monitor = Monitor::command(net, node, &["gobgp", "monitor", "global", "rib"]);
                let marker = format!("{MARKER}/32");
                monitor.listens(&marker, || {
                    net.run(node, &["gobgp", "global", "rib", "add", &marker])?;
                    net.run(node, &["gobgp", "global", "rib", "del", &marker])
                });
                monitor
            }
            _ => Monitor::kernel(net, node),
        }
    }
}

/// True if a text contains this prefix as a word. FRR omits the length of classful prefixes only, which
/// blocks never are.
pub(crate) fn names(text: &str, prefix: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || "*>=,".contains(c)).any(|word| word == prefix)
}

/// Returns Tortie's routes in a node's kernel: the prefix, and the rest of the line of `ip route`.
pub(crate) fn kernel(net: &Net, node: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for family in ["-4", "-6"] {
        for line in net.run(node, &["ip", "-o", family, "route", "show", "proto", "179"])?.lines() {
            let mut words = line.split_whitespace();
            let mut prefix = words.next().unwrap_or_default();
            if prefix == "blackhole" {
                prefix = words.next().unwrap_or_default();
            }
            all.insert(prefix.to_owned(), line.to_owned());
        }
    }
    Ok(all)
}

/// Checks that every host's kernel has every block: its own as a blackhole, the others forwarded.
pub(crate) fn full_kernels(net: &Net) -> Result<(), String> {
    for host in &net.hosts {
        let routes = kernel(net, host)?;
        for (owner, block) in &net.blocks {
            let line =
                routes.get(block).ok_or_else(|| format!("{host} lacks {owner}'s {block}: {routes:?}"))?;
            let right = match owner == host {
                true => line.starts_with("blackhole"),
                false => line.contains(" via ") && !line.contains("linkdown") && !line.contains("dead"),
            };
            if !right {
                return Err(format!("{host} has {owner}'s block as `{line}`"));
            }
        }
    }
    Ok(())
}

/// Returns the sessions of a host by peer address.
pub(crate) fn sessions(net: &Net, host: &str) -> Result<BTreeMap<String, Value>, String> {
    let text = net.run(host, &["tortie", "-o", "json", "bgp", "peers"])?;
    let list: Value = serde_json::from_str(&text).map_err(|e| format!("{host}: {e}: {text}"))?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items.into_iter().map(|p| (p["address"].as_str().unwrap_or_default().to_owned(), p)).collect())
}

/// Checks that a host has exactly these sessions, all established.
pub(crate) fn established(net: &Net, host: &str, peers: &[&str]) -> Result<BTreeMap<String, Value>, String> {
    let all = sessions(net, host)?;
    let wanted: BTreeSet<&str> = peers.iter().copied().collect();
    if !all.keys().map(String::as_str).eq(wanted) {
        return Err(format!("{host} has {:?}, not {peers:?}", all.keys().collect::<Vec<_>>()));
    }
    match all.values().find(|p| p["state"] != "Established") {
        Some(peer) => Err(format!("{host}: {peer}")),
        None => Ok(all),
    }
}

/// Returns the hints about routers that announce addresses of pools, from a command's output.
pub(crate) fn hints(net: &Net, host: &str, command: &[&str]) -> Result<Vec<String>, String> {
    let output = net.output(host, &[&["tortie", "-o", "json"], command].concat())?;
    let value: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{host}: {e}: {output:?}"))?;
    let notes = value["notes"].as_array().ok_or_else(|| value.to_string())?;
    let hints = notes.iter().filter(|note| note["code"] == "import-pools-hint");
    Ok(hints.map(|note| note["text"].as_str().unwrap_or_default().to_owned()).collect())
}

/// A running monitor in a node; dropping it ends it.
pub(crate) struct Monitor {
    pub(crate) node: String,
    child: Child,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

/// An unused route (RFC 5737) whose appearance proves that the monitor is listening.
const MARKER: &str = "192.0.2.99";

impl Monitor {
    /// Starts `ip monitor route nexthop` and waits until it is listening.
    pub(crate) fn kernel(net: &Net, node: &str) -> Self {
        let monitor = Self::command(net, node, &["ip", "-o", "monitor", "route", "nexthop"]);
        monitor.listens(MARKER, || {
            net.run(node, &["ip", "route", "replace", "blackhole", MARKER])?;
            net.run(node, &["ip", "route", "del", "blackhole", MARKER])
        });
        monitor
    }

    /// Waits until the monitor shows the changes that `change` makes to the marker.
    fn listens(&self, marker: &str, mut change: impl FnMut() -> Result<String, String>) {
        within(Duration::from_secs(10), Instant::now(), "the monitor listens", || {
            change()?;
            let seen = self.all().iter().any(|(_, line)| line.contains(marker));
            seen.then_some(()).ok_or_else(|| format!("{}: the monitor shows nothing", self.node))
        });
    }

    /// Starts a command and reads its output line by line.
    pub(crate) fn command(net: &Net, node: &str, command: &[&str]) -> Self {
        let spawned = net.running.spawn(node, command, |c| {
            c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        });
        let mut child = spawned.unwrap_or_else(|e| panic!("{e}"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stdout, sink) = (child.stdout.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
            }
        });
        Self { node: node.to_owned(), child, lines }
    }

    fn all(&self) -> Vec<(Instant, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the lines seen at or after `since`.
    pub(crate) fn since(&self, since: Instant) -> Vec<String> {
        let all = self.all().into_iter();
        all.filter(|(at, line)| *at >= since && !line.contains(MARKER))
            .map(|(at, line)| format!("+{} ms: {line}", (at - since).as_millis()))
            .collect()
    }

    /// Waits for a line that `wanted` accepts; returns the time from the transaction to the line.
    pub(crate) fn wait(
        &self,
        limit: Duration,
        commit: Commit,
        what: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Duration {
        let (at, _) = within(limit, commit.done, what, || {
            let first = self.all().into_iter().find(|(at, line)| *at >= commit.asked && wanted(line));
            first.ok_or_else(|| format!("{} saw {:?}", self.node, self.since(commit.asked)))
        });
        at.0.saturating_duration_since(commit.done)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
