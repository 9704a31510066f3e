//! A host with two workloads, its agent and its operator: a new policy stops packets, every command names it,
//! and its removal lets the packets pass again; a trace in the kernel agrees.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::concurrency::{self, Membership, uninterrupted};
use crate::common::netns::{in_netns, ip};
use rustix::process::Signal;
use serde_json::{Value, json};

const PORT: u16 = 5432;
const WEB: &str = "/calico/v1/host/h1/workload/cni/web/endpoint/eth0";
const DB: &str = "/calico/v1/host/h1/workload/cni/db/endpoint/eth0";
const PROFILE: &str = "/calico/v1/policy/profile/open/rules";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/no-db";

/// A network namespace behind an interface of the host.
struct Workload(String);

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

impl Workload {
    fn new(interface: &str, addr: &str) -> (Self, String) {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("live-{}-{count}-{interface}", std::process::id());
        ip(&format!("netns add {name}"));
        let this = Self(name);
        let name = &this.0;
        ip(&format!("link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {name}"));
        ip(&format!("link set {interface} up"));
        let inside = |words: &str| ip(&format!("-n {name} {words}"));
        inside("link set eth0 up");
        inside(&format!("address add {addr}/32 dev eth0"));
        inside("route add 169.254.1.1 dev eth0 scope link");
        inside("route add default via 169.254.1.1 dev eth0");
        let link = inside("link show eth0");
        let mac = link.split_whitespace().skip_while(|w| *w != "link/ether").nth(1).unwrap().to_owned();
        (this, mac)
    }

    fn inside<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> T {
        self.alongside(body).join().unwrap()
    }

    fn alongside<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let name = self.0.clone();
        std::thread::spawn(move || {
            let file = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            body()
        })
    }

    fn connect(&self, addr: &'static str) -> Option<TcpStream> {
        self.inside(move || {
            let to: SocketAddr = format!("{addr}:{PORT}").parse().unwrap();
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(b"?").ok()?;
            stream.read_exact(&mut [0]).ok()?;
            Some(stream)
        })
    }
}

struct Agent {
    child: Child,
    dir: tempfile::TempDir,
    _group: Membership,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    fn command(dir: &tempfile::TempDir, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let store = format!("sqlite:{}", at("store.db"));
        command.args(["--datastore", &store, "--socket", &at("tortie.sock"), "--node", "h1"]).args(words);
        command.stdin(Stdio::null());
        command
    }

    fn start(entries: &[(&str, String)]) -> Self {
        let group = concurrency::LABS.join();
        let dir = tempfile::tempdir().unwrap();
        for (key, value) in entries {
            let output = Self::command(&dir, &["store", "put", key, value]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        Self { child: Self::spawn(&dir), dir, _group: group }
    }

    fn spawn(dir: &tempfile::TempDir) -> Child {
        let cache = dir.path().join("cache").display().to_string();
        let words = ["agent", "--http", "none", "--ip4", "127.0.0.1/8", "--bgp-listen", "127.0.0.1:1790"];
        let log = std::fs::File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
        Self::command(dir, &[&words[..], &["--cache", &cache]].concat())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Ends the agent by a signal and starts it again; its policy must be enforced again.
    fn restart(&mut self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
        self.child = Self::spawn(&self.dir);
        self.until(&["status"], |status| {
            status["policy"]["endpoints"] == 2 && status["policy"]["inSync"] == true
        });
    }

    fn run(&self, words: &[&str]) -> Output {
        Self::command(&self.dir, words).output().unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Runs a command with JSON output; returns exit code and value.
    fn ask(&self, words: &[&str]) -> (Option<i32>, Value) {
        let output = self.run(&[words, &["-o", "json"]].concat());
        let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (output.status.code(), value)
    }

    fn until(&self, words: &[&str], is: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (_, value) = self.ask(words);
            if is(&value) {
                return value;
            }
            assert!(Instant::now() < until, "{words:?}: {value:#}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Writes a key and waits until it is applied.
    fn write(&self, key: &str, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let revision: u64 = said.split_whitespace().last().unwrap().parse().unwrap();
        let socket = self.dir.path().join("tortie.sock");
        let most = Duration::from_secs(60);
        let request = json!({"key": key, "revision": revision, "waitMillis": most.as_millis()});
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer: Value = runtime
            .block_on(tortie::cli::Client::new(&socket).post_and_wait("/v1/applied", &request, most))
            .unwrap();
        assert_eq!(answer["result"], "applied", "{answer}\n{}", self.log());
    }
}

fn endpoint(interface: &str, mac: &str, addr: &str, role: &str) -> String {
    json!({
        "state": "active", "name": interface, "mac": mac, "profile_ids": ["open"],
        "ipv4_nets": [format!("{addr}/32")], "ipv6_nets": [], "labels": {"role": role},
    })
    .to_string()
}

/// Creates a host with two workloads that may communicate, and a listener at the second.
fn host() -> (Workload, Workload, Agent, TcpStream) {
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    let (web, web_mac) = Workload::new("cali1", "10.65.0.1");
    let (db, db_mac) = Workload::new("cali2", "10.65.0.2");
    let agent = Agent::start(&[
        ("/calico/v1/Ready", "true".to_owned()),
        (
            PROFILE,
            r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#.to_owned(),
        ),
        (WEB, endpoint("cali1", &web_mac, "10.65.0.1", "web")),
        (DB, endpoint("cali2", &db_mac, "10.65.0.2", "db")),
    ]);
    agent.until(&["endpoint", "list"], |list| {
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        items.len() == 2 && items.iter().all(|e| e["state"] == "up")
    });
    let listener = db.inside(|| TcpListener::bind(("10.65.0.2", PORT)).unwrap());
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"!");
            kept.push(stream);
        }
    });
    let held = web.connect("10.65.0.2").unwrap_or_else(|| panic!("{}", agent.log()));
    (web, db, agent, held)
}

#[test]
fn a_policy_stops_packets_and_everything_that_is_asked_names_it() {
    in_netns(|| {
        let (web, _db, agent, _held) = host();
        let port = PORT.to_string();
        let packet = ["why", "packet", "--from", "web", "--to", "db", "--proto", "tcp", "--dport", &port];
        let (code, why) = agent.ask(&packet);
        assert_eq!(
            (code, why["by"].as_str()),
            (Some(0), Some("profile open, rule 0 (to-workload cni/db/eth0) on h1"))
        );
        let (code, diff) = agent.ask(&["diff"]);
        assert_eq!(code, Some(0), "{diff:#}");

        // The dry run shows the effect, including the existing connection.
        let policy = r#"{"selector":"role == 'db'","inbound_rules":[{"action":"deny","protocol":"tcp","dst_ports":[5432]},
            {"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#;
        let (code, dry) = agent.ask(&["store", "put", POLICY, policy, "--dry-run", "dataplane"]);
        assert_eq!(code, Some(0), "{dry:#}");
        assert_eq!(dry["connections"]["refused"], 1, "{dry:#}");
        let first = dry["connections"]["first"][0].as_str().unwrap();
        assert!(
            first.contains("10.65.0.1") && first.ends_with("policy no-db, rule 0 (to-workload cni/db/eth0)"),
            "{first}"
        );
        assert!(web.connect("10.65.0.2").is_some(), "nothing was written");

        agent.write(POLICY, &["store", "put", POLICY, policy]);
        assert!(web.connect("10.65.0.2").is_none(), "{}", agent.log());
        let (code, why) = agent.ask(&packet);
        assert_eq!(
            (code, why["by"].as_str()),
            (Some(1), Some("policy no-db, rule 0 (to-workload cni/db/eth0) on h1")),
            "{why:#}"
        );
        let dropped = agent.until(&["why", "drop"], |list| {
            list["items"].as_array().is_some_and(|rows| rows.iter().any(|row| row["what"] == "tcp/5432"))
        });
        let row = &dropped["items"][0];
        assert_eq!(
            [&row["rule"], &row["fromEndpoint"], &row["toEndpoint"]],
            ["policy no-db inbound, rule 0", "cni/web/eth0", "cni/db/eth0"],
            "{dropped:#}"
        );
        // Its rule counted exactly these packets, in both forms: a SYN of Linux has 60 octets.
        let (code, shown) = agent.ask(&["policy", "show", "no-db"]);
        let packets = shown["counted"]["inbound"][0]["packets"].as_u64().unwrap_or_default();
        assert!(code == Some(0) && packets > 0, "{shown:#}");
        let none = json!({"packets": 0, "bytes": 0});
        let refused = json!({"packets": packets, "bytes": packets * 60});
        assert_eq!(shown["counted"], json!({"inbound": [refused, none], "outbound": [none]}), "{shown:#}");
        let text = String::from_utf8(agent.run(&["policy", "show", "no-db"]).stdout).unwrap();
        let ends: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("   (")).map(|(_, end)| end).collect();
        let first = format!("{packets} packets, {} bytes)", packets * 60);
        assert_eq!(ends, [first.as_str(), "0 packets, 0 bytes)", "0 packets, 0 bytes)"], "{text}");
        let (code, shown) = agent.ask(&["policy", "show", "open"]);
        let open = shown["counted"]["inbound"][0]["packets"].as_u64();
        assert!(code == Some(0) && open > Some(0), "the connection that came before: {shown:#}");
        let (_, status) = agent.ask(&["status"]);
        let policy = &status["policy"];
        assert_eq!(
            (&policy["mode"], &policy["endpoints"], &policy["policies"], &policy["inSync"]),
            (&json!("program"), &json!(2), &json!(1), &json!(true)),
            "{status:#}"
        );

        let table = &policy["table"];
        assert!(table["rules"].as_u64().is_some_and(|n| n > 10) && table["drifted"] == 0, "{table:#}");

        agent.write(POLICY, &["store", "rm", POLICY]);
        assert!(web.connect("10.65.0.2").is_some(), "{}", agent.log());
        let (code, diff) = agent.ask(&["diff"]);
        assert_eq!(code, Some(0), "{diff:#}");
    });
}

/// Returns the path of `nft` for the caller's namespace.
fn nft() -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let dir = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let path = dir.join("nft");
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "no nft in CI");
    eprintln!("skipped: no nft in {}; `make peers` builds it", dir.display());
    None
}

/// A running trace.
struct Watching(Child);

impl Watching {
    fn arm(agent: &Agent, nft: &Path, seconds: &str) -> Self {
        Self::arm_from("web", agent, nft, seconds)
    }

    fn arm_from(from: &str, agent: &Agent, nft: &Path, seconds: &str) -> Self {
        let port = PORT.to_string();
        let packet = ["policy", "trace", "--from", from, "--to", "db", "--proto", "tcp", "--dport", &port];
        let words = [&packet[..], &["--live", "--for", seconds, "-o", "json"]].concat();
        let child =
            Agent::command(&agent.dir, &words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let this = Self(child);
        until(|| tables(nft).contains("tortie-trace"));
        this
    }

    fn end(self) -> (Option<i32>, Value) {
        let output = self.0.wait_with_output().unwrap();
        let value = serde_json::from_slice(&output.stdout);
        (output.status.code(), value.unwrap_or_else(|_| panic!("{output:?}")))
    }
}

fn until(is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < until, "not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tables(nft: &Path) -> String {
    run_nft(nft, "list tables")
}

fn run_nft(nft: &Path, words: &str) -> String {
    let output = Command::new(nft).args(words.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_live_trace_shows_what_the_kernel_does_and_leaves_nothing_behind() {
    in_netns(|| {
        let Some(nft) = nft() else { return };
        let (web, _db, mut agent, _held) = host();
        let before = tables(&nft);
        assert!(before.contains("inet tortie") && !before.contains("tortie-trace"), "{before}");
        let step = |packet: &Value, of: &str| {
            let steps = packet["steps"].as_array().unwrap().clone();
            steps.into_iter().find(|step| step["of"] == of).unwrap_or_else(|| panic!("no {of}: {packet:#}"))
        };

        // Allowed: the first packet agrees with the evaluator; later packets belong to an established
        // connection.
        let watching = Watching::arm(&agent, &nft, "5");
        assert!(web.connect("10.65.0.2").is_some(), "{}", agent.log());
        let (code, found) = watching.end();
        assert_eq!(
            (code, &found["result"], &found["verdict"]),
            (Some(0), &json!("agrees"), &json!("allow")),
            "{found:#}"
        );
        let first = &found["packets"][0];
        assert_eq!([&first["result"], &first["by"]], ["agrees", "profile open, rule 0"], "{found:#}");
        assert_eq!(step(first, "profile open, rule 0")["verdict"], "accept");
        assert_eq!(found["packets"][1]["result"], "established", "{found:#}");
        assert_eq!(tables(&nft), before);

        // Denied: the answer names rule and policy.
        let policy = r#"{"selector":"role == 'db'","inbound_rules":[{"action":"allow","protocol":"udp"},
            {"action":"deny","protocol":"tcp","dst_ports":[5432]}],"outbound_rules":[{"action":"allow"}]}"#;
        agent.write(POLICY, &["store", "put", POLICY, policy]);
        let watching = Watching::arm(&agent, &nft, "5");
        assert!(web.connect("10.65.0.2").is_none());
        let (code, found) = watching.end();
        assert_eq!(
            (code, &found["result"], &found["verdict"]),
            (Some(1), &json!("agrees"), &json!("deny")),
            "{found:#}"
        );
        let first = &found["packets"][0];
        assert_eq!([&first["by"], &first["expected"]], ["policy no-db, rule 1", "deny"], "{found:#}");
        assert!(step(first, "policy no-db, rule 1")["verdict"].as_str().unwrap().starts_with("goto "));
        assert_eq!(tables(&nft), before);
        agent.write(POLICY, &["store", "rm", POLICY]);

        // Dropped by another program, which is named.
        run_nft(&nft, "add table ip theirs");
        run_nft(&nft, "add chain ip theirs fence { type filter hook forward priority 10 ; }");
        run_nft(&nft, "add rule ip theirs fence tcp dport 5432 drop");
        let others = tables(&nft);
        let watching = Watching::arm(&agent, &nft, "6");
        // Only one trace at a time.
        let port = PORT.to_string();
        let packet = ["policy", "trace", "--from", "web", "--to", "db", "--proto", "tcp", "--dport", &port];
        let second = agent.run(&[&packet[..], &["--live"]].concat());
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(second.status.code() == Some(6) && said.contains("try again"), "{said}");
        assert!(web.connect("10.65.0.2").is_none());
        let (code, found) = watching.end();
        assert_eq!(
            (code, &found["result"], &found["verdict"]),
            (Some(1), &json!("differs"), &json!("deny")),
            "{found:#}"
        );
        let first = &found["packets"][0];
        let by = first["by"].as_str().unwrap();
        assert!(by.starts_with("table ip theirs, chain fence, rule handle "), "{found:#}");
        assert_eq!(first["expected"], "allow");
        assert_eq!(tables(&nft), others);
        run_nft(&nft, "delete table ip theirs");

        // From an address of the host that is not in the store: no rule applies, and the evaluator agrees.
        ip("address add 10.99.0.1/32 dev lo");
        let watching = Watching::arm_from("10.99.0.1", &agent, &nft, "5");
        let to: SocketAddr = ("10.65.0.2".parse::<std::net::IpAddr>().unwrap(), PORT).into();
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
                .unwrap();
        rustix::net::bind(&socket, &"10.99.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        let (code, found) = watching.end();
        assert_eq!((code, &found["packets"][0]["result"]), (Some(0), &json!("agrees")), "{found:#}");

        // No packet arrives.
        let (code, found) = Watching::arm(&agent, &nft, "1").end();
        assert_eq!((code, &found["result"]), (Some(5), &json!("none")), "{found:#}");
        assert_eq!(tables(&nft), before);

        // The caller disconnects, then the agent ends.
        let mut watching = Watching::arm(&agent, &nft, "60");
        watching.0.kill().unwrap();
        watching.0.wait().unwrap();
        until(|| tables(&nft) == before);
        let (code, diff) = agent.ask(&["diff"]);
        assert_eq!(code, Some(0), "{diff:#}");
        let (_, status) = agent.ask(&["status"]);
        assert_eq!(status["policy"]["table"]["externalChanges"], 0, "{status:#}");
        let mut watching = Watching::arm(&agent, &nft, "60");
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        assert_eq!(watching.0.wait().unwrap().code(), Some(3));
        until(|| tables(&nft) == before);
    });
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_enforced() {
    in_netns(|| {
        let (web, _db, agent, _held) = host();
        let policy = |name: &str| format!("/calico/v1/policy/tier/default/policy/{name}");
        let rules = |rule: &str| {
            format!(r#"{{"selector":"all()","inbound_rules":[{rule}],"outbound_rules":[{{}}]}}"#)
        };
        let large = |size| format!(r#"{{"selector":"all()","order":"{}"}}"#, "9".repeat(size));
        let wrong = [
            (policy("selector"), r#"{"selector":"role ==","inbound_rules":[{"action":"deny"}]}"#.to_owned()),
            (policy("cidr"), rules(r#"{"action":"deny","src_net":"10.0.0.0/40"}"#)),
            (policy("ports"), rules(r#"{"action":"deny","protocol":"tcp","dst_ports":["9000:80"]}"#)),
            (policy("type"), r#"{"selector":"all()","inbound_rules":4}"#.to_owned()),
            (policy("action"), rules(r#"{"action":"explode"}"#)),
            (policy("large"), large(1_000_000)),
            (
                "/calico/v1/host/h1/workload/cni/odd/endpoint/eth0".to_owned(),
                r#"{"name":"cali3","ipv4_nets":"x"}"#.to_owned(),
            ),
            ("/calico/v1/config/IptablesMarkMask".to_owned(), "many".to_owned()),
        ];
        let unknown = ("/calico/v1/policy/tier/default/strange/x".to_owned(), "?".to_owned());
        let all: serde_json::Map<String, Value> =
            wrong.iter().chain([&unknown]).map(|(key, value)| (key.clone(), value.as_str().into())).collect();
        let file = agent.dir.path().join("wrong.json");
        std::fs::write(&file, Value::from(all).to_string()).unwrap();
        let output = agent.run(&["store", "import", "--raw", &file.display().to_string()]);
        assert!(output.status.success(), "{output:?}");
        // Neither store accepts ten megabytes.
        std::fs::write(&file, json!({ policy("huge"): large(10 << 20) }).to_string()).unwrap();
        let output = agent.run(&["store", "import", "--raw", &file.display().to_string()]);
        assert!(String::from_utf8_lossy(&output.stderr).contains("policy/huge has 104"), "{output:?}");
        let named = |status: &Value, key: &str| status.to_string().contains(key);
        let status = agent.until(&["status"], |status| wrong.iter().all(|(key, _)| named(status, key)));
        assert!(!named(&status, "explode\"}]"), "values are not repeated: {status:#}");
        assert!(web.connect("10.65.0.2").is_some(), "what cannot be read acts on nobody\n{}", agent.log());

        // Other policies work: a readable one is enforced, and removed again.
        let deny = r#"{"selector":"role == 'db'","inbound_rules":[{"action":"deny"}]}"#;
        agent.write(POLICY, &["store", "put", POLICY, deny]);
        assert!(web.connect("10.65.0.2").is_none(), "{}", agent.log());
        // An unreadable value keeps its last good form.
        let output = agent.run(&["store", "put", "--raw", POLICY, "{"]);
        assert!(output.status.success(), "{output:?}");
        agent.until(&["status"], |status| named(status, POLICY));
        assert!(web.connect("10.65.0.2").is_none(), "{}", agent.log());
        agent.write(POLICY, &["store", "rm", POLICY]);
        assert!(web.connect("10.65.0.2").is_some(), "{}", agent.log());

        // An unreadable profile denies.
        let output = agent.run(&["store", "put", "--raw", PROFILE, r#"{"inbound_rules":"all"}"#]);
        assert!(output.status.success(), "{output:?}");
        agent.until(&["status"], |status| named(status, PROFILE));
        assert!(web.connect("10.65.0.2").is_none(), "{}", agent.log());
    });
}

/// Sends numbered datagrams from `from` to a port at `to` until told to stop; returns their number. Every
/// second one is the first of its connection; the others belong to an existing one.
fn datagrams(from: &Workload, to: &'static str, port: u16, stop: &Arc<AtomicBool>) -> JoinHandle<u32> {
    let stop = Arc::clone(stop);
    let socket = || UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    from.alongside(move || {
        let old = socket();
        let mut number = 0u32;
        while !stop.load(Ordering::Relaxed) {
            let fresh = socket();
            let by = if number.is_multiple_of(2) { &fresh } else { &old };
            by.send_to(&number.to_be_bytes(), (to, port)).unwrap();
            number += 1;
            std::thread::sleep(Duration::from_micros(500));
        }
        number
    })
}

/// Returns the numbers that arrive at a port until none arrives for a second after the stop.
fn arrivals(
    at: &Workload,
    addr: &'static str,
    port: u16,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<BTreeSet<u32>> {
    let stop = Arc::clone(stop);
    let socket = at.inside(move || UdpSocket::bind((addr, port)).unwrap());
    // Room for some seconds: a thread that a busy machine does not run must not count as a lost packet.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    std::thread::spawn(move || {
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let (mut seen, mut number) = (BTreeSet::new(), [0; 4]);
        loop {
            let last = stop.load(Ordering::Relaxed);
            match uninterrupted(|| socket.recv(&mut number)) {
                Ok(_) => drop(seen.insert(u32::from_be_bytes(number))),
                Err(_) if last => return seen,
                Err(_) => {}
            }
        }
    })
}

#[test]
fn an_agent_that_is_killed_or_stopped_and_comes_back_loses_and_passes_nothing() {
    const OPEN: u16 = 4242;
    const CLOSED: u16 = 4243;
    in_netns(|| {
        let (web, db, mut agent, mut held) = host();
        let policy = |order: u32| {
            json!({"selector": "role == 'db'", "order": order, "outbound_rules": [{"action": "allow"}],
                   "inbound_rules": [{"action": "deny", "protocol": "udp", "dst_ports": [CLOSED]}, {"action": "allow"}]})
            .to_string()
        };
        agent.write(POLICY, &["store", "put", POLICY, &policy(1)]);
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let open = arrivals(&db, "10.65.0.2", OPEN, &received);
        let closed = arrivals(&db, "10.65.0.2", CLOSED, &received);
        let allowed = datagrams(&web, "10.65.0.2", OPEN, &stop);
        let denied = datagrams(&web, "10.65.0.2", CLOSED, &stop);
        let handles = nft().map(|nft| (run_nft(&nft, "-s -a list table inet tortie"), nft));
        for (round, signal) in (0..8).map(|n| (n, [Signal::KILL, Signal::TERM][n % 2])) {
            agent.restart(signal);
            if let Some((before, nft)) = handles.as_ref().filter(|_| round < 4) {
                let after = run_nft(nft, "-s -a list table inet tortie");
                assert_eq!(&after, before, "what was right stays, with its handles");
            } else {
                // Another order value: the same packets pass.
                agent.write(POLICY, &["store", "put", POLICY, &policy(2 + u32::try_from(round).unwrap())]);
            }
        }
        stop.store(true, Ordering::Relaxed);
        let (allowed, denied) = (allowed.join().unwrap(), denied.join().unwrap());
        received.store(true, Ordering::Relaxed);
        let (open, closed) = (open.join().unwrap(), closed.join().unwrap());
        let lost: Vec<u32> = (0..allowed).filter(|number| !open.contains(number)).collect();
        eprintln!(
            "8 restarts; {allowed} packets allowed, {} lost; {denied} denied, {} passed",
            lost.len(),
            closed.len()
        );
        assert!(allowed > 100 && denied > 100, "{allowed}, {denied}");
        assert!(lost.is_empty() && closed.is_empty(), "lost {lost:?}, passed {closed:?}\n{}", agent.log());
        held.write_all(b"?").unwrap();
        assert!(web.connect("10.65.0.2").is_some(), "{}", agent.log());
    });
}
