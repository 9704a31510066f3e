//! RIB of one family: its table and the update groups that follow the table's log.

use std::collections::{HashMap, VecDeque};

use slab::Slab;
use tortie_net::HashKey;

use crate::adj_rib_out::advertised::Advertised;
use crate::adj_rib_out::export::{GroupKey, Representative};
use crate::adj_rib_out::group::Group;
use crate::adj_rib_out::member::{EndOfRib, Produced};
use crate::attr::community;
use crate::rib::Shared;
use crate::rib::change_log::LOG_MAX;
use crate::rib::entry::Key;
use crate::rib::import::ImportEvaluator;
use crate::rib::reevaluate::{Job, Reevaluation, Slice};
use crate::rib::source::LOCAL;
use crate::rib::table::Table;

/// Maximum number of slots that a reevaluation visits per call.
const STEP: u32 = 4096;
/// Maximum number of segments encoded per call for idle members.
const ADVANCES: usize = 16;
/// Number of logged changes from which on they are evaluated at once. Fewer wait until the embedder has read
/// all input, so that a prefix that changes several times in between is evaluated and sent once.
const BACKLOG: u64 = LOG_MAX as u64 / 4;
/// Maximum number of entries freed per call.
const RECLAIM_MAX: usize = 8192;
/// Log length from which on the log is trimmed.
const TRIM: u64 = 4096;

/// RIB of one family.
#[derive(Debug, Clone)]
pub(crate) struct FamilyRib<A> {
    pub(crate) table: Table<A>,
    groups: Slab<Group>,
    by_key: HashMap<GroupKey, u32, HashKey>,
    pub(super) reevaluation: Reevaluation,
    /// Groups that have not followed the log to `queued_to` yet.
    queue: VecDeque<u32>,
    queued_to: u64,
    /// Head of the log at the last sweep of vacant entries and log.
    swept_to: u64,
    /// Log position that a group has to reach before it sends End-of-RIB.
    pub(crate) end_of_rib_after: Option<u64>,
}

/// State of a member when it leaves a group: its Adj-RIB-Out, the log position up to which it was sent, and
/// End-of-RIB.
pub(crate) type Previous = (Advertised, u64, EndOfRib);

impl<A: Key> FamilyRib<A> {
    pub(crate) fn new(key: HashKey) -> Self {
        Self {
            table: Table::new(key),
            groups: Slab::new(),
            by_key: HashMap::with_hasher(key),
            reevaluation: Reevaluation::default(),
            queue: VecDeque::new(),
            queued_to: 0,
            swept_to: 0,
            end_of_rib_after: None,
        }
    }

    /// Requests that every slot in use be visited for a job.
    pub(crate) fn request(&mut self, job: Job) {
        self.reevaluation.request(job, self.table.limit());
    }

    /// Adds a member to the group with this key, which is created if needed. Returns the group's number.
    pub(crate) fn join(
        &mut self,
        key: GroupKey,
        representative: Representative,
        member: u32,
        previous: Option<Previous>,
    ) -> u32 {
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => {
                self.table.planes += usize::from(key.plane > 0);
                let group = Group::new(key.clone(), representative, &self.table);
                let id = u32::try_from(self.groups.insert(group)).unwrap_or(u32::MAX);
                self.by_key.insert(key, id);
                id
            }
        };
        if let Some(group) = self.groups.get_mut(id as usize) {
            group.join(&self.table, member, previous);
        }
        id
    }

    /// Removes a member from its group; an empty group is removed too.
    pub(crate) fn leave(&mut self, shared: &mut Shared, group: u32, member: u32) -> Option<Previous> {
        let place = self.groups.get_mut(group as usize)?;
        let previous = place.leave(member);
        if place.is_empty() {
            let mut gone = self.groups.remove(group as usize);
            gone.dissolve(shared);
            self.table.planes -= usize::from(gone.key.plane > 0);
            self.by_key.remove(&gone.key);
        }
        previous
    }

    pub(crate) fn group(&self, id: u32) -> Option<&Group> {
        self.groups.get(id as usize)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().map(|(_, g)| g)
    }

    pub(crate) fn resend(&mut self, group: u32, member: u32) {
        if let Some(group) = self.groups.get_mut(group as usize) {
            group.resend(&self.table, member);
        }
    }

    /// Returns the next output for a member of these groups, one per plane; see [`Group::produce`]. `woken`
    /// receives all members for which output was produced.
    pub(crate) fn produce(
        &mut self,
        shared: &mut Shared,
        groups: &[u32],
        member: u32,
        woken: &mut Vec<u32>,
    ) -> Produced {
        let Some((last, first)) = groups.split_last() else { return Produced::Idle };
        // Best paths are sent first, so that the peer lacks none in between. End-of-RIB follows when all
        // planes have been sent.
        for group in first {
            match self.produce_plane(shared, *group, member, false, woken) {
                Produced::Idle => {}
                // The pass over all routes continues with the next plane.
                Produced::PassComplete => return Produced::Working,
                produced => return produced,
            }
        }
        self.produce_plane(shared, *last, member, true, woken)
    }

    fn produce_plane(
        &mut self,
        shared: &mut Shared,
        group: u32,
        member: u32,
        last: bool,
        woken: &mut Vec<u32>,
    ) -> Produced {
        let Some(group) = self.groups.get_mut(group as usize) else { return Produced::Idle };
        // A group that never sends learned routes does not wait for them (RFC 4724 4.1 applies to learned
        // routes).
        let after = self.end_of_rib_after.filter(|_| last && !(shared.deferring && shared.transit));
        if shared.local_ready && group.check_overrun(&self.table) {
            group.wake_all(None, |m| woken.push(m));
        }
        let produced = group.produce(shared, &self.table, member, after);
        if group.take_fresh() {
            group.wake_for_segment(|m| woken.push(m));
        }
        // Vacant entries may have waited for the last member, and there may be no other event for a long
        // time.
        if matches!(produced, Produced::Idle) && group.all_idle() {
            self.retry_sweep();
        }
        produced
    }

    /// Returns true if [`FamilyRib::work`] has work to do.
    pub(crate) fn has_work(&self, shared: &Shared) -> bool {
        let behind = !self.queue.is_empty() || self.queued_to != self.table.log.head();
        !self.reevaluation.is_idle()
            || (shared.local_ready && behind && !self.groups.is_empty())
            || self.wants_sweep()
    }

    fn wants_sweep(&self) -> bool {
        let head = self.table.log.head();
        self.swept_to != head && (self.table.has_vacant() || head - self.table.log.base() >= TRIM)
    }

    /// Does a slice of the queued work. `tick`: the embedder has read all input; the reevaluation then
    /// advances by one step and groups follow the log. `woken` receives members with new output, `done` is
    /// called for completed jobs.
    pub(crate) fn work(
        &mut self,
        shared: &mut Shared,
        tick: bool,
        woken: &mut Vec<u32>,
        mut done: impl FnMut(Job),
    ) {
        if tick && !self.reevaluation.is_idle() {
            let limit = self.table.limit();
            let slice = self.reevaluation.next(limit, STEP);
            self.visit(shared, slice);
            let head = self.table.log.head();
            let mut finished = Vec::new();
            self.reevaluation.advance(slice, limit, |job| finished.push(job));
            for job in finished {
                match job {
                    Job::Reimport => self.reevaluation.reimport_all = false,
                    // End-of-RIB may follow after the changes that this pass found.
                    Job::Reexport if self.end_of_rib_after.is_none() && !shared.deferring => {
                        self.end_of_rib_after = Some(head);
                        for (_, group) in &mut self.groups {
                            group.wake_all(Some(group.front()), |m| woken.push(m));
                        }
                    }
                    _ => {}
                }
                done(job);
            }
        }
        if tick || self.table.log.head() - self.queued_to >= BACKLOG {
            self.follow(shared, woken);
        }
        self.sweep(shared);
    }

    /// Advances groups with idle members along the log. Other groups advance when a member asks for output.
    fn follow(&mut self, shared: &mut Shared, woken: &mut Vec<u32>) {
        if !shared.local_ready {
            return;
        }
        if self.queue.is_empty() && self.queued_to != self.table.log.head() {
            self.queued_to = self.table.log.head();
            self.queue.extend(self.groups.iter().map(|(id, _)| u32::try_from(id).unwrap_or(u32::MAX)));
        }
        for _ in 0..ADVANCES {
            let Some(id) = self.queue.front().copied() else { return };
            if let Some(group) = self.groups.get_mut(id as usize) {
                if group.check_overrun(&self.table) {
                    group.wake_all(None, |m| woken.push(m));
                } else if group.has_idle() && group.is_behind(&self.table) {
                    group.advance(shared, &self.table);
                    if group.take_fresh() {
                        group.wake_for_segment(|m| woken.push(m));
                    }
                    continue;
                }
            }
            self.queue.pop_front();
        }
    }

    /// Frees vacant entries and log positions that all groups have passed.
    fn sweep(&mut self, shared: &mut Shared) {
        if !self.wants_sweep() {
            return;
        }
        let head = self.table.log.head();
        let passed = self.groups.iter().map(|(_, g)| g.needs()).min().unwrap_or(head).min(head);
        let groups = &mut self.groups;
        let more = self.table.reclaim(passed, RECLAIM_MAX, |slot| {
            for (_, group) in groups.iter_mut() {
                group.forget(shared, slot);
            }
        });
        self.table.log.trim(passed);
        // The rest waits for a reader; the next change or tick checks again.
        if !more || passed < head {
            self.swept_to = head;
        }
    }

    /// Schedules a sweep again, because a group may have passed vacant entries.
    pub(crate) fn retry_sweep(&mut self) {
        if self.table.has_vacant() {
            self.swept_to = self.table.log.base().wrapping_sub(1);
        }
    }

    fn visit(&mut self, shared: &mut Shared, slice: Slice) {
        let (purge, reimport) = (self.reevaluation.has(Job::Purge), self.reevaluation.has(Job::Reimport));
        let (hops, reexport) = (self.reevaluation.has(Job::NextHops), self.reevaluation.has(Job::Reexport));
        let (decide, all) = (self.reevaluation.has(Job::Decide), self.reevaluation.reimport_all);
        for slot in slice.from..slice.to {
            let Some(entry) = self.table.entry(slot).filter(|e| e.is_live() && !e.is_empty()) else {
                continue;
            };
            let moved = hops && !reimport && self.table.paths(entry).any(|p| is_dirty(shared, p.attr));
            if decide || moved {
                self.table.review(shared, slot);
            }
            if reimport {
                self.reimport(shared, slot, all);
            }
            if purge {
                self.table.remove_if(shared, slot, |shared, path| {
                    let source = shared.sources.get(path.source);
                    path.source != LOCAL
                        && !source.is_some_and(|s| {
                            let family = s.family(A::FAMILY);
                            family.is_valid(path.generation)
                                && !(family.is_long_lived(path.generation) && is_no_llgr(shared, path.attr))
                        })
                });
            }
            if reexport {
                self.reexport(shared, slot);
            }
        }
    }

    /// Evaluates import policy again for the paths of a prefix, of all peers or of the marked ones.
    fn reimport(&mut self, shared: &mut Shared, slot: u32, all: bool) {
        // The evaluator holds the only reference to its result until the path takes one.
        let mut last: Option<ImportEvaluator> = None;
        self.table.revise(shared, slot, |shared, prefix, path| {
            let family = shared.sources.get(path.source)?.family(A::FAMILY);
            let stale = family.is_long_lived(path.generation);
            if !all && !family.reimport {
                return None;
            }
            let received = shared.attrs.received(path.attr);
            let mut import = ImportEvaluator::new(shared, path.source, received, stale)?;
            let outcome = import.revise(shared, prefix);
            if let Some(before) = last.replace(import) {
                before.finish(shared);
            }
            Some(outcome)
        });
        if let Some(last) = last {
            last.finish(shared);
        }
    }

    /// Evaluates export policy again for a prefix.
    fn reexport(&mut self, shared: &mut Shared, slot: u32) {
        if self.groups.iter_mut().any(|(_, g)| g.differs(shared, &self.table, slot)) {
            self.table.touch(slot);
        }
    }

    /// Decides again for one prefix.
    pub(crate) fn review_prefix(&mut self, shared: &mut Shared, prefix: (A, u8)) {
        if let Some(slot) = self.table.find(prefix)
            && self.table.entry(slot).is_some_and(|e| e.is_live() && !e.is_empty())
        {
            self.table.review(shared, slot);
        }
    }

    /// Evaluates policy again for one prefix. Returns false if it is not in the table.
    pub(crate) fn evaluate_prefix(&mut self, shared: &mut Shared, prefix: (A, u8)) -> bool {
        let Some(slot) = self.table.find(prefix) else { return false };
        if !self.table.entry(slot).is_some_and(|e| e.is_live() && !e.is_empty()) {
            return false;
        }
        self.reimport(shared, slot, true);
        self.reexport(shared, slot);
        true
    }

    /// Visits all slots at once, without the limit per call.
    pub(crate) fn visit_all(&mut self, shared: &mut Shared) {
        let to = self.table.limit();
        self.visit(shared, Slice { from: 0, to });
    }
}

fn is_dirty(shared: &Shared, attr: u32) -> bool {
    shared.attrs.set(attr).is_some_and(|a| shared.next_hops.is_dirty(a.hop))
}

/// Returns true if the route has NO_LLGR, set by its sender or by import policy: it must not be kept as
/// long-lived stale (RFC 9494 4.2).
fn is_no_llgr(shared: &Shared, attr: u32) -> bool {
    [shared.attrs.received(attr), attr]
        .iter()
        .any(|a| shared.attrs.attributes(*a).is_some_and(|a| a.has_community(community::NO_LLGR)))
}
