//! Named ports of all endpoints, and the sets of them that chains use.
//!
//! A rule of Calico 3 may name ports. The name stands for the ports that endpoints give this name, each at the
//! addresses of its endpoint; a rule's selector limits the addresses as for numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::resource::{EndpointPort, PortName, Protocol};
use tortie_net::Cidr;

use super::types::{NamedPort, PortSetId, SetChange};

/// A set that chains use.
#[derive(Debug, Clone)]
struct PortSet {
    /// Number of chains that use the set.
    users: usize,
    /// Members in the last delta; `None` if none has contained the set yet.
    members: Option<BTreeSet<NamedPort>>,
}

/// Index of named ports, with the sets in use.
#[derive(Debug, Clone, Default)]
pub(super) struct PortSets {
    /// Ports by protocol and name, each with the number of endpoints that have it.
    index: BTreeMap<(Protocol, PortName), BTreeMap<NamedPort, usize>>,
    sets: BTreeMap<PortSetId, PortSet>,
    /// Names whose ports changed since the last delta.
    changed: BTreeSet<(Protocol, PortName)>,
    /// Sets that were acquired or released since the last delta.
    touched: BTreeSet<PortSetId>,
}

impl PortSets {
    /// Counts an added or removed endpoint with its named ports.
    pub(super) fn count(&mut self, nets: &[Cidr], ports: &[EndpointPort], present: bool) {
        for port in ports {
            let key = (port.protocol, port.name.clone());
            let known = self.index.entry(key.clone()).or_default();
            for addr in nets.iter().map(Cidr::addr) {
                let member = NamedPort { addr, port: port.port };
                let count = known.entry(member).or_default();
                *count = if present { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    known.remove(&member);
                }
            }
            if known.is_empty() {
                self.index.remove(&key);
            }
            self.changed.insert(key);
        }
    }

    /// Counts one more chain that uses a set.
    pub(super) fn acquire(&mut self, id: &PortSetId) {
        self.sets.entry(id.clone()).or_insert(PortSet { users: 0, members: None }).users += 1;
        self.touched.insert(id.clone());
    }

    /// Counts one chain less. The next delta removes the set, unless another chain uses it by then.
    pub(super) fn release(&mut self, id: &PortSetId) {
        if let Some(set) = self.sets.get_mut(id) {
            set.users = set.users.saturating_sub(1);
            self.touched.insert(id.clone());
        }
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self) -> BTreeMap<PortSetId, SetChange<NamedPort>> {
        let mut ids = std::mem::take(&mut self.touched);
        let changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            let concerned = self.sets.keys().filter(|id| id.keys().any(|key| changed.contains(&key)));
            ids.extend(concerned.cloned());
        }
        ids.into_iter().filter_map(|id| self.change_of(&id).map(|change| (id, change))).collect()
    }

    fn change_of(&mut self, id: &PortSetId) -> Option<SetChange<NamedPort>> {
        let set = self.sets.get_mut(id)?;
        if set.users == 0 {
            let gone = self.sets.remove(id)?;
            return gone.members.map(|_| SetChange::Gone);
        }
        let ports = id.keys().filter_map(|key| self.index.get(&key)).flat_map(BTreeMap::keys);
        let now: BTreeSet<NamedPort> = ports.copied().collect();
        match set.members.replace(now.clone()) {
            None => Some(SetChange::New(now)),
            Some(before) => {
                let add: BTreeSet<_> = now.difference(&before).copied().collect();
                let remove: BTreeSet<_> = before.difference(&now).copied().collect();
                let differs = !(add.is_empty() && remove.is_empty());
                differs.then_some(SetChange::Members { add, remove })
            }
        }
    }
}

/// Returns true if a set contains a port of an address.
pub(super) fn contains(members: &BTreeSet<NamedPort>, addr: IpAddr, port: u16) -> bool {
    members.contains(&NamedPort { addr, port })
}
