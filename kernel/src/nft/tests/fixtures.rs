//! Tables for tests: one that uses every feature of the representation, and random ones that the kernel
//! accepts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use tortie_config::resource::{Icmp, PortRange};
use tortie_net::Cidr;

use crate::nft::ir::*;

pub(in crate::nft) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap_or_else(|_| Cidr::host(text.parse().unwrap()))
}

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ports(first: u16, last: u16) -> PortRange {
    PortRange::new(first, last).unwrap()
}

/// Returns the edits that create a table from nothing.
pub(in crate::nft) fn edits(table: &Table) -> Vec<Edit> {
    let sets = table.sets.iter().map(|(name, set)| Edit::Set(Arc::clone(name), set.clone()));
    let chains = table.chains.iter().map(|(n, c)| Edit::Chain(Arc::clone(n), Arc::new(c.clone())));
    sets.chain(chains).collect()
}

pub(in crate::nft) const fn set_of(key: KeyType, value: ValueType, interval: bool) -> SetType {
    SetType { key, value, interval }
}

fn members<const N: usize>(keys: [SetKey; N]) -> BTreeMap<SetKey, SetValue> {
    keys.into_iter().map(|key| (key, SetValue::Member)).collect()
}

fn sets(v4: bool) -> Vec<(&'static str, Set)> {
    let net = |four: &str, six: &str| cidr(if v4 { four } else { six });
    let ip = |four: &str, six: &str| addr(if v4 { four } else { six });
    let (key, value) = (KeyType::Addr { v4 }, ValueType::Member);
    let set = |of, comment: &str, elements| Set { of, comment: comment.into(), elements };
    let pair = |a: IpAddr, b: IpAddr| SetKey::AddrPair(a, b);
    let (one, two) = (ip("192.0.2.1", "2001:db8::1"), ip("198.51.100.7", "2001:db8::7"));
    let wan = SetKey::InterfaceAddr("eth0".into(), Cidr::host(one));
    vec![
        (
            "addrs",
            set(
                set_of(key, value, false),
                "color == \"red\"",
                members([SetKey::Addr(Cidr::host(one)), SetKey::Addr(Cidr::host(two))]),
            ),
        ),
        (
            "nets",
            set(
                set_of(key, value, true),
                "has(x)",
                members([
                    SetKey::Addr(net("10.0.0.0/8", "2001:db8:1::/48")),
                    SetKey::Addr(net("11.0.0.0/8", "2001:db8:2::/48")),
                    SetKey::Addr(net("192.0.2.4/32", "2001:db8:9::4/128")),
                    SetKey::Addr(net("255.255.0.0/16", "ff00::/8")),
                ]),
            ),
        ),
        (
            "from",
            set(
                set_of(KeyType::InterfaceAddr { v4 }, value, false),
                "",
                members([wan.clone(), SetKey::InterfaceAddr("cali0123456789a".into(), Cidr::host(two))]),
            ),
        ),
        (
            "from-nets",
            set(
                set_of(KeyType::InterfaceAddr { v4 }, value, true),
                "",
                members([wan, SetKey::InterfaceAddr("cali1".into(), net("10.1.0.0/16", "2001:db8:5::/64"))]),
            ),
        ),
        ("pairs", set(set_of(KeyType::AddrPair { v4 }, value, false), "", members([pair(one, two)]))),
        ("pair-ranges", set(set_of(KeyType::AddrPair { v4 }, value, true), "", members([pair(one, two)]))),
        (
            "dnat",
            set(
                set_of(key, ValueType::Addr { v4 }, false),
                "ext -> int",
                BTreeMap::from([(SetKey::Addr(Cidr::host(one)), SetValue::Addr(two))]),
            ),
        ),
        (
            "snat",
            set(
                set_of(KeyType::AddrPair { v4 }, ValueType::Addr { v4 }, false),
                "",
                BTreeMap::from([(pair(two, two), SetValue::Addr(one))]),
            ),
        ),
        (
            "goto-nets",
            set(
                set_of(key, ValueType::Verdict, true),
                "",
                BTreeMap::from([(
                    SetKey::Addr(net("10.0.0.0/8", "2001:db8::/32")),
                    SetValue::Goto("plain".into()),
                )]),
            ),
        ),
        ("empty", set(set_of(key, value, true), "", BTreeMap::new())),
    ]
}

fn rules(matches: impl IntoIterator<Item = Vec<Match>>) -> Vec<Rule> {
    matches
        .into_iter()
        .map(|matches| Rule { matches, statement: Statement::Accept, ..Rule::default() })
        .collect()
}

/// Returns every match of a family, with negation if possible.
fn family_matches(v4: bool) -> Vec<Vec<Match>> {
    let family = Match::Family { v4 };
    let name = |base: &str| Name::from(format!("{base}-{}", if v4 { 4 } else { 6 }));
    let nets =
        |four: &[&str], six: &[&str]| if v4 { four } else { six }.iter().map(|t| cidr(t)).collect::<Vec<_>>();
    let mut all = Vec::new();
    for (side, not) in [(Side::Src, false), (Side::Dst, true)] {
        for net in nets(
            &["0.0.0.0/0", "10.0.0.0/8", "10.64.0.0/11", "192.0.2.7/32"],
            &["::/0", "2001:db8::/32", "fe80::/10", "2001:db8::7/128"],
        ) {
            all.push(vec![family.clone(), Match::InNet { side, not, net }]);
        }
        let wide = nets(
            &["10.0.0.0/8", "12.0.0.0/9", "224.0.0.0/3"],
            &["2001:db8::/32", "2001:dba::/33", "ff00::/8"],
        );
        let hosts = nets(&["10.0.0.1", "10.0.0.9"], &["2001:db8::1", "2001:db8::9"]);
        all.push(vec![family.clone(), Match::InNets { side, not, nets: wide }]);
        all.push(vec![family.clone(), Match::InNets { side, not, nets: hosts }]);
        all.push(vec![
            family.clone(),
            Match::InSet { not, key: vec![Field::Addr(side)], set: name("addrs") },
        ]);
        all.push(vec![family.clone(), Match::InSet { not, key: vec![Field::Addr(side)], set: name("nets") }]);
        for set in ["from", "from-nets"] {
            for interface in [Field::InInterface, Field::OutInterface] {
                all.push(vec![
                    family.clone(),
                    Match::InSet { not, key: vec![interface, Field::Addr(side)], set: name(set) },
                ]);
            }
        }
        for set in ["pairs", "pair-ranges"] {
            let key = vec![Field::Addr(Side::Src), Field::Addr(Side::Dst)];
            all.push(vec![family.clone(), Match::InSet { not, key, set: name(set) }]);
        }
        let number = if v4 { 1 } else { 58 };
        for code in [None, Some(0), Some(3)] {
            let icmp = Icmp::new(if v4 { 3 } else { 128 }, code).unwrap();
            all.push(vec![family.clone(), Match::Protocol { not: false, number }, Match::Icmp { not, icmp }]);
        }
    }
    if !v4 {
        all.push(vec![
            family,
            Match::Protocol { not: false, number: 58 },
            Match::IcmpTypes { first: 130, last: 136 },
        ]);
    }
    all
}

/// Returns the matches that do not depend on a family.
fn plain_matches() -> Vec<Vec<Match>> {
    let mut all = vec![
        vec![Match::Established],
        vec![Match::Invalid],
        vec![Match::Marked(0x30)],
        vec![Match::Protocol { not: true, number: 6 }],
    ];
    for (side, not) in [(Side::Src, false), (Side::Dst, true)] {
        all.push(vec![Match::Local { side }]);
        for number in [6, 17, 132] {
            for ranges in [
                vec![ports(80, 80)],
                vec![ports(1024, 65535)],
                vec![ports(53, 53), ports(443, 443)],
                vec![ports(0, 7), ports(22, 22), ports(60000, 65535)],
            ] {
                all.push(vec![Match::Protocol { not: false, number }, Match::Port { side, not, ranges }]);
            }
        }
        for inbound in [true, false] {
            all.push(vec![Match::Interface { inbound, not, name: "eth0".into() }]);
            all.push(vec![Match::InterfacePrefix { inbound, not, prefix: "cali".into() }]);
        }
    }
    all
}

/// Returns a table that uses every feature.
pub(in crate::nft) fn everything() -> Table {
    let mut table = Table::default();
    for v4 in [true, false] {
        for (name, mut set) in sets(v4) {
            for value in set.elements.values_mut() {
                if let SetValue::Goto(chain) | SetValue::Jump(chain) = value {
                    *chain = "plain".into();
                }
            }
            table.sets.insert(Name::from(format!("{name}-{}", if v4 { 4 } else { 6 })), set);
        }
    }
    let verdicts = set_of(KeyType::Interface, ValueType::Verdict, false);
    let elements = BTreeMap::from([
        (SetKey::Interface("cali0123456789a".into()), SetValue::Goto("plain".into())),
        (SetKey::Interface("cali1".into()), SetValue::Jump("plain".into())),
    ]);
    table.sets.insert("from-workload".into(), Set { of: verdicts, comment: "".into(), elements });

    let chain = |hook, rules| Chain { hook, rules };
    let hook = |kind, at, priority| Some(Hook { kind, at, priority });
    let statement = |statement| Rule { statement, ..Rule::default() };
    let mut matches = rules(family_matches(true));
    matches.extend(rules(family_matches(false)));
    matches.extend(rules(plain_matches()));
    table.chains.insert("plain".into(), chain(None, matches));
    let log = |group| Some(Log { prefix: "policy web-1/in/0: ".into(), group });
    let long: Box<str> = "x".repeat(300).into();
    let statements = vec![
        Rule { counted: true, comment: Some("policy \"web\", rule 1".into()), ..statement(Statement::Go) },
        Rule { limit: Some(10), counted: true, log: log(Some(179)), ..statement(Statement::Drop) },
        Rule { log: log(None), comment: Some(long), ..statement(Statement::Return) },
        statement(Statement::Jump("plain".into())),
        Rule { matches: vec![Match::Marked(1)], counted: true, ..statement(Statement::Goto("plain".into())) },
        statement(Statement::VerdictMap { key: vec![Field::InInterface], map: "from-workload".into() }),
        Rule {
            matches: vec![Match::Family { v4: false }],
            ..statement(Statement::VerdictMap {
                key: vec![Field::Addr(Side::Dst)],
                map: "goto-nets-6".into(),
            })
        },
        statement(Statement::MarkAndReturn(0x10)),
        statement(Statement::MarkAndAccept(0x20)),
        statement(Statement::Unmark(0x30)),
        statement(Statement::Trace),
        statement(Statement::UnmarkAndReturn(0x8000_0000)),
    ];
    table.chains.insert("forward-from".into(), chain(hook(Kind::Filter, At::Forward, -1), statements));
    table.chains.insert(
        "raw-prerouting".into(),
        chain(
            hook(Kind::Filter, At::Prerouting, -300),
            vec![statement(Statement::NoTrack), statement(Statement::Untrack(0x20))],
        ),
    );
    for (name, at) in [("input", At::Input), ("output", At::Output)] {
        table.chains.insert(name.into(), chain(hook(Kind::Filter, at, 1), Vec::new()));
    }
    let key = vec![Field::Addr(Side::Dst)];
    let pair = || vec![Field::Addr(Side::Src), Field::Addr(Side::Dst)];
    let (mut dnat, mut snat) = (Vec::new(), vec![statement(Statement::Masquerade)]);
    for addr in ["10.65.0.2", "2001:db8::2"] {
        let addr: IpAddr = addr.parse().unwrap();
        let matches = vec![
            Match::Family { v4: addr.is_ipv4() },
            Match::Protocol { not: false, number: 6 },
            Match::Port { side: Side::Dst, not: false, ranges: vec![PortRange::new(8080, 8080).unwrap()] },
        ];
        dnat.push(Rule { matches, ..statement(Statement::DestinationNatTo { addr, port: 80 }) });
    }
    for v4 in [true, false] {
        let map = |base: &str| Name::from(format!("{base}-{}", if v4 { 4 } else { 6 }));
        let matches = vec![Match::Family { v4 }];
        dnat.push(Rule {
            matches: matches.clone(),
            ..statement(Statement::DestinationNat { v4, key: key.clone(), map: map("dnat") })
        });
        snat.push(Rule { matches, ..statement(Statement::SourceNat { v4, key: pair(), map: map("snat") }) });
    }
    table.chains.insert("nat-prerouting".into(), chain(hook(Kind::Nat, At::Prerouting, -100), dnat));
    table.chains.insert("nat-postrouting".into(), chain(hook(Kind::Nat, At::Postrouting, 100), snat));
    table
}

fn any_addr(v4: bool) -> impl Strategy<Value = IpAddr> {
    (1u32..0xdfff_ffff, any::<u64>()).prop_map(move |(four, six)| match v4 {
        true => IpAddr::V4(Ipv4Addr::from_bits(four)),
        false => IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8u128 << 96) | u128::from(six))),
    })
}

/// Generates networks that do not overlap, with any lengths.
fn any_nets(v4: bool, most: usize) -> impl Strategy<Value = Vec<Cidr>> {
    let one =
        (any_addr(v4), if v4 { 1..=32u8 } else { 1..=128u8 }).prop_map(|(a, len)| Cidr::new(a, len).unwrap());
    proptest::collection::vec(one, 1..=most).prop_map(|all| {
        let mut nets: Vec<Cidr> = Vec::new();
        for net in all {
            if nets.iter().all(|n| !n.overlaps(&net)) {
                nets.push(net);
            }
        }
        nets
    })
}

fn any_name() -> impl Strategy<Value = Box<str>> {
    "[a-z][a-z0-9.-]{0,14}".prop_map(Into::into)
}

fn any_set() -> impl Strategy<Value = Set> {
    let key = prop_oneof![
        any::<bool>().prop_map(|v4| KeyType::Addr { v4 }),
        Just(KeyType::Interface),
        any::<bool>().prop_map(|v4| KeyType::InterfaceAddr { v4 }),
        any::<bool>().prop_map(|v4| KeyType::AddrPair { v4 }),
    ];
    (key, any::<bool>(), 0..3usize, "[ -~]{0,150}").prop_flat_map(|(key, interval, value, comment)| {
        let v4 = !matches!(
            key,
            KeyType::Addr { v4: false }
                | KeyType::InterfaceAddr { v4: false }
                | KeyType::AddrPair { v4: false }
        );
        let interval = interval && key != KeyType::Interface;
        let value = [ValueType::Member, ValueType::Verdict, ValueType::Addr { v4 }][value];
        let keys = (
            any_nets(v4, 12),
            proptest::collection::vec(any_name(), 12),
            proptest::collection::vec(any_addr(v4), 24),
        );
        keys.prop_map(move |(nets, names, addrs)| {
            let net = |i: usize| {
                if interval { nets.get(i % nets.len()).copied().unwrap() } else { Cidr::host(addrs[i]) }
            };
            let count = if interval { nets.len() } else { 12 };
            let keys = (0..count).map(|i| match key {
                KeyType::Addr { .. } => SetKey::Addr(net(i)),
                KeyType::Interface => SetKey::Interface(names[i].clone()),
                KeyType::InterfaceAddr { .. } => SetKey::InterfaceAddr(names[i].clone(), net(i)),
                KeyType::AddrPair { .. } => SetKey::AddrPair(addrs[i], addrs[i + 12]),
            });
            let elements = keys.enumerate().map(|(i, key)| {
                let value = match value {
                    ValueType::Member => SetValue::Member,
                    ValueType::Verdict if i % 2 == 0 => SetValue::Jump("c9".into()),
                    ValueType::Verdict => SetValue::Goto("c9".into()),
                    ValueType::Addr { .. } => SetValue::Addr(addrs[i]),
                };
                (key, value)
            });
            let elements = elements.collect();
            Set { of: SetType { key, value, interval }, comment: comment.clone().into(), elements }
        })
    })
}

fn any_rule(chain: usize) -> impl Strategy<Value = Rule> {
    let mut matches = plain_matches();
    for v4 in [true, false] {
        // The sets of this table have other names.
        matches.extend(
            family_matches(v4).into_iter().filter(|m| !m.iter().any(|m| matches!(m, Match::InSet { .. }))),
        );
    }
    let nets = (any::<bool>(), any::<bool>(), any::<bool>()).prop_flat_map(|(v4, not, src)| {
        let side = if src { Side::Src } else { Side::Dst };
        any_nets(v4, 5).prop_map(move |nets| match nets.as_slice() {
            [net] => vec![Match::Family { v4 }, Match::InNet { side, not, net: *net }],
            _ => vec![Match::Family { v4 }, Match::InNets { side, not, nets }],
        })
    });
    let next = Name::from(format!("c{}", chain + 1));
    let mut statements = vec![
        Statement::Go,
        Statement::Accept,
        Statement::Drop,
        Statement::Return,
        Statement::MarkAndReturn(4),
        Statement::MarkAndAccept(8),
        Statement::Unmark(12),
        Statement::UnmarkAndReturn(4),
    ];
    if chain < 9 {
        statements.extend([Statement::Jump(Name::clone(&next)), Statement::Goto(next)]);
    }
    let log = proptest::option::of(("[ -~]{0,127}", proptest::option::of(any::<u16>())));
    let rest = (
        proptest::option::of(1..1000u32),
        any::<bool>(),
        log,
        select(statements),
        proptest::option::of("[ -~]{0,150}"),
    );
    (prop_oneof![select(matches), nets], rest).prop_map(
        |(matches, (limit, counted, log, statement, comment))| Rule {
            matches,
            limit,
            counted,
            log: log.map(|(prefix, group)| Log { prefix: prefix.into(), group }),
            statement,
            comment: comment.map(Into::into),
        },
    )
}

/// A table that the kernel accepts: chains `c0` to `c9`, each of which refers to the next only.
pub(in crate::nft) fn any_table() -> impl Strategy<Value = Table> {
    let chains: Vec<_> = (0..10).map(|i| proptest::collection::vec(any_rule(i), 0..6)).collect();
    (proptest::collection::btree_map("[a-z][a-z0-9.-]{3,20}", any_set(), 0..6), chains, -400..400i32)
        .prop_map(|(sets, chains, priority)| {
            let hook = |i: usize| (i == 0).then_some(Hook { kind: Kind::Filter, at: At::Forward, priority });
            let chains = chains
                .into_iter()
                .enumerate()
                .map(|(i, rules)| (Name::from(format!("c{i}")), Chain { hook: hook(i), rules }));
            Table {
                sets: sets.into_iter().map(|(name, set)| (Name::from(format!("s-{name}")), set)).collect(),
                chains: chains.collect(),
            }
        })
}
