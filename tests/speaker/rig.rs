//! Each of the five daemons as the one neighbour of a node, over IPv4 or IPv6, with the same routes and the same wishes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tortie::routing::{Password, RoutingIntent};
use tortie_bgp::State;

use crate::net;
use crate::node::{Node, intent, peer, wait};
use crate::others::{Daemon, start_openbgpd};

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

/// What the session is to be; the default is eBGP over IPv4 with both families, and either end dials.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wish {
    /// The session is over IPv6.
    pub(crate) over_ipv6: bool,
    /// All are in AS 64512.
    pub(crate) ibgp: bool,
    /// It reflects between its two neighbours, us and 192.0.2.2.
    pub(crate) reflector: bool,
    pub(crate) md5: bool,
    /// It does not dial.
    pub(crate) passive: bool,
    pub(crate) ttl_security: bool,
    /// IPv4 routes with IPv6 next hops.
    pub(crate) extended_next_hop: bool,
    /// It takes one route of a family and ends the session at the second.
    pub(crate) one_prefix: bool,
    /// It knows us only as somebody in 192.0.2.0/29.
    pub(crate) range: bool,
}

impl Wish {
    fn us(self) -> &'static str {
        if self.over_ipv6 { "2001:db8::1" } else { "192.0.2.1" }
    }

    pub(crate) fn them(self, kind: Kind) -> String {
        let last = kind.last();
        if self.over_ipv6 { format!("2001:db8::{last}") } else { format!("192.0.2.{last}") }
    }

    fn asn(self, kind: Kind) -> u32 {
        if self.ibgp { 64512 } else { 65000 + kind.last() }
    }

    fn neighbours(self) -> Vec<&'static str> {
        if self.range {
            return vec!["192.0.2.0/29"];
        }
        if self.reflector { vec![self.us(), "192.0.2.2"] } else { vec![self.us()] }
    }
}

impl Kind {
    /// Last octet of its addresses: 192.0.2.x, 2001:db8::x; its AS is 65000 and that.
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
}

/// A daemon that runs.
pub(crate) struct Them {
    pub(crate) kind: Kind,
    daemon: Daemon,
    cli: PathBuf,
}

impl Them {
    /// Enters a namespace and starts it there; `None`: not permitted, or no such daemon.
    pub(crate) fn start(kind: Kind, wish: Wish) -> Option<Self> {
        let addresses: Vec<String> = [1, 2, kind.last()].map(|n| format!("2001:db8::{n}/128")).into();
        if !net::enter(&addresses.iter().map(String::as_str).collect::<Vec<_>>()) {
            return None;
        }
        Self::start_here(kind, wish)
    }

    /// The same in the namespace of the test as it is.
    pub(crate) fn start_here(kind: Kind, wish: Wish) -> Option<Self> {
        let (program, cli) = match kind {
            Kind::Bird => ("bird", "birdc"),
            Kind::Frr => ("frr-bgpd", "vtysh"),
            Kind::Gobgp => ("gobgpd", "gobgp"),
            Kind::Openbgpd => ("openbgpd", "bgpctl"),
            Kind::Exabgp => ("exabgp", "exabgp"),
        };
        let (program, cli) = (net::tool(program)?, net::tool(cli)?);
        let daemon = match kind {
            Kind::Bird => bird(&program, wish),
            Kind::Frr => frr(&program, wish),
            Kind::Gobgp => gobgp(&program, wish),
            Kind::Openbgpd => openbgpd(&program, wish),
            Kind::Exabgp => exabgp(&program, wish),
        };
        let them = Self { kind, daemon, cli };
        if kind == Kind::Gobgp {
            let hop = if wish.extended_next_hop { "2001:db8::10" } else { "192.0.2.10" };
            let v4 = format!("global rib add {} nexthop {hop}", kind.v4());
            let v6 = format!("global rib add -a ipv6 {} nexthop 2001:db8::10", kind.v6());
            let more = format!("global rib add 10.10.1.0/24 nexthop {hop}");
            for add in [&v4, &v6, &more] {
                wait("GoBGP to take a route", || match them.ask(add) {
                    answer if answer.is_empty() => Ok(()),
                    answer => Err(format!("{answer}\n{}", them.log())),
                });
            }
        }
        Some(them)
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    /// Kill -9.
    pub(crate) fn kill(&mut self) {
        self.daemon.kill();
    }

    /// Says a command to it; for ExaBGP one of its API.
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

    /// What it says of its routes to a prefix; ExaBGP, which keeps none, of what it was sent.
    pub(crate) fn route(&self, prefix: &str) -> String {
        let v6 = prefix.contains(':');
        match self.kind {
            Kind::Bird => self.ask(&format!("show route for {prefix} all")),
            Kind::Frr => self.ask(&format!("show bgp {} unicast {prefix}", if v6 { "ipv6" } else { "ipv4" })),
            Kind::Gobgp => {
                self.ask(&format!("global rib {prefix} -a {} -j", if v6 { "ipv6" } else { "ipv4" }))
            }
            Kind::Openbgpd => self.ask(&format!("show rib detail {prefix}")),
            Kind::Exabgp => {
                let updates = std::fs::read_to_string(self.daemon.file("updates")).unwrap_or_default();
                updates.lines().filter(|l| l.contains(prefix)).collect()
            }
        }
    }

    /// Waits until what it says of a prefix contains these.
    pub(crate) fn has(&self, prefix: &str, texts: &[&str]) {
        wait(&format!("{:?} to have {prefix} with {texts:?}", self.kind), || {
            let said = self.route(prefix);
            if texts.iter().all(|t| said.contains(t)) {
                Ok(())
            } else {
                Err(format!("{said}\n{}", self.log()))
            }
        });
    }

    /// Waits for the session.
    pub(crate) fn up(&self, a: &Node) {
        wait(&format!("{:?} to come up", self.kind), || match a.peer("them") {
            Some(p) if p.state == State::Established => Ok(()),
            p => Err(format!("{p:#?}\n{}", self.log())),
        });
    }
}

/// A node with it as its peer `them`.
pub(crate) fn us(kind: Kind, wish: Wish) -> RoutingIntent {
    let at = |address: &str| match address.contains(':') {
        true => format!("[{address}]:1790"),
        false => format!("{address}:1790"),
    };
    let mut us = intent(&at(wish.us()), 64512, &[V4, V6]);
    us.router_id = 0xc000_0201;
    let mut them = peer(&at(&wish.them(kind)), wish.us(), wish.asn(kind));
    them.local_v6 = Some("2001:db8::1".parse().unwrap());
    them.password = wish.md5.then(|| Password::Text(PASSWORD.into()));
    them.ttl_security = wish.ttl_security.then_some(1);
    us.peers.insert("them".into(), them);
    us
}

fn bird(program: &Path, wish: Wish) -> Daemon {
    let (them, asn) = (wish.them(Kind::Bird), wish.asn(Kind::Bird));
    let mut config = "log stderr all; router id 192.0.2.9; protocol device { scan time 3600; }
        protocol static s4 { ipv4; route 10.9.0.0/24 blackhole; route 10.9.1.0/24 blackhole; }
        protocol static s6 { ipv6; route fd00:9::/64 blackhole; }\n"
        .to_owned();
    let mut options = String::new();
    for (set, option) in [
        (wish.md5, "password \"right\";"),
        (wish.passive, "passive on;"),
        (wish.ttl_security, "ttl security on; multihop 1;"),
        (!wish.ttl_security, "multihop 5;"),
        (wish.reflector, "rr client;"),
    ] {
        options += if set { option } else { "" };
    }
    let extended =
        if wish.extended_next_hop { "extended next hop on;" } else { "next hop address 192.0.2.9;" };
    for (n, neighbour) in wish.neighbours().iter().enumerate() {
        let own = if neighbour.contains(':') { &them } else { "192.0.2.9" };
        let (range, port) = if wish.range { ("range", "") } else { ("", "port 1790") };
        let export = if wish.reflector { "all" } else { "where source = RTS_STATIC" };
        let (next4, next6) =
            if wish.reflector { ("", "") } else { (extended, "next hop address 2001:db8::9;") };
        writeln!(
            config,
            "protocol bgp tortie{n} {{ connect delay time 1; connect retry time 1; error wait time 1, 1; strict bind yes;
               local {own} port 1790 as {asn}; neighbor {range} {neighbour} {port} as 64512;
               ipv4 {{ import all; export {export}; {next4} }}; ipv6 {{ import all; export {export}; {next6} }};
               {options} }}"
        )
        .unwrap();
    }
    Daemon::start(program, &config, |dir| {
        let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
        ["-f", "-c", &file("conf"), "-s", &file("ctl"), "-P", &file("pid")].map(String::from).into()
    })
}

fn frr(program: &Path, wish: Wish) -> Daemon {
    let (them, asn) = (wish.them(Kind::Frr), wish.asn(Kind::Frr));
    let mut config = format!(
        "debug bgp neighbor-events\nrouter bgp {asn}\n bgp router-id 192.0.2.11\n no bgp ebgp-requires-policy
 bgp log-neighbor-changes\n no bgp network import-check\n no bgp default ipv4-unicast\n"
    );
    let (mut v4, mut v6) =
        (" network 10.11.0.0/24\n network 10.11.1.0/24\n".to_owned(), " network fd00:11::/64\n".to_owned());
    for neighbour in wish.neighbours() {
        let own = if neighbour.contains(':') { &them } else { "192.0.2.11" };
        let name = if wish.range { "RANGE" } else { neighbour };
        let mut option = |set: bool, text: &str| {
            if set {
                writeln!(config, " neighbor {name} {text}").unwrap();
            }
        };
        option(wish.range, "peer-group");
        option(true, "remote-as 64512");
        option(!wish.range, "port 1790");
        option(true, &format!("update-source {own}"));
        option(!wish.range, "timers connect 1");
        option(true, "disable-connected-check");
        option(wish.md5, "password right");
        option(wish.passive, "passive");
        option(wish.ttl_security, "ttl-security hops 1");
        option(!wish.ttl_security && !wish.ibgp, "ebgp-multihop 5");
        option(wish.extended_next_hop, "capability extended-nexthop");
        for family in [&mut v4, &mut v6] {
            writeln!(family, " neighbor {name} activate").unwrap();
            if wish.reflector {
                writeln!(family, " neighbor {name} route-reflector-client").unwrap();
            }
        }
        if !wish.reflector {
            writeln!(v6, " neighbor {name} route-map OUT out").unwrap();
        }
        if wish.range {
            writeln!(config, " bgp listen range {neighbour} peer-group RANGE").unwrap();
        }
    }
    write!(
        config,
        " address-family ipv4 unicast\n{v4} exit-address-family\n address-family ipv6 unicast\n{v6} exit-address-family
exit\nroute-map OUT permit 10\n set ipv6 next-hop global 2001:db8::11\n"
    )
    .unwrap();
    let daemon = Daemon::start(program, &config, |dir| {
        let fixed = "-p 1790 -l 192.0.2.11 -l 2001:db8::11 -Z -S -u root -g root -P 0 --log stdout";
        let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let files = ["-f".into(), file("conf"), "-i".into(), file("pid"), "--vty_socket".into(), file("")];
        fixed.split(' ').map(String::from).chain(files).collect()
    });
    std::fs::write(daemon.file("vtysh.conf"), "username root nopassword\n").unwrap();
    daemon
}

fn gobgp(program: &Path, wish: Wish) -> Daemon {
    let (them, asn) = (wish.them(Kind::Gobgp), wish.asn(Kind::Gobgp));
    let mut config = format!(
        "[global.config]\nas = {asn}\nrouter-id = \"192.0.2.10\"\nport = 1790
local-address-list = [\"192.0.2.10\", \"2001:db8::10\"]\n"
    );
    let list = if wish.range { "peer-groups" } else { "neighbors" };
    for neighbour in wish.neighbours() {
        let own = if neighbour.contains(':') { &them } else { "192.0.2.10" };
        let who = match wish.range {
            true => "peer-group-name = \"range\"\n".to_owned(),
            false => format!("neighbor-address = \"{neighbour}\"\n"),
        };
        let password = if wish.md5 { "auth-password = \"right\"\n" } else { "" };
        write!(
            config,
            "[[{list}]]
[{list}.config]\n{who}peer-as = 64512\n{password}
[{list}.timers.config]\nconnect-retry = 1\nidle-hold-time-after-reset = 1
[{list}.transport.config]\nlocal-address = \"{own}\"\nremote-port = 1790\npassive-mode = {}\n",
            wish.passive
        )
        .unwrap();
        for (set, option) in [
            (wish.ttl_security, "[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255\n"),
            (
                !wish.ttl_security && !wish.ibgp,
                "[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 5\n",
            ),
            (
                wish.reflector,
                "[neighbors.route-reflector.config]\nroute-reflector-client = true
route-reflector-cluster-id = \"192.0.2.10\"\n",
            ),
        ] {
            config += &if set { option.replace("[neighbors.", &format!("[{list}.")) } else { String::new() };
        }
        for family in ["ipv4-unicast", "ipv6-unicast"] {
            write!(config, "[[{list}.afi-safis]]\n[{list}.afi-safis.config]\nafi-safi-name = \"{family}\"\n")
                .unwrap();
            if wish.one_prefix {
                config += "[neighbors.afi-safis.prefix-limit.config]\nmax-prefixes = 1\n";
            }
        }
        if wish.range {
            write!(
                config,
                "[[dynamic-neighbors]]\n[dynamic-neighbors.config]\nprefix = \"{neighbour}\"\npeer-group = \"range\"\n"
            )
            .unwrap();
        }
    }
    Daemon::start(program, &config, |dir| {
        let conf = dir.join("conf").to_string_lossy().into_owned();
        let fixed = ["-t", "toml", "-f", &conf, "--api-hosts", "192.0.2.10:50051"];
        fixed.map(String::from).into()
    })
}

fn openbgpd(program: &Path, wish: Wish) -> Daemon {
    let (them, asn) = (wish.them(Kind::Openbgpd), wish.asn(Kind::Openbgpd));
    let mut config = format!(
        "AS {asn}\nrouter-id 192.0.2.12\nlisten on 192.0.2.12 port 1790\nlisten on 2001:db8::12 port 1790
fib-update no\nsocket \"DIR/socket\"\nnetwork 10.12.0.0/24\nnetwork 10.12.1.0/24\nnetwork fd00:12::/64\n"
    );
    for neighbour in wish.neighbours() {
        let own = if neighbour.contains(':') { &them } else { "192.0.2.12" };
        let port = if wish.range { "" } else { "port 1790\n" };
        let mut options = String::new();
        for (set, option) in [
            (wish.md5, "tcp md5sig password right\n"),
            (wish.passive, "passive\n"),
            (wish.ttl_security, "ttl-security yes\n"),
            (!wish.ttl_security && !wish.ibgp, "multihop 5\n"),
            (wish.reflector, "route-reflector\n"),
        ] {
            options += if set { option } else { "" };
        }
        writeln!(
            config,
            "neighbor {neighbour} {{\nremote-as 64512\n{port}local-address {own}\n{options}announce IPv4 unicast
announce IPv6 unicast\n}}"
        )
        .unwrap();
    }
    config += "allow from any\nallow to any\n";
    if !wish.reflector {
        config += "match to any inet6 set nexthop 2001:db8::12\n";
    }
    start_openbgpd(program, &config)
}

/// What it is told to do stands in the file `commands`.
fn exabgp(program: &Path, wish: Wish) -> Daemon {
    let (us, them, asn) = (wish.neighbours()[0], wish.them(Kind::Exabgp), wish.asn(Kind::Exabgp));
    let mut options = String::new();
    for (set, option) in [
        (wish.md5, "md5-password right;"),
        (wish.passive || wish.range, "passive true; listen 1790;"),
        (!wish.passive && !wish.range, "connect 1790;"),
        (wish.ttl_security, "outgoing-ttl 255; incoming-ttl 255;"),
        (!wish.ttl_security, "outgoing-ttl 5;"),
    ] {
        options += if set { option } else { "" };
    }
    let (nexthop, pairs, hop) = match wish.extended_next_hop {
        true => ("nexthop enable;", "nexthop { ipv4 unicast ipv6; }", "2001:db8::13"),
        false => ("", "", "192.0.2.13"),
    };
    let config = format!(
        "process dump {{ run /bin/sh DIR/dump; encoder json; }}
        process feed {{ run /bin/sh DIR/feed; encoder text; }}
        neighbor {us} {{
          api {{ processes [ dump, feed ]; neighbor-changes; receive {{ parsed; update; notification; refresh; }} }}
          router-id 192.0.2.13; local-address {them}; local-as {asn}; peer-as 64512; {options}
          capability {{ route-refresh; graceful-restart 20; {nexthop} }}
          family {{ ipv4 unicast; ipv6 unicast; }} {pairs}
          static {{ route 10.13.0.0/24 next-hop {hop}; route 10.13.1.0/24 next-hop {hop}; route fd00:13::/64 next-hop 2001:db8::13; }}
        }}"
    );
    Daemon::start(program, &config, |dir| {
        // Its helpers run as nobody, and are at times given pipes that are not ready.
        let dump =
            "for i in $(seq 100); do while read -r l; do echo \"$l\" >> updates; done; sleep 0.1; done";
        let feed = "touch commands; tail -n +1 -f commands";
        for (name, script) in [("dump", dump), ("feed", feed)] {
            std::fs::write(dir.join(name), format!("cd {} && {script}", dir.display())).unwrap();
        }
        std::fs::write(dir.join("commands"), "").unwrap();
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        vec!["conf".into()]
    })
}
