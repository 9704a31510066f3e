//! Dumps of an nftables table, at the start and after another process changed rules.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tortie_net::Cidr;

use crate::netlink::codec::{self, Attrs, Message, NLM_F_ACK, NLM_F_DUMP, Writer};
use crate::netlink::socket::Refusal;
use crate::nft::encode::RuleHash;
use crate::nft::ir::{At, Hook, KeyType, Kind, Name, SetKey, SetType, SetValue, ValueType};
use crate::nft::socket::{Socket, request};
use crate::nft::uapi::*;

/// Maximum number of attempts to read a table while other processes change it.
const TRIES: u32 = 10;

/// A table as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TableDump {
    /// Generation of the ruleset at the time of the dump.
    pub(crate) generation: u32,
    /// True if another process made the table dormant; Tortie's next transaction reactivates it.
    pub(crate) dormant: bool,
    pub(crate) chains: BTreeMap<Name, ChainDump>,
    /// Named sets and maps; anonymous ones are covered by the hashes of their rules.
    pub(crate) sets: BTreeMap<Name, SetDump>,
}

/// A chain as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChainDump {
    pub(crate) hook: Option<Hook>,
    /// True if Tortie never creates such a chain: an unknown type, or a policy other than accept.
    pub(crate) foreign: bool,
    /// Rules in order.
    pub(crate) rules: Vec<RuleDump>,
}

/// A rule as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RuleDump {
    /// Hash from the userdata, computed by [`crate::nft::encode::rule_hash`]; `None` for rules of other
    /// processes.
    pub(crate) hash: Option<RuleHash>,
    /// The kernel's handle of the rule.
    pub(crate) handle: u64,
    /// Counted packets and octets, if the rule has a counter.
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// A set as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SetDump {
    /// Type of the set; `None` if Tortie never creates such a set.
    pub(crate) of: Option<SetType>,
    /// Elements of forms that Tortie writes.
    pub(crate) elements: BTreeMap<SetKey, SetValue>,
    /// False if there are other elements: a range that is no network, a verdict that is no goto, an element
    /// that expires. Only `Edit::ReplaceElements`, which refills the set, removes them.
    pub(crate) whole: bool,
}

/// Dumps the table of family `inet` with this name; `None` if it does not exist.
///
/// # Errors
/// The socket fails, or other processes change rules faster than they can be read.
pub(crate) fn table(socket: &mut Socket, name: &str) -> io::Result<Option<TableDump>> {
    for tries in 0..TRIES {
        let generation = socket.generation()?;
        let read = read(socket, name)?;
        if socket.generation()? == generation {
            match read {
                Read::Whole(found) => {
                    return Ok(found.map(|found| TableDump { generation, ..found }));
                }
                Read::Interrupted => {}
            }
        }
        std::thread::sleep(Duration::from_millis(5) * tries);
    }
    Err(io::Error::new(
        io::ErrorKind::Interrupted,
        "other processes change packet rules faster than they can be read",
    ))
}

/// Dumps the rules of the table of family `inet` with this name, by chain, without a check for concurrent
/// changes.
///
/// # Errors
/// The socket fails, or the kernel refuses.
pub(crate) fn rules(socket: &mut Socket, name: &str) -> io::Result<BTreeMap<String, Vec<RuleDump>>> {
    let mut found: BTreeMap<String, Vec<RuleDump>> = BTreeMap::new();
    let mut dumps = Dumps { socket, table: name, interrupted: false };
    dumps.dump(NFT_MSG_GETRULE, None, |m| {
        if let Some((chain, rule)) = rule(m) {
            found.entry(chain).or_default().push(rule);
        }
    })?;
    Ok(found)
}

/// Dumps the rules of one chain; none if the chain does not exist.
///
/// # Errors
/// The socket fails, or the kernel refuses.
pub(crate) fn rules_of(socket: &mut Socket, name: &str, of: &str) -> io::Result<Vec<RuleDump>> {
    let mut found = Vec::new();
    let mut dumps = Dumps { socket, table: name, interrupted: false };
    dumps.dump(NFT_MSG_GETRULE, Some((NFTA_RULE_CHAIN, of)), |m| {
        // Kernels before Linux 4.17 ignore the chain and dump all.
        found.extend(rule(m).filter(|(chain, _)| chain == of).map(|(_, rule)| rule));
    })?;
    Ok(found)
}

/// Lists the names of all tables of family `inet`.
///
/// # Errors
/// The socket fails, or the kernel refuses.
pub(crate) fn tables(socket: &mut Socket) -> io::Result<Vec<String>> {
    let mut all = Vec::new();
    let read = ask(socket, NFT_MSG_GETTABLE, NLM_F_DUMP, |_| (), |_, name| all.push(name.to_owned()))?;
    read.map_err(|refusal| refused(&refusal))?;
    Ok(all)
}

/// Lists families (`NFPROTO_*`) and names of the tables of all families.
///
/// # Errors
/// The socket fails, or the kernel refuses.
pub(crate) fn all_tables(socket: &mut Socket) -> io::Result<Vec<(u8, String)>> {
    let mut all = Vec::new();
    let answer = socket.0.dump(
        |buf, seq| {
            let mut w = Writer::begin(buf, (SUBSYSTEM << 8) | NFT_MSG_GETTABLE, NLM_F_DUMP, seq);
            w.raw(&[NFPROTO_UNSPEC, 0, 0, 0]);
            w.end();
        },
        |m| {
            if m.kind >> 8 == SUBSYSTEM
                && let Some(family) = codec::u8_at(m.body, 0)
                && let Some(name) = attr(m, NFTA_TABLE)
            {
                all.push((family, codec::text(name)));
            }
        },
    )?;
    answer.map_err(|refusal| refused(&refusal))?;
    Ok(all)
}

/// Result of one attempt.
enum Read {
    Whole(Option<TableDump>),
    /// The table changed during the dump, or answers were lost.
    Interrupted,
}

fn read(socket: &mut Socket, name: &str) -> io::Result<Read> {
    let mut found = TableDump::default();
    let of_table = |w: &mut Writer<'_>| {
        w.attr_text(NFTA_TABLE, name);
    };
    let mut flags = None;
    let table = ask(socket, NFT_MSG_GETTABLE, NLM_F_ACK, of_table, |m, found| {
        if found == name {
            flags = attr(m, NFTA_TABLE_FLAGS).and_then(codec::be32);
        }
    })?;
    match table {
        Ok(true) => {}
        Ok(false) => return Ok(Read::Interrupted),
        Err(r) if r.code == libc::ENOENT => return Ok(Read::Whole(None)),
        Err(r) => return Err(refused(&r)),
    }
    found.dormant = flags.is_some_and(|f| f & NFT_TABLE_F_DORMANT != 0);
    let mut dumps = Dumps { socket, table: name, interrupted: false };
    dumps.dump(NFT_MSG_GETCHAIN, None, |m| found.chains.extend(chain(m)))?;
    dumps.dump(NFT_MSG_GETRULE, None, |m| {
        if let Some((chain, rule)) = rule(m)
            && let Some(chain) = found.chains.get_mut(&*chain)
        {
            chain.rules.push(rule);
        }
    })?;
    dumps.dump(NFT_MSG_GETSET, None, |m| found.sets.extend(set(m)))?;
    for (name, set) in &mut found.sets {
        if let Some(of) = set.of {
            (set.elements, set.whole) = dumps.elements(name, of)?;
        }
    }
    Ok(if dumps.interrupted { Read::Interrupted } else { Read::Whole(Some(found)) })
}

/// Dumps of one table.
struct Dumps<'a> {
    socket: &'a mut Socket,
    table: &'a str,
    /// True if the table changed meanwhile.
    interrupted: bool,
}

impl Dumps<'_> {
    /// Dumps all objects of one kind, or the content of one set or chain, named by its attribute.
    fn dump(
        &mut self,
        kind: u16,
        within: Option<(u16, &str)>,
        mut each: impl FnMut(&Message<'_>),
    ) -> io::Result<()> {
        let fill = |w: &mut Writer<'_>| {
            w.attr_text(NFTA_TABLE, self.table);
            if let Some((attr, name)) = within {
                w.attr_text(attr, name);
            }
        };
        let answer = ask(self.socket, kind, NLM_F_DUMP, fill, |m, of| {
            if of == self.table {
                each(m);
            }
        })?;
        match answer {
            Ok(consistent) => self.interrupted |= !consistent,
            // The object was deleted meanwhile.
            Err(r) if matches!(r.code, libc::ENOENT | libc::EINTR | libc::EAGAIN) => self.interrupted = true,
            Err(r) => return Err(refused(&r)),
        }
        Ok(())
    }

    /// Dumps the elements of a set; true if they are complete.
    ///
    /// The kernel resumes the dump of a hash by position. While the hash grows (a worker resizes it after
    /// insertions), the position points elsewhere and elements are omitted without notice. So a dump in
    /// several messages is repeated until two results are equal.
    fn elements(&mut self, set: &str, of: SetType) -> io::Result<(BTreeMap<SetKey, SetValue>, bool)> {
        let mut last = None;
        for _ in 0..TRIES {
            let mut elements = Elements::new(of);
            self.dump(NFT_MSG_GETSETELEM, Some((NFTA_SET_ELEM_LIST_SET, set)), |m| elements.message(m))?;
            let (ordered, parts) = (of.interval, elements.parts);
            let read = elements.end();
            if ordered || parts < 2 || last.as_ref() == Some(&read) {
                return Ok(read);
            }
            last = Some(read);
        }
        self.interrupted = true;
        Ok(Default::default())
    }
}

/// Sends a dump request and passes each answer to `each`, with the name of its table.
fn ask(
    socket: &mut Socket,
    message: u16,
    flags: u16,
    fill: impl FnOnce(&mut Writer<'_>),
    mut each: impl FnMut(&Message<'_>, &str),
) -> io::Result<Result<bool, Refusal>> {
    socket.0.dump(
        |buf, seq| request(buf, seq, message, flags, fill),
        |m| {
            if m.kind >> 8 == SUBSYSTEM && codec::u8_at(m.body, 0) == Some(NFPROTO_INET) {
                let name = attr(m, NFTA_TABLE).map(codec::text).unwrap_or_default();
                each(m, &name);
            }
        },
    )
}

fn refused(refusal: &Refusal) -> io::Error {
    io::Error::other(format!("the kernel refuses to show its packet rules: {refusal}"))
}

pub(super) fn attr<'a>(m: &Message<'a>, kind: u16) -> Option<&'a [u8]> {
    find(codec::Attrs::after(m.body, GENMSG).0, kind)
}

pub(super) fn find(data: &[u8], kind: u16) -> Option<&[u8]> {
    Attrs(data).find(|(k, _)| *k == kind).map(|(_, data)| data)
}

fn chain(m: &Message<'_>) -> Option<(Name, ChainDump)> {
    let name = Arc::from(codec::text(attr(m, NFTA_CHAIN_NAME)?));
    let Some(hook) = attr(m, NFTA_CHAIN_HOOK) else { return Some((name, ChainDump::default())) };
    let hook = (|| {
        let at = match find(hook, NFTA_HOOK_HOOKNUM).and_then(codec::be32)? {
            0 => At::Prerouting,
            1 => At::Input,
            2 => At::Forward,
            3 => At::Output,
            4 => At::Postrouting,
            _ => return None,
        };
        let priority = find(hook, NFTA_HOOK_PRIORITY).and_then(codec::be32)?.cast_signed();
        let kind = match &*codec::text(attr(m, NFTA_CHAIN_TYPE)?) {
            "filter" => Kind::Filter,
            "nat" => Kind::Nat,
            _ => return None,
        };
        Some(Hook { kind, at, priority })
    })();
    let policy = attr(m, NFTA_CHAIN_POLICY).and_then(codec::be32);
    let foreign = hook.is_none() || policy.is_some_and(|p| p != NF_ACCEPT.cast_unsigned());
    Some((name, ChainDump { hook, foreign, rules: Vec::new() }))
}

fn rule(m: &Message<'_>) -> Option<(String, RuleDump)> {
    let chain = codec::text(attr(m, NFTA_RULE_CHAIN)?);
    let mut rule = RuleDump {
        hash: attr(m, NFTA_RULE_USERDATA).and_then(hash),
        handle: attr(m, NFTA_RULE_HANDLE).and_then(codec::be64)?,
        ..RuleDump::default()
    };
    let expressions = attr(m, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
    let counter = Attrs(expressions).find(|(_, e)| {
        // The name ends with a zero octet.
        find(e, NFTA_EXPR_NAME).is_some_and(|name| name.strip_suffix(&[0]) == Some(b"counter"))
    });
    if let Some(counter) = counter.and_then(|(_, e)| find(e, NFTA_EXPR_DATA)) {
        rule.bytes = find(counter, 1).and_then(codec::be64).unwrap_or_default();
        rule.packets = find(counter, 2).and_then(codec::be64).unwrap_or_default();
    }
    Some((chain, rule))
}

/// Returns Tortie's hash from the userdata of a rule.
pub(super) fn hash(mut userdata: &[u8]) -> Option<RuleHash> {
    while let [kind, len, rest @ ..] = userdata {
        let (data, rest) = rest.split_at_checked(usize::from(*len))?;
        if *kind == UDATA_RULE_HASH {
            return data.try_into().ok();
        }
        userdata = rest;
    }
    None
}

/// Decodes a named set, still without elements.
fn set(m: &Message<'_>) -> Option<(Name, SetDump)> {
    let number = |kind| attr(m, kind).and_then(codec::be32);
    let flags = number(NFTA_SET_FLAGS).unwrap_or_default();
    if flags & NFT_SET_ANONYMOUS != 0 {
        return None;
    }
    let name = Arc::from(codec::text(attr(m, NFTA_SET_NAME)?));
    let values = [
        (ValueType::Member, None),
        (ValueType::Verdict, Some(NFT_DATA_VERDICT)),
        (ValueType::Addr { v4: true }, Some(IPV4_ADDR.id)),
        (ValueType::Addr { v4: false }, Some(IPV6_ADDR.id)),
    ];
    let keys = [true, false].into_iter().flat_map(|v4| {
        [KeyType::Addr { v4 }, KeyType::Interface, KeyType::InterfaceAddr { v4 }, KeyType::AddrPair { v4 }]
    });
    let key = keys.into_iter().find(|key| Some(key_type_id(*key)) == number(NFTA_SET_KEY_TYPE));
    let value = values.into_iter().find(|(_, id)| *id == number(NFTA_SET_DATA_TYPE)).map(|(value, _)| value);
    let interval = flags & NFT_SET_INTERVAL != 0;
    let of = key.zip(value).map(|(key, value)| SetType { key, value, interval });
    // Sets with other flags (a timeout, elements added by packets) are not Tortie's.
    let of = of.filter(|of| set_flags(*of) == flags);
    Some((name, SetDump { of, ..SetDump::default() }))
}

/// Elements of a set, collected from its dump.
struct Elements {
    of: SetType,
    /// Number of messages of the dump.
    parts: u32,
    whole: bool,
    map: BTreeMap<SetKey, SetValue>,
    /// Interval sets only: starts (with their values) and ends, in any order, as (key, is a start, value).
    bounds: Vec<(u128, bool, SetValue)>,
}

impl Elements {
    fn new(of: SetType) -> Self {
        Self { of, parts: 0, whole: true, map: BTreeMap::new(), bounds: Vec::new() }
    }

    fn message(&mut self, m: &Message<'_>) {
        self.parts += 1;
        let list = attr(m, NFTA_SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
        for (_, element) in Attrs(list) {
            if self.element(element).is_none() {
                self.whole = false;
            }
        }
    }

    /// Decodes an element; `None` if Tortie never writes such an element.
    fn element(&mut self, element: &[u8]) -> Option<()> {
        let flags = find(element, NFTA_SET_ELEM_FLAGS).and_then(codec::be32).unwrap_or_default();
        if flags & !NFT_SET_ELEM_INTERVAL_END != 0 || find(element, NFTA_SET_ELEM_TIMEOUT).is_some() {
            return None;
        }
        let begins = flags & NFT_SET_ELEM_INTERVAL_END == 0;
        let value = if begins { self.value(element)? } else { SetValue::Member };
        let first = find(find(element, NFTA_SET_ELEM_KEY)?, NFTA_DATA_VALUE)?;
        let last = match find(element, NFTA_SET_ELEM_KEY_END) {
            Some(last) => find(last, NFTA_DATA_VALUE)?,
            None => first,
        };
        let key = match self.of.key {
            KeyType::Addr { v4 } if self.of.interval => {
                self.bounds.push((number(codec::addr(first)?, v4)?, begins, value));
                return Some(());
            }
            KeyType::Addr { v4 } => SetKey::Addr(range(first, last, v4)?),
            KeyType::Interface => SetKey::Interface(interface(first)?),
            KeyType::InterfaceAddr { v4 } => {
                let ((name, first), (other, last)) =
                    (first.split_at_checked(16)?, last.split_at_checked(16)?);
                if name != other {
                    return None;
                }
                SetKey::InterfaceAddr(interface(name)?, range(first, last, v4)?)
            }
            KeyType::AddrPair { v4 } => {
                if first != last {
                    return None;
                }
                let (one, two) = first.split_at_checked(if v4 { 4 } else { 16 })?;
                SetKey::AddrPair(codec::addr(one)?, codec::addr(two)?)
            }
        };
        self.map.insert(key, value);
        Some(())
    }

    fn value(&self, element: &[u8]) -> Option<SetValue> {
        let data = |kind| find(find(element, NFTA_SET_ELEM_DATA)?, kind);
        match self.of.value {
            ValueType::Member => Some(SetValue::Member),
            ValueType::Addr { .. } => data(NFTA_DATA_VALUE).and_then(codec::addr).map(SetValue::Addr),
            ValueType::Verdict => {
                let verdict = data(NFTA_DATA_VERDICT)?;
                let code = find(verdict, NFTA_VERDICT_CODE).and_then(codec::be32)?;
                let chain = find(verdict, NFTA_VERDICT_CHAIN).map(codec::text)?;
                match code.cast_signed() {
                    NFT_GOTO => Some(SetValue::Goto(Arc::from(chain))),
                    NFT_JUMP => Some(SetValue::Jump(Arc::from(chain))),
                    _ => None,
                }
            }
        }
    }

    fn end(mut self) -> (BTreeMap<SetKey, SetValue>, bool) {
        let v4 = matches!(self.of.key, KeyType::Addr { v4: true });
        // At equal keys, an interval ends before the next one begins.
        self.bounds.sort_unstable_by_key(|(key, begins, _)| (*key, *begins));
        let mut bounds = self.bounds.into_iter().peekable();
        while let Some((first, begins, value)) = bounds.next() {
            if !begins {
                // nft marks the beginning of the tree with an end at 0.
                self.whole &= first == 0;
                continue;
            }
            let last = match bounds.next_if(|(_, begins, _)| !begins) {
                Some((end, _, _)) => end.checked_sub(1),
                None if bounds.peek().is_none() => Some(if v4 { u128::from(u32::MAX) } else { u128::MAX }),
                None => None,
            };
            match last.and_then(|last| network(first, last, v4)) {
                Some(net) => drop(self.map.insert(SetKey::Addr(net), value)),
                None => self.whole = false,
            }
        }
        (self.map, self.whole)
    }
}

fn interface(data: &[u8]) -> Option<Box<str>> {
    let name = data.split(|b| *b == 0).next()?;
    std::str::from_utf8(name).ok().map(Box::from)
}

/// Converts an address to a number; `None` if it is of the other family.
fn number(addr: IpAddr, v4: bool) -> Option<u128> {
    match addr {
        IpAddr::V4(a) if v4 => Some(u128::from(a.to_bits())),
        IpAddr::V6(a) if !v4 => Some(a.to_bits()),
        _ => None,
    }
}

fn range(first: &[u8], last: &[u8], v4: bool) -> Option<Cidr> {
    network(number(codec::addr(first)?, v4)?, number(codec::addr(last)?, v4)?, v4)
}

/// Returns the network with exactly these first and last addresses.
fn network(first: u128, last: u128, v4: bool) -> Option<Cidr> {
    let host_bits = first ^ last;
    if first > last || host_bits & host_bits.wrapping_add(1) != 0 || first & host_bits != 0 {
        return None;
    }
    let wide = u8::try_from(host_bits.count_ones()).ok()?;
    Some(match v4 {
        true => Cidr::v4(Ipv4Addr::from_bits(u32::try_from(first).ok()?), 32u8.checked_sub(wide)?),
        false => Cidr::v6(Ipv6Addr::from_bits(first), 128u8.checked_sub(wide)?),
    })
}
