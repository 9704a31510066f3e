//! Receive path: octets to messages, messages to FSM events and routes.

use std::net::IpAddr;
use std::time::Duration;

use tortie_net::ScopedAddr;

use super::Speaker;
use super::prefix_limits::{self, Exceeded};
use crate::api::{ConnId, Down, DownCode, Event, LastErrorKind, State};
use crate::ribs::Learned;
use crate::session::fsm::{self, Action};
use crate::session::last_error::PeerError;
use crate::session::timers::Timer;
use crate::types::Family;
use crate::wire::{ErrorCode, Frame, MessageKind, Notification, Open, RefreshKind, RouteRefresh, Update};

/// Maximum number of messages read from a connection per call. Short messages cost about as much as the
/// prefixes in [`OCTETS`].
const MESSAGES: usize = 512;
/// Maximum octets read from a connection per call, not counting the last message.
const OCTETS: usize = 64 * 1024;
/// Maximum octets read per call from connections with queued input.
const OCTETS_ALL: usize = 64 * 1024;

/// Time for which a peer is not dialled after it rejected the number of our prefixes: an operator needs at
/// least that long to correct the cause.
const PREFIX_LIMIT_HOLD: Duration = Duration::from_secs(60);

impl Speaker {
    /// Returns the number of octets that this connection accepts now. 0: do not read from the socket yet.
    #[must_use]
    pub fn read_room(&self, conn: ConnId) -> usize {
        self.connections.get(conn).map_or(0, |c| if c.queued { 0 } else { c.input.room() })
    }

    /// Processes received octets.
    pub(super) fn data(&mut self, id: ConnId, octets: &[u8]) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        let mut input = std::mem::take(&mut conn.input);
        if conn.queued || !input.as_slice().is_empty() {
            input.push(octets);
            conn.input = input;
            if !conn.queued {
                self.read_input(id);
            }
            return;
        }
        // Usually no input is queued, and the octets are parsed without a copy.
        let (read, more) = self.read(id, octets);
        self.connections.put_back(id, input, octets.get(read..).unwrap_or_default(), more);
    }

    /// Processes the queued input of a connection.
    fn read_input(&mut self, id: ConnId) -> usize {
        let Some(conn) = self.connections.get_mut(id) else { return 0 };
        let mut input = std::mem::take(&mut conn.input);
        let (read, more) = self.read(id, input.as_slice());
        input.consume(read);
        self.connections.put_back(id, input, &[], more);
        read
    }

    /// Processes connections with queued input, round-robin.
    pub(super) fn read_queued(&mut self) {
        let mut octets = 0;
        // Each connection at most once per call.
        for _ in 0..self.connections.readable() {
            if octets >= OCTETS_ALL {
                return;
            }
            let Some(id) = self.connections.next_readable() else { return };
            octets += self.read_input(id);
        }
    }

    /// Processes whole messages within the budget. Returns the number of octets read, and true if more whole
    /// messages may follow.
    fn read(&mut self, id: ConnId, octets: &[u8]) -> (usize, bool) {
        let mut at = 0;
        let mut learned = Learned::default();
        let mut more = true;
        for _ in 0..MESSAGES {
            if at >= OCTETS {
                break;
            }
            let Some(conn) = self.connections.get(id) else {
                more = false;
                break;
            };
            let number = conn.peer;
            match Frame::next(octets.get(at..).unwrap_or_default(), conn.is_extended()) {
                Ok(Some(frame)) => {
                    let before = self.peers.errors_noted();
                    let from = at;
                    at += frame.len;
                    let whole = octets.get(from..at).unwrap_or_default();
                    if self.tap.is_on()
                        && frame.kind != MessageKind::Keepalive
                        && let Some(peer) = self.peers.get(number)
                    {
                        self.tap.message(peer.id, frame.kind, whole, false, self.scheduler.now());
                    }
                    self.message(id, frame, &mut learned);
                    if self.peers.errors_noted() != before {
                        self.peers.note_offending_message(number, whole);
                    }
                }
                Ok(None) => {
                    more = false;
                    break;
                }
                Err(notification) => {
                    self.fail(id, fsm::Event::BgpHeaderErr, Some(notification));
                    self.peers.note_offending_message(number, octets.get(at..).unwrap_or_default());
                    more = false;
                    break;
                }
            }
        }
        self.report_learned(id, learned);
        (at, more)
    }

    fn report_learned(&mut self, id: ConnId, learned: Learned) {
        if learned == Learned::default() {
            return;
        }
        let Some(conn) = self.connections.get(id) else { return };
        let Some(peer) = self.peers.get_mut(conn.peer) else { return };
        let Learned { announced, withdrawn, rejected, malformed } = learned;
        peer.rejected += u64::from(rejected);
        self.events.push_back(Event::Learned { peer: peer.id, announced, withdrawn, rejected, malformed });
    }

    /// Converts a message to an FSM event and carries out the action.
    fn message(&mut self, id: ConnId, frame: Frame<'_>, learned: &mut Learned) {
        let Some(conn) = self.connections.get_mut(id) else { return };
        let state = conn.state();
        if !conn.hold.is_zero() && state != State::OpenSent {
            if let Some(deadline) = conn.hold_at.filter(|_| state == State::Established) {
                conn.margin.note(deadline, conn.hold, self.scheduler.now());
            }
            conn.hold_at = Some(self.scheduler.now() + conn.hold);
        }
        if let Some(peer) = self.peers.get_mut(conn.peer) {
            let count = &mut peer.received;
            match frame.kind {
                MessageKind::Open => count.open += 1,
                MessageKind::Update => count.update += 1,
                MessageKind::Notification => count.notification += 1,
                MessageKind::Keepalive => count.keepalive += 1,
                MessageKind::RouteRefresh => count.route_refresh += 1,
            }
        }
        let event = match frame.kind {
            MessageKind::Notification => return self.notified(id, &Notification::decode(frame.body)),
            MessageKind::Keepalive => return self.keepalive_received(id),
            // An OPEN is decoded only in OpenSent. It becomes event 19 only if it is acceptable.
            MessageKind::Open if state == State::OpenSent => match Open::decode(frame.body) {
                Ok(open) => {
                    conn.received_open_body = frame.body.into();
                    return self.open_received(id, open);
                }
                Err(notification) => return self.fail(id, fsm::Event::BgpOpenMsgErr, Some(notification)),
            },
            MessageKind::Open => fsm::Event::BgpOpen,
            MessageKind::Update => fsm::Event::UpdateMsg,
            MessageKind::RouteRefresh => fsm::Event::RouteRefreshMsg,
        };
        match conn.fsm.handle(event) {
            Action::ProcessUpdate => self.update(id, frame.body, learned),
            Action::ProcessRouteRefresh => self.refresh_message(id, frame.body),
            Action::SendNotification(code) => self.refuse_message(id, code, frame.kind),
            _ => {}
        }
    }

    /// Handles a NOTIFICATION (events 24 and 25).
    fn notified(&mut self, id: ConnId, notification: &Notification) {
        let (enclosed, _) = notification.unwrap_hard_reset();
        let mut text = format!("received NOTIFICATION {}", notification.code);
        if enclosed != notification.code {
            text.push_str(&format!(" ({enclosed})"));
        }
        if let Some(said) = notification.shutdown_text() {
            text.push_str(": ");
            text.push_str(&said);
        }
        let code = match enclosed {
            ErrorCode::COLLISION => DownCode::Collision,
            _ => DownCode::NotificationReceived,
        };
        let Some(conn) = self.connections.get_mut(id) else { return };
        if code != DownCode::Collision {
            let (number, now) = (conn.peer, self.scheduler.now());
            let is_up = conn.state() == State::Established;
            let offered = (!is_up).then(|| conn.sent_open.capabilities.clone());
            self.peers.note_error(number, PeerError::received(notification), now);
            if let Some(peer) = self.peers.get_mut(number) {
                if enclosed == ErrorCode::MAX_PREFIXES {
                    peer.dial_hold_until = Some(now + PREFIX_LIMIT_HOLD);
                }
                let strict = peer.config.role_strict;
                let fallback = &mut peer.capability_fallback;
                peer.retry = offered.is_some_and(|offered| fallback.learn(notification, &offered, strict));
            }
        }
        let event = match notification.code {
            ErrorCode::UNSUPPORTED_VERSION => fsm::Event::NotifMsgVerErr,
            _ => fsm::Event::NotifMsg,
        };
        if conn.fsm.handle(event) == Action::Close {
            let down = Down { code, text, notification: Some(enclosed.pair()), helper: false };
            self.end_by_notification(id, notification.code, &down);
        }
    }

    fn update(&mut self, id: ConnId, body: &[u8], learned: &mut Learned) {
        let Some(conn) = self.connections.get(id) else { return };
        let (number, Some(session), link) = (conn.peer, conn.negotiated, conn.link()) else { return };
        let update = match Update::decode(body, &session) {
            Ok(update) => update,
            Err(notification) => {
                self.ribs.count_reset();
                self.fail(id, fsm::Event::UpdateMsgErr, Some(notification));
                return;
            }
        };
        self.ribs.count_errors(&update);
        let error = if let Some(problem) = update.malformed {
            learned.malformed += 1;
            Some((LastErrorKind::Withdrawn, problem))
        } else {
            update.discarded.first().map(|problem| (LastErrorKind::Discarded, *problem))
        };
        if let Some((kind, problem)) = error {
            self.peers.note_error(number, PeerError::update(kind, problem), self.scheduler.now());
        }
        for nlri in &update.withdrawn {
            learned.withdrawn += self.ribs.withdraw(number, nlri);
        }
        for nlri in &update.withdrawn {
            self.check_received(id, number, nlri.family());
        }
        for mut reach in update.reach {
            // RFC 2545 3: on a session between link-local addresses, the link-local next hop applies.
            let attributes = &mut reach.attributes;
            let hop =
                attributes.link_local.filter(|_| link != 0).map_or(attributes.next_hop.addr(), IpAddr::V6);
            attributes.next_hop = ScopedAddr::new(hop, link);
            self.ribs.announce(number, &session, &reach.nlri, reach.attributes, learned);
            if !self.check_received(id, number, reach.nlri.family()) {
                return;
            }
        }
        if let Some(family) = update.end_of_rib
            && let Some(mut stale) = self.stale_routes(number)
        {
            stale.end_of_rib(family);
            self.deferral.schedule_check(&mut self.scheduler);
        }
    }

    /// Handles a ROUTE-REFRESH.
    fn refresh_message(&mut self, id: ConnId, body: &[u8]) {
        let Some(conn) = self.connections.get(id) else { return };
        let number = conn.peer;
        let RouteRefresh { family, kind } = match RouteRefresh::decode(body, conn.has_enhanced_refresh()) {
            Ok(Some(refresh)) => refresh,
            Ok(None) => return,
            Err(notification) => {
                self.fail(id, fsm::Event::RouteRefreshMsgErr, Some(notification));
                return;
            }
        };
        if !conn.carries(family) {
            return;
        }
        match (kind, self.stale_routes(number)) {
            (RefreshKind::Request, _) => self.refresh_requested(id, number, family),
            (RefreshKind::Begin, Some(mut stale)) => stale.refresh_begins(family),
            (RefreshKind::End, Some(mut stale)) => stale.refresh_ends(family),
            (RefreshKind::Begin | RefreshKind::End, None) => {}
        }
    }

    pub(super) fn hold_timer(&mut self, id: ConnId) {
        let Some(conn) = self.connections.get(id) else { return };
        match conn.hold_at {
            // Queued input is evidence that the peer is alive.
            Some(_) if conn.queued => {
                self.scheduler.set_after(Timer::Hold(id), conn.hold / 3);
            }
            Some(at) if at > self.scheduler.served() => self.scheduler.set(Timer::Hold(id), at),
            Some(_) => self.fail(id, fsm::Event::HoldTimerExpires, None),
            None => {}
        }
    }

    /// Enforces the limit of received prefixes, with a warning before. Returns false if the session was
    /// ended.
    fn check_received(&mut self, id: ConnId, number: u32, family: Family) -> bool {
        let Some(peer) = self.peers.get_mut(number) else { return false };
        if peer.config.max_prefixes.is_none() {
            return true;
        }
        let received = self.ribs.received_in_session(number, family);
        match prefix_limits::check_received(peer, received, family) {
            Ok(warning) => {
                self.events.extend(warning);
                true
            }
            Err(exceeded) => {
                self.refuse_prefixes(id, number, exceeded);
                false
            }
        }
    }

    /// Enforces the limit of sent prefixes. Returns false if the session was ended.
    pub(super) fn check_sent(&mut self, id: ConnId, number: u32, family: Family) -> bool {
        let Some(peer) = self.peers.get(number) else { return false };
        match prefix_limits::check_sent(number, peer, &self.ribs, family) {
            Ok(()) => true,
            Err(exceeded) => {
                self.refuse_prefixes(id, number, exceeded);
                false
            }
        }
    }

    /// Enforces changed limits on a running session.
    pub(super) fn check_limits(&mut self, number: u32) {
        let Some(id) = self.peers.get(number).and_then(|p| p.session) else { return };
        for family in Family::ALL {
            if !self.check_received(id, number, family) || !self.check_sent(id, number, family) {
                return;
            }
        }
    }

    /// Ends a session that exceeds a prefix limit (event 8).
    fn refuse_prefixes(&mut self, id: ConnId, number: u32, exceeded: Exceeded) {
        let until = self.scheduler.now() + exceeded.penalty;
        if let Some(peer) = self.peers.get_mut(number) {
            // Set before the session ends, because its end schedules the next attempt.
            peer.idle_hold_until = Some(until);
            if peer.range.is_some() {
                // If the dynamic peer were removed earlier, it could reconnect at once.
                self.scheduler.set(Timer::Restart(number), until);
            }
        }
        self.fail(id, fsm::Event::AutomaticStop, Some(exceeded.notification()));
    }
}
