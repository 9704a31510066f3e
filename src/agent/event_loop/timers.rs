//! Timers of the periodic work. A query that returns "due" counts the work as done at that time; no clock is
//! read here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval of calls of [`Store::maintain`](tortie_store::Store::maintain).
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum and maximum interval of calls of [`Store::verify`](tortie_store::Store::verify), the first of
/// which is part of the start. Within the bounds, verification takes a thousandth of the time.
const CHECK_INTERVALS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
const CHECK_PART: u32 = 1_000;
/// Interval of reads of all hosts' status keys.
const HOSTS_READ_INTERVAL: Duration = Duration::from_secs(300);
/// Interval of full builds of the status key while the number of sessions does not change.
const NODE_STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// Time of the last run of each kind of work.
#[derive(Debug, Default)]
pub(super) struct Timers {
    maintained_at: Option<Instant>,
    checked_at: Option<Instant>,
    /// Duration of the last verification in microseconds, stored by the task that ran it.
    check_took: Arc<AtomicU64>,
    /// Time of the last read of other hosts' status keys.
    hosts_read_at: Option<Instant>,
    /// Time of the last build of the status key, with its readiness and number of sessions.
    node_status_built: Option<(Instant, (bool, usize))>,
    /// Number of the snapshot after which memory was last released.
    memory_released_at: u64,
    is_ready_announced: bool,
}

impl Timers {
    /// True if the store needs maintenance now.
    pub(super) fn maintenance_due(&mut self, now: Instant) -> bool {
        let due = is_over(self.maintained_at, MAINTENANCE_INTERVAL, now);
        if due {
            self.maintained_at = Some(now);
        }
        due
    }

    /// True if the store's file must be verified now.
    pub(super) fn check_due(&mut self, now: Instant) -> bool {
        let last = *self.checked_at.get_or_insert(now);
        let took = Duration::from_micros(self.check_took.load(Ordering::Relaxed));
        let [least, most] = CHECK_INTERVALS;
        let due = is_over(Some(last), took.saturating_mul(CHECK_PART).clamp(least, most), now);
        if due {
            self.checked_at = Some(now);
        }
        due
    }

    /// Returns the shared duration of the last verification, for the task that measures it.
    pub(super) fn check_took(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.check_took)
    }

    /// True if the status keys of all hosts must be read: `always`, or every five minutes if `allowed`.
    pub(super) fn hosts_read_due(&mut self, now: Instant, always: bool, allowed: bool) -> bool {
        let due = always || allowed && is_over(self.hosts_read_at, HOSTS_READ_INTERVAL, now);
        if due {
            self.hosts_read_at = Some(now);
        }
        due
    }

    /// True if the status key must be built: every ten seconds, and at once when readiness or the number of
    /// sessions changes.
    pub(super) fn node_status_due(&mut self, now: Instant, ready: bool, sessions: usize) -> bool {
        let shown = (ready, sessions);
        let is_new = |(at, of)| of != shown || is_over(Some(at), NODE_STATUS_INTERVAL, now);
        let due = self.node_status_built.is_none_or(is_new);
        if due {
            self.node_status_built = Some((now, shown));
        }
        due
    }

    /// True once after each snapshot: unused memory should be released.
    pub(super) fn memory_release_due(&mut self, snapshots: u64) -> bool {
        std::mem::replace(&mut self.memory_released_at, snapshots) != snapshots
    }

    /// True once: the service manager must be notified of readiness.
    pub(super) fn ready_announcement_due(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ready_announced, true)
    }
}

/// True if the interval since `last` is over, or if `last` is `None`.
fn is_over(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_none_or(|at| now.duration_since(at) >= interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_due_at_first_and_after_its_interval() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let due: Vec<u64> = (0..=125).filter(|s| timers.maintenance_due(at(*s))).collect();
        assert_eq!(due, [0, 60, 120]);
        let mut checks = |from: u64, to: u64, millis: u64| -> Vec<u64> {
            timers.check_took().store(millis * 1_000, Ordering::Relaxed);
            (from..to).filter(|s| timers.check_due(at(*s))).collect()
        };
        assert_eq!(checks(0, 130, 5), [60, 120], "a small file");
        assert_eq!(checks(130, 400, 100), [220, 320]);
        assert_eq!(checks(400, 8_000, 20_000), [3_920, 7_520], "a large one");
        let due: Vec<u64> = (0..=650).filter(|s| timers.hosts_read_due(at(*s), *s == 100, *s > 5)).collect();
        assert_eq!(due, [6, 100, 400]);
        let due: Vec<u64> =
            (0..=25).filter(|s| timers.node_status_due(at(*s), *s >= 3, usize::from(*s == 4))).collect();
        assert_eq!(due, [0, 3, 4, 5, 15, 25]);
        let due: Vec<u64> = [0, 1, 1, 2, 2].into_iter().filter(|n| timers.memory_release_due(*n)).collect();
        assert_eq!(due, [1, 2]);
        assert_eq!([(); 2].map(|()| timers.ready_announcement_due()), [true, false]);
    }
}
