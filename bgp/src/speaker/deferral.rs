//! Our own graceful restart (RFC 4724 4.1): the selection of routes is deferred until all peers have sent theirs, or for a time.

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::ribs::RibSet;
use crate::session::connections::Connections;
use crate::session::peer::Peer;
use crate::session::peer_table::PeerTable;
use crate::session::timers::Timer;
use crate::types::Family;

/// Longest deferral after the first session came up.
const AFTER_FIRST: Duration = Duration::from_secs(30);
/// Longest deferral after the start.
const AFTER_START: Duration = Duration::from_secs(120);
/// How long peers that are not up are waited for although all that are up are done: longer than the delay with which the
/// other end of a mesh session dials, and its first retries.
const SETTLE: Duration = Duration::from_secs(12);
/// How soon after an event the end of the deferral is checked: one check for many peers.
const CHECK_DELAY: Duration = Duration::from_millis(20);

/// The deferral, from the start of the speaker on.
#[derive(Debug, Clone)]
pub(super) struct Deferral {
    first_up: Option<Instant>,
    /// The next check is scheduled.
    armed: bool,
    ended: bool,
    /// [`Event::RestartDone`](crate::Event::RestartDone) was given.
    reported: bool,
    /// Until when a new connection may still carry the R bit.
    restarting_until: Instant,
}

impl Deferral {
    pub(super) fn new(restart_time: Duration, scheduler: &mut Scheduler) -> Self {
        let started = scheduler.started();
        // Whatever else may end it is an event, upon which it is checked.
        for after in [SETTLE, AFTER_START] {
            scheduler.set(Timer::Deferral, started + after);
        }
        let restarting_until = started + restart_time.max(AFTER_START);
        Self { first_up: None, armed: false, ended: false, reported: false, restarting_until }
    }

    /// The time for which we said that we restart is over: the R bit has no meaning any more.
    pub(super) fn is_restart_over(&self, now: Instant) -> bool {
        now >= self.restarting_until
    }

    pub(super) fn session_up(&mut self, scheduler: &mut Scheduler) {
        if self.first_up.is_none() {
            self.first_up = Some(scheduler.now());
            scheduler.set_after(Timer::Deferral, AFTER_FIRST);
        }
        self.schedule_check(scheduler);
    }

    /// Schedules a check, because something that the deferral waits for may have come.
    pub(super) fn schedule_check(&mut self, scheduler: &mut Scheduler) {
        if !self.ended && !self.armed {
            self.armed = true;
            scheduler.set_after(Timer::Deferral, CHECK_DELAY);
        }
    }

    /// Its timer expired: ends the deferral if nothing has to be waited for.
    pub(super) fn check(
        &mut self,
        peers: &PeerTable,
        connections: &Connections,
        ribs: &mut RibSet,
        scheduler: &mut Scheduler,
    ) {
        self.armed = false;
        if self.ended {
            return;
        }
        if !self.is_late(scheduler) {
            if !ribs.shared().local_ready {
                return;
            }
            let since_start = scheduler.served().duration_since(scheduler.started());
            let up_settled = peers.iter().all(|p| p.session.is_none() || is_settled(p, connections));
            // Nobody knows which peers may come from a range.
            let up_or_shut = |p: &Peer| p.session.is_some() || p.config.shutdown.is_some();
            let all_up = peers.ranges().is_empty() && peers.iter().all(up_or_shut);
            let waited = since_start >= SETTLE && self.first_up.is_some();
            if !up_settled || (!all_up && !waited) {
                return;
            }
            if ribs.has_unresolved_next_hops() {
                self.schedule_check(scheduler);
                return;
            }
        }
        self.ended = true;
        if let Some(up) = self.first_up {
            scheduler.set(Timer::Deferral, up + AFTER_FIRST);
        }
        ribs.end_deferral();
    }

    /// Nobody is waited for any longer.
    fn is_late(&self, scheduler: &Scheduler) -> bool {
        let since = |at: Instant| scheduler.served().duration_since(at);
        since(scheduler.started()) >= AFTER_START || self.first_up.is_some_and(|up| since(up) >= AFTER_FIRST)
    }

    /// True if the end of the restart is to be reported now: once, when all that was learned in it has been taken. Upon it
    /// stale kernel routes are swept, so it also waits for peers that say that they restart (FRR does for two minutes after
    /// every start): the selection has gone on without them, but what they announce must not be missing for a moment.
    pub(super) fn report_end(
        &mut self,
        peers: &PeerTable,
        connections: &Connections,
        ribs: &RibSet,
        scheduler: &Scheduler,
    ) -> bool {
        let has_end_of_rib = |p: &Peer| p.session.is_none() || has_end_of_rib(p, connections);
        let report = self.ended
            && !self.reported
            && !ribs.has_changed_best()
            && (self.is_late(scheduler)
                || !ribs.has_unresolved_next_hops() && peers.iter().all(has_end_of_rib));
        self.reported |= report;
        report
    }
}

/// Its first routes are all here, or the selection must not wait for them.
fn is_settled(peer: &Peer, connections: &Connections) -> bool {
    // RFC 4724 4.1: not waited for are peers without the capability, and those that restart themselves.
    peer.graceful.as_ref().is_none_or(|g| g.restarted) || has_end_of_rib(peer, connections)
}

/// Its End-of-RIB is here for all families, or it will never send one.
fn has_end_of_rib(peer: &Peer, connections: &Connections) -> bool {
    if peer.graceful.is_none() {
        return true;
    }
    let negotiated = connections.session(peer).and_then(|c| c.negotiated);
    let families = negotiated.map(|n| n.families).unwrap_or_default();
    let [v4, v6] = peer.end_of_rib_received;
    (v4 || !families.contains(Family::Ipv4Unicast)) && (v6 || !families.contains(Family::Ipv6Unicast))
}
