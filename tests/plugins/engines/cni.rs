//! Common parts of CNI runtimes: plugin folders and configuration lists.

use serde_json::{Value, json};

use crate::common::hosts::TORTIE;
use crate::engines::site::{ETCD, HOSTS, STORE, Site};

/// Folder of the plugins, the only one that containerd searches.
pub(crate) const PLUGINS: &str = "/opt/cni/bin";
/// Path of the configuration.
pub(crate) const CONFIG: &str = "/etc/cni/net.d/10-lab.conflist";
/// Name of the network.
pub(crate) const NETWORK: &str = "lab";

/// Installs the reference plugins and Tortie's in one folder.
pub(crate) fn install(site: &Site, host: usize) {
    let bridge = Site::peer("cni/bridge");
    let reference = bridge.strip_suffix("/bridge").unwrap();
    site.sh(host, &format!("mkdir -p {PLUGINS}; ln -sf {reference}/* {PLUGINS}; for name in tortie-cni tortie-ipam; do ln -sf {TORTIE} {PLUGINS}/$name; done"));
}

/// Writes a configuration list with these plugins as the only one.
pub(crate) fn configure(site: &Site, host: usize, plugins: &Value) {
    let list = json!({"cniVersion": "0.4.0", "name": NETWORK, "plugins": plugins});
    site.write(host, CONFIG, &format!("{list:#}"));
}

/// Configures the reference bridge with host-local, and routes between the hosts.
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

/// Returns a configuration of `tortie-cni` with additional fields.
pub(crate) fn ours(host: usize, more: Value) -> Value {
    let mut plugin = json!({"type": "tortie-cni", "datastore": STORE, "node": format!("host{host}")});
    plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    plugin
}

/// Sends the GC of a CNI 1.1 runtime without running containers, which removes leftovers.
pub(crate) fn collect(site: &Site, host: usize) {
    let more = json!({"cniVersion": "1.1.0", "name": NETWORK, "cni.dev/valid-attachments": []});
    let config = ours(host, more);
    site.sh(host, &format!("echo '{config}' | CNI_COMMAND=GC CNI_PATH={PLUGINS} {PLUGINS}/tortie-cni"));
}

/// Configures only `tortie-cni`, with both families on etcd.
pub(crate) fn dual(site: &Site) {
    let more = json!({"datastore": ETCD, "ipam": {"type": "tortie-ipam", "assign_ipv6": true}});
    for host in HOSTS {
        install(site, host);
        configure(site, host, &json!([ours(host, more.clone())]));
    }
}

/// Configures only `tortie-cni` on every host, with ports and rates if the runtime supports them.
pub(crate) fn only_ours(site: &Site) {
    let capabilities = json!({"capabilities": {"portMappings": true, "bandwidth": true}});
    for host in HOSTS {
        install(site, host);
        configure(site, host, &json!([ours(host, capabilities.clone())]));
    }
}
