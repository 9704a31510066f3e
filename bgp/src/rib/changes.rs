//! Processing of changed table entries: they are logged for the update groups, queued for readers of best
//! paths, and freed when empty and no reader needs them any more.

use std::collections::VecDeque;

use super::change_log::short;
use super::entry::{Entry, Key, flag};
use super::table::{AHEAD, Table};
use crate::api::Tag;

impl<A: Key> Table<A> {
    /// Returns the log position of the last change of an entry.
    #[inline]
    pub(crate) fn position(&self, entry: &Entry<A>) -> u64 {
        self.log.position(entry.seq)
    }

    /// Returns true if the last change of the entry is the one at this position.
    #[inline]
    pub(crate) fn is_newest(&self, entry: &Entry<A>, position: u64) -> bool {
        entry.seq == short(position)
    }

    /// Returns true if the entry changed at this position or later.
    pub(crate) fn changed_since(&self, entry: &Entry<A>, position: u64) -> bool {
        entry.flags & flag::LOGGED != 0 && self.position(entry) >= position
    }

    /// Appends an entry to the log.
    pub(crate) fn touch(&mut self, slot: u32) {
        let seq = self.log.push(slot);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.seq = seq;
            entry.flags |= flag::LOGGED;
        }
    }

    pub(super) fn mark_dirty(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot)
            && entry.flags & flag::DIRTY == 0
        {
            entry.flags |= flag::DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Attaches the marker of an input to a queued change.
    pub(crate) fn tag(&mut self, prefix: (A, u8), tag: Tag) {
        if let Some(slot) = self.find(prefix)
            && self.entries.get(slot).is_some_and(|e| e.flags & flag::DIRTY != 0)
        {
            self.tags.insert(slot, tag);
        }
    }

    pub(crate) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the oldest queued slot and its marker.
    pub(crate) fn pop_dirty(&mut self) -> Option<(u32, Tag)> {
        let slot = self.dirty.pop_front()?;
        if self.dirty.is_empty() && self.dirty.capacity() > 8192 {
            self.dirty = VecDeque::new();
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.flags &= !flag::DIRTY;
        }
        Some((slot, self.tags.remove(&slot).unwrap_or_default()))
    }

    pub(crate) fn has_vacant(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Frees up to `max` vacant entries whose last change is before `passed`, and calls `freed` for each.
    /// Returns true if more vacant entries may be freed at once.
    pub(crate) fn reclaim(&mut self, passed: u64, max: usize, mut freed: impl FnMut(u32)) -> bool {
        for n in 0..max {
            if n % AHEAD == 0 {
                let next = self.vacant.iter().take(AHEAD);
                self.prefetch(next.filter_map(|slot| self.entries.get(*slot)).map(Entry::prefix));
            }
            let Some(slot) = self.vacant.front().copied() else { break };
            let Some(entry) = self.entries.get(slot) else { break };
            if entry.is_empty() {
                if entry.flags & flag::DIRTY != 0 || self.changed_since(entry, passed) {
                    return false;
                }
                let hash = entry.address.hash(&self.key, entry.len);
                self.index.remove(hash, slot);
                self.entries.remove(slot);
                freed(slot);
            } else if let Some(entry) = self.entries.get_mut(slot) {
                entry.flags &= !flag::VACANT;
            }
            self.vacant.pop_front();
        }
        if self.vacant.is_empty() && self.vacant.capacity() > 8192 {
            self.vacant = VecDeque::new();
        }
        if self.index.is_sparse() {
            self.rebuild();
        }
        !self.vacant.is_empty()
    }
}
