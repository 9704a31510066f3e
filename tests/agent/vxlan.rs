//! VXLAN with real packets: two subnets behind a router, three agents on one store, and another process that
//! breaks devices and entries. The pool of the lab changes from IPIP to VXLAN while the agents run.

use crate::common::concurrency;
use crate::ipip::rig::{PATIENCE, Rig, repaired_within, within};

/// Time limit of a repair in milliseconds.
const REPAIRED: u64 = 1_000;
/// Time limit of a change of the store in milliseconds: the agents allocate addresses first.
const FOLLOWED: u64 = 20_000;
const DEVICE: &str = "vxlan.calico";
const POOL: &str = "/calico/v1/ipam/v4/pool/10.244.0.0-16";

fn put(rig: &Rig, key: &str, value: &str) {
    rig.run("host2", &format!("tortie --datastore sqlite:/store/store.db store put {key} {value}"));
}

/// Returns the tunnel address of a host.
fn tunnel_address(rig: &Rig, host: &str) -> Result<String, String> {
    let (_, text) = rig.exec(host, &["ip", "-br", "-4", "address", "show", DEVICE]);
    let addr = text.split_whitespace().nth(2).and_then(|addr| addr.strip_suffix("/32"));
    addr.map(str::to_owned).ok_or_else(|| format!("{host}: {text}"))
}

/// Checks routes and entries of host1. host2 is in its subnet, host3 behind the router.
fn check(rig: &Rig, always: bool) -> Result<(), String> {
    let (two, three) = (tunnel_address(rig, "host2")?, tunnel_address(rig, "host3")?);
    let near = match always {
        true => format!("10.244.2.0/26 via {two} dev {DEVICE} metric 1790 onlink"),
        false => "10.244.2.0/26 via 10.0.1.2 dev eth1 metric 1790".to_owned(),
    };
    let wanted = [
        "blackhole 10.244.1.0/26 metric 1790".to_owned(),
        near,
        format!("10.244.3.0/26 via {three} dev {DEVICE} metric 1790 onlink"),
    ];
    let routes = rig.routes("host1");
    let forwarding = rig.exec("host1", &["bridge", "fdb", "show", "dev", DEVICE]).1;
    let link = rig.exec("host1", &["ip", "link", "show", DEVICE]).1;
    let right = routes == wanted
        && forwarding.lines().count() == 2
        && ["10.0.1.2", "10.0.2.1"]
            .iter()
            .all(|host| forwarding.contains(&format!("dst {host} self permanent")))
        && link.contains(",UP")
        && link.contains("mtu 1450");
    if right { Ok(()) } else { Err(format!("{routes:?}\nwanted {wanted:?}\n{forwarding}{link}")) }
}

/// Returns the number of packets that host1 sent through the tunnel.
fn sent(rig: &Rig) -> u64 {
    let link = rig.json("host1", &["ip", "-s", "-j", "link", "show", "dev", DEVICE]);
    link[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

/// Pings from web1, and returns the number of packets that went through the tunnel.
fn tunnelled(rig: &Rig, to: &str) -> u64 {
    let before = sent(rig);
    within(PATIENCE, to, || match rig.ping("web1", to, 1) {
        1 => Ok(()),
        _ => Err(rig.run("host1", "ip route")),
    });
    sent(rig) - before
}

#[test]
fn workloads_reach_each_other_over_vxlan_and_what_is_broken_comes_right() {
    let _group = concurrency::LABS.join();
    let Some(rig) = Rig::up() else { return };
    put(&rig, POOL, r#"{"cidr":"10.244.0.0/16","vxlan_mode":"cross-subnet"}"#);
    within(FOLLOWED, "cross-subnet", || check(&rig, false));
    assert_eq!(tunnelled(&rig, "10.244.2.1"), 0, "within the subnet no packet is tunnelled");
    assert!(tunnelled(&rig, "10.244.3.1") > 0);
    within(PATIENCE, "the host itself uses its tunnel address", || {
        match rig.ping("host1", "10.244.3.1", 1) {
            1 => Ok(()),
            _ => Err(rig.run("host1", "ip route")),
        }
    });
    within(PATIENCE, "the tunnel is up", || {
        let status = rig.json("host1", &["tortie", "status", "-o", "json"]);
        if status["dataplane"]["tunnel"] == "up" { Ok(()) } else { Err(status.to_string()) }
    });

    let damages = [
        ("the device is deleted", format!("ip link delete {DEVICE}")),
        ("a forwarding entry is deleted", {
            let entries = rig.run("host1", &format!("bridge fdb show dev {DEVICE}"));
            let entry = entries.lines().find(|line| line.contains("dst 10.0.2.1 ")).unwrap();
            format!("bridge fdb delete {} dev {DEVICE} dst 10.0.2.1", entry.split(' ').next().unwrap())
        }),
        ("the MTU is changed", format!("ip link set {DEVICE} mtu 1300")),
    ];
    for (what, command) in damages {
        let disturb = || {
            rig.run("host1", &command);
        };
        let millis = repaired_within(REPAIRED, what, disturb, || check(&rig, false));
        println!("{what}: {millis} ms");
        assert!(tunnelled(&rig, "10.244.3.1") > 0, "{what}");
    }

    put(&rig, POOL, r#"{"cidr":"10.244.0.0/16","vxlan_mode":"always"}"#);
    within(FOLLOWED, "always", || check(&rig, true));
    assert!(tunnelled(&rig, "10.244.2.1") > 0 && tunnelled(&rig, "10.244.3.1") > 0);

    // Another host's end moves.
    put(&rig, "/calico/v1/host/host3/config/IPv4VXLANTunnelAddr", "10.244.3.40");
    let millis = within(FOLLOWED, "another end", || match tunnel_address(&rig, "host3")?.as_str() {
        "10.244.3.40" => check(&rig, true),
        other => Err(other.to_owned()),
    });
    println!("the tunnel address of host3: {millis} ms");
    assert!(tunnelled(&rig, "10.244.3.1") > 0);

    // Without a tunnel the device goes, and the routes come from BGP.
    put(&rig, POOL, r#"{"cidr":"10.244.0.0/16"}"#);
    within(FOLLOWED, "no tunnel", || {
        let routes = rig.routes("host1");
        let right = !rig.exec("host1", &["ip", "link", "show", DEVICE]).0
            && routes.contains(&"10.244.2.0/26 via 10.0.1.2 dev eth1 metric 1790".to_owned());
        if right { Ok(()) } else { Err(format!("{routes:?}")) }
    });

    by_a_gateway(&rig);
}

/// A host behind the router is a peer that only its gateway leads to: the session, the routes behind it and
/// packets to the host depend on that route.
fn by_a_gateway(rig: &Rig) {
    const PEER: &str = "/calico/bgp/v1/host/host1/peer_v4/10.0.2.1";
    const ROUTE: &str = "10.0.2.1 via 10.0.1.254 dev eth1 metric 1790";
    let has = |wanted: bool| {
        let routes = rig.routes("host1");
        let behind = routes.contains(&"10.244.3.0/26 via 10.0.1.254 dev eth1 metric 1790".to_owned());
        let right = routes.contains(&ROUTE.to_owned()) == wanted && behind == wanted;
        if right { Ok(()) } else { Err(format!("{routes:?}")) }
    };
    rig.run("host1", "ip route delete default");
    within(PATIENCE, "nothing leads to host3", || has(false));
    put(rig, PEER, r#"{"as_num":"64512","reachable_by":"10.0.1.254"}"#);
    let millis = within(FOLLOWED, "the route by the gateway", || has(true));
    println!("the route to the peer: {millis} ms");
    within(FOLLOWED, "the session", || {
        let peers = rig.json("host1", &["tortie", "bgp", "peers", "-o", "json"]);
        let up = |peer: &serde_json::Value| peer["address"] == "10.0.2.1" && peer["state"] == "Established";
        let is_up = peers["items"].as_array().is_some_and(|all| all.iter().any(up));
        if is_up { Ok(()) } else { Err(peers.to_string()) }
    });
    // The router has no route to the block of host3, only to host3.
    within(PATIENCE, "packets", || match rig.ping("host1", "10.0.2.1", 1) {
        1 => Ok(()),
        _ => Err(rig.run("host1", "ip route")),
    });
    let why = rig.run("host1", "tortie why route 10.0.2.1/32");
    assert!(why.contains("is used: the store leads to this peer by its gateway"), "{why}");
    let disturb = || drop(rig.run("host1", "ip route delete 10.0.2.1/32 proto 179"));
    repaired_within(REPAIRED, "the route is deleted", disturb, || has(true));
    put(rig, PEER, r#"{"as_num":"64512"}"#);
    within(FOLLOWED, "no gateway, no route", || has(false));
}
