//! Every block of every host reaches every other kernel and the router; new and withdrawn blocks take effect
//! at once.

use std::time::Duration;

use crate::interop::probe::{Monitor, Router, full_kernels, hints, kernel, names, sessions};
use crate::interop::restart;
use crate::interop::rig::{Backend, Net, delete, put, within};
use crate::interop::two_hosts;

/// Time limit from the start of the agents to complete tables.
const START: Duration = Duration::from_secs(5);

/// Runs hosts with one router of each kind on either store, from the start to a crash.
fn rack(router: Router, backend: Backend) {
    let Some(mut net) = Net::file(router.lab(), backend) else { return };
    within(START, net.started, "every block in every kernel", || full_kernels(&net));
    let (_, took) = within(START, net.started, "every block in the router", || router_has_all(&net, router));
    println!("{router:?} {backend:?}: full tables {} ms after the start", took.as_millis());
    // FRR sends the default route a second later than all others; the start ends when it has arrived.
    within(Duration::from_secs(10), net.started, "the router's default route", || {
        let lacks = |host: &&String| kernel(&net, host).is_ok_and(|routes| !routes.contains_key("default"));
        net.hosts.iter().find(lacks).map_or(Ok(()), |host| Err(format!("{host} lacks it")))
    });
    new_blocks(&net, router, backend);
    each_its_own(&net);
    restart::kill(&mut net, Some(router));
    restart::terminate(&mut net, Some(router));
}

fn router_has_all(net: &Net, router: Router) -> Result<(), String> {
    let table = router.table(net, "tor")?;
    match net.blocks.iter().find(|(_, block)| !names(&table, block)) {
        Some((owner, block)) => Err(format!("the router lacks {owner}'s {block}:\n{table}")),
        None => Ok(()),
    }
}

/// Configures the hosts to announce only their own blocks to the router; no session is reset.
fn each_its_own(net: &Net) {
    const TOR: &str = "172.30.0.254";
    let flaps = || -> Vec<_> {
        net.hosts.iter().map(|host| sessions(net, host).unwrap()[TOR]["flaps"].clone()).collect()
    };
    let before = flaps();
    let value = format!("{{\"ip\": \"{TOR}\", \"as_num\": \"65000\", \"own_only\": true}}");
    let commit = net.commit(vec![put(&format!("/calico/bgp/v1/global/peer_v4/{TOR}"), &value)]);
    within(Duration::from_secs(5), commit.done, "own blocks only", || {
        for host in &net.hosts {
            let peer = sessions(net, host)?.remove(TOR).ok_or("no session")?;
            if peer["families"][0]["advertised"] != 1 || peer["state"] != "Established" {
                return Err(peer.to_string());
            }
        }
        Ok(())
    });
    assert_eq!(flaps(), before);
}

/// Adds blocks to host1 and removes them.
fn new_blocks(net: &Net, router: Router, backend: Backend) {
    const LIMIT: Duration = Duration::from_secs(1);
    let others: Vec<Monitor> = net.hosts[1..].iter().map(|host| Monitor::kernel(net, host)).collect();
    let (mut came, mut went) = (Vec::new(), Vec::new());
    for i in 0..10 {
        let block = format!("10.244.{}.64/26", 100 + i);
        let keys = two_hosts::block("host1", &block);
        let at = net.commit(two_hosts::puts(&keys));
        for monitor in &others {
            came.push(monitor.wait(LIMIT, at, "a new block comes", |line| {
                line.starts_with(&block) && line.contains(" via ")
            }));
        }
        within(LIMIT, at.done, "the new block is in the router", || {
            let table = router.table(net, "tor")?;
            names(&table, &block).then_some(()).ok_or(table)
        });
        let at = net.commit(keys.iter().map(|(key, _)| delete(key)).collect());
        for monitor in &others {
            went.push(
                monitor.wait(LIMIT, at, "a block goes", |line| {
                    line.starts_with("Deleted") && names(line, &block)
                }),
            );
        }
        within(LIMIT, at.done, "the block is gone from the router", || {
            let table = router.table(net, "tor")?;
            (!names(&table, &block)).then_some(()).ok_or(table)
        });
    }
    for (what, mut all) in [("in", came), ("out", went)] {
        all.sort();
        let millis = |n: usize| all[n].as_secs_f64() * 1000.0;
        println!(
            "{router:?} {backend:?}: a block is {what} after median {:.1} ms, worst {:.1} ms",
            millis(all.len() / 2),
            millis(all.len() - 1)
        );
    }
}

#[test]
fn bird_sqlite() {
    rack(Router::Bird, Backend::Sqlite);
}

#[test]
fn bird_etcd() {
    rack(Router::Bird, Backend::Etcd);
}

#[test]
fn frr_sqlite() {
    rack(Router::Frr, Backend::Sqlite);
}

#[test]
fn frr_etcd() {
    rack(Router::Frr, Backend::Etcd);
}

#[test]
fn gobgp_sqlite() {
    rack(Router::Gobgp, Backend::Sqlite);
}

#[test]
fn gobgp_etcd() {
    rack(Router::Gobgp, Backend::Etcd);
}

#[test]
fn openbgpd_sqlite() {
    rack(Router::Openbgpd, Backend::Sqlite);
}

#[test]
fn openbgpd_etcd() {
    rack(Router::Openbgpd, Backend::Etcd);
}

/// Other topologies: tables are complete within five seconds of the start, and a workload reaches those of
/// the most distant hosts.
fn shape(lab: &str, backend: Backend, far: &[&str]) -> Option<Net> {
    let net = Net::file(lab, backend)?;
    let (_, took) = within(START, net.started, "every block in every kernel", || full_kernels(&net));
    println!("{lab} {backend:?}: full tables {} ms after the start", took.as_millis());
    for address in far {
        within(Duration::from_secs(10), net.started, "an answer from the farthest host", || {
            net.run("web1", &["ping", "-c", "1", "-W", "1", address])
        });
    }
    // Routes that routers and reflectors pass on from other hosts cause no warning.
    for host in &net.hosts {
        assert_eq!(hints(&net, host, &["status"]).unwrap(), [""; 0], "{lab}: {host}");
    }
    Some(net)
}

#[test]
fn mesh() {
    shape("mesh", Backend::Sqlite, &["10.244.2.1", "10.244.3.1"]);
}

#[test]
fn reflectors() {
    shape("reflectors", Backend::Sqlite, &["10.244.8.1"]);
    shape("reflectors", Backend::Etcd, &["10.244.8.1"]);
}

#[test]
fn as_per_rack() {
    shape("as-per-rack", Backend::Sqlite, &["10.244.2.1", "10.244.4.1"]);
    shape("as-per-rack", Backend::Etcd, &["10.244.2.1", "10.244.4.1"]);
}

#[test]
fn ipv6() {
    shape("ipv6", Backend::Sqlite, &["fd00:10:244:3::1"]);
}

#[test]
fn dual_stack() {
    let far = ["10.244.3.1", "fd00:10:244:3::1"];
    let Some(mut net) = shape("dual-stack", Backend::Etcd, &far) else { return };
    restart::kill(&mut net, None);
}
