//! Graceful restart (RFC 4724): our own, with the deferral of the selection, and as helper of peers.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Speaker;
use super::graceful_restart::{is_long_lived, keep_times, refresh_time};
use crate::api::Event;
use crate::rib::reevaluate::Job;
use crate::rib::source::Keep;
use crate::session::connection::Conn;
use crate::session::timers::Timer;
use crate::session::{Peer, Restart};
use crate::types::Family;
use crate::wire::ErrorCode;

/// Longest deferral after the first session came up.
const AFTER_FIRST: Duration = Duration::from_secs(30);
/// Longest deferral after the start.
const AFTER_START: Duration = Duration::from_secs(120);
/// How long peers that are not up are waited for although all that are up are done: longer than the delay with which the
/// other end of a mesh session dials, and its first retries.
const SETTLE: Duration = Duration::from_secs(12);
/// How soon after an event the deferral is looked at: one look for many peers.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the sender of this NOTIFICATION wants the session to end for good, so that the peer drops our routes (RFC 8538
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

/// Whether [`Event::RestartDone`] was told.
#[derive(Debug, Default)]
pub(super) struct Deferral {
    first_up: Option<Instant>,
    /// The next look is planned.
    armed: bool,
    ended: bool,
    told: bool,
    /// Until when a new connection may still carry the R bit.
    restarting_until: Option<Instant>,
}

impl Deferral {
    /// The time for which we said that we restart is over: the R bit has no meaning any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.restarting_until.is_none_or(|until| now >= until)
    }
}

impl Speaker {
    pub(super) fn begin_deferral(&mut self) {
        self.restart.restarting_until = Some(self.started + self.global.restart_time.max(AFTER_START));
        // Whatever else may end it is an event, upon which it is looked at.
        for after in [SETTLE, AFTER_START] {
            self.timers.set(Timer::Deferral, self.started + after);
        }
    }

    pub(super) fn session_came_up(&mut self) {
        if self.restart.first_up.is_none() {
            self.restart.first_up = Some(self.now);
            self.timers.set(Timer::Deferral, self.now + AFTER_FIRST);
        }
        self.schedule_check();
    }

    /// Plans a look at the deferral, because something it waits for may have come.
    pub(super) fn schedule_check(&mut self) {
        if !self.restart.ended && !self.restart.armed {
            self.restart.armed = true;
            self.timers.set(Timer::Deferral, self.now + LOOK);
        }
    }

    pub(super) fn deferral_timer(&mut self) {
        self.restart.armed = false;
        if self.restart.ended {
            return;
        }
        if !self.is_late() {
            let since_start = self.now.duration_since(self.started);
            if !self.shared.local_ready {
                return;
            }
            let up_settled = self.peers.values().all(|p| p.session.is_none() || self.is_settled(p));
            // Who may come from a range nobody knows.
            let up_or_shut = |p: &Peer| p.session.is_some() || p.config.shutdown.is_some();
            let all_up = self.ranges.is_empty() && self.peers.values().all(up_or_shut);
            let waited = since_start >= SETTLE && self.restart.first_up.is_some();
            if !up_settled || (!all_up && !waited) {
                return;
            }
            if self.hops_open() {
                self.schedule_check();
                return;
            }
        }
        self.end_deferral();
    }

    /// A route whose next hop nobody has answered for would be taken for one that is gone.
    fn hops_open(&self) -> bool {
        self.shared.next_hops.unanswered() > 0
            || self.v4.reevaluation.has(Job::NextHopTable)
            || self.v6.reevaluation.has(Job::NextHopTable)
    }

    /// Nobody is waited for any longer.
    fn is_late(&self) -> bool {
        let since = |at: Instant| self.now.duration_since(at);
        since(self.started) >= AFTER_START || self.restart.first_up.is_some_and(|up| since(up) >= AFTER_FIRST)
    }

    /// Its first routes are all here, or the selection must not wait for them.
    fn is_settled(&self, peer: &Peer) -> bool {
        // RFC 4724 4.1: not waited for are peers without the capability, and those that restart themselves.
        peer.graceful.as_ref().is_none_or(|g| g.restarted) || self.has_said_all(peer)
    }

    /// Its first routes are all here, or it will never say when.
    fn has_said_all(&self, peer: &Peer) -> bool {
        if peer.graceful.is_none() {
            return true;
        }
        let families = peer
            .session
            .and_then(|c| self.conns.get(&c))
            .and_then(|c| c.negotiated)
            .map(|n| n.families)
            .unwrap_or_default();
        let [v4, v6] = peer.end_of_rib_received;
        (v4 || !families.contains(Family::Ipv4Unicast)) && (v6 || !families.contains(Family::Ipv6Unicast))
    }

    fn end_deferral(&mut self) {
        self.restart.ended = true;
        if let Some(up) = self.restart.first_up {
            self.timers.set(Timer::Deferral, up + AFTER_FIRST);
        }
        if self.shared.deferring {
            self.shared.deferring = false;
            if self.shared.local_ready && self.shared.transit {
                // End-of-RIB goes out when this walk has put what was held back into the update groups.
                self.v4.end_of_rib_after = None;
                self.v6.end_of_rib_after = None;
            }
            self.v4.request(Job::Reexport);
            self.v6.request(Job::Reexport);
        }
    }

    /// Tells the end of the restart once all that was learned in it has been taken. Upon it stale kernel routes are
    /// swept, so it also waits for peers that say that they restart (FRR does for two minutes after every start): the
    /// selection has gone on without them, but what they announce must not be missing for a moment.
    pub(super) fn report_restart_done(&mut self) {
        if self.restart.ended
            && !self.restart.told
            && !self.v4.table.has_dirty()
            && !self.v6.table.has_dirty()
            && (self.is_late()
                || !self.hops_open()
                    && self.peers.values().all(|p| p.session.is_none() || self.has_said_all(p)))
        {
            self.restart.told = true;
            self.events.push_back(Event::RestartDone);
        }
    }

    /// All local routes are there.
    pub(super) fn local_ready(&mut self) {
        if self.shared.local_ready {
            return;
        }
        self.shared.local_ready = true;
        self.v4.end_of_rib_after = Some(self.v4.table.log.head());
        self.v6.end_of_rib_after = Some(self.v6.table.log.head());
        let sessions: Vec<_> = self.peers.values().filter_map(|p| p.session).collect();
        for conn in sessions {
            self.want_write(conn);
        }
        self.schedule_check();
    }

    /// A session ended. Returns whether routes are kept as stale.
    pub(super) fn session_ended(&mut self, number: u32, conn: &Conn, keep: bool) -> bool {
        let carried = conn.negotiated.map(|n| n.families).unwrap_or_default();
        // RFC 8538 4.1 keeps what RFC 4724 4.2 deletes: routes that were stale before.
        let kept = if conn.has_graceful_notification() { Keep::All } else { Keep::Session };
        let mut helper = false;
        for family in Family::ALL {
            if self.peers.get(&number).is_some_and(|p| !groups(p, family).is_empty()) {
                self.leave_groups(number, family);
            }
            let times = self.peers.get(&number).map(|p| keep_times(p, family)).unwrap_or_default();
            let over = self.long_lived_is_over(number, family);
            let kept = match (keep && carried.contains(family) && times.any() && !over, kept) {
                (false, _) => Keep::Nothing,
                // RFC 9494 4.2: nor does a restart within the long-lived stale time.
                (true, Keep::Session) if times.running => Keep::All,
                (true, kept) => kept,
            };
            if kept == Keep::Nothing {
                self.forget_long_lived(number, family);
            }
            let Some(source) = self.shared.sources.get_mut(number) else { continue };
            let ended = source.family_mut(family).end(kept);
            helper |= source.family(family).kept.is_some();
            if ended {
                self.purge(number, family);
            }
        }
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&number) {
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
                self.timers.set(Timer::Restart(number), until);
            }
        }
        if helper {
            self.begin_long_lived_without_waiting(number);
        }
        self.schedule_check();
        helper
    }

    /// Has paths that no longer count removed.
    pub(super) fn purge(&mut self, number: u32, family: Family) {
        // Generations are told apart as long as they are fewer than an octet holds.
        let many = self.shared.sources.get(number).is_some_and(|s| s.family(family).unswept >= 200);
        match family {
            Family::Ipv4Unicast => self.v4.request(Job::Purge),
            Family::Ipv6Unicast => self.v6.request(Job::Purge),
        }
        if many {
            match family {
                Family::Ipv4Unicast => self.v4.visit_all(&mut self.shared),
                Family::Ipv6Unicast => self.v6.visit_all(&mut self.shared),
            }
            self.purged(family);
        }
    }

    /// All paths of ended sessions are gone.
    pub(super) fn purged(&mut self, family: Family) {
        let mut gone = Vec::new();
        for (number, source) in self.shared.sources.iter_mut() {
            source.family_mut(family).unswept = 0;
            if source.removed && source.families.iter().all(|f| f.unswept == 0) {
                gone.push(number);
            }
        }
        for number in gone {
            self.shared.sources.remove(number);
        }
    }

    pub(super) fn drop_stale(&mut self, number: u32, family: Family) {
        self.forget_long_lived(number, family);
        let had = self.shared.sources.get_mut(number).is_some_and(|s| s.family_mut(family).drop_stale());
        if had {
            self.purge(number, family);
        }
    }

    /// The peer has sent all its routes of this family.
    pub(super) fn end_of_rib(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let [v4, v6] = &mut peer.end_of_rib_received;
        *(if family == Family::Ipv4Unicast { v4 } else { v6 }) = true;
        if !self.is_refreshing(number, family) {
            self.drop_stale(number, family);
        }
        let stale =
            self.shared.sources.get(number).is_some_and(|s| s.families.iter().any(|f| f.kept.is_some()));
        if let Some(peer) = self.peers.get_mut(&number)
            && !stale
            && matches!(peer.restart, Restart::Refreshing(_))
        {
            peer.restart = Restart::No;
        }
        self.schedule_check();
    }
}

/// The update groups of a peer, best paths first; none where the session does not carry the family.
pub(super) fn groups(peer: &Peer, family: Family) -> &SmallVec<[u32; 2]> {
    let [v4, v6] = &peer.groups;
    if family == Family::Ipv4Unicast { v4 } else { v6 }
}
