//! Plans requests from dirty entries, and applies the kernel's answers to the actual state. Pure: no I/O.
//!
//! There are three steps, each sent and settled before the next is planned: nexthop objects, then routes,
//! then unused objects. So a route never refers to a missing object, and no object is deleted while a route
//! uses it. Routes to existing objects may be planned while the kernel processes other routes
//! (`routes_alone`); objects are not changed meanwhile.

use rustc_hash::FxHashSet;
use tortie_net::Cidr;

use super::entries::Slot;
use super::request::{NetworkView, Outcome, Request, RouteContent};
use super::route_state::{Actual, Desired};
use super::table::{RouteEntry, Table};
use crate::netlink::codec::Put;
use crate::netlink::nexthop;
use crate::netlink::route::{self, RouteId, Via};
use crate::netlink::socket::Refusal;

impl Request {
    /// Encodes the request.
    pub(crate) fn encode(
        &self,
        table: &Table,
        network: &dyn NetworkView,
        buf: &mut Vec<u8>,
        flags: u16,
        seq: u32,
    ) {
        let marks = table.marks;
        match self {
            Self::PutNexthop { id, content, put } => {
                nexthop::encode_put(buf, flags, seq, *id, marks.protocol, content, *put);
            }
            Self::DeleteNexthop { id } => nexthop::encode_delete(buf, flags, seq, *id),
            Self::PutRoute { prefix, metric, content, put, .. } => {
                let onlink = |g, i| network.needs_onlink(g, i);
                let legs = match content {
                    RouteContent::Plain(target) => table.objects.legs(*target, &onlink),
                    _ => Default::default(),
                };
                let via = match content {
                    RouteContent::Blackhole => Via::Blackhole,
                    RouteContent::Nexthop(id) => Via::Nexthop(*id),
                    RouteContent::Plain(_) => Via::Plain(&legs),
                };
                let id = RouteId { prefix: *prefix, protocol: marks.protocol, metric: *metric };
                route::encode_put(buf, flags, seq, &id, via, *put);
            }
            Self::DeleteRoute { prefix, metric, .. } => {
                let id = RouteId { prefix: *prefix, protocol: marks.protocol, metric: *metric };
                route::encode_delete(buf, flags, seq, &id);
            }
        }
    }
}

type PlanStep = fn(&mut Table, &dyn NetworkView) -> Vec<Request>;

const STEP_ORDER: [PlanStep; 3] = [nexthops, routes, unused_objects];

/// Maximum number of rounds: IDs that are in use and groups that lose members need a second or third.
const ROUNDS_MAX: usize = 4;

/// Iterates over all due requests, one list per step.
#[derive(Debug, Default)]
pub(crate) struct PlanRounds {
    round: usize,
    step: usize,
    /// True if this round had requests.
    busy: bool,
}

impl PlanRounds {
    /// Returns the requests to be sent next; the previous ones must be settled.
    pub(crate) fn next(&mut self, table: &mut Table, network: &dyn NetworkView) -> Option<Vec<Request>> {
        while self.round < ROUNDS_MAX {
            while let Some(step) = STEP_ORDER.get(self.step) {
                self.step += 1;
                let requests = step(table, network);
                if !requests.is_empty() {
                    self.busy = true;
                    return Some(requests);
                }
            }
            if !std::mem::take(&mut self.busy) {
                return None;
            }
            (self.round, self.step) = (self.round + 1, 0);
        }
        None
    }
}

/// Plans the nexthop objects that dirty entries and dirty targets need, members before groups.
pub(crate) fn nexthops(table: &mut Table, network: &dyn NetworkView) -> Vec<Request> {
    let mut targets = table.objects.take_dirty();
    for slot in table.dirty() {
        if let Some(Desired::Via(target, _)) = table.entries.get_slot(*slot).map(|(_, e)| e.desired)
            && targets.last() != Some(&target)
        {
            targets.push(target);
        }
    }
    let onlink = |g, i| network.needs_onlink(g, i);
    let (mut planned, mut singles, mut groups) = (FxHashSet::default(), Vec::new(), Vec::new());
    for target in targets {
        table.objects.ensure(target, &onlink, &mut planned, &mut singles, &mut groups);
    }
    singles.append(&mut groups);
    singles
}

/// Plans the routes of dirty entries, given the existing nexthop objects.
fn routes(table: &mut Table, network: &dyn NetworkView) -> Vec<Request> {
    let other = |(prefix, metric)| Request::DeleteRoute { slot: None, prefix, metric };
    let mut requests: Vec<Request> = std::mem::take(&mut table.superseded).into_iter().map(other).collect();
    for slot in table.take_dirty() {
        let Some((prefix, entry)) = table.entries.get_slot(slot).copied() else { continue };
        if table.is_in_sync(&entry) {
            table.failed.remove(&prefix);
            table.drift_hold.forget(&prefix);
            table.tidy(slot);
            continue;
        }
        if table.drift_hold.holds(&prefix) {
            continue;
        }
        let content = match entry.desired {
            Desired::Nothing(_) => {
                let metric = table.actual_metric(&entry);
                requests.push(Request::DeleteRoute { slot: Some(slot), prefix, metric });
                continue;
            }
            Desired::Blackhole => RouteContent::Blackhole,
            Desired::Via(target, _) if !table.objects.enabled() => RouteContent::Plain(target),
            Desired::Via(target, _) => match table.objects.usable(target) {
                Ok(id) => RouteContent::Nexthop(id),
                Err(reason) => {
                    let reason = reason.into();
                    table.failed.insert(prefix, reason);
                    // Another process uses its ID: the next round allocates another one.
                    if table.objects.is_pending(target) {
                        table.mark(slot);
                    }
                    continue;
                }
            },
        };
        let metric = table.desired_metric(&entry);
        if let Some(reason) = network.conflicting_route(&prefix, metric) {
            table.failed.insert(prefix, reason.into());
            continue;
        }
        let is_at_metric = entry.actual != Actual::Absent && table.actual_metric(&entry) == metric;
        let is_there = is_at_metric || table.stray_routes.contains_key(&(prefix, metric));
        let put = if is_there { Put::Replace } else { Put::Add };
        requests.push(Request::PutRoute { slot, prefix, metric, content, put });
    }
    if table.swept {
        let stray = |(prefix, metric): &(Cidr, u32)| Request::DeleteRoute {
            slot: None,
            prefix: *prefix,
            metric: *metric,
        };
        requests.extend(table.stray_routes.keys().map(stray));
    }
    requests
}

/// Plans the routes of dirty entries, if they only need existing nexthop objects. `None`, without any change,
/// if other requests must be sent first.
pub(crate) fn routes_alone(table: &mut Table, network: &dyn NetworkView) -> Option<Vec<Request>> {
    let stray_routes = table.swept && !table.stray_routes.is_empty();
    let others = stray_routes || !table.superseded.is_empty();
    if !table.objects.enabled() || table.objects.has_work() || others {
        return None;
    }
    let mut last = None;
    for slot in table.dirty() {
        // The route with the former metric is deleted after the new one was written.
        let moves = |entry: &RouteEntry| {
            entry.actual.is_there() && table.actual_metric(entry) != table.desired_metric(entry)
        };
        if table.entries.get_slot(*slot).is_some_and(|(_, entry)| moves(entry)) {
            return None;
        }
        if let Some(Desired::Via(target, _)) = table.entries.get_slot(*slot).map(|(_, e)| e.desired)
            && last.replace(target) != Some(target)
        {
            table.objects.usable(target).ok()?;
        }
    }
    Some(routes(table, network))
}

/// Plans the deletion of Tortie's unused objects; none while answers are missing, since objects believed
/// unused may be in use.
fn unused_objects(table: &mut Table, _: &dyn NetworkView) -> Vec<Request> {
    // A superseded route uses the object of its entry's former target.
    let wait = table.needs_resync || !table.superseded.is_empty();
    if wait { Vec::new() } else { table.objects.plan_unused() }
}

/// Applies the kernel's answer to one request to the actual state. Returns the reason if it failed; deleting
/// a missing route is no failure.
pub(crate) fn settle(table: &mut Table, request: &Request, result: &Outcome) -> Option<String> {
    if matches!(result, Err(r) if r.code == 0) {
        table.needs_resync = true;
    }
    match request {
        Request::PutNexthop { id, content, put } => {
            table.objects.put_done(*id, content, *put, result);
        }
        Request::DeleteNexthop { id } => table.objects.delete_done(*id, result),
        Request::PutRoute { slot, prefix, metric, content, .. } => {
            return put_settled(table, *slot, *prefix, *metric, *content, result);
        }
        Request::DeleteRoute { slot: Some(slot), prefix, .. } => {
            return delete_settled(table, *slot, *prefix, result);
        }
        Request::DeleteRoute { slot: None, prefix, metric } => {
            table.stray_routes.remove(&(*prefix, *metric));
            if let Err(refusal) = result
                && !matches!(refusal.code, 0 | libc::ESRCH | libc::ENOENT)
                && table.entries.get(prefix).is_some_and(|entry| entry.actual.is_there())
            {
                // It is tried again: a nexthop object may still be in use by it.
                table.superseded.push((*prefix, *metric));
                table.failed.insert(*prefix, refusal.text.clone().into());
                return Some(refusal.text.clone());
            }
            return None;
        }
    }
    result.as_ref().err().map(|r| r.text.clone())
}

fn put_settled(
    table: &mut Table,
    slot: Slot,
    prefix: Cidr,
    metric: u32,
    content: RouteContent,
    result: &Result<(), Refusal>,
) -> Option<String> {
    match result {
        Ok(()) => {
            table.set_metric(slot, metric);
            let actual = match content {
                RouteContent::Blackhole => Actual::Blackhole,
                RouteContent::Nexthop(id) => Actual::Nexthop(id),
                RouteContent::Plain(target) => {
                    table.objects.add_ref(target);
                    Actual::Plain(target)
                }
            };
            table.set_actual(slot, actual);
            table.failed.remove(&prefix);
            None
        }
        Err(refusal) => {
            // EEXIST: an unknown route exists; EINVAL, ENOENT: the object was deleted. A dump will show it.
            table.needs_resync |= matches!(refusal.code, libc::EEXIST | libc::EINVAL | libc::ENOENT);
            if refusal.code == 0 {
                table.set_metric(slot, metric);
                table.set_actual(slot, Actual::Lost);
            }
            let text = if refusal.code == libc::EEXIST {
                "another route has this prefix and metric".to_owned()
            } else {
                refusal.text.clone()
            };
            table.failed.insert(prefix, text.clone().into());
            Some(text)
        }
    }
}

fn delete_settled(
    table: &mut Table,
    slot: Slot,
    prefix: Cidr,
    result: &Result<(), Refusal>,
) -> Option<String> {
    let gone = match result {
        Ok(()) => true,
        Err(refusal) => matches!(refusal.code, libc::ESRCH | libc::ENOENT),
    };
    if gone {
        table.set_actual(slot, Actual::Absent);
        table.failed.remove(&prefix);
        table.tidy(slot);
        return None;
    }
    let text = result.as_ref().err().map(|r| r.text.clone())?;
    table.failed.insert(prefix, text.clone().into());
    Some(text)
}
