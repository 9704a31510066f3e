//! Read-only views of the packet rules: the desired state, counters and differences.

use std::io;
use std::time::Instant;

use super::{Firewall, TABLE};
use crate::nft::drop_log::Denial;
use crate::nft::ir::ValueType;
use crate::nft::metrics::{RuleDrift, RuleMetrics};
use crate::nft::render::{Denied, Renderer};
use crate::nft::socket::Socket;
use crate::nft::{dump, text};
use tortie_engine::policy::{ChainId, Direction, HostInterfaces, Ruleset, Source};

/// Counts of the desired objects, and of events since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Number of desired chains.
    pub chains: usize,
    /// Number of desired rules.
    pub rules: usize,
    /// Number of desired sets and maps.
    pub sets: usize,
    /// Number of maps among them.
    pub maps: usize,
    /// Number of their elements.
    pub elements: usize,
    /// Number of transactions that the kernel executed.
    pub transactions: u64,
    /// Number of transactions that the kernel refused.
    pub refused: u64,
    /// Number of comparisons with the kernel's table.
    pub compares: u64,
    /// Number of Tortie's objects that another process changed or removed.
    pub external_changes: u64,
}

/// Counters of a rule since it was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleHits {
    /// Number of packets that matched.
    pub packets: u64,
    /// Number of their octets.
    pub bytes: u64,
}

impl Firewall {
    /// Returns the renderer of the policy.
    pub(crate) fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Explains why packets logged with this prefix are dropped; `None` if another process or a removed rule
    /// logged them.
    pub(crate) fn explain(&self, prefix: &str) -> Option<String> {
        self.renderer.explain(prefix).map(ToString::to_string)
    }

    /// Returns the compiled policy.
    pub(crate) fn ruleset(&self) -> &Ruleset {
        self.renderer.ruleset()
    }

    /// Returns the name prefixes of workload interfaces.
    pub(crate) fn interface_prefixes(&self) -> Vec<String> {
        self.globals.as_ref().map(|globals| globals.interface_prefixes.clone()).unwrap_or_default()
    }

    /// Returns the host endpoint of each interface that has one.
    pub(crate) fn hosts(&self) -> &HostInterfaces {
        &self.hosts
    }

    /// Returns the counts; iterates over all sets and chains.
    pub(crate) fn counts(&self) -> RuleCounts {
        let table = self.renderer.table();
        RuleCounts {
            chains: table.chains.len(),
            rules: table.chains.values().map(|chain| chain.rules.len()).sum(),
            sets: table.sets.len(),
            maps: table.sets.values().filter(|set| set.of.value != ValueType::Member).count(),
            elements: table.sets.values().map(|set| set.elements.len()).sum(),
            ..self.counts
        }
    }

    /// Returns the number of objects that differed at the last comparison and are not repaired, and
    /// descriptions of the first ones.
    pub(crate) fn drift(&self) -> (usize, &[String]) {
        (self.drift.0, &self.drift.1)
    }

    /// Returns the same, counted by kind.
    pub(crate) fn drift_counts(&self) -> RuleDrift {
        self.drift_counts
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> &RuleMetrics {
        &self.metrics
    }

    /// Returns the time of the last comparison with the kernel's table.
    pub(crate) fn last_compare(&self) -> Option<Instant> {
        self.last_compare
    }

    /// Classifies the denial of packets logged with this prefix.
    pub(crate) fn denial(&self, prefix: &str) -> Option<Denial> {
        self.renderer.explain(prefix).map(Denied::denial)
    }

    /// Reads the counters of the rules of a policy or a profile, by rule number, inbound and outbound; empty
    /// if the kernel does not have the desired rules.
    ///
    /// # Errors
    /// The kernel refuses to show its rules.
    pub(crate) fn hits(&self, source: &Source) -> io::Result<[Vec<RuleHits>; 2]> {
        let mut both = [Vec::new(), Vec::new()];
        if self.socket.is_none() || self.generation.is_none() {
            return Ok(both);
        }
        let mut socket = Socket::open()?;
        for (direction, hits) in [Direction::Inbound, Direction::Outbound].into_iter().zip(&mut both) {
            let id = ChainId { source: source.clone(), direction };
            let (Some(chain), Some(of)) = (self.renderer.place_of(&id), self.ruleset().chains.get(&id))
            else {
                continue;
            };
            let (found, origins) = (dump::rules_of(&mut socket, TABLE, &chain)?, self.renderer.rules_of(&id));
            if found.len() != origins.len() {
                continue;
            }
            hits.resize(of.rules.len(), RuleHits::default());
            for (origin, rule) in origins.iter().zip(&found) {
                // One rule may be there once per address family.
                if let Some(hit) = hits.get_mut(*origin) {
                    hit.packets += rule.packets;
                    hit.bytes += rule.bytes;
                }
            }
        }
        Ok(both)
    }

    /// Returns the desired rules in nft syntax.
    pub(crate) fn text(&self) -> String {
        text::table(self.renderer.table(), TABLE)
    }
}
