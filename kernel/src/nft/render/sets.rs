//! Address sets of selectors, one per family: their kinds and their elements, updated element by element.
//!
//! If a selector has no member of a family, the kernel has no such set and no rule refers to one: a positive
//! match could not hold there, a negated one always would. The first member adds the set, and the chains that
//! use it are drafted again, in one transaction. A set without any member counts as one of IPv4. So without
//! IPv6 no chain is rewritten because an endpoint is added or removed, and its counters continue. (The kernel
//! finds a set by a linear search through the names, so unneeded sets are expensive when many endpoints
//! start.)

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tortie_net::Cidr;

use super::names;
use crate::nft::ir::{KeyType, Name, SetKey, SetType, SetValue, ValueType};
use crate::nft::render::desired::DesiredTable;
use tortie_engine::policy::{Ruleset, SetChange, SetId};

/// A set of one family that chains look up.
#[derive(Debug, Clone)]
struct Slot {
    /// Name of the kernel's set; `None` if it has no member and does not exist.
    name: Option<Name>,
    callers: BTreeSet<Name>,
    /// All members, in order; for interval sets only.
    all: BTreeSet<Cidr>,
}

/// Number of members of one family, and of those that are networks rather than single addresses.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    all: usize,
    wide: usize,
}

impl Size {
    fn count(&mut self, net: &Cidr, comes: bool) {
        let step = |n: &mut usize| *n = if comes { *n + 1 } else { n.saturating_sub(1) };
        step(&mut self.all);
        if !net.is_host() {
            step(&mut self.wide);
        }
    }
}

/// State of all address sets.
#[derive(Debug, Clone, Default)]
pub(super) struct Sets {
    /// Sizes by family: IPv4, IPv6.
    sizes: BTreeMap<SetId, [Size; 2]>,
    slots: BTreeMap<(SetId, bool), Slot>,
    /// The selector to which each name belongs.
    owners: BTreeMap<Name, SetId>,
    /// Selectors by hash, in the order of arrival. The first has the plain name, each later one the name with
    /// its position, so that their names differ.
    of_hash: BTreeMap<Box<str>, Vec<SetId>>,
    hash: SetHash,
    /// Two selectors whose sets have one name.
    collision: Option<Box<str>>,
}

/// Function for the hash in the names of a selector's sets; tests replace it.
#[derive(Debug, Clone, Copy)]
struct SetHash(fn(&SetId) -> String);

impl Default for SetHash {
    fn default() -> Self {
        Self(names::set_hash)
    }
}

const FAMILIES: [bool; 2] = [true, false];

impl Sets {
    /// Returns the name of a set of one family; `None` if it is empty. The name changes with the kind of the
    /// set.
    pub(super) fn name(&self, id: &SetId, v4: bool) -> Option<Name> {
        self.is_there(id, v4).then(|| {
            let hash = (self.hash.0)(id);
            let twins = self.of_hash.get(hash.as_str());
            let name = names::set(&hash, v4, self.is_interval(id, v4));
            match twins.and_then(|twins| twins.iter().position(|twin| twin == id)) {
                None | Some(0) => name,
                Some(place) => format!("{name}-{}", place + 1).into(),
            }
        })
    }

    /// Adds a selector; existing selectors with the same hash keep their names.
    fn come(&mut self, id: &SetId) {
        let twins = self.of_hash.entry((self.hash.0)(id).into()).or_default();
        if !twins.contains(id) {
            twins.push(id.clone());
        }
    }

    /// Removes a selector. Others with the same hash keep their positions.
    fn go(&mut self, id: &SetId) {
        let hash = (self.hash.0)(id);
        if self.of_hash.get(hash.as_str()).is_some_and(|twins| twins.as_slice() == [id.clone()]) {
            self.of_hash.remove(hash.as_str());
        }
    }

    pub(super) fn name_collision(&self) -> Option<&str> {
        self.collision.as_deref()
    }

    fn sizes(&self, id: &SetId) -> [Size; 2] {
        self.sizes.get(id).copied().unwrap_or_default()
    }

    fn is_interval(&self, id: &SetId, v4: bool) -> bool {
        let [of_v4, of_v6] = self.sizes(id);
        (if v4 { of_v4 } else { of_v6 }).wide > 0
    }

    /// Returns true if the kernel has a set of this family.
    fn is_there(&self, id: &SetId, v4: bool) -> bool {
        let [of_v4, of_v6] = self.sizes(id);
        if v4 { of_v4.all > 0 || of_v6.all == 0 } else { of_v6.all > 0 }
    }

    /// Records that a chain looks up a set.
    pub(super) fn acquire(
        &mut self,
        id: &SetId,
        v4: bool,
        caller: &Name,
        ruleset: &Ruleset,
        wanted: &mut DesiredTable,
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

    /// Records that a chain no longer looks up a set; returns true if no chain does.
    pub(super) fn release(&mut self, id: &SetId, v4: bool, caller: &Name) -> bool {
        self.slots.get_mut(&(id.clone(), v4)).is_some_and(|slot| {
            slot.callers.remove(caller);
            slot.callers.is_empty()
        })
    }

    /// Deletes a set that no chain looks up.
    pub(super) fn sweep(&mut self, id: &SetId, v4: bool, wanted: &mut DesiredTable) {
        let key = (id.clone(), v4);
        if self.slots.get(&key).is_some_and(|slot| slot.callers.is_empty())
            && let Some(Slot { name: Some(name), .. }) = self.slots.remove(&key)
        {
            self.disown(&name, wanted);
        }
    }

    /// Applies a change of a set to the ruleset and the table. Returns the chains that refer to a set whose
    /// name has changed.
    pub(super) fn change(
        &mut self,
        id: &SetId,
        change: &SetChange,
        ruleset: &mut Ruleset,
        wanted: &mut DesiredTable,
    ) -> Vec<Name> {
        let before = FAMILIES.map(|v4| self.is_interval(id, v4));
        let (mut add, mut remove) = (Vec::new(), Vec::new());
        match change {
            SetChange::New(members) => {
                self.come(id);
                ruleset.sets.insert(id.clone(), members.iter().copied().collect());
                let mut sizes = [Size::default(); 2];
                members.iter().for_each(|net| of(&mut sizes, net).count(net, true));
                self.sizes.insert(id.clone(), sizes);
            }
            SetChange::Members { add: come, remove: went } => {
                let members = ruleset.sets.entry(id.clone()).or_default();
                let sizes = self.sizes.entry(id.clone()).or_default();
                for net in went.iter().filter(|net| members.remove(net)) {
                    remove.push(*net);
                    of(sizes, net).count(net, false);
                }
                for net in come.iter().filter(|net| members.insert(**net)) {
                    add.push(*net);
                    of(sizes, net).count(net, true);
                }
            }
            SetChange::Gone => {
                self.go(id);
                ruleset.sets.remove(id);
                self.sizes.remove(id);
            }
        }
        let whole = !matches!(change, SetChange::Members { .. });
        let mut moved = Vec::new();
        for (v4, before) in FAMILIES.into_iter().zip(before) {
            let key = (id.clone(), v4);
            let Some(slot) = self.slots.get(&key) else { continue };
            let is_other = slot.name.is_some() != self.is_there(id, v4) || self.is_interval(id, v4) != before;
            if whole || is_other {
                let all = self.ordered(id, v4, ruleset);
                let name = self.fill(id, v4, ruleset, wanted);
                let Some(slot) = self.slots.get_mut(&key) else { continue };
                slot.all = all;
                if slot.name != name {
                    moved.extend(slot.callers.iter().cloned());
                    if let Some(old) = std::mem::replace(&mut slot.name, name) {
                        self.disown(&old, wanted);
                    }
                }
            } else if let Some(slot) = self.slots.get_mut(&key)
                && let Some(name) = slot.name.clone()
            {
                let ours = |net: &&Cidr| net.is_v4() == v4;
                remove.iter().filter(ours).for_each(|net| slot.remove(&name, *net, before, wanted));
                add.iter().filter(ours).for_each(|net| slot.add(&name, *net, before, wanted));
            }
        }
        moved
    }

    /// Returns the members of an interval set, in order.
    fn ordered(&self, id: &SetId, v4: bool, ruleset: &Ruleset) -> BTreeSet<Cidr> {
        if self.is_interval(id, v4) { members(id, v4, ruleset).collect() } else { BTreeSet::new() }
    }

    /// Records that a name belongs to a selector; a collision with another one is recorded.
    fn own(&mut self, name: &Name, id: &SetId, v4: bool) {
        if let Some(other) = self.owners.insert(Arc::clone(name), id.clone())
            && other != *id
            && self.slots.get(&(other, v4)).is_some_and(|slot| slot.name.as_ref() == Some(name))
            && self.collision.is_none()
        {
            self.collision = Some(format!("sets of addresses are both called {name}").into());
        }
    }

    fn disown(&mut self, name: &Name, wanted: &mut DesiredTable) {
        wanted.drop_set(name);
        self.owners.remove(name);
    }

    /// Adds a whole set to the table, if it exists.
    fn fill(&mut self, id: &SetId, v4: bool, ruleset: &Ruleset, wanted: &mut DesiredTable) -> Option<Name> {
        let name = self.name(id, v4)?;
        let interval = self.is_interval(id, v4);
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
        Some(name)
    }
}

fn of<'a>([of_v4, of_v6]: &'a mut [Size; 2], net: &Cidr) -> &'a mut Size {
    if net.is_v4() { of_v4 } else { of_v6 }
}

fn members<'a>(id: &SetId, v4: bool, ruleset: &'a Ruleset) -> impl Iterator<Item = Cidr> + use<'a> {
    ruleset.sets.get(id).into_iter().flatten().copied().filter(move |net| net.is_v4() == v4)
}

impl Slot {
    fn add(&mut self, name: &Name, net: Cidr, interval: bool, wanted: &mut DesiredTable) {
        let key = SetKey::Addr(net);
        if interval {
            self.all.insert(net);
            let elements = wanted.elements(name);
            // Elements do not overlap, so a covering network is the last element before it.
            let before = elements.and_then(|elements| elements.range(..&key).next_back());
            if before.is_some_and(|(before, _)| network(before).is_some_and(|before| before.covers(&net))) {
                return;
            }
            let behind = elements.map(|elements| elements.range((Bound::Excluded(&key), Bound::Unbounded)));
            let covered = |key: &&SetKey| network(key).is_some_and(|inside| net.covers(&inside));
            let inside: Vec<SetKey> =
                behind.into_iter().flatten().map(|(key, _)| key).take_while(covered).cloned().collect();
            inside.iter().for_each(|key| wanted.remove(name, key));
        }
        wanted.put(name, key, SetValue::Member);
    }

    fn remove(&mut self, name: &Name, net: Cidr, interval: bool, wanted: &mut DesiredTable) {
        let key = SetKey::Addr(net);
        let shown = !interval || wanted.element(name, &key).is_some();
        self.all.remove(&net);
        if !shown {
            return;
        }
        wanted.remove(name, &key);
        // Networks covered by the removed one become elements, without those that they cover in turn.
        let mut at = Bound::Excluded(net);
        while let Some(next) = self.all.range((at, Bound::Unbounded)).next().copied() {
            if !net.covers(&next) {
                break;
            }
            wanted.put(name, SetKey::Addr(next), SetValue::Member);
            // The host prefix of its last address is the last prefix in order that a network covers.
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

    /// In any order of additions and removals each selector has its own set with its own members, and nothing
    /// is refused.
    #[test]
    fn selectors_of_one_hash_have_sets_of_their_own() {
        let id = |text: &str| SetId::of(&text.parse().unwrap());
        let net = |n: u8| Cidr::host(std::net::IpAddr::from([10, 0, 0, n]));
        let ids = ["has(a)", "has(b)", "has(c)"].map(id);
        let mut sets = Sets { hash: SetHash(|_| "00".to_owned()), ..Sets::default() };
        let (mut wanted, mut ruleset) = (DesiredTable::default(), Ruleset::default());
        for (id, n) in ids.iter().zip(1..) {
            sets.change(id, &SetChange::New([net(n)].into()), &mut ruleset, &mut wanted);
            sets.acquire(id, true, &"c".into(), &ruleset, &mut wanted);
        }
        let name = |sets: &Sets, id: &SetId| sets.name(id, true).unwrap().to_string();
        assert_eq!(
            ids.each_ref().map(|id| name(&sets, id)),
            ["v4-addrs-00", "v4-addrs-00-2", "v4-addrs-00-3"]
        );
        let members = |wanted: &DesiredTable, name: &str| -> Vec<SetKey> {
            wanted.elements(name).unwrap().keys().cloned().collect()
        };
        for (id, n) in ids.iter().zip(1..) {
            assert_eq!(members(&wanted, &name(&sets, id)), [SetKey::Addr(net(n))]);
        }
        // The first selector is removed; the others keep their sets, and so does one that is added again.
        let [elder, younger, _] = &ids;
        sets.release(elder, true, &"c".into());
        sets.change(elder, &SetChange::Gone, &mut ruleset, &mut wanted);
        sets.sweep(elder, true, &mut wanted);
        let change = SetChange::Members { add: [net(9)].into(), remove: [].into() };
        assert_eq!(sets.change(younger, &change, &mut ruleset, &mut wanted), Vec::<Name>::new());
        assert_eq!(members(&wanted, "v4-addrs-00-2"), [SetKey::Addr(net(2)), SetKey::Addr(net(9))]);
        assert_eq!(sets.name_collision(), None);
    }

    #[test]
    fn two_selectors_with_one_name_are_noted() {
        let id = |text: &str| SetId::of(&text.parse().unwrap());
        let (mut sets, mut wanted, ruleset) = (Sets::default(), DesiredTable::default(), Ruleset::default());
        let name = sets.name(&id("has(a)"), true).unwrap();
        sets.acquire(&id("has(a)"), true, &"c".into(), &ruleset, &mut wanted);
        sets.own(&name, &id("has(a)"), true);
        assert_eq!(sets.name_collision(), None);
        // As if its hash were the same.
        sets.own(&name, &id("has(b)"), true);
        assert_eq!(sets.name_collision(), Some(&*format!("sets of addresses are both called {name}")));
    }
}
