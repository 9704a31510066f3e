//! RIBs of both families with their shared state. This module knows routes, but no sessions.
//!
//! A [`family::FamilyRib`] is one table with the update groups that follow it. [`RibSet`] has one per family
//! and dispatches by family: changes of routes ([`learn`]), changed best paths ([`best_changes`]), and the
//! state of peers other than their routes ([`sources`]). Long operations run in slices: [`RibSet::work`].

mod best_changes;
pub(crate) mod family;
mod learn;
mod sources;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tortie_net::{Cidr, ScopedAddr};

use crate::adj_rib_out::export::{GroupKey, Representative};
use crate::adj_rib_out::group::Group;
use crate::adj_rib_out::member::Produced;
use crate::api::{Event, GlobalConfig, Multipath, NextHopState, PolicyHandle};
use crate::rib::Shared;
use crate::rib::next_hops::NextHopUpdate;
use crate::rib::reevaluate::Job;
use crate::types::Family;
use family::{FamilyRib, Previous};

pub(crate) use learn::Learned;

/// RIBs of both families; see the module.
#[derive(Debug, Clone)]
pub(crate) struct RibSet {
    shared: Shared,
    v4: FamilyRib<u32>,
    v6: FamilyRib<u128>,
    /// Peers for which update groups have produced output.
    woken: Vec<u32>,
    /// Number of configured peers and ranges that may be sent learned routes.
    transit_peers: usize,
    /// Cluster ids with the number of reflector clients in each.
    clusters: BTreeMap<u32, usize>,
    /// [`Event::BestChanged`] was reported, and some changes have not been taken since.
    best_notified: bool,
    /// Number of treat-as-withdraw, attribute discard and session reset errors (RFC 7606).
    update_errors: [u64; 3],
}

impl RibSet {
    /// Creates empty RIBs.
    pub(crate) fn new(global: &GlobalConfig, policy: PolicyHandle) -> Self {
        let key = global.hash_key;
        let mut shared = Shared::new(global.asn, global.router_id.0, policy, key);
        shared.deferring = global.restarting.is_some();
        shared.multipath = global.multipath;
        Self {
            shared,
            v4: FamilyRib::new(key),
            v6: FamilyRib::new(key),
            woken: Vec::new(),
            transit_peers: 0,
            clusters: BTreeMap::new(),
            best_notified: false,
            update_errors: [0; 3],
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn v4(&self) -> &FamilyRib<u32> {
        &self.v4
    }

    pub(crate) fn v6(&self) -> &FamilyRib<u128> {
        &self.v6
    }

    pub(crate) fn update_errors(&self) -> [u64; 3] {
        self.update_errors
    }

    /// Requests that every slot in use be visited for a job.
    pub(crate) fn request(&mut self, job: Job) {
        self.v4.request(job);
        self.v6.request(job);
    }

    pub(crate) fn request_family(&mut self, family: Family, job: Job) {
        match family {
            Family::Ipv4Unicast => self.v4.request(job),
            Family::Ipv6Unicast => self.v6.request(job),
        }
    }

    pub(crate) fn set_multipath(&mut self, multipath: Multipath) {
        if std::mem::replace(&mut self.shared.multipath, multipath) != multipath {
            self.request(Job::Decide);
        }
    }

    /// Sets the local AS and BGP identifier.
    pub(crate) fn set_identity(&mut self, asn: u32, router_id: u32) {
        self.shared.asn = asn;
        self.shared.router_id = router_id;
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyHandle) {
        self.shared.policy = policy;
        self.evaluate_all();
    }

    /// Requests that import and export policy be evaluated again for all routes.
    pub(crate) fn evaluate_all(&mut self) {
        self.v4.reevaluation.reimport_all = true;
        self.v6.reevaluation.reimport_all = true;
        for job in [Job::Reimport, Job::Reexport] {
            self.request(job);
        }
    }

    /// Sets a policy whose results differ for these prefixes only. Returns the families that contain some of
    /// them.
    pub(crate) fn set_policy_about(
        &mut self,
        policy: PolicyHandle,
        prefixes: &[Cidr],
    ) -> impl Iterator<Item = Family> + use<> {
        self.shared.policy = policy;
        let (mut v4, mut v6) = (false, false);
        for prefix in prefixes {
            match prefix.addr() {
                IpAddr::V4(a) => {
                    v4 |= self.v4.evaluate_prefix(&mut self.shared, (u32::from(a), prefix.len()))
                }
                IpAddr::V6(a) => {
                    v6 |= self.v6.evaluate_prefix(&mut self.shared, (u128::from(a), prefix.len()))
                }
            }
        }
        Family::ALL
            .into_iter()
            .zip([v4, v6])
            .filter(|(_, is_evaluated)| *is_evaluated)
            .map(|(family, _)| family)
    }

    pub(crate) fn set_next_hop(&mut self, address: ScopedAddr, state: NextHopState) {
        let update = self.shared.next_hops.set(address, state);
        self.v4.table.review_held(&mut self.shared);
        self.v6.table.review_held(&mut self.shared);
        match update {
            NextHopUpdate::Same => {}
            NextHopUpdate::Slots(slots) => {
                for (family, slot) in slots {
                    match family {
                        Family::Ipv4Unicast => self.v4.table.review(&mut self.shared, slot),
                        Family::Ipv6Unicast => self.v6.table.review(&mut self.shared, slot),
                    }
                }
            }
            NextHopUpdate::All => self.request(Job::NextHops),
        }
    }

    pub(crate) fn set_next_hop_within(&mut self, address: ScopedAddr, within: Vec<(Cidr, NextHopState)>) {
        for prefix in self.shared.next_hops.set_within(address, within) {
            let len = prefix.len();
            match prefix.addr() {
                IpAddr::V4(addr) => self.v4.review_prefix(&mut self.shared, (addr.into(), len)),
                IpAddr::V6(addr) => self.v6.review_prefix(&mut self.shared, (addr.into(), len)),
            }
        }
    }

    /// Returns true if a next hop is not resolved yet. A route through it would look unreachable.
    pub(crate) fn has_unresolved_next_hops(&self) -> bool {
        self.shared.next_hops.unanswered() > 0
            || self.v4.reevaluation.has(Job::NextHops)
            || self.v6.reevaluation.has(Job::NextHops)
    }

    /// Records that all local routes have been passed in. Returns false if that was known before.
    pub(crate) fn set_local_ready(&mut self) -> bool {
        if self.shared.local_ready {
            return false;
        }
        self.shared.local_ready = true;
        self.v4.end_of_rib_after = Some(self.v4.table.log.head());
        self.v6.end_of_rib_after = Some(self.v6.table.log.head());
        true
    }

    /// Ends the deferral of route selection (RFC 4724 4.1).
    pub(crate) fn end_deferral(&mut self) {
        if !self.shared.deferring {
            return;
        }
        self.shared.deferring = false;
        if self.shared.local_ready && self.shared.transit {
            // End-of-RIB follows after the reevaluation has passed the deferred routes to the update groups.
            self.v4.end_of_rib_after = None;
            self.v6.end_of_rib_after = None;
        }
        self.request(Job::Reexport);
    }
}

/// Update groups.
impl RibSet {
    pub(crate) fn group(&self, family: Family, id: u32) -> Option<&Group> {
        match family {
            Family::Ipv4Unicast => self.v4.group(id),
            Family::Ipv6Unicast => self.v6.group(id),
        }
    }

    /// Adds a peer to the group with this key. Returns the group's number.
    pub(crate) fn join(
        &mut self,
        key: GroupKey,
        representative: Representative,
        peer: u32,
        previous: Option<Previous>,
    ) -> u32 {
        match key.family {
            Family::Ipv4Unicast => self.v4.join(key, representative, peer, previous),
            Family::Ipv6Unicast => self.v6.join(key, representative, peer, previous),
        }
    }

    /// Removes a peer from groups. Returns the routes sent through each.
    pub(crate) fn leave(&mut self, family: Family, groups: &[u32], peer: u32) -> Vec<Option<Previous>> {
        let leave = |group: &u32| match family {
            Family::Ipv4Unicast => self.v4.leave(&mut self.shared, *group, peer),
            Family::Ipv6Unicast => self.v6.leave(&mut self.shared, *group, peer),
        };
        let previous = groups.iter().map(leave).collect();
        self.v4.retry_sweep();
        self.v6.retry_sweep();
        previous
    }

    /// Schedules all routes of a group for a peer again.
    pub(crate) fn resend(&mut self, family: Family, group: u32, peer: u32) {
        match family {
            Family::Ipv4Unicast => self.v4.resend(group, peer),
            Family::Ipv6Unicast => self.v6.resend(group, peer),
        }
    }

    /// Returns the next output for a peer in these groups; see [`FamilyRib::produce`].
    #[inline]
    pub(crate) fn produce(&mut self, family: Family, groups: &[u32], peer: u32) -> Produced {
        match family {
            Family::Ipv4Unicast => self.v4.produce(&mut self.shared, groups, peer, &mut self.woken),
            Family::Ipv6Unicast => self.v6.produce(&mut self.shared, groups, peer, &mut self.woken),
        }
    }

    /// Takes the peers for which update groups have produced output.
    #[inline]
    pub(crate) fn take_woken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.woken)
    }
}

/// Long operations, in slices.
impl RibSet {
    pub(crate) fn has_work(&self) -> bool {
        self.v4.has_work(&self.shared) || self.v6.has_work(&self.shared)
    }

    /// Does a slice of the queued work and returns the completed jobs. `tick`: the embedder has no more
    /// input. Only then does a reevaluation take a step, so that it does not delay the input of hundreds of
    /// peers, and groups follow the tables, so that a prefix announced by several peers at once is sent once.
    pub(crate) fn work(&mut self, tick: bool) -> Vec<(Family, Job)> {
        let mut done = Vec::new();
        let (shared, woken) = (&mut self.shared, &mut self.woken);
        if self.v4.has_work(shared) {
            self.v4.work(shared, tick, woken, |job| done.push((Family::Ipv4Unicast, job)));
        }
        if self.v6.has_work(shared) {
            self.v6.work(shared, tick, woken, |job| done.push((Family::Ipv6Unicast, job)));
        }
        for (family, job) in &done {
            self.finish(*family, *job);
        }
        done
    }

    fn finish(&mut self, family: Family, job: Job) {
        match job {
            Job::Purge => self.purged(family),
            Job::NextHops => {
                if !self.v4.reevaluation.has(Job::NextHops) && !self.v6.reevaluation.has(Job::NextHops) {
                    self.shared.next_hops.clean();
                }
            }
            Job::Reimport => {
                for (_, source) in self.shared.sources.iter_mut() {
                    source.family_mut(family).reimport = false;
                }
            }
            Job::Reexport | Job::Decide => {}
        }
    }

    /// Reports next hops to track and next hops that no path uses any more.
    pub(crate) fn report_next_hops(&mut self, events: &mut VecDeque<Event>) {
        for address in self.shared.next_hops.track.drain(..) {
            events.push_back(Event::TrackNextHop(address));
        }
        self.shared.next_hops.collect(|address| events.push_back(Event::UntrackNextHop(address)));
    }
}
