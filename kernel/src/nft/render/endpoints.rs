//! Endpoints as elements of maps: which interface goes to which chains, and what it may send from.
//!
//! Of several workload endpoints that claim one interface an active one counts before others, then the one with the
//! smallest key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use crate::nft::ir::{SetKey, SetValue};
use tortie_engine::policy::{EndpointPolicy, HostInterfaces};

/// Who claims interfaces, and who has them.
#[derive(Debug, Clone, Default)]
pub(super) struct EndpointMaps {
    /// By workload interface: the endpoints that name it; `true`: inactive.
    pub(super) claims: BTreeMap<Box<str>, BTreeSet<(bool, EndpointKey)>>,
    /// By workload interface: what is in the table.
    pub(super) placed: BTreeMap<Box<str>, Arc<EndpointPolicy>>,
    pub(super) hosts: HostInterfaces,
    /// The other way round.
    pub(super) interfaces: BTreeMap<EndpointKey, BTreeSet<Box<str>>>,
    /// Networks that interfaces may send from: IPv4, IPv6.
    pub(super) wide: [usize; 2],
}

/// Interfaces to look at.
#[derive(Debug, Default)]
pub(super) struct ChangedEndpoints {
    pub(super) workloads: BTreeSet<Box<str>>,
    pub(super) hosts: BTreeSet<Box<str>>,
}

impl EndpointMaps {
    pub(super) fn wide(&self) -> [bool; 2] {
        self.wide.map(|count| count > 0)
    }

    /// An endpoint is another than before.
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

    /// Host endpoints govern other interfaces than before.
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

    /// Every interface that is or should be in the table.
    pub(super) fn all(&self) -> ChangedEndpoints {
        let workloads = self.claims.keys().chain(self.placed.keys()).cloned().collect();
        ChangedEndpoints { workloads, hosts: self.hosts.keys().cloned().collect() }
    }
}

/// An address as an element.
pub(super) fn address(net: Cidr) -> (SetKey, SetValue) {
    (SetKey::Addr(net), SetValue::Member)
}
