//! Two subnets behind a router, and a link that flaps under 10,000 routes.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::interop::probe::{full_kernels, kernel, sessions};
use crate::interop::rig::{Backend, DEADLINE, Net, within};
use crate::interop::two_hosts::{TwoHosts, block, workloads};

/// Configuration of the router between two hosts in different subnets: it learns their blocks, the hosts form
/// a mesh, and no next hop of the mesh is on-link. No pool uses IPIP.
const BIRD: &str = "router id 10.0.1.254;\nprotocol device { scan time 2; }\n\
    protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }\n\
    template bgp host { neighbor as 64512; connect delay time 1; connect retry time 2; error wait time 1, 5;\n\
    ipv4 { import where net ~ [ 10.244.0.0/16+ ]; export none; }; }\n\
    protocol bgp host1 from host { local 10.0.1.254 as 65000; neighbor 10.0.1.1; }\n\
    protocol bgp host2 from host { local 10.0.2.254 as 65000; neighbor 10.0.2.1; }\n";

/// Origin of the hosts' route to the other subnet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DefaultRoute {
    /// A static route in the kernel.
    Static,
    /// A route that the router announces: next hops of the mesh resolve through a route that the host itself
    /// learned.
    Learned,
}

fn two_subnets(backend: Backend, default: DefaultRoute) {
    let dir = tempfile::tempdir().unwrap();
    let mut data = serde_json::Map::new();
    let mut add = |key: &str, value: String| data.insert(format!("/calico/{key}"), value.into());
    add("v1/Ready", "true".into());
    add("bgp/v1/global/as_num", "64512".into());
    add("v1/ipam/v4/pool/10.244.0.0-16", "{\"cidr\": \"10.244.0.0/16\"}".into());
    for n in [1, 2] {
        let host = format!("host{n}");
        add(&format!("bgp/v1/host/{host}/ip_addr_v4"), format!("10.0.{n}.1"));
        add(&format!("bgp/v1/host/{host}/network_v4"), format!("10.0.{n}.0/24"));
        // The other host's mesh route passes `pool` towards the router, which must prefer the owner's route.
        add(
            &format!("bgp/v1/host/{host}/peer_v4/10.0.{n}.254"),
            format!("{{\"ip\": \"10.0.{n}.254\", \"as_num\": \"65000\", \"own_only\": true}}"),
        );
    }
    data.extend(workloads().into_iter().map(|(key, value)| (key, value.into())));
    for n in [1, 2] {
        let keys = block(&format!("host{n}"), &format!("10.244.{n}.0/26"));
        data.extend(keys.map(|(key, value)| (key, value.into())));
    }
    let data = serde_json::to_string(&data).unwrap();
    let (store, bird) = (dir.path().join("store.json"), dir.path().join("bird.conf"));
    std::fs::write(&store, &data).unwrap();
    let config = match default {
        DefaultRoute::Static => BIRD.to_owned(),
        DefaultRoute::Learned => {
            let exports = BIRD.replace("export none", "export where net = 0.0.0.0/0");
            format!("{exports}protocol static {{ ipv4; route 0.0.0.0/0 unreachable; }}\n")
        }
    };
    std::fs::write(&bird, config).unwrap();
    let lab = TwoHosts {
        name: "subnets",
        store: store.to_str().unwrap(),
        tor: format!(
            "      image: bird:2.0.12\n      binds: [\"{}:/etc/bird/bird.conf:ro\"]
      cmd: bird -f -c /etc/bird/bird.conf\n",
            bird.display()
        ),
        stage: "create",
        exec: match default {
            DefaultRoute::Static => "ip route add default via 10.0.N.254",
            DefaultRoute::Learned => "ip route show",
        },
        link: "[10.0.N.1/24, 10.0.N.254/24]",
    };
    let text = lab.text();
    let Some(net) = Net::text(&text, &dir.path().join("subnets.clab.yml"), &data, backend) else { return };
    within(Duration::from_secs(10), net.started, "every block in every kernel", || full_kernels(&net));
    let routes = kernel(&net, "host1").unwrap();
    assert!(routes["10.244.2.0/26"].contains("via 10.0.1.254 dev eth1"), "{routes:?}");
    for (web, far) in [("web1", "10.244.2.1"), ("web2", "10.244.1.1")] {
        let (_, took) =
            within(Duration::from_secs(10), net.started, "an answer from the other subnet", || {
                net.run(web, &["ping", "-c", "1", "-W", "1", far])
            });
        println!("{backend:?}: {web} reaches {far} after {} ms", took.as_millis());
    }
    assert!(net.run("host1", &["ip", "link", "show", "tunl0"]).is_err(), "no tunnel was asked for");
    if default == DefaultRoute::Learned {
        let why = net.run("host1", &["tortie", "why", "route", "10.244.2.0/26"]).unwrap();
        assert!(why.contains("10.0.2.1: reached by the learned route 0.0.0.0/0"), "{why}");
        let status = net.run("host1", &["tortie", "status"]).unwrap_or_else(|text| text);
        assert!(!status.contains("unresolved") && !status.contains("route-withheld"), "{status}");
        // The default route is removed with all routes that depend on it; both return together.
        net.run("tor", &["birdc", "disable", "static1"]).unwrap();
        let routes = || kernel(&net, "host1");
        within(Duration::from_secs(10), Instant::now(), "no route without the default", || {
            let routes = routes()?;
            if routes.contains_key("10.244.2.0/26") { Err(format!("{routes:?}")) } else { Ok(()) }
        });
        net.run("tor", &["birdc", "enable", "static1"]).unwrap();
        within(Duration::from_secs(10), Instant::now(), "every block in every kernel", || full_kernels(&net));
    }
}

#[test]
fn two_subnets_sqlite() {
    two_subnets(Backend::Sqlite, DefaultRoute::Static);
}

#[test]
fn two_subnets_with_a_default_route_that_is_learned() {
    two_subnets(Backend::Sqlite, DefaultRoute::Learned);
}

#[test]
fn two_subnets_etcd() {
    two_subnets(Backend::Etcd, DefaultRoute::Static);
}

const FEED: usize = 10_000;
/// A link that is down for half a second ends the sessions over it.
const FLAP: Duration = Duration::from_millis(450);
/// Half a second is the maximum on an otherwise idle machine; the load average reports other load too late.
const BACK: Duration = Duration::from_secs(1);

fn flap(backend: Backend) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("topology/labs");
    let file = root.join("tor-bird.clab.yml");
    let dir = tempfile::tempdir().unwrap();
    let mut config = std::fs::read_to_string(root.join("tor-bird/bird.conf")).unwrap();
    config += "protocol static feed {\n ipv4;\n";
    for n in 0..FEED {
        writeln!(config, " route 20.{}.{}.0/24 blackhole;", n / 256, n % 256).unwrap();
    }
    config += "}\n";
    let bird = dir.path().join("bird.conf");
    std::fs::write(&bird, config).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("tor-bird/bird.conf", bird.to_str().unwrap());
    let data = std::fs::read_to_string(root.join("tor-bird/store.json")).unwrap();
    let Some(net) = Net::text(&text, &file, &data, backend) else { return };
    let full = || {
        let routes = net.run("host1", &["ip", "route", "show", "proto", "179", "root", "20.0.0.0/8"])?;
        let good = routes.lines().filter(|line| line.contains(" via ") && !line.contains("linkdown")).count();
        (good == FEED).then_some(()).ok_or_else(|| format!("{good} of {FEED} routes"))
    };
    within(Duration::from_secs(15), net.started, "the feed is in the kernel", full);
    within(Duration::from_secs(15), net.started, "every block in every kernel", || full_kernels(&net));
    let mut before = sessions(&net, "host1").unwrap();
    let (mut round, mut tries) = (0, 0);
    while round < 3 {
        tries += 1;
        let down = Instant::now();
        net.running.set_link("tor", "eth1", false).unwrap();
        let carrier = |want: &str| {
            let text = net.run("host1", &["cat", "/sys/class/net/eth1/carrier"])?;
            (text.trim() == want).then_some(()).ok_or(text)
        };
        within(Duration::from_secs(5), down, "the carrier goes", || carrier("0"));
        std::thread::sleep(Duration::from_millis(200).saturating_sub(down.elapsed()));
        let left = full().unwrap_err();
        net.running.set_link("tor", "eth1", true).unwrap();
        let up = Instant::now();
        if down.elapsed() > FLAP {
            // A session ends if the link is down for longer than a flap, so this proves nothing.
            assert!(tries < 20, "no flap is short on this machine: {:?}", down.elapsed());
            println!("{backend:?}: the link was down for {:?}, once more", down.elapsed());
            within(DEADLINE, up, "every session is up again", || {
                let now = sessions(&net, "host1")?;
                let peer = now.values().find(|peer| peer["state"] != "Established");
                peer.map_or(Ok(()), |peer| Err(peer.to_string()))
            });
            within(DEADLINE, up, "all is back", || full().and(full_kernels(&net)));
            before = sessions(&net, "host1").unwrap();
            continue;
        }
        round += 1;
        within(Duration::from_secs(5), up, "the carrier comes", || carrier("1"));
        let back = Instant::now();
        let (_, took) = within(BACK, back, "all routes are back", full);
        within(BACK, back, "the blocks too", || full_kernels(&net));
        // No session was lost.
        for (peer, now) in sessions(&net, "host1").unwrap() {
            assert_eq!(now["flaps"], before[&peer]["flaps"], "{now}");
        }
        println!(
            "{backend:?} flap {round}: {left} without carrier, carrier {} ms after the cable, all back {} ms after that",
            (back - up).as_millis(),
            took.as_millis()
        );
    }
}

#[test]
fn flap_sqlite() {
    flap(Backend::Sqlite);
}

#[test]
fn flap_etcd() {
    flap(Backend::Etcd);
}
