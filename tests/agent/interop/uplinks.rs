//! A host with two routers in different ASes: both carry its default route as one nexthop group in the
//! kernel, as far as `multipath` permits and neither is shut down.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::interop::probe::{kernel, sessions};
use crate::interop::rig::{Backend, Net, delete, put, within};
use crate::interop::two_hosts::block;

const LAB: &str = r#"
#   [tor1] eth1 - eth1 [host1] eth2 - eth1 [tor2]
name: uplinks
topology:
  defaults: {kind: linux, image: tortie, network-mode: none}
  nodes:
    store:
      binds: ["__clabDir__/store:/store", "DIR/store.json:/lab/store.json:ro"]
      cmd: tortie --datastore sqlite:/store/store.db store import /lab/store.json
    tor1:
      image: bird:2.0.12
      binds: ["DIR/bird1.conf:/etc/bird/bird.conf:ro"]
      cmd: bird -f -c /etc/bird/bird.conf
    tor2:
      image: bird:2.0.12
      binds: ["DIR/bird2.conf:/etc/bird/bird.conf:ro"]
      cmd: bird -f -c /etc/bird/bird.conf
    host1:
      binds: ["__clabDir__/store:/store"]
      stages: {create: {wait-for: [{node: store, stage: exit}]}}
      cmd: tortie --datastore sqlite:/store/store.db --node host1 agent
  links:
    - endpoints: ["host1:eth1", "tor1:eth1"]
      ipv4: [10.0.1.1/24, 10.0.1.254/24]
    - endpoints: ["host1:eth2", "tor2:eth1"]
      ipv4: [10.0.2.1/24, 10.0.2.254/24]
"#;

const BIRD: &str = "router id 10.0.N.254;\nprotocol device { scan time 2; }
protocol static { ipv4; route 0.0.0.0/0 blackhole; }
protocol bgp host1 { local 10.0.N.254 as 6500N; neighbor 10.0.N.1 as 64512; connect delay time 1; connect retry time 1;
error wait time 1, 1; ipv4 { import all; export where source = RTS_STATIC; }; }\n";

const LIMIT: Duration = Duration::from_secs(15);
const MULTIPATH: &str = "/calico/bgp/v1/host/host1/multipath";

fn peer(n: u8, shutdown: &str) -> (String, String) {
    let key = format!("/calico/bgp/v1/host/host1/peer_v4/10.0.{n}.254");
    let value = json!({"ip": format!("10.0.{n}.254"), "as_num": format!("6500{n}"), "source_addr": format!("10.0.{n}.1"),
        "shutdown": if shutdown.is_empty() { json!(false) } else { json!(shutdown) }});
    (key, value.to_string())
}

/// Waits until the default route uses these routers, as a group if there are several.
fn goes_over(net: &Net, since: Instant, routers: &[u8]) {
    let (_, took) = within(LIMIT, since, &format!("the default route over {routers:?}"), || {
        let routes = kernel(net, "host1")?;
        let default = routes.get("default").cloned().unwrap_or_default();
        let right = (1..=2)
            .all(|n| default.contains(&format!("via 10.0.{n}.254 dev eth{n}")) == routers.contains(&n));
        let objects = net.run("host1", &["ip", "nexthop", "show", "proto", "179"])?;
        let grouped = objects.contains("group") == (routers.len() > 1);
        if right && grouped {
            return Ok(());
        }
        Err(format!("{default}\n{objects}\n{:?}", sessions(net, "host1")))
    });
    println!("default route over {routers:?}: {} ms", took.as_millis());
}

#[test]
fn two_uplinks_share_the_load_and_follow_the_store_and_the_link() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = serde_json::Map::new();
    data.insert("/calico/v1/Ready".into(), "true".into());
    data.insert("/calico/bgp/v1/global/as_num".into(), "64512".into());
    data.insert("/calico/bgp/v1/host/host1/ip_addr_v4".into(), "10.0.1.1".into());
    data.insert("/calico/v1/ipam/v4/pool/10.244.0.0-16".into(), r#"{"cidr": "10.244.0.0/16"}"#.into());
    data.extend(block("host1", "10.244.1.0/26").map(|(key, value)| (key, value.into())));
    data.extend([1, 2].map(|n| peer(n, "")).map(|(key, value)| (key, value.into())));
    let data = serde_json::to_string(&data).unwrap();
    std::fs::write(dir.path().join("store.json"), &data).unwrap();
    for n in ["1", "2"] {
        std::fs::write(dir.path().join(format!("bird{n}.conf")), BIRD.replace('N', n)).unwrap();
    }
    let text = LAB.replace("DIR", dir.path().to_str().unwrap());
    let Some(net) = Net::text(&text, &dir.path().join("uplinks.clab.yml"), &data, Backend::Sqlite) else {
        return;
    };
    goes_over(&net, net.started, &[1, 2]);
    // Each router reaches the block through the address of its session, not only the router whose network
    // contains the host's address.
    for n in [1, 2] {
        within(LIMIT, net.started, "the block at the router", || {
            let routes = net.run(&format!("tor{n}"), &["birdc", "show", "route", "10.244.1.0/26", "all"])?;
            let usable = routes.contains(&format!("via 10.0.{n}.1 on eth1"))
                && routes.contains(&format!("BGP.next_hop: 10.0.{n}.1"));
            if usable { Ok(()) } else { Err(routes) }
        });
    }
    let why = net.run("host1", &["tortie", "why", "route", "10.244.1.0/26", "--to", "10.0.2.254"]).unwrap();
    assert!(why.contains("next hop 10.0.2.1"), "{why}");
    let flaps =
        || sessions(&net, "host1").unwrap().into_values().map(|p| p["flaps"].clone()).collect::<Vec<_>>();
    let before = flaps();
    for (value, routers) in [("1", &[1][..]), ("{\"max\": 2}", &[1, 2]), ("{\"relax\": false}", &[1])] {
        let commit = net.commit(vec![put(MULTIPATH, value)]);
        goes_over(&net, commit.done, routers);
    }
    let commit = net.commit(vec![delete(MULTIPATH)]);
    goes_over(&net, commit.done, &[1, 2]);
    assert_eq!(flaps(), before, "a session moved for that");

    // A link that is down for longer than a flap ends its session, which returns with the link.
    net.running.set_link("tor2", "eth1", false).unwrap();
    let down = Instant::now();
    goes_over(&net, down, &[1]);
    let (_, took) = within(LIMIT, down, "the end of the session", || {
        let peer = sessions(&net, "host1")?.remove("10.0.2.254").ok_or("no session")?;
        if peer["lastError"]["code"] == "link_down" { Ok(()) } else { Err(peer.to_string()) }
    });
    println!("session over: {} ms after the cable", took.as_millis());
    assert!(took < Duration::from_secs(30), "that was the hold timer");
    net.running.set_link("tor2", "eth1", true).unwrap();
    goes_over(&net, Instant::now(), &[1, 2]);

    let commit = net.commit([peer(1, "until noon")].map(|(key, value)| put(&key, &value)).into());
    goes_over(&net, commit.done, &[2]);
    let shown = net.run("host1", &["tortie", "bgp", "peer", "10.0.1.254"]).unwrap();
    assert!(shown.contains("is Idle") && shown.contains("shut down     until noon"), "{shown}");
    // `status` does not report it as missing.
    within(LIMIT, commit.done, "a status without it", || {
        let output = net.output("host1", &["tortie", "status"])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if text.contains("1 of 1 BGP sessions") && !text.contains("10.0.1.254") { Ok(()) } else { Err(text) }
    });
    let commit = net.commit([peer(1, "")].map(|(key, value)| put(&key, &value)).into());
    goes_over(&net, commit.done, &[1, 2]);
}
