//! Measures the latency from a write of one process to the watch event in another.
//!
//!     cargo run --release --example store_latency [URL]      default: a SQLite store in a temporary folder
//!
//! Two rounds: 1,000 writes 2 ms apart, and 10 single writes after 2 s of silence each. The time runs from
//! before the writer's call, so it includes the flush to disk.

use std::time::Duration;

use anyhow::{Context, Result};
use tortie_store::{Change, Op, StoreOptions, Txn, WatchEvent, open};

const KEY: &str = "/calico/test/latency";

fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, url, count, pause] = args.as_slice()
        && flag == "--write"
    {
        return write(url, count.parse()?, Duration::from_micros(pause.parse()?)).await;
    }
    let dir = tempfile::tempdir()?;
    let url = match args.get(1) {
        Some(url) => url.clone(),
        None => format!("sqlite:{}", dir.path().join("store.db").display()),
    };
    for (what, count, pause) in [
        ("2 ms apart", 1_000_usize, Duration::from_millis(2)),
        ("after 2 s of silence", 10, Duration::from_secs(2)),
    ] {
        let mut times = measure(&url, count, pause).await?;
        times.sort_unstable();
        let at = |share: usize| times.get((times.len() - 1) * share / 100).copied().unwrap_or(0) / 1_000;
        println!("{what}: {} writes, p50 {} us, p99 {} us, max {} us", times.len(), at(50), at(99), at(100));
    }
    Ok(())
}

async fn write(url: &str, count: usize, pause: Duration) -> Result<()> {
    let store = open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await?;
    store.get(KEY).await?;
    for _ in 0..count {
        tokio::time::sleep(pause).await;
        let value = now().to_string().into_bytes();
        store
            .commit(Txn { compare: vec![], ops: vec![Op::Put { key: KEY.into(), value, lease: None }] })
            .await?;
    }
    Ok(())
}

async fn measure(url: &str, count: usize, pause: Duration) -> Result<Vec<i64>> {
    let store = open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await?;
    let prefixes = ["/calico/test/".to_owned(), "/calico/other/".to_owned()];
    let after = store.list(&prefixes).await?.revision;
    let mut watch = store.watch(&prefixes, after, None).await?;
    // An etcd watch delays its first events.
    let settle = async {
        loop {
            watch.next().await?;
        }
    };
    let _: Result<Result<(), tortie_store::StoreError>, _> =
        tokio::time::timeout(Duration::from_secs(1), settle).await;
    let mut writer = std::process::Command::new(std::env::current_exe()?)
        .args(["--write", url, &count.to_string(), &pause.as_micros().to_string()])
        .spawn()?;
    let mut times = Vec::with_capacity(count);
    while times.len() < count {
        let WatchEvent::Delta(delta) = watch.next().await? else { continue };
        let seen = now();
        for change in delta.changes {
            let Change::Put(kv) = change else { continue };
            let sent: i64 = String::from_utf8(kv.value)?.parse().context("a foreign value")?;
            times.push(seen - sent);
        }
    }
    writer.wait()?;
    Ok(times)
}
