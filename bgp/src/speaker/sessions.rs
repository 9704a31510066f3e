//! Driver of the finite state machines (RFC 4271 8): converts inputs to events and carries out the actions.
//!
//! Life of a connection: it is opened ([`Speaker::dialled`]) or accepted ([`Speaker::accepted`]), OPENs are
//! exchanged and checked, a collision is resolved (RFC 4271 6.8), the session comes up and goes down. The
//! transitions themselves are in [`fsm`].

use std::net::SocketAddr;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use super::Speaker;
use super::graceful_restart::is_hard;
use super::monitor::{TapEvent, TapSession};
use crate::api::{ConnId, Dial, Down, DownCode, Event, PeerId, State};
use crate::session::collision::{self, Resolution};
use crate::session::connection::{Conn, Direction};
use crate::session::fsm::{self, Action};
use crate::session::last_error::{PeerError, down_code};
use crate::session::open::{self, RestartBits};
use crate::session::peer::{Dialling, Ended, Peer, Restart, ShortLived};
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{ErrorCode, MessageKind, Notification, Open, write_keepalive};

/// Hold time until the OPEN of the peer arrives (RFC 4271 8.2.2 suggests 4 minutes).
const OPEN_HOLD: Duration = Duration::from_secs(240);
/// Hold time until the OPEN of a dynamic peer arrives: shorter, because a silent one occupies a place of the
/// range.
const OPEN_HOLD_RANGE: Duration = Duration::from_secs(30);
/// A session younger than this is not replaced by a new connection of its peer, even with graceful restart:
/// both ends may have dialled at the same time.
const YOUNG: Duration = Duration::from_secs(10);
/// Time for which the losing connection of a collision waits for the OPEN on the winning one.
const COLLISION_WAIT: Duration = Duration::from_secs(1);
/// Minimum and maximum time between dials.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));
/// Minimum and maximum time between dials after an error that an operator has to correct.
const RETRY_ERROR: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Connection attempts: ConnectRetryTimer, outgoing and incoming connections.
impl Speaker {
    /// Handles event 1 or 3: sets the ConnectRetryTimer if the peer is to be dialled and has no connection.
    /// `error`: the last attempt failed with an error that an operator has to correct.
    pub(super) fn start(&mut self, number: u32, event: fsm::Event, error: bool) {
        let Some(peer) = self.peers.get_mut(number) else { return };
        // A running timer is set again.
        let state = if peer.dialling == Dialling::Connecting { State::Connect } else { State::Idle };
        let (_, action) = fsm::transition(state, event);
        let has_connection = peer.outgoing.is_some() || peer.session.is_some();
        if self.stopping || has_connection || action != Action::StartConnectRetryTimer {
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
            n => self.scheduler.jittered(base.saturating_mul(1 << n.saturating_sub(1).min(6)).min(max)),
        };
        let at = self.scheduler.now() + first.max(retry);
        let at = peer.dial_holds().fold(at, std::cmp::Ord::max);
        peer.dialling = Dialling::At(at);
        self.scheduler.set(Timer::ConnectRetry(number), at);
    }

    pub(super) fn connect_retry_timer(&mut self, number: u32) {
        let now = self.scheduler.now();
        let Some(peer) = self.peers.get_mut(number) else { return };
        if !matches!(peer.dialling, Dialling::At(at) if at <= now) {
            return;
        }
        let mut state = State::Active;
        if peer.idle_hold_until.is_some() {
            // The timer was set to the end of the IdleHoldTimer or later.
            (state, _) = fsm::transition(State::Idle, fsm::Event::IdleHoldTimerExpires);
        }
        let (_, action) = fsm::transition(state, fsm::Event::ConnectRetryTimerExpires);
        if action == Action::Connect {
            peer.dialling = Dialling::Connecting;
            self.events.push_back(Event::Dial(peer.id));
            self.report_state(number, None);
        }
    }

    pub(super) fn dialled(&mut self, id: PeerId, conn: ConnId, local: SocketAddr, remote: SocketAddr) {
        let peer = self.peers.number(id).and_then(|number| Some((number, self.peers.get_mut(number)?)));
        let Some((number, peer)) = peer.filter(|(_, peer)| peer.dial_state() == State::Connect) else {
            self.events.push_back(Event::Close(conn));
            return;
        };
        peer.dialling = Dialling::No;
        // An incoming connection may have outlived the session it was parallel to. It then occupies the
        // outgoing place and serves as well.
        if peer.session.is_some() || peer.outgoing.is_some() || peer.config.shutdown.is_some() {
            self.events.push_back(Event::Close(conn));
            return;
        }
        self.connected(number, conn, Direction::Outgoing, (local, remote));
    }

    pub(super) fn dial_failed(&mut self, id: PeerId, error: String) {
        let Some(number) = self.peers.number(id) else { return };
        let Some(peer) = self.peers.get_mut(number).filter(|p| p.dial_state() == State::Connect) else {
            return;
        };
        peer.dialling = Dialling::No;
        if peer.session.is_some() {
            return;
        }
        peer.failures += 1;
        let (_, action) = fsm::transition(State::Connect, fsm::Event::TcpConnectionFails);
        if action == Action::StartConnectRetryTimer {
            self.start(number, fsm::Event::AutomaticStart, false);
        }
        let down = Down { code: DownCode::ConnectFailed, text: error, notification: None, helper: false };
        self.peers.note_down(number, &down, self.scheduler.now());
        self.report_state(number, Some(down));
    }

    pub(super) fn accepted(&mut self, conn: ConnId, local: SocketAddr, remote: SocketAddr) {
        let number = self.peers.at(remote);
        let Some(number) = number.or_else(|| self.accepted_by_range(conn, remote)) else { return };
        let now = self.scheduler.now();
        let Some(peer) = self.peers.get(number).filter(|p| !self.stopping && !p.is_damped(now)) else {
            self.events.push_back(Event::Close(conn));
            return;
        };
        if let Some(text) = &peer.config.shutdown {
            let cease = Notification::with_text(ErrorCode::ADMIN_SHUTDOWN, text);
            self.refuse_connection(conn, &cease);
            return;
        }
        let parallel_session = peer.incoming.is_some() && peer.incoming == peer.session;
        if let Some(old) = if parallel_session { peer.outgoing } else { peer.incoming } {
            // A peer opens a second connection only after it gave up the first.
            if let Some(peer) = self.peers.get_mut(number).filter(|p| p.range.is_none()) {
                peer.damping.note_failure(now);
            }
            self.dump_connection(old);
        }
        self.connected(number, conn, Direction::Incoming, (local, remote));
    }

    /// Refuses a connection with a NOTIFICATION before any OPEN.
    pub(super) fn refuse_connection(&mut self, conn: ConnId, why: &Notification) {
        let mut last = Vec::new();
        why.write(&mut last);
        self.connections.set_last_message(conn, last, self.scheduler.now());
        self.events.push_back(Event::Close(conn));
    }

    /// Handles a new connection (events 16 and 17): sends OPEN.
    fn connected(&mut self, number: u32, id: ConnId, direction: Direction, ends: (SocketAddr, SocketAddr)) {
        let Some(peer) = self.peers.get_mut(number) else { return };
        let now = self.scheduler.now();
        let was_up = peer.was_up || peer.had_session_before;
        let starting = !self.deferral.is_restart_over(now);
        let restarted = self.global.restarting.is_some() && starting && !was_up;
        let bits = RestartBits { restarted, starting, was_up };
        let open = open::ours(&self.global, &peer.config, bits, &peer.capability_fallback);
        let hold = if peer.range.is_some() { OPEN_HOLD_RANGE } else { OPEN_HOLD };
        let mut conn = Conn::new(number, direction, ends, open, hold, now);
        let event = match direction {
            Direction::Outgoing => fsm::Event::TcpCrAcked,
            Direction::Incoming => fsm::Event::TcpConnectionConfirmed,
        };
        if conn.fsm.handle(event) == Action::SendOpen {
            conn.sent_open.write(&mut conn.control);
            peer.sent.open += 1;
            self.scheduler.set_after(Timer::Hold(id), hold);
        }
        let place = match direction {
            Direction::Incoming if peer.incoming.is_none() => &mut peer.incoming,
            // The session itself is the other incoming connection; this one may replace it.
            Direction::Outgoing | Direction::Incoming => &mut peer.outgoing,
        };
        let lost = place.replace(id);
        debug_assert!(lost.is_none(), "a connection that its peer does not have");
        self.connections.insert(id, conn);
        self.want_write(id);
        self.report_state(number, None);
    }
}

/// From OpenSent to Established.
impl Speaker {
    /// Handles the OPEN of the peer: checks it (event 19 or 22) and resolves a collision.
    pub(super) fn open_received(&mut self, id: ConnId, theirs: Open) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        let number = conn.peer;
        let Some(peer) = self.peers.get(number) else { return };
        let agreed = match open::negotiate(&conn.sent_open, &theirs, &peer.config) {
            Ok(agreed) => agreed,
            Err(notification) => return self.fail(id, fsm::Event::BgpOpenMsgErr, Some(notification)),
        };
        conn.negotiated = Some(agreed.negotiated);
        conn.hold = agreed.hold;
        conn.keepalive = agreed.keepalive;
        let this_wins = collision::wins(&conn.sent_open, &theirs, conn.direction);
        conn.received_open = Some(theirs);
        let other_connection = peer.other_connection(id);
        // RFC 4724 4.2: a new connection of a peer with graceful restart implies that the old session is
        // dead.
        let is_old = peer.up_at.is_some_and(|up| self.scheduler.now().duration_since(up) >= YOUNG);
        let replaces = peer.graceful.is_some() && is_old;
        let other = other_connection
            .and_then(|other_connection| self.connections.get(other_connection))
            .map(Conn::state);
        match (collision::resolve(other, this_wins, replaces), other_connection) {
            (Resolution::DumpThis, other_connection) => {
                self.dump_connection(id);
                self.end_collision_wait(other_connection);
                return;
            }
            (Resolution::AwaitOther, _) => {
                let until = self.scheduler.set_after(Timer::Collision(id), COLLISION_WAIT);
                if let Some(conn) = self.connections.get_mut(id) {
                    conn.collision_hold_until = Some(until);
                    // KEEPALIVE is sent after the other connection has ended.
                    conn.fsm.handle(fsm::Event::BgpOpen);
                }
                self.report_state(number, None);
                return;
            }
            (Resolution::ReplaceEstablished, Some(old)) => {
                let text = "the peer came back on a new connection".into();
                let down = Down { code: DownCode::TcpClosed, text, notification: None, helper: false };
                self.stop(old, fsm::Event::AutomaticStop, None, &down);
            }
            (Resolution::DumpOther, Some(other)) => self.dump_connection(other),
            (Resolution::NoCollision | Resolution::ReplaceEstablished | Resolution::DumpOther, _) => {}
        }
        let action = self.connections.get_mut(id).map(|conn| conn.fsm.handle(fsm::Event::BgpOpen));
        if action == Some(Action::ConfirmOpen) {
            self.confirm_open(id);
        }
    }

    /// Continues a connection that waited for the other one of a collision, which has ended or timed out.
    fn end_collision_wait(&mut self, id: Option<ConnId>) {
        let Some(id) = id else { return };
        let Some(conn) = self.connections.get_mut(id) else { return };
        if conn.collision_hold_until.take().is_none() {
            return;
        }
        let number = conn.peer;
        if let Some(other_connection) = self.peers.get(number).and_then(|p| p.other_connection(id)) {
            self.dump_connection(other_connection);
        }
        self.confirm_open(id);
    }

    pub(super) fn collision_timer(&mut self, id: ConnId) {
        let until = self.connections.get(id).and_then(|conn| conn.collision_hold_until);
        if until.is_some_and(|at| at <= self.scheduler.served()) {
            self.end_collision_wait(Some(id));
        }
    }

    /// Accepts the OPEN: sends KEEPALIVE and starts the timers with the negotiated times.
    fn confirm_open(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        write_keepalive(&mut conn.control);
        let hold = Some(conn.hold).filter(|hold| !hold.is_zero());
        conn.hold_at = hold.map(|hold| self.scheduler.set_after(Timer::Hold(id), hold));
        if !conn.keepalive.is_zero() {
            let interval = self.scheduler.jittered(conn.keepalive);
            conn.keepalive_at = Some(self.scheduler.set_after(Timer::Keepalive(id), interval));
        }
        let (number, confirmed) = (conn.peer, conn.confirmed);
        if let Some(peer) = self.peers.get_mut(number) {
            peer.sent.keepalive += 1;
        }
        self.want_write(id);
        self.report_state(number, None);
        if confirmed {
            self.keepalive_received(id);
        }
    }

    /// Handles KEEPALIVE (event 26).
    pub(super) fn keepalive_received(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        if conn.collision_hold_until.is_some() {
            conn.confirmed = true;
            return;
        }
        match conn.fsm.handle(fsm::Event::KeepAliveMsg) {
            Action::Establish => self.establish(id),
            Action::SendNotification(code) => self.refuse_message(id, code, MessageKind::Keepalive),
            // The hold timer was restarted on receipt of the message.
            _ => {}
        }
    }

    fn establish(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        // RFC 9687: the send hold timer now uses the negotiated hold time.
        conn.write_pending_since = None;
        conn.send_hold_armed = false;
        let number = conn.peer;
        let (Some(theirs), Some(negotiated)) = (conn.received_open.clone(), conn.negotiated) else { return };
        let Some(peer) = self.peers.get_mut(number) else { return };
        let graceful = theirs.capabilities.graceful_restart.clone();
        peer.session_up(id, graceful, self.scheduler.now());
        let (other_connection, keeps) = (peer.other_connection(id), peer.restart != Restart::No);
        self.set_own_addresses(number);
        self.ribs.set_identity_of(number, (theirs.router_id.0, theirs.asn), keeps);
        if let Some(source) = self.ribs.source_mut(number) {
            for family in Family::ALL {
                source.family_mut(family).add_path = negotiated.add_path_receive.contains(family);
            }
        }
        if let Some(other_connection) = other_connection {
            self.dump_connection(other_connection);
        }
        if let Some(mut stale) = self.stale_routes(number) {
            stale.peer_returned(&negotiated, &theirs.capabilities);
        }
        for family in negotiated.families.iter() {
            self.update_groups().join(number, family, Vec::new());
        }
        self.report_state(number, None);
        self.deferral.session_up(&mut self.scheduler);
        self.want_write(id);
    }

    /// Updates the local addresses towards an established peer. Returns true if they changed.
    pub(super) fn set_own_addresses(&mut self, number: u32) -> bool {
        let Some(peer) = self.peers.get(number) else { return false };
        let Some(conn) = self.connections.session(peer) else { return false };
        let local = ScopedAddr::new(conn.local.ip().to_canonical(), conn.link());
        let config = &peer.config;
        let configured = [config.local, config.local_v4, config.local_v6].into_iter().flatten();
        let own: SmallVec<[ScopedAddr; 3]> =
            std::iter::once(local).chain(configured.map(ScopedAddr::from)).collect();
        self.ribs.set_own_addresses(number, own)
    }
}

/// Kind of the end of a connection.
#[derive(Debug, Clone, Copy)]
struct End {
    /// True if the embedder has to close the connection.
    close: bool,
    /// For a session: the end permits keeping routes (RFC 4724 4.2, RFC 8538 4).
    graceful: bool,
}

/// Ends of connections.
impl Speaker {
    /// Handles an error event: sends the NOTIFICATION given, or that of the state machine.
    pub(super) fn fail(&mut self, id: ConnId, event: fsm::Event, notification: Option<Notification>) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        let Action::SendNotification(code) = conn.fsm.handle(event) else { return };
        self.refuse(id, notification.unwrap_or_else(|| Notification::new(code)));
    }

    /// Handles a message that is not allowed in this state (RFC 4271 6.6, RFC 6608).
    pub(super) fn refuse_message(&mut self, id: ConnId, code: ErrorCode, kind: MessageKind) {
        self.refuse(id, Notification::with_data(code, &[kind as u8]));
    }

    fn refuse(&mut self, id: ConnId, notification: Notification) {
        let code = down_code(notification.code);
        if let Some(number) = self.connections.get(id).map(|c| c.peer) {
            self.peers.note_error(number, PeerError::sent(&notification), self.scheduler.now());
        }
        let text = format!("sent NOTIFICATION {}", notification.code);
        let down = Down { code, text, notification: Some(notification.code.pair()), helper: false };
        self.drop_conn(id, Some(notification), &down);
    }

    /// Ends a connection that lost a collision (event 23).
    fn dump_connection(&mut self, id: ConnId) {
        let cease = Notification::new(ErrorCode::COLLISION);
        self.stop(id, fsm::Event::OpenCollisionDump, Some(cease), &collision::down());
    }

    /// Ends a connection from this side, with or without a NOTIFICATION.
    pub(super) fn stop(
        &mut self,
        id: ConnId,
        event: fsm::Event,
        notification: Option<Notification>,
        down: &Down,
    ) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        conn.fsm.handle(event);
        self.drop_conn(id, notification, down);
    }

    /// Handles the end of a TCP connection (event 18).
    pub(super) fn closed(&mut self, id: ConnId, why: &str) {
        if self.connections.take_last_message(id).is_some() {
            return;
        }
        let Some(conn) = self.connections.get_mut(id) else { return };
        conn.fsm.handle(fsm::Event::TcpConnectionFails);
        let text = crate::wire::sanitise(why.as_bytes());
        let down = Down { code: DownCode::TcpClosed, text, notification: None, helper: false };
        self.end_conn(id, None, &down, End { close: false, graceful: true });
    }

    fn drop_conn(&mut self, id: ConnId, notification: Option<Notification>, down: &Down) {
        let both = self.connections.get(id).is_some_and(Conn::has_graceful_notification);
        let hard = notification.as_ref().is_some_and(|n| is_hard(n.code));
        let graceful = match &notification {
            Some(_) => both && !hard,
            None => down.code == DownCode::TcpClosed,
        };
        // RFC 8538 3.1: a Hard Reset is sent only if both ends set the N bit.
        let notification = notification
            .map(|n| if hard && both && n.code != ErrorCode::HARD_RESET { n.into_hard_reset() } else { n });
        self.end_conn(id, notification, down, End { close: true, graceful });
    }

    /// Handles the end of a connection after a NOTIFICATION of the peer.
    pub(super) fn end_by_notification(&mut self, id: ConnId, code: ErrorCode, down: &Down) {
        let both = self.connections.get(id).is_some_and(Conn::has_graceful_notification);
        let graceful = both && code != ErrorCode::HARD_RESET;
        self.end_conn(id, None, down, End { close: true, graceful });
    }

    fn end_conn(&mut self, id: ConnId, notification: Option<Notification>, down: &Down, end: End) {
        let Some(conn) = self.connections.remove(id) else { return };
        let (number, now) = (conn.peer, self.scheduler.now());
        if let Some(notification) = notification {
            let mut last = Vec::new();
            notification.write(&mut last);
            if let Some(peer) = self.peers.get_mut(number) {
                self.tap.message(peer.id, MessageKind::Notification, &last, true, now);
                peer.sent.notification += 1;
            }
            self.connections.set_last_message(id, last, now);
        }
        if end.close {
            self.events.push_back(Event::Close(id));
        }
        let Some(peer) = self.peers.get_mut(number) else { return };
        let was_session = peer.session == Some(id);
        peer.forget(id);
        let session = was_session.then(|| ShortLived(peer.session_down(now)));
        let mut down = down.clone();
        if was_session {
            down.helper = self.session_ended(number, &conn, end.graceful && !self.stopping);
        }
        let Some(peer) = self.peers.get_mut(number) else { return };
        let Ended { error, is_reported } = peer.note_end(&conn, session, &down, now);
        let other_connection = peer.conns().next();
        self.scheduler.prune(&self.connections, self.peers.len());
        if is_reported {
            self.peers.note_down(number, &down, now);
        }
        if other_connection.is_none() {
            self.start(number, fsm::Event::AutomaticStart, error);
        }
        self.end_collision_wait(other_connection);
        self.report_state(number, is_reported.then_some(down));
        self.peers.note_idle(number);
    }

    /// Handles the end of a session: removes its routes or keeps them as stale. Returns true if some are
    /// kept.
    fn session_ended(&mut self, number: u32, conn: &Conn, keep: bool) -> bool {
        for family in Family::ALL {
            if self.peers.get(number).is_some_and(|p| !p.groups(family).is_empty()) {
                self.update_groups().leave(number, family);
            }
        }
        let helper = self.stale_routes(number).is_some_and(|mut stale| stale.session_ended(conn, keep));
        self.deferral.schedule_check(&mut self.scheduler);
        helper
    }

    /// Reports a changed state of the peer, and the end of a session or an attempt.
    pub(super) fn report_state(&mut self, number: u32, down: Option<Down>) {
        let state = self.peers.get(number).map(|p| self.state_of(p));
        let (Some(peer), Some(to)) = (self.peers.get_mut(number), state) else { return };
        let (id, from, now) = (peer.id, peer.state, self.scheduler.now());
        if from == to && down.is_none() {
            return;
        }
        if from != to {
            peer.state = to;
            peer.since = now;
        }
        if self.tap.is_on() {
            let is_up = to == State::Established && from != to;
            let conn = self.connections.session(peer).filter(|_| is_up);
            let session = conn.and_then(|conn| TapSession::new(peer, conn)).map(Into::into);
            self.tap.event(id, TapEvent::State { from, to, down: down.clone(), session }, now);
        }
        self.events.push_back(Event::State { peer: id, from, to, down });
    }

    fn state_of(&self, peer: &Peer) -> State {
        let furthest = peer.conns().filter_map(|id| self.connections.get(id)).map(Conn::state).max();
        furthest.unwrap_or_else(|| peer.state_without_connection(self.stopping, self.scheduler.now()))
    }
}
