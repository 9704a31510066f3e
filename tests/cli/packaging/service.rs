//! The agent under systemd: its notifications, its capabilities, and the unit file.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::common::command::TORTIE;
use crate::common::concurrency::uninterrupted;

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd/tortie.service");

/// Every capability that the unit names, with its number in capability.h.
const NUMBERS: [(&str, u32); 9] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_SETPCAP", 8),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_NICE", 23),
];

fn unit() -> String {
    std::fs::read_to_string(UNIT).unwrap()
}

/// Returns the value of a setting in the unit.
fn setting(name: &str) -> String {
    let unit = unit();
    let mut found = unit.lines().filter_map(|l| l.strip_prefix(name)?.strip_prefix('='));
    let value = found.next().unwrap_or_else(|| panic!("no {name} in the unit")).to_owned();
    assert!(found.next().is_none(), "{name} twice");
    value
}

#[test]
fn the_manager_is_notified_and_the_process_keeps_what_the_unit_grants() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut agent = Agent::start_as(&[("/calico/v1/Ready", "true")], |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    let mut reported: Vec<String> = Vec::new();
    let mut until = |what: &str, check: &dyn Fn(&[String]) -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !check(&reported) {
            assert!(Instant::now() < end, "{what}: {reported:?}");
            let mut buf = [0; 4096];
            if let Ok(len) = uninterrupted(|| manager.recv(&mut buf)) {
                reported.extend(String::from_utf8(buf[..len].to_vec()).unwrap().lines().map(str::to_owned));
            }
        }
    };
    until("it has started", &|reported| reported.iter().any(|t| t == "READY=1"));
    until("the watchdog is fed, again and again", &|reported| {
        reported.iter().filter(|t| *t == "WATCHDOG=1").count() >= 3
    });
    // The first line of `tortie status`, unchanged.
    let screen = crate::common::command::stdout(&agent.run(&["status"]));
    let verdict = screen.lines().next().unwrap().rsplit("   ").next().unwrap().to_owned();
    until("the verdict", &|reported| reported.iter().any(|t| *t == format!("STATUS={verdict}")));

    let granted: u64 = setting("CapabilityBoundingSet")
        .split_whitespace()
        // The first two belong to the helper, the last one is only used at start.
        .filter(|name| !["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SETPCAP"].contains(name))
        .map(|name| 1u64 << NUMBERS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1)
        .sum();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let set = |status: &str, name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let mut threads = BTreeSet::new();
    for task in std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap() {
        let task = task.unwrap().path();
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        threads.insert(std::fs::read_to_string(task.join("comm")).unwrap().trim().to_owned());
        for name in ["CapEff:", "CapPrm:", "CapBnd:"] {
            assert_eq!(set(&status, name), set(&own, name) & granted, "{status}");
        }
        assert_eq!(set(&status, "CapInh:"), 0);
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
    assert!(["speaker", "io"].iter().all(|name| threads.contains(*name)), "{threads:?}");

    let ended = std::thread::spawn(move || agent.stop());
    until("it says that it stops", &|reported| reported.iter().any(|t| t == "STOPPING=1"));
    assert_eq!(ended.join().unwrap(), Some(0));
}

#[test]
fn systemd_takes_the_unit_and_finds_it_hardened() {
    let analyze = |words: &[&str]| match Command::new("systemd-analyze").args(words).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: systemd-analyze: {error}");
            None
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tortie.service");
    // The man page is installed with the package; the program is in cargo's target folder.
    let text = unit().replace("/usr/bin/tortie", TORTIE);
    let text: Vec<&str> = text.lines().filter(|l| !l.starts_with("Documentation=")).collect();
    std::fs::write(&path, text.join("\n")).unwrap();
    let path = path.to_str().unwrap();
    let Some(output) = analyze(&["verify", "--man=no", path]) else { return };
    let said = crate::common::command::stderr(&output);
    // Messages about other units of the machine are ignored.
    let ours: Vec<&str> = said.lines().filter(|l| l.contains("tortie")).collect();
    assert!(ours.is_empty() && Path::new(path).exists(), "{ours:?}");
    // systemd rates values below 5 as OK; the remaining exposure is the agent's purpose.
    let Some(output) = analyze(&["security", "--offline=true", "--threshold=42", path]) else { return };
    assert!(output.status.success(), "{}", crate::common::command::stdout(&output));
    assert_eq!((setting("Type"), setting("Restart")), ("notify".to_owned(), "on-failure".to_owned()));
}

#[test]
fn a_level_of_the_logs_is_asked_for_and_ends_by_itself() {
    let agent = Agent::start_as(&[("/calico/v1/Ready", "true")], |command| {
        command.args(["--log-format", "json"]);
    });
    let notes = || {
        let status: serde_json::Value =
            serde_json::from_slice(&agent.run(&["status", "-o", "json"]).stdout).unwrap();
        let notes = status["notes"].as_array().unwrap().clone();
        notes.into_iter().filter(|n| n["code"] == "log-level").collect::<Vec<_>>()
    };
    assert!(notes().is_empty());
    let output = agent.run(&["log", "level", "bgp.peer=2001:db8::1:debug", "--for", "1s"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let reported = notes();
    assert_eq!(reported[0]["subject"], "log bgp.peer=2001:db8::1", "{reported:?}");
    let end = Instant::now() + Duration::from_secs(60);
    while !notes().is_empty() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(200));
    }
    // Ended by a command, too; an invalid subject is rejected with its name.
    assert!(agent.run(&["log", "level", "all:debug", "--for", "1h"]).status.success());
    assert!(agent.run(&["log", "level", "--reset"]).status.success() && notes().is_empty());
    let output = agent.run(&["log", "level", "bgpd:debug"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(crate::common::command::stderr(&output).contains("unknown subject"), "{output:?}");
    // Every line is a JSON object with the same members.
    for line in agent.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        for name in ["time", "level", "target", "message"] {
            assert!(line[name].is_string(), "{line}");
        }
    }
    assert!(agent.log().contains("a temporary level has ended"), "{}", agent.log());
}
