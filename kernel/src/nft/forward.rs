//! Other programs' rules at the forward hook, through which packets of workloads pass: detection of drops of
//! packets that Tortie allows, and admission rules in Docker's chain for user rules.
//!
//! A packet passes each base chain of a hook, and one drop is final. dockerd sets the policy of `FORWARD` to
//! drop when it starts. It reserves the chain `DOCKER-USER` for other programs: it jumps there first and
//! never changes its content (except for the `RETURN` at the end). While this host has workloads and such a
//! chain drops, the rules of [`admission`] are at the beginning of `DOCKER-USER`: they accept packets of
//! workloads, to which Tortie's chains have already applied policy. Nothing else in other tables is ever
//! changed.

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

/// Docker's table, and its chain for user rules.
const FILTER: &str = "filter";
const DOCKER_USER: &str = "DOCKER-USER";
/// Name prefixes of bridges created by dockerd.
const BRIDGES: [&str; 2] = ["docker", "br-"];
/// Interval of checks of the kernel's rule generation.
const INTERVAL: Duration = Duration::from_millis(500);
const HOOK_FORWARD: u32 = 2;

/// A base chain of another program that drops forwarded packets that none of its rules accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ForwardDrop {
    /// Address family: `ip`, `ip6` or `inet`.
    pub family: String,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// True if the chain policy drops; false if its last rule does.
    pub by_policy: bool,
    /// True if a rule of the table matches workload interfaces, so that a program (possibly Tortie) already
    /// accepts their packets.
    pub names_workloads: bool,
    /// True if the table has Docker's chain for user rules.
    pub has_docker_user: bool,
}

impl ForwardDrop {
    /// Describes the chain: `chain FORWARD of table ip filter (its policy is drop)`.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { family, table, chain, by_policy, .. } = self;
        let why = if *by_policy { "its policy is drop" } else { "its last rule drops" };
        format!("chain {chain} of table {family} {table} ({why})")
    }

    /// Returns the commands that accept packets of workloads.
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

/// Properties of a chain in another table.
#[derive(Debug, Default)]
struct OtherChain {
    /// For a base chain of type filter at the forward hook, true if its policy is drop.
    forward: Option<bool>,
    /// True if its last rule drops every packet that reaches it.
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

/// Lists the chains that drop forwarded packets of workloads, by the name prefixes of their interfaces; none
/// if the kernel has no nf_tables.
///
/// # Errors
/// The socket fails, or the kernel refuses to show its rules.
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

/// Returns true if a rule without matches drops or rejects every packet.
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

/// Dumps all objects of one kind, of one table or of all tables.
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
        // The table was deleted meanwhile.
        Err(refusal) if refusal.code == libc::ENOENT => Ok(()),
        Err(refusal) => Err(io::Error::from_raw_os_error(refusal.code)),
        Ok(_) => Ok(()),
    }
}

/// Returns the rules that accept packets of workloads in Docker's chain. Packets from workloads to Docker's
/// own bridges remain subject to Docker's rules.
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

/// Installs these rules when they are needed, and removes them otherwise.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    generation: Option<u32>,
    needed: bool,
    due: Option<Instant>,
}

impl Admission {
    /// Returns the time of the next check.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Checks the rules at the interval, or at once if `needed` changed. Returns true if the kernel's rule
    /// generation changed since the last check.
    ///
    /// # Errors
    /// Rules cannot be read or written; the next check retries.
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

/// Removes Tortie's rules from Docker's chain and returns their number.
///
/// # Errors
/// Rules cannot be read or written.
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

/// Returns Tortie's rules in Docker's chain, in order, with their handles and their indices in `rules`.
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

/// Writes the needed rules and returns the number of removed ones.
fn write(socket: &mut Socket, needed: bool, prefixes: &[String]) -> io::Result<usize> {
    let dropping = if needed { drops(socket, prefixes)? } else { Vec::new() };
    let mut removed = 0;
    for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
        let name = family_name(family).unwrap_or_default();
        let drops = dropping.iter().any(|d| d.family == name && d.table == FILTER && d.has_docker_user);
        let rules = if drops { admission(prefixes) } else { Vec::new() };
        let ours = present(socket, family, &rules)?;
        // Rules that an operator put before Tortie's keep their place.
        if ours.iter().map(|(_, which)| *which).eq((0..rules.len()).map(Some)) {
            continue;
        }
        removed += ours.len();
        let handles: Vec<u64> = ours.into_iter().map(|(handle, _)| handle).collect();
        let place = (family, FILTER, DOCKER_USER);
        let written =
            socket.0.transaction(|buf, base| encode_in_chain(buf, base, place, &handles, &rules))?;
        match written {
            // dockerd removed or changed the chain meanwhile: the next check detects it.
            Err(TransactionError::Refused(_, refusal)) if refusal.code == libc::ENOENT => {}
            Err(TransactionError::Refused(_, refusal)) => return Err(io::Error::other(refusal.text)),
            Err(TransactionError::Unknown) => return Err(io::Error::other("the kernel's answer was lost")),
            Ok(()) => {}
        }
    }
    Ok(removed)
}
