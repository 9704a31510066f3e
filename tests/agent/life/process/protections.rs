//! Privileges that the agent's process has dropped, as other processes see them, and its work without them.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;
use tortie_topology::Signal;

use crate::common::hosts::{Hosts, PATIENCE, Plan, stdout, within};

/// Numbers of capability.h: CHOWN, NET_BIND_SERVICE, NET_ADMIN, NET_RAW and SYS_NICE.
const OF_AGENT: [u32; 5] = [0, 10, 12, 13, 23];
/// NET_ADMIN, SYS_PTRACE and SYS_ADMIN.
const OF_HELPER: [u32; 3] = [12, 19, 21];

fn set(numbers: &[u32]) -> u64 {
    numbers.iter().map(|number| 1 << number).sum()
}

/// Checks the capabilities and no_new_privs of each thread of a process.
fn has_only(pid: i32, numbers: &[u32]) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end meanwhile; the main thread does not.
    let states =
        threads.filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok());
    let states: Vec<String> = states.collect();
    assert!(!states.is_empty(), "process {pid} has no threads");
    for status in states {
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(u64::from_str_radix(value(name), 16).unwrap(), set(numbers), "{status}");
        }
        for name in ["CapInh:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(value(name), 16).unwrap(), 0, "{status}");
        }
        assert_eq!(value("NoNewPrivs:"), "1", "{status}");
    }
}

/// Returns the process id of an agent's helper, its only child but for commands that it runs for a moment.
fn helper(agent: i32) -> i32 {
    let mut found = 0;
    within(PATIENCE, "the helper is the only child", || {
        let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let children = read(&format!("/proc/{agent}/task/{agent}/children"))?;
        let [helper] = children.split_whitespace().collect::<Vec<_>>()[..] else { return Err(children) };
        let command = read(&format!("/proc/{helper}/cmdline"))?;
        if command.split('\0').ne(["tortie", "__namespaces", ""]) {
            return Err(command);
        }
        found = helper.parse().unwrap();
        Ok(())
    });
    found
}

/// True if another root process can read this one's environment without the capabilities that permit access
/// to any process.
fn environment_is_open(pid: i32) -> bool {
    let read = Command::new("setpriv")
        .args(["--bounding-set=-sys_ptrace,-sys_admin,-perfmon", "cat", &format!("/proc/{pid}/environ")])
        .output()
        .unwrap();
    read.status.success() && !read.stdout.is_empty()
}

/// Gives a host its own folder `/etc`, so that changes do not leave it.
fn own_etc(hosts: &Hosts, host: &str) {
    hosts.run(host, "mount -t tmpfs tmpfs /etc");
}

/// Actions of a program that the agent runs, which stands for an attacker who has taken over the agent.
const TRIES: &str = r#"
read -r node < /proc/sys/kernel/hostname
try() { name=$1; shift; "$@" > /dev/null 2>&1 && echo $name; }
write() { echo x > "$1"; }
{ try read-file cat /var/tmp/private
  try read-folder ls /var/tmp
  try make-file write /var/tmp/made
  try make-in-etc write /etc/made
  try change-sysctl write /proc/sys/kernel/printk_ratelimit
  try signal kill -0 1
  try memory cat /proc/1/environ
  try secret cat /etc/tortie/secrets/peer
  try renewed grep -q second /etc/tortie/secrets/peer
  try cache write /var/lib/tortie/made
  try log write /var/log/made
  try network-sysctl cat /proc/sys/net/ipv4/ip_forward
} | sort > /store/$node.new
mv /store/$node.new /store/$node.can
exit 1"#;

#[test]
fn the_agent_has_little_and_its_helper_has_what_namespaces_take() {
    let plan = Plan {
        hosts: 2,
        later: vec![1, 2],
        flags: [(2, "--no-sandbox".to_owned())].into(),
        ..Plan::default()
    };
    let Some(mut hosts) = Hosts::up(plan) else { return };
    hosts.tool("systemctl", TRIES);
    for host in ["host1", "host2"] {
        own_etc(&hosts, host);
        let write = |path: &str, text: &str| {
            let path = hosts.holder_path(host, path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("/etc/tortie/secrets/peer", "first\n");
        write("/var/tmp/private", "private\n");
    }
    hosts.start_agent(1);
    hosts.start_agent(2);
    hosts.until_sessions(1);

    let agents = [hosts.pid(1), hosts.pid(2)];
    for agent in agents {
        has_only(agent, &OF_AGENT);
        has_only(helper(agent), &OF_HELPER);
        assert!(!environment_is_open(helper(agent)));
    }
    assert!(!environment_is_open(agents[0]), "not dumpable");
    assert!(environment_is_open(agents[1]), "--no-sandbox");
    let kept = ["NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_NICE", "CHOWN"];
    let protections = hosts.status(1)["protections"].clone();
    let abi = protections["landlockAbi"].as_u64();
    let landlock = protections["landlock"].as_str().unwrap().to_owned();
    assert_eq!(protections["capabilities"], json!(kept));
    assert_eq!((&protections["noNewPrivs"], &protections["dumpable"]), (&json!(true), &json!(false)));
    assert_eq!(protections["helper"], json!(true));
    let open = hosts.status(2)["protections"].clone();
    assert_eq!((&open["landlock"], &open["dumpable"]), (&json!("off"), &json!(true)), "{open}");
    let doctor = |host| stdout(&hosts.tortie(host, &["--datastore", "sqlite:/store/store.db", "doctor"]));
    assert!(
        doctor(2).contains("WARN  process of the agent") && doctor(2).contains("--no-sandbox"),
        "{}",
        doctor(2)
    );
    assert!(doctor(1).contains("process of the agent: NET_ADMIN"), "{}", doctor(1));

    // The old name refers to a new file, as tools that renew secrets do it.
    for host in ["host1", "host2"] {
        let path = hosts.holder_path(host, "/etc/tortie/secrets/peer");
        std::fs::write(path.with_extension("new"), "second\n").unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    }
    let shared = hosts.lab.lab_dir().join("store");
    let helpers = agents.map(helper);
    for host in ["host1", "host2"] {
        hosts.signal(host, Signal::TERM);
    }
    hosts.until_ended(1);
    hosts.until_ended(2);
    for helper in helpers {
        within(PATIENCE, "the helper ends with the agent", || {
            // A process that was not waited for has an empty command line.
            let words = std::fs::read_to_string(format!("/proc/{helper}/cmdline")).unwrap_or_default();
            if words.is_empty() { Ok(()) } else { Err(words) }
        });
    }
    let can = |host: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(shared.join(format!("{host}.can"))).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let names = |all: &[&str]| -> BTreeSet<String> { all.iter().map(|name| (*name).to_owned()).collect() };
    let work = ["secret", "renewed", "cache", "log", "network-sysctl"];
    let outside = ["read-file", "read-folder", "make-file", "make-in-etc", "change-sysctl", "signal"];
    let everything = names(&[&work[..], &outside[..]].concat());
    let open = can("host2");
    assert!(open.is_superset(&names(&work)) && open.is_subset(&everything), "{open:?}");
    assert!(open.contains("read-file") && open.contains("make-file") && open.contains("signal"), "{open:?}");
    if landlock == "unsupported" {
        eprintln!("this kernel has no Landlock");
        return;
    }
    let mut expected = names(&work);
    if abi < Some(6) {
        expected.insert("signal".to_owned());
    }
    assert_eq!(can("host1"), expected, "Landlock {landlock} {abi:?}; without it {open:?}");
}

/// Without its helper the agent continues; the affected feature is a problem with a next step.
#[test]
fn an_agent_whose_helper_is_gone_says_so() {
    let Some(hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until(1, "ready", |status| status["ready"] == true);
    let pid = helper(hosts.pid(1)).to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    hosts.until(1, "none there", |status| status["protections"]["helper"] == false);
    hosts.put("/calico/v1/config/IpamLeakGracePeriodSecs", "1");
    let status = hosts.until(1, "the problem", |status| status["problems"].to_string().contains("helper"));
    let problem = status["problems"].to_string();
    assert!(problem.contains("collector") && problem.contains("restart the agent"), "{problem}");
    assert_eq!(status["ready"], true);
}

/// A folder that appears later is not accessible to a running agent, whatever its permissions; that is a
/// problem with a next step, and the agent continues.
#[test]
fn what_is_mounted_later_is_refused_with_the_next_step() {
    let Some(hosts) = Hosts::up(Plan { hosts: 1, later: vec![1], ..Plan::default() }) else { return };
    let secret = |text: &str| {
        let path = hosts.holder_path("host1", "/etc/tortie/secrets/peer");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    own_etc(&hosts, "host1");
    secret("first\n");
    hosts.start_agent(1);
    hosts.until(1, "ready", |status| status["ready"] == true);
    let peer = |name: &str| {
        let value = json!({"ip": name, "as_num": "65001", "password_file": "/etc/tortie/secrets/peer"});
        hosts.put(&format!("/calico/bgp/v1/global/peer_v4/{name}"), &value.to_string());
    };
    let reported =
        |name: &str| hosts.status(1)["problems"].to_string().contains(&format!("{name}: password file"));
    peer("172.30.0.71");
    hosts.until(1, "the peer is there", |status| status["bgp"]["peers"]["of"] == 1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!reported("172.30.0.71") && !hosts.log(1).contains("password file"), "{}", hosts.log(1));

    hosts.run("host1", "mount -t tmpfs tmpfs /etc/tortie");
    secret("second\n");
    peer("172.30.0.72");
    if hosts.status(1)["protections"]["landlock"] == "unsupported" {
        eprintln!("this kernel has no Landlock");
        return;
    }
    let status =
        hosts.until(1, "the problem", |status| status["problems"].to_string().contains("password file"));
    let problem = status["problems"].to_string();
    assert!(problem.contains("permission denied") && problem.contains("restart the agent"), "{problem}");
    assert_eq!(status["bgp"]["peers"]["of"], 2);
}
