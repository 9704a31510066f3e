//! Reads routes of kernels by `ip`, and route changes by `ip monitor`.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tortie_topology::Running;

/// A route of a kernel's main table, as in the output of `ip -j route`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct KernelRoute {
    /// Destination: `default`, a prefix or an address.
    pub dst: String,
    /// Type, such as `blackhole`; `None` for unicast.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Gateway address.
    pub gateway: Option<String>,
    /// Output interface.
    pub dev: Option<String>,
    /// Routing protocol, by name if the machine has one for it.
    pub protocol: Option<String>,
    /// Flags of the kernel, such as `linkdown`.
    #[serde(default)]
    pub flags: Vec<String>,
}

impl fmt::Display for KernelRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = &self.kind {
            write!(f, "{kind} ")?;
        }
        f.write_str(&self.dst)?;
        for (word, value) in [("via", &self.gateway), ("dev", &self.dev), ("proto", &self.protocol)] {
            if let Some(value) = value {
                write!(f, " {word} {value}")?;
            }
        }
        for flag in &self.flags {
            write!(f, " {flag}")?;
        }
        Ok(())
    }
}

impl KernelRoute {
    /// True if an agent with the default protocol number wrote the route.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.protocol.as_deref() == Some("179")
    }

    /// True if the kernel forwards packets by the route now.
    #[must_use]
    pub fn forwards(&self) -> bool {
        self.kind.is_none() && !self.flags.iter().any(|f| f == "linkdown" || f == "dead")
    }
}

/// Returns the routes of a node's kernel in both families; `selector` contains further arguments of `ip route
/// show`.
///
/// # Errors
/// The error of `ip`.
pub fn routes(running: &Running, node: &str, selector: &[&str]) -> Result<Vec<KernelRoute>, String> {
    let mut all = Vec::new();
    for family in ["-4", "-6"] {
        let mut words = vec!["ip", "-j", family, "route", "show"];
        words.extend(selector);
        let text = run(running, node, &words)?;
        let text = if text.trim().is_empty() { "[]" } else { text.trim() };
        let list: Vec<KernelRoute> =
            serde_json::from_str(text).map_err(|e| format!("{node}: `ip -j route` cannot be read: {e}"))?;
        all.extend(list);
    }
    Ok(all)
}

/// Runs a command in a node and returns its standard output.
///
/// # Errors
/// Its standard error if it fails, with the node and the command.
pub fn run(running: &Running, node: &str, command: &[&str]) -> Result<String, String> {
    let output = running.exec(node, command).map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let text = if text.is_empty() { String::from_utf8_lossy(&output.stdout).trim().to_owned() } else { text };
    Err(format!("{node}: `{}`: {text}", command.join(" ")))
}

/// Repeats `ask` until it succeeds, or until `limit` has passed.
///
/// # Errors
/// The last error.
pub fn until<T>(limit: Duration, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(evidence) if begin.elapsed() > limit => {
                return Err(format!("not within {:.1} s: {evidence}", limit.as_secs_f64()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A running `ip monitor route nexthop` in a node, killed on drop.
#[derive(Debug)]
pub struct Monitor {
    /// Name of the node.
    pub node: String,
    child: Child,
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

/// An unused destination (RFC 5737 TEST-NET-1): its appearance in the output proves that the monitor is
/// running.
const MARKER: &str = "192.0.2.99";

impl Monitor {
    /// Starts a monitor and waits until it receives changes.
    ///
    /// # Errors
    /// If it does not start or prints nothing.
    pub fn start(running: &Running, node: &str) -> Result<Self, String> {
        let mut child = running
            .spawn(node, &["ip", "-o", "monitor", "route", "nexthop"], |c| {
                c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            })
            .map_err(|e| e.to_string())?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(stdout) = child.stdout.take() {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), line));
                }
            });
        }
        let monitor = Self { node: node.to_owned(), child, lines };
        until(Duration::from_secs(5), || {
            let marker = ["ip", "route", "replace", "blackhole", MARKER];
            run(running, node, &marker)?;
            run(running, node, &["ip", "route", "del", "blackhole", MARKER])?;
            match monitor.all().is_empty() {
                true => Err(format!("{node}: `ip monitor` shows nothing")),
                false => Ok(()),
            }
        })?;
        Ok(monitor)
    }

    fn all(&self) -> Vec<(Instant, String)> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the changes since the start.
    #[must_use]
    pub fn changes(&self) -> Vec<(Instant, String)> {
        let mut all = self.all();
        all.retain(|(_, line)| !line.contains(MARKER));
        all
    }

    /// Returns the time of the first change at or after `since` that `wanted` accepts.
    #[must_use]
    pub fn first(&self, since: Instant, wanted: impl Fn(&str) -> bool) -> Option<Instant> {
        self.all().iter().find(|(at, line)| *at >= since && wanted(line)).map(|(at, _)| *at)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_shown_in_ips_own_words() {
        // Output of iproute2 6.1.
        let text = r#"[{"dst":"default","gateway":"172.30.0.254","dev":"eth1","protocol":"179","metric":1790,"flags":[]},
            {"type":"blackhole","dst":"10.244.1.0/26","protocol":"179","metric":1790,"flags":[]},
            {"dst":"10.244.2.0/26","nhid":1409286145,"gateway":"172.30.0.2","dev":"eth1","protocol":"179","metric":1790,"flags":["linkdown"]}]"#;
        let routes: Vec<KernelRoute> = serde_json::from_str(text).unwrap();
        let shown: Vec<String> = routes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "default via 172.30.0.254 dev eth1 proto 179",
                "blackhole 10.244.1.0/26 proto 179",
                "10.244.2.0/26 via 172.30.0.2 dev eth1 proto 179 linkdown"
            ]
        );
        assert_eq!(routes.iter().map(KernelRoute::forwards).collect::<Vec<_>>(), [true, false, false]);
    }
}
