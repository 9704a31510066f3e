//! Reference-counted members of the address sets in use, with their changes since the last delta.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;
use tortie_config::Selector;
use tortie_net::Cidr;

use super::classes::LabelClasses;
use super::select::Selectors;
use super::types::{SetChange, SetId};

#[derive(Debug, Clone)]
struct AddressSet {
    id: SetId,
    selector: Selector,
    /// Number of chains that use the set.
    users: usize,
    /// Members with the number of endpoints that have the address. A member is removed with its last
    /// endpoint.
    members: BTreeMap<Cidr, u32>,
    /// Members that changed since the last delta; true if the address was a member before.
    changed_members: BTreeMap<Cidr, bool>,
    /// True if no delta has contained the set yet.
    new: bool,
}

/// Address sets that chains use, with the sets of each class.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressSets {
    sets: Slab<AddressSet>,
    by_id: BTreeMap<SetId, usize>,
    selectors: Selectors<usize>,
    /// Sets of each class, sorted.
    of_class: BTreeMap<usize, Vec<usize>>,
    /// Sets that may have changed since the last delta.
    changed: BTreeSet<usize>,
}

impl AddressSets {
    /// Counts one more chain that uses a set. The first use fills the set.
    pub(super) fn acquire<'a, M>(
        &mut self,
        id: &SetId,
        selector: &Selector,
        classes: &LabelClasses,
        members: impl Fn(usize) -> M,
    ) where
        M: IntoIterator<Item = &'a Cidr>,
    {
        if let Some(set) = self.by_id.get(id).and_then(|at| self.sets.get_mut(*at)) {
            set.users += 1;
            return;
        }
        let mut set = AddressSet {
            id: id.clone(),
            selector: selector.clone(),
            users: 1,
            members: BTreeMap::new(),
            changed_members: BTreeMap::new(),
            new: true,
        };
        let selected = classes.selected(selector);
        for class in &selected {
            for endpoint in classes.endpoints(*class) {
                for net in members(endpoint) {
                    *set.members.entry(*net).or_default() += 1;
                }
            }
        }
        let at = self.sets.insert(set);
        for class in selected {
            let sets = self.of_class.entry(class).or_default();
            if let Err(place) = sets.binary_search(&at) {
                sets.insert(place, at);
            }
        }
        self.by_id.insert(id.clone(), at);
        self.selectors.insert(at, selector.clone());
        self.changed.insert(at);
    }

    /// Counts one chain less. The next delta removes the set, unless another chain uses it by then.
    pub(super) fn release(&mut self, id: &SetId) {
        if let Some(at) = self.by_id.get(id).copied()
            && let Some(set) = self.sets.get_mut(at)
        {
            set.users = set.users.saturating_sub(1);
            self.changed.insert(at);
        }
    }

    /// Counts an added or removed endpoint of a class, with its addresses.
    pub(super) fn count(&mut self, class: usize, nets: &[Cidr], present: bool) {
        for at in self.of_class.get(&class).into_iter().flatten() {
            if let Some(set) = self.sets.get_mut(*at) {
                set.count(nets, present);
                self.changed.insert(*at);
            }
        }
    }

    /// Assigns a new or changed class to the sets that match it. `nets` are the addresses of all its
    /// endpoints.
    pub(super) fn sort_class(&mut self, class: usize, classes: &LabelClasses, nets: &[Cidr]) {
        let now = self.selectors.matching(&classes.labels(class), |name| classes.label(class, name));
        let before = self.of_class.remove(&class).unwrap_or_default();
        let moves = before.iter().filter(|at| now.binary_search(at).is_err()).map(|at| (*at, false));
        let moves =
            moves.chain(now.iter().filter(|at| before.binary_search(at).is_err()).map(|at| (*at, true)));
        for (at, present) in moves {
            if let Some(set) = self.sets.get_mut(at) {
                set.count(nets, present);
                self.changed.insert(at);
            }
        }
        if !now.is_empty() {
            self.of_class.insert(class, now);
        }
    }

    /// Removes a class whose endpoints are already removed.
    pub(super) fn forget_class(&mut self, class: usize) {
        self.of_class.remove(&class);
    }

    /// Returns the changes since the last call.
    pub(super) fn take_changes(&mut self, classes: &LabelClasses) -> BTreeMap<SetId, SetChange> {
        let mut changes = BTreeMap::new();
        for at in std::mem::take(&mut self.changed) {
            let Some(set) = self.sets.get_mut(at) else { continue };
            let changed_members = std::mem::take(&mut set.changed_members);
            if set.users == 0 {
                let Some(set) = self.sets.try_remove(at) else { continue };
                self.by_id.remove(&set.id);
                self.selectors.remove(at);
                for class in classes.selected(&set.selector) {
                    if let Some(sets) = self.of_class.get_mut(&class)
                        && let Ok(place) = sets.binary_search(&at)
                    {
                        sets.remove(place);
                    }
                }
                if !set.new {
                    changes.insert(set.id, SetChange::Gone);
                }
            } else if std::mem::take(&mut set.new) {
                changes.insert(set.id.clone(), SetChange::New(set.members.keys().copied().collect()));
            } else {
                let (mut add, mut remove) = (BTreeSet::new(), BTreeSet::new());
                for (net, before) in changed_members {
                    match (before, set.members.contains_key(&net)) {
                        (false, true) => add.insert(net),
                        (true, false) => remove.insert(net),
                        _ => continue,
                    };
                }
                if !(add.is_empty() && remove.is_empty()) {
                    changes.insert(set.id.clone(), SetChange::Members { add, remove });
                }
            }
        }
        changes
    }
}

impl AddressSet {
    fn count(&mut self, nets: &[Cidr], present: bool) {
        for net in nets {
            let before = self.members.contains_key(net);
            if present {
                *self.members.entry(*net).or_default() += 1;
            } else if let Some(count) = self.members.get_mut(net) {
                *count -= 1;
                if *count == 0 {
                    self.members.remove(net);
                }
            }
            self.changed_members.entry(*net).or_insert(before);
        }
    }
}
