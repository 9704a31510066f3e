//! The unit and the package under a running systemd: notifications and restrictions, and the state that
//! remains after each kind of end. The short form runs in CI; the long one covers the real watchdog, an
//! upgrade, and a host shutdown.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::machine::Machine;
use crate::common::command::{TORTIE, stderr, stdout};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");

/// Builds the package of the tested program, without debug symbols, in a folder.
pub(crate) fn package(dir: &Path) -> Option<()> {
    let program = dir.join("tortie");
    let stripped = Command::new("strip").arg("-o").args([&program, Path::new(TORTIE)]).output();
    if !stripped.is_ok_and(|output| output.status.success()) {
        crate::common::command::copy_program(TORTIE, &program);
    }
    let build = || {
        Command::new(format!("{PACKAGING}/deb.sh")).args([&program, dir]).env("DEB_COMPRESS", "none").output()
    };
    match build() {
        Ok(built) if built.status.success() => {}
        other if Command::new("dpkg-deb").arg("--version").output().is_ok() => panic!("{other:?}"),
        _ => {
            assert!(std::env::var_os("CI").is_none(), "cannot run: no dpkg-deb");
            eprintln!("skipped: no dpkg-deb");
            return None;
        }
    }
    let made = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path());
    let deb = made.into_iter().find(|path| path.extension().is_some_and(|e| e == "deb")).unwrap();
    std::fs::rename(deb, dir.join("tortie.deb")).unwrap();
    Some(())
}

/// Returns Tortie's kernel state without counters.
fn kernel(machine: &Machine) -> [String; 2] {
    let peers = std::env::var_os("TORTIE_PEERS").map(|dir| Path::new(&dir).join("nft"));
    let nft = peers
        .filter(|path| path.exists())
        .map_or_else(|| "nft".to_owned(), |path| path.display().to_string());
    let rules = machine.must(&format!("! command -v {nft} >/dev/null || {nft} -s list ruleset"));
    [machine.must("ip route show; ip nexthop show"), rules]
}

/// Starts a machine with the package, a pool, an own block and an endpoint, on which the agent runs.
fn installed(files: &Path) -> Option<Machine> {
    package(files)?;
    let machine = Machine::boot(files)?;
    machine.must("dpkg -i --no-triggers --force-depends /mnt/tortie.deb");
    assert_eq!(machine.property("tortie", "ActiveState"), "inactive", "an installation starts nothing");
    assert!(!machine.run("systemctl is-enabled tortie").status.success());
    // Keys that an administrator writes before the first start.
    let data = serde_json::json!({
        "/calico/v1/Ready": "true",
        "/calico/v1/ipam/v4/pool/10.244.0.0-16": r#"{"cidr":"10.244.0.0/16"}"#,
        "/calico/v1/policy/profile/open/rules": r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
        "/calico/v1/host/rack1-n03/workload/cni/w1/endpoint/eth0":
            r#"{"state":"active","name":"cali1","profile_ids":["open"],"ipv4_nets":["10.244.0.1/32"]}"#,
    });
    std::fs::write(files.join("data.json"), data.to_string()).unwrap();
    machine.must(
        "tortie store import /mnt/data.json && tortie ipam assign --node rack1-n03 --ip 10.244.0.1 && \
         ip link add cali1 type veth peer name w1 && ip link set cali1 up && ip link set w1 up",
    );
    machine.must("systemctl enable --now tortie");
    Some(machine)
}

fn until_kernel(machine: &Machine) -> [String; 2] {
    machine.until("routes of block and endpoint", |machine| {
        let [routes, rules] = kernel(machine);
        let there =
            ["blackhole 10.244.0.0/26", "10.244.0.1 dev cali1"].iter().all(|word| routes.contains(word));
        if there { Ok([routes, rules]) } else { Err(format!("{routes}\n{}", machine.journal())) }
    })
}

/// Waits for a new process that runs.
fn restarted(machine: &Machine, before: &str) -> String {
    machine.until("another process", |machine| {
        let (pid, state) = (machine.property("tortie", "MainPID"), machine.property("tortie", "ActiveState"));
        if pid != before && pid != "0" && state == "active" { Ok(pid) } else { Err(format!("{pid} {state}")) }
    })
}

/// Stops a single thread, like a lock that is never released: a tracer holds it, and reaps it.
#[allow(unsafe_code, reason = "ptrace and waitpid have no safe wrapper")]
fn hang(thread: u32) {
    let thread = i32::try_from(thread).unwrap();
    // SAFETY: both requests read no memory of this process.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0), 0, "{}", std::io::Error::last_os_error());
        assert_eq!(
            libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0),
            0,
            "{}",
            std::io::Error::last_os_error()
        );
    }
    // The real parent is notified of its end only after the tracer.
    std::thread::spawn(move || {
        let mut status = 0;
        loop {
            // SAFETY: the status is written to a variable of this thread.
            let reported = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
            if reported < 0 || libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                return;
            }
        }
    });
}

#[test]
fn the_unit_starts_notifies_holds_and_stops_under_a_live_systemd() {
    let files = tempfile::tempdir().unwrap();
    let Some(machine) = installed(files.path()) else { return };
    // `enable --now` returned, so READY=1 was sent.
    assert_eq!(machine.property("tortie", "ActiveState"), "active");
    assert_eq!(machine.property("tortie", "SubState"), "running");
    let before = until_kernel(&machine);

    // STATUS= is the first line of `tortie status`.
    machine.until("the verdict", |machine| {
        let screen = stdout(&machine.run("tortie status"));
        let line = screen.lines().next().unwrap_or_default();
        let reported = machine.property("tortie", "StatusText");
        let summary = reported.split_once(": ").map_or("", |(_, summary)| summary);
        if !summary.is_empty() && line.contains(summary) {
            Ok(())
        } else {
            Err(format!("{reported:?} {line:?}"))
        }
    });

    // The process has exactly the permissions that the unit grants, and cannot access what the unit closes.
    let pid = machine.property("tortie", "MainPID");
    let status = machine.must(&format!("cat /proc/{pid}/status"));
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let bounding = machine.property("tortie", "CapabilityBoundingSet");
    assert_eq!(bounding.split_whitespace().count(), 8, "{bounding}");
    for set in ["CapEff:\t", "CapBnd:\t"] {
        let held = status.lines().find_map(|l| l.strip_prefix(set)).unwrap();
        assert_eq!(u64::from_str_radix(held, 16).unwrap().count_ones(), 5, "{set}{held}");
    }
    let inside = |line: &str| machine.run(&format!("nsenter -m -t {pid} sh -c '{line}'"));
    for path in ["/usr/x", "/etc/x", "/boot/x", "/sys/fs/cgroup/x", "/run/x", "/var/lib/x"] {
        let output = inside(&format!("touch {path}"));
        assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{path}: {output:?}");
    }
    for folder in ["/var/lib/tortie", "/run/tortie", "/run/docker/plugins", "/var/lib/calico"] {
        assert!(inside(&format!("touch {folder}/x && rm {folder}/x")).status.success(), "{folder}");
    }
    assert!(!inside("test -e /dev/kmsg || test -e /dev/mem").status.success(), "PrivateDevices");
    assert!(
        stdout(&inside("ls -A /root /home")).lines().all(|l| l.is_empty() || l.ends_with(':')),
        "ProtectHome"
    );
    machine.must("systemd-analyze security --threshold=40 --no-pager tortie");
    // The restrictions do not affect the agent's work or its use of Landlock, if the kernel has it.
    let said = machine.must("tortie status -o json || true");
    assert!(
        said.contains("\"landlock\": \"enforced\"") || said.contains("\"landlock\": \"unsupported\""),
        "{said}"
    );
    for code in ["missing-capability", "enforcement", "forwarding-off"] {
        assert!(!said.contains(&format!("\"code\": \"{code}\"")), "{said}");
    }

    // SIGHUP does not stop the agent, and there is nothing to reload.
    machine.must(&format!("kill -HUP {pid}"));
    let reload = machine.run("systemctl reload tortie");
    assert!(!reload.status.success() && stderr(&reload).contains("not applicable"), "{reload:?}");
    machine.until("the agent says so", |machine| {
        let journal = stdout(&machine.run("journalctl --no-pager -u tortie"));
        if journal.contains("SIGHUP: nothing to reload") { Ok(()) } else { Err(journal) }
    });
    assert_eq!(machine.property("tortie", "MainPID"), pid);

    // If one loop hangs while the others work, the watchdog ends the agent, which is restarted, here within
    // 10 s: a loaded machine does not let a process that works miss it.
    machine.must("systemctl service-watchdogs yes; mkdir -p /run/systemd/system/tortie.service.d");
    machine.must("printf '[Service]\\nWatchdogSec=10\\n' > /run/systemd/system/tortie.service.d/soon.conf && systemctl daemon-reload");
    machine.must("systemctl restart tortie");
    let pid = restarted(&machine, &pid);
    assert_eq!(kernel(&machine), before, "restart");
    hang(machine.outside(&pid));
    let pid = restarted(&machine, &pid);
    assert_eq!(machine.property("tortie", "NRestarts"), "1");
    machine.until("the reason in the journal", |machine| {
        let journal = stdout(&machine.run("journalctl --no-pager -u tortie -u init.scope"));
        if journal.to_lowercase().contains("watchdog timeout") { Ok(()) } else { Err(journal) }
    });
    assert_eq!(kernel(&machine), before, "watchdog");

    // Stopped: routes and rules stay; the socket's folder is removed, so that clients fail at once.
    let begin = Instant::now();
    machine.must("systemctl stop tortie");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    assert_eq!(machine.property("tortie", "Result"), "success", "{pid}");
    assert_eq!(kernel(&machine), before, "stop");
    assert!(!machine.run("test -e /run/tortie").status.success());
    assert_eq!(machine.run("tortie status").status.code(), Some(3));

    // Purge: first the host, then the package.
    let refused = machine.run("tortie purge");
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    machine.must("ip link delete cali1; tortie purge --store");
    let [routes, _] = kernel(&machine);
    assert!(!routes.contains("proto 179") && !routes.contains("id "), "{routes}");
    machine.must("dpkg --no-triggers -P tortie");
    for path in ["/usr/bin/tortie", "/etc/tortie", "/var/lib/tortie", "/lib/systemd/system/tortie.service"] {
        assert!(!machine.run(&format!("test -e {path}")).status.success(), "{path}");
    }
    assert!(!machine.run("systemctl cat tortie").status.success());
    assert!(!machine.run("getent group tortie").status.success());
}

#[test]
#[ignore = "two minutes: the true watchdog, then an upgrade, a removal, and a host that goes down"]
fn long_the_unit_through_a_hang_an_upgrade_a_removal_and_a_shutdown() {
    let files = tempfile::tempdir().unwrap();
    let Some(mut machine) = installed(files.path()) else { return };
    let before = until_kernel(&machine);

    // Only the kernel thread hangs: the core detects it after 60 s and stops feeding the watchdog, which ends
    // the agent 30 s later.
    let pid = machine.property("tortie", "MainPID");
    let threads =
        machine.must(&format!("for t in /proc/{pid}/task/*; do echo ${{t##*/}} $(cat $t/comm); done"));
    let thread =
        threads.lines().find_map(|l| l.strip_suffix(" kernel")).unwrap_or_else(|| panic!("{threads}"));
    hang(machine.outside_thread(&pid, thread));
    let begin = Instant::now();
    let new = loop {
        let now = machine.property("tortie", "MainPID");
        if now != pid && now != "0" {
            break now;
        }
        assert!(begin.elapsed() < Duration::from_secs(180), "{}", machine.journal());
        std::thread::sleep(Duration::from_millis(500));
    };
    println!("a kernel loop that hangs: another process after {:?}", begin.elapsed());
    let journal = stdout(&machine.run("journalctl --no-pager -u tortie"));
    assert!(journal.contains("the kernel loop has not answered"), "{journal}");
    assert_eq!(until_kernel(&machine), before, "watchdog");
    restarted(&machine, &pid);

    // An upgrade at run time: another process, the same routes and rules, unchanged administrator's files.
    machine.must("echo 'as = 64999' > /etc/tortie/tortie.toml");
    machine.must("dpkg -i --no-triggers --force-depends --force-confold /mnt/tortie.deb");
    let pid = restarted(&machine, &new);
    assert_eq!(kernel(&machine), before, "upgrade");
    assert_eq!(machine.must("cat /etc/tortie/tortie.toml"), "as = 64999\n");

    // Removal: stopped and no longer enabled; settings, store, routes and rules stay.
    machine.must("dpkg --no-triggers -r tortie");
    assert!(!machine.run(&format!("test -e /proc/{pid}")).status.success());
    assert_eq!(machine.must("ip route show; ip nexthop show"), before[0], "removal");
    machine.must("test -e /etc/tortie/tortie.toml && test -e /var/lib/tortie/store.db");

    // Installed once more, then the host shuts down: sessions are drained, as a neighbour on the same machine
    // observes.
    machine.must("dpkg -i --no-triggers --force-depends /mnt/tortie.deb");
    machine.must("mkdir -p /etc/systemd/system/tortie.service.d");
    let text = "[Service]\\nEnvironment=TORTIE_LOG_FORMAT=text\\nStandardError=append:/run/out/agent.log\\n";
    machine.must(&format!(
        "printf '{text}' > /etc/systemd/system/tortie.service.d/log.conf && systemctl daemon-reload"
    ));
    machine.must("ip address add 192.0.2.14/24 dev eth0");
    machine.must(
        "tortie store put /calico/bgp/v1/host/far/ip_addr_v4 192.0.2.14 && tortie store put /calico/bgp/v1/host/far/as_num 64999",
    );
    machine.must(
        "systemd-run --unit far -p Before=tortie.service -p StandardError=append:/run/out/far.log \
         tortie --node far --socket /run/far.sock agent --kernel off --http none --ip4 192.0.2.14/24 \
         --bgp-listen 192.0.2.14:179 --cache /run/far.json --log-format text",
    );
    machine.must("systemctl enable --now tortie");
    machine.until("the session is up", |machine| {
        let peers = stdout(&machine.run("tortie bgp peers"));
        if peers.contains("Established") || peers.contains(" up ") { Ok(()) } else { Err(peers) }
    });
    machine.must("systemctl --no-block poweroff");
    machine.until_off();
    let log = machine.out("agent.log");
    assert!(log.contains("drained: all routes were sent to 1 session"), "{log}\n{}", machine.out("far.log"));
}
