//! Stale routes of a peer: kept after the session for the restart time (RFC 4724 4.2, RFC 8538), then for the
//! long-lived stale time as least preferred, if both ends offered it (RFC 9494 4.2), and removed after the
//! peer has returned. Also routes that are stale during a route refresh (RFC 7313).

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::rib::source::Keep;
use crate::ribs::RibSet;
use crate::session::connection::Conn;
use crate::session::peer::{Peer, Restart};
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{Capabilities, ErrorCode, Negotiated};

/// Maximum wait for End-of-RIB of a peer that has returned, unless its restart time is longer.
const STALE: Duration = Duration::from_secs(120);
/// Maximum wait for the end of a route refresh (RFC 7313 4 requires a limit and leaves it open).
const REFRESH: Duration = Duration::from_secs(360);

/// Returns true if this NOTIFICATION ends the session for good, so that the receiver drops the sender's
/// routes (RFC 8538 5.1, which leaves the choice for an administrative reset: here it is hard). BFD down
/// counts, because forwarding has failed.
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

/// Time for which routes of a family are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KeepTimes {
    /// Restart time (RFC 4724); 0 for a family that the capability does not list.
    restart: Duration,
    /// Long-lived stale time that follows (RFC 9494).
    long_lived: Duration,
    /// True if some routes are long-lived stale already.
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

    /// Returns true if routes are kept at all.
    fn any(self) -> bool {
        self.running || !self.restart.is_zero() || !self.long_lived.is_zero()
    }
}

/// Returns the wait for End-of-RIB of a peer with this restart time.
fn refresh_time(restart: Duration) -> Duration {
    STALE.max(restart)
}

/// Returns true if a long-lived stale time runs for some routes of the peer.
fn is_long_lived(peer: &Peer) -> bool {
    peer.long_lived.iter().any(|l| l.until.is_some())
}

/// The stale routes of one peer, with the state that they depend on.
pub(super) struct StaleRoutes<'a> {
    pub(super) number: u32,
    pub(super) peer: &'a mut Peer,
    pub(super) ribs: &'a mut RibSet,
    pub(super) scheduler: &'a mut Scheduler,
}

/// Graceful restart and long-lived graceful restart.
impl StaleRoutes<'_> {
    /// Handles the end of a session, after the peer has left its update groups. `keep`: the kind of end
    /// permits keeping routes. Returns true if some are kept.
    pub(super) fn session_ended(&mut self, conn: &Conn, keep: bool) -> bool {
        let carried = conn.negotiated.map(|n| n.families).unwrap_or_default();
        // RFC 8538 4.1 keeps routes that were stale before; RFC 4724 4.2 deletes them.
        let kept = if conn.has_graceful_notification() { Keep::All } else { Keep::Session };
        let mut helper = false;
        for family in Family::ALL {
            let times = KeepTimes::of(self.peer, family);
            let over = self.is_long_lived_over(family);
            let kept = match (keep && carried.contains(family) && times.any() && !over, kept) {
                (false, _) => Keep::Nothing,
                // RFC 9494 4.2: a restart within the long-lived stale time does not delete them either.
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
            // If routes that were stale before follow other rules or are not kept, the series of restarts
            // starts anew.
            if before == Restart::No || kept == Keep::Session || is_long_lived(peer) {
                peer.restart_until = None;
            }
            // Further restarts do not extend the time of the first one.
            let last = *peer.restart_until.get_or_insert(now + time + refresh_time(time));
            let until = last.min(now + time);
            peer.restart = Restart::Waiting(until);
            self.scheduler.set(Timer::Restart(self.number), until);
            self.begin_long_lived_without_waiting();
        }
        helper
    }

    /// Handles a session in Established: decides which stale routes are kept (RFC 4724 4.2, RFC 9494 4.2),
    /// and records for how long new ones would be.
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

    /// Handles End-of-RIB of a family.
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

    /// Removes all stale routes after a hard end.
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

    /// Handles the timer of restart time, long-lived stale time and wait for End-of-RIB.
    pub(super) fn restart_timer(&mut self) {
        let served = self.scheduler.served();
        let is_over = |at: Instant| at <= served;
        for family in Family::ALL {
            let until = self.peer.long_lived.get(family.index()).and_then(|l| l.until);
            if until.is_some_and(is_over) && !self.ribs.is_refreshing(self.number, family) {
                self.drop(family);
                // RFC 9494 4.2: routes received since are not kept either if the session ends before
                // End-of-RIB.
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

    /// Starts the long-lived stale time at once for families with restart time 0.
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

    /// Handles the end of the restart time: routes still stale become long-lived stale or are removed. A
    /// long-lived stale time that runs already continues (RFC 9494 4.2).
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

    /// Returns true if the long-lived stale time ended before End-of-RIB.
    fn is_long_lived_over(&self, family: Family) -> bool {
        let until = self.peer.long_lived.get(family.index()).and_then(|l| l.until);
        until.is_some_and(|until| until <= self.scheduler.now())
    }

    /// Stops the long-lived stale time of a family.
    fn forget_long_lived(&mut self, family: Family) {
        if let Some(place) = self.peer.long_lived.get_mut(family.index()) {
            place.until = None;
        }
    }

    /// Keeps the long-lived stale time marked as expired until End-of-RIB, while the peer sends its routes
    /// again.
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
    /// Handles BoRR of the peer.
    pub(super) fn refresh_begins(&mut self, family: Family) {
        let [v4, v6] = self.peer.end_of_rib_received;
        let first = !(if family == Family::Ipv4Unicast { v4 } else { v6 });
        // RFC 7313 4: BoRR before the initial End-of-RIB is ignored, if the peer sends End-of-RIB.
        if self.peer.graceful.is_some() && first {
            return;
        }
        let until = self.scheduler.now() + REFRESH;
        if let Some(place) = self.peer.refresh_until.get_mut(family.index()) {
            *place = Some(until);
        }
        // Repeated BoRRs share one running timer.
        if !std::mem::replace(&mut self.peer.refresh_armed, true) {
            self.scheduler.set(Timer::Refresh(self.number), until);
        }
        if let Some(source) = self.ribs.source_mut(self.number) {
            source.family_mut(family).begin_refresh();
        }
    }

    /// Handles EoRR of the peer: routes not announced again are removed.
    pub(super) fn refresh_ends(&mut self, family: Family) {
        if let Some(place) = self.peer.refresh_until.get_mut(family.index()) {
            *place = None;
        }
        // EoRR without BoRR is ignored.
        if self.ribs.is_refreshing(self.number, family) {
            self.drop(family);
        }
    }

    /// Ends the refreshes whose EoRR did not arrive in time.
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
