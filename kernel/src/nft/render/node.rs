//! What chains are made from: a node names a chain by what it means, and a draft is its content with what it uses.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::names;
use super::sets::Sets;
use super::{Options, maps};
use crate::nft::ir::{Chain, Field, Hook, Match, Name, Rule, Side, Statement};
use tortie_engine::policy::{ChainId, Direction, Globals, Ruleset, SetId, Stages, Tier};

/// Why a packet was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Denied {
    /// By this rule of a policy or a profile, counted from 0.
    Rule(ChainId, usize),
    /// No policy of this tier let it go on.
    EndOfTier { tier: Arc<str>, direction: Direction },
    /// No profile decided.
    EndOfProfiles { direction: Direction },
    /// No endpoint has the workload interface.
    UnknownInterface,
    /// Its source is none of its endpoint's addresses.
    Spoofed,
    /// To a loopback address of the host, which no rule of the host led it to.
    Loopback,
    /// Its endpoint is not active.
    Inactive,
    /// IPIP from somebody who is no host of the cluster.
    Ipip,
    /// From a workload to its host (`DefaultEndpointToHostAction`).
    ToHost,
    /// IPv6 of a workload, while `Ipv6Support` is off.
    NoIpv6,
}

/// Where rules act, which says what `allow` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// In tiers and as profiles.
    Filter,
    /// Before connection tracking.
    Untracked,
    /// Before DNAT.
    PreDnat,
}

impl Usage {
    pub(super) const ALL: [Self; 3] = [Self::Filter, Self::Untracked, Self::PreDnat];
}

/// Which failsafe ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ports {
    Inbound,
    Outbound,
    /// Without connection tracking replies have to be let through too, by their source port.
    RawInbound,
    RawOutbound,
}

/// Chains that are there once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fixed {
    RawWorkload,
    AntiSpoof,
    WorkloadToHost,
    ToHost,
    FromWorkload,
    ToWorkload,
    Failsafe(Ports),
}

/// Chains with a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    RawPrerouting,
    RawOutput,
    PreDnat,
    NatPrerouting,
    NatOutput,
    NatPostrouting,
    InputFrom,
    InputToHost,
    ForwardFrom,
    ForwardTo,
    Output,
}

/// A chain, by what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// The rules of a policy or a profile.
    Rules { id: ChainId, usage: Usage },
    /// The policies of a tier that select an endpoint.
    Tier { tier: Tier, direction: Direction },
    /// What a workload's packets pass in one direction before its profiles: returns when all tiers let the packet on.
    Tiers { tiers: Vec<Tier>, direction: Direction },
    /// Several profiles of a workload, in order.
    Profiles { profiles: Vec<ChainId>, direction: Direction },
    /// Everything that packets of a host's interface pass in one direction.
    Host { of: Stages, direction: Direction },
    /// Untracked or pre-DNAT policies of a host endpoint.
    Early { chains: Vec<ChainId>, usage: Usage, direction: Direction },
    /// Tells and drops.
    Denied(Denied),
    /// There once.
    Fixed(Fixed),
    /// With a hook; `true`: after the rules of others (`ChainInsertMode`).
    Base(Base, bool),
}

/// What chains are drafted from.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) options: Options,
    pub(super) globals: &'a Globals,
    pub(super) ruleset: &'a Ruleset,
    pub(super) sets: &'a Sets,
    /// Chains with a next-tier rule.
    pub(super) passing: &'a FxHashSet<ChainId>,
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
    called: FxHashSet<Name>,
    looked_up: FxHashSet<(SetId, bool)>,
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
        if self.looked_up.insert((id.clone(), v4)) {
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
