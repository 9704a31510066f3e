//! What a BMP station is told, in order: from what the speaker says to the octets of messages (RFC 7854).
//!
//! ```text
//!  pre-policy:   UPDATEs as they came; pages of the Adj-RIB-In as received
//!  post-policy:  UPDATEs name routes --> the speaker says what import policy made of them, now --> announced or withdrawn
//!                pages of the Adj-RIB-In after policy; again, when policy was asked again
//!  Loc-RIB:      prefixes whose best path changed --> the speaker says which it is now --> announced or withdrawn
//!                pages of the table, best paths only; all as if a peer sent it that is we (locrib.rs)
//! ```
//!
//! What is told after policy and of the Loc-RIB is the state of a route and not its story: routes that change faster than they are asked for are
//! told once. Answers come over the same queue as messages, so that the last thing told of a route is how it is.

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

use crate::agent::bmp::loc_rib::LocRib;
use crate::speaker::{
    Identity, MonitorEvent, MonitorReceiver, MonitorSender, RouteOf, SpeakerHandle, ToSpeaker,
};

/// Places of the table, or single routes, that one question looks at.
const SLOTS: u32 = 1024;
/// Routes that wait to be asked for; more, and the station is disconnected.
const WAITING: usize = 512 * 1024;

/// The station hears less than there is.
#[derive(Debug)]
pub(in crate::agent) struct Lagging;

/// A peer that the station knows as up.
struct Known {
    session: Arc<TapSession>,
    /// The last NOTIFICATION, and whether we sent it.
    notification: Option<(bool, Vec<u8>)>,
}

impl Known {
    fn header(&self, at: Instant, post_policy: bool) -> PeerHeader {
        PeerHeader { post_policy, ..header(&self.session, at) }
    }

    /// As what routes of this peer are told.
    fn told(&self, post: bool) -> Negotiated {
        let agreed = self.session.negotiated;
        Negotiated {
            add_path_send: agreed.add_path_receive,
            // What the peer sent with whatever next hop is told with it, and what policy decided, too.
            ext_nexthop: true,
            ebgp: agreed.ebgp && !post,
            ..agreed
        }
    }
}

/// A table that is still to be told, from this place on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    /// Whose; `None`: the Loc-RIB.
    peer: Option<PeerId>,
    family: Family,
    from: u32,
    /// After import policy.
    post: bool,
    /// It was told before: what policy refuses now has to be withdrawn.
    again: bool,
}

/// What the speaker was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// The first of `tables`.
    Page,
    /// Single routes.
    Routes,
}

/// What the station has been told, and is to be told.
pub(in crate::agent) struct Teller {
    pub(in crate::agent) speaker: Arc<SpeakerHandle>,
    sender: MonitorSender,
    policy: BmpPolicy,
    peers: HashMap<PeerId, Known>,
    /// Under which the Loc-RIB is told, if it is.
    loc: Option<LocRib>,
    tables: VecDeque<Page>,
    /// Routes that changed before policy and are to be told after it, and those that changed in the Loc-RIB.
    changed: BTreeSet<RouteOf>,
    /// End-of-RIBs to be told after policy, when nothing is `changed` any more.
    ends: Vec<(PeerId, Family)>,
    asked: Asked,
}

impl Teller {
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
            loc: None,
            tables: VecDeque::new(),
            changed: BTreeSet::new(),
            ends: Vec::new(),
            asked: Asked::Nothing,
        }
    }

    pub(in crate::agent) fn hear(
        &mut self,
        heard: MonitorEvent,
        queue: &MonitorReceiver,
        out: &mut Vec<u8>,
    ) -> Result<(), Lagging> {
        if queue.missed() > 0 {
            return Err(Lagging);
        }
        match heard {
            MonitorEvent::Sessions(sessions) => {
                for session in sessions {
                    for family in session.negotiated.families.iter() {
                        let peer = Some(session.peer);
                        let page = |post| Page { peer, family, from: 0, post, again: false };
                        self.tables.extend(self.policy.pre().then(|| page(false)));
                        self.tables.extend(self.policy.post().then(|| page(true)));
                    }
                    self.up(session, out);
                }
            }
            MonitorEvent::Tapped(tapped) => {
                if tapped.dropped > 0 {
                    return Err(Lagging);
                }
                for (item, octets) in tapped.iter() {
                    self.item(item, octets, out);
                }
                if self.asked != Asked::Routes {
                    self.end(out);
                }
            }
            MonitorEvent::Best(us, prefixes) if self.policy.loc() => self.best(us, &prefixes, out),
            MonitorEvent::Best(..) => {}
            MonitorEvent::Routes(routes, next) => self.page(&routes, next, out),
            MonitorEvent::Imported(routes) => self.imported(&routes, out),
        }
        if self.changed.len() > WAITING { Err(Lagging) } else { Ok(()) }
    }

    /// Asks for the next thing, one at a time: tables first. It comes over the queue.
    pub(in crate::agent) fn ask(&mut self) {
        if self.asked != Asked::Nothing {
            return;
        }
        let sender = self.sender.clone();
        // A busy speaker is asked again with the next thing that is heard.
        if let Some(page) = self.tables.front().copied() {
            let question = ToSpeaker::Query(Box::new(move |view| {
                let table = match page.peer {
                    Some(peer) if page.post => RouteTable::AdjInPost(peer),
                    Some(peer) => RouteTable::AdjIn(peer),
                    None => RouteTable::Loc,
                };
                let query = RouteQuery { table, matching: RouteMatch::All(page.family) };
                let (routes, next) = view.walk(query, page.from, SLOTS, usize::MAX);
                sender.send(MonitorEvent::Routes(routes, next));
            }));
            if self.speaker.send(question).is_ok() {
                self.asked = Asked::Page;
            }
        } else if !self.changed.is_empty() {
            let part: Vec<RouteOf> =
                std::iter::from_fn(|| self.changed.pop_first()).take(SLOTS as usize).collect();
            let asked = part.clone();
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
                sender.send(MonitorEvent::Imported(asked.into_iter().map(state).collect()));
            }));
            if self.speaker.send(question).is_ok() {
                self.asked = Asked::Routes;
            } else {
                self.changed.extend(part);
            }
        }
    }

    /// The Loc-RIB changed here, or is told under another name from now on.
    fn best(&mut self, us: Identity, prefixes: &[Cidr], out: &mut Vec<u8>) {
        if self.loc.as_ref().is_none_or(|loc| loc.us != us) {
            if let Some(old) = self.loc.take() {
                old.down(out);
                self.forget(None);
            }
            let loc = LocRib::new(us);
            loc.up(out);
            self.loc = Some(loc);
            let page = |family| Page { peer: None, family, from: 0, post: false, again: false };
            self.tables.extend(Family::ALL.map(page));
        }
        self.changed.extend(prefixes.iter().map(|prefix| (None, *prefix, 0)));
    }

    /// Whose routes they are, and as what they are told; `None`: the station does not know it.
    fn told(
        &self,
        peer: Option<PeerId>,
        post: bool,
        at: Option<Instant>,
    ) -> Option<(PeerHeader, Negotiated)> {
        Some(match peer {
            Some(peer) => {
                let known = self.peers.get(&peer)?;
                (known.header(at.unwrap_or(known.session.up_at), post), known.told(post))
            }
            None => {
                let loc = self.loc.as_ref()?;
                (loc.header(at.unwrap_or_else(Instant::now)), loc.session)
            }
        })
    }

    fn up(&mut self, session: Arc<TapSession>, out: &mut Vec<u8>) {
        let up = PeerUp {
            local: session.local.ip().to_canonical(),
            local_port: session.local.port(),
            remote_port: session.remote.port(),
            sent: &session.sent_open,
            received: &session.received_open,
            information: Tlvs::default(),
        };
        Message::PeerUp { peer: header(&session, session.up_at), up }.write(out);
        self.peers.insert(session.peer, Known { session, notification: None });
    }

    fn item(&mut self, item: &TapItem, octets: &[u8], out: &mut Vec<u8>) {
        match &item.event {
            TapEvent::Message { sent: false, kind: MessageKind::Update, .. } => {
                let Some(known) = self.peers.get(&item.peer) else { return };
                if self.policy.pre() {
                    let peer = known.header(item.at, false);
                    Message::RouteMonitoring { peer, update: octets }.write(out);
                }
                if self.policy.post() {
                    self.changes(item.peer, octets);
                }
            }
            TapEvent::Message { sent, kind: MessageKind::Notification, .. } => {
                if let Some(known) = self.peers.get_mut(&item.peer) {
                    known.notification = Some((*sent, octets.to_vec()));
                }
            }
            TapEvent::Message { .. } => {}
            TapEvent::State { from, to, down, session } => {
                if *from == State::Established && *to != State::Established {
                    self.down(item, down.as_ref(), out);
                }
                if let Some(session) = session {
                    self.up(Arc::clone(session), out);
                }
            }
            TapEvent::Reimported(family) => {
                let peer = Some(item.peer);
                let page = Page { peer, family: *family, from: 0, post: true, again: true };
                // One whose first page is under way may have looked too early.
                let queued = self.tables.iter().skip(usize::from(self.asked == Asked::Page));
                if self.policy.post()
                    && self.peers.contains_key(&item.peer)
                    && !queued.into_iter().any(|p| *p == page)
                {
                    self.tables.push_back(page);
                }
            }
        }
    }

    /// The routes that an UPDATE names.
    fn changes(&mut self, peer: PeerId, octets: &[u8]) {
        let Some(known) = self.peers.get(&peer) else { return };
        let Ok(Some(frame)) = Frame::next(octets, true) else { return };
        // One that ends the session is followed by its Peer Down.
        let Ok(update) = Update::decode(frame.body, &known.session.negotiated) else { return };
        self.ends.extend(update.end_of_rib.map(|family| (peer, family)));
        for nlri in update.reach.iter().map(|r| &r.nlri).chain(&update.withdrawn) {
            let v4 = nlri.v4().map(|e| (IpAddr::from(e.prefix.0.to_be_bytes()), e.prefix.1, e.path_id));
            let v6 = nlri.v6().map(|e| (IpAddr::from(e.prefix.0.to_be_bytes()), e.prefix.1, e.path_id));
            let routes =
                v4.chain(v6).filter_map(|(addr, len, id)| Some((Some(peer), Cidr::new(addr, len).ok()?, id)));
            self.changed.extend(routes);
        }
    }

    fn down(&mut self, item: &TapItem, down: Option<&Down>, out: &mut Vec<u8>) {
        let Some(known) = self.peers.remove(&item.peer) else { return };
        self.forget(Some(item.peer));
        self.ends.retain(|(peer, _)| *peer != item.peer);
        let reason = reason(known.notification.as_ref(), down.map(|d| d.code));
        Message::PeerDown { peer: header(&known.session, item.at), reason }.write(out);
    }

    /// Nothing is to be told of its routes any more.
    fn forget(&mut self, of: Option<PeerId>) {
        // The first stays while its page is under way.
        let front = if self.asked == Asked::Page { self.tables.pop_front() } else { None };
        self.tables.retain(|page| page.peer != of);
        self.tables.extend(front);
        self.tables.rotate_right(usize::from(front.is_some()));
        self.changed.retain(|(peer, ..)| *peer != of);
    }

    fn page(&mut self, routes: &[RouteInfo], next: Option<u32>, out: &mut Vec<u8>) {
        self.asked = Asked::Nothing;
        let Some(page) = self.tables.pop_front() else { return };
        let Some((peer, session)) = self.told(page.peer, page.post, None) else { return };
        let mut told = Told::new(page.family, session, peer);
        for route in routes {
            for path in &route.paths {
                let id = path.path_id.unwrap_or(0);
                let tell = match page.peer {
                    Some(_) => is_accepted(path) || !page.post && !path.stale,
                    None => path.best,
                };
                match tell {
                    true => told.announced(&path.attributes, route.prefix, id),
                    false if page.again => told.withdrawn.push((route.prefix, id)),
                    false => {}
                }
            }
        }
        told.write(out);
        match next {
            Some(from) => self.tables.push_front(Page { from, ..page }),
            None if page.again => {}
            None => end_of_rib(page.family, peer, out),
        }
        self.end(out);
    }

    fn imported(&mut self, routes: &[(RouteOf, Option<Arc<Attributes>>)], out: &mut Vec<u8>) {
        self.asked = Asked::Nothing;
        let family_of = |prefix: &Cidr| Family::of(prefix.addr());
        // They come in the order of peers and prefixes.
        for run in routes.chunk_by(|((a, p, _), _), ((b, q, _), _)| a == b && family_of(p) == family_of(q)) {
            let Some(((peer, prefix, _), _)) = run.first() else { continue };
            let Some((header, session)) = self.told(*peer, true, Some(Instant::now())) else { continue };
            let mut told = Told::new(family_of(prefix), session, header);
            for ((_, prefix, id), attributes) in run {
                match attributes {
                    Some(attributes) => told.announced(attributes, *prefix, *id),
                    None => told.withdrawn.push((*prefix, *id)),
                }
            }
            told.write(out);
        }
        self.end(out);
    }

    /// Tells End-of-RIBs whose routes have been told.
    fn end(&mut self, out: &mut Vec<u8>) {
        if !self.changed.is_empty() {
            return;
        }
        for (peer, family) in std::mem::take(&mut self.ends) {
            if let Some(known) = self.peers.get(&peer) {
                end_of_rib(family, known.header(Instant::now(), true), out);
            }
        }
    }

    pub(in crate::agent) fn statistics(&self, peers: &[PeerStatus], totals: &Totals, out: &mut Vec<u8>) {
        peers.iter().for_each(|status| self.statistics_of(status, out));
        if let Some(loc) = &self.loc {
            loc.statistics(peers, totals, out);
        }
    }

    fn statistics_of(&self, status: &PeerStatus, out: &mut Vec<u8>) {
        let Some(known) = self.peers.get(&status.id) else { return };
        let mut list = Vec::new();
        let sum = |of: fn(&tortie_bgp::FamilyStatus) -> u32| status.families.iter().map(of).sum::<u32>();
        // A counter of 32 bits, which begins anew after its end, and not what is refused at present.
        let rejected = u32::try_from(status.rejected & u64::from(u32::MAX)).unwrap_or_default();
        Statistics::push(&mut list, Statistic::Rejected(rejected));
        Statistics::push(&mut list, Statistic::AdjIn(sum(|f| f.received).into()));
        Statistics::push(&mut list, Statistic::Loc(sum(|f| f.best).into()));
        for f in &status.families {
            let (afi, safi) = (f.family.afi(), f.family.safi());
            Statistics::push(&mut list, Statistic::AdjInFamily(afi, safi, f.received.into()));
        }
        if let Ok(statistics) = Statistics::new(&list) {
            Message::Statistics { peer: header(&known.session, Instant::now()), statistics }.write(out);
        }
    }
}

/// Why a session ended: by a NOTIFICATION, ours or theirs, or without one.
fn reason(notification: Option<&(bool, Vec<u8>)>, code: Option<DownCode>) -> PeerDown<'_> {
    match (notification, code) {
        (Some((true, octets)), _) => PeerDown::LocalNotification(octets),
        (Some((false, octets)), _) => PeerDown::RemoteNotification(octets),
        (None, Some(DownCode::Config)) => PeerDown::NotMonitored,
        // RFC 4271 8.1.2, event 2: ManualStop.
        (None, Some(DownCode::Admin)) => PeerDown::LocalEvent(2),
        // 8.1.4, event 18: TcpConnectionFails. We closed it, as the peer could not be told.
        (None, Some(DownCode::LinkDown)) => PeerDown::LocalEvent(18),
        (None, _) => PeerDown::RemoteClosed,
    }
}

/// Routes of a peer and a family that are about to be told.
struct Told<'a> {
    family: Family,
    session: Negotiated,
    peer: PeerHeader,
    announced: HashMap<&'a Attributes, Vec<(Cidr, u32)>>,
    withdrawn: Vec<(Cidr, u32)>,
}

impl<'a> Told<'a> {
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

/// Route Monitoring messages of routes that share all but their prefixes.
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

/// Whether import policy accepted it. What is kept from before a restart of the peer was not sent in this session.
fn is_accepted(path: &PathInfo) -> bool {
    !path.stale && !matches!(path.unusable, Some(Unusable::Filtered(_)))
}

/// Seconds since 1970, and microseconds beyond them.
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
    fn who_ended_a_session_without_a_notification_is_told() {
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
