//! Table of all peers by source number, id and address, and of the ranges of dynamic peers.
//!
//! A dynamic peer exists from the accepted connection on. It is removed when it has no connection, none of
//! its routes is kept for its restart (RFC 4724 4.2, RFC 9494), and no prefix limit keeps it out. Its source
//! number is freed later, when the reevaluation of the tables has passed all its paths.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use super::last_error::PeerError;
use super::peer::{Peer, Restart};
use super::range::{Range, Ranges, peer_of};
use crate::api::{Down, LastErrorKind, PeerConfig, PeerId, RangeId};
use crate::wire::{ErrorCode, Notification};

/// Maximum number of removed peers with paths left in the tables. Each removal restarts the reevaluation, so
/// above this number ranges accept no peer until it has finished.
const UNSWEPT: usize = 1024;

/// Decision on a connection from an address without a configured peer.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// No range contains the address.
    NoRange,
    /// Refused with this NOTIFICATION.
    Refused(Notification),
    /// Accepted as a new dynamic peer.
    Peer(PeerId, RangeId, Box<PeerConfig>),
}

/// Table of all peers; see the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeerTable {
    /// Peers by source number.
    peers: FxHashMap<u32, Peer>,
    ids: BTreeMap<PeerId, u32>,
    by_address: BTreeMap<ScopedAddr, SmallVec<[u32; 1]>>,
    ranges: Ranges,
    /// Dynamic peers that may be ready for removal.
    idle_dynamic: Vec<u32>,
    /// Number of dynamic peers created so far.
    dynamic_made: u32,
    /// Number of errors recorded so far.
    errors_noted: u64,
}

impl PeerTable {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&Peer> {
        self.peers.get(&number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Peer> {
        self.peers.get_mut(&number)
    }

    pub(crate) fn number(&self, id: PeerId) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Iterates over all peers in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// Returns all source numbers in no particular order.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.peers.keys().copied().collect()
    }

    /// Returns the source numbers in the order of peer ids.
    pub(crate) fn numbers_by_id(&self) -> Vec<u32> {
        self.ids.values().copied().collect()
    }

    /// Iterates over source numbers and peers in the order of peer ids.
    pub(crate) fn by_id(&self) -> impl Iterator<Item = (u32, &Peer)> {
        self.ids.values().filter_map(|number| Some((*number, self.peers.get(number)?)))
    }

    pub(crate) fn insert(&mut self, number: u32, peer: Peer) {
        self.ids.insert(peer.id, number);
        self.by_address.entry(ScopedAddr::of(peer.config.remote)).or_default().push(number);
        self.peers.insert(number, peer);
    }

    /// Removes a peer, from its range too.
    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let number = self.ids.remove(&id)?;
        let peer = self.peers.remove(&number)?;
        let address = ScopedAddr::of(peer.config.remote);
        self.forget_address(number, address);
        if let Some(range) = peer.range.and_then(|id| self.ranges.get_mut(id)) {
            range.peers.remove(&number);
            if peer.was_up || peer.had_session_before {
                let most = usize::try_from(range.config.max_peers).unwrap_or(usize::MAX);
                range.former_peers.note(address, most);
            }
        }
        Some(peer)
    }

    /// Moves a peer to another address.
    pub(crate) fn readdress(&mut self, number: u32, old: ScopedAddr, new: ScopedAddr) {
        self.forget_address(number, old);
        self.by_address.entry(new).or_default().push(number);
    }

    fn forget_address(&mut self, number: u32, address: ScopedAddr) {
        if let Some(list) = self.by_address.get_mut(&address) {
            list.retain(|n| *n != number);
            if list.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }

    /// Returns the peer that a connection from this address belongs to.
    pub(crate) fn at(&self, remote: SocketAddr) -> Option<u32> {
        let candidates = self.by_address.get(&ScopedAddr::of(remote))?;
        // Peers at one address differ only in the port, which an incoming connection does not show: the first
        // one without a session gets the connection.
        let free = |n: &&u32| self.peers.get(n).is_some_and(|p| p.session.is_none());
        candidates.iter().find(free).or_else(|| candidates.first()).copied()
    }

    /// Returns true if a connection from this address is accepted: see
    /// [`Speaker::admits`](crate::Speaker::admits).
    pub(crate) fn admits(&self, remote: SocketAddr, now: Instant) -> bool {
        match self.at(remote) {
            Some(number) => self.peers.get(&number).is_some_and(|p| !p.is_damped(now)),
            None => self.ranges.of(remote.ip().to_canonical()).is_some(),
        }
    }

    /// Records the last error of a peer.
    pub(crate) fn note_error(&mut self, number: u32, error: PeerError, now: Instant) {
        self.errors_noted += 1;
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.last_error = Some((error, now));
        }
    }

    /// Returns the number of errors recorded so far.
    pub(crate) fn errors_noted(&self) -> u64 {
        self.errors_noted
    }

    /// Attaches the message that caused the error recorded last.
    pub(crate) fn note_offending_message(&mut self, number: u32, octets: &[u8]) {
        if let Some((error, _)) = self.peers.get_mut(&number).and_then(|p| p.last_error.as_mut())
            && error.kind != LastErrorKind::Received
        {
            error.set_message(octets);
        }
    }

    /// Records the reason for the end of the last session or attempt, for the peer and its range.
    pub(crate) fn note_down(&mut self, number: u32, down: &Down, now: Instant) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.last_down = Some((down.clone(), now));
        let address = ScopedAddr::of(peer.config.remote);
        if let Some(range) = peer.range.and_then(|id| self.ranges.get_mut(id)) {
            range.last_down = Some((address, down.clone(), now));
        }
    }
}

/// Ranges and dynamic peers.
impl PeerTable {
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    pub(crate) fn ranges_mut(&mut self) -> &mut Ranges {
        &mut self.ranges
    }

    /// Decides on a connection from this address. `sources`: number of peers with paths in the tables,
    /// removed ones included.
    pub(crate) fn admit(&mut self, remote: SocketAddr, sources: usize) -> Admission {
        let Some(id) = self.ranges.of(remote.ip().to_canonical()) else { return Admission::NoRange };
        let Some(range) = self.ranges.get_mut(id) else { return Admission::NoRange };
        let unswept = sources.saturating_sub(self.peers.len());
        if range.peers.len() >= range.config.max_peers as usize || unswept >= UNSWEPT {
            range.refused += 1;
            return Admission::Refused(Notification::new(ErrorCode::CONNECTION_REJECTED));
        }
        if let Some(text) = &range.config.peer.shutdown {
            return Admission::Refused(Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text));
        }
        let config = peer_of(&range.config, remote);
        Admission::Peer(self.next_dynamic_id(), id, Box::new(config))
    }

    /// Adds a new dynamic peer to its range.
    pub(crate) fn join_range(&mut self, number: u32, id: RangeId) {
        if let Some(range) = self.ranges.get_mut(id) {
            range.peers.insert(number);
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.had_session_before = range.former_peers.has(ScopedAddr::of(peer.config.remote));
            }
        }
    }

    /// Returns an unused id for a dynamic peer.
    fn next_dynamic_id(&mut self) -> PeerId {
        loop {
            let id = PeerId(PeerId::DYNAMIC | self.dynamic_made);
            self.dynamic_made = (self.dynamic_made + 1) & (PeerId::DYNAMIC - 1);
            if !self.ids.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns the dynamic peers of a range.
    pub(crate) fn of_range(&self, id: RangeId) -> Vec<PeerId> {
        let numbers = self.ranges.get(id).into_iter().flat_map(|range| &range.peers);
        numbers.filter_map(|number| self.peers.get(number)).map(|peer| peer.id).collect()
    }

    /// Returns the dynamic peers whose address no longer belongs to their range.
    pub(crate) fn out_of_range(&self) -> Vec<PeerId> {
        let strays = |(id, range): (RangeId, &Range)| {
            let elsewhere = |peer: &&Peer| self.ranges.of(peer.config.remote.ip()) != Some(id);
            let peers = range.peers.iter().filter_map(|number| self.peers.get(number));
            peers.filter(elsewhere).map(|peer| peer.id).collect::<Vec<_>>()
        };
        self.ranges.iter().flat_map(strays).collect()
    }

    /// Returns the dynamic peers at this address.
    pub(crate) fn dynamic_at(&self, address: ScopedAddr) -> Vec<PeerId> {
        let here = self.by_address.get(&address).into_iter().flatten();
        let peers = here.filter_map(|number| self.peers.get(number));
        peers.filter(|peer| peer.range.is_some()).map(|peer| peer.id).collect()
    }

    /// Marks a peer for a check after one of its connections or timers ended. If it is dynamic and has
    /// nothing left, it is removed later, because the caller may still use it.
    pub(crate) fn note_idle(&mut self, number: u32) {
        if self.peers.get(&number).is_some_and(|p| p.range.is_some()) {
            self.idle_dynamic.push(number);
        }
    }

    pub(crate) fn has_idle_dynamic(&self) -> bool {
        !self.idle_dynamic.is_empty()
    }

    /// Takes the dynamic peers that are ready for removal.
    pub(crate) fn take_idle_dynamic(&mut self, now: Instant) -> Vec<PeerId> {
        let over = |p: &&Peer| {
            p.range.is_some()
                && p.conns().next().is_none()
                && !matches!(p.restart, Restart::Waiting(_) | Restart::LongLived)
                && p.idle_hold_until.is_none_or(|until| until <= now)
        };
        let idle = std::mem::take(&mut self.idle_dynamic);
        idle.iter().filter_map(|number| self.peers.get(number)).filter(over).map(|peer| peer.id).collect()
    }
}
