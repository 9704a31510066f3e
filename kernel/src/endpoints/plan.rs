//! From what is wanted and known to requests, and from the answers back to what is known. Pure: no I/O.
//!
//! One interface is looked at as a whole: few routes, few neighbours. Removals come first, then connections of addresses
//! that were left, then sysctls, then additions: an address that moves is never at two places, and its new holder never
//! inherits connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use super::{Ends, GATEWAY, Name, Work};
use crate::endpoints::actual::{Device, Sysctls};
use crate::facts::EndpointCondition;
use crate::netlink::socket::Refusal;

/// What one interface lacks.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) work: Vec<Work>,
    /// Something is left alone until then.
    pub(super) waits: Option<Instant>,
}

/// Requests in the order in which they are carried out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) removals: Vec<Work>,
    pub(super) sysctls: Vec<Work>,
    pub(super) additions: Vec<Work>,
    /// What was looked at.
    pub(super) names: Vec<Name>,
}

/// The metric of routes to workloads: what the kernel gives when nobody says one.
pub(super) fn metric_of(prefix: &Cidr) -> u32 {
    if prefix.is_v4() { 0 } else { 1024 }
}

impl Ends {
    /// The prefixes that endpoints of an interface hold.
    pub(super) fn held_by(&self, name: &str) -> BTreeSet<Cidr> {
        let Some(place) = self.places.get(name) else { return BTreeSet::new() };
        let mut held = BTreeSet::new();
        for key in &place.endpoints {
            let prefixes = self.wishes.get(key).into_iter().flat_map(super::Wish::prefixes);
            held.extend(prefixes.filter(|prefix| self.holder(prefix) == Some(key)));
        }
        held
    }

    /// Whether an endpoint of this interface holds the prefix.
    pub(super) fn is_held_by(&self, prefix: &Cidr, name: &str) -> bool {
        self.holder(prefix).and_then(|key| self.wishes.get(key)).is_some_and(|w| *w.interface == *name)
    }

    /// The static neighbours that an interface is to have.
    pub(super) fn neighbours_of(&self, name: &str, held: &BTreeSet<Cidr>) -> BTreeMap<IpAddr, [u8; 6]> {
        let mut wanted = BTreeMap::new();
        let endpoints = self.places.get(name).into_iter().flat_map(|place| &place.endpoints);
        for wish in endpoints.filter_map(|key| self.wishes.get(key)).filter(|wish| wish.active) {
            let Some(mac) = wish.mac else { continue };
            let hosts = wish.nets.iter().filter(|net| net.is_host() && held.contains(*net));
            wanted.extend(hosts.map(|net| (net.addr(), mac.0)));
        }
        wanted
    }

    /// What it takes to bring an interface right. Nothing while it is absent or down, and nothing for other interfaces.
    pub(super) fn difference(&self, name: &str, now: Instant) -> Difference {
        let mut difference = Difference::default();
        let Some((ifindex, device)) = self.known.link_named(name) else { return difference };
        if !self.told || !device.up || !self.is_workload(name) {
            return difference;
        }
        let held = self.held_by(name);
        self.routes(ifindex, device, &held, now, &mut difference);
        let wanted = self.neighbours_of(name, &held);
        for (addr, (_, protocol)) in &device.neighbours {
            if *protocol == self.protocol && !wanted.contains_key(addr) {
                difference.work.push(Work::DeleteNeighbour { ifindex, addr: *addr });
            }
        }
        for (addr, mac) in wanted {
            if device.neighbours.get(&addr).is_none_or(|(there, _)| *there != mac) {
                difference.work.push(Work::PutNeighbour { ifindex, addr, mac });
            }
        }
        let ipv6 = self.ipv6 && held.iter().any(|prefix| !prefix.is_v4());
        if !held.is_empty() && device.sysctls != (Sysctls::Right { ipv6 }) {
            difference.work.push(Work::Sysctls { name: Arc::clone(&device.name), ipv6 });
        }
        difference
    }

    fn routes(
        &self,
        ifindex: u32,
        device: &Device,
        held: &BTreeSet<Cidr>,
        now: Instant,
        difference: &mut Difference,
    ) {
        for ((prefix, metric), route) in &device.routes {
            let ours = route.protocol == self.protocol;
            let skipped = held.contains(prefix)
                || route.is_of_the_kernel()
                || (ours && *metric == self.metric)
                || (!self.ipv6 && !prefix.is_v4() && !ours);
            if skipped {
                continue;
            }
            let free = device.seen + self.grace;
            if ours || route.adopted || free <= now {
                let (prefix, metric, protocol) = (*prefix, *metric, route.protocol);
                difference.work.push(Work::DeleteRoute { ifindex, prefix, metric, protocol });
            } else {
                difference.waits = Some(difference.waits.map_or(free, |waits| waits.min(free)));
            }
        }
        for prefix in held {
            if !self.leads_to(device, prefix) {
                let metric = metric_of(prefix);
                difference.work.push(Work::PutRoute { ifindex, prefix: *prefix, metric });
            }
        }
    }

    /// Whether a device has a route to the prefix that the kernel prefers to learned ones.
    pub(super) fn leads_to(&self, device: &Device, prefix: &Cidr) -> bool {
        device.routes.contains_key(&(*prefix, metric_of(prefix)))
            || device.routes.keys().any(|(there, metric)| there == prefix && *metric < self.metric)
    }

    /// The route that makes the host answer for the gateway of workloads, where it is missing or wanted no more.
    fn gateway(&self, unreachable: bool) -> Option<Work> {
        let (ifindex, lo) = self.known.link_named("lo")?;
        let prefix = Cidr::host(IpAddr::V4(GATEWAY));
        let metric = self.metric.saturating_add(1);
        let there = lo.routes.get(&(prefix, metric)).filter(|route| route.protocol == self.protocol);
        let there_is_one =
            || self.places.iter().any(|(name, place)| place.held.iter().any(Cidr::is_v4) && self.is_up(name));
        let wanted = unreachable && lo.up && there_is_one();
        match there {
            None if wanted => Some(Work::PutRoute { ifindex, prefix, metric }),
            Some(route) if !wanted && self.told => {
                Some(Work::DeleteRoute { ifindex, prefix, metric, protocol: route.protocol })
            }
            _ => None,
        }
    }

    /// The requests for everything that may have changed. `unreachable`: the host has no route to the workloads'
    /// gateway but its own.
    pub(super) fn take_work(&mut self, now: Instant, unreachable: bool) -> Batch {
        let mut batch = Batch::default();
        let mut sort = |work: Work| match work {
            Work::DeleteRoute { .. } | Work::DeleteNeighbour { .. } => batch.removals.push(work),
            Work::Sysctls { .. } => batch.sysctls.push(work),
            Work::PutNeighbour { .. } | Work::PutRoute { .. } => batch.additions.push(work),
        };
        if !self.told {
            return batch;
        }
        let names = std::mem::take(&mut self.dirty);
        for name in &names {
            self.refused.remove(name);
            self.leave(name);
            self.adopt(name);
            let difference = self.difference(name, now);
            self.first_wait = [self.first_wait, difference.waits].into_iter().flatten().min();
            for work in &difference.work {
                if let Work::DeleteRoute { prefix, .. } = work
                    && prefix.is_host()
                    && self.holder(prefix).is_none()
                {
                    self.left.insert(*prefix);
                }
            }
            if difference.waits.is_some() || self.places.contains_key(name) {
                let place = self.places.entry(Arc::clone(name)).or_default();
                place.waits = difference.waits;
                if place.endpoints.is_empty() && place.held.is_empty() && place.waits.is_none() {
                    self.places.remove(name);
                }
            }
            difference.work.into_iter().for_each(&mut sort);
        }
        if self.gateway_refused.is_none()
            && let Some(work) = self.gateway(unreachable)
        {
            sort(work);
        }
        batch.names = names.into_iter().collect();
        batch
    }

    /// Whether an address that was left has a holder among these interfaces: its connections go before its route comes,
    /// and none of the new holder's with them.
    pub(super) fn is_taken_again(&self, names: &[Name]) -> bool {
        !self.left.is_empty()
            && names.iter().filter_map(|name| self.places.get(name)).any(|place| {
                place.held.iter().any(|prefix| self.left.iter().any(|left| left.overlaps(prefix)))
            })
    }

    /// Notes which prefixes the endpoints of an interface hold no more, or hold on another device.
    fn leave(&mut self, name: &Name) {
        let held = self.held_by(name);
        let device = self.known.link_named(name).map(|(ifindex, _)| ifindex);
        let Some(place) = self.places.get_mut(name) else { return };
        if device.is_some_and(|ifindex| place.held_on != 0 && place.held_on != ifindex) {
            self.left.append(&mut place.held);
        }
        let kept: BTreeSet<Cidr> = place.held.intersection(&held).copied().collect();
        self.left.extend(place.held.difference(&kept));
        (place.held, place.held_on) = match device {
            Some(ifindex) => (held, ifindex),
            None => (kept, place.held_on),
        };
    }

    /// Routes that are wanted are an endpoint's from now on, whoever wrote them.
    fn adopt(&mut self, name: &Name) {
        let held = self.held_by(name);
        let Some((ifindex, _)) = self.known.link_named(name) else { return };
        let Some(device) = self.known.link_mut(ifindex) else { return };
        for ((prefix, _), route) in &mut device.routes {
            route.adopted |= held.contains(prefix);
        }
    }

    /// Takes the answer to a request over into what is known.
    pub(super) fn settle(&mut self, work: &Work, result: &Result<(), Refusal>) {
        let gone = matches!(result, Err(r) if matches!(r.code, libc::ESRCH | libc::ENOENT | libc::ENODEV));
        match work {
            Work::PutRoute { ifindex, prefix, metric } if result.is_ok() => {
                self.known.add_route(*ifindex, *prefix, *metric, self.protocol);
            }
            Work::DeleteRoute { ifindex, prefix, metric, .. } if result.is_ok() || gone => {
                self.known.remove_route(*ifindex, *prefix, *metric);
                self.mark_claimants(prefix);
                return;
            }
            Work::PutNeighbour { ifindex, addr, mac } if result.is_ok() => {
                let protocol = self.protocol;
                if let Some(device) = self.known.link_mut(*ifindex) {
                    device.neighbours.insert(*addr, (*mac, protocol));
                }
            }
            Work::DeleteNeighbour { ifindex, addr } if result.is_ok() || gone => {
                if let Some(device) = self.known.link_mut(*ifindex) {
                    device.neighbours.remove(addr);
                }
                return;
            }
            Work::Sysctls { name, ipv6 } if result.is_ok() => {
                let index = self.known.link_named(name).map(|(index, _)| index);
                if let Some(device) = index.and_then(|i| self.known.link_mut(i)) {
                    device.sysctls = Sysctls::Right { ipv6: *ipv6 };
                }
            }
            _ => {}
        }
        if let Err(refusal) = result {
            self.doubtful |= refusal.code == 0;
            self.refuse(work, refusal);
        }
    }

    fn refuse(&mut self, work: &Work, refusal: &Refusal) {
        let name = match work {
            Work::Sysctls { name, .. } => Some(Arc::clone(name)),
            Work::PutRoute { ifindex, .. }
            | Work::DeleteRoute { ifindex, .. }
            | Work::PutNeighbour { ifindex, .. }
            | Work::DeleteNeighbour { ifindex, .. } => {
                self.known.link(*ifindex).map(|device| Arc::clone(&device.name))
            }
        };
        let text = match work {
            Work::PutRoute { prefix, .. } if refusal.code == libc::EEXIST => {
                format!("another route to {prefix} is in the way: see `ip route show {prefix}`")
            }
            Work::PutRoute { prefix, .. } => format!("the kernel refuses the route to {prefix}: {refusal}"),
            Work::DeleteRoute { prefix, .. } => {
                format!("the kernel keeps the old route to {prefix}: {refusal}")
            }
            Work::PutNeighbour { addr, .. } => format!("the kernel refuses the neighbour {addr}: {refusal}"),
            Work::DeleteNeighbour { addr, .. } => {
                format!("the kernel keeps the old neighbour {addr}: {refusal}")
            }
            Work::Sysctls { .. } => refusal.to_string(),
        };
        match name {
            Some(name) if self.is_workload(&name) => {
                self.refused.entry(name).or_default().insert(work.clone(), text);
            }
            _ => self.gateway_refused = Some(text),
        }
    }

    /// Draws the conclusions about the endpoints of these interfaces.
    pub(super) fn conclude(&mut self, names: &[Name]) {
        for name in names {
            let keys: Vec<EndpointKey> =
                self.places.get(name).map(|p| p.endpoints.iter().cloned().collect()).unwrap_or_default();
            for key in keys {
                let condition = self.condition(&key);
                self.set_condition(&key, Some(condition));
            }
        }
    }

    fn condition(&self, key: &EndpointKey) -> EndpointCondition {
        use EndpointCondition::{Down, Failed, Up};
        let Some(wish) = self.wishes.get(key) else { return Down("it is gone".to_owned()) };
        let name = &wish.interface;
        if !wish.active {
            return Down("it is not active".to_owned());
        }
        if !self.is_workload(name) {
            let prefixes = self.prefixes.join(", ");
            return Failed(format!(
                "interface {name} is none of a workload: its name begins with none of {prefixes} (InterfacePrefix)"
            ));
        }
        match self.known.link_named(name) {
            None => return Down(format!("interface {name} does not exist")),
            Some((_, device)) if !device.up => return Down(format!("interface {name} is down")),
            Some(_) => {}
        }
        let other = |prefix: &Cidr| self.holder(prefix).filter(|holder| *holder != key);
        let taken = wish.prefixes().find_map(|prefix| Some((prefix, other(&prefix)?)));
        if let Some((prefix, holder)) = taken {
            return Failed(format!("{prefix} is held by {}", describe(holder)));
        }
        let refused = self.refused.get(name).and_then(|refused| refused.values().next());
        refused.map_or(Up, |text| Failed(text.clone()))
    }
}

/// An endpoint as people know it.
pub(super) fn describe(key: &EndpointKey) -> String {
    match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            format!("endpoint {orchestrator}/{workload}/{endpoint}")
        }
        EndpointKey::Host { endpoint, .. } => format!("host endpoint {endpoint}"),
    }
}
