//! Restarts and maintenance with other daemons: graceful restart in both roles (RFC 4724, RFC 8538), long-lived (RFC 9494),
//! and graceful shutdown (RFC 8326).

use std::process::Command;
use std::time::Duration;

use tortie::routing::PeerIntent;
use tortie::speaker::ToSpeaker;
use tortie_bgp::attr::{Attributes, community};
use tortie_bgp::{Drain, RestartPhase, RouteMatch, RouteQuery, RouteTable};

use crate::bird::Bird;
use crate::frr::Frr;
use crate::net;
use crate::node::{Node, cidr, intent, peer, wait};
use crate::others::Daemon;

const OURS: &str = "10.1.0.0/26";

/// A node whose only peer, `them`, is at 192.0.2.`last` in AS 65000 + `last`.
fn node(last: u32, edit: impl Fn(&mut PeerIntent)) -> Node {
    let mut us = intent("192.0.2.1:1790", 64512, &[OURS]);
    let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 65000 + last);
    them.ipv6 = false;
    edit(&mut them);
    us.peers.insert("them".into(), them);
    Node::start(us)
}

fn bird(options: &str) -> String {
    format!(
        "protocol bgp tortie from quick {{ local 192.0.2.9 port 1790 as 65009; neighbor 192.0.2.1 port 1790 as 64512;
           ipv4 {{ import all; export filter {{ if source != RTS_STATIC then reject; EXPORT accept; }}; }}; {options} }}"
    )
}

fn gobgp(options: &str, family: &str) -> Option<Gobgp> {
    let (program, cli) = (net::tool("gobgpd")?, net::tool("gobgp")?);
    let config = format!(
        r#"
        [global.config]
          as = 65010
          router-id = "192.0.2.10"
          port = 1790
          local-address-list = ["192.0.2.10"]
        [[neighbors]]
          [neighbors.config]
            neighbor-address = "192.0.2.1"
            peer-as = 64512
          [neighbors.timers.config]
            connect-retry = 1
          [neighbors.transport.config]
            local-address = "192.0.2.10"
            remote-port = 1790
          [neighbors.ebgp-multihop.config]
            enabled = true
            multihop-ttl = 5
          {options}
          [[neighbors.afi-safis]]
            [neighbors.afi-safis.config]
              afi-safi-name = "ipv4-unicast"
            {family}
        "#
    );
    let daemon = Daemon::start(&program, &config, |dir| {
        let conf = dir.join("conf").to_string_lossy().into_owned();
        ["-t", "toml", "-f", &conf, "--api-hosts", "192.0.2.10:50051"].map(String::from).to_vec()
    });
    let this = Gobgp { daemon, cli };
    wait("GoBGP to take a route", || {
        let added = this.run("global rib add 10.10.0.0/24");
        if added.status.success() { Ok(()) } else { Err(this.daemon.log()) }
    });
    Some(this)
}

struct Gobgp {
    daemon: Daemon,
    cli: std::path::PathBuf,
}

impl Gobgp {
    fn run(&self, arguments: &str) -> std::process::Output {
        Command::new(&self.cli).args(["-u", "192.0.2.10"]).args(arguments.split(' ')).output().unwrap()
    }

    fn rib(&self) -> String {
        String::from_utf8_lossy(&self.run("global rib").stdout).into_owned()
    }
}

/// The attributes in use of a prefix.
fn used(a: &Node, prefix: &str) -> Option<Attributes> {
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    Some((*found.first()?.paths.first()?.attributes).clone())
}

fn phase(a: &Node) -> RestartPhase {
    a.peer("them").unwrap().restart
}

/// The other end has just been killed: its route stays for the restart time.
fn helps(a: &Node, prefix: &str) {
    wait("the helper", || match phase(a) {
        RestartPhase::Waiting(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(a.route(prefix).is_some());
    assert!(!used(a, prefix).unwrap().has_community(community::LLGR_STALE));
}

/// Then it stays as long-lived stale, and goes.
fn helps_longer(a: &Node, prefix: &str) {
    helps(a, prefix);
    wait("long-lived stale", || match used(a, prefix) {
        Some(used) if used.has_community(community::LLGR_STALE) => Ok(()),
        other => Err(format!("{other:?} {:?}", phase(a))),
    });
    assert!(matches!(phase(a), RestartPhase::LongLived(_)), "{:?}", phase(a));
    assert!(a.route(prefix).is_some());
    a.has_not(prefix);
    assert_eq!(phase(a), RestartPhase::Idle);
}

const LONG: Duration = Duration::from_secs(60);
const BIRD_LLGR: &str =
    "graceful restart on; graceful restart time 1; long lived graceful restart on; long lived stale time 2;";

#[test]
fn graceful_restart_helper_of_bird() {
    if !net::enter(&[]) {
        return;
    }
    let config = bird("graceful restart on; graceful restart time 2;").replace("EXPORT", "");
    let Some(mut bird) = Bird::start(&config) else { return };
    let a = node(9, |_| ());
    a.has("10.9.0.0/24", "192.0.2.9");
    bird.kill();
    helps(&a, "10.9.0.0/24");
    a.has_not("10.9.0.0/24");
}

#[test]
fn long_lived_helper_of_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(mut bird) = Bird::start(&bird(BIRD_LLGR).replace("EXPORT", "")) else { return };
    let a = node(9, |p| p.long_lived_restart_time = Some(LONG));
    a.has("10.9.0.0/24", "192.0.2.9");
    bird.kill();
    helps_longer(&a, "10.9.0.0/24");
}

#[test]
fn long_lived_by_us_with_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = Bird::start(&bird(BIRD_LLGR).replace("EXPORT", "")) else { return };
    let mut a = node(9, |p| {
        p.restart_time = Duration::from_secs(1);
        p.long_lived_restart_time = Some(Duration::from_secs(2));
    });
    bird.says("show route for 10.1.0.0/26", "192.0.2.1");
    a.stop(true, "");
    bird.says("show route for 10.1.0.0/26 all", "(65535,6)");
    wait("BIRD to drop it", || match bird.ask("show route for 10.1.0.0/26") {
        text if text.contains("192.0.2.1") => Err(text),
        _ => Ok(()),
    });
}

#[test]
fn graceful_restart_by_us_with_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = Bird::start(&bird("graceful restart aware;").replace("EXPORT", "")) else { return };
    let mut a = node(9, |p| p.restart_time = Duration::from_secs(2));
    bird.says("show route for 10.1.0.0/26", "192.0.2.1");
    a.stop(true, "");
    bird.says("show protocols all tortie", "Neighbor graceful restart active");
    assert!(bird.ask("show route for 10.1.0.0/26").contains("192.0.2.1"));
    wait("BIRD to drop it", || match bird.ask("show route for 10.1.0.0/26") {
        text if text.contains("192.0.2.1") => Err(text),
        _ => Ok(()),
    });
}

const FRR_NETWORK: &str = "network 10.11.0.0/24\n exit-address-family\n";

#[test]
fn graceful_restart_helper_of_frr() {
    if !net::enter(&[]) {
        return;
    }
    let restart = "bgp graceful-restart\n bgp graceful-restart restart-time 2\n bgp graceful-restart preserve-fw-state\n";
    let Some(mut frr) = Frr::start(65011, "192.0.2.11", &format!("{FRR_NETWORK}{restart}")) else { return };
    let a = node(11, |_| ());
    a.has("10.11.0.0/24", "192.0.2.11");
    frr.kill();
    helps(&a, "10.11.0.0/24");
    a.has_not("10.11.0.0/24");
}

#[test]
fn long_lived_helper_of_frr() {
    if !net::enter(&[]) {
        return;
    }
    let restart = "bgp graceful-restart\n bgp graceful-restart restart-time 1\n bgp graceful-restart preserve-fw-state\n \
                   bgp long-lived-graceful-restart stale-time 2\n";
    let Some(mut frr) = Frr::start(65011, "192.0.2.11", &format!("{FRR_NETWORK}{restart}")) else { return };
    let a = node(11, |p| p.long_lived_restart_time = Some(LONG));
    a.has("10.11.0.0/24", "192.0.2.11");
    frr.kill();
    helps_longer(&a, "10.11.0.0/24");
}

#[test]
fn long_lived_by_us_with_frr() {
    if !net::enter(&[]) {
        return;
    }
    let restart = "bgp graceful-restart\n bgp long-lived-graceful-restart stale-time 2\n";
    let Some(frr) = Frr::start(65011, "192.0.2.11", &format!("{FRR_NETWORK}{restart}")) else { return };
    let mut a = node(11, |p| {
        p.restart_time = Duration::from_secs(1);
        p.long_lived_restart_time = Some(Duration::from_secs(2));
    });
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "192.0.2.1");
    a.stop(true, "");
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "llgr-stale");
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "Network not in table");
}

#[test]
fn graceful_restart_by_us_with_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = Frr::start(65011, "192.0.2.11", FRR_NETWORK) else { return };
    let mut a = node(11, |p| p.restart_time = Duration::from_secs(2));
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "192.0.2.1");
    a.stop(true, "");
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "stale");
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "Network not in table");
}

/// RFC 8538: FRR has the N bit, so what it says when it gives up is no end, and a Hard Reset of ours is one.
#[test]
fn hard_reset_sent_to_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = Frr::start(65011, "192.0.2.11", FRR_NETWORK) else { return };
    let mut a = node(11, |_| ());
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "192.0.2.1");
    a.stop(false, "bye");
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "Network not in table");
    frr.says("show bgp neighbors 192.0.2.1", "Hard Reset");
}

const GOBGP_GR: &str =
    "[neighbors.graceful-restart.config]\n enabled = true\n restart-time = 1\n long-lived-enabled = true";
const GOBGP_FAMILY: &str = "[neighbors.afi-safis.mp-graceful-restart.config]\n enabled = true\n
    [neighbors.afi-safis.long-lived-graceful-restart.config]\n enabled = true\n restart-time = 2";

#[test]
fn long_lived_helper_of_gobgp() {
    if !net::enter(&[]) {
        return;
    }
    let Some(mut gobgp) = gobgp(GOBGP_GR, GOBGP_FAMILY) else { return };
    let a = node(10, |p| p.long_lived_restart_time = Some(LONG));
    a.has("10.10.0.0/24", "192.0.2.10");
    gobgp.daemon.kill();
    helps_longer(&a, "10.10.0.0/24");
}

#[test]
fn graceful_restart_helper_of_gobgp() {
    if !net::enter(&[]) {
        return;
    }
    let restart =
        GOBGP_GR.replace("restart-time = 1", "restart-time = 2").replace("long-lived-enabled = true", "");
    let Some(mut gobgp) = gobgp(&restart, GOBGP_FAMILY.split_once("\n\n").unwrap().0) else { return };
    let a = node(10, |_| ());
    a.has("10.10.0.0/24", "192.0.2.10");
    gobgp.daemon.kill();
    helps(&a, "10.10.0.0/24");
    a.has_not("10.10.0.0/24");
}

#[test]
fn graceful_restart_and_long_lived_by_us_with_gobgp() {
    if !net::enter(&[]) {
        return;
    }
    let Some(gobgp) = gobgp(GOBGP_GR, GOBGP_FAMILY) else { return };
    let mut a = node(10, |p| {
        p.restart_time = Duration::from_secs(1);
        p.long_lived_restart_time = Some(Duration::from_secs(2));
    });
    let says = |what: &str, is: &dyn Fn(&str) -> bool| {
        wait(what, || match gobgp.rib() {
            rib if is(&rib) => Ok(()),
            rib => Err(format!("{rib}{}", gobgp.daemon.log())),
        });
    };
    says("our route", &|rib| rib.contains(OURS));
    a.stop(true, "");
    says("it to be long-lived stale", &|rib| rib.contains(OURS) && rib.contains("llgr-stale"));
    says("it to go", &|rib| !rib.contains(OURS));
}

/// Draining, withdrawing and back, as `shows` sees our route: `None` when it is gone, else whether it is marked.
fn drains(a: &Node, shows: &dyn Fn() -> Option<bool>) {
    for (drain, want) in [(Drain::Announce, Some(true)), (Drain::Withdraw, None), (Drain::Off, Some(false))] {
        a.handle.send(ToSpeaker::Drain(None, drain)).unwrap();
        if drain != Drain::Off {
            wait("the peer to take it", || {
                a.ask(|view| view.has_taken_all("them")).then_some(()).ok_or_else(|| "not yet".to_owned())
            });
        }
        wait("the route", || match shows() {
            now if now == want => Ok(()),
            now => Err(format!("{drain:?}: {now:?}")),
        });
    }
}

#[test]
fn graceful_shutdown_sent_to_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = Bird::start(&bird("").replace("EXPORT", "")) else { return };
    let a = node(9, |_| ());
    bird.says("show route for 10.1.0.0/26", "192.0.2.1");
    drains(&a, &|| {
        let text = bird.ask("show route for 10.1.0.0/26 all");
        text.contains("BGP.as_path").then(|| text.contains("(65535,0)"))
    });
}

#[test]
fn graceful_shutdown_sent_to_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = Frr::start(65011, "192.0.2.11", FRR_NETWORK) else { return };
    let a = node(11, |_| ());
    frr.says("show bgp ipv4 unicast 10.1.0.0/26", "192.0.2.1");
    drains(&a, &|| {
        let text = frr.ask("show bgp ipv4 unicast 10.1.0.0/26");
        // FRR takes it at its word.
        let marked = text.contains("graceful-shutdown") && text.contains("localpref 0");
        text.contains("192.0.2.1").then_some(marked)
    });
}

#[test]
fn graceful_shutdown_received_from_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(_bird) = Bird::start(&bird("").replace("EXPORT", "bgp_community.add((65535, 0));")) else {
        return;
    };
    let a = node(9, |_| ());
    a.has("10.9.0.0/24", "192.0.2.9");
    assert_eq!(used(&a, "10.9.0.0/24").unwrap().local_pref, Some(0));
}

#[test]
fn graceful_shutdown_received_from_frr() {
    if !net::enter(&[]) {
        return;
    }
    let more = format!("{FRR_NETWORK}bgp graceful-shutdown\n");
    let Some(_frr) = Frr::start(65011, "192.0.2.11", &more) else { return };
    let a = node(11, |_| ());
    a.has("10.11.0.0/24", "192.0.2.11");
    assert_eq!(used(&a, "10.11.0.0/24").unwrap().local_pref, Some(0));
}
