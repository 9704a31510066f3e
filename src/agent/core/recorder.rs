//! Flight recorder: the recent changes with their reasons, bounded and in memory.
//!
//! Bulk route changes are one entry per batch and peer. Single prefixes have their own histories, so that a
//! full feed does not evict entries of interest. [`Recorder::take_new`] returns new entries for followers.

mod describe;
pub(in crate::agent) mod unreadable;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tortie_config::key::Key;
use tortie_net::Cidr;

use crate::api::status::Event;
use tortie_engine::routing::{ChangeId, DYNAMIC};

/// Maximum number of entries in the ring.
pub(in crate::agent) const ENTRIES_MAX: usize = 16_384;
/// If more entries of one kind belong to one change, they are recorded as one.
pub(in crate::agent) const SINGLE_ENTRIES_MAX: usize = 16;
/// Maximum number of prefixes with a history.
pub(in crate::agent) const PREFIXES_MAX: usize = 4_096;
/// Maximum number of entries per prefix history.
const ENTRIES_PER_PREFIX_MAX: usize = 16;
/// Leading parts of session names.
const SESSION_NAME_PREFIXES: [&str; 4] = ["Mesh_", "Global_", "Node_", DYNAMIC];

/// Part of the agent that an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Plane {
    /// Changes of keys in the store.
    Store,
    /// Changes of the routing intent.
    Routing,
    /// Changes of policy.
    Policy,
    /// BGP sessions and routes.
    Rib,
    /// Acknowledgements of the kernel.
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

/// An entry to record; the recorder adds number and time.
#[derive(Debug, Clone)]
pub(in crate::agent) struct Entry {
    /// Change to which the entry belongs.
    pub(in crate::agent) change: ChangeId,
    /// Origin of the entry.
    pub(in crate::agent) plane: Plane,
    /// `+` added, `-` removed, `~` changed, `!` problem.
    pub(in crate::agent) mark: char,
    /// Subject: a key, a prefix or a peer.
    pub(in crate::agent) subject: String,
    /// Description.
    pub(in crate::agent) text: String,
    /// Store revision; 0 if none.
    pub(in crate::agent) revision: u64,
}

/// A new entry for followers.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) struct NewEntry {
    pub(in crate::agent) event: Arc<Event>,
    /// True for an entry of a prefix history, which only followers of that prefix receive.
    pub(in crate::agent) single: bool,
}

/// Filter of entries; an absent field is no condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::agent) struct Filter {
    /// Accepted kinds; empty accepts all.
    pub(in crate::agent) kinds: Vec<String>,
    /// Session that the entry must concern.
    pub(in crate::agent) peer: Option<String>,
    /// Prefix that the entry must be about, contain or be contained in.
    pub(in crate::agent) prefix: Option<Cidr>,
    /// Text contained in the subject, or an exact change id.
    pub(in crate::agent) subject: Option<String>,
    /// Earliest time, RFC 3339 in the form of entries.
    pub(in crate::agent) since: Option<String>,
}

impl Filter {
    /// True if an entry matches; `single` marks entries of a prefix history.
    pub(in crate::agent) fn matches(&self, event: &Event, single: bool) -> bool {
        let near = |prefix: &Cidr| {
            let of = event.prefix.as_ref().and_then(|text| text.parse::<Cidr>().ok());
            of.is_some_and(|of| prefix.covers(&of) || of.covers(prefix))
        };
        let queried_by_prefix = || {
            self.prefix.is_some() || self.subject.as_ref().is_some_and(|s| Some(s) == event.prefix.as_ref())
        };
        (!single || queried_by_prefix())
            && (self.kinds.is_empty() || event.kinds.iter().any(|kind| self.kinds.contains(kind)))
            && self.peer.as_ref().is_none_or(|peer| event.peer.as_ref() == Some(peer))
            && self.prefix.as_ref().is_none_or(near)
            && self.subject.as_ref().is_none_or(|s| event.change == *s || event.subject.contains(s))
            && self.since.as_ref().is_none_or(|since| event.time >= *since)
    }
}

/// Ring of entries and histories of single prefixes.
#[derive(Debug)]
pub(in crate::agent) struct Recorder {
    next: u64,
    /// Number of the newest evicted entry.
    lost: u64,
    ring: VecDeque<Arc<Event>>,
    prefixes: HashMap<Cidr, VecDeque<Arc<Event>>>,
    order: VecDeque<Cidr>,
    /// Entries since the last [`Recorder::take_new`].
    new: Vec<NewEntry>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::counting_from(0)
    }
}

impl Recorder {
    /// Creates a recorder that numbers entries after this one, so that numbers of an earlier run are not
    /// reused.
    pub(in crate::agent) fn counting_from(number: u64) -> Self {
        Self {
            next: number,
            lost: number,
            ring: VecDeque::new(),
            prefixes: HashMap::new(),
            order: VecDeque::new(),
            new: Vec::new(),
        }
    }

    /// Returns the last used number, from which [`Recorder::counting_from`] continues.
    pub(in crate::agent) fn next_number(&self) -> u64 {
        self.next
    }

    /// Records an entry; `time` is RFC 3339.
    pub(in crate::agent) fn record(&mut self, time: String, entry: Entry) {
        let about = about(&entry);
        self.push(time, about, entry);
    }

    /// Records an entry whose subject is a key of the store.
    pub(in crate::agent) fn record_key(&mut self, time: String, key: Option<&Key>, entry: Entry) {
        let prefix = match key {
            Some(Key::Pool(cidr) | Key::Block(cidr) | Key::Affinity { block: cidr, .. }) => Some(*cidr),
            _ => None,
        };
        self.push(time, (None, prefix), entry);
    }

    fn push(&mut self, time: String, about: (Option<String>, Option<Cidr>), entry: Entry) {
        let event = self.event(time, about, entry, false);
        if self.ring.len() == ENTRIES_MAX
            && let Some(gone) = self.ring.pop_front()
        {
            self.lost = gone.seq;
        }
        self.ring.push_back(event);
    }

    /// Records an entry in the history of one prefix, not in the ring.
    pub(in crate::agent) fn record_prefix(&mut self, time: String, prefix: Cidr, entry: Entry) {
        let about = about(&entry);
        let event = self.event(time, about, entry, true);
        if !self.prefixes.contains_key(&prefix) {
            if self.order.len() == PREFIXES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.prefixes.remove(&oldest);
            }
            self.order.push_back(prefix);
        }
        let history = self.prefixes.entry(prefix).or_default();
        if history.len() == ENTRIES_PER_PREFIX_MAX {
            history.pop_front();
        }
        history.push_back(event);
    }

    fn event(
        &mut self,
        time: String,
        (peer, prefix): (Option<String>, Option<Cidr>),
        entry: Entry,
        single: bool,
    ) -> Arc<Event> {
        self.next += 1;
        let event = Arc::new(Event {
            seq: self.next,
            time,
            change: entry.change.to_string(),
            plane: entry.plane.as_str().to_owned(),
            mark: entry.mark.to_string(),
            kinds: kinds(entry.plane, &entry.subject, prefix.is_some()),
            peer,
            prefix: prefix.map(|prefix| prefix.to_string()),
            subject: entry.subject,
            text: entry.text,
            revision: entry.revision,
        });
        self.new.push(NewEntry { event: Arc::clone(&event), single });
        event
    }

    /// Returns matching entries after number `after`, oldest first, at most `max`: the newest if `after` is
    /// 0, else the next ones.
    #[must_use]
    pub(in crate::agent) fn find(&self, filter: &Filter, after: u64, max: usize) -> Vec<Arc<Event>> {
        let later = |event: &&Arc<Event>| event.seq > after;
        let mut found: Vec<Arc<Event>> =
            self.ring.iter().filter(later).filter(|e| filter.matches(e, false)).map(Arc::clone).collect();
        let queried = filter.prefix.or_else(|| filter.subject.as_deref()?.parse().ok());
        if let Some(prefix) = queried {
            let whole = Filter { subject: None, prefix: None, ..filter.clone() };
            // The history of the exact prefix is a direct lookup; prefixes inside it are searched only for a
            // filter by prefix.
            let own = self.prefixes.get_key_value(&prefix);
            let inside = self
                .prefixes
                .iter()
                .filter(|(of, _)| filter.prefix.is_some() && **of != prefix && prefix.covers(of));
            let single = own.into_iter().chain(inside).flat_map(|(_, history)| history).filter(later);
            found.extend(single.filter(|e| whole.matches(e, false)).map(Arc::clone));
        }
        found.sort_by_key(|e| e.seq);
        found.dedup_by_key(|e| e.seq);
        let skip = if after == 0 { found.len().saturating_sub(max) } else { 0 };
        found.into_iter().skip(skip).take(max).collect()
    }

    /// Returns the entries about one prefix from its history and the ring, oldest first.
    #[must_use]
    pub(in crate::agent) fn of_prefix(&self, prefix: &Cidr) -> Vec<Event> {
        let text = Some(prefix.to_string());
        let ring = self.ring.iter().filter(|event| event.prefix == text);
        let mut found: Vec<Event> =
            ring.chain(self.prefixes.get(prefix).into_iter().flatten()).map(|e| Event::clone(e)).collect();
        found.sort_by_key(|e| e.seq);
        found
    }

    /// Returns the entries recorded since the last call.
    pub(in crate::agent) fn take_new(&mut self) -> impl Iterator<Item = NewEntry> {
        std::mem::take(&mut self.new).into_iter()
    }

    /// Returns the number of the newest entry.
    pub(in crate::agent) fn newest(&self) -> u64 {
        self.next
    }

    /// True if this number belongs to this run and all later entries of the ring are still kept.
    pub(in crate::agent) fn has_all_after(&self, number: u64) -> bool {
        (self.lost..=self.next).contains(&number)
    }
}

/// Returns the session and the prefix that a subject names; for keys of the store see
/// [`Recorder::record_key`].
fn about(entry: &Entry) -> (Option<String>, Option<Cidr>) {
    if SESSION_NAME_PREFIXES.iter().any(|begin| entry.subject.starts_with(begin)) {
        return (Some(entry.subject.clone()), None);
    }
    (None, entry.subject.parse().ok())
}

fn kinds(plane: Plane, subject: &str, prefix: bool) -> Vec<String> {
    let mut kinds = match plane {
        Plane::Store => vec!["store"],
        Plane::Routing => vec!["route"],
        Plane::Policy => vec!["policy"],
        Plane::Rib => vec!["bgp"],
        Plane::Kernel => vec!["kernel"],
        Plane::Agent => vec!["agent"],
    };
    match plane {
        Plane::Store => {
            let parts =
                [("/ipam/", "ipam"), ("/bgp/", "bgp"), ("/policy/", "policy"), ("/endpoint/", "policy")];
            kinds.extend(parts.iter().filter(|(part, _)| subject.contains(part)).map(|(_, kind)| *kind));
        }
        Plane::Routing if SESSION_NAME_PREFIXES.iter().any(|begin| subject.starts_with(begin)) => {
            kinds = vec!["bgp"]
        }
        Plane::Rib | Plane::Kernel if prefix => kinds.push("route"),
        Plane::Kernel if subject.contains("routes") || subject.contains("prefixes") => kinds.push("route"),
        Plane::Kernel if subject.contains("rules") => kinds.push("policy"),
        _ => {}
    }
    kinds.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(subject: &str) -> Entry {
        of(Plane::Rib, subject)
    }

    fn of(plane: Plane, subject: &str) -> Entry {
        let (subject, text) = (subject.to_owned(), String::new());
        Entry { change: ChangeId(7), plane, mark: '+', subject, text, revision: 0 }
    }

    fn named(subject: &str) -> Filter {
        Filter { subject: Some(subject.to_owned()), ..Filter::default() }
    }

    #[test]
    fn a_full_feed_does_not_evict_the_ring_and_both_are_bounded() {
        let mut recorder = Recorder::default();
        recorder.record(String::new(), entry("peer tor-a"));
        for i in 0..10_000u32 {
            let prefix = Cidr::v4(std::net::Ipv4Addr::from(i << 8), 24);
            recorder.record_prefix(String::new(), prefix, entry(&prefix.to_string()));
        }
        assert_eq!(recorder.find(&named("peer tor-a"), 0, 10).len(), 1);
        assert_eq!(recorder.prefixes.len(), PREFIXES_MAX);
        assert!(recorder.find(&named("0.0.0.0/24"), 0, 10).is_empty());
        assert_eq!(recorder.find(&named("0.39.15.0/24"), 0, 10).len(), 1);
        for _ in 0..ENTRIES_MAX + 5 {
            recorder.record(String::new(), entry("x"));
        }
        assert_eq!(recorder.find(&Filter::default(), 0, usize::MAX).len(), ENTRIES_MAX);
    }

    #[test]
    fn without_a_start_the_newest_are_given_with_one_the_next() {
        let mut recorder = Recorder::default();
        for _ in 0..5 {
            recorder.record(String::new(), entry("x"));
        }
        let seqs = |after, max| {
            let list = recorder.find(&Filter::default(), after, max);
            list.iter().map(|e| e.seq).collect::<Vec<_>>()
        };
        assert_eq!(seqs(0, 2), [4, 5]);
        assert_eq!(seqs(2, 2), [3, 4]);
    }

    #[test]
    fn filters_take_what_an_entry_is_about() {
        let mut recorder = Recorder::default();
        let entries = [
            of(Plane::Store, "/calico/v1/ipam/v4/pool/10.0.0.0-16"),
            of(Plane::Store, "/calico/bgp/v1/global/node_mesh"),
            of(Plane::Rib, "Global_192_0_2_1"),
            of(Plane::Kernel, "10.0.1.0/26"),
            of(Plane::Kernel, "packet rules"),
            of(Plane::Routing, "Mesh_192_0_2_15"),
            of(Plane::Policy, "cni/a/eth0"),
        ];
        for (at, entry) in entries.into_iter().enumerate() {
            let time = format!("2026-11-20T14:00:0{at}.000Z");
            match entry.plane {
                Plane::Store => recorder.record_key(time, entry.subject.clone().parse().ok().as_ref(), entry),
                _ => recorder.record(time, entry),
            }
        }
        let prefix: Cidr = "10.0.1.64/26".parse().unwrap();
        recorder.record_prefix(String::from("2026-11-20T14:00:09.000Z"), prefix, entry("10.0.1.64/26"));
        let seqs = |filter: &Filter| recorder.find(filter, 0, 99).iter().map(|e| e.seq).collect::<Vec<_>>();
        let kind = |kind: &str| seqs(&Filter { kinds: vec![kind.to_owned()], ..Filter::default() });
        assert_eq!(kind("store"), [1, 2]);
        assert_eq!(kind("ipam"), [1]);
        assert_eq!(kind("bgp"), [2, 3, 6]);
        assert_eq!(kind("route"), [4]);
        assert_eq!(kind("policy"), [5, 7]);
        let of_peer = Filter { peer: Some("Global_192_0_2_1".to_owned()), ..Filter::default() };
        assert_eq!(seqs(&of_peer), [3]);
        let of = |text: &str| seqs(&Filter { prefix: text.parse().ok(), ..Filter::default() });
        // Entries about prefixes inside the filter's prefix, and about those that contain it.
        assert_eq!(of("10.0.1.0/24"), [1, 4, 8]);
        assert_eq!(of("10.0.1.64/26"), [1, 8]);
        assert_eq!(of("10.1.0.0/16"), [0u64; 0]);
        let late = Filter { since: Some("2026-11-20T14:00:05.000Z".to_owned()), ..Filter::default() };
        assert_eq!(seqs(&late), [6, 7]);
    }

    #[test]
    fn a_follower_that_comes_back_learns_of_missing_entries() {
        let mut recorder = Recorder::counting_from(1_000);
        assert!(recorder.has_all_after(1_000));
        assert!(!recorder.has_all_after(999), "of an earlier run");
        for _ in 0..ENTRIES_MAX + 1 {
            recorder.record(String::new(), entry("x"));
        }
        assert!(!recorder.has_all_after(1_000) && recorder.has_all_after(1_001));
        assert!(!recorder.has_all_after(recorder.newest() + 1), "of no run");
    }

    #[test]
    fn each_entry_is_handed_on_once_in_order() {
        let mut recorder = Recorder::default();
        recorder.record(String::new(), entry("x"));
        recorder.record_prefix(String::new(), "10.0.0.0/24".parse().unwrap(), entry("10.0.0.0/24"));
        let new: Vec<_> = recorder.take_new().map(|new| (new.event.seq, new.single)).collect();
        assert_eq!(new, [(1, false), (2, true)]);
        assert_eq!(recorder.take_new().count(), 0);
    }
}
