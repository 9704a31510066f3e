//! Faults that need a process of their own: additional agents next to host 3, and what is between them and
//! others.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::concurrency::uninterrupted;
use crate::common::hosts::{Hosts, PATIENCE, TORTIE, block, block_keys, stdout, within};

/// An additional agent in the namespace of host 3; it ends with the test.
pub(super) struct ExtraAgent(pub(super) Child);

impl Drop for ExtraAgent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent whose peers drop its segments, or whose segments it drops. It has an address of its own:
/// to BIRD, a connection from host 3's address would be a restart of host 3 and end the existing session.
pub(super) fn with_wrong_passwords(hosts: &Hosts) -> ExtraAgent {
    let peers = json!({
        "/calico/v1/Ready": "true",
        "/calico/bgp/v1/global/peer_v4/172.30.0.1":
            json!({ "ip": "172.30.0.1", "as_num": 64512, "password": "other" }).to_string(),
        "/calico/bgp/v1/global/peer_v4/172.30.0.254":
            json!({ "ip": "172.30.0.254", "as_num": 65000, "ttl_security": 1 }).to_string(),
    });
    let script = format!(
        "echo '{peers}' > /run/guards.json; {TORTIE} --datastore sqlite:/run/faults-guards.db store import /run/guards.json"
    );
    let done = hosts.lab.exec("host3", &["sh", "-ec", &script]).unwrap();
    assert!(done.status.success(), "{done:?}");
    let peer = "{ cat /etc/bird/bird.conf; echo 'protocol bgp guards from host { neighbor 172.30.0.4; }'; } > /run/guards.conf; \
        birdc configure '\"/run/guards.conf\"'";
    for (node, script) in [("switch", peer), ("host3", "ip address add 172.30.0.4/24 dev eth1")] {
        let done = hosts.lab.exec(node, &["sh", "-ec", script]).unwrap();
        assert!(done.status.success() && !stdout(&done).contains("rror"), "{done:?}");
    }
    let flags = ["--bgp-listen", "127.0.0.1:1792", "--ip4", "172.30.0.4/24"];
    agent(hosts, "guards", "sqlite:/run/faults-guards.db", &[], &flags)
}

/// Starts an agent whose clock is an hour ahead once /run/faults-later exists.
pub(super) fn with_clock_ahead(hosts: &Hosts) -> ExtraAgent {
    const LATER: &str = r#"
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *time) {
            int failed = syscall(SYS_clock_gettime, clock, time);
            if (!failed && clock == CLOCK_REALTIME && !access("/run/faults-later", F_OK)) time->tv_sec += 3600;
            return failed;
        }"#;
    let script = "cat > /run/later.c; cc -shared -fPIC -D_GNU_SOURCE -o /run/later.so /run/later.c";
    let mut cc = hosts
        .lab
        .spawn("host3", &["sh", "-ec", script], |command| {
            command.stdin(Stdio::piped());
        })
        .unwrap();
    cc.stdin.take().unwrap().write_all(LATER.as_bytes()).unwrap();
    assert!(cc.wait().unwrap().success(), "cc, which links this test, too");
    let before = ["env", "LD_PRELOAD=/run/later.so"];
    start_extra_agent(hosts, "clock", "sqlite:/run/faults-clock.db", &before, "127.0.0.1:1793")
}

pub(super) fn start_extra_agent(
    hosts: &Hosts,
    name: &str,
    store: &str,
    before: &[&str],
    listen: &str,
) -> ExtraAgent {
    agent(hosts, name, store, before, &["--bgp-listen", listen, "--ip4", "172.30.0.3/24"])
}

fn agent(hosts: &Hosts, name: &str, store: &str, before: &[&str], flags: &[&str]) -> ExtraAgent {
    let socket = socket(name);
    let cache = format!("/run/faults-{name}.cache");
    let mut words = before.to_vec();
    words.extend([TORTIE, "--datastore", store, "--node", name, "--socket", &socket, "agent"]);
    words.extend(["--kernel", "off", "--http", "none", "--cache", &cache]);
    words.extend(flags);
    ExtraAgent(hosts.lab.spawn("host3", &words, silent).unwrap())
}

fn socket(name: &str) -> String {
    format!("/run/faults-{name}.sock")
}

fn silent(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
}

/// A namespace behind host 3 with one link.
const BEHIND: &str = "ip netns add behind; ip link add to-behind type veth peer name eth0 netns behind; \
    ip address add 172.31.0.1/30 dev to-behind; ip link set to-behind up; \
    ip -n behind address add 172.31.0.2/30 dev eth0; ip -n behind link set eth0 up; \
    ip netns exec behind sh -c 'echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_rmem'";
/// Number of blocks announced after the peer has stopped: more than its TCP buffers hold.
const BLOCKS: u32 = 2_000;

/// Starts two agents with a session; one is then stopped while the other has many routes to send.
pub(super) fn with_stuck_peer(hosts: &Hosts) -> [ExtraAgent; 2] {
    let peer = |ip: &str, from: &str| {
        json!({ "ip": ip, "as_num": 64512, "source_addr": from, "hold_time": 900 }).to_string()
    };
    let store = |name: &str, data: &BTreeMap<String, String>| {
        let file = format!("/run/{name}.json");
        std::fs::write(hosts.holder_path("host3", &file), serde_json::to_string(data).unwrap()).unwrap();
        let url = format!("sqlite:/run/faults-{name}.db");
        let done = hosts
            .lab
            .exec("host3", &[TORTIE, "--datastore", &url, "store", "import", "--raw", &file])
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let behind = hosts.lab.exec("host3", &["sh", "-ec", BEHIND]).unwrap();
    assert!(behind.status.success(), "{behind:?}");
    let key = |ip: &str| format!("/calico/bgp/v1/global/peer_v4/{ip}");
    store("slow", &BTreeMap::from([(key("172.31.0.2"), peer("172.31.0.2", "172.31.0.1"))]));
    store("stuck", &BTreeMap::from([(key("172.31.0.1"), peer("172.31.0.1", "172.31.0.2"))]));
    let flags = ["--bgp-listen", "172.31.0.1:179", "--ip4", "172.31.0.1/30"];
    let slow = agent(hosts, "slow", "sqlite:/run/faults-slow.db", &[], &flags);
    let flags = ["--bgp-listen", "172.31.0.2:179", "--ip4", "172.31.0.2/30"];
    let there = ["ip", "netns", "exec", "behind"];
    let stuck = agent(hosts, "stuck", "sqlite:/run/faults-stuck.db", &there, &flags);
    within(PATIENCE, "the session of both", || {
        let words = [TORTIE, "--socket", &socket("slow"), "bgp", "peers"];
        let peers = stdout(&hosts.lab.exec("host3", &words).unwrap());
        if peers.contains("Established") { Ok(()) } else { Err(peers) }
    });
    let pid = rustix::process::Pid::from_child(&stuck.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let own = |n: u32| {
        let cidr = format!("10.{}.{}.{}/26", 64 + n / 1024, n / 4 % 256, n % 4 * 64);
        let [affinity, value] = block_keys(&cidr, "slow");
        [(affinity, String::new()), (value, block(&cidr, "slow"))]
    };
    store("slow", &(0..BLOCKS).flat_map(own).collect());
    [slow, stuck]
}

/// A store whose connections are dropped silently on the path.
pub(super) const FORGETFUL_STORE: &str = "etcd://127.0.0.1:2391";
/// Time for which a connection is kept: shorter than the idle time after which a watch checks its connection.
const REMEMBERED: Duration = Duration::from_secs(3);

/// Starts an etcd, an agent, and a simulated firewall between them that forgets connections: after a while it
/// still accepts their packets, but drops them silently.
pub(super) fn with_forgetful_firewall(hosts: &Hosts) -> (ExtraAgent, ExtraAgent, ForgetfulFirewall) {
    let words = ["etcd", "--data-dir", "/run/faults-etcd", "--listen-peer-urls", "http://127.0.0.1:2390"];
    let urls =
        ["--listen-client-urls", "--advertise-client-urls"].map(|flag| [flag, "http://127.0.0.1:2389"]);
    let words: Vec<&str> = words.into_iter().chain(urls.into_iter().flatten()).collect();
    let etcd = ExtraAgent(hosts.lab.spawn("host3", &words, silent).unwrap());
    let between = ForgetfulFirewall::start(hosts.lab.netns("host3").unwrap());
    (etcd, start_extra_agent(hosts, "stale", FORGETFUL_STORE, &[], "127.0.0.1:1794"), between)
}

/// Ends the simulated firewall.
pub(super) struct ForgetfulFirewall(Arc<AtomicBool>);

impl Drop for ForgetfulFirewall {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl ForgetfulFirewall {
    fn start(netns: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let (listens, ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let file = std::fs::File::open(netns).unwrap();
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
            let listener = TcpListener::bind("127.0.0.1:2391").unwrap();
            listener.set_nonblocking(true).unwrap();
            listens.send(()).unwrap();
            while !ends.load(Ordering::Relaxed) {
                let Ok((here, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                // Before etcd listens, connections fail.
                let Ok(there) = TcpStream::connect("127.0.0.1:2389") else { continue };
                here.set_nonblocking(false).unwrap();
                let until = Instant::now() + REMEMBERED;
                let ways = [(here.try_clone(), there.try_clone()), (Ok(there), Ok(here))];
                for (from, to) in ways {
                    let (from, to, ends) = (from.unwrap(), to.unwrap(), Arc::clone(&ends));
                    std::thread::spawn(move || carry(from, to, until, &ends));
                }
            }
        });
        ready.recv().unwrap();
        Self(over)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, until: Instant, over: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut octets = [0; 65_536];
    while !over.load(Ordering::Relaxed) {
        match uninterrupted(|| from.read(&mut octets)) {
            Ok(0) => break,
            Ok(n) if Instant::now() < until => {
                if to.write_all(&octets[..n]).is_err() {
                    break;
                }
            }
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(_) => break,
        }
    }
    // The other direction may be blocked in a read.
    let _ = to.shutdown(Shutdown::Both);
}
