//! podman 4.3 on both hosts with CNI as its network back end.

use crate::common::hosts::within;
use crate::engines::cni;
use crate::engines::life::{self, Engine};
use crate::engines::site::{HOSTS, PATIENCE, Site, Workload};

const IMAGE: &str = "localhost/bb:1";

/// podman has no daemon.
pub(crate) struct Podman;

impl Podman {
    pub(crate) fn up(site: &Site) -> Self {
        let image = site.image();
        for host in HOSTS {
            cni::install(site, host);
            site.write(
                host,
                "/etc/containers/policy.json",
                r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
            );
            // podman's default limits exceed those of a test, and runc would fail to start.
            let conf = "[network]\nnetwork_backend=\"cni\"\ncni_plugin_dirs=[\"/opt/cni/bin\"]\n\
                network_config_dir=\"/etc/cni/net.d\"\n[engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\n\
                [containers]\ndefault_ulimits=[\"nofile=1024:1024\",\"nproc=1024:1024\"]\n";
            site.write(host, "/etc/containers/containers.conf", conf);
            Self::podman(
                site,
                host,
                &format!("import --change CMD=[\"/bin/sleep\",\"100000\"] {image} {IMAGE}"),
            );
        }
        Self
    }

    pub(crate) fn podman(site: &Site, host: usize, words: &str) -> String {
        Self::try_podman(site, host, words).unwrap_or_else(|e| panic!("{e}\n{}", site.evidence()))
    }

    fn try_podman(site: &Site, host: usize, words: &str) -> Result<String, String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let base = ["podman", "--storage-driver", "vfs", "--runtime", "runc"];
        site.try_run(host, &[&base, &words[..]].concat())
    }

    pub(crate) fn workload(site: &Site, host: usize, name: &str) -> Workload {
        let pid = Self::podman(site, host, &format!("inspect -f {{{{.State.Pid}}}} {name}"));
        let mut this = Workload { host, pid: pid.parse().unwrap(), addr: String::new() };
        this.addr = site.addresses(&this, "eth0").into_iter().find(|a| a.contains('.')).unwrap();
        this
    }
}

impl Engine for Podman {
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        Self::podman(site, host, &format!("run -d --net {} --name {name} {IMAGE}", cni::NETWORK));
        Self::workload(site, host, name)
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        Self::podman(site, host, &format!("rm -f -t 0 {name}"));
    }
}

/// Runs the life cycle of containers in Tortie's network, `rounds` times.
fn podman(rounds: usize) -> Option<(Site, Podman)> {
    let mut site = Site::up(&["podman", "conmon", "runc", "cni/bridge"], "")?;
    cni::reference(&site);
    let mut podman = Podman::up(&site);
    life::reference(&site, &mut podman);
    cni::only_ours(&site);
    life::life(&mut site, &mut podman, rounds);
    Some((site, podman))
}

#[test]
fn podman_life() {
    let Some((site, mut podman)) = podman(5) else { return };
    let before = HOSTS.map(|host| site.remains(host));
    // A chosen address, ports of the host, and a container that is stopped and started.
    let run = |host: usize, words: &str| {
        Podman::podman(&site, host, &format!("run -d --net {} {words} {IMAGE}", cni::NETWORK));
    };
    run(1, "--name chosen --ip 10.244.200.7");
    let chosen = Podman::workload(&site, 1, "chosen");
    assert_eq!(chosen.addr, "10.244.200.7");
    let peer = podman.start(&site, 2, "peer");
    site.wait_until_reachable(&chosen, &peer);
    site.allow_everybody();
    // Separately, since with a chosen address podman 4.3 does not pass ports to its first plugin.
    run(1, "--name ports -p 8080:80");
    let page = site.serve_port_80(&Podman::workload(&site, 1, "ports"));
    site.wait_for_answer(2, "172.30.0.1", 8080);
    drop(page);
    podman.remove(&site, 1, "ports");
    let endpoint = |part: &str| site.keys_with("/endpoint/").into_iter().filter(|k| k.contains(part)).count();
    assert_eq!((endpoint("host1/"), endpoint("host2/")), (1, 1));
    Podman::podman(&site, 1, "stop -t 0 chosen");
    within(PATIENCE, "a stopped container holds nothing", || match (endpoint("host1/"), site.given()) {
        (0, 1) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    Podman::podman(&site, 1, "start chosen");
    let chosen = Podman::workload(&site, 1, "chosen");
    assert_eq!(chosen.addr, "10.244.200.7");
    site.wait_until_reachable(&chosen, &peer);
    // Firewall rules are written again, as after a firewall restart: DEL and ADD while the container runs.
    Podman::podman(&site, 1, "network reload chosen");
    site.wait_until_reachable(&Podman::workload(&site, 1, "chosen"), &peer);
    // The same address a second time.
    let words = format!("run -d --net {} --name again --ip 10.244.200.7 {IMAGE}", cni::NETWORK);
    let refused = Podman::try_podman(&site, 2, &words).unwrap_err();
    assert!(refused.contains("10.244.200.7"), "{refused}");
    Podman::podman(&site, 2, "rm -f -t 0 again");
    // A container that ends by itself.
    run(2, "--name short --entrypoint /bin/true");
    podman.remove(&site, 1, "chosen");
    podman.remove(&site, 2, "peer");
    site.nothing_held();
    podman.remove(&site, 2, "short");
    site.stop_allowing_everybody();
    site.as_before(&before, "after containers of all kinds");
}

#[test]
#[ignore = "long: 100 starts and stops"]
fn long_podman() {
    podman(100);
}

#[test]
#[ignore = "long: both families on etcd"]
fn long_podman_dual_stack_on_etcd() {
    let Some(site) = Site::dual(&["podman", "conmon", "runc", "cni/bridge", "etcd"], "") else { return };
    let mut podman = Podman::up(&site);
    cni::dual(&site);
    life::dual(&site, &mut podman, 3);
}
