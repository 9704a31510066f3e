//! Connections: how they come, how two of them become one, how a session comes up and goes down (RFC 4271 6.8 and 8).

use std::net::SocketAddr;
use std::time::Duration;

use tortie_net::link_local::address_of;

use super::Speaker;
use super::deferral::is_hard;
use crate::api::{ConnId, Dial, Down, DownCode, Event, PeerId, State};
use crate::rib::reevaluate::Job;
use crate::session::capability_fallback::CapabilityFallback;
use crate::session::connection::{Conn, Direction};
use crate::session::damping;
use crate::session::last_error::{PeerError, down_code};
use crate::session::open::{self, RestartBits};
use crate::session::timers::Timer;
use crate::session::{Dialling, Peer, Restart};
use crate::types::Family;
use crate::wire::{ErrorCode, Notification, Open, write_keepalive};

/// Hold time until the peer's OPEN is there (RFC 4271 8.2.2 suggests 4 minutes).
const OPEN_HOLD: Duration = Duration::from_secs(240);
/// The same for peers of a range: whoever says nothing takes the place of another.
const OPEN_HOLD_RANGE: Duration = Duration::from_secs(30);
/// A session that is younger than this is not replaced by a new connection of its peer, even with graceful restart: both
/// ends may have dialled at once.
const YOUNG: Duration = Duration::from_secs(10);
/// How long the loser of a collision waits for the winner's OPEN.
const COLLISION_WAIT: Duration = Duration::from_secs(1);
/// First and longest time between attempts to dial.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));
/// The same after an error that people have to mend.
const RETRY_ERROR: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Deadlines that a connection or a peer has at most, most of the time, and those that are too few to matter.
const TIMERS_PER_OWNER: usize = 6;
const TIMERS_FREE: usize = 1024;

impl Speaker {
    /// Plans the next attempt to dial, if the peer is to be dialled and has no connection.
    pub(super) fn plan_dial(&mut self, number: u32, error: bool) {
        let stopping = self.stopping;
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if stopping || peer.outgoing.is_some() || peer.session.is_some() || peer.dialling == Dialling::Now {
            return;
        }
        if peer.config.shutdown.is_some() {
            peer.dialling = Dialling::No;
            return;
        }
        let first = match peer.config.dial {
            Dial::Passive => {
                peer.dialling = Dialling::No;
                return;
            }
            Dial::Now => Duration::ZERO,
            Dial::After(delay) => delay,
        };
        let (base, max) = if error { RETRY_ERROR } else { RETRY };
        let retry = match peer.failures {
            0 if peer.last_down.is_none() => Duration::ZERO,
            n => self.jitter.apply(base.saturating_mul(1 << n.saturating_sub(1).min(6)).min(max)),
        };
        let mut at = self.now + first.max(retry);
        for until in [peer.penalty_until, peer.unwanted_until].into_iter().flatten() {
            at = at.max(until);
        }
        peer.dialling = Dialling::At(at);
        self.timers.set(Timer::Dial(number), at);
    }

    pub(super) fn dial_timer(&mut self, number: u32) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if !matches!(peer.dialling, Dialling::At(at) if at <= now) {
            return;
        }
        peer.dialling = Dialling::Now;
        let id = peer.id;
        self.events.push_back(Event::Dial(id));
        self.report_state(number, None);
    }

    pub(super) fn dialled(&mut self, id: PeerId, conn: ConnId, local: SocketAddr, remote: SocketAddr) {
        let number = self.ids.get(&id).copied().unwrap_or(u32::MAX);
        let Some(peer) = self.peers.get_mut(&number).filter(|p| p.dialling == Dialling::Now) else {
            self.events.push_back(Event::Close(conn));
            return;
        };
        peer.dialling = Dialling::No;
        // An incoming one that came beside a session may have outlived it: it is in this one's place, and as good.
        if peer.session.is_some() || peer.outgoing.is_some() || peer.config.shutdown.is_some() {
            self.events.push_back(Event::Close(conn));
            return;
        }
        self.open_conn(number, conn, Direction::Outgoing, local, remote);
    }

    pub(super) fn dial_failed(&mut self, id: PeerId, error: String) {
        let number = self.ids.get(&id).copied().unwrap_or(u32::MAX);
        let Some(peer) = self.peers.get_mut(&number).filter(|p| p.dialling == Dialling::Now) else { return };
        peer.dialling = Dialling::No;
        if peer.session.is_some() {
            return;
        }
        peer.failures += 1;
        self.plan_dial(number, false);
        let down = Down { code: DownCode::ConnectFailed, text: error, notification: None, helper: false };
        self.note_down(number, &down);
        self.report_state(number, Some(down));
    }

    pub(super) fn accepted(&mut self, conn: ConnId, local: SocketAddr, remote: SocketAddr) {
        let number = self.configured_at(remote);
        let Some(number) = number.or_else(|| self.came_from_range(conn, remote)) else { return };
        let now = self.now;
        let Some(peer) = self.peers.get(&number) else {
            self.events.push_back(Event::Close(conn));
            return;
        };
        if self.stopping || peer.is_damped(now) {
            self.events.push_back(Event::Close(conn));
            return;
        }
        if let Some(text) = &peer.config.shutdown {
            let cease = Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text);
            self.turn_away(conn, &cease);
            return;
        }
        let beside_session = peer.incoming.is_some() && peer.incoming == peer.session;
        if let Some(old) = if beside_session { peer.outgoing } else { peer.incoming } {
            // The peer would not dial twice unless it had given up the first.
            if let Some(peer) = self.peers.get_mut(&number).filter(|p| p.range.is_none()) {
                peer.damping.note_failure(now);
            }
            self.drop_conn(old, Some(Notification::new(ErrorCode::COLLISION)), &collision());
        }
        self.open_conn(number, conn, Direction::Incoming, local, remote);
    }

    /// Closes a connection before any OPEN, and says why.
    pub(super) fn turn_away(&mut self, conn: ConnId, why: &Notification) {
        let mut last = Vec::new();
        why.write(&mut last);
        self.closing.insert(conn, last);
        self.closing_order.push_back((self.now, conn));
        self.events.push_back(Event::Close(conn));
    }

    /// A connection is there: OPEN is sent (RFC 4271 8.2.2, event 16 or 17).
    fn open_conn(
        &mut self,
        number: u32,
        conn: ConnId,
        direction: Direction,
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let was_up = peer.was_up || peer.was_served;
        let bits = RestartBits {
            restarted: self.global.restarting.is_some() && !was_up && !self.restart.is_over(self.now),
            was_up,
        };
        let ours = open::ours(&self.global, &peer.config, bits, &peer.capability_fallback);
        let mut control = Vec::new();
        ours.write(&mut control);
        peer.sent.open += 1;
        let place = match direction {
            Direction::Incoming if peer.incoming.is_none() => &mut peer.incoming,
            // The session itself is the other incoming one; this one may replace it.
            Direction::Outgoing | Direction::Incoming => &mut peer.outgoing,
        };
        let lost = place.replace(conn);
        debug_assert!(lost.is_none(), "a connection that its peer does not know of");
        let hold = if peer.range.is_some() { OPEN_HOLD_RANGE } else { OPEN_HOLD };
        let hold_at = self.now + hold;
        self.timers.set(Timer::Hold(conn), hold_at);
        self.conns.insert(
            conn,
            Conn {
                peer: number,
                direction,
                local,
                remote,
                state: State::OpenSent,
                input: crate::session::connection::Input::default(),
                queued: false,
                control,
                cursors: std::collections::VecDeque::new(),
                wants: None,
                send_hold_armed: false,
                turn: 0,
                ours,
                theirs: None,
                received_open_body: Box::default(),
                negotiated: None,
                hold,
                keepalive: Duration::ZERO,
                hold_at: Some(hold_at),
                margin: crate::session::connection::Margin::default(),
                keepalive_at: None,
                held_until: None,
                confirmed: false,
                refreshes: [crate::session::connection::RefreshOut::No; 2],
            },
        );
        self.want_write(conn);
        self.report_state(number, None);
    }

    /// The peer's OPEN (event 19).
    pub(super) fn opened(&mut self, id: ConnId, theirs: Open) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let number = conn.peer;
        let Some(peer) = self.peers.get(&number) else { return };
        let agreed = match open::judge(&conn.ours, &theirs, &peer.config) {
            Ok(agreed) => agreed,
            Err(notification) => {
                self.refuse(id, notification);
                return;
            }
        };
        conn.negotiated = Some(agreed.negotiated);
        conn.hold = agreed.hold;
        conn.keepalive = agreed.keepalive;
        let we_win = wins(&conn.ours, &theirs, conn.direction);
        conn.theirs = Some(theirs);
        let rival = peer.rival(id);
        match rival.and_then(|r| self.conns.get(&r)).map(|c| c.state) {
            Some(State::Established) if !self.is_replaced(number) => {
                self.drop_conn(id, Some(Notification::new(ErrorCode::COLLISION)), &collision());
                return;
            }
            Some(State::Established) => {
                // RFC 4724 4.2: the new connection means that the old one ended.
                if let Some(old) = rival {
                    let down = Down {
                        code: DownCode::TcpClosed,
                        text: "the peer came back on a new connection".into(),
                        notification: None,
                        helper: false,
                    };
                    self.drop_conn(old, None, &down);
                }
            }
            Some(State::OpenConfirm) if !we_win => {
                self.drop_conn(id, Some(Notification::new(ErrorCode::COLLISION)), &collision());
                self.release(rival);
                return;
            }
            Some(State::OpenSent) if !we_win => {
                // The other one wins once its OPEN comes. Should it never come, this one is as good.
                let until = self.now + COLLISION_WAIT;
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.held_until = Some(until);
                    conn.state = State::OpenConfirm;
                    self.timers.set(Timer::Collision(id), until);
                }
                self.report_state(number, None);
                return;
            }
            Some(_) => {
                if let Some(rival) = rival {
                    self.drop_conn(rival, Some(Notification::new(ErrorCode::COLLISION)), &collision());
                }
            }
            None => {}
        }
        self.confirm(id);
    }

    /// Whether a new connection means that the established one is dead.
    fn is_replaced(&self, number: u32) -> bool {
        self.peers.get(&number).is_some_and(|p| {
            p.graceful.is_some() && p.up_at.is_some_and(|up| self.now.duration_since(up) >= YOUNG)
        })
    }

    /// A held connection need not wait any longer.
    pub(super) fn release(&mut self, conn: Option<ConnId>) {
        let Some(id) = conn else { return };
        let held = self.conns.get_mut(&id).is_some_and(|c| c.held_until.take().is_some());
        if held {
            let rival = self.conns.get(&id).and_then(|c| self.peers.get(&c.peer)).and_then(|p| p.rival(id));
            if let Some(rival) = rival {
                self.drop_conn(rival, Some(Notification::new(ErrorCode::COLLISION)), &collision());
            }
            self.confirm(id);
        }
    }

    /// OPEN is accepted: KEEPALIVE is sent, timers run with what was agreed (event 19, OpenConfirm).
    fn confirm(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::OpenConfirm;
        write_keepalive(&mut conn.control);
        conn.hold_at = (!conn.hold.is_zero()).then(|| self.now + conn.hold);
        if let Some(at) = conn.hold_at {
            self.timers.set(Timer::Hold(id), at);
        }
        if !conn.keepalive.is_zero() {
            let at = self.now + self.jitter.apply(conn.keepalive);
            conn.keepalive_at = Some(at);
            self.timers.set(Timer::Keepalive(id), at);
        }
        let (number, confirmed) = (conn.peer, conn.confirmed);
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.sent.keepalive += 1;
        }
        self.want_write(id);
        self.report_state(number, None);
        if confirmed {
            self.establish(id);
        }
    }

    /// KEEPALIVE in OpenConfirm (event 26).
    pub(super) fn confirmed(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.held_until.is_some() {
            conn.confirmed = true;
            return;
        }
        self.establish(id);
    }

    fn establish(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::Established;
        // RFC 9687: the send hold timer runs with what the session agreed on.
        conn.wants = None;
        conn.send_hold_armed = false;
        let number = conn.peer;
        let (theirs, negotiated) = (conn.theirs.clone(), conn.negotiated);
        let (Some(theirs), Some(negotiated)) = (theirs, negotiated) else { return };
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.session = Some(id);
        peer.up_at = Some(self.now);
        peer.failures = 0;
        peer.penalty_until = None;
        peer.unwanted_until = None;
        peer.warned = [false; 2];
        peer.end_of_rib_received = [false; 2];
        peer.graceful = theirs.capabilities.graceful_restart.clone();
        if matches!(peer.dialling, Dialling::At(_)) {
            peer.dialling = Dialling::No;
        }
        peer.was_up = true;
        let (rival, keeps) = (peer.rival(id), peer.restart != Restart::No);
        self.set_own_addresses(number);
        if let Some(source) = self.shared.sources.get_mut(number) {
            let renamed = std::mem::replace(&mut source.router_id, theirs.router_id.0) != theirs.router_id.0;
            if renamed {
                source.reflection = source.reflection.wrapping_add(1);
            }
            if renamed && keeps {
                // An equal announcement of a route that was kept changes nothing else (RFC 4271 9.1.2.2, RFC 4456 8).
                for job in [Job::Decide, Job::Reexport] {
                    self.v4.request(job);
                    self.v6.request(job);
                }
            }
            source.asn = theirs.asn;
            for family in Family::ALL {
                source.family_mut(family).add_path = negotiated.add_path_receive.contains(family);
            }
        }
        if let Some(rival) = rival {
            self.drop_conn(rival, Some(Notification::new(ErrorCode::COLLISION)), &collision());
        }
        self.peer_returned(number, &negotiated, &theirs.capabilities);
        for family in negotiated.families.iter() {
            self.join_groups(number, family, Vec::new());
        }
        self.report_state(number, None);
        self.session_came_up();
        self.want_write(id);
    }

    /// Ends a connection because of an error: NOTIFICATION is sent, the session is down.
    pub(super) fn refuse(&mut self, id: ConnId, notification: Notification) {
        let code = down_code(notification.code);
        if let Some(number) = self.conns.get(&id).map(|c| c.peer) {
            self.note_error(number, PeerError::sent(&notification));
        }
        let text = format!("sent NOTIFICATION {}", notification.code);
        let down = Down { code, text, notification: Some(pair(notification.code)), helper: false };
        self.drop_conn(id, Some(notification), &down);
    }

    /// TCP ended from outside.
    pub(super) fn closed(&mut self, id: ConnId, why: &str) {
        if self.closing.remove(&id).is_some() || !self.conns.contains_key(&id) {
            return;
        }
        let text = crate::wire::sanitise(why.as_bytes());
        let down = Down { code: DownCode::TcpClosed, text, notification: None, helper: false };
        self.end_conn(id, None, &down, End { close: false, graceful: true });
    }

    /// Ends a connection from our side.
    pub(super) fn drop_conn(&mut self, id: ConnId, notification: Option<Notification>, down: &Down) {
        let both = self.conns.get(&id).is_some_and(Conn::has_graceful_notification);
        let hard = notification.as_ref().is_some_and(|n| is_hard(n.code));
        let graceful = match &notification {
            Some(_) => both && !hard,
            None => matches!(down.code, DownCode::TcpClosed | DownCode::LinkDown),
        };
        // RFC 8538 3.1: only those understand it who said so.
        let notification = notification
            .map(|n| if hard && both && n.code != ErrorCode::HARD_RESET { n.into_hard_reset() } else { n });
        self.end_conn(id, notification, down, End { close: true, graceful });
    }

    /// The peer sent a NOTIFICATION.
    pub(super) fn end_by_notification(&mut self, id: ConnId, code: ErrorCode, down: &Down) {
        let both = self.conns.get(&id).is_some_and(Conn::has_graceful_notification);
        let graceful = both && code != ErrorCode::HARD_RESET;
        self.end_conn(id, None, down, End { close: true, graceful });
    }

    fn end_conn(&mut self, id: ConnId, notification: Option<Notification>, down: &Down, end: End) {
        let Some(conn) = self.conns.remove(&id) else { return };
        let number = conn.peer;
        if let Some(notification) = notification {
            let mut last = Vec::new();
            notification.write(&mut last);
            self.tap_last(&conn, &last);
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.sent.notification += 1;
            }
            self.closing.insert(id, last);
            self.closing_order.push_back((self.now, id));
        }
        if end.close {
            self.events.push_back(Event::Close(id));
        }
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let was_session = peer.session == Some(id);
        peer.forget(id);
        let mut down = down.clone();
        let mut young = false;
        if was_session {
            peer.flaps += 1;
            young = peer.up_at.is_some_and(|up| self.now.duration_since(up) < damping::YOUNG);
            peer.capability_fallback = CapabilityFallback::default();
            peer.up_at = None;
            down.helper = self.session_ended(number, &conn, end.graceful && !self.stopping);
        }
        // What lost to its rival is no failure.
        let rival = self.peers.get(&number).and_then(|p| p.conns().next());
        let collided = down.code == DownCode::Collision
            || down.notification == Some(pair(ErrorCode::COLLISION))
            || rival.is_some();
        let retry = self.peers.get_mut(&number).is_some_and(|p| std::mem::take(&mut p.retry));
        let failed = !was_session && !collided && !retry;
        let error =
            failed && matches!(down.code, DownCode::NotificationSent | DownCode::NotificationReceived);
        if let Some(peer) = self.peers.get_mut(&number)
            && failed
        {
            peer.failures += 1;
            if error {
                peer.capability_fallback = CapabilityFallback::default();
            }
        }
        // Nobody has to hurry to end a session at once, and who sends what is no BGP may do so again.
        let noise = was_session && down.code == DownCode::NotificationSent;
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&number)
            && conn.direction == Direction::Incoming
            && peer.range.is_none()
            && (failed || young || noise)
        {
            peer.damping.note_failure(now);
        }
        self.forget_timers();
        if !collided || was_session {
            self.note_down(number, &down);
        }
        if rival.is_none() {
            self.plan_dial(number, error);
        }
        self.release(rival);
        let told = (!collided || was_session).then_some(down);
        self.report_state(number, told);
        self.may_fade(number);
    }

    /// Deadlines of connections that are gone stay in the heap until their time. Where these are most of it, because
    /// connections come and go, they are taken out.
    fn forget_timers(&mut self) {
        if self.timers.len() > TIMERS_PER_OWNER * (self.conns.len() + self.peers.len()) + TIMERS_FREE {
            let conns = &self.conns;
            self.timers.retain(|timer| match timer {
                Timer::Hold(id) | Timer::Keepalive(id) | Timer::SendHold(id) | Timer::Collision(id) => {
                    conns.contains_key(&id)
                }
                Timer::Dial(_) | Timer::Restart(_) | Timer::Refresh(_) | Timer::Deferral => true,
            });
        }
    }

    /// Keeps an error for people.
    pub(super) fn note_error(&mut self, number: u32, error: PeerError) {
        self.errors_noted += 1;
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&number) {
            peer.last_error = Some((error, now));
        }
    }

    pub(super) fn note_down(&mut self, number: u32, down: &Down) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.last_down = Some((down.clone(), now));
        let address = address_of(peer.config.remote);
        if let Some(range) = peer.range.and_then(|id| self.ranges.get_mut(id)) {
            range.last_down = Some((address, down.clone(), now));
        }
    }

    /// Tells the peer's state when it changed.
    pub(super) fn report_state(&mut self, number: u32, down: Option<Down>) {
        let state = self.peers.get(&number).map(|p| self.state_of(p));
        let (Some(peer), Some(to)) = (self.peers.get_mut(&number), state) else { return };
        let from = peer.state;
        if from == to && down.is_none() {
            return;
        }
        if from != to {
            peer.state = to;
            peer.since = self.now;
        }
        let id = peer.id;
        self.tap_state(number, from, to, down.as_ref());
        self.events.push_back(Event::State { peer: id, from, to, down });
    }

    fn state_of(&self, peer: &Peer) -> State {
        let furthest = peer.conns().filter_map(|c| self.conns.get(&c)).map(|c| c.state).max();
        furthest.unwrap_or(match peer.dialling {
            _ if self.stopping || peer.config.shutdown.is_some() => State::Idle,
            _ if peer.penalty_until.is_some_and(|until| until > self.now) => State::Idle,
            Dialling::Now => State::Connect,
            Dialling::At(_) | Dialling::No => State::Active,
        })
    }

    /// Whether the peer's session carries this family.
    pub(super) fn carries(&self, number: u32, family: Family) -> bool {
        self.peers
            .get(&number)
            .and_then(|p| self.conns.get(&p.session?))
            .and_then(|c| c.negotiated)
            .is_some_and(|n| n.families.contains(family))
    }
}

/// How a connection ends.
#[derive(Debug, Clone, Copy)]
struct End {
    /// It is ours to close.
    close: bool,
    /// For a session: the peer may be restarting (RFC 4724 4.2, RFC 8538 4).
    graceful: bool,
}

pub(super) fn pair(code: ErrorCode) -> (u8, u8) {
    (code.0, code.1)
}

fn collision() -> Down {
    Down {
        code: DownCode::Collision,
        text: "lost a connection collision (RFC 4271 6.8)".into(),
        notification: Some(pair(ErrorCode::COLLISION)),
        helper: false,
    }
}

/// Whether a connection of this direction is the one to keep: that of the speaker with the higher identifier, with equal
/// ones that of the higher AS (RFC 4271 6.8, RFC 6286 2.3).
fn wins(ours: &Open, theirs: &Open, direction: Direction) -> bool {
    let our_dial_wins = (ours.router_id, ours.asn) > (theirs.router_id, theirs.asn);
    our_dial_wins == (direction == Direction::Outgoing)
}
