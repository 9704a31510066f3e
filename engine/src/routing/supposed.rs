//! The decision about a supposed route, which no peer has sent and no table holds. It runs the functions that
//! decide about real routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_config::resource::Community;
use tortie_net::Cidr;

use super::explain::{Step, StepOutcome};
use super::filter::{Direction, FilterChanges, FilterRoute};
use super::forward::{IPIP_POOL, VXLAN_POOL, explain_kernel_route};
use super::gates::{FILTER, explain_export, explain_import};
use super::store_routes::Encapsulation;
use super::types::{Hop, KernelRoute, PeerIntent, Resolved, RoutingIntent};

/// Result for a supposed route that a peer would announce or receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupposedRoute {
    /// True if the route is accepted.
    pub accepted: bool,
    /// Deciding gate or check, or the deciding rule of a filter.
    pub by: String,
    /// Communities that are added if the route is accepted.
    pub added: Vec<Community>,
}

/// Result for a supposed route that a peer announced, in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupposedKernelRoute {
    /// True if the kernel would have a route for its destinations.
    pub programmed: bool,
    /// Tunnel of its packets.
    pub tunnel: Option<Encapsulation>,
    /// Reason, one of those of [`KernelRoute`].
    pub reason: &'static str,
}

/// Decides about the export of a supposed route to a peer.
#[must_use]
pub fn suppose_export(intent: &RoutingIntent, peer: &PeerIntent, route: &FilterRoute<'_>) -> SupposedRoute {
    if !carries(peer, route) {
        return not_carried();
    }
    let ebgp = peer.is_external(intent.asn);
    let (answer, steps) = explain_export(&intent.view, &peer.policy, ebgp, route);
    let communities = answer.communities.iter().copied().map(Community::Standard);
    let large = answer.large_communities.iter().copied().map(Community::Large);
    let changes = answer.changes.clone();
    let mut added = added(intent, peer, Direction::Export, &changes);
    added.extend(communities.chain(large));
    finish(answer.accept, answer.gate, &steps, added)
}

/// Decides about the import of a supposed route from a peer.
#[must_use]
pub fn suppose_import(intent: &RoutingIntent, peer: &PeerIntent, route: &FilterRoute<'_>) -> SupposedRoute {
    if !carries(peer, route) {
        return not_carried();
    }
    let (answer, steps) = explain_import(&intent.view, &intent.addresses, &peer.policy, route);
    match answer {
        Ok(changes) => {
            let decided = steps.iter().any(|step| step.outcome == StepOutcome::Yes);
            let by = if decided { FILTER } else { "accept" };
            finish(true, by, &steps, added(intent, peer, Direction::Import, &changes))
        }
        Err(reason) => finish(false, reason, &steps, Vec::new()),
    }
}

/// Decides if the kernel would have a supposed learned route. Its next hop counts as reachable and the tunnel
/// as present; without a next hop, it is outside of the network of this host. Where the routes of
/// a pool come from the store, no announcement gives one: there the answer is the route of the store, if any.
#[must_use]
pub fn suppose_kernel(intent: &RoutingIntent, route: &FilterRoute<'_>) -> SupposedKernelRoute {
    let unspecified =
        if route.prefix.is_v4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let next_hop: IpAddr = route.next_hop.unwrap_or(unspecified);
    let resolve = |_| Some(Resolved { ifindex: 0, gateway: None, metric: 0 });
    let (answer, _) = explain_kernel_route(&intent.view, route.prefix, &[next_hop.into()], resolve, true);
    match answer {
        KernelRoute::Via { hops, reason } => {
            let tunnel = hops.iter().find_map(|hop| match hop {
                Hop::Plain { .. } => None,
                Hop::Tunnel { .. } => Some(Encapsulation::Ipip),
                Hop::Vxlan { .. } => Some(Encapsulation::Vxlan),
            });
            SupposedKernelRoute { programmed: true, tunnel, reason }
        }
        KernelRoute::Withheld { reason: reason @ (VXLAN_POOL | IPIP_POOL) } => {
            of_store(intent, &route.prefix, reason)
        }
        KernelRoute::Withheld { reason } => SupposedKernelRoute { programmed: false, tunnel: None, reason },
    }
}

/// Returns the route of the store for a prefix in a pool whose routes come from it; `absent` is the reason where
/// it has none.
fn of_store(intent: &RoutingIntent, prefix: &Cidr, absent: &'static str) -> SupposedKernelRoute {
    let covering = intent.store_routes.remote.iter().filter(|(route, _)| route.covers(prefix));
    match covering.max_by_key(|(route, _)| route.len()) {
        Some((_, route)) => {
            SupposedKernelRoute { programmed: true, tunnel: route.tunnel(), reason: route.reason() }
        }
        None => SupposedKernelRoute { programmed: false, tunnel: None, reason: absent },
    }
}

fn carries(peer: &PeerIntent, route: &FilterRoute<'_>) -> bool {
    if route.prefix.is_v4() { peer.ipv4 } else { peer.ipv6 }
}

fn not_carried() -> SupposedRoute {
    SupposedRoute { accepted: false, by: "family".to_owned(), added: Vec::new() }
}

fn added(
    intent: &RoutingIntent,
    peer: &PeerIntent,
    direction: Direction,
    changes: &FilterChanges,
) -> Vec<Community> {
    let of_rule = |at| intent.view.filters.added_communities(&peer.policy.filters, direction, at);
    changes.iter().flat_map(|at| of_rule(*at)).collect()
}

/// Names the deciding rule instead of `filter`.
fn finish(accepted: bool, gate: &str, steps: &[Step], mut added: Vec<Community>) -> SupposedRoute {
    let step = steps.iter().find(|step| step.name == gate && gate == FILTER);
    let by = step.map_or(gate, |step| {
        let verdict = if accepted { " accepts it" } else { " rejects it" };
        step.text.split(verdict).next().unwrap_or(&step.text)
    });
    if !accepted {
        added.clear();
    }
    added.sort_unstable();
    added.dedup();
    SupposedRoute { accepted, by: by.to_owned(), added }
}
