//! The edits of several changes as those of one. Pure.
//!
//! A burst of changes is one transaction: the kernel checks a table as a whole with each. What came and went again in
//! between must not be named, because it never is in the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ir::{Chain, Edit, Hook, Name, Set, SetKey, SetType, SetValue, Table};

/// What becomes of a set.
#[derive(Default)]
struct SetEnd {
    gone: bool,
    /// All of it, when it is new.
    whole: Option<Set>,
    /// Else what came and went.
    of: Option<SetType>,
    add: BTreeMap<SetKey, SetValue>,
    remove: BTreeMap<SetKey, SetValue>,
}

impl SetEnd {
    fn change(&mut self, of: SetType, add: BTreeMap<SetKey, SetValue>, remove: BTreeMap<SetKey, SetValue>) {
        if let Some(whole) = &mut self.whole {
            remove.keys().for_each(|key| drop(whole.elements.remove(key)));
            whole.elements.extend(add);
            return;
        }
        self.of = Some(of);
        for (key, value) in remove {
            // What came in between was never in the kernel; what it took the place of was, and is named already.
            if self.add.remove(&key).is_none() {
                self.remove.insert(key, value);
            }
        }
        self.add.extend(add);
    }

    fn edits(mut self, name: Name, was: Option<SetType>, out: &mut Vec<Edit>) {
        if self.gone {
            out.extend(was.map(|_| Edit::NoSet(name)));
        } else if let Some(set) = self.whole {
            // Of the same type it is emptied and filled where it is: rules may name it.
            out.extend(was.filter(|of| *of != set.of).map(|_| Edit::NoSet(name.clone())));
            out.push(Edit::Set(name, set));
        } else if let Some(of) = self.of {
            let kept: Vec<SetKey> = self
                .add
                .iter()
                .filter(|(key, value)| self.remove.get(*key) == Some(*value))
                .map(|(key, _)| key.clone())
                .collect();
            for key in kept {
                self.add.remove(&key);
                self.remove.remove(&key);
            }
            if !(self.add.is_empty() && self.remove.is_empty()) {
                out.push(Edit::Elements { set: name, of, add: self.add, remove: self.remove });
            }
        }
    }
}

/// The edits that lead from a table with these chains and sets to where all edits, one after the other, lead.
pub(in crate::kernel) fn merge(edits: Vec<Edit>, before: &Names) -> Vec<Edit> {
    // `None`: gone.
    let mut chains: BTreeMap<Name, Option<Arc<Chain>>> = BTreeMap::new();
    let mut sets: BTreeMap<Name, SetEnd> = BTreeMap::new();
    let mut anew = false;
    for edit in edits {
        match edit {
            Edit::NoTable => {
                chains.clear();
                sets.clear();
                anew = true;
            }
            Edit::Chain(name, chain) => drop(chains.insert(name, Some(chain))),
            Edit::NoChain(name) => drop(chains.insert(name, None)),
            Edit::Set(name, set) => {
                sets.insert(name, SetEnd { whole: Some(set), ..SetEnd::default() });
            }
            Edit::NoSet(name) => {
                sets.insert(name, SetEnd { gone: true, ..SetEnd::default() });
            }
            Edit::Elements { set, of, add, remove } => sets.entry(set).or_default().change(of, add, remove),
        }
    }
    let mut out = Vec::with_capacity(chains.len() + sets.len());
    out.extend(anew.then_some(Edit::NoTable));
    for (name, end) in sets {
        let was = before.sets.get(&name).copied().filter(|_| !anew);
        end.edits(name, was, &mut out);
    }
    for (name, end) in chains {
        let was = before.chains.get(&name).copied().filter(|_| !anew);
        match end {
            None => out.extend(was.map(|_| Edit::NoChain(name))),
            Some(chain) => {
                // A hook cannot be changed; a chain without one may be named by others.
                out.extend(was.filter(|hook| *hook != chain.hook).map(|_| Edit::NoChain(name.clone())));
                out.push(Edit::Chain(name, chain));
            }
        }
    }
    out
}

/// The chains of a table with their hooks, and the types of its sets.
#[derive(Debug, Clone, Default)]
pub(in crate::kernel) struct Names {
    chains: BTreeMap<Name, Option<Hook>>,
    sets: BTreeMap<Name, SetType>,
}

impl Names {
    pub(in crate::kernel) fn of(table: &Table) -> Self {
        Self {
            chains: table.chains.iter().map(|(name, chain)| (name.clone(), chain.hook)).collect(),
            sets: table.sets.iter().map(|(name, set)| (name.clone(), set.of)).collect(),
        }
    }
}
