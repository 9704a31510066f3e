//! Live migration of a virtual machine between three hosts of a Calico 3 store, with OpenStack's objects, while
//! two routers send it 1,000 packets a second each: one by iBGP (BIRD), one by eBGP (FRR).
//!
//! The machine is a namespace behind each host's tap, of which one has its address at a time. The order of
//! OpenStack's writes is shuffled, and agents restart in between.
//!
//! The hosts announce to the eBGP router also what they learned from each other. It uses one path: if it shared
//! load among all, it would use hosts whose own kernel does not have the new route yet.
//!
//! Packets are lost while the machine stops on one host and starts on the other, and until its first packet
//! there has reached the routers. Before and after this window none may be lost, and the other host must never
//! be without a route.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tortie_topology::{Lab, Options, Running, Sandbox, Victim};

use crate::common::concurrency;
use crate::common::hosts::{PATIENCE, TORTIE, within};

const OBJECTS: &str = "/calico/resources/v3/projectcalico.org";
const ADDRESS: &str = "10.65.0.5";
const MAC: &str = "fa:16:3e:00:00:01";
/// Interface of the machine on each host, as OpenStack names it: `tap` and the beginning of the port's id.
const TAP: &str = "tap0b5fa1f0-aa";
const ROUTERS: [&str; 2] = ["ibgp", "ebgp"];
/// Time after the end of a migration until its routes are normal again, in seconds.
const CONVERGENCE: u64 = 1;

const BIRD: &str = "router id 172.30.0.251;
protocol device { scan time 2; }
protocol direct { ipv4; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
template bgp host {
  local 172.30.0.251 as 64512;
  neighbor as 64512;
  connect delay time 1; connect retry time 2; error wait time 1, 5; startup hold time 10;
  graceful restart on;
  ipv4 { import all; export none; };
}
protocol bgp host1 from host { neighbor 172.30.0.1; }
protocol bgp host2 from host { neighbor 172.30.0.2; }
protocol bgp host3 from host { neighbor 172.30.0.3; }
";

const FRR: &str = "frr defaults datacenter
hostname ebgp
log stdout
!
bgp community-list standard arrived seq 5 permit 65000:100
!
route-map priority permit 10
 match community arrived
 set local-preference 200
!
route-map priority permit 20
!
router bgp 65000
 bgp router-id 172.30.0.252
 no bgp ebgp-requires-policy
 bgp graceful-restart
 neighbor hosts peer-group
 neighbor hosts remote-as 64512
 neighbor hosts timers 30 90
 neighbor hosts timers connect 2
 neighbor 172.30.0.1 peer-group hosts
 neighbor 172.30.0.2 peer-group hosts
 neighbor 172.30.0.3 peer-group hosts
 !
 address-family ipv4 unicast
  maximum-paths 1
  neighbor hosts route-map priority in
  neighbor hosts prefix-list none out
 exit-address-family
!
ip prefix-list none seq 5 deny any
";

/// Returns the objects that are there before the first migration.
fn objects() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut add = |key: &str, spec: Value| {
        let object =
            json!({ "apiVersion": "projectcalico.org/v3", "metadata": { "name": key }, "spec": spec });
        all.insert(format!("{OBJECTS}/{key}"), object.to_string());
    };
    add("clusterinformations/default", json!({ "clusterType": "openstack", "datastoreReady": true }));
    let settings = json!({
        "interfacePrefix": "cali,tap", "endpointReportingEnabled": true,
        "liveMigrationRouteConvergenceTime": format!("{CONVERGENCE}s"),
    });
    add("felixconfigurations/default", settings);
    add("bgpconfigurations/default", json!({ "asNumber": 64512, "nodeToNodeMeshEnabled": true }));
    add("ippools/vms", json!({ "cidr": "10.65.0.0/16", "disabled": true }));
    add("bgppeers/ibgp", json!({ "peerIP": "172.30.0.251", "asNumber": 64512 }));
    let filters = json!({ "peerIP": "172.30.0.252", "asNumber": 65000, "filters": ["arrived"] });
    add("bgppeers/ebgp", filters);
    let community = json!([{ "addCommunity": { "value": "65000:100" } }]);
    let arrived = json!({ "exportV4": [{ "action": "Accept", "priority": 512, "operations": community }] });
    add("bgpfilters/arrived", arrived);
    let rules = json!([{ "action": "Allow" }]);
    let group = json!({
        "selector": "has(sg.projectcalico.org/openstack-sg)", "ingress": rules, "egress": rules,
    });
    add("networkpolicies/openstack/ossg.default.sg", group);
    for host in 1..=3 {
        let address = format!("172.30.0.{host}/24");
        add(&format!("nodes/host{host}"), json!({ "bgp": { "ipv4Address": address } }));
    }
    all.insert(endpoint_key(1), endpoint(1));
    all
}

fn endpoint_key(host: usize) -> String {
    format!("{OBJECTS}/workloadendpoints/openstack/host{host}-openstack-vm-0b5fa1f0--aa")
}

fn endpoint(host: usize) -> String {
    let labels = json!({
        "sg.projectcalico.org/openstack-sg": "sg",
        "projectcalico.org/namespace": "openstack", "projectcalico.org/orchestrator": "openstack",
    });
    let spec = json!({
        "orchestrator": "openstack", "workload": "vm", "node": format!("host{host}"), "endpoint": "0b5fa1f0-aa",
        "interfaceName": TAP, "mac": MAC, "ipNetworks": [format!("{ADDRESS}/32")],
    });
    json!({ "metadata": { "namespace": "openstack", "labels": labels }, "spec": spec }).to_string()
}

fn migration(from: usize, to: usize) -> (String, String) {
    let end = |host: usize| {
        json!({ "workloadEndpoint": {
            "hostname": format!("host{host}"), "orchestratorID": "openstack", "workloadID": "openstack/vm",
            "endpointID": "0b5fa1f0-aa",
        } })
    };
    let value = json!({ "metadata": { "namespace": "openstack" }, "spec": { "source": end(from), "target": end(to) } });
    (format!("{OBJECTS}/livemigrations/openstack/vm"), value.to_string())
}

/// Returns the lab as a containerlab file.
fn text(dir: &Path) -> String {
    let (mut nodes, mut links, mut ports) = (String::new(), String::new(), String::new());
    for host in 1..=3 {
        let agent = format!("{TORTIE} --datastore sqlite:/store/store.db --node host{host} agent");
        let _ = write!(
            nodes,
            "    host{host}:\n      image: tortie\n      binds: [\"__clabDir__/store:/store\"]\n      \
             sysctls: {{net.ipv4.ip_forward: 1}}\n      \
             cmd: sh -c 'until [ -e /store/go ]; do sleep 0.05; done; exec {agent}'\n    vm{host}:\n      \
             image: alpine\n      cmd: sleep infinity\n      sysctls: {{net.ipv4.conf.all.arp_notify: 1}}\n"
        );
        let _ = write!(
            links,
            "    - {{endpoints: [\"host{host}:eth1\", \"switch:h{host}\"], ipv4: [172.30.0.{host}/24]}}\n    \
             - {{endpoints: [\"host{host}:{TAP}\", \"vm{host}:eth1\"]}}\n"
        );
        let _ = writeln!(ports, "        - ip link set h{host} master br0");
    }
    for (last, router) in (251..).zip(ROUTERS) {
        let _ = writeln!(
            links,
            "    - {{endpoints: [\"{router}:eth1\", \"switch:{router}\"], ipv4: [172.30.0.{last}/24]}}"
        );
        let _ = writeln!(ports, "        - ip link set {router} master br0");
    }
    let file = |name: &str| dir.join(name).display().to_string();
    let waits: Vec<String> = ["host1", "host2", "host3", "ibgp", "ebgp"]
        .iter()
        .map(|node| format!("{{node: {node}, stage: create-links}}"))
        .collect();
    format!(
        "name: moves{}\ntopology:\n  defaults: {{kind: linux, network-mode: none}}\n  nodes:\n    switch:\n      \
         image: alpine\n      cmd: sleep infinity\n      exec:\n        - ip link add br0 type bridge\n{ports}        \
         - ip link set br0 up\n      stages: {{configure: {{wait-for: [{}]}}}}\n    ibgp:\n      image: bird\n      \
         binds: [\"{}:/etc/bird/bird.conf:ro\"]\n      cmd: bird -f -c /etc/bird/bird.conf\n    ebgp:\n      \
         image: frr\n      binds: [\"{}:/etc/frr/frr.conf:ro\", \"{}:/etc/frr/daemons:ro\"]\n{nodes}  links:\n{links}",
        std::process::id(),
        waits.join(", "),
        file("bird.conf"),
        file("frr.conf"),
        file("daemons"),
    )
}

/// The running lab.
struct Moves {
    lab: Running,
    dir: tempfile::TempDir,
    _group: concurrency::Membership,
}

/// A part of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// OpenStack writes the migration.
    Begin,
    /// OpenStack writes the endpoint on the new host.
    Target,
    /// The machine stops on one host and runs on the other.
    Move,
    /// OpenStack deletes the migration.
    End,
    /// OpenStack deletes the endpoint on the former host.
    Leave,
    /// The agent on the new host is killed, and starts again.
    RestartTarget,
    /// The agent on the former host is killed, and starts again.
    RestartSource,
}

impl Moves {
    fn up() -> Option<Self> {
        if !matches!(Sandbox::detect(), Ok(Sandbox::Root)) {
            assert!(std::env::var_os("CI").is_none(), "the lab needs root");
            eprintln!("skipped: the lab needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = Options::tied(Path::new(TORTIE), &dir.path().join("state"));
        for program in ["bird", "bgpd", "zebra"] {
            if options.find(program).is_none() && options.find(&format!("frr-{program}")).is_none() {
                assert!(std::env::var_os("CI").is_none(), "{program} is missing");
                eprintln!("skipped: {program} is missing; tests/tools/peers.sh brings it");
                return None;
            }
        }
        let group = concurrency::LABS.join();
        std::fs::write(dir.path().join("bird.conf"), BIRD).unwrap();
        std::fs::write(dir.path().join("frr.conf"), FRR).unwrap();
        std::fs::write(dir.path().join("daemons"), "zebra=yes\nbgpd=yes\nvtysh_enable=yes\n").unwrap();
        let text = text(dir.path());
        let lab = Lab::from_text(&text, &dir.path().join("moves.clab.yml")).unwrap_or_else(|e| panic!("{e}"));
        let lab = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let moves = Self { lab, dir, _group: group };
        let store = moves.lab.lab_dir().join("store");
        std::fs::write(store.join("objects.json"), serde_json::to_string(&objects()).unwrap()).unwrap();
        moves.store(&["import", "--raw", "/store/objects.json"]);
        moves.run("vm1", &arrival());
        std::fs::write(store.join("go"), "").unwrap();
        for router in ROUTERS {
            within(PATIENCE, &format!("{router} reaches the machine"), || {
                let (ok, text) = moves.exec(router, &format!("ping -n -c 1 -W 1 {ADDRESS}"));
                let logs = || (1..=3).map(|host| moves.log(host)).collect::<String>();
                if ok { Ok(()) } else { Err(format!("{text}\n{}", logs())) }
            });
        }
        Some(moves)
    }

    fn exec(&self, node: &str, script: &str) -> (bool, String) {
        let out = self.lab.exec(node, &["sh", "-c", script]).unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    }

    fn run(&self, node: &str, script: &str) -> String {
        let (ok, text) = self.exec(node, script);
        assert!(ok, "{node}: {script}: {text}");
        text
    }

    fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.lab.log_of(&format!("host{host}")).unwrap()).unwrap_or_default()
    }

    fn store(&self, words: &[&str]) {
        let mut all = vec![TORTIE, "--datastore", "sqlite:/store/store.db", "--data-model", "v3", "store"];
        all.extend(words);
        let out = self.lab.exec("host1", &all).unwrap();
        assert!(out.status.success(), "{words:?}: {out:?}");
    }

    /// Starts a program whose output goes to a file.
    fn record(&self, node: &str, command: &[&str]) -> (Child, PathBuf) {
        let file = self.dir.path().join(format!("{node}-{}", rand::random::<u32>()));
        let out = std::fs::File::create(&file).unwrap();
        let child = self.lab.spawn(node, command, |c| {
            c.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        });
        (child.unwrap(), file)
    }

    /// Moves the machine, and checks that packets were lost in one window only. Returns its length for each
    /// router, in packets.
    fn migrate(&mut self, from: usize, to: usize, parts: &[Part]) -> [u64; 2] {
        let other = 6 - from - to;
        let routes = self.run(&format!("host{other}"), &format!("ip route show {ADDRESS}"));
        let mut watched = self.record(&format!("host{other}"), &["ip", "-o", "-ts", "monitor", "route"]);
        let others =
            [format!("host{from}"), format!("host{to}"), ROUTERS[0].to_owned(), ROUTERS[1].to_owned()];
        let mut watched_too =
            others.clone().map(|node| self.record(&node, &["ip", "-o", "-ts", "monitor", "route", "neigh"]));
        let mut senders =
            ROUTERS.map(|router| self.record(router, &["ping", "-D", "-n", "-i", "0.001", ADDRESS]));
        std::thread::sleep(Duration::from_millis(300));
        for part in parts {
            self.act(from, to, *part);
            std::thread::sleep(Duration::from_millis(30));
        }
        let target = format!("host{to}");
        within(PATIENCE, "the route is normal again", || {
            let route = self.run(&target, &format!("ip route show {ADDRESS}"));
            let wanted = format!("dev {TAP}");
            let right =
                route.lines().count() == 1 && route.contains(&wanted) && route.contains("metric 1024");
            if right { Ok(()) } else { Err(format!("{parts:?}: {route}\n{}", self.log(to))) }
        });
        std::thread::sleep(Duration::from_millis(300));
        for (child, _) in &mut watched_too {
            let _ = child.kill();
            let _ = child.wait();
        }
        let evidence = || {
            let seen = others.iter().zip(&watched_too).map(|(node, (_, file))| {
                let text = std::fs::read_to_string(file).unwrap_or_default();
                let lines = text.lines().filter(|line| line.contains(&format!("{ADDRESS} ")));
                format!("{node}:\n{}\n", lines.collect::<Vec<_>>().join("\n"))
            });
            let seen: String = seen.collect();
            format!("host{from} to host{to}, {parts:?}\n{seen}{}\n{}", self.log(from), self.log(to))
        };
        let windows = senders.each_mut().map(|(child, file)| {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(child),
                rustix::process::Signal::INT,
            );
            let _ = child.wait();
            window(&std::fs::read_to_string(file).unwrap()).unwrap_or_else(|e| panic!("{e}: {}", evidence()))
        });
        let _ = watched.0.kill();
        let _ = watched.0.wait();
        let changes = std::fs::read_to_string(&watched.1).unwrap();
        let flaps = unreached(&routes, &changes, &format!("172.30.0.{to}"));
        assert_eq!(flaps, None, "host{other}: {routes}{changes}\n{}\n{}", self.log(other), evidence());
        windows
    }

    fn act(&mut self, from: usize, to: usize, part: Part) {
        let (key, value) = migration(from, to);
        match part {
            Part::Begin => self.store(&["put", "--raw", &key, &value]),
            Part::Target => self.store(&["put", "--raw", &endpoint_key(to), &endpoint(to)]),
            Part::End => self.store(&["rm", "--force", &key]),
            Part::Leave => self.store(&["rm", "--force", &endpoint_key(from)]),
            Part::Move => {
                let leave =
                    format!("ip addr del {ADDRESS}/32 dev eth1; ip link set eth1 address fa:16:3e:ff:ff:ff");
                self.run(&format!("vm{from}"), &leave);
                self.run(&format!("vm{to}"), &arrival());
                // Until the machine answers, which ends the window.
                let router = ROUTERS[0];
                within(PATIENCE, "the machine answers on its new host", || {
                    let (ok, text) = self.exec(router, &format!("ping -n -c 1 -W 1 {ADDRESS}"));
                    let logs = || format!("{text}\n{}\n{}", self.log(from), self.log(to));
                    if ok { Ok(()) } else { Err(logs()) }
                });
            }
            Part::RestartTarget => self.restart(to),
            Part::RestartSource => self.restart(from),
        }
    }

    /// Kills an agent, and waits until another one has taken over.
    fn restart(&mut self, host: usize) {
        let node = format!("host{host}");
        assert!(self.lab.kill(&node, Victim::Command).unwrap());
        self.lab.start(&node).unwrap();
        within(PATIENCE, "the agent is ready again", || {
            let out = self.lab.exec(&node, &[TORTIE, "status", "-o", "json"]).unwrap();
            let status: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            let up = status["bgp"]["mesh"]["up"] == 2 && status["bgp"]["peers"]["up"] == 2;
            if up { Ok(()) } else { Err(format!("{status:#}\n{}", self.log(host))) }
        });
    }
}

/// Returns the commands by which the machine begins to run: it announces its address when its interface gets
/// the MAC address, and four times more, as QEMU does (announce-initial, announce-step).
fn arrival() -> String {
    format!(
        "ip addr add {ADDRESS}/32 dev eth1; ip route replace 169.254.1.1 dev eth1; \
         ip route replace default via 169.254.1.1; ip link set eth1 address {MAC}; \
         (for wait in 0.05 0.15 0.25 0.35; do sleep $wait; ip link set eth1 address {MAC}; done) >/dev/null 2>&1 &"
    )
}

/// Returns the number of lost packets, or what is wrong if they are not adjacent.
fn window(output: &str) -> Result<u64, String> {
    let number = |line: &str| -> Option<u64> {
        line.split_once("icmp_seq=")?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()
            .filter(|_| line.contains("bytes from"))
    };
    let received: BTreeSet<u64> = output.lines().filter_map(number).collect();
    let (Some(first), Some(last)) = (received.first(), received.last()) else {
        return Err(format!("no answers: {output}"));
    };
    let gaps: Vec<(u64, u64)> = received
        .iter()
        .zip(received.iter().skip(1))
        .filter(|(one, next)| **next > **one + 1)
        .map(|(one, next)| (*one + 1, *next - 1))
        .collect();
    match gaps.as_slice() {
        [] => Ok(0),
        [(from, to)] => Ok(to - from + 1),
        several => {
            let near = |line: &&str| {
                let seq =
                    line.split_once("icmp_seq=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
                let seq = seq.unwrap_or(0u64);
                several.iter().any(|(from, to)| seq + 1 == *from || seq == to + 1)
            };
            let lines: Vec<&str> = output.lines().filter(near).collect();
            Err(format!("of {first} to {last} several ranges are lost: {several:?}\n{}", lines.join("\n")))
        }
    }
}

/// Returns the change after which a host had no route to the machine, or again the one to its former host, if
/// there was one.
fn unreached(before: &str, changes: &str, to: &str) -> Option<String> {
    let metric = |line: &str| {
        let mut words = line.split_whitespace();
        words.find(|word| *word == "metric").and_then(|_| words.next()).unwrap_or("0").parse::<u32>().unwrap()
    };
    let mut routes: BTreeMap<u32, bool> =
        before.lines().map(|line| (metric(line), line.contains(&format!("via {to} ")))).collect();
    let mut arrived = false;
    for line in changes.lines().filter(|line| line.contains(&format!("{ADDRESS} "))) {
        if line.contains("Deleted ") {
            routes.remove(&metric(line));
        } else {
            routes.insert(metric(line), line.contains(&format!("via {to} ")));
        }
        let leads_there = routes.first_key_value().map(|(_, there)| *there);
        if leads_there.is_none() || (arrived && leads_there == Some(false)) {
            return Some(line.to_owned());
        }
        arrived |= leads_there == Some(true);
    }
    None
}

/// Returns the parts of a migration in an order that can occur.
fn order(random: &mut StdRng, restarts: bool) -> Vec<Part> {
    let mut waiting = vec![Part::Begin, Part::Target, Part::Move, Part::End, Part::Leave];
    if restarts {
        waiting.push(if random.random_bool(0.5) { Part::RestartTarget } else { Part::RestartSource });
    }
    waiting.shuffle(random);
    let after = [(Part::Move, Part::Target), (Part::Leave, Part::Move), (Part::End, Part::Begin)];
    let mut order = Vec::new();
    while let Some(next) = waiting
        .iter()
        .position(|part| after.iter().all(|(late, early)| late != part || order.contains(early)))
    {
        order.push(waiting.remove(next));
    }
    order
}

fn run(moves: usize, restart_every: usize) {
    let Some(mut lab) = Moves::up() else { return };
    let seed =
        std::env::var("TORTIE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    println!("TORTIE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut host, begin) = (1, Instant::now());
    let mut all: [Vec<u64>; 2] = Default::default();
    for number in 1..=moves {
        let to = (host + random.random_range(0..2)) % 3 + 1;
        let parts = order(&mut random, number % restart_every == 0);
        let windows = lab.migrate(host, to, &parts);
        println!("{number}: host{host} to host{to}: {parts:?}: window {windows:?}");
        all.iter_mut().zip(windows).for_each(|(all, window)| all.push(window));
        host = to;
    }
    for (router, windows) in ROUTERS.iter().zip(&mut all) {
        windows.sort_unstable();
        let (median, most) = (windows[windows.len() / 2], windows[windows.len() - 1]);
        println!("{router}: {moves} moves in {:?}: window {median} packets, at most {most}", begin.elapsed());
    }
}

#[test]
fn a_machine_moves_and_no_packet_is_lost_but_while_it_stands_still() {
    run(4, 2);
}

#[test]
#[ignore = "long: 200 moves"]
fn long_two_hundred_moves_of_a_machine() {
    run(200, 10);
}
