//! Routing information base: one table per family, and the data that its entries refer to.
//!
//! Contents: prefixes with their paths ([`entry`], [`table`]), processing of changes ([`changes`]), interned
//! attribute sets ([`attr_table`]), next hops ([`next_hops`]), peers as sources of paths ([`source`]), import
//! checks ([`import`]), the decision process ([`decision`], applied by [`best_path`]), and reevaluation after
//! changes that affect many prefixes ([`reevaluate`]). Sessions are elsewhere, and so are announcements
//! ([`adj_rib_out`](crate::adj_rib_out)).
//!
//! A received prefix goes `import` -> [`table::Table::announce`] -> `decision`. When its best path changes,
//! its slot is appended to the log of the table (read by the update groups) and queued (drained by
//! `take_best`). The Adj-RIB-In of a peer is the set of paths with its source number; the Loc-RIB is the
//! first path of each entry. A path belongs to a generation of its session. The end of a session increments
//! the generation, which makes all older paths stale or invalid without touching them; a reevaluation removes
//! them later, in slices.

pub(crate) mod attr_table;
pub(crate) mod best_path;
pub(crate) mod change_log;
mod changes;
pub(crate) mod decision;
pub(crate) mod entry;
pub(crate) mod import;
pub(crate) mod index;
pub(crate) mod next_hops;
pub(crate) mod pool;
pub(crate) mod reevaluate;
pub(crate) mod source;
pub(crate) mod table;
#[cfg(test)]
mod tests;

use tortie_net::HashKey;

use crate::api::{PolicyHandle, RouteChanges};
use crate::types::Family;

/// State shared by the tables and update groups of both families.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) attrs: attr_table::AttrTable,
    pub(crate) next_hops: next_hops::NextHopTable,
    pub(crate) sources: source::Sources,
    pub(crate) reasons: import::Reasons,
    pub(crate) policy: PolicyHandle,
    pub(crate) asn: u32,
    pub(crate) router_id: u32,
    pub(crate) multipath: crate::api::Multipath,
    /// True while route selection is deferred after our restart (RFC 4724 4.1): learned routes are neither
    /// announced nor reported.
    pub(crate) deferring: bool,
    /// True after `Input::LocalReady`.
    pub(crate) local_ready: bool,
    /// True if learned routes may be announced: an eBGP peer or a reflector client is configured.
    pub(crate) transit: bool,
    /// Counters of announcements and withdrawals, by family.
    pub(crate) changes: [RouteChanges; 2],
    /// Cluster ids of our reflector clients (RFC 4456), sorted.
    pub(crate) clusters: Vec<u32>,
}

impl Shared {
    /// Creates the state without routes and without deferral.
    pub(crate) fn new(asn: u32, router_id: u32, policy: PolicyHandle, key: HashKey) -> Self {
        Self {
            attrs: attr_table::AttrTable::new(key),
            next_hops: next_hops::NextHopTable::new(key),
            sources: source::Sources::default(),
            reasons: import::Reasons::default(),
            policy,
            asn,
            router_id,
            multipath: crate::api::Multipath::default(),
            deferring: false,
            local_ready: false,
            transit: false,
            changes: [RouteChanges::default(); 2],
            clusters: Vec::new(),
        }
    }

    /// Returns the counters of announcements and withdrawals of this family.
    pub(crate) fn changes_of(&mut self, family: Family) -> &mut RouteChanges {
        let [v4, v6] = &mut self.changes;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    /// Returns true if the list contains a cluster id of this speaker.
    fn is_own_cluster(&self, clusters: &[u32]) -> bool {
        clusters.iter().any(|c| self.clusters.binary_search(c).is_ok())
    }
}
