//! Addresses of this host's workloads, and the prefixes that may have to be announced for them.
//!
//! Kept per endpoint, so that the cost of adding or removing an endpoint depends on its own addresses only.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::WorkloadEndpoint;
use tortie_net::Cidr;

use super::live_migration::{EndpointRouting, EndpointRoutings};
use super::types::{Addresses, OriginKind, Originated};
use crate::model::Model;

/// Claim of an endpoint on a prefix.
#[derive(Debug, Clone)]
struct AddressClaim {
    kind: OriginKind,
    revision: u64,
    /// Priority of the route, if it is not the normal one.
    priority: Option<u32>,
}

/// Prefixes and addresses of one endpoint.
#[derive(Debug, Clone, Default)]
struct EndpointAddresses {
    prefixes: Vec<Cidr>,
    addresses: Vec<IpAddr>,
    translates: bool,
}

/// Prefixes and addresses of this host's active workloads.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnAddresses {
    of: BTreeMap<Arc<EndpointKey>, EndpointAddresses>,
    /// Claims by prefix. If several endpoints claim a prefix, it is announced for the first one.
    claims: BTreeMap<Cidr, BTreeMap<Arc<EndpointKey>, AddressClaim>>,
    /// Addresses, each with the number of endpoints that have it.
    addresses: BTreeMap<IpAddr, usize>,
}

/// Prefixes and addresses that may have changed.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pub(super) prefixes: Vec<Cidr>,
    pub(super) addresses: Vec<IpAddr>,
    /// True if an endpoint with 1:1 NAT changed, active or not.
    pub(super) translations: bool,
}

impl OwnAddresses {
    /// Collects the addresses of all workloads of this host.
    pub(super) fn of(model: &Model, routings: &EndpointRoutings) -> Self {
        let (mut own, mut moved) = (Self::default(), AddressChanges::default());
        for workload in model.workloads(model.node()) {
            let routing = routings.moving.get(workload.key).copied();
            own.set(model, workload.key, Some((workload.value, workload.revision)), routing, &mut moved);
        }
        own
    }

    /// Replaces or removes an endpoint of this host. The addresses of a workload that still runs on another
    /// host lead there.
    pub(super) fn set(
        &mut self,
        model: &Model,
        key: &EndpointKey,
        now: Option<(&WorkloadEndpoint, u64)>,
        routing: Option<EndpointRouting>,
        moved: &mut AddressChanges,
    ) {
        if let Some(before) = self.of.remove(key) {
            for prefix in &before.prefixes {
                if let Some(claims) = self.claims.get_mut(prefix) {
                    claims.remove(key);
                    if claims.is_empty() {
                        self.claims.remove(prefix);
                    }
                }
            }
            for addr in &before.addresses {
                if let Some(count) = self.addresses.get_mut(addr) {
                    *count -= 1;
                    if *count == 0 {
                        self.addresses.remove(addr);
                    }
                }
            }
            moved.prefixes.extend(before.prefixes);
            moved.addresses.extend(before.addresses);
            moved.translations |= before.translates;
        }
        let Some((workload, revision)) = now else { return };
        // An inactive endpoint has no addresses, but notes report its NAT mappings.
        let translates = workload.nats().next().is_some() || workload.stray_nats().next().is_some();
        moved.translations |= translates;
        let mut holds = EndpointAddresses { translates, ..EndpointAddresses::default() };
        let shared = Arc::new(key.clone());
        if workload.active && routing != Some(EndpointRouting::Withheld) {
            let borrowed = workload.nets().map(|net| (*net, OriginKind::Borrowed));
            let floating = model.nats(key, workload);
            let floating = floating.map(|(_, outside)| (Cidr::host(outside), OriginKind::Floating));
            for (prefix, kind) in borrowed.chain(floating) {
                let claims = self.claims.entry(prefix).or_default();
                let priority = routing.and_then(|routing| routing.priority(prefix.is_v4()));
                claims.entry(Arc::clone(&shared)).or_insert(AddressClaim { kind, revision, priority });
                holds.prefixes.push(prefix);
            }
            holds.addresses.extend(workload.nets().filter(|net| net.is_host()).map(Cidr::addr));
            holds.addresses.extend(model.nats(key, workload).map(|(_, outside)| outside));
            for addr in &holds.addresses {
                *self.addresses.entry(*addr).or_default() += 1;
            }
        }
        moved.prefixes.extend(&holds.prefixes);
        moved.addresses.extend(&holds.addresses);
        self.of.insert(shared, holds);
    }

    /// Returns the prefixes that lead to workloads.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.claims.keys().copied()
    }

    /// Returns the originated route of a prefix, if a workload claims it.
    pub(super) fn originated(&self, prefix: &Cidr) -> Option<Originated> {
        let (key, claim) = self.claims.get(prefix)?.first_key_value()?;
        let key = Key::Endpoint((**key).clone()).to_string();
        let (kind, revision, priority) = (claim.kind, claim.revision, claim.priority);
        Some(Originated { kind, key: key.into(), revision, priority })
    }

    /// Returns every address that leads to a workload.
    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.keys().map(|addr| (*addr, ())).collect()
    }

    /// Returns true if an address leads to a workload.
    pub(super) fn has(&self, addr: &IpAddr) -> bool {
        self.addresses.contains_key(addr)
    }
}
