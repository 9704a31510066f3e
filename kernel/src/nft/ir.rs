//! Tables, chains and rules as values: what the text for people, the messages for the kernel and the interpreter of tests
//! are made from.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::resource::{Icmp, PortRange};
use tortie_net::Cidr;

/// The name of a chain, a set or a map: letters, digits, `_`, `-`, `.`; the kernel takes up to 255 octets.
pub(crate) type Name = Arc<str>;

/// One table of family `inet`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Table {
    /// Sets and maps.
    pub(crate) sets: BTreeMap<Name, Set>,
    /// Chains.
    pub(crate) chains: BTreeMap<Name, Chain>,
}

/// What a set looks up, and what it gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SetType {
    /// The fields of a key, one after the other.
    pub(crate) key: KeyType,
    /// What an element gives.
    pub(crate) value: ValueType,
    /// Keys may be networks, which do not overlap; else every key is one value, in a hash.
    pub(crate) interval: bool,
}

/// The type of a set's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyType {
    /// An IPv4 (`v4`) or IPv6 address.
    Addr { v4: bool },
    /// An interface name.
    Interface,
    /// An interface name, then an address.
    InterfaceAddr { v4: bool },
    /// Two addresses.
    AddrPair { v4: bool },
}

/// The type of what a set gives for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ValueType {
    /// Nothing: it is a set, not a map.
    Member,
    /// A verdict.
    Verdict,
    /// An address.
    Addr { v4: bool },
}

/// A set or a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) of: SetType,
    /// What it is, for people: a selector; at most 128 octets are kept.
    pub(crate) comment: Box<str>,
    pub(crate) elements: BTreeMap<SetKey, SetValue>,
}

/// The key of an element. Networks stand in interval sets only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SetKey {
    Addr(Cidr),
    Interface(Box<str>),
    InterfaceAddr(Box<str>, Cidr),
    AddrPair(IpAddr, IpAddr),
}

/// What an element gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SetValue {
    Member,
    /// Goes to a chain and does not come back.
    Goto(Name),
    /// Goes to a chain, and on behind the rule that looked it up when that returns.
    Jump(Name),
    Addr(IpAddr),
}

/// A chain; with a hook packets come by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Chain {
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Rule>,
}

/// Where a base chain hangs. Its policy is always accept: what is denied is denied by a rule that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) kind: Kind,
    pub(crate) at: At,
    pub(crate) priority: i32,
}

/// The type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Filter,
    Nat,
}

/// The hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// One rule: every match holds, then (within its rate) it counts, logs, and does what its statement says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Rule {
    pub(crate) matches: Vec<Match>,
    /// At most so many packets a second, with a burst of twice as many; others do not match.
    pub(crate) limit: Option<u32>,
    /// It counts packets and octets.
    pub(crate) counted: bool,
    pub(crate) log: Option<Log>,
    pub(crate) statement: Statement,
    /// What the rule is of, for people and for traces; at most 128 octets are kept.
    pub(crate) comment: Option<Box<str>>,
}

/// A line in the kernel's log (level notice), or a copy of the packet's head for a log group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Log {
    /// Written as it stands: at most 127 octets.
    pub(crate) prefix: Box<str>,
    /// `None`: the kernel's own log.
    pub(crate) group: Option<u16>,
}

/// One end of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Src,
    Dst,
}

/// A field of a packet that sets look up. Addresses are loaded after a [`Match::Family`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    Addr(Side),
    /// The name of the interface that it came by.
    InInterface,
    /// The name of the interface that it leaves by.
    OutInterface,
}

/// What must hold. A port or ICMP match stands after the [`Match::Protocol`] that makes it meaningful, one with addresses
/// after its [`Match::Family`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Match {
    /// IPv4, else IPv6.
    Family { v4: bool },
    /// The IP protocol; `not`: any other.
    Protocol { not: bool, number: u8 },
    /// A key in a set.
    InSet { not: bool, key: Vec<Field>, set: Name },
    /// An address in this network (single: IPv4 and IPv6 by the network's own family).
    InNet { side: Side, not: bool, net: Cidr },
    /// An address in any of these networks, which do not overlap and are of one family; at least two.
    InNets { side: Side, not: bool, nets: Vec<Cidr> },
    /// A port in any of these ranges, which do not overlap and do not touch; at least one.
    Port { side: Side, not: bool, ranges: Vec<PortRange> },
    /// ICMP or ICMPv6 type, and code: treated together, so that `not` is any other pair.
    Icmp { not: bool, icmp: Icmp },
    /// ICMPv6 types from `first` to `last`.
    IcmpTypes { first: u8, last: u8 },
    /// The interface that it came by (`inbound`) or leaves by.
    Interface { inbound: bool, not: bool, name: Box<str> },
    /// The same, by how its name begins.
    InterfacePrefix { inbound: bool, not: bool, prefix: Box<str> },
    /// Connection tracking: established or related.
    Established,
    /// Connection tracking: invalid.
    Invalid,
    /// The address is one of this host's (`fib ... type local`).
    Local { side: Side },
    /// Any of these bits of the packet's mark is set.
    Marked(u32),
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) enum Statement {
    /// Nothing more.
    #[default]
    Go,
    /// Ends this base chain; packets go on to the next.
    Accept,
    Drop,
    Return,
    Jump(Name),
    Goto(Name),
    /// What the map gives for the key, if anything.
    VerdictMap {
        key: Vec<Field>,
        map: Name,
    },
    /// Sets bits of the mark, then returns.
    MarkAndReturn(u32),
    /// Sets bits of the mark, then accepts.
    MarkAndAccept(u32),
    /// Sets bits of the mark, past connection tracking, and accepted.
    Untrack(u32),
    /// Clears bits of the mark, and goes on.
    Unmark(u32),
    /// The kernel tells of each rule that the packet meets from here on (`nft monitor trace`); it goes on.
    Trace,
    /// Clears bits of the mark, then returns.
    UnmarkAndReturn(u32),
    Masquerade,
    /// A new destination from a map, if it has one for the key.
    DestinationNat {
        v4: bool,
        key: Vec<Field>,
        map: Name,
    },
    /// This destination, address and port, instead. Stands behind a match of its family and of a protocol with ports.
    DestinationNatTo {
        addr: IpAddr,
        port: u16,
    },
    /// A new source from a map, if it has one for the key.
    SourceNat {
        v4: bool,
        key: Vec<Field>,
        map: Name,
    },
}

/// What became of one object of the table since the last edits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// The table goes with everything in it, and is made anew, empty. Packets that are among its rules meet empty maps.
    DeleteTable,
    /// The table was switched off. Every transaction switches it on.
    ClearDormant,
    /// A set is new: there is none of that name, or it is said to go before.
    Set(Name, Set),
    /// Elements of a set of type `of`. A key that is in both changes its value.
    Elements { set: Name, of: SetType, add: BTreeMap<SetKey, SetValue>, remove: BTreeMap<SetKey, SetValue> },
    /// A set of this type stays, and has these elements only, whatever was in it.
    ReplaceElements(Name, Set),
    /// A set is gone, and nobody looks it up any more. Who began with rules that did finds its elements until the end.
    DeleteSet(Name),
    /// A map is gone that gives verdicts, or nobody knows what. It is emptied first: kernels before 6.4 let go of the chains
    /// that a map names too late.
    DeleteMap(Name),
    /// A chain is new that has no hook: nobody leads to it before this change does.
    NewChain(Name, Arc<Chain>),
    /// A chain has other rules, or is new; it has the same hook as ever.
    Chain(Name, Arc<Chain>),
    /// A chain is gone.
    DeleteChain(Name),
}

impl Edit {
    /// A set of this type is gone; `None`: nobody knows of which.
    pub(super) fn is_delete(name: Name, of: Option<SetType>) -> Self {
        match of.map(|of| of.value) {
            Some(ValueType::Member | ValueType::Addr { .. }) => Self::DeleteSet(name),
            Some(ValueType::Verdict) | None => Self::DeleteMap(name),
        }
    }
}

impl std::fmt::Display for SetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |net: &Cidr| if net.is_host() { net.addr().to_string() } else { net.to_string() };
        match self {
            Self::Addr(net) => f.write_str(&short(net)),
            Self::Interface(name) => f.write_str(name),
            Self::InterfaceAddr(name, net) => write!(f, "{name} . {}", short(net)),
            Self::AddrPair(first, second) => write!(f, "{first} . {second}"),
        }
    }
}
