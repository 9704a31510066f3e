//! From dirty entries to requests, and from the kernel's answers back to what is known. Pure: no I/O.
//!
//! Three rounds, each sent and settled before the next is planned: nexthop objects, then routes, then the objects that
//! nothing needs any more. A route therefore never names an object that is not there, and no object is deleted under a
//! route that uses it. Routes to objects that are there may be planned while other routes are with Linux (`routes_alone`);
//! objects are not touched meanwhile.

use rustc_hash::FxHashSet;
use tortie_net::Cidr;

use super::entries::Slot;
use super::request::{Answer, Op, Surroundings, What};
use super::route_state::{Known, Want};
use super::table::Table;
use crate::netlink::nexthop;
use crate::netlink::route::{self, Via};
use crate::netlink::socket::Refusal;

impl Op {
    /// Writes the request.
    pub(crate) fn encode(
        &self,
        table: &Table,
        around: &dyn Surroundings,
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
            Self::PutRoute { prefix, what, put, .. } => {
                let onlink = |g, i| around.needs_onlink(g, i);
                let legs = match what {
                    What::Plain(target) => table.objects.legs(*target, &onlink),
                    _ => Default::default(),
                };
                let via = match what {
                    What::Blackhole => Via::Blackhole,
                    What::Nexthop(id) => Via::Nexthop(*id),
                    What::Plain(_) => Via::Plain(&legs),
                };
                route::encode_put(buf, flags, seq, prefix, marks.protocol, marks.metric, via, *put);
            }
            Self::DeleteRoute { prefix, metric, .. } => {
                route::encode_delete(buf, flags, seq, prefix, marks.protocol, *metric);
            }
        }
    }
}

type Step = fn(&mut Table, &dyn Surroundings) -> Vec<Op>;

const STEPS: [Step; 3] = [nexthops, routes, leftovers];

/// Rounds in one go: ids that are taken and groups that lose members need a second or third.
const ROUNDS: usize = 4;

/// Everything that is due, one list of requests after the other.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    round: usize,
    step: usize,
    /// Something was due in this round.
    busy: bool,
}

impl Rounds {
    /// What is to be sent now; what was given before has been settled.
    pub(crate) fn next(&mut self, table: &mut Table, around: &dyn Surroundings) -> Option<Vec<Op>> {
        while self.round < ROUNDS {
            while let Some(step) = STEPS.get(self.step) {
                self.step += 1;
                let ops = step(table, around);
                if !ops.is_empty() {
                    self.busy = true;
                    return Some(ops);
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

/// The nexthop objects that dirty entries and dirty targets need, members before groups.
pub(crate) fn nexthops(table: &mut Table, around: &dyn Surroundings) -> Vec<Op> {
    let mut targets = table.objects.take_dirty();
    for slot in table.dirty() {
        if let Some(Want::Via(target, _)) = table.entries.at(*slot).map(|(_, e)| e.want)
            && targets.last() != Some(&target)
        {
            targets.push(target);
        }
    }
    let onlink = |g, i| around.needs_onlink(g, i);
    let (mut planned, mut singles, mut groups) = (FxHashSet::default(), Vec::new(), Vec::new());
    for target in targets {
        table.objects.ensure(target, &onlink, &mut planned, &mut singles, &mut groups);
    }
    singles.append(&mut groups);
    singles
}

/// What brings the dirty entries right, given the nexthop objects that are there now.
fn routes(table: &mut Table, around: &dyn Surroundings) -> Vec<Op> {
    let mut ops = Vec::new();
    for slot in table.take_dirty() {
        let Some((prefix, entry)) = table.entries.at(slot).copied() else { continue };
        if table.is_right(&entry) {
            table.failed.remove(&prefix);
            table.study.forget(&prefix);
            table.tidy(slot);
            continue;
        }
        if table.study.holds(&prefix) {
            continue;
        }
        let what = match entry.want {
            Want::Nothing(_) => {
                ops.push(Op::DeleteRoute { slot: Some(slot), prefix, metric: table.marks.metric });
                continue;
            }
            Want::Blackhole => What::Blackhole,
            Want::Via(target, _) if !table.objects.enabled() => What::Plain(target),
            Want::Via(target, _) => match table.objects.usable(target) {
                Ok(id) => What::Nexthop(id),
                Err(reason) => {
                    let reason = reason.into();
                    table.failed.insert(prefix, reason);
                    // Its id was taken by somebody: the next round comes with another one.
                    if table.objects.is_pending(target) {
                        table.mark(slot);
                    }
                    continue;
                }
            },
        };
        if let Some(reason) = around.in_the_way(&prefix, table.marks.metric) {
            table.failed.insert(prefix, reason.into());
            continue;
        }
        let put = if entry.known == Known::Absent { route::Put::Add } else { route::Put::Replace };
        ops.push(Op::PutRoute { slot, prefix, what, put });
    }
    if table.swept {
        let stray =
            |(prefix, metric): &(Cidr, u32)| Op::DeleteRoute { slot: None, prefix: *prefix, metric: *metric };
        ops.extend(table.strays.keys().map(stray));
    }
    ops
}

/// The routes that bring the dirty entries right, if there is nothing to do but routes to objects that are there. `None`, and
/// everything is as dirty as before, where something else comes first.
pub(crate) fn routes_alone(table: &mut Table, around: &dyn Surroundings) -> Option<Vec<Op>> {
    let strays = table.swept && !table.strays.is_empty();
    if !table.objects.enabled() || table.objects.has_work() || strays {
        return None;
    }
    let mut last = None;
    for slot in table.dirty() {
        if let Some(Want::Via(target, _)) = table.entries.at(*slot).map(|(_, e)| e.want)
            && last.replace(target) != Some(target)
        {
            table.objects.usable(target).ok()?;
        }
    }
    Some(routes(table, around))
}

/// Own objects that nothing needs any more. None while answers are missing: what is believed unused may be in use.
fn leftovers(table: &mut Table, _: &dyn Surroundings) -> Vec<Op> {
    if table.doubtful { Vec::new() } else { table.objects.plan_unused() }
}

/// Takes the kernel's answer to one request over into what is known. Gives the reason when it failed: a route that was gone
/// already counts as deleted.
pub(crate) fn settle(table: &mut Table, op: &Op, result: &Answer) -> Option<String> {
    if matches!(result, Err(r) if r.code == 0) {
        table.doubtful = true;
    }
    match op {
        Op::PutNexthop { id, content, put } => {
            table.objects.put_done(*id, content, *put, result);
        }
        Op::DeleteNexthop { id } => table.objects.delete_done(*id, result),
        Op::PutRoute { slot, prefix, what, .. } => return put_settled(table, *slot, *prefix, *what, result),
        Op::DeleteRoute { slot: Some(slot), prefix, .. } => {
            return delete_settled(table, *slot, *prefix, result);
        }
        Op::DeleteRoute { slot: None, prefix, metric } => {
            table.strays.remove(&(*prefix, *metric));
            return None;
        }
    }
    result.as_ref().err().map(|r| r.text.clone())
}

fn put_settled(
    table: &mut Table,
    slot: Slot,
    prefix: Cidr,
    what: What,
    result: &Result<(), Refusal>,
) -> Option<String> {
    match result {
        Ok(()) => {
            let known = match what {
                What::Blackhole => Known::Blackhole,
                What::Nexthop(id) => Known::Nexthop(id),
                What::Plain(target) => {
                    table.objects.add_ref(target);
                    Known::Plain(target)
                }
            };
            table.set_known(slot, known);
            table.failed.remove(&prefix);
            None
        }
        Err(refusal) => {
            // EEXIST: something is there that was not known; EINVAL, ENOENT: the object went. A dump will tell.
            table.doubtful |= matches!(refusal.code, libc::EEXIST | libc::EINVAL | libc::ENOENT);
            if refusal.code == 0 {
                table.set_known(slot, Known::Gone);
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
        table.set_known(slot, Known::Absent);
        table.failed.remove(&prefix);
        table.tidy(slot);
        return None;
    }
    let text = result.as_ref().err().map(|r| r.text.clone())?;
    table.failed.insert(prefix, text.clone().into());
    Some(text)
}
