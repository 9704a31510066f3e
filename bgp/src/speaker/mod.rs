//! The speaker: sessions and tables joined behind [`Speaker::handle`].
//!
//! ```text
//!  Input --> handle --+--> config     peers, ranges, global, policy, local routes
//!                     +--> sessions   events -> finite state machines (session::fsm) -> actions; collisions
//!                     +--> receive    octets -> messages -> events, routes
//!                     `--> work       timers, queued input, reevaluation, update groups  --> Event
//!  poll_transmit ---------> transmit  messages of the session, then those of update groups --> octets
//!  take_best -------------> ribs      the changed best paths of both tables              --> BestChange
//!  take_tapped -----------> monitor   copies of messages for monitoring, when asked for
//!  peers, routes, ... ----> query     on a read-only view
//! ```
//!
//! The state lies in components that each own theirs: [`PeerTable`], [`Connections`], [`RibSet`], [`Scheduler`], [`Deferral`],
//! [`Tap`]. These know nothing of each other. What concerns several of them is a function or a short-lived struct over just those:
//! [`graceful_restart`], [`update_groups`], [`prefix_limits`], [`route_refresh`]. `impl Speaker` is in this file and in
//! `config`, `sessions`, `receive` and `transmit`, nowhere else.
//!
//! Every call does a bounded amount of work, whatever came in: input beyond the budget stays in its connection, reevaluation and
//! update groups go on in slices, and `poll_timeout` lies in the past while something is queued.

mod config;
mod deferral;
mod graceful_restart;
mod monitor;
mod prefix_limits;
mod receive;
mod route_refresh;
mod scheduler;
mod sessions;
mod transmit;
mod update_groups;

pub use monitor::{TapEvent, TapItem, TapSession, Tapped};

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_net::Cidr;

use self::deferral::Deferral;
use self::graceful_restart::StaleRoutes;
use self::monitor::Tap;
use self::scheduler::Scheduler;
use self::update_groups::UpdateGroups;
use crate::api::{
    BestChange, Drain, Event, ExportTrace, GlobalConfig, ImportTrace, Input, PeerId, PeerStatus,
    PolicyHandle, RangeStatus, RouteInfo, RouteQuery, Totals,
};
use crate::query::View;
use crate::rib::reevaluate::Job;
use crate::ribs::RibSet;
use crate::session::connections::Connections;
use crate::session::peer_table::PeerTable;
use crate::session::timers::Timer;
use crate::types::Family;

/// Timers that one call serves.
const TIMERS: usize = 512;

/// A BGP-4 speaker. See the crate's documentation for how it is driven. A clone has the same sessions and tables: what an input
/// would do can be tried on it.
#[derive(Debug, Clone)]
pub struct Speaker {
    global: GlobalConfig,
    peers: PeerTable,
    connections: Connections,
    ribs: RibSet,
    scheduler: Scheduler,
    deferral: Deferral,
    tap: Tap,
    events: VecDeque<Event>,
    /// Of peers to come.
    drain: Drain,
    stopping: bool,
}

impl Speaker {
    /// A speaker without peers and routes.
    #[must_use]
    pub fn new(global: GlobalConfig, policy: PolicyHandle, now: Instant) -> Self {
        let seed = u64::from(global.router_id.0) << 32 | u64::from(global.asn);
        let mut scheduler = Scheduler::new(now, seed);
        Self {
            peers: PeerTable::default(),
            connections: Connections::default(),
            ribs: RibSet::new(&global, policy),
            deferral: Deferral::new(global.restart_time, &mut scheduler),
            scheduler,
            tap: Tap::default(),
            events: VecDeque::new(),
            drain: Drain::Off,
            stopping: false,
            global,
        }
    }

    /// Takes an event from outside and does a bounded amount of work; what is left over is done by the next calls (see
    /// [`Speaker::poll_timeout`]).
    pub fn handle(&mut self, input: Input<'_>, now: Instant) {
        self.scheduler.advance(now);
        let tick = matches!(input, Input::Tick);
        match input {
            Input::Tick => self.scheduler.advance_served(now),
            Input::Global(global) => self.set_global(global),
            Input::Peer(id, config) => self.set_peer(id, *config),
            Input::RemovePeer(id) => self.remove_peer(id),
            Input::Range(id, config) => self.set_range(id, *config),
            Input::RemoveRange(id) => self.remove_range(id),
            Input::Policy(policy) => self.ribs.set_policy(policy),
            Input::PolicyAbout(policy, prefixes) => {
                for family in self.ribs.set_policy_about(policy, prefixes) {
                    self.monitor_reimported(family);
                }
            }
            Input::Local(changes) => self.ribs.set_local(changes),
            Input::LocalReady => self.local_ready(),
            Input::NextHop(address, state) => {
                self.ribs.set_next_hop(address, state);
                self.deferral.schedule_check(&mut self.scheduler);
            }
            Input::NextHopWithin(address, within) => {
                self.ribs.set_next_hop_within(address, within);
                self.deferral.schedule_check(&mut self.scheduler);
            }
            Input::Dialled { peer, conn, local, remote } => self.dialled(peer, conn, local, remote),
            Input::DialFailed { peer, error } => self.dial_failed(peer, error),
            Input::Accepted { conn, local, remote } => self.accepted(conn, local, remote),
            Input::Data(conn, octets) => self.data(conn, octets),
            Input::Closed(conn, why) => self.closed(conn, &why),
            Input::Reset(peer, reset) => self.reset(peer, reset),
            Input::Drain(peer, drain) => self.set_drain(peer, drain),
            Input::LinkUp(peer) => self.link_up(peer),
            Input::LinkDown { peer, text } => self.link_down(peer, &text),
            Input::NotForwarding(peer) => self.not_forwarding(peer),
            Input::BfdDown { peer, text, independent } => self.bfd_down(peer, &text, independent),
            Input::Shutdown { graceful, text } => self.shutdown(graceful, &text),
        }
        self.work(tick);
    }

    /// The oldest event that the embedder has not taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > 1024 {
            self.events = VecDeque::new();
        }
        event
    }

    /// When to call [`Speaker::handle`] with [`Input::Tick`] at the latest. In the past: queued work remains.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.connections.readable() > 0 || self.peers.has_idle_dynamic() || self.ribs.has_work() {
            return Some(self.scheduler.now());
        }
        self.scheduler.next()
    }

    /// Work that is due or queued, in bounded slices; see [`RibSet::work`].
    fn work(&mut self, tick: bool) {
        for _ in 0..TIMERS {
            let Some(timer) = self.scheduler.pop_due() else { break };
            self.expire(timer);
        }
        if self.connections.readable() > 0 {
            self.read_queued();
        }
        if self.peers.has_idle_dynamic() {
            for id in self.peers.take_idle_dynamic(self.scheduler.now()) {
                self.remove_peer(id);
            }
        }
        for (family, job) in self.ribs.work(tick) {
            match job {
                Job::NextHops => self.deferral.schedule_check(&mut self.scheduler),
                Job::Reimport => self.monitor_reimported(family),
                Job::Purge | Job::Reexport | Job::Decide => {}
            }
        }
        self.wake_members();
        self.ribs.report_next_hops(&mut self.events);
        if self.ribs.notify_best() {
            self.events.push_back(Event::BestChanged);
        }
        self.report_restart_done();
        self.connections.expire_last_messages(self.scheduler.now());
    }

    fn expire(&mut self, timer: Timer) {
        match timer {
            Timer::Hold(conn) => self.hold_timer(conn),
            Timer::Keepalive(conn) => self.keepalive_timer(conn),
            Timer::SendHold(conn) => self.send_hold_timer(conn),
            Timer::Collision(conn) => self.collision_timer(conn),
            Timer::RefreshOut(conn) => self.refresh_out_timer(conn),
            Timer::ConnectRetry(number) => self.connect_retry_timer(number),
            Timer::Restart(number) => {
                if let Some(mut stale) = self.stale_routes(number) {
                    stale.restart_timer();
                    self.peers.note_idle(number);
                }
            }
            Timer::Refresh(number) => {
                if let Some(mut stale) = self.stale_routes(number) {
                    stale.refresh_timer();
                }
            }
            Timer::Deferral => {
                self.deferral.check(&self.peers, &self.connections, &mut self.ribs, &mut self.scheduler);
            }
        }
    }

    /// All local routes are there: update groups may begin.
    fn local_ready(&mut self) {
        if !self.ribs.set_local_ready() {
            return;
        }
        let sessions: Vec<_> = self.peers.iter().filter_map(|p| p.session).collect();
        for conn in sessions {
            self.want_write(conn);
        }
        self.deferral.schedule_check(&mut self.scheduler);
    }

    fn report_restart_done(&mut self) {
        if self.deferral.report_end(&self.peers, &self.connections, &self.ribs, &self.scheduler) {
            self.events.push_back(Event::RestartDone);
        }
    }

    /// Import policy was evaluated again for a family of some peers, perhaps of all.
    fn monitor_reimported(&mut self, family: Family) {
        if self.tap.is_on() {
            for peer in self.peers.iter().filter(|p| p.session.is_some()) {
                self.tap.event(peer.id, TapEvent::Reimported(family), self.scheduler.now());
            }
        }
    }

    fn stale_routes(&mut self, number: u32) -> Option<StaleRoutes<'_>> {
        let peer = self.peers.get_mut(number)?;
        Some(StaleRoutes { number, peer, ribs: &mut self.ribs, scheduler: &mut self.scheduler })
    }

    fn update_groups(&mut self) -> UpdateGroups<'_> {
        UpdateGroups { peers: &mut self.peers, connections: &self.connections, ribs: &mut self.ribs }
    }
}

/// Changed best paths.
impl Speaker {
    /// Appends up to `max` changed best paths to `out`; true: there are more. Nothing is given while the selection is
    /// deferred after a restart (RFC 4724 4.1). An embedder without use for them calls [`Speaker::drop_best`].
    pub fn take_best(&mut self, max: usize, out: &mut Vec<BestChange>) -> bool {
        let more = self.ribs.take_best(max, out);
        self.report_restart_done();
        more
    }

    /// How many changed best paths wait to be taken, those included that are held back while the selection is deferred. They
    /// are taken in the order in which they changed, IPv4 before IPv6.
    #[must_use]
    pub fn pending_best(&self) -> usize {
        self.ribs.pending_best()
    }

    /// Forgets up to `max` changed best paths, for embedders without use for them; else as [`Speaker::take_best`].
    pub fn drop_best(&mut self, max: usize) -> bool {
        let more = self.ribs.drop_best(max);
        self.report_restart_done();
        more
    }
}

/// Monitoring.
impl Speaker {
    /// Starts or ends recording; an end forgets what was not taken.
    pub fn set_tap(&mut self, on: bool) {
        self.tap.set(on);
    }

    /// Records since the last call; `None`: there are none.
    pub fn take_tapped(&mut self) -> Option<Tapped> {
        self.tap.take()
    }

    /// All sessions that are up, in the order of the peers' ids.
    #[must_use]
    pub fn tap_sessions(&self) -> Vec<Arc<TapSession>> {
        let session = |(_, peer)| TapSession::new(peer, self.connections.session(peer)?);
        self.peers.by_id().filter_map(session).map(Arc::new).collect()
    }
}

/// Questions; nothing is changed.
impl Speaker {
    fn view(&self) -> View<'_> {
        View::new(&self.global, &self.peers, &self.connections, &self.ribs)
    }

    /// True if a connection from this address would be taken at `now`; the port means nothing. An embedder may close one that
    /// would not be without a word to the speaker, before it has cost more than its acceptance. A full range takes it, to say so.
    #[must_use]
    pub fn admits(&self, remote: SocketAddr, now: Instant) -> bool {
        !self.stopping && self.peers.admits(remote, now)
    }

    /// All peers, in the order of their ids.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerStatus> {
        self.view().peers(now)
    }

    /// One peer.
    #[must_use]
    pub fn peer(&self, id: PeerId, now: Instant) -> Option<PeerStatus> {
        self.view().peer(id, now)
    }

    /// All ranges, in the order of their ids.
    pub fn ranges(&self, now: Instant) -> impl Iterator<Item = RangeStatus> {
        self.view().ranges(now)
    }

    /// Sums over everything.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.view().totals()
    }

    /// Routes in the order of their prefixes: at most `max` prefixes that come after `after`. Each call looks at the whole
    /// table unless the question names one prefix or address; for pages of a large table see [`Speaker::scan`].
    #[must_use]
    pub fn routes(&self, query: &RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        self.view().routes(query, after, max)
    }

    /// A part of the routes that match, in no order, for a reader of all of them: at most `max` prefixes among those in `slots`
    /// places of the table from place `from` on, and the place to go on from; `None`: that was all. What does not change
    /// between two calls is seen once; what does, perhaps twice or not at all.
    #[must_use]
    pub fn scan(
        &self,
        query: &RouteQuery,
        from: u32,
        slots: u32,
        max: usize,
    ) -> (Vec<RouteInfo>, Option<u32>) {
        self.view().scan(query, from, slots, max)
    }

    /// Explains the import of the route for this prefix from this peer; `None`: it sent none.
    #[must_use]
    pub fn explain_import(&self, prefix: Cidr, peer: PeerId) -> Option<ImportTrace> {
        self.view().explain_import(prefix, peer)
    }

    /// Explains why this prefix is announced to this peer or not.
    #[must_use]
    pub fn explain_export(&self, prefix: Cidr, peer: PeerId) -> ExportTrace {
        self.view().explain_export(prefix, peer)
    }
}
