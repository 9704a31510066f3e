//! Endpoints of the store, and workloads as a plugin creates them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test helper")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::concurrency::uninterrupted;
use crate::common::kernel_thread::{PATIENCE, Rig, cidr, eventually, options};
use crate::common::netns::{ip, try_ip};
use tortie_config::key::EndpointKey;
use tortie_config::resource::{Action, HostAction};
use tortie_engine::policy::{
    Chain, ChainId, Direction, EndpointPolicy, Globals, Rule, RulesetDelta, Source, Stages, WorkloadPolicy,
};
use tortie_engine::routing::ChangeId;
use tortie_kernel::container::Namespace;
use tortie_kernel::{EndpointCondition, KernelFact, Mode, Options, PolicyChange, ToKernel};

pub(crate) const PORT: u16 = 7007;
pub(crate) const LONG: Duration = PATIENCE;

pub(crate) fn globals() -> Globals {
    Globals {
        dialect: tortie_config::Dialect::V1,
        interface_prefixes: vec!["cali".to_owned()],
        to_host: HostAction::Accept,
        mark_mask: 0xff00_0000,
        failsafe_inbound: vec![],
        failsafe_outbound: vec![],
        ipip_hosts: None,
        tunnel_addr: None,
        vxlan: None,
        services: None,
        pools: BTreeSet::new(),
        masquerade: BTreeSet::new(),
        drop_invalid: true,
        ipv6: true,
        first: true,
        ignore_loose_rpf: false,
        set_size: 1 << 20,
    }
}

pub(crate) fn key(name: &str) -> EndpointKey {
    EndpointKey::Workload {
        host: "host1".to_owned(),
        orchestrator: "cni".to_owned(),
        workload: name.to_owned(),
        endpoint: "eth0".to_owned(),
    }
}

pub(crate) fn workload(interface: &str, nets: &[&str]) -> WorkloadPolicy {
    WorkloadPolicy {
        interface: interface.parse().unwrap(),
        active: true,
        nets: nets.iter().map(|n| cidr(n)).collect(),
        spoofed_sources: Vec::new(),
        mac: None,
        nats: vec![],
        inbound: Stages { tiers: vec![], profiles: vec![open(Direction::Inbound)] },
        outbound: Stages { tiers: vec![], profiles: vec![open(Direction::Outbound)] },
    }
}

/// Returns the chain of a profile that allows everything.
pub(crate) fn open(direction: Direction) -> ChainId {
    ChainId { source: Source::Profile("open".into()), direction }
}

/// Endpoints of the store, sent to a kernel thread.
pub(crate) struct EndpointRig {
    pub(crate) rig: Rig,
    pub(crate) serial: u64,
}

impl EndpointRig {
    pub(crate) fn start(options: &Options) -> Self {
        Self { rig: Rig::start(options), serial: 0 }
    }

    pub(crate) fn program() -> Self {
        Self::start(&options(Mode::Program))
    }

    /// Sends these endpoints. Returns those that are not in the desired state.
    pub(crate) fn apply(
        &mut self,
        endpoints: &[(&str, Option<WorkloadPolicy>)],
    ) -> BTreeMap<EndpointKey, String> {
        let endpoints = endpoints
            .iter()
            .map(|(name, w)| (key(name), w.clone().map(|w| Arc::new(EndpointPolicy::Workload(w)))))
            .collect();
        let allow = Rule { action: Action::Allow, ..Rule::default() };
        let chain = Arc::new(Chain { rules: vec![allow], fail_closed: None });
        let chains = [Direction::Inbound, Direction::Outbound]
            .into_iter()
            .filter(|_| self.serial == 0)
            .map(|direction| (open(direction), Some(Arc::clone(&chain))))
            .collect();
        self.send(RulesetDelta { endpoints, chains, ..RulesetDelta::default() })
    }

    pub(crate) fn send(&mut self, delta: RulesetDelta) -> BTreeMap<EndpointKey, String> {
        self.serial += 1;
        let serial = self.serial;
        self.rig.send(ToKernel::Policy(Arc::new(PolicyChange {
            serial,
            change: ChangeId(serial),
            delta,
            globals: (serial == 1).then(|| Arc::new(globals())),
            routings: None,
        })));
        self.rig.wait("Enforced", |fact| match fact {
            KernelFact::Enforced { serial: s, failed, .. } if *s == serial => Some(failed.clone()),
            _ => None,
        })
    }

    /// Waits until the endpoint is reported in this condition.
    pub(crate) fn until(&self, name: &str, condition: &EndpointCondition) {
        self.rig.wait("Endpoints", |fact| match fact {
            KernelFact::Endpoints(all) => (all.get(&key(name))?.as_ref() == Some(condition)).then_some(()),
            _ => None,
        });
    }

    pub(crate) fn repaired(&self) -> String {
        self.rig.wait("Repaired", |fact| match fact {
            KernelFact::Repaired { first, .. } => Some(first.clone()),
            _ => None,
        })
    }
}

/// Network namespace of a workload, named by process and interface.
pub(crate) struct Pod {
    pub(crate) name: String,
    interface: String,
}

impl Pod {
    /// Creates the pair: the host's end is `interface`, the workload's end is eth0; both down until
    /// [`Pod::up`].
    pub(crate) fn new(interface: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ends-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        ip(&format!("link add {interface} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {name}"));
        Self { name, interface: interface.to_owned() }
    }

    /// Configures the inside as the plugin does, without the host's route.
    pub(crate) fn up(&self, v4: &str, v6: Option<&str>) -> String {
        ip(&format!("link set {} up", self.interface));
        let inside = |words: &str| ip(&format!("-n {} {words}", self.name));
        inside("link set lo up");
        inside("link set eth0 up");
        inside(&format!("address add {v4}/32 dev eth0"));
        inside("route add 169.254.1.1 dev eth0 scope link");
        inside("route add default via 169.254.1.1 dev eth0");
        if let Some(v6) = v6 {
            inside(&format!("address add {v6}/128 dev eth0 nodad"));
            let mut host = String::new();
            eventually("link-local address", LONG, || {
                host = ip(&format!("-6 address show dev {} scope link", self.interface));
                host.contains("fe80::") && !host.contains("tentative")
            });
            let host = host.split_whitespace().find(|w| w.starts_with("fe80::")).unwrap();
            inside(&format!("-6 route add default via {} dev eth0", host.split('/').next().unwrap()));
        }
        let link = inside("link show eth0");
        link.split_whitespace().skip_while(|w| *w != "link/ether").nth(1).unwrap().to_owned()
    }

    /// Runs `body` in the namespace.
    pub(crate) fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        Namespace::open(&Path::new("/run/netns").join(&self.name)).unwrap().run(body).unwrap()
    }

    /// Returns true if an [`echo`] answers.
    pub(crate) fn reaches(&self, addr: &str) -> bool {
        let to = SocketAddr::new(addr.parse().unwrap(), PORT);
        self.inside(move || {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            // The first datagram may be lost between two neighbour states.
            let answered = || uninterrupted(|| socket.recv(&mut [0; 16])).is_ok();
            (0..3).any(|_| socket.send_to(b"there?", to).is_ok() && answered())
        })
    }
}

/// Answers datagrams to an address of the calling thread's namespace until the process ends.
pub(crate) fn echo(addr: &str) {
    let socket = UdpSocket::bind(SocketAddr::new(addr.parse().unwrap(), PORT)).unwrap();
    std::thread::spawn(move || {
        let mut buf = [0; 16];
        while let Ok((len, from)) = uninterrupted(|| socket.recv_from(&mut buf)) {
            let _ = socket.send_to(&buf[..len], from);
        }
    });
}

impl Drop for Pod {
    fn drop(&mut self) {
        try_ip(&format!("netns del {}", self.name));
    }
}

pub(crate) fn sysctl(path: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap_or_default().trim().to_owned()
}

/// Output of `ip monitor` until it is stopped.
pub(crate) struct Monitor {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Monitor {
    pub(crate) fn start() -> Self {
        let mut child = Command::new("ip")
            .args(["monitor", "route", "neigh", "link"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (out, lines) = (child.stdout.take().unwrap(), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                *lines.lock().unwrap() += &format!("{line}\n");
            }
        });
        let monitor = Self { child, said };
        // It does not report when it starts to listen: routes are changed until it reports one.
        eventually("the monitor listens", LONG, || {
            ip("route add 203.0.113.78 dev lo");
            ip("route del 203.0.113.78 dev lo");
            monitor.has_said("203.0.113.78")
        });
        monitor
    }

    fn has_said(&self, text: &str) -> bool {
        self.said.lock().unwrap().contains(text)
    }

    pub(crate) fn stop(mut self) -> String {
        // Everything before this route is read before it.
        ip("route add 203.0.113.77 dev lo");
        eventually("the monitor reports the last route", LONG, || self.has_said("203.0.113.77"));
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        ip("route del 203.0.113.77 dev lo");
        let text = self.said.lock().unwrap();
        let marks = ["203.0.113.77", "203.0.113.78"];
        let own = text.lines().filter(|line| !marks.iter().any(|mark| line.contains(mark)));
        own.map(|line| format!("{line}\n")).collect()
    }
}

/// Returns the entries of connection tracking.
pub(crate) fn connections() -> String {
    std::fs::read_to_string("/proc/thread-self/net/nf_conntrack")
        .unwrap_or_default()
        .lines()
        .map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ") + "\n")
        .collect()
}
