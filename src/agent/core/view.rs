//! Read-only view of the core, which a query receives on the core's thread.
//!
//! Defines everything that the API, metrics and explanations may read. Code outside of this folder reads the
//! core only through this view.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::key::EndpointKey;
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
use tortie_engine::routing::{DynamicPeer, LearnedPath, MigrationState, NodeOptions, RoutingIntent};

/// Callback that adds state of the process to a snapshot.
type Complete<'a> = &'a dyn Fn(&mut CoreSnapshot);

/// View of the core at one moment.
#[derive(Clone, Copy)]
pub(in crate::agent) struct CoreView<'a> {
    core: &'a Core,
    complete: Complete<'a>,
}

impl<'a> CoreView<'a> {
    /// Creates a view of the core alone.
    pub(in crate::agent) fn of(core: &'a Core) -> Self {
        Self::new(core, &|_| ())
    }

    /// Creates a view; `complete` adds state that only the process knows to snapshots, such as the store's
    /// name and problems of the log.
    pub(in crate::agent) fn new(core: &'a Core, complete: Complete<'a>) -> Self {
        Self { core, complete }
    }

    /// Returns the store revision from which the newest intent was computed.
    pub(in crate::agent) fn in_force(&self) -> u64 {
        self.core.in_force
    }

    /// True if the store does not answer.
    pub(in crate::agent) fn is_store_unreachable(&self) -> bool {
        self.core.link.unreachable_reason.is_some()
    }

    /// True if BGP listens, or tried to listen and failed.
    pub(in crate::agent) fn has_tried_to_listen(&self) -> bool {
        !self.core.observed.listening.is_empty() || !self.core.observed.listen_failed.is_empty()
    }

    /// Returns this host's options.
    pub(in crate::agent) fn node_options(&self) -> &'a NodeOptions {
        &self.core.node
    }

    /// Returns the model of the store's content.
    pub(in crate::agent) fn model(&self) -> &'a Model {
        &self.core.model
    }

    /// Returns the shared model for a slow reader. While a reader holds it, the core's next change copies it.
    pub(in crate::agent) fn shared_model(&self) -> Arc<Model> {
        Arc::clone(&self.core.model)
    }

    /// Returns the newest routing intent; `None` before the first snapshot.
    pub(in crate::agent) fn intent(&self) -> Option<&'a Arc<RoutingIntent>> {
        self.core.intent.as_ref()
    }

    /// Returns the enforced policy with the kernel thread's reports.
    pub(in crate::agent) fn enforcement(&self) -> &'a Enforcement {
        &self.core.enforcement
    }

    /// Returns the flight recorder.
    pub(in crate::agent) fn recorder(&self) -> &'a Recorder {
        &self.core.recorder
    }

    /// True once the first snapshot was read.
    pub(in crate::agent) fn loaded(&self) -> bool {
        self.core.loaded()
    }

    /// True once the kernel has answered its first intent.
    pub(in crate::agent) fn running(&self) -> bool {
        self.core.running()
    }

    /// Returns the start time of the agent.
    pub(in crate::agent) fn started(&self) -> Instant {
        self.core.started
    }

    /// Returns the newest store revision that was read.
    pub(in crate::agent) fn revision(&self) -> u64 {
        self.core.link.revision
    }

    /// True if the store answers.
    pub(in crate::agent) fn is_connected(&self) -> bool {
        self.core.link.connected
    }

    /// True if the agent runs from the cache on disk, as the store has not answered yet.
    pub(in crate::agent) fn runs_from_cache(&self) -> bool {
        self.core.link.from_cache
    }

    /// Returns the time since the last confirmation that the model is up to date.
    pub(in crate::agent) fn lag(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.core.link.fresh)
    }

    /// Returns the number of keys in the last snapshot.
    pub(in crate::agent) fn keys(&self) -> usize {
        self.core.link.keys
    }

    /// Returns the number of snapshots read since the start.
    pub(in crate::agent) fn snapshots(&self) -> u64 {
        self.core.link.snapshots
    }

    /// Returns the freeze that stops the agent from acting, if any.
    pub(in crate::agent) fn frozen(&self) -> Option<&'a Freeze> {
        self.core.frozen.as_ref()
    }

    /// Returns counters and latencies.
    pub(in crate::agent) fn counters(&self) -> &'a CoreCounters {
        &self.core.counters
    }

    /// Returns the record of a session.
    pub(in crate::agent) fn peer(&self, session: &str) -> Option<&'a PeerRecord> {
        self.core.peers.get(session)
    }

    /// Returns the speaker's problem with the configuration of a session.
    pub(in crate::agent) fn peer_problem(&self, session: &str) -> Option<&'a str> {
        self.core.observed.peer_problems.get(session).map(String::as_str)
    }

    /// Returns the dynamic peers.
    pub(in crate::agent) fn dynamic_peers(&self) -> impl Iterator<Item = &'a DynamicPeer> {
        self.core.observed.dynamic.values()
    }

    /// True once the graceful restart after the start is over (RFC 4724).
    pub(in crate::agent) fn restart_done(&self) -> bool {
        self.core.observed.restart_done
    }

    /// Returns the problems that the health probe found.
    pub(in crate::agent) fn host_problems(&self) -> &'a [Problem] {
        &self.core.observed.host_problems
    }

    /// Returns the totals of IPAM garbage collection.
    pub(in crate::agent) fn gc_totals(&self) -> &'a GcTotals {
        &self.core.observed.gc
    }

    /// Returns the usage of all pools; `None` if another host of the cluster reads it.
    pub(in crate::agent) fn pool_usage(&self) -> Option<&'a PoolUsages> {
        self.core.observed.pool_usage.as_ref()
    }

    /// True if this agent writes routes.
    pub(in crate::agent) fn writes_kernel(&self) -> bool {
        self.core.kernel_writes
    }

    /// True if the kernel has acknowledged the blackhole of this block.
    pub(in crate::agent) fn has_blackhole(&self, block: &Cidr) -> bool {
        self.core.blackholes.contains(block)
    }

    /// Returns the reason why the kernel rejected the blackhole of this block.
    pub(in crate::agent) fn blackhole_failure(&self, block: &Cidr) -> Option<&'a str> {
        self.core.refused_blackholes.get(block).map(String::as_str)
    }

    /// Returns the numbers of rule changes and of routing intents that the kernel thread has not
    /// acknowledged.
    pub(in crate::agent) fn unacknowledged(&self) -> (u64, u64) {
        let enforcement = &self.core.enforcement;
        (
            enforcement.serial().saturating_sub(enforcement.acknowledged()),
            self.core.generation.saturating_sub(self.core.acknowledged),
        )
    }

    /// Returns the numbers of objects in the store by kind.
    pub(in crate::agent) fn object_counts(&self) -> ObjectCounts {
        ObjectCounts::of(self.core)
    }

    /// Returns the states of this host's endpoints in live migrations.
    pub(in crate::agent) fn migrations(&self) -> impl Iterator<Item = (&'a EndpointKey, MigrationState)> {
        self.core.migrations.states()
    }

    /// Returns rules and endpoints for `status`. Iterates over every endpoint of this host and every chain.
    pub(in crate::agent) fn policy_status(&self) -> PolicyStatus {
        snapshot::policy_status(self.core)
    }

    /// Returns the addresses that IPAM must not allocate on this host.
    pub(in crate::agent) fn exclusions(&self, now: Instant) -> Exclusions {
        exclusions::exclusions(self.core, now)
    }

    /// Returns addresses that several workload endpoints of this host claim, with those endpoints.
    pub(in crate::agent) fn duplicate_addresses(&self) -> Vec<(IpAddr, Vec<String>)> {
        blocks::duplicate_addresses(self.core)
    }

    /// Returns hints about routers by session; `learned` has the paths inside pools that they announce.
    pub(in crate::agent) fn route_hints(
        &self,
        learned: &[(String, Vec<LearnedPath>)],
    ) -> BTreeMap<String, Problem> {
        self.core.route_hints(learned)
    }

    /// Returns a snapshot for `status`, metrics and the status key.
    pub(in crate::agent) fn snapshot(&self, now: Instant) -> CoreSnapshot {
        let mut snapshot = self.core.status_snapshot(now);
        (self.complete)(&mut snapshot);
        snapshot
    }
}
