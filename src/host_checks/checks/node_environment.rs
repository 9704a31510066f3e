//! Check of calico-node's environment: what it configures for BGP, addresses and the name of this host, where
//! that differs from the store. Tortie reads the store only.

use tortie_config::resource::NodeMesh;

use crate::api::codes;
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;

/// AS number of hosts without one of their own.
const AS: &str = "64512";

/// Reports the variables that the store contradicts.
pub(in crate::host_checks) fn differences(host: &Host<'_>, results: &mut Results) {
    let found = &host.now.migration.node_environment;
    let Some(Ok(store)) = &host.now.migration.store else { return };
    let node = host.now.migration.node.as_str();
    let variable = |name: &str| found.get(name).map(String::as_str).filter(|value| !value.is_empty());
    let value = |key: &str| {
        let entry = store.entries.iter().find(|entry| entry.key == key)?;
        Some(String::from_utf8_lossy(&entry.value).into_owned()).filter(|value| !value.is_empty())
    };
    let of_host = |field: &str| value(&format!("/calico/bgp/v1/host/{node}/{field}"));
    let mut warn = |text: String, fix: String| results.warn(&codes::CHECK_NODE_ENVIRONMENT, text, fix);

    if let Some(name) = variable("NODENAME").filter(|name| *name != node) {
        let text = format!("calico-node runs with NODENAME={name}, and this command is about {node}");
        warn(text, format!("give --node {name} (env TORTIE_NODE)"));
    }
    if let Some(backend) = variable("CALICO_NETWORKING_BACKEND").filter(|b| matches!(*b, "vxlan" | "none")) {
        let mesh = value("/calico/bgp/v1/global/node_mesh").map(|text| NodeMesh::parse(text.as_bytes()));
        let is_meshed = mesh.and_then(Result::ok).unwrap_or_default().enabled;
        let has_peers = store.entries.iter().any(|entry| {
            let key = entry.key.strip_prefix("/calico/bgp/v1/").unwrap_or_default();
            key.starts_with("global/peer_v") || key.starts_with(&format!("host/{node}/peer_v"))
        });
        if is_meshed || has_peers {
            let text = format!(
                "calico-node runs without BIRD (CALICO_NETWORKING_BACKEND={backend}), and the store asks for BGP \
                 sessions, which Tortie opens"
            );
            let fix = "set nodeToNodeMeshEnabled to false in the BGPConfiguration default, and delete BGPPeers, unless you \
                       want BGP";
            warn(text, fix.to_owned());
        }
    }
    let asn =
        of_host("as_num").or_else(|| value("/calico/bgp/v1/global/as_num")).unwrap_or_else(|| AS.to_owned());
    if let Some(wanted) = variable("AS").filter(|wanted| *wanted != asn) {
        let text =
            format!("calico-node runs with AS={wanted}, and the store has the AS number {asn} for {node}");
        warn(text, "write spec.bgp.asNumber of the Node".to_owned());
    }
    for (name, field) in [("IP", "ip_addr_v4"), ("IP6", "ip_addr_v6")] {
        let Some(given) = variable(name) else { continue };
        let bare = given.split('/').next().unwrap_or(given);
        let stored = of_host(field);
        if given == "none" || given == "autodetect" || stored.as_deref() == Some(bare) {
            continue;
        }
        let stored = stored.unwrap_or_else(|| "no address".to_owned());
        let text = format!("calico-node runs with {name}={given}, and the store has {stored} for {node}");
        warn(text, "correct the Node, or the variable, and let calico-node start once more".to_owned());
    }
    for (name, family) in [("IP_AUTODETECTION_METHOD", "IP"), ("IP6_AUTODETECTION_METHOD", "IP6")] {
        let is_detected = variable(family).is_none_or(|given| given == "autodetect");
        if let Some(method) = variable(name).filter(|method| is_detected && !is_first_found(method)) {
            let text = format!(
                "calico-node detects the address of this host by {name}={method}, again and again; Tortie keeps the one \
                 in the store"
            );
            warn(
                text,
                "nothing, unless the address of this host changes: then write it to the Node".to_owned(),
            );
        }
    }
    if let Some(router) =
        variable("CALICO_ROUTER_ID").filter(|id| of_host("ip_addr_v4").as_deref() != Some(*id))
    {
        let text = format!(
            "calico-node runs with CALICO_ROUTER_ID={router}; Tortie's BGP identifier is the IPv4 address of the host"
        );
        warn(text, "peers see another BGP identifier after the move; nothing else depends on it".to_owned());
    }
}

fn is_first_found(method: &str) -> bool {
    matches!(method, "first-found" | "kubernetes-internal-ip")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_checks::host::Command;
    use crate::host_checks::snapshot::{HostSnapshot, Migration, Role, StoreContent};
    use tortie_store::KeyValue;

    fn texts(variables: &[(&str, &str)], keys: &[(&str, &str)]) -> Vec<String> {
        let entry = |(key, value): &(&str, &str)| KeyValue {
            key: (*key).to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        };
        let store = StoreContent { entries: keys.iter().map(entry).collect(), ..StoreContent::default() };
        let node_environment =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let migration = Migration {
            node: "h1".to_owned(),
            store: Some(Ok(store)),
            node_environment,
            ..Migration::default()
        };
        let (now, role) = (HostSnapshot { migration, ..HostSnapshot::default() }, Role::default());
        let mut results = Results::default();
        let host = Host { command: Command::MigrateCheck, now: &now, before: None, role: &role };
        differences(&host, &mut results);
        results.into_inner().into_iter().map(|item| item.text()).collect()
    }

    #[test]
    fn what_the_environment_and_the_store_agree_on_is_not_said() {
        let keys = [
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
            ("/calico/bgp/v1/host/h1/as_num", "64500"),
            ("/calico/bgp/v1/global/node_mesh", r#"{"enabled": false}"#),
        ];
        let agreed = [
            ("NODENAME", "h1"),
            ("CALICO_NETWORKING_BACKEND", "vxlan"),
            ("AS", "64500"),
            ("IP", "192.0.2.1/24"),
            ("IP6", "none"),
            ("IP_AUTODETECTION_METHOD", "interface=eth0"),
            ("CALICO_ROUTER_ID", "192.0.2.1"),
        ];
        assert_eq!(texts(&agreed, &keys), Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_named_with_both_sides() {
        let keys = [("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1")];
        let says = |name: &str, value: &str| texts(&[(name, value)], &keys).join("\n");
        assert!(says("NODENAME", "H1").contains("NODENAME=H1"));
        assert!(says("CALICO_NETWORKING_BACKEND", "vxlan").contains("without BIRD"));
        assert_eq!(says("CALICO_NETWORKING_BACKEND", "bird"), "");
        assert!(says("AS", "64500").contains("64512 for h1"));
        assert!(says("IP", "192.0.2.9").contains("192.0.2.1 for h1"));
        assert!(says("IP6", "2001:db8::1").contains("no address for h1"));
        assert!(says("IP_AUTODETECTION_METHOD", "can-reach=192.0.2.254").contains("can-reach"));
        assert_eq!(says("IP_AUTODETECTION_METHOD", "first-found"), "");
        assert!(says("CALICO_ROUTER_ID", "hash").contains("BGP identifier"));
    }
}
