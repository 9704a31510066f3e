//! Endpoints as map elements: the chains of each interface, and the source addresses it may use.
//!
//! If several workload endpoints claim one interface, an active one takes precedence over inactive ones, then
//! the one with the smallest key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use crate::nft::ir::{SetKey, SetValue};
use tortie_engine::policy::{EndpointPolicy, HostInterfaces};

/// Claims on interfaces, and the endpoints in the table.
#[derive(Debug, Clone, Default)]
pub(super) struct EndpointMaps {
    /// Endpoints that name each workload interface; `true` if inactive.
    pub(super) claims: BTreeMap<Box<str>, BTreeSet<(bool, EndpointKey)>>,
    /// The endpoint in the table for each workload interface.
    pub(super) placed: BTreeMap<Box<str>, Arc<EndpointPolicy>>,
    pub(super) hosts: HostInterfaces,
    /// Interfaces by host endpoint.
    pub(super) interfaces: BTreeMap<EndpointKey, BTreeSet<Box<str>>>,
    /// Numbers of networks from which interfaces may send: IPv4, IPv6.
    pub(super) wide: [usize; 2],
}

/// Interfaces to be updated.
#[derive(Debug, Default)]
pub(super) struct ChangedEndpoints {
    pub(super) workloads: BTreeSet<Box<str>>,
    pub(super) hosts: BTreeSet<Box<str>>,
}

impl EndpointMaps {
    pub(super) fn wide(&self) -> [bool; 2] {
        self.wide.map(|count| count > 0)
    }

    /// Handles a changed endpoint.
    pub(super) fn endpoint(
        &mut self,
        key: &EndpointKey,
        before: Option<&EndpointPolicy>,
        now: Option<&EndpointPolicy>,
        touched: &mut ChangedEndpoints,
    ) {
        if let Some(EndpointPolicy::Workload(workload)) = before {
            let interface: Box<str> = workload.interface.as_str().into();
            if let Some(claims) = self.claims.get_mut(&interface) {
                claims.remove(&(!workload.active, key.clone()));
                if claims.is_empty() {
                    self.claims.remove(&interface);
                }
            }
            touched.workloads.insert(interface);
        }
        if let Some(EndpointPolicy::Workload(workload)) = now {
            let interface: Box<str> = workload.interface.as_str().into();
            self.claims.entry(interface.clone()).or_default().insert((!workload.active, key.clone()));
            touched.workloads.insert(interface);
        }
        touched.hosts.extend(self.interfaces.get(key).into_iter().flatten().cloned());
    }

    /// Handles a changed assignment of host endpoints to interfaces.
    pub(super) fn hosts(&mut self, hosts: &HostInterfaces, touched: &mut ChangedEndpoints) {
        let mut differing = |of: &HostInterfaces, from: &HostInterfaces| {
            let others = of.iter().filter(|(name, key)| from.get(*name) != Some(*key));
            touched.hosts.extend(others.map(|(name, _)| name.clone()));
        };
        differing(hosts, &self.hosts);
        differing(&self.hosts, hosts);
        self.hosts = hosts.clone();
        self.interfaces.clear();
        for (name, key) in hosts {
            self.interfaces.entry(key.clone()).or_default().insert(name.clone());
        }
    }

    /// Returns every interface that is or should be in the table.
    pub(super) fn all(&self) -> ChangedEndpoints {
        let workloads = self.claims.keys().chain(self.placed.keys()).cloned().collect();
        ChangedEndpoints { workloads, hosts: self.hosts.keys().cloned().collect() }
    }
}

/// Returns an address as an element.
pub(super) fn address(net: Cidr) -> (SetKey, SetValue) {
    (SetKey::Addr(net), SetValue::Member)
}
