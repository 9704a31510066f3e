//! A peer: its configuration, and all that is kept of it from one connection to the next.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::capability_fallback::CapabilityFallback;
use super::connection::{Conn, Direction};
use super::damping::{self, Damping};
use super::last_error::PeerError;
use crate::api::{ConnId, Down, DownCode, Drain, MessageCounts, PeerConfig, PeerId, RangeId, State};
use crate::types::Family;
use crate::wire::{ErrorCode, GracefulRestart};

/// The ConnectRetryTimer of a peer: if and when it is dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialling {
    /// Not planned: passive, or a session is there.
    No,
    /// At this time.
    At(Instant),
    /// The embedder was asked to: a TCP connection is being opened.
    Connecting,
}

/// A restart of the peer (RFC 4724 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    No,
    /// It is away; its routes are kept until then.
    Waiting(Instant),
    /// It is away for longer; see [`LongLived`].
    LongLived,
    /// It is back; stale routes are kept until End-of-RIB, at the latest until then.
    Refreshing(Instant),
}

/// Long-lived graceful restart of a peer, for one family (RFC 9494 4.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LongLived {
    /// How long its routes are kept after the restart time: what it asked for in the running or last session, and we allow.
    pub(crate) time: Duration,
    /// Long-lived stale routes are kept until then.
    pub(crate) until: Option<Instant>,
}

/// A configured peer, or one that came from a range.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// The range that it came from: it is forgotten when nothing is left of it.
    pub(crate) range: Option<RangeId>,
    pub(crate) config: PeerConfig,
    /// State that was last reported.
    pub(crate) state: State,
    pub(crate) since: Instant,
    pub(crate) dialling: Dialling,
    pub(crate) outgoing: Option<ConnId>,
    pub(crate) incoming: Option<ConnId>,
    /// Which of the two is Established.
    pub(crate) session: Option<ConnId>,
    pub(crate) up_at: Option<Instant>,
    /// It was Established since we started.
    pub(crate) was_up: bool,
    /// A peer of the same range and address had a session before. Forwarding went on since then.
    pub(crate) had_session_before: bool,
    /// Its update groups, by family: one for each path of a prefix that it is sent.
    pub(crate) groups: [SmallVec<[u32; 2]>; 2],
    pub(crate) end_of_rib_received: [bool; 2],
    /// Attempts that failed since the last session.
    pub(crate) failures: u32,
    pub(crate) flaps: u32,
    pub(crate) last_down: Option<(Down, Instant)>,
    pub(crate) received: MessageCounts,
    pub(crate) sent: MessageCounts,
    pub(crate) rejected: u64,
    /// The graceful restart capability of the peer in the running or last session.
    pub(crate) graceful: Option<GracefulRestart>,
    pub(crate) restart: Restart,
    /// When restarts that follow each other without an end of one have to come to one (RFC 8538 4.1).
    pub(crate) restart_until: Option<Instant>,
    pub(crate) drain: Drain,
    /// By family.
    pub(crate) long_lived: [LongLived; 2],
    /// Until when the end of a refresh is waited for, by family.
    pub(crate) refresh_until: [Option<Instant>; 2],
    /// A deadline for the ends of refreshes is set.
    pub(crate) refresh_armed: bool,
    /// Idle until then: neither dialled nor let in, after an error that needs people (IdleHoldTimer).
    pub(crate) idle_hold_until: Option<Instant>,
    /// How connections fared that the peer opened.
    pub(crate) damping: Damping,
    /// Not dialled before then, because the peer found our prefixes too many.
    pub(crate) dial_hold_until: Option<Instant>,
    /// The limit of prefixes is near, and a warning was given, by family.
    pub(crate) warned: [bool; 2],
    /// Capabilities that the peer refused.
    pub(crate) capability_fallback: CapabilityFallback,
    /// The next OPEN leaves out what the last one was refused for: no time is lost and no failure counted.
    pub(crate) retry: bool,
    pub(crate) last_error: Option<(PeerError, Instant)>,
}

impl Peer {
    /// Its update groups, best paths first; none where the session does not carry the family.
    pub(crate) fn groups(&self, family: Family) -> &SmallVec<[u32; 2]> {
        let [v4, v6] = &self.groups;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    /// The state of the machine that dials: Connect or Active.
    pub(crate) fn dial_state(&self) -> State {
        if self.dialling == Dialling::Connecting { State::Connect } else { State::Active }
    }

    /// The state of a peer without a connection. `stopping`: the speaker ends.
    pub(crate) fn state_without_connection(&self, stopping: bool, now: Instant) -> State {
        let is_held = self.idle_hold_until.is_some_and(|until| until > now);
        if stopping || self.config.shutdown.is_some() || is_held { State::Idle } else { self.dial_state() }
    }

    /// Forgets what keeps the peer from being dialled or let in at once.
    pub(crate) fn clear_holds(&mut self) {
        self.idle_hold_until = None;
        self.damping = Damping::default();
        self.dial_hold_until = None;
        self.failures = 0;
        self.capability_fallback = CapabilityFallback::default();
    }

    /// Not dialled before the last of these times.
    pub(crate) fn dial_holds(&self) -> impl Iterator<Item = Instant> + use<> {
        [self.idle_hold_until, self.dial_hold_until].into_iter().flatten()
    }

    /// Its session came up on this connection.
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

    /// Its session ended; `true`: it was so short that it counts as a failure.
    pub(crate) fn session_down(&mut self, now: Instant) -> bool {
        self.flaps += 1;
        let young = self.up_at.is_some_and(|up| now.duration_since(up) < damping::YOUNG);
        self.capability_fallback = CapabilityFallback::default();
        self.up_at = None;
        young
    }

    /// A connection of it ended, and has been forgotten. `session`: it was Established, and for how short a time.
    pub(crate) fn note_end(
        &mut self,
        conn: &Conn,
        session: Option<ShortLived>,
        down: &Down,
        now: Instant,
    ) -> Ended {
        // Where the other connection goes on, or one lost to the other, nothing failed.
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
        // Nobody has to hurry to end a session at once, and a peer that sends invalid messages may do so again.
        let invalid = session.is_some() && down.code == DownCode::NotificationSent;
        if conn.direction == Direction::Incoming
            && self.range.is_none()
            && (failed || session == Some(ShortLived(true)) || invalid)
        {
            self.damping.note_failure(now);
        }
        Ended { error, is_reported: !collided || session.is_some() }
    }

    /// New connections of it are turned away for now.
    pub(crate) fn is_damped(&self, now: Instant) -> bool {
        self.idle_hold_until.is_some_and(|until| until > now) || self.damping.refuses(now)
    }

    /// For how long they are.
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

    /// Its connections.
    pub(crate) fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.outgoing.into_iter().chain(self.incoming)
    }

    /// The peer's other connection.
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

/// A session ended soon after it had come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortLived(pub(crate) bool);

/// Consequences of the end of a connection for its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// An attempt ended with a NOTIFICATION: people have to do something before the next one can succeed.
    pub(crate) error: bool,
    /// It is the last end of the peer, and reported as such.
    pub(crate) is_reported: bool,
}
