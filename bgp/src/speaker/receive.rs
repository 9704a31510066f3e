//! ByteReader to messages to routes.

use std::net::IpAddr;

use tortie_net::link_local;

use super::Speaker;
use super::sessions::pair;
use crate::api::LastErrorKind;
use crate::api::{ConnId, Down, DownCode, Event, State};
use crate::attr::Attributes;
use crate::rib::Shared;
use crate::rib::entry::Key;
use crate::rib::import::{ACCEPTED, ImportEvaluator, ImportOutcome};
use crate::rib::table::{AHEAD, Announced};
use crate::ribs::family::FamilyRib;
use crate::role;
use crate::session::connection::Input;
use crate::session::last_error::PeerError;
use crate::types::Family;
use crate::wire::{ErrorCode, Frame, MessageKind, Negotiated, Nlri, Notification, Open, Update};

/// Messages of a connection that one call reads: short ones cost about as much as the prefixes of [`OCTETS`].
const MESSAGES: usize = 512;
/// ByteReader of a connection that one call reads, the last message apart.
const OCTETS: usize = 64 * 1024;
/// ByteReader that one call reads from connections that waited.
const OCTETS_ALL: usize = 64 * 1024;

/// How long a peer that found our prefixes too many is not dialled: no shorter than what it takes people to mend it.
const UNWANTED: std::time::Duration = std::time::Duration::from_secs(60);

/// What a batch of UPDATEs did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    announced: u32,
    withdrawn: u32,
    rejected: u32,
    malformed: u32,
}

impl Speaker {
    /// ByteReader came in.
    pub(super) fn data(&mut self, id: ConnId, octets: &[u8]) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let mut input = std::mem::take(&mut conn.input);
        if conn.queued || !input.as_slice().is_empty() {
            input.push(octets);
            conn.input = input;
            if !conn.queued {
                self.read_input(id);
            }
            return;
        }
        // Nearly always nothing waits, and the octets need not be copied.
        let (read, more) = self.read(id, octets);
        self.put_back(id, input, octets.get(read..).unwrap_or_default(), more);
    }

    fn put_back(&mut self, id: ConnId, mut input: Input, rest: &[u8], more: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !rest.is_empty() {
            input.push(rest);
        }
        conn.input = input;
        if more && !conn.queued {
            conn.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Reads what waits in a connection.
    fn read_input(&mut self, id: ConnId) -> usize {
        let Some(conn) = self.conns.get_mut(&id) else { return 0 };
        let mut input = std::mem::take(&mut conn.input);
        let (read, more) = self.read(id, input.as_slice());
        input.consume(read);
        self.put_back(id, input, &[], more);
        read
    }

    /// Serves connections whose input waits, in turn.
    pub(super) fn read_queued(&mut self) {
        let mut octets = 0;
        // Each at most once in a call.
        for _ in 0..self.ready.len() {
            if octets >= OCTETS_ALL {
                return;
            }
            let Some(id) = self.ready.pop_front() else { return };
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.queued = false;
                octets += self.read_input(id);
            }
        }
    }

    /// Handles whole messages within the budget; returns the octets read, and whether more whole ones may follow.
    fn read(&mut self, id: ConnId, octets: &[u8]) -> (usize, bool) {
        let mut at = 0;
        let mut tally = Tally::default();
        let mut more = true;
        for _ in 0..MESSAGES {
            if at >= OCTETS {
                break;
            }
            let Some(conn) = self.conns.get(&id) else {
                more = false;
                break;
            };
            match Frame::next(octets.get(at..).unwrap_or_default(), conn.is_extended()) {
                Ok(Some(frame)) => {
                    let (number, before) = (conn.peer, self.errors_noted);
                    let from = at;
                    let whole = octets.get(at..at + frame.len).unwrap_or_default();
                    self.tap_received(id, frame.kind, whole);
                    at += frame.len;
                    self.message(id, frame, &mut tally);
                    if self.errors_noted != before {
                        self.note_message(number, octets.get(from..at).unwrap_or_default());
                    }
                }
                Ok(None) => {
                    more = false;
                    break;
                }
                Err(notification) => {
                    let number = conn.peer;
                    self.refuse(id, notification);
                    self.note_message(number, octets.get(at..).unwrap_or_default());
                    more = false;
                    break;
                }
            }
        }
        self.report_learned(id, tally);
        (at, more)
    }

    /// What the error that was just noted is about.
    fn note_message(&mut self, number: u32, octets: &[u8]) {
        if let Some((error, _)) = self.peers.get_mut(&number).and_then(|p| p.last_error.as_mut())
            && error.kind != LastErrorKind::Received
        {
            error.set_message(octets);
        }
    }

    fn report_learned(&mut self, id: ConnId, tally: Tally) {
        if tally == Tally::default() {
            return;
        }
        let Some(peer) = self.conns.get(&id).and_then(|c| self.peers.get_mut(&c.peer)) else { return };
        peer.rejected += u64::from(tally.rejected);
        self.events.push_back(Event::Learned {
            peer: peer.id,
            announced: tally.announced,
            withdrawn: tally.withdrawn,
            rejected: tally.rejected,
            malformed: tally.malformed,
        });
    }

    fn message(&mut self, id: ConnId, frame: Frame<'_>, tally: &mut Tally) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let state = conn.state;
        if !conn.hold.is_zero() && state != State::OpenSent {
            if let Some(deadline) = conn.hold_at.filter(|_| state == State::Established) {
                conn.margin.note(deadline, conn.hold, self.now);
            }
            conn.hold_at = Some(self.now + conn.hold);
        }
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            let count = &mut peer.received;
            match frame.kind {
                MessageKind::Open => count.open += 1,
                MessageKind::Update => count.update += 1,
                MessageKind::Notification => count.notification += 1,
                MessageKind::Keepalive => count.keepalive += 1,
                MessageKind::RouteRefresh => count.route_refresh += 1,
            }
        }
        match (state, frame.kind) {
            (_, MessageKind::Notification) => self.notified(id, &Notification::decode(frame.body)),
            (State::OpenSent, MessageKind::Open) => match Open::decode(frame.body) {
                Ok(open) => {
                    conn.received_open_body = frame.body.into();
                    self.opened(id, open);
                }
                Err(notification) => self.refuse(id, notification),
            },
            (State::OpenConfirm, MessageKind::Keepalive) => self.confirmed(id),
            (State::Established, MessageKind::Keepalive) => {}
            (State::Established, MessageKind::Update) => self.update(id, frame.body, tally),
            (State::Established, MessageKind::RouteRefresh) => self.refresh_message(id, frame.body),
            // RFC 6608: which state it was, and what came.
            (state, kind) => {
                let code = match state {
                    State::OpenSent => ErrorCode::FSM_OPEN_SENT,
                    State::OpenConfirm => ErrorCode::FSM_OPEN_CONFIRM,
                    _ => ErrorCode::FSM_ESTABLISHED,
                };
                self.refuse(id, Notification::with_data(code, &[kind as u8]));
            }
        }
    }

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
        if let Some(conn) = self.conns.get(&id)
            && code != DownCode::Collision
        {
            let number = conn.peer;
            let offered = (conn.state < State::Established).then(|| conn.ours.capabilities.clone());
            self.note_error(number, PeerError::received(notification));
            if let Some(peer) = self.peers.get_mut(&number) {
                if enclosed == ErrorCode::MAX_PREFIXES {
                    peer.unwanted_until = Some(self.now + UNWANTED);
                }
                let strict = peer.config.role_strict;
                peer.retry = offered
                    .is_some_and(|offered| peer.capability_fallback.learn(notification, &offered, strict));
            }
        }
        let down = Down { code, text, notification: Some(pair(enclosed)), helper: false };
        self.end_by_notification(id, notification.code, &down);
    }

    fn update(&mut self, id: ConnId, body: &[u8], tally: &mut Tally) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (number, Some(session), link) = (conn.peer, conn.negotiated, conn.link()) else { return };
        let update = match Update::decode(body, &session) {
            Ok(update) => update,
            Err(notification) => {
                let [.., resets] = &mut self.update_errors;
                *resets += 1;
                self.refuse(id, notification);
                return;
            }
        };
        let [withdraws, discards, _] = &mut self.update_errors;
        *discards += update.discarded.len() as u64;
        if let Some(problem) = update.malformed {
            tally.malformed += 1;
            *withdraws += 1;
            self.note_error(number, PeerError::update(LastErrorKind::Withdrawn, problem));
        } else if let Some(problem) = update.discarded.first() {
            self.note_error(number, PeerError::update(LastErrorKind::Discarded, *problem));
        }
        for nlri in &update.withdrawn {
            tally.withdrawn += match nlri.family() {
                Family::Ipv4Unicast => withdraw(&mut self.v4, &mut self.shared, number, nlri),
                Family::Ipv6Unicast => withdraw(&mut self.v6, &mut self.shared, number, nlri),
            };
        }
        for nlri in &update.withdrawn {
            self.keeps_limit(id, number, nlri.family());
        }
        for mut reach in update.reach {
            // RFC 2545 3: on a session over a link the address on that link is the one to use.
            let attributes = &mut reach.attributes;
            let hop = attributes.link_local.filter(|_| link != 0).map_or(attributes.next_hop, IpAddr::V6);
            attributes.next_hop = link_local::on(hop, link);
            self.announce(number, &session, &reach.nlri, reach.attributes, tally);
            if !self.keeps_limit(id, number, reach.nlri.family()) {
                return;
            }
        }
        if let Some(family) = update.end_of_rib {
            self.end_of_rib(number, family);
        }
    }

    fn announce(
        &mut self,
        number: u32,
        session: &Negotiated,
        nlri: &Nlri<'_>,
        mut attributes: Attributes,
        tally: &mut Tally,
    ) {
        if session.ebgp {
            attributes.local_pref = None;
            attributes.drop_validation_state();
            if let Some(from) = self.shared.sources.get(number) {
                role::mark_received(from.role(), from.asn, &mut attributes);
            }
        }
        let attr = self.shared.attrs.intern(attributes, false, &mut self.shared.next_hops);
        let shared = &mut self.shared;
        match nlri.family() {
            Family::Ipv4Unicast => announce(&mut self.v4, shared, number, nlri, attr, tally),
            Family::Ipv6Unicast => announce(&mut self.v6, shared, number, nlri, attr, tally),
        }
        self.shared.attrs.release(attr, &mut self.shared.next_hops);
    }
}

fn withdraw<A: Key>(rib: &mut FamilyRib<A>, shared: &mut Shared, number: u32, nlri: &Nlri<'_>) -> u32 {
    let mut count = 0;
    let mut ahead = nlri.of::<A>();
    for (n, entry) in nlri.of::<A>().enumerate() {
        if n % AHEAD == 0 {
            rib.table.prefetch(ahead.by_ref().take(AHEAD).map(|e| e.prefix));
        }
        count += u32::from(rib.table.withdraw(shared, (number, entry.path_id), entry.prefix));
    }
    shared.changes_of(A::FAMILY).withdrawn += u64::from(count);
    count
}

fn announce<A: Key>(
    rib: &mut FamilyRib<A>,
    shared: &mut Shared,
    number: u32,
    nlri: &Nlri<'_>,
    attr: u32,
    tally: &mut Tally,
) {
    let Some(mut judge) = ImportEvaluator::new(shared, number, attr, false) else { return };
    let mut ahead = nlri.of::<A>();
    for (n, entry) in nlri.of::<A>().enumerate() {
        if n % AHEAD == 0 {
            rib.table.prefetch(ahead.by_ref().take(AHEAD).map(|e| e.prefix));
        }
        let ImportOutcome { attr, reason } = judge.judge(shared, entry.prefix);
        tally.rejected += u32::from(reason != ACCEPTED);
        match rib.table.announce(shared, (number, entry.path_id), entry.prefix, attr, reason) {
            Announced::New => {
                shared.changes_of(A::FAMILY).announced += 1;
                tally.announced += 1;
            }
            Announced::Replaced => {
                shared.changes_of(A::FAMILY).replaced += 1;
                tally.announced += 1;
            }
            Announced::Repeated => shared.changes_of(A::FAMILY).repeated += 1,
            Announced::Refused => {}
            Announced::TooMany => {
                shared.reasons.count("too_many_paths");
                tally.rejected += 1;
            }
        }
    }
    judge.finish(shared);
}
