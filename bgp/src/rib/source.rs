//! The peers as the tables see them.

use std::net::IpAddr;
use std::sync::Arc;

use slab::Slab;
use smallvec::SmallVec;

use crate::api::{PeerId, PeerView};
use crate::types::Family;
use crate::wire::Role;

/// The number that local routes carry instead of a peer's.
pub(crate) const LOCAL: u32 = u32::MAX;

/// A peer, session apart.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: PeerId,
    pub(crate) name: Arc<str>,
    pub(crate) address: IpAddr,
    pub(crate) asn: u32,
    pub(crate) local_asn: u32,
    pub(crate) class: u64,
    pub(crate) client: Option<u32>,
    pub(crate) allow_own_as: u8,
    /// [`PeerConfig::role`](crate::PeerConfig::role).
    pub(crate) role: Option<Role>,
    /// [`PeerConfig::ebgp_policy`](crate::PeerConfig::ebgp_policy).
    pub(crate) ebgp_policy: bool,
    /// The BGP identifier of the last OPEN.
    pub(crate) router_id: u32,
    /// Our addresses towards it: no next hop of its routes may be one of them.
    pub(crate) own: SmallVec<[IpAddr; 3]>,
    pub(crate) families: [SourceFamily; 2],
    /// No longer configured: forgotten when its last path is removed.
    pub(crate) removed: bool,
}

/// The routes of one family of a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SourceFamily {
    /// The session that paths belong to: it rises with each session's end.
    pub(crate) generation: u8,
    /// Paths of this earlier session are kept as stale (RFC 4724).
    pub(crate) kept: Option<u8>,
    /// Paths of the current session.
    pub(crate) current: Counts,
    /// Paths of the kept session.
    pub(crate) stale: Counts,
    /// Prefixes whose best path it gives.
    pub(crate) best: u32,
    /// Sessions ended since the walk last completed a round.
    pub(crate) unswept: u8,
    /// Its import decisions have to be made anew.
    pub(crate) reimport: bool,
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
        generation == self.generation || self.kept == Some(generation)
    }

    /// Where paths of this generation are counted.
    #[inline]
    pub(crate) fn counts(&mut self, generation: u8) -> Option<&mut Counts> {
        if generation == self.generation {
            Some(&mut self.current)
        } else if self.kept == Some(generation) {
            Some(&mut self.stale)
        } else {
            None
        }
    }

    /// The session ended. `keep`: its routes stay as stale; those that were stale already do not (RFC 4724 4.2).
    pub(crate) fn end(&mut self, keep: bool) {
        let keep = keep && self.current.received > 0;
        // A restart during a restart without any new routes leaves the old ones stale: nothing newer is known.
        (self.kept, self.stale) =
            if keep { (Some(self.generation), self.current) } else { (None, Counts::default()) };
        self.current = Counts::default();
        self.generation = self.generation.wrapping_add(1);
        self.unswept = self.unswept.saturating_add(1);
    }

    /// What is still stale is gone.
    pub(crate) fn drop_stale(&mut self) -> bool {
        let had = self.kept.take().is_some();
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
            class: self.class,
            role: self.role(),
        }
    }
}

/// All peers by number.
#[derive(Debug, Default)]
pub(crate) struct Sources(Slab<Source>);

impl Sources {
    pub(crate) fn insert(&mut self, source: Source) -> u32 {
        u32::try_from(self.0.insert(source)).unwrap_or(LOCAL)
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
