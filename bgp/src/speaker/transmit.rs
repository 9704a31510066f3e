//! Transmit path: control messages of a session, then UPDATEs of its update groups.

use std::time::{Duration, Instant};

use super::Speaker;
use super::route_refresh;
use crate::adj_rib_out::member::{EndOfRib, Produced};
use crate::adj_rib_out::segment::Cursor;
use crate::api::{ConnId, Event, Transmit};
use crate::session::damping::RefreshTime;
use crate::session::fsm::{self, Action};
use crate::session::peer::Peer;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{write_end_of_rib, write_keepalive};

/// Maximum number of steps without output per call of [`Speaker::poll_transmit`].
const STEPS: usize = 32;
/// Minimum of the default send hold time (RFC 9687 4.4).
const SEND_HOLD: Duration = Duration::from_secs(480);

impl Speaker {
    /// Appends whole messages for this connection to `buf`, about `room` octets. Messages are never split, so
    /// `room` may be exceeded, and any `room` above 0 makes progress. After [`Event::Close`] it still returns
    /// the final message.
    pub fn poll_transmit(&mut self, conn: ConnId, buf: &mut Vec<u8>, room: usize, now: Instant) -> Transmit {
        self.scheduler.advance(now);
        if let Some(last) = self.connections.take_last_message(conn) {
            buf.extend_from_slice(&last);
            return Transmit::Done;
        }
        let start = buf.len();
        let answer = self.transmit(conn, buf, room);
        let now = self.scheduler.now();
        if let Some(c) = self.connections.get_mut(conn) {
            c.write_pending_since = (answer == Transmit::More).then_some(now);
            if self.tap.is_on()
                && let Some(peer) = self.peers.get(c.peer)
            {
                self.tap.messages(peer.id, buf.get(start..).unwrap_or_default(), true, now);
            }
        }
        self.wake_members();
        answer
    }

    fn transmit(&mut self, id: ConnId, buf: &mut Vec<u8>, room: usize) -> Transmit {
        let Some(conn) = self.connections.get_mut(id) else { return Transmit::Done };
        let start = buf.len();
        buf.append(&mut conn.control);
        conn.control = Vec::new();
        self.begin_refreshes(id, buf);
        let mut steps = STEPS;
        loop {
            let Some(conn) = self.connections.get_mut(id) else { return Transmit::Done };
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
                if let Some(peer) = self.peers.get_mut(number) {
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

    /// Takes the next output of the peer's update groups, alternating between families. Returns false if
    /// there is none.
    fn produce(&mut self, id: ConnId, number: u32, buf: &mut Vec<u8>) -> bool {
        let Some(next) = self.connections.get(id).map(|c| c.next_family) else { return false };
        let [first, second] = Family::ALL;
        let order = if next == 0 { [first, second] } else { [second, first] };
        for family in order {
            // A second connection of the peer, not in Established, receives none of this output.
            let session = self.peers.get(number).filter(|p| p.session == Some(id));
            let Some(groups) = session.map(|p| p.groups(family)) else { return false };
            let produced = self.ribs.produce(family, groups, number);
            if matches!(produced, Produced::Segment(_)) && !self.check_sent(id, number, family) {
                return false;
            }
            let Some(conn) = self.connections.get_mut(id) else { return false };
            match produced {
                Produced::Idle => continue,
                Produced::Working => {}
                Produced::Segment(segment) => {
                    // Withdrawals specific to this peer precede the announcements.
                    if let Some(private) = segment.private(number) {
                        conn.cursors.push_back(Cursor::new(private.clone(), number));
                    }
                    if segment.concerns(number) {
                        conn.cursors.push_back(Cursor::new(segment, number));
                    }
                }
                Produced::EndOfRib => {
                    write_end_of_rib(family, buf);
                    let begins = route_refresh::end_of_rib_sent(conn, family);
                    if let Some(peer) = self.peers.get_mut(number) {
                        peer.sent.update += 1;
                    }
                    if begins {
                        self.begin_refreshes(id, buf);
                    }
                }
                Produced::PassComplete => {
                    if route_refresh::end_out(conn, family, buf) {
                        self.count_refreshes(number, 1);
                    }
                }
            }
            let Some(conn) = self.connections.get_mut(id) else { return false };
            conn.next_family = 1 - family.index();
            return true;
        }
        false
    }

    /// Reports that output is ready for this connection, and starts the send hold timer.
    pub(super) fn want_write(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        if conn.write_pending_since.is_some() {
            return;
        }
        conn.write_pending_since = Some(self.scheduler.now());
        self.events.push_back(Event::WantWrite(id));
        if !conn.send_hold_armed {
            conn.send_hold_armed = true;
            self.scheduler.set_after(Timer::SendHold(id), send_hold(self.peers.get(conn.peer), conn.hold));
        }
    }

    /// Reports output of update groups to members that had none.
    pub(super) fn wake_members(&mut self) {
        for number in self.ribs.take_woken() {
            if let Some(conn) = self.peers.get(number).and_then(|p| p.session) {
                self.want_write(conn);
            }
        }
    }

    pub(super) fn keepalive_timer(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        if conn.keepalive_at.is_none_or(|at| at > self.scheduler.now()) {
            return;
        }
        if conn.fsm.handle(fsm::Event::KeepaliveTimerExpires) != Action::SendKeepalive {
            return;
        }
        let interval = self.scheduler.jittered(conn.keepalive);
        conn.keepalive_at = Some(self.scheduler.set_after(Timer::Keepalive(id), interval));
        // A KEEPALIVE that is still queued suffices.
        if conn.control.is_empty() {
            write_keepalive(&mut conn.control);
            if let Some(peer) = self.peers.get_mut(conn.peer) {
                peer.sent.keepalive += 1;
            }
            self.want_write(id);
        }
    }
    /// Handles the send hold timer (event 29, RFC 9687): the peer does not read.
    pub(super) fn send_hold_timer(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        conn.send_hold_armed = false;
        let Some(since) = conn.write_pending_since else { return };
        let at = since + send_hold(self.peers.get(conn.peer), conn.hold);
        if at > self.scheduler.served() {
            conn.send_hold_armed = true;
            self.scheduler.set(Timer::SendHold(id), at);
            return;
        }
        self.fail(id, fsm::Event::SendHoldTimerExpires, None);
    }
}

/// Route refresh.
impl Speaker {
    /// Sends all routes of a family again (RFC 2918).
    pub(super) fn refresh_out(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get(number) else { return };
        let (Some(last), Some(id)) = (peer.groups(family).last(), peer.session) else { return };
        let member = self.ribs.group(family, *last).and_then(|g| g.member(number));
        let first_sent = member.is_some_and(|m| m.end_of_rib == EndOfRib::Sent);
        let Some(conn) = self.connections.get_mut(id) else { return };
        if route_refresh::request_out(conn, family, first_sent) {
            self.resend(number, family);
        }
        self.want_write(id);
    }

    /// Handles a peer's request for all routes of a family.
    pub(super) fn refresh_requested(&mut self, id: ConnId, number: u32, family: Family) {
        let now = self.scheduler.now();
        let Some(conn) = self.connections.get_mut(id) else { return };
        match conn.refresh_pace.request(family.index(), now) {
            RefreshTime::Now => self.refresh_out(number, family),
            RefreshTime::At(at) => self.scheduler.set(Timer::RefreshOut(id), at),
            RefreshTime::WithAnother => {}
        }
    }

    /// Answers the requests that were delayed by the rate limit.
    pub(super) fn refresh_out_timer(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        let (number, waiting) = (conn.peer, conn.refresh_pace.take_waiting());
        for (family, _) in Family::ALL.into_iter().zip(waiting).filter(|(_, waits)| *waits) {
            self.refresh_requested(id, number, family);
        }
    }

    /// Sends BoRR and all routes for requested refreshes.
    fn begin_refreshes(&mut self, id: ConnId, buf: &mut Vec<u8>) {
        for family in Family::ALL {
            let Some(conn) = self.connections.get_mut(id) else { return };
            let number = conn.peer;
            if route_refresh::begin_out(conn, family, buf) {
                self.count_refreshes(number, 1);
                self.resend(number, family);
                if let Some(session) = self.peers.get(number).and_then(|p| p.session) {
                    self.want_write(session);
                }
            }
        }
    }

    fn count_refreshes(&mut self, number: u32, count: u64) {
        if let Some(peer) = self.peers.get_mut(number) {
            peer.sent.route_refresh += count;
        }
    }

    /// Requests all routes of a peer. Without route refresh, its stored routes are imported again.
    pub(super) fn request_refresh(&mut self, number: u32) {
        let Some(id) = self.peers.get(number).and_then(|p| p.session) else { return };
        let Some(conn) = self.connections.get_mut(id) else { return };
        match route_refresh::request_in(conn) {
            None => self.ribs.reimport(number),
            Some(0) => {}
            Some(count) => {
                self.count_refreshes(number, count);
                self.want_write(id);
            }
        }
    }

    /// Schedules all routes of a family again in the update groups.
    fn resend(&mut self, number: u32, family: Family) {
        let Some(peer) = self.peers.get(number) else { return };
        for group in peer.groups(family) {
            self.ribs.resend(family, *group, number);
        }
    }
}

/// Returns the send hold time (RFC 9687): the configured one, at least the hold time; by default the greater
/// of 8 minutes and twice the hold time.
fn send_hold(peer: Option<&Peer>, hold: Duration) -> Duration {
    peer.and_then(|p| p.config.send_hold_time).map_or(SEND_HOLD.max(hold * 2), |time| time.max(hold))
}
