//! What may be asked of the packet rules: what is wanted, what was counted, what differed.

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

/// What was counted since the start, and what there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Chains wanted.
    pub chains: usize,
    /// Rules wanted.
    pub rules: usize,
    /// Sets and maps wanted.
    pub sets: usize,
    /// Of these, maps.
    pub maps: usize,
    /// Their elements.
    pub elements: usize,
    /// Transactions that the kernel carried out.
    pub transactions: u64,
    /// Transactions that it refused.
    pub refused: u64,
    /// Comparisons with the kernel's table.
    pub compares: u64,
    /// Own objects that another process changed or removed.
    pub external_changes: u64,
}

/// What a rule counted since it was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleHits {
    /// Packets that it matched.
    pub packets: u64,
    /// Their octets.
    pub bytes: u64,
}

impl Firewall {
    /// The rules that policy makes.
    pub(crate) fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Why packets are dropped that are logged with this prefix; `None`: by another process, or by a rule that is gone.
    pub(crate) fn explain(&self, prefix: &str) -> Option<String> {
        self.renderer.explain(prefix).map(ToString::to_string)
    }

    /// What endpoints are allowed.
    pub(crate) fn ruleset(&self) -> &Ruleset {
        self.renderer.ruleset()
    }

    /// How names of workloads' interfaces begin.
    pub(crate) fn interface_prefixes(&self) -> Vec<String> {
        self.globals.as_ref().map(|globals| globals.interface_prefixes.clone()).unwrap_or_default()
    }

    /// Which host endpoint governs which interface.
    pub(crate) fn hosts(&self) -> &HostInterfaces {
        &self.hosts
    }

    /// What was counted. Walks the sets and chains.
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

    /// What differed at the last comparison and is not repaired: how many objects, and the first ones described.
    pub(crate) fn drift(&self) -> (usize, &[String]) {
        (self.drift.0, &self.drift.1)
    }

    /// The same, counted by kind.
    pub(crate) fn drift_counts(&self) -> RuleDrift {
        self.drift_counts
    }

    /// What was measured.
    pub(crate) fn metrics(&self) -> &RuleMetrics {
        &self.metrics
    }

    /// When the kernel's table was last compared.
    pub(crate) fn last_compare(&self) -> Option<Instant> {
        self.last_compare
    }

    /// Who is denied what by packets that are logged with this prefix.
    pub(crate) fn denial(&self, prefix: &str) -> Option<Denial> {
        self.renderer.explain(prefix).map(Denied::denial)
    }

    /// What the rules of a policy or a profile counted, by their number, inbound and outbound; empty where none is in the
    /// kernel as wanted.
    ///
    /// # Errors
    /// When the kernel shows no rules.
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
                // One rule may stand there once for each family.
                if let Some(hit) = hits.get_mut(*origin) {
                    hit.packets += rule.packets;
                    hit.bytes += rule.bytes;
                }
            }
        }
        Ok(both)
    }

    /// The wanted rules as nft writes them.
    pub(crate) fn text(&self) -> String {
        text::table(self.renderer.table(), TABLE)
    }
}
