//! Read-only views of endpoints for `endpoint list`, `endpoint show` and `diff`.

use std::net::IpAddr;
use std::time::Instant;

use tortie_config::key::EndpointKey;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use super::{EndpointRequest, Endpoints};
use crate::facts::EndpointCondition;

/// Kernel state of one workload endpoint of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointView {
    /// Key of the endpoint.
    pub key: EndpointKey,
    /// Interface on the host.
    pub interface: String,
    /// True if the endpoint may send and receive.
    pub active: bool,
    /// Index of the interface; `None` if it does not exist.
    pub ifindex: Option<u32>,
    /// True if the interface is up.
    pub up: bool,
    /// Desired routes, including those to floating addresses; true if the kernel has the route.
    pub routes: Vec<(Cidr, bool)>,
    /// Desired static neighbours; true if the kernel has the entry.
    pub neighbours: Vec<(IpAddr, MacAddr, bool)>,
    /// Differences from the desired state, as text.
    pub missing: Vec<String>,
    /// Condition of the endpoint.
    pub condition: EndpointCondition,
}

impl Endpoints {
    /// Returns the view of one endpoint.
    pub(crate) fn view(&self, key: &EndpointKey) -> Option<EndpointView> {
        let intent = self.intents.get(key)?;
        let link = self.actual.link_named(&intent.interface);
        let held = self.held_by(&intent.interface);
        let routes = intent
            .prefixes()
            .filter(|prefix| self.holder(prefix) == Some(key))
            .map(|prefix| (prefix, link.is_some_and(|(_, device)| self.leads_to(device, &prefix))))
            .collect();
        let there = |addr: &IpAddr, mac: &[u8; 6]| {
            link.is_some_and(|(_, device)| device.neighbours.get(addr).is_some_and(|(m, _)| m == mac))
        };
        let neighbours = self
            .neighbours_of(&intent.interface, &held)
            .into_iter()
            .filter(|(addr, _)| intent.nets.contains(&Cidr::host(*addr)))
            .map(|(addr, mac)| (addr, MacAddr(mac), there(&addr, &mac)))
            .collect();
        Some(EndpointView {
            key: key.clone(),
            interface: intent.interface.to_string(),
            active: intent.active,
            ifindex: link.map(|(ifindex, _)| ifindex),
            up: link.is_some_and(|(_, device)| device.up),
            routes,
            neighbours,
            missing: self.differences_of(&intent.interface),
            condition: self
                .conditions
                .get(key)
                .cloned()
                .unwrap_or_else(|| EndpointCondition::Down("it was not compared yet".to_owned())),
        })
    }

    /// Returns the views of all endpoints.
    pub(crate) fn views(&self) -> impl Iterator<Item = EndpointView> + '_ {
        self.intents.keys().filter_map(|key| self.view(key))
    }

    /// Returns the differences from the desired state on all interfaces, as text.
    pub(crate) fn differences(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.actual.links().flat_map(|(_, device)| self.differences_of(&device.name)).collect();
        all.sort_unstable();
        all
    }

    /// Returns the number of routes of the main table that this module has written.
    pub(crate) fn own_routes(&self) -> usize {
        let own = |protocol: u8| protocol == self.protocol;
        self.actual
            .links()
            .filter(|(_, device)| &*device.name != "lo")
            .map(|(_, device)| device.routes.values().filter(|route| own(route.protocol)).count())
            .sum()
    }

    fn differences_of(&self, name: &str) -> Vec<String> {
        let words = |work: EndpointRequest| match work {
            EndpointRequest::DeleteRoute { prefix, .. } => format!("{prefix}: route to {name}, not desired"),
            EndpointRequest::DeleteNeighbour { addr, .. } => {
                format!("{addr}: neighbour on {name}, not desired")
            }
            EndpointRequest::Sysctls { .. } => {
                format!("{name}: sysctls are not in their desired state, or not read yet")
            }
            EndpointRequest::PutNeighbour { addr, .. } => format!("{addr}: neighbour on {name} missing"),
            EndpointRequest::PutRoute { prefix, .. } => format!("{prefix}: route to {name} missing"),
        };
        self.difference(name, Instant::now()).work.into_iter().map(words).collect()
    }
}
