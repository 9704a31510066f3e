//! The lab with its agents, and reads of each node's kernel state.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tortie_topology::{Lab, Options, Running, Sandbox};

/// The running lab; it ends with the test.
pub(crate) struct Rig {
    pub(crate) lab: Running,
    _dir: tempfile::TempDir,
}

/// Repeats a check every 50 ms until it succeeds; returns the elapsed milliseconds, or panics with the last
/// error.
pub(crate) fn within(millis: u64, what: &str, mut ask: impl FnMut() -> Result<(), String>) -> u64 {
    let begin = Instant::now();
    loop {
        let answer = ask();
        let took = begin.elapsed();
        match answer {
            Ok(()) if took <= Duration::from_millis(millis) => {
                return u64::try_from(took.as_millis()).unwrap();
            }
            Ok(()) => panic!("{what}: right only after {took:?}"),
            Err(evidence) if took > Duration::from_millis(millis) => {
                panic!("{what}: not within {millis} ms: {evidence}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Number of tries to see that a repair is fast: a busy machine may delay one.
pub(crate) const TRIES: usize = 3;
/// Time limit in milliseconds of what takes a fraction of a second on an idle machine.
pub(crate) const PATIENCE: u64 = 20_000;

/// Disturbs a state and waits until it is right again, until a repair takes no longer than the limit; returns
/// its milliseconds.
pub(crate) fn repaired_within(
    millis: u64,
    what: &str,
    mut disturb: impl FnMut(),
    mut check: impl FnMut() -> Result<(), String>,
) -> u64 {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        disturb();
        let took = within(PATIENCE, what, &mut check);
        if took <= millis {
            return took;
        }
        times.push(took);
    }
    panic!("{what}: right only after {times:?} ms, not after {millis}")
}

impl Rig {
    /// Builds the lab; `None` if that is impossible, which is a failure in CI.
    pub(crate) fn up() -> Option<Self> {
        if !matches!(Sandbox::detect(), Ok(Sandbox::Root)) {
            assert!(std::env::var_os("CI").is_none(), "the lab needs root");
            eprintln!("skipped: the lab needs root");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let lab = Lab::from_file(&root.join("topology/labs/ipip-cross-subnet.clab.yml")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = Options::tied(Path::new(env!("CARGO_BIN_EXE_tortie")), &dir.path().join("lab"));
        let lab = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
        Some(Self { lab, _dir: dir })
    }

    /// Runs a command in a node; returns its success and all its output.
    pub(crate) fn exec(&self, node: &str, command: &[&str]) -> (bool, String) {
        let out = self.lab.exec(node, command).unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    }

    /// Runs a command, given as one text, that must succeed.
    pub(crate) fn run(&self, node: &str, command: &str) -> String {
        let (ok, text) = self.exec(node, &command.split(' ').collect::<Vec<_>>());
        assert!(ok, "{node}: {command}: {text}");
        text
    }

    pub(crate) fn json(&self, node: &str, command: &[&str]) -> serde_json::Value {
        let out = self.lab.exec(node, command).unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}: {out:?}"))
    }

    /// Runs several `ip` commands in one process, since a fork is expensive in user-mode Linux; continues
    /// after errors.
    pub(crate) fn ip(&self, node: &str, lines: &str) -> String {
        let mut child = self
            .lab
            .spawn(node, &["ip", "-force", "-batch", "-"], |c| {
                c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            })
            .unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    }

    /// Returns Tortie's routes as `ip` shows them, without ids of nexthop objects.
    pub(crate) fn routes(&self, node: &str) -> Vec<String> {
        routes_in(&self.ip(node, "route show proto 179\n"))
    }

    /// Compares device and routes with the expected ones.
    pub(crate) fn check(&self, node: &str, wanted: &Expected<'_>) -> Result<(), String> {
        let text = self.ip(node, "addr show dev tunl0\nroute show proto 179\n");
        let (device, routes) = text.lines().partition::<Vec<_>, _>(|l| !is_route(l));
        let head = device.first().copied().unwrap_or_default();
        let flags = head.split(['<', '>']).nth(1).unwrap_or_default();
        let up = flags.split(',').any(|f| f == "UP");
        let addresses: Vec<&str> = device
            .iter()
            .filter_map(|l| l.trim().strip_prefix("inet "))
            .map(|l| l.split(' ').next().unwrap_or_default())
            .collect();
        let right = up
            && head.contains(&format!(" mtu {} ", wanted.mtu))
            && addresses == [wanted.address]
            && routes_in(&routes.join("\n")) == wanted.routes;
        if right { Ok(()) } else { Err(format!("{text}\nwanted {wanted:?}")) }
    }

    /// Returns the numbers of packets sent and received on `tunl0`.
    pub(crate) fn tunnel_packets(&self, node: &str) -> (u64, u64) {
        let link = self.json(node, &["ip", "-s", "-j", "link", "show", "dev", "tunl0"]);
        let count = |way: &str| link[0]["stats64"][way]["packets"].as_u64().unwrap();
        (count("tx"), count("rx"))
    }

    /// Pings; returns the number of answers.
    pub(crate) fn ping(&self, node: &str, to: &str, count: u32) -> u32 {
        let count = count.to_string();
        let (_, text) = self.exec(node, &["ping", "-n", "-c", &count, "-i", "0.02", "-W", "1", to]);
        let line =
            text.lines().find(|l| l.contains(" received")).unwrap_or_else(|| panic!("ping {to}: {text}"));
        line.split(',').nth(1).unwrap().trim().split(' ').next().unwrap().parse().unwrap()
    }
}

/// Expected state of a host.
#[derive(Debug, Clone)]
pub(crate) struct Expected<'a> {
    pub(crate) mtu: u32,
    /// The only address of `tunl0`, with its prefix length.
    pub(crate) address: &'a str,
    /// All of Tortie's routes, sorted.
    pub(crate) routes: Vec<&'a str>,
}

fn is_route(line: &str) -> bool {
    line.starts_with("10.") || line.starts_with("blackhole ")
}

fn routes_in(text: &str) -> Vec<String> {
    let mut routes: Vec<String> = text.lines().filter(|l| is_route(l)).map(without_id).collect();
    routes.sort();
    // Blackholes first, as in the expected lists.
    routes.sort_by_key(|r| !r.starts_with("blackhole"));
    routes
}

/// Removes the id of the nexthop object from a learned route.
fn without_id(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.iter().position(|w| *w == "nhid") {
        Some(at) => [&words[..at], &words[at + 2..]].concat().join(" "),
        None => words.join(" "),
    }
}
