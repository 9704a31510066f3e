//! The agent's use of addresses: its own tunnel address, and the release of leaked ones.

use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::common::hosts::{Hosts, PATIENCE, Plan, TORTIE, stdout, within};

fn tortie(hosts: &Hosts, host: usize, words: &[&str]) -> Output {
    let node = format!("host{host}");
    let all = [&["--datastore", "sqlite:/store/store.db", "--node", &node], words].concat();
    hosts.tortie(host, &all)
}

fn assign(hosts: &Hosts, host: usize, words: &[&str]) -> Vec<String> {
    let output = tortie(hosts, host, &[&["ipam", "assign"], words].concat());
    assert!(output.status.success(), "{output:?}");
    stdout(&output).lines().map(|line| line.split('/').next().unwrap().to_owned()).collect()
}

fn show(hosts: &Hosts, addr: &str) -> Value {
    serde_json::from_slice(&tortie(hosts, 1, &["ipam", "show", addr, "-o", "json"]).stdout).unwrap()
}

fn key(host: usize) -> String {
    format!("/calico/v1/host/host{host}/config/IpInIpTunnelAddr")
}

fn stored(hosts: &Hosts, host: usize) -> Option<String> {
    let output = hosts.store(&["get", &key(host)]);
    output.status.success().then(|| stdout(&output).trim().to_owned())
}

/// Waits for a tunnel address in a prefix, given by its first three octets.
fn until_in(hosts: &Hosts, host: usize, head: &str) -> String {
    let mut found = String::new();
    within(PATIENCE, &format!("host{host} has a tunnel address in {head}"), || {
        found = stored(hosts, host).filter(|addr| addr.starts_with(head)).ok_or_else(|| hosts.log(host))?;
        Ok(())
    });
    found
}

fn pool(net: &str, ipip: &str, disabled: bool) -> (String, String) {
    let key = format!("/calico/v1/ipam/v4/pool/{}", net.replace('/', "-"));
    let value = serde_json::json!({
        "cidr": net, "ipip": ipip, "ipip_mode": "always", "masquerade": false, "ipam": true, "disabled": disabled,
    });
    (key, value.to_string())
}

#[test]
fn the_tunnel_address_comes_and_goes_with_its_pools() {
    let Some(hosts) = Hosts::up(Plan { hosts: 2, ..Plan::default() }) else { return };
    for host in [1, 2] {
        hosts.until(host, "it runs", |status| status["ready"] == true);
        assert_eq!(stored(&hosts, host), None, "no pool is tunnelled");
    }
    let put = |(key, value): (String, String)| hosts.put(&key, &value);
    put(pool("10.250.0.0/24", "tunl0", false));
    let own = [1, 2].map(|host| until_in(&hosts, host, "10.250.0."));
    assert_ne!(own[0], own[1]);
    let held = show(&hosts, &own[0]);
    assert_eq!(held["handle"], "ipip-tunnel-addr-host1");
    assert_eq!(held["attributes"], serde_json::json!({ "node": "host1", "type": "ipipTunnelAddress" }));
    assert_eq!(held["tunnelOf"], serde_json::json!(["host1"]));
    let check = stdout(&tortie(&hosts, 1, &["ipam", "check", "--store-only", "-o", "json"]));
    assert!(check.contains("\"findings\"") && !check.contains("10.250."), "{check}");

    // If the key has another host's address, the own one is restored. A deleted key is written again.
    hosts.put(&key(2), &own[0]);
    within(PATIENCE, "host2 has its own again", || {
        if stored(&hosts, 2).as_ref() == Some(&own[1]) { Ok(()) } else { Err(hosts.log(2)) }
    });
    hosts.rm(&key(1));
    assert_eq!(until_in(&hosts, 1, "10.250.0."), own[0]);

    // Addresses of a disabled pool stay allocated; when it is deleted, the address moves to an enabled pool.
    put(pool("10.250.0.0/24", "tunl0", true));
    put(pool("10.251.0.0/24", "tunl0", false));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(stored(&hosts, 1).as_ref(), Some(&own[0]));
    hosts.rm("/calico/v1/ipam/v4/pool/10.250.0.0-24");
    let moved = [1, 2].map(|host| until_in(&hosts, host, "10.251.0."));
    within(PATIENCE, "the old ones are free", || {
        let left: Vec<&String> = own.iter().filter(|addr| show(&hosts, addr)["allocated"] == true).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });

    // An operator's address outside of the pools stays, and the addresses of the handle are released.
    hosts.put(&key(2), "192.0.2.77");
    within(PATIENCE, "host2's former address is free", || {
        if show(&hosts, &moved[1])["allocated"] == false { Ok(()) } else { Err(hosts.log(2)) }
    });
    put(pool("10.251.0.0/24", "", false));
    within(PATIENCE, "no IPIP pool remains", || {
        let gone = stored(&hosts, 1).is_none() && show(&hosts, &moved[0])["allocated"] == false;
        if gone { Ok(()) } else { Err(hosts.log(1)) }
    });
    assert_eq!(stored(&hosts, 2).as_deref(), Some("192.0.2.77"));
    let handles = stdout(&hosts.store(&["ls", "/calico/ipam/v2/handle/ipip"]));
    assert_eq!(handles.trim(), "");
    let history = hosts.get(1, "/v1/history?max=200").map(|v| v.to_string()).unwrap_or_else(|_| hosts.log(1));
    assert!(history.contains("moved from"), "{history}");
}

#[test]
fn a_full_pool_is_reported_and_the_address_comes_when_there_is_room() {
    let Some(hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until(1, "it runs", |status| status["ready"] == true);
    // A pool of one block, full before it uses IPIP.
    let (pool_key, plain) = pool("10.250.0.0/26", "", false);
    hosts.put(&pool_key, &plain);
    assign(&hosts, 1, &["--num4", "64", "--pool", "10.250.0.0/26", "--handle", "all"]);
    hosts.put(&pool_key, &pool("10.250.0.0/26", "tunl0", false).1);
    let status = hosts.until(1, "the lack is told", |s| s["problems"].to_string().contains("tunnel-address"));
    assert!(status["problems"].to_string().contains("10.250.0.0/26"), "{status:#}");
    assert!(tortie(&hosts, 1, &["ipam", "release", "--handle", "all"]).status.success());
    until_in(&hosts, 1, "10.250.0.");
    hosts.until(1, "nothing lacks", |s| !s["problems"].to_string().contains("tunnel-address"));
}

#[test]
fn the_collector_takes_back_what_nobody_has_for_the_grace_time() {
    let Some(hosts) = Hosts::up(Plan { hosts: 2, ..Plan::default() }) else { return };
    hosts.until(1, "it runs", |status| status["ready"] == true);
    let own = |words: &[&str]| assign(&hosts, 1, words);
    let leaked = own(&["--num4", "2", "--handle", "lab.gone"]);
    let used = own(&["--handle", "lab.iface"]);
    hosts.run("host1", &format!("ip address add {}/32 dev lo", used[0]));
    let half = own(&["--num4", "2", "--handle", "lab.half"]);
    hosts.run("host1", &format!("ip address add {}/32 dev lo", half[0]));
    // The gateway of a Docker network is on no interface; the driver's record shows that it is in use.
    let gateway = own(&["--handle", "libnetwork.gateway"]);
    hosts.put(&format!("/calico/tortie/v1/host/host1/docker/address/global/{}", gateway[0]), "{}");
    let foreign = own(&["--handle", "lab.other", "--attr", "node=somebody"]);
    let free = |addr: &str| show(&hosts, addr)["allocated"] == false;
    // Disabled by default.
    std::thread::sleep(Duration::from_secs(3));
    assert!(leaked.iter().all(|addr| !free(addr)));
    let begin = std::time::Instant::now();
    hosts.put("/calico/v1/config/IpamLeakGracePeriodSecs", "3");
    within(PATIENCE, "the leaked addresses are free", || {
        if leaked.iter().all(|addr| free(addr)) { Ok(()) } else { Err(hosts.log(1)) }
    });
    assert!(begin.elapsed() > Duration::from_secs(3), "not before the grace time");
    std::thread::sleep(Duration::from_secs(5));
    for addr in [&used[0], &half[0], &half[1], &gateway[0], &foreign[0]] {
        assert!(!free(addr), "{addr}: {}", hosts.log(1));
    }
    let (_, metrics) = hosts.ask(1, "GET", "/metrics", "").unwrap();
    assert!(metrics.contains("tortie_ipam_collected_addresses_total 2"), "{metrics}");
    within(PATIENCE, "the suspects are counted", || {
        let (_, metrics) = hosts.ask(1, "GET", "/metrics", "")?;
        let mut lines = metrics
            .lines()
            .filter(|l| l.starts_with("tortie_ipam_suspect_addresses{") && l.contains("kind=\"leaked\""));
        // One address that this host lost, and one of a host that no longer exists.
        if lines.any(|l| l.ends_with(" 2")) { Ok(()) } else { Err(metrics) }
    });
    let log = hosts.log(1);
    assert!(log.contains(&format!("{}: released", leaked[0])) && log.contains("lab.gone"), "{log}");
    // The second address of the handle is leaked, too: now both are released.
    hosts.run("host1", &format!("ip address del {}/32 dev lo", half[0]));
    within(PATIENCE, "the whole handle is free", || {
        if half.iter().all(|addr| free(addr)) { Ok(()) } else { Err(hosts.log(1)) }
    });
}

/// Exclusions that plugins query before they allocate: addresses of hosts in pools, and those that only this
/// host's kernel knows.
#[test]
fn the_agent_knows_which_addresses_of_pools_others_have() {
    let Some(hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until(1, "it runs", |status| status["ready"] == true);
    let (pool_key, value) = pool("10.250.0.0/24", "", false);
    hosts.put(&pool_key, &value);
    hosts.put("/calico/bgp/v1/host/host7/ip_addr_v4", "10.250.0.200");
    hosts.run("host1", "ip link add docker0 type bridge");
    hosts.run("host1", "ip address add 10.250.0.1/25 dev docker0");
    let asked = |what: &str, expected: &[(&str, &str)]| {
        within(PATIENCE, what, || {
            let socket = hosts.get(1, "/v1/identity").map_err(|error| error.to_string())?;
            let found = &socket["excluded"];
            let prefixes: Vec<(&str, &str)> = found["prefixes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|prefix| Some((prefix["cidr"].as_str()?, prefix["holder"].as_str()?)))
                .collect();
            let right = found["complete"] == true && prefixes == expected;
            if right { Ok(()) } else { Err(format!("{socket:#}")) }
        });
    };
    let host = ("10.250.0.200/32", "the address of host host7");
    let docker = ("10.250.0.0/25", "a network that host host1 is connected to by docker0");
    asked("docker0 is known", &[docker, host]);
    // The plugin then allocates from the other half.
    let config = r#"{"cniVersion":"1.1.0","name":"lab","type":"tortie-cni","datastore":"sqlite:/store/store.db","node":"host1",
        "ipam":{"type":"tortie-ipam","ipv4_pools":["10.250.0.0/24"]}}"#;
    for name in ["a", "b", "c"] {
        let script = format!(
            "ip netns add {name}; ln -sf {TORTIE} /run/tortie-cni; echo '{config}' | CNI_COMMAND=ADD CNI_CONTAINERID={name} \
             CNI_NETNS=/run/netns/{name} CNI_IFNAME=eth0 CNI_PATH=/run /run/tortie-cni"
        );
        let output = hosts.lab.exec("host1", &["sh", "-c", &script]).unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let addr = result["ips"][0]["address"].as_str().unwrap_or_else(|| panic!("{result:#}"));
        let last: u8 = addr.trim_start_matches("10.250.0.").trim_end_matches("/32").parse().unwrap();
        assert!(last >= 128 && last != 200, "{addr}");
    }
    hosts.run("host1", "ip link del docker0");
    asked("docker0 is gone", &[host]);
}
