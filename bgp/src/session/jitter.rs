//! Jitter of protocol timers (RFC 4271 10).

use std::time::Duration;

/// Pseudo-random generator for jitter. The crate has no entropy source, and jitter need not be unpredictable.
#[derive(Debug, Clone)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a duration between 75 % and 100 % of `time` (RFC 4271 10).
    pub(crate) fn apply(&mut self, time: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let random = mix(self.0) >> 40;
        // 24 random bits.
        time.mul_f64(0.75 + 0.25 * f64::from(u32::try_from(random).unwrap_or(0)) / f64::from(1u32 << 24))
    }
}

/// Mixes a counter into a pseudo-random number, in the manner of SplitMix64.
fn mix(counter: u64) -> u64 {
    let mixed = (counter ^ counter >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ mixed >> 32
}
