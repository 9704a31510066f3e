//! Compares the map with a standard library map, and bounds the cost of a change.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tortie_net::Cidr;

use super::*;

type Steps = Vec<(u8, Option<u8>)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((0..40_u8, prop::option::of(0..3_u8)), 0..60)
}

fn follow(map: &mut Persistent<u8, u8>, model: &mut BTreeMap<u8, u8>, steps: &Steps) {
    for (key, value) in steps {
        match value {
            Some(value) => {
                map.insert(*key, *value);
                model.insert(*key, *value);
            }
            None => assert_eq!(map.remove(key), model.remove(key)),
        }
    }
}

proptest! {
    #[test]
    fn it_is_a_map_and_copies_stay_as_they_were(first in steps(), then in steps(), from in 0..40_u8) {
        let (mut map, mut model) = (Persistent::default(), BTreeMap::new());
        follow(&mut map, &mut model, &first);
        let (before, model_before) = (map.clone(), model.clone());
        follow(&mut map, &mut model, &then);
        for (map, model) in [(&before, &model_before), (&map, &model)] {
            prop_assert!(map.iter().eq(model.iter()));
            prop_assert!(map.range_from(&from).eq(model.range(from..)));
            prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            prop_assert!((0..40).all(|key| map.get(&key) == model.get(&key)));
        }
        let differences: Vec<_> = (0..40_u8)
            .filter(|key| model_before.get(key) != model.get(key))
            .map(|key| (key, model_before.get(&key), model.get(&key)))
            .collect();
        let found: Vec<_> = map.differences(&before).into_iter().map(|(k, a, b)| (*k, a, b)).collect();
        prop_assert_eq!(&found, &differences);
        prop_assert_eq!(map == before, differences.is_empty());
        // Equality does not depend on insertion order and sharing.
        prop_assert_eq!(&map, &model.into_iter().rev().collect());
    }
}

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// A key that counts its comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted(Cidr);

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARED.set(COMPARED.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the maximum number of comparisons for inserting and finding one entry in a map of this size.
fn most(count: u32) -> usize {
    let key = |n: u32| Counted(Cidr::host(std::net::Ipv4Addr::from(0x0a00_0000 + n).into()));
    let mut map: Persistent<Counted, u32> = (0..count).map(|n| (key(2 * n), n)).collect();
    let mut most = 0;
    for n in 0..500 {
        let before = map.clone();
        COMPARED.set(0);
        map.insert(key(2 * (n * 7_919 % count) + 1), n);
        assert_eq!(map.differences(&before).len(), 1);
        most = most.max(COMPARED.get());
    }
    most
}

#[test]
fn one_more_costs_the_same_however_many_there_are() {
    let (few, many) = (most(1_000), most(100_000));
    assert!(few < 150 && many < 250, "{few} comparisons among 1,000, {many} among 100,000");
}

/// Returns the depth of a map.
fn depth<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
}

proptest! {
    /// Writers of the store choose keys and their order: ascending, descending, from both ends to the middle,
    /// and any other.
    #[test]
    fn no_keys_and_no_order_make_it_deep(count in 1_u32..3_000, step in 1_u32..3_000, order in 0..4, gone in 0_u32..4) {
        let key = |n: u32| match order {
            0 => n,
            1 => count - n,
            2 if n.is_multiple_of(2) => n,
            2 => 2 * count - n,
            _ => n.wrapping_mul(step.wrapping_mul(0x9e37_79b1) | 1),
        };
        let mut map: Persistent<u32, ()> = (0..count).map(|n| (key(n), ())).collect();
        (0..count).filter(|n| gone > 0 && n % (gone + 1) > 0).for_each(|n| { map.remove(&key(n)); });
        let (len, depth) = (f64::from(u32::try_from(map.len()).unwrap()), f64::from(u32::try_from(depth(&map.root)).unwrap()));
        // Depth bound of trees with a weight ratio of at most three: log(n + 1) to the base 4/3.
        prop_assert!(depth <= (len + 1.0).ln() / (4.0_f64 / 3.0).ln(), "{depth} for {len}");
        prop_assert_eq!(map.iter().count(), map.len());
    }
}
