//! dockerd 20.10 on both hosts: first its own bridge, then Tortie's network and IPAM drivers.

use serde_json::Value;

use crate::common::hosts::within;
use crate::engines::life::{self, Engine};
use crate::engines::site::{Daemon, HOSTS, PATIENCE, POOL, POOL_V6, Site, Workload};

/// Name of the image.
const IMAGE: &str = "bb:1";

/// dockerd on every host.
pub(crate) struct Docker {
    daemons: Vec<Daemon>,
    /// Network in which containers are started.
    network: String,
    /// Flags of each dockerd.
    flags: &'static [&'static str],
}

impl Docker {
    /// Starts dockerd on both hosts and loads the image.
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

    /// Simulates a crash of the first host's dockerd and its containerd. No init process reaps the latter
    /// here, and the next dockerd would wait for its pid.
    fn crash(&mut self, site: &Site) {
        self.daemons[0].kill();
        site.sh(1, "rm -f /run/docker/containerd/containerd.pid");
    }

    pub(crate) fn docker(&self, site: &Site, host: usize, words: &str) -> String {
        self.try_docker(site, host, words).unwrap_or_else(|e| panic!("{e}\n{}", site.evidence()))
    }

    pub(crate) fn try_docker(&self, site: &Site, host: usize, words: &str) -> Result<String, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        site.try_run(host, &[&["docker"], &words[..]].concat())
    }

    /// Waits until the container with a restart policy is reachable again, with exactly its former addresses.
    fn comes_back(&self, site: &Site, peer: &Workload) {
        within(PATIENCE, "the container runs", || {
            let said = self.try_docker(site, 1, "inspect -f {{.State.Running}} chosen")?;
            if said == "true" { Ok(()) } else { Err(said) }
        });
        let chosen = self.workload(site, 1, "chosen");
        assert_eq!(chosen.addr, "10.244.200.7");
        site.wait_until_reachable(&chosen, peer);
        within(PATIENCE, "what the container before it had is gone", || match held(site) {
            (2, 2) => Ok(()),
            other => Err(format!("{other:?} {:?}", site.keys_with("/calico/"))),
        });
    }

    /// Returns a running container.
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
        self.docker(
            site,
            host,
            &format!("run -d --name {name} --stop-timeout 1 --network {network} {IMAGE}"),
        );
        self.workload(site, host, name)
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        self.docker(site, host, &format!("rm -f {name}"));
    }
}

/// Runs dockerd on both hosts: first its own bridge with routes, which validates the setup, then Tortie's two
/// drivers, `rounds` times.
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
        // Docker permits chosen addresses only in a network with an explicit subnet.
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

/// Returns the numbers of endpoints and of containers' addresses.
fn held(site: &Site) -> (usize, usize) {
    (site.keys_with("/workload/").len(), site.given())
}

/// Returns the store's keys about networks.
fn kept(site: &Site) -> Vec<String> {
    let of_drivers = |key: &String| key.contains("/docker/driver/");
    site.keys_with("/docker/").into_iter().filter(|key| !of_drivers(key)).collect()
}

const FLAGS: &[&str] = &["--bridge=none", "--iptables=false"];

#[test]
fn docker_life() {
    let Some((mut site, mut docker)) = docker(FLAGS, 5) else { return };
    let before = HOSTS.map(|host| site.remains(host));
    let peer = docker.start(&site, 2, "peer");
    // A chosen address, which is not allocated again on any host.
    docker.docker(
        &site,
        1,
        &format!(
            "run -d --name chosen --network lab --stop-timeout 1 --restart always --ip 10.244.200.7 {IMAGE}"
        ),
    );
    let chosen = docker.workload(&site, 1, "chosen");
    assert_eq!(chosen.addr, "10.244.200.7");
    site.wait_until_reachable(&chosen, &peer);
    for host in HOSTS {
        let words = format!("run -d --name again --network lab --ip 10.244.200.7 {IMAGE}");
        let refused = docker.try_docker(&site, host, &words).unwrap_err();
        assert!(refused.contains("10.244.200.7"), "{refused}");
        docker.docker(&site, host, "rm -f again");
    }
    site.wait_until_reachable(&chosen, &peer);
    // Stopped: nothing is held. Started: as before.
    docker.docker(&site, 1, "stop -t 0 chosen");
    within(PATIENCE, "a stopped container holds nothing", || match held(&site) {
        (1, 1) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    docker.docker(&site, 1, "start chosen");
    site.wait_until_reachable(&docker.workload(&site, 1, "chosen"), &peer);
    // dockerd is stopped and started: the container with a restart policy runs.
    assert!(docker.daemons[0].stop().success());
    docker.start_daemon(&site, 1);
    docker.comes_back(&site, &peer);
    // dockerd crashes.
    docker.crash(&site);
    docker.start_daemon(&site, 1);
    docker.comes_back(&site, &peer);
    // The agent, which provides the driver, crashes while dockerd runs.
    site.hosts.kill("host1");
    site.hosts.start("host1");
    site.wait_until_reachable(&docker.workload(&site, 1, "chosen"), &peer);
    let more = docker.start(&site, 1, "more");
    site.wait_until_reachable(&more, &peer);
    docker.remove(&site, 1, "more");
    // Both crash.
    site.hosts.kill("host1");
    docker.crash(&site);
    site.hosts.start("host1");
    docker.start_daemon(&site, 1);
    docker.comes_back(&site, &peer);
    docker.remove(&site, 1, "chosen");
    docker.remove(&site, 2, "peer");
    site.nothing_held();
    site.as_before(&before, "after all restarts");
    // The networks are removed together with their keys in the store.
    for host in HOSTS {
        docker.docker(&site, host, "network rm lab");
    }
    assert_eq!(kept(&site), Vec::<String>::new());
}

/// dockerd with live restore: no packet is lost during its restart, and containers keep their addresses.
#[test]
fn docker_live_restore() {
    let flags = &["--bridge=none", "--iptables=false", "--live-restore"];
    let Some((site, mut docker)) = docker(flags, 1) else { return };
    let pair = HOSTS.map(|host| docker.start(&site, host, "stays"));
    site.wait_until_reachable(&pair[0], &pair[1]);
    for crash in [false, true] {
        if crash {
            docker.crash(&site);
        } else {
            assert!(docker.daemons[0].stop().success());
        }
        site.pings(&pair[0], &pair[1].addr).unwrap();
        docker.start_daemon(&site, 1);
        site.pings(&pair[0], &pair[1].addr).unwrap();
        assert_eq!(docker.workload(&site, 1, "stays").addr, pair[0].addr);
        // Its address is not allocated to another container.
        let words = format!("run -d --name again --network lab --ip {} {IMAGE}", pair[0].addr);
        docker.try_docker(&site, 1, &words).unwrap_err();
        docker.docker(&site, 1, "rm -f again");
        let other = docker.start(&site, 1, "other");
        assert_ne!(other.addr, pair[0].addr);
        site.wait_until_reachable(&other, &pair[1]);
        docker.remove(&site, 1, "other");
    }
    for host in HOSTS {
        docker.remove(&site, host, "stays");
    }
    site.nothing_held();
}

/// Returns the addresses of a container by network, in both families.
fn networks(site: &Site, docker: &Docker, host: usize, name: &str) -> Vec<(String, String)> {
    let found: Value = serde_json::from_str(&docker.docker(site, host, &format!("inspect {name}"))).unwrap();
    let networks = found[0]["NetworkSettings"]["Networks"].as_object().unwrap();
    let mut all = Vec::new();
    for (network, of) in networks {
        for field in ["IPAddress", "GlobalIPv6Address"] {
            let addr = of[field].as_str().unwrap();
            if !addr.is_empty() {
                all.push((network.clone(), addr.to_owned()));
            }
        }
    }
    all
}

/// dockerd with default settings: with its bridge and rules, and `FORWARD` dropping, as when dockerd enables
/// forwarding itself.
#[test]
fn docker_as_it_comes_with_containers_in_several_networks() {
    let Some(site) = Site::dual(&["dockerd", "docker", "containerd", "runc", "etcd"], "--docker") else {
        return;
    };
    let mut docker = Docker::up(&site, &[]);
    for host in HOSTS {
        site.sh(host, "nft 'chain ip filter FORWARD { policy drop; }'");
        for name in ["front", "back"] {
            let words = format!("network create -d tortie --ipam-driver tortie-ipam --ipv6 {name}");
            docker.docker(&site, host, &words);
        }
        docker.docker(&site, host, "network create aaa-bridge");
    }
    docker.network = "back".to_owned();
    let back = docker.start(&site, 2, "member");
    docker.network = "front".to_owned();
    let peers = [docker.start(&site, 1, "peer1"), docker.start(&site, 2, "peer2")];
    site.wait_until_reachable(&peers[0], &peers[1]);
    let answers = |docker: &Docker, name: &str, expected: usize| {
        let all = networks(&site, docker, 1, name);
        let ours: Vec<_> = all.iter().filter(|(network, _)| network != "aaa-bridge").collect();
        assert_eq!(ours.len(), expected, "{all:?}");
        for (network, addr) in ours {
            for peer in &peers {
                within(PATIENCE, &format!("{name} answers host{} at {addr} in {network}", peer.host), || {
                    site.pings(peer, addr).map_err(|error| {
                        let inside = docker.workload(&site, 1, name);
                        let rules =
                            site.within(&inside, &["sh", "-c", "ip rule; ip route; ip -6 rule; ip -6 route"]);
                        format!("{error} {rules:?}{}", site.evidence())
                    })
                });
            }
        }
    };
    // Connected at run time; the network whose name is first in order takes the default route.
    docker.start(&site, 1, "running");
    docker.docker(&site, 1, "network connect back running");
    answers(&docker, "running", 4);
    docker.docker(&site, 1, "network connect aaa-bridge running");
    answers(&docker, "running", 4);
    // Connected before the start, as compose does.
    docker.docker(&site, 1, &format!("create --name composed --network aaa-bridge {IMAGE}"));
    for network in ["front", "back"] {
        docker.docker(&site, 1, &format!("network connect {network} composed"));
    }
    docker.docker(&site, 1, "start composed");
    answers(&docker, "composed", 4);
    // It reaches members of each network with an address of that network, whatever network has the default
    // route.
    let composed = docker.workload(&site, 1, "composed");
    for member in [&peers[1], &back] {
        within(PATIENCE, "a container reaches the members of each of its networks", || {
            site.pings(&composed, &member.addr)
        });
    }
    // One network less: its state is removed from the namespace, and the other network still works.
    let gone =
        networks(&site, &docker, 1, "running").into_iter().find(|(network, _)| network == "back").unwrap().1;
    docker.docker(&site, 1, "network disconnect back running");
    let running = docker.workload(&site, 1, "running");
    within(PATIENCE, "rules of the network that was left are gone", || {
        let rules = site.within(&running, &["ip", "rule"])?;
        if rules.contains(&gone) { Err(rules) } else { Ok(()) }
    });
    answers(&docker, "running", 2);
    docker.docker(&site, 1, "restart -t 0 composed");
    answers(&docker, "composed", 4);
    // Names that users know.
    for name in ["running", "composed"] {
        within(PATIENCE, "the agent knows the name", || {
            let said = site.try_run(1, &[crate::common::hosts::TORTIE, "endpoint", "list"])?;
            if said.contains(&format!("libnetwork/{name}/front")) { Ok(()) } else { Err(said) }
        });
    }
    for name in ["running", "composed", "peer1"] {
        docker.remove(&site, 1, name);
    }
    for name in ["peer2", "member"] {
        docker.remove(&site, 2, name);
    }
    site.nothing_held();
    for host in HOSTS {
        within(PATIENCE, "nothing of ours is in Docker's chain", || {
            let rules = site.sh(host, "nft list chain ip filter DOCKER-USER");
            if rules.contains("tortie") { Err(rules) } else { Ok(()) }
        });
    }
}

/// Removed while the driver is down: dockerd gives up after errors, forgets the container, and leaves its
/// interface on the host.
#[test]
#[ignore = "long: dockerd gives up after 15 s, call by call"]
fn long_what_was_removed_while_the_driver_was_away_is_given_back() {
    let Some(mut site) = Site::up(&["dockerd", "docker", "containerd", "runc"], "--docker") else { return };
    let mut docker = Docker::up(&site, FLAGS);
    docker.docker(
        &site,
        1,
        &format!("network create -d tortie --ipam-driver tortie-ipam --subnet {POOL} lab"),
    );
    docker.network = "lab".to_owned();
    site.networks_hold_this();
    let before = site.remains(1);
    docker.docker(&site, 1, &format!("run -d --name gone --network lab -p 8080:80 {IMAGE}"));
    let stays = docker.start(&site, 1, "stays");
    assert_eq!(held(&site), (2, 2));
    site.hosts.kill("host1");
    docker.docker(&site, 1, "rm -f gone");
    site.hosts.start("host1");
    let returned = std::time::Duration::from_secs(120);
    within(returned, "what the container had is given back", || match held(&site) {
        (1, 1) => Ok(()),
        other => Err(format!("{other:?} {:?}", site.keys_with("/docker/"))),
    });
    // Existing containers stay, and the port is free.
    docker.docker(&site, 1, &format!("run -d --name next --network lab -p 8080:80 {IMAGE}"));
    site.wait_until_reachable(&stays, &docker.workload(&site, 1, "next"));
    for name in ["stays", "next"] {
        docker.remove(&site, 1, name);
    }
    site.nothing_held();
    site.as_before(&[before], "after all containers went");
}

/// Docker's bridge with Tortie's addresses for this host only, so that the shared data model is unchanged.
#[test]
fn dockers_bridge_with_our_addresses() {
    let Some(site) = Site::up(&["dockerd", "docker", "containerd", "runc"], "--docker") else { return };
    let mut docker = Docker::up(&site, FLAGS);
    let keys = site.keys();
    docker.docker(&site, 1, "network create --ipam-driver tortie-ipam --subnet 192.168.7.0/24 own");
    docker.network = "own".to_owned();
    let pair = ["one", "two"].map(|name| docker.start(&site, 1, name));
    assert!(pair.iter().all(|w| w.addr.starts_with("192.168.7.")), "{pair:?}");
    site.wait_until_reachable(&pair[0], &pair[1]);
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

#[test]
#[ignore = "long: both families on etcd"]
fn long_docker_dual_stack_on_etcd() {
    let Some(mut site) = Site::dual(&["dockerd", "docker", "containerd", "runc", "etcd"], "--docker") else {
        return;
    };
    let mut docker = Docker::up(&site, &[]);
    for host in HOSTS {
        let words = format!(
            "network create -d tortie --ipam-driver tortie-ipam --ipv6 --subnet {POOL} --subnet {POOL_V6} lab"
        );
        docker.docker(&site, host, &words);
    }
    docker.network = "lab".to_owned();
    site.networks_hold_this();
    life::dual(&site, &mut docker, 3);
}
