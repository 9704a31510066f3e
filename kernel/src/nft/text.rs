//! Prints a table in nft syntax: for people, and for comparison.
//!
//! `nft -f` accepts the text. It has one element per line, and everything in the order of names, so that a
//! difference of two texts is a difference of the tables.

use std::fmt::{self, Display, Write};

use tortie_config::resource::PortRange;
use tortie_net::Cidr;

use crate::nft::encode::comment;
use crate::nft::encode::rule::{LOG_SNAPLEN, family_v4, log_prefix};
use crate::nft::ir::{
    Chain, Field, KeyType, Log, Match, Rule, Set, SetKey, SetType, SetValue, Side, Statement, Table,
    ValueType,
};
use crate::nft::uapi::{hook_name, kind_name};

/// Prints the table as one of family `inet` with this name.
pub(crate) fn table(table: &Table, name: &str) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write_table(&mut out, table, name);
    out
}

/// Prints one rule, without its table and chain.
pub(crate) fn rule(rule: &Rule) -> String {
    let mut words = Vec::new();
    let v4 = family_v4(rule);
    let mut protocol = None;
    for m in &rule.matches {
        if let Match::Protocol { not: false, number } = m {
            protocol = Some(*number);
        }
        words.push(matching(m, v4, protocol));
    }
    if let Some(rate) = rule.limit {
        words.push(format!("limit rate {rate}/second burst {} packets", rate.saturating_mul(2)));
    }
    if rule.counted {
        words.push("counter".to_owned());
    }
    words.extend(rule.log.as_ref().map(log));
    words.extend(statement(&rule.statement, v4));
    let text = rule.comment.as_deref().map(comment).filter(|c| !c.is_empty());
    words.extend(text.map(|text| format!("comment \"{text}\"")));
    words.join(" ")
}

fn write_table(out: &mut String, table: &Table, name: &str) -> fmt::Result {
    writeln!(out, "table inet {name} {{")?;
    let mut first = true;
    for (name, one) in &table.sets {
        gap(out, &mut first)?;
        set(out, name, one)?;
    }
    for (name, one) in &table.chains {
        gap(out, &mut first)?;
        chain(out, name, one)?;
    }
    writeln!(out, "}}")
}

fn gap(out: &mut String, first: &mut bool) -> fmt::Result {
    if std::mem::take(first) { Ok(()) } else { writeln!(out) }
}

fn set(out: &mut String, name: &str, set: &Set) -> fmt::Result {
    let what = if set.of.value == ValueType::Member { "set" } else { "map" };
    writeln!(out, "\t{what} {name} {{\n\t\ttype {}", set_type(set.of))?;
    if set.of.interval {
        writeln!(out, "\t\tflags interval")?;
    }
    if !set.comment.is_empty() {
        writeln!(out, "\t\tcomment \"{}\"", comment(&set.comment))?;
    }
    if !set.elements.is_empty() {
        writeln!(out, "\t\telements = {{")?;
        for (key, value) in &set.elements {
            match value {
                SetValue::Member => writeln!(out, "\t\t\t{},", element(key))?,
                SetValue::Goto(chain) => writeln!(out, "\t\t\t{} : goto {chain},", element(key))?,
                SetValue::Jump(chain) => writeln!(out, "\t\t\t{} : jump {chain},", element(key))?,
                SetValue::Addr(addr) => writeln!(out, "\t\t\t{} : {addr},", element(key))?,
            }
        }
        writeln!(out, "\t\t}}")?;
    }
    writeln!(out, "\t}}")
}

fn set_type(of: SetType) -> String {
    let addr = |v4: bool| if v4 { "ipv4_addr" } else { "ipv6_addr" };
    let key = match of.key {
        KeyType::Addr { v4 } => addr(v4).to_owned(),
        KeyType::Interface => "ifname".to_owned(),
        KeyType::InterfaceAddr { v4 } => format!("ifname . {}", addr(v4)),
        KeyType::AddrPair { v4 } => format!("{0} . {0}", addr(v4)),
    };
    match of.value {
        ValueType::Member => key,
        ValueType::Verdict => format!("{key} : verdict"),
        ValueType::Addr { v4 } => format!("{key} : {}", addr(v4)),
    }
}

fn element(key: &SetKey) -> String {
    match key {
        SetKey::Addr(cidr) => net(cidr),
        SetKey::Interface(name) => quoted(name),
        SetKey::InterfaceAddr(name, cidr) => format!("{} . {}", quoted(name), net(cidr)),
        SetKey::AddrPair(first, second) => format!("{first} . {second}"),
    }
}

fn chain(out: &mut String, name: &str, chain: &Chain) -> fmt::Result {
    writeln!(out, "\tchain {name} {{")?;
    if let Some(hook) = &chain.hook {
        let (kind, at) = (kind_name(hook.kind), hook_name(hook.at));
        writeln!(out, "\t\ttype {kind} hook {at} priority {}; policy accept;", hook.priority)?;
    }
    for one in &chain.rules {
        writeln!(out, "\t\t{}", rule(one))?;
    }
    writeln!(out, "\t}}")
}

fn matching(m: &Match, v4: bool, protocol: Option<u8>) -> String {
    match m {
        Match::Family { v4 } => format!("meta nfproto {}", if *v4 { "ipv4" } else { "ipv6" }),
        Match::Protocol { not, number } => format!("meta l4proto {}{number}", is_not(*not)),
        Match::InSet { not, key, set } => format!("{} {}@{set}", fields(key, v4), is_not(*not)),
        Match::InNet { side, not, net: cidr } => {
            format!("{} {}{}", address(*side, cidr.is_v4()), is_not(*not), net(cidr))
        }
        Match::InNets { side, not, nets } => {
            let v4 = nets.first().is_none_or(Cidr::is_v4);
            format!("{} {}{}", address(*side, v4), is_not(*not), braces(nets.iter().map(net)))
        }
        Match::Port { side, not, ranges } => {
            let side = match side {
                Side::Src => "sport",
                Side::Dst => "dport",
            };
            match ranges.as_slice() {
                [one] => format!("th {side} {}{}", is_not(*not), ports(one)),
                many => format!("th {side} {}{}", is_not(*not), braces(many.iter().map(ports))),
            }
        }
        Match::Icmp { not, icmp } => match (icmp.code(), icmp_name(protocol)) {
            (None, Some(name)) => format!("{name} type {}{}", is_not(*not), icmp.icmp_type()),
            (None, None) => format!("@th,0,8 {}{}", is_not(*not), icmp.icmp_type()),
            (Some(code), Some(name)) if !not => {
                format!("{name} type {} {name} code {code}", icmp.icmp_type())
            }
            (Some(code), _) => format!("@th,0,16 {}0x{:02x}{code:02x}", is_not(*not), icmp.icmp_type()),
        },
        Match::IcmpTypes { first, last } => {
            let types = if first == last { first.to_string() } else { format!("{first}-{last}") };
            icmp_name(protocol)
                .map_or_else(|| format!("@th,0,8 {types}"), |name| format!("{name} type {types}"))
        }
        Match::Interface { inbound, not, name } => {
            format!("{} {}{}", interface(*inbound), is_not(*not), quoted(name))
        }
        Match::InterfacePrefix { inbound, not, prefix } => {
            format!("{} {}\"{prefix}*\"", interface(*inbound), is_not(*not))
        }
        Match::Established => "ct state established,related".to_owned(),
        Match::Invalid => "ct state invalid".to_owned(),
        Match::Local { side: Side::Src } => "fib saddr type local".to_owned(),
        Match::Local { side: Side::Dst } => "fib daddr type local".to_owned(),
        Match::Marked(bits) => format!("meta mark & 0x{bits:x} != 0"),
    }
}

fn statement(statement: &Statement, v4: bool) -> Option<String> {
    Some(match statement {
        Statement::Go => return None,
        Statement::Accept => "accept".to_owned(),
        Statement::Drop => "drop".to_owned(),
        Statement::Return => "return".to_owned(),
        Statement::Jump(chain) => format!("jump {chain}"),
        Statement::Goto(chain) => format!("goto {chain}"),
        Statement::VerdictMap { key, map } => format!("{} vmap @{map}", fields(key, v4)),
        Statement::MarkAndReturn(bits) => format!("{} return", mark(*bits)),
        Statement::MarkAndAccept(bits) => format!("{} accept", mark(*bits)),
        Statement::Untrack(bits) => format!("{} notrack accept", mark(*bits)),
        Statement::NoTrack => "notrack".to_owned(),
        Statement::Unmark(bits) => unmark(*bits),
        Statement::Trace => "meta nftrace set 1".to_owned(),
        Statement::UnmarkAndReturn(bits) => format!("{} return", unmark(*bits)),
        Statement::Masquerade => "masquerade".to_owned(),
        Statement::DestinationNat { v4, key, map } => {
            format!("dnat {} to {} map @{map}", family(*v4), fields(key, *v4))
        }
        Statement::DestinationNatTo { addr, port } => {
            format!("dnat {} to {}", family(addr.is_ipv4()), std::net::SocketAddr::new(*addr, *port))
        }
        Statement::SourceNat { v4, key, map } => {
            format!("snat {} to {} map @{map}", family(*v4), fields(key, *v4))
        }
    })
}

fn log(log: &Log) -> String {
    // An nft string contains no quotes, and a dollar sign would begin a variable.
    let prefix: String = log_prefix(&log.prefix)
        .chars()
        .map(|c| match c {
            '"' => '\'',
            '$' => '?',
            c if c.is_control() => ' ',
            c => c,
        })
        .collect();
    let prefix = if prefix.is_empty() { prefix } else { format!(" prefix \"{prefix}\"") };
    match log.group {
        None => format!("log{prefix} level notice"),
        Some(group) => format!("log{prefix} group {group} snaplen {LOG_SNAPLEN}"),
    }
}

fn mark(bits: u32) -> String {
    format!("meta mark set meta mark | 0x{bits:x}")
}

fn unmark(bits: u32) -> String {
    format!("meta mark set meta mark & 0x{:x}", !bits)
}

fn is_not(not: bool) -> &'static str {
    if not { "!= " } else { "" }
}

fn family(v4: bool) -> &'static str {
    if v4 { "ip" } else { "ip6" }
}

fn interface(inbound: bool) -> &'static str {
    if inbound { "iifname" } else { "oifname" }
}

fn address(side: Side, v4: bool) -> String {
    let side = match side {
        Side::Src => "saddr",
        Side::Dst => "daddr",
    };
    format!("{} {side}", family(v4))
}

fn fields(key: &[Field], v4: bool) -> String {
    let field = |field: &Field| match field {
        Field::Addr(side) => address(*side, v4),
        Field::InInterface => interface(true).to_owned(),
        Field::OutInterface => interface(false).to_owned(),
    };
    key.iter().map(field).collect::<Vec<_>>().join(" . ")
}

fn icmp_name(protocol: Option<u8>) -> Option<&'static str> {
    match protocol? {
        1 => Some("icmp"),
        58 => Some("icmpv6"),
        _ => None,
    }
}

fn net(net: &Cidr) -> String {
    if net.is_host() { net.addr().to_string() } else { net.to_string() }
}

fn ports(range: &PortRange) -> String {
    if range.first() == range.last() {
        range.first().to_string()
    } else {
        format!("{}-{}", range.first(), range.last())
    }
}

fn braces<T: Display>(items: impl Iterator<Item = T>) -> String {
    let items: Vec<_> = items.map(|item| item.to_string()).collect();
    format!("{{ {} }}", items.join(", "))
}

/// Quotes an exact name: an asterisk at the end would be a wildcard.
fn quoted(name: &str) -> String {
    match name.strip_suffix('*') {
        Some(rest) => format!("\"{rest}\\*\""),
        None => format!("\"{name}\""),
    }
}
