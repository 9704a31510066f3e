//! A host that runs Kurma with its own process ids, network and mounts. The plugin runs in a mount namespace
//! with only its image, and is called like the daemon calls it.

#![allow(clippy::unwrap_used, dead_code, reason = "test helper")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_kernel::container::Namespace;

use crate::common::calico3;

pub(crate) const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");

/// Result of a call: exit status, and the output on stdout and stderr, which share a pipe.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ok: bool,
    pub(crate) text: String,
    pub(crate) took: Duration,
}

impl Ended {
    pub(crate) fn json(&self) -> Value {
        assert!(self.ok, "{}", self.text);
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }

    pub(crate) fn silent(&self) {
        assert!(self.ok && self.text.is_empty(), "{self:?}");
    }

    pub(crate) fn refused(&self, word: &str) {
        assert!(!self.ok && self.text.contains(word), "`{word}`: {self:?}");
        assert_eq!(self.text.trim_end().lines().count(), 1, "{}", self.text);
    }
}

pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
    first: Child,
    /// Its process 1, by the outer process id.
    pub(crate) pid: u32,
}

/// Returns the image, built once for all tests of this process.
fn image() -> &'static Path {
    static IMAGE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = IMAGE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/kurma/build.sh");
        let done = Command::new(script).arg(TORTIE).arg(&path).status().unwrap();
        assert!(done.success() && path.with_extension("aci").exists());
        (dir, path.join("rootfs"))
    });
    path
}

impl Host {
    /// Starts a host; `None` if this process lacks permission, which is a failure in CI.
    pub(crate) fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lib", "run"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let script = format!(
            "set -e; mount --make-rprivate /; ip link set lo up; \
             echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; \
             mount -t tmpfs tmpfs /run; mkdir -p /run/tortie; mount --bind {0}/run /run/tortie; \
             mount -t tmpfs tmpfs /var/lib; mkdir -p /var/lib/tortie /var/lib/kurma/netns; \
             mount --bind {0}/lib /var/lib/tortie; echo ready; exec sleep 1000",
            dir.path().display()
        );
        let mut first = Command::new("unshare")
            .args(["-m", "-n", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.trim() != "ready" {
            assert!(std::env::var_os("CI").is_none(), "no namespaces in CI");
            eprintln!("skipped: no namespaces can be made here; run as root");
            let _ = first.wait();
            return None;
        }
        let children = format!("/proc/{0}/task/{0}/children", first.id());
        let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        Some(Self { dir, first, pid })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("run/tortie.sock")
    }

    pub(crate) fn datastore(&self) -> String {
        format!("sqlite:{}", self.dir.path().join("lib/store.db").display())
    }

    /// Creates a Calico 3 store with a pool of each family.
    pub(crate) fn objects(&self, datastore: &str) {
        for (key, value) in [
            calico3::cluster_information(true),
            calico3::node("h1", "192.0.2.1/24"),
            calico3::pool("10.65.0.0/16", &json!({"cidr": "10.65.0.0/16"})),
            calico3::pool("fd00:65::/64", &json!({"cidr": "fd00:65::/64"})),
        ] {
            self.tortie(datastore, &["store", "put", "--raw", &key, &value]);
        }
    }

    /// Creates a store with a pool of each family.
    pub(crate) fn pools(&self, datastore: &str) {
        for (key, cidr) in
            [("v4/pool/10.65.0.0-16", "10.65.0.0/16"), ("v6/pool/fd00:65::-64", "fd00:65::/64")]
        {
            let value = json!({"cidr": cidr}).to_string();
            self.tortie(datastore, &["store", "put", &format!("/calico/v1/ipam/{key}"), &value]);
        }
    }

    /// Runs the command line in the host's network.
    pub(crate) fn tortie(&self, datastore: &str, words: &[&str]) -> String {
        let out = Command::new("nsenter")
            .args(["-t", &self.pid.to_string(), "-n", TORTIE, "--datastore", datastore, "--node", "h1"])
            .args(words)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
        text
    }

    /// Runs a shell script on the host.
    pub(crate) fn sh(&self, script: &str) -> String {
        let out = Command::new("nsenter")
            .args(["-t", &self.pid.to_string(), "-m", "-n", "-p", "sh", "-c", script])
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(out.status.success(), "{script}");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// Creates a container of the first generation; returns the path of its namespace by process.
    pub(crate) fn container(&self) -> String {
        let pid = self.sh("unshare -n sleep 1000 >/dev/null 2>&1 </dev/null & echo $!");
        let path = format!("/proc/{pid}/ns/net");
        let (own, begin) = (self.sh("readlink /proc/1/ns/net"), Instant::now());
        while self.sh(&format!("readlink {path}")) == own {
            assert!(begin.elapsed() < Duration::from_secs(60), "no namespace of its own");
            std::thread::sleep(Duration::from_millis(5));
        }
        path
    }

    /// Creates a container of the second generation, whose namespace is kept by a file in a shared folder.
    pub(crate) fn kept_container(&self, uuid: &str) -> String {
        let path = format!("/var/lib/kurma/netns/{uuid}");
        self.sh(&format!("touch {path}; unshare --net={path} true"));
        path
    }

    pub(crate) fn kill(&self, container: &str) {
        let pid = container.split('/').nth(2).unwrap();
        self.sh(&format!(
            "kill -9 {pid}; while [ -e /proc/{pid}/ns/net ]; do sleep 0.01; done 2>/dev/null; true"
        ));
    }

    /// Opens the namespace from this process.
    pub(crate) fn open(&self, path: &str) -> Namespace {
        Namespace::open(Path::new(&format!("/proc/{}/root{path}", self.pid))).unwrap()
    }

    /// Returns the tables of port mappings.
    pub(crate) fn tables(&self) -> Vec<String> {
        let network = Namespace::open(Path::new(&format!("/proc/{}/ns/net", self.pid))).unwrap();
        network.run(|| tortie_kernel::container::mapped_tables("tortie-k").unwrap()).unwrap()
    }

    /// Calls the plugin with the host's process ids, or with its own (`own_pids`).
    pub(crate) fn begin(&self, own_pids: bool, words: &[&str], config: &Value) -> Child {
        let root = image().display().to_string();
        let script = format!(
            "mount --make-rprivate / && mount --bind {root} {root} && mount -t proc proc {root}/proc && \
             mount --rbind /var/lib/kurma/netns {root}/var/lib/kurma/netns && {} \
             exec chroot {root} /opt/network/\"$@\" 2>&1",
            if own_pids {
                format!("mount --bind /var/lib/tortie {root}/var/lib/tortie &&")
            } else {
                String::new()
            }
        );
        let unshare: &[&str] = if own_pids { &["-m", "-p", "-f", "--kill-child"] } else { &["-m"] };
        let mut child = Command::new("timeout")
            .args(["-s", "KILL", "60", "nsenter", "-t", &self.pid.to_string(), "-m", "-n", "-p", "unshare"])
            .args(unshare)
            .args(["sh", "-c", &script, "sh"])
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("TORTIE_NODE", "h1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
        child
    }

    pub(crate) fn end(mut child: Child, began: Instant) -> Ended {
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        Ended { ok: child.wait().unwrap().success(), text, took: began.elapsed() }
    }

    pub(crate) fn call(&self, words: &[&str], config: &Value) -> Ended {
        let began = Instant::now();
        Self::end(self.begin(false, words, config), began)
    }

    /// Returns leftovers of containers on this host and in the store.
    pub(crate) fn traces(&self, datastore: &str) -> Vec<String> {
        let links = self.sh("ip -o link show | grep -o 'alias tortie.*' || true");
        let mut all: Vec<String> = links.lines().map(str::to_owned).collect();
        let keys = self.tortie(datastore, &["store", "export"]);
        let keys: serde_json::Map<String, Value> = serde_json::from_str(&keys).unwrap();
        for (key, value) in keys {
            let taken = key.contains("/assignment/") && {
                let block: Value = serde_json::from_str(value.as_str().unwrap()).unwrap();
                block["allocations"].as_array().unwrap().iter().any(|a| !a.is_null())
            };
            if taken
                || key.contains("/handle/")
                || key.contains("/endpoint/")
                || key.contains("/workloadendpoints/")
                || key.contains("/kurma/")
            {
                all.push(key);
            }
        }
        all
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}
