//! Sessions between link-local addresses (RFC 8950, RFC 4861) with BIRD and GoBGP, both families over one
//! session. Those with FRR, kernels and packets are in `tests/agent/interop`.

use std::process::Command;
use std::time::Duration;

use tortie_bgp::State;

use crate::rig::bird::Bird;
use crate::rig::daemon::Daemon;
use crate::rig::net::{self, Far, ip};
use crate::rig::node::{Node, addr, intent, peer, wait};
use crate::rig::{V4, V6};

/// Our address on the link, and that of the daemon.
const OURS: &str = "fe80::1";
const THEIRS: &str = "fe80::9";

/// Creates a link whose ends have only these link-local addresses.
fn link(test: &str) -> Option<Far> {
    let far = Far::make(test)?;
    for (device, address) in [("near", OURS), ("far", THEIRS)] {
        let words = |device_words: &[&str]| match device {
            "near" => ip(device_words),
            _ => far.ip(device_words),
        };
        words(&["link", "set", device, "addrgenmode", "none"]);
        words(&["addr", "flush", "dev", device, "scope", "link"]);
        words(&["addr", "add", &format!("{address}/64"), "dev", device, "nodad"]);
    }
    Some(far)
}

/// Starts a node whose peer `daemon` is on the link. `received`: its address is learned from router
/// advertisements.
fn node(asn: u32, we_dial: bool, received: bool) -> Node {
    let mut us = intent("198.51.100.1:1790", 64512, &[V4, V6]);
    let mut peer_daemon = peer(&format!("[{}]:1790", if received { "::" } else { THEIRS }), OURS, asn);
    (peer_daemon.interface, peer_daemon.local) = (Some("near".to_owned()), None);
    peer_daemon.dial_after = we_dial.then_some(Duration::ZERO);
    us.peers.insert("daemon".into(), peer_daemon);
    Node::start(us)
}

/// Checks that the session is up, was opened by the expected end, and has these routes over the link.
fn carries(a: &Node, we_dial: bool, routes: [&str; 2], log: &dyn Fn() -> String) {
    wait("the session", || match a.peer("daemon") {
        Some(p) if p.state == State::Established => Ok(()),
        p => Err(format!("{p:#?}\n{}", log())),
    });
    let session = a.peer("daemon").unwrap().session.unwrap();
    assert_eq!(session.remote.port() == 1790, we_dial, "{session:?}");
    assert!(session.extended_next_hop);
    for prefix in routes {
        wait(&format!("{prefix} over the link"), || match a.route(prefix).as_deref() {
            Some([hop]) if hop.addr() == addr(THEIRS) && hop.interface() > 0 => Ok(()),
            other => Err(format!("{other:?}\n{}", log())),
        });
    }
}

/// BIRD sends router advertisements, and accepts any peer on the link, or dials us.
fn bird(test: &str, we_dial: bool) {
    let Some(far) = link(test) else { return };
    let neighbour = match we_dial {
        true => "neighbor range fe80::/10 port 1790 external; interface \"far\"; passive on;".to_owned(),
        false => format!("neighbor {OURS}%far port 1790 as 64512;"),
    };
    let config = format!(
        "protocol radv {{ interface \"far\" {{ min ra interval 3; max ra interval 4; }}; }}
         protocol bgp tortie {{ local port 1790 as 65009; {neighbour} direct;
           connect delay time 1; connect retry time 1; error wait time 1, 1;
           ipv4 {{ import all; export where source = RTS_STATIC; extended next hop on; }};
           ipv6 {{ import all; export where source = RTS_STATIC; }}; }}"
    );
    let Some(bird) = Bird::start_in(Some(&far.0), &config) else { return };
    let a = node(65009, we_dial, true);
    carries(&a, we_dial, ["10.9.0.0/24", "fd00:9::/64"], &|| bird.log());
    for prefix in [V4, V6] {
        bird.wait_for_output(&format!("show route for {prefix} all"), &format!("via {OURS} on far"));
    }
}

/// An interface that goes down loses its address, and gets it back as tentative: peer and session stay.
#[test]
fn unnumbered_link_that_flaps() {
    let Some(far) = link("un-fl") else { return };
    let config = format!(
        "protocol bgp tortie {{ local port 1790 as 65009; neighbor {OURS}%far port 1790 as 64512; direct; check link no;
           passive on; ipv4 {{ import all; export none; extended next hop on; }};
           ipv6 {{ import all; export where source = RTS_STATIC; }}; }}"
    );
    let Some(bird) = Bird::start_in(Some(&far.0), &config) else { return };
    let mut a = node(65009, true, false);
    a.wait_established("daemon");
    bird.wait_for_output(&format!("show route for {V6} all"), &format!("via {OURS} on far"));
    // The local port of our dial.
    let connection = |a: &Node| a.peer("daemon").and_then(|p| p.session).map(|s| s.local);
    let before = connection(&a);
    ip(&["link", "set", "near", "down"]);
    a.apply();
    a.ask(|_| ());
    ip(&["link", "set", "near", "up"]);
    ip(&["addr", "add", &format!("{OURS}/64"), "dev", "near"]);
    a.apply();
    a.ask(|_| ());
    // Later announcements arrive in the existing session.
    let more = intent("198.51.100.1:1790", 64512, &[V4, V6, "fd00:1:2::/64"]);
    (a.intent.originated, a.intent.view) = (more.originated, more.view);
    a.apply();
    bird.wait_for_output("show route for fd00:1:2::/64 all", &format!("via {OURS} on far"));
    assert_eq!(connection(&a), before, "another session");
}

#[test]
fn unnumbered_dialled_to_bird() {
    bird("un-bd", true);
}

#[test]
fn unnumbered_accepted_from_bird() {
    bird("un-ba", false);
}

/// GoBGP requires us in its kernel's neighbour table at start (its manual: ping once); our router
/// advertisements put us there. It sends none, so its address is configured.
fn gobgp(test: &str, we_dial: bool) {
    let [Some(program), Some(cli)] = ["gobgpd", "gobgp"].map(net::tool) else { return };
    let Some(far) = link(test) else { return };
    let a = node(65010, we_dial, false);
    wait("the neighbour that our advertisement makes", || {
        let list =
            Command::new("ip").args(["-n", &far.0, "-6", "neigh", "show", "dev", "far"]).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        match list.lines().any(|l| l.starts_with(&format!("{OURS} lladdr "))) {
            true => Ok(()),
            false => Err(list),
        }
    });
    let config = format!(
        "[global.config]\nas = 65010\nrouter-id = \"192.0.2.10\"\nport = 1790
[[neighbors]]
[neighbors.config]\nneighbor-interface = \"far\"\npeer-as = 64512
[neighbors.timers.config]\nconnect-retry = 1\nidle-hold-time-after-reset = 1
[neighbors.transport.config]\nremote-port = 1790\npassive-mode = {we_dial}
[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"ipv4-unicast\"
[[neighbors.afi-safis]]\n[neighbors.afi-safis.config]\nafi-safi-name = \"ipv6-unicast\"\n"
    );
    let daemon = Daemon::start_in(Some(&far.0), &program, &config, |dir| {
        let conf = dir.join("conf").to_string_lossy().into_owned();
        ["-t", "toml", "-f", &conf, "--api-hosts", "127.0.0.1:50051"].map(String::from).into()
    });
    let ask = |words: &str| {
        let out = net::command(Some(&far.0), &cli).args(words.split(' ')).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
    };
    for route in ["10.10.0.0/24", "-a ipv6 fd00:10::/64"] {
        wait("GoBGP to take a route", || match ask(&format!("global rib add {route}")) {
            answer if answer.is_empty() => Ok(()),
            answer => Err(format!("{answer}\n{}", daemon.log())),
        });
    }
    carries(&a, we_dial, ["10.10.0.0/24", "fd00:10::/64"], &|| daemon.log());
    for (family, prefix) in [("ipv4", V4), ("ipv6", V6)] {
        wait(&format!("{prefix} at GoBGP"), || match ask(&format!("global rib {prefix} -a {family}")) {
            said if said.contains(OURS) => Ok(()),
            said => Err(format!("{said}\n{}", daemon.log())),
        });
    }
}

#[test]
fn unnumbered_dialled_to_gobgp() {
    gobgp("un-gd", true);
}

#[test]
fn unnumbered_accepted_from_gobgp() {
    gobgp("un-ga", false);
}
