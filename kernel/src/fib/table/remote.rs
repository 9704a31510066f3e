//! Routes to other hosts in the table that the store demands, over the interfaces that this host has for them.

use std::collections::BTreeMap;

use tortie_engine::routing::{ChangeId, Encapsulation, Hop, StoreRoute};
use tortie_net::Cidr;

use super::{Decide, StoredRoute, Table};
use crate::fib::route_state::Desired;

/// Interfaces of the routes that the store demands, by family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RemoteLinks {
    /// True if the VXLAN device is up.
    pub(crate) is_up: [bool; 2],
    /// Index of the interface with the host's address; 0 for none.
    pub(crate) parents: [u32; 2],
}

impl Table {
    /// Replaces the routes to other hosts; those that differ are attributed to `change`. Returns their prefixes.
    /// A prefix is no blackhole at the same time: a block has one owner.
    pub(crate) fn set_remote(
        &mut self,
        wanted: &BTreeMap<Cidr, StoreRoute>,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) -> Vec<Cidr> {
        let mut moved = Vec::new();
        let old = std::mem::replace(&mut self.remote, wanted.clone());
        for prefix in old.keys().filter(|prefix| !wanted.contains_key(prefix)) {
            let slot = self.with_entry(*prefix, |e| {
                if e.stored == StoredRoute::Remote {
                    e.stored = StoredRoute::None;
                }
            });
            self.decide(slot, change, decide);
            moved.push(*prefix);
        }
        for (prefix, _) in wanted.iter().filter(|(prefix, route)| old.get(prefix) != Some(route)) {
            let slot = self.with_entry(*prefix, |e| {
                if e.stored == StoredRoute::None {
                    e.stored = StoredRoute::Remote;
                }
                e.stale = false;
            });
            self.decide(slot, change, decide);
            moved.push(*prefix);
        }
        moved
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

    /// Returns the encapsulation of the pool of a route that the store demands.
    pub(crate) fn remote(&self, prefix: &Cidr) -> Option<Encapsulation> {
        let entry = self.entries.get(prefix)?;
        let route = self.remote.get(prefix).filter(|_| entry.stored == StoredRoute::Remote)?;
        Some(route.encapsulation())
    }

    pub(super) fn decide_remote(&mut self, prefix: &Cidr) -> Desired {
        let Some(route) = self.remote.get(prefix).copied() else { return Desired::Nothing(None) };
        let family = usize::from(!prefix.is_v4());
        let hop = match route {
            StoreRoute::Vxlan(remote) => {
                if self.remote_links.is_up[family] {
                    Ok(Hop::Vxlan { remote })
                } else {
                    Err("no-tunnel")
                }
            }
            StoreRoute::Ipip(_) if !self.has_ipip => Err("no-tunnel"),
            StoreRoute::Ipip(remote) => Ok(Hop::Tunnel { remote }),
            StoreRoute::Direct(gateway, _) => match self.remote_links.parents[family] {
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
