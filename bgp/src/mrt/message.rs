//! BGP4MP and BGP4MP_ET records: messages and state changes (RFC 6396 4.4, RFC 8050 3).

use std::net::IpAddr;

use super::error::Error;
use super::record::HEADER_LEN;
use crate::api::State;
use crate::reader::{ByteReader, write_ip};
use crate::wire::{Families, Negotiated};

/// Subtypes of BGP4MP.
pub(super) mod subtype {
    use super::{Message, StateChange};

    const STATE_CHANGE: u16 = 0;
    const STATE_CHANGE_AS4: u16 = 5;

    pub(in crate::mrt) fn is_state_change(subtype: u16) -> bool {
        matches!(subtype, STATE_CHANGE | STATE_CHANGE_AS4)
    }

    /// Returns the properties of a message subtype: four-octet AS numbers, sent by the collector, path
    /// identifiers.
    pub(super) fn message(subtype: u16) -> Option<(bool, bool, bool)> {
        Some(match subtype {
            1 => (false, false, false),
            4 => (true, false, false),
            6 => (false, true, false),
            7 => (true, true, false),
            8 => (false, false, true),
            9 => (true, false, true),
            10 => (false, true, true),
            11 => (true, true, true),
            _ => return None,
        })
    }

    pub(in crate::mrt) fn is_message(subtype: u16) -> bool {
        message(subtype).is_some()
    }

    pub(super) fn is_as4(subtype: u16) -> bool {
        subtype == STATE_CHANGE_AS4 || message(subtype).is_some_and(|(as4, ..)| as4)
    }

    pub(in crate::mrt) fn of_message(message: &Message<'_>) -> u16 {
        match (message.as4, message.sent, message.add_path) {
            (false, false, false) => 1,
            (true, false, false) => 4,
            (false, true, false) => 6,
            (true, true, false) => 7,
            (false, false, true) => 8,
            (true, false, true) => 9,
            (false, true, true) => 10,
            (true, true, true) => 11,
        }
    }

    pub(in crate::mrt) fn of_state_change(change: &StateChange) -> u16 {
        if change.as4 { STATE_CHANGE_AS4 } else { STATE_CHANGE }
    }
}

/// Fields that message and state change records have in common.
struct Session {
    peer_as: u32,
    local_as: u32,
    interface: u16,
    peer: IpAddr,
    local: IpAddr,
}

impl Session {
    fn read(octets: &mut ByteReader<'_>, as4: bool) -> Result<Self, Error> {
        let mut read = || {
            let (peer_as, local_as) = if as4 {
                (octets.u32()?, octets.u32()?)
            } else {
                (octets.u16()?.into(), octets.u16()?.into())
            };
            Some((peer_as, local_as, octets.u16()?, octets.u16()?))
        };
        let (peer_as, local_as, interface, afi) =
            read().ok_or_else(|| Error::at(octets.at(), "no room for the numbers of the session"))?;
        if !matches!(afi, 1 | 2) {
            return Err(Error::at(octets.at(), "a session whose address family is neither IPv4 nor IPv6"));
        }
        let v6 = afi == 2;
        let mut ends = || Some((octets.ip(v6)?, octets.ip(v6)?));
        let (peer, local) =
            ends().ok_or_else(|| Error::at(octets.at(), "no room for the addresses of the session"))?;
        Ok(Self { peer_as, local_as, interface, peer, local })
    }

    fn write(&self, out: &mut Vec<u8>, as4: bool) {
        for asn in [self.peer_as, self.local_as] {
            if as4 {
                out.extend_from_slice(&asn.to_be_bytes());
            } else {
                let short = u16::try_from(asn).unwrap_or(crate::attr::AS_TRANS_SHORT);
                out.extend_from_slice(&short.to_be_bytes());
            }
        }
        out.extend_from_slice(&self.interface.to_be_bytes());
        // Both addresses have to be of one family.
        let v6 = self.peer.is_ipv6() || self.local.is_ipv6();
        out.extend_from_slice(&(if v6 { 2_u16 } else { 1 }).to_be_bytes());
        for ip in [self.peer, self.local] {
            match ip {
                IpAddr::V4(a) if v6 => write_ip(out, a.to_ipv6_mapped().into()),
                ip => write_ip(out, ip),
            }
        }
    }
}

/// A BGP message as sent on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// AS number of the peer; above 65,535 only with `as4`.
    pub peer_as: u32,
    /// AS number of the collector.
    pub local_as: u32,
    /// Interface index; 0 if unknown.
    pub interface: u16,
    /// Address of the peer, of the same family as `local`.
    pub peer: IpAddr,
    /// Address of the collector.
    pub local: IpAddr,
    /// AS numbers have four octets, in this record and in the message.
    pub as4: bool,
    /// True if the collector sent the message (the `_LOCAL` subtypes), false if it received it.
    pub sent: bool,
    /// Prefixes have path identifiers (RFC 8050).
    pub add_path: bool,
    /// The whole message from its marker on, not validated.
    pub octets: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>, subtype: u16) -> Result<Self, Error> {
        let (as4, sent, add_path) =
            subtype::message(subtype).ok_or(Error::at(HEADER_LEN, "no such subtype"))?;
        let Session { peer_as, local_as, interface, peer, local } =
            Session::read(&mut octets, subtype::is_as4(subtype))?;
        Ok(Self { peer_as, local_as, interface, peer, local, as4, sent, add_path, octets: octets.rest() })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Self { peer_as, local_as, interface, peer, local, .. } = *self;
        Session { peer_as, local_as, interface, peer, local }.write(out, self.as4);
        out.extend_from_slice(self.octets);
    }

    /// Returns parameters to decode the message with [`Update::decode`](crate::wire::Update::decode): all
    /// families, and no attribute discarded because of the sender.
    #[must_use]
    pub fn session(&self) -> Negotiated {
        Negotiated {
            ebgp: false,
            as4: self.as4,
            extended: true,
            families: Families::ALL,
            ext_nexthop: true,
            add_path_receive: if self.add_path { Families::ALL } else { Families::NONE },
            add_path_send: if self.add_path { Families::ALL } else { Families::NONE },
            reject_as_sets: false,
        }
    }
}

/// A state change of a session (RFC 6396 4.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// AS number of the peer; above 65,535 only with `as4`.
    pub peer_as: u32,
    /// AS number of the collector.
    pub local_as: u32,
    /// Interface index; 0 if unknown.
    pub interface: u16,
    /// Address of the peer, of the same family as `local`.
    pub peer: IpAddr,
    /// Address of the collector.
    pub local: IpAddr,
    /// AS numbers have four octets.
    pub as4: bool,
    /// Number of the previous state; see [`StateChange::state`].
    pub from: u16,
    /// Number of the new state.
    pub to: u16,
}

impl StateChange {
    pub(super) fn read(mut octets: ByteReader<'_>, subtype: u16) -> Result<Self, Error> {
        let as4 = subtype::is_as4(subtype);
        let Session { peer_as, local_as, interface, peer, local } = Session::read(&mut octets, as4)?;
        let (Some(from), Some(to)) = (octets.u16(), octets.u16()) else {
            return Err(Error::at(octets.at(), "no room for two states"));
        };
        Ok(Self { peer_as, local_as, interface, peer, local, as4, from, to })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Self { peer_as, local_as, interface, peer, local, .. } = *self;
        Session { peer_as, local_as, interface, peer, local }.write(out, self.as4);
        out.extend_from_slice(&self.from.to_be_bytes());
        out.extend_from_slice(&self.to.to_be_bytes());
    }

    /// Returns the number of a state: 1 (Idle) to 6 (Established).
    #[must_use]
    pub fn number(state: State) -> u16 {
        match state {
            State::Idle => 1,
            State::Connect => 2,
            State::Active => 3,
            State::OpenSent => 4,
            State::OpenConfirm => 5,
            State::Established => 6,
        }
    }

    /// Returns the state with this number. `None` for numbers that some collectors add to those of RFC 6396.
    #[must_use]
    pub fn state(number: u16) -> Option<State> {
        Some(match number {
            1 => State::Idle,
            2 => State::Connect,
            3 => State::Active,
            4 => State::OpenSent,
            5 => State::OpenConfirm,
            6 => State::Established,
            _ => return None,
        })
    }
}
