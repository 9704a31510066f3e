//! Migration of a tunnelling host from Calico to Tortie and back, as root of an emulated PC, the only test
//! environment with ipip, iptables and nf_tables.
//!
//! ```text
//!   web1 10.244.1.1 --cali1-- this machine (host1)  10.0.1.1 --eth1-- host2 10.0.1.2, BIRD
//!                                 tunl0 ==================================== tunl0, 10.244.2.1
//! ```
//!
//! Calico's BIRD is a fork that directs routes into the tunnel by itself; BIRD 2 is configured with the same
//! route.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Case;
use super::rig::within;
use super::rules::{connect_hosts, ip, model};
use crate::common::felix_rules::calico2::Felix;

const PATIENCE: u64 = 120_000;
const ROUTE: &str = "10.244.2.0/26 via 10.0.1.2 dev tunl0";

const MODULES: [&str; 17] = [
    "ipip",
    "nf_tables",
    "nft_compat",
    "nft_ct",
    "nft_nat",
    "nft_chain_nat",
    "nft_masq",
    "nft_limit",
    "nft_fib_inet",
    "nf_conntrack_netlink",
    "ip_set_hash_net",
    "xt_set",
    "xt_comment",
    "xt_mark",
    "xt_conntrack",
    "xt_addrtype",
    "xt_multiport",
];

const BIRD: &str = "router id 10.0.1.1;
protocol device { scan time 2; }
protocol direct { ipv4; interface -\"cali*\", \"*\"; }
protocol static { ipv4; route 10.244.1.0/26 blackhole; route 10.244.2.0/26 via 10.0.1.2%tunl0 onlink; }
protocol kernel { learn; persist; scan time 2; metric 0; graceful restart; ipv4 { import all; export where source != RTS_DEVICE; }; }
protocol bgp Mesh_10_0_1_2 { local 10.0.1.1 as 64512; neighbor 10.0.1.2 as 64512; multihop; graceful restart on;
  connect delay time 1; connect retry time 2; error wait time 1,3;
  ipv4 { import all; export where net = 10.244.1.0/26; next hop self; }; }
";

const SETS: &str = "create cali40masq-ipam-pools hash:net family inet
create cali40all-ipam-pools hash:net family inet
create cali40all-hosts hash:net family inet
add cali40masq-ipam-pools 10.244.0.0/16
add cali40all-ipam-pools 10.244.0.0/16
add cali40all-hosts 10.0.1.1
add cali40all-hosts 10.0.1.2
";

pub(super) fn run() {
    println!();
    let site = Site::up();
    for (name, case) in [
        ("observed", Site::observed as fn(&Site) -> String),
        ("adopted", Site::adopted),
        ("rolled-back", Site::rolled_back),
    ] {
        println!("{}", Case::of(name, || case(&site)));
    }
}

struct Site {
    far: Child,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.far.kill();
        let _ = self.far.wait();
    }
}

/// Runs a shell line with the peer programs in PATH.
fn sh(line: &str) -> Result<String, String> {
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", std::env::var("TORTIE_PEERS").unwrap());
    let tortie = std::path::Path::new(env!("CARGO_BIN_EXE_tortie")).parent().unwrap().display();
    let run = Command::new("sh")
        .args(["-c", line])
        .env("PATH", format!("{path}:{tortie}"))
        .env("TORTIE_DATASTORE", "sqlite:/tmp/store.db")
        .env("TORTIE_NODE", "host1")
        .env("TORTIE_BIRD_SOCKET", "/tmp/bird1.ctl")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stdout) + &text(&run.stderr)) }
}

const START_BIRD: &str = "setsid bird -f -R -s /tmp/bird1.ctl -P /tmp/bird1.pid -c /tmp/bird1.conf > /tmp/bird1.log 2>&1 < /dev/null &";

impl Site {
    fn up() -> Self {
        let peers = std::env::var("TORTIE_PEERS").unwrap();
        let loaded = Command::new(format!("{peers}/modprobe")).arg("-a").args(MODULES).status().unwrap();
        assert!(loaded.success());
        connect_hosts();
        // The device as Felix configures it. The kernel answers for 169.254.1.1 (proxy ARP) if it has a route
        // to it, on Calico's hosts the default route.
        ip("route add 10.244.1.1/32 dev cali1 scope link\nroute add default via 10.0.1.254\n\
            link set tunl0 mtu 1440 up\naddress add 10.244.1.63/32 dev tunl0\n");
        // Rules for one workload whose profile allows everything.
        let felix = Felix {
            v4: true,
            ipip: true,
            masquerade: true,
            interface: "cali1",
            profile: "lab",
            policy: None,
        };
        for (name, text) in [
            ("/proc/sys/net/ipv4/conf/cali1/proxy_arp", "1"),
            ("/tmp/felix", &felix.rules()),
            ("/tmp/sets", SETS),
            ("/tmp/bird1.conf", BIRD),
            (
                "/tmp/bird2.conf",
                "router id 10.0.1.2;\nprotocol device {}\nprotocol static { ipv4; route 10.244.2.0/26 blackhole; }\n\
                 protocol bgp host1 { local 10.0.1.2 as 64512; neighbor 10.0.1.1 as 64512; multihop; connect delay time 1;\n\
                   connect retry time 2; ipv4 { import all; export all; next hop self; }; }\n",
            ),
        ] {
            std::fs::write(name, text).unwrap();
        }
        let mut data = model();
        data["/calico/v1/policy/profile/lab/rules"] =
            json!(r#"{"inbound_rules": [{"action": "allow"}], "outbound_rules": [{"action": "allow"}]}"#);
        data["/calico/v1/config/Ipv6Support"] = json!("false");
        data["/calico/ipam/v2/host/host2/ipv4/block/10.244.2.0-26"] = json!("");
        File::create("/tmp/data.json").unwrap().write_all(data.to_string().as_bytes()).unwrap();
        sh("tortie store import /tmp/data.json && ipset restore < /tmp/sets && iptables-restore --noflush < /tmp/felix").unwrap();
        let far = Command::new("ip")
            .args(["netns", "exec", "host2", &format!("{peers}/bird"), "-f", "-c", "/tmp/bird2.conf", "-s"])
            .arg("/tmp/bird2.ctl")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        sh(START_BIRD).unwrap();
        let site = Self { far };
        within(PATIENCE, "BIRD's route and session", || {
            let said = sh("ip route; birdc -s /tmp/bird1.ctl show protocols")?;
            let there = said.contains(&format!("{ROUTE} proto bird")) && said.contains("Established");
            if there { Ok(()) } else { Err(said) }
        });
        site
    }

    fn migrate(&self, words: &str) -> Value {
        let said = sh(&format!("tortie -o json migrate {words} --state-dir /tmp/state --wait 120"));
        let log = || {
            let log = std::fs::read_to_string("/tmp/agent.log").unwrap_or_default();
            log.lines().rev().take(10).collect::<Vec<_>>().join("\n")
        };
        let said = said.unwrap_or_else(|e| panic!("{words}: {e}\n{}", log()));
        serde_json::from_str(&said).unwrap_or_else(|e| panic!("{words}: {e}: {said}"))
    }

    fn adopt(&self, more: &str) -> Value {
        let agent = "setsid tortie agent --ip4 10.0.1.1/24 --ip6 none --http none --cache /tmp/cache.json \
                     > /tmp/agent.log 2>&1 < /dev/null &";
        self.migrate(&format!("adopt --pid $(cat /tmp/bird1.pid) --agent-with '{agent}' {more}"))
    }

    /// Checks that Tortie would configure the device and the route through it in the same way.
    fn observed(&self) -> String {
        let report = self.adopt("--dry-run");
        assert_eq!(report["differences"], json!([]), "{report:#}");
        // A wrong MTU is found.
        sh("ip link set tunl0 mtu 1300").unwrap();
        let agent =
            sh("tortie -o json migrate adopt --dry-run --pid $(cat /tmp/bird1.pid) --state-dir /tmp/state");
        sh("ip link set tunl0 mtu 1440").unwrap();
        let said = agent.unwrap_err();
        assert!(said.contains("tunl0 is not up with an MTU of 1440"), "{said}");
        // The route through the device was compared.
        let unknown = report["notJudged"].to_string();
        assert!(!unknown.contains("10.244.2.0/26"), "{unknown}");
        unknown
    }

    fn adopted(&self) -> String {
        under_pings(|| {
            let report = self.adopt("");
            assert_eq!(report["phase"], "adopted", "{report:#}");
            let now = sh("ip route; iptables-save; ip -d link show tunl0").unwrap();
            assert!(now.contains("dev tunl0 proto 179 metric 1790 onlink"), "{now}");
            assert!(!now.contains("proto bird") && !now.contains("cali-"), "{now}");
        })
    }

    fn rolled_back(&self) -> String {
        under_pings(|| {
            let report = self.migrate(&format!("rollback --start-with '{START_BIRD}'"));
            assert_eq!(report["phase"], "rolled-back", "{report:#}");
            within(PATIENCE, "Calico is back", || {
                let now = sh(
                    "ip route; iptables-save; ipset list -n; birdc -s /tmp/bird1.ctl show protocols; ip address show tunl0",
                )?;
                let there = [
                    &format!("{ROUTE} proto bird onlink"),
                    "cali-fw-cali1",
                    "cali40all-hosts",
                    "Established",
                    "10.244.1.63/32",
                ];
                match there.iter().find(|word| !now.contains(**word)) {
                    None if !now.contains("proto 179") => Ok(()),
                    missing => Err(format!("{missing:?}: {now}")),
                }
            });
        })
    }
}

/// Pings the other host's workload through the tunnel continuously; each ping must be answered. For a lost
/// one, the kernel's events about links, addresses, routes and neighbours are shown.
fn under_pings(body: impl FnOnce()) -> String {
    let log = "/tmp/pings";
    let ping = format!("{}/ping", std::env::var("TORTIE_PEERS").unwrap());
    let spawn = |words: &[&str], log: &str| {
        let mut command = Command::new("ip");
        command.args(words).stdin(Stdio::null()).stdout(File::create(log).unwrap()).spawn().unwrap()
    };
    let mut watches = [&[][..], &["-n", "web1"], &["-n", "host2"]].map(|netns: &[&str]| {
        let words = [&["-ts"], netns, &["monitor", "link", "address", "route", "neigh"]].concat();
        spawn(&words, &format!("/tmp/monitor{}", netns.last().unwrap_or(&"")))
    });
    let mut child = spawn(&["netns", "exec", "web1", &ping, "-n", "-D", "-i", "0.02", "10.244.2.1"], log);
    let answered = || {
        let text = std::fs::read_to_string(log).unwrap();
        // "Destination Host Unreachable" contains a sequence number, too.
        let number = |line: &str| -> Option<usize> {
            line.split_once(" bytes from ")?.1.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok()
        };
        let at = |line: &str| line.strip_prefix('[')?.split(']').next()?.parse::<f64>().ok();
        let lines = text.lines().filter_map(|line| Some((number(line)?, at(line)?)));
        lines.collect::<std::collections::BTreeMap<usize, f64>>()
    };
    let more = |so_many: usize| {
        let before = answered().len();
        within(PATIENCE, "pings are answered", || match answered().len() {
            now if now >= before + so_many => Ok(()),
            now => Err(format!("{now}")),
        });
    };
    more(20);
    let begin = Instant::now();
    body();
    let took = begin.elapsed();
    more(50);
    std::thread::sleep(Duration::from_millis(500));
    for child in watches.iter_mut().chain([&mut child]) {
        let _ = child.kill();
        let _ = child.wait();
    }
    let all = answered();
    let last = *all.last_key_value().unwrap().0;
    let lost: Vec<usize> = (1..=last).filter(|number| !all.contains_key(number)).collect();
    let reported = format!("{last} pings in {took:?}, lost {lost:?}");
    let around = lost.first().map(|first| {
        let before = all.range(..first).next_back();
        let after = all.range(first..).next();
        let reported = ["", "web1", "host2"].map(|netns| {
            format!(
                "{netns}:\n{}",
                std::fs::read_to_string(format!("/tmp/monitor{netns}")).unwrap_or_default()
            )
        });
        format!("answered before and after: {before:?} {after:?}\n{}", reported.concat())
    });
    assert!(lost.is_empty(), "{reported}: {}", around.unwrap_or_default());
    reported
}
