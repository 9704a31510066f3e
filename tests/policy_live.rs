//! A host with two workloads, its agent, and its operator: a policy that is written stops packets, everything that is asked
//! names it, and removing it lets them pass again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

#[path = "common/netns.rs"]
mod netns;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use netns::{in_netns, ip};
use serde_json::{Value, json};

const PORT: u16 = 5432;
const WEB: &str = "/calico/v1/host/h1/workload/cni/web/endpoint/eth0";
const DB: &str = "/calico/v1/host/h1/workload/cni/db/endpoint/eth0";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/no-db";

/// A namespace behind an interface of the host.
struct Workload(String);

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

impl Workload {
    fn new(interface: &str, addr: &str) -> (Self, String) {
        let name = format!("live-{}-{interface}", std::process::id());
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
        let name = self.0.clone();
        let thread = std::thread::spawn(move || {
            let file = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            body()
        });
        thread.join().unwrap()
    }

    fn connect(&self, addr: &'static str) -> Option<TcpStream> {
        self.inside(move || {
            let to: SocketAddr = format!("{addr}:{PORT}").parse().unwrap();
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(1_500)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.write_all(b"?").ok()?;
            stream.read_exact(&mut [0]).ok()?;
            Some(stream)
        })
    }
}

struct Agent {
    child: Child,
    dir: tempfile::TempDir,
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
        let dir = tempfile::tempdir().unwrap();
        for (key, value) in entries {
            let output = Self::command(&dir, &["store", "put", key, value]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let cache = dir.path().join("cache").display().to_string();
        let words = ["agent", "--http", "none", "--ip4", "127.0.0.1/8", "--bgp-listen", "127.0.0.1:1790"];
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Self::command(&dir, &[&words[..], &["--cache", &cache]].concat())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, dir }
    }

    fn run(&self, words: &[&str]) -> Output {
        Self::command(&self.dir, words).output().unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// The answer in JSON, with the exit code.
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

    /// Writes and waits until it is in force.
    fn write(&self, key: &str, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let revision: u64 = said.split_whitespace().last().unwrap().parse().unwrap();
        let socket = self.dir.path().join("tortie.sock");
        let request = json!({"key": key, "revision": revision, "waitMillis": 20_000});
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer: Value =
            runtime.block_on(tortie::cli::Client::new(&socket).post("/v1/applied", &request)).unwrap();
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

#[test]
fn a_policy_stops_packets_and_everything_that_is_asked_names_it() {
    in_netns(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let (web, web_mac) = Workload::new("cali1", "10.65.0.1");
        let (db, db_mac) = Workload::new("cali2", "10.65.0.2");
        let agent = Agent::start(&[
            ("/calico/v1/Ready", "true".to_owned()),
            (
                "/calico/v1/policy/profile/open/rules",
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
        let held = web.connect("10.65.0.2");
        assert!(held.is_some(), "{}", agent.log());
        let port = PORT.to_string();
        let packet = ["why", "packet", "--from", "web", "--to", "db", "--proto", "tcp", "--dport", &port];
        let (code, why) = agent.ask(&packet);
        assert_eq!(
            (code, why["by"].as_str()),
            (Some(0), Some("profile open, rule 0 (to-workload cni/db/eth0) on h1"))
        );
        let (code, diff) = agent.ask(&["diff"]);
        assert_eq!(code, Some(0), "{diff:#}");

        // What it would do, with the connection that is there.
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
