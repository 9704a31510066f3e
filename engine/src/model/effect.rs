//! Maps the change of one key to the aspects of [`ModelChanges`] that it affects.

use std::net::IpAddr;

use tortie_config::Resource;
use tortie_config::key::{BgpItem, IpFamily, Key, Scope};

use super::changes::ModelChanges;
use super::host::HostItem;
use super::state::{Effective, Model};
use super::value::Value;

impl Model {
    /// Marks the aspects affected by the change of `key` from `before` to `after`.
    pub(super) fn mark(
        &self,
        key: &Key,
        before: Option<&Effective>,
        after: Option<&Effective>,
        changes: &mut ModelChanges,
    ) {
        let value = |effective: Option<&Effective>| effective.and_then(|e| e.value.clone());
        let changed = value(before) != value(after);
        match key {
            Key::Ready | Key::Schema => changes.ready |= changed,
            Key::Setting(scope, _) => {
                changes.settings |= changed && self.applies(scope);
                // A MAC address that cannot be read withholds the end of its host, until the key is deleted.
                let appeared = before.is_some() != after.is_some();
                changes.vxlan |= (changed || appeared) && HostItem::of(key).is_some();
            }
            Key::BirdIp { .. } | Key::HostMetadata { .. } => changes.hosts |= changed,
            // For own endpoints the revision matters too, because other threads wait until a revision is
            // applied.
            Key::Endpoint(endpoint) => {
                changes.endpoints = true;
                changes.own_endpoints |= endpoint.host() == self.node;
            }
            Key::Profile { .. }
            | Key::TierMetadata { .. }
            | Key::Policy { .. }
            | Key::Tier { .. }
            | Key::NetworkSet { .. } => changes.policy |= changed,
            Key::Pool(_) => {
                changes.pools |= changed;
                changes.originated |= changed;
            }
            Key::IpamConfig => changes.ipam |= changed,
            // Every address allocation rewrites its block, while routing depends only on the block's owner.
            Key::Block(_) => {
                let (old, new) = (owner(before), owner(after));
                let ours = [old, new].into_iter().flatten().any(|(host, _)| host == Some(self.node.as_str()));
                changes.originated |= ours && old != new;
                changes.vxlan |= locations(before) != locations(after);
            }
            Key::Affinity { host, .. } if *host == self.node => {
                changes.affinities = true;
                changes.originated = true;
            }
            // A host filter that cannot be parsed still exists, and hides the global one of the same name.
            Key::Bgp(scope, BgpItem::Filter(_)) => {
                changes.filters |= (changed || before.is_some() != after.is_some()) && self.applies(scope);
            }
            Key::LiveMigration { .. } => changes.migrations |= changed || before.is_some() != after.is_some(),
            Key::BgpFilter(_) => changes.filters |= changed || before.is_some() != after.is_some(),
            // The revision counts too: it is that of the service ranges.
            Key::BgpConfiguration => {
                changes.originated = true;
                changes.settings |= changed;
                changes.node |= changed;
                changes.peers.all |= changed;
            }
            Key::Bgp(scope, item) if changed => self.mark_bgp(scope, item, before, after, changes),
            _ => {}
        }
    }

    fn mark_bgp(
        &self,
        scope: &Scope,
        item: &BgpItem,
        before: Option<&Effective>,
        after: Option<&Effective>,
        changes: &mut ModelChanges,
    ) {
        let own = scope.host() == Some(self.node.as_str());
        match (scope, item) {
            (_, BgpItem::LogLevel | BgpItem::BmpStations | BgpItem::Multipath) => {
                changes.settings |= self.applies(scope)
            }
            (_, BgpItem::PrefixAdvertisements(_)) => changes.advertisements |= self.applies(scope),
            (_, BgpItem::CustomFilter(..)) => changes.filters |= self.applies(scope),
            (_, BgpItem::Peer { addr, .. }) if own || scope.host().is_none() => {
                changes.peers.addrs.insert(*addr);
            }
            // The peer of another host may be this host, which then peers back.
            (Scope::Host(host), BgpItem::Peer { .. }) => {
                changes.peers.hints = true;
                changes.peers.addrs.extend(self.host(host).into_iter().flat_map(|host| host.addrs()));
            }
            (_, BgpItem::Network(_)) => changes.node |= own,
            (Scope::Global, _) => changes.peers.all = true,
            (Scope::Host(_), _) if own => {
                changes.node = true;
                changes.peers.all = true;
            }
            (Scope::Host(host), item) => {
                changes.hosts = true;
                if let BgpItem::Address(_) = item {
                    changes.peers.addrs.extend(address(before));
                    changes.peers.addrs.extend(address(after));
                }
                // The address family of a session with a dual-stack host depends on both of its addresses.
                changes.peers.addrs.extend(self.host(host).into_iter().flat_map(|host| host.addrs()));
            }
        }
    }

    /// Returns true if a value of this scope applies to this host.
    fn applies(&self, scope: &Scope) -> bool {
        scope.host().is_none_or(|host| host == self.node)
    }

    /// Returns the address of this host in a family according to the store.
    #[must_use]
    pub fn node_addr(&self, family: IpFamily) -> Option<IpAddr> {
        self.host(&self.node).and_then(|host| host.addr(family))
    }
}

fn address(effective: Option<&Effective>) -> Option<IpAddr> {
    match effective?.value.as_ref()? {
        Value::Address(addr) => *addr,
        _ => None,
    }
}

/// Returns the owner of a block and the revision that created the block.
fn owner(effective: Option<&Effective>) -> Option<(Option<&str>, u64)> {
    let effective = effective?;
    match &**effective.value.as_ref()?.resource()? {
        Resource::Block(block) => Some((block.host(), effective.created)),
        _ => None,
    }
}

/// Owner of a block, and the addresses by ordinal that other hosts hold.
type Locations<'a> = (Option<&'a str>, Vec<(u32, &'a str)>);

/// Returns where the addresses of a block are: its owner, and the holders of single addresses that another
/// host may have.
fn locations(effective: Option<&Effective>) -> Option<Locations<'_>> {
    match &**effective?.value.as_ref()?.resource()? {
        Resource::Block(block) => Some((block.host(), block.borrowed().collect())),
        _ => None,
    }
}
