//! IPIP with packet rules and the kernel's log, as root of an emulated PC.
//!
//! ```text
//!   web1 10.244.1.1 --cali1-- this machine (host1, the agent)  10.0.1.1 --eth1-- host2 10.0.1.2, BIRD
//!                                 tunl0 ==================================== tunl0, 10.244.2.1
//! ```
//!
//! One agent only, since everything takes twenty times longer here. The other host is BIRD, a tunnel and an
//! address.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tortie_kernel::container::Namespace;

use super::Case;
use super::rig::within;

/// Timeout in milliseconds for expected events, on a busy machine that emulates another.
const PATIENCE: u64 = 60_000;
/// Time limit of a datagram that has to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);
/// Time without an event after which it counts as absent.
const SILENCE: Duration = Duration::from_secs(2);

const STORE: &str = "sqlite:/tmp/store.db";
const WEB: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
const OTHER_WEB: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const OTHER_HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 66);
const TUNNEL: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 63);
const ENABLED: &str = "/calico/v1/config/IpInIpEnabled";

/// Kernel modules that packet rules need.
const MODULES: [&str; 12] = [
    "ipip",
    "nf_tables",
    "nft_ct",
    "nft_nat",
    "nft_chain_nat",
    "nft_masq",
    "nft_log",
    "nf_log_syslog",
    "nfnetlink_log",
    "nft_limit",
    "nft_fib_inet",
    "nf_conntrack_netlink",
];

/// Destination ports; the profile of the workload logs packets to some of them.
const PLAIN: u16 = 9;
const DENIED: u16 = 7;
const LOGGED: u16 = 11;
const ALLOWED: u16 = 13;

struct Machine {
    agent: Child,
    bird: Child,
    log: File,
    /// Datagrams received by the workload and by the other host.
    web: Receiver<Datagram>,
    other: Receiver<Datagram>,
}

/// A received datagram.
#[derive(Debug)]
struct Datagram {
    from: SocketAddr,
    port: u16,
}

impl Drop for Machine {
    fn drop(&mut self) {
        for child in [&mut self.agent, &mut self.bird] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(super) fn run() {
    println!();
    let mut machine = Machine::up();
    for (name, case) in [
        ("tunnelled", Machine::tunnelled as fn(&mut Machine) -> String),
        ("masqueraded", Machine::masqueraded),
        ("log-of-a-deny", |m| m.logged(DENIED, "no-echo: ", false)),
        ("log-that-goes-on", |m| m.logged(LOGGED, "calico-packet: ", true)),
        ("log-of-an-allow", |m| m.logged(ALLOWED, "seen: ", true)),
        ("stranger", Machine::stranger),
        ("workload-that-tunnels", Machine::workload),
        ("filter-off", Machine::filter_off),
    ] {
        println!("{}", Case::of(name, || case(&mut machine)));
    }
}

pub(super) fn ip(lines: &str) {
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{lines}");
}

fn tortie(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.args(["--datastore", STORE, "--node", "host1"]).args(args);
    command
}

/// Runs a closure in another network namespace, on a thread of its own.
fn at<T: Send>(netns: &str, what: impl FnOnce() -> T + Send) -> T {
    Namespace::open(&Path::new("/run/netns").join(netns)).unwrap().run(what).unwrap()
}

/// Opens ports in a namespace; received datagrams are sent to the returned channel.
fn listen(netns: &str, ports: &[u16]) -> Receiver<Datagram> {
    let (sender, receiver) = channel();
    for port in ports.iter().copied() {
        let sender = sender.clone();
        let socket = at(netns, move || UdpSocket::bind(("0.0.0.0", port)).unwrap());
        std::thread::spawn(move || {
            while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                let _ = sender.send(Datagram { from, port });
            }
        });
    }
    receiver
}

fn send(from: Ipv4Addr, to: Ipv4Addr, port: u16) {
    UdpSocket::bind((from, 0)).unwrap().send_to(b"x", (to, port)).unwrap();
}

/// Builds an IPv4 header (RFC 791) with its checksum.
fn header(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> [u8; 20] {
    let mut header = [0u8; 20];
    (header[0], header[8], header[9]) = (0x45, 64, protocol);
    header[2..4].copy_from_slice(&u16::try_from(20 + payload).unwrap().to_be_bytes());
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Sends a datagram from the other host's workload to the local one, in a tunnel packet from `outer` (RFC
/// 2003).
fn tunnel_from(outer: Ipv4Addr) {
    let datagram = [0x30, 0x39, 0, 9, 0, 9, 0, 0, b'x'];
    let inner = [&header(17, OTHER_WEB, WEB, datagram.len())[..], &datagram].concat();
    let packet = [&header(4, outer, HOST, inner.len())[..], &inner].concat();
    let (domain, raw) = (socket2::Domain::IPV4, socket2::Type::RAW);
    let socket = socket2::Socket::new(domain, raw, Some(255.into())).unwrap();
    socket.send_to(&packet, &SocketAddr::from((HOST, 0)).into()).unwrap();
}

/// Creates the workload and the other host with links, addresses and routes; this machine forwards.
pub(super) fn connect_hosts() {
    ip("netns add web1\nnetns add host2\n\
        link add cali1 type veth peer name eth1 netns web1\n\
        link add eth1 type veth peer name eth1 netns host2\n\
        address add 10.0.1.1/24 dev eth1\nlink set eth1 up\nlink set cali1 up\n");
    for (netns, lines) in [
        (
            "web1",
            "link set lo up\nlink set eth1 up\naddress add 10.244.1.1/32 dev eth1\n\
             route add 169.254.1.1 dev eth1\nroute add default via 169.254.1.1\n",
        ),
        (
            // The fallback device appears with the module, which the first command loads.
            "host2",
            "tunnel show tunl0\nlink set lo up\nlink set eth1 up\naddress add 10.0.1.2/24 dev eth1\n\
             address add 10.244.2.1/32 dev lo\nlink set tunl0 up\n\
             route add 10.244.1.0/26 via 10.0.1.1 dev tunl0 onlink src 10.244.2.1\n",
        ),
    ] {
        at(netns, move || ip(lines));
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
}

impl Machine {
    fn up() -> Self {
        connect_hosts();
        // All modules at once, since each one that the kernel loads by itself costs a process.
        let peers = std::env::var_os("TORTIE_PEERS").unwrap();
        let loaded =
            Command::new(Path::new(&peers).join("modprobe")).arg("-a").args(MODULES).status().unwrap();
        assert!(loaded.success());

        let mut import = tortie(&["store", "import", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        import.stdin.take().unwrap().write_all(model().to_string().as_bytes()).unwrap();
        assert!(import.wait().unwrap().success());
        std::fs::write(
            "/tmp/bird.conf",
            "router id 10.0.1.2;\nprotocol device {}\n\
             protocol static { ipv4; route 10.244.2.0/26 blackhole; }\n\
             protocol bgp host1 { local 10.0.1.2 as 64512; neighbor 10.0.1.1 as 64512; connect delay time 1;\n\
               connect retry time 2; ipv4 { import all; export all; next hop self; }; }\n",
        )
        .unwrap();
        let bird = Command::new("ip")
            .args(["netns", "exec", "host2"])
            .arg(Path::new(&peers).join("bird"))
            .args(["-f", "-c", "/tmp/bird.conf", "-s", "/tmp/bird.ctl"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let agent = tortie(&["agent", "--ip4", "10.0.1.1/24", "--ip6", "none", "--http", "none"])
            .args(["--cache", "/tmp/cache.json"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create("/tmp/agent.log").unwrap())
            .spawn()
            .unwrap();
        let log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").unwrap();
        let ports = [PLAIN, DENIED, LOGGED, ALLOWED];
        Self { agent, bird, log, web: listen("web1", &ports), other: listen("host2", &ports) }
    }

    /// Returns the next datagram at the workload; `None` if none arrives within the limit.
    fn next_datagram(&self, limit: Duration) -> Option<Datagram> {
        self.web.recv_timeout(limit).ok()
    }

    /// Checks both directions through the tunnel with the workloads' own addresses, under the installed
    /// rules.
    fn tunnelled(&mut self) -> String {
        let millis = within(PATIENCE, "a datagram to the other workload", || {
            at("web1", || send(WEB, OTHER_WEB, PLAIN));
            match self.other.recv_timeout(SILENCE) {
                Ok(received) if received.from.ip() == WEB => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let before = packets();
        at("host2", || send(OTHER_WEB, WEB, PLAIN));
        let received = self.next_datagram(ARRIVAL).expect("a datagram to our workload");
        assert_eq!((received.from.ip(), received.port), (OTHER_WEB.into(), PLAIN));
        let after = packets();
        assert_eq!(after.0, before.0 + 1, "it came through the tunnel");
        let show = tortie(&["endpoint", "show", "cali1", "-o", "json"]).output().unwrap();
        let text = String::from_utf8_lossy(&show.stdout).into_owned();
        assert!(show.status.success(), "{text}");
        format!("after {millis} ms; {before:?} {after:?}")
    }

    /// Checks that packets from another address of the host leave with the tunnel address, so that replies
    /// find the way back.
    fn masqueraded(&mut self) -> String {
        while self.other.try_recv().is_ok() {}
        send(HOST, OTHER_WEB, PLAIN);
        let received = self.other.recv_timeout(ARRIVAL).expect("a datagram of the host");
        assert_eq!(received.from.ip(), TUNNEL);
        format!("{received:?}")
    }

    /// Checks that a rule writes to the kernel's log with level notice and then acts.
    fn logged(&mut self, port: u16, prefix: &str, passes: bool) -> String {
        self.lines();
        at("host2", move || send(OTHER_WEB, WEB, port));
        let received = self.next_datagram(if passes { ARRIVAL } else { SILENCE });
        assert_eq!(received.map(|received| received.port), passes.then_some(port));
        let lines = self.lines();
        let of_port = format!("DPT={port} ");
        let ours: Vec<&String> = lines.iter().filter(|line| line.contains(&of_port)).collect();
        let [line] = ours[..] else { panic!("{lines:?}") };
        let (head, text) = line.split_once(';').unwrap();
        assert!(text.starts_with(prefix), "{line}");
        assert!(
            ["IN=tunl0", "OUT=cali1", "SRC=10.244.2.1", "DST=10.244.1.1"].iter().all(|p| text.contains(p)),
            "{line}"
        );
        assert_eq!(head.split(',').next(), Some("5"), "facility kern, level notice: {line}");
        line.clone()
    }

    /// Checks that a tunnel packet from an address that belongs to no host is dropped, logged and explained,
    /// and that a host's is accepted.
    fn stranger(&mut self) -> String {
        at("host2", || tunnel_from(STRANGER));
        assert!(self.next_datagram(SILENCE).is_none(), "a stranger's packet came through");
        at("host2", || tunnel_from(OTHER_HOST));
        assert!(self.next_datagram(ARRIVAL).is_some(), "a host's packet");
        self.drop_is_explained("10.0.1.66")
    }

    /// Checks that a workload cannot send packets to the tunnel endpoint.
    fn workload(&mut self) -> String {
        at("web1", || tunnel_from(WEB));
        assert!(self.next_datagram(SILENCE).is_none(), "a workload's tunnel packet came through");
        self.drop_is_explained("10.244.1.1")
    }

    /// Checks that `why drop` reports the packet.
    fn drop_is_explained(&self, source: &str) -> String {
        let mut evidence = String::new();
        within(PATIENCE, "why drop", || {
            let out = tortie(&["why", "drop", "-o", "json"]).output().unwrap();
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let all: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
            let known = all["items"].as_array().into_iter().flatten().find(|drop| {
                let drop = drop.to_string();
                drop.contains(source) && drop.contains("IPIP from a source that is not a host")
            });
            evidence = known.map(Value::to_string).ok_or(text)?;
            Ok(())
        });
        evidence
    }

    /// Checks that `IpInIpEnabled` false removes the filter and keeps the tunnel.
    fn filter_off(&mut self) -> String {
        let set = |value: &str| {
            assert!(tortie(&["store", "put", ENABLED, value]).output().unwrap().status.success());
        };
        set("false");
        let off = within(PATIENCE, "the filter off", || {
            at("host2", || tunnel_from(STRANGER));
            self.next_datagram(SILENCE).map(|_| ()).ok_or_else(|| "no packet".to_owned())
        });
        set("true");
        let on = within(PATIENCE, "the filter on", || {
            at("host2", || tunnel_from(STRANGER));
            self.next_datagram(SILENCE).map_or(Ok(()), |received| Err(format!("{received:?}")))
        });
        format!("off after {off} ms, on after {on} ms")
    }

    /// Returns the kernel's log lines since the last call.
    fn lines(&mut self) -> Vec<String> {
        let (mut lines, mut record) = (Vec::new(), [0u8; 8192]);
        loop {
            match self.log.read(&mut record) {
                Ok(len) => lines.push(String::from_utf8_lossy(&record[..len]).trim_end().to_owned()),
                // Older records were overwritten: the next read continues after them.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return lines,
            }
        }
    }
}

/// Returns the numbers of packets received and sent through the tunnel.
fn packets() -> (u64, u64) {
    let count = |way: &str| -> u64 {
        let path = format!("/sys/class/net/tunl0/statistics/{way}_packets");
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    };
    (count("rx"), count("tx"))
}

pub(super) fn model() -> Value {
    let block = |n: u8, host: &str| {
        let mut attributes = vec![json!({"handle_id": format!("web.{host}"), "secondary": {}})];
        attributes.push(json!({"handle_id": format!("ipip-tunnel-addr-{host}"), "secondary": {}}));
        let mut allocations = vec![Value::Null; 64];
        (allocations[1], allocations[63]) = (json!(0), json!(1));
        let unallocated: Vec<u8> = (0..63).filter(|n| *n != 1).collect();
        json!({"cidr": format!("10.244.{n}.0/26"), "affinity": format!("host:{host}"), "strictAffinity": false,
            "allocations": allocations, "unallocated": unallocated, "attributes": attributes})
        .to_string()
    };
    json!({
        "/calico/v1/Ready": "true",
        "/calico/bgp/v1/global/as_num": "64512",
        "/calico/bgp/v1/global/node_mesh": json!({"enabled": true}).to_string(),
        "/calico/v1/ipam/v4/pool/10.244.0.0-16":
            json!({"cidr": "10.244.0.0/16", "ipip": "tunl0", "masquerade": true}).to_string(),
        ENABLED: "true",
        "/calico/bgp/v1/host/host1/ip_addr_v4": "10.0.1.1",
        "/calico/v1/host/host1/bird_ip": "10.0.1.1",
        "/calico/v1/host/host1/config/IpInIpTunnelAddr": "10.244.1.63",
        "/calico/ipam/v2/host/host1/ipv4/block/10.244.1.0-26": "",
        "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26": block(1, "host1"),
        "/calico/ipam/v2/handle/web.host1": json!({"id": "web.host1", "block": {"10.244.1.0/26": 1}}).to_string(),
        "/calico/ipam/v2/handle/ipip-tunnel-addr-host1":
            json!({"id": "ipip-tunnel-addr-host1", "block": {"10.244.1.0/26": 1}}).to_string(),
        "/calico/v1/host/host1/workload/lab/web1/endpoint/eth1": json!({
            "state": "active", "name": "cali1", "mac": null, "profile_ids": ["lab"], "ipv4_nets": ["10.244.1.1/32"]
        }).to_string(),
        "/calico/bgp/v1/host/host2/ip_addr_v4": "10.0.1.2",
        "/calico/v1/host/host2/bird_ip": "10.0.1.2",
        "/calico/v1/policy/profile/lab/tags": "[]",
        "/calico/v1/policy/profile/lab/rules": json!({
            "inbound_rules": [
                {"action": "deny", "protocol": "udp", "dst_ports": [DENIED], "log_prefix": "no-echo"},
                {"action": "log", "protocol": "udp", "dst_ports": [LOGGED]},
                {"action": "allow", "protocol": "udp", "dst_ports": [ALLOWED], "log_prefix": "seen"},
                {"action": "allow"}
            ],
            "outbound_rules": [{"action": "allow"}]
        }).to_string(),
    })
}
