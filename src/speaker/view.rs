//! The speaker thread at one moment, for queries.

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
    /// Of these, closed because no peer has that address.
    pub refused_address: u64,
    /// Of these, closed because the peer fails again and again, or is removed.
    pub refused_damped: u64,
    /// Of these, closed because the peer's TCP MD5 key could not be enforced.
    pub refused_key: u64,
    /// Of these, closed because their SYN came from too far away (RFC 5082).
    pub refused_ttl: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
}

/// Metrics of the thread since its start.
#[derive(Debug, Clone)]
pub struct SpeakerMetrics {
    /// From the turn in which a best path changed to the kernel's acknowledgement of its route.
    pub convergence: Histogram,
    /// Prefixes in a batch for the kernel.
    pub batches: Histogram,
    /// Duration of a turn of the thread, for which anything else had to wait.
    pub iterations: Histogram,
    /// Duration of one read from a peer (at most 64 KiB): parsed, judged, best paths chosen.
    pub reads: Histogram,
}

/// The speaker at one moment, for [`ToSpeaker::Query`](super::ToSpeaker::Query).
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
    /// All peers, sorted by name; none before the first intent.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let mut peers: Vec<PeerStatus> = self.core.map(|c| c.peers(self.now).collect()).unwrap_or_default();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers
    }

    /// The peers that came from ranges.
    #[must_use]
    pub fn dynamic(&self) -> Vec<DynamicPeer> {
        self.ranges.peers().cloned().collect()
    }

    /// All ranges.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeView> {
        let Some(core) = self.core else { return Vec::new() };
        let named =
            |status: RangeStatus| Some(RangeView { name: self.ranges.name(status.id)?.clone(), status });
        core.ranges(self.now).filter_map(named).collect()
    }

    /// The peer of this name.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<PeerStatus> {
        self.core?.peer(self.peers.id(name)?, self.now)
    }

    /// The BFD session of the peer of this name; `None`: it wants none, or its path is not known yet.
    #[must_use]
    pub fn bfd_of(&self, name: &str) -> Option<(Endpoint, Status)> {
        self.bfd.status(self.peers.id(name)?)
    }

    /// The BFD sessions of all peers that have one, by the peer's name.
    #[must_use]
    pub fn bfd_sessions(&self) -> BTreeMap<Arc<str>, (Endpoint, Status)> {
        let named = |(id, session)| Some((self.peers.name(id)?.clone(), session));
        self.bfd.statuses().into_iter().filter_map(named).collect()
    }

    /// All BFD sessions; `None`: no peer ever wanted one.
    #[must_use]
    pub fn bfd(&self) -> Option<Arc<BfdView>> {
        self.bfd.view()
    }

    /// `true`: the peer of this name has all that there is for it; nothing waits here, and its TCP has acknowledged every
    /// octet.
    #[must_use]
    pub fn has_taken_all(&self, name: &str) -> bool {
        let Some(conn) = self.peer(name).filter(|p| p.up_to_date).and_then(|p| p.conn) else { return false };
        self.connections.is_acknowledged(conn)
    }

    /// Changed best paths that wait for the kernel thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.core.map_or(0, Speaker::pending_best)
    }

    /// Metrics since the start.
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

    /// Attempts to connect to the peer of this name that failed, by reason, since it was configured as it is.
    #[must_use]
    pub fn dial_failures(&self, name: &str) -> Option<[(&'static str, u64); Failures::REASONS.len()]> {
        Some(self.peers.failures(self.peers.id(name)?)?.by_reason())
    }

    /// The smoothed round-trip time of a session's connection, as TCP has it.
    #[must_use]
    pub fn round_trip(&self, conn: ConnId) -> Option<std::time::Duration> {
        self.connections.round_trip(conn)
    }

    /// The id of the peer of this name, for [`RouteQuery`].
    #[must_use]
    pub fn peer_id(&self, name: &str) -> Option<PeerId> {
        self.peers.id(name)
    }

    /// The name of a peer.
    #[must_use]
    pub fn peer_name(&self, id: PeerId) -> Option<Arc<str>> {
        self.peers.name(id).cloned()
    }

    /// Up to `max` prefixes after `after`, in order.
    #[must_use]
    pub fn routes(&self, query: RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        self.core.map(|c| c.routes(&query, after, max)).unwrap_or_default()
    }

    /// A part of the routes, in no order; see [`Speaker::scan`](tortie_bgp::Speaker::scan).
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

    /// Why a prefix is announced to the peer of this name or not; `None` for an unknown peer.
    #[must_use]
    pub fn explain_export(&self, name: &str, prefix: Cidr) -> Option<ExportTrace> {
        Some(self.core?.explain_export(prefix, self.peers.id(name)?))
    }

    /// Import policy on the route for a prefix from the peer of this name; `None` when it sent none.
    #[must_use]
    pub fn explain_import(&self, name: &str, prefix: Cidr) -> Option<ImportTrace> {
        self.core?.explain_import(prefix, self.peers.id(name)?)
    }

    /// Sums over all tables.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.core.map(Speaker::totals).unwrap_or_default()
    }

    /// Counters since the start.
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

    /// A copy in which another intent can be tried, on another thread; `None`: there is no intent yet, or there are too many routes
    /// to copy while sessions wait.
    #[must_use]
    pub fn rehearsal(&self) -> Option<Rehearsal> {
        let (core, given) = (self.core?, self.intent.given()?);
        let classes = self.intent.classes();
        Rehearsal::of_running(core, self.peers, self.ranges, given, classes, self.options, self.now)
    }

    /// TCP connections, those included that are being made or closed.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}
