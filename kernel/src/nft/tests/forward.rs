//! Forward chains of other programs, and the rules in Docker's.

use std::time::{Duration, Instant};

use crate::nft::forward::{Admission, forward_drops, withdraw};
use crate::nft::tests::kernel::{in_netns, nft, run};

/// As left by dockerd 20.10 (`iptables-save`), without its own networks.
const DOCKER: &str = "table ip filter {
    chain DOCKER { }
    chain DOCKER-USER { counter return; }
    chain FORWARD {
        type filter hook forward priority 0; policy drop;
        counter jump DOCKER-USER
        oifname \"docker0\" ct state established,related counter accept
        oifname \"docker0\" counter jump DOCKER
        iifname \"docker0\" oifname != \"docker0\" counter accept
    }
}";

fn prefixes() -> Vec<String> {
    vec!["cali".to_owned()]
}

#[test]
fn chains_that_drop_what_nothing_accepts_are_found() {
    let Some(nft) = nft() else { return };
    in_netns(move || {
        let forward = |family: &str, policy: &str, rules: &str| {
            format!(
                "table {family} t {{ chain other {{ }}\n chain f {{ type filter hook forward priority 0; policy {policy};\n{rules}\n}}\n}}"
            )
        };
        let names = "iifname \"cali*\" accept\n oifname \"cali*\" accept";
        for (text, expected) in [
            (forward("ip", "accept", ""), None),
            (forward("ip", "accept", "iifname \"eth0\" drop"), None),
            (forward("ip", "drop", ""), Some(("ip", true, false))),
            (forward("ip6", "drop", "iifname \"eth0\" accept"), Some(("ip6", true, false))),
            (forward("inet", "drop", names), Some(("inet", true, true))),
            // Last rule of firewalld.
            (
                forward(
                    "inet",
                    "accept",
                    "ct state established accept\n reject with icmpx type admin-prohibited",
                ),
                Some(("inet", false, false)),
            ),
            (forward("inet", "accept", "counter drop"), Some(("inet", false, false))),
            (forward("inet", "accept", "counter drop\n accept"), None),
            (forward("inet", "accept", &format!("{names}\n drop")), Some(("inet", false, true))),
            (forward("arp", "accept", "").replace("forward", "input"), None),
            ("table ip t { chain i { type filter hook input priority 0; policy drop;\n}\n}".to_owned(), None),
            // Tortie's table is not another program's.
            (forward("inet", "accept", "drop").replace("inet t", "inet tortie"), None),
        ] {
            run(&nft, &["-f", "-"], &format!("flush ruleset\n{text}\n"));
            let found = forward_drops(&prefixes()).unwrap();
            let found: Vec<_> =
                found.iter().map(|d| (d.family.as_str(), d.by_policy, d.names_workloads)).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{text}");
        }
    });
}

#[test]
fn dockers_chain_lets_workloads_pass_while_there_are_any_and_has_nothing_of_ours_after() {
    let Some(nft) = nft() else { return };
    in_netns(move || {
        let list = || run(&nft, &["list", "chain", "ip", "filter", "DOCKER-USER"], "");
        let ours = || list().matches("tortie:").count();
        let mut admission = Admission::default();
        let mut now = Instant::now();
        let mut check = |needed: bool| {
            now += Duration::from_secs(1);
            admission.check(now, needed, &prefixes()).unwrap()
        };
        // Without dockerd nothing is created.
        check(true);
        assert_eq!(run(&nft, &["list", "ruleset"], ""), "");
        run(&nft, &["-f", "-"], DOCKER);
        let before = list();
        check(false);
        assert_eq!(list(), before, "nobody is there");
        check(true);
        let there = list();
        assert_eq!(ours(), 4, "{there}");
        assert!(
            there.contains("iifname \"cali*\" counter") && there.contains("oifname \"cali*\" counter"),
            "{there}"
        );
        assert!(there.find("oifname \"docker*\"") < there.find("iifname \"cali*\" counter"), "{there}");
        assert!(forward_drops(&prefixes()).unwrap()[0].names_workloads);
        check(true);
        assert_eq!(list(), there, "twice is once");
        // An operator's rules before Tortie's stay there, and Tortie's are restored after they were removed.
        run(&nft, &["insert", "rule", "ip", "filter", "DOCKER-USER", "ip", "saddr", "192.0.2.9", "drop"], "");
        check(true);
        assert!(list().find("192.0.2.9") < list().find("tortie:"), "{}", list());
        run(&nft, &["flush", "chain", "ip", "filter", "DOCKER-USER"], "");
        run(&nft, &["add", "rule", "ip", "filter", "DOCKER-USER", "counter", "return"], "");
        check(true);
        assert_eq!(ours(), 4);
        // FORWARD accepts again, so the rules are not needed.
        run(&nft, &["chain", "ip", "filter", "FORWARD", "{ policy accept; }"], "");
        check(true);
        assert_eq!(ours(), 0, "{}", list());
        run(&nft, &["chain", "ip", "filter", "FORWARD", "{ policy drop; }"], "");
        check(true);
        assert_eq!(ours(), 4);
        // The last workload is removed; then `tortie purge` without an agent.
        check(false);
        assert_eq!(list(), before);
        Admission::default().check(now, true, &prefixes()).unwrap();
        assert_eq!((withdraw(true).unwrap(), ours()), (4, 4));
        assert_eq!((withdraw(false).unwrap(), ours()), (4, 0));
        assert_eq!(withdraw(false).unwrap(), 0);
    });
}
