//! Labs that are really built. Each test has its own lab, which ends with the test.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{can_build, run, shows, up, within};
use tortie_topology::{LabError, Running, Victim};

/// Waits until the node reaches an address. The kernel reports the carrier of a bridge port up to a second
/// late, and all namespaces of the machine share one queue.
fn reaches(lab: &Running, node: &str, address: &str) {
    within(60, &format!("{node} reaches {address}"), || {
        let ping = lab.exec(node, &["ping", "-c", "1", "-W", "1", address]).map_err(|e| e.to_string())?;
        if ping.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ping.stdout).into_owned()) }
    });
}

#[test]
fn links_addresses_bridges_and_the_hosts_end() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lab = up(
        r#"
name: shapes
topology:
  defaults: {kind: linux, image: "alpine:3", network-mode: none, sysctls: {net.ipv4.ip_forward: 1}}
  nodes:
    a: {env: {GREETING: "hello ${NOBODY_SETS_THIS:-you}"}}
    b: {exec: ["ip route add 10.9.2.0/24 via 10.9.1.1"]}
    c: {hostname: sea}
    br0: {kind: bridge}
    outside: {kind: host}
  links:
    - {endpoints: ["a:eth1", "b:eth1"], mtu: 1400, ipv4: [10.9.1.1/24, 10.9.1.2/24], ipv6: ["fd09:1::1/64", "fd09:1::2/64"]}
    - type: veth
      endpoints:
        - {node: a, interface: eth2, mac: "02:00:00:00:00:0a", ipv4: 10.9.2.1/24}
        - {node: br0, interface: br0-a}
    - {endpoints: ["c:eth1", "br0:br0-c"], ipv4: [10.9.2.3/24]}
    - {type: host, endpoint: {node: c, interface: eth2, ipv4: 10.9.3.3/24}, host-interface: tohost}
    - {type: dummy, endpoint: {node: c, interface: eth3, ipv4: 10.9.4.1/24}}
"#,
        dir.path(),
    );
    shows(&lab, "a", "ip -d link show dev eth1", &["mtu 1400", "state UP", "veth"]);
    assert!(run(&lab, "a", "ip link show dev eth2").contains("02:00:00:00:00:0a"));
    assert!(run(&lab, "b", "ip -6 addr show dev eth1").contains("fd09:1::2/64 scope global"));
    assert!(!run(&lab, "b", "ip -6 addr show dev eth1").contains("tentative"));
    // Node a forwards between its link to b and the bridge that c is connected to.
    run(&lab, "c", "ip route add 10.9.1.0/24 via 10.9.2.1");
    reaches(&lab, "b", "10.9.2.3");
    reaches(&lab, "b", "fd09:1::1");
    assert!(run(&lab, "outside", "ip -br link").contains("br0-a"));
    run(&lab, "host", "ip addr add 10.9.3.1/24 dev tohost");
    reaches(&lab, "c", "10.9.3.1");
    assert!(run(&lab, "c", "ip -br addr show dev eth3").contains("UP"));
    assert_eq!(run(&lab, "c", "hostname").trim(), "sea");
    assert!(run(&lab, "a", "env").contains("GREETING=hello you"));
    assert!(run(&lab, "a", "cat /proc/sys/net/ipv4/ip_forward").starts_with('1'));
    // None of its interfaces is in this machine's own network.
    let own = std::process::Command::new("ip").args(["-br", "link"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&own.stdout).contains("br0-a"));

    lab.set_link("b", "eth1", false).unwrap();
    shows(&lab, "a", "ip link show dev eth1", &["NO-CARRIER"]);
    lab.set_link("b", "eth1", true).unwrap();
    shows(&lab, "a", "ip link show dev eth1", &["LOWER_UP"]);
    let missing = lab.set_link("b", "eth9", true).unwrap_err().to_string();
    assert!(missing.starts_with("b:eth9: setting it up: "), "{missing}");
    let stranger = lab.exec("d", &["true"]).unwrap_err().to_string();
    assert_eq!(stranger, "lab shapes has no node d: it has a, b, c, br0, outside");
    assert!(lab.netns("a").unwrap().exists());
    lab.down().unwrap();
    assert!(!dir.path().join("state").exists());
}

#[test]
fn binds_private_folders_and_what_stays_outside() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("conf")).unwrap();
    std::fs::write(dir.path().join("conf/a.conf"), "for a").unwrap();
    std::fs::write(dir.path().join("one"), "single").unwrap();
    let lab = up(
        r#"
name: binds
topology:
  defaults: {kind: linux, image: frr}
  nodes:
    a:
      binds:
        - conf:/etc/of-no-such-daemon/deep:ro
        - conf/__clabNodeName__.conf:/at-the-top
        - one:/etc/of-no-such-daemon/one
        - __clabNodeDir__:/var/lib/own
        - __clabDir__/shared:/shared
      tmpfs: {/opt/scratch: ""}
      cmd: sleep 1000
    b: {binds: ["__clabDir__/shared:/shared"], cmd: sleep 1000}
"#,
        dir.path(),
    );
    assert_eq!(run(&lab, "a", "cat /etc/of-no-such-daemon/deep/a.conf"), "for a");
    assert_eq!(run(&lab, "a", "cat /at-the-top"), "for a");
    assert_eq!(run(&lab, "a", "cat /etc/of-no-such-daemon/one"), "single");
    let refused = lab.exec("a", &["touch", "/etc/of-no-such-daemon/deep/x"]).unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only"), "{refused:?}");
    run(
        &lab,
        "a",
        "touch /shared/from-a /var/lib/own/mine /opt/scratch/x /run/x /var/tmp/x /etc/new-here /var/log/x",
    );
    assert_eq!(run(&lab, "b", "ls /shared").trim(), "from-a");
    assert!(lab.lab_dir().join("a/mine").exists());
    assert!(run(&lab, "b", "ls /run /var/tmp").lines().all(|l| l != "x"));
    for path in [
        "/etc/of-no-such-daemon",
        "/etc/new-here",
        "/at-the-top",
        "/shared",
        "/run/x",
        "/var/tmp/x",
        "/var/log/x",
        "/opt/scratch",
    ] {
        assert!(!std::path::Path::new(path).exists(), "{path} was made on this machine");
    }
    assert!(run(&lab, "a", "id -nG root").contains("frrvty"));
    assert_eq!(run(&lab, "a", "cat /etc/hostname").trim(), "a");
    // The node sees its own processes only; number 1 is the one that keeps its namespaces alive.
    assert!(run(&lab, "a", "cat /proc/1/comm").starts_with("cat"));
    lab.down().unwrap();
}

#[test]
fn commands_are_killed_started_again_and_their_output_is_kept() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut lab = up(
        "{name: kill, topology: {nodes: {a: {kind: linux, image: x, cmd: \"sh -c 'echo begun; sleep 1000 & exec sleep 1001'\"}}}}",
        dir.path(),
    );
    let first = lab.pid("a").unwrap();
    within(60, "it has started its child", || {
        let seen = processes(&lab);
        if seen.contains("sleep 1000") { Ok(()) } else { Err(seen) }
    });
    assert!(lab.kill("a", Victim::Command).unwrap());
    assert_eq!(lab.pid("a"), None);
    assert!(!lab.kill("a", Victim::Command).unwrap());
    assert!(processes(&lab).contains("sleep 1000"), "its child is left alone");
    lab.start("a").unwrap();
    assert_ne!(lab.pid("a").unwrap(), first);
    let path = lab.log_of("a").unwrap().to_path_buf();
    let log = || std::fs::read_to_string(&path).unwrap();
    within(60, "it says something again", || if log() == "begun\nbegun\n" { Ok(()) } else { Err(log()) });
    assert!(lab.kill("a", Victim::Everything).unwrap());
    within(60, "everything is gone", || {
        let left = processes(&lab);
        if left.contains("sleep 100") { Err(left) } else { Ok(()) }
    });
    run(&lab, "a", "true");
    assert_eq!(log(), "begun\nbegun\n", "output is kept");
}

#[test]
fn a_failing_command_takes_the_lab_down_and_says_what_it_said() {
    if !can_build() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let build = |text: &str| {
        let lab = tortie_topology::Lab::from_text(text, &dir.path().join("x.clab.yml")).unwrap();
        let error = lab.up(&common::options(dir.path()), &mut |_| ()).map(drop).unwrap_err();
        assert!(!dir.path().join("state").exists(), "the state is removed");
        error
    };
    let error = build(
        "{name: x, topology: {nodes: {a: {kind: linux, exec: [\"sh -c 'echo no such road >&2; exit 3'\"]}}}}",
    );
    assert_eq!(
        error.to_string(),
        "a: `sh -c echo no such road >&2; exit 3` ended with exit status: 3\n    no such road"
    );
    let error = build("{name: x, topology: {nodes: {a: {kind: linux, exec: [no-such-program --now]}}}}");
    let want =
        "a: starting `no-such-program`: there is no program no-such-program in the node or on this machine";
    assert_eq!(error.to_string(), want);
    let error = build("{name: x, topology: {nodes: {a: {kind: linux, sysctls: {net.ipv4.no_such: 1}}}}}");
    let want =
        "a: making its namespaces: sysctl net.ipv4.no_such = 1: No such file or directory (os error 2)";
    assert_eq!(error.to_string(), want);
    let error = build("{name: x, topology: {nodes: {a: {kind: linux, binds: [\"nowhere:/x\"]}}}}");
    assert!(matches!(error, LabError::Invalid(_)));
    let text = error.to_string();
    assert!(text.ends_with("nowhere does not exist; make it, or correct the path (it is taken from the folder of the lab file)"), "{text}");
    // The command of one node fails while another node waits for its end.
    let error = build(
        "{name: x, topology: {nodes: {a: {kind: linux, cmd: \"sh -c 'echo broken; exit 4'\"}, \
         b: {kind: linux, stages: {create: {wait-for: [{node: a, stage: exit}]}}}}}}",
    );
    assert_eq!(error.to_string(), "a: `sh -c echo broken; exit 4` ended with exit status: 4\n    broken");
}

/// Returns the command lines of all processes in node a.
fn processes(lab: &tortie_topology::Running) -> String {
    let output = lab.exec("a", &["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).unwrap();
    String::from_utf8(output.stdout).unwrap()
}
