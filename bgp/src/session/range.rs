//! Ranges of dynamic peers: longest-prefix lookup of an address, and the peers of each range.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use crate::api::{Dial, Down, PeerConfig, RangeConfig, RangeId};

/// A configured range with its state.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) config: RangeConfig,
    /// Source numbers of its dynamic peers.
    pub(crate) peers: BTreeSet<u32>,
    /// Number of connections refused because the range was full.
    pub(crate) refused: u64,
    /// Addresses of removed peers that had been Established.
    pub(crate) former_peers: FormerPeers,
    /// Address, reason and time of the last end of a session or attempt.
    pub(crate) last_down: Option<(ScopedAddr, Down, Instant)>,
}

/// Addresses that had a session since our start: our OPEN then reports uninterrupted forwarding (RFC 4724 3).
/// Bounded: two halves, of which the older is dropped when the newer is full.
#[derive(Debug, Clone, Default)]
pub(crate) struct FormerPeers([BTreeSet<ScopedAddr>; 2]);

impl FormerPeers {
    /// Adds an address. `max`: capacity of each half.
    pub(crate) fn note(&mut self, address: ScopedAddr, max: usize) {
        let Self([new, old]) = self;
        if new.len() >= max {
            *old = std::mem::take(new);
        }
        new.insert(address);
    }

    pub(crate) fn has(&self, address: ScopedAddr) -> bool {
        self.0.iter().any(|half| half.contains(&address))
    }
}

/// All ranges, with longest-prefix lookup.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges {
    by_id: BTreeMap<RangeId, Range>,
    /// Ranges by prefix; if several have the same prefix, the first one applies.
    by_prefix: BTreeMap<Cidr, SmallVec<[RangeId; 1]>>,
    /// Prefix lengths in use, longest first, with the number of ranges of each; IPv4, then IPv6.
    lengths: [BTreeMap<std::cmp::Reverse<u8>, usize>; 2],
}

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn get(&self, id: RangeId) -> Option<&Range> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: RangeId) -> Option<&mut Range> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RangeId, &Range)> {
        self.by_id.iter().map(|(id, range)| (*id, range))
    }

    /// Returns the range with the longest prefix that contains the address.
    pub(crate) fn of(&self, addr: IpAddr) -> Option<RangeId> {
        let [v4, v6] = &self.lengths;
        let lengths = if addr.is_ipv4() { v4 } else { v6 };
        lengths.keys().find_map(|std::cmp::Reverse(len)| {
            let prefix = Cidr::new(addr, *len).ok()?;
            self.by_prefix.get(&prefix)?.first().copied()
        })
    }

    /// Adds or replaces a range. Returns its previous configuration.
    pub(crate) fn set(&mut self, id: RangeId, config: RangeConfig) -> Option<RangeConfig> {
        let prefix = config.prefix;
        if let Some(range) = self.by_id.get_mut(&id) {
            let old = std::mem::replace(&mut range.config, config);
            if old.prefix != prefix {
                self.unlink(id, old.prefix);
                self.link(id, prefix);
            }
            return Some(old);
        }
        self.by_id.insert(
            id,
            Range {
                config,
                peers: BTreeSet::new(),
                refused: 0,
                former_peers: FormerPeers::default(),
                last_down: None,
            },
        );
        self.link(id, prefix);
        None
    }

    pub(crate) fn remove(&mut self, id: RangeId) -> Option<Range> {
        let range = self.by_id.remove(&id)?;
        self.unlink(id, range.config.prefix);
        Some(range)
    }

    fn lengths_of(&mut self, prefix: &Cidr) -> &mut BTreeMap<std::cmp::Reverse<u8>, usize> {
        let [v4, v6] = &mut self.lengths;
        if prefix.is_v4() { v4 } else { v6 }
    }

    fn link(&mut self, id: RangeId, prefix: Cidr) {
        self.by_prefix.entry(prefix).or_default().push(id);
        *self.lengths_of(&prefix).entry(std::cmp::Reverse(prefix.len())).or_insert(0) += 1;
    }

    fn unlink(&mut self, id: RangeId, prefix: Cidr) {
        if let Some(ids) = self.by_prefix.get_mut(&prefix) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_prefix.remove(&prefix);
            }
        }
        let lengths = self.lengths_of(&prefix);
        let length = std::cmp::Reverse(prefix.len());
        if let Some(count) = lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&length);
            }
        }
    }
}

/// Returns the configuration of the dynamic peer at this address.
pub(crate) fn peer_of(range: &RangeConfig, remote: SocketAddr) -> PeerConfig {
    let mut config = range.peer.clone();
    let port = range.peer.remote.port();
    config.remote = match remote {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            SocketAddr::V6(std::net::SocketAddrV6::new(*v6.ip(), port, 0, v6.scope_id()))
        }
        _ => SocketAddr::new(remote.ip().to_canonical(), port),
    };
    config.dial = Dial::Passive;
    config.name = format!("{}{}", range.peer.name, config.remote.ip()).into();
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn range(prefix: &str) -> RangeConfig {
        RangeConfig::new(prefix.parse().unwrap(), 64512)
    }

    #[test]
    fn the_longest_prefix_wins_and_the_first_of_equal_ones() {
        let mut ranges = Ranges::default();
        for (id, prefix) in [(1, "10.0.0.0/8"), (2, "10.1.0.0/16"), (3, "10.1.0.0/16"), (4, "::/0")] {
            assert_eq!(ranges.set(RangeId(id), range(prefix)), None);
        }
        let of = |ranges: &Ranges, addr| ranges.of(ip(addr)).map(|id| id.0);
        assert_eq!(of(&ranges, "10.9.0.1"), Some(1));
        assert_eq!(of(&ranges, "10.1.0.1"), Some(2));
        assert_eq!(of(&ranges, "fd00::1"), Some(4));
        assert_eq!(of(&ranges, "192.0.2.1"), None);
        assert!(ranges.remove(RangeId(2)).is_some());
        assert_eq!(of(&ranges, "10.1.0.1"), Some(3));
        assert!(ranges.set(RangeId(3), range("10.1.2.0/24")).is_some());
        assert_eq!((of(&ranges, "10.1.0.1"), of(&ranges, "10.1.2.1")), (Some(1), Some(3)));
        ranges.remove(RangeId(1));
        assert_eq!(of(&ranges, "10.1.0.1"), None);
        ranges.remove(RangeId(3));
        ranges.remove(RangeId(4));
        assert!(
            ranges.is_empty() && ranges.by_prefix.is_empty() && ranges.lengths.iter().all(BTreeMap::is_empty)
        );
    }

    #[test]
    fn a_peer_has_the_address_that_came_and_never_dials() {
        let mut config = range("10.0.0.0/8");
        config.peer.name = "lan-".into();
        let peer = peer_of(&config, "[::ffff:10.0.0.7]:40000".parse().unwrap());
        assert_eq!(
            (peer.remote, peer.dial, &*peer.name),
            ("10.0.0.7:179".parse().unwrap(), Dial::Passive, "lan-10.0.0.7")
        );
    }

    #[test]
    fn the_addresses_that_were_served_last_are_known_and_no_more_than_two_halves() {
        let mut former = FormerPeers::default();
        let address = |n: u32| ScopedAddr::from(std::net::Ipv4Addr::from(n));
        for n in 0..1000 {
            former.note(address(n), 10);
            let known = (0..=n).rev().take_while(|n| former.has(address(*n))).count();
            let all = (0..1000).filter(|n| former.has(address(*n))).count();
            assert!(known == all && all <= 20 && all >= (n as usize + 1).min(10), "{known} {all} after {n}");
        }
    }
}
