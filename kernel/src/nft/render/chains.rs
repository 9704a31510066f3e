//! The chains of the table: base chains, chains referred to by maps, and the chains that these call. Chains
//! with the same meaning are shared and reference-counted.

use super::names;
use super::node::{Denied, Node, Usage};
use super::sets::Sets;
use crate::nft::ir::Name;
use crate::nft::render::desired::DesiredTable;
use std::collections::{BTreeMap, BTreeSet};
use tortie_engine::policy::{ChainId, SetId};

/// A chain of the table.
#[derive(Debug, Clone)]
pub(super) struct RenderedChain {
    pub(super) node: Node,
    /// Chains that call it.
    pub(super) callers: BTreeSet<Name>,
    /// Number of map elements that refer to it; 1 for base chains.
    pub(super) holds: usize,
    pub(super) calls: Vec<Name>,
    pub(super) sets: Vec<(SetId, bool)>,
    pub(super) origins: Vec<usize>,
}

/// The chains of the table, and the pending checks before the edits are taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Chains {
    pub(super) placed: BTreeMap<Name, RenderedChain>,
    /// Chains that may have lost their last reference, callees after callers.
    pub(super) idle: Vec<Name>,
    /// Sets that may have lost their last reference.
    pub(super) idle_sets: Vec<(SetId, bool)>,
    /// Log prefixes of chains that drop, with their chains.
    pub(super) explained: BTreeMap<Box<str>, Name>,
    /// Two nodes with the same name.
    pub(super) collision: Option<Box<str>>,
}

impl Chains {
    pub(super) fn callees(&self, name: &Name) -> &[Name] {
        self.placed.get(name).map_or(&[], |placed| &placed.calls)
    }

    pub(super) fn callers(&self, name: &Name) -> Vec<Name> {
        self.placed.get(name).into_iter().flat_map(|placed| placed.callers.iter().cloned()).collect()
    }

    pub(super) fn name_collision(&self) -> Option<&str> {
        self.collision.as_deref()
    }

    /// Returns true if a chain exists; a collision with another meaning is recorded.
    pub(super) fn has(&mut self, name: &Name, means: impl FnOnce(&Node) -> bool) -> bool {
        let Some(placed) = self.placed.get(name) else { return false };
        if !means(&placed.node) && self.collision.is_none() {
            self.collision = Some(format!("chains are both called {name}").into());
        }
        true
    }

    pub(super) fn names(&self) -> Vec<Name> {
        self.placed.keys().cloned().collect()
    }

    /// Returns the reason for drops of packets logged with this prefix.
    pub(super) fn explain(&self, prefix: &str) -> Option<&Denied> {
        match &self.placed.get(self.explained.get(prefix)?)?.node {
            Node::Denied(denied) => Some(denied),
            _ => None,
        }
    }

    /// Returns the meaning of a chain, and for chains of a policy or profile the index of the source rule of
    /// each rule.
    pub(super) fn node(&self, name: &str) -> Option<(&Node, &[usize])> {
        self.placed.get(name).map(|placed| (&placed.node, placed.origins.as_slice()))
    }

    /// Returns the chain of a policy or profile, with the index of the source rule of each rule.
    pub(super) fn of(&self, id: &ChainId) -> Option<(Name, &[usize])> {
        Usage::ALL.into_iter().find_map(|usage| {
            let name = names::rules(id, usage);
            self.placed.get(&name).map(|placed| (name, placed.origins.as_slice()))
        })
    }
}

impl Chains {
    pub(super) fn leave(&mut self, caller: &Name, callees: Vec<Name>) {
        for callee in callees {
            if let Some(placed) = self.placed.get_mut(&callee) {
                placed.callers.remove(caller);
                self.idle.push(callee);
            }
        }
    }

    pub(super) fn leave_sets(&mut self, caller: &Name, left: Vec<(SetId, bool)>, sets: &mut Sets) {
        for (id, v4) in left {
            if sets.release(&id, v4, caller) {
                self.idle_sets.push((id, v4));
            }
        }
    }

    pub(super) fn sweep(&mut self, sets: &mut Sets, wanted: &mut DesiredTable) {
        while let Some(name) = self.idle.pop() {
            if self.placed.get(&name).is_none_or(|placed| placed.holds > 0 || !placed.callers.is_empty()) {
                continue;
            }
            let Some(placed) = self.placed.remove(&name) else { continue };
            if let Node::Denied(denied) = &placed.node {
                self.explained.remove(&names::prefix(denied));
            }
            wanted.remove_chain(&name);
            self.leave(&name, placed.calls);
            self.leave_sets(&name, placed.sets, sets);
        }
    }
}
