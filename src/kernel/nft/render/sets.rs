//! Address sets of selectors, of one family each: which kind they are, and what they hold, kept element by element.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tortie_config::Cidr;

use super::super::ir::{KeyType, Name, SetKey, SetType, SetValue, ValueType};
use super::names;
use super::wanted::Wanted;
use crate::policy::{Ruleset, SetChange, SetId};

/// A set of one family that chains look up.
#[derive(Debug, Clone)]
struct Slot {
    name: Name,
    callers: FxHashSet<Name>,
    /// Every member, in order; only of sets of networks.
    all: BTreeSet<Cidr>,
}

/// What is known of address sets.
#[derive(Debug, Clone, Default)]
pub(super) struct Sets {
    /// How many members are wider than one address: IPv4, IPv6.
    wide: FxHashMap<SetId, [usize; 2]>,
    slots: FxHashMap<(SetId, bool), Slot>,
    /// Whose each name is.
    owners: FxHashMap<Name, SetId>,
    /// Two selectors whose sets have one name.
    clash: Option<Box<str>>,
}

const FAMILIES: [bool; 2] = [true, false];

impl Sets {
    /// The name of a set of one family. It changes with the kind of the set.
    pub(super) fn name(&self, id: &SetId, v4: bool) -> Name {
        names::set(id, v4, self.is_interval(id, v4))
    }

    pub(super) fn clash(&self) -> Option<&str> {
        self.clash.as_deref()
    }

    fn is_interval(&self, id: &SetId, v4: bool) -> bool {
        self.wide.get(id).is_some_and(|[of_v4, of_v6]| *(if v4 { of_v4 } else { of_v6 }) > 0)
    }

    /// A chain looks up a set.
    pub(super) fn acquire(
        &mut self,
        id: &SetId,
        v4: bool,
        caller: &Name,
        ruleset: &Ruleset,
        wanted: &mut Wanted,
    ) {
        let key = (id.clone(), v4);
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.callers.insert(Arc::clone(caller));
            return;
        }
        let name = self.fill(id, v4, ruleset, wanted);
        let all = self.ordered(id, v4, ruleset);
        self.slots.insert(key, Slot { name, callers: [Arc::clone(caller)].into_iter().collect(), all });
    }

    /// A chain looks up a set no more; says whether nobody does.
    pub(super) fn release(&mut self, id: &SetId, v4: bool, caller: &Name) -> bool {
        self.slots.get_mut(&(id.clone(), v4)).is_some_and(|slot| {
            slot.callers.remove(caller);
            slot.callers.is_empty()
        })
    }

    /// Drops a set that nobody looks up.
    pub(super) fn sweep(&mut self, id: &SetId, v4: bool, wanted: &mut Wanted) {
        let key = (id.clone(), v4);
        if self.slots.get(&key).is_some_and(|slot| slot.callers.is_empty())
            && let Some(slot) = self.slots.remove(&key)
        {
            wanted.drop_set(&slot.name);
            self.owners.remove(&slot.name);
        }
    }

    /// Takes a change of a set over into the ruleset and the table. The chains that it returns name a set that is called
    /// otherwise now.
    pub(super) fn change(
        &mut self,
        id: &SetId,
        change: &SetChange,
        ruleset: &mut Ruleset,
        wanted: &mut Wanted,
    ) -> Vec<Name> {
        let before = FAMILIES.map(|v4| self.is_interval(id, v4));
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        match change {
            SetChange::New(members) => {
                ruleset.sets.insert(id.clone(), members.iter().copied().collect());
                let wide = |v4| members.iter().filter(|net| net.is_v4() == v4 && !net.is_host()).count();
                self.wide.insert(id.clone(), FAMILIES.map(wide));
            }
            SetChange::Members { add: come, remove: went } => {
                let members = ruleset.sets.entry(id.clone()).or_default();
                let [of_v4, of_v6] = self.wide.entry(id.clone()).or_default();
                for net in went.iter().filter(|net| members.remove(net)) {
                    remove.push(*net);
                    let wide = if net.is_v4() { &mut *of_v4 } else { &mut *of_v6 };
                    *wide -= usize::from(!net.is_host());
                }
                for net in come.iter().filter(|net| members.insert(**net)) {
                    add.push(*net);
                    let wide = if net.is_v4() { &mut *of_v4 } else { &mut *of_v6 };
                    *wide += usize::from(!net.is_host());
                }
            }
            SetChange::Gone => {
                ruleset.sets.remove(id);
                self.wide.remove(id);
            }
        }
        let whole = !matches!(change, SetChange::Members { .. });
        let mut moved = Vec::new();
        for (v4, before) in FAMILIES.into_iter().zip(before) {
            let key = (id.clone(), v4);
            if !self.slots.contains_key(&key) {
                continue;
            }
            if whole || self.is_interval(id, v4) != before {
                let all = self.ordered(id, v4, ruleset);
                let name = self.fill(id, v4, ruleset, wanted);
                let Some(slot) = self.slots.get_mut(&key) else { continue };
                slot.all = all;
                if slot.name != name {
                    moved.extend(slot.callers.iter().cloned());
                    wanted.drop_set(&slot.name);
                    slot.name = name;
                }
            } else if let Some(slot) = self.slots.get_mut(&key) {
                remove
                    .iter()
                    .filter(|net| net.is_v4() == v4)
                    .for_each(|net| slot.remove(*net, before, wanted));
                add.iter().filter(|net| net.is_v4() == v4).for_each(|net| slot.add(*net, before, wanted));
            }
        }
        moved
    }

    /// Members of a set of networks, in order.
    fn ordered(&self, id: &SetId, v4: bool, ruleset: &Ruleset) -> BTreeSet<Cidr> {
        if self.is_interval(id, v4) { members(id, v4, ruleset).collect() } else { BTreeSet::new() }
    }

    /// A name is a selector's; that another has it already is noted.
    fn own(&mut self, name: &Name, id: &SetId, v4: bool) {
        if let Some(other) = self.owners.insert(Arc::clone(name), id.clone())
            && other != *id
            && self.slots.get(&(other, v4)).is_some_and(|slot| slot.name == *name)
            && self.clash.is_none()
        {
            self.clash = Some(format!("sets of addresses are both called {name}").into());
        }
    }

    /// Puts a set into the table as a whole.
    fn fill(&mut self, id: &SetId, v4: bool, ruleset: &Ruleset, wanted: &mut Wanted) -> Name {
        let interval = self.is_interval(id, v4);
        let name = names::set(id, v4, interval);
        self.own(&name, id, v4);
        let element = |net| (SetKey::Addr(net), SetValue::Member);
        let elements: BTreeMap<SetKey, SetValue> = if interval {
            super::ranges::uncovered(members(id, v4, ruleset)).into_iter().map(element).collect()
        } else {
            members(id, v4, ruleset).map(element).collect()
        };
        if wanted.has_set(&name) {
            wanted.replace(&name, elements);
        } else {
            let of = SetType { key: KeyType::Addr { v4 }, value: ValueType::Member, interval };
            wanted.add_set(&name, of, id.selector(), elements);
        }
        name
    }
}

fn members<'a>(id: &SetId, v4: bool, ruleset: &'a Ruleset) -> impl Iterator<Item = Cidr> + use<'a> {
    ruleset.sets.get(id).into_iter().flatten().copied().filter(move |net| net.is_v4() == v4)
}

impl Slot {
    fn add(&mut self, net: Cidr, interval: bool, wanted: &mut Wanted) {
        let key = SetKey::Addr(net);
        if interval {
            self.all.insert(net);
            let elements = wanted.elements(&self.name);
            // Elements do not overlap: what covers the network is the last one before it.
            let before = elements.and_then(|elements| elements.range(..&key).next_back());
            if before.is_some_and(|(before, _)| network(before).is_some_and(|before| before.covers(&net))) {
                return;
            }
            let behind = elements.map(|elements| elements.range((Bound::Excluded(&key), Bound::Unbounded)));
            let covered = |key: &&SetKey| network(key).is_some_and(|inside| net.covers(&inside));
            let inside: Vec<SetKey> =
                behind.into_iter().flatten().map(|(key, _)| key).take_while(covered).cloned().collect();
            inside.iter().for_each(|key| wanted.remove(&self.name, key));
        }
        wanted.put(&self.name, key, SetValue::Member);
    }

    fn remove(&mut self, net: Cidr, interval: bool, wanted: &mut Wanted) {
        let key = SetKey::Addr(net);
        let shown = !interval || wanted.element(&self.name, &key).is_some();
        self.all.remove(&net);
        if !shown {
            return;
        }
        wanted.remove(&self.name, &key);
        // What it covered comes to light, without what that covers in turn.
        let mut at = Bound::Excluded(net);
        while let Some(next) = self.all.range((at, Bound::Unbounded)).next().copied() {
            if !net.covers(&next) {
                break;
            }
            wanted.put(&self.name, SetKey::Addr(next), SetValue::Member);
            // Nothing in order is behind the last address of a network but before a host of it.
            at = Bound::Excluded(Cidr::host(next.last()));
        }
    }
}

fn network(key: &SetKey) -> Option<Cidr> {
    match key {
        SetKey::Addr(net) => Some(*net),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_selectors_with_one_name_are_noted() {
        let id = |text: &str| SetId::of(&text.parse().unwrap());
        let (mut sets, mut wanted, ruleset) = (Sets::default(), Wanted::default(), Ruleset::default());
        let name = sets.name(&id("has(a)"), true);
        sets.acquire(&id("has(a)"), true, &"c".into(), &ruleset, &mut wanted);
        sets.own(&name, &id("has(a)"), true);
        assert_eq!(sets.clash(), None);
        // As if its hash were the same.
        sets.own(&name, &id("has(b)"), true);
        assert_eq!(sets.clash(), Some(&*format!("sets of addresses are both called {name}")));
    }
}
