//! Routes of the table that the store gives: to other hosts, over the interfaces that this host has for them,
//! and to peers by their gateways.

use std::collections::BTreeMap;

use tortie_engine::routing::{ChangeId, Encapsulation, Hop, RemoteRoute, StoreRoutes};
use tortie_net::{Cidr, ScopedAddr};

use super::{Decide, RouteEntry, StoredRoute, Table};
use crate::fib::route_state::{Actual, Desired};

/// Source of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteSource {
    /// Learned by BGP.
    Bgp,
    /// An own block, whose unused addresses are dropped.
    Blackhole,
    /// A block or address of another host in a pool with this encapsulation, from the store.
    Remote(Encapsulation),
    /// A peer's gateway (`reachable_by`), from the store.
    Gateway,
}

impl RouteSource {
    /// Returns `learned`, `blackhole`, `ipip`, `vxlan` or `gateway`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bgp => "learned",
            Self::Blackhole => "blackhole",
            Self::Remote(encapsulation) => encapsulation.as_str(),
            Self::Gateway => "gateway",
        }
    }
}

/// Interfaces of the routes that the store demands, by family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RemoteLinks {
    /// True if the VXLAN device is up.
    pub(crate) is_up: [bool; 2],
    /// Index of the interface with the host's address; 0 for none.
    pub(crate) parents: [u32; 2],
}

impl Table {
    /// Replaces the routes that the store gives; those that differ are attributed to `change`. Returns their
    /// prefixes. A prefix is no blackhole at the same time: a block has one owner.
    pub(crate) fn set_store_routes(
        &mut self,
        wanted: &StoreRoutes,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) -> Vec<Cidr> {
        let old = std::mem::replace(&mut self.remote, wanted.remote.clone());
        let mut moved: Vec<Cidr> = differences(&old, &self.remote);
        let sets = wanted.gateways.iter().map(|(prefix, gateway)| {
            let hop = ScopedAddr::from(*gateway);
            (*prefix, self.hop_sets.acquire(&[hop], 0))
        });
        let sets = sets.collect();
        let old = std::mem::replace(&mut self.gateways, sets);
        moved.extend(differences(&old, &self.gateways));
        for prefix in &moved {
            self.store_changed(*prefix, change, decide);
        }
        for set in old.into_values() {
            self.hop_sets.release(set);
        }
        moved
    }

    /// Decides on a prefix after the store gave or took a route.
    pub(super) fn store_changed(&mut self, prefix: Cidr, change: ChangeId, decide: &mut Decide<'_>) {
        let stored = if self.blackholes.contains_key(&prefix) {
            StoredRoute::Blackhole
        } else if self.remote.contains_key(&prefix) {
            StoredRoute::Remote
        } else if self.gateways.contains_key(&prefix) {
            StoredRoute::Gateway
        } else {
            StoredRoute::None
        };
        let slot = self.with_entry(prefix, |e| {
            e.stored = stored;
            e.stale &= stored == StoredRoute::None;
        });
        self.decide(slot, change, decide);
    }

    /// Sets the interfaces of the routes, and decides on them again after a change. Returns their
    /// prefixes then.
    pub(crate) fn set_remote_links(&mut self, links: RemoteLinks, decide: &mut Decide<'_>) -> Vec<Cidr> {
        if std::mem::replace(&mut self.remote_links, links) == links {
            return Vec::new();
        }
        self.decide_remotes(decide)
    }

    /// Returns true if `tunl0` is desired and up.
    pub(crate) fn has_ipip(&self) -> bool {
        self.has_ipip
    }

    /// Sets if `tunl0` is desired and up. After a change all routes must be decided on again.
    pub(crate) fn set_ipip(&mut self, is_up: bool) {
        self.has_ipip = is_up;
    }

    /// Decides again on all routes to other hosts. Returns their prefixes.
    pub(crate) fn decide_remotes(&mut self, decide: &mut Decide<'_>) -> Vec<Cidr> {
        let prefixes: Vec<Cidr> = self.remote.keys().copied().collect();
        for prefix in &prefixes {
            if let Some(slot) = self.entries.find(prefix) {
                self.decide(slot, ChangeId::default(), decide);
            }
        }
        prefixes
    }

    /// Returns the source of the route of an entry.
    pub(crate) fn source(&self, prefix: &Cidr, entry: &RouteEntry) -> RouteSource {
        let is_blackhole = entry.desired == Desired::Blackhole
            || (entry.actual == Actual::Blackhole && matches!(entry.desired, Desired::Nothing(_)));
        match entry.stored {
            _ if is_blackhole => RouteSource::Blackhole,
            StoredRoute::Gateway => RouteSource::Gateway,
            StoredRoute::Remote => self
                .remote
                .get(prefix)
                .map_or(RouteSource::Bgp, |route| RouteSource::Remote(route.encapsulation())),
            StoredRoute::None | StoredRoute::Blackhole => RouteSource::Bgp,
        }
    }

    pub(super) fn decide_remote(&mut self, prefix: &Cidr) -> Desired {
        let Some(route) = self.remote.get(prefix).copied() else { return Desired::Nothing(None) };
        let family = usize::from(!prefix.is_v4());
        let hop = match route {
            RemoteRoute::Vxlan(remote) => {
                if self.remote_links.is_up[family] {
                    Ok(Hop::Vxlan { remote })
                } else {
                    Err("no-tunnel")
                }
            }
            RemoteRoute::Ipip(_) if !self.has_ipip => Err("no-tunnel"),
            RemoteRoute::Ipip(remote) => Ok(Hop::Tunnel { remote }),
            RemoteRoute::Direct(gateway, _) => match self.remote_links.parents[family] {
                0 => Err("unresolved"),
                ifindex => Ok(Hop::Plain { gateway, ifindex }),
            },
        };
        match hop {
            Ok(hop) => Desired::Via(self.objects.acquire(&[hop]), self.reason_index(route.reason())),
            Err(reason) => Desired::Nothing(Some(self.reason_index(reason))),
        }
    }
}

/// Returns the prefixes whose values differ, or that only one of the maps has.
fn differences<T: PartialEq>(old: &BTreeMap<Cidr, T>, new: &BTreeMap<Cidr, T>) -> Vec<Cidr> {
    let gone = old.keys().filter(|prefix| !new.contains_key(prefix)).copied();
    let changed = new.iter().filter(|(prefix, value)| old.get(prefix) != Some(value));
    gone.chain(changed.map(|(prefix, _)| *prefix)).collect()
}
