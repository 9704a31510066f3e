//! Measures the response time of API queries: a running agent with a full table and many rules is queried
//! over its socket, while idle and while more routes arrive.
//!
//!     unshare -n target/release/examples/explain target/release/tortie \
//!         [ROUTES [RULES [TABLE [CLUSTER]]]]   (root)
//!
//! Fills a SQLite store with RULES (10,000) rules in policies of ten, 100 endpoints of this host and CLUSTER
//! (10,000) of others, and starts the agent as a process of its own with kernel and policy. It acts as the
//! agent's two routers: one announces ROUTES (100,000) prefixes, the other receives them. Then it sends each
//! query of `tortie why` and `policy trace` 200 times in sequence, and the same queries again while the
//! router announces TABLE (1,000,000) more prefixes, until the kernel has them. It prints percentiles of the
//! time from connecting to the parsed answer. The limits are 50 ms idle and 200 ms under load. Last, if the
//! browser of `make peers` is installed, it measures the CPU time of agent and web page while the page is
//! open and nothing changes; the limit is 1 %.

#![allow(clippy::print_stdout, reason = "its output")]

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tortie::cli::Client;
use tortie_store::{Store, StoreOptions, open};

use common::{Agent, address, interfaces, percentiles, put, write};

/// Number of endpoints of this host.
const LOCAL: usize = 100;
/// Number of rules per policy.
const RULES: usize = 10;
/// Number of roles that policies and endpoints have.
const ROLES: usize = 20;
/// Number of repetitions of each query.
const TIMES: usize = 200;
/// Duration of the idle measurement, which includes work that an agent does once a minute.
const IDLE: Duration = Duration::from_secs(60);
/// Number of prefixes per UPDATE, which share their attributes.
const SHARED: usize = 8;
/// Listen address of the agent, and source addresses of its routers.
const LISTEN: &str = "127.0.0.1:1790";
const SENDER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let program = PathBuf::from(args.next().context("which tortie?")?);
    let mut count = |default: usize| args.next().map_or(Ok(default), |text| text.parse());
    let (routes, rules, table, cluster) =
        (count(100_000)?, count(10_000)?, count(1_000_000)?, count(10_000)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(run(&program, routes, rules, table, cluster))
}

async fn run(program: &Path, routes: usize, rules: usize, table: usize, cluster: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let url = format!("sqlite:{}", dir.path().join("store.db").display());
    let store = open(&StoreOptions { url: url.clone(), create: true, ..StoreOptions::default() }).await?;
    interfaces(LOCAL)?;
    fill(&*store, rules, cluster).await?;
    let more = ["--http", "127.0.0.1:9099", "--bgp-listen", LISTEN];
    let agent = Agent::start(program, &url, dir.path(), &more)?;
    until(&agent, "rules in force", |s| {
        count_of(s, "/policy/endpoints") >= LOCAL as u64 && s.pointer("/policy/inSync") == Some(&true.into())
    })
    .await?;
    let sender = Router::connect(SENDER, 65_000)?;
    let _receiver = Router::connect(RECEIVER, 65_001)?;
    let begin = Instant::now();
    sender.announce(Ipv4Addr::new(20, 0, 0, 0), routes)?;
    until(&agent, "routes in the kernel", |s| count_of(s, "/routes/installed") >= routes as u64).await?;
    println!(
        "{routes} routes in the kernel after {:.2} s, {rules} rules, {LOCAL} endpoints here, {cluster} elsewhere; memory {}",
        begin.elapsed().as_secs_f64(),
        agent.memory()?
    );

    let questions = questions(routes);
    let quiet = AtomicBool::new(false);
    let mut times = ask(&agent.client, &questions, TIMES, &quiet).await?;
    say("nothing happens", &mut times);
    processes(program, dir.path())?;
    idle(&agent)?;

    let done = Arc::new(AtomicBool::new(false));
    let (over, begin) = (Arc::clone(&done), Instant::now());
    let sending = std::thread::spawn(move || -> Result<(Router, Duration)> {
        sender.announce(Ipv4Addr::new(32, 0, 0, 0), table)?;
        Ok((sender, begin.elapsed()))
    });
    let watcher = Client::new(&dir.path().join("tortie.sock"));
    let watching = tokio::spawn(async move {
        while begin.elapsed() < Duration::from_secs(120) {
            let status = watcher.get::<Value>("/v1/status").await.unwrap_or_default();
            if count_of(&status, "/routes/installed") >= (routes + table) as u64 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        over.store(true, Ordering::Relaxed);
        begin.elapsed()
    });
    let mut times = ask(&agent.client, &questions, usize::MAX, &done).await?;
    let (_sender, sent) = sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    let whole = watching.await?;
    say(&format!("{table} more routes arrive"), &mut times);
    println!(
        "sent within {:.2} s, in the kernel after {:.2} s; memory {}",
        sent.as_secs_f64(),
        whole.as_secs_f64(),
        agent.memory()?
    );
    Ok(())
}

/// Returns the queries with their names.
fn questions(routes: usize) -> Vec<(&'static str, String)> {
    let middle = prefix(Ipv4Addr::new(20, 0, 0, 0), routes / 2);
    let inside = Ipv4Addr::from(u32::from(middle) + 7);
    let packet = |to: &str| format!("from=w3&to={to}&proto=tcp&dport=80");
    vec![
        ("why peer", format!("/v1/why/peer?name={SENDER}")),
        ("why route", format!("/v1/why/route?prefix={middle}%2F24")),
        ("why route ADDRESS", format!("/v1/why/route?prefix={inside}")),
        ("why route --to", format!("/v1/why/route?prefix={middle}%2F24&to={RECEIVER}")),
        ("why ip", format!("/v1/why/ip?address={inside}")),
        ("policy trace, one host", format!("/v1/policy/trace?{}", packet("w4"))),
        ("policy trace, two hosts", format!("/v1/policy/trace?{}", packet(&address(20, 5)))),
        ("why packet, two hosts", format!("/v1/why/packet?{}", packet(&address(20, 5)))),
    ]
}

type Times = BTreeMap<usize, (&'static str, Vec<Duration>)>;

/// Sends all queries in sequence, `rounds` times.
async fn ask(
    client: &Client,
    questions: &[(&'static str, String)],
    rounds: usize,
    done: &AtomicBool,
) -> Result<Times> {
    let mut times = Times::new();
    for _ in 0..rounds {
        for (at, (name, path)) in questions.iter().enumerate() {
            let begin = Instant::now();
            let answer: Value = client.get(path).await.map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
            let took = begin.elapsed();
            ensure!(answer.is_object(), "{name}: {answer}");
            times.entry(at).or_insert((name, Vec::new())).1.push(took);
        }
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(times)
}

/// Measures the same query through the command line, including the start of the program.
fn processes(program: &Path, dir: &Path) -> Result<()> {
    let socket = dir.join("tortie.sock");
    let mut times = Vec::new();
    for _ in 0..50 {
        let begin = Instant::now();
        let output = Command::new(program)
            .args(["--socket", &socket.display().to_string(), "why", "route", "20.0.5.7"])
            .stdin(Stdio::null())
            .output()?;
        times.push(begin.elapsed());
        ensure!(output.status.success(), "{output:?}");
    }
    row("tortie why route, the process", &mut times);
    Ok(())
}

/// Measures the CPU time of the agent alone, then of agent and page together.
fn idle(agent: &Agent) -> Result<()> {
    let pid = agent.child.id();
    let (begin, before) = (Instant::now(), cpu(&[pid])?);
    std::thread::sleep(IDLE);
    let share = |used: Duration, begin: Instant| 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
    println!("\nidle, nobody looks: agent {:.2} % of a CPU", share(cpu(&[pid])? - before, begin));
    let browser = std::env::var_os("TORTIE_PEERS")
        .map_or_else(|| PathBuf::from("target/peers/bin"), PathBuf::from)
        .join("chromium");
    if !browser.exists() {
        println!("no {}: the page was not looked at", browser.display());
        return Ok(());
    }
    for view in [
        "about:blank",
        "http://127.0.0.1:9099/",
        "http://127.0.0.1:9099/#/routes",
        "http://127.0.0.1:9099/#/timeline",
    ] {
        let home = tempfile::tempdir()?;
        let mut child = Command::new(&browser)
            .args(["--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .arg(view)
            .env("HOME", home.path())
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let group = child.id();
        // The browser needs this time to start and draw.
        std::thread::sleep(Duration::from_secs(6));
        let (begin, agents, pages) = (Instant::now(), cpu(&[pid])?, cpu(&members(group)?)?);
        std::thread::sleep(IDLE);
        println!(
            "idle, {view:<34} agent {:.2} %, all processes of the browser {:.2} %",
            share(cpu(&[pid])? - agents, begin),
            share(cpu(&members(group)?)?.saturating_sub(pages), begin)
        );
        let kind = rustix::process::Signal::KILL;
        let pid = rustix::process::Pid::from_raw(i32::try_from(group)?).context("a process group")?;
        let _ = rustix::process::kill_process_group(pid, kind);
        let _ = child.wait();
    }
    Ok(())
}

/// Returns the processes of a process group.
fn members(group: u32) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Fields after the name: state, parent, process group.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        if fields.nth(2).and_then(|text| text.parse().ok()) == Some(group) {
            out.push(pid);
        }
    }
    Ok(out)
}

/// Returns user and system time of processes; an ended process counts as zero.
fn cpu(pids: &[u32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
        ticks += fields.filter_map(|text| text.parse::<u64>().ok()).sum::<u64>();
    }
    // USER_HZ is 100 (proc(5)).
    Ok(Duration::from_millis(ticks * 10))
}

fn say(what: &str, times: &mut Times) {
    println!(
        "\n{what}:\n  {:<32} {:>6} {:>9} {:>9} {:>9}",
        "question", "asked", "p50 ms", "p99 ms", "worst ms"
    );
    for (name, times) in times.values_mut() {
        row(name, times);
    }
}

fn row(name: &str, times: &mut [Duration]) {
    let [half, most, worst] = percentiles(times);
    println!("  {name:<32} {:>6} {half:>9.2} {most:>9.2} {worst:>9.2}", times.len());
}

fn count_of(status: &Value, pointer: &str) -> u64 {
    status.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

async fn until(agent: &Agent, what: &str, is: impl Fn(&Value) -> bool) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if let Ok(status) = agent.client.get::<Value>("/v1/status").await
            && is(&status)
        {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("not within a minute: {what}")
}

/// Returns the `n`th /24 after a base address.
fn prefix(base: Ipv4Addr, n: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(base).wrapping_add(u32::try_from(n).unwrap_or_default() << 8))
}

/// A router with one session (RFC 4271), which sends given messages and discards all that it receives.
struct Router {
    /// Shared by two threads; each writes whole messages.
    stream: Arc<Mutex<TcpStream>>,
    asn: u16,
}

impl Router {
    fn connect(addr: Ipv4Addr, asn: u16) -> Result<Self> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((addr, 0)).into())?;
        let to: SocketAddr = LISTEN.parse()?;
        let begin = Instant::now();
        while let Err(error) = socket.connect(&to.into()) {
            ensure!(begin.elapsed() < Duration::from_secs(10), "{LISTEN}: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut stream = TcpStream::from(socket);
        let [high, low] = asn.to_be_bytes();
        let [a, b, c, d] = addr.octets();
        // Version, AS, hold time 180 s, identifier; capabilities for IPv4 unicast and 4-octet AS numbers.
        let open = [4, high, low, 0, 180, a, b, c, d, 14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, high, low];
        stream.write_all(&message(1, &open))?;
        stream.write_all(&message(4, &[]))?;
        let mut reader = stream.try_clone()?;
        let stream = Arc::new(Mutex::new(stream));
        let weak = Arc::downgrade(&stream);
        let (up, established) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut keepalive, mut octets) = (false, vec![0; 1 << 16]);
            while let Ok(size @ 1..) = reader.read(&mut octets) {
                // The first message after the peer's OPEN shows that the session is established.
                keepalive |= size == 19 || size > 60;
                if keepalive {
                    let _ = up.send(());
                }
            }
        });
        std::thread::spawn(move || {
            while let Some(stream) = weak.upgrade() {
                if send(&stream, &message(4, &[])).is_err() {
                    break;
                }
                drop(stream);
                std::thread::sleep(Duration::from_secs(20));
            }
        });
        established.recv_timeout(Duration::from_secs(30)).context("no session")?;
        Ok(Self { stream, asn })
    }

    fn announce(&self, base: Ipv4Addr, count: usize) -> Result<()> {
        let [high, low] = self.asn.to_be_bytes();
        let mut out = Vec::new();
        for first in (0..count).step_by(SHARED) {
            let [x, y] = u16::try_from(1 + first / SHARED % 60_000)?.to_be_bytes();
            let attributes = [
                // ORIGIN, AS_PATH of two ASes, NEXT_HOP 192.0.2.2, COMMUNITIES.
                &[0x40, 1, 1, 0, 0x40, 2, 10, 2, 2, 0, 0, high, low, 0, 0, x, y][..],
                &[0x40, 3, 4, 192, 0, 2, 2, 0xc0, 8, 4, high, low, x, y],
            ]
            .concat();
            let mut body = vec![0, 0, 0, u8::try_from(attributes.len())?];
            body.extend(attributes);
            for n in first..count.min(first + SHARED) {
                let [a, b, c, _] = prefix(base, n).octets();
                body.extend([24, a, b, c]);
            }
            out.extend(message(2, &body));
            if out.len() > 1 << 15 {
                send(&self.stream, &std::mem::take(&mut out))?;
            }
        }
        send(&self.stream, &out)
    }
}

fn send(stream: &Mutex<TcpStream>, octets: &[u8]) -> Result<()> {
    let mut stream = stream.lock().map_err(|_| anyhow::anyhow!("the other thread panicked"))?;
    Ok(stream.write_all(octets)?)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend(u16::try_from(19 + body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.push(kind);
    out.extend(body);
    out
}

async fn fill(store: &dyn Store, rules: usize, cluster: usize) -> Result<()> {
    let peer = |addr: Ipv4Addr, asn: u32| {
        let value = format!(r#"{{"ip":"{addr}","as_num":"{asn}","passive_mode":true}}"#);
        put(&format!("/calico/bgp/v1/global/peer_v4/{addr}"), value)
    };
    let mut ops = vec![
        put("/calico/v1/Ready", "true".to_owned()),
        put("/calico/v1/ipam/v4/pool/10.0.0.0-8", r#"{"cidr":"10.0.0.0/8"}"#.to_owned()),
        put(
            "/calico/v1/policy/profile/open/rules",
            r#"{"inbound_rules":[{}],"outbound_rules":[{}]}"#.to_owned(),
        ),
        peer(SENDER, 65_000),
        peer(RECEIVER, 65_001),
    ];
    for n in 0..500 {
        ops.push(put(&format!("/calico/bgp/v1/host/o{n}/ip_addr_v4"), address(30, n)));
    }
    ops.push(put("/calico/bgp/v1/global/node_mesh", r#"{"enabled":false}"#.to_owned()));
    ops.extend((0..LOCAL).map(|n| put(&endpoint("h1", n), workload(n, &address(10, n)))));
    ops.extend(
        (0..cluster)
            .map(|n| put(&endpoint(&format!("o{}", n % 500), n + LOCAL), workload(n, &address(20, n)))),
    );
    for n in 0..rules / RULES {
        let rule = |k: usize| {
            let (port, role) = (1_000 + (n * RULES + k) % 50_000, (n + k) % ROLES);
            format!(r#"{{"protocol":"tcp","src_selector":"role == 'r{role}'","dst_ports":[{port}]}}"#)
        };
        let list = (0..RULES).map(rule).collect::<Vec<_>>().join(",");
        let value = format!(
            r#"{{"selector":"role == 'r{}'","order":{n},"inbound_rules":[{list}],"outbound_rules":[{{}}]}}"#,
            n % ROLES
        );
        ops.push(put(&format!("/calico/v1/policy/tier/default/policy/p{n}"), value));
    }
    write(store, ops).await?;
    Ok(())
}

fn endpoint(host: &str, n: usize) -> String {
    format!("/calico/v1/host/{host}/workload/cni/w{n}/endpoint/eth0")
}

fn workload(n: usize, addr: &str) -> String {
    format!(
        r#"{{"state":"active","name":"cali{n}","ipv4_nets":["{addr}/32"],"profile_ids":["open"],"labels":{{"role":"r{}"}}}}"#,
        n % ROLES
    )
}
