//! Interpreter of a [`Table`] for tests: predicts how a kernel treats a packet. It knows nothing of policies,
//! and it is strict: it panics on a dangling reference or on a match without its prerequisite. Not part of
//! release builds.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::nft::ir::{
    At, Chain, Field, Kind, Log, Match, Name, Rule, Set, SetKey, SetValue, Side, Statement, Table,
};

const LOOPBACK: &str = "lo";

/// Conntrack state of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conn {
    New,
    /// `reply` is true against the direction of the first packet.
    Established {
        reply: bool,
    },
    Invalid,
    Untracked,
}

/// A packet during its traversal.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    /// Source and destination port.
    pub(crate) ports: Option<(u16, u16)>,
    /// ICMP type and code.
    pub(crate) icmp: Option<(u8, u8)>,
    /// Incoming interface; `None` for a packet from the host itself.
    pub(crate) input: Option<Box<str>>,
    pub(crate) state: Conn,
    pub(crate) mark: u32,
}

/// Route of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the host itself.
    Local,
    Out(Box<str>),
}

/// Result for a packet.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedOutcome {
    /// Chain and rule that dropped it; `None` if it was not dropped.
    pub(crate) dropped: Option<(Name, usize)>,
    /// Every matched rule with a counter.
    pub(crate) counted: Vec<(Name, usize)>,
    pub(crate) logs: Vec<Log>,
    /// New source address; `Err` if masqueraded.
    pub(crate) source: Option<Result<IpAddr, Masqueraded>>,
    /// The packet at the end.
    pub(crate) packet: Packet,
}

/// The source became an address of the outgoing interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Masqueraded;

/// Verdict of a chain.
#[derive(Debug, PartialEq, Eq)]
enum Terminal {
    Accept,
    Drop,
    Return,
}

struct Traversal<'a> {
    table: &'a Table,
    local: &'a BTreeSet<IpAddr>,
    out: Option<Box<str>>,
    /// True if it left by the loopback interface and arrives again.
    looped_back: bool,
    outcome: SimulatedOutcome,
}

/// Sends a packet through every base chain on its path. `local` are the host's own addresses.
pub(crate) fn send(
    table: &Table,
    packet: Packet,
    local: &BTreeSet<IpAddr>,
    route: impl Fn(IpAddr) -> Route,
) -> SimulatedOutcome {
    let mut walk = Traversal::new(table, packet, local);
    if walk.outcome.packet.input.is_none() {
        let first = walk.outcome.packet.dst;
        walk.egress(route(first));
        let mut left = walk.hook(At::Output);
        // The filter chains after DNAT see the new destination, but the outgoing interface of the old one:
        // the kernel keeps that for the whole hook.
        if walk.outcome.packet.dst != first {
            walk.egress(route(walk.outcome.packet.dst));
        }
        left = left && walk.hook(At::Postrouting);
        if left && walk.out.as_deref() == Some(LOOPBACK) {
            walk.looped_back = true;
            walk.outcome.packet.input = walk.out.take();
            if walk.hook(At::Prerouting) {
                walk.hook(At::Input);
            }
        }
    } else if walk.hook(At::Prerouting) {
        match route(walk.outcome.packet.dst) {
            Route::Local => _ = walk.hook(At::Input),
            Route::Out(out) => {
                walk.out = Some(out);
                if walk.hook(At::Forward) {
                    walk.hook(At::Postrouting);
                }
            }
        }
    }
    walk.outcome
}

/// Sends a packet through one chain: `Some(true)` if accepted, `Some(false)` if dropped, `None` if undecided.
#[cfg(test)]
pub(crate) fn through(
    table: &Table,
    chain: &str,
    packet: Packet,
    local: &BTreeSet<IpAddr>,
) -> (Option<bool>, SimulatedOutcome) {
    let mut walk = Traversal::new(table, packet, local);
    let end = match walk.chain(&chain.into()) {
        Terminal::Accept => Some(true),
        Terminal::Drop => Some(false),
        Terminal::Return => None,
    };
    (end, walk.outcome)
}

impl<'a> Traversal<'a> {
    fn new(table: &'a Table, packet: Packet, local: &'a BTreeSet<IpAddr>) -> Self {
        let outcome =
            SimulatedOutcome { dropped: None, counted: Vec::new(), logs: Vec::new(), source: None, packet };
        Self { table, local, out: None, looped_back: false, outcome }
    }

    fn egress(&mut self, by: Route) {
        self.out = Some(match by {
            Route::Local => LOOPBACK.into(),
            Route::Out(name) => name,
        });
    }

    /// Runs every base chain of a hook, by priority; returns true if the packet continues.
    fn hook(&mut self, at: At) -> bool {
        let table = self.table;
        let hooked = |chain: &&Chain| chain.hook.is_some_and(|hook| hook.at == at);
        let mut bases: Vec<(i32, &Name, Kind)> = Vec::new();
        for (name, chain) in table.chains.iter().filter(|(_, chain)| hooked(chain)) {
            bases.extend(chain.hook.map(|hook| (hook.priority, name, hook.kind)));
        }
        bases.sort_by_key(|(priority, name, _)| (*priority, *name));
        for (_, name, kind) in bases {
            // Conntrack translates later packets like the first one, and each packet once.
            let translated =
                matches!(self.outcome.packet.state, Conn::New | Conn::Established { reply: false });
            if kind == Kind::Nat && (self.looped_back || !translated) {
                continue;
            }
            if self.chain(name) == Terminal::Drop {
                return false;
            }
        }
        true
    }

    fn chain(&mut self, name: &Name) -> Terminal {
        let table = self.table;
        let chain = table.chains.get(name).unwrap_or_else(|| panic!("no chain {name}"));
        for (at, rule) in chain.rules.iter().enumerate() {
            well_formed(rule, name);
            if !rule.matches.iter().all(|m| self.matches(m)) {
                continue;
            }
            if rule.counted {
                self.outcome.counted.push((name.clone(), at));
            }
            self.outcome.logs.extend(rule.log.clone());
            if let Some(end) = self.statement(&rule.statement, name, at) {
                return end;
            }
        }
        Terminal::Return
    }

    /// Calls a chain; `None` means that the next rule follows.
    fn jump(&mut self, to: &Name) -> Option<Terminal> {
        match self.chain(to) {
            Terminal::Return => None,
            end => Some(end),
        }
    }

    /// Executes a statement; `None` means that the next rule follows.
    fn statement(&mut self, statement: &Statement, chain: &Name, at: usize) -> Option<Terminal> {
        let packet = &mut self.outcome.packet;
        match statement {
            Statement::Go | Statement::Trace => None,
            Statement::Accept => Some(Terminal::Accept),
            Statement::Drop => {
                self.outcome.dropped = Some((chain.clone(), at));
                Some(Terminal::Drop)
            }
            Statement::Return => Some(Terminal::Return),
            Statement::Jump(to) => self.jump(to),
            Statement::Goto(to) => Some(self.chain(to)),
            Statement::VerdictMap { key, map } => match self.look_up(key, map).cloned() {
                Some(SetValue::Goto(to)) => Some(self.chain(&to)),
                Some(SetValue::Jump(to)) => self.jump(&to),
                None => None,
                other => panic!("{map} gives {other:?}"),
            },
            Statement::MarkAndReturn(bits) => {
                packet.mark |= bits;
                Some(Terminal::Return)
            }
            Statement::MarkAndAccept(bits) => {
                packet.mark |= bits;
                Some(Terminal::Accept)
            }
            Statement::Untrack(bits) => {
                packet.mark |= bits;
                packet.state = Conn::Untracked;
                Some(Terminal::Accept)
            }
            Statement::NoTrack => {
                packet.state = Conn::Untracked;
                None
            }
            Statement::Unmark(bits) => {
                packet.mark &= !bits;
                None
            }
            Statement::UnmarkAndReturn(bits) => {
                packet.mark &= !bits;
                Some(Terminal::Return)
            }
            Statement::Masquerade => {
                self.outcome.source = Some(Err(Masqueraded));
                Some(Terminal::Accept)
            }
            Statement::DestinationNat { key, map, .. } => match self.look_up(key, map).cloned() {
                Some(SetValue::Addr(to)) => {
                    self.outcome.packet.dst = to;
                    Some(Terminal::Accept)
                }
                None => None,
                other => panic!("{map} gives {other:?}"),
            },
            Statement::DestinationNatTo { addr, port } => {
                self.outcome.packet.dst = *addr;
                if let Some((_, to)) = &mut self.outcome.packet.ports {
                    *to = *port;
                }
                Some(Terminal::Accept)
            }
            Statement::SourceNat { key, map, .. } => match self.look_up(key, map).cloned() {
                Some(SetValue::Addr(to)) => {
                    self.outcome.source = Some(Ok(to));
                    Some(Terminal::Accept)
                }
                None => None,
                other => panic!("{map} gives {other:?}"),
            },
        }
    }

    fn addr(&self, side: Side) -> IpAddr {
        match side {
            Side::Src => self.outcome.packet.src,
            Side::Dst => self.outcome.packet.dst,
        }
    }

    fn interface(&self, inbound: bool) -> Option<&str> {
        if inbound { self.outcome.packet.input.as_deref() } else { self.out.as_deref() }
    }

    fn matches(&self, m: &Match) -> bool {
        let packet = &self.outcome.packet;
        match m {
            Match::Family { v4 } => packet.src.is_ipv4() == *v4,
            Match::Protocol { not, number } => (packet.protocol == *number) != *not,
            Match::InSet { not, key, set } => self.look_up(key, set).is_some() != *not,
            Match::InNet { side, not, net } => net.contains(self.addr(*side)) != *not,
            Match::InNets { side, not, nets } => {
                nets.iter().any(|net| net.contains(self.addr(*side))) != *not
            }
            Match::Port { side, not, ranges } => packet.ports.is_some_and(|(src, dst)| {
                let port = if *side == Side::Src { src } else { dst };
                ranges.iter().any(|range| range.contains(port)) != *not
            }),
            Match::Icmp { not, icmp } => packet.icmp.is_some_and(|(of, code)| {
                (of == icmp.icmp_type() && icmp.code().is_none_or(|wanted| wanted == code)) != *not
            }),
            Match::IcmpTypes { first, last } => {
                packet.icmp.is_some_and(|(of, _)| (*first..=*last).contains(&of))
            }
            Match::Interface { inbound, not, name } => (self.interface(*inbound) == Some(&**name)) != *not,
            Match::InterfacePrefix { inbound, not, prefix } => {
                self.interface(*inbound).is_some_and(|name| name.starts_with(&**prefix)) != *not
            }
            Match::Established => matches!(packet.state, Conn::Established { .. }),
            Match::Invalid => packet.state == Conn::Invalid,
            Match::Local { side } => self.local.contains(&self.addr(*side)),
            Match::Marked(bits) => packet.mark & bits != 0,
        }
    }

    fn look_up(&self, key: &[Field], set: &Name) -> Option<&'a SetValue> {
        let table = self.table;
        let found: &Set = table.sets.get(set).unwrap_or_else(|| panic!("no set {set}"));
        let host = tortie_net::Cidr::host;
        let key = match key {
            [Field::Addr(side)] => SetKey::Addr(host(self.addr(*side))),
            [Field::InInterface] => SetKey::Interface(self.interface(true)?.into()),
            [Field::OutInterface] => SetKey::Interface(self.interface(false)?.into()),
            [Field::InInterface, Field::Addr(side)] => {
                SetKey::InterfaceAddr(self.interface(true)?.into(), host(self.addr(*side)))
            }
            [Field::Addr(first), Field::Addr(second)] => {
                SetKey::AddrPair(self.addr(*first), self.addr(*second))
            }
            other => panic!("nothing looks up {other:?}"),
        };
        if !found.of.interval {
            return found.elements.get(&key);
        }
        let covers = |element: &&SetKey| match (element, &key) {
            (SetKey::Addr(net), SetKey::Addr(addr)) => net.covers(addr),
            (SetKey::InterfaceAddr(name, net), SetKey::InterfaceAddr(other, addr)) => {
                name == other && net.covers(addr)
            }
            other => panic!("{set}: {other:?}"),
        };
        let mut hits = found.elements.iter().filter(|(element, _)| covers(element));
        let hit = hits.next();
        assert!(hits.next().is_none(), "{set}: elements overlap");
        hit.map(|(_, value)| value)
    }
}

/// Checks that addresses follow a family, ports and ICMP a suitable protocol, and that lists have the form
/// that the kernel accepts.
fn well_formed(rule: &Rule, chain: &str) {
    let (mut family, mut protocol) = (None, None);
    for m in &rule.matches {
        match m {
            Match::Family { v4 } => family = Some(*v4),
            Match::Protocol { not: false, number } => protocol = Some(*number),
            Match::InSet { key, .. } if key.iter().any(|field| matches!(field, Field::Addr(_))) => {
                assert!(family.is_some(), "{chain}: a set of addresses without a family");
            }
            Match::InNet { net, .. } => assert_eq!(family, Some(net.is_v4()), "{chain}"),
            Match::InNets { nets, .. } => {
                assert!(nets.len() > 1 && nets.iter().all(|net| Some(net.is_v4()) == family), "{chain}");
                assert!(nets.windows(2).all(|two| !two[0].overlaps(&two[1])), "{chain}");
            }
            Match::Port { ranges, .. } => {
                assert!(matches!(protocol, Some(6 | 17 | 132 | 136)), "{chain}");
                assert!(!ranges.is_empty(), "{chain}");
                let apart = |two: &[tortie_config::resource::PortRange]| {
                    u32::from(two[0].last()) + 1 < u32::from(two[1].first())
                };
                assert!(ranges.windows(2).all(apart), "{chain}");
            }
            Match::Icmp { .. } | Match::IcmpTypes { .. } => {
                assert!(matches!(protocol, Some(1 | 58)), "{chain}");
            }
            _ => {}
        }
    }
    assert!(rule.comment.as_ref().is_none_or(|comment| !comment.is_empty()), "{chain}");
    assert!(rule.log.as_ref().is_none_or(|log| log.prefix.len() <= 127), "{chain}");
}

/// Checks that every reference of a chain or a map is valid and every rule well-formed; panics with the fault
/// otherwise.
#[cfg(test)]
pub(crate) fn check(table: &Table) {
    let chain = |name: &Name, by: &Name| assert!(table.chains.contains_key(name), "{by}: no chain {name}");
    let set = |name: &Name, by: &Name| assert!(table.sets.contains_key(name), "{by}: no set {name}");
    for (name, set) in &table.sets {
        for value in set.elements.values() {
            if let SetValue::Goto(to) | SetValue::Jump(to) = value {
                chain(to, name);
            }
        }
    }
    for (name, of) in &table.chains {
        for rule in &of.rules {
            well_formed(rule, name);
            for m in &rule.matches {
                if let Match::InSet { set: of, .. } = m {
                    set(of, name);
                }
            }
            match &rule.statement {
                Statement::Jump(to) | Statement::Goto(to) => chain(to, name),
                Statement::VerdictMap { map, .. }
                | Statement::DestinationNat { map, .. }
                | Statement::SourceNat { map, .. } => set(map, name),
                _ => {}
            }
        }
    }
}
