//! Configuration of each daemon for a [`SessionSetup`], and its start.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::rig::daemon::Daemon;
use crate::rig::{Kind, SessionSetup};

impl SessionSetup {
    pub(crate) fn our_address(self) -> &'static str {
        if self.over_ipv6 { "2001:db8::1" } else { "192.0.2.1" }
    }

    pub(crate) fn daemon_address(self, kind: Kind) -> String {
        let last = kind.last();
        if self.over_ipv6 { format!("2001:db8::{last}") } else { format!("192.0.2.{last}") }
    }

    pub(crate) fn asn(self, kind: Kind) -> u32 {
        if self.ibgp { 64512 } else { 65000 + kind.last() }
    }

    /// Returns addresses and ASes of the neighbours; ours is the first.
    fn neighbours(self) -> Vec<(String, u32)> {
        let us = if self.range { "192.0.2.0/29" } else { self.our_address() };
        let mut all = vec![(us.to_owned(), 64512)];
        all.extend(self.reflector.then(|| ("192.0.2.2".to_owned(), 64512)));
        all.extend(self.others.iter().map(|(last, asn)| (format!("192.0.2.{last}"), *asn)));
        all
    }

    /// Returns true if neighbours other than us are announced routes that the daemon learned.
    fn transit(self) -> bool {
        self.reflector || !self.others.is_empty()
    }
}

fn chosen(options: &[(bool, &str)]) -> String {
    options.iter().filter(|(set, _)| *set).map(|(_, option)| *option).collect()
}

/// Returns paths in a daemon's folder as arguments.
fn files(dir: &Path, names: &[(&str, &str)]) -> Vec<String> {
    let pair = |(option, name): &(&str, &str)| [(*option).to_owned(), dir.join(name).display().to_string()];
    names.iter().flat_map(pair).collect()
}

/// Starts BIRD with this configuration; `flags` are added to its command line.
pub(crate) fn start_bird(namespace: Option<&str>, program: &Path, config: &str, flags: &[&str]) -> Daemon {
    Daemon::start_in(namespace, program, config, |dir| {
        let own = files(dir, &[("-c", "conf"), ("-s", "ctl"), ("-P", "pid")]);
        ["-f".to_owned()].into_iter().chain(own).chain(flags.iter().map(|f| (*f).to_owned())).collect()
    })
}

pub(crate) fn bird(program: &Path, setup: SessionSetup) -> Daemon {
    let (daemon_address, asn) = (setup.daemon_address(Kind::Bird), setup.asn(Kind::Bird));
    let mut config = format!(
        "log stderr all; router id 192.0.2.9; protocol device {{ scan time 3600; }}
        protocol static s4 {{ ipv4; route 10.9.0.0/24 blackhole; route 10.9.1.0/24 blackhole; }}
        protocol static s6 {{ ipv6; route fd00:9::/64 blackhole; }}\n{}\n",
        setup.more
    );
    let options = chosen(&[
        (setup.md5, "password \"right\";"),
        (setup.passive, "passive on;"),
        (setup.ttl_security, "ttl security on; multihop 1;"),
        (!setup.ttl_security, "multihop 5;"),
        (setup.reflector, "rr client;"),
    ]);
    let extended =
        if setup.extended_next_hop { "extended next hop on;" } else { "next hop address 192.0.2.9;" };
    let limit = if setup.one_prefix { "import limit 1 action disable;" } else { "" };
    for (n, (neighbour, remote)) in setup.neighbours().iter().enumerate() {
        let own = if neighbour.contains(':') { &daemon_address } else { "192.0.2.9" };
        let export = if setup.transit() { "all" } else { "where source = RTS_STATIC" };
        let (next4, next6) =
            if setup.transit() { ("", "") } else { (extended, "next hop address 2001:db8::9;") };
        let (range, port) = if setup.range { ("range", "") } else { ("", "port 1790") };
        let (neighbour_more, family) = if n == 0 { (setup.neighbour, setup.family) } else { ("", "") };
        let v6 = format!("ipv6 {{ import all; export {export}; {next6} }};");
        writeln!(
            config,
            "protocol bgp tortie{n} {{ connect delay time 1; connect retry time 1; error wait time 1, 1; strict bind yes;
               local {own} port 1790 as {asn}; neighbor {range} {neighbour} {port} as {remote};
               ipv4 {{ import all; export {export}; {next4} {limit} {family} }}; {}
               {options} {neighbour_more} }}",
            if setup.ipv4_only { "" } else { &v6 }
        )
        .unwrap();
    }
    start_bird(None, program, &config, if setup.restarted { &["-R"] } else { &[] })
}

pub(crate) fn frr(program: &Path, setup: SessionSetup) -> Daemon {
    let (daemon_address, asn) = (setup.daemon_address(Kind::Frr), setup.asn(Kind::Frr));
    // By default it applies a new route map only after five seconds.
    let mut config = format!(
        "debug bgp neighbor-events\nbgp route-map delay-timer 0\nrouter bgp {asn}\n bgp router-id 192.0.2.11\n no bgp ebgp-requires-policy
 bgp log-neighbor-changes\n no bgp network import-check\n no bgp default ipv4-unicast\n"
    );
    let (mut v4, mut v6) =
        (" network 10.11.0.0/24\n network 10.11.1.0/24\n".to_owned(), " network fd00:11::/64\n".to_owned());
    for (neighbour, remote) in setup.neighbours() {
        let own = if neighbour.contains(':') { &daemon_address } else { "192.0.2.11" };
        let name = if setup.range { "RANGE" } else { &neighbour };
        let mut option = |set: bool, text: &str| {
            if set {
                writeln!(config, " neighbor {name} {text}").unwrap();
            }
        };
        option(setup.range, "peer-group");
        option(true, &format!("remote-as {remote}"));
        option(!setup.range, "port 1790");
        option(true, &format!("update-source {own}"));
        option(!setup.range, "timers connect 1");
        option(true, "disable-connected-check");
        option(setup.md5, "password right");
        option(setup.passive, "passive");
        option(setup.ttl_security, "ttl-security hops 1");
        option(!setup.ttl_security && !setup.ibgp, "ebgp-multihop 5");
        option(setup.extended_next_hop, "capability extended-nexthop");
        for (family, there) in [(&mut v4, true), (&mut v6, !setup.ipv4_only)] {
            if there {
                writeln!(family, " neighbor {name} activate").unwrap();
            }
            if there && setup.reflector {
                writeln!(family, " neighbor {name} route-reflector-client").unwrap();
            }
        }
        if setup.one_prefix {
            writeln!(v4, " neighbor {name} maximum-prefix 1").unwrap();
        }
        if !setup.transit() && !setup.ipv4_only {
            writeln!(v6, " neighbor {name} route-map OUT6 out").unwrap();
        }
        if setup.range {
            writeln!(config, " bgp listen range {neighbour} peer-group RANGE").unwrap();
        }
    }
    write!(
        config,
        " {}\n address-family ipv4 unicast\n{v4} {}\n exit-address-family
 address-family ipv6 unicast\n{v6} exit-address-family
exit\nroute-map OUT6 permit 10\n set ipv6 next-hop global 2001:db8::11\nexit\n{}\n",
        setup.neighbour, setup.family, setup.more
    )
    .unwrap();
    let daemon = Daemon::start(program, &config, |dir| {
        let fixed = "-p 1790 -l 192.0.2.11 -l 2001:db8::11 -Z -S -u root -g root -P 0 --log stdout";
        let own = files(dir, &[("-f", "conf"), ("-i", "pid"), ("--vty_socket", "")]);
        fixed.split(' ').map(String::from).chain(own).collect()
    });
    std::fs::write(daemon.file("vtysh.conf"), "username root nopassword\n").unwrap();
    daemon
}

pub(crate) fn gobgp(program: &Path, setup: SessionSetup) -> Daemon {
    let (daemon_address, asn) = (setup.daemon_address(Kind::Gobgp), setup.asn(Kind::Gobgp));
    let mut config = format!(
        "[global.config]\nas = {asn}\nrouter-id = \"192.0.2.10\"\nport = 1790
local-address-list = [\"192.0.2.10\", \"2001:db8::10\"]\n"
    );
    let list = if setup.range { "peer-groups" } else { "neighbors" };
    for (n, (neighbour, remote)) in setup.neighbours().iter().enumerate() {
        let own = if neighbour.contains(':') { &daemon_address } else { "192.0.2.10" };
        let who = match setup.range {
            true => "peer-group-name = \"range\"\n".to_owned(),
            false => format!("neighbor-address = \"{neighbour}\"\n"),
        };
        let password = if setup.md5 { "auth-password = \"right\"\n" } else { "" };
        write!(
            config,
            "[[{list}]]
[{list}.config]\n{who}peer-as = {remote}\n{password}
[{list}.timers.config]\nconnect-retry = 1\nidle-hold-time-after-reset = 1
[{list}.transport.config]\nlocal-address = \"{own}\"\nremote-port = 1790\npassive-mode = {}\n{}\n",
            setup.passive,
            if n == 0 { setup.neighbour } else { "" }
        )
        .unwrap();
        let options = chosen(&[
            (setup.ttl_security, "[neighbors.ttl-security.config]\nenabled = true\nttl-min = 255\n"),
            (
                !setup.ttl_security && !setup.ibgp,
                "[neighbors.ebgp-multihop.config]\nenabled = true\nmultihop-ttl = 5\n",
            ),
            (
                setup.reflector,
                "[neighbors.route-reflector.config]\nroute-reflector-client = true
route-reflector-cluster-id = \"192.0.2.10\"\n",
            ),
        ]);
        config += &options.replace("[neighbors.", &format!("[{list}."));
        let families: &[&str] =
            if setup.ipv4_only { &["ipv4-unicast"] } else { &["ipv4-unicast", "ipv6-unicast"] };
        for family in families {
            write!(config, "[[{list}.afi-safis]]\n[{list}.afi-safis.config]\nafi-safi-name = \"{family}\"\n")
                .unwrap();
            config += &chosen(&[
                (setup.one_prefix, "[neighbors.afi-safis.prefix-limit.config]\nmax-prefixes = 1\n"),
                (n == 0 && *family == "ipv4-unicast", setup.family),
            ]);
            config += "\n";
        }
        if setup.range {
            write!(
                config,
                "[[dynamic-neighbors]]\n[dynamic-neighbors.config]\nprefix = \"{neighbour}\"\npeer-group = \"range\"\n"
            )
            .unwrap();
        }
    }
    config += setup.more;
    Daemon::start(program, &config, |dir| {
        let conf = dir.join("conf").to_string_lossy().into_owned();
        let fixed = ["-t", "toml", "-f", &conf, "--api-hosts", "192.0.2.10:50051"];
        fixed.into_iter().chain(setup.restarted.then_some("-r")).map(String::from).collect()
    })
}

pub(crate) fn openbgpd(program: &Path, setup: SessionSetup) -> Daemon {
    let (daemon_address, asn) = (setup.daemon_address(Kind::Openbgpd), setup.asn(Kind::Openbgpd));
    let mut config = format!(
        "AS {asn}\nrouter-id 192.0.2.12\nlisten on 192.0.2.12 port 1790\nlisten on 2001:db8::12 port 1790
fib-update no\nsocket \"DIR/socket\"\nnetwork 10.12.0.0/24\nnetwork 10.12.1.0/24\nnetwork fd00:12::/64\n"
    );
    for (n, (neighbour, remote)) in setup.neighbours().iter().enumerate() {
        let own = if neighbour.contains(':') { &daemon_address } else { "192.0.2.12" };
        // With a local address, 7.7 sets the key on listeners at this address and port 179 only.
        let local = if setup.md5 && setup.passive { String::new() } else { format!("local-address {own}\n") };
        let options = chosen(&[
            (!setup.range, "port 1790\n"),
            (setup.md5, "tcp md5sig password right\n"),
            (setup.passive, "passive\n"),
            (setup.ttl_security, "ttl-security yes\n"),
            (!setup.ttl_security && !setup.ibgp, "multihop 5\n"),
            (setup.reflector, "route-reflector\n"),
            (setup.one_prefix, "max-prefix 1\n"),
            (!setup.ipv4_only, "announce IPv6 unicast\n"),
            (n == 0, setup.neighbour),
        ]);
        writeln!(
            config,
            "neighbor {neighbour} {{\nremote-as {remote}\n{local}announce IPv4 unicast
{options}\n}}"
        )
        .unwrap();
    }
    config += "allow from any\nallow to any\n";
    if !setup.transit() {
        config += "match to any inet6 set nexthop 2001:db8::12\n";
    }
    config += setup.more;
    config += "\n";
    // It requires a user that an unpacked package does not create, so it sees its own account files.
    let script = "cp /etc/passwd passwd; cp /etc/group group; mkdir -m 0755 empty
        echo \"_openbgpd:x:64999:64999::$PWD/empty:/usr/sbin/nologin\" >> passwd; echo '_openbgpd:x:64999:' >> group
        mount --bind passwd /etc/passwd && mount --bind group /etc/group && exec env LD_PRELOAD=\"$1\" \"$0\" -d -f conf";
    let unshare = PathBuf::from("unshare");
    Daemon::start(&unshare, &config, |dir| {
        std::fs::set_permissions(dir.join("conf"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        ["-m", "sh", "-c", script, program.to_str().unwrap(), setup.preload].map(String::from).to_vec()
    })
    .gently()
}

/// Starts ExaBGP. Commands are in the file `commands`, received routes in `updates`.
pub(crate) fn exabgp(program: &Path, setup: SessionSetup) -> Daemon {
    let (us, daemon_address, asn) =
        (&setup.neighbours()[0].0, setup.daemon_address(Kind::Exabgp), setup.asn(Kind::Exabgp));
    let options = chosen(&[
        (setup.md5, "md5-password right;"),
        (setup.passive || setup.range, "passive true; listen 1790;"),
        (!setup.passive && !setup.range, "connect 1790;"),
        (setup.ttl_security, "outgoing-ttl 255; incoming-ttl 255;"),
        (!setup.ttl_security, "outgoing-ttl 5;"),
    ]);
    let (nexthop, pairs, hop) = match setup.extended_next_hop {
        true => ("nexthop enable;", "nexthop { ipv4 unicast ipv6; }", "2001:db8::13"),
        false => ("", "", "192.0.2.13"),
    };
    let (family6, static6) = match setup.ipv4_only {
        true => ("", ""),
        false => ("ipv6 unicast;", "route fd00:13::/64 next-hop 2001:db8::13;"),
    };
    let config = format!(
        "process dump {{ run /bin/sh DIR/dump; encoder json; }}
        process feed {{ run /bin/sh DIR/feed; encoder text; }}
        neighbor {us} {{
          api {{ processes [ dump, feed ]; neighbor-changes; receive {{ parsed; update; notification; refresh; }} }}
          router-id 192.0.2.13; local-address {daemon_address}; local-as {asn}; peer-as 64512; {options}
          capability {{ route-refresh; {nexthop} {} }}
          family {{ ipv4 unicast; {family6} }} {pairs}
          static {{ route 10.13.0.0/24 next-hop {hop}; route 10.13.1.0/24 next-hop {hop}; {static6} {} }}
          {}
        }}",
        setup.neighbour, setup.family, setup.more
    );
    Daemon::start(program, &config, |dir| {
        // Its helpers run as user nobody, and sometimes get pipes that are not ready.
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
    .gently()
}
