//! Decisions of the core on an input, as lines of text that a journal keeps and a replay compares.
//!
//! Lines are written field by field, so that another version of the program that makes the same decisions
//! writes the same lines. An intent is shown by its differences from the previous one. The results of the
//! export gates for own routes, per kind of peer, are listed with the speaker's intent, since the speaker
//! derives them from nothing else. Received routes never pass the core. For them the import gates are
//! evaluated on a route to each pool, a default route, and a route to an endpoint's address, so that a
//! changed gate shows at the first intent.
//!
//! Lines that begin with `log` or `history` are wording and no decisions ([`is_wording`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tortie_config::key::Key;
use tortie_config::resource::{MacAddr, RouteSource};
use tortie_net::Cidr;

use crate::agent::core::effect::{Effect, Severity};
use tortie_engine::policy::{Chain, EndpointPolicy, SetChange};
use tortie_engine::routing::{
    self, FilterRoute, GateDecision, OriginKind, PeerIntent, PeerPolicy, RoutingIntent, RoutingView,
};
use tortie_kernel::{KernelIntent, PolicyChange};

/// Maximum number of lines of one list; one line with a digest replaces the rest.
const LISTED: usize = 64;
/// Maximum length of a line in octets; a longer one ends with a digest.
const LONGEST: usize = 320;

/// Export gate of own routes. Arguments: routing view, policy of the peer, true for eBGP, route.
type ExportGate = fn(&RoutingView, &PeerPolicy, bool, &FilterRoute<'_>) -> GateDecision;

fn export_gate(
    view: &RoutingView,
    policy: &PeerPolicy,
    external: bool,
    route: &FilterRoute<'_>,
) -> GateDecision {
    routing::export_gate(view, policy, external, route)
}

/// True if a line is wording and no decision.
pub(in crate::agent) fn is_wording(line: &str) -> bool {
    line.starts_with("log ") || line.starts_with("history ")
}

/// True if an effect has a line. Histories of single prefixes and debug lines have none: they are no
/// decisions, and a full feed produces thousands.
pub(super) fn is_shown(effect: &Effect) -> bool {
    match effect {
        Effect::Recorded(entry) => !entry.single,
        Effect::Log(line) => line.severity != Severity::Debug,
        _ => true,
    }
}

/// Formats decisions, with the previous intents as reference.
pub(in crate::agent) struct Decisions {
    routing: Option<Arc<RoutingIntent>>,
    kernel: Option<Arc<KernelIntent>>,
    /// Results of the gates: for own routes by prefix, for received routes by name.
    gates: BTreeMap<String, String>,
    export_gate: ExportGate,
}

impl Decisions {
    /// Starts without previous intents, with the export gate of this version.
    pub(in crate::agent) fn new() -> Self {
        Self::with_gate(export_gate)
    }

    /// Starts without previous intents, with another export gate.
    pub(in crate::agent) fn with_gate(export_gate: ExportGate) -> Self {
        Self { routing: None, kernel: None, gates: BTreeMap::new(), export_gate }
    }

    /// Forgets the previous intents, so that the next ones are listed completely.
    pub(in crate::agent) fn forget(&mut self) {
        *self = Self::with_gate(self.export_gate);
    }

    /// Returns the lines of one input's effects.
    pub(in crate::agent) fn lines(&mut self, effects: &[Effect]) -> Vec<String> {
        let mut out = Vec::new();
        for effect in effects.iter().filter(|effect| is_shown(effect)) {
            self.effect(effect, &mut out);
        }
        out
    }

    fn effect(&mut self, effect: &Effect, out: &mut Vec<String>) {
        match effect {
            Effect::CreateCluster => line(out, "the store lacks a ClusterInformation: it is created"),
            Effect::Loaded => line(out, "loaded: the other threads start"),
            Effect::LocalReady => line(out, "speaker: End-of-RIB may be sent"),
            Effect::Sweep => line(out, "kernel: stale routes are swept"),
            Effect::Logs => line(out, "logs: settings apply"),
            Effect::Track(addr, true) => line(out, format_args!("kernel: next hop {addr} is followed")),
            Effect::Track(addr, false) => {
                line(out, format_args!("kernel: next hop {addr} is followed no more"))
            }
            Effect::NextHop(addr, None) => line(out, format_args!("speaker: next hop {addr} is unreachable")),
            Effect::NextHop(addr, Some(way)) => {
                let gateway =
                    way.gateway.map_or_else(|| "on-link".to_owned(), |gateway| format!("via {gateway}"));
                let (ifindex, metric) = (way.ifindex, way.metric);
                line(
                    out,
                    format_args!("speaker: next hop {addr} {gateway} ifindex {ifindex} metric {metric}"),
                );
            }
            Effect::NextHopWithin(addr, within) => list(
                out,
                within.iter().map(|(prefix, way)| match way {
                    None => format!("speaker: next hop {addr} is unreachable for routes to {prefix}"),
                    Some(way) => {
                        let gateway =
                            way.gateway.map_or_else(|| "on-link".to_owned(), |via| format!("via {via}"));
                        format!("speaker: next hop {addr} {gateway} for routes to {prefix}")
                    }
                }),
            ),
            Effect::Scope(keys) => list(out, keys.iter().map(|key| format!("store: watch {key}"))),
            Effect::Trust(generation, revision) => {
                line(
                    out,
                    format_args!("store: snapshot {generation} up to revision {revision} may be cached"),
                );
            }
            Effect::Log(entry) => line(out, format_args!("log {:?} {}", entry.severity, entry.text)),
            Effect::Recorded(entry) => {
                let event = &entry.event;
                let (number, change, plane, mark) = (event.seq, &event.change, &event.plane, &event.mark);
                line(
                    out,
                    format_args!(
                        "history {number} {change} {plane} {mark} {}: {}",
                        event.subject, event.text
                    ),
                );
            }
            Effect::Routing(intent) => {
                self.routing(intent, out);
                self.routing = Some(Arc::clone(intent));
            }
            Effect::Kernel(intent) => {
                self.kernel(intent, out);
                self.kernel = Some(Arc::clone(intent));
            }
            Effect::Speaker(intent, change) => {
                line(
                    out,
                    format_args!("speaker: intent of {change}, {} own routes", intent.originated.len()),
                );
                self.gates(intent, out);
            }
            Effect::Enforce(change) => enforce(change, out),
        }
    }

    fn routing(&self, new: &RoutingIntent, out: &mut Vec<String>) {
        let old = self.routing.as_deref();
        let of = |intent: &RoutingIntent| {
            let listen: Vec<String> = intent.listen.iter().map(ToString::to_string).collect();
            format!(
                "routing: AS {} router id {} listen [{}] multipath {} relax {}",
                intent.asn,
                Ipv4Addr::from(intent.router_id),
                listen.join(" "),
                or_none(intent.multipath.max),
                intent.multipath.relax,
            )
        };
        if old.map(of) != Some(of(new)) {
            line(out, of(new));
        }
        let (no_routes, no_ranges, no_peers, no_addresses) = Default::default();
        let routes = new.originated.differences(old.map_or(&no_routes, |o| &o.originated));
        list(
            out,
            routes.into_iter().map(|(prefix, _, now)| match now {
                Some(own) => format!("routing: + route {prefix} {} of {}", origin(own.kind), own.key),
                None => format!("routing: - route {prefix}"),
            }),
        );
        let peers = new.peers.differences(old.map_or(&no_peers, |o| &o.peers));
        list(
            out,
            peers.into_iter().map(|(name, _, now)| match now {
                Some(peer) => format!("routing: + peer {name} {}", peer_text(peer)),
                None => format!("routing: - peer {name}"),
            }),
        );
        let ranges = new.ranges.differences(old.map_or(&no_ranges, |o| &o.ranges));
        list(
            out,
            ranges.into_iter().map(|(name, _, now)| match now {
                Some(range) => {
                    let (prefix, most) = (range.prefix, range.max_sessions);
                    format!(
                        "routing: + range {name} {prefix} at most {most} sessions {}",
                        peer_text(&range.peer)
                    )
                }
                None => format!("routing: - range {name}"),
            }),
        );
        let addresses = new.addresses.differences(old.map_or(&no_addresses, |o| &o.addresses));
        list(
            out,
            addresses.into_iter().map(|(addr, _, now)| {
                format!("routing: {} endpoint address {addr}", if now.is_some() { '+' } else { '-' })
            }),
        );
        if old.is_none_or(|o| o.view != new.view) {
            differ(out, old.map(|o| view_lines(&o.view)), view_lines(&new.view));
        }
        let notes = |intent: &RoutingIntent| -> BTreeSet<String> {
            intent.notes.iter().map(|note| format!("note {} {}", note.code, note.subject)).collect()
        };
        differ(out, old.map(notes), notes(new));
    }

    fn kernel(&self, new: &KernelIntent, out: &mut Vec<String>) {
        let tunnel = new.tunnel.as_ref().map_or_else(
            || "none".to_owned(),
            |tunnel| format!("address {} mtu {}", or_none(tunnel.addr), or_none(tunnel.mtu)),
        );
        let (generation, change) = (new.generation, new.change);
        line(out, format_args!("kernel: intent {generation} of {change}, tunnel {tunnel}"));
        let lines = |intent: &KernelIntent| -> BTreeSet<String> {
            let blackholes = intent.blackholes.iter();
            let vxlan = &intent.vxlan;
            let blackholes = blackholes.map(|(block, change)| format!("blackhole {block} of {change}"));
            let devices = [("v4", &vxlan.v4), ("v6", &vxlan.v6)].into_iter();
            let devices =
                devices.filter_map(|(family, device)| Some(format!("vxlan {family} {:?}", device.as_ref()?)));
            let remotes = vxlan.remotes.iter().map(|(addr, remote)| {
                format!("vxlan remote {addr} {} at {}", MacAddr(remote.mac), remote.host)
            });
            let stored = &intent.store_routes;
            let routes =
                stored.remote.iter().map(|(prefix, route)| format!("store route {prefix} {route:?}"));
            let gateways = stored.gateways.iter().map(|(peer, by)| format!("store route {peer} via {by}"));
            blackholes.chain(devices).chain(remotes).chain(routes).chain(gateways).collect()
        };
        differ(out, self.kernel.as_deref().map(lines), lines(new));
    }

    /// Lists the gates' results: for each own route and kind of peer, and for possible received routes.
    fn gates(&mut self, intent: &RoutingIntent, out: &mut Vec<String>) {
        let mut kinds: BTreeMap<(&PeerPolicy, bool), usize> = BTreeMap::new();
        let ranges = intent.ranges.values().map(|range| &range.peer);
        for peer in intent.peers.values().chain(ranges) {
            *kinds.entry((&peer.policy, peer.is_external(intent.asn))).or_default() += 1;
        }
        let mut now = BTreeMap::new();
        for prefix in intent.originated.keys() {
            let route = FilterRoute::local(*prefix);
            let mut text = String::new();
            for ((policy, external), peers) in &kinds {
                let decided = (self.export_gate)(&intent.view, policy, *external, &route);
                let verb = if decided.accept { "announced to" } else { "withheld from" };
                let _ =
                    write!(text, "; {verb} {peers} {} peers by {}", session_kind(*external), decided.gate);
                for (name, communities) in [
                    ("communities", format!("{:?}", decided.communities)),
                    ("large", format!("{:?}", decided.large_communities)),
                    ("rules", format!("{:?}", decided.changes)),
                ] {
                    if communities != "[]" {
                        let _ = write!(text, " {name} {communities}");
                    }
                }
            }
            now.insert(format!("gates: {prefix}"), text);
        }
        let pools = intent.view.pools.iter().map(|pool| pool.cidr);
        let endpoint = intent.addresses.keys().next().map(|addr| Cidr::host(*addr));
        for prefix in default_routes().into_iter().chain(pools).chain(endpoint) {
            let mut text = String::new();
            for ((policy, external), peers) in &kinds {
                let source = if *external { RouteSource::Ebgp } else { RouteSource::Ibgp };
                let route = FilterRoute { source, ..FilterRoute::local(prefix) };
                let answer = match routing::import(&intent.view, &intent.addresses, policy, &route) {
                    Ok(changes) if changes.is_empty() => "accepted".to_owned(),
                    Ok(changes) => format!("accepted by rules {changes:?}"),
                    Err(reason) => format!("refused by {reason}"),
                };
                let _ = write!(text, "; {answer} from {peers} {} peers", session_kind(*external));
            }
            now.insert(format!("gates: received {prefix}"), text);
        }
        let changed = now.iter().filter(|(name, text)| self.gates.get(*name) != Some(text));
        list(out, changed.map(|(name, text)| format!("{name}{text}")));
        let gone = self.gates.keys().filter(|name| !now.contains_key(*name));
        list(out, gone.map(|name| format!("{name} is gone")));
        self.gates = now;
    }
}

/// Returns the default route of each family.
fn default_routes() -> Vec<Cidr> {
    ["0.0.0.0/0", "::/0"].into_iter().filter_map(|text| text.parse().ok()).collect()
}

fn session_kind(external: bool) -> &'static str {
    if external { "eBGP" } else { "iBGP" }
}

fn origin(kind: OriginKind) -> &'static str {
    match kind {
        OriginKind::OwnBlock => "own block",
        OriginKind::Borrowed => "borrowed address",
        OriginKind::Floating => "floating address",
        OriginKind::ServiceRange => "service range",
    }
}

fn peer_text(peer: &PeerIntent) -> String {
    let key = match (&peer.tcp_ao, &peer.password) {
        (Some(_), _) => Some("TCP-AO"),
        (None, Some(_)) => Some("TCP-MD5"),
        (None, None) => None,
    };
    let mut text = format!("{} AS {} {} for {}", peer.remote, peer.asn, peer.kind.as_str(), peer.source);
    // Options that are not set are left out, so that an option added by a later version changes no line of
    // peers without it.
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = write!(text, " {name} {value}");
        }
    };
    option("interface", peer.interface.clone());
    option("local", peer.local.map(|addr| addr.to_string()));
    option("local-ipv4", peer.local_v4.map(|addr| addr.to_string()));
    option("local-ipv6", peer.local_v6.map(|addr| addr.to_string()));
    option("local-as", peer.local_asn.map(|asn| asn.to_string()));
    option("ipv4", peer.ipv4.then(|| "yes".to_owned()));
    option("ipv6", peer.ipv6.then(|| "yes".to_owned()));
    option("connects-after", peer.dial_after.map(seconds));
    option("shutdown", peer.shutdown.as_ref().map(|_| "yes".to_owned()));
    option("hold-time", Some(seconds(peer.hold_time)));
    option("keepalive-time", peer.keepalive_time.map(seconds));
    option("send-hold-time", peer.send_hold_time.map(seconds));
    option("restart-time", Some(seconds(peer.restart_time)));
    option("long-lived-restart-time", peer.long_lived_restart_time.map(seconds));
    option("client-of-cluster", peer.reflector_client.map(|id| Ipv4Addr::from(id).to_string()));
    option("next-hop", Some(format!("{:?}", peer.next_hop)));
    option("allow-local-as", (peer.allow_local_as > 0).then(|| peer.allow_local_as.to_string()));
    option("ttl-security", peer.ttl_security.map(|hops| hops.to_string()));
    option("max-prefixes", peer.max_prefixes.as_ref().map(|max| format!("{max:?}")));
    option("extended-messages", peer.extended_messages.then(|| "yes".to_owned()));
    option("add-path", peer.add_path.as_ref().map(|paths| format!("{paths:?}")));
    option("key", key.map(str::to_owned));
    option("bfd", peer.bfd.as_ref().map(|bfd| format!("{bfd:?}")));
    option("role", peer.role.as_ref().map(|role| format!("{role:?}")));
    option("role-strict", peer.role_strict.then(|| "yes".to_owned()));
    option("own-only", peer.policy.own_only.then(|| "yes".to_owned()));
    option("import-pools", (!peer.policy.import_pools).then(|| "no".to_owned()));
    option("filters", (!peer.policy.filters.is_empty()).then(|| peer.policy.filters.join(",")));
    text
}

fn seconds(time: Duration) -> String {
    format!("{time:?}")
}

/// Formats a value, or `none`.
fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn view_lines(view: &RoutingView) -> BTreeSet<String> {
    let mut lines = BTreeSet::from([format!(
        "node {} IPv4 {} IPv6 {} network {}",
        view.node,
        or_none(view.node_v4),
        or_none(view.node_v6),
        or_none(view.network_v4)
    )]);
    lines.extend(view.pools.iter().map(|pool| {
        let ipip = pool.ipip.map(|mode| format!(" ipip {mode:?}")).unwrap_or_default();
        format!("pool {}{ipip}{}", pool.cidr, if pool.disabled { " disabled" } else { "" })
    }));
    lines.extend(view.own_blocks.iter().map(|block| format!("own block {block}")));
    lines.extend(
        view.advertisements.iter().map(|ad| format!("advertisement {} {:?}", ad.cidr, ad.communities)),
    );
    lines.insert(format!("filters {:016x}", digest(&format!("{:?}", view.filters))));
    lines
}

fn enforce(change: &PolicyChange, out: &mut Vec<String>) {
    line(out, format_args!("policy: change {} of {}", change.serial, change.change));
    list(
        out,
        change.delta.sets.iter().map(|(id, became)| {
            let text = match became {
                SetChange::New(members) => format!("new {}", members_text(members)),
                SetChange::Members { add, remove } => {
                    format!("add {} remove {}", members_text(add), members_text(remove))
                }
                SetChange::Gone => "gone".to_owned(),
            };
            format!("policy: set {}: {text}", id.selector())
        }),
    );
    list(
        out,
        change.delta.chains.iter().map(|(id, chain)| {
            format!("policy: chain {id}: {}", chain.as_deref().map_or_else(|| "gone".to_owned(), chain_text))
        }),
    );
    list(
        out,
        change.delta.endpoints.iter().map(|(key, now)| {
            let text = now.as_deref().map_or_else(|| "gone".to_owned(), endpoint_text);
            format!("policy: endpoint {}: {text}", Key::Endpoint(key.clone()))
        }),
    );
    if let Some(globals) = &change.globals {
        line(out, format_args!("policy: globals {globals:?}"));
    }
}

fn members_text(members: &BTreeSet<Cidr>) -> String {
    let texts: Vec<String> = members.iter().map(ToString::to_string).collect();
    format!("{} members [{}]", members.len(), texts.join(" "))
}

fn chain_text(chain: &Chain) -> String {
    match chain.fail_closed {
        Some(closed) => closed.to_string(),
        None => chain.rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

fn endpoint_text(endpoint: &EndpointPolicy) -> String {
    let chains: Vec<String> = endpoint.chains().map(ToString::to_string).collect();
    let chains = chains.join(", ");
    match endpoint {
        EndpointPolicy::Workload(workload) => {
            let nats: Vec<String> =
                workload.nats.iter().map(|(inside, outside)| format!("{inside}={outside}")).collect();
            let nets: Vec<String> = workload.nets.iter().map(ToString::to_string).collect();
            format!(
                "interface {} active {} nets [{}] mac {} nat [{}] chains [{chains}]",
                workload.interface,
                workload.active,
                nets.join(" "),
                or_none(workload.mac),
                nats.join(" ")
            )
        }
        EndpointPolicy::Host(host) => {
            let addresses: Vec<String> = host.addrs.iter().map(ToString::to_string).collect();
            let interface = or_none(host.interface.as_ref());
            format!("interface {interface} addresses [{}] chains [{chains}]", addresses.join(" "))
        }
    }
}

/// Lists the added and removed lines.
fn differ(out: &mut Vec<String>, old: Option<BTreeSet<String>>, new: BTreeSet<String>) {
    let old = old.unwrap_or_default();
    list(out, new.difference(&old).map(|text| format!("routing: + {text}")));
    list(out, old.difference(&new).map(|text| format!("routing: - {text}")));
}

/// Writes the first lines of a list, and a digest of the rest.
fn list(out: &mut Vec<String>, lines: impl Iterator<Item = String>) {
    let mut rest = (0_u64, 0_u64);
    for (number, text) in lines.enumerate() {
        if number < LISTED {
            line(out, text);
        } else {
            rest = (rest.0 + 1, rest.1.rotate_left(1) ^ digest(&text));
        }
    }
    if rest.0 > 0 {
        line(out, format_args!("and {} more, digest {:016x}", rest.0, rest.1));
    }
}

fn line(out: &mut Vec<String>, text: impl fmt::Display) {
    let mut text = text.to_string();
    if text.len() > LONGEST {
        let digest = digest(&text);
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        let _ = write!(text, "... digest {digest:016x}");
    }
    out.push(text);
}

/// Computes the 64-bit FNV-1a hash.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, octet| {
        (hash ^ u64::from(octet)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
