//! Sources of paths: the peers, as far as the tables need them.

use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use crate::api::{PeerId, PeerView};
use crate::types::Family;
use crate::wire::Role;

/// The number that local routes carry instead of a peer's, above all of those: 22 bits.
pub(crate) const LOCAL: u32 = (1 << 22) - 1;

/// Refreshes that may begin before one has ended.
const REFRESHES: u8 = 40;

/// Generations over which stale routes are kept at most: an octet distinguishes them.
const SPAN: u8 = 200;

/// A peer, session apart.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) id: PeerId,
    pub(crate) name: Arc<str>,
    pub(crate) address: ScopedAddr,
    pub(crate) asn: u32,
    pub(crate) local_asn: u32,
    pub(crate) class: u64,
    pub(crate) client: Option<u32>,
    /// Rises when the same route of it is reflected otherwise: in another cluster, or as of another originator.
    pub(crate) reflection: u32,
    pub(crate) allow_own_as: u8,
    /// [`PeerConfig::role`](crate::PeerConfig::role).
    pub(crate) role: Option<Role>,
    /// [`PeerConfig::ebgp_policy`](crate::PeerConfig::ebgp_policy).
    pub(crate) ebgp_policy: bool,
    /// Maintenance of it is about to begin: its routes are the last to be used (RFC 8326 4.2).
    pub(crate) drained: bool,
    /// The BGP identifier of the last OPEN.
    pub(crate) router_id: u32,
    /// Our addresses towards it: no next hop of its routes may be one of them.
    pub(crate) own: SmallVec<[ScopedAddr; 3]>,
    pub(crate) families: [SourceFamily; 2],
    /// No longer configured: forgotten when its last path is removed.
    pub(crate) removed: bool,
}

/// The routes of one family of a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SourceFamily {
    /// The generation of new paths: it rises with each session's end, and with each refresh.
    pub(crate) generation: u8,
    /// The generation in which the current session began, or the last one ended: a refresh begins others (RFC 7313).
    session: u8,
    /// Paths from this generation on are kept as stale: of an earlier session (RFC 4724), or not yet refreshed (RFC 7313).
    pub(crate) kept: Option<u8>,
    /// Of these, paths up to this generation are long-lived stale (RFC 9494).
    pub(crate) long_lived: Option<u8>,
    /// Stale routes wait for the end of a refresh in this very session (RFC 7313).
    pub(crate) refreshing: bool,
    /// Paths of the current session.
    pub(crate) current: Counts,
    /// Paths of the kept generations.
    pub(crate) stale: Counts,
    /// Prefixes whose best path it gives.
    pub(crate) best: u32,
    /// Sessions ended since the walk last completed a round.
    pub(crate) unswept: u8,
    /// Its import decisions have to be made anew.
    pub(crate) reimport: bool,
    /// The current session has several paths of a prefix (RFC 7911).
    pub(crate) add_path: bool,
}

/// Routes of a family that stay when its session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Nothing.
    Nothing,
    /// The routes of this session, and not those that were stale already (RFC 4724 4.2).
    Session,
    /// Also those that were stale already (RFC 8538 4.1, RFC 9494 4.2).
    All,
}

/// Numbers of paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) received: u32,
    pub(crate) filtered: u32,
}

impl SourceFamily {
    /// Paths of this generation count.
    #[inline]
    pub(crate) fn is_valid(&self, generation: u8) -> bool {
        generation == self.generation || self.is_kept(generation)
    }

    /// Paths of this generation are stale.
    #[inline]
    fn is_kept(&self, generation: u8) -> bool {
        generation != self.generation
            && self.kept.is_some_and(|oldest| self.age(generation) <= self.age(oldest))
    }

    /// Paths of this generation are long-lived stale.
    #[inline]
    pub(crate) fn is_long_lived(&self, generation: u8) -> bool {
        self.long_lived.is_some_and(|newest| self.age(generation) >= self.age(newest))
            && self.is_kept(generation)
    }

    /// How many generations ago.
    #[inline]
    fn age(&self, generation: u8) -> u8 {
        self.generation.wrapping_sub(generation)
    }

    /// Paths of this generation came in an earlier session.
    #[inline]
    pub(crate) fn is_earlier(&self, generation: u8) -> bool {
        self.age(generation) > self.age(self.session)
    }

    /// Rises with the age of paths that came in earlier sessions; 0 for those of the current one.
    pub(crate) fn age_if_earlier(&self, generation: u8) -> u8 {
        if self.is_earlier(generation) { self.age(generation) } else { 0 }
    }

    /// Where paths of this generation are counted.
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

    /// Paths that came in the running session: a refresh makes them stale, but they are no fewer for it.
    pub(crate) fn of_session(&self) -> u32 {
        self.current.received + if self.refreshing { self.stale.received } else { 0 }
    }

    /// The session ended. `false`: the table holds nothing of it, and of no earlier one that counted until now.
    pub(crate) fn end(&mut self, keep: Keep) -> bool {
        if self.current.received == 0 && self.kept.is_none() {
            // No path has this generation, so that it serves the next session, too: whoever comes and goes without a route
            // costs no walk over the table.
            self.refreshing = false;
            self.session = self.generation;
            return false;
        }
        // What a refresh had not come to is no older than the rest.
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

    /// A refresh begins: all routes are stale until they come again (RFC 7313 4). One that begins anew makes those stale
    /// that had come already.
    pub(crate) fn begin_refresh(&mut self) {
        let oldest = self.kept.unwrap_or(self.generation);
        // An octet distinguishes generations. A peer that begins so often without an end gets no more of them.
        if self.generation.wrapping_sub(oldest) < REFRESHES {
            self.kept = Some(oldest);
            self.refreshing = true;
            self.join();
        }
    }

    /// The current generation joins the kept ones.
    fn join(&mut self) {
        self.stale.received += self.current.received;
        self.stale.filtered += self.current.filtered;
        self.current = Counts::default();
        self.generation = self.generation.wrapping_add(1);
        self.unswept = self.unswept.saturating_add(1);
    }

    /// Stale routes become long-lived stale.
    pub(crate) fn begin_long_lived(&mut self) {
        self.long_lived = self.kept.map(|_| self.generation.wrapping_sub(1));
    }

    /// Routes that are still stale are gone.
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

    /// Our role, where it acts.
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

/// All peers by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources(Slab<Source>);

impl Sources {
    pub(crate) fn insert(&mut self, source: Source) -> u32 {
        u32::try_from(self.0.insert(source)).unwrap_or(LOCAL)
    }

    /// Those included whose routes are not all gone yet.
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
            // The next session starts clean, and another end drops what was stale before.
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
        // It came back and was silent: what was kept for it is to go.
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
