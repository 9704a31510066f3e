//! Key texts from the documents of the data model, and properties of parsing and formatting.

use proptest::prelude::*;

use super::*;

/// One canonical key for every row of the data model's tree.
pub(crate) const CANONICAL: &[&str] = &[
    "/calico/v1/Ready",
    "/calico/v1/config/LogFilePath",
    "/calico/v1/config/InterfacePrefix",
    "/calico/v1/host/h1/config/IpInIpTunnelAddr",
    "/calico/v1/host/h1/config/marker",
    "/calico/v1/host/h1/bird_ip",
    "/calico/v1/host/h1/metadata",
    "/calico/v1/host/h1/orchestrator_refs",
    "/calico/v1/host/h1/workload/k8s/default.nginx/endpoint/eth0",
    "/calico/v1/host/h1/workload/k8s/a%2fb%25c/endpoint/eth0",
    "/calico/v1/host/h1/endpoint/eth0",
    "/calico/v1/policy/profile/web/rules",
    "/calico/v1/policy/profile/web/tags",
    "/calico/v1/policy/profile/web/labels",
    "/calico/v1/policy/tier/default/policy/p1",
    "/calico/v1/policy/tier/security/metadata",
    "/calico/v1/ipam/v4/pool/192.168.0.0-16",
    "/calico/v1/ipam/v6/pool/fd80:24e2:f998:72d6::-64",
    "/calico/ipam/v2/config",
    "/calico/ipam/v2/assignment/ipv4/block/192.168.0.64-26",
    "/calico/ipam/v2/assignment/ipv6/block/fd80:24e2:f998:72d6::-122",
    "/calico/ipam/v2/handle/cni0.ba11f1de",
    "/calico/ipam/v2/host/h1/ipv4/block/192.168.0.64-26",
    "/calico/ipam/v2/host/h1/ipv6/block/fd80:24e2:f998:72d6::-122",
    "/calico/tortie/v1/host/h1/docker/driver/tortie-ipam/epoch",
    "/calico/tortie/v1/host/h1/docker/driver/tortie-ipam/pool/global%2f10.0.0.0%2f16",
    "/calico/tortie/v1/host/h1/docker/address/global/10.0.0.9",
    "/calico/tortie/v1/host/h1/docker/network/0ff1ce",
    "/calico/tortie/v1/host/h1/docker/endpoint/c0ffee",
    "/calico/tortie/v1/host/h1/docker/local/pool/v4/172.30.0.0-24",
    "/calico/tortie/v1/host/h1/docker/local/block/v4/172.30.0.0-26",
    "/calico/bgp/v1/global/as_num",
    "/calico/bgp/v1/global/node_mesh",
    "/calico/bgp/v1/global/loglevel",
    "/calico/bgp/v1/global/listen_port",
    "/calico/bgp/v1/global/prefix_advertisements/ip_v4",
    "/calico/bgp/v1/global/prefix_advertisements/ip_v6",
    "/calico/bgp/v1/global/bmp_stations",
    "/calico/bgp/v1/global/multipath",
    "/calico/bgp/v1/global/peer_v4/192.0.2.1",
    "/calico/bgp/v1/global/peer_v4/192.0.2.1-1790",
    "/calico/bgp/v1/global/peer_v6/2001:db8::1",
    "/calico/bgp/v1/global/peer_interface/eth1",
    "/calico/bgp/v1/global/peer_range/192.0.2.0-24",
    "/calico/bgp/v1/host/h1/peer_range/2001:db8::-64",
    "/calico/bgp/v1/global/custom_filters/v4/mine",
    "/calico/bgp/v1/global/custom_filters/v6/mine",
    "/calico/bgp/v1/global/filters/tor-export",
    "/calico/bgp/v1/host/h1/as_num",
    "/calico/bgp/v1/host/h1/ip_addr_v4",
    "/calico/bgp/v1/host/h1/ip_addr_v6",
    "/calico/bgp/v1/host/h1/network_v4",
    "/calico/bgp/v1/host/h1/network_v6",
    "/calico/bgp/v1/host/h1/rr_cluster_id",
    "/calico/bgp/v1/host/h1/loglevel",
    "/calico/bgp/v1/host/h1/listen_port",
    "/calico/bgp/v1/host/h1/prefix_advertisements/ip_v4",
    "/calico/bgp/v1/host/h1/bmp_stations",
    "/calico/bgp/v1/host/h1/multipath",
    "/calico/bgp/v1/host/h1/peer_v4/192.0.2.1",
    "/calico/bgp/v1/host/h1/peer_v6/2001:db8::1-1790",
    "/calico/bgp/v1/host/h1/filters/tor-export",
    "/calico/felix/v1/host/h1/status",
    "/calico/felix/v1/host/h1/last_reported_status",
    "/calico/felix/v1/host/h1/workload/libnetwork/libnetwork/endpoint/75f9",
    "/calico/felix/v1/host/h1/endpoint/eth0",
    "/calico/felix/v2/no-region/host/h1/status",
    "/calico/felix/v2/region-r1/host/h1/last_reported_status",
    "/calico/felix/v2/no-region/host/h1/workload/openstack/openstack%2fvm-1/endpoint/port-1",
    "/calico/tortie/v1/status/h1",
    "/calico/tortie/v1/schema",
];

#[test]
fn every_path_of_the_data_model_is_known_and_printed_as_it_was() {
    for text in CANONICAL {
        let key = Key::parse(text).unwrap();
        assert!(!matches!(key, Key::Unknown(_)), "{text}");
        assert!(!key.is_legacy(), "{text}");
        assert_eq!(key.to_text(), *text);
    }
}

#[test]
fn older_paths_mean_the_same_and_are_distinguished() {
    for (old, new) in [
        ("/calico/v1/config/bgp_node_mesh", "/calico/bgp/v1/global/node_mesh"),
        ("/calico/v1/config/bgp_peer_v4/192.0.2.1", "/calico/bgp/v1/global/peer_v4/192.0.2.1"),
        ("/calico/v1/config/bgp_peer_v6/2001:db8::1", "/calico/bgp/v1/global/peer_v6/2001:db8::1"),
        ("/calico/v1/host/h1/bgp_peer_v4/192.0.2.1", "/calico/bgp/v1/host/h1/peer_v4/192.0.2.1"),
        ("/calico/v1/host/h%2f1/bgp_peer_v6/2001:db8::1", "/calico/bgp/v1/host/h%2f1/peer_v6/2001:db8::1"),
        ("/calico/ipam/v2/assignment/handle/h.1", "/calico/ipam/v2/handle/h.1"),
    ] {
        let key = Key::parse(old).unwrap();
        assert!(key.is_legacy(), "{old}");
        assert_eq!(key.to_text(), old);
        assert_eq!(key.canonical().to_text(), new);
        assert_eq!(*key.canonical(), Key::parse(new).unwrap());
        assert_eq!(Key::Legacy(LegacyKey::of(key.canonical()).unwrap()), key);
    }
    assert_eq!(LegacyKey::of(&Key::Ready), None);
}

#[test]
fn malformed_known_keys_are_errors_that_name_the_place() {
    for (text, place) in [
        ("", "not below `/calico/`"),
        ("/calicox/v1/Ready", "not below `/calico/`"),
        ("calico/v1/Ready", "not below `/calico/`"),
        ("/calico/v1/ipam/v4/pool/10.0.0.0", "`10.0.0.0` is no prefix"),
        ("/calico/v1/ipam/v4/pool/fd00::-64", "other family"),
        ("/calico/v1/ipam/v4/pool/10.0.0.0-33", "no prefix"),
        ("/calico/ipam/v2/assignment/ipv4/block/10.0.0.1-26", "the prefix is `10.0.0.0-26`"),
        ("/calico/ipam/v2/host//ipv4/block/10.0.0.0-26", "the host is empty"),
        ("/calico/bgp/v1/global/peer_v4/tor1", "`tor1`"),
        ("/calico/bgp/v1/global/peer_v6/192.0.2.1", "other family"),
        ("/calico/bgp/v1/global/peer_range/192.0.2.1-24", "the prefix is `192.0.2.0-24`"),
        ("/calico/bgp/v1/global/peer_range/192.0.2.1", "no prefix"),
        ("/calico/bgp/v1/global/peer_v4/192.0.2.1-70000", "`70000` is no port"),
        ("/calico/bgp/v1/global/peer_v4/192.0.2.1-+80", "`+80` is no port"),
        ("/calico/v1/host/h1/workload/k8s/a/b/endpoint/eth0", "%2f"),
        ("/calico/v1/host/h1/workload/k8s/a", "workload/<orchestrator>"),
        ("/calico/v1/host/h1/endpoint/", "the endpoint is empty"),
        ("/calico/tortie/v1/host/h1/docker/address/local/x", "`x` below `address` is no address"),
        ("/calico/tortie/v1/host/h1/docker//pool/v4/172.30.0.0-24", "the address space is empty"),
    ] {
        let error = Key::parse(text).unwrap_err();
        assert_eq!(error.key, text);
        assert!(error.problem.contains(place), "{text}: {error}");
    }
}

#[test]
fn unknown_keys_are_kept() {
    for text in [
        "/calico/dhcp/v1/subnet/1",
        "/calico/v1/host/h1",
        "/calico/bgp/v1/host/h1",
        "/calico/bgp/v1/global/node_mesh/x",
        "/calico/bgp/v1/host/h1/node_mesh",
        "/calico/bgp/v1/global/ip_addr_v4",
        "/calico/v1/policy/profile/p/other",
        "/calico/tortie/v1/host/h1/docker/driver/d/other",
        "/calico//",
        "/calico/",
    ] {
        assert_eq!(Key::parse(text).unwrap(), Key::Unknown(text.to_owned()));
    }
}

#[test]
fn other_spellings_are_the_same_key() {
    let same = |a: &str, b: &str| assert_eq!(Key::parse(a).unwrap(), Key::parse(b).unwrap());
    same("/calico/v1/ipam/v4/pool/10.0.3.7-16", "/calico/v1/ipam/v4/pool/10.0.0.0-16");
    same("/calico/bgp/v1/global/peer_v4/192.0.2.1-179", "/calico/bgp/v1/global/peer_v4/192.0.2.1");
    same("/calico/bgp/v1/global/peer_v6/2001:DB8:0::1", "/calico/bgp/v1/global/peer_v6/2001:db8::1");
}

#[test]
fn escaping_decodes_2f_before_25() {
    assert_eq!(escape("a/b%c"), "a%2fb%25c");
    assert_eq!(unescape("%252f"), "%2f");
    assert_eq!(unescape("%2F%41"), "%2F%41", "only the lower-case form is an escape");
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9.%/_-]{1,12}", "(%2f|%25|%|/|2f|25){1,6}", "\\PC{1,6}"]
}

fn cidr() -> impl Strategy<Value = Cidr> {
    prop_oneof![
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|(a, l)| Cidr::new(IpAddr::from(a), l).unwrap()),
        (any::<[u8; 16]>(), 0u8..=128).prop_map(|(a, l)| Cidr::new(IpAddr::from(a), l).unwrap()),
    ]
}

fn addr() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn family() -> impl Strategy<Value = IpFamily> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Global), name().prop_map(Scope::Host)]
}

fn bgp() -> impl Strategy<Value = Key> {
    let item = prop_oneof![
        Just(BgpItem::AsNum),
        Just(BgpItem::NodeMesh),
        Just(BgpItem::LogLevel),
        Just(BgpItem::ListenPort),
        Just(BgpItem::BmpStations),
        Just(BgpItem::Multipath),
        family().prop_map(BgpItem::PrefixAdvertisements),
        (addr(), any::<u16>()).prop_map(|(a, p)| BgpItem::peer(a, p)),
        (family(), name()).prop_map(|(f, n)| BgpItem::CustomFilter(f, n)),
        name().prop_map(BgpItem::Filter),
        family().prop_map(BgpItem::Address),
        family().prop_map(BgpItem::Network),
        Just(BgpItem::RrClusterId),
    ];
    (scope(), item)
        .prop_filter("exists in this scope", |(scope, item)| item.allowed_in(scope))
        .prop_map(|(s, i)| Key::Bgp(s, i))
}

fn key() -> impl Strategy<Value = Key> {
    let part = prop_oneof![Just(ProfilePart::Rules), Just(ProfilePart::Tags), Just(ProfilePart::Labels)];
    let canonical = prop_oneof![
        Just(Key::Ready),
        (scope(), "[A-Z][A-Za-z]{1,9}").prop_map(|(s, n)| Key::Setting(s, n)),
        name().prop_map(|host| Key::BirdIp { host }),
        name().prop_map(|host| Key::Marker { host }),
        (name(), name(), name(), name()).prop_map(|(host, orchestrator, workload, endpoint)| Key::Endpoint(
            EndpointKey::Workload { host, orchestrator, workload, endpoint }
        )),
        (name(), name()).prop_map(|(host, endpoint)| Key::Endpoint(EndpointKey::Host { host, endpoint })),
        (name(), part).prop_map(|(name, part)| Key::Profile { name, part }),
        name().prop_map(|tier| Key::TierMetadata { tier }),
        (name(), name()).prop_map(|(tier, name)| Key::Policy { tier, name }),
        cidr().prop_map(Key::Pool),
        cidr().prop_map(Key::Block),
        name().prop_map(Key::Handle),
        (name(), cidr()).prop_map(|(host, block)| Key::Affinity { host, block }),
        bgp(),
        (proptest::option::of(name()), name()).prop_map(|(region, host)| Key::Felix {
            region,
            host,
            item: FelixItem::Status
        }),
        name().prop_map(|host| Key::TortieStatus { host }),
    ];
    (canonical, any::<bool>()).prop_map(|(key, old)| match LegacyKey::of(&key) {
        Some(older) if old => Key::Legacy(older),
        _ => key,
    })
}

proptest! {
    #[test]
    fn printing_and_reading_gives_the_same_key(key in key()) {
        let text = key.to_text();
        prop_assert_eq!(Key::parse(&text), Ok(key), "{}", text);
    }

    #[test]
    fn no_text_panics_and_canonical_text_is_stable(tail in "[a-z0-9./%:_-]{0,60}") {
        if let Ok(key) = Key::parse(&format!("/calico/{tail}")) {
            let text = key.to_text();
            prop_assert_eq!(Key::parse(&text), Ok(key));
        }
    }

    #[test]
    fn names_survive_escaping(name in name()) {
        let element = escape(&name);
        prop_assert!(!element.contains('/'));
        prop_assert_eq!(unescape(&element), name.as_str());
    }
}
