//! What has to be written so that the kernel's table becomes the wanted one, whatever is there. Pure.
//!
//! This is for starts and for repairs; in steady state the renderer says itself what changed. Rules are compared by the
//! hashes that they carry, so that what is right is never written again: its counters go on and no packet sees a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::nft::dump::{ChainDump, TableDump};
use crate::nft::edit_order;
use crate::nft::encode::rule_hash;
use crate::nft::ir::{Chain, Edit, Name, Set, SetKey, SetType, SetValue, Statement, Table, ValueType};
use crate::nft::metrics::RuleDrift;

/// The edits of one transaction that make `wanted` of what was found (`None`: no table), in an order that the kernel takes.
pub(crate) fn diff(desired: &Table, found: Option<&TableDump>) -> Vec<Edit> {
    let nothing = TableDump::default();
    let found = found.unwrap_or(&nothing);
    let mut edits = Vec::new();
    let strange = |(name, set): (&Name, &Set)| found.sets.get(name).is_some_and(|is| is.of != Some(set.of));
    if desired.sets.iter().any(strange) {
        // A set that rules use cannot be replaced: everything is made anew, in the same transaction. Whoever made it so had to
        // take our rules away before, so that no packet that is among them is dropped for it.
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
        // Verdicts name chains, which name maps: maps are made empty and filled after the chains.
        let verdicts = set.of.value == ValueType::Verdict;
        match found.sets.get(name) {
            None if verdicts => {
                let empty = Set { elements: BTreeMap::new(), comment: set.comment.clone(), of: set.of };
                edits.push(Edit::Set(name.clone(), empty));
                late.extend(elements(name, set.of, &set.elements, &BTreeMap::new()));
            }
            None => edits.push(Edit::Set(name.clone(), set.clone())),
            // In place, not by a table that is made anew: packets that are among its rules would meet empty maps.
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

/// Chains that are new or have other rules, called ones before those that call them.
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
        // A hook cannot be changed.
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

/// Whether a chain that was found has these rules.
pub(super) fn is_equal(desired: &Chain, is: &ChainDump) -> bool {
    desired.rules.len() == is.rules.len()
        && desired.rules.iter().zip(&is.rules).all(|(rule, is)| is.hash == Some(rule_hash(rule)))
}

/// What nobody wants: chains are emptied first, because they may name each other and sets.
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

/// A difference in words, for people: what an edit says about what was found.
pub(crate) fn describe(edit: &Edit, found: Option<&TableDump>) -> String {
    let there = |name: &Name, map: fn(&TableDump, &Name) -> bool| found.is_some_and(|found| map(found, name));
    match edit {
        Edit::DeleteTable => "a set has another type: the table is made anew".to_owned(),
        Edit::ClearDormant => "the table is switched off".to_owned(),
        Edit::ReplaceElements(name, _) => format!("set {name} has elements that are none of ours"),
        Edit::Set(name, _) => format!("set {name} is missing"),
        Edit::Elements { set, add, remove, .. } => match (add.keys().next(), remove.keys().next()) {
            (Some(first), _) => {
                format!("set {set} lacks {} of its elements, the first is {first}", add.len())
            }
            (None, Some(first)) => {
                format!("set {set} has {} elements too many, the first is {first}", remove.len())
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

/// The same by kind: what is missing, what nobody wants, and what is something else.
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

/// The table as it would be found after edits; for tests and for knowing what is there without asking.
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

    /// Tables whose chains go to chains of lower numbers, through a map too.
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
                // Only the later ones go anywhere.
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
            // Somebody took a chain or a set away.
            if let Some(name) = is.chains.keys().nth(gone).cloned() {
                is.chains.remove(&name);
            } else if gone == 7 {
                is.sets.remove("set");
            }
            is.dormant = strange > 5;
            // Or put in what we never write.
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
