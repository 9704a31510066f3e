//! `tortie-ipam` with other main plugins.

use serde_json::{Value, json};

use crate::cni::rig::{Container, Host, addr, has_reference, ping, reaches};

fn bridge(host: &Host, ipam: Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "oursbr0", "isGateway": true,
        "isDefaultGateway": true,
        "ipam": {"type": "tortie-ipam", "datastore": host.store(), "node": "h1", "log": host.path("cni.log")}
    });
    for (key, value) in ipam.as_object().unwrap() {
        config["ipam"][key] = value.clone();
    }
    config
}

#[test]
fn below_the_reference_bridge_containers_reach_host_and_each_other() {
    if !has_reference() {
        return;
    }
    Host::without_agent(|host| {
        let config = bridge(host, json!({}));
        let containers = [(); 3].map(|()| Container::new());
        let results: Vec<Value> = containers
            .iter()
            .map(|container| host.command("bridge", "ADD", container, &config, "").done())
            .collect();
        let addrs: Vec<String> = results.iter().map(addr).collect();
        for (result, addr) in results.iter().zip(&addrs) {
            let ip = &result["ips"][0];
            assert_eq!(ip["address"], format!("{addr}/26"), "the block's length");
            let gateway = ip["gateway"].as_str().unwrap();
            assert!(!addrs.iter().any(|addr| addr == gateway), "{result}");
            assert!(reaches(addr));
        }
        let [first, ..] = &containers;
        let other = addrs[2].clone();
        let exec = format!("netns exec {} {} -c1 -W2 -q {other}", first.name, ping().display());
        assert!(crate::common::netns::try_ip(&exec).0);
        // The gateway address is not allocated to containers.
        let gateway = results[0]["ips"][0]["gateway"].as_str().unwrap();
        let mut asking = config.clone();
        asking["args"] = json!({"cni": {"ips": [gateway]}});
        let stranger = Container::new();
        let answer = host.command("tortie-ipam", "ADD", &stranger, &asking, "");
        assert!(answer.refused().1.contains(gateway), "{answer:?}");
        let mut check = config.clone();
        check["prevResult"] = results[0].clone();
        host.command("bridge", "CHECK", first, &check, "").done();
        for container in &containers {
            host.command("bridge", "DEL", container, &config, "").done();
        }
        let answer = host.command("tortie-ipam", "CHECK", first, &check, "");
        assert_eq!(answer.refused().0, 104, "{answer:?}");
        assert_eq!(host.traces(), Vec::<String>::new());
    });
}

#[test]
fn lengths_gateways_and_routes_are_what_the_configuration_says() {
    Host::without_agent(|host| {
        let container = Container::new();
        let ask = |plugin: &str, ipam: Value| {
            // A main plugin that adds no route to its network on this host.
            let mut config = bridge(host, ipam);
            config["type"] = json!("macvlan");
            let result = host.command(plugin, "ADD", &container, &config, "").done();
            host.command(plugin, "DEL", &container, &config, "").done();
            result
        };
        // The bridge's route to a network wider than a block has lower priority than the block's blackhole.
        for ipam in [
            json!({"subnet": "10.65.5.0/24"}),
            json!({"ranges": [[{"subnet": "10.65.0.0/16"}]]}),
            json!({"ranges": [[{"subnet": "10.65.6.0/25"}]]}),
            json!({"prefix_length": 16, "gateway": "10.65.0.1"}),
        ] {
            let answer = host.command("tortie-ipam", "ADD", &container, &bridge(host, ipam.clone()), "");
            let (code, text) = answer.refused();
            assert!(code == 7 && text.contains("blackhole"), "{ipam}: {code} {text}");
        }
        for ipam in [json!({"ranges": [[{"subnet": "10.65.6.0/27"}]]}), json!({})] {
            let config = bridge(host, ipam);
            host.command("tortie-ipam", "ADD", &container, &config, "").done();
            host.command("tortie-ipam", "DEL", &container, &config, "").done();
        }
        let ip = |result: &Value| {
            let ip = &result["ips"][0];
            (ip["address"].as_str().unwrap().to_owned(), ip["gateway"].as_str().map(str::to_owned))
        };
        let some = |text: &str| Some(text.to_owned());
        let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.65.5.254"}]);
        let result =
            ask("tortie-ipam", json!({"subnet": "10.65.5.0/24", "gateway": "10.65.5.254", "routes": routes}));
        let (address, gateway) = ip(&result);
        assert!(address.starts_with("10.65.5.") && address.ends_with("/24"), "{address}");
        assert!(!["10.65.5.0/24", "10.65.5.255/24", "10.65.5.254/24"].contains(&address.as_str()));
        assert_eq!((gateway, &result["routes"]), (some("10.65.5.254"), &routes));
        assert!(result.get("interfaces").is_none());
        let result = ask(
            "tortie-ipam",
            json!({"ranges": [[{"subnet": "10.65.6.0/25", "gateway": "10.65.6.1", "rangeStart": "10.65.6.7"}]]}),
        );
        assert_eq!(ip(&result), ("10.65.6.7/25".to_owned(), some("10.65.6.1")));
        let result = ask("tortie-ipam", json!({"prefix_length": 16, "gateway": "10.65.0.1"}));
        assert!(ip(&result).0.ends_with("/16") && ip(&result).1 == some("10.65.0.1"), "{result}");
        let result = ask("tortie-ipam", json!({"prefix_length": 32}));
        assert!(ip(&result).0.ends_with("/32") && ip(&result).1.is_none(), "{result}");
        let result = ask("calico-ipam", json!({"assign_ipv4": "false", "assign_ipv6": "true"}));
        assert!(ip(&result).0.ends_with("/128") && ip(&result).1.is_none(), "{result}");
        let result = ask("tortie-ipam", json!({"assign_ipv4": "false", "assign_ipv6": "true"}));
        assert!(ip(&result).0.ends_with("/122") && ip(&result).1.unwrap().ends_with('1'), "{result}");
    });
}
