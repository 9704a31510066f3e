//! podman 4.3 on both hosts with CNI as its network back end.

use crate::cni;
use crate::life::{self, Engine};
use crate::site::{HOSTS, Site, Workload};

const IMAGE: &str = "localhost/bb:1";

/// podman keeps no daemon.
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
            // Its own limits are higher than a test may have: runc refuses to start.
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
        let words: Vec<&str> = words.split_whitespace().collect();
        let base = ["podman", "--storage-driver", "vfs", "--runtime", "runc"];
        site.try_run(host, &[&base, &words[..]].concat())
            .unwrap_or_else(|e| panic!("{e}\n{}", site.evidence()))
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

#[test]
fn podman_with_the_reference_plugins() {
    let Some(site) = Site::up(&["podman", "conmon", "runc", "cni/bridge"], "") else { return };
    cni::reference(&site);
    let mut podman = Podman::up(&site);
    life::reference(&site, &mut podman);
}
