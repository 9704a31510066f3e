//! Peers that nobody configured: how they come from a range of addresses, and when they are forgotten.
//!
//! A peer of a range is there from the accepted connection on. It is forgotten when it has no connection, none of its routes
//! is kept for its restart (RFC 4724 4.2, RFC 9494), and it need not be kept out for a flood of prefixes. What is left of
//! it then is its place among the sources of paths, until the walk has passed all its paths.

use std::net::{IpAddr, SocketAddr};

use tortie_net::link_local::address_of;

use super::Speaker;
use crate::api::{ConnId, Event, PeerId, RangeConfig, RangeId};
use crate::session::range::{Range, peer_of};
use crate::session::{Peer, Restart, open};
use crate::wire::{ErrorCode, Notification};

/// Forgotten peers whose paths the walk has not passed yet. Each further one would begin it anew: beyond these, ranges take
/// nobody until it came round.
const UNSWEPT: usize = 1024;

impl Speaker {
    /// The peer that a connection from an address without one makes; `None`: no range takes it, and it is closed.
    pub(super) fn came_from_range(&mut self, conn: ConnId, remote: SocketAddr) -> Option<u32> {
        let of = self.ranges.of(remote.ip().to_canonical()).filter(|_| !self.stopping);
        let unswept = self.shared.sources.len().saturating_sub(self.peers.len());
        let Some((id, range)) = of.and_then(|id| Some((id, self.ranges.get_mut(id)?))) else {
            self.events.push_back(Event::Close(conn));
            return None;
        };
        if range.peers.len() >= range.config.max_peers as usize || unswept >= UNSWEPT {
            range.refused += 1;
            self.turn_away(conn, &Notification::new(ErrorCode::CONNECTION_REJECTED));
            return None;
        }
        if let Some(text) = &range.config.peer.shutdown {
            let cease = Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text);
            self.turn_away(conn, &cease);
            return None;
        }
        let config = peer_of(&range.config, remote);
        let peer = self.next_dynamic();
        let (name, remote) = (config.name.clone(), config.remote);
        self.events.push_back(Event::DynamicPeer { peer, range: id, name, remote });
        let number = self.insert_peer(peer, config, Some(id));
        if let Some(range) = self.ranges.get_mut(id) {
            range.peers.insert(number);
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.was_served = range.served.has(address_of(remote));
            }
        }
        Some(number)
    }

    /// An id that no peer has.
    fn next_dynamic(&mut self) -> PeerId {
        loop {
            let id = PeerId(PeerId::DYNAMIC | self.dynamic_made);
            self.dynamic_made = (self.dynamic_made + 1) & (PeerId::DYNAMIC - 1);
            if !self.ids.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn set_range(&mut self, id: RangeId, config: RangeConfig) {
        let new = config.clone();
        let old = self.ranges.set(id, config);
        if old.as_ref() == Some(&new) {
            return;
        }
        if let Some(old) = &old {
            self.count_transit_of(&old.peer, false);
        }
        self.count_transit_of(&new.peer, true);
        // Its cluster is ours whoever is there: what each peer that comes or goes would have reimported stays as it is.
        self.change_cluster(old.and_then(|o| o.peer.reflector_client), new.peer.reflector_client);
        for number in self.ranges.get(id).map(|r| r.peers.clone()).unwrap_or_default() {
            let Some(peer) = self.peers.get(&number) else { continue };
            let config = peer_of(&new, peer.config.remote);
            if open::needs_reset(&peer.config, &config) {
                self.remove_number(number);
            } else {
                self.change_peer(number, config);
            }
        }
        self.match_again();
        let most = usize::try_from(new.max_peers).unwrap_or(usize::MAX);
        let mut left: Vec<PeerId> = self.ranges.get(id).map(|r| self.ids_of(r)).unwrap_or_default();
        left.sort_unstable();
        // Those that came last go first.
        for id in left.split_off(left.len().min(most)) {
            self.remove_peer(id);
        }
    }

    pub(super) fn remove_range(&mut self, id: RangeId) {
        let Some(range) = self.ranges.get(id) else { return };
        for peer in self.ids_of(range) {
            self.remove_peer(peer);
        }
        if let Some(range) = self.ranges.remove(id) {
            self.count_transit_of(&range.config.peer, false);
            self.change_cluster(range.config.peer.reflector_client, None);
        }
        self.schedule_check();
    }

    fn ids_of(&self, range: &Range) -> Vec<PeerId> {
        range.peers.iter().filter_map(|number| self.peers.get(number)).map(|peer| peer.id).collect()
    }

    /// Removes the peers that belong to another range now.
    fn match_again(&mut self) {
        let strays = |(id, range): (RangeId, &Range)| {
            let elsewhere = |peer: &&Peer| self.ranges.of(peer.config.remote.ip()) != Some(id);
            let peers = range.peers.iter().filter_map(|number| self.peers.get(number));
            peers.filter(elsewhere).map(|peer| peer.id).collect::<Vec<_>>()
        };
        let strays: Vec<PeerId> = self.ranges.iter().flat_map(strays).collect();
        for id in strays {
            self.remove_peer(id);
        }
    }

    /// A peer is configured at this address: it counts before a range.
    pub(super) fn remove_dynamic_at(&mut self, address: IpAddr) {
        let here = self.by_address.get(&address).cloned().unwrap_or_default();
        for number in here {
            if self.peers.get(&number).is_some_and(|p| p.range.is_some()) {
                self.remove_number(number);
            }
        }
    }

    fn remove_number(&mut self, number: u32) {
        if let Some(id) = self.peers.get(&number).map(|p| p.id) {
            self.remove_peer(id);
        }
    }

    /// A peer was removed.
    pub(super) fn left_range(&mut self, number: u32, peer: &Peer) {
        let Some(id) = peer.range else { return };
        if let Some(range) = self.ranges.get_mut(id) {
            range.peers.remove(&number);
            if peer.was_up || peer.was_served {
                let most = usize::try_from(range.config.max_peers).unwrap_or(usize::MAX);
                range.served.note(address_of(peer.config.remote), most);
            }
        }
        debug_assert!(peer.conns().next().is_none());
        self.events.push_back(Event::DynamicPeerGone(peer.id));
    }

    /// Ranges count as peers that may be sent learned routes: who comes from them may be.
    pub(super) fn count_ranges(&mut self) {
        let configs: Vec<_> = self.ranges.iter().map(|(_, range)| range.config.peer.clone()).collect();
        for config in configs {
            self.count_transit_of(&config, true);
        }
    }

    /// Looks later whether anything is left of this peer: who is at work with it may not be done.
    pub(super) fn may_fade(&mut self, number: u32) {
        if self.peers.get(&number).is_some_and(|p| p.range.is_some()) {
            self.fading.push(number);
        }
    }

    /// Forgets peers of ranges of which nothing is left.
    pub(super) fn fade(&mut self) {
        for number in std::mem::take(&mut self.fading) {
            let now = self.now;
            let over = |p: &Peer| {
                p.range.is_some()
                    && p.conns().next().is_none()
                    && !matches!(p.restart, Restart::Waiting(_) | Restart::LongLived)
                    && p.penalty_until.is_none_or(|until| until <= now)
            };
            if self.peers.get(&number).is_some_and(over) {
                self.remove_number(number);
            }
        }
    }
}
