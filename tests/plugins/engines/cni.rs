//! What runtimes that use CNI have in common: folders of plugins, and configuration lists.

use serde_json::{Value, json};

use crate::common::hosts::TORTIE;
use crate::engines::site::{ETCD, HOSTS, STORE, Site};

/// Where the plugins are; containerd looks nowhere else.
pub(crate) const PLUGINS: &str = "/opt/cni/bin";
/// Where the configuration is.
pub(crate) const CONFIG: &str = "/etc/cni/net.d/10-lab.conflist";
/// The name of the network.
pub(crate) const NETWORK: &str = "lab";

/// The reference plugins and ours in one folder.
pub(crate) fn install(site: &Site, host: usize) {
    let bridge = Site::peer("cni/bridge");
    let reference = bridge.strip_suffix("/bridge").unwrap();
    site.sh(host, &format!("mkdir -p {PLUGINS}; ln -sf {reference}/* {PLUGINS}; for name in tortie-cni tortie-ipam; do ln -sf {TORTIE} {PLUGINS}/$name; done"));
}

/// Writes a configuration list of these plugins, as the only one.
pub(crate) fn configure(site: &Site, host: usize, plugins: &Value) {
    let list = json!({"cniVersion": "0.4.0", "name": NETWORK, "plugins": plugins});
    site.write(host, CONFIG, &format!("{list:#}"));
}

/// The reference bridge with host-local, and routes between the hosts.
pub(crate) fn reference(site: &Site) {
    for host in HOSTS {
        install(site, host);
        let ipam = json!({"type": "host-local", "subnet": format!("10.9.{host}.0/24"), "routes": [{"dst": "0.0.0.0/0"}]});
        configure(
            site,
            host,
            &json!([{"type": "bridge", "bridge": "ref0", "isGateway": true, "ipam": ipam}]),
        );
        let other = 3 - host;
        site.sh(host, &format!("ip route add 10.9.{other}.0/24 via 172.30.0.{other}"));
    }
}

/// Our plugin as configurations have it, with more fields.
pub(crate) fn ours(host: usize, more: Value) -> Value {
    let mut plugin = json!({"type": "tortie-cni", "datastore": STORE, "node": format!("host{host}")});
    plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    plugin
}

/// What a runtime of CNI 1.1 says when no container runs: whatever others left behind goes.
pub(crate) fn collect(site: &Site, host: usize) {
    let more = json!({"cniVersion": "1.1.0", "name": NETWORK, "cni.dev/valid-attachments": []});
    let config = ours(host, more);
    site.sh(host, &format!("echo '{config}' | CNI_COMMAND=GC CNI_PATH={PLUGINS} {PLUGINS}/tortie-cni"));
}

/// Our plugin alone with both families on etcd.
pub(crate) fn dual(site: &Site) {
    let more = json!({"datastore": ETCD, "ipam": {"type": "tortie-ipam", "assign_ipv6": true}});
    for host in HOSTS {
        install(site, host);
        configure(site, host, &json!([ours(host, more.clone())]));
    }
}

/// Our plugin alone on every host, with ports and rates when a runtime has them.
pub(crate) fn only_ours(site: &Site) {
    let capabilities = json!({"capabilities": {"portMappings": true, "bandwidth": true}});
    for host in HOSTS {
        install(site, host);
        configure(site, host, &json!([ours(host, capabilities.clone())]));
    }
}
