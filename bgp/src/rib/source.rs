//! Sources of paths: the part of a peer's state that the tables need.

use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use crate::api::{PeerId, PeerView};
use crate::types::Family;
use crate::wire::Role;

/// Source number of local routes, above those of all peers: 22 bits.
pub(crate) const LOCAL: u32 = (1 << 22) - 1;

/// Maximum number of route refreshes that begin without an end.
const REFRESHES: u8 = 40;

/// Maximum number of generations over which stale routes are kept: generations are numbers of eight bits.
const SPAN: u8 = 200;

/// A peer as a source of paths, without its session.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) id: PeerId,
    pub(crate) name: Arc<str>,
    pub(crate) address: ScopedAddr,
    pub(crate) asn: u32,
    pub(crate) local_asn: u32,
    pub(crate) class: u64,
    pub(crate) client: Option<u32>,
    /// Incremented when its routes are reflected with other attributes: another cluster id or originator.
    pub(crate) reflection: u32,
    pub(crate) allow_own_as: u8,
    /// Local role, [`PeerConfig::role`](crate::PeerConfig::role).
    pub(crate) role: Option<Role>,
    /// See [`PeerConfig::ebgp_policy`](crate::PeerConfig::ebgp_policy).
    pub(crate) ebgp_policy: bool,
    /// Graceful shutdown of the session: its routes get LOCAL_PREF 0 (RFC 8326 4.2).
    pub(crate) drained: bool,
    /// BGP identifier in the last OPEN.
    pub(crate) router_id: u32,
    /// Local addresses towards the peer, which are no valid next hop of its routes.
    pub(crate) own: SmallVec<[ScopedAddr; 3]>,
    pub(crate) families: [SourceFamily; 2],
    /// No longer configured; freed when its last path is removed.
    pub(crate) removed: bool,
}

/// State of one family of a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SourceFamily {
    /// Generation of new paths; incremented at the end of a session and at each route refresh.
    pub(crate) generation: u8,
    /// Generation at the start of the current session or the end of the last one. A refresh starts further
    /// generations (RFC 7313).
    session: u8,
    /// Oldest generation of stale paths: of an earlier session (RFC 4724), or not yet refreshed (RFC 7313).
    /// `None`: no stale paths.
    pub(crate) kept: Option<u8>,
    /// Newest generation of long-lived stale paths (RFC 9494).
    pub(crate) long_lived: Option<u8>,
    /// True if stale paths wait for EoRR in the current session (RFC 7313).
    pub(crate) refreshing: bool,
    /// Number of paths of the current generation.
    pub(crate) current: Counts,
    /// Number of stale paths.
    pub(crate) stale: Counts,
    /// Number of prefixes whose best path comes from this source.
    pub(crate) best: u32,
    /// Number of generations ended since the last complete purge.
    pub(crate) unswept: u8,
    /// True if import policy has to be evaluated again.
    pub(crate) reimport: bool,
    /// True if the current session has several paths per prefix (RFC 7911).
    pub(crate) add_path: bool,
}

/// Routes of a family to keep at the end of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// No routes.
    Nothing,
    /// Routes of this session, but not those that were stale before (RFC 4724 4.2).
    Session,
    /// All routes, including those that were stale before (RFC 8538 4.1, RFC 9494 4.2).
    All,
}

/// Number of paths, by result of import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) received: u32,
    pub(crate) filtered: u32,
}

impl SourceFamily {
    /// Returns true if paths of this generation are valid: current or stale.
    #[inline]
    pub(crate) fn is_valid(&self, generation: u8) -> bool {
        generation == self.generation || self.is_kept(generation)
    }

    /// Returns true if paths of this generation are stale.
    #[inline]
    fn is_kept(&self, generation: u8) -> bool {
        generation != self.generation
            && self.kept.is_some_and(|oldest| self.age(generation) <= self.age(oldest))
    }

    /// Returns true if paths of this generation are long-lived stale.
    #[inline]
    pub(crate) fn is_long_lived(&self, generation: u8) -> bool {
        self.long_lived.is_some_and(|newest| self.age(generation) >= self.age(newest))
            && self.is_kept(generation)
    }

    /// Returns the age of a generation: 0 for the current one.
    #[inline]
    fn age(&self, generation: u8) -> u8 {
        self.generation.wrapping_sub(generation)
    }

    /// Returns true if paths of this generation were received in an earlier session.
    #[inline]
    pub(crate) fn is_earlier(&self, generation: u8) -> bool {
        self.age(generation) > self.age(self.session)
    }

    /// Returns the age of a generation of an earlier session; 0 for those of the current session.
    pub(crate) fn age_if_earlier(&self, generation: u8) -> u8 {
        if self.is_earlier(generation) { self.age(generation) } else { 0 }
    }

    /// Returns the counters for paths of this generation.
    #[inline]
    pub(crate) fn counts(&mut self, generation: u8) -> Option<&mut Counts> {
        if generation == self.generation {
            Some(&mut self.current)
        } else if self.is_kept(generation) {
            Some(&mut self.stale)
        } else {
            None
        }
    }

    /// Returns the number of paths received in the current session. Paths that a refresh made stale still
    /// count.
    pub(crate) fn of_session(&self) -> u32 {
        self.current.received + if self.refreshing { self.stale.received } else { 0 }
    }

    /// Handles the end of a session. Returns false if the table has no path that this affects.
    pub(crate) fn end(&mut self, keep: Keep) -> bool {
        if self.current.received == 0 && self.kept.is_none() {
            // No path has this generation, so the next session can use it: a peer without routes causes no
            // purge.
            self.refreshing = false;
            self.session = self.generation;
            return false;
        }
        // Paths that a refresh had not reached yet are as recent as the others of the session.
        let joined = keep == Keep::All || (keep == Keep::Session && self.refreshing);
        self.refreshing = false;
        let older = self.kept.filter(|oldest| joined && self.age(*oldest) < SPAN);
        if older.is_none() {
            self.drop_stale();
        }
        if keep == Keep::Nothing || self.current.received == 0 {
            self.current = Counts::default();
        } else {
            self.kept = Some(older.unwrap_or(self.generation));
        }
        self.join();
        self.session = self.generation;
        true
    }

    /// Handles BoRR: all paths are stale until they are announced again (RFC 7313 4). A repeated BoRR makes
    /// the refreshed ones stale again.
    pub(crate) fn begin_refresh(&mut self) {
        let oldest = self.kept.unwrap_or(self.generation);
        // Generations are numbers of eight bits: repeated BoRRs without EoRR get no further ones above this
        // limit.
        if self.generation.wrapping_sub(oldest) < REFRESHES {
            self.kept = Some(oldest);
            self.refreshing = true;
            self.join();
        }
    }

    /// Makes the current generation stale and starts a new one.
    fn join(&mut self) {
        self.stale.received += self.current.received;
        self.stale.filtered += self.current.filtered;
        self.current = Counts::default();
        self.generation = self.generation.wrapping_add(1);
        self.unswept = self.unswept.saturating_add(1);
    }

    /// Makes all stale paths long-lived stale.
    pub(crate) fn begin_long_lived(&mut self) {
        self.long_lived = self.kept.map(|_| self.generation.wrapping_sub(1));
    }

    /// Invalidates all stale paths. Returns true if there were any.
    pub(crate) fn drop_stale(&mut self) -> bool {
        let had = self.kept.take().is_some();
        self.refreshing = false;
        self.long_lived = None;
        self.stale = Counts::default();
        had
    }
}

impl Source {
    pub(crate) fn ebgp(&self) -> bool {
        self.asn != self.local_asn
    }

    /// Returns the local role; `None` on iBGP sessions, to which roles do not apply.
    pub(crate) fn role(&self) -> Option<Role> {
        self.role.filter(|_| self.ebgp())
    }

    pub(crate) fn family(&self, family: Family) -> &SourceFamily {
        let [v4, v6] = &self.families;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    pub(crate) fn family_mut(&mut self, family: Family) -> &mut SourceFamily {
        let [v4, v6] = &mut self.families;
        if family == Family::Ipv4Unicast { v4 } else { v6 }
    }

    pub(crate) fn view(&self) -> PeerView<'_> {
        PeerView {
            id: self.id,
            name: &self.name,
            ebgp: self.ebgp(),
            asn: self.asn,
            local_asn: self.local_asn,
            class: self.class,
            role: self.role(),
        }
    }
}

/// All peers by source number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources(Slab<Source>);

impl Sources {
    pub(crate) fn insert(&mut self, source: Source) -> u32 {
        u32::try_from(self.0.insert(source)).unwrap_or(LOCAL)
    }

    /// Returns the number of sources, including removed ones with paths left.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.0.try_remove(number as usize);
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Source> {
        self.0.get(number as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Source> {
        self.0.get_mut(number as usize)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Source)> {
        self.0.iter_mut().map(|(n, s)| (u32::try_from(n).unwrap_or(LOCAL), s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(family: &mut SourceFamily, count: u32) {
        family.current.received += count;
    }

    #[test]
    fn a_refresh_keeps_all_generations_until_its_end() {
        let mut f = SourceFamily::default();
        received(&mut f, 3);
        let first = f.generation;
        f.begin_refresh();
        received(&mut f, 1);
        let second = f.generation;
        f.begin_refresh();
        assert!(f.is_valid(first) && f.is_valid(second) && f.is_valid(f.generation));
        assert_eq!((f.stale.received, f.current.received), (4, 0));
        assert!(!f.is_valid(first.wrapping_sub(1)) && !f.is_valid(f.generation.wrapping_add(1)));
        assert!(f.drop_stale() && !f.refreshing);
        assert!(!f.is_valid(first) && !f.is_valid(second) && f.is_valid(f.generation));
    }

    #[test]
    fn a_session_that_ends_within_a_refresh_keeps_all_or_nothing() {
        for keep in [true, false] {
            let mut f = SourceFamily::default();
            received(&mut f, 2);
            f.begin_refresh();
            received(&mut f, 1);
            let (old, new) = (f.generation.wrapping_sub(1), f.generation);
            f.end(if keep { Keep::Session } else { Keep::Nothing });
            assert_eq!((f.is_valid(old), f.is_valid(new)), (keep, keep));
            assert_eq!(f.stale.received, if keep { 3 } else { 0 });
            assert!(!f.refreshing);
            // The next session starts afresh, and its end drops what was stale before.
            received(&mut f, 1);
            let last = f.generation;
            f.end(Keep::Session);
            assert_eq!((f.is_valid(old), f.is_valid(new), f.is_valid(last)), (false, false, true));
        }
    }

    #[test]
    fn sessions_without_a_route_leave_nothing_to_be_swept() {
        let mut f = SourceFamily::default();
        for _ in 0..1000 {
            assert!(!f.end(Keep::Session));
        }
        assert_eq!((f.generation, f.unswept), (0, 0));
        received(&mut f, 1);
        assert!(f.end(Keep::Session) && !f.is_earlier(f.generation) && f.is_valid(0));
        // The peer returned without routes: the paths kept from before are dropped.
        assert!(f.end(Keep::Session) && !f.is_valid(0));
        assert!(!f.end(Keep::Nothing));
    }

    #[test]
    fn endless_beginnings_never_wrap() {
        let mut f = SourceFamily::default();
        received(&mut f, 1);
        let first = f.generation;
        for _ in 0..1000 {
            f.begin_refresh();
        }
        assert!(f.is_valid(first) && f.generation.wrapping_sub(first) == REFRESHES);
    }
}
