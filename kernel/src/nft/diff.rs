//! Computes the edits that turn the kernel's present table into the desired one. Pure.
//!
//! Used at the start and for repairs; in steady state the renderer knows the changes. Rules are compared by
//! the hashes in their userdata, so that correct rules are not written again: their counters continue, and no
//! packet meets a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tortie_config::counted;

use crate::nft::dump::{ChainDump, TableDump};
use crate::nft::edit_order;
use crate::nft::encode::rule_hash;
use crate::nft::ir::{Chain, Edit, Name, Set, SetKey, SetType, SetValue, Statement, Table, ValueType};
use crate::nft::metrics::RuleDrift;

/// Returns the edits of one transaction that turn `found` (`None`: no table) into `desired`, in an order that
/// the kernel accepts.
pub(crate) fn diff(desired: &Table, found: Option<&TableDump>) -> Vec<Edit> {
    let nothing = TableDump::default();
    let found = found.unwrap_or(&nothing);
    let mut edits = Vec::new();
    let strange = |(name, set): (&Name, &Set)| found.sets.get(name).is_some_and(|is| is.of != Some(set.of));
    if desired.sets.iter().any(strange) {
        // A set that rules use cannot be replaced, so the whole table is recreated in the same transaction.
        // The process that created the set had to remove Tortie's rules first, so no packet in flight is
        // dropped by the recreation.
        edits.push(Edit::DeleteTable);
        fill(desired, &nothing, &mut edits);
    } else {
        if found.dormant {
            edits.push(Edit::ClearDormant);
        }
        fill(desired, found, &mut edits);
    }
    edits
}

fn fill(desired: &Table, found: &TableDump, edits: &mut Vec<Edit>) {
    let mut late = Vec::new();
    for (name, set) in &desired.sets {
        // Verdicts refer to chains, which refer to maps: maps are created empty and filled after the chains.
        let verdicts = set.of.value == ValueType::Verdict;
        match found.sets.get(name) {
            None if verdicts => {
                let empty = Set { elements: BTreeMap::new(), comment: set.comment.clone(), of: set.of };
                edits.push(Edit::Set(name.clone(), empty));
                late.extend(elements(name, set.of, &set.elements, &BTreeMap::new()));
            }
            None => edits.push(Edit::Set(name.clone(), set.clone())),
            // Refilled in place rather than by recreating the table: packets in flight would find empty maps.
            Some(is) if !is.whole => {
                let refill = Edit::ReplaceElements(name.clone(), set.clone());
                if verdicts { late.push(refill) } else { edits.push(refill) }
            }
            Some(is) => {
                let change = elements(name, set.of, &set.elements, &is.elements);
                if verdicts { late.extend(change) } else { edits.extend(change) }
            }
        }
    }
    chains(desired, found, edits);
    edits.append(&mut late);
    orphans(desired, found, edits);
    edit_order::sort(edits);
}

fn elements(
    set: &Name,
    of: SetType,
    desired: &BTreeMap<SetKey, SetValue>,
    is: &BTreeMap<SetKey, SetValue>,
) -> Option<Edit> {
    let only = |these: &BTreeMap<SetKey, SetValue>, those: &BTreeMap<SetKey, SetValue>| {
        let differs = |(key, value): &(&SetKey, &SetValue)| those.get(*key) != Some(*value);
        these.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let (add, remove): (BTreeMap<_, _>, BTreeMap<_, _>) = (only(desired, is), only(is, desired));
    let changed = !(add.is_empty() && remove.is_empty());
    changed.then(|| Edit::Elements { set: set.clone(), of, add, remove })
}

/// Appends the chains that are new or have different rules, called chains before their callers.
fn chains(desired: &Table, found: &TableDump, edits: &mut Vec<Edit>) {
    let mut done = BTreeSet::new();
    for name in desired.chains.keys() {
        chain(name, desired, found, &mut done, edits);
    }
}

fn chain<'a>(
    name: &'a Name,
    desired: &'a Table,
    found: &TableDump,
    done: &mut BTreeSet<&'a Name>,
    edits: &mut Vec<Edit>,
) {
    let Some(chain_wanted) = desired.chains.get(name) else { return };
    if !done.insert(name) {
        return;
    }
    for called in chain_wanted.rules.iter().filter_map(|rule| called(&rule.statement)) {
        chain(called, desired, found, done, edits);
    }
    let is = found.chains.get(name);
    if is.is_some_and(|is| is.foreign || is.hook != chain_wanted.hook) {
        // The hook of a chain cannot be changed.
        edits.push(Edit::DeleteChain(name.clone()));
    } else if is.is_some_and(|is| is_equal(chain_wanted, is)) {
        return;
    }
    let (name, rules) = (name.clone(), Arc::new(chain_wanted.clone()));
    let new = is.is_none() && chain_wanted.hook.is_none();
    edits.push(if new { Edit::NewChain(name, rules) } else { Edit::Chain(name, rules) });
}

fn called(statement: &Statement) -> Option<&Name> {
    match statement {
        Statement::Jump(name) | Statement::Goto(name) => Some(name),
        _ => None,
    }
}

/// Returns true if a chain in the kernel has these rules.
pub(super) fn is_equal(desired: &Chain, is: &ChainDump) -> bool {
    desired.rules.len() == is.rules.len()
        && desired.rules.iter().zip(&is.rules).all(|(rule, is)| is.hash == Some(rule_hash(rule)))
}

/// Appends the removal of undesired chains and sets. Chains are flushed first, since they may refer to each
/// other and to sets.
fn orphans(desired: &Table, found: &TableDump, edits: &mut Vec<Edit>) {
    let chains: Vec<_> =
        found.chains.iter().filter(|(name, _)| !desired.chains.contains_key(*name)).collect();
    let filled = chains.iter().filter(|(_, is)| !is.rules.is_empty());
    edits.extend(filled.map(|(name, is)| {
        Edit::Chain((*name).clone(), Arc::new(Chain { hook: is.hook, rules: Vec::new() }))
    }));
    let sets: Vec<_> = found.sets.iter().filter(|(name, _)| !desired.sets.contains_key(*name)).collect();
    edits.extend(sets.iter().filter_map(|(name, is)| elements(name, is.of?, &BTreeMap::new(), &is.elements)));
    edits.extend(chains.iter().map(|(name, _)| Edit::DeleteChain((*name).clone())));
    edits.extend(sets.iter().map(|(name, is)| Edit::is_delete((*name).clone(), is.of)));
}

/// Describes a difference for people: the meaning of an edit, given the present table.
pub(crate) fn describe(edit: &Edit, found: Option<&TableDump>) -> String {
    let there = |name: &Name, map: fn(&TableDump, &Name) -> bool| found.is_some_and(|found| map(found, name));
    match edit {
        Edit::DeleteTable => "a set has another type: the table is written again".to_owned(),
        Edit::ClearDormant => "the table is switched off".to_owned(),
        Edit::ReplaceElements(name, _) => format!("set {name} has elements that are not ours"),
        Edit::Set(name, _) => format!("set {name} is missing"),
        Edit::Elements { set, add, remove, .. } => match (add.keys().next(), remove.keys().next()) {
            (Some(first), _) => {
                format!("set {set} lacks {} of its elements, the first is {first}", add.len())
            }
            (None, Some(first)) => {
                format!("set {set} has {} too many, the first is {first}", counted(remove.len(), "element"))
            }
            (None, None) => format!("set {set} differs"),
        },
        Edit::DeleteSet(name) | Edit::DeleteMap(name) => format!("set {name} does not belong here"),
        Edit::Chain(name, _) if there(name, |found, name| found.chains.contains_key(name)) => {
            format!("chain {name} has other rules")
        }
        Edit::NewChain(name, _) | Edit::Chain(name, _) => format!("chain {name} is missing"),
        Edit::DeleteChain(name) => format!("chain {name} does not belong here"),
    }
}

/// Counts the differences by kind: missing, extra, and different.
pub(crate) fn drift(edits: &[Edit], found: Option<&TableDump>) -> RuleDrift {
    let mut drift = RuleDrift::default();
    let RuleDrift { rules: [no_rule, more_rules, other_rules], sets: [no_set, more_sets, other_sets] } =
        &mut drift;
    for edit in edits {
        match edit {
            Edit::DeleteTable | Edit::ClearDormant | Edit::ReplaceElements(..) => *other_sets += 1,
            Edit::Set(_, set) => *no_set += 1 + set.elements.len(),
            Edit::Elements { add, remove, .. } => {
                *no_set += add.len();
                *more_sets += remove.len();
            }
            Edit::DeleteSet(_) | Edit::DeleteMap(_) => *more_sets += 1,
            Edit::Chain(name, _) if found.is_some_and(|found| found.chains.contains_key(name)) => {
                *other_rules += 1;
            }
            Edit::NewChain(_, chain) | Edit::Chain(_, chain) => *no_rule += 1 + chain.rules.len(),
            Edit::DeleteChain(_) => *more_rules += 1,
        }
    }
    drift
}

/// Applies edits to a dump, for tests.
#[cfg(test)]
fn apply(found: &mut TableDump, edits: &[Edit]) {
    use crate::nft::dump::{RuleDump, SetDump};
    for edit in edits {
        match edit {
            Edit::DeleteTable => *found = TableDump::default(),
            Edit::ClearDormant => found.dormant = false,
            Edit::Set(name, set) | Edit::ReplaceElements(name, set) => {
                let is = SetDump { of: Some(set.of), elements: set.elements.clone(), whole: true };
                found.sets.insert(name.clone(), is);
            }
            Edit::Elements { set, add, remove, .. } => {
                let is = found.sets.get_mut(set).expect("elements of a set that is there");
                for (key, value) in remove {
                    assert_eq!(is.elements.remove(key).as_ref(), Some(value), "what is removed is there");
                }
                is.elements.extend(add.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            Edit::DeleteSet(name) | Edit::DeleteMap(name) => {
                found.sets.remove(name).expect("a set that is there");
            }
            Edit::NewChain(name, chain) | Edit::Chain(name, chain) => {
                let rule = |rule| RuleDump { hash: Some(rule_hash(rule)), handle: 0, packets: 0, bytes: 0 };
                let rules = chain.rules.iter().map(rule).collect();
                let is = ChainDump { hook: chain.hook, foreign: false, rules };
                found.chains.insert(name.clone(), is);
            }
            Edit::DeleteChain(name) => drop(found.chains.remove(name).expect("a chain that is there")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::nft::ir::{At, Hook, KeyType, Kind, Rule, SetType};

    fn rule(index: usize) -> Rule {
        let to = |name: &str| Statement::Goto(name.into());
        let statement = match index % 5 {
            0 => Statement::Drop,
            1 => Statement::Accept,
            2 => to("c0"),
            3 => to("c1"),
            _ => Statement::VerdictMap { key: Vec::new(), map: "map".into() },
        };
        Rule { counted: index > 4, statement, ..Rule::default() }
    }

    /// Generates tables whose chains refer to chains with lower numbers, also through a map.
    fn table() -> impl Strategy<Value = Table> {
        let rules = proptest::collection::vec(0usize..10, 0..4);
        let chains = proptest::collection::vec((any::<bool>(), rules), 3..5);
        let members = proptest::collection::btree_set(0u8..6, 0..4);
        let goes = proptest::collection::btree_map(0u8..4, 0usize..2, 0..3);
        (chains, members, any::<bool>(), goes).prop_map(|(chains, members, interval, goes)| {
            let mut table = Table::default();
            for (at, (hooked, rules)) in chains.into_iter().enumerate() {
                let hook = (at > 2 && hooked).then_some(Hook {
                    kind: Kind::Filter,
                    at: At::Forward,
                    priority: if rules.len() > 1 { 1 } else { 0 },
                });
                // Only the later chains refer to others.
                let rules = rules.into_iter().map(|r| if at > 1 { rule(r) } else { rule(r % 2) }).collect();
                table.chains.insert(format!("c{at}").into(), Chain { hook, rules });
            }
            let addr = |n: u8| SetKey::Addr(tortie_net::Cidr::host([10, 0, 0, n].into()));
            let of = SetType { key: KeyType::Addr { v4: true }, value: ValueType::Member, interval };
            let elements = members.into_iter().map(|n| (addr(n), SetValue::Member)).collect();
            table.sets.insert("set".into(), Set { of, comment: "".into(), elements });
            let of = SetType { key: KeyType::Interface, value: ValueType::Verdict, interval: false };
            let goes = goes.into_iter().map(|(interface, chain)| {
                let to = SetValue::Goto(format!("c{chain}").into());
                (SetKey::Interface(format!("cali{interface}").into()), to)
            });
            table.sets.insert("map".into(), Set { of, comment: "".into(), elements: goes.collect() });
            table
        })
    }

    fn found(table: &Table) -> TableDump {
        let mut found = TableDump::default();
        apply(&mut found, &diff(table, None));
        found
    }

    proptest! {
        #[test]
        fn from_whatever_is_there_to_what_is_wanted(before in table(), desired in table(), gone in 0usize..8, strange in 0usize..8) {
            let mut is = found(&before);
            // Another process removed a chain or a set.
            if let Some(name) = is.chains.keys().nth(gone).cloned() {
                is.chains.remove(&name);
            } else if gone == 7 {
                is.sets.remove("set");
            }
            is.dormant = strange > 5;
            // Or it added an element that Tortie never writes.
            if let Some(set) = is.sets.values_mut().nth(strange) {
                set.whole = false;
                set.elements.pop_first();
            }
            let edits = diff(&desired, Some(&is));
            apply(&mut is, &edits);
            prop_assert_eq!(&is, &found(&desired));
            prop_assert_eq!(diff(&desired, Some(&is)), Vec::new(), "what is right is left alone");
        }
    }

    #[test]
    fn one_element_too_few_is_one_edit() {
        let mut table = Table::default();
        let of = SetType { key: KeyType::Addr { v4: true }, value: ValueType::Member, interval: false };
        let key = |n: u8| SetKey::Addr(tortie_net::Cidr::host([10, 0, 0, n].into()));
        let elements = (0..9).map(|n| (key(n), SetValue::Member)).collect();
        table.sets.insert("s".into(), Set { of, comment: "".into(), elements });
        let mut is = found(&table);
        is.sets.get_mut("s").unwrap().elements.remove(&key(4));
        let edits = diff(&table, Some(&is));
        let add = BTreeMap::from([(key(4), SetValue::Member)]);
        assert_eq!(edits, [Edit::Elements { set: "s".into(), of, add, remove: BTreeMap::new() }]);
        assert_eq!(edit_order::size(&edits), 1);
        assert_eq!(describe(&edits[0], Some(&is)), "set s lacks 1 of its elements, the first is 10.0.0.4");
    }
}
