//! Normalization of networks and ports for the kernel: sorted, disjoint, as few as possible.

use tortie_config::resource::PortRange;
use tortie_net::Cidr;

/// Returns the networks that no other one covers, sorted.
pub(super) fn uncovered(nets: impl IntoIterator<Item = Cidr>) -> Vec<Cidr> {
    let mut nets: Vec<Cidr> = nets.into_iter().collect();
    // Sorted by address, then wide before narrow, so a covering network precedes those it covers.
    nets.sort_unstable();
    let mut kept: Vec<Cidr> = Vec::with_capacity(nets.len());
    for net in nets {
        if !kept.last().is_some_and(|last| last.covers(&net)) {
            kept.push(net);
        }
    }
    kept
}

/// Returns the fewest networks with the same addresses, sorted.
pub(super) fn merged(nets: impl IntoIterator<Item = Cidr>) -> Vec<Cidr> {
    let mut kept: Vec<Cidr> = Vec::new();
    for net in uncovered(nets) {
        let mut net = net;
        while let Some(whole) = kept.last().and_then(|last| joined(last, &net)) {
            kept.pop();
            net = whole;
        }
        kept.push(net);
    }
    kept
}

/// Returns the network that consists of these two halves, if they are halves of one.
fn joined(first: &Cidr, second: &Cidr) -> Option<Cidr> {
    let whole = Cidr::new(first.addr(), first.len().checked_sub(1)?).ok()?;
    (first.len() == second.len() && first != second && whole.covers(second)).then_some(whole)
}

/// Returns the fewest ranges with the same ports, sorted.
pub(super) fn merged_ports(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut ranges: Vec<(u16, u16)> = ranges.iter().map(|range| (range.first(), range.last())).collect();
    ranges.sort_unstable();
    let mut kept: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match kept.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
            _ => kept.push((first, last)),
        }
    }
    kept.into_iter().filter_map(|(first, last)| PortRange::new(first, last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn texts(nets: &[&str], how: fn(Vec<Cidr>) -> Vec<Cidr>) -> Vec<String> {
        how(nets.iter().map(|net| net.parse().unwrap()).collect()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn networks_become_few() {
        let nets = ["10.0.1.0/24", "10.0.0.0/24", "10.0.0.7/32", "10.0.2.0/24", "10.0.2.0/25"];
        assert_eq!(texts(&nets, uncovered), ["10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"]);
        assert_eq!(texts(&nets, merged), ["10.0.0.0/23", "10.0.2.0/24"]);
        assert_eq!(texts(&["128.0.0.0/1", "0.0.0.0/1"], merged), ["0.0.0.0/0"]);
        assert_eq!(texts(&["0.0.0.0/0", "0.0.0.0/0"], merged), ["0.0.0.0/0"]);
        assert_eq!(texts(&["fd00::1/128", "fd00::/128"], merged), ["fd00::/127"]);
        // Adjacent, but not halves of one network.
        assert_eq!(texts(&["10.0.1.0/24", "10.0.2.0/24"], merged), ["10.0.1.0/24", "10.0.2.0/24"]);
    }

    proptest! {
        #[test]
        fn the_same_addresses_and_ports_are_in(
            nets in proptest::collection::vec((0u8..16, 28u8..=32), 0..12), ranges in proptest::collection::vec((0u16..40, 0u16..6), 0..12),
        ) {
            let nets: Vec<Cidr> = nets.iter().map(|(at, len)| Cidr::v4(Ipv4Addr::new(10, 0, 0, *at), *len)).collect();
            let (few, fewer) = (uncovered(nets.clone()), merged(nets.clone()));
            for at in 0..=255 {
                let addr = IpAddr::from([10, 0, 0, at]);
                let count = |nets: &[Cidr]| nets.iter().filter(|net| net.contains(addr)).count();
                prop_assert_eq!(count(&few), count(&nets).min(1));
                prop_assert_eq!(count(&fewer), count(&nets).min(1));
            }
            let ranges: Vec<PortRange> =
                ranges.iter().filter_map(|(first, more)| PortRange::new(*first, first + more)).collect();
            let kept = merged_ports(&ranges);
            for port in 0..64 {
                let count = |ranges: &[PortRange]| ranges.iter().filter(|range| range.contains(port)).count();
                prop_assert_eq!(count(&kept), count(&ranges).min(1));
            }
            prop_assert!(kept.windows(2).all(|two| two[0].last() + 1 < two[1].first()));
        }
    }
}
