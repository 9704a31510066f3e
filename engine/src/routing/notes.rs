//! Notes for `status`: conditions that are not errors, but of interest to an operator.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use tortie_config::Dialect;
use tortie_config::key::{Key, Scope};
use tortie_config::resource::Peer;
use tortie_net::Cidr;

use super::local::Local;
use super::store_routes::Encapsulation;
use super::types::{IpipMode, LearnedPath, Note, PeerIntent, PeerKind, RoutingIntent, RoutingView};
use crate::model::{FilterValue, Host, Model};

/// Maximum number of names that a note lists.
const LISTED: usize = 5;

/// Returns the notes on an intent, sorted.
pub(super) fn notes(model: &Model, local: &Local, intent: &RoutingIntent) -> Vec<Note> {
    let mut notes = Vec::new();
    own_address(model, local, &mut notes);
    hosts(model, &mut notes);
    network(local, &intent.view, &mut notes);
    explicit_peers(model, local, intent, &mut notes);
    nats_without_endpoint(model, &mut notes);
    spoofed_sources(model, &mut notes);
    without_route(intent, &mut notes);
    let filters: Vec<String> =
        model.custom_filters().map(|(_, family, name)| format!("{}/{name}", family.as_str())).collect();
    if !filters.is_empty() {
        let text = format!(
            "{} in custom_filters {} in BIRD's language and not run: write the rules to \
             /calico/bgp/v1/global/filters/NAME and name that filter in `filters` of the peers",
            list(&filters),
            if filters.len() == 1 { "is" } else { "are" }
        );
        notes.push(Note {
            code: "custom-filter-ignored",
            subject: "/calico/bgp/v1/global/custom_filters".to_owned(),
            text,
        });
    }
    notes.sort_unstable();
    notes
}

fn own_address(model: &Model, local: &Local, notes: &mut Vec<Note>) {
    if local.v4.is_none() && local.v6.is_none() {
        let node = model.node();
        notes.push(Note {
            code: "node-without-address",
            subject: node.to_owned(),
            text: format!(
                "this host has no address in the store and takes no part in BGP: start the agent with --ip4 or --ip6, \
                 or write /calico/bgp/v1/host/{node}/ip_addr_v4"
            ),
        });
    }
}

fn without_route(intent: &RoutingIntent, notes: &mut Vec<Note>) {
    for (encapsulation, code, kind) in [
        (Encapsulation::Vxlan, "vxlan-no-route", "a VXLAN"),
        (Encapsulation::Ipip, "ipip-no-route", "an IPIP"),
    ] {
        let mut withheld =
            intent.store_routes.withheld.iter().filter(|(_, why)| why.encapsulation == encapsulation);
        let Some((prefix, why)) = withheld.next() else { continue };
        let others = match withheld.count() {
            0 => String::new(),
            1 => " (and 1 other)".to_owned(),
            more => format!(" (and {more} others)"),
        };
        let text = format!("no route to {prefix} of {kind} pool{others}: {}", why.reason);
        notes.push(Note { code, subject: prefix.to_string(), text });
    }
}

fn hosts(model: &Model, notes: &mut Vec<Note>) {
    let node = model.node();
    let silent: Vec<&str> = model.hosts_without_address().filter(|name| *name != node).collect();
    if let Some(first) = silent.first() {
        notes.push(Note {
            code: "host-without-address",
            subject: (*first).to_owned(),
            text: format!("no BGP address in the store, so no session: {}", list(&silent)),
        });
    }
    for addr in model.shared_addrs() {
        let names: Vec<&str> = model.hosts_by_address(addr).map(|(name, _)| name).collect();
        notes.push(Note {
            code: "shared-address",
            subject: addr.to_string(),
            text: format!("several hosts claim {addr}: {}; give each a different address", list(&names)),
        });
    }
}

fn network(local: &Local, view: &RoutingView, notes: &mut Vec<Note>) {
    let Some(pool) = view.pools.iter().find(|pool| pool.ipip == Some(IpipMode::CrossSubnet)) else { return };
    let node = &view.node;
    let key = format!("/calico/bgp/v1/host/{node}/network_v4");
    match local.network_v4 {
        None if local.v4.is_some() => notes.push(Note {
            code: "no-network",
            subject: pool.cidr.to_string(),
            text: format!("cross-subnet needs the network of this host: routes of the pool wait for {key}"),
        }),
        Some(network) if network.is_host() => notes.push(Note {
            code: "network-of-one-address",
            subject: pool.cidr.to_string(),
            text: format!("{key} is {network}, so cross-subnet tunnels to every host: write the real length"),
        }),
        _ => {}
    }
}

fn explicit_peers(model: &Model, local: &Local, intent: &RoutingIntent, notes: &mut Vec<Note>) {
    let mut shared_routers = Vec::new();
    // Names are sorted, and the `Mesh_` sessions in the middle, which may be thousands, are skipped.
    let global = intent.peers.iter().take_while(|(name, _)| name.as_str() < "Mesh_");
    for (_, peer) in global.chain(intent.peers.range_from("Node_")) {
        let addr = peer.remote.ip();
        let router = other_host(model, addr).is_none();
        let ebgp = peer.asn != peer.local_asn.unwrap_or(local.asn);
        if ebgp && router && !peer.policy.own_only && passes_mesh_routes(model, peer) {
            shared_routers.push(addr.to_string());
        }
    }
    // Calico 3 has neither `own_only` nor `import_pools`.
    let advisable = model.dialect() == Dialect::V1;
    if let Some(first) = shared_routers.first().filter(|_| advisable) {
        notes.push(Note {
            code: "own-only-hint",
            subject: first.clone(),
            text: format!(
                "other hosts also peer with {}, so it receives every block from each host: with \
                 \"own_only\": true in the peer's value this host announces only its own blocks",
                list(&shared_routers)
            ),
        });
    }
    for scope in [Scope::Global, Scope::Host(model.node().to_owned())] {
        for stored in model.peers(&scope).filter(|stored| !local.is_own(stored.value.ip)) {
            let key = Key::Bgp(scope.clone(), stored.key.clone());
            let theirs =
                other_host(model, stored.value.ip).map(|(name, host)| (name, model.as_num(Some(host))));
            if let Some((host, asn)) =
                theirs.filter(|(_, asn)| stored.value.as_num.number().is_some_and(|said| said != *asn))
            {
                let said = stored.value.as_num;
                notes.push(Note {
                    code: "peer-as-differs",
                    subject: host.to_owned(),
                    text: format!(
                        "{key} says AS {said}, but {host} is in AS {asn}: the session cannot come up"
                    ),
                });
            }
        }
        for (item, value) in model.all_peers(&scope).filter(|(_, value)| !local.is_own(value.ip)) {
            closed_filters(model, value, &Key::Bgp(scope.clone(), item), notes);
        }
    }
}

/// Reports floating addresses that are not mapped.
fn nats_without_endpoint(model: &Model, notes: &mut Vec<Note>) {
    for workload in model.workloads(model.node()) {
        let is_off = model.nats(workload.key, workload.value).next().is_none();
        if is_off && workload.value.nats().next().is_some() {
            notes.push(Note {
                code: "nat-left-out",
                subject: Key::Endpoint(workload.key.clone()).to_string(),
                text: "its floating addresses (ipNATs) are not mapped: set floatingIPs of the \
                       FelixConfiguration `default` to Enabled, or remove them"
                    .to_owned(),
            });
        }
        let stray: Vec<String> =
            workload.value.stray_nats().map(|(inside, outside)| format!("{outside} to {inside}")).collect();
        if !stray.is_empty() {
            notes.push(Note {
                code: "nat-left-out",
                subject: Key::Endpoint(workload.key.clone()).to_string(),
                text: format!(
                    "not mapped, because the inner address is not an address of the endpoint: {}; the rest \
                     of the endpoint is in force",
                    list(&stray)
                ),
            });
        }
    }
}

/// Reports workloads that ask for additional sources, which the setting does not allow.
fn spoofed_sources(model: &Model, notes: &mut Vec<Note>) {
    if model.dialect() == Dialect::V1 || model.allows_spoofed_sources(model.node()) {
        return;
    }
    for workload in model.workloads(model.node()) {
        if !workload.value.spoofed_sources().is_empty() {
            notes.push(Note {
                code: "invalid-value",
                subject: Key::Endpoint(workload.key.clone()).to_string(),
                text:
                    "allowSpoofedSourcePrefixes needs WorkloadSourceSpoofing `Any`: the endpoint is refused \
                       and passes nothing; remove the prefixes, or set workloadSourceSpoofing"
                        .to_owned(),
            });
        }
    }
}

fn other_host(model: &Model, addr: IpAddr) -> Option<(&str, &Host)> {
    model.hosts_by_address(addr).find(|(name, _)| *name != model.node())
}

/// Returns true if another host also has a session with this router.
fn passes_mesh_routes(model: &Model, peer: &PeerIntent) -> bool {
    let others = model.hosts().len() > 1;
    match peer.kind {
        PeerKind::Global => others,
        _ => model.count_of_peers_at(peer.remote.ip()) > 1,
    }
}

/// Reports filters that reject everything, because they do not exist or cannot be parsed.
fn closed_filters(model: &Model, value: &Peer, key: &Key, notes: &mut Vec<Note>) {
    for name in &value.filters {
        if model.dialect() == Dialect::V3 {
            notes.extend(calico3_filter(model, name, key));
            continue;
        }
        let (code, text) = match model.filter(name) {
            Some(FilterValue::Valid(_)) => continue,
            Some(FilterValue::Unreadable) => (
                "filter-unreadable",
                format!(
                    "filter {name} never had a valid value (`tortie store validate` has the reason): \
                     nothing but the blocks of this host passes in either direction"
                ),
            ),
            None => (
                "filter-missing",
                format!(
                    "there is no filter {name}, so nothing but the blocks of this host passes in either \
                     direction: write /calico/bgp/v1/global/filters/{name}, or remove it from `filters`"
                ),
            ),
        };
        notes.push(Note { code, subject: key.to_string(), text });
    }
}

/// Reports a filter of Calico 3 that is not in force as it was meant.
fn calico3_filter(model: &Model, name: &str, key: &Key) -> Option<Note> {
    let (code, text) = match model.bgp_filter(name) {
        Some(Some(_)) => return None,
        Some(None) => (
            "filter-unreadable",
            format!("the BGPFilter {name} never had a valid value: nothing passes in either direction"),
        ),
        None => (
            "filter-missing",
            format!(
                "there is no BGPFilter {name}, so it counts as not named, as in Calico: routes that it is meant \
                 to reject pass; create it, or remove it from `filters` of the peer"
            ),
        ),
    };
    Some(Note { code, subject: key.to_string(), text })
}

/// Returns notes on routers that announce prefixes inside pools which no host announced, since such routes
/// could divert traffic of workloads. `learned` lists sessions with their best paths inside pools; each note
/// comes with the name of its session.
#[must_use]
pub fn import_pools_hints<'a>(
    model: &Model,
    intent: &RoutingIntent,
    learned: &'a [(String, Vec<LearnedPath>)],
) -> Vec<(&'a str, Note)> {
    if model.dialect() == Dialect::V3 {
        return Vec::new();
    }
    let mut systems: HashSet<u32> = model.hosts().map(|(_, host)| model.as_num(Some(host)).get()).collect();
    // Hosts use this AS number towards their router.
    systems.extend(intent.peers.values().filter_map(|peer| peer.local_asn));
    let hint = |(session, paths): &'a (String, Vec<LearnedPath>)| {
        let peer = intent.peers.get(session)?;
        let outside = paths.iter().filter(|path| !is_from_a_host(model, &systems, path)).map(|p| p.prefix);
        Some((session.as_str(), import_pools_hint(&intent.view, peer, outside)?))
    };
    learned.iter().filter_map(hint).collect()
}

/// Returns true if the path originates at a host, as far as it shows: a host is the next hop, is the
/// originator at a route reflector, or has the origin AS.
fn is_from_a_host(model: &Model, systems: &HashSet<u32>, path: &LearnedPath) -> bool {
    let is_host = |addr: IpAddr| model.hosts_by_address(addr).next().is_some();
    is_host(path.next_hop)
        || path.originator.is_some_and(|id| is_host(Ipv4Addr::from(id).into()))
        || path.origin_as.is_some_and(|asn| systems.contains(&asn))
}

/// Returns the note for one router; `outside` are the prefixes that no host announced.
fn import_pools_hint(
    view: &RoutingView,
    peer: &PeerIntent,
    outside: impl IntoIterator<Item = Cidr>,
) -> Option<Note> {
    if !peer.is_router() || !peer.policy.import_pools {
        return None;
    }
    let mut inside = outside.into_iter().filter(|prefix| view.pool_of(prefix).is_some());
    let first = inside.next()?;
    let more = match inside.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(Note {
        code: "import-pools-hint",
        subject: peer.name.clone(),
        text: format!(
            "announces {first}{more} inside pools, which no host announced: \"import_pools\": false in the \
             peer's value rejects such routes"
        ),
    })
}

fn list(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(LISTED).map(AsRef::as_ref).collect();
    match names.len().checked_sub(LISTED) {
        None | Some(0) => shown.join(", "),
        Some(more) => format!("{} and {more} more", shown.join(", ")),
    }
}
