//! The desired and the actual route of each prefix. Pure: no I/O.
//!
//! There is one entry per prefix, which is small, since there may be a million. Any change of either state
//! marks the entry dirty; `plan` plans requests for dirty entries.

pub(crate) mod store_routes;

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use super::entries::{Entries, Slot};
use super::hop_sets::{HopSets, NO_SET, SetId};
use crate::fib::counts::{RouteClass, RouteCounts, Sums};
use crate::fib::drift_hold::DriftHold;
use crate::fib::nexthop_objects::NexthopObjects;
use crate::fib::route_state::{Actual, Desired};
use crate::netlink::route::{RTN_BLACKHOLE, RTN_UNICAST, Route};
use crate::options::Marks;
use store_routes::RemoteLinks;
use tortie_engine::routing::{ChangeId, CoveringRoute, Hop, KernelRoute, Legs, RemoteRoute, Resolved};

/// Route of a prefix that the store demands, and that counts more than a learned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoredRoute {
    None,
    /// The blackhole of an own block.
    Blackhole,
    /// A route to another host through a tunnel, or to a neighbour without one.
    Remote,
    /// A route to a peer by its gateway, which is decided on like a learned one.
    Gateway,
}

/// State of one prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteEntry {
    learned: SetId,
    pub(super) desired: Desired,
    pub(super) actual: Actual,
    stored: StoredRoute,
    /// True if the route was found at the start and not learned again since.
    pub(super) stale: bool,
    dirty: bool,
    in_dump: bool,
    /// Lower half of the change that set `desired`; see [`Table::change_of`].
    change: u32,
    /// Metric of the actual route; 0 for Tortie's usual one.
    metric: u32,
}

impl RouteEntry {
    /// Returns the desired route.
    pub(crate) fn desired(&self) -> Desired {
        self.desired
    }

    /// Returns the route in the kernel.
    pub(crate) fn actual(&self) -> Actual {
        self.actual
    }

    /// Returns true if the route was found at the start and not learned again since.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }
}

impl Default for RouteEntry {
    fn default() -> Self {
        Self {
            learned: NO_SET,
            desired: Desired::Nothing(None),
            actual: Actual::Absent,
            stored: StoredRoute::None,
            stale: false,
            dirty: false,
            in_dump: false,
            change: 0,
            metric: 0,
        }
    }
}

/// Decides the kernel route of a learned prefix from its BGP next hops.
pub(crate) type Decide<'a> = dyn FnMut(Cidr, &[ScopedAddr]) -> KernelRoute + 'a;

/// The desired and the actual state of all routes of Tortie.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) marks: Marks,
    pub(super) objects: NexthopObjects,
    pub(super) entries: Entries<RouteEntry>,
    counts: RouteCounts,
    pub(super) failed: BTreeMap<Cidr, Box<str>>,
    /// Routes with Tortie's protocol and another metric, from an earlier configuration or by another process.
    pub(super) stray_routes: HashMap<(Cidr, u32), ()>,
    /// Routes that one with another metric has replaced, and that must be deleted.
    pub(super) superseded: Vec<(Cidr, u32)>,
    pub(super) swept: bool,
    /// True if the kernel contradicted the assumed actual state, so that a resync is needed.
    pub(super) needs_resync: bool,
    pub(super) drift_hold: DriftHold,
    dirty: Vec<Slot>,
    hop_sets: HopSets,
    reasons: Vec<&'static str>,
    blackholes: BTreeMap<Cidr, ChangeId>,
    remote: BTreeMap<Cidr, RemoteRoute>,
    /// The gateways to peers.
    gateways: BTreeMap<Cidr, SetId>,
    has_ipip: bool,
    remote_links: RemoteLinks,
    newest: ChangeId,
}

impl Table {
    pub(crate) fn new(marks: Marks, nexthop_objects: bool) -> Self {
        Self {
            marks,
            objects: NexthopObjects::new(nexthop_objects, marks.nexthop_base),
            entries: Entries::default(),
            counts: RouteCounts::default(),
            failed: BTreeMap::new(),
            stray_routes: HashMap::new(),
            superseded: Vec::new(),
            swept: false,
            needs_resync: false,
            drift_hold: DriftHold::default(),
            dirty: Vec::new(),
            hop_sets: HopSets::default(),
            reasons: Vec::new(),
            blackholes: BTreeMap::new(),
            remote: BTreeMap::new(),
            gateways: BTreeMap::new(),
            has_ipip: false,
            remote_links: RemoteLinks::default(),
            newest: ChangeId::default(),
        }
    }

    /// Returns the numbers that identify Tortie's routes.
    pub(crate) fn marks(&self) -> Marks {
        self.marks
    }

    /// Returns the nexthop objects and their targets.
    pub(crate) fn objects(&self) -> &NexthopObjects {
        &self.objects
    }

    /// Returns the nexthop objects, for updates from the kernel.
    pub(crate) fn objects_mut(&mut self) -> &mut NexthopObjects {
        &mut self.objects
    }

    /// Returns all entries.
    pub(crate) fn entries(&self) -> &Entries<RouteEntry> {
        &self.entries
    }

    /// Returns the reason why a prefix is not as desired: the kernel refused it, or a foreign route
    /// conflicts.
    pub(crate) fn failure(&self, prefix: &Cidr) -> Option<&str> {
        self.failed.get(prefix).map(|reason| &**reason)
    }

    /// Returns the number of prefixes with a failure.
    pub(crate) fn failures(&self) -> usize {
        self.failed.len()
    }

    /// Returns true if the kernel contradicted the assumed actual state, so that a resync is needed.
    pub(crate) fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    /// Returns true once stale routes from before the start were swept.
    pub(crate) fn is_swept(&self) -> bool {
        self.swept
    }

    /// Removes a Tortie route at another metric.
    pub(crate) fn remove_stray(&mut self, prefix: Cidr, metric: u32) {
        self.stray_routes.remove(&(prefix, metric));
    }

    /// Returns the changes of Tortie's routes by other processes, and the drift hold.
    pub(crate) fn drift_hold(&self) -> &DriftHold {
        &self.drift_hold
    }

    /// Returns the same, for recording changes and for beginning or ending a hold.
    pub(crate) fn drift_hold_mut(&mut self) -> &mut DriftHold {
        &mut self.drift_hold
    }

    // Desired state.

    /// Replaces the set of blackholes; removals are attributed to `change`. Returns the added and removed
    /// prefixes.
    pub(crate) fn set_blackholes(
        &mut self,
        wanted: &BTreeMap<Cidr, ChangeId>,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) -> Vec<Cidr> {
        let mut moved = Vec::new();
        let old = std::mem::replace(&mut self.blackholes, wanted.clone());
        for prefix in old.keys().filter(|p| !wanted.contains_key(p)) {
            self.store_changed(*prefix, change, decide);
            moved.push(*prefix);
        }
        for (prefix, change) in wanted.iter().filter(|(p, _)| !old.contains_key(p)) {
            self.store_changed(*prefix, *change, decide);
            moved.push(*prefix);
        }
        moved
    }

    /// Returns the desired blackholes that are not in the kernel, with the reason.
    pub(crate) fn failed_blackholes(&self) -> Vec<(Cidr, String)> {
        self.blackholes
            .keys()
            .filter(|p| !self.holds_blackhole(p))
            .map(|p| (*p, self.failed.get(p).map_or_else(|| "not written yet".to_owned(), |r| r.to_string())))
            .collect()
    }

    /// Returns true if the kernel has Tortie's blackhole of this prefix.
    pub(crate) fn holds_blackhole(&self, prefix: &Cidr) -> bool {
        self.entries.get(prefix).is_some_and(|e| e.actual == Actual::Blackhole)
    }

    /// Returns the desired route of an entry, for resolving addresses it covers; `None` if no Tortie route is
    /// desired. A stale route resolves as before the restart, as it forwards packets.
    pub(crate) fn covering_route(&self, prefix: &Cidr, entry: &RouteEntry) -> Option<CoveringRoute<'_>> {
        match (entry.stored, entry.desired) {
            (StoredRoute::None | StoredRoute::Gateway, _) => {}
            (StoredRoute::Remote, Desired::Via(target, _)) => {
                let way = self.objects.hops(target).first().and_then(|hop| self.way(hop));
                return Some(CoveringRoute::Foreign(way.into_iter().collect()));
            }
            _ => return Some(CoveringRoute::Foreign(Legs::new())),
        }
        let learned = self.wanted_hops(prefix, entry).map(CoveringRoute::Learned);
        learned.or_else(|| self.stale_way(entry).map(|way| CoveringRoute::Foreign(Legs::from_elem(way, 1))))
    }

    /// Returns interface and gateway of a stale route.
    fn stale_way(&self, entry: &RouteEntry) -> Option<Resolved> {
        let (ifindex, gateway) = match entry.actual {
            _ if !entry.stale => return None,
            Actual::Nexthop(id) => self.objects.first_way(id)?,
            Actual::Plain(target) => self.objects.hops(target).iter().find_map(|hop| match hop {
                Hop::Plain { gateway, ifindex } => Some((*ifindex, *gateway)),
                Hop::Tunnel { .. } | Hop::Vxlan { .. } => None,
            })?,
            _ => return None,
        };
        Some(Resolved { ifindex, gateway: Some(gateway), metric: self.marks.metric })
    }

    /// Returns interface and gateway of a hop; `None` if it is a tunnel without its device.
    fn way(&self, hop: &Hop) -> Option<Resolved> {
        let (ifindex, gateway) = match *hop {
            Hop::Plain { gateway, ifindex } => (ifindex, gateway),
            Hop::Tunnel { remote } => (self.objects.tunnels().of(hop)?, remote.into()),
            Hop::Vxlan { remote } => (self.objects.tunnels().of(hop)?, remote),
        };
        Some(Resolved { ifindex, gateway: Some(gateway), metric: self.marks.metric })
    }

    /// Sets the learned next hops of a prefix, and the metric of its route, 0 for Tortie's usual one; no hops
    /// means withdrawn. `true` if they changed.
    pub(crate) fn learn(
        &mut self,
        prefix: Cidr,
        hops: &[ScopedAddr],
        metric: u32,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) -> bool {
        let metric = if metric == self.marks.metric { 0 } else { metric };
        let set = if hops.is_empty() { NO_SET } else { self.hop_sets.acquire(hops, metric) };
        let mut old = NO_SET;
        let slot = self.with_entry(prefix, |e| {
            old = std::mem::replace(&mut e.learned, set);
            e.stale = false;
        });
        self.hop_sets.release(old);
        self.decide(slot, change, decide);
        old != set
    }

    /// Decides again on all learned prefixes and peers with a gateway whose next hops satisfy `concerns`. Without a `change` of the
    /// store the network changed, and routes keep their change.
    pub(crate) fn decide_again(
        &mut self,
        concerns: &dyn Fn(&[ScopedAddr]) -> bool,
        change: ChangeId,
        decide: &mut Decide<'_>,
    ) {
        let sets: Vec<bool> = self.hop_sets.iter().map(|set| set.is_some_and(concerns)).collect();
        if !sets.contains(&true) {
            return;
        }
        let is_concerned =
            |set: SetId| usize::try_from(set).is_ok_and(|i| sets.get(i).copied().unwrap_or_default());
        let concerned = |e: &RouteEntry| is_concerned(e.learned);
        let mut slots: Vec<Slot> =
            self.entries.iter().filter(|(.., e)| concerned(e)).map(|(slot, ..)| slot).collect();
        let gateways = self.gateways.iter().filter(|(_, set)| is_concerned(**set));
        slots.extend(gateways.filter_map(|(prefix, _)| self.entries.find(prefix)));
        for slot in slots {
            self.decide(slot, change, decide);
        }
    }

    /// Returns the next hops in use: of BGP, and gateways to peers.
    pub(crate) fn next_hops(&self) -> impl Iterator<Item = ScopedAddr> + '_ {
        self.hop_sets.iter().flatten().flatten().copied()
    }

    fn decide(&mut self, slot: Slot, change: ChangeId, decide: &mut Decide<'_>) {
        let Some((prefix, entry)) = self.entries.get_slot(slot).copied() else { return };
        let want = if entry.stored == StoredRoute::Blackhole {
            Desired::Blackhole
        } else if entry.stored == StoredRoute::Remote {
            self.decide_remote(&prefix)
        } else if let Some(hops) = self.wanted_hops(&prefix, &entry) {
            match decide(prefix, hops) {
                KernelRoute::Via { hops, reason } if !hops.is_empty() => {
                    Desired::Via(self.objects.acquire(&hops), self.reason_index(reason))
                }
                KernelRoute::Via { reason, .. } | KernelRoute::Withheld { reason } => {
                    Desired::Nothing(Some(self.reason_index(reason)))
                }
            }
        } else {
            Desired::Nothing(None)
        };
        // The new reference was taken first, so that an unchanged target never loses its object.
        if let Desired::Via(old, _) = entry.desired {
            self.objects.release(old);
        }
        let change = self.lower_half(change);
        if entry.desired != want {
            self.drift_hold.forget(&prefix);
        }
        self.change(slot, |e| {
            if e.desired != want && change != 0 {
                e.change = change;
            }
            e.desired = want;
        });
        self.mark(slot);
    }

    fn lower_half(&mut self, change: ChangeId) -> u32 {
        self.newest = self.newest.max(change);
        u32::try_from(change.0 & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// Returns the change of the store or of BGP that set an entry's desired route; 0 if it was found at the
    /// start. Entries store the lower half of the number, which is unique among the newest four billion
    /// changes.
    pub(crate) fn change_of(&self, entry: &RouteEntry) -> ChangeId {
        if entry.change == 0 {
            return ChangeId::default();
        }
        let before = self.newest.0.wrapping_sub(u64::from(entry.change)) & u64::from(u32::MAX);
        ChangeId(self.newest.0.wrapping_sub(before))
    }

    /// Returns the metric that the route of an entry must have.
    pub(crate) fn desired_metric(&self, entry: &RouteEntry) -> u32 {
        match desired_metric(&self.hop_sets, entry) {
            0 => self.marks.metric,
            metric => metric,
        }
    }

    /// Returns the metric of the route of an entry in the kernel.
    pub(super) fn actual_metric(&self, entry: &RouteEntry) -> u32 {
        if entry.metric == 0 { self.marks.metric } else { entry.metric }
    }

    /// Returns true if Tortie's route of a prefix has this metric, or will have it.
    pub(crate) fn is_metric_of(&self, prefix: &Cidr, metric: u32) -> bool {
        let of = |entry: &RouteEntry| match entry.actual.is_there() {
            true => self.actual_metric(entry),
            false => self.desired_metric(entry),
        };
        self.entries.get(prefix).map_or(self.marks.metric, of) == metric
    }

    /// Records that the route of an entry was written with a metric. One with another metric is superseded.
    pub(super) fn set_metric(&mut self, slot: Slot, metric: u32) {
        let Some((prefix, entry)) = self.entries.get_slot(slot).copied() else { return };
        let before = self.actual_metric(&entry);
        if entry.actual.is_there() && before != metric {
            self.superseded.push((prefix, before));
        }
        self.stray_routes.remove(&(prefix, metric));
        let metric = if metric == self.marks.metric { 0 } else { metric };
        self.change(slot, |entry| entry.metric = metric);
    }

    fn with_entry(&mut self, prefix: Cidr, change: impl FnOnce(&mut RouteEntry)) -> Slot {
        let slot = self.entries.find_or_add(prefix);
        self.change(slot, change);
        slot
    }

    /// Returns the next hops of an entry: the gateway to a peer, or else the BGP next hops learned.
    pub(crate) fn wanted_hops(&self, prefix: &Cidr, entry: &RouteEntry) -> Option<&[ScopedAddr]> {
        let set = match entry.stored {
            StoredRoute::Gateway => self.gateways.get(prefix).copied().unwrap_or(NO_SET),
            _ => entry.learned,
        };
        self.hop_sets.get(set)
    }

    /// Changes an entry and updates the counts; every change that affects them goes through here.
    #[inline]
    fn change<T>(&mut self, slot: Slot, change: impl FnOnce(&mut RouteEntry) -> T) -> Option<T> {
        let objects = self.objects.enabled();
        let entry = self.entries.at_mut(slot)?;
        let before = class(&self.hop_sets, entry, objects);
        let result = change(entry);
        let after = class(&self.hop_sets, entry, objects);
        self.counts.moved(before, after);
        Some(result)
    }

    /// Returns the number of entries per state; the cost is proportional to the number of nexthop objects in
    /// use.
    pub(crate) fn sums(&self) -> Sums {
        self.counts.sums(&self.objects)
    }

    fn reason_index(&mut self, reason: &'static str) -> u8 {
        let at = self.reasons.iter().position(|r| *r == reason).unwrap_or_else(|| {
            self.reasons.push(reason);
            self.reasons.len() - 1
        });
        u8::try_from(at).unwrap_or(u8::MAX)
    }

    /// Returns the text of the reason why a learned prefix has its route, or none.
    pub(crate) fn reason(&self, index: u8) -> &'static str {
        self.reasons.get(usize::from(index)).copied().unwrap_or("unknown")
    }

    // Actual state.

    /// Loads a route from the dump at the start. If it is not desired, it is kept as stale.
    pub(crate) fn load(&mut self, route: &Route) {
        if self.add_stray(route) {
            return;
        }
        let known = self.read(route);
        let slot = self.with_entry(route.prefix, |e| e.stale = true);
        self.set_metric(slot, route.metric);
        self.set_actual(slot, known);
    }

    /// Compares a route from a later dump; returns true if it differs from the assumed state.
    pub(crate) fn compare(&mut self, route: &Route) -> bool {
        let news = !self.stray_routes.contains_key(&(route.prefix, route.metric));
        if self.add_stray(route) {
            return news;
        }
        let known = self.read(route);
        let mut before = Actual::Absent;
        let slot = self.with_entry(route.prefix, |e| (e.in_dump, before) = (true, e.actual));
        let differs = before != known;
        if differs {
            self.set_metric(slot, route.metric);
            self.set_actual(slot, known);
            self.mark(slot);
        } else {
            self.release_actual(known);
        }
        differs
    }

    /// Must be called before the first [`Table::compare`] of a dump.
    pub(crate) fn begin_compare(&mut self) {
        self.needs_resync = false;
        for entry in self.entries.values_mut() {
            entry.in_dump = false;
        }
    }

    /// Must be called after a complete dump: routes missing in it are lost. Returns their number and the
    /// first.
    pub(crate) fn end_compare(&mut self) -> (usize, Option<Cidr>) {
        let missing: Vec<Slot> = self
            .entries
            .iter()
            .filter(|(.., e)| !e.in_dump && e.actual.is_there())
            .map(|(slot, ..)| slot)
            .collect();
        for slot in &missing {
            self.mark_lost(*slot);
        }
        let first = missing.first().and_then(|slot| self.entries.get_slot(*slot));
        (missing.len(), first.map(|(prefix, _)| *prefix))
    }

    /// Records that the kernel no longer has Tortie's route of this prefix; returns true if it was assumed to
    /// exist.
    pub(crate) fn lose(&mut self, prefix: Cidr) -> bool {
        match self.entries.find(&prefix) {
            Some(slot) if self.entries.get_slot(slot).is_some_and(|(_, e)| e.actual.is_there()) => {
                self.mark_lost(slot);
                true
            }
            _ => false,
        }
    }

    fn mark_lost(&mut self, slot: Slot) {
        self.set_actual(slot, Actual::Lost);
        self.mark(slot);
    }

    /// Records that Tortie's nexthop objects were deleted, and the routes over them; returns the number of
    /// routes.
    pub(crate) fn lose_objects(&mut self, ids: &[u32]) -> usize {
        let mut gone: SmallVec<[u32; 8]> = SmallVec::new();
        for id in ids {
            gone.extend(self.objects.removed(*id));
        }
        if gone.is_empty() {
            return 0;
        }
        gone.sort_unstable();
        let lost: Vec<Slot> = self
            .entries
            .iter()
            .filter(|(.., e)| matches!(e.actual, Actual::Nexthop(id) if gone.binary_search(&id).is_ok()))
            .map(|(slot, ..)| slot)
            .collect();
        for slot in &lost {
            self.mark_lost(*slot);
        }
        lost.len()
    }

    /// Returns true if a route is none that an entry may have: it has a type of service, or the entry has one
    /// with another metric.
    fn add_stray(&mut self, route: &Route) -> bool {
        let entry = self.entries.get(&route.prefix).filter(|entry| entry.actual.is_there());
        let other = entry.is_some_and(|entry| self.actual_metric(entry) != route.metric);
        let stray = other || route.tos != 0;
        if stray && route.tos == 0 {
            self.stray_routes.insert((route.prefix, route.metric), ());
        }
        stray
    }

    /// Converts a Tortie route to its actual state. A plain route carries a reference to its target.
    fn read(&mut self, route: &Route) -> Actual {
        match (route.kind, route.nexthop) {
            (RTN_BLACKHOLE, _) => Actual::Blackhole,
            (RTN_UNICAST, 0) => match self.objects.hops_of_legs(&route.legs) {
                Some(hops) if !hops.is_empty() => Actual::Plain(self.objects.acquire(&hops)),
                _ => Actual::Foreign,
            },
            (RTN_UNICAST, id) => Actual::Nexthop(id),
            _ => Actual::Foreign,
        }
    }

    fn release_actual(&mut self, known: Actual) {
        if let Actual::Plain(target) = known {
            self.objects.release(target);
        }
    }

    /// Sets the actual state, taking over the reference of a plain route.
    pub(crate) fn set_actual(&mut self, slot: Slot, known: Actual) {
        let Some(old) = self.change(slot, |e| std::mem::replace(&mut e.actual, known)) else {
            return self.release_actual(known);
        };
        if let Actual::Nexthop(id) = known {
            self.objects.count_route(id, true);
        }
        match old {
            Actual::Nexthop(id) => self.objects.count_route(id, false),
            old => self.release_actual(old),
        }
    }

    /// Returns true if the kernel has the desired route, or a route kept until the sweep.
    pub(crate) fn is_in_sync(&self, entry: &RouteEntry) -> bool {
        match (entry.desired, entry.actual) {
            (Desired::Nothing(_), Actual::Absent | Actual::Lost) => true,
            (Desired::Nothing(_), _) => entry.stale,
            _ if self.actual_metric(entry) != self.desired_metric(entry) => false,
            (Desired::Blackhole, Actual::Blackhole) => true,
            (Desired::Via(t, _), Actual::Nexthop(id)) => {
                self.objects.enabled() && self.objects.expresses(id, t)
            }
            (Desired::Via(t, _), Actual::Plain(k)) => !self.objects.enabled() && t == k,
            _ => false,
        }
    }

    // Dirty entries.

    pub(crate) fn mark(&mut self, slot: Slot) {
        if let Some(entry) = self.entries.at_mut(slot)
            && !std::mem::replace(&mut entry.dirty, true)
        {
            self.dirty.push(slot);
        }
    }

    /// Marks the entry of a prefix, if it exists.
    pub(crate) fn mark_prefix(&mut self, prefix: &Cidr) {
        if let Some(slot) = self.entries.find(prefix) {
            self.mark(slot);
        }
    }

    pub(crate) fn dirty(&self) -> &[Slot] {
        &self.dirty
    }

    pub(crate) fn take_dirty(&mut self) -> Vec<Slot> {
        let dirty = std::mem::take(&mut self.dirty);
        for slot in &dirty {
            if let Some(entry) = self.entries.at_mut(*slot) {
                entry.dirty = false;
            }
        }
        dirty
    }

    /// Marks failed entries for a retry.
    pub(crate) fn retry(&mut self) {
        self.objects.retry();
        let failed: Vec<Cidr> = self.failed.keys().copied().collect();
        for prefix in failed {
            self.mark_prefix(&prefix);
        }
    }

    /// Sweeps stale routes: marks them for deletion and returns their number.
    pub(crate) fn sweep(&mut self) -> usize {
        self.swept = true;
        self.objects.sweep();
        let stale: Vec<Slot> = self.entries.iter().filter(|(.., e)| e.stale).map(|(slot, ..)| slot).collect();
        for slot in &stale {
            self.change(*slot, |entry| entry.stale = false);
            self.mark(*slot);
        }
        stale.len() + self.stray_routes.len()
    }

    /// Removes an entry that is neither learned, nor a blackhole, nor in the kernel.
    pub(crate) fn tidy(&mut self, slot: Slot) {
        if let Some((prefix, e)) = self.entries.get_slot(slot)
            && e.learned == NO_SET
            && e.stored == StoredRoute::None
            && !e.dirty
            && !e.actual.is_there()
        {
            self.failed.remove(prefix);
            self.counts.gone(class(&self.hop_sets, e, self.objects.enabled()));
            self.entries.remove(slot);
        }
    }
}

/// Returns the metric that the route of an entry must have; 0 for Tortie's usual one.
fn desired_metric(hop_sets: &HopSets, entry: &RouteEntry) -> u32 {
    if entry.stored == StoredRoute::None { hop_sets.metric(entry.learned) } else { 0 }
}

/// Classifies an entry; `objects` is true if routes use nexthop objects.
#[inline]
fn class(hop_sets: &HopSets, entry: &RouteEntry, objects: bool) -> RouteClass {
    let is_wanted = !matches!(entry.desired, Desired::Nothing(_));
    if is_wanted && entry.actual.is_there() && entry.metric != desired_metric(hop_sets, entry) {
        return RouteClass::Different;
    }
    RouteClass::of(entry.desired, entry.actual, entry.stale, objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_small_and_knows_its_change_beyond_four_billion() {
        assert!(size_of::<RouteEntry>() <= 32, "there may be a million: {}", size_of::<RouteEntry>());
        let mut table = Table::new(Marks { protocol: 179, metric: 1790, nexthop_base: 0x5400_0000 }, true);
        let decide: &mut Decide<'_> = &mut |_, _| KernelRoute::Withheld { reason: "unresolved" };
        let hop: ScopedAddr = "192.0.2.9".parse().unwrap();
        let [a, b, c] = ["10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26"].map(|p| p.parse::<Cidr>().unwrap());
        let change = |table: &Table, p: &Cidr| table.change_of(table.entries.get(p).unwrap()).0;
        table.learn(a, &[hop], 0, ChangeId(u64::from(u32::MAX) - 1), decide);
        table.learn(b, &[hop], 0, ChangeId((1 << 32) + 7), decide);
        assert_eq!(change(&table, &a), u64::from(u32::MAX) - 1);
        assert_eq!(change(&table, &b), (1 << 32) + 7);
        // Learning the same again changes nothing; another decision does.
        table.learn(b, &[hop], 0, ChangeId((1 << 32) + 8), decide);
        assert_eq!(change(&table, &b), (1 << 32) + 7);
        let other: &mut Decide<'_> = &mut |_, _| KernelRoute::Withheld { reason: "no-tunnel" };
        table.decide_again(&|_| true, ChangeId((1 << 32) + 9), other);
        assert_eq!(change(&table, &b), (1 << 32) + 9);
        table.decide_again(&|_| true, ChangeId::default(), decide);
        assert_eq!(change(&table, &b), (1 << 32) + 9, "the network moved: the route still comes from there");
        table.set_blackholes(&[(c, ChangeId(5 << 32 | 1))].into(), ChangeId(5 << 32 | 2), decide);
        assert_eq!(change(&table, &c), 5 << 32 | 1);
        table.set_blackholes(&BTreeMap::new(), ChangeId(5 << 32 | 3), decide);
        assert_eq!(change(&table, &c), 5 << 32 | 3);
    }
}
