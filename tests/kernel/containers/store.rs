//! Interfaces and endpoints together: work of a plugin, without an agent or with one played by the test.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie::plugins::attach::{
    AgentAbsent, AgentClient, AttachError, AttachRequest, Attachment, DetachRequest, LinkSpec, ProfileChoice,
    alias, attach, check, detach, host_interface,
};
use tortie_config::key::{EndpointKey, Key};
use tortie_kernel::container::{self, Bandwidth, PortMapping, Rate, Transport};
use tortie_store::sqlite::SqliteStore;
use tortie_store::{Op, Store, Txn};

use super::{addrs, enable_forwarding, name};
use crate::common::containers::Pod;
use crate::common::fake_agent::serve_fixed_answer;
use crate::common::netns::{in_netns, ip, try_ip};

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A host with a store and optionally an agent with fixed answers.
struct Host {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    agent: AgentClient,
    runtime: tokio::runtime::Runtime,
}

impl Host {
    fn new(absent: AgentAbsent) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = runtime.block_on(SqliteStore::open(&dir.path().join("store.db"), true)).unwrap();
        let mut agent = AgentClient::new(dir.path().join("tortie.sock"), absent);
        agent.missing = Duration::from_millis(300);
        Self { dir, store: Arc::new(store), agent, runtime }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("tortie.sock")
    }

    fn attach(&self, wanted: &AttachRequest) -> Result<Attachment, AttachError> {
        self.runtime.block_on(attach(&*self.store, &self.agent, wanted))
    }

    fn detach(&self, leaving: &DetachRequest) -> Result<(), AttachError> {
        self.runtime.block_on(detach(&*self.store, &self.agent, leaving))
    }

    fn differences(&self, wanted: &AttachRequest) -> Vec<String> {
        let found = self.runtime.block_on(check(&*self.store, wanted)).unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    fn put(&self, key: &str, value: &str) {
        let op = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
        self.runtime.block_on(self.store.commit(Txn { compare: vec![], ops: vec![op] })).unwrap();
    }

    fn get(&self, key: &str) -> Option<Value> {
        let found = self.runtime.block_on(self.store.get(key)).unwrap()?;
        Some(serde_json::from_slice(&found.value).unwrap())
    }

    /// Returns every key below `/calico/`.
    fn keys(&self) -> Vec<String> {
        let all = self.runtime.block_on(self.store.list(&["/calico/".to_owned()])).unwrap();
        all.entries.into_iter().map(|kv| kv.key).collect()
    }
}

fn wanted(pod: &Pod, id: &str, list: &[&str]) -> AttachRequest {
    let key = EndpointKey::Workload {
        host: "h1".to_owned(),
        orchestrator: "cni".to_owned(),
        workload: id.to_owned(),
        endpoint: "eth0".to_owned(),
    };
    AttachRequest {
        key,
        netns: pod.path(),
        ifname: name("eth0"),
        host_ifname: host_interface("cali", id).unwrap(),
        link: LinkSpec::Veth,
        mac: None,
        mtu: None,
        addrs: addrs(list),
        routes: None,
        profile: ProfileChoice::Create("net1".to_owned()),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        instance: Some(id.to_owned()),
        ports: Vec::new(),
        ports_table: container::ports_table("tortie-ports", id),
        former_ports_table: container::former_ports_table("tortie-ports", id),
        bandwidth: Bandwidth::default(),
    }
}

fn leaving(wanted: &AttachRequest) -> DetachRequest {
    DetachRequest {
        key: wanted.key.clone(),
        instance: wanted.instance.clone(),
        host_ifname: wanted.host_ifname.clone(),
        own_link: wanted.link == LinkSpec::Veth,
        netns: Some(wanted.netns.clone()),
        ifname: wanted.ifname.clone(),
        ports_table: wanted.ports_table.clone(),
        former_ports_table: wanted.former_ports_table.clone(),
    }
}

/// Returns everything that a container may leave behind on this host.
fn traces() -> Vec<String> {
    let mut all: Vec<String> =
        container::orphans("tortie").unwrap().into_iter().map(|(name, _)| name).collect();
    all.extend(container::mapped_tables("tortie-ports").unwrap());
    all
}

#[test]
fn names_of_interfaces_are_the_beginning_of_an_id_or_a_hash_of_a_name() {
    assert_eq!(host_interface("cali", ID).unwrap().as_str(), "cali0123456789a");
    assert_eq!(
        host_interface("kur", "146d7cef-fbf6-41da-a2f8-eba218597f9c").unwrap().as_str(),
        "kur146d7ceffbf"
    );
    let (one, two) = (
        host_interface("cali", "default-mybox1").unwrap(),
        host_interface("cali", "default-mybox2").unwrap(),
    );
    assert_ne!(one, two, "ctr names containers so: their beginnings are the same");
    assert_eq!(one.as_str().len(), 15);
    for bad in ["", "calis", "a/b", "é"] {
        assert!(host_interface(bad, ID).is_err(), "{bad}");
    }
}

#[test]
fn an_endpoint_is_written_with_its_profile_and_goes_again_without_a_trace() {
    in_netns(|| {
        enable_forwarding();
        let (host, pod) = (Host::new(AgentAbsent::Error), Pod::new());
        let asked =
            serve_fixed_answer(&host.socket(), json!({"result": "applied", "reason": null, "revision": 9}));
        let mut one = wanted(&pod, ID, &["10.65.0.2", "2001:db8:65::2"]);
        one.ports = vec![PortMapping {
            host_ip: None,
            host_port: 8080,
            container_port: 80,
            protocol: Transport::Tcp,
        }];
        let rate = Some(Rate { bits: 8_000_000, burst: None });
        one.bandwidth = Bandwidth { ingress: rate, egress: rate };
        let attached = host.attach(&one).unwrap();
        assert_eq!(attached.gateways, addrs(&["169.254.1.1", "fe80::ecee:eeff:feee:eeee"]));
        let key = Key::Endpoint(one.key.clone()).to_string();
        assert_eq!(key, format!("/calico/v1/host/h1/workload/cni/{ID}/endpoint/eth0"));
        assert_eq!(
            host.get(&key).unwrap(),
            json!({
                "state": "active", "name": "cali0123456789a", "active_instance_id": ID,
                "mac": attached.mac.unwrap().to_string(), "profile_ids": ["net1"],
                "ipv4_nets": ["10.65.0.2/32"], "ipv6_nets": ["2001:db8:65::2/128"],
                "ipv4_gateway": "169.254.1.1", "ipv6_gateway": "fe80::ecee:eeff:feee:eeee",
                "labels": {"app": "web"}
            })
        );
        // Written by Calico's plugin: facts of its first generation.
        assert_eq!(
            host.get("/calico/v1/policy/profile/net1/rules").unwrap(),
            json!({"inbound_rules": [{"action": "allow", "src_tag": "net1"}], "outbound_rules": [{"action": "allow"}]})
        );
        assert_eq!(host.get("/calico/v1/policy/profile/net1/tags").unwrap(), json!(["net1"]));
        assert_eq!(asked.lock().unwrap()[0]["key"], json!(key));
        assert_eq!(asked.lock().unwrap()[0]["revision"], json!(attached.revision));
        assert!(ip("link show cali0123456789a").contains(&format!("alias {}", alias(&one.key))));
        assert_eq!(host.differences(&one), Vec::<String>::new());
        // From now on the administrator owns the profile.
        host.put("/calico/v1/policy/profile/net1/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#);
        host.detach(&leaving(&one)).unwrap();
        assert_eq!(asked.lock().unwrap().len(), 2, "the agent is told of the end, too");
        assert_eq!(traces(), Vec::<String>::new());
        assert_eq!(ip("route show 10.65.0.2") + &pod.ip("-o link show type veth"), "");
        host.detach(&leaving(&one)).unwrap();
        let again = host.attach(&one).unwrap();
        assert_eq!(host.get("/calico/v1/policy/profile/net1/rules").unwrap()["inbound_rules"], json!([]));
        // The namespace is removed first; the rest is removed without it.
        drop(pod);
        host.detach(&leaving(&one)).unwrap();
        assert!(again.revision > attached.revision);
        assert_eq!(traces(), Vec::<String>::new());
        assert_eq!(host.keys().iter().filter(|key| key.contains("/endpoint/")).count(), 0);
    });
}

#[test]
fn whatever_fails_leaves_nothing_behind() {
    in_netns(|| {
        let (host, pod) = (Host::new(AgentAbsent::Error), Pod::new());
        let good = wanted(&pod, ID, &["10.65.0.2", "2001:db8:65::2"]);
        let port = PortMapping { host_ip: None, host_port: 0, container_port: 80, protocol: Transport::Tcp };
        let limits = |bits| Bandwidth {
            ingress: Some(Rate { bits: 8_000_000, burst: None }),
            egress: Some(Rate { bits, burst: None }),
        };
        let try_it = |what: &str, wanted: &AttachRequest, word: &str, later: bool| {
            let error = host.attach(wanted).unwrap_err();
            assert!(error.to_string().contains(word), "{what}: {error}");
            assert_eq!(error.try_later(), later, "{what}: {error}");
            assert_eq!(traces(), Vec::<String>::new(), "{what}");
            assert!(!host.keys().iter().any(|key| key.contains("/endpoint/")), "{what}: {:?}", host.keys());
            assert_eq!(pod.ip("-o link show type veth"), "", "{what}");
        };
        // Without a listener: ten seconds, here a third of one.
        let begin = Instant::now();
        try_it("no agent", &good, "no agent runs here", true);
        assert!(begin.elapsed() < Duration::from_secs(8));
        try_it(
            "no namespace",
            &AttachRequest { netns: "/run/netns/nobody".into(), ..good.clone() },
            "does not exist",
            false,
        );
        try_it("a port 0", &AttachRequest { ports: vec![port], ..good.clone() }, "1 to 65535", false);
        try_it("no rate", &AttachRequest { bandwidth: limits(1), ..good.clone() }, "8 or more", false);
        try_it("a small MTU", &AttachRequest { mtu: Some(1000), ..good.clone() }, "1280", false);
        try_it("no address", &AttachRequest { addrs: vec![], ..good.clone() }, "no address", false);
        let tag = ProfileChoice::Create("not a tag".to_owned());
        try_it("a profile's name", &AttachRequest { profile: tag, ..good.clone() }, "not a tag", false);
        ip("route add blackhole 10.65.0.2/32");
        try_it("a taken address", &good, "10.65.0.2", false);
        ip("route del blackhole 10.65.0.2/32");
        let existing = LinkSpec::Existing { host: name("tap0"), inside: None };
        try_it("no tap", &AttachRequest { link: existing, ..good.clone() }, "tap0", false);
        host.put("/calico/v1/Ready", "false");
        try_it("frozen", &good, "frozen", true);
        host.put("/calico/v1/Ready", "true");
        for (result, word, later) in
            [("failed", "because", false), ("frozen", "because", true), ("timeout", "not put", true)]
        {
            let _ = std::fs::remove_file(host.socket());
            serve_fixed_answer(&host.socket(), json!({"result": result, "reason": "because", "revision": 1}));
            try_it(result, &good, word, later);
        }
        // The profile stays: other endpoints may use it.
        assert!(host.keys().contains(&"/calico/v1/policy/profile/net1/tags".to_owned()));
        std::fs::remove_file(host.socket()).unwrap();
        pod.ip("link add eth0 type veth peer name other");
        let error = host.attach(&good).unwrap_err().to_string();
        assert_eq!(error, "interface eth0 exists already in the container");
        assert_eq!(traces(), Vec::<String>::new());
        assert!(pod.ip("-o link show eth0").contains("other"), "the one that was there stays");
    });
}

#[test]
fn a_late_removal_leaves_the_next_instance_alone_and_a_killed_try_is_taken_over() {
    in_netns(|| {
        let host = Host::new(AgentAbsent::Continue);
        let (old, new) = (Pod::new(), Pod::new());
        // Under Kubernetes the name of the pod determines endpoint and interface.
        let mut first = wanted(&old, "ns.web", &["10.65.0.2"]);
        first.instance = Some("first".to_owned());
        let attached = host.attach(&first).unwrap();
        assert!(attached.notes[0].contains("no agent runs here"), "{:?}", attached.notes);
        let mut second = AttachRequest { netns: new.path(), addrs: addrs(&["10.65.0.3"]), ..first.clone() };
        second.instance = Some("second".to_owned());
        second.ports_table = container::ports_table("tortie-ports", "second");
        let attached = host.attach(&second).unwrap();
        assert!(attached.notes[0].contains("left over"), "{:?}", attached.notes);
        host.detach(&leaving(&first)).unwrap();
        assert_eq!(host.differences(&second), Vec::<String>::new());
        assert!(!host.differences(&first).is_empty());
        // An interface with this name that another program owns is not modified, and causes an error.
        host.detach(&leaving(&second)).unwrap();
        let taken = second.host_ifname.as_str();
        ip(&format!("link add {taken} type veth peer name other"));
        ip(&format!("link set {taken} alias somebody"));
        let error = host.attach(&second).unwrap_err().to_string();
        assert!(error.contains("exists already on this host"), "{error}");
        host.detach(&leaving(&second)).unwrap();
        assert!(try_ip(&format!("link show {taken}")).0);
    });
}

/// Interface names have 44 bits of an id. The present owner of a name stays intact, whatever happens to the
/// other.
#[test]
fn of_two_containers_whose_names_clash_the_younger_is_refused_and_the_elder_stays() {
    in_netns(|| {
        let host = Host::new(AgentAbsent::Continue);
        let (first, second) = (Pod::new(), Pod::new());
        let port = |host_port| PortMapping {
            host_ip: None,
            host_port,
            container_port: 80,
            protocol: Transport::Udp,
        };
        let ids = ["0123456789abcdef0123456789abcdef", "0123456789affffffffffffffffffff0"];
        let mut elder = wanted(&first, ids[0], &["10.65.0.2"]);
        elder.ports = vec![port(8080)];
        elder.bandwidth.egress = Some(Rate { bits: 8_000_000, burst: None });
        let mut younger = wanted(&second, ids[1], &["10.65.0.3"]);
        (younger.ports, younger.bandwidth) = (vec![port(8081)], elder.bandwidth);
        assert_eq!(elder.host_ifname, younger.host_ifname);
        assert_ne!(elder.ports_table, younger.ports_table);
        host.attach(&elder).unwrap();
        let before = traces();
        let refused = host.attach(&younger).unwrap_err().to_string();
        for name in [elder.host_ifname.as_str(), ids[0], ids[1], "is refused"] {
            assert!(refused.contains(name), "{name}: {refused}");
        }
        // Actions of a runtime after a failed ADD.
        host.detach(&leaving(&younger)).unwrap();
        assert_eq!(host.differences(&elder), Vec::<String>::new());
        assert_eq!(traces(), before);
        host.detach(&leaving(&elder)).unwrap();
        host.attach(&younger).unwrap();
        host.detach(&leaving(&younger)).unwrap();
        assert_eq!(traces(), Vec::<String>::new());
    });
}

/// A container attached by an earlier version has its table under that version's name.
#[test]
fn port_mappings_of_an_earlier_version_are_known_and_go_with_their_container() {
    in_netns(|| {
        let (host, pod) = (Host::new(AgentAbsent::Continue), Pod::new());
        let mut one = wanted(&pod, ID, &["10.65.0.2"]);
        one.ports = vec![PortMapping {
            host_ip: None,
            host_port: 8080,
            container_port: 80,
            protocol: Transport::Tcp,
        }];
        host.attach(&one).unwrap();
        container::unmap_ports(&one.ports_table).unwrap();
        assert_eq!(host.differences(&one).len(), 1);
        container::map_ports(&one.former_ports_table, &one.addrs, &one.ports).unwrap();
        assert_eq!(host.differences(&one), Vec::<String>::new());
        host.detach(&leaving(&one)).unwrap();
        assert_eq!(traces(), Vec::<String>::new());
    });
}

#[test]
fn every_change_behind_our_back_is_a_difference() {
    in_netns(|| {
        let (host, pod) = (Host::new(AgentAbsent::Continue), Pod::new());
        let mut one = wanted(&pod, ID, &["10.65.0.2", "2001:db8:65::2"]);
        one.ports = vec![PortMapping {
            host_ip: None,
            host_port: 8080,
            container_port: 80,
            protocol: Transport::Udp,
        }];
        one.bandwidth.ingress = Some(Rate { bits: 8_000_000, burst: None });
        host.attach(&one).unwrap();
        let cali = one.host_ifname.as_str();
        let expect = |what: &str, word: &str| {
            let found = host.differences(&one);
            assert!(found.len() == 1 && found[0].contains(word), "{what}: {found:?}");
        };
        let key = Key::Endpoint(one.key.clone()).to_string();
        let value = host.get(&key).unwrap();
        let mut other = value.clone();
        other["ipv4_nets"] = json!(["10.65.0.9/32"]);
        host.put(&key, &other.to_string());
        expect("the endpoint", "should be 10.65.0.2/32, is 10.65.0.9/32");
        host.put(&key, &value.to_string());
        ip(&format!("route del 10.65.0.2 dev {cali}"));
        expect("the host's route", "route to 10.65.0.2");
        ip(&format!("route add 10.65.0.2 dev {cali}"));
        pod.ip("route del default");
        expect("the way out", "route to 0.0.0.0/0");
        pod.ip("route add default via 169.254.1.1 dev eth0 onlink");
        pod.ip("-6 addr del 2001:db8:65::2/128 dev eth0");
        expect("an address", "address 2001:db8:65::2");
        pod.ip("addr add 2001:db8:65::2/128 dev eth0 nodad");
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{cali}/rp_filter"), "0").unwrap();
        expect("a sysctl", "sysctls");
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{cali}/rp_filter"), "1").unwrap();
        container::unmap_ports(&one.ports_table).unwrap();
        expect("the ports", "port mappings");
        container::map_ports(&one.ports_table, &one.addrs, &one.ports).unwrap();
        container::unlimit(&one.host_ifname).unwrap();
        expect("the limit", "ingress limit");
        container::limit(&one.host_ifname, &one.bandwidth, None).unwrap();
        assert_eq!(host.differences(&one), Vec::<String>::new());
        drop(pod);
        let gone = host.differences(&one);
        assert!(gone.iter().any(|line| line.contains("network namespace")), "{gone:?}");
        host.detach(&leaving(&one)).unwrap();
        assert!(host.differences(&one)[0].contains("an endpoint, is missing"));
    });
}

#[test]
fn a_tap_of_an_earlier_plugin_becomes_the_endpoint_and_is_left_to_it() {
    in_netns(|| {
        let (host, pod) = (Host::new(AgentAbsent::Continue), Pod::new());
        ip("tuntap add tap7 mode tap");
        let mut one = wanted(&pod, ID, &["10.65.0.2", "2001:db8:65::2"]);
        one.link = LinkSpec::Existing { host: name("tap7"), inside: None };
        one.mac = Some("02:00:00:00:00:01".parse().unwrap());
        let attached = host.attach(&one).unwrap();
        assert_eq!((attached.mac, attached.gateways.len()), (one.mac, 2));
        let key = Key::Endpoint(one.key.clone()).to_string();
        assert_eq!(host.get(&key).unwrap()["name"], json!("cali0123456789a"));
        assert_eq!(host.differences(&one), Vec::<String>::new());
        host.detach(&leaving(&one)).unwrap();
        assert!(try_ip("link show tap7").0, "the plugin that made it removes it, and knows it by this name");
        assert_eq!(traces(), Vec::<String>::new());
        host.detach(&leaving(&one)).unwrap();
        assert_eq!(host.get(&key), None);
    });
}
