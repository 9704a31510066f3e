//! What policy asks for, as one table: wanted chains and sets, and what changed in them.
//!
//! What it does: keeps its own [`Ruleset`] and the [`Table`] that enforces it, change by change, and gives the edits of
//! each change in an order in which nothing is ever named before it is there. What it does not: no I/O, no clock; it
//! does not know what the kernel holds.

use std::sync::Arc;

use super::ir::{Edit, Name, Table};
use crate::policy::{ChainId, Direction, Globals, HostInterfaces, Ruleset, RulesetDelta};

/// Choices of the process, not of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kernel) struct Options {
    /// Where `log` rules send packets; `None`: the kernel's own log.
    pub(in crate::kernel) log_group: Option<u16>,
    /// The group that hears of what is dropped (179).
    pub(in crate::kernel) deny_group: u16,
}

/// Why a packet was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::kernel) enum Denied {
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
    /// Its endpoint is not active.
    Inactive,
    /// IPIP from somebody who is no host of the cluster.
    Ipip,
    /// From a workload to its host (`DefaultEndpointToHostAction`).
    ToHost,
    /// IPv6 of a workload, while `Ipv6Support` is off.
    NoIpv6,
}

/// Turns changes of policy into changes of the table.
#[derive(Debug, Clone)]
pub(in crate::kernel) struct Renderer {
    options: Options,
    ruleset: Ruleset,
    table: Table,
}

impl Renderer {
    /// A renderer of nothing: its table is empty until it is told of [`Globals`].
    pub(in crate::kernel) fn new(options: Options) -> Self {
        Self { options, ruleset: Ruleset::default(), table: Table::default() }
    }

    /// Takes a change, and says what becomes of the table. `globals` and `hosts` are given when they are others than
    /// before.
    pub(in crate::kernel) fn take(
        &mut self,
        delta: &RulesetDelta,
        _globals: Option<&Globals>,
        _hosts: Option<&HostInterfaces>,
    ) -> Vec<Edit> {
        delta.apply(&mut self.ruleset);
        Vec::new()
    }

    /// The table that is wanted.
    pub(in crate::kernel) fn table(&self) -> &Table {
        &self.table
    }

    /// What it enforces.
    pub(in crate::kernel) fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// Why a packet was dropped, from the prefix that it was logged with; `None` for prefixes of others and of rules that
    /// are gone.
    pub(in crate::kernel) fn explain(&self, _prefix: &str) -> Option<&Denied> {
        None
    }

    /// The chain of a policy's or a profile's rules, when packets can come to it.
    pub(in crate::kernel) fn place_of(&self, _id: &ChainId) -> Option<Name> {
        None
    }

    /// For each rule of [`place_of`](Self::place_of) the rule of the policy or profile that it was made of, counted from 0.
    pub(in crate::kernel) fn rules_of(&self, _id: &ChainId) -> &[usize] {
        &[]
    }
}
