//! Acknowledgement of blackhole changes: compares the changes of an intent with the actual state. Pure.

use std::collections::BTreeMap;

use tortie_net::Cidr;

use super::table::Table;
use crate::facts::{BlackholeAck, BlackholeOutcome};
use crate::intent::KernelIntent;
use tortie_engine::routing::ChangeId;

#[derive(Debug, Clone, Copy)]
struct Expected {
    change: ChangeId,
    outcome: BlackholeOutcome,
}

/// Changes by intents that the kernel has not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Acks(BTreeMap<Cidr, Expected>);

impl Acks {
    /// Records the changes of `new`; must be called before the table applies it.
    pub(crate) fn expect(&mut self, old: Option<&KernelIntent>, new: &KernelIntent, table: &Table) {
        let none = BTreeMap::new();
        let old = old.map_or(&none, |o| &o.blackholes);
        for (prefix, change) in new.blackholes.iter().filter(|(p, c)| old.get(*p) != Some(*c)) {
            let there = table.holds_blackhole(prefix);
            let outcome = if there { BlackholeOutcome::Kept } else { BlackholeOutcome::Written };
            self.0.insert(*prefix, Expected { change: *change, outcome });
        }
        for prefix in old.keys().filter(|p| !new.blackholes.contains_key(*p)) {
            self.0.insert(*prefix, Expected { change: new.change, outcome: BlackholeOutcome::Removed });
        }
    }

    /// Returns true if everything was acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the changes that the kernel has carried out since, each once.
    pub(crate) fn acknowledge(&mut self, table: &Table) -> Vec<BlackholeAck> {
        let mut done = Vec::new();
        self.0.retain(|prefix, expected| {
            let Expected { change, outcome } = *expected;
            let wanted = outcome != BlackholeOutcome::Removed;
            let settled = table.holds_blackhole(prefix) == wanted;
            if settled {
                done.push(BlackholeAck { prefix: *prefix, change, outcome });
            }
            !settled
        });
        done
    }
}
