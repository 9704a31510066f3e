//! Session parameters that both OPENs agree on.

use super::capability::Capabilities;
use super::families::Families;
use super::frame::{MAX_EXTENDED_LEN, MAX_LEN};
use super::open::Open;

/// Negotiated parameters that change the encoding or interpretation of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// True if the peer is in another AS.
    pub ebgp: bool,
    /// Both ends encode AS numbers in four octets (RFC 6793).
    pub as4: bool,
    /// Both ends offered messages of up to 65,535 octets (RFC 8654).
    pub extended: bool,
    /// Families that both ends carry.
    pub families: Families,
    /// IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub ext_nexthop: bool,
    /// Families with path identifiers in received prefixes (RFC 7911).
    pub add_path_receive: Families,
    /// Families with path identifiers in sent prefixes (RFC 7911).
    pub add_path_send: Families,
    /// Treat-as-withdraw for routes with an AS_SET in the path (RFC 9774).
    pub reject_as_sets: bool,
}

impl Negotiated {
    /// Returns the parameters that both OPENs agree on. `reject_as_sets` is a local choice and is set to
    /// true.
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

    /// Returns the maximum message length in octets, for messages other than OPEN and KEEPALIVE.
    #[must_use]
    pub fn max_len(&self) -> usize {
        if self.extended { MAX_EXTENDED_LEN } else { MAX_LEN }
    }
}
