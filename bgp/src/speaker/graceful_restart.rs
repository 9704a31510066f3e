//! Routes of a peer that outlive the session they came by: kept as stale for the restart time (RFC 4724 4.2, RFC 8538), then, where
//! both ends want it, as the least preferred ones for the long-lived stale time (RFC 9494 4.2); how they go when the peer is back;
//! and those that are stale while the peer refreshes them (RFC 7313).

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::rib::source::Keep;
use crate::ribs::RibSet;
use crate::session::connection::Conn;
use crate::session::peer::{Peer, Restart};
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{Capabilities, ErrorCode, Negotiated};

/// Longest time for which stale routes wait for End-of-RIB once the peer is back.
const STALE: Duration = Duration::from_secs(120);
/// Longest time for which stale routes wait for the end of a refresh (RFC 7313 4 asks for a bound and names none).
const REFRESH: Duration = Duration::from_secs(360);

/// True if the sender of this NOTIFICATION wants the session to end for good, so that the peer drops our routes (RFC 8538
/// 5.1; where it leaves the choice, for an administrative reset, we mean it). A BFD session that failed says that
/// forwarding did.
pub(super) fn is_hard(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::HARD_RESET
            | ErrorCode::MAX_PREFIXES
            | ErrorCode::ADMIN_SHUTDOWN
            | ErrorCode::DECONFIGURED
            | ErrorCode::ADMIN_RESET
            | ErrorCode::BFD_DOWN
    )
}

/// For how long routes of a family are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KeepTimes {
    /// The restart time (RFC 4724); 0 for a family that the peer did not list.
    restart: Duration,
    /// The long-lived stale time that follows.
    long_lived: Duration,
    /// Some of them are long-lived stale already.
    running: bool,
}

impl KeepTimes {
    fn of(peer: &Peer, family: Family) -> Self {
        let Some(graceful) = &peer.graceful else { return Self::default() };
        let listed = graceful.families.iter().any(|(f, _)| *f == family);
        let long_lived = peer.long_lived.get(family.index()).copied().unwrap_or_default();
        Self {
            restart: Duration::from_secs(if listed { u64::from(graceful.time) } else { 0 }),
            long_lived: long_lived.time,
            running: long_lived.until.is_some(),
        }
    }

    /// They are kept at all.
    fn any(self) -> bool {
        self.running || !self.restart.is_zero() || !self.long_lived.is_zero()
    }
}

/// How long stale routes wait for End-of-RIB of a peer with this restart time.
fn refresh_time(restart: Duration) -> Duration {
    STALE.max(restart)
}

/// A long-lived stale time runs for some of its routes.
fn is_long_lived(peer: &Peer) -> bool {
    peer.long_lived.iter().any(|l| l.until.is_some())
}

/// The stale routes of one peer, with all that decides about them.
pub(super) struct StaleRoutes<'a> {
    pub(super) number: u32,
    pub(super) peer: &'a mut Peer,
    pub(super) ribs: &'a mut RibSet,
    pub(super) scheduler: &'a mut Scheduler,
}

/// Graceful restart.
impl StaleRoutes<'_> {
    /// The session ended, and the peer has left its update groups. `keep`: its end lets routes stay. Returns whether some do.
    pub(super) fn session_ended(&mut self, conn: &Conn, keep: bool) -> bool {
        let carried = conn.negotiated.map(|n| n.families).unwrap_or_default();
        // RFC 8538 4.1 keeps what RFC 4724 4.2 deletes: routes that were stale before.
        let kept = if conn.has_graceful_notification() { Keep::All } else { Keep::Session };
        let mut helper = false;
        for family in Family::ALL {
            let times = KeepTimes::of(self.peer, family);
            let over = self.is_long_lived_over(family);
            let kept = match (keep && carried.contains(family) && times.any() && !over, kept) {
                (false, _) => Keep::Nothing,
                // RFC 9494 4.2: nor does a restart within the long-lived stale time.
                (true, Keep::Session) if times.running => Keep::All,
                (true, kept) => kept,
            };
            if kept == Keep::Nothing {
                self.forget_long_lived(family);
            }
            helper |= self.ribs.end_session(self.number, family, kept);
        }
        let now = self.scheduler.now();
        let peer = &mut *self.peer;
        let before = std::mem::replace(&mut peer.restart, Restart::No);
        peer.refresh_until = [None; 2];
        if helper {
            let time = Duration::from_secs(peer.graceful.as_ref().map_or(0, |g| g.time).into());
            // What was stale before goes by its own rules, or it is not kept.
            if before == Restart::No || kept == Keep::Session || is_long_lived(peer) {
                peer.restart_until = None;
            }
            // The time of one restart: others that follow do not prolong it.
            let last = *peer.restart_until.get_or_insert(now + time + refresh_time(time));
            let until = last.min(now + time);
            peer.restart = Restart::Waiting(until);
            self.scheduler.set(Timer::Restart(self.number), until);
            self.begin_long_lived_without_waiting();
        }
        helper
    }

    /// The peer is Established: which of its stale routes stay (RFC 4724 4.2, RFC 9494 4.2), and for how long its new ones
    /// will.
    pub(super) fn peer_returned(&mut self, session: &Negotiated, theirs: &Capabilities) {
        let cap = self.peer.config.long_lived_restart_time.unwrap_or_default();
        for (family, place) in Family::ALL.into_iter().zip(&mut self.peer.long_lived) {
            let time =
                theirs.long_lived(family).map_or(Duration::ZERO, |l| Duration::from_secs(l.time.into()));
            place.time = time.min(cap);
        }
        if self.peer.restart == Restart::No {
            return;
        }
        let graceful = self.peer.graceful.clone().unwrap_or_default();
        let running = self.peer.long_lived.map(|l| l.until.is_some());
        let mut left = false;
        for (family, running) in Family::ALL.into_iter().zip(running) {
            let forwarded = graceful.families.iter().find(|(f, _)| *f == family).map(|(_, f)| *f);
            let kept = session.families.contains(family)
                && if running {
                    theirs.long_lived(family).is_some_and(|l| l.forwarding) && forwarded != Some(false)
                } else {
                    forwarded == Some(true)
                };
            if kept {
                left |= self.ribs.has_stale(self.number, family);
            } else {
                self.drop(family);
            }
        }
        let until = self.scheduler.now() + refresh_time(Duration::from_secs(graceful.time.into()));
        let peer = &mut *self.peer;
        if is_long_lived(peer) {
            peer.restart_until = Some(until);
        }
        let until = peer.restart_until.map_or(until, |last| last.min(until));
        peer.restart = if left { Restart::Refreshing(until) } else { Restart::No };
        if left {
            self.scheduler.set(Timer::Restart(self.number), until);
        }
    }

    /// The peer has sent all its routes of this family.
    pub(super) fn end_of_rib(&mut self, family: Family) {
        let [v4, v6] = &mut self.peer.end_of_rib_received;
        *(if family == Family::Ipv4Unicast { v4 } else { v6 }) = true;
        if !self.ribs.is_refreshing(self.number, family) {
            self.drop(family);
        }
        let stale = Family::ALL.into_iter().any(|family| self.ribs.has_stale(self.number, family));
        if !stale && matches!(self.peer.restart, Restart::Refreshing(_)) {
            self.peer.restart = Restart::No;
        }
    }

    /// Not even stale routes outlive a hard end.
    pub(super) fn drop_all(&mut self) {
        self.peer.restart = Restart::No;
        for family in Family::ALL {
            self.drop(family);
        }
    }

    fn drop(&mut self, family: Family) {
        self.forget_long_lived(family);
        self.ribs.drop_stale(self.number, family);
    }

    /// Restart time, long-lived stale time, or the wait for End-of-RIB.
    pub(super) fn restart_timer(&mut self) {
        let served = self.scheduler.served();
        let is_over = |at: Instant| at <= served;
        for family in Family::ALL {
            let until = self.peer.long_lived.get(family.index()).and_then(|l| l.until);
            if until.is_some_and(is_over) && !self.ribs.is_refreshing(self.number, family) {
                self.drop(family);
                // RFC 9494 4.2: what came since is kept no longer either, should the session end before End-of-RIB.
                self.stays_over(family, until);
            }
        }
        match self.peer.restart {
            Restart::Waiting(until) if is_over(until) => {
                for family in Family::ALL {
                    if self.ribs.has_stale(self.number, family) {
                        self.begin_long_lived(family);
                    }
                }
                self.peer.restart = Restart::LongLived;
            }
            Restart::Refreshing(until) if is_over(until) => {
                for family in Family::ALL {
                    if !self.ribs.is_refreshing(self.number, family) {
                        self.drop(family);
                    }
                }
                self.peer.restart = Restart::No;
            }
            _ => {}
        }
        if self.peer.restart == Restart::LongLived && !is_long_lived(self.peer) {
            self.peer.restart = Restart::No;
        }
    }

    /// The restart time of some families is 0: they do not wait.
    fn begin_long_lived_without_waiting(&mut self) {
        let mut waits = false;
        for family in Family::ALL {
            if !self.ribs.has_stale(self.number, family) {
                continue;
            }
            if KeepTimes::of(self.peer, family).restart.is_zero() {
                self.begin_long_lived(family);
            } else {
                waits = true;
            }
        }
        if !waits {
            self.peer.restart = Restart::LongLived;
        }
    }

    /// The restart time is over: what is still stale goes, or stays as long-lived stale. A time that runs already goes on
    /// (RFC 9494 4.2).
    fn begin_long_lived(&mut self, family: Family) {
        let Some(place) = self.peer.long_lived.get_mut(family.index()) else { return };
        if place.until.is_none() && place.time.is_zero() {
            self.drop(family);
            return;
        }
        let until = *place.until.get_or_insert(self.scheduler.now() + place.time);
        self.scheduler.set(Timer::Restart(self.number), until);
        self.ribs.begin_long_lived(self.number, family);
    }

    /// Its long-lived stale time ended before it had sent all its routes again.
    fn is_long_lived_over(&self, family: Family) -> bool {
        let until = self.peer.long_lived.get(family.index()).and_then(|l| l.until);
        until.is_some_and(|until| until <= self.scheduler.now())
    }

    /// No long-lived stale time runs for its routes any more.
    fn forget_long_lived(&mut self, family: Family) {
        if let Some(place) = self.peer.long_lived.get_mut(family.index()) {
            place.until = None;
        }
    }

    /// The long-lived stale time of a peer that is sending its routes again is over, and stays so until End-of-RIB.
    fn stays_over(&mut self, family: Family, until: Option<Instant>) {
        if matches!(self.peer.restart, Restart::Refreshing(_))
            && self.peer.session.is_some()
            && let Some(place) = self.peer.long_lived.get_mut(family.index())
        {
            place.until = until;
        }
    }
}

/// Enhanced route refresh (RFC 7313).
impl StaleRoutes<'_> {
    /// The peer's refresh begins.
    pub(super) fn refresh_begins(&mut self, family: Family) {
        let [v4, v6] = self.peer.end_of_rib_received;
        let first = !(if family == Family::Ipv4Unicast { v4 } else { v6 });
        // RFC 7313 4: ignored before the End-of-RIB of a peer that sends one.
        if self.peer.graceful.is_some() && first {
            return;
        }
        let until = self.scheduler.now() + REFRESH;
        if let Some(place) = self.peer.refresh_until.get_mut(family.index()) {
            *place = Some(until);
        }
        // A peer that begins again and again has one deadline all the same.
        if !std::mem::replace(&mut self.peer.refresh_armed, true) {
            self.scheduler.set(Timer::Refresh(self.number), until);
        }
        if let Some(source) = self.ribs.source_mut(self.number) {
            source.family_mut(family).begin_refresh();
        }
    }

    /// The peer's refresh is over: what did not come again is gone.
    pub(super) fn refresh_ends(&mut self, family: Family) {
        if let Some(place) = self.peer.refresh_until.get_mut(family.index()) {
            *place = None;
        }
        // An end without a beginning says nothing.
        if self.ribs.is_refreshing(self.number, family) {
            self.drop(family);
        }
    }

    /// Ends refreshes whose end did not come in time.
    pub(super) fn refresh_timer(&mut self) {
        for family in Family::ALL {
            let until = self.peer.refresh_until.get(family.index()).copied().flatten();
            if until.is_some_and(|until| until <= self.scheduler.served()) {
                self.refresh_ends(family);
            }
        }
        let next = self.peer.refresh_until.into_iter().flatten().min();
        self.peer.refresh_armed = next.is_some();
        if let Some(next) = next {
            self.scheduler.set(Timer::Refresh(self.number), next);
        }
    }
}
