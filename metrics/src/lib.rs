//! Histograms for Tortie's metrics, updated by the code that measures.
//!
//! A [`Histogram`] has one owner, which updates it without locks; a scrape gets a copy together with the
//! owner's other state. A [`Table`] is shared by several tasks (requests to the store, to the API, of
//! plugins). It holds one histogram per set of labels behind a mutex, which is held for a few nanoseconds and
//! never in a loop that handles routes or packets. This crate knows no metric names, no text format and no
//! clock.
//!
//! The histograms of prometheus-client do not fit: each has its own lock, exposes its buckets to its own
//! encoder only, which cannot write Tortie's metrics pages, and computes no quantiles.

#![forbid(clippy::disallowed_methods, clippy::disallowed_types)]
#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bucket bounds for durations, in seconds: 100 microseconds to 30 seconds.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];
/// Upper bucket bounds for sizes, such as the number of entries in a batch.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Counts observed values by bucket.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Values per bucket: greater than the previous bound, at most this one. The last bucket has no upper
    /// bound.
    counts: Box<[u64]>,
    sum: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::of(SECONDS)
    }
}

impl Histogram {
    fn of(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0.0 }
    }

    /// Creates an empty histogram for durations, in seconds (100 microseconds to 30 seconds).
    #[must_use]
    pub fn seconds() -> Self {
        Self::of(SECONDS)
    }

    /// Creates an empty histogram for sizes (1 to 1024).
    #[must_use]
    pub fn sizes() -> Self {
        Self::of(SIZES)
    }

    /// Counts one value.
    pub fn observe(&mut self, value: f64) {
        self.observe_many(value, 1);
    }

    /// Counts one duration, in seconds.
    pub fn time(&mut self, time: Duration) {
        self.observe_many(time.as_secs_f64(), 1);
    }

    /// Counts the same value `times` times.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn observe_many(&mut self, value: f64, times: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += times;
            self.sum += value * times as f64;
        }
    }

    /// Returns the number of counted values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the counted values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns each upper bound with the number of values up to it (cumulative, as in Prometheus); the last
    /// bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((bound, *sum))
        })
    }

    /// Returns the quantile `part` (0 to 1), interpolated within its bucket. Returns 0 if no value was
    /// counted, and the greatest finite bound for values above it.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = part * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            let count = *count as f64;
            if count > 0.0 && below + count >= wanted {
                return lower + (bound - lower) * ((wanted - below) / count).clamp(0.0, 1.0);
            }
            below += count;
            lower = *bound;
        }
        if below > 0.0 || self.count() > 0 { lower } else { 0.0 }
    }
}

/// Duration histograms keyed by labels, shared by tasks.
#[derive(Debug)]
pub struct Table<K>(Mutex<BTreeMap<K, Histogram>>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Table<K> {
    /// Creates an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> Table<K> {
    /// Counts one duration. The labels must come from a small fixed set, since entries are never removed.
    pub fn time(&self, labels: K, time: Duration) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(labels).or_default().time(time);
    }

    /// Returns a copy of all histograms.
    #[must_use]
    pub fn read(&self) -> BTreeMap<K, Histogram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_their_bound() {
        let mut times = Histogram::seconds();
        for value in [0.0, 0.000_1, 0.000_11, 0.9, 31.0] {
            times.observe(value);
        }
        times.observe_many(2.0, 3);
        let up_to = |bound: f64| times.buckets().find(|(b, _)| (b - bound).abs() < 1e-9).unwrap().1;
        assert_eq!((up_to(0.000_1), up_to(0.000_25), up_to(1.0), up_to(2.5), up_to(30.0)), (2, 3, 4, 7, 7));
        assert_eq!(times.buckets().last(), Some((f64::INFINITY, 8)));
        assert_eq!(times.count(), 8);
        assert!((times.sum() - 37.900_21).abs() < 1e-9);
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_the_value() {
        let mut times = Histogram::seconds();
        assert!(times.quantile(0.99).abs() < f64::EPSILON);
        times.observe_many(0.002, 90);
        times.observe_many(0.2, 10);
        assert!((0.001..=0.002_5).contains(&times.quantile(0.5)));
        assert!((0.1..=0.25).contains(&times.quantile(0.99)));
    }
}
