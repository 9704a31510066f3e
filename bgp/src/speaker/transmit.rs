//! What goes out, and which update groups it comes from.

use std::time::{Duration, Instant};

use super::Speaker;
use super::deferral::groups;
use crate::adj_rib_out::advertised::Advertised;
use crate::adj_rib_out::export::{GroupKey, Representative};
use crate::adj_rib_out::member::Produced;
use crate::adj_rib_out::segment::Cursor;
use crate::api::{ADD_PATH_MAX, ConnId, Drain, Event, PeerId, Transmit};
use crate::ribs::family::Previous;
use crate::session::Peer;
use crate::session::open;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::write_end_of_rib;

/// Steps without output that one call of [`Speaker::poll_transmit`] takes.
const STEPS: usize = 32;
/// Least send hold time (RFC 9687 4.4).
const SEND_HOLD: Duration = Duration::from_secs(480);
/// How long last messages wait to be fetched.
const CLOSING: Duration = Duration::from_secs(10);

impl Speaker {
    /// Appends whole messages for this connection to `buf`, at most about `room` octets: one message is never cut, so
    /// a little room suffices for some progress. After [`Event::Close`] it still gives the last messages.
    pub fn poll_transmit(&mut self, conn: ConnId, buf: &mut Vec<u8>, room: usize, now: Instant) -> Transmit {
        self.now = self.now.max(now);
        if let Some(last) = self.closing.remove(&conn) {
            buf.extend_from_slice(&last);
            return Transmit::Done;
        }
        let start = buf.len();
        let answer = self.transmit(conn, buf, room);
        self.tap_sent(conn, buf.get(start..).unwrap_or_default());
        if let Some(c) = self.conns.get_mut(&conn) {
            c.wants = (answer == Transmit::More).then_some(self.now);
        }
        self.wake_members();
        answer
    }

    fn transmit(&mut self, id: ConnId, buf: &mut Vec<u8>, room: usize) -> Transmit {
        let Some(conn) = self.conns.get_mut(&id) else { return Transmit::Done };
        let start = buf.len();
        buf.append(&mut conn.control);
        conn.control = Vec::new();
        self.begin_refreshes(id, buf);
        let mut steps = STEPS;
        loop {
            let Some(conn) = self.conns.get_mut(&id) else { return Transmit::Done };
            let left = room.saturating_sub(buf.len() - start);
            if left == 0 {
                return Transmit::More;
            }
            let number = conn.peer;
            if let Some(cursor) = conn.cursors.front_mut() {
                let (messages, done) = cursor.copy(buf, left);
                if done {
                    conn.cursors.pop_front();
                }
                if let Some(peer) = self.peers.get_mut(&number) {
                    peer.sent.update += messages;
                }
                if !done {
                    return Transmit::More;
                }
                continue;
            }
            if steps == 0 {
                return Transmit::More;
            }
            steps -= 1;
            if !self.produce(id, number, buf) {
                return Transmit::Done;
            }
        }
    }

    /// Fetches the next thing from the peer's update groups, family by family in turn; `false`: there is nothing.
    fn produce(&mut self, id: ConnId, number: u32, buf: &mut Vec<u8>) -> bool {
        let Some(turn) = self.conns.get(&id).map(|c| c.turn) else { return false };
        let [first, second] = Family::ALL;
        let order = if turn == 0 { [first, second] } else { [second, first] };
        for family in order {
            // A second connection of the peer, which may become its session or never will, takes nothing from it.
            let session = self.peers.get(&number).filter(|p| p.session == Some(id));
            let Some(groups) = session.map(|p| groups(p, family)) else { return false };
            let (shared, wake) = (&mut self.shared, &mut self.wake);
            let produced = match family {
                Family::Ipv4Unicast => self.v4.produce(shared, groups, number, wake),
                Family::Ipv6Unicast => self.v6.produce(shared, groups, number, wake),
            };
            if matches!(produced, Produced::Segment(_)) && !self.keeps_limit_out(id, number, family) {
                return false;
            }
            let Some(conn) = self.conns.get_mut(&id) else { return false };
            match produced {
                Produced::Idle => continue,
                Produced::Working => {}
                Produced::Segment(segment) => {
                    // What has become its own is withdrawn before anything is announced.
                    if let Some(private) = segment.private(number) {
                        conn.cursors.push_back(Cursor::new(private.clone(), number));
                    }
                    if segment.concerns(number) {
                        conn.cursors.push_back(Cursor::new(segment, number));
                    }
                }
                Produced::EndOfRib => {
                    write_end_of_rib(family, buf);
                    if let Some(peer) = self.peers.get_mut(&number) {
                        peer.sent.update += 1;
                    }
                    self.end_of_rib_sent(id, family, buf);
                }
                Produced::PassComplete => self.refresh_sent(id, number, family, buf),
            }
            let Some(conn) = self.conns.get_mut(&id) else { return false };
            conn.turn = 1 - family.index();
            return true;
        }
        false
    }

    /// How many octets this connection takes now; 0: read nothing until later.
    #[must_use]
    pub fn read_room(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |c| if c.queued { 0 } else { c.input.room() })
    }

    /// Something waits for this connection.
    pub(super) fn want_write(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.wants.is_some() {
            return;
        }
        conn.wants = Some(self.now);
        self.events.push_back(Event::WantWrite(id));
        if !conn.send_hold_armed {
            conn.send_hold_armed = true;
            let at = self.now + send_hold(self.peers.get(&conn.peer), conn.hold);
            self.timers.set(Timer::SendHold(id), at);
        }
    }

    /// Tells those for whom update groups have made something.
    pub(super) fn wake_members(&mut self) {
        for number in std::mem::take(&mut self.wake) {
            if let Some(conn) = self.peers.get(&number).and_then(|p| p.session) {
                self.want_write(conn);
            }
        }
    }

    /// RFC 9687: the peer takes nothing any more.
    pub(super) fn send_hold_timer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.send_hold_armed = false;
        let Some(since) = conn.wants else { return };
        let at = since + send_hold(self.peers.get(&conn.peer), conn.hold);
        if at > self.now {
            conn.send_hold_armed = true;
            self.timers.set(Timer::SendHold(id), at);
            return;
        }
        self.refuse(id, crate::wire::Notification::new(crate::wire::ErrorCode::SEND_HOLD_TIMER_EXPIRED));
    }

    /// Forgets last messages that nobody fetches.
    pub(super) fn forget_closing(&mut self) {
        while let Some((at, id)) = self.closing_order.front().copied() {
            if self.closing.contains_key(&id) && self.now.duration_since(at) < CLOSING {
                return;
            }
            self.closing.remove(&id);
            self.closing_order.pop_front();
        }
    }

    fn group_key(&self, number: u32, family: Family) -> Option<(GroupKey, Representative)> {
        let peer = self.peers.get(&number)?;
        let conn = self.conns.get(&peer.session?)?;
        let session = conn.negotiated?;
        let key = GroupKey {
            family,
            session: GroupKey::normalise(&session, family),
            asn: conn.theirs.as_ref().map_or(peer.config.asn, |theirs| theirs.asn),
            local_asn: conn.ours.asn,
            client: peer.config.reflector_client.filter(|_| !session.ebgp),
            drain: peer.drain,
            long_lived: conn.theirs.as_ref().is_some_and(|t| {
                t.capabilities.graceful_restart.is_some() && t.capabilities.long_lived.is_some()
            }),
            next_hop: peer.config.next_hop,
            own: open::own_next_hop(&peer.config, conn.local.ip(), family, session.ext_nexthop),
            class: peer.config.policy_class,
            role: peer.config.role.filter(|_| session.ebgp),
            closed: session.ebgp && !peer.config.ebgp_policy,
            plane: 0,
        };
        Some((key, Representative { id: peer.id, name: peer.config.name.clone() }))
    }

    /// The update groups that fit an established peer, one for each path of a prefix that it is sent, and at least so many:
    /// the others withdraw what it was told before its configuration named fewer.
    fn group_keys(
        &self,
        number: u32,
        family: Family,
        at_least: usize,
    ) -> Option<(Vec<GroupKey>, Representative)> {
        let (key, representative) = self.group_key(number, family)?;
        let offered = self.peers.get(&number).map_or(0, |p| p.config.add_path_send);
        let planes = if key.path_id().is_some() { offered.clamp(1, ADD_PATH_MAX) } else { 1 };
        let keys = (0..ADD_PATH_MAX).take(at_least.max(planes.into())).map(|plane| {
            let drain = if plane < planes { key.drain } else { Drain::Withdraw };
            GroupKey { plane, drain, ..key.clone() }
        });
        Some((keys.collect(), representative))
    }

    /// Puts an established peer into the update groups that fit it. `known`: what it was told in those that it left.
    pub(super) fn join_groups(&mut self, number: u32, family: Family, known: Vec<Option<Previous>>) {
        let Some((keys, representative)) = self.group_keys(number, family, known.len()) else { return };
        // What is told beside it belongs to the session as it is, whose End-of-RIB comes once.
        let beside = known.last().and_then(Option::as_ref).map(|(.., end_of_rib)| *end_of_rib);
        let beside = beside.map(|end_of_rib| (Advertised::default(), u64::MAX, end_of_rib));
        let mut known = known.into_iter();
        for key in keys {
            let known = known.next().unwrap_or_else(|| beside.clone());
            let group = match family {
                Family::Ipv4Unicast => self.v4.join(key, representative.clone(), number, known),
                Family::Ipv6Unicast => self.v6.join(key, representative.clone(), number, known),
            };
            if let Some(place) = self.peers.get_mut(&number).and_then(|p| p.groups.get_mut(family.index())) {
                place.push(group);
            }
        }
    }

    /// Takes a peer out of its update groups; returns what it was told in each.
    pub(super) fn leave_groups(&mut self, number: u32, family: Family) -> Vec<Option<Previous>> {
        let groups = self.peers.get_mut(&number).and_then(|p| p.groups.get_mut(family.index()));
        let groups = groups.map(std::mem::take).unwrap_or_default();
        let leave = |group| match family {
            Family::Ipv4Unicast => self.v4.leave(&mut self.shared, group, number),
            Family::Ipv6Unicast => self.v6.leave(&mut self.shared, group, number),
        };
        let known = groups.into_iter().map(leave).collect();
        self.v4.retry_sweep();
        self.v6.retry_sweep();
        known
    }

    /// The configuration changed: the peer moves where its group no longer fits.
    pub(super) fn regroup(&mut self, number: u32) {
        for family in Family::ALL {
            let old: Vec<u32> = self.peers.get(&number).map_or_else(Vec::new, |p| groups(p, family).to_vec());
            if old.is_empty() {
                continue;
            }
            let Some((keys, _)) = self.group_keys(number, family, old.len()) else { continue };
            let fits = |(id, key): (&u32, &GroupKey)| match family {
                Family::Ipv4Unicast => self.v4.group(*id).is_some_and(|g| g.key == *key),
                Family::Ipv6Unicast => self.v6.group(*id).is_some_and(|g| g.key == *key),
            };
            let same = old.len() == keys.len() && old.iter().zip(&keys).all(fits);
            if !same {
                let known = self.leave_groups(number, family);
                self.join_groups(number, family, known);
                if let Some(conn) = self.peers.get(&number).and_then(|p| p.session) {
                    self.want_write(conn);
                }
            }
        }
    }

    /// Maintenance begins or ends.
    pub(super) fn set_drain(&mut self, id: Option<PeerId>, drain: Drain) {
        if id.is_none() {
            self.drain = drain;
        }
        let numbers: Vec<u32> = match id {
            Some(id) => self.ids.get(&id).copied().into_iter().collect(),
            None => self.ids.values().copied().collect(),
        };
        for number in numbers {
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.drain = drain;
            }
            self.regroup(number);
            // What we tell moves the traffic that comes in, this the traffic that goes out (RFC 8326 4.2).
            let drained = drain != Drain::Off;
            if let Some(source) = self.shared.sources.get_mut(number)
                && std::mem::replace(&mut source.drained, drained) != drained
                && source.ebgp()
            {
                self.reimport(number);
            }
        }
    }

    /// Nothing waits for this connection: its groups have told it all.
    pub(super) fn is_up_to_date(&self, peer: &Peer) -> bool {
        let Some(conn) = peer.session.and_then(|id| self.conns.get(&id)) else { return false };
        let Some(number) = self.ids.get(&peer.id).copied() else { return false };
        let idle = |family: Family| {
            let member = |id: &u32| self.group(family, *id).and_then(|g| g.member(number));
            groups(peer, family).iter().all(|id| member(id).is_some_and(|m| m.idle))
        };
        conn.wants.is_none() && conn.cursors.is_empty() && Family::ALL.into_iter().all(idle)
    }

    /// Sends all routes of a family again.
    pub(super) fn resend(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get(&number) else { return };
        let Some(conn) = peer.session else { return };
        for group in groups(peer, family) {
            match family {
                Family::Ipv4Unicast => self.v4.resend(*group, number),
                Family::Ipv6Unicast => self.v6.resend(*group, number),
            }
        }
        self.want_write(conn);
    }
}

/// RFC 9687: what is configured but no less than the hold time, else the greater of eight minutes and twice the hold time.
fn send_hold(peer: Option<&Peer>, hold: Duration) -> Duration {
    peer.and_then(|p| p.config.send_hold_time).map_or(SEND_HOLD.max(hold * 2), |time| time.max(hold))
}
