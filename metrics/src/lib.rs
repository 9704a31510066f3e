//! Histograms: what is measured is counted where it happens.
//!
//! A [`Histogram`] has one owner, which counts without locks; a scrape gets a copy of it with the owner's other facts.
//! Where several tasks share what they count (requests to the store, to the API, of plugins), a [`Table`] has one for each
//! set of labels behind a lock that is held for a few nanoseconds and never in a loop that carries routes or packets.
//! What it does not: it knows no names, no text format and no clock.
//!
//! Not with the histograms of prometheus-client: each has a lock of its own, and shows its buckets to its own encoder only,
//! which cannot write Tortie's pages; it has no quantiles.

#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds for times, in seconds: 100 microseconds to 30 seconds.
const SECONDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];
/// Upper bounds for numbers of things.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Counts of values by size.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Values up to each bound and above the one before; the last are those above all.
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

    /// For times.
    #[must_use]
    pub fn seconds() -> Self {
        Self::of(SECONDS)
    }

    /// For numbers of things.
    #[must_use]
    pub fn sizes() -> Self {
        Self::of(SIZES)
    }

    /// Counts one value.
    pub fn observe(&mut self, value: f64) {
        self.observe_many(value, 1);
    }

    /// Counts one duration.
    pub fn time(&mut self, time: Duration) {
        self.observe_many(time.as_secs_f64(), 1);
    }

    /// Counts the same value so many times.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    pub fn observe_many(&mut self, value: f64, times: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += times;
            self.sum += value * times as f64;
        }
    }

    /// How many values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Each bound with the number of values up to it; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count;
            Some((bound, *sum))
        })
    }

    /// The value that this part (0 to 1) of all values does not exceed, interpolated within its bucket; 0 of none, and the
    /// greatest bound for what is above it.
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

/// Histograms of times by labels, shared by tasks.
#[derive(Debug)]
pub struct Table<K>(Mutex<BTreeMap<K, Histogram>>);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Table<K> {
    /// Nothing is counted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> Table<K> {
    /// Counts one duration. Labels have to come from a small fixed set.
    pub fn time(&self, labels: K, time: Duration) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(labels).or_default().time(time);
    }

    /// A copy.
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
