//! The core as its readers see it: what a query gets on the core's thread.
//!
//! What it does: names everything that the API, metrics and explanations read. What it does not: change anything; and no
//! field of the core is read outside of this room in another way.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_net::Cidr;

use crate::agent::core::Core;
use crate::agent::core::counters::CoreCounters;
use crate::agent::core::enforcement::Enforcement;
use crate::agent::core::object_counts::ObjectCounts;
use crate::agent::core::observed_state::GcTotals;
use crate::agent::core::observed_state::PoolUsages;
use crate::agent::core::peer_record::PeerRecord;
use crate::agent::core::recorder::Recorder;
use crate::agent::core::snapshot::blocks;
use crate::agent::core::snapshot::exclusions;
use crate::agent::core::snapshot::{self, CoreSnapshot};
use crate::api::policy::PolicyStatus;
use crate::api::problem::Problem;
use tortie_engine::ipam::Exclusions;
use tortie_engine::model::{Freeze, Model};
use tortie_engine::routing::{DynamicPeer, LearnedPath, NodeOptions, RoutingIntent};

/// Adds to a snapshot what the process knows and the core does not.
type Complete<'a> = &'a dyn Fn(&mut CoreSnapshot);

/// A view of the core at one moment.
#[derive(Clone, Copy)]
pub(in crate::agent) struct CoreView<'a> {
    core: &'a Core,
    complete: Complete<'a>,
}

impl<'a> CoreView<'a> {
    /// A view of the core alone.
    pub(in crate::agent) fn of(core: &'a Core) -> Self {
        Self::new(core, &|_| ())
    }

    /// `complete` adds to a snapshot what the process knows and the core does not: the store's name, problems of the logs.
    pub(in crate::agent) fn new(core: &'a Core, complete: Complete<'a>) -> Self {
        Self { core, complete }
    }

    /// The store revision that the newest intent was computed from.
    pub(in crate::agent) fn in_force(&self) -> u64 {
        self.core.in_force
    }

    /// Whether the store does not answer.
    pub(in crate::agent) fn is_store_unreachable(&self) -> bool {
        self.core.link.unreachable_reason.is_some()
    }

    /// Whether BGP listens, or tried to and was refused.
    pub(in crate::agent) fn has_tried_to_listen(&self) -> bool {
        !self.core.observed.listening.is_empty() || !self.core.observed.listen_failed.is_empty()
    }

    /// This host's options.
    pub(in crate::agent) fn node_options(&self) -> &'a NodeOptions {
        &self.core.node
    }

    /// The store's content.
    pub(in crate::agent) fn model(&self) -> &'a Model {
        &self.core.model
    }

    /// The store's content, for a reader that takes its time. Whoever holds it makes the core's next change copy it.
    pub(in crate::agent) fn shared_model(&self) -> Arc<Model> {
        Arc::clone(&self.core.model)
    }

    /// The newest routing intent; `None` before the first snapshot.
    pub(in crate::agent) fn intent(&self) -> Option<&'a Arc<RoutingIntent>> {
        self.core.intent.as_ref()
    }

    /// Policy in force, and the kernel thread's reports on it.
    pub(in crate::agent) fn enforcement(&self) -> &'a Enforcement {
        &self.core.enforcement
    }

    /// The flight recorder.
    pub(in crate::agent) fn recorder(&self) -> &'a Recorder {
        &self.core.recorder
    }

    /// The first snapshot was read.
    pub(in crate::agent) fn loaded(&self) -> bool {
        self.core.loaded()
    }

    /// The kernel answered its first intent.
    pub(in crate::agent) fn running(&self) -> bool {
        self.core.running()
    }

    /// When the agent started.
    pub(in crate::agent) fn started(&self) -> Instant {
        self.core.started
    }

    /// The store's newest revision that was read.
    pub(in crate::agent) fn revision(&self) -> u64 {
        self.core.link.revision
    }

    /// The store answers.
    pub(in crate::agent) fn is_connected(&self) -> bool {
        self.core.link.connected
    }

    /// The store has not answered yet: this is what the disk had.
    pub(in crate::agent) fn runs_from_cache(&self) -> bool {
        self.core.link.from_cache
    }

    /// Time since the newest proof that what was read is the newest.
    pub(in crate::agent) fn lag(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.core.link.fresh)
    }

    /// Keys of the last snapshot.
    pub(in crate::agent) fn keys(&self) -> usize {
        self.core.link.keys
    }

    /// Snapshots that were read since the start.
    pub(in crate::agent) fn snapshots(&self) -> u64 {
        self.core.link.snapshots
    }

    /// Why nothing is acted on, if so.
    pub(in crate::agent) fn frozen(&self) -> Option<&'a Freeze> {
        self.core.frozen.as_ref()
    }

    /// Counters and latencies.
    pub(in crate::agent) fn counters(&self) -> &'a CoreCounters {
        &self.core.counters
    }

    /// The record of a session.
    pub(in crate::agent) fn peer(&self, session: &str) -> Option<&'a PeerRecord> {
        self.core.peers.get(session)
    }

    /// The speaker's problem with the configuration of a session.
    pub(in crate::agent) fn peer_problem(&self, session: &str) -> Option<&'a str> {
        self.core.observed.peer_problems.get(session).map(String::as_str)
    }

    /// Peers that came from ranges.
    pub(in crate::agent) fn dynamic_peers(&self) -> impl Iterator<Item = &'a DynamicPeer> {
        self.core.observed.dynamic.values()
    }

    /// The graceful restart of the start is over (RFC 4724).
    pub(in crate::agent) fn restart_done(&self) -> bool {
        self.core.observed.restart_done
    }

    /// Problems that the health probe found.
    pub(in crate::agent) fn host_problems(&self) -> &'a [Problem] {
        &self.core.observed.host_problems
    }

    /// Totals of the garbage collection of addresses.
    pub(in crate::agent) fn gc_totals(&self) -> &'a GcTotals {
        &self.core.observed.gc
    }

    /// Usage of all pools; `None`: another host of the cluster reads it.
    pub(in crate::agent) fn pool_usage(&self) -> Option<&'a PoolUsages> {
        self.core.observed.pool_usage.as_ref()
    }

    /// This agent writes routes.
    pub(in crate::agent) fn writes_kernel(&self) -> bool {
        self.core.kernel_writes
    }

    /// The kernel acknowledged the blackhole of this block.
    pub(in crate::agent) fn has_blackhole(&self, block: &Cidr) -> bool {
        self.core.blackholes.contains(block)
    }

    /// Why the kernel refused the blackhole of this block.
    pub(in crate::agent) fn blackhole_failure(&self, block: &Cidr) -> Option<&'a str> {
        self.core.refused_blackholes.get(block).map(String::as_str)
    }

    /// Changes of rules, and routing intents, that the kernel thread has not acknowledged.
    pub(in crate::agent) fn unacknowledged(&self) -> (u64, u64) {
        let enforcement = &self.core.enforcement;
        (
            enforcement.serial().saturating_sub(enforcement.acknowledged()),
            self.core.generation.saturating_sub(self.core.acknowledged),
        )
    }

    /// Objects of the store by kind.
    pub(in crate::agent) fn object_counts(&self) -> ObjectCounts {
        ObjectCounts::of(self.core)
    }

    /// Rules and endpoints for `status`. Looks at every endpoint of this host and every chain.
    pub(in crate::agent) fn policy_status(&self) -> PolicyStatus {
        snapshot::policy_status(self.core)
    }

    /// Addresses that no pool gives on this host.
    pub(in crate::agent) fn exclusions(&self, now: Instant) -> Exclusions {
        exclusions::exclusions(self.core, now)
    }

    /// Addresses of workloads of this host that several endpoints of this host have, with those endpoints.
    pub(in crate::agent) fn duplicate_addresses(&self) -> Vec<(IpAddr, Vec<String>)> {
        blocks::duplicate_addresses(self.core)
    }

    /// Hints at routers, by session; `learned` is what they announce inside pools.
    pub(in crate::agent) fn route_hints(
        &self,
        learned: &[(String, Vec<LearnedPath>)],
    ) -> BTreeMap<String, Problem> {
        self.core.route_hints(learned)
    }

    /// A copy for `status`, metrics and the status key.
    pub(in crate::agent) fn snapshot(&self, now: Instant) -> CoreSnapshot {
        let mut snapshot = self.core.status_snapshot(now);
        (self.complete)(&mut snapshot);
        snapshot
    }
}
