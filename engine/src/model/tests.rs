use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use tortie_config::key::IpFamily;

use tortie_store::fixtures::{delete, kv, put, snapshot};

use tortie_config::key::{Key, Scope};
use tortie_net::Cidr;
use tortie_store::{Change, Delta, KeyValue, Revision, Snapshot};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Three hosts; `h1` is this host and owns two blocks.
const NETWORK: &[(&str, &str)] = &[
    ("/calico/v1/Ready", "true"),
    ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16"}"#),
    ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
    ("/calico/bgp/v1/host/h1/ip_addr_v6", ""),
    ("/calico/bgp/v1/host/h2/ip_addr_v4", "192.0.2.2"),
    ("/calico/bgp/v1/host/h3/ip_addr_v4", "192.0.2.3"),
    ("/calico/ipam/v2/host/h1/ipv4/block/10.0.1.0-30", r#"{"state":"confirmed"}"#),
    ("/calico/ipam/v2/host/h1/ipv4/block/10.0.2.0-30", ""),
    ("/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30", BLOCK_1),
    ("/calico/ipam/v2/assignment/ipv4/block/10.0.2.0-30", BLOCK_1),
    ("/calico/v1/host/h1/workload/cni/w1/endpoint/eth0", ENDPOINT),
    ("/calico/v1/host/h2/workload/cni/w2/endpoint/eth0", ENDPOINT),
];
const ENDPOINT: &str = r#"{"state":"active","name":"cali0","ipv4_nets":["10.0.1.2/32"]}"#;
const BLOCK_1: &str = r#"{"affinity":"host:h1","allocations":[null,null,null,null],"attributes":[]}"#;

const BLOCK_2: &str = r#"{"affinity":"host:h2","allocations":[null,null,null,null],"attributes":[]}"#;
/// A block of `h2` with an address of `h1` and one of `h3`.
const LENT: &str = r#"{"affinity":"host:h2","allocations":[null,0,1,null],"attributes":[
    {"secondary":{"node":"h1"}},{"secondary":{"node":"h3"}}]}"#;

fn loaded() -> Model {
    let mut model = Model::new("h1");
    model.replace(WatchPart::All, &snapshot(10, NETWORK));
    assert_eq!(model.invalid_keys().count(), 0);
    model
}

fn own_blocks(model: &Model) -> Vec<String> {
    model.own_blocks().map(|(cidr, _)| cidr.to_string()).collect()
}

#[test]
fn a_snapshot_is_indexed_by_host_and_kind() {
    let model = loaded();
    assert_eq!(model.hosts().map(|(name, _)| name).collect::<Vec<_>>(), ["h1", "h2", "h3"]);
    assert_eq!(model.node_addr(IpFamily::V4), Some(ip("192.0.2.1")));
    assert_eq!(model.node_addr(IpFamily::V6), None, "an empty value means no address");
    assert_eq!(model.hosts_by_address(ip("192.0.2.3")).map(|(name, _)| name).collect::<Vec<_>>(), ["h3"]);
    assert_eq!(own_blocks(&model), ["10.0.1.0/30", "10.0.2.0/30"]);
    assert_eq!(model.workloads("h1").count(), 1);
    assert_eq!(model.object_counts(), ObjectCounts { pools: 1, own_blocks: 2, hosts: 3, endpoints: 2 });
    assert_eq!(*model.ready(), Ready::True);
    assert_eq!(model.as_num(model.host("h2")).get(), 64512);
    assert_eq!(
        model.block_scope(),
        [
            "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30",
            "/calico/ipam/v2/assignment/ipv4/block/10.0.2.0-30"
        ]
    );
}

#[test]
fn an_unreadable_value_leaves_the_last_good_one_in_force_and_everything_else_alone() {
    let mut model = loaded();
    let key = "/calico/bgp/v1/host/h2/ip_addr_v4";
    let changes = model.apply(&put(11, key, "not an address"));
    assert!(changes.invalid_keys && !changes.peers.any(), "{changes:?}");
    assert_eq!(model.hosts_by_address(ip("192.0.2.2")).count(), 1);
    let problem = model.invalid_keys().next().unwrap().clone();
    assert_eq!((problem.key.as_str(), problem.revision, problem.last_good), (key, 11, true));
    assert!(problem.error.contains("not an address"), "{}", problem.error);

    // A relist keeps the last good value in force.
    let mut broken = snapshot(10, NETWORK);
    broken.entries.retain(|entry| entry.key != key);
    broken.entries.push(kv(key, "not an address", 11));
    broken.revision = 12;
    assert!(model.replace(WatchPart::All, &broken).is_clean());
    assert_eq!(model.hosts_by_address(ip("192.0.2.2")).count(), 1);

    let changes = model.apply(&put(13, key, "192.0.2.20"));
    assert!(changes.invalid_keys);
    assert_eq!(model.invalid_keys().count(), 0);
    let addrs: Vec<IpAddr> = changes.peers.addrs.into_iter().collect();
    assert_eq!(addrs, [ip("192.0.2.2"), ip("192.0.2.20")]);
}

#[test]
fn each_broken_value_of_a_network_takes_nothing_but_itself_down() {
    let whole = loaded();
    for (broken, _) in NETWORK {
        let entries: Vec<_> = NETWORK
            .iter()
            .map(|(key, value)| (*key, if key == broken { "{broken" } else { value }))
            .collect();
        let mut model = Model::new("h1");
        model.replace(WatchPart::All, &snapshot(10, &entries));
        if *broken == "/calico/v1/Ready" {
            assert_eq!(*model.ready(), Ready::Other("{broken".to_owned()));
            continue;
        }
        assert_eq!(model.invalid_keys().map(|p| p.key.as_str()).collect::<Vec<_>>(), [*broken]);
        let others: Vec<_> = NETWORK.iter().filter(|(key, _)| key != broken).collect();
        for (key, _) in others {
            let key = Key::parse(key).unwrap();
            assert_eq!(model.slot(&key), whole.slot(&key), "{key} beside {broken}");
        }
    }
}

#[test]
fn an_old_key_counts_until_the_new_one_is_there() {
    let mut model = loaded();
    let (old, new) = ("/calico/v1/config/bgp_node_mesh", "/calico/bgp/v1/global/node_mesh");
    assert_eq!(model.node_mesh().1, 0);
    let changes = model.apply(&put(11, old, r#"{"enabled":false}"#));
    assert!(changes.peers.all);
    assert!(!model.node_mesh().0.enabled);
    model.apply(&put(12, new, r#"{"enabled":true}"#));
    assert!(model.node_mesh().0.enabled);
    assert!(model.apply(&put(13, old, r#"{"enabled":false}"#)).is_clean(), "the old key no longer counts");
    assert!(model.apply(&delete(14, new)).peers.all);
    assert!(!model.node_mesh().0.enabled);
    model.apply(&put(15, new, "broken from the start"));
    assert!(!model.node_mesh().0.enabled, "a new key that never was readable takes nothing down");
    model.apply(&delete(16, new));
    model.apply(&delete(17, old));
    assert!(model.node_mesh().0.enabled);

    let (old, new) =
        ("/calico/v1/host/h1/bgp_peer_v4/192.0.2.99", "/calico/bgp/v1/host/h1/peer_v4/192.0.2.99");
    model.apply(&put(18, old, r#"{"ip":"192.0.2.99","as_num":"1"}"#));
    model.apply(&put(19, new, r#"{"ip":"192.0.2.99","as_num":"2"}"#));
    let peers: Vec<u32> = model
        .peers(&Scope::Host("h1".to_owned()))
        .filter_map(|peer| peer.value.as_num.number())
        .map(tortie_config::resource::Asn::get)
        .collect();
    assert_eq!(peers, [2]);
}

#[test]
fn two_spellings_of_one_key_are_one_thing() {
    let mut model = loaded();
    let spelled = "/calico/bgp/v1/global/peer_v6/2001:DB8:0::1";
    let canonical = "/calico/bgp/v1/global/peer_v6/2001:db8::1";
    model.apply(&put(11, spelled, r#"{"as_num":"1"}"#));
    model.apply(&put(12, canonical, r#"{"as_num":"2"}"#));
    let asns = |model: &Model| -> Vec<u32> {
        model
            .peers(&Scope::Global)
            .filter_map(|peer| peer.value.as_num.number())
            .map(tortie_config::resource::Asn::get)
            .collect()
    };
    assert_eq!(asns(&model), [2]);
    model.apply(&delete(13, canonical));
    assert_eq!(asns(&model), [1]);
    model.apply(&delete(14, spelled));
    assert_eq!(asns(&model), [0_u32; 0]);
}

#[test]
fn malformed_keys_are_listed_and_unknown_ones_counted() {
    let mut model = loaded();
    let bad = "/calico/v1/ipam/v4/pool/ten";
    assert!(model.apply(&put(11, bad, "{}")).invalid_keys);
    assert_eq!(model.invalid_keys().map(|p| p.key.as_str()).collect::<Vec<_>>(), [bad]);
    model.apply(&put(12, "/calico/dhcp/v1/subnet/x", "?"));
    model.apply(&put(13, "/calico/v1/host/h1/config/marker", "created"));
    assert_eq!(model.unknown_keys(), 1);
    assert!(model.apply(&delete(14, bad)).invalid_keys);
    model.apply(&delete(15, "/calico/dhcp/v1/subnet/x"));
    assert_eq!((model.invalid_keys().count(), model.unknown_keys()), (0, 0));
}

#[test]
fn secrets_are_in_no_problem() {
    let mut model = loaded();
    let value = r#"{"as_num":"x","password":"hunter2"}"#;
    model.apply(&put(11, "/calico/bgp/v1/global/peer_v4/192.0.2.9", value));
    assert!(!format!("{:?}", model.invalid_keys().collect::<Vec<_>>()).contains("hunter2"));
}

#[test]
fn a_block_is_own_only_when_both_sides_say_so() {
    let (affinity, block) = (
        "/calico/ipam/v2/host/h1/ipv4/block/10.0.1.0-30",
        "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30",
    );
    for (key, value, wanted) in [
        (affinity, r#"{"state":"pending"}"#, false),
        (affinity, r#"{"state":"pendingDeletion"}"#, false),
        (affinity, "{}", true),
        (affinity, "", true),
        (block, &BLOCK_1.replace("host:h1", "host:h2"), false),
        (block, &BLOCK_1.replace("\"host:h1\"", "null"), false),
    ] {
        let mut model = loaded();
        let changes = model.apply(&put(11, key, value));
        assert_eq!(model.invalid_keys().count(), 0, "{value}");
        assert_eq!(own_blocks(&model).contains(&"10.0.1.0/30".to_owned()), wanted, "{key} {value}");
        assert!(changes.originated);
    }
    let mut model = loaded();
    let assigned = BLOCK_1.replacen("null", "0", 1).replace(
        "\"attributes\":[]",
        r#""attributes":[{"handle_id":"h","secondary":null}],"unallocated":[]"#,
    );
    let assign = Change::Put(KeyValue { create_revision: 10, ..kv(block, &assigned, 11) });
    let changes = model.apply(&Delta { revision: 11, changes: vec![assign] });
    assert_eq!(model.invalid_keys().count(), 0);
    assert!(!changes.originated, "an assignment changes nothing that is announced");
    assert_eq!(model.own_blocks().map(|(_, revision)| revision).max(), Some(10));
}

#[test]
fn the_block_part_is_replaced_alone() {
    let mut model = loaded();
    let only = snapshot(20, &[("/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30", BLOCK_1)]);
    let changes = model.replace(WatchPart::Blocks, &only);
    assert!(changes.originated && !changes.peers.any() && !changes.pools);
    assert_eq!(own_blocks(&model), ["10.0.1.0/30"]);
    assert_eq!(model.object_counts().hosts, 3);
    // A relist of the main part does not affect blocks.
    let changes = model.replace(WatchPart::Main, &snapshot(21, &[]));
    assert!(changes.peers.any() && changes.pools && changes.affinities);
    assert_eq!(model.object_counts(), ObjectCounts::default());
    assert!(model.block("10.0.1.0/30".parse().unwrap()).is_some());
}

#[test]
fn another_store_is_read_anew_even_where_revisions_agree() {
    let mut model = loaded();
    let mut other = snapshot(10, NETWORK);
    other.store_id = "s2".to_owned();
    for kv in &mut other.entries {
        if kv.key.contains("assignment") {
            kv.value = BLOCK_1.replace("host:h1", "host:h2").into_bytes();
        }
    }
    model.replace(WatchPart::Main, &other);
    assert!(model.replace(WatchPart::Blocks, &other).originated);
    assert_eq!(own_blocks(&model), [""; 0]);
}

#[test]
fn a_repeated_delta_changes_nothing() {
    let mut model = loaded();
    let delta = put(11, "/calico/bgp/v1/host/h2/as_num", "65001");
    let changes = model.apply(&delta);
    assert_eq!(changes.peers.addrs.into_iter().collect::<Vec<_>>(), [ip("192.0.2.2")]);
    assert_eq!(changes.keys.len(), 1);
    assert_eq!(model.apply(&delta), ModelChanges::default());
    assert_eq!(model.as_num(model.host("h2")).get(), 65001);
}

#[test]
fn settings_are_host_over_global_over_default() {
    let mut model = loaded();
    assert_eq!(model.settings().ip_in_ip_mtu, None);
    model.apply(&put(11, "/calico/v1/config/IpInIpMtu", "1400"));
    assert_eq!(model.settings().ip_in_ip_mtu, Some(1400));
    assert!(model.apply(&put(12, "/calico/v1/host/h1/config/IpInIpMtu", "1300")).settings);
    assert!(!model.apply(&put(13, "/calico/v1/host/h2/config/IpInIpMtu", "1200")).settings);
    assert_eq!(model.settings().ip_in_ip_mtu, Some(1300));
}

#[test]
fn a_tunnel_address_of_somebody_else_is_not_used() {
    let mut model = loaded();
    let peer = r#"{"ip":"198.51.100.9","as_num":"65009"}"#;
    model.apply(&put(11, "/calico/bgp/v1/host/h2/ip_addr_v4", "198.51.100.2"));
    model.apply(&put(12, "/calico/bgp/v1/global/peer_v4/198.51.100.9", peer));
    assert_eq!(model.tunnel_address(), Ok(None));
    let table = [
        ("198.51.100.2", false),
        ("198.51.100.9", false),
        ("0.0.0.0", false),
        ("127.0.0.1", false),
        ("169.254.1.1", false),
        ("224.0.0.5", false),
        ("255.255.255.255", false),
        ("10.1.0.1", true),
        ("198.51.100.3", true),
    ];
    for ((addr, good), revision) in table.into_iter().zip(13..) {
        model.apply(&put(revision, "/calico/v1/config/IpInIpTunnelAddr", addr));
        assert_eq!(model.tunnel_address().is_ok_and(|used| used.is_some()), good, "{addr}");
    }
    assert_eq!(model.tunnel_address(), Ok(Some([198, 51, 100, 3].into())));
    // A host that takes the address later makes it unusable again.
    model.apply(&put(30, "/calico/bgp/v1/host/h2/ip_addr_v4", "198.51.100.3"));
    assert!(model.tunnel_address().unwrap_err().contains("address of host h2"));
}

mod guard {
    use super::*;

    fn code(guard: &Guard, model: &Model) -> Option<&'static str> {
        guard.frozen(model).map(|freeze| freeze.code)
    }

    fn started(entries: &[(&str, &str)]) -> (Guard, Model) {
        let (mut guard, mut model) = (Guard::new(false), Model::new("h1"));
        model.replace(WatchPart::All, &snapshot(10, entries));
        guard.after_replace(ObjectCounts::default(), &model, "s1");
        (guard, model)
    }

    fn relist(guard: &mut Guard, model: &mut Model, store: &str, keep: impl Fn(&str) -> bool) {
        let mut next = snapshot(10, NETWORK);
        next.entries.retain(|entry| keep(&entry.key));
        next.store_id = store.to_owned();
        let before = model.object_counts();
        model.replace(WatchPart::All, &next);
        guard.after_replace(before, model, store);
    }

    #[test]
    fn ready_freezes_unless_it_never_was_there() {
        let without: Vec<_> = NETWORK.iter().filter(|(key, _)| !key.ends_with("Ready")).copied().collect();
        let (guard, model) = started(&without);
        assert_eq!(code(&guard, &model), None, "absent on a store that has never been ready");

        let (mut guard, mut model) = started(NETWORK);
        assert_eq!(code(&guard, &model), None);
        for value in ["false", "True", "true\n", ""] {
            model.apply(&put(model.revision() + 1, "/calico/v1/Ready", value));
            guard.after_delta(&model);
            assert_eq!(code(&guard, &model), Some("not-ready"), "{value:?}");
        }
        model.apply(&delete(50, "/calico/v1/Ready"));
        guard.after_delta(&model);
        assert_eq!(code(&guard, &model), Some("ready-vanished"));
        model.apply(&put(51, "/calico/v1/Ready", "true"));
        guard.after_delta(&model);
        assert_eq!(code(&guard, &model), None);
    }

    #[test]
    fn a_relist_that_lost_too_much_freezes_until_the_keys_return() {
        type Keep = fn(&str) -> bool;
        let table: [(&str, Keep); 4] = [
            ("lost-pools", |key| !key.contains("/pool/")),
            ("lost-own-blocks", |key| !key.contains("ipam/v2/host/h1")),
            ("lost-hosts", |key| !key.contains("/bgp/v1/host/h2") && !key.contains("/bgp/v1/host/h3")),
            ("lost-endpoints", |key| !key.contains("/workload/")),
        ];
        for (wanted, keep) in table {
            let (mut guard, mut model) = started(NETWORK);
            relist(&mut guard, &mut model, "s1", keep);
            assert_eq!(code(&guard, &model), Some(wanted));
            // A second relist of the same reduced state does not become the new reference.
            relist(&mut guard, &mut model, "s1", keep);
            assert_eq!(code(&guard, &model), Some(wanted));
            relist(&mut guard, &mut model, "s1", |_| true);
            assert_eq!(code(&guard, &model), None);

            relist(&mut guard, &mut model, "s1", keep);
            guard.accept(&model);
            assert_eq!(code(&guard, &model), None, "accepted");
        }
    }

    #[test]
    fn small_losses_and_deletions_that_the_watch_shows_do_not_freeze() {
        let (mut guard, mut model) = started(NETWORK);
        relist(&mut guard, &mut model, "s1", |key| !key.contains("/bgp/v1/host/h3"));
        assert_eq!(code(&guard, &model), None, "one of three hosts");
        relist(&mut guard, &mut model, "s1", |key| !key.contains("10.0.2.0-30"));
        assert_eq!(code(&guard, &model), None, "one of two own blocks");
        model.apply(&delete(40, "/calico/v1/ipam/v4/pool/10.0.0.0-16"));
        guard.after_delta(&model);
        assert_eq!(code(&guard, &model), None, "somebody deleted the pool");
    }

    #[test]
    fn another_store_freezes_until_the_former_one_returns_or_it_is_accepted() {
        let (mut guard, mut model) = started(NETWORK);
        relist(&mut guard, &mut model, "s2", |_| false);
        assert_eq!(code(&guard, &model), Some("other-store"));
        relist(&mut guard, &mut model, "s1", |_| true);
        assert_eq!(code(&guard, &model), None);
        relist(&mut guard, &mut model, "s2", |_| false);
        guard.accept(&model);
        assert_eq!(code(&guard, &model), None);
        relist(&mut guard, &mut model, "s1", |_| true);
        assert_eq!(code(&guard, &model), Some("other-store"), "s2 is the accepted one now");
    }
}

/// Keys of every kind that routing reads, each with good values and an invalid one.
pub(crate) const KEYS: &[(&str, &[&str])] = &[
    ("/calico/v1/Ready", &["true", "false"]),
    (
        "/calico/v1/ipam/v4/pool/10.0.0.0-16",
        &[
            "{}",
            r#"{"ipip":"tunl0"}"#,
            r#"{"ipipp":"tunl0"}"#,
            r#"{"vxlan_mode":"always"}"#,
            r#"{"vxlan_mode":"cross-subnet"}"#,
            "!",
        ],
    ),
    ("/calico/v1/ipam/v6/pool/fd00::-48", &["{}", r#"{"disabled":true}"#, r#"{"vxlan_mode":"always"}"#, "!"]),
    ("/calico/bgp/v1/global/as_num", &["64512", "65000", "!"]),
    ("/calico/bgp/v1/global/node_mesh", &[r#"{"enabled":false}"#, r#"{"enabled":true,"password":"x"}"#, "!"]),
    ("/calico/v1/config/bgp_node_mesh", &[r#"{"enabled":false}"#, r#"{"enabled":true}"#, "!"]),
    ("/calico/bgp/v1/global/listen_port", &["1790", "!"]),
    ("/calico/bgp/v1/global/peer_v4/192.0.2.1", &[r#"{"as_num":"64512"}"#, "!"]),
    (
        "/calico/bgp/v1/global/peer_v4/192.0.2.9",
        &[r#"{"as_num":"65001","reachable_by":"192.0.2.1"}"#, r#"{"as_num":1,"own_only":true}"#, "!"],
    ),
    // Addresses inside of an own block.
    ("/calico/bgp/v1/global/peer_v4/10.0.1.1", &[r#"{"as_num":"65001"}"#, "!"]),
    ("/calico/bgp/v1/host/h1/peer_v4/10.0.1.3", &[r#"{"as_num":"65001"}"#, "!"]),
    ("/calico/bgp/v1/global/peer_v6/2001:db8::9", &[r#"{"as_num":"65001"}"#, "!"]),
    ("/calico/bgp/v1/host/h1/ip_addr_v4", &["192.0.2.1", "192.0.2.7", "", "!"]),
    ("/calico/bgp/v1/host/h1/ip_addr_v6", &["2001:db8::1", "", "!"]),
    ("/calico/bgp/v1/host/h1/network_v4", &["192.0.2.0/24", "!"]),
    ("/calico/bgp/v1/host/h1/as_num", &["65010", "!"]),
    ("/calico/bgp/v1/host/h1/rr_cluster_id", &["244.0.0.1", "!"]),
    ("/calico/bgp/v1/host/h1/peer_v4/192.0.2.9", &[r#"{"as_num":"65002"}"#, "!"]),
    (
        "/calico/bgp/v1/host/h1/peer_v4/192.0.2.9-1790",
        &[r#"{"as_num":"65002"}"#, r#"{"as_num":"65002","reachable_by":"192.0.2.2"}"#, "!"],
    ),
    ("/calico/v1/host/h1/bgp_peer_v4/192.0.2.9", &[r#"{"as_num":"65003"}"#, "!"]),
    ("/calico/bgp/v1/host/h1/peer_v4/192.0.2.2", &[r#"{"as_num":"64512"}"#, "!"]),
    ("/calico/bgp/v1/host/h2/ip_addr_v4", &["192.0.2.2", "192.0.2.3", "192.0.2.1", "10.0.1.1", "!"]),
    ("/calico/bgp/v1/host/h2/ip_addr_v6", &["2001:db8::2", "", "!"]),
    ("/calico/bgp/v1/host/h2/network_v4", &["192.0.2.0/24", "10.0.1.2/31", "10.0.0.0/15", "!"]),
    ("/calico/bgp/v1/host/h2/as_num", &["65020", "!"]),
    ("/calico/bgp/v1/host/h2/rr_cluster_id", &["244.0.0.1", "244.0.0.2", "!"]),
    ("/calico/bgp/v1/host/h2/listen_port", &["1791", "!"]),
    ("/calico/bgp/v1/host/h2/peer_v4/192.0.2.1", &[r#"{"as_num":"64512","password":"p"}"#, "!"]),
    ("/calico/bgp/v1/host/h2/peer_v4/192.0.2.9", &[r#"{"as_num":"65001"}"#, "!"]),
    ("/calico/bgp/v1/host/h3/ip_addr_v4", &["192.0.2.3", "192.0.2.2", "!"]),
    ("/calico/bgp/v1/host/h3/ip_addr_v6", &["2001:db8::2", "2001:db8::9", "!"]),
    ("/calico/bgp/v1/host/h3/loglevel", &["debug"]),
    (
        "/calico/bgp/v1/global/prefix_advertisements/ip_v4",
        &[r#"[{"cidr":"10.0.0.0/8","communities":["1:2"]}]"#, "!"],
    ),
    ("/calico/bgp/v1/host/h1/prefix_advertisements/ip_v4", &["[]", "!"]),
    ("/calico/bgp/v1/global/bmp_stations", &[r#"["192.0.2.50:1"]"#, "!"]),
    ("/calico/bgp/v1/global/multipath", &["16", r#"{"relax":false}"#, "!"]),
    ("/calico/bgp/v1/host/h1/multipath", &["{}", r#"{"max":2}"#, "!"]),
    ("/calico/bgp/v1/host/h1/bmp_stations", &["[]", r#"["192.0.2.51:1"]"#, "!"]),
    ("/calico/bgp/v1/global/custom_filters/v4/f", &["reject;"]),
    ("/calico/v1/config/IpInIpMtu", &["1400", "!"]),
    ("/calico/v1/config/IpInIpMto", &["1400"]),
    ("/calico/v1/host/h1/config/IpInIpTunnelAddr", &["10.0.0.7", "!"]),
    ("/calico/v1/config/VXLANEnabled", &["true", "false", "!"]),
    ("/calico/v1/config/VXLANPort", &["8472", "!"]),
    ("/calico/v1/host/h1/config/IPv4VXLANTunnelAddr", &["10.0.7.1", "192.0.2.2", "", "!"]),
    ("/calico/v1/host/h1/config/VXLANTunnelMACAddr", &["66:00:00:00:00:01", "!"]),
    ("/calico/v1/host/h2/config/IPv4VXLANTunnelAddr", &["10.0.7.2", "10.0.7.3", "10.0.7.1", "", "!"]),
    ("/calico/v1/host/h2/config/VXLANTunnelMACAddr", &["66:00:00:00:00:02", "66:00:00:00:00:01", "", "!"]),
    ("/calico/v1/host/h2/config/IPv6VXLANTunnelAddr", &["fd00::2", "!"]),
    ("/calico/v1/host/h3/config/IPv4VXLANTunnelAddr", &["10.0.7.3", "!"]),
    ("/calico/v1/host/h3/config/IPv6VXLANTunnelAddr", &["fd00::3", "!"]),
    ("/calico/ipam/v2/assignment/ipv4/block/10.0.3.4-30", &[BLOCK_2, LENT, "!"]),
    ("/calico/ipam/v2/assignment/ipv6/block/fd00::4-126", &[BLOCK_2, LENT, "!"]),
    ("/calico/v1/host/h1/bird_ip", &["192.0.2.1", "!"]),
    ("/calico/v1/host/h4/metadata", &["{}"]),
    ("/calico/ipam/v2/host/h1/ipv4/block/10.0.1.0-30", &["", r#"{"state":"pending"}"#, "!"]),
    ("/calico/ipam/v2/host/h1/ipv4/block/10.0.2.0-30", &[r#"{"state":"confirmed"}"#, "!"]),
    ("/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30", &[BLOCK_1, BLOCK_2, LENT, "!"]),
    ("/calico/ipam/v2/assignment/ipv4/block/10.0.2.0-30", &[BLOCK_1, "!"]),
    (
        "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
        &[
            ENDPOINT,
            r#"{"state":"inactive","name":"cali0","ipv4_nets":["10.0.1.2/32"]}"#,
            r#"{"state":"active","name":"cali0","ipv4_nets":["10.0.3.5/32"],"ipv4_nat":[{"int_ip":"10.0.3.5","ext_ip":"10.0.9.9"}]}"#,
            "!",
        ],
    ),
    // Overlaps the endpoint before: an address, a floating address, a whole block.
    (
        "/calico/v1/host/h1/workload/cni/w0/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.3.5/32","10.0.1.0/30"]}"#,
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.9.9/32"],"ipv4_nat":[{"int_ip":"10.0.9.1","ext_ip":"10.0.9.2"}]}"#,
            "!",
        ],
    ),
    ("/calico/v1/host/h2/workload/cni/w2/endpoint/eth0", &[ENDPOINT, "!"]),
    ("/calico/v1/ipam/v4/pool/ten", &["{}"]),
    ("/calico/dhcp/v1/subnet/x", &["?"]),
];

/// A history of transactions, each a list of (key index, value index or `None` for a deletion).
pub(crate) fn history(bad: bool) -> impl Strategy<Value = Vec<Vec<(usize, Option<usize>)>>> {
    let change = (0..KEYS.len(), prop::option::weighted(0.8, 0..4_usize)).prop_map(move |(key, value)| {
        let values = KEYS[key].1;
        let good = values.iter().filter(|value| **value != "!").count();
        (key, value.map(|value| value % if bad { values.len() } else { good }))
    });
    prop::collection::vec(prop::collection::vec(change, 1..4), 0..40)
}

/// A store that keeps its history, so that deltas and snapshots are consistent.
#[derive(Default)]
pub(crate) struct FakeStore {
    revision: Revision,
    keys: BTreeMap<String, KeyValue>,
}

impl FakeStore {
    pub(crate) fn commit(&mut self, changes: &[(usize, Option<usize>)]) -> Delta {
        self.revision += 1;
        let mut delta = Delta { revision: self.revision, changes: Vec::new() };
        let mut done = Vec::new();
        for (index, value) in changes {
            let (key, values) = KEYS[*index];
            if done.contains(index) {
                continue;
            }
            done.push(*index);
            let before = self.keys.get(key);
            match value {
                Some(value) => {
                    let create_revision = before.map_or(self.revision, |kv| kv.create_revision);
                    let kv = KeyValue { create_revision, ..kv(key, values[*value], self.revision) };
                    self.keys.insert(key.to_owned(), kv.clone());
                    delta.changes.push(Change::Put(kv));
                }
                None if before.is_some() => {
                    self.keys.remove(key);
                    delta.changes.push(Change::Delete { key: key.to_owned() });
                }
                None => {}
            }
        }
        delta
    }

    pub(crate) fn list(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            store_id: "s1".to_owned(),
            entries: self.keys.values().cloned().collect(),
            ..Snapshot::default()
        }
    }
}

proptest! {
    #[test]
    fn any_mix_of_deltas_and_relists_gives_the_model_of_a_fresh_start(
        history in history(false),
        relists in prop::collection::vec(any::<bool>(), 40),
        repeat in any::<bool>(),
    ) {
        let mut store = FakeStore::default();
        let mut model = Model::new("h1");
        model.replace(WatchPart::All, &store.list());
        for (transaction, relist) in history.iter().zip(&relists) {
            let delta = store.commit(transaction);
            if *relist {
                // Simulates lost deltas: a relist of both parts replaces them.
                model.replace(WatchPart::Blocks, &store.list());
                model.replace(WatchPart::Main, &store.list());
            } else {
                let unknown = model.unknown_keys();
                model.apply(&delta);
                if repeat && unknown == model.unknown_keys() {
                    model.apply(&delta);
                }
            }
            let mut fresh = Model::new("h1");
            fresh.replace(WatchPart::All, &store.list());
            prop_assert_eq!(&model, &fresh);
        }
    }

    /// Compares the incrementally updated indexes with a full recomputation after each change.
    #[test]
    fn what_is_kept_of_hosts_and_of_unread_names_is_what_a_walk_over_all_keys_finds(history in history(true)) {
        let mut store = FakeStore::default();
        let mut model = Model::new("h1");
        for transaction in &history {
            model.apply(&store.commit(transaction));
            let unread = |(key, slot): (&Key, &super::slot::Slot)| {
                let names = tortie_config::unread(key, slot.value()?.resource()?);
                let few = !matches!(key, Key::Endpoint(_) | Key::Block(_) | Key::Affinity { .. });
                (few && !names.is_empty()).then(|| (key.clone(), names))
            };
            let walked: Vec<_> = model.rest.iter().filter_map(unread).collect();
            let kept: Vec<_> = model.unread_names().map(|(key, names)| (key.clone(), names.to_vec())).collect();
            prop_assert_eq!(kept, walked);
            for prefix in ["0.0.0.0/0", "10.0.0.0/16", "10.0.1.0/30", "192.0.2.0/28", "192.0.2.2/32", "2001:db8::/64"] {
                let prefix: Cidr = prefix.parse().unwrap();
                let of_host = |(name, host): (&str, &Host)| {
                    let networks = [IpFamily::V4, IpFamily::V6].into_iter().filter_map(|family| host.network(family));
                    let all = host.addrs().map(Cidr::host).chain(networks);
                    let found = all.filter(|cidr| cidr.overlaps(&prefix));
                    found.map(|cidr| (cidr, name.to_owned())).collect::<Vec<_>>()
                };
                let mut walked: Vec<_> = model.hosts().flat_map(of_host).collect();
                let mut kept: Vec<_> =
                    model.hosts_within(&prefix).map(|(cidr, host)| (cidr, host.to_owned())).collect();
                walked.sort();
                kept.sort();
                prop_assert_eq!(kept, walked, "{}", prefix);
            }
        }
    }

    #[test]
    fn broken_values_change_nothing_but_the_list_of_problems(history in history(true)) {
        let mut store = FakeStore::default();
        let mut model = Model::new("h1");
        model.replace(WatchPart::All, &store.list());
        for transaction in &history {
            let only_bad = transaction.iter().all(|(key, value)| value.is_some_and(|v| KEYS[*key].1[v] == "!"));
            let before = model.clone();
            let changes = model.apply(&store.commit(transaction));
            let bad = store.keys.values().filter(|kv| kv.value == b"!" || kv.key.ends_with("/ten")).count();
            prop_assert_eq!(model.invalid_keys().count(), bad);
            if only_bad {
                for (key, _) in KEYS {
                    let Ok(key) = Key::parse(key) else { continue };
                    let value = |model: &Model| model.slot(key.canonical()).and_then(|slot| slot.value().cloned());
                    prop_assert_eq!(value(&model), value(&before), "{}", key);
                }
                prop_assert!(!changes.peers.any() && !changes.pools && !changes.node && !changes.ready, "{:?}", changes);
            }
        }
    }
}
