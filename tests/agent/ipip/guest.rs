//! Test cases that run as root inside user-mode Linux.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::time::Instant;

use tortie_topology::{Signal, Victim};

use super::Case;
use super::rig::{Expected, PATIENCE, Rig, TRIES, repaired_within, within};

/// Time limit of a repair in milliseconds.
const REPAIRED: u64 = 2_000;

const OWN: &str = "blackhole 10.244.1.0/26 metric 1790";
const HOST2_PLAIN: &str = "10.244.2.0/26 via 10.0.1.2 dev eth1 metric 1790";
const HOST2_TUNNEL: &str = "10.244.2.0/26 via 10.0.1.2 dev tunl0 metric 1790 onlink";
const HOST3_TUNNEL: &str = "10.244.3.0/26 via 10.0.2.1 dev tunl0 metric 1790 onlink";
const HOST3_PLAIN: &str = "10.244.3.0/26 via 10.0.1.254 dev eth1 metric 1790";
/// Program that the kernel runs to load a missing module.
const LOADER: &str = "/proc/sys/kernel/modprobe";
const POOL: &str = "/calico/v1/ipam/v4/pool/10.244.0.0-16";
const CROSS: &str = r#"{"cidr":"10.244.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet"}"#;

fn cross() -> Expected<'static> {
    Expected { mtu: 1440, address: "10.244.1.63/32", routes: vec![OWN, HOST2_PLAIN, HOST3_TUNNEL] }
}

/// Duration and evidence of a successful case.
type Good = (u64, String);

struct Guest {
    rig: Rig,
}

pub(super) fn run() {
    println!();
    let mut guest = Guest { rig: Rig::up().expect("root") };
    guest.convergence();
    guest.disturbances();
    guest.module();
    guest.settings();
    guest.routes_of_the_store();
    guest.restart();
    guest.pools();
}

impl Guest {
    fn case(&mut self, name: &str, body: impl FnOnce(&mut Self) -> Good) {
        let begin = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| body(self)));
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap();
        let case = match result {
            Ok((millis, evidence)) => Case { case: name.to_owned(), ok: true, millis, evidence },
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
                let mut evidence = text.unwrap_or_default();
                let log = std::fs::read_to_string(self.rig.lab.log_of("host1").unwrap()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                evidence += "\nlog of host1:\n";
                evidence += &lines[lines.len().saturating_sub(15)..].join("\n");
                Case { case: name.to_owned(), ok: false, millis: took, evidence }
            }
        };
        println!("{}", serde_json::to_string(&case).unwrap());
    }

    /// Waits until host1 has the expected state, and checks that a packet passes the tunnel.
    fn settles(&self, wanted: &Expected<'_>) -> Good {
        let millis = within(PATIENCE, "host1", || self.rig.check("host1", wanted));
        self.crosses();
        (millis, "device, address, MTU, routes and a ping".to_owned())
    }

    /// The same after this change of another process, from which it is right within the time limit.
    fn repaired(&self, disturb: impl FnMut(), wanted: &Expected<'_>) -> Good {
        let millis = repaired_within(REPAIRED, "host1", disturb, || self.rig.check("host1", wanted));
        self.crosses();
        (millis, "device, address, MTU, routes and a ping".to_owned())
    }

    /// Checks that a workload of host1 reaches one behind the router, with at least one more packet in each
    /// direction of the tunnel.
    fn crosses(&self) {
        let before = self.rig.tunnel_packets("host1");
        assert_eq!(self.rig.ping("web1", "10.244.3.1", 1), 1, "web1 to web3");
        let after = self.rig.tunnel_packets("host1");
        assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    }

    /// Waits until `status` of host1 has this state of the tunnel; returns it.
    fn tunnel_is(&self, state: &str) -> serde_json::Value {
        let mut status = serde_json::Value::Null;
        within(PATIENCE, "the tunnel in status", || {
            status = self.rig.json("host1", &["tortie", "status", "-o", "json"]);
            if status["dataplane"]["tunnel"] == state { Ok(()) } else { Err(status.to_string()) }
        });
        status
    }

    /// Runs `ip` commands on host1 as another process would; the state must be repaired within the time
    /// limit.
    fn disturb(&mut self, name: &str, commands: &str) {
        self.case(name, |g| {
            let disturb = || {
                let said = g.rig.ip("host1", commands);
                assert!(said.is_empty(), "{commands}: {said}");
            };
            g.repaired(disturb, &cross())
        });
    }

    fn put(&self, key: &str, value: &str) {
        self.rig.run("host2", &format!("tortie --datastore sqlite:/store/store.db store put {key} {value}"));
    }

    fn convergence(&mut self) {
        self.case("cross-subnet-routes", |g| {
            let millis = within(60_000, "host1", || g.rig.check("host1", &cross()));
            let wanted = Expected {
                mtu: 1440,
                address: "10.244.3.63/32",
                routes: vec![
                    "blackhole 10.244.3.0/26 metric 1790",
                    "10.244.1.0/26 via 10.0.1.1 dev tunl0 metric 1790 onlink",
                    "10.244.2.0/26 via 10.0.1.2 dev tunl0 metric 1790 onlink",
                ],
            };
            within(60_000, "host3", || g.rig.check("host3", &wanted));
            let objects = g.rig.run("host1", "ip nexthop show proto 179");
            assert!(objects.contains("via 10.0.2.1 dev tunl0") && objects.contains("onlink"), "{objects}");
            (millis, objects)
        });
        self.case("cross-subnet-packets", |g| {
            let begin = Instant::now();
            // A first packet in each direction resolves the neighbours.
            g.rig.ping("web1", "10.244.2.1", 1);
            g.rig.ping("web1", "10.244.3.1", 1);
            let before = g.rig.tunnel_packets("host1");
            assert_eq!(g.rig.ping("web1", "10.244.2.1", 5), 5);
            let between = g.rig.tunnel_packets("host1");
            assert_eq!(before, between, "within the subnet no packet is tunnelled");
            assert_eq!(g.rig.ping("web1", "10.244.3.1", 5), 5);
            let after = g.rig.tunnel_packets("host1");
            assert_eq!((after.0 - between.0, after.1 - between.1), (5, 5), "five there and five back");
            (u64::try_from(begin.elapsed().as_millis()).unwrap(), format!("{before:?} {between:?} {after:?}"))
        });
        self.case("host-uses-tunnel-address", |g| {
            let text = g.rig.run("host1", "ip route get 10.244.3.1");
            assert!(text.contains("dev tunl0") && text.contains("src 10.244.1.63"), "{text}");
            assert_eq!(g.rig.ping("host1", "10.244.3.1", 1), 1);
            (0, text)
        });
        self.case("status-up", |g| {
            let status = g.tunnel_is("up");
            (0, status["dataplane"].to_string())
        });
    }

    fn disturbances(&mut self) {
        self.disturb("link-down", "link set tunl0 down\n");
        self.disturb("address-removed", "addr del 10.244.1.63/32 dev tunl0\n");
        self.disturb("address-added", "addr add 10.244.1.62/32 dev tunl0\n");
        self.disturb(
            "address-with-another-length",
            "addr del 10.244.1.63/32 dev tunl0\naddr add 10.244.1.63/26 dev tunl0\n",
        );
        self.disturb("mtu-changed", "link set tunl0 mtu 1300\n");
        // Each begins with the other's state.
        let small = || Expected { mtu: 1380, ..cross() };
        let underlay = |g: &Self, mtu: u32| {
            g.rig.ip("host1", &format!("link set eth1 mtu {mtu}\n"));
        };
        self.case("underlay-mtu-changed", |g| {
            let disturb = || {
                underlay(g, 1500);
                within(PATIENCE, "host1 as before", || g.rig.check("host1", &cross()));
                underlay(g, 1400);
            };
            g.repaired(disturb, &small())
        });
        self.case("underlay-mtu-back", |g| {
            let disturb = || {
                underlay(g, 1400);
                within(PATIENCE, "host1 as before", || g.rig.check("host1", &small()));
                underlay(g, 1500);
            };
            g.repaired(disturb, &cross())
        });
        // The kernel accepts the command and keeps its fallback device.
        self.disturb("link-del", "link del tunl0\n");
        self.case("renamed", |g| {
            // There is only one such device: under another name it can neither be used nor created again. The
            // agent is paused meanwhile, since it would set the device up again before the second command.
            let mut times = Vec::new();
            for _ in 0..TRIES {
                g.rig.lab.signal("host1", Victim::Command, Signal::STOP).unwrap();
                let said = g.rig.ip("host1", "link set tunl0 down\nlink set tunl0 name mine\n");
                g.rig.lab.signal("host1", Victim::Command, Signal::CONT).unwrap();
                assert!(said.is_empty(), "{said}");
                within(PATIENCE, "status and routes", || {
                    let status = g.rig.json("host1", &["tortie", "status", "-o", "json"]);
                    let (text, routes) = (status["problems"].to_string(), g.rig.routes("host1"));
                    let right = text.contains("tunl0") && routes == [OWN, HOST2_PLAIN];
                    if right { Ok(()) } else { Err(format!("{status}\n{routes:#?}")) }
                });
                g.rig.ip("host1", "link set mine name tunl0\n");
                let good = g.settles(&cross());
                if good.0 <= REPAIRED {
                    return good;
                }
                times.push(good.0);
            }
            panic!("right only after {times:?} ms");
        });
        self.disturb(
            "everything-at-once",
            // Not `addr flush`, which fails if the agent is faster.
            "addr del 10.244.1.63/32 dev tunl0\nlink set tunl0 down\nlink set tunl0 mtu 600\naddr add 192.0.2.7/24 dev tunl0\n",
        );
    }

    fn module(&mut self) {
        let loader = std::fs::read(LOADER).unwrap();
        self.case("module-unloaded", |g| {
            // The agent requests the device from the kernel, and the kernel loads its module.
            g.rig.run("host1", "modprobe -r ipip");
            g.settles(&cross())
        });
        self.case("module-refused", |g| {
            std::fs::write(LOADER, "/bin/false\n").unwrap();
            g.rig.run("host1", "modprobe -r ipip");
            let millis = within(PATIENCE, "routes withheld", || {
                let routes = g.rig.routes("host1");
                if routes == [OWN, HOST2_PLAIN] { Ok(()) } else { Err(format!("{routes:#?}")) }
            });
            let mut text = String::new();
            within(PATIENCE, "status", || {
                let status = g.rig.json("host1", &["tortie", "status", "-o", "json"]);
                text = status["problems"].to_string();
                let right = text.contains("NET_IPIP") && text.contains("load the module");
                if right { Ok(()) } else { Err(text.clone()) }
            });
            // Traffic within the subnet is not affected.
            assert_eq!(g.rig.ping("web1", "10.244.2.1", 1), 1);
            (millis, text)
        });
        self.case("module-loaded", |g| {
            g.rig.run("host1", "modprobe ipip");
            let good = g.settles(&cross());
            g.tunnel_is("up");
            good
        });
        self.case("no-fallback-device", |g| {
            // Some machines restrict fallback devices to the first namespace; in others `tunl0` must be
            // created.
            std::fs::write("/proc/sys/net/core/fb_tunnels_only_for_init_net", "1\n").unwrap();
            g.rig.run("host1", "modprobe -r ipip");
            g.rig.run("host1", "modprobe ipip");
            g.settles(&cross())
        });
        self.case("real-device-deleted", |g| {
            // This device can be deleted.
            g.rig.ip("host1", "link del tunl0\n");
            g.settles(&cross())
        });
        std::fs::write("/proc/sys/net/core/fb_tunnels_only_for_init_net", "0\n").unwrap();
        std::fs::write(LOADER, loader).unwrap();
    }

    fn settings(&mut self) {
        self.case("store-mtu", |g| {
            g.put("/calico/v1/config/IpInIpMtu", "1300");
            g.settles(&Expected { mtu: 1300, ..cross() })
        });
        self.case("mtu-that-does-not-fit", |g| {
            g.put("/calico/v1/config/IpInIpMtu", "1490");
            // The health probe runs every ten seconds.
            let millis = within(60_000, "status", || {
                let status = g.rig.json("host1", &["tortie", "status", "-o", "json"]);
                let reported =
                    |p: &serde_json::Value| p["code"] == "tunnel-mtu" && p["next"] == "tortie doctor";
                let problems = status["problems"].as_array().unwrap();
                if problems.iter().any(reported) { Ok(()) } else { Err(format!("{problems:#?}")) }
            });
            let (_, text) = g.rig.exec("host1", &["tortie", "doctor"]);
            let line = text.lines().find(|line| line.contains("[tunnel-mtu]"));
            let line = line.unwrap_or_else(|| panic!("{text}"));
            assert!(line.contains("its MTU is 1490"), "{line}");
            g.put("/calico/v1/config/IpInIpMtu", "1300");
            (millis, line.to_owned())
        });
        self.case("store-address", |g| {
            g.put("/calico/v1/host/host1/config/IpInIpTunnelAddr", "10.244.1.60");
            g.settles(&Expected { mtu: 1300, address: "10.244.1.60/32", ..cross() })
        });
        self.case("store-back", |g| {
            g.put("/calico/v1/host/host1/config/IpInIpTunnelAddr", "10.244.1.63");
            g.rig.run(
                "host2",
                "tortie --datastore sqlite:/store/store.db store rm /calico/v1/config/IpInIpMtu",
            );
            g.settles(&cross())
        });
        self.case("always", |g| {
            g.put(POOL, r#"{"cidr":"10.244.0.0/16","ipip":"tunl0"}"#);
            let wanted = Expected { routes: vec![OWN, HOST2_TUNNEL, HOST3_TUNNEL], ..cross() };
            let good = g.settles(&wanted);
            let before = g.rig.tunnel_packets("host1");
            assert_eq!(g.rig.ping("web1", "10.244.2.1", 3), 3);
            let after = g.rig.tunnel_packets("host1");
            assert_eq!((after.0 - before.0, after.1 - before.1), (3, 3));
            g.put(POOL, CROSS);
            within(PATIENCE, "cross-subnet again", || g.rig.check("host1", &cross()));
            good
        });
    }

    /// The store gives the same routes as BGP, and keeps them without a session.
    fn routes_of_the_store(&mut self) {
        const SETTING: &str = "/calico/v1/config/ProgramClusterRoutes";
        const MESH: &str = "/calico/bgp/v1/global/node_mesh";
        let kinds = |g: &Self, kind: &str| {
            let rows = g.rig.json("host1", &["tortie", "route", "list", "-o", "json"]).to_string();
            if rows.matches(&format!("\"kind\":\"{kind}\"")).count() == 2 { Ok(()) } else { Err(rows) }
        };
        self.case("store-routes", |g| {
            g.put(SETTING, "EnabledIPIPOnly");
            let millis = within(PATIENCE, "routes of the store", || {
                kinds(g, "ipip").and_then(|()| g.rig.check("host1", &cross()))
            });
            g.put(MESH, r#"{"enabled":false}"#);
            within(PATIENCE, "no session", || {
                let peers = g.rig.json("host1", &["tortie", "bgp", "peers", "-o", "json"]);
                if peers["items"].as_array().is_some_and(Vec::is_empty) {
                    Ok(())
                } else {
                    Err(peers.to_string())
                }
            });
            g.rig.check("host1", &cross()).unwrap();
            g.crosses();
            (millis, "the routes stay without a session".to_owned())
        });
        self.case("store-routes-repaired", |g| {
            let disturb =
                || drop(g.rig.ip("host1", "link set tunl0 down\nroute del 10.244.2.0/26 proto 179\n"));
            let millis =
                repaired_within(REPAIRED, "tunnel and route", disturb, || g.rig.check("host1", &cross()));
            g.crosses();
            (millis, String::new())
        });
        self.case("store-routes-always", |g| {
            g.put(POOL, r#"{"cidr":"10.244.0.0/16","ipip":"tunl0"}"#);
            let good = g.settles(&Expected { routes: vec![OWN, HOST2_TUNNEL, HOST3_TUNNEL], ..cross() });
            g.put(POOL, CROSS);
            within(PATIENCE, "cross-subnet again", || g.rig.check("host1", &cross()));
            good
        });
        self.case("store-routes-off", |g| {
            g.put(MESH, r#"{"enabled":true}"#);
            g.rig.run("host2", &format!("tortie --datastore sqlite:/store/store.db store rm {SETTING}"));
            let millis = within(PATIENCE, "routes of BGP", || {
                kinds(g, "learned").and_then(|()| g.rig.check("host1", &cross()))
            });
            g.crosses();
            (millis, String::new())
        });
    }

    fn restart(&mut self) {
        self.case("restart-writes-nothing", |g| {
            let monitor = g
                .rig
                .lab
                .spawn("host1", &["ip", "monitor", "link", "address", "route", "nexthop"], |c| {
                    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                })
                .unwrap();
            let monitor_pid = i32::try_from(monitor.id()).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(g.rig.lab.kill("host1", Victim::Command).unwrap());
            g.crosses();
            g.rig.lab.start("host1").unwrap();
            let millis = within(60_000, "ready", || {
                let (ok, text) = g.rig.exec("host1", &["tortie", "status", "-o", "json"]);
                if ok { Ok(()) } else { Err(text) }
            });
            within(60_000, "both sessions and no stale route", || {
                let rows = g.rig.json("host1", &["tortie", "route", "list", "-o", "json"]).to_string();
                if rows.matches("\"installed\"").count() == 3 { Ok(()) } else { Err(rows) }
            });
            g.rig.check("host1", &cross()).unwrap();
            assert!(g.rig.lab.signal("host1", Victim::Pid(monitor_pid), Signal::TERM).unwrap());
            let received = monitor.wait_with_output().unwrap();
            let received = String::from_utf8_lossy(&received.stdout).into_owned();
            assert!(received.is_empty(), "the restarted agent wrote: {received}");
            (millis, "`ip monitor` heard nothing".to_owned())
        });
        self.case("broken-while-away", |g| {
            assert!(g.rig.lab.kill("host1", Victim::Command).unwrap());
            g.rig.ip("host1", "link set tunl0 down\nlink set tunl0 mtu 600\naddr flush dev tunl0\n");
            g.rig.lab.start("host1").unwrap();
            // The routes vanished with the device and return with the sessions.
            let millis = within(60_000, "host1", || g.rig.check("host1", &cross()));
            g.crosses();
            (millis, String::new())
        });
    }

    fn pools(&mut self) {
        self.case("pool-disabled", |g| {
            // A disabled pool allocates no new addresses; those in use stay.
            g.put(
                POOL,
                r#"{"cidr":"10.244.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet","disabled":true}"#,
            );
            std::thread::sleep(std::time::Duration::from_millis(500));
            g.rig.check("host1", &cross()).unwrap();
            g.crosses();
            g.put(POOL, CROSS);
            (0, "packets go on through the tunnel".to_owned())
        });
        self.case("pool-without-ipip", |g| {
            g.put(POOL, r#"{"cidr":"10.244.0.0/16"}"#);
            let millis = within(PATIENCE, "plain routes, no tunnel address", || {
                let routes = g.rig.routes("host1");
                let device = g.rig.ip("host1", "addr show dev tunl0\n");
                let right = routes == [OWN, HOST2_PLAIN, HOST3_PLAIN] && !device.contains("inet ");
                if right { Ok(()) } else { Err(format!("{routes:#?}\n{device}")) }
            });
            g.tunnel_is("none");
            // Without an IPIP pool, changes of the device by another process are not repaired.
            g.rig.ip("host1", "addr add 192.0.2.9/32 dev tunl0\nlink set tunl0 down\n");
            std::thread::sleep(std::time::Duration::from_millis(1000));
            let device = g.rig.ip("host1", "addr show dev tunl0\n");
            assert!(device.contains("192.0.2.9/32") && !device.contains("UP"), "{device}");
            (millis, device)
        });
        self.case("pool-with-ipip-again", |g| {
            g.put(POOL, CROSS);
            // The last address was released with the last IPIP pool.
            let key = "/calico/v1/host/host1/config/IpInIpTunnelAddr";
            let get = ["tortie", "--datastore", "sqlite:/store/store.db", "store", "get", key];
            let mut address = String::new();
            within(PATIENCE, "a tunnel address", || {
                let (found, text) = g.rig.exec("host2", &get);
                address = format!("{}/32", text.trim());
                if found { Ok(()) } else { Err(text) }
            });
            g.settles(&Expected { address: &address, ..cross() })
        });
        self.case("pool-removed", |g| {
            g.rig.run("host2", &format!("tortie --datastore sqlite:/store/store.db store rm --force {POOL}"));
            let millis = within(PATIENCE, "plain routes", || {
                let routes = g.rig.routes("host1");
                let right = routes == [OWN, HOST2_PLAIN, HOST3_PLAIN];
                if right { Ok(()) } else { Err(format!("{routes:#?}")) }
            });
            (millis, String::new())
        });
    }
}
