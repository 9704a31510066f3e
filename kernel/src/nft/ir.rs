//! Tables, chains and rules as values (intermediate representation), from which the nft text, the messages to
//! the kernel and the interpreter of tests are derived.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::resource::{Icmp, PortRange};
use tortie_net::Cidr;

/// Name of a chain, a set or a map: letters, digits, `_`, `-`, `.`; the kernel accepts up to 255 octets.
pub(crate) type Name = Arc<str>;

/// A table of family `inet`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Table {
    /// Sets and maps by name.
    pub(crate) sets: BTreeMap<Name, Set>,
    /// Chains by name.
    pub(crate) chains: BTreeMap<Name, Chain>,
}

/// Type of a set or map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SetType {
    /// Type of the keys.
    pub(crate) key: KeyType,
    /// Type of the values.
    pub(crate) value: ValueType,
    /// True if keys may be networks, which do not overlap; false if each key is a single value, in a hash.
    pub(crate) interval: bool,
}

/// Type of a set's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyType {
    /// An IPv4 (`v4`) or IPv6 address.
    Addr { v4: bool },
    /// An interface name.
    Interface,
    /// An interface name followed by an address.
    InterfaceAddr { v4: bool },
    /// A pair of addresses.
    AddrPair { v4: bool },
}

/// Type of a map's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ValueType {
    /// No value: it is a set, not a map.
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
    /// Comment for people, such as a selector; at most 128 octets are kept.
    pub(crate) comment: Box<str>,
    pub(crate) elements: BTreeMap<SetKey, SetValue>,
}

/// Key of an element. Networks occur in interval sets only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SetKey {
    Addr(Cidr),
    Interface(Box<str>),
    InterfaceAddr(Box<str>, Cidr),
    AddrPair(IpAddr, IpAddr),
}

/// Value of an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SetValue {
    Member,
    /// Continues in a chain and does not return.
    Goto(Name),
    /// Continues in a chain; when that returns, after the rule that looked it up.
    Jump(Name),
    Addr(IpAddr),
}

/// A chain; a base chain has a hook, through which it receives packets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Chain {
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Rule>,
}

/// Hook of a base chain. The chain policy is always accept: packets are denied by counted rules only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) kind: Kind,
    pub(crate) at: At,
    pub(crate) priority: i32,
}

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Filter,
    Nat,
}

/// Hook point of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// A rule: if all matches hold (and its rate limit permits), it counts, logs, and executes its statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Rule {
    pub(crate) matches: Vec<Match>,
    /// Rate limit in packets per second, with a burst of twice as many; packets beyond it do not match.
    pub(crate) limit: Option<u32>,
    /// True if the rule counts packets and octets.
    pub(crate) counted: bool,
    pub(crate) log: Option<Log>,
    pub(crate) statement: Statement,
    /// Origin of the rule, for people and for traces; at most 128 octets are kept.
    pub(crate) comment: Option<Box<str>>,
}

/// A line in the kernel's log (level notice), or a copy of the packet's headers for a log group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Log {
    /// Log prefix, at most 127 octets.
    pub(crate) prefix: Box<str>,
    /// The log group; `None` for the kernel's log.
    pub(crate) group: Option<u16>,
}

/// Source or destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Src,
    Dst,
}

/// A field of a packet that sets look up. Addresses are loaded only after a [`Match::Family`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    Addr(Side),
    /// Name of the incoming interface.
    InInterface,
    /// Name of the outgoing interface.
    OutInterface,
}

/// Condition of a rule. A port or ICMP match must follow the [`Match::Protocol`] on which it depends, one
/// with addresses its [`Match::Family`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Match {
    /// IPv4 if `v4`, else IPv6.
    Family { v4: bool },
    /// The IP protocol; with `not`, any other.
    Protocol { not: bool, number: u8 },
    /// A key is in a set.
    InSet { not: bool, key: Vec<Field>, set: Name },
    /// An address in this network; the family is that of the network.
    InNet { side: Side, not: bool, net: Cidr },
    /// An address in any of these networks, at least two, which do not overlap and are of one family.
    InNets { side: Side, not: bool, nets: Vec<Cidr> },
    /// A port in any of these ranges, at least one, which neither overlap nor touch.
    Port { side: Side, not: bool, ranges: Vec<PortRange> },
    /// ICMP or ICMPv6 type and code, matched as a pair, so that `not` means any other pair.
    Icmp { not: bool, icmp: Icmp },
    /// ICMPv6 types from `first` to `last`.
    IcmpTypes { first: u8, last: u8 },
    /// The incoming (`inbound`) or outgoing interface.
    Interface { inbound: bool, not: bool, name: Box<str> },
    /// The incoming (`inbound`) or outgoing interface, by a prefix of its name.
    InterfacePrefix { inbound: bool, not: bool, prefix: Box<str> },
    /// Conntrack state established or related.
    Established,
    /// Conntrack state invalid.
    Invalid,
    /// The address is local to this host (`fib ... type local`).
    Local { side: Side },
    /// Any of these bits of the packet mark is set.
    Marked(u32),
}

/// Action of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) enum Statement {
    /// Continues with the next rule.
    #[default]
    Go,
    /// Accepts in this base chain; the packet continues at the next one.
    Accept,
    Drop,
    Return,
    Jump(Name),
    Goto(Name),
    /// Executes the verdict that the map returns for the key, if any.
    VerdictMap {
        key: Vec<Field>,
        map: Name,
    },
    /// Sets bits of the packet mark, then returns.
    MarkAndReturn(u32),
    /// Sets bits of the packet mark, then accepts.
    MarkAndAccept(u32),
    /// Sets bits of the packet mark, bypasses conntrack, and accepts.
    Untrack(u32),
    /// Bypasses conntrack, and continues.
    NoTrack,
    /// Clears bits of the packet mark, and continues.
    Unmark(u32),
    /// Makes the kernel report each further rule that the packet meets (`nft monitor trace`), and continues.
    Trace,
    /// Clears bits of the packet mark, then returns.
    UnmarkAndReturn(u32),
    Masquerade,
    /// Destination NAT to the address that the map returns for the key, if any.
    DestinationNat {
        v4: bool,
        key: Vec<Field>,
        map: Name,
    },
    /// Destination NAT to this address and port. Must follow a match of its family and of a protocol with
    /// ports.
    DestinationNatTo {
        addr: IpAddr,
        port: u16,
    },
    /// Source NAT to the address that the map returns for the key, if any.
    SourceNat {
        v4: bool,
        key: Vec<Field>,
        map: Name,
    },
}

/// Change of one object of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Deletes the table with its content and creates it anew, empty. Packets in flight meet empty maps.
    DeleteTable,
    /// Reactivates a dormant table. Every transaction does.
    ClearDormant,
    /// Creates a set: none of that name exists, or its deletion precedes.
    Set(Name, Set),
    /// Changes elements of a set of type `of`. For a key in both `add` and `remove`, the value changes.
    Elements { set: Name, of: SetType, add: BTreeMap<SetKey, SetValue>, remove: BTreeMap<SetKey, SetValue> },
    /// Replaces all elements of an existing set of this type, whatever they were.
    ReplaceElements(Name, Set),
    /// Deletes a set that no rule looks up any more. A packet whose evaluation began with rules that do still
    /// finds its elements.
    DeleteSet(Name),
    /// Deletes a map with verdicts or of unknown type. It is flushed first: kernels before 6.4 release the
    /// chains to which a map refers too late.
    DeleteMap(Name),
    /// Creates a chain without a hook, to which nothing refers before this change.
    NewChain(Name, Arc<Chain>),
    /// Replaces the rules of a chain, or creates it; its hook does not change.
    Chain(Name, Arc<Chain>),
    /// Deletes a chain.
    DeleteChain(Name),
}

impl Edit {
    /// Returns the deletion of a set of this type; `None` if the type is unknown.
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
