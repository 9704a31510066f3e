//! Tests of parsing and formatting results in all versions of the specification.

use super::*;

/// The examples that each version of the specification prints.
fn examples() -> Vec<(Version, Value)> {
    let old = json!({
        "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}]},
        "ip6": {"ip": "2001:db8::5/64", "gateway": "2001:db8::1"},
        "dns": {"nameservers": ["10.1.0.1"], "domain": "example.org", "search": ["a"], "options": ["ndots:2"]}
    });
    let new = |version: bool| {
        let mut v4 = json!({"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2});
        let mut v6 = json!({"address": "2001:db8::5/64", "gateway": "2001:db8::1", "interface": 2});
        if version {
            v4["version"] = json!("4");
            v6["version"] = json!("6");
        }
        json!({
            "interfaces": [
                {"name": "cni0", "mac": "00:11:22:33:44:55"},
                {"name": "veth3243", "mac": "55:44:33:22:11:11"},
                {"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/var/run/netns/blue"}
            ],
            "ips": [v4, v6],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "example.org", "search": ["a"], "options": ["ndots:2"]}
        })
    };
    let mut newest = new(false);
    newest["interfaces"][2]["mtu"] = json!(1400);
    newest["interfaces"][2]["pciID"] = json!("0000:00:1f.6");
    newest["routes"][0] =
        json!({"dst": "0.0.0.0/0", "mtu": 1400, "table": 100, "scope": 0, "priority": 5, "advmss": 1360});
    let mut all = vec![(Version::V0_1_0, old.clone()), (Version::V0_2_0, old)];
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        all.push((version, new(true)));
    }
    all.push((Version::V1_0_0, new(false)));
    all.push((Version::V1_1_0, newest));
    for (version, value) in &mut all {
        value["cniVersion"] = json!(version.as_str());
    }
    all
}

#[test]
fn every_version_is_read_and_written_in_its_own_form() {
    for (version, value) in examples() {
        let result = CniResult::parse("prevResult", &value, Version::NEWEST).unwrap();
        assert_eq!(result.to_json(version), value, "{version:?}");
    }
}

#[test]
fn a_result_without_version_has_the_form_of_the_configuration() {
    for (version, mut value) in examples() {
        let whole = value.clone();
        value.as_object_mut().unwrap().remove("cniVersion");
        assert_eq!(CniResult::parse("", &value, version).unwrap().to_json(version), whole);
    }
}

#[test]
fn a_newer_result_loses_what_an_older_version_cannot_say() {
    let (_, newest) = examples().pop().unwrap();
    let result = CniResult::parse("", &newest, Version::NEWEST).unwrap();
    for (version, value) in examples() {
        let mut written = result.to_json(version);
        if version < Version::V0_3_0 {
            assert!(written.get("interfaces").is_none());
        }
        if version < Version::V1_1_0 {
            assert_eq!(written, value, "{version:?}");
        }
        assert!(written["dns"].take().is_object());
    }
}

#[test]
fn malformed_results_name_the_place() {
    for (value, place) in [
        (json!({"ips": {}}), "prevResult.ips"),
        (json!({"ips": [{"address": "10.0.0.1"}]}), "prevResult.ips[0].address"),
        (json!({"ips": [{}]}), "prevResult.ips[0].address"),
        (json!({"ips": [{"address": "10.0.0.1/8", "interface": 0}]}), "prevResult.ips[0].interface"),
        (json!({"ips": [{"address": "10.0.0.1/8", "interface": -1}]}), "prevResult.ips[0].interface"),
        (json!({"ips": [{"address": "10.0.0.1/8", "gateway": 7}]}), "prevResult.ips[0].gateway"),
        (json!({"interfaces": ["eth0"]}), "prevResult.interfaces[0]"),
        (json!({"interfaces": [{"name": 5}]}), "prevResult.interfaces[0].name"),
        (json!({"routes": [{"dst": "default"}]}), "prevResult.routes[0].dst"),
        (json!({"dns": {"nameservers": "10.0.0.1"}}), "prevResult.dns.nameservers"),
        (json!({"cniVersion": "0.2.0", "ip4": {"ip": "::1/128"}}), "prevResult.ip4.ip"),
        (json!({"cniVersion": "0.2.0", "ip4": {}}), "prevResult.ip4.ip"),
        (json!(5), "prevResult"),
    ] {
        let error = CniResult::parse("prevResult", &value, Version::V1_0_0).unwrap_err();
        assert!(error.code == code::CONFIG && error.msg.contains(&format!("`{place}`")), "{value}: {error}");
    }
    let other = CniResult::parse("prevResult", &json!({"cniVersion": "7.0.0"}), Version::V1_0_0);
    assert_eq!(other.unwrap_err().code, code::VERSION);
}
