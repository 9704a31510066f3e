//! Monitoring of sessions (BMP, MRT): copies of messages and changes of state, in the order of events.
//!
//! Off by default; on, it costs a branch a message. What is recorded lies in one bounded buffer until the embedder
//! takes it, which it should do after each turn; what does not fit is counted and dropped, and no session ever waits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::api::{Down, PeerId, State};
use crate::session::connection::Conn;
use crate::session::peer::Peer;
use crate::types::{Family, RouterId};
use crate::wire::{Frame, MessageKind, Negotiated, write_open};

/// Octets of messages that wait to be taken, at most.
const OCTETS: usize = 8 * 1024 * 1024;
/// Items that wait to be taken, at most.
const ITEMS: usize = 64 * 1024;

/// Records since they were last taken.
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
    /// The event.
    pub event: TapEvent,
}

/// A recorded event.
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
    /// Import policy was evaluated again for the peer's routes of this family, and may have decided otherwise.
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
    /// Negotiated parameters.
    pub negotiated: Negotiated,
    /// Since when it is up.
    pub up_at: Instant,
    /// The OPEN that we sent, whole.
    pub sent_open: Vec<u8>,
    /// The OPEN that the peer sent, whole.
    pub received_open: Vec<u8>,
}

/// The recorder.
#[derive(Debug, Clone, Default)]
pub(super) struct Tap {
    on: bool,
    tapped: Tapped,
}

impl Tap {
    /// See [`Speaker::set_tap`](crate::Speaker::set_tap).
    pub(super) fn set(&mut self, on: bool) {
        if self.on != on {
            *self = Self { on, tapped: Tapped::default() };
        }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Records since the last call; `None`: there are none.
    pub(super) fn take(&mut self) -> Option<Tapped> {
        let tapped = &mut self.tapped;
        (!tapped.items.is_empty() || tapped.dropped > 0).then(|| std::mem::take(tapped))
    }

    /// A message came, or whole messages were handed out for sending.
    pub(super) fn messages(&mut self, peer: PeerId, octets: &[u8], sent: bool, at: Instant) {
        let mut rest = octets;
        while let Ok(Some(frame)) = Frame::next(rest, true) {
            let (message, tail) = rest.split_at_checked(frame.len).unwrap_or((rest, &[]));
            if frame.kind != MessageKind::Keepalive {
                self.message(peer, frame.kind, message, sent, at);
            }
            rest = tail;
        }
    }

    /// One message.
    pub(super) fn message(
        &mut self,
        peer: PeerId,
        kind: MessageKind,
        octets: &[u8],
        sent: bool,
        at: Instant,
    ) {
        let Ok(len) = u16::try_from(octets.len()) else { return };
        self.push(TapItem { peer, at, event: TapEvent::Message { sent, kind, len } }, octets);
    }

    /// Something other than a message.
    pub(super) fn event(&mut self, peer: PeerId, event: TapEvent, at: Instant) {
        self.push(TapItem { peer, at, event }, &[]);
    }

    fn push(&mut self, item: TapItem, octets: &[u8]) {
        let tapped = &mut self.tapped;
        if !self.on {
            return;
        }
        if tapped.items.len() >= ITEMS || tapped.octets.len() + octets.len() > OCTETS {
            tapped.dropped += 1;
            return;
        }
        tapped.items.push(item);
        tapped.octets.extend_from_slice(octets);
    }
}

impl TapSession {
    /// The session of a peer on this connection, if it is up.
    pub(super) fn new(peer: &Peer, conn: &Conn) -> Option<Self> {
        let received = conn.received_open.as_ref()?;
        let mut sent_open = Vec::new();
        conn.sent_open.write(&mut sent_open);
        let mut received_open = Vec::new();
        write_open(&mut received_open, &conn.received_open_body);
        Some(Self {
            peer: peer.id,
            name: peer.config.name.clone(),
            local: conn.local,
            remote: conn.remote,
            local_asn: conn.sent_open.asn,
            asn: received.asn,
            router_id: received.router_id,
            negotiated: conn.negotiated?,
            up_at: peer.up_at?,
            sent_open,
            received_open,
        })
    }
}
