//! Maps from prefixes to values, with one trie per address family.

use std::net::IpAddr;

use prefix_trie::PrefixMap;
use smallvec::SmallVec;
use tortie_net::Cidr;

/// A map with one trie per address family.
#[derive(Debug)]
pub(super) struct Tries<T> {
    v4: PrefixMap<(u32, u8), T>,
    v6: PrefixMap<(u128, u8), T>,
}

impl<T> Default for Tries<T> {
    fn default() -> Self {
        Self { v4: PrefixMap::new(), v6: PrefixMap::new() }
    }
}

impl<T> Tries<T> {
    pub(super) fn get_mut(&mut self, prefix: &Cidr) -> Option<&mut T> {
        match prefix.addr() {
            IpAddr::V4(a) => self.v4.get_mut(&(a.into(), prefix.len())),
            IpAddr::V6(a) => self.v6.get_mut(&(a.into(), prefix.len())),
        }
    }

    pub(super) fn get(&self, prefix: &Cidr) -> Option<&T> {
        match prefix.addr() {
            IpAddr::V4(a) => self.v4.get(&(a.into(), prefix.len())),
            IpAddr::V6(a) => self.v6.get(&(a.into(), prefix.len())),
        }
    }

    pub(super) fn insert(&mut self, prefix: &Cidr, value: T) {
        match prefix.addr() {
            IpAddr::V4(a) => self.v4.insert((a.into(), prefix.len()), value),
            IpAddr::V6(a) => self.v6.insert((a.into(), prefix.len()), value),
        };
    }

    pub(super) fn remove(&mut self, prefix: &Cidr) {
        match prefix.addr() {
            IpAddr::V4(a) => self.v4.remove(&(a.into(), prefix.len())),
            IpAddr::V6(a) => self.v6.remove(&(a.into(), prefix.len())),
        };
    }

    /// Returns the entries that cover an address, longest prefix first.
    pub(super) fn covering(&self, addr: IpAddr) -> SmallVec<[(Cidr, &T); 8]> {
        let mut found: SmallVec<[(Cidr, &T); 8]> = match addr {
            IpAddr::V4(a) => {
                self.v4.cover(&(a.into(), 32)).map(|((p, l), t)| (Cidr::v4(p.into(), l), t)).collect()
            }
            IpAddr::V6(a) => {
                self.v6.cover(&(a.into(), 128)).map(|((p, l), t)| (Cidr::v6(p.into(), l), t)).collect()
            }
        };
        found.reverse();
        found
    }

    /// Calls `each` for the address of every entry inside a prefix.
    pub(super) fn inside(&self, prefix: &Cidr, mut each: impl FnMut(IpAddr)) {
        match prefix.addr() {
            IpAddr::V4(a) => self
                .v4
                .children(&(a.into(), prefix.len()))
                .for_each(|((p, _), _)| each(IpAddr::from(p.to_be_bytes()))),
            IpAddr::V6(a) => self
                .v6
                .children(&(a.into(), prefix.len()))
                .for_each(|((p, _), _)| each(IpAddr::from(p.to_be_bytes()))),
        }
    }
}
