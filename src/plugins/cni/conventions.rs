//! One test for every requirement of the CNI extension conventions on plugins. Requirements that need
//! interfaces are tested in `tests/plugins/cni`, which the list names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use super::*;
use tortie_engine::ipam::AddressRequest;
use tortie_kernel::container::{PortMapping, Rate, Transport};

/// A requirement and its test.
const SENTENCES: &[(&str, fn())] = &[
    (
        "Plugin authors should aim to support these conventions / should accept arguments according to these conventions",
        every_area_is_read,
    ),
    (
        "Plugins may define additional fields that they accept and may generate an error if called with unknown fields",
        unknown_fields,
    ),
    (
        "The exception to this is the args field may be used to pass arbitrary data which may be ignored by plugins",
        args_hold_anything,
    ),
    (
        "It should return an error if it can't act on fields that were expected or where the field values were malformed",
        malformed_runtime_config,
    ),
    (
        "the plugin is expected to act on the configuration or return an error if it can't",
        areas_that_we_cannot_act_on,
    ),
    ("Dynamic information should be placed in a runtimeConfig section", only_the_section_counts),
    ("Plugins can request ... by explicitly listing their capabilities", capabilities_are_the_runtimes),
    ("A list of portmapping entries", port_mappings),
    ("The same as the ranges key for host-local - a list of lists of subnets", ranges_are_lists_of_lists),
    (
        "The outer list is the number of IPs to allocate, and the inner list is a pool of subnets for each allocation",
        outer_and_inner_ranges,
    ),
    ("Rates are in bits per second, burst values are in bits", bandwidth_in_bits),
    ("Dictionary containing a list of servers, a list of searches, a list of options", dns_comes_back),
    ("A list of IP (string entries)", ips),
    ("MAC (string entry)", mac),
    (
        "plugins that don't understand that data should just ignore it / should not expect to receive an error",
        malformed_args_are_noted,
    ),
    ("The conventions documented here are all namespaced under cni", only_cni_and_mesos_in_args),
    ("Pass key=value labels to plugins", labels),
    ("Request static IPs: \"ips\": [\"<ip>[/<prefix>]\", ...]", static_ips_in_args),
    ("Alphanumeric key-value pairs separated by semicolons; for example, \"FOO=BAR;ABC=123\"", cni_args),
    (
        "If a runtime passes an equivalent key via args and the plugin understands args, the plugin must ignore the CNI_ARGS Field",
        args_win_over_cni_args,
    ),
    ("Request a specific IP from IPAM plugins: IP=<ip>[/<prefix>]", ip_of_cni_args),
    // Chained plugins: tests/plugins/cni/chain.rs (bridge, veth pair and tap device of an earlier plugin, and
    // no earlier plugin).
];

#[test]
fn every_sentence_holds() {
    let failed: Vec<&str> = SENTENCES
        .iter()
        .filter(|(_, test)| catch_unwind(AssertUnwindSafe(test)).is_err())
        .map(|(sentence, _)| *sentence)
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn with(more: Value) -> Result<Config, CniError> {
    let mut config = json!({"cniVersion": "1.0.0", "name": "net", "type": "tortie-cni"});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    Config::parse(config.to_string().as_bytes(), Strictness::Refuse, &[]).map_err(|(_, error)| error)
}

fn runtime(area: &str, value: Value) -> Result<RuntimeConfig, CniError> {
    with(json!({"runtimeConfig": {area: value}})).map(|config| config.runtime)
}

fn wants(more: Value, cni_args: &str) -> Result<Vec<AddressRequest>, CniError> {
    let args = EnvArgs::parse(cni_args)?;
    Ok(address_requests(&with(more)?, &args, &PoolNames::default())?
        .into_iter()
        .map(|request| request.want)
        .collect())
}

fn exact(text: &str) -> AddressRequest {
    AddressRequest::Exact(text.parse().unwrap())
}

fn every_area_is_read() {
    // The examples of the document's tables, unchanged, and in the form that containerd sends.
    let plain = json!({
        "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8000, "containerPort": 8001, "protocol": "udp"}
        ],
        "ipRanges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.99", "gateway": "10.1.2.254"}]],
        "bandwidth": {"ingressRate": 2048, "ingressBurst": 1600, "egressRate": 4096, "egressBurst": 1600},
        "dns": {"searches": ["internal.yoyodyne.net", "corp.tyrell.net"], "servers": ["8.8.8.8", "10.0.0.10"]},
        "ips": ["10.10.0.1/24", "3ffe:ffff:0:01ff::1/64"],
        "mac": "c2:11:22:33:44:55"
    });
    let go = json!({
        "PortMappings": [
            {"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP", "HostIP": ""},
            {"HostPort": 8000, "ContainerPort": 8001, "Protocol": "udp", "HostIP": ""}
        ],
        "IPRanges": [[{"Subnet": "10.1.2.0/24", "RangeStart": "10.1.2.3", "RangeEnd": "10.1.2.99", "Gateway": "10.1.2.254"}]],
        "Bandwidth": {"IngressRate": 2048, "IngressBurst": 1600, "EgressRate": 4096, "EgressBurst": 1600},
        "DNS": {"Searches": ["internal.yoyodyne.net", "corp.tyrell.net"], "Servers": ["8.8.8.8", "10.0.0.10"], "Options": null},
        "IPs": ["10.10.0.1/24", "3ffe:ffff:0:01ff::1/64"],
        "Mac": "C2:11:22:33:44:55"
    });
    let [plain, go] = [plain, go].map(|areas| with(json!({"runtimeConfig": areas})).unwrap().runtime);
    assert_eq!(plain, go);
    assert_eq!(plain.ports.len(), 2);
    assert_eq!(plain.ranges.len(), 1);
    assert_eq!(plain.ips.len(), 2);
    assert!(plain.bandwidth.ingress.is_some() && plain.dns.is_some() && plain.mac.is_some());
}

fn unknown_fields() {
    let error = with(json!({"portMapping": [1]})).unwrap_err();
    assert_eq!(error.code, code::FIELD);
    assert!(error.msg.contains("portMapping") && error.msg.contains("[1]"), "{error}");
    // Calico's configurations contain fields that later versions of its plugin know.
    let calico =
        with(json!({"type": "calico", "container_settings": {}, "windows_use_single_network": true}));
    assert!(calico.unwrap().notes.iter().any(|note| note.contains("windows_use_single_network")));
    let error = with(json!({"ipam": {"type": "tortie-ipam", "subnetz": "x"}})).unwrap_err();
    assert!(error.msg.contains("ipam.subnetz"), "{error}");
    // A DEL after an ADD that failed because of the same field must succeed.
    let config = json!({"name": "net", "portMapping": 1, "mtu": "x", "runtimeConfig": 5, "prevResult": []});
    let config = Config::parse(config.to_string().as_bytes(), Strictness::Lenient, &[]).unwrap();
    assert_eq!(config.notes.len(), 4, "{:?}", config.notes);
}

fn args_hold_anything() {
    for args in [
        json!({"x": {"y": [1, 2]}}),
        json!({"cni": {"other": 7}}),
        json!(5),
        json!([]),
        json!({"cni": "text"}),
    ] {
        let config = with(json!({ "args": args })).unwrap();
        assert_eq!(config.args, Args::default());
    }
}

fn malformed_runtime_config() {
    let range = |range: Value| json!([[range]]);
    for (area, value, place, shown) in [
        ("portMappings", json!({}), "runtimeConfig.portMappings", "{}"),
        ("portMappings", json!([5]), "runtimeConfig.portMappings[0]", "5"),
        (
            "portMappings",
            json!([{"hostPort": 65536, "containerPort": 1}]),
            "portMappings[0].hostPort",
            "65536",
        ),
        ("portMappings", json!([{"hostPort": -1, "containerPort": 1}]), "portMappings[0].hostPort", "-1"),
        (
            "portMappings",
            json!([{"hostPort": "80", "containerPort": 1}]),
            "portMappings[0].hostPort",
            "\"80\"",
        ),
        ("portMappings", json!([{"hostPort": 80}]), "portMappings[0].containerPort", "null"),
        (
            "portMappings",
            json!([{"hostPort": 80, "containerPort": 1, "protocol": "icmp"}]),
            "protocol",
            "icmp",
        ),
        ("portMappings", json!([{"hostPort": 80, "containerPort": 1, "hostIP": "x"}]), "hostIP", "\"x\""),
        ("ipRanges", json!([]), "", ""),
        ("ipRanges", json!([[]]), "runtimeConfig.ipRanges[0]", "[]"),
        ("ipRanges", json!([{"subnet": "10.0.0.0/8"}]), "runtimeConfig.ipRanges[0]", "10.0.0.0/8"),
        ("ipRanges", range(json!({})), "runtimeConfig.ipRanges[0][0].subnet", "null"),
        ("ipRanges", range(json!({"subnet": "10.1.2.3/24"})), "ipRanges[0][0].subnet", "10.1.2.3/24"),
        (
            "ipRanges",
            range(json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1"})),
            "rangeStart",
            "10.1.3.1",
        ),
        ("ipRanges", range(json!({"subnet": "10.1.2.0/24", "gateway": "gw"})), "gateway", "\"gw\""),
        (
            "ipRanges",
            range(json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8"})),
            "rangeEnd",
            "10.1.2.8",
        ),
        (
            "ipRanges",
            json!([[{"subnet": "10.0.0.0/8"}, {"subnet": "fd00::/64"}]]),
            "ipRanges[0]",
            "fd00::/64",
        ),
        ("bandwidth", json!([]), "runtimeConfig.bandwidth", "[]"),
        ("bandwidth", json!({"ingressRate": "1M"}), "runtimeConfig.bandwidth.ingressRate", "\"1M\""),
        ("bandwidth", json!({"ingressRate": -5}), "bandwidth.ingressRate", "-5"),
        ("bandwidth", json!({"egressRate": 1.5}), "bandwidth.egressRate", "1.5"),
        ("bandwidth", json!({"egressBurst": 1600}), "bandwidth.egressBurst", "1600"),
        ("dns", json!("8.8.8.8"), "runtimeConfig.dns", "\"8.8.8.8\""),
        ("dns", json!({"servers": "8.8.8.8"}), "runtimeConfig.dns.servers", "\"8.8.8.8\""),
        ("dns", json!({"searches": [5]}), "runtimeConfig.dns.searches[0]", "5"),
        ("ips", json!("10.0.0.1"), "runtimeConfig.ips", "\"10.0.0.1\""),
        ("ips", json!(["10.0.0.300"]), "runtimeConfig.ips[0]", "10.0.0.300"),
        ("ips", json!(["10.0.0.1/33"]), "runtimeConfig.ips[0]", "10.0.0.1/33"),
        ("mac", json!("c2:11:22:33:44"), "runtimeConfig.mac", "c2:11:22:33:44"),
        ("mac", json!("01:00:5e:00:00:01"), "runtimeConfig.mac", "01:00:5e:00:00:01"),
        ("mac", json!(7), "runtimeConfig.mac", "7"),
    ] {
        match runtime(area, value.clone()) {
            Ok(_) => assert!(place.is_empty(), "{area} {value} is no error"),
            Err(error) => {
                assert_eq!(error.code, code::CONFIG, "{area} {value}");
                assert!(error.msg.contains(place) && error.msg.contains(shown), "{area} {value}: {error}");
            }
        }
    }
    assert_eq!(with(json!({"runtimeConfig": "x"})).unwrap_err().code, code::CONFIG);
}

fn areas_that_we_cannot_act_on() {
    let error = runtime("aliases", json!({"net": ["db"]})).unwrap_err();
    assert_eq!(error.code, code::FIELD);
    assert!(error.msg.contains("runtimeConfig.aliases") && error.msg.contains("db"), "{error}");
    // An area without content, and an area of one runtime only.
    assert!(runtime("aliases", Value::Null).is_ok());
    // podman adds its own alias to each container.
    assert!(runtime("aliases", json!({"net": ["0123456789ab"], "other": []})).is_ok());
    assert!(runtime("aliases", json!({"net": ["0123456789ab", "db"]})).is_err());
    assert!(runtime("io.kubernetes.cri.pod-annotations", json!({"a": "b"})).is_ok());
    // An address that cannot be allocated, because no range contains it.
    let error =
        wants(json!({"runtimeConfig": {"ips": ["10.9.9.9"], "ipRanges": [[{"subnet": "10.1.2.0/24"}]]}}), "");
    let error = error.unwrap_err();
    assert!(error.code == code::CONFIG && error.msg.contains("10.9.9.9"), "{error}");
}

fn only_the_section_counts() {
    // The same names outside of the section are unknown fields.
    for area in ["portMappings", "ipRanges", "bandwidth", "ips", "mac"] {
        assert_eq!(with(json!({ area: [] })).unwrap_err().code, code::FIELD, "{area}");
    }
}

fn capabilities_are_the_runtimes() {
    // libcni leaves the declaration in the configuration. It has no effect by itself.
    let config = with(json!({"capabilities": {"portMappings": true, "mac": false}})).unwrap();
    assert_eq!(config.runtime, RuntimeConfig::default());
    assert!(config.notes.is_empty());
}

fn port_mappings() {
    let ports = runtime(
        "portMappings",
        json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 8000, "containerPort": 8001, "protocol": "udp", "hostIP": "192.0.2.1"},
            {"hostPort": 9, "containerPort": 9, "protocol": "SCTP", "hostIP": "::"},
            {"hostPort": 0, "containerPort": 5, "protocol": "tcp"},
            {"hostPort": 7, "containerPort": 7}
        ]),
    );
    let port = |host_ip: Option<&str>, host_port, container_port, protocol| PortMapping {
        host_ip: host_ip.map(|text| text.parse().unwrap()),
        host_port,
        container_port,
        protocol,
    };
    let expected = [
        port(None, 8080, 80, Transport::Tcp),
        port(Some("192.0.2.1"), 8000, 8001, Transport::Udp),
        port(Some("::"), 9, 9, Transport::Sctp),
        port(None, 7, 7, Transport::Tcp),
    ];
    assert_eq!(ports.unwrap().ports, expected);
}

fn ranges_are_lists_of_lists() {
    let value = json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.3", "rangeEnd": "10.1.2.99", "gateway": "10.1.2.254"}]]);
    let as_runtime = runtime("ipRanges", value.clone()).unwrap().ranges;
    let as_host_local = with(json!({"ipam": {"type": "tortie-ipam", "ranges": value}})).unwrap().ipam.ranges;
    assert_eq!(as_runtime, as_host_local);
    let range = &as_runtime[0][0];
    assert_eq!(range.range.subnet.to_string(), "10.1.2.0/24");
    assert_eq!(range.range.first, Some("10.1.2.3".parse().unwrap()));
    assert_eq!(range.range.last, Some("10.1.2.99".parse().unwrap()));
    // The gateway is never allocated.
    assert_eq!(range.range.except, ["10.1.2.254".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(range.gateway, Some("10.1.2.254".parse().unwrap()));
}

fn outer_and_inner_ranges() {
    let ranges = json!([
        [{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24"}],
        [{"subnet": "10.1.0.0/24"}],
        [{"subnet": "fd00:1::/64"}]
    ]);
    // Exactly one address from each outer element, whatever `assign_*` is set to.
    let given =
        wants(json!({"runtimeConfig": {"ipRanges": ranges}, "ipam": {"assign_ipv6": "true"}}), "").unwrap();
    let subnets: Vec<Vec<String>> = given
        .iter()
        .map(|want| match want {
            AddressRequest::OneOf(ranges) => ranges.iter().map(|range| range.subnet.to_string()).collect(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(subnets, [vec!["10.1.0.0/24", "10.2.0.0/24"], vec!["10.1.0.0/24"], vec!["fd00:1::/64"]]);
    // A requested address replaces the one that its element would give.
    let asked = wants(json!({"runtimeConfig": {"ipRanges": ranges, "ips": ["10.2.0.7/24"]}}), "").unwrap();
    assert_eq!(asked[0], exact("10.2.0.7"));
    assert!(matches!(asked[1..], [AddressRequest::OneOf(_), AddressRequest::OneOf(_)]));
    // An address outside of the range, or its gateway, cannot be requested.
    let narrow = json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.9", "gateway": "10.1.0.6"}]]);
    for ip in ["10.1.0.4", "10.1.0.10", "10.1.0.6"] {
        assert!(wants(json!({"runtimeConfig": {"ipRanges": narrow, "ips": [ip]}}), "").is_err(), "{ip}");
    }
}

fn bandwidth_in_bits() {
    let area = json!({"ingressRate": 2048, "ingressBurst": 1600, "egressRate": 5_000_000_000_u64, "egressBurst": 4_294_967_295_u64});
    let bandwidth = runtime("bandwidth", area).unwrap().bandwidth;
    assert_eq!(bandwidth.ingress, Some(Rate { bits: 2048, burst: Some(1600) }));
    assert_eq!(bandwidth.egress, Some(Rate { bits: 5_000_000_000, burst: Some(4_294_967_295) }));
    let none = runtime("bandwidth", json!({"ingressRate": 0, "ingressBurst": 0})).unwrap().bandwidth;
    assert!(none.ingress.is_none() && none.egress.is_none());
    let one = runtime("bandwidth", json!({"egressRate": 8000})).unwrap().bandwidth;
    assert_eq!((one.ingress, one.egress), (None, Some(Rate { bits: 8000, burst: None })));
}

fn dns_comes_back() {
    let given = json!({"dns": {"searches": ["a"], "servers": ["8.8.8.8"], "options": ["ndots:2"]}});
    let config = with(json!({"runtimeConfig": given, "dns": {"nameservers": ["9.9.9.9"]}})).unwrap();
    let dns = config.wanted_dns().unwrap();
    let result = CniResult { dns: dns.clone(), ..CniResult::default() };
    let expected = json!({"nameservers": ["8.8.8.8"], "search": ["a"], "options": ["ndots:2"]});
    for version in Version::ALL {
        assert_eq!(result.to_json(version)["dns"], expected);
    }
    // Without name servers of the runtime, those of the configuration apply.
    let config = with(json!({"dns": {"nameservers": ["9.9.9.9"]}, "runtimeConfig": {"dns": {}}})).unwrap();
    assert_eq!(config.wanted_dns().unwrap().nameservers, ["9.9.9.9"]);
    assert!(with(json!({})).unwrap().wanted_dns().is_none());
}

fn ips() {
    let both =
        wants(json!({"runtimeConfig": {"ips": ["10.10.0.1/24", "3ffe:ffff:0:01ff::1/64"]}}), "").unwrap();
    assert_eq!(both, [exact("10.10.0.1"), exact("3ffe:ffff:0:1ff::1")]);
    // An address of one family only: the other family is allocated as usual.
    let six = wants(json!({"runtimeConfig": {"ips": ["fd00::1"]}}), "").unwrap();
    assert!(matches!(six[..], [AddressRequest::Exact(_), AddressRequest::Any { count: 1, .. }]), "{six:?}");
    let twice = wants(json!({"runtimeConfig": {"ips": ["10.0.0.1", "10.0.0.1/8"]}}), "").unwrap();
    assert_eq!(twice, [exact("10.0.0.1")]);
}

fn mac() {
    let mac = runtime("mac", json!("c2:11:22:33:44:55")).unwrap().mac;
    assert_eq!(mac.unwrap().to_string(), "c2:11:22:33:44:55");
    assert_eq!(runtime("mac", json!("")).unwrap().mac, None);
}

fn malformed_args_are_noted() {
    let args = json!({"cni": {
        "labels": [{"key": "app", "value": "web"}, {"key": "a b", "value": "x"}, {"key": "n", "value": 5}, "no"],
        "ips": ["10.0.0.1", "10.0.0.x", 7]
    }});
    let config = with(json!({ "args": args })).unwrap();
    assert_eq!(config.args.labels.len(), 1);
    assert_eq!(config.args.ips.len(), 1);
    assert_eq!(config.notes.len(), 5, "{:?}", config.notes);
    assert!(config.notes.iter().all(|note| note.contains("`args.cni.")), "{:?}", config.notes);
    let config = with(json!({"args": {"cni": {"labels": {"app": "web"}, "ips": "10.0.0.1"}}})).unwrap();
    assert_eq!((config.args, config.notes.len()), (Args::default(), 2));
}

fn only_cni_and_mesos_in_args() {
    let config =
        with(json!({"args": {"labels": [{"key": "app", "value": "x"}], "ips": ["10.0.0.1"]}})).unwrap();
    assert_eq!(config.args, Args::default());
    let mesos = json!({"org.apache.mesos": {"network_info": {"name": "n", "labels": {"labels": [{"key": "rack", "value": "r1"}]}}}});
    let config = with(json!({ "args": mesos })).unwrap();
    assert_eq!(config.args.labels.get("rack").map(String::as_str), Some("r1"));
}

fn labels() {
    let args =
        json!({"cni": {"labels": [{"key": "app", "value": "myapp"}, {"key": "env", "value": "prod"}]}});
    let config = with(json!({ "args": args })).unwrap();
    let identity = Identity::new(&config, &EnvArgs::default(), "h1", "c1", "eth0").unwrap();
    let expected = [("app", "myapp"), ("env", "prod"), (NETWORK_LABEL, "net")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(identity.labels, expected.into());
}

fn static_ips_in_args() {
    let given = wants(json!({"args": {"cni": {"ips": ["10.2.2.42/24", "2001:db8::5"]}}}), "").unwrap();
    assert_eq!(given, [exact("10.2.2.42"), exact("2001:db8::5")]);
}

fn cni_args() {
    let args = EnvArgs::parse(
        "K8S_POD_UID=7;IP=10.0.0.9;K8S_POD_NAMESPACE=prod;IgnoreUnknown=1;FOO=BAR;K8S_POD_NAME=web-0;MAC=c2:11:22:33:44:55;",
    );
    let args = args.unwrap();
    assert_eq!(args.pod_namespace.as_deref(), Some("prod"));
    assert_eq!(args.pod.as_deref(), Some("web-0"));
    assert_eq!(args.ip, Some("10.0.0.9".parse().unwrap()));
    assert_eq!(args.mac.unwrap().to_string(), "c2:11:22:33:44:55");
    assert_eq!(EnvArgs::parse("").unwrap(), EnvArgs::default());
    // Unknown names are errors unless the caller permits them.
    for (text, part) in [
        ("FOO=BAR;ABC=123", "FOO=BAR"),
        ("IgnoreUnknown=0;FOO=BAR", "FOO=BAR"),
        ("IgnoreUnknown=maybe", "maybe"),
        ("FOO", "FOO"),
        ("IP=10.0.0", "IP is \"10.0.0\""),
        ("MAC=zz", "MAC is \"zz\""),
        ("MAC=01:00:5e:00:00:01", "01:00:5e:00:00:01"),
        ("IgnoreUnknown=1;IP=x", "IP is \"x\""),
    ] {
        let error = EnvArgs::parse(text).unwrap_err();
        assert!(error.code == code::ENVIRONMENT && error.msg.contains(part), "{text}: {error}");
    }
    assert!(EnvArgs::parse("FOO=BAR;IgnoreUnknown=true").is_ok());
    assert!(EnvArgs::parse("K8S_SOMETHING_NEW=1").is_ok());
    // Valid parts are returned together with the error, because a DEL needs to know the pod.
    let (args, error) = EnvArgs::read("IP=x;K8S_POD_NAME=web;K8S_POD_NAMESPACE=prod");
    assert!(args.pod.is_some() && error.is_some());
}

fn args_win_over_cni_args() {
    let args = json!({"args": {"cni": {"ips": ["10.2.2.42"]}}});
    assert_eq!(wants(args, "IP=10.9.9.9").unwrap(), [exact("10.2.2.42")]);
    // No equivalent in `args`: an empty list, another area, an address that cannot be parsed.
    for args in [json!({"cni": {"ips": []}}), json!({"cni": {"labels": []}}), json!({"cni": {"ips": ["x"]}})]
    {
        assert_eq!(wants(json!({ "args": args }), "IP=10.9.9.9").unwrap(), [exact("10.9.9.9")]);
    }
    // A capability must be applied, so it has precedence.
    let both = json!({"runtimeConfig": {"ips": ["10.1.1.1"]}, "args": {"cni": {"ips": ["10.2.2.42"]}}});
    assert_eq!(wants(both, "IP=10.9.9.9").unwrap(), [exact("10.1.1.1")]);
}

fn ip_of_cni_args() {
    for text in ["IP=192.168.10.4/24", "IP=192.168.10.4"] {
        assert_eq!(wants(json!({}), text).unwrap(), [exact("192.168.10.4")]);
    }
    assert_eq!(wants(json!({"ipam": {"assign_ipv4": "false"}}), "IP=fd00::4").unwrap(), [exact("fd00::4")]);
}
