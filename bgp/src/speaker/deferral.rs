//! Graceful restart of this speaker (RFC 4724 4.1): route selection is deferred until all peers have sent
//! End-of-RIB, or until a time limit.

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::ribs::RibSet;
use crate::session::connections::Connections;
use crate::session::peer::Peer;
use crate::session::peer_table::PeerTable;
use crate::session::timers::Timer;
use crate::types::Family;

/// Maximum deferral after the first session came up.
const AFTER_FIRST: Duration = Duration::from_secs(30);
/// Maximum deferral after the start.
const AFTER_START: Duration = Duration::from_secs(120);
/// Time for which the deferral waits for peers without a session when all others are done. Longer than the
/// dial delay of the passive side of a mesh session plus its first retries.
const SETTLE: Duration = Duration::from_secs(12);
/// Delay between an event and the check of the deferral, so that one check covers many peers.
const CHECK_DELAY: Duration = Duration::from_millis(20);

/// State of the deferral, from the start of the speaker on.
#[derive(Debug, Clone)]
pub(super) struct Deferral {
    first_up: Option<Instant>,
    /// A check is scheduled.
    armed: bool,
    ended: bool,
    /// [`Event::RestartDone`](crate::Event::RestartDone) was reported.
    reported: bool,
    /// Time until which new connections may set the R bit.
    restarting_until: Instant,
}

impl Deferral {
    pub(super) fn new(restart_time: Duration, scheduler: &mut Scheduler) -> Self {
        let started = scheduler.started();
        // All other conditions change with an event, which schedules a check.
        for after in [SETTLE, AFTER_START] {
            scheduler.set(Timer::Deferral, started + after);
        }
        let restarting_until = started + restart_time.max(AFTER_START);
        Self { first_up: None, armed: false, ended: false, reported: false, restarting_until }
    }

    /// Returns true if our restart time is over, so that the R bit must not be set any more.
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

    /// Schedules a check after an event that may end the deferral.
    pub(super) fn schedule_check(&mut self, scheduler: &mut Scheduler) {
        if !self.ended && !self.armed {
            self.armed = true;
            scheduler.set_after(Timer::Deferral, CHECK_DELAY);
        }
    }

    /// Handles the timer: ends the deferral if all conditions are met.
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
            // The peers of a range are not known in advance.
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

    /// Returns true if a time limit has expired.
    fn is_late(&self, scheduler: &Scheduler) -> bool {
        let since = |at: Instant| scheduler.served().duration_since(at);
        since(scheduler.started()) >= AFTER_START || self.first_up.is_some_and(|up| since(up) >= AFTER_FIRST)
    }

    /// Returns true once, when the end of the restart has to be reported and all best paths have been taken.
    /// The embedder then sweeps stale kernel routes. The report therefore also waits for peers that are
    /// restarting themselves (FRR sets the R bit for two minutes after each start): route selection did not
    /// wait for them, but the kernel routes they announce must not disappear in between.
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

/// Returns true if all initial routes of the peer have arrived, or if selection must not wait for them.
fn is_settled(peer: &Peer, connections: &Connections) -> bool {
    // RFC 4724 4.1: peers without the capability and peers that restart themselves are not waited for.
    peer.graceful.as_ref().is_none_or(|g| g.restarted) || has_end_of_rib(peer, connections)
}

/// Returns true if End-of-RIB has arrived for all families, or if the peer does not send it.
fn has_end_of_rib(peer: &Peer, connections: &Connections) -> bool {
    if peer.graceful.is_none() {
        return true;
    }
    let negotiated = connections.session(peer).and_then(|c| c.negotiated);
    let families = negotiated.map(|n| n.families).unwrap_or_default();
    let [v4, v6] = peer.end_of_rib_received;
    (v4 || !families.contains(Family::Ipv4Unicast)) && (v6 || !families.contains(Family::Ipv6Unicast))
}
