//! How many prefixes may come from a peer and go to it (RFC 4486 4).

use std::time::Duration;

use super::Speaker;
use super::deferral::groups;
use crate::api::{ConnId, Event, PrefixLimit};
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{ErrorCode, Notification};

/// How long a peer that was to be sent too much is left alone.
const PENALTY_OUT: Duration = Duration::from_secs(60);

impl Speaker {
    /// Ends the session when the peer has announced too much, and warns of it before; `false`: it ended.
    pub(super) fn keeps_limit(&mut self, id: ConnId, number: u32, family: Family) -> bool {
        let Some(peer) = self.peers.get_mut(&number) else { return false };
        let Some(limit) = peer.config.max_prefixes else { return true };
        let received = self.shared.sources.get(number).map_or(0, |s| s.family(family).of_session());
        if received > limit.max {
            self.refuse_flood(id, number, family, limit.max, limit.restart);
            return false;
        }
        let near = is_near(limit, received);
        if let Some(warned) = peer.warned.get_mut(family.index())
            && *warned != near
        {
            *warned = near;
            if near {
                let (peer, max) = (peer.id, limit.max);
                self.events.push_back(Event::PrefixWarning { peer, family, received, max });
            }
        }
        true
    }

    /// A limit was changed: sessions that are over it end.
    pub(super) fn check_limit(&mut self, number: u32) {
        let Some(id) = self.peers.get(&number).and_then(|p| p.session) else { return };
        for family in Family::ALL {
            if !self.keeps_limit(id, number, family) || !self.keeps_limit_out(id, number, family) {
                return;
            }
        }
    }

    /// Ends the session when more is announced to the peer than may be; `false`: it ended.
    pub(super) fn keeps_limit_out(&mut self, id: ConnId, number: u32, family: Family) -> bool {
        let Some(peer) = self.peers.get(&number) else { return false };
        let Some(max) = peer.config.max_prefixes_out else { return true };
        let groups = groups(peer, family).iter().filter_map(|g| self.group(family, *g));
        // What came from the peer itself is not sent to it, but is only counted where it matters.
        let most: u32 = groups.clone().map(|g| g.advertised_count(number, 0)).sum();
        let over = most > max
            && groups.map(|g| g.advertised_count(number, g.attr_sets.of_source(number))).sum::<u32>() > max;
        if over {
            self.refuse_flood(id, number, family, max, PENALTY_OUT);
        }
        !over
    }

    fn refuse_flood(&mut self, id: ConnId, number: u32, family: Family, max: u32, restart: Duration) {
        let until = self.now + restart;
        if let Some(peer) = self.peers.get_mut(&number) {
            // Before the session ends, because its end plans the next attempt.
            peer.penalty_until = Some(until);
            if peer.range.is_some() {
                // Forgotten earlier, it could come again at once.
                self.timers.set(Timer::Restart(number), until);
            }
        }
        self.refuse(id, too_many(family, max));
    }
}

fn is_near(limit: PrefixLimit, received: u32) -> bool {
    limit.warn.is_some_and(|warn| u64::from(received) * 100 >= u64::from(limit.max) * u64::from(warn))
}

/// Cease 1 with family and limit (RFC 4486 4).
fn too_many(family: Family, max: u32) -> Notification {
    let mut data = family.afi().to_be_bytes().to_vec();
    data.push(family.safi());
    data.extend_from_slice(&max.to_be_bytes());
    Notification::with_data(ErrorCode::MAX_PREFIXES, &data)
}
