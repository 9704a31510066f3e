//! Encoding of sets and maps, named and anonymous, and of their elements.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_net::Cidr;

use super::batch::{Batch, comment};
use crate::netlink::codec::{NLM_F_CREATE, NLM_F_EXCL, Writer};
use crate::nft::ir::{Set, SetKey, SetType, SetValue, ValueType};
use crate::nft::uapi::*;

/// Octets of elements per message, exceeded by at most one element: an attribute holds less than 65,536, an
/// element at most 512.
const CHUNK: usize = 60_000;

/// A key in the form that the kernel compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Key {
    bytes: [u8; 32],
    len: usize,
}

impl Key {
    /// Appends a field.
    pub(super) fn push(mut self, field: &[u8]) -> Self {
        // Fields of a concatenation begin at multiples of four octets.
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(field) {
            *to = *from;
        }
        self.len = (self.len + field.len()).min(self.bytes.len());
        self
    }

    pub(super) fn addr(self, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(a) => self.push(&a.octets()),
            IpAddr::V6(a) => self.push(&a.octets()),
        }
    }

    pub(super) fn interface(self, name: &str) -> Self {
        self.push(&interface(name))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the next key in order; `None` after the last.
    fn next(mut self) -> Option<Self> {
        for byte in self.bytes.iter_mut().take(self.len).rev() {
            let (next, overflow) = byte.overflowing_add(1);
            *byte = next;
            if !overflow {
                return Some(self);
            }
        }
        None
    }
}

/// Returns an interface name in the kernel's form. A name that is too long matches no interface.
pub(super) fn interface(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// Keys that an element covers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Span {
    /// One key, in a hash.
    One(Key),
    /// First and last key, in a tree: the kernel stores one element at the start, and one after the end.
    Range(Key, Key),
    /// First and last key of each field, in a concatenation.
    Block(Key, Key),
}

impl Span {
    fn of(interval: bool, key: &SetKey) -> Self {
        let key_of = |addr: &dyn Fn(&Cidr) -> IpAddr| match key {
            SetKey::Addr(net) => Key::default().addr(addr(net)),
            SetKey::Interface(name) => Key::default().interface(name),
            SetKey::InterfaceAddr(name, net) => Key::default().interface(name).addr(addr(net)),
            SetKey::AddrPair(first, second) => Key::default().addr(*first).addr(*second),
        };
        let first = key_of(&Cidr::addr);
        let last = || key_of(&Cidr::last);
        match key {
            _ if !interval => Self::One(first),
            SetKey::Addr(_) | SetKey::Interface(_) => Self::Range(first, last()),
            SetKey::InterfaceAddr(..) | SetKey::AddrPair(..) => Self::Block(first, last()),
        }
    }

    /// Returns the span of a network in an interval set, or of an address in a hash.
    pub(super) fn of_net(interval: bool, net: &Cidr) -> Self {
        let first = Key::default().addr(net.addr());
        if interval { Self::Range(first, Key::default().addr(net.last())) } else { Self::One(first) }
    }

    /// Returns the number of elements that the kernel stores for it.
    fn kept(&self) -> u32 {
        if matches!(self, Self::Range(..)) { 2 } else { 1 }
    }

    fn write(&self, w: &mut Writer<'_>, value: &SetValue, removes: bool) {
        match self {
            Self::One(key) => element(w, key, None, 0, value, &[]),
            Self::Block(first, last) => element(w, first, Some(last), 0, value, &[]),
            Self::Range(first, last) => {
                let end = last.next();
                let open: &[u8] = if end.is_none() && !removes { &UDATA_ELEM_OPEN } else { &[] };
                element(w, first, None, 0, value, open);
                if let Some(end) = end {
                    element(w, &end, None, NFT_SET_ELEM_INTERVAL_END, &SetValue::Member, &[]);
                }
            }
        }
    }
}

fn element(w: &mut Writer<'_>, key: &Key, end: Option<&Key>, flags: u32, value: &SetValue, userdata: &[u8]) {
    w.nest(NFTA_LIST_ELEM, |w| {
        if flags != 0 {
            w.attr_be32(NFTA_SET_ELEM_FLAGS, flags);
        }
        w.nest(NFTA_SET_ELEM_KEY, |w| {
            w.attr(NFTA_DATA_VALUE, key.as_bytes());
        });
        if let Some(end) = end {
            w.nest(NFTA_SET_ELEM_KEY_END, |w| {
                w.attr(NFTA_DATA_VALUE, end.as_bytes());
            });
        }
        match value {
            SetValue::Member => {}
            SetValue::Goto(chain) => {
                w.nest(NFTA_SET_ELEM_DATA, |w| verdict(w, NFT_GOTO, Some(chain)));
            }
            SetValue::Jump(chain) => {
                w.nest(NFTA_SET_ELEM_DATA, |w| verdict(w, NFT_JUMP, Some(chain)));
            }
            SetValue::Addr(addr) => {
                w.nest(NFTA_SET_ELEM_DATA, |w| {
                    w.attr_addr(NFTA_DATA_VALUE, *addr);
                });
            }
        }
        if !userdata.is_empty() {
            w.attr(NFTA_SET_ELEM_USERDATA, userdata);
        }
    });
}

/// Appends a verdict as data.
pub(super) fn verdict(w: &mut Writer<'_>, code: i32, chain: Option<&str>) {
    w.nest(NFTA_DATA_VERDICT, |w| {
        w.attr_be32(NFTA_VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            w.attr_text(NFTA_VERDICT_CHAIN, chain);
        }
    });
}

/// Creates a set; refused if one of that name exists.
pub(super) fn declare(batch: &mut Batch<'_>, edit: usize, name: &str, set: &Set) {
    let id = batch.set_id();
    let (first, second) = fields(set.of.key);
    let concatenated = second.is_some();
    batch.message(NFT_MSG_NEWSET, NLM_F_CREATE | NLM_F_EXCL, Some(edit), |w| {
        w.attr_text(NFTA_SET_NAME, name);
        w.attr_be32(NFTA_SET_FLAGS, set_flags(set.of));
        w.attr_be32(NFTA_SET_KEY_TYPE, key_type_id(set.of.key));
        w.attr_be32(NFTA_SET_KEY_LEN, first.len + second.map_or(0, |f| f.len));
        let value = value_type(set.of);
        if let Some((id, len, _)) = value {
            w.attr_be32(NFTA_SET_DATA_TYPE, id).attr_be32(NFTA_SET_DATA_LEN, len);
        }
        if let (true, Some(second)) = (set.of.interval, second) {
            w.nest(NFTA_SET_DESC, |w| {
                w.nest(NFTA_SET_DESC_CONCAT, |w| {
                    for field in [first, second] {
                        w.nest(NFTA_LIST_ELEM, |w| {
                            w.attr_be32(NFTA_SET_FIELD_LEN, field.len);
                        });
                    }
                });
            });
        }
        w.attr_be32(NFTA_SET_ID, id);
        // nft accepts no byte order for concatenations: each of their fields has its own.
        let mut userdata = Vec::with_capacity(160);
        udata(
            &mut userdata,
            UDATA_SET_KEYBYTEORDER,
            &if concatenated { 0 } else { first.order }.to_ne_bytes(),
        );
        if let Some((_, _, order)) = value {
            udata(&mut userdata, UDATA_SET_DATABYTEORDER, &order.to_ne_bytes());
        }
        if !set.comment.is_empty() {
            let mut text = comment(&set.comment).into_bytes();
            text.push(0);
            udata(&mut userdata, UDATA_SET_COMMENT, &text);
        }
        w.attr(NFTA_SET_USERDATA, &userdata);
    });
}

/// Returns the type of a map's values: nft's type number, length and byte order.
fn value_type(of: SetType) -> Option<(u32, u32, u32)> {
    match of.value {
        ValueType::Member => None,
        ValueType::Verdict => Some((NFT_DATA_VERDICT, 0, 0)),
        ValueType::Addr { v4 } => Some(addr_type(v4)).map(|t| (t.id, t.len, t.order)),
    }
}

/// Appends one type-length-value of userdata; the length field has one octet.
pub(super) fn udata(out: &mut Vec<u8>, kind: u8, data: &[u8]) {
    if let Ok(len) = u8::try_from(data.len()) {
        out.extend_from_slice(&[kind, len]);
        out.extend_from_slice(data);
    }
}

/// Flushes a set: a message without elements removes all of them.
pub(super) fn flush(batch: &mut Batch<'_>, edit: usize, name: &str) {
    batch.message(NFT_MSG_DELSETELEM, 0, Some(edit), |w| {
        w.attr_text(NFTA_SET_ELEM_LIST_SET, name);
    });
}

/// Deletes a set. A packet whose evaluation began with rules that look it up still finds its elements.
pub(super) fn delete(batch: &mut Batch<'_>, edit: usize, name: &str) {
    batch.message(NFT_MSG_DELSET, 0, Some(edit), |w| {
        w.attr_text(NFTA_SET_NAME, name);
    });
}

/// Adds elements to a set.
pub(super) fn add(
    batch: &mut Batch<'_>,
    edit: usize,
    name: &str,
    of: SetType,
    elements: &BTreeMap<SetKey, SetValue>,
) {
    let spans = elements.iter().map(|(key, value)| (Span::of(of.interval, key), value));
    write(batch, NFT_MSG_NEWSETELEM, edit, name, None, spans);
}

/// Removes elements from a set.
pub(super) fn remove(
    batch: &mut Batch<'_>,
    edit: usize,
    name: &str,
    of: SetType,
    elements: &BTreeMap<SetKey, SetValue>,
) {
    let spans = elements.keys().map(|key| (Span::of(of.interval, key), &SetValue::Member));
    write(batch, NFT_MSG_DELSETELEM, edit, name, None, spans);
}

/// Writes elements in as many messages as needed.
fn write<'a>(
    batch: &mut Batch<'_>,
    message: u16,
    edit: usize,
    name: &str,
    id: Option<u32>,
    spans: impl Iterator<Item = (Span, &'a SetValue)>,
) {
    let mut spans = spans.peekable();
    let flags = if message == NFT_MSG_NEWSETELEM { NLM_F_CREATE } else { 0 };
    while spans.peek().is_some() {
        batch.message(message, flags, Some(edit), |w| {
            w.attr_text(NFTA_SET_ELEM_LIST_SET, name);
            if let Some(id) = id {
                w.attr_be32(NFTA_SET_ELEM_LIST_SET_ID, id);
            }
            w.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |w| {
                let from = w.len();
                while w.len() - from < CHUNK
                    && let Some((span, value)) = spans.next()
                {
                    span.write(w, value, message == NFT_MSG_DELSETELEM);
                }
            });
        });
    }
}

/// The name by which rules of the same transaction refer to an anonymous set, together with its ID.
pub(super) const ANONYMOUS: &str = "__set%d";

/// A set that belongs to one rule.
#[derive(Debug)]
pub(super) struct Anonymous {
    pub(super) field: FieldType,
    /// True for a set of intervals, false for a set of single values.
    pub(super) interval: bool,
    pub(super) spans: Vec<Span>,
}

impl Anonymous {
    /// Creates the set before its rule, in the same transaction, and returns its ID.
    pub(super) fn create(&self, batch: &mut Batch<'_>, edit: usize) -> u32 {
        let id = batch.set_id();
        let flags = NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | if self.interval { NFT_SET_INTERVAL } else { 0 };
        batch.message(NFT_MSG_NEWSET, NLM_F_CREATE | NLM_F_EXCL, Some(edit), |w| {
            w.attr_text(NFTA_SET_NAME, ANONYMOUS);
            w.attr_be32(NFTA_SET_FLAGS, flags);
            w.attr_be32(NFTA_SET_KEY_TYPE, self.field.id);
            w.attr_be32(NFTA_SET_KEY_LEN, self.field.len);
            w.nest(NFTA_SET_DESC, |w| {
                w.attr_be32(NFTA_SET_DESC_SIZE, self.spans.iter().map(Span::kept).sum());
            });
            w.attr_be32(NFTA_SET_ID, id);
            let mut userdata = Vec::with_capacity(8);
            udata(&mut userdata, UDATA_SET_KEYBYTEORDER, &self.field.order.to_ne_bytes());
            w.attr(NFTA_SET_USERDATA, &userdata);
        });
        let spans = self.spans.iter().map(|span| (*span, &SetValue::Member));
        write(batch, NFT_MSG_NEWSETELEM, edit, ANONYMOUS, Some(id), spans);
        id
    }

    /// Appends the content octet by octet, for the hash of the rule.
    pub(super) fn bytes(&self, w: &mut Writer<'_>) {
        w.attr_be32(NFTA_SET_KEY_TYPE, self.field.id);
        for span in &self.spans {
            span.write(w, &SetValue::Member, false);
        }
    }
}
