//! What is special about a Calico 3 store: names, attributes, named pools, and refusals. What both data models
//! have in common is tested in both by the other files.

use serde_json::{Value, json};
use tortie_config::Dialect;

use crate::cni::rig::{Container, Host, POOL, addr};
use crate::common::calico3;
use crate::common::netns::in_netns;

const POD: &str = "K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0";

fn value(host: &Host, key: &str) -> Value {
    let keys = host.keys();
    let text = keys.get(key).unwrap_or_else(|| panic!("no {key}: {:?}", keys.keys()));
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

/// Returns the attributes of an address in the host's block.
fn attributes(host: &Host, addr: &str) -> Value {
    let keys = host.keys();
    let block = keys.iter().find(|(key, _)| key.contains("/assignment/ipv4/")).unwrap().1;
    let block: Value = serde_json::from_str(block.as_str().unwrap()).unwrap();
    let base: std::net::Ipv4Addr =
        block["cidr"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
    let addr: std::net::Ipv4Addr = addr.parse().unwrap();
    let ordinal = usize::try_from(u32::from(addr) - u32::from(base)).unwrap();
    let index = usize::try_from(block["allocations"][ordinal].as_u64().unwrap()).unwrap();
    assert!(block["sequenceNumber"].as_u64().is_some(), "{block}");
    block["attributes"][index].clone()
}

/// A pod is restarted with a new sandbox, on the store of the caller.
fn a_pod_with_members_of_others(host: &mut Host) {
    let (old, new) = (Container::new(), Container::new());
    let config = host.config(json!({"name": "Prod_Net"}));
    let call = |command: &str, container: &Container, config: &Value| {
        host.command("tortie-cni", command, container, config, POD).done()
    };
    let given = addr(&call("ADD", &old, &config));
    let key = host.endpoint_key("k8s", "prod.web-0", "eth0");
    // Names by the rule of Calico's upgrade: the first octets of the SHA-1 of the old names.
    let (own, open) = ("prod-net-f71296f4", "pods.prod-net-9189cf76");
    assert_eq!(value(host, &key)["spec"]["profiles"], json!([own, open]));
    assert_eq!(value(host, &calico3::key("Profile", own))["spec"]["labelsToApply"], json!({own: ""}));
    assert!(value(host, &calico3::key("Profile", open))["spec"].get("labelsToApply").is_none());
    let held = attributes(host, &given);
    assert_eq!(held["handle_id"], format!("Prod_Net.{}", old.id()));
    let secondary = &held["secondary"];
    for (name, wanted) in [("node", "h1"), ("namespace", "prod"), ("pod", "web-0")] {
        assert_eq!(secondary[name], wanted);
    }
    assert!(secondary["timestamp"].as_str().unwrap().ends_with(" +0000 UTC"), "{secondary}");

    let mut edited = value(host, &key);
    edited["metadata"]["annotations"] = json!({"example.org/owner": "shop"});
    edited["spec"]["qosControls"] = json!({"ingressBandwidth": 1_000_000});
    edited["spec"]["future"] = json!([1.5]);
    host.put(&key, &edited.to_string());
    let result = call("ADD", &new, &config);
    call("DEL", &old, &config);
    let after = value(host, &key);
    edited["spec"]["containerID"] = json!(new.id());
    edited["spec"]["ipNetworks"] = json!([format!("{}/32", addr(&result))]);
    for member in ["mac", "interfaceName"] {
        edited["spec"][member] = after["spec"][member].clone();
    }
    assert_eq!(after, edited, "only what belongs to the sandbox has changed");
    let mut with_result = config.clone();
    with_result["prevResult"] = result;
    call("CHECK", &new, &with_result);
    // By another plugin's hand: the endpoint is of a third sandbox now.
    edited["spec"]["containerID"] = json!("other");
    host.put(&key, &edited.to_string());
    call("DEL", &new, &config);
    assert_eq!(value(host, &key)["spec"]["containerID"], "other");
    host.rm(&key);
    call("DEL", &new, &config);
    assert_eq!(host.traces(), Vec::<String>::new());
}

#[test]
fn a_pod_keeps_what_others_added_to_its_object() {
    in_netns(|| Host::on_store(Dialect::V3, None, a_pod_with_members_of_others));
}

#[cfg(feature = "etcd")]
#[test]
fn a_pod_keeps_what_others_added_to_its_object_in_etcd() {
    use crate::common::etcd::{Cluster, Security};
    in_netns(|| {
        let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
        Host::on_store(Dialect::V3, Some(cluster.url()), a_pod_with_members_of_others);
    });
}

#[test]
fn pools_are_named_by_their_objects_and_serve_who_names_them() {
    in_netns(|| {
        Host::on_store(Dialect::V3, None, |host| {
            let spec = json!({"cidr": "10.99.0.0/24", "nodeSelector": "rack == 'b'"});
            host.put(&calico3::key("IPPool", "rack-b"), &calico3::object("IPPool", "rack-b", &spec));
            let container = Container::new();
            let add = |pools: Value| {
                let config = host.config(json!({"ipam": {"type": "calico-ipam", "ipv4_pools": pools}}));
                host.command("tortie-cni", "ADD", &container, &config, "")
            };
            let answer = add(json!(["rack-c"]));
            let (code, text) = answer.refused();
            assert!(
                code == 7 && text.contains("ipam.ipv4_pools[0]") && text.contains("rack-b"),
                "{code} {text}"
            );
            // A requested pool need not select the node.
            let result = add(json!(["rack-b"])).done();
            assert!(addr(&result).starts_with("10.99.0."), "{result}");
            host.del(&container, &host.config(json!({})));
            let result = add(json!([POOL])).done();
            assert!(addr(&result).starts_with("10.65."), "{result}");
            host.del(&container, &host.config(json!({})));
            assert_eq!(host.traces(), Vec::<String>::new());
        });
    });
}

#[test]
fn what_calico_3_has_no_form_for_is_refused_and_removed_without_an_error() {
    in_netns(|| {
        Host::on_store(Dialect::V3, None, |host| {
            let container = Container::new();
            let config = host.config(json!({}));
            let netns = container.netns();
            let call = |command: &str, id: &str, config: &Value| {
                let env = [
                    ("CNI_COMMAND", command),
                    ("CNI_CONTAINERID", id),
                    ("CNI_NETNS", netns.as_str()),
                    ("CNI_IFNAME", "eth0"),
                ];
                host.call("tortie-cni", &env, config.to_string().as_bytes())
            };
            let answer = call("ADD", "My_App", &config);
            let (code, text) = answer.refused();
            assert!(code == 7 && text.contains("My_App") && text.contains("DNS name"), "{code} {text}");
            call("DEL", "My_App", &config).done();
            let labels = json!({"cni": {"labels": [{"key": "a", "value": "b c"}]}});
            let answer = call("ADD", "web", &host.config(json!({ "args": labels })));
            assert!(answer.refused().1.contains("a=b c"), "{answer:?}");
            assert_eq!(host.traces(), Vec::<String>::new());

            // Frozen: neither ADD nor DEL, as for Calico's plugin.
            call("ADD", "web", &config).done();
            host.ready(false);
            for command in ["ADD", "DEL"] {
                let answer = call(command, "web", &config);
                let (code, text) = answer.refused();
                assert!(code == 11 || command == "ADD", "{code} {text}");
            }
            let answer = host.command("tortie-ipam", "DEL", &container, &config, "");
            let (code, text) = answer.refused();
            assert!(code == 11 && text.contains("datastoreReady"), "{code} {text}");
            host.rm(&calico3::key("ClusterInformation", "default"));
            let answer = call("DEL", "web", &config);
            assert!(answer.refused().1.contains("ClusterInformation default"), "{answer:?}");
            host.ready(true);
            call("DEL", "web", &config).done();

            // The agent has not registered the host yet.
            host.rm(&calico3::key("Node", "h1"));
            let answer = call("ADD", "web", &config);
            let (code, text) = answer.refused();
            assert!(code == 11 && text.contains("Node"), "{code} {text}");
            assert_eq!(host.traces(), Vec::<String>::new());
        });
    });
}
