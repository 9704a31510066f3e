//! Hosts: Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::names::norm;
use super::output::{self, Converted, ConvertedObject, Entry, Weight};
use crate::Resource;
use crate::calico3::{Kind, ObjectKey};
use crate::key::{BgpItem, IpFamily, Key, Scope};
use crate::resource::Setting;
use tortie_net::Cidr;

/// What the keys of a host say about its Node.
#[derive(Debug, Default)]
struct Host {
    from: Vec<String>,
    addrs: BTreeMap<IpFamily, IpAddr>,
    nets: BTreeMap<IpFamily, Cidr>,
    bird_ip: Option<IpAddr>,
    bgp: Map<String, Value>,
    tunnel: Option<IpAddr>,
    /// Members of `spec` that describe the host's end of the VXLAN.
    vxlan: BTreeMap<&'static str, String>,
    refs: Vec<Value>,
}

/// Adds a Node for each host that has an address, metadata or orchestrator names.
pub(super) fn convert(entries: &[Entry<'_>], out: &mut Converted) {
    let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
    for entry in entries {
        let Some(name) = host_of(&entry.key) else { continue };
        let host = hosts.entry(name).or_default();
        host.from.push(entry.text.to_owned());
        match (&entry.key, &entry.resource) {
            (_, Resource::Address(Some(addr))) => drop(host.addrs.insert(IpFamily::of(*addr), *addr)),
            (_, Resource::Network(Some(net))) => drop(host.nets.insert(IpFamily::of_cidr(net), *net)),
            (_, Resource::AsNum(asn)) => {
                host.bgp.insert("asNumber".to_owned(), asn.get().into());
            }
            (_, Resource::RrClusterId(Some(id))) => {
                host.bgp.insert("routeReflectorClusterID".to_owned(), id.to_string().into());
                let text =
                    "Calico's own upgrade loses it; here the Node has it: see that its peers are selected";
                out.finding(Weight::Note, entry.text, text);
            }
            (_, Resource::BirdIp(addr)) => host.bird_ip = addr.map(IpAddr::V4),
            (_, Resource::Setting(Setting::IpInIpTunnelAddr(addr))) => host.tunnel = addr.map(IpAddr::V4),
            (_, Resource::Setting(setting)) => host.vxlan.extend(vxlan(setting)),
            (_, Resource::OrchestratorRefs(refs)) => {
                let json = |r: &crate::resource::OrchestratorRef| json!({"nodeName": r.node_name, "orchestrator": r.orchestrator});
                host.refs = refs.iter().map(json).collect();
            }
            _ => {}
        }
    }
    for (name, host) in hosts {
        add(name, host, out);
    }
}

/// Returns the host of a key that makes a Node.
fn host_of(key: &Key) -> Option<&str> {
    match key {
        Key::BirdIp { host } | Key::HostMetadata { host } | Key::OrchestratorRefs { host } => Some(host),
        Key::Bgp(Scope::Host(host), item) if output::is_of_node(item) || *item == BgpItem::AsNum => {
            Some(host)
        }
        Key::Setting(Scope::Host(host), name) if is_of_node(name) => Some(host),
        _ => None,
    }
}

/// Returns true for the name of a setting of a host that its Node has.
pub(super) fn is_of_node(setting: &str) -> bool {
    crate::calico3::bgp::NODE_SETTINGS.contains(&setting)
}

/// Returns the member of a Node for a setting that describes the host's end of the VXLAN.
fn vxlan(setting: &Setting) -> Option<(&'static str, String)> {
    match setting {
        Setting::IPv4VXLANTunnelAddr(Some(addr)) => Some(("ipv4VXLANTunnelAddr", addr.to_string())),
        Setting::IPv6VXLANTunnelAddr(Some(addr)) => Some(("ipv6VXLANTunnelAddr", addr.to_string())),
        Setting::VXLANTunnelMACAddr(Some(mac)) => Some(("vxlanTunnelMACAddr", mac.to_string())),
        Setting::VXLANTunnelMACAddrV6(Some(mac)) => Some(("vxlanTunnelMACAddrV6", mac.to_string())),
        _ => None,
    }
}

fn add(name: &str, mut host: Host, out: &mut Converted) {
    let new = norm(name);
    let about = host.from.first().cloned().unwrap_or_default();
    let mut object = ConvertedObject::new(ObjectKey::global(Kind::Node, &new), &about);
    object.from = std::mem::take(&mut host.from);
    if let Some(addr) = host.bird_ip {
        // The address of Felix counts if BGP has none.
        host.addrs.entry(IpFamily::V4).or_insert(addr);
    }
    for (family, member) in [(IpFamily::V4, "ipv4Address"), (IpFamily::V6, "ipv6Address")] {
        let Some(addr) = host.addrs.get(&family) else { continue };
        let full = Cidr::host(*addr).len();
        let len = host.nets.get(&family).filter(|net| net.contains(*addr)).map_or(full, Cidr::len);
        host.bgp.insert(member.to_owned(), format!("{addr}/{len}").into());
    }
    if host.addrs.is_empty() && !host.bgp.is_empty() {
        out.finding(Weight::Note, &about, "this host has no address for BGP, and does not take part in it");
    }
    match host.tunnel {
        Some(addr) if !host.bgp.is_empty() => {
            host.bgp.insert("ipv4IPIPTunnelAddr".to_owned(), addr.to_string().into());
        }
        Some(_) => out.finding(Weight::Lost, &about, "a tunnel address needs an address for BGP"),
        None => {}
    }
    if !host.bgp.is_empty() {
        object.set("bgp", host.bgp);
    }
    for (member, text) in host.vxlan {
        object.set(member, text);
    }
    object.set_list("orchRefs", host.refs);
    if new != name {
        let text = format!(
            "host {name} becomes Node {new}: set this name at its agent and at its orchestrator; the attributes \
             of its addresses keep the old one"
        );
        out.finding(Weight::Note, &about, text);
    }
    out.renamed(Kind::Node, name, &new);
    out.add(object);
}
