//! Capabilities of an OPEN (RFC 5492): decoding and encoding.

use nom::Parser;
use nom::bytes::complete::take;
use nom::multi::length_data;
use nom::number::complete::{be_u8, be_u16, be_u24, be_u32};
use smallvec::SmallVec;

use super::families::Families;
use super::notification::sanitise;
use super::notification::{ErrorCode, Notification};
use crate::types::Family;

/// Capability codes (IANA "Capability Codes").
mod code {
    pub(super) const MULTIPROTOCOL: u8 = 1;
    pub(super) const ROUTE_REFRESH: u8 = 2;
    pub(super) const EXT_NEXTHOP: u8 = 5;
    pub(super) const EXTENDED_MESSAGES: u8 = 6;
    pub(super) const ROLE: u8 = 9;
    pub(super) const GRACEFUL_RESTART: u8 = 64;
    pub(super) const AS4: u8 = 65;
    pub(super) const ADD_PATH: u8 = 69;
    pub(super) const ENHANCED_REFRESH: u8 = 70;
    pub(super) const LONG_LIVED: u8 = 71;
    pub(super) const FQDN: u8 = 73;
    pub(super) const ROUTE_REFRESH_CISCO: u8 = 128;
}

/// Parse result without error details: any error means "malformed OPEN".
type Res<'a, T> = nom::IResult<&'a [u8], T, ()>;

/// Capabilities of one end. [`Default`] has none, as a plain RFC 4271 speaker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// True if a multiprotocol capability of any family is present. Without one, the session carries IPv4
    /// unicast.
    pub multiprotocol: bool,
    /// Families of the multiprotocol capabilities (RFC 4760).
    pub families: Families,
    /// AS number of the four-octet AS capability (RFC 6793).
    pub as4: Option<u32>,
    /// Route refresh (RFC 2918), under code 2 or the pre-standard code 128.
    pub route_refresh: bool,
    /// Enhanced route refresh (RFC 7313).
    pub enhanced_refresh: bool,
    /// Messages of up to 65,535 octets (RFC 8654).
    pub extended_messages: bool,
    /// IPv4 unicast routes with IPv6 next hops (RFC 8950).
    pub ext_nexthop: bool,
    /// Graceful restart (RFC 4724, RFC 8538).
    pub graceful_restart: Option<GracefulRestart>,
    /// Long-lived graceful restart (RFC 9494), possibly with no families. Ignored without the graceful
    /// restart capability (section 4.5).
    pub long_lived: Option<SmallVec<[LongLived; 2]>>,
    /// ADD-PATH (RFC 7911), by [`Family::index`]; see [`Capabilities::add_path`].
    pub add_paths: [AddPath; 2],
    /// Role of the speaker (RFC 9234).
    pub role: Option<Role>,
    /// Host and domain name (FQDN capability).
    pub fqdn: Option<Fqdn>,
    /// Codes of received capabilities that this speaker does not recognise.
    pub unknown: SmallVec<[u8; 8]>,
}

/// Graceful restart capability (RFC 4724 3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GracefulRestart {
    /// R bit: the speaker has restarted.
    pub restarted: bool,
    /// N bit: NOTIFICATIONs and hold timer expiry also start a graceful restart (RFC 8538).
    pub notification: bool,
    /// Restart time in seconds, at most 4,095.
    pub time: u16,
    /// Families whose forwarding state can be preserved, each with its F bit: forwarding state was preserved
    /// in this restart.
    pub families: SmallVec<[(Family, bool); 2]>,
}

/// One family of the long-lived graceful restart capability (RFC 9494 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongLived {
    /// Address family.
    pub family: Family,
    /// F bit: forwarding state was preserved.
    pub forwarding: bool,
    /// Long-lived stale time in seconds, at most 16,777,215.
    pub time: u32,
}

/// ADD-PATH capability for one family (RFC 7911 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddPath {
    /// The speaker can receive several paths per prefix.
    pub receive: bool,
    /// The speaker can send several paths per prefix.
    pub send: bool,
}

/// Role of a speaker on a session (RFC 9234 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Provider of the peer.
    Provider,
    /// Route server.
    RouteServer,
    /// Client of a route server.
    RouteServerClient,
    /// Customer of the peer.
    Customer,
    /// Lateral peer.
    Peer,
    /// A value that RFC 9234 does not assign.
    Other(u8),
}

impl Role {
    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Provider,
            1 => Self::RouteServer,
            2 => Self::RouteServerClient,
            3 => Self::Customer,
            4 => Self::Peer,
            other => Self::Other(other),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Provider => 0,
            Self::RouteServer => 1,
            Self::RouteServerClient => 2,
            Self::Customer => 3,
            Self::Peer => 4,
            Self::Other(other) => other,
        }
    }

    /// Returns true if the two roles are a valid pair for a session (RFC 9234 4.2, table 2).
    #[must_use]
    pub fn pairs_with(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Provider, Self::Customer)
                | (Self::Customer, Self::Provider)
                | (Self::RouteServer, Self::RouteServerClient)
                | (Self::RouteServerClient, Self::RouteServer)
                | (Self::Peer, Self::Peer)
        )
    }
}

/// The FQDN capability (draft-walton-bgp-hostname-capability).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fqdn {
    /// Host name: at most 64 octets are sent; sanitised if received.
    pub host: String,
    /// Domain name: at most 64 octets are sent; sanitised if received.
    pub domain: String,
}

impl Capabilities {
    /// Returns the families that a session with this speaker can carry: IPv4 unicast without a multiprotocol
    /// capability.
    #[must_use]
    pub fn carried_families(&self) -> Families {
        if self.multiprotocol { self.families } else { Families::NONE.with(Family::Ipv4Unicast) }
    }

    /// Returns the ADD-PATH directions of this family (RFC 7911).
    #[must_use]
    pub fn add_path(&self, family: Family) -> AddPath {
        let [v4, v6] = self.add_paths;
        match family {
            Family::Ipv4Unicast => v4,
            Family::Ipv6Unicast => v6,
        }
    }

    /// Returns the long-lived graceful restart parameters of this family. `None` if the family is absent, or
    /// without the graceful restart capability (RFC 9494 4.5).
    #[must_use]
    pub fn long_lived(&self, family: Family) -> Option<LongLived> {
        self.graceful_restart.as_ref()?;
        self.long_lived.as_ref()?.iter().find(|l| l.family == family).copied()
    }

    /// Decodes one capability into `self`. Unknown codes are recorded. A wrong length is an error if the
    /// session would otherwise run with wrong parameters; LLGR and FQDN capabilities are ignored in that
    /// case.
    pub(super) fn read(&mut self, code: u8, value: &[u8]) -> Result<(), Notification> {
        let malformed = |_| Notification::new(ErrorCode::OPEN_UNSPECIFIC);
        match code {
            code::MULTIPROTOCOL => {
                let (_, (afi, _, safi)) = whole((be_u16, be_u8, be_u8), value).map_err(malformed)?;
                self.multiprotocol = true;
                if let Some(family) = Family::from_codes(afi, safi) {
                    self.families = self.families.with(family);
                }
            }
            code::AS4 => {
                let (_, asn) = whole(be_u32, value).map_err(malformed)?;
                self.as4 = Some(asn);
            }
            code::ROUTE_REFRESH | code::ROUTE_REFRESH_CISCO => self.route_refresh = true,
            code::ENHANCED_REFRESH => self.enhanced_refresh = true,
            code::EXTENDED_MESSAGES => self.extended_messages = true,
            code::EXT_NEXTHOP => {
                let triples = entries(value, (be_u16, be_u16, be_u16)).ok_or(()).map_err(malformed)?;
                self.ext_nexthop |= triples.contains(&(1, 1, 2));
            }
            code::ADD_PATH => {
                let triples = entries(value, (be_u16, be_u8, be_u8)).ok_or(()).map_err(malformed)?;
                for (afi, safi, mode) in triples {
                    self.set_add_path(afi, safi, mode);
                }
            }
            code::GRACEFUL_RESTART => {
                self.graceful_restart = Some(GracefulRestart::decode(value).ok_or(()).map_err(malformed)?);
            }
            code::LONG_LIVED => {
                // A malformed LLGR capability only shortens the time that routes are kept, so the session
                // goes on without it.
                let all = entries(value, (be_u16, be_u8, be_u8, be_u24));
                self.long_lived = all.map(|all| {
                    let known = all.into_iter().filter_map(|(afi, safi, flags, time)| {
                        let family = Family::from_codes(afi, safi)?;
                        Some(LongLived { family, forwarding: flags & 0x80 != 0, time })
                    });
                    known.collect()
                });
            }
            code::ROLE => {
                let (_, role) = whole(be_u8, value).map_err(malformed)?;
                let role = Role::from_code(role);
                if self.role.is_some_and(|r| r != role) {
                    return Err(Notification::new(ErrorCode::ROLE_MISMATCH));
                }
                self.role = Some(role);
            }
            code::FQDN => {
                // The FQDN capability is only displayed, so a malformed one does not end the session.
                self.fqdn = (length_data::<_, (), _>(be_u8), length_data(be_u8))
                    .parse(value)
                    .ok()
                    .map(|(_, (host, domain))| Fqdn { host: sanitise(host), domain: sanitise(domain) });
            }
            unknown => {
                if !self.unknown.contains(&unknown) {
                    self.unknown.push(unknown);
                }
            }
        }
        Ok(())
    }

    /// Removes the capability with this code. Of the multiprotocol capabilities, only the family in `value`
    /// is removed, and never the last one.
    pub(crate) fn remove(&mut self, code: u8, value: &[u8]) {
        match code {
            code::MULTIPROTOCOL => {
                let named = whole((be_u16, be_u8, be_u8), value).ok();
                let family = named.and_then(|(_, (afi, _, safi))| Family::from_codes(afi, safi));
                let rest: Families = self.families.iter().filter(|f| Some(*f) != family).collect();
                if !rest.is_empty() {
                    self.families = rest;
                    self.ext_nexthop &= rest.contains(Family::Ipv4Unicast);
                }
            }
            code::AS4 => self.as4 = None,
            code::ROUTE_REFRESH | code::ROUTE_REFRESH_CISCO => self.route_refresh = false,
            code::ENHANCED_REFRESH => self.enhanced_refresh = false,
            code::EXTENDED_MESSAGES => self.extended_messages = false,
            code::EXT_NEXTHOP => self.ext_nexthop = false,
            code::ADD_PATH => self.add_paths = Default::default(),
            code::GRACEFUL_RESTART => self.graceful_restart = None,
            code::LONG_LIVED => self.long_lived = None,
            code::ROLE => self.role = None,
            code::FQDN => self.fqdn = None,
            _ => {}
        }
    }

    /// Sets the ADD-PATH mode of a family. Unknown modes and families are ignored (RFC 7911 4). The last
    /// entry of a family wins.
    fn set_add_path(&mut self, afi: u16, safi: u8, mode: u8) {
        let (Some(family), 1..=3) = (Family::from_codes(afi, safi), mode) else { return };
        if let Some(slot) = self.add_paths.get_mut(family.index()) {
            *slot = AddPath { receive: mode & 1 != 0, send: mode & 2 != 0 };
        }
    }

    /// Appends all capabilities as the value of an optional parameter: code, length and value of each.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        if self.multiprotocol {
            for family in self.families.iter() {
                put(out, code::MULTIPROTOCOL, |v| {
                    v.extend_from_slice(&family.afi().to_be_bytes());
                    v.extend_from_slice(&[0, family.safi()]);
                });
            }
        }
        if self.route_refresh {
            put(out, code::ROUTE_REFRESH, |_| ());
        }
        if self.ext_nexthop {
            put(out, code::EXT_NEXTHOP, |v| v.extend_from_slice(&[0, 1, 0, 1, 0, 2]));
        }
        if self.extended_messages {
            put(out, code::EXTENDED_MESSAGES, |_| ());
        }
        if let Some(role) = self.role {
            put(out, code::ROLE, |v| v.push(role.code()));
        }
        if let Some(restart) = &self.graceful_restart {
            put(out, code::GRACEFUL_RESTART, |v| restart.write(v));
        }
        if let Some(asn) = self.as4 {
            put(out, code::AS4, |v| v.extend_from_slice(&asn.to_be_bytes()));
        }
        let mut add_paths = Vec::new();
        for family in Family::ALL {
            let AddPath { receive, send } = self.add_path(family);
            if receive || send {
                add_paths.extend_from_slice(&family.afi().to_be_bytes());
                add_paths.extend_from_slice(&[family.safi(), u8::from(receive) | u8::from(send) << 1]);
            }
        }
        if !add_paths.is_empty() {
            put(out, code::ADD_PATH, |v| v.extend_from_slice(&add_paths));
        }
        if self.enhanced_refresh {
            put(out, code::ENHANCED_REFRESH, |_| ());
        }
        if let Some(long_lived) = &self.long_lived {
            put(out, code::LONG_LIVED, |v| {
                for entry in long_lived {
                    v.extend_from_slice(&entry.family.afi().to_be_bytes());
                    v.extend_from_slice(&[entry.family.safi(), u8::from(entry.forwarding) << 7]);
                    let [_, time @ ..] = entry.time.min(0xff_ffff).to_be_bytes();
                    v.extend_from_slice(&time);
                }
            });
        }
        if let Some(Fqdn { host, domain }) = &self.fqdn {
            put(out, code::FQDN, |v| {
                for name in [host, domain] {
                    let name = name.get(..name.floor_char_boundary(64)).unwrap_or_default();
                    v.push(u8::try_from(name.len()).unwrap_or(0));
                    v.extend_from_slice(name.as_bytes());
                }
            });
        }
    }
}

impl GracefulRestart {
    fn decode(value: &[u8]) -> Option<Self> {
        let (rest, head) = be_u16::<_, ()>(value).ok()?;
        let families = entries(rest, (be_u16, be_u8, be_u8))?;
        Some(Self {
            restarted: head & 0x8000 != 0,
            notification: head & 0x4000 != 0,
            time: head & 0x0fff,
            families: families
                .into_iter()
                .filter_map(|(afi, safi, flags)| Some((Family::from_codes(afi, safi)?, flags & 0x80 != 0)))
                .collect(),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flags = u16::from(self.restarted) << 15 | u16::from(self.notification) << 14;
        out.extend_from_slice(&(flags | self.time.min(0x0fff)).to_be_bytes());
        for (family, forwarding) in &self.families {
            out.extend_from_slice(&family.afi().to_be_bytes());
            out.extend_from_slice(&[family.safi(), u8::from(*forwarding) << 7]);
        }
    }
}

/// Appends one capability. Values that this speaker sends are far below 255 octets.
fn put(out: &mut Vec<u8>, code: u8, value: impl FnOnce(&mut Vec<u8>)) {
    let mut body = Vec::new();
    value(&mut body);
    let Ok(len) = u8::try_from(body.len()) else { return };
    out.push(code);
    out.push(len);
    out.extend_from_slice(&body);
}

/// Parses `value` and requires that no octet is left.
fn whole<'a, P>(parser: P, value: &'a [u8]) -> Result<(&'a [u8], P::Output), ()>
where
    P: Parser<&'a [u8], Error = ()>,
{
    match nom::combinator::all_consuming(parser).parse(value) {
        Ok(read) => Ok(read),
        Err(_) => Err(()),
    }
}

/// Parses `value` as a list of entries. `None` if it does not end with a whole entry.
fn entries<'a, P>(mut value: &'a [u8], mut parser: P) -> Option<SmallVec<[P::Output; 4]>>
where
    P: Parser<&'a [u8], Error = ()>,
{
    let mut all = SmallVec::new();
    while !value.is_empty() {
        let (rest, entry) = parser.parse(value).ok()?;
        all.push(entry);
        value = rest;
    }
    Some(all)
}

/// Iterates over the capabilities of a list, up to the first malformed one.
pub(crate) fn list(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (rest, capability) = next(input).ok()?;
        input = rest;
        Some(capability)
    })
}

/// Parses code and value of one capability.
pub(super) fn next(input: &[u8]) -> Res<'_, (u8, &[u8])> {
    let (rest, (code, len)) = (be_u8, be_u8).parse(input)?;
    let (rest, value) = take(len).parse(rest)?;
    Ok((rest, (code, value)))
}
