//! Plugin chains: interfaces of earlier plugins, later plugins, other IPAM plugins.

use serde_json::{Value, json};

use crate::cni::rig::{Container, Host, addr, has_reference, reaches};
use crate::common::netns::ip;

fn endpoint(host: &Host, container: &Container) -> Value {
    let key = format!("/calico/v1/host/h1/workload/cni/{}/endpoint/eth0", container.id());
    let keys = host.keys();
    serde_json::from_str(keys[&key].as_str().unwrap()).unwrap()
}

fn host_local(host: &Host, subnet: &str) -> Value {
    json!({"type": "host-local", "subnet": subnet, "dataDir": host.path("host-local"), "routes": [{"dst": "0.0.0.0/0"}]})
}

/// Returns every address that host-local has allocated.
fn reserved(host: &Host) -> Vec<String> {
    let Ok(dir) = std::fs::read_dir(host.path("host-local/net")) else { return Vec::new() };
    let names = dir.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
}

#[test]
fn behind_a_plugin_that_made_an_interface_that_one_is_the_endpoint() {
    if !has_reference() {
        return;
    }
    Host::with_agent(|host| {
        for main in ["bridge", "ptp"] {
            let container = Container::new();
            let first = json!({
                "cniVersion": "1.0.0", "name": "net", "type": main, "bridge": "refbr0", "isGateway": true,
                "ipam": host_local(host, "10.65.3.0/24")
            });
            let earlier = host.command(main, "ADD", &container, &first, "").done();
            let config = host.config(json!({ "prevResult": earlier }));
            let result = host.add(&container, &config);
            assert_eq!(result["ips"], earlier["ips"], "passed through");
            let addr = addr(&result);
            let interface = format!("cali{}", &container.id()[..11]);
            let endpoint = endpoint(host, &container);
            assert_eq!(endpoint["name"], interface);
            assert_eq!(endpoint["ipv4_nets"], json!([format!("{addr}/32")]));
            let names: Vec<&Value> =
                result["interfaces"].as_array().unwrap().iter().map(|interface| &interface["name"]).collect();
            assert!(names.contains(&&json!(interface)), "{result}");
            assert!(ip(&format!("route get {addr}")).contains(&interface));
            assert!(reaches(&addr), "{main}: {}", ip("route"));
            let check = host.config(json!({ "prevResult": result }));
            host.command("tortie-cni", "CHECK", &container, &check, "").done();
            // IPAM allocated nothing, so it holds nothing.
            assert!(!host.keys().keys().any(|key| key.contains("/handle/")), "{main}");
            // In reverse order: the first plugin removes the interface.
            host.del(&container, &check);
            assert!(container.ip("link").contains("eth0"), "{main}");
            host.command(main, "DEL", &container, &first, "").done();
            assert!(!container.ip("link").contains("eth0"), "{main}");
            assert_eq!(host.traces(), Vec::<String>::new());
            assert_eq!(reserved(host), Vec::<String>::new());
        }
    });
}

#[test]
fn a_tap_device_of_an_earlier_plugin_is_the_endpoint() {
    Host::with_agent(|host| {
        let container = Container::new();
        ip("tuntap add dev vmtap0 mode tap");
        let earlier =
            json!({"cniVersion": "1.0.0", "interfaces": [{"name": "vmtap0", "mac": "c2:11:22:33:44:01"}]});
        let config = host.config(json!({ "prevResult": earlier }));
        let result = host.add(&container, &config);
        let interface = format!("cali{}", &container.id()[..11]);
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 1);
        assert_eq!(result["interfaces"][0]["name"], interface);
        assert_eq!(result["ips"][0]["interface"], 0);
        assert_eq!(endpoint(host, &container)["name"], interface);
        assert!(ip(&format!("route show {}", addr(&result))).contains(&interface));
        assert!(!container.ip("link").contains("eth0"), "nothing is made for it");
        host.del(&container, &config);
        // The tap device belongs to the first plugin, under the name that it chose.
        ip("link show vmtap0");
        assert!(!ip("link show").contains(&interface));
        assert_eq!(
            host.keys().keys().filter(|key| key.contains("/workload/") || key.contains("/handle/")).count(),
            0
        );
        // Two interfaces are ambiguous.
        ip("tuntap add dev vmtap1 mode tap");
        ip("tuntap add dev vmtap2 mode tap");
        let earlier = json!({"interfaces": [{"name": "vmtap1"}, {"name": "vmtap2"}]});
        let answer =
            host.command("tortie-cni", "ADD", &container, &host.config(json!({ "prevResult": earlier })), "");
        let (code, text) = answer.refused();
        assert!(code == 7 && text.contains("vmtap1, vmtap2"), "{code} {text}");
        // An interface without an end on this host.
        container.ip("link add eth0 type veth peer name other0");
        let earlier = json!({"interfaces": [{"name": "eth0", "sandbox": container.netns()}]});
        let answer =
            host.command("tortie-cni", "ADD", &container, &host.config(json!({ "prevResult": earlier })), "");
        assert_eq!(answer.refused().0, 7, "{answer:?}");
    });
}

#[test]
fn addresses_of_another_ipam_plugin_and_plugins_behind_ours() {
    if !has_reference() {
        return;
    }
    Host::with_agent(|host| {
        let container = Container::new();
        let config = host.config(json!({ "ipam": host_local(host, "10.65.4.0/24") }));
        let result = host.add(&container, &config);
        let addr = addr(&result);
        assert!(
            addr.starts_with("10.65.4.") && result["ips"][0]["address"].as_str().unwrap().ends_with("/32")
        );
        assert_eq!(reserved(host), std::slice::from_ref(&addr));
        assert!(reaches(&addr));
        // A later plugin changes the MAC address; the check still passes.
        let tuning = json!({"cniVersion": "1.0.0", "name": "net", "type": "tuning", "mac": "c2:99:22:33:44:55", "prevResult": result});
        let tuned = host.command("tuning", "ADD", &container, &tuning, "").done();
        let check = host.config(json!({ "ipam": host_local(host, "10.65.4.0/24"), "prevResult": tuned }));
        host.command("tortie-cni", "CHECK", &container, &check, "").done();
        host.del(&container, &check);
        assert_eq!((reserved(host), host.traces()), (Vec::new(), Vec::<String>::new()));
        // After a failure, the addresses are released by the plugin that allocated them.
        container.ip("link add eth0 type veth peer name other0");
        let answer = host.command("tortie-cni", "ADD", &container, &config, "");
        assert!(answer.refused().1.contains("eth0"), "{answer:?}");
        assert_eq!(reserved(host), Vec::<String>::new());
        // The other plugin's error is passed on.
        let full = host.config(
            json!({"ipam": {"type": "host-local", "subnet": "nonsense", "dataDir": host.path("host-local")}}),
        );
        container.ip("link del eth0");
        let answer = host.command("tortie-cni", "ADD", &container, &full, "");
        assert!(answer.refused().1.contains("IPAM plugin host-local: "), "{answer:?}");
    });
}
