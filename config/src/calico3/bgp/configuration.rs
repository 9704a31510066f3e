//! BGPConfigurations: `default`, and `node.<node>` of single hosts.
//!
//! What v1 has a key for gets it. The rest is one value, [`Key::BgpConfiguration`]. Of the objects of hosts
//! only log level, port and prefix advertisements count, as in Calico.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::super::objects::Objects;
use super::super::output::Output;
use super::super::{Kind, Object};
use super::members::{Members, cidr, quoted};
use super::secret::{SecretFile, secret_file};
use crate::key::{BgpItem, IpFamily, Key, Scope};
use crate::resource::{Community, InterfaceName};

/// Kinds that [`configuration`] reads.
pub(in crate::calico3) const CONFIGURATION_READ: &[Kind] = &[Kind::BGPConfiguration, Kind::Node];

/// Name of the object for all hosts.
pub(super) const DEFAULT: &str = "default";

/// Prefix of the names of objects for one host.
const OF_NODE: &str = "node.";

/// Members that count in the objects of hosts.
const MEMBERS_OF_NODE: [&str; 4] = ["logSeverityScreen", "listenPort", "prefixAdvertisements", "communities"];

/// Label of a Node that announces no service ranges, if it is `true`.
const EXCLUDED_FROM_SERVICES: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Computes the BGP values that are no peers.
pub(in crate::calico3) fn configuration(objects: &Objects, node: &str) -> Output {
    let mut out = Output::default();
    for object in objects.of_kind(Kind::BGPConfiguration) {
        let scope = if object.key.name == DEFAULT {
            Scope::Global
        } else if let Some(node) = object.key.name.strip_prefix(OF_NODE).filter(|node| !node.is_empty()) {
            Scope::Host(node.to_owned())
        } else {
            let text = format!("only the names {DEFAULT} and {OF_NODE}NODE count: rename this object");
            out.problem(&object.key, "setting-noted", text);
            continue;
        };
        let mut emitted = Vec::new();
        let mut spec = Members::of(object, &mut out);
        of_any_scope(&mut spec, scope != Scope::Global, &mut emitted);
        match scope {
            Scope::Global => global(&mut spec, &mut emitted),
            Scope::Host(_) => {
                for name in spec.names().filter(|name| !MEMBERS_OF_NODE.contains(name)) {
                    let text = format!("{}: it only counts in {DEFAULT}: write it there", spec.at(name));
                    spec.problem("setting-not-in-force", text);
                }
            }
        }
        let mut rest = if scope == Scope::Global { rest(&mut spec) } else { Map::new() };
        for (item, value) in emitted {
            out.put(Key::Bgp(scope.clone(), item), value, &object.key);
        }
        if rest.is_empty() {
            continue;
        }
        let mut origin = vec![object.key.clone()];
        let label =
            |node: &Object| node.metadata.labels.get(EXCLUDED_FROM_SERVICES).is_some_and(|l| l == "true");
        if let Some(node) = objects.get(Kind::Node, node).filter(|node| label(node)) {
            rest.insert("announcesServices".to_owned(), false.into());
            origin.push(node.key.clone());
        }
        out.put_of(Key::BgpConfiguration, Value::Object(rest).to_string(), origin);
    }
    out
}

/// Values that are read for peers as well.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ports {
    /// Listen port; `None` if it is not set.
    pub(super) listen: Option<u16>,
}

/// Reads the listen port of an object, without reporting: [`configuration`] does.
pub(super) fn ports(object: &Object) -> Ports {
    let port = object.spec.get("listenPort").and_then(Value::as_u64);
    Ports { listen: port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0) }
}

/// Returns the name of the host that an object is for.
pub(super) fn host_of(object: &Object) -> Option<&str> {
    object.key.name.strip_prefix(OF_NODE)
}

fn of_any_scope(spec: &mut Members<'_, '_>, of_host: bool, emitted: &mut Vec<(BgpItem, String)>) {
    if let Some(level) = spec.text("logSeverityScreen") {
        let level = match level.to_ascii_lowercase().as_str() {
            "debug" => "debug",
            "info" => "info",
            _ => "none",
        };
        emitted.push((BgpItem::LogLevel, level.to_owned()));
    }
    if let Some(port) = spec.number("listenPort", 1, 65535) {
        emitted.push((BgpItem::ListenPort, port.to_string()));
    }
    advertisements(spec, of_host, emitted);
}

fn global(spec: &mut Members<'_, '_>, emitted: &mut Vec<(BgpItem, String)>) {
    if let Some(asn) = spec.asn("asNumber") {
        emitted.push((BgpItem::AsNum, asn.to_string()));
    }
    let enabled = spec.bool("nodeToNodeMeshEnabled");
    // A value that is no boolean does not switch on what may have been meant to be off.
    let is_unclear = enabled.is_none() && spec.get("nodeToNodeMeshEnabled").is_some();
    let mut mesh = Map::new();
    mesh.insert("enabled".to_owned(), (enabled.unwrap_or(true) && !is_unclear).into());
    let is_set = enabled.is_some() || is_unclear;
    match secret_file(spec, "nodeMeshPassword") {
        SecretFile::Absent => {}
        SecretFile::File(file) => drop(mesh.insert("password_file".to_owned(), file.into())),
        // Without the secret there is no session, rather than one without authentication.
        SecretFile::Invalid => drop(mesh.insert("enabled".to_owned(), false.into())),
    }
    if is_set || mesh.len() > 1 || mesh.get("enabled") == Some(&Value::Bool(false)) {
        emitted.push((BgpItem::NodeMesh, Value::Object(mesh).to_string()));
    }
}

/// Emits prefix advertisements, with communities by value or by a name that the same object defines. Those of a
/// host replace the ones for all hosts in both families, even if they are of one family only.
fn advertisements(spec: &mut Members<'_, '_>, of_host: bool, emitted: &mut Vec<(BgpItem, String)>) {
    let expected = "write two parts up to 65535 (65000:100) or three (65000:1:2)";
    let mut named: Vec<(&str, Community)> = Vec::new();
    for (at, community) in spec.list("communities").iter().enumerate() {
        let Value::Object(map) = community else {
            spec.invalid(&format!("communities[{at}]"), quoted(community), "write {\"name\", \"value\"}");
            continue;
        };
        let mut community = spec.inside(map, format_args!(".communities[{at}]"));
        let name = community.text("name");
        if let Some((name, value)) = name.zip(community.parsed("value", expected)) {
            named.push((name, value));
        }
    }
    let mut lists: [Vec<Value>; 2] = Default::default();
    for (at, advertisement) in spec.list("prefixAdvertisements").iter().enumerate() {
        let Value::Object(map) = advertisement else {
            let path = format!("prefixAdvertisements[{at}]");
            spec.invalid(&path, quoted(advertisement), "write {\"cidr\", \"communities\"}");
            continue;
        };
        let mut advertisement = spec.inside(map, format_args!(".prefixAdvertisements[{at}]"));
        let text = advertisement.text("cidr");
        let Some(prefix) = text.and_then(cidr) else {
            advertisement.invalid(
                "cidr",
                format_args!("`{}`", text.unwrap_or_default()),
                "write ADDRESS/LENGTH",
            );
            continue;
        };
        let expected = "name one of `communities`, or write a community; it is left out";
        let communities = advertisement.parsed_list("communities", expected, |text| {
            let by_name = named.iter().find(|(name, _)| *name == text).map(|(_, community)| *community);
            by_name.or_else(|| text.parse().ok())
        });
        let mut communities: Vec<String> = communities.iter().map(ToString::to_string).collect();
        communities.sort_unstable();
        communities.dedup();
        let [v4, v6] = &mut lists;
        let list = if prefix.is_v4() { v4 } else { v6 };
        list.push(json!({ "cidr": prefix.to_string(), "communities": communities }));
    }
    let replaces = of_host && spec.get("prefixAdvertisements").is_some_and(Value::is_array);
    for (family, list) in [IpFamily::V4, IpFamily::V6].into_iter().zip(lists) {
        if replaces || !list.is_empty() {
            emitted.push((BgpItem::PrefixAdvertisements(family), Value::Array(list).to_string()));
        }
    }
}

/// Returns the members without v1 key, in Calico 3's spelling.
fn rest(spec: &mut Members<'_, '_>) -> Map<String, Value> {
    let mut rest = Map::new();
    let mut put = |member: &str, value: Value| drop(rest.insert(member.to_owned(), value));
    for (member, words) in [
        ("bindMode", &["None", "NodeIP"][..]),
        ("serviceLoadBalancerAggregation", &["Enabled", "Disabled"]),
        ("programClusterRoutes", &["Enabled", "Disabled", "EnabledIPIPOnly", "EnabledNoEncapOnly"]),
    ] {
        if let Some(word) = spec.word(member, words) {
            put(member, word.into());
        }
    }
    for member in ["serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs"] {
        let mut ranges = Vec::new();
        for (at, range) in spec.list(member).iter().enumerate() {
            let path = format!(".{member}[{at}]");
            let Value::Object(map) = range else {
                spec.invalid(
                    &format!("{member}[{at}]"),
                    quoted(range),
                    "write {\"cidr\": \"ADDRESS/LENGTH\"}",
                );
                continue;
            };
            let mut range = spec.inside(map, path);
            let text = range.text("cidr").unwrap_or_default();
            match cidr(text) {
                Some(prefix) => ranges.push(json!({ "cidr": prefix.to_string() })),
                None => range.invalid("cidr", format_args!("`{text}`"), "write ADDRESS/LENGTH"),
            }
        }
        if !ranges.is_empty() {
            put(member, ranges.into());
        }
    }
    let interfaces = spec.parsed_list("ignoredInterfaces", "write names; * is any text", |text| {
        text.parse::<InterfaceName>().ok().map(|name| Value::from(name.as_str()))
    });
    if !interfaces.is_empty() {
        put("ignoredInterfaces", interfaces.into());
    }
    for member in ["ipv4NormalRoutePriority", "ipv6NormalRoutePriority"] {
        if let Some(priority) = spec.number(member, 1, 2_147_483_646) {
            put(member, priority.into());
        }
    }
    for (member, v4) in [("localWorkloadPeeringIPV4", true), ("localWorkloadPeeringIPV6", false)] {
        let Some(addr) = spec.parsed::<IpAddr>(member, "write an address of this family") else { continue };
        if addr.is_ipv4() != v4 {
            spec.invalid(member, format_args!("`{addr}`"), "write an address of this family");
            continue;
        }
        let text = format!(
            "{}: {addr} is not added to this host: local workloads peer with the address of the node",
            spec.at(member)
        );
        spec.problem("unsupported-setting", text);
        put(member, addr.to_string().into());
    }
    if spec.seconds("nodeMeshMaxRestartTime", 0, 4095).is_some() {
        let text = spec.text("nodeMeshMaxRestartTime");
        put("nodeMeshMaxRestartTime", text.unwrap_or_default().into());
    }
    rest
}
