//! Unnumbered links of two racks to FRR: only link-local addresses, found by router advertisements in both
//! directions (RFC 4861), IPv4 and IPv6 routes over IPv6 next hops (RFC 8950), and the end of a session whose
//! link goes down.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interop::probe::{full_kernels, kernel};
use crate::interop::rig::{Backend, Net, within};
use crate::interop::two_hosts::{TwoHosts, block, workloads};

/// Waits until bgpd has registered with zebra. FRR 8.4.4 reports a neighbour to bgpd only once, when zebra
/// first receives its advertisement. If bgpd is still starting, the neighbour stays unknown to it ("Waiting
/// for Peer IPv6 LLA", while zebra shows the address).
const READY: &str = "vtysh -c 'show zebra client summary' | grep -q bgp && \
                     vtysh -c 'show bgp neighbors eth2' | grep -q 'Waiting for Peer IPv6 LLA'";

/// Returns FRR's configuration. `we_dial`: the hosts open the connections and FRR is passive.
fn frr(we_dial: bool) -> String {
    let passive = |port| if we_dial { format!(" neighbor {port} passive\n") } else { String::new() };
    format!(
        "frr defaults datacenter\nhostname tor\nlog stdout\n!\nrouter bgp 65000\n bgp router-id 10.0.0.254\n \
         no bgp ebgp-requires-policy\n neighbor eth1 interface remote-as external\n neighbor eth1 timers connect 1\n{} \
         neighbor eth2 interface remote-as external\n neighbor eth2 timers connect 1\n{} !\n address-family ipv6 unicast\n  \
         neighbor eth1 activate\n  neighbor eth2 activate\n exit-address-family\n!\n",
        passive("eth1"),
        passive("eth2")
    )
}

fn data(we_dial: bool) -> String {
    let mut data = serde_json::Map::new();
    let add = |data: &mut serde_json::Map<String, Value>, key: &str, value: String| {
        data.insert(format!("/calico/{key}"), value.into());
    };
    add(&mut data, "v1/Ready", "true".into());
    add(&mut data, "bgp/v1/global/node_mesh", "{\"enabled\": false}".into());
    add(
        &mut data,
        "bgp/v1/global/peer_interface/eth1",
        format!("{{\"as_num\": \"external\", \"passive_mode\": {}}}", !we_dial),
    );
    add(&mut data, "v1/ipam/v4/pool/10.244.0.0-16", "{\"cidr\": \"10.244.0.0/16\"}".into());
    add(&mut data, "v1/ipam/v6/pool/fd00:244::-32", "{\"cidr\": \"fd00:244::/32\"}".into());
    data.extend(workloads().into_iter().map(|(key, value)| (key, value.into())));
    for n in [1, 2] {
        let host = format!("host{n}");
        add(&mut data, &format!("bgp/v1/host/{host}/as_num"), format!("{}", 64512 + n));
        add(&mut data, &format!("bgp/v1/host/{host}/ip_addr_v4"), format!("10.0.0.{n}"));
        for cidr in [format!("10.244.{n}.0/26"), format!("fd00:244:{n}::/122")] {
            data.extend(block(&host, &cidr).map(|(key, value)| (key, value.into())));
        }
    }
    serde_json::to_string(&data).unwrap()
}

fn peer(net: &Net, host: &str) -> Result<Value, String> {
    let text = net.run(host, &["tortie", "-o", "json", "bgp", "peers"])?;
    let list: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
    list["items"].get(0).cloned().ok_or(text)
}

/// Returns the session of a host; the error contains FRR's view.
fn up(net: &Net, host: &str) -> Result<Value, String> {
    let evidence = match peer(net, host) {
        Ok(peer) if peer["state"] == "Established" => return Ok(peer),
        Ok(peer) => peer.to_string(),
        Err(e) => e,
    };
    let port = host.replace("host", "show interface eth");
    let said = net.run("tor", &["vtysh", "-c", "show bgp summary", "-c", "show bgp neighbors", "-c", &port]);
    Err(format!("{host}: {evidence}\n{}\n{}", net.log("tor"), said.unwrap_or_else(|e| e)))
}

fn unnumbered(we_dial: bool) -> Option<Net> {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let data = data(we_dial);
    let daemons = concat!(env!("CARGO_MANIFEST_DIR"), "/topology/labs/tor-frr/daemons");
    let tor = format!(
        "      image: frr:8.4.4\n      binds: [\"{}:/etc/frr/frr.conf:ro\", \"{daemons}:/etc/frr/daemons:ro\"]
      healthcheck: {{test: [CMD-SHELL, \"until {READY}; do sleep 0.05; done\"], interval: 1}}\n",
        file("frr.conf", &frr(we_dial))
    );
    let lab = TwoHosts {
        name: "unnumbered",
        store: &file("store.json", &data),
        tor,
        stage: "healthy",
        exec: "ip addr add 10.0.0.N/32 dev lo",
        link: "",
    };
    let text = lab.text();
    let net = Net::text(&text, &dir.path().join("unnumbered.clab.yml"), &data, Backend::Sqlite)?;
    for host in ["host1", "host2"] {
        within(Duration::from_secs(20), net.started, "the session with FRR", || up(&net, host));
    }
    within(Duration::from_secs(20), net.started, "every block in every kernel", || full_kernels(&net));
    Some(net)
}

fn carries_packets(net: &Net) {
    let routes = kernel(net, "host1").unwrap();
    let line = &routes["10.244.2.0/26"];
    assert!(line.contains("via inet6 fe80::") && line.contains("dev eth1"), "{line}");
    let line = &routes["fd00:244:2::/122"];
    assert!(line.contains("via fe80::") && line.contains("dev eth1"), "{line}");
    for (web, far) in [("web1", "10.244.2.1"), ("web2", "10.244.1.1")] {
        within(Duration::from_secs(10), Instant::now(), "an answer over the unnumbered links", || {
            net.run(web, &["ping", "-c", "1", "-W", "1", far])
        });
    }
}

#[test]
fn unnumbered_dialled_to_frr() {
    let Some(net) = unnumbered(true) else { return };
    carries_packets(&net);
    let said = up(&net, "host1").unwrap();
    assert_eq!(said["remoteAs"], 65000, "which AS it is, its OPEN said: {said}");
    // Link failure: the session ends half a second after the link, not after 90 s, and returns with it.
    net.running.set_link("tor", "eth1", false).unwrap();
    let cut = Instant::now();
    let (down, took) = within(Duration::from_millis(700), cut, "the session ends with its link", || {
        peer(&net, "host1").and_then(|p| if p["state"] == "Established" { Err(p.to_string()) } else { Ok(p) })
    });
    println!("the session ended {} ms after the cut: {}", took.as_millis(), down["lastError"]);
    let text = down["lastError"].to_string();
    assert!(text.contains("interface eth1 is down"), "{down}");
    net.running.set_link("tor", "eth1", true).unwrap();
    let repaired = Instant::now();
    let (_, took) = within(Duration::from_secs(10), repaired, "the session is back", || up(&net, "host1"));
    println!("the session is back after {} ms", took.as_millis());
    within(Duration::from_secs(10), repaired, "every block in every kernel", || full_kernels(&net));
}

#[test]
fn unnumbered_accepted_from_frr() {
    let Some(net) = unnumbered(false) else { return };
    carries_packets(&net);
}
