//! Values of `bgp/v1`, as Calico 1.x to 3.x writes them and as Tortie's data model extends them.

use std::time::Duration;

use serde_json::json;

use super::{inside, read, refused, rewritten};
use crate::key::IpFamily;
use crate::resource::*;

const PEER: &str = "/calico/bgp/v1/global/peer_v4/192.0.2.1";

fn peer(value: &str) -> Peer {
    *inside!(Peer, read(PEER, value))
}

#[test]
fn as_numbers_in_every_spelling() {
    for (value, asn) in [
        (r#"{"ip": "192.0.2.1", "as_num": "64513"}"#, 64513),
        (r#"{"ip": "192.0.2.1", "as_num": 64513}"#, 64513),
        (r#"{"ip": "192.0.2.1", "as_num": "1.10"}"#, 65546),
        (r#"{"ip": "192.0.2.1", "as_num": "65535.65535"}"#, u32::MAX),
    ] {
        assert_eq!(peer(value).as_num.number().map(Asn::get), Some(asn), "{value}");
    }
    let global = |text: &str| inside!(AsNum, read("/calico/bgp/v1/global/as_num", text)).get();
    assert_eq!(global("64512"), 64512);
    assert_eq!(global("1.10\n"), 65546);
    for bad in ["", "0", "0.0", "4294967296", "65536.1", "-1", "+5", "\"64512\"", "1.2.3", "AS1", "1e3"] {
        assert!(refused("/calico/bgp/v1/global/as_num", bad).contains("write an AS number"), "{bad}");
    }
    for bad in ["0", "\"0\"", "1.5", "-1", "4294967296", "true", "[1]", "null"] {
        let text = refused(PEER, &format!(r#"{{"ip": "192.0.2.1", "as_num": {bad}}}"#));
        assert!(text.starts_with("`as_num`: found "), "{bad}: {text}");
    }
}

#[test]
fn a_written_peer_has_its_as_as_text() {
    // Calico writers produce `{"ip": "192.0.2.1", "as_num": "64513"}`.
    assert_eq!(
        rewritten(PEER, r#"{"as_num": 64513, "ip": "192.0.2.1"}"#),
        json!({"ip": "192.0.2.1", "as_num": "64513"})
    );
}

#[test]
fn every_field_of_a_peer() {
    let value = json!({
        "ip": "192.0.2.1", "as_num": "64513", "port": 1790, "password": "s3cret", "source_addr": "None",
        "rr_cluster_id": "244.0.0.1", "restart_time": "120s", "long_lived_restart_time": "6h", "keepalive_time": "10s", "hold_time": "1m30s",
        "next_hop_mode": "Keep", "keep_next_hop": true, "ttl_security": 1, "num_allow_local_as": 2,
        "local_as_num": "65001", "passive_mode": true, "filters": ["tor"], "max_prefixes": 1000, "bfd": true,
        "role": "customer", "role_strict": true, "add_path": "both", "families": ["ipv6", "ipv4"], "extended_messages": true,
        "shutdown": "until noon", "own_only": true, "import_pools": false, "calico_node": true, "reachable_by": "", "rack": ""
    })
    .to_string();
    let peer = peer(&value);
    assert_eq!(peer.port, Some(1790));
    assert_eq!(peer.password, Some(Password::Text("s3cret".to_owned())));
    assert_eq!(peer.source_addr, SourceAddr::None);
    assert_eq!(peer.rr_cluster_id, Some([244, 0, 0, 1].into()));
    assert_eq!(peer.restart_time, Some(Duration::from_secs(120)));
    assert_eq!(peer.long_lived_restart_time, Some(Duration::from_secs(6 * 3600)));
    assert_eq!(peer.keepalive_time, Some(Duration::from_secs(10)));
    assert_eq!(peer.hold_time, Some(Duration::from_secs(90)));
    assert_eq!(peer.next_hop_mode, Some(NextHopMode::Keep));
    assert_eq!((peer.keep_next_hop, peer.ttl_security, peer.num_allow_local_as), (true, Some(1), 2));
    assert_eq!(peer.local_as_num.map(Asn::get), Some(65001));
    assert!(peer.passive_mode && peer.own_only && !peer.import_pools);
    assert_eq!(peer.filters, ["tor"]);
    assert_eq!(peer.max_prefixes.and_then(|m| m.limit), Some(1000));
    assert_eq!(peer.bfd, Some(Bfd::default()));
    assert_eq!((peer.role, peer.add_path), (Some(Role::Customer), Some(AddPath::new(true, 2))));
    assert!(peer.role_strict && peer.role.is_some_and(|r| r.opposite() == Role::Provider));
    assert_eq!(peer.families, [IpFamily::V4, IpFamily::V6]);
    assert_eq!(peer.extended_messages, Some(true));
    assert_eq!(peer.shutdown.as_deref(), Some("until noon"));
    assert!(peer.calico_node && peer.reachable_by.is_none());

    let again = rewritten(PEER, &value);
    assert_eq!(again["password"], "s3cret");
    assert_eq!(again["restart_time"], "120s");
    assert_eq!(again["rack"], "", "a field that nobody named is kept");
}

#[test]
fn what_calico_3_writes_for_none_is_none() {
    let peer = peer(
        r#"{"ip": "192.0.2.1", "as_num": "64513", "port": 0, "password": null, "source_addr": "UseNodeIP",
            "rr_cluster_id": "", "restart_time": "", "keepalive_time": null, "next_hop_mode": "",
            "ttl_security": 0, "num_allow_local_as": 0, "local_as_num": 0, "filters": null}"#,
    );
    assert_eq!(peer, Peer::new([192, 0, 2, 1].into(), Asn::new(64513).unwrap()));
}

#[test]
fn secrets_are_never_printed() {
    for value in [
        r#"{"ip": "192.0.2.1", "as_num": "1", "password": "hunter2"}"#,
        r#"{"ip": "192.0.2.1", "as_num": "1", "Password": "hunter2"}"#,
    ] {
        let debug = format!("{:?}", read(PEER, value));
        assert!(!debug.contains("hunter2"), "{debug}");
    }
    for broken in [
        r#"{"ip": "192.0.2.1", "as_num": "1", "password": ["hunter2"]}"#,
        r#"{"ip": "192.0.2.1", "as_num": "1", "password": "hunter2"#,
        r#"{"ip": "192.0.2.1", "as_num": "1", "password_file": "hunter2"}"#,
        r#"{"ip": "192.0.2.1", "as_num": "1", "password": "x", "password_file": "hunter2"}"#,
        r#""hunter2""#,
        "hunter2",
    ] {
        let text = refused(PEER, broken);
        assert!(!text.contains("hunter2"), "{text}");
    }
    let long = format!(r#"{{"as_num": "1", "password": "hunter2{}"}}"#, "x".repeat(80));
    let text = refused(PEER, &long);
    assert!(text.contains("`password`: found ***") && text.contains("80 bytes"), "{text}");
    let mesh = read("/calico/bgp/v1/global/node_mesh", r#"{"enabled": true, "password": "hunter2"}"#);
    assert!(!format!("{mesh:?}").contains("hunter2"));
}

#[test]
fn password_files_lie_below_the_secrets_directory() {
    let with = |file: &str| format!(r#"{{"as_num": "1", "password_file": "{file}"}}"#);
    assert_eq!(
        peer(&with("/etc/tortie/secrets/tor/a")).password,
        Some(Password::File("/etc/tortie/secrets/tor/a".into()))
    );
    for bad in [
        "/etc/tortie/secrets",
        "/etc/tortie/secrets/",
        "/etc/tortie/secretsx/a",
        "/etc/tortie/secrets/../../passwd",
        "etc/tortie/secrets/a",
        "/etc/passwd",
    ] {
        assert!(refused(PEER, &with(bad)).contains("below /etc/tortie/secrets/"), "{bad}");
    }
    let both = r#"{"as_num": "1", "password": "x", "password_file": "/etc/tortie/secrets/a"}"#;
    assert!(refused(PEER, both).contains("not both"));
}

#[test]
fn impossible_peers_are_refused_with_field_and_next_step() {
    for (field, says) in [
        (r#""ip": "192.0.2.9""#, "`ip`: found `192.0.2.9`; the key says 192.0.2.1"),
        (r#""ip": "tor""#, "`ip`: found `tor`"),
        (r#""port": 65536"#, "`port`: found `65536`"),
        (r#""hold_time": "2s""#, "`hold_time`: found `2s`; write 0 or 3s"),
        (r#""hold_time": "19h""#, "`hold_time`"),
        (r#""hold_time": "9s", "keepalive_time": "9s""#, "less than the hold time of 9s"),
        (r#""restart_time": "4096s""#, "from 0s to 4095s"),
        (r#""long_lived_restart_time": "16777216s""#, "from 0s to "),
        (r#""restart_time": "1.5s""#, "`restart_time`"),
        (r#""restart_time": "-1s""#, "`restart_time`"),
        (r#""restart_time": "fast""#, "found `\"fast\"`"),
        (r#""next_hop_mode": "self""#, "\"Auto\", \"Self\" or \"Keep\""),
        (r#""ttl_security": 255"#, "from 0 to 254"),
        (r#""source_addr": "2001:db8::1""#, "one of the peer's family"),
        (r#""rr_cluster_id": "abc""#, "dotted quad"),
        (r#""max_prefixes": 0"#, "from 1 to"),
        (r#""bfd": {"interval": "1ms"}"#, "`bfd.interval`: found `\"1ms\"`"),
        (r#""max_prefixes": {"warn": 101}"#, "max_prefixes.warn"),
        (r#""max_prefixes": {"restart": "0s"}"#, "max_prefixes.restart"),
        (r#""role": "boss""#, "found `boss`"),
        (
            r#""add_path": 9"#,
            "`add_path`: found `9`; write \"receive\", \"send\" or \"both\", how many paths to send from 1 to 8",
        ),
        (r#""add_path": 0"#, "from 1 to 8"),
        (r#""add_path": "all""#, "`add_path`: found `\"all\"`"),
        (
            r#""add_path": {"send": 9}"#,
            "`add_path.send`: found `9`; write true, false or a number from 0 to 8",
        ),
        (r#""add_path": {"receive": 2}"#, "`add_path.receive`"),
        (r#""families": ["ipv5"]"#, "`families[0]`: found `\"ipv5\"`"),
        (r#""filters": ["a", ""]"#, "`filters[1]`"),
        (r#""passive_mode": "yes""#, "`passive_mode`: found `\"yes\"`; write true or false"),
    ] {
        let text = refused(PEER, &format!(r#"{{"as_num": "1", {field}}}"#));
        assert!(text.contains(says), "{field}: {text}");
    }
}

#[test]
fn the_port_may_stand_in_the_key_or_in_the_value() {
    let key = "/calico/bgp/v1/host/h1/peer_v4/192.0.2.1-1790";
    assert_eq!(inside!(Peer, read(key, r#"{"ip": "192.0.2.1", "as_num": "1"}"#)).port, Some(1790));
    assert!(refused(key, r#"{"as_num": "1", "port": 1791}"#).contains("the key says 1790"));
    assert_eq!(peer(r#"{"as_num": "1", "port": "1790"}"#).port, Some(1790));
}

#[test]
fn add_path_takes_a_word_or_a_number_of_paths() {
    for (written, receive, send, again) in [
        (json!("receive"), true, 0, json!("receive")),
        (json!("send"), false, 2, json!("send")),
        (json!("both"), true, 2, json!("both")),
        (json!(true), true, 2, json!("both")),
        (json!(8), true, 8, json!({"receive": true, "send": 8})),
        (json!("2"), true, 2, json!("both")),
        (json!({"send": 1}), false, 1, json!({"send": 1})),
        (json!({"send": true, "receive": false}), false, 2, json!("send")),
        (json!({"receive": true, "send": 0}), true, 0, json!("receive")),
        (json!({"send": 2, "select": "best"}), false, 2, json!({"send": 2, "select": "best"})),
    ] {
        let value = json!({"as_num": "1", "add_path": written}).to_string();
        let read = peer(&value).add_path.unwrap();
        assert_eq!((read.receive, read.send), (receive, send), "{value}");
        assert_eq!(rewritten(PEER, &value)["add_path"], again, "{value}");
    }
    // The host at the other end sends if this one receives, and receives if this one sends.
    for (one, other) in [((true, 0), (false, 2)), ((false, 4), (true, 0)), ((true, 4), (true, 4))] {
        let other = AddPath::new(other.0, other.1);
        assert_eq!(AddPath::new(one.0, one.1).opposite(), other, "{one:?}");
    }
    for nothing in ["null", "false", "\"\"", "{}", r#"{"receive": false, "send": false}"#] {
        assert_eq!(peer(&format!(r#"{{"as_num": "1", "add_path": {nothing}}}"#)).add_path, None, "{nothing}");
    }
}

#[test]
fn bfd_takes_a_word_or_its_own_times() {
    let value = r#"{"as_num": "1", "bfd": {"interval": "50ms", "multiplier": 5, "echo": true}}"#;
    let bfd = peer(value).bfd.unwrap();
    assert_eq!((bfd.interval, bfd.multiplier), (Duration::from_millis(50), 5));
    assert_eq!(rewritten(PEER, value)["bfd"], json!({"interval": "50ms", "multiplier": 5, "echo": true}));
    let multihop = peer(r#"{"as_num": "1", "bfd": {"multihop": true}}"#).bfd.unwrap();
    assert_eq!((multihop.interval, multihop.multihop), (Duration::from_millis(300), Some(true)));
    assert_eq!(peer(r#"{"as_num": "1", "bfd": false}"#).bfd, None);
}

#[test]
fn the_mesh_is_on_unless_it_says_no() {
    let key = "/calico/bgp/v1/global/node_mesh";
    assert!(NodeMesh::default().enabled, "an absent key means enabled");
    assert!(inside!(NodeMesh, read(key, r#"{"enabled": true}"#)).enabled);
    assert!(!inside!(NodeMesh, read(key, r#"{"enabled": false}"#)).enabled);
    assert!(!inside!(NodeMesh, read("/calico/v1/config/bgp_node_mesh", r#"{"enabled": false}"#)).enabled);
    let mesh =
        inside!(NodeMesh, read(key, r#"{"enabled": true, "password": "x", "bfd": true, "own_only": true}"#));
    assert!(mesh.own_only && mesh.bfd.is_some() && mesh.password.is_some());
    assert_eq!(rewritten(key, r#"{"enabled": false}"#), json!({"enabled": false}));
    assert!(refused(key, r#"{"enabled": "false"}"#).contains("without quotes"));
}

#[test]
fn advertised_prefixes_with_communities_of_two_and_three_parts() {
    let key = "/calico/bgp/v1/global/prefix_advertisements/ip_v4";
    let value = r#"[{"cidr": "10.0.0.0/8", "communities": ["65000:100", "65000:1:2"]}]"#;
    let list = inside!(PrefixAdvertisements, read(key, value));
    assert_eq!(
        list[0].communities,
        [Community::Standard(65000 << 16 | 100), Community::Large([65000, 1, 2])]
    );
    assert_eq!(rewritten(key, value), serde_json::from_str::<serde_json::Value>(value).unwrap());
    let bad = |value: &str, says: &str| {
        let text = refused(key, value);
        assert!(text.contains(says), "{text}");
    };
    bad(r#"[{"cidr": "10.0.0.0/8", "communities": ["65536:1"]}]"#, "`[0].communities[0]`: found `65536:1`");
    bad(r#"[{"cidr": "10.0.0.0/8", "communities": ["1"]}]"#, "found `1`");
    bad(r#"[{"cidr": "fd00::/8"}]"#, "of the key's family");
    bad(r#"[{}]"#, "`[0].cidr`: found nothing");
    bad("{}", "found an object; write a JSON list");
}

#[test]
fn stations_are_addresses_with_ports() {
    let key = "/calico/bgp/v1/global/bmp_stations";
    let value = r#"["192.0.2.50:11019", {"address": "[2001:db8::50]:1", "policy": "pre"}, {"address": "192.0.2.50:2", "policy": "post"},
        {"address": "192.0.2.50:3", "policy": "both"}, {"address": "192.0.2.50:4", "policy": "loc"},
        {"address": "192.0.2.50:5", "policy": "all"}]"#;
    let list = inside!(BmpStations, read(key, value));
    let addresses: Vec<String> = list.iter().map(|s| s.address.to_string()).collect();
    assert_eq!(addresses[..3], ["192.0.2.50:11019", "[2001:db8::50]:1", "192.0.2.50:2"]);
    let again = json!([
        "192.0.2.50:11019", "[2001:db8::50]:1", {"address": "192.0.2.50:2", "policy": "post"},
        {"address": "192.0.2.50:3", "policy": "both"}, {"address": "192.0.2.50:4", "policy": "loc"},
        {"address": "192.0.2.50:5", "policy": "all"}
    ]);
    let distinguished: Vec<_> =
        list.iter().map(|s| [s.policy.pre(), s.policy.post(), s.policy.loc()]).collect();
    let [yes, no] = [true, false];
    let all = [[yes, no, no], [yes, no, no], [no, yes, no], [yes, yes, no], [no, no, yes], [yes, yes, yes]];
    assert_eq!(distinguished, all);
    assert_eq!(rewritten(key, value), again);
    assert_eq!(inside!(BmpStations, read(key, "[]")), []);
    for (bad, says) in [
        (r#"["192.0.2.50"]"#, "`[0]`: found `192.0.2.50`; write ADDRESS:PORT"),
        (r#"["192.0.2.50:0"]"#, "`[0]`: found `192.0.2.50:0`"),
        (r#"[{"address": "192.0.2.50:1", "policy": "after"}]"#, "`[0].policy`: found `after`; write \"pre\""),
        (r#"[{"port": 1}]"#, "`[0].address`: found nothing"),
        (r#"["192.0.2.50:1", "192.0.2.50:1"]"#, "`[1]`: found `192.0.2.50:1` again"),
        (r#""192.0.2.50:1""#, "write a JSON list"),
    ] {
        let text = refused(key, bad);
        assert!(text.contains(says), "{bad}: {text}");
    }
}

#[test]
fn how_many_paths_share_the_load() {
    let key = "/calico/bgp/v1/global/multipath";
    let multipath = |value: &str| inside!(Multipath, read(key, value));
    assert_eq!((multipath("{}").max, multipath("{}").relax), (None, true));
    assert_eq!(multipath(r#"{"max": 16}"#), multipath("16"));
    let one = multipath(r#"{"max": "1", "relax": false, "site": 7}"#);
    assert_eq!((one.max, one.relax), (Some(1), false));
    assert_eq!(
        rewritten(key, r#"{"relax": false, "max": "1", "site": 7}"#),
        json!({"max": 1, "relax": false, "site": 7})
    );
    assert_eq!(rewritten("/calico/bgp/v1/host/h1/multipath", "64"), json!({"max": 64}));
    for (bad, says) in [
        ("0", "found `0`; write {\"max\": 16"),
        ("true", "or a number from 1 to 1024"),
        (r#"{"max": 1025}"#, "`max`: found `1025`; write a whole number from 1 to 1024"),
        (r#"{"relax": "no"}"#, "`relax`"),
        ("16 paths", "write JSON"),
    ] {
        let text = refused(key, bad);
        assert!(text.contains(says), "{bad}: {text}");
    }
}

#[test]
fn bare_texts() {
    let host = |item: &str| format!("/calico/bgp/v1/host/h1/{item}");
    let addr = |item: &str, text: &str| inside!(Address, read(&host(item), text)).map(|a| a.to_string());
    assert_eq!(addr("ip_addr_v4", "192.0.2.10"), Some("192.0.2.10".to_owned()));
    assert_eq!(addr("ip_addr_v4", ""), None, "no part in IPv4 BGP");
    assert_eq!(addr("ip_addr_v6", " 2001:DB8::10\n"), Some("2001:db8::10".to_owned()));
    assert!(refused(&host("ip_addr_v4"), "2001:db8::1").contains("IPv4 address"));
    assert!(refused(&host("ip_addr_v4"), "192.0.2.10/24").contains("found `192.0.2.10/24`"));

    let network = inside!(Network, read(&host("network_v4"), "192.0.2.10/24")).unwrap();
    assert_eq!(network.to_string(), "192.0.2.0/24");
    assert!(refused(&host("network_v4"), "192.0.2.0").contains("ADDRESS/LENGTH"));
    assert!(refused(&host("network_v6"), "192.0.2.0/24").contains("2001:db8::/64"));

    assert_eq!(inside!(RrClusterId, read(&host("rr_cluster_id"), "244.0.0.1")), Some([244, 0, 0, 1].into()));
    assert_eq!(inside!(RrClusterId, read(&host("rr_cluster_id"), "")), None);
    assert_eq!(inside!(ListenPort, read(&host("listen_port"), "1790")), 1790);
    assert!(refused(&host("listen_port"), "0").contains("1 to 65535"));

    // Agent log levels are mapped; only none and debug differ from the rest.
    for (text, level) in [
        ("debug", BgpLogLevel::Debug),
        ("info", BgpLogLevel::Info),
        ("none", BgpLogLevel::None),
        ("warning", BgpLogLevel::None),
        ("critical", BgpLogLevel::None),
        ("anything", BgpLogLevel::Info),
    ] {
        assert_eq!(inside!(LogLevel, read(&host("loglevel"), text)), level, "{text}");
    }
    assert_eq!(
        inside!(BirdIp, read("/calico/v1/host/h1/bird_ip", "192.0.2.10")),
        Some([192, 0, 2, 10].into())
    );
}

const RANGE: &str = "/calico/bgp/v1/host/h1/peer_range/10.0.0.0-24";

#[test]
fn a_range_has_the_options_of_a_peer_but_for_what_one_peer_has() {
    let value = r#"{"prefix": "10.0.0.0/24", "as_num": "external", "max_sessions": 7, "password": "s3cret", "filters": ["tor"]}"#;
    let peer = *inside!(Peer, read(RANGE, value));
    assert_eq!(peer.range, "10.0.0.0/24".parse().ok());
    assert_eq!((peer.max_sessions, peer.as_num), (Some(7), PeerAs::External));
    assert_eq!(rewritten(RANGE, value), serde_json::from_str::<serde_json::Value>(value).unwrap());
    assert!(inside!(Peer, read(RANGE, r#"{"as_num": 1}"#)).max_sessions.is_none());
    for (bad, says) in [
        (r#"{"as_num": 1, "ip": "10.0.0.1"}"#, "peers of a range dial us"),
        (r#"{"as_num": 1, "port": 1790}"#, "peers of a range dial us"),
        (r#"{"as_num": 1, "source_addr": "None"}"#, "peers of a range dial us"),
        (r#"{"as_num": 1, "prefix": "10.0.0.0/25"}"#, "the key says 10.0.0.0/24"),
        (r#"{"as_num": 1, "max_sessions": 0}"#, "max_sessions"),
        (r#"{"prefix": "10.0.0.0/24"}"#, "as_num"),
    ] {
        assert!(refused(RANGE, bad).contains(says), "{bad}: {}", refused(RANGE, bad));
    }
    for scope in ["global", "host/h1"] {
        let key = format!("/calico/bgp/v1/{scope}/peer_v6/fe80::1");
        let text = refused(&key, r#"{"ip": "fe80::1", "as_num": 64513}"#);
        assert!(text.contains("peer_interface/IFACE"), "{text}");
    }
    let link = refused("/calico/bgp/v1/global/peer_range/fe80::-10", r#"{"as_num": 1}"#);
    assert!(link.contains("peer_interface"), "{link}");
}

#[test]
fn a_tcp_ao_key_has_ids_and_a_secret_that_is_never_printed() {
    let of = |ao: &str| format!(r#"{{"ip": "192.0.2.1", "as_num": "64513", "tcp_ao": {ao}}}"#);
    let plain = peer(&of(r#"{"id": 7, "password": "s3cret"}"#)).tcp_ao.unwrap();
    assert_eq!((plain.send_id, plain.receive_id, plain.algorithm), (7, 7, AoAlgorithm::HmacSha1));
    assert!(!format!("{plain:?}").contains("s3cret"));
    let both = r#"{"send_id": 1, "receive_id": 2, "algorithm": "aes-128-cmac-96", "password_file": "/etc/tortie/secrets/x"}"#;
    let ao = peer(&of(both)).tcp_ao.unwrap();
    assert_eq!((ao.send_id, ao.receive_id, ao.algorithm), (1, 2, AoAlgorithm::AesCmac));
    assert_eq!(rewritten(PEER, &of(both)), serde_json::from_str::<serde_json::Value>(&of(both)).unwrap());
    for (bad, says) in [
        (r#"{"password": "s3cret"}"#, "id"),
        (r#"{"send_id": 1, "password": "s3cret"}"#, "id"),
        (r#"{"id": 256, "password": "s3cret"}"#, "id"),
        (r#"{"id": 1}"#, "password"),
        (r#"{"id": 1, "password": "s3cret", "algorithm": "md5"}"#, "hmac-sha-1-96"),
        (r#""s3cret""#, "tcp_ao"),
    ] {
        let text = refused(PEER, &of(bad));
        assert!(text.contains(says) && !text.contains("s3cret"), "{bad}: {text}");
    }
    let twice = refused(
        PEER,
        r#"{"ip": "192.0.2.1", "as_num": "64513", "password": "a", "tcp_ao": {"id": 1, "password": "b"}}"#,
    );
    assert!(twice.contains("give one of the two"), "{twice}");
}
