//! UPDATE (RFC 4271 4.3) with the error handling of RFC 7606.

use nom::Parser;
use nom::multi::length_data;
use nom::number::complete::be_u16;
use smallvec::SmallVec;

use super::attributes::{Collected, MpReach};
use super::negotiated::Negotiated;
use super::nlri::Nlri;
use super::notification::{ErrorCode, Notification};
use super::problem::Problem;
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

impl<'a> Update<'a> {
    /// Reads the body of an UPDATE.
    ///
    /// # Errors
    /// The UPDATE Message Error to send where RFC 7606 leaves no other way than a session reset.
    pub fn decode(body: &'a [u8], session: &Negotiated) -> Result<Self, Notification> {
        let (withdrawn, attributes, announced) =
            sections(body).ok_or_else(|| Notification::new(ErrorCode::MALFORMED_ATTRIBUTE_LIST))?;
        // The smallest UPDATE is End-of-RIB of IPv4 unicast.
        let mut update = Self::default();
        let v4 = session.families.contains(Family::Ipv4Unicast);
        if withdrawn.is_empty() && attributes.is_empty() && announced.is_empty() {
            update.end_of_rib = v4.then_some(Family::Ipv4Unicast);
            return Ok(update);
        }
        let add_path = session.add_path_receive.contains(Family::Ipv4Unicast);
        let check = |octets| {
            Nlri::check(Family::Ipv4Unicast, add_path, octets)
                .ok_or_else(|| Notification::new(ErrorCode::INVALID_NETWORK_FIELD))
        };
        let (withdrawn, announced) = (check(withdrawn)?, check(announced)?);
        let mut collected = Collected::read(attributes, session)?;
        collected.finish(!announced.is_empty(), session);

        if let Some(nlri) = collected.mp_unreach {
            let alone = !collected.others && withdrawn.is_empty() && announced.is_empty();
            if alone && nlri.is_empty() {
                update.end_of_rib = Some(nlri.family());
            }
            update.withdraw(nlri);
        }
        if v4 {
            update.withdraw(withdrawn);
        }
        update.discarded = std::mem::take(&mut collected.discarded);
        let mp_reach = collected.mp_reach.take().filter(|m| !m.nlri.is_empty());
        if let Some((problem, notification)) = collected.malformed.take() {
            // RFC 7606 5.2: without reachable prefixes some may have been lost in the malformed part. MP_UNREACH_NLRI alone is
            // what withdrawals are.
            if collected.others && announced.is_empty() && mp_reach.is_none() && !collected.foreign_reach {
                return Err(notification);
            }
            update.malformed = Some(problem);
            update.withdraw(announced.filter(v4));
            if let Some(mp) = mp_reach {
                update.withdraw(mp.nlri);
            }
            return Ok(update);
        }
        update.announce(announced.filter(v4), mp_reach, &mut collected);
        Ok(update)
    }

    fn withdraw(&mut self, nlri: Nlri<'a>) {
        if !nlri.is_empty() {
            self.withdrawn.push(nlri);
        }
    }

    fn announce(&mut self, classic: Nlri<'a>, mp: Option<MpReach<'a>>, collected: &mut Collected<'a>) {
        let classic = collected.next_hop.filter(|_| !classic.is_empty()).map(|hop| (classic, hop));
        if classic.is_none() && mp.is_none() {
            return;
        }
        let mut attributes = collected.take_attributes();
        if let Some((nlri, next_hop)) = classic {
            attributes.next_hop = next_hop.into();
            if mp.is_none() {
                self.reach.push(Reach { nlri, attributes });
                return;
            }
            self.reach.push(Reach { nlri, attributes: attributes.clone() });
        }
        if let Some(mp) = mp {
            attributes.next_hop = mp.next_hop.into();
            attributes.link_local = mp.link_local;
            self.reach.push(Reach { nlri: mp.nlri, attributes });
        }
    }
}

/// Splits a body into withdrawn routes, path attributes and prefixes; `None` when the lengths do not fit.
fn sections(body: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (rest, withdrawn) = length_data::<_, (), _>(be_u16).parse(body).ok()?;
    let (nlri, attributes) = length_data::<_, (), _>(be_u16).parse(rest).ok()?;
    Some((withdrawn, attributes, nlri))
}
