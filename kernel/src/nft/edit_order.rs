//! Which edits have to be in force before others. Pure.
//!
//! A transaction takes effect whole, but a packet that is among the rules meanwhile has not one view of them: Linux takes
//! its rules as they were when it began (`nft_do_chain`), and what it looks up in a set or a map as that is now. In two cases that
//! is neither the state before nor that after, and what both allow is lost, or what both deny passes:
//!
//! - a map leads to a new chain: a packet that began before is sent to a chain that has no rules for one as old as it is;
//! - rules look up a new set of intervals: these are published behind the rules (`nft_rbtree_commit`, `nft_pipapo_commit`), and
//!   the set is empty so far for a packet that has the rules already.
//!
//! Chains and sets that came by a transaction before are whole for both. The third case is that a set goes with the rules that
//! looked it up: see [`Edit::DeleteSet`].
//!
//! What remains is the kernel's: of two sets that change together a packet may find one as it was and the other as it is, and
//! one that is held up from before a transaction until after the next may meet a chain that went with that.

use std::collections::BTreeSet;

use crate::nft::ir::{Edit, Name, SetValue};
use crate::nft::maps::Map;

/// Elements of new sets that one transaction may bring, besides everything else.
const FILL: usize = 200_000;

/// Brings new sets to the front, and behind them new chains; all else stays as it is.
pub(super) fn sort(edits: &mut [Edit]) {
    edits.sort_by_key(|edit| match edit {
        Edit::DeleteTable | Edit::ClearDormant | Edit::Set(..) => 0,
        Edit::NewChain(..) => 1,
        _ => 2,
    });
}

/// The transactions that carry out sorted edits, one after the other.
pub(super) fn of(edits: &[Edit]) -> impl Iterator<Item = &[Edit]> {
    let mut rest = edits;
    std::iter::from_fn(move || {
        let (now, later) = rest.split_at(first(rest));
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

/// How many of the leading edits make a transaction of their own, which no packet can notice: new sets alone while they
/// are large; new sets and chains when they have to be there before the rest. All edits when nothing has to.
fn first(edits: &[Edit]) -> usize {
    let large = |edits: &[Edit]| size(edits) > FILL;
    let sets = edits.iter().take_while(|edit| matches!(edit, Edit::Set(..))).count();
    let (sets, then) = edits.split_at(sets);
    if large(sets) {
        return (1..=sets.len()).find(|count| sets.get(..*count).is_some_and(large)).unwrap_or(sets.len());
    }
    fn new(edit: &Edit) -> Option<&Name> {
        if let Edit::NewChain(name, _) = edit { Some(name) } else { None }
    }
    let chains: BTreeSet<&Name> = then.iter().map_while(new).collect();
    let before = sets.iter().any(comes_last) || then.iter().any(|edit| refers_to(edit, &chains));
    if before { sets.len() + chains.len() } else { edits.len() }
}

fn comes_last(edit: &Edit) -> bool {
    matches!(edit, Edit::Set(_, set) if set.of.interval && !set.elements.is_empty())
}

/// Whether packets come to one of these chains by it that would pass or be lost while the chain is empty.
fn refers_to(edit: &Edit, chains: &BTreeSet<&Name>) -> bool {
    let refers_to = |value: &SetValue| matches!(value, SetValue::Goto(name) | SetValue::Jump(name) if chains.contains(name));
    match edit {
        // Who had no profiles was dropped, and is dropped behind one that is empty: a burst of starts stays one transaction.
        Edit::Elements { set, add, remove, .. } => add
            .iter()
            .any(|(key, value)| refers_to(value) && (remove.contains_key(key) || !Map::is_last(set))),
        Edit::ReplaceElements(_, set) => set.elements.values().any(refers_to),
        _ => false,
    }
}

/// How many objects edits write: elements, rules, chains and sets.
pub(crate) fn size(edits: &[Edit]) -> usize {
    let one = |edit: &Edit| match edit {
        Edit::Set(_, set) | Edit::ReplaceElements(_, set) => 1 + set.elements.len(),
        Edit::Elements { add, remove, .. } => add.len() + remove.len(),
        Edit::NewChain(_, chain) | Edit::Chain(_, chain) => 1 + chain.rules.len(),
        Edit::DeleteTable
        | Edit::ClearDormant
        | Edit::DeleteSet(_)
        | Edit::DeleteMap(_)
        | Edit::DeleteChain(_) => 1,
    };
    edits.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::nft::ir::{Chain, KeyType, Rule, Set, SetKey, Statement, ValueType};
    use crate::nft::tests::fixtures::set_of;

    fn set(name: &str, interval: bool, members: u32) -> Edit {
        let of = set_of(KeyType::Addr { v4: true }, ValueType::Member, interval);
        let member = |n: u32| SetKey::Addr(tortie_net::Cidr::host(std::net::Ipv4Addr::from(n).into()));
        let elements = (0..members).map(|n| (member(n), SetValue::Member)).collect();
        Edit::Set(name.into(), Set { of, comment: "".into(), elements })
    }

    fn chain(new: bool, name: &str) -> Edit {
        let rules = vec![Rule { statement: Statement::Accept, ..Rule::default() }];
        let (name, chain) = (name.into(), Arc::new(Chain { hook: None, rules }));
        if new { Edit::NewChain(name, chain) } else { Edit::Chain(name, chain) }
    }

    fn refers_to(map: Map, before: Option<&str>, to: &str) -> Edit {
        let one = |to: &str| (SetKey::Interface("cali1".into()), SetValue::Jump(to.into()));
        let add = BTreeMap::from([one(to)]);
        let remove = before.into_iter().map(one).collect();
        Edit::Elements { set: map.name(), of: map.of(), add, remove }
    }

    #[test]
    fn what_packets_are_led_to_from_now_on_is_there_before() {
        let tiers = Map::ToWorkload;
        assert_eq!(
            first(&[
                set("s", false, 1),
                chain(true, "a"),
                chain(false, "b"),
                refers_to(tiers, Some("b"), "a")
            ]),
            2
        );
        assert_eq!(first(&[chain(true, "a"), chain(true, "b"), refers_to(tiers, Some("c"), "b")]), 2);
        // Whether or not they were led anywhere, where an empty chain would let them pass.
        assert_eq!(first(&[chain(true, "a"), refers_to(tiers, None, "a")]), 1);
        assert_eq!(first(&[chain(true, "a"), refers_to(Map::HostIn, None, "a")]), 1);
        assert_eq!(first(&[chain(true, "a"), refers_to(Map::ToProfiles, Some("b"), "a")]), 1);
    }

    #[test]
    fn a_map_that_is_filled_anew_leads_to_no_chain_that_is_not_there() {
        let Edit::Elements { set, of, add, .. } = refers_to(Map::ToProfiles, None, "a") else {
            unreachable!()
        };
        let refill = Edit::ReplaceElements(set, Set { of, comment: "".into(), elements: add });
        assert_eq!(first(&[chain(true, "a"), refill.clone()]), 1);
        assert_eq!(first(&[chain(true, "b"), refill]), 2);
    }

    #[test]
    fn networks_are_there_before_the_rules_that_look_them_up() {
        assert_eq!(first(&[set("s", false, 1), set("t", true, 1), chain(false, "b")]), 2);
        assert_eq!(first(&[set("t", true, 1), chain(true, "a"), refers_to(Map::ToProfiles, None, "a")]), 2);
        let rules = [set("s", true, 0), chain(false, "b")];
        assert_eq!(first(&rules), 2, "an empty one is as it will be");
    }

    #[test]
    fn what_needs_nothing_before_is_one_transaction() {
        for edits in [
            vec![],
            vec![set("s", false, 1), chain(false, "a")],
            vec![chain(true, "a"), chain(false, "b")],
            vec![
                set("s", false, 1),
                refers_to(Map::ToWorkload, Some("b"), "a"),
                Edit::DeleteChain("b".into()),
            ],
            // A start: the tiers are those of others, the profile is its own.
            vec![
                chain(true, "a"),
                refers_to(Map::ToProfiles, None, "a"),
                refers_to(Map::ToWorkload, None, "t"),
            ],
        ] {
            assert_eq!(first(&edits), edits.len(), "{edits:?}");
        }
    }

    #[test]
    fn large_sets_come_before_all_else_in_transactions_that_are_not_too_large() {
        let half = u32::try_from(FILL / 2).unwrap();
        let rest = || [chain(true, "a"), refers_to(Map::ToWorkload, Some("b"), "a")];
        let edits: Vec<Edit> = [set("s", false, half), set("t", false, half), set("u", false, half)]
            .into_iter()
            .chain(rest())
            .collect();
        assert_eq!(first(&edits), 2);
        assert_eq!(first(edits.get(2..).unwrap()), 2);
        assert_eq!(first(edits.get(4..).unwrap()), 1);
    }
}
