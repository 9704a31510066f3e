//! Which chains are in the table: those with a hook, those that a map names, and whatever these go to. Chains with the
//! same meaning are one chain, counted by who goes to it.

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
    /// Chains that go to it.
    pub(super) callers: BTreeSet<Name>,
    /// Elements of maps that name it; 1 for chains with a hook.
    pub(super) holds: usize,
    pub(super) calls: Vec<Name>,
    pub(super) sets: Vec<(SetId, bool)>,
    pub(super) origins: Vec<usize>,
}

/// The chains of the table, and what has to be looked at before the edits are taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Chains {
    pub(super) placed: BTreeMap<Name, RenderedChain>,
    /// Chains that may have lost their last user, callees behind callers.
    pub(super) idle: Vec<Name>,
    /// Sets that may have.
    pub(super) idle_sets: Vec<(SetId, bool)>,
    /// What chains that drop say.
    pub(super) explained: BTreeMap<Box<str>, Name>,
    /// Two nodes that have one name.
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

    /// Whether a chain is there; one of that name with another meaning is noted.
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

    /// Why a packet was dropped that was logged with this prefix.
    pub(super) fn explain(&self, prefix: &str) -> Option<&Denied> {
        match &self.placed.get(self.explained.get(prefix)?)?.node {
            Node::Denied(denied) => Some(denied),
            _ => None,
        }
    }

    /// What a chain is, and for chains of a policy or profile which of its rules each rule was made of.
    pub(super) fn node(&self, name: &str) -> Option<(&Node, &[usize])> {
        self.placed.get(name).map(|placed| (&placed.node, placed.origins.as_slice()))
    }

    /// The chain of a policy or profile, with the rules that its rules were made of.
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
