//! Periodic work of the agent, once per second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tortie_config::key::prefix;

use super::{Agent, Fact};
use crate::agent::controllers::Context;
use crate::agent::core::checkpoint;
use crate::agent::core::input::Input;
use crate::agent::core::view::CoreView;
use crate::agent::time;
use crate::api::nodes::NodeStatus;

/// Maximum cluster size for reads of all status keys: thousands of agents must not read each other's status.
const HOSTS_MAX: usize = 128;

impl Agent {
    /// Maintains the store: checkpoints its log and deletes old history, since no other process of this host
    /// runs long enough.
    ///
    /// In small clusters it also reads the agents and versions of all hosts. With a SQLite store, which
    /// serves one machine, hosts of other machines in the store are reported.
    fn maintain(&mut self, now: Instant) {
        let one_machine = self.options.is_sqlite();
        let few = self.core.loaded() && CoreView::of(&self.core).model().hosts().len() <= HOSTS_MAX;
        let maintains = self.timers.maintenance_due(now);
        let reads_hosts = self.timers.hosts_read_due(now, maintains && one_machine, few);
        if !maintains && !reads_hosts {
            return;
        }
        // In observe mode the agent writes nothing, which includes maintenance.
        let folds = maintains && !self.options.observes();
        let checks = folds && self.timers.check_due(now);
        let hosts_to = reads_hosts.then(|| self.facts_sender.clone());
        let (store, check_took) = (Arc::clone(&self.store), self.timers.check_took());
        self.io.spawn(async move {
            if checks {
                let began = Instant::now();
                // The feed meets the same damage and reports it.
                if let Err(error) = store.verify().await {
                    tracing::debug!(target: "tortie", "the check of the store failed: {error}");
                }
                let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                check_took.store(micros, Ordering::Relaxed);
            }
            // Maintenance follows verification, so that nothing is written into a damaged file.
            if folds && let Err(error) = store.maintain().await {
                tracing::debug!(target: "tortie", "the maintenance of the store failed: {error}");
            }
            if let Some(facts) = hosts_to
                && let Ok(found) = store.list(&[prefix::STATUS.to_owned()]).await
            {
                let statuses = found.entries.iter().filter_map(NodeStatus::read);
                let hosts = statuses.map(|status| status.of_its_version()).collect();
                let _ = facts.send(Fact::Core(Input::Hosts { hosts, one_machine }));
            }
        });
    }

    /// Builds the value of the status key every ten seconds, and at once when a session comes up or goes
    /// down.
    fn build_node_status(&mut self, now: Instant, ready: bool) -> Option<NodeStatus> {
        let sessions = self.established_sessions();
        if !self.timers.node_status_due(now, ready, sessions) {
            return None;
        }
        Some(crate::agent::controllers::node_status::build_node_status(
            &self.view(|core| core.snapshot(now)),
            CoreView::of(&self.core).intent().map(Arc::as_ref),
            &self.options.node,
            ready,
        ))
    }

    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        self.handle.record_iteration(now);
        self.maintain(now);
        self.logs.tick(now);
        if self.core.migrations_due().is_some_and(|due| due <= now) {
            self.input(Input::MigrationsDue);
        }
        if self.journal.wants_checkpoint()
            && let Some(checkpoint) = checkpoint::take(&self.core)
        {
            self.journal.checkpoint(time::now(), checkpoint);
        }
        let snapshots = CoreView::of(&self.core).snapshots();
        if self.core.settled() && self.timers.memory_release_due(snapshots) {
            self.io.spawn_blocking(crate::agent::process::allocator::release_memory);
        }
        if !CoreView::of(&self.core).runs_from_cache() && self.core.loaded() {
            self.register();
        }
        let ready = self.is_ready();
        let before = self.handle.set_ready(ready);
        if before != ready {
            let word = if ready { "ready" } else { "not ready" };
            tracing::info!(target: "tortie", "{word}");
        }
        if self.has_started() && self.timers.ready_announcement_due() {
            self.notify.ready();
            self.io.spawn_blocking(crate::agent::process::allocator::release_startup_code);
        }
        self.notify.tick(&self.handle, &self.io);
        let node_status = self.build_node_status(now, ready);
        self.controllers.update(&Context { core: CoreView::of(&self.core), node_status });
    }

    /// True when the agent has started: settings are valid, store or cache are read, the kernel was compared
    /// once, and BGP has tried to listen. Established peers are not required: that is [`Agent::is_ready`]. An
    /// address that cannot be bound, as its port is in use, is a problem in `status`, and a restart would not
    /// help.
    fn has_started(&self) -> bool {
        let core = CoreView::of(&self.core);
        let listens = core.has_tried_to_listen();
        let wanted = !self.options.settings.bgp_listen.is_empty()
            || core.intent().is_some_and(|i| !i.listen.is_empty());
        // A freeze before the first load needs an operator who reads the reason, not a restart.
        let holds_still = core.frozen().is_some() && !core.loaded();
        holds_still || core.running() && (listens || !wanted || self.options.observes())
    }

    fn established_sessions(&self) -> usize {
        let core = CoreView::of(&self.core);
        let Some(intent) = core.intent() else { return 0 };
        let established =
            |name: &String| core.peer(name).is_some_and(|p| p.state == Some(tortie_bgp::State::Established));
        intent.peers.keys().filter(|name| established(name)).count()
    }

    /// True if the agent is ready: kernel and store answer, and at least one session is established if any is
    /// configured. In observe mode: a comparison was made.
    fn is_ready(&self) -> bool {
        let core = CoreView::of(&self.core);
        let wanted = core.intent().is_some_and(|i| i.peers.values().any(|p| p.shutdown.is_none()));
        let store = !core.is_store_unreachable() && !core.runs_from_cache();
        let works = match &self.observer {
            Some(observer) => observer.last().is_some(),
            None => !wanted || self.established_sessions() > 0,
        };
        // A host with a wrong store or a wrong name is not ready, even while it forwards.
        let in_place = core.frozen().is_none_or(|freeze| freeze.cache_counts);
        core.running() && !self.stopping && store && works && in_place
    }
}
