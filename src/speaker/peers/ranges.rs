//! Ranges of addresses from which sessions are accepted, and their dynamic peers.
//!
//! The BGP core admits the peers. This module provides the keys that connections from a range need, and names
//! and options of dynamic peers. While they exist, these are entries of [`PeerTable`] like configured peers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tortie_bgp::{PeerId, RangeConfig, RangeId, RangeStatus};
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{DYNAMIC, DynamicPeer, Persistent, RangeIntent};

use super::config::config;
use super::keys::{KeyProblems, guard_of, restarts};
use super::table::PeerTable;
use crate::speaker::faults::PeerProblem;
use crate::speaker::policy::Classes;
use crate::speaker::sockets::guard::Guard;

/// A range in the BGP core.
#[derive(Clone)]
struct Range {
    id: RangeId,
    config: RangeConfig,
    guard: Guard,
}

/// A change on the way from one intent to the next.
#[derive(Debug, PartialEq)]
pub(crate) enum RangeChange {
    Set(RangeId, Box<RangeConfig>),
    Remove(RangeId),
    /// Changes the guard of the connections of a range's peers.
    Secure(Arc<str>, Guard),
    Problem(PeerProblem),
}

/// All ranges and their dynamic peers.
#[derive(Clone, Default)]
pub(crate) struct Ranges {
    ranges: BTreeMap<Arc<str>, Range>,
    key_problems: KeyProblems,
    /// Prefixes of ranges without a usable key, which accept no connections.
    shut: Vec<Cidr>,
    peers: BTreeMap<PeerId, DynamicPeer>,
    /// True if keys of ranges are in files.
    key_files: bool,
    made: u32,
    /// True if a dynamic peer was added or removed since [`Self::take_moved`].
    moved: bool,
}

impl Ranges {
    /// Returns the dynamic peers.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &DynamicPeer> {
        self.peers.values()
    }

    /// Returns the name of a range.
    pub(crate) fn name(&self, id: RangeId) -> Option<&Arc<str>> {
        self.ranges.iter().find(|(_, range)| range.id == id).map(|(name, _)| name)
    }

    /// Returns the configurations of all ranges.
    pub(crate) fn configs(&self) -> impl Iterator<Item = (RangeId, &RangeConfig)> {
        self.ranges.values().map(|range| (range.id, &range.config))
    }

    /// Returns the addresses of a range's dynamic peers.
    pub(crate) fn addresses(&self, range: &str) -> BTreeSet<ScopedAddr> {
        let of_range = self.peers.values().filter(|peer| &*peer.range == range);
        of_range.map(|peer| ScopedAddr::of(peer.remote)).collect()
    }

    /// Adds a dynamic peer of a range to the table.
    pub(crate) fn join(
        &mut self,
        id: PeerId,
        range: RangeId,
        name: &Arc<str>,
        remote: SocketAddr,
        table: &mut PeerTable,
    ) -> Option<DynamicPeer> {
        let (of, range) = self.ranges.iter().find(|(_, found)| found.id == range)?;
        let peer = DynamicPeer { name: name.clone(), range: of.clone(), remote };
        table.add_dynamic(id, name.clone(), remote, &range.config.peer, range.guard.clone());
        self.peers.insert(id, peer.clone());
        self.moved = true;
        Some(peer)
    }

    /// Removes a dynamic peer.
    pub(crate) fn leave(&mut self, id: PeerId, table: &mut PeerTable) -> Option<DynamicPeer> {
        table.forget(id);
        let peer = self.peers.remove(&id)?;
        self.moved = true;
        Some(peer)
    }

    /// Returns true if dynamic peers were added or removed since the last call.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// True if following the same ranges again may find other keys.
    pub(crate) fn has_key_files(&self) -> bool {
        self.key_files
    }

    /// Returns key and minimum TTL by prefix, and descriptions of contradictions. A key of a range applies to
    /// all its addresses, including those of another range or a peer without a key: the kernel knows no
    /// exception.
    pub(crate) fn guards<'a>(
        &self,
        peers: impl Iterator<Item = (ScopedAddr, &'a Guard)>,
    ) -> (BTreeMap<Cidr, Guard>, Vec<String>) {
        let mut guards: BTreeMap<Cidr, Guard> =
            self.ranges.values().map(|range| (range.config.prefix, range.guard.clone())).collect();
        // A wider range must not admit these addresses either.
        for prefix in &self.shut {
            guards.entry(*prefix).or_insert_with(Guard::shut);
        }
        let open = |guard: &Guard| guard.key.is_none() && !guard.shut;
        let keyed: Vec<&Cidr> = guards.iter().filter(|(_, g)| g.key.is_some()).map(|(p, _)| p).collect();
        let mut clashes = Vec::new();
        if keyed.is_empty() {
            return (guards, clashes);
        }
        for (addr, _) in peers.filter(|(_, guard)| open(guard)) {
            if let Some(range) = keyed.iter().find(|range| range.contains(addr.addr())) {
                clashes.push(format!(
                    "peer {addr} has no password but is in the range {range} that has one, so it cannot \
                     connect: give it one, or exclude it from the range"
                ));
            }
        }
        for inner in guards.iter().filter(|(_, guard)| open(guard)).map(|(prefix, _)| prefix) {
            if let Some(outer) = keyed.iter().find(|outer| outer.covers(inner)) {
                clashes.push(format!(
                    "range {inner} has no password but is in {outer} that has one, so no peer can connect \
                     from it: give it one"
                ));
            }
        }
        (guards, clashes)
    }

    /// Returns the changes from the current ranges to `wanted`.
    pub(crate) fn follow(
        &mut self,
        wanted: &Persistent<String, RangeIntent>,
        secrets: &Path,
        classes: &Classes,
    ) -> Vec<RangeChange> {
        let mut changes = Vec::new();
        self.key_files = wanted.values().any(|range| range.peer.has_key_file());
        self.ranges.retain(|name, range| {
            let keep = wanted.contains_key(&**name);
            if !keep {
                changes.push(RangeChange::Remove(range.id));
            }
            keep
        });
        changes.extend(self.key_problems.keep(wanted).map(RangeChange::Problem));
        self.shut.clear();
        for (name, intent) in wanted {
            let name: Arc<str> = self
                .ranges
                .get_key_value(name.as_str())
                .map_or_else(|| name.as_str().into(), |(n, _)| n.clone());
            let old = self.ranges.get(&name).map(|range| &range.guard);
            let (guard, problem) = guard_of(&intent.peer, secrets, old);
            changes.extend(self.key_problems.set(&name, problem).map(RangeChange::Problem));
            // A range that requires a key accepts no peer without one.
            let Some(guard) = guard else {
                changes.extend(self.ranges.remove(&name).map(|range| RangeChange::Remove(range.id)));
                self.shut.push(intent.prefix);
                continue;
            };
            let mut config_of = RangeConfig::new(intent.prefix, intent.peer.asn);
            config_of.max_peers = intent.max_sessions;
            config_of.peer = config(&intent.peer, DYNAMIC.into(), classes);
            match self.ranges.get_mut(&name) {
                Some(range) if !restarts(&range.guard, &guard) => {
                    if range.guard != guard {
                        changes.push(RangeChange::Secure(name.clone(), guard.clone()));
                    }
                    if range.config != config_of {
                        changes.push(RangeChange::Set(range.id, Box::new(config_of.clone())));
                    }
                    (range.config, range.guard) = (config_of, guard);
                }
                old => {
                    // Sessions with another kind of key end, and with them the range's id.
                    changes.extend(old.map(|range| RangeChange::Remove(range.id)));
                    self.made += 1;
                    let id = RangeId(self.made);
                    changes.push(RangeChange::Set(id, Box::new(config_of.clone())));
                    self.ranges.insert(name, Range { id, config: config_of, guard });
                }
            }
        }
        changes
    }
}

/// A range and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeView {
    /// Name of the range.
    pub name: Arc<str>,
    /// State in the BGP core.
    pub status: RangeStatus,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_engine::routing::Password;

    fn range(prefix: &str) -> RangeIntent {
        let mut peer = crate::speaker::peers::table::tests::intent("192.0.2.0:179");
        peer.dial_after = None;
        RangeIntent { prefix: prefix.parse().unwrap(), max_sessions: 10, peer }
    }

    fn follow(ranges: &mut Ranges, wanted: &[(&str, RangeIntent)]) -> Vec<RangeChange> {
        let wanted = wanted.iter().map(|(name, range)| ((*name).to_owned(), range.clone())).collect();
        ranges.follow(&wanted, Path::new("/nonexistent"), &Classes::default())
    }

    fn keyed(prefix: &str, key: &str) -> RangeIntent {
        let mut range = range(prefix);
        range.peer.password = Some(Password::Text(key.into()));
        range
    }

    #[test]
    fn another_key_costs_no_session_and_a_first_one_a_new_range() {
        let mut ranges = Ranges::default();
        let first = follow(&mut ranges, &[("a", range("10.0.0.0/8"))]);
        assert!(
            matches!(&first[..], [RangeChange::Set(RangeId(1), c)] if c.max_peers == 10 && &*c.peer.name == DYNAMIC)
        );
        assert_eq!(follow(&mut ranges, &[("a", range("10.0.0.0/8"))]), []);
        let change = follow(&mut ranges, &[("a", keyed("10.0.0.0/8", "one"))]);
        assert!(matches!(&change[..], [RangeChange::Remove(RangeId(1)), RangeChange::Set(RangeId(2), _)]));
        let change = follow(&mut ranges, &[("a", keyed("10.0.0.0/8", "two"))]);
        assert!(matches!(&change[..], [RangeChange::Secure(name, _)] if &**name == "a"));
        let change = follow(&mut ranges, &[("a", keyed("10.0.0.0/8", &"x".repeat(81)))]);
        assert!(matches!(&change[..], [RangeChange::Problem((_, Some(_)))]), "the key that worked stays");
        let change = follow(&mut ranges, &[]);
        assert!(matches!(&change[..], [RangeChange::Remove(RangeId(2)), RangeChange::Problem((_, None))]));
    }

    #[test]
    fn a_first_key_that_cannot_be_used_ends_the_range() {
        let mut ranges = Ranges::default();
        follow(&mut ranges, &[("a", range("10.0.0.0/8"))]);
        let mut unusable = range("10.0.0.0/8");
        unusable.peer.password = Some(Password::File("missing".into()));
        let change = follow(&mut ranges, &[("a", unusable.clone())]);
        assert!(matches!(&change[..], [RangeChange::Problem((_, Some(_))), RangeChange::Remove(RangeId(1))]));
        assert_eq!(follow(&mut ranges, &[("a", unusable.clone())]), []);
        assert_eq!(ranges.guards(std::iter::empty()).0[&"10.0.0.0/8".parse().unwrap()], Guard::shut());
        let change = follow(&mut ranges, &[("a", keyed("10.0.0.0/8", "one"))]);
        assert!(matches!(&change[..], [RangeChange::Problem((_, None)), RangeChange::Set(RangeId(2), _)]));
        // The key that worked stays, while other changes apply.
        unusable.max_sessions = 20;
        let change = follow(&mut ranges, &[("a", unusable)]);
        assert!(
            matches!(&change[..], [RangeChange::Problem((_, Some(_))), RangeChange::Set(RangeId(2), config)]
            if config.max_peers == 20)
        );
        assert!(ranges.guards(std::iter::empty()).0.values().all(|guard| guard.key.is_some()));
    }

    #[test]
    fn a_peer_or_range_without_a_key_inside_of_one_with_a_key_is_reported() {
        let mut ranges = Ranges::default();
        follow(
            &mut ranges,
            &[("a", keyed("10.0.0.0/8", "one")), ("b", range("10.1.0.0/16")), ("c", range("::/0"))],
        );
        let none = Guard::default();
        let peers = [("10.9.9.9", &none), ("192.0.2.1", &none)];
        let (guards, clashes) = ranges.guards(peers.iter().map(|(a, g)| (a.parse().unwrap(), *g)));
        assert_eq!((guards.len(), clashes.len()), (3, 2), "{clashes:?}");
        assert!(clashes[0].contains("10.9.9.9") && clashes[1].contains("10.1.0.0/16"), "{clashes:?}");
    }
}
