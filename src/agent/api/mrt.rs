//! MRT over the API: dumps of the BGP table and streams of BGP messages.
//!
//! Encoding happens on the I/O threads that send the answer. The speaker only provides pages of routes and
//! batches of messages. A slow reader delays its table dump and loses messages, which a NULL record counts.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::stream::unfold;
use tortie_bgp::mrt::{
    Body, EntryList, Message, PeerEntry, PeerIndex, Record, Rib, Stamp, StateChange, encode_attributes,
    write_null,
};
use tortie_bgp::wire::MessageKind;
use tortie_bgp::{
    Family, PathSource, PeerId, PeerStatus, RouteInfo, RouteMatch, RouteQuery, RouteTable, State, TapEvent,
    TapItem, TapSession, Unusable,
};

use crate::agent::api::bgp;
use crate::agent::api::server::Server;
use crate::agent::handle::ask;
use crate::api::status::ApiError;
use crate::speaker::{MonitorEvent, MonitorReceiver, SpeakerHandle, ToSpeaker, monitor_queue};
use tortie_engine::routing::RoutingIntent;

/// Body of an answer that is produced while it is sent.
pub(in crate::agent) type OctetStream =
    std::pin::Pin<Box<dyn futures_util::Stream<Item = std::io::Result<Bytes>> + Send>>;

/// Table slots per query: less than a millisecond of the speaker's time.
const SLOTS_PER_QUERY: u32 = 1024;
/// Queue limit in octets for a slow reader of messages.
const QUEUE: usize = 16 * 1024 * 1024;

/// Returns the wall clock time of a monotonic moment.
fn stamp(at: Instant) -> Stamp {
    let ago = Instant::now().saturating_duration_since(at);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = since.saturating_sub(ago);
    Stamp { seconds: seconds(since), micros: Some(since.subsec_micros()) }
}

fn seconds(since: Duration) -> u32 {
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// State of a table dump in progress.
struct TableDump {
    speaker: Arc<SpeakerHandle>,
    numbers: HashMap<PeerId, u16>,
    seconds: u32,
    sequence: u32,
    /// Families still to dump; `from` is the next slot of the last one.
    left: Vec<Family>,
    from: u32,
    /// Encoded peer index table; `None` once it is sent.
    head: Option<Vec<u8>>,
}

/// Returns the approximate number of prefixes and the table as a TABLE_DUMP_V2 stream (RFC 6396).
pub(in crate::agent) async fn table(server: &Server) -> Result<(u64, OctetStream), ApiError> {
    let (speaker, intent) = (server.handle().speaker().thread()?, server.handle().intent()?);
    let (peers, totals) = ask(&*speaker, |view| (view.peers(), view.totals())).await?;
    let stamp = Stamp { micros: None, ..stamp(Instant::now()) };
    let (index, numbers) = peer_index(&peers, &intent);
    let collector = Ipv4Addr::from(intent.router_id);
    let index = PeerIndex { collector, view: server.node().as_bytes(), peers: index };
    let mut head = Vec::new();
    Record { stamp, body: Body::PeerIndex(index) }.write(&mut head);
    let left = Family::ALL.into_iter().rev().collect();
    let table =
        TableDump { speaker, numbers, seconds: stamp.seconds, sequence: 0, left, from: 0, head: Some(head) };
    let stream = unfold(table, |mut table| async {
        let chunk = table.next().await?;
        Some((chunk, table))
    });
    Ok((totals.prefixes.iter().sum(), Box::pin(stream)))
}

/// Builds the peer index table with the index of each peer. Index 0 is this host, for the routes that it
/// originates.
fn peer_index(peers: &[PeerStatus], intent: &RoutingIntent) -> (Vec<PeerEntry>, HashMap<PeerId, u16>) {
    let own = Ipv4Addr::from(intent.router_id);
    let mut index =
        vec![PeerEntry { router_id: own, address: Ipv4Addr::UNSPECIFIED.into(), asn: intent.asn }];
    let mut numbers = HashMap::new();
    for peer in peers {
        let Ok(number) = u16::try_from(index.len()) else { break };
        let router_id = peer.session.as_ref().map_or(Ipv4Addr::UNSPECIFIED, |s| s.router_id.0.into());
        index.push(PeerEntry { router_id, address: peer.remote.ip().to_canonical(), asn: peer.asn });
        numbers.insert(peer.id, number);
    }
    (index, numbers)
}

impl TableDump {
    async fn next(&mut self) -> Option<std::io::Result<Bytes>> {
        if let Some(head) = self.head.take() {
            return Some(Ok(head.into()));
        }
        let mut out = Vec::new();
        while out.len() < 64 * 1024 {
            let Some(family) = self.left.last().copied() else { break };
            let from = self.from;
            let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::All(family) };
            let page =
                ask(&*self.speaker, move |view| view.walk(query, from, SLOTS_PER_QUERY, usize::MAX)).await;
            let (routes, next) = match page {
                Ok(page) => page,
                // A failed stream shows the reader that the table is incomplete.
                Err(error) => return Some(Err(std::io::Error::other(error.text))),
            };
            for route in &routes {
                self.route(route, &mut out);
            }
            self.from = next.unwrap_or(0);
            if next.is_none() {
                self.left.pop();
            }
        }
        (!out.is_empty()).then(|| Ok(out.into()))
    }

    /// Writes one record per prefix, or two if only some of its paths carry path identifiers (RFC 8050).
    fn route(&mut self, route: &RouteInfo, out: &mut Vec<u8>) {
        let mut lists = [EntryList::new(false), EntryList::new(true)];
        let mut octets = Vec::new();
        for path in route.paths.iter().filter(|p| !matches!(p.unusable, Some(Unusable::Filtered(_)))) {
            let number = match &path.source {
                PathSource::Local { .. } => Some(0),
                PathSource::Peer { id, .. } => self.numbers.get(id).copied(),
            };
            octets.clear();
            let [plain, with_ids] = &mut lists;
            let list = if path.path_id.is_some() { with_ids } else { plain };
            if let Some(number) = number
                && encode_attributes(&path.attributes, &mut octets)
            {
                list.push(number, self.seconds, path.path_id.unwrap_or(0), &octets);
            }
        }
        for list in lists.iter().map(EntryList::entries).filter(|l| !l.is_empty()) {
            let rib = Rib { sequence: self.sequence, prefix: route.prefix, entries: list };
            let stamp = Stamp { seconds: self.seconds, micros: None };
            Record { stamp, body: Body::Rib(rib) }.write(out);
            self.sequence = self.sequence.wrapping_add(1);
        }
    }
}

/// Streams the messages of all peers, or of one, from now on as BGP4MP_ET records.
pub(in crate::agent) async fn updates(
    server: &Server,
    peer: Option<String>,
) -> Result<OctetStream, ApiError> {
    let intent = server.handle().sessions().await?;
    let only = peer.map(|name| bgp::session_named(&intent, &name).cloned()).transpose()?;
    let speaker = server.handle().speaker().thread()?;
    let (sender, receiver) = monitor_queue(QUEUE);
    speaker
        .send(ToSpeaker::Monitor(sender))
        .map_err(|e| ApiError { code: "busy".to_owned(), text: e.to_string() })?;
    let recorder = UpdateDump { only, sessions: HashMap::new() };
    let stream = unfold((receiver, recorder), |(mut receiver, mut recorder)| async {
        loop {
            let out = recorder.record(receiver.next().await?, &receiver);
            if !out.is_empty() {
                return Some((Ok(Bytes::from(out)), (receiver, recorder)));
            }
        }
    });
    Ok(Box::pin(stream))
}

/// Converts monitored events to MRT records.
struct UpdateDump {
    /// Session name of the only peer to record; `None` records all.
    only: Option<String>,
    sessions: HashMap<PeerId, Arc<TapSession>>,
}

impl UpdateDump {
    fn record(&mut self, event: MonitorEvent, receiver: &MonitorReceiver) -> Vec<u8> {
        let mut out = Vec::new();
        match event {
            MonitorEvent::Sessions(sessions) => {
                sessions.into_iter().for_each(|s| self.add(s));
                // The first octets confirm to the reader that the recording runs.
                write_null(&mut out, stamp(Instant::now()).seconds, &0_u64.to_be_bytes());
            }
            MonitorEvent::Tapped(tapped) => {
                for (item, octets) in tapped.iter() {
                    self.item(item, octets, &mut out);
                }
                let lost = tapped.dropped + receiver.missed() as u64;
                if lost > 0 {
                    write_null(&mut out, stamp(Instant::now()).seconds, &lost.to_be_bytes());
                }
            }
            MonitorEvent::Best(..) | MonitorEvent::Routes(..) | MonitorEvent::Imported(_) => {}
        }
        out
    }

    fn add(&mut self, session: Arc<TapSession>) {
        if self.only.as_deref().is_none_or(|only| *session.name == *only) {
            self.sessions.insert(session.peer, session);
        }
    }

    fn item(&mut self, item: &TapItem, octets: &[u8], out: &mut Vec<u8>) {
        match &item.event {
            TapEvent::Message { sent, kind, .. } => {
                if let Some(session) = self.sessions.get(&item.peer) {
                    message(session, *sent, *kind, item.at, octets, out);
                }
            }
            TapEvent::Reimported(_) => {}
            TapEvent::State { from, to, session, .. } => {
                if let Some(session) = session {
                    self.add(Arc::clone(session));
                }
                let Some(tapped) = self.sessions.get(&item.peer).cloned() else { return };
                state_change(&tapped, *from, *to, item.at, out);
                if session.is_some() {
                    // The OPEN messages carry the capabilities that a reader needs to decode later messages.
                    message(&tapped, true, MessageKind::Open, item.at, &tapped.sent_open, out);
                    message(&tapped, false, MessageKind::Open, item.at, &tapped.received_open, out);
                } else if *from == State::Established {
                    self.sessions.remove(&item.peer);
                }
            }
        }
    }
}

fn message(
    session: &TapSession,
    sent: bool,
    kind: MessageKind,
    at: Instant,
    octets: &[u8],
    out: &mut Vec<u8>,
) {
    let agreed = &session.negotiated;
    let families = if sent { agreed.add_path_send } else { agreed.add_path_receive };
    let message = Message {
        peer_as: session.asn,
        local_as: session.local_asn,
        interface: 0,
        peer: session.remote.ip().to_canonical(),
        local: session.local.ip().to_canonical(),
        as4: agreed.as4,
        sent,
        add_path: kind == MessageKind::Update && families.contains(family(octets)),
        octets,
    };
    Record { stamp: stamp(at), body: Body::Message(message) }.write(out);
}

/// Returns the family of an UPDATE: IPv4 unless it contains only multiprotocol attributes for IPv6.
fn family(octets: &[u8]) -> Family {
    let number = |at: usize| {
        octets.get(at..).and_then(<[u8]>::first_chunk).map(|n| usize::from(u16::from_be_bytes(*n)))
    };
    let (Some(withdrawn), head) = (number(19), 21) else { return Family::Ipv4Unicast };
    let Some(attributes) = number(head + withdrawn) else { return Family::Ipv4Unicast };
    let classic = withdrawn > 0 || octets.len() > head + withdrawn + 2 + attributes;
    if classic || attributes == 0 {
        return Family::Ipv4Unicast;
    }
    let mut rest = octets.get(head + withdrawn + 2..).unwrap_or_default();
    while let [flags, code, tail @ ..] = rest {
        let (len, value) = match tail {
            [high, low, value @ ..] if flags & 0x10 != 0 => {
                (usize::from(u16::from_be_bytes([*high, *low])), value)
            }
            [len, value @ ..] if flags & 0x10 == 0 => (usize::from(*len), value),
            _ => break,
        };
        if matches!(code, 14 | 15) {
            return if value.first_chunk() == Some(&[0, 2]) {
                Family::Ipv6Unicast
            } else {
                Family::Ipv4Unicast
            };
        }
        rest = value.get(len..).unwrap_or_default();
    }
    Family::Ipv4Unicast
}

fn state_change(session: &TapSession, from: State, to: State, at: Instant, out: &mut Vec<u8>) {
    let change = StateChange {
        peer_as: session.asn,
        local_as: session.local_asn,
        interface: 0,
        peer: session.remote.ip().to_canonical(),
        local: session.local.ip().to_canonical(),
        as4: true,
        from: StateChange::number(from),
        to: StateChange::number(to),
    };
    Record { stamp: stamp(at), body: Body::StateChange(change) }.write(out);
}
