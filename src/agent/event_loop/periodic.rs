//! The periodic work of the agent, each second, and the requests that it answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::key::prefix;

use super::{Agent, Fact, Waiting};
use crate::agent::controllers::Context;
use crate::agent::core::applied;
use crate::agent::core::checkpoint;
use crate::agent::core::input::{Input, Timing};
use crate::agent::core::snapshot::CoreSnapshot;
use crate::agent::core::view::CoreView;
use crate::agent::handle::CoreRequest;
use crate::agent::time;
use crate::api::nodes::NodeStatus;
use crate::api::status::Applied;

/// Between two calls of [`Store::maintain`](tortie_store::Store::maintain).
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Between two reads of the status keys of all hosts.
const HOSTS_READ_INTERVAL: Duration = Duration::from_secs(300);
/// Larger clusters are not read: thousands of agents must not read each other's status.
const HOSTS_MAX: usize = 128;
/// Between two full builds of the status key without a change of sessions.
const NODE_STATUS_INTERVAL: Duration = Duration::from_secs(10);

impl Agent {
    /// Folds the store's log and forgets old history: nobody else of this host lives long enough to do it. Small clusters
    /// are also asked which agents run, and in which version: a SQLite store serves one machine, and it says so when hosts
    /// of others stand in it.
    fn maintain(&mut self, now: Instant) {
        let keep = self.maintained_at.is_none_or(|at| now.duration_since(at) >= MAINTENANCE_INTERVAL);
        // Thousands of agents must not read each other's status.
        let due = self.hosts_read_at.is_none_or(|at| now.duration_since(at) >= HOSTS_READ_INTERVAL);
        let few = self.core.loaded() && CoreView::of(&self.core).model().hosts().len() <= HOSTS_MAX;
        let present = ((keep && self.is_sqlite()) || (due && few)).then(|| self.facts_sender.clone());
        if !keep && present.is_none() {
            return;
        }
        if keep {
            self.maintained_at = Some(now);
        }
        if present.is_some() {
            self.hosts_read_at = Some(now);
        }
        // Whoever observes writes nothing, not even that.
        let folds = keep && !self.observes();
        let one_machine = self.is_sqlite();
        let store = Arc::clone(&self.store);
        self.io.spawn(async move {
            if folds && let Err(error) = store.maintain().await {
                tracing::debug!(target: "tortie", "the store is not maintained: {error}");
            }
            if let Some(facts) = present
                && let Ok(found) = store.list(&[prefix::STATUS.to_owned()]).await
            {
                let statuses = found.entries.iter().filter_map(NodeStatus::read);
                let hosts = statuses.map(|status| status.of_its_version()).collect();
                let _ = facts.send(Fact::Core(Input::Hosts { hosts, one_machine }));
            }
        });
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.options.store.url.starts_with("sqlite:")
    }

    /// Builds the value of the status key, each ten seconds, and at once when a session comes up or goes down.
    fn build_node_status(&mut self, now: Instant, ready: bool) -> Option<NodeStatus> {
        let seen = (ready, self.established_sessions());
        if self
            .node_status_built
            .is_some_and(|(at, of)| of == seen && now.duration_since(at) < NODE_STATUS_INTERVAL)
        {
            return None;
        }
        self.node_status_built = Some((now, seen));
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
        if self.journal.wants_checkpoint()
            && let Some(checkpoint) = checkpoint::take(&self.core)
        {
            self.journal.checkpoint(time::now(), checkpoint);
        }
        if self.memory_released_at != CoreView::of(&self.core).snapshots() && self.core.settled() {
            self.memory_released_at = CoreView::of(&self.core).snapshots();
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
        if self.has_started() && !self.is_ready_announced {
            self.is_ready_announced = true;
            self.notify.ready();
            self.io.spawn_blocking(crate::agent::process::allocator::release_startup_code);
        }
        self.notify.tick(&self.handle, &self.io);
        let node_status = self.build_node_status(now, ready);
        self.controllers.update(&Context { core: CoreView::of(&self.core), node_status });
    }

    /// Settings are valid, store or cache are read, the kernel was compared once, and BGP listens wherever it is to. Not
    /// that peers are up: that is [`Agent::is_ready`]. An address that cannot be listened on (the port is taken) is a
    /// problem in `status` and no reason to be started again and again.
    fn has_started(&self) -> bool {
        let core = CoreView::of(&self.core);
        let listens = core.has_tried_to_listen();
        let wanted = !self.options.settings.bgp_listen.is_empty()
            || core.intent().is_some_and(|i| !i.listen.is_empty());
        core.running() && (listens || !wanted || self.observes())
    }

    fn established_sessions(&self) -> usize {
        let core = CoreView::of(&self.core);
        let Some(intent) = core.intent() else { return 0 };
        let established =
            |name: &String| core.peer(name).is_some_and(|p| p.state == Some(tortie_bgp::State::Established));
        intent.peers.keys().filter(|name| established(name)).count()
    }

    /// Serving: the kernel answered, the store answers, and at least one session is up where any is wanted; observing: all
    /// was compared once.
    fn is_ready(&self) -> bool {
        let core = CoreView::of(&self.core);
        let wanted = core.intent().is_some_and(|i| i.peers.values().any(|p| p.shutdown.is_none()));
        let store = !core.is_store_unreachable() && !core.runs_from_cache();
        let works = match &self.observer {
            Some(observer) => observer.last().is_some(),
            None => !wanted || self.established_sessions() > 0,
        };
        core.running() && !self.stopping && store && works
    }

    pub(super) fn on_request(&mut self, request: CoreRequest) {
        match request {
            CoreRequest::Query(query) => self.view(query),
            CoreRequest::Applied { request, answer } => {
                let until = Instant::now() + Duration::from_millis(request.wait_millis.min(600_000));
                // The plugin says how long it has been at it.
                let before = request.elapsed_millis.map(Duration::from_millis);
                let since = before.and_then(|before| Instant::now().checked_sub(before));
                self.waiting.push(Waiting { request, answer, until, since, target: None });
            }
            CoreRequest::LogLevel { request, answer } => {
                let _ = answer.send(self.logs.set_level(&request, Instant::now()));
            }
            CoreRequest::AcceptStore(answer) => {
                let frozen = CoreView::of(&self.core).frozen().is_some();
                self.input(Input::Accept);
                let accepted = frozen && CoreView::of(&self.core).frozen().is_none();
                // A store that was empty does not know this host.
                self.registered &= !accepted;
                let _ = answer.send(accepted);
            }
        }
    }

    /// Answers a query on this thread.
    fn view<T>(&self, query: impl FnOnce(&CoreView<'_>) -> T) -> T {
        query(&CoreView::new(&self.core, &|snapshot| self.complete(snapshot)))
    }

    pub(super) fn answer_waiting(&mut self) {
        let now = Instant::now();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let revision = CoreView::of(&self.core).in_force();
            let verdict = applied::verdict(&self.core, &waiting.request, &mut waiting.target);
            let result = verdict.or_else(|| (now >= waiting.until).then_some(("timeout", None)));
            match result {
                Some((word, reason)) => {
                    if let Some(since) = waiting.since.filter(|_| word == "applied") {
                        self.core.time(Timing::EndpointReady(now.saturating_duration_since(since)));
                    }
                    let _ = waiting.answer.send(Applied { result: word.to_owned(), reason, revision });
                }
                None if waiting.answer.is_closed() => {}
                None => self.waiting.push(waiting),
            }
        }
    }

    /// Adds to a snapshot of the core what the process knows.
    fn complete(&self, snapshot: &mut CoreSnapshot) {
        snapshot.store = self.store.describe();
        snapshot.log_problem.clone_from(&self.log_problem);
        snapshot.notes.extend(self.stations.notes());
        snapshot.notes.extend(self.logs.notes(Instant::now()));
        snapshot.stopping = self.stopping;
    }
}
