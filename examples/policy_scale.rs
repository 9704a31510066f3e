//! Measures policy at scale: one agent of a large cluster, from the store to the kernel.
//!
//!     unshare -n target/release/examples/policy_scale target/release/tortie \
//!         [CLUSTER [LOCAL [SHARED [RATE [STORE [WRITERS [MODEL]]]]]]]   (root)
//!
//! Fills a store (STORE: `sqlite`, or `etcd`, which it starts; MODEL: `v1`, or `v3`) with CLUSTER (50,000) endpoints of other
//! hosts, LOCAL (110) of this host, 5,000 profiles and 2,000 policies, and starts the agent as a process of
//! its own. Then it measures:
//!
//! * the time from exec until the last local endpoint is applied, and the memory;
//! * the number of rules with 18,000 more policies that select no endpoint of this host;
//! * label changes, from before the transaction until the agent reports that the kernel has it;
//! * the same for one more member of a set of the whole cluster;
//! * a burst of 1,000 new endpoints within a second, which share SHARED profiles (5,000: one each), with the
//!   CPU time that the agent's threads use meanwhile, and this program, which shares the processors with it.
//!   RATE is the number per second; 0 is as fast as the store accepts them from WRITERS (1) at a time, which
//!   shows the limit of the CPU;
//! * first packets of connections between two workloads, before and after all of this.
//!
//! It runs entirely in the namespace that it is started in.

#![allow(clippy::print_stdout, reason = "its output")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinSet;
use tortie::api::status::{Applied, AppliedRequest};
use tortie::cli::Client;
use tortie_config::Dialect;
use tortie_config::calico3::convert::convert;
use tortie_store::{Op, Store, StoreOptions, open};

use common::{Agent, address, interfaces, percentiles, put, write};

const PROFILES: usize = 5_000;
const POLICIES: usize = 2_000;
const STRANGE: usize = 18_000;
const CHANGES: usize = 500;
const BURST: usize = 1_000;
/// Number of roles in the cluster; endpoints of this host use the first `OWN_ROLES`.
const ROLES: usize = 200;
const OWN_ROLES: usize = 10;
/// Source and destination of connections, their number per round, and the number of rounds.
const ONE: &str = "10.9.0.1";
const OTHER: &str = "10.9.0.2";
const PACKETS: u32 = 20_000;
const ROUNDS: usize = 60;
const ETCD: &str = "127.0.0.1:2379";

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let program = PathBuf::from(args.next().context("which tortie?")?);
    let mut count = |default: usize| args.next().map_or(Ok(default), |text| text.parse());
    let (cluster, local, shared) = (count(50_000)?, count(110)?, count(PROFILES)?);
    let rate = count(BURST)?;
    let (store, writers) = (args.next(), args.next().map_or(Ok(1), |text| text.parse())?);
    let model = match args.next().as_deref() {
        None | Some("v1") => Model(Dialect::V1),
        Some("v3") => Model(Dialect::V3),
        Some(other) => bail!("{other}: neither v1 nor v3"),
    };
    let dir = tempfile::tempdir()?;
    interfaces(local + BURST)?;
    let (_etcd, url) = match store.as_deref() {
        None | Some("sqlite") => (None, format!("sqlite:{}", dir.path().join("store.db").display())),
        Some("etcd") => (Some(Etcd::start(dir.path())?), format!("etcd://{ETCD}")),
        Some(other) => bail!("{other}: neither sqlite nor etcd"),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(&program, (dir.path(), &url), model, [cluster, local, shared, rate, writers]))
}

/// Data model of the store.
#[derive(Clone, Copy)]
struct Model(Dialect);

impl Model {
    /// Returns writes of v1 keys in this data model.
    fn ops(self, ops: Vec<Op>) -> Result<Vec<Op>> {
        if self.0 == Dialect::V1 {
            return Ok(ops);
        }
        let entries = ops.iter().filter_map(|op| match op {
            Op::Put { key, value, .. } => Some((key.as_str(), value.as_slice())),
            _ => None,
        });
        let converted = convert(entries);
        ensure!(converted.is_complete(), "{:?}", converted.findings);
        let stamp = Some(("6b1d1a4e-0a0b-4c0d-8e0f-000000000001", "2026-01-01T00:00:00Z"));
        let objects = converted.objects.values();
        Ok(objects.map(|object| put(&object.key.to_string(), object.value(stamp).to_string())).collect())
    }

    /// Returns the key under which the agent knows a workload.
    fn endpoint(self, key: &str) -> String {
        match self.0 {
            Dialect::V1 => key.to_owned(),
            Dialect::V3 => key.replacen("/workload/cni/", "/workload/cni/default%2f", 1),
        }
    }
}

async fn run(program: &Path, (dir, url): (&Path, &str), model: Model, counts: [usize; 5]) -> Result<()> {
    let [cluster, local, shared, rate, writers] = counts;
    let store = open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await?;
    let sender = Sender::new()?;
    let mut ops = base();
    for (n, addr) in [(1, ONE), (2, OTHER)] {
        let key = format!("/calico/v1/host/h1/workload/cni/talks{n}/endpoint/eth0");
        let value = format!(
            r#"{{"state":"active","name":"talk{n}","mac":"02:00:00:00:00:0{n}","ipv4_nets":["{addr}/32"],"profile_ids":["p1"],"labels":{{"role":"r1"}}}}"#
        );
        ops.push(put(&key, value));
    }
    ops.push(put("/calico/v1/config/InterfacePrefix", "cali,talk".to_owned()));
    ops.extend((0..cluster).map(|n| put(&elsewhere(n), workload(n, &address(20, n), n % ROLES, PROFILES))));
    ops.extend((0..local).map(|n| put(&here(n), workload(n, &address(10, n), n % OWN_ROLES, shared))));
    ops.extend(
        (0..POLICIES).map(|n| put(&policy(n), rules(&format!("role == 'r{}' && has(env)", n % ROLES), n))),
    );
    let revision = write(&*store, model.ops(ops)?).await?;
    println!("store: {cluster} endpoints elsewhere, {local} here, {PROFILES} profiles, {POLICIES} policies");

    let start = Instant::now();
    let agent = Agent::start(program, url, dir, &["--http", "none"])?;
    let last = model.endpoint(&here(local.saturating_sub(1)));
    applied(&agent.client, &last, revision, Duration::from_secs(60)).await?;
    println!("first snapshot to kernel: {} ms; memory {}", start.elapsed().as_millis(), agent.memory()?);
    let few = kernel_rules()?;
    let lone = sender.rate()?;

    let strange = (0..STRANGE).map(|n| put(&policy(POLICIES + n), rules("role == 'nobody' && has(env)", n)));
    let revision = write(&*store, model.ops(strange.collect())?).await?;
    applied(&agent.client, &model.endpoint(&here(0)), revision, Duration::from_secs(60)).await?;
    let many = kernel_rules()?;
    println!(
        "rules in the kernel: {few} with {POLICIES} policies, {many} with {}; memory {}",
        POLICIES + STRANGE,
        agent.memory()?
    );

    let label = |n: usize| {
        let (at, role) = (n % local, (n + n / local) % OWN_ROLES);
        (put(&here(at), workload(at, &address(10, at), role, shared)), here(at))
    };
    acknowledged(&*store, &agent, model, "label change of a local endpoint to acknowledgement", label)
        .await?;
    // Every endpoint of the cluster is in the set of `has(env)`; an endpoint of this host shows when the
    // kernel has it.
    let member = |n: usize| {
        let at = cluster + n;
        (put(&elsewhere(at), workload(n, &address(20, at), 1, shared)), here(0))
    };
    acknowledged(&*store, &agent, model, &format!("one more member of a set of {cluster}"), member).await?;

    let used = [processor(agent.child.id())?, processor(std::process::id())?];
    let begin = Instant::now();
    let pause = Duration::from_secs(1).checked_div(u32::try_from(rate)?).unwrap_or_default();
    let mut writing = JoinSet::new();
    for first in 0..writers {
        let (store, client) = (Arc::clone(&store), agent.client.clone());
        writing.spawn(async move {
            let mut waiting = JoinSet::new();
            for n in (first..BURST).step_by(writers) {
                // Each write waits for its time in the rate; after a delay of the store, writes follow as
                // fast as possible.
                let due = begin + pause * u32::try_from(n)?;
                tokio::time::sleep_until(due.into()).await;
                let (at, begin) = (local + n, Instant::now());
                let op = put(&here(at), workload(at, &address(10, at), at % OWN_ROLES, shared));
                let revision = write(&*store, model.ops(vec![op])?).await?;
                let (written, client) = (begin.elapsed(), client.clone());
                waiting.spawn(async move {
                    applied(&client, &model.endpoint(&here(at)), revision, Duration::from_secs(10)).await?;
                    anyhow::Ok((begin.elapsed(), written))
                });
            }
            anyhow::Ok((waiting, Instant::now()))
        });
    }
    let (mut times, mut written) = (Vec::new(), begin);
    while let Some(done) = writing.join_next().await {
        let (mut waiting, end) = done??;
        written = written.max(end);
        while let Some(done) = waiting.join_next().await {
            times.push(done??);
        }
    }
    let written = written.duration_since(begin);
    let all = begin.elapsed();
    let what = format!(
        "each of {BURST} starts that were written in {} ms and in force after {}",
        written.as_millis(),
        all.as_millis()
    );
    say(&what, &times);
    for (who, pid, before) in
        [("the agent", agent.child.id(), &used[0]), ("this program", std::process::id(), &used[1])]
    {
        println!("  processor time of {who}: {}", spent(before, &processor(pid)?));
    }
    println!("rules in the kernel: {}; memory {}", kernel_rules()?, agent.memory()?);
    let crowded = sender.rate()?;
    println!(
        "new connections between two workloads, thousands a second: {lone:.0} with {} endpoints here, {crowded:.0} with {}",
        local + 2,
        local + BURST + 2
    );
    Ok(())
}

/// An etcd process, killed on drop.
struct Etcd(Child);

impl Etcd {
    fn start(dir: &Path) -> Result<Self> {
        let (url, peer) = (format!("http://{ETCD}"), "http://127.0.0.1:2380");
        let child = Command::new(peers().join("etcd"))
            .arg("--data-dir")
            .arg(dir.join("etcd"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(std::fs::File::create(dir.join("etcd.log"))?)
            .stderr(Stdio::null())
            .spawn()
            .context("etcd: run `make peers`, or set TORTIE_PEERS")?;
        let etcd = Self(child);
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(ETCD).is_err() {
            ensure!(Instant::now() < deadline, "etcd does not listen at {ETCD}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peers() -> PathBuf {
    std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from("target/peers/bin"), PathBuf::from)
}

/// A workload that sends first packets of connections to another workload, which answers none.
struct Sender(std::sync::mpsc::Sender<std::sync::mpsc::Sender<f64>>);

impl Sender {
    fn new() -> Result<Self> {
        let name = |n: u8| format!("policy-scale-{}-{n}", std::process::id());
        let ip = |words: String| -> Result<()> {
            ensure!(Command::new("ip").args(words.split(' ')).status()?.success(), "ip {words}");
            Ok(())
        };
        for (n, addr) in [(1, ONE), (2, OTHER)] {
            let netns = name(n);
            ip(format!("netns add {netns}"))?;
            ip(format!(
                "link add talk{n} type veth peer name eth0 address 02:00:00:00:00:0{n} netns {netns}"
            ))?;
            ip(format!("link set talk{n} up"))?;
            for words in ["link set eth0 up", &format!("address add {addr}/32 dev eth0")] {
                ip(format!("-n {netns} {words}"))?;
            }
        }
        ip(format!("-n {} route add blackhole default", name(2)))?;
        ip(format!("-n {} route add 169.254.1.1 dev eth0 scope link", name(1)))?;
        ip(format!("-n {} route add default via 169.254.1.1", name(1)))?;
        let (asks, asked) = std::sync::mpsc::channel::<std::sync::mpsc::Sender<f64>>();
        let file = std::fs::File::open(format!("/run/netns/{}", name(1)))?;
        // The names are no longer needed: the open files keep the namespaces alive.
        let other = std::fs::File::open(format!("/run/netns/{}", name(2)))?;
        ip(format!("netns del {}", name(1)))?;
        ip(format!("netns del {}", name(2)))?;
        std::thread::spawn(move || -> Result<()> {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind))?;
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(6.into()))?;
            let to: std::net::SocketAddr = format!("{OTHER}:0").parse()?;
            let mut port = 0u32;
            for answer in asked {
                let begin = Instant::now();
                for _ in 0..PACKETS {
                    port += 1;
                    let [_, _, a, b] = (1024 + port % 60_000).to_be_bytes();
                    // Port 2 is allowed by policy x1 of the second role.
                    let syn = [a, b, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0, 0, 0, 0];
                    socket.send_to(&syn, &to.into())?;
                }
                let _ = answer.send(f64::from(PACKETS) / begin.elapsed().as_secs_f64() / 1e3);
            }
            drop(other);
            Ok(())
        });
        Ok(Self(asks))
    }

    /// Returns the best rate of several rounds of a tenth of a second: other virtual machines take CPU time
    /// for seconds at a time.
    fn rate(&self) -> Result<f64> {
        let mut best = 0f64;
        for _ in 0..ROUNDS {
            let (answer, answered) = std::sync::mpsc::channel();
            self.0.send(answer)?;
            best = best.max(answered.recv().context("the sender ended")?);
        }
        Ok(best)
    }
}

fn base() -> Vec<Op> {
    let mut ops = vec![
        put("/calico/v1/Ready", "true".to_owned()),
        put("/calico/v1/ipam/v4/pool/10.0.0.0-8", r#"{"cidr":"10.0.0.0/8"}"#.to_owned()),
    ];
    for n in 0..PROFILES {
        let key = format!("/calico/v1/policy/profile/p{n}");
        let rules = format!(
            r#"{{"inbound_rules":[{{"src_tag":"t{n}"}},{{"action":"deny","protocol":"tcp","dst_ports":[22]}}],"outbound_rules":[{{}}]}}"#
        );
        ops.push(put(&format!("{key}/rules"), rules));
        ops.push(put(&format!("{key}/tags"), format!(r#"["t{n}"]"#)));
        ops.push(put(&format!("{key}/labels"), format!(r#"{{"env":"e{}"}}"#, n % 5)));
    }
    ops
}

fn here(n: usize) -> String {
    format!("/calico/v1/host/h1/workload/cni/w{n}/endpoint/eth0")
}

fn elsewhere(n: usize) -> String {
    format!("/calico/v1/host/o{}/workload/cni/w{n}/endpoint/eth0", n % 500)
}

fn policy(n: usize) -> String {
    format!("/calico/v1/policy/tier/default/policy/x{n}")
}

fn workload(n: usize, addr: &str, role: usize, profiles: usize) -> String {
    format!(
        r#"{{"state":"active","name":"cali{n}","ipv4_nets":["{addr}/32"],"profile_ids":["p{}"],"labels":{{"role":"r{role}"}}}}"#,
        n % profiles
    )
}

fn rules(selector: &str, n: usize) -> String {
    format!(
        r#"{{"selector":"{selector}","order":{n},"inbound_rules":[{{"protocol":"tcp","dst_ports":[{}],"src_selector":"has(env)"}},{{"action":"next-tier","src_selector":"role == 'r{}'"}}],"outbound_rules":[{{}}]}}"#,
        1 + n % 60_000,
        n % ROLES
    )
}

/// Makes changes one after the other, and waits for each until the agent reports that it is in force for an
/// endpoint.
async fn acknowledged(
    store: &dyn Store,
    agent: &Agent,
    model: Model,
    what: &str,
    change: impl Fn(usize) -> (Op, String),
) -> Result<()> {
    let mut times = Vec::new();
    for n in 0..CHANGES {
        let (op, key) = change(n);
        let ops = model.ops(vec![op])?;
        let begin = Instant::now();
        let revision = write(store, ops).await?;
        let written = begin.elapsed();
        applied(&agent.client, &model.endpoint(&key), revision, Duration::from_secs(10)).await?;
        times.push((begin.elapsed(), written));
    }
    say(what, &times);
    Ok(())
}

async fn applied(client: &Client, key: &str, revision: u64, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let request =
            AppliedRequest { key: key.to_owned(), revision, wait_millis: 10_000, elapsed_millis: None };
        match client.post::<_, Applied>("/v1/applied", &request).await {
            Ok(answer) if answer.result == "applied" => return Ok(()),
            Ok(answer) if answer.result != "timeout" => bail!("{key}: {answer:?}"),
            Err(error) if Instant::now() > deadline => bail!("the agent does not answer: {error:?}"),
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    }
}

/// Returns the CPU time in nanoseconds that the threads of a process have used, by thread name.
fn processor(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // The thread may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else { continue };
        let Ok(text) = std::fs::read_to_string(task.join("schedstat")) else { continue };
        let ran: u64 = text.split(' ').next().unwrap_or_default().parse()?;
        *all.entry(name.trim().to_owned()).or_default() += ran;
    }
    Ok(all)
}

/// Formats the CPU time between two readings, in total and by thread.
fn spent(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> String {
    let since = |(name, ran): (&String, &u64)| {
        (name.clone(), ran.saturating_sub(before.get(name).copied().unwrap_or_default()) / 1_000_000)
    };
    let mut parts: Vec<(String, u64)> = after.iter().map(since).filter(|(_, ms)| *ms > 0).collect();
    parts.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    let all: u64 = parts.iter().map(|(_, ms)| ms).sum();
    let parts: Vec<String> = parts.iter().map(|(name, ms)| format!("{name} {ms}")).collect();
    format!("{all} ms ({})", parts.join(", "))
}

/// Counts the rules of the table with nft.
fn kernel_rules() -> Result<usize> {
    let nft = peers().join("nft");
    let out = Command::new(&nft)
        .args(["-t", "-j", "list", "table", "inet", "tortie"])
        .output()
        .with_context(|| format!("{}: run `make peers`, or set TORTIE_PEERS", nft.display()))?;
    let value: serde_json::Value = serde_json::from_slice(&out.stdout)?;
    let list = value.get("nftables").and_then(|list| list.as_array()).context("nft's list")?;
    Ok(list.iter().filter(|object| object.get("rule").is_some()).count())
}

/// Prints the durations of changes, and the part of each that the store took to answer.
fn say(what: &str, times: &[(Duration, Duration)]) {
    let line = |what: &str, mut times: Vec<Duration>| {
        let [half, most, worst] = percentiles(&mut times);
        println!("{what}: p50 {half:.1} ms, p99 {most:.1} ms, worst {worst:.1} ms");
    };
    line(what, times.iter().map(|(all, _)| *all).collect());
    line("  of it until the store answers", times.iter().map(|(_, written)| *written).collect());
    line(
        "  of it after that answer",
        times.iter().map(|(all, written)| all.saturating_sub(*written)).collect(),
    );
}
