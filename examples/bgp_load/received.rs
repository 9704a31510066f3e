//! Tracks the prefixes that a session has received: all sessions share one numbering of prefixes, and each
//! has one bit per prefix.

use super::mix::Prefix;

const EMPTY: u64 = u64::MAX;

/// Numbering of all prefixes that can be announced.
#[derive(Debug, Default)]
pub(crate) struct Universe {
    slots: Vec<(u64, u32)>,
    /// Key of the prefix with each number.
    keys: Vec<u64>,
    /// Number of marks, which have the first numbers: see [`Received::marks`].
    marks: u32,
}

fn start(key: u64, slots: usize) -> usize {
    let hash = (key ^ key >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    usize::try_from(hash >> 20).unwrap_or(0) & slots.wrapping_sub(1)
}

impl Universe {
    /// Numbers the prefixes in their order, the marks first; a repeated prefix keeps its first number.
    pub(crate) fn new(marks: &[Prefix], prefixes: impl Iterator<Item = Prefix>) -> Self {
        let all: Vec<u64> = marks.iter().copied().chain(prefixes).map(Prefix::key).collect();
        let size = (all.len() * 2).next_power_of_two().max(16);
        let marks = u32::try_from(marks.len()).unwrap_or(u32::MAX);
        let mut out = Self { slots: vec![(EMPTY, 0); size], keys: Vec::with_capacity(all.len()), marks };
        for key in all {
            let mut at = start(key, size);
            while let Some(slot) = out.slots.get_mut(at) {
                if slot.0 == EMPTY {
                    *slot = (key, u32::try_from(out.keys.len()).unwrap_or(u32::MAX));
                    out.keys.push(key);
                }
                if slot.0 == key {
                    break;
                }
                at = (at + 1) & (size - 1);
            }
        }
        out
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of a prefix, after trying `expected`: most daemons send most prefixes in the order
    /// of arrival, and a lookup in a table of a million entries is a cache miss.
    fn number(&self, prefix: Prefix, expected: u32) -> Option<u32> {
        let key = prefix.key();
        if self.keys.get(expected as usize) == Some(&key) {
            return Some(expected);
        }
        let mut at = start(key, self.slots.len());
        loop {
            match *self.slots.get(at)? {
                (found, number) if found == key => return Some(number),
                (EMPTY, _) => return None,
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }
}

/// Prefixes that one session has received and that were not withdrawn.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bits: Vec<u64>,
    pub(crate) count: usize,
    /// Number of announcements of marks: prefixes at the end of a stream, which show that all earlier
    /// messages were processed.
    pub(crate) marks: usize,
    /// Number of prefixes that no sender announced.
    pub(crate) strange: usize,
    /// The number after that of the last received prefix.
    expected: u32,
}

impl Received {
    /// Applies the body of an UPDATE.
    pub(crate) fn update(&mut self, universe: &Universe, body: &[u8]) -> Option<()> {
        let (withdrawn, rest) = field(body)?;
        let (mut attributes, nlri) = field(rest)?;
        self.each(universe, withdrawn, false);
        self.each(universe, nlri, true);
        // Only IPv6 prefixes are in attributes, so the attributes of IPv4 sessions need no parsing.
        if !nlri.is_empty() {
            return Some(());
        }
        while let [flags, kind, rest @ ..] = attributes {
            let (value, rest) = if flags & 0x10 != 0 {
                field(rest)?
            } else {
                let (len, rest) = rest.split_first()?;
                rest.split_at_checked(usize::from(*len))?
            };
            match kind {
                14 => {
                    let hop = usize::from(*value.get(3)?);
                    self.each(universe, value.get(5 + hop..)?, true);
                }
                15 => self.each(universe, value.get(3..)?, false),
                _ => {}
            }
            attributes = rest;
        }
        Some(())
    }

    fn each(&mut self, universe: &Universe, mut nlri: &[u8], announced: bool) {
        if !nlri.is_empty() && self.bits.is_empty() {
            self.bits = vec![0; universe.len().div_ceil(64)];
        }
        while let Some((prefix, rest)) = Prefix::read(nlri) {
            nlri = rest;
            let Some(number) = universe.number(prefix, self.expected) else {
                self.strange += 1;
                continue;
            };
            self.expected = number.wrapping_add(1);
            let Some(word) = self.bits.get_mut(number as usize / 64) else { continue };
            let bit = 1 << (number % 64);
            self.marks += usize::from(announced && number < universe.marks && *word & bit == 0);
            match (announced, *word & bit != 0) {
                (true, false) => self.count += 1,
                (false, true) => self.count -= 1,
                _ => {}
            }
            *word = if announced { *word | bit } else { *word & !bit };
        }
    }
}

/// Splits off a field with a two-octet length, and returns it and the rest.
fn field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}
