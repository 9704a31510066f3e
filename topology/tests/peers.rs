//! The daemons that labs use start in nodes and reach Established with each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use common::{can_build, skip, up, within};
use tortie_topology::Running;

const LAB: &str = r#"
name: peers
topology:
  defaults: {kind: linux, network-mode: none}
  nodes:
    bird: {image: "bird:2", binds: ["bird.conf:/etc/bird/bird.conf:ro"]}
    frr: {image: "frr:8", binds: ["frr.conf:/etc/frr/frr.conf:ro"]}
    gobgp: {image: "gobgp:3", binds: ["gobgpd.toml:/etc/gobgp/gobgpd.toml:ro"]}
    openbgpd:
      image: "openbgpd:7"
      binds: ["bgpd.conf:/etc/bgpd/bgpd.conf.lab:ro"]
      entrypoint: sh -c
      cmd: '"install -m 600 /etc/bgpd/bgpd.conf.lab /run/bgpd.conf && exec bgpd -d -f /run/bgpd.conf"'
    exabgp: {image: "exabgp:4", binds: ["exabgp.conf:/etc/exabgp/exabgp.conf:ro"]}
    etcd: {image: "etcd:3.4", cmd: etcd --data-dir /var/lib/tortie/etcd}
  links:
    - {endpoints: ["bird:eth1", "frr:eth1"], ipv4: [10.9.1.1/24, 10.9.1.2/24]}
    - {endpoints: ["bird:eth2", "gobgp:eth1"], ipv4: [10.9.2.1/24, 10.9.2.2/24]}
    - {endpoints: ["bird:eth3", "openbgpd:eth1"], ipv4: [10.9.3.1/24, 10.9.3.2/24]}
    - {endpoints: ["bird:eth4", "exabgp:eth1"], ipv4: [10.9.4.1/24, 10.9.4.2/24]}
"#;

fn configure(dir: &Path) {
    let mut bird =
        "router id 10.9.0.1;\nprotocol device {}\nprotocol static { ipv4; route 192.0.2.0/24 blackhole; }\n"
            .to_owned();
    for (number, name) in [(1, "frr"), (2, "gobgp"), (3, "openbgpd"), (4, "exabgp")] {
        bird += &format!(
            "protocol bgp {name} {{ local 10.9.{number}.1 as 65000; neighbor 10.9.{number}.2 as {}; connect delay time 1;\n\
             connect retry time 2; error wait time 1, 2; ipv4 {{ import all; export all; }}; }}\n",
            65000 + number
        );
    }
    let files = [
        ("bird.conf", bird.as_str()),
        (
            "frr.conf",
            "router bgp 65001\n bgp router-id 10.9.1.2\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
             neighbor 10.9.1.1 remote-as 65000\n address-family ipv4 unicast\n  network 10.1.0.0/24\n exit-address-family\n",
        ),
        (
            "gobgpd.toml",
            "[global.config]\nas = 65002\nrouter-id = \"10.9.2.2\"\n[[neighbors]]\n[neighbors.config]\n\
             neighbor-address = \"10.9.2.1\"\npeer-as = 65000\n[neighbors.timers.config]\nconnect-retry = 1\n",
        ),
        (
            "bgpd.conf",
            "AS 65003\nrouter-id 10.9.3.2\nneighbor 10.9.3.1 {\n remote-as 65000\n announce IPv4 unicast\n}\n\
             network 10.3.0.0/24\nallow from any\nallow to any\n",
        ),
        (
            "exabgp.conf",
            "neighbor 10.9.4.1 {\n router-id 10.9.4.2; local-address 10.9.4.2; local-as 65004; peer-as 65000;\n \
             family { ipv4 unicast; }\n static { route 10.4.0.0/24 next-hop 10.9.4.2; }\n}\n",
        ),
    ];
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

fn asked(lab: &Running, node: &str, command: &[&str], want: &str) -> Result<(), String> {
    let output = lab.exec(node, command).unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if text.contains(want) {
        return Ok(());
    }
    let log = std::fs::read_to_string(lab.log_of(node).unwrap()).unwrap_or_default();
    Err(format!("`{want}` not in\n{text}\nlog of {node}:\n{log}"))
}

#[test]
fn every_daemon_reaches_established_and_exchanges_routes() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    if common::options(dir.path()).find("gobgpd").is_none() {
        skip("the daemons are not here: run make peers");
        return;
    }
    configure(dir.path());
    let lab = up(LAB, dir.path());
    for name in ["frr", "gobgp", "openbgpd", "exabgp"] {
        within(30, name, || asked(&lab, "bird", &["birdc", "show", "protocols", name], "Established"));
    }
    within(20, "frr has bird's route", || {
        asked(&lab, "frr", &["vtysh", "-c", "show ip bgp"], "192.0.2.0/24")
    });
    within(20, "frr's zebra has it in the kernel", || {
        asked(&lab, "frr", &["ip", "route", "show", "192.0.2.0/24"], "proto bgp")
    });
    within(20, "gobgp has bird's route", || {
        asked(&lab, "gobgp", &["gobgp", "global", "rib"], "192.0.2.0/24")
    });
    within(20, "openbgpd has bird's route", || {
        asked(&lab, "openbgpd", &["bgpctl", "show", "rib"], "192.0.2.0/24")
    });
    for prefix in ["10.1.0.0/24", "10.3.0.0/24", "10.4.0.0/24"] {
        within(20, prefix, || asked(&lab, "bird", &["birdc", "show", "route"], prefix));
    }
    within(20, "etcd answers", || {
        asked(&lab, "etcd", &["env", "ETCDCTL_API=3", "etcdctl", "put", "/a", "b"], "OK")
    });
    lab.down().unwrap();
}
