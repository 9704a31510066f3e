//! Routers of the demo: the configuration of each, and queries by its own tool.

use std::fmt::Write as _;

use serde_json::Value;
use tortie_topology::Options;

use super::network::{HOST_AS, Host, Network, ROUTER, ROUTER_AS, ROUTER_V4, ROUTER_V6};
use super::probe::run;
use crate::api::bgp::{BgpRoute, Peer};
use crate::api::status::List;

/// Implementation of the demo's router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Router {
    /// BIRD 2
    Bird,
    /// FRRouting
    Frr,
    /// GoBGP
    Gobgp,
    /// OpenBGPD
    Openbgpd,
    /// Tortie itself
    Tortie,
}

/// Prefix that the router announces in addition to a default route: a documentation network (RFC 5737).
pub const LEARNED_V4: &str = "198.51.100.0/26";
/// IPv6 prefix that the router announces (RFC 3849).
pub const LEARNED_V6: &str = "2001:db8:51::/122";

/// A session in the output of the router's tool.
#[derive(Debug, Clone)]
pub struct Session {
    /// True if the session is established.
    pub up: bool,
    /// Line of the tool's output.
    pub quote: String,
}

impl Router {
    /// Selects the first router that is installed; Tortie itself needs no installation.
    #[must_use]
    pub fn choose(options: &Options, rootless: bool) -> Self {
        let there = |program: &str| options.find(program).is_some();
        let frr = there("frr-bgpd") || there("/usr/lib/frr/bgpd");
        match () {
            () if there("bird") && there("birdc") => Self::Bird,
            () if there("gobgpd") && there("gobgp") => Self::Gobgp,
            () if frr && there("vtysh") => Self::Frr,
            () if !rootless && there("bgpctl") => Self::Openbgpd,
            () => Self::Tortie,
        }
    }

    /// Returns the name of the product.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bird => "BIRD",
            Self::Frr => "FRR",
            Self::Gobgp => "GoBGP",
            Self::Openbgpd => "OpenBGPD",
            Self::Tortie => "Tortie",
        }
    }

    /// True if it drops privileges to users that do not exist in a rootless lab.
    #[must_use]
    pub fn needs_users(self) -> bool {
        self == Self::Openbgpd
    }

    /// True if it installs learned routes in its kernel, so that the kernel's monitor shows each withdrawal.
    #[must_use]
    pub fn programs_kernel(self) -> bool {
        !matches!(self, Self::Gobgp)
    }

    /// True if it also announces a default route; Tortie originates only blocks.
    #[must_use]
    pub fn announces_default(self) -> bool {
        self != Self::Tortie
    }

    /// Returns its image and its lines in the lab file; its configuration is in `__clabNodeDir__/etc`.
    #[must_use]
    pub fn node(self, v6: bool) -> String {
        let text = match self {
            Self::Bird => "image: bird:2, binds: [\"__clabNodeDir__/etc:/etc/bird\"]",
            Self::Frr => "image: frr:8, binds: [\"__clabNodeDir__/etc:/etc/frr\"]",
            Self::Gobgp => "image: gobgp:3, binds: [\"__clabNodeDir__/etc:/etc/gobgp\"]",
            // bgpd rejects a configuration file that other users may read.
            Self::Openbgpd => {
                "image: openbgpd:7, binds: [\"__clabNodeDir__/etc:/etc/bgpd.lab\"], entrypoint: sh -c, \
                 cmd: '\"install -m 600 /etc/bgpd.lab/bgpd.conf /run/bgpd.conf && exec bgpd -d -f /run/bgpd.conf\"'"
            }
            Self::Tortie => {
                "image: tortie, binds: [\"__clabNodeDir__/store:/store\", \"__clabNodeDir__/run:/run/tortie\"], \
                 env: {TORTIE_DATASTORE: \"sqlite:/store/store.db\", TORTIE_NODE: tor}"
            }
        };
        let mut exec = String::new();
        if self == Self::Gobgp {
            let ready = "for i in `seq 200`; do gobgp global >/dev/null 2>&1 && break; sleep 0.05; done";
            let _ = write!(
                exec,
                ", exec: [\"sh -c '{ready}; gobgp global rib add 0.0.0.0/0 nexthop {ROUTER_V4} && \
                 gobgp global rib add {LEARNED_V4} nexthop {ROUTER_V4}"
            );
            if v6 {
                let _ = write!(exec, " && gobgp global rib add -a ipv6 {LEARNED_V6} nexthop {ROUTER_V6}");
            }
            exec.push_str("'\"]");
        }
        text.to_owned() + &exec
    }

    /// Returns name and content of its configuration file.
    #[must_use]
    pub fn config(self, hosts: &[Host]) -> Option<(&'static str, String)> {
        let v6 = hosts.iter().any(|h| h.v6.is_some());
        match self {
            Self::Bird => Some(("bird.conf", bird(hosts, v6))),
            Self::Frr => Some(("frr.conf", frr(hosts, v6))),
            Self::Gobgp => Some(("gobgpd.toml", gobgp(hosts))),
            Self::Openbgpd => Some(("bgpd.conf", openbgpd(hosts, v6))),
            Self::Tortie => None,
        }
    }

    /// Returns its name and version.
    ///
    /// # Errors
    /// The error of the program.
    pub fn version(self, net: &Network) -> Result<String, String> {
        let words: &[&str] = match self {
            Self::Bird => &["sh", "-c", "bird --version 2>&1"],
            Self::Frr => &["sh", "-c", "vtysh -c 'show version' 2>&1"],
            Self::Gobgp => &["gobgpd", "--version"],
            Self::Openbgpd => &["sh", "-c", "bgpd -V 2>&1 || true"],
            Self::Tortie => &["tortie", "--version"],
        };
        let text = run(&net.running, ROUTER, words)?;
        let number = text.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        Ok(format!("{} {}", self.name(), number.unwrap_or_default()).trim().to_owned())
    }

    /// Returns its sessions: one per host and address family in the configuration.
    ///
    /// # Errors
    /// The error of its tool.
    pub fn sessions(self, net: &Network) -> Result<Vec<Session>, String> {
        let ask = |words: &[&str]| run(&net.running, ROUTER, words);
        let lines = |text: String, of: &dyn Fn(&str) -> bool, up: &dyn Fn(&str) -> bool| {
            let lines = text.lines().filter(|l| of(l));
            lines.map(|l| Session { up: up(l), quote: squeeze(l) }).collect::<Vec<_>>()
        };
        match self {
            Self::Bird => {
                let text = ask(&["birdc", "show", "protocols"])?;
                Ok(lines(text, &|l| l.split_whitespace().nth(1) == Some("BGP"), &|l| {
                    l.contains("Established")
                }))
            }
            Self::Frr => {
                let text = ask(&["vtysh", "-c", "show bgp summary json"])?;
                let json: Value = serde_json::from_str(&text).map_err(|e| format!("vtysh: {e}: {text}"))?;
                let families = json.as_object().into_iter().flatten();
                let peers = families.filter_map(|(_, f)| f.get("peers")?.as_object()).flatten();
                Ok(peers
                    .map(|(address, peer)| {
                        let state = peer.get("state").and_then(Value::as_str).unwrap_or("?");
                        Session { up: state == "Established", quote: format!("{address} {state}") }
                    })
                    .collect())
            }
            Self::Gobgp => {
                let text = ask(&["gobgp", "neighbor"])?;
                let peer = |l: &str| l.split_whitespace().nth(1) == Some(&HOST_AS.to_string());
                Ok(lines(text, &peer, &|l| l.contains("Establ")))
            }
            Self::Openbgpd => {
                let text = ask(&["bgpctl", "show", "summary"])?;
                // The last column is a state, or the number of prefixes of an established session.
                let up = |l: &str| {
                    let last = l.split_whitespace().last().unwrap_or_default();
                    last.split('/').next().is_some_and(|n| n.parse::<u64>().is_ok())
                };
                let peer = |l: &str| l.split_whitespace().nth(1) == Some(&HOST_AS.to_string());
                Ok(lines(text, &peer, &up))
            }
            Self::Tortie => {
                let list: List<Peer> = net.ask(ROUTER, "/v1/bgp/peers")?;
                let show = |p: &Peer| Session {
                    up: p.state == "Established",
                    quote: format!("{} {}", p.address, p.state),
                };
                Ok(list.items.iter().map(show).collect())
            }
        }
    }

    /// Returns its table entry for a prefix in the format of its tool; `None` if it has none.
    ///
    /// # Errors
    /// The error of its tool, except "no such route".
    pub fn route(self, net: &Network, prefix: &str) -> Result<Option<String>, String> {
        let v6 = prefix.contains(':');
        let ask = |words: &[&str]| {
            let output = net.running.exec(ROUTER, words).map_err(|e| e.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            Ok::<_, String>((output.status.success(), text.into_owned()))
        };
        let line = |text: &str| text.lines().find(|l| l.contains(prefix)).map(squeeze);
        let tool = match self {
            Self::Bird => &["birdc", "show", "route", prefix][..],
            Self::Frr => {
                let command = format!("show bgp ipv{} unicast json", if v6 { 6 } else { 4 });
                // The tool's standard error is ignored, because it complains about files that it does not
                // need.
                let text = run(&net.running, ROUTER, &["vtysh", "-c", &command])?;
                let json: Value = serde_json::from_str(&text).map_err(|e| format!("vtysh: {e}: {text}"))?;
                let path = json.get("routes").and_then(|r| r.get(prefix)).and_then(|r| r.get(0));
                return Ok(path.map(|p| {
                    let hop = p.pointer("/nexthops/0/ip").and_then(Value::as_str).unwrap_or("?");
                    let as_path = p.get("path").and_then(Value::as_str).unwrap_or_default();
                    format!("{prefix} nexthop {hop} path {as_path}")
                }));
            }
            Self::Gobgp if v6 => &["gobgp", "global", "rib", "-a", "ipv6", prefix][..],
            Self::Gobgp => &["gobgp", "global", "rib", prefix][..],
            Self::Openbgpd => &["bgpctl", "show", "rib", prefix][..],
            Self::Tortie => {
                let path = format!("/v1/bgp/routes?max=10&prefix={}", crate::cli::escape(prefix));
                let list: List<BgpRoute> = net.ask(ROUTER, &path)?;
                let route = list.items.iter().find(|r| r.prefix == prefix);
                let best = route.and_then(|r| r.paths.iter().find(|p| p.best));
                return Ok(best.map(|p| {
                    let hop = p.next_hop.as_deref().unwrap_or("-");
                    format!("{prefix} next hop {hop} AS path {}", p.as_path)
                }));
            }
        };
        let (ok, text) = ask(tool)?;
        match line(&text) {
            Some(found) if ok && !text.contains("not in table") => Ok(Some(found)),
            _ if text.contains("not in table") || text.contains("Network not found") => Ok(None),
            _ if ok => Ok(None),
            _ => Err(format!("{}: {}", tool.join(" "), text.trim())),
        }
    }
}

/// Replaces sequences of white space by single blanks.
fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn bird(hosts: &[Host], v6: bool) -> String {
    let mut out = format!(
        "router id {ROUTER_V4};\n\
         protocol device {{ scan time 2; }}\n\
         protocol kernel kernel4 {{ merge paths on; ipv4 {{ import none; export where source = RTS_BGP; }}; }}\n\
         protocol static static4 {{ ipv4; route 0.0.0.0/0 unreachable; route {LEARNED_V4} unreachable; }}\n"
    );
    if v6 {
        let _ = write!(
            out,
            "protocol kernel kernel6 {{ merge paths on; ipv6 {{ import none; export where source = RTS_BGP; }}; }}\n\
             protocol static static6 {{ ipv6; route {LEARNED_V6} unreachable; }}\n"
        );
    }
    // BIRD's defaults wait a minute and more after any error.
    let timers = "connect delay time 1; connect retry time 2; error wait time 1, 5; startup hold time 10;";
    for host in hosts {
        let _ = writeln!(
            out,
            "protocol bgp {} {{ local {ROUTER_V4} as {ROUTER_AS}; neighbor {} as {HOST_AS}; {timers} graceful restart on; \
             ipv4 {{ import all; export where source = RTS_STATIC; next hop self; }}; }}",
            host.name, host.v4
        );
        if let Some(addr) = host.v6 {
            let _ = writeln!(
                out,
                "protocol bgp {}_v6 {{ local {ROUTER_V6} as {ROUTER_AS}; neighbor {addr} as {HOST_AS}; {timers} \
                 graceful restart on; ipv6 {{ import all; export where source = RTS_STATIC; next hop self; }}; }}",
                host.name
            );
        }
    }
    out
}

fn frr(hosts: &[Host], v6: bool) -> String {
    let mut out = format!(
        "frr defaults datacenter\nhostname tor\nlog stdout\n!\nrouter bgp {ROUTER_AS}\n bgp router-id {ROUTER_V4}\n \
         no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n no bgp network import-check\n"
    );
    let mut group = |name: &str, peers: Vec<String>| {
        let _ = write!(
            out,
            " neighbor {name} peer-group\n neighbor {name} remote-as {HOST_AS}\n neighbor {name} timers 30 90\n \
             neighbor {name} timers connect 2\n"
        );
        for peer in peers {
            let _ = writeln!(out, " neighbor {peer} peer-group {name}");
        }
    };
    group("hosts", hosts.iter().map(|h| h.v4.to_string()).collect());
    if v6 {
        group("hosts6", hosts.iter().filter_map(|h| h.v6).map(|a| a.to_string()).collect());
    }
    let _ = write!(
        out,
        " !\n address-family ipv4 unicast\n  network {LEARNED_V4}\n  neighbor hosts activate\n  \
         neighbor hosts default-originate\n  neighbor hosts filter-list own out\n exit-address-family\n"
    );
    if v6 {
        let _ = write!(
            out,
            " !\n address-family ipv6 unicast\n  network {LEARNED_V6}\n  neighbor hosts6 activate\n  \
             neighbor hosts6 filter-list own out\n exit-address-family\n"
        );
    }
    out.push_str("!\nbgp as-path access-list own seq 5 permit ^$\n");
    out
}

fn gobgp(hosts: &[Host]) -> String {
    let mut out = format!("[global.config]\n  as = {ROUTER_AS}\n  router-id = \"{ROUTER_V4}\"\n");
    let mut neighbor = |address: String, family: &str| {
        let _ = write!(
            out,
            "\n[[neighbors]]\n  [neighbors.config]\n    neighbor-address = \"{address}\"\n    peer-as = {HOST_AS}\n  \
             [neighbors.timers.config]\n    connect-retry = 2\n    hold-time = 90\n    keepalive-interval = 30\n  \
             [neighbors.graceful-restart.config]\n    enabled = true\n    restart-time = 120\n  \
             [[neighbors.afi-safis]]\n    [neighbors.afi-safis.config]\n      afi-safi-name = \"{family}\"\n    \
             [neighbors.afi-safis.mp-graceful-restart.config]\n      enabled = true\n"
        );
    };
    for host in hosts {
        neighbor(host.v4.to_string(), "ipv4-unicast");
        if let Some(addr) = host.v6 {
            neighbor(addr.to_string(), "ipv6-unicast");
        }
    }
    out
}

fn openbgpd(hosts: &[Host], v6: bool) -> String {
    let mut out = format!(
        "AS {ROUTER_AS}\nrouter-id {ROUTER_V4}\nlisten on 0.0.0.0\n{}fib-update yes\nconnect-retry 2\n\
         network 0.0.0.0/0\nnetwork {LEARNED_V4}\n",
        if v6 { "listen on ::\n" } else { "" }
    );
    if v6 {
        let _ = writeln!(out, "network {LEARNED_V6}");
    }
    let _ = writeln!(out, "group \"hosts\" {{\n\tremote-as {HOST_AS}");
    for host in hosts {
        let _ = writeln!(
            out,
            "\tneighbor {} {{\n\t\tdescr \"{}\"\n\t\tannounce IPv4 unicast\n\t}}",
            host.v4, host.name
        );
    }
    out.push_str("}\n");
    if v6 {
        let _ = writeln!(out, "group \"hosts6\" {{\n\tremote-as {HOST_AS}");
        for host in hosts {
            if let Some(addr) = host.v6 {
                let _ = writeln!(
                    out,
                    "\tneighbor {addr} {{\n\t\tdescr \"{}_v6\"\n\t\tannounce IPv4 none\n\t\tannounce IPv6 unicast\n\t}}",
                    host.name
                );
            }
        }
        out.push_str("}\n");
    }
    out.push_str("allow from any\ndeny to any\n");
    for group in if v6 { &["hosts", "hosts6"][..] } else { &["hosts"][..] } {
        let _ = write!(
            out,
            "allow to group \"{group}\" prefix 0.0.0.0/0\nallow to group \"{group}\" prefix {LEARNED_V4}\n"
        );
        if *group == "hosts6" {
            let _ = writeln!(out, "allow to group \"{group}\" prefix {LEARNED_V6}");
        }
    }
    out
}
