//! Timers of the periodic work: each says whether its work is due, and counts it as done then. No clock is read here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two calls of [`Store::maintain`](tortie_store::Store::maintain).
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Between two calls of [`Store::verify`](tortie_store::Store::verify), the first of which is part of the start: a thousandth of the
/// time, and within these bounds.
const CHECK_INTERVALS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
const CHECK_PART: u32 = 1_000;
/// Between two reads of the status keys of all hosts.
const HOSTS_READ_INTERVAL: Duration = Duration::from_secs(300);
/// Between two full builds of the status key without a change of sessions.
const NODE_STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// When each kind of work was done last.
#[derive(Debug, Default)]
pub(super) struct Timers {
    maintained_at: Option<Instant>,
    checked_at: Option<Instant>,
    /// How long the last call took, in microseconds; the task that made it writes it.
    check_took: Arc<AtomicU64>,
    /// When the status keys of others were read.
    hosts_read_at: Option<Instant>,
    /// When the status key was built, and with which readiness and count of sessions.
    node_status_built: Option<(Instant, (bool, usize))>,
    /// The number of the snapshot after which memory was released.
    memory_released_at: u64,
    is_ready_announced: bool,
}

impl Timers {
    /// The store is to be maintained.
    pub(super) fn maintenance_due(&mut self, now: Instant) -> bool {
        let due = is_over(self.maintained_at, MAINTENANCE_INTERVAL, now);
        if due {
            self.maintained_at = Some(now);
        }
        due
    }

    /// The store's file is to be looked through for damage.
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

    /// Where the time that the check took is written.
    pub(super) fn check_took(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.check_took)
    }

    /// The status keys of all hosts are to be read: `always`, or each five minutes where `allowed`.
    pub(super) fn hosts_read_due(&mut self, now: Instant, always: bool, allowed: bool) -> bool {
        let due = always || allowed && is_over(self.hosts_read_at, HOSTS_READ_INTERVAL, now);
        if due {
            self.hosts_read_at = Some(now);
        }
        due
    }

    /// The status key is to be built: each ten seconds, and at once with another readiness or count of sessions.
    pub(super) fn node_status_due(&mut self, now: Instant, ready: bool, sessions: usize) -> bool {
        let shown = (ready, sessions);
        let is_new = |(at, of)| of != shown || is_over(Some(at), NODE_STATUS_INTERVAL, now);
        let due = self.node_status_built.is_none_or(is_new);
        if due {
            self.node_status_built = Some((now, shown));
        }
        due
    }

    /// Memory is to be released: once after each snapshot.
    pub(super) fn memory_release_due(&mut self, snapshots: u64) -> bool {
        std::mem::replace(&mut self.memory_released_at, snapshots) != snapshots
    }

    /// The service manager is to know that the agent is ready: once.
    pub(super) fn ready_announcement_due(&mut self) -> bool {
        !std::mem::replace(&mut self.is_ready_announced, true)
    }
}

/// An interval is over that began at `last`; with `None` it never began.
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
