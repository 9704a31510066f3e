//! Hosts with real agents in namespaces: a fabric, a separate network for etcd, and a store that a test can
//! break.
//!
//! ```text
//!   host1 .. hostN --eth1--> switch (172.30.0.0/24; a BIRD router at .254 if [`Plan::router`])
//!                  --eth2--> switch (10.99.0.0/24) <--eth1-- etcd1 .. etcdM
//! ```

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test helper; not every test uses all of it"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_topology::{Lab, Options, Running, Sandbox, Signal, Victim};

mod unchanged;

use super::concurrency::{self, Membership};

/// Maximum wait; machines that run tests are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The program under test.
pub(crate) const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Polls until `ask` succeeds; panics with the last error.
pub(crate) fn within(limit: Duration, what: &str, ask: impl FnMut() -> Result<(), String>) {
    poll_until(limit, what, ask).unwrap_or_else(|missed| panic!("{missed}"));
}

/// Polls until `ask` returns a value. An error is the last one.
pub(crate) fn poll_until<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<T, String>,
) -> Result<T, String> {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(found) => return Ok(found),
            Err(evidence) if begin.elapsed() > limit => {
                return Err(format!("{what}: not within {limit:?}: {evidence}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Composition of the lab.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Number of hosts with an agent.
    pub(crate) hosts: usize,
    /// Number of etcd members; 0: SQLite.
    pub(crate) etcd: usize,
    /// The switch is also a BIRD router.
    pub(crate) router: bool,
    /// Additional arguments of `agent`, by host.
    pub(crate) flags: BTreeMap<usize, String>,
    /// Configured etcd members of a host, if not all.
    pub(crate) members: BTreeMap<usize, Vec<usize>>,
    /// Hosts whose agents wait for [`Hosts::start_agent`].
    pub(crate) later: Vec<usize>,
    /// Initial contents of the store, in place of the usual data.
    pub(crate) data: Option<BTreeMap<String, String>>,
    /// Additional files of this machine visible to each host, as `binds` and `tmpfs` of a lab file.
    pub(crate) binds: &'static [&'static str],
    pub(crate) tmpfs: &'static [&'static str],
    /// Hosts have an IPv6 address too: fd30::N.
    pub(crate) dual: bool,
    /// Number of machines without links, `vm1` and so on: a test gives them links to hosts.
    pub(crate) machines: usize,
}

/// A running lab.
pub(crate) struct Hosts {
    pub(crate) lab: Running,
    plan: Plan,
    dir: tempfile::TempDir,
    _group: Membership,
}

/// Returns true if labs can be built here and the programs are present. Otherwise prints the reason; in CI
/// that is a failure.
fn possible(options: &Options, plan: &Plan) -> bool {
    let skip = |why: &str| {
        assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
        eprintln!("skipped: {why}");
        false
    };
    match Sandbox::detect() {
        Ok(Sandbox::Root) => {}
        Ok(Sandbox::Rootless { .. }) => return skip("needs root to act on namespaces directly"),
        Err(e) => return skip(&e.to_string()),
    }
    let programs = [(plan.etcd > 0, "etcd"), (plan.etcd > 0, "etcdctl"), (plan.router, "bird")];
    for (_, program) in programs.iter().filter(|(needed, _)| *needed) {
        if options.find(program).is_none() {
            return skip(&format!("{program} is missing; tests/tools/peers.sh brings it"));
        }
    }
    true
}

/// Returns the value of a block of 64 addresses with affinity to a host.
pub(crate) fn block(cidr: &str, host: &str) -> String {
    let free: Vec<u32> = (0..64).collect();
    json!({
        "cidr": cidr, "affinity": format!("host:{host}"), "strictAffinity": false,
        "allocations": vec![Value::Null; 64], "unallocated": free, "attributes": [],
    })
    .to_string()
}

/// Returns the keys of a block and of its affinity.
pub(crate) fn block_keys(cidr: &str, host: &str) -> [String; 2] {
    let name = cidr.replace('/', "-");
    [
        format!("/calico/ipam/v2/host/{host}/ipv4/block/{name}"),
        format!("/calico/ipam/v2/assignment/ipv4/block/{name}"),
    ]
}

/// Returns the data of the lab files of this repository for this number of hosts.
pub(crate) fn lab_data(hosts: usize, router: bool) -> BTreeMap<String, String> {
    let lab = if router { "tor-bird" } else { "mesh" };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("topology/labs/{lab}/store.json"));
    let mut map: BTreeMap<String, String> =
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    for absent in hosts + 1..=3 {
        map.retain(|k, v| !k.contains(&format!("host{absent}")) && !v.contains(&format!("host{absent}")));
    }
    map
}

impl Hosts {
    /// Builds the lab, fills the store and starts the agents. `None` if that is not possible here.
    pub(crate) fn up(plan: Plan) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::tied(Path::new(TORTIE), &dir.path().join("state"));
        if !possible(&options, &plan) {
            return None;
        }
        let group = concurrency::LABS.join();
        let text = text(&plan);
        let lab = Lab::from_text(&text, &dir.path().join("hosts.clab.yml")).unwrap_or_else(|e| panic!("{e}"));
        let lab = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let this = Self { lab, plan, dir, _group: group };
        // Programs in PATH are found only if their folder exists at the start of the agent.
        std::fs::create_dir_all(this.shared().join("bin")).unwrap();
        if this.plan.etcd > 0 {
            this.etcd_answers();
        }
        let data = this.plan.data.clone();
        let data = data.unwrap_or_else(|| lab_data(this.plan.hosts, this.plan.router));
        if !data.is_empty() {
            this.import(&data);
        }
        for host in (1..=this.plan.hosts).filter(|h| !this.plan.later.contains(h)) {
            this.start_agent(host);
        }
        Some(this)
    }

    fn shared(&self) -> PathBuf {
        self.lab.lab_dir().join("store")
    }

    /// Installs a program that agents find before the system's program of the same name.
    pub(crate) fn tool(&self, name: &str, script: &str) {
        let dir = self.shared().join("bin");
        std::fs::write(dir.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Starts the agent of a host that waits.
    pub(crate) fn start_agent(&self, host: usize) {
        std::fs::write(self.shared().join(format!("go{host}")), "").unwrap();
    }

    /// Waits until etcd answers on every running member.
    pub(crate) fn etcd_answers(&self) {
        within(PATIENCE, "etcd answers", || match self.try_etcdctl(1, &["endpoint", "health"]) {
            Ok(_) => Ok(()),
            Err(e) => {
                let log = std::fs::read_to_string(self.lab.log_of("etcd1").unwrap()).unwrap_or_default();
                Err(format!("{e}, etcd runs: {}\n{log}", self.lab.pid("etcd1").is_some()))
            }
        });
    }

    /// Restarts the first member and waits until it answers. One that exits at its start, because its port is
    /// not free yet, is started once more.
    pub(crate) fn start_etcd(&mut self) {
        self.start("etcd1");
        let begin = Instant::now();
        while let Err(error) = self.try_etcdctl(1, &["endpoint", "health"]) {
            let log = std::fs::read_to_string(self.lab.log_of("etcd1").unwrap()).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "etcd does not answer: {error}\n{log}");
            if self.lab.pid("etcd1").is_none() {
                println!("etcd ended at its start: {}", log.lines().last().unwrap_or_default());
                self.start("etcd1");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn try_etcdctl(&self, member: usize, words: &[&str]) -> Result<String, String> {
        let mut all = vec!["env", "ETCDCTL_API=3", "etcdctl", "--dial-timeout=5s", "--command-timeout=10s"];
        all.extend(words);
        let output = self.lab.exec(&format!("etcd{member}"), &all).unwrap();
        if output.status.success() { Ok(stdout(&output)) } else { Err(stderr(&output)) }
    }

    pub(crate) fn etcdctl(&self, member: usize, words: &[&str]) -> String {
        self.try_etcdctl(member, words).unwrap_or_else(|e| panic!("etcdctl {words:?}: {e}"))
    }

    /// Sets the link of a member up or down.
    pub(crate) fn cable(&self, member: usize, up: bool) {
        self.lab.set_link(&format!("etcd{member}"), "eth1", up).unwrap();
    }

    /// Runs `tortie` directly on the store: on the first etcd member, or on the first host.
    pub(crate) fn store(&self, words: &[&str]) -> Output {
        self.store_at(1, words)
    }

    /// The same on another member.
    pub(crate) fn store_at(&self, member: usize, words: &[&str]) -> Output {
        let (node, url) = match self.plan.etcd {
            0 => ("host1".to_owned(), "sqlite:/store/store.db"),
            _ => (format!("etcd{member}"), "etcd://127.0.0.1:2379"),
        };
        let mut all = vec![TORTIE, "--datastore", url, "store"];
        all.extend(words);
        self.lab.exec(&node, &all).unwrap()
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        let output = self.store(&["put", "--raw", key, value]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Writes a key and waits until the agent of a host has it in force.
    pub(crate) fn put_in_force(&self, host: usize, key: &str, value: &str) {
        let revision = self.put_at_revision(key, value);
        self.until_in_force(host, key, revision);
    }

    /// Waits until the agent of a host has a revision of a key in force.
    pub(crate) fn until_in_force(&self, host: usize, key: &str, revision: u64) {
        let request = json!({ "key": key, "revision": revision, "waitMillis": 10_000 }).to_string();
        within(PATIENCE, &format!("host{host}: {key} is in force"), || {
            let (_, answer) = self.ask(host, "POST", "/v1/applied", &request)?;
            if answer.contains(r#""result":"applied""#) { Ok(()) } else { Err(answer) }
        });
    }

    /// Writes a key; returns the revision.
    pub(crate) fn put_at_revision(&self, key: &str, value: &str) -> u64 {
        let output = self.store(&["put", "--raw", key, value, "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output);
        let digits = text.split("revision ").nth(1).unwrap_or_else(|| panic!("no revision: {text}"));
        digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }

    pub(crate) fn rm(&self, key: &str) {
        let output = self.store(&["rm", "--force", key]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Imports a map into the store, on a member that answers on its loopback.
    pub(crate) fn import(&self, data: &BTreeMap<String, String>) {
        self.import_at(1, data);
    }

    pub(crate) fn import_at(&self, member: usize, data: &BTreeMap<String, String>) {
        let name = format!("import{member}.json");
        std::fs::write(self.shared().join(&name), serde_json::to_string(data).unwrap()).unwrap();
        let output = self.store_at(member, &["import", "--raw", &format!("/store/{name}")]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Runs `tortie` on a host, as an operator would.
    pub(crate) fn tortie(&self, host: usize, words: &[&str]) -> Output {
        let mut all = vec![TORTIE];
        all.extend(words);
        self.lab.exec(&format!("host{host}"), &all).unwrap()
    }

    /// Returns the output of a command that has to succeed.
    pub(crate) fn run(&self, node: &str, command: &str) -> String {
        let output = self.lab.exec(node, &command.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(output.status.success(), "{node}: {command}: {}", stderr(&output));
        stdout(&output)
    }

    pub(crate) fn node(host: usize) -> String {
        format!("host{host}")
    }

    /// Returns the process id of a host's agent.
    pub(crate) fn pid(&self, host: usize) -> i32 {
        self.lab.pid(&Self::node(host)).unwrap_or_else(|| panic!("host{host}: {}", self.log(host)))
    }

    pub(crate) fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.lab.log_of(&Self::node(host)).unwrap()).unwrap_or_default()
    }

    /// Returns a path in the file system of a host.
    pub(crate) fn path(&self, host: usize, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid(host)))
    }

    /// Returns a path in the file system of a node, even if its command is not running.
    pub(crate) fn holder_path(&self, node: &str, path: &str) -> PathBuf {
        let netns = self.lab.netns(node).unwrap();
        let process = netns.ancestors().nth(2).unwrap();
        process.join("root").join(path.trim_start_matches('/'))
    }

    /// Sends one request to the agent's socket. Returns status code and body.
    pub(crate) fn ask(
        &self,
        host: usize,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(u16, String), String> {
        let Some(pid) = self.lab.pid(&Self::node(host)) else {
            return Err(format!("no agent on host{host}: {}", self.log(host)));
        };
        let socket = format!("/proc/{pid}/root/run/tortie/tortie.sock");
        let mut stream = UnixStream::connect(&socket).map_err(|e| format!("{socket}: {e}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).map_err(|e| e.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|e| e.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let code = head.split(' ').nth(1).and_then(|c| c.parse().ok()).ok_or("no status")?;
        Ok((code, body.to_owned()))
    }

    pub(crate) fn get(&self, host: usize, path: &str) -> Result<Value, String> {
        let (code, body) = self.ask(host, "GET", path, "")?;
        if code != 200 {
            return Err(format!("{code} {body}"));
        }
        serde_json::from_str(&body).map_err(|e| format!("{e}: {body}"))
    }

    pub(crate) fn status(&self, host: usize) -> Value {
        let mut found = Value::Null;
        within(PATIENCE, "the agent answers", || {
            found = self.get(host, "/v1/status")?;
            Ok(())
        });
        found
    }

    /// Waits until `check` accepts the status of a host.
    pub(crate) fn until(&self, host: usize, what: &str, check: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        within(PATIENCE, &format!("host{host}: {what}"), || {
            found = self.get(host, "/v1/status")?;
            if check(&found) { Ok(()) } else { Err(format!("{found:#}\n{}", self.log(host))) }
        });
        found
    }

    /// Returns the prefixes in a host's kernel with our protocol number, blackholes included.
    pub(crate) fn routes(&self, host: usize) -> BTreeSet<String> {
        let text = self.run(&Self::node(host), "ip route show proto 179");
        text.lines()
            .map(|l| {
                let mut words = l.split_whitespace();
                let first = words.next().unwrap_or_default();
                let kind = if first == "blackhole" { " blackhole" } else { "" };
                let prefix = if kind.is_empty() { first } else { words.next().unwrap_or_default() };
                format!("{prefix}{kind}")
            })
            .collect()
    }

    /// Waits until a host's kernel has exactly these routes.
    pub(crate) fn until_routes(&self, host: usize, wanted: &[&str]) {
        let wanted: BTreeSet<String> = wanted.iter().map(|w| (*w).to_owned()).collect();
        within(PATIENCE, &format!("routes of host{host}"), || {
            let found = self.routes(host);
            if found == wanted {
                return Ok(());
            }
            Err(format!("{found:?} instead of {wanted:?}\n{}", self.log(host)))
        });
    }

    /// Waits until every session of every running host is up.
    pub(crate) fn until_sessions(&self, each: usize) {
        for host in (1..=self.plan.hosts).filter(|h| self.lab.pid(&Self::node(*h)).is_some()) {
            self.until(host, "sessions up", |s| {
                s["bgp"]["mesh"]["up"].as_u64().unwrap() + s["bgp"]["peers"]["up"].as_u64().unwrap()
                    == each as u64
            });
        }
    }

    /// Returns the sessions of a host: name -> (state, seconds in that state, flaps).
    pub(crate) fn sessions(&self, host: usize) -> BTreeMap<String, (String, u64, u64)> {
        let mut list = Value::Null;
        within(PATIENCE, "the agent lists its peers", || {
            list = self.get(host, "/v1/bgp/peers")?;
            Ok(())
        });
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| {
                let text = |f: &str| p[f].as_str().unwrap().to_owned();
                let number = |f: &str| p[f].as_u64().unwrap();
                (text("session"), (text("state"), number("stateSeconds"), number("flaps")))
            })
            .collect()
    }

    pub(crate) fn kill(&mut self, node: &str) {
        assert!(self.lab.kill(node, Victim::Command).unwrap(), "{node} does not run");
    }

    pub(crate) fn signal(&mut self, node: &str, signal: Signal) {
        assert!(self.lab.signal(node, Victim::Command, signal).unwrap(), "{node} does not run");
    }

    /// Waits until a host's agent has ended successfully.
    pub(crate) fn until_ended(&mut self, host: usize) {
        // Its main thread may end before the others.
        within(PATIENCE, "the agent ends", || match self.lab.exit_status(&Self::node(host)) {
            Some(status) if status.success() => Ok(()),
            status => Err(format!("{status:?}\n{}", self.log(host))),
        });
    }

    pub(crate) fn start(&mut self, node: &str) {
        self.lab.start(node).unwrap_or_else(|e| panic!("{e}"));
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the lab as a containerlab file.
fn text(plan: &Plan) -> String {
    let (mut nodes, mut links, mut waits) = (String::new(), String::new(), Vec::new());
    let mut ports = String::new();
    let url = |host: usize| {
        if plan.etcd == 0 {
            return "sqlite:/store/store.db".to_owned();
        }
        let known = plan.members.get(&host).cloned().unwrap_or_else(|| (1..=plan.etcd).collect());
        let all: Vec<String> = known.iter().map(|m| format!("10.99.0.{}:2379", 100 + m)).collect();
        format!("etcd://{}", all.join(","))
    };
    for host in 1..=plan.hosts {
        let flags = plan.flags.get(&host).map_or("", String::as_str);
        let six = if plan.dual { format!(", ipv6: [\"fd30::{host}/64\"]") } else { String::new() };
        let store = url(host);
        let agent =
            format!("env PATH=/store/bin:$PATH {TORTIE} --datastore {store} --node host{host} agent {flags}");
        let binds: String = plan.binds.iter().map(|b| format!(", \"{b}\"")).collect();
        let tmpfs: Vec<String> = plan.tmpfs.iter().map(|dir| format!("{dir}: \"\"")).collect();
        let _ = write!(
            nodes,
            "    host{host}:\n      image: tortie\n      binds: [\"__clabDir__/store:/store\"{binds}]\n      \
             tmpfs: {{{}}}\n      sysctls: {{net.ipv4.ip_forward: 1}}\n      \
             cmd: sh -c 'until [ -e /store/go{host} ]; do sleep 0.05; done; exec {agent}'\n",
            tmpfs.join(", ")
        );
        let _ = writeln!(
            links,
            "    - {{endpoints: [\"host{host}:eth1\", \"switch:h{host}\"], ipv4: [172.30.0.{host}/24]{six}}}"
        );
        let _ = writeln!(
            links,
            "    - {{endpoints: [\"host{host}:eth2\", \"switch:m{host}\"], ipv4: [10.99.0.{host}/24]}}"
        );
        let _ = write!(
            ports,
            "        - ip link set h{host} master br0\n        - ip link set m{host} master br1\n"
        );
        waits.push(format!("{{node: host{host}, stage: create-links}}"));
    }
    for machine in 1..=plan.machines {
        let _ = writeln!(nodes, "    vm{machine}:\n      image: alpine\n      cmd: sleep infinity");
    }
    let cluster: Vec<String> =
        (1..=plan.etcd).map(|m| format!("etcd{m}=http://10.99.0.{}:2380", 100 + m)).collect();
    for m in 1..=plan.etcd {
        let at = format!("10.99.0.{}", 100 + m);
        let _ = write!(
            nodes,
            "    etcd{m}:\n      image: etcd\n      binds: [\"__clabDir__/store:/store\"]\n      \
             cmd: etcd --name etcd{m} --data-dir /var/tmp/etcd --listen-client-urls http://0.0.0.0:2379 \
             --advertise-client-urls http://{at}:2379 --listen-peer-urls http://0.0.0.0:2380 \
             --initial-advertise-peer-urls http://{at}:2380 --initial-cluster {} --heartbeat-interval 100 \
             --election-timeout 1000\n",
            cluster.join(",")
        );
        let _ = writeln!(links, "    - {{endpoints: [\"etcd{m}:eth1\", \"switch:e{m}\"], ipv4: [{at}/24]}}");
        let _ = writeln!(ports, "        - ip link set e{m} master br1");
        waits.push(format!("{{node: etcd{m}, stage: create-links}}"));
    }
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs/tor-bird/bird.conf");
    let (kind, address) = if plan.router {
        let kind = format!(
            "      image: bird\n      binds: [\"{}:/etc/bird/bird.conf:ro\"]\n      cmd: bird -f -c /etc/bird/bird.conf\n",
            conf.display()
        );
        (kind, "        - ip addr add 172.30.0.254/24 dev br0\n")
    } else {
        ("      image: alpine\n      cmd: sleep infinity\n".to_owned(), "")
    };
    format!(
        "name: hosts{}\ntopology:\n  defaults: {{kind: linux, network-mode: none}}\n  nodes:\n    switch:\n{kind}      \
         exec:\n        - ip link add br0 type bridge\n        - ip link add br1 type bridge\n{ports}{address}        \
         - ip link set br0 up\n        - ip link set br1 up\n      stages: {{configure: {{wait-for: [{}]}}}}\n\
         {nodes}  links:\n{links}",
        std::process::id(),
        waits.join(", ")
    )
}
