//! Plans requests from the desired and the actual state of endpoints, and applies the answers to the actual
//! state. Pure: no I/O.
//!
//! Each interface is compared as a whole, since it has few routes and neighbours. Removals come first, then
//! conntrack entries of vacated addresses, then sysctls, then additions. So a moving address is never routed
//! to two interfaces, and its new holder never inherits connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use super::{EndpointRequest, Endpoints, GATEWAY, Name};
use crate::endpoints::actual::{Device, Sysctls};
use crate::facts::EndpointCondition;
use crate::netlink::socket::Refusal;

/// Difference between the desired and the actual state of one interface.
#[derive(Debug, Default)]
pub(super) struct EndpointDiff {
    pub(super) work: Vec<EndpointRequest>,
    /// End of the grace period, if a route is kept until then.
    pub(super) in_grace: Option<Instant>,
}

/// Requests in the order of execution.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) removals: Vec<EndpointRequest>,
    pub(super) sysctls: Vec<EndpointRequest>,
    pub(super) additions: Vec<EndpointRequest>,
    /// The interfaces that were compared.
    pub(super) names: Vec<Name>,
}

/// Returns the metric of routes to workloads in a v1 store, the kernel's default.
pub(super) fn default_metric(prefix: &Cidr) -> u32 {
    if prefix.is_v4() { 0 } else { 1024 }
}

impl Endpoints {
    /// Returns the prefixes that endpoints of an interface hold.
    pub(super) fn held_by(&self, name: &str) -> BTreeSet<Cidr> {
        let Some(place) = self.interfaces.get(name) else { return BTreeSet::new() };
        let mut held = BTreeSet::new();
        for key in &place.endpoints {
            let prefixes = self.intents.get(key).into_iter().flat_map(super::EndpointIntent::prefixes);
            held.extend(prefixes.filter(|prefix| self.holder(prefix) == Some(key)));
        }
        held
    }

    /// Returns true if an endpoint of this interface holds the prefix.
    pub(super) fn is_held_by(&self, prefix: &Cidr, name: &str) -> bool {
        self.holder(prefix).and_then(|key| self.intents.get(key)).is_some_and(|w| *w.interface == *name)
    }

    /// Returns the prefixes for which an interface must be ready: those that its endpoints hold, and those of
    /// workloads that move to it.
    fn served_by(&self, name: &str, held: &BTreeSet<Cidr>) -> BTreeSet<Cidr> {
        let keys = self.interfaces.get(name).into_iter().flat_map(|place| &place.endpoints);
        let withheld = keys.filter(|key| self.is_withheld(key)).filter_map(|key| self.intents.get(key));
        let expected = withheld.filter(|intent| intent.active).flat_map(super::EndpointIntent::prefixes);
        held.iter().copied().chain(expected).collect()
    }

    /// Returns the metric that the route to a prefix must have, and true if no other one will do.
    pub(super) fn wanted_metric(&self, prefix: &Cidr) -> (u32, bool) {
        let moving = self.holder(prefix).and_then(|key| self.routings.moving.get(key));
        let priority = moving.and_then(|routing| routing.priority(prefix.is_v4()));
        let normal = self.routings.normal.map(|[v4, v6]| if prefix.is_v4() { v4 } else { v6 });
        let metric = priority.or(normal).unwrap_or_else(|| default_metric(prefix));
        (metric, priority.is_some())
    }

    /// Returns the desired static neighbours of an interface.
    pub(super) fn neighbours_of(&self, name: &str, held: &BTreeSet<Cidr>) -> BTreeMap<IpAddr, [u8; 6]> {
        let mut wanted = BTreeMap::new();
        let endpoints = self.interfaces.get(name).into_iter().flat_map(|place| &place.endpoints);
        for intent in endpoints.filter_map(|key| self.intents.get(key)).filter(|intent| intent.active) {
            let Some(mac) = intent.mac else { continue };
            let hosts = intent.nets.iter().filter(|net| net.is_host() && held.contains(*net));
            wanted.extend(hosts.map(|net| (net.addr(), mac.0)));
        }
        wanted
    }

    /// Returns the requests that an interface needs; none while it is absent or down, and none for other
    /// interfaces.
    pub(super) fn difference(&self, name: &str, now: Instant) -> EndpointDiff {
        let mut difference = EndpointDiff::default();
        let Some((ifindex, device)) = self.actual.link_named(name) else { return difference };
        if !self.policy_received || !device.up || !self.is_workload(name) {
            return difference;
        }
        let held = self.held_by(name);
        self.routes(ifindex, device, &held, now, &mut difference);
        let served = self.served_by(name, &held);
        let wanted = self.neighbours_of(name, &held);
        for (addr, (_, protocol)) in &device.neighbours {
            if *protocol == self.protocol && !wanted.contains_key(addr) {
                difference.work.push(EndpointRequest::DeleteNeighbour { ifindex, addr: *addr });
            }
        }
        for (addr, mac) in wanted {
            if device.neighbours.get(&addr).is_none_or(|(there, _)| *there != mac) {
                difference.work.push(EndpointRequest::PutNeighbour { ifindex, addr, mac });
            }
        }
        let ipv6 = self.ipv6 && served.iter().any(|prefix| !prefix.is_v4());
        if !served.is_empty() && device.sysctls != (Sysctls::Verified { ipv6 }) {
            difference.work.push(EndpointRequest::Sysctls { name: Arc::clone(&device.name), ipv6 });
        }
        difference
    }

    fn routes(
        &self,
        ifindex: u32,
        device: &Device,
        held: &BTreeSet<Cidr>,
        now: Instant,
        difference: &mut EndpointDiff,
    ) {
        for ((prefix, metric), route) in &device.routes {
            let ours = route.protocol == self.protocol;
            let skipped = (held.contains(prefix) && !self.is_superseded(device, prefix, *metric))
                || route.is_of_the_kernel()
                || (ours && *metric == self.metric)
                || (!self.ipv6 && !prefix.is_v4() && !ours);
            if skipped {
                continue;
            }
            let free = device.last_event + self.grace;
            if ours || route.adopted || free <= now {
                let (prefix, metric, protocol) = (*prefix, *metric, route.protocol);
                difference.work.push(EndpointRequest::DeleteRoute { ifindex, prefix, metric, protocol });
            } else {
                difference.in_grace = Some(difference.in_grace.map_or(free, |waits| waits.min(free)));
            }
        }
        for prefix in held {
            if !self.leads_to(device, prefix) {
                let (metric, _) = self.wanted_metric(prefix);
                difference.work.push(EndpointRequest::PutRoute { ifindex, prefix: *prefix, metric });
            }
        }
    }

    /// Returns true if a device has a route to the prefix with the desired metric. In a v1 store, one that the
    /// kernel prefers to learned ones.
    pub(super) fn leads_to(&self, device: &Device, prefix: &Cidr) -> bool {
        let (metric, is_exact) = self.wanted_metric(prefix);
        let has = |metric| device.routes.contains_key(&(*prefix, metric));
        let preferred = |(there, metric): &(Cidr, u32)| there == prefix && *metric < self.metric;
        has(metric)
            || (!is_exact && has(default_metric(prefix)))
            || (self.routings.normal.is_none() && device.routes.keys().any(preferred))
    }

    /// Returns true for a route that another one with the desired metric has replaced.
    fn is_superseded(&self, device: &Device, prefix: &Cidr, metric: u32) -> bool {
        let (wanted, is_exact) = self.wanted_metric(prefix);
        let is_kept = metric == wanted || (!is_exact && metric == default_metric(prefix));
        self.routings.normal.is_some() && !is_kept && self.leads_to(device, prefix)
    }

    /// Adds or removes the route that makes the host answer for the gateway of workloads, if needed.
    fn gateway(&self, unreachable: bool) -> Option<EndpointRequest> {
        let (ifindex, lo) = self.actual.link_named("lo")?;
        let prefix = Cidr::host(IpAddr::V4(GATEWAY));
        let metric = self.metric.saturating_add(1);
        let there = lo.routes.get(&(prefix, metric)).filter(|route| route.protocol == self.protocol);
        let there_is_one = || {
            self.interfaces
                .iter()
                .any(|(name, place)| place.held_prefixes.iter().any(Cidr::is_v4) && self.is_up(name))
        };
        let wanted = unreachable && lo.up && there_is_one();
        match there {
            None if wanted => Some(EndpointRequest::PutRoute { ifindex, prefix, metric }),
            Some(route) if !wanted && self.policy_received => {
                Some(EndpointRequest::DeleteRoute { ifindex, prefix, metric, protocol: route.protocol })
            }
            _ => None,
        }
    }

    /// Returns the requests for all marked interfaces. `unreachable` is true if the host has no route to the
    /// gateway of workloads except Tortie's.
    pub(super) fn take_requests(&mut self, now: Instant, unreachable: bool) -> Batch {
        let mut batch = Batch::default();
        let mut sort = |work: EndpointRequest| match work {
            EndpointRequest::DeleteRoute { .. } | EndpointRequest::DeleteNeighbour { .. } => {
                batch.removals.push(work)
            }
            EndpointRequest::Sysctls { .. } => batch.sysctls.push(work),
            EndpointRequest::PutNeighbour { .. } | EndpointRequest::PutRoute { .. } => {
                batch.additions.push(work)
            }
        };
        if !self.policy_received {
            return batch;
        }
        let names = std::mem::take(&mut self.dirty);
        for name in &names {
            self.refused.remove(name);
            self.vacate(name);
            self.adopt(name);
            let difference = self.difference(name, now);
            self.next_wait = [self.next_wait, difference.in_grace].into_iter().flatten().min();
            for work in &difference.work {
                if let EndpointRequest::DeleteRoute { prefix, .. } = work
                    && prefix.is_host()
                    && self.holder(prefix).is_none()
                {
                    self.vacated.insert(*prefix);
                }
            }
            if difference.in_grace.is_some() || self.interfaces.contains_key(name) {
                let place = self.interfaces.entry(Arc::clone(name)).or_default();
                place.not_before = difference.in_grace;
                if place.endpoints.is_empty() && place.held_prefixes.is_empty() && place.not_before.is_none()
                {
                    self.interfaces.remove(name);
                }
            }
            difference.work.into_iter().for_each(&mut sort);
        }
        if self.gateway_problem.is_none()
            && let Some(work) = self.gateway(unreachable)
        {
            sort(work);
        }
        batch.names = names.into_iter().collect();
        batch
    }

    /// Returns true if a vacated address has a holder among these interfaces. Its conntrack entries must be
    /// deleted before its route is added, so that no entry of the new holder is deleted with them.
    pub(super) fn is_reused(&self, names: &[Name]) -> bool {
        !self.vacated.is_empty()
            && names.iter().filter_map(|name| self.interfaces.get(name)).any(|place| {
                place.held_prefixes.iter().any(|prefix| self.vacated.iter().any(|left| left.overlaps(prefix)))
            })
    }

    /// Records prefixes that the endpoints of an interface no longer hold, or hold on another device.
    fn vacate(&mut self, name: &Name) {
        let held = self.held_by(name);
        let device = self.actual.link_named(name).map(|(ifindex, _)| ifindex);
        let Some(place) = self.interfaces.get_mut(name) else { return };
        if device.is_some_and(|ifindex| place.held_ifindex != 0 && place.held_ifindex != ifindex) {
            self.vacated.append(&mut place.held_prefixes);
        }
        let kept: BTreeSet<Cidr> = place.held_prefixes.intersection(&held).copied().collect();
        self.vacated.extend(place.held_prefixes.difference(&kept));
        (place.held_prefixes, place.held_ifindex) = match device {
            Some(ifindex) => (held, ifindex),
            None => (kept, place.held_ifindex),
        };
    }

    /// Marks desired routes as adopted, whatever their protocol.
    fn adopt(&mut self, name: &Name) {
        let held = self.held_by(name);
        let Some((ifindex, _)) = self.actual.link_named(name) else { return };
        let Some(device) = self.actual.link_mut(ifindex) else { return };
        for ((prefix, _), route) in &mut device.routes {
            route.adopted |= held.contains(prefix);
        }
    }

    /// Applies the answer to a request to the actual state.
    pub(super) fn settle(&mut self, work: &EndpointRequest, result: &Result<(), Refusal>) {
        let gone = matches!(result, Err(r) if matches!(r.code, libc::ESRCH | libc::ENOENT | libc::ENODEV));
        match work {
            EndpointRequest::PutRoute { ifindex, prefix, metric } if result.is_ok() => {
                self.actual.add_route(*ifindex, *prefix, *metric, self.protocol);
                if self.routings.normal.is_some() {
                    // A route with another metric may be superseded now.
                    self.mark_claimants(prefix);
                }
            }
            EndpointRequest::DeleteRoute { ifindex, prefix, metric, .. } if result.is_ok() || gone => {
                self.actual.remove_route(*ifindex, *prefix, *metric);
                self.mark_claimants(prefix);
                return;
            }
            EndpointRequest::PutNeighbour { ifindex, addr, mac } if result.is_ok() => {
                let protocol = self.protocol;
                if let Some(device) = self.actual.link_mut(*ifindex) {
                    device.neighbours.insert(*addr, (*mac, protocol));
                }
            }
            EndpointRequest::DeleteNeighbour { ifindex, addr } if result.is_ok() || gone => {
                if let Some(device) = self.actual.link_mut(*ifindex) {
                    device.neighbours.remove(addr);
                }
                return;
            }
            EndpointRequest::Sysctls { name, ipv6 } if result.is_ok() => {
                let index = self.actual.link_named(name).map(|(index, _)| index);
                if let Some(device) = index.and_then(|i| self.actual.link_mut(i)) {
                    device.sysctls = Sysctls::Verified { ipv6: *ipv6 };
                }
            }
            _ => {}
        }
        if let Err(refusal) = result {
            self.needs_resync |= refusal.code == 0;
            self.refuse(work, refusal);
        }
    }

    fn refuse(&mut self, work: &EndpointRequest, refusal: &Refusal) {
        let name = match work {
            EndpointRequest::Sysctls { name, .. } => Some(Arc::clone(name)),
            EndpointRequest::PutRoute { ifindex, .. }
            | EndpointRequest::DeleteRoute { ifindex, .. }
            | EndpointRequest::PutNeighbour { ifindex, .. }
            | EndpointRequest::DeleteNeighbour { ifindex, .. } => {
                self.actual.link(*ifindex).map(|device| Arc::clone(&device.name))
            }
        };
        let text = match work {
            EndpointRequest::PutRoute { prefix, .. } if refusal.code == libc::EEXIST => {
                format!("another route to {prefix} is in the way: see `ip route show {prefix}`")
            }
            EndpointRequest::PutRoute { prefix, .. } => {
                format!("the kernel refuses the route to {prefix}: {refusal}")
            }
            EndpointRequest::DeleteRoute { prefix, .. } => {
                format!("the kernel keeps the old route to {prefix}: {refusal}")
            }
            EndpointRequest::PutNeighbour { addr, .. } => {
                format!("the kernel refuses the neighbour {addr}: {refusal}")
            }
            EndpointRequest::DeleteNeighbour { addr, .. } => {
                format!("the kernel keeps the old neighbour {addr}: {refusal}")
            }
            EndpointRequest::Sysctls { .. } => refusal.to_string(),
        };
        match name {
            Some(name) if self.is_workload(&name) => {
                self.refused.entry(name).or_default().insert(work.clone(), text);
            }
            _ => self.gateway_problem = Some(text),
        }
    }

    /// Updates the conditions of the endpoints of these interfaces.
    pub(super) fn update_conditions(&mut self, names: &[Name]) {
        for name in names {
            let keys: Vec<EndpointKey> =
                self.interfaces.get(name).map(|p| p.endpoints.iter().cloned().collect()).unwrap_or_default();
            for key in keys {
                let condition = self.condition(&key);
                self.set_condition(&key, Some(condition));
            }
        }
    }

    fn condition(&self, key: &EndpointKey) -> EndpointCondition {
        use EndpointCondition::{Down, Failed, Up};
        let Some(intent) = self.intents.get(key) else { return Down("it is gone".to_owned()) };
        let name = &intent.interface;
        if !intent.active {
            return Down("it is not active".to_owned());
        }
        if !self.is_workload(name) {
            let prefixes = self.prefixes.join(", ");
            return Failed(format!(
                "interface {name} does not belong to a workload: its name begins with none of {prefixes} \
                 (InterfacePrefix)"
            ));
        }
        match self.actual.link_named(name) {
            None => return Down(format!("interface {name} does not exist")),
            Some((_, device)) if !device.up => return Down(format!("interface {name} is down")),
            Some(_) => {}
        }
        let other = |prefix: &Cidr| self.holder(prefix).filter(|holder| *holder != key);
        let taken = intent.prefixes().find_map(|prefix| Some((prefix, other(&prefix)?)));
        if let Some((prefix, holder)) = taken {
            return Failed(format!("{prefix} is held by {}", describe(holder)));
        }
        let refused = self.refused.get(name).and_then(|refused| refused.values().next());
        refused.map_or(Up, |text| Failed(text.clone()))
    }
}

/// Returns the name of an endpoint for people.
pub(super) fn describe(key: &EndpointKey) -> String {
    match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            format!("endpoint {orchestrator}/{workload}/{endpoint}")
        }
        EndpointKey::Host { endpoint, .. } => format!("host endpoint {endpoint}"),
    }
}
