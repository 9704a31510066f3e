//! Traces a packet between two parties of the cluster, using the store alone.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::IpipMode;
use tortie_config::{Dialect, Resource};
use tortie_net::Cidr;

use super::closest::{Change, closest};
use super::eval::Node;
use super::types::{Flow, Path, Place, Reason, Routes, State};
use crate::model::{InvalidKey, Model};
use crate::policy::hosts::{ALL_INTERFACES, HostInterfaces, host_endpoints};
use crate::policy::types::Ruleset;
use crate::policy::verdict::{Packet, Verdict};
use crate::policy::{EndpointLabels, Engine, Globals};

/// Placeholder for the interface that leads from a host to all other hosts. No real interface can have this
/// name.
pub const OUTSIDE: &str = "/outside";

const TUNNEL: &str = "tunl0";
const IPIP: u8 = 4;
const UDP: u8 = 17;
/// A source port as VXLAN uses (RFC 7348, section 5: of the dynamic range, by a hash of the inner packet).
const VXLAN_SOURCE: u16 = 49_152;

/// Source or destination of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// A workload or host endpoint.
    Endpoint(EndpointKey),
    /// A host of the cluster itself.
    Host(String),
    /// An address, regardless of its holder.
    Addr(IpAddr),
}

impl Party {
    /// Finds a party by a name that operators use: an address, a host, or an endpoint by its key (complete,
    /// or relative to `/calico/v1/host/`), its workload, its id, or its interface.
    ///
    /// # Errors
    /// If no party or more than one matches; the text says which.
    pub fn find(model: &Model, name: &str) -> Result<Self, String> {
        if let Ok(addr) = name.parse() {
            return Ok(Self::Addr(addr));
        }
        if let Ok(Key::Endpoint(key)) = Key::parse(name) {
            return Ok(Self::Endpoint(key));
        }
        if model.host(name).is_some() {
            return Ok(Self::Host(name.to_owned()));
        }
        let called = |(key, resource): &(&EndpointKey, &Arc<Resource>)| {
            key.to_string() == name || is_called(key, resource, name)
        };
        let found: Vec<&EndpointKey> =
            model.endpoint_resources().filter(called).map(|(key, _)| key).collect();
        match found.as_slice() {
            [] => {
                Err(format!("no endpoint, host or address has the name {name}: see `tortie endpoint list`"))
            }
            [key] => Ok(Self::Endpoint((*key).clone())),
            [first, second, ..] => Err(format!(
                "{} endpoints have the name {name}, such as {first} and {second}: give the key",
                found.len()
            )),
        }
    }
}

fn is_called(key: &EndpointKey, resource: &Resource, name: &str) -> bool {
    let interface = match resource {
        Resource::WorkloadEndpoint(workload) => Some(workload.name.as_str()),
        Resource::HostEndpoint(host) => host.name.as_ref().map(|name| name.as_str()),
        _ => None,
    };
    interface == Some(name)
        || match key {
            EndpointKey::Workload { workload, endpoint, .. } => workload == name || endpoint == name,
            EndpointKey::Host { endpoint, .. } => endpoint == name,
        }
}

/// Protocol and ports of the traced packet, which is the first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePacket {
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, for protocols with ports.
    pub ports: Option<(u16, u16)>,
    /// ICMP type and code.
    pub icmp: Option<(u8, u8)>,
}

/// Result of one host for the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// Name of the host.
    pub host: String,
    /// True if this is the tunnel packet between the hosts that carries the traced one.
    pub outer: bool,
    /// The packet as it arrives at the host.
    pub flow: Flow,
    /// Path through the host.
    pub path: Path,
    /// Rules of the host that may affect the packet. The sets contain the relevant addresses and few others.
    pub ruleset: Arc<Ruleset>,
    /// Changes that would let the packet pass, if the host denies it; nearest first.
    pub closest: Vec<Change>,
}

/// Path of a packet through the hosts of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The packet as it is sent.
    pub packet: Packet,
    /// Results of the hosts that the store knows, in path order. All hosts are evaluated, even if the first
    /// one drops the packet.
    pub host_paths: Vec<HostPath>,
    /// `Allow` if all of the hosts let the packet pass.
    pub verdict: Verdict,
    /// Factors that may change the result and were not evaluated.
    pub not_evaluated: Vec<NotEvaluated>,
}

/// A factor that the trace did not evaluate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotEvaluated {
    /// Kernel state: established connections, routes, rules of other programs, sockets.
    Kernel,
    /// Own settings of another host; global settings and defaults were used instead.
    Settings(String),
    /// A host endpoint that may apply to the packet: the store does not show if the packet passes its
    /// interface.
    HostEndpoint(EndpointKey),
    /// Subnets of the hosts, for a pool with `cross-subnet`; no tunnel was assumed.
    Tunnel(Cidr),
    /// The network outside of the cluster, which has this address.
    Outside(IpAddr),
    /// The current value of a key that cannot be parsed; its last good value was used, as it is in force.
    LastGood(String),
    /// A key that may affect the packet and never had a value that could be parsed.
    Unreadable(String),
}

impl fmt::Display for NotEvaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => {
                f.write_str("the kernels: existing connections, routes, rules of other programs, sockets")
            }
            Self::Settings(host) => {
                write!(f, "settings of {host} alone: global settings and defaults were used")
            }
            Self::HostEndpoint(key) => {
                write!(
                    f,
                    "whether the packet passes the interface of host endpoint {key}, which the store does not record"
                )
            }
            Self::Tunnel(pool) => {
                write!(
                    f,
                    "whether the hosts are in one subnet, for pool {pool} with cross-subnet: no tunnel was assumed"
                )
            }
            Self::Outside(addr) => write!(f, "the path of the packet outside of the cluster, at {addr}"),
            Self::LastGood(key) => {
                write!(
                    f,
                    "the present value of {key}, which cannot be parsed: its last good value is in force"
                )
            }
            Self::Unreadable(key) => {
                write!(
                    f,
                    "{key}, which never had a valid value: it may have been meant to decide about this \
                     packet"
                )
            }
        }
    }
}

/// Location of a party.
struct AddressLocation {
    host: Option<String>,
    addr: IpAddr,
    /// Interface of a workload; `None` for a host.
    interface: Option<Box<str>>,
}

/// The part of a model that may affect a packet between two parties: endpoints that the packet may reach, and
/// endpoints with an address that the packet may carry.
#[derive(Debug)]
pub struct Excerpt(Model);

impl Excerpt {
    /// Extracts the part from a model. It scans all endpoints of the cluster, but computes no rules.
    ///
    /// # Errors
    /// If a party has no address.
    pub fn of(model: &Model, from: &Party, to: &Party) -> Result<Self, String> {
        let mut addrs: BTreeSet<IpAddr> = BTreeSet::new();
        let mut hosts: BTreeSet<&str> = BTreeSet::new();
        for party in [from, to] {
            let own = addresses(model, party)?;
            match party {
                Party::Endpoint(key) => _ = hosts.insert(key.host()),
                Party::Host(name) => _ = hosts.insert(name),
                Party::Addr(addr) => hosts.extend(model.hosts_by_address(*addr).map(|(name, _)| name)),
            }
            addrs.extend(own);
        }
        // A floating address is relevant together with its internal address.
        let mut pairs = Vec::new();
        for (key, resource) in model.endpoint_resources() {
            let Resource::WorkloadEndpoint(workload) = &**resource else { continue };
            let has = |addr: &IpAddr| {
                workload.nets().any(|net| net.contains(*addr))
                    || model.nats(key, workload).any(|(inside, outside)| inside == *addr || outside == *addr)
            };
            if addrs.iter().any(has) {
                hosts.insert(key.host());
                pairs.extend(model.nats(key, workload).flat_map(|(inside, outside)| [inside, outside]));
            }
        }
        addrs.extend(pairs);
        // A masqueraded or tunnelled packet carries the address of a host.
        addrs.extend(hosts.iter().filter_map(|name| model.host(name)).flat_map(|host| host.addrs()));
        let meets = |key: &EndpointKey, resource: &Resource| match resource {
            Resource::WorkloadEndpoint(workload) => {
                addrs.iter().any(|addr| workload.nets().any(|net| net.contains(*addr)))
                    || model
                        .nats(key, workload)
                        .any(|(inside, outside)| addrs.contains(&inside) || addrs.contains(&outside))
            }
            Resource::HostEndpoint(host) => {
                hosts.contains(key.host()) || host.addrs().any(|addr| addrs.contains(&addr))
            }
            _ => false,
        };
        // Two endpoints may claim the same interface.
        let interfaces: BTreeSet<(&str, &str)> = model
            .endpoint_resources()
            .filter(|(key, resource)| meets(key, resource))
            .filter_map(|(key, resource)| Some((key.host(), interface(resource)?)))
            .collect();
        let wanted = |key: &EndpointKey, resource: &Resource| {
            meets(key, resource)
                || interface(resource).is_some_and(|name| interfaces.contains(&(key.host(), name)))
        };
        Ok(Self(model.excerpt(wanted)))
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &Model {
        &self.0
    }

    /// Runs [`trace`] on the extracted part.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn trace(&self, from: &Party, to: &Party, probe: ProbePacket) -> Result<Trace, String> {
        follow(&self.0, from, to, probe, State::New)
    }

    /// Runs the trace for a packet in a given connection state.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn trace_in(
        &self,
        from: &Party,
        to: &Party,
        probe: ProbePacket,
        state: State,
    ) -> Result<Trace, String> {
        follow(&self.0, from, to, probe, state)
    }
}

/// Returns the interface of a workload endpoint.
fn interface(resource: &Resource) -> Option<&str> {
    match resource {
        Resource::WorkloadEndpoint(workload) => Some(workload.name.as_str()),
        _ => None,
    }
}

/// Traces a packet from one party to another: first through the sender's host, then through the receiver's,
/// each as the first packet of a connection. If a party has addresses of both families, a common family is
/// used, IPv4 first.
///
/// It scans all endpoints of the cluster ([`Excerpt::of`]).
///
/// # Errors
/// If a party has no address, if the parties have no common address family, or if neither is in the store.
pub fn trace(model: &Model, from: &Party, to: &Party, probe: ProbePacket) -> Result<Trace, String> {
    Excerpt::of(model, from, to)?.trace(from, to, probe)
}

/// Runs the trace on a whole model.
pub(super) fn follow(
    model: &Model,
    from: &Party,
    to: &Party,
    probe: ProbePacket,
    state: State,
) -> Result<Trace, String> {
    let (sources, targets) = (addresses(model, from)?, addresses(model, to)?);
    let pair = sources.iter().find_map(|src| {
        let dst = targets.iter().find(|dst| dst.is_ipv4() == src.is_ipv4())?;
        Some((*src, *dst))
    });
    let (src, dst) = pair.ok_or("the two have no address of one family")?;
    let (from, to) = (locate(model, from, src), locate(model, to, dst));
    let ProbePacket { protocol, ports, icmp } = probe;
    let packet = Packet { src, dst, protocol, ports, icmp };
    let mut not_evaluated = BTreeSet::from([NotEvaluated::Kernel]);
    not_evaluated.extend(
        [&from, &to].into_iter().filter(|end| end.host.is_none()).map(|end| NotEvaluated::Outside(end.addr)),
    );
    let mut host_paths = Vec::new();
    let entry = |end: &AddressLocation| end.interface.clone().map_or(Place::Host, Place::Interface);
    match (&from.host, &to.host) {
        (None, None) => return Err(format!("neither {src} nor {dst} is in the store")),
        (Some(host), Some(same)) if host == same => {
            let here = HostState::of(model, host, &mut not_evaluated);
            host_paths.push(here.half(packet, entry(&from), false, state));
        }
        (Some(sender), None) => host_paths.push(HostState::of(model, sender, &mut not_evaluated).half(
            packet,
            entry(&from),
            false,
            state,
        )),
        (None, Some(receiver)) => {
            host_paths.push(HostState::of(model, receiver, &mut not_evaluated).half(
                packet,
                outside(),
                false,
                state,
            ));
        }
        (Some(sender), Some(receiver)) => {
            let (sender, receiver) = (
                HostState::of(model, sender, &mut not_evaluated),
                HostState::of(model, receiver, &mut not_evaluated),
            );
            let half = sender.half(packet, entry(&from), false, state);
            let mut arrives = half.path.packet;
            if half.path.steps.iter().any(|step| step.reason == Reason::Masquerade) {
                arrives.src = sender.addr(src).unwrap_or(src);
            }
            host_paths.push(half);
            let outer = if to.interface.is_some() {
                outer(model, &sender, &receiver, dst, &mut not_evaluated)
            } else {
                None
            };
            if let Some(outer) = outer {
                host_paths.push(sender.half(outer, Place::Host, true, State::New));
                host_paths.push(receiver.half(outer, outside(), true, State::New));
                host_paths.push(receiver.half(arrives, Place::Interface(TUNNEL.into()), false, state));
            } else {
                host_paths.push(receiver.half(arrives, outside(), false, state));
            }
        }
    }
    let denied = host_paths.iter().any(|half| half.path.verdict == Verdict::Deny);
    let verdict = if denied { Verdict::Deny } else { Verdict::Allow };
    not_evaluated.extend(unreadable(model, &host_paths, from.host.is_none() || to.host.is_none()));
    Ok(Trace { packet, host_paths, verdict, not_evaluated: not_evaluated.into_iter().collect() })
}

/// Returns the unreadable values that may affect the packet. `unknown_end` is true if the source or
/// destination has neither endpoint nor host.
fn unreadable(model: &Model, host_paths: &[HostPath], unknown_end: bool) -> Vec<NotEvaluated> {
    let steps = host_paths.iter().flat_map(|half| &half.path.steps);
    let met: BTreeSet<&EndpointKey> = steps.filter_map(|step| step.endpoint.as_ref()).collect();
    let labels = EndpointLabels::of(model, |key| met.contains(key));
    let counts = |problem: &&InvalidKey| match problem.parsed() {
        Some(Key::Policy { .. }) => match &problem.selector {
            Some(selector) if !problem.last_good => labels.selected(selector).next().is_some(),
            _ => !met.is_empty(),
        },
        // Rules of an unreadable profile deny where they are referenced, and are part of the steps.
        Some(Key::Profile { part, .. }) => part != ProfilePart::Rules && !met.is_empty(),
        Some(Key::TierMetadata { .. } | Key::Tier { .. }) => !met.is_empty(),
        Some(Key::Endpoint(_)) => unknown_end || problem.last_good,
        Some(Key::Setting(..)) => true,
        _ => false,
    };
    let found = model.invalid_keys().filter(counts);
    let entry = |problem: &InvalidKey| match problem.last_good {
        true => NotEvaluated::LastGood(model.name_of_text(&problem.key)),
        false => NotEvaluated::Unreadable(model.name_of_text(&problem.key)),
    };
    found.map(entry).collect()
}

fn outside() -> Place {
    Place::Interface(OUTSIDE.into())
}

/// Returns the IPIP or VXLAN packet between two hosts that carries a packet to an address of a pool with a
/// tunnel.
fn outer(
    model: &Model,
    sender: &HostState,
    receiver: &HostState,
    dst: IpAddr,
    not_evaluated: &mut BTreeSet<NotEvaluated>,
) -> Option<Packet> {
    let pools = model.pools().filter(|pool| pool.key.contains(dst));
    let pool = pools.max_by_key(|pool| pool.key.len())?;
    let ipip = pool.value.ipip.as_ref().map(|ipip| ipip.mode);
    if ipip.or(pool.value.vxlan)? == IpipMode::CrossSubnet {
        not_evaluated.insert(NotEvaluated::Tunnel(*pool.key));
        return None;
    }
    let (src, dst) = (sender.addr(dst)?, receiver.addr(dst)?);
    if ipip.is_some() {
        return Some(Packet { src, dst, protocol: IPIP, ports: None, icmp: None });
    }
    let ports = Some((VXLAN_SOURCE, model.settings().vxlan_port));
    Some(Packet { src, dst, protocol: UDP, ports, icmp: None })
}

/// Returns the addresses of a party, IPv4 first.
fn addresses(model: &Model, party: &Party) -> Result<Vec<IpAddr>, String> {
    let (found, name): (Vec<IpAddr>, String) = match party {
        Party::Addr(addr) => return Ok(vec![*addr]),
        Party::Host(name) => {
            (model.host(name).map(|host| host.addrs().collect()).unwrap_or_default(), name.clone())
        }
        Party::Endpoint(key) => {
            let resource = model.resource(&Key::Endpoint(key.clone()));
            let own = match resource.map(|resource| &**resource) {
                Some(Resource::WorkloadEndpoint(workload)) => workload.nets().map(Cidr::addr).collect(),
                Some(Resource::HostEndpoint(host)) => {
                    let expected: Vec<IpAddr> = host.addrs().collect();
                    let of_host = || model.host(key.host()).map(|host| host.addrs().collect());
                    if expected.is_empty() { of_host().unwrap_or_default() } else { expected }
                }
                _ => return Err(format!("there is no endpoint {key}")),
            };
            (own, key.to_string())
        }
    };
    if found.is_empty() { Err(format!("{name} has no address")) } else { Ok(found) }
}

fn locate(model: &Model, party: &Party, addr: IpAddr) -> AddressLocation {
    let at = |host: &str, interface: Option<&str>| AddressLocation {
        host: Some(host.to_owned()),
        addr,
        interface: interface.map(Into::into),
    };
    let of = |key: &EndpointKey, resource: &Resource| match resource {
        Resource::WorkloadEndpoint(workload) => at(key.host(), Some(workload.name.as_str())),
        _ => at(key.host(), None),
    };
    match party {
        Party::Host(name) => return at(name, None),
        Party::Endpoint(key) => {
            if let Some(resource) = model.resource(&Key::Endpoint(key.clone())) {
                return of(key, resource);
            }
        }
        Party::Addr(_) => {}
    }
    if let Some((name, _)) = model.hosts_by_address(addr).next() {
        return at(name, None);
    }
    let has = |key: &EndpointKey, resource: &Resource| match resource {
        Resource::WorkloadEndpoint(workload) => {
            let outside = || model.nats(key, workload).any(|(_, outside)| workload.active && outside == addr);
            workload.nets().any(|net| net.contains(addr)) || outside()
        }
        Resource::HostEndpoint(host) => host.addrs().any(|own| own == addr),
        _ => false,
    };
    let found = model.endpoint_resources().find(|(key, resource)| has(key, resource));
    found.map_or_else(
        || AddressLocation { host: None, addr, interface: None },
        |(key, resource)| of(key, resource),
    )
}

/// Rules and routes of a host according to the store.
struct HostState {
    host: String,
    addrs: Vec<IpAddr>,
    ruleset: Arc<Ruleset>,
    globals: Globals,
    hosts: HostInterfaces,
    routes: Routes,
}

impl HostState {
    fn of(model: &Model, host: &str, not_evaluated: &mut BTreeSet<NotEvaluated>) -> Self {
        let mut ruleset = Ruleset::default();
        Engine::of_host(model, host).1.apply(&mut ruleset);
        if host != model.node() {
            not_evaluated.insert(NotEvaluated::Settings(host.to_owned()));
        }
        let addrs: Vec<IpAddr> = model.host(host).map(|host| host.addrs().collect()).unwrap_or_default();
        let mut routes = Routes::of_workloads(&ruleset);
        routes.local.extend(&addrs);
        for everything in [Cidr::v4(Ipv4Addr::UNSPECIFIED, 0), Cidr::v6(Ipv6Addr::UNSPECIFIED, 0)] {
            routes.via.insert(everything, OUTSIDE.into());
        }
        // A host endpoint that expects one of the host's cluster addresses applies to the interface to other
        // hosts, whatever its name.
        let mut hosts = HostInterfaces::new();
        for (key, endpoint) in host_endpoints(&ruleset) {
            routes.local.extend(&endpoint.addrs);
            let name = endpoint.interface.as_ref().map(|name| name.as_str());
            if name == Some(ALL_INTERFACES) && model.dialect() == Dialect::V3 {
                hosts.entry(ALL_INTERFACES.into()).or_insert_with(|| key.clone());
            } else if endpoint.addrs.iter().any(|addr| addrs.contains(addr)) {
                hosts.entry(OUTSIDE.into()).or_insert_with(|| key.clone());
            } else {
                not_evaluated.insert(NotEvaluated::HostEndpoint(key.clone()));
            }
        }
        let globals = Globals::of_host(model, host);
        Self { host: host.to_owned(), addrs, ruleset: Arc::new(ruleset), globals, hosts, routes }
    }

    /// Returns the host's address of the same family as `like`.
    fn addr(&self, like: IpAddr) -> Option<IpAddr> {
        self.addrs.iter().copied().find(|addr| addr.is_ipv4() == like.is_ipv4())
    }

    fn half(&self, packet: Packet, from: Place, outer: bool, state: State) -> HostPath {
        let Self { ruleset, globals, hosts, routes, .. } = self;
        let node = Node { ruleset, globals, hosts, routes };
        let flow = Flow { packet, from, state };
        let path = node.path(&flow);
        let closest = closest(&node, &flow, &path);
        HostPath { closest, host: self.host.clone(), outer, flow, path, ruleset: Arc::clone(ruleset) }
    }
}
