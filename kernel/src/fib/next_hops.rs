//! Resolution of next hops in the desired main table: foreign routes as the kernel has them, and learned
//! routes as they are desired.
//!
//! The algorithm is `tortie_engine::routing::resolve_next_hop`; this module provides the tables that it
//! searches. Pure.

use tortie_engine::routing::{
    CoveringRoute, Hop, KernelRoute, Legs, Resolution, Resolved, RoutingTable, RoutingView, kernel_route,
    resolve_next_hop,
};
use tortie_net::{Cidr, ScopedAddr};

use crate::fib::ipip_tunnel;
use crate::fib::network::{Covering, NetworkState, NextHopAnswer};
use crate::fib::table::Table;

/// The desired main table.
pub(crate) struct MainTable<'a> {
    pub(crate) network: &'a NetworkState,
    pub(crate) table: &'a Table,
    pub(crate) view: &'a RoutingView,
    pub(crate) tunnel_present: bool,
}

impl MainTable<'_> {
    /// Resolves a next hop and returns the addresses that the resolution used.
    pub(crate) fn answer(&self, addr: ScopedAddr) -> NextHopAnswer {
        let Resolution { legs, through, mut visited, .. } = resolve_next_hop(self, addr, None);
        let mut within = Vec::new();
        for prefix in through {
            let others = resolve_next_hop(self, addr, Some(prefix));
            visited.extend(others.visited);
            if others.legs != legs {
                within.push((prefix, others.legs));
            }
        }
        visited.retain(|seen| *seen != addr);
        visited.sort_unstable();
        visited.dedup();
        NextHopAnswer { within, legs, over: visited }
    }

    /// Resolves a next hop for routes to a prefix, with all steps.
    pub(crate) fn resolution(&self, addr: ScopedAddr, prefix: &Cidr) -> Resolution {
        resolve_next_hop(self, addr, Some(*prefix))
    }

    /// Returns the route that the kernel should use for packets to an address; `None` if there is none.
    pub(crate) fn first(&self, addr: ScopedAddr) -> Option<Covering> {
        let resolution = resolve_next_hop(self, addr, None);
        let resolved = *resolution.legs.first()?;
        if let Some(prefix) = resolution.through.first() {
            return Some(Covering { prefix: *prefix, protocol: self.table.marks().protocol, resolved });
        }
        let foreign = self.network.covering(addr).find(|covering| covering.legs.contains(&resolved))?;
        Some(Covering { prefix: foreign.prefix, protocol: foreign.protocol, resolved })
    }
}

impl RoutingTable for MainTable<'_> {
    fn covering(&self, addr: ScopedAddr, take: &mut dyn FnMut(Cidr, CoveringRoute<'_>) -> bool) {
        let mut foreign = self.network.covering(addr).peekable();
        if addr.is_link_local() || !self.network.is_destination(addr.addr()) {
            if let Some(covering) = foreign.next() {
                take(covering.prefix, CoveringRoute::Foreign(covering.legs));
            }
            return;
        }
        let mut own = self.table.entries().covering(addr.addr()).peekable();
        while let Some(len) =
            own.peek().map(|(prefix, _)| prefix.len()).max(foreign.peek().map(|f| f.prefix.len()))
        {
            let Ok(prefix) = Cidr::new(addr.addr(), len) else { return };
            let other = foreign.next_if(|covering| covering.prefix.len() == len);
            let own = own.next_if(|(prefix, _)| prefix.len() == len);
            let own_metric = own.as_ref().map(|(_, entry)| self.table.desired_metric(entry));
            let own = own.and_then(|(_, entry)| self.table.covering_route(&prefix, entry));
            let own_first =
                other.as_ref().zip(own_metric).is_some_and(|(other, metric)| other.metric > metric);
            let other = other.map(|covering| CoveringRoute::Foreign(covering.legs));
            let both = if own_first { [own, other] } else { [other, own] };
            for route in both.into_iter().flatten() {
                if !take(prefix, route) {
                    return;
                }
            }
        }
    }

    fn legs(&self, prefix: Cidr, hops: &[ScopedAddr], resolve: &mut dyn FnMut(ScopedAddr) -> Legs) -> Legs {
        let KernelRoute::Via { hops, .. } =
            kernel_route(self.view, prefix, hops, resolve, self.tunnel_present)
        else {
            return Legs::new();
        };
        let metric = self.table.marks().metric;
        let leg = |hop: &Hop| match hop {
            Hop::Plain { gateway, ifindex } => {
                Some(Resolved { ifindex: *ifindex, gateway: Some(*gateway), metric })
            }
            Hop::Tunnel { remote } => {
                let ifindex = self.network.link_named(ipip_tunnel::DEVICE)?.index;
                Some(Resolved { ifindex, gateway: Some((*remote).into()), metric })
            }
            Hop::Vxlan { remote } => {
                let ifindex = self.table.objects().tunnels().of(hop)?;
                Some(Resolved { ifindex, gateway: Some(*remote), metric })
            }
        };
        hops.iter().filter_map(leg).collect()
    }
}
