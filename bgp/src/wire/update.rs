//! UPDATE (RFC 4271 4.3) with the error handling of RFC 7606.

use smallvec::SmallVec;

use super::nlri::Nlri;
use crate::attr::Attributes;
use crate::types::Family;

/// A decoded UPDATE. Apply `withdrawn` first, then `reach`: where both name a prefix, it is announced (RFC 4271 4.3).
///
/// The prefixes still lie in the message; the attributes are owned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update<'a> {
    /// Prefixes that are no longer reachable: those that the peer withdrew and, when `malformed` is set, those that it
    /// announced.
    pub withdrawn: SmallVec<[Nlri<'a>; 2]>,
    /// Prefixes that are announced, each run with its attributes.
    pub reach: SmallVec<[Reach<'a>; 1]>,
    /// Treat-as-withdraw (RFC 7606 2): the first reason for it.
    pub malformed: Option<Problem>,
    /// Attributes that were left out because of an error or because they must not come from this peer.
    pub discarded: SmallVec<[Problem; 1]>,
    /// This is End-of-RIB of this family (RFC 4724 2).
    pub end_of_rib: Option<Family>,
}

/// Announced prefixes of one family and their attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach<'a> {
    /// The prefixes.
    pub nlri: Nlri<'a>,
    /// Their attributes, with the next hop that stood beside them.
    pub attributes: Attributes,
}

/// What is wrong with an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Its type code.
    pub attribute: u8,
    /// In words.
    pub reason: &'static str,
}
