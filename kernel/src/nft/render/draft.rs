//! The content of a chain as it is drafted, and what it is drafted from.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::names;
use super::node::Node;
use super::sets::Sets;
use crate::nft::ir::{Chain, Field, Hook, Match, Name, Rule, Side, Statement};
use crate::nft::maps;
use tortie_engine::policy::{ChainId, Globals, Ruleset, SetId};

/// Choices of the process, not of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Where `log` rules send packets; `None`: the kernel's own log.
    pub(crate) log_group: Option<u16>,
    /// The group that gets what is dropped (179).
    pub(crate) deny_group: u16,
}

/// What chains are drafted from.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) options: Options,
    pub(super) globals: &'a Globals,
    pub(super) ruleset: &'a Ruleset,
    pub(super) sets: &'a Sets,
    /// Chains with a next-tier rule.
    pub(super) passing: &'a BTreeSet<ChainId>,
    /// Whether an endpoint may send from networks, by family (IPv4, IPv6).
    pub(super) wide: [bool; 2],
}

impl Frame<'_> {
    /// The families that rules are for: IPv4 first.
    pub(super) fn families(&self) -> &'static [bool] {
        if self.globals.ipv6 { &[true, false] } else { &[true] }
    }

    /// The bit of the mark that says that a policy let the packet on to the next tier. 0 when the mask has none: nothing
    /// is let on then.
    pub(super) fn pass(&self) -> u32 {
        lowest(self.globals.mark_mask)
    }

    /// The bit that says that a policy accepted the packet before DNAT or connection tracking.
    pub(super) fn early(&self) -> u32 {
        lowest(self.globals.mark_mask & !self.pass())
    }
}

fn lowest(mask: u32) -> u32 {
    mask & mask.wrapping_neg()
}

/// The content of a chain, and what it uses.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) chain: Chain,
    pub(super) calls: Vec<(Name, Node)>,
    pub(super) sets: Vec<(SetId, bool)>,
    /// For chains of a policy or profile: which of its rules each rule was made of.
    pub(super) origins: Vec<usize>,
    called: BTreeSet<Name>,
    lookups: BTreeSet<(SetId, bool)>,
}

impl Draft {
    pub(super) fn hooked(hook: Hook) -> Self {
        Self { chain: Chain { hook: Some(hook), rules: Vec::new() }, ..Self::default() }
    }

    /// The name of a chain that this one goes to.
    pub(super) fn call(&mut self, node: Node) -> Name {
        let name = names::chain(&node);
        if self.called.insert(Arc::clone(&name)) {
            self.calls.push((Arc::clone(&name), node));
        }
        name
    }

    /// The name of an address set that this chain looks up; `None`: nothing is in it now. The chain is drafted again when
    /// that changes.
    pub(super) fn set(&mut self, frame: &Frame<'_>, id: &SetId, v4: bool) -> Option<Name> {
        if self.lookups.insert((id.clone(), v4)) {
            self.sets.push((id.clone(), v4));
        }
        frame.sets.name(id, v4)
    }

    pub(super) fn push(&mut self, rule: Rule) {
        self.chain.rules.push(rule);
    }

    /// A rule without counter, log or comment.
    pub(super) fn rule(&mut self, matches: Vec<Match>, statement: Statement) {
        self.push(Rule { matches, statement, ..Rule::default() });
    }

    pub(super) fn goto(&mut self, matches: Vec<Match>, node: Node) {
        let name = self.call(node);
        self.rule(matches, Statement::Goto(name));
    }

    pub(super) fn jump(&mut self, matches: Vec<Match>, node: Node) {
        let name = self.call(node);
        self.rule(matches, Statement::Jump(name));
    }

    /// What a map of interfaces says.
    pub(super) fn look_up(&mut self, interface: Field, map: maps::Map) {
        self.rule(Vec::new(), Statement::VerdictMap { key: vec![interface], map: map.name() });
    }
}

/// A packet of a family.
pub(super) fn family(v4: bool) -> Match {
    Match::Family { v4 }
}

/// An address in a set that is there once.
pub(super) fn in_set(side: Side, not: bool, map: maps::Map) -> Match {
    Match::InSet { not, key: vec![Field::Addr(side)], set: map.name() }
}
