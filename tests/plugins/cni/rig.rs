//! A host with its store and agent, containers, and plugin calls.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use tortie_config::Dialect;

use crate::common::calico3;
use crate::common::netns::{in_netns, ip, try_ip};

pub(crate) const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
pub(crate) const POOL: &str = "10.65.0.0/16";
pub(crate) const POOL6: &str = "fd00:65::/64";

/// A host: the namespace of this thread.
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
    agent: Option<Child>,
    pub(crate) dialect: Dialect,
    store: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(15).collect();
            println!("the end of the agent's log, last line first:\n{}", last.join("\n"));
            println!(
                "the plugins' log:\n{}",
                std::fs::read_to_string(self.dir.path().join("cni.log")).unwrap_or_default()
            );
        }
        self.stop_agent();
    }
}

/// A container: a namespace with a unique name.
pub(crate) struct Container {
    pub(crate) name: String,
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = try_ip(&format!("netns del {}", self.name));
    }
}

impl Container {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("cni{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        Self { name }
    }

    pub(crate) fn netns(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Returns a container id in the form of container engines.
    pub(crate) fn id(&self) -> String {
        let (pid, count) = self.name.strip_prefix("cni").unwrap().split_once('x').unwrap();
        let (pid, count): (u32, u32) = (pid.parse().unwrap(), count.parse().unwrap());
        format!("{count:04x}{pid:07x}{:053x}", 0xcafe)
    }

    /// Runs `ip` inside the container.
    pub(crate) fn ip(&self, words: &str) -> String {
        ip(&format!("-n {} {words}", self.name))
    }
}

/// Answer of a plugin.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) value: Value,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    fn of(output: &Output) -> Self {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        Self {
            ok: output.status.success(),
            value: serde_json::from_str(&stdout).unwrap_or(Value::Null),
            stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns the result of a successful call; fails the test otherwise.
    pub(crate) fn done(self) -> Value {
        assert!(self.ok, "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "", "nothing on stderr on success");
        self.value
    }

    /// Returns code and text of the error.
    pub(crate) fn refused(&self) -> (u64, &str) {
        assert!(!self.ok, "{self:?}");
        let code = self.value["code"].as_u64().unwrap_or_else(|| panic!("no error object: {self:?}"));
        assert!(self.value["cniVersion"].is_string(), "{self:?}");
        (code, self.value["msg"].as_str().unwrap())
    }
}

impl Host {
    /// Runs a test on a host with both pools and a running agent, on a store of the v1 model.
    pub(crate) fn with_agent(body: impl FnOnce(&mut Self) + Send + 'static) {
        Self::with_agent_in(Dialect::V1, body);
    }

    /// Runs a test on a host with both pools and a running agent.
    pub(crate) fn with_agent_in(dialect: Dialect, body: impl FnOnce(&mut Self) + Send + 'static) {
        in_netns(move || {
            let mut host = Self::new(dialect, None);
            if dialect == Dialect::V1 || tortie_store::Purpose::Agent.writes_calico_3() {
                host.start_agent();
            }
            body(&mut host);
        });
    }

    /// Runs a test with a running agent on a store of each model.
    pub(crate) fn with_agent_in_both(body: fn(&mut Self)) {
        Self::with_agent_in(Dialect::V1, body);
        Self::with_agent_in(Dialect::V3, body);
    }

    /// Runs a test on a host without an agent; plugins work without it.
    pub(crate) fn without_agent(body: impl FnOnce(&mut Self) + Send + 'static) {
        in_netns(move || body(&mut Self::new(Dialect::V1, None)));
    }

    /// Runs a test without an agent on a store of each model.
    pub(crate) fn without_agent_in_both(body: fn(&mut Self)) {
        for dialect in [Dialect::V1, Dialect::V3] {
            in_netns(move || body(&mut Self::new(dialect, None)));
        }
    }

    /// Runs a test in the namespace of this thread, without an agent, on a store of the caller or its own.
    pub(crate) fn on_store(dialect: Dialect, url: Option<String>, body: fn(&mut Self)) {
        body(&mut Self::new(dialect, url));
    }

    fn new(dialect: Dialect, store: Option<String>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["tortie-cni", "tortie-ipam", "calico-ipam"] {
            symlink(TORTIE, bin.join(name)).unwrap();
        }
        // Source addresses of the host's own packets.
        ip("address add 192.0.2.1/32 dev lo");
        ip("address add 2001:db8::1/128 dev lo");
        let store = store.unwrap_or_else(|| format!("sqlite:{}", dir.path().join("store.db").display()));
        let this = Self { dir, agent: None, dialect, store };
        if dialect == Dialect::V3 {
            for (key, value) in [calico3::cluster_information(true), calico3::node("h1", "192.0.2.1/24")] {
                this.put(&key, &value);
            }
        }
        this.pool(POOL, json!({ "cidr": POOL }));
        this.pool(POOL6, json!({ "cidr": POOL6 }));
        this
    }

    pub(crate) fn pool(&self, cidr: &str, value: Value) {
        if self.dialect == Dialect::V3 {
            let (key, value) = calico3::pool(cidr, &value);
            return self.put(&key, &value);
        }
        let family = if cidr.contains(':') { "v6" } else { "v4" };
        let key = format!("/calico/v1/ipam/{family}/pool/{}", cidr.replace('/', "-"));
        self.put(&key, &value.to_string());
    }

    pub(crate) fn store(&self) -> String {
        self.store.clone()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn tortie(&self, words: &[&str]) -> Command {
        let mut command = Command::new(TORTIE);
        command.args(["--datastore", &self.store(), "--socket", &self.path("tortie.sock"), "--node", "h1"]);
        command.args(words).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.tortie(words).output().unwrap()
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        let output = self.run(&["store", "put", "--raw", key, value]);
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn rm(&self, key: &str) {
        let output = self.run(&["store", "rm", key]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Freezes the data model, or ends that.
    pub(crate) fn ready(&self, is_ready: bool) {
        match self.dialect {
            Dialect::V1 => self.put("/calico/v1/Ready", if is_ready { "true" } else { "false" }),
            Dialect::V3 => {
                let (key, value) = calico3::cluster_information(is_ready);
                self.put(&key, &value);
            }
        }
    }

    /// Returns the key of an endpoint; the workload of a pod is `NAMESPACE.POD`.
    pub(crate) fn endpoint_key(&self, orchestrator: &str, workload: &str, ifname: &str) -> String {
        match self.dialect {
            Dialect::V1 => format!("/calico/v1/host/h1/workload/{orchestrator}/{workload}/endpoint/{ifname}"),
            Dialect::V3 => {
                let (namespace, workload) = match orchestrator {
                    "k8s" => workload.split_once('.').unwrap(),
                    _ => ("default", workload),
                };
                let parts = ["h1", orchestrator, workload, ifname].map(|part| part.replace('-', "--"));
                calico3::key("WorkloadEndpoint", &format!("{namespace}/{}", parts.join("-")))
            }
        }
    }

    /// Returns a member of an endpoint: that of v1, or that of an object's `spec`.
    pub(crate) fn member(&self, key: &str, v1: &str, v3: &str) -> Value {
        let keys = self.keys();
        let text = keys.get(key).unwrap_or_else(|| panic!("no {key}: {:?}", keys.keys()));
        let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        match self.dialect {
            Dialect::V1 => value[v1].clone(),
            Dialect::V3 => value["spec"][v3].clone(),
        }
    }

    pub(crate) fn start_agent(&mut self) {
        let cache = self.path("cache");
        let log = std::fs::File::create(self.path("agent.log")).unwrap();
        let words = [
            "agent",
            "--http",
            "none",
            "--ip4",
            "127.0.0.1/8",
            "--bgp-listen",
            "127.0.0.1:1790",
            "--cache",
            &cache,
        ];
        self.agent = Some(self.tortie(&words).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let socket = PathBuf::from(self.path("tortie.sock"));
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no agent");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn stop_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
            let _ = std::fs::remove_file(self.path("tortie.sock"));
        }
    }

    /// Returns all keys and values except the agent's own reports.
    pub(crate) fn keys(&self) -> BTreeMap<String, Value> {
        let output = self.run(&["store", "export"]);
        let all: BTreeMap<String, Value> = serde_json::from_slice(&output.stdout).unwrap();
        let reported = |key: &str| key.contains("/status") || key.starts_with("/calico/felix/");
        all.into_iter().filter(|(key, _)| !reported(key)).collect()
    }

    /// Returns leftovers of plugins: endpoints, handles, interfaces, tables of port mappings.
    pub(crate) fn traces(&self) -> Vec<String> {
        let keys = self.keys().into_keys().filter(|key| {
            ["/workload/", "/workloadendpoints/", "/handle/"].iter().any(|part| key.contains(part))
        });
        let links =
            ip("-o link show").lines().map(str::to_owned).filter(|l| l.contains("cali")).collect::<Vec<_>>();
        keys.filter(|key| !key.contains("tortie-gateway")).chain(links).collect()
    }

    /// Returns a configuration of `tortie-cni`.
    pub(crate) fn config(&self, more: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "tortie-cni",
            "datastore": self.store(),
            "socket": self.path("tortie.sock"),
            "node": "h1",
            "log": self.path("cni.log"),
            "ipam": {"type": "tortie-ipam"}
        });
        if self.agent.is_none() {
            config["agentAbsent"] = json!("continue");
        }
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    }

    /// Calls a plugin with this environment.
    pub(crate) fn call(&self, plugin: &str, env: &[(&str, &str)], input: &[u8]) -> Answer {
        let path = format!("{}:{}", self.path("bin"), reference().unwrap_or_default().display());
        let program =
            [PathBuf::from(self.path("bin")).join(plugin), reference().unwrap_or_default().join(plugin)];
        let program =
            program.iter().find(|program| program.exists()).unwrap_or_else(|| panic!("no {plugin}"));
        let mut child = Command::new(program)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CNI_PATH", path)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A plugin that rejects the call need not read all input.
        let _ = child.stdin.take().unwrap().write_all(input);
        Answer::of(&child.wait_with_output().unwrap())
    }

    /// Runs one command for one container.
    pub(crate) fn command(
        &self,
        plugin: &str,
        command: &str,
        container: &Container,
        config: &Value,
        args: &str,
    ) -> Answer {
        let (id, netns) = (container.id(), container.netns());
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", id.as_str()),
            ("CNI_NETNS", netns.as_str()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", args),
        ];
        self.call(plugin, &env, config.to_string().as_bytes())
    }

    pub(crate) fn add(&self, container: &Container, config: &Value) -> Value {
        self.command("tortie-cni", "ADD", container, config, "").done()
    }

    pub(crate) fn del(&self, container: &Container, config: &Value) {
        self.command("tortie-cni", "DEL", container, config, "").done();
    }
}

/// Returns the folder of the reference plugins, if present.
pub(crate) fn reference() -> Option<PathBuf> {
    let dir = std::env::var_os("TORTIE_PEERS").map(|dir| Path::new(&dir).join("cni"))?;
    dir.join("bridge").exists().then_some(dir)
}

/// True if a test with the reference plugins can run; in CI it must.
pub(crate) fn has_reference() -> bool {
    let has = reference().is_some();
    assert!(has || std::env::var_os("CI").is_none(), "no reference plugins in CI: see tests/tools/peers.sh");
    if !has {
        eprintln!("skipped: no reference plugins in TORTIE_PEERS (tests/tools/peers.sh unpacks them)");
    }
    has
}

/// Returns the first address of a result, without prefix length.
pub(crate) fn addr(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// Returns the path of ping: the unpacked one, else the system's.
pub(crate) fn ping() -> PathBuf {
    let peers = std::env::var_os("TORTIE_PEERS").map(|dir| Path::new(&dir).join("ping"));
    peers.filter(|ping| ping.exists()).unwrap_or_else(|| "ping".into())
}

/// True if this host reaches an address.
pub(crate) fn reaches(addr: &str) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(30) {
        let ping = Command::new(ping()).args(["-c1", "-W1", "-q", addr]).stdout(Stdio::null()).status();
        if ping.expect("ping is installed").success() {
            return true;
        }
    }
    false
}
