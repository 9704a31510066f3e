//! Decides the kernel route of a learned prefix.
//!
//! | destination | next hop | kernel | reason |
//! | --- | --- | --- | --- |
//! | outside of every pool | any | as resolved | `outside-pools` |
//! | pool without a tunnel, IPv6 pool without VXLAN | any | as resolved | `plain` |
//! | VXLAN pool | any | none: the routes come from the store | `vxlan-pool` |
//! | IPIP pool whose routes come from the store (`ProgramClusterRoutes`) | any | none | `ipip-pool` |
//! | IPIP pool, `always` | IPv4 | `via <BGP next hop> dev tunl0 onlink` | `ipip-always` |
//! | IPIP pool, `cross-subnet` | inside `network_v4` | as resolved | `same-subnet` |
//! | IPIP pool, `cross-subnet` | outside | `via <BGP next hop> dev tunl0 onlink` | `ipip-cross-subnet` |
//!
//! "As resolved" is the gateway of the kernel's route to the next hop, or the next hop itself if it is
//! on-link (see [`resolve`]). The address compared with `network_v4` is the BGP next hop, not the peer that
//! sent the route: behind a route reflector the two differ. Next hops that do not resolve are left out; if
//! none is left, the route is withheld as `unresolved`. A route of a pool that needs the tunnel while it is
//! missing (`no-tunnel`), or `network_v4` while it is unknown (`no-network`), is withheld as well: `status`
//! shows a missing route, while packets that bypass their tunnel would go unnoticed.
//!
//! In a store of Calico 3, learned routes inside of a service range (`service-range`) are not installed, as in
//! Calico's kernel filter.

mod next_hops;

use std::net::IpAddr;

use tortie_net::{Cidr, ScopedAddr, cover};

use super::explain::{Recorder, Step, StepOutcome};
use super::types::{Hop, IpipMode, KernelRoute, PoolView, Resolved, RoutingView};

pub use next_hops::{CoveringRoute, Legs, Resolution, RoutingTable, resolve};

/// Reason for which an announced route in a VXLAN pool is withheld.
pub(super) const VXLAN_POOL: &str = "vxlan-pool";
/// Reason for which an announced route in an IPIP pool is withheld whose routes come from the store.
pub(super) const IPIP_POOL: &str = "ipip-pool";

/// Returns the kernel route for a learned `prefix` with these BGP next hops (more than one for ECMP).
///
/// `resolve` returns the legs to a next hop (more than one if the path uses a learned multipath route).
/// `tunnel_present` is true if `tunl0` exists and is up.
#[must_use]
pub fn kernel_route<R: IntoIterator<Item = Resolved>>(
    view: &RoutingView,
    prefix: Cidr,
    next_hops: &[ScopedAddr],
    resolve: impl FnMut(ScopedAddr) -> R,
    tunnel_present: bool,
) -> KernelRoute {
    decide(view, prefix, next_hops, resolve, tunnel_present, &mut ())
}

/// Returns the [`kernel_route`] with the steps of the decision: `pool`, one `next-hop` per leg, `route`.
pub fn explain_kernel_route<R: IntoIterator<Item = Resolved>>(
    view: &RoutingView,
    prefix: Cidr,
    next_hops: &[ScopedAddr],
    resolve: impl FnMut(ScopedAddr) -> R,
    tunnel_present: bool,
) -> (KernelRoute, Vec<Step>) {
    let mut steps = Vec::new();
    let route = decide(view, prefix, next_hops, resolve, tunnel_present, &mut steps);
    (route, steps)
}

fn decide<R: IntoIterator<Item = Resolved>>(
    view: &RoutingView,
    prefix: Cidr,
    next_hops: &[ScopedAddr],
    mut resolve: impl FnMut(ScopedAddr) -> R,
    tunnel_present: bool,
    rec: &mut impl Recorder,
) -> KernelRoute {
    if let Some(store) = &view.calico3
        && cover::in_set(&store.refused_ranges, &prefix).is_some()
    {
        return withhold(rec, "service-range", "services are reached at their endpoints, not by this route");
    }
    let pool = view.pool_of(&prefix);
    let mode = pool.and_then(|p| p.ipip).filter(|_| prefix.is_v4());
    rec.step("pool", StepOutcome::Passed, || match (pool, mode) {
        (None, _) => "outside of every pool: not tunnelled".to_owned(),
        (Some(PoolView { cidr, vxlan: Some(mode), .. }), _) => {
            format!("pool {cidr} has VXLAN {}", mode.as_str())
        }
        (Some(p), None) => format!("pool {} has no IPIP", p.cidr),
        (Some(p), Some(IpipMode::Always)) => format!("pool {} has IPIP always", p.cidr),
        (Some(p), Some(IpipMode::CrossSubnet)) => match view.network_v4 {
            Some(network) => format!("pool {} has IPIP across subnets; this node is in {network}", p.cidr),
            None => format!("pool {} has IPIP across subnets", p.cidr),
        },
    });
    if pool.is_some_and(|pool| pool.vxlan.is_some()) {
        return withhold(rec, VXLAN_POOL, "the routes of a VXLAN pool come from the store, not from BGP");
    }
    if mode.is_some() && view.ipip_from_store {
        return withhold(
            rec,
            IPIP_POOL,
            "ProgramClusterRoutes: the routes of an IPIP pool come from the store",
        );
    }
    if mode == Some(IpipMode::CrossSubnet) && view.network_v4.is_none() {
        return withhold(rec, "no-network", "the node has no network_v4, so its subnet is unknown");
    }

    let mut hops = Vec::with_capacity(next_hops.len());
    let mut tunnelled = false;
    for &next_hop in next_hops {
        let mut ways = resolve(next_hop).into_iter().peekable();
        if ways.peek().is_none() {
            rec.step("next-hop", StepOutcome::No, || format!("{next_hop}: the kernel has no route to it"));
            continue;
        }
        if let Some(remote) = tunnel_end(view, mode, next_hop.addr()) {
            rec.step("next-hop", StepOutcome::Yes, || format!("{next_hop}: through the tunnel"));
            tunnelled = true;
            hops.push(Hop::Tunnel { remote });
            continue;
        }
        for resolved in ways {
            let gateway = resolved.gateway.unwrap_or(next_hop.addr());
            rec.step("next-hop", StepOutcome::Yes, || match resolved.gateway {
                None => format!("{}: on-link, interface {}", next_hop.addr(), resolved.ifindex),
                Some(gateway) => format!("{next_hop}: through {gateway}, interface {}", resolved.ifindex),
            });
            hops.push(Hop::Plain { gateway, ifindex: resolved.ifindex });
        }
    }
    if hops.is_empty() {
        return withhold(rec, "unresolved", "the kernel reaches none of the next hops");
    }
    if tunnelled && !tunnel_present {
        return withhold(rec, "no-tunnel", "the pool needs the tunnel, and tunl0 does not exist");
    }
    hops.sort_unstable();
    hops.dedup();
    let reason = match (pool, mode) {
        (None, _) => "outside-pools",
        (Some(_), Some(IpipMode::Always)) if tunnelled => "ipip-always",
        (Some(_), Some(IpipMode::CrossSubnet)) if tunnelled => "ipip-cross-subnet",
        (Some(_), Some(IpipMode::CrossSubnet)) => "same-subnet",
        (Some(_), _) => "plain",
    };
    rec.step("route", StepOutcome::Yes, || reason.to_owned());
    KernelRoute::Via { hops, reason }
}

/// Returns the remote tunnel endpoint for a next hop; `None` for a plain route.
fn tunnel_end(view: &RoutingView, mode: Option<IpipMode>, next_hop: IpAddr) -> Option<std::net::Ipv4Addr> {
    // IPIP has no IPv6 outer header, so an IPv6 next hop (RFC 8950) is reached without the tunnel.
    let IpAddr::V4(remote) = next_hop else { return None };
    match mode? {
        IpipMode::Always => Some(remote),
        IpipMode::CrossSubnet => {
            let same = view.network_v4.is_some_and(|network| network.contains(next_hop));
            (!same).then_some(remote)
        }
    }
}

fn withhold(rec: &mut impl Recorder, reason: &'static str, text: &'static str) -> KernelRoute {
    rec.step("route", StepOutcome::No, || format!("{reason}: {text}"));
    KernelRoute::Withheld { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn view(network: Option<&str>) -> RoutingView {
        let pool =
            |text: &str, ipip| PoolView { cidr: text.parse().unwrap(), ipip, vxlan: None, disabled: false };
        let vxlan = |text| PoolView { vxlan: Some(IpipMode::CrossSubnet), ..pool(text, None) };
        RoutingView {
            network_v4: network.map(|n| n.parse().unwrap()),
            pools: vec![
                pool("10.0.0.0/16", None),
                pool("10.1.0.0/16", Some(IpipMode::Always)),
                pool("10.2.0.0/16", Some(IpipMode::CrossSubnet)),
                vxlan("10.3.0.0/16"),
                // IPIP on an IPv6 pool, which Calico rejects, must have no effect.
                pool("fd00::/48", Some(IpipMode::Always)),
                vxlan("fd01::/48"),
            ],
            ..RoutingView::default()
        }
    }

    /// Resolves next hops: 192.0.2.0/24 and 2001:db8::/64 are on-link on interface 2, 198.51.100.0/24 is
    /// behind 192.0.2.1, and the rest is unreachable.
    fn resolve(addr: ScopedAddr) -> Option<Resolved> {
        let on = |net: &str| net.parse::<Cidr>().unwrap().contains(addr.addr());
        if on("192.0.2.0/24") || on("2001:db8::/64") {
            return Some(Resolved { ifindex: 2, gateway: None, metric: 0 });
        }
        on("198.51.100.0/24").then(|| Resolved { ifindex: 2, gateway: Some(ip("192.0.2.1")), metric: 5 })
    }

    fn route(prefix: &str, next_hops: &[&str], network: Option<&str>, tunnel: bool) -> KernelRoute {
        let hops: Vec<ScopedAddr> = next_hops.iter().map(|h| h.parse().unwrap()).collect();
        let prefix = prefix.parse().unwrap();
        let (explained, steps) = explain_kernel_route(&view(network), prefix, &hops, resolve, tunnel);
        let route = kernel_route(&view(network), prefix, &hops, resolve, tunnel);
        assert_eq!(route, explained);
        assert_eq!(steps.last().map(|s| s.name), Some("route"));
        route
    }

    fn via(reason: &'static str, hops: &[Hop]) -> KernelRoute {
        KernelRoute::Via { hops: hops.to_vec(), reason }
    }

    fn plain(gateway: &str) -> Hop {
        Hop::Plain { gateway: ip(gateway), ifindex: 2 }
    }

    fn tunnel(remote: &str) -> Hop {
        Hop::Tunnel { remote: remote.parse().unwrap() }
    }

    const NET: Option<&str> = Some("192.0.2.0/24");

    #[test]
    fn outside_of_ipip_pools_routes_are_plain() {
        assert_eq!(
            route("0.0.0.0/0", &["192.0.2.1"], NET, true),
            via("outside-pools", &[plain("192.0.2.1")])
        );
        assert_eq!(route("10.0.0.0/26", &["192.0.2.5"], NET, true), via("plain", &[plain("192.0.2.5")]));
        // A next hop behind a router uses the gateway of the kernel route.
        assert_eq!(route("10.0.0.0/26", &["198.51.100.5"], NET, true), via("plain", &[plain("192.0.2.1")]));
        assert_eq!(route("fd00::/122", &["2001:db8::5"], NET, true), via("plain", &[plain("2001:db8::5")]));
        // A prefix wider than the pool is not inside of it.
        assert_eq!(
            route("10.0.0.0/15", &["192.0.2.5"], NET, true),
            via("outside-pools", &[plain("192.0.2.5")])
        );
    }

    #[test]
    fn ipip_always_tunnels_to_the_bgp_next_hop() {
        assert_eq!(
            route("10.1.0.0/26", &["192.0.2.5"], NET, true),
            via("ipip-always", &[tunnel("192.0.2.5")])
        );
        assert_eq!(
            route("10.1.0.0/26", &["198.51.100.5"], None, true),
            via("ipip-always", &[tunnel("198.51.100.5")])
        );
        assert_eq!(
            route("10.1.0.0/26", &["2001:db8::5"], NET, true),
            via("plain", &[plain("2001:db8::5")]),
            "an IPv6 next hop cannot be tunnelled to"
        );
    }

    #[test]
    fn cross_subnet_compares_the_bgp_next_hop_with_the_nodes_network() {
        assert_eq!(
            route("10.2.0.0/26", &["192.0.2.5"], NET, true),
            via("same-subnet", &[plain("192.0.2.5")])
        );
        assert_eq!(
            route("10.2.0.0/26", &["192.0.2.5"], NET, false),
            via("same-subnet", &[plain("192.0.2.5")])
        );
        assert_eq!(
            route("10.2.0.0/26", &["198.51.100.5"], NET, true),
            via("ipip-cross-subnet", &[tunnel("198.51.100.5")])
        );
        assert_eq!(
            route("10.2.0.0/26", &["198.51.100.5", "192.0.2.5"], NET, true),
            via("ipip-cross-subnet", &[plain("192.0.2.5"), tunnel("198.51.100.5")])
        );
    }

    #[test]
    fn several_next_hops_make_a_sorted_group_without_duplicates() {
        assert_eq!(
            route("10.0.0.0/26", &["192.0.2.9", "192.0.2.5", "203.0.113.1"], NET, true),
            via("plain", &[plain("192.0.2.5"), plain("192.0.2.9")])
        );
        assert_eq!(
            route("10.0.0.0/26", &["198.51.100.5", "198.51.100.6"], NET, true),
            via("plain", &[plain("192.0.2.1")])
        );
    }

    #[test]
    fn a_neighbour_on_two_links_is_two_hops() {
        let hops = ["fe80::1%3", "fe80::1%4", "fe80::1"].map(|hop| hop.parse().unwrap());
        let resolve = |hop: ScopedAddr| {
            (hop.interface() > 0).then(|| Resolved { ifindex: hop.interface(), gateway: None, metric: 0 })
        };
        let on = |ifindex| Hop::Plain { gateway: ip("fe80::1"), ifindex };
        let prefix = "10.0.0.0/26".parse().unwrap();
        let (route, steps) = explain_kernel_route(&view(NET), prefix, &hops, resolve, true);
        assert_eq!(route, via("plain", &[on(3), on(4)]));
        let texts: Vec<&str> =
            steps.iter().filter(|s| s.name == "next-hop").map(|s| s.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "fe80::1: on-link, interface 3",
                "fe80::1: on-link, interface 4",
                "fe80::1: the kernel has no route to it"
            ]
        );
    }

    #[test]
    fn what_cannot_be_right_is_withheld_with_its_reason() {
        let withheld = |reason| KernelRoute::Withheld { reason };
        assert_eq!(route("10.0.0.0/26", &["203.0.113.1"], NET, true), withheld("unresolved"));
        assert_eq!(route("10.1.0.0/26", &["203.0.113.1"], NET, true), withheld("unresolved"));
        assert_eq!(route("10.0.0.0/26", &[], NET, true), withheld("unresolved"));
        assert_eq!(route("10.1.0.0/26", &["192.0.2.5"], NET, false), withheld("no-tunnel"));
        assert_eq!(route("10.2.0.0/26", &["198.51.100.5"], NET, false), withheld("no-tunnel"));
        assert_eq!(route("10.3.0.0/26", &["192.0.2.5"], NET, true), withheld("vxlan-pool"));
        assert_eq!(route("fd01::/122", &["2001:db8::5"], NET, true), withheld("vxlan-pool"));
        assert_eq!(route("10.2.0.0/26", &["192.0.2.5"], None, true), withheld("no-network"));
    }
}
