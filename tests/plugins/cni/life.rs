//! Life cycle of containers.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tortie_config::Dialect;
use tortie_kernel::container::Namespace;

use crate::cni::rig::{Answer, Container, Host, addr, reaches};
use crate::common::hosts::PATIENCE;
use crate::common::netns::{ip, try_ip};

fn add_and_remove(host: &mut Host) {
    let before = host.traces();
    let container = Container::new();
    let config = host.config(json!({
        "ipam": {"type": "tortie-ipam", "assign_ipv6": true},
        "args": {"cni": {"labels": [{"key": "app", "value": "web"}]}},
        "runtimeConfig": {"dns": {"servers": ["192.0.2.53"]}, "mac": "c2:11:22:33:44:55"},
        "mtu": 1400
    }));
    let result = host.add(&container, &config);
    let (v4, v6) = (addr(&result), result["ips"][1]["address"].as_str().unwrap().replace("/128", ""));
    assert_eq!(result["cniVersion"], "1.0.0");
    assert!(v4.starts_with("10.65.") && v6.starts_with("fd00:65:"), "{result}");
    assert_eq!(result["ips"][0]["gateway"], "169.254.1.1");
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.53"]}));
    assert_eq!(result["interfaces"][1]["mac"], "c2:11:22:33:44:55");
    assert_eq!(result["interfaces"][1]["sandbox"], container.netns());
    let id = container.id();
    assert_eq!(result["interfaces"][0]["name"], format!("cali{}", &id[..11]));
    assert!(reaches(&v4) && reaches(&v6), "{}", ip("route"));
    // Endpoint, profile, handle and attributes.
    let keys = host.keys();
    let value = |key: &str| -> Value {
        let text = keys.get(key).unwrap_or_else(|| panic!("no {key}: {:?}", keys.keys()));
        serde_json::from_str(text.as_str().unwrap()).unwrap()
    };
    let endpoint = value(&host.endpoint_key("cni", &id, "eth0"));
    match host.dialect {
        Dialect::V1 => {
            assert_eq!(endpoint["ipv4_nets"], json!([format!("{v4}/32")]));
            assert_eq!(endpoint["ipv4_gateway"], "169.254.1.1");
            assert!(endpoint["ipv6_gateway"].as_str().unwrap().starts_with("fe80:"));
            assert_eq!(endpoint["profile_ids"], json!(["net"]));
            assert_eq!(endpoint["labels"], json!({"app": "web", "tortie/network": "net"}));
            assert_eq!(value("/calico/v1/policy/profile/net/tags"), json!(["net"]));
        }
        Dialect::V3 => as_calico_writes_it(&endpoint, &id, &[format!("{v4}/32"), format!("{v6}/128")]),
    }
    assert_eq!(keys.keys().any(|key| key.starts_with("/calico/v1/")), host.dialect == Dialect::V1);
    assert!(keys.contains_key(&format!("/calico/ipam/v2/handle/net.{id}")), "{:?}", keys.keys());
    assert!(container.ip("link show eth0").contains("mtu 1400"));
    // A second ADD of the same interface is an error and changes nothing.
    let (code, text) = {
        let answer = host.command("tortie-cni", "ADD", &container, &config, "");
        let (code, text) = answer.refused();
        (code, text.to_owned())
    };
    assert!(code >= 100 && text.contains("eth0"), "{code} {text}");
    checks(host, &container, &config, &result);
    // DEL: with all arguments, repeated, without namespace and earlier result, and after the namespace is
    // gone.
    let mut with_result = config.clone();
    with_result["prevResult"] = result;
    host.del(&container, &with_result);
    assert!(try_ip(&format!("-n {} link show eth0", container.name)).1.contains("does not exist"));
    assert_eq!(host.traces(), before);
    host.del(&container, &config);
    let again = host.add(&container, &config);
    let netns = container.name.clone();
    ip(&format!("netns del {netns}"));
    let env =
        [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", id.as_str()), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", "")];
    let del = |env: &[(&str, &str)]| host.call("tortie-cni", env, config.to_string().as_bytes()).done();
    del(&env);
    del(&env);
    let _ = again;
    assert_eq!(host.traces(), before);
}

/// Checks an object of orchestrator `cni` against what Calico's own plugin writes.
fn as_calico_writes_it(endpoint: &Value, id: &str, nets: &[String]) {
    assert_eq!(
        endpoint["spec"],
        json!({
            "orchestrator": "cni", "node": "h1", "containerID": id, "endpoint": "eth0", "ipNetworks": nets,
            "profiles": ["net"], "interfaceName": format!("cali{}", &id[..11]), "mac": "c2:11:22:33:44:55",
        })
    );
    assert_eq!(
        endpoint["metadata"]["labels"],
        json!({
            "app": "web", "tortie/network": "net", "projectcalico.org/namespace": "default",
            "projectcalico.org/orchestrator": "cni",
        })
    );
    for member in ["uid", "creationTimestamp"] {
        assert!(endpoint["metadata"][member].as_str().is_some_and(|text| !text.is_empty()), "{endpoint}");
    }
}

/// Runs `CHECK` after each kind of damage.
fn checks(host: &Host, container: &Container, config: &Value, result: &Value) {
    let mut config = config.clone();
    let check = |config: &Value| host.command("tortie-cni", "CHECK", container, config, "");
    let missing = check(&config);
    assert_eq!(missing.refused().0, 7, "{missing:?}");
    config["prevResult"] = result.clone();
    let good = check(&config);
    assert!(good.ok && good.stdout.is_empty(), "{good:?}");
    let v4 = addr(result);
    let id = container.id();
    let key = host.endpoint_key("cni", &id, "eth0");
    let nets = if host.dialect == Dialect::V1 { "ipv4_nets" } else { "ipNetworks" };
    let found = |answer: &Answer, part: &str| {
        let (code, text) = answer.refused();
        assert!(code == 104 && text.contains(part), "{code} {text}: not {part}");
    };
    container.ip(&format!("address del {v4}/32 dev eth0"));
    found(&check(&config), &v4);
    container.ip(&format!("address add {v4}/32 dev eth0"));
    // The kernel removes the routes of an interface without an address.
    found(&check(&config), "0.0.0.0/0");
    container.ip("route add 169.254.1.1 dev eth0 scope link");
    found(&check(&config), "0.0.0.0/0");
    container.ip("route add default via 169.254.1.1 dev eth0");
    let endpoint = host.keys()[&key].as_str().unwrap().to_owned();
    host.put(&key, &endpoint.replace(&v4, "10.65.9.9"));
    found(&check(&config), nets);
    host.rm(&key);
    found(&check(&config), &key);
    host.put(&key, &endpoint);
    let mut other = config.clone();
    other["prevResult"]["ips"][0]["address"] = json!("10.65.200.1/32");
    found(&check(&other), "10.65.200.1");
    // The agent follows the endpoint that was deleted and restored, with its routes.
    let begun = Instant::now();
    loop {
        let good = check(&config);
        if good.ok {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{good:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_container_comes_and_goes() {
    Host::with_agent_in_both(add_and_remove);
}

#[test]
fn every_version_has_its_form_and_further_interfaces_their_own_addresses() {
    Host::without_agent_in_both(|host| {
        for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let container = Container::new();
            let config = host.config(json!({ "cniVersion": version }));
            let result = host.add(&container, &config);
            assert_eq!(result["cniVersion"], version);
            if version < "0.3.0" {
                let ip4 = &result["ip4"];
                assert!(ip4["ip"].as_str().unwrap().ends_with("/32"), "{result}");
                assert_eq!(ip4["routes"], json!([{"dst": "0.0.0.0/0", "gw": "169.254.1.1"}]));
                assert!(result.get("ips").is_none() && result.get("interfaces").is_none());
            } else {
                assert_eq!(result["ips"][0].get("version").is_some(), version < "1.0.0", "{result}");
                assert_eq!(result["interfaces"][1].get("mtu").is_some(), version == "1.1.0", "{result}");
            }
            host.del(&container, &config);
        }
        // Two interfaces of one container in one network are deleted separately.
        let container = Container::new();
        let config = host.config(json!({}));
        let (id, netns) = (container.id(), container.netns());
        let call = |command: &str, ifname: &str| {
            let env = [
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", id.as_str()),
                ("CNI_NETNS", netns.as_str()),
                ("CNI_IFNAME", ifname),
            ];
            host.call("tortie-cni", &env, config.to_string().as_bytes()).done()
        };
        let first = call("ADD", "eth0");
        let second = call("ADD", "eth1");
        assert_ne!(addr(&first), addr(&second));
        call("DEL", "eth1");
        assert!(container.ip("address show eth0").contains(&addr(&first)));
        assert!(host.keys().contains_key(&format!("/calico/ipam/v2/handle/net.{id}")));
        call("DEL", "eth0");
        assert_eq!(host.traces(), Vec::<String>::new());
    });
}

#[test]
fn a_pod_of_the_same_name_survives_the_late_del_of_the_old_one() {
    Host::without_agent_in_both(|host| {
        let args = "K8S_POD_UID=7;K8S_POD_NAME=web-0;IgnoreUnknown=1;K8S_POD_NAMESPACE=prod";
        let config = host.config(json!({}));
        let (old, new) = (Container::new(), Container::new());
        let call = |command: &str, container: &Container, args: &str| {
            host.command("tortie-cni", command, container, &config, args).done()
        };
        call("ADD", &old, args);
        let result = call("ADD", &new, args);
        call("DEL", &old, args);
        let key = host.endpoint_key("k8s", "prod.web-0", "eth0");
        assert_eq!(host.member(&key, "active_instance_id", "containerID"), new.id());
        assert_eq!(host.member(&key, "ipv4_nets", "ipNetworks"), json!([format!("{}/32", addr(&result))]));
        let keys = host.keys();
        let endpoint: Value = serde_json::from_str(keys[&key].as_str().unwrap()).unwrap();
        match host.dialect {
            Dialect::V1 => assert_eq!(endpoint["labels"]["calico/k8s_ns"], "prod"),
            Dialect::V3 => assert_eq!(
                endpoint["metadata"]["labels"],
                json!({
                    "tortie/network": "net", "projectcalico.org/namespace": "prod",
                    "projectcalico.org/orchestrator": "k8s",
                })
            ),
        }
        assert!(new.ip("address show eth0").contains(&addr(&result)));
        assert!(!keys.contains_key(&format!("/calico/ipam/v2/handle/net.{}", old.id())));
        // The last DEL of a runtime that no longer knows the pod's name.
        call("DEL", &new, "");
        assert_eq!(host.traces(), Vec::<String>::new());
    });
}

#[test]
fn what_is_not_listed_is_collected_and_status_reports() {
    Host::with_agent_in_both(|host| {
        let mut config = host.config(json!({ "cniVersion": "1.1.0" }));
        let other = host.config(json!({ "cniVersion": "1.1.0", "name": "net.other" }));
        let call = |host: &Host, command: &str, config: &Value| {
            host.call("tortie-cni", &[("CNI_COMMAND", command)], config.to_string().as_bytes())
        };
        call(host, "STATUS", &config).done();
        let containers = [(); 3].map(|()| Container::new());
        let [kept, lost, others] = &containers;
        for (container, config) in [(kept, &config), (lost, &config), (others, &other)] {
            host.add(container, config);
        }
        // An address whose endpoint was never written.
        let orphan = Container::new();
        host.command("tortie-ipam", "ADD", &orphan, &config, "").done();
        assert_eq!(call(host, "GC", &config).refused().0, 7, "without a list nothing is removed");
        config["cni.dev/valid-attachments"] = json!([{"containerID": kept.id(), "ifname": "eth0"}]);
        call(host, "GC", &config).done();
        let traces = host.traces().join("\n");
        assert!(traces.contains(&kept.id()) && traces.contains(&others.id()), "{traces}");
        assert!(!traces.contains(&lost.id()) && !traces.contains(&orphan.id()), "{traces}");
        assert!(!traces.contains(&format!("cali{}", &lost.id()[..11])), "{traces}");
        host.del(kept, &config);
        host.del(others, &other);
        host.stop_agent();
        config["agentAbsent"] = json!("error");
        let answer = call(host, "STATUS", &config);
        let (code, text) = answer.refused();
        assert!(code == 50 && text.contains("tortie.sock"), "{text}");
        config["agentAbsent"] = json!("continue");
        call(host, "STATUS", &config).done();
        host.pool("10.65.0.0/16", json!({"cidr": "10.65.0.0/16", "disabled": true}));
        let answer = call(host, "STATUS", &config);
        assert!(answer.refused().1.contains("IPv4"), "{answer:?}");
        config["ipam"] = json!({"assign_ipv4": false, "assign_ipv6": true});
        call(host, "STATUS", &config).done();
        host.ready(false);
        assert_eq!(call(host, "STATUS", &config).refused().0, 50);
        let frozen = host.command("tortie-cni", "ADD", kept, &config, "");
        assert_eq!(frozen.refused().0, 11, "{frozen:?}");
    });
}

#[test]
fn status_says_no_while_no_address_is_left() {
    Host::without_agent_in_both(|host| {
        host.pool("10.99.0.0/30", json!({"cidr": "10.99.0.0/30", "blockSize": 30}));
        let ipam = json!({"type": "tortie-ipam", "ipv4_pools": ["10.99.0.0/30"]});
        let config = host.config(json!({ "cniVersion": "1.1.0", "ipam": ipam }));
        let status = || host.call("tortie-cni", &[("CNI_COMMAND", "STATUS")], config.to_string().as_bytes());
        let containers = [(); 4].map(|()| Container::new());
        for container in &containers {
            status().done();
            host.add(container, &config);
        }
        let keys = host.keys();
        let answer = status();
        let (code, text) = answer.refused();
        assert!(code == 50 && text.contains("0 free in 10.99.0.0/30"), "{code} {text}");
        assert_eq!(host.keys(), keys, "nothing is written");
        host.del(&containers[2], &config);
        status().done();
        // The network is renamed while containers run: their state is deleted with them.
        let mut renamed = config.clone();
        renamed["name"] = json!("renamed");
        for container in &containers {
            host.del(container, &renamed);
        }
        assert_eq!(host.traces(), Vec::<String>::new());
    });
}

#[test]
fn ranges_ports_and_asked_addresses() {
    Host::with_agent_in_both(|host| {
        let container = Container::new();
        let ranges = json!([
            [{"subnet": "192.0.2.0/24"}, {"subnet": "10.65.7.0/24", "rangeStart": "10.65.7.9", "rangeEnd": "10.65.7.10", "gateway": "10.65.7.9"}],
            [{"subnet": "fd00:65::/112", "rangeStart": "fd00:65::42", "rangeEnd": "fd00:65::42"}]
        ]);
        let ports = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
        let config = host.config(json!({"runtimeConfig": {"ipRanges": ranges, "portMappings": ports}}));
        let result = host.add(&container, &config);
        assert_eq!(result["ips"][0]["address"], "10.65.7.10/32");
        assert_eq!(result["ips"][1]["address"], "fd00:65::42/128");
        // The only address of the range is in use.
        let second = Container::new();
        let answer = host.command("tortie-cni", "ADD", &second, &config, "");
        assert!(answer.refused().0 >= 100, "{answer:?}");
        let netns = Namespace::open(container.netns().as_ref()).unwrap();
        let listener = netns.run(|| TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
        ip("address add 198.51.100.1/32 dev lo");
        let to: SocketAddr = "198.51.100.1:8080".parse().unwrap();
        TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        drop(listener);
        host.del(&container, &config);
        assert!(TcpStream::connect_timeout(&to, Duration::from_millis(300)).is_err());
        // By CNI_ARGS, with the MAC address.
        let args = "IgnoreUnknown=1;K8S_POD_NAME=db;IP=10.65.8.8;MAC=c2:11:22:33:44:66";
        let plain = host.config(json!({}));
        let result = host.command("tortie-cni", "ADD", &container, &plain, args).done();
        assert_eq!(addr(&result), "10.65.8.8");
        assert_eq!(result["interfaces"][1]["mac"], "c2:11:22:33:44:66");
        let answer = host.command("tortie-cni", "ADD", &second, &plain, args);
        let (code, text) = answer.refused();
        assert!(code == 101 && text.contains("10.65.8.8"), "{code} {text}");
        host.del(&container, &plain);
        assert_eq!(host.traces(), Vec::<String>::new());
    });
}
