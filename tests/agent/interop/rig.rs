//! Runs a lab of the repository with its agents, on SQLite or etcd.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tortie_store::{Op, Outcome, StoreOptions, Txn};
use tortie_topology::{Lab, Options, Running, Sandbox};

use crate::common::concurrency::{self, Membership};

/// Store of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Etcd,
}

/// Times of a transaction's request and of the store's answer. Other clients may see the transaction before
/// the answer arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit {
    pub(crate) asked: Instant,
    pub(crate) done: Instant,
}

/// A running lab; dropping it removes it.
pub(crate) struct Net {
    pub(crate) running: Running,
    /// Nodes whose agent programs the kernel.
    pub(crate) hosts: Vec<String>,
    /// Blocks of the lab's data with their hosts.
    pub(crate) blocks: Vec<(String, String)>,
    /// Start time of the first agent.
    pub(crate) started: Instant,
    writer: mpsc::Sender<(Vec<Op>, mpsc::Sender<Instant>)>,
    _dir: tempfile::TempDir,
    _group: Membership,
}

/// Minimum wait for any condition, which distinguishes slow from missing results.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Time limit of a command in a node, after which it is killed.
const COMMAND: Duration = Duration::from_secs(40);

/// Returns the total time that tasks of this machine have waited for a processor; `None` if the kernel does
/// not report it (pressure stall information, proc(5)).
pub(crate) fn stalled() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    text.lines().next()?.rsplit_once("total=")?.1.parse().ok().map(Duration::from_micros)
}

impl Drop for Net {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for host in &self.hosts {
                let log = self.log(host);
                let lines: Vec<&str> = log.lines().collect();
                println!("the end of {host}'s log:\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
    }
}

/// Repeats a query until it succeeds and returns the result with the elapsed time. Panics with the last error
/// after a minute, or after `limit` if that is longer. A result after `limit` is an error, unless other
/// work kept the machine busy.
pub(crate) fn within<T>(
    limit: Duration,
    since: Instant,
    what: &str,
    mut ask: impl FnMut() -> Result<T, String>,
) -> (T, Duration) {
    let (begin, before) = (Instant::now(), stalled());
    let answer = loop {
        match ask() {
            Ok(answer) => break answer,
            Err(evidence) => {
                assert!(
                    begin.elapsed() < limit.max(DEADLINE),
                    "{what}: not after {:.1} s: {evidence}",
                    since.elapsed().as_secs_f64()
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    };
    let took = since.elapsed();
    if took > limit {
        // The machine counts as busy if tasks waited for a processor for a quarter of the time. If most of
        // the time passed before this wait, earlier checks cover it.
        let (here, waited) =
            (begin.elapsed(), before.zip(stalled()).map(|(then, now)| now.saturating_sub(then)));
        let idle = here > took / 2 && waited.is_some_and(|waited| waited < here / 4);
        assert!(!idle, "{what}: took {} ms of {}", took.as_millis(), limit.as_millis());
        println!("{what}: took {} ms of {} on a busy machine", took.as_millis(), limit.as_millis());
    }
    (answer, took)
}

/// Builds a put operation.
pub(crate) fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), lease: None }
}

/// Builds a delete operation.
pub(crate) fn delete(key: &str) -> Op {
    Op::Delete { key: key.to_owned() }
}

fn skip(why: &str) -> Option<Net> {
    assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
    eprintln!("skipped: {why}");
    None
}

impl Net {
    /// Starts a lab file of the repository; `None` if it cannot run here, which is a failure in CI.
    pub(crate) fn file(lab: &str, backend: Backend) -> Option<Self> {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs").join(format!("{lab}.clab.yml"));
        let text = std::fs::read_to_string(&file).unwrap();
        let data = file.parent().unwrap().join(lab).join("store.json");
        Self::text(&text, &file, &std::fs::read_to_string(data).unwrap(), backend)
    }

    /// Starts a lab from a text; `data` is imported by its store node.
    pub(crate) fn text(text: &str, file: &Path, data: &str, backend: Backend) -> Option<Self> {
        match Sandbox::detect() {
            Ok(Sandbox::Root) => {}
            Ok(Sandbox::Rootless { .. }) => return skip("labs are entered from outside: needs root"),
            Err(e) => return skip(&e.to_string()),
        }
        let group = concurrency::MEASURED_LABS.join();
        let dir = tempfile::tempdir().unwrap();
        let options = Options::tied(Path::new(env!("CARGO_BIN_EXE_tortie")), &dir.path().join("state"));
        let mut tools = vec!["ip"];
        let images =
            [("bird:", "bird"), ("frr:", "frr-bgpd"), ("gobgp:", "gobgpd"), ("openbgpd:", "openbgpd")];
        tools.extend(
            images.iter().filter(|(image, _)| text.contains(&format!("image: {image}"))).map(|p| p.1),
        );
        tools.extend((backend == Backend::Etcd).then_some("etcd"));
        if let Some(tool) = tools.iter().find(|tool| options.find(tool).is_none()) {
            return skip(&format!("{tool} is missing: run make peers"));
        }
        let text = match backend {
            Backend::Sqlite => text.to_owned(),
            Backend::Etcd => on_etcd(text),
        };
        let lab = Lab::from_text(&text, file).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut started = None;
        let running = lab.up(&options, &mut |step| {
            if step.text.starts_with("host") && step.text.ends_with(": start") && started.is_none() {
                started = Some(Instant::now());
            }
        });
        let running = running.unwrap_or_else(|e| panic!("{e}"));
        let started = started.expect("hosts start");
        let writer = match backend {
            Backend::Sqlite => {
                let path = running.lab_dir().join("store/store.db");
                writer(format!("sqlite:{}", path.display()), None)
            }
            Backend::Etcd => writer("etcd://127.0.0.1:2379".to_owned(), Some(running.netns("etcd").unwrap())),
        };
        let nodes = running.topology().nodes.iter().map(|n| n.name.clone());
        let hosts = nodes.filter(|name| name.starts_with("host")).collect();
        Some(Self { running, hosts, blocks: blocks(data), started, writer, _dir: dir, _group: group })
    }

    /// Writes in one transaction.
    pub(crate) fn commit(&self, ops: Vec<Op>) -> Commit {
        let (reply, answer) = mpsc::channel();
        let asked = Instant::now();
        self.writer.send((ops, reply)).expect("the writer runs");
        Commit { asked, done: answer.recv_timeout(DEADLINE).expect("the store takes it") }
    }

    /// Runs a command in a node, and kills it after a time limit: `vtysh` waits for its daemon forever.
    pub(crate) fn output(&self, node: &str, command: &[&str]) -> Result<Output, String> {
        self.output_within(COMMAND, node, command)
    }

    /// The same with another limit.
    pub(crate) fn output_within(
        &self,
        limit: Duration,
        node: &str,
        command: &[&str],
    ) -> Result<Output, String> {
        let limit = format!("{}", limit.as_secs());
        let limited = [&["timeout", "--signal=KILL", &limit], command].concat();
        self.running.exec(node, &limited).map_err(|e| e.to_string())
    }

    /// Returns the standard output of a command that must succeed.
    pub(crate) fn run(&self, node: &str, command: &[&str]) -> Result<String, String> {
        let output = self.output(node, command)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let (status, out, err) = (output.status, text(&output.stdout), text(&output.stderr));
        Err(format!("{node}: {}: {status}: {out}{err}", command.join(" ")))
    }

    /// Returns the log of an agent, as evidence for a failure.
    pub(crate) fn log(&self, node: &str) -> String {
        std::fs::read_to_string(self.running.log_of(node).unwrap()).unwrap_or_default()
    }
}

/// Converts a lab to a real etcd: a node of its own, connected to each agent and to the importing node.
fn on_etcd(text: &str) -> String {
    let mut agents = 0;
    let mut links = String::new();
    let mut lines: Vec<String> = Vec::new();
    let mut node = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("    ").and_then(|l| l.split(':').next())
            && !name.starts_with([' ', '-', '#'])
        {
            node = name;
        }
        if line.contains("store import") {
            // The importing node waits for the server, as an operator would.
            lines.push(
                "      cmd: sh -c 'until tortie --datastore etcd://10.255.0.0:2379 store import /lab/store.json; do sleep 0.1; done'"
                    .to_owned(),
            );
            continue;
        }
        if line.contains("sqlite:/store/store.db") {
            agents += 1;
            let url = format!("etcd://10.255.{agents}.0:2379");
            lines.push(line.replace("sqlite:/store/store.db", &url));
            links += &link(agents, node);
            continue;
        }
        lines.push(line.to_owned());
        if line == "  nodes:" {
            lines.push(
                "    etcd: {image: tortie, cmd: etcd --data-dir /run/etcd --listen-client-urls http://0.0.0.0:2379 \
                 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --log-level error}"
                    .to_owned(),
            );
        }
    }
    assert!(
        agents > 0 && lines.last().is_some_and(|l| l.starts_with("      ")),
        "the links come last\n{text}"
    );
    links += &link(0, "store");
    lines.join("\n") + "\n" + &links
}

fn link(n: usize, node: &str) -> String {
    let endpoints = format!("    - endpoints: [\"etcd:eth{}\", \"{node}:data\"]\n", n + 1);
    endpoints + &format!("      ipv4: [10.255.{n}.0/31, 10.255.{n}.1/31]\n")
}

/// Returns the blocks with affinity in an export.
fn blocks(data: &str) -> Vec<(String, String)> {
    let data: serde_json::Map<String, serde_json::Value> = serde_json::from_str(data).unwrap();
    let affinity = |key: &String| {
        let rest = key.strip_prefix("/calico/ipam/v2/host/")?;
        let (host, rest) = rest.split_once('/')?;
        let (net, len) = rest.rsplit('/').next()?.rsplit_once('-')?;
        let net = if rest.starts_with("ipv6") { net.replace('-', ":") } else { net.to_owned() };
        Some((host.to_owned(), format!("{net}/{len}")))
    };
    data.keys().filter_map(affinity).collect()
}

/// Starts a store client on a thread of its own, inside a node's network namespace if the server runs there.
fn writer(url: String, netns: Option<PathBuf>) -> mpsc::Sender<(Vec<Op>, mpsc::Sender<Instant>)> {
    let (sender, receiver) = mpsc::channel::<(Vec<Op>, mpsc::Sender<Instant>)>();
    std::thread::spawn(move || {
        if let Some(netns) = netns {
            enter(&netns);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store: Arc<dyn tortie_store::Store> = runtime
            .block_on(tortie_store::open(&StoreOptions { url, ..StoreOptions::default() }))
            .unwrap_or_else(|e| panic!("{e}"));
        while let Ok((ops, reply)) = receiver.recv() {
            let outcome = runtime.block_on(store.commit(Txn { ops, ..Txn::default() }));
            let done = Instant::now();
            assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
            let _ = reply.send(done);
        }
    });
    sender
}

/// Moves this thread into a network namespace permanently.
pub(crate) fn enter(netns: &Path) {
    use std::os::fd::AsFd;
    let file = std::fs::File::open(netns).unwrap();
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
}
