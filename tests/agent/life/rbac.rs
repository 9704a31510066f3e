//! Users and roles of docs/how-to/etcd-rbac.md on a real etcd: the commands of the page create them, agents, plugins
//! and operators work with them, and none can write foreign keys.

use std::process::Output;

use crate::common::hosts::{Hosts, PATIENCE, Plan, stderr, stdout, within};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const PAGE: &str = include_str!("../../../docs/how-to/etcd-rbac.md");
/// URL of etcd for the hosts.
const URL: &str = "etcd://10.99.0.101:2379";

/// Returns the commands of the page as one script per block that uses etcdctl.
fn scripts() -> Vec<String> {
    let blocks = PAGE.split("```").skip(1).step_by(2);
    let scripts = blocks.filter_map(|block| block.strip_prefix("text\n"));
    let scripts: Vec<String> = scripts.filter(|text| text.contains("etcdctl ")).map(str::to_owned).collect();
    assert_eq!(scripts.len(), 4, "{scripts:#?}");
    scripts
}

/// Runs a script on etcd's machine, in the folder with the passwords.
fn run(hosts: &Hosts, script: &str) {
    let script = format!("set -eu; export ETCDCTL_API=3; cd /store/users; {script}");
    let output = hosts.lab.exec("etcd1", &["sh", "-c", &script]).unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
}

/// Runs `tortie` on host 1 as a user of etcd.
fn tortie(hosts: &Hosts, user: &str, words: &[&str]) -> Output {
    let password = format!("/store/users/{}.password", file(user));
    let who = [TORTIE, "--datastore", URL, "--etcd-user", user, "--etcd-password-file", &password];
    hosts.lab.exec("host1", &[&who, words].concat()).unwrap()
}

/// Returns the name of a user's password file on the page.
fn file(user: &str) -> &str {
    user.strip_prefix("tortie-").unwrap_or(user)
}

/// True if etcd permits a user to write a key; it is a plain write, regardless of the value.
fn may_write(hosts: &Hosts, user: &str, key: &str) -> bool {
    let user = format!("--user={user}:{}", password(user));
    match hosts.try_etcdctl(1, &[&user, "put", key, "x"]) {
        Ok(_) => true,
        Err(why) if why.contains("permission denied") => false,
        Err(why) => panic!("{key}: {why}"),
    }
}

fn password(user: &str) -> String {
    format!("secret-of-{user}")
}

/// Calls the CNI plugin on host 1 as the user of plugins.
fn cni(hosts: &Hosts, command: &str) -> Output {
    let user = "tortie-plugins-host1";
    let script = format!(
        r#"ip netns add web 2>/dev/null; ln -sf {TORTIE} /run/tortie-cni; printf '{{"cniVersion":"1.1.0","name":"lab","type":"tortie-cni","datastore":"{URL}","node":"host1","etcd_user":"{user}","etcd_password_file":"/store/users/plugins-host1.password"}}' |
           CNI_COMMAND={command} CNI_CONTAINERID=web CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 CNI_PATH=/run /run/tortie-cni"#
    );
    hosts.lab.exec("host1", &["sh", "-c", &script]).unwrap()
}

#[test]
fn each_host_works_with_its_own_user_of_etcd_and_changes_nothing_of_others() {
    let flags = |host: usize| {
        format!("--etcd-user tortie-host{host} --etcd-password-file /store/users/host{host}.password")
    };
    let plan = Plan {
        hosts: 2,
        etcd: 1,
        later: vec![1, 2],
        flags: [(1, flags(1)), (2, flags(2))].into(),
        ..Plan::default()
    };
    let Some(hosts) = Hosts::up(plan) else { return };
    let users =
        ["root", "alice", "tortie-host1", "tortie-host2", "tortie-plugins-host1", "tortie-plugins-host2"];
    let folder = hosts.lab.lab_dir().join("store/users");
    std::fs::create_dir_all(&folder).unwrap();
    for user in users {
        std::fs::write(folder.join(format!("{}.password", file(user))), password(user)).unwrap();
    }
    let [first, host, profile, last] = scripts().try_into().unwrap();
    run(&hosts, &first);
    for name in ["host1", "host2"] {
        run(&hosts, &host.replace("HOST=host1", &format!("HOST={name}")));
    }
    run(&hosts, &profile);
    run(&hosts, &last);

    // Agents: registration, sessions, blocks, endpoints, status.
    hosts.start_agent(1);
    hosts.start_agent(2);
    hosts.until_sessions(1);
    for host in [1, 2] {
        hosts.until(host, "ready, without a problem", |status| {
            status["ready"] == true && status["problems"].as_array().is_some_and(Vec::is_empty)
        });
        assert!(!hosts.log(host).contains("cannot be registered in the store"), "{}", hosts.log(host));
        assert!(!hosts.log(host).contains("permission denied"), "{}", hosts.log(host));
    }
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.2.0/26"]);
    let keys = || stdout(&tortie(&hosts, "alice", &["store", "ls", "/calico/"]));
    within(PATIENCE, "each agent has written its status", || {
        let keys = keys();
        let of = |host: &str| {
            ["/calico/tortie/v1/status/", "/calico/v1/host/"]
                .iter()
                .all(|p| keys.contains(&format!("{p}{host}")))
                && keys.contains(&format!("/calico/v1/host/{host}/metadata"))
                && keys.contains(&format!("/calico/felix/v1/host/{host}/status"))
        };
        if of("host1") && of("host2") { Ok(()) } else { Err(keys) }
    });

    // Plugins: a container is added and deleted.
    let added = cni(&hosts, "ADD");
    assert!(added.status.success(), "{added:?}");
    assert!(keys().contains("/calico/v1/host/host1/workload/cni/web/endpoint/eth0"), "{}", keys());
    assert!(cni(&hosts, "STATUS").status.success());
    let removed = cni(&hosts, "DEL");
    assert!(removed.status.success(), "{removed:?}");
    assert!(!keys().contains("/workload/cni/web/"), "{}", keys());

    // Keys that none of them may write: other hosts' keys, policy, pools, settings and global keys.
    let others = [
        "/calico/v1/Ready",
        "/calico/v1/config/InterfacePrefix",
        "/calico/v1/host/host2/workload/lab/web2/endpoint/eth1",
        "/calico/v1/host/host2/config/LogFilePath",
        "/calico/v1/host/host10/metadata",
        "/calico/v1/ipam/v4/pool/10.9.0.0-16",
        "/calico/v1/policy/profile/lab/rules",
        "/calico/v1/policy/profile/other/rules",
        "/calico/v1/policy/tier/default/policy/all",
        "/calico/bgp/v1/global/as_num",
        "/calico/bgp/v1/global/peer_v4/192.0.2.9",
        "/calico/bgp/v1/host/host2/ip_addr_v4",
        "/calico/bgp/v1/host/host10/ip_addr_v4",
        "/calico/felix/v1/host/host2/status",
        "/calico/ipam/v2/config",
        "/calico/ipam/v2/host/host2/ipv4/block/10.244.9.0-26",
        "/calico/tortie/v1/schema",
        "/calico/tortie/v1/status/host2",
        "/calico/tortie/v1/status/host10",
        "/calico/tortie/v1/host/host2/docker/network/x",
        "/calico/resources/v3/projectcalico.org/nodes/x",
        "/elsewhere",
    ];
    let of_agents = [
        "/calico/v1/host/host1/metadata",
        "/calico/v1/host/host1/config/LogFilePath",
        "/calico/bgp/v1/host/host1/ip_addr_v4",
        "/calico/felix/v1/host/host1/status",
        "/calico/tortie/v1/status/host1",
    ];
    for key in others {
        assert!(!may_write(&hosts, "tortie-host1", key), "{key}");
        assert!(!may_write(&hosts, "tortie-plugins-host1", key), "{key}");
    }
    for key in of_agents {
        assert!(!may_write(&hosts, "tortie-plugins-host1", key), "{key}");
    }
    let global = hosts.try_etcdctl(
        1,
        &[
            "--user=tortie-plugins-host1:secret-of-tortie-plugins-host1",
            "get",
            "--prefix",
            "/calico/bgp/v1/global/",
        ],
    );
    assert!(global.is_err_and(|why| why.contains("permission denied")), "plugins need no peers");
    // A command reports the missing permission and changes nothing.
    let refused =
        tortie(&hosts, "tortie-host1", &["store", "put", "/calico/v1/config/LogSeverityScreen", "DEBUG"]);
    assert!(
        refused.status.code() == Some(4) && stderr(&refused).contains("permission denied"),
        "{refused:?}"
    );

    // The page documents that a host's user can write any block and handle.
    assert!(may_write(&hosts, "tortie-host1", "/calico/ipam/v2/handle/probe"));
    let taken = tortie(&hosts, "tortie-host1", &["ipam", "assign", "--node", "host1", "--handle", "by-hand"]);
    assert!(taken.status.success(), "{taken:?}");
    let freed = tortie(&hosts, "tortie-host1", &["ipam", "release", "--handle", "by-hand"]);
    assert!(freed.status.success(), "{freed:?}");

    // A password is renewed in etcd and by a new file under the old name. The agent reads it in spite of its
    // restricted file access.
    let revision = || {
        let key = "/calico/felix/v1/host/host1/last_reported_status";
        let found = tortie(&hosts, "alice", &["store", "get", key, "-o", "json"]);
        let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap_or_default();
        found["revision"].as_u64().unwrap_or_default()
    };
    std::fs::write(folder.join("renewed"), "another-secret").unwrap();
    let words = "etcdctl --user=root:secret-of-root user passwd tortie-host1 --interactive=false < renewed";
    run(&hosts, words);
    std::fs::rename(folder.join("renewed"), folder.join("host1.password")).unwrap();
    let before = revision();
    assert!(before > 0);
    let soon = tortie(&hosts, "alice", &["store", "put", "/calico/v1/config/ReportingIntervalSecs", "2"]);
    assert!(soon.status.success(), "{soon:?}");
    within(PATIENCE, "the agent writes with the new password", || {
        let now = revision();
        if now > before { Ok(()) } else { Err(format!("revision {now}\n{}", hosts.log(1))) }
    });
    hosts.until(1, "the store is there", |status| status["store"]["away"].is_null());

    // Operators.
    for (words, exit) in [
        (&["ipam", "pools"][..], 0),
        (&["ipam", "blocks"], 0),
        (&["ipam", "show", "10.244.1.0/26"], 0),
        (&["ipam", "pool", "create", "10.9.0.0/16"], 0),
        (&["ipam", "pool", "delete", "10.9.0.0/16"], 0),
        (&["ipam", "configure"], 0),
        (&["node", "list"], 0),
        (&["node", "settings", "host1"], 0),
        (&["status", "--all-nodes"], 0),
        (&["store", "export"], 0),
        (&["store", "put", "/calico/v1/config/LogSeverityScreen", "DEBUG"], 0),
        (&["store", "rm", "--force", "/calico/v1/config/LogSeverityScreen"], 0),
        (&["store", "rm", "--force", "/calico/ipam/v2/handle/probe"], 0),
        (&["store", "validate"], 0),
        (&["policy", "list", "--offline"], 0),
    ] {
        let output = tortie(&hosts, "alice", words);
        assert_eq!(output.status.code(), Some(exit), "{words:?}: {output:?}");
    }
}
