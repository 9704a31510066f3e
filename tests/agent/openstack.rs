//! OpenStack's own writer, and two agents that follow it on one etcd: virtual machines on both hosts reach
//! each other as their security groups say, the writer's resync finds nothing to change, and its reader sees
//! the agents and the state of each port.
//!
//! A machine is a namespace behind a tap with the name that Nova gives it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::common::calico3;
use crate::common::hosts::{Hosts, PATIENCE, Plan, within};
use crate::common::netns::ip;
use crate::common::neutron::Neutron;

const ETCD: &str = "127.0.0.1:2379";

/// A virtual machine with one port.
struct Machine {
    /// Its namespace.
    node: &'static str,
    host: usize,
    port: &'static str,
    device: &'static str,
    mac: &'static str,
    addr: &'static str,
}

const WEB: Machine = Machine {
    node: "vm1",
    host: 1,
    port: "0b5fa1f0-aa01-4c1e-9d52-3f6d6c1e0001",
    device: "7b1f2c52-8a0b-4f0e-8f2c-000000000001",
    mac: "fa:16:3e:00:00:02",
    addr: "10.65.0.2",
};
const APP: Machine = Machine {
    node: "vm2",
    host: 2,
    port: "0b5fa1f0-aa02-4c1e-9d52-3f6d6c1e0002",
    device: "7b1f2c52-8a0b-4f0e-8f2c-000000000002",
    mac: "fa:16:3e:00:00:03",
    addr: "10.65.0.3",
};
const ADMIN: Machine = Machine {
    node: "vm3",
    host: 2,
    port: "4d0cc7e1-bb03-4c1e-9d52-3f6d6c1e0003",
    device: "7b1f2c52-8a0b-4f0e-8f2c-000000000003",
    mac: "fa:16:3e:00:00:09",
    addr: "10.65.0.9",
};
const MACHINES: [&Machine; 3] = [&WEB, &APP, &ADMIN];

impl Machine {
    /// Returns the name of its interface on the host.
    fn tap(&self) -> String {
        format!("tap{}", &self.port[..11])
    }
}

/// Two hosts with agents, an etcd, and Neutron.
struct Cloud {
    hosts: Hosts,
    neutron: Neutron,
}

/// Runs a closure in a network namespace.
fn inside<T: Send + 'static>(netns: PathBuf, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let netns = File::open(netns).unwrap();
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        body()
    })
}

impl Cloud {
    fn up() -> Option<Self> {
        let words = Neutron::command(ETCD)?;
        let addresses = [(1, "--ip4 172.30.0.1/24".to_owned()), (2, "--ip4 172.30.0.2/24".to_owned())];
        // What the operator writes: Neutron's subnets, and how often the agents report.
        let settings = json!({"reportingInterval": "1s", "reportingTTL": "5s"});
        let settings = calico3::object("FelixConfiguration", "default", &settings);
        let data = BTreeMap::from([
            calico3::pool("10.65.0.0/16", &json!({"cidr": "10.65.0.0/16", "disabled": true})),
            (calico3::key("FelixConfiguration", "default"), settings),
        ]);
        let hosts = Hosts::up(Plan {
            hosts: 2,
            etcd: 1,
            machines: MACHINES.len(),
            flags: addresses.into(),
            later: vec![1, 2],
            data: Some(data),
            ..Plan::default()
        })?;
        let neutron = hosts.lab.spawn("etcd1", &words, Neutron::pipes).unwrap();
        Some(Self { hosts, neutron: Neutron::of(neutron) })
    }

    /// Writes a machine's port with these security groups.
    fn port(&mut self, machine: &Machine, groups: &[&str]) {
        let host = Hosts::node(machine.host);
        self.neutron.port(machine.port, (&host, machine.device, machine.mac), machine.addr, groups);
    }

    /// Creates the tap and what is behind it, as Nova and the machine do.
    fn plug(&self, machine: &Machine) {
        let (tap, Machine { addr, mac, node, .. }) = (machine.tap(), machine);
        let netns = self.netns(machine);
        // `/proc/PROCESS/ns/net`; nodes have no view of each other's processes.
        let process = netns.iter().nth(2).unwrap().to_str().unwrap().to_owned();
        let host = Hosts::node(machine.host);
        let link = format!("link add {tap} type veth peer name eth1 netns {process}");
        inside(self.hosts.lab.netns(&host).unwrap(), move || ip(&link)).join().unwrap();
        self.hosts.run(&host, &format!("ip link set {tap} up"));
        for command in [
            format!("ip link set eth1 address {mac}"),
            "ip link set eth1 up".to_owned(),
            format!("ip address add {addr}/32 dev eth1"),
            "ip route add 169.254.1.1 dev eth1".to_owned(),
            "ip route add default via 169.254.1.1".to_owned(),
        ] {
            self.hosts.run(node, &command);
        }
    }

    fn unplug(&self, machine: &Machine) {
        self.hosts.run(&Hosts::node(machine.host), &format!("ip link delete {}", machine.tap()));
    }

    fn netns(&self, machine: &Machine) -> PathBuf {
        self.hosts.lab.netns(machine.node).unwrap()
    }

    /// Answers TCP connections to a machine's port until the end of the test.
    fn listen(&self, machine: &Machine, port: u16) {
        let listener = inside(self.netns(machine), move || TcpListener::bind(("0.0.0.0", port)).unwrap())
            .join()
            .unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"!");
            }
        });
    }

    /// Connects from a machine to another one; the thread returns true if that answers.
    fn connect(&self, from: &Machine, to: &Machine, port: u16) -> JoinHandle<bool> {
        let to: SocketAddr = format!("{}:{port}", to.addr).parse().unwrap();
        inside(self.netns(from), move || {
            let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_secs(1)) else {
                return false;
            };
            stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            stream.read_exact(&mut [0]).is_ok()
        })
    }

    /// Waits until machines reach each other as the table says, all at the same time.
    fn until_reach(&self, what: &str, table: &[(&Machine, &Machine, u16, bool)]) {
        within(PATIENCE, what, || {
            let connect =
                |(from, to, port, _): &(&Machine, &Machine, u16, bool)| self.connect(from, to, *port);
            let running: Vec<_> = table.iter().map(connect).collect();
            let found: Vec<bool> = running.into_iter().map(|thread| thread.join().unwrap()).collect();
            let wanted: Vec<bool> = table.iter().map(|(.., wanted)| *wanted).collect();
            if found == wanted {
                return Ok(());
            }
            let routes = [1, 2].map(|host| self.hosts.run(&Hosts::node(host), "ip route"));
            let logs = [1, 2].map(|host| self.hosts.log(host));
            Err(format!("{found:?} instead of {wanted:?}: {routes:?}\n{}\n{}", logs[0], logs[1]))
        });
    }

    /// Returns the states of a machine's port that were reported to Neutron, in order. A reader that reads
    /// all again, as this one does when its watch was silent for ten seconds, reports the same once more, and
    /// `None` for each port (3.12 looks for a set of ports in itself).
    fn states(&mut self, machine: &Machine) -> Vec<Value> {
        let status = self.neutron.ask(&json!({"op": "status"}));
        let mut all = status["ports"][machine.port].as_array().cloned().unwrap_or_default();
        assert!(all.iter().all(|reported| reported["host"] == Hosts::node(machine.host)), "{all:?}");
        all.retain(|reported| reported["priority"] == "high" || !reported["status"].is_null());
        let mut states: Vec<Value> = all.into_iter().map(|mut reported| reported["status"].take()).collect();
        states.dedup();
        states
    }

    /// Waits until the last state of a port that was reported to Neutron is this one.
    fn until_state(&mut self, machine: &Machine, wanted: &Value) {
        let (port, host) = (machine.port, machine.host);
        within(PATIENCE, &format!("Neutron sees that {port} is {wanted}"), || {
            let states = self.states(machine);
            if states.last() == Some(wanted) {
                return Ok(());
            }
            Err(format!("{states:?}\n{}", self.hosts.log(host)))
        });
    }

    /// Waits until a host's agent has reported to Neutron at least `starts` times that it started, and then
    /// that it still lives.
    fn until_alive(&mut self, host: usize, starts: u64) {
        let mut first = None;
        within(PATIENCE, &format!("the agent of host{host} reports again and again"), || {
            let status = self.neutron.ask(&json!({"op": "status"}));
            let agent = &status["agents"][Hosts::node(host)];
            let number = |name: &str| agent[name].as_u64().unwrap_or(0);
            let (seen, new) = (number("seen"), number("new"));
            let later = new >= starts && seen > *first.get_or_insert(seen) + 1 && seen > new;
            if later { Ok(()) } else { Err(status.to_string()) }
        });
    }

    /// Returns the revision of the last write of each object.
    fn revisions(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for prefix in ["/calico/resources/", "/calico/dhcp/"] {
            let text = self.hosts.etcdctl(1, &["get", "--prefix", "--keys-only", "-w", "json", prefix]);
            let listed: Value = serde_json::from_str(&text).unwrap();
            for entry in listed["kvs"].as_array().unwrap() {
                let key = base64::engine::general_purpose::STANDARD.decode(entry["key"].as_str().unwrap());
                let key = String::from_utf8(key.unwrap()).unwrap();
                all.insert(key, entry["mod_revision"].as_u64().unwrap());
            }
        }
        all
    }

    /// Lets the writer compare all that it knows with the store. It must find nothing to change, and write
    /// nothing.
    fn resync(&mut self) {
        let before = self.revisions();
        assert_eq!(self.neutron.resync(), json!({"changes": []}));
        assert_eq!(self.revisions(), before);
        let of = |kind: &str| before.keys().filter(|key| key.contains(kind)).count();
        let counts = ["/nodes/", "/workloadendpoints/", "/networkpolicies/", "/dhcp/"].map(of);
        assert!(counts.iter().all(|count| *count > 0), "{before:?}");
    }
}

#[test]
fn agents_follow_the_writer_of_openstack_and_it_follows_them() {
    let Some(mut cloud) = Cloud::up() else { return };
    cloud.neutron.ask(&json!({"op": "start"}));
    cloud.neutron.ask(&json!({"op": "watch"}));
    cloud.neutron.ask(&json!({"op": "subnet", "id": "s", "cidr": "10.65.0.0/24", "gateway": "10.65.0.1"}));
    for host in [1, 2] {
        cloud.hosts.start_agent(host);
        cloud.hosts.until(host, "ready", |status| status["ready"] == true);
    }
    cloud.hosts.until_sessions(1);
    for host in [1, 2] {
        cloud.until_alive(host, 1);
    }

    // The agents run; now Neutron writes groups and ports, and Nova plugs the machines.
    let tcp = |port: u16| json!({"protocol": "tcp", "port_range_min": port, "port_range_max": port});
    let of_app = |port: u16| {
        let mut rule = tcp(port);
        rule["remote_group_id"] = json!("app");
        rule
    };
    let egress = json!({"direction": "egress"});
    let mut ssh = tcp(22);
    ssh["remote_ip_prefix"] = json!("10.65.0.8/29");
    cloud.neutron.group("app", "App servers", &[&egress]);
    cloud.neutron.group("web", "web", &[&of_app(80), &ssh]);
    cloud.port(&WEB, &["web"]);
    cloud.port(&APP, &["app"]);
    cloud.port(&ADMIN, &["app"]);
    for machine in MACHINES {
        cloud.until_state(machine, &json!("down"));
        cloud.plug(machine);
        cloud.until_state(machine, &json!("up"));
    }
    for port in [22, 80, 8080] {
        cloud.listen(&WEB, port);
    }
    cloud.listen(&APP, 80);
    cloud.until_reach(
        "the groups are enforced",
        &[
            (&APP, &WEB, 80, true),
            (&ADMIN, &WEB, 80, true),
            (&ADMIN, &WEB, 22, true),
            (&APP, &WEB, 22, false),
            (&APP, &WEB, 8080, false),
            (&WEB, &APP, 80, false),
        ],
    );
    cloud.resync();

    // Other rules of a group, then other groups of a port.
    cloud.neutron.group("web", "web", &[&of_app(8080)]);
    let table = [(&APP, &WEB, 8080, true), (&APP, &WEB, 80, false), (&ADMIN, &WEB, 22, false)];
    cloud.until_reach("the group has other rules", &table);
    cloud.port(&APP, &["web"]);
    let table = [(&APP, &WEB, 8080, false), (&ADMIN, &WEB, 8080, true), (&ADMIN, &APP, 80, false)];
    cloud.until_reach("the port has another group", &table);
    cloud.neutron.group("web", "web", &[&of_app(8080), &of_app(80)]);
    let table = [(&ADMIN, &APP, 80, true), (&ADMIN, &WEB, 80, true), (&APP, &WEB, 80, false)];
    cloud.until_reach("the group has one more rule", &table);
    cloud.resync();

    // An agent that starts again reports so, and writes no object.
    let before = cloud.revisions();
    cloud.hosts.kill("host1");
    cloud.hosts.start("host1");
    cloud.until_alive(1, 2);
    cloud.hosts.until(1, "ready again", |status| status["ready"] == true);
    cloud.hosts.until_sessions(1);
    assert_eq!(cloud.revisions(), before);
    cloud.resync();
    cloud.until_reach("after the restart", &table);

    // The tap of a machine goes and comes back.
    let reported = cloud.states(&WEB);
    assert_eq!(reported, ["down", "up"], "the restart is no change of the port");
    cloud.unplug(&WEB);
    cloud.until_state(&WEB, &json!("down"));
    cloud.until_reach("it is gone", &[(&ADMIN, &WEB, 80, false), (&ADMIN, &APP, 80, true)]);
    cloud.plug(&WEB);
    cloud.until_state(&WEB, &json!("up"));
    cloud.until_reach("after the machine is back", &table);
    assert_eq!(cloud.states(&APP), ["down", "up"], "of other ports nothing is reported");
    cloud.resync();

    // A deleted port has no state.
    cloud.neutron.ask(&json!({"op": "delete-port", "id": WEB.port}));
    cloud.until_state(&WEB, &Value::Null);
    within(PATIENCE, "no host has a route to it", || {
        let routes =
            [1, 2].map(|host| cloud.hosts.run(&Hosts::node(host), &format!("ip route show {}", WEB.addr)));
        if routes.iter().all(String::is_empty) { Ok(()) } else { Err(format!("{routes:?}")) }
    });
    cloud.resync();
}
