//! Encoded messages that the members of an update group share.

use std::sync::Arc;

use super::attr_sets::AttrSets;
use super::export::{self, GroupKey};
use crate::rib::Shared;
use crate::rib::entry::Key;
use crate::rib::source::LOCAL;
use crate::rib::table::Table;
use crate::wire::{self, UpdateTemplate};

/// A sequence of whole messages, encoded once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// Members with routes of their own in the segment, sorted.
    sources: Vec<u32>,
    /// Additional messages for single members: withdrawals of routes whose best path is now their own.
    private: Vec<(u32, Arc<Self>)>,
    /// Range of log positions that the segment covers.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// End offset of a message in its segment, and the source of its routes, to which it is not sent; [`LOCAL`]:
/// sent to all.
#[derive(Debug, Clone, Copy)]
struct Message {
    end: u32,
    source: u32,
}

impl Segment {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.private.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.private.iter().map(|(_, s)| s.bytes.len()).sum::<usize>()
    }

    /// Returns the messages for this member only.
    pub(crate) fn private(&self, member: u32) -> Option<&Arc<Self>> {
        self.private.iter().find(|(m, _)| *m == member).map(|(_, s)| s)
    }

    /// Returns true if any message of the segment is sent to this member.
    pub(crate) fn concerns(&self, member: u32) -> bool {
        self.sources.binary_search(&member).is_err() || self.messages.iter().any(|m| m.source != member)
    }
}

/// Read position of a member in a segment.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    segment: Arc<Segment>,
    message: usize,
    member: u32,
}

impl Cursor {
    pub(crate) fn new(segment: Arc<Segment>, member: u32) -> Self {
        Self { segment, message: 0, member }
    }

    /// Appends whole messages, at most `room` octets but at least one message. Returns the number of
    /// messages, and true if the segment is finished.
    pub(crate) fn copy(&mut self, out: &mut Vec<u8>, room: usize) -> (u64, bool) {
        let segment = &*self.segment;
        let messages = segment.messages.get(self.message..).unwrap_or_default();
        let begin =
            self.message.checked_sub(1).and_then(|m| segment.messages.get(m)).map_or(0, |m| m.end as usize);
        if segment.sources.binary_search(&self.member).is_err() {
            // No message is skipped, so as many messages as fit are copied at once.
            let fit = messages.partition_point(|m| m.end as usize - begin <= room).max(1).min(messages.len());
            let end = fit.checked_sub(1).and_then(|m| messages.get(m)).map_or(begin, |m| m.end as usize);
            out.extend_from_slice(segment.bytes.get(begin..end).unwrap_or_default());
            self.message += fit;
            return (fit as u64, self.message >= segment.messages.len());
        }
        let (mut count, start, mut begin) = (0, out.len(), begin);
        for message in messages {
            let end = message.end as usize;
            if message.source != self.member {
                if count > 0 && out.len() - start + (end - begin) > room {
                    return (count, false);
                }
                out.extend_from_slice(segment.bytes.get(begin..end).unwrap_or_default());
                count += 1;
            }
            begin = end;
            self.message += 1;
        }
        (count, true)
    }
}

/// Differences to encode in a segment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// Source that need not be sent the withdrawal ([`LOCAL`]: none), and slot.
    pub(crate) withdrawn: Vec<(u32, u32)>,
    /// Attribute set and slot.
    pub(crate) announced: Vec<(u32, u32)>,
    /// Member and slot of a route that was announced to it and is its own now.
    pub(crate) private: Vec<(u32, u32)>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.withdrawn.is_empty() && self.announced.is_empty() && self.private.is_empty()
    }

    /// Encodes withdrawals, then announcements, packed by common attributes. `is_member` returns true if a
    /// source is a member of the group: only then are its withdrawals kept in separate messages.
    /// Announcements of two sources are separate in any case.
    pub(crate) fn encode<A: Key>(
        mut self,
        key: &GroupKey,
        shared: &Shared,
        table: &Table<A>,
        attr_sets: &AttrSets,
        is_member: impl Fn(u32) -> bool,
    ) -> Segment {
        let mut segment = Segment::default();
        for (source, _) in &mut self.withdrawn {
            if !is_member(*source) {
                *source = LOCAL;
            }
        }
        // Both sorts are stable, so prefixes stay in the order received.
        self.withdrawn.sort_by_key(|(source, _)| *source);
        if !self.announced.is_sorted_by_key(|(out, _)| *out) {
            self.announced.sort_by_key(|(out, _)| *out);
        }
        let withdrawal = UpdateTemplate::withdrawal(key.family, &key.session);
        for run in self.withdrawn.chunk_by(|a, b| a.0 == b.0) {
            let source = run.first().map_or(LOCAL, |(s, _)| *s);
            segment.write(&withdrawal, table, key, source, run.iter().map(|(_, slot)| *slot));
        }
        for run in self.announced.chunk_by(|a, b| a.0 == b.0) {
            let Some(out) = run.first().and_then(|(out, _)| attr_sets.key(*out)) else { continue };
            let Some(attributes) = export::attributes(shared, key, out, attr_sets.added(out.extra)) else {
                continue;
            };
            // Oversized attribute sets are not announced: see `is_oversized`.
            let Ok(template) = UpdateTemplate::new(&attributes, key.family, &key.session) else { continue };
            segment.write(&template, table, key, out.source, run.iter().map(|(_, slot)| *slot));
        }
        self.private.sort_unstable();
        for run in self.private.chunk_by(|a, b| a.0 == b.0) {
            let mut own = Segment::default();
            own.write(&withdrawal, table, key, LOCAL, run.iter().map(|(_, slot)| *slot));
            if let Some((member, _)) = run.first() {
                segment.private.push((*member, Arc::new(own)));
            }
        }
        segment.sources.sort_unstable();
        segment.sources.dedup();
        segment
    }
}

impl Segment {
    /// Appends the messages for these slots. `source`: source of their routes.
    fn write<A: Key>(
        &mut self,
        template: &UpdateTemplate,
        table: &Table<A>,
        key: &GroupKey,
        source: u32,
        slots: impl Iterator<Item = u32>,
    ) {
        let path_id = key.path_id().unwrap_or(0);
        let routes =
            slots.filter_map(|slot| table.entry(slot).map(|e| wire::Entry { prefix: e.prefix(), path_id }));
        let before = self.messages.len();
        template.write(&mut self.bytes, routes, |end| {
            self.messages.push(Message { end: u32::try_from(end).unwrap_or(u32::MAX), source });
        });
        if source != LOCAL && self.messages.len() > before {
            self.sources.push(source);
        }
    }
}
