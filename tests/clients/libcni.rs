//! libcni itself, which container runtimes use: network namespaces of our own in the place of containers.

use serde_json::Value;

use crate::cni;
use crate::life::{self, Engine};
use crate::site::{Daemon, HOSTS, Site, Workload};

/// Namespaces that a process holds, put into networks by `cnirun`.
pub(crate) struct Libcni {
    running: Vec<(usize, String, Daemon)>,
    /// Words of `cnirun` in each call.
    words: Vec<String>,
}

impl Libcni {
    pub(crate) fn up(site: &Site) -> Self {
        for host in HOSTS {
            cni::install(site, host);
        }
        Self { running: Vec::new(), words: Vec::new() }
    }

    pub(crate) fn cnirun(&self, site: &Site, host: usize, name: &str, verb: &str) -> Result<String, String> {
        let netns = format!("/run/netns/{name}");
        let base = ["cnirun", "-conf", cni::CONFIG, "-path", cni::PLUGINS, "-id", name];
        let more: Vec<&str> = self.words.iter().map(String::as_str).collect();
        site.try_run(host, &[&base[..], &more, &[verb, &netns]].concat())
    }

    /// The namespace of a container that is not in any network.
    pub(crate) fn namespace(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        site.run(host, &["ip", "netns", "add", name]);
        let holder = site.daemon(host, &["ip", "netns", "exec", name, "sleep", "100000"]);
        site.run(host, &["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"]);
        self.running.push((host, name.to_owned(), holder));
        let pid = site.run(host, &["ip", "netns", "pids", name]);
        Workload { host, pid: pid.lines().next().unwrap().parse().unwrap(), addr: String::new() }
    }

    /// Ends the namespace.
    pub(crate) fn end(&mut self, site: &Site, host: usize, name: &str) {
        self.running.retain(|(h, n, _)| (*h, n.as_str()) != (host, name));
        site.run(host, &["ip", "netns", "del", name]);
    }
}

impl Engine for Libcni {
    fn start(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        let mut this = self.namespace(site, host, name);
        let text =
            self.cnirun(site, host, name, "add").unwrap_or_else(|e| panic!("{e}\n{}", site.evidence()));
        let result: Value = serde_json::from_str(&text).unwrap();
        let addr = result["ips"][0]["address"].as_str().unwrap();
        this.addr = addr.split('/').next().unwrap().to_owned();
        self.cnirun(site, host, name, "check").unwrap_or_else(|e| panic!("{e}"));
        this
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        self.cnirun(site, host, name, "del").unwrap();
        self.cnirun(site, host, name, "del").unwrap_or_else(|e| panic!("again: {e}"));
        self.end(site, host, name);
    }
}

#[test]
fn libcni_with_the_reference_plugins() {
    let Some(site) = Site::up(&["cnirun", "cni/bridge"], "") else { return };
    cni::reference(&site);
    let mut libcni = Libcni::up(&site);
    life::reference(&site, &mut libcni);
}
