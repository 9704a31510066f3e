//! Routes of peers that are away: kept as stale for the restart time (RFC 4724 4.2), then, where both ends want it, as the
//! least preferred ones for the long-lived stale time (RFC 9494 4.2), and what becomes of them when the peer is back.

use std::time::{Duration, Instant};

use super::Speaker;
use crate::rib::reevaluate::Job;
use crate::session::timers::Timer;
use crate::session::{Peer, Restart};
use crate::types::Family;
use crate::wire::{Capabilities, Negotiated};

/// Longest time for which stale routes wait for End-of-RIB once the peer is back.
const STALE: Duration = Duration::from_secs(120);

/// For how long routes of a family are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KeepTimes {
    /// The restart time (RFC 4724); 0 for a family that the peer did not list.
    restart: Duration,
    /// The long-lived stale time that follows.
    long_lived: Duration,
    /// Some of them are long-lived stale already.
    pub(super) running: bool,
}

impl KeepTimes {
    /// They are kept at all.
    pub(super) fn any(self) -> bool {
        self.running || !self.restart.is_zero() || !self.long_lived.is_zero()
    }
}

pub(super) fn keep_times(peer: &Peer, family: Family) -> KeepTimes {
    let Some(graceful) = &peer.graceful else { return KeepTimes::default() };
    let listed = graceful.families.iter().any(|(f, _)| *f == family);
    let long_lived = peer.long_lived.get(family.index()).copied().unwrap_or_default();
    KeepTimes {
        restart: Duration::from_secs(if listed { u64::from(graceful.time) } else { 0 }),
        long_lived: long_lived.time,
        running: long_lived.until.is_some(),
    }
}

/// How long stale routes wait for End-of-RIB of a peer with this restart time.
pub(super) fn refresh_time(restart: Duration) -> Duration {
    STALE.max(restart)
}

/// A long-lived stale time runs for some of its routes.
pub(super) fn is_long_lived(peer: &Peer) -> bool {
    peer.long_lived.iter().any(|l| l.until.is_some())
}

impl Speaker {
    /// A peer is Established: which of its stale routes stay (RFC 4724 4.2, RFC 9494 4.2), and for how long its new ones
    /// will.
    pub(super) fn peer_returned(&mut self, number: u32, session: &Negotiated, theirs: &Capabilities) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let cap = peer.config.long_lived_restart_time.unwrap_or_default();
        for (family, place) in Family::ALL.into_iter().zip(&mut peer.long_lived) {
            let time =
                theirs.long_lived(family).map_or(Duration::ZERO, |l| Duration::from_secs(l.time.into()));
            place.time = time.min(cap);
        }
        if peer.restart == Restart::No {
            return;
        }
        let graceful = peer.graceful.clone().unwrap_or_default();
        let running = peer.long_lived.map(|l| l.until.is_some());
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
                left |= self.shared.sources.get(number).is_some_and(|s| s.family(family).kept.is_some());
            } else {
                self.drop_stale(number, family);
            }
        }
        let mut until = self.now + refresh_time(Duration::from_secs(graceful.time.into()));
        if let Some(peer) = self.peers.get_mut(&number) {
            if is_long_lived(peer) {
                peer.restart_until = Some(until);
            }
            until = peer.restart_until.map_or(until, |last| last.min(until));
            peer.restart = if left { Restart::Refreshing(until) } else { Restart::No };
            if left {
                self.timers.set(Timer::Restart(number), until);
            }
        }
    }

    /// The restart time of some families is 0: they do not wait.
    pub(super) fn begin_long_lived_without_waiting(&mut self, number: u32) {
        let mut waits = false;
        for family in Family::ALL {
            let kept = self.shared.sources.get(number).is_some_and(|s| s.family(family).kept.is_some());
            let Some(times) = self.peers.get(&number).map(|p| keep_times(p, family)).filter(|_| kept) else {
                continue;
            };
            if times.restart.is_zero() {
                self.begin_long_lived(number, family);
            } else {
                waits = true;
            }
        }
        if let Some(peer) = self.peers.get_mut(&number)
            && !waits
        {
            peer.restart = Restart::LongLived;
        }
    }

    /// The restart time is over: what is still stale goes, or stays as long-lived stale. A time that runs already goes on
    /// (RFC 9494 4.2).
    fn begin_long_lived(&mut self, number: u32, family: Family) {
        let now = self.now;
        let Some(place) = self.peers.get_mut(&number).and_then(|p| p.long_lived.get_mut(family.index()))
        else {
            return;
        };
        if place.until.is_none() && place.time.is_zero() {
            self.drop_stale(number, family);
            return;
        }
        let until = *place.until.get_or_insert(now + place.time);
        self.timers.set(Timer::Restart(number), until);
        let Some(source) = self.shared.sources.get_mut(number) else { return };
        let routes = source.family_mut(family);
        routes.begin_long_lived();
        routes.reimport = true;
        // Import marks them, the purge removes those that their sender wants gone (NO_LLGR).
        for job in [Job::Reimport, Job::Purge] {
            match family {
                Family::Ipv4Unicast => self.v4.request(job),
                Family::Ipv6Unicast => self.v6.request(job),
            }
        }
    }

    /// Restart time, long-lived stale time, or the wait for End-of-RIB.
    pub(super) fn restart_timer(&mut self, number: u32) {
        let now = self.now;
        let is_over = |at: Instant| at <= now;
        for family in Family::ALL {
            let until = self.peers.get(&number).and_then(|p| p.long_lived.get(family.index())?.until);
            if until.is_some_and(is_over) && !self.is_refreshing(number, family) {
                self.drop_stale(number, family);
                // RFC 9494 4.2: what came since is kept no longer either, should the session end before End-of-RIB.
                self.stays_over(number, family, until);
            }
        }
        match self.peers.get(&number).map(|p| p.restart) {
            Some(Restart::Waiting(until)) if is_over(until) => {
                for family in Family::ALL {
                    if self.shared.sources.get(number).is_some_and(|s| s.family(family).kept.is_some()) {
                        self.begin_long_lived(number, family);
                    }
                }
                self.set_restart(number, Restart::LongLived);
            }
            Some(Restart::Refreshing(until)) if is_over(until) => {
                for family in Family::ALL {
                    if !self.is_refreshing(number, family) {
                        self.drop_stale(number, family);
                    }
                }
                self.set_restart(number, Restart::No);
            }
            _ => {}
        }
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if peer.restart == Restart::LongLived && peer.long_lived.iter().all(|l| l.until.is_none()) {
            peer.restart = Restart::No;
        }
        self.may_fade(number);
    }

    /// Its long-lived stale time ended before it had sent all its routes again.
    pub(super) fn long_lived_is_over(&self, number: u32, family: Family) -> bool {
        let until = self.peers.get(&number).and_then(|p| p.long_lived.get(family.index())?.until);
        until.is_some_and(|until| until <= self.now)
    }

    /// No long-lived stale time runs for its routes any more.
    pub(super) fn forget_long_lived(&mut self, number: u32, family: Family) {
        let peer = self.peers.get_mut(&number);
        if let Some(place) = peer.and_then(|p| p.long_lived.get_mut(family.index())) {
            place.until = None;
        }
    }

    /// The long-lived stale time of a peer that is sending its routes again is over, and stays so until End-of-RIB.
    fn stays_over(&mut self, number: u32, family: Family, until: Option<Instant>) {
        if let Some(peer) = self.peers.get_mut(&number)
            && matches!(peer.restart, Restart::Refreshing(_))
            && peer.session.is_some()
            && let Some(place) = peer.long_lived.get_mut(family.index())
        {
            place.until = until;
        }
    }

    fn set_restart(&mut self, number: u32, restart: Restart) {
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.restart = restart;
        }
    }
}
