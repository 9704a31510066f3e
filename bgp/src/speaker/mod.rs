//! The speaker: combines sessions and RIBs behind [`Speaker::handle`] and the poll functions.
//!
//! ```text
//!  Input --> handle --+--> config     peers, ranges, global, policy, local routes
//!                     +--> sessions   events -> finite state machines (session::fsm) -> actions; collisions
//!                     +--> receive    octets -> messages -> events, routes
//!                     `--> work       timers, queued input, reevaluation, update groups  --> Event
//!  poll_transmit ---------> transmit  control messages, then UPDATEs of update groups    --> octets
//!  take_best -------------> ribs      changed best paths of both families                --> BestChange
//!  take_tapped -----------> monitor   copies of messages for BMP and MRT, if enabled
//!  peers, routes, ... ----> query     on a read-only view
//! ```
//!
//! Each component owns its part of the state and does not know the others: [`PeerTable`], [`Connections`],
//! [`RibSet`], [`Scheduler`], [`Deferral`], [`Tap`]. Operations on several of them are functions or
//! short-lived structs that borrow only these: [`graceful_restart`], [`update_groups`], [`prefix_limits`],
//! [`route_refresh`]. `impl Speaker` is in this file and in `config`, `sessions`, `receive` and `transmit`,
//! nowhere else.
//!
//! Every call does a bounded amount of work, whatever its input. Input beyond the budget stays in its
//! connection, reevaluation and update groups continue in slices, and `poll_timeout` is in the past while
//! work is queued.

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

/// Maximum number of timers handled per call.
const TIMERS: usize = 512;

/// A BGP-4 speaker; the crate documentation shows how to drive it. A clone has the same sessions and tables,
/// so the effect of an input can be tried on it.
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
    /// Graceful shutdown mode of new peers.
    drain: Drain,
    stopping: bool,
}

impl Speaker {
    /// Creates a speaker without peers and routes.
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

    /// Processes an input and does a bounded amount of work. Remaining work is done in later calls (see
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

    /// Returns the oldest event not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() && self.events.capacity() > 1024 {
            self.events = VecDeque::new();
        }
        event
    }

    /// Returns the latest time of the next [`Speaker::handle`] call with [`Input::Tick`]. A time in the past
    /// means that work is queued.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.connections.readable() > 0 || self.peers.has_idle_dynamic() || self.ribs.has_work() {
            return Some(self.scheduler.now());
        }
        self.scheduler.next()
    }

    /// Handles due timers and queued work in bounded slices; see [`RibSet::work`].
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

    /// Handles [`Input::LocalReady`]: update groups may begin to send.
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

    /// Records that import policy was evaluated again for a family, of some or all peers.
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
    /// Appends up to `max` changed best paths to `out`. Returns true if more are left. Nothing is appended
    /// while route selection is deferred after a restart (RFC 4724 4.1), and the end of a best path not while
    /// another path waits for [`Input::NextHop`]. An embedder that does not use best paths has to call
    /// [`Speaker::drop_best`].
    pub fn take_best(&mut self, max: usize, out: &mut Vec<BestChange>) -> bool {
        let more = self.ribs.take_best(max, out);
        self.report_restart_done();
        more
    }

    /// Returns the number of changed best paths not taken yet, including those held back by the deferral.
    /// They are taken in the order of their changes, IPv4 before IPv6.
    #[must_use]
    pub fn pending_best(&self) -> usize {
        self.ribs.pending_best()
    }

    /// Discards up to `max` changed best paths, for embedders that do not use them; otherwise as
    /// [`Speaker::take_best`].
    pub fn drop_best(&mut self, max: usize) -> bool {
        let more = self.ribs.drop_best(max);
        self.report_restart_done();
        more
    }
}

/// Recording of sessions for BMP and MRT.
impl Speaker {
    /// Starts or stops recording. Stopping discards records not taken yet.
    pub fn set_tap(&mut self, on: bool) {
        self.tap.set(on);
    }

    /// Takes the records since the last call. `None` if there are none.
    pub fn take_tapped(&mut self) -> Option<Tapped> {
        self.tap.take()
    }

    /// Returns all sessions in Established, in the order of peer ids.
    #[must_use]
    pub fn tap_sessions(&self) -> Vec<Arc<TapSession>> {
        let session = |(_, peer)| TapSession::new(peer, self.connections.session(peer)?);
        self.peers.by_id().filter_map(session).map(Arc::new).collect()
    }
}

/// Queries; they change nothing.
impl Speaker {
    fn view(&self) -> View<'_> {
        View::new(&self.global, &self.peers, &self.connections, &self.ribs)
    }

    /// Returns true if a connection from this address would be accepted at `now`; the port is ignored. The
    /// embedder may close other connections without informing the speaker, before they cost more than the
    /// accept. A full range returns true, because it answers with a NOTIFICATION.
    #[must_use]
    pub fn admits(&self, remote: SocketAddr, now: Instant) -> bool {
        !self.stopping && self.peers.admits(remote, now)
    }

    /// Returns all peers in the order of their ids.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerStatus> {
        self.view().peers(now)
    }

    /// Returns the state of one peer. `None` for an unknown id.
    #[must_use]
    pub fn peer(&self, id: PeerId, now: Instant) -> Option<PeerStatus> {
        self.view().peer(id, now)
    }

    /// Returns all ranges in the order of their ids.
    pub fn ranges(&self, now: Instant) -> impl Iterator<Item = RangeStatus> {
        self.view().ranges(now)
    }

    /// Returns totals of tables, routes and errors.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.view().totals()
    }

    /// Returns at most `max` matching prefixes after `after`, in prefix order. Each call visits the whole
    /// table unless the query names one prefix or address; for pages of a large table use [`Speaker::scan`].
    #[must_use]
    pub fn routes(&self, query: &RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        self.view().routes(query, after, max)
    }

    /// Returns one part of the matching routes in no particular order, and the position of the next part.
    /// `None` at the end. The part has at most `max` prefixes, from at most `slots` table slots from position
    /// `from` on. Routes that do not change between calls are returned exactly once, others possibly twice or
    /// not at all.
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

    /// Explains the import of a peer's route for this prefix. `None` if the peer has not announced it.
    #[must_use]
    pub fn explain_import(&self, prefix: Cidr, peer: PeerId) -> Option<ImportTrace> {
        self.view().explain_import(prefix, peer)
    }

    /// Explains why this prefix is or is not announced to this peer.
    #[must_use]
    pub fn explain_export(&self, prefix: Cidr, peer: PeerId) -> ExportTrace {
        self.view().explain_export(prefix, peer)
    }
}
