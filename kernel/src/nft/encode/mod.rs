//! Encoding of edits as one nf_tables transaction.
//!
//! Messages have a fixed order, independent of the order of the edits, so that nothing is referred to before
//! it exists or deleted while it is referred to: the table; chains; removal of the rules of changed and
//! deleted chains; recreated chains; sets; elements; new rules; deleted sets; deleted chains. There should be
//! at most one edit per chain, and per set besides its elements; of several the last one counts. To recreate
//! a chain or set (its hook or type cannot be changed otherwise), `DeleteChain`, `DeleteSet` or `DeleteMap`
//! precedes `Chain` or `Set` of that name.
//!
//! Encoded by hand: netlink-packet-netfilter supports neither counters, conntrack, NAT, logging nor
//! rejection, and leaves the ends of intervals untyped. A set of 100,000 elements is encoded here without an
//! allocated value per element.

pub(in crate::nft) mod batch;
pub(in crate::nft) mod rule;
mod set;

use std::collections::{BTreeMap, BTreeSet};

use self::batch::Batch;
pub(in crate::nft) use self::batch::comment;
pub(crate) use self::rule::{RuleHash, rule_hash};
use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL};
use crate::nft::ir::{Chain, Edit, Name, Rule, Set, Table};
use crate::nft::uapi::*;

/// Encodes the transaction. Returns the index of the edit of each message; `None` for messages of the
/// transaction itself.
pub(in crate::nft) fn encode(
    buf: &mut Vec<u8>,
    base: u32,
    edits: &[Edit],
    table: &str,
) -> Vec<Option<usize>> {
    let mut batch = Batch::new(buf, base, table);
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.new_table();
    let anew = edits.iter().rposition(|e| matches!(e, Edit::DeleteTable));
    if let Some(at) = anew {
        batch.message(NFT_MSG_DELTABLE, 0, Some(at), |_| ());
        batch.new_table();
    }
    // Edits before the deletion of the table have no effect.
    let plan = Plan::of(edits.iter().enumerate().skip(anew.map_or(0, |at| at + 1)));
    plan.write(&mut batch);
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.into_owners()
}

/// Encodes the transaction that creates a table, which must not exist, with these flags and chains.
pub(in crate::nft) fn encode_new(buf: &mut Vec<u8>, base: u32, name: &str, flags: u32, table: &Table) -> u32 {
    let mut batch = Batch::new(buf, base, name);
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, None, |w| {
        w.attr_be32(NFTA_TABLE_FLAGS, flags);
    });
    for (name, chain) in &table.chains {
        batch.new_chain(0, name, chain);
        chain.rules.iter().for_each(|rule| rule::append(&mut batch, 0, name, rule));
    }
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// Encodes the transaction that deletes rules of a chain by their handles and inserts others at its
/// beginning, in a table of another family.
pub(in crate::nft) fn encode_in_chain(
    buf: &mut Vec<u8>,
    base: u32,
    (family, table, chain): (u8, &str, &str),
    gone: &[u64],
    new: &[Rule],
) -> u32 {
    let mut batch = Batch::of_family(buf, base, family, table);
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    for handle in gone {
        batch.message(NFT_MSG_DELRULE, 0, None, |w| {
            w.attr_text(NFTA_RULE_CHAIN, chain).attr_be64(NFTA_RULE_HANDLE, *handle);
        });
    }
    // In reverse, since each rule is inserted before the previous one.
    new.iter().rev().for_each(|new| rule::insert(&mut batch, chain, new));
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// Encodes the transaction that deletes a table with its content.
pub(in crate::nft) fn encode_delete(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELTABLE)
}

/// Encodes the transaction that deletes every rule of a table; chains, sets and maps stay.
pub(in crate::nft) fn encode_flush(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELRULE)
}

/// Encodes a transaction with one message, which names a table only.
fn encode_whole(buf: &mut Vec<u8>, base: u32, name: &str, message: u16) -> u32 {
    let mut batch = Batch::new(buf, base, name);
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.message(message, 0, None, |_| ());
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// Edits by kind, at most one per name.
#[derive(Default)]
struct Plan<'a> {
    chains: BTreeMap<&'a str, (usize, &'a Chain)>,
    deleted_chains: BTreeMap<&'a str, usize>,
    sets: BTreeMap<&'a str, (usize, &'a Set)>,
    /// Deleted sets; true if the set is flushed first.
    deleted_sets: BTreeMap<&'a str, (usize, bool)>,
    /// Chains that are deleted and created again.
    replaced: BTreeSet<&'a str>,
    replaced_sets: BTreeSet<&'a str>,
    elements: Vec<(usize, &'a Edit)>,
}

impl<'a> Plan<'a> {
    fn of(edits: impl Iterator<Item = (usize, &'a Edit)>) -> Self {
        let mut plan = Self::default();
        for (at, edit) in edits {
            match edit {
                Edit::DeleteTable | Edit::ClearDormant => {}
                Edit::NewChain(name, chain) | Edit::Chain(name, chain) => {
                    if plan.deleted_chains.remove(&**name).is_some() {
                        plan.replaced.insert(name);
                    }
                    plan.chains.insert(name, (at, chain));
                }
                Edit::DeleteChain(name) => {
                    plan.chains.remove(&**name);
                    plan.deleted_chains.insert(name, at);
                }
                Edit::Set(name, set) => {
                    if plan.deleted_sets.remove(&**name).is_some() {
                        plan.replaced_sets.insert(name);
                    }
                    plan.forget_elements(name);
                    plan.sets.insert(name, (at, set));
                }
                Edit::DeleteSet(name) | Edit::DeleteMap(name) => {
                    plan.forget_elements(name);
                    plan.sets.remove(&**name);
                    plan.deleted_sets.insert(name, (at, matches!(edit, Edit::DeleteMap(_))));
                }
                Edit::Elements { .. } | Edit::ReplaceElements(..) => plan.elements.push((at, edit)),
            }
        }
        plan
    }

    /// Drops edits of the elements of a set that is deleted.
    fn forget_elements(&mut self, of: &Name) {
        self.elements.retain(|(_, edit)| {
            !matches!(edit, Edit::Elements { set: name, .. } | Edit::ReplaceElements(name, _) if name == of)
        });
    }

    fn write(&self, batch: &mut Batch<'_>) {
        let replaced = |name: &str| self.replaced.contains(name);
        for (name, (at, chain)) in self.chains.iter().filter(|(name, _)| !replaced(name)) {
            batch.new_chain(*at, name, chain);
        }
        let changed = self.chains.iter().map(|(name, (at, _))| (name, at));
        for (name, at) in changed.chain(&self.deleted_chains) {
            batch.flush_chain(*at, name);
        }
        for (name, (at, chain)) in self.chains.iter().filter(|(name, _)| replaced(name)) {
            batch.delete_chain(*at, name);
            batch.new_chain(*at, name, chain);
        }
        for (name, (at, set)) in &self.sets {
            if self.replaced_sets.contains(name) {
                set::flush(batch, *at, name);
                set::delete(batch, *at, name);
            }
            set::declare(batch, *at, name, set);
        }
        for (name, (at, set)) in &self.sets {
            set::add(batch, *at, name, set.of, &set.elements);
        }
        for (at, edit) in &self.elements {
            match edit {
                Edit::Elements { set, of, add, remove } => {
                    set::remove(batch, *at, set, *of, remove);
                    set::add(batch, *at, set, *of, add);
                }
                Edit::ReplaceElements(name, set) => {
                    set::flush(batch, *at, name);
                    set::add(batch, *at, name, set.of, &set.elements);
                }
                _ => {}
            }
        }
        for (name, (at, chain)) in &self.chains {
            for rule in &chain.rules {
                rule::append(batch, *at, name, rule);
            }
        }
        for (name, (at, emptied)) in &self.deleted_sets {
            if *emptied {
                set::flush(batch, *at, name);
            }
            set::delete(batch, *at, name);
        }
        for (name, at) in &self.deleted_chains {
            batch.delete_chain(*at, name);
        }
    }
}
