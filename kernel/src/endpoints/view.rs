//! What questions may read of the endpoints: `endpoint list` and `show`, `diff`.

use std::net::IpAddr;
use std::time::Instant;

use tortie_config::key::EndpointKey;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use super::{EndpointRequest, Endpoints};
use crate::facts::EndpointCondition;

/// One workload endpoint of this host in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointView {
    /// Which.
    pub key: EndpointKey,
    /// Its interface on the host.
    pub interface: String,
    /// Whether it may send and receive at all.
    pub active: bool,
    /// The interface's index; `None`: it is not there.
    pub ifindex: Option<u32>,
    /// Whether the interface is up.
    pub up: bool,
    /// The routes that are wanted (floating addresses too), and whether the kernel has them.
    pub routes: Vec<(Cidr, bool)>,
    /// The static neighbours that are wanted, and whether the kernel has them.
    pub neighbours: Vec<(IpAddr, MacAddr, bool)>,
    /// What is not as wanted, in words.
    pub missing: Vec<String>,
    /// How it is.
    pub condition: EndpointCondition,
}

impl Endpoints {
    /// One endpoint.
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
                .unwrap_or_else(|| EndpointCondition::Down("it was not looked at yet".to_owned())),
        })
    }

    /// All endpoints.
    pub(crate) fn views(&self) -> impl Iterator<Item = EndpointView> + '_ {
        self.intents.keys().filter_map(|key| self.view(key))
    }

    /// What is not as wanted on any interface, in words.
    pub(crate) fn differences(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.actual.links().flat_map(|(_, device)| self.differences_of(&device.name)).collect();
        all.sort_unstable();
        all
    }

    /// How many routes of the main table are this room's own.
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
            EndpointRequest::DeleteRoute { prefix, .. } => format!("{prefix}: route to {name}, not wanted"),
            EndpointRequest::DeleteNeighbour { addr, .. } => {
                format!("{addr}: neighbour on {name}, not wanted")
            }
            EndpointRequest::Sysctls { .. } => format!("{name}: sysctls are not as wanted, or not read yet"),
            EndpointRequest::PutNeighbour { addr, .. } => format!("{addr}: neighbour on {name} missing"),
            EndpointRequest::PutRoute { prefix, .. } => format!("{prefix}: route to {name} missing"),
        };
        self.difference(name, Instant::now()).work.into_iter().map(words).collect()
    }
}
