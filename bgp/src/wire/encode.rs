//! Encoder of UPDATE and KEEPALIVE messages.
//!
//! Attributes are encoded once into an [`UpdateTemplate`]. An [`UpdateWriter`] then fills messages with
//! prefixes. Sizes are checked before anything is written, so no partial message is ever undone.

use std::net::IpAddr;

use smallvec::SmallVec;

use super::attributes::{code, flag};
use super::families::Families;
use super::frame::{HEADER_LEN, MessageKind, write_header};
use super::negotiated::Negotiated;
use super::nlri::{Address, Entry, encoded_len, write_prefix};
use crate::attr::{AS_TRANS_SHORT, Aggregator, AsPath, Attributes, Partial, SegmentKind};
use crate::types::Family;

/// LOCAL_PREF towards iBGP peers for a route without one: RFC 4271 5.1.5 requires that it is sent.
const DEFAULT_LOCAL_PREF: u32 = 100;

/// Octets of the fields Withdrawn Routes Length and Total Path Attribute Length.
const LENGTHS: usize = 4;

/// Octets of the longest encoded prefix: path identifier, length, IPv6 address.
const LONGEST_PREFIX: usize = 4 + 1 + 16;

/// Reason why a route cannot be announced to a peer. The caller has to withdraw it (RFC 4271 9.2), or the
/// peer would keep the previous announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DoesNotFit {
    /// The attributes and one prefix exceed the maximum message length of the session.
    #[error("the attributes leave no room for a prefix in a message of {limit} octets")]
    Size {
        /// Maximum message length in octets.
        limit: usize,
    },
    /// The session cannot carry this next hop for the family.
    #[error("next hop {next_hop} cannot be sent for {} routes on this session", family.as_str())]
    NextHop {
        /// Address family of the route.
        family: Family,
        /// Next hop of the route.
        next_hop: IpAddr,
    },
}

/// Common part of the UPDATEs for routes with equal attributes, or for withdrawals. Valid for all sessions
/// with equal [`Negotiated`] parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateTemplate {
    family: Family,
    add_path: bool,
    limit: usize,
    place: Place,
    /// Encoded attributes other than MP_REACH_NLRI and MP_UNREACH_NLRI; empty for withdrawals.
    attributes: Vec<u8>,
}

/// Position of the prefixes in an UPDATE.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// The Withdrawn Routes field (RFC 4271 4.3).
    Withdrawn,
    /// The Network Layer Reachability Information field (RFC 4271 4.3).
    Nlri,
    /// MP_REACH_NLRI or MP_UNREACH_NLRI (RFC 4760): type code, and the octets before the prefixes.
    Attribute(u8, MpHead),
}

/// AFI, SAFI, next hop with its length, reserved octet. A 32-octet next hop exceeds the inline capacity.
type MpHead = SmallVec<[u8; 24]>;

impl UpdateTemplate {
    /// Encodes `attributes` for routes of `family`. LOCAL_PREF, ORIGINATOR_ID, CLUSTER_LIST and Prefix-SID
    /// are omitted towards eBGP peers; any other change is the task of the caller.
    ///
    /// IPv4 routes with an IPv4 next hop use the NLRI field, all others MP_REACH_NLRI.
    ///
    /// # Errors
    /// [`DoesNotFit`]: the caller has to withdraw the routes from these sessions.
    pub fn new(attributes: &Attributes, family: Family, session: &Negotiated) -> Result<Self, DoesNotFit> {
        let limit = session.max_len();
        let classic = family == Family::Ipv4Unicast && attributes.next_hop.addr().is_ipv4();
        let place = if classic {
            Place::Nlri
        } else {
            Place::Attribute(code::MP_REACH, mp_head(attributes, family, session)?)
        };
        let size = DoesNotFit::Size { limit };
        let encoded = write_attributes(attributes, classic, session).ok_or(size)?;
        // Flags, type code and two length octets of MP_REACH_NLRI.
        let mp = if let Place::Attribute(_, head) = &place { 4 + head.len() } else { 0 };
        if HEADER_LEN + LENGTHS + mp + encoded.len() + LONGEST_PREFIX > limit {
            return Err(size);
        }
        Ok(Self {
            family,
            add_path: session.add_path_send.contains(family),
            limit,
            place,
            attributes: encoded,
        })
    }

    /// Returns the template of withdrawals. IPv4 uses the Withdrawn Routes field, unless RFC 8950 is
    /// negotiated; all else uses MP_UNREACH_NLRI.
    #[must_use]
    pub fn withdrawal(family: Family, session: &Negotiated) -> Self {
        let place = if family == Family::Ipv4Unicast && !session.ext_nexthop {
            Place::Withdrawn
        } else {
            let [high, low] = family.afi().to_be_bytes();
            Place::Attribute(code::MP_UNREACH, SmallVec::from_slice(&[high, low, family.safi()]))
        };
        let (add_path, limit) = (session.add_path_send.contains(family), session.max_len());
        Self { family, add_path, limit, place, attributes: Vec::new() }
    }

    /// Returns the family of the routes.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Starts a message at the end of `out`, with room for at least one prefix.
    pub fn begin<'w>(&'w self, out: &'w mut Vec<u8>) -> UpdateWriter<'w> {
        let start = out.len();
        write_header(out, 0, MessageKind::Update);
        out.extend_from_slice(&[0; 2]);
        let mut room = start + self.limit;
        match &self.place {
            // Total Path Attribute Length follows the withdrawn routes.
            Place::Withdrawn => room -= 2,
            Place::Nlri => {
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&self.attributes);
            }
            Place::Attribute(code, head) => {
                out.extend_from_slice(&[0, 0, flag::OPTIONAL | flag::EXTENDED, *code, 0, 0]);
                out.extend_from_slice(head);
                room -= self.attributes.len();
            }
        }
        let first = out.len();
        UpdateWriter { template: self, out, start, first, room }
    }

    /// Appends all `routes` in order, in as few messages as possible. Calls `each` with the end offset of
    /// every message.
    pub fn write<A: Address>(
        &self,
        out: &mut Vec<u8>,
        routes: impl IntoIterator<Item = Entry<A>>,
        mut each: impl FnMut(usize),
    ) {
        let mut routes = routes.into_iter().peekable();
        while routes.peek().is_some() {
            let mut writer = self.begin(out);
            while routes.next_if(|route| writer.push(route.prefix, route.path_id)).is_some() {}
            writer.finish();
            each(out.len());
        }
    }
}

/// An UPDATE under construction. It is discarded unless [`UpdateWriter::finish`] is called.
#[derive(Debug)]
pub struct UpdateWriter<'w> {
    template: &'w UpdateTemplate,
    out: &'w mut Vec<u8>,
    /// Start offset of the message.
    start: usize,
    /// Start offset of the prefixes.
    first: usize,
    /// Offset at which the prefixes have to end.
    room: usize,
}

impl UpdateWriter<'_> {
    /// Appends a prefix; `path_id` is written if the session uses path identifiers. Returns false if the
    /// prefix does not fit and the message has to be finished.
    #[inline]
    pub fn push<A: Address>(&mut self, prefix: (A, u8), path_id: u32) -> bool {
        debug_assert_eq!(A::FAMILY, self.template.family);
        let path_id = self.template.add_path.then_some(path_id);
        let id = if path_id.is_some() { 4 } else { 0 };
        let fits = self.out.len() + id + encoded_len(prefix.1) <= self.room;
        if fits {
            write_prefix(self.out, prefix, path_id);
        }
        fits
    }

    /// Completes the message. Without a prefix, nothing is written.
    pub fn finish(mut self) {
        let out = &mut *self.out;
        if out.len() == self.first {
            return;
        }
        let lengths = self.start + HEADER_LEN;
        let attributes = &self.template.attributes;
        match &self.template.place {
            Place::Withdrawn => {
                let withdrawn = out.len() - self.first;
                patch(out, lengths, withdrawn);
                out.extend_from_slice(&[0; 2]);
            }
            Place::Nlri => patch(out, lengths + 2, attributes.len()),
            Place::Attribute(..) => {
                let all = close_attribute(out, lengths + LENGTHS) + attributes.len();
                out.extend_from_slice(attributes);
                patch(out, lengths + 2, all);
            }
        }
        close_message(out, self.start);
        self.start = out.len();
    }
}

impl Drop for UpdateWriter<'_> {
    fn drop(&mut self) {
        self.out.truncate(self.start);
    }
}

/// Appends the End-of-RIB marker of this family (RFC 4724 2).
pub fn write_end_of_rib(family: Family, out: &mut Vec<u8>) {
    let start = out.len();
    write_header(out, 0, MessageKind::Update);
    match family {
        Family::Ipv4Unicast => out.extend_from_slice(&[0; LENGTHS]),
        Family::Ipv6Unicast => {
            out.extend_from_slice(&[0, 0, 0, 6, flag::OPTIONAL, code::MP_UNREACH, 3]);
            out.extend_from_slice(&family.afi().to_be_bytes());
            out.push(family.safi());
        }
    }
    close_message(out, start);
}

/// Appends a KEEPALIVE.
pub fn write_keepalive(out: &mut Vec<u8>) {
    write_header(out, 19, MessageKind::Keepalive);
}

/// Overwrites the two octets at `at`. All callers stay within one message, so `value` fits.
fn patch(out: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).unwrap_or(u16::MAX);
    if let Some(octets) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *octets = value.to_be_bytes();
    }
}

fn close_message(out: &mut [u8], start: usize) {
    patch(out, start + 16, out.len() - start);
}

/// Completes the attribute that starts at `at` with a two-octet length and extends to the end of `out`. The
/// Extended Length form is allowed only above 255 octets (RFC 4271 4.3), so a short value moves by one octet.
/// Returns the size of the attribute.
fn close_attribute(out: &mut Vec<u8>, at: usize) -> usize {
    let value = out.len() - at - 4;
    if let Ok(short) = u8::try_from(value) {
        out.remove(at + 3);
        if let Some([flags, _, len]) = out.get_mut(at..at + 3) {
            *flags &= !flag::EXTENDED;
            *len = short;
        }
    } else {
        patch(out, at + 2, value);
    }
    out.len() - at
}

/// Encodes MP_REACH_NLRI from AFI to the reserved octet. A link-local address follows a global one, and is
/// sent alone (16 octets) without one: Junos and BIRD up to 2.0.7 reject 32 octets with two equal halves.
fn mp_head(attributes: &Attributes, family: Family, session: &Negotiated) -> Result<MpHead, DoesNotFit> {
    let allowed = family == Family::Ipv6Unicast || session.ext_nexthop;
    let next_hop = attributes.next_hop.addr();
    let IpAddr::V6(next_hop) = next_hop else { return Err(DoesNotFit::NextHop { family, next_hop }) };
    if !allowed {
        return Err(DoesNotFit::NextHop { family, next_hop: next_hop.into() });
    }
    let link_local = attributes.link_local.filter(|_| !next_hop.is_unicast_link_local());
    let mut head = MpHead::new();
    head.extend_from_slice(&family.afi().to_be_bytes());
    head.push(family.safi());
    head.push(if link_local.is_some() { 32 } else { 16 });
    head.extend_from_slice(&next_hop.octets());
    if let Some(link_local) = link_local {
        head.extend_from_slice(&link_local.octets());
    }
    head.push(0);
    Ok(head)
}

const WELL_KNOWN: u8 = flag::TRANSITIVE;
const OPTIONAL: u8 = flag::OPTIONAL;
const OPTIONAL_TRANSITIVE: u8 = flag::OPTIONAL | flag::TRANSITIVE;

/// Returns the flags of an optional transitive attribute (RFC 4271 5).
fn transitive(a: &Attributes, which: Partial) -> u8 {
    if a.partial.contains(which) { OPTIONAL_TRANSITIVE | flag::PARTIAL } else { OPTIONAL_TRANSITIVE }
}

/// Encodes all attributes except MP_REACH_NLRI in the order of their type codes; opaque attributes come last.
/// `None` if one exceeds the maximum attribute length.
fn write_attributes(a: &Attributes, classic: bool, session: &Negotiated) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(96);
    attribute(&mut out, WELL_KNOWN, code::ORIGIN, &[a.origin as u8])?;
    let mut short = Vec::new();
    let path = if session.as4 {
        a.as_path.octets()
    } else {
        a.as_path.write_two_octets(&mut short);
        &short
    };
    attribute(&mut out, WELL_KNOWN, code::AS_PATH, path)?;
    if let (true, IpAddr::V4(next_hop)) = (classic, a.next_hop.addr()) {
        attribute(&mut out, WELL_KNOWN, code::NEXT_HOP, &next_hop.octets())?;
    }
    if let Some(med) = a.med {
        attribute(&mut out, OPTIONAL, code::MED, &med.to_be_bytes())?;
    }
    if !session.ebgp {
        let local_pref = a.local_pref.unwrap_or(DEFAULT_LOCAL_PREF);
        attribute(&mut out, WELL_KNOWN, code::LOCAL_PREF, &local_pref.to_be_bytes())?;
    }
    if a.atomic_aggregate {
        attribute(&mut out, WELL_KNOWN, code::ATOMIC_AGGREGATE, &[])?;
    }
    if let Some(Aggregator { asn, router_id }) = a.aggregator() {
        let mut value = Vec::with_capacity(8);
        if session.as4 {
            value.extend_from_slice(&asn.to_be_bytes());
        } else {
            value.extend_from_slice(&u16::try_from(asn).unwrap_or(AS_TRANS_SHORT).to_be_bytes());
        }
        value.extend_from_slice(&router_id.octets());
        attribute(&mut out, transitive(a, Partial::AGGREGATOR), code::AGGREGATOR, &value)?;
    }
    let flags = transitive(a, Partial::COMMUNITIES);
    items(&mut out, flags, code::COMMUNITIES, &a.communities, |c| c.to_be_bytes())?;
    if !session.ebgp {
        if let Some(id) = a.originator_id() {
            attribute(&mut out, OPTIONAL, code::ORIGINATOR_ID, &id.to_be_bytes())?;
        }
        items(&mut out, OPTIONAL, code::CLUSTER_LIST, a.cluster_list(), |c| c.to_be_bytes())?;
    }
    let flags = transitive(a, Partial::EXT_COMMUNITIES);
    items(&mut out, flags, code::EXT_COMMUNITIES, a.ext_communities(), |c| *c)?;
    if !session.as4 {
        write_as4(&mut out, a)?;
    }
    let large = a.large_communities.as_flattened();
    let flags = transitive(a, Partial::LARGE_COMMUNITIES);
    items(&mut out, flags, code::LARGE_COMMUNITIES, large, |n| n.to_be_bytes())?;
    if let Some(otc) = a.otc() {
        attribute(&mut out, transitive(a, Partial::OTC), code::OTC, &otc.to_be_bytes())?;
    }
    // RFC 8669: Prefix-SID stays inside the segment routing domain.
    for opaque in a.opaque().iter().filter(|o| !session.ebgp || o.code != code::PREFIX_SID) {
        attribute(&mut out, opaque.flags, opaque.code, &opaque.value)?;
    }
    Some(out)
}

/// Encodes attributes in the form of an MRT table dump: four-octet AS numbers, and MP_REACH_NLRI reduced to
/// the next hop (RFC 6396 4.3.4). `None` if one exceeds the maximum attribute length.
pub(crate) fn write_table_attributes(a: &Attributes, out: &mut Vec<u8>) -> Option<()> {
    // iBGP-only attributes are kept. No LOCAL_PREF is added to a route without one.
    let internal = a.local_pref.is_some() || a.originator_id().is_some() || !a.cluster_list().is_empty();
    let session = Negotiated {
        ebgp: !internal,
        as4: true,
        extended: true,
        families: Families::ALL,
        ext_nexthop: true,
        add_path_receive: Families::NONE,
        add_path_send: Families::NONE,
        reject_as_sets: false,
    };
    let octets = write_attributes(a, a.next_hop.addr().is_ipv4(), &session)?;
    out.extend_from_slice(&octets);
    if let IpAddr::V6(next_hop) = a.next_hop.addr() {
        let link_local = a.link_local.filter(|_| !next_hop.is_unicast_link_local());
        let len = if link_local.is_some() { 32 } else { 16 };
        out.extend_from_slice(&[flag::OPTIONAL, code::MP_REACH, len + 1, len]);
        out.extend_from_slice(&next_hop.octets());
        out.extend(link_local.iter().flat_map(std::net::Ipv6Addr::octets));
    }
    Some(())
}

/// Encodes AS4_PATH and AS4_AGGREGATOR for a two-octet peer (RFC 6793 4.2.2).
fn write_as4(out: &mut Vec<u8>, a: &Attributes) -> Option<()> {
    if !a.as_path.fits_two_octets() {
        let flags = transitive(a, Partial::AS4_PATH);
        let confed = a.as_path.segments().any(|s| s.kind.is_confed());
        if confed {
            let segments: Vec<(SegmentKind, Vec<u32>)> = a
                .as_path
                .segments()
                .filter(|s| !s.kind.is_confed())
                .map(|s| (s.kind, s.ases().collect()))
                .collect();
            let path = AsPath::from_segments(segments.iter().map(|(kind, ases)| (*kind, ases.as_slice())));
            attribute(out, flags, code::AS4_PATH, path.octets())?;
        } else {
            attribute(out, flags, code::AS4_PATH, a.as_path.octets())?;
        }
    }
    if let Some(Aggregator { asn, router_id }) = a.aggregator()
        && u16::try_from(asn).is_err()
    {
        let mut value = asn.to_be_bytes().to_vec();
        value.extend_from_slice(&router_id.octets());
        attribute(out, transitive(a, Partial::AS4_AGGREGATOR), code::AS4_AGGREGATOR, &value)?;
    }
    Some(())
}

/// Encodes a list attribute. An empty list writes nothing.
fn items<T, const N: usize>(
    out: &mut Vec<u8>,
    flags: u8,
    code: u8,
    items: &[T],
    octets: impl Fn(&T) -> [u8; N],
) -> Option<()> {
    if items.is_empty() {
        return Some(());
    }
    attribute_header(out, flags, code, items.len().checked_mul(N)?)?;
    out.extend(items.iter().flat_map(octets));
    Some(())
}

fn attribute(out: &mut Vec<u8>, flags: u8, code: u8, value: &[u8]) -> Option<()> {
    attribute_header(out, flags, code, value.len())?;
    out.extend_from_slice(value);
    Some(())
}

/// Encodes flags, type code and length. The Extended Length flag depends on the length alone, never on the
/// received flags.
fn attribute_header(out: &mut Vec<u8>, flags: u8, code: u8, len: usize) -> Option<()> {
    let flags = flags & !flag::EXTENDED;
    if let Ok(len) = u8::try_from(len) {
        out.extend_from_slice(&[flags, code, len]);
    } else {
        let len = u16::try_from(len).ok()?;
        out.extend_from_slice(&[flags | flag::EXTENDED, code]);
        out.extend_from_slice(&len.to_be_bytes());
    }
    Some(())
}
