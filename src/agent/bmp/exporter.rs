//! Produces the ordered BMP messages of one station from the speaker's events (RFC 7854).
//!
//! ```text
//!  pre-policy:   UPDATEs as received; pages of the Adj-RIB-In before policy
//!  post-policy:  routes named in UPDATEs --> query: result of import policy now --> announced or withdrawn
//!                pages of the Adj-RIB-In after policy; repeated when the policy changes
//!  Loc-RIB:      prefixes whose best path changed --> query: best path now --> announced or withdrawn
//!                pages of best paths; sent under a peer header that represents this host (loc_rib.rs)
//! ```
//!
//! For the post-policy view and the Loc-RIB, a station gets the current state of a route and not each of its
//! changes: a route that changes faster than it is queried is sent once. Answers share the queue with
//! messages, so that the last message about a route carries its state.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tortie_bgp::attr::Attributes;
use tortie_bgp::bmp::{Message, PeerDown, PeerHeader, PeerUp, Statistic, Statistics, Tlvs};
use tortie_bgp::wire::{Entry, Frame, MessageKind, Negotiated, Update, UpdateTemplate, write_end_of_rib};
use tortie_bgp::{
    Down, DownCode, Family, PathInfo, PeerId, PeerStatus, RouteInfo, RouteMatch, RouteQuery, RouteTable,
    State, TapEvent, TapItem, TapSession, Totals, Unusable,
};
use tortie_config::resource::BmpPolicy;
use tortie_net::Cidr;

use crate::agent::bmp::loc_rib::LocRibPeer;
use crate::speaker::{
    Identity, MonitorEvent, MonitorReceiver, MonitorSender, RouteOf, SpeakerHandle, ToSpeaker,
};

/// Table slots, or single routes, per query.
const SLOTS_PER_QUERY: u32 = 1024;
/// Maximum number of routes that wait for a query; beyond it the station is disconnected.
const PENDING_ROUTES_MAX: usize = 512 * 1024;

/// Error: the station reads more slowly than routes change.
#[derive(Debug)]
pub(in crate::agent) struct StationTooSlow;

/// A peer for which the station received a Peer Up.
struct MonitoredPeer {
    session: Arc<TapSession>,
    /// The last NOTIFICATION; true if this host sent it.
    notification: Option<(bool, Vec<u8>)>,
}

impl MonitoredPeer {
    fn header(&self, at: Instant, post_policy: bool) -> PeerHeader {
        PeerHeader { post_policy, ..header(&self.session, at) }
    }

    /// Returns the parameters with which UPDATEs about this peer's routes are encoded.
    fn monitoring_session(&self, post: bool) -> Negotiated {
        let agreed = self.session.negotiated;
        Negotiated {
            add_path_send: agreed.add_path_receive,
            // Any next hop of the peer or of import policy must be encodable, whatever the session
            // negotiated.
            ext_nexthop: true,
            ebgp: agreed.ebgp && !post,
            ..agreed
        }
    }
}

/// Position in a table that is still to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TableCursor {
    /// The peer of an Adj-RIB-In; `None` for the Loc-RIB.
    peer: Option<PeerId>,
    family: Family,
    from: u32,
    /// True for the view after import policy.
    post: bool,
    /// True if the table was sent before, so that routes which policy now rejects must be withdrawn.
    refresh: bool,
}

/// Query that the speaker has not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outstanding {
    Nothing,
    /// A page of the first of `tables`.
    Page,
    /// Single routes.
    Routes,
}

/// State of one station: the peers it knows, and the tables and routes still to send.
pub(in crate::agent) struct BmpExporter {
    pub(in crate::agent) speaker: Arc<SpeakerHandle>,
    sender: MonitorSender,
    policy: BmpPolicy,
    peers: HashMap<PeerId, MonitoredPeer>,
    /// The Loc-RIB instance peer, if the Loc-RIB is monitored.
    loc_rib: Option<LocRibPeer>,
    tables: VecDeque<TableCursor>,
    /// Routes to query: those that changed before policy, for the post-policy view, and those whose best path
    /// changed.
    changed: BTreeSet<RouteOf>,
    /// Post-policy End-of-RIBs, sent once `changed` is empty.
    pending_eors: Vec<(PeerId, Family)>,
    outstanding: Outstanding,
}

impl BmpExporter {
    pub(in crate::agent) fn new(
        speaker: Arc<SpeakerHandle>,
        sender: MonitorSender,
        policy: BmpPolicy,
    ) -> Self {
        Self {
            speaker,
            sender,
            policy,
            peers: HashMap::new(),
            loc_rib: None,
            tables: VecDeque::new(),
            changed: BTreeSet::new(),
            pending_eors: Vec::new(),
            outstanding: Outstanding::Nothing,
        }
    }

    pub(in crate::agent) fn on_monitor_event(
        &mut self,
        event: MonitorEvent,
        queue: &MonitorReceiver,
        out: &mut Vec<u8>,
    ) -> Result<(), StationTooSlow> {
        if queue.missed() > 0 {
            return Err(StationTooSlow);
        }
        match event {
            MonitorEvent::Sessions(sessions) => {
                for session in sessions {
                    for family in session.negotiated.families.iter() {
                        let peer = Some(session.peer);
                        let page = |post| TableCursor { peer, family, from: 0, post, refresh: false };
                        self.tables.extend(self.policy.pre().then(|| page(false)));
                        self.tables.extend(self.policy.post().then(|| page(true)));
                    }
                    self.peer_up(session, out);
                }
            }
            MonitorEvent::Tapped(tapped) => {
                if tapped.dropped > 0 {
                    return Err(StationTooSlow);
                }
                for (item, octets) in tapped.iter() {
                    self.on_message(item, octets, out);
                }
                if self.outstanding != Outstanding::Routes {
                    self.write_pending_end_of_ribs(out);
                }
            }
            MonitorEvent::Best(local, prefixes) if self.policy.loc() => {
                self.write_best_paths(local, &prefixes, out)
            }
            MonitorEvent::Best(..) => {}
            MonitorEvent::Routes(routes, next) => self.page(&routes, next, out),
            MonitorEvent::Imported(routes) => self.write_imported(&routes, out),
        }
        if self.changed.len() > PENDING_ROUTES_MAX { Err(StationTooSlow) } else { Ok(()) }
    }

    /// Sends the next query to the speaker, one at a time and tables first. The answer arrives over the
    /// queue.
    pub(in crate::agent) fn request_next(&mut self) {
        if self.outstanding != Outstanding::Nothing {
            return;
        }
        let sender = self.sender.clone();
        // If the speaker is busy, the next event queries it again.
        if let Some(page) = self.tables.front().copied() {
            let question = ToSpeaker::Query(Box::new(move |view| {
                let table = match page.peer {
                    Some(peer) if page.post => RouteTable::AdjInPost(peer),
                    Some(peer) => RouteTable::AdjIn(peer),
                    None => RouteTable::Loc,
                };
                let query = RouteQuery { table, matching: RouteMatch::All(page.family) };
                let (routes, next) = view.walk(query, page.from, SLOTS_PER_QUERY, usize::MAX);
                sender.send(MonitorEvent::Routes(routes, next));
            }));
            if self.speaker.send(question).is_ok() {
                self.outstanding = Outstanding::Page;
            }
        } else if !self.changed.is_empty() {
            let part: Vec<RouteOf> =
                std::iter::from_fn(|| self.changed.pop_first()).take(SLOTS_PER_QUERY as usize).collect();
            let requested = part.clone();
            let question = ToSpeaker::Query(Box::new(move |view| {
                let state = |(peer, prefix, id): RouteOf| {
                    let table = peer.map_or(RouteTable::Loc, RouteTable::AdjInPost);
                    let query = RouteQuery { table, matching: RouteMatch::Exact(prefix) };
                    let mut paths = view.routes(query, None, 1).into_iter().flat_map(|r| r.paths);
                    let path = paths.find(|p| match peer {
                        Some(_) => p.path_id.unwrap_or(0) == id && is_accepted(p),
                        None => p.best,
                    });
                    ((peer, prefix, id), path.map(|p| p.attributes))
                };
                sender.send(MonitorEvent::Imported(requested.into_iter().map(state).collect()));
            }));
            if self.speaker.send(question).is_ok() {
                self.outstanding = Outstanding::Routes;
            } else {
                self.changed.extend(part);
            }
        }
    }

    /// Handles a change of the Loc-RIB, or of this host's AS or router ID.
    fn write_best_paths(&mut self, local: Identity, prefixes: &[Cidr], out: &mut Vec<u8>) {
        if self.loc_rib.as_ref().is_none_or(|loc| loc.local != local) {
            if let Some(old) = self.loc_rib.take() {
                old.peer_down(out);
                self.forget(None);
            }
            let loc = LocRibPeer::new(local);
            loc.peer_up(out);
            self.loc_rib = Some(loc);
            let page = |family| TableCursor { peer: None, family, from: 0, post: false, refresh: false };
            self.tables.extend(Family::ALL.map(page));
        }
        self.changed.extend(prefixes.iter().map(|prefix| (None, *prefix, 0)));
    }

    /// Returns the per-peer header of routes and their encoding; `None` if the station does not know the
    /// peer.
    fn monitored(
        &self,
        peer: Option<PeerId>,
        post: bool,
        at: Option<Instant>,
    ) -> Option<(PeerHeader, Negotiated)> {
        Some(match peer {
            Some(peer) => {
                let monitored = self.peers.get(&peer)?;
                (
                    monitored.header(at.unwrap_or(monitored.session.up_at), post),
                    monitored.monitoring_session(post),
                )
            }
            None => {
                let loc = self.loc_rib.as_ref()?;
                (loc.header(at.unwrap_or_else(Instant::now)), loc.session)
            }
        })
    }

    fn peer_up(&mut self, session: Arc<TapSession>, out: &mut Vec<u8>) {
        let up = PeerUp {
            local: session.local.ip().to_canonical(),
            local_port: session.local.port(),
            remote_port: session.remote.port(),
            sent: &session.sent_open,
            received: &session.received_open,
            information: Tlvs::default(),
        };
        Message::PeerUp { peer: header(&session, session.up_at), up }.write(out);
        self.peers.insert(session.peer, MonitoredPeer { session, notification: None });
    }

    fn on_message(&mut self, item: &TapItem, octets: &[u8], out: &mut Vec<u8>) {
        match &item.event {
            TapEvent::Message { sent: false, kind: MessageKind::Update, .. } => {
                let Some(monitored) = self.peers.get(&item.peer) else { return };
                if self.policy.pre() {
                    let peer = monitored.header(item.at, false);
                    Message::RouteMonitoring { peer, update: octets }.write(out);
                }
                if self.policy.post() {
                    self.queue_changes(item.peer, octets);
                }
            }
            TapEvent::Message { sent, kind: MessageKind::Notification, .. } => {
                if let Some(monitored) = self.peers.get_mut(&item.peer) {
                    monitored.notification = Some((*sent, octets.to_vec()));
                }
            }
            TapEvent::Message { .. } => {}
            TapEvent::State { from, to, down, session } => {
                if *from == State::Established && *to != State::Established {
                    self.peer_down(item, down.as_ref(), out);
                }
                if let Some(session) = session {
                    self.peer_up(Arc::clone(session), out);
                }
            }
            TapEvent::Reimported(family) => {
                let peer = Some(item.peer);
                let page = TableCursor { peer, family: *family, from: 0, post: true, refresh: true };
                // A table whose first page is being read may have been read before the change.
                let queued = self.tables.iter().skip(usize::from(self.outstanding == Outstanding::Page));
                if self.policy.post()
                    && self.peers.contains_key(&item.peer)
                    && !queued.into_iter().any(|p| *p == page)
                {
                    self.tables.push_back(page);
                }
            }
        }
    }

    /// Queues the routes that an UPDATE names.
    fn queue_changes(&mut self, peer: PeerId, octets: &[u8]) {
        let Some(monitored) = self.peers.get(&peer) else { return };
        let Ok(Some(frame)) = Frame::next(octets, true) else { return };
        // A malformed UPDATE that ends the session is followed by a Peer Down.
        let Ok(update) = Update::decode(frame.body, &monitored.session.negotiated) else { return };
        self.pending_eors.extend(update.end_of_rib.map(|family| (peer, family)));
        for nlri in update.reach.iter().map(|r| &r.nlri).chain(&update.withdrawn) {
            let v4 = nlri.v4().map(|e| (IpAddr::from(e.prefix.0.to_be_bytes()), e.prefix.1, e.path_id));
            let v6 = nlri.v6().map(|e| (IpAddr::from(e.prefix.0.to_be_bytes()), e.prefix.1, e.path_id));
            let routes =
                v4.chain(v6).filter_map(|(addr, len, id)| Some((Some(peer), Cidr::new(addr, len).ok()?, id)));
            self.changed.extend(routes);
        }
    }

    fn peer_down(&mut self, item: &TapItem, down: Option<&Down>, out: &mut Vec<u8>) {
        let Some(monitored) = self.peers.remove(&item.peer) else { return };
        self.forget(Some(item.peer));
        self.pending_eors.retain(|(peer, _)| *peer != item.peer);
        let reason = reason(monitored.notification.as_ref(), down.map(|d| d.code));
        Message::PeerDown { peer: header(&monitored.session, item.at), reason }.write(out);
    }

    /// Removes the queued tables and routes of a peer.
    fn forget(&mut self, of: Option<PeerId>) {
        // The first table stays while the answer to its query is outstanding.
        let front = if self.outstanding == Outstanding::Page { self.tables.pop_front() } else { None };
        self.tables.retain(|page| page.peer != of);
        self.tables.extend(front);
        self.tables.rotate_right(usize::from(front.is_some()));
        self.changed.retain(|(peer, ..)| *peer != of);
    }

    fn page(&mut self, routes: &[RouteInfo], next: Option<u32>, out: &mut Vec<u8>) {
        self.outstanding = Outstanding::Nothing;
        let Some(page) = self.tables.pop_front() else { return };
        let Some((peer, session)) = self.monitored(page.peer, page.post, None) else { return };
        let mut updates = RouteMonitoring::new(page.family, session, peer);
        for route in routes {
            for path in &route.paths {
                let id = path.path_id.unwrap_or(0);
                let is_sent = match page.peer {
                    Some(_) => is_accepted(path) || !page.post && !path.stale,
                    None => path.best,
                };
                match is_sent {
                    true => updates.announced(&path.attributes, route.prefix, id),
                    false if page.refresh => updates.withdrawn.push((route.prefix, id)),
                    false => {}
                }
            }
        }
        updates.write(out);
        match next {
            Some(from) => self.tables.push_front(TableCursor { from, ..page }),
            None if page.refresh => {}
            None => end_of_rib(page.family, peer, out),
        }
        self.write_pending_end_of_ribs(out);
    }

    fn write_imported(&mut self, routes: &[(RouteOf, Option<Arc<Attributes>>)], out: &mut Vec<u8>) {
        self.outstanding = Outstanding::Nothing;
        let family_of = |prefix: &Cidr| Family::of(prefix.addr());
        // The routes are sorted by peer and prefix.
        for run in routes.chunk_by(|((a, p, _), _), ((b, q, _), _)| a == b && family_of(p) == family_of(q)) {
            let Some(((peer, prefix, _), _)) = run.first() else { continue };
            let Some((header, session)) = self.monitored(*peer, true, Some(Instant::now())) else { continue };
            let mut updates = RouteMonitoring::new(family_of(prefix), session, header);
            for ((_, prefix, id), attributes) in run {
                match attributes {
                    Some(attributes) => updates.announced(attributes, *prefix, *id),
                    None => updates.withdrawn.push((*prefix, *id)),
                }
            }
            updates.write(out);
        }
        self.write_pending_end_of_ribs(out);
    }

    /// Writes the End-of-RIBs whose routes have been sent.
    fn write_pending_end_of_ribs(&mut self, out: &mut Vec<u8>) {
        if !self.changed.is_empty() {
            return;
        }
        for (peer, family) in std::mem::take(&mut self.pending_eors) {
            if let Some(monitored) = self.peers.get(&peer) {
                end_of_rib(family, monitored.header(Instant::now(), true), out);
            }
        }
    }

    pub(in crate::agent) fn statistics(&self, peers: &[PeerStatus], totals: &Totals, out: &mut Vec<u8>) {
        peers.iter().for_each(|status| self.statistics_of(status, out));
        if let Some(loc) = &self.loc_rib {
            loc.statistics(peers, totals, out);
        }
    }

    fn statistics_of(&self, status: &PeerStatus, out: &mut Vec<u8>) {
        let Some(monitored) = self.peers.get(&status.id) else { return };
        let mut list = Vec::new();
        let sum = |of: fn(&tortie_bgp::FamilyStatus) -> u32| status.families.iter().map(of).sum::<u32>();
        // The statistic is a 32-bit counter that wraps, not the number of routes that are rejected now.
        let rejected = u32::try_from(status.rejected & u64::from(u32::MAX)).unwrap_or_default();
        Statistics::push(&mut list, Statistic::Rejected(rejected));
        Statistics::push(&mut list, Statistic::AdjIn(sum(|f| f.received).into()));
        Statistics::push(&mut list, Statistic::Loc(sum(|f| f.best).into()));
        for f in &status.families {
            let (afi, safi) = (f.family.afi(), f.family.safi());
            Statistics::push(&mut list, Statistic::AdjInFamily(afi, safi, f.received.into()));
        }
        if let Ok(statistics) = Statistics::new(&list) {
            Message::Statistics { peer: header(&monitored.session, Instant::now()), statistics }.write(out);
        }
    }
}

/// Returns the reason of a Peer Down: a NOTIFICATION sent or received, a local event, or a closed connection.
fn reason(notification: Option<&(bool, Vec<u8>)>, code: Option<DownCode>) -> PeerDown<'_> {
    match (notification, code) {
        (Some((true, octets)), _) => PeerDown::LocalNotification(octets),
        (Some((false, octets)), _) => PeerDown::RemoteNotification(octets),
        (None, Some(DownCode::Config)) => PeerDown::NotMonitored,
        // RFC 4271, section 8.1.2, event 2: ManualStop.
        (None, Some(DownCode::Admin)) => PeerDown::LocalEvent(2),
        // RFC 4271, section 8.1.4, event 18: TcpConnectionFails. This host closed the connection and could
        // not send a NOTIFICATION.
        (None, Some(DownCode::LinkDown)) => PeerDown::LocalEvent(18),
        (None, _) => PeerDown::RemoteClosed,
    }
}

/// Collects Route Monitoring messages of one peer and family.
struct RouteMonitoring<'a> {
    family: Family,
    session: Negotiated,
    peer: PeerHeader,
    announced: HashMap<&'a Attributes, Vec<(Cidr, u32)>>,
    withdrawn: Vec<(Cidr, u32)>,
}

impl<'a> RouteMonitoring<'a> {
    fn new(family: Family, session: Negotiated, peer: PeerHeader) -> Self {
        Self { family, session, peer, announced: HashMap::new(), withdrawn: Vec::new() }
    }

    fn announced(&mut self, attributes: &'a Arc<Attributes>, prefix: Cidr, id: u32) {
        self.announced.entry(&**attributes).or_default().push((prefix, id));
    }

    fn write(self, out: &mut Vec<u8>) {
        if !self.withdrawn.is_empty() {
            let template = UpdateTemplate::withdrawal(self.family, &self.session);
            monitor(&template, &self.withdrawn, self.peer, out);
        }
        for (attributes, routes) in self.announced {
            if let Ok(template) = UpdateTemplate::new(attributes, self.family, &self.session) {
                monitor(&template, &routes, self.peer, out);
            }
        }
    }
}

/// Writes Route Monitoring messages for routes that share all attributes.
fn monitor(template: &UpdateTemplate, routes: &[(Cidr, u32)], peer: PeerHeader, out: &mut Vec<u8>) {
    let (mut updates, mut ends) = (Vec::new(), Vec::new());
    match template.family() {
        Family::Ipv4Unicast => {
            let entries = routes.iter().filter_map(|(prefix, id)| match prefix.addr() {
                IpAddr::V4(a) => Some(Entry { prefix: (u32::from(a), prefix.len()), path_id: *id }),
                IpAddr::V6(_) => None,
            });
            template.write(&mut updates, entries, |end| ends.push(end));
        }
        Family::Ipv6Unicast => {
            let entries = routes.iter().filter_map(|(prefix, id)| match prefix.addr() {
                IpAddr::V6(a) => Some(Entry { prefix: (u128::from(a), prefix.len()), path_id: *id }),
                IpAddr::V4(_) => None,
            });
            template.write(&mut updates, entries, |end| ends.push(end));
        }
    }
    let mut start = 0;
    for end in ends {
        let update = updates.get(start..end).unwrap_or_default();
        Message::RouteMonitoring { peer, update }.write(out);
        start = end;
    }
}

fn end_of_rib(family: Family, peer: PeerHeader, out: &mut Vec<u8>) {
    let mut update = Vec::new();
    write_end_of_rib(family, &mut update);
    Message::RouteMonitoring { peer, update: &update }.write(out);
}

/// True if import policy accepted the route in this session. Stale routes, kept over a restart of the peer,
/// do not count.
fn is_accepted(path: &PathInfo) -> bool {
    !path.stale && !matches!(path.unusable, Some(Unusable::Filtered(_)))
}

/// Returns the time of a moment as seconds since 1970 and microseconds.
pub(in crate::agent) fn stamp(at: Instant) -> (u32, u32) {
    let ago = Instant::now().saturating_duration_since(at);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = since.saturating_sub(ago);
    (u32::try_from(since.as_secs()).unwrap_or(u32::MAX), since.subsec_micros())
}

fn header(session: &TapSession, at: Instant) -> PeerHeader {
    let (seconds, micros) = stamp(at);
    PeerHeader {
        kind: 0,
        filtered: false,
        post_policy: false,
        as2: !session.negotiated.as4,
        distinguisher: 0,
        address: session.remote.ip().to_canonical(),
        asn: session.asn,
        router_id: session.router_id.0.into(),
        seconds,
        micros,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_down_reason_says_which_side_ended_the_session() {
        let code = |code| reason(None, Some(code));
        assert_eq!(code(DownCode::TcpClosed), PeerDown::RemoteClosed);
        assert_eq!(code(DownCode::LinkDown), PeerDown::LocalEvent(18));
        assert_eq!(code(DownCode::Admin), PeerDown::LocalEvent(2));
        assert_eq!(code(DownCode::Config), PeerDown::NotMonitored);
        let sent = (true, vec![6, 4]);
        let both = reason(Some(&sent), Some(DownCode::Config));
        assert_eq!(both, PeerDown::LocalNotification(&[6, 4]), "what was said goes first");
    }
}
