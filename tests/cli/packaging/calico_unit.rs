//! Calico as a systemd unit: `migrate adopt --unit` stops it and enables Tortie's unit at boot instead,
//! `rollback` starts it again, under a running systemd. The unit consists of BIRD with Calico's
//! configuration, a program with Felix's name that only sleeps, and Felix's rules, written by the real
//! iptables.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::machine::Machine;
use super::systemd::package;
use crate::common::command::{stderr, stdout};
use crate::common::felix_rules::calico2::Felix;

const BIRD: &str = "router id 192.0.2.13;
protocol static { ipv4; route 10.244.0.0/26 blackhole; }
protocol kernel { learn; persist; scan time 2; metric 0; graceful restart; ipv4 { import all; export all; }; }
protocol device { scan time 2; }
protocol direct { ipv4; interface -\"cali*\", \"*\"; }
";

const UNIT: &str = "[Service]
ExecStart=/mnt/calico-node
RuntimeDirectory=calico
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
";

/// Returns the folder of unpacked peer programs.
fn peers() -> Option<PathBuf> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers/bin");
    let dir = std::env::var_os("TORTIE_PEERS").map_or_else(|| PathBuf::from(own), PathBuf::from);
    let whole = ["bird", "iptables-nft-save"].iter().all(|name| dir.join(name).is_file());
    assert!(whole || std::env::var_os("CI").is_none(), "bird or iptables is missing in CI");
    if !whole {
        eprintln!("skipped: no bird or iptables in {}; tests/tools/peers.sh brings them", dir.display());
    }
    whole.then_some(dir)
}

fn program(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Creates the files of the unit, which the machine sees below /mnt.
fn calico(files: &Path, peers: &Path) {
    let bin = files.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let root = peers.parent().unwrap().join("root");
    let root = root.display();
    for family in ["iptables", "ip6tables"] {
        for what in ["", "-save", "-restore"] {
            let script = format!(
                "for d in {root}/usr/lib/*-linux-gnu; do l=$d; done\n\
                 export LD_LIBRARY_PATH=$l:{root}/lib/${{l##*/}} XTABLES_LIBDIR=$l/xtables\n\
                 exec {root}/usr/sbin/xtables-nft-multi {family}{what} \"$@\""
            );
            program(&bin.join(format!("{family}-nft{what}")), &script);
        }
    }
    std::fs::copy("/bin/sleep", files.join("calico-felix")).unwrap();
    // Rules for one workload whose profile allows everything, without sets.
    let felix =
        Felix { v4: true, ipip: false, masquerade: false, interface: "cali1", profile: "open", policy: None };
    std::fs::write(files.join("felix.rules"), felix.rules()).unwrap();
    std::fs::write(files.join("bird.conf"), BIRD).unwrap();
    std::fs::write(files.join("calico-node.service"), UNIT).unwrap();
    let node = format!(
        "PATH=/mnt/bin:$PATH\n\
         iptables-nft-save | grep -q cali-FORWARD || iptables-nft-restore --noflush < /mnt/felix.rules\n\
         /mnt/calico-felix infinity &\n\
         exec {}/bird -f -R -s /run/calico/bird.ctl -c /mnt/bird.conf",
        peers.display()
    );
    program(&files.join("calico-node"), &node);
}

/// Lists routes and rules without counters and times; routes of neither daemon are omitted.
fn kernel(machine: &Machine) -> String {
    let rules = machine.must("PATH=/mnt/bin:$PATH; iptables-nft-save; ip6tables-nft-save");
    let mut rules: Vec<&str> = rules.lines().filter(|line| line.starts_with("-A")).collect();
    // Chains are listed in the order of their creation; rules within a chain keep their order.
    rules.sort_by_key(|line| line.split(' ').nth(1));
    let routes = machine.must("ip route; ip -6 route show proto bird");
    routes.lines().map(str::trim_end).chain(rules).collect::<Vec<_>>().join("\n")
}

/// Runs `tortie migrate WORDS -o json`.
fn migrate(machine: &Machine, words: &str) -> Value {
    let output = machine.run(&format!("PATH=/mnt/bin:$PATH tortie -o json migrate {words}"));
    let log = machine.journal();
    assert!(output.status.success(), "{words}: {}{}\n{log}", stdout(&output), stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn enabled(machine: &Machine, unit: &str) -> String {
    stdout(&machine.run(&format!("systemctl is-enabled {unit}"))).trim().to_owned()
}

/// Returns the names of Calico's running programs.
fn daemons(machine: &Machine) -> Vec<String> {
    let all = machine.must("cat /proc/[0-9]*/comm 2>/dev/null; true");
    let mut all: Vec<String> =
        all.lines().filter(|name| ["bird", "calico-felix"].contains(name)).map(str::to_owned).collect();
    all.sort();
    all
}

#[test]
fn a_unit_of_calico_gives_its_place_to_ours_and_gets_it_back() {
    let Some(peers) = peers() else { return };
    let files = tempfile::tempdir().unwrap();
    if package(files.path()).is_none() {
        return;
    }
    calico(files.path(), &peers);
    let data = serde_json::json!({
        "/calico/v1/Ready": "true",
        "/calico/bgp/v1/host/rack1-n03/ip_addr_v4": "192.0.2.13",
        "/calico/bgp/v1/host/rack1-n03/network_v4": "192.0.2.0/24",
        "/calico/v1/ipam/v4/pool/10.244.0.0-16": r#"{"cidr":"10.244.0.0/16"}"#,
        "/calico/v1/config/Ipv6Support": "false",
        "/calico/v1/policy/profile/open/rules": r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
        "/calico/v1/policy/profile/open/tags": "[]",
        "/calico/v1/host/rack1-n03/workload/cni/w1/endpoint/eth0":
            r#"{"state":"active","name":"cali1","profile_ids":["open"],"ipv4_nets":["10.244.0.1/32"]}"#,
    });
    std::fs::write(files.path().join("data.json"), data.to_string()).unwrap();
    let Some(machine) = Machine::boot(files.path()) else { return };
    machine.must("dpkg -i --no-triggers --force-depends /mnt/tortie.deb");
    machine.must(
        "tortie store import /mnt/data.json && tortie ipam assign --node rack1-n03 --ip 10.244.0.1 && \
         ip link add cali1 type veth peer name w1 && ip link set cali1 up && ip link set w1 up && \
         ip route add 10.244.0.1/32 dev cali1 scope link && sysctl -qw net.ipv4.ip_forward=1",
    );
    machine.must("cp /mnt/calico-node.service /etc/systemd/system/ && systemctl daemon-reload && systemctl enable --now calico-node");
    machine.until("Calico runs", |machine| {
        let (routes, daemons) = (kernel(machine), daemons(machine));
        let there = routes.contains("blackhole 10.244.0.0/26 proto bird") && routes.contains("cali-fw-cali1");
        if there && daemons == ["bird", "calico-felix"] {
            Ok(())
        } else {
            Err(format!("{daemons:?} {routes}"))
        }
    });
    let before = kernel(&machine);

    // Without `--unit`, the unit is suggested by name.
    let check = machine.run("PATH=/mnt/bin:$PATH tortie migrate adopt");
    assert!(check.status.code() == Some(2), "{check:?}");
    assert!(stderr(&check).contains("--unit calico-node.service"), "{}", stderr(&check));
    assert_eq!(daemons(&machine).len(), 2);

    let report = migrate(&machine, "adopt --unit calico-node.service --wait 30");
    assert_eq!(report["phase"], "adopted", "{report:#}");
    let next = report["next"].to_string();
    assert!(!next.contains("systemctl disable") && !next.contains("systemctl enable"), "{next}");
    // The unit is not restarted, even after its restart delay; the next boot starts Tortie.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(daemons(&machine).is_empty(), "{:?}", daemons(&machine));
    assert_ne!(machine.property("calico-node", "ActiveState"), "active");
    assert_eq!(machine.property("tortie", "ActiveState"), "active");
    assert_eq!([enabled(&machine, "calico-node"), enabled(&machine, "tortie")], ["disabled", "enabled"]);
    let ours = kernel(&machine);
    assert!(!ours.contains("cali-") && !ours.contains("proto bird"), "{ours}");
    assert!(ours.contains("blackhole 10.244.0.0/26 proto 179"), "{ours}");

    // Rollback with the stored unit name: the unit is as before, also at boot.
    let report = migrate(&machine, "rollback --wait 30");
    assert_eq!(report["phase"], "rolled-back", "{report:#}");
    machine.until("Calico is back", |machine| {
        let (now, daemons) = (kernel(machine), daemons(machine));
        if now == before && daemons.len() == 2 {
            Ok(())
        } else {
            Err(format!("{daemons:?}\n{now}\nbefore:\n{before}"))
        }
    });
    assert_eq!(machine.property("calico-node", "ActiveState"), "active");
    assert_eq!(machine.property("calico-node", "Restart"), "always", "nothing of ours is left in the unit");
    assert_eq!(machine.property("tortie", "ActiveState"), "inactive");
    assert_eq!([enabled(&machine, "calico-node"), enabled(&machine, "tortie")], ["enabled", "disabled"]);
}
