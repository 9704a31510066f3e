//! Rate limit of repeated log lines: the first few pass, the others are counted and written as one. Reads no
//! clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Number of identical lines that pass per window.
const PASS: u64 = 5;
/// Length of the window.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of different lines that are tracked; lines beyond it pass.
const WATCHED: usize = 256;

/// A line with its repetitions in the current window.
#[derive(Debug)]
struct Repeated<T> {
    since: Instant,
    passed: u64,
    held: u64,
    last: Option<T>,
}

/// Lines of the current window, by hash.
#[derive(Debug)]
pub(in crate::agent) struct RepeatFilter<T>(HashMap<u64, Repeated<T>>);

impl<T> Default for RepeatFilter<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> RepeatFilter<T> {
    /// Returns the line if it must be written now.
    pub(in crate::agent) fn take(&mut self, key: u64, line: T, now: Instant) -> Option<T> {
        if let Some(repeated) = self.0.get_mut(&key) {
            if now.duration_since(repeated.since) < WINDOW {
                if repeated.passed < PASS {
                    repeated.passed += 1;
                    return Some(line);
                }
                repeated.held += 1;
                repeated.last = Some(line);
                return None;
            }
            if repeated.held == 0 {
                (repeated.since, repeated.passed) = (now, 1);
            }
            return Some(line);
        }
        if self.0.len() >= WATCHED {
            self.0.retain(|_, repeated| repeated.held > 0 || now.duration_since(repeated.since) < WINDOW);
        }
        if self.0.len() < WATCHED {
            self.0.insert(key, Repeated { since: now, passed: 1, held: 0, last: None });
        }
        Some(line)
    }

    /// Returns the last suppressed line of each expired window, with the number of suppressed lines.
    pub(in crate::agent) fn due(&mut self, now: Instant) -> Vec<(T, u64)> {
        let mut due = Vec::new();
        self.0.retain(|_, repeated| {
            if now.duration_since(repeated.since) < WINDOW {
                return true;
            }
            due.extend(repeated.last.take().map(|line| (line, repeated.held)));
            false
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_becomes_one_line_with_a_count() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut repeats = RepeatFilter::default();
        let passed = (0..1_000).filter_map(|n| repeats.take(1, n, at(n * 10))).count();
        assert_eq!(passed, 5);
        // Another line is not affected.
        assert_eq!(repeats.take(2, 7, at(10_000)), Some(7));
        assert_eq!(repeats.due(at(59_999)), []);
        assert_eq!(repeats.due(at(60_000)), [(999, 995)]);
        // Written once; a new window begins.
        assert_eq!(repeats.due(at(61_000)), []);
        assert_eq!(repeats.take(1, 1, at(62_000)), Some(1));
    }

    #[test]
    fn what_is_watched_is_bounded_and_nothing_is_lost() {
        let start = Instant::now();
        let mut repeats = RepeatFilter::default();
        for key in 0..10_000 {
            assert_eq!(repeats.take(key, key, start), Some(key));
        }
        assert!(repeats.0.len() <= WATCHED);
    }
}
