//! Log of a table: slots whose best path changed, oldest first.

use std::collections::VecDeque;

/// Maximum number of changes in the log. A reader that lags further scans the table instead: each entry
/// stores the position of its last change.
pub(crate) const LOG_MAX: usize = if crate::types::TINY { 64 } else { 65_536 };

/// Changes by position. Positions only increase.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    base: u64,
    items: VecDeque<u32>,
}

impl Log {
    /// Returns the position of the oldest change in the log.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Returns the position of the next change.
    pub(crate) fn head(&self) -> u64 {
        self.base + self.items.len() as u64
    }

    /// Appends a change. Returns its position, truncated to 32 bits.
    pub(crate) fn push(&mut self, slot: u32) -> u32 {
        let at = self.head();
        self.items.push_back(slot);
        if self.items.len() > LOG_MAX {
            self.items.pop_front();
            self.base += 1;
        }
        short(at)
    }

    /// Returns the slot of the change at this position.
    pub(crate) fn get(&self, position: u64) -> Option<u32> {
        self.items.get(usize::try_from(position.checked_sub(self.base)?).ok()?).copied()
    }

    /// Expands a truncated 32-bit position to 64 bits. The position must be among the last 2^32 changes.
    pub(crate) fn position(&self, cut: u32) -> u64 {
        let head = self.head();
        head.saturating_sub(u64::from(short(head).wrapping_sub(cut)))
    }

    /// Removes the changes older than `position`.
    pub(crate) fn trim(&mut self, position: u64) {
        let drop =
            usize::try_from(position.saturating_sub(self.base)).unwrap_or(usize::MAX).min(self.items.len());
        self.items.drain(..drop);
        self.base += drop as u64;
        if self.items.is_empty() && self.items.capacity() > 8192 {
            self.items = VecDeque::new();
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.items.capacity() * 4
    }
}

#[expect(clippy::cast_possible_truncation, reason = "cut on purpose")]
pub(crate) fn short(position: u64) -> u32 {
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_cutting_and_trimming() {
        let mut log = Log { base: u64::from(u32::MAX) - 2, items: VecDeque::new() };
        let cut: Vec<u32> = (0..6).map(|slot| log.push(slot)).collect();
        assert_eq!(cut, [u32::MAX - 2, u32::MAX - 1, u32::MAX, 0, 1, 2]);
        let at: Vec<u64> = cut.iter().map(|c| log.position(*c)).collect();
        assert_eq!(at.first().copied(), Some(u64::from(u32::MAX) - 2));
        assert_eq!(log.get(at[4]), Some(4));
        log.trim(at[4]);
        assert_eq!((log.get(at[3]), log.get(at[4])), (None, Some(4)));
        for slot in 0..100_000 {
            log.push(slot);
        }
        assert_eq!(log.head() - log.base(), LOG_MAX as u64);
        assert_eq!(log.get(log.head() - 1), Some(99_999));
    }
}
