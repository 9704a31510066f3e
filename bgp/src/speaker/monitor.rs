//! What monitoring sees of sessions: copies of messages, and of what became of the sessions, in the order of events.
//!
//! Off unless asked for; then it costs a branch a message. What is recorded lies in one bounded buffer until the embedder
//! takes it, which it should do after each turn; what does not fit is counted and dropped, and no session ever waits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::Speaker;
use crate::api::{ConnId, Down, PeerId, State};
use crate::session::connection::Conn;
use crate::types::{Family, RouterId};
use crate::wire::{Frame, MessageKind, Negotiated, write_open};

/// ByteReader of messages that wait to be taken, at most.
const OCTETS: usize = 8 * 1024 * 1024;
/// Items that wait to be taken, at most.
const ITEMS: usize = 64 * 1024;

/// What was recorded since it was last taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tapped {
    /// In the order of events.
    pub items: Vec<TapItem>,
    /// The messages of `items`, one behind the other.
    pub octets: Vec<u8>,
    /// Items that there was no room for.
    pub dropped: u64,
}

impl Tapped {
    /// The items, each with its message, if it is one.
    pub fn iter(&self) -> impl Iterator<Item = (&TapItem, &[u8])> {
        let mut rest = self.octets.as_slice();
        self.items.iter().map(move |item| {
            let len = if let TapEvent::Message { len, .. } = item.event { usize::from(len) } else { 0 };
            let (message, tail) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = tail;
            (item, message)
        })
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapItem {
    /// With whom.
    pub peer: PeerId,
    /// When.
    pub at: Instant,
    /// What.
    pub event: TapEvent,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapEvent {
    /// A message was received or handed out for sending; KEEPALIVEs are left out.
    Message {
        /// We sent it.
        sent: bool,
        /// Its type.
        kind: MessageKind,
        /// Its octets, which stand in [`Tapped::octets`].
        len: u16,
    },
    /// The peer changed its state.
    State {
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why, when a session or an attempt ended.
        down: Option<Down>,
        /// The session, when it is up now.
        session: Option<Arc<TapSession>>,
    },
    /// Import policy was asked again about what the peer sent of this family, and may have decided otherwise.
    Reimported(Family),
}

/// A session that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSession {
    /// With whom.
    pub peer: PeerId,
    /// The peer's configured name.
    pub name: Arc<str>,
    /// Our end.
    pub local: SocketAddr,
    /// Their end.
    pub remote: SocketAddr,
    /// Our AS towards the peer.
    pub local_asn: u32,
    /// The peer's AS.
    pub asn: u32,
    /// The peer's BGP identifier.
    pub router_id: RouterId,
    /// What both ends agreed on.
    pub negotiated: Negotiated,
    /// Since when it is up.
    pub up_at: Instant,
    /// The OPEN that we sent, whole.
    pub sent_open: Vec<u8>,
    /// The OPEN that the peer sent, whole.
    pub received_open: Vec<u8>,
}

/// The recorder.
#[derive(Debug, Default)]
pub(super) struct Tap {
    on: bool,
    tapped: Tapped,
}

impl Tap {
    fn push(&mut self, item: TapItem, octets: &[u8]) {
        let tapped = &mut self.tapped;
        if tapped.items.len() >= ITEMS || tapped.octets.len() + octets.len() > OCTETS {
            tapped.dropped += 1;
            return;
        }
        tapped.items.push(item);
        tapped.octets.extend_from_slice(octets);
    }
}

impl Speaker {
    /// Starts or ends recording; an end forgets what was not taken.
    pub fn set_tap(&mut self, on: bool) {
        if self.tap.on != on {
            self.tap = Tap { on, tapped: Tapped::default() };
        }
    }

    /// What was recorded since the last call; `None`: nothing.
    pub fn take_tapped(&mut self) -> Option<Tapped> {
        let tapped = &mut self.tap.tapped;
        (!tapped.items.is_empty() || tapped.dropped > 0).then(|| std::mem::take(tapped))
    }

    /// All sessions that are up, in the order of the peers' ids.
    #[must_use]
    pub fn tap_sessions(&self) -> Vec<Arc<TapSession>> {
        self.ids.values().filter_map(|number| self.tap_session(*number)).map(Arc::new).collect()
    }

    fn tap_session(&self, number: u32) -> Option<TapSession> {
        let peer = self.peers.get(&number)?;
        let conn = self.conns.get(&peer.session?)?;
        let theirs = conn.theirs.as_ref()?;
        let mut sent_open = Vec::new();
        conn.ours.write(&mut sent_open);
        let mut received_open = Vec::new();
        write_open(&mut received_open, &conn.received_open_body);
        Some(TapSession {
            peer: peer.id,
            name: peer.config.name.clone(),
            local: conn.local,
            remote: conn.remote,
            local_asn: conn.ours.asn,
            asn: theirs.asn,
            router_id: theirs.router_id,
            negotiated: conn.negotiated?,
            up_at: peer.up_at?,
            sent_open,
            received_open,
        })
    }

    /// A message came.
    #[inline]
    pub(super) fn tap_received(&mut self, id: ConnId, kind: MessageKind, octets: &[u8]) {
        if self.tap.on && kind != MessageKind::Keepalive {
            self.tap_message(id, kind, octets, false);
        }
    }

    /// Whole messages were handed out.
    #[inline]
    pub(super) fn tap_sent(&mut self, id: ConnId, octets: &[u8]) {
        if self.tap.on {
            let mut rest = octets;
            while let Ok(Some(frame)) = Frame::next(rest, true) {
                let (message, tail) = rest.split_at_checked(frame.len).unwrap_or((rest, &[]));
                if frame.kind != MessageKind::Keepalive {
                    self.tap_message(id, frame.kind, message, true);
                }
                rest = tail;
            }
        }
    }

    fn tap_message(&mut self, id: ConnId, kind: MessageKind, octets: &[u8], sent: bool) {
        let peer = self.conns.get(&id).and_then(|c| self.peers.get(&c.peer)).map(|p| p.id);
        let (Some(peer), Ok(len)) = (peer, u16::try_from(octets.len())) else { return };
        let event = TapEvent::Message { sent, kind, len };
        self.tap.push(TapItem { peer, at: self.now, event }, octets);
    }

    /// Import policy was asked again about a family of peers, perhaps of all.
    pub(super) fn monitor_reimported(&mut self, family: Family) {
        if !self.tap.on {
            return;
        }
        for peer in self.peers.values().filter(|p| p.session.is_some()) {
            let event = TapEvent::Reimported(family);
            self.tap.push(TapItem { peer: peer.id, at: self.now, event }, &[]);
        }
    }

    /// The last message of a connection that is gone already.
    pub(super) fn tap_last(&mut self, conn: &Conn, octets: &[u8]) {
        let peer = self.peers.get(&conn.peer).map(|p| p.id);
        if let (true, Some(peer), Ok(len)) = (self.tap.on, peer, u16::try_from(octets.len())) {
            let event = TapEvent::Message { sent: true, kind: MessageKind::Notification, len };
            self.tap.push(TapItem { peer, at: self.now, event }, octets);
        }
    }

    pub(super) fn tap_state(&mut self, number: u32, from: State, to: State, down: Option<&Down>) {
        if !self.tap.on {
            return;
        }
        let Some(peer) = self.peers.get(&number).map(|p| p.id) else { return };
        let up = to == State::Established && from != to;
        let session = up.then(|| self.tap_session(number)).flatten().map(Arc::new);
        let event = TapEvent::State { from, to, down: down.cloned(), session };
        self.tap.push(TapItem { peer, at: self.now, event }, &[]);
    }
}
