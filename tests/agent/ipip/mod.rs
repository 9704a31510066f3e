//! IPIP tests with real packets: the lab `topology/labs/ipip-cross-subnet.clab.yml`, three agents on one
//! store, and another process that breaks `tunl0` in every way that root can.
//!
//! The machine's own kernel may lack ipip, and its modules should not be unloaded by tests, so the lab runs
//! in user-mode Linux (`tests/tools/uml-run.sh`). One machine is started for all cases. Inside it the same
//! test program runs again as [`guest`], executes the cases in sequence and prints one JSON line for each,
//! which the tests here read. User-mode Linux has no packet rules; cases that need them as well run in an
//! emulated PC (`tests/tools/qemu-run.sh`).

mod guest;
mod moving;
pub(crate) mod rig;
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::common::concurrency;
use rig::{PATIENCE, Rig, within};
use serde::{Deserialize, Serialize};

/// Result of one case in the guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Case {
    case: String,
    ok: bool,
    /// Time from the disturbance to the repair; for cases without a disturbance, their duration.
    millis: u64,
    evidence: String,
}

impl Case {
    /// Runs one case and returns its JSON line.
    fn of(name: &str, case: impl FnOnce() -> String) -> String {
        let begin = std::time::Instant::now();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case));
        let millis = u64::try_from(begin.elapsed().as_millis()).unwrap();
        let (ok, evidence) = match result {
            Ok(evidence) => (true, evidence),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let log = std::fs::read_to_string("/tmp/agent.log").unwrap_or_default();
                let end = log.lines().rev().take(10).collect::<Vec<_>>();
                (false, format!("{}\n{}", text.unwrap_or_default(), end.join("\n")))
            }
        };
        serde_json::to_string(&Self { case: name.to_owned(), ok, millis, evidence }).unwrap()
    }
}

/// Environment variable of the guest that selects the cases.
const GUEST: &str = "TORTIE_IPIP_GUEST";

type Cases = LazyLock<Result<BTreeMap<String, Case>, String>>;

/// Results of all cases of one machine; `Err` contains the reason why it could not run.
static TUNNEL: Cases = LazyLock::new(|| cases("uml-run.sh", "linux.uml", "tunnel", &[]));
static RULES: Cases =
    LazyLock::new(|| cases("qemu-run.sh", "qemu-system-x86_64", "rules", &["-c", "2", "-m", "1024M"]));

static MOVING: Cases = LazyLock::new(|| {
    let options = ["-c", "2", "-m", "1024M", "-t", "900"];
    cases("qemu-run.sh", "qemu-system-x86_64", "moving", &options)
});

fn cases(
    machine: &str,
    program: &str,
    guest: &str,
    options: &[&str],
) -> Result<BTreeMap<String, Case>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let peers = std::env::var_os("TORTIE_PEERS").map_or_else(|| root.join("target/peers/bin"), PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([peers.clone()]);
    if !folders.any(|f| f.join(program).exists()) {
        return Err(format!("there is no {program}: run make peers"));
    }
    let _group = concurrency::EMULATED.join();
    let output = Command::new(root.join("tests/tools").join(machine))
        .args(["-t", "500", "-e", "RUST_BACKTRACE=0", "-e", &format!("{GUEST}={guest}")])
        .args(options)
        .args(["-e", &format!("TORTIE_PEERS={}", peers.display()), "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "ipip::guest", "--ignored", "--nocapture", "--test-threads", "1"])
        .env("TORTIE_PEERS", &peers)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let cases: BTreeMap<String, Case> = text
        .lines()
        .filter(|line| line.starts_with("{\"case\""))
        .map(|line| serde_json::from_str::<Case>(line).unwrap())
        .map(|case| (case.case.clone(), case))
        .collect();
    for case in cases.values() {
        println!("{:32} {:6} ms  {}", case.case, case.millis, if case.ok { "ok" } else { "FAILED" });
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the guest failed: {}\n{text}\n{errors}", output.status);
    Ok(cases)
}

/// Checks that all named cases succeeded. Without the machine the test is skipped with a message; in CI that
/// is a failure.
fn went_well(names: &[&str]) {
    all_well(&TUNNEL, names);
}

fn all_well(cases: &Cases, names: &[&str]) {
    let cases = match &**cases {
        Ok(cases) => cases,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    for name in names {
        let case = cases.get(*name).unwrap_or_else(|| panic!("the guest did not come to {name}"));
        assert!(case.ok, "{name}, {} ms: {}", case.millis, case.evidence);
    }
}

#[test]
#[ignore = "the half that runs in the machines, started by the tests of this file"]
fn guest() {
    match std::env::var(GUEST).as_deref() {
        Ok("tunnel") => guest::run(),
        Ok("rules") => rules::run(),
        Ok("moving") => moving::run(),
        _ => {}
    }
}

#[test]
fn the_tunnel_works_with_packet_rules_and_takes_packets_of_hosts_alone() {
    all_well(&RULES, &["tunnelled", "masqueraded", "stranger", "workload-that-tunnels", "filter-off"]);
}

#[test]
fn rules_that_log_write_to_the_log_of_the_kernel_and_then_act() {
    all_well(&RULES, &["log-of-a-deny", "log-that-goes-on", "log-of-an-allow"]);
}

#[test]
fn a_host_that_tunnels_moves_from_calico_and_back() {
    all_well(&MOVING, &["observed", "adopted", "rolled-back"]);
}

#[test]
fn packets_between_subnets_go_through_the_tunnel_and_others_do_not() {
    went_well(&["cross-subnet-routes", "cross-subnet-packets", "host-uses-tunnel-address", "status-up"]);
}

#[test]
fn always_means_within_the_subnet_too() {
    went_well(&["always"]);
}

#[test]
fn a_device_that_a_stranger_changed_is_right_again_within_two_seconds() {
    went_well(&[
        "link-down",
        "address-removed",
        "address-added",
        "address-with-another-length",
        "mtu-changed",
        "underlay-mtu-changed",
        "underlay-mtu-back",
        "link-del",
        "renamed",
        "everything-at-once",
    ]);
}

#[test]
fn the_module_may_go_and_come() {
    went_well(&[
        "module-unloaded",
        "module-refused",
        "module-loaded",
        "no-fallback-device",
        "real-device-deleted",
    ]);
}

#[test]
fn settings_of_the_store_reach_the_device() {
    went_well(&["store-mtu", "mtu-that-does-not-fit", "store-address", "store-back"]);
}

#[test]
fn routes_of_the_store_need_no_session() {
    went_well(&["store-routes", "store-routes-repaired", "store-routes-always", "store-routes-off"]);
}

#[test]
fn a_restarted_agent_writes_nothing_that_was_right() {
    went_well(&["restart-writes-nothing", "broken-while-away"]);
}

#[test]
fn a_disabled_pool_keeps_its_tunnel_and_no_ipip_means_none() {
    went_well(&["pool-disabled", "pool-without-ipip", "pool-with-ipip-again", "pool-removed"]);
}

/// Test on this machine's own kernel. Without ipip, `status` reports the problem and its fix, routes of the
/// pool that need the tunnel are withheld, and the others are installed. With ipip, the tunnel works.
#[test]
fn without_ipip_status_names_the_problem_and_routes_are_withheld() {
    let _group = concurrency::LABS.join();
    let Some(rig) = Rig::up() else { return };
    let lacks = !rig.exec("web1", &["ip", "link", "add", "probe0", "type", "ipip", "remote", "192.0.2.1"]).0;
    let plain = "10.244.2.0/26 via 10.0.1.2 dev eth1 metric 1790";
    let mut wanted = vec!["blackhole 10.244.1.0/26 metric 1790".to_owned(), plain.to_owned()];
    if !lacks {
        wanted.push("10.244.3.0/26 via 10.0.2.1 dev tunl0 metric 1790 onlink".to_owned());
    }
    within(20_000, "routes of host1", || {
        let now = rig.routes("host1");
        if now == wanted { Ok(()) } else { Err(format!("{now:#?}, wanted {wanted:#?}")) }
    });
    within(PATIENCE, "status of host1", || {
        let status = rig.json("host1", &["tortie", "status", "-o", "json"]);
        let tunnel = status["problems"].as_array().unwrap().iter().find(|p| p["code"] == "tunnel").cloned();
        match tunnel {
            None if !lacks => Ok(()),
            Some(p)
                if lacks && p["next"] == "tortie doctor" && p["text"].to_string().contains("NET_IPIP") =>
            {
                Ok(())
            }
            _ => Err(status.to_string()),
        }
    });
    if lacks {
        within(20_000, "the route of host3 is withheld", || {
            let rows = rig.json("host1", &["tortie", "route", "list", "10.244.3.0/26", "-o", "json"]);
            let rows = rows.to_string();
            if rows.contains("withheld") && rows.contains("no-tunnel") { Ok(()) } else { Err(rows) }
        });
    }
    // Without an IPIP pool the problem is over, and all routes are plain.
    let (key, pool) = ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#);
    rig.run("host2", &format!("tortie --datastore sqlite:/store/store.db store put {key} {pool}"));
    within(PATIENCE, "plain routes", || {
        let now = rig.routes("host1");
        if now.len() == 3 && !now.concat().contains("tunl0") { Ok(()) } else { Err(format!("{now:#?}")) }
    });
    within(PATIENCE, "status without trouble", || {
        let status = rig.json("host1", &["tortie", "status", "-o", "json"]);
        let right =
            status["dataplane"]["tunnel"] == "none" && !status["problems"].to_string().contains("tunl0");
        if right { Ok(()) } else { Err(status.to_string()) }
    });
}
