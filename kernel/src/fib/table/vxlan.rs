//! Routes of the VXLAN in the table: desired by the store, over the interfaces that this host has for them.

use std::collections::BTreeMap;

use tortie_engine::routing::{ChangeId, Hop, VxlanRoute};
use tortie_net::Cidr;

use super::{Decide, StoredRoute, Table};
use crate::fib::route_state::Desired;

/// Interfaces of the routes of the VXLAN, by family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct VxlanLinks {
    /// True if the VXLAN device is up.
    pub(crate) is_up: [bool; 2],
    /// Index of the interface with the host's address; 0 for none.
    pub(crate) parents: [u32; 2],
}

impl Table {
    /// Replaces the routes of the VXLAN; those that differ are attributed to `change`. Returns their prefixes.
    /// A prefix is no blackhole at the same time: a block has one owner.
    pub(crate) fn set_vxlan(
        &mut self,
        wanted: &BTreeMap<Cidr, VxlanRoute>,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) -> Vec<Cidr> {
        let mut moved = Vec::new();
        let old = std::mem::replace(&mut self.vxlan, wanted.clone());
        for prefix in old.keys().filter(|prefix| !wanted.contains_key(prefix)) {
            let slot = self.with_entry(*prefix, |e| {
                if e.stored == StoredRoute::Vxlan {
                    e.stored = StoredRoute::None;
                }
            });
            self.decide(slot, change, decide);
            moved.push(*prefix);
        }
        for (prefix, _) in wanted.iter().filter(|(prefix, route)| old.get(prefix) != Some(route)) {
            let slot = self.with_entry(*prefix, |e| {
                if e.stored == StoredRoute::None {
                    e.stored = StoredRoute::Vxlan;
                }
                e.stale = false;
            });
            self.decide(slot, change, decide);
            moved.push(*prefix);
        }
        moved
    }

    /// Sets the interfaces of the routes of the VXLAN, and decides on them again after a change. Returns their
    /// prefixes then.
    pub(crate) fn set_vxlan_links(&mut self, links: VxlanLinks, decide: &mut Decide<'_>) -> Vec<Cidr> {
        if std::mem::replace(&mut self.vxlan_links, links) == links {
            return Vec::new();
        }
        let prefixes: Vec<Cidr> = self.vxlan.keys().copied().collect();
        for prefix in &prefixes {
            if let Some(slot) = self.entries.find(prefix) {
                self.decide(slot, ChangeId::default(), decide);
            }
        }
        prefixes
    }

    pub(super) fn decide_vxlan(&mut self, prefix: &Cidr) -> Desired {
        let Some(route) = self.vxlan.get(prefix).copied() else { return Desired::Nothing(None) };
        let family = usize::from(!prefix.is_v4());
        let hop = match route {
            VxlanRoute::Tunnel(remote) => {
                if self.vxlan_links.is_up[family] {
                    Ok(Hop::Vxlan { remote })
                } else {
                    Err("no-tunnel")
                }
            }
            VxlanRoute::Direct(gateway) => match self.vxlan_links.parents[family] {
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
