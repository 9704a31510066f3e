//! Mesh switched off and on, peers added and removed, an AS number changed: only the affected sessions are
//! reset.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::interop::probe::{Router, established, full_kernels, kernel, names, sessions};
use crate::interop::rig::{Backend, Net, delete, put, within};

const LIMIT: Duration = Duration::from_secs(20);
const MESH: &str = "/calico/bgp/v1/global/node_mesh";
const TOR: &str = "172.30.0.254";
const HOSTS: [(&str, &str); 3] = [("host1", "172.30.0.1"), ("host2", "172.30.0.2"), ("host3", "172.30.0.3")];

/// Start time and number of losses of each host's sessions.
type SessionTable = BTreeMap<(String, String), (Timestamp, Value)>;

/// Waits until each host has exactly the sessions that `wanted` returns, all established for at least a
/// second. A session that is lost and re-established later has another start time.
fn settle(net: &Net, what: &str, wanted: impl Fn(&str) -> Vec<&'static str>) -> SessionTable {
    let (table, took) = within(LIMIT, Instant::now(), what, || {
        let mut table = SessionTable::new();
        for (host, _) in HOSTS {
            for (peer, p) in established(net, host, &wanted(host))? {
                if p["stateSeconds"] == 0 {
                    return Err(format!("{host}: {peer} is new"));
                }
                let since = p["stateSince"].as_str().and_then(|text| text.parse().ok());
                let since = since.ok_or_else(|| p.to_string())?;
                table.insert((host.to_owned(), peer), (since, p["flaps"].clone()));
            }
        }
        Ok(table)
    });
    println!("{what}: settled after {} ms", took.as_millis());
    table
}

fn others(host: &str) -> Vec<&'static str> {
    HOSTS.iter().filter(|(name, _)| *name != host).map(|(_, address)| *address).collect()
}

/// Checks that every session in both tables is the same, except for those that `moved` selects.
fn same(what: &str, before: &SessionTable, after: &SessionTable, moved: impl Fn(&str, &str) -> bool) {
    let mut kept = 0;
    for ((host, peer), session) in before {
        let Some(now) = after.get(&(host.clone(), peer.clone())) else { continue };
        if !moved(host, peer) {
            let later = now.0.duration_since(session.0).abs();
            // The agent reports ages, from which the start is known within a few milliseconds. A session that is
            // lost starts again more than a second later: `settle` waits for that age.
            let one = session.1 == now.1 && later < SignedDuration::from_secs(1);
            assert!(one, "{what}: the session of {host} with {peer} moved: {session:?}, {now:?}");
            kept += 1;
        }
    }
    assert!(kept > 0, "{what}: no session had to stay, so nothing was tested");
}

fn only_what_is_concerned_moves(backend: Backend) {
    let Some(net) = Net::file("tor-bird", backend) else { return };
    let full = |host: &str| [others(host), vec![TOR]].concat();
    let start = settle(&net, "start", full);
    within(LIMIT, Instant::now(), "full tables", || full_kernels(&net));

    net.commit(vec![put(MESH, "{\"enabled\": false}")]);
    let off = settle(&net, "mesh off", |_| vec![TOR]);
    same("mesh off", &start, &off, |_, _| false);
    within(LIMIT, Instant::now(), "routes of the mesh go with it", || {
        let routes = kernel(&net, "host1")?;
        let left = net.blocks.iter().find(|(host, block)| host != "host1" && routes.contains_key(block));
        left.map_or(Ok(()), |_| Err(format!("{routes:?}")))
    });
    // The router has the hosts' blocks from the hosts themselves and must not have lost any.
    let table = Router::Bird.table(&net, "tor").unwrap();
    assert!(net.blocks.iter().all(|(_, block)| names(&table, block)), "{table}");

    net.commit(vec![put(MESH, "{\"enabled\": true}")]);
    let on = settle(&net, "mesh on", full);
    same("mesh on", &off, &on, |_, _| false);
    within(LIMIT, Instant::now(), "full tables again", || full_kernels(&net));

    // The same value with other blanks is no change.
    net.commit(vec![put(MESH, "{ \"enabled\" : true }")]);

    net.commit(vec![delete(&format!("/calico/bgp/v1/global/peer_v4/{TOR}"))]);
    let without = settle(&net, "global peer removed", others);
    same("global peer removed", &on, &without, |_, _| false);
    within(LIMIT, Instant::now(), "the default route goes with it", || {
        let routes = kernel(&net, "host2")?;
        (!routes.contains_key("default")).then_some(()).ok_or(format!("{routes:?}"))
    });

    let value = format!("{{\"ip\": \"{TOR}\", \"as_num\": \"65000\"}}");
    net.commit(vec![put(&format!("/calico/bgp/v1/host/host1/peer_v4/{TOR}"), &value)]);
    let one = |host: &str| if host == "host1" { full(host) } else { others(host) };
    let added = settle(&net, "peer of host1 added", one);
    same("peer of host1 added", &without, &added, |_, _| false);

    // host2 gets an AS number of its own: its two mesh sessions become eBGP, all others are unchanged.
    net.commit(vec![put("/calico/bgp/v1/host/host2/as_num", "64513")]);
    let concerned = |host: &str, peer: &str| host == "host2" || peer == "172.30.0.2";
    within(LIMIT, Instant::now(), "the sessions with host2 are new ones", || {
        for (host, _) in [HOSTS[0], HOSTS[2]] {
            let peer = sessions(&net, host)?.remove("172.30.0.2").ok_or("no session")?;
            if peer["remoteAs"] != 64513 || peer["state"] != "Established" {
                return Err(peer.to_string());
            }
        }
        Ok(())
    });
    let asn = settle(&net, "AS changed", one);
    same("AS changed", &added, &asn, concerned);
    for ((host, peer), session) in &asn {
        if concerned(host, peer) {
            assert!(session.0 > added[&(host.clone(), peer.clone())].0, "{host} and {peer}");
        }
    }
    within(LIMIT, Instant::now(), "full tables over eBGP", || full_kernels(&net));
}

#[test]
fn only_what_is_concerned_moves_sqlite() {
    only_what_is_concerned_moves(Backend::Sqlite);
}

#[test]
fn only_what_is_concerned_moves_etcd() {
    only_what_is_concerned_moves(Backend::Etcd);
}
