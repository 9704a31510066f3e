//! Pools, peers and values of BGP.

use std::path::Path;

use serde_json::{Value, json};

use super::names::{self, norm};
use super::output::{Converted, ConvertedObject, Entry, Weight, is_of_node, report_unused};
use crate::Resource;
use crate::calico3::{Kind, ObjectKey};
use crate::key::{BgpItem, Scope};
use crate::resource::{BgpLogLevel, IpipMode, Password, Peer, Pool, PrefixAdvertisement, SECRETS_DIR};

/// Converts a pool.
pub(super) fn pool(entry: &Entry<'_>, pool: &Pool, out: &mut Converted) {
    let key = ObjectKey::global(Kind::IPPool, &names::pool(&pool.cidr));
    let mut object = ConvertedObject::new(key, entry.text);
    object.set("cidr", pool.cidr.to_string());
    let mode = |mode: Option<IpipMode>| match mode {
        None => "Never",
        Some(IpipMode::Always) => "Always",
        Some(IpipMode::CrossSubnet) => "CrossSubnet",
    };
    object.set("ipipMode", mode(pool.ipip.as_ref().map(|ipip| ipip.mode)));
    object.set("vxlanMode", mode(pool.vxlan));
    object.set("natOutgoing", pool.masquerade);
    object.set("disabled", pool.disabled || !pool.ipam);
    object.set("blockSize", pool.block_len());
    object.set("nodeSelector", "all()");
    if !pool.ipam && !pool.disabled {
        out.finding(Weight::Note, entry.text, "IPAM does not use this pool: it is disabled in Calico 3");
    }
    let members = [
        "cidr",
        "ipip",
        "ipip_mode",
        "vxlan_mode",
        "masquerade",
        "ipam",
        "disabled",
        "block_size",
        "blockSize",
    ];
    report_unused(entry, &members, out);
    out.add(object);
}

/// Converts a value of BGP, global or of a host. Those of a Node are converted with the host.
pub(super) fn value(entry: &Entry<'_>, scope: &Scope, item: &BgpItem, value: &Resource, out: &mut Converted) {
    if scope.host().is_some() && (is_of_node(item) || *item == BgpItem::AsNum) {
        return;
    }
    let name = scope.host().map_or_else(|| "default".to_owned(), |host| format!("node.{}", norm(host)));
    let key = ObjectKey::global(Kind::BGPConfiguration, &name);
    match value {
        Resource::Peer(found) if matches!(item, BgpItem::Peer { .. }) => peer(entry, scope, found, out),
        Resource::AsNum(asn) => out.shared(key, entry.text).set("asNumber", asn.get()),
        Resource::NodeMesh(mesh) => {
            let password = mesh.password.as_ref().map(|password| secret(password, "node-mesh", entry, out));
            let object = out.shared(key, entry.text);
            object.set("nodeToNodeMeshEnabled", mesh.enabled);
            object.set_some("nodeMeshPassword", password);
            report_unused(entry, &["enabled", "password", "password_file"], out);
        }
        Resource::LogLevel(level) => {
            let name = match level {
                BgpLogLevel::None => "Fatal",
                BgpLogLevel::Info => "Info",
                BgpLogLevel::Debug => "Debug",
            };
            out.shared(key, entry.text).set("logSeverityScreen", name);
        }
        Resource::ListenPort(port) => out.shared(key, entry.text).set("listenPort", *port),
        Resource::PrefixAdvertisements(list) => {
            let object = out.shared(key, entry.text);
            let mut all = match object.spec.remove("prefixAdvertisements") {
                Some(Value::Array(all)) => all,
                _ => Vec::new(),
            };
            all.extend(list.iter().map(advertisement));
            object.set_list("prefixAdvertisements", all);
            let text = "in Calico 3 it adds communities, and announces nothing by itself: see that a pool or a \
                        service range covers each prefix";
            out.finding(Weight::Note, entry.text, text);
        }
        _ => out.finding(Weight::Lost, entry.text, "this value has no form in Calico 3"),
    }
}

fn advertisement(advertisement: &PrefixAdvertisement) -> Value {
    let communities: Vec<String> = advertisement.communities.iter().map(ToString::to_string).collect();
    json!({"cidr": advertisement.cidr.to_string(), "communities": communities})
}

/// Converts a peer with an address.
fn peer(entry: &Entry<'_>, scope: &Scope, peer: &Peer, out: &mut Converted) {
    let addr = names::peer(peer.ip);
    let mut name = scope.host().map_or_else(|| addr.clone(), |host| format!("{}.{addr}", norm(host)));
    let mut ip = peer.ip.to_string();
    if let Some(port) = peer.port {
        name = format!("{name}-{port}");
        ip = if peer.ip.is_ipv6() { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
    }
    let mut object = ConvertedObject::new(ObjectKey::global(Kind::BGPPeer, &name), entry.text);
    object.set_some("node", scope.host().map(norm));
    object.set("peerIP", ip);
    match peer.as_num.number() {
        Some(asn) => object.set("asNumber", asn.get()),
        None => out.finding(Weight::Error, entry.text, "a peer of Calico 3 has an AS number: write it"),
    }
    if let Some(password) = &peer.password {
        let secret = secret(password, &format!("bgp-{name}"), entry, out);
        object.set("password", secret);
    }
    if peer.tcp_ao.is_some() || !peer.filters.is_empty() {
        let text = "TCP-AO and filters have no form in Calico 3: without them the session would be more open; \
                    remove them, or write BGPFilters";
        out.finding(Weight::Error, entry.text, text);
    }
    report_unused(entry, &["ip", "as_num", "port", "password", "password_file", "tcp_ao", "filters"], out);
    out.add(object);
}

/// Returns the reference to a password: this host reads it from a file below [`SECRETS_DIR`]. A session
/// without the file does not come up.
fn secret(password: &Password, name: &str, entry: &Entry<'_>, out: &mut Converted) -> Value {
    let known = match password {
        Password::File(path) => path.strip_prefix(Path::new(SECRETS_DIR)).ok(),
        Password::Text(_) => None,
    };
    let parts: Vec<String> =
        known.into_iter().flatten().map(|part| part.to_string_lossy().into_owned()).collect();
    let (name, member) = match parts.as_slice() {
        [name, member] => (name.clone(), member.clone()),
        _ => {
            let text = format!(
                "write the password to {SECRETS_DIR}/{name}/password on each host: a session without the file \
                 stays down"
            );
            out.finding(Weight::Note, entry.text, text);
            (name.to_owned(), "password".to_owned())
        }
    };
    json!({"secretKeyRef": {"name": name, "key": member}})
}
