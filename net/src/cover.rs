//! Longest-prefix match in a sorted collection of prefixes, in a few lookups.

use std::collections::BTreeSet;

use crate::Cidr;

/// Returns the longest element that is equal to `prefix` or covers it.
///
/// `at_most(p)` returns the greatest element `<= p`. In the order of [`Cidr`], every prefix that covers
/// `prefix` sorts before it, and all elements between the two lie inside the covering one. So if the greatest
/// element up to `prefix` does not cover it, a covering element can be no longer than the common prefix of
/// the two, and the search continues there.
fn longest<'a>(prefix: &Cidr, at_most: impl Fn(&Cidr) -> Option<&'a Cidr>) -> Option<&'a Cidr> {
    let mut limit = *prefix;
    loop {
        let candidate = at_most(&limit)?;
        if candidate.covers(prefix) {
            return Some(candidate);
        }
        if candidate.is_v4() != prefix.is_v4() {
            return None;
        }
        limit = common(candidate, prefix);
    }
}

/// Returns the longest element of a set that covers `prefix`.
#[must_use]
pub fn in_set<'a>(set: &'a BTreeSet<Cidr>, prefix: &Cidr) -> Option<&'a Cidr> {
    if set.is_empty() {
        return None;
    }
    longest(prefix, |limit| set.range(..=*limit).next_back())
}

/// Returns the longest element that covers `prefix` from a list sorted by `cidr`.
#[must_use]
pub fn in_list<'a, T>(list: &'a [T], cidr: impl Fn(&T) -> &Cidr, prefix: &Cidr) -> Option<&'a T> {
    let index = |limit: &Cidr| list.partition_point(|t| cidr(t) <= limit).checked_sub(1);
    let found = longest(prefix, |limit| index(limit).and_then(|i| list.get(i)).map(&cidr))?;
    index(found).and_then(|i| list.get(i))
}

/// Returns the longest prefix that covers both; they must be of one address family.
fn common(a: &Cidr, b: &Cidr) -> Cidr {
    let same_bits = match (a.addr(), b.addr()) {
        (std::net::IpAddr::V4(x), std::net::IpAddr::V4(y)) => (u32::from(x) ^ u32::from(y)).leading_zeros(),
        (std::net::IpAddr::V6(x), std::net::IpAddr::V6(y)) => (u128::from(x) ^ u128::from(y)).leading_zeros(),
        _ => 0,
    };
    let len = u8::try_from(same_bits).unwrap_or(u8::MAX).min(a.len()).min(b.len());
    // The length is at most that of `b`, so `new` cannot fail.
    Cidr::new(b.addr(), len).unwrap_or(*b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_strategies::prefix;

    proptest! {
        #[test]
        fn the_search_finds_what_a_scan_finds(set in prop::collection::btree_set(prefix(), 0..12), asked in prefix()) {
            let scan = set.iter().filter(|c| c.covers(&asked)).max_by_key(|c| c.len());
            prop_assert_eq!(in_set(&set, &asked), scan);
            let list: Vec<Cidr> = set.iter().copied().collect();
            prop_assert_eq!(in_list(&list, |c| c, &asked), scan);
        }
    }
}
