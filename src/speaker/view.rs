//! View of the speaker thread's state for queries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tortie_bgp::bfd::{Endpoint, Status};
use tortie_bgp::{
    ConnId, ExportTrace, ImportTrace, PeerId, PeerStatus, RangeStatus, RouteInfo, RouteQuery, Speaker, Totals,
};
use tortie_net::Cidr;

use tortie_engine::routing::DynamicPeer;

use crate::speaker::bfd::{BfdView, Bindings};
use crate::speaker::connections::Connections;
use crate::speaker::feed::Feed;
use crate::speaker::intent::IntentInForce;
use crate::speaker::options::SpeakerOptions;
use crate::speaker::peers::{PeerTable, RangeView, Ranges};
use crate::speaker::rehearsal::Rehearsal;
use crate::speaker::sockets::connect::Failures;
use crate::speaker::sockets::listen::Listeners;
use tortie_metrics::Histogram;

/// Counters of the thread since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Connections accepted from listeners.
    pub accepted: u64,
    /// Accepted connections that were closed because no peer has the address.
    pub refused_address: u64,
    /// Accepted connections that were closed because the peer fails repeatedly, or is being removed.
    pub refused_damped: u64,
    /// Accepted connections that were closed because the peer's TCP MD5 key could not be enforced.
    pub refused_key: u64,
    /// Accepted connections that were closed because the TTL of their SYN was too low (RFC 5082).
    pub refused_ttl: u64,
    /// Octets read.
    pub bytes_in: u64,
    /// Octets written.
    pub bytes_out: u64,
}

/// Metrics of the thread since its start.
#[derive(Debug, Clone)]
pub struct SpeakerMetrics {
    /// Time from the iteration in which a best path changed to the kernel's acknowledgement of its route.
    pub convergence: Histogram,
    /// Number of prefixes per batch for the kernel.
    pub batches: Histogram,
    /// Duration of an iteration of the thread, during which all other events wait.
    pub iterations: Histogram,
    /// Duration of a read from a peer (at most 64 KiB), including parsing, import and best-path selection.
    pub reads: Histogram,
}

/// View of the speaker's state for [`ToSpeaker::Query`](super::ToSpeaker::Query).
pub struct SpeakerView<'a> {
    pub(in crate::speaker) core: Option<&'a Speaker>,
    pub(in crate::speaker) peers: &'a PeerTable,
    pub(in crate::speaker) ranges: &'a Ranges,
    pub(in crate::speaker) listeners: &'a Listeners,
    pub(in crate::speaker) connections: &'a Connections,
    pub(in crate::speaker) bfd: &'a Bindings,
    pub(in crate::speaker) feed: &'a Feed,
    pub(in crate::speaker) intent: &'a IntentInForce,
    pub(in crate::speaker) options: &'a SpeakerOptions,
    pub(in crate::speaker) iterations: &'a Histogram,
    pub(in crate::speaker) now: Instant,
}

impl SpeakerView<'_> {
    /// Returns all peers, sorted by name; empty before the first intent.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let mut peers: Vec<PeerStatus> = self.core.map(|c| c.peers(self.now).collect()).unwrap_or_default();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers
    }

    /// Returns the dynamic peers.
    #[must_use]
    pub fn dynamic(&self) -> Vec<DynamicPeer> {
        self.ranges.peers().cloned().collect()
    }

    /// Returns all ranges.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeView> {
        let Some(core) = self.core else { return Vec::new() };
        let named =
            |status: RangeStatus| Some(RangeView { name: self.ranges.name(status.id)?.clone(), status });
        core.ranges(self.now).filter_map(named).collect()
    }

    /// Returns the peer of this name.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<PeerStatus> {
        self.core?.peer(self.peers.id(name)?, self.now)
    }

    /// Returns the BFD session of the peer of this name; `None` if BFD is not enabled for it, or its path is
    /// not known yet.
    #[must_use]
    pub fn bfd_of(&self, name: &str) -> Option<(Endpoint, Status)> {
        self.bfd.status(self.peers.id(name)?)
    }

    /// Returns the BFD sessions of all peers, by peer name.
    #[must_use]
    pub fn bfd_sessions(&self) -> BTreeMap<Arc<str>, (Endpoint, Status)> {
        let named = |(id, session)| Some((self.peers.name(id)?.clone(), session));
        self.bfd.statuses().into_iter().filter_map(named).collect()
    }

    /// Returns all BFD sessions; `None` if no peer ever had BFD enabled.
    #[must_use]
    pub fn bfd(&self) -> Option<Arc<BfdView>> {
        self.bfd.view()
    }

    /// True if the peer of this name has received all routes: nothing is queued, and its TCP has acknowledged
    /// every octet.
    #[must_use]
    pub fn has_taken_all(&self, name: &str) -> bool {
        let Some(conn) = self.peer(name).filter(|p| p.up_to_date).and_then(|p| p.conn) else { return false };
        self.connections.is_acknowledged(conn)
    }

    /// Returns the number of changed best paths that wait for the kernel thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.core.map_or(0, Speaker::pending_best)
    }

    /// Returns the metrics since the start.
    #[must_use]
    pub fn metrics(&self) -> SpeakerMetrics {
        let feed = self.feed.metrics();
        SpeakerMetrics {
            convergence: feed.convergence.clone(),
            batches: feed.batches.clone(),
            iterations: self.iterations.clone(),
            reads: self.connections.reads().clone(),
        }
    }

    /// Returns the failed connection attempts to the peer of this name by reason, since it was added.
    #[must_use]
    pub fn dial_failures(&self, name: &str) -> Option<[(&'static str, u64); Failures::REASONS.len()]> {
        Some(self.peers.failures(self.peers.id(name)?)?.by_reason())
    }

    /// Returns the smoothed round-trip time of a connection, measured by TCP.
    #[must_use]
    pub fn round_trip(&self, conn: ConnId) -> Option<std::time::Duration> {
        self.connections.round_trip(conn)
    }

    /// Returns the id of the peer of this name, for [`RouteQuery`].
    #[must_use]
    pub fn peer_id(&self, name: &str) -> Option<PeerId> {
        self.peers.id(name)
    }

    /// Returns the name of a peer.
    #[must_use]
    pub fn peer_name(&self, id: PeerId) -> Option<Arc<str>> {
        self.peers.name(id).cloned()
    }

    /// Returns up to `max` prefixes after `after`, in order.
    #[must_use]
    pub fn routes(&self, query: RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        self.core.map(|c| c.routes(&query, after, max)).unwrap_or_default()
    }

    /// Returns a part of the routes, unordered; see [`Speaker::scan`](tortie_bgp::Speaker::scan).
    #[must_use]
    pub fn walk(
        &self,
        query: RouteQuery,
        from: u32,
        slots: u32,
        max: usize,
    ) -> (Vec<RouteInfo>, Option<u32>) {
        self.core.map(|c| c.scan(&query, from, slots, max)).unwrap_or_default()
    }

    /// Explains the export of a prefix to the peer of this name; `None` for an unknown peer.
    #[must_use]
    pub fn explain_export(&self, name: &str, prefix: Cidr) -> Option<ExportTrace> {
        Some(self.core?.explain_export(prefix, self.peers.id(name)?))
    }

    /// Explains the import of a prefix from the peer of this name; `None` if the peer has not announced it.
    #[must_use]
    pub fn explain_import(&self, name: &str, prefix: Cidr) -> Option<ImportTrace> {
        self.core?.explain_import(prefix, self.peers.id(name)?)
    }

    /// Returns sums over all tables.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.core.map(Speaker::totals).unwrap_or_default()
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let accepts = self.listeners.counters();
        let (bytes_in, bytes_out) = self.connections.octets();
        Counters {
            accepted: accepts.accepted,
            refused_address: accepts.refused_address,
            refused_damped: accepts.refused_damped,
            refused_key: accepts.refused_key,
            refused_ttl: accepts.refused_ttl,
            bytes_in,
            bytes_out,
        }
    }

    /// Copies the speaker for a rehearsal on another thread; `None` before the first intent, or if there are
    /// so many routes that copying would delay the sessions.
    #[must_use]
    pub fn rehearsal(&self) -> Option<Rehearsal> {
        let (core, given) = (self.core?, self.intent.given()?);
        let classes = self.intent.classes();
        Rehearsal::of_running(core, self.peers, self.ranges, given, classes, self.options, self.now)
    }

    /// Returns the number of TCP connections, including those being established or closed.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}
