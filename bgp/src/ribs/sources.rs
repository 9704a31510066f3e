//! State of peers in the tables other than their routes: eligibility for learned routes, cluster, local
//! addresses, and routes kept after a session.

use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use super::RibSet;
use crate::api::PeerConfig;
use crate::rib::reevaluate::Job;
use crate::rib::source::{Keep, Source};
use crate::types::Family;

impl RibSet {
    pub(crate) fn source(&self, peer: u32) -> Option<&Source> {
        self.shared.sources.get(peer)
    }

    pub(crate) fn source_mut(&mut self, peer: u32) -> Option<&mut Source> {
        self.shared.sources.get_mut(peer)
    }

    /// Returns the number of peers with paths in the tables, removed ones included.
    pub(crate) fn source_count(&self) -> usize {
        self.shared.sources.len()
    }

    pub(crate) fn insert_source(&mut self, source: Source) -> u32 {
        self.shared.sources.insert(source)
    }

    /// Removes a peer that is no longer configured. `had_session`: it may have routes in the tables.
    pub(crate) fn remove_source(&mut self, peer: u32, had_session: bool) {
        if !had_session {
            self.shared.sources.remove(peer);
            return;
        }
        if let Some(source) = self.shared.sources.get_mut(peer) {
            source.removed = true;
        }
        for family in Family::ALL {
            // Routes kept from an earlier session are removed too.
            if let Some(source) = self.shared.sources.get_mut(peer) {
                source.family_mut(family).end(Keep::Nothing);
            }
            self.purge(peer, family);
        }
    }

    /// Counts a peer or range with this configuration as present (`add`) or removed. `local_asn`: our AS
    /// towards it.
    pub(crate) fn count_transit(&mut self, config: &PeerConfig, local_asn: u32, add: bool) {
        if config.asn != local_asn || config.reflector_client.is_some() {
            self.transit_peers =
                if add { self.transit_peers + 1 } else { self.transit_peers.saturating_sub(1) };
        }
        self.shared.transit = self.transit_peers > 0;
    }

    /// Resets the count of peers that may be sent learned routes.
    pub(crate) fn clear_transit(&mut self) {
        self.transit_peers = 0;
    }

    pub(crate) fn set_client(&mut self, peer: u32, client: Option<u32>) {
        let Some(source) = self.shared.sources.get_mut(peer) else { return };
        let old = std::mem::replace(&mut source.client, client);
        if old != client {
            source.reflection = source.reflection.wrapping_add(1);
            self.change_cluster(old, client);
        }
    }

    /// Records that a peer or range changed its cluster. If the set of our cluster ids changes, so does the
    /// loop check (RFC 4456 8), and iBGP routes are imported again.
    pub(crate) fn change_cluster(&mut self, old: Option<u32>, new: Option<u32>) {
        if old == new {
            return;
        }
        if let Some(cluster) = old
            && let Some(count) = self.clusters.get_mut(&cluster)
        {
            *count -= 1;
            if *count == 0 {
                self.clusters.remove(&cluster);
            }
        }
        if let Some(cluster) = new {
            *self.clusters.entry(cluster).or_insert(0) += 1;
        }
        if self.shared.clusters.iter().eq(self.clusters.keys()) {
            return;
        }
        self.shared.clusters = self.clusters.keys().copied().collect();
        for family in Family::ALL {
            let mut any = false;
            // Only iBGP routes have a CLUSTER_LIST.
            for (_, source) in self.shared.sources.iter_mut().filter(|(_, s)| !s.ebgp()) {
                let routes = source.family_mut(family);
                let has_routes = routes.current.received + routes.stale.received > 0;
                routes.reimport |= has_routes;
                any |= has_routes;
            }
            if any {
                self.request_family(family, Job::Reimport);
            }
        }
    }

    /// Sets the local addresses towards an established peer. Returns true if they changed.
    pub(crate) fn set_own_addresses(&mut self, peer: u32, own: SmallVec<[ScopedAddr; 3]>) -> bool {
        let Some(source) = self.shared.sources.get_mut(peer) else { return false };
        std::mem::replace(&mut source.own, own) != source.own
    }

    /// Records BGP identifier and AS of an established peer. `keeps`: routes of an earlier session are still
    /// present.
    pub(crate) fn set_identity_of(&mut self, peer: u32, (router_id, asn): (u32, u32), keeps: bool) {
        let Some(source) = self.shared.sources.get_mut(peer) else { return };
        let renamed = std::mem::replace(&mut source.router_id, router_id) != router_id;
        if renamed {
            source.reflection = source.reflection.wrapping_add(1);
        }
        source.asn = asn;
        if renamed && keeps {
            // Kept routes that are announced again unchanged would otherwise keep the result of the old
            // identifier (RFC 4271 9.1.2.2, RFC 4456 8).
            for job in [Job::Decide, Job::Reexport] {
                self.request(job);
            }
        }
    }

    /// Requests that import policy be evaluated again for the routes of this peer.
    pub(crate) fn reimport(&mut self, peer: u32) {
        if let Some(source) = self.shared.sources.get_mut(peer) {
            for family in &mut source.families {
                family.reimport = true;
            }
        }
        self.request(Job::Reimport);
    }

    /// Returns the number of routes received in the running session.
    pub(crate) fn received_in_session(&self, peer: u32, family: Family) -> u32 {
        self.shared.sources.get(peer).map_or(0, |s| s.family(family).of_session())
    }

    /// Returns true if some routes of the family are stale.
    pub(crate) fn has_stale(&self, peer: u32, family: Family) -> bool {
        self.shared.sources.get(peer).is_some_and(|s| s.family(family).kept.is_some())
    }

    /// Returns true if routes of this family are stale because of a route refresh (RFC 7313), not of a
    /// restart.
    pub(crate) fn is_refreshing(&self, peer: u32, family: Family) -> bool {
        self.shared.sources.get(peer).is_some_and(|s| s.family(family).refreshing)
    }

    /// Handles the end of a session: invalidates the routes that are not kept. Returns true if some are kept
    /// as stale.
    pub(crate) fn end_session(&mut self, peer: u32, family: Family, keep: Keep) -> bool {
        let Some(source) = self.shared.sources.get_mut(peer) else { return false };
        let ended = source.family_mut(family).end(keep);
        let kept = source.family(family).kept.is_some();
        if ended {
            self.purge(peer, family);
        }
        if ended && kept {
            // Stale routes do not share load with others.
            self.request_family(family, Job::Decide);
        }
        kept
    }

    /// Makes stale routes of this family long-lived stale (RFC 9494).
    pub(crate) fn begin_long_lived(&mut self, peer: u32, family: Family) {
        let Some(source) = self.shared.sources.get_mut(peer) else { return };
        let routes = source.family_mut(family);
        routes.begin_long_lived();
        routes.reimport = true;
        // The reimport adds LLGR_STALE; the purge removes routes with NO_LLGR.
        for job in [Job::Reimport, Job::Purge] {
            self.request_family(family, job);
        }
    }

    /// Removes the stale routes of this family.
    pub(crate) fn drop_stale(&mut self, peer: u32, family: Family) {
        if self.shared.sources.get_mut(peer).is_some_and(|s| s.family_mut(family).drop_stale()) {
            self.purge(peer, family);
        }
    }

    /// Requests the removal of invalid paths.
    fn purge(&mut self, peer: u32, family: Family) {
        // Generations are numbers of eight bits, so the paths of old ones have to be removed before the
        // number wraps.
        let many = self.shared.sources.get(peer).is_some_and(|s| s.family(family).unswept >= 200);
        self.request_family(family, Job::Purge);
        if many {
            match family {
                Family::Ipv4Unicast => self.v4.visit_all(&mut self.shared),
                Family::Ipv6Unicast => self.v6.visit_all(&mut self.shared),
            }
            self.purged(family);
        }
    }

    /// Handles a completed purge: frees removed peers without paths.
    pub(super) fn purged(&mut self, family: Family) {
        let mut gone = Vec::new();
        for (number, source) in self.shared.sources.iter_mut() {
            source.family_mut(family).unswept = 0;
            if source.removed && source.families.iter().all(|f| f.unswept == 0) {
                gone.push(number);
            }
        }
        for number in gone {
            self.shared.sources.remove(number);
        }
    }
}
