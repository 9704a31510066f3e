//! Forwarding entries and permanent neighbours of a VXLAN device: MAC address -> host, tunnel address -> MAC
//! address.
//!
//! Permanent entries that are not desired are removed; others, which the kernel learns, are left to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::netlink::neighbour;
use crate::netlink::vxlan::{self, ForwardingEntry};
use tortie_engine::routing::VxlanRemote;

/// Permanent entries of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RemoteEntries {
    pub(crate) forwarding: BTreeSet<ForwardingEntry>,
    pub(crate) neighbours: BTreeMap<IpAddr, [u8; 6]>,
}

/// Change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemoteChange {
    PutForwarding(ForwardingEntry),
    DeleteForwarding(ForwardingEntry),
    PutNeighbour(IpAddr, [u8; 6]),
    DeleteNeighbour(IpAddr),
}

impl RemoteEntries {
    /// Returns the entries for these ends, of the family of one device.
    pub(crate) fn wanted<'a>(remotes: impl IntoIterator<Item = (&'a IpAddr, &'a VxlanRemote)>) -> Self {
        let mut wanted = Self::default();
        for (addr, remote) in remotes {
            wanted.forwarding.insert(ForwardingEntry { mac: remote.mac, host: remote.host });
            wanted.neighbours.insert(*addr, remote.mac);
        }
        wanted
    }

    /// Returns the changes that make these entries the `wanted` ones.
    pub(crate) fn changes(&self, wanted: &Self) -> Vec<RemoteChange> {
        let mut hosts: BTreeMap<[u8; 6], usize> = BTreeMap::new();
        for entry in &self.forwarding {
            *hosts.entry(entry.mac).or_default() += 1;
        }
        let is_wanted: BTreeSet<[u8; 6]> = wanted.forwarding.iter().map(|entry| entry.mac).collect();
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for entry in self.forwarding.difference(&wanted.forwarding) {
            let change = RemoteChange::DeleteForwarding(*entry);
            match is_wanted.contains(&entry.mac) {
                // The new entry replaces the old one, and no packet is lost.
                true if hosts.get(&entry.mac) == Some(&1) => {}
                true => first.push(change),
                false => last.push(change),
            }
        }
        first
            .extend(wanted.forwarding.difference(&self.forwarding).copied().map(RemoteChange::PutForwarding));
        for (addr, mac) in &wanted.neighbours {
            if self.neighbours.get(addr) != Some(mac) {
                first.push(RemoteChange::PutNeighbour(*addr, *mac));
            }
        }
        let unknown = self.neighbours.keys().filter(|addr| !wanted.neighbours.contains_key(*addr));
        last.extend(unknown.copied().map(RemoteChange::DeleteNeighbour));
        first.append(&mut last);
        first
    }
}

impl RemoteChange {
    /// Encodes the request.
    pub(crate) fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32, ifindex: u32, protocol: u8) {
        match self {
            Self::PutForwarding(entry) => vxlan::encode_put_forwarding(buf, flags, seq, ifindex, entry),
            Self::DeleteForwarding(entry) => vxlan::encode_delete_forwarding(buf, flags, seq, ifindex, entry),
            Self::PutNeighbour(addr, mac) => {
                neighbour::encode_put(buf, flags, seq, ifindex, *addr, *mac, protocol);
            }
            Self::DeleteNeighbour(addr) => neighbour::encode_delete(buf, flags, seq, ifindex, *addr),
        }
    }

    /// Returns true if the refusal with this code means that the change is already there.
    pub(crate) fn is_done(&self, code: i32) -> bool {
        matches!(self, Self::DeleteForwarding(_) | Self::DeleteNeighbour(_)) && code == libc::ENOENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn entries(forwarding: &[(u8, u8)], neighbours: &[(u8, u8)]) -> RemoteEntries {
        let mac = |n| [0x66, 0, 0, 0, 0, n];
        RemoteEntries {
            forwarding: forwarding
                .iter()
                .map(|(m, h)| ForwardingEntry { mac: mac(*m), host: host(*h) })
                .collect(),
            neighbours: neighbours.iter().map(|(a, m)| ([10, 0, 0, *a].into(), mac(*m))).collect(),
        }
    }

    /// Executes changes as the kernel does: a put replaces the only entry of its MAC address, and else adds.
    fn execute(mut at: RemoteEntries, changes: &[RemoteChange]) -> RemoteEntries {
        for change in changes {
            match change {
                RemoteChange::PutForwarding(entry) => {
                    let same: Vec<_> = at.forwarding.iter().filter(|e| e.mac == entry.mac).copied().collect();
                    assert!(same.len() <= 1, "replacing one of several leaves the others");
                    at.forwarding.retain(|e| e.mac != entry.mac);
                    at.forwarding.insert(*entry);
                }
                RemoteChange::DeleteForwarding(entry) => assert!(at.forwarding.remove(entry)),
                RemoteChange::PutNeighbour(addr, mac) => drop(at.neighbours.insert(*addr, *mac)),
                RemoteChange::DeleteNeighbour(addr) => assert!(at.neighbours.remove(addr).is_some()),
            }
        }
        at
    }

    #[test]
    fn a_host_that_moves_is_replaced_at_once() {
        let (old, new) = (entries(&[(1, 1)], &[(1, 1)]), entries(&[(1, 2)], &[(1, 1)]));
        let put = RemoteChange::PutForwarding(*new.forwarding.first().unwrap());
        assert_eq!(old.changes(&new), [put]);
    }

    proptest! {
        #[test]
        fn the_changes_lead_from_any_state_to_the_wanted_one(
            forwarding in prop::collection::vec((0..5_u8, 0..5_u8), 0..9),
            neighbours in prop::collection::btree_map(0..5_u8, 0..5_u8, 0..5),
            remotes in prop::collection::btree_map(0..5_u8, (0..5_u8, 0..5_u8), 0..5),
        ) {
            let neighbours: Vec<_> = neighbours.into_iter().collect();
            let actual = entries(&forwarding, &neighbours);
            let remotes: BTreeMap<IpAddr, VxlanRemote> = remotes
                .iter()
                .map(|(a, (_, h))| ([10, 0, 0, *a].into(), VxlanRemote { host: host(*h), mac: [0x66, 0, 0, 0, 0, *a] }))
                .collect();
            let wanted = RemoteEntries::wanted(&remotes);
            let changes = actual.changes(&wanted);
            prop_assert_eq!(execute(actual, &changes), wanted.clone());
            prop_assert_eq!(wanted.changes(&wanted), vec![]);
        }
    }
}
