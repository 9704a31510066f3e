//! Fail closed: chains of policies and profiles that the kernel refuses, or whose sets it refuses, deny
//! everything until it accepts them, so that a fault of one keeps no other from being in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nft::diff;
use crate::nft::dump::TableDump;
use crate::nft::ir::{Chain, Edit, Kind, Match, Name, Rule, Statement, Table};

/// First pause before they are retried; it doubles up to `RETRY_LAST`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Maximum number of failed chains. If there are more, the fault is elsewhere; each also costs a transaction
/// per retry.
const CHAINS_MAX: usize = 16;

/// The failed chains, with the kernel's reason for each.
#[derive(Debug)]
pub(super) struct FailClosed {
    chains: BTreeMap<Name, String>,
    /// Sets that the kernel refuses, used by these chains only.
    sets: BTreeSet<Name>,
    due: Option<Instant>,
    pause: Duration,
}

impl FailClosed {
    pub(super) fn new() -> Self {
        Self { chains: BTreeMap::new(), sets: BTreeSet::new(), due: None, pause: RETRY_FIRST }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &str)> {
        self.chains.iter().map(|(name, why)| (name, why.as_str()))
    }

    /// Returns true if this object may fail closed.
    pub(super) fn can_add(&self, what: &Refused) -> bool {
        let known = match &what.set {
            Some(set) => self.sets.contains(set),
            None => what.chains.iter().all(|name| self.chains.contains_key(name)),
        };
        !known && !what.chains.is_empty() && self.chains.len() + what.chains.len() <= CHAINS_MAX
    }

    /// Records a refusal by the kernel.
    pub(super) fn add(&mut self, what: Refused, why: &str) {
        let why = what.set.as_ref().map_or_else(|| why.to_owned(), |set| format!("set {set}: {why}"));
        self.sets.extend(what.set);
        self.chains.extend(what.chains.into_iter().map(|name| (name, why.clone())));
        self.due = Some(Instant::now() + self.pause);
    }

    /// Returns true if it is time for a retry.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Forgets the failures for a retry.
    pub(super) fn retry(&mut self) {
        self.due = None;
        self.pause = (self.pause * 2).min(RETRY_LAST);
        self.chains.clear();
        self.sets.clear();
    }

    /// Forgets failures of changed objects, which are tried in their new form. Returns true if that needs
    /// more than the edits: a changed set that the kernel does not have.
    #[must_use]
    pub(super) fn forget(&mut self, edits: &[Edit]) -> bool {
        let mut others = false;
        for edit in edits {
            match edit {
                Edit::NewChain(name, _) | Edit::Chain(name, _) | Edit::DeleteChain(name) => {
                    self.chains.remove(name);
                }
                Edit::Set(name, _)
                | Edit::ReplaceElements(name, _)
                | Edit::Elements { set: name, .. }
                | Edit::DeleteSet(name)
                | Edit::DeleteMap(name) => {
                    others |= self.sets.contains(name);
                }
                Edit::DeleteTable | Edit::ClearDormant => {}
            }
        }
        if others {
            self.chains.clear();
            self.sets.clear();
        }
        if self.chains.is_empty() {
            (self.due, self.pause) = (None, RETRY_FIRST);
        }
        others
    }

    /// Replaces failed chains in the edits by chains that deny. Omits those that already deny in the kernel,
    /// and the refused sets.
    pub(super) fn replacement_edits(&self, edits: Vec<Edit>, found: Option<&TableDump>) -> Vec<Edit> {
        if self.chains.is_empty() {
            return edits;
        }
        let anew = edits.contains(&Edit::DeleteTable);
        let one = |edit| match edit {
            Edit::NewChain(name, _) if self.chains.contains_key(&name) => {
                Some(Edit::NewChain(name, Arc::new(chain())))
            }
            Edit::Chain(name, _) if self.chains.contains_key(&name) => {
                let chain = chain();
                let is = found.filter(|_| !anew).and_then(|found| found.chains.get(&name));
                let there = is.is_some_and(|is| diff::is_equal(&chain, is));
                (!there).then(|| Edit::Chain(name, Arc::new(chain)))
            }
            Edit::Set(name, _) | Edit::ReplaceElements(name, _) | Edit::Elements { set: name, .. }
                if self.sets.contains(&name) =>
            {
                None
            }
            other => Some(other),
        };
        edits.into_iter().filter_map(one).collect()
    }
}

/// A refused object, and the chains that must fail closed because of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) set: Option<Name>,
    pub(super) chains: Vec<Name>,
}

impl Refused {
    /// Returns the chains that depend on this edit in `table`; `None` if the edit belongs to no chain alone.
    pub(super) fn of(edit: &Edit, table: &Table) -> Option<Self> {
        match edit {
            Edit::NewChain(name, _) | Edit::Chain(name, _) => {
                Some(Self { set: None, chains: vec![Arc::clone(name)] })
            }
            Edit::Set(name, _) | Edit::ReplaceElements(name, _) | Edit::Elements { set: name, .. } => {
                let looks_up = |m: &Match| matches!(m, Match::InSet { set, .. } if set == name);
                let uses = |chain: &Chain| chain.rules.iter().any(|rule| rule.matches.iter().any(looks_up));
                let chains = table.chains.iter().filter(|(_, chain)| uses(chain));
                let chains = chains.map(|(name, _)| Arc::clone(name)).collect();
                Some(Self { set: Some(Arc::clone(name)), chains })
            }
            Edit::DeleteTable
            | Edit::ClearDormant
            | Edit::DeleteSet(_)
            | Edit::DeleteMap(_)
            | Edit::DeleteChain(_) => None,
        }
    }
}

/// Returns the replacement for a refused chain.
fn chain() -> Chain {
    let comment = Some("the kernel refuses these rules: denied".into());
    let rule = Rule { counted: true, statement: Statement::Drop, comment, ..Rule::default() };
    Chain { hook: None, rules: vec![rule] }
}

/// Returns the kernel modules that an edit needs, if the error code indicates a missing feature.
pub(super) fn needs(edit: &Edit, code: i32) -> Option<String> {
    if !matches!(code, libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) {
        return None;
    }
    let (Edit::NewChain(_, chain) | Edit::Chain(_, chain)) = edit else { return None };
    let mut modules: Vec<&str> = Vec::new();
    if chain.hook.is_some_and(|hook| hook.kind == Kind::Nat) {
        modules.push("nft_chain_nat");
    }
    for rule in &chain.rules {
        modules.extend(rule.log.as_ref().map(|_| "nft_log"));
        modules.extend(rule.limit.map(|_| "nft_limit"));
        modules.extend(rule.matches.iter().filter_map(|m| match m {
            Match::Established | Match::Invalid => Some("nft_ct"),
            Match::Local { .. } => Some("nft_fib_inet"),
            _ => None,
        }));
        modules.extend(match &rule.statement {
            Statement::Untrack(_) | Statement::NoTrack => Some("nft_ct"),
            Statement::Masquerade => Some("nft_masq"),
            Statement::DestinationNat { .. } | Statement::SourceNat { .. } => Some("nft_nat"),
            _ => None,
        });
    }
    modules.sort_unstable();
    modules.dedup();
    (!modules.is_empty()).then(|| format!("; it may lack {}", modules.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::ir::{Field, KeyType, Set, SetType, Side, ValueType};

    fn set() -> Set {
        let of = SetType { key: KeyType::Addr { v4: true }, value: ValueType::Member, interval: false };
        Set { of, comment: "".into(), elements: BTreeMap::new() }
    }

    fn looks_up(set: &str) -> Chain {
        let key = vec![Field::Addr(Side::Src)];
        let matches = vec![Match::InSet { not: true, key, set: set.into() }];
        Chain { hook: None, rules: vec![Rule { matches, statement: Statement::Accept, ..Rule::default() }] }
    }

    #[test]
    fn a_refused_set_closes_the_chains_that_look_it_up_and_no_other() {
        let chains = [("a", looks_up("s")), ("b", looks_up("t")), ("c", looks_up("s"))];
        let table = Table {
            sets: ["s", "t"].map(|name| (name.into(), set())).into(),
            chains: chains.map(|(name, chain)| (name.into(), chain)).into(),
        };
        let edits: Vec<Edit> = diff::diff(&table, None);
        assert_eq!(edits.len(), 5);
        let refused = Refused::of(&Edit::Set("s".into(), set()), &table).unwrap();
        assert_eq!(refused.chains, ["a".into(), "c".into()]);
        let mut fail_closed = FailClosed::new();
        assert!(fail_closed.can_add(&refused));
        fail_closed.add(refused, "no");
        assert!(
            !fail_closed.can_add(&Refused::of(&Edit::Set("s".into(), set()), &table).unwrap()),
            "once is enough"
        );
        let reasons: Vec<(&str, &str)> = fail_closed.iter().map(|(name, why)| (&**name, why)).collect();
        assert_eq!(reasons, [("a", "set s: no"), ("c", "set s: no")]);
        let edits = fail_closed.replacement_edits(edits, None);
        let names: Vec<&str> = edits
            .iter()
            .map(|edit| match edit {
                Edit::Set(name, _) => &**name,
                Edit::NewChain(name, is) if **is == chain() => {
                    if &**name == "a" {
                        "a closed"
                    } else {
                        "c closed"
                    }
                }
                Edit::NewChain(name, _) => &**name,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["t", "a closed", "b", "c closed"]);
        // Another set is unaffected; after a change of the refused one, it is retried with all chains that
        // use it.
        assert!(!fail_closed.forget(&[Edit::Set("t".into(), set())]));
        assert!(fail_closed.forget(&[Edit::Set("s".into(), set())]));
        assert_eq!(fail_closed.iter().count(), 0);
    }
}
