//! Keys and prefixes to read in order to find all blocks that overlap a new block.
//!
//! Blocks of different lengths can coexist (the `blockSize` of a pool was changed, pools are nested), so the
//! absence of a block's own key does not show that its addresses are free. Keys are text: blocks within a
//! prefix are found by the leading characters of their addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use tortie_config::key::IpFamily;
use tortie_config::resource::BLOCK_SHORTEST_V4;
use tortie_net::Cidr;

use crate::ipam::keyspace::Keyspace;

/// Keys and key prefixes to read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OverlapKeys {
    pub(super) keys: BTreeSet<String>,
    pub(super) prefixes: BTreeSet<String>,
}

/// Returns keys and prefixes such that each existing block among them shares an address with `cidr`.
pub(super) fn of(keyspace: &Keyspace, cidr: &Cidr) -> OverlapKeys {
    let mut around = OverlapKeys::default();
    let base = keyspace.blocks(IpFamily::of_cidr(cidr));
    match cidr.addr() {
        IpAddr::V4(addr) => {
            // All addresses of a /24 have the same first three numbers in their text form.
            let parts = 1u32 << 24u8.saturating_sub(cidr.len());
            for part in 0..parts {
                let [a, b, c, _] = (u32::from(addr) + (part << 8)).to_be_bytes();
                around.prefixes.insert(format!("{base}{a}.{b}.{c}."));
            }
            let shorter = BLOCK_SHORTEST_V4..cidr.len().min(24);
            around.keys.extend(shorter.map(|len| keyspace.block(&Cidr::v4(addr, len))));
        }
        IpAddr::V6(addr) => {
            // All relevant blocks share the first seven groups. The text form abbreviates zeros differently
            // depending on the last group being zero.
            let zero = Ipv6Addr::from(u128::from(addr) & !0xffff);
            let one = Ipv6Addr::from(u128::from(zero) | 1).to_string();
            around.prefixes.insert(format!("{base}{zero}-"));
            around.prefixes.insert(format!("{base}{}", one.strip_suffix('1').unwrap_or(&one)));
        }
    }
    around
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inside(around: &OverlapKeys, key: &str) -> bool {
        around.keys.contains(key) || around.prefixes.iter().any(|prefix| key.starts_with(prefix))
    }

    fn group() -> impl Strategy<Value = u16> {
        prop_oneof![3 => Just(0u16), 1 => Just(1), 2 => any::<u16>()]
    }

    proptest! {
        #[test]
        fn every_block_that_overlaps_is_found_v6(groups in prop::array::uniform8(group()), len in 116u8..=128,
                                                  last in any::<u16>(), other in 116u8..=128) {
            let block = Cidr::v6(Ipv6Addr::from(groups), len);
            let mut near = groups;
            near[7] = last;
            let near = Cidr::v6(Ipv6Addr::from(near), other);
            if near.overlaps(&block) {
                prop_assert!(inside(&of(&Keyspace::Global, &block), &Keyspace::Global.block(&near)), "{} {}", block, near);
            }
        }

        #[test]
        fn every_block_that_overlaps_is_found_v4(addr in any::<u32>(), len in 20u8..=32, near in 0u32..8192, other in 20u8..=32) {
            let block = Cidr::v4(addr.into(), len);
            let near = Cidr::v4(addr.wrapping_add(near).wrapping_sub(4096).into(), other);
            if near.overlaps(&block) {
                prop_assert!(inside(&of(&Keyspace::Global, &block), &Keyspace::Global.block(&near)), "{} {}", block, near);
            }
        }
    }
}
