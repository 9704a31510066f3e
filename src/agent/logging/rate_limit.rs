//! Lines that repeat themselves: the first few are told, the others are counted and told as one. Pure; time is given.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Identical lines that pass in a window.
const PASS: u64 = 5;
/// The window.
const WINDOW: Duration = Duration::from_secs(60);
/// Different lines that are watched; more than that are simply told.
const WATCHED: usize = 256;

/// A line that was told often enough.
#[derive(Debug)]
struct Seen<T> {
    since: Instant,
    passed: u64,
    held: u64,
    last: Option<T>,
}

/// What was told lately, by the hash of the line.
#[derive(Debug)]
pub(in crate::agent) struct Repeats<T>(HashMap<u64, Seen<T>>);

impl<T> Default for Repeats<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Repeats<T> {
    /// Gives the line back if it is to be told now.
    pub(in crate::agent) fn take(&mut self, key: u64, line: T, now: Instant) -> Option<T> {
        if let Some(seen) = self.0.get_mut(&key) {
            if now.duration_since(seen.since) < WINDOW {
                if seen.passed < PASS {
                    seen.passed += 1;
                    return Some(line);
                }
                seen.held += 1;
                seen.last = Some(line);
                return None;
            }
            if seen.held == 0 {
                (seen.since, seen.passed) = (now, 1);
            }
            return Some(line);
        }
        if self.0.len() >= WATCHED {
            self.0.retain(|_, seen| seen.held > 0 || now.duration_since(seen.since) < WINDOW);
        }
        if self.0.len() < WATCHED {
            self.0.insert(key, Seen { since: now, passed: 1, held: 0, last: None });
        }
        Some(line)
    }

    /// Lines whose window is over, with how often they were held back.
    pub(in crate::agent) fn due(&mut self, now: Instant) -> Vec<(T, u64)> {
        let mut due = Vec::new();
        self.0.retain(|_, seen| {
            if now.duration_since(seen.since) < WINDOW {
                return true;
            }
            due.extend(seen.last.take().map(|line| (line, seen.held)));
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
        let mut repeats = Repeats::default();
        let told = (0..1_000).filter_map(|n| repeats.take(1, n, at(n * 10))).count();
        assert_eq!(told, 5);
        // Another line is not held up by it.
        assert_eq!(repeats.take(2, 7, at(10_000)), Some(7));
        assert_eq!(repeats.due(at(59_999)), []);
        assert_eq!(repeats.due(at(60_000)), [(999, 995)]);
        // Told once, and all begins anew.
        assert_eq!(repeats.due(at(61_000)), []);
        assert_eq!(repeats.take(1, 1, at(62_000)), Some(1));
    }

    #[test]
    fn what_is_watched_is_bounded_and_nothing_is_lost() {
        let start = Instant::now();
        let mut repeats = Repeats::default();
        for key in 0..10_000 {
            assert_eq!(repeats.take(key, key, start), Some(key));
        }
        assert!(repeats.0.len() <= WATCHED);
    }
}
