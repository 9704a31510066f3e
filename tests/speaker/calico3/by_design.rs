//! Differences between Tortie and the referees that are intended, each with its reason.

use serde_json::Value;

use super::objects::{Object, Objects};
use super::receiver::Route;
use super::render::filters::{PRIORITY_MAX, list};
use super::render::node::{Cluster, normal_priority};
use super::render::peers::Session;

/// A route to or from a peer that differs.
pub(super) struct Difference<'a> {
    pub(super) objects: &'a Objects,
    pub(super) node: &'a str,
    pub(super) session: &'a Session,
    /// True for a route that the peer sent.
    pub(super) received: bool,
    pub(super) prefix: &'a str,
    pub(super) tortie: Option<&'a Route>,
    /// The route of BIRD or FRR.
    pub(super) other: Option<&'a Route>,
    /// True if the other one is FRR.
    pub(super) frr: bool,
    /// Greatest LOCAL_PREF of the routes to this prefix that BIRD accepts.
    pub(super) offered: Option<u64>,
}

/// Returns true if a reason covers a difference.
type Covers = fn(&Difference<'_>) -> bool;

/// Reasons, each with the differences that it covers.
const BY_DESIGN: [(&str, Covers); 10] = [
    ("the networks that a host is connected to are never announced, whatever a filter accepts", |it| {
        !it.received && it.tortie.is_none() && matches!(it.prefix, "198.51.100.0/24" | "2001:db8:51::/64")
    }),
    (
        "a block whose affinity is not confirmed is not announced as own; BIRD has a blackhole for it, inside a pool",
        |it| {
            let settled = |state: &str| matches!(state, "" | "confirmed");
            let blocks = it.objects.affinities(it.node);
            !it.received && blocks.iter().any(|(block, state)| block == it.prefix && !settled(state))
        },
    ),
    (
        "the host route to a peer that `reachableBy` asks for is announced to nobody, whatever a filter accepts",
        |it| {
            let address = it.prefix.split('/').next().unwrap_or_default();
            let gateway = |peer: &Object<'_>| {
                !peer.text("reachableBy").is_empty() && peer.text("peerIP").contains(address)
            };
            !it.received && it.tortie.is_none() && it.objects.of("bgppeers").iter().any(gateway)
        },
    ),
    ("a pool for load balancers alone is no pool for routes", |it| {
        let of_services = |pool: &Object<'_>| pool.texts("allowedUses") == ["LoadBalancer"];
        let covered = it.prefix.starts_with("10.200.0.");
        !it.received && it.tortie.is_none() && covered && it.objects.of("ippools").iter().any(of_services)
    }),
    (
        "an address of an own workload is not taken over by a route of normal priority; BIRD prefers all of BGP to the \
         kernel",
        |it| {
            let sent = it.other.and_then(local_pref).filter(|_| it.received);
            is_of_own_workload(it) && sent.or(it.offered).is_some_and(|pref| pref <= normal_pref(it))
        },
    ),
    (
        "the route to an own workload is announced until its endpoint is removed, also while the workload moves and \
         another host announces it with a better priority",
        |it| {
            let moves = it.offered.is_some_and(|pref| pref > normal_pref(it));
            !it.received && is_of_own_workload(it) && moves
        },
    ),
    (
        "the host's own AS in a path is a loop on a session with another local AS too, as in FRR; BIRD looks for the \
         session's AS only",
        |it| {
            let cluster = Cluster::of(it.objects);
            let own_as = cluster.as_of(cluster.node(it.node));
            // Towards eBGP peers the path begins with the host's AS anyway.
            let prepended = !it.received && !it.session.is_internal(own_as);
            let path =
                it.other.and_then(|route| route.get("as_path")).map(String::as_str).unwrap_or_default();
            let loops = path.split(' ').skip(usize::from(prepended)).any(|asn| asn == own_as.to_string());
            it.tortie.is_none() && has_local_as(it) && loops
        },
    ),
    (
        "the interface of a route is not known by name: a rule that accepts by one does not match, and a rule that \
         rejects by one does",
        |it| !it.received && has_interface(it),
    ),
    ("FRR cannot compare priorities, and so withholds the address of a workload that moves", |it| {
        it.frr && !it.received && it.other.is_none() && is_of_own_workload(it)
    }),
    ("FRR announces a route to the eBGP peer that it learned it from", |it| {
        let path = it.other.and_then(|route| route.get("as_path"));
        let from = path.and_then(|path| path.split(' ').nth(1));
        it.frr && it.tortie.is_none() && from == Some(&it.session.asn.to_string())
    }),
];

fn local_pref(route: &Route) -> Option<u64> {
    route.get("local_pref")?.parse().ok()
}

/// Returns the LOCAL_PREF of routes of normal priority.
fn normal_pref(it: &Difference<'_>) -> u64 {
    PRIORITY_MAX - normal_priority(it.objects, it.session.is_v6())
}

fn is_of_own_workload(it: &Difference<'_>) -> bool {
    let endpoints = it.objects.of("workloadendpoints");
    let own = endpoints.iter().filter(|endpoint| endpoint.text("node") == it.node);
    own.flat_map(|endpoint| endpoint.texts("ipNetworks")).any(|network| network == it.prefix)
}

/// Returns true if the node may have sessions with another local AS.
fn has_local_as(it: &Difference<'_>) -> bool {
    it.objects.of("bgppeers").iter().any(|peer| !peer.spec("localASNumber").is_null())
}

/// Returns true if a filter of the session has a rule with an interface.
fn has_interface(it: &Difference<'_>) -> bool {
    it.session.export.iter().any(|name| {
        let filter = it.objects.get("bgpfilters", name).unwrap();
        let rules = filter.spec(list(true, it.session.is_v6())).as_array();
        let named = |rule: &Value| rule["interface"].as_str().is_some_and(|pattern| pattern != "*");
        rules.into_iter().flatten().any(named)
    })
}

/// Returns the reason for a difference.
pub(super) fn reason(difference: &Difference<'_>) -> Option<&'static str> {
    BY_DESIGN.iter().find(|(_, covers)| covers(difference)).map(|(reason, _)| *reason)
}
