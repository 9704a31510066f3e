//! The flight recorder: the last changes with their reasons, bounded, in memory.
//!
//! Bulk route changes are one entry a batch and peer; single prefixes have a history of their own, so that a full feed
//! evicts nothing that people ask for.

use std::collections::{HashMap, VecDeque};

use tortie_config::Cidr;

use crate::routing::ChangeId;
use crate::serve::api::Event;

/// Entries kept.
pub(super) const CAPACITY: usize = 16_384;
/// Prefixes whose single history is kept.
pub(super) const PREFIXES: usize = 4_096;
/// Entries kept for one prefix.
const PER_PREFIX: usize = 16;

/// Where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plane {
    /// A key of the store.
    Store,
    /// What routing concluded.
    Routing,
    /// What policy concluded.
    Policy,
    /// Sessions and routes of BGP.
    Rib,
    /// The kernel's acknowledgement.
    Kernel,
    /// The agent itself.
    Agent,
}

impl Plane {
    fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Routing => "routing",
            Self::Policy => "policy",
            Self::Rib => "rib",
            Self::Kernel => "kernel",
            Self::Agent => "agent",
        }
    }
}

/// What is recorded; the recorder adds number and time.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// The change it belongs to.
    pub(super) change: ChangeId,
    /// Where.
    pub(super) plane: Plane,
    /// `+`, `-`, `~` or `!`.
    pub(super) mark: char,
    /// A key, a prefix, a peer.
    pub(super) subject: String,
    /// In words.
    pub(super) text: String,
    /// Store revision, 0 when none.
    pub(super) revision: u64,
}

/// The ring and the histories of single prefixes.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    next: u64,
    ring: VecDeque<Event>,
    prefixes: HashMap<Cidr, VecDeque<Event>>,
    order: VecDeque<Cidr>,
}

impl Recorder {
    /// Records an entry; `time` is RFC 3339.
    pub(super) fn record(&mut self, time: String, entry: Entry) {
        let event = self.event(time, entry);
        if self.ring.len() == CAPACITY {
            self.ring.pop_front();
        }
        self.ring.push_back(event);
    }

    /// Records what happened to one prefix, beside the ring.
    pub(super) fn record_prefix(&mut self, time: String, prefix: Cidr, entry: Entry) {
        let event = self.event(time, entry);
        if !self.prefixes.contains_key(&prefix) {
            if self.order.len() == PREFIXES
                && let Some(oldest) = self.order.pop_front()
            {
                self.prefixes.remove(&oldest);
            }
            self.order.push_back(prefix);
        }
        let history = self.prefixes.entry(prefix).or_default();
        if history.len() == PER_PREFIX {
            history.pop_front();
        }
        history.push_back(event);
    }

    fn event(&mut self, time: String, entry: Entry) -> Event {
        self.next += 1;
        Event {
            seq: self.next,
            time,
            change: entry.change.to_string(),
            plane: entry.plane.as_str().to_owned(),
            mark: entry.mark.to_string(),
            subject: entry.subject,
            text: entry.text,
            revision: entry.revision,
            kinds: Vec::new(),
            peer: None,
            prefix: None,
        }
    }

    /// Entries after number `after`, oldest first, at most `max`; with a subject only those that name it (a prefix
    /// brings its own history too).
    #[must_use]
    pub(super) fn after(&self, after: u64, subject: Option<&str>, max: usize) -> Vec<Event> {
        let wanted = |event: &&Event| {
            event.seq > after
                && subject
                    .is_none_or(|s| event.subject == s || event.change == s || event.subject.contains(s))
        };
        let own = subject.and_then(|s| s.parse::<Cidr>().ok()).and_then(|p| self.prefixes.get(&p));
        let mut found: Vec<Event> = self.ring.iter().filter(wanted).cloned().collect();
        found.extend(own.into_iter().flatten().filter(|e| e.seq > after).cloned());
        found.sort_by_key(|e| e.seq);
        found.dedup_by_key(|e| e.seq);
        let skip = if after == 0 { found.len().saturating_sub(max) } else { 0 };
        found.into_iter().skip(skip).take(max).collect()
    }
}

impl Recorder {
    /// What is recorded of one prefix, oldest first: its own history, and entries of the ring that are about it alone.
    #[must_use]
    pub(super) fn of_prefix(&self, prefix: &Cidr) -> Vec<Event> {
        self.after(0, Some(&prefix.to_string()), PER_PREFIX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(subject: &str) -> Entry {
        Entry {
            change: ChangeId(7),
            plane: Plane::Rib,
            mark: '+',
            subject: subject.to_owned(),
            text: String::new(),
            revision: 0,
        }
    }

    #[test]
    fn a_full_feed_does_not_evict_the_ring_and_both_are_bounded() {
        let mut recorder = Recorder::default();
        recorder.record(String::new(), entry("peer tor-a"));
        for i in 0..10_000u32 {
            let prefix = Cidr::v4(std::net::Ipv4Addr::from(i << 8), 24);
            recorder.record_prefix(String::new(), prefix, entry(&prefix.to_string()));
        }
        assert_eq!(recorder.after(0, Some("peer tor-a"), 10).len(), 1);
        assert_eq!(recorder.prefixes.len(), PREFIXES);
        assert!(recorder.after(0, Some("0.0.0.0/24"), 10).is_empty());
        assert_eq!(recorder.after(0, Some("0.39.15.0/24"), 10).len(), 1);
        for _ in 0..CAPACITY + 5 {
            recorder.record(String::new(), entry("x"));
        }
        assert_eq!(recorder.after(0, None, usize::MAX).len(), CAPACITY);
    }

    #[test]
    fn without_a_start_the_newest_are_given_with_one_the_next() {
        let mut recorder = Recorder::default();
        for _ in 0..5 {
            recorder.record(String::new(), entry("x"));
        }
        let seqs = |list: Vec<Event>| list.iter().map(|e| e.seq).collect::<Vec<_>>();
        assert_eq!(seqs(recorder.after(0, None, 2)), [4, 5]);
        assert_eq!(seqs(recorder.after(2, None, 2)), [3, 4]);
    }
}
