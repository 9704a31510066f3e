//! Routes that are sent again (RFC 2918), with beginning and end where both ends can (RFC 7313).

use std::time::Duration;

use super::Speaker;
use super::deferral::groups;
use crate::adj_rib_out::member::EndOfRib;
use crate::api::ConnId;
use crate::session::connection::RefreshOut;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{RefreshKind, RouteRefresh};

/// Longest time for which stale routes wait for the end of a refresh (RFC 7313 4 asks for a bound and names none).
const STALE: Duration = Duration::from_secs(360);

impl Speaker {
    /// A ROUTE-REFRESH came.
    pub(super) fn refresh_message(&mut self, id: ConnId, body: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (number, enhanced) = (conn.peer, conn.has_enhanced_refresh());
        let RouteRefresh { family, kind } = match RouteRefresh::decode(body, enhanced) {
            Ok(Some(refresh)) => refresh,
            Ok(None) => return,
            Err(notification) => {
                self.refuse(id, notification);
                return;
            }
        };
        if !self.carries(number, family) {
            return;
        }
        match kind {
            RefreshKind::Request => self.refresh_out(number, family),
            RefreshKind::Begin => self.refresh_begins(number, family),
            RefreshKind::End => self.refresh_ends(number, family),
        }
    }

    /// The peer's refresh begins.
    fn refresh_begins(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let [v4, v6] = peer.end_of_rib_received;
        let first = !(if family == Family::Ipv4Unicast { v4 } else { v6 });
        // RFC 7313 4: ignored before the End-of-RIB of a peer that sends one.
        if peer.graceful.is_some() && first {
            return;
        }
        let until = self.now + STALE;
        if let Some(place) = peer.refresh_until.get_mut(family.index()) {
            *place = Some(until);
        }
        // Whoever begins again and again has one deadline all the same.
        if !std::mem::replace(&mut peer.refresh_armed, true) {
            self.timers.set(Timer::Refresh(number), until);
        }
        if let Some(source) = self.shared.sources.get_mut(number) {
            source.family_mut(family).begin_refresh();
        }
    }

    /// The peer's refresh is over: what did not come again is gone.
    fn refresh_ends(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if let Some(place) = peer.refresh_until.get_mut(family.index()) {
            *place = None;
        }
        // An end without a beginning says nothing.
        if self.is_refreshing(number, family) {
            self.drop_stale(number, family);
        }
    }

    /// Ends refreshes whose end did not come in time.
    pub(super) fn refresh_timer(&mut self, number: u32) {
        for family in Family::ALL {
            let until = self.peers.get(&number).and_then(|p| *p.refresh_until.get(family.index())?);
            if until.is_some_and(|until| until <= self.now) {
                self.refresh_ends(number, family);
            }
        }
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let next = peer.refresh_until.into_iter().flatten().min();
        peer.refresh_armed = next.is_some();
        if let Some(next) = next {
            self.timers.set(Timer::Refresh(number), next);
        }
    }

    /// Routes of this family are stale because of a refresh, not of a restart.
    pub(super) fn is_refreshing(&self, number: u32, family: Family) -> bool {
        self.shared.sources.get(number).is_some_and(|s| s.family(family).refreshing)
    }

    /// Sends all routes of a family again. Whoever asks again before the answer began asks the same.
    pub(super) fn refresh_out(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get(&number) else { return };
        let (Some(last), Some(id)) = (groups(peer, family).last(), peer.session) else { return };
        let member = self.group(family, *last).and_then(|g| g.member(number));
        let first_sent = member.is_some_and(|m| m.end_of_rib == EndOfRib::Sent);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.has_enhanced_refresh() {
            self.resend(number, family);
            return;
        }
        if let Some(place) = conn.refreshes.get_mut(family.index()) {
            *place = if first_sent { RefreshOut::Asked } else { RefreshOut::Due };
        }
        self.want_write(id);
    }

    /// Begins refreshes that were asked for. A beginning may overtake UPDATEs that are under way, never the other way round:
    /// the peer would sweep their routes.
    pub(super) fn begin_refreshes(&mut self, id: ConnId, buf: &mut Vec<u8>) {
        for family in Family::ALL {
            let Some(conn) = self.conns.get_mut(&id) else { return };
            let number = conn.peer;
            let place = conn.refreshes.get_mut(family.index());
            let Some(place) = place.filter(|p| **p == RefreshOut::Asked) else { continue };
            *place = RefreshOut::Begun;
            RouteRefresh { family, kind: RefreshKind::Begin }.write(buf);
            self.count_refresh(number);
            self.resend(number, family);
        }
    }

    /// End-of-RIB was sent: a refresh that waited for it begins.
    pub(super) fn end_of_rib_sent(&mut self, id: ConnId, family: Family, buf: &mut Vec<u8>) {
        let place = self.conns.get_mut(&id).and_then(|c| c.refreshes.get_mut(family.index()));
        if let Some(place) = place.filter(|p| **p == RefreshOut::Due) {
            *place = RefreshOut::Asked;
            self.begin_refreshes(id, buf);
        }
    }

    /// All that is announced was told; it ends the refresh that has begun, if one has.
    pub(super) fn refresh_sent(&mut self, id: ConnId, number: u32, family: Family, buf: &mut Vec<u8>) {
        let place = self.conns.get_mut(&id).and_then(|c| c.refreshes.get_mut(family.index()));
        let Some(place) = place.filter(|p| **p == RefreshOut::Begun) else { return };
        *place = RefreshOut::No;
        RouteRefresh { family, kind: RefreshKind::End }.write(buf);
        self.count_refresh(number);
    }

    fn count_refresh(&mut self, number: u32) {
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.sent.route_refresh += 1;
        }
    }

    /// Asks for all routes again; a peer that does not take the question has its stored routes evaluated again.
    pub(super) fn refresh_in(&mut self, number: u32) {
        let Some(id) = self.peers.get(&number).and_then(|p| p.session) else { return };
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (Some(theirs), Some(session)) = (&conn.theirs, conn.negotiated) else { return };
        if !theirs.capabilities.route_refresh {
            self.reimport(number);
            return;
        }
        for family in session.families.iter() {
            RouteRefresh { family, kind: RefreshKind::Request }.write(&mut conn.control);
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.sent.route_refresh += 1;
            }
        }
        self.want_write(id);
    }
}
