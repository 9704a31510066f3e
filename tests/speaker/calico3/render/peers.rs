//! Sessions of a node: from BGPPeers and the mesh.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use super::super::cluster::{DURATIONS, matches};
use super::super::objects::{Object, Objects};
use super::node::{Cluster, NodeValues, as_number};

/// A session of a node, with the options of its protocol instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    /// Name of the protocol instance.
    pub(crate) name: String,
    pub(crate) scope: &'static str,
    pub(crate) address: IpAddr,
    pub(crate) port: Option<u16>,
    pub(crate) asn: u32,
    pub(crate) local_as: Option<u32>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) password: bool,
    pub(crate) passive: bool,
    /// Cluster id, if the peer is a client of this reflector.
    pub(crate) client: Option<String>,
    pub(crate) next_hop: Option<&'static str>,
    pub(crate) ttl_security: Option<u64>,
    pub(crate) restart_time: Option<u64>,
    pub(crate) keepalive_time: Option<u64>,
    pub(crate) allow_local_as: Option<u64>,
    /// Gateway to the peer.
    pub(crate) reachable_by: Option<String>,
    /// Names of the filters with rules for the session's family.
    pub(crate) import: Vec<String>,
    pub(crate) export: Vec<String>,
}

impl Session {
    pub(crate) fn is_v6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Returns true if both ends are in the same AS; `own` is the AS of the node.
    pub(crate) fn is_internal(&self, own: u32) -> bool {
        self.asn == self.local_as.unwrap_or(own)
    }
}

/// A peering as an entry below `global` or `host/<name>`.
#[derive(Debug, Clone)]
struct Peering {
    address: IpAddr,
    port: u16,
    asn: u32,
    cluster_id: String,
    local_as: Option<u32>,
    calico_node: bool,
    ttl_security: u64,
    allow_local_as: u64,
    reachable_by: String,
    /// Name of its BGPPeer.
    object: String,
}

/// Peerings by scope (empty: all nodes), address and port; the first one stays.
#[derive(Debug, Default)]
struct Peerings(BTreeMap<(String, IpAddr, u16), Peering>);

impl Peerings {
    fn emit(&mut self, scope: &str, peering: &Peering) {
        let port = if peering.port == 179 { 0 } else { peering.port };
        let key = |scope: &str| (scope.to_owned(), peering.address, port);
        if !self.0.contains_key(&key("")) {
            self.0.entry(key(scope)).or_insert_with(|| peering.clone());
        }
    }
}

fn seconds(value: &Value) -> Option<u64> {
    let text = value.as_str()?;
    Some(DURATIONS.iter().chain(&[("20s", 20)]).find(|(name, _)| *name == text)?.1)
}

fn selected(cluster: &Cluster, selector: &str) -> Vec<String> {
    let nodes = cluster.nodes.iter().filter(|node| matches(selector, |label| node.label(label)));
    nodes.map(|node| node.name.clone()).collect()
}

/// Splits an address with an optional port.
fn address_and_port(text: &str) -> Option<(IpAddr, u16)> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, 0));
    }
    let (host, port) = text.rsplit_once(':')?;
    let port = match port.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok()?,
        None => port.parse().ok()?,
    };
    Some((host.trim_start_matches('[').trim_end_matches(']').parse().ok()?, port))
}

/// Returns the nodes at an address with this AS (0: that of the cluster) that may listen on this port (0: any).
fn nodes_at(cluster: &Cluster, address: IpAddr, asn: u32, port: u16) -> Vec<String> {
    let asn = if asn == 0 { cluster.asn } else { asn };
    let fits = |node: &&NodeValues| {
        let here = node.v4 == Some(address) || node.v6 == Some(address);
        let refused = match node.own_port {
            _ if port == 0 => false,
            Some(own) if own != port => true,
            // Also if the node's own port is this one.
            _ => cluster.port.is_some_and(|global| global != port),
        };
        here && cluster.as_of(node) == asn && !refused
    };
    cluster.nodes.iter().filter(fits).map(|node| node.name.clone()).collect()
}

/// Returns the peerings with a node, one per address.
fn with_node(cluster: &Cluster, name: &str, families: [bool; 2], peer: Object<'_>) -> Vec<Peering> {
    let Some(node) = cluster.nodes.iter().find(|node| node.name == name) else { return Vec::new() };
    let addresses = [(families[0], node.v4), (families[1], node.v6)];
    let addresses = addresses.into_iter().filter_map(|(wanted, address)| address.filter(|_| wanted));
    let peering = |address| Peering {
        address,
        port: cluster.port_of(node).unwrap_or_default(),
        asn: cluster.as_of(node),
        cluster_id: node.cluster_id.clone(),
        local_as: None,
        calico_node: false,
        ttl_security: peer.spec("ttlSecurity").as_u64().unwrap_or_default(),
        allow_local_as: 0,
        reachable_by: peer.text("reachableBy").to_owned(),
        object: peer.name.to_owned(),
    };
    addresses.map(peering).collect()
}

fn asn_of(peer: &Object<'_>) -> u32 {
    as_number(peer.spec("asNumber")).unwrap_or_default()
}

/// Returns the nodes that `node` or `nodeSelector` names; `None` without either.
fn local_side(cluster: &Cluster, peer: &Object<'_>) -> Option<Vec<String>> {
    match (peer.text("nodeSelector"), peer.text("node")) {
        ("", "") => None,
        ("", name) => Some(vec![name.to_owned()]),
        (selector, _) => Some(selected(cluster, selector)),
    }
}

fn forward(cluster: &Cluster, peer: Object<'_>) -> Vec<Peering> {
    if !peer.text("peerSelector").is_empty() {
        let names = selected(cluster, peer.text("peerSelector"));
        return names.iter().flat_map(|name| with_node(cluster, name, [true, true], peer)).collect();
    }
    let Some((address, mut port)) = address_and_port(peer.text("peerIP")) else { return Vec::new() };
    let gateway = peer.text("reachableBy");
    if !gateway.is_empty() && gateway.contains(':') != address.is_ipv6() {
        return Vec::new();
    }
    if port == 0
        && let Some(name) = nodes_at(cluster, address, asn_of(&peer), 0).first()
    {
        port = cluster.port_of(cluster.node(name)).unwrap_or_default();
    }
    vec![Peering {
        address,
        port,
        asn: asn_of(&peer),
        cluster_id: String::new(),
        local_as: as_number(peer.spec("localASNumber")),
        calico_node: cluster.nodes.iter().any(|node| node.v4 == Some(address) || node.v6 == Some(address)),
        ttl_security: peer.spec("ttlSecurity").as_u64().unwrap_or_default(),
        allow_local_as: peer.spec("numAllowedLocalASNumbers").as_u64().unwrap_or_default(),
        reachable_by: peer.text("reachableBy").to_owned(),
        object: peer.name.to_owned(),
    }]
}

/// Returns the peerings of all nodes.
fn peerings(cluster: &Cluster, objects: &Objects) -> Peerings {
    let mut all = Peerings::default();
    let peers = objects.of("bgppeers");
    for peer in peers.iter().filter(|peer| local_side(cluster, peer).is_none()) {
        forward(cluster, *peer).iter().for_each(|peering| all.emit("", peering));
    }
    for peer in &peers {
        for peering in forward(cluster, *peer) {
            local_side(cluster, peer).iter().flatten().for_each(|node| all.emit(node, &peering));
        }
    }
    for peer in peers.iter().filter(|peer| peer.text("reversePeering") != "Manual") {
        let (locals, families) = match peer.text("peerSelector") {
            "" => {
                let Some((address, port)) = address_and_port(peer.text("peerIP")) else { continue };
                let family = [address.is_ipv4(), address.is_ipv6()];
                (nodes_at(cluster, address, asn_of(peer), port), family)
            }
            selector => (selected(cluster, selector), [true, true]),
        };
        let theirs = local_side(cluster, peer).unwrap_or_else(|| selected(cluster, "all()"));
        for peering in theirs.iter().flat_map(|name| with_node(cluster, name, families, *peer)) {
            locals.iter().for_each(|node| all.emit(node, &peering));
        }
    }
    all
}

/// Returns the filters of a list that have rules for this direction and family.
fn with_rules(objects: &Objects, names: &[&str], export: bool, v6: bool) -> Vec<String> {
    let list = super::filters::list(export, v6);
    let has = |name: &&&str| {
        objects
            .get("bgpfilters", name)
            .is_some_and(|f| f.spec(list).as_array().is_some_and(|r| !r.is_empty()))
    };
    names.iter().filter(has).map(|name| (*name).to_owned()).collect()
}

fn protocol(kind: &str, address: IpAddr) -> String {
    format!("{kind}_{}", address.to_string().replace(['.', ':'], "_"))
}

/// Returns the sessions of a node, sorted by name.
pub(crate) fn sessions(cluster: &Cluster, objects: &Objects, node: &str) -> Vec<Session> {
    let own = cluster.node(node);
    let mut all = Vec::new();
    for v6 in [false, true] {
        let Some(address) = own.address(v6) else { continue };
        all.extend(mesh(cluster, objects, own, address));
        for ((scope, _, _), peering) in peerings(cluster, objects).0 {
            let here = scope.is_empty() || scope == node;
            if here && peering.address.is_ipv6() == v6 && peering.address != address {
                all.push(explicit(cluster, objects, own, address, scope.is_empty(), &peering));
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn mesh(cluster: &Cluster, objects: &Objects, own: &NodeValues, address: IpAddr) -> Vec<Session> {
    let default = objects.get("bgpconfigurations", "default");
    let setting = |member: &str| default.map_or(&Value::Null, |default| default.spec(member));
    if setting("nodeToNodeMeshEnabled") == &Value::Bool(false) || !own.cluster_id.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    for node in cluster.nodes.iter().filter(|node| node.cluster_id.is_empty()) {
        let Some(peer) = node.address(address.is_ipv6()).filter(|peer| *peer != address) else { continue };
        all.push(Session {
            name: protocol("Mesh", peer),
            scope: "mesh",
            address: peer,
            port: cluster.port_of(node),
            asn: cluster.as_of(node),
            local_as: None,
            source: Some(address),
            password: !setting("nodeMeshPassword").is_null(),
            passive: peer.to_string() > address.to_string(),
            client: None,
            next_hop: None,
            ttl_security: None,
            restart_time: seconds(setting("nodeMeshMaxRestartTime")),
            keepalive_time: None,
            allow_local_as: None,
            reachable_by: None,
            import: Vec::new(),
            export: Vec::new(),
        });
    }
    all
}

fn explicit(
    cluster: &Cluster,
    objects: &Objects,
    own: &NodeValues,
    address: IpAddr,
    global: bool,
    peering: &Peering,
) -> Session {
    let peer = objects.get("bgppeers", &peering.object).unwrap();
    let v6 = address.is_ipv6();
    let mut name = protocol(if global { "Global" } else { "Node" }, peering.address);
    if peering.port != 0 {
        name += &format!("_port_{}", peering.port);
    }
    let internal = peering.asn == peering.local_as.unwrap_or(cluster.as_of(own));
    let client = internal && !own.cluster_id.is_empty() && peering.cluster_id != own.cluster_id;
    let keeps = peer.spec("nextHopMode").is_null() && peer.spec("keepOriginalNextHop") == &Value::Bool(true);
    let filters = peer.texts("filters");
    Session {
        name,
        scope: if global { "global" } else { "node" },
        address: peering.address,
        port: Some(peering.port).filter(|port| *port != 0),
        asn: peering.asn,
        local_as: peering.local_as.filter(|asn| *asn != 0),
        source: (peer.text("sourceAddress") != "None").then_some(address),
        password: !peer.spec("password").is_null(),
        passive: global && peering.calico_node && peering.address.to_string() > address.to_string(),
        client: client.then(|| own.cluster_id.clone()),
        next_hop: match peer.text("nextHopMode") {
            "Self" => Some("self"),
            "Keep" => Some("keep"),
            _ => (keeps && !internal).then_some("keep"),
        },
        ttl_security: Some(peering.ttl_security).filter(|hops| *hops != 0),
        restart_time: seconds(peer.spec("maxRestartTime")),
        keepalive_time: seconds(peer.spec("keepaliveTime")),
        allow_local_as: Some(peering.allow_local_as).filter(|count| *count != 0),
        reachable_by: Some(peering.reachable_by.clone()).filter(|gateway| !gateway.is_empty()),
        import: with_rules(objects, &filters, false, v6),
        export: with_rules(objects, &filters, true, v6),
    }
}
