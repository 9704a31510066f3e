//! Builder of an nf_tables transaction, message by message.

use crate::netlink::codec::{self, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, Writer};
use crate::nft::ir::Chain;
use crate::nft::uapi::*;

/// A transaction being built.
pub(super) struct Batch<'a> {
    buf: &'a mut Vec<u8>,
    base: u32,
    owners: Vec<Option<usize>>,
    family: u8,
    table: &'a str,
    set_ids: u32,
    /// Offset of the last message.
    last: usize,
}

impl<'a> Batch<'a> {
    /// Begins a transaction about a table of family inet, with sequence numbers from `base` on.
    pub(super) fn new(buf: &'a mut Vec<u8>, base: u32, table: &'a str) -> Self {
        Self::of_family(buf, base, NFPROTO_INET, table)
    }

    /// Begins a transaction about a table of another family.
    pub(super) fn of_family(buf: &'a mut Vec<u8>, base: u32, family: u8, table: &'a str) -> Self {
        Self { buf, base, owners: Vec::new(), family, table, set_ids: 0, last: 0 }
    }

    /// Returns the index of the edit of each message.
    pub(super) fn into_owners(self) -> Vec<Option<usize>> {
        self.owners
    }

    /// Appends one message about the table: `fill` writes the attributes after its name.
    pub(in crate::nft) fn message(
        &mut self,
        message: u16,
        flags: u16,
        edit: Option<usize>,
        fill: impl FnOnce(&mut Writer<'_>),
    ) {
        self.last = self.buf.len();
        let seq = self.next_seq();
        let mut w = Writer::begin(self.buf, (SUBSYSTEM << 8) | message, flags, seq);
        w.raw(&[self.family, 0, 0, 0]).attr_text(NFTA_TABLE, self.table);
        fill(&mut w);
        w.end();
        self.owners.push(edit);
    }

    /// Returns a set ID, unique within the transaction.
    pub(in crate::nft) fn set_id(&mut self) -> u32 {
        self.set_ids += 1;
        self.set_ids
    }

    /// Returns the number of messages.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn next_seq(&self) -> u32 {
        self.base.wrapping_add(self.count())
    }

    /// Appends the mark for the begin or end of the transaction.
    pub(super) fn frame(&mut self, kind: u16) {
        let mut w = Writer::begin(self.buf, kind, 0, self.next_seq());
        let [high, low] = SUBSYSTEM.to_be_bytes();
        w.raw(&[0, 0, high, low]);
        w.end();
        self.owners.push(None);
    }

    pub(super) fn new_table(&mut self) {
        // The flags reactivate a table that another process made dormant.
        self.message(NFT_MSG_NEWTABLE, NLM_F_CREATE, None, |w| {
            w.attr_be32(NFTA_TABLE_FLAGS, 0);
        });
    }

    pub(super) fn new_chain(&mut self, edit: usize, name: &str, chain: &Chain) {
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

    pub(super) fn delete_chain(&mut self, edit: usize, name: &str) {
        self.message(NFT_MSG_DELCHAIN, 0, Some(edit), |w| {
            w.attr_text(NFTA_CHAIN_NAME, name);
        });
    }

    /// Without a handle, all rules of the chain are deleted.
    pub(super) fn flush_chain(&mut self, edit: usize, name: &str) {
        self.message(NFT_MSG_DELRULE, 0, Some(edit), |w| {
            w.attr_text(NFTA_RULE_CHAIN, name);
        });
    }

    /// Requests an acknowledgement of the last message.
    pub(super) fn acknowledge(&mut self) {
        let at = self.last + 6;
        if let Some(flags) = codec::u16_at(self.buf, at)
            && let Some(field) = self.buf.get_mut(at..at + 2)
        {
            field.copy_from_slice(&(flags | NLM_F_ACK).to_ne_bytes());
        }
    }
}

/// Flags of a rule inserted before the rules of its chain.
pub(in crate::nft) const INSERT: u16 = NLM_F_CREATE;

/// Flags of a rule appended after the rules of its chain.
pub(in crate::nft) const APPEND: u16 = NLM_F_CREATE | NLM_F_APPEND;

/// Converts a text to a comment that nft can print and parse: no quotes or control characters, at most 127
/// octets.
pub(in crate::nft) fn comment(text: &str) -> String {
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
