//! Measures the time from CNI `ADD` to the first answered ping: Tortie's plugin with a running agent, and the
//! reference plugin bridge with host-local, in the same run and namespace.
//!
//! ```text
//! cargo build --release --example cni_latency && cargo build --release --bin tortie
//! sudo TORTIE_PEERS=target/peers/bin target/release/examples/cni_latency [CONTAINERS]
//! ```

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement ends where something is not as it must be; it enters a namespace of its own"
)]

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).status().expect("iproute2 is installed");
    assert!(done.success(), "ip {words}");
}

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls a plugin, and returns its result and the duration.
fn call(
    program: &Path,
    command: &str,
    id: &str,
    netns: &str,
    path: &str,
    config: &Value,
) -> (Value, Duration) {
    let begin = Instant::now();
    let mut child = Command::new(program)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the plugin starts");
    let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    let output = child.wait_with_output().unwrap();
    let took = begin.elapsed();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), took)
}

/// Sends an echo request (RFC 792) every 200 microseconds until one is answered.
fn answered(addr: IpAddr) {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).expect("root");
    socket.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
    let to = SocketAddr::new(addr, 0).into();
    let mut request = [8, 0, 0, 0, 0x54, 0x54, 0, 1];
    let sum: u32 = request.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !(u16::try_from(sum & 0xffff).unwrap() + u16::try_from(sum >> 16).unwrap());
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(10), "{addr} never answers");
        let _ = socket.send_to(&request, &to);
        let mut buffer = [MaybeUninit::uninit(); 128];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            // SAFETY: the kernel has written the first `len` bytes.
            let bytes: Vec<u8> = buffer[..len].iter().map(|byte| unsafe { byte.assume_init() }).collect();
            let reply = bytes.get(20) == Some(&0) && bytes.get(24..26) == Some(&[0x54, 0x54]);
            if reply && from.as_socket().is_some_and(|from| from.ip() == addr) {
                return;
            }
        }
    }
}

fn quantile(sorted: &[Duration], per_cent: usize) -> f64 {
    let at = (sorted.len() * per_cent).div_ceil(100).saturating_sub(1);
    sorted[at].as_secs_f64() * 1_000.0
}

fn run(what: &str, count: usize, program: &Path, path: &str, config: &Value) {
    let (mut adds, mut pings, mut dels) = (Vec::new(), Vec::new(), Vec::new());
    let names: Vec<String> = (0..count).map(|n| format!("lat{}x{n}", std::process::id())).collect();
    for name in &names {
        ip(&format!("netns add {name}"));
    }
    for name in &names {
        let begin = Instant::now();
        let (result, took) = call(program, "ADD", name, &format!("/run/netns/{name}"), path, config);
        let address =
            result["ips"][0]["address"].as_str().expect("an address").split('/').next().unwrap().to_owned();
        answered(address.parse().unwrap());
        pings.push(begin.elapsed());
        adds.push(took);
    }
    for name in &names {
        dels.push(call(program, "DEL", name, &format!("/run/netns/{name}"), path, config).1);
        ip(&format!("netns del {name}"));
    }
    for (step, times) in [("ADD", &mut adds), ("ADD to first answered ping", &mut pings), ("DEL", &mut dels)]
    {
        times.sort_unstable();
        let (half, most) = (quantile(times, 50), quantile(times, 99));
        println!("{what:<24} {step:<27} {count:>4} containers  p50 {half:>7.1} ms  p99 {most:>7.1} ms");
    }
}

fn main() {
    let count = std::env::args().nth(1).map_or(100, |text| text.parse().expect("a number of containers"));
    // SAFETY: this process has one thread, and only its network namespace changes.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("root");
    ip("link set lo up");
    ip("address add 192.0.2.1/32 dev lo");
    let target = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let tortie = target.join("tortie");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(&tortie, bin.join("tortie-cni")).unwrap();
    let store = format!("sqlite:{}", at("store.db"));
    let words = ["--datastore", &store, "--socket", &at("tortie.sock"), "--node", "h1"].map(str::to_owned);
    let put = ["store", "put", "/calico/v1/ipam/v4/pool/10.65.0.0-16", r#"{"cidr": "10.65.0.0/16"}"#];
    assert!(Command::new(&tortie).args(&words).args(put).status().expect("cargo build --release").success());
    let flags = [
        "agent",
        "--http",
        "none",
        "--ip4",
        "127.0.0.1/8",
        "--bgp-listen",
        "127.0.0.1:1790",
        "--cache",
        &at("cache"),
    ];
    let log = std::fs::File::create(at("agent.log")).unwrap();
    let agent = Agent(Command::new(&tortie).args(&words).args(flags).stderr(log).spawn().unwrap());
    while !Path::new(&at("tortie.sock")).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(3));
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "tortie-cni", "datastore": store, "socket": at("tortie.sock"),
        "node": "h1", "log": "none", "ipam": {"type": "tortie-ipam"}
    });
    run("tortie-cni", count, &bin.join("tortie-cni"), &bin.display().to_string(), &config);
    drop(agent);
    let reference = std::env::var_os("TORTIE_PEERS").map(|dir| PathBuf::from(dir).join("cni"));
    let Some(reference) = reference.filter(|dir| dir.join("bridge").exists()) else {
        println!("no reference plugins in TORTIE_PEERS: nothing to compare with");
        return;
    };
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "latbr0", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.66.0.0/16", "dataDir": at("host-local")}
    });
    run(
        "bridge with host-local",
        count,
        &reference.join("bridge"),
        &reference.display().to_string(),
        &config,
    );
}
