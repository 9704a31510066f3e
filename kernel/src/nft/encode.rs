//! Edits as one transaction of nf_tables.
//!
//! The order inside is the same whatever the order of the edits, so that nothing is named before it exists and nothing
//! goes while it is named: the table; chains; the rules of changed and gone chains away; chains made anew; sets; elements; new rules; gone
//! sets; gone chains. At most one edit of a chain, and of a set besides its elements,
//! makes sense; of several the last one counts. Gone and there again (hooks and types of sets cannot change otherwise) is
//! said by `NoChain`, `NoSet` or `NoMap` before `Chain` or `Set` of that name.
//!
//! By hand: netlink-packet-netfilter has neither counters, connection tracking, translation, logging nor rejection, keeps
//! ends of intervals untyped, and a set of 100,000 elements is written here without a value for each of them.

use std::collections::{BTreeMap, BTreeSet};

use super::encode_rule;
pub(crate) use super::encode_rule::rule_hash;
use super::encode_set;
use super::ir::{Chain, Edit, Name, Set, Table};
use crate::netlink::codec::{self, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, Writer};
use crate::nft::uapi::*;

/// Writes the transaction. Gives for each message which edit it is of: `None` for the frame around them.
pub(super) fn encode(buf: &mut Vec<u8>, base: u32, edits: &[Edit], table: &str) -> Vec<Option<usize>> {
    let mut batch = Batch { buf, base, owners: Vec::new(), table, set_ids: 0, last: 0 };
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.new_table();
    let anew = edits.iter().rposition(|e| matches!(e, Edit::NoTable));
    if let Some(at) = anew {
        batch.message(NFT_MSG_DELTABLE, 0, Some(at), |_| ());
        batch.new_table();
    }
    // What was asked for before the table went is void.
    let plan = Plan::of(edits.iter().enumerate().skip(anew.map_or(0, |at| at + 1)));
    plan.write(&mut batch);
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.owners
}

/// Writes the transaction that makes a table with these flags and chains, which does not exist yet.
pub(super) fn encode_new(buf: &mut Vec<u8>, base: u32, name: &str, flags: u32, table: &Table) -> u32 {
    let mut batch = Batch { buf, base, owners: Vec::new(), table: name, set_ids: 0, last: 0 };
    batch.frame(NFNL_MSG_BATCH_BEGIN);
    batch.message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL, None, |w| {
        w.attr_be32(NFTA_TABLE_FLAGS, flags);
    });
    for (name, chain) in &table.chains {
        batch.new_chain(0, name, chain);
        chain.rules.iter().for_each(|rule| encode_rule::append(&mut batch, 0, name, rule));
    }
    batch.acknowledge();
    batch.frame(NFNL_MSG_BATCH_END);
    batch.count()
}

/// Writes the transaction that takes a table away with everything in it.
pub(super) fn encode_gone(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELTABLE)
}

/// Writes the transaction that takes every rule of a table away; chains, sets and maps stay.
pub(super) fn encode_emptied(buf: &mut Vec<u8>, base: u32, name: &str) -> u32 {
    encode_whole(buf, base, name, NFT_MSG_DELRULE)
}

/// A transaction of one message that names a table and nothing in it.
fn encode_whole(buf: &mut Vec<u8>, base: u32, name: &str, message: u16) -> u32 {
    let mut batch = Batch { buf, base, owners: Vec::new(), table: name, set_ids: 0, last: 0 };
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
    gone_chains: BTreeMap<&'a str, usize>,
    sets: BTreeMap<&'a str, (usize, &'a Set)>,
    /// With whether each is emptied first.
    gone_sets: BTreeMap<&'a str, (usize, bool)>,
    /// Gone, and there again.
    renewed: BTreeSet<&'a str>,
    renewed_sets: BTreeSet<&'a str>,
    elements: Vec<(usize, &'a Edit)>,
}

impl<'a> Plan<'a> {
    fn of(edits: impl Iterator<Item = (usize, &'a Edit)>) -> Self {
        let mut plan = Self::default();
        for (at, edit) in edits {
            match edit {
                Edit::NoTable | Edit::Wake => {}
                Edit::NewChain(name, chain) | Edit::Chain(name, chain) => {
                    if plan.gone_chains.remove(&**name).is_some() {
                        plan.renewed.insert(name);
                    }
                    plan.chains.insert(name, (at, chain));
                }
                Edit::NoChain(name) => {
                    plan.chains.remove(&**name);
                    plan.gone_chains.insert(name, at);
                }
                Edit::Set(name, set) => {
                    if plan.gone_sets.remove(&**name).is_some() {
                        plan.renewed_sets.insert(name);
                    }
                    plan.forget_elements(name);
                    plan.sets.insert(name, (at, set));
                }
                Edit::NoSet(name) | Edit::NoMap(name) => {
                    plan.forget_elements(name);
                    plan.sets.remove(&**name);
                    plan.gone_sets.insert(name, (at, matches!(edit, Edit::NoMap(_))));
                }
                Edit::Elements { .. } | Edit::Refill(..) => plan.elements.push((at, edit)),
            }
        }
        plan
    }

    /// What was asked for of a set that goes is void.
    fn forget_elements(&mut self, of: &Name) {
        self.elements.retain(|(_, edit)| {
            !matches!(edit, Edit::Elements { set: name, .. } | Edit::Refill(name, _) if name == of)
        });
    }

    fn write(&self, batch: &mut Batch<'_>) {
        let renewed = |name: &str| self.renewed.contains(name);
        for (name, (at, chain)) in self.chains.iter().filter(|(name, _)| !renewed(name)) {
            batch.new_chain(*at, name, chain);
        }
        let changed = self.chains.iter().map(|(name, (at, _))| (name, at));
        for (name, at) in changed.chain(&self.gone_chains) {
            batch.flush_chain(*at, name);
        }
        for (name, (at, chain)) in self.chains.iter().filter(|(name, _)| renewed(name)) {
            batch.delete_chain(*at, name);
            batch.new_chain(*at, name, chain);
        }
        for (name, (at, set)) in &self.sets {
            if self.renewed_sets.contains(name) {
                encode_set::flush(batch, *at, name);
                encode_set::delete(batch, *at, name);
            }
            encode_set::declare(batch, *at, name, set);
        }
        for (name, (at, set)) in &self.sets {
            encode_set::add(batch, *at, name, set.of, &set.elements);
        }
        for (at, edit) in &self.elements {
            match edit {
                Edit::Elements { set, of, add, remove } => {
                    encode_set::remove(batch, *at, set, *of, remove);
                    encode_set::add(batch, *at, set, *of, add);
                }
                Edit::Refill(name, set) => {
                    encode_set::flush(batch, *at, name);
                    encode_set::add(batch, *at, name, set.of, &set.elements);
                }
                _ => {}
            }
        }
        for (name, (at, chain)) in &self.chains {
            for rule in &chain.rules {
                encode_rule::append(batch, *at, name, rule);
            }
        }
        for (name, (at, emptied)) in &self.gone_sets {
            if *emptied {
                encode_set::flush(batch, *at, name);
            }
            encode_set::delete(batch, *at, name);
        }
        for (name, at) in &self.gone_chains {
            batch.delete_chain(*at, name);
        }
    }
}

/// A transaction that grows.
pub(super) struct Batch<'a> {
    buf: &'a mut Vec<u8>,
    base: u32,
    owners: Vec<Option<usize>>,
    table: &'a str,
    set_ids: u32,
    /// Where the last message begins.
    last: usize,
}

impl Batch<'_> {
    /// One message about the table: `fill` writes the attributes behind its name.
    pub(super) fn message(
        &mut self,
        message: u16,
        flags: u16,
        edit: Option<usize>,
        fill: impl FnOnce(&mut Writer<'_>),
    ) {
        self.last = self.buf.len();
        let seq = self.next_seq();
        let mut w = Writer::begin(self.buf, (SUBSYSTEM << 8) | message, flags, seq);
        w.raw(&[NFPROTO_INET, 0, 0, 0]).attr_text(NFTA_TABLE, self.table);
        fill(&mut w);
        w.end();
        self.owners.push(edit);
    }

    /// A number for a set, unique inside of the transaction.
    pub(super) fn set_id(&mut self) -> u32 {
        self.set_ids += 1;
        self.set_ids
    }

    /// How many messages there are.
    fn count(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }

    fn next_seq(&self) -> u32 {
        self.base.wrapping_add(self.count())
    }

    /// A mark of the transaction's begin or end.
    fn frame(&mut self, kind: u16) {
        let mut w = Writer::begin(self.buf, kind, 0, self.next_seq());
        let [high, low] = SUBSYSTEM.to_be_bytes();
        w.raw(&[0, 0, high, low]);
        w.end();
        self.owners.push(None);
    }

    fn new_table(&mut self) {
        // The flags wake a table that somebody made dormant.
        self.message(NFT_MSG_NEWTABLE, NLM_F_CREATE, None, |w| {
            w.attr_be32(NFTA_TABLE_FLAGS, 0);
        });
    }

    fn new_chain(&mut self, edit: usize, name: &str, chain: &Chain) {
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, Some(edit), |w| {
            w.attr_text(NFTA_CHAIN_NAME, name);
            if let Some(hook) = &chain.hook {
                w.nest(NFTA_CHAIN_HOOK, |w| {
                    w.attr_be32(NFTA_HOOK_HOOKNUM, hook_number(hook.at));
                    w.attr_be32(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
                });
                w.attr_be32(NFTA_CHAIN_POLICY, NF_ACCEPT.cast_unsigned());
                w.attr_text(NFTA_CHAIN_TYPE, kind_name(hook.kind));
            }
        });
    }

    fn delete_chain(&mut self, edit: usize, name: &str) {
        self.message(NFT_MSG_DELCHAIN, 0, Some(edit), |w| {
            w.attr_text(NFTA_CHAIN_NAME, name);
        });
    }

    /// Without a handle all rules of the chain go.
    fn flush_chain(&mut self, edit: usize, name: &str) {
        self.message(NFT_MSG_DELRULE, 0, Some(edit), |w| {
            w.attr_text(NFTA_RULE_CHAIN, name);
        });
    }

    /// The last message asks for an acknowledgement.
    fn acknowledge(&mut self) {
        let at = self.last + 6;
        if let Some(flags) = codec::u16_at(self.buf, at)
            && let Some(field) = self.buf.get_mut(at..at + 2)
        {
            field.copy_from_slice(&(flags | NLM_F_ACK).to_ne_bytes());
        }
    }
}

/// Flags of a rule that goes behind those of its chain.
pub(super) const APPEND: u16 = NLM_F_CREATE | NLM_F_APPEND;

/// A comment as nft can print and read it again: no quotes and no control characters, at most 127 octets.
pub(super) fn comment(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(127));
    for c in text.chars() {
        let c = match c {
            '"' => '\'',
            c if c.is_control() => ' ',
            c => c,
        };
        if out.len() + c.len_utf8() > 127 {
            break;
        }
        out.push(c);
    }
    out
}
