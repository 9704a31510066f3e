//! Path attributes of a route as values, without its prefixes.
//!
//! [`Attributes`] is designed for interning: `Eq` and `Hash`, boxed slices without spare capacity, rare
//! attributes behind one pointer. [`AsPath`] is the AS path. [`Edits`] are the changes that policy applies.
//! Encoding and decoding are in [`wire`](crate::wire); the decision process is not part of this module.

mod as_path;
mod edit;

use std::mem::take;
use std::net::{Ipv4Addr, Ipv6Addr};

use tortie_net::ScopedAddr;

pub use as_path::{AsPath, Segment, SegmentKind, Segments};
pub use edit::{Edit, EditNextHop, Edits, Masked};

/// AS_TRANS (RFC 6793): replaces an AS above 65,535 in two-octet fields.
pub const AS_TRANS: u32 = AS_TRANS_SHORT as u32;

/// Type code of the IPv6 address specific extended communities attribute (RFC 5701), which is passed on
/// unchanged.
pub(crate) const IPV6_EXT_COMMUNITIES: u8 = 25;

/// [`AS_TRANS`] as a two-octet number.
pub(crate) const AS_TRANS_SHORT: u16 = 23456;

/// Well-known communities (RFC 1997, RFC 7999, RFC 8326, RFC 9494).
pub mod community {
    /// GRACEFUL_SHUTDOWN (RFC 8326): the path goes down soon.
    pub const GRACEFUL_SHUTDOWN: u32 = 0xFFFF_0000;
    /// BLACKHOLE (RFC 7999): discard traffic to the prefix.
    pub const BLACKHOLE: u32 = 0xFFFF_029A;
    /// NO_EXPORT (RFC 1997): not announced to eBGP peers.
    pub const NO_EXPORT: u32 = 0xFFFF_FF01;
    /// NO_ADVERTISE (RFC 1997): not announced to any peer.
    pub const NO_ADVERTISE: u32 = 0xFFFF_FF02;
    /// NO_EXPORT_SUBCONFED (RFC 1997): not announced to eBGP peers, including those inside a confederation.
    pub const NO_EXPORT_SUBCONFED: u32 = 0xFFFF_FF03;
    /// LLGR_STALE (RFC 9494): long-lived stale route.
    pub const LLGR_STALE: u32 = 0xFFFF_0006;
    /// NO_LLGR (RFC 9494): not kept as long-lived stale.
    pub const NO_LLGR: u32 = 0xFFFF_0007;
}

/// ORIGIN (RFC 4271 5.1.1). The lower value is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Origin {
    /// Interior to the originating AS.
    #[default]
    Igp = 0,
    /// Learned by EGP (RFC 904).
    Egp = 1,
    /// Learned by other means.
    Incomplete = 2,
}

impl Origin {
    /// Returns the origin with this code. `None` if the code is not assigned.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Igp),
            1 => Some(Self::Egp),
            2 => Some(Self::Incomplete),
            _ => None,
        }
    }

    /// Returns the origin as text: `igp`, `egp` or `incomplete`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Igp => "igp",
            Self::Egp => "egp",
            Self::Incomplete => "incomplete",
        }
    }
}

/// AGGREGATOR (RFC 4271 5.1.7), after the merge of RFC 6793.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregator {
    /// AS that formed the aggregate.
    pub asn: u32,
    /// BGP identifier of the speaker that formed it.
    pub router_id: Ipv4Addr,
}

/// An optional transitive attribute that is passed on unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opaque {
    /// Attribute flags without Extended Length, which the encoder computes. Partial is set if this speaker
    /// does not recognise the attribute (RFC 4271 5).
    pub flags: u8,
    /// Attribute type code.
    pub code: u8,
    /// Attribute value.
    pub value: Box<[u8]>,
}

/// Recognised optional transitive attributes that have the Partial bit: a speaker on the path did not
/// recognise them, or added them later. Once set, the bit stays (RFC 4271 5). [`Opaque`] attributes have it
/// in their flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Partial(u8);

impl Partial {
    /// No attribute.
    pub const NONE: Self = Self(0);
    /// AGGREGATOR (RFC 4271 5.1.7).
    pub const AGGREGATOR: Self = Self(1);
    /// COMMUNITIES (RFC 1997).
    pub const COMMUNITIES: Self = Self(1 << 1);
    /// Extended communities (RFC 4360).
    pub const EXT_COMMUNITIES: Self = Self(1 << 2);
    /// AS4_PATH (RFC 6793), used on two-octet sessions only.
    pub const AS4_PATH: Self = Self(1 << 3);
    /// AS4_AGGREGATOR (RFC 6793), used on two-octet sessions only.
    pub const AS4_AGGREGATOR: Self = Self(1 << 4);
    /// Large communities (RFC 8092).
    pub const LARGE_COMMUNITIES: Self = Self(1 << 5);
    /// ONLY_TO_CUSTOMER (RFC 9234).
    pub const OTC: Self = Self(1 << 6);

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without the attributes in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if all attributes in `other` are in the set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Rare attributes of a route; see [`Attributes::extra`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Extra {
    /// AGGREGATOR (RFC 4271 5.1.7).
    pub aggregator: Option<Aggregator>,
    /// ORIGINATOR_ID (RFC 4456 8).
    pub originator_id: Option<u32>,
    /// AS number in ONLY_TO_CUSTOMER (RFC 9234 5).
    pub otc: Option<u32>,
    /// CLUSTER_LIST (RFC 4456 8), nearest reflector first.
    pub cluster_list: Box<[u32]>,
    /// Extended communities (RFC 4360), eight octets each.
    pub ext_communities: Box<[[u8; 8]]>,
    /// Optional transitive attributes that are passed on unchanged, in the order received.
    pub opaque: Box<[Opaque]>,
}

/// Path attributes of a route.
///
/// Routes with equal attributes compare and hash equal, so they can share one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// ORIGIN (RFC 4271 5.1.1).
    pub origin: Origin,
    /// True if ATOMIC_AGGREGATE is present.
    pub atomic_aggregate: bool,
    /// Attributes with the Partial bit. Bits of absent attributes have no meaning.
    pub partial: Partial,
    /// Next hop: NEXT_HOP, or the global address of MP_REACH_NLRI, or its link-local address if it has no
    /// global one.
    pub next_hop: ScopedAddr,
    /// Link-local address of MP_REACH_NLRI, next to or instead of a global one (RFC 2545 3).
    pub link_local: Option<Ipv6Addr>,
    /// MULTI_EXIT_DISC (RFC 4271 5.1.4).
    pub med: Option<u32>,
    /// LOCAL_PREF (RFC 4271 5.1.5); never received from or sent to an eBGP peer.
    pub local_pref: Option<u32>,
    /// AS_PATH, after the merge of RFC 6793.
    pub as_path: AsPath,
    /// Communities (RFC 1997) in the order received.
    pub communities: Box<[u32]>,
    /// Large communities (RFC 8092) in the order received, without duplicates.
    pub large_communities: Box<[[u32; 3]]>,
    /// `None` if all rare attributes are absent; see [`Attributes::edit_extra`].
    extra: Option<Box<Extra>>,
}

impl Attributes {
    /// Returns attributes with this next hop, ORIGIN IGP, an empty AS_PATH and nothing else.
    #[must_use]
    pub fn new(next_hop: impl Into<ScopedAddr>) -> Self {
        Self {
            origin: Origin::Igp,
            atomic_aggregate: false,
            partial: Partial::NONE,
            next_hop: next_hop.into(),
            link_local: None,
            med: None,
            local_pref: None,
            as_path: AsPath::default(),
            communities: Box::default(),
            large_communities: Box::default(),
            extra: None,
        }
    }

    /// Returns the rare attributes. `None` if the route has none of them.
    #[must_use]
    pub fn extra(&self) -> Option<&Extra> {
        self.extra.as_deref()
    }

    /// Changes the rare attributes through a closure. Afterwards an all-default value is dropped, so that
    /// equal attributes compare equal.
    pub fn edit_extra(&mut self, edit: impl FnOnce(&mut Extra)) {
        let mut extra = self.extra.take().unwrap_or_default();
        edit(&mut extra);
        if *extra != Extra::default() {
            self.extra = Some(extra);
        }
    }

    /// Returns AGGREGATOR.
    #[must_use]
    pub fn aggregator(&self) -> Option<Aggregator> {
        self.extra().and_then(|e| e.aggregator)
    }

    /// Returns ORIGINATOR_ID (RFC 4456 8).
    #[must_use]
    pub fn originator_id(&self) -> Option<u32> {
        self.extra().and_then(|e| e.originator_id)
    }

    /// Returns the AS number in ONLY_TO_CUSTOMER (RFC 9234 5).
    #[must_use]
    pub fn otc(&self) -> Option<u32> {
        self.extra().and_then(|e| e.otc)
    }

    /// Returns CLUSTER_LIST (RFC 4456 8), nearest reflector first.
    #[must_use]
    pub fn cluster_list(&self) -> &[u32] {
        self.extra().map_or(&[], |e| &e.cluster_list)
    }

    /// Returns the extended communities (RFC 4360).
    #[must_use]
    pub fn ext_communities(&self) -> &[[u8; 8]] {
        self.extra().map_or(&[], |e| &e.ext_communities)
    }

    /// Returns the optional transitive attributes that are passed on unchanged.
    #[must_use]
    pub fn opaque(&self) -> &[Opaque] {
        self.extra().map_or(&[], |e| &e.opaque)
    }

    /// Returns true if the route has this community.
    #[must_use]
    pub fn has_community(&self, community: u32) -> bool {
        self.communities.contains(&community)
    }

    /// Adds communities that the route does not have yet.
    pub fn add_communities(&mut self, add: &[u32]) {
        extend_set(&mut self.communities, add);
    }

    /// Adds large communities that the route does not have yet.
    pub fn add_large_communities(&mut self, add: &[[u32; 3]]) {
        extend_set(&mut self.large_communities, add);
    }

    /// Removes the non-transitive extended communities, which must not leave the AS (RFC 4360 6, RFC 5701 2).
    pub(crate) fn drop_non_transitive(&mut self) {
        let short = self.ext_communities().iter().any(|c| stays_inside(c));
        let long = self.opaque().iter().any(|o| long_communities(o).iter().any(|c| stays_inside(c)));
        if !short && !long {
            return;
        }
        self.edit_extra(|e| {
            retain(&mut e.ext_communities, |c| !stays_inside(c));
            let is_long = |o: &Opaque| o.code == IPV6_EXT_COMMUNITIES;
            for opaque in e.opaque.iter_mut().filter(|o| is_long(o)) {
                opaque.value = long_communities(opaque)
                    .iter()
                    .filter(|c| !stays_inside(*c))
                    .flatten()
                    .copied()
                    .collect();
            }
            // An attribute without communities would be malformed (RFC 7606 7.15).
            if e.opaque.iter().any(|o| is_long(o) && o.value.is_empty()) {
                let rest = take(&mut e.opaque).into_iter().filter(|o| !is_long(o) || !o.value.is_empty());
                e.opaque = rest.collect();
            }
        });
    }

    /// Removes the origin validation state of another AS (RFC 8097 2), which this AS has not verified.
    pub(crate) fn drop_validation_state(&mut self) {
        let is_state = |c: &[u8; 8]| c.starts_with(&[0x43, 0]);
        if self.ext_communities().iter().any(is_state) {
            self.edit_extra(|e| retain(&mut e.ext_communities, |c| !is_state(c)));
        }
    }
}

/// Returns the communities of an IPv6 address specific extended communities attribute (RFC 5701), else none.
fn long_communities(opaque: &Opaque) -> &[[u8; 20]] {
    if opaque.code == IPV6_EXT_COMMUNITIES { opaque.value.as_chunks().0 } else { &[] }
}

/// Returns true for a non-transitive extended community of either length: the second bit of the type is set.
fn stays_inside(community: &[u8]) -> bool {
    community.first().is_some_and(|kind| kind & 0x40 != 0)
}

fn extend_set<T: Copy + PartialEq>(set: &mut Box<[T]>, add: &[T]) {
    if add.iter().all(|c| set.contains(c)) {
        return;
    }
    let mut all = take(set).into_vec();
    for c in add {
        if !all.contains(c) {
            all.push(*c);
        }
    }
    *set = all.into_boxed_slice();
}

fn retain<T: Copy>(set: &mut Box<[T]>, keep: impl Fn(&T) -> bool) {
    if !set.iter().all(&keep) {
        *set = set.iter().copied().filter(keep).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_extra_compares_equal_to_none() {
        let plain = Attributes::new(Ipv4Addr::new(192, 0, 2, 1));
        let mut edited = plain.clone();
        edited.edit_extra(|e| e.otc = Some(64496));
        assert_ne!(plain, edited);
        assert_eq!(edited.otc(), Some(64496));
        edited.edit_extra(|e| e.otc = None);
        assert_eq!(plain, edited);
        assert!(edited.extra().is_none());
    }

    #[test]
    fn communities_are_added_once() {
        let mut a = Attributes::new(Ipv4Addr::LOCALHOST);
        a.add_communities(&[1, 2, 1]);
        a.add_communities(&[2, 3]);
        assert_eq!(&*a.communities, &[1, 2, 3]);
    }

    #[test]
    fn non_transitive_extended_communities_of_both_kinds_are_dropped() {
        let mut a = Attributes::new(Ipv4Addr::LOCALHOST);
        let (inside, onward) = ([0x40, 4, 0, 0, 0, 0, 0, 1], [0x80, 4, 0, 0, 0, 0, 0, 1]);
        // RFC 5701 2: same type octets, 20 octets per community.
        let long = |first| [&[first, 2][..], &[7; 18]].concat();
        let opaque = |code, value: Vec<u8>| Opaque { flags: 0xc0, code, value: value.into() };
        let other = opaque(99, long(0x40));
        a.edit_extra(|e| {
            e.ext_communities = [inside, onward].into();
            e.opaque = [opaque(25, [long(0x40), long(0)].concat()), other.clone()].into();
        });
        a.drop_non_transitive();
        assert_eq!(a.ext_communities(), [onward]);
        assert_eq!(a.opaque(), [opaque(25, long(0)), other.clone()]);
        a.edit_extra(|e| {
            e.ext_communities = [inside].into();
            e.opaque = [opaque(25, long(0x40)), other.clone()].into();
        });
        a.drop_non_transitive();
        assert!(a.ext_communities().is_empty(), "no attribute without a community is left");
        assert_eq!(a.opaque(), [other]);
    }

    #[test]
    fn a_set_stays_small() {
        // The 116,000 attribute sets of a full table, with one million routes, have to fit into 100 MB.
        assert!(size_of::<Attributes>() <= 112, "{}", size_of::<Attributes>());
    }
}
