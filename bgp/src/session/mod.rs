//! Sessions: peers and their connections as values, timers, and OPENs.
//!
//! What is here: the state of a peer ([`Peer`]) and of a connection ([`Conn`]), the heap of deadlines ([`timers`]), and what
//! we offer and accept in an OPEN ([`open`]), how often a peer may fail ([`damping`]), with the roles that may meet in one ([`role`](crate::role)), and the ranges of addresses from which
//! peers are taken that nobody configured ([`range`]). What is not: the transitions between states, which need tables and peers
//! together and live in [`speaker`](crate::speaker).
//!
//! A peer has up to two connections, one in each direction, until a collision or Established leaves one. The state that
//! is shown is that of its furthest connection; without any it is Connect (dialling), Active (waiting) or Idle.

pub(crate) mod capability_fallback;
pub(crate) mod connection;
pub(crate) mod damping;
pub(crate) mod last_error;
pub(crate) mod open;
pub(crate) mod range;
#[cfg(test)]
mod tests;
pub(crate) mod timers;

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::api::MessageCounts;
use crate::api::{ConnId, Down, Drain, PeerConfig, PeerId, RangeId, State};
use crate::session::capability_fallback::CapabilityFallback;
use crate::session::damping::Damping;
use crate::session::last_error::PeerError;
use crate::wire::GracefulRestart;

/// Whether and when we dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialling {
    /// Not planned: passive, or a session is there.
    No,
    /// At this time.
    At(Instant),
    /// The embedder was asked to.
    Now,
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
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    /// The range that it came from: it is forgotten when nothing is left of it.
    pub(crate) range: Option<RangeId>,
    pub(crate) config: PeerConfig,
    /// State that was last told.
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
    /// One that came from the same range and address before it was. Forwarding went on since then.
    pub(crate) was_served: bool,
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
    /// What the peer offered for graceful restart in the running or last session.
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
    /// Not dialled and not let in before then, after an error that needs people.
    pub(crate) penalty_until: Option<Instant>,
    /// How connections fared that the peer opened.
    pub(crate) damping: Damping,
    /// Not dialled before then, because the peer said that it wants to be left alone.
    pub(crate) unwanted_until: Option<Instant>,
    /// The limit of prefixes is near, and was told, by family.
    pub(crate) warned: [bool; 2],
    /// What the peer refused to hear of.
    pub(crate) capability_fallback: CapabilityFallback,
    /// The next OPEN leaves out what the last one was refused for: no time is lost and no failure counted.
    pub(crate) retry: bool,
    pub(crate) last_error: Option<(PeerError, Instant)>,
}

impl Peer {
    /// New connections of it are turned away for now.
    pub(crate) fn is_damped(&self, now: Instant) -> bool {
        self.penalty_until.is_some_and(|until| until > now) || self.damping.refuses(now)
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
            was_served: false,
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
            penalty_until: None,
            damping: Damping::default(),
            unwanted_until: None,
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

    /// The connection beside this one.
    pub(crate) fn rival(&self, conn: ConnId) -> Option<ConnId> {
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

/// A small generator for jitter: the crate has no source of randomness, and needs none that is unpredictable.
#[derive(Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Between three quarters and all of `time` (RFC 4271 10).
    pub(crate) fn apply(&mut self, time: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let random = crate::rib::index::mix(self.0) >> 40;
        // 24 random bits.
        time.mul_f64(0.75 + 0.25 * f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(1u32 << 24))
    }
}
