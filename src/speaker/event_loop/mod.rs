//! Event loop of the speaker's thread, over one epoll set.
//!
//! Each iteration takes messages from the inbox, serves the queued connections once, accepts new ones, runs
//! expired timers, and offers changed best paths to the kernel thread. The cost of an iteration
//! depends on pending work, not on the number of peers.
//!
//! Each part of the speaker owns its state. Only the event loop has access to all parts; it passes inputs to
//! the BGP core and executes its events. `apply` applies a new intent, `events` executes events of the core,
//! and `transport` opens, serves and closes connections.

mod apply;
mod events;
mod transport;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::{Input, NextHopState, PeerId, Speaker};
use tortie_net::ScopedAddr;

use crate::speaker::bfd::Bindings;
use crate::speaker::connections::Connections;
use crate::speaker::facts::{FactSink, SpeakerFact};
use crate::speaker::faults::Reporter;
use crate::speaker::feed::Feed;
use crate::speaker::inbox::{Inbox, Order};
use crate::speaker::intent::IntentInForce;
use crate::speaker::monitor::Monitors;
use crate::speaker::options::SpeakerOptions;
use crate::speaker::peers::{PeerTable, Ranges};
use crate::speaker::reachability::{Evidence, Fallover, OwnAddresses, Tracker};
use crate::speaker::sockets::listen::Listeners;
use crate::speaker::sockets::poller::{Events, Poller, Source};
use crate::speaker::unnumbered::Unnumbered;
use crate::speaker::view::SpeakerView;
use crate::speaker::wakeup::Wakeup;
use tortie_engine::routing::Resolved;
use tortie_metrics::Histogram;

/// Time limit for closing connections when the process stops.
const LINGER_STOP: Duration = Duration::from_millis(500);
/// Interval at which password files are read again, since no event reports that a file was repaired or has a
/// new key.
const KEY_FILES: Duration = Duration::from_secs(10);

/// Maximum number of events per call of `epoll_wait`.
const EVENTS: usize = 512;

/// The loop with all parts of the speaker.
pub(crate) struct EventLoop {
    options: SpeakerOptions,
    inbox: Arc<Inbox>,
    wakeup: Arc<Wakeup>,
    poller: Poller,
    reporter: Reporter,
    /// `None` before the first intent.
    core: Option<Speaker>,
    intent: IntentInForce,
    peers: PeerTable,
    ranges: Ranges,
    listeners: Listeners,
    connections: Connections,
    tracker: Tracker,
    fallover: Fallover,
    evidence: Evidence,
    own_addresses: OwnAddresses,
    /// Peers whose connections are refused, with the time until which this is not reported again.
    damped: BTreeMap<ScopedAddr, Instant>,
    bfd: Bindings,
    unnumbered: Unnumbered,
    feed: Feed,
    monitors: Monitors,
    now: Instant,
    /// Start time of the iteration, just before the last poll of the sockets. Data that arrived earlier is
    /// processed in this iteration, so timers that measure silence use this time.
    woke: Instant,
    /// Durations of iterations; a new event waits for the current iteration.
    iteration_seconds: Histogram,
    key_files_due: Option<Instant>,
    stopping: Option<Instant>,
}

impl EventLoop {
    pub(crate) fn new(
        options: SpeakerOptions,
        inbox: Arc<Inbox>,
        wakeup: Arc<Wakeup>,
        facts: FactSink,
        feed: Feed,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(Source::Wakeup, &*wakeup)?;
        Ok(Self {
            inbox,
            wakeup,
            poller,
            reporter: Reporter::new(facts),
            core: None,
            intent: IntentInForce::default(),
            peers: PeerTable::default(),
            ranges: Ranges::default(),
            listeners: Listeners::default(),
            connections: Connections::new(),
            tracker: Tracker::new(options.kernel),
            fallover: Fallover::default(),
            evidence: Evidence::default(),
            own_addresses: OwnAddresses::default(),
            damped: BTreeMap::new(),
            bfd: Bindings::default(),
            unnumbered: Unnumbered::default(),
            feed,
            monitors: Monitors::default(),
            now: Instant::now(),
            woke: Instant::now(),
            iteration_seconds: Histogram::seconds(),
            key_files_due: None,
            stopping: None,
            options,
        })
    }

    /// Runs until a shutdown is complete.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let woken = self.wait(&mut events);
            if woken {
                self.wakeup.clear();
                self.feed.take_credits(self.now);
                self.bfd_reports();
                self.messages();
            }
            self.iterate();
            self.iteration_seconds.time(self.woke.elapsed());
            if self.stopping.is_some_and(|at| at <= self.now || self.connections.len() == 0) {
                self.inbox.end();
                self.bfd.join();
                self.reporter.fact(SpeakerFact::Stopped);
                return;
            }
        }
    }

    /// Waits for events and takes all pending ones. Returns true if the inbox has messages.
    ///
    /// A pause of the process (SIGSTOP, a frozen cgroup) may begin anywhere in an iteration, and it ends the
    /// wait without events although data may have arrived. The time for timers that measure silence is
    /// therefore read before the last poll of the sockets.
    fn wait(&mut self, events: &mut Events) -> bool {
        self.poll(events, self.deadline());
        self.now = Instant::now();
        self.woke = self.now;
        let mut woken = self.take(events);
        let is_due = self.core.as_ref().and_then(Speaker::poll_timeout).is_some_and(|at| at <= self.now);
        let mut again = events.is_full() || is_due;
        // Bounds the loop: each connection has at most one event, unless more data arrives during the loop.
        for _ in 0..=self.connections.len() / EVENTS {
            if !again {
                break;
            }
            self.poll(events, Some(self.now));
            woken |= self.take(events);
            again = events.is_full();
        }
        woken
    }

    /// Waits until the deadline for events, at most as many as `events` has room for.
    fn poll(&mut self, events: &mut Events, deadline: Option<Instant>) {
        if let Err(e) = self.poller.wait(events, deadline) {
            self.reporter.transient(format!("epoll: {e}"));
        }
    }

    /// Passes each event to the part that its source belongs to. Returns true if the inbox has messages.
    fn take(&mut self, events: &Events) -> bool {
        let mut woken = false;
        for (source, readiness) in events.iter() {
            match source {
                Source::Wakeup => woken = true,
                Source::Advertisements => self.advertisements(),
                Source::Listener(index) => self.listeners.ready(index, self.now),
                Source::Connection(id) => self.connections.ready(id, readiness),
            }
        }
        woken
    }

    /// Returns the time at which the next iteration must begin even without an event; `None` if only an event
    /// starts it.
    fn deadline(&self) -> Option<Instant> {
        let feeding = self.core.is_some() && self.stopping.is_none();
        if self.connections.queued() > 0
            || self.connections.may_unstall()
            || (feeding && self.feed.is_ready())
        {
            return Some(Instant::now());
        }
        [
            self.core.as_ref().and_then(Speaker::poll_timeout),
            self.connections.deadline(),
            self.listeners.deadline(),
            self.listeners.next_accept(),
            self.feed.deadline().filter(|_| feeding),
            self.key_files_due,
            self.unnumbered.deadline(),
            self.fallover.deadline(),
            self.evidence.deadline(),
            self.own_addresses.deadline().filter(|_| self.connections.len() > 0 || self.unnumbered.is_on()),
            self.stopping,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Processes the messages of the inbox: intent, next hops, orders.
    fn messages(&mut self) {
        let messages = self.inbox.take();
        if let Some((intent, change)) = messages.intent.filter(|_| self.stopping.is_none()) {
            self.apply(intent, change);
        }
        for (addr, within) in messages.next_hops_within {
            let within = within.into_iter().map(|(prefix, resolved)| (prefix, next_hop_state(resolved)));
            self.give(Input::NextHopWithin(addr, within.collect()));
        }
        for (addr, resolved) in messages.next_hops {
            self.give(Input::NextHop(addr, next_hop_state(resolved)));
            self.address_resolved(addr, resolved);
        }
        for order in messages.orders {
            // Monitors get the events before the answer to a query that shows their result.
            self.flush_monitors();
            self.order(order);
        }
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::LocalReady => self.give(Input::LocalReady),
            Order::Reset(name, kind) => {
                let ids: Vec<PeerId> = match name {
                    Some(name) => self.peers.id(&name).into_iter().collect(),
                    None => self.peers.ids().collect(),
                };
                for id in ids {
                    self.give(Input::Reset(id, kind.clone()));
                }
            }
            Order::Drain(name, drain) => {
                let id = name.as_deref().map(|name| self.peers.id(name));
                // `None` means all peers, which must not happen for an unknown name.
                if id != Some(None) {
                    self.give(Input::Drain(id.flatten(), drain));
                }
            }
            Order::Shutdown { graceful, text } => self.stop(graceful, text),
            Order::Monitor(new) => self.monitors.add(new, self.core.as_mut(), self.intent.identity()),
            Order::Query(ask) => ask(&SpeakerView {
                core: self.core.as_ref(),
                peers: &self.peers,
                ranges: &self.ranges,
                listeners: &self.listeners,
                connections: &self.connections,
                bfd: &self.bfd,
                feed: &self.feed,
                intent: &self.intent,
                options: &self.options,
                iterations: &self.iteration_seconds,
                now: self.now,
            }),
        }
    }

    fn stop(&mut self, graceful: bool, text: String) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(self.now + LINGER_STOP);
        self.bfd.stop();
        self.unnumbered = Unnumbered::default();
        self.listeners.follow(&[], self.now, |_, _| Ok(()));
        self.give(Input::Shutdown { graceful, text });
        // The core does not know of connection attempts in progress.
        self.connections.remove_connecting();
    }

    fn iterate(&mut self) {
        if let Some(core) = &self.core {
            self.connections.unstall(core);
        }
        for _ in 0..self.connections.queued() {
            let Some((id, stage)) = self.connections.next() else { break };
            self.serve(id, stage);
        }
        // After existing sessions, so that they do not wait for a peer that connects a thousand times a
        // second.
        self.accept_all();
        // Timers run last: after a pause of the process, data that arrived in time is still in the sockets,
        // and its sender is not silent.
        self.deadlines();
        if self.core.as_ref().and_then(Speaker::poll_timeout).is_some_and(|at| at <= self.now) {
            self.tick();
        }
        // A shutdown removes routes from the table, but they must stay in the kernel after the process has
        // ended.
        if self.stopping.is_none() {
            self.feed_kernel();
        }
        if self.ranges.take_moved() {
            self.follow_sessions();
        }
        self.flush_monitors();
    }

    /// Offers changed best paths to the kernel thread, and their prefixes to monitors.
    fn feed_kernel(&mut self) {
        let Some(core) = &mut self.core else { return };
        let mut changed = Vec::new();
        let for_monitors = (!self.monitors.is_empty()).then_some(&mut changed);
        self.feed.run(core, &mut self.reporter, self.now, self.woke, for_monitors);
        if let Some(identity) = self.intent.identity().filter(|_| !changed.is_empty()) {
            self.monitors.best(identity, &changed);
        }
        self.events();
    }

    fn flush_monitors(&mut self) {
        if let Some(core) = &mut self.core {
            self.monitors.flush(core);
        }
    }

    /// Runs all parts whose deadline has passed.
    fn deadlines(&mut self) {
        self.expire_connections();
        if self.stopping.is_some() {
            self.key_files_due = None;
            return;
        }
        if self.listeners.deadline().is_some_and(|at| at <= self.now) {
            self.listen();
        }
        if self.unnumbered.deadline().is_some_and(|at| at <= self.now) {
            self.run_unnumbered();
        }
        self.end_lost_links();
        self.end_lost_bfd();
        if self.own_addresses.deadline().is_none_or(|at| at <= self.now) {
            self.look_for_own_addresses();
        }
        if self.key_files_due.is_some_and(|at| at <= self.now) {
            self.key_files_due = None;
            if self.follow_peers() {
                self.follow_sessions();
            }
        }
        if self.has_key_files() && self.key_files_due.is_none() {
            self.key_files_due = Some(self.now + KEY_FILES);
        }
    }
}

/// Converts a resolved next hop for the core.
fn next_hop_state(resolved: Option<Resolved>) -> NextHopState {
    resolved.map_or(NextHopState::Unreachable, |r| NextHopState::Reachable {
        metric: r.metric,
        on_link: r.gateway.is_none(),
    })
}
