//! `--kernel observe` next to a real BIRD 2 with Calico's configuration, and Felix's rules and sets in both
//! backends of iptables and in ipset: nothing is written, an equal state shows no differences, and each real
//! difference is found.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;
use tortie::foreign::felix::set_id;

use crate::common::felix_rules::calico1;
use crate::common::felix_rules::calico2::Felix;
use crate::common::hosts::{Hosts, PATIENCE, Plan, lab_data, stderr, stdout, within};

/// Returns the lab's data with a policy that has a selector, and without IPv6.
fn data() -> std::collections::BTreeMap<String, String> {
    let mut data = lab_data(3, false);
    let policy = r#"{"selector":"app == 'web1'","order":10,"inbound_rules":[{"action":"allow","src_selector":"app == 'web2'"}],"outbound_rules":[{"action":"allow"}]}"#;
    data.insert("/calico/v1/policy/tier/default/policy/web".to_owned(), policy.to_owned());
    data.insert("/calico/v1/config/Ipv6Support".to_owned(), "false".to_owned());
    data
}

/// Returns the configuration that confd generates on a host of three, in the syntax of BIRD 2. BIRD scans the
/// kernel rarely, so that it does not repair what the test breaks.
fn bird_conf(host: usize) -> String {
    let addresses = |n: usize| (format!("172.30.0.{n}"), format!("Mesh_172_30_0_{n}"));
    conf(host, 3, "ipv4", &|n| format!("10.244.{n}.0/26"), "10.244.0.0/16", &addresses)
}

/// Returns the configuration of the second daemon, `bird6`, on a host of two.
fn bird6_conf(host: usize) -> String {
    let addresses = |n: usize| (format!("fd30::{n}"), format!("Mesh_fd30__{n}"));
    conf(host, 2, "ipv6", &|n| format!("fd00:10:244:{n}::/122"), "fd00:10:244::/48", &addresses)
}

fn conf(
    host: usize,
    hosts: usize,
    family: &str,
    block: &dyn Fn(usize) -> String,
    pool: &str,
    address: &dyn Fn(usize) -> (String, String),
) -> String {
    let (own, block) = (address(host).0, block(host));
    let mut conf = format!(
        "router id 172.30.0.{host};\nprotocol device {{ scan time 2; }}\n\
         protocol direct {{ interface -\"cali*\", -\"kube-ipvs*\", \"*\"; {family}; }}\n\
         protocol static {{ {family}; route {block} blackhole; }}\n\
         filter calico_export_to_bgp_peers {{\n  if net = {block} then accept;\n  \
         if net ~ {block} then reject;\n  if net ~ {pool} then accept;\n  reject;\n}}\n\
         protocol kernel {{ learn; persist; scan time 3600; graceful restart; merge paths on; {family} {{ import all; export all; }}; }}\n"
    );
    for other in (1..=hosts).filter(|other| *other != host) {
        let (far, name) = address(other);
        let _ = writeln!(
            conf,
            "protocol bgp {name} {{ local {own} as 64512; neighbor {far} as 64512; multihop; \
             graceful restart; connect delay time 1; connect retry time 1; {family} {{ import all; \
             export filter calico_export_to_bgp_peers; add paths on; gateway recursive; }}; }}"
        );
    }
    conf
}

/// Returns Felix's rules for the only endpoint of a host; `set` is the set of the policy's selector, if a
/// policy selects it.
fn felix(v4: bool, set: Option<&str>) -> String {
    let from = set.map(|set| format!("-m set --match-set {set} src"));
    let policy = from.as_deref().map(|from| ("web", [from, ""]));
    Felix { v4, ipip: false, masquerade: false, interface: "cali1", profile: "lab", policy }.rules()
}

/// Provides the real tools, as on a host with iptables.
fn tools(hosts: &Hosts) -> bool {
    let peers = std::env::var_os("TORTIE_PEERS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/peers/bin"), PathBuf::from);
    let root = peers.parent().map(|peers| peers.join("root")).unwrap_or_default();
    if !root.join("usr/sbin/xtables-legacy-multi").exists() {
        assert!(std::env::var_os("CI").is_none(), "no iptables in {}", root.display());
        eprintln!("skipped: no iptables in {}; tests/tools/peers.sh brings it", root.display());
        return false;
    }
    hosts.tool("ipset", &format!("exec {}/ipset \"$@\"", peers.display()));
    let root = root.display();
    for backend in ["legacy", "nft"] {
        for family in ["iptables", "ip6tables"] {
            for what in ["", "-save", "-restore"] {
                let name = format!("{family}-{backend}{what}");
                let script = format!(
                    "for d in {root}/usr/lib/*-linux-gnu; do l=$d; done\n\
                     export LD_LIBRARY_PATH=$l:{root}/lib/${{l##*/}} XTABLES_LIBDIR=$l/xtables XTABLES_LOCKFILE=/tmp/xtables.lock\n\
                     exec {root}/usr/sbin/xtables-{backend}-multi {family}{what} \"$@\""
                );
                hosts.tool(&name, &script);
            }
        }
    }
    true
}

fn sh(hosts: &Hosts, host: usize, script: &str) -> String {
    let words = ["sh", "-c", &format!("PATH=/store/bin:$PATH; set -e; {script}")];
    let output = hosts.lab.exec(&Hosts::node(host), &words).unwrap();
    assert!(output.status.success(), "host{host}: {script}: {}", stderr(&output));
    stdout(&output)
}

/// Returns the kernel state that others could change, without counters and times.
fn kernel(hosts: &Hosts, host: usize) -> String {
    let text = sh(
        hosts,
        host,
        "ip route show table all; ip -6 route show table all; ip rule; ip -d link; ip addr; ip neigh show nud permanent; \
         iptables-legacy-save; iptables-nft-save; nft -s list ruleset; ipset save; sysctl -a 2>/dev/null | grep -E 'forward|rp_filter|proxy_arp'",
    );
    let bare = |line: &str| {
        let line = line.split(" [").next().unwrap_or_default();
        line.split(" expires").next().unwrap_or_default().to_owned()
    };
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.contains("valid_lft"))
        .map(bare)
        .collect::<Vec<_>>()
        .join("\n")
}

fn diff(hosts: &Hosts, host: usize) -> (Option<i32>, Vec<String>, Value) {
    let output = hosts.tortie(host, &["diff", "-o", "json"]);
    let diff: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let lines =
        diff["sections"].as_array().unwrap().iter().flat_map(|section| section["lines"].as_array().unwrap());
    let text =
        |line: &Value| format!("{} {}", line["mark"].as_str().unwrap(), line["text"].as_str().unwrap());
    (output.status.code(), lines.map(text).collect(), diff)
}

/// Waits until `diff` on a host finds exactly these differences, given by the beginnings of their lines.
fn until_differing(hosts: &Hosts, host: usize, expected: &[&str]) {
    within(PATIENCE, "the differences", || {
        let (code, lines, _) = diff(hosts, host);
        let found = differing(&lines);
        let has = |line: &&str| found.iter().any(|found| found.starts_with(line));
        let right = code == Some(1) && found.len() == expected.len() && expected.iter().all(has);
        if right { Ok(()) } else { Err(format!("{code:?} {lines:#?}")) }
    });
}

/// Waits until duplicate address detection of a host's interfaces is over, which changes addresses and routes.
fn until_addresses_settle(hosts: &Hosts, host: usize) {
    within(PATIENCE, "no address is tentative", || match sh(hosts, host, "ip address") {
        text if text.contains("tentative") => Err(text),
        _ => Ok(()),
    });
}

fn differing(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| !line.starts_with('?')).collect()
}

#[test]
fn observe_sees_what_bird_and_felix_left_and_touches_nothing() {
    let flags = [
        (1, "--kernel observe --bird-socket /run/bird1.ctl".to_owned()),
        (2, "--kernel observe --bird-socket /run/bird2.ctl --http 127.0.0.1:9300".to_owned()),
    ];
    let plan =
        Plan { hosts: 3, data: Some(data()), later: vec![1, 2, 3], flags: flags.into(), ..Plan::default() };
    let Some(hosts) = Hosts::up(plan) else { return };
    if !tools(&hosts) {
        return;
    }
    let share = |name: &str, text: &str| {
        let path = hosts.lab.lab_dir().join("store").join(name);
        std::fs::write(path, text).unwrap();
    };
    let set = format!("cali40{}", set_id(r#"app == "web2""#));
    share("web.rules", &felix(true, Some(&set)));
    share("plain.rules", &felix(true, None));
    share("sets", &format!("create {set} hash:net family inet maxelem 1048576\nadd {set} 10.244.2.1\n"));
    for host in [1, 2, 3] {
        share(&format!("bird{host}.conf"), &bird_conf(host));
        sh(&hosts, host, &format!("bird -c /store/bird{host}.conf -s /run/bird{host}.ctl -P /run/bird.pid"));
        sh(
            &hosts,
            host,
            &format!(
                "ip link add cali1 type veth peer name c1; ip link set cali1 up; ip link set c1 up; \
                 ip route add 10.244.{host}.1/32 dev cali1 scope link"
            ),
        );
    }
    sh(&hosts, 1, "ipset restore < /store/sets; iptables-legacy-restore < /store/web.rules");
    sh(&hosts, 2, "iptables-nft-restore < /store/plain.rules");
    for host in [1, 2] {
        within(PATIENCE, "BIRD has all routes", || {
            let routes = hosts.run(&Hosts::node(host), "ip route show proto bird");
            let all = (1..=3).all(|n| routes.contains(&format!("10.244.{n}.0/26")));
            if all { Ok(()) } else { Err(routes) }
        });
    }
    let exported = || stdout(&hosts.store(&["export"]));
    (1..=2).for_each(|host| until_addresses_settle(&hosts, host));
    let before = (exported(), kernel(&hosts, 1), kernel(&hosts, 2));
    hosts.start_agent(1);
    hosts.start_agent(2);

    // Everything matches, and unknown parts are reported.
    for host in [1, 2] {
        let status = hosts.until(host, "has compared", |s| s["ready"] == true && s["beside"].is_object());
        let (code, lines, _) = diff(&hosts, host);
        assert_eq!((code, differing(&lines)), (Some(6), Vec::<&str>::new()), "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("are not compared")), "{lines:#?}");
        let unknown: Vec<&str> = lines.iter().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(unknown, ["? neighbours", "? frame"], "{lines:#?}");
        assert_eq!(status["verdict"], "ready", "{status:#}");
        assert_eq!(
            (&status["bgp"]["mesh"]["up"], &status["bgp"]["mesh"]["of"]),
            (&2.into(), &2.into()),
            "{status:#}"
        );
        let planes = status["beside"]["planes"].as_array().unwrap();
        let equal =
            |name: &str| planes.iter().find(|p| p["plane"] == name).unwrap()["equal"].as_u64().unwrap();
        assert_eq!((equal("route"), equal("interface"), equal("session")), (3, 1, 2), "{status:#}");
        let words = status["beside"]["felix"].to_string();
        assert!(
            words.contains(if host == 1 { "iptables-legacy filter" } else { "iptables-nft filter" }),
            "{words}"
        );
    }
    let screen = stdout(&hosts.tortie(1, &["status"]));
    assert!(screen.contains("observes: ") && screen.contains("2 of 2 sessions up"), "{screen}");
    // Neither the BGP port nor Felix's health port is in use.
    let sockets = |host: usize| hosts.run(&Hosts::node(host), "cat /proc/net/tcp");
    let listens = |host: usize, port: u16| {
        sockets(host).lines().any(|line| line.contains(&format!(":{port:04X} ")) && line.contains(" 0A "))
    };
    assert!(!listens(1, 9099) && !listens(2, 9099) && listens(2, 9300), "{}", sockets(2));
    assert!(hosts.log(1).contains("observes") || !hosts.log(1).contains("listen"), "{}", hosts.log(1));
    let peers = hosts.tortie(1, &["bgp", "peers"]);
    assert!(!peers.status.success() && stderr(&peers).contains("observes"), "{peers:?}");
    let after = (exported(), kernel(&hosts, 1), kernel(&hosts, 2));
    assert_eq!(before.0, after.0, "the store");
    assert_eq!(before.1, after.1, "the kernel of host1");
    assert_eq!(before.2, after.2, "the kernel of host2");

    // Real differences, one of each kind.
    sh(
        &hosts,
        1,
        "ip route del 10.244.3.0/26 proto bird; ip route replace 10.244.2.0/26 via 172.30.0.3 dev eth1 proto bird metric 32; \
         ip route add 10.244.77.0/26 via 172.30.0.2 dev eth1 proto bird; ip route del 10.244.1.1/32; \
         ip route add 198.51.100.0/24 via 172.30.0.2",
    );
    sh(
        &hosts,
        1,
        &format!(
            "iptables-legacy -D cali-to-wl-dispatch 1; iptables-legacy -F cali-tw-cali1; \
             iptables-legacy -X cali-tw-cali1; ipset del {set} 10.244.2.1; ipset add {set} 10.244.9.9"
        ),
    );
    let expected = [
        "- 10.244.1.1/32: route to cali1: missing",
        "- 10.244.3.0/26: route to block of host3 over 172.30.0.3: missing",
        "~ 10.244.2.0/26: block of host2: should be via 172.30.0.2 dev eth1",
        "+ 10.244.77.0/26: via 172.30.0.2 dev eth1, proto bird: no peer announces it any more",
        "~ app == \"web2\": ",
        "- cali-tw-cali1: ",
    ];
    until_differing(&hosts, 1, &expected);
    hosts.until(1, "says so", |s| {
        let problems = s["problems"].to_string();
        s["verdict"] == "degraded"
            && problems.contains("tortie diff routes")
            && problems.contains("tortie diff rules")
    });
    let counted = [
        "tortie_drift_items{plane=\"route\",kind=\"missing\"} 1",
        "tortie_drift_items{plane=\"route\",kind=\"different\"} 1",
        "tortie_drift_items{plane=\"route\",kind=\"extra\"} 1",
        "tortie_drift_items{plane=\"interface\",kind=\"missing\"} 1",
        "tortie_drift_items{plane=\"set\",kind=\"different\"} 1",
        "tortie_drift_items{plane=\"rule\",kind=\"missing\"} 1",
        "tortie_kernel_mode{mode=\"observe\"} 1",
    ];
    within(PATIENCE, "the metrics say so", || {
        let (_, page) = hosts.ask(1, "GET", "/metrics", "")?;
        match counted.iter().find(|line| !page.contains(**line)) {
            Some(line) => Err(format!("no {line}: {page}")),
            None => Ok(()),
        }
    });

    // BIRD ends: its routes stay, and what only BIRD knew counts as not compared.
    let (_, _, whole) = diff(&hosts, 2);
    let sessions = |diff: &Value| {
        diff["sections"].as_array().unwrap().iter().find(|s| s["what"] == "sessions").unwrap().clone()
    };
    assert_eq!(sessions(&whole)["equal"], 2);
    sh(&hosts, 2, "kill $(cat /run/bird.pid)");
    within(PATIENCE, "BIRD is gone", || {
        let (_, lines, whole) = diff(&hosts, 2);
        let now = sessions(&whole);
        let gone = now["equal"] == 0 && now["notJudged"] == 2 && now["count"] == 0;
        if gone && whole["unseen"].to_string().contains("control socket") {
            Ok(())
        } else {
            Err(format!("{lines:#?}"))
        }
    });
    assert!(exported() == before.0, "the store");

    // Calico 1 instead, with the older tools: its chains and sets are found, but not compared.
    share("old.sets", calico1::SETS);
    share("old.rules", calico1::RULES);
    share("old.nat", calico1::NAT);
    sh(
        &hosts,
        2,
        "printf '*raw\\nCOMMIT\\n*mangle\\nCOMMIT\\n*nat\\nCOMMIT\\n*filter\\nCOMMIT\\n' | iptables-nft-restore; \
         iptables-legacy-restore --noflush < /store/old.rules; ipset restore < /store/old.sets; \
         iptables-legacy-restore --noflush < /store/old.nat",
    );
    within(PATIENCE, "Calico 1 is found, and not compared", || {
        let (_, lines, _) = diff(&hosts, 2);
        let old = |line: &String| line.starts_with("? cali1: ") && line.contains("Calico 1");
        let compared = differing(&lines).iter().any(|line| line.contains("cali1") || line.contains("felix"));
        if lines.iter().any(old) && !compared { Ok(()) } else { Err(format!("{lines:#?}")) }
    });
    hosts.until(2, "has compared", |s| s["beside"]["felix"].to_string().contains("iptables-legacy filter"));
}

/// Returns the data of two hosts with both families.
fn dual_data() -> std::collections::BTreeMap<String, String> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("topology/labs/dual-stack/store.json");
    let text = std::fs::read_to_string(file).unwrap().replace("fd00:172:30::", "fd30::");
    let mut data: std::collections::BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    data.retain(|key, _| !key.contains("host3") && !key.contains("web3"));
    let mesh = r#"{"enabled":true,"per_family":true}"#;
    data.insert("/calico/bgp/v1/global/node_mesh".to_owned(), mesh.to_owned());
    let policy = r#"{"selector":"app == 'web1'","order":10,"inbound_rules":[{"action":"allow","src_selector":"app == 'web2'"}],"outbound_rules":[{"action":"allow"}]}"#;
    data.insert("/calico/v1/policy/tier/default/policy/web".to_owned(), policy.to_owned());
    data
}

#[test]
fn observe_compares_the_second_family_and_its_own_bird_too() {
    let flags = [(1, "--kernel observe --bird-socket /run/bird.ctl,/run/bird6.ctl".to_owned())];
    let plan = Plan {
        hosts: 2,
        data: Some(dual_data()),
        later: vec![1, 2],
        flags: flags.into(),
        dual: true,
        ..Plan::default()
    };
    let Some(hosts) = Hosts::up(plan) else { return };
    if !tools(&hosts) {
        return;
    }
    let share = |name: &str, text: &str| {
        std::fs::write(hosts.lab.lab_dir().join("store").join(name), text).unwrap();
    };
    let sets = ["cali40", "cali60"].map(|family| format!("{family}{}", set_id(r#"app == "web2""#)));
    share("4.rules", &felix(true, Some(&sets[0])));
    share("6.rules", &felix(false, Some(&sets[1])));
    let [four, six] = &sets;
    share(
        "sets",
        &format!(
            "create {four} hash:net family inet maxelem 1048576\nadd {four} 10.244.2.1\n\
             create {six} hash:net family inet6 maxelem 1048576\nadd {six} fd00:10:244:2::1\n"
        ),
    );
    for host in [1, 2] {
        // Two daemons, as in Calico.
        let four =
            bird_conf(host).lines().filter(|line| !line.contains("_0_3 ")).collect::<Vec<_>>().join("\n");
        share(&format!("four{host}.conf"), &four);
        share(&format!("six{host}.conf"), &bird6_conf(host));
        sh(
            &hosts,
            host,
            &format!(
                "sysctl -qw net.ipv6.conf.all.forwarding=1; ip link add cali1 type veth peer name c1; ip link set cali1 up; \
                 ip link set c1 up; ip route add 10.244.{host}.1/32 dev cali1 scope link; \
                 ip -6 route add fd00:10:244:{host}::1/128 dev cali1; \
                 bird -c /store/four{host}.conf -s /run/bird.ctl -P /run/bird.pid; \
                 bird -c /store/six{host}.conf -s /run/bird6.ctl -P /run/bird6.pid"
            ),
        );
    }
    sh(
        &hosts,
        1,
        "ipset restore < /store/sets; iptables-nft-restore < /store/4.rules; ip6tables-nft-restore < /store/6.rules",
    );
    within(PATIENCE, "both BIRDs have all routes", || {
        let routes = sh(&hosts, 1, "ip route show proto bird; ip -6 route show proto bird");
        let all = ["10.244.2.0/26", "fd00:10:244:1::/122", "fd00:10:244:2::/122"];
        if all.iter().all(|block| routes.contains(block)) { Ok(()) } else { Err(routes) }
    });
    until_addresses_settle(&hosts, 1);
    let before = kernel(&hosts, 1);
    hosts.start_agent(1);
    let status = hosts.until(1, "has compared", |s| s["ready"] == true && s["beside"].is_object());
    let (code, lines, _) = diff(&hosts, 1);
    assert_eq!((code, differing(&lines)), (Some(6), Vec::<&str>::new()), "{lines:#?}");
    let unknown: Vec<&str> = lines.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(unknown, ["? neighbours", "? frame", "? frame (IPv6)"], "{lines:#?}");
    let equal = |status: &Value, name: &str| {
        let planes = status["beside"]["planes"].as_array().unwrap();
        planes.iter().find(|p| p["plane"] == name).unwrap()["equal"].as_u64().unwrap()
    };
    // Per family: own block and the other host's, the endpoint, the session; one set for both.
    let planes = ["route", "interface", "session", "set"].map(|name| equal(&status, name));
    assert_eq!(planes, [4, 2, 2, 2], "{status:#}");
    assert_eq!(equal(&status, "rule") % 2, 0, "{status:#}");
    assert!(status["beside"]["felix"].to_string().contains("iptables-nft filter IPv6"), "{status:#}");
    assert_eq!(kernel(&hosts, 1), before, "nothing is touched");

    // One difference of each kind, in the second family only.
    sh(
        &hosts,
        1,
        &format!(
            "ip -6 route del fd00:10:244:2::/122 proto bird; ip -6 route add fd00:10:244:77::/122 via fd30::2 dev eth1 proto bird; \
             ip -6 route del fd00:10:244:1::1/128; ip6tables-nft -D cali-to-wl-dispatch 1; \
             ipset del {six} fd00:10:244:2::1"
        ),
    );
    let expected = [
        "- fd00:10:244:2::/122: route to block of host2 over fd30::2: missing",
        "+ fd00:10:244:77::/122: via fd30::2 dev eth1, proto bird: no peer announces it any more",
        "- fd00:10:244:1::1/128: route to cali1: missing",
        "~ cali-tw-cali1 (IPv6): no rule of cali-to-wl-dispatch sends packets of cali1 there",
        "~ app == \"web2\": ",
    ];
    until_differing(&hosts, 1, &expected);
}
