//! Indexes selectors by a label that they require, so that the selectors that may match a set of labels are
//! found among thousands without evaluating each.

use std::collections::{BTreeMap, BTreeSet};

use tortie_config::Selector;
use tortie_config::selector::Expr;

/// Necessary condition of a selector on a single label. It may be weaker than the selector, and is never
/// stronger.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Needs<'a> {
    /// No condition on a single label.
    Nothing,
    /// The label must exist.
    Label(&'a str),
    /// The label must have one of these values.
    Values(&'a str, Vec<&'a str>),
}

impl<'a> Needs<'a> {
    pub(super) fn of(selector: &'a Selector) -> Self {
        Self::of_expr(selector.expr())
    }

    fn of_expr(expr: &'a Expr) -> Self {
        match expr {
            Expr::Has(label)
            | Expr::Contains(label, _)
            | Expr::StartsWith(label, _)
            | Expr::EndsWith(label, _) => Self::Label(label),
            Expr::Eq(label, value) => Self::Values(label, vec![value]),
            Expr::In(label, values) => Self::Values(label, values.iter().map(|value| &**value).collect()),
            Expr::And(list) => {
                list.iter().map(Self::of_expr).min_by_key(Self::breadth).unwrap_or(Self::Nothing)
            }
            Expr::Or(list) => list.iter().map(Self::of_expr).reduce(Self::either).unwrap_or(Self::Nothing),
            Expr::All | Expr::Global | Expr::Ne(..) | Expr::NotIn(..) | Expr::Not(_) => Self::Nothing,
        }
    }

    /// Returns a measure of how many label sets meet the condition; smaller is more selective.
    fn breadth(&self) -> usize {
        match self {
            Self::Values(_, values) => values.len(),
            Self::Label(_) => usize::MAX - 1,
            Self::Nothing => usize::MAX,
        }
    }

    /// Returns the condition that holds if one of two conditions holds.
    fn either(self, other: Self) -> Self {
        match (self, other) {
            (Self::Values(a, mut values), Self::Values(b, more)) if a == b => {
                values.extend(more);
                values.sort_unstable();
                values.dedup();
                Self::Values(a, values)
            }
            (Self::Values(a, _) | Self::Label(a), Self::Values(b, _) | Self::Label(b)) if a == b => {
                Self::Label(a)
            }
            _ => Self::Nothing,
        }
    }
}

/// Selectors by key of their owner, indexed by the labels that they require.
#[derive(Debug, Clone)]
pub(super) struct Selectors<K> {
    selectors: BTreeMap<K, Selector>,
    unbound: BTreeSet<K>,
    by_label: BTreeMap<Box<str>, BTreeSet<K>>,
    by_value: BTreeMap<Box<str>, BTreeMap<Box<str>, BTreeSet<K>>>,
}

impl<K> Default for Selectors<K> {
    fn default() -> Self {
        Self {
            selectors: BTreeMap::new(),
            unbound: BTreeSet::new(),
            by_label: BTreeMap::new(),
            by_value: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Ord> Selectors<K> {
    /// Adds a selector under a key that has none.
    pub(super) fn insert(&mut self, key: K, selector: Selector) {
        match Needs::of(&selector) {
            Needs::Nothing => {
                self.unbound.insert(key);
            }
            Needs::Label(label) => {
                self.by_label.entry(label.into()).or_default().insert(key);
            }
            Needs::Values(label, values) => {
                let of_label = self.by_value.entry(label.into()).or_default();
                for value in values {
                    of_label.entry(value.into()).or_default().insert(key);
                }
            }
        }
        self.selectors.insert(key, selector);
    }

    pub(super) fn remove(&mut self, key: K) {
        let Some(selector) = self.selectors.remove(&key) else { return };
        match Needs::of(&selector) {
            Needs::Nothing => {
                self.unbound.remove(&key);
            }
            Needs::Label(label) => drop_from(&mut self.by_label, label, &key),
            Needs::Values(label, values) => {
                if let Some(of_label) = self.by_value.get_mut(label) {
                    for value in values {
                        drop_from(of_label, value, &key);
                    }
                    if of_label.is_empty() {
                        self.by_value.remove(label);
                    }
                }
            }
        }
    }

    /// Returns the keys of all matching selectors, sorted. `labels` contains each label once.
    pub(super) fn matching<'a>(
        &self,
        labels: &[(&str, &str)],
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> Vec<K>
    where
        K: Ord,
    {
        let bound = labels.iter().flat_map(|(name, value)| {
            let having = self.by_label.get(*name);
            let with = self.by_value.get(*name).and_then(|values| values.get(*value));
            having.into_iter().chain(with).flatten()
        });
        let matches =
            |key: &&K| self.selectors.get(*key).is_some_and(|selector| selector.matches_with(&label));
        let mut found: Vec<K> = self.unbound.iter().chain(bound).filter(matches).copied().collect();
        found.sort_unstable();
        found
    }
}

fn drop_from<K: Ord>(map: &mut BTreeMap<Box<str>, BTreeSet<K>>, name: &str, key: &K) {
    if let Some(keys) = map.get_mut(name) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(name);
        }
    }
}
