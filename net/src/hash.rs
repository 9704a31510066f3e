//! Keyed hashes for tables whose keys a peer or a store chooses: without the secret key no attacker can
//! construct collisions.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use crate::Cidr;

/// Secret key of a process's hash tables. It keeps the time spent on a table linear in the number of entries,
/// even if an attacker chooses them.
///
/// As a [`BuildHasher`] it provides SipHash-1-3 for values of any type. [`HashKey::numbers`] hashes a few
/// integers on a hot path with multiply-shift over 128 bits (Dietzfelbinger 1996). That hash is strongly
/// universal: under random keys, two different inputs collide no more often than two random numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey {
    seed: [u64; 2],
    factors: [u128; 3],
    offset: u128,
}

impl HashKey {
    /// Derives a key from these numbers. They must be unpredictable if an outsider chooses the hashed values.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        let number = |n: u64| {
            let mut hasher = SipHasher::new(seed);
            hasher.write_u64(n);
            hasher.finish()
        };
        let wide = |n: u64| u128::from(number(2 * n)) << 64 | u128::from(number(2 * n + 1));
        Self { seed, factors: [wide(0), wide(1), wide(2)], offset: wide(3) }
    }

    /// Draws a secret key from the random numbers that the standard library uses for its own hash tables.
    #[must_use]
    pub fn random() -> Self {
        let random = RandomState::new();
        Self::new([random.hash_one(0_u8), random.hash_one(1_u8)])
    }

    /// Hashes two numbers; all 64 bits of the result are usable.
    #[inline]
    #[must_use]
    pub fn numbers(&self, numbers: [u64; 2]) -> u64 {
        let [first, second, _] = self.factors;
        let [a, b] = numbers.map(u128::from);
        spread(self.offset.wrapping_add(first.wrapping_mul(a)).wrapping_add(second.wrapping_mul(b)))
    }

    /// Hashes a 32-bit address with its prefix length.
    #[inline]
    #[must_use]
    pub fn short_prefix(&self, address: u32, len: u8) -> u64 {
        let [factor, ..] = self.factors;
        let number = u128::from(u64::from(address) << 8 | u64::from(len));
        spread(self.offset.wrapping_add(factor.wrapping_mul(number)))
    }

    /// Hashes a 128-bit address with its prefix length.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    pub fn long_prefix(&self, address: u128, len: u8) -> u64 {
        let [first, second, third] = self.factors;
        let (high, low) = (u128::from((address >> 64) as u64), u128::from(address as u64));
        spread(
            self.offset
                .wrapping_add(first.wrapping_mul(high))
                .wrapping_add(second.wrapping_mul(low))
                .wrapping_add(third.wrapping_mul(u128::from(len) + 1)),
        )
    }

    /// Hashes a prefix of either address family.
    #[inline]
    #[must_use]
    pub fn prefix(&self, prefix: &Cidr) -> u64 {
        match prefix.addr() {
            IpAddr::V4(address) => self.short_prefix(u32::from(address), prefix.len()),
            IpAddr::V6(address) => self.long_prefix(u128::from(address), prefix.len()),
        }
    }
}

/// Takes the upper half of a sum, since only that half is universal, and spreads its bits by a bijection:
/// hash tables use a few upper bits for the slot and a few lower ones for the tag.
#[inline]
fn spread(sum: u128) -> u64 {
    let sum = (sum >> 64) as u64;
    let sum = (sum ^ sum >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    sum ^ sum >> 29
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

impl BuildHasher for HashKey {
    type Hasher = SipHasher;

    fn build_hasher(&self) -> SipHasher {
        SipHasher::new(self.seed)
    }
}

/// SipHash-1-3 (Aumasson, Bernstein 2012), the hash of the standard library's tables, with a key that the
/// caller sets.
#[derive(Clone)]
pub struct SipHasher {
    state: [u64; 4],
    /// Octets that do not fill a 64-bit word yet; the first one is the lowest.
    tail: u64,
    /// Number of octets written so far.
    written: u64,
}

impl SipHasher {
    fn new([low, high]: [u64; 2]) -> Self {
        let state = [
            low ^ 0x736f_6d65_7073_6575,
            high ^ 0x646f_7261_6e64_6f6d,
            low ^ 0x6c79_6765_6e65_7261,
            high ^ 0x7465_6462_7974_6573,
        ];
        Self { state, tail: 0, written: 0 }
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }

    #[inline]
    fn word(&mut self, word: u64) {
        let [.., last] = &mut self.state;
        *last ^= word;
        self.round();
        let [first, ..] = &mut self.state;
        *first ^= word;
    }

    /// Adds `count` octets (at most eight), the first one lowest.
    #[inline]
    fn short(&mut self, octets: u64, count: u64) {
        let held = self.written % 8;
        self.written = self.written.wrapping_add(count);
        self.tail |= octets << (8 * held);
        if held + count < 8 {
            return;
        }
        self.word(self.tail);
        // Keep the octets that did not fit into the word; with an empty tail all of them fitted.
        self.tail = if held == 0 { 0 } else { octets >> (8 * (8 - held)) };
    }
}

impl fmt::Debug for SipHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SipHasher(secret)")
    }
}

impl Hasher for SipHasher {
    #[inline]
    fn write(&mut self, octets: &[u8]) {
        let (words, rest) = octets.as_chunks::<8>();
        for word in words {
            self.short(u64::from_le_bytes(*word), 8);
        }
        if !rest.is_empty() {
            let number = rest.iter().rev().fold(0, |number, octet| number << 8 | u64::from(*octet));
            self.short(number, rest.len() as u64);
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.short(u64::from(n), 1);
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.short(u64::from(n.to_le()), 2);
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.short(u64::from(n.to_le()), 4);
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.short(n.to_le(), 8);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.word(self.written << 56 | self.tail);
        let [_, _, third, _] = &mut last.state;
        *third ^= 0xff;
        last.round();
        last.round();
        last.round();
        let [a, b, c, d] = last.state;
        a ^ b ^ c ^ d
    }
}

#[cfg(test)]
mod tests {
    use std::collections::hash_map::DefaultHasher;
    use std::hash::Hash;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn siphash_of_its_reference_vectors() {
        // From vectors_sip64 of the reference code, with one and three rounds: key 00 01 .. 0f, inputs: none,
        // 00.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let of = |octets: &[u8]| {
            let mut hasher = SipHasher::new(key);
            hasher.write(octets);
            hasher.finish().to_le_bytes()
        };
        assert_eq!(of(&[]), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        assert_eq!(of(&[0]), [0x93, 0xca, 0x57, 0x7d, 0xf3, 0x9b, 0xf4, 0xc9]);
    }

    proptest! {
        /// The standard library's hasher is SipHash-1-3 with an all-zero key.
        #[test]
        fn siphash_is_that_of_the_standard_library(
            parts in vec(vec(any::<u8>(), 0..40), 0..8), numbers in vec((any::<u8>(), any::<u16>(), any::<u32>(), any::<u64>()), 0..4),
        ) {
            let (mut ours, mut theirs) = (SipHasher::new([0, 0]), DefaultHasher::new());
            (&parts, &numbers).hash(&mut ours);
            (&parts, &numbers).hash(&mut theirs);
            prop_assert_eq!(ours.finish(), theirs.finish());
        }

        /// Prefixes chosen to collide under one key are spread by any other key: no slot gets more of them
        /// than of random prefixes.
        #[test]
        fn prefixes_that_collide_under_one_key_do_not_under_another(seed in any::<[u64; 2]>(), other in any::<[u64; 2]>()) {
            prop_assume!(seed != other);
            let (known, secret) = (HashKey::new(seed), HashKey::new(other));
            // Under the known key all of these fall into one of 64 slots, whatever the size of the table.
            let chosen: Vec<u32> =
                (0..1 << 20).filter(|n| known.short_prefix(n << 8, 24) >> 58 == 0).take(4096).collect();
            prop_assert!(chosen.len() > 2048);
            let mut places = [0_u32; 64];
            for n in &chosen {
                if let Ok(place) = usize::try_from(secret.short_prefix(n << 8, 24) >> 58) {
                    places[place] += 1;
                }
            }
            let most = places.into_iter().max().unwrap_or(0);
            prop_assert!(most < 200, "{most} of {} in one place", chosen.len());
        }
    }
}
