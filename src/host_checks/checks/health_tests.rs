//! Tests of the health checks: snapshots of hosts, and the problems of each.

use super::*;
use crate::host_checks::fix::fix_for;
use crate::host_checks::snapshot::{Clock, Conntrack, HostSnapshot, Role};
use crate::host_checks::table::problems;

fn link(name: &str, mtu: u32, rp_filter: u8) -> Link {
    Link { name: name.to_owned(), mtu, up: true, rp_filter: Some(rp_filter) }
}

fn host(links: &[Link]) -> HostSnapshot {
    HostSnapshot {
        forwarding: [Some(true), Some(true)],
        capabilities: Some(u64::MAX),
        links: links.to_vec(),
        ..HostSnapshot::default()
    }
}

fn role(uplinks: &[&str]) -> Role {
    Role {
        programs: true,
        low_port: true,
        routes: [true, true],
        uplinks: uplinks.iter().map(|name| (*name).to_owned()).collect(),
        tunnels: TUNNELS.iter().map(|(name, ..)| *name).collect(),
        workloads: vec![("cni/web/eth0".to_owned(), "cali1".to_owned())],
        ..Role::default()
    }
}

fn found(now: &HostSnapshot, before: Option<&HostSnapshot>, role: &Role) -> Vec<(String, String)> {
    problems(now, before, role).into_iter().map(|p| (p.code, p.subject)).collect()
}

fn one(code: &str, subject: &str) -> Vec<(String, String)> {
    vec![(code.to_owned(), subject.to_owned())]
}

#[test]
fn a_host_that_is_well_has_no_findings() {
    let well = host(&[link("eth0", 1500, 1), link("tunl0", 1480, 0), link("cali1", 1500, 1)]);
    assert!(problems(&well, Some(&well), &role(&["eth0"])).is_empty());
    // An unreadable value is no problem.
    assert!(problems(&HostSnapshot::default(), None, &role(&["eth0"])).is_empty());
}

#[test]
fn a_strict_filter_matters_only_where_packets_may_come_another_way() {
    let strict = host(&[link("eth0", 1500, 1), link("eth1", 1500, 2)]);
    assert_eq!(found(&strict, None, &role(&["eth0", "eth1"])), one("rp-filter", "eth0"));
    assert!(found(&strict, None, &role(&["eth0"])).is_empty());
    let problem = &problems(&strict, None, &role(&["eth0", "eth1"]))[0];
    assert_eq!(problem.next, "tortie doctor");
    assert_eq!(fix_for(problem), "sysctl -w net.ipv4.conf.eth0.rp_filter=2");
}

#[test]
fn packets_have_to_fit() {
    let tunnel = host(&[link("eth0", 1450, 0), link("tunl0", 1440, 0)]);
    assert_eq!(found(&tunnel, None, &role(&["eth0"])), one("tunnel-mtu", "tunl0"));
    // Of each tunnel the setting is named, and the octets that it adds.
    for (name, mtu, setting) in [
        ("tunl0", 1_430, "IpInIpMtu"),
        ("vxlan.calico", 1_400, "VXLANMTU"),
        ("vxlan-v6.calico", 1_380, "VXLANMTUV6"),
    ] {
        let fits = host(&[link("eth0", 1450, 0), link(name, mtu, 0)]);
        assert!(found(&fits, None, &role(&["eth0"])).is_empty(), "{name}");
        let wide = problems(&host(&[link("eth0", 1450, 0), link(name, mtu + 1, 0)]), None, &role(&["eth0"]));
        assert_eq!(wide.iter().map(|p| p.subject.as_str()).collect::<Vec<_>>(), [name]);
        assert!(wide[0].text.contains(&format!("set {setting} to {mtu} or less")), "{}", wide[0].text);
        assert!(fix_for(&wide[0]).contains(&format!("/calico/v1/config/{setting} ")));
        let unused = Role { tunnels: std::collections::BTreeSet::new(), ..role(&["eth0"]) };
        assert!(
            found(&host(&[link("eth0", 1450, 0), link(name, 1_500, 0)]), None, &unused).is_empty(),
            "{name}"
        );
    }
    let workload = host(&[link("eth0", 1450, 0), link("cali1", 1500, 0)]);
    assert_eq!(found(&workload, None, &role(&["eth0"])), one("workload-mtu", "endpoint cni/web/eth0"));
}

#[test]
fn a_missing_capability_is_a_problem_where_it_is_needed() {
    let bare = HostSnapshot { capabilities: Some(0), forwarding: [Some(false), None], ..host(&[]) };
    let codes: Vec<String> = found(&bare, None, &role(&[])).into_iter().map(|(code, _)| code).collect();
    assert_eq!(codes, ["missing-capability", "missing-capability", "forwarding-off"]);
    let looks_only = Role { programs: false, low_port: false, ..role(&[]) };
    assert!(found(&bare, None, &looks_only).is_empty());
}

#[test]
fn connections_are_too_many_from_nine_tenths_on_or_when_some_were_dropped() {
    let with = |count, dropped| HostSnapshot {
        conntrack: Some(Conntrack { count, max: 1000, dropped }),
        ..host(&[])
    };
    let role = role(&[]);
    assert!(found(&with(899, 0), None, &role).is_empty());
    assert_eq!(found(&with(900, 0), None, &role), one("conntrack-full", "connection tracking"));
    // Drops before the last run are not reported.
    assert!(found(&with(10, 5), Some(&with(10, 5)), &role).is_empty());
    assert_eq!(found(&with(10, 6), Some(&with(10, 5)), &role), one("conntrack-full", "connection tracking"));
}

#[test]
fn a_clock_that_is_set_jumps_and_one_that_sleeps_does_not() {
    let at = |wall, since_boot| HostSnapshot {
        clock: Some(Clock { wall: Duration::from_secs(wall), since_boot: Duration::from_secs(since_boot) }),
        ..host(&[])
    };
    let (start, role) = (at(1_000_000, 50), role(&[]));
    assert!(found(&at(1_000_010, 60), Some(&start), &role).is_empty());
    assert!(found(&at(1_008_000, 8_050), Some(&start), &role).is_empty());
    assert_eq!(found(&at(1_003_610, 60), Some(&start), &role), one("clock-jump", "clock"));
    let back = problems(&at(996_410, 60), Some(&start), &role);
    assert!(back[0].text.contains("set back by 3600.0s"), "{back:?}");
}

#[test]
fn a_chain_of_others_that_drops_what_workloads_send_is_a_problem_with_its_fix() {
    let drop = |family: &str, table: &str, chain: &str, names_workloads| tortie_kernel::ForwardDrop {
        family: family.to_owned(),
        table: table.to_owned(),
        chain: chain.to_owned(),
        by_policy: true,
        names_workloads,
        has_docker_user: false,
    };
    for (family, table, chain, fix) in [
        (
            "ip",
            "filter",
            "FORWARD",
            "iptables -I FORWARD -i cali+ -j ACCEPT; iptables -I FORWARD -o cali+ -j ACCEPT",
        ),
        (
            "ip6",
            "filter",
            "FORWARD",
            "ip6tables -I FORWARD -i cali+ -j ACCEPT; ip6tables -I FORWARD -o cali+ -j ACCEPT",
        ),
        (
            "inet",
            "mine",
            "fwd",
            "nft insert rule inet mine fwd iifname \"cali*\" accept; nft insert rule inet mine fwd oifname \"cali*\" accept",
        ),
    ] {
        let mut now = host(&[]);
        now.forward_drops = vec![drop(family, table, chain, false)];
        let place = format!("chain {family} {table} {chain}");
        assert_eq!(found(&now, None, &role(&[])), one("forward-dropped", &place));
        let problem = &problems(&now, None, &role(&[]))[0];
        assert_eq!((problem.next.as_str(), fix_for(problem).as_str()), ("tortie doctor", fix));
        // No workloads, rules not programmed, or a rule that accepts the workloads: no problem.
        assert!(found(&now, None, &Role { workloads: Vec::new(), ..role(&[]) }).is_empty());
        assert!(found(&now, None, &Role { programs: false, ..role(&[]) }).is_empty());
        now.forward_drops = vec![drop(family, table, chain, true)];
        assert!(found(&now, None, &role(&[])).is_empty());
    }
}
