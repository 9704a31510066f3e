//! The routing daemons used by labs start in nodes and establish sessions with each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;

use common::{can_build, skip, within};
use tortie_topology::{Lab, Options, Running, Sandbox};

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
    // Set inside the sandbox of the test below: OpenBGPD needs a second user.
    let one_user = std::env::var_os("TORTIE_TEST_ONE_USER").is_some();
    let names =
        if one_user { &["frr", "gobgp", "exabgp"][..] } else { &["frr", "gobgp", "exabgp", "openbgpd"] };
    let mut text = LAB.to_owned();
    if one_user {
        let (begin, end) = (text.find("    openbgpd:").unwrap(), text.find("    exabgp:").unwrap());
        text.replace_range(begin..end, "    openbgpd: {image: x}\n");
    }
    let lab = Lab::from_text(&text, &dir.path().join("peers.clab.yml")).unwrap();
    let options = Options { rootless: one_user, ..common::options(dir.path()) };
    let lab = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
    for name in names {
        within(60, name, || asked(&lab, "bird", &["birdc", "show", "protocols", name], "Established"));
    }
    within(60, "frr has bird's route", || {
        asked(&lab, "frr", &["vtysh", "-c", "show ip bgp"], "192.0.2.0/24")
    });
    within(60, "frr's zebra has it in the kernel", || {
        asked(&lab, "frr", &["ip", "route", "show", "192.0.2.0/24"], "proto bgp")
    });
    within(60, "gobgp has bird's route", || {
        asked(&lab, "gobgp", &["gobgp", "global", "rib"], "192.0.2.0/24")
    });
    if !one_user {
        within(60, "openbgpd has bird's route", || {
            asked(&lab, "openbgpd", &["bgpctl", "show", "rib"], "192.0.2.0/24")
        });
        within(60, "bird has openbgpd's", || asked(&lab, "bird", &["birdc", "show", "route"], "10.3.0.0/24"));
    }
    for prefix in ["10.1.0.0/24", "10.4.0.0/24"] {
        within(60, prefix, || asked(&lab, "bird", &["birdc", "show", "route"], prefix));
    }
    within(60, "etcd answers", || {
        asked(&lab, "etcd", &["env", "ETCDCTL_API=3", "etcdctl", "put", "/a", "b"], "OK")
    });
    lab.down().unwrap();
}

#[test]
fn all_but_openbgpd_run_where_only_one_user_exists() {
    if let Err(e) = Sandbox::detect() {
        skip(&e.to_string());
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["every_daemon_reaches_established_and_exchanges_routes", "--exact", "--nocapture"]);
    command.env("TORTIE_TEST_ONE_USER", "1");
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    Sandbox::Rootless { user, group }.wrap(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");

    let lab =
        Lab::from_text("{name: x, topology: {nodes: {r: {kind: linux, image: openbgpd}}}}", Path::new("x"))
            .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = Options { rootless: true, ..common::options(dir.path()) };
    let error = lab.up(&options, &mut |_| ()).map(drop).unwrap_err().to_string();
    let want = "topology.nodes.r.image: bgpd drops to a user of its own, and a rootless lab has only one; \
                run this with sudo, or use BIRD, FRR, GoBGP or Tortie there";
    assert!(error.ends_with(want), "{error}");
}
