//! A peer: its configuration, and the state that outlives its connections.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::capability_fallback::CapabilityFallback;
use super::connection::{Conn, Direction};
use super::damping::{self, Damping};
use super::last_error::PeerError;
use crate::api::{ConnId, Down, DownCode, Drain, MessageCounts, PeerConfig, PeerId, RangeId, State};
use crate::types::Family;
use crate::wire::{ErrorCode, GracefulRestart};

/// ConnectRetryTimer of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialling {
    /// Not scheduled: passive, shut down, or a session is up.
    No,
    /// Next dial at this time.
    At(Instant),
    /// The embedder is opening a TCP connection ([`Event::Dial`](crate::Event::Dial)).
    Connecting,
}

/// Graceful restart of the peer, with this speaker as helper (RFC 4724 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    No,
    /// Session down; routes are kept until this time.
    Waiting(Instant),
    /// Restart time over; routes are kept by family, see [`LongLived`].
    LongLived,
    /// Session up again; stale routes are kept until End-of-RIB, at the latest until this time.
    Refreshing(Instant),
}

/// Long-lived graceful restart of a peer, for one family (RFC 9494 4.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LongLived {
    /// Long-lived stale time: that in the OPEN of the running or last session, limited by our configuration.
    pub(crate) time: Duration,
    /// Time until which long-lived stale routes are kept. `None`: the timer is not running.
    pub(crate) until: Option<Instant>,
}

/// A peer: configured, or dynamic (of a range).
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// Range of a dynamic peer, which is removed when it has no connection and no routes left. `None`:
    /// configured.
    pub(crate) range: Option<RangeId>,
    pub(crate) config: PeerConfig,
    /// State as last reported.
    pub(crate) state: State,
    pub(crate) since: Instant,
    pub(crate) dialling: Dialling,
    pub(crate) outgoing: Option<ConnId>,
    pub(crate) incoming: Option<ConnId>,
    /// The connection in Established, one of the two above.
    pub(crate) session: Option<ConnId>,
    pub(crate) up_at: Option<Instant>,
    /// A session has been up since the start of the speaker.
    pub(crate) was_up: bool,
    /// An earlier dynamic peer of the same range and address had a session, and forwarding has not been
    /// interrupted since.
    pub(crate) had_session_before: bool,
    /// Update groups by family: one per path of a prefix that the peer is sent.
    pub(crate) groups: [SmallVec<[u32; 2]>; 2],
    pub(crate) end_of_rib_received: [bool; 2],
    /// Failed attempts since the last session.
    pub(crate) failures: u32,
    pub(crate) flaps: u32,
    pub(crate) last_down: Option<(Down, Instant)>,
    pub(crate) received: MessageCounts,
    pub(crate) sent: MessageCounts,
    pub(crate) rejected: u64,
    /// Graceful restart capability of the peer in the running or last session.
    pub(crate) graceful: Option<GracefulRestart>,
    pub(crate) restart: Restart,
    /// End of a series of restarts that follow each other without End-of-RIB (RFC 8538 4.1).
    pub(crate) restart_until: Option<Instant>,
    pub(crate) drain: Drain,
    /// Long-lived graceful restart, by family.
    pub(crate) long_lived: [LongLived; 2],
    /// Latest end of a route refresh that has begun (RFC 7313), by family.
    pub(crate) refresh_until: [Option<Instant>; 2],
    /// True if a timer runs for the ends of refreshes.
    pub(crate) refresh_armed: bool,
    /// IdleHoldTimer: until this time the peer is neither dialled nor accepted, after an error that needs an
    /// operator.
    pub(crate) idle_hold_until: Option<Instant>,
    /// Rate limit for failing incoming connections.
    pub(crate) damping: Damping,
    /// The peer is not dialled before this time, because it rejected the number of our prefixes.
    pub(crate) dial_hold_until: Option<Instant>,
    /// By family: true while the number of routes is above the warning threshold, so that it is reported
    /// once.
    pub(crate) warned: [bool; 2],
    /// Capabilities that the peer rejected.
    pub(crate) capability_fallback: CapabilityFallback,
    /// The next OPEN omits what the last one was rejected for, so the retry is immediate and does not count
    /// as a failure.
    pub(crate) retry: bool,
    pub(crate) last_error: Option<(PeerError, Instant)>,
}

impl Peer {
    /// Returns the update groups, that of the best path first; empty if the session does not carry the
    /// family.
    pub(crate) fn groups(&self, family: Family) -> &SmallVec<[u32; 2]> {
        let [v4, v6] = &self.groups;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    /// Returns the state of the dialling state machine: Connect or Active.
    pub(crate) fn dial_state(&self) -> State {
        if self.dialling == Dialling::Connecting { State::Connect } else { State::Active }
    }

    /// Returns the state of a peer without connections. `stopping`: the speaker is shutting down.
    pub(crate) fn state_without_connection(&self, stopping: bool, now: Instant) -> State {
        let is_held = self.idle_hold_until.is_some_and(|until| until > now);
        if stopping || self.config.shutdown.is_some() || is_held { State::Idle } else { self.dial_state() }
    }

    /// Clears all timers and counters that delay dialling or accepting.
    pub(crate) fn clear_holds(&mut self) {
        self.idle_hold_until = None;
        self.damping = Damping::default();
        self.dial_hold_until = None;
        self.failures = 0;
        self.capability_fallback = CapabilityFallback::default();
    }

    /// Iterates over the times before which the peer is not dialled.
    pub(crate) fn dial_holds(&self) -> impl Iterator<Item = Instant> + use<> {
        [self.idle_hold_until, self.dial_hold_until].into_iter().flatten()
    }

    /// Records that the session is up on this connection.
    pub(crate) fn session_up(&mut self, id: ConnId, graceful: Option<GracefulRestart>, now: Instant) {
        self.session = Some(id);
        self.up_at = Some(now);
        self.failures = 0;
        self.idle_hold_until = None;
        self.dial_hold_until = None;
        self.warned = [false; 2];
        self.end_of_rib_received = [false; 2];
        self.graceful = graceful;
        if matches!(self.dialling, Dialling::At(_)) {
            self.dialling = Dialling::No;
        }
        self.was_up = true;
    }

    /// Records the end of the session. Returns true if it was short enough to count as a failure.
    pub(crate) fn session_down(&mut self, now: Instant) -> bool {
        self.flaps += 1;
        let young = self.up_at.is_some_and(|up| now.duration_since(up) < damping::YOUNG);
        self.capability_fallback = CapabilityFallback::default();
        self.up_at = None;
        young
    }

    /// Records the end of a connection that is already removed. `session`: set if it was in Established.
    pub(crate) fn note_end(
        &mut self,
        conn: &Conn,
        session: Option<ShortLived>,
        down: &Down,
        now: Instant,
    ) -> Ended {
        // Neither the loss of a collision nor an end while the other connection continues is a failure.
        let collided = down.code == DownCode::Collision
            || down.notification == Some(ErrorCode::COLLISION.pair())
            || self.conns().next().is_some();
        let retry = std::mem::take(&mut self.retry);
        let failed = session.is_none() && !collided && !retry;
        let error =
            failed && matches!(down.code, DownCode::NotificationSent | DownCode::NotificationReceived);
        if failed {
            self.failures += 1;
            if error {
                self.capability_fallback = CapabilityFallback::default();
            }
        }
        // A short session counts as a failure, because no well-behaved peer needs to end one at once. Our
        // NOTIFICATION for an invalid message counts too, because the peer may send that message again.
        let invalid = session.is_some() && down.code == DownCode::NotificationSent;
        if conn.direction == Direction::Incoming
            && self.range.is_none()
            && (failed || session == Some(ShortLived(true)) || invalid)
        {
            self.damping.note_failure(now);
        }
        Ended { error, is_reported: !collided || session.is_some() }
    }

    /// Returns true if incoming connections of the peer are refused now.
    pub(crate) fn is_damped(&self, now: Instant) -> bool {
        self.idle_hold_until.is_some_and(|until| until > now) || self.damping.refuses(now)
    }

    /// Returns the remaining time of the refusal.
    pub(crate) fn refused_for(&self, now: Instant) -> Option<Duration> {
        let held = self.idle_hold_until.and_then(|until| until.checked_duration_since(now));
        held.filter(|left| !left.is_zero()).max(self.damping.left(now))
    }

    pub(crate) fn new(id: PeerId, config: PeerConfig, now: Instant) -> Self {
        Self {
            id,
            range: None,
            config,
            state: State::Idle,
            since: now,
            dialling: Dialling::No,
            outgoing: None,
            incoming: None,
            session: None,
            up_at: None,
            was_up: false,
            had_session_before: false,
            groups: [SmallVec::new(), SmallVec::new()],
            end_of_rib_received: [false; 2],
            failures: 0,
            flaps: 0,
            last_down: None,
            received: MessageCounts::default(),
            sent: MessageCounts::default(),
            rejected: 0,
            graceful: None,
            restart: Restart::No,
            restart_until: None,
            drain: Drain::Off,
            long_lived: [LongLived::default(); 2],
            refresh_until: [None; 2],
            refresh_armed: false,
            idle_hold_until: None,
            damping: Damping::default(),
            dial_hold_until: None,
            warned: [false; 2],
            capability_fallback: CapabilityFallback::default(),
            retry: false,
            last_error: None,
        }
    }

    /// Iterates over the connections of the peer.
    pub(crate) fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.outgoing.into_iter().chain(self.incoming)
    }

    /// Returns the other connection of the peer.
    pub(crate) fn other_connection(&self, conn: ConnId) -> Option<ConnId> {
        self.conns().find(|c| *c != conn)
    }

    pub(crate) fn forget(&mut self, conn: ConnId) {
        for place in [&mut self.outgoing, &mut self.incoming, &mut self.session] {
            if *place == Some(conn) {
                *place = None;
            }
        }
    }
}

/// True if a session ended soon after it came up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortLived(pub(crate) bool);

/// Effect of the end of a connection on the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// The attempt ended with a NOTIFICATION: an operator probably has to fix the cause.
    pub(crate) error: bool,
    /// The end is reported in an event, because no other connection of the peer continues.
    pub(crate) is_reported: bool,
}
