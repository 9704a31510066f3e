//! The speaker: sessions and tables joined behind [`Speaker::handle`].
//!
//! ```text
//!  Input --> handle --+--> connect   dial, accept, OPEN, collision, up and down
//!                     +--> config    peers, global, policy, local routes; sources: what the tables know of peers
//!                     +--> ranges    peers that nobody configured
//!                     +--> receive   octets -> messages -> tables
//!                     +--> refresh   routes again, asked for and sent
//!                     +--> restart   graceful restart, ours and theirs; stale: routes of those that are away
//!                     `--> work      timers, queued input, walks, update groups     --> Event
//!  poll_transmit ---------> transmit session messages, then what update groups have --> octets
//!  take_best -------------> best     the dirty set of both tables                   --> BestChange
//!  take_tapped -----------> tap      copies of messages for monitoring, when asked for
//!  peers, routes, ... ----> answers  pure
//! ```
//!
//! Every call does a bounded amount of work, whatever came in: input beyond the budget stays in its connection, walks and
//! update groups go on in slices, and `poll_timeout` lies in the past while something is queued.

mod best_changes;
mod config;
mod deferral;
mod graceful_restart;
mod monitor;
mod prefix_limits;
mod ranges;
mod receive;
mod route_refresh;
mod routes;
mod scheduler;
mod sessions;
mod sources;
mod status;
mod transmit;

pub use monitor::{TapEvent, TapItem, TapSession, Tapped};

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::api::{ConnId, Drain, Event, GlobalConfig, Input, PeerId, PolicyHandle};
use crate::rib::Shared;
use crate::ribs::family::FamilyRib;
use crate::session::connection::Conn;
use crate::session::range::Ranges;
use crate::session::timers::Timers;
use crate::session::{Jitter, Peer};

/// A BGP-4 speaker. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct Speaker {
    global: GlobalConfig,
    now: Instant,
    started: Instant,
    shared: Shared,
    v4: FamilyRib<u32>,
    v6: FamilyRib<u128>,
    /// By source number.
    peers: FxHashMap<u32, Peer>,
    ids: BTreeMap<PeerId, u32>,
    by_address: FxHashMap<IpAddr, SmallVec<[u32; 1]>>,
    ranges: Ranges,
    /// Peers of ranges of which nothing may be left.
    fading: Vec<u32>,
    /// Peers of ranges so far.
    dynamic_made: u32,
    /// Configured peers that may be sent learned routes.
    transit_peers: usize,
    /// Cluster ids with the number of clients in each.
    clusters: BTreeMap<u32, usize>,
    conns: FxHashMap<ConnId, Conn>,
    /// Last messages of connections that are no more.
    closing: FxHashMap<ConnId, Vec<u8>>,
    closing_order: VecDeque<(Instant, ConnId)>,
    timers: Timers,
    jitter: Jitter,
    events: VecDeque<Event>,
    /// Connections with whole messages that wait for their turn.
    ready: VecDeque<ConnId>,
    /// Peers for which update groups have made something.
    wake: Vec<u32>,
    best_notified: bool,
    stopping: bool,
    /// Of peers to come.
    drain: Drain,
    restart: deferral::Deferral,
    update_errors: [u64; 3],
    /// Errors of peers that were noted so far.
    errors_noted: u64,
    tap: monitor::Tap,
}

impl Speaker {
    /// A speaker without peers and routes.
    #[must_use]
    pub fn new(global: GlobalConfig, policy: PolicyHandle, now: Instant) -> Self {
        let mut shared = Shared::new(global.asn, global.router_id.0, policy);
        shared.deferring = global.restarting.is_some();
        shared.multipath = global.multipath;
        let mut speaker = Self {
            jitter: Jitter::new(u64::from(global.router_id.0) << 32 | u64::from(global.asn)),
            global,
            now,
            started: now,
            shared,
            v4: FamilyRib::new(),
            v6: FamilyRib::new(),
            peers: FxHashMap::default(),
            ids: BTreeMap::new(),
            by_address: FxHashMap::default(),
            ranges: Ranges::default(),
            fading: Vec::new(),
            dynamic_made: 0,
            transit_peers: 0,
            clusters: BTreeMap::new(),
            conns: FxHashMap::default(),
            closing: FxHashMap::default(),
            closing_order: VecDeque::new(),
            timers: Timers::default(),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            wake: Vec::new(),
            best_notified: false,
            stopping: false,
            drain: Drain::Off,
            restart: deferral::Deferral::default(),
            update_errors: [0; 3],
            errors_noted: 0,
            tap: monitor::Tap::default(),
        };
        speaker.begin_deferral();
        speaker
    }

    /// Takes an event from outside and does a bounded amount of work; what is left over is done by the next calls (see
    /// [`Speaker::poll_timeout`]).
    pub fn handle(&mut self, input: Input<'_>, now: Instant) {
        self.now = self.now.max(now);
        let tick = matches!(input, Input::Tick);
        match input {
            Input::Tick => {}
            Input::Global(global) => self.set_global(global),
            Input::Peer(id, config) => self.set_peer(id, *config),
            Input::RemovePeer(id) => self.remove_peer(id),
            Input::Range(id, config) => self.set_range(id, *config),
            Input::RemoveRange(id) => self.remove_range(id),
            Input::Policy(policy) => self.set_policy(policy),
            Input::PolicyAbout(policy, prefixes) => self.set_policy_about(policy, prefixes),
            Input::Local(changes) => self.set_local(changes),
            Input::LocalReady => self.local_ready(),
            Input::NextHop(address, state) => self.set_next_hop(address, state),
            Input::Dialled { peer, conn, local, remote } => self.dialled(peer, conn, local, remote),
            Input::DialFailed { peer, error } => self.dial_failed(peer, error),
            Input::Accepted { conn, local, remote } => self.accepted(conn, local, remote),
            Input::Data(conn, octets) => self.data(conn, octets),
            Input::Closed(conn, why) => self.closed(conn, &why),
            Input::Reset(peer, reset) => self.reset(peer, reset),
            Input::Drain(peer, drain) => self.set_drain(peer, drain),
            Input::LinkUp(peer) => self.link_up(peer),
            Input::LinkDown { peer, text } => self.link_down(peer, &text),
            Input::BfdDown { peer, text, independent } => self.bfd_down(peer, &text, independent),
            Input::Shutdown { graceful, text } => self.shutdown(graceful, &text),
        }
        self.work(tick);
    }

    /// What the embedder has to do or may want to know, oldest first.
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
        if self.has_work() {
            return Some(self.now);
        }
        self.timers.next()
    }
}
