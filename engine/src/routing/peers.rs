//! BGP sessions of a host: mesh, global and own peers.
//!
//! All decisions are made per remote address ([`peers_at`]), so a change of one host costs one decision, and
//! a start costs one per address. At an address the first of these applies:
//!
//! 1. the **global** peers (one per port);
//! 2. the **own** peers of the host, except those with address and port of a global one;
//! 3. the **reverse** of a peering with this host: another host has this one as its own peer, or this host is
//!    a global peer of all hosts (usually a route reflector). Calico makes peerings between cluster nodes
//!    symmetric since 3.x; the session has the options of the peering that it reverses;
//! 4. the **mesh**, unless it is off or either end is a route reflector (has a cluster id).
//!
//! Addresses of this host, and addresses of a family in which it has none, get no session.
//!
//! **Families.** Two hosts with both IPv4 and IPv6 addresses share one session, over IPv4, which carries both
//! families. This halves the number of sessions and timers of Calico's two daemons, and both families fail
//! and recover together. A session runs over IPv6 only if the hosts have no IPv4 in common. While some hosts
//! still run the two daemons, each of which carries one family, the mesh is configured with `per_family`:
//! then there is one session per family. An explicit peer that is a host of the cluster is treated the same
//! way. Any other peer carries the family of its address, because its other address is not known, unless its
//! value lists `families`.
//!
//! In a store of Calico 3, the projection has made the reverse of a peering explicit, so that 3 does not
//! apply; every session carries the family of its address, as with Calico's daemons.
//!
//! **Dialling.** Between hosts of the cluster, the host whose address is greater as text dials at once
//! (`10.0.0.9` is greater than `10.0.0.10`), and the other one after 5 s: a connection collision would end a
//! graceful restart in progress. Routers are dialled at once. In a store of Calico 3 that concerns the mesh
//! and global peers that are nodes, and both ends of other explicit peers dial, as Calico's do.
//!
//! **Route reflection** (RFC 4456): the peer is a client if it is in the local AS, this host has a cluster
//! id, and the peer has none or another one. Equal cluster ids mean plain iBGP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use smallvec::SmallVec;
use tortie_config::Dialect;
use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_config::resource::{self, NextHopMode, Peer, PeerAs, SourceAddr};
use tortie_net::Cidr;

use super::explain::{Recorder, Step, StepOutcome};
use super::local::{Local, NodeOptions};
use super::types::{HOLD_TIME, PeerIntent, PeerKind, PeerPolicy, PeerSource, RESTART_TIME};
use crate::model::{Host, Model};
use crate::routing::persistent_map::Persistent;

/// Delay before the host with the lesser address dials as well.
pub const PASSIVE_SIDE_DELAY: Duration = Duration::from_secs(5);

/// Value of [`PeerIntent::asn`] for a peer in any other AS.
const ANY_EXTERNAL: u32 = 0;

/// Sessions by name.
pub(super) type NamedPeer = SmallVec<[(String, PeerIntent); 1]>;

/// A host of the cluster with its name.
type NamedHost<'a> = (&'a str, &'a Host);

/// Returns the sessions of this host with one address, and the steps of the decision.
#[must_use]
pub fn explain_peer(
    model: &Model,
    options: &NodeOptions,
    addr: IpAddr,
) -> (Vec<(String, PeerIntent)>, Vec<Step>) {
    let mut steps = Vec::new();
    let peers = peers_at(model, &Local::of(model, options), addr, &mut steps);
    (peers.into_vec(), steps)
}

/// Returns the sessions with one address.
pub(super) fn peers_at(model: &Model, local: &Local, addr: IpAddr, rec: &mut impl Recorder) -> NamedPeer {
    let mut named = NamedPeer::new();
    let family = IpFamily::of(addr);
    if local.is_own(addr) {
        rec.step("own-address", StepOutcome::No, || format!("{addr} is an address of this host"));
        return named;
    }
    let Some(own) = local.addr(family) else {
        let text =
            || format!("this host has no IP{} address and takes no part in that family", family.as_str());
        rec.step("family", StepOutcome::No, text);
        return named;
    };
    let host = model.hosts_by_address(addr).find(|(name, _)| *name != model.node());
    let text = addr.to_string();
    let ends = PeerBuilder { model, local, own, addr, text: &text, family, host };

    for (kind, of) in [(PeerKind::Global, None), (PeerKind::Node, Some(model.node()))] {
        if !model.has_peer(of, addr) {
            continue;
        }
        let scope = of.map_or(Scope::Global, |host| Scope::Host(host.to_owned()));
        for stored in model.peers_at(&scope, addr) {
            let key = || Key::Bgp(scope.clone(), stored.key.clone());
            let peer = ends.explicit(kind, stored.value, key());
            if named.iter().any(|(_, other)| other.remote == peer.remote) {
                rec.step("node", StepOutcome::No, || {
                    format!("{}: the global peer of this address counts", key())
                });
                continue;
            }
            if !(peer.ipv4 || peer.ipv6) {
                let text = || format!("{}: this host has no address of its families", key());
                rec.step(kind.as_str(), StepOutcome::No, text);
                continue;
            }
            rec.step(kind.as_str(), StepOutcome::Yes, || peer.source.to_string());
            named.push((name(kind, &text, port_of(stored.key)), peer));
        }
    }
    if !named.is_empty() {
        return named;
    }
    let Some((host_name, host)) = host else {
        rec.step("mesh", StepOutcome::No, || {
            format!("no host has the address {addr}, and no peer is configured")
        });
        return named;
    };
    if let Some(peer) = ends.reverse(host_name, host) {
        rec.step("reverse", StepOutcome::Yes, || peer.source.to_string());
        named.push((name(PeerKind::Node, &text, None), peer));
    } else if let Some(why) = ends.no_mesh(host_name, host) {
        rec.step("mesh", StepOutcome::No, || why);
    } else {
        let peer = ends.mesh(host_name, host);
        rec.step("mesh", StepOutcome::Yes, || peer.source.to_string());
        named.push((name(PeerKind::Mesh, &text, None), peer));
    }
    named
}

/// Returns the unnumbered sessions. A host's own peer on an interface takes precedence over the global one.
pub(super) fn interface_peers(model: &Model, local: &Local) -> NamedPeer {
    let mut named = NamedPeer::new();
    for (kind, of) in [(PeerKind::Node, Some(model.node())), (PeerKind::Global, None)] {
        let scope = of.map_or(Scope::Global, |host| Scope::Host(host.to_owned()));
        for stored in model.interface_peers(&scope) {
            let (interface, value) = (stored.key, stored.value);
            if named.iter().any(|(_, other)| other.interface.as_deref() == Some(interface)) {
                continue;
            }
            let key = Key::Bgp(scope.clone(), BgpItem::InterfacePeer(interface.to_owned()));
            let (own, addr) = (value.ip, value.ip);
            let ends =
                PeerBuilder { model, local, own, addr, text: interface, family: IpFamily::V6, host: None };
            let mut peer = ends.explicit(kind, value, key);
            peer.interface = Some(interface.to_owned());
            // Next hop of both families is the session's own link-local address (RFC 8950).
            (peer.local, peer.local_v4, peer.local_v6) = (None, None, None);
            let carries = |family| value.families.is_empty() || value.families.contains(&family);
            (peer.ipv4, peer.ipv6) = (carries(IpFamily::V4), carries(IpFamily::V6));
            named.push((name(kind, interface, None), peer));
        }
    }
    named
}

/// Returns the common settings of a range's peers. They carry the family of their address, unless the value
/// lists others.
pub(super) fn explicit_of_range(
    model: &Model,
    local: &Local,
    own: IpAddr,
    prefix: Cidr,
    value: &Peer,
    key: Key,
) -> PeerIntent {
    let (addr, text, family) = (prefix.addr(), prefix.to_string(), IpFamily::of_cidr(&prefix));
    let ends = PeerBuilder { model, local, own, addr, text: &text, family, host: None };
    let mut peer = ends.explicit(PeerKind::Dynamic, value, key);
    peer.range = Some(prefix);
    // Dynamic peers dial this host, at any of its addresses.
    (peer.local, peer.dial_after) = (None, None);
    peer
}

/// Both ends of a possible session.
struct PeerBuilder<'a> {
    model: &'a Model,
    local: &'a Local,
    /// Local address of the transport family.
    own: IpAddr,
    /// Remote address.
    addr: IpAddr,
    /// Remote address as text.
    text: &'a str,
    family: IpFamily,
    /// Host of the cluster with the remote address.
    host: Option<NamedHost<'a>>,
}

impl PeerBuilder<'_> {
    /// Returns a session without options.
    fn plain(&self, kind: PeerKind, asn: u32, port: u16, source: PeerSource) -> PeerIntent {
        let both = self.both_families();
        let name = self.host.map_or(self.text, |(name, _)| name).to_owned();
        PeerIntent {
            local: Some(self.own),
            local_v4: self.local.v4,
            local_v6: self.local.v6,
            ipv4: both || self.family == IpFamily::V4,
            ipv6: both || self.family == IpFamily::V6,
            dial_after: Some(self.dial_after()),
            ..PeerIntent::new(kind, name, source, SocketAddr::new(self.addr, port), asn)
        }
    }

    /// Returns true if both ends are hosts with IPv4 and IPv6 addresses.
    fn both_families(&self) -> bool {
        let has_both = |host: &Host| host.addrs().count() == 2;
        !self.local.mesh.per_family
            && self.local.v4.is_some()
            && self.local.v6.is_some()
            && self.host.is_some_and(|(_, host)| has_both(host))
    }

    fn dial_after(&self) -> Duration {
        let first = self.host.is_none() || self.local.text(self.family) > self.text;
        if first { Duration::ZERO } else { PASSIVE_SIDE_DELAY }
    }

    fn mesh(&self, name: &str, host: &Host) -> PeerIntent {
        let source = PeerSource::Mesh(name.to_owned());
        let asn = self.model.as_num(Some(host)).get();
        let mut peer = self.plain(PeerKind::Mesh, asn, self.model.listen_port(Some(host)), source);
        peer.password = self.local.mesh.password.clone();
        peer.bfd = self.local.mesh.bfd.clone();
        peer.restart_time = self.local.mesh_restart_time.unwrap_or(RESTART_TIME);
        peer.next_hop = self.default_next_hop(asn != self.local.asn);
        peer.policy.own_only = self.local.mesh.own_only;
        peer
    }

    /// Returns the reason why there is no mesh session with a host.
    fn no_mesh(&self, name: &str, host: &Host) -> Option<String> {
        if !self.local.mesh.enabled {
            Some("the node-to-node mesh is off (bgp/v1/global/node_mesh)".to_owned())
        } else if self.local.cluster_id.is_some() {
            Some("this host is a route reflector (rr_cluster_id) and takes no part in the mesh".to_owned())
        } else if host.cluster_id().is_some() {
            Some(format!("{name} is a route reflector (rr_cluster_id) and takes no part in the mesh"))
        } else if self.family == IpFamily::V6 && self.local.v4.is_some() && !self.local.mesh.per_family {
            let other = host.addr(IpFamily::V4)?;
            Some(format!("the session with {name} runs over IPv4, to {other}, and carries both families"))
        } else {
            None
        }
    }

    /// Returns the session that answers another host's peering with this one.
    fn reverse(&self, name: &str, host: &Host) -> Option<PeerIntent> {
        // The projection of Calico 3 has made the peers of this host explicit.
        if self.local.dialect == Dialect::V3 {
            return None;
        }
        // The other host drops its own peer at an address that a global peer has.
        let of_all = self.local.wanted_by_all.iter().find(|peer| peer.ip == self.own);
        let has = of_all.is_none() && self.model.has_peer(Some(name), self.own);
        let theirs =
            has.then(|| self.model.peers_at(&Scope::Host(name.to_owned()), self.own).next()).flatten();
        let (value, source) = match (of_all, &theirs) {
            (Some(value), _) => (value, PeerSource::PeerOfAll(name.to_owned())),
            (None, Some(stored)) => (stored.value, PeerSource::PeerOfHost(name.to_owned())),
            (None, None) => return None,
        };
        let asn = value.local_as_num.unwrap_or_else(|| self.model.as_num(Some(host))).get();
        let mut peer = self.plain(PeerKind::Node, asn, self.model.listen_port(Some(host)), source);
        self.families(&mut peer, value);
        self.times(&mut peer, value);
        peer.password = value.password.clone();
        // Send and receive ids are exchanged, because the value describes the other end.
        peer.tcp_ao = value.tcp_ao.clone().map(|ao| resource::TcpAo {
            send_id: ao.receive_id,
            receive_id: ao.send_id,
            ..ao
        });
        peer.bfd = value.bfd.clone();
        // The other host has shut the session down, and dials when it ends the shutdown.
        if value.shutdown.is_some() {
            (peer.dial_after, peer.bfd) = (None, None);
        }
        peer.role = value.role.map(resource::Role::opposite);
        peer.role_strict = value.role_strict;
        peer.add_path = value.add_path.as_ref().map(resource::AddPath::opposite);
        peer.ttl_security = value.ttl_security;
        // AS number that the other host expects of this one, if it differs from the local one.
        peer.local_asn = value.as_num.number().map(resource::Asn::get).filter(|asn| *asn != self.local.asn);
        peer.reflector_client = self.client(&peer, host.cluster_id());
        (peer.ipv4 || peer.ipv6).then_some(peer)
    }

    fn explicit(&self, kind: PeerKind, value: &Peer, key: Key) -> PeerIntent {
        let asn = match value.as_num {
            PeerAs::Number(asn) => asn.get(),
            PeerAs::External => ANY_EXTERNAL,
            PeerAs::Internal => value.local_as_num.map_or(self.local.asn, resource::Asn::get),
        };
        let is_v3 = self.local.dialect == Dialect::V3;
        let port = value.port.unwrap_or_else(|| match self.host {
            // In a store of Calico 3 the value has the port of the node, if it is that node.
            Some((_, host)) if !is_v3 => self.model.listen_port(Some(host)),
            _ => tortie_config::key::BGP_PORT,
        });
        let object = if is_v3 { self.model.object_of(&key.to_string()) } else { None };
        let source = match object {
            Some(object) => PeerSource::Object { key, title: object.title() },
            None => PeerSource::Key(key),
        };
        let mut peer = self.plain(kind, asn, port, source);
        self.families(&mut peer, value);
        self.times(&mut peer, value);
        peer.local = match value.source_addr {
            SourceAddr::UseNodeIp => Some(self.own),
            SourceAddr::None => None,
            SourceAddr::Addr(addr) => Some(addr),
        };
        peer.local_asn = value.local_as_num.map(resource::Asn::get).filter(|asn| *asn != self.local.asn);
        if is_v3 && !(kind == PeerKind::Global && value.calico_node) {
            peer.dial_after = Some(Duration::ZERO);
        }
        if value.passive_mode {
            peer.dial_after = None;
        }
        let ebgp = asn != peer.local_asn.unwrap_or(self.local.asn);
        peer.next_hop = match value.next_hop_mode {
            Some(mode) if mode != NextHopMode::Auto => mode,
            // `keep_next_hop` only ever applied to eBGP sessions.
            None if value.keep_next_hop && ebgp => NextHopMode::Keep,
            _ => self.default_next_hop(ebgp),
        };
        peer.allow_local_as = value.num_allow_local_as;
        peer.ttl_security = value.ttl_security;
        peer.max_prefixes = value.max_prefixes.clone();
        peer.extended_messages = value.extended_messages.unwrap_or(true);
        peer.add_path = value.add_path.clone();
        peer.password = value.password.clone();
        peer.tcp_ao = value.tcp_ao.clone();
        peer.shutdown = value.shutdown.as_deref().map(Into::into);
        // BFD only protects the session, so there is none while it is shut down.
        peer.bfd = value.bfd.clone().filter(|_| peer.shutdown.is_none());
        peer.role = value.role;
        peer.role_strict = value.role_strict;
        peer.policy = PeerPolicy {
            own_only: value.own_only,
            import_pools: value.import_pools,
            filters: value.filters.clone(),
        };
        let of_host = || self.host.filter(|_| !is_v3).and_then(|(_, host)| host.cluster_id());
        let theirs = value.rr_cluster_id.or_else(of_host);
        peer.reflector_client = self.client(&peer, theirs);
        peer
    }

    /// Returns the next hop handling of a session without a mode. BIRD under Calico 3 keeps the next hop of
    /// every learned route towards iBGP peers; before, Calico set `next hop self` for all of them.
    fn default_next_hop(&self, ebgp: bool) -> NextHopMode {
        if self.local.dialect == Dialect::V3 && !ebgp { NextHopMode::Keep } else { NextHopMode::Auto }
    }

    fn families(&self, peer: &mut PeerIntent, value: &Peer) {
        if !value.families.is_empty() {
            peer.ipv4 = value.families.contains(&IpFamily::V4) && self.local.v4.is_some();
            peer.ipv6 = value.families.contains(&IpFamily::V6) && self.local.v6.is_some();
        }
    }

    fn times(&self, peer: &mut PeerIntent, value: &Peer) {
        peer.hold_time = value.hold_time.unwrap_or(HOLD_TIME);
        peer.send_hold_time = value.send_hold_time;
        peer.keepalive_time = value.keepalive_time;
        peer.restart_time = value.restart_time.unwrap_or(RESTART_TIME);
        peer.long_lived_restart_time = value.long_lived_restart_time.filter(|time| !time.is_zero());
    }

    /// Returns the cluster id for reflection, if the peer is a client.
    fn client(&self, peer: &PeerIntent, theirs: Option<Ipv4Addr>) -> Option<u32> {
        let ours = self.local.cluster_id?;
        let ibgp = peer.asn == peer.local_asn.unwrap_or(self.local.asn);
        (ibgp && theirs != Some(ours)).then(|| u32::from(ours))
    }
}

fn port_of(item: &BgpItem) -> Option<u16> {
    match item {
        BgpItem::Peer { port, .. } => *port,
        _ => None,
    }
}

/// Returns the numbered peers at an address. Their names begin with kind and address.
pub(super) fn named_at(
    peers: &Persistent<String, PeerIntent>,
    addr: IpAddr,
) -> impl Iterator<Item = (&String, &PeerIntent)> {
    let text = addr.to_string();
    [PeerKind::Global, PeerKind::Mesh, PeerKind::Node].into_iter().flat_map(move |kind| {
        let first = name(kind, &text, None);
        let here = peers.range_from(&first).take_while(move |(name, _)| name.starts_with(&first));
        here.filter(move |(_, peer)| peer.remote.ip() == addr)
    })
}

/// Returns Calico's name of a session's protocol instance, from the address as text.
pub(super) fn name(kind: PeerKind, addr: &str, port: Option<u16>) -> String {
    let kind = match kind {
        PeerKind::Mesh => "Mesh_",
        PeerKind::Global => "Global_",
        PeerKind::Node => "Node_",
        PeerKind::Dynamic => super::ranges::DYNAMIC,
    };
    let mut name = String::with_capacity(kind.len() + addr.len());
    name.push_str(kind);
    name.extend(addr.chars().map(|c| if matches!(c, '.' | ':') { '_' } else { c }));
    if let Some(port) = port {
        name.push_str(&format!("_port_{port}"));
    }
    name
}
