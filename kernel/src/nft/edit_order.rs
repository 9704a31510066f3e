//! Order of edits, and their division into transactions. Pure.
//!
//! A transaction takes effect as a whole, but a packet in flight does not have one consistent view. Linux
//! evaluates the rules as they were when evaluation began (`nft_do_chain`), but looks up sets and maps as
//! they are now. In two cases the result corresponds neither to the state before nor to that after, so that a
//! packet is lost that both allow, or passes although both deny it:
//!
//! - A map leads to a new chain: a packet whose evaluation began before is sent to a chain that has no rules
//!   in its generation.
//! - Rules look up a new interval set: these are published after the rules (`nft_rbtree_commit`,
//!   `nft_pipapo_commit`), so the set is still empty for a packet that already sees the rules.
//!
//! Chains and sets created by an earlier transaction are complete in both views. The third case is a set
//! deleted together with the rules that looked it up: see [`Edit::DeleteSet`].
//!
//! Two effects of the kernel remain: of two sets that change together, a packet may see one in the old and
//! the other in the new state. And a packet whose evaluation lasts from before one transaction until after
//! the next may meet a chain that the latter deleted.

use std::collections::BTreeSet;

use crate::nft::ir::{Edit, Name, SetValue};
use crate::nft::maps::Map;

/// Maximum number of elements of new sets in one transaction, besides everything else.
const FILL: usize = 200_000;

/// Moves new sets to the front, followed by new chains; all other edits keep their order.
pub(super) fn sort(edits: &mut [Edit]) {
    edits.sort_by_key(|edit| match edit {
        Edit::DeleteTable | Edit::ClearDormant | Edit::Set(..) => 0,
        Edit::NewChain(..) => 1,
        _ => 2,
    });
}

/// Splits sorted edits into transactions, to be executed one after the other.
pub(super) fn of(edits: &[Edit]) -> impl Iterator<Item = &[Edit]> {
    let mut rest = edits;
    std::iter::from_fn(move || {
        let (now, later) = rest.split_at(first(rest));
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

/// Returns the number of leading edits for the next transaction: new sets alone while they are large; new
/// sets and chains if the rest depends on them; otherwise all edits. No packet can notice new sets and chains
/// by themselves.
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

/// Returns true if the edit leads packets to one of these chains that would pass or be lost while the chain
/// is empty.
fn refers_to(edit: &Edit, chains: &BTreeSet<&Name>) -> bool {
    let refers_to = |value: &SetValue| matches!(value, SetValue::Goto(name) | SetValue::Jump(name) if chains.contains(name));
    match edit {
        // An endpoint without profiles drops, as does an empty chain: a burst of new endpoints stays one
        // transaction.
        Edit::Elements { set, add, remove, .. } => add
            .iter()
            .any(|(key, value)| refers_to(value) && (remove.contains_key(key) || !Map::is_last(set))),
        Edit::ReplaceElements(_, set) => set.elements.values().any(refers_to),
        _ => false,
    }
}

/// Returns the number of objects that edits write: elements, rules, chains and sets.
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
        // Whether or not the map had an entry before: an empty chain would let packets pass.
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
            // A new endpoint: its tiers are shared with others, its profile is its own.
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
