//! A connection, with its input and output that waits.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tortie_net::ScopedAddr;

use super::damping::RefreshPace;
use super::fsm::Fsm;
use crate::adj_rib_out::segment::Cursor;
use crate::api::State;
use crate::types::Family;
use crate::wire::{Negotiated, Open};

/// Octets of input that a connection holds at most: two of the longest messages.
pub(crate) const INPUT_MAX: usize = 128 * 1024;

/// The end that opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Outgoing,
    Incoming,
}

/// A connection.
#[derive(Debug, Clone)]
pub(crate) struct Conn {
    /// The source number of its peer.
    pub(crate) peer: u32,
    pub(crate) direction: Direction,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// OpenSent, OpenConfirm or Established.
    pub(crate) fsm: Fsm,
    pub(crate) input: Input,
    /// It is in the queue of connections with whole messages to read.
    pub(crate) queued: bool,
    /// Messages of the session itself; they go before all UPDATEs.
    pub(crate) control: Vec<u8>,
    /// UPDATEs that have been made and not all copied out.
    pub(crate) cursors: VecDeque<Cursor>,
    /// The embedder was given [`Event::WantWrite`](crate::Event::WantWrite) then, and has taken nothing since.
    pub(crate) write_pending_since: Option<Instant>,
    pub(crate) send_hold_armed: bool,
    /// Index of the family that is served first next time.
    pub(crate) next_family: usize,
    pub(crate) sent_open: Open,
    pub(crate) received_open: Option<Open>,
    /// The body of the received OPEN, for monitoring.
    pub(crate) received_open_body: Box<[u8]>,
    pub(crate) negotiated: Option<Negotiated>,
    /// Hold time; 0: none.
    pub(crate) hold: Duration,
    /// Keepalive interval; 0: none.
    pub(crate) keepalive: Duration,
    pub(crate) hold_at: Option<Instant>,
    pub(crate) margin: Margin,
    pub(crate) keepalive_at: Option<Instant>,
    /// Its OPEN came, but it would lose a collision: it waits for the other connection until then, and has sent no KEEPALIVE.
    pub(crate) collision_hold_until: Option<Instant>,
    /// KEEPALIVE came while it waited.
    pub(crate) confirmed: bool,
    /// Refreshes that we send, by family.
    pub(crate) refreshes: [RefreshOut; 2],
    pub(crate) refresh_pace: RefreshPace,
}

/// The least part of the hold time that was left when a message came, in the last two and a half to five minutes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Margin {
    /// When the present half began; `None`: no message came yet.
    began: Option<Instant>,
    now: f32,
    before: f32,
}

impl Default for Margin {
    fn default() -> Self {
        Self { began: None, now: 1.0, before: 1.0 }
    }
}

impl Margin {
    const HALF: Duration = Duration::from_secs(150);

    /// A message came; `deadline` is when the session would have ended without it.
    pub(crate) fn note(&mut self, deadline: Instant, hold: Duration, now: Instant) {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= Self::HALF) {
            (self.began, self.before, self.now) = (Some(now), self.now, 1.0);
        }
        self.now = self.now.min(Self::part(deadline, hold, now));
    }

    /// The least part, that of this moment included.
    pub(crate) fn least(&self, deadline: Instant, hold: Duration, now: Instant) -> f32 {
        self.now.min(self.before).min(Self::part(deadline, hold, now))
    }

    fn part(deadline: Instant, hold: Duration, now: Instant) -> f32 {
        (deadline.saturating_duration_since(now).as_secs_f32() / hold.as_secs_f32()).min(1.0)
    }
}

/// A refresh that the peer is sent (RFC 7313).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RefreshOut {
    #[default]
    No,
    /// It was requested before End-of-RIB, after which it has to begin.
    AfterEndOfRib,
    /// It was asked for, and begins when the peer takes something.
    Requested,
    /// It began; when all routes were sent, its end is.
    Begun,
}

impl Conn {
    /// A connection that has just been made. `hold`: the hold time until the OPEN of the peer is there.
    pub(crate) fn new(
        peer: u32,
        direction: Direction,
        (local, remote): (SocketAddr, SocketAddr),
        sent_open: Open,
        hold: Duration,
        now: Instant,
    ) -> Self {
        Self {
            peer,
            direction,
            local,
            remote,
            fsm: Fsm::new(direction == Direction::Outgoing),
            input: Input::default(),
            queued: false,
            control: Vec::new(),
            cursors: VecDeque::new(),
            write_pending_since: None,
            send_hold_armed: false,
            next_family: 0,
            sent_open,
            received_open: None,
            received_open_body: Box::default(),
            negotiated: None,
            hold,
            keepalive: Duration::ZERO,
            hold_at: Some(now + hold),
            margin: Margin::default(),
            keepalive_at: None,
            collision_hold_until: None,
            confirmed: false,
            refreshes: [RefreshOut::No; 2],
            refresh_pace: RefreshPace::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.fsm.state()
    }

    /// True if the session carries this family.
    pub(crate) fn carries(&self, family: Family) -> bool {
        self.negotiated.is_some_and(|n| n.families.contains(family))
    }

    /// The interface of a session over link-local addresses, else 0.
    pub(crate) fn link(&self) -> u32 {
        ScopedAddr::of(self.remote).interface()
    }

    /// Both ends offered enhanced refresh (RFC 7313).
    pub(crate) fn has_enhanced_refresh(&self) -> bool {
        self.sent_open.capabilities.enhanced_refresh
            && self.received_open.as_ref().is_some_and(|t| t.capabilities.enhanced_refresh)
    }

    /// Both ends said that NOTIFICATIONs are no end to graceful restart (RFC 8538 4).
    pub(crate) fn has_graceful_notification(&self) -> bool {
        let said = |open: &Open| open.capabilities.graceful_restart.as_ref().is_some_and(|g| g.notification);
        said(&self.sent_open) && self.received_open.as_ref().is_some_and(said)
    }

    pub(crate) fn is_extended(&self) -> bool {
        self.negotiated.is_some_and(|n| n.extended)
    }
}

/// Received octets that have not been read as messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Input {
    octets: Vec<u8>,
    at: usize,
}

impl Input {
    pub(crate) fn push(&mut self, octets: &[u8]) {
        if self.at > 0 {
            self.octets.drain(..self.at);
            self.at = 0;
        }
        self.octets.extend_from_slice(octets);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.octets.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn consume(&mut self, count: usize) {
        self.at += count;
        if self.at >= self.octets.len() {
            self.octets.clear();
            self.at = 0;
            // Thousands of idle connections hold nothing.
            if self.octets.capacity() > 4096 {
                self.octets = Vec::new();
            }
        }
    }

    pub(crate) fn room(&self) -> usize {
        INPUT_MAX.saturating_sub(self.as_slice().len())
    }
}
