//! libcni, the library of container runtimes, with plain network namespaces instead of containers.

use serde_json::{Value, json};

use crate::common::hosts::within;
use crate::engines::cni;
use crate::engines::life::{self, Engine};
use crate::engines::site::{Daemon, HOSTS, PATIENCE, STORE, Site, Workload};

/// Namespaces held by a process and attached to networks by `cnirun`.
pub(crate) struct Libcni {
    running: Vec<(usize, String, Daemon)>,
    /// Arguments of `cnirun` in each call.
    words: Vec<String>,
    /// True if CHECK is called.
    check: bool,
}

impl Libcni {
    pub(crate) fn up(site: &Site) -> Self {
        for host in HOSTS {
            cni::install(site, host);
        }
        Self { running: Vec::new(), words: Vec::new(), check: true }
    }

    pub(crate) fn cnirun(&self, site: &Site, host: usize, name: &str, verb: &str) -> Result<String, String> {
        let netns = format!("/run/netns/{name}");
        let base = ["cnirun", "-conf", cni::CONFIG, "-path", cni::PLUGINS, "-id", name];
        let more: Vec<&str> = self.words.iter().map(String::as_str).collect();
        site.try_run(host, &[&base[..], &more, &[verb, &netns]].concat())
    }

    /// Creates the namespace of a container without any network.
    pub(crate) fn namespace(&mut self, site: &Site, host: usize, name: &str) -> Workload {
        site.run(host, &["ip", "netns", "add", name]);
        let holder = site.daemon(host, &["ip", "netns", "exec", name, "sleep", "100000"]);
        site.run(host, &["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"]);
        self.running.push((host, name.to_owned(), holder));
        let mut pid = String::new();
        within(PATIENCE, "somebody is in the namespace", || {
            pid = site.run(host, &["ip", "netns", "pids", name]);
            if pid.is_empty() { Err("nobody".to_owned()) } else { Ok(()) }
        });
        Workload { host, pid: pid.lines().next().unwrap().parse().unwrap(), addr: String::new() }
    }

    /// Removes the namespace.
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
        if self.check {
            self.cnirun(site, host, name, "check").unwrap_or_else(|e| panic!("{e}"));
        }
        this
    }

    fn remove(&mut self, site: &Site, host: usize, name: &str) {
        self.cnirun(site, host, name, "del").unwrap();
        self.cnirun(site, host, name, "del").unwrap_or_else(|e| panic!("again: {e}"));
        self.end(site, host, name);
    }
}

fn up() -> Option<(Site, Libcni)> {
    let site = Site::up(&["cnirun", "cni/bridge"], "")?;
    let libcni = Libcni::up(&site);
    Some((site, libcni))
}

/// Runs the life cycle of containers in Tortie's network, `rounds` times.
fn libcni(rounds: usize) -> Option<(Site, Libcni)> {
    let (mut site, mut libcni) = up()?;
    cni::reference(&site);
    life::reference(&site, &mut libcni);
    cni::only_ours(&site);
    life::life(&mut site, &mut libcni, rounds);
    Some((site, libcni))
}

#[test]
fn libcni_life() {
    libcni(5);
}

#[test]
#[ignore = "long: 100 starts and stops"]
fn long_libcni() {
    libcni(100);
}

#[test]
#[ignore = "long: both families on etcd"]
fn long_libcni_dual_stack_on_etcd() {
    let Some(site) = Site::dual(&["cnirun", "cni/bridge", "etcd"], "") else { return };
    let mut libcni = Libcni::up(&site);
    cni::dual(&site);
    life::dual(&site, &mut libcni, 3);
}

/// Configuration of a host by its number.
type List = fn(usize) -> Value;

/// Checks a network of these plugins: the containers of both hosts reach each other, a policy between them is
/// enforced, `more` runs, and nothing is left.
fn chain(site: &Site, libcni: &mut Libcni, list: List, more: impl FnOnce(&Site, &[Workload; 2])) {
    for host in HOSTS {
        cni::configure(site, host, &list(host));
    }
    let mut before = None;
    let mut more = Some(more);
    // The second round shows leftovers of the first.
    for round in ["first", "second"] {
        let pair = HOSTS.map(|host| libcni.start(site, host, round));
        site.wait_until_reachable(&pair[0], &pair[1]);
        site.policy_holds(&pair[0], &pair[1]);
        if before.is_some()
            && let Some(more) = more.take()
        {
            more(site, &pair);
        }
        for host in HOSTS {
            libcni.remove(site, host, round);
        }
        site.nothing_held();
        before.get_or_insert_with(|| HOSTS.map(|host| site.remains(host)));
    }
    site.as_before(&before.unwrap(), "after the chain");
}

/// The reference plugins portmap, bandwidth and tuning after `tortie-cni`.
#[test]
fn reference_plugins_behind_ours() {
    let Some((site, mut libcni)) = up() else { return };
    libcni.words = vec![
        "-cap".to_owned(),
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}).to_string(),
    ];
    // This version of portmap expects IPv6 rules of a container without IPv6, if ip6tables is installed.
    libcni.check = false;
    let list: List = |host| {
        json!([
            cni::ours(host, json!({})),
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_announce": "2"}},
        ])
    };
    chain(&site, &mut libcni, list, |site, [first, _]| {
        let host = site.sh(1, "ip -o link show | grep cali");
        assert!(host.contains("qdisc tbf"), "{host}");
        let inside = |words: &[&str]| site.within(first, words).unwrap();
        assert_eq!(inside(&["cat", "/proc/sys/net/ipv4/conf/eth0/arp_announce"]), "2");
        site.allow_everybody();
        let page = site.serve_port_80(first);
        site.wait_for_answer(2, "172.30.0.1", 8080);
        drop(page);
        site.stop_allowing_everybody();
    });
}

/// The reference ptp creates the interface with an address of `tortie-ipam`; then `tortie-cni` turns it into
/// an endpoint.
#[test]
fn ours_behind_the_reference_ptp() {
    let Some((site, mut libcni)) = up() else { return };
    let list: List = |host| {
        let ptp = json!({"type": "ptp", "ipam": {"type": "tortie-ipam"}, "datastore": STORE, "node": format!("host{host}")});
        json!([ptp, cni::ours(host, json!({}))])
    };
    chain(&site, &mut libcni, list, |_, _| ());
}

/// The reference bridge with addresses of `tortie-ipam`: two containers on a host reach each other without
/// other plugins.
#[test]
fn our_addresses_below_the_reference_bridge() {
    let Some((site, mut libcni)) = up() else { return };
    let bridge = json!({"type": "bridge", "bridge": "ref0", "isGateway": true, "datastore": STORE, "node": "host1",
        "ipam": {"type": "tortie-ipam", "routes": [{"dst": "0.0.0.0/0"}]}});
    cni::configure(&site, 1, &json!([bridge]));
    let pair = ["one", "two"].map(|name| libcni.start(&site, 1, name));
    site.wait_until_reachable(&pair[0], &pair[1]);
    assert_ne!(pair[0].addr, pair[1].addr);
    // The gateway is the bridge's own address, which is not allocated to containers.
    let gateway = site.within(&pair[0], &["ip", "-j", "route", "show", "default"]).unwrap();
    let gateway: Value = serde_json::from_str(&gateway).unwrap();
    let gateway = gateway[0]["gateway"].as_str().unwrap().to_owned();
    assert!(pair.iter().all(|w| w.addr != gateway));
    for addr in [gateway.as_str(), "172.30.0.1"] {
        within(PATIENCE, "an answer of the host", || site.pings(&pair[0], addr));
    }
    for name in ["one", "two"] {
        libcni.remove(&site, 1, name);
    }
    site.nothing_held();
}
