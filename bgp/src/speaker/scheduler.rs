//! Work that is due or queued, in bounded slices.

use super::Speaker;
use crate::api::{ConnId, Event};
use crate::rib::reevaluate::Job;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{ErrorCode, Notification, write_keepalive};

/// Timers that one call serves.
const TIMERS: usize = 512;

impl Speaker {
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
            || !self.fading.is_empty()
            || self.v4.has_work(&self.shared)
            || self.v6.has_work(&self.shared)
    }

    /// `tick`: nothing came in. A walk over the tables takes its steps then, one in a turn of the embedder, so that the input
    /// of hundreds of peers does not pay for one that went; and groups follow the table, so that what several peers announce
    /// in one turn is sent once.
    pub(super) fn work(&mut self, tick: bool) {
        for _ in 0..TIMERS {
            let Some(timer) = self.timers.pop(self.now) else { break };
            self.expire(timer);
        }
        if !self.ready.is_empty() {
            self.read_queued();
        }
        self.fade();
        let mut done = Vec::new();
        if self.v4.has_work(&self.shared) {
            self.v4.work(&mut self.shared, tick, &mut self.wake, |job| done.push((Family::Ipv4Unicast, job)));
        }
        if self.v6.has_work(&self.shared) {
            self.v6.work(&mut self.shared, tick, &mut self.wake, |job| done.push((Family::Ipv6Unicast, job)));
        }
        for (family, job) in done {
            self.job_done(family, job);
        }
        self.wake_members();
        self.report_next_hops();
        if !self.shared.deferring
            && !self.best_notified
            && (self.v4.table.has_dirty() || self.v6.table.has_dirty())
        {
            self.best_notified = true;
            self.events.push_back(Event::BestChanged);
        }
        self.report_restart_done();
        self.forget_closing();
    }

    fn expire(&mut self, timer: Timer) {
        match timer {
            Timer::Hold(conn) => self.hold_timer(conn),
            Timer::Keepalive(conn) => self.keepalive_timer(conn),
            Timer::SendHold(conn) => self.send_hold_timer(conn),
            Timer::Collision(conn) => {
                if self.conns.get(&conn).is_some_and(|c| c.held_until.is_some_and(|at| at <= self.now)) {
                    self.release(Some(conn));
                }
            }
            Timer::Dial(number) => self.dial_timer(number),
            Timer::Restart(number) => self.restart_timer(number),
            Timer::Refresh(number) => self.refresh_timer(number),
            Timer::Deferral => self.deferral_timer(),
        }
    }

    fn hold_timer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        match conn.hold_at {
            // Input that waits for its turn is a sign of life.
            Some(_) if conn.queued => self.timers.set(Timer::Hold(id), self.now + conn.hold / 3),
            Some(at) if at > self.now => self.timers.set(Timer::Hold(id), at),
            Some(_) => self.refuse(id, Notification::new(ErrorCode::HOLD_TIMER_EXPIRED)),
            None => {}
        }
    }

    fn keepalive_timer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(at) = conn.keepalive_at else { return };
        if at > self.now {
            return;
        }
        let next = self.now + self.jitter.apply(conn.keepalive);
        conn.keepalive_at = Some(next);
        self.timers.set(Timer::Keepalive(id), next);
        // One that still waits says the same.
        if conn.control.is_empty() {
            write_keepalive(&mut conn.control);
            if let Some(peer) = self.peers.get_mut(&conn.peer) {
                peer.sent.keepalive += 1;
            }
            self.want_write(id);
        }
    }

    fn job_done(&mut self, family: Family, job: Job) {
        match job {
            Job::Purge => self.purged(family),
            Job::NextHopTable => {
                if !self.v4.reevaluation.has(Job::NextHopTable)
                    && !self.v6.reevaluation.has(Job::NextHopTable)
                {
                    self.shared.next_hops.clean();
                }
                self.schedule_check();
            }
            Job::Reimport => {
                for (_, source) in self.shared.sources.iter_mut() {
                    source.family_mut(family).reimport = false;
                }
                self.monitor_reimported(family);
            }
            Job::Reexport | Job::Decide => {}
        }
    }

    fn report_next_hops(&mut self) {
        let events = &mut self.events;
        for address in self.shared.next_hops.track.drain(..) {
            events.push_back(Event::TrackNextHop(address));
        }
        self.shared.next_hops.collect(|address| events.push_back(Event::UntrackNextHop(address)));
    }
}
