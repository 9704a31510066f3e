//! dockerd 20.10 on both hosts: its own bridge first, then our network and address drivers.

use serde_json::Value;

use crate::hosts::within;
use crate::life::{self, Engine};
use crate::site::{Daemon, HOSTS, PATIENCE, Site, Workload};

/// The name of the image.
const IMAGE: &str = "bb:1";

/// dockerd on every host.
pub(crate) struct Docker {
    daemons: Vec<Daemon>,
    /// The network that containers are started in.
    network: String,
    /// Words of each dockerd.
    flags: &'static [&'static str],
}

impl Docker {
    /// Starts dockerd on both hosts and gives each the image.
    pub(crate) fn up(site: &Site, flags: &'static [&'static str]) -> Self {
        let image = site.image();
        let daemons = HOSTS.map(|host| Self::daemon(site, host, flags)).into();
        let this = Self { daemons, network: "bridge".to_owned(), flags };
        for host in HOSTS {
            Self::answers(site, host);
            site.run(host, &["docker", "import", "-c", r#"CMD ["/bin/sleep","100000"]"#, &image, IMAGE]);
        }
        this
    }

    fn daemon(site: &Site, host: usize, flags: &[&str]) -> Daemon {
        let words = [
            "dockerd",
            "-l",
            "warn",
            "--storage-driver",
            "vfs",
            "--exec-opt",
            "native.cgroupdriver=cgroupfs",
        ];
        site.daemon(host, &[&words, flags].concat())
    }

    fn answers(site: &Site, host: usize) {
        within(PATIENCE, "dockerd answers", || site.try_run(host, &["docker", "version"]).map(|_| ()));
    }

    /// Starts a host's dockerd again.
    pub(crate) fn start_daemon(&mut self, site: &Site, host: usize) {
        self.daemons[host - 1] = Self::daemon(site, host, self.flags);
        Self::answers(site, host);
    }

    pub(crate) fn docker(&self, site: &Site, host: usize, words: &str) -> String {
        self.try_docker(site, host, words).unwrap_or_else(|e| panic!("{e}\n{}", site.evidence()))
    }

    pub(crate) fn try_docker(&self, site: &Site, host: usize, words: &str) -> Result<String, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        site.try_run(host, &[&["docker"], &words[..]].concat())
    }

    /// A container that runs.
    pub(crate) fn workload(&self, site: &Site, host: usize, name: &str) -> Workload {
        let found: Value =
            serde_json::from_str(&self.docker(site, host, &format!("inspect {name}"))).unwrap();
        let pid = found[0]["State"]["Pid"].as_u64().unwrap();
        let addr = found[0]["NetworkSettings"]["Networks"][&self.network]["IPAddress"].as_str().unwrap();
        Workload { host, pid: u32::try_from(pid).unwrap(), addr: addr.to_owned() }
    }
}

impl Engine for Docker {
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        let network = &self.network;
        self.docker(site, host, &format!("run -d --name {name} --network {network} {IMAGE}"));
        self.workload(site, host, name)
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        self.docker(site, host, &format!("rm -f {name}"));
    }
}

/// dockerd's own bridge, with a route on each host to the other's: the rig is right.
#[test]
fn dockers_own_bridge() {
    let Some(site) = Site::up(&["dockerd", "docker", "containerd", "runc"], "") else { return };
    let mut docker = Docker::up(&site, &["--bridge=none", "--iptables=false"]);
    for host in HOSTS {
        let other = 3 - host;
        docker.docker(&site, host, &format!("network create --subnet 10.9.{host}.0/24 ref"));
        site.sh(host, &format!("ip route add 10.9.{other}.0/24 via 172.30.0.{other}"));
    }
    docker.network = "ref".to_owned();
    life::reference(&site, &mut docker);
}
