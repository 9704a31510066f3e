//! The speaker: sessions and tables joined behind [`Speaker::handle`].

use std::collections::VecDeque;
use std::time::Instant;

use tortie_config::Cidr;

use crate::api::{BestChange, ConnId, Event, GlobalConfig, Input, PeerId, PolicyHandle, Transmit};
use crate::query::{ExportTrace, PeerStatus, RouteInfo, RouteQuery, Totals};

/// A BGP-4 speaker. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct Speaker {
    global: GlobalConfig,
    policy: PolicyHandle,
    now: Instant,
    events: VecDeque<Event>,
}

impl Speaker {
    /// A speaker without peers and routes.
    #[must_use]
    pub fn new(global: GlobalConfig, policy: PolicyHandle, now: Instant) -> Self {
        Self { global, policy, now, events: VecDeque::new() }
    }

    /// Takes an event from outside and does a bounded amount of work; what is left over is done by the next calls (see
    /// [`Speaker::poll_timeout`]).
    pub fn handle(&mut self, input: Input<'_>, now: Instant) {
        self.now = now;
        match input {
            Input::Global(global) => self.global = global,
            Input::Policy(policy) => self.policy = policy,
            _ => {}
        }
    }

    /// What the embedder has to do or may want to know, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Speaker::handle`] with [`Input::Tick`] at the latest. In the past: queued work remains.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Appends whole messages for this connection to `buf`, at most about `room` octets: one message is never cut, so
    /// a little room suffices for some progress. After [`Event::Close`] it still gives the last messages.
    pub fn poll_transmit(&mut self, conn: ConnId, buf: &mut Vec<u8>, room: usize, now: Instant) -> Transmit {
        let _ = (conn, buf, room, now);
        Transmit::Done
    }

    /// How many octets this connection takes now; 0: read nothing until later.
    #[must_use]
    pub fn read_room(&self, conn: ConnId) -> usize {
        let _ = conn;
        0
    }

    /// Appends up to `max` changed best paths to `out`; true: there are more. Nothing is given while the selection is
    /// deferred after a restart (RFC 4724 4.1).
    pub fn take_best(&mut self, max: usize, out: &mut Vec<BestChange>) -> bool {
        let _ = (max, out);
        false
    }

    /// All peers, in the order of their ids.
    pub fn peers(&self, now: Instant) -> impl Iterator<Item = PeerStatus> {
        let _ = now;
        std::iter::empty()
    }

    /// One peer.
    #[must_use]
    pub fn peer(&self, id: PeerId, now: Instant) -> Option<PeerStatus> {
        let _ = (id, now);
        None
    }

    /// Routes in the order of their prefixes: at most `max` prefixes that come after `after`. Each call looks at the whole
    /// table unless the question names one prefix or address.
    #[must_use]
    pub fn routes(&self, query: &RouteQuery, after: Option<Cidr>, max: usize) -> Vec<RouteInfo> {
        let _ = (query, after, max);
        Vec::new()
    }

    /// Why this prefix is announced to this peer or not.
    #[must_use]
    pub fn explain_export(&self, prefix: Cidr, peer: PeerId) -> ExportTrace {
        let _ = (prefix, peer);
        ExportTrace { steps: Vec::new(), announced: None }
    }

    /// Sums over everything.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::default()
    }
}
