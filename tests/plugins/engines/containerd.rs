//! containerd 1.6 on both hosts: `ctr run --cni`, and the container runtime interface of kubelets.

use serde_json::{Value, json};

use crate::common::hosts::within;
use crate::engines::cni;
use crate::engines::life::{self, Engine};
use crate::engines::site::{Daemon, HOSTS, PATIENCE, Site, Workload};

const IMAGE: &str = "docker.io/library/bb:1";
const SOCKET: &str = "/run/containerd/containerd.sock";
const CONFIG: &str = r#"version = 2
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/bb:1"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
"#;

/// containerd on every host.
pub(crate) struct Containerd {
    daemons: Vec<Daemon>,
}

impl Containerd {
    pub(crate) fn up(site: &Site) -> Self {
        let image = archive(site);
        let daemons = HOSTS.map(|host| {
            cni::install(site, host);
            site.write(host, "/etc/containers/containerd.toml", CONFIG);
            site.daemon(host, &["containerd", "-c", "/etc/containers/containerd.toml"])
        });
        let this = Self { daemons: daemons.into() };
        for host in HOSTS {
            within(PATIENCE, "containerd answers", || site.try_run(host, &["ctr", "version"]).map(|_| ()));
            for space in ["default", "k8s.io"] {
                site.run(host, &["ctr", "-n", space, "images", "import", "--snapshotter", "native", &image]);
            }
        }
        this
    }

    /// Returns the readiness of the network as a kubelet queries it.
    fn ready(site: &Site, host: usize) -> String {
        site.run(host, &["cri", SOCKET, "ready"])
    }
}

/// Builds an image in the format of `docker save` (manifest, configuration and one layer); returns its path
/// on a host.
fn archive(site: &Site) -> String {
    let layer = site.image();
    let (there, here) = site.shared();
    let digest = site.sh(1, &format!("sha256sum {layer} | cut -d' ' -f1"));
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "100000"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": ["bb:1"], "Layers": ["layer.tar"]}]);
    let dir = here.join("archive");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    std::fs::copy(here.join("image.tar"), dir.join("layer.tar")).unwrap();
    site.sh(
        1,
        &format!("tar -C {there}/archive -cf {there}/archive.tar manifest.json config.json layer.tar"),
    );
    format!("{there}/archive.tar")
}

/// `ctr run --cni`: containers end with the command, and are removed from the network only then.
pub(crate) struct Ctr {
    _containerd: Containerd,
    running: Vec<(usize, String, Daemon)>,
}

impl Engine for Ctr {
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        let words =
            ["ctr", "run", "--rm", "--snapshotter", "native", "--cni", IMAGE, name, "/bin/sleep", "100000"];
        self.running.push((host, name.to_owned(), site.daemon(host, &words)));
        let mut this = Workload { host, pid: 0, addr: String::new() };
        within(PATIENCE, "the container runs", || {
            let list = site.run(host, &["ctr", "task", "ls"]);
            let mut words = list.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
            let found = words.find(|w| w[0] == name && w[2] == "RUNNING").ok_or_else(|| list.clone())?;
            this.pid = found[1].parse().unwrap();
            let mut all = site.addresses(&this, "eth0").into_iter();
            this.addr = all.find(|a| a.contains('.')).ok_or("it has no address")?;
            Ok(())
        });
        this
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        site.run(host, &["ctr", "task", "kill", "-s", "KILL", name]);
        let at = self.running.iter().position(|(h, n, _)| (*h, n.as_str()) == (host, name)).unwrap();
        let (_, _, mut command) = self.running.remove(at);
        within(PATIENCE, "ctr ends", || command.ended().ok_or_else(|| "it runs".to_owned()).map(|_| ()));
    }
}

/// Pod sandboxes as requested by a kubelet.
pub(crate) struct Cri {
    containerd: Containerd,
    /// Additional fields of each pod's configuration.
    more: Value,
    ids: Vec<(usize, String, String)>,
}

impl Cri {
    fn cri(site: &Site, host: usize, words: &[&str]) -> Result<String, String> {
        site.try_run(host, &[&["cri", SOCKET], words].concat())
    }
}

impl Engine for Cri {
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        let id = Self::cri(site, host, &["run", "prod", name, &self.more.to_string()]).unwrap_or_else(|e| {
            panic!("{e}\n{}\n{}", self.containerd.daemons[host - 1].log(), site.evidence())
        });
        let status = Self::cri(site, host, &["status", &id]).unwrap();
        let words: Vec<&str> = status.split_whitespace().collect();
        self.ids.push((host, name.to_owned(), id));
        Workload { host, pid: words[words.len() - 1].parse().unwrap(), addr: words[0].to_owned() }
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        let at = self.ids.iter().position(|(h, n, _)| (*h, n.as_str()) == (host, name)).unwrap();
        let (_, _, id) = self.ids.remove(at);
        // A kubelet repeats the request.
        for verb in ["stop", "stop", "rm"] {
            Self::cri(site, host, &[verb, &id]).unwrap();
        }
    }
}

/// Runs both interfaces of containerd with the reference plugins, then with Tortie's, `rounds` times each.
fn containerd(rounds: usize) -> Option<(Site, Cri)> {
    let programs = ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "cri", "cni/bridge"];
    let mut site = Site::up(&programs, "")?;
    cni::reference(&site);
    let mut ctr = Ctr { _containerd: Containerd::up(&site), running: Vec::new() };
    life::reference(&site, &mut ctr);
    cni::only_ours(&site);
    life::life(&mut site, &mut ctr, rounds);
    let mut cri = Cri { containerd: ctr._containerd, more: json!({}), ids: Vec::new() };
    for host in HOSTS {
        within(PATIENCE, "the network is ready", || match Containerd::ready(&site, host) {
            said if said.starts_with("True") => Ok(()),
            said => Err(said),
        });
    }
    life::life(&mut site, &mut cri, rounds);
    Some((site, cri))
}

/// No DEL is sent when a container of `ctr run -d` ends. The next GC removes its leftovers.
fn detached(site: &Site) {
    let words = ["run", "-d", "--snapshotter", "native", "--cni", IMAGE, "left", "/bin/sleep", "100000"];
    site.run(1, &[&["ctr"], &words[..]].concat());
    site.run(1, &["ctr", "task", "kill", "-s", "KILL", "left"]);
    within(PATIENCE, "the task is removed", || site.try_run(1, &["ctr", "task", "rm", "left"]).map(drop));
    site.run(1, &["ctr", "c", "rm", "left"]);
    assert_eq!((site.keys_with("/endpoint/").len(), site.given()), (1, 1), "containerd says DEL now");
    cni::collect(site, 1);
    site.nothing_held();
    // The files of libcni belong to containerd.
    site.run(1, &["rm", "/var/lib/cni/results/lab-default-left-eth0"]);
}

#[test]
fn containerd_life() {
    let Some((site, mut cri)) = containerd(5) else { return };
    let before = HOSTS.map(|host| site.remains(host));
    // A pod with ports and rates: its endpoint has the pod's name.
    cri.more = json!({
        "ports": [{"host": 8080, "container": 80}],
        "dns": {"servers": ["10.96.0.10"], "searches": ["prod.svc.cluster.local"]},
        "annotations": {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "20M"},
    });
    let pod = cri.start(&site, 1, "db");
    assert_eq!(site.keys_with("/endpoint/"), ["/calico/v1/host/host1/workload/k8s/prod.db/endpoint/eth0"]);
    site.allow_everybody();
    let page = site.serve_port_80(&pod);
    site.wait_for_answer(2, "172.30.0.1", 8080);
    drop(page);
    site.stop_allowing_everybody();
    cri.remove(&site, 1, "db");
    site.nothing_held();
    // A later plugin fails: containerd reverts the work of `tortie-cni`.
    let missing =
        json!([cni::ours(1, json!({})), {"type": "tuning", "sysctl": {"net.ipv4.no_such_thing": "1"}}]);
    cni::configure(&site, 1, &missing);
    within(PATIENCE, "containerd reads the configuration", || {
        match Cri::cri(&site, 1, &["run", "prod", "bad", "{}"]) {
            Err(e) if e.contains("no_such_thing") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    site.nothing_held();
    cni::only_ours(&site);
    detached(&site);
    site.as_before(&before, "after pods of all kinds");
}

#[test]
#[ignore = "long: 100 starts and stops"]
fn long_containerd() {
    containerd(100);
}
