//! Comparison of routes: blackholes of own blocks, blocks of other hosts, workloads, the tunnel, and routes
//! learned from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::counted;
use tortie_net::Cidr;

use super::comparison::{CompareResult, Comparison, Plane};
use crate::foreign::intent::{HostIntent, Remote};
use crate::foreign::types::{
    BIRD, BirdRoute, FELIX, ForeignState, MainHop, MainRoute, NetworkSnapshot, RouteKind,
};
use tortie_engine::policy::EndpointPolicy;
use tortie_engine::routing::{self, Encapsulation, FilterRoute, Hop, KernelRoute, PeerIntent, RemoteRoute};
use tortie_kernel::protocol_name;

/// `RTPROT_KERNEL`: routes that the kernel adds itself.
const KERNEL: u8 = 2;

/// BGP routes of BIRD by prefix, the best first.
type Learned<'a> = BTreeMap<Cidr, Vec<&'a BirdRoute>>;

struct RouteComparison<'a> {
    wanted: &'a HostIntent,
    found: &'a ForeignState,
    look: &'a NetworkSnapshot,
    learned: Learned<'a>,
    /// Prefixes that were already compared.
    done: BTreeSet<Cidr>,
}

pub(super) fn compare(wanted: &HostIntent, found: &ForeignState, out: &mut Comparison) {
    let mut court =
        RouteComparison { wanted, found, look: &found.look, learned: learned(found), done: BTreeSet::new() };
    court.blackholes(out);
    court.workloads(out);
    court.store_routes(out);
    court.remote(out);
    court.outside(out);
    court.rest(out);
    court.tunnel(out);
    court.vxlan_devices(out);
}

fn learned(found: &ForeignState) -> Learned<'_> {
    let mut all = Learned::new();
    for bird in &found.birds {
        let sessions: BTreeSet<&str> = bird.sessions().map(|p| p.name.as_str()).collect();
        for route in bird.routes.iter().filter(|route| sessions.contains(route.from.as_str())) {
            all.entry(route.prefix).or_default().push(route);
        }
    }
    for routes in all.values_mut() {
        routes.sort_by_key(|route| !route.best);
    }
    all
}

impl RouteComparison<'_> {
    fn absent(&self, out: &mut Comparison, plane: Plane, prefix: Cidr, what: &str) {
        if self.look.is_partial() {
            let why = "the main table changed during each read, so it may have been missed";
            out.put(
                plane,
                CompareResult::NotCompared,
                prefix.to_string(),
                format!("{what}: not seen, and {why}"),
            );
        } else {
            out.put(plane, CompareResult::Missing, prefix.to_string(), format!("{what}: missing"));
        }
    }

    fn blackholes(&mut self, out: &mut Comparison) {
        for block in &*self.wanted.intent.blackholes {
            self.done.insert(*block);
            match self.look.at(block).first() {
                None => self.absent(out, Plane::Route, *block, "blackhole of an own block"),
                Some(route) if route.kind == RouteKind::Blackhole => out.equal(Plane::Route),
                Some(route) => {
                    let text =
                        format!("should be the blackhole of an own block, and is {}", self.describe(route));
                    out.put(Plane::Route, CompareResult::Different, block.to_string(), text);
                }
            }
        }
    }

    /// Compares routes to the workloads of this host.
    fn workloads(&mut self, out: &mut Comparison) {
        let mut count = 0;
        for policy in self.wanted.ruleset.endpoints.values() {
            let EndpointPolicy::Workload(workload) = &**policy else { continue };
            if !workload.active {
                continue;
            }
            count += 1;
            let name = workload.interface.as_str();
            let outside = workload.nats.iter().map(|(_, outside)| Cidr::host(*outside));
            for prefix in workload.nets.iter().copied().chain(outside) {
                // If two endpoints have the same prefix, the first wins.
                if !self.done.insert(prefix) {
                    continue;
                }
                let Some((ifindex, _)) = self.look.link(name) else {
                    let text = format!("route to {name}: there is no such interface");
                    out.put(Plane::Interface, CompareResult::Missing, prefix.to_string(), text);
                    continue;
                };
                match self.look.at(&prefix).first() {
                    None => self.absent(out, Plane::Interface, prefix, &format!("route to {name}")),
                    Some(route) if route.hops == [MainHop { gateway: None, ifindex }] => {
                        out.equal(Plane::Interface);
                    }
                    Some(route) => {
                        let text = format!("should lead to {name}, and is {}", self.describe(route));
                        out.put(Plane::Interface, CompareResult::Different, prefix.to_string(), text);
                    }
                }
            }
        }
        if count > 0 {
            let text =
                format!("static neighbours and sysctls of {} are not compared", counted(count, "workload"));
            out.put(Plane::Interface, CompareResult::NotCompared, "neighbours", text);
        }
    }

    /// Compares routes that come from the store.
    fn store_routes(&mut self, out: &mut Comparison) {
        let routes = &self.wanted.intent.store_routes;
        for (prefix, wanted) in &routes.remote {
            if !self.done.insert(*prefix) {
                continue;
            }
            let device = tortie_kernel::vxlan_device(prefix.is_v4());
            let hop = match wanted {
                RemoteRoute::Vxlan(remote) => {
                    self.look.link(device).map(|(ifindex, _)| MainHop { gateway: Some(*remote), ifindex })
                }
                RemoteRoute::Ipip(host) => self
                    .look
                    .link("tunl0")
                    .map(|(ifindex, _)| MainHop { gateway: Some(IpAddr::V4(*host)), ifindex }),
                RemoteRoute::Direct(host, _) => self.hop_by(*host),
            };
            let words = match wanted {
                RemoteRoute::Vxlan(remote) => format!("route of a VXLAN pool via {remote} dev {device}"),
                RemoteRoute::Ipip(host) => format!("route of an IPIP pool via {host} dev tunl0"),
                RemoteRoute::Direct(host, Encapsulation::Vxlan) => {
                    format!("route of a VXLAN pool via {host}")
                }
                RemoteRoute::Direct(host, Encapsulation::Ipip) => format!("route of an IPIP pool via {host}"),
            };
            // Felix leads directly to a tunnel address that is its own block, or borrowed.
            let to_end = matches!(wanted, RemoteRoute::Vxlan(remote) if Cidr::host(*remote) == *prefix);
            self.store_route(out, *prefix, hop, to_end, &words);
        }
        for (peer, gateway) in &routes.gateways {
            let hop = self.hop_by(*gateway);
            // Without a way to the gateway neither program has the route.
            let is_concerned = hop.is_some() || !self.look.at(peer).is_empty();
            if is_concerned && self.done.insert(*peer) {
                let words = format!("route to a peer via {gateway} (reachable_by)");
                self.store_route(out, *peer, hop, false, &words);
            }
        }
        for (prefix, why) in &routes.withheld {
            if let Some(route) = self.look.at(prefix).first().filter(|_| self.done.insert(*prefix)) {
                let text =
                    format!("is {}, and Tortie would hold it back: {}", self.describe(route), why.reason);
                out.put(Plane::Route, CompareResult::Different, prefix.to_string(), text);
            }
        }
    }

    /// Returns the hop of a route by a gateway.
    fn hop_by(&self, gateway: IpAddr) -> Option<MainHop> {
        let to = self.look.resolve(gateway)?;
        Some(MainHop { gateway: Some(to.gateway.unwrap_or(gateway)), ifindex: to.ifindex })
    }

    /// Compares one route that comes from the store; `to_end` is true if it may lead to the interface alone.
    fn store_route(
        &self,
        out: &mut Comparison,
        prefix: Cidr,
        hop: Option<MainHop>,
        to_end: bool,
        words: &str,
    ) {
        let Some(route) = self.look.at(&prefix).first() else {
            return self.absent(out, Plane::Route, prefix, words);
        };
        let is = |gateway: Option<IpAddr>| hop.is_some_and(|hop| route.hops == [MainHop { gateway, ..hop }]);
        if route.kind == RouteKind::Unicast && (is(hop.and_then(|hop| hop.gateway)) || to_end && is(None)) {
            out.equal(Plane::Route);
        } else {
            let text = format!("should be the {words}, and is {}", self.describe(route));
            out.put(Plane::Route, CompareResult::Different, prefix.to_string(), text);
        }
    }

    /// Compares the VXLAN devices with their entries for other hosts.
    fn vxlan_devices(&self, out: &mut Comparison) {
        for found in self.look.vxlan_differences(&self.wanted.intent.vxlan) {
            if found.texts.is_empty() {
                out.equal(Plane::Interface);
            }
            for text in found.texts {
                out.put(Plane::Interface, CompareResult::Different, found.device, text);
            }
        }
    }

    /// Compares routes to blocks and workloads of other hosts.
    fn remote(&mut self, out: &mut Comparison) {
        let Some(remote) = &self.wanted.remote else {
            let why = "the affinities of other hosts could not be read from the store";
            out.put(Plane::Route, CompareResult::NotCompared, "blocks of other hosts", why);
            return;
        };
        for (prefix, remote) in remote {
            if self.done.insert(*prefix) {
                self.one_remote(*prefix, remote, out);
            }
        }
    }

    fn one_remote(&self, prefix: Cidr, remote: &Remote, out: &mut Comparison) {
        let what = if remote.borrowed { "workload" } else { "block" };
        let whose = format!("{what} of {}", remote.host);
        let not_compared = |out: &mut Comparison, why: String| {
            out.put(Plane::Route, CompareResult::NotCompared, prefix.to_string(), format!("{whose}: {why}"));
        };
        let has_routes = self.learned.get(&prefix).and_then(|routes| routes.iter().find(|route| route.best));
        let says = has_routes.and_then(|route| route.next_hop);
        let next_hop = match (remote.direct, remote.next_hop, says) {
            (true, Some(next_hop), says) => {
                if let Some(says) = says.filter(|says| *says != next_hop) {
                    let text = format!(
                        "{whose}: the host's address is {next_hop}, and BIRD has the next hop {says} from {}",
                        has_routes.map_or("", |route| route.from.as_str())
                    );
                    return out.put(Plane::Route, CompareResult::Different, prefix.to_string(), text);
                }
                next_hop
            }
            (_, _, Some(says)) => says,
            (false, Some(_), None) if self.found.bird_has_routes_of(prefix.is_v4()) => {
                // BIRD learned no route for it, and no mesh session could have announced one.
                return match self.look.at(&prefix).first() {
                    None => self.absent(out, Plane::Route, prefix, &format!("route to {whose}")),
                    Some(route) => not_compared(
                        out,
                        format!(
                            "{}, and BIRD learned no route for it: its source is unknown",
                            self.describe(route)
                        ),
                    ),
                };
            }
            (false, Some(_), None) => {
                let why = "no session of the mesh leads there, and only BIRD knows the next hop: its control \
                           socket was not read";
                return not_compared(out, why.to_owned());
            }
            (_, None, None) => {
                return not_compared(out, "that host has no address of this family in the store".to_owned());
            }
        };
        self.compare(prefix, next_hop, &whose, out);
    }

    /// Compares the route that Tortie would install for a learned prefix with the kernel's route.
    fn compare(&self, prefix: Cidr, next_hop: IpAddr, whose: &str, out: &mut Comparison) {
        let view = &self.wanted.intent.view;
        let resolve = |addr| self.look.resolve(addr);
        let wanted = routing::kernel_route(view, prefix, &[next_hop.into()], resolve, self.look.has_tunnel());
        let found = self.look.at(&prefix).first();
        match (wanted, found) {
            (KernelRoute::Withheld { .. }, None) => {}
            (KernelRoute::Withheld { reason }, Some(route)) => {
                let text = format!(
                    "{whose}: is {}, and Tortie would hold it back: {reason} (next hop {next_hop})",
                    self.describe(route)
                );
                out.put(Plane::Route, CompareResult::Different, prefix.to_string(), text);
            }
            (KernelRoute::Via { .. }, None) => {
                self.absent(out, Plane::Route, prefix, &format!("route to {whose} over {next_hop}"));
            }
            (KernelRoute::Via { hops, reason }, Some(route)) => {
                let hops: BTreeSet<MainHop> = hops.iter().filter_map(|hop| self.main(hop)).collect();
                let there: BTreeSet<MainHop> = route.hops.iter().copied().collect();
                if route.kind == RouteKind::Unicast && hops == there {
                    out.equal(Plane::Route);
                } else if route.hops.len() > 1 && self.paths(&prefix) > 1 {
                    let text = format!(
                        "{whose}: is {}: BIRD shares the load between paths that it ranks by its own order",
                        self.describe(route)
                    );
                    out.put(Plane::Route, CompareResult::NotCompared, prefix.to_string(), text);
                } else {
                    let text = format!(
                        "{whose}: should be {} ({reason}), and is {}",
                        self.hops(hops.iter()),
                        self.describe(route)
                    );
                    out.put(Plane::Route, CompareResult::Different, prefix.to_string(), text);
                }
            }
        }
    }

    /// Compares routes that BIRD learned for prefixes other than blocks and workloads of this cluster.
    fn outside(&mut self, out: &mut Comparison) {
        let best = |(prefix, routes): (&Cidr, &Vec<&'_ BirdRoute>)| {
            // If another protocol of BIRD has a better route, `rest` compares the prefix.
            routes.first().filter(|route| route.best).map(|route| (*prefix, (*route).clone()))
        };
        let learned: Vec<(Cidr, BirdRoute)> =
            self.learned.iter().filter(|(prefix, _)| !self.done.contains(prefix)).filter_map(best).collect();
        for (prefix, route) in &learned {
            self.done.insert(*prefix);
            let whose = format!("learned from {}", route.from);
            let subject = prefix.to_string();
            let Some(peer) = self.peer(&route.from) else {
                let text = format!("{whose}: the store configures no such session");
                out.put(Plane::Route, CompareResult::Extra, subject, text);
                continue;
            };
            if self.inside_pool(prefix) && self.wanted.remote.is_some() && !peer.is_router() {
                let text =
                    format!("{whose}: inside a pool, and no host has a confirmed block or a workload for it");
                out.put(Plane::Route, CompareResult::Extra, subject, text);
                continue;
            }
            if !peer.policy.filters.is_empty() {
                let text =
                    format!("{whose}: the filters of this peer read attributes that were not read from BIRD");
                out.put(Plane::Route, CompareResult::NotCompared, subject, text);
                continue;
            }
            let intent = &self.wanted.intent;
            if let Err(gate) =
                routing::import(&intent.view, &intent.addresses, &peer.policy, &FilterRoute::local(*prefix))
            {
                match self.look.at(prefix).first() {
                    None => {}
                    Some(there) => {
                        let text = format!(
                            "{whose}: is {}, and Tortie would not use it: {gate}",
                            self.describe(there)
                        );
                        out.put(Plane::Route, CompareResult::Extra, subject, text);
                    }
                }
                continue;
            }
            match route.next_hop {
                Some(next_hop) => self.compare(*prefix, next_hop, &whose, out),
                None => {
                    out.put(
                        Plane::Route,
                        CompareResult::NotCompared,
                        subject,
                        format!("{whose}: BIRD shows no next hop"),
                    );
                }
            }
        }
    }

    /// Reports the remaining kernel routes: BIRD's, Felix's, and those on interfaces of workloads.
    fn rest(&mut self, out: &mut Comparison) {
        let mut last = None;
        for route in self.look.routes() {
            if self.done.contains(&route.prefix) || last == Some(route.prefix) {
                continue;
            }
            let workload = self.wanted.rules
                && route.protocol != KERNEL
                && route.hops.iter().any(|hop| {
                    self.look.interface(hop.ifindex).is_some_and(|name| self.wanted.globals.is_workload(name))
                });
            if workload {
                last = Some(route.prefix);
                let text = format!("{}: no endpoint of this host has it", self.describe(route));
                out.put(Plane::Interface, CompareResult::Extra, route.prefix.to_string(), text);
            } else if self.is_felix(route) {
                last = Some(route.prefix);
                let text = format!("{}: the store asks for no such route of Felix", self.describe(route));
                out.put(Plane::Route, CompareResult::Extra, route.prefix.to_string(), text);
            } else if route.protocol == BIRD && !self.is_copy(route) {
                last = Some(route.prefix);
                let (verdict, why) = self.unexplained(route);
                out.put(
                    Plane::Route,
                    verdict,
                    route.prefix.to_string(),
                    format!("{}: {why}", self.describe(route)),
                );
            }
        }
    }

    fn unexplained(&self, route: &MainRoute) -> (CompareResult, &'static str) {
        if self.wanted.unsettled.contains(&route.prefix) {
            let why = "this host's affinity to the block is not confirmed, or the block names another host";
            return (CompareResult::Extra, why);
        }
        if route.kind == RouteKind::Blackhole {
            return (CompareResult::Extra, "no own block");
        }
        if !self.found.bird_has_routes_of(route.prefix.is_v4()) {
            return (
                CompareResult::NotCompared,
                "only BIRD's control socket shows its source, and that was not read",
            );
        }
        if self.wanted.remote.is_none() {
            return (CompareResult::NotCompared, "the affinities of other hosts could not be read");
        }
        let known = self.found.birds.iter().flat_map(|bird| &bird.routes).any(|r| r.prefix == route.prefix);
        match known {
            true => (
                CompareResult::NotCompared,
                "BIRD has it from another protocol than BGP, by its own configuration",
            ),
            false => {
                (CompareResult::Extra, "no peer announces it any more, and BIRD itself does not have it")
            }
        }
    }

    /// True for a route of Felix 3 that leads to another host, or nowhere.
    fn is_felix(&self, route: &MainRoute) -> bool {
        let on_vxlan = |hop: &MainHop| {
            let name = self.look.interface(hop.ifindex);
            [true, false].into_iter().any(|v4| name == Some(tortie_kernel::vxlan_device(v4)))
        };
        route.protocol == FELIX
            || route.protocol != KERNEL && !route.hops.is_empty() && route.hops.iter().all(on_vxlan)
    }

    /// True for BIRD's copy of a connected network, which BIRD installs a second time.
    fn is_copy(&self, route: &MainRoute) -> bool {
        let connected = |other: &MainRoute| other.protocol == KERNEL && other.hops == route.hops;
        route.hops.iter().all(|hop| hop.gateway.is_none())
            && !route.hops.is_empty()
            && self.look.at(&route.prefix).iter().any(connected)
    }

    fn tunnel(&self, out: &mut Comparison) {
        let Some(tunnel) = &self.wanted.intent.tunnel else { return };
        let wrong = self.look.tunnel_differences(tunnel, self.wanted.intent.view.node_v4);
        if wrong.is_empty() {
            out.equal(Plane::Interface);
        }
        for text in wrong {
            out.put(Plane::Interface, CompareResult::Different, "tunl0", text);
        }
    }

    fn peer(&self, session: &str) -> Option<&PeerIntent> {
        let peers = &self.wanted.intent.peers;
        let by_address = || {
            let has_routes =
                self.found.birds.iter().flat_map(|bird| bird.sessions()).find(|p| p.name == session)?;
            peers.values().find(|peer| Some(peer.remote.ip()) == has_routes.neighbor)
        };
        peers.get(session).or_else(by_address)
    }

    fn paths(&self, prefix: &Cidr) -> usize {
        self.learned.get(prefix).map_or(0, Vec::len)
    }

    fn inside_pool(&self, prefix: &Cidr) -> bool {
        self.wanted.intent.view.pool_of(prefix).is_some()
    }

    fn main(&self, hop: &Hop) -> Option<MainHop> {
        Some(match hop {
            Hop::Plain { gateway, ifindex } => MainHop { gateway: Some(*gateway), ifindex: *ifindex },
            Hop::Tunnel { remote } => {
                MainHop { gateway: Some(IpAddr::V4(*remote)), ifindex: self.look.link("tunl0")?.0 }
            }
            Hop::Vxlan { remote } => {
                let device = tortie_kernel::vxlan_device(remote.is_ipv4());
                MainHop { gateway: Some(*remote), ifindex: self.look.link(device)?.0 }
            }
        })
    }

    fn hops<'h>(&self, hops: impl Iterator<Item = &'h MainHop>) -> String {
        let one = |hop: &MainHop| {
            let dev = self.look.interface(hop.ifindex).unwrap_or("?");
            hop.gateway.map_or_else(|| format!("dev {dev}"), |gateway| format!("via {gateway} dev {dev}"))
        };
        hops.map(one).collect::<Vec<_>>().join(" and ")
    }

    /// Formats a route like `ip route`, shortened.
    fn describe(&self, route: &MainRoute) -> String {
        let protocol = protocol_name(route.protocol);
        match route.kind {
            RouteKind::Blackhole => format!("a blackhole, proto {protocol}"),
            RouteKind::Other => format!("a route that refuses, proto {protocol}"),
            RouteKind::Unicast => format!("{}, proto {protocol}", self.hops(route.hops.iter())),
        }
    }
}
