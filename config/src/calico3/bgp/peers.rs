//! BGPPeers as v1 peers: three passes over all of them.
//!
//! 1. **Global**: peers of BGPPeers for all hosts.
//! 2. **Node**: peers of BGPPeers for this host. One with address and port of a global peer is dropped.
//! 3. **Reverse**: hosts that have this one as their peer become its peers, unless `reversePeering` is
//!    `Manual`. An explicit peer is never replaced.
//!
//! Where two BGPPeers of one pass give the same peer, the one whose name comes first counts, and a problem
//! names both. (In Calico that is random.) Only peers of this host are emitted, so a change costs one look at
//! each node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::objects::Objects;
use super::super::output::{Output, Projected};
use super::super::{Kind, Object, ObjectKey};
use super::configuration::{DEFAULT, host_of, ports};
use super::members::cidr;
use super::node::NodeBgp;
use super::peer::{BgpPeer, LocalSide, RemoteEnd, RemoteSide};
use crate::key::{BgpItem, Key, Scope};
use crate::resource::Asn;
use crate::selector::Selector;

/// Kinds that [`peers`] reads.
pub(in crate::calico3) const PEERS_READ: &[Kind] = &[
    Kind::Node,
    Kind::BGPPeer,
    Kind::BGPConfiguration,
    Kind::BGPFilter,
    Kind::WorkloadEndpoint,
    Kind::Profile,
];

/// Returns true if the peers depend on objects of a kind. Workloads and their profiles matter only if some are
/// peers: they change often, and a look at all nodes for each would take long.
pub(in crate::calico3) fn peers_need(objects: &Objects, kind: Kind) -> bool {
    let of_workloads = |peer: &Object| peer.spec.contains_key("localWorkloadSelector");
    match kind {
        Kind::WorkloadEndpoint | Kind::Profile => objects.of_kind(Kind::BGPPeer).any(of_workloads),
        _ => true,
    }
}

/// Computes the peers of all scopes.
pub(in crate::calico3) fn peers(objects: &Objects, node: &str) -> Output {
    let mut out = Output::default();
    let peers: Vec<BgpPeer<'_>> = objects
        .of_kind(Kind::BGPPeer)
        .filter_map(|object| BgpPeer::read(object, objects, &mut out))
        .collect();
    // Most stores have none, and then no node is looked at.
    if peers.is_empty() {
        return out;
    }
    let cluster = Cluster::of(objects);
    let mut emitted = Emitted::default();
    for peer in peers.iter().filter(|peer| matches!(peer.local, LocalSide::All)) {
        if matches!(peer.remote, RemoteSide::Workloads(_)) {
            continue;
        }
        for (end, origin) in cluster.ends(peer) {
            emitted.put(Pass::Global, peer, &end, origin);
        }
    }
    let here = objects.get(Kind::Node, node);
    for peer in &peers {
        let is_here = match &peer.local {
            LocalSide::All => matches!(peer.remote, RemoteSide::Workloads(_)),
            LocalSide::Named(name) => *name == node,
            LocalSide::By(selector) => here.is_some_and(|here| selector.matches(&here.metadata.labels)),
        };
        if !is_here {
            continue;
        }
        let ends = match &peer.remote {
            RemoteSide::Workloads(selector) => workloads(objects, selector, peer),
            _ => cluster.ends(peer),
        };
        for (end, origin) in ends {
            emitted.put(Pass::Node, peer, &end, origin);
        }
    }
    if let Some(here) = here {
        for peer in peers.iter().filter(|peer| peer.reverses) {
            for (end, origin) in cluster.reverse_ends(peer, here) {
                emitted.put(Pass::Reverse, peer, &end, origin);
            }
        }
    }
    emitted.finish(node, &mut out);
    out
}

/// A node, with what its peers depend on.
#[derive(Clone, Copy)]
struct Host<'a> {
    object: &'a Object,
    bgp: &'a NodeBgp,
}

/// All nodes.
struct Cluster<'a> {
    /// Sorted by name.
    hosts: Vec<Host<'a>>,
    /// Sorted by address, then by name.
    by_addr: Vec<(IpAddr, Host<'a>)>,
    /// Listen ports of hosts that have their own.
    ports: BTreeMap<&'a str, u16>,
    port: Option<u16>,
    asn: Asn,
}

/// A peer, and the objects that it came from in addition to its BGPPeer.
type End<'a> = (RemoteEnd, Option<&'a ObjectKey>);

impl<'a> Cluster<'a> {
    fn of(objects: &'a Objects) -> Self {
        let hosts: Vec<Host<'a>> = objects.nodes().map(|(object, bgp)| Host { object, bgp }).collect();
        let addrs = hosts.iter().flat_map(|host| host.bgp.addrs().map(|addr| (addr, *host)));
        let mut by_addr: Vec<(IpAddr, Host<'a>)> = addrs.collect();
        by_addr.sort_by_key(|(addr, _)| *addr);
        let mut of_hosts = BTreeMap::new();
        for object in objects.of_kind(Kind::BGPConfiguration) {
            if let Some((host, port)) = host_of(object).zip(ports(object).listen) {
                of_hosts.insert(host, port);
            }
        }
        let default = objects.get(Kind::BGPConfiguration, DEFAULT);
        let asn = default.and_then(|default| default.spec.get("asNumber"));
        Self {
            hosts,
            by_addr,
            ports: of_hosts,
            port: default.and_then(|default| ports(default).listen),
            asn: asn.and_then(|asn| Asn::from_json(asn).ok()).unwrap_or(Asn::DEFAULT),
        }
    }

    fn port_of(&self, host: &Host<'_>) -> Option<u16> {
        self.ports.get(host.object.key.name.as_str()).copied().or(self.port)
    }

    /// Returns the nodes that an address, port and AS fit.
    fn fitting(&self, addr: IpAddr, port: Option<u16>, asn: Option<Asn>) -> impl Iterator<Item = &Host<'a>> {
        let asn = asn.unwrap_or(self.asn);
        let at_addr = self.at(addr);
        at_addr.filter(move |host| host.bgp.asn.unwrap_or(self.asn) == asn && self.port_fits(host, port))
    }

    /// Returns the nodes that have an address.
    fn at(&self, addr: IpAddr) -> impl Iterator<Item = &Host<'a>> {
        let first = self.by_addr.partition_point(|(other, _)| *other < addr);
        let from = self.by_addr.iter().skip(first);
        from.take_while(move |(other, _)| *other == addr).map(|(_, host)| host)
    }

    /// Returns true if a node listens on a port. As in Calico, the global port must not differ even if the
    /// node has its own.
    fn port_fits(&self, host: &Host<'_>, port: Option<u16>) -> bool {
        let Some(port) = port else { return true };
        let own = self.ports.get(host.object.key.name.as_str());
        own.is_none_or(|own| *own == port) && self.port.is_none_or(|global| global == port)
    }

    /// Returns the peers that are given by address or by labels of nodes.
    fn ends(&self, peer: &BgpPeer<'_>) -> Vec<End<'_>> {
        match &peer.remote {
            RemoteSide::Workloads(_) => Vec::new(),
            RemoteSide::Nodes(selector) => {
                self.matching(selector).flat_map(|host| self.of_host(host)).collect()
            }
            RemoteSide::Addr(addr, port) => {
                let Some(asn) = peer.asn else { return Vec::new() };
                let node = self.fitting(*addr, *port, peer.asn).next();
                let end = RemoteEnd {
                    ip: *addr,
                    port: port.or_else(|| node.and_then(|node| self.port_of(node))),
                    asn,
                    cluster_id: String::new(),
                    calico_node: self.at(*addr).next().is_some(),
                };
                vec![(end, node.map(|node| &node.object.key))]
            }
        }
    }

    /// Returns the peers of a host that others have as their peer.
    fn reverse_ends(&self, peer: &BgpPeer<'_>, here: &Object) -> Vec<End<'_>> {
        let is_v4 = match &peer.remote {
            RemoteSide::Workloads(_) => return Vec::new(),
            RemoteSide::Nodes(selector) => {
                if !selector.matches(&here.metadata.labels) {
                    return Vec::new();
                }
                None
            }
            RemoteSide::Addr(addr, port) => {
                if !self.fitting(*addr, *port, peer.asn).any(|host| host.object.key == here.key) {
                    return Vec::new();
                }
                Some(addr.is_ipv4())
            }
        };
        let hosts: Vec<&Host<'_>> = match &peer.local {
            LocalSide::All => self.hosts.iter().collect(),
            LocalSide::By(selector) => self.matching(selector).collect(),
            LocalSide::Named(name) => {
                let found = self.hosts.binary_search_by(|host| host.object.key.name.as_str().cmp(name)).ok();
                found.and_then(|at| self.hosts.get(at)).into_iter().collect()
            }
        };
        let ends = hosts.into_iter().flat_map(|host| self.of_host(host));
        ends.filter(|(end, _)| is_v4.is_none_or(|v4| end.ip.is_ipv4() == v4)).collect()
    }

    fn matching(&self, selector: &Selector) -> impl Iterator<Item = &Host<'a>> {
        self.hosts.iter().filter(move |host| selector.matches(&host.object.metadata.labels))
    }

    /// Returns a node as peer, once for each family that it has.
    fn of_host(&self, host: &Host<'a>) -> impl Iterator<Item = End<'a>> + use<'a> {
        let (port, asn, key) = (self.port_of(host), host.bgp.asn.unwrap_or(self.asn), &host.object.key);
        let cluster_id = host.bgp.cluster_id.map_or_else(String::new, |id| id.to_string());
        host.bgp.addrs().map(move |ip| {
            let end = RemoteEnd { ip, port, asn, cluster_id: cluster_id.clone(), calico_node: false };
            (end, Some(key))
        })
    }
}

/// Returns the workloads of this host whose labels match, with their first address of each family.
fn workloads<'a>(objects: &'a Objects, selector: &Selector, peer: &BgpPeer<'_>) -> Vec<End<'a>> {
    let Some(asn) = peer.asn else { return Vec::new() };
    let mut ends = Vec::new();
    for endpoint in objects.of_kind(Kind::WorkloadEndpoint) {
        if !selector.matches_with(|label| workload_label(objects, endpoint, label)) {
            continue;
        }
        for ip in first_addresses(endpoint) {
            let end = RemoteEnd { ip, port: None, asn, cluster_id: String::new(), calico_node: false };
            ends.push((end, Some(&endpoint.key)));
        }
    }
    ends
}

/// Returns a label of a workload: its own, without those that would fake labels of its namespace, else that of
/// the first of its profiles that has it.
fn workload_label<'a>(objects: &'a Objects, endpoint: &'a Object, label: &str) -> Option<&'a str> {
    own_label(endpoint, label).or_else(|| {
        let names = endpoint.spec.get("profiles").and_then(|names| names.as_array());
        let names = names.into_iter().flatten().filter_map(|name| name.as_str());
        let mut profiles = names.filter_map(|name| objects.get(Kind::Profile, name));
        profiles.find_map(|profile| profile.spec.get("labelsToApply")?.get(label)?.as_str())
    })
}

fn own_label<'a>(endpoint: &'a Object, label: &str) -> Option<&'a str> {
    if label == "projectcalico.org/serviceaccount"
        && let Some(account) = endpoint.spec.get("serviceAccountName").and_then(|name| name.as_str())
    {
        return Some(account);
    }
    if label.starts_with("pcns.") || label.starts_with("pcsa.") {
        return None;
    }
    endpoint.metadata.labels.get(label).map(String::as_str)
}

/// Returns the first address of each family; none if one network is not valid, because then the endpoint does
/// not count.
fn first_addresses(endpoint: &Object) -> Vec<IpAddr> {
    let networks = endpoint.spec.get("ipNetworks").and_then(|networks| networks.as_array());
    let parsed = networks.into_iter().flatten().map(|network| network.as_str().and_then(cidr));
    let Some(addrs) = parsed.map(|network| network.map(|n| n.addr())).collect::<Option<Vec<IpAddr>>>() else {
        return Vec::new();
    };
    let first = |v4: bool| addrs.iter().find(move |addr| addr.is_ipv4() == v4).copied();
    first(true).into_iter().chain(first(false)).collect()
}

/// Pass that gave a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Global,
    Node,
    Reverse,
}

/// Peers so far, by address and port.
#[derive(Default)]
struct Emitted<'a> {
    peers: BTreeMap<(IpAddr, Option<u16>), Peer<'a>>,
    /// Losers and winners of peers that differ, with the first such peer and the number of them.
    clashes: BTreeMap<(&'a ObjectKey, &'a ObjectKey), (String, usize)>,
}

struct Peer<'a> {
    pass: Pass,
    of: &'a ObjectKey,
    value: String,
    origin: Option<&'a ObjectKey>,
}

impl<'a> Emitted<'a> {
    fn put(&mut self, pass: Pass, peer: &BgpPeer<'a>, end: &RemoteEnd, origin: Option<&'a ObjectKey>) {
        let is_by_address = matches!(peer.remote, RemoteSide::Addr(..)) && pass != Pass::Reverse;
        let value = if is_by_address { peer.value_of_address(end) } else { peer.value(end) };
        let item = BgpItem::peer(end.ip, end.port.unwrap_or(0));
        let BgpItem::Peer { addr, port } = item else { return };
        match self.peers.get(&(addr, port)) {
            None => {
                self.peers.insert((addr, port), Peer { pass, of: peer.key, value, origin });
            }
            // That a peering has a reverse is no clash.
            Some(before) if pass == Pass::Reverse && before.pass != Pass::Reverse => {}
            Some(before) if before.value == value => {}
            Some(before) => {
                let clash = self.clashes.entry((peer.key, before.of)).or_default();
                if clash.1 == 0 {
                    clash.0 = BgpItem::Peer { addr, port }.to_string();
                }
                clash.1 += 1;
            }
        }
    }

    fn finish(self, node: &str, out: &mut Output) {
        for ((loser, winner), (first, count)) in self.clashes {
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let text = format!(
                "{first}{others}: BGPPeer {} gives another session with it and counts, BGPPeer {} does not: change \
                 one of them so that both agree",
                winner.name, loser.name
            );
            out.problem(loser, "peer-configuration", text);
        }
        for ((addr, port), peer) in self.peers {
            let scope = match peer.pass {
                Pass::Global => Scope::Global,
                Pass::Node | Pass::Reverse => Scope::Host(node.to_owned()),
            };
            let origin = std::iter::once(peer.of).chain(peer.origin).cloned().collect();
            let key = Key::Bgp(scope, BgpItem::Peer { addr, port });
            out.entries.push(Projected { key, value: peer.value.into(), origin });
        }
    }
}
