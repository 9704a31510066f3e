//! `tortie demo` as users run it: with and without root, with a provoked failure, and killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tortie_topology::{Options, Sandbox};

use crate::common::concurrency::{MEASURED_LABS, Membership};

/// The checks that the README lists.
const PROMISED: &[&str] = &[
    "sessions_established",
    "blocks_in_every_kernel",
    "blocks_in_router",
    "ping_between_workloads",
    "policy_stops_ping",
    "kill9_no_loss",
    "link_flap_recovers",
    "withdraw_seen",
    "nothing_left",
];

/// Skips a test for a reason; in CI that is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "cannot run: {why}");
    eprintln!("skipped: {why}");
}

/// True if this kernel permits the demo with BIRD.
fn possible() -> bool {
    if let Err(error) = Sandbox::detect() {
        skip(&error.to_string());
        return false;
    }
    let found = Options::tied(Path::new("/bin/true"), Path::new("/nowhere")).find("bird").is_some();
    if !found {
        skip("BIRD is not here: make peers");
    }
    found
}

/// From here on no other demo runs, no browser and no machine with systemd: the checks measure times.
fn alone() -> Membership {
    MEASURED_LABS.join()
}

fn demo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.arg("demo").args(words).stdin(Stdio::null());
    command
}

/// Returns the checks by name: success and evidence.
fn checks(output: &Output) -> BTreeMap<String, (bool, String)> {
    let text = String::from_utf8_lossy(&output.stdout);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!(json.as_object().unwrap().keys().collect::<Vec<_>>(), ["checks"]);
    crate::common::schema::Published::read().check_output("demo", text.as_bytes()).unwrap();
    let list = json["checks"].as_array().unwrap();
    list.iter()
        .map(|check| {
            let mut names: Vec<&str> = check.as_object().unwrap().keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, ["evidence", "millis", "name", "ok"]);
            assert!(check["millis"].is_u64());
            let evidence = check["evidence"].as_str().unwrap().to_owned();
            assert!(!evidence.is_empty());
            (check["name"].as_str().unwrap().to_owned(), (check["ok"].as_bool().unwrap(), evidence))
        })
        .collect()
}

fn all_hold(output: &Output) {
    let checks = checks(output);
    for (name, (ok, evidence)) in &checks {
        assert!(ok, "{name}: {evidence}");
    }
    for name in PROMISED {
        assert!(checks.contains_key(*name), "{name} is missing");
    }
    assert_eq!(output.status.code(), Some(0));
    // The evidence comes from kernels and the router.
    assert!(checks["blocks_in_every_kernel"].1.contains("10.244.2.0/26 via 172.30.0.2 dev eth1 proto 179"));
    assert!(checks["blocks_in_router"].1.contains("unicast [host1"), "{:?}", checks["blocks_in_router"]);
    assert!(checks["kill9_no_loss"].1.contains(" 0 lost"));
}

#[test]
fn every_check_holds_with_root() {
    let _alone = alone();
    match Sandbox::detect() {
        Ok(Sandbox::Root) if possible() => all_hold(&demo(&["--assert", "-o", "json"]).output().unwrap()),
        Ok(Sandbox::Root) => {}
        _ => skip("needs root"),
    }
}

#[test]
fn every_check_holds_without_root() {
    if !possible() {
        return;
    }
    let _alone = alone();
    let output = match Sandbox::detect() {
        // Root without capabilities is an ordinary user who owns this folder. The remaining capability is
        // needed to map user 0 to user 0 (user_namespaces(7), since Linux 5.12); by itself it permits no
        // namespaces.
        Ok(Sandbox::Root) => {
            let drop = ["--bounding-set", "-all,+setfcap", "--inh-caps", "-all,+setfcap"];
            let mut command = Command::new("setpriv");
            command.args(drop).arg(env!("CARGO_BIN_EXE_tortie")).args(["demo", "--assert", "-o", "json"]);
            command.stdin(Stdio::null()).output()
        }
        _ => demo(&["--assert", "-o", "json"]).output(),
    };
    let Ok(output) = output else { return skip("setpriv (util-linux) is not here") };
    if !forbidden(&output) {
        all_hold(&output);
    }
}

#[test]
fn a_stranger_may_run_it_next_to_a_router_of_our_own() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !matches!(Sandbox::detect(), Ok(Sandbox::Root)) {
        return skip("needs root to become another user");
    }
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("tortie");
    crate::common::command::copy_program(env!("CARGO_BIN_EXE_tortie"), &program);
    let mut command = Command::new(program);
    command.args(["demo", "--assert", "-o", "json", "--router", "tortie", "--v6", "--hosts", "2"]);
    let output = command.uid(65_534).gid(65_534).current_dir("/").stdin(Stdio::null()).output().unwrap();
    if forbidden(&output) {
        return;
    }
    for (name, (ok, evidence)) in checks(&output) {
        assert!(ok, "{name}: {evidence}");
    }
    assert_eq!(output.status.code(), Some(0));
}

/// True if this kernel forbids the demo; then the output must name the cause and the fix.
fn forbidden(output: &Output) -> bool {
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.code() != Some(4) {
        return false;
    }
    assert!(error.contains("sudo") || error.contains("--privileged"), "{error}");
    skip(&error);
    true
}

#[test]
fn what_is_broken_is_found_and_only_that() {
    if !possible() {
        return;
    }
    let _alone = alone();
    for (what, name) in [("router-stopped", "blocks_in_router"), ("route-deleted", "blocks_in_every_kernel")]
    {
        let output = demo(&["--assert", "-o", "json", "--break", what]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        for (check, (ok, evidence)) in checks(&output) {
            assert_eq!(ok, check != name, "{what}: {check}: {evidence}");
        }
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_kill_of_the_demo_takes_everything_with_it() {
    if !possible() {
        return;
    }
    let _alone = alone();
    let mut child = demo(&["--assert"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Waits until a process of a node exists, three generations below.
    let begin = Instant::now();
    let family = loop {
        let family = descendants(child.id());
        if family.len() > 8 {
            break family;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was built: {family:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    loop {
        let left: Vec<_> =
            family.iter().filter(|(pid, start)| stat(*pid).is_some_and(|s| s.1 == *start)).collect();
        if left.is_empty() {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "left: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!Path::new("/run/tortie-demo").exists());
}

/// Follows the README on a machine without any tools: `tests/tools/bare.sh`.
#[test]
#[ignore = "installs a Debian and builds everything there: ten minutes"]
fn long_readme_is_enough_on_a_bare_debian() {
    use std::net::ToSocketAddrs;
    if !matches!(Sandbox::detect(), Ok(Sandbox::Root)) {
        return skip("needs root");
    }
    if Command::new("debootstrap").arg("--version").output().is_err() {
        return skip("debootstrap is not here: apt install debootstrap");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("tests/tools/bare.sh"));
    command.arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("bare")).stdin(Stdio::null());
    // If rustup's site is unreachable, the installation on this machine is used instead.
    if std::env::var_os("BARE_RUST").is_none() && ("sh.rustup.rs", 443).to_socket_addrs().is_err() {
        command.env("BARE_RUST", std::env::var_os("HOME").unwrap());
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let page = text.lines().find_map(|line| line.strip_prefix("page=")).unwrap();
    assert!(page.parse::<f64>().unwrap() < 15.0, "from the end of the build to the page: {page} s");
}

#[test]
fn wrong_usage_says_what_is_right() {
    for (words, wanted) in [(&["--hosts", "1"][..], "2 to 20"), (&["--hosts", "99"][..], "2 to 20")] {
        let output = demo(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(wanted), "{text}");
    }
    let output = demo(&["sh", "no-such-node"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tortie demo"));
}

/// Returns parent and start time of a running process.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    (fields[0] != "Z").then_some(())?;
    Some((fields[1].parse().ok()?, fields[19].parse().ok()?))
}

/// Returns all descendants of a process with their start times.
fn descendants(root: u32) -> Vec<(u32, u64)> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let all: Vec<(u32, u32, u64)> = pids
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| stat(pid).map(|(parent, start)| (pid, parent, start)))
        .collect();
    let mut family = vec![(root, 0)];
    let mut next = 0;
    while let Some((parent, _)) = family.get(next).copied() {
        family.extend(all.iter().filter(|(_, p, _)| *p == parent).map(|(pid, _, start)| (*pid, *start)));
        next += 1;
    }
    family.remove(0);
    family
}
