//! dockerd 20.10 on both hosts: its own bridge first, then our network and address drivers.

use serde_json::Value;

use crate::hosts::within;
use crate::life::{self, Engine};
use crate::site::{Daemon, HOSTS, PATIENCE, POOL, Site, Workload};

/// The name of the image.
const IMAGE: &str = "bb:1";

/// dockerd on every host.
pub(crate) struct Docker {
    _daemons: Vec<Daemon>,
    /// The network that containers are started in.
    network: String,
}

impl Docker {
    /// Starts dockerd on both hosts and gives each the image.
    pub(crate) fn up(site: &Site, flags: &'static [&'static str]) -> Self {
        let image = site.image();
        let daemons = HOSTS.map(|host| Self::daemon(site, host, flags)).into();
        let this = Self { _daemons: daemons, network: "bridge".to_owned() };
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

/// dockerd on both hosts: its own bridge with routes first, which shows that the rig is right, then our two drivers,
/// `rounds` times.
fn docker(flags: &'static [&'static str], rounds: usize) -> Option<(Site, Docker)> {
    let mut site = Site::up(&["dockerd", "docker", "containerd", "runc"], "--docker")?;
    let mut docker = Docker::up(&site, flags);
    for host in HOSTS {
        let other = 3 - host;
        docker.docker(&site, host, &format!("network create --subnet 10.9.{host}.0/24 ref"));
        site.sh(host, &format!("ip route add 10.9.{other}.0/24 via 172.30.0.{other}"));
    }
    docker.network = "ref".to_owned();
    life::reference(&site, &mut docker);
    for host in HOSTS {
        // With a subnet of one's own docker lets its users choose addresses.
        docker.docker(
            &site,
            host,
            &format!("network create -d tortie --ipam-driver tortie-ipam --subnet {POOL} lab"),
        );
    }
    docker.network = "lab".to_owned();
    site.networks_hold_this();
    life::life(&mut site, &mut docker, rounds);
    Some((site, docker))
}

/// What the store keeps of networks.
fn kept(site: &Site) -> Vec<String> {
    let of_drivers = |key: &String| key.contains("/docker/driver/");
    site.keys_with("/docker/").into_iter().filter(|key| !of_drivers(key)).collect()
}

const FLAGS: &[&str] = &["--bridge=none", "--iptables=false"];

#[test]
fn docker_life() {
    let Some((site, mut docker)) = docker(FLAGS, 5) else { return };
    let before = HOSTS.map(|host| site.remains(host));
    let peer = docker.start(&site, 2, "peer");
    // An address of one's choice, which nobody else gets, here or elsewhere.
    docker.docker(&site, 1, &format!("run -d --name chosen --network lab --ip 10.244.200.7 {IMAGE}"));
    let chosen = docker.workload(&site, 1, "chosen");
    assert_eq!(chosen.addr, "10.244.200.7");
    site.reach(&chosen, &peer);
    for host in HOSTS {
        let words = format!("run -d --name again --network lab --ip 10.244.200.7 {IMAGE}");
        let refused = docker.try_docker(&site, host, &words).unwrap_err();
        assert!(refused.contains("10.244.200.7"), "{refused}");
        docker.docker(&site, host, "rm -f again");
    }
    site.reach(&chosen, &peer);
    docker.remove(&site, 1, "chosen");
    docker.remove(&site, 2, "peer");
    site.nothing_held();
    site.as_before(&before, "after addresses of choice");
}

/// Docker's bridge with addresses of ours: of this host alone, so that nothing of it reaches the model.
#[test]
fn dockers_bridge_with_our_addresses() {
    let Some(site) = Site::up(&["dockerd", "docker", "containerd", "runc"], "--docker") else { return };
    let mut docker = Docker::up(&site, FLAGS);
    let keys = site.keys();
    docker.docker(&site, 1, "network create --ipam-driver tortie-ipam --subnet 192.168.7.0/24 own");
    docker.network = "own".to_owned();
    let pair = ["one", "two"].map(|name| docker.start(&site, 1, name));
    assert!(pair.iter().all(|w| w.addr.starts_with("192.168.7.")), "{pair:?}");
    site.reach(&pair[0], &pair[1]);
    let outside: Vec<String> =
        site.keys().into_keys().filter(|k| !k.contains("/docker/") && !keys.contains_key(k)).collect();
    assert_eq!(outside, Vec::<String>::new());
    for name in ["one", "two"] {
        docker.remove(&site, 1, name);
    }
    docker.docker(&site, 1, "network rm own");
    assert_eq!(kept(&site), Vec::<String>::new());
}

#[test]
#[ignore = "long: 100 starts and stops"]
fn long_docker() {
    docker(FLAGS, 100);
}
