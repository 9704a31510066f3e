//! The labs of the repository with the agent in them: workloads of the two farthest hosts reach each other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use tortie_topology::{Lab, Options, Sandbox};

fn pings(lab: &str, far: &[&str]) {
    if let Err(e) = Sandbox::detect().and_then(|s| match s {
        Sandbox::Root => Ok(()),
        Sandbox::Rootless { .. } => Err(tortie_topology::LabError::Forbidden("needs root".to_owned())),
    }) {
        assert!(std::env::var_os("CI").is_none(), "cannot run: {e}");
        eprintln!("skipped: {e}");
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs").join(format!("{lab}.clab.yml"));
    let dir = tempfile::tempdir().unwrap();
    let options = Options::tied(Path::new(env!("CARGO_BIN_EXE_tortie")), &dir.path().join("state"));
    let lab = Lab::from_file(&file).unwrap();
    let running = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
    for address in far {
        let begin = Instant::now();
        while !running.exec("web1", &["ping", "-c", "1", "-W", "1", address]).unwrap().status.success() {
            if begin.elapsed() > Duration::from_secs(30) {
                let evidence = |command: &[&str]| {
                    let output = running.exec("host1", command).unwrap();
                    String::from_utf8_lossy(&output.stdout).into_owned()
                        + &String::from_utf8_lossy(&output.stderr)
                };
                let log = std::fs::read_to_string(running.log_of("host1").unwrap()).unwrap_or_default();
                panic!(
                    "no answer from {address}; on host1:\n{}{}{}log:\n{log}",
                    evidence(&["ip", "route"]),
                    evidence(&["ip", "-6", "route"]),
                    evidence(&["tortie", "--node", "host1", "bgp", "peers"])
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    running.down().unwrap();
}

#[test]
fn mesh() {
    pings("mesh", &["10.244.2.1", "10.244.3.1"]);
}

#[test]
fn tor_bird() {
    pings("tor-bird", &["10.244.3.1"]);
}

#[test]
fn tor_frr() {
    pings("tor-frr", &["10.244.3.1"]);
}

#[test]
fn tor_gobgp() {
    pings("tor-gobgp", &["10.244.3.1"]);
}

#[test]
fn tor_openbgpd() {
    pings("tor-openbgpd", &["10.244.3.1"]);
}

#[test]
fn reflectors() {
    pings("reflectors", &["10.244.8.1"]);
}

#[test]
fn as_per_rack() {
    pings("as-per-rack", &["10.244.2.1", "10.244.4.1"]);
}

#[test]
fn ipv6() {
    pings("ipv6", &["fd00:10:244:3::1"]);
}

#[test]
fn dual_stack() {
    pings("dual-stack", &["10.244.3.1", "fd00:10:244:3::1"]);
}
