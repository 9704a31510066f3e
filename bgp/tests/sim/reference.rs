//! Reference implementation: the outcome of BGP on a network, computed in rounds of full announcements.
//! Written from RFC 4271 9 and RFC 4456 6, 8 and 9, without any code of the speaker.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_net::Cidr;

use crate::topology::{CUSTOMER, Kind, Topology, local_pref};

/// A route as a router holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// Router that sent the route. `None`: originated locally.
    pub(crate) from: Option<usize>,
    pub(crate) path: Vec<u32>,
    pub(crate) next_hop: usize,
    pub(crate) originator: Option<u32>,
    pub(crate) clusters: Vec<u32>,
}

pub(crate) type Bests = Vec<BTreeMap<Cidr, Route>>;

/// Returns the announcement of router `a` to `b` for its best route. `None`: not announced.
fn said(t: &Topology, a: usize, b: usize, best: &Route) -> Option<Route> {
    let (here, kind) = (&t.routers[a].global, t.kind(a, b));
    let from = best.from.map(|f| (f, t.kind(a, f)));
    let mut route = best.clone();
    route.from = Some(a);
    match kind {
        Kind::External(class) => {
            let from_customer = from.is_none_or(|(_, k)| k == Kind::External(CUSTOMER));
            if t.relations && class != CUSTOMER && !from_customer {
                return None;
            }
            route.path.insert(0, here.asn);
            route.next_hop = a;
            route.originator = None;
            route.clusters.clear();
        }
        Kind::Internal | Kind::Client(_) => match from {
            None | Some((_, Kind::External(_))) => route.next_hop = a,
            Some((f, learned)) => {
                let ((Kind::Client(cluster), _) | (_, Kind::Client(cluster))) = (kind, learned) else {
                    return None;
                };
                route.originator = route.originator.or(Some(t.routers[f].global.router_id.0));
                route.clusters.insert(0, cluster);
            }
        },
    }
    Some(route)
}

/// Returns true if router `b` accepts this route.
fn taken(t: &Topology, b: usize, route: &Route) -> bool {
    let global = &t.routers[b].global;
    let own_cluster = |c: &u32| {
        *c == global.router_id.0 || t.adjacent[b].iter().any(|(p, _)| t.kind(b, *p) == Kind::Client(*c))
    };
    !route.path.contains(&global.asn)
        && route.originator != Some(global.router_id.0)
        && !route.clusters.iter().any(own_cluster)
        && route.next_hop != b
}

/// Returns the sort key of RFC 4271 9.1 and RFC 4456 9: the lowest is the best.
fn rank(t: &Topology, at: usize, route: &Route) -> impl Ord + use<> {
    let Some(from) = route.from else {
        return (false, Reverse(0), 0, false, 0, 0, 0, None);
    };
    let kind = t.kind(at, from);
    let external = matches!(kind, Kind::External(_));
    let preference = match kind {
        Kind::External(class) if t.relations => local_pref(class),
        _ => 100,
    };
    let hop: IpAddr = t.address(route.next_hop);
    let id = route.originator.unwrap_or(t.routers[from].global.router_id.0);
    let metric = t.metric(at, hop);
    (
        true,
        Reverse(preference),
        route.path.len(),
        !external,
        metric,
        id,
        route.clusters.len(),
        Some(t.address(from)),
    )
}

/// Computes the best routes of all routers from the originated prefixes.
pub(crate) fn solve(t: &Topology, origins: &[Vec<Cidr>]) -> Bests {
    let mut bests: Bests = origins
        .iter()
        .enumerate()
        .map(|(n, list)| {
            let own = Route { from: None, path: vec![], next_hop: n, originator: None, clusters: vec![] };
            list.iter().map(|p| (*p, own.clone())).collect()
        })
        .collect();
    // Each round propagates changes by at least one hop; a dispute wheel would never end.
    for _ in 0..20 * (t.routers.len() + 5) {
        let next: Bests = (0..t.routers.len()).map(|n| choose(t, n, &bests, &origins[n])).collect();
        if next == bests {
            return bests;
        }
        bests = next;
    }
    panic!("the reference does not settle: the network has a dispute");
}

fn choose(t: &Topology, at: usize, bests: &Bests, own: &[Cidr]) -> BTreeMap<Cidr, Route> {
    let mut chosen: BTreeMap<Cidr, Route> = own
        .iter()
        .map(|p| (*p, Route { from: None, path: vec![], next_hop: at, originator: None, clusters: vec![] }))
        .collect();
    for (peer, _) in &t.adjacent[at] {
        for (prefix, best) in &bests[*peer] {
            let Some(route) = said(t, *peer, at, best).filter(|r| taken(t, at, r)) else { continue };
            match chosen.get(prefix) {
                Some(have) if rank(t, at, have) <= rank(t, at, &route) => {}
                _ => {
                    chosen.insert(*prefix, route);
                }
            }
        }
    }
    chosen
}
