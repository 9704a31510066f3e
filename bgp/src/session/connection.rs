//! State of one TCP connection: FSM, negotiated parameters, timers, queued input and output.

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

/// Maximum number of queued input octets of a connection: two extended messages.
pub(crate) const INPUT_MAX: usize = 128 * 1024;

/// Side that opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Outgoing,
    Incoming,
}

/// A TCP connection to a peer, from the OPEN on.
#[derive(Debug, Clone)]
pub(crate) struct Conn {
    /// Source number of the peer.
    pub(crate) peer: u32,
    pub(crate) direction: Direction,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// State machine in OpenSent, OpenConfirm or Established.
    pub(crate) fsm: Fsm,
    pub(crate) input: Input,
    /// True while the connection is in the queue of [`Connections`](super::connections::Connections) with
    /// whole messages to read.
    pub(crate) queued: bool,
    /// Encoded messages other than UPDATEs; they are sent before all UPDATEs.
    pub(crate) control: Vec<u8>,
    /// Positions in shared logs of encoded UPDATEs that are not copied out completely.
    pub(crate) cursors: VecDeque<Cursor>,
    /// Time of the pending [`Event::WantWrite`](crate::Event::WantWrite). `None` after the embedder has taken
    /// octets.
    pub(crate) write_pending_since: Option<Instant>,
    pub(crate) send_hold_armed: bool,
    /// Index of the family that is served first in the next round.
    pub(crate) next_family: usize,
    pub(crate) sent_open: Open,
    pub(crate) received_open: Option<Open>,
    /// Body of the received OPEN, for BMP.
    pub(crate) received_open_body: Box<[u8]>,
    pub(crate) negotiated: Option<Negotiated>,
    /// Hold time; 0 disables the timer.
    pub(crate) hold: Duration,
    /// Keepalive interval; 0 disables the timer.
    pub(crate) keepalive: Duration,
    pub(crate) hold_at: Option<Instant>,
    pub(crate) margin: Margin,
    pub(crate) keepalive_at: Option<Instant>,
    /// Set while the connection, whose OPEN arrived, waits for another one with precedence
    /// ([`Resolution::AwaitOther`](super::collision::Resolution::AwaitOther)). No KEEPALIVE is sent until
    /// this time.
    pub(crate) collision_hold_until: Option<Instant>,
    /// True if a KEEPALIVE arrived during that wait.
    pub(crate) confirmed: bool,
    /// Route refreshes to send, by family.
    pub(crate) refreshes: [RefreshOut; 2],
    pub(crate) refresh_pace: RefreshPace,
}

/// Lowest fraction of the hold time that was left when a message arrived, over the last 2.5 to 5 minutes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Margin {
    /// Start of the current half. `None` before the first message.
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

    /// Records the arrival of a message. `deadline`: expiry of the hold timer without it.
    pub(crate) fn note(&mut self, deadline: Instant, hold: Duration, now: Instant) {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) >= Self::HALF) {
            (self.began, self.before, self.now) = (Some(now), self.now, 1.0);
        }
        self.now = self.now.min(Self::part(deadline, hold, now));
    }

    /// Returns the lowest fraction, including the present one.
    pub(crate) fn least(&self, deadline: Instant, hold: Duration, now: Instant) -> f32 {
        self.now.min(self.before).min(Self::part(deadline, hold, now))
    }

    fn part(deadline: Instant, hold: Duration, now: Instant) -> f32 {
        (deadline.saturating_duration_since(now).as_secs_f32() / hold.as_secs_f32()).min(1.0)
    }
}

/// State of a route refresh towards the peer (RFC 7313).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RefreshOut {
    #[default]
    No,
    /// Requested before End-of-RIB was sent; begins after it.
    AfterEndOfRib,
    /// Requested; begins when the peer next takes output.
    Requested,
    /// BoRR is sent; EoRR follows after all routes.
    Begun,
}

impl Conn {
    /// Creates a connection in its initial state. `hold`: hold time until the OPEN of the peer arrives.
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

    /// Returns true if the session carries this family.
    pub(crate) fn carries(&self, family: Family) -> bool {
        self.negotiated.is_some_and(|n| n.families.contains(family))
    }

    /// Returns the interface index of a session between link-local addresses, else 0.
    pub(crate) fn link(&self) -> u32 {
        ScopedAddr::of(self.remote).interface()
    }

    /// Returns true if both ends offered enhanced route refresh (RFC 7313).
    pub(crate) fn has_enhanced_refresh(&self) -> bool {
        self.sent_open.capabilities.enhanced_refresh
            && self.received_open.as_ref().is_some_and(|t| t.capabilities.enhanced_refresh)
    }

    /// Returns true if both ends set the N bit: graceful restart applies after a NOTIFICATION too (RFC 8538
    /// 4).
    pub(crate) fn has_graceful_notification(&self) -> bool {
        let said = |open: &Open| open.capabilities.graceful_restart.as_ref().is_some_and(|g| g.notification);
        said(&self.sent_open) && self.received_open.as_ref().is_some_and(said)
    }

    pub(crate) fn is_extended(&self) -> bool {
        self.negotiated.is_some_and(|n| n.extended)
    }
}

/// Received octets that are not processed yet.
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
            // An idle connection keeps no buffer, because there may be thousands.
            if self.octets.capacity() > 4096 {
                self.octets = Vec::new();
            }
        }
    }

    pub(crate) fn room(&self) -> usize {
        INPUT_MAX.saturating_sub(self.as_slice().len())
    }
}
