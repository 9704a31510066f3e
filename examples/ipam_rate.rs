//! Measures the rate at which IPAM allocates addresses to several processes of one host that request them
//! without pause.
//!
//!     cargo run --release --example ipam_rate -- [--store URL]... [--host-local PATH]
//!
//! For SQLite in a temporary folder and for each URL: 1,000 addresses by one process, 1,000 by 8 processes
//! without pause, then 200 by 200 processes, 8 at a time, as a runtime calls a plugin. The last round is also
//! run with the reference plugin `host-local` (one file per address, in the same temporary folder). An etcd
//! store must be empty, because a pool is written to it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tortie_config::key::IpFamily;
use tortie_engine::ipam::{AddressRequest, AllocationRequest, Ipam};
use tortie_store::{Op, StoreOptions, Txn, open};

const PROCESSES: u32 = 8;
const ADDRESSES: u32 = 1_000;
const CALLS: u32 = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, name, count] = args.as_slice()
        && flag == "--child"
    {
        return child(url, name, count.parse()?).await;
    }
    let dir = tempfile::tempdir()?;
    let mut urls = vec![format!("sqlite:{}", dir.path().join("store.db").display())];
    let mut host_local = None;
    for pair in args.chunks(2) {
        match pair {
            [flag, url] if flag == "--store" => urls.push(url.clone()),
            [flag, path] if flag == "--host-local" => host_local = Some(path.clone()),
            _ => anyhow::bail!("ipam_rate [--store URL]... [--host-local PATH]"),
        }
    }
    for url in urls {
        let kind = url.split(':').next().unwrap_or_default().to_owned();
        prepare(&url).await?;
        round(&format!("{kind}: one process"), 1, || ours(&url, ADDRESSES))?;
        round(&format!("{kind}: {PROCESSES} processes"), PROCESSES, || ours(&url, ADDRESSES / PROCESSES))?;
        round(&format!("{kind}: {CALLS} calls"), PROCESSES, || calls(|| ours(&url, 1)))?;
    }
    if let Some(path) = host_local {
        round(&format!("host-local: {CALLS} calls"), PROCESSES, || calls(|| reference(&path, dir.path())))?;
    }
    Ok(())
}

async fn prepare(url: &str) -> Result<()> {
    let store = open(&StoreOptions { url: url.to_owned(), create: true, ..StoreOptions::default() }).await?;
    let key = "/calico/v1/ipam/v4/pool/10.64.0.0-14".to_owned();
    let op = Op::Put { key, value: b"{}".to_vec(), lease: None };
    store.commit(Txn { compare: vec![], ops: vec![op] }).await?;
    Ok(())
}

/// Requests addresses one by one and prints the duration of each request in microseconds.
async fn child(url: &str, name: &str, count: u32) -> Result<()> {
    let begun = Instant::now();
    let ipam = Ipam::new(open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await?);
    let mut times = Vec::new();
    for n in 0..count {
        let begun = if count == 1 { begun } else { Instant::now() };
        let request = AllocationRequest {
            host: "bench".to_owned(),
            addresses: vec![AddressRequest::Any { family: IpFamily::V4, count: 1, pools: vec![] }],
            handle: Some(format!("{name}.{n}")),
            ..AllocationRequest::default()
        };
        ipam.assign(&request).await?;
        times.push(begun.elapsed().as_micros());
    }
    for time in times {
        println!("{time}");
    }
    Ok(())
}

static NAMES: AtomicU32 = AtomicU32::new(0);

fn name() -> String {
    format!("{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Runs one process that requests `count` addresses, and returns the duration of each request.
fn ours(url: &str, count: u32) -> Result<Vec<u128>> {
    let mut command = Command::new(std::env::current_exe()?);
    let begun = Instant::now();
    let done =
        command.args(["--child", url, &name(), &count.to_string()]).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "a process failed");
    if count == 1 {
        return Ok(vec![begun.elapsed().as_micros()]);
    }
    String::from_utf8(done.stdout)?.lines().map(|line| Ok(line.parse()?)).collect()
}

/// Runs many short processes one after the other.
fn calls(one: impl Fn() -> Result<Vec<u128>>) -> Result<Vec<u128>> {
    let mut times = Vec::new();
    for _ in 0..CALLS / PROCESSES {
        times.extend(one()?);
    }
    Ok(times)
}

fn reference(path: &str, dir: &Path) -> Result<Vec<u128>> {
    let conf = serde_json::json!({"cniVersion": "0.4.0", "name": "bench", "type": "bridge", "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.64.0.0/14"}]], "dataDir": dir.join("host-local")}});
    let mut command = Command::new(path);
    let env = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_NETNS", "/proc/self/ns/net"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/"),
    ];
    command.envs(env).env("CNI_CONTAINERID", name()).stdin(Stdio::piped()).stdout(Stdio::null());
    let begun = Instant::now();
    let mut process = command.spawn().context("host-local does not start")?;
    process.stdin.take().context("no standard input")?.write_all(conf.to_string().as_bytes())?;
    ensure!(process.wait()?.success(), "host-local failed");
    Ok(vec![begun.elapsed().as_micros()])
}

/// Runs `work` in `threads` threads at once and prints statistics of their times.
fn round(what: &str, threads: u32, work: impl Fn() -> Result<Vec<u128>> + Sync) -> Result<()> {
    let begun = Instant::now();
    let parts: Vec<Result<Vec<u128>>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread died"))))
            .collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let mut times = Vec::new();
    for part in parts {
        times.extend(part?);
    }
    times.sort_unstable();
    let at = |percent: usize| {
        let millis = times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or(0);
        std::time::Duration::from_micros(u64::try_from(millis).unwrap_or(u64::MAX)).as_secs_f64() * 1e3
    };
    let count = times.len();
    let rate = f64::from(u32::try_from(count)?) / seconds;
    println!(
        "{what}: {count} addresses, {rate:.0}/s, p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        at(50),
        at(99),
        at(100)
    );
    Ok(())
}
