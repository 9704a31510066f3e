//! The routes: one table for each family, and what its entries refer to.
//!
//! Here are prefixes with their paths ([`entry`], [`table`]) and what follows when one changes ([`changes`]),
//! attribute sets stored once ([`attr_table`]), next hops ([`next_hops`]), the peers as the table sees them ([`source`]), import
//! checks ([`import`]), the decision process ([`decision`], applied by [`best_path`]), and the reevaluation that follows
//! changes which concern many prefixes ([`reevaluate`]). Sessions are not here, nor what is announced to whom
//! ([`adj_rib_out`](crate::adj_rib_out)).
//!
//! A received prefix goes `import` -> [`table::Table::announce`] -> `decision`. When its best path changed, its slot is
//! appended to the table's log (which the update groups read) and marked dirty (which `take_best` drains). The
//! Adj-RIB-In of a peer is the table as far as its paths carry that peer's number; the Loc-RIB is the first path of each
//! entry. A path belongs to a generation of its session: when a session ends the number rises, and what carries
//! another number is stale or gone without anybody having touched it; a reevaluation removes it later, in slices.

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

/// State that the tables and update groups of both families share.
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
    /// Selection is deferred after our restart (RFC 4724 4.1): learned routes are neither announced nor given out.
    pub(crate) deferring: bool,
    /// `Input::LocalReady` came.
    pub(crate) local_ready: bool,
    /// Some peer may be sent learned routes: an eBGP peer or a reflector client is configured.
    pub(crate) transit: bool,
    /// By family.
    pub(crate) changes: [RouteChanges; 2],
    /// Cluster ids of our reflector clients (RFC 4456), sorted.
    pub(crate) clusters: Vec<u32>,
}

impl Shared {
    /// No routes, and nothing deferred.
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

    /// Counters of the announcements and withdrawals of this family.
    pub(crate) fn changes_of(&mut self, family: Family) -> &mut RouteChanges {
        let [v4, v6] = &mut self.changes;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    /// One of these clusters is ours.
    fn is_own_cluster(&self, clusters: &[u32]) -> bool {
        clusters.iter().any(|c| self.clusters.binary_search(c).is_ok())
    }
}
