//! End of labs: on request from another process, with the process that built them, and inside a sandbox.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{can_build, skip, within};
use tortie_topology::{HostNetwork, Lab, Options, Sandbox};

/// Two nodes with a link between them, which a helper process builds.
const PAIR: &str = r#"
name: NAME
topology:
  nodes:
    a: {kind: linux, network-mode: none, image: x, cmd: sleep 1000}
    b: {kind: linux, image: x, exec: ["ip route get 10.9.1.1"]}
  links: [{endpoints: ["a:eth1", "b:eth1"], ipv4: [10.9.1.1/24, 10.9.1.2/24]}]
"#;

fn pair() -> Lab {
    let name = format!("life-{}", std::process::id());
    Lab::from_text(&PAIR.replace("NAME", &name), Path::new("/nowhere/pair.clab.yml")).unwrap()
}

/// Not a test: the program that the tests below start and kill. It builds a lab, prints `ready`, and waits.
#[test]
#[ignore = "run by other tests"]
fn helper() {
    let Some(dir) = std::env::var_os("TORTIE_TEST_DIR").map(PathBuf::from) else { return };
    let rootless = std::env::var_os("TORTIE_TEST_ROOTLESS").is_some();
    let lab = pair();
    let options = Options { rootless, ..common::options(&dir) };
    let running = lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}"));
    let pid = running.pid("a").unwrap();
    println!("ready {} {}", running.netns("a").unwrap().display(), pid);
    std::thread::sleep(std::time::Duration::from_secs(600));
    drop(running);
}

fn helper_command(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["helper", "--exact", "--ignored", "--nocapture"]);
    command.env("TORTIE_TEST_DIR", dir).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Returns the words that the helper prints after `ready`.
fn ready(child: &mut std::process::Child) -> Vec<String> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map(Result::unwrap) {
        if let Some((_, words)) = line.split_once("ready ") {
            return words.split(' ').map(str::to_owned).collect();
        }
    }
    panic!("the helper ended: {:?}", child.wait());
}

/// Returns the processes whose environment or command line contains the directory: those of a lab in it.
fn remains(dir: &Path) -> Vec<String> {
    let needle = dir.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let mounts = std::fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default();
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if mounts.contains(&needle) || String::from_utf8_lossy(&environ).contains(&needle) {
            let name = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push(format!("{} {name}", entry.path().display()));
        }
    }
    found
}

#[test]
fn kill_9_of_the_builder_leaves_no_process_and_no_namespace() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = helper_command(&std::env::current_exe().unwrap(), dir.path()).spawn().unwrap();
    let words = ready(&mut child);
    let command = PathBuf::from(format!("/proc/{}", words[1]));
    assert!(Path::new(&words[0]).exists() && command.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    within(60, "all is gone", || {
        let left = [Path::new(&words[0]), &command].iter().filter(|p| p.exists()).count();
        let remains = remains(dir.path());
        if left == 0 && remains.is_empty() { Ok(()) } else { Err(format!("{left} paths, {remains:?}")) }
    });
}

#[test]
fn a_sandbox_needs_no_root_and_leaves_nothing_on_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    // The test binary may be in a directory that only root can read.
    let program = dir.path().join("helper");
    // Copied by another process: a file that this one has open for writing is open in each process that another
    // test starts meanwhile, and cannot be executed (ETXTBSY).
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let lab_dir = dir.path().join("lab");
    std::fs::create_dir(&lab_dir).unwrap();
    let root = Sandbox::detect().is_ok_and(|s| s == Sandbox::Root);
    let mut command = helper_command(&program, &lab_dir);
    command.env("TORTIE_TEST_ROOTLESS", "1");
    if root {
        std::os::unix::fs::chown(&lab_dir, Some(65534), Some(65534)).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(65534).gid(65534);
    } else if let Err(e) = Sandbox::detect() {
        skip(&e.to_string());
        return;
    }
    // A user namespace without root privileges; the map gives the user id outside.
    let user = if root { 65534 } else { rustix::process::getuid().as_raw() };
    Sandbox::Rootless { user, group: user }.wrap(&mut command);
    let mut child = command.spawn().unwrap();
    let words = ready(&mut child);
    assert_eq!(words.len(), 2);
    // Process numbers start again inside: the helper has number 1 in its own namespace.
    assert!(words[1].parse::<i32>().unwrap() < 1000);
    assert!(!remains(&lab_dir).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    within(60, "all is gone", || {
        let remains = remains(&lab_dir);
        if remains.is_empty() { Ok(()) } else { Err(format!("{remains:?}")) }
    });
}

#[test]
fn a_lasting_lab_is_entered_and_taken_down_by_others() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lab = pair();
    let options = Options { tied: false, host: HostNetwork::Machine, ..common::options(dir.path()) };
    let absent = lab.attach(&options).map(drop).unwrap_err().to_string();
    assert!(
        absent.contains("does not run: start it with `tortie lab up /nowhere/pair.clab.yml`"),
        "{absent}"
    );
    drop(lab.up(&options, &mut |_| ()).unwrap_or_else(|e| panic!("{e}")));

    let name = lab.topology.namespace("a");
    assert_eq!(name, format!("clab-life-{}-a", std::process::id()));
    let listed = Command::new("ip").args(["netns", "exec", &name, "ip", "-br", "addr"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("10.9.1.1/24"), "{listed:?}");
    let again = lab.up(&options, &mut |_| ()).map(drop).unwrap_err().to_string();
    assert!(again.contains("runs already"), "{again}");

    let mut other = lab.attach(&options).unwrap();
    assert!(common::run(&other, "b", "ip -br addr").contains("10.9.1.2/24"));
    let pid = other.pid("a").unwrap();
    other.kill("a", tortie_topology::Victim::Command).unwrap();
    assert_eq!(other.pid("a"), None);
    other.start("a").unwrap();
    assert_ne!(lab.attach(&options).unwrap().pid("a").unwrap(), pid);
    lab.down(&options).unwrap();
    assert!(!Path::new("/run/netns").join(&name).exists());
    assert!(!options.state_dir.exists());
    assert!(lab.down(&options).is_err());
}
