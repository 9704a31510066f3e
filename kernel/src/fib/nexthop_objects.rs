//! Nexthop objects: the desired sets of hops (targets), the kernel objects that implement them, and their
//! IDs.
//!
//! A target is a sorted list of hops; equal lists are one target. A target with several hops is a group whose
//! members are the objects of its single hops. Objects found at the start are adopted by content, so that a
//! restart writes nothing. Pure: no I/O.

use std::collections::HashMap;
use std::net::IpAddr;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::request::{Request, TargetId, TunnelLinks};
use crate::netlink::codec::Put;
use crate::netlink::nexthop::{Content, Nexthop};
use crate::netlink::route::Leg;
use crate::netlink::socket::Refusal;
use tortie_engine::routing::Hop;

#[derive(Debug)]
struct NexthopTarget {
    hops: Box<[Hop]>,
    /// For groups, the targets of the single hops.
    members: SmallVec<[TargetId; 4]>,
    /// Number of routes that desire it or hold it in plain form, and of groups with it as a member.
    refs: u32,
    /// ID of the object that implements it.
    object: Option<u32>,
    error: Option<Box<str>>,
}

#[derive(Debug)]
struct NexthopObject {
    /// Content in the kernel; `None` if the object does not exist (any more).
    content: Option<Content>,
    target: Option<TargetId>,
    /// Number of routes in the kernel that use it.
    routes: u32,
    /// Number of groups in the kernel that contain it.
    groups: u32,
    /// True if the kernel had it under this ID, so that it may be replaced.
    adopted: bool,
    /// True if it was found at the start and not swept yet.
    stale: bool,
}

/// Returns the index of a target in the list.
fn place(id: TargetId) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// All targets and Tortie's nexthop objects.
#[derive(Debug)]
pub(crate) struct NexthopObjects {
    enabled: bool,
    base: u32,
    next: u32,
    tunnels: TunnelLinks,
    targets: Vec<Option<NexthopTarget>>,
    free: Vec<TargetId>,
    by_hops: HashMap<Box<[Hop]>, TargetId>,
    objects: FxHashMap<u32, NexthopObject>,
    /// IDs in Tortie's range that other processes use.
    reserved_ids: FxHashSet<u32>,
    dirty: Vec<TargetId>,
    /// Targets whose object the kernel refused.
    refused: Vec<TargetId>,
    unused: Vec<u32>,
}

impl NexthopObjects {
    /// Creates an empty state. `enabled` is true if the kernel supports nexthop objects; `base` is the first
    /// ID.
    pub(crate) fn new(enabled: bool, base: u32) -> Self {
        Self {
            enabled,
            base,
            next: base,
            tunnels: TunnelLinks::default(),
            targets: Vec::new(),
            free: Vec::new(),
            by_hops: HashMap::new(),
            objects: FxHashMap::default(),
            reserved_ids: FxHashSet::default(),
            dirty: Vec::new(),
            refused: Vec::new(),
            unused: Vec::new(),
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the number of Tortie's objects in the kernel.
    pub(crate) fn count(&self) -> usize {
        self.objects.values().filter(|o| o.content.is_some()).count()
    }

    /// Sets the tunnel interfaces, and marks the targets of those that changed.
    pub(crate) fn set_tunnels(&mut self, tunnels: TunnelLinks) {
        let before = std::mem::replace(&mut self.tunnels, tunnels);
        if before != tunnels {
            let moved = |hop: &Hop| before.of(hop) != tunnels.of(hop);
            let moved =
                |target: &Option<NexthopTarget>| target.as_ref().is_some_and(|t| t.hops.iter().any(moved));
            let moved = (0..).zip(&self.targets).filter(|(_, target)| moved(target));
            self.dirty.extend(moved.map(|(id, _)| id));
        }
    }

    /// Returns the tunnel interfaces.
    pub(crate) fn tunnels(&self) -> TunnelLinks {
        self.tunnels
    }

    // Targets.

    /// Returns the target of these hops, which need not be sorted, and adds a reference.
    pub(crate) fn acquire(&mut self, hops: &[Hop]) -> TargetId {
        let mut sorted: SmallVec<[Hop; 4]> = SmallVec::from_slice(hops);
        sorted.sort_unstable();
        sorted.dedup();
        let id = self.intern(&sorted);
        self.add_ref(id);
        id
    }

    fn intern(&mut self, hops: &[Hop]) -> TargetId {
        if let Some(id) = self.by_hops.get(hops) {
            return *id;
        }
        let members = if hops.len() > 1 {
            hops.iter().map(|hop| self.acquire(std::slice::from_ref(hop))).collect()
        } else {
            SmallVec::new()
        };
        let target = NexthopTarget { hops: hops.into(), members, refs: 0, object: None, error: None };
        let id = if let Some(id) = self.free.pop() {
            id
        } else {
            self.targets.push(None);
            TargetId::try_from(self.targets.len() - 1).unwrap_or(TargetId::MAX)
        };
        if let Some(slot) = self.targets.get_mut(place(id)) {
            *slot = Some(target);
        }
        self.by_hops.insert(hops.into(), id);
        id
    }

    pub(crate) fn add_ref(&mut self, id: TargetId) {
        let Some(t) = self.target_mut(id) else { return };
        t.refs += 1;
        // Changes of its object were not tracked while the target had no references.
        if t.refs == 1 && t.object.is_some() {
            self.dirty.push(id);
        }
    }

    pub(crate) fn release(&mut self, id: TargetId) {
        let Some(t) = self.target_mut(id) else { return };
        t.refs = t.refs.saturating_sub(1);
        if t.refs > 0 {
            return;
        }
        match t.object {
            Some(object) => self.unused.push(object),
            None => self.drop_target(id),
        }
    }

    fn drop_target(&mut self, id: TargetId) {
        let Some(t) = self.targets.get_mut(place(id)).and_then(Option::take) else { return };
        self.by_hops.remove(&t.hops);
        self.free.push(id);
        for member in t.members {
            self.release(member);
        }
    }

    fn target(&self, id: TargetId) -> Option<&NexthopTarget> {
        self.targets.get(place(id)).and_then(Option::as_ref)
    }

    fn target_mut(&mut self, id: TargetId) -> Option<&mut NexthopTarget> {
        self.targets.get_mut(place(id)).and_then(Option::as_mut)
    }

    /// Returns the hops of a target.
    pub(crate) fn hops(&self, id: TargetId) -> &[Hop] {
        self.target(id).map_or(&[], |t| &t.hops)
    }

    /// Returns the legs of a target, for routes without nexthop objects.
    pub(crate) fn legs(&self, id: TargetId, onlink: &dyn Fn(IpAddr, u32) -> bool) -> SmallVec<[Leg; 4]> {
        let leg = |hop: &Hop| match *hop {
            Hop::Plain { gateway, ifindex } => {
                Leg { ifindex, gateway: Some(gateway), onlink: onlink(gateway, ifindex) }
            }
            Hop::Tunnel { remote } => {
                Leg { ifindex: self.tunnels.ipip, gateway: Some(remote.into()), onlink: true }
            }
            Hop::Vxlan { remote } => {
                Leg { ifindex: self.tunnels.vxlan(remote.is_ipv4()), gateway: Some(remote), onlink: true }
            }
        };
        self.hops(id).iter().map(leg).collect()
    }

    /// Converts the legs of a Tortie route to hops; `None` if Tortie never writes such legs.
    pub(crate) fn hops_of_legs(&self, legs: &[Leg]) -> Option<SmallVec<[Hop; 4]>> {
        legs.iter().map(|leg| self.hop(leg.gateway?, leg.ifindex)).collect()
    }

    fn hop(&self, gateway: IpAddr, ifindex: u32) -> Option<Hop> {
        let TunnelLinks { ipip, .. } = self.tunnels;
        match gateway {
            _ if ifindex == 0 => Some(Hop::Plain { gateway, ifindex }),
            IpAddr::V4(remote) if ifindex == ipip => Some(Hop::Tunnel { remote }),
            _ if ifindex == ipip => None,
            _ if ifindex == self.tunnels.vxlan(gateway.is_ipv4()) => Some(Hop::Vxlan { remote: gateway }),
            _ => Some(Hop::Plain { gateway, ifindex }),
        }
    }

    /// Returns the object for routes to this target if it is in the kernel, else the reason.
    pub(crate) fn usable(&self, id: TargetId) -> Result<u32, &str> {
        let Some(t) = self.target(id) else { return Err("no target") };
        match t.object {
            Some(object) if self.objects.get(&object).is_some_and(|o| o.content.is_some()) => Ok(object),
            _ => Err(t.error.as_deref().unwrap_or("its nexthop is not in the kernel")),
        }
    }

    /// Returns true if a target has neither an object nor an error.
    pub(crate) fn is_pending(&self, id: TargetId) -> bool {
        self.target(id).is_some_and(|t| t.object.is_none() && t.error.is_none())
    }

    /// Returns interface and gateway of an object; for a group, of its first member.
    pub(crate) fn first_way(&self, id: u32) -> Option<(u32, IpAddr)> {
        let content = |id: &u32| self.objects.get(id)?.content.as_ref();
        let single = |content: &Content| match content {
            Content::Single { ifindex, gateway, .. } => Some((*ifindex, *gateway)),
            _ => None,
        };
        match content(&id)? {
            Content::Group(members) => members.iter().filter_map(content).find_map(single),
            other => single(other),
        }
    }

    /// Returns true if the object implements the target.
    pub(crate) fn expresses(&self, object: u32, id: TargetId) -> bool {
        self.objects.get(&object).is_some_and(|o| o.target == Some(id) && o.content.is_some())
    }

    // Objects in the kernel.

    /// Counts a route in the kernel that uses the object; with `false`, one that no longer does.
    pub(crate) fn count_route(&mut self, object: u32, more: bool) {
        if let Some(o) = self.objects.get_mut(&object) {
            o.routes = if more { o.routes + 1 } else { o.routes.saturating_sub(1) };
            if o.routes == 0 {
                self.unused.push(object);
            }
        }
    }

    /// Returns true if the object is Tortie's, by its protocol and the range of its ID.
    pub(crate) fn is_own(&self, nexthop: &Nexthop, protocol: u8) -> bool {
        nexthop.protocol == protocol && nexthop.id >= self.base
    }

    /// Returns true if Tortie wrote or adopted the object with this ID.
    pub(crate) fn is_written(&self, id: u32) -> bool {
        self.objects.get(&id).is_some_and(|o| o.adopted)
    }

    /// Reserves an ID of Tortie's range that a foreign object uses.
    pub(crate) fn reserve(&mut self, id: u32) {
        if id >= self.base {
            self.reserved_ids.insert(id);
        }
    }

    /// Records a Tortie object seen in the kernel; returns true if it is new or changed.
    pub(crate) fn adopt(&mut self, id: u32, content: &Content, stale: bool) -> bool {
        if self.objects.get(&id).is_some_and(|o| o.content.as_ref() == Some(content)) {
            return false;
        }
        // An object that Tortie wrote keeps its target: a changed one is repaired, not reinterpreted.
        if let Some(known) = self.objects.get(&id) {
            self.dirty.extend(known.target);
            self.set_content(id, Some(content.clone()));
        } else {
            let target = self.hops_of_content(content).filter(|h| !h.is_empty()).map(|mut hops| {
                hops.sort_unstable();
                self.intern(&hops)
            });
            self.set_content(id, Some(content.clone()));
            if let Some(o) = self.objects.get_mut(&id) {
                (o.target, o.stale) = (target, stale);
            }
            if let Some(t) = target.and_then(|t| self.target_mut(t))
                && t.object.is_none()
            {
                t.object = Some(id);
            }
        }
        self.unused.push(id);
        true
    }

    fn hops_of_content(&self, content: &Content) -> Option<SmallVec<[Hop; 4]>> {
        match content {
            Content::Single { gateway, ifindex, .. } => {
                Some(SmallVec::from_slice(&[self.hop(*gateway, *ifindex)?]))
            }
            Content::Group(members) => members
                .iter()
                .map(|m| match self.objects.get(m).and_then(|o| o.content.as_ref()) {
                    Some(Content::Single { gateway, ifindex, .. }) => self.hop(*gateway, *ifindex),
                    _ => None,
                })
                .collect(),
            Content::Other => None,
        }
    }

    fn set_content(&mut self, id: u32, content: Option<Content>) {
        let blank = || NexthopObject {
            content: None,
            target: None,
            routes: 0,
            groups: 0,
            adopted: false,
            stale: false,
        };
        let object = self.objects.entry(id).or_insert_with(blank);
        object.adopted |= content.is_some();
        let old = std::mem::replace(&mut object.content, content.clone());
        if let Some(Content::Group(members)) = old {
            for member in members {
                if let Some(m) = self.objects.get_mut(&member) {
                    m.groups = m.groups.saturating_sub(1);
                    self.unused.push(member);
                }
            }
        }
        if let Some(Content::Group(members)) = content {
            for member in members {
                if let Some(m) = self.objects.get_mut(&member) {
                    m.groups += 1;
                }
            }
        }
    }

    /// Removes a Tortie object that the kernel deleted, also from its groups, and groups that are empty then.
    /// Returns the IDs of all removed objects.
    pub(crate) fn removed(&mut self, id: u32) -> SmallVec<[u32; 4]> {
        let mut gone = SmallVec::new();
        let Some(object) = self.objects.get(&id) else { return gone };
        if object.content.is_none() {
            return gone;
        }
        let (groups, target) = (object.groups, object.target);
        gone.push(id);
        self.dirty.extend(target);
        if groups > 0 {
            let holders: Vec<(u32, SmallVec<[u32; 4]>)> = self
                .objects
                .iter()
                .filter_map(|(gid, o)| match &o.content {
                    Some(Content::Group(members)) if members.contains(&id) => Some((*gid, members.clone())),
                    _ => None,
                })
                .collect();
            for (gid, mut members) in holders {
                members.retain(|m| *m != id);
                self.dirty.extend(self.objects.get(&gid).and_then(|o| o.target));
                if members.is_empty() {
                    gone.push(gid);
                    self.set_content(gid, None);
                } else {
                    self.set_content(gid, Some(Content::Group(members)));
                }
            }
        }
        self.set_content(id, None);
        self.unused.extend_from_slice(&gone);
        gone
    }

    /// Returns Tortie's objects that the kernel is assumed to have.
    pub(crate) fn present(&self) -> impl Iterator<Item = (u32, &Content)> {
        self.objects.iter().filter_map(|(id, o)| o.content.as_ref().map(|c| (*id, c)))
    }

    /// Returns true if a Tortie object uses this interface.
    pub(crate) fn uses_device(&self, ifindex: u32) -> bool {
        self.objects
            .values()
            .any(|o| matches!(o.content, Some(Content::Single { ifindex: i, .. }) if i == ifindex))
    }

    /// Allows the deletion of unused objects found at the start.
    pub(crate) fn sweep(&mut self) {
        for (id, object) in &mut self.objects {
            if std::mem::take(&mut object.stale) {
                self.unused.push(*id);
            }
        }
    }

    /// Checks every object again, so that a refused deletion is retried.
    pub(crate) fn recompute(&mut self) {
        self.unused.extend(self.objects.keys());
    }

    /// Returns true if an object was refused since the last retry.
    pub(crate) fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Returns true if the objects of some targets must be written, or were refused.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.has_refusals()
    }

    /// Marks refused targets for a retry.
    pub(crate) fn retry(&mut self) {
        self.dirty.append(&mut self.refused);
    }

    // Planning.

    /// Returns the referenced targets whose objects changed.
    pub(crate) fn take_dirty(&mut self) -> Vec<TargetId> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        dirty.retain(|t| self.target(*t).is_some_and(|t| t.refs > 0));
        dirty
    }

    /// Appends the requests that write the objects of a target, members to `singles` and groups to `groups`.
    pub(crate) fn ensure(
        &mut self,
        id: TargetId,
        onlink: &dyn Fn(IpAddr, u32) -> bool,
        planned: &mut FxHashSet<TargetId>,
        singles: &mut Vec<Request>,
        groups: &mut Vec<Request>,
    ) {
        if !self.enabled || !planned.insert(id) {
            return;
        }
        let Some(t) = self.target(id) else { return };
        let members = t.members.clone();
        let content = match (t.hops.as_ref(), members.is_empty()) {
            ([Hop::Plain { gateway, ifindex }], _) => {
                Content::Single { gateway: *gateway, ifindex: *ifindex, onlink: onlink(*gateway, *ifindex) }
            }
            ([hop @ Hop::Tunnel { remote }], _) if let Some(ifindex) = self.tunnels.of(hop) => {
                Content::Single { gateway: (*remote).into(), ifindex, onlink: true }
            }
            ([hop @ Hop::Vxlan { remote }], _) if let Some(ifindex) = self.tunnels.of(hop) => {
                Content::Single { gateway: *remote, ifindex, onlink: true }
            }
            (_, false) => {
                for member in &members {
                    self.ensure(*member, onlink, planned, singles, groups);
                }
                let mut ids: SmallVec<[u32; 4]> =
                    members.iter().filter_map(|m| self.target(*m).and_then(|t| t.object)).collect();
                if ids.len() < members.len() {
                    return;
                }
                ids.sort_unstable();
                Content::Group(ids)
            }
            _ => {
                self.fail(id, "there is no tunnel device");
                return;
            }
        };
        let (object, put) = match self.target(id).and_then(|t| t.object) {
            Some(object) => {
                let o = self.objects.get(&object);
                let put = if o.is_some_and(|o| o.adopted) { Put::Replace } else { Put::Add };
                if o.and_then(|o| o.content.as_ref()).is_some_and(|c| same(c, &content)) {
                    if let Some(t) = self.target_mut(id) {
                        t.error = None;
                    }
                    return;
                }
                (object, put)
            }
            None => {
                let object = self.allocate();
                self.set_content(object, None);
                if let Some(o) = self.objects.get_mut(&object) {
                    o.target = Some(id);
                }
                if let Some(t) = self.target_mut(id) {
                    t.object = Some(object);
                }
                (object, Put::Add)
            }
        };
        let request = Request::PutNexthop { id: object, content, put };
        if matches!(request, Request::PutNexthop { content: Content::Group(_), .. }) {
            groups.push(request);
        } else {
            singles.push(request);
        }
    }

    fn fail(&mut self, id: TargetId, error: &str) {
        if let Some(t) = self.target_mut(id) {
            t.error = Some(error.into());
            self.refused.push(id);
        }
    }

    /// Returns an unused ID. An ID is reused only after the whole range was used.
    fn allocate(&mut self) -> u32 {
        loop {
            let id = self.next;
            self.next = self.next.checked_add(1).unwrap_or(self.base);
            if !self.objects.contains_key(&id) && !self.reserved_ids.contains(&id) {
                return id;
            }
        }
    }

    /// Plans the deletion of unused objects, groups first.
    pub(crate) fn plan_unused(&mut self) -> Vec<Request> {
        let mut candidates = std::mem::take(&mut self.unused);
        candidates.sort_unstable();
        candidates.dedup();
        let (mut groups, mut singles) = (Vec::new(), Vec::new());
        for id in candidates {
            let Some(o) = self.objects.get(&id) else { continue };
            let wanted =
                o.target.and_then(|t| self.target(t)).is_some_and(|t| t.refs > 0 && t.object == Some(id));
            if wanted || o.stale || o.routes > 0 || o.groups > 0 {
                continue;
            }
            match &o.content {
                None => self.forget(id),
                Some(Content::Group(_)) => groups.push(Request::DeleteNexthop { id }),
                Some(_) => singles.push(Request::DeleteNexthop { id }),
            }
        }
        groups.append(&mut singles);
        groups
    }

    fn forget(&mut self, id: u32) {
        let Some(o) = self.objects.remove(&id) else { return };
        let Some(tid) = o.target else { return };
        if let Some(t) = self.target_mut(tid)
            && t.object == Some(id)
        {
            t.object = None;
            if t.refs == 0 {
                self.drop_target(tid);
            }
        }
    }

    /// Handles the kernel's answer to [`Request::PutNexthop`].
    pub(crate) fn put_done(&mut self, id: u32, content: &Content, put: Put, result: &Result<(), Refusal>) {
        let target = self.objects.get(&id).and_then(|o| o.target);
        match result {
            Ok(()) => {
                self.set_content(id, Some(content.clone()));
                if let Some(t) = target.and_then(|t| self.target_mut(t)) {
                    t.error = None;
                }
            }
            Err(refusal) if refusal.code == libc::EEXIST && put == Put::Add => {
                self.reserved_ids.insert(id);
                self.forget(id);
                self.dirty.extend(target);
            }
            Err(refusal) => {
                if let Some(t) = target {
                    self.fail(t, &refusal.text);
                }
                // After a lost answer the object may exist, so the next request may replace it.
                if let Some(o) = self.objects.get_mut(&id) {
                    o.adopted |= refusal.code == 0;
                }
            }
        }
    }

    /// Handles the kernel's answer to [`Request::DeleteNexthop`].
    pub(crate) fn delete_done(&mut self, id: u32, result: &Result<(), Refusal>) {
        match result {
            Err(refusal) if refusal.code != libc::ENOENT => {}
            _ => {
                self.set_content(id, None);
                self.forget(id);
            }
        }
    }
}

/// Compares without the onlink flag of a gateway, which may have been needed when the object was written.
fn same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Content::Single { gateway: g, ifindex: i, .. }, Content::Single { gateway: h, ifindex: j, .. }) => {
            g == h && i == j
        }
        _ => a == b,
    }
}
