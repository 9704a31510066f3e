//! Each of the five daemons as the neighbour of a node, over IPv4 or IPv6, with the same routes and session
//! setups.

pub(crate) mod bird;
pub(crate) mod configs;
pub(crate) mod daemon;
pub(crate) mod net;
pub(crate) mod node;

use std::path::PathBuf;
use std::process::Command;

use tortie_bgp::State;
use tortie_engine::routing::{Password, RoutingIntent};

use daemon::Daemon;
use node::{Node, intent, peer, wait};

/// Our routes.
pub(crate) const V4: &str = "10.1.0.0/26";
pub(crate) const V6: &str = "fd00:1::/122";
pub(crate) const PASSWORD: &str = "right";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bird,
    Frr,
    Gobgp,
    Openbgpd,
    Exabgp,
}

/// Properties of the session. Default: eBGP over IPv4 with both families, and both ends dial.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionSetup {
    /// The session runs over IPv6.
    pub(crate) over_ipv6: bool,
    /// The session carries IPv4 routes only.
    pub(crate) ipv4_only: bool,
    /// All are in AS 64512.
    pub(crate) ibgp: bool,
    /// The daemon reflects between its two neighbours, us and 192.0.2.2.
    pub(crate) reflector: bool,
    pub(crate) md5: bool,
    /// The daemon does not dial.
    pub(crate) passive: bool,
    pub(crate) ttl_security: bool,
    /// IPv4 routes with IPv6 next hops (RFC 8950).
    pub(crate) extended_next_hop: bool,
    /// The daemon returns from a restart, and is configured to report that if it does not detect it.
    pub(crate) restarted: bool,
    /// The daemon accepts one route per family and ends the session at the second.
    pub(crate) one_prefix: bool,
    /// The daemon knows us only as a dynamic neighbour in 192.0.2.0/29.
    pub(crate) range: bool,
    /// More neighbours, at 192.0.2.x and in these ASes, which receive each other's routes.
    pub(crate) others: &'static [(u32, u32)],
    /// Options of the session with us, in the daemon's configuration language (ExaBGP: capabilities).
    pub(crate) neighbour: &'static str,
    /// Options of its IPv4 routes (ExaBGP: additional routes).
    pub(crate) family: &'static str,
    /// Additional configuration.
    pub(crate) more: &'static str,
    /// A library that OpenBGPD preloads.
    pub(crate) preload: &'static str,
}

impl SessionSetup {
    const BOTH: Self = Self {
        over_ipv6: false,
        ipv4_only: false,
        ibgp: false,
        reflector: false,
        md5: false,
        passive: false,
        ttl_security: false,
        extended_next_hop: false,
        restarted: false,
        one_prefix: false,
        range: false,
        others: &[],
        neighbour: "",
        family: "",
        more: "",
        preload: "",
    };
    pub(crate) const IPV4: Self = Self { ipv4_only: true, ..Self::BOTH };
}

impl Default for SessionSetup {
    fn default() -> Self {
        Self::BOTH
    }
}

impl Kind {
    /// Returns the last octet of its addresses, 192.0.2.x and 2001:db8::x. Its AS is 65000 plus x.
    pub(crate) fn last(self) -> u32 {
        match self {
            Self::Bird => 9,
            Self::Gobgp => 10,
            Self::Frr => 11,
            Self::Openbgpd => 12,
            Self::Exabgp => 13,
        }
    }

    pub(crate) fn v4(self) -> String {
        format!("10.{}.0.0/24", self.last())
    }

    pub(crate) fn v6(self) -> String {
        format!("fd00:{}::/64", self.last())
    }

    /// Returns its IPv4 address.
    pub(crate) fn at(self) -> String {
        format!("192.0.2.{}", self.last())
    }
}

/// A running daemon.
pub(crate) struct PeerDaemon {
    pub(crate) kind: Kind,
    daemon: Daemon,
    cli: PathBuf,
}

impl PeerDaemon {
    /// Enters a namespace with our addresses and those of the daemon. Returns false if not permitted.
    pub(crate) fn enter(kind: Kind) -> bool {
        Self::enter_for(&[kind])
    }

    /// Enters a namespace with the addresses of all daemons.
    pub(crate) fn enter_for(kinds: &[Kind]) -> bool {
        let lasts = [1, 2].into_iter().chain(kinds.iter().map(|kind| kind.last()));
        let addresses: Vec<String> = lasts.map(|n| format!("2001:db8::{n}/128")).collect();
        net::enter(&addresses.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Enters a namespace and starts the daemon there. `None`: not permitted, or no such daemon.
    pub(crate) fn start(kind: Kind, setup: SessionSetup) -> Option<Self> {
        if Self::enter(kind) { Self::start_here(kind, setup) } else { None }
    }

    /// The same in the current namespace. On return the daemon listens, if it is configured to.
    pub(crate) fn start_here(kind: Kind, setup: SessionSetup) -> Option<Self> {
        let (program, cli) = match kind {
            Kind::Bird => ("bird", "birdc"),
            Kind::Frr => ("frr-bgpd", "vtysh"),
            Kind::Gobgp => ("gobgpd", "gobgp"),
            Kind::Openbgpd => ("openbgpd", "bgpctl"),
            Kind::Exabgp => ("exabgp", "exabgp"),
        };
        let (program, cli) = (net::tool(program)?, net::tool(cli)?);
        let daemon = match kind {
            Kind::Bird => configs::bird(&program, setup),
            Kind::Frr => configs::frr(&program, setup),
            Kind::Gobgp => configs::gobgp(&program, setup),
            Kind::Openbgpd => configs::openbgpd(&program, setup),
            Kind::Exabgp => configs::exabgp(&program, setup),
        };
        let peer_daemon = Self { kind, daemon, cli };
        // OpenBGPD dials once after its start, and then not for two minutes: our end has to be ready.
        if setup.passive || !matches!(kind, Kind::Exabgp | Kind::Openbgpd) {
            let at = setup.daemon_address(kind).parse().unwrap();
            wait(&format!("{kind:?} to listen"), || match net::listens(at, 1790) {
                true => Ok(()),
                false => Err(peer_daemon.log()),
            });
        }
        if kind == Kind::Gobgp {
            let hop = if setup.extended_next_hop { "2001:db8::10" } else { "192.0.2.10" };
            peer_daemon.add(&format!("{} nexthop {hop}", kind.v4()));
            peer_daemon.add(&format!("10.10.1.0/24 nexthop {hop}"));
            if !setup.ipv4_only {
                peer_daemon.add(&format!("-a ipv6 {} nexthop 2001:db8::10", kind.v6()));
            }
        }
        Some(peer_daemon)
    }

    /// Makes GoBGP announce a route.
    pub(crate) fn add(&self, route: &str) {
        wait("GoBGP to take a route", || match self.ask(&format!("global rib add {route}")) {
            answer if answer.is_empty() => Ok(()),
            answer => Err(format!("{answer}\n{}", self.log())),
        });
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    /// Sends SIGSTOP.
    pub(crate) fn stop(&self) {
        self.daemon.stop();
    }

    /// Kills the process (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Returns the updates that ExaBGP received, one JSON document per line.
    pub(crate) fn updates(&self) -> String {
        std::fs::read_to_string(self.daemon.file("updates")).unwrap_or_default()
    }

    /// Runs a command of its CLI; for ExaBGP, of its API.
    pub(crate) fn ask(&self, command: &str) -> String {
        let (dir, socket, ctl) = (self.daemon.file(""), self.daemon.file("socket"), self.daemon.file("ctl"));
        let words = || command.split(' ');
        let arguments: Vec<&str> = match self.kind {
            Kind::Bird => ["-s", &ctl].into_iter().chain(words()).collect(),
            Kind::Frr => vec!["--config_dir", &dir, "--vty_socket", &dir, "-c", command],
            Kind::Gobgp => ["-u", "192.0.2.10"].into_iter().chain(words()).collect(),
            Kind::Openbgpd => ["-s", &socket].into_iter().chain(words()).collect(),
            Kind::Exabgp => {
                use std::io::Write as _;
                let file = std::fs::OpenOptions::new().append(true).open(self.daemon.file("commands"));
                writeln!(file.unwrap(), "{command}").unwrap();
                return String::new();
            }
        };
        let out = Command::new(&self.cli).args(arguments).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
    }

    /// Returns the output of a GoBGP command that does not end, after one second.
    pub(crate) fn output_of_a_second(&self, command: &str) -> String {
        let mut run = Command::new("timeout");
        run.arg("1").arg(&self.cli).args(["-u", "192.0.2.10"]).args(command.split(' '));
        String::from_utf8_lossy(&run.output().unwrap().stdout).into_owned()
    }

    /// Returns its routes to a prefix; for ExaBGP, which stores none, the updates received.
    pub(crate) fn route(&self, prefix: &str) -> String {
        let v6 = prefix.contains(':');
        match self.kind {
            Kind::Bird => self.ask(&format!("show route for {prefix} all")),
            Kind::Frr => self.ask(&format!("show bgp {} unicast {prefix}", if v6 { "ipv6" } else { "ipv4" })),
            Kind::Gobgp => {
                self.ask(&format!("global rib {prefix} -a {} -j", if v6 { "ipv6" } else { "ipv4" }))
            }
            Kind::Openbgpd => self.ask(&format!("show rib detail {prefix}")),
            Kind::Exabgp => self.updates().lines().filter(|l| l.contains(prefix)).collect(),
        }
    }

    /// Waits until its output for a prefix contains these texts.
    pub(crate) fn wait_for_route(&self, prefix: &str, texts: &[&str]) {
        wait(&format!("{:?} to have {prefix} with {texts:?}", self.kind), || {
            let said = self.route(prefix);
            if texts.iter().all(|t| said.contains(t)) {
                Ok(())
            } else {
                Err(format!("{said}\n{}", self.log()))
            }
        });
    }

    /// Waits until it has no route to a prefix. Not for ExaBGP, which stores none.
    pub(crate) fn wait_for_no_route(&self, prefix: &str) {
        wait(&format!("{:?} to have no {prefix}", self.kind), || match self.route(prefix) {
            said if !self.shows_route(&said) => Ok(()),
            said => Err(format!("{said}\n{}", self.log())),
        });
    }

    /// Returns true if the output of [`Self::route`] has a route of ours.
    pub(crate) fn shows_route(&self, said: &str) -> bool {
        let mark = match self.kind {
            Kind::Bird => "BGP.as_path",
            Kind::Frr | Kind::Openbgpd => "192.0.2.1",
            Kind::Gobgp => "\"nlri\"",
            Kind::Exabgp => "\"announce\"",
        };
        said.contains(mark)
    }

    /// Waits until the output of a command contains this text.
    pub(crate) fn wait_for_output(&self, command: &str, text: &str) {
        wait(&format!("{:?} to say {text:?} to {command:?}", self.kind), || {
            let answer = self.ask(command);
            if answer.contains(text) { Ok(()) } else { Err(format!("{answer}\n{}", self.log())) }
        });
    }

    /// Waits until the session is up.
    pub(crate) fn wait_established(&self, a: &Node) {
        wait(&format!("{:?} to come up", self.kind), || match a.peer("daemon") {
            Some(p) if p.state == State::Established => Ok(()),
            p => Err(format!("{p:#?}\n{}", self.log())),
        });
    }
}

/// Returns the intent of a node with the daemon as its peer `daemon`.
pub(crate) fn our_intent(kind: Kind, setup: SessionSetup) -> RoutingIntent {
    let at = |address: &str| match address.contains(':') {
        true => format!("[{address}]:1790"),
        false => format!("{address}:1790"),
    };
    let blocks: &[&str] = if setup.ipv4_only { &[V4] } else { &[V4, V6] };
    let mut us = intent(&at(setup.our_address()), 64512, blocks);
    us.router_id = 0xc000_0201;
    let mut peer_daemon = peer(&at(&setup.daemon_address(kind)), setup.our_address(), setup.asn(kind));
    peer_daemon.local_v6 = Some("2001:db8::1".parse().unwrap());
    peer_daemon.ipv6 = !setup.ipv4_only;
    peer_daemon.password = setup.md5.then(|| Password::Text(PASSWORD.into()));
    peer_daemon.ttl_security = setup.ttl_security.then_some(1);
    us.peers.insert("daemon".into(), peer_daemon);
    us
}
