//! Edits as one transaction of nf_tables.
//!
//! The order inside is the same whatever the order of the edits, so that nothing is named before it exists and nothing
//! goes while it is named: the table; chains; the rules of changed and gone chains away; chains made anew; sets; elements; new rules; gone
//! sets; gone chains. At most one edit of a chain, and of a set besides its elements,
//! makes sense; of several the last one counts. Gone and there again (hooks and types of sets cannot change otherwise) is
//! said by `DeleteChain`, `DeleteSet` or `DeleteMap` before `Chain` or `Set` of that name.
//!
//! By hand: netlink-packet-netfilter has neither counters, connection tracking, translation, logging nor rejection, keeps
//! ends of intervals untyped, and a set of 100,000 elements is written here without a value for each of them.

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

/// Writes the transaction. Gives for each message which edit it is of: `None` for the frame around them.
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
    // What was asked for before the table went is void.
    let plan = Plan::of(edits.iter().enumerate().skip(anew.map_or(0, |at| at + 1)));
    plan.write(&mut batch);
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.into_owners()
}

/// Writes the transaction that makes a table with these flags and chains, which does not exist yet.
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

/// Writes the transaction that takes rules of a chain away, by their handles, and puts others at its beginning, in a table of
/// another family.
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
    // Each goes before the one that was written before it.
    new.iter().rev().for_each(|new| rule::insert(&mut batch, chain, new));
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// Writes the transaction that takes a table away with everything in it.
pub(in crate::nft) fn encode_delete(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELTABLE)
}

/// Writes the transaction that takes every rule of a table away; chains, sets and maps stay.
pub(in crate::nft) fn encode_flush(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELRULE)
}

/// A transaction of one message that names a table and nothing in it.
fn encode_whole(buf: &mut Vec<u8>, base: u32, name: &str, message: u16) -> u32 {
    let mut batch = Batch::new(buf, base, name);
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.message(message, 0, None, |_| ());
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// The edits by kind, one a name.
#[derive(Default)]
struct Plan<'a> {
    chains: BTreeMap<&'a str, (usize, &'a Chain)>,
    deleted_chains: BTreeMap<&'a str, usize>,
    sets: BTreeMap<&'a str, (usize, &'a Set)>,
    /// With whether each is emptied first.
    deleted_sets: BTreeMap<&'a str, (usize, bool)>,
    /// Gone, and there again.
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

    /// What was asked for of a set that goes is void.
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
