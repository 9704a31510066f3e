//! Recording of sessions for BMP and MRT: copies of messages and state changes, in order of occurrence.
//!
//! Off by default; enabled, it costs one branch per message. Records are kept in one bounded buffer until the
//! embedder takes them, best after each call of the speaker. Records that exceed the buffer are counted and
//! dropped; a session never waits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::api::{Down, PeerId, State};
use crate::session::connection::Conn;
use crate::session::peer::Peer;
use crate::types::{Family, RouterId};
use crate::wire::{Frame, MessageKind, Negotiated, write_open};

/// Maximum octets of recorded messages not taken yet.
const OCTETS: usize = 8 * 1024 * 1024;
/// Maximum number of recorded items not taken yet.
const ITEMS: usize = 64 * 1024;

/// Records since the last [`Speaker::take_tapped`](crate::Speaker::take_tapped).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tapped {
    /// Recorded items in order of occurrence.
    pub items: Vec<TapItem>,
    /// Messages of `items`, concatenated.
    pub octets: Vec<u8>,
    /// Number of items dropped because the buffer was full.
    pub dropped: u64,
}

impl Tapped {
    /// Iterates over the items, each with the octets of its message; empty for other events.
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

/// One recorded item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapItem {
    /// The peer.
    pub peer: PeerId,
    /// Time of the event.
    pub at: Instant,
    /// Message, state change or reimport.
    pub event: TapEvent,
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapEvent {
    /// A message was received or handed to the embedder for sending; KEEPALIVEs are not recorded.
    Message {
        /// True if this speaker sent it.
        sent: bool,
        /// Message type.
        kind: MessageKind,
        /// Length in octets; the message is in [`Tapped::octets`].
        len: u16,
    },
    /// The peer changed its FSM state.
    State {
        /// The previous state.
        from: State,
        /// The new state.
        to: State,
        /// Reason, if a session or an attempt ended.
        down: Option<Down>,
        /// The session, if the new state is Established.
        session: Option<Arc<TapSession>>,
    },
    /// Import policy was evaluated again for the peer's routes of this family. Results may have changed.
    Reimported(Family),
}

/// Parameters of a session in Established.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSession {
    /// The peer.
    pub peer: PeerId,
    /// Configured name of the peer.
    pub name: Arc<str>,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Local AS number towards the peer.
    pub local_asn: u32,
    /// AS number of the peer.
    pub asn: u32,
    /// BGP identifier of the peer.
    pub router_id: RouterId,
    /// Negotiated parameters.
    pub negotiated: Negotiated,
    /// Time at which the session came up.
    pub up_at: Instant,
    /// The whole OPEN that this speaker sent.
    pub sent_open: Vec<u8>,
    /// The whole OPEN that the peer sent.
    pub received_open: Vec<u8>,
}

/// The recorder, off by default.
#[derive(Debug, Clone, Default)]
pub(super) struct Tap {
    on: bool,
    tapped: Tapped,
}

impl Tap {
    /// Starts or stops recording; see [`Speaker::set_tap`](crate::Speaker::set_tap).
    pub(super) fn set(&mut self, on: bool) {
        if self.on != on {
            *self = Self { on, tapped: Tapped::default() };
        }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Takes the records since the last call. `None` if there are none.
    pub(super) fn take(&mut self) -> Option<Tapped> {
        let tapped = &mut self.tapped;
        (!tapped.items.is_empty() || tapped.dropped > 0).then(|| std::mem::take(tapped))
    }

    /// Records whole messages, received or handed out for sending. KEEPALIVEs are skipped.
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

    /// Records one message.
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

    /// Records an event other than a message.
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
    /// Returns the session of a peer on this connection. `None` unless it is in Established.
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
