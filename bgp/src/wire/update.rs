//! UPDATE message (RFC 4271 4.3) with the error handling of RFC 7606.

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

/// A decoded UPDATE. Apply `withdrawn` before `reach`: a prefix in both is announced (RFC 4271 4.3).
///
/// The prefixes are borrowed from the message; the attributes are owned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Update<'a> {
    /// Unreachable prefixes: those withdrawn by the peer and, if `malformed` is set, those announced.
    pub withdrawn: SmallVec<[Nlri<'a>; 2]>,
    /// Announced prefixes, grouped with their attributes.
    pub reach: SmallVec<[Reach<'a>; 1]>,
    /// First error that caused treat-as-withdraw (RFC 7606 2).
    pub malformed: Option<Problem>,
    /// Attributes that were discarded because of an error or because this peer must not send them.
    pub discarded: SmallVec<[Problem; 1]>,
    /// Set if this UPDATE is the End-of-RIB marker of this family (RFC 4724 2).
    pub end_of_rib: Option<Family>,
}

/// Announced prefixes of one family, with their attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach<'a> {
    /// Announced prefixes, not empty.
    pub nlri: Nlri<'a>,
    /// The attributes, with the next hop of the field or attribute that has the prefixes.
    pub attributes: Attributes,
}

impl<'a> Update<'a> {
    /// Decodes the body of an UPDATE.
    ///
    /// # Errors
    /// The UPDATE Message Error to send, where RFC 7606 requires a session reset.
    pub fn decode(body: &'a [u8], session: &Negotiated) -> Result<Self, Notification> {
        let (withdrawn, attributes, announced) =
            sections(body).ok_or_else(|| Notification::new(ErrorCode::MALFORMED_ATTRIBUTE_LIST))?;
        // The minimum-length UPDATE is End-of-RIB of IPv4 unicast (RFC 4724 2).
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
            // RFC 7606 5.2: an UPDATE without reachable prefixes may have lost them in the malformed part, so
            // it resets the session. If MP_UNREACH_NLRI is the only attribute, the UPDATE is a withdrawal.
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

/// Splits a body into withdrawn routes, path attributes and NLRI. `None` if the lengths exceed the body.
fn sections(body: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (rest, withdrawn) = length_data::<_, (), _>(be_u16).parse(body).ok()?;
    let (nlri, attributes) = length_data::<_, (), _>(be_u16).parse(rest).ok()?;
    Some((withdrawn, attributes, nlri))
}
