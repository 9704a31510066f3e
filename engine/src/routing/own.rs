//! What the workloads of this host give routing: addresses that lead to them, and prefixes that may have to be announced.
//!
//! Kept by endpoint: one that comes or goes costs what it has, not what is there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::WorkloadEndpoint;
use tortie_net::Cidr;

use super::types::{Addresses, OriginKind, Originated};
use crate::model::Model;

/// An endpoint that a prefix leads to.
#[derive(Debug, Clone)]
struct AddressClaim {
    kind: OriginKind,
    revision: u64,
}

/// What an endpoint has.
#[derive(Debug, Clone, Default)]
struct EndpointAddresses {
    prefixes: Vec<Cidr>,
    addresses: Vec<IpAddr>,
    translates: bool,
}

/// What active workloads of this host have.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnAddresses {
    of: BTreeMap<Arc<EndpointKey>, EndpointAddresses>,
    /// Of several endpoints with one prefix the first is who it is announced for.
    claims: BTreeMap<Cidr, BTreeMap<Arc<EndpointKey>, AddressClaim>>,
    /// With how many endpoints have them.
    addresses: BTreeMap<IpAddr, usize>,
}

/// What may be another than before.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pub(super) prefixes: Vec<Cidr>,
    pub(super) addresses: Vec<IpAddr>,
    /// An endpoint with 1:1 NAT, in force or not.
    pub(super) translations: bool,
}

impl OwnAddresses {
    /// Everything that the model has of this host.
    pub(super) fn of(model: &Model) -> Self {
        let (mut own, mut moved) = (Self::default(), AddressChanges::default());
        for workload in model.workloads(model.node()) {
            own.set(workload.key, Some((workload.value, workload.revision)), &mut moved);
        }
        own
    }

    /// What became of an endpoint of this host.
    pub(super) fn set(
        &mut self,
        key: &EndpointKey,
        now: Option<(&WorkloadEndpoint, u64)>,
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
        // One that is not active has nothing, but what it would translate is spoken of.
        let translates = workload.nats().next().is_some() || workload.stray_nats().next().is_some();
        moved.translations |= translates;
        let mut holds = EndpointAddresses { translates, ..EndpointAddresses::default() };
        let shared = Arc::new(key.clone());
        if workload.active {
            let borrowed = workload.nets().map(|net| (*net, OriginKind::Borrowed));
            let floating = workload.nats().map(|(_, outside)| (Cidr::host(outside), OriginKind::Floating));
            for (prefix, kind) in borrowed.chain(floating) {
                let claims = self.claims.entry(prefix).or_default();
                claims.entry(Arc::clone(&shared)).or_insert(AddressClaim { kind, revision });
                holds.prefixes.push(prefix);
            }
            holds.addresses.extend(workload.nets().filter(|net| net.is_host()).map(Cidr::addr));
            holds.addresses.extend(workload.nats().map(|(_, outside)| outside));
            for addr in &holds.addresses {
                *self.addresses.entry(*addr).or_default() += 1;
            }
        }
        moved.prefixes.extend(&holds.prefixes);
        moved.addresses.extend(&holds.addresses);
        self.of.insert(shared, holds);
    }

    /// The prefixes that lead to workloads.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.claims.keys().copied()
    }

    /// A prefix as it is announced, if it is.
    pub(super) fn originated(&self, prefix: &Cidr) -> Option<Originated> {
        let (key, claim) = self.claims.get(prefix)?.first_key_value()?;
        let key = Key::Endpoint((**key).clone()).to_string();
        Some(Originated { kind: claim.kind, key: key.into(), revision: claim.revision })
    }

    /// Every address that leads to a workload.
    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.keys().map(|addr| (*addr, ())).collect()
    }

    /// Whether an address leads to a workload.
    pub(super) fn has(&self, addr: &IpAddr) -> bool {
        self.addresses.contains_key(addr)
    }
}
