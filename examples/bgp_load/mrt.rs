//! Converts MRT files (RFC 6396) to streams of UPDATE messages: one per feed of a table dump, one for
//! recorded updates.
//!
//! Attributes are unchanged except for the next hop, which becomes the sender's address.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use super::mix::{self, Prefix};

/// Minimum number of routes of a feed: smaller feeds in a table dump are the dumping router's own routes.
const LEAST: usize = 1000;

/// Announcements of one peer.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// AS number of the peer.
    pub(crate) asn: u32,
    /// Concatenated IPv4 UPDATE messages.
    pub(crate) messages: Vec<u8>,
    pub(crate) prefixes: Vec<Prefix>,
}

/// Reads a file, and decompresses it with gzip if its name ends in `.gz`.
fn content(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.extension().is_none_or(|e| e != "gz") {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    let mut gzip =
        Command::new("gzip").arg("-dc").arg(path).stdout(Stdio::piped()).spawn().context("gzip")?;
    let mut out = Vec::new();
    gzip.stdout.take().context("gzip")?.read_to_end(&mut out)?;
    ensure!(gzip.wait()?.success(), "{}: gzip could not read it", path.display());
    Ok(out)
}

/// Returns the feeds of a file; `hop(n)` is the address of the n-th sender.
pub(crate) fn feeds(path: &Path, hop: impl Fn(usize) -> Ipv4Addr) -> anyhow::Result<Vec<Feed>> {
    let bytes = content(path)?;
    let mut rest = bytes.as_slice();
    let mut table = Table::default();
    let mut recorded = Feed::default();
    while !rest.is_empty() {
        let record = record(&mut rest).with_context(|| format!("{}: cut off", path.display()))?;
        let fine = match (record.kind, record.subtype) {
            (13, 1) => table.index(record.body),
            (13, 2) => table.route(record.body),
            (16, 4) => message(&mut recorded, record.body, hop(0)),
            (17, 4) => record.body.get(4..).and_then(|body| message(&mut recorded, body, hop(0))),
            _ => Some(()),
        };
        fine.with_context(|| format!("{}: a record of type {} is cut off", path.display(), record.kind))?;
    }
    if !recorded.prefixes.is_empty() {
        return Ok(vec![recorded]);
    }
    let feeds: Vec<Feed> = table
        .feeds
        .into_values()
        .filter(|f| f.len() >= LEAST)
        .enumerate()
        .map(|(n, routes)| pack(routes, hop(n)))
        .collect();
    if feeds.is_empty() {
        bail!("{}: neither a table (TABLE_DUMP_V2) nor updates (BGP4MP) of IPv4", path.display());
    }
    Ok(feeds)
}

struct Record<'a> {
    kind: u16,
    subtype: u16,
    body: &'a [u8],
}

fn record<'a>(rest: &mut &'a [u8]) -> Option<Record<'a>> {
    rest.split_off(..4)?;
    let (kind, subtype) = (u16(rest)?, u16(rest)?);
    let length = u32(rest)? as usize;
    Some(Record { kind, subtype, body: rest.split_off(..length)? })
}

fn u16(rest: &mut &[u8]) -> Option<u16> {
    let (first, later) = rest.split_first_chunk()?;
    *rest = later;
    Some(u16::from_be_bytes(*first))
}

fn u32(rest: &mut &[u8]) -> Option<u32> {
    let (first, later) = rest.split_first_chunk()?;
    *rest = later;
    Some(u32::from_be_bytes(*first))
}

/// AS number of the feed, attributes, prefix.
type Route<'a> = (u32, &'a [u8], Prefix);

/// Parser of TABLE_DUMP_V2 (RFC 6396 4.3): AS numbers of the peers, and their routes, with AS paths of
/// four-octet AS numbers.
#[derive(Default)]
struct Table<'a> {
    asns: Vec<u32>,
    feeds: BTreeMap<u16, Vec<Route<'a>>>,
}

impl<'a> Table<'a> {
    fn index(&mut self, mut body: &'a [u8]) -> Option<()> {
        u32(&mut body)?;
        let name = usize::from(u16(&mut body)?);
        body.split_off(..name)?;
        for _ in 0..u16(&mut body)? {
            let kind = *body.split_off_first()?;
            body.split_off(..4 + if kind & 1 != 0 { 16 } else { 4 })?;
            self.asns.push(if kind & 2 != 0 { u32(&mut body)? } else { u16(&mut body)?.into() });
        }
        Some(())
    }

    fn route(&mut self, mut body: &'a [u8]) -> Option<()> {
        u32(&mut body)?;
        let (prefix, rest) = Prefix::read(body)?;
        body = rest;
        for _ in 0..u16(&mut body)? {
            let peer = u16(&mut body)?;
            u32(&mut body)?;
            let length = usize::from(u16(&mut body)?);
            let attributes = body.split_off(..length)?;
            let asn = self.asns.get(usize::from(peer)).copied()?;
            self.feeds.entry(peer).or_default().push((asn, attributes, prefix));
        }
        Some(())
    }
}

/// Encodes routes as messages; adjacent routes with equal attributes share one, as on a router.
fn pack(routes: Vec<Route<'_>>, hop: Ipv4Addr) -> Feed {
    let mut feed = Feed { asn: routes.first().map_or(0, |r| r.0), ..Feed::default() };
    for run in routes.chunk_by(|a, b| a.1 == b.1) {
        let Some((_, attributes, _)) = run.first() else { continue };
        let mut kept = Vec::new();
        each_attribute(attributes, |kind, whole, _| {
            if !matches!(kind, 3 | 14 | 15) {
                kept.extend_from_slice(whole);
            }
        });
        let prefixes: Vec<Prefix> = run.iter().map(|r| r.2).collect();
        for prefixes in prefixes.chunks(200) {
            mix::announce(&mut feed.messages, &kept, hop.into(), prefixes);
        }
        feed.prefixes.extend(prefixes);
    }
    feed
}

/// Calls `each` with the type of each attribute, the whole attribute, and the offset of its value.
fn each_attribute(attributes: &[u8], mut each: impl FnMut(u8, &[u8], usize)) {
    let mut at = 0;
    while let Some([flags, kind, rest @ ..]) = attributes.get(at..) {
        let (head, len) = match (flags & 0x10 != 0, rest) {
            (true, [a, b, ..]) => (4, usize::from(u16::from_be_bytes([*a, *b]))),
            (false, [len, ..]) => (3, usize::from(*len)),
            _ => return,
        };
        let Some(whole) = attributes.get(at..at + head + len) else { return };
        each(*kind, whole, at + head);
        at += head + len;
    }
}

/// Parses BGP4MP_MESSAGE_AS4 (RFC 6396 4.4.3).
fn message(feed: &mut Feed, mut body: &[u8], hop: Ipv4Addr) -> Option<()> {
    let asn = u32(&mut body)?;
    u32(&mut body)?;
    u16(&mut body)?;
    let family = u16(&mut body)?;
    body.split_off(..if family == 1 { 8 } else { 32 })?;
    if body.get(18) != Some(&2) || family != 1 {
        return Some(());
    }
    feed.asn = asn;
    let mut whole = body.to_vec();
    let mut fields = body.get(19..)?;
    let withdrawn = usize::from(u16(&mut fields)?);
    fields.split_off(..withdrawn)?;
    let length = usize::from(u16(&mut fields)?);
    let attributes = fields.split_off(..length)?;
    let begin = 19 + 2 + withdrawn + 2;
    let mut at = None;
    each_attribute(attributes, |kind, _, offset| {
        if kind == 3 {
            at = Some(begin + offset);
        }
    });
    if let Some(field) = at.and_then(|at| whole.get_mut(at..at + 4)) {
        field.copy_from_slice(&hop.octets());
    }
    while let Some((prefix, rest)) = Prefix::read(fields) {
        feed.prefixes.push(prefix);
        fields = rest;
    }
    feed.messages.append(&mut whole);
    Some(())
}
