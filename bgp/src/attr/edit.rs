//! Attribute changes that import and export policy apply to a route.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Attributes, retain};

/// A pattern that matches all values equal to `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Masked<T> {
    /// Bits to match.
    pub value: T,
    /// Set bits are compared, clear bits are ignored.
    pub mask: T,
}

/// New next hop of [`Edit::NextHop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EditNextHop {
    /// The local address towards the peer. On import it makes the route unusable (RFC 4271 5.1.3).
    Own,
    /// This address. A route of another family is not used, or not announced.
    Address(IpAddr),
}

impl fmt::Display for EditNextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("our own next hop"),
            Self::Address(address) => write!(f, "next hop {address}"),
        }
    }
}

/// One attribute change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Edit {
    /// Sets LOCAL_PREF. It is not sent to eBGP peers (RFC 4271 5.1.5).
    LocalPref(u32),
    /// Sets (`Some`) or removes (`None`) MULTI_EXIT_DISC.
    Med(Option<u32>),
    /// Adds to MULTI_EXIT_DISC, up to 4,294,967,295. A missing value counts as 0.
    MedAdd(u32),
    /// Subtracts from MULTI_EXIT_DISC, down to 0. A missing value counts as 0.
    MedSub(u32),
    /// Prepends an AS to AS_PATH. On export it goes behind the AS that the session itself prepends.
    Prepend {
        /// AS to prepend. `None`: the AS of the peer on import, the local AS on export. On iBGP sessions
        /// `None` prepends nothing, as the result would be an AS loop.
        asn: Option<u32>,
        /// Number of times.
        times: u8,
    },
    /// Sets the next hop.
    NextHop(EditNextHop),
    /// Removes matching communities.
    RemoveCommunities(Box<[Masked<u32>]>),
    /// Adds communities that the route does not have yet.
    AddCommunities(Box<[u32]>),
    /// Removes matching large communities.
    RemoveLarge(Box<[Masked<[u32; 3]>]>),
    /// Adds large communities that the route does not have yet.
    AddLarge(Box<[[u32; 3]]>),
    /// Removes matching extended communities.
    RemoveExtended(Box<[Masked<[u8; 8]>]>),
    /// Adds extended communities that the route does not have yet. On export to an eBGP peer, added
    /// non-transitive ones are sent too; received ones are removed (RFC 4360 6).
    AddExtended(Box<[[u8; 8]]>),
}

/// An ordered list of changes; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Edits(Option<Arc<[Edit]>>);

impl Edits {
    /// The empty list.
    pub const NONE: Self = Self(None);

    /// Returns true if the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the changes in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Edit] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Applies all changes but the next hop, which depends on the session. `own`: default AS of
    /// [`Edit::Prepend`].
    pub(crate) fn apply(&self, a: &mut Attributes, own: Option<u32>) {
        for edit in self.as_slice() {
            match edit {
                Edit::LocalPref(pref) => a.local_pref = Some(*pref),
                Edit::Med(med) => a.med = *med,
                Edit::MedAdd(by) => a.med = Some(a.med.unwrap_or(0).saturating_add(*by)),
                Edit::MedSub(by) => a.med = Some(a.med.unwrap_or(0).saturating_sub(*by)),
                Edit::Prepend { asn, times } => {
                    if let Some(asn) = asn.or(own).filter(|asn| *asn != 0) {
                        a.as_path = a.as_path.prepend(asn, usize::from(*times));
                    }
                }
                Edit::NextHop(_) => {}
                Edit::RemoveCommunities(masks) => {
                    retain(&mut a.communities, |c| !masks.iter().any(|m| c & m.mask == m.value & m.mask));
                }
                Edit::AddCommunities(add) => a.add_communities(add),
                Edit::RemoveLarge(masks) => retain(&mut a.large_communities, |c| {
                    !masks.iter().any(|m| same(c, &m.value, &m.mask, |a, b| a & b))
                }),
                Edit::AddLarge(add) => a.add_large_communities(add),
                Edit::RemoveExtended(masks) => a.edit_extra(|e| {
                    retain(&mut e.ext_communities, |c| {
                        !masks.iter().any(|m| same(c, &m.value, &m.mask, |a, b| a & b))
                    });
                }),
                Edit::AddExtended(add) => {
                    a.edit_extra(|e| super::extend_set(&mut e.ext_communities, add));
                }
            }
        }
    }

    /// Returns the next hop of the last [`Edit::NextHop`].
    pub(crate) fn next_hop(&self) -> Option<EditNextHop> {
        self.as_slice().iter().rev().find_map(|e| if let Edit::NextHop(hop) = e { Some(*hop) } else { None })
    }

    /// Returns true if a change sets or removes MULTI_EXIT_DISC, so that the value is not the received one.
    pub(crate) fn touch_med(&self) -> bool {
        self.as_slice().iter().any(|e| matches!(e, Edit::Med(_) | Edit::MedAdd(_) | Edit::MedSub(_)))
    }

    /// Returns an upper limit, in octets, on how much the changes lengthen a message.
    pub(crate) fn growth(&self) -> usize {
        let of = |edit: &Edit| match edit {
            Edit::Prepend { times, .. } => usize::from(*times) * 8,
            Edit::AddCommunities(add) => add.len() * 4,
            Edit::AddLarge(add) => add.len() * 12,
            Edit::AddExtended(add) => add.len() * 8,
            _ => 8,
        };
        self.as_slice().iter().map(of).sum()
    }
}

impl FromIterator<Edit> for Edits {
    fn from_iter<I: IntoIterator<Item = Edit>>(edits: I) -> Self {
        let edits: Arc<[Edit]> = edits.into_iter().collect();
        Self((!edits.is_empty()).then_some(edits))
    }
}

fn same<T: Copy + PartialEq, const N: usize>(
    a: &[T; N],
    value: &[T; N],
    mask: &[T; N],
    and: impl Fn(T, T) -> T,
) -> bool {
    a.iter().zip(value).zip(mask).all(|((a, v), m)| and(*a, *m) == and(*v, *m))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::attr::AsPath;

    fn edited(edits: impl IntoIterator<Item = Edit>, edit: impl FnOnce(&mut Attributes)) -> Attributes {
        let mut a = Attributes::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
        edit(&mut a);
        edits.into_iter().collect::<Edits>().apply(&mut a, Some(64500));
        a
    }

    #[test]
    fn changes_act_in_their_order() {
        let all = || Box::from([Masked { value: 0, mask: 0 }]);
        let a = edited([Edit::AddCommunities([1, 2].into()), Edit::RemoveCommunities(all())], |_| ());
        assert!(a.communities.is_empty());
        let a = edited([Edit::RemoveCommunities(all()), Edit::AddCommunities([1, 2].into())], |a| {
            a.add_communities(&[7]);
        });
        assert_eq!(*a.communities, [1, 2]);
    }

    #[test]
    fn removal_looks_at_the_bits_that_count() {
        let of_65000 = Masked { value: 65000 << 16 | 99, mask: 0xffff_0000 };
        let a = edited([Edit::RemoveCommunities([of_65000].into())], |a| {
            a.add_communities(&[65000 << 16 | 1, 65001 << 16 | 1]);
        });
        assert_eq!(*a.communities, [65001 << 16 | 1]);
        let middle = Masked { value: [0, 5, 0], mask: [0, u32::MAX, 0] };
        let a = edited([Edit::RemoveLarge([middle].into())], |a| {
            a.add_large_communities(&[[1, 5, 1], [1, 6, 1]]);
        });
        assert_eq!(*a.large_communities, [[1, 6, 1]]);
        let target = Masked { value: [0, 2, 0, 0, 0, 0, 0, 0], mask: [255, 255, 0, 0, 0, 0, 0, 0] };
        let a = edited([Edit::RemoveExtended([target].into())], |a| {
            a.edit_extra(|e| e.ext_communities = [[0, 2, 1, 1, 0, 0, 0, 1]].into());
        });
        assert!(a.extra().is_none());
    }

    #[test]
    fn med_stays_in_its_range_and_starts_at_zero() {
        let med = |edit, med| edited([edit], |a| a.med = med).med;
        assert_eq!(med(Edit::MedAdd(10), None), Some(10));
        assert_eq!(med(Edit::MedAdd(10), Some(u32::MAX - 3)), Some(u32::MAX));
        assert_eq!(med(Edit::MedSub(10), Some(3)), Some(0));
        assert_eq!(med(Edit::Med(None), Some(3)), None);
    }

    #[test]
    fn a_full_segment_is_never_overrun() {
        // RFC 4271 4.3: a segment has at most 255 ASes.
        let path = AsPath::from_sequence(&[65001; 250]);
        let a = edited([Edit::Prepend { asn: None, times: 255 }], |a| a.as_path = path);
        assert_eq!(a.as_path.hops(), 505);
        assert!(a.as_path.segments().all(|s| s.len() <= 255));
        assert_eq!(a.as_path.count(64500), 255);
    }
}
