//! Path of a packet between two ends: resolves names to endpoints or addresses, and evaluates the policies on
//! the path. `why packet` evaluates this host's part again with the rules of its kernel thread.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, IpFamily, Key};
use tortie_config::resource::Protocol;
use tortie_net::Cidr;

use super::trace;
use crate::agent::policy_view::{PolicyView, addresses_of};
use crate::api::policy::{Trace, TraceEnd, TraceHost, TraceQuery, TraceStep};
use crate::api::status::ApiError;
use tortie_engine::model::Model;
use tortie_engine::model::endpoint_name::endpoint_name;
use tortie_engine::policy::path::{
    self, Change, Excerpt, HostPath, Node, OUTSIDE, Party, Place, ProbePacket, Routes,
};
use tortie_engine::policy::{Globals, Verdict, host_interfaces};
use tortie_kernel::{ForwardDrop, KernelView};

/// Default source port of a connection.
const EPHEMERAL: u16 = 49_152;

/// A packet whose path is explained.
#[derive(Debug, Clone)]
pub(in crate::agent) struct PacketQuery {
    from: Party,
    to: Party,
    probe: ProbePacket,
    ends: [TraceEnd; 2],
    what: String,
    established: bool,
    /// Names of the ends, as derived from their keys and from their containers.
    names: Vec<(String, String)>,
}

/// Result for one host: its description, the evaluated path, and the smallest changes that would allow the
/// packet.
pub(in crate::agent) type TraceResult = (TraceHost, path::Path, Vec<Change>);

fn invalid(text: String) -> ApiError {
    ApiError { code: "invalid".to_owned(), text }
}

impl PacketQuery {
    /// Parses a query.
    ///
    /// # Errors
    /// Returns an error when an end is unknown, the ends have no common address family, or the packet is
    /// impossible.
    pub(in crate::agent) fn read(view: &PolicyView<'_>, query: &TraceQuery) -> Result<Self, ApiError> {
        let protocol: Protocol = query
            .proto
            .parse()
            .map_err(|error: tortie_config::ValueError| invalid(format!("--proto: {error}")))?;
        let family = match protocol.number() {
            1 => Some(IpFamily::V4),
            58 => Some(IpFamily::V6),
            _ => None,
        };
        let (from, from_end) = party(view, &query.from, family)?;
        let (to, to_end) = party(view, &query.to, family)?;
        let icmp = query.icmp.as_deref().map(icmp).transpose().map_err(invalid)?;
        if icmp.is_some() && !protocol.is_icmp() {
            return Err(invalid(format!("--icmp is for icmp and icmpv6, not for {protocol}")));
        }
        // Default ICMP type and code: echo request.
        let echo = if protocol.number() == 1 { (8, 0) } else { (128, 0) };
        let icmp = protocol.is_icmp().then(|| icmp.unwrap_or(echo));
        let has_ports = matches!(protocol.number(), 6 | 17 | 132 | 136);
        let ports = match (has_ports, query.dport) {
            (true, Some(port)) => Some((query.sport.unwrap_or(EPHEMERAL), port)),
            (true, None) => return Err(invalid(format!("{protocol} needs a port: --dport N"))),
            (false, Some(_)) => return Err(invalid(format!("--dport: {protocol} has no ports"))),
            (false, None) => None,
        };
        let what = match (ports, icmp) {
            (Some((_, port)), _) => format!("{protocol}/{port}"),
            (None, Some((kind, code))) => format!("{protocol} type {kind} code {code}"),
            (None, None) => protocol.to_string(),
        };
        let probe = ProbePacket { protocol: protocol.number(), ports, icmp };
        let established = query.established;
        let by_key = |name: &String, end: &TraceEnd| {
            let key = view.find_endpoint(name).ok()?;
            Some((endpoint_name(&key), end.endpoint.clone()?))
        };
        let names = [by_key(&query.from, &from_end), by_key(&query.to, &to_end)];
        let names = names.into_iter().flatten().filter(|(by_key, shown)| by_key != shown).collect();
        Ok(Self { from, to, probe, ends: [from_end, to_end], what, established, names })
    }

    /// Copies the part of the model that the path needs.
    ///
    /// # Errors
    /// Returns an error when an end has no address.
    pub(in crate::agent) fn excerpt(&self, model: &Model) -> Result<Excerpt, ApiError> {
        Excerpt::of(model, &self.from, &self.to).map_err(invalid)
    }

    /// Evaluates the path with the stored policies of each host on it.
    ///
    /// # Errors
    /// Returns an error when the ends have no common address family, or neither end is known.
    pub(in crate::agent) fn follow(&self, excerpt: &Excerpt) -> Result<path::Trace, ApiError> {
        let state = match self.established {
            true => path::State::Established { reply: false },
            false => path::State::New,
        };
        excerpt.trace_in(&self.from, &self.to, self.probe, state).map_err(invalid)
    }

    /// Returns the ends with address and name, and the description of the packet.
    pub(in crate::agent) fn named(&self, found: &path::Trace) -> ([TraceEnd; 2], String) {
        let [mut from, mut to] = self.ends.clone();
        from.address = found.packet.src.to_string();
        to.address = found.packet.dst.to_string();
        ([from, to], self.what.clone())
    }

    /// Builds the answer; `walked` has the result of each host.
    pub(in crate::agent) fn answer(
        &self,
        found: &path::Trace,
        walked: Vec<TraceResult>,
        live: bool,
    ) -> Trace {
        let denied = walked.iter().find(|(_, path, _)| path.verdict == Verdict::Deny);
        let by_rule = || walked.iter().rev().find(|(_, path, _)| path.decider().is_some());
        let decided = denied.or_else(by_rule).or(walked.last());
        let by = decided.map_or_else(String::new, |(host, path, _)| {
            format!("{} on {}", trace::decided_by(path), host.host)
        });
        let verdict = if denied.is_some() { "deny" } else { "allow" };
        let unreadable = found.not_evaluated.iter().filter_map(|what| match what {
            path::NotEvaluated::Unreadable(key) => Some(key.clone()),
            _ => None,
        });
        let mut not_looked_at: Vec<String> = found.not_evaluated.iter().map(ToString::to_string).collect();
        if live && let Some(first) = not_looked_at.first_mut() {
            "other hosts' kernels; existing connections, rules of other programs, sockets".clone_into(first);
        }
        let ([from, to], what) = self.named(found);
        let by = self.with_names(by);
        let closest_changes = match denied {
            Some((host, path, changes)) => {
                let whole = walked.iter().filter(|(_, path, _)| path.verdict == Verdict::Deny).count() == 1;
                let words = |change| trace::change(change, &path.packet, found.packet.src, [&from, &to]);
                let on = if whole {
                    String::new()
                } else {
                    format!(", on {} (it is also denied elsewhere)", host.host)
                };
                changes.iter().map(|change| words(change) + &on).collect()
            }
            None => Vec::new(),
        };
        Trace {
            closest_changes,
            verdict: verdict.to_owned(),
            from,
            to,
            what,
            established: self.established,
            by,
            hosts: walked.into_iter().map(|(host, _, _)| self.host_with_names(host)).collect(),
            not_looked_at,
            unreadable: unreadable.collect(),
        }
    }
}

impl PacketQuery {
    /// Replaces container ids by the names of containers in a text.
    fn with_names(&self, text: String) -> String {
        self.names.iter().fold(text, |text, (by_key, shown)| text.replace(by_key.as_str(), shown))
    }

    fn host_with_names(&self, mut host: TraceHost) -> TraceHost {
        for step in &mut host.steps {
            step.endpoint = step.endpoint.take().map(|name| self.with_names(name));
        }
        host
    }
}

/// Returns one host's result with the stored policies.
pub(in crate::agent) fn stored(node: &str, half: &HostPath) -> TraceResult {
    let here = half.host == node;
    let host = trace::host(&half.host, here, half.outer, &half.path, &half.ruleset);
    (host, half.path.clone(), half.closest.clone())
}

/// Returns this host's result with the rules, interfaces and routes of its kernel thread.
pub(in crate::agent) fn live(
    view: &KernelView<'_>,
    node: &str,
    globals: &Arc<Globals>,
    half: &HostPath,
) -> TraceResult {
    let ruleset = view.ruleset().unwrap_or(&half.ruleset);
    let interfaces = view.interfaces();
    let enforced = view.host_interfaces().cloned();
    let hosts = enforced.unwrap_or_else(|| {
        host_interfaces(
            ruleset,
            globals,
            interfaces.iter().map(|(name, addrs)| (name.as_str(), addrs.iter().copied())),
        )
    });
    let mut routes = Routes::of_workloads(ruleset);
    routes.local.extend(interfaces.values().flatten());
    let mut flow = half.flow.clone();
    let dst = flow.packet.dst;
    if routes.place(dst).is_none()
        && let Some(device) = view.device(dst)
    {
        routes.via.insert(Cidr::host(dst), device.into());
    }
    if flow.from == Place::Interface(OUTSIDE.into()) && routes.local.contains(&flow.packet.src) {
        // An address of this host that is not in the store.
        flow.from = Place::Host;
    } else if flow.from == Place::Interface(OUTSIDE.into())
        && let Some(device) = view.device(flow.packet.src)
    {
        flow.from = Place::Interface(device.into());
    }
    let walked = Node { ruleset, globals, hosts: &hosts, routes: &routes };
    let path = walked.path(&flow);
    let closest = path::closest(&walked, &flow, &path);
    (trace::host(node, true, half.outer, &path, ruleset), path, closest)
}

/// True if this host forwards the packet: it neither comes from nor goes to the host itself.
pub(in crate::agent) fn is_forwarded(view: &KernelView<'_>, half: &HostPath) -> bool {
    let local: std::collections::BTreeSet<IpAddr> = view.interfaces().into_values().flatten().collect();
    half.flow.from != Place::Host
        && !local.contains(&half.flow.packet.src)
        && !local.contains(&half.path.packet.dst)
}

/// Builds the answer for a packet that Tortie's rules accept and a chain of another program on this host
/// drops.
pub(in crate::agent) fn dropped_by_other(mut answer: Trace, node: &str, drop: &ForwardDrop) -> Trace {
    let by = format!("{} of another program", drop.describe());
    for host in answer.hosts.iter_mut().filter(|host| host.here && !host.outer) {
        "deny".clone_into(&mut host.verdict);
        host.steps.iter_mut().for_each(|step| step.decisive = false);
        host.steps.push(TraceStep {
            stage: "forward".to_owned(),
            endpoint: None,
            verdict: Some("deny".to_owned()),
            text: format!("{by}; no rule of its table matches interfaces of workloads"),
            rules: Vec::new(),
            decisive: true,
        });
    }
    "deny".clone_into(&mut answer.verdict);
    answer.by = format!("{by}, on {node}");
    answer.closest_changes = vec![drop.fix("cali")];
    answer
}

/// Formats the protocol with its port or ICMP type.
pub(in crate::agent) fn what(protocol: u8, port: Option<u16>) -> String {
    let name = Protocol::new(protocol).map_or_else(|| protocol.to_string(), |name| name.to_string());
    match port {
        Some(port) if matches!(protocol, 1 | 58) => format!("{name} type {port}"),
        Some(port) => format!("{name}/{port}"),
        None => name,
    }
}

/// Resolves a name to an end of the path, and its form in the answer.
fn party(view: &PolicyView<'_>, name: &str, family: Option<IpFamily>) -> Result<(Party, TraceEnd), ApiError> {
    let end = |key: Option<&EndpointKey>, host: Option<&str>| TraceEnd {
        address: String::new(),
        endpoint: key.map(|key| view.model.name_of_endpoint(key)),
        host: host.map(str::to_owned),
    };
    let host_of = |addr: IpAddr| view.model.hosts_by_address(addr).next().map(|(host, _)| host);
    if let Ok(addr) = name.parse::<IpAddr>() {
        if family.is_some_and(|family| family != IpFamily::of(addr)) {
            return Err(invalid(format!("{addr} is of the other family: icmp is IPv4, icmpv6 is IPv6")));
        }
        return match view.find_endpoint(name) {
            Ok(key) => Ok((Party::Addr(addr), end(Some(&key), Some(key.host())))),
            Err(error) if error.code == "not-found" => Ok((Party::Addr(addr), end(None, host_of(addr)))),
            Err(error) => Err(error),
        };
    }
    let key = match view.find_endpoint(name) {
        Ok(key) => key,
        Err(_) if view.model.host(name).is_some() => {
            return Ok((Party::Host(name.to_owned()), end(None, Some(name))));
        }
        Err(error) => return Err(error),
    };
    let shown = end(Some(&key), Some(key.host()));
    let Some(family) = family else { return Ok((Party::Endpoint(key), shown)) };
    let value = view.model.resource(&Key::Endpoint(key.clone()));
    let addr = value
        .and_then(|value| addresses_of(value).map(|net| net.addr()).find(|a| IpFamily::of(*a) == family));
    match addr {
        Some(addr) => Ok((Party::Addr(addr), shown)),
        None => {
            Err(invalid(format!("{name} has no address of the right family: icmp is IPv4, icmpv6 is IPv6")))
        }
    }
}

fn icmp(text: &str) -> Result<(u8, u8), String> {
    let (kind, code) = text.split_once('/').unwrap_or((text, "0"));
    let number = |text: &str| {
        text.parse::<u8>().map_err(|_| format!("--icmp: write TYPE or TYPE/CODE, such as 8/0, not `{text}`"))
    };
    Ok((number(kind)?, number(code)?))
}
