//! `show`: prints an MRT file, one line per route or message; for programs, one JSON object per line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use tortie_bgp::attr::Attributes;
use tortie_bgp::mrt::{Body, Message, PeerEntry, Record, Stamp, StateChange};
use tortie_bgp::wire::{Frame, MessageKind, Notification, Update};
use tortie_config::counted;
use tortie_net::Cidr;

use super::file::MrtFile;
use super::other_families::OtherRoutes;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, Format};

/// MRT type TABLE_DUMP_V2 (RFC 6396 4.3).
const TABLE_DUMP_V2: u16 = 13;
/// Number of octets that are printed at a time.
const CHUNK: usize = 64 * 1024;

/// Content of a file in numbers.
#[derive(Default)]
struct Summary {
    records: BTreeMap<&'static str, u64>,
    prefixes: u64,
    paths: u64,
    announced: u64,
    withdrawn: u64,
    malformed: u64,
    others: OtherRoutes,
    unread: u64,
    first: Option<u32>,
    last: u32,
}

struct Show {
    json: bool,
    routes: bool,
    peers: Vec<PeerEntry>,
    summary: Summary,
    out: String,
}

pub(super) fn run(format: Format, path: &Path, summary: bool, limit: Option<u64>) -> Result<(), Failure> {
    let mut file = MrtFile::open(path)?;
    let mut show = Show {
        json: !format.is_text(),
        routes: !summary,
        peers: Vec::new(),
        summary: Summary::default(),
        out: String::new(),
    };
    for _ in 0..limit.unwrap_or(u64::MAX) {
        let shown = file.next(|record| match record {
            Ok(record) => show.record(&record),
            Err(error) => {
                show.summary.unread += 1;
                eprintln!("tortie: {error}");
            }
        });
        if !matches!(shown, Ok(Some(()))) || show.out.len() >= CHUNK {
            output::write_out(&std::mem::take(&mut show.out))?;
        }
        if shown?.is_none() {
            break;
        }
    }
    output::write_out(&std::mem::take(&mut show.out))?;
    if summary {
        show.total();
        output::write_out(&show.out)?;
    }
    if show.summary.unread > 0 {
        let text = format!("the file has {}", counted(show.summary.unread, "unreadable record"));
        return Err(Failure::new(Exit::Partial, "unread", text));
    }
    Ok(())
}

impl Show {
    fn record(&mut self, record: &Record<'_>) {
        let stamp = record.stamp;
        self.summary.first.get_or_insert(stamp.seconds);
        self.summary.last = stamp.seconds;
        let kind = match &record.body {
            Body::PeerIndex(_) => "peerIndex",
            Body::Rib(_) => "rib",
            Body::TableDump(_) => "tableDump",
            Body::Message(_) => "message",
            Body::StateChange(_) => "stateChange",
            // Multicast and other families, which are not parsed (RFC 6396 4.3, RFC 8050 4).
            Body::Other { kind: TABLE_DUMP_V2, subtype: 3 | 5 | 6 | 9 | 11 | 12, .. } => "otherFamily",
            _ => "other",
        };
        *self.summary.records.entry(kind).or_default() += 1;
        match &record.body {
            Body::PeerIndex(index) => {
                self.peers.clone_from(&index.peers);
                let view = tortie_bgp::wire::sanitise(index.view);
                let (id, count) = (index.collector, index.peers.len());
                self.line(stamp, "peers", || {
                    let peers: Vec<Value> = index.peers.iter().map(peer_json).collect();
                    (
                        format!("collector {id}, view `{view}`, {}", counted(count, "peer")),
                        json!({ "collector": id.to_string(), "view": view, "peers": peers }),
                    )
                });
            }
            Body::Rib(rib) => {
                self.summary.prefixes += 1;
                for entry in rib.entries.iter() {
                    let peer = self.peers.get(usize::from(entry.peer)).copied();
                    let from = peer.map(|p| (p.address.to_string(), p.asn));
                    let id = rib.entries.add_path().then_some(entry.path_id);
                    self.path(stamp, rib.prefix, from, id, entry.attributes.decode(rib.prefix));
                }
            }
            Body::TableDump(dump) => {
                self.summary.prefixes += 1;
                let from = Some((dump.peer.to_string(), dump.peer_as.into()));
                self.path(stamp, dump.prefix, from, None, dump.attributes.decode(dump.prefix));
            }
            Body::Message(message) => self.message(stamp, message),
            Body::StateChange(change) => {
                let state =
                    |n| StateChange::state(n).map_or_else(|| n.to_string(), |s| s.as_str().to_owned());
                let (from, to) = (state(change.from), state(change.to));
                let ends = ends(change.peer.to_string(), change.peer_as);
                self.line(stamp, "state", || {
                    (
                        format!("{ends} {from} -> {to}"),
                        json!({ "peer": change.peer.to_string(), "peerAs": change.peer_as, "from": from, "to": to }),
                    )
                });
            }
            Body::Other { kind, subtype, octets } => {
                let len = octets.len();
                self.line(stamp, "other", || {
                    (
                        format!("type {kind}, subtype {subtype}, {len} octets"),
                        json!({ "mrtType": kind, "mrtSubtype": subtype, "octets": len }),
                    )
                });
            }
            _ => {}
        }
    }

    fn path(
        &mut self,
        stamp: Stamp,
        prefix: Cidr,
        from: Option<(String, u32)>,
        path_id: Option<u32>,
        attributes: Result<Attributes, tortie_bgp::wire::Problem>,
    ) {
        self.summary.paths += 1;
        self.summary.malformed += u64::from(attributes.is_err());
        let (address, asn) = from.unwrap_or_else(|| ("unknown".to_owned(), 0));
        self.line(stamp, "route", || {
            let id = path_id.map(|id| format!(" path {id}")).unwrap_or_default();
            let mut value = json!({ "prefix": prefix.to_string(), "peer": address, "peerAs": asn });
            set(&mut value, "pathId", path_id.map(Value::from));
            let text = described(attributes, &mut value);
            (format!("{prefix}{id} {} {text}", ends(address, asn)), value)
        });
    }

    fn message(&mut self, stamp: Stamp, message: &Message<'_>) {
        let way = if message.sent { "sent" } else { "received" };
        let head = ends(message.peer.to_string(), message.peer_as);
        let base = json!({ "peer": message.peer.to_string(), "peerAs": message.peer_as, "direction": way });
        let Ok(Some(frame)) = Frame::next(message.octets, true) else {
            self.summary.malformed += 1;
            let octets = hex(message.octets);
            return self.line(stamp, "message", || {
                (format!("{head} {way} what is no message: {octets}"), with(base, "malformed", octets.into()))
            });
        };
        match frame.kind {
            MessageKind::Update => {
                self.others(stamp, message, frame.body, &head, &base);
                self.update(stamp, message, frame.body, &head, &base);
            }
            MessageKind::Notification => {
                let text = Notification::decode(frame.body).to_string();
                self.line(stamp, "notification", || {
                    (format!("{head} {way} {text}"), with(base, "notification", text.into()))
                });
            }
            kind => {
                let name = match kind {
                    MessageKind::Open => "open",
                    MessageKind::Keepalive => "keepalive",
                    _ => "refresh",
                };
                self.line(stamp, name, || (format!("{head} {way}"), base));
            }
        }
    }

    /// Prints the counts of routes of families that are not parsed.
    fn others(&mut self, stamp: Stamp, message: &Message<'_>, body: &[u8], head: &str, base: &Value) {
        let found = OtherRoutes::of(body, message.add_path);
        if found.is_none() {
            return;
        }
        self.summary.others.add(found);
        let OtherRoutes { announced, withdrawn, uncounted } = found;
        let way = if message.sent { "sent" } else { "received" };
        self.line(stamp, "other", || {
            let more = if uncounted > 0 { ", and some that cannot be counted" } else { "" };
            let text = format!(
                "{head} {way} routes of other families: {announced} announced, {withdrawn} withdrawn{more}"
            );
            let count = json!({ "announced": announced, "withdrawn": withdrawn, "uncounted": uncounted });
            (text, with(base.clone(), "otherFamilies", count))
        });
    }

    fn update(&mut self, stamp: Stamp, message: &Message<'_>, body: &[u8], head: &str, base: &Value) {
        let way = if message.sent { "sent" } else { "received" };
        let update = match Update::decode(body, &message.session()) {
            Ok(update) => update,
            Err(error) => {
                self.summary.malformed += 1;
                let text = error.to_string();
                return self.line(stamp, "update", || {
                    (format!("{head} {way} malformed: {text}"), with(base.clone(), "malformed", text.into()))
                });
            }
        };
        if let Some(family) = update.end_of_rib {
            return self.line(stamp, "end-of-rib", || {
                let family = family.as_str();
                (format!("{head} {way} {family}"), with(base.clone(), "family", family.into()))
            });
        }
        let withdrawn: Vec<String> =
            update.withdrawn.iter().flat_map(|n| n.cidrs()).map(|c| c.to_string()).collect();
        if !withdrawn.is_empty() {
            self.summary.withdrawn += withdrawn.len() as u64;
            let malformed = update.malformed.map(|p| format!("{} (attribute {})", p.reason, p.attribute));
            self.summary.malformed += u64::from(malformed.is_some());
            self.line(stamp, "withdraw", || {
                let why =
                    malformed.as_ref().map(|m| format!(" treated as withdrawn: {m}")).unwrap_or_default();
                let text = format!("{head} {way} {}{why}", withdrawn.join(" "));
                let mut value = with(base.clone(), "prefixes", withdrawn.into());
                set(&mut value, "malformed", malformed.map(Value::from));
                (text, value)
            });
        }
        for reach in update.reach {
            let prefixes: Vec<String> = reach.nlri.cidrs().map(|c| c.to_string()).collect();
            self.summary.announced += prefixes.len() as u64;
            self.line(stamp, "announce", || {
                let list = prefixes.join(" ");
                let mut value = with(base.clone(), "prefixes", prefixes.into());
                let text = described(Ok(reach.attributes), &mut value);
                (format!("{head} {way} {list} {text}"), value)
            });
        }
    }

    /// Prints one line, which `make` formats only if lines are printed.
    fn line(&mut self, stamp: Stamp, kind: &str, make: impl FnOnce() -> (String, Value)) {
        if !self.routes {
            return;
        }
        let (text, mut value) = make();
        let time = time(stamp);
        if self.json {
            if let Some(object) = value.as_object_mut() {
                object.shift_insert(0, "time".to_owned(), time.into());
                object.shift_insert(1, "type".to_owned(), kind.into());
            }
            let _ = writeln!(self.out, "{value}");
        } else {
            let _ = writeln!(self.out, "{time}  {kind:<9} {text}");
        }
    }

    fn total(&mut self) {
        let s = &self.summary;
        let span = s.first.map(|f| (time(Stamp { seconds: f, micros: None }), s.last));
        let (first, last) = span
            .map(|(first, last)| (first, time(Stamp { seconds: last, micros: None })))
            .unwrap_or_default();
        if self.json {
            let value = json!({
                "first": first, "last": last, "records": s.records, "prefixes": s.prefixes, "paths": s.paths,
                "announced": s.announced, "withdrawn": s.withdrawn, "malformed": s.malformed, "unread": s.unread,
                "otherAnnounced": s.others.announced, "otherWithdrawn": s.others.withdrawn, "otherUncounted": s.others.uncounted,
            });
            let _ = writeln!(self.out, "{value}");
            return;
        }
        let _ = writeln!(self.out, "time       {first} to {last}");
        for (kind, count) in &s.records {
            let _ = writeln!(self.out, "records    {count} {kind}");
        }
        let _ =
            writeln!(self.out, "table      {}, {}", counted(s.prefixes, "prefix"), counted(s.paths, "path"));
        let _ = writeln!(self.out, "updates    {} announced, {} withdrawn", s.announced, s.withdrawn);
        if !s.others.is_none() {
            let OtherRoutes { announced, withdrawn, uncounted } = s.others;
            let more = if uncounted > 0 {
                format!(", {uncounted} attributes that cannot be counted")
            } else {
                String::new()
            };
            let _ = writeln!(
                self.out,
                "others     {announced} announced, {withdrawn} withdrawn of other families{more}"
            );
        }
        let _ = writeln!(
            self.out,
            "malformed  {}, {} unread",
            counted(s.malformed, "route or message"),
            counted(s.unread, "record")
        );
    }
}

fn ends(address: String, asn: u32) -> String {
    format!("{address} AS{asn}")
}

fn peer_json(peer: &PeerEntry) -> Value {
    json!({
        "address": peer.address.to_string(), "as": peer.asn, "routerId": peer.router_id.to_string(),
    })
}

fn with(mut value: Value, name: &str, field: Value) -> Value {
    set(&mut value, name, Some(field));
    value
}

fn set(value: &mut Value, name: &str, field: Option<Value>) {
    if let (Some(object), Some(field)) = (value.as_object_mut(), field) {
        object.insert(name.to_owned(), field);
    }
}

/// Describes attributes as text, and adds them as members to `value`.
fn described(attributes: Result<Attributes, tortie_bgp::wire::Problem>, value: &mut Value) -> String {
    let a = match attributes {
        Ok(a) => a,
        Err(problem) => {
            let text = format!("{} (attribute {})", problem.reason, problem.attribute);
            set(value, "malformed", Some(text.clone().into()));
            return format!("malformed: {text}");
        }
    };
    let communities: Vec<String> =
        a.communities.iter().map(|c| format!("{}:{}", c >> 16, c & 0xffff)).collect();
    let large: Vec<String> = a.large_communities.iter().map(|[x, y, z]| format!("{x}:{y}:{z}")).collect();
    let mut text = format!("via {} path [{}] {}", a.next_hop, a.as_path, a.origin.as_str());
    let mut more = |name: &str, shown: Option<String>| {
        if let Some(shown) = shown {
            let _ = write!(text, " {name} {shown}");
        }
    };
    more("med", a.med.map(|n| n.to_string()));
    more("local-pref", a.local_pref.map(|n| n.to_string()));
    more("communities", (!communities.is_empty()).then(|| communities.join(" ")));
    more("large", (!large.is_empty()).then(|| large.join(" ")));
    set(value, "nextHop", Some(a.next_hop.to_string().into()));
    set(value, "asPath", Some(a.as_path.to_string().into()));
    set(value, "origin", Some(a.origin.as_str().into()));
    set(value, "med", a.med.map(Value::from));
    set(value, "localPref", a.local_pref.map(Value::from));
    set(value, "communities", Some(communities.into()));
    set(value, "largeCommunities", Some(large.into()));
    text
}

/// Formats a time in RFC 3339.
fn time(stamp: Stamp) -> String {
    let micros = stamp.micros.unwrap_or(0).min(999_999);
    let nanos = i32::try_from(micros).unwrap_or(0) * 1000;
    let at = jiff::Timestamp::new(stamp.seconds.into(), nanos).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    if stamp.micros.is_some() { format!("{at:.6}") } else { format!("{at:.0}") }
}

fn hex(octets: &[u8]) -> String {
    octets.iter().take(64).map(|o| format!("{o:02x}")).collect()
}
