//! Decoder of the path attribute list of an UPDATE: flags, duplicates, attributes not accepted from this
//! peer, missing attributes (RFC 7606 sections 3 to 5). `values` decodes the value of each attribute.

use std::mem::take;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nom::Parser;
use nom::bytes::complete::take as octets;
use nom::number::complete::{be_u8, be_u16};
use smallvec::SmallVec;

use super::families::Families;
use super::negotiated::Negotiated;
use super::nlri::Nlri;
use super::notification::{ErrorCode, Notification};
use super::problem::{Fault, Problem};
use super::values::{
    Confed, aggregator, as_path, chunks, fixed, is_host, large_communities, mp_next_hop, number, numbers,
    origin,
};
use crate::attr::{AS_TRANS, Aggregator, AsPath, Attributes, Extra, Opaque, Origin, Partial};
use crate::types::Family;

/// Attribute flags (RFC 4271 4.3).
pub(super) mod flag {
    pub(crate) const OPTIONAL: u8 = 0x80;
    pub(crate) const TRANSITIVE: u8 = 0x40;
    pub(crate) const PARTIAL: u8 = 0x20;
    pub(crate) const EXTENDED: u8 = 0x10;
}

/// Attribute type codes (IANA "BGP Path Attributes").
pub(super) mod code {
    pub(crate) const ORIGIN: u8 = 1;
    pub(crate) const AS_PATH: u8 = 2;
    pub(crate) const NEXT_HOP: u8 = 3;
    pub(crate) const MED: u8 = 4;
    pub(crate) const LOCAL_PREF: u8 = 5;
    pub(crate) const ATOMIC_AGGREGATE: u8 = 6;
    pub(crate) const AGGREGATOR: u8 = 7;
    pub(crate) const COMMUNITIES: u8 = 8;
    pub(crate) const ORIGINATOR_ID: u8 = 9;
    pub(crate) const CLUSTER_LIST: u8 = 10;
    pub(crate) const MP_REACH: u8 = 14;
    pub(crate) const MP_UNREACH: u8 = 15;
    pub(crate) const EXT_COMMUNITIES: u8 = 16;
    pub(crate) const AS4_PATH: u8 = 17;
    pub(crate) const AS4_AGGREGATOR: u8 = 18;
    pub(crate) const IPV6_EXT_COMMUNITIES: u8 = crate::attr::IPV6_EXT_COMMUNITIES;
    pub(crate) const AIGP: u8 = 26;
    pub(crate) const LARGE_COMMUNITIES: u8 = 32;
    pub(crate) const OTC: u8 = 35;
    pub(crate) const PREFIX_SID: u8 = 40;
}

use Fault::{Discard, Reset, Withdraw};

/// A decoded MP_REACH_NLRI of a family that the session carries.
pub(super) struct MpReach<'a> {
    pub(super) nlri: Nlri<'a>,
    pub(super) next_hop: IpAddr,
    pub(super) link_local: Option<Ipv6Addr>,
}

/// All attributes of an UPDATE.
#[derive(Default)]
pub(super) struct Collected<'a> {
    /// Type codes received so far, one bit each.
    seen: [u128; 2],
    origin: Origin,
    as_path: AsPath,
    pub(super) next_hop: Option<Ipv4Addr>,
    med: Option<u32>,
    local_pref: Option<u32>,
    atomic_aggregate: bool,
    partial: Partial,
    communities: Box<[u32]>,
    large_communities: Box<[[u32; 3]]>,
    extra: Extra,
    opaque: Vec<Opaque>,
    as4_path: Option<AsPath>,
    as4_aggregator: Option<Aggregator>,
    pub(super) mp_reach: Option<MpReach<'a>>,
    pub(super) mp_unreach: Option<Nlri<'a>>,
    /// True if MP_REACH_NLRI had prefixes of a family that the session does not carry.
    pub(super) foreign_reach: bool,
    /// True if the UPDATE has an attribute other than MP_UNREACH_NLRI.
    pub(super) others: bool,
    /// First treat-as-withdraw error, with the NOTIFICATION to send if the UPDATE has no prefix to withdraw.
    pub(super) malformed: Option<(Problem, Notification)>,
    pub(super) discarded: SmallVec<[Problem; 1]>,
}

type Header<'a> = (u8, u8, &'a [u8]);

/// Parses flags, type code and value of one attribute.
fn header(input: &[u8]) -> nom::IResult<&[u8], Header<'_>, ()> {
    let (rest, (flags, code)) = (be_u8, be_u8).parse(input)?;
    let (rest, len) = if flags & flag::EXTENDED != 0 {
        be_u16(rest)?
    } else {
        be_u8(rest).map(|(rest, len)| (rest, u16::from(len)))?
    };
    let (rest, value) = octets(len).parse(rest)?;
    Ok((rest, (flags, code, value)))
}

impl<'a> Collected<'a> {
    /// Decodes a whole attribute list. Continues after errors, because MP_REACH_NLRI may follow (RFC 7606 3
    /// h, j).
    pub(super) fn read(mut list: &'a [u8], session: &Negotiated) -> Result<Self, Notification> {
        let mut all = Self::default();
        while !list.is_empty() {
            let Ok((rest, (flags, code, value))) = header(list) else {
                all.overrun(list)?;
                break;
            };
            let whole = list.get(..list.len() - rest.len()).unwrap_or_default();
            list = rest;
            if let Err(fault) = all.attribute(flags, code, value, session) {
                all.note(code, fault, whole)?;
            }
        }
        Ok(all)
    }

    /// Handles a list that ends inside an attribute (RFC 7606 4): the attributes before it are kept, and the
    /// prefixes are withdrawn.
    fn overrun(&mut self, list: &[u8]) -> Result<(), Notification> {
        self.others = true;
        let attribute = list.get(1).copied().unwrap_or(0);
        if matches!(attribute, code::MP_REACH | code::MP_UNREACH) {
            // The prefixes of this attribute cannot be located, so treat-as-withdraw is impossible.
            return Err(Notification::new(ErrorCode::MALFORMED_ATTRIBUTE_LIST));
        }
        let fault = Withdraw(ErrorCode::MALFORMED_ATTRIBUTE_LIST, "longer than the attribute list");
        self.note(attribute, fault, &[])
    }

    fn note(&mut self, attribute: u8, fault: Fault, whole: &[u8]) -> Result<(), Notification> {
        match fault {
            Discard(reason) => self.discarded.push(Problem { attribute, reason }),
            Withdraw(code, reason) => {
                if self.malformed.is_none() {
                    let notification = Notification::with_data(code, whole);
                    self.malformed = Some((Problem { attribute, reason }, notification));
                }
            }
            Reset(code) => return Err(Notification::with_data(code, whole)),
        }
        Ok(())
    }

    /// Returns true if the UPDATE has this attribute, well-formed or not.
    pub(super) fn has(&self, code: u8) -> bool {
        let [low, high] = self.seen;
        let half = if code < 128 { low } else { high };
        half & (1 << (code % 128)) != 0
    }

    fn mark(&mut self, code: u8) {
        let [low, high] = &mut self.seen;
        let half = if code < 128 { low } else { high };
        *half |= 1 << (code % 128);
    }

    fn attribute(&mut self, flags: u8, code: u8, value: &'a [u8], session: &Negotiated) -> Result<(), Fault> {
        self.others |= code != code::MP_UNREACH;
        if self.has(code) {
            return Err(match code {
                // RFC 7606 3 g.
                code::MP_REACH | code::MP_UNREACH => Reset(ErrorCode::MALFORMED_ATTRIBUTE_LIST),
                _ => Discard("appears more than once"),
            });
        }
        self.mark(code);
        refuse(code, session)?;
        let wrong_flags =
            expected_flags(code).is_some_and(|e| flags & (flag::OPTIONAL | flag::TRANSITIVE) != e);
        if wrong_flags {
            let fault = Withdraw(ErrorCode::ATTRIBUTE_FLAGS, "wrong attribute flags");
            return match code {
                // Even so, the prefixes have to be decoded for treat-as-withdraw, and an error in them, which
                // resets the session, is stronger.
                code::MP_REACH => self.mp_reach(value, session).and(Err(fault)),
                code::MP_UNREACH => self.mp_unreach(value, session).and(Err(fault)),
                _ => Err(fault),
            };
        }
        match code {
            code::ORIGIN => self.origin = origin(value)?,
            code::AS_PATH => {
                self.as_path = as_path(value, session.as4, Confed::Refuse)
                    .map_err(|reason| Withdraw(ErrorCode::MALFORMED_AS_PATH, reason))?;
            }
            code::NEXT_HOP => self.next_hop = Some(Ipv4Addr::from(fixed::<4>(value)?)),
            code::MED => self.med = Some(number(value)?),
            code::LOCAL_PREF => self.local_pref = Some(number(value)?),
            code::ATOMIC_AGGREGATE if value.is_empty() => self.atomic_aggregate = true,
            code::ATOMIC_AGGREGATE => return Err(Discard("length is not 0")),
            code::AGGREGATOR => self.extra.aggregator = Some(aggregator(value, session.as4)?),
            code::COMMUNITIES => self.communities = numbers(value)?,
            code::ORIGINATOR_ID => self.extra.originator_id = Some(number(value)?),
            code::CLUSTER_LIST => self.extra.cluster_list = numbers(value)?,
            code::MP_REACH => self.mp_reach(value, session)?,
            code::MP_UNREACH => self.mp_unreach(value, session)?,
            code::EXT_COMMUNITIES => self.extra.ext_communities = chunks::<8>(value)?.into(),
            code::AS4_PATH => {
                self.as4_path = Some(as_path(value, true, Confed::LeaveOut).map_err(Discard)?);
            }
            code::AS4_AGGREGATOR => self.as4_aggregator = Some(aggregator(value, true)?),
            code::IPV6_EXT_COMMUNITIES => {
                chunks::<20>(value)?;
                self.keep(flags, code, value);
            }
            code::LARGE_COMMUNITIES => self.large_communities = large_communities(value)?,
            code::OTC => self.extra.otc = Some(number(value)?),
            _ if flags & flag::OPTIONAL == 0 => return Err(Reset(ErrorCode::UNRECOGNIZED_WELL_KNOWN)),
            _ if flags & flag::TRANSITIVE != 0 => self.keep(flags | flag::PARTIAL, code, value),
            // Unrecognised and non-transitive: ignored and not passed on (RFC 4271 5).
            _ => {}
        }
        if flags & flag::PARTIAL != 0 {
            self.partial = self.partial.with(partial(code));
        }
        Ok(())
    }

    fn keep(&mut self, flags: u8, code: u8, value: &[u8]) {
        let flags = flags & (flag::OPTIONAL | flag::TRANSITIVE | flag::PARTIAL);
        self.opaque.push(Opaque { flags, code, value: value.into() });
    }

    /// Decodes MP_REACH_NLRI (RFC 4760 3 and 7, RFC 7606 5.3 and 7.11).
    fn mp_reach(&mut self, value: &'a [u8], session: &Negotiated) -> Result<(), Fault> {
        let short = Reset(ErrorCode::OPTIONAL_ATTRIBUTE);
        let parsed: nom::IResult<&[u8], _, ()> = (be_u16, be_u8, be_u8).parse(value);
        let Ok((rest, (afi, safi, len))) = parsed else { return Err(short) };
        // One reserved octet separates next hop and prefixes. Senders set it to 0, receivers ignore it (RFC
        // 4760 3).
        let Some((next_hop, [_, nlri @ ..])) = rest.split_at_checked(usize::from(len)) else {
            return Err(short);
        };
        let Some(family) = carried(afi, safi, session.families) else {
            self.foreign_reach = !nlri.is_empty();
            return Ok(());
        };
        let Some((hop, link_local)) = mp_next_hop(family, next_hop, session.ext_nexthop) else {
            return Err(Reset(ErrorCode::OPTIONAL_ATTRIBUTE));
        };
        let add_path = session.add_path_receive.contains(family);
        let nlri = Nlri::check(family, add_path, nlri).ok_or(Reset(ErrorCode::OPTIONAL_ATTRIBUTE))?;
        self.mp_reach = Some(MpReach { nlri, next_hop: hop, link_local });
        if is_host(hop) {
            Ok(())
        } else {
            Err(Withdraw(ErrorCode::OPTIONAL_ATTRIBUTE, "next hop is no host address"))
        }
    }

    /// Decodes MP_UNREACH_NLRI (RFC 4760 4 and 7, RFC 7606 5.3 and 7.12).
    fn mp_unreach(&mut self, value: &'a [u8], session: &Negotiated) -> Result<(), Fault> {
        let parsed: nom::IResult<&[u8], _, ()> = (be_u16, be_u8).parse(value);
        let Ok((nlri, (afi, safi))) = parsed else { return Err(Reset(ErrorCode::OPTIONAL_ATTRIBUTE)) };
        if let Some(family) = carried(afi, safi, session.families) {
            let add_path = session.add_path_receive.contains(family);
            let nlri = Nlri::check(family, add_path, nlri).ok_or(Reset(ErrorCode::OPTIONAL_ATTRIBUTE))?;
            self.mp_unreach = Some(nlri);
        }
        Ok(())
    }

    /// Checks what depends on several attributes, after all are decoded: mandatory attributes of announced
    /// prefixes (RFC 7606 3 d), NEXT_HOP of prefixes in the NLRI field, AS_SETs (RFC 9774), and the AS4 merge
    /// (RFC 6793). `classic`: the NLRI field of the UPDATE has prefixes.
    pub(super) fn finish(&mut self, classic: bool, session: &Negotiated) {
        let reach =
            classic || self.foreign_reach || self.mp_reach.as_ref().is_some_and(|m| !m.nlri.is_empty());
        let mandatory = [(code::ORIGIN, reach), (code::AS_PATH, reach), (code::NEXT_HOP, classic)];
        for (attribute, needed) in mandatory {
            if needed && !self.has(attribute) {
                self.withdraw(attribute, ErrorCode::MISSING_WELL_KNOWN, "missing");
            }
        }
        if classic && self.next_hop.is_some_and(|hop| !is_host(IpAddr::V4(hop))) {
            self.withdraw(code::NEXT_HOP, ErrorCode::INVALID_NEXT_HOP, "no host address");
        }
        if reach && session.reject_as_sets {
            // RFC 9774 3. Both attributes are checked as received, because the merge may discard one of them.
            let paths = [(code::AS_PATH, Some(&self.as_path)), (code::AS4_PATH, self.as4_path.as_ref())];
            let with_set = paths.into_iter().find(|(_, path)| path.is_some_and(AsPath::has_set));
            if let Some((attribute, _)) = with_set {
                self.withdraw(attribute, ErrorCode::MALFORMED_AS_PATH, "AS_SET (RFC 9774)");
            }
        }
        if !session.as4 {
            self.merge_as4();
            self.forget_as4_bits();
        }
    }

    fn withdraw(&mut self, attribute: u8, code: ErrorCode, reason: &'static str) {
        if self.malformed.is_none() {
            self.malformed =
                Some((Problem { attribute, reason }, Notification::with_data(code, &[attribute])));
        }
    }

    /// Merges AS4_PATH and AS4_AGGREGATOR (RFC 6793 4.2.3).
    fn merge_as4(&mut self) {
        if let (Some(short), Some(long)) = (self.extra.aggregator, self.as4_aggregator) {
            if short.asn != AS_TRANS {
                // A two-octet speaker on the path replaced AGGREGATOR, so both AS4 attributes are out of
                // date.
                return;
            }
            self.extra.aggregator = Some(long);
        }
        if let Some(as4) = &self.as4_path {
            self.as_path = self.as_path.merge_as4(as4);
        }
    }

    /// Clears the Partial bits of AS4 attributes that the merged route does not need and that are not sent
    /// again.
    fn forget_as4_bits(&mut self) {
        if self.as_path.fits_two_octets() {
            self.partial = self.partial.without(Partial::AS4_PATH);
        }
        if self.extra.aggregator.is_none_or(|a| u16::try_from(a.asn).is_ok()) {
            self.partial = self.partial.without(Partial::AS4_AGGREGATOR);
        }
    }

    /// Moves the attributes out; the caller sets the next hop. Takes `&mut self`, because moving this large
    /// struct would cost as much as decoding one or two prefixes.
    pub(super) fn take_attributes(&mut self) -> Attributes {
        let mut attributes = Attributes::new(Ipv4Addr::UNSPECIFIED);
        attributes.origin = self.origin;
        attributes.as_path = take(&mut self.as_path);
        attributes.med = self.med;
        attributes.local_pref = self.local_pref;
        attributes.atomic_aggregate = self.atomic_aggregate;
        attributes.partial = self.partial;
        attributes.communities = take(&mut self.communities);
        attributes.large_communities = take(&mut self.large_communities);
        self.extra.opaque = take(&mut self.opaque).into_boxed_slice();
        if self.extra != Extra::default() {
            attributes.edit_extra(|e| *e = take(&mut self.extra));
        }
        attributes
    }
}

/// Rejects attributes that are discarded without decoding, depending on the type of the peer.
fn refuse(code: u8, session: &Negotiated) -> Result<(), Fault> {
    match code {
        // RFC 7606 7.5, 7.9, 7.10.
        code::LOCAL_PREF | code::ORIGINATOR_ID | code::CLUSTER_LIST if session.ebgp => {
            Err(Discard("not accepted from an eBGP peer"))
        }
        // RFC 6793 4.1.
        code::AS4_PATH | code::AS4_AGGREGATOR if session.as4 => {
            Err(Discard("not accepted from a four-octet peer"))
        }
        // RFC 7311 3.3: AIGP is accepted only on sessions that enable it. This speaker has no such option.
        code::AIGP => Err(Discard("AIGP is not enabled")),
        // RFC 8669 4: Prefix-SID from outside the segment routing domain is discarded.
        code::PREFIX_SID if session.ebgp => Err(Discard("Prefix-SID from an eBGP peer")),
        _ => Ok(()),
    }
}

/// Returns the Optional and Transitive bits that an attribute must have. `None` for unrecognised attributes.
fn expected_flags(code: u8) -> Option<u8> {
    match code {
        code::ORIGIN | code::AS_PATH | code::NEXT_HOP | code::LOCAL_PREF | code::ATOMIC_AGGREGATE => {
            Some(flag::TRANSITIVE)
        }
        code::MED | code::ORIGINATOR_ID | code::CLUSTER_LIST | code::MP_REACH | code::MP_UNREACH => {
            Some(flag::OPTIONAL)
        }
        code::AGGREGATOR
        | code::COMMUNITIES
        | code::EXT_COMMUNITIES
        | code::AS4_PATH
        | code::AS4_AGGREGATOR
        | code::IPV6_EXT_COMMUNITIES
        | code::LARGE_COMMUNITIES
        | code::OTC => Some(flag::OPTIONAL | flag::TRANSITIVE),
        _ => None,
    }
}

/// Returns the Partial bit of an attribute whose value is decoded.
fn partial(code: u8) -> Partial {
    match code {
        code::AGGREGATOR => Partial::AGGREGATOR,
        code::COMMUNITIES => Partial::COMMUNITIES,
        code::EXT_COMMUNITIES => Partial::EXT_COMMUNITIES,
        code::AS4_PATH => Partial::AS4_PATH,
        code::AS4_AGGREGATOR => Partial::AS4_AGGREGATOR,
        code::LARGE_COMMUNITIES => Partial::LARGE_COMMUNITIES,
        code::OTC => Partial::OTC,
        _ => Partial::NONE,
    }
}

fn carried(afi: u16, safi: u8, families: Families) -> Option<Family> {
    Family::from_codes(afi, safi).filter(|f| families.contains(*f))
}
