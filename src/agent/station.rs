//! BMP stations (RFC 7854): a task for each, which tells it what peers send.
//!
//! ```text
//!  connect -> Initiation -> listen at the speaker (from here on everything is in order)
//!    sessions that are up: Peer Up, then their Adj-RIB-In page by page, End-of-RIB
//!    meanwhile and after:  UPDATEs as they came, Peer Up, Peer Down; statistics each minute
//!  a station that does not keep up is disconnected and hears everything again
//! ```
//!
//! What is told is the Adj-RIB-In before policy: what a peer sent is passed on as it was. Pages of a table and messages
//! come over one queue, which the speaker's thread fills in the order of events, so that a page never undoes a later
//! message.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tortie_bgp::attr::Attributes;
use tortie_bgp::bmp::{
    Message, PeerDown, PeerHeader, PeerUp, Statistic, Statistics, Tlvs, info, termination,
};
use tortie_bgp::wire::{Entry, MessageKind, Negotiated, UpdateTemplate, write_end_of_rib};
use tortie_bgp::{
    Down, DownCode, Family, PeerId, PeerStatus, RouteInfo, RouteMatch, RouteQuery, RouteTable, State,
    TapItem, TapSession, TapWhat,
};

use super::backend::{Live, ask_speaker};
use crate::speaker::{Heard, SpeakerHandle, TapReceiver, TapSender, ToSpeaker, tap_queue};

/// Octets that wait for a station; more, and it is disconnected.
const QUEUE: usize = 32 * 1024 * 1024;
/// Places of the table that one question looks at.
const SLOTS: u32 = 1024;
/// How long a connect, and each write, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Waits between attempts: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Between statistics.
const STATISTICS: Duration = Duration::from_secs(60);

/// The stations that are wanted now, each with what ends its task.
#[derive(Default)]
pub(super) struct Stations {
    tasks: HashMap<SocketAddr, (watch::Sender<bool>, tokio::task::JoinHandle<()>)>,
}

impl Stations {
    /// Starts and ends tasks so that these stations are served.
    pub(super) fn follow(&mut self, wanted: &[SocketAddr], live: &Arc<Live>, io: &tokio::runtime::Handle) {
        self.tasks.retain(|addr, (stop, _)| {
            let keep = wanted.contains(addr);
            if !keep {
                let _ = stop.send(true);
            }
            keep
        });
        for addr in wanted {
            self.tasks.entry(*addr).or_insert_with(|| {
                let (stop, stopped) = watch::channel(false);
                (stop, io.spawn(serve(*addr, Arc::clone(live), stopped)))
            });
        }
    }

    /// Says goodbye to all.
    pub(super) async fn stop(&mut self) {
        for (_, (stop, task)) in self.tasks.drain() {
            let _ = stop.send(true);
            let _ = tokio::time::timeout(Duration::from_secs(1), task).await;
        }
    }
}

/// One station until it is no longer wanted.
async fn serve(addr: SocketAddr, live: Arc<Live>, mut stopped: watch::Receiver<bool>) {
    let mut wait = RETRY.0;
    let mut told = false;
    loop {
        let start = Instant::now();
        let Err(why) = session(addr, &live, stopped.clone()).await else { return };
        // A station that is away for a day is one line, and one when it is back.
        if start.elapsed() > PATIENCE {
            wait = RETRY.0;
            told = false;
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(target: "tortie", "BMP station {addr}: {why}; trying again");
        }
        tokio::select! {
            () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.75..1.0))) => {}
            () = told_to_stop(&mut stopped) => return,
        }
        wait = (wait * 2).min(RETRY.1);
    }
}

/// One connection. `Ok`: the station is no longer wanted.
async fn session(addr: SocketAddr, live: &Live, mut stopped: watch::Receiver<bool>) -> Result<(), String> {
    let stream = tokio::select! {
        stream = tokio::time::timeout(PATIENCE, TcpStream::connect(addr)) => {
            stream.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())?
        }
        () = told_to_stop(&mut stopped) => return Ok(()),
    };
    let speaker = live.speaker.load_full().ok_or("the speaker has not started yet")?;
    tracing::info!(target: "tortie", "BMP station {addr}: connected");
    let (mut reader, mut writer) = stream.into_split();
    let mut out = Vec::new();
    initiation(&live.node, &mut out);
    let (sender, mut queue) = tap_queue(QUEUE);
    speaker.send(ToSpeaker::Tap(sender.clone())).map_err(|e| e.to_string())?;
    let mut teller = Teller { speaker, sender, peers: HashMap::new(), tables: VecDeque::new(), asked: false };
    let mut statistics = tokio::time::interval_at(tokio::time::Instant::now() + STATISTICS, STATISTICS);
    let mut ignored = [0; 256];
    loop {
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            // As long as it takes something, however slowly, the queue decides.
            let written = tokio::time::timeout(PATIENCE, writer.write(rest)).await;
            let taken =
                written.map_err(|_| "it takes nothing any more".to_owned())?.map_err(|e| e.to_string())?;
            rest = rest.get(taken..).unwrap_or_default();
        }
        out.clear();
        tokio::select! {
            biased;
            () = told_to_stop(&mut stopped) => {
                end(termination::ADMIN, &mut out);
                let _ = tokio::time::timeout(PATIENCE, writer.write_all(&out)).await;
                let _ = writer.shutdown().await;
                return Ok(());
            }
            read = reader.read(&mut ignored) => match read {
                Ok(0) => return Err("it closed the connection".to_owned()),
                Ok(_) => {}
                Err(e) => return Err(e.to_string()),
            },
            heard = queue.next() => {
                let heard = heard.ok_or("the speaker has stopped, or too many listen to it")?;
                if teller.hear(heard, &queue, &mut out).is_err() {
                    end(termination::RESOURCES, &mut out);
                    let _ = tokio::time::timeout(PATIENCE, writer.write_all(&out)).await;
                    return Err("it is slower than BGP; it will hear everything again".to_owned());
                }
                teller.ask();
            }
            _ = statistics.tick() => {
                if let Ok(peers) = ask_speaker(&teller.speaker, |view| view.peers()).await {
                    peers.iter().for_each(|p| teller.statistics(p, &mut out));
                }
            }
        }
    }
}

async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn initiation(node: &str, out: &mut Vec<u8>) {
    let mut tlvs = Vec::new();
    Tlvs::push(&mut tlvs, info::SYS_DESCR, concat!("tortie ", env!("CARGO_PKG_VERSION")).as_bytes());
    Tlvs::push(&mut tlvs, info::SYS_NAME, node.as_bytes());
    Message::Initiation(Tlvs::new(&tlvs).unwrap_or_default()).write(out);
}

fn end(reason: u16, out: &mut Vec<u8>) {
    let mut tlvs = Vec::new();
    Tlvs::push(&mut tlvs, termination::REASON, &reason.to_be_bytes());
    Message::Termination(Tlvs::new(&tlvs).unwrap_or_default()).write(out);
}

/// The station hears less than there is.
#[derive(Debug)]
struct Lagging;

/// A peer that the station knows as up.
struct Known {
    session: Arc<TapSession>,
    /// The last NOTIFICATION, and whether we sent it.
    notification: Option<(bool, Vec<u8>)>,
}

/// What the station has been told.
struct Teller {
    speaker: Arc<SpeakerHandle>,
    sender: TapSender,
    peers: HashMap<PeerId, Known>,
    /// Tables that are still to be told, the first of them from this place on.
    tables: VecDeque<(PeerId, Family, u32)>,
    /// A page is under way.
    asked: bool,
}

impl Teller {
    fn hear(&mut self, heard: Heard, queue: &TapReceiver, out: &mut Vec<u8>) -> Result<(), Lagging> {
        if queue.missed() > 0 {
            return Err(Lagging);
        }
        match heard {
            Heard::Sessions(sessions) => {
                for session in sessions {
                    let families = session.negotiated.families;
                    self.tables.extend(families.iter().map(|f| (session.peer, f, 0)));
                    self.up(session, out);
                }
            }
            Heard::Tapped(tapped) => {
                if tapped.dropped > 0 {
                    return Err(Lagging);
                }
                for (item, octets) in tapped.iter() {
                    self.item(item, octets, out);
                }
            }
            Heard::Routes(routes, next) => self.page(&routes, next, out),
        }
        Ok(())
    }

    /// Asks for the next page, one at a time. It comes over the queue.
    fn ask(&mut self) {
        if self.asked {
            return;
        }
        let Some((peer, family, from)) = self.tables.front().copied() else { return };
        let sender = self.sender.clone();
        let question = ToSpeaker::Query(Box::new(move |view| {
            let query = RouteQuery { table: RouteTable::AdjIn(peer), matching: RouteMatch::All(family) };
            let (routes, next) = view.walk(query, from, SLOTS, usize::MAX);
            sender.give(Heard::Routes(routes, next));
        }));
        // A busy speaker is asked again with the next thing that is heard.
        self.asked = self.speaker.send(question).is_ok();
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
        match &item.what {
            TapWhat::Message { sent: false, kind: MessageKind::Update, .. } => {
                if let Some(known) = self.peers.get(&item.peer) {
                    let peer = header(&known.session, item.at);
                    Message::RouteMonitoring { peer, update: octets }.write(out);
                }
            }
            TapWhat::Message { sent, kind: MessageKind::Notification, .. } => {
                if let Some(known) = self.peers.get_mut(&item.peer) {
                    known.notification = Some((*sent, octets.to_vec()));
                }
            }
            TapWhat::Message { .. } => {}
            TapWhat::State { from, to, down, session } => {
                if *from == State::Established && *to != State::Established {
                    self.down(item, down.as_ref(), out);
                }
                if let Some(session) = session {
                    self.up(Arc::clone(session), out);
                }
            }
        }
    }

    fn down(&mut self, item: &TapItem, down: Option<&Down>, out: &mut Vec<u8>) {
        let Some(known) = self.peers.remove(&item.peer) else { return };
        // The first stays while its page is under way.
        let front = self.asked.then(|| self.tables.pop_front()).flatten();
        self.tables.retain(|(peer, ..)| *peer != item.peer);
        self.tables.extend(front);
        self.tables.rotate_right(usize::from(front.is_some()));
        let reason = match (&known.notification, down.map(|d| d.code)) {
            (Some((true, octets)), _) => PeerDown::LocalNotification(octets),
            (Some((false, octets)), _) => PeerDown::RemoteNotification(octets),
            (None, Some(DownCode::Config)) => PeerDown::NotMonitored,
            // RFC 4271 8.1.2, event 2: ManualStop.
            (None, Some(DownCode::Admin)) => PeerDown::LocalEvent(2),
            (None, _) => PeerDown::RemoteClosed,
        };
        Message::PeerDown { peer: header(&known.session, item.at), reason }.write(out);
    }

    fn page(&mut self, routes: &[RouteInfo], next: Option<u32>, out: &mut Vec<u8>) {
        self.asked = false;
        let Some((id, family, _)) = self.tables.pop_front() else { return };
        let Some(known) = self.peers.get(&id) else { return };
        let session = &known.session;
        let peer = header(session, session.up_at);
        let told = Negotiated {
            add_path_send: session.negotiated.add_path_receive,
            // What the peer sent with whatever next hop is told with it.
            ext_nexthop: true,
            ..session.negotiated
        };
        let mut updates = Vec::new();
        for (attributes, prefixes) in alike(routes) {
            updates.clear();
            let Ok(template) = UpdateTemplate::new(attributes, family, &told) else { continue };
            let mut ends = Vec::new();
            match family {
                Family::Ipv4Unicast => {
                    let entries = prefixes.iter().filter_map(|(route, id)| match route.prefix.addr() {
                        IpAddr::V4(a) => {
                            Some(Entry { prefix: (u32::from(a), route.prefix.len()), path_id: *id })
                        }
                        IpAddr::V6(_) => None,
                    });
                    template.write(&mut updates, entries, |end| ends.push(end));
                }
                Family::Ipv6Unicast => {
                    let entries = prefixes.iter().filter_map(|(route, id)| match route.prefix.addr() {
                        IpAddr::V6(a) => {
                            Some(Entry { prefix: (u128::from(a), route.prefix.len()), path_id: *id })
                        }
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
        match next {
            Some(from) => self.tables.push_front((id, family, from)),
            None => {
                updates.clear();
                write_end_of_rib(family, &mut updates);
                Message::RouteMonitoring { peer, update: &updates }.write(out);
            }
        }
    }

    fn statistics(&self, status: &PeerStatus, out: &mut Vec<u8>) {
        let Some(known) = self.peers.get(&status.id) else { return };
        let mut list = Vec::new();
        let sum = |of: fn(&tortie_bgp::FamilyStatus) -> u32| status.families.iter().map(of).sum::<u32>();
        Statistics::push(&mut list, Statistic::Rejected(sum(|f| f.filtered)));
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

/// Routes by attributes, each with its path identifier. What is kept from before a restart of the peer was not sent in
/// this session.
fn alike(routes: &[RouteInfo]) -> HashMap<&Attributes, Vec<(&RouteInfo, u32)>> {
    let mut alike: HashMap<&Attributes, Vec<(&RouteInfo, u32)>> = HashMap::new();
    for route in routes {
        for path in route.paths.iter().filter(|p| !p.stale) {
            alike.entry(&*path.attributes).or_default().push((route, path.path_id.unwrap_or(0)));
        }
    }
    alike
}

fn header(session: &TapSession, at: Instant) -> PeerHeader {
    let ago = Instant::now().saturating_duration_since(at);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = since.saturating_sub(ago);
    PeerHeader {
        kind: 0,
        post_policy: false,
        as2: !session.negotiated.as4,
        distinguisher: 0,
        address: session.remote.ip().to_canonical(),
        asn: session.asn,
        router_id: session.router_id.0.into(),
        seconds: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
        micros: since.subsec_micros(),
    }
}
