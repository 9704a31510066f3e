//! Prefix encoding in UPDATEs (RFC 4271 4.3, RFC 4760 5, RFC 7911 3).

use std::marker::PhantomData;

use tortie_net::Cidr;

use crate::types::Family;

/// An address as an integer: `u32` for IPv4, `u128` for IPv6.
pub trait Address: Copy + Eq + Ord + std::fmt::Debug + sealed::Sealed {
    /// Family of the address.
    const FAMILY: Family;
    /// Address width in bits: 32 or 128.
    const WIDTH: u8;
    #[doc(hidden)]
    type ByteReader: AsRef<[u8]>;
    /// Returns the octets in network order.
    fn octets(self) -> Self::ByteReader;
    /// Returns the address that starts with these octets, masked to the first `len` bits. `len` is at most
    /// [`Address::WIDTH`].
    #[doc(hidden)]
    fn read(octets: &[u8], len: u8) -> Self;
    /// Converts address and length to a prefix. `len` is at most [`Address::WIDTH`].
    fn cidr(self, len: u8) -> Cidr;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u128 {}
}

macro_rules! address {
    ($int:ty, $width:literal, $family:ident, $cidr:ident) => {
        impl Address for $int {
            const FAMILY: Family = Family::$family;
            const WIDTH: u8 = $width * 8;
            type ByteReader = [u8; $width];

            #[inline]
            fn octets(self) -> Self::ByteReader {
                self.to_be_bytes()
            }

            #[inline]
            fn read(octets: &[u8], len: u8) -> Self {
                // Enough octets usually follow a prefix to load a whole address and mask it.
                let word = match octets.first_chunk::<$width>() {
                    Some(whole) => Self::from_be_bytes(*whole),
                    None => {
                        let mut padded = [0; $width];
                        for (to, from) in padded.iter_mut().zip(octets) {
                            *to = *from;
                        }
                        Self::from_be_bytes(padded)
                    }
                };
                let host_bits = Self::BITS.saturating_sub(u32::from(len));
                word & Self::MAX.checked_shl(host_bits).unwrap_or(0)
            }

            #[inline]
            fn cidr(self, len: u8) -> Cidr {
                Cidr::$cidr(self.into(), len)
            }
        }
    };
}

address!(u32, 4, Ipv4Unicast, v4);
address!(u128, 16, Ipv6Unicast, v6);

/// One prefix of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry<A> {
    /// Address with zero host bits, and prefix length in bits.
    pub prefix: (A, u8),
    /// Path identifier (RFC 7911); 0 if the session does not use them.
    pub path_id: u32,
}

/// A sequence of prefixes of one family, borrowed from the message. It was checked as a whole, so iteration
/// cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nlri<'a> {
    family: Family,
    add_path: bool,
    octets: &'a [u8],
}

impl<'a> Nlri<'a> {
    /// Checks that `octets` is a sequence of whole prefixes, none longer than the family allows (RFC 7606
    /// 5.3).
    pub(crate) fn check(family: Family, add_path: bool, octets: &'a [u8]) -> Option<Self> {
        let max = match family {
            Family::Ipv4Unicast => u32::BITS,
            Family::Ipv6Unicast => u128::BITS,
        };
        let skip = if add_path { 4 } else { 0 };
        let mut rest = octets;
        while !rest.is_empty() {
            let (len, tail) = rest.get(skip..)?.split_first()?;
            if u32::from(*len) > max {
                return None;
            }
            rest = tail.get(usize::from(len.div_ceil(8))..)?;
        }
        Some(Self { family, add_path, octets })
    }

    /// Returns the prefixes if `keep` is true, else an empty sequence.
    pub(crate) fn filter(self, keep: bool) -> Self {
        if keep { self } else { Self { octets: &[], ..self } }
    }

    /// Returns the family of the prefixes.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns true if there is no prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Iterates over the IPv4 prefixes; empty for another family.
    #[must_use]
    pub fn v4(&self) -> NlriIter<'a, u32> {
        self.of()
    }

    /// Iterates over the IPv6 prefixes; empty for another family.
    #[must_use]
    pub fn v6(&self) -> NlriIter<'a, u128> {
        self.of()
    }

    /// Iterates over the prefixes of this address type; empty for another family.
    #[must_use]
    pub fn of<A: Address>(&self) -> NlriIter<'a, A> {
        let octets = if self.family == A::FAMILY { self.octets } else { &[] };
        NlriIter { octets, add_path: self.add_path, address: PhantomData }
    }

    /// Iterates over the prefixes of either family, without path identifiers.
    pub fn cidrs(&self) -> impl Iterator<Item = Cidr> + 'a {
        let v4 = self.v4().map(|e| e.prefix.0.cidr(e.prefix.1));
        v4.chain(self.v6().map(|e| e.prefix.0.cidr(e.prefix.1)))
    }
}

/// Iterator over the prefixes of an [`Nlri`].
#[derive(Debug, Clone)]
pub struct NlriIter<'a, A> {
    octets: &'a [u8],
    add_path: bool,
    address: PhantomData<A>,
}

impl<A: Address> Iterator for NlriIter<'_, A> {
    type Item = Entry<A>;

    #[inline]
    fn next(&mut self) -> Option<Entry<A>> {
        let mut path_id = 0;
        let mut rest = self.octets;
        if self.add_path {
            let (id, tail) = rest.split_first_chunk::<4>()?;
            path_id = u32::from_be_bytes(*id);
            rest = tail;
        }
        let (len, tail) = rest.split_first()?;
        let address = A::read(tail, *len);
        self.octets = tail.get(usize::from(len.div_ceil(8))..)?;
        Some(Entry { prefix: (address, *len), path_id })
    }
}

/// Returns the encoded size of a prefix of this length in octets, without path identifier.
#[inline]
pub(crate) fn encoded_len(len: u8) -> usize {
    1 + usize::from(len.div_ceil(8))
}

/// Appends a prefix, with its path identifier if given.
#[inline]
pub(crate) fn write_prefix<A: Address>(out: &mut Vec<u8>, (address, len): (A, u8), path_id: Option<u32>) {
    if let Some(id) = path_id {
        out.extend_from_slice(&id.to_be_bytes());
    }
    out.push(len);
    let octets = address.octets();
    out.extend_from_slice(octets.as_ref().get(..usize::from(len.div_ceil(8))).unwrap_or_default());
}
