//! Bytes to messages and messages to bytes: BGP-4 on the wire.
//!
//! Here are framing, decoding with the outcomes of RFC 7606, encoding within the message size of the session.
//! Not here: the order of messages (the session), and the meaning of routes (the tables).
//!
//! Received bytes go [`Frame::next`] -> by [`MessageKind`] to [`Open::decode`], [`Update::decode`],
//! [`Notification::decode`] or [`RouteRefresh::decode`]. A decoder takes the message body and, where it matters, what
//! was [`Negotiated`]; its error is the NOTIFICATION to send before the session ends.
//! Routes go out through an [`UpdateTemplate`] (attributes encoded once, or none in withdrawals) and an [`UpdateWriter`]
//! that takes prefixes while they fit.
//!
//! `nom` reads headers, OPEN, capabilities and attributes. Prefixes are read by plain code in `nlri`: they are nearly all
//! that a full feed consists of, and one bounds check per message replaces several per prefix.

mod attributes;
mod capability;
mod encode;
mod frame;
mod nlri;
mod notification;
mod open;
mod problem;
mod refresh;
mod update;
mod values;

pub(crate) use capability::list as capability_list;
pub use capability::{AddPath, Capabilities, Fqdn, GracefulRestart, LongLived, Role};
pub(crate) use encode::write_table_attributes;
pub use encode::{DoesNotFit, UpdateTemplate, UpdateWriter, write_end_of_rib, write_keepalive};
pub use frame::{Frame, HEADER_LEN, MAX_EXTENDED_LEN, MAX_LEN, MessageKind};
pub use nlri::{Address, Entry, Nlri, NlriIter};
pub use notification::{ErrorCode, Notification, sanitise};
pub use open::Open;
pub(crate) use open::write_open;
pub use problem::Problem;
pub use refresh::{RefreshKind, RouteRefresh};
pub use update::{Reach, Update};

use crate::types::Family;

/// A set of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Families(u8);

impl Families {
    /// No family.
    pub const NONE: Self = Self(0);
    /// Every family of this speaker.
    pub const ALL: Self = Self(0b11);

    /// The set with this family added.
    #[must_use]
    pub fn with(self, family: Family) -> Self {
        Self(self.0 | 1 << family.index())
    }

    /// True if this family is in the set.
    #[must_use]
    pub fn contains(self, family: Family) -> bool {
        self.0 & (1 << family.index()) != 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// No family in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The families in AFI order.
    pub fn iter(self) -> impl Iterator<Item = Family> + Clone {
        Family::ALL.into_iter().filter(move |f| self.contains(*f))
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        families.into_iter().fold(Self::NONE, Self::with)
    }
}

/// Negotiated parameters that change the meaning of octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// The peer has another AS.
    pub ebgp: bool,
    /// Both ends write ASes with four octets (RFC 6793).
    pub as4: bool,
    /// Both ends offered messages of up to 65,535 octets (RFC 8654).
    pub extended: bool,
    /// Families that both ends carry.
    pub families: Families,
    /// IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub ext_nexthop: bool,
    /// Families whose received prefixes carry a path identifier (RFC 7911).
    pub add_path_receive: Families,
    /// Families whose sent prefixes carry a path identifier (RFC 7911).
    pub add_path_send: Families,
    /// Withdraw routes with an AS_SET in their path (RFC 9774).
    pub reject_as_sets: bool,
}

impl Negotiated {
    /// The parameters that follow from both OPENs. `reject_as_sets` is on; it is a local choice.
    #[must_use]
    pub fn between(ours: &Open, theirs: &Open) -> Self {
        let (a, b) = (&ours.capabilities, &theirs.capabilities);
        let families = a.carried_families().intersection(b.carried_families());
        let add_path = |from: &Capabilities, to: &Capabilities| {
            families.iter().filter(|f| from.add_path(*f).send && to.add_path(*f).receive).collect()
        };
        Self {
            ebgp: ours.asn != theirs.asn,
            as4: a.as4.is_some() && b.as4.is_some(),
            extended: a.extended_messages && b.extended_messages,
            families,
            ext_nexthop: a.ext_nexthop && b.ext_nexthop,
            add_path_receive: add_path(b, a),
            add_path_send: add_path(a, b),
            reject_as_sets: true,
        }
    }

    /// The longest message that may be sent or received in octets, OPEN and KEEPALIVE apart.
    #[must_use]
    pub fn max_len(&self) -> usize {
        if self.extended { MAX_EXTENDED_LEN } else { MAX_LEN }
    }
}
