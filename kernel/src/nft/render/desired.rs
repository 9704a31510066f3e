//! The desired table, with its changes since the edits were last taken.
//!
//! Order of the edits: new sets, new chains (callee before caller), elements of address sets, changed chains,
//! elements of verdict maps, then deletions: chains (caller before callee), sets. So nothing is referred to
//! before it exists or after it was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::nft::edit_order;
use crate::nft::ir::{Chain, Edit, Name, Set, SetKey, SetType, SetValue, Statement, Table, ValueType};

/// Changed elements, with their previous values.
type ChangedEndpoints = BTreeMap<SetKey, Option<SetValue>>;

/// A table that records its changes.
#[derive(Debug, Clone, Default)]
pub(super) struct DesiredTable {
    table: Table,
    /// Sets that are new.
    new: BTreeSet<Name>,
    /// Deleted sets, with their unwritten changes.
    gone: BTreeMap<Name, (Set, ChangedEndpoints)>,
    /// Changed elements of existing sets, with their previous values.
    elements: BTreeMap<Name, ChangedEndpoints>,
    /// Changed chains, with their previous content.
    chains: BTreeMap<Name, Option<Chain>>,
}

impl DesiredTable {
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn has_set(&self, name: &str) -> bool {
        self.table.sets.contains_key(name)
    }

    /// Returns the value of an element.
    pub(super) fn element(&self, set: &str, key: &SetKey) -> Option<&SetValue> {
        self.table.sets.get(set)?.elements.get(key)
    }

    /// Returns the elements of a set; `None` if it does not exist.
    pub(super) fn elements(&self, set: &str) -> Option<&BTreeMap<SetKey, SetValue>> {
        self.table.sets.get(set).map(|set| &set.elements)
    }

    /// Adds a set, which must not exist. The name implies the type: a set deleted since the edits were taken
    /// is reused.
    pub(super) fn add_set(
        &mut self,
        name: &Name,
        of: SetType,
        comment: &str,
        elements: BTreeMap<SetKey, SetValue>,
    ) {
        if let Some((set, touched)) = self.gone.remove(name) {
            self.table.sets.insert(Arc::clone(name), set);
            self.elements.insert(Arc::clone(name), touched);
            return self.replace(name, elements);
        }
        self.new.insert(Arc::clone(name));
        self.table.sets.insert(Arc::clone(name), Set { of, comment: comment.into(), elements });
    }

    /// Deletes a set.
    pub(super) fn drop_set(&mut self, name: &Name) {
        let Some(set) = self.table.sets.remove(name) else { return };
        let touched = self.elements.remove(name).unwrap_or_default();
        if !self.new.remove(name) {
            self.gone.insert(Arc::clone(name), (set, touched));
        }
    }

    /// Adds an element or changes its value. Does nothing if the set does not exist.
    pub(super) fn put(&mut self, name: &Name, key: SetKey, value: SetValue) {
        let Some(set) = self.table.sets.get_mut(name) else { return };
        let before = set.elements.insert(key.clone(), value);
        if !self.new.contains(name) {
            self.elements.entry(Arc::clone(name)).or_default().entry(key).or_insert(before);
        }
    }

    /// Removes an element.
    pub(super) fn remove(&mut self, name: &Name, key: &SetKey) {
        let Some(set) = self.table.sets.get_mut(name) else { return };
        let Some(before) = set.elements.remove(key) else { return };
        if !self.new.contains(name) {
            self.elements.entry(Arc::clone(name)).or_default().entry(key.clone()).or_insert(Some(before));
        }
    }

    /// Replaces the elements of a set; the cost is proportional to both old and new elements.
    pub(super) fn replace(&mut self, name: &Name, elements: BTreeMap<SetKey, SetValue>) {
        let Some(set) = self.table.sets.get(name) else { return };
        let gone: Vec<SetKey> =
            set.elements.keys().filter(|key| !elements.contains_key(key)).cloned().collect();
        let come: Vec<(SetKey, SetValue)> =
            elements.into_iter().filter(|(key, value)| set.elements.get(key) != Some(value)).collect();
        gone.iter().for_each(|key| self.remove(name, key));
        come.into_iter().for_each(|(key, value)| self.put(name, key, value));
    }

    /// Adds a chain or changes its rules.
    pub(super) fn set_chain(&mut self, name: &Name, chain: Chain) {
        let before = self.table.chains.insert(Arc::clone(name), chain);
        self.chains.entry(Arc::clone(name)).or_insert(before);
    }

    /// Deletes a chain.
    pub(super) fn remove_chain(&mut self, name: &Name) {
        if let Some(before) = self.table.chains.remove(name) {
            self.chains.entry(Arc::clone(name)).or_insert(Some(before));
        }
    }

    /// Returns the net changes since the last call. `callees` returns the chains that a chain calls.
    pub(super) fn take_edits<'a>(&mut self, callees: impl Fn(&Name) -> &'a [Name]) -> Vec<Edit> {
        let mut edits = Vec::new();
        let is_verdicts = |set: &Set| set.of.value == ValueType::Verdict;
        let mut later = Vec::new();
        for name in std::mem::take(&mut self.new) {
            let Some(set) = self.table.sets.get(&name) else { continue };
            if is_verdicts(set) {
                later.push((Arc::clone(&name), set.of, set.elements.clone(), BTreeMap::new()));
                edits.push(Edit::Set(name, Set { elements: BTreeMap::new(), ..set.clone() }));
            } else {
                edits.push(Edit::Set(name, set.clone()));
            }
        }
        for (name, touched) in std::mem::take(&mut self.elements) {
            let Some(set) = self.table.sets.get(&name) else { continue };
            let (mut add, mut remove) = (BTreeMap::new(), BTreeMap::new());
            for (key, before) in touched {
                let now = set.elements.get(&key).cloned();
                if now == before {
                    continue;
                }
                if let Some(before) = before {
                    remove.insert(key.clone(), before);
                }
                if let Some(now) = now {
                    add.insert(key, now);
                }
            }
            if is_verdicts(set) {
                later.push((name, set.of, add, remove));
            } else if !(add.is_empty() && remove.is_empty()) {
                edits.push(Edit::Elements { set: name, of: set.of, add, remove });
            }
        }
        // The chains to which the elements of a deleted map lead may be deleted too.
        for (name, (set, touched)) in self.gone.iter().filter(|(_, (set, _))| is_verdicts(set)) {
            let mut written = set.elements.clone();
            for (key, before) in touched {
                match before {
                    Some(before) => written.insert(key.clone(), before.clone()),
                    None => written.remove(key),
                };
            }
            later.push((Arc::clone(name), set.of, BTreeMap::new(), written));
        }
        let touched = std::mem::take(&mut self.chains);
        let changed = |name: &Name| {
            touched.get(name).is_some_and(|before| self.table.chains.get(name) != before.as_ref())
        };
        let mut names: Vec<&Name> = touched.keys().filter(|name| changed(name)).collect();
        names.sort_unstable();
        let (there, gone): (Vec<&Name>, Vec<&Name>) =
            names.into_iter().partition(|name| self.table.chains.contains_key(*name));
        for name in callees_first(there.into_iter(), &callees) {
            let Some(chain) = self.table.chains.get(&name) else { continue };
            let chain = Arc::new(chain.clone());
            let new = chain.hook.is_none() && touched.get(&name).is_some_and(Option::is_none);
            edits.push(if new { Edit::NewChain(name, chain) } else { Edit::Chain(name, chain) });
        }
        for (set, of, add, remove) in later {
            if !(add.is_empty() && remove.is_empty()) {
                edits.push(Edit::Elements { set, of, add, remove });
            }
        }
        // By their last written rules; later changes were never written.
        let calls: BTreeMap<&Name, Vec<Name>> =
            gone.iter().map(|name| (*name, written_calls(&touched, name))).collect();
        let gone = callees_first(gone.into_iter(), &|name| calls.get(name).map_or(&[], Vec::as_slice));
        edits.extend(gone.into_iter().rev().map(Edit::DeleteChain));
        let gone = std::mem::take(&mut self.gone);
        edits.extend(gone.into_iter().map(|(name, (set, _))| Edit::is_delete(name, Some(set.of))));
        edit_order::sort(&mut edits);
        edits
    }
}

/// Returns the chains that a chain called when it was last written.
fn written_calls(touched: &BTreeMap<Name, Option<Chain>>, name: &Name) -> Vec<Name> {
    let rules = touched.get(name).into_iter().flatten().flat_map(|chain| &chain.rules);
    rules
        .filter_map(|rule| match &rule.statement {
            Statement::Jump(to) | Statement::Goto(to) => Some(Arc::clone(to)),
            _ => None,
        })
        .collect()
}

/// Sorts chains so that each follows its callees.
fn callees_first<'a, 'b>(
    names: impl Iterator<Item = &'b Name>,
    callees: &impl Fn(&Name) -> &'a [Name],
) -> Vec<Name> {
    let names: Vec<&Name> = names.collect();
    let wanted: BTreeSet<&Name> = names.iter().copied().collect();
    let mut done = BTreeSet::new();
    let mut sorted = Vec::with_capacity(names.len());
    // Chains have no cycles and are nested only a few levels deep.
    fn visit<'a>(
        name: &Name,
        wanted: &BTreeSet<&Name>,
        callees: &impl Fn(&Name) -> &'a [Name],
        done: &mut BTreeSet<Name>,
        sorted: &mut Vec<Name>,
    ) {
        if !done.insert(Arc::clone(name)) {
            return;
        }
        for callee in callees(name) {
            visit(callee, wanted, callees, done, sorted);
        }
        if wanted.contains(name) {
            sorted.push(Arc::clone(name));
        }
    }
    for name in names {
        visit(name, &wanted, callees, &mut done, &mut sorted);
    }
    sorted
}
