//! Others' packet rules at the hook that workloads' packets pass: what drops them there although our own rules let them
//! through, and Docker's chain for rules of other programs.
//!
//! A packet passes each base chain of a hook, and one drop is enough. dockerd sets the policy of `FORWARD` to drop when it starts, and
//! leaves the chain `DOCKER-USER` to others: it leads there first and never changes what is in it (except for the `RETURN` at
//! its end). While this host has workloads and such a chain drops, the rules of [`admission`] stand at its beginning: packets of
//! workloads, which our own chains have judged before, pass. Nothing else of other tables is ever changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use crate::netlink::codec::{self, Attrs, Message, NLM_F_DUMP, Writer};
use crate::netlink::socket::TransactionError;
use crate::nft::dump::{attr, find, hash};
use crate::nft::encode::encode_in_chain;
use crate::nft::encode::rule_hash;
use crate::nft::ir::{Match, Rule, Statement};
use crate::nft::socket::Socket;
use crate::nft::uapi::*;

/// Docker's table and its chain for rules of others.
const FILTER: &str = "filter";
const DOCKER_USER: &str = "DOCKER-USER";
/// How names of bridges begin that dockerd makes.
const BRIDGES: [&str; 2] = ["docker", "br-"];
/// How often the generation of the kernel's rules is asked for.
const INTERVAL: Duration = Duration::from_millis(500);
const HOOK_FORWARD: u32 = 2;

/// A base chain of another program that drops the forwarded packets which nothing in it accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ForwardDrop {
    /// `ip`, `ip6` or `inet`.
    pub family: String,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
    /// By its policy; else by its last rule.
    pub by_policy: bool,
    /// A rule of the table names interfaces of workloads: another program, or this one, lets their packets pass.
    pub names_workloads: bool,
    /// The table has Docker's chain for rules of others.
    pub has_docker_user: bool,
}

impl ForwardDrop {
    /// `table ip filter, chain FORWARD (policy drop)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { family, table, chain, by_policy, .. } = self;
        let why = if *by_policy { "its policy is drop" } else { "its last rule drops" };
        format!("chain {chain} of table {family} {table} ({why})")
    }

    /// The commands that let workloads' packets pass.
    #[must_use]
    pub fn fix(&self, prefix: &str) -> String {
        let Self { family, table, chain, .. } = self;
        let tool = if family == "ip6" { "ip6tables" } else { "iptables" };
        match (family.as_str(), table.as_str()) {
            ("ip" | "ip6", FILTER) => {
                format!("{tool} -I {chain} -i {prefix}+ -j ACCEPT; {tool} -I {chain} -o {prefix}+ -j ACCEPT")
            }
            _ => format!(
                "nft insert rule {family} {table} {chain} iifname \"{prefix}*\" accept; \
                 nft insert rule {family} {table} {chain} oifname \"{prefix}*\" accept"
            ),
        }
    }
}

/// A chain of another table.
#[derive(Debug, Default)]
struct OtherChain {
    /// It is a base chain for forwarded packets, and its policy is drop.
    forward: Option<bool>,
    /// What its last rule does with whatever reaches it.
    ends_in_drop: bool,
}

type TableId = (u8, String);

fn family_name(family: u8) -> Option<&'static str> {
    match family {
        NFPROTO_INET => Some("inet"),
        NFPROTO_IPV4 => Some("ip"),
        NFPROTO_IPV6 => Some("ip6"),
        _ => None,
    }
}

/// What drops forwarded packets of workloads whose interfaces begin so; empty where the kernel has no nf_tables.
///
/// # Errors
/// When the socket fails, or the kernel shows none of its rules.
pub fn forward_drops(prefixes: &[String]) -> io::Result<Vec<ForwardDrop>> {
    match Socket::open() {
        Ok(mut socket) => drops(&mut socket, prefixes),
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn drops(socket: &mut Socket, prefixes: &[String]) -> io::Result<Vec<ForwardDrop>> {
    let mut chains: BTreeMap<(TableId, String), OtherChain> = BTreeMap::new();
    dump(socket, 0, NFT_MSG_GETCHAIN, None, |m| {
        let (Some(table), Some(name)) = (table_of(m), attr(m, NFTA_CHAIN_NAME)) else { return };
        if super::OWN_TABLES.contains(&table.1.as_str()) || family_name(table.0).is_none() {
            return;
        }
        let hook =
            attr(m, NFTA_CHAIN_HOOK).and_then(|hook| find(hook, NFTA_HOOK_HOOKNUM)).and_then(codec::be32);
        let is_filter = attr(m, NFTA_CHAIN_TYPE).map(codec::text).as_deref() == Some("filter");
        let drops = attr(m, NFTA_CHAIN_POLICY).and_then(codec::be32) == Some(NF_DROP.cast_unsigned());
        let forward = (hook == Some(HOOK_FORWARD) && is_filter).then_some(drops);
        chains.insert((table, codec::text(name)), OtherChain { forward, ends_in_drop: false });
    })?;
    let tables: BTreeSet<TableId> = chains
        .iter()
        .filter(|(_, chain)| chain.forward.is_some())
        .map(|((table, _), _)| table.clone())
        .collect();
    let mut naming: BTreeSet<TableId> = BTreeSet::new();
    for table in tables {
        dump(socket, table.0, NFT_MSG_GETRULE, Some(&table.1), |m| {
            if table_of(m).as_ref() != Some(&table) {
                return;
            }
            let expressions = attr(m, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
            let names =
                |prefix: &String| expressions.windows(prefix.len()).any(|part| part == prefix.as_bytes());
            let ours = attr(m, NFTA_RULE_USERDATA).and_then(hash).is_some();
            if ours || prefixes.iter().filter(|prefix| !prefix.is_empty()).any(names) {
                naming.insert(table.clone());
            }
            let chain = attr(m, NFTA_RULE_CHAIN).map(codec::text).unwrap_or_default();
            if let Some(chain) = chains.get_mut(&(table.clone(), chain)) {
                chain.ends_in_drop = drops_all(expressions);
            }
        })?;
    }
    let found = chains.iter().filter_map(|((table, name), chain)| {
        let by_policy = chain.forward?;
        (by_policy || chain.ends_in_drop).then(|| ForwardDrop {
            family: family_name(table.0).unwrap_or_default().to_owned(),
            table: table.1.clone(),
            chain: name.clone(),
            by_policy,
            names_workloads: naming.contains(table),
            has_docker_user: chains.contains_key(&(table.clone(), DOCKER_USER.to_owned())),
        })
    });
    Ok(found.collect())
}

fn table_of(m: &Message<'_>) -> Option<TableId> {
    Some((codec::u8_at(m.body, 0)?, codec::text(attr(m, NFTA_TABLE)?)))
}

/// Whether a rule drops or rejects every packet: it has no match.
fn drops_all(expressions: &[u8]) -> bool {
    let mut drops = false;
    for (_, expression) in Attrs(expressions) {
        let name = find(expression, NFTA_EXPR_NAME).map(codec::text).unwrap_or_default();
        let data = find(expression, NFTA_EXPR_DATA).unwrap_or_default();
        match name.as_str() {
            "counter" | "log" => {}
            "reject" => drops = true,
            "target" => drops |= data.windows(6).any(|part| part == b"REJECT"),
            "immediate" => {
                let verdict = find(data, NFTA_IMMEDIATE_DATA).and_then(|d| find(d, NFTA_DATA_VERDICT));
                let code = verdict.and_then(|v| find(v, NFTA_VERDICT_CODE)).and_then(codec::be32);
                drops |= code == Some(NF_DROP.cast_unsigned());
            }
            _ => return false,
        }
    }
    drops
}

/// Reads what there is of one kind, of one table or of all.
fn dump(
    socket: &mut Socket,
    family: u8,
    kind: u16,
    table: Option<&str>,
    mut each: impl FnMut(&Message<'_>),
) -> io::Result<()> {
    let encode = |buf: &mut Vec<u8>, seq| {
        let mut w = Writer::begin(buf, (SUBSYSTEM << 8) | kind, NLM_F_DUMP, seq);
        w.raw(&[family, 0, 0, 0]);
        if let Some(table) = table {
            w.attr_text(NFTA_TABLE, table);
        }
        w.end();
    };
    match socket.0.dump(encode, |m| {
        if m.kind >> 8 == SUBSYSTEM {
            each(m);
        }
    })? {
        // A table that went meanwhile.
        Err(refusal) if refusal.code == libc::ENOENT => Ok(()),
        Err(refusal) => Err(io::Error::from_raw_os_error(refusal.code)),
        Ok(_) => Ok(()),
    }
}

/// The rules that let packets of workloads pass Docker's chain. What workloads send to Docker's own bridges stays subject to
/// its rules.
fn admission(prefixes: &[String]) -> Vec<Rule> {
    let by = |inbound, prefix: &str| Match::InterfacePrefix { inbound, not: false, prefix: prefix.into() };
    let comment = |text: &str| Some(Box::from(text));
    let mut rules = Vec::new();
    for prefix in prefixes.iter().filter(|prefix| (1..=15).contains(&prefix.len())) {
        rules.push(Rule {
            matches: vec![by(false, prefix)],
            counted: true,
            statement: Statement::Accept,
            comment: comment("tortie: to workloads, judged before"),
            ..Rule::default()
        });
        rules.extend(BRIDGES.map(|bridge| Rule {
            matches: vec![by(true, prefix), by(false, bridge)],
            counted: true,
            statement: Statement::Return,
            comment: comment("tortie: to containers of Docker bridges"),
            ..Rule::default()
        }));
        rules.push(Rule {
            matches: vec![by(true, prefix)],
            counted: true,
            statement: Statement::Accept,
            comment: comment("tortie: from workloads, judged before"),
            ..Rule::default()
        });
    }
    rules
}

/// Keeps those rules where they are needed, and takes them away where they are not.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    generation: Option<u32>,
    needed: bool,
    due: Option<Instant>,
}

impl Admission {
    /// When it is to be looked at again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Looks, if it is time or something else is needed than before; at once then. True: another transaction was made since the
    /// last look.
    ///
    /// # Errors
    /// When rules cannot be read or written; it is tried again.
    pub(crate) fn check(&mut self, now: Instant, needed: bool, prefixes: &[String]) -> io::Result<bool> {
        if needed == self.needed && self.due.is_some_and(|due| due > now) {
            return Ok(false);
        }
        if !needed && !self.needed && self.due.is_none() {
            return Ok(false);
        }
        let changed = needed != self.needed;
        (self.needed, self.due) = (needed, Some(now + INTERVAL));
        let mut socket = Socket::open()?;
        let generation = socket.generation()?;
        if !changed && self.generation == Some(generation) {
            return Ok(false);
        }
        self.generation = None;
        write(&mut socket, needed, prefixes)?;
        self.generation = Some(socket.generation()?);
        if !needed {
            self.due = None;
        }
        Ok(true)
    }
}

/// Takes our rules out of Docker's chain. Gives how many there were.
///
/// # Errors
/// When rules cannot be read or written.
pub fn withdraw(dry_run: bool) -> io::Result<usize> {
    let mut socket = match Socket::open() {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(0),
        Err(error) => return Err(error),
    };
    if dry_run {
        let mut count = 0;
        for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
            count += present(&mut socket, family, &[])?.len();
        }
        return Ok(count);
    }
    write(&mut socket, false, &[])
}

/// Our rules in Docker's chain, in order: the handle, and which of these rules it is.
fn present(socket: &mut Socket, family: u8, rules: &[Rule]) -> io::Result<Vec<(u64, Option<usize>)>> {
    let mut found = Vec::new();
    dump(socket, family, NFT_MSG_GETRULE, Some(FILTER), |m| {
        let chain = attr(m, NFTA_RULE_CHAIN).map(codec::text);
        if chain.as_deref() == Some(DOCKER_USER)
            && table_of(m).is_some_and(|(of, table)| of == family && table == FILTER)
            && let Some(handle) = attr(m, NFTA_RULE_HANDLE).and_then(codec::be64)
            && let Some(hash) = attr(m, NFTA_RULE_USERDATA).and_then(hash)
        {
            found.push((handle, rules.iter().position(|rule| rule_hash(rule) == hash)));
        }
    })?;
    Ok(found)
}

/// Gives how many rules were taken away.
fn write(socket: &mut Socket, needed: bool, prefixes: &[String]) -> io::Result<usize> {
    let dropping = if needed { drops(socket, prefixes)? } else { Vec::new() };
    let mut removed = 0;
    for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
        let name = family_name(family).unwrap_or_default();
        let drops = dropping.iter().any(|d| d.family == name && d.table == FILTER && d.has_docker_user);
        let rules = if drops { admission(prefixes) } else { Vec::new() };
        let ours = present(socket, family, &rules)?;
        // Rules that people put before ours stay there.
        if ours.iter().map(|(_, which)| *which).eq((0..rules.len()).map(Some)) {
            continue;
        }
        removed += ours.len();
        let handles: Vec<u64> = ours.into_iter().map(|(handle, _)| handle).collect();
        let place = (family, FILTER, DOCKER_USER);
        let written =
            socket.0.transaction(|buf, base| encode_in_chain(buf, base, place, &handles, &rules))?;
        match written {
            // dockerd went, or wrote, meanwhile: the next look finds it.
            Err(TransactionError::Refused(_, refusal)) if refusal.code == libc::ENOENT => {}
            Err(TransactionError::Refused(_, refusal)) => return Err(io::Error::other(refusal.text)),
            Err(TransactionError::Unknown) => return Err(io::Error::other("the kernel's answer was lost")),
            Ok(()) => {}
        }
    }
    Ok(removed)
}
