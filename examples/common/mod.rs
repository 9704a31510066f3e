//! Starts an agent as a process of its own, with a store and interfaces, for the measuring programs.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tortie::cli::Client;
use tortie_store::{MAX_TXN_OPS, Op, Outcome, Store, Txn};

/// The agent of host `h1`, killed on drop.
pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) client: Client,
}

impl Agent {
    /// Starts the agent with a store, files in `dir`, and additional arguments.
    pub(crate) fn start(program: &Path, url: &str, dir: &Path, more: &[&str]) -> Result<Self> {
        let socket = dir.join("tortie.sock");
        let child = Command::new(program)
            .args(["--datastore", url, "--node", "h1", "--socket"])
            .arg(&socket)
            .args(["agent", "--ip4", "192.0.2.1/24", "--ip6", "none", "--cache"])
            .arg(dir.join("cache.json"))
            .args(more)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("log"))?)
            .spawn()?;
        Ok(Self { child, client: Client::new(&socket) })
    }

    /// Formats current and peak resident memory.
    pub(crate) fn memory(&self) -> Result<String> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().nth(1)?.parse().ok()
        };
        let (now, peak) = (of("VmRSS").context("VmRSS")?, of("VmHWM").context("VmHWM")?);
        Ok(format!("{} MB, peak {} MB", now / 1024, peak / 1024))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates the uplink with 192.0.2.1/24 and `count` workload interfaces, whose peers stay in this namespace.
pub(crate) fn interfaces(count: usize) -> Result<()> {
    let mut text =
        "link set lo up\nlink add eth0 type veth peer name far0\naddress add 192.0.2.1/24 dev eth0\n\
                    link set eth0 up\nlink set far0 up\n"
            .to_owned();
    for n in 0..count {
        text +=
            &format!("link add cali{n} type veth peer name w{n}\nlink set cali{n} up\nlink set w{n} up\n");
    }
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
    ensure!(
        child.wait()?.success(),
        "ip could not make {count} interfaces; is this a namespace of its own, and root?"
    );
    Ok(())
}

pub(crate) fn put(key: &str, value: String) -> Op {
    Op::Put { key: key.to_owned(), value: value.into_bytes(), lease: None }
}

/// Writes in as few transactions as possible and returns the last revision.
pub(crate) async fn write(store: &dyn Store, ops: Vec<Op>) -> Result<u64> {
    let mut last = 0;
    for ops in ops.chunks(MAX_TXN_OPS) {
        match store.commit(Txn { compare: Vec::new(), ops: ops.to_vec() }).await? {
            Outcome::Committed(revision) => last = revision,
            other => bail!("the store says {other:?}"),
        }
    }
    Ok(last)
}

/// Returns the `n`th address of 10.NET.0.0.
pub(crate) fn address(net: usize, n: usize) -> String {
    format!("10.{}.{}.{}", net + n / 65_536, n / 256 % 256, n % 256)
}

/// Sorts times and returns their median, 99th percentile and maximum in milliseconds.
pub(crate) fn percentiles(times: &mut [Duration]) -> [f64; 3] {
    times.sort_unstable();
    [50, 99, 100].map(|share| {
        let found = times.get((times.len().saturating_sub(1)) * share / 100).copied().unwrap_or_default();
        found.as_secs_f64() * 1e3
    })
}
