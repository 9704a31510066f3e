//! The Docker drivers on their sockets, on SQLite and etcd. `tests/plugins/docker/table.txt` maps sentences
//! of libnetwork's documentation to the tests that prove them. `tests/plugins/engines` runs a real dockerd.

mod rig;

use std::collections::BTreeSet;

use rig::{IPAM, NETWORK, Rig, refusal};
use serde_json::json;
use tortie_config::Dialect;

const POOL: &str = "10.65.0.0/16";
const LOCAL: &str = "172.30.1.0/24";

#[test]
fn every_sentence_of_the_document_has_a_test() {
    let table = include_str!("table.txt");
    let (here, mut before, mut rows) = (include_str!("mod.rs"), 0, 0);
    for row in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<&str> = row.split(" | ").collect();
        let [line, _, tests] = columns[..] else { panic!("not three columns: {row}") };
        let line: u32 = line.parse().unwrap();
        assert!(before <= line, "in the order of the document: {row}");
        before = line;
        rows += 1;
        if tests == "not about the driver" {
            continue;
        }
        for test in tests.split(' ') {
            assert!(here.contains(&format!("#[test]\nfn {test}() {{")), "no test {test}");
        }
    }
    assert_eq!(rows, 50);
}

#[test]
fn the_handshake_names_roles_spaces_and_capabilities() {
    let rig = Rig::sqlite();
    assert_eq!(rig.activate(), json!({ "Implements": ["IpamDriver"] }));
    for (driver, role) in
        [(NETWORK, "NetworkDriver"), ("calico", "NetworkDriver"), ("calico-ipam", "IpamDriver")]
    {
        assert_eq!(rig.call(driver, "Plugin.Activate", ""), json!({ "Implements": [role] }));
    }
    let spaces = rig.call(IPAM, "IpamDriver.GetDefaultAddressSpaces", "");
    assert_eq!(
        spaces,
        json!({ "LocalDefaultAddressSpace": "default", "GlobalDefaultAddressSpace": "global" })
    );
    let capabilities = rig.call(IPAM, "IpamDriver.GetCapabilities", "");
    assert_eq!(capabilities, json!({ "RequiresMACAddress": false, "RequiresRequestReplay": true }));
    let capabilities = rig.call(NETWORK, "NetworkDriver.GetCapabilities", "");
    assert_eq!(capabilities, json!({ "Scope": "local", "ConnectivityScope": "global" }));
    // "Not implemented" is status 404 with a JSON body.
    let (status, text) = rig.raw(IPAM, "IpamDriver.Other", b"{}");
    assert!(status == 404 && text.contains("\"Err\""), "{status} {text}");
}

#[test]
fn identical_requests_have_the_same_result() {
    let mut rig = Rig::sqlite();
    let requests = [
        ("default", POOL, "", false),
        ("default", POOL, "10.65.3.0/24", false),
        ("default", "", "", false),
        ("default", "", "", true),
        ("global", "fd00:65::/64", "", true),
        ("default", LOCAL, "", false),
        ("tenant", LOCAL, "172.30.1.128/25", false),
    ];
    let ask = |rig: &Rig| requests.map(|(space, pool, sub, v6)| rig.try_pool(space, pool, sub, v6));
    let first = ask(&rig);
    assert!(first.iter().all(|(status, _)| *status == 200), "{first:?}");
    let ids: BTreeSet<&String> = first.iter().map(|(_, text)| text).collect();
    assert_eq!(ids.len(), requests.len(), "what differs has different results");
    // Also after all others, concurrently, and from another process.
    assert_eq!(ask(&rig), first);
    std::thread::scope(|scope| {
        let many: Vec<_> = (0..8).map(|_| scope.spawn(|| ask(&rig))).collect();
        many.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), first));
    });
    rig.crash();
    assert_eq!(ask(&rig), first);
    assert_eq!(rig.pool("default", POOL), "global/10.65.0.0/16");
}

#[test]
fn the_space_is_the_only_mandatory_field() {
    let rig = Rig::sqlite();
    assert!(
        rig.refused(IPAM, "IpamDriver.RequestPool", r#"{"Pool":"10.65.0.0/16"}"#).contains("AddressSpace")
    );
    rig.call(IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default"}"#);
    rig.call(
        IPAM,
        "IpamDriver.RequestPool",
        r#"{"AddressSpace":"default","Pool":"","SubPool":"","Options":null,"V6":false}"#,
    );
}

#[test]
fn pools_of_the_global_space_are_those_of_the_data_model() {
    for rig in [Dialect::V1, Dialect::V3].map(Rig::sqlite_in) {
        assert_eq!(rig.pool("global", POOL), "global/10.65.0.0/16");
        for pool in ["192.0.2.0/24", "10.65.1.0/24", "10.0.0.0/8", "10.66.0.0/16"] {
            let says = refusal(&rig.try_pool("global", pool, "", false));
            assert!(says.contains(pool) && says.contains("its pools are 10.65.0.0/16"), "{says}");
        }
        assert!(rig.held().is_empty());
    }
}

#[test]
fn a_sub_pool_needs_its_pool_and_lies_in_it() {
    for rig in [Dialect::V1, Dialect::V3].map(Rig::sqlite_in) {
        assert!(refusal(&rig.try_pool("default", "", "10.65.3.0/24", false)).contains("--subnet"));
        assert!(refusal(&rig.try_pool("default", POOL, "10.66.0.0/24", false)).contains("no part"));
        assert!(rig.remembered().is_empty());
        let (_, text) = rig.try_pool("default", POOL, "10.65.3.0/30", false);
        assert!(text.contains(r#""PoolID":"global/10.65.0.0/16/10.65.3.0/30""#), "{text}");
        let id = "global/10.65.0.0/16/10.65.3.0/30";
        let got: BTreeSet<String> = (0..4).map(|_| rig.address(id, "")).collect();
        let expected = ["10.65.3.0/16", "10.65.3.1/16", "10.65.3.2/16", "10.65.3.3/16"].map(str::to_owned);
        assert_eq!(got, BTreeSet::from(expected));
        assert!(rig.try_address(id, "", false).unwrap_err().contains("free"), "the sub-pool is full");
        // Gateway and auxiliary addresses must only be inside the master pool.
        assert_eq!(rig.gateway(id, "10.65.9.9"), "10.65.9.9/16");
    }
}

#[test]
fn self_chosen_pools_are_of_the_family_that_is_asked_for() {
    for rig in [Dialect::V1, Dialect::V3].map(Rig::sqlite_in) {
        let chosen = |space: &str, v6: bool| rig.try_pool(space, "", "", v6).1;
        assert!(chosen("default", false).contains(r#""PoolID":"global/0.0.0.0/0","Pool":"0.0.0.0/0""#));
        assert!(chosen("default", true).contains(r#""PoolID":"global/::/0","Pool":"::/0""#));
        assert!(rig.address("global/0.0.0.0/0", "").starts_with("10.65."));
        assert!(rig.address("global/::/0", "").starts_with("fd00:65:"));
        // A pool of this host only: a different one each time, since dockerd repeats the request while it
        // overlaps with a visible network.
        let (a, b) = (rig.pool("local", ""), rig.pool("local", ""));
        assert!(a.starts_with("local/172.") && a.ends_with("/24") && a != b, "{a} {b}");
        assert!(chosen("local", true).contains("local/fd"));
        // 0.0.0.0/0 comes with a gateway in its data, so that dockerd requests one only in a replay.
        assert!(chosen("default", false).contains(r#""Data":{"com.docker.network.gateway":"0.0.0.0/0"}"#));
        assert_eq!(rig.gateway("global/0.0.0.0/0", "0.0.0.0"), "0.0.0.0/0");
        rig.release("global/0.0.0.0/0", "0.0.0.0");
    }
}

#[test]
fn the_same_pool_exists_in_several_spaces_and_is_isolated() {
    let rig = Rig::sqlite();
    let ids = ["global", "local", "tenant"].map(|space| rig.pool(space, POOL));
    for id in &ids {
        assert_eq!(rig.address(id, "10.65.4.4"), "10.65.4.4/16");
        assert!(rig.try_address(id, "10.65.4.4", false).is_err());
    }
    assert_eq!(rig.held(), ["10.65.4.4"; 3]);
    rig.release(&ids[1], "10.65.4.4");
    assert_eq!(rig.held(), ["10.65.4.4"; 2]);
    // Pools that are not global are visible to this host only.
    assert_eq!(rig.keys("/calico/ipam/v2/assignment/").len(), 1);
    let says = refusal(&rig.try_pool("local", "10.65.128.0/17", "", false));
    assert!(says.contains("overlaps with 10.65.0.0/16"), "pools of one space do not overlap: {says}");
}

#[test]
fn an_address_that_is_asked_for_is_given_or_the_request_fails() {
    let rig = Rig::sqlite();
    let id = rig.pool("default", POOL);
    assert_eq!(rig.address(&id, "10.65.7.7"), "10.65.7.7/16");
    assert!(rig.try_address(&id, "10.65.7.7", false).unwrap_err().contains("in use"));
    assert!(rig.try_address(&id, "10.64.0.1", false).unwrap_err().contains("no address of pool"));
    assert!(rig.try_address(&id, "fd00:65::1", false).unwrap_err().contains("no address of pool"));
    rig.release(&id, "10.65.7.7");
    assert_eq!(rig.address(&id, "10.65.7.7"), "10.65.7.7/16");
    assert_eq!(rig.held(), ["10.65.7.7"]);
}

#[test]
fn without_an_address_any_free_one_of_the_pool_is_given() {
    let rig = Rig::sqlite();
    let id = rig.pool("default", "172.30.1.0/29");
    let mut got = vec![rig.gateway(&id, "")];
    assert_eq!(got, ["172.30.1.1/29"], "the first one, with the length of the subnet");
    got.extend((0..5).map(|_| rig.address(&id, "")));
    let all: BTreeSet<&String> = got.iter().collect();
    assert_eq!(all.len(), 6);
    assert!(!got.contains(&"172.30.1.0/29".to_owned()) && !got.contains(&"172.30.1.7/29".to_owned()));
    assert!(rig.try_address(&id, "", false).unwrap_err().contains("free"), "full");
    rig.release(&id, &got[3]);
    assert_eq!(rig.address(&id, ""), got[3]);
}

/// The calls of `docker network create --subnet --gateway --aux-address`, `run`, `stop`, `network rm`, in
/// dockerd's order.
fn life(rig: &mut Rig, pool: &str, crash: bool) {
    rig.activate();
    let step = |rig: &mut Rig| {
        if crash {
            rig.crash();
        }
    };
    let id = rig.pool("default", pool);
    step(rig);
    let base = pool.rsplit_once(".0/").unwrap().0;
    let gateway = rig.gateway(&id, &format!("{base}.1"));
    assert_eq!(gateway, format!("{base}.1/{}", pool.rsplit_once('/').unwrap().1));
    let aux = rig.address(&id, &format!("{base}.9"));
    step(rig);
    let (fixed, free) = (rig.address(&id, &format!("{base}.7")), rig.address(&id, ""));
    step(rig);
    assert!(rig.try_address(&id, &format!("{base}.7"), false).is_err(), "a second container");
    assert!(rig.try_address(&id, &format!("{base}.1"), true).is_err(), "a second gateway");
    assert_eq!(rig.held().len(), 4);
    for addr in [&fixed, &free] {
        rig.release(&id, addr);
    }
    step(rig);
    for addr in [&gateway, &aux] {
        rig.release(&id, addr);
    }
    assert_eq!(rig.keys("/calico/tortie/v1/host/h1/docker/driver/tortie-ipam/pool/").len(), 1);
    rig.release_pool(&id);
    assert!(rig.held().is_empty());
    assert_eq!(rig.remembered(), Vec::<String>::new(), "nothing is left");
    // Repeated, as after a lost answer.
    rig.release(&id, &fixed);
    rig.release_pool(&id);
}

#[test]
fn networks_come_and_go_in_dockerds_order() {
    for dialect in [Dialect::V1, Dialect::V3] {
        let mut rig = Rig::sqlite_in(dialect);
        life(&mut rig, POOL, false);
        life(&mut rig, LOCAL, false);
    }
}

#[test]
fn a_driver_that_is_killed_between_any_two_calls_loses_nothing() {
    for dialect in [Dialect::V1, Dialect::V3] {
        let mut rig = Rig::sqlite_in(dialect);
        life(&mut rig, POOL, true);
        life(&mut rig, LOCAL, true);
    }
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_serves_as_well() {
    use crate::common::etcd::{Cluster, Security};
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let mut rig = Rig::on(Dialect::V1, tempfile::tempdir().unwrap(), cluster.url());
    life(&mut rig, POOL, true);
    life(&mut rig, LOCAL, false);
    at_once(&rig);
    drop(rig);
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let mut rig = Rig::on(Dialect::V3, tempfile::tempdir().unwrap(), cluster.url());
    life(&mut rig, POOL, false);
    at_once(&rig);
}

#[test]
fn a_pool_stays_as_long_as_networks_use_it() {
    let rig = Rig::sqlite();
    rig.activate();
    let id = rig.pool("default", LOCAL);
    assert_eq!(rig.pool("default", LOCAL), id);
    rig.release_pool(&id);
    rig.address(&id, "172.30.1.5");
    rig.release(&id, "172.30.1.5");
    rig.release_pool(&id);
    assert!(rig.try_address(&id, "", false).unwrap_err().contains("unknown"));
    assert!(rig.held().is_empty() && rig.remembered().is_empty());
}

#[test]
fn a_replay_asks_again_for_what_is_held_and_leaks_no_reference() {
    let mut rig = Rig::sqlite();
    rig.activate();
    let id = rig.pool("default", POOL);
    let gateway = rig.gateway(&id, "");
    let gateway = gateway.split('/').next().unwrap().to_owned();
    rig.address(&id, "10.65.9.9");
    rig.address(&id, "10.65.7.7");
    for restart in 0..3 {
        if restart == 1 {
            rig.crash();
        }
        rig.activate();
        // Automatic pools are requested again by their name.
        assert_eq!(rig.pool("default", POOL), id);
        rig.gateway(&id, &gateway);
        rig.address(&id, "10.65.9.9");
        rig.address(&id, "10.65.7.7");
        // During the window after the restart, a second container does not get it either.
        assert!(rig.try_address(&id, "10.65.7.7", false).unwrap_err().contains("in use"));
        assert_eq!(rig.held().len(), 3);
    }
    for addr in ["10.65.7.7", "10.65.9.9", gateway.as_str()] {
        rig.release(&id, addr);
    }
    rig.release_pool(&id);
    assert!(rig.remembered().is_empty() && rig.held().is_empty());
}

#[test]
fn only_a_dockerd_that_has_started_since_may_ask_again() {
    let mut rig = Rig::sqlite();
    let id = rig.pool("default", POOL);
    rig.address(&id, "10.65.7.7");
    rig.crash();
    assert!(rig.try_address(&id, "10.65.7.7", false).is_err(), "a restart of ours is none of dockerd's");
    // An activation through another driver's name.
    rig.call("calico-ipam", "Plugin.Activate", "");
    assert!(rig.try_address(&id, "10.65.7.7", false).is_err());
    rig.activate();
    assert!(rig.try_address(&id, "10.65.7.7", false).is_ok());
    assert!(rig.try_address(&id, "10.65.7.7", false).is_err());
}

#[test]
fn a_failed_replay_keeps_what_living_containers_use() {
    let rig = Rig::sqlite();
    rig.activate();
    let id = rig.pool("default", LOCAL);
    rig.gateway(&id, "");
    rig.address(&id, "172.30.1.7");
    rig.activate();
    rig.pool("default", LOCAL);
    // dockerd got no answer to its gateway request and releases the pool.
    rig.release_pool(&id);
    assert_eq!(rig.address(&id, "172.30.1.7"), "172.30.1.7/24");
    assert_eq!(rig.held(), ["172.30.1.1", "172.30.1.7"]);
    // `network rm`, much later.
    rig.release(&id, "172.30.1.7");
    rig.release(&id, "172.30.1.1");
    rig.release_pool(&id);
    assert!(rig.remembered().is_empty() && rig.held().is_empty());
}

/// Concurrent requests get different addresses, and only one of several requests for the same address
/// succeeds.
fn at_once(rig: &Rig) {
    let (_, text) = rig.try_pool("default", POOL, "10.65.8.0/27", false);
    assert!(text.contains("PoolID"), "{text}");
    let id = "global/10.65.0.0/16/10.65.8.0/27";
    let got: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..40).map(|_| scope.spawn(|| rig.try_address(id, "", false))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let given: BTreeSet<&String> = got.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert_eq!(given.len(), 32, "each of the 32 addresses once");
    assert_eq!(got.iter().filter(|answer| answer.is_err()).count(), 8);
    let same: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| rig.try_address(id, "10.65.200.1", false))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).filter(Result::is_ok).count()
    });
    assert_eq!(same, 1);
}

#[test]
fn concurrent_requests_get_different_addresses() {
    let rig = Rig::sqlite();
    at_once(&rig);
}

#[test]
fn malformed_requests_have_the_protocols_error_and_allocate_nothing() {
    let rig = Rig::sqlite();
    let huge = format!(r#"{{"AddressSpace":"default","Pool":"{}"}}"#, "1".repeat(1_000_000));
    let long = format!(r#"{{"AddressSpace":"default","Pool":"{}"}}"#, "1".repeat(10_000));
    let cases: &[(&str, &str, &str)] = &[
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default","Po"#),
        (IPAM, "IpamDriver.RequestPool", "[]"),
        (IPAM, "IpamDriver.RequestPool", "null"),
        (IPAM, "IpamDriver.RequestPool", "\u{1}\u{2}"),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":7}"#),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default","V6":"yes"}"#),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default","Options":{"a":1}}"#),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default","Options":{"a":"b"}}"#),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"default","Pool":"10.65.0.0/99"}"#),
        (IPAM, "IpamDriver.RequestPool", r#"{"AddressSpace":"../../v1","Pool":"172.30.1.0/24"}"#),
        (IPAM, "IpamDriver.RequestPool", &huge),
        (IPAM, "IpamDriver.RequestPool", &long),
        (IPAM, "IpamDriver.RequestAddress", ""),
        (IPAM, "IpamDriver.RequestAddress", r#"{"PoolID":"nonsense"}"#),
        (IPAM, "IpamDriver.RequestAddress", r#"{"PoolID":"global/10.65.0.0/16"}"#),
        (IPAM, "IpamDriver.RequestAddress", r#"{"PoolID":"local/172.30.1.0/24","Address":"172.30.1.1"}"#),
        (IPAM, "IpamDriver.RequestAddress", r#"{"PoolID":"global/10.65.0.0/16","Address":"ten"}"#),
        (IPAM, "IpamDriver.ReleaseAddress", r#"{"PoolID":"global/10.65.0.0/16","Address":""}"#),
        (IPAM, "IpamDriver.ReleaseAddress", r#"{"PoolID":"","Address":"10.65.0.1"}"#),
        (IPAM, "IpamDriver.ReleasePool", "{}"),
        (IPAM, "IpamDriver.ReleasePool", r#"{"PoolID":[]}"#),
        (NETWORK, "NetworkDriver.CreateNetwork", "{}"),
        (NETWORK, "NetworkDriver.CreateNetwork", r#"{"NetworkID":"a/b","IPv4Data":[]}"#),
        (NETWORK, "NetworkDriver.CreateNetwork", r#"{"NetworkID":"ab","IPv4Data":{}}"#),
        (NETWORK, "NetworkDriver.CreateEndpoint", r#"{"NetworkID":"ab","EndpointID":"cd"}"#),
        (NETWORK, "NetworkDriver.Join", r#"{"NetworkID":"ab","EndpointID":"cd"}"#),
        (NETWORK, "NetworkDriver.ProgramExternalConnectivity", r#"{"NetworkID":"ab","EndpointID":"cd"}"#),
        (NETWORK, "NetworkDriver.DeleteEndpoint", r#"{"EndpointID":"../x"}"#),
    ];
    for (driver, method, body) in cases {
        rig.refused(driver, method, body);
    }
    assert!(rig.held().is_empty() && rig.remembered().is_empty(), "{:?}", rig.remembered());
    assert_eq!(rig.activate(), json!({ "Implements": ["IpamDriver"] }), "and it still serves");
}

#[test]
fn a_network_of_our_driver_has_pools_of_the_data_model_and_addresses_that_stand_alone() {
    let rig = Rig::sqlite();
    let id = rig.pool("default", POOL);
    assert!(rig.address(&id, "10.65.1.1").ends_with("/16"), "the bridge driver wants the subnet");
    let network = |id: &str, space: &str, pool: &str, options: serde_json::Value| {
        let data = json!([{ "AddressSpace": space, "Pool": pool, "Gateway": "10.65.0.1/16" }]);
        json!({ "NetworkID": id, "Options": options, "IPv4Data": data, "IPv6Data": [] }).to_string()
    };
    let create = "NetworkDriver.CreateNetwork";
    let local = rig.refused(NETWORK, create, &network("n1", "default", LOCAL, json!({})));
    assert!(local.contains("this host alone") && local.contains("10.65.0.0/16"), "{local}");
    let foreign = rig.refused(NETWORK, create, &network("n1", "LocalDefault", "172.18.0.0/16", json!({})));
    assert!(foreign.contains("--ipam-driver tortie-ipam"), "{foreign}");
    let generic = |options| json!({ "com.docker.network.generic": options });
    let unknown = rig.refused(NETWORK, create, &network("n1", "default", POOL, generic(json!({ "x": "y" }))));
    assert!(unknown.contains("-o x"), "{unknown}");
    let internal = json!({ "com.docker.network.internal": true });
    assert!(rig.refused(NETWORK, create, &network("n1", "default", POOL, internal)).contains("--internal"));
    assert!(rig.keys("/calico/tortie/v1/host/h1/docker/network/").is_empty());

    let options = generic(json!({ "com.docker.network.driver.mtu": "1400" }));
    assert_eq!(rig.call(NETWORK, create, &network("n1", "default", POOL, options)), json!({}));
    assert_eq!(rig.address(&id, "10.65.1.2"), "10.65.1.2/32");
    assert_eq!(rig.gateway(&id, "10.65.1.3"), "10.65.1.3/16", "a gateway is one of a subnet");
    let endpoint =
        json!({ "NetworkID": "n1", "EndpointID": "e1", "Interface": { "Address": "10.65.1.2/32" } });
    let answer = rig.call(NETWORK, "NetworkDriver.CreateEndpoint", &endpoint.to_string());
    assert!(answer["Interface"]["MacAddress"].as_str().unwrap().starts_with("02:"), "{answer}");
    assert!(answer["Interface"]["Address"].is_null(), "an address that came must not come back");
    assert_eq!(rig.call(NETWORK, "NetworkDriver.CreateEndpoint", &endpoint.to_string()), answer, "repeated");
    let given = json!({ "NetworkID": "n1", "EndpointID": "e2",
        "Interface": { "Address": "10.65.1.2/32", "MacAddress": "02:42:00:00:00:07" } });
    assert_eq!(rig.call(NETWORK, "NetworkDriver.CreateEndpoint", &given.to_string()), json!({}));
    let foreign =
        json!({ "NetworkID": "n1", "EndpointID": "e3", "Interface": { "Address": "10.65.99.9/32" } });
    let says = rig.refused(NETWORK, "NetworkDriver.CreateEndpoint", &foreign.to_string());
    assert!(says.contains("was not allocated"), "{says}");
    for endpoint in ["e1", "e2"] {
        let body = json!({ "NetworkID": "n1", "EndpointID": endpoint }).to_string();
        assert_eq!(rig.call(NETWORK, "NetworkDriver.EndpointOperInfo", &body), json!({ "Value": {} }));
        assert_eq!(rig.call(NETWORK, "NetworkDriver.DeleteEndpoint", &body), json!({}));
    }
    rig.call(NETWORK, "NetworkDriver.DeleteNetwork", r#"{"NetworkID":"n1"}"#);
    assert!(!rig.remembered().iter().any(|key| key.contains("/endpoint/") || key.contains("/network/")));
}

#[test]
fn what_docker_keeps_free_is_no_leak() {
    for rig in [Dialect::V1, Dialect::V3].map(Rig::sqlite_in) {
        let id = rig.pool("default", POOL);
        let gateway = rig.gateway(&id, "");
        let aux = rig.address(&id, "10.65.9.9");
        assert!(rig.findings().is_empty(), "{:?}", rig.findings());
        for addr in [&gateway, &aux] {
            rig.release(&id, addr);
        }
        assert!(rig.findings().is_empty(), "{:?}", rig.findings());
    }
}

/// Returns the containers' endpoints in the store.
fn endpoints(rig: &Rig) -> Vec<String> {
    rig.keys("/calico/").into_iter().filter(|key| key.contains("/workload")).collect()
}

/// `docker run` and its end, with the calls of dockerd. Its container never gets the interface, because no
/// dockerd moves it.
fn run_and_remove(rig: &Rig) {
    let id = rig.pool("default", POOL);
    let data = json!([{ "AddressSpace": "default", "Pool": POOL, "Gateway": "10.65.0.1/16" }]);
    let network = json!({ "NetworkID": "n1", "Options": {}, "IPv4Data": data, "IPv6Data": [] });
    rig.call(NETWORK, "NetworkDriver.CreateNetwork", &network.to_string());
    let addr = rig.address(&id, "10.65.1.2");
    assert_eq!(addr, "10.65.1.2/32");
    let endpoint = json!({ "NetworkID": "n1", "EndpointID": "5eed", "Interface": { "Address": addr } });
    let mac = rig.call(NETWORK, "NetworkDriver.CreateEndpoint", &endpoint.to_string());
    let mac = mac["Interface"]["MacAddress"].clone();
    let join = json!({ "NetworkID": "n1", "EndpointID": "5eed", "SandboxKey": "/run/docker/netns/none" });
    let joined = rig.call(NETWORK, "NetworkDriver.Join", &join.to_string());
    assert_eq!(joined["Gateway"], "169.254.1.1");
    let [key] = &endpoints(rig)[..] else { panic!("{:?}", endpoints(rig)) };
    match rig.dialect {
        Dialect::V1 => assert_eq!(key, "/calico/v1/host/h1/workload/libnetwork/libnetwork/endpoint/5eed"),
        Dialect::V3 => {
            let name = "default/h1-libnetwork-libnetwork-5eed";
            assert_eq!(*key, crate::common::calico3::key("WorkloadEndpoint", name));
            let value = rig.value(key);
            let interface = value["spec"]["interfaceName"].clone();
            assert!(interface.as_str().unwrap().starts_with("cali"), "{value}");
            assert_eq!(
                value["spec"],
                json!({
                    "orchestrator": "libnetwork", "node": "h1", "workload": "libnetwork", "endpoint": "5eed",
                    "ipNetworks": ["10.65.1.2/32"], "profiles": ["n1"], "mac": mac, "interfaceName": interface,
                })
            );
            // The network's name is unknown without dockerd, so that its id is the profile's name.
            let profile = rig.value(&crate::common::calico3::key("Profile", "n1"));
            assert_eq!(profile["spec"]["labelsToApply"], json!({"n1": ""}));
        }
    }
    // A frozen data model: dockerd ignores the errors of a removal, and the drivers repeat it later.
    let leave = json!({ "NetworkID": "n1", "EndpointID": "5eed" }).to_string();
    rig.ready(false);
    let says = rig.refused(NETWORK, "NetworkDriver.Join", &join.to_string());
    assert!(says.contains("try again later"), "{says}");
    if rig.dialect == Dialect::V3 {
        assert!(rig.refused(NETWORK, "NetworkDriver.DeleteEndpoint", &leave).contains("datastoreReady"));
        assert_eq!(endpoints(rig).len(), 1);
    }
    rig.ready(true);
    rig.call(NETWORK, "NetworkDriver.Leave", &leave);
    rig.call(NETWORK, "NetworkDriver.DeleteEndpoint", &leave);
    rig.release(&id, &addr);
    rig.call(NETWORK, "NetworkDriver.DeleteNetwork", r#"{"NetworkID":"n1"}"#);
    assert_eq!((endpoints(rig), rig.held()), (Vec::new(), Vec::new()));
}

#[test]
fn a_container_comes_and_goes_in_both_data_models() {
    crate::common::netns::in_netns(|| {
        for rig in [Dialect::V1, Dialect::V3].map(Rig::sqlite_in) {
            run_and_remove(&rig);
        }
    });
}

#[test]
fn networks_that_calicos_driver_made_are_served_by_their_old_ids() {
    let rig = Rig::sqlite();
    let body =
        r#"{"AddressSpace":"CalicoGlobalAddressSpace","Pool":"","SubPool":"","Options":{},"V6":false}"#;
    let answer = rig.call("calico-ipam", "IpamDriver.RequestPool", body);
    assert_eq!(answer["PoolID"], "global/0.0.0.0/0");
    let body = r#"{"PoolID":"CalicoPoolIPv4","Address":"","Options":null}"#;
    let answer = rig.call("calico-ipam", "IpamDriver.RequestAddress", body);
    assert!(answer["Address"].as_str().unwrap().ends_with("/32"), "{answer}");
}
