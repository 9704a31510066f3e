//! Order in which a host searches the blocks of a pool: from an offset that is a hash of the host name to the
//! end of the pool, then from its beginning. The offset spreads hosts over the pool, and each host repeats
//! the same order.

use std::net::IpAddr;

use tortie_net::Cidr;

/// Search order over all blocks of one length within a range of a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockOrder {
    pool: Cidr,
    len: u8,
    /// Index of the first block of the range.
    low: u128,
    /// Number of blocks in the range; saturates at 2^128 - 1.
    count: u128,
    start: u128,
}

/// 64-bit FNV-1a hash, which is the same on every architecture and in every version.
fn hash(host: &str) -> u64 {
    host.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl BlockOrder {
    /// Creates the order for blocks of length `len` that overlap the range `first` to `last` of the pool.
    pub(super) fn new(host: &str, pool: Cidr, len: u8, first: IpAddr, last: IpAddr) -> Self {
        let shift = u32::from(pool.max_len() - len);
        let index = |addr| pool.ordinal(addr).unwrap_or(0).checked_shr(shift).unwrap_or(0);
        let (low, high) = (index(first), index(last));
        let count = high.saturating_sub(low).saturating_add(1);
        Self { pool, len, low, count, start: u128::from(hash(host)) % count }
    }

    /// Iterates over the blocks in search order.
    pub(super) fn blocks(self) -> impl Iterator<Item = Cidr> {
        let shift = u32::from(self.pool.max_len() - self.len);
        let mut step = 0u128;
        std::iter::from_fn(move || {
            if step >= self.count {
                return None;
            }
            // `start` and `step` are both below `count`, so the sum cannot overflow below 2^127 blocks.
            let index = self.low + (self.start + step) % self.count;
            step += 1;
            let addr = self.pool.nth(index.checked_shl(shift)?)?;
            Cidr::new(addr, self.len).ok()
        })
    }

    /// Returns the position of a block, of any length, in the search order.
    pub(super) fn place(&self, block: &Cidr) -> u128 {
        let shift = u32::from(self.pool.max_len() - self.len);
        let index = self.pool.ordinal(block.addr()).unwrap_or(0).checked_shr(shift).unwrap_or(0);
        let index = index.saturating_sub(self.low).min(self.count - 1);
        if index >= self.start { index - self.start } else { self.count - self.start + index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(host: &str, pool: &str, len: u8) -> BlockOrder {
        let pool: Cidr = pool.parse().unwrap();
        BlockOrder::new(host, pool, len, pool.addr(), pool.last())
    }

    #[test]
    fn every_block_once_from_a_start_of_the_host_s_own() {
        let blocks: Vec<Cidr> = order("h1", "10.0.0.0/22", 26).blocks().collect();
        assert_eq!(blocks.len(), 16);
        let mut sorted = blocks.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 16);
        assert_eq!(sorted.first().unwrap().to_string(), "10.0.0.0/26");
        let starts: std::collections::BTreeSet<Cidr> =
            (0..64).filter_map(|n| order(&format!("node-{n}"), "10.0.0.0/16", 26).blocks().next()).collect();
        assert!(starts.len() > 55, "{} starts for 64 hosts", starts.len());
        let all = order("h1", "10.0.0.0/22", 26);
        for (place, block) in (0u128..).zip(&blocks) {
            assert_eq!(all.place(block), place);
        }
    }

    #[test]
    fn the_largest_and_the_smallest_pools() {
        assert!(order("h", "::/0", 122).blocks().next().is_some());
        assert!(order("h", "::/0", 128).blocks().next().is_some());
        assert_eq!(order("h", "10.0.0.4/32", 32).blocks().count(), 1);
        let pool: Cidr = "10.0.0.0/16".parse().unwrap();
        let part = BlockOrder::new("h", pool, 26, "10.0.1.10".parse().unwrap(), "10.0.1.70".parse().unwrap());
        let mut blocks: Vec<String> = part.blocks().map(|b| b.to_string()).collect();
        blocks.sort();
        assert_eq!(blocks, ["10.0.1.0/26", "10.0.1.64/26"]);
    }
}
