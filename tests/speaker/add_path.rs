//! Several paths of a prefix (RFC 7911) with BIRD, FRR, GoBGP, OpenBGPD and ExaBGP, received and sent: two paths come, one
//! goes alone, then the other, and a restart in between changes nothing.
//!
//! The paths are those of two nodes of ours with the same block, who are peers of the one that is to send it on. ExaBGP is
//! no router: it is told what to announce.

use std::path::{Path, PathBuf};
use std::process::Command;

use tortie::routing::AddPath;
use tortie_bgp::{PeerId, RouteMatch, RouteQuery, RouteTable};

use crate::net;
use crate::node::{Node, cidr, intent, peer, wait};
use crate::others::{Daemon, start_openbgpd};

const US: &str = "192.0.2.1:1790";
const BLOCK: &str = "10.5.0.0/26";

/// A daemon, how it is started and asked.
struct Kind {
    /// Last octet of its address; its AS is 65000 and that.
    last: u32,
    start: Box<dyn Fn() -> Daemon>,
    /// What it says of its routes.
    says: Box<dyn Fn(&Daemon) -> String>,
}

impl Kind {
    fn start(&self) -> Daemon {
        (self.start)()
    }

    fn asn(&self) -> u32 {
        65000 + self.last
    }

    fn at(&self) -> String {
        format!("192.0.2.{}:1790", self.last)
    }

    /// Waits until it has routes with these AS paths and none with those.
    fn has(&self, daemon: &Daemon, paths: &[&str], gone: &[&str]) {
        wait(&format!("{paths:?} and no {gone:?}"), || {
            let said = (self.says)(daemon);
            let right = paths.iter().all(|p| said.contains(p)) && !gone.iter().any(|p| said.contains(p));
            if right { Ok(()) } else { Err(format!("{said}\n{}", daemon.log())) }
        });
    }
}

/// A node with the block, at 192.0.2.`last`, as a peer of the router at this address.
fn origin(last: u32, router: &str, router_as: u32) -> Node {
    let mut us = intent(&format!("192.0.2.{last}:1790"), 64600 + last, &[BLOCK]);
    let mut them = peer(router, &format!("192.0.2.{last}"), router_as);
    them.ipv6 = false;
    us.peers.insert("router".into(), them);
    Node::start(us)
}

fn us(kind: &Kind) -> tortie::routing::RoutingIntent {
    let mut us = intent(US, 64512, &["10.1.0.0/26"]);
    let mut them = peer(&kind.at(), "192.0.2.1", kind.asn());
    them.ipv6 = false;
    them.add_path = Some(AddPath::new(true, 2));
    us.peers.insert("them".into(), them);
    us
}

/// Path identifiers and AS paths of what the peer sent of this prefix.
fn received(a: &Node, prefix: &str) -> Vec<(Option<u32>, String)> {
    let prefix = cidr(prefix);
    a.ask(move |view| {
        let id: PeerId = view.peer_id("them").unwrap();
        let query = RouteQuery { table: RouteTable::AdjIn(id), matching: RouteMatch::Exact(prefix) };
        let routes = view.routes(query, None, 10).into_iter().flat_map(|r| r.paths);
        let mut all: Vec<_> = routes.map(|p| (p.path_id, p.attributes.as_path.to_string())).collect();
        all.sort();
        all
    })
}

/// Waits until the peer's routes of a prefix have these AS paths, told apart by identifiers.
fn a_has(a: &Node, daemon: &Daemon, prefix: &str, paths: &[String]) {
    wait(&format!("{paths:?}"), || {
        let have = received(a, prefix);
        let mut as_paths: Vec<_> = have.iter().map(|(_, path)| path.clone()).collect();
        as_paths.sort();
        let ids: std::collections::BTreeSet<_> = have.iter().map(|(id, _)| *id).collect();
        if as_paths == paths && ids.len() == paths.len() && !ids.contains(&None) {
            return Ok(());
        }
        Err(format!("{have:?}\n{:?}\n{}", a.peer("them").and_then(|p| p.last_down), daemon.log()))
    });
}

/// The daemon passes on two paths.
fn receives(kind: &Kind) {
    let daemon = kind.start();
    let mut a = Node::start(us(kind));
    a.up("them");
    let (mut b, mut c) = (origin(2, &kind.at(), kind.asn()), origin(3, &kind.at(), kind.asn()));
    let path = |last: u32| format!("{} {}", kind.asn(), 64600 + last);
    a_has(&a, &daemon, BLOCK, &[path(2), path(3)]);
    let status = a.peer("them").unwrap();
    assert!(!status.session.unwrap().add_path_receive.is_empty());
    a.stop(true, "");
    drop(a);
    let a = Node::start(us(kind));
    a_has(&a, &daemon, BLOCK, &[path(2), path(3)]);
    c.stop(false, "");
    a_has(&a, &daemon, BLOCK, &[path(2)]);
    b.stop(false, "");
    a_has(&a, &daemon, BLOCK, &[]);
}

/// We pass on two paths.
fn sends(kind: &Kind) {
    let mut daemon = kind.start();
    let mut us = us(kind);
    for last in [2, 3] {
        let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        them.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), them);
    }
    let a = Node::start(us);
    let (mut b, mut c) = (origin(2, US, 64512), origin(3, US, 64512));
    let both = ["64512 64602", "64512 64603"];
    kind.has(&daemon, &both, &[]);
    let status = a.peer("them").unwrap();
    assert_eq!(status.families[0].advertised, 3);
    drop(daemon);
    daemon = kind.start();
    kind.has(&daemon, &both, &[]);
    c.stop(false, "");
    kind.has(&daemon, &both[..1], &both[1..]);
    b.stop(false, "");
    kind.has(&daemon, &[], &both);
}

/// Of three paths, as many go as the configuration says, without a new session.
fn sends_exactly(kind: &Kind) {
    let daemon = kind.start();
    let mut us = us(kind);
    for last in [2, 3, 4] {
        let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        them.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), them);
    }
    let mut a = Node::start(us);
    let _origins = [2, 3, 4].map(|last| origin(last, US, 64512));
    let all = ["64512 64602", "64512 64603", "64512 64604"];
    kind.has(&daemon, &all[..2], &all[2..]);
    for paths in [3, 1, 2] {
        a.intent.peers.get_mut("them").unwrap().add_path = Some(AddPath::new(true, paths));
        a.apply();
        let (sent, kept) = all.split_at(paths.into());
        kind.has(&daemon, sent, kept);
    }
    assert_eq!(a.peer("them").unwrap().flaps, 0);
}

fn answer(program: &Path, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn in_dir(dir: &Path, names: &[&str]) -> Vec<String> {
    names.iter().map(|n| dir.join(n).to_string_lossy().into_owned()).collect()
}

fn bird() -> Option<Kind> {
    let (program, cli) = (net::tool("bird")?, net::tool("birdc")?);
    let config = "log stderr all; router id 192.0.2.9; protocol device { scan time 3600; }
        template bgp quick { local 192.0.2.9 port 1790 as 65009; multihop; strict bind yes;
          connect delay time 1; connect retry time 1; error wait time 1, 1;
          ipv4 { import all; export all; add paths on; }; }
        protocol bgp tortie from quick { neighbor 192.0.2.1 port 1790 as 64512; }
        protocol bgp b from quick { neighbor 192.0.2.2 port 1790 as 64602; ipv4 { add paths off; }; }
        protocol bgp c from quick { neighbor 192.0.2.3 port 1790 as 64603; ipv4 { add paths off; }; }";
    let start = move || {
        Daemon::start(&program, config, |dir| {
            let [conf, ctl, pid] = <[String; 3]>::try_from(in_dir(dir, &["conf", "ctl", "pid"])).unwrap();
            ["-f".into(), "-c".into(), conf, "-s".into(), ctl, "-P".into(), pid].into()
        })
    };
    let says = move |daemon: &Daemon| {
        let ask = format!("show route for {BLOCK} all");
        let ctl = daemon.file("ctl");
        let mut arguments = vec!["-s", &ctl];
        arguments.extend(ask.split(' '));
        answer(&cli, &arguments)
    };
    Some(Kind { last: 9, start: Box::new(start), says: Box::new(says) })
}

fn frr() -> Option<Kind> {
    let (program, cli) = (net::tool("frr-bgpd")?, net::tool("vtysh")?);
    let mut config = "router bgp 65011
         bgp router-id 192.0.2.11
         no bgp ebgp-requires-policy
        "
    .to_owned();
    for (last, asn) in [(1, 64512), (2, 64602), (3, 64603)] {
        for option in [
            &format!("remote-as {asn}"),
            "port 1790",
            "ebgp-multihop",
            "update-source 192.0.2.11",
            "timers connect 1",
        ] {
            config.push_str(&format!(" neighbor 192.0.2.{last} {option}\n"));
        }
    }
    config.push_str(
        " address-family ipv4 unicast\n  neighbor 192.0.2.1 addpath-tx-all-paths\n exit-address-family\n",
    );
    let start = move || {
        let daemon = Daemon::start(&program, &config, |dir| {
            let fixed =
                "-p 1790 -l 192.0.2.11 -Z -S -u root -g root -P 0 --log stdout".split(' ').map(String::from);
            let [conf, pid, vty] = <[String; 3]>::try_from(in_dir(dir, &["conf", "pid", ""])).unwrap();
            fixed.chain(["-f".into(), conf, "-i".into(), pid, "--vty_socket".into(), vty]).collect()
        });
        std::fs::write(daemon.file("vtysh.conf"), "username root nopassword\n").unwrap();
        daemon
    };
    let says = move |daemon: &Daemon| {
        let dir = daemon.file("");
        let show = format!("show bgp ipv4 unicast {BLOCK}");
        answer(&cli, &["--config_dir", &dir, "--vty_socket", &dir, "-c", &show])
    };
    Some(Kind { last: 11, start: Box::new(start), says: Box::new(says) })
}

fn gobgp() -> Option<Kind> {
    let (program, cli) = (net::tool("gobgpd")?, net::tool("gobgp")?);
    let mut config = r#"
        [global.config]
          as = 65010
          router-id = "192.0.2.10"
          port = 1790
          local-address-list = ["192.0.2.10"]
    "#
    .to_owned();
    for (last, asn) in [(1, 64512), (2, 64602), (3, 64603)] {
        config.push_str(&format!(
            r#"
        [[neighbors]]
          [neighbors.config]
            neighbor-address = "192.0.2.{last}"
            peer-as = {asn}
          [neighbors.timers.config]
            connect-retry = 1
          [neighbors.transport.config]
            local-address = "192.0.2.10"
            remote-port = 1790
          [neighbors.ebgp-multihop.config]
            enabled = true
            multihop-ttl = 5
          [[neighbors.afi-safis]]
            [neighbors.afi-safis.config]
              afi-safi-name = "ipv4-unicast"
            [neighbors.afi-safis.add-paths.config]
              receive = true
              send-max = 8
        "#
        ));
    }
    let start = move || {
        Daemon::start(&program, &config, |dir| {
            let [conf] = <[String; 1]>::try_from(in_dir(dir, &["conf"])).unwrap();
            ["-t", "toml", "-f", &conf, "--api-hosts", "192.0.2.10:50051"].map(String::from).to_vec()
        })
    };
    let says = move |_: &Daemon| answer(&cli, &["-u", "192.0.2.10", "global", "rib", BLOCK]);
    Some(Kind { last: 10, start: Box::new(start), says: Box::new(says) })
}

fn open() -> Option<Kind> {
    let (program, cli) = (net::tool("openbgpd")?, net::tool("bgpctl")?);
    let mut config = "AS 65012
        router-id 192.0.2.12
        listen on 192.0.2.12 port 1790
        fib-update no
        socket \"DIR/socket\"
        "
    .to_owned();
    for (last, asn) in [(1, 64512), (2, 64602), (3, 64603)] {
        let paths = if last == 1 { "announce add-path recv yes\nannounce add-path send all\n" } else { "" };
        config.push_str(&format!(
            "neighbor 192.0.2.{last} {{
              remote-as {asn}
              port 1790
              local-address 192.0.2.12
              multihop 5
              {paths}
            }}\n"
        ));
    }
    config.push_str("allow from any\nallow to any\n");
    let start = move || start_openbgpd(&program, &config);
    let says = move |daemon: &Daemon| answer(&cli, &["-s", &daemon.file("socket"), "show", "rib", BLOCK]);
    Some(Kind { last: 12, start: Box::new(start), says: Box::new(says) })
}

/// What it is told to announce stands in the file `commands`.
fn exabgp() -> Option<Kind> {
    let program: PathBuf = net::tool("exabgp")?;
    let config = "process dump { run /bin/sh DIR/dump; encoder json; }
      process feed { run /bin/sh DIR/feed; encoder text; }
      neighbor 192.0.2.1 {
        api { processes [ dump, feed ]; receive { parsed; update; } }
        router-id 192.0.2.13; local-address 192.0.2.13; local-as 65013; peer-as 64512; connect 1790;
        capability { add-path send/receive; }
        family { ipv4 unicast; }
      }";
    let start = move || {
        Daemon::start(&program, config, |dir| {
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
    };
    let says = |daemon: &Daemon| {
        routes_of_exabgp(&std::fs::read_to_string(daemon.file("updates")).unwrap_or_default())
    };
    Some(Kind { last: 13, start: Box::new(start), says: Box::new(says) })
}

/// ExaBGP keeps no routes: what they are follows from its updates.
fn routes_of_exabgp(updates: &str) -> String {
    let mut routes = std::collections::BTreeMap::new();
    for line in updates.lines() {
        let Ok(json) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let update = &json["neighbor"]["message"]["update"];
        let of = |list: &serde_json::Value| -> Vec<(String, String)> {
            let entries = list.as_array().into_iter().flatten();
            entries.map(|e| (e["nlri"].to_string(), e["path-information"].to_string())).collect()
        };
        for key in of(&update["withdraw"]["ipv4 unicast"]) {
            routes.remove(&key);
        }
        for (_, list) in update["announce"]["ipv4 unicast"].as_object().into_iter().flatten() {
            let path = update["attribute"]["as-path"].to_string().replace([' ', ','], " ");
            for key in of(list) {
                routes.insert(key, path.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    format!("{routes:?}")
}

#[test]
fn add_path_received_from_bird() {
    if net::enter(&[])
        && let Some(kind) = bird()
    {
        receives(&kind);
    }
}

#[test]
fn add_path_sent_to_bird() {
    if net::enter(&[])
        && let Some(kind) = bird()
    {
        sends(&kind);
        sends_exactly(&kind);
    }
}

#[test]
fn add_path_received_from_frr() {
    if net::enter(&[])
        && let Some(kind) = frr()
    {
        receives(&kind);
    }
}

#[test]
fn add_path_sent_to_frr() {
    if net::enter(&[])
        && let Some(kind) = frr()
    {
        sends(&kind);
    }
}

#[test]
fn add_path_received_from_gobgp() {
    if net::enter(&[])
        && let Some(kind) = gobgp()
    {
        receives(&kind);
    }
}

#[test]
fn add_path_sent_to_gobgp() {
    if net::enter(&[])
        && let Some(kind) = gobgp()
    {
        sends(&kind);
    }
}

#[test]
fn add_path_received_from_openbgpd() {
    if net::enter(&[])
        && let Some(kind) = open()
    {
        receives(&kind);
    }
}

#[test]
fn add_path_sent_to_openbgpd() {
    if net::enter(&[])
        && let Some(kind) = open()
    {
        sends(&kind);
    }
}

#[test]
fn add_path_received_from_exabgp() {
    if !net::enter(&[]) {
        return;
    }
    let Some(kind) = exabgp() else { return };
    let mut daemon = kind.start();
    let route = |word: &str, id: u32| {
        format!("{word} route 10.13.0.0/24 next-hop 192.0.2.13 path-information 0.0.0.{id} med {id}\n")
    };
    let tell = |daemon: &Daemon, commands: &str| {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().append(true).open(daemon.file("commands"));
        file.unwrap().write_all(commands.as_bytes()).unwrap();
    };
    let a = Node::start(us(&kind));
    let announce = route("announce", 1) + &route("announce", 2);
    let ids = |ids: &[u32]| {
        wait(&format!("paths {ids:?}"), || {
            let have = received(&a, "10.13.0.0/24");
            let right = have.iter().map(|(id, _)| *id).eq(ids.iter().map(|id| Some(*id)));
            if right { Ok(()) } else { Err(format!("{have:?}")) }
        });
    };
    tell(&daemon, &announce);
    ids(&[1, 2]);
    drop(daemon);
    ids(&[]);
    daemon = kind.start();
    tell(&daemon, &announce);
    ids(&[1, 2]);
    tell(&daemon, &route("withdraw", 1));
    ids(&[2]);
    tell(&daemon, &route("withdraw", 2));
    ids(&[]);
}

#[test]
fn add_path_sent_to_exabgp() {
    if net::enter(&[])
        && let Some(kind) = exabgp()
    {
        sends(&kind);
    }
}
