//! From one end of the cluster to another, as far as the store alone tells.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_config::Resource;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::IpipMode;
use tortie_net::Cidr;

use super::closest::{Change, closest};
use super::eval::Node;
use super::types::{Flow, Path, Place, Reason, Routes, State};
use crate::model::{InvalidKey, Model};
use crate::policy::hosts::{HostInterfaces, host_endpoints};
use crate::policy::types::Ruleset;
use crate::policy::verdict::{Packet, Verdict};
use crate::policy::{EndpointLabels, Engine, Globals};

/// The name that stands for whatever interface leads from a host to all others. No interface can have it.
pub const OUTSIDE: &str = "/outside";

const TUNNEL: &str = "tunl0";
const IPIP: u8 = 4;

/// One end of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Party {
    /// An endpoint.
    Endpoint(EndpointKey),
    /// A host of the cluster itself.
    Host(String),
    /// An address, whoever has it.
    Addr(IpAddr),
}

impl Party {
    /// Finds a party by what people call it: an address, a host, an endpoint's key (whole, or below `/calico/v1/host/`), its
    /// workload, its id, or its interface.
    ///
    /// # Errors
    /// When there is none of that name, or several; says which.
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
            [] => Err(format!("no endpoint, host or address is called {name}: see `tortie endpoint list`")),
            [key] => Ok(Self::Endpoint((*key).clone())),
            [first, second, ..] => Err(format!(
                "{} endpoints are called {name}, such as {first} and {second}: give the key",
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

/// What is sent: the first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbePacket {
    /// The IP protocol's number.
    pub protocol: u8,
    /// Source and destination port, for protocols that have them.
    pub ports: Option<(u16, u16)>,
    /// ICMP type and code.
    pub icmp: Option<(u8, u8)>,
}

/// What one host does with the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The host.
    pub host: String,
    /// The packet that tunnels the one asked about, from host to host.
    pub outer: bool,
    /// The packet as it comes to the host.
    pub flow: Flow,
    /// Its way through the host.
    pub path: Path,
    /// The rules of the host, as far as they have a part in it: sets hold the addresses that count, and few others.
    pub ruleset: Arc<Ruleset>,
    /// Where it is denied: the changes that are closest to letting it pass.
    pub closest: Vec<Change>,
}

/// The way of a packet through the hosts of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The packet as it is sent.
    pub packet: Packet,
    /// The hosts that the store knows of, in the order of the way. All are asked, even when the first one drops.
    pub host_paths: Vec<HostPath>,
    /// Whether every one of them lets it pass.
    pub verdict: Verdict,
    /// What may make a difference and was not looked at.
    pub not_evaluated: Vec<NotEvaluated>,
}

/// What a trace did not look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotEvaluated {
    /// The kernels: connections that are there already, routes, rules of other programs, sockets.
    Kernel,
    /// The own settings of another host: global ones and defaults were taken.
    Settings(String),
    /// A host endpoint of a host that names its interface: whether the packet passes that is not in the store.
    HostEndpoint(EndpointKey),
    /// Whether the hosts are in one subnet, for a pool with `cross-subnet`: no tunnel was assumed.
    Tunnel(Cidr),
    /// What lies outside of the cluster.
    Outside(IpAddr),
    /// The present value of a key, which cannot be read: an earlier one was taken, as it is in force.
    LastGood(String),
    /// A key that may decide about the packet, and no value of which could ever be read.
    Unreadable(String),
}

impl fmt::Display for NotEvaluated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str(
                "the kernels: connections that are there already, routes, rules of other programs, sockets",
            ),
            Self::Settings(host) => {
                write!(f, "settings of {host} alone: global ones and defaults were taken")
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
            Self::Outside(addr) => write!(f, "what becomes of the packet outside of the cluster, at {addr}"),
            Self::LastGood(key) => {
                write!(f, "the present value of {key}, which cannot be read: its last good one is in force")
            }
            Self::Unreadable(key) => {
                write!(
                    f,
                    "{key}, which cannot be read and never could: it may have been meant to decide about this packet"
                )
            }
        }
    }
}

/// Where a party is.
struct AddressLocation {
    host: Option<String>,
    addr: IpAddr,
    /// The interface of a workload; a host has none.
    interface: Option<Box<str>>,
}

/// What of a cluster has a part in the way of a packet between two parties: of its endpoints only those that the packet could
/// meet, and those that have an address that it could bear.
#[derive(Debug)]
pub struct Excerpt(Model);

impl Excerpt {
    /// Takes it from a model. It looks at every endpoint of the cluster and makes rules of none.
    ///
    /// # Errors
    /// When a party has no address.
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
        // A floating address stands for the one inside, and the other way round.
        let mut pairs = Vec::new();
        for (key, resource) in model.endpoint_resources() {
            let Resource::WorkloadEndpoint(workload) = &**resource else { continue };
            let has = |addr: &IpAddr| {
                workload.nets().any(|net| net.contains(*addr))
                    || workload.nats().any(|(inside, outside)| inside == *addr || outside == *addr)
            };
            if addrs.iter().any(has) {
                hosts.insert(key.host());
                pairs.extend(workload.nats().flat_map(|(inside, outside)| [inside, outside]));
            }
        }
        addrs.extend(pairs);
        // What is masqueraded or tunnelled bears a host's.
        addrs.extend(hosts.iter().filter_map(|name| model.host(name)).flat_map(|host| host.addrs()));
        let meets = |key: &EndpointKey, resource: &Resource| match resource {
            Resource::WorkloadEndpoint(workload) => {
                addrs.iter().any(|addr| workload.nets().any(|net| net.contains(*addr)))
                    || workload
                        .nats()
                        .any(|(inside, outside)| addrs.contains(&inside) || addrs.contains(&outside))
            }
            Resource::HostEndpoint(host) => {
                hosts.contains(key.host()) || host.addrs().any(|addr| addrs.contains(&addr))
            }
            _ => false,
        };
        // Two endpoints may claim one interface.
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

    /// [`trace`], of what was taken out for these parties.
    ///
    /// # Errors
    /// As there.
    pub fn trace(&self, from: &Party, to: &Party, probe: ProbePacket) -> Result<Trace, String> {
        follow(&self.0, from, to, probe, State::New)
    }

    /// The same of a packet in this state of its connection.
    ///
    /// # Errors
    /// As there.
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

/// The interface of a workload.
fn interface(resource: &Resource) -> Option<&str> {
    match resource {
        Resource::WorkloadEndpoint(workload) => Some(workload.name.as_str()),
        _ => None,
    }
}

/// Follows a packet from one party to another: what the sender's host does with it, then what the receiver's does, each
/// as if it were new. Of a party with addresses of both families the one that both have counts, IPv4 first.
///
/// It looks at every endpoint of the cluster ([`Excerpt::of`]).
///
/// # Errors
/// When a party has no address, the two have none in common, or neither is in the store.
pub fn trace(model: &Model, from: &Party, to: &Party, probe: ProbePacket) -> Result<Trace, String> {
    Excerpt::of(model, from, to)?.trace(from, to, probe)
}

/// The same with all that a model holds.
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
        (None, None) => return Err(format!("neither {src} nor {dst} is known to the store")),
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

/// The values that may decide about a packet and cannot be read. `unknown_end`: an end of it has no endpoint and no host.
fn unreadable(model: &Model, host_paths: &[HostPath], unknown_end: bool) -> Vec<NotEvaluated> {
    let steps = host_paths.iter().flat_map(|half| &half.path.steps);
    let met: BTreeSet<&EndpointKey> = steps.filter_map(|step| step.endpoint.as_ref()).collect();
    let labels = EndpointLabels::of(model, |key| met.contains(key));
    let counts = |problem: &&InvalidKey| match problem.parsed() {
        Some(Key::Policy { .. }) => match &problem.selector {
            Some(selector) if !problem.last_good => labels.selected(selector).next().is_some(),
            _ => !met.is_empty(),
        },
        // Rules of profiles deny where they are referenced, and stand in the steps.
        Some(Key::Profile { part, .. }) => part != ProfilePart::Rules && !met.is_empty(),
        Some(Key::TierMetadata { .. }) => !met.is_empty(),
        Some(Key::Endpoint(_)) => unknown_end || problem.last_good,
        Some(Key::Setting(..)) => true,
        _ => false,
    };
    let found = model.invalid_keys().filter(counts);
    let entry = |problem: &InvalidKey| match problem.last_good {
        true => NotEvaluated::LastGood(problem.key.clone()),
        false => NotEvaluated::Unreadable(problem.key.clone()),
    };
    found.map(entry).collect()
}

fn outside() -> Place {
    Place::Interface(OUTSIDE.into())
}

/// The packet between two hosts that tunnels one to an address of a pool with IPIP.
fn outer(
    model: &Model,
    sender: &HostState,
    receiver: &HostState,
    dst: IpAddr,
    not_evaluated: &mut BTreeSet<NotEvaluated>,
) -> Option<Packet> {
    let pools = model.pools().filter(|pool| pool.key.contains(dst));
    let pool = pools.max_by_key(|pool| pool.key.len())?;
    if pool.value.ipip.as_ref()?.mode == IpipMode::CrossSubnet {
        not_evaluated.insert(NotEvaluated::Tunnel(*pool.key));
        return None;
    }
    let (src, dst) = (sender.addr(dst)?, receiver.addr(dst)?);
    Some(Packet { src, dst, protocol: IPIP, ports: None, icmp: None })
}

/// The addresses of a party, IPv4 first.
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
    let has = |resource: &Resource| match resource {
        Resource::WorkloadEndpoint(workload) => {
            let outside = || workload.nats().any(|(_, outside)| workload.active && outside == addr);
            workload.nets().any(|net| net.contains(addr)) || outside()
        }
        Resource::HostEndpoint(host) => host.addrs().any(|own| own == addr),
        _ => false,
    };
    let found = model.endpoint_resources().find(|(_, resource)| has(resource));
    found.map_or_else(
        || AddressLocation { host: None, addr, interface: None },
        |(key, resource)| of(key, resource),
    )
}

/// A host as the store knows it.
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
        // One that expects the address by which others reach the host governs that interface, whatever its name.
        let mut hosts = HostInterfaces::new();
        for (key, endpoint) in host_endpoints(&ruleset) {
            routes.local.extend(&endpoint.addrs);
            if endpoint.addrs.iter().any(|addr| addrs.contains(addr)) {
                hosts.entry(OUTSIDE.into()).or_insert_with(|| key.clone());
            } else {
                not_evaluated.insert(NotEvaluated::HostEndpoint(key.clone()));
            }
        }
        let globals = Globals::of_host(model, host);
        Self { host: host.to_owned(), addrs, ruleset: Arc::new(ruleset), globals, hosts, routes }
    }

    /// Its address of the family of another.
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
