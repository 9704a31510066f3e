//! The content of a chain while it is drafted, and the input of drafting.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::names;
use super::node::Node;
use super::sets::Sets;
use crate::nft::ir::{Chain, Field, Hook, Match, Name, Rule, Side, Statement};
use crate::nft::maps;
use tortie_engine::policy::{ChainId, Globals, HostPolicy, Ruleset, SetId};

/// Settings of the process, which are not in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Log group for `log` rules; `None` for the kernel's log.
    pub(crate) log_group: Option<u16>,
    /// Log group for dropped packets (179).
    pub(crate) deny_group: u16,
}

/// Input of drafting a chain.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) options: Options,
    pub(super) globals: &'a Globals,
    pub(super) ruleset: &'a Ruleset,
    pub(super) sets: &'a Sets,
    /// Chains that contain a next-tier rule.
    pub(super) passing: &'a BTreeSet<ChainId>,
    /// True if an endpoint may send from networks, by family (IPv4, IPv6).
    pub(super) wide: [bool; 2],
    /// Host endpoint of all interfaces that have none of their own.
    pub(super) all_interfaces: Option<&'a HostPolicy>,
}

impl Frame<'_> {
    /// Returns the families with rules, as `v4` flags: IPv4 first.
    pub(super) fn families(&self) -> &'static [bool] {
        if self.globals.ipv6 { &[true, false] } else { &[true] }
    }

    /// Returns the mark bit for packets that a policy passed to the next tier. 0 if the mask has no bit: no
    /// packet is passed then.
    pub(super) fn pass(&self) -> u32 {
        lowest(self.globals.mark_mask)
    }

    /// Returns the mark bit for packets that a policy accepted before DNAT or conntrack.
    pub(super) fn early(&self) -> u32 {
        lowest(self.globals.mark_mask & !self.pass())
    }
}

fn lowest(mask: u32) -> u32 {
    mask & mask.wrapping_neg()
}

/// The content of a chain, with its references.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) chain: Chain,
    pub(super) calls: Vec<(Name, Node)>,
    pub(super) sets: Vec<(SetId, bool)>,
    /// For chains of a policy or profile, the index of the source rule of each rule.
    pub(super) origins: Vec<usize>,
    called: BTreeSet<Name>,
    lookups: BTreeSet<(SetId, bool)>,
}

impl Draft {
    pub(super) fn hooked(hook: Hook) -> Self {
        Self { chain: Chain { hook: Some(hook), rules: Vec::new() }, ..Self::default() }
    }

    /// Returns the name of a chain and records that this one calls it.
    pub(super) fn call(&mut self, node: Node) -> Name {
        let name = names::chain(&node);
        if self.called.insert(Arc::clone(&name)) {
            self.calls.push((Arc::clone(&name), node));
        }
        name
    }

    /// Returns the name of an address set and records that this chain looks it up; `None` if it is empty. The
    /// chain is drafted again when that changes.
    pub(super) fn set(&mut self, frame: &Frame<'_>, id: &SetId, v4: bool) -> Option<Name> {
        if self.lookups.insert((id.clone(), v4)) {
            self.sets.push((id.clone(), v4));
        }
        frame.sets.name(id, v4)
    }

    pub(super) fn push(&mut self, rule: Rule) {
        self.chain.rules.push(rule);
    }

    /// Appends a rule without counter, log or comment.
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

    /// Appends a lookup of the interface in a verdict map.
    pub(super) fn look_up(&mut self, interface: Field, map: maps::Map) {
        self.rule(Vec::new(), Statement::VerdictMap { key: vec![interface], map: map.name() });
    }
}

/// Matches packets of a family.
pub(super) fn family(v4: bool) -> Match {
    Match::Family { v4 }
}

/// Matches an address in a fixed set.
pub(super) fn in_set(side: Side, not: bool, map: maps::Map) -> Match {
    Match::InSet { not, key: vec![Field::Addr(side)], set: map.name() }
}
