//! Tests of parsing a plugin's configuration, and of the addresses and names that result from it.

use serde_json::{Value, json};

use super::super::*;
use crate::plugins::attach::{AgentAbsent, ProfileChoice};
use tortie_config::key::{EndpointKey, IpFamily, Key};
use tortie_engine::ipam::AddressRequest;
use tortie_store::StoreOptions;

fn parse(value: &Value) -> Result<Config, CniError> {
    Config::parse(value.to_string().as_bytes(), Strictness::Refuse, &[]).map_err(|(_, error)| error)
}

fn net(more: Value) -> Result<Config, CniError> {
    let mut value = json!({"cniVersion": "1.0.0", "name": "net", "type": "tortie-cni"});
    for (key, more) in more.as_object().unwrap() {
        value[key] = more.clone();
    }
    parse(&value)
}

#[test]
fn input_that_is_no_configuration_is_code_6_or_7() {
    for (bytes, code) in [
        (&b""[..], code::DECODE),
        (b"  \n", code::DECODE),
        (b"{\"name\": \"net\"", code::DECODE),
        (b"[1]", code::DECODE),
        (b"\xff\xfe", code::DECODE),
        (b"{}", code::CONFIG),
        (b"{\"name\": \"\"}", code::CONFIG),
        (b"{\"name\": \"../etc\"}", code::CONFIG),
        (b"{\"name\": 5}", code::CONFIG),
        (b"{\"name\": \"net\", \"cniVersion\": \"3.0\"}", code::VERSION),
    ] {
        let (_, error) = Config::parse(bytes, Strictness::Refuse, &[]).unwrap_err();
        assert_eq!(error.code, code, "{bytes:?}: {error}");
    }
    let deep = "[".repeat(100_000);
    let (_, error) = Config::parse(deep.as_bytes(), Strictness::Lenient, &[]).unwrap_err();
    assert_eq!(error.code, code::DECODE);
}

#[test]
fn wrong_types_name_the_field() {
    for (more, field) in [
        (json!({"type": 5}), "type"),
        (json!({"mtu": "1400"}), "mtu"),
        (json!({"mtu": 70000}), "mtu"),
        (json!({"ipam": "host-local"}), "ipam"),
        (json!({"ipam": {"type": 1}}), "ipam.type"),
        (json!({"ipam": {"type": "../../bin/sh"}}), "ipam.type"),
        (json!({"ipam": {"assign_ipv4": "yes"}}), "ipam.assign_ipv4"),
        (json!({"ipam": {"ipv4_pools": "10.0.0.0/8"}}), "ipam.ipv4_pools"),
        (json!({"ipam": {"ipv4_pools": ["fd00::/64"]}}), "ipam.ipv4_pools[0]"),
        (json!({"ipam": {"ipv6_pools": ["10.0.0.0/8"]}}), "ipam.ipv6_pools[0]"),
        (json!({"ipam": {"subnet": "usePodCidr"}}), "ipam.subnet"),
        (json!({"ipam": {"prefix_length": 33}}), "ipam.prefix_length"),
        (json!({"ipam": {"gateway": ["10.0.0.1", "10.0.0.2"]}}), "ipam.gateway"),
        (json!({"ipam": {"routes": [{"dst": "x"}]}}), "ipam.routes[0].dst"),
        (json!({"agentAbsent": "maybe"}), "agentAbsent"),
        (json!({"policy": "k8s"}), "policy"),
        (json!({"datastore_type": "kubernetes"}), "datastore_type"),
        (json!({"datastore": "mysql://x"}), "datastore URL"),
        (json!({"etcd_endpoints": "http://a:1,https://b:2"}), "etcd_endpoints"),
        (json!({"etcd_endpoints": "http://a"}), "no port"),
        (json!({"log_level": "loud"}), "log_level"),
        (json!({"log_file_path": "cni.log"}), "log"),
        (json!({"dns": []}), "dns"),
        (json!({"prevResult": {"ips": 5}}), "prevResult.ips"),
        (json!({"cni.dev/valid-attachments": [{"containerID": "a"}]}), "ifname"),
        (json!({"cni.dev/valid-attachments": 5}), "cni.dev/valid-attachments"),
    ] {
        let error = net(more.clone()).unwrap_err();
        assert_eq!(error.code, code::CONFIG, "{more}: {error}");
        assert!(error.msg.contains(field), "{more}: {error}");
    }
    assert_eq!(net(json!({"ipMasq": true})).unwrap_err().code, code::FIELD);
    assert!(net(json!({"ipMasq": false})).is_ok());
}

#[test]
fn calicos_fields_are_read() {
    // Configurations that Calico's installers for Kubernetes and Mesos wrote.
    let calico = json!({
        "name": "k8s-pod-network",
        "cniVersion": "0.1.0",
        "type": "calico",
        "etcd_endpoints": "https://10.96.232.136:6666,https://10.96.232.137:6666/",
        "etcd_key_file": "/calico-secrets/etcd-key",
        "etcd_cert_file": "/calico-secrets/etcd-cert",
        "etcd_ca_cert_file": "/calico-secrets/etcd-ca",
        "log_level": "info",
        "log_file_path": "/var/log/calico/cni/cni.log",
        "mtu": 1440,
        "hostname": "a",
        "nodename": "b",
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true", "ipv4_pools": ["10.65.0.0/16"], "handle": "x"},
        "policy": {"type": "k8s", "k8s_api_root": "https://10.96.0.1:443", "k8s_auth_token": "t"},
        "kubernetes": {"kubeconfig": "/etc/kubernetes/kubeconfig"}
    });
    let config = parse(&calico).unwrap();
    assert_eq!(config.node.as_deref(), Some("b"));
    assert_eq!(config.mtu, Some(1440));
    assert!(config.namespace_profiles);
    assert!(config.ipam.ipv4 && config.ipam.ipv6 && config.ipam.foreign.is_none());
    assert_eq!(config.log.target, LogTarget::File("/var/log/calico/cni/cni.log".into()));
    let options = store_options(config.datastore.as_ref(), |_| panic!("the configuration says it")).unwrap();
    assert_eq!(options.url, "etcds://10.96.232.136:6666,10.96.232.137:6666");
    assert_eq!(options.etcd_key, Some("/calico-secrets/etcd-key".into()));
    let args = EnvArgs::parse("K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0").unwrap();
    let wants: Vec<AddressRequest> = address_requests(&config, &args, &PoolNames::default())
        .unwrap()
        .into_iter()
        .map(|request| request.want)
        .collect();
    let any = |family, pools: &[&str]| AddressRequest::Any {
        family,
        count: 1,
        pools: pools.iter().map(|pool| pool.parse().unwrap()).collect(),
    };
    assert_eq!(wants, [any(IpFamily::V4, &["10.65.0.0/16"]), any(IpFamily::V6, &[])]);
    let mesos = json!({"name": "m", "type": "calico", "etcd_authority": "10.0.0.1:2379", "hostname": "a", "etcd_key_file": "/k"});
    let config = parse(&mesos).unwrap();
    let options = store_options(config.datastore.as_ref(), |_| None).unwrap();
    let expected =
        StoreOptions { url: "etcd://10.0.0.1:2379".into(), create: false, ..StoreOptions::default() };
    assert_eq!((options, config.node.as_deref()), (expected, Some("a")));
}

#[test]
fn the_store_is_the_configurations_then_the_environments_then_the_default() {
    let env = |name: &str| (name == "TORTIE_DATASTORE").then(|| "etcd://env:1".into());
    let url = |more: Value| store_options(net(more).unwrap().datastore.as_ref(), env).unwrap().url;
    assert_eq!(url(json!({"datastore": "sqlite:/a.db", "etcd_endpoints": "http://x:1"})), "sqlite:/a.db");
    assert_eq!(url(json!({"etcd_endpoints": "http://x:1", "etcd_authority": "y:2"})), "etcd://x:1");
    assert_eq!(url(json!({"etcd_authority": "y:2", "etcd_scheme": "https"})), "etcds://y:2");
    assert_eq!(url(json!({})), "etcd://env:1");
    let calico = |name: &str| (name == "ETCD_ENDPOINTS").then(|| "http://calico:1".into());
    assert_eq!(store_options(None, calico).unwrap().url, "etcd://calico:1");
    let both = |name: &str| env(name).or_else(|| calico(name));
    assert_eq!(store_options(None, both).unwrap().url, "etcd://env:1");
    assert!(store_options(None, |name| (name == "DATASTORE_TYPE").then(|| "kubernetes".into())).is_err());
    let none = store_options(None, |_| None).unwrap();
    assert_eq!((none.url.as_str(), none.create), (tortie_store::DEFAULT_URL, false));
}

#[test]
fn defaults() {
    let config = net(json!({})).unwrap();
    assert_eq!(
        (config.agent_absent, config.mtu, config.interface_prefix.as_str()),
        (AgentAbsent::Error, None, "cali")
    );
    assert!(config.ipam.ipv4 && !config.ipam.ipv6);
    assert_eq!(config.log.target, LogTarget::Syslog);
    assert_eq!(net(json!({"mtu": 0})).unwrap().mtu, None);
    let none = net(json!({"ipam": {"assign_ipv4": false}})).unwrap();
    assert_eq!(
        address_requests(&none, &EnvArgs::default(), &PoolNames::default()).unwrap_err().code,
        code::CONFIG
    );
    // A part of a pool, and an address outside of it.
    let part = net(json!({"ipam": {"subnet": "10.65.1.0/24", "gateway": "10.65.1.254"}})).unwrap();
    let [request] = &address_requests(&part, &EnvArgs::default(), &PoolNames::default()).unwrap()[..] else {
        panic!()
    };
    let AddressRequest::OneOf(ranges) = &request.want else { panic!() };
    assert_eq!(ranges[0].except, ["10.65.1.254".parse::<std::net::IpAddr>().unwrap()]);
    let args = EnvArgs::parse("IP=10.65.2.1").unwrap();
    assert!(address_requests(&part, &args, &PoolNames::default()).unwrap_err().msg.contains("10.65.1.0/24"));
    // The fields of another IPAM plugin are not checked.
    let foreign = net(json!({"ipam": {"type": "host-local", "subnet": 5, "x": {}}})).unwrap();
    assert_eq!(foreign.ipam.foreign.as_deref(), Some("host-local"));
}

#[test]
fn identities_are_calicos() {
    let identity = |more: Value, args: &str, id: &str, ifname: &str| {
        let args = EnvArgs::parse(args).unwrap();
        Identity::new(&net(more).unwrap(), &args, "h1", id, ifname).unwrap()
    };
    let key = |identity: &Identity| Key::Endpoint(identity.key.clone()).to_string();
    let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let cni = identity(json!({}), "K8S_POD_NAME=podman-name", id, "eth0");
    assert_eq!(key(&cni), format!("/calico/v1/host/h1/workload/cni/{id}/endpoint/eth0"));
    assert_eq!(
        (cni.handle.as_str(), cni.host_ifname.as_str()),
        (format!("net.{id}").as_str(), "cali0123456789a")
    );
    assert_eq!(cni.profile, ProfileChoice::Create("net".into()));
    assert_eq!(cni.pod, None);
    let pod = "K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0";
    let k8s = identity(json!({}), pod, id, "eth0");
    assert!(
        matches!(&k8s.key, EndpointKey::Workload { orchestrator, workload, .. } if orchestrator == "k8s" && workload == "prod.web-0")
    );
    assert_eq!(k8s.profile, ProfileChoice::CreateOpen("net".into()));
    assert_eq!(k8s.labels.get("calico/k8s_ns").map(String::as_str), Some("prod"));
    let attributes = k8s.attributes("h1", "now");
    assert_eq!(
        Value::Object(attributes),
        json!({"node": "h1", "timestamp": "now", "namespace": "prod", "pod": "web-0"})
    );
    let policy = identity(json!({"policy": {"type": "k8s"}}), pod, id, "eth0");
    assert_eq!(policy.profile, ProfileChoice::Use("k8s_ns.prod".into()));
    // Every interface of a container has its own handle and its own interface on the host.
    let second = identity(json!({}), "", id, "eth1");
    assert_eq!(second.handle, format!("net.{id}.eth1"));
    assert_ne!(second.host_ifname, cni.host_ifname);
    assert!(second.old_handles.contains(&format!("net.{id}")));
    // Ids with the same first characters give different interface names.
    let [a, b] = ["default-web1", "default-web2"].map(|id| identity(json!({}), "", id, "eth0").host_ifname);
    assert_ne!(a, b);
    let long = Identity::new(
        &net(json!({"interface_prefix": "tortoise"})).unwrap(),
        &EnvArgs::default(),
        "h1",
        "c",
        "eth0",
    );
    assert_eq!(long.unwrap_err().code, code::CONFIG);
}

#[test]
fn below_another_main_plugin_its_fields_are_its_own() {
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "mtu": "x", "vlanTrunk": [{"id": 1}],
        "runtimeConfig": {"ips": ["10.65.0.9"], "mac": 5, "aliases": {}, "portMappings": "x"},
        "ipam": {"type": "tortie-ipam", "datastore": "etcd://a:1", "node": "h7", "log": "none", "prefix_length": 24}
    });
    let config = Config::parse(bridge.to_string().as_bytes(), Strictness::Ipam, &[]).unwrap();
    assert_eq!(config.runtime.ips.len(), 1);
    assert_eq!((config.node.as_deref(), config.log.target), (Some("h7"), LogTarget::Nowhere));
    assert_eq!(config.datastore.unwrap().url, "etcd://a:1");
    assert!(config.notes.is_empty(), "{:?}", config.notes);
    let mut wrong = bridge;
    wrong["runtimeConfig"]["ips"] = json!(["x"]);
    assert!(Config::parse(wrong.to_string().as_bytes(), Strictness::Ipam, &[]).is_err());
}
